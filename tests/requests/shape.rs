//! What the receiver sees: method, URL, headers, body.

use http::{Method, Response};

use crate::{
    receiver::{Receiver, Seen, answer},
    sender::{send, send_row, sender, short},
};

/// Sends one row and returns what the receiver saw.
async fn seen(lines: &str, secrets: &[(&str, &str)], path: &str, key: &str, headers: Option<&str>) -> Seen {
    let receiver = Receiver::plain().await;
    let sent = send_row(&sender(lines, secrets), &receiver.url(path), key, r#"{"n": 1}"#, headers).await;
    assert_eq!(short(&sent), "201", "{sent:?}");
    receiver.seen().remove(0)
}

#[tokio::test]
async fn tenant_operation_and_attempt_are_there_for_the_receivers_logs() {
    let seen = seen("", &[], "/hook", "key-1", None).await;
    assert_eq!((seen.method.as_str(), seen.uri.as_str(), seen.body.as_str()), ("POST", "/hook", r#"{"n": 1}"#));
    for (name, value) in [
        ("outbox-tenant", "6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11"),
        ("outbox-operation", "create_invoice"),
        ("outbox-attempt", "3"),
        ("idempotency-key", "key-1"),
        ("content-type", "application/json"),
        ("accept-encoding", "identity"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn the_key_can_travel_in_the_url() {
    const PATH: &str = "/by/{key}/{keyHash}?k={key}&h={keyHash}&other={brace}";
    let ours = format!("create:{}", "0123456789abcdef0123456789abcdef01234567");
    for (key, expected) in [
        // The digest of a key that has our form; else the first 40 hex digits of the key's SHA-256.
        (
            ours.as_str(),
            "/by/create%3A0123456789abcdef0123456789abcdef01234567/0123456789abcdef0123456789abcdef01234567\
             ?k=create%3A0123456789abcdef0123456789abcdef01234567&h=0123456789abcdef0123456789abcdef01234567&other={brace}",
        ),
        ("a/b?c=d&e#%", "/by/a%2Fb%3Fc%3Dd%26e%23%25/KEYHASH?k=a%2Fb%3Fc%3Dd%26e%23%25&h=KEYHASH&other={brace}"),
    ] {
        let seen = seen("request: {method: PUT}", &[], PATH, key, None).await;
        assert_eq!(seen.method, Method::PUT.as_str());
        let digest = sha256_hex(key);
        assert_eq!(seen.uri, expected.replace("KEYHASH", &digest[..40]), "{key}");
        assert_eq!(seen.header("idempotency-key"), Some(key));
    }
}

fn sha256_hex(text: &str) -> String {
    use sha2::Digest;
    use std::fmt::Write;
    sha2::Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

#[tokio::test]
async fn a_rows_own_headers_go_along_but_override_neither_the_key_nor_credentials() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = format!(
        r#"{{"traceparent": "{TRACE}", "Authorization": "Bearer mine", "X-Api-Key": "mine", "X-Source": "row", "Outbox-Tenant": "mine"}}"#
    );
    let lines = "request: {headers: {X-Source: policy}, secretHeaders: [{name: X-Api-Key, secretRef: {name: crm, key: k}}], \
                 authentication: {bearer: {secretRef: {name: crm, key: token}}}}";
    let seen = seen(lines, &[("crm/k", "k3y"), ("crm/token", "t0ken\n")], "/", "key-1", Some(&headers)).await;
    for (name, value) in [
        ("traceparent", TRACE),
        ("authorization", "Bearer t0ken"),
        ("x-api-key", "k3y"),
        ("x-source", "row"),
        ("outbox-tenant", "6f0f3c4e-8f6b-4a53-9b0e-3a3c0d9f1a11"),
        ("idempotency-key", "key-1"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
        assert_eq!(seen.headers.get_all(name).iter().count(), 1, "{name}");
    }
    // What would change the key or the connection is no request at all.
    let receiver = Receiver::plain().await;
    for refused in ["Idempotency-Key", "Content-Type", "Host", "Transfer-Encoding"] {
        let headers = format!(r#"{{"{refused}": "x"}}"#);
        let seen = send_row(&sender("", &[]), &receiver.url("/"), "key-1", "{}", Some(&headers)).await;
        assert_eq!(short(&seen), "not built: invalid", "{refused}");
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let receiver = Receiver::start(None, |seen: &Seen| match seen.uri.as_str() {
        "/moved" => Response::builder().status(307).header("location", "/there").body(String::new()).unwrap(),
        _ => answer(201, "{}"),
    })
    .await;
    assert_eq!(short(&send(&sender("", &[]), &receiver.url("/moved")).await), "307");
    assert_eq!(receiver.seen().iter().map(|seen| seen.connection).collect::<Vec<_>>(), [0]);
}
