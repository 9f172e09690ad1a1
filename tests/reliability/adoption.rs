//! A table that an application made is adopted while the application goes on inserting.

use std::{
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use outbox_operator::{
    demo::{PostgresOptions, ThrowawayPostgres},
    store::migrate,
};
use sqlx::{Connection, PgConnection};

use crate::{
    report,
    support::{TENANT, World},
};

/// The table as the published pattern has it.
const PUBLISHED: &str = "CREATE TABLE agent_outbox (
    id bigserial PRIMARY KEY, tenant_id uuid NOT NULL, operation text NOT NULL, entity_id text NOT NULL,
    intent_version integer NOT NULL DEFAULT 1, idempotency_key text NOT NULL CONSTRAINT uq_outbox_key UNIQUE,
    endpoint text NOT NULL, payload jsonb NOT NULL, status text NOT NULL DEFAULT 'pending',
    attempts integer NOT NULL DEFAULT 0, next_attempt_at timestamptz NOT NULL DEFAULT now(), locked_until timestamptz,
    last_error text, downstream_id text, created_at timestamptz NOT NULL DEFAULT now());
    CREATE INDEX ix_outbox_due ON agent_outbox (next_attempt_at) WHERE status = 'pending';";
/// The longest that an insert may wait.
const LONGEST_STALL: Duration = Duration::from_secs(1);

/// What the inserter saw.
struct Inserted {
    rows: usize,
    longest: Duration,
}

/// Inserts a row after another, each in its own transaction, until told to stop.
async fn insert_all_the_while(url: String, endpoint: String, stop: Arc<AtomicBool>) -> Inserted {
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let mut inserted = Inserted { rows: 0, longest: Duration::ZERO };
    while !stop.load(Ordering::SeqCst) {
        let begun = Instant::now();
        // The statement of a producer that knows nothing of the migration; one that failed would fail the test.
        sqlx::query(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
             VALUES ($1::uuid, 'create_invoice', 'e', $2, $3, '{}')",
        )
        .bind(TENANT)
        .bind(format!("meanwhile-{}", inserted.rows))
        .bind(&endpoint)
        .execute(&mut connection)
        .await
        .unwrap();
        inserted.longest = inserted.longest.max(begun.elapsed());
        inserted.rows += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    inserted
}

fn start_migration(url: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_outbox"))
        .arg("migrate")
        .env("DATABASE_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

async fn output(child: Child) -> String {
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_large_table_is_adopted_while_rows_are_inserted_and_no_insert_waits_for_a_second() {
    let _turn = report::turn().await;
    let rows: i64 = if report::full() { 10_000_000 } else { 200_000 };
    let options = PostgresOptions {
        settings: vec![
            ("max_wal_size".to_owned(), "4GB".to_owned()),
            ("shared_buffers".to_owned(), "256MB".to_owned()),
        ],
        ..PostgresOptions::fast()
    };
    let server = ThrowawayPostgres::start(options).await.unwrap();
    let world = World::on(server.create_database("outbox").await.unwrap()).await;
    world.execute(PUBLISHED).await;
    // Nearly all are at their end, as in a table that has been in use.
    world
        .execute(&format!(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload, status, next_attempt_at) \
             SELECT '{TENANT}', 'create_invoice', 'entity-' || n, 'key-' || n, 'https://receiver.test/invoices/' || n, \
                    '{{\"amount\": 1.10}}', CASE WHEN n % 1000 = 0 THEN 'dead' WHEN n % 100 = 1 THEN 'pending' ELSE 'succeeded' END, \
                    now() + CASE WHEN n % 100 = 1 THEN interval '1 day' ELSE interval '0' END \
             FROM generate_series(1, {rows}) AS n"
        ))
        .await;
    world.execute("ANALYZE agent_outbox").await;

    let stop = Arc::new(AtomicBool::new(false));
    let endpoint = world.receiver.url("201");
    let meanwhile = tokio::spawn(insert_all_the_while(world.url.clone(), endpoint, Arc::clone(&stop)));
    let started = Instant::now();
    // The first one is killed while it builds an index, which its session on the server does not notice.
    let mut killed = start_migration(&world.url);
    world
        .wait_for(
            "an index is being built",
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE '%CREATE%INDEX CONCURRENTLY%' \
             AND pid <> pg_backend_pid() AND state = 'active'",
        )
        .await;
    killed.kill().unwrap();
    killed.wait().unwrap();
    let after_kill = world.number("SELECT count(*) FROM agent_outbox_migrations").await;
    // Then two at once go on from there, and one comes late.
    let (one, other) = tokio::join!(output(start_migration(&world.url)), output(start_migration(&world.url)));
    let took = started.elapsed();
    let late = output(start_migration(&world.url)).await;
    assert!(late.contains("nothing to do"), "{late}");
    stop.store(true, Ordering::SeqCst);
    let inserted = meanwhile.await.unwrap();
    report::print(&format!(
        "\nAdopted {rows} rows in {:.0} s, killed once after {after_kill} steps and resumed by two at once; meanwhile {} inserts, the longest took {} ms",
        took.as_secs_f64(),
        inserted.rows,
        inserted.longest.as_millis()
    ));
    assert!(inserted.longest < LONGEST_STALL, "an insert took {:?}\n{one}\n{other}", inserted.longest);

    assert_eq!(
        world.number("SELECT max(version)::bigint FROM agent_outbox_migrations").await,
        i64::from(migrate::LATEST)
    );
    assert_eq!(world.number("SELECT count(*) FROM pg_index WHERE NOT indisvalid").await, 0);
    let added = i64::try_from(inserted.rows).unwrap();
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox").await, rows + added);
    // Rows from before and from meanwhile are served.
    world.execute("UPDATE agent_outbox SET endpoint = (SELECT endpoint FROM agent_outbox WHERE idempotency_key = 'meanwhile-0'), next_attempt_at = now() WHERE id = 1").await;
    let _relay = world.relay().await;
    world
        .wait_for("all due rows are delivered", "SELECT count(*) = 0 FROM agent_outbox WHERE status IN ('pending', 'in_flight') AND next_attempt_at < now() + interval '1 hour'")
        .await;
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox WHERE id = 1 AND status = 'succeeded'").await, 1);
    assert_eq!(world.receiver.ledger().counts().effects, inserted.rows as u64 + 1);
}
