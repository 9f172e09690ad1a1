//! The model's table against the real one: the same random acts on both, and every row compared after each.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::Debug,
    time::Duration,
};

use outbox_operator::{
    demo::{PostgresOptions, ThrowawayPostgres},
    domain::{
        judge::{Answer, Observation, judge},
        routing::Routing,
        row::{Reason, RowFacts, Status},
        settings::Policy,
        transition::{self, Plan, Settlement},
    },
    store::{
        self, Caps, ClaimPolicy, ClaimRequest, Claimed, ConnectSettings, Db, Position, SettleRow, Signals, SslSettings,
        TableName, migrate,
        people::{self, Replay, Resolution, Selection, Signature},
    },
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};
use sqlx::{PgPool, Row as _};

use super::{
    full,
    setup::policy,
    table::{Facts, Next, Row, TICK, Token, Word},
};

/// `idempotency.window` in ticks.
const WINDOW: u8 = 3;
/// The rows' ids, in the order of the model's rows.
const IDS: [i64; 4] = [1, 2, 3, 4];

#[derive(Clone, Copy, Debug)]
enum Step {
    Tick,
    Claim {
        limit: usize,
        lease: u8,
    },
    /// `claim` chooses among all that were ever made, the lost and the settled included.
    Renew {
        claim: usize,
        lease: u8,
    },
    Release {
        claim: usize,
    },
    Attempt {
        claim: usize,
        seen: usize,
    },
    Replay {
        row: usize,
    },
    Resolve {
        row: usize,
        word: Word,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let word = prop_oneof![Just(Word::Succeeded), Just(Word::Retry), Just(Word::Dead)];
    let step = prop_oneof![
        4 => Just(Step::Tick),
        6 => (1..=4_usize, 0..=2_u8).prop_map(|(limit, lease)| Step::Claim { limit, lease }),
        2 => (any::<usize>(), 0..=2_u8).prop_map(|(claim, lease)| Step::Renew { claim, lease }),
        1 => any::<usize>().prop_map(|claim| Step::Release { claim }),
        6 => (any::<usize>(), any::<usize>()).prop_map(|(claim, seen)| Step::Attempt { claim, seen }),
        1 => (0..IDS.len()).prop_map(|row| Step::Replay { row }),
        1 => (0..IDS.len(), word).prop_map(|(row, word)| Step::Resolve { row, word }),
    ];
    prop::collection::vec(step, 20..80)
}

/// Everything an attempt can come back with.
fn observations() -> Vec<Observation> {
    let text = String::new;
    let mut all: Vec<_> = [200, 302, 401, 408, 409, 422, 429, 500, 503]
        .into_iter()
        .flat_map(|status| [None, Some(TICK)].map(|retry_after| Answer { status, retry_after, ..Answer::default() }))
        .map(Observation::Answer)
        .collect();
    all.push(Observation::NotExecuted { reason: Reason::CONNECT, detail: text() });
    all.push(Observation::Unknown { reason: Reason::TIMEOUT, detail: text() });
    all.push(Observation::NotBuilt { reason: Reason::INVALID, detail: text() });
    all
}

/// A claim that somebody made, and still believes in for all the table knows.
struct Held {
    row: usize,
    real: Claimed,
    token: Token,
    facts: Facts,
    elapsed: u8,
}

struct World {
    pool: PgPool,
    db: Db,
    policy: Policy,
    rows: Vec<Row>,
    held: Vec<Held>,
    claims: Token,
}

#[test]
fn the_models_table_is_the_real_one() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (server, pool, db) = runtime.block_on(async {
        let server = ThrowawayPostgres::start(PostgresOptions::fast()).await.unwrap();
        let url = server.create_database("model").await.unwrap();
        let settings = ConnectSettings {
            url: url.clone(),
            ssl: SslSettings::default(),
            max_connections: 2,
            application_name: "outbox test".to_owned(),
        };
        migrate::migrate(&settings, &table(), &|_| {}).await.unwrap();
        (server, PgPool::connect(&url).await.unwrap(), Db::connect_lazy(&settings).unwrap())
    });
    let cases = if full() { 400 } else { 40 };
    // A failure prints the shortest sequence that fails, which is all that is needed to run it again.
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&(any::<bool>(), steps()), |(enforced, steps)| {
        runtime
            .block_on(async {
                let mut world = World::new(&pool, &db, enforced).await;
                for step in steps {
                    world.step(step).await.map_err(|difference| format!("after {step:?}: {difference}"))?;
                }
                Ok(())
            })
            .map_err(|difference: String| TestCaseError::fail(difference))
    });
    runtime.block_on(server.remove());
    outcome.unwrap();
}

fn table() -> TableName {
    TableName::new("public", "agent_outbox")
}

fn same<T: PartialEq + Debug>(what: &str, model: &T, real: &T) -> Result<(), String> {
    if model == real { Ok(()) } else { Err(format!("{what}: the model has {model:?}, the table {real:?}")) }
}

