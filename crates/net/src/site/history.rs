//! History and usage of the whole cluster.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Site;
use super::desk::Desk;
use crate::api::{self, Answer, By, Call, Group, Happening, LedgerAsk, Scope, Selection, UsageRow};
use crate::ledger::{Ledger, Sum};
use kofm_site::core::History;
use kofm_site::input::Command;

/// How long another site may take to read its whole history.
const READING: Duration = Duration::from_secs(30);

/// The ledger, as the core sees it: answers come to the core as commands.
pub(super) struct Kept {
    pub ledger: Ledger,
    pub desk: Arc<OnceLock<Weak<Desk>>>,
}

impl History for Kept {
    fn note(&self, happening: &Happening) {
        self.ledger.note(happening);
    }

    fn ask(&self, ticket: u64, ask: LedgerAsk) -> bool {
        let desk = Arc::clone(&self.desk);
        let reply = move |answer| {
            if let Some(desk) = desk.get().and_then(Weak::upgrade) {
                desk.put(Command::Told { ticket, answer });
            }
        };
        self.ledger.ask(ask, Box::new(reply))
    }

    fn counts(&self) -> (u64, u64) {
        self.ledger.counts()
    }
}

/// Milliseconds of Unix time.
pub(crate) fn wall_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Site {
    /// What happened lately at all sites, to one pool or to all, oldest first.
    pub async fn history(
        &self,
        pool: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Happening>, Vec<String>), api::Error> {
        let selection = Selection { pool: pool.map(str::to_owned), ..Selection::default() };
        self.history_before(selection, limit, None).await
    }

    /// The latest events that are asked for, before a place in the history.
    pub(crate) async fn history_before(
        &self,
        selection: Selection,
        limit: usize,
        before: Option<api::Place>,
    ) -> Result<(Vec<Happening>, Vec<String>), api::Error> {
        let call = Call::Ledger(LedgerAsk::History { selection, limit, before });
        let (mut list, missing) = self
            .gather_within(call, READING, |answer| {
                if let Answer::History(list) = answer { list } else { Vec::new() }
            })
            .await?;
        list.sort_by_cached_key(Happening::place);
        let skipped = list.len().saturating_sub(limit);
        Ok((list.split_off(skipped), missing))
    }

    /// What was used since a time, at all sites. `readable`: which pools are counted.
    pub(crate) async fn usage_since(
        &self,
        by: By,
        since_ms: u64,
        readable: impl Fn(&str) -> bool,
    ) -> Result<(Vec<UsageRow>, Vec<String>), api::Error> {
        let (pools, _) = self.pools().await?;
        let pools: Vec<api::Pool> = pools.into_iter().filter(|it| readable(&it.name)).collect();
        let named: BTreeSet<String> = pools.iter().map(|pool| pool.name.clone()).collect();
        let until_ms = wall_ms();
        let since_ms = since_ms.min(until_ms);
        let scope = Scope { by, since_ms, until_ms, pools: Some(named) };
        let (leases, _) = self.leases().await?;
        let call = Call::Ledger(LedgerAsk::Usage(scope.clone()));
        let (reports, missing) = self
            .gather_within(call, READING, |answer| {
                if let Answer::UsageReport(report) = answer { vec![report] } else { Vec::new() }
            })
            .await?;
        let mut sum = Sum::new(scope);
        for report in reports {
            sum.merge(report);
        }
        for lease in &leases {
            let owner = lease.owner.as_deref().unwrap_or_default();
            for (pool, units) in &lease.units {
                sum.add_live(owner, pool, units, lease.held_ms);
            }
        }
        for pool in &pools {
            match by {
                By::Owner => {}
                By::Pool => sum.name(&pool.name, ""),
                By::Unit if pool.names.is_empty() => {
                    (0..pool.units).for_each(|unit| sum.name(&pool.name, &unit.to_string()));
                }
                By::Unit => pool.names.iter().for_each(|unit| sum.name(&pool.name, unit)),
            }
        }
        let report = sum.report();
        let begun = report.from_ms.unwrap_or(until_ms).max(since_ms);
        let window_ms = until_ms.saturating_sub(begun).max(1);
        let total: u64 = report.groups.iter().map(|it| it.1.unit_ms).sum();
        let units = |name: &str| {
            let all = pools.iter().filter(|pool| by == By::Owner || pool.name == name);
            all.map(|pool| u64::from(pool.units)).sum::<u64>()
        };
        let row = |((one, two), group): &((String, String), Group)| {
            let there = if by == By::Unit { 1 } else { units(one) };
            let part = |of: u64| if of == 0 { 0.0 } else { group.unit_ms as f64 / of as f64 };
            UsageRow {
                owner: (by == By::Owner).then(|| one.clone()),
                pool: (by != By::Owner).then(|| one.clone()),
                unit: (by == By::Unit).then(|| two.clone()),
                leases: group.leases,
                unit_hours: group.unit_ms as f64 / 3_600_000.0,
                share: part(total),
                utilisation: part(window_ms.saturating_mul(there)).min(1.0),
                wait_p50_ms: group.waits.percentile(50),
                wait_p95_ms: group.waits.percentile(95),
                hold_p50_ms: group.holds.percentile(50),
                hold_p95_ms: group.holds.percentile(95),
                expired: group.expired,
                failed: group.failed,
                cancelled: group.cancelled,
                refused: group.refused,
                window_ms,
            }
        };
        Ok((report.groups.iter().map(row).collect(), missing))
    }
}
