//! One trace format: the same run gives the same bytes, and runs again.

use std::io::BufReader;

use kofm_core::protocols::permission::Permission;
use kofm_core::protocols::permission_lazy_as_printed::PermissionLazyAsPrinted;
use kofm_core::{Cluster, Kind, Protocol, Visitor};
use kofm_sim::exhaustive::explore;
use kofm_sim::seeded::{Observer, Setup, run};
use kofm_sim::trace::{Header, Step, Writer, read_header, replay};
use kofm_sim::visit_on;
use kofm_sim::world::Script;

use crate::exhaustive::ks;

struct Record(Vec<u8>);

impl<P: Protocol> Observer<P> for Record {
    const STEPS: bool = true;
    fn step(&mut self, step: Step<P::Message, P::Timer>) {
        let line = serde_json::to_string(&step).unwrap();
        self.0.extend_from_slice(line.as_bytes());
        self.0.push(b'\n');
    }
    fn progress(&mut self, _grants: u64) {}
}

struct Recorded<'a>(&'a Setup);

impl Visitor for Recorded<'_> {
    type Output = Vec<u8>;
    fn visit<P: Protocol>(self) -> Vec<u8> {
        let header = Header::new(P::NAME, &self.0.cluster);
        let start = Writer::new(Vec::new(), &header).unwrap().finish().unwrap();
        let mut record = Record(start);
        run::<P, _>(self.0, &mut record);
        record.0
    }
}

struct Replayed<'a>(&'a [u8]);

impl Visitor for Replayed<'_> {
    type Output = Result<u64, String>;
    fn visit<P: Protocol>(self) -> Self::Output {
        let mut source = BufReader::new(self.0);
        let header = read_header(&mut source)?;
        replay::<P>(&header, source, |_| {})
    }
}

fn setup() -> Setup {
    Setup { requests: 500, k: (1, 2), ..Setup::new(Cluster::new(3, 2)) }
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte_and_it_replays() {
    for &kind in Kind::ALL {
        let setup = setup();
        let record = || visit_on(kind, &setup.cluster.topology, Recorded(&setup));
        let trace = record();
        assert_eq!(trace, record());
        let lines = trace.split(|&byte| byte == b'\n').count() as u64 - 1;
        assert_eq!(kind.visit(Replayed(&trace)), Ok(lines - 1), "{}", kind.name());
    }
}

#[test]
fn a_trace_that_was_changed_does_not_replay() {
    let setup = setup();
    let trace = String::from_utf8(Recorded(&setup).visit::<Permission>()).unwrap();
    let replayed = |text: &str| Replayed(text.as_bytes()).visit::<Permission>();
    let other = trace.replacen("\"fence\":1,", "\"fence\":7,", 1);
    assert!(replayed(&other).unwrap_err().contains("does not replay"));
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
    let found = explore::<PermissionLazyAsPrinted>(&cluster, &script, 1_000_000, |_| {});
    let header = Header::new(PermissionLazyAsPrinted::NAME, &cluster);
    let mut writer = Writer::new(Vec::new(), &header).unwrap();
    for step in found.violation.unwrap().1 {
        writer.step(&step).unwrap();
    }
    let trace = writer.finish().unwrap();
    assert_eq!(Replayed(&trace).visit::<PermissionLazyAsPrinted>(), Ok(13));
}
