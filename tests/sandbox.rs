//! The sandbox over real sockets: what a relay would meet.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should say where")]

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use outbox_operator::sandbox::{Answered, Ledger, RequestRecord, Sandbox, step_text};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Far more than anything here takes; reached only when a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn client() -> Client {
    // Fails only if another test was faster, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .unwrap()
}

async fn sandbox() -> Sandbox {
    Sandbox::start_local().await.unwrap()
}

fn post(client: &Client, url: &str, key: &str) -> RequestBuilder {
    client.post(url).header("Idempotency-Key", key).body("{}")
}

async fn status(client: &Client, url: &str, key: &str) -> u16 {
    post(client, url, key).send().await.unwrap().status().as_u16()
}

async fn json(response: Response) -> Value {
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

async fn get(sandbox: &Sandbox, path: &str) -> Value {
    json(client().get(format!("http://{}{path}", sandbox.addr())).send().await.unwrap()).await
}

/// Sends bytes on a connection of its own and gives back what came until its end.
async fn raw(addr: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(addr).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the connection ends")?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn raw_post(path: &str, key: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\ncontent-length: 2\r\n\r\n{{}}")
}

#[tokio::test]
async fn each_key_goes_through_the_script_by_itself() {
    let (sandbox, client) = (sandbox().await, client());
    let url = sandbox.url("500x2,429:2,201");
    for key in ["a", "b"] {
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push(status(&client, &url, key).await);
        }
        assert_eq!(seen, [500, 500, 429, 201, 201], "{key}");
    }
    let counts = sandbox.ledger().counts();
    assert_eq!((counts.requests, counts.effects, counts.keys, counts.repeats, counts.replays), (10, 2, 2, 8, 2));
    assert_eq!(counts.duplicate_effects, 0);
}

#[tokio::test]
async fn a_repeat_of_an_executed_key_gets_the_stored_answer_and_makes_no_effect() {
    let (sandbox, client) = (sandbox().await, client());
    let first = post(&client, &sandbox.url("202:%2Fi%2F7,500"), "k").send().await.unwrap();
    assert!(first.headers().get("idempotent-replayed").is_none());
    // The path of the repeat does not matter: the key is what was executed.
    let second = post(&client, &sandbox.url("500"), "k").send().await.unwrap();
    assert_eq!(second.headers()["idempotent-replayed"], "true");
    assert_eq!((second.status().as_u16(), second.headers()["location"].to_str().unwrap()), (202, "/i/7"));
    assert_eq!(json(first).await, json(second).await);
    assert_eq!(sandbox.ledger().effects().len(), 1);
    assert_eq!(sandbox.ledger().requests_of("k")[1].answered, Answered::Status(202));
}

#[tokio::test]
async fn without_deduplication_each_2xx_is_an_effect() {
    let (sandbox, client) = (sandbox().await, client());
    let url = format!("{}?dedup=off", sandbox.url("201"));
    for _ in 0..3 {
        assert_eq!(status(&client, &url, "k").await, 201);
    }
    let counts = sandbox.ledger().counts();
    assert_eq!((counts.effects, counts.duplicate_effects, counts.replays), (3, 2, 0));
}

#[tokio::test]
async fn requests_without_a_key_are_never_taken_for_repeats() {
    let (sandbox, client) = (sandbox().await, client());
    let url = sandbox.url("503,201/own");
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(client.post(&url).body("{}").send().await.unwrap().status().as_u16());
    }
    assert_eq!(seen, [503, 201, 201]);
    let counts = sandbox.ledger().counts();
    assert_eq!((counts.keyless, counts.keys, counts.repeats, counts.effects), (3, 0, 0, 2));
}

