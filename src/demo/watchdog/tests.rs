use super::*;

use std::path::Path;

fn watched(command: &str, directory: &Path) -> Watched {
    Watched::spawn(Watch {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), command.into()],
        env: Vec::new(),
        working_directory: "/".into(),
        user: None,
        log: File::options().append(true).create(true).open(directory.with_extension("log")).unwrap(),
        end_signal: "TERM",
        remove: Some(directory.to_owned()),
    })
    .unwrap()
}

/// A directory to be removed, inside one that is ours.
fn place() -> (tempfile::TempDir, PathBuf) {
    let ours = tempfile::tempdir().unwrap();
    let directory = ours.path().join("watched");
    std::fs::create_dir(&directory).unwrap();
    (ours, directory)
}

#[tokio::test]
async fn a_child_that_ends_is_noticed_and_its_directory_stays_until_we_let_go() {
    let (_ours, directory) = place();
    let watched = watched("exit 7", &directory);
    assert_eq!(watched.ended().await, 7);
    assert!(directory.exists());
    watched.finish().await;
    assert!(!directory.exists());
}

#[tokio::test]
async fn a_child_that_runs_is_asked_to_end_when_we_let_go() {
    let (ours, directory) = place();
    let started = ours.path().join("started");
    let watched =
        watched(&format!("trap 'exit 0' TERM; touch {}; while :; do sleep 0.02; done", started.display()), &directory);
    while !started.exists() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(watched.is_running());
    watched.finish().await;
    assert!(!directory.exists());
}

#[tokio::test]
async fn signals_reach_the_child() {
    let (_ours, directory) = place();
    let mut watched = watched("while :; do sleep 1; done", &directory);
    watched.signal("KILL").unwrap();
    assert_eq!(watched.ended().await, 128 + 9);
    watched.signal("KILL").unwrap();
    watched.finish().await;
}

#[tokio::test]
async fn output_goes_to_the_log_and_input_is_empty() {
    let (_ours, directory) = place();
    let watched = watched("cat; echo said; echo complained >&2", &directory);
    assert_eq!(watched.ended().await, 0);
    assert_eq!(std::fs::read_to_string(directory.with_extension("log")).unwrap(), "said\ncomplained\n");
}

/// The reader of signals once swallowed the word on a busy machine; so many, and several at a time.
#[tokio::test]
async fn a_directory_that_is_kept_is_never_removed() {
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            tokio::spawn(async {
                for _ in 0..15 {
                    let (_ours, directory) = place();
                    let mut watched = watched("exit 0", &directory);
                    watched.keep_directory().await.unwrap();
                    watched.finish().await;
                    assert!(directory.exists());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
