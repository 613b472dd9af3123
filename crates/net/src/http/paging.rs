//! Pages of a list: `?limit=N&after=CURSOR`.
//!
//! A query with `limit` or `after` is answered with an object that has one page of the list and,
//! while there is more, the cursor `next`. Any other query is answered with an array. The header
//! `link` has the address of the next page while there is more, also if an array was cut.

use axum::http::Uri;
use axum::http::header::{HeaderValue, LINK};
use axum::response::Response;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Answer, json_body, with_missing};
use crate::api::{Code, Error};

/// Entries of one answer at most; the next one has the rest.
pub(super) const MAX_PAGE: usize = 5000;
/// A cursor has a number and two names, in hexadecimal digits.
const MAX_CURSOR: usize = 4096;

/// The query of a list.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    /// Only entries that concern this pool.
    pub pool: Option<String>,
    /// Entries of one page at most; above 5000 it is 5000.
    #[schemars(range(min = 1))]
    limit: Option<usize>,
    /// The cursor of the page: `next` of the page before.
    after: Option<String>,
}

/// The query of a list that is not of pools.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    /// Entries of one page at most; above 5000 it is 5000.
    #[schemars(range(min = 1))]
    limit: Option<usize>,
    /// The cursor of the page: `next` of the page before.
    after: Option<String>,
}

/// The page that is asked for: its length, and the key of the last entry before it.
#[derive(Debug)]
pub(super) struct Asked<K> {
    pub limit: usize,
    pub after: Option<K>,
}

impl ListQuery {
    /// The page that is asked for; none if the whole list is.
    pub(super) fn page<K: DeserializeOwned>(&self) -> Result<Option<Asked<K>>, Error> {
        page_of(self.limit, self.after.as_deref())
    }
}

impl PageQuery {
    /// The page that is asked for; none if the whole list is.
    pub(super) fn page<K: DeserializeOwned>(&self) -> Result<Option<Asked<K>>, Error> {
        page_of(self.limit, self.after.as_deref())
    }
}

/// The page that a query asks for; none if it has neither a limit nor a cursor.
pub(super) fn page_of<K: DeserializeOwned>(
    limit: Option<usize>,
    after: Option<&str>,
) -> Result<Option<Asked<K>>, Error> {
    if limit == Some(0) {
        let text = "limit: it is 0; it must be at least 1";
        return Err(Error::new(Code::Malformed, text));
    }
    if limit.is_none() && after.is_none() {
        return Ok(None);
    }
    let limit = limit.unwrap_or(MAX_PAGE).min(MAX_PAGE);
    let after = after.map(decode).transpose()?;
    Ok(Some(Asked { limit, after }))
}

/// One page of a list that is ordered by its key, or as much of it as one answer has; and the
/// sites that did not answer.
pub(super) fn paged<T: Serialize, K: Ord + Serialize>(
    uri: &Uri,
    mut list: Vec<T>,
    missing: &[String],
    asked: Option<&Asked<K>>,
    key: impl Fn(&T) -> K,
) -> Answer {
    list.sort_by_cached_key(&key);
    let limit = asked.map_or(MAX_PAGE, |it| it.limit);
    let after = asked.and_then(|it| it.after.as_ref());
    let rest = list.into_iter().filter(|it| after.is_none_or(|last| key(it) > *last));
    let mut page: Vec<T> = rest.take(limit + 1).collect();
    let more = page.len() > limit;
    page.truncate(limit);
    let next = page.last().filter(|_| more).map(|it| encode(&key(it)));
    if asked.is_some() {
        return one_page(uri, &page, missing, next);
    }
    with_missing(linked(json_body(&page), uri, next), missing)
}

/// A page, and the cursor of the next one while there is more. The last word of the path is the
/// name of the list.
pub(super) fn one_page<T: Serialize>(
    uri: &Uri,
    page: &[T],
    missing: &[String],
    next: Option<String>,
) -> Answer {
    let name = uri.path().rsplit('/').next().unwrap_or_default();
    let mut map = Map::new();
    map.insert(name.to_owned(), serde_json::to_value(page).unwrap_or_default());
    if let Some(next) = &next {
        map.insert("next".to_owned(), Value::String(next.clone()));
    }
    with_missing(linked(json_body(&Value::Object(map)), uri, next), missing)
}

/// Names the next page in the header `link`, if there is one.
pub(super) fn linked(mut response: Response, uri: &Uri, next: Option<String>) -> Response {
    let Some(next) = next else { return response };
    let rest = uri.query().unwrap_or_default().split('&');
    let rest = rest.filter(|it| !it.is_empty() && !it.starts_with("after="));
    let after = format!("after={next}");
    let query = rest.chain([after.as_str()]).collect::<Vec<_>>().join("&");
    let link = format!("<{}?{query}>; rel=\"next\"", uri.path());
    if let Ok(link) = HeaderValue::try_from(link) {
        response.headers_mut().insert(LINK, link);
    }
    response
}

/// A cursor: opaque to clients, and without characters that a URL has to escape.
pub(super) fn encode(key: &impl Serialize) -> String {
    let text = serde_json::to_vec(key).unwrap_or_default();
    text.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

fn decode<K: DeserializeOwned>(cursor: &str) -> Result<K, Error> {
    let byte = |pair: &[u8]| {
        let digits = std::str::from_utf8(pair).ok().filter(|it| it.len() == 2)?;
        u8::from_str_radix(digits, 16).ok()
    };
    let short = Some(cursor).filter(|it| it.len() <= MAX_CURSOR);
    let bytes: Option<Vec<u8>> = short.and_then(|it| it.as_bytes().chunks(2).map(byte).collect());
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or_else(|| {
        let text = "after: it is not a cursor of this list; it must be the `next` of the page \
                    before, unchanged";
        Error::new(Code::Malformed, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Key = (u64, String, u64);

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_nothing_else_is() {
        let key: Key = (u64::MAX, "sité \" &".to_owned(), 7);
        assert_eq!(decode::<Key>(&encode(&key)).unwrap(), key);
        let long = "0".repeat(MAX_CURSOR + 2);
        for wrong in ["", "x", "zz", "5", "+f+f", "5b5d", "é", &encode(&7), &long] {
            assert_eq!(decode::<Key>(wrong).unwrap_err().error, Code::Malformed, "{wrong}");
        }
    }
}