impl World {
    /// Four rows: a plain one, one whose authority ends, one that a relay of the old pattern holds, and one from before
    /// destinations were kept.
    async fn new(pool: &PgPool, db: &Db, enforced: bool) -> Self {
        for sql in [
            "TRUNCATE agent_outbox",
            "INSERT INTO agent_outbox (id, tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
             SELECT n, gen_random_uuid(), 'o', 'e', 'key ' || n, 'https://x.test/', '{}' FROM generate_series(1, 4) AS n",
            "UPDATE agent_outbox SET expires_at = now() + interval '2 hours' WHERE id = 2",
            "UPDATE agent_outbox SET status = 'in_flight', locked_until = now() + interval '1 hour', attempts = 1 \
             WHERE id = 3",
            "UPDATE agent_outbox SET destination = NULL WHERE id = 4",
        ] {
            sqlx::query(sql).execute(pool).await.unwrap();
        }
        let mut rows = vec![Row::inserted(None), Row::inserted(Some(2)), Row::inserted(None), Row::inserted(None)];
        rows[2] = Row { status: Status::InFlight, locked: Some(1), attempts: 1, ..Row::inserted(None) };
        let policy = policy(enforced, Some(WINDOW), 3, 4);
        Self { pool: pool.clone(), db: db.clone(), policy, rows, held: Vec::new(), claims: 0 }
    }

    async fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Tick => self.tick().await,
            Step::Claim { limit, lease } => self.claim(limit, lease).await?,
            Step::Renew { claim, lease } => self.renew(claim, lease).await?,
            Step::Release { claim } => {
                let settlement =
                    self.chosen(claim).map(|held| transition::release(&self.policy, &held.facts.to_domain()));
                self.settle(claim, settlement).await?;
            }
            Step::Attempt { claim, seen } => {
                let settlement = self.chosen(claim).map(|held| attempt(&self.policy, held, seen));
                self.settle(claim, settlement).await?;
            }
            Step::Replay { row } => {
                let how = Replay { key_window: self.policy.key_window, ..Replay::default() };
                let (table, selection, signature) = (table(), Selection::Ids(vec![IDS[row]]), Signature::default());
                let done = people::replay(&self.db, &table, &selection, &signature, &how, &|_, _| {}).await.unwrap();
                same("replayed", &self.rows[row].replay(Some(WINDOW)), &!done.moved.is_empty())?;
            }
            Step::Resolve { row, word } => {
                let resolution = match word {
                    Word::Succeeded => Resolution::Succeeded { downstream_id: None },
                    Word::Retry => Resolution::Retry,
                    Word::Dead => Resolution::Dead,
                };
                let (table, selection, signature) = (table(), Selection::Ids(vec![IDS[row]]), Signature::default());
                let done = people::resolve(&self.db, &table, &selection, &signature, &resolution, &|_, _| {});
                same("resolved", &self.rows[row].resolve(word), &!done.await.unwrap().moved.is_empty())?;
            }
        }
        self.compare().await
    }

    /// A claim, later ones more often: the earlier a claim, the surer it is lost.
    fn chosen(&self, claim: usize) -> Option<&Held> {
        let claims = self.held.len();
        (claims > 0).then(|| &self.held[claims - 1 - (claim % claims).min(claim / 7 % claims)])
    }

    /// A tick of the database's clock is every instant an hour earlier.
    async fn tick(&mut self) {
        sqlx::query(
            "UPDATE agent_outbox SET next_attempt_at = next_attempt_at - interval '1 hour', \
             locked_until = locked_until - interval '1 hour', retry_since = retry_since - interval '1 hour', \
             first_dispatch_at = first_dispatch_at - interval '1 hour', expires_at = expires_at - interval '1 hour', \
             created_at = created_at - interval '1 hour', completed_at = completed_at - interval '1 hour'",
        )
        .execute(&self.pool)
        .await
        .unwrap();
        self.rows.iter_mut().for_each(Row::tick);
        self.held.iter_mut().for_each(|held| held.elapsed += 1);
    }

    async fn claim(&mut self, limit: usize, lease: u8) -> Result<(), String> {
        let request = ClaimRequest {
            tenants: &[],
            limit,
            most_in_hand: usize::MAX,
            in_hand: &HashMap::new(),
            policies: &[ClaimPolicy { scope: "model", caps: Caps::default(), ordering: None }],
            routing: &Routing::default(),
            worker: "model",
            small_payload: Some(1024),
            lease: TICK * lease.into(),
        };
        let claimed =
            store::claim(&self.db, &table(), &request, &mut Position::new(Duration::ZERO)).await.unwrap().rows;
        // Rows of a destination and rows of none have a share each of up to the limit.
        let claimable = |rows: &[usize]| rows.iter().filter(|row| self.rows[**row].claimable()).count().min(limit);
        same("rows claimed", &(claimable(&[0, 1, 2]) + claimable(&[3])), &claimed.len())?;
        self.claims += 1;
        for real in claimed {
            let row = IDS.iter().position(|id| *id == real.id).unwrap();
            same(&format!("row {row} may be claimed"), &self.rows[row].claimable(), &true)?;
            let facts = self.rows[row].claim(self.claims, lease);
            same("facts", &facts.to_domain(), &whole(&real.facts))?;
            self.held.push(Held { row, real, token: self.claims, facts, elapsed: 0 });
        }
        Ok(())
    }

    async fn renew(&mut self, claim: usize, lease: u8) -> Result<(), String> {
        let Some(held) = self.chosen(claim) else { return Ok(()) };
        let (row, token) = (held.row, held.token);
        let rows = [(IDS[row], held.real.token)];
        let renewed = store::renew(&self.db, &table(), &rows, TICK * lease.into()).await.unwrap();
        same("renewed", &self.rows[row].renew(token, lease), &!renewed.is_empty())
    }

    async fn settle(&mut self, claim: usize, settlement: Option<Settlement>) -> Result<(), String> {
        let (Some(held), Some(settlement)) = (self.chosen(claim), settlement) else { return Ok(()) };
        let (row, token) = (held.row, held.token);
        let settle = SettleRow {
            id: IDS[row],
            token: held.real.token,
            settlement: settlement.clone(),
            last_error: None,
            http_status: None,
            record: None,
        };
        let signals = [Signals { scope: "model", policy: self.policy.hold, seen: BTreeMap::new() }];
        let settled: HashSet<i64> = store::settle(&self.db, &table(), "model", &[settle], &signals).await.unwrap();
        same("settled", &self.rows[row].settle(token, &settlement.into()), &!settled.is_empty())
    }

    async fn compare(&self) -> Result<(), String> {
        let real = sqlx::query(
            "SELECT *, extract(epoch FROM locked_until - now())::float8 AS locked, \
             CASE WHEN isfinite(next_attempt_at) THEN extract(epoch FROM next_attempt_at - now())::float8 END AS next, \
             extract(epoch FROM now() - retry_since)::float8 AS retry_age, \
             extract(epoch FROM now() - first_dispatch_at)::float8 AS dispatch_age, \
             extract(epoch FROM expires_at - now())::float8 AS expires \
             FROM agent_outbox ORDER BY id",
        )
        .fetch_all(&self.pool)
        .await
        .unwrap();
        for (row, (model, real)) in self.rows.iter().zip(&real).enumerate() {
            let known = |token| self.held.iter().find(|held| held.real.token == token).map(|held| held.token);
            let count = |name: &str| u8::try_from(real.get::<i32, _>(name)).unwrap();
            let span = |name: &str| real.get::<Option<f64>, _>(name).map(ticks);
            let found = Row {
                status: Status::parse(real.get("status")).unwrap(),
                attempts: count("attempts"),
                waits: count("waits"),
                unknown_attempts: count("unknown_attempts"),
                next_attempt: span("next").map_or(Next::Never, Next::In),
                locked: span("locked"),
                token: real.get::<Option<uuid::Uuid>, _>("claim_token").map(|token| known(token).unwrap()),
                retry_since: span("retry_age"),
                first_dispatch: span("dispatch_age"),
                answered_5xx: real.get("answered_5xx"),
                expires: span("expires"),
                reason: real.get::<Option<String>, _>("reason").map(Reason::custom),
            };
            same(&format!("row {row}"), model, &found)?;
        }
        Ok(())
    }
}

