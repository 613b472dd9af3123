//! The description of the API, in the form of `OpenAPI` 3.1, made from the table of operations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use axum::http::{Method, StatusCode};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::operation::{Content, Door, Operation, Parameter, name_of};
use super::status_of;
use crate::api::{Code, Error};

const DESCRIPTION: &str = "\
Shares k units out of M among many machines, with no master. Any site answers for the whole \
cluster.

Every answer has the header `kofm-health`. An error is `{\"error\": CODE, \"message\": TEXT}`, \
and nothing was changed unless the text says so: 401 no valid credential, 403 the credential \
lacks the right, 404 certainly unknown, 422 malformed (unknown parameters and fields too), 503 \
not known now: try another site. Lists are paged with `limit` and `after`: the answer is then an \
object that has `next` while there is more. Without them the answer is an array, and if it was \
cut, its header `link` has the address of the next page.";

/// Collects the schemas of what clients send, and of what sites answer.
struct Schemas {
    sent: SchemaGenerator,
    answered: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|it| {
            it.definitions_path = "/components/schemas".into();
            it.meta_schema = None;
        });
        Self {
            sent: settings.clone().for_deserialize().into_generator(),
            answered: settings.for_serialize().into_generator(),
        }
    }

    fn answer(&mut self, content: Content) -> Value {
        let generator = &mut self.answered;
        match content {
            Content::Nothing => json!({}),
            Content::Json(schema) => media("application/json", &schema(generator).into()),
            Content::Text(kind) => media(kind, &json!({"type": "string"})),
            Content::Pages(name, list) => {
                let list: Value = list(generator).into();
                let next = "The cursor of the next page; there is none after the last.";
                let page = json!({
                    "type": "object",
                    "properties": {
                        name: list,
                        "next": {"type": "string", "description": next},
                    },
                    "required": [name],
                });
                media("application/json", &json!({"anyOf": [list, page]}))
            }
        }
    }

    /// All schemas by their names. A type that is sent and answered has one schema.
    fn components(self) -> Map<String, Value> {
        let Self { mut sent, mut answered } = self;
        let mut all = answered.take_definitions(true);
        for (name, schema) in sent.take_definitions(true) {
            if let Some(other) = all.get(&name) {
                debug_assert_eq!(*other, schema, "two types have the name {name}");
            }
            all.insert(name, schema);
        }
        all
    }
}

fn media(kind: &str, schema: &Value) -> Value {
    json!({"content": {kind: {"schema": schema}}})
}

/// The document.
pub(super) fn document(operations: &[Operation]) -> Value {
    let mut schemas = Schemas::new();
    let codes = codes();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for it in operations {
        let name = it.method.as_str().to_ascii_lowercase();
        paths.entry(it.path).or_default().insert(name, operation(it, &mut schemas, &codes));
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "kofm",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of a principal, or one of the site's `token_file`.",
            }},
            "headers": headers(),
            "schemas": schemas.components(),
        },
    });
    tidy(&mut document);
    document
}

fn headers() -> Value {
    let header = |text: &str, kind: &str| json!({"description": text, "schema": {"type": kind}});
    let mut health = header(
        "`ok`, or the verdict of the site on the cluster: `minority`, `changing`, `disk`, \
         `draining`, `insecure` or `missing=SITE,…`. /v1/health has the sentences.",
        "string",
    );
    health["required"] = true.into();
    json!({
        "kofm-health": health,
        "kofm-missing": header("Sites that did not answer, separated by commas.", "string"),
        "link": header("The next page, if the list was cut: `<ADDRESS>; rel=\"next\"`.", "string"),
        "retry-after": header("Seconds after which the call may be repeated.", "integer"),
        "www-authenticate": header("How to show a credential.", "string"),
    })
}

