//! Authorities and certificates that live as long as a test.

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate and its key.
pub struct Certified {
    pub certificate: CertificateDer<'static>,
    pub key: PrivateKeyDer<'static>,
    pub certificate_pem: String,
    pub key_pem: String,
}

/// An authority that signs what it is asked to.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
    pub certificate: CertificateDer<'static>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { pem: certificate.pem(), certificate: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    /// A certificate of a receiver at 127.0.0.1 and `receiver.test`.
    pub fn receiver(&self) -> Certified {
        self.issue(&["127.0.0.1", "receiver.test"], |_| {})
    }

    /// A certificate for these names and addresses.
    pub fn issue(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Certified {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Certified {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }

    /// A certificate whose time is over.
    pub fn expired(&self) -> Certified {
        self.issue(&["127.0.0.1"], |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        })
    }
}
