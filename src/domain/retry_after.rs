//! `Retry-After`: what a receiver asks for, made safe before any arithmetic is done with it.
//!
//! RFC 9110, section 10.2.3: the field is a number of seconds in digits, or an HTTP-date in one of three forms. Anything
//! else, and more than one field, says nothing: the row's own backoff rules. The clock and the random number are arguments.

use std::time::{Duration, SystemTime};

use super::backoff::scaled;

/// Shortest wait, so that `Retry-After: 0` or a date in the past is no invitation to a hot loop.
pub const MIN_WAIT: Duration = Duration::from_secs(1);

/// Smallest range of the added jitter; above 10 s of waiting, a tenth of the wait is larger.
const MIN_JITTER: Duration = Duration::from_secs(1);

/// The jitter's range is the wait divided by this.
const JITTER_DIVISOR: u32 = 10;

/// One `Retry-After` field, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAfter {
    /// Seconds from the receipt of the response; more than 64 bits hold became the most they hold.
    Seconds(u64),
    /// An instant on the receiver's clock, from 1970 to the end of 9999.
    At(SystemTime),
}

impl RetryAfter {
    /// Parses all `Retry-After` fields of one response. Nothing for none, for several, and for what RFC 9110 does not have:
    /// signs, fractions, exponents, lists, dates with the wrong weekday.
    #[must_use]
    pub fn parse(values: &[&str]) -> Option<Self> {
        let value = only(values)?;
        if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
            // Digits alone fail to parse only by being too many.
            return Some(Self::Seconds(value.parse().unwrap_or(u64::MAX)));
        }
        http_date(value).map(Self::At)
    }

    /// How long from now the receiver asks to wait; zero for an instant that has passed.
    ///
    /// `date` is the response's own `Date`, the clock that the instant was written on; `now`, the database's clock at
    /// receipt, stands in where there is none.
    #[must_use]
    pub fn stated(self, date: Option<SystemTime>, now: SystemTime) -> Duration {
        match self {
            Self::Seconds(seconds) => Duration::from_secs(seconds),
            Self::At(instant) => instant.duration_since(date.unwrap_or(now)).unwrap_or_default(),
        }
    }
}

/// Reads all `Retry-After` and `Date` fields of one response into the time that the receiver states, as yet unbounded.
#[must_use]
pub fn stated_delay(retry_after: &[&str], date: &[&str], now: SystemTime) -> Option<Duration> {
    RetryAfter::parse(retry_after).map(|parsed| parsed.stated(response_date(date), now))
}

/// The instant of a response's `Date` fields: nothing for none, for several and for junk.
#[must_use]
pub fn response_date(values: &[&str]) -> Option<SystemTime> {
    http_date(only(values)?)
}

/// How long to wait for a stated time: within `cap` but at least [`MIN_WAIT`], plus jitter of up to a tenth or a second,
/// whichever is more. `random` is uniform in [0, 1). Jitter only adds, so nobody comes earlier than asked.
#[must_use]
pub fn wait(stated: Duration, cap: Duration, random: f64) -> Duration {
    // Not `clamp`, which panics for a cap below the minimum.
    let bounded = stated.min(cap).max(MIN_WAIT);
    let range = MIN_JITTER.max(bounded / JITTER_DIVISOR);
    bounded.saturating_add(scaled(range, random))
}

/// How long to wait for a counted retry: the larger of the stated time, as in [`wait`], and the row's own backoff.
#[must_use]
pub fn counted_wait(stated: Duration, cap: Duration, own_backoff: Duration, random: f64) -> Duration {
    wait(stated, cap, random).max(own_backoff)
}

/// The value of a field that stands once, without the optional white space of HTTP around it.
fn only<'a>(values: &[&'a str]) -> Option<&'a str> {
    match values {
        [value] => Some(value.trim_matches([' ', '\t'])),
        _ => None,
    }
}

