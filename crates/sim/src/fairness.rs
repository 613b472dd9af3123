//! What must happen again and again, in worlds without end.
//!
//! A group can *always work again* if from every world some way leads to its work. It is *starved*
//! by a fair run without its work: one that goes round forever, or one that comes to rest. In a
//! fair run every message arrives and every worker finishes; [`Clients`] says what
//! clients owe.

use kofm_core::{Cluster, GroupId, Protocol, Service};
use serde::{Deserialize, Serialize};

use crate::exhaustive::{Lasso, Run, Runs, Search};
use crate::trace::Step;
use crate::world::Script;

/// The duties of clients in a fair run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clients {
    /// Nothing: a group is starved only while all its members wait for it.
    May,
    /// The same, and if a member waits for a group, the other members claim for it in the end.
    Arrive,
    /// Every client claims again in the end.
    Come,
}

impl Clients {
    /// A sentence that says what is fair.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::May => "every message arrives and every worker finishes; no client has to claim",
            Self::Arrive => {
                "every message arrives, every worker finishes, and once a member waits for a \
                 group the others claim for it"
            }
            Self::Come => {
                "every message arrives, every worker finishes, and every client claims again"
            }
        }
    }
}

/// What was found out about the groups of a cluster.
#[derive(Clone, Debug)]
pub struct Fairness<P: Protocol> {
    /// Distinct worlds seen.
    pub states: u32,
    /// Groups that cannot work any more after some way.
    pub dead: Vec<GroupId>,
    /// Groups that a fair run may pass over for ever.
    pub starved: Vec<GroupId>,
    /// A run for each of these, in the same order.
    pub runs: Vec<PassedOver<P>>,
}

/// A fair run without end in which a group does not work.
#[derive(Clone, Debug)]
pub struct PassedOver<P: Protocol> {
    /// `dead` or `starved`.
    pub property: &'static str,
    /// Which group.
    pub group: GroupId,
    /// The steps, the way in first.
    pub steps: Vec<Step<P::Message, P::Timer>>,
    /// The moves behind the steps.
    pub lasso: Lasso<P>,
}

/// Explores everything that an endless script allows, and looks at what goes on forever.
///
/// None where there are more than `limit` worlds, or where a promise is broken: see
/// [`explore`](crate::exhaustive::explore).
pub fn fairness<P: Protocol>(
    cluster: &Cluster,
    script: &Script,
    clients: Clients,
    limit: u32,
) -> Option<Fairness<P>> {
    assert!(P::PROFILE.serves == Service::Group && script.endless, "groups that work for ever");
    let mut search = Search::<P>::new(cluster, script);
    let states = search.all_steps(limit)?;
    let edges = search.edges.take().unwrap_or_default();
    let runs = Runs::new(&search, &edges, clients);
    let grouping = cluster.grouping().ok()?;
    let mut found = Fairness { states, dead: vec![], starved: vec![], runs: vec![] };
    let shown = |property, group, run: &Run| {
        let (steps, lasso) = runs.shown(run);
        PassedOver { property, group, steps, lasso }
    };
    for group in grouping.all() {
        let alive = runs.leading_to(runs.begins(group));
        let dead: Vec<bool> = alive.iter().map(|alive| !alive).collect();
        // A world without any step is a run at rest, so a dead world always has a fair run.
        if let Some(run) = dead.contains(&true).then(|| runs.fair(&dead, |_| true)).flatten() {
            found.dead.push(group);
            found.runs.push(shown("dead", group, &run));
        }
    }
    for group in grouping.all() {
        let all_wait = |at| clients == Clients::Come || search.all_wait(at, group);
        let counts: Vec<bool> = (0..states).map(all_wait).collect();
        if let Some(run) = runs.fair(&counts, |edge| edge.begun != Some(group)) {
            found.starved.push(group);
            found.runs.push(shown("starved", group, &run));
        }
    }
    Some(found)
}
