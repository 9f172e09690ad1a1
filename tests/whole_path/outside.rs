//! What lies outside of the cluster: a PostgreSQL and a receiver on this machine, where pods reach them.

use std::{
    fs::{self, Permissions},
    net::{IpAddr, Ipv4Addr, TcpListener},
    os::unix::fs::PermissionsExt as _,
};

use outbox_operator::{
    demo::{PostgresOptions, ThrowawayPostgres},
    sandbox::{RequestRecord, Sandbox},
};
use sqlx::{AssertSqlSafe, PgPool, Row as _, postgres::PgRow};

/// Names the address at which the pods of another cluster than the project's reach this machine.
const HOST_VARIABLE: &str = "OUTBOX_TEST_HOST";
/// Where pods of hack/cluster reach it.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 0, 1));
/// The relay's role, which owns the database. Its password keeps out whoever else reaches this machine.
const PASSWORD: &str = "whole-path";

const INSERT: &str = "\
INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, payload)
SELECT '6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11', 'create_invoice', 'inv-' || n, $1 || '-' || n,
       endpoints[1 + n % cardinality(endpoints)] || '/inv-' || n,
       jsonb_build_object('invoice', 'inv-' || n, 'amount', n / 100.0, 'customer', 'Größe & Söhne')
FROM (SELECT $2::text[] AS endpoints) AS receiver, generate_series(1, $3) AS n";

const SELECT: &str = "\
SELECT idempotency_key, status, reason, attempts, downstream_id, payload::text AS payload
FROM agent_outbox WHERE starts_with(idempotency_key, $1) ORDER BY id";

/// PostgreSQL and the receiver.
pub struct Outside {
    /// Records what relays send.
    pub receiver: Sandbox,
    postgres: ThrowawayPostgres,
    pool: PgPool,
    host: IpAddr,
    /// Holds the file that says who may connect.
    _access: tempfile::TempDir,
}

/// A row, by the columns that matter here.
#[derive(Debug)]
pub struct Row {
    pub key: String,
    pub status: String,
    pub reason: Option<String>,
    pub attempts: i32,
    pub downstream_id: Option<String>,
    /// Exactly what has to be sent.
    pub payload: String,
}

impl Row {
    /// Whether nothing more happens to it.
    pub fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "succeeded" | "dead")
    }

    fn of(row: &PgRow) -> Self {
        Self {
            key: row.get("idempotency_key"),
            status: row.get("status"),
            reason: row.get("reason"),
            attempts: row.get("attempts"),
            downstream_id: row.get("downstream_id"),
            payload: row.get("payload"),
        }
    }
}

impl Outside {
    /// Starts both. `None`, and says so, where no pod could reach this machine.
    pub async fn set() -> Option<Self> {
        let host = std::env::var(HOST_VARIABLE).map_or(HOST, |host| host.parse().unwrap());
        if let Err(error) = TcpListener::bind((host, 0)) {
            eprintln!(
                "SKIPPED: {host} is no address of this machine ({error}); where pods reach it, say by {HOST_VARIABLE}"
            );
            return None;
        }
        let access = tempfile::tempdir().unwrap();
        let rules = access.path().join("pg_hba.conf");
        fs::write(&rules, "host all all 127.0.0.1/32 trust\nhost application relay all scram-sha-256\n").unwrap();
        // The server runs as a user of its own.
        fs::set_permissions(access.path(), Permissions::from_mode(0o755)).unwrap();
        let settings = [("listen_addresses", format!("127.0.0.1,{host}")), ("hba_file", rules.display().to_string())];
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let postgres = ThrowawayPostgres::start(PostgresOptions { settings, ..PostgresOptions::fast() }).await.unwrap();
        let pool = PgPool::connect(&postgres.create_database("application").await.unwrap()).await.unwrap();
        let role = format!("CREATE ROLE relay LOGIN PASSWORD '{PASSWORD}'; ALTER DATABASE application OWNER TO relay");
        sqlx::raw_sql(AssertSqlSafe(role)).execute(&pool).await.unwrap();
        let receiver = Sandbox::start((host, 0).into()).await.unwrap();
        Some(Self { receiver, postgres, pool, host, _access: access })
    }

    /// The database as pods reach it.
    pub fn url_for_pods(&self) -> String {
        format!("postgres://relay:{PASSWORD}@{}:{}/application", self.host, self.postgres.port())
    }

    /// Inserts rows as an application does: the published columns alone. Their keys are `<keys>-<n>`; `shares` says how
    /// many of ten rows meet which script of the receiver.
    pub async fn insert(&self, keys: &str, rows: i32, shares: &[(usize, &str)]) {
        let endpoints: Vec<String> =
            shares.iter().flat_map(|(share, script)| vec![self.receiver.url(script); *share]).collect();
        sqlx::query(INSERT).bind(keys).bind(endpoints).bind(rows).execute(&self.pool).await.unwrap();
    }

    /// The rows whose keys begin like this.
    pub async fn rows(&self, keys: &str) -> Vec<Row> {
        sqlx::query(SELECT).bind(keys).fetch_all(&self.pool).await.unwrap().iter().map(Row::of).collect()
    }

    /// The requests that the receiver saw of a key.
    pub fn requests_of(&self, key: &str) -> Vec<RequestRecord> {
        self.receiver.ledger().requests_of(key)
    }

    /// Ends both.
    pub async fn clean_up(self) {
        self.pool.close().await;
        self.receiver.shutdown().await;
        self.postgres.remove().await;
    }
}
