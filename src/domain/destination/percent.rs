//! Percent-encoding of RFC 3986, section 2.1.

use std::fmt::Write as _;

/// Decodes `%XX`; a percent sign without two hex digits stands for itself. Nothing where the result is not UTF-8.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = match (first, after) {
            (b'%', [high, low, ..]) => hex_value(*high).zip(hex_value(*low)),
            _ => None,
        };
        if let Some((high, low)) = escaped {
            decoded.push(high << 4 | low);
            rest = after.get(2..).unwrap_or_default();
        } else {
            decoded.push(first);
            rest = after;
        }
    }
    String::from_utf8(decoded).ok()
}

fn hex_value(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Appends the text with all but RFC 3986's unreserved characters as `%XX`, so it stays one path segment or query value.
pub(super) fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}
