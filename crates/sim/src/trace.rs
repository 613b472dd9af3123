//! The one trace format: what went in and what came out, step by step.
//!
//! A file is a header line and a line per step, each a JSON document. The checker's
//! counterexamples, simulated runs and recordings of sites are all this file.

use std::fmt::Write as _;
use std::io::{self, BufRead, Write};

use kofm_core::protocols::gang::Shares;
use kofm_core::protocols::sem_quorum::turns;
use kofm_core::quorums::RequestSets;
use kofm_core::{Clock, Cluster, Effect, Effects, Input, Kind, Protocol, Service, SiteId, step};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::flushing::{self, Start};
use crate::lasso::{self, Written};
use crate::span::{DELAY, Time};

/// The first line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The version of the format.
    pub kofm_trace: u32,
    /// The protocol's name.
    pub protocol: String,
    /// The cluster that it ran in.
    pub cluster: Cluster,
    /// What makes it a run without end, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasso: Option<Written>,
    /// Where it began and what happened, if it is a run of a controller from any configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

impl Header {
    /// The version that is written.
    pub const VERSION: u32 = 1;

    /// The header of a run.
    pub fn new(protocol: &str, cluster: &Cluster) -> Self {
        Self {
            kofm_trace: Self::VERSION,
            protocol: protocol.to_owned(),
            cluster: cluster.clone(),
            lasso: None,
            start: None,
        }
    }
}

/// One step of one site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step<M, T> {
    /// Counted from 1 over all sites.
    pub step: u64,
    /// When, where there is a time: millionths of a link delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Which site.
    pub site: SiteId,
    /// What went in.
    pub input: Input<M, T>,
    /// What came out, in order.
    pub effects: Vec<Effect<M, T>>,
}

impl<M: std::fmt::Debug, T: std::fmt::Debug> Step<M, T> {
    /// A step.
    pub const fn new(
        step: u64,
        at: Option<Time>,
        site: SiteId,
        input: Input<M, T>,
        effects: Vec<Effect<M, T>>,
    ) -> Self {
        Self { step, at, site, input, effects }
    }

    /// The step as a line for people.
    pub fn text(&self) -> String {
        let mut line = format!("{:>4}. ", self.step);
        if let Some(at) = self.at {
            // Whole thousandths of a delay are plenty for people.
            let thousandths = at / (DELAY / 1_000);
            let _ = write!(line, "{:>6}.{:03}  ", thousandths / 1_000, thousandths % 1_000);
        }
        let site = self.site;
        let _ = match &self.input {
            Input::Claim { claim, demand } => write!(line, "{site} claim {claim} {demand}"),
            Input::Release { claim, part: None } => write!(line, "{site} release {claim}"),
            Input::Release { claim, part: Some(part) } => {
                write!(line, "{site} release {part} of {claim}")
            }
            Input::Withdraw { claim } => write!(line, "{site} withdraw {claim}"),
            Input::Add { demand } => write!(line, "{site} add {demand}"),
            Input::Deliver { from, message, .. } => write!(line, "{site} <- {from} {message:?}"),
            Input::Fire { timer } => write!(line, "{site} timer {timer:?}"),
        };
        for (i, effect) in self.effects.iter().enumerate() {
            line.push_str(if i == 0 { " | " } else { "; " });
            let _ = match effect {
                Effect::Send { to, message, .. } => write!(line, "send {to} {message:?}"),
                Effect::Grant { claim, fence, units } if units.is_empty() => {
                    write!(line, "GRANT {claim} fence {fence}")
                }
                Effect::Grant { claim, fence, units } => {
                    write!(line, "GRANT {claim} fence {fence} units {units:?}")
                }
                Effect::Reject { claim, reason } => write!(line, "reject {claim}: {reason}"),
                Effect::Revoke { claim } => write!(line, "REVOKE {claim}"),
                Effect::Arm { timer, min, max } => {
                    write!(line, "arm {timer:?} {min:?}..{max:?}")
                }
                Effect::Disarm { timer } => write!(line, "disarm {timer:?}"),
            };
        }
        line
    }
}

/// Writes a trace.
pub struct Writer<W> {
    sink: W,
}

impl<W> std::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    pub fn new(mut sink: W, header: &Header) -> io::Result<Self> {
        serde_json::to_writer(&mut sink, header)?;
        sink.write_all(b"\n")?;
        Ok(Self { sink })
    }

    /// Writes a step.
    pub fn step<M: Serialize, T: Serialize>(&mut self, step: &Step<M, T>) -> io::Result<()> {
        serde_json::to_writer(&mut self.sink, step)?;
        self.sink.write_all(b"\n")
    }

    /// Everything is written; gives back what it was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.sink.flush()?;
        Ok(self.sink)
    }
}

