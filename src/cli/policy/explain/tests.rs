//! Whole explanations against `tests/golden/explain-*.txt` (`UPDATE_GOLDEN=1` writes them), and the numbers in circulation.

#![expect(
    clippy::redundant_closure_for_method_calls,
    reason = "the methods alone are not general enough over lifetimes"
)]

use std::{env, fs, path::Path};

use super::*;

fn read(spec: &str) -> spec::Documents {
    let text = format!(
        "apiVersion: outbox-operator.dev/v1alpha1\nkind: DispatchPolicy\nmetadata: {{name: example}}\nspec: {spec}\n"
    );
    spec::read([("example.yaml", text.as_str())]).unwrap()
}

fn with<T>(spec: &str, look: impl FnOnce(&Explained<'_>) -> T) -> T {
    let documents = read(spec);
    super::super::check(&documents).unwrap();
    let policy = &documents.policies[0];
    look(&Explained::new(policy, spec::policy_settings(policy).unwrap(), &documents))
}

fn document(spec: &str) -> Value {
    with(spec, |policy| policy.document())
}

fn golden(name: &str, spec: &str) {
    for width in [80, 100] {
        let text = with(spec, |policy| policy.text(width));
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        if width == 100 {
            return;
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/explain-{name}.txt"));
        if env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let kept = fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == text, "{} differs; UPDATE_GOLDEN=1 writes it anew:\n{text}", path.display());
    }
}

#[test]
fn an_empty_policy_is_explained_as_the_golden_one() {
    golden("default", "{}");
}

#[test]
fn a_policy_with_much_to_say_is_explained_as_the_golden_one() {
    golden(
        "full",
        r#"
  request:
    method: PUT
    headers: {X-Source: billing}
    secretHeaders: [{name: X-Api-Key, secretRef: {name: crm, key: apiKey}}]
    authentication:
      oauth2ClientCredentials:
        tokenUrl: https://auth.example/token?of=crm
        clientIdSecretRef: {name: crm, key: id}
        clientSecretRef: {name: crm, key: secret}
    tls:
      caSecretRef: {name: crm, key: ca}
      clientCertificateSecretRef: {name: crm, key: certificate}
      clientKeySecretRef: {name: crm, key: key}
    signing: {standardWebhooks: {secretRefs: [{name: hooks, key: current}, {name: hooks, key: previous}]}}
    proxyUrl: http://proxy.example:3128
  idempotency: {receiver: Enforced, window: 1h, header: X-Key, format: StructuredString}
  statusQuery: {url: "https://crm.example/{key}", done: [{statuses: ["200"]}], unknown: [{statuses: ["404"]}]}
  preDispatch: {sqlFunction: App.may_send}
  ordering: {mode: PerEntity, onDead: Skip}
  retry: {backoff: EqualJitter, base: 1s, cap: 10m, maxAttempts: 20, maxAge: 1h, retryAfter: {respect: false}}
  classify:
    - {statuses: ["404", "5xx"], body: {pointer: /errors, exists: true}, header: {name: Idempotent-Replayed, value: "true"}, verdict: Dead, reason: replayed_error}
    - {statuses: ["409"], verdict: Wait}
    - {body: {pointer: /status, value: "done"}, verdict: Succeeded}
  destination: {maxInFlight: 8, ratePerSecond: 1, hold: {afterFailures: 1, base: 1s, cap: 2m}}
  egress: {allowPrivate: false, allowCidrs: ["10.1.0.0/16"], denyCidrs: ["203.0.113.0/24", "2001:db8::/32"]}
"#,
    );
}

#[test]
fn a_schedule_for_a_receiver_without_keys_is_explained_as_the_golden_one() {
    golden(
        "schedule",
        "{idempotency: {receiver: None}, retry: {backoff: Schedule, schedule: [500ms, 5m, 30m], maxAttempts: 40, maxAge: 7d}}",
    );
}

#[test]
fn the_numbers_in_circulation_are_the_tables() {
    let document = document("{}");
    let wait = |failure: usize| document["waits"][failure - 1].clone();
    for (failure, max_seconds, sum_seconds) in
        [(1, 2, 2), (5, 32, 62), (9, 512, 1_022), (10, 1_024, 2_046), (12, 3_600, 7_694), (13, 3_600, 11_294)]
    {
        let line = wait(failure);
        assert_eq!(line["max_ms"].as_u64(), Some(max_seconds * 1_000), "{line}");
        assert_eq!(line["mean_ms"].as_u64(), Some(max_seconds * 500), "{line}");
        assert_eq!(line["cumulative_max_ms"].as_u64(), Some(sum_seconds * 1_000), "{line}");
    }
    let ten = with("{retry: {maxAttempts: 10}}", |policy| policy.text(80));
    assert!(ten.contains("10 attempts span at most 17m 2s, on average 8m 31s"), "{ten}");
    let fourteen = with("{}", |policy| policy.text(80));
    assert!(fourteen.contains("14 attempts span at most 3h 8m, on average 1h 34m"), "{fourteen}");
}

#[test]
fn rc_40_no_number_of_attempts_overflows_the_table() {
    for attempts in [2_u32, 25, 26, 27, 31, 32, 63, 64, 65, 100, 1_000] {
        let spec = format!("{{retry: {{maxAttempts: {attempts}, base: 1h, cap: 7d, maxAge: 90d}}}}");
        let table = with(&spec, |policy| policy.table());
        // Its header, and of what is not shown in full the last wait and a line that says so.
        assert!(table.lines().count() <= SHOWN + 3, "{table}");
        assert_eq!(table.contains("left out"), attempts > 26, "{attempts}: {table}");
        let last = (attempts - 1).to_string();
        assert!(table.lines().any(|line| line.split_whitespace().next() == Some(last.as_str())), "{attempts}: {table}");
    }
    assert!(with("{retry: {maxAttempts: 1}}", |policy| policy.text(80)).contains("One attempt, so there is no wait."));
}

#[test]
fn what_is_taken_for_granted_is_said_and_only_then() {
    for (spec, said) in [
        ("{}", false),
        ("{idempotency: {}}", false),
        ("{idempotency: {receiver: null, window: 24h}}", false),
        ("{idempotency: {receiver: Enforced}}", true),
        ("{idempotency: {receiver: None}}", true),
    ] {
        assert_eq!(with(spec, |policy| policy.text(80)).contains("TAKEN FOR GRANTED"), !said, "{spec}");
        assert_eq!(document(spec)["receiver_said"].as_bool(), Some(said), "{spec}");
    }
}

#[test]
fn the_span_is_held_against_window_and_age() {
    let whole = |spec: &str| with(spec, |policy| words::whole(policy).join("\n"));
    assert!(whole("{idempotency: {window: 24h}}").contains("window 24h is as long as that or longer"));
    assert!(whole("{idempotency: {window: 30m}}").contains("window 30m is shorter"));
    assert!(whole("{idempotency: {receiver: None, window: 30m}}").contains("window has no say"));
    assert!(
        whole("{retry: {maxAge: 1h}}").contains("exhausted after attempt 12 of 14"),
        "{}",
        whole("{retry: {maxAge: 1h}}")
    );
    assert!(whole("{}").contains("maxAge 24h is longer"));
}

#[test]
fn spans_read_well() {
    let texts = [0, 1, 999, 1_000, 1_550, 59_999, 60_000, 61_000, 3_600_000, 11_294_000, 172_800_000]
        .map(|ms| words::span(Duration::from_millis(ms)));
    assert_eq!(texts, ["0s", "1ms", "999ms", "1s", "1.5s", "59.9s", "1m", "1m 1s", "1h", "3h 8m", "2d"]);
}
