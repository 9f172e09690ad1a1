//! What an error of the client says about the request: was it executed, was it not, or does nobody know?

use std::{error::Error, io};

use rustls::AlertDescription;

use super::{
    proxy,
    resolver::{EveryAddressBlocked, ResolveFailed},
};
use crate::domain::{judge::Observation, row::Reason};

/// What the TLS library says of a connection that was closed in the middle of a handshake.
const HANDSHAKE_EOF: &str = "tls handshake eof";

/// How the client begins to speak of a proxy that gave no tunnel.
const TUNNEL_ERROR: &str = "tunnel error";

/// Reads an error of sending. Texts are ours or the operating system's; none holds a URL.
/// `proxied`: the connection was to a proxy first.
pub fn observe(error: &reqwest::Error, proxied: bool) -> Observation {
    let seen = seen(error);
    if proxied { proxy::of_proxy(seen) } else { seen }
}

fn seen(error: &reqwest::Error) -> Observation {
    if let Some(EveryAddressBlocked(blocked)) = source(error) {
        return Observation::NotBuilt { reason: Reason::BLOCKED, detail: blocked.to_string() };
    }
    if let Some(failed) = source::<ResolveFailed>(error) {
        return Observation::NotExecuted { reason: Reason::DNS, detail: failed.to_string() };
    }
    if error.is_builder() {
        return Observation::NotBuilt {
            reason: Reason::INVALID,
            detail: "no request can be built of this row".to_owned(),
        };
    }
    if error.is_connect() {
        return not_connected(error);
    }
    if let Some(seen) = refused_unread(error) {
        return seen;
    }
    let http = source::<hyper::Error>(error);
    if http.is_some_and(hyper::Error::is_canceled) {
        let detail = "the connection was closed before the request was written".to_owned();
        return Observation::NotExecuted { reason: Reason::CONNECT, detail };
    }
    if error.is_timeout() || http.is_some_and(hyper::Error::is_timeout) {
        return Observation::Unknown { reason: Reason::TIMEOUT, detail: "no answer in time".to_owned() };
    }
    if http.is_some_and(hyper::Error::is_parse) {
        return Observation::Unknown { reason: Reason::MALFORMED, detail: "the answer is no HTTP".to_owned() };
    }
    let detail = match source::<io::Error>(error) {
        Some(io) => format!("the connection broke before the answer: {}", io.kind()),
        None => "the connection was closed before the answer".to_owned(),
    };
    Observation::Unknown { reason: Reason::RESET, detail }
}

/// What the receiver turned away before it read the request, although a connection stood.
fn refused_unread(error: &reqwest::Error) -> Option<Observation> {
    if let Some(alert) = alert_of_handshake(error) {
        return Some(Observation::NotExecuted { reason: Reason::TLS, detail: format!("TLS handshake: {alert}") });
    }
    // The receiver took back a stream that it had not begun to process (RFC 9113, 8.7), or went away and named a last
    // stream before this one (6.8); a stream up to the last one ends with another error.
    let stream = source::<h2::Error>(error)?;
    let refused = stream.is_reset() && stream.reason() == Some(h2::Reason::REFUSED_STREAM);
    (stream.is_remote() && (refused || stream.is_go_away())).then(|| Observation::NotExecuted {
        reason: Reason::REFUSED_STREAM,
        detail: if refused {
            "the receiver refused the HTTP/2 stream unread".to_owned()
        } else {
            "the receiver ended the HTTP/2 connection before it read the request".to_owned()
        },
    })
}

/// The text of an alert that can only end a handshake.
///
/// In TLS 1.3 the client's side of a handshake is done before the receiver has looked at its certificate: the refusal comes
/// as the answer to the first read, when the request is already on its way. The receiver reads no request before its own
/// side is done. Renegotiation, by which such an alert could come later, is nothing that our side takes part in.
fn alert_of_handshake(error: &reqwest::Error) -> Option<String> {
    const ALERTS: [AlertDescription; 13] = [
        AlertDescription::HandshakeFailure,
        AlertDescription::NoCertificate,
        AlertDescription::BadCertificate,
        AlertDescription::UnsupportedCertificate,
        AlertDescription::CertificateRevoked,
        AlertDescription::CertificateExpired,
        AlertDescription::CertificateUnknown,
        AlertDescription::CertificateRequired,
        AlertDescription::CertificateUnobtainable,
        AlertDescription::UnknownCA,
        AlertDescription::AccessDenied,
        AlertDescription::DecryptError,
        AlertDescription::UnrecognisedName,
    ];
    // HTTP/2 keeps the text of a connection's error and not the error, so texts are compared.
    let text = match source::<rustls::Error>(error) {
        Some(tls) => tls.to_string(),
        None => source::<io::Error>(error)?.to_string(),
    };
    ALERTS.into_iter().any(|alert| rustls::Error::AlertReceived(alert).to_string() == text).then_some(text)
}

fn not_connected(error: &reqwest::Error) -> Observation {
    if let Some(tls) = source::<rustls::Error>(error) {
        return Observation::NotExecuted { reason: Reason::TLS, detail: format!("TLS handshake: {tls}") };
    }
    if error.is_timeout() {
        return Observation::NotExecuted {
            reason: Reason::CONNECT_TIMEOUT,
            detail: "no connection in time".to_owned(),
        };
    }
    let detail = match source::<io::Error>(error) {
        Some(io) if io.to_string() == HANDSHAKE_EOF => {
            let detail = "TLS handshake: the receiver closed the connection".to_owned();
            return Observation::NotExecuted { reason: Reason::TLS, detail };
        }
        Some(io) => format!("connect: {}", io.kind()),
        // What a proxy said to CONNECT: a text of the client's own.
        None => tunnel_error(error).unwrap_or_else(|| "connect: failed".to_owned()),
    };
    Observation::NotExecuted { reason: Reason::CONNECT, detail }
}

fn tunnel_error(error: &reqwest::Error) -> Option<String> {
    let chain = std::iter::successors(error.source(), |error| (*error).source());
    chain.map(ToString::to_string).find(|text| text.starts_with(TUNNEL_ERROR))
}

fn source<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        // An I/O error hides what it wraps from `source`.
        if let Some(found) =
            error.downcast_ref::<io::Error>().and_then(io::Error::get_ref).and_then(|inner| source::<E>(inner))
        {
            return Some(found);
        }
        current = error.source();
    }
    None
}
