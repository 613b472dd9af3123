//! `kofm replay`: a trace again, step by step.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use kofm_core::Kind;
use kofm_sim::{chosen, trace};
use serde_json::Value;

use crate::exit::Exit;
use crate::output::{say, tell};
use crate::progress::grouped;

const EXAMPLES: &str = "\
Examples:
  kofm replay run.jsonl
  kofm replay verdict.json --quiet";

/// Every step is taken again by the protocol's own code; the first one whose effects are not
/// those in the file ends the replay with exit code 1. The trace of a run without end has the way
/// in and one turn of the loop: the replay fails if the loop does not lead back to where it began,
/// if it leaves out what can always happen, or if no claim waits all the time.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A trace, as written by `kofm sim --trace` or `kofm check --trace`; or the output of
    /// `kofm check --json`, with all traces in it
    file: PathBuf,
    /// Do not show the steps, only whether they replay
    #[arg(long)]
    quiet: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Exit> {
    let path = args.file.display();
    let unreadable = |error| Exit::usage(format!("cannot read {path}: {error}"));
    let mut source = BufReader::new(File::open(&args.file).map_err(unreadable)?);
    let total = match traces(&mut source).map_err(unreadable)? {
        None => one(args, &mut source)?,
        Some(traces) if traces.is_empty() => {
            return Err(Exit::usage(format!("{path}: `kofm check` found nothing to replay")));
        }
        Some(traces) => {
            let each = traces.iter().map(|trace| one(args, &mut trace.as_bytes()));
            each.sum::<Result<u64, Exit>>()?
        }
    };
    tell(&format!("{} steps, all as recorded", grouped(total)));
    Ok(())
}

/// The traces in a document of `kofm check --json`; none if the file is something else, which then
/// is not read.
fn traces(source: &mut BufReader<File>) -> std::io::Result<Option<Vec<String>>> {
    const BEGINNING: &[u8] = b"{\"complete\":";
    if !source.fill_buf()?.starts_with(BEGINNING) {
        return Ok(None);
    }
    let found: Value = serde_json::from_reader(source)?;
    let runs = found["runs"].as_array().into_iter().flatten();
    let shown = std::iter::once(&found["violation"]).chain(runs).filter(|one| !one.is_null());
    let lines = |one: &Value| {
        let steps = one["trace"].as_array().into_iter().flatten();
        let lines = std::iter::once(&one["header"]).chain(steps);
        let lines: Vec<String> = lines.map(ToString::to_string).collect();
        lines.join("\n")
    };
    Ok(Some(shown.map(lines).collect()))
}

/// Replays one trace; says how many steps it has.
fn one(args: &Args, source: &mut dyn BufRead) -> Result<u64, Exit> {
    let path = args.file.display();
    let mut source = source;
    let header = trace::read_header(&mut source)
        .map_err(|problem| Exit::usage(format!("{path}: {problem}")))?;
    let kind = Kind::named(&header.protocol).ok_or_else(|| {
        Exit::usage(format!("{path}: there is no protocol `{}`", header.protocol))
    })?;
    let mut show = |step: String| {
        if !args.quiet {
            say(&format!("{step}\n"));
        }
    };
    let steps = chosen::replay(kind, &header, &mut source, &mut show)
        .map_err(|problem| Exit::negative(format!("{path}: {problem}")))?;
    if let Some(run) = &header.lasso {
        let prefix = grouped(run.prefix as u64);
        let group = run.group.map(|group| format!(" of {group}")).unwrap_or_default();
        let what = format!("{}{group}", run.property);
        if run.prefix as u64 == steps {
            tell(&format!("{what}: the run rests after {prefix} steps"));
        } else {
            let turn = grouped(steps - run.prefix as u64);
            tell(&format!("{what}: after {prefix} steps the next {turn} go round forever"));
        }
    }
    Ok(steps)
}
