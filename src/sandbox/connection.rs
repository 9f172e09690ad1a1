//! One TCP connection: HTTP by hyper, until a request asks for the connection to be broken below it.

use std::{fmt::Write as _, io};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::mpsc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    answer::{AnswerBody, text},
    ask::{Ask, KEY_HEADER},
    entry::{Arrival, Body},
    ledger::Ledger,
    perform::{Fault, Reply, Working, perform},
    questions,
    record::Answered,
};

/// Bytes of a body that are kept as text; a longer one is hashed only.
const MAX_BODY_TEXT_BYTES: usize = 1 << 20;
/// Longest key that is taken, in bytes: the longest that a policy can allow.
const MAX_KEY_BYTES: usize = 4096;

/// What all connections of a sandbox share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub ledger: Ledger,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
}

/// Serves a connection until it ends, is broken on request, or the sandbox stops.
pub(super) async fn serve(stream: TcpStream, shared: Shared) {
    // Answers are small and awaited: nothing is won by collecting them. A socket that refuses is served all the same.
    let _ = stream.set_nodelay(true);
    let connection = shared.ledger.connected();
    let (breaker, mut faults) = mpsc::channel(1);
    let service = service_fn(|request| handle(request, connection, shared.clone(), breaker.clone()));
    let mut http = http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
    let fault = tokio::select! {
        // An error here is the client's going or its nonsense; the ledger has what is to be known of it.
        _ = &mut http => return,
        () = shared.stop.cancelled() => return,
        Some(fault) = faults.recv() => fault,
    };
    let stream = http.into_parts().io.into_inner();
    tokio::select! {
        // The client may have gone first: then there is nothing left to break.
        _ = break_below_http(stream, fault) => {}
        () = shared.stop.cancelled() => {}
    }
}

async fn break_below_http(mut stream: TcpStream, fault: Fault) -> io::Result<()> {
    stream.write_all(&fault.bytes).await?;
    tokio::time::sleep(fault.pause).await;
    if fault.reset { stream.set_zero_linger() } else { stream.shutdown().await }
}

/// Notes that the client went, unless another end came first.
struct OnTheWire {
    ledger: Ledger,
    number: u64,
}

impl Drop for OnTheWire {
    fn drop(&mut self) {
        self.ledger.ended(self.number, Answered::ClientLeft);
    }
}

async fn handle(
    request: Request<Incoming>,
    connection: u64,
    shared: Shared,
    breaker: mpsc::Sender<Fault>,
) -> Result<Response<AnswerBody>, hyper::Error> {
    if let Some(answer) = questions::answer(&request, &shared.ledger) {
        return Ok(answer);
    }
    let (head, incoming) = request.into_parts();
    let ask = Ask::read(head.uri.path(), head.uri.query());
    let key_header = ask.as_ref().map_or(KEY_HEADER, |ask| ask.key_header.clone());
    let key = head.headers.get(key_header).map(shown);
    if key.as_ref().is_some_and(|key| key.len() > MAX_KEY_BYTES) {
        return Ok(text(StatusCode::BAD_REQUEST, "text/plain", "the key is longer than 4096 bytes\n"));
    }
    let number = shared.ledger.arrived(Arrival {
        connection,
        at: Timestamp::now(),
        method: head.method.to_string(),
        path: head.uri.path_and_query().map_or_else(|| head.uri.to_string(), ToString::to_string),
        bare_path: head.uri.path().to_owned(),
        key,
        headers: all_headers(&head.headers),
    });
    // Until the request is over these see to it that it is over when this future is dropped.
    let wire = OnTheWire { ledger: shared.ledger.clone(), number };
    let working = Working { ledger: shared.ledger.clone(), number };

    let body = match read(incoming).await {
        Ok(body) => body,
        Err(error) => {
            shared.ledger.ended(number, Answered::RequestCut);
            return Err(error);
        }
    };
    let ask = match ask {
        Ok(ask) => ask,
        Err(error) => {
            shared.ledger.ended(number, Answered::Status(400));
            return Ok(text(StatusCode::BAD_REQUEST, "text/plain", format!("{error}\n")));
        }
    };
    // A task of its own, so that the work goes on when the client has gone. It fails only if the runtime ends.
    let work = shared.tasks.spawn(perform(working, ask, body, shared.stop.clone()));
    match work.await {
        Ok((Reply::Http(response), _working)) => {
            shared.ledger.ended(number, Answered::Status(response.status().as_u16()));
            Ok(response)
        }
        Ok((Reply::Break(fault, answered), _working)) => {
            shared.ledger.ended(number, answered);
            // The connection's task breaks it, and drops this future while it waits below.
            let _ = breaker.send(fault).await;
            std::future::pending().await
        }
        Ok((Reply::Hang, _working)) => {
            let _wire = wire;
            std::future::pending().await
        }
        Err(_) => std::future::pending().await,
    }
}

/// Reads a body whole: its hash always, its text if that is small.
async fn read(mut incoming: Incoming) -> Result<Body, hyper::Error> {
    let mut hash = Sha256::new();
    let mut bytes = 0_u64;
    let mut text = Vec::new();
    while let Some(frame) = incoming.frame().await {
        if let Ok(data) = frame?.into_data() {
            hash.update(&data);
            bytes += data.len() as u64;
            if bytes <= MAX_BODY_TEXT_BYTES as u64 {
                text.extend_from_slice(&data);
            }
        }
    }
    let text = if bytes <= MAX_BODY_TEXT_BYTES as u64 { String::from_utf8(text).ok() } else { None };
    Ok(Body { text, bytes, sha256: hex(&hash.finalize()) })
}

/// Lower-case hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn all_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), shown(value))).collect()
}

/// A header's value as text: as it is if it is UTF-8, else with its other bytes escaped.
fn shown(value: &HeaderValue) -> String {
    std::str::from_utf8(value.as_bytes()).map_or_else(|_| value.as_bytes().escape_ascii().to_string(), str::to_owned)
}
