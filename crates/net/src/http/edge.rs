//! Checks before and headers after every answer: health, browsers, unknown query parameters.

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State as Shared;
use axum::http::header::{
    CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{Method, Request as HttpRequest};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::ApiError;
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
}

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
        Self { site, names }
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
    let mut response = match edge.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => ApiError(error).into_response(),
    };
    let headers = response.headers_mut();
    if let Ok(verdict) = HeaderValue::try_from(edge.site.verdict()) {
        headers.insert(HEALTH, verdict);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    response
}

/// Query parameters of each path; others have none.
fn parameters(path: &str) -> &'static [&'static str] {
    match path {
        "/v1/leases" | "/v1/queue" => &["pool", "limit", "after"],
        "/v1/history" => &["pool", "owner", "event", "since", "until", "limit", "after"],
        "/v1/usage" => &["by", "since", "pool"],
        "/v1/members" => &["limit", "after"],
        "/v1/audit" => &["since", "principal", "pool", "limit", "verify"],
        _ if path.starts_with("/v1/requests/") => &["wait"],
        _ => &[],
    }
}

/// Refuses query parameters that the path does not have: a typing error must not widen an answer.
pub(super) async fn known_query(request: HttpRequest<Body>, next: Next) -> Response {
    let known = parameters(request.uri().path());
    let pairs = request.uri().query().unwrap_or_default().split('&');
    let names = pairs.map(|pair| pair.split('=').next().unwrap_or_default());
    let unknown: Vec<&str> = names.filter(|it| !it.is_empty() && !known.contains(it)).collect();
    if unknown.is_empty() {
        return next.run(request).await;
    }
    let rule = match known {
        [] => "this path has none".to_owned(),
        known => format!("must be one of {}", known.join(", ")),
    };
    let text = format!("unknown query parameter `{}`; {rule}", unknown.join("`, `"));
    ApiError(Error::new(Code::Malformed, text)).into_response()
}
