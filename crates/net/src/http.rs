//! The HTTP API: JSON under `/v1`, metrics, health, and a page for people.
//!
//! Every answer is JSON, errors too. Bodies, headers, connections and waits are limited. Any site
//! answers for the cluster: it asks the others, and names those that did not answer in the header
//! `kofm-missing`.

mod audit;
mod console;
mod edge;
mod events;
mod guard;
mod history;
mod listen;
mod openapi;
mod operation;
mod operations;
mod paging;
mod slots;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path as UrlPath, Query, State as Shared};
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderValue, UPGRADE};
use axum::http::request::Parts;
use axum::http::{Method, Request as HttpRequest, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use hyper_util::rt::TokioIo;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;
use tracing::debug;

use self::edge::Edge;
use self::listen::HEADERS_IN;
pub use self::listen::{bind_unix, serve, serve_tls, serve_unix};
use self::operation::{Door, Operation, explain, not_a_field};
use self::paging::{ListQuery, PageQuery, paged};
pub(crate) use self::slots::Slot;
use crate::access::Access;
use crate::api::{
    AddSpec, Added, Code, Error, JoinGang, MemberChange, MemberChanged, PutPool, PutQuarantine,
    PutSemaphore, Released, Removed, StartGang, State, Submit, TakeSpec,
};
use crate::duration;
use crate::gate::{Caller, Gate, Origin};
use crate::site::Site;
use kofm_site::backup::Backup;
use kofm_site::rules::Verb;

const MAX_BODY: usize = 1 << 20;
/// It travels to another site in one frame.
const MAX_BACKUP: usize = 8 << 20;
/// An environment variable with which tests can damage a site.
pub(crate) const TEST_FAULTS: &str = "KOFM_TEST_FAULTS";
const BODY_IN: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
struct App {
    site: Site,
    gate: Gate,
    listeners: Arc<AtomicUsize>,
    /// The answer of `/openapi.json`.
    description: Arc<str>,
}

/// All paths of the API. Health, metrics, the page and its document need no token.
pub fn router(site: Site, access: Access) -> Router {
    router_on(site, access, false)
}

/// The same, for clients of a TCP port or of a Unix socket.
fn router_on(site: Site, access: Access, socket: bool) -> Router {
    let edge = Edge::new(site.clone(), &access, socket);
    let gate = Gate { site: site.clone(), access };
    let (listeners, description) = (Arc::default(), "".into());
    let mut app = App { site, gate: gate.clone(), listeners, description };
    let operations = operations::operations();
    let edge = edge.checking(&operations);
    app.description = openapi::document(&operations).to_string().into();
    let (open, guarded) = operations.into_iter().partition(|it| it.door == Door::Open);
    let add = |router: Router<App>, list: Vec<Operation>| {
        let routes = list.into_iter().map(Operation::route);
        routes.fold(router, |router, (path, handler)| router.route(path, handler))
    };
    let mut router = add(Router::new(), guarded);
    if std::env::var_os(TEST_FAULTS).is_some() {
        router = router.route("/v1/pools/{name}/scramble", post(scramble));
    }
    let router = router.route_layer(from_fn_with_state(gate, guard::guard));
    add(router, open)
        .fallback(no_path)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(edge, edge::edge))
        .with_state(app)
}

// Handlers

type Answer = Result<Response, ApiError>;

struct ApiError(Error);

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (status_of(self.0.error), json_body(&self.0)).into_response();
        response.extensions_mut().insert(self.0.error);
        if matches!(self.0.error, Code::TooMany | Code::Draining | Code::Unreachable) {
            response.headers_mut().insert("retry-after", 1.into());
        }
        response
    }
}

const fn status_of(code: Code) -> StatusCode {
    match code {
        Code::UnknownPool
        | Code::UnknownSemaphore
        | Code::UnknownGang
        | Code::UnknownRequest
        | Code::NotFound => StatusCode::NOT_FOUND,
        Code::Infeasible | Code::Busy | Code::Timeout | Code::InUse => StatusCode::CONFLICT,
        Code::Malformed => StatusCode::UNPROCESSABLE_ENTITY,
        Code::Gone => StatusCode::GONE,
        Code::Forbidden => StatusCode::FORBIDDEN,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::TooMany => StatusCode::TOO_MANY_REQUESTS,
        Code::Draining | Code::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Code::Method => StatusCode::METHOD_NOT_ALLOWED,
    }
}

