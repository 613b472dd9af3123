//! Operations of clients on semaphores, and whether their counts are right.
//!
//! Judged by what clients were told: all that was answered is in each record that claims to know
//! everything, and nothing that was not asked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use kofm_core::epoch::{Books, Call, MemberInput, Op, Phase, Rules};
use kofm_core::{Cluster, Demand, PoolId, Protocol, Service, SiteId};

use super::{Action, Seat, World};
use crate::world::{Script, Violation};

/// All operations so far, on one semaphore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ops {
    first: i64,
    list: Vec<Issued>,
    /// The operation of each call, and the life that was asked.
    calls: Vec<(usize, SiteId, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Issued {
    /// Units: added, or below zero where they were taken.
    change: i64,
    answered: bool,
}

/// Units that were added, and taken.
type Sums = (i64, i64);

impl Ops {
    pub(super) fn new(cluster: &Cluster) -> Self {
        let first = cluster.pools.first().map_or(0, |units| units.0.into());
        Self { first, list: Vec::new(), calls: Vec::new() }
    }

    fn sums(&self, counts: impl Fn(&Issued) -> bool) -> Sums {
        let list = self.list.iter().filter(|op| counts(op));
        list.fold((0, 0), |(added, taken), op| (added + op.change.max(0), taken - op.change.min(0)))
    }

    /// All answered operations are there, and none that was not asked for.
    fn judge(&self, (added, taken): Sums, what: &str) -> Result<(), Violation> {
        let (answered, issued) = (self.sums(|op| op.answered), self.sums(|_| true));
        let wrong = |property, text: String| {
            let detail = format!("{what}: +{added} -{taken} of {}, {text}", self.first);
            Err(Violation::new(property, detail))
        };
        if added < answered.0 || taken < answered.1 {
            return wrong("lost", format!("answered +{} -{}", answered.0, answered.1));
        }
        if added > issued.0 || taken > issued.1 {
            return wrong("made up", format!("issued +{} -{}", issued.0, issued.1));
        }
        if self.first + added < taken {
            return wrong("value", "below zero".to_owned());
        }
        Ok(())
    }
}

impl<P: Protocol, R: Rules> World<P, R> {
    pub(super) fn enabled_ops(
        &self,
        site: SiteId,
        seat: &Seat<P, R>,
        script: &Script,
        list: &mut Vec<Action<P::Timer>>,
    ) {
        if seat.rounds > 0 {
            list.extend((0..script.demands.len()).map(|i| Action::Take(site, i)));
        }
        if seat.adds > 0 {
            list.extend((0..script.amounts.len()).map(|i| Action::Add(site, i)));
        }
        if self.common.budget.repeats == 0 {
            return;
        }
        let Ops { list: ops, calls, .. } = &self.common.ops;
        let asked = |op: usize| calls.contains(&(op, site, seat.incarnation));
        let open = ops.iter().enumerate().filter(|(op, it)| !it.answered && !asked(*op));
        list.extend(open.map(|(op, _)| Action::Repeat(op, site)));
    }

    pub(super) fn take(&mut self, site: SiteId, demand: &Demand) -> Result<(), Violation> {
        Arc::make_mut(&mut self.seats[site.index()]).rounds -= 1;
        self.issue(site, -units(demand))
    }

    pub(super) fn add(&mut self, site: SiteId, demand: &Demand) -> Result<(), Violation> {
        Arc::make_mut(&mut self.seats[site.index()]).adds -= 1;
        self.issue(site, units(demand))
    }

    fn issue(&mut self, site: SiteId, change: i64) -> Result<(), Violation> {
        let ops = &mut Arc::make_mut(&mut self.common).ops;
        ops.list.push(Issued { change, answered: false });
        let op = ops.list.len() - 1;
        self.call(op, site)
    }

    pub(super) fn repeat(&mut self, op: usize, site: SiteId) -> Result<(), Violation> {
        Arc::make_mut(&mut self.common).budget.repeats -= 1;
        self.call(op, site)
    }

    fn call(&mut self, op: usize, site: SiteId) -> Result<(), Violation> {
        let life = self.seats[site.index()].incarnation;
        let named = self.common.named;
        let ops = &mut Arc::make_mut(&mut self.common).ops;
        let (number, change) = (ops.calls.len() as u64, ops.list[op].change);
        ops.calls.push((op, site, life));
        let id = named.then_some(op as u128);
        let op = Op { pool: PoolId(0), change, id };
        self.step(site, MemberInput::Call(Call { number, op }))
    }

    pub(super) fn answered(&mut self, number: u64) -> Result<(), Violation> {
        let ops = &mut Arc::make_mut(&mut self.common).ops;
        let call = usize::try_from(number).ok().and_then(|number| ops.calls.get(number));
        let Some(&(op, ..)) = call else { return Ok(()) };
        ops.list[op].answered = true;
        let (added, taken) = (ops.sums(|_| true).0, ops.sums(|op| op.answered).1);
        if taken > ops.first + added {
            let detail = format!("{taken} of {} and {added}", ops.first);
            return Err(Violation::new("over-taken", detail));
        }
        Ok(())
    }

    /// The store has another record.
    pub(super) fn judge_record(&self) -> Result<(), Violation> {
        let counts = self.common.store.surveys.first().and_then(|survey| survey.counts.as_ref());
        let Some(counts) = counts else { return Ok(()) };
        let ops = &self.common.ops;
        let value = counts.values.get(&PoolId(0)).copied().unwrap_or_default();
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        let most = ops.first + ops.sums(|_| true).0 - ops.sums(|op| op.answered).1;
        if value > most {
            let detail = format!("a record says {value}, and there are {most} at most");
            return Err(Violation::new("inflated", detail));
        }
        if !counts.unsure.is_empty() {
            return Ok(());
        }
        let sums = sums(&counts.accounts);
        ops.judge(sums, "a record")?;
        if value != ops.first + sums.0 - sums.1 {
            let detail = format!("a record says {value} after +{} -{}", sums.0, sums.1);
            return Err(Violation::new("value", detail));
        }
        Ok(())
    }

    /// Nothing can happen any more: everything is in the accounts, and who waits lacks units.
    pub(super) fn judge_ops_at_rest(&self) -> Result<(), Violation> {
        let members: Vec<_> = self.seats.iter().filter_map(|it| it.member.as_ref()).collect();
        if members.iter().any(|member| !member.may_grant()) {
            return Err(Violation::new("progress", "a site cannot go on"));
        }
        let counts = self.common.store.surveys.first().and_then(|it| it.counts.as_ref());
        let mut books = counts.map(|counts| counts.accounts.clone()).unwrap_or_default();
        for book in members.iter().flat_map(|member| member.report().books) {
            for (pool, sites) in book.accounts.unwrap_or_default() {
                for (site, account) in sites {
                    let known = books.entry(pool).or_default().entry(site).or_default();
                    if account.length() > known.length() {
                        *known = account;
                    }
                }
            }
        }
        let ops = &self.common.ops;
        let sums = sums(&books);
        if counts.is_none_or(|counts| counts.unsure.is_empty()) {
            ops.judge(sums, "at rest")?;
        }
        let waits = |member: &&kofm_core::epoch::Member<P, R>| {
            member.epochs().phase() != Phase::Outside && !member.is_at_rest()
        };
        let sure = counts.is_none_or(|counts| counts.unsure.is_empty());
        let most = ops.list.iter().map(|op| -op.change).max().unwrap_or(0);
        if sure && members.iter().any(waits) && ops.first + sums.0 - sums.1 >= most {
            return Err(Violation::new("progress", "a P waits although there are units"));
        }
        if !self.common.store.quarantine.is_empty() {
            return Err(Violation::new("rest", "units are withheld without end"));
        }
        Ok(())
    }
}

fn units(demand: &Demand) -> i64 {
    demand.units(PoolId(0)).0.into()
}

fn sums(books: &Books) -> Sums {
    let accounts = books.get(&PoolId(0)).into_iter().flat_map(BTreeMap::values);
    let whole = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
    accounts.fold((0, 0), |(added, taken), it| {
        (added + whole(it.tally.added), taken + whole(it.tally.taken))
    })
}

/// Operations are on disk at once, where the sites have one.
pub(super) fn write_down<P: Protocol, R: Rules>(seat: &mut Seat<P, R>, memory: bool) {
    let counts = memory && P::PROFILE.serves == Service::Semaphore;
    let Some(member) = seat.member.as_ref().filter(|it| counts && it.protocol().is_some()) else {
        return;
    };
    if member.epochs().phase() != Phase::Outside {
        let own = member.accounts().own_account(PoolId(0)).cloned();
        seat.disk = Some(own.map(|own| (PoolId(0), own)).into_iter().collect());
    }
}
