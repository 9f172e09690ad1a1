//! The relays of the story: processes of this same program, outside of ours.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{
    postgres::free_port,
    watchdog::{Watch, Watched},
};

/// The header by which the receiver tells the relays apart. An ordinary static header of the policy.
pub(super) const RELAY_HEADER: &str = "x-demo-relay";
/// The deadline of a request.
pub(super) const DEADLINE: Duration = Duration::from_secs(2);
/// How long a claimed row belongs to its relay: the deadline, the margin of 5 s that is asked for, and a second.
pub(super) const LEASE: Duration = Duration::from_secs(8);

/// Bytes of an answer that are read: far more than a status line.
const READYZ_BYTES: u64 = 4096;

/// Commands of this program, on one database.
#[derive(Debug)]
pub(super) struct Program {
    /// This program.
    pub exe: PathBuf,
    /// Where documents and logs go.
    pub directory: PathBuf,
    /// The database.
    pub database_url: String,
    /// Whether documents and logs stay.
    pub keep: bool,
}

/// A relay process.
#[derive(Debug)]
pub(super) struct RelayProcess {
    /// What the header says: one name a process, not a relay.
    pub name: String,
    watched: Watched,
    /// Where it serves `/readyz`.
    listen: SocketAddr,
}

impl Program {
    /// Runs `outbox migrate` to its end.
    ///
    /// # Errors
    ///
    /// If it fails; its log says why.
    pub async fn migrate(&self) -> io::Result<()> {
        let log = self.log("migrate")?;
        let status = tokio::process::Command::new(&self.exe)
            .args(["migrate", "--database-url", &self.database_url])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .status()
            .await?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("it ended with {status}"))) }
    }

    /// Starts `outbox relay` under this name.
    ///
    /// # Errors
    ///
    /// If its document cannot be written or no process be made.
    pub fn relay(&self, name: &str) -> io::Result<RelayProcess> {
        let file = self.directory.join(format!("{name}.yaml"));
        std::fs::write(&file, documents(name))?;
        let listen = free_port()?;
        let address = listen.to_string();
        let args = ["relay", "-f"].map(Into::into).into_iter();
        let args = args.chain([file.into_os_string()]);
        let args = args.chain(["--database-url", &self.database_url, "--listen", &address].map(Into::into));
        let watched = Watched::spawn(Watch {
            program: self.exe.clone(),
            args: args.collect(),
            env: Vec::new(),
            working_directory: self.directory.clone(),
            user: None,
            log: self.log(name)?,
            end_signal: "TERM",
            remove: (!self.keep).then(|| self.directory.clone()),
        })?;
        Ok(RelayProcess { name: name.to_owned(), watched, listen })
    }

    /// The end of a log, for an error.
    pub fn log_tail(&self, name: &str, lines: usize) -> String {
        let log = std::fs::read_to_string(self.log_path(name)).unwrap_or_default();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    fn log(&self, name: &str) -> io::Result<File> {
        File::options().create(true).append(true).open(self.log_path(name))
    }

    fn log_path(&self, name: &str) -> PathBuf {
        Path::new(&self.directory).join(format!("{name}.log"))
    }
}

impl RelayProcess {
    /// Kills it with SIGKILL and waits until it and its watchdog are gone. The others go on using the directory.
    ///
    /// # Errors
    ///
    /// If its watchdog is gone.
    pub async fn kill(mut self) -> io::Result<()> {
        self.watched.signal("KILL")?;
        self.watched.keep_directory().await?;
        self.watched.finish().await;
        Ok(())
    }

    /// Whether it says that it claims rows. Asked by hand: one line there, one line back.
    pub async fn is_ready(&self) -> bool {
        let ask = async {
            let mut stream = TcpStream::connect(self.listen).await?;
            stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
            let mut answer = String::new();
            stream.take(READYZ_BYTES).read_to_string(&mut answer).await?;
            io::Result::Ok(answer)
        };
        // Silence is no readiness either; the caller asks again.
        let answer = tokio::time::timeout(DEADLINE, ask).await;
        answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.split(' ').nth(1) == Some("200")))
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.watched.is_running()
    }

    /// Ends it by SIGTERM and waits until it and its watchdog are gone, and the directory with them.
    pub async fn finish(self) {
        self.watched.finish().await;
    }
}

/// A relay's documents. Loopback addresses are refused by default, and here the receiver has no other. All rows
/// go to one destination, which plays many receivers; a run of failures there means nothing, so it holds nobody up for long.
fn documents(name: &str) -> String {
    let (deadline, lease) = (DEADLINE.as_secs(), LEASE.as_secs());
    format!(
        r#"apiVersion: outbox-operator.dev/v1alpha1
kind: OutboxRelay
metadata: {{name: demo, namespace: demo}}
spec:
  database: {{urlSecretRef: {{name: demo, key: url}}}}
  policyRef: {{name: demo}}
  concurrency: 16
  leaseDuration: {lease}s
  pollInterval: 200ms
  migrations: Manual
---
apiVersion: outbox-operator.dev/v1alpha1
kind: DispatchPolicy
metadata: {{name: demo, namespace: demo}}
spec:
  request: {{headers: {{{RELAY_HEADER}: {name}}}}}
  timeouts: {{connect: 1s, total: {deadline}s}}
  idempotency: {{receiver: Enforced}}
  retry: {{base: 100ms, cap: 1s, maxAttempts: 6}}
  destination: {{hold: {{afterFailures: 1000, base: 200ms, cap: 1s}}}}
  egress: {{allowCidrs: ["127.0.0.0/8", "::1/128"]}}
"#
    )
}
