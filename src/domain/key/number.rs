//! Doubles from JSON text, and doubles as Python prints them.
//!
//! The standard library's parser is exact for any number of digits but stops counting an exponent at five of them, so a
//! number is first brought to a bounded spelling of the same value.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Significant digits that can decide the rounding of a double: 767 for a value halfway between two subnormals, and one
/// more that says whether anything follows.
const DECISIVE_DIGITS: usize = 768;

/// Decimal exponents of the first significant digit beyond which a value is certainly 0 or infinite. The smallest double
/// is above 10^-324, the largest below 10^309.
const CERTAIN_EXPONENT: i64 = 400;

/// The double nearest to the number, ties to even; nothing where that is infinite.
///
/// `integer` and `fraction` are ASCII digits, `exponent` is digits with an optional sign.
pub(super) fn parse_float(negative: bool, integer: &str, fraction: &str, exponent: &str) -> Option<f64> {
    let zero = if negative { -0.0 } else { 0.0 };
    let digits = if fraction.is_empty() { Cow::Borrowed(integer) } else { Cow::Owned(format!("{integer}{fraction}")) };
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        return Some(zero);
    }

    // The value is 0.SIGNIFICANT times 10 to the power of `scale`.
    let leading_zeros = count(digits.len() - significant.len());
    let scale = parse_exponent(exponent).saturating_add(count(integer.len())).saturating_sub(leading_zeros);
    if scale < -CERTAIN_EXPONENT {
        return Some(zero);
    }
    if scale > CERTAIN_EXPONENT {
        return None;
    }

    let (head, tail) = significant.split_at_checked(DECISIVE_DIGITS).unwrap_or((significant, ""));
    let sign = if negative { "-" } else { "" };
    let sticky = if tail.bytes().any(|digit| digit != b'0') { "1" } else { "" };
    let parsed: f64 = format!("{sign}0.{head}{sticky}e{scale}").parse().ok()?;
    parsed.is_finite().then_some(parsed)
}

/// A decimal exponent; one too large for 64 bits becomes the largest, which only ever meets texts of fewer digits.
fn parse_exponent(exponent: &str) -> i64 {
    // Half of the range leaves room for the digits of any text in memory.
    let bound = i64::MAX / 2;
    match exponent.parse::<i64>() {
        Ok(value) => value.clamp(-bound, bound),
        Err(_) if exponent.starts_with('-') => -bound,
        Err(_) => bound,
    }
}

/// A length as a signed number; no text in memory has a length beyond 63 bits.
fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// Appends a finite double as Python's `repr` prints it: the shortest digits that read back as the same double, with an
/// exponent of at least two digits below 1e-4 and from 1e16 on, else with a point and at least one digit after it.
pub(super) fn write_float(number: f64, out: &mut String) {
    let scientific = shortest_scientific(number);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let unsigned = mantissa.strip_prefix('-').unwrap_or(mantissa);
    if unsigned.len() < mantissa.len() {
        out.push('-');
    }
    let digits = unsigned.replace('.', "");

    match usize::try_from(exponent) {
        Ok(exponent) if exponent < 16 => {
            let whole_digits = exponent + 1;
            match digits.split_at_checked(whole_digits) {
                Some((whole, "")) => push_all(out, &[whole, ".0"]),
                Some((whole, rest)) => push_all(out, &[whole, ".", rest]),
                None => push_all(out, &[&digits, &"0".repeat(whole_digits - digits.len()), ".0"]),
            }
        }
        Err(_) if exponent >= -4 => {
            let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
            push_all(out, &["0.", &"0".repeat(zeros), &digits]);
        }
        _ => {
            out.push_str(unsigned);
            let sign = if exponent < 0 { '-' } else { '+' };
            // Writing to a String cannot fail.
            let _ = write!(out, "e{sign}{:02}", exponent.unsigned_abs());
        }
    }
}

/// The shortest digits that read back as the same double, in the form `D[.DDD]eX`; of several the nearest, of two equally
/// near the even one.
///
/// Rust finds the length, but takes the upper of two equally near (`846133239938746.25` would end in 3, in Python it ends
/// in 2). Rounding the exact value to that many digits settles such ties to even. Just above a power of two the nearest
/// decimal of that length can belong to the neighbour, hence the check that it reads back.
fn shortest_scientific(number: f64) -> String {
    let shortest = format!("{number:e}");
    let mantissa = shortest.split_once('e').map_or(shortest.as_str(), |(mantissa, _)| mantissa);
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    let nearest = format!("{number:.*e}", digits.saturating_sub(1));
    let reads_back = nearest.parse::<f64>().is_ok_and(|read| read.to_bits() == number.to_bits());
    if reads_back { nearest } else { shortest }
}

fn push_all(out: &mut String, parts: &[&str]) {
    for part in parts {
        out.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(number: f64) -> String {
        let mut out = String::new();
        write_float(number, &mut out);
        out
    }

    #[test]
    fn doubles_print_as_python_prints_them() {
        for (number, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-1.5, "-1.5"),
            (100.0, "100.0"),
            (123.456, "123.456"),
            (1e15, "1000000000000000.0"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (1.234_567_890_123_456_8e17, "1.2345678901234568e+17"),
            (0.001, "0.001"),
            (0.000_123, "0.000123"),
            (0.000_01, "1e-05"),
            (-1.5e-7, "-1.5e-07"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (2.225_073_858_507_201_4e-308, "2.2250738585072014e-308"),
            (1e100, "1e+100"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
            // Exactly between two decimals of the shortest length: the even one.
            (846_133_239_938_746.0 + 0.25, "846133239938746.2"),
            (846_133_239_938_746.0 + 0.75, "846133239938746.8"),
            (2f64.powi(-44), "5.684341886080802e-14"),
        ] {
            assert_eq!(printed(number), expected);
        }
    }

    #[test]
    fn exponents_and_zeros_of_any_length_meet_each_other() {
        let zeros = "0".repeat(900_000);
        assert_eq!(parse_float(false, "0", &format!("{zeros}1"), "900001"), Some(1.0));
        assert_eq!(parse_float(true, &format!("1{zeros}"), "", "-900000"), Some(-1.0));
        assert_eq!(parse_float(false, "1", "", "99999999999999999999999"), None);
        assert_eq!(parse_float(false, "1", "", "-99999999999999999999999"), Some(0.0));
        assert_eq!(parse_float(false, "0", "000", "99999999999999999999999"), Some(0.0));
        assert_eq!(parse_float(false, "1", "", "+5"), Some(1e5));
        assert_eq!(parse_float(false, "1", "", "-0000000000000000000000001"), Some(0.1));
    }

    #[test]
    fn the_edges_of_the_range_round_as_ieee_says() {
        assert_eq!(parse_float(false, "1", "7976931348623158", "308"), Some(f64::MAX));
        assert_eq!(parse_float(false, "1", "7976931348623159", "308"), None);
        assert_eq!(parse_float(false, "2", "4703282292062328", "-324"), Some(5e-324));
        assert_eq!(parse_float(false, "2", "4703282292062327", "-324"), Some(0.0));
    }

    #[test]
    fn a_digit_far_behind_a_tie_decides_the_rounding() {
        // 2^53 + 1 lies halfway between two doubles; the even one is below.
        let tie = |tail: &str| parse_float(false, "9007199254740993", tail, "0").map(printed);
        let zeros = "0".repeat(2_000);
        assert_eq!(tie(&zeros).as_deref(), Some("9007199254740992.0"));
        assert_eq!(tie(&format!("{zeros}1")).as_deref(), Some("9007199254740994.0"));
    }
}
