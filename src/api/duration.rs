//! Durations as users write them: Go's spelling (`500ms`, `1m30s`), or whole days alone (`7d`).

use std::{fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longest text that is read. Short, so that the API server's cost estimate of rules over durations stays small.
const MAX_LENGTH: usize = 20;
/// The schema's pattern; what it admits beyond the parser (a sum that overflows) is refused when the text is read.
const PATTERN: &str = r"^(([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+|[0-9]+d)$";
/// Largest duration that is read: a century, so that adding one to any instant of the database stays in range.
const MAX: std::time::Duration = std::time::Duration::from_secs(100 * 366 * 24 * 3600);

/// A span of time, read from and written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub std::time::Duration);

/// Why a text is no duration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not a duration: write it as 500ms, 30s, 1m30s, 1h, or whole days alone as 7d (at most 36600d)")]
pub struct DurationError {
    text: String,
}

impl Duration {
    /// A duration of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(std::time::Duration::from_secs(seconds))
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text)
            .filter(|d| *d <= MAX)
            .map(Self)
            .ok_or_else(|| DurationError { text: text.chars().take(40).collect() })
    }
}

fn parse(text: &str) -> Option<std::time::Duration> {
    if text.is_empty() || text.len() > MAX_LENGTH {
        return None;
    }
    if let Some(days) = text.strip_suffix('d') {
        let days: u64 = digits(days)?.parse().ok()?;
        return days.checked_mul(24 * 3600).map(std::time::Duration::from_secs);
    }
    let mut rest = text;
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (value, tail) = rest.split_at(number);
        let unit = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let scale: u128 = match unit {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = value.split_once('.').map_or((value, None), |(w, f)| (w, Some(f)));
        nanos += digits(whole)?.parse::<u128>().ok()? * scale;
        if let Some(fraction) = fraction {
            // MAX_LENGTH bounds the digits, so neither the product nor the power overflows 128 bits.
            let power = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
            nanos += digits(fraction)?.parse::<u128>().ok()? * scale / power;
        }
        rest = tail;
    }
    let seconds = u64::try_from(nanos / 1_000_000_000).ok()?;
    let nanos = u32::try_from(nanos % 1_000_000_000).ok()?;
    Some(std::time::Duration::new(seconds, nanos))
}

fn digits(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then_some(text)
}

impl fmt::Display for Duration {
    /// The shortest spelling that reads back as the same duration: `7d`, `1h`, `1m30s`, `500ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        if nanos == 0 && seconds >= 2 * 24 * 3600 && seconds.is_multiple_of(24 * 3600) {
            return write!(f, "{}d", seconds / (24 * 3600));
        }
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if seconds > 0 || (hours == 0 && minutes == 0 && nanos == 0) {
            write!(f, "{seconds}s")?;
        }
        match nanos {
            0 => Ok(()),
            n if n.is_multiple_of(1_000_000) => write!(f, "{}ms", n / 1_000_000),
            n if n.is_multiple_of(1_000) => write!(f, "{}us", n / 1_000),
            n => write!(f, "{n}ns"),
        }
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Duration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": PATTERN, "maxLength": MAX_LENGTH })
    }
}

/// The CEL expression of a duration field, days included: CEL's own `duration()` knows no `d`. A day is an hour added up 24
/// times: arithmetic on the digits would be plainer, but a text made of a number has no bound on its length for the API
/// server, which then refuses the rule for its estimated cost.
macro_rules! cel_duration {
    ($field:literal) => {
        concat!(
            "(",
            $field,
            ".endsWith('d') ? [duration(",
            $field,
            ".replace('d', 'h'))].map(h, h + h).map(h, h + h).map(h, h + h).map(h, h + h + h)[0] : duration(",
            $field,
            "))"
        )
    };
}
pub(super) use cel_duration;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn go_spelling_and_whole_days_are_read_and_written_back() {
        for (text, millis, shown) in [
            ("500ms", 500, "500ms"),
            ("1m30s", 90_000, "1m30s"),
            ("90s", 90_000, "1m30s"),
            ("7d", 7 * 86_400_000, "7d"),
            ("24h", 86_400_000, "24h"),
            ("0s", 0, "0s"),
            ("1.5h", 5_400_000, "1h30m"),
        ] {
            let read: Duration = text.parse().unwrap();
            assert_eq!(read.0, std::time::Duration::from_millis(millis), "{text}");
            assert_eq!(read.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_mend() {
        for text in ["", "5", "s", "-1s", "1d12h", "1 s", "1.s", ".5s", "1e3s", "99999999999999999h", "36601d", "1µs"]
        {
            let refused = text.parse::<Duration>().unwrap_err().to_string();
            assert!(refused.contains("500ms, 30s"), "{text}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn any_duration_reads_back_as_itself(nanos in 0_u64..u64::MAX / 8) {
            let whole = Duration(std::time::Duration::from_nanos(nanos / 1_000_000 * 1_000_000));
            let text = whole.to_string();
            prop_assume!(text.len() <= MAX_LENGTH);
            prop_assert_eq!(text.parse::<Duration>().unwrap(), whole);
        }

        #[test]
        fn no_text_panics(text in "[0-9a-z. ]{0,24}") {
            let _ = text.parse::<Duration>();
        }
    }
}
