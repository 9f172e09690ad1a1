//! Receivers: HTTP/1.1 and HTTP/2, in clear and over TLS, and ones that misbehave below HTTP.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{HeaderMap, Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::ring,
    server::WebPkiClientVerifier,
    version::{TLS12, TLS13},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use crate::certificates::{Authority, Certified};

/// What a receiver saw of a request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub connection: usize,
    pub version: Version,
    pub method: String,
    pub uri: String,
    pub headers: HeaderMap,
    pub body: String,
    /// The certificate that the client showed.
    pub shown: Option<Vec<u8>>,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

static BOTH_VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
static ONLY_TLS12: &[&SupportedProtocolVersion] = &[&TLS12];

/// How a receiver speaks TLS.
pub struct Tls<'a> {
    certified: &'a Certified,
    clients: Option<&'a Authority>,
    versions: &'static [&'static SupportedProtocolVersion],
    alpn: &'static [&'static [u8]],
}

impl<'a> Tls<'a> {
    pub fn new(certified: &'a Certified) -> Self {
        Self { certified, clients: None, versions: BOTH_VERSIONS, alpn: &[b"h2", b"http/1.1"] }
    }

    /// Asks for a certificate of this authority.
    pub fn asks_for(self, clients: &'a Authority) -> Self {
        Self { clients: Some(clients), ..self }
    }

    pub fn tls12(self) -> Self {
        Self { versions: ONLY_TLS12, ..self }
    }

    pub fn http1(self) -> Self {
        Self { alpn: &[b"http/1.1"], ..self }
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        let provider = Arc::new(ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(self.versions).unwrap();
        let builder = match self.clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.certificate.clone()).unwrap();
                builder.with_client_cert_verifier(
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap(),
                )
            }
        };
        let (certificate, key) = (self.certified.certificate.clone(), self.certified.key.clone_key());
        let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
        config.alpn_protocols = self.alpn.iter().map(|name| name.to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

type Answer = Arc<dyn Fn(&Seen) -> Response<String> + Send + Sync>;

/// A receiver that answers and notes what it saw. It ends with the test's runtime.
#[derive(Clone)]
pub struct Receiver {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    scheme: &'static str,
}

/// An answer of this status and body.
pub fn answer(status: u16, body: &str) -> Response<String> {
    Response::builder().status(status).body(body.to_owned()).unwrap()
}

impl Receiver {
    /// One that answers 201 to everything, in clear.
    pub async fn plain() -> Self {
        Self::start(None, |_| answer(201, "{}")).await
    }

    /// One that answers 201 to everything over TLS.
    pub async fn tls(tls: &Tls<'_>) -> Self {
        Self::start(Some(tls), |_| answer(201, "{}")).await
    }

    pub async fn start(
        tls: Option<&Tls<'_>>,
        answers: impl Fn(&Seen) -> Response<String> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            connections: Arc::default(),
            scheme: if tls.is_some() { "https" } else { "http" },
        };
        let (acceptor, answers, served): (_, Answer, _) = (tls.map(Tls::acceptor), Arc::new(answers), receiver.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let connection = served.connections.fetch_add(1, Ordering::Relaxed);
                let (acceptor, answers, receiver) = (acceptor.clone(), Arc::clone(&answers), served.clone());
                tokio::spawn(async move {
                    let Some(acceptor) = acceptor else {
                        return receiver.serve(stream, false, connection, None, answers).await;
                    };
                    // A handshake that fails is the test's own doing.
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let (_, session) = stream.get_ref();
                        let h2 = session.alpn_protocol() == Some(b"h2");
                        let shown = session.peer_certificates().map(|shown| shown[0].to_vec());
                        receiver.serve(stream, h2, connection, shown, answers).await;
                    }
                });
            }
        });
        receiver
    }

    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        h2: bool,
        connection: usize,
        shown: Option<Vec<u8>>,
        answers: Answer,
    ) {
        let service = service_fn(move |request: Request<Incoming>| {
            let (receiver, answers, shown) = (self.clone(), Arc::clone(&answers), shown.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                let seen = Seen {
                    connection,
                    version: head.version,
                    method: head.method.to_string(),
                    uri: head.uri.to_string(),
                    headers: head.headers,
                    body: String::from_utf8(body.to_vec()).unwrap(),
                    shown,
                };
                receiver.seen.lock().unwrap().push(seen.clone());
                let answer = answers(&seen).map(|body| Full::new(Bytes::from(body)));
                Ok::<_, Infallible>(answer)
            }
        });
        // The client's going is no failure.
        if h2 {
            let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        } else {
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

type Served = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Gives each TCP connection to `serve`, and returns the address.
pub async fn raw(serve: impl Fn(usize, TcpStream) -> Served + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut number = 0;
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(number, stream));
            number += 1;
        }
    });
    address
}
