//! The server's programs, directory and user: what stays the same when it is started again.

use std::{ffi::OsString, fs::File, path::PathBuf, time::Duration};

use sqlx::{Connection, PgConnection};

use super::{
    super::watchdog::{Watch, Watched},
    options::{PostgresError, PostgresOptions, system},
};

/// Far beyond what a start takes, recovery after a kill included: reached only on a machine that stands still.
pub(super) const START_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks whether the server answers. It has no way to tell us that does not need a file or a socket of ours.
const START_LOOK: Duration = Duration::from_millis(25);
/// Bytes of the log's end that an error shows.
const LOG_TAIL_BYTES: usize = 2_000;

/// What stays the same when the server is started again.
#[derive(Debug)]
pub(super) struct Place {
    pub bin: PathBuf,
    pub directory: PathBuf,
    pub user: Option<(u32, u32)>,
}

impl Place {
    /// Starts `initdb`.
    pub fn initdb(&self) -> Result<Watched, PostgresError> {
        let args = ["--no-sync", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--pgdata"];
        let mut args: Vec<OsString> = args.iter().map(OsString::from).collect();
        args.push(self.data().into());
        self.watch("initdb", args, "TERM")
    }

    /// Starts the server and waits until it answers.
    pub async fn serve(&self, options: &PostgresOptions, port: u16) -> Result<Watched, PostgresError> {
        let hba = "host all all 127.0.0.1/32 trust\n";
        std::fs::write(self.data().join("pg_hba.conf"), hba).map_err(system("write pg_hba.conf"))?;
        let on_off = |on: bool| if on { "on" } else { "off" };
        let mut settings = vec![
            format!("port={port}"),
            format!("fsync={}", on_off(options.fsync)),
            format!("full_page_writes={}", on_off(options.fsync)),
            format!("synchronous_commit={}", on_off(options.synchronous_commit)),
            format!("max_connections={}", options.max_connections),
        ];
        // No socket file, and no shared memory outside the directory that could stay behind after a kill.
        settings.extend(
            [
                "listen_addresses=127.0.0.1",
                "unix_socket_directories=",
                "dynamic_shared_memory_type=mmap",
                "shared_buffers=32MB",
                "log_line_prefix=%m [%p] ",
            ]
            .map(str::to_owned),
        );
        settings.extend(options.settings.iter().map(|(name, value)| format!("{name}={value}")));
        let mut args = vec![OsString::from("-D"), self.data().into()];
        args.extend(settings.into_iter().flat_map(|setting| [OsString::from("-c"), setting.into()]));
        let mut server = self.watch("postgres", args, "INT")?;
        let answers = tokio::select! {
            answers = tokio::time::timeout(START_LIMIT, answering(port)) => answers.is_ok(),
            _ = server.ended() => false,
        };
        if answers {
            return Ok(server);
        }
        let log = self.log_tail();
        let handed_over = async {
            server.signal("KILL")?;
            server.keep_directory().await
        };
        // A port that was taken must not cost the data.
        handed_over.await.map_err(system("keep the directory"))?;
        server.finish().await;
        Err(PostgresError::Start { log })
    }

    /// Runs a program of PostgreSQL under a watchdog that owns the directory.
    fn watch(&self, program: &str, args: Vec<OsString>, end_signal: &'static str) -> Result<Watched, PostgresError> {
        let log = File::options().create(true).append(true).open(self.log()).map_err(system("open the log"))?;
        // The caller's settings of a client are not for the server.
        let strange = std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("PG"));
        let mut env: Vec<(OsString, Option<OsString>)> = strange.map(|name| (name, None)).collect();
        env.push(("LC_ALL".into(), Some("C".into())));
        Watched::spawn(Watch {
            program: self.bin.join(program),
            args,
            env,
            working_directory: self.directory.clone(),
            user: self.user,
            log,
            end_signal,
            remove: Some(self.directory.clone()),
        })
        .map_err(system("start PostgreSQL"))
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.join("postgres.log")
    }

    /// The end of what initdb and the server have said.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(self.log()).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned()
    }
}

async fn answering(port: u16) {
    loop {
        if let Ok(connection) = PgConnection::connect(&url(port, "postgres")).await {
            // It answered; whether it takes the good-bye says nothing more.
            let _ = connection.close().await;
            return;
        }
        tokio::time::sleep(START_LOOK).await;
    }
}

/// The URL of a database, as the superuser.
pub(super) fn url(port: u16, database: &str) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable")
}
