//! The operator's metrics: what it knows of each relay's rows and pods, and how its own visits go.
//!
//! Series are made at the scrape from what is known at that moment: those of a deleted relay are gone with it, and those of
//! rows that nobody can count any more are absent rather than stale. Each relay is counted once, whatever its pods.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, MetricEncoder},
    metrics::{
        MetricType, counter::ConstCounter, counter::Counter, family::Family, gauge::ConstGauge, histogram::Histogram,
    },
    registry::Registry,
};

use crate::store::backlog::BacklogRows;

/// Seconds of a visit: a look at a few objects up to a server that answers late.
const DURATIONS: [f64; 9] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Why visits fail: all of them are there with 0 from the first scrape, so that the first failure is an increase.
const FAILURES: [&str; 13] = [
    "api",
    "conflict",
    "connection",
    "deadline",
    "decode",
    "forbidden",
    "internal",
    "invalid",
    "name_taken",
    "not_found",
    "server",
    "throttled",
    "undecodable",
];

/// A relay's labels.
#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
pub struct RelayLabels {
    /// The namespace.
    pub namespace: String,
    /// The relay's name.
    pub relay: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Failure {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Kind {
    kind: String,
}

#[derive(Debug, Default)]
struct RelaySeries {
    /// Whether the last sample is good, and since when the oldest row is due; `None`: no sample yet.
    up: Option<bool>,
    rows: Option<BacklogRows>,
    /// Dead rows that were ever seen, by reason: the count in the table, which only grows here. A replay takes rows out of
    /// the table and not out of this.
    dead: BTreeMap<String, Dead>,
    replicas: Option<(i32, i32)>,
}

#[derive(Debug, Default)]
struct Dead {
    total: u64,
    seen: i64,
}

/// The metrics' state.
#[derive(Debug, Default)]
pub struct OperatorMetrics {
    relays: Mutex<BTreeMap<RelayLabels, RelaySeries>>,
    reconciles: Counter,
    failures: Family<Failure, Counter>,
    writes: Family<Kind, Counter>,
    durations: Option<Histogram>,
}

impl OperatorMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> std::sync::Arc<Self> {
        let durations = Histogram::new(DURATIONS);
        let metrics = Self { durations: Some(durations.clone()), ..Self::default() };
        for reason in FAILURES {
            drop(metrics.failures.get_or_create(&Failure { reason }));
        }
        registry.register("outbox_reconciles", "Visits of relays", metrics.reconciles.clone());
        registry.register("outbox_reconcile_failures", "Visits of relays that failed", metrics.failures.clone());
        registry.register("outbox_writes", "Objects written to the API server, or tried", metrics.writes.clone());
        registry.register("outbox_reconcile_duration_seconds", "Time of one visit of a relay", durations);
        let metrics = std::sync::Arc::new(metrics);
        registry.register_collector(Box::new(Scrape(metrics.clone())));
        metrics
    }

    /// A visit ended, well or with a failure of this category.
    pub fn reconciled(&self, took: Duration, failure: Option<&'static str>) {
        self.reconciles.inc();
        if let Some(durations) = &self.durations {
            durations.observe(took.as_secs_f64());
        }
        if let Some(reason) = failure {
            self.failed(reason);
        }
    }

    /// Something failed; the reasons are a fixed set.
    pub fn failed(&self, reason: &'static str) {
        self.failures.get_or_create(&Failure { reason }).inc();
    }

    /// An object of this kind is written. Kinds are a fixed set.
    pub fn writes(&self, kind: &str) {
        self.writes.get_or_create(&Kind { kind: kind.to_owned() }).inc();
    }

    /// A sample of a relay's rows, or that they are not known.
    pub fn sampled(&self, relay: &RelayLabels, rows: Option<&BacklogRows>) {
        let mut relays = self.lock();
        let series = relays.entry(relay.clone()).or_default();
        series.up = Some(rows.is_some());
        series.rows = rows.cloned();
        let Some(rows) = rows else { return };
        for reason in rows.dead.keys() {
            series.dead.entry(reason.clone()).or_default();
        }
        for (reason, dead) in &mut series.dead {
            let count = rows.dead.get(reason).copied().unwrap_or(0);
            dead.total = dead.total.saturating_add(u64::try_from(count - dead.seen).unwrap_or(0));
            dead.seen = count;
        }
    }

    /// A relay's pods: asked for, and ready.
    pub fn replicas(&self, relay: &RelayLabels, desired: i32, ready: i32) {
        self.lock().entry(relay.clone()).or_default().replicas = Some((desired, ready));
    }

    /// A relay is gone, and its series with it.
    pub fn forget(&self, relay: &RelayLabels) {
        self.lock().remove(relay);
    }

    /// This operator works no more; another one shows the relays now.
    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RelayLabels, RelaySeries>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the registry asks at each scrape.
#[derive(Debug)]
struct Scrape(std::sync::Arc<OperatorMetrics>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let relays = self.0.lock();
        encode_rows(&mut encoder, &relays)?;
        encode_dead(&mut encoder, &relays)?;
        gauge(
            &mut encoder,
            "outbox_oldest_due_age_seconds",
            "Age of the oldest due row, 0 without one",
            &relays,
            |series| series.rows.as_ref().map(|rows| rows.oldest_due_age.map_or(0.0, |age| age.as_secs_f64())),
        )?;
        gauge(
            &mut encoder,
            "outbox_unassigned_rows",
            "Due rows of the relay's table that no registered relay serves; the count ends at a bound",
            &relays,
            #[expect(clippy::cast_precision_loss, reason = "the count ends at 10,000")]
            |series| series.rows.as_ref().map(|rows| rows.unassigned as f64),
        )?;
        gauge(&mut encoder, "outbox_backlog_up", "Whether the rows are counted at present", &relays, |series| {
            series.up.map(|up| if up { 1.0 } else { 0.0 })
        })?;
        gauge(&mut encoder, "outbox_relay_desired_replicas", "Pods that are asked for", &relays, |series| {
            series.replicas.map(|(desired, _)| f64::from(desired))
        })?;
        gauge(&mut encoder, "outbox_relay_ready_replicas", "Pods that are ready", &relays, |series| {
            series.replicas.map(|(_, ready)| f64::from(ready))
        })
    }
}

type Relays = BTreeMap<RelayLabels, RelaySeries>;

fn descriptor<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &'a str,
    kind: MetricType,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, kind)
}

