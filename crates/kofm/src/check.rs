//! `kofm check`: everything that can happen, within bounds.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use kofm_core::protocols::gang::Shares;
use kofm_core::{Cluster, Demand, Kind, PoolId, Service, SiteId, Units};
use kofm_sim::chosen::{self, Found, Line};
use kofm_sim::fairness::Fairness;
use kofm_sim::trace::{Header, Writer};
use kofm_sim::world::Script;
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::lab::{self, Lab, is_semaphore};
use crate::output::{say, tell};
use crate::progress::{Progress, WholeFile, grouped};

const EXAMPLES: &str = "\
Every interleaving of messages and clients is tried, breadth first, so a
violation is shown by a shortest trace. The same bounds always give the same
number of states.

Examples:
  kofm check --protocol permission --sites 2 --units 2
  kofm check --protocol permission-lazy-as-printed --sites 2 --units 2
  kofm check --protocol permission --sites 2 --units 2 --slots 2 --withdraw --partial
  kofm check --protocol permission --sites 2 --units 2,1 --json
  kofm check --protocol quorum-as-printed --sites 3 --units 2
  kofm check --protocol quorum-as-printed-inquire --sites 3 --units 1 --arbiters 0
  kofm check --protocol tree-as-printed --sites 2 --units 1 --rounds 1
  kofm check --protocol sem-token --sites 3 --units 1 --adds 0,1,1
  kofm check --protocol sem-permission-as-printed --sites 2 --units 1
  kofm check --protocol sem-quorum-as-printed --sites 3 --units 1
  kofm check --protocol groups --topology examples/groups/figure9.toml --endless
  kofm check --protocol groups-as-printed --topology examples/groups/figure9.toml

Exit code 0 if no violation was found, 1 if one was, 64 for wrong usage.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    lab: Lab,
    /// Amounts that a claim may ask for, A..B or K [default: 1..M]
    #[arg(long, value_name = "A..B")]
    k: Option<String>,
    /// Claims that each site makes; for groups, works of each group
    #[arg(long, value_name = "R", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,
    /// Claims without end, for groups: also finds out whether every group works again and again
    #[arg(long)]
    endless: bool,
    /// Claims of one site that may be live at once
    #[arg(long, value_name = "S", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    slots: u16,
    /// Let waiting claims be withdrawn at any moment
    #[arg(long)]
    withdraw: bool,
    /// Let holders give back one unit at a time
    #[arg(long)]
    partial: bool,
    /// How often each site adds to a semaphore, by site: 0,0,2 [default: the last site, once]
    #[arg(long, value_name = "A", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(..=1_000))]
    adds: Vec<u32>,
    /// Stop after this many states
    #[arg(long, value_name = "LIMIT", default_value_t = 100_000_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    states: u64,
    /// Write the trace of a violation to this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Exit> {
    let kind = args.lab.kind()?;
    if !kind.profile().full_service && (args.slots > 1 || args.withdraw || args.partial) {
        return Err(lab::plain_service(kind));
    }
    if args.endless && kind.profile().serves != Service::Group {
        let name = kind.name();
        return Err(Exit::usage(format!(
            "--endless is for groups: the order of {name} never ends"
        )));
    }
    if kind.profile().serves == Service::Gang && (args.partial || args.slots > 1) {
        return Err(Exit::usage(
            "gang: a share is given back whole, and each gang runs once at a time",
        ));
    }
    if is_semaphore(kind) && args.partial {
        return Err(Exit::usage("--partial: nothing is given back to a semaphore"));
    }
    let cluster = args.lab.cluster(kind)?;
    if cluster.sites > 64 {
        return Err(Exit::usage("--sites: the checker takes at most 64, and hopes for 3"));
    }
    let most = cluster.pools.iter().map(|units| units.0).max().unwrap_or(1).max(1);
    let (low, high) = args.lab.amounts(kind, args.k.as_deref(), (1, most))?;
    let semaphore = is_semaphore(kind);
    let demands =
        if semaphore { one_of(&cluster, low, high)? } else { demands(&cluster, low, high)? };
    let script = Script {
        adds: adds(args, semaphore, cluster.sites)?,
        amounts: if semaphore { demands.clone() } else { Vec::new() },
        slots: args.slots.into(),
        endless: args.endless,
        withdraw: args.withdraw,
        partial: args.partial,
        ..Script::new(cluster.sites, args.rounds, demands)
    };
    let script = match Shares::new(&cluster).filter(|_| kind.profile().serves == Service::Gang) {
        Some(shares) => Script {
            own: gangs(&cluster, shares, &script.demands, args.rounds),
            rounds: vec![0; usize::from(cluster.sites)],
            ..script
        },
        None => script,
    };
    let file = args.trace.as_deref().map(WholeFile::create).transpose()?;
    let mut progress = Progress::new(args.json);
    let title = lab::title(kind, &cluster) + &args.lab.shape(&cluster);
    let mut seen = |states| progress.show(states, None, "states");
    let found = chosen::explore(kind, &cluster, &script, args.states, &mut seen);
    progress.clear();
    if let (Some(file), Some((_, lines))) = (file, &found.violation) {
        write(file, kind, &cluster, lines)?;
    }
    if args.json {
        say(&format!("{}\n", document(kind, &found)));
    } else {
        say(&text(&title, &found, args.states));
        say(&found.for_ever.as_ref().map_or_else(String::new, for_ever));
        let rate = found.states as f64 / progress.elapsed().as_secs_f64().max(1e-6);
        tell(&format!("{} ms, {rate:.1e} states per second", progress.elapsed().as_millis()));
    }
    let lively = |again: &Fairness| again.dead.is_empty() && again.starved.is_empty();
    if found.violation.is_none() && found.for_ever.as_ref().is_none_or(lively) {
        Ok(())
    } else {
        Err(Exit::silent())
    }
}

