//! Clients that behave like real ones, and what they may rely on.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::time::Duration;

use kofm_site::api::{self, Answer, Call, Code, Hold, State, Submit};

use super::machine::{Reply, Stimulus, Told};
use super::{MILLISECOND, Step, Violation, World, fail};

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Character {
    /// Waits, renews in time and releases.
    Patient,
    /// Renews at the last moment that it may rely on, and releases after its lease has ended.
    Late,
    /// Neither renews nor releases.
    Silent,
    /// Goes away while it waits, without a word.
    Crasher,
    /// Cancels while it waits; releases twice.
    Fickle,
    /// Is beside one site and knows the address of no other: it reaches that site while the site is
    /// cut off from all others. Its leases are long.
    Local,
}

/// How long a client waits for an answer of a site that it does not reach.
const PATIENCE: u64 = 250 * MILLISECOND;

impl Character {
    pub(super) const fn draw(number: u64) -> Self {
        match number {
            0 => Self::Late,
            1 => Self::Silent,
            2 => Self::Crasher,
            3 => Self::Fickle,
            4 | 5 => Self::Local,
            _ => Self::Patient,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Request,
    Renewal,
    Release,
    Cancel,
}

#[derive(Debug)]
struct Pending {
    site: usize,
    /// When the client sent it.
    sent: u64,
    asked: Asked,
    reply: Reply,
    /// The call or its answer does not arrive.
    lost: bool,
}

#[derive(Clone, Debug)]
struct Held {
    site: usize,
    /// The incarnation of the site that last renewed it.
    incarnation: u64,
    /// The last renewal has no answer, or none that says whether the lease goes on.
    unanswered: bool,
    lease: String,
    /// When it is going to be released.
    release: u64,
    ttl: u64,
}

#[derive(Debug)]
pub(super) struct Client {
    character: Character,
    /// The only site that it knows.
    home: Option<usize>,
    /// Parts per thousand that its clock runs fast.
    rate: i64,
    pending: Option<Pending>,
    held: Option<Held>,
    waits_for: Option<(usize, String)>,
    /// How many more sites it asks for a request that has moved.
    looks: usize,
    requests: u64,
}

impl Client {
    pub(super) fn new(character: Character, place: usize, rate: i64) -> Self {
        let home = (character == Character::Local).then_some(place);
        Self {
            character,
            home,
            rate,
            pending: None,
            held: None,
            waits_for: None,
            looks: 0,
            requests: 0,
        }
    }

    pub(super) fn calls(&self, site: usize) -> bool {
        self.pending.as_ref().is_some_and(|it| it.site == site)
            || self.waits_for.as_ref().is_some_and(|it| it.0 == site)
    }

    /// The site that it called is gone.
    pub(super) fn lose_call(&mut self) {
        self.pending = None;
        self.waits_for = None;
    }

    /// The site that it called is dead: it asks others for the request that it waits for.
    pub(super) fn look_elsewhere(&mut self, site: usize, sites: usize) {
        let waits = self.waits_for.take().filter(|_| self.home.is_none());
        self.lose_call();
        if let Some((_, id)) = waits {
            self.waits_for = Some(((site + 1) % sites, id));
            self.looks = 20 * sites;
        }
    }

    /// How long so much time of its clock is.
    fn real(&self, time: u64) -> u64 {
        let time = i128::from(time) * 1000 / (1000 + i128::from(self.rate));
        u64::try_from(time).unwrap_or(0)
    }
}

/// A unit that a client may rely on having, until a moment.
#[derive(Clone, Debug)]
struct Certain {
    client: usize,
    lease: String,
    until: u64,
    fence: u64,
}

/// Laws S1 to S3: what clients may rely on at every moment.
#[derive(Debug, Default)]
pub(super) struct Holds {
    units: BTreeMap<(String, String), Certain>,
}

impl Holds {
    /// A client was told that it has a lease until a moment.
    fn hold(
        &mut self,
        time: u64,
        client: usize,
        lease: &api::Lease,
        until: u64,
    ) -> Result<(), Violation> {
        for (pool, units) in &lease.units {
            for unit in units {
                let key = (pool.clone(), unit.clone());
                let certain =
                    Certain { client, lease: lease.id.clone(), until, fence: lease.fence };
                if let Some(old) = self.units.get(&key).filter(|it| it.lease != lease.id) {
                    if old.until > time && until > time {
                        return Err(fail(format!(
                            "S2: {pool}/{unit} is held by client {} until {} and by client \
                             {client} from {time}",
                            old.client, old.until
                        )));
                    }
                    if old.fence >= lease.fence && old.client != client {
                        return Err(fail(format!(
                            "S3: {pool}/{unit} has fence {} after fence {}",
                            lease.fence, old.fence
                        )));
                    }
                }
                self.units.insert(key, certain);
            }
        }
        Ok(())
    }

    /// A client does not rely on its lease any more.
    fn end(&mut self, time: u64, lease: &str) {
        for certain in self.units.values_mut().filter(|it| it.lease == lease) {
            certain.until = certain.until.min(time);
        }
    }

    fn relies(&self, time: u64, lease: &str) -> bool {
        self.units.values().any(|it| it.lease == lease && it.until > time)
    }

    pub(super) fn holders(&self, time: u64) -> BTreeSet<usize> {
        self.units.values().filter(|it| it.until > time).map(|it| it.client).collect()
    }
}

impl World {
    /// Whether what a client sends to a site arrives there.
    fn reaches(&self, client: usize, site: usize) -> bool {
        !self.hosts[site].cut || self.clients[client].home == Some(site)
    }

    /// A site is cut off: calls under way get no answer, but for those of clients beside it.
    pub(super) fn lose_calls(&mut self, site: usize) {
        for number in 0..self.clients.len() {
            let outside = !self.reaches(number, site);
            let pending = self.clients[number].pending.as_mut().filter(|it| it.site == site);
            if let Some(pending) = pending.filter(|it| outside && !it.lost) {
                pending.lost = true;
                let sent = pending.sent;
                self.at(PATIENCE, Step::GiveUp { client: number, sent });
            }
        }
    }

    /// A client does not wait any longer for the answer of a call that it sent then.
    pub(super) fn client_gives_up(&mut self, number: usize, sent: u64) {
        let client = &mut self.clients[number];
        if client.pending.as_ref().is_some_and(|it| it.lost && it.sent == sent) {
            client.lose_call();
            self.at(0, Step::Client(number));
        }
    }

    fn call(&mut self, client: usize, site: usize, asked: Asked, call: Call) {
        let (message, reply) = Reply::of(call);
        let sent = self.time;
        let lost = !self.reaches(client, site);
        let pending = Pending { site, sent, asked, reply, lost };
        self.clients[client].pending = Some(pending);
        if lost {
            return self.at(PATIENCE, Step::GiveUp { client, sent });
        }
        let delay = self.delay();
        self.later(delay, site, message);
    }

    /// A client does something: it was idle for long enough, or its lease wants something.
    pub(super) fn client_acts(&mut self, number: usize) {
        let time = self.time;
        if self.clients[number].pending.is_some() {
            let client = &mut self.clients[number];
            if client.character == Character::Crasher && client.held.is_none() {
                // Gone while it waits: its request stays. Many of them would leave no units for
                // others.
                client.lose_call();
                let delay = self.below(6000 * MILLISECOND);
                self.at(delay, Step::Client(number));
            }
            return;
        }
        if let Some(held) = self.clients[number].held.clone() {
            return self.keep(number, &held);
        }
        if let Some((site, id)) = self.clients[number].waits_for.take() {
            if self.clients[number].character == Character::Fickle {
                return self.call(number, site, Asked::Cancel, Call::Cancel(id));
            }
            if self.hosts[site].machine.is_none() && self.clients[number].looks > 0 {
                self.clients[number].looks -= 1;
                self.clients[number].waits_for = Some(((site + 1) % self.case.sites, id));
                return self.at(30 * MILLISECOND, Step::Client(number));
            }
            let call = Call::Watch { id: id.clone(), wait: Duration::from_secs(20) };
            self.clients[number].waits_for = Some((site, id));
            return self.call(number, site, Asked::Request, call);
        }
        if self.quiet {
            return;
        }
        let site = self.some_site();
        let site = self.clients[number].home.unwrap_or(site);
        if self.hosts[site].machine.is_none() {
            let delay = 50 * MILLISECOND + self.below(200 * MILLISECOND);
            return self.at(delay, Step::Client(number));
        }
        let pools: Vec<(String, u32)> =
            self.case.pools.iter().map(|(name, pool)| (name.clone(), pool.units)).collect();
        let first = usize::try_from(self.below(pools.len() as u64)).unwrap_or(0);
        let mut want = api::Want::default();
        for (name, units) in pools.into_iter().skip(first) {
            // Mostly one: claims that want most of a pool leave it idle until they have it.
            let most = if self.below(6) == 0 { units } else { 1 };
            let units = 1 + u32::try_from(self.below(u64::from(most))).unwrap_or(0);
            want.insert(name, units);
            if self.below(5) > 0 {
                break;
            }
        }
        // Shorter than a site lease, or much longer: only then one of the two ends the promise.
        let character = self.clients[number].character;
        let longest = match character {
            Character::Local => 6000,
            Character::Silent if self.below(2) == 0 => 6000,
            Character::Silent | Character::Late => 600,
            Character::Patient | Character::Crasher | Character::Fickle => 2000,
        };
        let ttl = Duration::from_millis(300 + self.below(longest));
        let wait = (self.below(4) == 0).then(|| Duration::from_millis(800));
        let site = self.taken_at(number, site, &want);
        let spec = Submit { want, ttl: Some(ttl), wait, ..Submit::default() };
        self.clients[number].requests += 1;
        let call = Call::Submit { spec, fresh: true, hold: Hold::Lease, patience: None };
        self.call(number, site, Asked::Request, call);
        if self.clients[number].character == Character::Crasher {
            let delay = self.below(600 * MILLISECOND);
            self.at(delay, Step::Client(number));
        }
        debug_assert!(time <= self.time, "time does not go back");
    }

    /// The site that takes a request: the one that is asked, or if that one does not share the
    /// pools, one that does. A client that knows one site only is refused there.
    fn taken_at(&mut self, client: usize, asked: usize, want: &api::Want) -> usize {
        let pools = &self.case.pools;
        let shares = |site: &usize| {
            let name = format!("s{site}");
            want.keys().all(|pool| pools.get(pool).is_some_and(|it| it.scope.has(&name, "")))
        };
        let sites: Vec<usize> = (0..self.case.sites).filter(shares).collect();
        let home = self.clients[client].home.is_some();
        if home || sites.is_empty() || sites.contains(&asked) {
            return asked;
        }
        let place = self.below(sites.len() as u64);
        sites[usize::try_from(place).unwrap_or(0)]
    }

    /// A holder renews or releases.
    fn keep(&mut self, number: usize, held: &Held) {
        let time = self.time;
        if !self.holds.relies(time, &held.lease)
            && self.clients[number].character != Character::Late
        {
            self.clients[number].held = None;
            return self.think(number);
        }
        if time >= held.release || self.quiet {
            self.holds.end(time, &held.lease);
            let call = Call::Release(held.lease.clone());
            return self.call(number, held.site, Asked::Release, call);
        }
        let mut site = held.site;
        if self.hosts[site].machine.is_none() || held.unanswered {
            // Its site does not answer: any other may know where the lease goes on.
            let any = self.some_site();
            site = self.clients[number].home.unwrap_or(any);
        }
        if self.hosts[site].machine.is_none() {
            return self.at(20 * MILLISECOND, Step::Client(number));
        }
        if let Some(held) = &mut self.clients[number].held {
            held.unanswered = true;
        }
        self.call(number, site, Asked::Renewal, Call::Renew(held.lease.clone()));
    }

    fn think(&mut self, number: usize) {
        let delay = self.below(200 * MILLISECOND);
        self.at(delay, Step::Client(number));
    }

    /// A client that leaves leases behind comes back later.
    fn rest(&mut self, number: usize) {
        let delay = self.below(5000 * MILLISECOND);
        self.at(delay, Step::Client(number));
    }

    /// Hands answers to clients that wait for this site.
    pub(super) fn ask_clients(&mut self, site: usize) {
        for number in 0..self.clients.len() {
            let client = &mut self.clients[number];
            let pending = client.pending.as_mut().filter(|it| it.site == site && !it.lost);
            let Some(pending) = pending else { continue };
            let answer = match pending.reply.take() {
                Told::Answer(answer) => answer,
                Told::Nothing => continue,
                Told::Lost => {
                    client.lose_call();
                    self.think(number);
                    continue;
                }
            };
            let Some(pending) = client.pending.take() else { continue };
            (number, format!("{answer:?}")).hash(&mut self.told);
            if let Err(violation) = self.on_answer(number, &pending, answer) {
                self.violation.get_or_insert(violation);
            }
        }
    }

    fn on_answer(
        &mut self,
        number: usize,
        pending: &Pending,
        answer: Result<Answer, api::Error>,
    ) -> Result<(), Violation> {
        let site = pending.site;
        match (pending.asked, answer) {
            (Asked::Request, Ok(Answer::Request(request))) => {
                self.clients[number].waits_for = None;
                self.moved += u64::from(std::mem::take(&mut self.clients[number].looks) > 0);
                match (request.state, request.lease) {
                    (State::Queued, _) => {
                        self.clients[number].waits_for = Some((site, request.id));
                        let delay = self.below(30 * MILLISECOND);
                        self.at(delay, Step::Client(number));
                    }
                    (State::Granted, Some(lease)) => {
                        self.check_units(&request.want, &lease)?;
                        self.begin(number, pending, &lease)?;
                    }
                    _ => self.think(number),
                }
            }
            (Asked::Renewal, Ok(Answer::Lease(lease))) => self.renewed(number, pending, &lease)?,
            (Asked::Renewal, Err(error)) if error.error == Code::Gone => {
                let held = self.clients[number].held.take();
                let relies = |it: &Held| self.holds.relies(self.time, &it.lease);
                if let Some(held) = held.filter(relies) {
                    return Err(fail(format!(
                        "S5: client {number} relies on {} and is told that it is over: {}",
                        held.lease, error.message
                    )));
                }
                self.think(number);
            }
            // It is not known now; the client tries again while it may rely on its lease.
            (Asked::Renewal, _) => {
                self.at(50 * MILLISECOND, Step::Client(number));
            }
            (Asked::Release, _) => {
                let held = self.clients[number].held.take();
                if self.clients[number].character == Character::Fickle
                    && let Some(held) = held
                {
                    let call = Call::Release(held.lease);
                    self.call(number, site, Asked::Cancel, call);
                } else {
                    self.think(number);
                }
            }
            // The site leaves, and another one has the request; or it was only asked too early.
            (Asked::Request, Err(error)) if self.may_be_elsewhere(number, site, &error) => {
                self.at(30 * MILLISECOND, Step::Client(number));
            }
            (Asked::Request | Asked::Cancel, _) => {
                self.clients[number].waits_for = None;
                self.think(number);
            }
        }
        Ok(())
    }

    /// Has a client that waits look for its request at the next site. False if it has none, or has
    /// asked everywhere.
    fn may_be_elsewhere(&mut self, number: usize, site: usize, error: &api::Error) -> bool {
        let sites = self.case.sites;
        let client = &mut self.clients[number];
        let Some((_, id)) = client.waits_for.take().filter(|_| client.home.is_none()) else {
            return false;
        };
        let moves = error.error == Code::Unreachable;
        let looks = error.error == Code::UnknownRequest && client.looks > 0;
        let enough = if moves { 3 * sites } else { 0 };
        client.looks = client.looks.saturating_sub(1).max(enough);
        if moves || looks {
            client.waits_for = Some(((site + 1) % sites, id));
        }
        moves || looks
    }

    /// Law S4: a grant names exactly the units that were asked for.
    fn check_units(&self, want: &api::Want, lease: &api::Lease) -> Result<(), Violation> {
        for (pool, &units) in want {
            let list = lease.units.get(pool).cloned().unwrap_or_default();
            let distinct: BTreeSet<&String> = list.iter().collect();
            let most = self.case.pools.get(pool).map_or(0, |it| it.units);
            let exist = list.iter().all(|it| it.parse::<u32>().is_ok_and(|it| it < most));
            if list.len() != units as usize || distinct.len() != list.len() || !exist {
                return Err(fail(format!("S4: {units} of {pool} asked, granted {list:?}")));
            }
        }
        Ok(())
    }

    fn begin(
        &mut self,
        number: usize,
        pending: &Pending,
        lease: &api::Lease,
    ) -> Result<(), Violation> {
        self.grants += 1;
        let term = self.clients[number].real(lease.expires_in_ms * MILLISECOND);
        let until = pending.sent + term;
        let longest = if self.below(4) == 0 { 5000 } else { 300 } * MILLISECOND;
        let release = self.time + self.below(longest);
        let ttl = lease.ttl_ms * MILLISECOND;
        let incarnation = self.incarnation(pending.site);
        let (site, lease_id, unanswered) = (pending.site, lease.id.clone(), false);
        let held = Held { site, incarnation, unanswered, lease: lease_id, release, ttl };
        self.holds.hold(self.time, number, lease, until)?;
        let forgets = self.below(2) == 0;
        match self.clients[number].character {
            Character::Silent => self.rest(number),
            Character::Crasher if forgets => self.rest(number),
            Character::Patient
            | Character::Late
            | Character::Fickle
            | Character::Crasher
            | Character::Local => {
                self.clients[number].held = Some(held);
                self.next_renewal(number, until);
            }
        }
        Ok(())
    }

    fn renewed(
        &mut self,
        number: usize,
        pending: &Pending,
        lease: &api::Lease,
    ) -> Result<(), Violation> {
        if !self.holds.relies(self.time, &lease.id) {
            // The answer has come after the end of the lease.
            self.clients[number].held = None;
            self.think(number);
            return Ok(());
        }
        let term = self.clients[number].real(lease.expires_in_ms * MILLISECOND);
        let until = pending.sent + term;
        self.holds.hold(self.time, number, lease, until)?;
        let now = self.incarnation(pending.site);
        if let Some(held) = &mut self.clients[number].held {
            self.adopted += u64::from(held.site != pending.site);
            self.carried += u64::from(held.site == pending.site && held.incarnation != now);
            (held.site, held.incarnation, held.unanswered) = (pending.site, now, false);
        }
        self.next_renewal(number, until);
        Ok(())
    }

    fn next_renewal(&mut self, number: usize, until: u64) {
        let client = &self.clients[number];
        let Some(held) = &client.held else { return };
        let left = until.saturating_sub(self.time);
        let delay = match client.character {
            Character::Late => left / 10 * 9,
            Character::Patient
            | Character::Silent
            | Character::Crasher
            | Character::Fickle
            | Character::Local => left.min(held.ttl) / 3,
        };
        let release = held.release.saturating_sub(self.time);
        let late = u64::from(client.character == Character::Late) * left;
        self.at(delay.min(release.max(late)).max(MILLISECOND), Step::Client(number));
    }

    /// A site is asked for every unit of every pool at once, and must grant them.
    pub(super) fn demand_everything(&mut self, site: usize) -> Result<(), Violation> {
        let name = format!("s{site}");
        let shared = self.case.pools.iter().filter(|it| it.1.scope.has(&name, ""));
        let want: api::Want = shared.map(|(name, it)| (name.clone(), it.units)).collect();
        if want.is_empty() {
            return Ok(());
        }
        let spec = Submit { want, ttl: Some(Duration::from_secs(5)), ..Submit::default() };
        let patience = Some(Duration::from_secs(8));
        let call = Call::Submit { spec, fresh: true, hold: Hold::Lease, patience };
        let (message, mut reply) = Reply::of(call);
        self.input(site, Stimulus::Call(message));
        self.advance(9_000 * MILLISECOND)?;
        let lease = match reply.take() {
            Told::Answer(Ok(Answer::Request(request))) => {
                let (state, claims) = (request.state, request.blocked_by.len());
                let text = || format!("L3: s{site} does not grant: {state:?} behind {claims}");
                request.lease.ok_or_else(|| fail(text()))?
            }
            Told::Answer(other) => {
                return Err(fail(format!("L3: s{site} does not grant: {other:?}")));
            }
            Told::Nothing | Told::Lost => {
                return Err(fail(format!("L3: s{site} does not answer")));
            }
        };
        // It has expired by now, unless the site's right to grant was shorter.
        let (message, _reply) = Reply::of(Call::Release(lease.id));
        self.input(site, Stimulus::Call(message));
        self.advance(6_000 * MILLISECOND)
    }
}
