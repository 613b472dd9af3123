//! `kofm protocols`: what there is to choose from.

use std::fmt::Write as _;

use kofm_core::{Kind, Service};
use serde_json::{Value, json};

use crate::output::say;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) {
    if args.json {
        let list: Vec<Value> = Kind::ALL.iter().map(|&kind| document(kind)).collect();
        say(&format!("{}\n", json!(list)));
        return;
    }
    let mut text = String::new();
    for kind in Kind::ALL {
        let profile = kind.profile();
        let _ = writeln!(text, "{:<28} {}", kind.name(), profile.summary);
        let _ = writeln!(text, "{:<28} {}; {}", "", profile.source, price(*kind));
    }
    say(&text);
}

/// The price for nine sites and four units, as an example that can be compared.
fn price(kind: Kind) -> String {
    let price = (kind.profile().price)(9, 4);
    match price.max {
        Some(max) => format!("{} to {max} messages per claim with 9 sites, 4 units", price.min),
        None => format!("{} messages per claim or more with 9 sites, 4 units", price.min),
    }
}

fn document(kind: Kind) -> Value {
    let profile = kind.profile();
    json!({
        "name": kind.name(),
        "summary": profile.summary,
        "source": profile.source,
        "serves": match profile.serves {
            Service::Pool => "pool",
            Service::Semaphore => "semaphore",
            Service::Group => "group",
            Service::Gang => "gang",
        },
        "as_printed": profile.as_printed,
        "survives": profile.survives,
    })
}
