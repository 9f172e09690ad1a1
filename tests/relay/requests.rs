//! A policy's secrets, from their folder to the wire, through a whole relay. What each field does is tested in
//! `tests/requests`.

use outbox_operator::sandbox::step_text;

use crate::support::{Relay, World};

#[tokio::test]
async fn tokens_and_signatures_come_from_the_folder_of_secrets_and_are_in_no_log() {
    let world = World::new().await;
    let secrets = world.folder.path().join("secrets");
    for (name, key, value) in [
        ("crm", "id", "relay"),
        ("crm", "secret", "s3cret"),
        ("hooks", "current", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"),
    ] {
        std::fs::create_dir_all(secrets.join(name)).unwrap();
        std::fs::write(secrets.join(name).join(key), value).unwrap();
    }
    let token = step_text(r#"{"access_token": "t0ken", "token_type": "Bearer", "expires_in": 3600}"#);
    let token_url = format!("{}?key=authorization", world.receiver.url(&format!("body:{token}")));
    let file = world.documents(
        "",
        &format!(
            "request: {{signing: {{standardWebhooks: {{secretRefs: [{{name: hooks, key: current}}]}}}}, authentication: \
             {{oauth2ClientCredentials: {{tokenUrl: '{token_url}', clientIdSecretRef: {{name: crm, key: id}}, \
             clientSecretRef: {{name: crm, key: secret}}}}}}}}"
        ),
    );
    let log = "info,outbox_operator=trace,hyper=trace,hyper_util=trace,reqwest=trace";
    let relay = Relay::start(&world.url, &file, &["--secrets-dir", secrets.to_str().unwrap(), "--log", log]);
    relay.ready().await;
    let ids = [world.insert_script("one", "500,201").await, world.insert_script("two", "201").await];
    for id in ids {
        assert_eq!(world.ended(id).await.status, "succeeded");
    }
    let mut asked = 0;
    for request in world.receiver.ledger().requests() {
        if request.header("content-type") == Some("application/x-www-form-urlencoded") {
            asked += 1;
            continue;
        }
        assert_eq!(request.header("authorization"), Some("Bearer t0ken"));
        assert_eq!(request.header("webhook-id"), request.header("idempotency-key"));
        assert!(request.header("webhook-signature").unwrap().starts_with("v1,"));
        let seconds = request.header("webhook-timestamp").unwrap();
        let age = world.number(&format!("SELECT extract(epoch FROM now())::bigint - {seconds}")).await;
        assert!((0..60).contains(&age), "{age}");
    }
    assert_eq!(asked, 1);
    let log = relay.log().join("\n");
    for secret in ["t0ken", "s3cret", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}
