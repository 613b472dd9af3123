//! Clients of semaphores, also when their site dies under them.
//!
//! A client takes units, works, and adds them again. Each operation has an id, and is called again,
//! at any site, until it is answered: in the end the values are exact. Every site has a disk, where
//! each operation is before it is answered; a site that is not in the record may lose it.

use kofm_core::epoch::{Books, Call, Member, MemberInput, Op, Rules, keepers};
use kofm_core::parts::SiteSet;
use kofm_core::{Demand, Fence, PoolId, Protocol, SiteId, Stamp};

use super::{Event, Storm};
use crate::seeded::draw_one;
use crate::span::{DELAY, Time};

/// The stamps by which the oracle knows operations: no claim has one.
const FIRST: u64 = 1 << 62;

/// The operations of all clients.
pub(super) struct Ops {
    clients: Vec<Option<Doing>>,
    /// Operations, and calls, so far.
    issued: u64,
    calls: u64,
    /// Units of all operations that were answered, by semaphore.
    sums: Vec<i64>,
}

#[derive(Clone, Copy)]
struct Doing {
    id: u64,
    op: Op,
    /// The site that is called, in which life, and by which number.
    at: SiteId,
    life: u64,
    call: Option<u64>,
    since: Time,
    /// The oracle's number of a P.
    number: Option<u32>,
}

impl Ops {
    /// For this number of clients.
    pub(super) fn new(clients: usize) -> Self {
        Self { clients: vec![None; clients], issued: 0, calls: 0, sums: Vec::new() }
    }

    pub(super) fn are_done(&self) -> bool {
        self.clients.iter().all(Option::is_none)
    }
}

