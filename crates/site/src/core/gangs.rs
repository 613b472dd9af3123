//! Gangs in the core: their names, members that went away, and the barrier of those who meet.
//!
//! A gang that runs is an ordinary request over the members' pools and one hidden pool of one unit
//! for each member, its *seat*. What is added here: a request that has seats of sites that are away
//! ends, or is not renewed any more; and members that are started on hosts of their own meet at the
//! first member's site before that request is made, and leave together.
//!
//! A run goes through these states: its members gather; their request is queued; it is granted; the
//! members confirm; they run; all have left. Members confirm in two rounds. In the first each one
//! prepares its command. The second is answered at once, so a client that died during the first is
//! noticed. The command of a member starts only after this site has both confirmations of all
//! members. A run that loses a member before that gathers again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kofm_core::SiteId;

use super::plans::Edit;
use super::{Core, MAX_TTL, MIN_TTL, Responder, Timer, Todo};
use crate::api::{
    self, Answer, Code, FailedMember, Hold, JoinCall, Joined, Members, State, Submit, Want,
};
use crate::boottime::Moment;
use crate::config::SEAT;

/// Gangs of a cluster: every epoch carries them.
const MAX_GANGS: usize = 1_000;
/// How long a member's site may be away before its gang is told.
const AWAY: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(1);
/// Ends of runs that are kept for members that ask later.
const MAX_RUN_ENDS: usize = 1_000;
/// Each member confirms so many times before the first starts.
const ROUNDS: u8 = 2;

/// Members of a gang that meet here.
pub(super) struct Rally {
    run: String,
    members: Members,
    /// Who is here, by a name of its own, and when it was last heard of.
    here: BTreeMap<String, (String, Moment)>,
    /// Members that have left, in the state `running`.
    done: BTreeSet<String>,
    /// The first of them that did not end with 0.
    failed: Option<FailedMember>,
    pub(super) request: Option<u64>,
    ttl: Duration,
    /// The round of confirmations, from 1, and the members that have confirmed in it.
    round: u8,
    confirmed: BTreeSet<String>,
    /// Members may start.
    started: bool,
    /// Why it ends before all members have left.
    lost: Option<String>,
    /// Members that want to hear when something changes.
    waiting: Vec<(JoinCall, Responder)>,
}

/// How a run of a gang ended.
pub(super) struct RunEnd {
    name: String,
    run: String,
    members: Members,
    end: Result<Option<FailedMember>, String>,
}

impl Rally {
    /// What members confirm now, if its units are granted.
    fn asks_for(&self) -> Option<String> {
        self.request.filter(|_| !self.started).map(|key| format!("{key}.{}", self.round))
    }

    /// Counts what its clients can notice.
    fn news(&self) -> impl PartialEq + use<> {
        let ends = (self.failed.is_some(), self.lost.is_some());
        (self.here.len(), self.done.len(), ends, self.asks_for(), self.request, self.started)
    }
}

impl Core {
    /// Makes a gang, changes or removes it, with the next epoch.
    pub(super) fn set_gang(&mut self, name: String, members: Members, reply: Responder) {
        if !self.plan.gangs.contains_key(&name) && self.plan.gangs.len() >= MAX_GANGS {
            let text = format!("there are {MAX_GANGS} gangs; remove some");
            return self.respond(reply, Err(api::Error::new(Code::TooMany, text)));
        }
        self.edit(Edit::Gang(name, members), reply);
    }

