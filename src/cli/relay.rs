//! `outbox relay`: one relay.

use std::{process::ExitCode, sync::Arc, time::Duration};

use clap::Args;
use prometheus_client::registry::Registry;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    Error, INVALID,
    database::{self, DatabaseArgs, Role},
    documents::{self, FileArgs, SecretsArgs},
    signal,
};
use crate::{
    api::OutboxRelay,
    domain::settings::{NamedPolicy, PreDispatch, RelaySettings},
    http::Sender,
    relay::{self, Relay, Senders},
    spec,
    store::{self, ConnectSettings, Db, Preflight, Registered, StoreError, TableName, migrate},
    telemetry::{log_limit::LogLimit, relay_metrics::RelayMetrics, server},
};

/// Pause between two looks at a database or table that is not ready yet.
const PREFLIGHT_PAUSE: Duration = Duration::from_secs(1);
/// While waiting: one line at once, then one per this time.
const LOG_EVERY: Duration = Duration::from_secs(20);

/// Run one relay: claim due rows, send each over HTTP, record what became of it.
#[derive(Debug, Args)]
pub struct RelayArgs {
    #[command(flatten)]
    files: FileArgs,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    secrets: SecretsArgs,
    /// Which OutboxRelay to run, where the files hold several.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where /metrics, /healthz and /readyz are served.
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS")]
    listen: String,
    /// Who this worker is, in the table and in pg_stat_activity; unset: the pod's or host's name and the process.
    #[arg(long, env = "OUTBOX_WORKER", value_name = "NAME")]
    worker: Option<String>,
}

/// A relay, ready to connect.
struct Resolved {
    settings: RelaySettings,
    table: TableName,
    connect: ConnectSettings,
    migrate: ConnectSettings,
    senders: Senders,
}

impl RelayArgs {
    /// Runs until SIGTERM or SIGINT.
    pub async fn run(self) -> Result<ExitCode, Error> {
        let resolved = match self.resolve() {
            Ok(resolved) => resolved,
            Err(code) => return Ok(code),
        };
        let stop = signal::on_stop()?;
        let mut registry = Registry::default();
        let metrics = Arc::new(RelayMetrics::register(&mut registry));
        let (ready, readiness) = watch::channel(Err("starting".to_owned()));
        let listener =
            TcpListener::bind(&self.listen).await.map_err(|error| format!("listen on {}: {error}", self.listen))?;
        tracing::info!(address = %listener.local_addr()?, relay = resolved.settings.name, "serving /metrics, /healthz and /readyz");
        let server_stop = CancellationToken::new();
        let server = tokio::spawn(server::serve(listener, Arc::new(registry), readiness, server_stop.clone()));

        let db = Db::connect_lazy(&resolved.connect)?;
        if prepare(&resolved, &db, &ready, &stop).await? {
            let worker = self.worker.unwrap_or_else(worker_name);
            let relay = Relay {
                db,
                table: resolved.table,
                settings: resolved.settings,
                worker,
                senders: resolved.senders,
                metrics,
            };
            if let Some(refusal) = register(&relay, &ready, &stop).await? {
                eprintln!("outbox: {refusal}");
                return Ok(ExitCode::from(INVALID));
            }
            Box::pin(relay::run(relay, ready, stop)).await;
        }
        // The last scrape sees the last counts: the server goes last.
        server_stop.cancel();
        server.await??;
        tracing::info!("stopped");
        Ok(ExitCode::SUCCESS)
    }

    fn resolve(&self) -> Result<Resolved, ExitCode> {
        let invalid = ExitCode::from(INVALID);
        let refuse = |message: String| {
            eprintln!("outbox: {message}");
            invalid
        };
        let documents = self.files.read().map_err(|problems| {
            documents::show(&problems);
            invalid
        })?;
        let relay = choose(&documents.relays, self.name.as_deref()).map_err(refuse)?;
        let settings = spec::resolve(relay, &documents.policies).map_err(|problems| {
            documents::show(&problems);
            invalid
        })?;
        let database = &relay.spec.database;
        let of = |role| database::settings(database, &self.database, &self.secrets, role);
        let connect = of(Role::Relay).map_err(refuse)?;
        // Only a relay that migrates by itself needs the other connection's secret.
        let migrate = if settings.migrate { of(Role::Migration).map_err(refuse)? } else { connect.clone() };
        let sender = |named: &NamedPolicy| {
            let credentials = self.secrets.credentials(&named.policy).map_err(refuse)?;
            Sender::new(named.policy.clone(), credentials).map_err(|error| refuse(error.to_string()))
        };
        let senders = Senders {
            own: sender(&settings.policies.own)?,
            others: settings.policies.others.iter().map(sender).collect::<Result<_, _>>()?,
        };
        Ok(Resolved { table: database::table(database), settings, connect, migrate, senders })
    }
}

