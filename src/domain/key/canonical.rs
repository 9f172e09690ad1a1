//! JSON text to its canonical form: an RFC 8259 parser that keeps integers as text, and a writer that sorts.
//!
//! Two passes, each linear but for the sorting of keys: every byte is read once and written once, whatever the depth.
//! Recursion is bounded by [`MAX_NESTING`].

use std::borrow::Cow;
use std::fmt::Write as _;

use super::number;
use super::{KeyError, MAX_INTEGER_DIGITS, MAX_NESTING};

/// One value of a parsed document; texts borrow from the source where they hold no escape.
pub(super) enum Value<'a> {
    /// `null`, `true`, `false`, or an integer that is already spelled canonically.
    Literal(&'a str),
    /// A finite number that was spelled with a point or an exponent.
    Float(f64),
    /// A string, unescaped.
    Text(Cow<'a, str>),
    /// An array in its own order.
    Array(Vec<Value<'a>>),
    /// An object's members, sorted by code point, each name once.
    Object(Vec<(Cow<'a, str>, Value<'a>)>),
}

/// Parses one JSON document, with nothing but white space around it.
///
/// # Errors
///
/// [`KeyError`] for text that is no JSON, or is beyond the contract's limits.
pub(super) fn parse(text: &str) -> Result<Value<'_>, KeyError> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    match parser.next_token() {
        None => Ok(value),
        Some(_) => Err(parser.expected("the end of the text")),
    }
}

