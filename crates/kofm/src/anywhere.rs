//! `kofm check --from any`: the controller of `tree` from every configuration.

use std::fmt::Write as _;
use std::io::Write as _;

use kofm_core::{Cluster, Kind};
use kofm_sim::flushing::{Found, Start, System, TooLarge, steps};
use kofm_sim::trace::Header;
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::output::say;
use crate::progress::{Progress, WholeFile, grouped};

/// Controllers that are on each link at most unless another number is given.
const STALE: u32 = 1;

/// The options of the command line.
#[derive(Debug)]
pub(crate) struct Anywhere<'a> {
    pub(crate) title: &'a str,
    pub(crate) stale: Option<u32>,
    pub(crate) colours: Option<u64>,
    pub(crate) trace: Option<WholeFile>,
    pub(crate) json: bool,
}

/// Explores all configurations; exit code 1 if a fair run never comes to a single controller.
pub(crate) fn run(kind: Kind, cluster: &Cluster, said: Anywhere<'_>) -> Result<(), Exit> {
    if kind != Kind::Tree {
        let name = kind.name();
        return Err(Exit::usage(format!("--from any: {name} does not claim to heal, tree does")));
    }
    if cluster.sites < 2 {
        return Err(Exit::usage("--from any: a controller goes round among at least 2 sites"));
    }
    let stale = said.stale.unwrap_or(STALE);
    let colours = said.colours.unwrap_or_else(|| System::papers_colours(cluster.sites, stale));
    let system = System::new(cluster, colours, stale).map_err(|problem| {
        Exit::usage(match problem {
            TooLarge::Starts(starts) => format!(
                "--from any: {starts} configurations to begin with are too many: lower --sites, \
                 --stale or --colours"
            ),
            TooLarge::Bits => {
                "--from any: the system is too large: lower --sites, --stale or --colours".into()
            }
        })
    })?;
    let mut progress = Progress::new(said.json);
    let found = system.explore(&mut |states| progress.show(states, None, "configurations"));
    progress.clear();
    let lines = found
        .lasso
        .as_ref()
        .map(|start| steps(cluster, start).expect("the model takes the steps of the protocol"));
    let json: Vec<Value> = lines
        .iter()
        .flatten()
        .map(|step| serde_json::to_value(step).expect("steps have no maps with odd keys"))
        .collect();
    let header = Header { start: found.lasso.clone(), ..Header::new(kind.name(), cluster) };
    if let (Some(mut file), Some(_)) = (said.trace, &found.lasso) {
        let head = serde_json::to_value(&header).expect("a header has no maps with odd keys");
        let written =
            std::iter::once(&head).chain(&json).try_for_each(|it| writeln!(file.sink, "{it}"));
        written.map_err(|error| Exit::negative(format!("--trace: {error}")))?;
        file.finish()?;
    }
    if said.json {
        say(&format!("{}\n", document(kind, &found, &header, &json)));
    } else {
        let texts = lines.iter().flatten().map(kofm_sim::flushing::Step::text).collect::<Vec<_>>();
        say(&text(said.title, (colours, stale), &found, &texts));
    }
    if found.lasso.is_none() { Ok(()) } else { Err(Exit::silent()) }
}

const DETAIL: &str = "a fair run never comes to a single controller";

fn document(kind: Kind, found: &Found, header: &Header, trace: &[Value]) -> Value {
    let violation = found.lasso.as_ref().map(|start| {
        json!({
            "property": "convergence",
            "detail": DETAIL,
            "trace": trace,
            "lasso": {"prefix": start.prefix, "loop": start.events.len() - start.prefix},
            "header": header,
        })
    });
    json!({
        "protocol": kind.name(),
        "from": "any",
        "starts": found.starts,
        "states": found.states,
        "right": found.right,
        "complete": true,
        "violation": violation,
    })
}

fn text(title: &str, size: (u64, u32), found: &Found, steps: &[String]) -> String {
    let (colours, stale) = size;
    let (starts, states) = (grouped(found.starts), grouped(found.states));
    let mut text = format!(
        "{title}: {colours} colours, up to {stale} controllers on each link, every configuration \
         of the controller: {starts} to begin with, {states} in all\n"
    );
    let Some(start) = &found.lasso else {
        let right = grouped(found.right);
        let _ = writeln!(
            text,
            "every fair run comes to where one controller goes round ({right} configurations) and \
             stays there"
        );
        return text;
    };
    let _ = writeln!(text, "{DETAIL}\n\n{}", configuration(start));
    for (i, step) in steps.iter().enumerate() {
        if i == start.prefix {
            text.push_str("      from here on the same again, forever, with other colours:\n");
        }
        let _ = writeln!(text, "{step}");
    }
    text
}

/// Where a run begins.
fn configuration(start: &Start) -> String {
    let sites = start.from.sites.iter().enumerate();
    let sites: Vec<String> = sites.map(|(i, site)| format!("s{i} has {}", site.0)).collect();
    let links: Vec<String> = start.from.links.iter().map(|link| format!("{link:?}")).collect();
    format!("colours to begin with: {}; on the links {}", sites.join(", "), links.join(", "))
}
