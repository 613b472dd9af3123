//! Pages of a list: `?limit=N&after=CURSOR`.
//!
//! A query with `limit` or `after` is answered with an object that has one page of the list and,
//! while there is more, the cursor `next`. Any other query is answered with the whole list.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Answer, json_body, with_missing};
use crate::api::{Code, Error};

/// Entries of one page at most; the next one has the rest.
const MAX_PAGE: usize = 1000;
/// A cursor has a number and two names, in hexadecimal digits.
const MAX_CURSOR: usize = 4096;

/// The query of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    pub pool: Option<String>,
    limit: Option<usize>,
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

/// One page of a list that is ordered by its key, or all of it; and the sites that did not answer.
pub(super) fn paged<T: Serialize, K: Ord + Serialize>(
    name: &str,
    mut list: Vec<T>,
    missing: &[String],
    asked: Option<&Asked<K>>,
    key: impl Fn(&T) -> K,
) -> Answer {
    let Some(asked) = asked else { return with_missing(json_body(&list), missing) };
    list.sort_by_cached_key(&key);
    let rest =
        list.into_iter().filter(|it| asked.after.as_ref().is_none_or(|last| key(it) > *last));
    let mut page: Vec<T> = rest.take(asked.limit + 1).collect();
    let more = page.len() > asked.limit;
    page.truncate(asked.limit);
    let next = page.last().filter(|_| more).map(|it| encode(&key(it)));
    one_page(name, &page, missing, next)
}

/// A page, and the cursor of the next one while there is more.
pub(super) fn one_page<T: Serialize>(
    name: &str,
    page: &[T],
    missing: &[String],
    next: Option<String>,
) -> Answer {
    let mut map = Map::new();
    map.insert(name.to_owned(), serde_json::to_value(page).unwrap_or_default());
    if let Some(next) = next {
        map.insert("next".to_owned(), Value::String(next));
    }
    with_missing(json_body(&Value::Object(map)), missing)
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