#[tokio::test]
async fn a_record_holds_the_request_as_it_was_sent() {
    let (sandbox, client) = (sandbox().await, client());
    let body = r#"{"n": 12345678901234567890123, "t": 1.10, "å": null}"#;
    let url = format!("http://{}/v1/invoices/7?a=b%20c", sandbox.addr());
    let request = post(&client, &url, "create_invoice:å").header("X-Twice", "1").header("X-Twice", "2").body(body);
    request.send().await.unwrap();
    let record = sandbox.ledger().requests().remove(0);
    assert_eq!(record.body.as_deref(), Some(body));
    assert_eq!(record.body_bytes, body.len() as u64);
    assert_eq!((record.method.as_str(), record.path.as_str()), ("POST", "/v1/invoices/7?a=b%20c"));
    assert_eq!(record.key.as_deref(), Some("create_invoice:å"));
    assert_eq!(record.headers.iter().filter(|(name, _)| name == "x-twice").count(), 2);
    assert_eq!((record.answered, record.effect, record.connection), (Answered::Status(201), Some(1), 1));
    assert!(record.ended_at.unwrap() >= record.at);

    // The same over HTTP, as JSON. The hash is the one of `printf '{}' | sha256sum`.
    let empty = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    assert_eq!(status(&client, &sandbox.url("201"), "other").await, 201);
    let listed = get(&sandbox, "/requests?key=other").await;
    assert_eq!((listed.as_array().unwrap().len(), listed[0]["body_sha256"].as_str()), (1, Some(empty)));
    assert_eq!(listed[0]["answered"], "201");
    assert_eq!(get(&sandbox, "/requests?after=1").await, listed);
    let effects = get(&sandbox, "/effects?key=create_invoice%3A%C3%A5").await;
    assert_eq!((effects[0]["id"].as_str(), effects[0]["request"].as_u64()), (Some("eff-1"), Some(1)));
    assert_eq!(get(&sandbox, "/effects").await.as_array().unwrap().len(), 2);
    assert_eq!(get(&sandbox, "/keys?key=other").await[0]["effects"], 1);
    assert_eq!(get(&sandbox, "/counts").await["keys"], 2);
}

#[tokio::test]
async fn a_changed_body_under_the_same_key_is_counted() {
    let (sandbox, client) = (sandbox().await, client());
    for body in ["{}", "{}", "{ }"] {
        post(&client, &sandbox.url("500"), "k").body(body).send().await.unwrap();
    }
    assert_eq!(sandbox.ledger().counts().changed_bodies, 1);
    assert_eq!(sandbox.ledger().key("k").unwrap().changed_bodies, 1);
}

#[tokio::test]
async fn connections_break_as_asked_after_the_request_was_read() {
    let sandbox = sandbox().await;
    let addr = sandbox.addr();
    let reset = raw(addr, &raw_post("/do/reset,201", "r")).await.unwrap_err();
    assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(raw(addr, &raw_post("/do/close,201", "c")).await.unwrap(), "");
    assert!(!raw(addr, &raw_post("/do/garbage,201", "g")).await.unwrap().starts_with("HTTP"));
    let cut = raw(addr, &raw_post("/do/cut", "cut")).await.unwrap();
    assert!(cut.starts_with("HTTP/1.1 201") && !cut.ends_with('}'), "{cut}");
    let bye = raw(addr, &raw_post("/do/bye", "bye")).await.unwrap();
    assert!(bye.ends_with("{\"id\":\"eff-2\"}") && !bye.to_lowercase().contains("connection:"), "{bye}");
    assert!(raw(addr, &raw_post("/do/done-reset,201", "d")).await.is_err());

    let answered: Vec<String> = sandbox.ledger().requests().iter().map(|r| r.answered.to_string()).collect();
    assert_eq!(answered, ["reset", "closed", "garbage", "cut", "201", "reset"]);
    assert!(sandbox.ledger().requests().iter().all(|r| r.body.as_deref() == Some("{}")));
    let effects: Vec<_> = sandbox.ledger().effects().into_iter().map(|e| e.key.unwrap()).collect();
    assert_eq!(effects, ["cut", "bye", "d"]);
    // The repeats find what was done and what was not.
    let client = client();
    for (key, replayed) in [("r", false), ("c", false), ("g", false), ("cut", true), ("d", true)] {
        let answer = post(&client, &sandbox.url("201"), key).send().await.unwrap();
        assert_eq!(answer.headers().contains_key("idempotent-replayed"), replayed, "{key}");
    }
    assert_eq!(sandbox.ledger().counts().duplicate_effects, 0);
}

