//! `kofm check`: everything that can happen, within bounds.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use kofm_core::protocols::gang::Shares;
use kofm_core::{Cluster, Demand, Kind, PoolId, Service, SiteId, Units};
use kofm_sim::chosen::{self, ForEver, Found, Line};
use kofm_sim::fairness::Clients;
use kofm_sim::lasso::Written;
use kofm_sim::trace::{Header, Writer};
use kofm_sim::world::Script;
use serde_json::{Value, json};

use crate::anywhere::{self, Anywhere};
use crate::exit::Exit;
use crate::lab::{self, Lab, is_semaphore};
use crate::output::{say, tell};
use crate::progress::{Progress, WholeFile, grouped};

const EXAMPLES: &str = "\
Every interleaving of messages and clients is tried, breadth first, so a
violation is shown by a shortest trace. The same bounds always give the same
number of states.

Runs are judged to their end, and those without end as well: a run that goes
round forever, and one that comes to rest, is shown if it is fair and a claim
waits in it all the time. A run is fair if nothing that can always happen is
always left out: a message arrives, a holder releases, a timer fires. With
--endless the output says what clients owe beyond that.

Examples:
  kofm check --protocol permission --sites 2 --units 2
  kofm check --protocol permission-lazy-as-printed --sites 2 --units 2
  kofm check --protocol permission --sites 2 --units 2 --slots 2 --withdraw --partial
  kofm check --protocol permission --sites 2 --units 2,1 --json
  kofm check --protocol quorum-as-printed --sites 3 --units 2
  kofm check --protocol quorum-as-printed-inquire --sites 3 --units 1 --arbiters 0
  kofm check --protocol quorum --sites 3 --units 1 --sets examples/quorums/three.txt
  kofm check --protocol tree-as-printed --sites 2 --units 1 --rounds 1
  kofm check --protocol tree --sites 2 --units 1 --from any
  kofm check --protocol tree --sites 2 --units 1 --from any --stale 2 --colours 3
  kofm check --protocol sem-token --sites 3 --units 1 --adds 0,1,1
  kofm check --protocol sem-permission-as-printed --sites 2 --units 1
  kofm check --protocol sem-quorum-as-printed --sites 3 --units 1
  kofm check --protocol groups --topology examples/groups/figure9.toml --endless
  kofm check --protocol groups-hungry --topology examples/groups/cancel.toml --endless --arrive
  kofm check --protocol groups-as-printed --topology examples/groups/figure9.toml
  kofm check --protocol permission --sites 2 --units 2 --links unordered

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
    /// Claims without end, for groups: also finds out whether every group works again and again;
    /// for listings of tokens on a tree, with --demands, whether every claim is served
    #[arg(long)]
    endless: bool,
    /// With --endless, for protocols whose claims name a group: once a member waits for a group,
    /// the others claim for it in the end
    #[arg(long, requires = "endless")]
    arrive: bool,
    /// For groups: the work of a group ends for each member by itself, so that two groups which
    /// share a process may overlap when some members have finished
    #[arg(long)]
    lenient: bool,
    /// In which order the messages of a link arrive: fifo, or unordered
    #[arg(long, value_name = "ORDER", default_value = "fifo",
          value_parser = ["fifo", "unordered"])]
    links: String,
    /// Start from every configuration that a fault may leave, for protocols that heal: of `tree`,
    /// what sites and links know of its controller
    #[arg(long, value_name = "WHERE", value_parser = ["any"],
          conflicts_with_all = ["k", "rounds", "slots", "withdraw", "partial", "adds",
                                "endless", "links", "states"])]
    from: Option<String>,
    /// With --from any: controllers on each link to begin with, at most [default: 1]
    #[arg(long, value_name = "C", requires = "from",
          value_parser = clap::value_parser!(u32).range(1..=16))]
    stale: Option<u32>,
    /// With --from any: colours of circulations [default: the paper's, 2(n-1)(C+1)]
    #[arg(long, value_name = "K", requires = "from",
          value_parser = clap::value_parser!(u64).range(2..=1_000))]
    colours: Option<u64>,
    /// What each site asks for, by site, instead of any amount: 2,1,1; 0 asks for nothing
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "k",
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    demands: Vec<u32>,
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
    /// Write the trace of a violation, or of the first run in which a group starves, to this file
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
    if args.endless && kind.profile().serves != Service::Group && !orders_without_stamps(kind) {
        let name = kind.name();
        return Err(Exit::usage(format!(
            "--endless is for groups: the order of {name} never ends"
        )));
    }
    if args.endless && orders_without_stamps(kind) && args.demands.is_empty() {
        let name = kind.name();
        return Err(Exit::usage(format!("--endless of {name} wants --demands, by site")));
    }
    if args.lenient && kind.profile().serves != Service::Group {
        return Err(Exit::usage(format!("--lenient is for groups: {} has none", kind.name())));
    }
    let unordered = args.links == "unordered";
    if args.endless && unordered {
        return Err(Exit::usage("--endless is for links that keep the order: leave out --links"));
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
        let text = "--sites: must be at most 64; complete exploration is practical up to 3 or 4";
        return Err(Exit::usage(text));
    }
    if args.from.is_some() {
        let title = lab::title(kind, &cluster) + &args.lab.shape(&cluster);
        let said = Anywhere {
            title: &title,
            stale: args.stale,
            colours: args.colours,
            trace: args.trace.as_deref().map(WholeFile::create).transpose()?,
            json: args.json,
        };
        return anywhere::run(kind, &cluster, said);
    }
    if args.arrive && !chosen::names_a_group(kind, &cluster) {
        let name = kind.name();
        return Err(Exit::usage(format!(
            "--arrive: claims of {name} name no group, and all its clients claim again"
        )));
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
        unordered,
        lenient: args.lenient,
        withdraw: args.withdraw,
        partial: args.partial,
        ..Script::new(cluster.sites, args.rounds, demands)
    };
    let script = match own_demands(args, kind, &cluster)? {
        Some(own) => Script {
            own,
            rounds: vec![0; usize::from(cluster.sites)],
            timeless: orders_without_stamps(kind),
            ..script
        },
        None => script,
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
    let clients = if args.arrive { Clients::Arrive } else { Clients::May };
    let found = chosen::explore_expecting(kind, &cluster, &script, clients, args.states, &mut seen);
    progress.clear();
    let shown = shown(&found);
    if let (Some(file), Some((run, lines))) = (file, shown.first()) {
        write(file, kind, &cluster, *run, lines)?;
    }
    if args.json {
        say(&format!("{}\n", document(kind, &cluster, &found)));
    } else {
        say(&text(&title, &found, args.states));
        say(&found.for_ever.as_ref().map_or_else(String::new, for_ever));
        let rate = found.states as f64 / progress.elapsed().as_secs_f64().max(1e-6);
        tell(&format!("{} ms, {rate:.1e} states per second", progress.elapsed().as_millis()));
    }
    let lively = |again: &ForEver| again.dead.is_empty() && again.starved.is_empty();
    if found.violation.is_none() && found.for_ever.as_ref().is_none_or(lively) {
        Ok(())
    } else {
        Err(Exit::silent())
    }
}

