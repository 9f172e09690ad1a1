//! A policy's `request`, checked and resolved.

use http::{HeaderName, HeaderValue};

use crate::{
    api::{self, DispatchPolicySpec, Method, SecretKeyRef},
    domain::{
        destination::Endpoint,
        settings::{Authentication, ClientCertificate, ClientCredentials, RequestPolicy, SecretRef, TlsPolicy},
    },
};

/// Headers that the request itself sets.
const RESERVED_HEADERS: &[&str] = &[
    "content-type",
    "content-length",
    "host",
    "transfer-encoding",
    "connection",
    "accept-encoding",
    "expect",
    "upgrade",
    "te",
];

/// Headers of a signature.
const SIGNATURE_HEADERS: &[&str] = &["webhook-id", "webhook-timestamp", "webhook-signature"];

/// What is wrong with it, as far as its schema cannot say.
pub fn check(spec: &DispatchPolicySpec, invalid: &mut impl FnMut(&str, String)) {
    let key_header = spec.idempotency.header.to_ascii_lowercase();
    let signed = !signing(spec).is_empty();
    let mut name = |path: String, name: &str| {
        let lower = name.to_ascii_lowercase();
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            invalid(&path, format!("{name:?} is no header name: use letters, digits and hyphens"));
        } else if RESERVED_HEADERS.contains(&lower.as_str()) {
            invalid(&path, format!("{name} is set by the relay itself: remove it"));
        } else if signed && SIGNATURE_HEADERS.contains(&lower.as_str()) {
            invalid(&path, format!("{name} is set by request.signing: remove it"));
        } else if lower == key_header {
            invalid(
                &path,
                format!("{name} carries the idempotency key (idempotency.header) and cannot be overridden: remove it"),
            );
        } else if lower == "authorization" && spec.request.authentication.is_some() {
            invalid(&path, "request.authentication sets Authorization as well: keep one of them".to_owned());
        }
    };
    for header in spec.request.headers.keys() {
        name(format!("request.headers.{header}"), header);
    }
    for (index, header) in spec.request.secret_headers.iter().enumerate() {
        name(format!("request.secretHeaders[{index}].name"), &header.name);
    }
    if RESERVED_HEADERS.contains(&key_header.as_str()) || key_header == "authorization" {
        invalid(
            "idempotency.header",
            format!("{} has a meaning of its own and cannot carry the key", spec.idempotency.header),
        );
    }
    if signed && SIGNATURE_HEADERS.contains(&key_header.as_str()) {
        invalid(
            "idempotency.header",
            format!(
                "{} is set by request.signing, webhook-id to the key: name another header",
                spec.idempotency.header
            ),
        );
    }
    if let Some(client) = client_credentials(spec)
        && let Err(error) = Endpoint::parse(&client.token_url)
    {
        invalid("request.authentication.oauth2ClientCredentials.tokenUrl", error.to_string());
    }
    if let Some(Err(error)) = spec.request.proxy_url.as_deref().map(Endpoint::parse) {
        invalid("request.proxyUrl", error.to_string());
    }
    for (header, value) in &spec.request.headers {
        if HeaderValue::from_str(value).is_err() {
            invalid(
                &format!("request.headers.{header}"),
                "the value holds characters that no header may carry (line breaks, control characters)".to_owned(),
            );
        }
    }
}

/// Resolves a request that [`check`] has found nothing wrong with.
pub fn resolve(spec: &DispatchPolicySpec) -> RequestPolicy {
    let authentication = match &spec.request.authentication {
        Some(api::Authentication { bearer: Some(bearer), .. }) => Authentication::Bearer(secret(&bearer.secret_ref)),
        Some(api::Authentication { basic: Some(basic), .. }) => Authentication::Basic {
            username: secret(&basic.username_secret_ref),
            password: secret(&basic.password_secret_ref),
        },
        _ => client_credentials(spec).and_then(fetched).unwrap_or(Authentication::None),
    };
    RequestPolicy {
        method: match spec.request.method {
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
        },
        headers: spec.request.headers.clone(),
        secret_headers: spec
            .request
            .secret_headers
            .iter()
            .map(|header| (header.name.clone(), secret(&header.secret_ref)))
            .collect(),
        authentication,
        signing: signing(spec).iter().map(secret).collect(),
        proxy: spec.request.proxy_url.as_deref().and_then(|url| Endpoint::parse(url).ok()).map(Box::new),
        tls: spec.request.tls.as_ref().map(tls).unwrap_or_default(),
        max_body_bytes: usize::try_from(spec.request.max_body_bytes).unwrap_or(0),
        key_header: spec.idempotency.header.clone(),
        key_structured: spec.idempotency.format == api::KeyFormat::StructuredString,
        max_key_length: spec.idempotency.max_key_length.unsigned_abs() as usize,
    }
}

fn signing(spec: &DispatchPolicySpec) -> &[SecretKeyRef] {
    let webhooks = spec.request.signing.as_ref().and_then(|signing| signing.standard_webhooks.as_ref());
    webhooks.map_or(&[], |webhooks| &webhooks.secret_refs)
}

fn client_credentials(spec: &DispatchPolicySpec) -> Option<&api::OAuth2ClientCredentials> {
    spec.request.authentication.as_ref()?.oauth2_client_credentials.as_ref()
}

fn fetched(client: &api::OAuth2ClientCredentials) -> Option<Authentication> {
    Some(Authentication::ClientCredentials(Box::new(ClientCredentials {
        token_endpoint: Endpoint::parse(&client.token_url).ok()?,
        id: secret(&client.client_id_secret_ref),
        secret: secret(&client.client_secret_ref),
        scopes: client.scopes.clone(),
        audience: client.audience.clone(),
    })))
}

fn tls(spec: &api::Tls) -> TlsPolicy {
    let client = spec.client_certificate_secret_ref.as_ref().zip(spec.client_key_secret_ref.as_ref());
    TlsPolicy {
        ca: spec.ca_secret_ref.as_ref().map(secret),
        client: client
            .map(|(certificate, key)| ClientCertificate { certificate: secret(certificate), key: secret(key) }),
    }
}

fn secret(reference: &SecretKeyRef) -> SecretRef {
    SecretRef { name: reference.name.clone(), key: reference.key.clone() }
}
