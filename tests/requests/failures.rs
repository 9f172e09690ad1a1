//! What each way to fail says of the row: executed, not executed, or nobody knows.

use std::{net::Ipv6Addr, sync::Arc};

use h2::Reason;
use outbox_operator::http::Sender;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{
    certificates::Authority,
    receiver::{Receiver, Tls, raw},
    sender::{Names, detail, send, sender, sender_with, short},
};

const CA: &str = "request: {tls: {caSecretRef: {name: pki, key: ca.crt}}}";

/// Reads the head and body of one request of the tests.
async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> bool {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    while !text.ends_with(br#"{"n": 1}"#) {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return false,
            Ok(read) => text.extend_from_slice(&buffer[..read]),
        }
    }
    true
}

const CREATED: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";

#[tokio::test]
async fn rc_43_an_idle_connection_that_the_receiver_closed_costs_nothing() {
    let (gone, mut went) = tokio::sync::mpsc::unbounded_channel();
    let address = raw(move |number, mut stream| {
        let gone = gone.clone();
        Box::pin(async move {
            read_request(&mut stream).await;
            stream.write_all(CREATED).await.unwrap();
            stream.shutdown().await.unwrap();
            // The client has seen the close once it closes too.
            let _ = stream.read_to_end(&mut Vec::new()).await;
            gone.send(number).unwrap();
        })
    })
    .await;
    let sender = sender("", &[]);
    for number in 0..5 {
        assert_eq!(short(&send(&sender, &format!("http://{address}/")).await), "201");
        assert_eq!(went.recv().await, Some(number));
    }
}

#[tokio::test]
async fn rc_43_a_connection_that_closes_just_as_it_is_used_again_fails_nobody() {
    let address = raw(|_, mut stream| {
        Box::pin(async move {
            if read_request(&mut stream).await {
                stream.write_all(CREATED).await.unwrap();
            }
        })
    })
    .await;
    let sender = sender("", &[]);
    for _ in 0..20 {
        let seen = send(&sender, &format!("http://{address}/")).await;
        // Closed before the request was written, it goes out on a new connection; written into the closing, nobody knows.
        assert!(matches!(short(&seen).as_str(), "201" | "unknown: reset"), "{seen:?}");
    }
}

#[tokio::test]
async fn rc_43_a_connection_reset_after_the_request_was_read_is_unknown() {
    let address = raw(|_, mut stream| {
        Box::pin(async move {
            read_request(&mut stream).await;
            stream.set_zero_linger().unwrap();
        })
    })
    .await;
    let seen = send(&sender("", &[]), &format!("http://{address}/")).await;
    assert_eq!(short(&seen), "unknown: reset");
    assert_eq!(detail(&seen), "the connection broke before the answer: connection reset");
}

#[tokio::test]
async fn rc_43_each_way_not_to_reach_a_receiver_has_its_own_name() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let silent = raw(|_, stream| {
        Box::pin(async move {
            let _stream = stream;
            std::future::pending::<()>().await;
        })
    })
    .await;
    let hangs_up = raw(|_, mut stream| {
        Box::pin(async move {
            let _ = stream.read(&mut [0; 512]).await;
        })
    })
    .await;
    let names = Arc::new(Names::default());
    let sender = sender_with("timeouts: {connect: 300ms, total: 600ms}", &[], Arc::<Names>::clone(&names));
    for (endpoint, expected, said) in [
        (format!("http://{closed}/"), "not executed: connect", "connect: connection refused"),
        (format!("https://{silent}/"), "not executed: connect_timeout", "no connection in time"),
        (format!("https://{hangs_up}/"), "not executed: tls", "TLS handshake: the receiver closed the connection"),
        (format!("http://{silent}/"), "unknown: timeout", "no answer within 600ms"),
        ("http://nobody.test/".to_owned(), "not executed: dns", "resolve the host's name: Name or service not known"),
    ] {
        let seen = send(&sender, &endpoint).await;
        assert_eq!((short(&seen).as_str(), detail(&seen)), (expected, said), "{endpoint}");
    }
}

#[tokio::test]
async fn rc_43_a_name_that_comes_to_be_right_is_found_at_the_next_attempt() {
    let receiver = Receiver::plain().await;
    let names = Arc::new(Names::default());
    let sender = sender_with("", &[], Arc::<Names>::clone(&names));
    let endpoint = format!("http://receiver.test:{}/", receiver.address.port());
    assert_eq!(short(&send(&sender, &endpoint).await), "not executed: dns");
    names.set("receiver.test", &["127.0.0.1"]);
    assert_eq!(short(&send(&sender, &endpoint).await), "201");
}

#[tokio::test]
async fn rc_43_a_dead_ipv6_address_beside_a_live_ipv4_one_delays_but_does_not_fail() {
    let receiver = Receiver::plain().await;
    let names = Arc::new(Names::default());
    let sender = sender_with("egress: {allowCidrs: ['127.0.0.0/8', '::/0']}", &[], Arc::<Names>::clone(&names));
    // Refused at once, and an address of a documentation range that leads nowhere.
    for dead in [Ipv6Addr::LOCALHOST.to_string(), "2001:db8::1".to_owned()] {
        names.set("receiver.test", &[&dead, "127.0.0.1"]);
        let endpoint = format!("http://receiver.test:{}/", receiver.address.port());
        assert_eq!(short(&send(&sender, &endpoint).await), "201", "{dead}");
    }
}

