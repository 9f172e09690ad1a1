//! `request.authentication.oauth2ClientCredentials`: a token endpoint over real sockets.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::future::join_all;
use http::Response;
use outbox_operator::http::Sender;
use tokio::io::AsyncReadExt;

use crate::{
    certificates::Authority,
    receiver::{Receiver, Seen, Tls, answer, raw},
    sender::{Names, detail, send, sender_with, short, try_policy},
};

const SECRETS: &[(&str, &str)] = &[("crm/id", "relay:1\n"), ("crm/secret", "s3cret&=")];

/// A policy with a token endpoint there.
fn lines(token_url: &str, more: &str) -> String {
    format!(
        "request: {{authentication: {{oauth2ClientCredentials: {{tokenUrl: '{token_url}', clientIdSecretRef: {{name: crm, key: id}}, \
         clientSecretRef: {{name: crm, key: secret}}, {more}}}}}}}"
    )
}

fn fetching(token_url: &str, more: &str) -> Sender {
    sender_with(&lines(token_url, more), SECRETS, Arc::new(Names::default()))
}

/// A token endpoint that numbers its tokens, each good for so many seconds.
async fn numbering(expires_in: &'static str) -> Receiver {
    let number = AtomicUsize::new(0);
    Receiver::start(None, move |_| {
        let number = number.fetch_add(1, Ordering::Relaxed) + 1;
        answer(
            200,
            &format!(r#"{{"access_token": "t0ken-{number}", "token_type": "Bearer", "expires_in": {expires_in}}}"#),
        )
    })
    .await
}

fn authorizations(receiver: &Receiver) -> Vec<String> {
    receiver.seen().iter().map(|seen| seen.header("authorization").unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_token_is_asked_for_as_the_rfc_says_and_kept() {
    let (tokens, receiver) = (numbering("3600").await, Receiver::plain().await);
    let sender = fetching(
        &tokens.url("/oauth2/token?tenant=1"),
        "scopes: ['invoices:write', read], audience: 'https://crm.test/'",
    );
    for _ in 0..3 {
        assert_eq!(short(&send(&sender, &receiver.url("/")).await), "201");
    }
    assert_eq!(authorizations(&receiver), ["Bearer t0ken-1"; 3]);
    let asked = tokens.seen();
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].method.as_str(), asked[0].uri.as_str()), ("POST", "/oauth2/token?tenant=1"));
    assert_eq!(asked[0].header("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(
        asked[0].body,
        "grant_type=client_credentials&scope=invoices%3Awrite+read&audience=https%3A%2F%2Fcrm.test%2F"
    );
    let basic = asked[0].header("authorization").unwrap().strip_prefix("Basic ").unwrap();
    assert_eq!(STANDARD.decode(basic).unwrap(), b"relay%3A1:s3cret%26%3D");
}

#[tokio::test]
async fn attempts_that_need_a_token_at_once_wait_for_one_fetch() {
    let (tokens, receiver) = (numbering("3600").await, Receiver::plain().await);
    let sender = fetching(&tokens.url("/"), "");
    let endpoint = receiver.url("/");
    for sent in join_all((0..20).map(|_| send(&sender, &endpoint))).await {
        assert_eq!(short(&sent), "201");
    }
    assert_eq!(tokens.seen().len(), 1);
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends_and_never_used_after() {
    // Due for renewal after four fifths of a second, at an end after one.
    let (tokens, receiver) = (numbering("1").await, Receiver::plain().await);
    let sender = fetching(&tokens.url("/"), "");
    let started = tokio::time::Instant::now();
    while tokens.seen().len() < 3 {
        assert_eq!(short(&send(&sender, &receiver.url("/")).await), "201");
        assert!(started.elapsed().as_secs() < 30, "{:?}", tokens.seen().len());
    }
    // Three tokens cannot have come sooner than two of them were due.
    assert!(started.elapsed().as_millis() >= 1600, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_renewal_that_fails_leaves_the_token_at_hand() {
    let asked = AtomicUsize::new(0);
    let tokens = Receiver::start(None, move |_| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => answer(200, r#"{"access_token": "t0ken-1", "expires_in": 10}"#),
        _ => answer(500, ""),
    })
    .await;
    let receiver = Receiver::plain().await;
    let sender = fetching(&tokens.url("/"), "");
    // Due for renewal after eight seconds, with two more to go.
    while tokens.seen().len() < 2 {
        assert_eq!(short(&send(&sender, &receiver.url("/")).await), "201");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(authorizations(&receiver).iter().all(|sent| sent == "Bearer t0ken-1"));
    // Nor is it tried again at once.
    assert_eq!(short(&send(&sender, &receiver.url("/")).await), "201");
    assert_eq!(tokens.seen().len(), 2);
}

#[tokio::test]
async fn a_401_drops_the_token_and_the_next_attempt_gets_another() {
    let tokens = numbering("3600").await;
    let receiver = Receiver::start(None, |seen: &Seen| match seen.header("authorization") {
        Some("Bearer t0ken-1") => answer(401, ""),
        _ => answer(201, "{}"),
    })
    .await;
    let sender = fetching(&tokens.url("/"), "");
    assert_eq!(short(&send(&sender, &receiver.url("/")).await), "401");
    assert_eq!(short(&send(&sender, &receiver.url("/")).await), "201");
    assert_eq!(short(&send(&sender, &receiver.url("/")).await), "201");
    assert_eq!(authorizations(&receiver), ["Bearer t0ken-1", "Bearer t0ken-2", "Bearer t0ken-2"]);
    assert_eq!(tokens.seen().len(), 2);
}

#[tokio::test]
async fn no_token_is_a_retry_that_says_why_and_repeats_no_secret() {
    let receiver = Receiver::plain().await;
    let endless = format!(r#"{{"access_token": "t0ken", "padding": "{}"}}"#, "x".repeat(70_000));
    for (status, body, said) in [
        (401, r#"{"error": "invalid_client", "error_description": "t0ken s3cret"}"#, "it answered 401: invalid_client"),
        (400, r#"{"error": "t0ken s3cret"}"#, "it answered 400"),
        (500, "t0ken", "it answered 500"),
        (302, "t0ken", "it answered 302"),
        (200, "t0ken", "its answer is no JSON with an access_token"),
        (200, r#"{"access_token": "t0ken", "token_type": "mac"}"#, "its token is of another type than bearer"),
        (200, r#"{"access_token": "t0ken\u0001"}"#, "its token cannot be sent in a header"),
        (200, &endless, "its answer is longer than 65536 bytes"),
    ] {
        let body = body.to_owned();
        let tokens = Receiver::start(None, move |_| {
            Response::builder().status(status).header("location", "/elsewhere").body(body.clone()).unwrap()
        })
        .await;
        let seen = send(&fetching(&tokens.url("/"), ""), &receiver.url("/")).await;
        assert_eq!(short(&seen), "not executed: token");
        assert_eq!(detail(&seen), format!("token endpoint: {said}"));
        assert_eq!(tokens.seen().len(), 1, "{said}");
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn a_token_endpoint_that_hangs_takes_half_of_the_attempts_time_at_most() {
    let receiver = Receiver::plain().await;
    let silent = raw(|_, mut stream| {
        Box::pin(async move {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        })
    })
    .await;
    let lines = format!("{}\ntimeouts: {{connect: 500ms, total: 1s}}", lines(&format!("http://{silent}/"), ""));
    let sender = sender_with(&lines, SECRETS, Arc::new(Names::default()));
    let started = tokio::time::Instant::now();
    let endpoint = receiver.url("/");
    for seen in join_all((0..5).map(|_| send(&sender, &endpoint))).await {
        assert_eq!(
            (short(&seen).as_str(), detail(&seen)),
            ("not executed: token", "token endpoint: no answer within 500ms")
        );
    }
    assert!(started.elapsed().as_millis() < 5_000, "{:?}", started.elapsed());
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn those_who_waited_for_a_fetch_that_failed_share_its_failure() {
    let receiver = Receiver::plain().await;
    let tokens = Receiver::start(None, |_| answer(500, "")).await;
    let sender = fetching(&tokens.url("/"), "");
    let endpoint = receiver.url("/");
    for seen in join_all((0..20).map(|_| send(&sender, &endpoint))).await {
        assert_eq!(short(&seen), "not executed: token");
    }
    assert_eq!(tokens.seen().len(), 1);
}

#[tokio::test]
async fn egress_rules_and_authorities_hold_for_the_token_endpoint_too() {
    let receiver = Receiver::plain().await;
    let (tokens, names) = (numbering("3600").await, Arc::new(Names::default()));
    names.set("login.test", &["169.254.169.254"]);
    names.set("receiver.test", &["127.0.0.1"]);
    let port = tokens.address.port();
    for blocked in
        [format!("http://login.test:{port}/"), format!("http://[::1]:{port}/"), format!("http://localhost:{port}/")]
    {
        let lines = format!("{}\negress: {{allowCidrs: ['127.0.0.2/32']}}", lines(&blocked, ""));
        let sender = sender_with(&lines, SECRETS, Arc::<Names>::clone(&names));
        let seen = send(&sender, "http://127.0.0.2/").await;
        assert_eq!(short(&seen), "not executed: token", "{blocked}");
        assert!(detail(&seen).contains("is refused"), "{seen:?}");
    }
    assert_eq!(tokens.connections(), 0);

    let authority = Authority::new();
    let certified = authority.receiver();
    let secure = Receiver::start(Some(&Tls::new(&certified)), |_| answer(200, r#"{"access_token": "t0ken"}"#)).await;
    let stranger = send(&fetching(&secure.url("/"), ""), &receiver.url("/")).await;
    assert_eq!(short(&stranger), "not executed: token");
    assert!(detail(&stranger).contains("UnknownIssuer"), "{stranger:?}");
    let lines =
        lines(&secure.url("/"), "").replace("request: {", "request: {tls: {caSecretRef: {name: pki, key: ca}}, ");
    let secrets = [SECRETS[0], SECRETS[1], ("pki/ca", authority.pem.as_str())];
    let sender = sender_with(&lines, &secrets, Arc::new(Names::default()));
    assert_eq!(short(&send(&sender, &receiver.url("/")).await), "201");
}

#[test]
fn one_way_to_authenticate_and_a_token_url_that_can_be_asked() {
    let bearer =
        lines("https://login.test/t", "").replace("{oauth2", "{bearer: {secretRef: {name: a, key: b}}, oauth2");
    let refused = try_policy(&bearer).unwrap_err();
    assert!(refused.contains("spec.request.authentication: set one of bearer, basic and oauth2"), "{refused}");
    for url in
        ["login.test", "ftp://login.test/", "https://me:s3cret@login.test/", "https://login.test/#x", "https://a b/"]
    {
        let refused = try_policy(&lines(url, "")).unwrap_err();
        assert!(refused.contains("tokenUrl must be an http or https URL"), "{url}: {refused}");
        assert!(!refused.contains("s3cret"), "{refused}");
    }
    for good in ["https://login.test", "http://login.test:8080/a?b=c"] {
        try_policy(&lines(good, "")).unwrap();
    }
}
