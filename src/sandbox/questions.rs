//! What can be asked of the sandbox over HTTP: its counts, records and gates.

use http::{Method, Request, Response, StatusCode};
use serde::Serialize;

use super::{
    answer::{AnswerBody, text},
    ask::KEY_HEADER,
    ledger::Ledger,
    script::decode_text,
};

/// Records in one answer, unless fewer are asked for; the rest is reached by `?after=`.
const MAX_LISTED: usize = 10_000;

/// Which records are asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Filter {
    key: Option<String>,
    after: u64,
    limit: Option<usize>,
}

/// Answers a question, or leaves the request to the script of its path.
pub(super) fn answer<B>(request: &Request<B>, ledger: &Ledger) -> Option<Response<AnswerBody>> {
    // A row may have any path: what carries a key is never a question.
    if request.headers().contains_key(KEY_HEADER) {
        return None;
    }
    let path = request.uri().path();
    match *request.method() {
        Method::GET => match path {
            "/healthz" => Some(text(StatusCode::OK, "text/plain", "ok\n")),
            "/counts" => Some(json(&ledger.counts())),
            "/requests" | "/effects" | "/keys" => Some(match filter(request.uri().query()) {
                Ok(filter) => list(path, &filter, ledger),
                Err(wrong) => text(StatusCode::BAD_REQUEST, "text/plain", wrong),
            }),
            _ => None,
        },
        Method::POST if path == "/reset" => {
            ledger.reset();
            Some(text(StatusCode::OK, "text/plain", "forgotten\n"))
        }
        Method::POST => {
            let name = decode_text(path.strip_prefix("/gate/")?)?;
            Some(if ledger.open_gate(&name) {
                text(StatusCode::OK, "text/plain", "open\n")
            } else {
                text(StatusCode::INSUFFICIENT_STORAGE, "text/plain", "too many gates are open: POST /reset\n")
            })
        }
        _ => None,
    }
}

fn list(path: &str, filter: &Filter, ledger: &Ledger) -> Response<AnswerBody> {
    let limit = filter.limit.unwrap_or(MAX_LISTED).min(MAX_LISTED);
    let fits = |key: Option<&str>, number: u64| {
        number > filter.after && filter.key.as_deref().is_none_or(|wanted| key == Some(wanted))
    };
    match path {
        "/requests" => json(&ledger.select_requests(|one| fits(one.key.as_deref(), one.number), limit)),
        "/effects" => json(&ledger.select_effects(|one| fits(one.key.as_deref(), one.number), limit)),
        _ => match &filter.key {
            Some(key) => json(&ledger.key(key).into_iter().collect::<Vec<_>>()),
            None => json(&ledger.keys(limit)),
        },
    }
}

fn filter(query: Option<&str>) -> Result<Filter, &'static str> {
    let mut filter = Filter::default();
    for (name, value) in query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('=')) {
        match name {
            "key" => filter.key = Some(decode_text(value).ok_or("key: not percent-encoded UTF-8\n")?),
            "after" => filter.after = value.parse().map_err(|_| "after: not a record's number\n")?,
            "limit" => filter.limit = Some(value.parse().map_err(|_| "limit: not a number of records\n")?),
            _ => {}
        }
    }
    Ok(filter)
}

fn json(value: &impl Serialize) -> Response<AnswerBody> {
    match serde_json::to_vec(value) {
        Ok(mut json) => {
            json.push(b'\n');
            text(StatusCode::OK, "application/json", json)
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
    }
}
