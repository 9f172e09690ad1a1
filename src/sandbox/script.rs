//! Reading scripts: from the text of a path to steps. Pure.

use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::step::{Answer, Breakage, Content, Script, ScriptError, Step};

/// Steps in a script at most; a longer one is a mistake in the making of URLs.
const MAX_STEPS: usize = 1_000;
/// Steps inside a step at most (`slow:5:gate:a:500` has two).
const MAX_NESTING: usize = 4;
/// Longest time that a step waits: an hour.
const MAX_WAIT_MS: u64 = 3_600_000;
/// Longest name of a gate, in bytes.
const MAX_GATE_NAME_BYTES: usize = 100;

impl std::str::FromStr for Script {
    type Err = ScriptError;

    /// Reads the percent-encoded script of a path: `500x5,201`.
    fn from_str(text: &str) -> Result<Self, ScriptError> {
        if text.is_empty() {
            return Err(ScriptError::Empty);
        }
        let mut steps = Vec::new();
        for part in text.split(',') {
            if steps.len() == MAX_STEPS {
                return Err(wrong(part, "a script has at most 1000 steps: use STEPxN"));
            }
            let (step, times) = repetition(part)?;
            steps.push((parse_step(step, MAX_NESTING)?, times));
        }
        Self::new(steps)
    }
}

/// Splits `500x5` into the step and its count; without a count it is taken once.
fn repetition(part: &str) -> Result<(&str, u32), ScriptError> {
    match part.rsplit_once('x') {
        Some((step, times)) if !times.is_empty() && times.bytes().all(|b| b.is_ascii_digit()) => match times.parse() {
            Ok(times) if times > 0 => Ok((step, times)),
            _ => Err(wrong(part, "the count after x is 1 to 4294967295")),
        },
        _ => Ok((part, 1)),
    }
}

/// Reads one step, inside at most `nesting` others.
///
/// # Errors
///
/// [`ScriptError`] with the step's text.
pub(super) fn parse_step(text: &str, nesting: usize) -> Result<Step, ScriptError> {
    let Some(deeper) = nesting.checked_sub(1) else {
        return Err(wrong(text, "steps are nested too deep"));
    };
    if let Some(inner) = text.strip_prefix("done-") {
        let inner = parse_step(inner, deeper)?;
        return if inner.makes_effect() || matches!(inner, Step::Keep(_)) {
            Err(wrong(text, "done- stands before a step that makes no effect itself: done-500, done-reset"))
        } else {
            Ok(Step::Done(Box::new(inner)))
        };
    }
    let (name, argument) = text.split_once(':').map_or((text, None), |(name, argument)| (name, Some(argument)));
    let plain = |step: Step| match argument {
        None => Ok(step),
        Some(_) => Err(wrong(text, "it takes no argument")),
    };
    match name {
        "reset" => plain(Step::Break(Breakage::Reset)),
        "close" => plain(Step::Break(Breakage::Close)),
        "garbage" => plain(Step::Break(Breakage::Garbage)),
        "cut" => plain(Step::Break(Breakage::Cut)),
        "hang" => plain(Step::Hang),
        "lost" => plain(Step::Done(Box::new(Step::Hang))),
        "drip" => plain(Step::Answer(Answer { body: Content::Drip, ..Answer::created() })),
        "bye" => Ok(Step::Break(Breakage::Bye(argument.map_or(Ok(Duration::ZERO), |ms| milliseconds(text, ms))?))),
        "big" => {
            let bytes = argument.and_then(|bytes| bytes.parse().ok());
            let bytes = bytes.ok_or_else(|| wrong(text, "it needs a number of bytes: big:100000"))?;
            Ok(Step::Answer(Answer { body: Content::Big(bytes), ..Answer::created() }))
        }
        "slow" => {
            let (ms, then) = split_then(text, argument, deeper)?;
            Ok(Step::Slow(milliseconds(text, ms)?, Box::new(then)))
        }
        "gate" => {
            let (name, then) = split_then(text, argument, deeper)?;
            match decode_text(name) {
                Some(name) if !name.is_empty() && name.len() <= MAX_GATE_NAME_BYTES => {
                    Ok(Step::Gate(name, Box::new(then)))
                }
                _ => Err(wrong(text, "it needs a name of at most 100 bytes: gate:a")),
            }
        }
        _ => answer_step(text, name, argument),
    }
}

