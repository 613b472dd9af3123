//! One operation of the API: its handler, and all that clients must know of it.

use std::collections::BTreeMap;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use super::{ApiError, App, Nothing, body, status_of};
use crate::api::{Code, Error};

/// Adds the schema of a type to a generator, and returns the reference to it.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The content of an answer or of a body.
#[derive(Clone, Copy)]
pub(super) enum Content {
    Nothing,
    Json(SchemaOf),
    /// The whole list without a query of pages, and one page with it: the list's name, its entries.
    Pages(&'static str, SchemaOf),
    /// Text of this media type.
    Text(&'static str),
}

/// An answer that is not an error of the API.
pub(super) struct Answered {
    pub status: StatusCode,
    pub text: &'static str,
    pub content: Content,
}

/// A query parameter.
pub(super) struct Parameter {
    pub name: String,
    pub schema: Value,
    pub required: bool,
}

/// Which clients an operation answers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// All: it needs no credential.
    Open,
    /// Those with a valid credential, where the cluster or the site has any.
    Guarded,
    /// The same; rules of principals need not be up to date.
    Lenient,
}

pub(super) struct Operation {
    pub method: Method,
    pub path: &'static str,
    /// Its name in generated clients.
    pub id: &'static str,
    pub summary: &'static str,
    pub door: Door,
    pub query: Vec<Parameter>,
    pub headers: &'static [(&'static str, &'static str, &'static str)],
    /// The body, and whether it may be left out.
    pub body: Option<(Content, bool)>,
    pub answers: Vec<Answered>,
    /// Errors beside those of every operation behind the same door.
    pub codes: &'static [Code],
    at_hand: bool,
    handler: MethodRouter<App>,
}

/// The schema of a type, as a reference.
pub(super) fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The schema of a list.
pub(super) fn list_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<Vec<T>>()
}

/// The fields of a type as clients write it, each with its schema, and whether it is required.
fn fields<T: JsonSchema>() -> Vec<Parameter> {
    let settings = SchemaSettings::draft2020_12().for_deserialize();
    let settings = settings.with(|it| it.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let fields = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    let fields = fields.into_iter();
    fields
        .map(|(name, schema)| {
            let required = required.iter().any(|it| *it == Value::String(name.clone()));
            Parameter { name, schema, required }
        })
        .collect()
}

/// Says that an operation does not have these names: a typing error must not change or widen a
/// query.
fn unknown(kind: &str, names: &[&str], known: &[String], owner: &str) -> String {
    let rule = match known {
        [] => format!("{owner} has none"),
        known => format!("it must be one of {}", known.join(", ")),
    };
    format!("unknown {kind} `{}`; {rule}", names.join("`, `"))
}

/// Why a body is not a value of this type.
pub(super) fn explain<T: JsonSchema>(body: &[u8], error: &serde_json::Error) -> String {
    let known: Vec<String> = fields::<T>().into_iter().map(|it| it.name).collect();
    let given: BTreeMap<String, Value> = serde_json::from_slice(body).unwrap_or_default();
    let names = given.keys().map(String::as_str);
    let names: Vec<&str> = names.filter(|name| known.iter().all(|it| it != name)).collect();
    if names.is_empty() {
        return format!("the body: {error}");
    }
    format!("the body: {}", unknown("field", &names, &known, "this body"))
}

/// A field that clients must not send, as if there were none.
pub(super) fn not_a_field<T: JsonSchema>(name: &str) -> Error {
    let known: Vec<String> = fields::<T>().into_iter().map(|it| it.name).collect();
    let text = unknown("field", &[name], &known, "this body");
    Error::new(Code::Malformed, format!("the body: {text}"))
}

/// The name of an error in JSON.
pub(super) fn name_of(code: Code) -> String {
    let name = serde_json::to_value(code).ok();
    name.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned()
}

macro_rules! of_method {
    ($($name:ident $method:ident),*) => {$(
        #[doc = concat!("An operation of the method ", stringify!($method), ".")]
        pub(super) fn $name<H: Handler<T, App>, T: 'static>(
            path: &'static str,
            id: &'static str,
            summary: &'static str,
            handler: H,
        ) -> Operation {
            let handler = on(MethodFilter::$method, handler);
            Operation::new(Method::$method, path, id, summary, handler)
        }
    )*};
}

of_method!(get GET, post POST, put PUT, delete DELETE);

