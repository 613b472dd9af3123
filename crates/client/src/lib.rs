//! A client of the HTTP API of kofm, over TCP or a Unix socket.
//!
//! [`Client::acquire`] gives a guard: its lease is renewed by a thread of the client's own, never
//! in the caller's event loop, and released when the guard is dropped. [`LeaseGuard::lost`]
//! completes when the lease is lost. [`blocking`] has the same for programs without an event loop.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use kofm_client::Client;
//! use kofm_client::api::Submit;
//!
//! let client = Client::from_env()?;
//! let want = [("gpu".to_owned(), 2)].into();
//! let lease = client.acquire(&Submit { want, ..Submit::default() }).await?;
//! println!("running on {:?}", lease.lease().units["gpu"]);
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::{HeaderValue, Method, StatusCode};
use bytes::Bytes;
use rustix::net::sockopt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

pub use kofm_api as api;
use kofm_api::{AddSpec, Submit, TakeSpec, Taken, duration};

pub mod blocking;
mod clock;
mod explain;
#[cfg(feature = "fast")]
mod fast;
mod http;
mod log;
mod pages;
#[cfg(feature = "tls")]
mod trust;

use self::http::{Answer, Connection, Fault};

pub use self::clock::{Boottime, Moment};
#[cfg(feature = "fast")]
pub use self::fast::{FastClient, FastGuard};
#[cfg(feature = "tls")]
pub use self::trust::{Trust, read_certificates};
#[cfg(feature = "fast")]
pub use kofm_api::fast::FastLease;

const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(15);
const SILENT: &str = "no connection in time; check that the site runs and that no firewall drops \
                      its packets";
const MUTE: &str = "no answer in time; check that the site runs and that no firewall drops its \
                    packets";
/// One long poll; the next one follows.
const POLL: Duration = Duration::from_secs(30);
/// The same where there are other sites to ask, so that a stopped site is noticed sooner.
const SHORT_POLL: Duration = Duration::from_secs(5);
/// The first pause before another round of all addresses; it doubles up to `LONGEST_PAUSE`.
const AGAIN: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The longest answer that is read.
const MAX_ANSWER: usize = 256 << 20;
/// The same for a refusal.
#[cfg(feature = "fast")]
const MAX_REFUSAL: usize = 64 << 10;
/// Connections that are kept for later.
const MAX_IDLE: usize = 64;
/// How long the site that is used may take to renew a lease before the next one is asked as well.
pub(crate) const HEDGE: Duration = Duration::from_millis(250);
/// Leases that are renewed at the same time.
const MAX_RENEWALS: usize = 256;

/// Where a site answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `host:port`.
    Tcp(String),
    /// `host:port`, over TLS.
    Tls(String),
    /// A socket on this machine.
    Unix(PathBuf),
}

impl Address {
    /// Reads `http://host:port`, `https://host:port`, `host:port` or `unix:PATH`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let write = "write http://HOST:PORT, https://HOST:PORT or unix:PATH";
        let mut tls = false;
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let host = match text.split_once("://") {
            Some((scheme, host)) if scheme.eq_ignore_ascii_case("http") => host,
            Some((scheme, host)) if scheme.eq_ignore_ascii_case("https") => {
                tls = true;
                host
            }
            Some((scheme, _)) => return Err(format!("sites do not speak {scheme}; {write}")),
            None => text,
        };
        let host = host.trim_end_matches('/');
        if is_address(host) && !host.contains('/') {
            let host = host.to_owned();
            return Ok(if tls { Self::Tls(host) } else { Self::Tcp(host) });
        }
        Err(format!("`{text}` is not an address; {write}"))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(host) => write!(f, "http://{host}"),
            Self::Tls(host) => write!(f, "https://{host}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a call did not work.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// No site answers: whether the call had an effect is not known.
    Unreachable(String),
    /// The site refused; nothing has changed.
    Refused(api::Error),
    /// The site refused the token.
    Forbidden(String),
    /// Site and client have different versions of the API.
    Incompatible(String),
    /// The site answered something that is not in the API.
    Nonsense(String),
}

impl std::fmt::Display for ClientError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(text) | Self::Incompatible(text) => f.write_str(text),
            Self::Refused(error) => error.fmt(f),
            Self::Forbidden(text) => write!(f, "not allowed: {text}"),
            Self::Nonsense(text) => {
                write!(f, "the site answered what this client does not understand: {text}")
            }
        }
    }
}

impl std::error::Error for ClientError {}

impl From<api::Error> for ClientError {
    fn from(error: api::Error) -> Self {
        Self::Refused(error)
    }
}

impl ClientError {
    /// Whether the same call may work later, or at another site.
    fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused(error) => {
                matches!(error.error, api::Code::Unreachable | api::Code::Draining)
            }
            Self::Forbidden(_) | Self::Incompatible(_) | Self::Nonsense(_) => false,
        }
    }
}