fn choose<'a>(relays: &'a [OutboxRelay], name: Option<&str>) -> Result<&'a OutboxRelay, String> {
    match (relays, name) {
        ([], _) => Err("the files hold no OutboxRelay".to_owned()),
        (all, Some(name)) => all
            .iter()
            .find(|relay| relay.metadata.name.as_deref() == Some(name))
            .ok_or_else(|| format!("the files hold no OutboxRelay {name:?}")),
        ([one], None) => Ok(one),
        (all, None) => Err(format!("the files hold {} OutboxRelays: say which by --name", all.len())),
    }
}

/// Waits until database and table are ready, migrating where that is the relay's own to do. `false`: told to stop.
async fn prepare(
    resolved: &Resolved,
    db: &Db,
    ready: &watch::Sender<Result<(), String>>,
    stop: &CancellationToken,
) -> Result<bool, StoreError> {
    let mut log = LogLimit::new(LOG_EVERY);
    loop {
        let looked = look(resolved, db).await;
        let why = match looked {
            Ok(Preflight::Ready) => return Ok(true),
            Ok(Preflight::SchemaOld { found: None }) => {
                format!("{} is not migrated: run `outbox migrate`", resolved.table.qualified())
            }
            Ok(Preflight::SchemaOld { found: Some(found) }) => format!(
                "{} is at version {found} and {} is needed: run `outbox migrate`",
                resolved.table.qualified(),
                migrate::LATEST
            ),
            Err(StoreError::Unready(why)) => why,
            Err(error @ (StoreError::Preflight(_) | StoreError::Settings(_))) => return Err(error),
            Err(error) => error.to_string(),
        };
        if let Some(held_back) = log.pass(std::time::Instant::now()) {
            tracing::warn!(held_back, "not ready: {why}");
        }
        let _ = ready.send_replace(Err(why));
        tokio::select! {
            () = stop.cancelled() => return Ok(false),
            () = tokio::time::sleep(PREFLIGHT_PAUSE) => {}
        }
    }
}

/// Registers the relay as one that serves the table, and says why where it may not.
async fn register(
    relay: &Relay,
    ready: &watch::Sender<Result<(), String>>,
    stop: &CancellationToken,
) -> Result<Option<String>, StoreError> {
    let tenants: Vec<Uuid> = relay.settings.tenants.iter().filter_map(|text| Uuid::parse_str(text).ok()).collect();
    loop {
        match store::register(&relay.db, &relay.table, &relay.registration(&tenants)).await {
            Ok(Registered::Alone) => return Ok(None),
            Ok(Registered::Overlaps { relay: other }) => {
                return Ok(Some(format!(
                    "relay {other} serves rows of the same tenants in {} already: give each relay tenants of its own (spec.tenants), or stop that one; a relay that was killed counts for 30 s more",
                    relay.table.qualified()
                )));
            }
            Err(error) if !error.is_transient() => return Err(error),
            Err(error) => _ = ready.send_replace(Err(error.to_string())),
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(PREFLIGHT_PAUSE) => {}
        }
    }
}

async fn look(resolved: &Resolved, db: &Db) -> Result<Preflight, StoreError> {
    let mut found = store::preflight(db, &resolved.table, &resolved.settings.retention).await?;
    if found != Preflight::Ready && resolved.settings.migrate {
        migrate::migrate(&resolved.migrate, &resolved.table, &|line| tracing::info!("{line}")).await?;
        found = store::preflight(db, &resolved.table, &resolved.settings.retention).await?;
    }
    if found == Preflight::Ready {
        for named in resolved.settings.policies.iter() {
            if let Some(PreDispatch::SqlFunction(function)) = &named.policy.pre_dispatch {
                store::find_function(db, function).await?;
            }
        }
    }
    Ok(found)
}

/// The pod's or host's name and the process: unique among workers that live at one time.
fn worker_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    format!("{}-{}", if host.is_empty() { "relay" } else { host }, std::process::id())
}