fn json_body(value: &impl Serialize) -> Response {
    let text = serde_json::to_vec(value).unwrap_or_default();
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

#[expect(clippy::unnecessary_wraps, reason = "handlers end with it")]
fn ok(value: &impl Serialize) -> Answer {
    Ok(json_body(value))
}

/// A list, and in a header the sites that did not answer.
fn listed<T: Serialize>((list, missing): (Vec<T>, Vec<String>)) -> Answer {
    with_missing(json_body(&list), &missing)
}

/// Names the sites that did not answer in a header.
#[expect(clippy::unnecessary_wraps, reason = "handlers end with it")]
fn with_missing(mut response: Response, missing: &[String]) -> Answer {
    if let Ok(missing) = missing.join(",").parse::<HeaderValue>()
        && !missing.is_empty()
    {
        response.headers_mut().insert("kofm-missing", missing);
    }
    Ok(response)
}

/// Reads a body as JSON, whatever its content type says.
async fn body<T: DeserializeOwned + JsonSchema>(request: HttpRequest<Body>) -> Result<T, ApiError> {
    body_within(request, MAX_BODY).await
}

async fn body_within<T: DeserializeOwned + JsonSchema>(
    request: HttpRequest<Body>,
    most: usize,
) -> Result<T, ApiError> {
    let malformed = |text: String| ApiError(Error::new(Code::Malformed, text));
    let read = axum::body::to_bytes(request.into_body(), most);
    let bytes: Bytes = match timeout(BODY_IN, read).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Err(malformed(format!("the body is longer than {most} bytes"))),
        Err(_) => return Err(malformed("the body did not come in time".into())),
    };
    // Where everything has a default, nothing need be said.
    let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
    // Fields without names would be taken in the order of the type.
    if bytes.iter().find(|it| !it.is_ascii_whitespace()) != Some(&b'{') {
        return Err(malformed("the body must be a JSON object, as {\"reason\":\"…\"}".into()));
    }
    serde_json::from_slice(&bytes).map_err(|error| malformed(explain::<T>(&bytes, &error)))
}

/// What stands after `?`; a mistake in it gets an answer in JSON.
struct Asked<T>(T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let query = Query::try_from_uri(&parts.uri);
        let malformed = |error: QueryRejection| {
            let text = error.body_text();
            let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            Error::new(Code::Malformed, format!("the query: {text}"))
        };
        query.map(|Query(query)| Self(query)).map_err(|error| malformed(error).into())
    }
}

/// The name in a path, or several; a mistake in it gets an answer in JSON.
struct Named<T = String>(T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let name = UrlPath::from_request_parts(parts, state).await;
        let malformed = |error: PathRejection| Error::new(Code::Malformed, error.body_text());
        name.map(|UrlPath(name)| Self(name)).map_err(|error| malformed(error).into())
    }
}

/// The principal of a request. A client must not send one: the site knows it.
fn principal<T: JsonSchema>(caller: &Caller, sent: Option<&str>) -> Result<Option<String>, Error> {
    match sent {
        Some(_) => Err(not_a_field::<T>("principal")),
        None => Ok(caller.name.as_deref().map(str::to_owned)),
    }
}

