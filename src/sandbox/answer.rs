//! From an answer to the bytes of a response.

use std::{convert::Infallible, time::Duration};

use futures::stream;
use http::{
    HeaderName, HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, LOCATION, RETRY_AFTER},
};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};

use super::{
    entry::effect_id,
    step::{Answer, Content},
};

/// Marks a stored answer that is given again, as Stripe and others mark theirs.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// How often an endless body grows: often enough to keep idle timeouts from ending it.
const DRIP_EVERY: Duration = Duration::from_millis(50);
/// One piece of a big body.
static PIECE: [u8; 16 << 10] = [b'.'; 16 << 10];

/// The body of every response of the sandbox.
pub(super) type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;

/// Renders an answer. `effect` is what was done for it, now or before.
pub(super) fn render(
    answer: &Answer,
    effect: Option<u64>,
    replayed: bool,
    extra: &[(HeaderName, HeaderValue)],
) -> Response<AnswerBody> {
    let mut response = Response::new(body(answer, effect));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(argument) = &answer.argument {
        let name = if answer.status.as_u16() < 400 { LOCATION } else { RETRY_AFTER };
        headers.insert(name, argument.clone());
    }
    if replayed {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
    }
    for (name, value) in extra {
        headers.append(name, value.clone());
    }
    response
}

/// A response with this text, for questions and errors.
pub(super) fn text(status: StatusCode, content_type: &'static str, text: impl Into<Bytes>) -> Response<AnswerBody> {
    let mut response = Response::new(whole(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The JSON of the usual answer.
pub(super) fn usual_json(status: StatusCode, effect: Option<u64>) -> String {
    match effect {
        Some(effect) => serde_json::json!({ "id": effect_id(effect) }).to_string(),
        None => serde_json::json!({ "error": status.canonical_reason().unwrap_or("error") }).to_string(),
    }
}

fn body(answer: &Answer, effect: Option<u64>) -> AnswerBody {
    if matches!(answer.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return whole("");
    }
    match &answer.body {
        Content::Usual => whole(usual_json(answer.status, effect)),
        Content::Empty => whole(""),
        Content::Text(text) => whole(text.clone()),
        Content::Big(bytes) => big(*bytes, effect),
        Content::Drip => drip(effect),
    }
}

fn whole(bytes: impl Into<Bytes>) -> AnswerBody {
    Full::new(bytes.into()).boxed_unsync()
}

/// Valid JSON that begins with the effect's name and is padded; made piece by piece, so that it takes no memory.
fn big(bytes: u64, effect: Option<u64>) -> AnswerBody {
    let head = format!("{},\"pad\":\"", unclosed(effect));
    let pad = bytes.saturating_sub(head.len() as u64 + 2);
    let pieces = pad / PIECE.len() as u64;
    let rest = usize::try_from(pad % PIECE.len() as u64).unwrap_or_default();
    let tail = format!("{}\"}}", ".".repeat(rest));
    let frames = stream::unfold(0, move |position: u64| {
        let next = match position {
            0 => Some(Bytes::from(head.clone())),
            n if n <= pieces => Some(Bytes::from_static(&PIECE)),
            n if n == pieces + 1 => Some(Bytes::from(tail.clone())),
            _ => None,
        };
        std::future::ready(next.map(|bytes| (Ok::<_, Infallible>(Frame::data(bytes)), position + 1)))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

fn drip(effect: Option<u64>) -> AnswerBody {
    let head = format!("{},\"drip\":\"", unclosed(effect));
    let frames = stream::unfold(Some(head), |head| async {
        let bytes = if let Some(head) = head {
            Bytes::from(head)
        } else {
            tokio::time::sleep(DRIP_EVERY).await;
            Bytes::from_static(b".")
        };
        Some((Ok::<_, Infallible>(Frame::data(bytes)), None))
    });
    BodyExt::boxed_unsync(StreamBody::new(frames))
}

/// `{"id":"eff-1"` without its end.
fn unclosed(effect: Option<u64>) -> String {
    let json = usual_json(StatusCode::CREATED, effect);
    json.strip_suffix('}').unwrap_or(&json).to_owned()
}
