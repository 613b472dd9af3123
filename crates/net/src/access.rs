//! Who may use the API of a site.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// The tokens of a site's `token_file`: a client that shows one of them may do everything. Without
/// a file every client may. Clones share the list, so that a site changes it while it runs.
#[derive(Clone)]
pub struct Access {
    /// Fixed when the site starts.
    open: bool,
    tokens: Arc<RwLock<Vec<String>>>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tokens are secrets.
        write!(f, "Access({} tokens)", self.count())
    }
}

impl Access {
    /// One token, as if a file had it.
    pub fn token(token: &str) -> Self {
        Self { open: false, tokens: Arc::new(RwLock::new(vec![token.to_owned()])) }
    }

    /// No token is asked for.
    pub fn open() -> Self {
        Self { open: true, tokens: Arc::default() }
    }

    /// Clients that show a token of this file: one in each line, comments after `#`. Two of them
    /// let clients move from an old token to a new one.
    pub fn read(path: &Path) -> io::Result<Self> {
        let tokens = Arc::new(RwLock::new(read(path)?));
        Ok(Self { open: false, tokens })
    }

    /// Reads the file again, for all clones; says whether it has other tokens now. After an error
    /// the old ones stay.
    pub fn reload(&self, path: &Path) -> io::Result<bool> {
        let fresh = read(path)?;
        let mut tokens = self.tokens.write().unwrap_or_else(PoisonError::into_inner);
        let changed = *tokens != fresh;
        *tokens = fresh;
        Ok(changed)
    }

    /// The number of tokens.
    pub fn count(&self) -> usize {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether no token is asked for.
    pub(crate) const fn is_open(&self) -> bool {
        self.open
    }

    /// Whether it is one of the tokens.
    pub(crate) fn has(&self, token: &[u8]) -> bool {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        tokens.iter().fold(false, |found, known| found | same(known.as_bytes(), token))
    }
}

fn read(path: &Path) -> io::Result<Vec<String>> {
    parse(&std::fs::read_to_string(path)?)
        .map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))
}

fn parse(text: &str) -> Result<Vec<String>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let list: Vec<String> = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if list.is_empty() {
        return Err("it has no token; write one in a line".into());
    }
    // No other text could stand in a header.
    match list.iter().position(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
        Some(place) => Err(format!("token {} is not printable ASCII", place + 1)),
        None => Ok(list),
    }
}

/// Takes as long for a near miss as for a far one.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_token_opens() {
        let access = Access { open: false, tokens: Arc::default() };
        let tokens = parse("# old and new\nfirst \n\nsecond # since May\n").unwrap();
        *access.tokens.write().unwrap() = tokens;
        assert!(access.has(b"first") && access.has(b"second"));
        for wrong in ["firs", "first2", "", "#", "second # since May"] {
            assert!(!access.has(wrong.as_bytes()), "{wrong}");
        }
        assert!(!format!("{access:?}").contains("first"));
    }

    #[test]
    fn a_file_without_tokens_is_a_mistake_and_not_an_open_door() {
        for text in ["", "\n\n", "# nothing", "two words", "ümlaut"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