fn encode_rows(encoder: &mut DescriptorEncoder<'_>, relays: &Relays) -> fmt::Result {
    let help = "Rows of the table by state, each in one state only; counts end at a bound";
    let mut metric = descriptor(encoder, "outbox_backlog_rows", help, MetricType::Gauge)?;
    for (relay, series) in relays {
        let Some(rows) = &series.rows else { continue };
        let states = [
            ("due", rows.due),
            ("waiting", rows.waiting),
            ("in_flight", rows.in_flight),
            ("uncertain_auto", rows.uncertain_auto),
            ("uncertain_parked", rows.uncertain_parked),
            ("dead", rows.dead.values().sum()),
        ];
        for (state, count) in states {
            ConstGauge::new(count).encode(metric.encode_family(&labels(relay, "state", state))?)?;
        }
    }
    Ok(())
}

fn encode_dead(encoder: &mut DescriptorEncoder<'_>, relays: &Relays) -> fmt::Result {
    let help = "Dead rows that the operator has seen in the table";
    let mut metric = descriptor(encoder, "outbox_dead_rows", help, MetricType::Counter)?;
    for (relay, series) in relays.iter().filter(|(_, series)| series.up == Some(true)) {
        for (reason, dead) in &series.dead {
            ConstCounter::new(dead.total).encode(metric.encode_family(&labels(relay, "reason", reason))?)?;
        }
    }
    Ok(())
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    relays: &Relays,
    value: impl Fn(&RelaySeries) -> Option<f64>,
) -> fmt::Result {
    let mut metric = descriptor(encoder, name, help, MetricType::Gauge)?;
    for (relay, series) in relays {
        if let Some(value) = value(series) {
            ConstGauge::new(value).encode(metric.encode_family(relay)?)?;
        }
    }
    Ok(())
}

fn labels<'a>(relay: &'a RelayLabels, name: &'static str, value: &'a str) -> [(&'a str, &'a str); 3] {
    [("namespace", relay.namespace.as_str()), ("relay", relay.relay.as_str()), (name, value)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(due: i64, dead: i64) -> BacklogRows {
        BacklogRows { due, dead: BTreeMap::from([("rejected".to_owned(), dead)]), ..BacklogRows::default() }
    }

    fn scrape(registry: &Registry) -> Vec<String> {
        let mut text = String::new();
        prometheus_client::encoding::prometheus_text::encode(&mut text, registry).unwrap();
        prometheus_parse::Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn series_follow_what_is_known_and_go_with_their_relay() {
        let mut registry = Registry::default();
        let metrics = OperatorMetrics::register(&mut registry);
        let relay = RelayLabels { namespace: "tenant-a".to_owned(), relay: "billing".to_owned() };
        let labels = r#"namespace="tenant-a",relay="billing""#;
        metrics.sampled(&relay, Some(&rows(3, 1)));
        metrics.replicas(&relay, 2, 1);
        let due = format!("outbox_backlog_rows{{{labels},state=\"due\"}} 3");
        let dead = |count| format!("outbox_dead_rows_total{{{labels},reason=\"rejected\"}} {count}");
        let up = |is: &str| format!("outbox_backlog_up{{{labels}}} {is}");
        let shown = scrape(&registry);
        for line in [&due, &dead(1), &up("1.0"), &format!("outbox_relay_desired_replicas{{{labels}}} 2.0")] {
            assert!(shown.contains(line), "{line} in {shown:#?}");
        }
        // A replay takes the row out of the table; the counter stays, and counts the next one.
        metrics.sampled(&relay, Some(&rows(0, 0)));
        metrics.sampled(&relay, Some(&rows(0, 1)));
        assert!(scrape(&registry).contains(&dead(2)));
        // RC-31: without the database the gauges are absent, not stale.
        metrics.sampled(&relay, None);
        let shown = scrape(&registry);
        assert!(
            shown.contains(&up("0.0")) && !shown.iter().any(|line| line.starts_with("outbox_backlog_rows{")),
            "{shown:#?}"
        );
        assert!(shown.contains(&"outbox_reconcile_failures_total{reason=\"forbidden\"} 0".to_owned()), "{shown:#?}");
        metrics.forget(&relay);
        assert!(!scrape(&registry).iter().any(|line| line.contains("billing")));
    }
}
