//! Pools whose units only a person frees, when sites are lost for good: processes in this world
//! have no disks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kofm_site::api::{self, Answer, Call, Hold, OnExpiry, State, Submit};

use super::machine::{Reply, Told};
use super::{Case, MILLISECOND, Mutant, PoolConfig, Violation, World, fail};

const UNITS: u32 = 2;

/// The course of one run.
#[derive(Debug, Default)]
struct Story {
    /// Leases of which clients were told and that were not released, by their units.
    told: BTreeMap<String, api::Lease>,
    lost: BTreeSet<usize>,
    waiting: Vec<(usize, Reply)>,
}

impl World {
    fn ask(&mut self, site: usize, call: Call) -> Reply {
        let (message, reply) = Reply::of(call);
        let delay = self.delay();
        self.later(delay, site, message);
        reply
    }

    /// The answer, if it comes soon.
    fn answer(&mut self, mut reply: Reply) -> Result<Option<Answer>, Violation> {
        for _ in 0..200 {
            self.advance(10 * MILLISECOND)?;
            if let Told::Answer(answer) = reply.take() {
                return Ok(answer.ok());
            }
        }
        Ok(None)
    }

    fn submit(&mut self, site: usize) -> Reply {
        let want = [("slot".to_owned(), 1)].into();
        let (ttl, wait) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(5)));
        let spec = Submit { want, ttl, wait, ..Submit::default() };
        let patience = Some(Duration::from_secs(6));
        self.ask(site, Call::Submit { spec, fresh: true, hold: Hold::Lease, patience })
    }
}

impl Story {
    fn living(&self, world: &World) -> Vec<usize> {
        (0..world.case.sites).filter(|site| !self.lost.contains(site)).collect()
    }

    /// Takes the answers that have come: no unit is granted twice.
    fn listen(&mut self, world: &mut World) -> Result<(), Violation> {
        let mut open = Vec::new();
        for (site, mut reply) in std::mem::take(&mut self.waiting) {
            match reply.take() {
                Told::Answer(Ok(Answer::Request(request))) if request.state == State::Granted => {
                    let lease =
                        request.lease.ok_or_else(|| fail("a grant without lease".into()))?;
                    for unit in &lease.units["slot"] {
                        if let Some(other) = self.told.get(unit) {
                            let (old, new) = (&other.name, &lease.name);
                            let text = format!("unit {unit} of {old} was granted as {new}");
                            return Err(fail(text));
                        }
                        self.told.insert(unit.clone(), lease.clone());
                    }
                }
                Told::Nothing => open.push((site, reply)),
                Told::Answer(_) | Told::Lost => {}
            }
        }
        self.waiting = open;
        world.advance(MILLISECOND)
    }

    fn wait(&mut self, world: &mut World, milliseconds: u64) -> Result<(), Violation> {
        for _ in 0..milliseconds {
            self.listen(world)?;
        }
        Ok(())
    }

    fn lose(&mut self, world: &mut World, site: usize) {
        world.kill(site);
        self.lost.insert(site);
    }

    /// All leases that the sites list, with the site that has each.
    fn list(&self, world: &mut World) -> Result<Vec<(usize, api::Lease)>, Violation> {
        let mut list = Vec::new();
        for site in self.living(world) {
            let reply = world.ask(site, Call::Leases { after: None });
            if let Some(Answer::Leases(leases)) = world.answer(reply)? {
                list.extend(leases.into_iter().map(|lease| (site, lease)));
            }
        }
        Ok(list)
    }
}

/// Sites grant both units and some of them are lost, at any moment; a person frees the rest.
/// Returns the leases that clients were told of.
pub fn story(
    seed: u64,
    sites: usize,
    losses: u64,
    mutant: Option<Mutant>,
) -> Result<u64, Violation> {
    let on_expiry = if seed.is_multiple_of(2) { OnExpiry::Hold } else { OnExpiry::Quarantine };
    let kinds = ["roaming", "permission", "quorum"];
    let kind = kinds[usize::try_from(seed / 2).unwrap_or(0) % kinds.len()];
    let protocol = kofm_core::Kind::named(kind).expect("a protocol of this name");
    let pool = PoolConfig { protocol, on_expiry, ..PoolConfig::new(UNITS) };
    let pools = [("slot".to_owned(), pool)].into();
    let length = Duration::ZERO;
    let slow = Duration::from_millis(250);
    let case = Case { sites, pools, clients: 0, faults: 0, length, slow, mutant };
    let mut world = World::new(case, seed);
    world.advance(1500 * MILLISECOND)?;
    let mut story = Story::default();
    for _ in 0..UNITS {
        let site = usize::try_from(world.below(sites as u64)).unwrap_or(0);
        let reply = world.submit(site);
        story.waiting.push((site, reply));
        // Some grants are under way when a site is lost, most are not.
        let pause = if world.below(3) == 0 { 6 } else { 400 };
        let pause = 1 + world.below(pause);
        story.wait(&mut world, pause)?;
    }
    for _ in 0..losses {
        let holders: Vec<usize> = story.told.values().filter_map(|it| number(&it.site)).collect();
        let living = story.living(&world);
        let busy: Vec<usize> = living.iter().copied().filter(|it| holders.contains(it)).collect();
        let among = if busy.is_empty() { living } else { busy };
        let place = usize::try_from(world.below(among.len() as u64)).unwrap_or(0);
        story.lose(&mut world, among[place]);
        let pause = world.below(2500);
        story.wait(&mut world, pause)?;
    }
    // Others ask all the time, longer than any lease or quarantine lasts.
    for _ in 0..5 {
        for site in story.living(&world) {
            let reply = world.submit(site);
            story.waiting.push((site, reply));
        }
        story.wait(&mut world, 1500)?;
    }
    let list = story.list(&mut world)?;
    let told = u64::try_from(story.told.len()).unwrap_or(0);
    for lease in story.told.values() {
        // Too few may be left to know whose lease it was.
        let sure = losses <= (sites as u64 - 1) / 2;
        let found = list.iter().find(|it| it.1.name == lease.name);
        let Some((_, found)) = found else {
            if sure {
                return Err(fail(format!("{} is in no list: {list:?}", lease.name)));
            }
            continue;
        };
        if (found.fence, &found.units) != (lease.fence, &lease.units) {
            return Err(fail(format!("{lease:?} became {found:?}")));
        }
    }
    // A person releases everything, and then all is there again.
    story.told.clear();
    story.waiting.clear();
    for _ in 0..3 {
        for (site, lease) in story.list(&mut world)? {
            let reply = world.ask(site, Call::Release(lease.name));
            world.answer(reply)?;
        }
        world.advance(3000 * MILLISECOND)?;
    }
    for site in story.living(&world) {
        let want = [("slot".to_owned(), UNITS)].into();
        let spec = Submit { want, wait: Some(Duration::from_secs(1)), ..Submit::default() };
        let patience = Some(Duration::from_millis(1500));
        let call = Call::Submit { spec, fresh: true, hold: Hold::Lease, patience };
        let reply = world.ask(site, call);
        let answer = world.answer(reply)?;
        let Some(Answer::Request(request)) = answer else {
            return Err(fail(format!("s{site} gets no answer: {answer:?}")));
        };
        let Some(lease) = request.lease.filter(|_| request.state == State::Granted) else {
            return Err(fail(format!("s{site} is not granted all: {:?}", request.cause)));
        };
        let reply = world.ask(site, Call::Release(lease.id));
        world.answer(reply)?;
    }
    Ok(told)
}

/// The number of a site of this name.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix('s')?.parse().ok()
}
