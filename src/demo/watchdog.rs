//! Child processes that cannot outlive us, even if we are killed.
//!
//! Each runs under a small shell that reads a pipe whose other end is ours. When the pipe closes, for whatever reason, the
//! shell ends its child and removes the directory that it was given. Signals go through the same pipe: the standard
//! library sends none but KILL, and a process id kept on our side could have become somebody else's.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
};

use tokio::sync::watch;

/// The shell's part. `$1` is the signal at the end, `$2` a directory to remove or nothing, the rest the command.
///
/// The reader is a process beside the waiting one, so that both the pipe's end and the child's end are noticed at once.
/// A child that ignores its signal for 10 seconds is killed. After the child's end the shell stays until the pipe closes,
/// since the directory is still in use on our side; the word `keep` leaves the directory to a successor. The status is
/// told only once the reader is gone, so that it cannot swallow that word.
const SHELL: &str = r#"
exec 3<&0 </dev/null
end=$1 directory=$2
shift 2
"$@" >&2 3<&- &
child=$!
trap '' PIPE
(
    while read -r signal; do kill -s "$signal" "$child"; done
    kill -s "$end" "$child"
    kill -s CONT "$child"
    left=100
    while [ "$left" -gt 0 ] && kill -s 0 "$child"; do
        sleep 0.1
        left=$((left - 1))
    done
    kill -s KILL "$child"
) <&3 2>/dev/null &
reader=$!
wait "$child"
status=$?
{ kill "$reader"; wait "$reader"; } 2>/dev/null
echo "$status"
while read -r word; do [ "$word" = keep ] && directory=; done <&3
[ -n "$directory" ] && rm -rf -- "$directory"
exit 0
"#;

/// What is run.
pub(super) struct Watch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Changes to its environment.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Where it runs.
    pub working_directory: PathBuf,
    /// Another user and group than our own.
    pub user: Option<(u32, u32)>,
    /// Takes its output.
    pub log: File,
    /// The signal that asks it to end, such as `TERM`.
    pub end_signal: &'static str,
    /// A directory to remove after its end.
    pub remove: Option<PathBuf>,
}

/// A child process under its watchdog. Dropping it ends the child, without waiting for that.
#[derive(Debug)]
pub(super) struct Watched {
    pipe: ChildStdin,
    stage: watch::Receiver<Stage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Running,
    /// The child has ended, with this status as a shell sees it (a signal is 128 and its number).
    Ended(i32),
    /// The watchdog has ended, too.
    Gone,
}

impl Watched {
    /// Starts a child and its watchdog.
    ///
    /// # Errors
    ///
    /// If there is no `/bin/sh` or no process can be made. A program that cannot be run ends with status 126 or 127.
    pub fn spawn(watch: Watch) -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", SHELL, "watchdog", watch.end_signal]);
        shell.arg(watch.remove.unwrap_or_default()).arg(watch.program).args(watch.args);
        for (name, value) in watch.env {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.current_dir(watch.working_directory);
        // A group of its own: the terminal's Ctrl-C is for us, and we end our children in order.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(watch.log);
        if let Some((user, group)) = watch.user {
            shell.uid(user).gid(group);
        }
        let mut shell = shell.spawn()?;
        let pipe = shell.stdin.take().ok_or_else(|| io::Error::other("the watchdog has no standard input"))?;
        let (sender, stage) = watch::channel(Stage::Running);
        thread::Builder::new().name("watchdog".to_owned()).spawn(move || follow(shell, &sender))?;
        Ok(Self { pipe, stage })
    }

    /// Sends a signal by its name, such as `KILL`. A child that has ended gets none.
    ///
    /// # Errors
    ///
    /// If the watchdog itself is gone.
    pub fn signal(&mut self, name: &str) -> io::Result<()> {
        if self.is_running() { writeln!(self.pipe, "{name}") } else { Ok(()) }
    }

    /// Whether the child runs.
    pub fn is_running(&self) -> bool {
        *self.stage.borrow() == Stage::Running
    }

    /// Waits for the end of the child and gives its status.
    pub async fn ended(&self) -> i32 {
        let mut stage = self.stage.clone();
        let status = stage.wait_for(|stage| *stage != Stage::Running).await;
        match status.as_deref() {
            Ok(Stage::Ended(status)) => *status,
            // The watchdog was killed from outside, or its thread is gone: all that is known is that it is over.
            _ => -1,
        }
    }

    /// Leaves the directory in place at the end: another child uses it.
    ///
    /// # Errors
    ///
    /// If the watchdog itself is gone.
    pub async fn keep_directory(&mut self) -> io::Result<()> {
        // A word sent while the child runs would be taken for a signal.
        self.ended().await;
        writeln!(self.pipe, "keep")
    }

    /// Ends the child and waits until it and its watchdog are gone, the directory too.
    pub async fn finish(self) {
        let Self { pipe, mut stage } = self;
        drop(pipe);
        // An error means that the thread is gone, and it goes last.
        let _ = stage.wait_for(|stage| *stage == Stage::Gone).await;
    }
}

/// Waits for the child and then for its watchdog, on a thread: so a child outlives the runtime that started it.
fn follow(mut shell: Child, stage: &watch::Sender<Stage>) {
    if let Some(output) = shell.stdout.take() {
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        if let (Ok(_), Ok(status)) = (read, line.trim().parse()) {
            stage.send_replace(Stage::Ended(status));
        }
    }
    // Nothing can be done about a child that cannot be waited for.
    let _ = shell.wait();
    stage.send_replace(Stage::Gone);
}

#[cfg(test)]
mod tests;
