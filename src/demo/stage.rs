//! Everything that the story runs on, and that has to be gone afterwards.

use std::{
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    pin::pin,
    time::Duration,
};

use sqlx::{PgPool, postgres::PgPoolOptions};

use super::{
    error::{StoryError, sql, system},
    plan::OPERATIONS,
    postgres::{PostgresOptions, ThrowawayPostgres},
    progress::Progress,
    relays::{Program, RelayProcess},
    rows::{self, Tally},
};
use crate::sandbox::{Ledger, Sandbox};

/// Between two looks at the table: it has no way to tell us that rows have ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// From a relay's start to its first claim, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// Lines of a log that an error shows.
const LOG_LINES: usize = 15;

/// PostgreSQL, receiver and relays.
pub(super) struct Stage {
    /// The application's connections.
    pub pool: PgPool,
    postgres: ThrowawayPostgres,
    receiver: Sandbox,
    receivers: [SocketAddr; OPERATIONS.len()],
    program: Program,
    relays: Vec<RelayProcess>,
}

impl Stage {
    /// Starts PostgreSQL and the receiver; documents and logs go to `directory`, and stay there if `keep` says so.
    ///
    /// # Errors
    ///
    /// Whatever keeps them from starting.
    pub async fn set(exe: &Path, directory: &Path, keep: bool) -> Result<Self, StoryError> {
        let postgres = ThrowawayPostgres::start(PostgresOptions::default()).await?;
        let database_url = postgres.create_database("application").await?;
        let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let mut receiver = Sandbox::start(any).await?;
        let receivers = [receiver.addr(), receiver.listen(any).await?, receiver.listen(any).await?];
        let pool = PgPoolOptions::new().max_connections(2).connect(&database_url).await.map_err(sql("connect"))?;
        let program = Program { exe: exe.to_owned(), directory: directory.to_owned(), database_url, keep };
        Ok(Self { pool, postgres, receiver, receivers, program, relays: Vec::new() })
    }

    /// Ends everything, in the order in which nobody misses anybody.
    pub async fn clear(self) {
        for relay in self.relays {
            relay.finish().await;
        }
        self.pool.close().await;
        self.receiver.shutdown().await;
        self.postgres.remove().await;
    }

    /// What the receiver has seen.
    pub fn ledger(&self) -> &Ledger {
        self.receiver.ledger()
    }

    /// The receiver's addresses, one an operation.
    pub fn receivers(&self) -> [SocketAddr; OPERATIONS.len()] {
        self.receivers
    }

    /// Runs `outbox migrate`.
    ///
    /// # Errors
    ///
    /// With the end of its output.
    pub async fn migrate(&self) -> Result<(), StoryError> {
        let migrated = self.program.migrate().await;
        migrated.map_err(|source| StoryError::System {
            act: "outbox migrate".to_owned(),
            source,
            log: self.program.log_tail("migrate", LOG_LINES),
        })
    }

    /// Starts a relay process under a name of its own.
    ///
    /// # Errors
    ///
    /// If no process can be made.
    pub fn start_relay(&mut self, name: &str) -> Result<(), StoryError> {
        let relay = self.program.relay(name).map_err(system(format!("start {name}"), String::new()))?;
        self.relays.push(relay);
        Ok(())
    }

    /// Waits until every relay process says that it is ready.
    ///
    /// # Errors
    ///
    /// If one ends, or is not ready in time.
    pub async fn relays_ready(&self, progress: &mut Progress) -> Result<(), StoryError> {
        let ready = async {
            for relay in &self.relays {
                while !relay.is_ready().await {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        };
        match self.showing(progress, tokio::time::timeout(READY_LIMIT, ready)).await? {
            Ok(()) => Ok(()),
            Err(_) => Err(self.did_not_hold("a relay that was started is not ready")),
        }
    }

    /// Kills a relay process with SIGKILL and waits for its end.
    ///
    /// # Errors
    ///
    /// If its watchdog is gone.
    pub async fn kill_relay(&mut self, name: &str) -> io::Result<()> {
        let Some(place) = self.relays.iter().position(|relay| relay.name == name) else {
            return Err(io::Error::other("there is no relay of this name"));
        };
        self.relays.remove(place).kill().await
    }

    /// Shows where the rows are while something is waited for.
    ///
    /// # Errors
    ///
    /// If the database fails, or a relay ends that was not killed.
    pub async fn showing<T>(&self, progress: &mut Progress, wait: impl Future<Output = T>) -> Result<T, StoryError> {
        let mut wait = pin!(wait);
        loop {
            tokio::select! {
                found = &mut wait => return Ok(found),
                () = tokio::time::sleep(LOOK_EVERY) => { self.look(progress).await?; }
            };
        }
    }

    /// Waits until the rows are as asked, and shows where they are.
    ///
    /// # Errors
    ///
    /// If the database fails, or a relay ends that was not killed.
    pub async fn rows_until(
        &self,
        progress: &mut Progress,
        wanted: impl Fn(&Tally) -> bool,
    ) -> Result<Tally, StoryError> {
        loop {
            let tally = self.look(progress).await?;
            if wanted(&tally) {
                return Ok(tally);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The error for something that did not happen, with what the relays logged.
    pub fn did_not_hold(&self, what: &str) -> StoryError {
        let logs = self.relays.iter().map(|relay| self.log_of(&relay.name));
        StoryError::DidNotHold { what: what.to_owned(), log: logs.collect::<Vec<_>>().join("\n") }
    }

    async fn look(&self, progress: &mut Progress) -> Result<Tally, StoryError> {
        if let Some(ended) = self.relays.iter().find(|relay| !relay.is_running()) {
            let what = format!("{} ended by itself", ended.name);
            return Err(StoryError::DidNotHold { what, log: self.log_of(&ended.name) });
        }
        let tally = rows::tally(&self.pool).await.map_err(sql("count rows"))?;
        progress.tally(&tally);
        Ok(tally)
    }

    fn log_of(&self, name: &str) -> String {
        format!("--- the end of what {name} logged:\n{}", self.program.log_tail(name, LOG_LINES))
    }
}