/// Reads `201`, `429:2`, `body-422:TEXT`, `empty-204`, `kept-500`.
fn answer_step(text: &str, name: &str, argument: Option<&str>) -> Result<Step, ScriptError> {
    let (kind, status) = match name.split_once('-') {
        Some((kind @ ("body" | "empty" | "kept"), status)) => (kind, status),
        None if name == "body" || name == "empty" => (name, "201"),
        _ => ("", name),
    };
    if status.len() != 3 || !status.bytes().all(|b| b.is_ascii_digit()) {
        return Err(ScriptError::Unknown { step: shown(text) });
    }
    let status = StatusCode::from_bytes(status.as_bytes()).ok().filter(|status| (200..600).contains(&status.as_u16()));
    let status = status.ok_or_else(|| wrong(text, "a status is 200 to 599"))?;
    let answer = Answer::of(status);
    if kind == "body" {
        let body = decode(argument.unwrap_or_default());
        let body = body.ok_or_else(|| wrong(text, "its text is not percent-encoded"))?;
        return Ok(Step::Answer(Answer { body: Content::Text(body), ..answer }));
    }
    let argument = argument
        .map(|argument| {
            let value = decode(argument).and_then(|value| HeaderValue::from_bytes(&value).ok());
            value.ok_or_else(|| wrong(text, "its argument is no percent-encoded header value"))
        })
        .transpose()?;
    match kind {
        "empty" => Ok(Step::Answer(Answer { argument, body: Content::Empty, ..answer })),
        "kept" if status.is_success() => Err(wrong(text, "a 2xx is kept anyway: write the status alone")),
        "kept" => Ok(Step::Keep(Answer { argument, ..answer })),
        _ => Ok(Step::Answer(Answer { argument, ..answer })),
    }
}

/// Splits `1500:STEP` of `slow:1500:STEP`; without a step it is 201.
fn split_then<'a>(text: &str, argument: Option<&'a str>, nesting: usize) -> Result<(&'a str, Step), ScriptError> {
    match argument.map(|argument| argument.split_once(':').map_or((argument, None), |(own, then)| (own, Some(then)))) {
        None => Err(wrong(text, "it needs an argument: slow:1500, gate:a")),
        Some((own, None)) => Ok((own, Step::Answer(Answer::created()))),
        Some((own, Some(then))) => Ok((own, parse_step(then, nesting)?)),
    }
}

fn milliseconds(text: &str, ms: &str) -> Result<Duration, ScriptError> {
    match ms.parse() {
        Ok(ms) if ms <= MAX_WAIT_MS => Ok(Duration::from_millis(ms)),
        _ => Err(wrong(text, "its time is in milliseconds, at most 3600000")),
    }
}

fn wrong(step: &str, wrong: &'static str) -> ScriptError {
    ScriptError::Argument { step: shown(step), wrong }
}

/// A step's text in an error: cut, since a path may be long.
fn shown(step: &str) -> String {
    step.chars().take(80).collect()
}

/// Percent-decoding. Not form decoding: `+` stays.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let high = char::from(rest.next()?).to_digit(16)?;
            let low = char::from(rest.next()?).to_digit(16)?;
            u8::try_from(high * 16 + low).ok()?
        } else {
            byte
        });
    }
    Some(bytes)
}

/// Percent-decoding of what must be UTF-8.
pub(super) fn decode_text(text: &str) -> Option<String> {
    String::from_utf8(decode(text)?).ok()
}

/// Percent-encoding of text inside a step: everything but letters, digits, `-`, `.` and `_`; `x` too, since it counts.
pub(super) fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'x' => encoded.push_str("%78"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => encoded.push(char::from(byte)),
            _ => {
                // Writing to a String cannot fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests;
