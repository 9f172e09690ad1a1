//! The secret values of a policy, made ready to send. None of them is ever shown: there is no `Debug`, and errors name the
//! Secret and its key.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};

use super::{request, signature::SigningKey};
use crate::domain::settings::{Authentication, ClientCertificate, ClientCredentials, RequestPolicy, SecretRef};

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// It could not be read.
    #[error("{0}")]
    Read(String),
    /// The value has characters that no header may carry.
    #[error("secret {}, key {}: the value of {header} cannot be sent in a header: it holds control characters", .secret.name, .secret.key)]
    Header {
        /// Where the value is.
        secret: SecretRef,
        /// The header.
        header: String,
    },
    /// It is not what is needed.
    #[error("secret {}, key {}: {problem}", .secret.name, .secret.key)]
    Unfit {
        /// Where it is.
        secret: SecretRef,
        /// What is wrong and the mend.
        problem: String,
    },
}

/// The secret values of a policy, ready to send.
#[derive(Clone, Default)]
pub struct Credentials {
    pub(super) headers: HeaderMap,
    pub(super) signing: Vec<SigningKey>,
    pub(super) client: Option<(ClientCredentials, ClientSecret)>,
    pub(super) tls: TlsCredentials,
}

/// Who we are to a token endpoint.
#[derive(Clone)]
pub(super) struct ClientSecret {
    pub id: String,
    pub secret: String,
}

/// Whom we trust and what we show.
#[derive(Clone, Default)]
pub(super) struct TlsCredentials {
    /// The authorities that alone are trusted; `None`: the system's.
    pub authorities: Option<Vec<reqwest::Certificate>>,
    pub identity: Option<reqwest::Identity>,
}

impl Credentials {
    /// Reads every secret that a request of this policy needs. The errors of `read` are shown as they are.
    pub fn read(
        policy: &RequestPolicy,
        read: impl Fn(&SecretRef) -> Result<String, String>,
    ) -> Result<Self, CredentialError> {
        // Line ends at the end of a Secret's value are dropped: most come from an editor.
        let text = |secret: &SecretRef| {
            let value = read(secret).map_err(CredentialError::Read)?;
            Ok::<_, CredentialError>(value.trim_end_matches(['\r', '\n']).to_owned())
        };
        let mut headers = HeaderMap::new();
        for (name, secret) in &policy.secret_headers {
            let refuse = || CredentialError::Header { secret: secret.clone(), header: name.clone() };
            let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refuse())?;
            headers.insert(parsed, sensitive(&text(secret)?).ok_or_else(refuse)?);
        }
        let authorization =
            |secret: &SecretRef| CredentialError::Header { secret: secret.clone(), header: "Authorization".to_owned() };
        let mut client = None;
        match &policy.authentication {
            Authentication::None => {}
            Authentication::Bearer(token) => {
                let value = sensitive(&format!("Bearer {}", text(token)?)).ok_or_else(|| authorization(token))?;
                headers.insert(header::AUTHORIZATION, value);
            }
            Authentication::Basic { username, password } => {
                let value = request::basic(&text(username)?, &text(password)?).map_err(|_| authorization(password))?;
                headers.insert(header::AUTHORIZATION, value);
            }
            Authentication::ClientCredentials(fetched) => {
                let secret = ClientSecret { id: text(&fetched.id)?, secret: text(&fetched.secret)? };
                client = Some((fetched.as_ref().clone(), secret));
            }
        }
        let mut signing = Vec::new();
        for secret in &policy.signing {
            signing.push(SigningKey::read(&text(secret)?).ok_or_else(|| CredentialError::Unfit {
                secret: secret.clone(),
                problem: "it is no secret of Standard Webhooks: whsec_ and base64".to_owned(),
            })?);
        }
        let tls = TlsCredentials {
            authorities: policy.tls.ca.as_ref().map(|secret| authorities(secret, &text(secret)?)).transpose()?,
            identity: policy
                .tls
                .client
                .as_ref()
                .map(|pair| identity(pair, &text(&pair.certificate)?, &text(&pair.key)?))
                .transpose()?,
        };
        Ok(Self { headers, signing, client, tls })
    }
}

/// A header's value that is never shown.
pub(super) fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn certificates(secret: &SecretRef, pem: &str) -> Result<Vec<CertificateDer<'static>>, CredentialError> {
    let refuse = |problem: &str| CredentialError::Unfit { secret: secret.clone(), problem: problem.to_owned() };
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| refuse("the PEM is broken: write each certificate as its file has it, dashes included"))?;
    if found.is_empty() {
        return Err(refuse("it holds no certificate: write one in PEM, from -----BEGIN CERTIFICATE----- on"));
    }
    Ok(found)
}

fn authorities(secret: &SecretRef, pem: &str) -> Result<Vec<reqwest::Certificate>, CredentialError> {
    let refuse = || CredentialError::Unfit {
        secret: secret.clone(),
        problem: "a certificate in it cannot be read as an authority's".to_owned(),
    };
    let mut roots = RootCertStore::empty();
    let mut authorities = Vec::new();
    for certificate in certificates(secret, pem)? {
        authorities.push(reqwest::Certificate::from_der(&certificate).map_err(|_| refuse())?);
        roots.add(certificate).map_err(|_| refuse())?;
    }
    Ok(authorities)
}

fn identity(pair: &ClientCertificate, certificate: &str, key: &str) -> Result<reqwest::Identity, CredentialError> {
    let refuse = |problem: &str| CredentialError::Unfit { secret: pair.key.clone(), problem: problem.to_owned() };
    let chain = certificates(&pair.certificate, certificate)?;
    let private = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| refuse("it holds no private key: write one in PEM that is not encrypted"))?;
    CertifiedKey::from_der(chain, private, &ring::default_provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => refuse("the key is not the client certificate's own"),
        _ => refuse("the key is of a kind that cannot be used: RSA, ECDSA P-256 or P-384, and Ed25519 can"),
    })?;
    reqwest::Identity::from_pem(format!("{certificate}\n{key}\n").as_bytes())
        .map_err(|_| refuse("key and certificate cannot be used together"))
}
