//! `DispatchPolicy`'s `request`: what is sent, and how the relay proves who it is.
#![expect(clippy::struct_field_names, reason = "a document's words: what names a Secret says so")]

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SecretKeyRef;

/// The shape of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
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
#[x_kube(validation = Rule::new("!(has(self.bearer) && has(self.basic))")
    .message("set one of bearer and basic, not both: remove the one that the receiver does not ask for"))]
pub struct Authentication {
    /// `Authorization: Bearer <token>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bearer: Option<Bearer>,
    /// `Authorization: Basic <user:password>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic: Option<Basic>,
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
