//! TLS on the port for clients: a site answers HTTPS, and HTTP only to clients on its own machine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{Error, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::config::Config;
use crate::tls::provider;
use kofm_client::read_certificates;

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
