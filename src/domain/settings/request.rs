//! The shape of the request. Secrets are named here and never held.

use std::collections::BTreeMap;

use crate::domain::destination::Endpoint;

/// The shape of the request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestPolicy {
    /// `POST`, `PUT` or `PATCH`.
    pub method: &'static str,
    /// Headers by name, checked to be sendable and not reserved.
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are read from Secrets.
    pub secret_headers: Vec<(String, SecretRef)>,
    /// How the relay proves who it is.
    pub authentication: Authentication,
    /// Whom it trusts and what it shows over TLS.
    pub tls: TlsPolicy,
    /// The secrets by which requests are signed, newest first; empty: they are not.
    pub signing: Vec<SecretRef>,
    /// The only proxy; `None`: none, whatever the environment says.
    pub proxy: Option<Box<Endpoint>>,
    /// Largest payload in bytes.
    pub max_body_bytes: usize,
    /// The header that carries the key.
    pub key_header: String,
    /// Whether the key is spelled as a string of RFC 9651.
    pub key_structured: bool,
    /// Longest key in bytes.
    pub max_key_length: usize,
}

/// One key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretRef {
    /// The Secret's name.
    pub name: String,
    /// The key.
    pub key: String,
}

/// How the relay proves who it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Authentication {
    /// It does not (userinfo in an endpoint still becomes basic authentication).
    None,
    /// A bearer token.
    Bearer(SecretRef),
    /// A user and a password.
    Basic {
        /// The user's name.
        username: SecretRef,
        /// The password.
        password: SecretRef,
    },
    /// A bearer token that is fetched.
    ClientCredentials(Box<ClientCredentials>),
}

/// Where a token comes from, and for whom.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientCredentials {
    /// The token endpoint.
    pub token_endpoint: Endpoint,
    /// The client's id.
    pub id: SecretRef,
    /// The client's secret.
    pub secret: SecretRef,
    /// What it shall permit.
    pub scopes: Vec<String>,
    /// For which receiver.
    pub audience: Option<String>,
}

/// Whom the relay trusts over TLS, and what it shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TlsPolicy {
    /// The authorities that alone are trusted; `None`: the system's.
    pub ca: Option<SecretRef>,
    /// The certificate for a receiver that asks for one.
    pub client: Option<ClientCertificate>,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientCertificate {
    /// The certificate with its intermediates.
    pub certificate: SecretRef,
    /// The private key.
    pub key: SecretRef,
}
