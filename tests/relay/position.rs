//! Where claims go on: what they cost while the database keeps entries of rows that have passed, and which rows they find.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use outbox_operator::{
    domain::{
        routing::{Route, Routing},
        settings::OnDead,
    },
    store::{self, Again, Caps, Claim, ClaimPolicy, ClaimRequest, ConnectSettings, Db, Position},
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, postgres::PgConnectOptions};

use crate::support::{TENANT, World, table};

/// Longer than any test: a search from the start is made once.
const ONCE: Duration = Duration::from_hours(1);

/// The name of sessions whose pages are counted.
const COUNTED: &str = "counted";

/// A relay at the level of the store: its policies, and where it goes on.
struct Claimer {
    policies: Vec<ClaimPolicy<'static>>,
    routing: Routing,
    lease: Duration,
    position: Position,
}

impl Claimer {
    fn new() -> Self {
        Self {
            policies: vec![ClaimPolicy { scope: "own", caps: Caps::default(), ordering: None }],
            routing: Routing::default(),
            lease: Duration::from_secs(60),
            position: Position::new(ONCE),
        }
    }

    async fn claim(&mut self, db: &Db, limit: usize) -> Claim {
        let request = ClaimRequest {
            tenants: &[],
            limit,
            most_in_hand: usize::MAX,
            in_hand: &HashMap::new(),
            policies: &self.policies,
            routing: &self.routing,
            worker: "test",
            lease: self.lease,
            small_payload: Some(1024),
        };
        store::claim(db, &table(), &request, &mut self.position).await.unwrap()
    }

    async fn ids(&mut self, db: &Db, limit: usize) -> Vec<i64> {
        self.claim(db, limit).await.rows.iter().map(|row| row.id).collect()
    }

    /// Claims and ends rows, until so many have passed or none is left.
    async fn pass(&mut self, db: &Db, ends: &mut PgConnection, rows: usize) {
        let mut passed = 0;
        while passed < rows {
            let ids = self.ids(db, 2_000).await;
            if ids.is_empty() {
                return;
            }
            passed += ids.len();
            sqlx::query(
                "UPDATE agent_outbox SET status = 'succeeded', completed_at = now(), claim_token = NULL, locked_until = NULL \
                 WHERE id = ANY ($1)",
            )
            .bind(ids)
            .execute(&mut *ends)
            .await
            .unwrap();
        }
    }

    /// Claims so many times fifty rows. Returns the pages of the table and its indexes that a claim visited on average.
    async fn pages_of(&mut self, world: &World, claims: u32) -> i64 {
        let sql = "SELECT (heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint \
                   FROM pg_statio_user_tables WHERE relname = 'agent_outbox'";
        let before = world.number(sql).await;
        let db = connect(world);
        for _ in 0..claims {
            assert_eq!(self.claim(&db, 50).await.rows.len(), 50);
        }
        closed(world, db, None).await;
        (world.number(sql).await - before) / i64::from(claims)
    }
}

/// A connection for claims whose pages are counted.
fn connect(world: &World) -> Db {
    let settings = ConnectSettings { application_name: COUNTED.to_owned(), ..world.connect_settings() };
    Db::connect_lazy(&settings).unwrap()
}

/// Ends it: a session hands in its last counts at its end.
async fn closed(world: &World, db: Db, other: Option<PgConnection>) {
    db.close().await;
    if let Some(other) = other {
        other.close().await.unwrap();
    }
    let sql = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = '{COUNTED}')");
    world.wait_for("the counted sessions to end", &sql).await;
}

/// An INSERT of rows of one destination: they are all due at the same instant.
fn rows(operation: &str, rows: usize) -> String {
    format!(
        "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
         SELECT '{TENANT}', '{operation}', n, '{operation}-' || gen_random_uuid(), 'https://one.test/a', '{{}}' \
         FROM generate_series(1, {rows}) AS n"
    )
}

#[tokio::test]
async fn rc_45_claims_stay_cheap_while_200_000_rows_pass_under_an_old_snapshot() {
    const ROWS: usize = 200_000;
    let world = World::new().await;
    // Nobody but the claims visits the table while they are counted.
    world.execute("ALTER TABLE agent_outbox SET (autovacuum_enabled = off)").await;
    world.execute(&rows("pass", ROWS + 3_000)).await;
    world.execute("VACUUM ANALYZE agent_outbox").await;
    let mut claimer = Claimer::new();
    let before = claimer.pages_of(&world, 10).await;

    let mut reader = PgConnection::connect(&world.url).await.unwrap();
    let mut snapshot = reader.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM agent_outbox").fetch_one(&mut *snapshot).await.unwrap();
    assert_eq!(seen, i64::try_from(ROWS).unwrap() + 3_000);
    let db = connect(&world);
    let options: PgConnectOptions = world.url.parse().unwrap();
    let options = options.application_name(COUNTED);
    let mut ends = PgConnection::connect_with(&options).await.unwrap();
    claimer.lease = Duration::from_secs(1);
    claimer.pass(&db, &mut ends, ROWS).await;
    closed(&world, db, Some(ends)).await;
    claimer.lease = Duration::from_secs(60);
    world.execute("ANALYZE agent_outbox").await;

    let in_backlog = claimer.pages_of(&world, 10).await;
    // The same from the start: every entry of a row that has passed is read.
    let position = std::mem::replace(&mut claimer.position, Position::new(ONCE));
    let from_the_start = claimer.pages_of(&world, 1).await;
    claimer.position = position;
    // The end of the backlog is met, and rows come after it.
    let db = connect(&world);
    let mut ends = PgConnection::connect_with(&options).await.unwrap();
    claimer.pass(&db, &mut ends, usize::MAX).await;
    // Claims look a second back at least. Here 20,000 rows passed in that second, and left their leases a second later.
    let sql = "SELECT now() > max(completed_at) + interval '3 seconds' FROM agent_outbox";
    world.wait_for("three quiet seconds", sql).await;
    assert_eq!(claimer.ids(&db, 50).await, [0_i64; 0]);
    sqlx::raw_sql(AssertSqlSafe(rows("late", 600))).execute(&mut ends).await.unwrap();
    closed(&world, db, Some(ends)).await;
    let at_the_end = claimer.pages_of(&world, 10).await;
    println!(
        "pages that a claim of 50 rows visits: {before} before; after 200,000 rows have passed, {in_backlog} in a backlog, \
         {at_the_end} at its end, {from_the_start} from the start"
    );
    assert!(in_backlog <= before * 3);
    assert!(at_the_end <= before * 3);
    assert!(from_the_start > before * 3, "the snapshot held nothing back");
    drop(snapshot);
}

