//! What was intended, what the table says, and what the receiver saw: compared row by row, request by request.

use std::collections::{BTreeMap, HashMap};

use outbox_operator::sandbox::{RequestRecord, Sandbox, sha256_hex};
use sqlx::{AssertSqlSafe, PgPool, Row};

use crate::support::TENANT;

/// How a row has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Succeeded,
    /// Dead with this reason, or parked where an attempt may have been executed.
    Dead(&'static str),
    /// In any way, as long as it ends.
    Any,
}

/// A row to be inserted.
#[derive(Clone, Debug)]
pub struct Intent {
    pub key: String,
    pub endpoint: String,
    pub payload: String,
    pub end: End,
}

/// A row as it is in the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub id: i64,
    pub key: String,
    pub body_sha256: String,
    pub status: String,
    pub reason: Option<String>,
    pub parked: bool,
    pub attempts: i32,
    pub unknown_attempts: i32,
    pub downstream_id: Option<String>,
}

impl Kept {
    pub fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "succeeded" | "dead") || (self.status == "uncertain" && self.parked)
    }
}

/// Inserts rows as an application does, a thousand at a time.
pub async fn insert(pool: &PgPool, intents: &[Intent]) {
    for some in intents.chunks(1000) {
        sqlx::query(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
             SELECT $1::uuid, 'create_invoice', key, key, endpoint, payload::jsonb \
             FROM unnest($2::text[], $3::text[], $4::text[]) AS new (key, endpoint, payload)",
        )
        .bind(TENANT)
        .bind(some.iter().map(|intent| intent.key.clone()).collect::<Vec<_>>())
        .bind(some.iter().map(|intent| intent.endpoint.clone()).collect::<Vec<_>>())
        .bind(some.iter().map(|intent| intent.payload.clone()).collect::<Vec<_>>())
        .execute(pool)
        .await
        .unwrap();
    }
}

/// The whole table by key.
pub async fn rows(pool: &PgPool) -> HashMap<String, Kept> {
    let sql = "SELECT id, idempotency_key, encode(sha256(convert_to(payload::text, 'UTF8')), 'hex') AS body, status, reason, \
               next_attempt_at = 'infinity' AS parked, attempts, unknown_attempts, downstream_id FROM agent_outbox";
    let rows = sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_all(pool).await.unwrap();
    let kept = |row: &sqlx::postgres::PgRow| Kept {
        id: row.get("id"),
        key: row.get("idempotency_key"),
        body_sha256: row.get("body"),
        status: row.get("status"),
        reason: row.get("reason"),
        parked: row.get("parked"),
        attempts: row.get("attempts"),
        unknown_attempts: row.get("unknown_attempts"),
        downstream_id: row.get("downstream_id"),
    };
    rows.iter().map(kept).map(|row| (row.key.clone(), row)).collect()
}

/// What must be 0, and what came of the rows.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// Rows that are gone, have not ended, ended otherwise than they had to, or differ from what the receiver did.
    pub lost: Vec<String>,
    /// Effects beyond one per key.
    pub doubled: Vec<String>,
    /// Keys and bodies that are not those of the insert, in the table or on the wire.
    pub changed: Vec<String>,
    /// Rows by state and reason.
    pub ends: BTreeMap<String, usize>,
    pub requests: usize,
    pub effects: usize,
}

impl Census {
    /// Compares what is in the table with what was inserted and with what the receiver saw.
    pub fn take(
        intents: &[Intent],
        before: &HashMap<String, Kept>,
        after: &HashMap<String, Kept>,
        receiver: &Sandbox,
    ) -> Self {
        let ledger = receiver.ledger();
        let counts = ledger.counts();
        assert_eq!((counts.dropped_requests, counts.dropped_effects), (0, 0), "the receiver remembers all of it");
        let mut census = Self { requests: ledger.requests().len(), ..Self::default() };
        let mut effects: HashMap<String, Vec<String>> = HashMap::new();
        for effect in ledger.effects() {
            census.effects += 1;
            effects.entry(effect.key.unwrap_or_default()).or_default().push(effect.id);
        }
        for intent in intents {
            let made = effects.get(&intent.key).map(Vec::as_slice).unwrap_or_default();
            match (before.get(&intent.key), after.get(&intent.key)) {
                (Some(before), Some(after)) => census.row(intent, before, after, made),
                _ => census.lost.push(format!("{}: not in the table", intent.key)),
            }
        }
        for request in ledger.requests() {
            census.request(&request, before);
        }
        census
    }

    fn row(&mut self, intent: &Intent, before: &Kept, after: &Kept, effects: &[String]) {
        let reason = after.reason.as_deref().unwrap_or("-");
        let parked = if after.status == "uncertain" && after.parked { ", parked" } else { "" };
        *self.ends.entry(format!("{}{parked} ({reason})", after.status)).or_default() += 1;
        if (before.id, &before.body_sha256) != (after.id, &after.body_sha256) {
            self.changed.push(format!("{}: the row was {before:?} and is {after:?}", intent.key));
        }
        if effects.len() > 1 {
            self.doubled.push(format!("{}: {effects:?}", intent.key));
        }
        let as_it_had_to = match intent.end {
            _ if !after.has_ended() => false,
            End::Any => true,
            End::Succeeded => after.status == "succeeded",
            End::Dead(reason) => {
                let parked = after.status == "uncertain" && after.unknown_attempts > 0;
                (after.status == "dead" && after.reason.as_deref() == Some(reason)) || parked
            }
        };
        // Of a dead row nothing was executed, and of one that succeeded the receiver has the effect that it names.
        let agrees = match after.status.as_str() {
            "succeeded" => after.downstream_id.as_ref().is_none_or(|id| effects.contains(id)) && !effects.is_empty(),
            "dead" => effects.is_empty(),
            _ => true,
        };
        if !as_it_had_to || !agrees {
            self.lost.push(format!("{} ({}): {after:?}, effects {effects:?}", intent.key, intent.endpoint));
        }
    }

    fn request(&mut self, request: &RequestRecord, before: &HashMap<String, Kept>) {
        match request.key.as_ref().and_then(|key| before.get(key)) {
            None => self.changed.push(format!("request {} carried the key {:?}", request.number, request.key)),
            // A request that broke off has no whole body, and made no effect.
            Some(row) if request.body_sha256.as_ref().is_some_and(|sent| *sent != row.body_sha256) => {
                self.changed.push(format!("request {} did not carry the body of {}", request.number, row.key));
            }
            Some(_) => {}
        }
    }

    /// Fails with the first of what must not be.
    pub fn assert_whole(&self, what: &str) {
        let first = |of: &[String]| of.iter().take(5).cloned().collect::<Vec<_>>().join("\n  ");
        assert!(
            self.lost.is_empty() && self.doubled.is_empty() && self.changed.is_empty(),
            "{what}: lost {}\n  {}\ndoubled {}\n  {}\nchanged {}\n  {}",
            self.lost.len(),
            first(&self.lost),
            self.doubled.len(),
            first(&self.doubled),
            self.changed.len(),
            first(&self.changed),
        );
    }

    /// The states, in words.
    pub fn ends(&self) -> String {
        self.ends.iter().map(|(end, count)| format!("{count} {end}")).collect::<Vec<_>>().join(", ")
    }
}

/// A payload of its own for each row, with numbers that no parser may touch.
pub fn payload(number: usize) -> String {
    format!(
        r#"{{"n": {number}, "big": 12345678901234567890{number:06}, "price": 1.10, "text": "{}"}}"#,
        sha256_hex(&number.to_be_bytes())
    )
}
