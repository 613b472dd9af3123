//! Voters that follow one another, explored; and every mistake that must be noticed.
//!
//! | mistake | law |
//! | --- | --- |
//! | a majority of the voters that the proposal names counts | belief |
//! | answers of any disk count | belief |
//! | an empty disk answers for the lost one | belief |
//! | a decree that one voter accepted is chosen | belief |
//! | ballots are used again | belief |
//! | the accepted decree is forgotten | agreement |
//! | any ballot is accepted | agreement |
//! | heartbeats are answered while a successor is pending | beat |
//! | a voter of a later epoch answers heartbeats of an earlier one | beat |
//! | a disk goes back by one write | beat |
//! | a retired voter forgets at once | progress |
//! | what was accepted stays after the next epoch was learnt | progress |

mod explorer;

use kofm_core::voting::Mistake;

use crate::explorer::{Flaw, Setting, explore};

/// One site grows to three voters and back.
fn grow_and_shrink() -> Setting {
    let wishes = vec![vec![0, 1, 2], vec![0]];
    Setting {
        sites: 3,
        first: vec![0],
        wishes: vec![wishes.clone(), wishes],
        ballots: 2,
        beats: true,
        deaths: 0,
        wipes: 0,
        retires: false,
        flaw: Flaw::None,
    }
}

/// Two proposers replace another voter of three each, while a disk dies.
fn replace() -> Setting {
    Setting {
        sites: 4,
        first: vec![0, 1, 2],
        wishes: vec![vec![vec![0, 1, 3]], vec![vec![0, 2, 3]]],
        ballots: 1,
        deaths: 1,
        ..grow_and_shrink()
    }
}

/// Three voters, one of which comes back with an empty disk and is named again.
fn lost_disk() -> Setting {
    Setting {
        sites: 3,
        first: vec![0, 1, 2],
        wishes: vec![vec![vec![0, 1, 2]], vec![vec![0, 1, 2]]],
        ballots: 1,
        wipes: 1,
        ..grow_and_shrink()
    }
}

/// The vote moves from one site to the next; those that had it go for good.
fn move_on() -> Setting {
    Setting {
        sites: 3,
        first: vec![0],
        wishes: vec![vec![vec![1], vec![2]], vec![vec![1], vec![2]]],
        retires: true,
        ..grow_and_shrink()
    }
}

fn sound(setting: &Setting, states: u64) {
    let finding = explore(setting, 3_000_000);
    assert_eq!(finding.violation, None);
    assert!(finding.complete);
    assert_eq!(finding.states, states);
}

#[test]
fn voters_grow_and_shrink() {
    sound(&grow_and_shrink(), 469_941);
}

#[test]
fn two_changes_at_once_and_a_death() {
    sound(&replace(), 165_090);
}

#[test]
fn a_lost_disk_is_a_dead_voter() {
    sound(&lost_disk(), 71_604);
}

#[test]
fn retired_voters_may_go() {
    sound(&move_on(), 41_724);
}

#[test]
fn every_mistake_is_noticed() {
    let rule = Flaw::Rule;
    for (flaw, setting, law) in [
        (rule(Mistake::CountsNewVoters), grow_and_shrink(), "belief"),
        (rule(Mistake::CountsAnybody), grow_and_shrink(), "belief"),
        (rule(Mistake::AnswersForLostDisk), lost_disk(), "belief"),
        (rule(Mistake::AcceptedIsChosen), replace(), "belief"),
        (rule(Mistake::BeatsThrough), move_on(), "beat"),
        (rule(Mistake::LearnKeeps), grow_and_shrink(), "progress"),
        (rule(Mistake::StepsDown), move_on(), "beat"),
        (rule(Mistake::ForgetsBest), replace(), "agreement"),
        (rule(Mistake::ForgetsPromises), replace(), "agreement"),
        (Flaw::DiskGoesBack, move_on(), "beat"),
        (Flaw::RetiredForgets, move_on(), "progress"),
        (Flaw::BallotAgain, grow_and_shrink(), "belief"),
    ] {
        let finding = explore(&Setting { flaw, ..setting }, 300_000);
        let found = finding.violation.as_ref().map(|it| it.0);
        assert_eq!(found, Some(law), "{flaw:?}: {:#?}", finding.violation);
    }
}