async fn submit(
    Shared(app): Shared<App>,
    Extension(caller): Extension<Caller>,
    request: HttpRequest<Body>,
) -> Answer {
    let mut spec: Submit = body(request).await?;
    spec.principal = principal::<Submit>(&caller, spec.principal.as_deref())?;
    caller.needs_all(Verb::Acquire, spec.want.keys())?;
    let request = app.site.submit(spec).await?;
    let status = match request.state {
        State::Queued => StatusCode::ACCEPTED,
        State::Granted | State::Released | State::Expired | State::Cancelled | State::Failed => {
            StatusCode::OK
        }
    };
    Ok((status, json_body(&request)).into_response())
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WatchQuery {
    /// How long to wait for the grant or the end, as `30s`.
    wait: Option<String>,
}

async fn watch(
    Shared(app): Shared<App>,
    Named(id): Named,
    Asked(query): Asked<WatchQuery>,
) -> Answer {
    let wait = query.wait.as_deref().map(duration::parse).transpose();
    let wait = wait.map_err(|text| Error::new(Code::Malformed, text))?;
    ok(&app.site.watch(&id, wait.unwrap_or_default()).await?)
}

async fn cancel(Shared(app): Shared<App>, Named(id): Named) -> Answer {
    ok(&app.site.cancel(&id).await?)
}

/// A body without any field.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

async fn renew(Shared(app): Shared<App>, Named(id): Named, request: HttpRequest<Body>) -> Answer {
    let Nothing {} = body(request).await?;
    ok(&app.site.renew(&id).await?)
}

async fn release(Shared(app): Shared<App>, Named(id): Named) -> Answer {
    app.site.release(&id).await?;
    ok(&Released { id, state: "released".to_owned() })
}

/// Garbles the memory of a pool's protocol at this site. For tests: there is no such path unless
/// the site was started with `KOFM_TEST_FAULTS` in its environment.
async fn scramble(Shared(app): Shared<App>, Named(name): Named) -> Answer {
    app.site.scramble(&name).await?;
    ok(&json!({"pool": name, "state": "corrupted"}))
}

async fn leases(Shared(app): Shared<App>, uri: Uri, Asked(query): Asked<ListQuery>) -> Answer {
    let page = query.page()?;
    let (mut list, missing) = app.site.leases().await?;
    if let Some(pool) = query.pool {
        list.retain(|lease| lease.units.contains_key(&pool));
        refuse_unknown(&app.site, &pool, &list).await?;
    }
    paged(&uri, list, &missing, page.as_ref(), |lease| {
        (lease.fence, lease.site.clone(), lease.request.clone())
    })
}

async fn queue(Shared(app): Shared<App>, uri: Uri, Asked(query): Asked<ListQuery>) -> Answer {
    let page = query.page()?;
    let (mut list, missing) = app.site.queue().await?;
    if let Some(pool) = query.pool {
        list.retain(|request| request.want.contains_key(&pool));
        refuse_unknown(&app.site, &pool, &list).await?;
    }
    paged(&uri, list, &missing, page.as_ref(), |request| {
        let claim = request.claim.map_or((0, 0), |claim| (claim.time, claim.site));
        (claim, request.site.clone(), request.id.clone())
    })
}

/// An empty list of a pool that does not exist is a mistake of whoever asks.
async fn refuse_unknown<T>(site: &Site, pool: &str, list: &[T]) -> Result<(), Error> {
    if list.is_empty() {
        site.pool(pool).await?;
    }
    Ok(())
}

async fn members(Shared(app): Shared<App>, uri: Uri, Asked(query): Asked<PageQuery>) -> Answer {
    let page = query.page()?;
    paged(&uri, app.site.members(), &[], page.as_ref(), |member| member.number)
}

async fn health(Shared(app): Shared<App>) -> Answer {
    ok(&app.site.health())
}

async fn remove_member(Shared(app): Shared<App>, Named(name): Named) -> Answer {
    app.site.change_member(&name, MemberChange::Remove).await?;
    ok(&MemberChanged { site: name, state: "removed".to_owned() })
}

async fn change_member(
    Shared(app): Shared<App>,
    Named((name, change)): Named<(String, String)>,
) -> Answer {
    let (change, state) = match change.as_str() {
        "replace" => (MemberChange::Replace, "replaced"),
        "drain" => (MemberChange::Drain, "draining"),
        "undrain" => (MemberChange::Undrain, "member"),
        _ => {
            let text = format!("a site cannot be `{change}`; it must be drain, undrain or replace");
            return Err(Error::new(Code::NotFound, text).into());
        }
    };
    app.site.change_member(&name, change).await?;
    ok(&MemberChanged { site: name, state: state.to_owned() })
}

async fn backup(Shared(app): Shared<App>) -> Answer {
    ok(&app.site.backup()?)
}

async fn restore(Shared(app): Shared<App>, request: HttpRequest<Body>) -> Answer {
    let backup: Backup = body_within(request, MAX_BACKUP).await?;
    app.site.restore(&backup).await?;
    ok(&app.site.backup()?)
}

async fn pools(Shared(app): Shared<App>) -> Answer {
    listed(app.site.pools().await?)
}

async fn pool(Shared(app): Shared<App>, Named(name): Named) -> Answer {
    let mut pool = app.site.pool(&name).await?;
    pool.unaccounted = app.site.unaccounted(&name).await?;
    ok(&pool)
}

/// Brings a change of several steps to its end, also if its client does not wait for it.
async fn to_the_end(
    change: impl Future<Output = Result<(), Error>> + Send + 'static,
) -> Result<(), Error> {
    let ended = tokio::spawn(change).await;
    ended.unwrap_or_else(|_| Err(Error::new(Code::Draining, "the site has stopped")))
}

async fn put_pool(
    Shared(app): Shared<App>,
    Named(name): Named,
    request: HttpRequest<Body>,
) -> Answer {
    let spec: PutPool = body(request).await?;
    let (site, pool) = (app.site.clone(), name.clone());
    to_the_end(async move { site.put_pool(&pool, spec).await }).await?;
    ok(&app.site.pool(&name).await?)
}

async fn remove_pool(Shared(app): Shared<App>, Named(name): Named) -> Answer {
    let (site, pool) = (app.site.clone(), name.clone());
    to_the_end(async move { site.remove_pool(&pool).await }).await?;
    ok(&Removed::new(&name, "removed"))
}

async fn quarantine(
    Shared(app): Shared<App>,
    Named((pool, unit)): Named<(String, String)>,
    request: HttpRequest<Body>,
) -> Answer {
    let PutQuarantine { reason } = body(request).await?;
    app.site.quarantine(&pool, &unit, reason).await?;
    ok(&app.site.pool(&pool).await?)
}

async fn return_unit(
    Shared(app): Shared<App>,
    Named((pool, unit)): Named<(String, String)>,
) -> Answer {
    app.site.return_unit(&pool, &unit).await?;
    ok(&app.site.pool(&pool).await?)
}

async fn semaphores(Shared(app): Shared<App>) -> Answer {
    listed(app.site.semaphores().await?)
}

async fn semaphore(Shared(app): Shared<App>, Named(name): Named) -> Answer {
    ok(&app.site.semaphore(&name).await?)
}

async fn put_semaphore(
    Shared(app): Shared<App>,
    Named(name): Named,
    request: HttpRequest<Body>,
) -> Answer {
    let spec: PutSemaphore = body(request).await?;
    let (site, known) = (app.site.clone(), name.clone());
    to_the_end(async move { site.put_semaphore(&known, spec).await }).await?;
    semaphore(Shared(app), Named(name)).await
}

async fn remove_semaphore(Shared(app): Shared<App>, Named(name): Named) -> Answer {
    let (site, known) = (app.site.clone(), name.clone());
    to_the_end(async move { site.remove_semaphore(&known).await }).await?;
    ok(&Removed::new(&name, "removed"))
}

/// P: the answer comes when the units are taken. A client that hangs up before has taken nothing.
async fn take(Shared(app): Shared<App>, Named(name): Named, request: HttpRequest<Body>) -> Answer {
    let spec: TakeSpec = body(request).await?;
    ok(&app.site.p(&name, spec).await?)
}

async fn add(Shared(app): Shared<App>, Named(name): Named, request: HttpRequest<Body>) -> Answer {
    let spec: AddSpec = body(request).await?;
    let m = spec.m;
    app.site.add(&name, spec).await?;
    ok(&Added { name, m, state: "added".to_owned() })
}

async fn gangs(Shared(app): Shared<App>) -> Answer {
    listed(app.site.gangs().await?)
}

async fn gang(Shared(app): Shared<App>, Named(name): Named) -> Answer {
    ok(&app.site.gang(&name).await?)
}

async fn put_gang(
    Shared(app): Shared<App>,
    Named(name): Named,
    request: HttpRequest<Body>,
) -> Answer {
    app.site.put_gang(&name, body(request).await?).await?;
    ok(&app.site.gang(&name).await?)
}

async fn remove_gang(Shared(app): Shared<App>, Named(name): Named) -> Answer {
    app.site.remove_gang(&name).await?;
    ok(&Removed::new(&name, "removed"))
}

async fn start_gang(
    Shared(app): Shared<App>,
    Extension(caller): Extension<Caller>,
    Named(name): Named,
    request: HttpRequest<Body>,
) -> Answer {
    let mut spec: StartGang = body(request).await?;
    spec.principal = principal::<StartGang>(&caller, spec.principal.as_deref())?;
    let started = app.site.start_gang(&name, spec).await?;
    let queued = started.request.state == State::Queued;
    let status = if queued { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, json_body(&started)).into_response())
}

