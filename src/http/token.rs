//! Tokens of OAuth 2 client credentials (RFC 6749, section 4.4): fetched when they are needed, kept, renewed before they end.
//!
//! One fetch at a time, whatever the number of attempts that wait for it. No token and no secret is ever shown: there is no
//! `Debug`, and errors hold nothing that the endpoint said but the RFC's own error codes.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderValue, Method, header};
use serde::Deserialize;
use tokio::time::Instant;
use url::form_urlencoded;

use super::{
    credentials::{ClientSecret, sensitive},
    failure, request,
};
use crate::domain::{
    judge::Observation,
    settings::{ClientCredentials, Policy},
};

/// Longest answer of a token endpoint that is read, in bytes. Tokens of a few kilobytes are the largest in use.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// How long a token is kept that does not say how long it lasts.
const UNSTATED_LIFETIME: Duration = Duration::from_secs(300);
/// Longest lifetime that is believed.
const MAX_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// A token is renewed this long before it ends, or when a fifth of its time is left, whichever is later.
const RENEW_BEFORE: Duration = Duration::from_secs(60);
/// After a renewal that failed, the token at hand is used this long before the next one.
const RENEWAL_PAUSE: Duration = Duration::from_secs(5);
/// Error codes of RFC 6749, section 5.2: all that is repeated of what an endpoint says.
const ERROR_CODES: [&str; 6] = [
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
];

/// A token.
pub(super) struct Token {
    /// `Bearer ...`, never shown.
    pub authorization: HeaderValue,
    renew_at: Instant,
    ends_at: Instant,
}

#[derive(Default)]
struct Kept {
    token: Option<Arc<Token>>,
    /// No renewal before this.
    paused_until: Option<Instant>,
}

/// Where tokens come from.
pub(super) struct TokenSource {
    client: ClientCredentials,
    authorization: HeaderValue,
    kept: Mutex<Kept>,
    /// Held by the one that fetches; with when the last fetch failed, and how, for those who waited for it.
    fetch: tokio::sync::Mutex<Option<(Instant, String)>>,
}

impl TokenSource {
    /// A source that has no token yet. `None`: id and secret cannot be sent.
    pub fn new(client: ClientCredentials, secret: &ClientSecret) -> Option<Self> {
        // Each is form-encoded before they are joined (RFC 6749, section 2.3.1).
        let encoded = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        let pair = format!("{}:{}", encoded(&secret.id), encoded(&secret.secret));
        let authorization = sensitive(&format!("Basic {}", STANDARD.encode(pair)))?;
        Some(Self { client, authorization, kept: Mutex::default(), fetch: tokio::sync::Mutex::default() })
    }

    /// A token that has not ended: the one at hand, or a new one. The error is for people.
    pub async fn token(&self, http: &reqwest::Client, policy: &Policy) -> Result<Arc<Token>, String> {
        let asked = Instant::now();
        if let Some(token) = self.at_hand(asked) {
            if !self.is_to_be_renewed(&token, asked) {
                return Ok(token);
            }
            // One renews it while the others go on with what they have.
            return match self.fetch.try_lock() {
                Ok(_one) => Ok(self.fetch(http, policy).await.unwrap_or(token)),
                Err(_) => Ok(token),
            };
        }
        let mut failed = self.fetch.lock().await;
        // Who waited for another's fetch has its result.
        if let Some(token) = self.at_hand(Instant::now()) {
            return Ok(token);
        }
        if let Some((at, why)) = failed.as_ref()
            && *at >= asked
        {
            return Err(why.clone());
        }
        let fetched = self.fetch(http, policy).await;
        *failed = fetched.as_ref().err().map(|why| (Instant::now(), why.clone()));
        fetched
    }

    /// The receiver does not take this token: the next attempt gets another.
    pub fn drop_token(&self, refused: &Arc<Token>) {
        let mut kept = self.kept();
        kept.token.take_if(|token| Arc::ptr_eq(token, refused));
    }

    fn at_hand(&self, now: Instant) -> Option<Arc<Token>> {
        self.kept().token.clone().filter(|token| now < token.ends_at)
    }

    fn is_to_be_renewed(&self, token: &Arc<Token>, now: Instant) -> bool {
        let kept = self.kept();
        let renewed_meanwhile = kept.token.as_ref().is_some_and(|newest| !Arc::ptr_eq(newest, token));
        now >= token.renew_at && !renewed_meanwhile && kept.paused_until.is_none_or(|until| now >= until)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self, http: &reqwest::Client, policy: &Policy) -> Result<Arc<Token>, String> {
        // Should the attempt that fetches be given up, its pause stands all the same.
        self.kept().paused_until = Some(Instant::now() + RENEWAL_PAUSE);
        let asked = Instant::now();
        let answer = self.ask(http, policy).await?;
        let token = Arc::new(token(&answer, asked)?);
        *self.kept() = Kept { token: Some(Arc::clone(&token)), paused_until: None };
        Ok(token)
    }

