//! TLS 1.3 between sites: each shows a certificate of the cluster's authority that names it.
//!
//! A certificate names its site by a URI, `kofm://CLUSTER/SITE`. Both ends check the chain up to
//! the authority, and that the name is the one in the greeting. Host names and addresses do not
//! count.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use kofm_client::read_certificates;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use kofm_site::api::KeyId;

/// Where a site has its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate of the cluster's authority, PEM.
    pub ca: PathBuf,
    /// The certificate of this site, PEM.
    pub cert: PathBuf,
    /// The key of this site, PEM.
    pub key: PathBuf,
    /// The key of the authority, PEM, at sites that take in machines.
    pub ca_key: Option<PathBuf>,
}

/// How a certificate names a site.
pub(crate) fn site_uri(cluster: &str, site: &str) -> String {
    format!("kofm://{cluster}/{site}")
}

/// A peer, as its certificate shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The URIs that it names.
    pub names: Vec<String>,
    key: KeyId,
}

impl Shown {
    fn of(certificates: Option<&[CertificateDer<'_>]>) -> Self {
        let Some(certificate) = certificates.and_then(<[_]>::first) else { return Self::default() };
        Self { names: uris(certificate), key: key_of(certificate).unwrap_or_default() }
    }
}

/// The hash of the key in a certificate.
pub(crate) fn key_of(certificate: &CertificateDer<'_>) -> Option<KeyId> {
    let (_, parsed) = parse_x509_certificate(certificate).ok()?;
    Some(Sha256::digest(parsed.tbs_certificate.subject_pki.raw).into())
}

/// The hash of the key in a certificate, PEM.
pub(crate) fn key_of_pem(certificate: &str) -> Result<KeyId, String> {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
    let key = certificate.ok().and_then(|it| key_of(&it));
    key.ok_or_else(|| "the certificate cannot be read".to_owned())
}

/// The certificate and the trust of one site.
#[derive(Clone)]
pub(crate) struct Tls {
    cluster: String,
    key: KeyId,
    /// The keys of the sites, as far as this one knows the cluster's record.
    pins: Arc<RwLock<BTreeMap<String, KeyId>>>,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is a secret.
        f.debug_struct("Tls").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// The one implementation of cryptography that kofm uses.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn at(path: &Path) -> impl FnOnce(String) -> String + '_ {
    move |text| format!("{}: {text}", path.display())
}

impl Tls {
    /// Reads the files of a site. A certificate that does not name it is refused.
    pub(crate) fn load(files: &TlsConfig, cluster: &str, site: &str) -> Result<Self, String> {
        let authority = read_certificates(&files.ca)?;
        let mut chain = read_certificates(&files.cert)?;
        let (names, own) = (uris(&chain[0]), key_of(&chain[0]));
        let must = site_uri(cluster, site);
        if !names.contains(&must) {
            let names = names.join(", ");
            let text = format!("the certificate names `{names}`; it must name {must} as a URI");
            return Err(at(&files.cert)(text));
        }
        let key = PrivateKeyDer::from_pem_file(&files.key);
        let key = key.map_err(|error| at(&files.key)(error.to_string()))?;
        let mut roots = RootCertStore::empty();
        for certificate in &authority {
            let added = roots.add(certificate.clone());
            added.map_err(|error| at(&files.ca)(error.to_string()))?;
        }
        // A machine that joins recognises the authority by the hash in its code.
        chain.extend(authority);
        let wrong = |error: Error| at(&files.cert)(error.to_string());
        let roots = Arc::new(roots);
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider())
            // A machine that joins has no certificate yet; it can do nothing else.
            .allow_unauthenticated()
            .build()
            .map_err(|error| at(&files.ca)(error.to_string()))?;
        let server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(wrong)?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(wrong)?;
        let client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(wrong)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Chain(Trust::Roots(roots))))
            .with_client_auth_cert(chain, key)
            .map_err(wrong)?;
        Ok(Self {
            cluster: cluster.to_owned(),
            key: own.unwrap_or_default(),
            pins: Arc::default(),
            acceptor: TlsAcceptor::from(Arc::new(server)),
            connector: TlsConnector::from(Arc::new(client)),
        })
    }

    /// The hash of this site's own key.
    pub(crate) const fn key(&self) -> KeyId {
        self.key
    }

    /// Believes these keys from now on; where there are none, the authority alone.
    pub(crate) fn pin(&self, keys: &BTreeMap<String, KeyId>) {
        let mut pins = self.pins.write().unwrap_or_else(PoisonError::into_inner);
        if *pins != *keys {
            pins.clone_from(keys);
        }
    }

    /// Whether this is the certificate of a site.
    pub(crate) fn check(&self, shown: &Shown, site: &str) -> Result<(), String> {
        let (must, names) = (site_uri(&self.cluster, site), &shown.names);
        if names.contains(&must) {
            let pins = self.pins.read().unwrap_or_else(PoisonError::into_inner);
            return match pins.get(site) {
                Some(key) if *key == shown.key => Ok(()),
                Some(_) => Err(format!(
                    "it says that it is {site}, with another key than the cluster knows: if its \
                     disk was lost, `kofm member replace {site}`, and `kofm join` there"
                )),
                None if pins.is_empty() => Ok(()),
                None => Err(format!(
                    "the cluster does not know the key of site {site}: `kofm invite`, and there \
                     `kofm join CODE`"
                )),
            };
        }
        let names = if names.is_empty() { "no site".to_owned() } else { names.join(", ") };
        Err(format!("the certificate names {names}; it must name {must}"))
    }

    /// Greets a site; also says what its certificate names.
    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
    ) -> io::Result<(client::TlsStream<TcpStream>, Shown)> {
        let stream =
            self.connector.connect(no_name(), stream).await.map_err(|error| explain(&error))?;
        let shown = Shown::of(stream.get_ref().1.peer_certificates());
        Ok((stream, shown))
    }

    /// Takes on a site, or a machine that wants to join and has no certificate.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(server::TlsStream<TcpStream>, Shown)> {
        let stream = self.acceptor.accept(stream).await.map_err(|error| explain(&error))?;
        let shown = Shown::of(stream.get_ref().1.peer_certificates());
        Ok((stream, shown))
    }
}

