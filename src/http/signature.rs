//! Signatures as Standard Webhooks has them (<https://www.standardwebhooks.com>, version 1 of the symmetric scheme): the
//! HMAC-SHA-256 of id, time and body under a secret that the receiver holds too.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::{
    Engine,
    alphabet::STANDARD as ALPHABET,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;

/// What identifies the message: the row's key, the same for every attempt.
const ID: HeaderName = HeaderName::from_static("webhook-id");
/// When this attempt was made, in seconds since 1970.
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// Signatures with a space between them.
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// The headers of a signature.
pub(super) static HEADERS: [HeaderName; 3] = [ID, TIMESTAMP, SIGNATURE];
/// What shows people that a text is such a secret.
const SECRET_PREFIX: &str = "whsec_";
/// Secrets come with padding and without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A secret, ready to sign.
#[derive(Clone)]
pub(super) struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    /// Reads a secret: base64, with `whsec_` before it or not.
    pub fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let bytes = BASE64.decode(text.strip_prefix(SECRET_PREFIX).unwrap_or(text)).ok()?;
        if bytes.is_empty() {
            return None;
        }
        Hmac::new_from_slice(&bytes).ok().map(Self)
    }

    fn sign(&self, id: &str, seconds: u64, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body);
        format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
    }
}

/// Adds the headers of a signature by each key, newest first. `None`: the id cannot be sent in a header.
pub(super) fn sign(keys: &[SigningKey], id: &str, now: SystemTime, body: &[u8], headers: &mut HeaderMap) -> Option<()> {
    if keys.is_empty() {
        return Some(());
    }
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let signatures: Vec<String> = keys.iter().map(|key| key.sign(id, seconds, body)).collect();
    headers.insert(ID, HeaderValue::from_str(id).ok()?);
    headers.insert(TIMESTAMP, HeaderValue::from(seconds));
    headers.insert(SIGNATURE, HeaderValue::from_str(&signatures.join(" ")).ok()?);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector that the libraries of Standard Webhooks test themselves with.
    #[test]
    fn the_published_vector_comes_out() {
        for secret in ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            let key = SigningKey::read(secret).unwrap();
            let signature = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
            assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        }
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        for text in ["", "whsec_", "whsec_not base64", "top-secret!"] {
            assert!(SigningKey::read(text).is_none(), "{text:?}");
        }
        // With padding, without it, and with an editor's line end.
        for text in ["whsec_c2VjcmV0cw==", "whsec_c2VjcmV0cw", "c2VjcmV0cw==\n"] {
            assert!(SigningKey::read(text).is_some(), "{text:?}");
        }
    }
}
