use super::*;

fn record(epoch: u64, body: &str) -> Record {
    Record { epoch, body: body.into(), ..Record::default() }
}

fn alone(ballots: &Arc<Ballots>, incarnation: u64) -> Voters {
    let founders = [(SiteId(0), ("a".into(), String::new()))].into();
    let lives = Lives::new("a", incarnation, 0, Duration::from_secs(5));
    let callers = Arc::new(Callers::new("c", lives, None, BTreeMap::new()));
    let patience = Duration::from_secs(1);
    Voters::new(Arc::clone(ballots), "a", founders, callers, (0, incarnation), patience)
}

#[tokio::test]
async fn a_site_goes_on_in_an_epoch_that_no_voter_was_told_of() {
    let me = Arc::new(Ballots::open(None).unwrap());
    let store = alone(&me, 1);
    let pulse = Pulse { site: "a".into(), incarnation: 1, count: 0, note: Vec::new() };
    let beat = store.beat(Arc::new(record(1, "one")), pulse.clone(), true).await;
    assert_eq!(beat, Ok(Beat::Steady(vec![pulse])));
    assert_eq!(store.swap(record(2, "two")).await, Ok(Swap::Done));
}

#[tokio::test]
async fn a_voter_that_was_killed_keeps_its_promises() {
    let dir = std::env::temp_dir().join(format!("kofm-promises-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let first = Arc::new(Ballots::open(Some(&dir)).unwrap());
    let store = alone(&first, 1);
    assert_eq!(store.swap(record(1, "one")).await, Ok(Swap::Done));
    assert_eq!(store.swap(record(1, "late")).await, Ok(Swap::Lost(record(1, "one"))));
    let disk = first.disk();
    drop((store, first));
    let again = Arc::new(Ballots::open(Some(&dir)).unwrap());
    assert_eq!((&*again.known(), again.disk()), (&record(1, "one"), disk));
    let store = alone(&again, 2);
    let pulse = Pulse { site: "a".into(), incarnation: 2, count: 0, note: Vec::new() };
    let beat = store.beat(Arc::default(), pulse.clone(), true).await;
    assert_eq!(beat, Ok(Beat::Moved(record(1, "one"))));
    let beat = store.beat(Arc::new(record(1, "one")), pulse.clone(), true).await;
    assert_eq!(beat, Ok(Beat::Steady(vec![pulse])));
    std::fs::write(dir.join("promises"), "garbage").unwrap();
    assert!(Ballots::open(Some(&dir)).is_err());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn forged_answers_are_refused() {
    let ballot = Ballot { round: 1, site: 0, incarnation: 1 };
    for forged in [
        Answer::Moved(record(4, "owned")),
        Answer::Promise(Some((ballot, record(4, "owned")))),
        Answer::Outbid(Ballot { round: u64::MAX, ..ballot }),
    ] {
        assert!(check_answer(&forged, 3).is_err(), "{forged:?}");
    }
}
