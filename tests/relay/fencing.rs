//! Leases and tokens: who may write to a row, at the level of the store.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::Duration,
};

use outbox_operator::{
    domain::{hold::HoldPolicy, routing::Routing, settings::Policy, transition},
    spec,
    store::{self, Caps, ClaimPolicy, ClaimRequest, Claimed, Db, Position, SettleRow, Signals},
};

use crate::support::{World, documents, table};

async fn claim_of(db: &Db, tenants: &[uuid::Uuid], limit: usize, lease: Duration) -> Vec<Claimed> {
    let request = ClaimRequest {
        tenants,
        limit,
        most_in_hand: usize::MAX,
        in_hand: &HashMap::new(),
        policies: &[ClaimPolicy { scope: "test", caps: Caps::default(), ordering: None }],
        routing: &Routing::default(),
        worker: "test",
        lease,
        small_payload: Some(1024),
    };
    store::claim(db, &table(), &request, &mut Position::new(Duration::ZERO)).await.unwrap().rows
}

async fn settle(db: &Db, rows: &[SettleRow]) -> HashSet<i64> {
    let policy = HoldPolicy { after_failures: 5, base: Duration::from_secs(5), cap: Duration::from_secs(60) };
    let signals = [Signals { scope: "test", policy, seen: BTreeMap::new() }];
    store::settle(db, &table(), "test", rows, &signals).await.unwrap()
}

async fn claim(db: &Db, limit: usize, lease: Duration) -> Vec<Claimed> {
    claim_of(db, &[], limit, lease).await
}

fn policy() -> Policy {
    let documents = spec::read([("relay.yaml", documents("", "").as_str())]).unwrap();
    spec::resolve(&documents.relays[0], &documents.policies).unwrap().policies.own.policy
}

fn released(row: &Claimed) -> SettleRow {
    SettleRow {
        id: row.id,
        token: row.token,
        settlement: transition::release(&policy(), &row.facts),
        last_error: None,
        http_status: None,
        record: None,
    }
}

#[tokio::test]
async fn rc_02_a_worker_that_lost_its_lease_changes_nothing() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let id = world.insert_script("fenced", "201").await;
    let first = claim(&db, 10, Duration::ZERO).await.remove(0);
    let second = claim(&db, 10, Duration::from_secs(60)).await.remove(0);
    assert_eq!((first.id, second.id), (id, id));
    assert!(second.facts.lease_expired && second.facts.unknown_attempts == 1 && second.facts.attempts == 2);
    let before = world.row(id).await;

    assert_eq!(settle(&db, &[released(&first)]).await, HashSet::new());
    assert_eq!(
        store::renew(&db, &table(), &[(id, first.token)], Duration::from_secs(60)).await.unwrap(),
        HashSet::new()
    );
    let after = world.row(id).await;
    assert_eq!((before.status, before.attempts), (after.status, after.attempts));

    assert_eq!(settle(&db, &[released(&second)]).await, HashSet::from([id]));
    let row = world.row(id).await;
    // The attempt is given back; the doubt of the lease that ran out stays.
    assert_eq!((row.status.as_str(), row.attempts, row.unknown_attempts), ("uncertain", 1, 1));
}

#[tokio::test]
async fn a_claim_takes_no_more_than_asked_and_no_row_twice() {
    let world = World::new().await;
    world
        .execute(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
             SELECT gen_random_uuid(), 'o', n::text, 'key-' || n, 'https://x.test/', '{}' FROM generate_series(1, 2000) n",
        )
        .await;
    let db =
        Db::connect_lazy(&outbox_operator::store::ConnectSettings { max_connections: 8, ..world.connect_settings() })
            .unwrap();
    let claims = (0..8).map(|_| claim(&db, 100, Duration::from_secs(60)));
    let claimed = futures::future::join_all(claims).await;
    let ids: Vec<i64> = claimed.iter().flatten().map(|row| row.id).collect();
    assert!(claimed.iter().all(|rows| rows.len() <= 100));
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
    assert_eq!(
        world.number("SELECT count(*) FROM agent_outbox WHERE status = 'in_flight'").await,
        i64::try_from(ids.len()).unwrap()
    );
}

#[tokio::test]
async fn rows_of_an_old_relay_are_left_alone_until_their_lease_is_over() {
    let world = World::new().await;
    let held = world.insert_script("held", "201").await;
    let over = world.insert_script("over", "201").await;
    for (id, until) in [(held, "now() + interval '1 hour'"), (over, "now() - interval '1 second'")] {
        world
            .execute(&format!(
                "UPDATE agent_outbox SET status = 'in_flight', attempts = 1, locked_until = {until} WHERE id = {id}"
            ))
            .await;
    }
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let rows = claim(&db, 10, Duration::from_secs(60)).await;
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [over]);
    assert_eq!(rows[0].facts.unknown_attempts, 1);
}

#[tokio::test]
async fn tenants_of_another_relay_are_not_claimed() {
    let world = World::new().await;
    let id = world.insert_script("ours", "201").await;
    world.execute("INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) VALUES (gen_random_uuid(), 'o', 'e', 'theirs', 'https://x.test/', '{}')").await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let tenants = [uuid::Uuid::parse_str(crate::support::TENANT).unwrap()];
    let rows = claim_of(&db, &tenants, 10, Duration::from_secs(60)).await;
    assert_eq!(rows.iter().map(|row| row.id).collect::<Vec<_>>(), [id]);
}
