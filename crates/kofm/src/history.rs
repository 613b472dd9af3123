//! `kofm history` and `kofm usage`: what happened, and who used what.

use clap::{Args, ValueEnum};
use kofm_net::api;
use kofm_net::client::escape;

use crate::ask::Server;
use crate::doctor::warn;
use crate::exit::Exit;
use crate::output::say;
use crate::tables::{print_json, show_date, show_ms, show_units, show_want, table};

const HISTORY_EXAMPLES: &str = "\
Examples:
  kofm history  # the last 100 events, at all sites
  kofm history gpu --limit 10
  kofm history --since 30d --owner alice --csv";

#[derive(Debug, Args)]
#[command(after_help = HISTORY_EXAMPLES)]
pub(crate) struct History {
    /// Only this pool
    #[arg(conflicts_with = "pool")]
    name: Option<String>,
    /// Only this pool
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Only requests of this owner
    #[arg(long)]
    owner: Option<String>,
    /// Only events of this kind, as granted or expired
    #[arg(long)]
    event: Option<String>,
    /// Only what happened since then: 30d, or a date as 2026-01-31
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<String>,
    /// Only what happened until then
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<String>,
    /// Number of entries at most, the newest ones [default: 100, with --since all]
    #[arg(long, value_parser = at_least_one)]
    limit: Option<usize>,
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// Entries that are shown without a limit.
const SHOWN: usize = 100;
/// Entries of one page.
const PAGE: usize = 1000;

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or_else(|| "it must be a number from 1 on".to_owned())
}

/// Refuses a text that no site could read as a time. The site reads it, by its own clock.
fn time(text: &str) -> Result<String, String> {
    api::moment::parse(text, 0).map(|_| text.to_owned())
}

/// A query of the parameters that are given.
fn query(list: &[(&str, Option<&str>)]) -> String {
    let given = list.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let given = given.map(|(name, value)| format!("{name}={}", escape(value)));
    given.collect::<Vec<_>>().join("&")
}

impl History {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let limit = match (self.limit, &self.since) {
            (Some(limit), _) => limit,
            (None, Some(_)) => usize::MAX,
            (None, None) => SHOWN,
        };
        let selected = query(&[
            ("pool", self.pool.as_deref().or(self.name.as_deref())),
            ("owner", self.owner.as_deref()),
            ("event", self.event.as_deref()),
            ("since", self.since.as_deref()),
            ("until", self.until.as_deref()),
        ]);
        let list: Vec<api::Happening> = self.server.with(async |client| {
            let mut list: Vec<api::Happening> = Vec::new();
            let mut after = String::new();
            loop {
                let page = (limit - list.len()).min(PAGE);
                let path = format!("/v1/history?limit={page}{after}&{selected}");
                let page: api::HistoryPage = client.get(path.trim_end_matches('&')).await?;
                // Each page is earlier than the one before.
                list.extend(page.history.into_iter().rev());
                match page.next {
                    Some(next) if list.len() < limit => after = format!("&after={}", escape(&next)),
                    Some(_) | None => break,
                }
            }
            warn(&client).await;
            list.reverse();
            Ok(list)
        })?;
        if self.json {
            return print_json(&list);
        }
        if self.csv {
            say(&history_csv(&list));
            return Ok(());
        }
        let rows = list.iter().map(|it| {
            vec![
                show_date(it.at_ms),
                it.event.to_string(),
                if it.units.is_empty() { show_want(&it.want) } else { show_units(&it.units) },
                it.owner.as_deref().unwrap_or_default().to_owned(),
                it.waited_ms.map(show_ms).unwrap_or_default(),
                it.held_ms.map(show_ms).unwrap_or_default(),
                it.lease.as_deref().unwrap_or_default().to_owned(),
                it.cause.as_deref().unwrap_or_default().to_owned(),
            ]
        });
        let head = ["TIME", "EVENT", "UNITS", "OWNER", "WAITED", "HELD", "LEASE", "CAUSE"];
        say(&table(&head, rows));
        Ok(())
    }
}

fn history_csv(list: &[api::Happening]) -> String {
    let head = [
        "time",
        "at_ms",
        "site",
        "seq",
        "event",
        "request",
        "lease",
        "owner",
        "principal",
        "want",
        "units",
        "fence",
        "waited_ms",
        "held_ms",
        "reason",
        "cause",
    ];
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let number = |number: Option<u64>| number.map(|it| it.to_string()).unwrap_or_default();
    let rows = list.iter().map(|it| {
        vec![
            show_date(it.at_ms),
            it.at_ms.to_string(),
            it.site.to_string(),
            it.seq.to_string(),
            it.event.to_string(),
            text(it.request.as_deref()),
            text(it.lease.as_deref()),
            text(it.owner.as_deref()),
            text(it.principal.as_deref()),
            show_want(&it.want),
            show_units(&it.units),
            number(it.fence),
            number(it.waited_ms),
            number(it.held_ms),
            text(it.reason.as_deref()),
            text(it.cause.as_deref()),
        ]
    });
    csv(&head, rows)
}

