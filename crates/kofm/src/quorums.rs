//! `kofm quorums`: whom to ask, the constructions side by side.

use std::fmt::Write as _;

use kofm_core::quorums::{Comparison, Row, compare};

use crate::exit::Exit;
use crate::output::say;

const EXAMPLES: &str = "\
Examples:
  kofm quorums --sites 100 --units 2
  kofm quorums --sites 13 --units 1 --json
  kofm quorums --sites 20 --units 2 --crashes 2";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Number of sites
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    sites: u16,
    /// Units in the pool
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    units: u32,
    /// Number of arbiters that may be down
    #[arg(long, value_name = "F", default_value_t = 0)]
    crashes: u16,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Exit> {
    let comparison = compare(args.sites, args.units, args.crashes)
        .map_err(|error| Exit::usage(error.to_string()))?;
    say(&if args.json { to_json(&comparison) } else { to_text(&comparison) });
    Ok(())
}

fn to_text(comparison: &Comparison) -> String {
    let Comparison { sites, units, bound, .. } = comparison;
    let mut text = format!("sites {sites}, units {units}, bound {bound}\n\n");
    text += &line("", ["min", "mean", "max", "load", "crashes", "messages"]);
    for row in &comparison.rows {
        text += &to_line(row);
    }
    writeln!(text, "\n* {}.", comparison.reason()).expect("a string takes everything");
    text += "\nA set has min to max members; the busiest arbiter is in `load` sets. In every \
             arrangement\nthat is at least the bound; where all are as busy, so is the mean.\n";
    text += &fewer(comparison);
    text
}

fn to_line(row: &Row) -> String {
    let census = &row.census;
    let mark = if row.chosen { "*" } else { " " };
    let values = [
        census.min.to_string(),
        census.mean.to_string(),
        census.max.to_string(),
        census.load_max.to_string(),
        row.crashes.to_string(),
        census.messages.to_string(),
    ];
    line(&format!("{mark} {}", row.construction), values.each_ref().map(String::as_str))
}

fn line(name: &str, values: [&str; 6]) -> String {
    let [min, mean, max, load, crashes, messages] = values;
    format!("{name:<12} {min:>6} {mean:>10} {max:>6} {load:>6} {crashes:>8} {messages:>11}\n")
}

/// What naming fewer arbiters would give.
fn fewer(comparison: &Comparison) -> String {
    let Some(fewer) = &comparison.fewer else { return String::new() };
    let census = &fewer.census;
    format!(
        "\nIf only {} sites arbitrate, projective sets have {} members, the busiest arbiter is in \
         {},\nand a grant takes {} messages.\n",
        fewer.arbiters, census.mean, census.load_max, census.messages
    )
}

/// Names are words and numbers are numbers: nothing needs escaping.
fn to_json(comparison: &Comparison) -> String {
    let Comparison { sites, units, crashes, bound, .. } = comparison;
    let rows: Vec<String> = comparison.rows.iter().map(row_to_json).collect();
    format!(
        "{{\"sites\":{sites},\"units\":{units},\"crashes\":{crashes},\"bound\":{bound},\
         \"constructions\":[{}],\"reason\":\"{}\"}}\n",
        rows.join(","),
        comparison.reason()
    )
}

fn row_to_json(row: &Row) -> String {
    let census = &row.census;
    format!(
        "{{\"construction\":\"{}\",\"min\":{},\"mean\":{},\"max\":{},\"load_max\":{},\
         \"crashes\":{},\"messages\":{},\"chosen\":{}}}",
        row.construction,
        census.min,
        census.mean,
        census.max,
        census.load_max,
        row.crashes,
        census.messages,
        row.chosen
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_marks_the_choice_and_says_why() {
        let text = to_text(&compare(15, 2, 0).unwrap());
        let first = text.lines().nth(3).unwrap();
        let words: Vec<&str> = first.split_whitespace().collect();
        assert_eq!(words, ["*", "projective", "7", "7", "7", "7", "0", "18"]);
        let reason = "* projective has the fewest messages per grant: 18, broadcast 42.";
        assert!(text.contains(reason), "{text}");
    }

    #[test]
    fn json_has_the_bound_and_one_choice() {
        let json = to_json(&compare(10_000, 2, 0).unwrap());
        assert!(json.starts_with(
            r#"{"sites":10000,"units":2,"crashes":0,"bound":464.159,"constructions":[{"#
        ));
        assert_eq!(json.matches(r#""chosen":true"#).count(), 1);
        assert!(json.contains(r#""construction":"grid","min":1180,"mean":1324.648,"max":1337"#));
    }

    #[test]
    fn a_budget_that_cannot_be_met_is_refused() {
        let error = compare(10, 2, 4).unwrap_err().to_string();
        assert_eq!(error, "no construction survives 4 crashes among 10 arbiters: the most is 3");
    }
}