    /// Keeps an eye on the members' sites of a request that has seats.
    pub(super) fn look_after(&mut self, key: u64) {
        let Some(request) = self.requests.get(&key) else { return };
        if request.state.is_over() {
            return;
        }
        let seats = request.want.iter().filter_map(|it| self.pools[it.0].name.strip_prefix(SEAT));
        let seats: Vec<String> = seats.map(str::to_owned).collect();
        if seats.is_empty() {
            return;
        }
        let now = self.now;
        let queued = request.state == State::Queued;
        self.start_timer(now.after(LOOK), Timer::Members(key));
        for name in seats {
            let Some(site) = self.members.iter().position(|it| **it == *name) else { continue };
            let site = SiteId(u16::try_from(site).unwrap_or(u16::MAX));
            if site == self.me || self.links.is_up(site) {
                self.away.remove(&site);
                continue;
            }
            let since = *self.away.entry(site).or_insert(now);
            if now.since(since) >= AWAY {
                let text = format!("member {name} of the gang is lost: its site does not answer");
                if queued {
                    return self.refuse(key, Code::Unreachable, text);
                }
                // Whoever works is told at its next renewal, and stops before the lease ends.
                if let Some(request) = self.requests.get_mut(&key) {
                    request.doom.get_or_insert(text);
                }
            }
        }
    }

    /// A member is here, is still here, or is done. Where it wants to wait, it is answered when
    /// something changes, and often enough to be heard of.
    pub(super) fn join(&mut self, call: &JoinCall, reply: Responder) {
        let news = self.rallies.get(&call.name).map(Rally::news);
        let answer = self.join_now(call);
        let rally = self.rallies.get_mut(&call.name);
        let changed = news != rally.as_deref().map(Rally::news);
        let early = matches!(&answer, Ok(Answer::Joined(it)) if !is_news(call, it));
        // What the member asked before is answered with this.
        let told = match rally {
            Some(rally) if call.wait && early => {
                let same = |it: &(JoinCall, Responder)| it.0.member == call.member;
                let old = rally.waiting.iter().position(same);
                let old = old.map(|place| rally.waiting.swap_remove(place).1);
                rally.waiting.push((call.clone(), reply));
                old
            }
            Some(_) | None => Some(reply),
        };
        if let Some(reply) = told {
            self.respond(reply, answer);
        }
        if changed {
            // Not the one that came: it shall hear what comes after it.
            self.rally_news(&call.name, Some(&call.member));
        }
        self.settle();
    }

    /// Answers those who wait for news of a gang.
    fn rally_news(&mut self, name: &str, but: Option<&str>) {
        let Some(rally) = self.rallies.get_mut(name) else { return };
        let (told, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut rally.waiting)
            .into_iter()
            .partition(|it| but != Some(it.0.member.as_str()));
        rally.waiting = rest;
        for (call, reply) in told {
            let answer = self.joined(&call);
            self.respond(reply, answer);
        }
    }

    /// Something became of a request; if a gang waits for it, its members hear of it.
    pub(super) fn tell_rally(&mut self, key: u64) {
        let want = self.requests.get(&key).map_or(&[][..], |request| &request.want);
        // Only gangs ask for seats.
        if !want.iter().any(|it| self.pools[it.0].name.starts_with(SEAT)) {
            return;
        }
        let rally = self.rallies.iter().find(|it| it.1.request == Some(key));
        if let Some(name) = rally.map(|it| it.0.clone()) {
            self.rally_news(&name, None);
        }
    }

    fn end_rally(&mut self, name: &str) {
        let Some(rally) = self.rallies.remove(name) else { return };
        let end = match rally.lost {
            None if rally.members.keys().all(|it| rally.done.contains(it)) => Ok(rally.failed),
            None => Err("this run of the gang is over: stop, and join again".to_owned()),
            Some(cause) => Err(cause),
        };
        let (name, run, members) = (name.to_owned(), rally.run, rally.members);
        self.gang_ends.push_back(RunEnd { name, run, members, end });
        if self.gang_ends.len() > MAX_RUN_ENDS {
            self.gang_ends.pop_front();
        }
        for (call, reply) in rally.waiting {
            let answer = self.ended(&call);
            self.respond(reply, answer);
        }
    }

