//! Sets that were written down, and whether they meet.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use super::QuorumError;
use crate::types::SiteId;

/// Members that are looked at before it is said that there are too many combinations of sets: about
/// a second's work.
const MOST_STEPS: usize = 50_000_000;

/// The sets of all sites, each in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given(Arc<[Vec<u32>]>);

impl Given {
    /// Checks the sets: one for each site, and any `meet` of them share an arbiter.
    pub(super) fn new(sets: &[Vec<SiteId>], sites: u16, meet: u32) -> Result<Self, QuorumError> {
        if sets.len() != usize::from(sites) {
            return Err(QuorumError::SetsOfOthers { sets: sets.len(), sites });
        }
        let last = SiteId(sites.saturating_sub(1));
        let mut lists = Vec::with_capacity(sets.len());
        for (site, set) in (0..).map(SiteId).zip(sets) {
            if set.is_empty() {
                return Err(QuorumError::EmptySet(site));
            }
            if let Some(&arbiter) = set.iter().find(|&&arbiter| arbiter > last) {
                return Err(QuorumError::Stranger { arbiter, last });
            }
            let mut list: Vec<u32> = set.iter().map(|arbiter| arbiter.0.into()).collect();
            list.sort_unstable();
            list.dedup();
            lists.push(list);
        }
        let mut search = Search { lists: &lists, chosen: Vec::new(), left: MOST_STEPS };
        let all: Vec<u32> = (0..u32::from(sites)).collect();
        search.apart(0, &all, meet)?;
        Ok(Self(lists.into()))
    }

    pub(super) fn runs(&self, position: u32) -> Vec<Range<u32>> {
        self.0[position as usize].iter().map(|&at| at..at + 1).collect()
    }

    /// How many others are asked when every site claims once.
    pub(super) fn asked(&self) -> u64 {
        let others = |(at, list): (u32, &Vec<u32>)| {
            list.len() as u64 - u64::from(list.binary_search(&at).is_ok())
        };
        (0..).zip(self.0.iter()).map(others).sum()
    }
}

/// Looks for sets that share no arbiter.
struct Search<'a> {
    lists: &'a [Vec<u32>],
    chosen: Vec<SiteId>,
    left: usize,
}

impl Search<'_> {
    /// Goes through all choices of `more` sets from the one at `from` on, with what the chosen ones
    /// have in common; says which have nothing.
    fn apart(&mut self, from: usize, common: &[u32], more: u32) -> Result<(), QuorumError> {
        for (at, list) in self.lists.iter().enumerate().skip(from) {
            self.left = self.left.checked_sub(common.len()).ok_or(QuorumError::TooManySets)?;
            let rest: Vec<u32> =
                common.iter().copied().filter(|at| list.binary_search(at).is_ok()).collect();
            // A set that takes nothing away cannot be the one that does.
            if rest.len() == common.len() && more > 1 {
                continue;
            }
            self.chosen.push(SiteId(u16::try_from(at).expect("one list for each site")));
            if rest.is_empty() {
                return Err(QuorumError::Apart(core::mem::take(&mut self.chosen)));
            }
            if more > 1 {
                self.apart(at + 1, &rest, more - 1)?;
            }
            self.chosen.pop();
        }
        Ok(())
    }
}
