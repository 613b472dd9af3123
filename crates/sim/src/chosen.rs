//! Runs of a protocol that is chosen at run time.
//!
//! Everything generic ends here: a caller of these functions compiles no protocol of its own.

use std::io::{self, BufRead, Write};

use kofm_core::{Cluster, Kind, Protocol, Service, Visitor};

use crate::exhaustive::{self, explore as explore_one};
use crate::fairness::{Fairness, fairness};
use crate::groups::names_groups;
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
    /// What was violated, with a shortest way there.
    pub violation: Option<(Violation, Vec<Line>)>,
    /// What goes on for ever, for a script without end whose worlds were all seen.
    pub for_ever: Option<Fairness>,
}

/// A step, ready to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// For people.
    pub text: String,
    /// As it stands in a trace.
    pub json: String,
}

/// Tries everything that can happen; `seen` hears from time to time how many worlds there are.
///
/// Groups make claims of their own: of `script` they take the rounds and whether it is endless.
pub fn explore(
    kind: Kind,
    cluster: &Cluster,
    script: &Script,
    limit: u64,
    seen: &mut dyn FnMut(u64),
) -> Found {
    struct Run<'a>(&'a Cluster, &'a Script, u64, &'a mut dyn FnMut(u64));
    impl Visitor for Run<'_> {
        type Output = Found;
        fn visit<P: Protocol>(self) -> Found {
            let Run(cluster, script, limit, seen) = self;
            let named = names_groups::<P>(cluster);
            let of_groups = cluster.groups.as_ref().map(|grouping| Script {
                endless: script.endless,
                ..Script::of_groups(grouping, named, script.rounds[0])
            });
            let script = of_groups.as_ref().unwrap_or(script);
            let found = explore_one::<P>(cluster, script, limit, seen);
            let for_ever = if const { matches!(P::PROFILE.serves, Service::Group) } {
                // All of them were seen: there are no more.
                let all = script.endless && found.complete;
                all.then(|| fairness::<P>(cluster, script, !named, u32::MAX)).flatten()
            } else {
                None
            };
            shown(found, for_ever)
        }
    }
    visit_on(kind, &cluster.topology, Run(cluster, script, limit, seen))
}

fn shown<P: Protocol>(found: exhaustive::Exploration<P>, for_ever: Option<Fairness>) -> Found {
    let line = |step: &Step<P::Message, P::Timer>| Line {
        text: step.text(),
        json: serde_json::to_string(step).expect("steps have no maps with odd keys"),
    };
    let violation =
        found.violation.map(|(violation, steps)| (violation, steps.iter().map(line).collect()));
    Found {
        states: found.states,
        transitions: found.transitions,
        depth: found.depth,
        complete: found.complete,
        violation,
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
    visit_on(kind, &header.cluster.topology, Run(header, source, show))
}
