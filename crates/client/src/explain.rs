//! Why a call failed, in one sentence that says what to do.

use std::io;

use http::header::{CONTENT_TYPE, HeaderMap, SERVER, VIA};
use http::{Method, StatusCode};
use serde::Deserialize;

use kofm_api as api;

use crate::http::Fault;
use crate::{Address, ClientError};

/// What to do about a connection that was not made.
pub(crate) fn no_connection(address: &Address, error: &io::Error) -> String {
    let (unix, kind) = (matches!(address, Address::Unix(_)), error.kind());
    let routes = [io::ErrorKind::HostUnreachable, io::ErrorKind::NetworkUnreachable];
    let text = if kind == io::ErrorKind::ConnectionRefused {
        "no process listens there; start the site, or correct the port"
    } else if routes.contains(&kind) {
        "there is no route to the host; check the address and the network"
    } else if unix && kind == io::ErrorKind::NotFound {
        "the socket does not exist; start the site, or correct its path"
    } else if unix && kind == io::ErrorKind::PermissionDenied {
        "this user may not open the socket; check the rights of its directory"
    } else if error.to_string().contains("failed to lookup address") {
        "the host name is unknown; check the address"
    } else {
        return error.to_string();
    };
    text.to_owned()
}

/// What to do about an answer that is not HTTP, or did not come.
pub(crate) fn no_answer(fault: &Fault) -> String {
    let text = match fault {
        Fault::NotHttp => {
            "the answer is not HTTP: the server requires https://, or this is the address of the \
             site's peers; write the site's `http` address"
        }
        Fault::Closed => {
            "it closed the connection without an answer: the site stopped, or it requires \
             https://, or this is the address of its peers; check the address"
        }
        Fault::TooLong => "the answer is longer than this client reads; ask for less with ?limit=N",
        Fault::Call(text) => text,
        Fault::Stranger(text) => text,
        Fault::Io(error) => return error.to_string(),
    };
    text.to_owned()
}

/// What answers instead of a site, if the answer is not of one.
pub(crate) fn stranger(status: StatusCode, headers: &HeaderMap, answer: &[u8]) -> Option<String> {
    let text = |name| headers.get(name).and_then(|it| it.to_str().ok());
    if status == StatusCode::BAD_REQUEST {
        // Sites say so on a port for HTTPS, other servers in their own words.
        let told = serde_json::from_slice::<Told>(answer).map(|it| it.message);
        let https = String::from_utf8_lossy(answer).to_ascii_lowercase().contains("https");
        return match told {
            Ok(message) => Some(message),
            Err(_) if https => Some("the server requires TLS; write https://".to_owned()),
            Err(_) => Some(other(status, text(VIA).or_else(|| text(SERVER)))),
        };
    }
    let json = text(CONTENT_TYPE).is_some_and(|kind| kind.contains("json"));
    if json || headers.contains_key("kofm-health") || status == StatusCode::SWITCHING_PROTOCOLS {
        return None;
    }
    let (via, server) = (text(VIA), text(SERVER));
    let name = via.or(server).map(|it| format!(" ({it})")).unwrap_or_default();
    let number = status.as_u16();
    if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        return Some(format!(
            "a proxy{name} requires its own login; give clients a direct route to the sites"
        ));
    }
    let gateway = matches!(status, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT);
    if gateway || via.is_some() {
        return Some(format!(
            "a proxy{name} answered with status {number} instead of the site; check the proxy, or \
             use the site's own address"
        ));
    }
    Some(other(status, server))
}

fn other(status: StatusCode, name: Option<&str>) -> String {
    let name = name.map(|it| format!(" ({it})")).unwrap_or_default();
    let number = status.as_u16();
    format!(
        "another server or a proxy{name} answered with status {number} instead of a kofm site; \
         write the `http` address of a site"
    )
}

/// An error as any version of a site says it.
#[derive(Deserialize)]
struct Told {
    #[serde(default)]
    error: String,
    message: String,
}

/// The error that an answer of status 400 and above is.
pub(crate) fn refusal(
    method: &Method,
    path: &str,
    status: StatusCode,
    answer: &[u8],
) -> ClientError {
    let Ok(told) = serde_json::from_slice::<Told>(answer) else {
        let text = String::from_utf8_lossy(answer);
        let short: String = text.lines().next().unwrap_or_default().chars().take(200).collect();
        return ClientError::Nonsense(format!("status {}: {short}", status.as_u16()));
    };
    if matches!(status, StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED) {
        return ClientError::Forbidden(told.message);
    }
    let path = path.split('?').next().unwrap_or_default();
    let unknown_path = told.error == "method"
        || (told.error == "not-found" && told.message.starts_with("there is nothing at"));
    if unknown_path {
        return ClientError::Incompatible(format!(
            "the site does not know {method} {path}: it is older than this client; upgrade the \
             site, or use a client of its version"
        ));
    }
    let malformed = status == StatusCode::UNPROCESSABLE_ENTITY;
    if malformed
        && ["unknown field", "unknown query parameter"].iter().any(|it| told.message.contains(it))
    {
        return ClientError::Incompatible(format!(
            "the site is older than this client: {}; upgrade the site, or use a client of its \
             version",
            told.message
        ));
    }
    // A code of a later version means what its status means.
    let code = serde_json::from_value(told.error.into()).unwrap_or(match status {
        StatusCode::NOT_FOUND => api::Code::NotFound,
        StatusCode::CONFLICT => api::Code::InUse,
        StatusCode::GONE => api::Code::Gone,
        StatusCode::UNPROCESSABLE_ENTITY => api::Code::Malformed,
        StatusCode::TOO_MANY_REQUESTS => api::Code::TooMany,
        StatusCode::SERVICE_UNAVAILABLE => api::Code::Unreachable,
        _ => api::Code::Unsupported,
    });
    ClientError::Refused(api::Error::new(code, told.message))
}

/// The error that an answer of success is which this client cannot read.
pub(crate) fn unreadable(method: &Method, path: &str, error: &serde_json::Error) -> ClientError {
    let path = path.split('?').next().unwrap_or_default();
    ClientError::Incompatible(format!(
        "the answer to {method} {path} is of another version of the API ({error}); upgrade this \
         client to the version of the site"
    ))
}
