//! Sets of tokens, and how often each was counted.

use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// A set of tokens, a bit each. Its length is that of its cluster, so equal sets are equal values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// None of `tokens`.
    pub fn none(tokens: u32) -> Self {
        Self(vec![0; tokens.div_ceil(64) as usize])
    }

    /// Whether a token is in it.
    pub fn has(&self, token: u32) -> bool {
        self.0.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// Puts a token in, or out.
    pub fn set(&mut self, token: u32, to: bool) {
        if let Some(word) = self.0.get_mut(token as usize / 64) {
            *word = *word & !(1 << (token % 64)) | u64::from(to) << (token % 64);
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Makes a set of the right length of what a peer sent.
    pub fn fit(&mut self, tokens: u32) {
        self.0.resize(tokens.div_ceil(64) as usize, 0);
        if let Some(last) = self.0.last_mut()
            && !tokens.is_multiple_of(64)
        {
            *last &= (1 << (tokens % 64)) - 1;
        }
    }

    /// Whether it has the right length.
    pub fn fits(&self, tokens: u32) -> bool {
        self.0.len() == tokens.div_ceil(64) as usize
    }

    /// Any set.
    pub fn garbage(tokens: u32, draw: &mut dyn FnMut() -> u64) -> Self {
        let mut bits = Self((0..tokens.div_ceil(64)).map(|_| draw()).collect());
        bits.fit(tokens);
        bits
    }
}

/// How often each token was counted: not at all, once, more often.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tally {
    once: Bits,
    more: Bits,
}

impl Tally {
    /// Nothing counted.
    pub fn none(tokens: u32) -> Self {
        Self { once: Bits::none(tokens), more: Bits::none(tokens) }
    }

    /// Counts a token.
    pub fn add(&mut self, token: u32) {
        if self.once.has(token) {
            self.more.set(token, true);
        }
        self.once.set(token, true);
    }

    /// 0, 1, or 2 for more.
    pub fn count(&self, token: u32) -> u8 {
        u8::from(self.once.has(token)) + u8::from(self.more.has(token))
    }

    /// Starts anew.
    pub fn clear(&mut self) {
        self.once.clear();
        self.more.clear();
    }

    /// Makes what a peer sent fit.
    pub fn fit(&mut self, tokens: u32) {
        self.once.fit(tokens);
        self.more.fit(tokens);
    }

    /// Whether both sets have the right length.
    pub fn fits(&self, tokens: u32) -> bool {
        self.once.fits(tokens) && self.more.fits(tokens)
    }

    /// Any tally.
    pub fn garbage(tokens: u32, draw: &mut dyn FnMut() -> u64) -> Self {
        Self { once: Bits::garbage(tokens, draw), more: Bits::garbage(tokens, draw) }
    }
}