/// Calls a site, or one of several: when one does not answer, the next call goes to another. Cheap
/// to clone; connections are kept and shared.
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

struct Inner {
    /// At least one.
    addresses: Vec<Address>,
    /// The place of the address that is used; it moves on when its site does not answer.
    current: AtomicUsize,
    token: Option<String>,
    /// The token is sent without a scheme, as etcd expects it.
    bare: bool,
    /// The authorities of addresses with TLS.
    #[cfg(feature = "tls")]
    trust: Option<Trust>,
    /// Connections, each with the place of its address.
    idle: Mutex<Vec<(usize, Connection)>>,
    renewer: Mutex<Option<mpsc::UnboundedSender<Work>>>,
    /// The header `kofm-health` of the last answer.
    health: Mutex<Option<String>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is a secret.
        f.debug_struct("Client").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the site at `address`; nothing is sent yet.
    pub fn new(address: Address, token: Option<String>) -> Self {
        Self::with_addresses(vec![address], token)
    }

    /// A client of the sites at `addresses`, which belong to one cluster: it calls the first that
    /// answers. Returns none if there is no address.
    pub fn of_several(addresses: Vec<Address>, token: Option<String>) -> Option<Self> {
        (!addresses.is_empty()).then(|| Self::with_addresses(addresses, token))
    }

    fn with_addresses(addresses: Vec<Address>, token: Option<String>) -> Self {
        Self(Arc::new(Inner {
            addresses,
            current: AtomicUsize::new(0),
            token,
            bare: false,
            #[cfg(feature = "tls")]
            trust: None,
            idle: Mutex::default(),
            renewer: Mutex::default(),
            health: Mutex::default(),
        }))
    }

    /// A client of the sites in `KOFM_ADDR` (addresses separated by commas; default
    /// `http://127.0.0.1:7600`), with the token in `KOFM_TOKEN`. With the feature `tls` the file in
    /// `KOFM_CA` has the authorities.
    pub fn from_env() -> Result<Self, String> {
        let text = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let list = text("KOFM_ADDR").unwrap_or_else(|| "http://127.0.0.1:7600".to_owned());
        let addresses = list.split(',').map(|it| Address::parse(it.trim()));
        let addresses = addresses.collect::<Result<Vec<_>, _>>();
        let addresses = addresses.map_err(|error| format!("KOFM_ADDR: {error}"))?;
        let client = Self::with_addresses(addresses, text("KOFM_TOKEN"));
        #[cfg(feature = "tls")]
        if let Some(path) = text("KOFM_CA") {
            let trust = Trust::read(path.as_ref()).map_err(|error| format!("KOFM_CA: {error}"))?;
            return Ok(client.with_trust(Some(trust)));
        }
        Ok(client)
    }

