//! The rights that each path needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path as UrlPath, State as Shared};
use axum::http::header::{CONTENT_LENGTH, HeaderValue, WWW_AUTHENTICATE};
use axum::http::{Method, Request as HttpRequest, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::ApiError;
use crate::api::{Code, Error, lease_name};
use crate::gate::{Caller, Gate, Origin, Purpose};
use kofm_site::rules::Verb;

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
        (["health" | "members" | "principal"], true) => Need::Nothing,
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
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let origin = request.extensions().get::<Origin>().cloned().unwrap_or_default();
    let address = Arc::clone(&origin.address);
    let need = need(&method, &path);
    let verb = verb_of(&need, &method, &path);
    let purpose = match (&need, path.as_str()) {
        (Need::Nothing, _) => Purpose::Stale,
        (_, "/v1/pre-reboot" | "/v1/steady-state") => Purpose::FleetLock,
        _ => Purpose::Normal,
    };
    let caller = match gate.admit(token.as_deref(), &origin, purpose).await {
        Ok(caller) => caller,
        Err(error) => {
            let object = shown(&path);
            let entry = crate::audit::entry(None, &address, verb, &object, Vec::new(), "denied");
            gate.site.audit().note(entry);
            return refused(error);
        }
    };
    let (mut parts, body) = request.into_parts();
    let names = UrlPath::<BTreeMap<String, String>>::from_request_parts(&mut parts, &()).await;
    let names = names.map(|it| it.0).unwrap_or_default();
    let name = names.get("name").or_else(|| names.get("id")).map_or("", String::as_str);
    let filtered = matches!(need, Need::Filtered | Need::Own(None, _)) && !caller.may_everything();
    let polls = matches!(need, Need::Own(None, _)) && caller.name.is_some();
    let response = match check(&gate, &caller, need, name).await {
        Ok(()) => {
            parts.extensions.insert(caller.clone());
            let answer = next.run(HttpRequest::from_parts(parts, body)).await;
            // A long poll: the credential may have been revoked while it waited.
            let admitted = if polls {
                gate.admit(token.as_deref(), &origin, purpose).await.err()
            } else {
                None
            };
            admitted.map_or(answer, refused)
        }
        Err(error) => refused(error),
    };
    let result = result_of(response.status());
    // Reads and renewals are too many, and change nothing.
    let quiet = matches!(method, Method::GET | Method::HEAD) || verb == "renew";
    if result == "denied" || !quiet {
        let (touched, who) = (caller.touched(), caller.name.as_deref());
        let object = if touched.is_empty() { shown(&path) } else { touched.join(",") };
        let entry = crate::audit::entry(who, &address, verb, &object, touched, &result);
        gate.site.audit().note(entry);
    }
    if filtered { filter(response, &caller).await } else { response }
}

async fn check(gate: &Gate, caller: &Caller, need: Need, name: &str) -> Result<(), Error> {
    if caller.name.is_none() {
        if let Need::On(..) | Need::Gang = need {
            caller.touch(name);
        }
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
        // Only the audit log needs to know whose it is.
        Need::Own(own, _) if caller.may_everything() => {
            if own == Some(Verb::ReleaseOwn)
                && let Ok(Some(holder)) = gate.site.holder(name).await
            {
                holder.pools.iter().for_each(|pool| caller.touch(pool));
            }
            Ok(())
        }
        Need::Own(own, other) => {
            let holder = gate.site.holder(name).await?;
            caller.needs_on(holder.as_ref(), name, own, other)
        }
        Need::Admin => caller.needs_admin(),
    }
}

/// The verb of a call in the audit log.
fn verb_of(need: &Need, method: &Method, path: &str) -> &'static str {
    match need {
        Need::On(verb, _) => verb.name(),
        Need::Gang => Verb::Acquire.name(),
        Need::Admin => Verb::Admin.name(),
        Need::Own(Some(_), _) if path.ends_with("/renew") => "renew",
        Need::Own(Some(_), Verb::Operate) => "cancel",
        Need::Own(Some(_), _) => "release",
        Need::InHandler if path.ends_with("/steady-state") => "release",
        Need::InHandler if method == Method::POST => Verb::Acquire.name(),
        Need::Nothing | Need::Filtered | Need::Own(None, _) | Need::InHandler => Verb::Read.name(),
    }
}

/// The path in the audit log. The id of a lease is a secret, so only its beginning is shown.
fn shown(path: &str) -> String {
    let path = path.trim_start_matches("/v1/");
    match path.strip_prefix("leases/") {
        Some(id) => {
            let name: String = lease_name(id).chars().take(200).collect();
            format!("leases/{name}{}", if id.ends_with("/renew") { "/renew" } else { "" })
        }
        None => path.chars().take(200).collect(),
    }
}

fn result_of(status: StatusCode) -> String {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "denied".to_owned(),
        status if status.is_success() => "ok".to_owned(),
        status => status.as_u16().to_string(),
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
