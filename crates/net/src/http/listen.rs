//! Connections of clients: taken on, counted and served.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request as HttpRequest;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use super::router_on;
use crate::access::Access;
use crate::site::Site;

/// Clients that may be connected at once.
const MAX_CONNECTIONS: usize = 50_000;
/// How long a client may take for what it begins with.
pub(super) const HEADERS_IN: Duration = Duration::from_secs(30);

/// The place of a connection among those that may be; requests carry it, and who goes on without
/// HTTP keeps it.
pub(super) type Slot = Arc<OwnedSemaphorePermit>;

/// The address of a client; requests carry it.
#[derive(Clone, Debug)]
pub(super) struct Peer(pub Arc<str>);

/// Answers clients on a TCP port until the listener fails.
pub fn serve(
    site: Site,
    listener: TcpListener,
    access: Access,
) -> impl Future<Output = ()> + Send + 'static {
    // Known before the first client comes.
    if listener.local_addr().is_ok_and(|address| !address.ip().is_loopback()) {
        site.note_exposed(access.is_open());
    }
    let router = router_on(site, access, false);
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    async move {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => {
                    keep_alive(&stream);
                    if stream.set_nodelay(true).is_ok() {
                        answer(stream, &router, &slots, &address.to_string());
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
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let user = stream.peer_cred().map(|it| it.uid());
                let user = user.map_or_else(|_| "?".to_owned(), |uid| uid.to_string());
                answer(stream, &router, &slots, &format!("unix:uid={user}"));
            }
            Err(error) => cannot_accept(&error).await,
        }
    }
}

/// Who waits says nothing: without probes, the peer of one whose machine died would wait for ever.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let probes = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, Duration::from_secs(30)))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10)))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, 3));
    if let Err(error) = probes {
        debug!(%error, "no probes on a connection");
    }
}

async fn cannot_accept(error: &io::Error) {
    warn!(%error, "cannot accept a client");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn answer<S>(stream: S, router: &Router, slots: &Arc<Semaphore>, address: &str)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Ok(slot) = Arc::clone(slots).try_acquire_owned() else {
        // Closed at once: the client's retry is cheaper than our memory.
        return warn!("{MAX_CONNECTIONS} clients are connected; one more was turned away");
    };
    let peer = Peer(address.into());
    let (slot, service) = (Slot::new(slot), TowerToHyperService::new(router.clone()));
    let service = service_fn(move |mut request: HttpRequest<Incoming>| {
        request.extensions_mut().insert(Slot::clone(&slot));
        request.extensions_mut().insert(peer.clone());
        service.call(request)
    });
    tokio::spawn(async move {
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_IN)
            .max_buf_size(64 << 10)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await;
        if let Err(error) = served {
            debug!(%error, "client");
        }
    });
}
