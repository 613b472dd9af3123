//! What must be true of every world, and of those where nothing moves any more.

use kofm_core::{GroupId, Grouping, Protocol, Service, SiteId, Stamp, Units};

use super::{EMPTY, Search};
use crate::idle::overlooked;
use crate::world::{Move, Violation};

impl<P: Protocol> Search<'_, P> {
    /// A kind of token of which there are not as many as there should be: the kind, how many there
    /// are, how many there should be.
    pub(super) fn wrong_tokens(&self, row: &[u32]) -> Option<(usize, u32, u32)> {
        if self.expected.is_empty() {
            return None;
        }
        let (locals, queues) = row.split_at(self.cluster.sites as usize);
        let queues = &queues[..self.links.len()];
        let here = locals.iter().flat_map(|&local| &self.facts[local as usize].census.tokens);
        let flying = queues.iter().flat_map(|&queue| &self.queues.items[queue as usize]);
        let flying = flying.flat_map(|&m| P::tokens_in(&self.envelopes.items[m as usize].1));
        let mut counts = vec![0; self.expected.len()];
        for kind in here.copied().chain(flying) {
            counts[kind as usize] += 1;
        }
        let mut kinds = counts.into_iter().zip(&self.expected).enumerate();
        kinds.find_map(|(kind, (found, &due))| (found != due).then_some((kind, found, due)))
    }

    /// Tokens of a protocol that counts them: from a right start they are right for ever, and from
    /// a wrong one if somebody is sure of them.
    pub(super) fn judge_tokens(&self, row: &[u32]) -> Result<(), Violation> {
        if self.expected.is_empty() {
            return Ok(());
        }
        let locals = &row[..self.cluster.sites as usize];
        let sure = locals.iter().any(|&local| self.facts[local as usize].census.sure);
        if !sure && !self.closed {
            return Ok(());
        }
        let Some((kind, found, due)) = self.wrong_tokens(row) else { return Ok(()) };
        let content = if sure { ", and the root has counted and is content" } else { "" };
        let detail = format!("there are {found} tokens of kind {kind} instead of {due}{content}");
        Err(Violation::new("tokens", detail))
    }

    /// The promises that can be judged in one world.
    pub(super) fn judge(&self, row: &[u32]) -> Result<(), Violation> {
        self.judge_tokens(row)?;
        let (locals, queues) = row.split_at(self.cluster.sites as usize);
        let queues = &queues[..self.links.len()];
        let facts = || locals.iter().map(|&local| &self.facts[local as usize]);
        let seats = if P::PROFILE.serves == Service::Gang { locals.len() } else { 0 };
        let seats = std::iter::repeat_n(&Units(1), seats);
        for (pool, units) in self.cluster.pools.iter().chain(seats).enumerate() {
            let held: u64 = facts().map(|facts| facts.held[pool]).sum();
            if held > u64::from(units.0) {
                let detail = format!("{held} units of pool p{pool} are held, which has {units}");
                return Err(Violation::new("capacity", detail));
            }
        }
        for facts in facts() {
            let early = |claim: &&Stamp| {
                let leader = &self.facts[locals[claim.site.index()] as usize];
                leader.unstarted.contains(claim)
            };
            if let Some(claim) = facts.started.iter().find(early) {
                let detail = format!("a member works for {claim}, which has not started");
                return Err(Violation::new("together", detail));
            }
        }
        let quiet = queues.iter().all(|&queue| queue == EMPTY);
        if P::PROFILE.serves == Service::Semaphore {
            self.judge_semaphores(locals, quiet)?;
        }
        if let Some(watch) = &self.watch {
            let works = |site: SiteId| self.facts[locals[site.index()] as usize].works.as_slice();
            let begun = &self.begun.items[row[row.len() - 1] as usize];
            watch.judge(begun, works)?;
            let has = |site: SiteId, rival: SiteId| {
                let census = &self.facts[locals[site.index()] as usize].census;
                census.tokens.contains(&rival.0.into())
            };
            for process in (0..self.cluster.sites).map(SiteId) {
                watch.judge_needs(process, begun, &works, &has)?;
            }
        }
        if quiet && let Some(claim) = overlooked(facts().filter_map(|facts| facts.stock.as_ref())) {
            let detail = format!("{claim} waits beside free units, and nothing is in flight");
            return Err(Violation::new("idleness", detail));
        }
        if !quiet || facts().any(|facts| facts.stirring) {
            return Ok(());
        }
        if let Some(watch) = &self.watch {
            // A group waits for members that may yet come; but not if all of them wait for it.
            match self.owed_claims(locals) {
                Owed::Some => return Ok(()),
                Owed::NoneThoughSomeMayClaim => {
                    let complete = |group: &GroupId| self.all_wait_in(locals, watch, *group);
                    if let Some(group) = watch.grouping().all().find(complete) {
                        let detail = format!(
                            "all members of {group} wait for it, nothing is in flight and no group \
                             works"
                        );
                        return Err(Violation::new("progress", detail));
                    }
                    return Ok(());
                }
                Owed::None => {}
            }
        }
        if P::PROFILE.serves != Service::Semaphore && facts().any(|facts| facts.waiting) {
            let detail = "a claim waits, nothing is in flight and nobody holds anything";
            return Err(Violation::new("progress", detail));
        }
        if !facts().any(|facts| facts.live) && !facts().all(|facts| facts.at_rest) {
            return Err(Violation::new(
                "rest",
                "no claims and no messages, yet a site is not idle",
            ));
        }
        Ok(())
    }

    /// Whether clients of groups still owe a claim: all that can make one, where claims name no
    /// group; where they do, those for whose group another member waits.
    fn owed_claims(&self, locals: &[u32]) -> Owed {
        let facts = |local: &u32| &self.facts[*local as usize];
        if !locals.iter().any(|local| facts(local).claims) {
            return Owed::None;
        }
        let awaited = |group| {
            let waits = |other: &u32| facts(other).waits.contains(&Some(group));
            locals.iter().any(waits)
        };
        let owes = |local: &u32| {
            let own = &self.locals.items[*local as usize].own;
            facts(local).moves.iter().any(|action| match action {
                Move::Claim(i) => own
                    .get(*i)
                    .is_none_or(|(demand, _)| Grouping::named(demand).is_none_or(awaited)),
                Move::Release(_)
                | Move::ReleaseOne(_)
                | Move::Withdraw(_)
                | Move::Add(_)
                | Move::Fire(_) => false,
            })
        };
        if locals.iter().any(owes) { Owed::Some } else { Owed::NoneThoughSomeMayClaim }
    }

    /// The invariant of semaphores, S = s0 + #V - #P >= 0; one turn at a time, with the right
    /// count; and whoever has its turn takes what is there.
    pub(super) fn judge_semaphores(&self, locals: &[u32], quiet: bool) -> Result<(), Violation> {
        let facts = || locals.iter().map(|&local| &self.facts[local as usize]);
        let mut turns = false;
        for (pool, initial) in self.cluster.pools.iter().enumerate() {
            let sum = |side: fn(&(u64, u64)) -> u64| -> u64 {
                facts().map(|facts| side(&facts.balance[pool])).sum()
            };
            let (added, taken) = (sum(|b| b.0), sum(|b| b.1));
            let Some(value) = (u64::from(initial.0) + added).checked_sub(taken) else {
                let detail = format!("{taken} units taken of {initial} and {added} added");
                return Err(Violation::new("value", detail));
            };
            let heads = || facts().filter_map(|facts| facts.heads[pool].as_ref());
            if heads().count() > 1 {
                let detail = format!("{} claims have their turn at once", heads().count());
                return Err(Violation::new("turn", detail));
            }
            let Some(head) = heads().next() else { continue };
            turns = true;
            if let Some(count) = head.taken
                && u64::try_from(count) != Ok(taken)
            {
                let detail = format!("{taken} units taken, and whose turn it is counts {count}");
                return Err(Violation::new("count", detail));
            }
            if quiet && head.units <= value {
                let detail = "a claim has its turn, there are units, and nothing is in flight";
                return Err(Violation::new("progress", detail));
            }
        }
        if quiet && !turns && facts().any(|facts| facts.waiting) {
            let detail = "a claim waits, nothing is in flight and nobody has its turn";
            return Err(Violation::new("progress", detail));
        }
        Ok(())
    }
}

/// Claims that clients of groups still have to make.
enum Owed {
    /// Some.
    Some,
    /// None, but a client may claim.
    NoneThoughSomeMayClaim,
    /// None, and no client can claim.
    None,
}