    /// The same client, which believes these authorities at addresses with `https`.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_trust(self, trust: Option<Trust>) -> Self {
        let mut client = self.apart();
        if let Some(inner) = Arc::get_mut(&mut client.0) {
            inner.trust = trust;
        }
        client
    }

    /// The same client, which sends this as the header `authorization`.
    #[must_use]
    pub fn with_authorization(self, value: Option<String>) -> Self {
        let mut client = self.apart();
        if let Some(inner) = Arc::get_mut(&mut client.0) {
            (inner.token, inner.bare) = (value, true);
        }
        client
    }

    /// A client of the same sites that shares nothing with this one.
    fn apart(&self) -> Self {
        let mut client = Self::with_addresses(self.0.addresses.clone(), self.0.token.clone());
        if let Some(inner) = Arc::get_mut(&mut client.0) {
            inner.bare = self.0.bare;
            #[cfg(feature = "tls")]
            inner.trust.clone_from(&self.0.trust);
        }
        client
    }

    /// Whether there is another address to go to.
    pub fn has_several(&self) -> bool {
        self.0.addresses.len() > 1
    }

    /// Gives a request an id of its own, if it may have to be repeated at another site.
    pub fn named(&self, spec: &Submit) -> Submit {
        let mut spec = spec.clone();
        if self.has_several() && spec.id.is_none() {
            spec.id = Some(format!("c-{}", fresh_id()));
        }
        spec
    }

    /// P: takes from a semaphore as soon as it is this call's turn and there are enough units. The
    /// call gets an id of its own unless it has one, so that it can be repeated at another site.
    pub async fn p(&self, name: &str, spec: &TakeSpec) -> Result<Taken, ClientError> {
        let id = spec.id.clone().or_else(|| Some(format!("c-{}", fresh_id())));
        let spec = TakeSpec { id, ..spec.clone() };
        let patience = spec.wait.map_or(Duration::MAX, |wait| wait.saturating_add(ANSWER));
        let path = format!("/v1/semaphores/{}/p", escape(name));
        self.call(Method::POST, &path, Some(&spec), patience).await
    }

    /// V: adds to a semaphore. The call gets an id of its own unless it has one, so that it can be
    /// repeated at another site.
    pub async fn v(&self, name: &str, spec: &AddSpec) -> Result<serde_json::Value, ClientError> {
        let id = spec.id.clone().or_else(|| Some(format!("c-{}", fresh_id())));
        let spec = AddSpec { id, ..*spec };
        let path = format!("/v1/semaphores/{}/v", escape(name));
        self.call(Method::POST, &path, Some(&spec), ANSWER).await
    }

    /// Calls and reads the answer as JSON.
    pub async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
        patience: Duration,
    ) -> Result<T, ClientError> {
        self.call_within(method, path, body, patience, ANSWER).await
    }

    /// The same, repeated for up to `total` while the sites answer 503.
    async fn call_within<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
        patience: Duration,
        total: Duration,
    ) -> Result<T, ClientError> {
        let body = body.map(serde_json::to_vec).transpose();
        let body = body.map_err(|error| ClientError::Nonsense(error.to_string()))?;
        let body = Bytes::from(body.unwrap_or_default());
        let answer = self.rounds(method.clone(), path, body, patience, total).await?;
        read(&method, path, answer)
    }

    /// Calls and returns the answer. A call that can be repeated goes to every address in turn
    /// until a site answers with anything but 503, and if all answer so, to the same addresses
    /// again for up to 15 s; other calls move on only if they were not sent.
    pub async fn raw(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        self.rounds(method, path, body, patience, ANSWER).await
    }

    /// Calls all addresses, and again for up to `total` while the answer is not known now.
    async fn rounds(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        patience: Duration,
        total: Duration,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let start = Moment::now();
        let mut pause = AGAIN;
        loop {
            let (status, answer) = self.round(&method, path, &body, patience).await?;
            let later = status == StatusCode::SERVICE_UNAVAILABLE
                && is_repeatable(&method, path, &body)
                && serde_json::from_slice::<api::Error>(&answer)
                    .is_ok_and(|error| error.error == api::Code::Unreachable);
            if !later || Moment::now().since(start) + pause > total {
                return Ok((status, answer));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Calls each address once, until one answers.
    async fn round(
        &self,
        method: &Method,
        path: &str,
        body: &Bytes,
        patience: Duration,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let repeatable = is_repeatable(method, path, body);
        let first = self.0.current.load(Ordering::Relaxed);
        let mut refused = None;
        let mut causes: Vec<String> = Vec::new();
        for step in 0..self.0.addresses.len() {
            let place = (first + step) % self.0.addresses.len();
            // A caller that stops waiting has waited in vain: its next call goes elsewhere.
            let mut turn = Turn { inner: &self.0, place, answered: false };
            let mut sent = false;
            let once = self.once(place, method, path, body, &mut sent);
            let cause = match timeout(patience, once).await {
                Ok(Ok((StatusCode::SERVICE_UNAVAILABLE, text))) => {
                    let stops = serde_json::from_slice::<api::Error>(&text);
                    let stops = stops.is_ok_and(|error| error.error == api::Code::Draining);
                    if !repeatable && !stops {
                        return Ok((StatusCode::SERVICE_UNAVAILABLE, text));
                    }
                    refused = Some((StatusCode::SERVICE_UNAVAILABLE, text));
                    continue;
                }
                Ok(Ok(answer)) => {
                    turn.answered = true;
                    self.0.current.store(place, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(cause)) => cause,
                Err(_) => MUTE.to_owned(),
            };
            causes.push(format!("{}: {cause}", self.0.addresses[place]));
            if sent && !repeatable {
                break;
            }
        }
        match refused {
            Some(answer) => Ok(answer),
            None => Err(no_site(&causes)),
        }
    }

    /// Calls the site at one address; `sent` becomes true when the call may have reached it.
    async fn once(
        &self,
        place: usize,
        method: &Method,
        path: &str,
        body: &Bytes,
        sent: &mut bool,
    ) -> Result<(StatusCode, Bytes), String> {
        // A connection that was kept may have been closed. A call that was not sent, or may be
        // repeated, is tried again with a new one.
        let kept = {
            let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let found = idle.iter().rposition(|it| it.0 == place);
            found.map(|found| idle.swap_remove(found).1)
        };
        if let Some(mut kept) = kept
            && kept.is_open()
        {
            *sent = true;
            match self.send(place, kept, method, path, body).await {
                Ok(answer) => return Ok(answer),
                Err(fault) if *method == Method::POST => return Err(explain::no_answer(&fault)),
                Err(_) => *sent = false,
            }
        }
        let fresh = self.connect(place).await?;
        *sent = true;
        let answer = self.send(place, fresh, method, path, body).await;
        answer.map_err(|fault| explain::no_answer(&fault))
    }

    async fn send(
        &self,
        place: usize,
        mut connection: Connection,
        method: &Method,
        path: &str,
        body: &[u8],
    ) -> Result<(StatusCode, Bytes), Fault> {
        let head =
            self.head(place, method, path, &format!("content-length: {}\r\n", body.len()))?;
        let Answer { status, headers, body, keep } =
            connection.call(head.as_bytes(), body, MAX_ANSWER).await?;
        if let Some(health) = headers.get("kofm-health") {
            let health = health.to_str().unwrap_or_default().to_owned();
            *self.0.health.lock().unwrap_or_else(PoisonError::into_inner) = Some(health);
        }
        let ours = path.starts_with("/v1/");
        if let Some(text) = explain::stranger(status, &headers, &body).filter(|_| ours) {
            return Err(Fault::Stranger(text));
        }
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if keep && idle.len() < MAX_IDLE {
            idle.push((place, connection));
        }
        Ok((status, body))
    }

    /// The head of a call, with further header lines.
    fn head(
        &self,
        place: usize,
        method: &Method,
        path: &str,
        lines: &str,
    ) -> Result<String, Fault> {
        let host = match &self.0.addresses[place] {
            Address::Tcp(host) | Address::Tls(host) => host.as_str(),
            Address::Unix(_) => "localhost",
        };
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !path.starts_with('/') || !plain(path) {
            return Err(Fault::Call("a path must begin with / and have escapes for blanks"));
        }
        if !plain(host) {
            return Err(Fault::Call("a host must have no blanks and no control characters"));
        }
        let token = match &self.0.token {
            Some(token) if HeaderValue::from_str(token).is_err() => {
                return Err(Fault::Call("a token must be one line of visible characters"));
            }
            Some(token) if self.0.bare => format!("authorization: {token}\r\n"),
            Some(token) => format!("authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        Ok(format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{token}{lines}\r\n"))
    }

    /// A connection for many calls at once, without HTTP around each of them.
    #[cfg(feature = "fast")]
    pub async fn fast(&self) -> Result<FastClient, ClientError> {
        let first = self.0.current.load(Ordering::Relaxed);
        let mut causes = Vec::new();
        let mut connected = None;
        for step in 0..self.0.addresses.len() {
            let place = (first + step) % self.0.addresses.len();
            match self.connect(place).await {
                Ok(connection) => {
                    self.0.current.store(place, Ordering::Relaxed);
                    connected = Some((place, connection));
                    break;
                }
                Err(cause) => causes.push(format!("{}: {cause}", self.0.addresses[place])),
            }
        }
        let Some((place, mut connection)) = connected else { return Err(no_site(&causes)) };
        let unreachable = |fault: &Fault| {
            no_site(&[format!("{}: {}", self.0.addresses[place], explain::no_answer(fault))])
        };
        let lines = format!("connection: upgrade\r\nupgrade: {}\r\n", api::fast::UPGRADE);
        let head = self.head(place, &Method::GET, "/v1/fast", &lines);
        let head = head.map_err(|fault| unreachable(&fault))?;
        let answer = connection.call(head.as_bytes(), &[], MAX_REFUSAL).await;
        let Answer { status, headers, body, .. } = answer.map_err(|fault| unreachable(&fault))?;
        if status != StatusCode::SWITCHING_PROTOCOLS {
            if let Some(text) = explain::stranger(status, &headers, &body) {
                return Err(unreachable(&Fault::Stranger(text)));
            }
            return Err(explain::refusal(&Method::GET, "/v1/fast", status, &body));
        }
        let others = self.has_several().then(|| self.clone());
        let (stream, buffer) = connection.into_parts();
        Ok(FastClient::new(stream, buffer, others))
    }

    async fn connect(&self, place: usize) -> Result<Connection, String> {
        let connection = async {
            match &self.0.addresses[place] {
                Address::Tcp(host) => Ok(Connection::new(dial(host).await?)),
                Address::Tls(host) => self.connect_tls(host).await,
                Address::Unix(path) => Ok(Connection::new(UnixStream::connect(path).await?)),
            }
        };
        match timeout(CONNECT, connection).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(explain::no_connection(&self.0.addresses[place], &error)),
            Err(_) => Err(SILENT.to_owned()),
        }
    }

    #[cfg(feature = "tls")]
    async fn connect_tls(&self, host: &str) -> std::io::Result<Connection> {
        let text = "https needs an authority; set KOFM_CA to its PEM file";
        let trust = self.0.trust.as_ref().ok_or_else(|| std::io::Error::other(text))?;
        let stream = trust.connect(host, dial(host).await?).await;
        Ok(Connection::new(stream.map_err(std::io::Error::other)?))
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_async, clippy::unused_self, reason = "as with TLS")]
    async fn connect_tls(&self, _host: &str) -> std::io::Result<Connection> {
        let text = "this program was built without TLS; build it with the feature `tls` of \
                    kofm-client, or write unix:PATH";
        Err(std::io::Error::other(text))
    }

    /// The verdict on its health that the site sent with its last answer: `ok`, or a word such as
    /// `minority`; none before the first answer.
    pub fn health(&self) -> Option<String> {
        self.0.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `GET` of a path, as JSON.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, None::<&()>, ANSWER).await
    }

    /// Asks for units; the request may be granted or wait.
    pub async fn submit(&self, spec: &Submit) -> Result<api::Request, ClientError> {
        let total = spec.wait.unwrap_or(ANSWER);
        self.call_within(Method::POST, "/v1/requests", Some(spec), ANSWER, total).await
    }

    /// A request, after at most `wait`.
    pub async fn watch(&self, id: &str, wait: Duration) -> Result<api::Request, ClientError> {
        let path = format!("/v1/requests/{}?wait={}", escape(id), duration::show(wait));
        self.call(Method::GET, &path, None::<&()>, wait + ANSWER).await
    }

    /// Waits until the request is granted or over.
    pub async fn wait(&self, mut request: api::Request) -> Result<api::Request, ClientError> {
        while request.state == api::State::Queued {
            request = self.watch(&request.id, POLL).await?;
        }
        Ok(request)
    }

    /// The same for a request that was submitted as `spec`, with an id. If its site is lost and no
    /// other site knows it, it is submitted again with the same id. While no site answers, this
    /// tries again for some seconds.
    pub async fn wait_for(
        &self,
        spec: &Submit,
        mut request: api::Request,
    ) -> Result<api::Request, ClientError> {
        if !self.has_several() || spec.id.is_none() {
            return self.wait(request).await;
        }
        let start = Moment::now();
        let mut heard = start;
        while request.state == api::State::Queued {
            let mut answer = self.watch(&request.id, SHORT_POLL).await;
            let unknown = api::Code::UnknownRequest;
            if matches!(&answer, Err(ClientError::Refused(it)) if it.error == unknown) {
                let waited = Moment::now().since(start);
                let wait = spec.wait.map(|wait| wait.saturating_sub(waited));
                answer = self.submit(&Submit { wait, ..spec.clone() }).await;
            }
            match answer {
                Ok(next) => {
                    request = next;
                    heard = Moment::now();
                }
                Err(error) if !error.is_temporary() => return Err(error),
                Err(error) if Moment::now().since(heard) > ANSWER => return Err(error),
                Err(_) => sleep(LONGEST_PAUSE).await,
            }
        }
        Ok(request)
    }

    /// Gives up a request.
    pub async fn cancel(&self, id: &str) -> Result<api::Request, ClientError> {
        let path = format!("/v1/requests/{}", escape(id));
        self.call(Method::DELETE, &path, None::<&()>, ANSWER).await
    }

    /// Renews a lease. A site that does not answer at once may be dead, and the lease ends soon:
    /// the next site is asked as well, and the first answer counts.
    pub async fn renew(&self, id: &str) -> Result<api::Lease, ClientError> {
        let path = format!("/v1/leases/{}/renew", escape(id));
        if self.has_several() {
            let answer = self.hedged(Method::POST, &path).await?;
            read(&Method::POST, &path, answer)
        } else {
            self.call(Method::POST, &path, None::<&()>, ANSWER).await
        }
    }

    /// How long after a renewal the next one is due, if the lease is certain for this time. Clients
    /// of several sites renew so often that the rest suffices for the other sites to notice that
    /// one is gone, and to take the lease over.
    pub fn renews_after(&self, certain: Duration) -> Duration {
        certain / if self.has_several() { 8 } else { 3 }
    }

    /// Calls the site that is used, and each further one when those before have not answered within
    /// [`HEDGE`]. A site that answers 503 is asked again.
    async fn hedged(&self, method: Method, path: &str) -> Result<(StatusCode, Bytes), ClientError> {
        let count = self.0.addresses.len();
        let first = self.0.current.load(Ordering::Relaxed);
        let (answers, mut heard) = mpsc::channel(count);
        // They end with this call.
        let mut calls = JoinSet::new();
        let mut start = |step: usize| {
            let (client, method, path) = (self.clone(), method.clone(), path.to_owned());
            let (place, answers) = ((first + step) % count, answers.clone());
            calls.spawn(async move {
                let mut pause = AGAIN;
                loop {
                    let (nothing, mut sent) = (Bytes::new(), false);
                    let call = client.once(place, &method, &path, &nothing, &mut sent);
                    let answer = timeout(ANSWER, call).await;
                    let answer = answer.unwrap_or_else(|_| Err(MUTE.to_owned()));
                    if answers.send((place, answer)).await.is_err() {
                        return;
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            });
        };
        let end = Instant::now() + ANSWER;
        let mut started = 1;
        start(0);
        let mut next = Instant::now() + HEDGE;
        let mut refused = None;
        let mut causes: BTreeMap<usize, String> = BTreeMap::new();
        loop {
            let more = started < count;
            tokio::select! {
                Some((place, answer)) = heard.recv() => match answer {
                    Ok((StatusCode::SERVICE_UNAVAILABLE, text)) => {
                        causes.remove(&place);
                        refused = Some((StatusCode::SERVICE_UNAVAILABLE, text));
                        next = Instant::now();
                    }
                    Ok(answer) => {
                        self.0.current.store(place, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Err(cause) => {
                        causes.insert(place, format!("{}: {cause}", self.0.addresses[place]));
                        next = Instant::now();
                        if causes.len() == count {
                            break;
                        }
                    }
                },
                () = sleep_until(next), if more => {
                    start(started);
                    started += 1;
                    next = Instant::now() + HEDGE;
                }
                () = sleep_until(end) => break,
            }
        }
        let causes: Vec<String> = causes.into_values().collect();
        refused.ok_or_else(|| no_site(&causes))
    }

    /// Gives a lease back.
    pub async fn release(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("/v1/leases/{}", escape(id));
        self.call(Method::DELETE, &path, None::<&()>, ANSWER).await.map(|_: serde_json::Value| ())
    }

    /// Waits for the units, and holds them until the guard is dropped.
    pub async fn acquire(&self, spec: &Submit) -> Result<LeaseGuard, ClientError> {
        let sent = Moment::now();
        let spec = &self.named(spec);
        let request = self.submit(spec).await?;
        let queued = request.state == api::State::Queued;
        let mut giving_up = GiveUp { client: self.clone(), id: Some(request.id.clone()) };
        let request = self.wait_for(spec, request).await?;
        giving_up.id = None;
        // What expired may have its lease still, for a person to release.
        let granted = request.state == api::State::Granted;
        let Some(lease) = request.lease.filter(|_| granted) else {
            let text = request.cause.unwrap_or_else(|| "not granted".into());
            return Err(api::Error::new(api::Code::Busy, text).into());
        };
        // Its time runs from before the question was sent. If it waited, the age of the grant is
        // unknown: it is renewed at once, and ends at the latest `left` from now.
        let left = Duration::from_millis(lease.expires_in_ms);
        let (until, end) = if queued {
            (sent, Moment::now().after(left))
        } else {
            (sent.after(left), sent.after(left))
        };
        // A lease is good for its ttl, but never for longer than its site is known to be.
        let ttl = Duration::from_millis(lease.ttl_ms.min(lease.expires_in_ms.max(1)));
        let (fate, told) = watch::channel(false);
        let now = Moment::now();
        let pause = self.renews_after(ttl);
        let kept = Kept { ttl, pause, until, end, again: now, asking: false, fate };
        self.send_work(Work::Keep { lease: lease.id.clone(), kept });
        Ok(LeaseGuard { client: self.clone(), lease, told, released: false })
    }

    /// Gives a lease back some time soon.
    #[cfg(feature = "fast")]
    pub(crate) fn release_later(&self, id: &str) {
        self.send_work(Work::Release(id.to_owned()));
    }

    /// Hands work to the renewing thread, which starts with the first lease.
    fn send_work(&self, work: Work) {
        let mut renewer = self.0.renewer.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = renewer.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            // It must not keep its client alive.
            let client = self.apart();
            let thread = std::thread::Builder::new().name("kofm-renew".into());
            if let Err(error) = thread.spawn(move || renew_all(&client, receiver)) {
                log::error(&format_args!("no thread for renewals, leases will expire: {error}"));
            }
            sender
        });
        sender.send(work).ok();
    }
}

/// A lease that is renewed until it is dropped, and then released.
#[derive(Debug)]
#[must_use = "the units are given back when this is dropped"]
pub struct LeaseGuard {
    client: Client,
    lease: api::Lease,
    /// Becomes true when the lease is lost; closed if no thread renews it.
    told: watch::Receiver<bool>,
    released: bool,
}

impl LeaseGuard {
    /// The lease as it was granted.
    pub const fn lease(&self) -> &api::Lease {
        &self.lease
    }

    /// Returns true if the lease is lost: a site refused to renew it, or its time has run out
    /// without an answer. Its units may belong to another holder soon.
    pub fn is_lost(&self) -> bool {
        *self.told.borrow() || self.told.has_changed().is_err()
    }

    /// Completes when the lease is lost, before its units can be granted again. The future does not
    /// borrow the guard; after the guard's drop it completes, too.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut told = self.told.clone();
        async move {
            told.wait_for(|lost| *lost).await.ok();
        }
    }

    /// Gives the units back; when this returns without an error, they are. A lease that is lost is
    /// an error with the code `gone`.
    pub async fn release(mut self) -> Result<(), ClientError> {
        let lost = self.is_lost();
        self.released = true;
        self.client.send_work(Work::Forget(self.lease.id.clone()));
        let released = self.client.release(&self.lease.id).await;
        if lost {
            let text = "the lease was lost before its release: another holder may have its units";
            return Err(api::Error::new(api::Code::Gone, text).into());
        }
        released
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if !self.released {
            self.client.send_work(Work::Release(self.lease.id.clone()));
        }
    }
}

/// Cancels a request whose waiter is dropped.
struct GiveUp {
    client: Client,
    id: Option<String>,
}

impl Drop for GiveUp {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.client.send_work(Work::Cancel(id));
        }
    }
}

