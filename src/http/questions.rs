//! What is asked before a request: the receiver, what became of a key; a service, whether a row may still be sent.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, Method, header};
use serde::{Deserialize, Serialize};

use super::{
    Sender,
    request::{self, RowRequest},
    sender::Carries,
};
use crate::domain::{
    authority::Authority,
    destination::Endpoint,
    judge::{Answer, Observation},
    settings::StatusQuery,
};

/// What a pre-dispatch service is told of a row.
#[derive(Clone, Debug, Serialize)]
pub struct CheckRequest<'a> {
    /// The row.
    pub id: i64,
    /// The tenant.
    pub tenant: &'a str,
    /// The operation.
    pub operation: &'a str,
    /// The business object.
    pub entity: &'a str,
    /// The idempotency key.
    pub key: &'a str,
}

/// What a pre-dispatch service answers. Fields that it has beyond these are its own business.
#[derive(Deserialize)]
struct Permission {
    allow: bool,
    #[serde(default)]
    reason: Option<String>,
}

impl Sender {
    /// Asks the receiver what became of the row's key.
    pub async fn ask(&self, query: &StatusQuery, row: &RowRequest<'_>, now: impl Fn() -> SystemTime) -> Observation {
        let built = Endpoint::for_key(&query.url, row.key)
            .map_err(|error| request::invalid(format!("statusQuery.url: {error}")))
            .and_then(|endpoint| {
                request::check_address(&self.policy, endpoint.destination())?;
                let headers = &self.credentials.headers;
                Ok((request::query(&self.policy.request, headers, query.method, &endpoint, row)?, endpoint))
            });
        match built {
            Ok((request, to)) => self.exchange(request, to.destination(), query.timeout, Carries::Token, now).await,
            Err(seen) => seen,
        }
    }

    /// Asks a service whether the row may still be sent.
    pub async fn authorize(&self, url: &str, timeout: Duration, row: &CheckRequest<'_>) -> Authority {
        match self.check_request(url, row) {
            // No date is read here.
            Ok((request, to)) => {
                let now = || SystemTime::UNIX_EPOCH;
                permission(&self.exchange(request, to.destination(), timeout, Carries::Nothing, now).await)
            }
            Err(detail) => Authority::Unclear { detail },
        }
    }

    fn check_request(&self, url: &str, row: &CheckRequest<'_>) -> Result<(reqwest::Request, Endpoint), String> {
        let endpoint = Endpoint::parse(url).map_err(|error| format!("preDispatch.http.url: {error}"))?;
        let mut headers = HeaderMap::new();
        request::check_address(&self.policy, endpoint.destination())
            .and_then(|()| request::own_authorization(&endpoint, &HeaderMap::new(), &mut headers))
            .map_err(|seen| format!("preDispatch.http.url: {}", detail(&seen)))?;
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let body = serde_json::to_vec(row).map_err(|error| format!("write the pre-dispatch question: {error}"))?;
        let mut request = reqwest::Request::new(Method::POST, endpoint.url().clone());
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body.into());
        Ok((request, endpoint))
    }
}

fn permission(seen: &Observation) -> Authority {
    let unclear = |what: String| Authority::Unclear { detail: format!("the pre-dispatch service {what}") };
    let unasked = |what: String| Authority::Unasked { detail: format!("the pre-dispatch service {what}") };
    match seen {
        Observation::Answer(Answer { status: 200, body, .. }) => {
            match body.as_deref().map(serde_json::from_str::<Permission>) {
                Some(Ok(Permission { allow: true, .. })) => Authority::Allowed,
                Some(Ok(Permission { allow: false, reason })) => Authority::Denied { why: reason.unwrap_or_default() },
                _ => unclear("answered 200 without {\"allow\": true} or {\"allow\": false}".to_owned()),
            }
        }
        // It is down or asks for a pause: no row's fault.
        Observation::Answer(Answer { status: status @ (408 | 429 | 500..=599), .. }) => {
            unasked(format!("answered {status}"))
        }
        Observation::Answer(Answer { status, .. }) => unclear(format!("answered {status}")),
        Observation::NotBuilt { detail, .. } => unclear(format!("cannot be asked: {detail}")),
        other => unasked(format!("gave no answer: {}", detail(other))),
    }
}

fn detail(seen: &Observation) -> &str {
    match seen {
        Observation::NotExecuted { detail, .. }
        | Observation::Unknown { detail, .. }
        | Observation::NotBuilt { detail, .. } => detail,
        Observation::Answer(_) => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::row::Reason;

    fn said(status: u16, body: &str) -> Authority {
        permission(&Observation::Answer(Answer { status, body: Some(body.to_owned()), ..Answer::default() }))
    }

    #[test]
    fn only_a_clear_yes_lets_a_row_pass() {
        assert_eq!(said(200, r#"{"allow": true}"#), Authority::Allowed);
        assert_eq!(said(200, r#"{"allow": true, "more": {"of": "it"}}"#), Authority::Allowed);
        let denied = Authority::Denied { why: "budget is spent".to_owned() };
        assert_eq!(said(200, r#"{"allow": false, "reason": "budget is spent"}"#), denied);
        for (status, body) in [
            (200, ""),
            (200, "true"),
            (200, r#"{"allow": "true"}"#),
            (200, r#"{"allow": null}"#),
            (200, r#"{"allow": true"#),
            (200, r#"{"allow": true, "allow": false}"#),
            (200, r#"{"allowed": true}"#),
            (201, r#"{"allow": true}"#),
            (204, ""),
            (302, r#"{"allow": true}"#),
            (403, r#"{"allow": false}"#),
        ] {
            assert!(matches!(said(status, body), Authority::Unclear { .. }), "{status} {body}");
        }
        // A service that is down uses up no row's attempts.
        for status in [408, 429, 500, 503] {
            assert!(matches!(said(status, r#"{"allow": true}"#), Authority::Unasked { .. }), "{status}");
        }
        let refused = Observation::NotExecuted { reason: Reason::CONNECT, detail: "refused".to_owned() };
        assert!(matches!(permission(&refused), Authority::Unasked { .. }));
        let blocked = Observation::NotBuilt { reason: Reason::BLOCKED, detail: "10.0.0.1".to_owned() };
        assert!(matches!(permission(&blocked), Authority::Unclear { .. }));
    }
}
