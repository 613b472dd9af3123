use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::mpsc;

use super::*;
use crate::api::{By, Report, Scope};

struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        let name = format!("kofm-ledger-{}-{}", std::process::id(), crate::random::number());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.join("ledger")).unwrap();
        let mut list: Vec<PathBuf> = entries.map(|it| it.unwrap().path()).collect();
        list.sort();
        list
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

const LARGE: Limits = Limits { bytes: 1 << 30, age: Duration::from_hours(24 * 400) };

/// A lease as a busy cluster has them: granted, and released later.
fn lease(number: u64, rows: &mut Vec<Happening>) {
    let (at_ms, held) = (1_750_000_000_000 + number * 2_000, 60_000 + number % 7_000);
    let unit = (number % 16).to_string();
    let granted = Happening {
        at_ms,
        seq: (1 << 32) + number * 2,
        event: "granted".into(),
        site: "s0".into(),
        request: Some(format!("R0-{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).into()),
        lease: Some(format!("L0-{:08x}", number.wrapping_mul(0x9E37_79B9) & 0xFFFF_FFFF).into()),
        owner: Some(format!("owner-{}@host-{}", number % 40, number % 7).into()),
        reason: Some(format!("job of team {}", number % 300).into()),
        want: Arc::new([("gpu".to_owned(), 2)].into()),
        units: Arc::new([("gpu".to_owned(), vec![unit, "99".to_owned()])].into()),
        fence: Some((1 << 32) + number * 3),
        waited_ms: Some(number % 5_000),
        held_ms: None,
        cause: None,
        principal: Some("ci".into()),
    };
    let released = Happening {
        at_ms: at_ms + held,
        seq: granted.seq + 1,
        event: "released".into(),
        held_ms: Some(held),
        cause: Some("released by the client".into()),
        ..granted.clone()
    };
    rows.extend([granted, released]);
}

fn rows(leases: std::ops::Range<u64>) -> Vec<Happening> {
    let mut rows = Vec::new();
    leases.for_each(|number| lease(number, &mut rows));
    rows
}

fn note(ledger: &Ledger, rows: &[Happening]) {
    for row in rows {
        ledger.note(row);
    }
}

fn ask(ledger: &Ledger, ask: LedgerAsk) -> Answer {
    let (sender, receiver) = mpsc::channel();
    assert!(ledger.ask(ask, Box::new(move |answer| sender.send(answer).unwrap())));
    receiver.recv().unwrap()
}

fn history(ledger: &Ledger, selection: Selection, limit: usize) -> Vec<Happening> {
    let before = None;
    let answer = ask(ledger, LedgerAsk::History { selection, limit, before });
    let Answer::History(list) = answer else { panic!("a history") };
    list
}

fn usage(ledger: &Ledger, by: By) -> Report {
    let scope = Scope { by, since_ms: 0, until_ms: u64::MAX, pools: None };
    let Answer::UsageReport(report) = ask(ledger, LedgerAsk::Usage(scope)) else {
        panic!("a report")
    };
    report
}

#[test]
fn what_was_noted_is_there_after_a_restart() {
    let dir = Dir::new();
    let all = rows(0..500);
    for (place, part) in all.chunks(300).enumerate() {
        let ledger = Ledger::open(Some(&dir.0), "s0", LARGE).unwrap();
        note(&ledger, part);
        let mut expected = all[..(place * 300 + part.len())].to_vec();
        expected.sort_by_key(|row| (row.at_ms, row.seq));
        assert_eq!(history(&ledger, Selection::default(), 10_000), expected);
        let last = expected.len() - 7;
        assert_eq!(history(&ledger, Selection::default(), 7), expected[last..]);
    }
    for file in dir.files() {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_torn_end_costs_only_what_was_not_written() {
    let dir = Dir::new();
    let all = rows(0..100);
    let ledger = Ledger::open(Some(&dir.0), "s0", LARGE).unwrap();
    note(&ledger, &all[..100]);
    assert_eq!(history(&ledger, Selection::default(), 1000).len(), 100);
    note(&ledger, &all[100..]);
    assert_eq!(history(&ledger, Selection::default(), 1000).len(), 200);
    let mut first = all[..100].to_vec();
    first.sort_by_key(|row| (row.at_ms, row.seq));
    // As after a crash: the file was not ended, and the second block is not whole.
    let open = dir.files().pop().unwrap();
    let bytes = fs::read(&open).unwrap();
    for cut in [1, 5, 400] {
        let copy = Dir::new();
        fs::create_dir(copy.0.join("ledger")).unwrap();
        fs::write(copy.0.join("ledger/00000001.open"), &bytes[..bytes.len() - cut]).unwrap();
        let ledger = Ledger::open(Some(&copy.0), "s0", LARGE).unwrap();
        assert!(history(&ledger, Selection::default(), 1000) == first, "{cut}");
        ledger.note(&all[150]);
        assert_eq!(history(&ledger, Selection::default(), 1000).len(), 101);
    }
    // Nor is a bit that has changed read.
    let copy = Dir::new();
    fs::create_dir(copy.0.join("ledger")).unwrap();
    let mut wrong = bytes;
    *wrong.last_mut().unwrap() ^= 1;
    fs::write(copy.0.join("ledger/00000001.open"), &wrong).unwrap();
    let ledger = Ledger::open(Some(&copy.0), "s0", LARGE).unwrap();
    assert_eq!(history(&ledger, Selection::default(), 1000).len(), 100);
}

#[test]
fn the_oldest_go_when_there_is_too_much_or_they_are_too_old() {
    let dir = Dir::new();
    let small = Limits { bytes: 6 << 20, ..LARGE };
    let ledger = Ledger::open(Some(&dir.0), "s0", small).unwrap();
    for part in rows(0..90_000).chunks(30_000) {
        note(&ledger, part);
        history(&ledger, Selection::default(), 1);
    }
    let bytes: u64 = dir.files().iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!((2 << 20..=10 << 20).contains(&bytes), "{bytes}");
    assert_eq!(ledger.counts(), (bytes, 0));
    let report = usage(&ledger, By::Pool);
    assert!(report.from_ms.unwrap() > 1_750_000_000_000, "{:?}", report.from_ms);
    drop(ledger);
    let young = Limits { age: Duration::from_hours(1), ..LARGE };
    let ledger = Ledger::open(Some(&dir.0), "s0", young).unwrap();
    let last = rows(10_000_000..10_000_001);
    note(&ledger, &last);
    assert_eq!(history(&ledger, Selection::default(), 1000).len(), 2);
    // In memory as on disk.
    let ledger = Ledger::open(None, "s0", small).unwrap();
    for part in rows(0..90_000).chunks(30_000) {
        note(&ledger, part);
        history(&ledger, Selection::default(), 1);
    }
    assert!(ledger.counts().0 <= 7 << 20, "{:?}", ledger.counts());
}

#[test]
fn usage_is_the_same_sum_by_owner_pool_and_unit() {
    let ledger = Ledger::open(None, "s0", LARGE).unwrap();
    let all = rows(0..1000);
    note(&ledger, &all);
    let held: u64 = all.iter().filter_map(|row| row.held_ms).sum();
    for by in [By::Owner, By::Pool, By::Unit] {
        let groups = usage(&ledger, by).groups;
        assert_eq!(groups.iter().map(|it| it.1.unit_ms).sum::<u64>(), held * 2, "{by:?}");
        let leases: u64 = groups.iter().map(|it| it.1.leases).sum();
        assert_eq!(leases, if by == By::Unit { 2000 } else { 1000 });
    }
    // Only what lies in the time that is asked about.
    let (since_ms, until_ms) = (1_750_000_100_000, 1_750_000_101_000);
    let scope = Scope { by: By::Pool, since_ms, until_ms, pools: None };
    let Answer::UsageReport(report) = ask(&ledger, LedgerAsk::Usage(scope)) else {
        panic!("a report");
    };
    // At each time about thirty leases of two units are held.
    let busy = report.groups[0].1.unit_ms;
    assert!((55_000..=70_000).contains(&busy), "{busy}");
}

#[test]
fn events_are_selected_by_owner_pool_kind_and_time() {
    let ledger = Ledger::open(None, "s0", LARGE).unwrap();
    let all = rows(0..200);
    note(&ledger, &all);
    let by = |selection: Selection| history(&ledger, selection, 1000).len();
    let owner = Some("owner-3@host-3".to_owned());
    let expected = all.iter().filter(|row| row.owner.as_deref() == owner.as_deref()).count();
    assert!(expected > 0);
    assert_eq!(by(Selection { owner, ..Selection::default() }), expected);
    let event = Some("granted".to_owned());
    assert_eq!(by(Selection { event, ..Selection::default() }), 200);
    let pool = |name: &str| Selection { pool: Some(name.to_owned()), ..Selection::default() };
    assert_eq!((by(pool("gpu")), by(pool("other"))), (400, 0));
    let since_ms = all[200].at_ms;
    let expected = all.iter().filter(|row| row.at_ms >= since_ms).count();
    assert_eq!(by(Selection { since_ms, ..Selection::default() }), expected);
}

#[test]
#[ignore = "a measurement: cargo test --release -p kofm-net ledger -- --ignored --nocapture"]
fn a_million_leases() {
    let dir = Dir::new();
    let ledger = Ledger::open(Some(&dir.0), "s0", LARGE).unwrap();
    let mut noting = Duration::ZERO;
    for part in 0..100_u64 {
        let rows = rows(part * 10_000..(part + 1) * 10_000);
        let start = Instant::now();
        note(&ledger, &rows);
        noting += start.elapsed();
        history(&ledger, Selection::default(), 1);
    }
    let (bytes, dropped) = ledger.counts();
    println!("{bytes} bytes, {dropped} dropped, {:?} for each row", noting / 2_000_000);
    for by in [By::Owner, By::Pool, By::Unit] {
        let start = Instant::now();
        let groups = usage(&ledger, by).groups.len();
        println!("by {by:?}: {groups} rows in {:?}", start.elapsed());
    }
    let start = Instant::now();
    let owner = Some("nobody".to_owned());
    history(&ledger, Selection { owner, ..Selection::default() }, 100);
    println!("a search that finds nothing: {:?}", start.elapsed());
    let start = Instant::now();
    history(&ledger, Selection::default(), 1000);
    println!("the last 1000 events: {:?}", start.elapsed());
    assert!(bytes <= 200 << 20);
}