fn explain(error: &io::Error) -> io::Error {
    let text = format!("TLS: {error}; sites of a cluster must have certificates of one authority");
    io::Error::new(error.kind(), text)
}

/// Names of hosts do not count between sites.
fn no_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::IpAddr::from([0, 0, 0, 0]).into())
}

/// The URIs that a certificate names.
pub(crate) fn uris(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = parse_x509_certificate(certificate) else { return Vec::new() };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };
    let uri = |name: &GeneralName<'_>| {
        if let GeneralName::URI(uri) = name { Some((*uri).to_owned()) } else { None }
    };
    names.value.general_names.iter().filter_map(uri).collect()
}

/// The hash by which a machine that joins recognises the authority.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> [u8; 16] {
    let digest = Sha256::digest(certificate);
    let mut short = [0; 16];
    short.copy_from_slice(&digest[..16]);
    short
}

/// Connects as a machine that has no certificate yet to a site of the authority with this hash.
pub(crate) async fn connect_to_join(
    stream: TcpStream,
    authority: [u8; 16],
) -> io::Result<(client::TlsStream<TcpStream>, Vec<String>)> {
    let client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Chain(Trust::Hash(authority))))
        .with_no_client_auth();
    let stream = TlsConnector::from(Arc::new(client)).connect(no_name(), stream).await?;
    let names = stream.get_ref().1.peer_certificates().and_then(|it| it.first()).map(uris);
    Ok((stream, names.unwrap_or_default()))
}

/// Checks the chain of a certificate; its name is checked with the greeting.
#[derive(Debug)]
struct Chain(Trust);

#[derive(Debug)]
enum Trust {
    Roots(Arc<RootCertStore>),
    /// The authority that the peer shows, if it has this hash.
    Hash([u8; 16]),
}

impl ServerCertVerifier for Chain {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let roots = match &self.0 {
            Trust::Roots(roots) => Arc::clone(roots),
            Trust::Hash(hash) => {
                let mut roots = RootCertStore::empty();
                for it in intermediates.iter().filter(|it| fingerprint(it) == *hash) {
                    roots.add(it.clone().into_owned())?;
                }
                Arc::new(roots)
            }
        };
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("sites speak TLS 1.3".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
