//! `kofm replay`: a trace again, step by step.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use kofm_core::{Kind, Protocol, Visitor};
use kofm_sim::trace::{self, Header};
use kofm_sim::visit_on;

use crate::exit::Exit;
use crate::output::{grouped, say};

/// Every step is taken again by the protocol's own code; the first one whose effects are not
/// those in the file ends the replay with exit code 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A trace, as written by `kofm sim --trace` or `kofm check --trace`
    file: PathBuf,
    /// Do not show the steps, only whether they replay
    #[arg(long)]
    quiet: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Exit> {
    let path = args.file.display();
    let file = File::open(&args.file)
        .map_err(|error| Exit::usage(format!("cannot read {path}: {error}")))?;
    let mut source = BufReader::new(file);
    let header = trace::read_header(&mut source)
        .map_err(|problem| Exit::usage(format!("{path}: {problem}")))?;
    let kind = Kind::named(&header.protocol).ok_or_else(|| {
        Exit::usage(format!("{path}: there is no protocol `{}`", header.protocol))
    })?;
    let replay = Replay { header: &header, source, quiet: args.quiet };
    let steps = visit_on(kind, &header.cluster.topology, replay)
        .map_err(|problem| Exit::negative(format!("{path}: {problem}")))?;
    eprintln!("{} steps, all as recorded", grouped(steps));
    Ok(())
}

struct Replay<'a, R> {
    header: &'a Header,
    source: R,
    quiet: bool,
}

impl<R: BufRead> Visitor for Replay<'_, R> {
    type Output = Result<u64, String>;

    fn visit<P: Protocol>(self) -> Self::Output {
        trace::replay::<P>(self.header, self.source, |step| {
            if !self.quiet {
                say(&format!("{}\n", step.text()));
            }
        })
    }
}
