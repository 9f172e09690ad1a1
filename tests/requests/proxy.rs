//! `request.proxyUrl`: the only proxy, and what egress rules mean behind it.

use std::sync::Arc;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::TcpStream,
};

use crate::{
    certificates::Authority,
    receiver::{Receiver, Tls, answer, raw},
    sender::{Names, detail, send, sender_with, short, try_policy},
};

/// A proxy that answers CONNECT with `refusal`, or tunnels to whatever port is asked for on this machine.
async fn tunnelling(refusal: Option<&'static str>) -> std::net::SocketAddr {
    raw(move |_, mut stream| {
        Box::pin(async move {
            let (mut head, mut buffer) = (Vec::new(), [0; 1024]);
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read(&mut buffer).await {
                    Ok(0) | Err(_) => return,
                    Ok(read) => head.extend_from_slice(&buffer[..read]),
                }
            }
            let head = String::from_utf8(head).unwrap();
            let target = head.strip_prefix("CONNECT ").unwrap().split(' ').next().unwrap();
            if let Some(refusal) = refusal {
                stream.write_all(refusal.as_bytes()).await.unwrap();
                return;
            }
            let port: u16 = target.rsplit(':').next().unwrap().parse().unwrap();
            let mut upstream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let _ = copy_bidirectional(&mut stream, &mut upstream).await;
        })
    })
    .await
}

#[tokio::test]
async fn a_request_in_clear_goes_to_the_proxy_whole() {
    let proxy = Receiver::plain().await;
    let names = Arc::new(Names::default());
    names.set("proxy.test", &["127.0.0.1"]);
    let lines = format!("request: {{proxyUrl: 'http://proxy.test:{}'}}", proxy.address.port());
    // A name that only the proxy can resolve.
    let seen = send(&sender_with(&lines, &[], names), "http://receiver.test/hook?a=b").await;
    assert_eq!(short(&seen), "201", "{seen:?}");
    assert_eq!(proxy.seen()[0].uri, "http://receiver.test/hook?a=b");
    assert_eq!(proxy.seen()[0].header("idempotency-key"), Some("key-1"));
}

#[tokio::test]
async fn a_request_over_tls_goes_through_a_tunnel() {
    let authority = Authority::new();
    let certified = authority.receiver();
    let receiver = Receiver::tls(&Tls::new(&certified)).await;
    let proxy = tunnelling(None).await;
    let lines = format!("request: {{proxyUrl: 'http://{proxy}/', tls: {{caSecretRef: {{name: pki, key: ca}}}}}}");
    let sender = sender_with(&lines, &[("pki/ca", &authority.pem)], Arc::new(Names::default()));
    let seen = send(&sender, &format!("https://receiver.test:{}/", receiver.address.port())).await;
    assert_eq!(short(&seen), "201", "{seen:?}");
    // The receiver's certificate is still what counts.
    let seen = send(&sender, &format!("https://other.test:{}/", receiver.address.port())).await;
    assert_eq!(short(&seen), "not executed: tls", "{seen:?}");
}

#[tokio::test]
async fn a_proxy_that_lets_nothing_through_is_a_retry_that_says_so() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let asks = Receiver::start(None, |_| answer(407, "")).await;
    let refuses = tunnelling(Some("HTTP/1.1 403 Forbidden\r\n\r\n")).await;
    let locked = tunnelling(Some("HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")).await;
    let names = Arc::new(Names::default());
    names.set("inside.test", &["169.254.169.254"]);
    for (proxy, endpoint, said) in [
        (closed.to_string(), "http://receiver.test/", "proxy: connect: connection refused"),
        (asks.address.to_string(), "http://receiver.test/", "proxy: it answered 407 Proxy Authentication Required"),
        (refuses.to_string(), "https://receiver.test/", "proxy: tunnel error: unsuccessful"),
        (locked.to_string(), "https://receiver.test/", "proxy: tunnel error: proxy authorization required"),
        (
            "nowhere.test:3128".to_owned(),
            "http://receiver.test/",
            "proxy: resolve the host's name: Name or service not known",
        ),
        // The proxy's own address is checked as any other.
        ("inside.test:3128".to_owned(), "http://receiver.test/", "proxy: the address 169.254.169.254 is refused"),
        ("169.254.169.254".to_owned(), "http://receiver.test/", "proxy: the address 169.254.169.254 is refused"),
    ] {
        let lines = format!("request: {{proxyUrl: 'http://{proxy}'}}");
        let seen = send(&sender_with(&lines, &[], Arc::<Names>::clone(&names)), endpoint).await;
        assert_eq!(short(&seen), "not executed: proxy", "{proxy}: {seen:?}");
        assert!(detail(&seen).starts_with(said), "{proxy}: {seen:?}");
    }
}

#[tokio::test]
async fn an_endpoint_that_points_inside_is_not_given_to_the_proxy() {
    let proxy = Receiver::plain().await;
    let names = Arc::new(Names::default());
    // Which of them the proxy would take is not ours to say.
    names.set("both.test", &["93.184.216.34", "10.0.0.1"]);
    names.set("outside.test", &["93.184.216.34"]);
    let lines = format!(
        "request: {{proxyUrl: 'http://{}'}}\negress: {{allowPrivate: false, allowCidrs: ['127.0.0.1/32']}}",
        proxy.address
    );
    let sender = sender_with(&lines, &[], names);
    for blocked in ["http://169.254.169.254/", "http://[::1]/", "http://10.1.2.3/", "http://both.test/"] {
        assert_eq!(short(&send(&sender, blocked).await), "not built: blocked", "{blocked}");
    }
    assert_eq!(proxy.connections(), 0);
    assert_eq!(short(&send(&sender, "http://outside.test/").await), "201");
}

#[test]
fn a_proxy_is_a_scheme_a_host_and_a_port() {
    for url in ["proxy.test:3128", "socks5://proxy.test:1080", "http://me:s3cret@proxy.test", "http://proxy.test/path"]
    {
        let refused = try_policy(&format!("request: {{proxyUrl: '{url}'}}")).unwrap_err();
        assert!(refused.contains("request.proxyUrl must be an http or https URL of host and port"), "{url}: {refused}");
        assert!(!refused.contains("s3cret"), "{refused}");
    }
    try_policy("request: {proxyUrl: 'https://proxy.test:3128/'}").unwrap();
}