    /// How the run ended that a member names.
    fn ended(&self, call: &JoinCall) -> Result<Answer, api::Error> {
        let its = |it: &&RunEnd| it.name == call.name && Some(&it.run) == call.run.as_ref();
        let told = self.gang_ends.iter().rev().find(its);
        let text = "this run of the gang is over: stop, and join again";
        let Some(told) = told.filter(|it| it.members.contains_key(&call.member)) else {
            return Err(api::Error::new(Code::Gone, text));
        };
        match &told.end {
            Ok(_) if call.leave => Ok(Answer::Done),
            Ok(failed) => {
                let joined = Joined::new(&call.name, &call.member, "ended".to_owned(), call.ttl);
                let (run, failed) = (told.run.clone(), failed.clone());
                Ok(Answer::Joined(Box::new(Joined { run, failed, ..joined })))
            }
            Err(cause) => Err(api::Error::new(Code::Gone, cause.clone())),
        }
    }

    fn join_now(&mut self, call: &JoinCall) -> Result<Answer, api::Error> {
        let now = self.now;
        if !(MIN_TTL..=MAX_TTL / 2).contains(&call.ttl) {
            return Err(api::Error::new(Code::Malformed, "`ttl` is from 100ms to 15 days"));
        }
        self.sweep(&call.name);
        if !self.rallies.contains_key(&call.name) {
            if call.run.is_some() || call.leave {
                return self.ended(call);
            }
            let rally = Rally {
                run: self.random.hex::<8>(),
                members: call.members.clone(),
                here: BTreeMap::new(),
                done: BTreeSet::new(),
                failed: None,
                request: None,
                ttl: call.ttl,
                round: 1,
                confirmed: BTreeSet::new(),
                started: false,
                lost: None,
                waiting: Vec::new(),
            };
            self.rallies.insert(call.name.clone(), rally);
            self.start_timer(now.after(call.ttl / 2), Timer::Rally(call.name.clone()));
        }
        let Some(rally) = self.rallies.get_mut(&call.name) else { return self.ended(call) };
        if call.run.as_ref().is_some_and(|run| *run != rally.run) {
            return self.ended(call);
        }
        let mine = rally.here.get(&call.member).is_none_or(|it| it.0 == call.token);
        let full = rally.request.is_some() && !rally.here.contains_key(&call.member);
        if !mine || full || rally.members != call.members {
            let text = format!("gang `{}` is on its way without you; join again later", call.name);
            return Err(api::Error::new(Code::InUse, text));
        }
        rally.here.insert(call.member.clone(), (call.token.clone(), now));
        if call.leave {
            self.leave_rally(call);
            return Ok(Answer::Done);
        }
        self.set_off(call)?;
        self.confirm(call);
        self.settle();
        self.joined(call)
    }

    /// A member confirms that it can start. Once all have, in both rounds, all may start.
    fn confirm(&mut self, call: &JoinCall) {
        let now = self.now;
        let Some(rally) = self.rallies.get_mut(&call.name) else { return };
        let request = rally.request.and_then(|key| self.requests.get(&key));
        let request = request.filter(|it| it.state == State::Granted && it.doom.is_none());
        let lease = request.and_then(|it| it.lease.as_ref());
        if lease.is_none() || rally.lost.is_some() || rally.started {
            return;
        }
        if call.confirm.is_some() && call.confirm == rally.asks_for() {
            rally.confirmed.insert(call.member.clone());
        }
        if !rally.members.keys().all(|member| rally.confirmed.contains(member)) {
            return;
        }
        if rally.round < ROUNDS {
            rally.round += 1;
            rally.confirmed.clear();
            return;
        }
        let (ttl, names) = (rally.ttl, &self.members);
        let heard = rally.here.values().all(|it| now.since(it.1) <= ttl);
        let up = rally.members.keys().all(|member| {
            let site = names.iter().position(|it| **it == **member);
            let site = site.and_then(|it| u16::try_from(it).ok()).map(SiteId);
            site.is_none_or(|site| site == self.me || self.links.is_up(site))
        });
        rally.started = heard && up;
    }

