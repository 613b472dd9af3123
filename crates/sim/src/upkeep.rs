//! Follows the tokens of a run whose memories were garbled: when they are right for good.

use std::collections::BTreeSet;

use kofm_core::{Census, SiteId};

use crate::report::Stabilised;
use crate::span::Time;

/// Where tokens are, and since when all is right.
#[derive(Clone, Debug)]
pub struct Upkeep {
    /// Tokens of each kind that are missing, or too many below zero.
    missing: Vec<i64>,
    /// Kinds that are not right.
    wrong: usize,
    sites: Vec<Census>,
    /// Claims that are held since before all was right: what they were told may not be.
    suspects: BTreeSet<u32>,
    /// The last fault: its time, and steps, messages and circulations until then.
    struck: Stabilised,
    pending: Option<Time>,
    /// The last time that something was not right.
    last: Stabilised,
    circulations: u64,
    faults: u64,
}

impl Upkeep {
    /// A run begins with these tokens at sites and on links.
    pub fn new(expected: &[u32], sites: Vec<Census>, flying: Vec<u32>) -> Self {
        let mut upkeep = Self {
            missing: expected.iter().map(|&count| count.into()).collect(),
            wrong: expected.iter().filter(|&&count| count > 0).count(),
            sites,
            suspects: BTreeSet::new(),
            struck: Stabilised::default(),
            pending: None,
            last: Stabilised::default(),
            circulations: 0,
            faults: 0,
        };
        for kind in upkeep.sites.iter().flat_map(|census| census.tokens.clone()).collect::<Vec<_>>()
        {
            upkeep.count(kind, 1);
        }
        for kind in flying {
            upkeep.count(kind, 1);
        }
        upkeep
    }

    fn count(&mut self, kind: u32, change: i64) {
        let Some(missing) = self.missing.get_mut(kind as usize) else { return };
        let before = *missing == 0;
        *missing -= change;
        match (before, *missing == 0) {
            (true, false) => self.wrong += 1,
            (false, true) => self.wrong -= 1,
            _ => {}
        }
    }

    /// Tokens were put on a link.
    pub fn sent(&mut self, tokens: &[u32]) {
        for &kind in tokens {
            self.count(kind, 1);
        }
    }

    /// Tokens were taken off a link.
    pub fn arrived(&mut self, tokens: &[u32]) {
        for &kind in tokens {
            self.count(kind, -1);
        }
    }

    /// A site took a step, or was garbled.
    pub fn stepped(&mut self, site: SiteId, census: Census) {
        let before = std::mem::replace(&mut self.sites[site.index()], census);
        let tokens = self.sites[site.index()].tokens.clone();
        self.arrived(&before.tokens);
        self.sent(&tokens);
        // Site 0 is the lowest, so it is the root in the end.
        if site.0 == 0 && before.circulation != self.sites[0].circulation {
            self.circulations += 1;
        }
    }

    /// A site was garbled.
    pub fn struck(&mut self, now: Time) {
        self.faults += 1;
        self.pending = Some(now);
    }

    /// A claim is over.
    pub fn left(&mut self, claim: u32) {
        self.suspects.remove(&claim);
    }

    /// After a step: whether something is still not right.
    pub fn judge<I: Iterator<Item = u32>>(
        &mut self,
        now: Time,
        steps: u64,
        messages: u64,
        held: impl FnOnce() -> I,
    ) -> bool {
        let circulations = self.circulations;
        let here = Stabilised { faults: self.faults, circulations, steps, messages, time: now };
        if self.pending.take().is_some() {
            self.struck = here;
        }
        if self.wrong > 0 {
            self.suspects = held().collect();
        }
        let unstable = !self.is_right();
        if unstable {
            self.last = here;
        }
        unstable
    }

    /// Whether all tokens are right, and nobody holds what was granted before.
    pub fn is_right(&self) -> bool {
        self.wrong == 0 && self.suspects.is_empty()
    }

    /// What it took since the last fault.
    pub fn stabilised(self) -> Stabilised {
        let (last, struck) = (self.last, self.struck);
        Stabilised {
            faults: self.faults,
            circulations: last.circulations.saturating_sub(struck.circulations),
            steps: last.steps.saturating_sub(struck.steps),
            messages: last.messages.saturating_sub(struck.messages),
            time: last.time.saturating_sub(struck.time),
        }
    }
}
