//! `kofm sim`: one simulated run, measured and judged.

use std::fmt::Write as _;
use std::path::PathBuf;

use kofm_core::{Kind, Service, SiteId};
use kofm_sim::chosen;
use kofm_sim::faults::Fault;
use kofm_sim::report::Report;
use kofm_sim::seeded::Setup;
use kofm_sim::span::{DELAY, Span};

use crate::exit::Exit;
use crate::groups;
use crate::lab::{self, Lab};
use crate::output::{say, tell};
use crate::progress::{Progress, WholeFile, grouped};

const EXAMPLES: &str = "\
Times are in units of the mean link delay: `A..B` is uniform, `~X`
exponential, `X` constant.

A message is charged to the claim it serves; messages per grant are what
granted claims were charged. Messages that serve no claim (tokens that go round,
epochs) is upkeep: each grant has an even share. V of semaphores and claims
that were not granted are counted apart; `messages` counts all.

Examples:
  kofm sim --protocol permission --sites 5 --units 3 --k 1..3
  kofm sim --protocol permission-lazy --sites 9 --units 8 --think ~1 --hold ~10 --long 0=50
  kofm sim --protocol permission --sites 16 --units 4 --topology ring --json
  kofm sim --protocol sem-token --sites 9 --units 3 --k 1..5
  kofm sim --protocol permission --sites 3 --units 2 --requests 20 --trace run.ndjson
  kofm sim --protocol groups --topology examples/groups/figure9.toml --tables

Exit code 0 if no property was violated and every claim was served, 1
otherwise, 64 for wrong usage.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    lab: Lab,
    /// Units per claim, A..B or K [default: 1..1]
    #[arg(long, value_name = "A..B")]
    k: Option<String>,
    /// Claims over all sites
    #[arg(long, value_name = "R", default_value_t = 10_000,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    requests: u64,
    /// Clients at each site, each with one claim at a time
    #[arg(long, value_name = "C", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// Time between a release and the next claim
    #[arg(long, value_name = "T", default_value = "~10")]
    think: Span,
    /// Time that a claim is held; after that, a site adds as much to a semaphore
    #[arg(long, value_name = "T", default_value = "~1")]
    hold: Span,
    /// Time that a message travels
    #[arg(long, value_name = "T", default_value = "0.5..1.5")]
    delay: Span,
    /// Withdraw a claim that has waited this long [default: never]
    #[arg(long, value_name = "T")]
    patience: Option<Span>,
    /// Release one unit half way through, if a claim has several (a semaphore: add it)
    #[arg(long)]
    partial: bool,
    /// Let a site ask this many times as often (repeatable)
    #[arg(long, value_name = "SITE=FACTOR")]
    hot: Vec<String>,
    /// Let a site hold this many times as long (repeatable)
    #[arg(long, value_name = "SITE=FACTOR")]
    long: Vec<String>,
    /// What goes wrong, with commas: pause, partition, crash, restart, one-way, clock-rate,
    /// arbitrary-start, corrupt=P
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Decides everything random
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write every step to this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Instead of a run, let all groups work in turn and print who leads whom after each, until it
    /// is as in the beginning (groups only)
    #[arg(long, conflicts_with_all = ["json", "trace", "faults"])]
    tables: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Exit> {
    let kind = args.lab.kind()?;
    if args.tables {
        if kind != Kind::Groups {
            return Err(Exit::usage(format!("--tables is for groups, not for {}", kind.name())));
        }
        let names = args.lab.group_file(kind)?.map(|file| file.1);
        say(&groups::tables(&args.lab.cluster(kind)?, names));
        return Ok(());
    }
    let setup = setup(args, kind)?;
    let mut progress = Progress::new(args.json);
    let file = args.trace.as_deref().map(WholeFile::create).transpose()?;
    let report = watched(kind, &setup, file, &mut progress)?;
    progress.clear();
    let wall = progress.elapsed();
    if args.json {
        let mut json = report.json();
        json["wall_ms"] = u64::try_from(wall.as_millis()).unwrap_or(u64::MAX).into();
        say(&format!("{json}\n"));
    } else {
        say(&table(args, kind, &setup, &report));
        let rate = report.events as f64 / wall.as_secs_f64().max(1e-6);
        let ms = wall.as_millis();
        tell(&format!("{} events in {ms} ms, {rate:.1e} per second", grouped(report.events)));
    }
    if report.is_clean() { Ok(()) } else { Err(Exit::silent()) }
}

