//! Routes: several policies of one relay, each with its own credentials, holds and caps.

use std::{collections::HashMap, time::Duration};

use outbox_operator::{
    domain::routing::{EndpointPattern, Route, Routing},
    store::{self, Caps, ClaimPolicy, ClaimRequest, Db, Position},
};
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, TestRunner},
};

use crate::support::{PATIENCE, Relay, TENANT, World, documents, table};

/// The documents of a quick relay with routes, and a second policy.
fn with_payments(routes: &str, more: &str) -> String {
    format!(
        "{}---\napiVersion: outbox-operator.dev/v1alpha1\nkind: DispatchPolicy\nmetadata: {{name: payments}}\nspec:\n  \
         timeouts: {{connect: 1s, total: 2s}}\n  egress: {{allowCidrs: [\"127.0.0.0/8\"]}}\n{more}",
        documents(routes, "request: {headers: {X-Policy: quick}}")
    )
}

impl World {
    async fn routed(&self, routes: &str, more: &str) -> Relay {
        let file = self.folder.path().join("routed.yaml");
        std::fs::write(&file, with_payments(routes, more)).unwrap();
        let relay = Relay::start(&self.url, &file, &[]);
        relay.ready().await;
        relay
    }

    async fn insert_operation(&self, operation: &str, key: &str, endpoint: &str) {
        sqlx::query(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
             VALUES ($1::uuid, $2, $3, $3, $4, '{}')",
        )
        .bind(TENANT)
        .bind(operation)
        .bind(key)
        .bind(endpoint)
        .execute(&self.pool)
        .await
        .unwrap();
    }

    fn policy_header(&self, key: &str) -> String {
        self.receiver.ledger().requests_of(key)[0].header("x-policy").unwrap_or("none").to_owned()
    }
}

#[tokio::test]
async fn each_row_is_sent_by_the_policy_of_its_route() {
    let world = World::new().await;
    let origin = world.receiver.url("x").split("/do/").next().unwrap().to_owned();
    let routes = format!(
        "routes:\n- match: {{operations: [pay], endpoints: [\"{origin}/do/201/p*\"]}}\n  policyRef: {{name: payments}}\n\
         - match: {{operations: [refund]}}\n  policyRef: {{name: payments}}"
    );
    let rows = [
        ("pay", "one", format!("{origin}/do/201/pay"), "payments"),
        ("pay", "two", format!("{origin}/do/201/other"), "quick"),
        ("notify", "three", format!("{origin}/do/201/pay"), "quick"),
        ("refund", "four", format!("{origin}/do/201/any"), "payments"),
        ("pay", "five", origin.replace("http://", "HTTP://") + "/do/201/pay?x=1", "payments"),
        ("pay", "nameless", format!("{origin}/do/201/pay"), "payments"),
    ];
    for (operation, key, endpoint, _) in &rows {
        world.insert_operation(operation, key, endpoint).await;
    }
    world.execute("UPDATE agent_outbox SET destination = NULL WHERE idempotency_key = 'nameless'").await;
    let _relay = world.routed(&routes, "  request: {headers: {X-Policy: payments}}\n").await;
    world.all_ended().await;
    for (_, key, _, policy) in &rows {
        assert_eq!(world.policy_header(key), *policy, "{key}");
    }
}

#[tokio::test]
async fn a_hold_and_a_cap_are_one_policys_at_a_destination() {
    let world = World::new().await;
    let routes = "concurrency: 16\nroutes:\n- match: {operations: [pay]}\n  policyRef: {name: payments}";
    let _relay = world
        .routed(routes, "  destination: {maxInFlight: 2, hold: {afterFailures: 1, base: 10m, cap: 10m}}\n  retry: {base: 10m, cap: 10m}\n")
        .await;
    for number in 0..10 {
        world.insert_operation("pay", &format!("pay-{number}"), &world.receiver.url("gate:go:500")).await;
    }
    world.receiver.ledger().wait_until(PATIENCE, |counts| counts.open == 2).await.unwrap();
    // The cap is payments' own: other rows of the destination go beside.
    for number in 0..20 {
        world.insert_operation("notify", &format!("notify-{number}"), &world.receiver.url("201")).await;
    }
    world
        .wait_for(
            "the others are sent",
            "SELECT count(*) = 20 FROM agent_outbox WHERE operation = 'notify' AND status = 'succeeded'",
        )
        .await;
    assert_eq!(world.receiver.ledger().counts().open, 2);
    world.receiver.ledger().open_gate("go");
    world
        .wait_for(
            "payments' hold",
            "SELECT count(*) = 1 FROM agent_outbox_destinations WHERE held_until > now() AND scope = 'test/payments'",
        )
        .await;
    world.insert_operation("notify", "after", &world.receiver.url("201")).await;
    world
        .wait_for(
            "sent beside the hold",
            "SELECT status = 'succeeded' FROM agent_outbox WHERE idempotency_key = 'after'",
        )
        .await;
    let attempted = world.number("SELECT count(*) FROM agent_outbox WHERE operation = 'pay' AND attempts > 0").await;
    // Before the hold at most two rounds of the cap are on the wire.
    assert!(attempted <= 4, "held rows use no attempts: {attempted}");
    assert_eq!(world.number("SELECT count(*) FROM agent_outbox_destinations WHERE held_until > now()").await, 1);
}

