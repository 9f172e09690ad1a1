//! What a scrape says.

use std::time::Instant;

use crate::support::{PATIENCE, Relay, World};

async fn scrape(relay: &Relay) -> prometheus_parse::Scrape {
    let (status, text) = relay.get("/metrics").await.unwrap();
    assert_eq!(status, 200);
    prometheus_parse::Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap()
}

fn value(scrape: &prometheus_parse::Scrape, name: &str, label: (&str, &str)) -> Option<f64> {
    let sample =
        scrape.samples.iter().find(|sample| sample.metric == name && sample.labels.get(label.0) == Some(label.1))?;
    match sample.value {
        prometheus_parse::Value::Counter(value) | prometheus_parse::Value::Gauge(value) => Some(value),
        _ => None,
    }
}

#[tokio::test]
async fn rc_42_the_first_dead_letter_is_an_increase_from_zero() {
    let world = World::new().await;
    let relay = world.relay().await;
    let dead = ("reason", "rejected");
    assert_eq!(value(&scrape(&relay).await, "outbox_dead_letters_total", dead), Some(0.0));
    let id = world.insert_script("first", "422").await;
    world.ended(id).await;
    let deadline = Instant::now() + PATIENCE;
    while value(&scrape(&relay).await, "outbox_dead_letters_total", dead) != Some(1.0) {
        assert!(Instant::now() < deadline);
    }
    let labels = ("outcome", "dead");
    let destination = scrape(&relay).await.samples.into_iter().find(|sample| {
        sample.metric == "outbox_dispatches_total"
            && sample.labels.get(labels.0) == Some(labels.1)
            && sample.labels.get("destination") != Some("other")
    });
    assert_eq!(
        destination.unwrap().labels.get("destination").map(str::to_owned),
        Some(format!("http://{}", world.receiver.addr()))
    );
}

#[tokio::test]
async fn rc_18_secrets_of_an_endpoint_stay_out_of_metrics_logs_and_the_table() {
    let world = World::new().await;
    let address = world.receiver.addr();
    for number in 0..60 {
        let script = ["201", "422", "reset"][number % 3];
        world
            .insert(
                &format!("secret-{number}"),
                &format!("http://bob:s3cret@{address}/do/{script}/p4th-{number}?token=t0ken-{number}"),
                "{}",
            )
            .await;
    }
    let relay = world.relay_with("", "retry: {base: 10ms, cap: 20ms, maxAttempts: 2}").await;
    world.all_ended().await;
    let (_, metrics) = relay.get("/metrics").await.unwrap();
    assert!(metrics.lines().count() < 300);
    let errors: Vec<String> = sqlx::query_scalar("SELECT concat_ws(' ', last_error, reason) FROM agent_outbox")
        .fetch_all(&world.pool)
        .await
        .unwrap();
    let seen = format!("{metrics}\n{}\n{}", relay.log().join("\n"), errors.join("\n"));
    for secret in ["s3cret", "t0ken", "p4th", "bob"] {
        assert!(!seen.contains(secret), "{secret} is shown");
    }
    let requests = world.receiver.ledger().requests();
    assert_eq!(requests[0].header("authorization"), Some("Basic Ym9iOnMzY3JldA=="));
}

#[tokio::test]
async fn readiness_follows_the_database_and_liveness_does_not() {
    let world = World::new().await;
    let file = world.documents("migrations: Manual", "");
    let nowhere = "postgres://nobody@127.0.0.1:1/nothing";
    let relay = Relay::start(nowhere, &file, &[]);
    let (status, why) = relay.get("/readyz").await.unwrap();
    assert_eq!(status, 503, "{why}");
    assert_eq!(relay.get("/healthz").await.unwrap().0, 200);
    assert_eq!(relay.stop().await.code(), Some(0));
}