    /// Makes the request once everybody is here, and renews its lease while everybody is.
    fn set_off(&mut self, call: &JoinCall) -> Result<(), api::Error> {
        let Some(rally) = self.rallies.get(&call.name) else { return Ok(()) };
        let everybody = rally.members.keys().all(|member| rally.here.contains_key(member));
        let renewable = everybody && rally.lost.is_none();
        match rally.request {
            None if renewable => {
                let spec = Submit {
                    want: total(&rally.members),
                    // Twice what each member is given: when one is not heard of, the others are
                    // told and have stopped before the units are given away.
                    ttl: Some(rally.ttl * 2),
                    owner: call.owner.clone(),
                    principal: call.principal.clone(),
                    reason: Some(format!("gang {}", call.name)),
                    ..Submit::default()
                };
                let want = self.check(&spec, Hold::Lease)?;
                let key = self.open(spec, want, Hold::Lease);
                self.todo.push_back(Todo::Claim(key));
                self.look_after(key);
                if let Some(rally) = self.rallies.get_mut(&call.name) {
                    rally.request = Some(key);
                }
            }
            Some(key) if renewable => {
                let lease = self.requests.get(&key).and_then(|it| it.lease.as_ref());
                if let Some(id) = lease.map(|lease| lease.id.to_string())
                    && let Err(error) = self.renew(&id)
                    && let Some(rally) = self.rallies.get_mut(&call.name)
                {
                    rally.lost = Some(error.message);
                }
            }
            None | Some(_) => {}
        }
        Ok(())
    }

    fn joined(&self, call: &JoinCall) -> Result<Answer, api::Error> {
        let Some(rally) = self.rallies.get(&call.name) else {
            return Err(api::Error::new(Code::Gone, "this run of the gang is over"));
        };
        if let Some(cause) = &rally.lost {
            return Err(api::Error::new(Code::Gone, cause.clone()));
        }
        let request = rally.request.and_then(|key| self.requests.get(&key));
        let lease = request.and_then(|request| self.lease_view(request));
        let now = self.now;
        let left = request.and_then(|request| request.lease.as_ref());
        let left = left.map_or(Duration::ZERO, |lease| self.expires_in(lease, now));
        let missing = rally.members.keys().filter(|name| !rally.here.contains_key(*name));
        let state = match (request.map(|it| it.state), rally.request) {
            (Some(State::Granted), _) if !rally.started => "granted",
            (Some(State::Granted), _) if rally.done.contains(&call.member) => "done",
            (Some(State::Granted), _) => "running",
            (Some(_), _) => "queued",
            (None, Some(_)) => return Err(api::Error::new(Code::Gone, "its request is over")),
            (None, None) => "gathering",
        };
        let shares = lease.as_ref().map(|lease| api::shares(&rally.members, &lease.units));
        Ok(Answer::Joined(Box::new(Joined {
            gang: call.name.clone(),
            member: call.member.clone(),
            run: rally.run.clone(),
            state: state.to_owned(),
            missing: missing.cloned().collect(),
            units: shares.and_then(|mut it| it.remove(&call.member)).unwrap_or_default(),
            fence: lease.as_ref().map(|lease| lease.fence),
            lease: lease.as_ref().map(|lease| lease.id.clone()),
            ttl_ms: super::millis(rally.ttl),
            // What the lease and this site's right to grant allow, if that is less.
            expires_in_ms: super::millis(left.min(rally.ttl)),
            confirm: rally.asks_for().filter(|_| state == "granted"),
            failed: rally.failed.clone(),
        })))
    }

    fn leave_rally(&mut self, call: &JoinCall) {
        let (name, member) = (&call.name, &call.member);
        let Some(rally) = self.rallies.get_mut(name) else { return };
        if rally.started {
            rally.done.insert(member.clone());
            if let Some(code) = call.code.filter(|code| *code != 0) {
                let failed = || FailedMember { member: member.clone(), code };
                rally.failed.get_or_insert_with(failed);
            }
        } else {
            rally.here.remove(member);
            self.gather_again(name, format!("member {member} gave up"));
        }
        self.sweep(name);
    }