/// Reads the header of a trace.
pub fn read_header(source: &mut impl BufRead) -> Result<Header, String> {
    let mut line = String::new();
    source.read_line(&mut line).map_err(|error| format!("cannot read: {error}"))?;
    let header: Header = serde_json::from_str(&line)
        .map_err(|error| format!("line 1 is not the header of a trace: {error}"))?;
    if header.kofm_trace != Header::VERSION {
        let (found, known) = (header.kofm_trace, Header::VERSION);
        return Err(format!("line 1: trace version {found}, this kofm reads {known}"));
    }
    if header.cluster.sites == 0 || header.cluster.pools.is_empty() {
        return Err("line 1: a cluster has at least one site and one pool".into());
    }
    let serves = Kind::named(&header.protocol).map(|kind| kind.profile().serves);
    let semaphores = serves == Some(Service::Semaphore);
    let terms = if semaphores { turns(&header.cluster) } else { header.cluster.clone() };
    RequestSets::check(&terms).map_err(|(pool, error)| format!("line 1: pool {pool}: {error}"))?;
    if serves == Some(Service::Group) {
        header.cluster.grouping().map_err(|error| format!("line 1: {error}"))?;
    }
    if serves == Some(Service::Gang) && Shares::new(&header.cluster).is_none() {
        return Err("line 1: too many sites and pools for gangs".into());
    }
    Ok(header)
}

/// The same for a run of the controller of `tree`, where the header says that it is one.
pub fn replay_start(
    cluster: &Cluster,
    start: &Start,
    source: impl BufRead,
    show: &mut dyn FnMut(String),
) -> Result<u64, String> {
    let step = |line: io::Result<String>| {
        let line = line.map_err(|error| error.to_string())?;
        serde_json::from_str(&line).map_err(|error| format!("no step of the controller: {error}"))
    };
    flushing::replay(cluster, start, source.lines().map(step), show)
}

/// Runs a trace again, calling `show` with each step; says how many there were.
///
/// Stops with an error at the first line that cannot be read, and at the first step whose effects
/// are not the recorded ones.
pub fn replay<P: Protocol>(
    header: &Header,
    source: impl BufRead,
    mut show: impl FnMut(&Step<P::Message, P::Timer>),
) -> Result<u64, String> {
    let cluster = &header.cluster;
    let mut sites: Vec<(P, Clock)> =
        cluster.all().map(|me| (P::new(me, cluster), Clock::default())).collect();
    let mut out = Effects::default();
    let mut count = 0;
    let wrong = |problem| format!("line 1: the run without end is not one: {problem}");
    let run = header.lasso.as_ref().map(|run| lasso::check::<P>(cluster, run));
    let run = run.transpose().map_err(wrong)?;
    for (number, line) in (2..).zip(source.lines()) {
        let line = line.map_err(|error| format!("line {number}: {error}"))?;
        let recorded: Step<P::Message, P::Timer> = serde_json::from_str(&line)
            .map_err(|error| format!("line {number} is not a step of {}: {error}", P::NAME))?;
        let site = recorded.site;
        let (protocol, clock) = sites
            .get_mut(site.index())
            .ok_or_else(|| format!("line {number}: there is no site {site}"))?;
        if let Input::Claim { claim, .. } = &recorded.input
            && *claim != protocol.next_stamp(*clock)
        {
            return Err(format!("line {number}: {site} cannot have made claim {claim} then"));
        }
        if let Input::Add { demand } = &recorded.input
            && demand.parts().any(|(pool, units)| u64::from(units.0) > protocol.room(pool))
        {
            return Err(format!("line {number}: {site} cannot have added {demand} then"));
        }
        step(protocol, clock, recorded.input.clone(), &mut out)
            .map_err(|fault| format!("line {number}: {site} refuses the message: {fault}"))?;
        let effects: Vec<_> = out.drain().collect();
        if effects != recorded.effects {
            let now = Step { effects, ..recorded.clone() };
            let value = |step| serde_json::to_value(step).expect("it was read as JSON");
            let first = difference("", &value(&recorded), &value(&now)).unwrap_or_default();
            return Err(format!(
                "line {number} does not replay\nrecorded {}\n    here {}\n{first}",
                recorded.text(),
                now.text()
            ));
        }
        if let Some(run) = &run
            && run.get(number - 2) != Some(&recorded)
        {
            return Err(format!("line {number} is not a step of the run without end in line 1"));
        }
        show(&recorded);
        count += 1;
    }
    if run.is_some_and(|run| run.len() as u64 != count) {
        return Err("the trace ends before the run without end has turned once".to_owned());
    }
    Ok(count)
}

/// Where two documents differ first. Lines for people leave out clocks and what messages serve.
fn difference(path: &str, recorded: &Value, here: &Value) -> Option<String> {
    let inner = match (recorded, here) {
        (Value::Object(recorded), Value::Object(here)) if recorded.keys().eq(here.keys()) => {
            let mut pairs = recorded.iter().zip(here.values());
            pairs.find_map(|((key, a), b)| difference(&format!("{path}.{key}"), a, b))
        }
        (Value::Array(recorded), Value::Array(here)) if recorded.len() == here.len() => {
            let mut pairs = recorded.iter().zip(here).enumerate();
            pairs.find_map(|(i, (a, b))| difference(&format!("{path}[{i}]"), a, b))
        }
        _ => None,
    };
    let path = path.trim_start_matches('.');
    inner
        .or_else(|| (recorded != here).then(|| format!("{path}: recorded {recorded}, here {here}")))
}