fn watched(
    kind: Kind,
    setup: &Setup,
    mut file: Option<WholeFile>,
    progress: &mut Progress,
) -> Result<Report, Exit> {
    let mut seen = |grants| progress.show(grants, Some(setup.requests), "grants");
    let sink = file.as_mut().map(|file| &mut file.sink as &mut dyn std::io::Write);
    let report = chosen::watch(kind, setup, sink, &mut seen)
        .map_err(|error| Exit::negative(format!("--trace: {error}")))?;
    file.map(WholeFile::finish).transpose()?;
    Ok(report)
}

fn setup(args: &Args, kind: Kind) -> Result<Setup, Exit> {
    let profile = kind.profile();
    for fault in &args.faults {
        if !profile.survives(fault.name()) {
            let survives = match profile.survives {
                [] => "nothing".to_owned(),
                names => names.join(", "),
            };
            let name = kind.name();
            if fault.needs_epochs() && profile.survives("arbitrary-start") {
                // It survives crashes by itself, which only a simulator without epochs can show.
                return Err(Exit::usage(format!(
                    "--faults {fault}: this is simulated with epochs, which {name} does without; \
                     here it survives {survives}, and the example tree_storm of kofm-sim has \
                     crashes and cuts"
                )));
            }
            return Err(Exit::usage(format!(
                "--faults {fault}: {name} does not claim to survive it; it survives {survives}"
            )));
        }
    }
    if let Some(fault) = args.faults.iter().find(|fault| fault.needs_epochs())
        && args.trace.is_some()
    {
        return Err(Exit::usage(format!(
            "--trace: steps of a run with `{fault}` go through epochs, which no trace records"
        )));
    }
    if profile.serves == Service::Gang && args.partial {
        return Err(Exit::usage("--partial: a share of a gang is given back whole"));
    }
    if !profile.full_service && (args.clients > 1 || args.patience.is_some() || args.partial) {
        return Err(lab::plain_service(kind));
    }
    let cluster = args.lab.cluster(kind)?;
    if u64::from(args.clients) * u64::from(cluster.sites) > 10_000_000 {
        return Err(Exit::usage("--clients: at most 10,000,000 over all sites"));
    }
    Ok(Setup {
        k: args.lab.amounts(kind, args.k.as_deref(), (1, 1))?,
        requests: args.requests,
        clients: args.clients,
        think: args.think,
        hold: args.hold,
        delay: args.delay,
        patience: args.patience,
        partial: args.partial,
        hot: factors("--hot", &args.hot, cluster.sites)?,
        wander: false,
        long: factors("--long", &args.long, cluster.sites)?,
        faults: args.faults.clone(),
        seed: args.seed,
        cluster,
    })
}

fn factors(flag: &str, list: &[String], sites: u16) -> Result<Vec<(SiteId, f64)>, Exit> {
    let parse = |text: &String| {
        let (site, factor) = text.split_once('=')?;
        let site = site.strip_prefix('s').unwrap_or(site).parse().ok().filter(|&s| s < sites)?;
        let factor = factor.parse().ok().filter(|f| (0.001..=1e6).contains(f))?;
        Some((SiteId(site), factor))
    };
    let one = |text| {
        parse(text).ok_or_else(|| {
            let last = sites - 1;
            Exit::usage(format!(
                "{flag} {text}: write SITE=FACTOR with a site from 0 to {last} \
                 and a factor from 0.001 to 1000000"
            ))
        })
    };
    let factors: Vec<(SiteId, f64)> = list.iter().map(one).collect::<Result<_, _>>()?;
    for (i, (site, _)) in factors.iter().enumerate() {
        if factors[..i].iter().any(|earlier| earlier.0 == *site) {
            return Err(Exit::usage(format!("{flag}: {site} is given twice")));
        }
    }
    Ok(factors)
}