async fn join_gang(
    Shared(app): Shared<App>,
    Extension(caller): Extension<Caller>,
    Named(name): Named,
    request: HttpRequest<Body>,
) -> Answer {
    let mut spec: JoinGang = body(request).await?;
    spec.principal = principal::<JoinGang>(&caller, spec.principal.as_deref())?;
    let joined = app.site.join_gang(&name, spec).await?;
    let waits = matches!(joined.state.as_str(), "gathering" | "queued" | "granted");
    let status = if waits { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, json_body(&joined)).into_response())
}

async fn no_path(uri: Uri) -> Answer {
    let text = format!("there is nothing at {}; /openapi.json lists what there is", uri.path());
    Err(Error::new(Code::NotFound, text).into())
}

async fn no_method(method: Method, uri: Uri) -> Answer {
    Err(Error::new(Code::Method, format!("{method} does not work on {}", uri.path())).into())
}

/// Goes on with frames instead of HTTP.
async fn fast(Shared(app): Shared<App>, request: HttpRequest<Body>) -> Answer {
    let token = Gate::token(request.headers());
    let origin = request.extensions().get::<Origin>().cloned().unwrap_or_default();
    if request.headers().get(UPGRADE).is_none_or(|name| name != kofm_api::fast::UPGRADE) {
        let text = format!("send `connection: upgrade` and `upgrade: {}`", kofm_api::fast::UPGRADE);
        return Err(Error::new(Code::Malformed, text).into());
    }
    let slot = request.extensions().get::<Slot>().cloned();
    let upgraded = hyper::upgrade::on(request);
    tokio::spawn(async move {
        match timeout(HEADERS_IN, upgraded).await {
            Ok(Ok(stream)) => {
                let from = (token.as_deref(), &origin);
                crate::fast::serve(app.gate, from, slot, TokioIo::new(stream)).await;
            }
            Ok(Err(error)) => debug!(%error, "no upgrade"),
            Err(_) => debug!("no upgrade in time"),
        }
    });
    let headers = [(CONNECTION, "upgrade"), (UPGRADE, kofm_api::fast::UPGRADE)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

async fn description(Shared(app): Shared<App>) -> Response {
    ([(CONTENT_TYPE, "application/json")], app.description.to_string()).into_response()
}

async fn metrics(Shared(app): Shared<App>) -> Answer {
    let text = app.site.metrics().await?;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

/// The process and its core are alive; never depends on peers.
async fn livez(Shared(app): Shared<App>) -> Answer {
    app.site.metrics().await?;
    Ok("ok\n".into_response())
}

/// This site can serve. Peers that are away are named but are no reason to send clients elsewhere.
async fn readyz(Shared(app): Shared<App>) -> Answer {
    let troubles = app.site.troubles();
    let ready = app.site.may_grant();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let text = if troubles.is_empty() { "ok".to_owned() } else { troubles.join("\n") };
    Ok((status, text + "\n").into_response())
}

// FleetLock: reboot slots for Fedora CoreOS and Flatcar. A group is a pool; the node's id is the
// request's, so that a node that asks again gets what it has.

#[derive(Deserialize, JsonSchema)]
struct FleetLock {
    client_params: FleetParams,
}

#[derive(Deserialize, JsonSchema)]
struct FleetParams {
    /// The node.
    id: String,
    /// The pool; `default` is the pool `reboot`, unless there is one of that name.
    group: String,
}

/// An error of the `FleetLock` protocol.
#[derive(Serialize, JsonSchema)]
struct FleetError {
    /// For programs.
    kind: String,
    /// The text: what is wrong and what to do.
    value: String,
}

/// Reboots take as long as they take: the slot is given back by the node.
const FLEET_TTL: Duration = Duration::from_hours(30 * 24);

async fn fleet(
    app: &App,
    headers: &HeaderMap,
    request: HttpRequest<Body>,
) -> Result<(String, String, Option<String>), Response> {
    let caller = request.extensions().get::<Caller>().cloned();
    if headers.get("fleet-lock-protocol").is_none_or(|value| value != "true") {
        let text = "the header fleet-lock-protocol: true is missing";
        return Err(fleet_error(StatusCode::BAD_REQUEST, "missing_header", text));
    }
    let lock: FleetLock = body(request)
        .await
        .map_err(|error| fleet_error(StatusCode::BAD_REQUEST, "malformed", &error.0.message))?;
    let FleetParams { id, group } = lock.client_params;
    let pools =
        app.site.pools().await.map(|it| it.0).map_err(|error| {
            fleet_error(status_of(error.error), "not_known_now", &error.message)
        })?;
    // Nodes without a group say `default`; people call the pool `reboot`.
    let known = |name: &str| pools.iter().any(|pool| pool.name == name);
    let pool = if group == "default" && !known("default") { "reboot".to_owned() } else { group };
    if !known(&pool) {
        let text = format!("there is no pool `{pool}`");
        return Err(fleet_error(StatusCode::NOT_FOUND, "unknown_group", &text));
    }
    let caller = caller.ok_or_else(|| fleet_error(StatusCode::UNAUTHORIZED, "no_caller", ""))?;
    caller
        .needs(Verb::Acquire, "pool", &pool)
        .map_err(|error| fleet_error(StatusCode::FORBIDDEN, "not_allowed", &error.message))?;
    let principal = caller.name.as_deref().map(str::to_owned);
    Ok((format!("fleetlock:{pool}:{id}"), pool, principal))
}

fn fleet_error(status: StatusCode, kind: &str, value: &str) -> Response {
    let error = FleetError { kind: kind.to_owned(), value: value.to_owned() };
    (status, json_body(&error)).into_response()
}

async fn pre_reboot(
    Shared(app): Shared<App>,
    headers: HeaderMap,
    request: HttpRequest<Body>,
) -> Response {
    let (id, pool, principal) = match fleet(&app, &headers, request).await {
        Ok(it) => it,
        Err(response) => return response,
    };
    let spec = Submit {
        want: [(pool, 1)].into(),
        ttl: Some(FLEET_TTL),
        wait: Some(Duration::ZERO),
        owner: Some(id.clone()),
        reason: Some("reboot".into()),
        id: Some(id),
        principal,
    };
    match app.site.submit_as(spec, true).await {
        Ok(request) if request.state == State::Granted => json_body(&Nothing {}),
        Ok(_) => fleet_error(StatusCode::CONFLICT, "failed_lock", "all slots are taken"),
        Err(error) => fleet_error(status_of(error.error), "failed_lock", &error.message),
    }
}

async fn steady_state(
    Shared(app): Shared<App>,
    headers: HeaderMap,
    request: HttpRequest<Body>,
) -> Response {
    let (id, ..) = match fleet(&app, &headers, request).await {
        Ok(it) => it,
        Err(response) => return response,
    };
    match app.site.release_request(&id).await {
        Ok(()) => json_body(&Nothing {}),
        // A node that holds nothing is in a steady state.
        Err(error) if error.error == Code::UnknownRequest => json_body(&Nothing {}),
        Err(error) => fleet_error(status_of(error.error), "failed_unlock", &error.message),
    }
}
