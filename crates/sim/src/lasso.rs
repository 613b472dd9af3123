//! Runs without end, written down and taken again.
//!
//! The trace of such a run has the way in and one turn of the loop, or the way to where it rests.
//! Its header says what clients may do, so that it can be judged again without the checker: the
//! loop leads back to where it began, nothing that is owed is left out in it, and the claim
//! that waits goes on waiting.

use std::fmt::Debug;
use std::hash::Hash;

use kofm_core::{
    Cluster, Effect, Effects, EffectsOf, GroupId, Grouping, Protocol, Service, SiteId, Stamp,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exhaustive::Lasso;
use crate::fairness::Clients;
use crate::trace::Step;
use crate::world::{Action, Exact, Move, Script, World, begun};

/// A run without end in the header of its trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// `progress`, or of a group `dead` or `starved`.
    pub property: String,
    /// The group that does not work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// The duties of clients.
    pub clients: Clients,
    /// Steps before the loop; if there are no more, the run rests there.
    pub prefix: usize,
    /// The moves that clients may make.
    pub script: Script,
    /// What happens, in the checker's words, behind the steps that wake the sites.
    pub moves: Value,
}

impl Written {
    /// A run that was found.
    pub fn new<P: Protocol>(
        property: &str,
        group: Option<GroupId>,
        clients: Clients,
        script: &Script,
        lasso: &Lasso<P>,
    ) -> Self {
        Self {
            property: property.to_owned(),
            group,
            clients,
            prefix: lasso.prefix,
            script: script.clone(),
            moves: serde_json::to_value(&lasso.moves).expect("moves have no maps"),
        }
    }
}

/// A duty in a world: a message arrives, named by its link, and by itself where links keep no
/// order; a client claims; a holder releases; a timer fires.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Due<M, T> {
    Message(SiteId, SiteId, Option<M>),
    Claim(SiteId, usize),
    Holder(SiteId, Stamp),
    Timer(SiteId, T),
}

struct Judge<'a> {
    written: &'a Written,
    grouping: Option<Grouping>,
}

type DueOf<P> = Due<(u64, <P as Protocol>::Message), <P as Protocol>::Timer>;

impl Judge<'_> {
    fn due<P: Protocol>(&self, world: &World<P>, action: Action<P::Timer>) -> Option<DueOf<P>> {
        let script = &self.written.script;
        Some(match action {
            Action::Deliver { from, to, nth } => {
                let link = &world.links[from.index() * world.locals.len() + to.index()];
                Due::Message(from, to, script.unordered.then(|| link[nth].clone()))
            }
            Action::Local(site, Move::Claim(i)) => {
                let owed = match self.written.clients {
                    Clients::May => false,
                    Clients::Come => true,
                    Clients::Arrive => self.is_awaited(world, site, i),
                };
                return owed.then_some(Due::Claim(site, i));
            }
            Action::Local(site, Move::Release(i)) => {
                Due::Holder(site, world.locals[site.index()].claims[i].claim)
            }
            Action::Local(site, Move::Fire(timer)) => Due::Timer(site, timer),
            Action::Local(_, Move::ReleaseOne(_) | Move::Withdraw(_) | Move::Add(_)) => {
                return None;
            }
        })
    }

    fn is_awaited<P: Protocol>(&self, world: &World<P>, site: SiteId, demand: usize) -> bool {
        let own = world.locals[site.index()].own.get(demand);
        let group = own.and_then(|own| Grouping::named(&own.0));
        let (Some(group), Some(grouping)) = (group, &self.grouping) else { return false };
        grouping.members(group).iter().any(|&member| waits_for(world, member, group))
    }

    fn all_due<P: Protocol>(&self, world: &World<P>) -> Vec<DueOf<P>> {
        let enabled = world.enabled(&self.written.script).into_iter();
        enabled.filter_map(|action| self.due(world, action)).collect()
    }

    /// The claims that wait, of those that have to.
    fn waiting<P: Protocol>(world: &World<P>) -> Vec<Stamp> {
        let clients = world.locals.iter().flat_map(|local| &local.claims);
        clients.filter(|client| !client.held).map(|client| client.claim).collect()
    }

    /// Whether all members of the group wait, where the run is about that.
    fn group_waits<P: Protocol>(&self, world: &World<P>) -> bool {
        let (Some(group), Some(grouping)) = (self.written.group, &self.grouping) else {
            return true;
        };
        self.written.property != "starved"
            || self.written.clients == Clients::Come
            || grouping.members(group).iter().all(|&member| waits_for(world, member, group))
    }
}

fn waits_for<P: Protocol>(world: &World<P>, site: SiteId, group: GroupId) -> bool {
    let mut claims = world.locals[site.index()].claims.iter();
    claims.any(|client| {
        !client.held && Grouping::named(&client.demand).is_none_or(|named| named == group)
    })
}

