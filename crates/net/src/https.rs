//! TLS on the port for clients: a site answers HTTPS, and HTTP only to clients on its own machine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, Error, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client};

use crate::config::Config;
use crate::tls::{provider, read_certificates};

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
    files: HttpsConfig,
    current: RwLock<(Vec<CertificateDer<'static>>, TlsAcceptor)>,
}

impl fmt::Debug for Https {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is a secret.
        f.debug_struct("Https").field("files", &self.files).finish_non_exhaustive()
    }
}

fn at(path: &Path) -> impl FnOnce(String) -> String + '_ {
    move |text| format!("https: {}: {text}", path.display())
}

fn load(files: &HttpsConfig) -> Result<(Vec<CertificateDer<'static>>, TlsAcceptor), String> {
    let chain = read_certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key);
    let key = key.map_err(|error| at(&files.key)(error.to_string()))?;
    let wrong = |error: Error| at(&files.cert)(error.to_string());
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(wrong)?
        .with_no_client_auth()
        .with_single_cert(chain.clone(), key)
        .map_err(wrong)?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((chain, TlsAcceptor::from(Arc::new(server))))
}

impl Https {
    /// The certificate that `[https]` names, otherwise that of the site; none without either.
    pub fn of(config: &Config) -> Result<Option<Arc<Self>>, String> {
        let own = config.tls.as_ref();
        let own = own.map(|it| HttpsConfig { cert: it.cert.clone(), key: it.key.clone() });
        let Some(files) = config.https.clone().or(own) else { return Ok(None) };
        let current = RwLock::new(load(&files)?);
        Ok(Some(Arc::new(Self { files, current })))
    }

    /// Reads the files again and returns true if the certificate has changed. New connections get
    /// the new one, open connections go on. After an error the old certificate stays.
    pub fn reload(&self) -> Result<bool, String> {
        let fresh = load(&self.files)?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let changed = current.0 != fresh.0;
        *current = fresh;
        Ok(changed)
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

/// The authorities that a client believes.
#[derive(Clone)]
pub struct Trust(TlsConnector);

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}

impl Trust {
    /// Reads the certificates of a PEM file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(path)? {
            let added = roots.add(certificate);
            added.map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Greets the site at `host:port`, which must show a certificate for that host.
    pub(crate) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> Result<client::TlsStream<TcpStream>, String> {
        let host = address.rsplit_once(':').map_or(address, |it| it.0);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone())
            .map_err(|_| format!("`{host}` must be a host name or an IP address"))?;
        self.0.connect(name, stream).await.map_err(|error| explain(&host, &error))
    }
}

/// The cause in a sentence, with the next step.
fn explain(host: &str, error: &std::io::Error) -> String {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext,
        NotValidYet, NotValidYetContext, UnknownIssuer,
    };
    let cause = error.get_ref().and_then(|it| it.downcast_ref::<Error>());
    match cause {
        Some(Error::InvalidCertificate(UnknownIssuer | BadSignature)) => {
            "TLS: the certificate is of another authority; set KOFM_CA to the authority's PEM \
             file, ca.pem of this cluster"
                .to_owned()
        }
        Some(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
            format!(
                "TLS: the certificate is not for `{host}`; use a host that it names, or set \
                 [https] at the site"
            )
        }
        Some(Error::InvalidCertificate(Expired | ExpiredContext { .. })) => {
            "TLS: the certificate has expired, or the clock of this machine is wrong; check the \
             date, then renew the files of [https] and send SIGHUP to the site"
                .to_owned()
        }
        Some(Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. })) => {
            "TLS: the certificate is not valid yet; check the clock of this machine".to_owned()
        }
        Some(Error::InvalidMessage(_)) => {
            "TLS: the site does not speak HTTPS at this address; write http://".to_owned()
        }
        _ => format!("TLS: {error}"),
    }
}
