//! TLS on the port for clients: a site answers HTTPS, and HTTP only to clients on its own machine.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kofm_client::read_certificates;
use kofm_site::rules::Credential;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoClientAuth, ParsedCertificate};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};
use x509_parser::parse_x509_certificate;

use crate::authority::{self, Pair};
use crate::config::Config;
use crate::join::hosts_of;
use crate::tls::{TlsConfig, key_of, provider};

/// The certificate that clients see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpsConfig {
    /// The certificate and those between it and its authority, PEM.
    pub cert: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
}

/// The certificate of a site as clients see it. The files can be read again while clients come.
pub struct Https {
    source: Source,
    current: RwLock<Loaded>,
}

/// Where certificates come from.
#[derive(Debug)]
enum Source {
    /// From the operator, who replaces the files.
    Files(HttpsConfig),
    /// From the authority of the cluster, of which this site has the key.
    Authority(Box<Issuing>),
}

/// How a site makes certificates.
#[derive(Debug)]
struct Issuing {
    ca: PathBuf,
    ca_key: PathBuf,
    name: String,
    hosts: Vec<String>,
    lifetime: Duration,
}

/// How often the files of an operator are read again.
const READ_AGAIN: Duration = Duration::from_mins(1);

/// A certificate that was read or made.
struct Loaded {
    chain: Vec<CertificateDer<'static>>,
    /// Asks clients for no certificate: browsers would show a dialog.
    plain: TlsAcceptor,
    /// Asks for one, and takes on clients without.
    asking: TlsAcceptor,
}

impl fmt::Debug for Https {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is a secret.
        f.debug_struct("Https").field("source", &self.source).finish_non_exhaustive()
    }
}

fn at(path: &Path) -> impl FnOnce(String) -> String + '_ {
    move |text| format!("https: {}: {text}", path.display())
}

