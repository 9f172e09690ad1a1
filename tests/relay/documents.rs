//! What is refused before anything runs: exit code 2, with the path of the field and the mend.

use crate::support::{documents, outbox};

/// Runs `outbox relay -f` on documents and returns its exit code and standard error.
fn refused(relay: &str, policy: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("relay.yaml");
    std::fs::write(&file, documents(relay, policy)).unwrap();
    let (code, _, errors) = outbox(
        &["relay", "--listen", "127.0.0.1:0", "-f", file.to_str().unwrap()],
        Some("postgres://nobody@127.0.0.1:1/x"),
    );
    (code, errors)
}

#[test]
fn each_mistake_is_named_with_its_path_and_its_mend() {
    for (relay, policy, path, mend) in [
        ("colour: red", "", "OutboxRelay/test: spec", "colour"),
        (
            "",
            "retry: {base: 10s, cap: 1s}",
            "DispatchPolicy/quick: spec.retry",
            "retry.cap must be at least retry.base",
        ),
        (
            "scaling: {minReplicas: 5, maxReplicas: 2}",
            "",
            "OutboxRelay/test: spec.scaling",
            "minReplicas must be at most scaling.maxReplicas",
        ),
        ("scaling: {maxReplicas: many}", "", "OutboxRelay/test: spec.scaling.maxReplicas", "integer"),
        ("concurrency: 0", "", "OutboxRelay/test: spec.concurrency", "1"),
        ("replicas: 3", "", "OutboxRelay/test: spec", "scaling.mode External"),
        ("leaseDuration: 3s", "", "OutboxRelay/test: spec.leaseDuration", "raise leaseDuration to at least 4s"),
        (
            "memoryBudget: 1Mi",
            "",
            "OutboxRelay/test: spec.memoryBudget",
            "raise memoryBudget to at least 1171Ki, or lower request.maxBodyBytes",
        ),
        ("memoryBudget: 512Ki", "", "OutboxRelay/test: spec.memoryBudget", "must lie between 1Mi and 64Gi"),
        ("memoryBudget: 65Gi", "", "OutboxRelay/test: spec.memoryBudget", "must lie between 1Mi and 64Gi"),
        ("memoryBudget: lots", "", "OutboxRelay/test: spec.memoryBudget", "lots"),
        (
            "retention: {succeeded: 10m}",
            "",
            "OutboxRelay/test: spec.retention.succeeded",
            "retention.succeeded must be at least 1h",
        ),
        ("retention: {payload: 10m}", "", "OutboxRelay/test: spec.retention.payload", "payload must be at least 1h"),
        ("retention: {dead: 10m}", "", "OutboxRelay/test: spec.retention.dead", "dead must be at least 1h"),
        ("retention: {history: 10m}", "", "OutboxRelay/test: spec.retention.history", "history must be at least 1h"),
        (
            "retention: {succeeded: 7d, payload: 7d}",
            "",
            "OutboxRelay/test: spec.retention",
            "retention.payload must be shorter than retention.succeeded",
        ),
        ("leaseDuration: soon", "", "OutboxRelay/test: spec.leaseDuration", "soon"),
        (
            "policyRef: {name: other}",
            "",
            "OutboxRelay/test: spec.policyRef.name",
            "there is no DispatchPolicy \"other\"",
        ),
        (
            "routes: [{match: {operations: [pay]}, policyRef: {name: other}}]",
            "",
            "OutboxRelay/test: spec.routes[0].policyRef.name",
            "there is no DispatchPolicy \"other\"",
        ),
        (
            "routes: [{match: {}, policyRef: {name: quick}}]",
            "",
            "OutboxRelay/test: spec.routes[0].match",
            "a route needs match.operations or match.endpoints",
        ),
        (
            "routes: [{match: {endpoints: [\"https://x.test\"]}, policyRef: {name: quick}}]",
            "",
            "OutboxRelay/test: spec.routes[0].match.endpoints[0]",
            "write scheme, host and path",
        ),
        ("", "ordering: {mode: Strict}", "DispatchPolicy/quick: spec.ordering.mode", "Strict"),
        ("database: {}", "", "OutboxRelay/test: spec.database", "say where the database is once"),
        ("", "retry: {backoff: Schedule}", "DispatchPolicy/quick: spec.retry", "needs a retry.schedule"),
        ("", "retry: {schedule: [1s]}", "DispatchPolicy/quick: spec.retry", "read only with retry.backoff Schedule"),
        ("", "egress: {denyCidrs: [10.0.0.0/99]}", "DispatchPolicy/quick: spec.egress.denyCidrs[0]", "no CIDR"),
        (
            "",
            "request: {headers: {Idempotency-Key: x}}",
            "DispatchPolicy/quick: spec.request.headers.Idempotency-Key",
            "carries the idempotency key",
        ),
        (
            "",
            "request: {authentication: {bearer: {secretRef: {name: a, key: b}}, basic: {usernameSecretRef: {name: a, key: b}, passwordSecretRef: {name: a, key: b}}}}",
            "DispatchPolicy/quick: spec.request.authentication",
            "not both",
        ),
        (
            "",
            "statusQuery: {url: 'https://x.test/', done: [{statuses: ['200']}]}",
            "DispatchPolicy/quick: spec.statusQuery",
            "must hold {key} or {keyHash}",
        ),
        (
            "",
            "statusQuery: {url: 'ftp://x.test/{key}', done: [{statuses: ['200']}]}",
            "DispatchPolicy/quick: spec.statusQuery",
            "must begin with http:// or https://",
        ),
        (
            "",
            "statusQuery: {url: 'https://x.test:99999/{key}', done: [{statuses: ['200']}]}",
            "DispatchPolicy/quick: spec.statusQuery.url",
            "port",
        ),
        (
            "",
            "statusQuery: {url: 'https://x.test/{key}', done: [{}]}",
            "DispatchPolicy/quick: spec.statusQuery.done[0]",
            "needs a condition",
        ),
        (
            "",
            "statusQuery: {url: 'https://x.test/{key}', done: []}",
            "DispatchPolicy/quick: spec.statusQuery.done",
            "1",
        ),
        (
            "",
            "statusQuery: {url: 'https://x.test/{key}', done: [{statuses: ['200']}], timeout: 9s}",
            "OutboxRelay/test: spec.leaseDuration",
            "plus statusQuery.timeout (9s)",
        ),
        (
            "",
            "statusQuery: {url: 'https://x.test/{key}', done: [{statuses: ['200']}], timeout: 1ms}",
            "DispatchPolicy/quick: spec.statusQuery",
            "at least 10ms",
        ),
        (
            "",
            "preDispatch: {sqlFunction: a.b, http: {url: 'https://x.test/'}}",
            "DispatchPolicy/quick: spec.preDispatch",
            "set one of preDispatch.sqlFunction and preDispatch.http",
        ),
        (
            "",
            "preDispatch: {sqlFunction: 'a.b; DROP'}",
            "DispatchPolicy/quick: spec.preDispatch.sqlFunction",
            "a.b; DROP",
        ),
        (
            "",
            "preDispatch: {http: {url: 'x.test'}}",
            "DispatchPolicy/quick: spec.preDispatch.http",
            "must begin with http:// or https://",
        ),
        (
            "",
            "preDispatch: {http: {url: 'https://x.test/', timeout: 2m}}",
            "DispatchPolicy/quick: spec.preDispatch.http",
            "at most 1m",
        ),
    ] {
        let (code, errors) = refused(relay, policy);
        assert_eq!(code, 2, "{relay}{policy}: {errors}");
        assert!(
            errors.contains(path) && errors.contains(mend),
            "{relay}{policy}: wanted {path:?} and {mend:?}, got {errors}"
        );
    }
}

