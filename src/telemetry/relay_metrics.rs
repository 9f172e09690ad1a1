//! The relay's metrics. Every label has a bounded set of values, and every outcome is there with 0 from the first scrape.

use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::domain::{row::Reason, settings::Removal};

/// Destinations with series of their own; rows of others count as `other`.
const MAX_DESTINATIONS: usize = 100;
/// Reasons with series of their own; a policy's own words beyond count as `other`.
const MAX_REASONS: usize = 64;
/// What a label beyond the bound says.
const OTHER: &str = "other";

/// What became of an attempt, as `outbox_dispatches_total` counts it.
pub const OUTCOMES: [&str; 5] = ["succeeded", "retry", "wait", "uncertain", "dead"];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Dispatch {
    destination: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DeadLetter {
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    answer: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Slots {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Removed {
    what: &'static str,
}

/// All metrics of one relay process.
#[derive(Debug)]
pub struct RelayMetrics {
    dispatches: Family<Dispatch, Counter>,
    dead_letters: Family<DeadLetter, Counter>,
    slots: Family<Slots, Gauge>,
    removed: Family<Removed, Counter>,
    queries: Family<Answered, Counter>,
    checks: Family<Answered, Counter>,
    /// Seconds from the first byte of an attempt to its end.
    pub dispatch_duration: Histogram,
    /// Seconds from insert to success.
    pub delivery_lag: Histogram,
    /// Answers that ask to come back later.
    pub waits: Counter,
    /// Outcomes that nobody knows.
    pub uncertain: Counter,
    /// Results and leases that came too late: the row was somebody else's by then.
    pub lease_lost: Counter,
    destinations: Mutex<HashSet<String>>,
    reasons: Mutex<HashSet<String>>,
    completed: AtomicU64,
}

impl RelayMetrics {
    /// Registers all metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            dispatches: Family::default(),
            dead_letters: Family::default(),
            slots: Family::default(),
            removed: Family::default(),
            queries: Family::default(),
            checks: Family::default(),
            dispatch_duration: Histogram::new([
                0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
            ]),
            delivery_lag: Histogram::new([0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 86400.0]),
            waits: Counter::default(),
            uncertain: Counter::default(),
            lease_lost: Counter::default(),
            destinations: Mutex::default(),
            reasons: Mutex::default(),
            completed: AtomicU64::new(0),
        };
        for outcome in OUTCOMES {
            let _ = metrics.dispatches.get_or_create(&Dispatch { destination: OTHER.to_owned(), outcome });
        }
        for reason in Reason::DEAD {
            let _ = metrics.dead_letters.get_or_create(&DeadLetter { reason: metrics.reason(reason.as_str()) });
        }
        metrics.slots(0, 0);
        for removal in Removal::ALL {
            metrics.removed(removal, 0);
        }
        for answer in ["done", "unknown", "pending", "unclear"] {
            let _ = metrics.queries.get_or_create(&Answered { answer });
        }
        for answer in ["allowed", "denied", "unclear", "unasked"] {
            let _ = metrics.checks.get_or_create(&Answered { answer });
        }
        registry.register(
            "outbox_status_queries",
            "Receivers asked what became of a row, by what they said",
            metrics.queries.clone(),
        );
        registry.register(
            "outbox_pre_dispatch_checks",
            "Rows asked about before their request, by what was said",
            metrics.checks.clone(),
        );
        registry.register(
            "outbox_dispatches",
            "Attempts that ended, by destination and outcome",
            metrics.dispatches.clone(),
        );
        registry.register(
            "outbox_dead_letters",
            "Rows that became dead in this process, by reason",
            metrics.dead_letters.clone(),
        );
        registry.register(
            "outbox_removed_rows",
            "Rows and payloads that retention removed, by kind",
            metrics.removed.clone(),
        );
        registry.register("outbox_slots", "Requests in flight and slots free", metrics.slots.clone());
        registry.register(
            "outbox_dispatch_duration_seconds",
            "Duration of attempts",
            metrics.dispatch_duration.clone(),
        );
        registry.register("outbox_delivery_lag_seconds", "From insert to success", metrics.delivery_lag.clone());
        registry.register("outbox_waits", "Answers that ask to come back later", metrics.waits.clone());
        registry.register("outbox_uncertain", "Attempts whose outcome nobody knows", metrics.uncertain.clone());
        registry.register(
            "outbox_lease_lost",
            "Rows that were somebody else's when their result came",
            metrics.lease_lost.clone(),
        );
        metrics
    }

    /// Counts an attempt that ended.
    pub fn dispatched(&self, destination: Option<&str>, outcome: &'static str) {
        let destination =
            destination.map_or_else(|| OTHER.to_owned(), |name| bounded(&self.destinations, name, MAX_DESTINATIONS));
        for known in OUTCOMES {
            let _ = self.dispatches.get_or_create(&Dispatch { destination: destination.clone(), outcome: known });
        }
        self.dispatches.get_or_create(&Dispatch { destination, outcome }).inc();
    }

    /// Counts a status query by its answer.
    pub fn queried(&self, answer: &'static str) {
        self.queries.get_or_create(&Answered { answer }).inc();
    }

    /// Counts a pre-dispatch check by its answer.
    pub fn checked(&self, answer: &'static str) {
        self.checks.get_or_create(&Answered { answer }).inc();
    }

    /// Counts a row that became dead.
    pub fn dead(&self, reason: &str) {
        self.dead_letters.get_or_create(&DeadLetter { reason: self.reason(reason) }).inc();
    }

    /// Counts what retention removed.
    pub fn removed(&self, removal: Removal, rows: u64) {
        self.removed.get_or_create(&Removed { what: removal.as_str() }).inc_by(rows);
    }

    /// Shows how many slots are busy and free.
    pub fn slots(&self, busy: usize, free: usize) {
        for (state, value) in [("busy", busy), ("free", free)] {
            self.slots.get_or_create(&Slots { state }).set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    /// Counts settled rows, for the worker's report.
    pub fn complete(&self, rows: u64) {
        self.completed.fetch_add(rows, Ordering::Relaxed);
    }

    /// Rows settled since the start.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    fn reason(&self, name: &str) -> String {
        bounded(&self.reasons, name, MAX_REASONS)
    }
}

fn bounded(known: &Mutex<HashSet<String>>, name: &str, most: usize) -> String {
    let mut known = known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if known.contains(name) {
        return name.to_owned();
    }
    if known.len() >= most {
        return OTHER.to_owned();
    }
    known.insert(name.to_owned());
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::prometheus_text;

    fn scrape(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_text::encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn every_outcome_is_there_before_the_first_row() {
        let mut registry = Registry::default();
        let _metrics = RelayMetrics::register(&mut registry);
        let text = scrape(&registry);
        for line in [
            "outbox_dead_letters_total{reason=\"rejected\"} 0",
            "outbox_waits_total 0",
            "outbox_removed_rows_total{what=\"history\"} 0",
            "outbox_lease_lost_total 0",
        ] {
            assert!(text.contains(line), "{line} is missing:\n{text}");
        }
    }

    #[test]
    fn ten_thousand_destinations_make_a_bounded_number_of_series() {
        let mut registry = Registry::default();
        let metrics = RelayMetrics::register(&mut registry);
        for number in 0..10_000 {
            metrics.dispatched(Some(&format!("https://host-{number}.test")), "succeeded");
        }
        let series = scrape(&registry).lines().filter(|line| line.starts_with("outbox_dispatches_total")).count();
        assert_eq!(series, (MAX_DESTINATIONS + 1) * OUTCOMES.len());
    }
}