fn load(source: &Source) -> Result<Loaded, String> {
    match source {
        Source::Files(files) => {
            let chain = read_certificates(&files.cert)?;
            let key = PrivateKeyDer::from_pem_file(&files.key);
            let key = key.map_err(|error| at(&files.key)(error.to_string()))?;
            loaded(chain, &key).map_err(|error| at(&files.cert)(error.to_string()))
        }
        Source::Authority(it) => {
            let Issuing { ca, ca_key, name, hosts, lifetime } = &**it;
            let read = |path: &Path| {
                let text = std::fs::read_to_string(path);
                text.map_err(|error| at(path)(error.to_string()))
            };
            let pair = Pair { public: read(ca)?, key: read(ca_key)? };
            let made = authority::issue_to_clients(&pair, name.clone(), hosts, *lifetime)?;
            let chain = CertificateDer::from_pem_slice(made.public.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(made.key.as_bytes());
            let (Ok(chain), Ok(key)) = (chain, key) else {
                return Err(at(ca)("the certificate that was made cannot be read".to_owned()));
            };
            loaded(vec![chain], &key).map_err(|error| at(ca)(error.to_string()))
        }
    }
}

fn loaded(
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKeyDer<'static>,
) -> Result<Loaded, Error> {
    let acceptor = |verifier: Arc<dyn ClientCertVerifier>| {
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok::<_, Error>(TlsAcceptor::from(Arc::new(server)))
    };
    let plain = acceptor(Arc::new(NoClientAuth))?;
    let asking = acceptor(Arc::new(ByKey))?;
    Ok(Loaded { chain, plain, asking })
}

/// The credential in a client certificate, or why it does not count now.
pub(crate) fn credential_of(shown: &CertificateDer<'_>) -> Result<Credential, Arc<str>> {
    let key = key_of(shown).ok_or("the client certificate cannot be read")?;
    let valid = parse_x509_certificate(shown).is_ok_and(|it| it.1.validity().is_valid());
    if !valid {
        return Err("the client certificate has expired or is not valid yet: renew it with the \
                    same key, or check the clocks"
            .into());
    }
    Ok(Credential::Certificate(key))
}

/// Takes on every client that has the key of its certificate. The key says who it is: the record
/// of the cluster has the principals by their keys, so no authority counts.
#[derive(Debug)]
struct ByKey;

impl ClientCertVerifier for ByKey {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        ParsedCertificate::try_from(end_entity)?;
        Ok(ClientCertVerified::assertion())
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

impl Https {
    /// The certificate that `[https]` names; otherwise one of the authority of the cluster, if this
    /// site has its key, or that of the site; none without any.
    pub fn of(config: &Config) -> Result<Option<Arc<Self>>, String> {
        let source = match (&config.https, &config.tls) {
            (Some(files), _) => Source::Files(files.clone()),
            (None, Some(TlsConfig { ca, ca_key: Some(ca_key), .. })) => {
                Source::Authority(Box::new(Issuing {
                    ca: ca.clone(),
                    ca_key: ca_key.clone(),
                    name: format!("{} of kofm cluster {}", config.site, config.cluster),
                    hosts: hosts(config),
                    lifetime: config.certificate_lifetime,
                }))
            }
            (None, Some(TlsConfig { cert, key, .. })) => {
                Source::Files(HttpsConfig { cert: cert.clone(), key: key.clone() })
            }
            (None, None) => return Ok(None),
        };
        let current = RwLock::new(load(&source)?);
        Ok(Some(Arc::new(Self { source, current })))
    }

    /// Renews the certificate at half of its lifetime; files of an operator are read again every
    /// minute. Never ends.
    pub async fn keep_fresh(self: Arc<Self>) {
        let pause = match &self.source {
            Source::Files(_) => READ_AGAIN,
            Source::Authority(it) => it.lifetime / 2,
        };
        self.renew_every(pause).await;
    }

    async fn renew_every(&self, pause: Duration) {
        let mut failed = false;
        loop {
            // After an error there is half of the lifetime left for more tries.
            sleep(if failed { pause / 10 } else { pause }).await;
            match self.reload() {
                Ok(changed) => {
                    if changed {
                        info!("the certificate for clients was renewed");
                    }
                    failed = false;
                }
                Err(error) => {
                    warn!("{error}; clients go on with the old certificate");
                    failed = true;
                }
            }
        }
    }

    /// Reads the files again, or makes a new certificate, and returns true if it has changed. New
    /// connections get the new one, open connections go on. After an error the old certificate
    /// stays.
    pub fn reload(&self) -> Result<bool, String> {
        let fresh = load(&self.source)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let changed = current.chain != fresh.chain;
        *current = fresh;
        Ok(changed)
    }

    /// For the next connection; `asks`: whether certificates of clients count.
    pub(crate) fn acceptor(&self, asks: bool) -> TlsAcceptor {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        if asks { current.asking.clone() } else { current.plain.clone() }
    }
}

/// The names under which clients find a site.
fn hosts(config: &Config) -> Vec<String> {
    let own = config.members.get(&config.site);
    let addresses = own.into_iter().chain(&config.http).chain(&config.listen);
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let names = addresses.flat_map(|it| hosts_of(it)).chain(config.http_names.iter().cloned());
    let names: BTreeSet<String> = names.chain([machine]).filter(|it| !it.is_empty()).collect();
    names.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsConnector;

    use super::*;

    fn connector(ca: &Path) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(read_certificates(ca).unwrap().remove(0)).unwrap();
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }

    /// The site renews as fast as it can while clients come and go; another one stays.
    #[tokio::test(flavor = "multi_thread")]
    async fn certificates_of_the_cluster_are_renewed_and_refuse_no_client() {
        let dir = std::env::temp_dir().join(format!("kofm-renew-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (ca, ca_key) = (dir.join("ca.pem"), dir.join("ca.key"));
        let pair = authority::create("t").unwrap();
        std::fs::write(&ca, &pair.public).unwrap();
        std::fs::write(&ca_key, &pair.key).unwrap();
        let mut config = Config::single("a");
        config.http = Some("0.0.0.0:7600".to_owned());
        let none = dir.join("none.pem");
        let (cert, key) = (none.clone(), none);
        config.tls = Some(TlsConfig { ca: ca.clone(), cert, key, ca_key: Some(ca_key.clone()) });
        let https = Https::of(&config).unwrap().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::clone(&https);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = served.acceptor(false);
                tokio::spawn(async move {
                    let mut stream = acceptor.accept(stream).await.unwrap();
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).await.is_ok() {
                        stream.write_all(&byte).await.unwrap();
                    }
                });
            }
        });
        let connector = connector(&ca);
        let connect = async || {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let stream = connector.connect(name, stream).await.unwrap();
            let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
            (stream, shown)
        };
        let (mut kept, first) = connect().await;
        let renewing = Arc::clone(&https);
        let renews = tokio::spawn(async move {
            renewing.renew_every(Duration::from_millis(2)).await;
        });
        let mut seen = BTreeSet::from([first]);
        while seen.len() < 20 {
            seen.insert(connect().await.1);
            let mut byte = [7];
            kept.write_all(&byte).await.unwrap();
            kept.read_exact(&mut byte).await.unwrap();
        }
        // Without the authority's key the last certificate stays in use.
        std::fs::remove_file(&ca_key).unwrap();
        let refused = https.reload().unwrap_err();
        assert!(refused.contains("ca.key"), "{refused}");
        connect().await;
        renews.abort();
        std::fs::remove_dir_all(dir).unwrap();
    }
}
