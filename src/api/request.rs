//! `DispatchPolicy`'s `request`: what is sent, and how the relay proves who it is.
#![expect(clippy::struct_field_names, reason = "a document's words: what names a Secret says so")]

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SecretKeyRef;

/// The shape of the request.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default = "Request::default")]
#[x_kube(validation = Rule::new("!has(self.proxyUrl) || self.proxyUrl.matches('^https?://[^/?#@[:space:]]+/?$')")
    .message("request.proxyUrl must be an http or https URL of host and port alone, such as http://proxy.test:3128: no user, no path"))]
pub struct Request {
    /// The HTTP method.
    pub method: Method,
    /// Headers sent with every request, by name. The key's header, `Content-Type`, `Content-Length` and `Host` are not theirs to set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are read from Secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub secret_headers: Vec<SecretHeader>,
    /// How the relay proves who it is: at most one of its fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication: Option<Authentication>,
    /// Whom the relay trusts, and the certificate that it shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Signatures by which the receiver knows that a request is ours and unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing: Option<Signing>,
    /// The proxy that every request goes through; unset: none, whatever the environment says.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 8, max = 512))]
    pub proxy_url: Option<String>,
    /// Largest payload that is sent, in bytes. A larger one is dead with reason `invalid`.
    #[schemars(range(min = 1, max = 104_857_600))]
    pub max_body_bytes: i64,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            method: Method::Post,
            headers: BTreeMap::new(),
            secret_headers: Vec::new(),
            authentication: None,
            tls: None,
            signing: None,
            proxy_url: None,
            max_body_bytes: 1_048_576,
        }
    }
}

/// The methods that carry a body and an intent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Method {
    /// `POST`
    #[default]
    #[serde(rename = "POST")]
    Post,
    /// `PUT`
    #[serde(rename = "PUT")]
    Put,
    /// `PATCH`
    #[serde(rename = "PATCH")]
    Patch,
}

/// A header with a secret value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretHeader {
    /// Name of the header.
    #[schemars(length(min = 1, max = 128), regex(pattern = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"))]
    pub name: String,
    /// Where its value is.
    pub secret_ref: SecretKeyRef,
}

/// How the relay proves who it is.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default = "Authentication::default")]
#[x_kube(validation = Rule::new("[has(self.bearer), has(self.basic), has(self.oauth2ClientCredentials)].filter(is_set, is_set).size() <= 1")
    .message("set one of bearer, basic and oauth2ClientCredentials, not both: remove those that the receiver does not ask for"))]
pub struct Authentication {
    /// `Authorization: Bearer <token>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer: Option<Bearer>,
    /// `Authorization: Basic <user:password>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic: Option<Basic>,
    /// A bearer token that the relay fetches itself (RFC 6749, section 4.4), keeps, and renews before it ends.
    #[serde(rename = "oauth2ClientCredentials", skip_serializing_if = "Option::is_none")]
    pub oauth2_client_credentials: Option<OAuth2ClientCredentials>,
}

/// A bearer token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bearer {
    /// Where the token is.
    pub secret_ref: SecretKeyRef,
}

/// A user and a password.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Basic {
    /// Where the user's name is.
    pub username_secret_ref: SecretKeyRef,
    /// Where the password is.
    pub password_secret_ref: SecretKeyRef,
}

/// Whom the relay trusts over TLS, and the certificate that it shows.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default = "Tls::default")]
#[x_kube(validation = Rule::new("has(self.clientCertificateSecretRef) == has(self.clientKeySecretRef)")
    .message("a client certificate goes with its key: set both of tls.clientCertificateSecretRef and tls.clientKeySecretRef, or neither"))]
pub struct Tls {
    /// Certificates of authorities in PEM, one or more. Set, they alone are trusted; unset, those of the system are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<SecretKeyRef>,
    /// The certificate that the relay shows to a receiver that asks for one, in PEM, with its intermediates after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate_secret_ref: Option<SecretKeyRef>,
    /// The certificate's private key, in PEM, not encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key_secret_ref: Option<SecretKeyRef>,
}

/// Where a token comes from, and for whom.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.tokenUrl.matches('^https?://[^/?#@[:space:]]+([/?][^#[:space:]]*)?$')")
    .message("tokenUrl must be an http or https URL without a user and without a fragment, such as https://login.test/oauth2/token"))]
pub struct OAuth2ClientCredentials {
    /// The token endpoint. The policy's `egress` and `request.tls` hold for it too.
    #[schemars(length(min = 8, max = 2048))]
    pub token_url: String,
    /// Where the client's id is. Id and secret go as basic authentication.
    pub client_id_secret_ref: SecretKeyRef,
    /// Where the client's secret is.
    pub client_secret_ref: SecretKeyRef,
    /// What the token shall permit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256), regex(pattern = r"^[!#-\[\]-~]+$")))]
    pub scopes: Vec<String>,
    /// For which receiver, where the token endpoint asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub audience: Option<String>,
}

/// Signatures on requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default = "Signing::default")]
pub struct Signing {
    /// As Standard Webhooks has it: `webhook-id` (the key), `webhook-timestamp` and `webhook-signature`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standard_webhooks: Option<StandardWebhooks>,
}

/// With which secrets requests are signed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StandardWebhooks {
    /// The secrets, newest first: base64, with `whsec_` before it or not. A request carries a signature by each, so that a
    /// receiver may go from one to the next in its own time.
    #[schemars(length(min = 1, max = 8))]
    pub secret_refs: Vec<SecretKeyRef>,
}
