//! Connections of clients: taken on, counted and served.

use std::convert::Infallible;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request as HttpRequest;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use kofm_client::keep_alive;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use super::router_on;
use super::slots::{self, Answering, Slot};
use crate::access::Access;
use crate::gate::Origin;
use crate::https::{Https, credential_of};
use crate::site::Site;
use kofm_site::rules::{Credential, Principal};

/// How long a client may take for what it begins with.
pub(super) const HEADERS_IN: Duration = Duration::from_secs(30);

/// How long a client that is refused may take to read why.
const REFUSAL: Duration = Duration::from_secs(2);
/// The first byte of a TLS connection.
const TLS_HANDSHAKE: u8 = 0x16;

/// Answers clients on a TCP port until the listener fails.
pub fn serve(
    site: Site,
    listener: TcpListener,
    access: Access,
) -> impl Future<Output = ()> + Send + 'static {
    serve_tls(site, listener, access, None)
}

/// The same with a certificate: clients speak HTTPS. Those on this machine may speak HTTP, others
/// only if the configuration accepts that.
pub fn serve_tls(
    site: Site,
    listener: TcpListener,
    access: Access,
    https: Option<Arc<Https>>,
) -> impl Future<Output = ()> + Send + 'static {
    let insecure = site.config().insecure;
    // Known before the first client comes.
    if listener.local_addr().is_ok_and(|address| !address.ip().is_loopback()) {
        site.note_exposed(access.is_open(), insecure || https.is_none());
    }
    let router = router_on(site.clone(), access, false);
    async move {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    keep_alive(&stream);
                    if stream.set_nodelay(true).is_err() {
                        continue;
                    }
                    let Some(slot) = slot() else { continue };
                    let origin = Origin {
                        address: address.to_string().into(),
                        ip: Some(address.ip()),
                        credential: None,
                    };
                    let client = Client { router: router.clone(), slot, origin };
                    match &https {
                        None => client.answer(stream),
                        Some(https) => {
                            let plain = insecure || address.ip().to_canonical().is_loopback();
                            let asks = site.with_principals(|all| {
                                let key = |it: &Principal| {
                                    matches!(it.credential, Credential::Certificate(_))
                                };
                                all.values().any(key)
                            });
                            let acceptor = https.acceptor(asks);
                            tokio::spawn(client.find_scheme(stream, acceptor, plain));
                        }
                    }
                }
                Err(error) => cannot_accept(&error).await,
            }
        }
    }
}

/// Makes a Unix socket. As with TCP, whoever can reach it may connect: its directory says who can.
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    // A socket that a dead process left behind would be in the way; nothing else is taken away.
    let is_socket = path.symlink_metadata().is_ok_and(|it| it.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Answers clients on a Unix socket until the listener fails.
pub async fn serve_unix(site: Site, listener: UnixListener, access: Access) {
    let router = router_on(site, access, true);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let user = stream.peer_cred().map(|it| it.uid()).ok();
                let shown = user.map_or_else(|| "?".to_owned(), |uid| uid.to_string());
                let Some(slot) = slot() else { continue };
                let origin = Origin {
                    address: format!("unix:uid={shown}").into(),
                    ip: None,
                    credential: user.map(|uid| Ok(Credential::User(uid))),
                };
                Client { router: router.clone(), slot, origin }.answer(stream);
            }
            Err(error) => cannot_accept(&error).await,
        }
    }
}

