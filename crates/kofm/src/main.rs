//! `kofm`: k units out of M, shared by every machine you own, with no master.

// They panic where nobody reads; `output` has what does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod acquire;
#[cfg(feature = "lab")]
mod anywhere;
mod ask;
mod audit;
mod backup;
mod bench;
mod cgroup;
#[cfg(feature = "lab")]
mod check;
mod doctor;
mod examples;
mod exit;
mod extras;
mod gang;
#[cfg(feature = "lab")]
mod groups;
mod guard;
mod history;
mod keyring;
#[cfg(feature = "lab")]
mod lab;
mod log;
mod member;
mod output;
mod pool;
#[cfg(feature = "lab")]
mod progress;
mod protocols;
mod quorums;
mod recover;
#[cfg(feature = "lab")]
mod replay;
mod run;
mod sem;
mod serve;
#[cfg(feature = "lab")]
mod sets;
#[cfg(feature = "lab")]
mod sim;
mod tables;
mod token;
mod top;
#[cfg(feature = "lab")]
mod topology;
mod up;

use std::io::ErrorKind;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit::Exit;
use crate::output::tell;

/// Share k units out of M among all your machines, with no master.
#[derive(Debug, Parser)]
#[command(name = "kofm", version = version(), max_term_width = 80, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a whole cluster in one process
    Up(up::Up),
    /// Run one site of a cluster
    Serve(serve::Serve),
    /// Check a configuration file and explain every mistake
    CheckConfig(serve::CheckConfig),
    /// Run a command while holding units
    Run(run::Run),
    /// Wait for units and print the lease
    Acquire(acquire::Acquire),
    /// Renew a lease
    Renew(acquire::Renew),
    /// Release a lease
    Release(acquire::Release),
    /// Cancel a waiting request
    Cancel(acquire::Cancel),
    /// Show pools and leases
    Status(ask::Status),
    /// Show waiting requests
    Queue(ask::Queue),
    /// Show what a request waits for and which leases block it
    Explain(ask::Explain),
    /// Show events of all sites
    History(history::History),
    /// Sum unit-hours, waits and utilisation
    Usage(history::Usage),
    /// Show the sites
    Members(ask::Members),
    /// Create a cluster: its authority, first site and first token
    Init(member::Init),
    /// Print a code with which one machine joins the cluster
    Invite(member::Invite),
    /// Join a cluster with a code, and serve
    Join(member::Join),
    /// List and remove the sites of a cluster
    #[command(subcommand)]
    Member(member::Member),
    /// Stop new requests at a site
    Drain(member::Drain),
    /// Let a drained site accept requests again
    Undrain(member::Undrain),
    /// Print the configuration that the cluster keeps, for `kofm restore`
    Backup(backup::Backup),
    /// Add what a backup has and the cluster lacks
    Restore(backup::Restore),
    /// Show problems of the cluster and how to solve them
    Doctor(doctor::Doctor),
    /// Watch pools, leases and the queue in the terminal
    Top(top::Top),
    /// Create, change, list and remove pools
    #[command(subcommand)]
    Pool(pool::Pool),
    /// Create, use, list and remove semaphores
    #[command(subcommand)]
    Sem(sem::Sem),
    /// Create, run, list and remove gangs
    #[command(subcommand)]
    Gang(gang::Gang),
    /// Create, list and revoke the tokens of principals
    #[command(subcommand)]
    Token(token::Token),
    /// Add rules to a principal, or remove them
    Allow(token::Allow),
    /// Show which principal may do what
    Rules(token::Rules),
    /// Show or check the audit log of a site
    Audit(audit::Audit),
    /// Run a protocol in the simulator
    #[cfg(feature = "lab")]
    Sim(sim::Args),
    /// Explore every interleaving of a protocol, within bounds
    #[cfg(feature = "lab")]
    Check(check::Args),
    /// Run a recorded trace again, step by step
    #[cfg(feature = "lab")]
    Replay(replay::Args),
    /// List the protocols
    Protocols(protocols::Args),
    /// Compare request sets for the quorum protocols
    Quorums(quorums::Args),
    /// Measure a cluster
    Bench(bench::Bench),
    /// Print a completion script for a shell
    Completions(extras::Completions),
    /// Write manual pages
    Man(extras::Man),
}

