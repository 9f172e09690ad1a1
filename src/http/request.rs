//! A row as a request, or why no request can be built of it.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use super::{credentials::Credentials, signature};
use crate::domain::{
    destination::{Destination, Endpoint},
    judge::Observation,
    row::Reason,
    settings::{Policy, RequestPolicy},
};

/// The tenant, for the receiver's logs.
const TENANT_HEADER: HeaderName = HeaderName::from_static("outbox-tenant");
/// The operation, for the receiver's logs.
const OPERATION_HEADER: HeaderName = HeaderName::from_static("outbox-operation");
/// Which attempt this is, from 1.
const ATTEMPT_HEADER: HeaderName = HeaderName::from_static("outbox-attempt");
/// Headers that are the connection's or the relay's own, whoever asks for them.
const RESERVED: &[HeaderName] = &[
    header::HOST,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::EXPECT,
    header::ACCEPT_ENCODING,
];

/// A row, as far as its request needs it.
#[derive(Clone, Debug)]
pub struct RowRequest<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// The operation.
    pub operation: &'a str,
    /// The key.
    pub key: &'a str,
    /// The endpoint.
    pub endpoint: &'a str,
    /// The body.
    pub body: Body,
    /// Extra headers as JSON text.
    pub headers: Option<&'a str>,
    /// Which attempt this is.
    pub attempt: u32,
}

/// A row's payload, or why it is not sent.
#[derive(Clone, Debug)]
pub enum Body {
    /// What it was at the row's first attempt.
    Unchanged(Bytes),
    /// It was edited since.
    Changed,
    /// It has so many bytes, more than the policy allows, and was not loaded.
    TooLarge(u64),
    /// The database cannot write it as text, by this SQLSTATE.
    Unreadable(String),
}

/// Checks everything that can be known before a connection is opened.
pub fn endpoint(policy: &Policy, row: &RowRequest<'_>) -> Result<Endpoint, Observation> {
    let endpoint = Endpoint::for_key(row.endpoint, row.key).map_err(|error| invalid(error.to_string()))?;
    check_address(policy, endpoint.destination())?;
    Ok(endpoint)
}

/// Checks an address that no resolver will be asked for.
pub fn check_address(policy: &Policy, destination: &Destination) -> Result<(), Observation> {
    // A name of the loopback interface is one whatever the resolver says (RFC 6761).
    let host = destination.host();
    let named = (host == "localhost" || host.ends_with(".localhost")).then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    match destination.address().or(named) {
        None => Ok(()),
        Some(address) => policy
            .egress
            .check(address)
            .map_err(|blocked| Observation::NotBuilt { reason: Reason::BLOCKED, detail: blocked.to_string() }),
    }
}

/// Builds the request that asks what became of a key: the headers and credentials of the policy, and no body.
pub fn query(
    policy: &RequestPolicy,
    credentials: &HeaderMap,
    method: &'static str,
    endpoint: &Endpoint,
    row: &RowRequest<'_>,
) -> Result<reqwest::Request, Observation> {
    let mut headers = HeaderMap::new();
    for (name, value) in &policy.headers {
        headers.insert(parse_name(name)?, parse_value(name, value)?);
    }
    for (name, value) in credentials {
        headers.insert(name.clone(), value.clone());
    }
    own_authorization(endpoint, credentials, &mut headers)?;
    headers.insert(TENANT_HEADER, text_value(row.tenant)?);
    headers.insert(OPERATION_HEADER, text_value(row.operation)?);
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| invalid("the method is unknown".to_owned()))?;
    let mut request = reqwest::Request::new(method, endpoint.url().clone());
    *request.headers_mut() = headers;
    Ok(request)
}

/// Userinfo of an address becomes basic authentication, unless the policy brings its own.
pub fn own_authorization(
    endpoint: &Endpoint,
    credentials: &HeaderMap,
    headers: &mut HeaderMap,
) -> Result<(), Observation> {
    if let Some(userinfo) = endpoint.userinfo()
        && !credentials.contains_key(header::AUTHORIZATION)
    {
        headers.insert(header::AUTHORIZATION, basic(&userinfo.name, &userinfo.password)?);
    }
    Ok(())
}