    fn form(&self) -> String {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials");
        if !self.client.scopes.is_empty() {
            form.append_pair("scope", &self.client.scopes.join(" "));
        }
        if let Some(audience) = &self.client.audience {
            form.append_pair("audience", audience);
        }
        form.finish()
    }

    async fn ask(&self, http: &reqwest::Client, policy: &Policy) -> Result<Vec<u8>, String> {
        let endpoint = &self.client.token_endpoint;
        request::check_address(policy, endpoint.destination()).map_err(|seen| told(&seen))?;
        let mut request = reqwest::Request::new(Method::POST, endpoint.url().clone());
        let headers = request.headers_mut();
        headers.insert(header::AUTHORIZATION, self.authorization.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        *request.body_mut() = Some(self.form().into());
        let mut response = http
            .execute(request)
            .await
            .map_err(|error| told(&failure::observe(&error, policy.request.proxy.is_some())))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|_| "its answer broke off".to_owned())? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_ANSWER_BYTES {
                return Err(format!("its answer is longer than {MAX_ANSWER_BYTES} bytes"));
            }
        }
        if status.is_success() { Ok(body) } else { Err(refusal(status, &body)) }
    }
}

fn told(seen: &Observation) -> String {
    match seen {
        Observation::Answer(_) => String::new(),
        Observation::NotExecuted { detail, .. }
        | Observation::Unknown { detail, .. }
        | Observation::NotBuilt { detail, .. } => detail.clone(),
    }
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

fn refusal(status: http::StatusCode, body: &[u8]) -> String {
    let code = serde_json::from_slice::<Refusal>(body).ok().map(|refusal| refusal.error);
    match code.filter(|code| ERROR_CODES.contains(&code.as_str())) {
        Some(code) => format!("it answered {}: {code}", status.as_u16()),
        None => format!("it answered {}", status.as_u16()),
    }
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<Seconds>,
}

/// A number by the RFC, text in the wild.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(f64),
    Text(String),
}

impl Seconds {
    fn duration(&self) -> Option<Duration> {
        let seconds = match self {
            Self::Number(seconds) => *seconds,
            Self::Text(text) => text.trim().parse().ok()?,
        };
        Duration::try_from_secs_f64(seconds).ok()
    }
}

/// Reads an answer. Its time counts from before it was asked for, so that the token never ends later than it says.
fn token(answer: &[u8], asked: Instant) -> Result<Token, String> {
    let granted: Granted =
        serde_json::from_slice(answer).map_err(|_| "its answer is no JSON with an access_token".to_owned())?;
    if granted.token_type.is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
        return Err("its token is of another type than bearer".to_owned());
    }
    let authorization = Some(&granted.access_token)
        .filter(|token| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()))
        .and_then(|token| sensitive(&format!("Bearer {token}")))
        .ok_or("its token cannot be sent in a header")?;
    let stated = granted.expires_in.as_ref().and_then(Seconds::duration);
    let lifetime = stated.unwrap_or(UNSTATED_LIFETIME).min(MAX_LIFETIME);
    let left = RENEW_BEFORE.min(lifetime / 5);
    Ok(Token { authorization, renew_at: asked + lifetime.saturating_sub(left), ends_at: asked + lifetime })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_becomes_a_token_with_its_times_or_says_what_is_wrong() {
        let now = Instant::now();
        for (answer, ends, renewed) in [
            (r#"{"access_token": "t", "token_type": "Bearer", "expires_in": 3600}"#, 3600, 3540),
            (r#"{"access_token": "t", "token_type": "bearer", "expires_in": "100"}"#, 100, 80),
            (r#"{"access_token": "t"}"#, 300, 240),
            (r#"{"access_token": "t", "expires_in": -5}"#, 300, 240),
            (r#"{"access_token": "t", "expires_in": 1e300}"#, 300, 240),
            (r#"{"access_token": "t", "expires_in": 99999999}"#, 604_800, 604_740),
            (r#"{"access_token": "t", "expires_in": 0}"#, 0, 0),
        ] {
            let token = token(answer.as_bytes(), now).ok().unwrap();
            let after = |instant: Instant| (instant - now).as_secs();
            assert_eq!((after(token.ends_at), after(token.renew_at)), (ends, renewed), "{answer}");
            assert!(token.authorization.is_sensitive());
        }
        for (answer, said) in [
            ("", "no JSON"),
            ("{}", "no JSON"),
            (r#"{"access_token": ""}"#, "cannot be sent"),
            (r#"{"access_token": "a\nb"}"#, "cannot be sent"),
            (r#"{"access_token": "t", "token_type": "mac"}"#, "another type"),
        ] {
            let refused = token(answer.as_bytes(), now).err().unwrap();
            assert!(refused.contains(said), "{answer}: {refused}");
        }
    }
}
