//! Sums over the ledger: unit-hours, waits and holds by owner, pool or unit.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::View;
use crate::api::{By, Group, Report, Scope};

/// Groups of one report; what comes beyond is summed as [`OTHERS`].
const MAX_GROUPS: usize = 20_000;
/// The group of everything beyond [`MAX_GROUPS`].
const OTHERS: &str = "(others)";

/// A report that is being made.
pub(crate) struct Sum {
    scope: Scope,
    from_ms: Option<u64>,
    groups: BTreeMap<(String, String), Group>,
}

impl Sum {
    pub(crate) const fn new(scope: Scope) -> Self {
        Self { scope, from_ms: None, groups: BTreeMap::new() }
    }

    fn group(&mut self, one: &str, two: &str) -> &mut Group {
        let mut key = (one.to_owned(), two.to_owned());
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&key) {
            key = (OTHERS.to_owned(), String::new());
        }
        self.groups.entry(key).or_default()
    }

    fn counts(&self, pool: &str) -> bool {
        let named = self.scope.pools.as_ref();
        // Seats of gang members are not pools of clients.
        !pool.starts_with('@') && named.is_none_or(|pools| pools.contains(pool))
    }

    /// Notes since when a site has everything.
    pub(crate) fn begins(&mut self, from_ms: u64) {
        self.from_ms = Some(self.from_ms.map_or(from_ms, |it| it.min(from_ms)));
    }

    /// The part of a hold that lies in the time that is asked about.
    fn overlap(&self, end: u64, held: u64) -> u64 {
        let start = end.saturating_sub(held).max(self.scope.since_ms);
        end.min(self.scope.until_ms).saturating_sub(start)
    }

    /// Counts a row.
    pub(super) fn add(&mut self, view: &View<'_>) {
        let event = view.text(view.row.event);
        let inside = (self.scope.since_ms..=self.scope.until_ms).contains(&view.at_ms);
        let held = view.row.held.map(|held| self.overlap(view.at_ms, held));
        if !inside && held.unwrap_or(0) == 0 {
            return;
        }
        let mut noted = BTreeSet::new();
        let owner = view.owner();
        for (pool, units) in view.counts() {
            if !self.counts(pool) {
                continue;
            }
            let keys: Vec<(String, String)> = match self.scope.by {
                By::Owner => vec![(owner.to_owned(), String::new())],
                By::Pool => vec![(pool.to_owned(), String::new())],
                By::Unit => {
                    let named = view.row.units.iter().find(|it| view.text(it.0) == pool);
                    let names = named.map(|it| view.names(&it.1)).unwrap_or_default();
                    names.into_iter().map(|name| (pool.to_owned(), name)).collect()
                }
            };
            let each = if self.scope.by == By::Unit { 1 } else { u64::from(units) };
            for key in keys {
                let group = self.group(&key.0, &key.1);
                group.unit_ms += held.unwrap_or(0).saturating_mul(each);
                // A demand over two pools is one lease of its owner.
                if inside && noted.insert(key) {
                    group.note(event, view.row.waited, view.row.held);
                }
            }
        }
    }

    /// Counts a lease that is held now.
    pub(crate) fn add_live(&mut self, owner: &str, pool: &str, units: &[String], held_ms: u64) {
        if !self.counts(pool) {
            return;
        }
        let held = self.overlap(self.scope.until_ms, held_ms);
        let (count, by) = (u64::try_from(units.len()).unwrap_or(u64::MAX), self.scope.by);
        match by {
            By::Owner => self.group(owner, "").unit_ms += held.saturating_mul(count),
            By::Pool => self.group(pool, "").unit_ms += held.saturating_mul(count),
            By::Unit => units.iter().for_each(|unit| self.group(pool, unit).unit_ms += held),
        }
    }

    /// Makes sure that a pool or unit has a row, although it may not have been used.
    pub(crate) fn name(&mut self, pool: &str, unit: &str) {
        if self.counts(pool) {
            self.group(pool, unit);
        }
    }

    /// Adds what another site counted.
    pub(crate) fn merge(&mut self, report: Report) {
        if let Some(from_ms) = report.from_ms {
            self.begins(from_ms);
        }
        for ((one, two), theirs) in report.groups {
            let group = self.group(&one, &two);
            group.leases += theirs.leases;
            group.unit_ms += theirs.unit_ms;
            group.expired += theirs.expired;
            group.failed += theirs.failed;
            group.cancelled += theirs.cancelled;
            group.refused += theirs.refused;
            group.waits.merge(theirs.waits);
            group.holds.merge(theirs.holds);
        }
    }

    pub(crate) fn report(self) -> Report {
        Report { from_ms: self.from_ms, groups: self.groups.into_iter().collect() }
    }
}
