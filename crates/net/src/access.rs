//! Who may use the API of a site.

use std::fmt;
use std::io;
use std::path::Path;

use axum::http::header::{AUTHORIZATION, HeaderMap, HeaderValue};

/// Whoever shows one of these tokens may do everything; everybody, where there are none.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access(Vec<String>);

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tokens are secrets.
        write!(f, "Access({} tokens)", self.0.len())
    }
}

impl Access {
    /// Everybody.
    pub const fn open() -> Self {
        Self(Vec::new())
    }

    /// Whoever shows a token of this file: one in each line, comments after `#`. Two of them let
    /// clients move from an old token to a new one.
    pub fn read(path: &Path) -> io::Result<Self> {
        Self::parse(&std::fs::read_to_string(path)?)
            .map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let list: Vec<String> = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
        if list.is_empty() {
            return Err("there is no token in it".into());
        }
        // What cannot stand in a header could never be shown.
        match list.iter().position(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            Some(place) => Err(format!("token {} is not printable ASCII", place + 1)),
            None => Ok(Self(list)),
        }
    }

    /// Whether no token is asked for.
    pub(crate) const fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request with these headers is answered.
    pub(crate) fn allows(&self, headers: &HeaderMap) -> bool {
        if self.is_open() {
            return true;
        }
        let shown = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let shown = shown.and_then(|value| value.split_at_checked("Bearer ".len()));
        let Some((scheme, token)) = shown else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ")
            && self.0.iter().fold(false, |found, known| found | same(known.as_bytes(), token))
    }
}

/// Takes as long for a near miss as for a far one.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn showing(value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn only_a_known_token_opens() {
        let access = Access::parse("# old and new\nfirst \n\nsecond # since May\n").unwrap();
        assert!(access.allows(&showing("Bearer first")));
        assert!(access.allows(&showing("bearer second")));
        for wrong in ["Bearer firs", "Bearer first2", "Bearer ", "first", "", "Basic first", "é"] {
            assert!(!access.allows(&showing(wrong)), "{wrong}");
        }
        assert!(!access.allows(&HeaderMap::new()));
        assert!(Access::open().allows(&HeaderMap::new()));
        assert!(!format!("{access:?}").contains("first"));
    }

    #[test]
    fn a_file_without_tokens_is_a_mistake_and_not_an_open_door() {
        for text in ["", "\n\n", "# nothing", "two words", "ümlaut"] {
            assert!(Access::parse(text).is_err(), "{text:?}");
        }
    }
}