#[tokio::test]
async fn rc_37_a_name_with_a_blocked_address_reaches_only_its_others() {
    let receiver = Receiver::plain().await;
    let names = Arc::new(Names::default());
    let sender = sender_with("egress: {allowCidrs: ['127.0.0.1/32']}", &[], Arc::<Names>::clone(&names));
    let endpoint = format!("http://receiver.test:{}/", receiver.address.port());
    names.set("receiver.test", &["169.254.169.254", "127.0.0.1"]);
    assert_eq!(short(&send(&sender, &endpoint).await), "201");
    names.set("receiver.test", &["169.254.169.254", "::1"]);
    assert_eq!(short(&send(&sender_with("egress: {}", &[], names), &endpoint).await), "not built: blocked");
}

/// A receiver that speaks HTTP/2 over TLS as `serve` does.
async fn http2<S, F>(serve: S) -> (Sender, String)
where
    S: Fn(tokio_rustls::server::TlsStream<TcpStream>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send,
{
    let authority = Authority::new();
    let acceptor = Tls::new(&authority.receiver()).acceptor();
    let address = raw(move |_, stream| {
        let (acceptor, serve) = (acceptor.clone(), serve.clone());
        Box::pin(async move { serve(acceptor.accept(stream).await.unwrap()).await })
    })
    .await;
    (sender(CA, &[("pki/ca.crt", &authority.pem)]), format!("https://{address}/"))
}

#[tokio::test]
async fn a_refused_stream_was_not_executed_and_another_reset_is_unknown() {
    for (reason, expected) in
        [(Reason::REFUSED_STREAM, "not executed: refused_stream"), (Reason::INTERNAL_ERROR, "unknown: reset")]
    {
        let (sender, endpoint) = http2(move |stream| async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((_request, mut respond))) = connection.accept().await {
                respond.send_reset(reason);
            }
        })
        .await;
        for _ in 0..2 {
            assert_eq!(short(&send(&sender, &endpoint).await), expected, "{reason:?}");
        }
    }
}

/// Speaks just enough HTTP/2 to read the head of a request, sends GOAWAY and closes.
async fn go_away(mut stream: impl AsyncRead + AsyncWrite + Unpin, last: u32, code: u32) {
    const PREFACE_BYTES: usize = 24;
    const HEADERS: u8 = 1;
    let mut preface = [0; PREFACE_BYTES];
    stream.read_exact(&mut preface).await.unwrap();
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == HEADERS {
            break;
        }
    }
    let mut frame = vec![0, 0, 8, 7, 0, 0, 0, 0, 0];
    frame.extend(last.to_be_bytes());
    frame.extend(code.to_be_bytes());
    stream.write_all(&frame).await.unwrap();
    stream.shutdown().await.unwrap();
    // What the client still says is read, so that the close is no reset.
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn a_stream_above_the_last_one_of_goaway_was_not_executed_and_one_up_to_it_is_unknown() {
    const NO_ERROR: u32 = 0;
    const INTERNAL_ERROR: u32 = 2;
    for (last, code, expected) in [
        (0, NO_ERROR, "not executed: refused_stream"),
        (0, INTERNAL_ERROR, "not executed: refused_stream"),
        (1, NO_ERROR, "unknown: reset"),
        (1, INTERNAL_ERROR, "unknown: reset"),
    ] {
        let (sender, endpoint) = http2(move |stream| go_away(stream, last, code)).await;
        for _ in 0..5 {
            let seen = send(&sender, &endpoint).await;
            assert_eq!(short(&seen), expected, "last stream {last}, code {code}: {seen:?}");
        }
    }
}

#[tokio::test]
async fn towards_a_receiver_that_does_not_deduplicate_no_connection_is_used_twice() {
    let authority = Authority::new();
    let certified = authority.receiver();
    for (receiver, version) in [
        (Receiver::plain().await, http::Version::HTTP_11),
        (Receiver::tls(&Tls::new(&certified).http1()).await, http::Version::HTTP_11),
        (Receiver::tls(&Tls::new(&certified)).await, http::Version::HTTP_2),
    ] {
        for (idempotency, connections) in [("Enforced", 1), ("None", 4)] {
            let before = receiver.connections();
            let lines = format!("{CA}\nidempotency: {{receiver: {idempotency}}}");
            let sender = sender(&lines, &[("pki/ca.crt", &authority.pem)]);
            for _ in 0..4 {
                assert_eq!(short(&send(&sender, &receiver.url("/")).await), "201");
            }
            assert_eq!(receiver.connections() - before, connections, "{version:?}, {idempotency}");
        }
        assert!(receiver.seen().iter().all(|seen| seen.version == version));
    }
}
