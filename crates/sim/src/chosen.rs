//! Runs of a protocol that is chosen at run time.
//!
//! Everything generic ends here: a caller of these functions compiles no protocol of its own.

use std::io::{self, BufRead, Write};

use kofm_core::{Cluster, GroupId, Kind, Protocol, Service, Visitor};

use crate::exhaustive::{self, explore_runs as explore_one};
use crate::fairness::{Clients, Fairness, fairness};
use crate::groups::names_groups;
use crate::lasso::Written;
use crate::report::Report;
use crate::seeded::{self, Blind, Observer, Setup};
use crate::trace::{self, Header, Step, Writer};
use crate::visit_on;
use crate::world::{Script, Violation};

/// Runs `setup` to the end, unwatched.
pub fn simulate(kind: Kind, setup: &Setup) -> Report {
    struct Run<'a>(&'a Setup);
    impl Visitor for Run<'_> {
        type Output = Report;
        fn visit<P: Protocol>(self) -> Report {
            seeded::run::<P>(self.0, &mut Blind)
        }
    }
    visit_on(kind, &setup.cluster.topology, Run(setup))
}

/// Runs `setup` to the end; `progress` hears from time to time how many claims were granted, and
/// the trace is written to `sink`, where there is one.
pub fn watch<'a>(
    kind: Kind,
    setup: &'a Setup,
    sink: Option<&'a mut dyn Write>,
    progress: &'a mut dyn FnMut(u64),
) -> io::Result<Report> {
    struct Run<'a>(&'a Setup, Option<&'a mut dyn Write>, &'a mut dyn FnMut(u64));
    impl Visitor for Run<'_> {
        type Output = io::Result<Report>;
        fn visit<P: Protocol>(self) -> Self::Output {
            let header = Header::new(P::NAME, &self.0.cluster);
            let writer = self.1.map(|sink| Writer::new(sink, &header)).transpose()?;
            let mut recorder = Recorder { writer, progress: self.2, error: None };
            let report = seeded::run::<P>(self.0, &mut recorder);
            recorder.error.map_or(Ok(()), Err)?;
            recorder.writer.map(Writer::finish).transpose()?;
            Ok(report)
        }
    }
    visit_on(kind, &setup.cluster.topology, Run(setup, sink, progress))
}

struct Recorder<'a> {
    writer: Option<Writer<&'a mut dyn Write>>,
    progress: &'a mut dyn FnMut(u64),
    error: Option<io::Error>,
}

impl<P: Protocol> Observer<P> for Recorder<'_> {
    fn wants_steps(&self) -> bool {
        self.writer.is_some()
    }
    fn step(&mut self, step: Step<P::Message, P::Timer>) {
        if let (Some(writer), None) = (&mut self.writer, &self.error) {
            self.error = writer.step(&step).err();
        }
    }
    fn progress(&mut self, grants: u64) {
        (self.progress)(grants);
    }
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Distinct worlds.
    pub states: u64,
    /// Steps between them.
    pub transitions: u64,
    /// Steps on the longest of the shortest ways.
    pub depth: u32,
    /// Whether all worlds were seen.
    pub complete: bool,
    /// The violation, with a shortest way there; for a run without end, with its loop.
    pub violation: Option<(Violation, Vec<Line>)>,
    /// What makes that a run without end.
    pub lasso: Option<Written>,
    /// What goes on for ever, for a script without end whose worlds were all seen.
    pub for_ever: Option<ForEver>,
}

/// The verdict on runs without end, ready to be shown.
#[derive(Clone, Debug)]
pub struct ForEver {
    /// The duties of clients.
    pub clients: Clients,
    /// Groups that cannot work any more after some way.
    pub dead: Vec<GroupId>,
    /// Groups that a fair run may pass over forever.
    pub starved: Vec<GroupId>,
    /// A run for each of these, in the same order.
    pub runs: Vec<(Written, Vec<Line>)>,
}

/// A step, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// For people.
    pub text: String,
    /// As it stands in a trace.
    pub json: String,
}

/// Whether claims of a protocol for groups say which group they are for.
pub fn names_a_group(kind: Kind, cluster: &Cluster) -> bool {
    struct Names<'a>(&'a Cluster);
    impl Visitor for Names<'_> {
        type Output = bool;
        fn visit<P: Protocol>(self) -> bool {
            names_groups::<P>(self.0)
        }
    }
    kind.profile().serves == Service::Group && kind.visit(Names(cluster))
}

