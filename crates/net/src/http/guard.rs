//! The rights that each path needs.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path as UrlPath, State as Shared};
use axum::http::header::{CONTENT_LENGTH, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{Method, Request as HttpRequest};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::ApiError;
use crate::api::{Code, Error};
use crate::gate::{Caller, Gate};
use crate::rules::Verb;

/// A list is at most this long when it is read again to take entries out.
const MAX_LIST: usize = 256 << 20;

/// The right that a path needs.
enum Need {
    /// Any valid credential.
    Nothing,
    /// The handler checks: the names are in the body, or in later frames.
    InHandler,
    /// A verb on the named pool, semaphore or gang.
    On(Verb, &'static str),
    /// `acquire` on a gang and its pools.
    Gang,
    /// A verb on a lease or request: of the caller, of others.
    Own(Option<Verb>, Verb),
    /// A list, of which the caller sees the entries that it may read.
    Filtered,
    /// To administer the cluster.
    Admin,
}

fn need(method: &Method, path: &str) -> Need {
    let read = matches!(*method, Method::GET | Method::HEAD);
    let parts: Vec<&str> = path.trim_start_matches("/v1/").split('/').collect();
    let kind = match parts[0] {
        "pools" => "pool",
        "semaphores" => "semaphore",
        _ => "gang",
    };
    match (parts.as_slice(), read) {
        (["health" | "members"], true) => Need::Nothing,
        (["requests" | "pre-reboot" | "steady-state" | "fast" | "events"], _) => Need::InHandler,
        (["leases" | "queue" | "history" | "usage" | "pools" | "semaphores" | "gangs"], true) => {
            Need::Filtered
        }
        (["pools" | "semaphores" | "gangs", _], true) => Need::On(Verb::Read, kind),
        (["pools" | "semaphores" | "gangs", _], false) => Need::On(Verb::Admin, kind),
        (["pools", _, "quarantine", _], _) => Need::On(Verb::Operate, kind),
        (["semaphores", _, "p"], _) => Need::On(Verb::Acquire, kind),
        // A producer may add without the right to take.
        (["semaphores", _, "v"], _) => Need::On(Verb::ReleaseOwn, kind),
        (["gangs", _, "start" | "join"], _) => Need::Gang,
        (["requests", _], true) => Need::Own(None, Verb::Read),
        (["requests", _], false) => Need::Own(Some(Verb::ReleaseOwn), Verb::Operate),
        (["leases", _], _) => Need::Own(Some(Verb::ReleaseOwn), Verb::ReleaseAny),
        (["leases", _, "renew"], _) => Need::Own(Some(Verb::Acquire), Verb::Operate),
        // Members, principals, rules, the audit log, and every path without a rule here.
        (_, _) => Need::Admin,
    }
}

/// Answers only callers that have the right.
pub(super) async fn guard(
    Shared(gate): Shared<Gate>,
    request: HttpRequest<Body>,
    next: Next,
) -> Response {
    let token = Gate::token(request.headers());
    let need = need(request.method(), request.uri().path());
    let stale = matches!(need, Need::Nothing);
    let caller = match gate.admit(token.as_deref(), stale).await {
        Ok(caller) => caller,
        Err(error) => return refused(error),
    };
    let (mut parts, body) = request.into_parts();
    let names = UrlPath::<BTreeMap<String, String>>::from_request_parts(&mut parts, &()).await;
    let names = names.map(|it| it.0).unwrap_or_default();
    let name = names.get("name").or_else(|| names.get("id")).map_or("", String::as_str);
    let filtered = matches!(need, Need::Filtered | Need::Own(None, _)) && !caller.may_everything();
    if let Err(error) = check(&gate, &caller, need, name).await {
        return refused(error);
    }
    parts.extensions.insert(caller.clone());
    let response = next.run(HttpRequest::from_parts(parts, body)).await;
    if filtered { filter(response, &caller).await } else { response }
}

async fn check(gate: &Gate, caller: &Caller, need: Need, name: &str) -> Result<(), Error> {
    if caller.may_everything() {
        return Ok(());
    }
    match need {
        Need::Nothing | Need::InHandler | Need::Filtered => Ok(()),
        Need::On(verb, kind) => caller.needs(verb, kind, name),
        Need::Gang => {
            caller.needs(Verb::Acquire, "gang", name)?;
            let gang = gate.site.gang(name).await?;
            caller.needs_all(Verb::Acquire, gang.members.values().flat_map(|want| want.keys()))
        }
        Need::Own(own, other) => {
            let holder = gate.site.holder(name).await?;
            caller.needs_on(holder.as_ref(), name, own, other)
        }
        Need::Admin => caller.needs_admin(),
    }
}

fn refused(error: Error) -> Response {
    let unauthorized = error.error == Code::Unauthorized;
    let mut response = ApiError(error).into_response();
    if unauthorized {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Takes out of a list, or of one entry, whatever the caller must not see.
async fn filter(response: Response, caller: &Caller) -> Response {
    if !response.status().is_success() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, MAX_LIST).await.unwrap_or_default();
    let mut value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    match &mut value {
        Value::Array(list) => list.retain_mut(|entry| caller.sees(entry)),
        // One request, which the caller may read.
        Value::Object(map) if map.contains_key("id") => {
            caller.sees(&mut value);
        }
        // A page of a list.
        Value::Object(map) => {
            for list in map.values_mut().filter_map(Value::as_array_mut) {
                list.retain_mut(|entry| caller.sees(entry));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(serde_json::to_vec(&value).unwrap_or_default()))
}
