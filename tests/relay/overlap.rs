//! Several relays on one table: each with tenants of its own, the younger refused where they overlap.

use std::time::Duration;

use outbox_operator::store::{self, Db, Registered, Registration};
use uuid::Uuid;

use crate::support::{PATIENCE, Relay, TENANT, World, documents, outbox, table};

const OTHER: &str = "11111111-8f6b-4a53-9b0e-3a3c0d9f1a11";

impl World {
    fn named(&self, name: &str, tenants: &[&str]) -> std::path::PathBuf {
        let file = self.folder.path().join(format!("{name}.yaml"));
        let text =
            documents(&format!("tenants: {tenants:?}"), "").replace("{name: test}", &format!("{{name: {name}}}"));
        std::fs::write(&file, text).unwrap();
        file
    }
}

fn registration<'a>(relay: &'a str, holder: &'a str, tenants: &'a [Uuid]) -> Registration<'a> {
    Registration { relay, holder, tenants, skips_dead: false }
}

#[tokio::test]
async fn the_relay_that_was_there_first_stays_and_one_that_overlaps_is_refused_until_it_is_gone() {
    let world = World::new().await;
    let db = Db::connect_lazy(&world.connect_settings()).unwrap();
    let (one, two): (Uuid, Uuid) = (TENANT.parse().unwrap(), OTHER.parse().unwrap());
    let register = async |relay: &str, holder: &str, tenants: &[Uuid]| {
        store::register(&db, &table(), &registration(relay, holder, tenants)).await.unwrap()
    };
    let by = |relay: &str| Registered::Overlaps { relay: relay.to_owned() };
    assert_eq!(register("a", "a-1", &[one]).await, Registered::Alone);
    assert_eq!(register("a", "a-2", &[one]).await, Registered::Alone, "a second process of the same relay");
    assert_eq!(register("b", "b-1", &[two]).await, Registered::Alone, "other tenants");
    assert_eq!(register("c", "c-1", &[two, one]).await, by("a"));
    assert_eq!(register("c", "c-1", &[]).await, by("a"), "all tenants are these as well");
    assert_eq!(register("b", "b-1", &[one, two]).await, by("a"), "a relay that changes its tenants is new");
    assert_eq!(register("a", "a-1", &[one, two]).await, by("b"));
    // One process of it goes, another stays; then the last one is killed.
    store::unregister(&db, &table(), "a", "a-1").await.unwrap();
    assert_eq!(register("c", "c-1", &[one]).await, by("a"));
    world.execute("UPDATE agent_outbox_relays SET seen_at = now() - interval '31 seconds' WHERE relay = 'a'").await;
    assert_eq!(register("c", "c-1", &[one]).await, Registered::Alone);
    assert_eq!(register("a", "a-2", &[one]).await, by("c"), "it has lapsed, and comes back as the younger");
}

#[tokio::test]
async fn of_relays_that_begin_at_once_exactly_one_wins() {
    let world = World::new().await;
    let db = Db::connect_lazy(&store::ConnectSettings { max_connections: 8, ..world.connect_settings() }).unwrap();
    for round in 0..10 {
        world.execute("DELETE FROM agent_outbox_relays").await;
        let names: Vec<String> = (0..8).map(|number| format!("relay-{round}-{number}")).collect();
        let table = table();
        let all = futures::future::join_all(names.iter().map(|name| {
            let (db, table) = (&db, &table);
            async move { store::register(db, table, &registration(name, "p", &[])).await.unwrap() }
        }))
        .await;
        assert_eq!(all.iter().filter(|registered| **registered == Registered::Alone).count(), 1, "{all:?}");
    }
}

#[tokio::test]
async fn a_relay_by_hand_refuses_beside_another_one_and_names_it() {
    let world = World::new().await;
    let first = Relay::start(&world.url, &world.named("first", &[TENANT]), &[]);
    first.ready().await;
    let beside = Relay::start(&world.url, &world.named("beside", &[OTHER]), &[]);
    beside.ready().await;
    let file = world.named("younger", &[TENANT, OTHER]);
    let args = ["relay", "--listen", "127.0.0.1:0", "-f", file.to_str().unwrap()];
    let (code, _, error) = outbox(&args, Some(&world.url));
    assert_eq!(code, 2);
    assert!(error.contains("relay first serves rows of the same tenants"), "{error}");
    // It ends well, and its tenants are free at once.
    assert!(first.stop().await.success());
    assert!(beside.stop().await.success());
    let younger = Relay::start(&world.url, &file, &[]);
    younger.ready().await;
    let id = world.insert_script("row", "201").await;
    assert_eq!(world.ended(id).await.status, "succeeded");
}

#[tokio::test]
async fn due_rows_that_no_relay_serves_are_counted_and_shown() {
    let world = World::new().await;
    let served = Relay::start(&world.url, &world.named("served", &[TENANT]), &[]);
    served.ready().await;
    let mine = world.insert_script("mine", "201").await;
    assert_eq!(world.ended(mine).await.status, "succeeded");
    for number in 0..3 {
        world.insert_script(&format!("nobodys-{number}"), "201").await;
    }
    world.execute(&format!("UPDATE agent_outbox SET tenant_id = '{OTHER}', status = 'pending', next_attempt_at = now() WHERE idempotency_key LIKE 'nobodys%'")).await;
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let (code, out, error) = outbox(&["status"], Some(&world.url));
        assert_eq!(code, 0, "{error}");
        if out.contains("3 of the due rows are served by no running relay") {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{out}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let all = Relay::start(&world.url, &world.named("others", &[OTHER]), &[]);
    all.ready().await;
    world.all_ended().await;
    let (_, out, _) = outbox(&["status", "-o", "json"], Some(&world.url));
    assert!(out.contains("\"unassigned\": 0") || out.contains("\"unassigned\":0"), "{out}");
    drop(served);
}