fn http_date(value: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAP: Duration = Duration::from_hours(24);

    /// Sun, 06 Nov 1994 08:49:37 GMT, RFC 9110's example.
    const EXAMPLE: u64 = 784_111_777;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn rc_10_what_is_stated_and_how_long_is_waited() {
        let cap = CAP.as_secs();
        for (value, waited) in [
            // Delay-seconds.
            ("0", Some(1)),
            ("1", Some(1)),
            ("120", Some(120)),
            (" 120\t", Some(120)),
            ("007", Some(7)),
            ("86400", Some(cap)),
            ("86401", Some(cap)),
            ("9223372036", Some(cap)),
            ("9223372037", Some(cap)),
            ("9223372036854775808", Some(cap)),
            ("18446744073709551615", Some(cap)),
            ("18446744073709551616", Some(cap)),
            ("99999999999999999999", Some(cap)),
            ("0000000000000000000000000000000000060", Some(60)),
            // The three forms of HTTP-date, a minute ahead, at the same time, and long past.
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some(60)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", Some(60)),
            ("Sun Nov  6 08:50:37 1994", Some(60)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(1)),
            ("Sat, 05 Nov 1994 08:49:37 GMT", Some(1)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(1)),
            // The end of what the forms can say.
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(cap)),
            ("Fri Dec 31 23:59:59 9999", Some(cap)),
            ("Tuesday, 31-Dec-69 23:59:59 GMT", Some(cap)),
            // Not in the grammar: the row's own backoff.
            ("", None),
            (" ", None),
            ("1e9", None),
            ("-1", None),
            ("+1", None),
            ("1.5", None),
            ("1_000", None),
            ("0x10", None),
            ("120, 120", None),
            ("120,", None),
            ("120 s", None),
            ("12 0", None),
            ("\u{661}\u{662}", None),
            ("inf", None),
            ("soon", None),
            ("2015-10-21T07:28:00Z", None),
            ("Sun, 06 Nov 1994 08:49:37 UTC", None),
            ("Mon, 06 Nov 1994 08:49:37 GMT", None),
            ("Thu, 31 Feb 2028 00:00:00 GMT", None),
            ("Sun, 06 Nov 1994 24:00:00 GMT", None),
            ("Fri, 31 Dec 99999 23:59:59 GMT", None),
            ("Sat, 01 Jan 0000 00:00:00 GMT", None),
        ] {
            let stated = stated_delay(&[value], &[], at(EXAMPLE));
            let waited_now = stated.map(|stated| wait(stated, CAP, 0.0).as_secs());
            assert_eq!(waited_now, waited, "{value:?}");
        }
    }

    #[test]
    fn several_fields_say_nothing_even_if_they_agree() {
        assert_eq!(RetryAfter::parse(&[]), None);
        assert_eq!(RetryAfter::parse(&["120", "120"]), None);
        assert_eq!(RetryAfter::parse(&["120", "junk"]), None);
    }

    #[test]
    fn a_date_is_read_against_the_responses_own_clock() {
        let retry_after = ["Sun, 06 Nov 1994 08:51:37 GMT"];
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (dates, now, expected) in [
            (vec![date], at(EXAMPLE), 120),
            (vec![date], at(EXAMPLE + 3_600), 120),
            (vec![date], at(EXAMPLE - 3_600), 120),
            (vec![], at(EXAMPLE + 60), 60),
            (vec!["junk"], at(EXAMPLE + 60), 60),
            (vec![date, date], at(EXAMPLE + 60), 60),
            (vec!["Sun, 06 Nov 1994 08:59:37 GMT"], at(EXAMPLE), 0),
        ] {
            let stated = stated_delay(&retry_after, &dates, now);
            assert_eq!(stated, Some(Duration::from_secs(expected)), "{dates:?}");
        }
        // Seconds count from the receipt, whatever the Date says.
        assert_eq!(stated_delay(&["5"], &[date], at(0)), Some(Duration::from_secs(5)));
    }

    #[test]
    fn jitter_is_up_to_the_larger_of_a_second_and_a_tenth() {
        let seconds = Duration::from_secs;
        for (stated, half_of_the_jitter) in [(0, 1_500), (1, 1_500), (10, 10_500), (100, 105_000)] {
            assert_eq!(wait(seconds(stated), CAP, 0.5), Duration::from_millis(half_of_the_jitter));
        }
        // The jitter comes on top of the cap too: many rows that were capped do not return at once.
        assert_eq!(wait(Duration::MAX, CAP, 0.5), CAP + CAP / 20);
        // A cap below the minimum does not make a hot loop.
        assert_eq!(wait(seconds(60), Duration::ZERO, 0.0), MIN_WAIT);
    }

    #[test]
    fn a_counted_retry_takes_the_larger_of_both_times() {
        let seconds = Duration::from_secs;
        assert_eq!(counted_wait(seconds(60), CAP, seconds(2), 0.0), seconds(60));
        assert_eq!(counted_wait(seconds(60), CAP, seconds(900), 0.0), seconds(900));
    }

    proptest! {
        #[test]
        fn no_field_panics_or_leaves_the_bounds(
            value in prop_oneof![
                any::<String>(),
                "[0-9]{1,40}",
                "(Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9]{2} (Jan|Feb|Dec) [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
                "(Monday|Sunday|Wednesday), [0-9]{2}-(Jan|Feb|Dec)-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
                "(Mon|Tue|Sun) (Jan|Feb|Dec) [ 0-9][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2} [0-9]{4}",
                "[A-Za-z]{6,9}, [ -~]{10,30}",
            ],
            date in any::<String>(),
            now in 0..=253_402_300_799_u64,
            cap in 1..=u64::MAX,
            random in 0.0..1.0,
        ) {
            if let Some(stated) = stated_delay(&[&value], &[&date], at(now)) {
                let cap = Duration::from_secs(cap);
                let waited = wait(stated, cap, random);
                prop_assert!(waited >= MIN_WAIT);
                prop_assert!(waited >= stated.min(cap));
                prop_assert!(waited <= cap.saturating_add(MIN_JITTER.max(cap / 10)));
            }
        }

        #[test]
        fn every_date_is_read_alike_in_its_forms(seconds in 0..=253_402_300_799_u64) {
            let instant = at(seconds);
            let fixdate = httpdate::fmt_http_date(instant);
            prop_assert_eq!(RetryAfter::parse(&[&fixdate]), Some(RetryAfter::At(instant)));
            // `Sun, 06 Nov 1994 08:49:37 GMT` as `Sun Nov  6 08:49:37 1994`.
            let part = |range: std::ops::Range<usize>| fixdate.get(range).unwrap();
            let day: u8 = part(5..7).parse().unwrap();
            let asctime = format!("{} {} {day:>2} {} {}", part(0..3), part(8..11), part(17..25), part(12..16));
            prop_assert_eq!(RetryAfter::parse(&[&asctime]), Some(RetryAfter::At(instant)));
        }

        #[test]
        fn the_responses_date_is_the_clock_of_its_retry_after(
            date in 0..=253_402_300_799_u64,
            ahead in 0..=253_402_300_799_u64,
            now in 0..=253_402_300_799_u64,
        ) {
            let until = date.saturating_add(ahead).min(253_402_300_799);
            let (written, until_written) = (httpdate::fmt_http_date(at(date)), httpdate::fmt_http_date(at(until)));
            prop_assert_eq!(response_date(&[&written]), Some(at(date)));
            let stated = stated_delay(&[&until_written], &[&written], at(now));
            prop_assert_eq!(stated, Some(Duration::from_secs(until - date)), "whatever our own clock says");
        }

        #[test]
        fn no_number_makes_a_wait_panic(stated in any::<Duration>(), cap in any::<Duration>(), random in any::<f64>()) {
            prop_assert!(wait(stated, cap, random) >= MIN_WAIT);
        }
    }
}
