//! A bar for long acts, on a terminal's standard error.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that is hidden where standard error is no terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// For rows that this verb is done to, such as `replayed`.
    pub fn new(verb: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        // A constant template; the plain bar stands in if it were wrong.
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {human_pos} of {human_len} rows {msg}, {eta} left") {
            bar.set_style(style);
        }
        bar.set_message(verb.to_owned());
        Self(bar)
    }

    /// Tells it how many rows of how many are done.
    pub fn tell(&self, done: usize, total: usize) {
        self.0.set_length(total.max(done) as u64);
        self.0.set_position(done as u64);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