#[test]
fn policy_check_shows_every_error_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, documents("concurrency: 0\nclaimBatch: 0", "retry: {maxAttempts: 0, base: x}\nunknown: 1"))
        .unwrap();
    let (code, _, errors) = outbox(&["policy", "check", "-f", file.to_str().unwrap()], None);
    assert_eq!(code, 2);
    for path in ["spec.concurrency", "spec.claimBatch", "spec.retry.maxAttempts", "spec.retry.base", "unknown"] {
        assert!(errors.contains(path), "{path}: {errors}");
    }
    std::fs::write(&file, documents("", "")).unwrap();
    assert_eq!(outbox(&["policy", "check", "-f", file.to_str().unwrap()], None).0, 0);
    std::fs::write(&file, "a: [").unwrap();
    let (code, _, errors) = outbox(&["policy", "check", "-f", file.to_str().unwrap()], None);
    assert!(code == 2 && errors.contains("this is not YAML"), "{errors}");
}

#[test]
fn a_missing_secret_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("relay.yaml");
    std::fs::write(&file, documents("", "")).unwrap();
    let (code, _, errors) =
        outbox(&["relay", "-f", file.to_str().unwrap(), "--secrets-dir", folder.path().to_str().unwrap()], None);
    assert_eq!(code, 2);
    assert!(errors.contains("read secret db, key uri"), "{errors}");
}