fn works<P: Protocol>(out: &EffectsOf<P>, group: Option<GroupId>) -> bool {
    out.as_slice().iter().any(|effect| match effect {
        Effect::Grant { units, .. } => group.is_some() && begun::<P>(units) == group,
        Effect::Send { .. }
        | Effect::Reject { .. }
        | Effect::Revoke { .. }
        | Effect::Arm { .. }
        | Effect::Disarm { .. } => false,
    })
}

/// The most sites of a cluster whose runs are taken again.
const MOST_SITES: u16 = 64;

/// Takes a run again and judges it; its steps, or what is wrong with it.
pub fn check<P: Protocol>(
    cluster: &Cluster,
    written: &Written,
) -> Result<Vec<Step<P::Message, P::Timer>>, String> {
    let script = &written.script;
    if cluster.sites > MOST_SITES || script.rounds.len() != usize::from(cluster.sites) {
        return Err(format!(
            "a run without end has 1 to {MOST_SITES} sites, and `rounds` for each of them"
        ));
    }
    if !script.own.is_empty() && script.rounds.iter().any(|&rounds| rounds > 0) {
        return Err("sites claim for `own`, or in `rounds`, not both".to_owned());
    }
    let moves: Vec<Action<P::Timer>> = serde_json::from_value(written.moves.clone())
        .map_err(|error| format!("`moves` of {}: {error}", P::NAME))?;
    let groups = P::PROFILE.serves == Service::Group;
    let grouping = if groups { cluster.grouping().ok() } else { None };
    let judge = Judge { written, grouping };
    let mut world = World::<P>::new(cluster, script);
    let (mut exact, mut steps) = Exact::<P>::new(cluster);
    let mut turn = None;
    for action in moves {
        if steps.len() == written.prefix {
            turn = Some(Turn::new(&judge, &world));
        }
        let room = |action: &Action<P::Timer>| match action {
            Action::Local(site, Move::Add(i)) => {
                let local = &world.locals[site.index()];
                script.amounts.get(*i).is_some_and(|amount| {
                    amount.parts().all(|part| u64::from(part.1.0) <= local.protocol.room(part.0))
                })
            }
            Action::Local(..) | Action::Deliver { .. } => true,
        };
        if !world.enabled(script).contains(&action) || !room(&action) {
            return Err(format!("step {} cannot happen then: {action:?}", steps.len() + 1));
        }
        let due = judge.due(&world, action);
        let nth = if let Action::Deliver { nth, .. } = action { nth } else { 0 };
        let (site, input) = world.input(action, script);
        steps.push(exact.follow(steps.len() as u64 + 1, site, nth, input.clone()));
        let mut out = Effects::default();
        world.apply(site, input, &mut out).map_err(|violation| violation.detail)?;
        if let Some(turn) = &mut turn {
            turn.step(&judge, &world, due.as_ref(), works::<P>(&out, written.group))?;
        }
    }
    match turn {
        Some(turn) => turn.end(&world, script)?,
        None if steps.len() == written.prefix => Turn::new(&judge, &world).rest()?,
        None => return Err(format!("the way in has {} steps, not fewer", written.prefix)),
    }
    Ok(steps)
}

/// One turn of the loop.
struct Turn<P: Protocol> {
    start: World<P>,
    /// What could happen in every world so far and has not.
    left_out: Vec<DueOf<P>>,
    /// Claims that have waited in every world so far.
    waiting: Vec<Stamp>,
    group_waits: bool,
    of_group: bool,
}

impl<P: Protocol> Turn<P> {
    fn new(judge: &Judge<'_>, world: &World<P>) -> Self {
        Self {
            start: world.clone(),
            left_out: judge.all_due(world),
            waiting: Judge::waiting(world),
            group_waits: judge.group_waits(world),
            of_group: judge.written.group.is_some(),
        }
    }

    fn step(
        &mut self,
        judge: &Judge<'_>,
        world: &World<P>,
        moved: Option<&DueOf<P>>,
        works: bool,
    ) -> Result<(), String> {
        if works {
            return Err("the group works in the loop".to_owned());
        }
        let due = judge.all_due(world);
        self.left_out.retain(|one| Some(one) != moved && due.contains(one));
        let waiting = Judge::waiting(world);
        self.waiting.retain(|claim| waiting.contains(claim));
        self.group_waits &= judge.group_waits(world);
        Ok(())
    }

    fn waits(&self) -> Result<(), String> {
        let waits = if self.of_group { self.group_waits } else { !self.waiting.is_empty() };
        if waits { Ok(()) } else { Err("no claim waits all the time".to_owned()) }
    }

    fn end(self, world: &World<P>, script: &Script) -> Result<(), String> {
        self.waits()?;
        if let Some(left_out) = self.left_out.first() {
            return Err(format!("the loop is not fair: it always leaves out {left_out:?}"));
        }
        if world.clone().sorted(script) != self.start.sorted(script) {
            return Err("the loop does not lead back to where it began".to_owned());
        }
        Ok(())
    }

    fn rest(&self) -> Result<(), String> {
        self.waits()?;
        let due = self.left_out.first();
        due.map_or(Ok(()), |due| Err(format!("the run does not rest: {due:?} is still to happen")))
    }
}
