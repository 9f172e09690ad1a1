//! What is deliberately absent: which folder must not mention what, and which words no file holds.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::too_many_lines,
    missing_docs,
    reason = "a test that cannot go on fails"
)]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folder (or file), what it must not mention, and why.
const ABSENT: &[(&str, &[&str], &str)] = &[
    (
        "src/domain",
        &[
            "crate::api",
            "crate::store",
            "crate::http",
            "crate::relay",
            "crate::controller",
            "crate::spec",
            "kube::",
            "k8s_openapi",
            "sqlx",
            "reqwest",
            "tokio::",
            "std::fs",
            "std::net::Tcp",
        ],
        "decisions are pure",
    ),
    (
        "src/domain",
        &["SystemTime::now", "Instant::now", "rand::rng", "Uuid::new_v4"],
        "`now` and randomness are arguments",
    ),
    ("src/api", &["crate::domain", "crate::store", "crate::spec", "sqlx", "reqwest", "tokio"], "types are derive only"),
    (
        "src/spec",
        &["crate::store", "crate::relay", "crate::controller", "sqlx", "reqwest", "tokio", "std::fs"],
        "reading documents is pure",
    ),
    (
        "src/store",
        &["crate::api", "crate::relay", "crate::controller", "crate::http", "reqwest", "kube::"],
        "the store knows rows, not resources",
    ),
    (
        "src/http",
        &["crate::store", "crate::relay", "crate::controller", "sqlx", "kube::"],
        "the client knows requests, not rows' storage",
    ),
    (
        "src/relay",
        &["crate::controller", "crate::api", "kube::", "k8s_openapi", "sqlx", "reqwest"],
        "the relay runs without Kubernetes",
    ),
    ("src/controller", &["crate::relay", "crate::http", "sqlx", "reqwest"], "the operator never sends a row"),
    (
        "src/telemetry",
        &["crate::relay", "crate::controller", "crate::http", "sqlx", "reqwest"],
        "telemetry decides nothing",
    ),
];

/// Words that belong to one place.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("sqlx::", &["src/store", "src/demo", "tests"]),
    ("reqwest::", &["src/http", "src/demo", "tests"]),
    ("std::env::var", &["src/cli", "src/demo", "tests"]),
];

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The code of a file: without comments and without its tests.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap().to_owned();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn no_folder_mentions_what_it_must_not_know() {
    let mut found = Vec::new();
    for (folder, words, why) in ABSENT {
        for file in rust_files(&root().join(folder)) {
            if file.components().any(|part| part.as_os_str() == "tests") || file.ends_with("tests.rs") {
                continue;
            }
            let code = code(&file);
            for word in words.iter().filter(|word| code.contains(**word)) {
                found.push(format!("{} mentions {word}: {why}", file.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_belongs_to_one_place_is_nowhere_else() {
    let mut found = Vec::new();
    for file in rust_files(&root().join("src")) {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let code = code(&file);
        for (word, places) in ONLY_IN {
            if code.contains(word) && !places.iter().any(|place| name.starts_with(place)) {
                found.push(format!("{name} mentions {word}, which belongs to {places:?}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn main_stays_short_and_files_stay_readable() {
    let main = fs::read_to_string(root().join("src/main.rs")).unwrap();
    assert!(main.lines().count() < 50);
    for file in rust_files(&root().join("src")) {
        let lines = code(&file).lines().count();
        assert!(lines <= 400, "{} has {lines} lines of code: is it one thing?", file.display());
    }
}
