//! The console: static files, without a build step and without requests to other servers.

use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_FRAME_OPTIONS,
};
use axum::response::{IntoResponse, Response};

use super::{Answer, Extension, Named, no_path, ok};
use crate::api;
use crate::gate::Caller;

const PAGE: &str = include_str!("console/index.html");
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name, type and text of each file below `/console/`.
const FILES: [(&str, &str, &str); 9] = [
    ("console.css", "text/css; charset=utf-8", include_str!("console/console.css")),
    ("api.js", SCRIPT, include_str!("console/api.js")),
    ("dialogs.js", SCRIPT, include_str!("console/dialogs.js")),
    ("list.js", SCRIPT, include_str!("console/list.js")),
    ("main.js", SCRIPT, include_str!("console/main.js")),
    ("rights.js", SCRIPT, include_str!("console/rights.js")),
    ("sources.js", SCRIPT, include_str!("console/sources.js")),
    ("text.js", SCRIPT, include_str!("console/text.js")),
    ("views.js", SCRIPT, include_str!("console/views.js")),
];

/// Scripts and styles are the files of this site and nothing else; no text becomes HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The page of the console.
pub(super) async fn page() -> Response {
    let policy = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (policy, sent("text/html; charset=utf-8", PAGE)).into_response()
}

/// A file of the page.
pub(super) async fn file(Named(name): Named, uri: axum::http::Uri) -> Response {
    match FILES.iter().find(|file| file.0 == name) {
        Some((_, kind, text)) => sent(kind, text),
        None => no_path(uri).await.into_response(),
    }
}

/// Browsers ask again each time, so that a page never runs with the scripts of an older site.
fn sent(kind: &'static str, text: &'static str) -> Response {
    (StatusCode::OK, [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")], text).into_response()
}

/// The principal of the caller's credential, and its rules.
pub(super) async fn principal(Extension(caller): Extension<Caller>) -> Answer {
    let name = caller.name.as_deref().map(str::to_owned);
    ok(&api::Principal { name, rules: caller.rules() })
}