/// Whether stamps are names only, and order nothing: then the states of a run without end are
/// finite.
const fn orders_without_stamps(kind: Kind) -> bool {
    matches!(kind, Kind::TreeAsPrinted | Kind::TreeAsPrintedPusher | Kind::TreeAsPrintedPriority)
}

/// The demands of each site and how often it makes them, if they were given by site.
fn own_demands(
    args: &Args,
    kind: Kind,
    cluster: &Cluster,
) -> Result<Option<Vec<Vec<(Demand, u32)>>>, Exit> {
    let (asked, sites) = (args.demands.len(), usize::from(cluster.sites));
    if asked == 0 {
        return Ok(None);
    }
    let serves = kind.profile().serves;
    if !matches!(serves, Service::Pool | Service::Semaphore) || cluster.pools.len() > 1 {
        return Err(Exit::usage("--demands is for one pool or semaphore"));
    }
    if args.slots > 1 {
        return Err(Exit::usage(
            "--demands: one claim of each site at a time, so leave out --slots",
        ));
    }
    if asked != sites {
        return Err(Exit::usage(format!("--demands: {asked} numbers for {sites} sites")));
    }
    let most = cluster.pools[0].0;
    if serves == Service::Pool && args.demands.iter().any(|&k| k > most) {
        return Err(Exit::usage(format!("--demands: a claim asks for at most {most} units")));
    }
    let own = |&k: &u32| match k {
        0 => Vec::new(),
        k => vec![(Demand::one(PoolId(0), k), args.rounds)],
    };
    Ok(Some(args.demands.iter().map(own).collect()))
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

/// The traces that there are to show, each with what makes it a run without end.
fn shown(found: &Found) -> Vec<(Option<&Written>, &[Line])> {
    let violation = found.violation.iter().map(|(_, lines)| (found.lasso.as_ref(), &lines[..]));
    let runs = found.for_ever.iter().flat_map(|again| &again.runs);
    violation.chain(runs.map(|(run, lines)| (Some(run), &lines[..]))).collect()
}

fn header(kind: Kind, cluster: &Cluster, run: Option<&Written>) -> Header {
    Header { lasso: run.cloned(), ..Header::new(kind.name(), cluster) }
}

/// Writes a trace.
fn write(
    mut file: WholeFile,
    kind: Kind,
    cluster: &Cluster,
    run: Option<&Written>,
    lines: &[Line],
) -> Result<(), Exit> {
    let written = Writer::new(&mut file.sink, &header(kind, cluster, run))
        .and_then(Writer::finish)
        .and_then(|sink| lines.iter().try_for_each(|line| writeln!(sink, "{}", line.json)));
    written.map_err(|error| Exit::negative(format!("--trace: {error}")))?;
    file.finish()
}

/// What goes on for ever, for people.
fn for_ever(again: &ForEver) -> String {
    let list = |groups: &[kofm_core::GroupId]| {
        let names: Vec<String> = groups.iter().map(ToString::to_string).collect();
        names.join(", ")
    };
    let mut text = match (again.dead.as_slice(), again.starved.as_slice()) {
        ([], []) => "every group can always work again, and none is passed over forever\n".into(),
        ([], starved) => format!("a fair run may pass over {} forever\n", list(starved)),
        (dead, _) => format!("{} may come to a state after which it never works\n", list(dead)),
    };
    let _ = writeln!(text, "fair: {}", again.clients.sentence());
    for (run, lines) in &again.runs {
        let group = run.group.map(|group| group.to_string()).unwrap_or_default();
        let _ = writeln!(text, "\n{group} is {}:\n{}", run.property, steps(Some(run), lines));
    }
    text
}

/// Steps for people; of a run without end, the way in and the loop.
fn steps(run: Option<&Written>, lines: &[Line]) -> String {
    let mut text = String::new();
    let prefix = run.map_or(lines.len(), |run| run.prefix);
    for (i, line) in lines.iter().enumerate() {
        if i == prefix {
            text.push_str("      from here on the same again, forever:\n");
        }
        let _ = writeln!(text, "{}", line.text);
    }
    if run.is_some() && prefix == lines.len() {
        text.push_str("      here the run rests\n");
    }
    text
}

fn lasso(run: &Written, lines: &[Line]) -> Value {
    json!({"prefix": run.prefix, "loop": lines.len() - run.prefix})
}

fn document(kind: Kind, cluster: &Cluster, found: &Found) -> Value {
    let trace = |lines: &[Line]| {
        let step = |line: &Line| serde_json::from_str(&line.json).unwrap_or_default();
        lines.iter().map(step).collect::<Vec<Value>>()
    };
    let violation = found.violation.as_ref().map(|(violation, lines)| {
        let run = found.lasso.as_ref();
        json!({
            "property": violation.property,
            "detail": violation.detail,
            "trace": trace(lines),
            "lasso": run.map(|run| lasso(run, lines)),
            "header": header(kind, cluster, run),
        })
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
        document["fair"] = json!(again.clients.sentence());
        let run = |(run, lines): &(Written, Vec<Line>)| {
            json!({
                "property": run.property,
                "group": run.group,
                "trace": trace(lines),
                "lasso": lasso(run, lines),
                "header": header(kind, cluster, Some(run)),
            })
        };
        document["runs"] = again.runs.iter().map(run).collect();
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
    let run = found.lasso.as_ref();
    let way = run.map_or(steps.len(), |run| run.prefix);
    let mut text = format!(
        "{title}: {} is violated after {way} steps (state {states})\n\n",
        violation.property,
    );
    text.push_str(&self::steps(run, steps));
    let _ = writeln!(text, "\n{}", violation.detail);
    text
}