async fn cannot_accept(error: &io::Error) {
    warn!(%error, "cannot accept a client");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn slot() -> Option<Slot> {
    let slot = slots::take();
    if slot.is_none() {
        // Closed at once: the client's retry is cheaper than our memory.
        warn!("all connections for clients are in use; one more was turned away");
    }
    slot
}

/// A client that has connected.
struct Client {
    router: Router,
    slot: Slot,
    origin: Origin,
}

impl Client {
    /// Answers a client that says HTTPS or HTTP with its first byte; `plain`: whether it may say
    /// HTTP.
    async fn find_scheme(self, stream: TcpStream, acceptor: TlsAcceptor, plain: bool) {
        let slot = self.slot.clone();
        tokio::select! {
            () = self.greet(stream, acceptor, plain) => {}
            () = slot.closed() => {}
        }
    }

    async fn greet(mut self, mut stream: TcpStream, acceptor: TlsAcceptor, plain: bool) {
        let mut first = [0];
        let Ok(Ok(1)) = timeout(HEADERS_IN, stream.peek(&mut first)).await else { return };
        if first[0] == TLS_HANDSHAKE {
            match timeout(HEADERS_IN, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let shown = stream.get_ref().1.peer_certificates();
                    self.origin.credential = shown.and_then(<[_]>::first).map(credential_of);
                    self.answer(stream);
                }
                Ok(Err(error)) => debug!(address = %self.origin.address, %error, "TLS"),
                Err(_) => debug!(address = %self.origin.address, "TLS: no greeting in time"),
            }
        } else if plain {
            self.answer(stream);
        } else {
            let body = "{\"error\":\"malformed\",\"message\":\"this address speaks HTTPS: write \
                        https://, and set KOFM_CA to the authority's PEM file\"}";
            let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\
                        connection: close\r\n";
            let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
            // The request is read, so that closing does not reset the answer on its way.
            let mut rest = [0; 4096];
            let exchange = async {
                stream.write_all(text.as_bytes()).await?;
                stream.shutdown().await?;
                for _ in 0..16 {
                    if stream.read(&mut rest).await? == 0 {
                        break;
                    }
                }
                io::Result::Ok(())
            };
            drop(timeout(REFUSAL, exchange).await);
        }
    }

    fn answer<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { router, slot, origin } = self;
        let (service, used) = (TowerToHyperService::new(router), slot.clone());
        let service = service_fn(move |mut request: HttpRequest<Incoming>| {
            let busy = used.begin();
            request.extensions_mut().insert(used.clone());
            request.extensions_mut().insert(origin.clone());
            let answer = service.call(request);
            async move {
                let answer: Response = answer.await?;
                Ok::<_, Infallible>(answer.map(|body| Answering::new(body, busy)))
            }
        });
        tokio::spawn(async move {
            let serve = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS_IN)
                .max_buf_size(64 << 10)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            tokio::select! {
                served = serve => {
                    if let Err(error) = served {
                        debug!(%error, "client");
                    }
                }
                () = slot.closed() => debug!("an idle client made room for another one"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[tokio::test]
    async fn plain_http_from_another_machine_is_refused_with_the_next_step() {
        let dir = std::env::temp_dir().join(format!("kofm-listen-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (cert, key) = (dir.join("site.pem"), dir.join("site.key"));
        let authority = crate::authority::create("t").unwrap();
        let request = crate::authority::request("t", "a").unwrap();
        let issued = crate::authority::issue(&authority, "t", "a", &[], &request.public).unwrap();
        std::fs::write(&cert, issued).unwrap();
        std::fs::write(&key, request.key).unwrap();
        let text = format!(
            "site = \"a\"\nhttp = \"127.0.0.1:1\"\n[pools]\nx = 1\n[https]\ncert = {cert:?}\n\
             key = {key:?}\n"
        );
        let https = Https::of(&Config::parse(&text).unwrap()).unwrap().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let slot = slot().unwrap();
        let origin = Origin { address: "192.0.2.1:5".into(), ..Origin::default() };
        let client = Client { router: Router::new(), slot, origin };
        let served = tokio::spawn(client.find_scheme(stream, https.acceptor(false), false));
        ours.write_all(b"GET /v1/pools HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        ours.read_to_string(&mut answer).await.unwrap();
        drop(ours);
        served.await.unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        let body: serde_json::Value =
            serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert!(body["message"].as_str().unwrap().contains("https://"), "{body}");
    }
}