enum Work {
    Keep {
        lease: String,
        kept: Kept,
    },
    /// The holder releases the lease itself.
    Forget(String),
    Release(String),
    Cancel(String),
}

/// The renewing thread: it ends with the client.
fn renew_all(client: &Client, work: mpsc::UnboundedReceiver<Work>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return };
    runtime.block_on(keep_all(client, work));
}

/// A lease, when its renewal was sent, and what came of that.
type Renewed = (String, Moment, Result<api::Lease, ClientError>);

/// Renews all leases of a client at the same time: where a site is gone, each has to be presented
/// to another one before the others go on without it.
async fn keep_all(client: &Client, mut work: mpsc::UnboundedReceiver<Work>) {
    let mut leases: HashMap<String, Kept> = HashMap::new();
    let mut renewals: JoinSet<Renewed> = JoinSet::new();
    let mut others: JoinSet<()> = JoinSet::new();
    let places = Arc::new(Semaphore::new(MAX_RENEWALS));
    loop {
        let now = Moment::now();
        let next = leases.values().map(|kept| kept.next(now)).min();
        let next = next.map_or(Duration::from_hours(1), |next| next.max(Duration::from_millis(5)));
        tokio::select! {
            word = work.recv() => match word {
                Some(Work::Keep { lease, kept }) => {
                    leases.insert(lease, kept);
                }
                Some(Work::Forget(lease)) => {
                    leases.remove(&lease);
                }
                Some(Work::Release(lease)) => {
                    leases.remove(&lease);
                    let client = client.clone();
                    others.spawn(async move { drop(client.release(&lease).await) });
                }
                Some(Work::Cancel(id)) => {
                    let client = client.clone();
                    others.spawn(async move { drop(client.cancel(&id).await) });
                }
                None => break,
            },
            Some(ended) = renewals.join_next() => {
                let Ok((lease, sent, renewed)) = ended else { continue };
                let Some(kept) = leases.get_mut(&lease) else { continue };
                if kept.is_lost(&lease, sent, renewed) {
                    lose(&mut leases, &lease);
                }
            }
            Some(_) = others.join_next() => {}
            () = sleep(next) => {}
        }
        let now = Moment::now();
        let over = leases.iter().filter(|(_, kept)| now >= kept.end);
        for lease in over.map(|(lease, _)| lease.clone()).collect::<Vec<_>>() {
            lose(&mut leases, &lease);
        }
        for (lease, kept) in &mut leases {
            if kept.asking || kept.due(now) > Duration::ZERO {
                continue;
            }
            kept.asking = true;
            let (client, lease, places) = (client.clone(), lease.clone(), Arc::clone(&places));
            renewals.spawn(async move {
                let _place = places.acquire().await;
                let sent = Moment::now();
                let renewed = client.renew(&lease).await;
                (lease, sent, renewed)
            });
        }
    }
    // Calls that were asked for before are still done.
    while others.join_next().await.is_some() {}
}