/// For each demand and site, a gang that it leads with the next one: the leader takes the units,
/// and of more than one the other takes one.
fn gangs(
    cluster: &Cluster,
    shares: Shares,
    demands: &[Demand],
    rounds: u32,
) -> Vec<Vec<(Demand, u32)>> {
    let gang = |leader: SiteId, demand: &Demand| {
        let other = SiteId((leader.0 + 1) % cluster.sites);
        let seats = [leader, other].map(|site| (shares.seat(site), Units(1)));
        let parts = demand.parts().flat_map(|(pool, units)| {
            let rest = Units(u32::from(units.0 > 1));
            [(shares.share(leader, pool), units - rest), (shares.share(other, pool), rest)]
        });
        // A site alone is its own next one, and has one seat.
        let seats = &seats[..if leader == other { 1 } else { 2 }];
        parts.chain(seats.iter().copied()).collect::<Demand>()
    };
    let led = |site| demands.iter().map(|demand| (gang(site, demand), rounds)).collect();
    cluster.all().map(led).collect()
}

/// Who adds how often to a semaphore.
fn adds(args: &Args, semaphore: bool, sites: u16) -> Result<Vec<u32>, Exit> {
    let sites = usize::from(sites);
    match &args.adds[..] {
        [_, ..] if !semaphore => {
            Err(Exit::usage("--adds is for semaphores: only semaphores have additions"))
        }
        [] if !semaphore => Ok(Vec::new()),
        [] => Ok((1..=sites).map(|site| u32::from(site == sites)).collect()),
        [each] => Ok(vec![*each; sites]),
        list if list.len() == sites => Ok(list.to_vec()),
        _ => Err(Exit::usage(format!("--adds: one number for all sites, or {sites} of them"))),
    }
}

/// Each amount of each semaphore.
fn one_of(cluster: &Cluster, low: u32, high: u32) -> Result<Vec<Demand>, Exit> {
    let amounts = (high - low) as usize + 1;
    if amounts.saturating_mul(cluster.pools.len()) > MOST_DEMANDS {
        return Err(too_many());
    }
    let pools = (0..).map(PoolId).take(cluster.pools.len());
    Ok(pools.flat_map(|pool| (low..=high).map(move |k| Demand::one(pool, k))).collect())
}