/// What each error means.
fn codes() -> BTreeMap<String, String> {
    let schema: Value = Code::json_schema(&mut SchemaGenerator::default()).into();
    let list = schema["oneOf"].as_array().cloned().unwrap_or_default();
    let text = |it: &Value, key: &str| it[key].as_str().unwrap_or_default().to_owned();
    list.iter().map(|it| (text(it, "const"), text(it, "description"))).collect()
}

/// The answers of an operation with one status.
#[derive(Default)]
struct Response {
    texts: Vec<String>,
    codes: Vec<String>,
    contents: BTreeMap<String, Vec<Value>>,
}

fn operation(it: &Operation, schemas: &mut Schemas, codes: &BTreeMap<String, String>) -> Value {
    let mut responses: BTreeMap<StatusCode, Response> = BTreeMap::new();
    for answer in &it.answers {
        let response = responses.entry(answer.status).or_default();
        response.texts.push(answer.text.to_owned());
        response.add(&schemas.answer(answer.content));
    }
    for code in it.errors() {
        let name = name_of(code);
        let response = responses.entry(status_of(code)).or_default();
        let meaning = codes.get(&name).map_or("", String::as_str);
        response.texts.push(format!("`{name}`: {meaning}"));
        response.codes.push(name);
        response.add(&schemas.answer(Content::Json(super::operation::schema_of::<Error>)));
    }
    let lists = it.answers.iter().any(|it| matches!(it.content, Content::Pages(..)));
    let responses: Map<String, Value> = responses
        .into_iter()
        .map(|(status, response)| (status.as_str().to_owned(), response.show(status, it, lists)))
        .collect();
    let mut value = json!({
        "operationId": it.id,
        "summary": it.summary,
        "tags": [tag(it.path)],
        "parameters": parameters(it),
        "responses": responses,
        // A cluster without principals and token_file asks for no credential.
        "security": if it.door == Door::Open { json!([]) } else { json!([{"token": []}, {}]) },
    });
    if let Some((content, optional)) = it.body
        && let Content::Json(schema) = content
    {
        let mut body = media("application/json", &schema(&mut schemas.sent).into());
        body["required"] = (!optional).into();
        value["requestBody"] = body;
    }
    value
}

impl Response {
    fn add(&mut self, media: &Value) {
        for (kind, content) in media["content"].as_object().into_iter().flatten() {
            let list = self.contents.entry(kind.clone()).or_default();
            if !list.contains(&content["schema"]) {
                list.push(content["schema"].clone());
            }
        }
    }

    fn show(self, status: StatusCode, it: &Operation, lists: bool) -> Value {
        let mut names = BTreeSet::from(["kofm-health"]);
        if status == StatusCode::OK && it.method == Method::GET && it.path.starts_with("/v1/") {
            names.insert("kofm-missing");
        }
        if status == StatusCode::OK && (lists || it.path == "/v1/audit") {
            names.insert("link");
        }
        if status == StatusCode::UNAUTHORIZED {
            names.insert("www-authenticate");
        }
        let busy = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS];
        if busy.contains(&status) && !self.codes.is_empty() {
            names.insert("retry-after");
        }
        let header = |name: &str| json!({"$ref": format!("#/components/headers/{name}")});
        let headers: Map<String, Value> =
            names.into_iter().map(|name| (name.to_owned(), header(name))).collect();
        let mut value = json!({"description": self.texts.join(" "), "headers": headers});
        if !self.codes.is_empty() {
            value["x-error-codes"] = self.codes.into();
        }
        for (kind, mut schemas) in self.contents {
            let one = if schemas.len() == 1 { schemas.pop() } else { None };
            value["content"][kind]["schema"] = one.unwrap_or_else(|| json!({"anyOf": schemas}));
        }
        value
    }
}

/// The group of a path: the word after `/v1/`.
fn tag(path: &str) -> &str {
    let rest = path.strip_prefix("/v1/").unwrap_or("site");
    rest.split('/').next().unwrap_or(rest)
}

