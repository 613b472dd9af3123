//! `kofm audit`: who asked a site for which change, and what came of it.

use std::time::Duration;

use clap::Args;
use kofm_net::api::{AuditCheck, AuditEntry};
use kofm_net::client::escape;

use crate::ask::Server;
use crate::exit::Exit;
use crate::history::at_least_one;
use crate::output::{say, say_line};
use crate::tables::{print_json, show_time, table};

const EXAMPLES: &str = "\
Each site keeps a log of its own, in its state_dir. The log has every change
that clients asked for and every refusal; reads are not in it. The command
needs a token with the rule admin:*.

Exit code 0 if the log is as the site wrote it, 1 if --verify finds a line
that was changed, removed or inserted.

Examples:
  kofm audit --since 1h
  kofm audit --principal ci --pool gpu --json
  kofm audit --verify";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Audit {
    /// Only entries of this last time, as in 30m, 12h or 30d
    #[arg(long, value_name = "T", value_parser = kofm_net::duration::parse)]
    since: Option<Duration>,
    /// Only entries of this principal
    #[arg(long, value_name = "P")]
    principal: Option<String>,
    /// Only entries that concern this pool, semaphore or gang
    #[arg(long, value_name = "P")]
    pool: Option<String>,
    /// Number of entries at most, the newest ones
    #[arg(long, default_value_t = PAGE, value_parser = at_least_one)]
    limit: usize,
    /// Check the chain of hashes
    #[arg(long, conflicts_with_all = ["since", "principal", "pool"])]
    verify: bool,
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Entries of one page.
const PAGE: usize = 1000;

impl Audit {
    pub(crate) fn run(self) -> Result<(), Exit> {
        if self.verify {
            return self.check();
        }
        let since = self.since.map(|since| format!("{}ms", since.as_millis()));
        let filters = [("since", since), ("principal", self.principal), ("pool", self.pool)];
        let given = filters.into_iter().filter_map(|(name, value)| Some((name, value?)));
        let given = given.map(|(name, value)| format!("&{name}={}", escape(&value)));
        let (limit, given) = (self.limit, given.collect::<Vec<_>>().concat());
        let list: Vec<AuditEntry> = self.server.with(async |client| {
            let mut list: Vec<AuditEntry> = Vec::new();
            let mut after = String::new();
            while list.len() < limit {
                let count = (limit - list.len()).min(PAGE);
                let path = format!("/v1/audit?limit={count}{after}{given}");
                let page: Vec<AuditEntry> = client.get(&path).await?;
                let Some(oldest) = page.first().filter(|_| page.len() == count) else {
                    list.splice(0..0, page);
                    break;
                };
                // Each page is earlier than the one before.
                after = format!("&after={}", oldest.number);
                list.splice(0..0, page);
            }
            Ok(list)
        })?;
        if self.json {
            return print_json(&list);
        }
        let rows = list.iter().map(|it| {
            vec![
                show_time(it.at_ms),
                it.principal.clone().unwrap_or_else(|| "-".to_owned()),
                it.address.clone(),
                it.verb.clone(),
                it.object.clone(),
                it.result.clone(),
            ]
        });
        say(&table(&["TIME", "PRINCIPAL", "ADDRESS", "VERB", "OBJECT", "RESULT"], rows));
        Ok(())
    }

    fn check(&self) -> Result<(), Exit> {
        let check: AuditCheck =
            self.server.with(async |client| Ok(client.get("/v1/audit?verify=true").await?))?;
        if self.json {
            print_json(&check)?;
        } else if let Some(fault) = &check.fault {
            return Err(Exit::negative(format!(
                "the audit log was tampered with: {fault}; compare it with a copy"
            )));
        } else {
            let (entries, first) = (check.entries, check.first);
            say_line(&format!(
                "{entries} entries from number {first} on, all as they were written"
            ));
        }
        if check.verified { Ok(()) } else { Err(Exit::silent()) }
    }
}