/// The report for people.
fn table(args: &Args, kind: Kind, setup: &Setup, report: &Report) -> String {
    let mut text = String::new();
    let title = lab::title(kind, &setup.cluster);
    let shape = args.lab.shape(&setup.cluster);
    let messages = report.messages_per_grant();
    let (mean, p50) = (report.wait_mean(), report.wait_at(500));
    let (p99, max) = (report.wait_at(990), report.wait_at(1_000));
    let _ = writeln!(text, "{title}{shape}, seed {}\n", setup.seed);
    let _ = writeln!(
        text,
        "  grants              {} of {} requests",
        grouped(report.grants()),
        grouped(report.requests)
    );
    if report.withdrawn > 0 {
        let _ = writeln!(text, "  withdrawn           {}", grouped(report.withdrawn));
    }
    let _ = writeln!(
        text,
        "  messages per grant  min {}   mean {:.2}   max {}",
        messages.min, messages.mean, messages.max
    );
    let apart = [
        ("messages of all V", report.spread, ""),
        ("messages of upkeep", report.upkeep(), ", shared evenly by the grants"),
        ("messages in vain", report.in_vain(), ", of claims that were not granted"),
    ];
    for (name, count, what) in apart.into_iter().filter(|row| row.1 > 0) {
        let _ = writeln!(text, "  {name:<18}  {}{what}", grouped(count));
    }
    let _ = writeln!(
        text,
        "  wait (link delays)  mean {mean:.2}   p50 {p50:.2}   p99 {p99:.2}   max {max:.2}"
    );
    let _ = writeln!(text, "  overtaken at most   {} times", report.overtaken_max);
    let _ = writeln!(text, "  most units in use   {}", report.max_in_use);
    let _ = writeln!(text, "  left waiting        {}", report.unserved);
    let _ = writeln!(text, "  violations          {}", report.violation_count);
    if let Some(healed) = &report.stabilised {
        let time = healed.time as f64 / DELAY as f64;
        let _ = writeln!(text, "    while healing     {}", report.violations_before);
        let _ = writeln!(
            text,
            "  all right after     {time:.1} link delays, {} steps, {} circulations",
            grouped(healed.steps),
            grouped(healed.circulations)
        );
    }
    for violation in &report.violations {
        let _ = writeln!(text, "    {violation}");
    }
    text.push_str(&chart(report));
    text
}

/// A bar for each range of waits.
fn chart(report: &Report) -> String {
    const BARS: usize = 10;
    const WIDTH: usize = 50;
    // The last hundredth would squeeze everything else into one bar: it shares the last one.
    let step = nice_step(report.wait_at(990) / BARS as f64);
    if report.grants() == 0 || step <= 0.0 {
        return String::new();
    }
    let mut counts = [0usize; BARS];
    for wait in report.waits() {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, >= 0")]
        let bar = (wait / step) as usize;
        counts[bar.min(BARS - 1)] += 1;
    }
    let used = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    let decimals = if step < 0.1 { 2 } else { usize::from(step < 1.0) };
    let mut text = String::from("\n  wait, in link delays\n");
    for (i, &count) in counts.iter().enumerate().take(used) {
        let from = step * i as f64;
        let to = if i + 1 == BARS {
            "and more".to_owned()
        } else {
            format!("to {:.decimals$}", from + step)
        };
        let filled = (count * WIDTH).div_ceil(most);
        let percent = 100.0 * count as f64 / report.grants() as f64;
        let range = format!("{from:.decimals$} {to}");
        let _ = writeln!(text, "  {range:>16}  {:<WIDTH$} {percent:>5.1} %", "█".repeat(filled));
    }
    text
}

/// The next larger of 1, 2, 5 times a power of ten.
fn nice_step(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    let power = 10f64.powf(x.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().map(|s| s * power).find(|&s| s >= x).unwrap_or(10.0 * power)
}
