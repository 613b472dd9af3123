//! The cluster's authority: makes certificates for sites.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use crate::tls::site_uri;

/// How far the clock of a client may be behind.
const CLOCKS: Duration = Duration::from_hours(1);

/// A certificate or a request for one, and its key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// For all to see.
    pub public: String,
    /// A secret.
    pub key: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pair({})", self.public)
    }
}

fn common_name(text: String) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

/// Makes the authority of a new cluster.
pub fn create(cluster: &str) -> Result<Pair, String> {
    let made = || {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = common_name(format!("kofm cluster {cluster}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Ok(Pair { public: certificate.pem(), key: key.serialize_pem() })
    };
    made().map_err(|error: rcgen::Error| format!("cannot make an authority: {error}"))
}

/// Makes a key for a site, and the request for its certificate.
pub fn request(cluster: &str, site: &str) -> Result<Pair, String> {
    let made = || {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = common_name(site_uri(cluster, site));
        let request = params.serialize_request(&key)?;
        Ok(Pair { public: request.pem()?, key: key.serialize_pem() })
    };
    made().map_err(|error: rcgen::Error| format!("cannot make a key: {error}"))
}

/// Makes a key, and a certificate for it that clients see for so long. The clocks of clients may be
/// an hour behind.
pub(crate) fn issue_to_clients(
    authority: &Pair,
    name: String,
    hosts: &[String],
    lifetime: Duration,
) -> Result<Pair, String> {
    let made = || {
        let key = KeyPair::generate()?;
        let issuer =
            Issuer::from_ca_cert_pem(&authority.public, KeyPair::from_pem(&authority.key)?)?;
        let mut params = CertificateParams::new(hosts.to_vec())?;
        params.distinguished_name = common_name(name);
        let now = SystemTime::now();
        params.not_before = (now - CLOCKS).into();
        params.not_after = (now + lifetime).into();
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(Pair { public: certificate.pem(), key: key.serialize_pem() })
    };
    made().map_err(|error: rcgen::Error| format!("cannot make a certificate: {error}"))
}

/// Makes the certificate of a site from its request. Of that, only the key counts. Clients find the
/// site under `hosts`.
pub fn issue(
    authority: &Pair,
    cluster: &str,
    site: &str,
    hosts: &[String],
    request: &str,
) -> Result<String, String> {
    let made = || {
        let request = CertificateSigningRequestParams::from_pem(request)?;
        let issuer =
            Issuer::from_ca_cert_pem(&authority.public, KeyPair::from_pem(&authority.key)?)?;
        let mut params = CertificateParams::new(hosts.to_vec())?;
        params.distinguished_name = common_name(format!("{site} of kofm cluster {cluster}"));
        params.subject_alt_names.push(SanType::URI(site_uri(cluster, site).try_into()?));
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&request.public_key, &issuer)?;
        Ok(certificate.pem())
    };
    made().map_err(|error: rcgen::Error| format!("cannot make a certificate: {error}"))
}