/// What the relay would write after an attempt that came back so.
fn attempt(policy: &Policy, held: &Held, seen: usize) -> Settlement {
    let observations = observations();
    let seen = &observations[seen % observations.len()];
    let since = TICK * held.elapsed.into();
    let facts = held.facts.to_domain();
    let waited = RowFacts { dispatch_age: facts.dispatch_age + since, ..facts };
    match transition::before_send(policy, &waited) {
        Plan::Settle(settlement) => settlement,
        Plan::Ask => unreachable!("no policy of the model asks"),
        Plan::Send => {
            let facts = RowFacts { retry_age: waited.retry_age + since, ..waited };
            transition::after_attempt(policy, &facts, seen, &judge(policy, &facts, seen), 0.0)
        }
    }
}

/// Seconds in whole ticks: a test is far shorter than half of one. What is over is over.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few hours, and not negative")]
fn ticks(seconds: f64) -> u8 {
    (seconds / TICK.as_secs_f64()).round().max(0.0) as u8
}

/// Facts with their ages in whole ticks.
fn whole(facts: &RowFacts) -> RowFacts {
    let age = |age: Duration| TICK * ticks(age.as_secs_f64()).into();
    RowFacts {
        retry_age: age(facts.retry_age),
        dispatch_age: age(facts.dispatch_age),
        waits: 0,
        since_last_send: Duration::ZERO,
        ..facts.clone()
    }
}
