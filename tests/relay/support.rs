//! A database of its own for each test, relay processes, and rows.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use outbox_operator::{
    demo::{PostgresOptions, ThrowawayPostgres},
    sandbox::Sandbox,
    store::{ConnectSettings, SslSettings, TableName, migrate},
};
use sqlx::{AssertSqlSafe, PgPool, Row, postgres::PgRow};

/// Longest wait for anything that should happen at once or after a lease of a few seconds, times five.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A tenant for rows.
pub const TENANT: &str = "6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11";

/// One server for all tests of this process; it ends with the process.
fn server() -> &'static ThrowawayPostgres {
    static SERVER: OnceLock<ThrowawayPostgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let server = runtime.block_on(ThrowawayPostgres::start(PostgresOptions::fast())).unwrap();
            // The server's watch belongs to this runtime, which lives as long as the process.
            std::mem::forget(runtime);
            server
        })
        .join()
        .unwrap()
    })
}

/// A database, a receiver and a folder for one test.
pub struct World {
    pub url: String,
    pub pool: PgPool,
    pub receiver: Sandbox,
    pub folder: tempfile::TempDir,
}

impl World {
    /// An empty database and a receiver.
    pub async fn empty() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let url = server().create_database(&name).await.unwrap();
        Self::on(url).await
    }

    /// A receiver beside a database that is there.
    pub async fn on(url: String) -> Self {
        let pool = PgPool::connect(&url).await.unwrap();
        let receiver = Sandbox::start_local().await.unwrap();
        Self { url, pool, receiver, folder: tempfile::tempdir().unwrap() }
    }

    /// The same world with new connections of its own, after the old ones were broken.
    pub async fn reconnected(self) -> Self {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match PgPool::connect(&self.url).await {
                Ok(pool) => return Self { pool, ..self },
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }

    /// The same with the table.
    pub async fn new() -> Self {
        let world = Self::empty().await;
        world.migrate().await;
        world
    }

    pub async fn migrate(&self) -> Vec<i32> {
        migrate::migrate(&self.connect_settings(), &table(), &|_| {}).await.unwrap()
    }

    pub fn connect_settings(&self) -> ConnectSettings {
        ConnectSettings {
            url: self.url.clone(),
            ssl: SslSettings::default(),
            max_connections: 2,
            application_name: "outbox test".to_owned(),
        }
    }

    /// Inserts a row as an application does: the published columns only.
    pub async fn insert(&self, key: &str, endpoint: &str, payload: &str) -> i64 {
        let row = sqlx::query(
            "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload) \
             VALUES ($1::uuid, 'create_invoice', $2, $2, $3, $4::jsonb) RETURNING id",
        )
        .bind(TENANT)
        .bind(key)
        .bind(endpoint)
        .bind(payload)
        .fetch_one(&self.pool)
        .await
        .unwrap();
        row.get("id")
    }

    /// Inserts a row for a script of the receiver.
    pub async fn insert_script(&self, key: &str, script: &str) -> i64 {
        self.insert(key, &self.receiver.url(script), r#"{"n": 1}"#).await
    }

    pub async fn row(&self, id: i64) -> Outbox {
        let sql = "SELECT *, payload::text AS text, next_attempt_at = 'infinity' AS parked, \
                   CASE WHEN isfinite(next_attempt_at) THEN extract(epoch FROM next_attempt_at - now())::float8 END AS due_in FROM agent_outbox WHERE id = $1";
        let row = sqlx::query(sql).bind(id).fetch_one(&self.pool).await.unwrap();
        Outbox::of(&row)
    }

    /// Waits until the row is as asked, and returns it.
    pub async fn row_when(&self, id: i64, what: &str, fits: impl Fn(&Outbox) -> bool) -> Outbox {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let row = self.row(id).await;
            if fits(&row) {
                return row;
            }
            assert!(Instant::now() < deadline, "row {id} never was {what}: {row:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until the row has ended or is parked.
    pub async fn ended(&self, id: i64) -> Outbox {
        self.row_when(id, "ended", Outbox::has_ended).await
    }

    /// Waits until every row has ended or is parked.
    pub async fn all_ended(&self) {
        self.wait_for(
            "all rows ended",
            "SELECT count(*) = 0 FROM agent_outbox WHERE status IN ('pending', 'in_flight') \
             OR (status = 'uncertain' AND next_attempt_at <> 'infinity')",
        )
        .await;
    }

    /// Waits until the statement says true.
    pub async fn wait_for(&self, what: &str, sql: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let there: bool = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.pool).await.unwrap();
            if there {
                return;
            }
            if Instant::now() > deadline {
                let rows: Vec<String> = sqlx::query_scalar("SELECT agent_outbox::text FROM agent_outbox LIMIT 5")
                    .fetch_all(&self.pool)
                    .await
                    .unwrap();
                panic!("{what}: never came true. {rows:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
    }

    pub async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.pool).await.unwrap()
    }

    /// Writes documents: a relay with these lines of spec, and a policy with those.
    pub fn documents(&self, relay: &str, policy: &str) -> PathBuf {
        let file = self.folder.path().join("relay.yaml");
        std::fs::write(&file, documents(relay, policy)).unwrap();
        file
    }

    /// A relay with quick settings: short waits, a deadline of 2 s, a lease of 5 s.
    pub async fn relay(&self) -> Relay {
        self.relay_with("", "").await
    }

    /// The same, with more lines of the relay's spec and the policy's.
    pub async fn relay_with(&self, relay: &str, policy: &str) -> Relay {
        let file = self.documents(relay, policy);
        let relay = Relay::start(&self.url, &file, &[]);
        relay.ready().await;
        relay
    }
}

/// The documents of a quick relay. Lines given take the place of those with the same name.
pub fn documents(relay: &str, policy: &str) -> String {
    let merge = |defaults: &[&str], given: &str| {
        let mut lines = String::new();
        let name = |line: &str| line.split(':').next().unwrap_or_default().trim().to_owned();
        let top: Vec<String> = given.lines().filter(|line| !line.starts_with([' ', '-'])).map(name).collect();
        for line in defaults.iter().filter(|line| !top.contains(&name(line))) {
            lines.extend(["  ", line, "\n"]);
        }
        for line in given.lines() {
            lines.extend(["  ", line, "\n"]);
        }
        lines
    };
    format!(
        "apiVersion: outbox-operator.dev/v1alpha1\nkind: OutboxRelay\nmetadata: {{name: test}}\nspec:\n{}---\n\
         apiVersion: outbox-operator.dev/v1alpha1\nkind: DispatchPolicy\nmetadata: {{name: quick}}\nspec:\n{}",
        merge(
            &[
                "database: {urlSecretRef: {name: db, key: uri}}",
                "policyRef: {name: quick}",
                "leaseDuration: 5s",
                "pollInterval: 50ms"
            ],
            relay
        ),
        merge(
            &[
                "timeouts: {connect: 1s, total: 2s}",
                "retry: {base: 50ms, cap: 200ms}",
                "egress: {allowCidrs: [\"127.0.0.0/8\"]}",
                "destination: {hold: {afterFailures: 1000, base: 100ms, cap: 1s}}"
            ],
            policy
        ),
    )
}

pub fn table() -> TableName {
    TableName::new("public", "agent_outbox")
}

/// What a test looks at of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Outbox {
    pub status: String,
    pub attempts: i32,
    pub waits: i32,
    pub unknown_attempts: i32,
    pub reason: Option<String>,
    pub last_error: Option<String>,
    pub http_status: Option<i32>,
    pub downstream_id: Option<String>,
    pub parked: bool,
    pub due_in: Option<f64>,
    pub payload: String,
    pub claimed_by: Option<String>,
}

impl Outbox {
    fn of(row: &PgRow) -> Self {
        Self {
            status: row.get("status"),
            attempts: row.get("attempts"),
            waits: row.get("waits"),
            unknown_attempts: row.get("unknown_attempts"),
            reason: row.get("reason"),
            last_error: row.get("last_error"),
            http_status: row.get("last_http_status"),
            downstream_id: row.get("downstream_id"),
            parked: row.get("parked"),
            due_in: row.try_get("due_in").ok(),
            payload: row.get("text"),
            claimed_by: row.get("claimed_by"),
        }
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "succeeded" | "dead" | "cancelled" | "superseded")
            || (self.status == "uncertain" && self.parked)
    }

    /// Status and reason, for tables.
    pub fn end(&self) -> (&str, Option<&str>) {
        (&self.status, self.reason.as_deref())
    }
}

