//! `request.signing`: a receiver verifies as Standard Webhooks says.

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{
    receiver::{Receiver, Seen},
    sender::{NOW, credentials, policy, send_row, sender, short, try_policy},
};

const SIGNED: &str =
    "request: {signing: {standardWebhooks: {secretRefs: [{name: hooks, key: current}, {name: hooks, key: previous}]}}}";
const CURRENT: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const PREVIOUS: &str = "whsec_cHJldmlvdXMtc2VjcmV0LW9mLWhvb2tz";

/// Whether one of the signatures is by this secret: what a receiver does.
fn verifies(seen: &Seen, secret: &str) -> bool {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let id = seen.header("webhook-id").unwrap();
    let timestamp = seen.header("webhook-timestamp").unwrap();
    seen.header("webhook-signature").unwrap().split(' ').any(|signature| {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(format!("{id}.{timestamp}.{}", seen.body).as_bytes());
        let signature = STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
        mac.verify_slice(&signature).is_ok()
    })
}

#[tokio::test]
async fn a_request_carries_a_signature_by_each_secret_newest_first() {
    let receiver = Receiver::plain().await;
    let sender = sender(SIGNED, &[("hooks/current", CURRENT), ("hooks/previous", &format!("{PREVIOUS}\n"))]);
    // The vector that the libraries of Standard Webhooks test themselves with, by the database's clock.
    let (id, payload) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", r#"{"test": 2432232314}"#);
    assert_eq!(short(&send_row(&sender, &receiver.url("/"), id, payload, None).await), "201");
    let seen = &receiver.seen()[0];
    assert_eq!(seen.header("webhook-id"), Some(id));
    assert_eq!(seen.header("webhook-timestamp"), Some(NOW.as_secs().to_string().as_str()));
    let signatures: Vec<&str> = seen.header("webhook-signature").unwrap().split(' ').collect();
    assert_eq!(signatures.len(), 2);
    assert_eq!(signatures[0], "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    assert!(verifies(seen, CURRENT) && verifies(seen, PREVIOUS));
    assert!(!verifies(seen, "whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldA=="));
}

#[tokio::test]
async fn a_row_cannot_sign_for_itself() {
    let receiver = Receiver::plain().await;
    let signing = sender(SIGNED, &[("hooks/current", CURRENT), ("hooks/previous", PREVIOUS)]);
    for name in ["webhook-id", "Webhook-Timestamp", "webhook-signature"] {
        let headers = format!(r#"{{"{name}": "v1,x"}}"#);
        let seen = send_row(&signing, &receiver.url("/"), "key-1", "{}", Some(&headers)).await;
        assert_eq!(short(&seen), "not built: invalid", "{name}");
        // Without signing they are headers as any others.
        let seen = send_row(&sender("", &[]), &receiver.url("/"), "key-1", "{}", Some(&headers)).await;
        assert_eq!(short(&seen), "201", "{name}");
    }
}

#[test]
fn what_cannot_be_signed_with_is_refused_with_its_place() {
    let refused = credentials(&policy(SIGNED), &[("hooks/current", CURRENT), ("hooks/previous", "s3cret!")]);
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("secret hooks, key previous") && refused.contains("whsec_"), "{refused}");
    assert!(!refused.contains("s3cret"), "{refused}");
    for (lines, path) in [
        ("request: {signing: {standardWebhooks: {secretRefs: []}}}", "secretRefs"),
        (&SIGNED.replace("request: {", "request: {headers: {Webhook-Id: x}, "), "spec.request.headers.Webhook-Id"),
        (&format!("{SIGNED}\nidempotency: {{header: webhook-signature}}"), "spec.idempotency.header"),
    ] {
        let refused = try_policy(lines).unwrap_err();
        assert!(refused.contains(path), "{refused}");
    }
}
