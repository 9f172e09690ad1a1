//! `request.tls`: whom the relay believes, and what it shows.

use crate::{
    certificates::Authority,
    receiver::{Receiver, Tls},
    sender::{credentials, detail, policy, send, sender, short, try_policy},
};

const CA: &str = "request: {tls: {caSecretRef: {name: pki, key: ca.crt}}}";
const PAIR: &str = "request: {tls: {caSecretRef: {name: pki, key: ca.crt}, clientCertificateSecretRef: {name: me, key: tls.crt}, \
                    clientKeySecretRef: {name: me, key: tls.key}}}";
/// A failure that depends on who is first shows in one of so many tries.
const TRIES: usize = 20;

#[tokio::test]
async fn a_receiver_of_a_private_authority_is_believed_only_if_the_policy_names_it() {
    let authority = Authority::new();
    let certified = authority.receiver();
    let receiver = Receiver::tls(&Tls::new(&certified)).await;
    let stranger = send(&sender("", &[]), &receiver.url("/")).await;
    assert_eq!(short(&stranger), "not executed: tls");
    assert!(detail(&stranger).contains("UnknownIssuer"), "{stranger:?}");
    let known = sender(CA, &[("pki/ca.crt", &authority.pem)]);
    assert_eq!(short(&send(&known, &receiver.url("/")).await), "201");
    // A bundle holds several.
    let bundle = format!("# old\n{}\n# new\n{}", Authority::new().pem, authority.pem);
    assert_eq!(short(&send(&sender(CA, &[("pki/ca.crt", &bundle)]), &receiver.url("/")).await), "201");
    assert_eq!(receiver.seen().len(), 2);
}

#[tokio::test]
async fn rc_43_a_certificate_that_is_over_or_speaks_of_another_name_is_a_retry_that_says_so() {
    let authority = Authority::new();
    let expired = authority.expired();
    let other = authority.issue(&["somebody.test"], |_| {});
    for (certified, said) in [(expired, "expired"), (other, "not valid for name")] {
        let receiver = Receiver::tls(&Tls::new(&certified)).await;
        let seen = send(&sender(CA, &[("pki/ca.crt", &authority.pem)]), &receiver.url("/")).await;
        assert_eq!(short(&seen), "not executed: tls");
        assert!(detail(&seen).to_lowercase().contains(said), "{seen:?}");
        assert!(receiver.seen().is_empty());
    }
}

#[tokio::test]
async fn the_client_certificate_is_shown_to_a_receiver_that_asks() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let (certified, client) = (authority.receiver(), clients.issue(&["relay.test"], |_| {}));
    let secrets = [
        ("pki/ca.crt", authority.pem.as_str()),
        ("me/tls.crt", &client.certificate_pem),
        ("me/tls.key", &client.key_pem),
    ];
    for tls in [Tls::new(&certified), Tls::new(&certified).tls12(), Tls::new(&certified).http1()] {
        let receiver = Receiver::tls(&tls.asks_for(&clients)).await;
        assert_eq!(short(&send(&sender(PAIR, &secrets), &receiver.url("/")).await), "201");
        assert_eq!(receiver.seen()[0].shown.as_deref(), Some(client.certificate.as_ref()));
    }
}

#[tokio::test]
async fn a_refused_client_certificate_was_not_executed_although_the_alert_comes_after_the_handshake() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let (certified, client) = (authority.receiver(), Authority::new().issue(&["relay.test"], |_| {}));
    let secrets = [
        ("pki/ca.crt", authority.pem.as_str()),
        ("me/tls.crt", &client.certificate_pem),
        ("me/tls.key", &client.key_pem),
    ];
    for (version, tls) in [
        ("TLS 1.3, HTTP/2", Tls::new(&certified)),
        ("TLS 1.3, HTTP/1.1", Tls::new(&certified).http1()),
        ("TLS 1.2", Tls::new(&certified).tls12()),
    ] {
        let receiver = Receiver::tls(&tls.asks_for(&clients)).await;
        for (shown, lines) in [("none", CA), ("of another authority", PAIR)] {
            let sender = sender(lines, &secrets);
            for attempt in 0..TRIES {
                let seen = send(&sender, &receiver.url("/")).await;
                assert_eq!(short(&seen), "not executed: tls", "{version}, {shown}, {attempt}: {seen:?}");
                assert!(detail(&seen).contains("received fatal alert"), "{seen:?}");
            }
        }
        assert!(receiver.seen().is_empty(), "{version}");
    }
}

#[test]
fn one_of_certificate_and_key_alone_is_refused_with_the_mend() {
    for half in ["clientCertificateSecretRef", "clientKeySecretRef"] {
        let refused = try_policy(&format!("request: {{tls: {{{half}: {{name: me, key: x}}}}}}")).unwrap_err();
        assert!(refused.contains("DispatchPolicy/quick: spec.request.tls"), "{refused}");
        assert!(refused.contains("set both of tls.clientCertificateSecretRef and tls.clientKeySecretRef"), "{refused}");
    }
}

#[test]
fn a_secret_that_is_no_certificate_or_no_key_of_it_is_named_and_not_shown() {
    let authority = Authority::new();
    let (one, two) = (authority.receiver(), authority.receiver());
    for (ca, certificate, key, place, said) in [
        ("s3cret", one.certificate_pem.as_str(), one.key_pem.as_str(), "secret pki, key ca.crt", "no certificate"),
        (&authority.pem, "s3cret", &one.key_pem, "secret me, key tls.crt", "no certificate"),
        (&authority.pem, &one.certificate_pem, "s3cret", "secret me, key tls.key", "no private key"),
        (
            &authority.pem,
            &one.certificate_pem,
            &two.key_pem,
            "secret me, key tls.key",
            "not the client certificate's own",
        ),
    ] {
        let secrets = [("pki/ca.crt", ca), ("me/tls.crt", certificate), ("me/tls.key", key)];
        let refused = credentials(&policy(PAIR), &secrets).err().unwrap().to_string();
        assert!(refused.contains(place) && refused.contains(said), "{refused}");
        assert!(!refused.contains("s3cret") && !refused.contains("PRIVATE KEY"), "{refused}");
    }
}