#[tokio::test]
async fn a_request_that_hangs_ends_when_its_client_goes() {
    let sandbox = sandbox().await;
    for (path, effects) in [("/do/hang", 0), ("/do/lost", 1)] {
        sandbox.ledger().reset();
        let mut stream = TcpStream::connect(sandbox.addr()).await.unwrap();
        stream.write_all(raw_post(path, "k").as_bytes()).await.unwrap();
        sandbox.ledger().wait_until(PATIENCE, |c| c.open == 1 && c.effects == effects).await.unwrap();
        assert_eq!(sandbox.ledger().requests()[0].answered, Answered::Open);
        drop(stream);
        sandbox.ledger().wait_until(PATIENCE, |c| c.open == 0).await.unwrap();
        assert_eq!(sandbox.ledger().requests()[0].answered, Answered::ClientLeft, "{path}");
    }
    assert_eq!(status(&client(), &sandbox.url("500"), "k").await, 201);
}

#[tokio::test]
async fn slow_work_goes_on_when_the_client_has_gone() {
    let sandbox = sandbox().await;
    let mut stream = TcpStream::connect(sandbox.addr()).await.unwrap();
    stream.write_all(raw_post("/do/gate:g", "k").as_bytes()).await.unwrap();
    sandbox.ledger().wait_until(PATIENCE, |c| c.requests == 1).await.unwrap();
    drop(stream);
    let left = |r: &RequestRecord| r.answered == Answered::ClientLeft;
    sandbox.ledger().wait_for(PATIENCE, |l| l.requests().first().filter(|r| left(r)).cloned()).await.unwrap();
    assert_eq!(sandbox.ledger().counts().effects, 0);
    assert!(sandbox.ledger().open_gate("g"));
    sandbox.ledger().wait_until(PATIENCE, |c| c.effects == 1 && c.open == 0).await.unwrap();
    assert_eq!(sandbox.ledger().requests()[0].effect, Some(1));
}

#[tokio::test]
async fn a_slow_step_takes_its_time_and_then_does_the_other() {
    let (sandbox, client) = (sandbox().await, client());
    let started = Instant::now();
    assert_eq!(status(&client, &sandbox.url("slow:150"), "a").await, 201);
    assert_eq!(status(&client, &sandbox.url("slow:150:422"), "b").await, 422);
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(sandbox.ledger().counts().effects, 1);
}

#[tokio::test]
async fn a_key_in_work_is_busy_for_others() {
    let (sandbox, client) = (sandbox().await, client());
    let url = format!("{}?busy=409:1", sandbox.url("gate:b"));
    let first = tokio::spawn(post(&client, &url, "k").send());
    // It is counted at its head, but in work only once its body has come.
    let in_work = |ledger: &Ledger| ledger.requests().first()?.body.clone();
    sandbox.ledger().wait_for(PATIENCE, in_work).await.unwrap();
    let busy = post(&client, &url, "k").send().await.unwrap();
    assert_eq!(busy.status(), 409);
    assert_eq!(busy.headers()["retry-after"], "1");
    let opened = client.post(format!("http://{}/gate/b", sandbox.addr())).send().await.unwrap();
    assert_eq!(opened.status(), 200);
    assert_eq!(first.await.unwrap().unwrap().status(), 201);
    let counts = sandbox.ledger().counts();
    assert_eq!((counts.effects, counts.overlaps), (1, 1));
}

#[tokio::test]
async fn two_at_once_with_one_key_make_one_effect() {
    let (sandbox, client) = (sandbox().await, client());
    let url = sandbox.url("gate:both");
    let both: Vec<_> = (0..2).map(|_| tokio::spawn(post(&client, &url, "k").send())).collect();
    sandbox.ledger().wait_until(PATIENCE, |c| c.open == 2).await.unwrap();
    sandbox.ledger().open_gate("both");
    for one in both {
        assert_eq!(one.await.unwrap().unwrap().status(), 201);
    }
    let counts = sandbox.ledger().counts();
    assert_eq!((counts.effects, counts.replays), (1, 1));
}

