//! Commands that need neither database nor cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::too_many_lines,
    missing_docs,
    reason = "a test that cannot go on fails"
)]

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use serde_json::Value;

fn key(vector: &Value, defaults: &Value, through_stdin: bool) -> (Option<i32>, String) {
    let text = |name: &str| {
        let value = vector.get(name).unwrap_or(&defaults[name]);
        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
    };
    let args = text("args_json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args([
            "key",
            "--tenant",
            &text("tenant_id"),
            "--operation",
            &text("operation"),
            "--entity",
            &text("entity_id"),
        ])
        .args(["--version", &text("intent_version"), "--args", if through_stdin { "-" } else { &args }])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    if through_stdin {
        stdin.write_all(args.as_bytes()).unwrap();
    }
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
}

#[test]
fn outbox_key_gives_every_vector_and_refuses_what_they_list() {
    let file: Value = serde_json::from_str(include_str!("vectors/derive_key.json")).unwrap();
    let vectors = file["vectors"].as_array().unwrap();
    for vector in vectors {
        for through_stdin in [true, false] {
            assert_eq!(
                key(vector, &vectors[0], through_stdin),
                (Some(0), vector["key"].as_str().unwrap().to_owned()),
                "{}",
                vector["name"]
            );
        }
    }
    for refused in file["refused"].as_array().unwrap() {
        let (code, out) = key(refused, &vectors[0], true);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{}", refused["name"]);
    }
}

#[test]
fn the_committed_definitions_are_what_the_program_prints() {
    for (kind, file) in [("OutboxRelay", "crds/outboxrelays.yaml"), ("DispatchPolicy", "crds/dispatchpolicies.yaml")] {
        let output = Command::new(env!("CARGO_BIN_EXE_outbox")).args(["crd", kind]).output().unwrap();
        let committed = std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(committed.ends_with(&printed), "{file} is not what the types say: run `make generate`");
        // kubectl apply keeps the whole object in an annotation of at most 262,144 bytes.
        assert!(printed.len() < 200_000, "{} bytes", printed.len());
    }
}
