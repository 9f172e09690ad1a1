//! The demo: its story holds, and it leaves nothing behind even if it is killed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use outbox_operator::demo::{self, MIN_ROWS, Progress, StoryError, StoryOptions};
use tokio_util::sync::CancellationToken;

/// Far more than anything here takes; reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(90);
/// Tells this test's binary to be the demo that is killed.
const KILLED: &str = "OUTBOX_TEST_KILLED_DEMO";

fn options() -> StoryOptions {
    StoryOptions { rows: MIN_ROWS, program: PathBuf::from(env!("CARGO_BIN_EXE_outbox")), keep: false }
}

/// Command lines of processes that mention a directory.
fn processes_of(directory: &Path) -> Vec<String> {
    let directory = directory.to_str().unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(directory)).collect()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test]
async fn the_story_holds() {
    let story = demo::tell(&options(), &CancellationToken::new(), &mut Progress::new(MIN_ROWS)).await.unwrap();
    assert!(story.held, "{}", story.report);
    for line in ["0 doubled, 0 lost, 0 keys", "was on the wire when its relay was killed", "unauthorized", "in all"] {
        assert!(story.report.contains(line), "{line}: {}", story.report);
    }
}

#[tokio::test]
async fn a_program_without_the_commands_is_an_error_and_no_story() {
    let options = StoryOptions { program: PathBuf::from("/bin/false"), ..options() };
    let error = demo::tell(&options, &CancellationToken::new(), &mut Progress::new(MIN_ROWS)).await.unwrap_err();
    assert!(error.to_string().starts_with("outbox migrate: "), "{error}");
}

/// Not a test by itself: the process that the next two end.
#[tokio::test]
#[ignore = "run by the next tests, in a process of its own"]
async fn demo_that_is_ended() {
    let Some(how) = std::env::var_os(KILLED) else { return };
    let stop = CancellationToken::new();
    if how == "stop" {
        // Ends the story when a relay is there, as Ctrl-C would.
        let told = stop.clone();
        std::thread::spawn(move || {
            let directory = std::env::temp_dir();
            wait_until("a relay", || processes_of(&directory).iter().any(|line| line.contains(" relay -f ")));
            told.cancel();
        });
    }
    let told = demo::tell(&options(), &stop, &mut Progress::new(MIN_ROWS)).await;
    assert!(matches!(told, Err(StoryError::Interrupted)), "{told:?}");
}

fn run_demo_in(directory: &Path, how: &str) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "demo_that_is_ended", "--ignored", "--nocapture"])
        .env("TMPDIR", directory)
        .env(KILLED, how)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A directory that PostgreSQL's own user may pass through, too.
fn open_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    directory
}

#[test]
fn an_interrupted_demo_has_cleared_everything_when_it_ends() {
    let directory = open_directory();
    let mut demo = run_demo_in(directory.path(), "stop");
    assert!(demo.wait().unwrap().success());
    assert_eq!(processes_of(directory.path()), Vec::<String>::new());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_killed_demo_leaves_no_process_and_no_directory() {
    let directory = open_directory();
    let mut demo = run_demo_in(directory.path(), "kill");
    let relays = |lines: Vec<String>| lines.iter().filter(|line| line.contains(" relay -f ")).count();
    // Each relay is there twice: itself and its watchdog.
    wait_until("two relays", || relays(processes_of(directory.path())) >= 4);
    demo.kill().unwrap();
    demo.wait().expect("the killed demo is gone");
    wait_until("no process left", || processes_of(directory.path()).is_empty());
    wait_until("no directory left", || fs::read_dir(directory.path()).unwrap().count() == 0);
}