const MOST_DEMANDS: usize = 10_000;

fn too_many() -> Exit {
    Exit::usage(format!("more than {MOST_DEMANDS} demands to try: narrow --k"))
}

/// One pool: each amount. Several: each amount or nothing of each, but not nothing of all.
fn demands(cluster: &Cluster, low: u32, high: u32) -> Result<Vec<Demand>, Exit> {
    let mut list: Vec<Vec<(PoolId, Units)>> = vec![Vec::new()];
    for (pool, units) in (0..).map(PoolId).zip(&cluster.pools) {
        let amounts: Vec<u32> = (low.min(units.0)..=high.min(units.0)).collect();
        if list.len().saturating_mul(amounts.len() + 1) > MOST_DEMANDS {
            return Err(too_many());
        }
        let with = |parts: &Vec<(PoolId, Units)>, k: u32| {
            parts.iter().copied().chain([(pool, Units(k))]).collect()
        };
        let more: Vec<_> =
            list.iter().flat_map(|parts| amounts.iter().map(move |&k| with(parts, k))).collect();
        list.extend(more);
    }
    Ok(list.into_iter().filter(|parts| !parts.is_empty()).map(Demand::from_iter).collect())
}

/// Writes the trace of a violation.
fn write(mut file: WholeFile, kind: Kind, cluster: &Cluster, lines: &[Line]) -> Result<(), Exit> {
    let header = Header::new(kind.name(), cluster);
    let written = Writer::new(&mut file.sink, &header)
        .and_then(Writer::finish)
        .and_then(|sink| lines.iter().try_for_each(|line| writeln!(sink, "{}", line.json)));
    written.map_err(|error| Exit::negative(format!("--trace: {error}")))?;
    file.finish()
}

/// What goes on for ever, for people.
fn for_ever(again: &Fairness) -> String {
    let list = |groups: &[kofm_core::GroupId]| {
        let names: Vec<String> = groups.iter().map(ToString::to_string).collect();
        names.join(", ")
    };
    match (again.dead.as_slice(), again.starved.as_slice()) {
        ([], []) => "every group can always work again, and none is passed over forever\n".into(),
        ([], starved) => format!("a fair run may pass over {} forever\n", list(starved)),
        (dead, _) => format!("{} may come to a state after which it never works\n", list(dead)),
    }
}

fn document(kind: Kind, found: &Found) -> Value {
    let violation = found.violation.as_ref().map(|(violation, lines)| {
        let step = |line: &Line| serde_json::from_str(&line.json).unwrap_or_default();
        let trace: Vec<Value> = lines.iter().map(step).collect();
        json!({"property": violation.property, "detail": violation.detail, "trace": trace})
    });
    let mut document = json!({
        "protocol": kind.name(),
        "states": found.states,
        "transitions": found.transitions,
        "depth": found.depth,
        "complete": found.complete,
        "violation": violation,
    });
    if let Some(again) = &found.for_ever {
        document["dead_groups"] = json!(again.dead);
        document["starved_groups"] = json!(again.starved);
    }
    document
}

fn text(title: &str, found: &Found, limit: u64) -> String {
    let states = grouped(found.states);
    let Some((violation, steps)) = &found.violation else {
        return if found.complete {
            format!("{title}: {states} states, all of them, no violation\n")
        } else {
            let limit = grouped(limit);
            format!("{title}: no violation in the first {limit} states; more with --states\n")
        };
    };
    let mut text = format!(
        "{title}: {} is violated after {} steps (state {states})\n\n",
        violation.property,
        steps.len()
    );
    for step in steps {
        let _ = writeln!(text, "{}", step.text);
    }
    let _ = writeln!(text, "\n{}", violation.detail);
    text
}
