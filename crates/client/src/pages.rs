//! Lists, read page by page to their end.

use http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::explain::unreadable;
use crate::{Client, ClientError, escape};

/// Entries of one page.
const PAGE: usize = 1000;
/// Pages that are read at most: more entries than sites can have.
const MAX_PAGES: usize = 10_000;

impl Client {
    /// All entries of a list of the API, as `/v1/leases` or `/v1/queue?pool=gpu`.
    pub async fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ClientError> {
        let mut list = Vec::new();
        let mut after = String::new();
        let joint = if path.contains('?') { '&' } else { '?' };
        for _ in 0..MAX_PAGES {
            let answer: Value = self.get(&format!("{path}{joint}limit={PAGE}{after}")).await?;
            let (page, next) = entries(answer).map_err(ClientError::Nonsense)?;
            let page = page.into_iter().map(serde_json::from_value);
            let page: Result<Vec<T>, _> = page.collect();
            list.extend(page.map_err(|error| unreadable(&Method::GET, path, &error))?);
            let Some(next) = next else { return Ok(list) };
            after = format!("&after={}", escape(&next));
        }
        Err(ClientError::Nonsense(format!("{path} has more than {MAX_PAGES} pages")))
    }
}

/// The entries of a page, and the cursor of the next one.
fn entries(answer: Value) -> Result<(Vec<Value>, Option<String>), String> {
    let mut map: Map<String, Value> = match answer {
        Value::Array(list) => return Ok((list, None)),
        Value::Object(map) => map,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Map::new(),
    };
    let next = match map.remove("next") {
        Some(Value::String(next)) => Some(next),
        Some(_) | None => None,
    };
    let mut lists = map.into_iter().filter_map(|(_, value)| match value {
        Value::Array(list) => Some(list),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            None
        }
    });
    match (lists.next(), lists.next()) {
        (Some(list), None) => Ok((list, next)),
        (_, _) => Err("the answer is not a list".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_has_one_list() {
        let page = json!({"leases": [1, 2], "next": "c"});
        assert_eq!(entries(page), Ok((vec![1.into(), 2.into()], Some("c".to_owned()))));
        assert_eq!(entries(json!([1])), Ok((vec![1.into()], None)));
        assert_eq!(entries(json!({"leases": []})), Ok((Vec::new(), None)));
        for wrong in
            [json!({}), json!({"a": [], "b": []}), json!({"a": 1}), json!("a"), json!(null)]
        {
            assert!(entries(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
