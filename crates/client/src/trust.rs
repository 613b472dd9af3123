//! TLS of clients: the authorities that they believe.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client};

/// The certificates of a PEM file.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let at = |text: String| format!("{}: {text}", path.display());
    let list = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let list = list.map_err(|error| at(error.to_string()))?;
    if list.is_empty() {
        return Err(at("it must contain a certificate in PEM form".to_owned()));
    }
    Ok(list)
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
        Self::read_with(path, None)
    }

    /// The same, for a client that shows a certificate of its own; its key is in the second file.
    pub fn read_with(path: &Path, own: Option<(&Path, &Path)>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(path)? {
            let added = roots.add(certificate);
            added.map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let mut config = match own {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let at = |text: String| format!("{}: {text}", key.display());
                let chain = read_certificates(certificate)?;
                let secret = PrivateKeyDer::from_pem_file(key);
                let secret = secret.map_err(|error| at(error.to_string()))?;
                let made = config.with_client_auth_cert(chain, secret);
                made.map_err(|error| at(error.to_string()))?
            }
        };
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