/// Tells the holder that its lease is lost.
fn lose(leases: &mut HashMap<String, Kept>, lease: &str) {
    let Some(kept) = leases.remove(lease) else { return };
    log::warn(&format_args!("lease {} is lost", api::lease_name(lease)));
    kept.fate.send_replace(true);
}

/// A lease that is renewed.
struct Kept {
    ttl: Duration,
    /// How long after a renewal the next one is due.
    pause: Duration,
    until: Moment,
    /// The lease is lost if it is not renewed until then.
    end: Moment,
    /// Not before this: the last attempt has failed.
    again: Moment,
    /// A renewal is under way.
    asking: bool,
    /// Tells the holder.
    fate: watch::Sender<bool>,
}

impl Kept {
    /// How long to wait before the next renewal.
    fn due(&self, now: Moment) -> Duration {
        let due = self.until.since(now).saturating_sub(self.ttl.saturating_sub(self.pause));
        due.max(self.again.since(now))
    }

    /// How long until there is something to do: a renewal, or to tell that the lease is lost.
    fn next(&self, now: Moment) -> Duration {
        let end = self.end.since(now);
        if self.asking { end } else { end.min(self.due(now)) }
    }

    /// Takes what came of a renewal. An answer after the end of the lease changes nothing.
    fn is_lost(
        &mut self,
        lease: &str,
        sent: Moment,
        renewed: Result<api::Lease, ClientError>,
    ) -> bool {
        self.asking = false;
        let now = Moment::now();
        match renewed {
            Ok(_) if now >= self.until && self.until > sent => true,
            Ok(renewed) => {
                self.until = sent.after(Duration::from_millis(renewed.expires_in_ms));
                self.end = self.until;
                // The right to grant of another site may last for less.
                let least = Duration::from_millis(20);
                self.again = sent.after(self.pause.min(least));
                false
            }
            Err(ClientError::Refused(error)) if error.error == api::Code::Gone => true,
            Err(error) => {
                let name = api::lease_name(lease);
                log::warn(&format_args!("lease {name} is not renewed yet: {error}"));
                self.again = now.after((self.ttl / 20).max(Duration::from_millis(5)));
                now >= self.end
            }
        }
    }
}

