//! One trace format: the same run gives the same bytes, and runs again.

use kofm_core::{Cluster, Kind};
use kofm_sim::chosen::{explore, replay, watch};
use kofm_sim::seeded::Setup;
use kofm_sim::trace::{Header, Writer, read_header};
use kofm_sim::world::Script;

use crate::exhaustive::ks;

fn recorded(kind: Kind, setup: &Setup) -> Vec<u8> {
    let mut trace = Vec::new();
    watch(kind, setup, Some(&mut trace), &mut |_| {}).unwrap();
    trace
}

fn replayed(mut trace: &[u8]) -> Result<u64, String> {
    let header = read_header(&mut trace)?;
    replay(Kind::named(&header.protocol).unwrap(), &header, &mut trace, &mut |_| {})
}

fn setup() -> Setup {
    Setup { requests: 500, k: (1, 2), ..Setup::new(Cluster::new(3, 2)) }
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte_and_it_replays() {
    for &kind in Kind::ALL {
        let setup = setup();
        let trace = recorded(kind, &setup);
        assert_eq!(trace, recorded(kind, &setup));
        let lines = trace.split(|&byte| byte == b'\n').count() as u64 - 1;
        assert_eq!(replayed(&trace), Ok(lines - 1), "{}", kind.name());
    }
}

#[test]
fn a_trace_that_was_changed_does_not_replay() {
    let setup = setup();
    let trace = String::from_utf8(recorded(Kind::Permission, &setup)).unwrap();
    let replayed = |text: &str| replayed(text.as_bytes());
    let other = trace.replacen("\"fence\":1,", "\"fence\":7,", 1);
    assert!(replayed(&other).unwrap_err().contains("does not replay"));
    // Lines for people leave out clocks.
    let at = trace.find("\"clock\":{\"time\":1,").unwrap();
    let late = format!("{}\"clock\":{{\"time\":9,{}", &trace[..at], &trace[at + 18..]);
    let problem = replayed(&late).unwrap_err();
    assert!(problem.contains("clock.time: recorded 9, here 1"), "{problem}");
    let cut = &trace[..trace.len() - 20];
    assert!(replayed(cut).unwrap_err().contains("is not a step"));
    assert!(replayed("{}\n").unwrap_err().contains("header"));
    assert!(replayed("").unwrap_err().contains("header"));
    let stale = trace.replacen("\"time\":1,", "\"time\":9,", 1);
    assert!(replayed(&stale).is_err());
}

#[test]
fn the_checkers_counterexample_replays() {
    let (cluster, script) = (Cluster::new(2, 2), Script::new(2, 2, ks(1, 2)));
    let kind = Kind::PermissionLazyAsPrinted;
    let found = explore(kind, &cluster, &script, 1_000_000, &mut |_| {});
    let header = Header::new(kind.name(), &cluster);
    let mut trace = Writer::new(Vec::new(), &header).unwrap().finish().unwrap();
    for line in found.violation.unwrap().1 {
        trace.extend_from_slice(line.json.as_bytes());
        trace.push(b'\n');
    }
    assert_eq!(replayed(&trace), Ok(13));
}