fn parameters(it: &Operation) -> Vec<Value> {
    let mut list = Vec::new();
    for part in it.path.split('/') {
        if let Some(name) = part.strip_prefix('{').and_then(|it| it.strip_suffix('}')) {
            let text = match (name, tag(it.path)) {
                ("id", "leases") => "The id of a lease; to release it, its name also.",
                ("id", _) => "The id of a request.",
                ("unit", _) => "The name of a unit, or its number.",
                ("change", _) => "The change.",
                (_, "members") => "The name of a site.",
                (_, "tokens" | "rules") => "The name of a principal.",
                (_, _) => "The name.",
            };
            let mut schema = json!({"type": "string", "minLength": 1});
            if name == "change" {
                schema = json!({"type": "string", "enum": ["drain", "undrain", "replace"]});
            }
            list.push(json!({
                "name": name, "in": "path", "required": true, "description": text, "schema": schema,
            }));
        }
    }
    for Parameter { name, schema, required } in &it.query {
        let mut schema = schema.clone();
        let text = schema.as_object_mut().and_then(|it| it.remove("description"));
        list.push(json!({
            "name": name, "in": "query", "required": required, "description": text,
            "schema": schema,
        }));
    }
    for (name, value, text) in it.headers {
        let schema = json!({"type": "string", "enum": [value]});
        list.push(json!({
            "name": name, "in": "header", "required": true, "description": text, "schema": schema,
        }));
    }
    // A parameter that is left out is not null.
    for schema in list.iter_mut().map(|it| &mut it["schema"]) {
        if let Some(kinds) = schema["type"].as_array()
            && let [kind, _] = &kinds[..]
        {
            schema["type"] = kind.clone();
        }
        if let Some(map) = schema.as_object_mut() {
            map.retain(|key, value| key != "default" || !value.is_null());
        }
    }
    list
}

/// Makes schemas plainer for generators of clients: words of an enumeration become one list, and
/// numbers get their bounds.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(tidy);
            // A schema that takes every value may be `true`, which not every generator reads.
            let any = |it: &mut Value| {
                if *it == Value::Bool(true) {
                    *it = json!({});
                }
            };
            map.get_mut("schema").map(any);
            if let Some(Value::Object(fields)) = map.get_mut("properties") {
                fields.values_mut().for_each(any);
            }
            let words = map.get("oneOf").and_then(Value::as_array).map(|list| words(list));
            if let Some(Some((words, text))) = words {
                map.remove("oneOf");
                let head = map.get("description").and_then(Value::as_str).unwrap_or_default();
                let text = format!("{head}\n\n{text}").trim().to_owned();
                map.insert("description".to_owned(), text.into());
                map.insert("type".to_owned(), "string".into());
                map.insert("enum".to_owned(), words.into());
            }
            let most: Option<u64> = match map.get("format").and_then(Value::as_str) {
                Some("uint8") => Some(u8::MAX.into()),
                Some("uint16") => Some(u16::MAX.into()),
                Some("uint32") => Some(u32::MAX.into()),
                Some(_) | None => None,
            };
            if let Some(most) = most {
                map.entry("maximum").or_insert(most.into());
            }
        }
        Value::Array(list) => list.iter_mut().for_each(tidy),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The words of an enumeration and their meanings, if the list is one.
fn words(list: &[Value]) -> Option<(Vec<Value>, String)> {
    let mut words = Vec::new();
    let mut text = String::new();
    for it in list {
        let word = it.get("const")?.as_str()?;
        let meaning = it["description"].as_str().unwrap_or_default();
        writeln!(text, "- `{word}`: {meaning}").ok();
        words.push(word.into());
    }
    Some((words, text))
}

/// A schema that is one of two.
pub(super) fn either(first: Schema, second: Schema) -> Schema {
    let list = vec![Value::from(first), Value::from(second)];
    schemars::json_schema!({"anyOf": list})
}