#[tokio::test]
async fn a_route_and_an_order_go_together() {
    let world = World::new().await;
    let routes = "routes:\n- match: {operations: [pay]}\n  policyRef: {name: payments}";
    let _relay = world.routed(routes, "  ordering: {mode: PerEntity}\n").await;
    for number in 0..10 {
        for operation in ["pay", "notify"] {
            sqlx::query("INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) VALUES ($1::uuid, $2, $2, $3, $4, '{}')")
                .bind(TENANT)
                .bind(operation)
                .bind(format!("{operation}-{number}"))
                .bind(world.receiver.url("slow:20"))
                .execute(&world.pool)
                .await
                .unwrap();
        }
    }
    world.all_ended().await;
    let keys = world.receiver.ledger().requests().into_iter().filter_map(|request| request.key);
    let paid: Vec<String> = keys.filter(|key| key.starts_with("pay")).collect();
    assert_eq!(paid, (0..10).map(|number| format!("pay-{number}")).collect::<Vec<_>>());
}

fn routing() -> impl Strategy<Value = Routing> {
    let pattern = prop_oneof![
        "https?://[a-c*]{1,3}(\\.t)?(:[0-9]{1,3})?/[a-c*%_!]{0,3}",
        Just("HTTPS://API.test:443/*".to_owned()),
        Just("https://api.test/v1/*x?*".to_owned()),
    ];
    let route = (prop::collection::vec("[ab'\\\\]{1,2}", 0..3), prop::collection::vec(pattern, 0..3));
    prop::collection::vec(route, 1..4).prop_map(|routes| {
        let routes = routes.into_iter().enumerate().map(|(number, (operations, patterns))| Route {
            operations,
            endpoints: patterns.iter().filter_map(|text| EndpointPattern::parse(text)).collect(),
            policy: number % 3,
        });
        Routing { routes: routes.collect() }
    })
}

fn endpoint() -> impl Strategy<Value = String> {
    let odd = [
        "HTTPS://API.Test:443/v1/x",
        "https://u:p@api.test/v1/ax?b",
        "https://api.test./v1/",
        "https://api.test",
        "https://api.test?x",
        "https://api.test#x",
        "https://a@b@api.test:0443/v1/x?",
        "https://[::1]/a",
        "http://[::1]:80/",
        "https://api.test\u{a0}/",
        "https://\u{212a}.t/a",
        "https://api.tes\u{17f}/",
        "x",
        "",
        "https://",
        "http://a\\b/",
        "http://a/\u{e5}",
        "http://a:8o/",
        "http://[x]/a",
        "http://a\nb/c",
        "http://a/b\nc",
    ];
    prop_oneof![
        "(?i:https?)://([ab]{1,2}(:[ab])?@)?[a-cA-C]{1,3}(\\.[tT])?\\.?(:[0-9]{0,3})?(/[a-c%_!]{0,3})?([?#][a-c/]{0,2})?",
        prop::sample::select(odd.to_vec()).prop_map(str::to_owned),
        "\\PC{0,20}",
    ]
}

#[tokio::test]
async fn the_database_finds_the_rows_of_each_policy_as_the_code_reads_them() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let mut runner = TestRunner::new(Config { cases: 60, ..Config::default() });
    println!("seed: {:?}", runner.rng());
    let scopes = ["one", "two", "three"];
    let policies = scopes.map(|scope| ClaimPolicy { scope, caps: Caps::default(), ordering: None });
    for _ in 0..40 {
        let routing = routing().new_tree(&mut runner).unwrap().current();
        world.execute("DELETE FROM agent_outbox; DELETE FROM agent_outbox_destinations").await;
        for number in 0..30 {
            let endpoint = endpoint().new_tree(&mut runner).unwrap().current().replace('\0', "");
            let operation = "[ab'\\\\]{1,2}".new_tree(&mut runner).unwrap().current();
            world.insert_operation(&operation, &format!("row-{number}"), &endpoint).await;
        }
        world.execute("UPDATE agent_outbox SET destination = NULL WHERE id % 7 = 0").await;
        // All but one policy are held at every destination: what is claimed is that one's.
        for (free, _) in scopes.iter().enumerate() {
            world.execute("DELETE FROM agent_outbox_destinations; UPDATE agent_outbox SET status = 'pending', next_attempt_at = now(), claim_token = NULL, locked_until = NULL").await;
            for (number, scope) in scopes.iter().enumerate().filter(|(number, _)| *number != free) {
                let _ = number;
                world.execute(&format!("INSERT INTO agent_outbox_destinations (scope, destination, held_until) SELECT DISTINCT '{scope}', destination, now() + interval '1 hour' FROM agent_outbox WHERE destination IS NOT NULL")).await;
            }
            let request = ClaimRequest {
                tenants: &[],
                limit: 1000,
                most_in_hand: usize::MAX,
                in_hand: &HashMap::new(),
                policies: &policies,
                routing: &routing,
                worker: "test",
                lease: Duration::from_secs(60),
                small_payload: Some(1024),
            };
            let claimed = store::claim(&db, &table(), &request, &mut Position::new(Duration::ZERO)).await.unwrap().rows;
            let rows: Vec<(i64, String, String, Option<String>)> =
                sqlx::query_as("SELECT id, operation, endpoint, destination FROM agent_outbox")
                    .fetch_all(&world.pool)
                    .await
                    .unwrap();
            for (id, operation, endpoint, destination) in rows {
                // Letters that fold to ASCII make another bucket of the same name; the code's word is what is sent.
                if endpoint.contains(['\u{212a}', '\u{17f}']) {
                    continue;
                }
                let wanted = destination.is_none() || routing.policy_of(&operation, &endpoint) == free;
                let found = claimed.iter().any(|row| row.id == id);
                assert_eq!(found, wanted, "{operation:?} {endpoint:?} {destination:?}, policy {free} of {routing:?}");
            }
        }
    }
}
