//! Networks from the command line: `full`, `ring`, `tree`, or a file with a link per line.

use std::collections::BTreeSet;

use kofm_core::SiteId;
use kofm_core::topology::{Graph, Topology};

use crate::exit::Exit;

/// The largest topology file that is read.
const FILE_LIMIT: u64 = 16 << 20;

/// Reads what `--topology` says.
pub(crate) fn parse(text: &str, sites: u16) -> Result<Topology, Exit> {
    match text {
        "full" => Ok(Topology::Full),
        "ring" => Ok(Topology::Ring),
        "tree" => Ok(Topology::Tree),
        path => read(path, sites).map_err(|problem| {
            Exit::usage(format!(
                "--topology {path}: {problem}\n\
                 use full, ring, tree, or a file with a link such as `0 1` on each line \
                 (sites from 0, # begins a comment)"
            ))
        }),
    }
}

fn read(path: &str, sites: u16) -> Result<Topology, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > FILE_LIMIT {
        return Err(format!("{size} bytes, more than the {FILE_LIMIT} that are read"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mut links = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            let (a, b) = link(line, sites).map_err(|wrong| format!("line {number}: {wrong}"))?;
            if !links.insert((a.min(b), a.max(b))) {
                return Err(format!("line {number}: the link {a} {b} is given twice"));
            }
        }
    }
    let graph = Graph::new(sites, links.into_iter().collect());
    graph.map(Topology::Graph).map_err(|site| format!("{site} cannot be reached from s0"))
}

fn link(line: &str, sites: u16) -> Result<(SiteId, SiteId), String> {
    let mut words = line.split_whitespace();
    let (Some(a), Some(b), None) = (words.next(), words.next(), words.next()) else {
        return Err(format!("`{line}` is not a link: write two site numbers"));
    };
    let site = |word: &str| match word.parse::<u16>() {
        Ok(n) if n < sites => Ok(SiteId(n)),
        _ => Err(format!("`{word}` is not a site: with --sites {sites} they are 0..{}", sites - 1)),
    };
    let (a, b) = (site(a)?, site(b)?);
    if a == b { Err(format!("{a} is linked to itself")) } else { Ok((a, b)) }
}