/// A call to one address. Unless its site has answered, the next call goes to the next address.
struct Turn<'a> {
    inner: &'a Inner,
    place: usize,
    answered: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let next = (self.place + 1) % self.inner.addresses.len();
            let current = &self.inner.current;
            // Another call may have found a better one meanwhile.
            current.compare_exchange(self.place, next, Ordering::Relaxed, Ordering::Relaxed).ok();
        }
    }
}

/// The body of an answer as JSON, or why there is none.
fn read<T: DeserializeOwned>(
    method: &Method,
    path: &str,
    (status, answer): (StatusCode, Bytes),
) -> Result<T, ClientError> {
    if status.is_success() {
        let value = serde_json::from_slice(&answer);
        return value.map_err(|error| explain::unreadable(method, path, &error));
    }
    Err(explain::refusal(method, path, status, &answer))
}

fn no_site(causes: &[String]) -> ClientError {
    ClientError::Unreachable(format!("no site answers at {}", causes.join("; ")))
}

/// Whether a call that was sent twice has the effect of one.
fn is_repeatable(method: &Method, path: &str, body: &[u8]) -> bool {
    if *method != Method::POST || path.ends_with("/renew") {
        return true;
    }
    let counts = path.starts_with("/v1/semaphores/");
    if counts && (path.ends_with("/p") || path.ends_with("/v")) {
        let body = serde_json::from_slice::<serde_json::Value>(body);
        return body.is_ok_and(|body| body["id"].is_string());
    }
    let submits = path == "/v1/requests";
    submits && serde_json::from_slice::<Submit>(body).is_ok_and(|it| it.id.is_some())
}