/// Builds the request.
pub fn build(
    policy: &RequestPolicy,
    credentials: &Credentials,
    endpoint: &Endpoint,
    row: &RowRequest<'_>,
) -> Result<reqwest::Request, Observation> {
    let body = body(policy, &row.body)?;
    let mut headers = HeaderMap::new();
    for (name, value) in &policy.headers {
        headers.insert(parse_name(name)?, parse_value(name, value)?);
    }
    let (key_header, key) = key(policy, row.key)?;
    let fixed = RESERVED.iter().chain([&key_header]);
    let of_signature = if credentials.signing.is_empty() { &[] } else { &signature::HEADERS[..] };
    row_headers(row.headers, &fixed.chain(of_signature).collect::<Vec<_>>(), &mut headers)?;
    for (name, value) in &credentials.headers {
        headers.insert(name.clone(), value.clone());
    }
    own_authorization(endpoint, &credentials.headers, &mut headers)?;
    headers.insert(TENANT_HEADER, text_value(row.tenant)?);
    headers.insert(OPERATION_HEADER, text_value(row.operation)?);
    headers.insert(ATTEMPT_HEADER, HeaderValue::from(row.attempt));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(key_header, key);
    let method =
        Method::from_bytes(policy.method.as_bytes()).map_err(|_| invalid("the method is unknown".to_owned()))?;
    let mut request = reqwest::Request::new(method, endpoint.url().clone());
    *request.headers_mut() = headers;
    *request.body_mut() = Some(body.into());
    Ok(request)
}

fn body(policy: &RequestPolicy, body: &Body) -> Result<Bytes, Observation> {
    let too_large = |bytes: u64| {
        invalid(format!("the payload has {bytes} bytes and request.maxBodyBytes is {}", policy.max_body_bytes))
    };
    match body {
        Body::Unchanged(bytes) if bytes.len() > policy.max_body_bytes => Err(too_large(bytes.len() as u64)),
        Body::Unchanged(bytes) => Ok(bytes.clone()),
        Body::TooLarge(bytes) => Err(too_large(*bytes)),
        Body::Unreadable(code) => {
            Err(invalid(format!("the database cannot write the payload as text (SQLSTATE {code})")))
        }
        Body::Changed => Err(invalid(
            "the payload was changed after its first attempt: a revised intent needs a row and a key of its own"
                .to_owned(),
        )),
    }
}

/// `Authorization: Basic`, marked sensitive.
pub fn basic(user: &str, password: &str) -> Result<HeaderValue, Observation> {
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
        .map_err(|_| invalid("the credentials cannot be sent".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn key(policy: &RequestPolicy, key: &str) -> Result<(HeaderName, HeaderValue), Observation> {
    let name = parse_name(&policy.key_header)?;
    if key.is_empty() {
        return Err(invalid("the idempotency key is empty".to_owned()));
    }
    if key.len() > policy.max_key_length {
        return Err(invalid(format!(
            "the idempotency key has {} bytes and idempotency.maxKeyLength is {}",
            key.len(),
            policy.max_key_length
        )));
    }
    if !key.bytes().all(|byte| (0x20..0x7f).contains(&byte)) || key.starts_with(' ') || key.ends_with(' ') {
        return Err(invalid(
            "the idempotency key has characters that a header cannot carry: use visible ASCII".to_owned(),
        ));
    }
    let spelled = if policy.key_structured {
        format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""))
    } else {
        key.to_owned()
    };
    let value =
        HeaderValue::from_str(&spelled).map_err(|_| invalid("the idempotency key cannot be sent".to_owned()))?;
    Ok((name, value))
}

fn row_headers(json: Option<&str>, fixed: &[&HeaderName], headers: &mut HeaderMap) -> Result<(), Observation> {
    let Some(json) = json.filter(|json| *json != "null") else { return Ok(()) };
    let extra: BTreeMap<String, String> = serde_json::from_str(json)
        .map_err(|_| invalid("the headers column must hold an object of strings".to_owned()))?;
    for (name, value) in &extra {
        let parsed = parse_name(name)?;
        if fixed.contains(&&parsed) {
            return Err(invalid(format!("the headers column may not set {parsed}")));
        }
        headers.insert(parsed, parse_value(name, value)?);
    }
    Ok(())
}

fn parse_name(name: &str) -> Result<HeaderName, Observation> {
    // What is no name may be a whole line with its value, so it is not shown.
    HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| invalid("a name in the headers column is no header name: use letters, digits and -".to_owned()))
}

fn parse_value(name: &str, value: &str) -> Result<HeaderValue, Observation> {
    HeaderValue::from_str(value).map_err(|_| invalid(format!("the value of header {name} cannot be sent")))
}

/// Text of the application in a header: what is not visible ASCII is percent-encoded.
fn text_value(text: &str) -> Result<HeaderValue, Observation> {
    let mut spelled = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (0x21..0x7f).contains(&byte) && byte != b'%' {
            spelled.push(char::from(byte));
        } else {
            let _ = write!(spelled, "%{byte:02X}");
        }
    }
    HeaderValue::from_str(&spelled).map_err(|_| invalid("the operation cannot be sent in a header".to_owned()))
}

/// Nothing can be sent, and why.
pub fn invalid(detail: String) -> Observation {
    Observation::NotBuilt { reason: Reason::INVALID, detail }
}
