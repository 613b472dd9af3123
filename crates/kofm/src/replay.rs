//! `kofm replay`: a trace again, step by step.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use kofm_core::Kind;
use kofm_sim::{chosen, trace};

use crate::exit::Exit;
use crate::output::{say, tell};
use crate::progress::grouped;

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
    let mut show = |step: String| {
        if !args.quiet {
            say(&format!("{step}\n"));
        }
    };
    let steps = chosen::replay(kind, &header, &mut source, &mut show)
        .map_err(|problem| Exit::negative(format!("{path}: {problem}")))?;
    tell(&format!("{} steps, all as recorded", grouped(steps)));
    Ok(())
}