/// Comma-separated values as RFC 4180 has them, but with line feeds only. A text that a
/// spreadsheet would take for a formula gets an apostrophe.
fn csv(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    let mut out = String::new();
    for row in std::iter::once(head).chain(rows) {
        let cells = row.into_iter().map(|cell| {
            let formula = cell.starts_with(['=', '+', '-', '@']) && cell.parse::<f64>().is_err();
            let cell = if formula { format!("'{cell}") } else { cell };
            if cell.contains(['"', ',', '\n', '\r']) {
                format!("\"{}\"", cell.replace('"', "\"\""))
            } else {
                cell
            }
        });
        out.push_str(&cells.collect::<Vec<_>>().join(","));
        out.push('\n');
    }
    out
}

const USAGE_EXAMPLES: &str = "\
Examples:
  kofm usage  # unit-hours of each owner in the last 30 days
  kofm usage --by pool --since 7d
  kofm usage --by unit --pool gpu --csv";

#[derive(Debug, Args)]
#[command(after_help = USAGE_EXAMPLES)]
pub(crate) struct Usage {
    /// What to sum by
    #[arg(long, value_enum, default_value_t = By::Owner)]
    by: By,
    /// Only what happened since then: 30d, or a date as 2026-01-31
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = time)]
    since: String,
    /// Only this pool
    #[arg(long)]
    pool: Option<String>,
    #[command(flatten)]
    server: Server,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Owner,
    Pool,
    Unit,
}

impl Usage {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let by = match self.by {
            By::Owner => "owner",
            By::Pool => "pool",
            By::Unit => "unit",
        };
        let parts = [
            ("by", Some(by)),
            ("since", Some(self.since.as_str())),
            ("pool", self.pool.as_deref()),
        ];
        let path = format!("/v1/usage?{}", query(&parts));
        let list: Vec<api::UsageRow> = self.server.with(async |client| {
            let list = client.get(&path).await?;
            warn(&client).await;
            Ok(list)
        })?;
        if self.json {
            return print_json(&list);
        }
        if self.csv {
            say(&self.table_of_values(&list));
            return Ok(());
        }
        say(&self.table_of_words(&list));
        Ok(())
    }

    /// The columns that name a row.
    fn names(&self) -> &'static [&'static str] {
        match self.by {
            By::Owner => &["owner"],
            By::Pool => &["pool"],
            By::Unit => &["pool", "unit"],
        }
    }

    fn named(&self, it: &api::UsageRow) -> Vec<String> {
        let all = match self.by {
            By::Owner => vec![&it.owner],
            By::Pool => vec![&it.pool],
            By::Unit => vec![&it.pool, &it.unit],
        };
        all.into_iter().map(|text| text.clone().unwrap_or_default()).collect()
    }

    fn table_of_values(&self, list: &[api::UsageRow]) -> String {
        let mut head = self.names().to_vec();
        head.extend([
            "leases",
            "unit_hours",
            "share",
            "utilisation",
            "wait_p50_ms",
            "wait_p95_ms",
            "hold_p50_ms",
            "hold_p95_ms",
            "expired",
            "failed",
            "cancelled",
            "refused",
            "window_ms",
        ]);
        let time = |ms: Option<u64>| ms.map(|it| it.to_string()).unwrap_or_default();
        let rows = list.iter().map(|it| {
            let mut row = self.named(it);
            row.extend([
                it.leases.to_string(),
                format!("{:.6}", it.unit_hours),
                format!("{:.6}", it.share),
                format!("{:.6}", it.utilisation),
                time(it.wait_p50_ms),
                time(it.wait_p95_ms),
                time(it.hold_p50_ms),
                time(it.hold_p95_ms),
                it.expired.to_string(),
                it.failed.to_string(),
                it.cancelled.to_string(),
                it.refused.to_string(),
                it.window_ms.to_string(),
            ]);
            row
        });
        csv(&head, rows)
    }

    fn table_of_words(&self, list: &[api::UsageRow]) -> String {
        let names: Vec<String> = self.names().iter().map(|it| it.to_uppercase()).collect();
        let mut head: Vec<&str> = names.iter().map(String::as_str).collect();
        head.extend([
            "LEASES",
            "UNIT-HOURS",
            "SHARE",
            "UTILISATION",
            "WAIT P50",
            "WAIT P95",
            "HOLD P50",
            "HOLD P95",
            "EXPIRED",
            "FAILED",
        ]);
        let time = |ms: Option<u64>| ms.map(show_ms).unwrap_or_default();
        let percent = |part: f64| format!("{:.1}%", part * 100.0);
        let rows = list.iter().map(|it| {
            let mut row = self.named(it);
            row.iter_mut().filter(|it| it.is_empty()).for_each(|it| "-".clone_into(it));
            row.extend([
                it.leases.to_string(),
                format!("{:.2}", it.unit_hours),
                percent(it.share),
                percent(it.utilisation),
                time(it.wait_p50_ms),
                time(it.wait_p95_ms),
                time(it.hold_p50_ms),
                time(it.hold_p95_ms),
                it.expired.to_string(),
                it.failed.to_string(),
            ]);
            row
        });
        table(&head, rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_where_a_reader_needs_it() {
        let row = ["plain", "a,b", "say \"x\"", "=1+1", "-5", ""].map(str::to_owned).to_vec();
        let text = csv(&["a", "b", "c", "d", "e", "f"], std::iter::once(row));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "a,b,c,d,e,f");
        assert_eq!(lines[1], "plain,\"a,b\",\"say \"\"x\"\"\",'=1+1,-5,");
    }
}