impl<P: Protocol, R: Rules> Storm<'_, P, R> {
    /// Adds enough for the largest P.
    pub(super) fn fill_semaphores(&mut self) {
        if P::PROFILE.serves != kofm_core::Service::Semaphore {
            return;
        }
        let pools = self.setup.cluster.pools.clone();
        self.ops.sums = vec![0; pools.len()];
        for (pool, units) in (0..).map(PoolId).zip(pools) {
            let more = self.setup.k.1.saturating_sub(units.0);
            if more > 0 {
                let op = Op { pool, change: more.into(), id: None };
                self.ops.clients.push(None);
                let client = self.ops.clients.len() - 1;
                self.schedule(self.now, Event::Return { client, op });
            }
        }
    }

    pub(super) fn begin_op(&mut self, client: usize) {
        if self.remaining == 0 || self.ops.clients[client].is_some() {
            return;
        }
        self.remaining -= 1;
        self.last_claim = self.now;
        self.report.requests += 1;
        let demand = draw_one(self.setup, &mut self.demands);
        let part = demand.parts().next();
        let Some((pool, units)) = part else { return };
        self.issue(client, Op { pool, change: -i64::from(units.0), id: None });
    }

    /// A client calls for the first time.
    pub(super) fn issue(&mut self, client: usize, op: Op) {
        let id = self.ops.issued;
        self.ops.issued += 1;
        let units = u32::try_from(op.change.unsigned_abs()).expect("it came from 32 bits");
        let demand = Demand::one(op.pool, units);
        let number = (op.change < 0).then(|| {
            let number = self.oracle.claimed(stamp(self.home(client), id), &demand);
            self.report.charges.push(0);
            number
        });
        if op.change > 0 {
            // It may have an effect from now on.
            self.oracle.added(&demand);
        }
        let op = Op { id: Some(u128::from(id)), ..op };
        let (at, since) = (self.home(client), self.now);
        let doing = Doing { id, op, at, life: 0, call: None, since, number };
        self.ops.clients[client] = Some(doing);
        self.call_again(client, id);
    }

    /// A client calls again, perhaps at another site; or later, where that does not answer.
    pub(super) fn call_again(&mut self, client: usize, id: u64) {
        let Some(mut doing) = self.ops.clients[client].filter(|doing| doing.id == id) else {
            return;
        };
        if let Some(call) = doing.call.take() {
            // Half of the sites hear that their client has gone.
            if self.times.below(2) == 0 && self.takes_calls(doing.at, Some(doing.life)) {
                self.step(doing.at, MemberInput::GiveUp(call));
                self.catch_up(doing.at);
            }
            let site = self.times.below(self.places.len() as u64);
            doing.at = SiteId(u16::try_from(site).expect("below the number of sites"));
        }
        self.check_if_awake(doing.at);
        let ready = self.takes_calls(doing.at, None);
        doing.life = self.places[doing.at.index()].life;
        if ready {
            doing.call = Some(self.ops.calls);
            self.ops.calls += 1;
        } else {
            let site = self.times.below(self.places.len() as u64);
            doing.at = SiteId(u16::try_from(site).expect("below the number of sites"));
        }
        self.ops.clients[client] = Some(doing);
        let pause = if ready { 40 + self.times.below(80) } else { 5 };
        self.schedule(self.now + pause * DELAY, Event::Call { client, id });
        if let Some(number) = doing.call {
            self.step(doing.at, MemberInput::Call(Call { number, op: doing.op }));
            self.catch_up(doing.at);
        }
    }

    fn check_if_awake(&mut self, site: SiteId) {
        if self.places[site.index()].paused <= self.now {
            self.check_lease(site);
        }
    }

    /// Whether a site answers clients now, in this life.
    fn takes_calls(&self, site: SiteId, life: Option<u64>) -> bool {
        let place = &self.places[site.index()];
        let awake = place.paused <= self.now && life.is_none_or(|life| life == place.life);
        awake && self.member(site).is_some_and(Member::may_grant)
    }

    /// A call is answered: its client hears it if it still waits there.
    pub(super) fn answered(&mut self, site: SiteId, call: u64) {
        let life = self.places[site.index()].life;
        let waits = |doing: &Doing| (doing.call, doing.at, doing.life) == (Some(call), site, life);
        let place = self.ops.clients.iter().position(|it| it.as_ref().is_some_and(waits));
        let Some(client) = place else { return };
        let Some(doing) = self.ops.clients[client].take() else { return };
        self.ops.sums[doing.op.pool.index()] += doing.op.change;
        let Some(number) = doing.number else {
            if client < self.clients.len() {
                self.think(client);
            }
            return;
        };
        let claim = stamp(self.home(client), doing.id);
        self.oracle.granted(claim, Fence(doing.id + 1), &[]);
        self.report.waits.push(self.now - doing.since);
        self.report.granted.push(number);
        let op = Op { change: -doing.op.change, id: None, ..doing.op };
        let hold = self.setup.hold.draw(&mut self.times);
        self.schedule(self.now + hold, Event::Return { client, op });
    }

    /// Operations are on the disk of their site before they are answered.
    pub(super) fn write_down(&mut self, site: SiteId) {
        let pools = self.setup.cluster.pools.len();
        let place = &mut self.places[site.index()];
        let Some(member) = place.member.as_ref().filter(|member| member.protocol().is_some())
        else {
            return;
        };
        if P::PROFILE.serves == kofm_core::Service::Semaphore {
            let own = |pool| Some((pool, member.accounts().own_account(pool)?.clone()));
            let own = (0..).map(PoolId).take(pools).filter_map(own).collect();
            place.disk = Some(own);
        }
    }

    /// A site that the others go on without may come back with an empty disk.
    pub(super) fn lose_disk(&mut self, site: SiteId) {
        if P::PROFILE.serves != kofm_core::Service::Semaphore {
            return;
        }
        let counts = self.store.surveys.first().and_then(|survey| survey.counts.as_ref());
        let needed = counts.is_none_or(|counts| counts.unsure.contains(site));
        let out = !self.store.members.contains_key(&site);
        if out && !needed && self.weather.below(2) == 0 {
            self.place(site).disk = None;
        }
    }

    /// Whether enough keepers would be left in the life in which they are in the record.
    pub(super) fn may_lose(&self, site: SiteId) -> bool {
        let Some(survey) = self.store.surveys.first() else { return true };
        let lives = |it: &(&SiteId, &u64)| {
            let place = &self.places[it.0.index()];
            *it.0 != site && place.member.is_some() && place.life == *it.1 && !place.departed
        };
        let left: SiteSet = self.store.members.iter().filter(lives).map(|it| *it.0).collect();
        P::PROFILE.serves != kofm_core::Service::Semaphore
            || keepers::meet_every_majority(&survey.keepers, &left)
    }

    /// Whether the values are known.
    pub(super) fn is_sure(&self) -> bool {
        let counts = self.store.surveys.first().and_then(|survey| survey.counts.as_ref());
        counts.is_none_or(|counts| counts.unsure.is_empty())
    }

    /// No record has a P without the V that it used.
    pub(super) fn judge_record(&mut self) {
        let counts = self.store.surveys.first().and_then(|survey| survey.counts.as_ref());
        let Some(counts) = counts.filter(|counts| counts.unsure.is_empty()) else { return };
        let mut wrong = Vec::new();
        for (pool, &units) in (0..).map(PoolId).zip(&self.setup.cluster.pools) {
            let accounts = counts.accounts.get(&pool).into_iter().flat_map(|it| it.values());
            let sum: i128 =
                accounts.map(|it| i128::from(it.tally.added) - i128::from(it.tally.taken)).sum();
            if i128::from(units.0) + sum < 0 {
                wrong.push(format!("a record has {units} and {sum} of {pool}"));
            }
        }
        for detail in wrong {
            self.oracle.violate("value", detail);
        }
    }

    /// All operations were answered: the accounts have each of them once.
    pub(super) fn judge_values(&self) -> Vec<(&'static str, String)> {
        let counts = self.store.surveys.first().and_then(|survey| survey.counts.as_ref());
        let mut books: Books = counts.map(|counts| counts.accounts.clone()).unwrap_or_default();
        let living = self.places.iter().filter_map(|place| place.member.as_ref());
        for book in living.flat_map(|member| member.report().books) {
            for (pool, sites) in book.accounts.unwrap_or_default() {
                for (site, account) in sites {
                    let known = books.entry(pool).or_default().entry(site).or_default();
                    if account.length() > known.length() {
                        *known = account;
                    }
                }
            }
        }
        let mut wrong = Vec::new();
        for (pool, &due) in (0..).map(PoolId).zip(&self.ops.sums) {
            let accounts = books.get(&pool).into_iter().flat_map(|sites| sites.values());
            let sum: i128 =
                accounts.map(|it| i128::from(it.tally.added) - i128::from(it.tally.taken)).sum();
            if sum != i128::from(due) && self.ops.are_done() {
                let detail = format!("{pool} was changed by {sum}, and clients by {due}");
                wrong.push(("value", detail));
            }
        }
        wrong
    }
}

const fn stamp(site: SiteId, id: u64) -> Stamp {
    Stamp { time: FIRST + id, site }
}
