//! One attempt: build, send, read a bounded part of the answer, all under one deadline.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::{
    client,
    credentials::Credentials,
    failure,
    proxy::{self, ProxyCheck},
    request::{self, Body, RowRequest},
    resolver::{Lookup, SystemLookup},
    signature,
    token::{Token, TokenSource},
};
use crate::domain::{
    destination::{Destination, Endpoint, Scheme},
    json_pointer,
    judge::{Answer, Observation},
    retry_after,
    row::Reason,
    settings::{DownstreamIdSource, Policy},
};

/// Longest id of a receiver that is kept, in characters.
const MAX_DOWNSTREAM_ID_CHARS: usize = 255;

/// Why there can be no sender.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The client could not be built.
    #[error("build the HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    /// Id and secret of the token endpoint's client cannot be sent.
    #[error("the client's id or secret cannot be sent in a header")]
    ClientSecret,
}

/// Sends rows under one policy.
pub struct Sender {
    pub(super) policy: Policy,
    pub(super) credentials: Credentials,
    client: reqwest::Client,
    tokens: Option<TokenSource>,
    proxy: Option<ProxyCheck>,
    /// Headers of answers that some rule asks for, in lower case.
    wanted: BTreeSet<String>,
}

/// What a request carries of the policy's.
#[derive(Clone, Copy)]
pub(super) enum Carries<'a> {
    /// Nothing.
    Nothing,
    /// The token, if the policy asks for one.
    Token,
    /// The token, and a signature over key and body.
    TokenAndSignature {
        /// The key.
        key: &'a str,
        /// The body.
        body: &'a Body,
    },
}

/// What an attempt saw.
#[derive(Debug)]
pub struct Sent {
    /// For the verdict.
    pub seen: Observation,
    /// The origin, once the endpoint could be read.
    pub destination: Option<String>,
}

impl Sender {
    /// A sender with a client of its own.
    pub fn new(policy: Policy, credentials: Credentials) -> Result<Self, SendError> {
        Self::with_lookup(policy, credentials, Arc::new(SystemLookup))
    }

    /// A sender that resolves names by `lookup`.
    pub fn with_lookup(policy: Policy, credentials: Credentials, lookup: Arc<dyn Lookup>) -> Result<Self, SendError> {
        let client = client::build(&policy, &credentials.tls, Arc::clone(&lookup))?;
        let proxy = policy.request.proxy.as_deref().map(|proxy| ProxyCheck::new(proxy.clone(), lookup));
        let tokens = match &credentials.client {
            Some((client, secret)) => Some(TokenSource::new(client.clone(), secret).ok_or(SendError::ClientSecret)?),
            None => None,
        };
        let queries =
            policy.status_query.iter().flat_map(|query| [&query.done, &query.unknown, &query.pending]).flatten();
        let conditions = policy.classify.iter().map(|rule| &rule.when).chain(queries);
        let wanted = conditions.filter_map(|when| when.header.as_ref()).map(|(name, _)| name.clone()).collect();
        Ok(Self { policy, credentials, client, tokens, proxy, wanted })
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Makes one attempt. `now` is the database's clock, for a `Retry-After` that is a date without a `Date` beside it.
    pub async fn send(&self, row: &RowRequest<'_>, now: impl Fn() -> SystemTime) -> Sent {
        let endpoint = match request::endpoint(&self.policy, row) {
            Ok(endpoint) => endpoint,
            Err(seen) => return Sent { seen, destination: None },
        };
        let destination = Some(endpoint.destination().to_string());
        Sent { seen: self.attempt(&endpoint, row, now).await, destination }
    }

    async fn attempt(&self, endpoint: &Endpoint, row: &RowRequest<'_>, now: impl Fn() -> SystemTime) -> Observation {
        let request = match request::build(&self.policy.request, &self.credentials, endpoint, row) {
            Ok(request) => request,
            Err(seen) => return seen,
        };
        let carries = Carries::TokenAndSignature { key: row.key, body: &row.body };
        self.exchange(request, endpoint.destination(), self.policy.total_timeout, carries, now).await
    }

    /// Sends a request once and reads what comes back, all within `limit`.
    pub(super) async fn exchange(
        &self,
        mut request: reqwest::Request,
        to: &Destination,
        limit: Duration,
        carries: Carries<'_>,
        now: impl Fn() -> SystemTime,
    ) -> Observation {
        let begun = tokio::time::Instant::now();
        let deadline = begun + limit;
        if let Some(proxy) = &self.proxy {
            match tokio::time::timeout_at(deadline, proxy.admits(&self.policy, to)).await {
                Ok(Ok(())) => {}
                Ok(Err(seen)) => return seen,
                Err(_) => return Observation::NotExecuted { reason: Reason::DNS, detail: no_answer(limit) },
            }
        }
        let token = match carries {
            Carries::Nothing => None,
            // At most half of the time, so that a slow token does not leave the request to run into its deadline.
            Carries::Token | Carries::TokenAndSignature { .. } => match self.token(begun, limit / 2).await {
                Ok(token) => token,
                Err(why) => {
                    return Observation::NotExecuted {
                        reason: Reason::TOKEN,
                        detail: format!("token endpoint: {why}"),
                    };
                }
            },
        };
        let headers = request.headers_mut();
        if let Some(token) = &token {
            headers.insert(header::AUTHORIZATION, token.authorization.clone());
        }
        // After the token, for a receiver compares the time of a signature with its own.
        if let Carries::TokenAndSignature { key, body: Body::Unchanged(body) } = carries
            && signature::sign(&self.credentials.signing, key, now(), body, headers).is_none()
        {
            return request::invalid("the idempotency key cannot be sent".to_owned());
        }
        let seen = match tokio::time::timeout_at(deadline, self.client.execute(request)).await {
            Ok(Ok(response)) if self.is_of_proxy(&response) => proxy::asks_for_credentials(),
            Ok(Ok(response)) => Observation::Answer(self.read(response, deadline, now).await),
            Ok(Err(error)) => failure::observe(&error, self.proxy.is_some()),
            Err(_) => Observation::Unknown { reason: Reason::TIMEOUT, detail: no_answer(limit) },
        };
        if let (Some(tokens), Some(token), Observation::Answer(answer)) = (&self.tokens, &token, &seen)
            && answer.status == StatusCode::UNAUTHORIZED
        {
            tokens.drop_token(token);
        }
        seen
    }

    /// Whether an answer speaks of the way to the receiver. Over TLS the proxy's own answers end before the request.
    fn is_of_proxy(&self, response: &reqwest::Response) -> bool {
        let clear = response.url().scheme() == Scheme::Http.as_str();
        self.proxy.is_some() && clear && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED
    }

    /// The token of this attempt, if the policy asks for one, within `longest` of its beginning.
    async fn token(&self, begun: tokio::time::Instant, longest: Duration) -> Result<Option<Arc<Token>>, String> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        match tokio::time::timeout_at(begun + longest, tokens.token(&self.client, &self.policy)).await {
            Ok(token) => token.map(Some),
            Err(_) => Err(no_answer(longest)),
        }
    }