#[tokio::test]
async fn claims_that_go_on_find_every_row_that_falls_due() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let mut claimer = Claimer::new();
    // Rows of one instant, one at a time.
    world.execute(&rows("same", 30)).await;
    let mut all = HashSet::new();
    for _ in 0..30 {
        all.extend(claimer.ids(&db, 1).await);
    }
    assert_eq!(all.len(), 30);
    assert_eq!(claimer.ids(&db, 10).await, [0_i64; 0]);

    // A transaction that began before a claim and is committed after it.
    let mut slow = world.pool.begin().await.unwrap();
    let late: i64 = sqlx::query_scalar(
        "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
         VALUES ($1::uuid, 'slow', 'e', 'slow', 'https://one.test/a', '{}') RETURNING id",
    )
    .bind(TENANT)
    .fetch_one(&mut *slow)
    .await
    .unwrap();
    assert_eq!(claimer.ids(&db, 10).await, [0_i64; 0]);
    slow.commit().await.unwrap();
    assert_eq!(claimer.ids(&db, 10).await, [late]);

    // A lease that ran out; a row that waited; one that a person made due.
    world
        .execute(&format!(
            "UPDATE agent_outbox SET next_attempt_at = now(), locked_until = now(), status = CASE id % 3 WHEN 0 THEN 'in_flight' ELSE 'pending' END \
             WHERE id <> {late}"
        ))
        .await;
    let again: HashSet<i64> = claimer.ids(&db, 100).await.into_iter().collect();
    assert_eq!(again, all);

    // What lies far back, and destinations that are new, are found by the next search from the start.
    world
        .execute(&format!(
            "UPDATE agent_outbox SET status = 'pending', locked_until = NULL, claim_token = NULL, \
               next_attempt_at = CASE id % 2 WHEN 0 THEN '-infinity' ELSE now() - interval '2000 years' END, \
               destination = CASE id % 3 WHEN 0 THEN 'https://two.test' WHEN 1 THEN destination END WHERE id <> {late}"
        ))
        .await;
    claimer.position = Position::new(Duration::ZERO);
    let mut found = HashSet::new();
    for _ in 0..1_000 {
        found.extend(claimer.ids(&db, 4).await);
        if found.len() == 30 {
            break;
        }
    }
    assert_eq!(found, all);
}

#[tokio::test]
async fn a_row_behind_thousands_of_another_policys_held_rows_is_found_and_looked_for_once() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let mut claimer = Claimer::new();
    claimer.policies.push(ClaimPolicy { scope: "payments", caps: Caps::default(), ordering: None });
    claimer.routing.routes = vec![Route { operations: vec!["pay".to_owned()], endpoints: Vec::new(), policy: 1 }];
    world
        .execute(
            "INSERT INTO agent_outbox_destinations (scope, destination, held_until) \
             VALUES ('own', 'https://one.test', now() + interval '1 hour')",
        )
        .await;
    world.execute(&rows("order", 12_000)).await;
    world.execute(&rows("pay", 1)).await;
    let mut claims = Vec::new();
    loop {
        let claim = claimer.claim(&db, 10).await;
        claims.push(claim.rows.iter().map(|row| row.operation.clone()).collect::<Vec<_>>());
        if claim.again == Again::Later {
            break;
        }
        assert!(claims.len() < 10, "{claims:?}");
    }
    assert_eq!(claims, [vec![], vec![], vec!["pay".to_owned()]], "two windows of 5,000 rows before it");
    // A round later it is not read all over again.
    world.execute(&rows("pay", 2)).await;
    let claim = claimer.claim(&db, 10).await;
    assert_eq!(claim.rows.len(), 2);
    assert_eq!(claim.again, Again::Later);
}

#[tokio::test]
async fn a_claim_that_meets_another_ones_entity_comes_back_soon_and_not_at_once() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let mut claimer = Claimer::new();
    claimer.policies[0].ordering = Some(OnDead::Block);
    world.execute(&rows("change", 1)).await;
    // Another pod's claim that has not ended: it holds the locks of entities.
    let mut other = world.pool.begin().await.unwrap();
    sqlx::query(
        "SELECT pg_advisory_xact_lock(hashtext('outbox order ' || '\"public\".\"agent_outbox\"'), bucket) \
         FROM generate_series(0, 1023) AS bucket",
    )
    .execute(&mut *other)
    .await
    .unwrap();
    let claim = claimer.claim(&db, 10).await;
    assert_eq!((claim.rows.len(), claim.again), (0, Again::Soon));
    other.rollback().await.unwrap();
    assert_eq!(claimer.claim(&db, 10).await.rows.len(), 1);
}