    /// No member has started: the units are given back, and the run waits for its members again.
    fn gather_again(&mut self, name: &str, cause: String) {
        let Some(rally) = self.rallies.get_mut(name).filter(|it| !it.started) else { return };
        rally.round = 1;
        rally.confirmed.clear();
        if let Some(key) = rally.request.take() {
            let state = self.requests.get(&key).map(|it| it.state);
            let granted = state == Some(State::Granted);
            self.end(key, if granted { State::Released } else { State::Cancelled }, cause);
        }
        self.rally_news(name, None);
    }

    /// Looks for members that are not heard of any more.
    pub(super) fn sweep(&mut self, name: &str) {
        let now = self.now;
        let Some(rally) = self.rallies.get_mut(name) else { return };
        let silent = |it: &(String, Moment)| now.since(it.1) > rally.ttl;
        let stale: Vec<String> =
            rally.here.iter().filter(|it| silent(it.1)).map(|it| it.0.clone()).collect();
        let state = rally.request.and_then(|key| self.requests.get(&key)).map(|it| it.state);
        let cause = rally.request.and_then(|key| self.requests.get(&key)?.cause.clone());
        match (state, rally.request) {
            (Some(State::Granted | State::Queued), Some(_)) if !rally.started => {
                let Some(late) = stale.first() else { return };
                let text = format!("member {late} of the gang was not heard of");
                rally.here.retain(|member, _| !stale.contains(member));
                self.gather_again(name, text);
                let empty = |it: &Rally| it.here.is_empty();
                if self.rallies.get(name).is_some_and(empty) {
                    self.end_rally(name);
                }
            }
            (Some(State::Granted), Some(key)) => {
                let late = stale.iter().find(|member| !rally.done.contains(*member));
                if let Some(late) = late {
                    let text = format!("member {late} of the gang is lost: it was not heard of");
                    rally.lost.get_or_insert(text);
                }
                let over = |member: &String| rally.done.contains(member) || stale.contains(member);
                if rally.members.keys().all(|member| rally.done.contains(member)) {
                    self.end_rally(name);
                    self.end(key, State::Released, "all members are done");
                } else if rally.here.keys().all(over) {
                    // Nobody is left; the lease ends by itself.
                    self.end_rally(name);
                }
            }
            (Some(State::Queued), _) => {}
            (Some(_), _) | (None, Some(_)) => {
                // It ended otherwise: those who ask are told, until nobody does.
                let text = cause.unwrap_or(Cow::Borrowed("its request is over")).into_owned();
                rally.lost.get_or_insert(text);
                rally.here.retain(|member, _| !stale.contains(member));
                if rally.here.keys().all(|member| rally.done.contains(member)) {
                    self.end_rally(name);
                }
            }
            (None, None) => {
                rally.here.retain(|member, _| !stale.contains(member));
                if rally.here.is_empty() {
                    self.end_rally(name);
                }
            }
        }
    }

    /// From time to time, while members meet.
    pub(super) fn rally_again(&mut self, name: String) {
        self.sweep(&name);
        // Those who wait are heard of when they ask again.
        self.rally_news(&name, None);
        if let Some(rally) = self.rallies.get(&name) {
            let moment = self.now.after(rally.ttl / 2);
            self.start_timer(moment, Timer::Rally(name));
        }
    }
}

/// Whether an answer tells a member something that it has not heard, so that it must not wait.
fn is_news(call: &JoinCall, joined: &Joined) -> bool {
    match joined.state.as_str() {
        "gathering" | "queued" | "done" => false,
        "granted" => call.confirm != joined.confirm,
        "running" => call.confirm.is_some() || call.run.is_none() || joined.failed.is_some(),
        _ => true,
    }
}

/// What a gang comes to: its members' pools, and their seats.
pub fn total(members: &Members) -> Want {
    let mut total = Want::new();
    for (member, want) in members {
        total.insert(format!("{SEAT}{member}"), 1);
        for (pool, units) in want {
            let sum = total.entry(pool.clone()).or_insert(0);
            *sum = sum.saturating_add(*units);
        }
    }
    total
}
