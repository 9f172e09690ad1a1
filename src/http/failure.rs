//! What an error of the client says about the request: was it executed, was it not, or does nobody know?

use std::error::Error;

use super::resolver::{EveryAddressBlocked, ResolveFailed};
use crate::domain::{judge::Observation, row::Reason};

/// Reads an error of sending. Texts are ours or the operating system's; none holds a URL.
pub fn observe(error: &reqwest::Error) -> Observation {
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
    let detail = match source::<std::io::Error>(error) {
        Some(io) => format!("the connection broke before the answer: {}", io.kind()),
        None => "the connection was closed before the answer".to_owned(),
    };
    Observation::Unknown { reason: Reason::RESET, detail }
}

fn not_connected(error: &reqwest::Error) -> Observation {
    if let Some(tls) = tls_error(error) {
        return Observation::NotExecuted { reason: Reason::TLS, detail: format!("TLS handshake: {tls}") };
    }
    if error.is_timeout() {
        return Observation::NotExecuted {
            reason: Reason::CONNECT_TIMEOUT,
            detail: "no connection in time".to_owned(),
        };
    }
    let detail = match source::<std::io::Error>(error) {
        Some(io) => format!("connect: {}", io.kind()),
        None => "connect: failed".to_owned(),
    };
    Observation::NotExecuted { reason: Reason::CONNECT, detail }
}

/// The TLS library's error, which the client wraps into an I/O error.
fn tls_error(error: &reqwest::Error) -> Option<String> {
    if let Some(tls) = source::<rustls::Error>(error) {
        return Some(tls.to_string());
    }
    let io = source::<std::io::Error>(error)?;
    io.get_ref()?.downcast_ref::<rustls::Error>().map(ToString::to_string)
}

fn source<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        // An I/O error hides what it wraps from `source`.
        if let Some(found) = error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
            .and_then(|inner| source::<E>(inner))
        {
            return Some(found);
        }
        current = error.source();
    }
    None
}