impl Value<'_> {
    /// Appends the canonical text.
    pub(super) fn write(&self, out: &mut String) {
        match self {
            Value::Literal(text) => out.push_str(text),
            Value::Float(number) => number::write_float(*number, out),
            Value::Text(text) => write_string(text, out),
            Value::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Value::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_string(name, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// Appends a JSON string literal of ASCII only: what is not in 0x20 to 0x7e becomes `\uXXXX` per UTF-16 unit.
pub(super) fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// A position in the text. It always stands on a character boundary, since it only ever stops beside ASCII.
struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips white space and shows what comes next.
    fn next_token(&mut self) -> Option<u8> {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.peek()
    }

    fn expected(&self, expected: &'static str) -> KeyError {
        KeyError::ArgumentsNotJson { offset: self.at, expected }
    }

    fn slice(&self, from: usize, to: usize) -> Result<&'a str, KeyError> {
        self.text.get(from..to).ok_or_else(|| self.expected("a whole character"))
    }

    /// Parses a value inside `depth` open brackets.
    fn value(&mut self, depth: usize) -> Result<Value<'a>, KeyError> {
        match self.next_token() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Value::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'n') => self.literal("null"),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'N' | b'I') => Err(KeyError::NumberNotFinite { offset: self.at }),
            _ => Err(self.expected("a JSON value")),
        }
    }

    fn literal(&mut self, name: &'static str) -> Result<Value<'a>, KeyError> {
        if !self.text.get(self.at..).is_some_and(|rest| rest.starts_with(name)) {
            return Err(self.expected("a JSON value"));
        }
        self.at += name.len();
        Ok(Value::Literal(name))
    }

    /// Steps over an opening bracket, the `depth + 1`st that is open.
    fn open(&mut self, depth: usize) -> Result<usize, KeyError> {
        if depth >= MAX_NESTING {
            return Err(KeyError::NestedTooDeep { offset: self.at });
        }
        self.at += 1;
        Ok(depth + 1)
    }

    fn array(&mut self, depth: usize) -> Result<Value<'a>, KeyError> {
        let depth = self.open(depth)?;
        let mut items = Vec::new();
        if self.next_token() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(depth)?);
            match self.next_token() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Value::Array(items));
                }
                _ => return Err(self.expected("`,` or `]`")),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value<'a>, KeyError> {
        let depth = self.open(depth)?;
        let mut members = Vec::new();
        if self.next_token() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(members));
        }
        loop {
            if self.next_token() != Some(b'"') {
                return Err(self.expected("a member's name in double quotes"));
            }
            let name = self.string()?;
            if self.next_token() != Some(b':') {
                return Err(self.expected("`:`"));
            }
            self.at += 1;
            members.push((name, self.value(depth)?));
            match self.next_token() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Object(sorted_last_wins(members)));
                }
                _ => return Err(self.expected("`,` or `}`")),
            }
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    /// A number by RFC 8259's grammar: an integer stays text, anything with a point or an exponent becomes a double.
    fn number(&mut self) -> Result<Value<'a>, KeyError> {
        let offset = self.at;
        let negative = self.peek() == Some(b'-');
        if negative {
            self.at += 1;
            if self.peek() == Some(b'I') {
                return Err(KeyError::NumberNotFinite { offset });
            }
        }
        let integer_at = self.at;
        let integer_digits = if self.peek() == Some(b'0') {
            self.at += 1;
            1
        } else {
            self.digits()
        };
        if integer_digits == 0 {
            return Err(self.expected("a digit"));
        }
        let integer = self.slice(integer_at, self.at)?;

        let mut fraction = None;
        if self.peek() == Some(b'.') {
            self.at += 1;
            let from = self.at;
            if self.digits() == 0 {
                return Err(self.expected("a digit after the point"));
            }
            fraction = Some(self.slice(from, self.at)?);
        }
        let mut exponent = None;
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            let from = self.at;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.expected("a digit in the exponent"));
            }
            exponent = Some(self.slice(from, self.at)?);
        }

        if fraction.is_none() && exponent.is_none() {
            if integer_digits > MAX_INTEGER_DIGITS {
                return Err(KeyError::IntegerTooLong { offset, digits: integer_digits });
            }
            // Python has no negative zero among its integers.
            let text = if integer == "0" { integer } else { self.slice(offset, self.at)? };
            return Ok(Value::Literal(text));
        }
        number::parse_float(negative, integer, fraction.unwrap_or(""), exponent.unwrap_or("0"))
            .map(Value::Float)
            .ok_or(KeyError::NumberNotFinite { offset })
    }

    /// A string from its opening quote to past its closing one, unescaped.
    fn string(&mut self) -> Result<Cow<'a, str>, KeyError> {
        self.at += 1;
        let first = self.plain_run()?;
        if self.peek() == Some(b'"') {
            self.at += 1;
            return Ok(Cow::Borrowed(first));
        }
        let mut text = first.to_owned();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Cow::Owned(text));
                }
                Some(b'\\') => text.push(self.escape()?),
                None => return Err(self.expected("a closing `\"`")),
                Some(_) => return Err(self.expected("a control character's escape")),
            }
            text.push_str(self.plain_run()?);
        }
    }

    /// What stands for itself up to the next quote, backslash, control character or the end.
    fn plain_run(&mut self) -> Result<&'a str, KeyError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
            self.at += 1;
        }
        self.slice(start, self.at)
    }

    fn escape(&mut self) -> Result<char, KeyError> {
        let offset = self.at;
        self.at += 1;
        let plain = match self.peek() {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(offset),
            _ => return Err(self.expected("an escape of JSON (one of \" \\ / b f n r t u)")),
        };
        self.at += 1;
        Ok(plain)
    }

    /// One `\uXXXX`, or two that make a surrogate pair; stands on the `u`.
    fn unicode_escape(&mut self, offset: usize) -> Result<char, KeyError> {
        let first = self.utf16_unit()?;
        if let Some(character) = char::from_u32(first) {
            return Ok(character);
        }
        let followed = self.text.get(self.at..).is_some_and(|rest| rest.starts_with("\\u"));
        if !(0xd800..0xdc00).contains(&first) || !followed {
            return Err(KeyError::LoneSurrogate { offset });
        }
        self.at += 1;
        let second = self.utf16_unit()?;
        if !(0xdc00..0xe000).contains(&second) {
            return Err(KeyError::LoneSurrogate { offset });
        }
        char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00))
            .ok_or(KeyError::LoneSurrogate { offset })
    }

    /// The four hex digits after a `u`.
    fn utf16_unit(&mut self) -> Result<u32, KeyError> {
        self.at += 1;
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit * 16 + digit.ok_or_else(|| self.expected("four hex digits"))?;
            self.at += 1;
        }
        Ok(unit)
    }
}

/// Sorts members by name and keeps the last of equal names, as a Python dict does.
///
/// The order of UTF-8 bytes is the order of code points, so the comparison of `str` is the one asked for.
fn sorted_last_wins<'a>(mut members: Vec<(Cow<'a, str>, Value<'a>)>) -> Vec<(Cow<'a, str>, Value<'a>)> {
    // The sort is stable: equal names stay in the order of the text.
    members.sort_by(|left, right| left.0.cmp(&right.0));
    members.dedup_by(|later, kept| {
        let equal = later.0 == kept.0;
        if equal {
            std::mem::swap(&mut later.1, &mut kept.1);
        }
        equal
    });
    members
}
