//! `kofm backup` and `restore`: the configuration that a cluster keeps, as a file.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hyper::Method;
use serde_json::Value;

use crate::ask::Server;
use crate::exit::{Exit, INFEASIBLE, SYSTEM};
use crate::output::tell;
use crate::tables::print_json;

const PATIENCE: Duration = Duration::from_mins(1);

const BACKUP_HELP: &str = "\
The document has pools with quarantined units, semaphores with the values that
they began with, gangs, and principals with their rules and the hashes of
their tokens. It has no sites, requests, leases or keys. The command needs a
token with the rule admin:*.

Example:
  kofm backup > cluster.json";

const RESTORE_HELP: &str = "\
Adds what the cluster lacks, with one change: all of it or nothing. Nothing
that exists is changed: if something else has a name of the document, the
command names it and changes nothing. A repetition is harmless. The tokens of
restored principals are valid again.

Example, for a new cluster:
  kofm restore cluster.json";

#[derive(Debug, Args)]
#[command(after_help = BACKUP_HELP)]
pub(crate) struct Backup {
    #[command(flatten)]
    server: Server,
}

impl Backup {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let saved: Value = self.server.with(async |client| {
            Ok(client.call(Method::GET, "/v1/backup", None::<&()>, PATIENCE).await?)
        })?;
        print_json(&saved)
    }
}

#[derive(Debug, Args)]
#[command(after_help = RESTORE_HELP)]
pub(crate) struct Restore {
    /// The file that `kofm backup` wrote
    file: PathBuf,
    #[command(flatten)]
    server: Server,
}

impl Restore {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let file = self.file.display();
        let text = fs::read_to_string(&self.file)
            .map_err(|error| Exit::new(SYSTEM, format!("{file}: {error}")))?;
        let saved: Value = serde_json::from_str(&text).map_err(|error| {
            let text = format!("{file}: {error}; it must be a file that `kofm backup` wrote");
            Exit::new(INFEASIBLE, text)
        })?;
        let _done: Value = self.server.with(async |client| {
            Ok(client.call(Method::PUT, "/v1/backup", Some(&saved), PATIENCE).await?)
        })?;
        tell(&format!("{file}: restored"));
        Ok(())
    }
}