async fn dial(host: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    keep_alive(&stream);
    Ok(stream)
}

/// Returns true for `host:port`.
pub fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

/// 128 random bits in hexadecimal.
fn fresh_id() -> String {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(bytes.len()), "the system has randomness once it is up");
    format!("{:032x}", u128::from_le_bytes(bytes))
}

/// Notices a host that is gone without a word.
pub fn keep_alive(stream: &TcpStream) {
    let probes = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, Duration::from_secs(30)))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10)))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, 3));
    if let Err(error) = probes {
        log::debug(&format_args!("no probes on a connection: {error}"));
    }
}

/// Makes a name safe in a path or a query.
pub fn escape(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:@".contains(&byte) {
            out.push(byte.into());
        } else {
            write!(out, "%{byte:02X}").expect("a string takes everything");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let tcp = |text: &str| Ok(Address::Tcp(text.to_owned()));
        assert_eq!(Address::parse("http://a:1"), tcp("a:1"));
        assert_eq!(Address::parse("HTTP://a:1/"), tcp("a:1"));
        assert_eq!(Address::parse("[::1]:7600"), tcp("[::1]:7600"));
        assert_eq!(Address::parse("https://a:1/"), Ok(Address::Tls("a:1".into())));
        assert_eq!(Address::parse("unix:/x"), Ok(Address::Unix("/x".into())));
        for text in ["", "unix:", "a", "http://a", "http://a:1/v1", "https://a", "a:99999"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        for (text, scheme) in [("ftp://a:1", "ftp"), ("://a:1", "")] {
            let error = Address::parse(text).unwrap_err();
            assert!(error.contains(&format!("not speak {scheme};")), "{error}");
        }
    }
}