impl Command {
    fn run(self) -> Result<(), Exit> {
        match self {
            Self::Up(up) => up.run(),
            Self::Serve(serve) => serve.run(),
            Self::CheckConfig(check) => check.run(),
            Self::Run(run) => run.run(),
            Self::Acquire(acquire) => acquire.run(),
            Self::Renew(renew) => renew.run(),
            Self::Release(release) => release.run(),
            Self::Cancel(cancel) => cancel.run(),
            Self::Status(status) => status.run(),
            Self::Queue(queue) => queue.run(),
            Self::Explain(explain) => explain.run(),
            Self::History(history) => history.run(),
            Self::Usage(usage) => usage.run(),
            Self::Members(members) => members.run(),
            Self::Init(init) => init.run(),
            Self::Invite(invite) => invite.run(),
            Self::Join(join) => join.run(),
            Self::Member(member) => member.run(),
            Self::Drain(drain) => drain.run(),
            Self::Undrain(undrain) => undrain.run(),
            Self::Backup(backup) => backup.run(),
            Self::Restore(restore) => restore.run(),
            Self::Doctor(doctor) => doctor.run(),
            Self::Top(top) => top.run(),
            Self::Pool(pool) => pool.run(),
            Self::Sem(sem) => sem.run(),
            Self::Gang(gang) => gang.run(),
            Self::Token(token) => token.run(),
            Self::Allow(allow) => allow.run(),
            Self::Rules(rules) => rules.run(),
            Self::Audit(audit) => audit.run(),
            #[cfg(feature = "lab")]
            Self::Sim(args) => sim::run(&args),
            #[cfg(feature = "lab")]
            Self::Check(args) => check::run(&args),
            #[cfg(feature = "lab")]
            Self::Replay(args) => replay::run(&args),
            Self::Protocols(args) => {
                protocols::run(&args);
                Ok(())
            }
            Self::Quorums(args) => quorums::run(&args),
            Self::Bench(bench) => bench.run(),
            Self::Completions(completions) => {
                completions.run();
                Ok(())
            }
            Self::Man(man) => man.run(),
        }
    }
}

/// Version, commit if it is known, and the version of the wire between sites.
fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let commit = match env!("KOFM_COMMIT") {
            "" => String::new(),
            commit => format!("commit {commit}, "),
        };
        format!("{} ({commit}wire {})", env!("CARGO_PKG_VERSION"), kofm_net::wire::VERSION)
    });
    &TEXT
}

const EXIT_CODES: &str = "\
Exit codes: the child's own (run); 64 wrong usage; 65 infeasible, unknown pool
or malformed demand; 69 no site reachable; 71 the system lacks something, as a
free port; 75 busy, with --wait 0; 76 lease lost; 77 not allowed; 78 a mistake
in the configuration; 124 --wait ran out; 126 and 127 run could not start the
child; 1 the answer is no, or cannot be printed.

The sites are found by --addr or KOFM_ADDR (several, separated by commas: when
one does not answer, the next is asked), the token by KOFM_TOKEN. KOFM_LOG
selects what up and serve log: error, warn, info, debug, or a part of it, as
kofm_net=debug.";

/// The commands with all their help.
fn definition() -> clap::Command {
    examples::add(Cli::command())
}

fn parse() -> Result<Cli, clap::Error> {
    let mut command = definition();
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn main() -> ExitCode {
    let hidden = std::env::args_os().nth(1).unwrap_or_default();
    // Not among the commands, so that no help and no completion offers them.
    let parsed = if hidden == guard::NAME {
        guard::Guard::try_parse_from(std::env::args_os().skip(1)).map(guard::Guard::run)
    } else if hidden == guard::STARTER {
        guard::Starter::try_parse_from(std::env::args_os().skip(1)).map(guard::Starter::run)
    } else {
        parse().map(|cli| cli.command.run())
    };
    let result = match parsed {
        Ok(result) => result,
        Err(error) if error.use_stderr() => {
            // Where not even the usage can be printed, the exit code still says it.
            drop(error.print());
            return ExitCode::from(64);
        }
        Err(help) => match help.print() {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Exit::negative(format!("cannot write to standard output: {error}")))
            }
            Ok(()) | Err(_) => Ok(()),
        },
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => {
            if !exit.message.is_empty() {
                tell(&format!("kofm: {}", exit.message));
            }
            ExitCode::from(exit.code)
        }
    }
}
