//! `Retry-After` and `Date` as a receiver writes them, the policy's cap in seconds and a random number: one line each.
#![no_main]

use std::time::{Duration, SystemTime};

use libfuzzer_sys::fuzz_target;
use outbox_operator::domain::retry_after::{MIN_WAIT, counted_wait, response_date, stated_delay, wait};

fuzz_target!(|data: &str| {
    let mut lines = data.split('\n');
    let (value, date) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let cap = Duration::from_secs(lines.next().and_then(|line| line.parse().ok()).unwrap_or(86_400));
    let random: f64 = lines.next().and_then(|line| line.parse().ok()).unwrap_or(0.5);
    // 6 November 1994, as in RFC 9110.
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    let _ = response_date(&[date]);
    for dates in [&[][..], &[date], &[date, date]] {
        let Some(stated) = stated_delay(&[value], dates, now) else { continue };
        let waited = wait(stated, cap, random);
        assert!(waited >= MIN_WAIT && waited >= stated.min(cap));
        let longest = cap.max(MIN_WAIT);
        assert!(waited <= longest.saturating_add(MIN_WAIT.max(longest / 10)));
        assert!(counted_wait(stated, cap, MIN_WAIT, random) >= MIN_WAIT);
        // Several fields say nothing.
        assert_eq!(stated_delay(&[value, value], dates, now), None);
    }
});
