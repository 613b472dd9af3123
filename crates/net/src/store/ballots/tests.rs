use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kofm_core::voting::Ballot;
use tokio::time::{sleep, timeout};

use super::*;

fn ask(to: DiskId, question: Question) -> Ask {
    let (own, seen) = (Age::default(), Age::default());
    Ask { to, question, pulse: None, listens: true, own, seen }
}

async fn told(voter: &Ballots, ask: &Ask) -> Reply {
    let question = postcard::to_stdvec(ask).unwrap();
    let answer = voter.answer("b", question.into()).await;
    postcard::from_bytes(&answer).unwrap()
}

fn record(epoch: u64, disk: DiskId) -> Record {
    let voters = kofm_core::voting::Electorate::from([(SiteId(0), disk)]);
    let plan = plan::Plan {
        sites: BTreeMap::from([(SiteId(0), ("b".into(), "h:1".into()))]),
        voters: voters.clone(),
        ..plan::Plan::default()
    };
    let mut record = kofm_core::epoch::Record::first([(SiteId(0), 5)].into(), plan);
    record.epoch = epoch;
    Record { epoch, voters, body: plan::pack(&record) }
}

#[tokio::test]
async fn forged_records_ballots_and_beats_change_nothing() {
    let dir = std::env::temp_dir().join(format!("kofm-forged-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let voter = Ballots::open(Some(&dir)).unwrap();
    let disk = voter.disk();
    let record = |epoch| record(epoch, disk);
    let ask = |question| ask(disk, question);
    let learnt = told(&voter, &ask(Question::Learn { decree: record(3) })).await;
    assert_eq!(learnt.answer, Answer::Learned);
    let before = (lock(&voter.register).register.clone(), fs::read(dir.join("promises")).unwrap());
    let ballot = |round| Ballot { round, site: 0, incarnation: 1 };
    let owned = |epoch| Record { epoch, body: b"owned".to_vec(), ..Record::default() };
    let pulse = |incarnation| Pulse { site: "b".into(), incarnation, count: 0, note: vec![] };
    let beat = |pulse| Ask { pulse: Some(pulse), ..ask(Question::Beat { epoch: 3 }) };
    let mut others = record(4);
    others.voters.insert(SiteId(7), DiskId(7));
    for forged in [
        ask(Question::Learn { decree: owned(4) }),
        ask(Question::Learn { decree: owned(u64::MAX - 1) }),
        ask(Question::Learn { decree: record(u64::MAX) }),
        ask(Question::Learn { decree: record(1 << 40) }),
        ask(Question::Learn { decree: Record { epoch: 5, ..record(4) } }),
        ask(Question::Learn { decree: others }),
        ask(Question::Accept { ballot: ballot(1), decree: owned(4) }),
        ask(Question::Accept { ballot: ballot(u64::MAX), decree: record(4) }),
        ask(Question::Prepare { epoch: 3, ballot: ballot(u64::MAX) }),
        beat(pulse(1 << 63)),
        beat(pulse(100_000)),
        beat(Pulse { site: "a".into(), ..pulse(6) }),
    ] {
        assert_eq!(told(&voter, &forged).await.answer, Answer::Failed, "{forged:?}");
        let after =
            (lock(&voter.register).register.clone(), fs::read(dir.join("promises")).unwrap());
        assert_eq!(after, before, "{forged:?}");
    }
    let honest = told(&voter, &beat(pulse(6))).await;
    assert_eq!((honest.answer, honest.pulses), (Answer::Stands, vec![pulse(6)]));
    let honest = ask(Question::Accept { ballot: ballot(2), decree: record(4) });
    assert_eq!(told(&voter, &honest).await.answer, Answer::Accepted);
    fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn an_older_copy_of_a_disk_does_not_vote() {
    let dir = std::env::temp_dir().join(format!("kofm-older-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let voter = Ballots::open(Some(&dir)).unwrap();
    let copy = fs::read(dir.join("promises")).unwrap();
    let promised = told(&voter, &prepare(&voter, 2)).await;
    assert_eq!(promised.answer, Answer::Promise(None));
    let seen = promised.own;
    // The same disk goes on after a restart.
    drop(voter);
    let again = Ballots::open(Some(&dir)).unwrap();
    let known = Ask { seen, ..prepare(&again, 3) };
    assert_eq!(told(&again, &known).await.answer, Answer::Promise(None));
    drop(again);
    fs::write(dir.join("promises"), copy).unwrap();
    let old = Ballots::open(Some(&dir)).unwrap();
    let known = Ask { seen, ..prepare(&old, 1) };
    assert_eq!(told(&old, &known).await.answer, Answer::Failed);
    assert!(old.old().unwrap().contains("older copy"));
    // Nor does its site count at others, which remember over a restart.
    let other = std::env::temp_dir().join(format!("kofm-other-{}", std::process::id()));
    fs::create_dir_all(&other).unwrap();
    let voter = Ballots::open(Some(&other)).unwrap();
    let first = Ask { own: seen, ..prepare(&voter, 1) };
    assert_eq!(told(&voter, &first).await.answer, Answer::Promise(None));
    drop(voter);
    let voter = Ballots::open(Some(&other)).unwrap();
    let refused = told(&voter, &Ask { own: old.age(), ..prepare(&voter, 2) }).await;
    assert_eq!((refused.answer, refused.seen), (Answer::Failed, seen));
    fs::remove_dir_all(dir).unwrap();
    fs::remove_dir_all(other).unwrap();
}

/// Whether writes of round 1 may reach the disk, and how many writes are done.
static OPEN: AtomicBool = AtomicBool::new(false);
static WRITTEN: AtomicU64 = AtomicU64::new(0);
const FIRST: Ballot = Ballot { round: 1, site: 0, incarnation: 1 };

/// A disk on which the write of the first promise takes until `OPEN`.
fn slow_write(path: &Path, promises: &Promises) -> io::Result<()> {
    while promises.durable.round() == FIRST.round && !OPEN.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    write(path, promises)?;
    WRITTEN.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

fn prepare(voter: &Ballots, round: u64) -> Ask {
    let ballot = Ballot { round, ..FIRST };
    ask(voter.disk(), Question::Prepare { ballot, epoch: 0 })
}

#[tokio::test]
async fn a_slow_disk_delays_promises_in_their_order_and_no_heartbeat() {
    let dir = std::env::temp_dir().join(format!("kofm-slow-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let voter = Arc::new(Ballots::open_by(Some(&dir), slow_write).unwrap());
    let before = WRITTEN.load(Ordering::SeqCst);
    // A caller loses its patience during the write.
    let asked = timeout(Duration::from_millis(50), voter.decide(prepare(&voter, 1)));
    assert!(asked.await.is_err());
    let beat = Ask { question: Question::Beat { epoch: 0 }, ..prepare(&voter, 0) };
    assert_eq!(voter.decide(beat).await.answer, Answer::Stands);
    let later = tokio::spawn({
        let voter = Arc::clone(&voter);
        async move { voter.decide(prepare(&voter, 2)).await }
    });
    for _ in 0..100 {
        if later.is_finished() {
            break;
        }
        sleep(Duration::from_millis(1)).await;
    }
    OPEN.store(true, Ordering::SeqCst);
    assert_eq!(later.await.unwrap().answer, Answer::Promise(None));
    while WRITTEN.load(Ordering::SeqCst) < before + 2 {
        sleep(Duration::from_millis(1)).await;
    }
    let again = Ballots::open(Some(&dir)).unwrap();
    assert_eq!(lock(&again.register).register.durable.round(), 2);
    assert_eq!(again.disk(), voter.disk());
    fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn a_voter_refuses_more_questions_than_it_can_keep_waiting() {
    let voter = Arc::new(Ballots::open(None).unwrap());
    let writing = voter.writer.lock().await;
    let ask = |round| {
        let voter = Arc::clone(&voter);
        tokio::spawn(async move { voter.decide(prepare(&voter, round)).await.answer })
    };
    let waiting: Vec<_> = (1..).take(MAX_QUESTIONS).map(ask).collect();
    while voter.waiting.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ask(1).await.unwrap(), Answer::Failed);
    drop(writing);
    for question in waiting {
        assert_ne!(question.await.unwrap(), Answer::Failed);
    }
    assert_eq!(voter.waiting.available_permits(), MAX_QUESTIONS);
}
