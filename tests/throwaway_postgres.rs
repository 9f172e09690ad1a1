//! The throwaway PostgreSQL: it serves, comes back after faults, and never outlives whoever started it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use outbox_operator::demo::{PostgresOptions, ThrowawayPostgres};
use sqlx::{Connection, PgConnection};

/// Far more than anything here takes; reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tells this test's binary to be the parent that is killed.
const PARENT: &str = "OUTBOX_TEST_PARENT_OF_POSTGRES";

async fn number(url: &str, query: &'static str) -> i32 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar(query).fetch_one(&mut connection).await.unwrap()
}

async fn refuses(port: u16) -> bool {
    tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err()
}

async fn eventually_gone(port: u16, directory: &Path) {
    let started = Instant::now();
    while !refuses(port).await || directory.exists() {
        assert!(started.elapsed() < PATIENCE, "port {port} or {} is still there", directory.display());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn databases_are_made_and_the_server_goes_with_its_directory() {
    let postgres = ThrowawayPostgres::start(PostgresOptions::fast()).await.unwrap();
    let url = postgres.create_database("one").await.unwrap();
    assert_eq!(number(&url, "SELECT 1").await, 1);
    assert!(postgres.create_database("one").await.is_err(), "a second one of this name");
    postgres.drop_database("one").await.unwrap();
    assert!(PgConnection::connect(&url).await.is_err());
    let (port, directory) = (postgres.port(), postgres.directory().to_owned());
    assert!(directory.exists());
    postgres.remove().await;
    assert!(refuses(port).await && !directory.exists());
}

#[tokio::test]
async fn data_outlive_a_stop_and_a_kill() {
    let mut postgres = ThrowawayPostgres::start(PostgresOptions::fast()).await.unwrap();
    let url = postgres.url();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::query("CREATE TABLE kept AS SELECT 7 AS n").execute(&mut connection).await.unwrap();

    postgres.stop().await.unwrap();
    assert!(sqlx::query("SELECT 1").execute(&mut connection).await.is_err(), "sessions are cut off");
    assert!(refuses(postgres.port()).await);
    postgres.restart().await.unwrap();
    assert_eq!(number(&url, "SELECT n FROM kept").await, 7);

    postgres.kill().await.unwrap();
    assert!(refuses(postgres.port()).await);
    postgres.restart().await.unwrap();
    assert_eq!(number(&url, "SELECT n FROM kept").await, 7);
    assert_eq!(postgres.url(), url);

    let directory = postgres.directory().to_owned();
    let port = postgres.port();
    drop(postgres);
    eventually_gone(port, &directory).await;
}

#[tokio::test]
async fn a_frozen_server_lets_connections_stand_without_an_answer() {
    let mut postgres = ThrowawayPostgres::start(PostgresOptions::fast()).await.unwrap();
    postgres.freeze().unwrap();
    let url = postgres.url();
    // The signal travels through the watchdog: it has arrived once a new connection stays without an answer.
    let silent =
        async { while tokio::time::timeout(Duration::from_millis(500), PgConnection::connect(&url)).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, silent).await.unwrap();
    assert!(!refuses(postgres.port()).await);
    postgres.thaw().unwrap();
    assert_eq!(number(&url, "SELECT 2").await, 2);
    // A frozen server ends, too.
    postgres.freeze().unwrap();
    let (port, directory) = (postgres.port(), postgres.directory().to_owned());
    postgres.remove().await;
    assert!(refuses(port).await && !directory.exists());
}

#[tokio::test]
async fn settings_reach_the_server() {
    let options = PostgresOptions {
        settings: vec![("max_wal_senders".into(), "3".into()), ("work_mem".into(), "5MB".into())],
        ..PostgresOptions::fast()
    };
    let postgres = ThrowawayPostgres::start(options).await.unwrap();
    let mut connection = PgConnection::connect(&postgres.url()).await.unwrap();
    for (setting, expected) in [("SHOW fsync", "off"), ("SHOW synchronous_commit", "off"), ("SHOW work_mem", "5MB")] {
        let value: String = sqlx::query_scalar(setting).fetch_one(&mut connection).await.unwrap();
        assert_eq!(value, expected, "{setting}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why_and_leaves_nothing() {
    let options = PostgresOptions { settings: vec![("work_mem".into(), "nonsense".into())], ..PostgresOptions::fast() };
    let error = ThrowawayPostgres::start(options).await.unwrap_err().to_string();
    assert!(error.contains("work_mem"), "{error}");
    let ours = format!("outbox-postgres-{}-", std::process::id());
    let left: Vec<PathBuf> = std::fs::read_dir(std::env::temp_dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&ours))
        .filter(|path| std::fs::read_to_string(path.join("postgres.log")).is_ok_and(|log| log.contains("nonsense")))
        .collect();
    assert_eq!(left, Vec::<PathBuf>::new());
}

/// Not a test by itself: the process that the next one kills.
#[tokio::test]
#[ignore = "run by the next test, in a process of its own"]
async fn parent_of_a_server() {
    if std::env::var_os(PARENT).is_none() {
        return;
    }
    let postgres = ThrowawayPostgres::start(PostgresOptions::fast()).await.unwrap();
    println!("\nstarted {} {}", postgres.port(), postgres.directory().display());
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_server_ends_and_its_directory_goes_when_its_parent_is_killed() {
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "parent_of_a_server", "--ignored", "--nocapture"])
        .env(PARENT, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(parent.stdout.take().unwrap());
    let started = output.lines().map(|line| line.unwrap()).find_map(|line| {
        let (port, directory) = line.strip_prefix("started ")?.split_once(' ')?;
        Some((port.parse().ok()?, PathBuf::from(directory)))
    });
    let (port, directory): (u16, PathBuf) = started.expect("the parent starts its server");
    assert!(!refuses(port).await && directory.exists());
    parent.kill().unwrap();
    parent.wait().unwrap();
    eventually_gone(port, &directory).await;
}
