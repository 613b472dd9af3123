//! A set of sites as bits: small to clone, to hash and to keep per claim.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::types::SiteId;

/// A set of sites.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SiteSet {
    /// Invariant: the last word is not zero, so that equal sets are equal values.
    words: Vec<u64>,
}

impl SiteSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// Adds `site`; false where it was there already.
    pub fn insert(&mut self, site: SiteId) -> bool {
        let (word, bit) = place(site);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Removes `site`; false where it was not there.
    pub fn remove(&mut self, site: SiteId) -> bool {
        let (word, bit) = place(site);
        let was = self.contains(site);
        if was {
            self.words[word] &= !bit;
            while self.words.last() == Some(&0) {
                self.words.pop();
            }
        }
        was
    }

    /// Whether `site` is in it.
    pub fn contains(&self, site: SiteId) -> bool {
        let (word, bit) = place(site);
        self.words.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How many are in it.
    pub fn len(&self) -> usize {
        self.words.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// The sites, in order.
    pub fn iter(&self) -> impl Iterator<Item = SiteId> + '_ {
        (0u16..).step_by(64).zip(&self.words).flat_map(|(base, &bits)| {
            (0..64).filter(move |i| bits >> i & 1 == 1).map(move |i| SiteId(base + i))
        })
    }
}

impl FromIterator<SiteId> for SiteSet {
    fn from_iter<I: IntoIterator<Item = SiteId>>(sites: I) -> Self {
        let mut set = Self::new();
        for site in sites {
            set.insert(site);
        }
        set
    }
}

const fn place(site: SiteId) -> (usize, u64) {
    (site.index() / 64, 1 << (site.0 % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_was_emptied_equals_a_new_one() {
        let mut set: SiteSet = [SiteId(3), SiteId(200)].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [SiteId(3), SiteId(200)]);
        assert_eq!(set.len(), 2);
        assert!(set.remove(SiteId(200)) && set.remove(SiteId(3)) && !set.remove(SiteId(3)));
        assert_eq!(set, SiteSet::new());
    }
}