/// A relay process.
pub struct Relay {
    child: Child,
    address: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl Relay {
    /// Starts `outbox relay` on a free port and waits until it says which.
    pub fn start(url: &str, file: &std::path::Path, more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_outbox"))
            .args(["relay", "--listen", "127.0.0.1:0", "-f"])
            .arg(file)
            .args(more)
            .env("DATABASE_URL", url)
            // A proxy that leads nowhere: none of the environment is ever used.
            .envs(["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"].map(|name| (name, "http://127.0.0.1:1")))
            .env_remove("NO_PROXY")
            .env_remove("no_proxy")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (found, address) = std::sync::mpsc::channel();
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // As text or as JSON.
                if let Some(address) = line.split("address=").nth(1).or(line.split("\"address\":\"").nth(1)) {
                    let _ = found.send(address.split([' ', '"']).next().unwrap().to_owned());
                }
                kept.lock().unwrap().push(line);
            }
        });
        let address = address
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("the relay never listened: {:?}", log.lock().unwrap()));
        Self { child, address, log }
    }

    pub async fn get(&self, path: &str) -> Option<(u16, String)> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let response = reqwest::get(format!("http://{}{path}", self.address)).await.ok()?;
        Some((response.status().as_u16(), response.text().await.ok()?))
    }

    /// Waits until `/readyz` answers 200.
    pub async fn ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.get("/readyz").await.is_none_or(|(status, _)| status != 200) {
            assert!(Instant::now() < deadline, "the relay never was ready: {:?}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A line of `/proc/PID/status` in bytes, such as `VmHWM`, the most that ever was resident.
    pub fn memory(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let found = status.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(':')).unwrap();
        found.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Sends a signal by name, as `kill` does.
    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    /// Waits until the process has ended.
    pub async fn wait(mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the relay did not end: {:?}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Tells it to stop and waits until it has.
    pub async fn stop(self) -> ExitStatus {
        self.signal("TERM");
        self.wait(PATIENCE).await
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `outbox` to its end: exit code, standard output, standard error.
pub fn outbox(args: &[&str], url: Option<&str>) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command.args(args).env_remove("DATABASE_URL").stdin(Stdio::null());
    if let Some(url) = url {
        command.env("DATABASE_URL", url);
    }
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}