/// Tries everything that can happen; `seen` hears from time to time how many worlds there are.
///
/// Groups make claims of their own: of `script` they take the rounds, the order of links and
/// whether it is endless.
pub fn explore(
    kind: Kind,
    cluster: &Cluster,
    script: &Script,
    limit: u64,
    seen: &mut dyn FnMut(u64),
) -> Found {
    explored(kind, cluster, script, None, limit, seen)
}

/// The same, and judges runs that go round; says what clients owe where claims name their group.
/// Where they do not, every client claims again.
pub fn explore_expecting(
    kind: Kind,
    cluster: &Cluster,
    script: &Script,
    clients: Clients,
    limit: u64,
    seen: &mut dyn FnMut(u64),
) -> Found {
    explored(kind, cluster, script, Some(clients), limit, seen)
}

fn explored(
    kind: Kind,
    cluster: &Cluster,
    script: &Script,
    clients: Option<Clients>,
    limit: u64,
    seen: &mut dyn FnMut(u64),
) -> Found {
    struct Run<'a>(&'a Cluster, &'a Script, Option<Clients>, u64, &'a mut dyn FnMut(u64));
    impl Visitor for Run<'_> {
        type Output = Found;
        fn visit<P: Protocol>(self) -> Found {
            let Run(cluster, script, clients, limit, seen) = self;
            let named = names_groups::<P>(cluster);
            let of_groups = cluster.groups.as_ref().map(|grouping| Script {
                endless: script.endless,
                unordered: script.unordered,
                lenient: script.lenient,
                ..Script::of_groups(grouping, named, script.rounds[0])
            });
            let script = of_groups.as_ref().unwrap_or(script);
            let loops = P::PERPETUAL || clients.is_some();
            let found = explore_one::<P>(cluster, script, limit, loops, seen);
            let for_ever = if const { matches!(P::PROFILE.serves, Service::Group) } {
                // All of them were seen: there are no more.
                let all = script.endless && found.complete && found.violation.is_none();
                let said = clients.unwrap_or(Clients::May);
                let clients = if named { said } else { Clients::Come };
                let again =
                    || fairness::<P>(cluster, script, clients, u32::MAX).map(|it| (clients, it));
                all.then(again).flatten()
            } else {
                None
            };
            shown(found, script, for_ever)
        }
    }
    visit_on(kind, &cluster.topology, Run(cluster, script, clients, limit, seen))
}

fn shown<P: Protocol>(
    found: exhaustive::Exploration<P>,
    script: &Script,
    for_ever: Option<(Clients, Fairness<P>)>,
) -> Found {
    let line = |step: &Step<P::Message, P::Timer>| Line {
        text: step.text(),
        json: serde_json::to_string(step).expect("steps have no maps with odd keys"),
    };
    let lasso = found.lasso.as_ref();
    let lasso = lasso.map(|lasso| Written::new("progress", None, Clients::May, script, lasso));
    let violation =
        found.violation.map(|(violation, steps)| (violation, steps.iter().map(line).collect()));
    let for_ever = for_ever.map(|(clients, again)| ForEver {
        clients,
        dead: again.dead,
        starved: again.starved,
        runs: again
            .runs
            .iter()
            .map(|run| {
                let group = Some(run.group);
                let lasso = Written::new(run.property, group, clients, script, &run.lasso);
                (lasso, run.steps.iter().map(line).collect())
            })
            .collect(),
    });
    Found {
        states: found.states,
        transitions: found.transitions,
        depth: found.depth,
        complete: found.complete,
        violation,
        lasso,
        for_ever,
    }
}

/// Runs a trace again, calling `show` with each step as text; says how many there were, or which
/// line does not replay.
pub fn replay(
    kind: Kind,
    header: &Header,
    source: &mut dyn BufRead,
    show: &mut dyn FnMut(String),
) -> Result<u64, String> {
    struct Run<'a>(&'a Header, &'a mut dyn BufRead, &'a mut dyn FnMut(String));
    impl Visitor for Run<'_> {
        type Output = Result<u64, String>;
        fn visit<P: Protocol>(self) -> Self::Output {
            trace::replay::<P>(self.0, self.1, |step| (self.2)(step.text()))
        }
    }
    if let Some(start) = &header.start {
        return trace::replay_start(&header.cluster, start, source, show);
    }
    visit_on(kind, &header.cluster.topology, Run(header, source, show))
}
