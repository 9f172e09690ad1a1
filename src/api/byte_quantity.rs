//! Amounts of memory as Kubernetes writes them: `128Mi`, `1Gi`, `64M`, or bytes alone.

use std::{fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longest text that is read: enough for 64Gi in bytes.
const MAX_LENGTH: usize = 12;
/// Whole numbers only: half a mebibyte is written 512Ki.
const PATTERN: &str = "^[0-9]+(k|M|G|Ki|Mi|Gi)?$";
/// Suffixes and what they stand for, the binary ones from the largest on.
const UNITS: [(&str, u64); 6] =
    [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10), ("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)];

/// An amount of bytes, read from and written as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteQuantity(pub u64);

/// Why a text is no amount of bytes.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not an amount of memory: write it as 128Mi, 1Gi, 64M, or in bytes alone")]
pub struct ByteQuantityError {
    text: String,
}

impl ByteQuantity {
    /// Whole mebibytes.
    pub const fn from_mebibytes(mebibytes: u64) -> Self {
        Self(mebibytes << 20)
    }
}

impl FromStr for ByteQuantity {
    type Err = ByteQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(Self).ok_or_else(|| ByteQuantityError { text: text.chars().take(40).collect() })
    }
}

fn parse(text: &str) -> Option<u64> {
    if text.len() > MAX_LENGTH {
        return None;
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let unit = match suffix {
        "" => 1,
        _ => UNITS.iter().find(|(name, _)| *name == suffix)?.1,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

impl fmt::Display for ByteQuantity {
    /// The largest binary unit that says it exactly, else bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = UNITS.iter().take(3).find(|(_, unit)| self.0 > 0 && self.0.is_multiple_of(*unit));
        match binary {
            Some((name, unit)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for ByteQuantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteQuantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for ByteQuantity {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ByteQuantity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": PATTERN, "maxLength": MAX_LENGTH })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kubernetes_spelling_is_read_and_written_back() {
        for (text, bytes, shown) in [
            ("128Mi", 134_217_728, "128Mi"),
            ("1Gi", 1 << 30, "1Gi"),
            ("1024Mi", 1 << 30, "1Gi"),
            ("64M", 64_000_000, "62500Ki"),
            ("1000", 1000, "1000"),
            ("1k", 1000, "1000"),
            ("0", 0, "0"),
        ] {
            let read: ByteQuantity = text.parse().unwrap();
            assert_eq!(read.0, bytes, "{text}");
            assert_eq!(read.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_with_the_mend() {
        for text in ["", "Mi", "1.5Gi", "-1Mi", "128 Mi", "128mi", "1e3", "128MiB", "99999999999Gi"] {
            let refused = text.parse::<ByteQuantity>().unwrap_err().to_string();
            assert!(refused.contains("128Mi, 1Gi"), "{text}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn any_amount_reads_back_as_itself(bytes in 0_u64..=64 << 30) {
            prop_assert_eq!(ByteQuantity(bytes).to_string().parse::<ByteQuantity>().unwrap(), ByteQuantity(bytes));
        }
    }
}
