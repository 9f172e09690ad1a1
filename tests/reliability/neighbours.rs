//! A row does not wait for other destinations' troubles.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use outbox_operator::sandbox::script_url;

use crate::{
    census::{self, End, Intent},
    report,
    support::{PATIENCE, TENANT, World},
};

/// What a row for a good destination may wait at most.
const AT_ONCE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rc_19_a_row_leaves_within_two_seconds_beside_a_host_that_hangs_and_a_million_held_rows() {
    let _turn = report::turn().await;
    let held = if report::full() { 1_000_000 } else { 50_000 };
    let mut world = World::new().await;
    let listen = |_| (Ipv4Addr::LOCALHOST, 0).into();
    let hangs = world.receiver.listen(listen(1)).await.unwrap();
    let holds = world.receiver.listen(listen(2)).await.unwrap();
    // The rows of the held destination are the oldest.
    world
        .execute(&format!(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload, next_attempt_at) \
             SELECT '{TENANT}', 'o', 'e', 'held-' || n, '{}', '{{}}', now() - interval '1 hour' FROM generate_series(1, {held}) AS n",
            script_url(holds, "429:3600")
        ))
        .await;
    let hanging: Vec<Intent> = (0..1000)
        .map(|number| Intent {
            key: format!("hangs-{number}"),
            endpoint: script_url(hangs, "hang"),
            payload: "{}".to_owned(),
            end: End::Any,
        })
        .collect();
    census::insert(&world.pool, &hanging).await;
    world.execute("ANALYZE agent_outbox").await;
    let relay = world
        .relay_with("concurrency: 10\nleaseDuration: 60s\npollInterval: 100ms", "timeouts: {connect: 1s, total: 30s}")
        .await;
    world
        .wait_for(
            "the second is held",
            "SELECT count(*) = 1 FROM agent_outbox_destinations WHERE held_until > now() + interval '1 minute'",
        )
        .await;
    let read_before = entries_read(&world).await;
    let ledger = world.receiver.ledger();
    let on_the_wire = ledger.wait_until(PATIENCE, |counts| counts.open >= 8).await.unwrap().open;

    let mut waits = Vec::new();
    for number in 0..20 {
        let key = format!("good-{number}");
        let inserted = Instant::now();
        world.insert_script(&key, "201").await;
        ledger.wait_for(PATIENCE, |ledger| ledger.key(&key).filter(|seen| seen.effects == 1)).await.unwrap();
        waits.push(inserted.elapsed());
    }
    waits.sort_unstable();
    let longest = *waits.last().unwrap();
    // A session's reads are added up when it ends, at the latest.
    relay.signal("KILL");
    relay.wait(PATIENCE).await;
    world
        .wait_for("its sessions are gone", "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'outbox relay'")
        .await;
    let read = entries_read(&world).await - read_before;
    let still_due = world
        .number("SELECT count(*) FROM agent_outbox WHERE status = 'pending' AND next_attempt_at <= now() AND idempotency_key LIKE 'held-%'")
        .await;
    report::print(&format!(
        "\nBeside {on_the_wire} requests to a host that hangs and {still_due} due rows of a held destination, 20 rows for a third one \
         arrived after {} ms (median) and {} ms (longest) from their insert; {read} entries of the table and its indexes were read for that",
        waits[waits.len() / 2].as_millis(),
        longest.as_millis()
    ));
    assert!(longest < AT_ONCE, "{waits:?}");
    assert!(still_due > held - 100, "{still_due}");
    // No claim reads its way past the held rows.
    assert!(read < held, "{read} entries were read");
}

/// Entries of the table and its indexes that scans have returned so far.
async fn entries_read(world: &World) -> i64 {
    world
        .number(
            "SELECT (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE relname = 'agent_outbox')::bigint \
             + (SELECT coalesce(sum(seq_tup_read), 0) FROM pg_stat_user_tables WHERE relname = 'agent_outbox')::bigint",
        )
        .await
}