#[tokio::test]
async fn statuses_carry_their_headers_and_bodies() {
    let (sandbox, client) = (sandbox().await, client());
    let send = |step: String, key: &'static str| post(&client, &sandbox.url(&step), key).send();
    let wait = send("409:Fri%2C%2031%20Dec%209999%2023%3A59%3A59%20GMT".into(), "a").await.unwrap();
    assert_eq!(wait.headers()["retry-after"], "Fri, 31 Dec 9999 23:59:59 GMT");
    let moved = send(format!("301:{}", step_text("http://elsewhere.test/login?x=1,2")), "b").await.unwrap();
    assert_eq!(
        (moved.status().as_u16(), &moved.headers()["location"]),
        (301, &"http://elsewhere.test/login?x=1,2".parse().unwrap())
    );
    let empty = send("empty".into(), "c").await.unwrap();
    assert_eq!(empty.headers()["content-type"], "application/json");
    assert_eq!(empty.text().await.unwrap(), "");
    assert_eq!(send("204".into(), "d").await.unwrap().status(), 204);
    let body = send(format!("body-200:{}", step_text(r#"{"errors":[{"m":"a,b"}]}"#)), "e").await.unwrap();
    assert_eq!((body.status().as_u16(), body.text().await.unwrap().as_str()), (200, r#"{"errors":[{"m":"a,b"}]}"#));
    let big = send("big:100000".into(), "f").await.unwrap().text().await.unwrap();
    let parsed: Value = serde_json::from_str(&big).unwrap();
    assert_eq!((big.len(), parsed["id"].as_str()), (100_000, Some("eff-4")));
    let url = format!("{}?header=X-Request-Id%3A%207&dedup=on", sandbox.url("408"));
    assert_eq!(post(&client, &url, "g").send().await.unwrap().headers()["x-request-id"], "7");
    assert_eq!(sandbox.ledger().counts().effects, 4);
}

#[tokio::test]
async fn a_drip_never_ends_but_its_status_is_known() {
    let (sandbox, client) = (sandbox().await, client());
    let mut answer = post(&client, &sandbox.url("drip"), "k").send().await.unwrap();
    assert_eq!(answer.status(), 201);
    for _ in 0..3 {
        assert!(!answer.chunk().await.unwrap().unwrap().is_empty());
    }
    assert_eq!(sandbox.ledger().counts().effects, 1);
}

#[tokio::test]
async fn a_kept_answer_is_repeated_without_an_effect() {
    let (sandbox, client) = (sandbox().await, client());
    let url = sandbox.url("kept-500,201");
    assert_eq!(status(&client, &url, "k").await, 500);
    let again = post(&client, &url, "k").send().await.unwrap();
    assert_eq!((again.status().as_u16(), &again.headers()["idempotent-replayed"]), (500, &"true".parse().unwrap()));
    assert_eq!(sandbox.ledger().counts().effects, 0);
}

#[tokio::test]
async fn what_cannot_be_read_is_a_400_that_names_it() {
    let (sandbox, client) = (sandbox().await, client());
    for (path, named) in [
        ("bogus", "unknown step \"bogus\""),
        ("slow:x", "slow:x"),
        ("201?dedup=maybe", "dedup"),
        ("", "a script needs"),
    ] {
        let answer = post(&client, &sandbox.url(path), "k").send().await.unwrap();
        assert_eq!(answer.status(), 400);
        let text = answer.text().await.unwrap();
        assert!(text.contains(named), "{text}");
    }
    assert_eq!(sandbox.ledger().counts().effects, 0);
}

#[tokio::test]
async fn a_request_that_breaks_off_is_no_effect() {
    let sandbox = sandbox().await;
    let mut stream = TcpStream::connect(sandbox.addr()).await.unwrap();
    let half = "POST /do/201 HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: 9\r\n\r\n{\"a\"";
    stream.write_all(half.as_bytes()).await.unwrap();
    sandbox.ledger().wait_until(PATIENCE, |c| c.open == 1).await.unwrap();
    drop(stream);
    let counts = sandbox.ledger().wait_until(PATIENCE, |c| c.open == 0).await.unwrap();
    assert_eq!(counts.effects, 0);
    let record = &sandbox.ledger().requests()[0];
    assert_eq!((record.answered, record.body_sha256.as_deref()), (Answered::RequestCut, None));
}

#[tokio::test]
async fn the_key_may_be_in_another_header() {
    let (sandbox, client) = (sandbox().await, client());
    let url = format!("{}?key=X-Request-Key", sandbox.url("500,201"));
    for expected in [500, 201, 201] {
        let answer = client.post(&url).header("X-Request-Key", "k").send().await.unwrap();
        assert_eq!(answer.status(), expected);
    }
    assert_eq!(sandbox.ledger().key("k").unwrap().requests, 3);
}

#[tokio::test]
async fn more_listeners_share_one_ledger() {
    let mut sandbox = sandbox().await;
    let second = sandbox.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let client = client();
    assert_eq!(status(&client, &sandbox.url("201"), "k").await, 201);
    let again = post(&client, &format!("http://{second}/"), "k").send().await.unwrap();
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    let counts = sandbox.ledger().counts();
    assert_eq!((counts.connections, counts.effects), (2, 1));
}

#[tokio::test]
async fn a_row_whose_path_is_a_question_is_still_a_row() {
    let (sandbox, client) = (sandbox().await, client());
    assert_eq!(client.get(format!("http://{}/healthz", sandbox.addr())).send().await.unwrap().status(), 200);
    assert_eq!(status(&client, &format!("http://{}/reset", sandbox.addr()), "k").await, 201);
    assert_eq!(sandbox.ledger().counts().effects, 1);
    let reset = client.post(format!("http://{}/reset", sandbox.addr())).send().await.unwrap();
    assert_eq!((reset.status().as_u16(), sandbox.ledger().counts().requests), (200, 0));
    // Numbers go on, so that names of effects stay unique.
    assert_eq!(json(post(&client, &sandbox.url("201"), "k").send().await.unwrap()).await["id"], "eff-2");
}

#[tokio::test]
async fn memory_is_bounded_and_what_was_dropped_is_counted() {
    let (sandbox, client) = (sandbox().await, client());
    let body = "x".repeat(1 << 20);
    for key in 0..70 {
        post(&client, &sandbox.url("201"), &format!("k{key}")).body(body.clone()).send().await.unwrap();
    }
    let counts = sandbox.ledger().counts();
    assert!((7..=10).contains(&counts.dropped_requests), "{counts:?}");
    assert_eq!((counts.requests, counts.effects, counts.keys), (70, 70, 70));
    assert_eq!(sandbox.ledger().requests().len() as u64, 70 - counts.dropped_requests);
    // A body past the limit is hashed and not kept.
    post(&client, &sandbox.url("201"), "huge").body("x".repeat((1 << 20) + 1)).send().await.unwrap();
    let record = sandbox.ledger().requests_of("huge").remove(0);
    assert_eq!((record.body, record.body_bytes), (None, (1 << 20) + 1));
    assert!(record.body_sha256.is_some());
}

#[tokio::test]
async fn nothing_listens_after_shutdown() {
    let sandbox = sandbox().await;
    let addr = sandbox.addr();
    let hanging = tokio::spawn(async move { raw(addr, &raw_post("/do/hang", "k")).await });
    sandbox.ledger().wait_until(PATIENCE, |c| c.open == 1).await.unwrap();
    let ledger = sandbox.ledger().clone();
    tokio::time::timeout(PATIENCE, sandbox.shutdown()).await.unwrap();
    assert_eq!(hanging.await.unwrap().unwrap_or_default(), "");
    assert!(TcpStream::connect(addr).await.is_err());
    assert_eq!(ledger.counts().open, 0);
}
