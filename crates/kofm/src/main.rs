//! The command line of kofm. Each subcommand is a file; this one only lists them.

mod check;
mod failure;
mod lab;
mod output;
mod protocols;
mod quorums;
mod replay;
mod sim;
mod topology;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::failure::USAGE;

/// Shares k units out of M among many machines, with no master.
#[derive(Debug, Parser)]
#[command(name = "kofm", version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Simulate a protocol on a made-up network
    Sim(sim::Args),
    /// Explore every interleaving of a protocol, within bounds
    Check(check::Args),
    /// Run a trace again, step by step
    Replay(replay::Args),
    /// List the protocols
    Protocols(protocols::Args),
    /// Compare request sets for the quorum protocols
    Quorums(quorums::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe while printing help is nobody's fault.
            let _closed = error.print();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(USAGE) };
        }
    };
    let result = match cli.command {
        Command::Sim(args) => sim::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Protocols(args) => Ok(protocols::run(&args)),
        Command::Quorums(args) => quorums::run(&args),
    };
    result.unwrap_or_else(|failure| failure.report())
}
