//! Rows, policies and answers full of secrets, half of them failing in every way there is; then everything that people and
//! programs can read is searched.
//!
//! Two kinds of secrets: those of URLs, headers, credentials and of what receivers answer, which nothing may show, and
//! payloads, which are the application's own: JSON and YAML of the commands that are asked for rows show them, nothing else.

use std::{collections::BTreeSet, net::Ipv4Addr, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use outbox_operator::sandbox::step_text;
use sqlx::AssertSqlSafe;

use crate::{
    report,
    support::{Relay, TENANT, World, outbox},
};

/// In userinfo, paths, queries, headers, credentials and answers.
const HIDDEN: &str = "s3cr3t-hidden";
/// In payloads.
const PAYLOAD: &str = "s3cr3t-payload";
/// Series that one relay may have, whatever the rows say: 100 destinations of five outcomes, 64 reasons, and the rest.
const MOST_SERIES: usize = 700;

/// An endpoint with a secret wherever it can hold one.
fn endpoint(at: &str, script: &str, number: usize) -> String {
    format!(
        "http://bob:{HIDDEN}-{number}@{at}/do/{script}/{HIDDEN}-{number}?token={HIDDEN}-{number}&header=x-echo:{HIDDEN}"
    )
}

/// Ways to fail, as endpoints. `at` is the receiver, `other` another address of it, which `429` holds.
fn failing(at: &str, other: &str, number: usize) -> String {
    let location = step_text(&format!("http://eve:{HIDDEN}@elsewhere.test/{HIDDEN}?token={HIDDEN}"));
    let text = step_text(&format!(r#"{{"error": "bad token {HIDDEN}"}}"#));
    let of = |script: &str| endpoint(at, script, number);
    match number % 24 {
        0 => of("422"),
        1 => of(&format!("body-422:{text}")),
        2 => of(&format!("301:{location}")),
        3 => of("401"),
        4 => of("403"),
        5 => of("409"),
        6 => of("500"),
        7 => of("reset"),
        8 => of("close"),
        9 => of("garbage"),
        10 => of("cut"),
        11 => of(&format!("503:{HIDDEN}")),
        12 => endpoint(other, &format!("429:{HIDDEN}"), number),
        13 => endpoint("127.0.0.1:1", "201", number),
        14 => endpoint("nowhere.invalid", "201", number),
        15 => endpoint("169.254.169.254", "201", number),
        16 => endpoint(at, "201", number).replace("http://", "https://"),
        17 => endpoint(at, "201", number).replace("http://", "ftp://"),
        18 => format!("http://bob:{HIDDEN}@exa mple.test/{HIDDEN}"),
        19 => format!("http://bob:{HIDDEN}@127.0.0.1:99999/{HIDDEN}"),
        20 => format!("{HIDDEN}/{HIDDEN}"),
        21 => format!("http:///{HIDDEN}@?{HIDDEN}"),
        22 => format!("{}{}", endpoint(at, "422", number), HIDDEN.repeat(600)),
        _ => of("hang"),
    }
}

/// Headers of a row: most are sent, some can be neither sent nor shown.
fn headers(number: usize) -> String {
    match number % 60 {
        24 => format!(r#"{{"Idempotency-Key": "{HIDDEN}"}}"#),
        25 => format!(r#"{{"X-Row": "line\n{HIDDEN}"}}"#),
        26 => format!(r#"{{"bad name {HIDDEN}": "x"}}"#),
        27 => format!(r#"["{HIDDEN}"]"#),
        28 => format!(r#"{{"X-Row": {{"deep": "{HIDDEN}"}}}}"#),
        _ => format!(r#"{{"X-Row": "{HIDDEN}-{number}", "traceparent": "00-{number:032x}-00f067aa0ba902b7-01"}}"#),
    }
}

async fn everything_ended(world: &World) {
    let within = Duration::from_secs(if report::full() { 900 } else { 150 });
    let ended = async {
        loop {
            let open = world
                .number("SELECT count(*) FROM agent_outbox WHERE status IN ('pending', 'in_flight') OR (status = 'uncertain' AND next_attempt_at <> 'infinity')")
                .await;
            if open == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(within, ended).await.unwrap();
}

/// All that the database shows but what the application itself wrote into endpoint, headers and payload.
async fn tables(world: &World) -> Vec<(String, String)> {
    let names: Vec<String> = sqlx::query_scalar(
        "SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1",
    )
    .fetch_all(&world.pool)
    .await
    .unwrap();
    assert!(names.iter().any(|name| name == "agent_outbox_history"), "{names:?}");
    let mut texts = Vec::new();
    for name in names {
        let sql = format!("SELECT (to_jsonb(t) - 'endpoint' - 'headers' - 'payload')::text FROM {name} AS t");
        let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&world.pool).await.unwrap();
        texts.push((format!("table {name} ({} rows)", rows.len()), rows.join("\n")));
    }
    texts
}

/// Every command that speaks of rows, in every spelling; with its text, whether it is asked for payloads.
async fn commands(world: &World, file: &str) -> Vec<(String, String, bool)> {
    let id_of = async |condition: &str| {
        world.number(&format!("SELECT coalesce(min(id), 0) FROM agent_outbox WHERE {condition}")).await.to_string()
    };
    let mut shown = Vec::new();
    for condition in [
        "status = 'succeeded'",
        "reason = 'rejected'",
        "reason = 'redirected'",
        "reason = 'invalid'",
        "reason = 'blocked'",
        "reason = 'unauthorized'",
        "reason = 'exhausted'",
        "status = 'uncertain'",
    ] {
        shown.push(id_of(condition).await);
    }
    let (dead, uncertain) = (id_of("reason = 'rejected'").await, id_of("status = 'uncertain'").await);
    let revised = id_of("reason = 'unauthorized'").await;
    let mut runs: Vec<Vec<String>> = Vec::new();
    let mut run = |args: &[&str]| {
        for output in ["table", "json", "yaml"] {
            runs.push(args.iter().chain(&["-o", output]).map(ToString::to_string).collect());
        }
    };
    run(&["status"]);
    run(&["status", "--tenant", TENANT]);
    run(&["dead", "list", "--all"]);
    run(&["uncertain", "list", "--all"]);
    for id in &shown {
        run(&["dead", "show", id]);
    }
    run(&["dead", "replay", "--all", "--dry-run"]);
    run(&["dead", "dismiss", "--all", "--dry-run", "--note", "n"]);
    run(&["uncertain", "resolve", "--all", "--as", "dead", "--dry-run"]);
    run(&["dead", "replay", &uncertain]);
    run(&["dead", "dismiss", &dead, "--note", "n"]);
    run(&["cancel", &uncertain]);
    run(&["uncertain", "resolve", &dead, "--as", "retry"]);
    run(&["dead", "revise", &revised]);
    let insecure = endpoint("host.test", "201", 0);
    run(&[
        "enqueue",
        "--tenant",
        TENANT,
        "--operation",
        "o",
        "--entity",
        "e",
        "--key",
        "row-0",
        "--endpoint",
        &insecure,
        "--payload",
        r#"{"a": 1}"#,
    ]);
    runs.push(["policy", "explain", "-f", file].map(str::to_owned).to_vec());
    runs.push(["policy", "check", "-f", file].map(str::to_owned).to_vec());
    runs.push(["migrate"].map(str::to_owned).to_vec());
    let mut texts = Vec::new();
    for args in runs {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (_, out, err) = outbox(&args, Some(&world.url));
        assert!(args[0] == "policy" || !err.contains("Usage:"), "{args:?}: {err}");
        let asked_for_payloads =
            args[0] != "status" && (args.contains(&"json") || args.contains(&"yaml") || args.contains(&"show"));
        texts.push((
            format!("outbox {}", args[..args.len().min(3)].join(" ")),
            format!("{out}{err}"),
            asked_for_payloads,
        ));
    }
    texts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rc_18_no_secret_of_any_row_or_policy_is_shown_anywhere() {
    let _turn = report::turn().await;
    let count = if report::full() { 10_000 } else { 600 };
    let mut world = World::new().await;
    let other = world.receiver.listen((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap().to_string();
    let at = world.receiver.addr().to_string();
    let rows: Vec<(String, String, String, String)> = (0..count)
        .map(|number| {
            let endpoint =
                if number % 2 == 0 { endpoint(&at, "201", number) } else { failing(&at, &other, number / 2) };
            (format!("row-{number}"), endpoint, headers(number), format!(r#"{{"card": "{PAYLOAD}-{number}"}}"#))
        })
        .collect();
    sqlx::query(
        "INSERT INTO agent_outbox (tenant_id, operation, entity_id, idempotency_key, endpoint, headers, payload) \
         SELECT $1::uuid, 'o', 'e', key, endpoint, headers::jsonb, payload::jsonb \
         FROM unnest($2::text[], $3::text[], $4::text[], $5::text[]) AS new (key, endpoint, headers, payload)",
    )
    .bind(TENANT)
    .bind(rows.iter().map(|row| row.0.clone()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.1.clone()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.2.clone()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.3.clone()).collect::<Vec<_>>())
    .execute(&world.pool)
    .await
    .unwrap();

    let secrets = world.folder.path().join("secrets");
    std::fs::create_dir_all(secrets.join("crm")).unwrap();
    std::fs::write(secrets.join("crm/apiKey"), format!("{HIDDEN}-api-key")).unwrap();
    std::fs::write(secrets.join("crm/token"), format!("{HIDDEN}-token")).unwrap();
    let common = "timeouts: {connect: 500ms, total: 1s}\nretry: {base: 10ms, cap: 50ms, maxAttempts: 3}\nhistory: All\n\
                  destination: {hold: {afterFailures: 1000, base: 50ms, cap: 100ms}}\n\
                  response: {downstreamId: {pointer: /id}}\n";
    let policies = [
        format!(
            "{common}request:\n  secretHeaders: [{{name: X-Api-Key, secretRef: {{name: crm, key: apiKey}}}}]\n  authentication: {{bearer: {{secretRef: {{name: crm, key: token}}}}}}"
        ),
        // Without credentials of the policy's own, userinfo becomes basic authentication.
        format!("{common}request:\n  secretHeaders: [{{name: X-Api-Key, secretRef: {{name: crm, key: apiKey}}}}]"),
    ];
    let mut relays = Vec::new();
    let mut file = String::new();
    for (policy, format) in policies.iter().zip(["text", "json"]) {
        let written = world.documents("migrations: Manual\nconcurrency: 32", policy);
        let secrets = secrets.to_str().unwrap().to_owned();
        let log = ["--secrets-dir", &secrets, "--log", "debug", "--log-format", format];
        relays.push(Relay::start(&world.url, &written, &log));
        relays.last().unwrap().ready().await;
        file = written.to_str().unwrap().to_owned();
    }
    everything_ended(&world).await;

    // The secrets were there: the receiver got them, each in its place.
    let requests = world.receiver.ledger().requests();
    let got = |name: &str| -> BTreeSet<String> {
        requests.iter().filter_map(|request| request.header(name)).map(str::to_owned).collect()
    };
    let bearer = format!("Bearer {HIDDEN}-token");
    assert!(
        got("authorization").contains(&bearer) && got("authorization").iter().any(|value| value.starts_with("Basic "))
    );
    assert_eq!(got("x-api-key"), [format!("{HIDDEN}-api-key")].into());
    assert!(got("x-row").len() > count / 4);

    let mut texts: Vec<(String, String, bool)> = Vec::new();
    let mut series = 0;
    for (number, relay) in relays.iter().enumerate() {
        let (_, metrics) = relay.get("/metrics").await.unwrap();
        series = series.max(metrics.lines().filter(|line| !line.starts_with('#')).count());
        texts.push((format!("metrics of relay {number}"), metrics, false));
        texts.push((format!("readiness of relay {number}"), relay.get("/readyz").await.unwrap().1, false));
        texts.push((format!("log of relay {number}"), relay.log().join("\n"), false));
    }
    texts.extend(commands(&world, &file).await);
    texts.extend(tables(&world).await.into_iter().map(|(name, text)| (name, text, false)));

    // What basic authentication makes of `bob:` and the secret; the last group depends on what follows.
    let encoded = BASE64_STANDARD.encode(format!("bob:{HIDDEN}")).chars().take(20).collect::<String>();
    let mut searched = 0;
    let mut found = Vec::new();
    for (name, text, payloads) in &texts {
        searched += text.len();
        for needle in [HIDDEN, "bob", "token=", encoded.as_str()].into_iter().chain((!payloads).then_some(PAYLOAD)) {
            if let Some(at) = text.find(needle) {
                let from = (at.saturating_sub(80)..=at).find(|&from| text.is_char_boundary(from)).unwrap();
                found.push(format!("{name} shows {needle}: {:?}", text[from..].chars().take(200).collect::<String>()));
            }
        }
    }
    let ends: Vec<String> = sqlx::query_scalar(
        "SELECT count(*) || ' ' || status || coalesce(' (' || reason || ')', '') FROM agent_outbox GROUP BY status, reason ORDER BY count(*) DESC, 1",
    )
    .persistent(false)
    .fetch_all(&world.pool)
    .await
    .unwrap();
    report::print(&format!(
        "\n{count} rows with secrets in URL, headers and payload: {}\n{} texts of {} bytes searched (metrics, logs, tables, commands): {} secrets found; {series} series at most of one relay",
        ends.join(", "),
        texts.len(),
        searched,
        found.len()
    ));
    assert!(found.is_empty(), "{found:#?}");
    assert!(series <= MOST_SERIES, "{series} series");
    // Where a payload may be shown it is: the search would find it.
    assert!(texts.iter().any(|(_, text, payloads)| *payloads && text.contains(PAYLOAD)));
}
