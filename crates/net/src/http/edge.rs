//! Checks before and headers after every answer: health, browsers, and whether the answer is
//! documented.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, State as Shared};
use axum::http::header::{
    CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{Method, Request as HttpRequest, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::operation::Operation;
use super::{ApiError, status_of};
use crate::access::Access;
use crate::api::{Code, Error};
use crate::site::Site;

const HEALTH: HeaderName = HeaderName::from_static("kofm-health");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The outermost layer: all that it needs to know.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    site: Site,
    /// Names beside addresses and names without a dot under which clients may call the site; none
    /// if every name is good.
    names: Option<Arc<[String]>>,
    /// The answers of each operation, by method and path.
    documented: Arc<Documented>,
}

/// Statuses, and error codes where the answer is an error of the API.
type Documented = HashMap<(Method, &'static str), Vec<(StatusCode, Option<Code>)>>;

impl Edge {
    /// A token that a page does not have, and a Unix socket, protect from every page by
    /// themselves: the name does not matter there.
    pub(super) fn new(site: Site, access: &Access, socket: bool) -> Self {
        let config = site.config();
        let addresses = config.members.values().chain(&config.http).chain(&config.listen);
        let hosts = addresses.map(|address| host_of(address).to_ascii_lowercase());
        let machine = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
        let given = config.http_names.iter().map(|name| name.to_ascii_lowercase());
        let names = hosts.chain([machine]).chain(given).collect();
        let names = (access.is_open() && !socket).then_some(names);
        Self { site, names, documented: Arc::default() }
    }

    /// The same, with the answers that operations may give.
    pub(super) fn checking(self, operations: &[Operation]) -> Self {
        let answers = |it: &Operation| {
            let errors = it.errors().into_iter().map(|code| (status_of(code), Some(code)));
            it.answers.iter().map(|it| (it.status, None)).chain(errors).collect()
        };
        let documented = operations.iter().map(|it| ((it.method.clone(), it.path), answers(it)));
        Self { documented: Arc::new(documented.collect()), ..self }
    }

    /// Whether `/openapi.json` says that the operation may answer so.
    fn is_documented(&self, method: &Method, path: &str, response: &Response) -> bool {
        let method = if *method == Method::HEAD { Method::GET } else { method.clone() };
        let operation = self.documented.iter().find(|it| it.0.0 == method && it.0.1 == path);
        let code = response.extensions().get::<Code>().copied();
        // A method that the path does not have.
        let Some((_, answers)) = operation else { return true };
        let upgraded = code == Some(Code::MediaType);
        upgraded || answers.contains(&(response.status(), code))
    }

    /// Refuses requests that a foreign web page makes a browser send.
    fn check(&self, request: &HttpRequest<Body>) -> Result<(), Error> {
        let headers = request.headers();
        let host = text(headers, &HOST).or_else(|| request.uri().host()).unwrap_or_default();
        self.check_host(host)?;
        let origin = text(headers, &ORIGIN);
        let site = text(headers, &SEC_FETCH_SITE);
        let upgrade = headers.contains_key(axum::http::header::UPGRADE);
        let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if reads && !upgrade {
            return Ok(());
        }
        let same = |origin: &str| {
            let place = origin.split_once("://").map(|it| it.1);
            place.is_some_and(|place| place.eq_ignore_ascii_case(host))
        };
        if let Some(origin) = origin.filter(|origin| !same(origin)) {
            let text = format!(
                "origin: `{origin}` is not this site; a page must be served by the site that it \
                 changes"
            );
            return Err(Error::new(Code::Forbidden, text));
        }
        if site.is_some_and(|site| site != "same-origin" && site != "none") {
            let text = "sec-fetch-site: a page of another site must not change this one";
            return Err(Error::new(Code::Forbidden, text));
        }
        if origin.is_none() && site.is_none() {
            // Not a browser: `curl -d` says that its body is a form.
            return Ok(());
        }
        let kind = text(headers, &CONTENT_TYPE).unwrap_or("application/json");
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case("application/json") {
            return Ok(());
        }
        let text = format!("content-type: `{kind}` from a browser; it must be application/json");
        Err(Error::new(Code::MediaType, text))
    }

    fn check_host(&self, host: &str) -> Result<(), Error> {
        let Some(names) = &self.names else { return Ok(()) };
        let name = host_of(host).to_ascii_lowercase();
        let name = name.trim_end_matches('.');
        // A page that had a name of its own point here would have a dot in it.
        let local = !name.contains('.') || name.ends_with(".localhost");
        if local || name.parse::<IpAddr>().is_ok() || names.iter().any(|it| it == name) {
            return Ok(());
        }
        let text = format!(
            "host: `{name}` is not a name of this site; use its address, or add the name to \
             http_names in site.toml"
        );
        Err(Error::new(Code::Forbidden, text))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    // A header that is not text matches nothing.
    headers.get(name).map(|value| value.to_str().unwrap_or("?."))
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host_of(address: &str) -> &str {
    if let Some((host, _)) = address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return host;
    }
    match address.rsplit_once(':') {
        Some((host, _)) if !host.contains(':') => host,
        Some(_) | None => address,
    }
}

/// The outermost layer: refuses requests of foreign pages, and adds the headers that every answer
/// has.
pub(super) async fn edge(
    Shared(edge): Shared<Edge>,
    request: HttpRequest<Body>,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let mut response = match edge.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => ApiError(error).into_response(),
    };
    if cfg!(debug_assertions)
        && let Some(path) = path
        && !edge.is_documented(&method, path.as_str(), &response)
    {
        let (status, code) = (response.status(), response.extensions().get::<Code>());
        panic!("{method} {}: the answer {status} {code:?} is not documented", path.as_str());
    }
    let headers = response.headers_mut();
    if let Ok(verdict) = HeaderValue::try_from(edge.site.verdict()) {
        headers.insert(HEALTH, verdict);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    response
}
