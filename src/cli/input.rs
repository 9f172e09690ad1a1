//! Long arguments: given as they are, or read from standard input.

use std::{io::Read, process::ExitCode};

use super::{Error, INVALID};

/// Longest text that is read from standard input, in bytes: far above any payload a receiver takes.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// The argument itself, or standard input where it is `-`. The inner error is the exit code, its reason shown.
pub fn text_or_stdin(option: &str, value: String) -> Result<Result<String, ExitCode>, Error> {
    if value != "-" {
        return Ok(Ok(value));
    }
    let mut bytes = Vec::new();
    std::io::stdin().take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).map_err(|_| {
        eprintln!("outbox: {option}: standard input is not UTF-8");
        ExitCode::from(INVALID)
    }))
}
