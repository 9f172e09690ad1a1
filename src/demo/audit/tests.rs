use super::*;
use crate::{
    demo::plan::{self, MIN_ROWS},
    sandbox::Answered,
};
use jiff::Timestamp;

/// A story in which everything is as it has to be.
struct Scene {
    intents: Vec<Intent>,
    rows: HashMap<String, RowEnd>,
    requests: Vec<RequestRecord>,
    effects: Vec<Effect>,
}

impl Scene {
    fn new() -> Self {
        let receivers = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"].map(|addr| addr.parse().unwrap());
        let intents = plan::intents(MIN_ROWS, receivers).unwrap();
        let mut scene = Self { intents: Vec::new(), rows: HashMap::new(), requests: Vec::new(), effects: Vec::new() };
        for (id, intent) in (1..).zip(&intents) {
            let (status, reason) = match intent.kind.end {
                End::Succeeded => ("succeeded", None),
                End::Dead(reason) => ("dead", Some(reason.to_owned())),
            };
            let row = RowEnd {
                id,
                key: intent.key.clone(),
                status: status.to_owned(),
                parked: false,
                reason,
                last_error: None,
                attempts: 1,
                unknown_attempts: 0,
                downstream_id: None,
                body: intent.payload.clone(),
            };
            scene.rows.insert(intent.key.clone(), row);
            if intent.kind.end == End::Succeeded {
                scene.effect(&intent.key.clone(), &intent.payload);
            }
        }
        scene.intents = intents;
        scene
    }

    /// A request that makes an effect, whatever was before.
    fn effect(&mut self, key: &str, body: &str) {
        let number = self.requests.len() as u64 + 1;
        let sha256 = sha256_hex(body.as_bytes());
        self.requests.push(RequestRecord {
            number,
            connection: 1,
            at: Timestamp::UNIX_EPOCH,
            method: "POST".to_owned(),
            path: "/".to_owned(),
            key: Some(key.to_owned()),
            headers: Vec::new(),
            body: None,
            body_bytes: 0,
            body_sha256: Some(sha256.clone()),
            repeat: false,
            overlap: false,
            answered: Answered::Status(201),
            effect: Some(number),
            replayed: false,
            ended_at: None,
        });
        let id = format!("eff-{number}");
        if let Some(row) = self.rows.get_mut(key) {
            row.downstream_id = Some(id.clone());
        }
        let key = Some(key.to_owned());
        self.effects.push(Effect { number, id, key, request: number, at: Timestamp::UNIX_EPOCH, body_sha256: sha256 });
    }

    /// The first row that has to end so.
    fn first(&mut self, succeeded: bool) -> &mut RowEnd {
        let fits = |intent: &&Intent| (intent.kind.end == End::Succeeded) == succeeded;
        let key = self.intents.iter().find(fits).unwrap().key.clone();
        self.rows.get_mut(&key).unwrap()
    }

    fn audit(&self) -> Audit {
        audit(&Evidence { intents: &self.intents, rows: &self.rows, requests: &self.requests, effects: &self.effects })
    }
}

#[test]
fn a_story_that_held_has_no_problem() {
    assert_eq!(Scene::new().audit(), Audit::default());
}

#[test]
fn a_second_effect_of_a_key_is_doubled() {
    let mut scene = Scene::new();
    let row = scene.first(true).clone();
    scene.effect(&row.key, &row.body);
    assert_eq!(scene.audit().problems, [Problem::Doubled { key: row.key, effects: 2 }]);
}

#[test]
fn a_success_without_an_effect_is_lost() {
    let mut scene = Scene::new();
    let row = scene.first(true).clone();
    scene.effects.retain(|effect| effect.key.as_ref() != Some(&row.key));
    assert_eq!(scene.audit().problems, [Problem::Lost { row: row.id }]);
}

#[test]
fn a_dead_row_with_an_effect_is_a_broken_promise() {
    let mut scene = Scene::new();
    let row = scene.first(false).clone();
    scene.effect(&row.key, &row.body);
    assert_eq!(scene.audit().problems, [Problem::Unrecorded { row: row.id, status: "dead".to_owned() }]);
}

#[test]
fn changed_bodies_keys_and_names_are_found() {
    let mut scene = Scene::new();
    let row = scene.first(true).id;
    scene.first(true).downstream_id = Some("eff-0".to_owned());
    assert!(matches!(scene.audit().problems.as_slice(), [Problem::WrongName { row: found, .. }] if *found == row));

    let mut scene = Scene::new();
    scene.requests[0].body_sha256 = Some(sha256_hex(b"{}"));
    assert!(matches!(scene.audit().problems.as_slice(), [Problem::BodyChanged { request: 1, .. }]));
    scene.requests[0].key = Some("another".to_owned());
    assert!(matches!(scene.audit().problems.as_slice(), [Problem::UnknownKey { key: Some(_), request: 1 }]));
    scene.requests[0].key = None;
    assert!(matches!(scene.audit().problems.as_slice(), [Problem::UnknownKey { key: None, request: 1 }]));
}

#[test]
fn a_row_that_ends_otherwise_is_told() {
    let mut scene = Scene::new();
    scene.first(false).reason = Some("conflict".to_owned());
    assert!(matches!(scene.audit().problems.as_slice(), [Problem::WrongEnd { row: Some(_), .. }]));
    let key = scene.first(false).key.clone();
    scene.rows.remove(&key);
    assert!(matches!(scene.audit().problems.as_slice(), [Problem::WrongEnd { row: None, .. }]));
}

#[test]
fn a_row_parked_for_its_doubt_is_told_and_not_wrong() {
    let mut scene = Scene::new();
    let row = scene.first(false);
    (row.status, row.parked, row.unknown_attempts) = ("uncertain".to_owned(), true, 1);
    let id = row.id;
    assert_eq!(scene.audit(), Audit { problems: Vec::new(), parked: vec![id] });
    scene.first(false).unknown_attempts = 0;
    assert_eq!(scene.audit().problems.len(), 1, "without a doubt it had to be dead");
}
