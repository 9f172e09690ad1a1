//! A PostgreSQL server of one's own for as long as one lives: for `outbox demo` and for tests of every kind.
//!
//! It listens on the loopback interface only, trusts whoever can reach it there, and can neither outlive its parent nor
//! leave its directory behind, even if the parent is killed (see [`super::watchdog`]).

mod options;
mod place;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::chown,
};

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{binaries, directory::TemporaryDirectory, watchdog::Watched};
use options::system;
use place::{Place, START_LIMIT, url};

pub use super::binaries::NoPrograms;
pub use options::{PostgresError, PostgresOptions};

/// Ports tried: a free one can be taken by another process before the server listens.
const PORT_TRIES: u32 = 3;

/// A running PostgreSQL server. It ends, and its directory goes, when this is dropped or its process ends.
#[derive(Debug)]
pub struct ThrowawayPostgres {
    server: Watched,
    place: Place,
    options: PostgresOptions,
    port: u16,
}

impl ThrowawayPostgres {
    /// Makes a server and waits until it answers: about two seconds.
    ///
    /// # Errors
    ///
    /// [`PostgresError`], with the end of the server's log where there is one.
    pub async fn start(options: PostgresOptions) -> Result<Self, PostgresError> {
        let bin = binaries::find()?;
        let mut directory = TemporaryDirectory::create("outbox-postgres").map_err(system("make a directory"))?;
        let root = directory.owner().map_err(system("look at the directory"))? == 0;
        let user = if root { Some(binaries::unprivileged_user().map_err(system("find a user"))?) } else { None };
        if let Some((user, group)) = user {
            chown(directory.path(), Some(user), Some(group)).map_err(system("hand over the directory"))?;
        }
        let place = Place { bin, directory: directory.path().to_owned(), user };
        let mut initdb = place.initdb()?;
        // From here on the watchdog removes the directory, also if we are killed.
        directory.keep();
        let status = initdb.ended().await;
        if status != 0 {
            let log = place.log_tail();
            initdb.finish().await;
            return Err(PostgresError::Init { status, log });
        }
        let mut started = Err(PostgresError::Start { log: String::new() });
        for _ in 0..PORT_TRIES {
            let port = free_port().map_err(system("find a free port"))?.port();
            started = place.serve(&options, port).await.map(|server| (server, port));
            if started.is_ok() {
                break;
            }
        }
        let (server, port) = match started {
            Ok(started) => started,
            Err(error) => {
                initdb.finish().await;
                return Err(error);
            }
        };
        initdb.keep_directory().await.map_err(system("hand over the directory"))?;
        initdb.finish().await;
        Ok(Self { server, place, options, port })
    }

    /// The URL of the database `postgres`, as its superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The URL of a database, as the superuser. The name is taken as it is: letters, digits and `_`.
    pub fn url_of(&self, database: &str) -> String {
        url(self.port, database)
    }

    /// The port on the loopback interface. It stays the same when the server is started again.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory with data and log. It goes with the server.
    pub fn directory(&self) -> &std::path::Path {
        &self.place.directory
    }

    /// The end of the server's log.
    pub fn log_tail(&self) -> String {
        self.place.log_tail()
    }

    /// Creates a database and gives its URL.
    ///
    /// # Errors
    ///
    /// [`PostgresError::Sql`] if it exists or the server does not answer.
    pub async fn create_database(&self, name: &str) -> Result<String, PostgresError> {
        let quoted = name.replace('"', "\"\"");
        self.execute("create a database", format!("CREATE DATABASE \"{quoted}\"")).await?;
        Ok(self.url_of(name))
    }

    /// Drops a database, and whoever is connected to it.
    ///
    /// # Errors
    ///
    /// [`PostgresError::Sql`] if the server does not answer.
    pub async fn drop_database(&self, name: &str) -> Result<(), PostgresError> {
        let quoted = name.replace('"', "\"\"");
        self.execute("drop a database", format!("DROP DATABASE IF EXISTS \"{quoted}\" WITH (FORCE)")).await
    }

    /// Stops the server in order and waits for its end; sessions are cut off. The data stay for [`Self::restart`].
    ///
    /// # Errors
    ///
    /// If its watchdog is gone.
    pub async fn stop(&mut self) -> Result<(), PostgresError> {
        self.end_by("INT").await
    }

    /// Kills the server as a crash would, and waits for its end. [`Self::restart`] has it recover.
    ///
    /// # Errors
    ///
    /// If its watchdog is gone.
    pub async fn kill(&mut self) -> Result<(), PostgresError> {
        self.end_by("KILL").await
    }

    /// Keeps the server from accepting: connections stand and nobody answers. Sessions that exist go on.
    ///
    /// # Errors
    ///
    /// If its watchdog is gone.
    pub fn freeze(&mut self) -> Result<(), PostgresError> {
        self.server.signal("STOP").map_err(system("freeze the server"))
    }

    /// Ends [`Self::freeze`].
    ///
    /// # Errors
    ///
    /// If its watchdog is gone.
    pub fn thaw(&mut self) -> Result<(), PostgresError> {
        self.server.signal("CONT").map_err(system("thaw the server"))
    }

    /// Starts the server again on its data and port, stopping it first if it runs, and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`PostgresError::Start`] if it does not answer.
    pub async fn restart(&mut self) -> Result<(), PostgresError> {
        self.stop().await?;
        let deadline = tokio::time::Instant::now() + START_LIMIT;
        let server = loop {
            match self.place.serve(&self.options, self.port).await {
                Ok(server) => break server,
                // After a kill its last processes may still be going; until then it refuses their memory.
                Err(PostgresError::Start { .. }) if tokio::time::Instant::now() < deadline => {}
                Err(error) => return Err(error),
            }
        };
        // The new watchdog is there before the old one lets go: the directory is never without an owner.
        let mut before = std::mem::replace(&mut self.server, server);
        before.keep_directory().await.map_err(system("hand over the directory"))?;
        before.finish().await;
        Ok(())
    }

    /// Stops the server and removes its directory, and waits for both.
    pub async fn remove(self) {
        self.server.finish().await;
    }

    async fn end_by(&mut self, signal: &str) -> Result<(), PostgresError> {
        self.server.signal(signal).map_err(system("signal the server"))?;
        self.server.ended().await;
        Ok(())
    }

    async fn execute(&self, act: &'static str, statement: String) -> Result<(), PostgresError> {
        let sql = |source| PostgresError::Sql { act, source };
        let mut connection = PgConnection::connect(&self.url()).await.map_err(sql)?;
        sqlx::query(AssertSqlSafe(statement)).execute(&mut connection).await.map_err(sql)?;
        connection.close().await.map_err(sql)
    }
}

/// An address of the loopback interface that nobody listens on, for now.
pub(super) fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
