//! Rows in every state, and the program's answers.

use serde_json::Value;

use crate::support::{TENANT, World, outbox};

/// What a command answered.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The ids of a list.
    pub fn ids(&self) -> Vec<i64> {
        self.json().as_array().unwrap().iter().map(|row| row["id"].as_i64().unwrap()).collect()
    }

    /// The lines of standard error that are about rows.
    pub fn refusals(&self) -> Vec<&str> {
        self.err.lines().filter(|line| line.starts_with("outbox: row ")).collect()
    }
}

/// Runs a command on the world's table.
pub fn run(world: &World, args: &[&str]) -> Answer {
    run_at(&world.url, args)
}

/// Runs a command on the table of a database.
pub fn run_at(url: &str, args: &[&str]) -> Answer {
    let (code, out, err) = outbox(&[&["--log", "warn"], args].concat(), Some(url));
    Answer { code, out, err }
}

/// A row in some state, made by SQL: what the relay would have left, without waiting for it.
pub struct Made<'a> {
    pub status: &'a str,
    pub endpoint: &'a str,
    pub set: &'a str,
}

impl Default for Made<'_> {
    fn default() -> Self {
        Self { status: "pending", endpoint: "https://billing.example/invoices", set: "" }
    }
}

impl Made<'_> {
    /// Inserts the row; `set` are further assignments.
    pub async fn insert(&self, world: &World, key: &str) -> i64 {
        let id = world.insert(key, self.endpoint, r#"{"amount": 1250, "rate": 1.10}"#).await;
        let usual = match self.status {
            "in_flight" => {
                "attempts = 1, claim_token = gen_random_uuid(), claimed_by = 'pod-1', locked_until = now() + interval '1 hour', \
                 next_attempt_at = now() + interval '1 hour', first_dispatch_at = now(), retry_since = now()"
            }
            "succeeded" => "attempts = 1, completed_at = now(), first_dispatch_at = now(), downstream_id = 'eff-1'",
            "dead" => {
                "attempts = 3, waits = 2, completed_at = now(), first_dispatch_at = now() - interval '2 hours', \
                 retry_since = now() - interval '2 hours', reason = 'rejected', last_http_status = 422, last_error = 'answered 422'"
            }
            "uncertain" => {
                "attempts = 2, unknown_attempts = 1, next_attempt_at = 'infinity', first_dispatch_at = now() - interval '2 hours', \
                 retry_since = now() - interval '2 hours', reason = 'timeout', last_error = 'no answer within 30 s'"
            }
            _ => "next_attempt_at = now() + interval '1 hour'",
        };
        let more = if self.set.is_empty() {
            String::new()
        } else {
            format!("; UPDATE agent_outbox SET {} WHERE id = {id}", self.set)
        };
        world
            .execute(&format!("UPDATE agent_outbox SET status = '{}', {usual} WHERE id = {id}{more}", self.status))
            .await;
        id
    }
}

/// A row in a state with what is usual there.
pub async fn row_in(world: &World, status: &str, key: &str) -> i64 {
    Made { status, ..Made::default() }.insert(world, key).await
}

/// One text of the row.
pub async fn text(world: &World, id: i64, expression: &str) -> Option<String> {
    let sql = format!("SELECT ({expression})::text FROM agent_outbox WHERE id = {id}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&world.pool).await.unwrap()
}

/// The history of a row, the last record first, as JSON objects of the columns.
pub async fn history(world: &World, id: i64) -> Vec<Value> {
    let sql = format!("SELECT to_jsonb(h)::text FROM agent_outbox_history AS h WHERE row_id = {id} ORDER BY h.id DESC");
    let records: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_all(&world.pool).await.unwrap();
    records.iter().map(|record| serde_json::from_str(record).unwrap()).collect()
}

/// Inserts so many dead rows at once.
pub async fn many_dead(world: &World, rows: usize) {
    world
        .execute(&format!(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload, status, attempts, completed_at, reason) \
             SELECT '{TENANT}', 'pay', 'e' || i, 'many-' || i, 'https://pay.example/', '{{}}', 'dead', 3, now(), 'exhausted' \
             FROM generate_series(1, {rows}) AS i"
        ))
        .await;
}