    async fn read(
        &self,
        mut response: reqwest::Response,
        deadline: tokio::time::Instant,
        now: impl Fn() -> SystemTime,
    ) -> Answer {
        let status = response.status().as_u16();
        let received = now();
        let retry_after = self.policy.retry_after_cap.and_then(|cap| {
            let values = texts(response.headers(), &header::RETRY_AFTER);
            let dates = texts(response.headers(), &header::DATE);
            retry_after::stated_delay(&values, &dates, received).map(|stated| stated.min(cap))
        });
        let location_host =
            response.headers().get(header::LOCATION).and_then(|location| endpoint_host(response.url(), location));
        let headers = self.wanted_headers(response.headers());
        // The status has decided; a body that is late, endless or no text changes nothing but what is read from it.
        let body = body(&mut response, self.policy.max_response_bytes, deadline).await;
        let downstream_id = self.downstream_id(response.headers(), body.as_deref());
        Answer { status, retry_after, headers, body, downstream_id, location_host }
    }

    fn wanted_headers(&self, headers: &HeaderMap) -> Vec<(String, String)> {
        self.wanted
            .iter()
            .filter_map(|name| Some((name.clone(), headers.get(name)?.to_str().ok()?.to_owned())))
            .collect()
    }

    fn downstream_id(&self, headers: &HeaderMap, body: Option<&str>) -> Option<String> {
        let id = match &self.policy.downstream_id {
            DownstreamIdSource::Header(name) => headers.get(name)?.to_str().ok()?.to_owned(),
            DownstreamIdSource::Pointer(pointer) => json_pointer::text(json_pointer::find(body?, pointer)?)?,
        };
        let id: String = id.chars().filter(|c| !c.is_control()).take(MAX_DOWNSTREAM_ID_CHARS).collect();
        (!id.is_empty()).then_some(id)
    }
}

async fn body(response: &mut reqwest::Response, most: usize, deadline: tokio::time::Instant) -> Option<String> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        match tokio::time::timeout_at(deadline, response.chunk()).await {
            Ok(Ok(Some(chunk))) => bytes.extend_from_slice(chunk.get(..most - bytes.len()).unwrap_or(&chunk)),
            Ok(Ok(None)) => break,
            Ok(Err(_)) | Err(_) => return None,
        }
    }
    String::from_utf8(bytes).ok()
}

fn endpoint_host(base: &url::Url, location: &HeaderValue) -> Option<String> {
    base.join(location.to_str().ok()?).ok()?.host_str().map(|host| host.chars().take(255).collect())
}

fn texts<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    // A value that is no text counts as junk, so that it is not overlooked beside a good one.
    headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?")).collect()
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {}", crate::api::Duration(limit))
}