impl Operation {
    fn new(
        method: Method,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        handler: MethodRouter<App>,
    ) -> Self {
        let door = if path.starts_with("/v1/") { Door::Guarded } else { Door::Open };
        let (query, headers, body) = (Vec::new(), &[][..], None);
        let (answers, codes, at_hand) = (Vec::new(), &[][..], false);
        Self {
            method,
            path,
            id,
            summary,
            door,
            query,
            headers,
            body,
            answers,
            codes,
            at_hand,
            handler,
        }
    }

    pub(super) fn query<T: JsonSchema>(mut self) -> Self {
        self.query = fields::<T>();
        self
    }

    /// It has a body of this type.
    pub(super) fn takes<T: JsonSchema>(mut self) -> Self {
        self.body = Some((Content::Json(schema_of::<T>), false));
        self
    }

    /// It may have a body of this type.
    pub(super) fn may_take<T: JsonSchema>(mut self) -> Self {
        self.body = Some((Content::Json(schema_of::<T>), true));
        self
    }

    pub(super) fn needs_headers(
        mut self,
        list: &'static [(&'static str, &'static str, &'static str)],
    ) -> Self {
        self.headers = list;
        self
    }

    pub(super) fn answers(self, text: &'static str, content: Content) -> Self {
        self.also(StatusCode::OK, text, content)
    }

    pub(super) fn json<T: JsonSchema>(self, text: &'static str) -> Self {
        self.answers(text, Content::Json(schema_of::<T>))
    }

    pub(super) fn list<T: JsonSchema>(self, text: &'static str) -> Self {
        self.answers(text, Content::Json(list_of::<T>))
    }

    pub(super) fn also(mut self, status: StatusCode, text: &'static str, it: Content) -> Self {
        self.answers.push(Answered { status, text, content: it });
        self
    }

    pub(super) const fn fails(mut self, codes: &'static [Code]) -> Self {
        self.codes = codes;
        self
    }

    pub(super) const fn lenient(mut self) -> Self {
        self.door = Door::Lenient;
        self
    }

    /// It answers from what this site has at hand, also while the site stops.
    pub(super) const fn at_hand(mut self) -> Self {
        self.at_hand = true;
        self
    }

    /// All errors that it can answer with.
    pub(super) fn errors(&self) -> Vec<Code> {
        let mut list = self.codes.to_vec();
        // The name in `host` or the page in `origin` is checked before everything else.
        list.push(Code::Forbidden);
        if self.method != Method::GET {
            list.push(Code::MediaType);
        }
        match self.door {
            Door::Open => {}
            Door::Lenient => list.extend([Code::Unauthorized, Code::Malformed]),
            Door::Guarded => list.extend([
                Code::Unauthorized,
                Code::Malformed,
                // Rules of principals cannot be checked.
                Code::Unreachable,
            ]),
        }
        if self.door == Door::Guarded && !self.at_hand {
            list.push(Code::Draining);
        }
        list.sort_by_key(|code| (status_of(*code), name_of(*code)));
        list.dedup();
        list
    }

    /// Its route: refuses query parameters and bodies that the operation does not have.
    pub(super) fn route(self) -> (&'static str, MethodRouter<App>) {
        let known: Vec<String> = self.query.iter().map(|it| it.name.clone()).collect();
        let takes_body = self.body.is_some() || self.id == "connectFast";
        if self.door == Door::Open {
            return (self.path, self.handler);
        }
        let check = move |request: Request<Body>, next: Next| {
            let checked = check_query(&request, &known);
            async move {
                match checked {
                    Ok(()) if takes_body => next.run(request).await,
                    Ok(()) => without_body(request, next).await,
                    Err(error) => ApiError(error).into_response(),
                }
            }
        };
        (self.path, self.handler.route_layer(from_fn(check)))
    }
}

/// Refuses query parameters that the operation does not have.
fn check_query(request: &Request<Body>, known: &[String]) -> Result<(), Error> {
    let pairs = request.uri().query().unwrap_or_default().split('&');
    let names = pairs.map(|pair| pair.split('=').next().unwrap_or_default());
    let mine = |name: &&str| name.is_empty() || known.iter().any(|it| it == name);
    let names: Vec<&str> = names.filter(|name| !mine(name)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let text = unknown("query parameter", &names, known, "this path");
    Err(Error::new(Code::Malformed, text))
}

/// Refuses a body with fields, where none has a meaning.
async fn without_body(request: Request<Body>, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (parts, content) = request.into_parts();
    let request = Request::from_parts(parts.clone(), content);
    match body::<Nothing>(request).await {
        Ok(Nothing {}) => next.run(Request::from_parts(parts, Body::empty())).await,
        Err(error) => error.into_response(),
    }
}
