//! Single questions and answers. The checker explores the rest.

use alloc::vec::Vec;

use super::*;

fn decree(epoch: u64, voters: &[u16]) -> Decree {
    let voters = voters.iter().map(|&site| (SiteId(site), disk(site))).collect();
    Decree { epoch, voters, body: Vec::new() }
}

fn disk(site: u16) -> DiskId {
    DiskId(u128::from(site) + 100)
}

fn ballot(round: u64, site: u16) -> Ballot {
    Ballot { round, site, incarnation: 1 }
}

fn voter(site: u16) -> Register {
    Register::restored(Durable::new(disk(site)))
}

#[test]
fn one_voter_decides_alone() {
    let mut a = voter(0);
    let beat = |epoch| Question::Beat { epoch };
    assert_eq!(a.answer(DiskId::ANY, beat(0)), Answer::Stands);
    let electorate = [(SiteId(0), DiskId::ANY)].into();
    let one = decree(1, &[0]);
    let (mut proposal, ask) = Proposal::new(electorate, ballot(1, 0), 0, Some(one.clone()));
    let Next::Ask(ask) = proposal.on_answer(SiteId(0), a.answer(DiskId::ANY, ask)) else {
        panic!("one promise is a majority");
    };
    let answer = a.answer(DiskId::ANY, ask);
    assert_eq!(a.answer(DiskId::ANY, beat(0)), Answer::Pending);
    assert_eq!(proposal.on_answer(SiteId(0), answer), Next::Chosen(one.clone()));
    a.answer(DiskId::ANY, Question::Learn { decree: one.clone() });
    assert_eq!(a.answer(disk(0), beat(0)), Answer::Moved(one));
    assert_eq!(a.answer(disk(0), beat(1)), Answer::Stands);
    assert_eq!(a.answer(disk(0), beat(2)), Answer::Behind);
}

#[test]
fn an_empty_disk_learns_but_does_not_answer_for_the_lost_one() {
    let mut new = Register::restored(Durable::new(DiskId(7)));
    let beat = Question::Beat { epoch: 3 };
    assert_eq!(new.answer(disk(0), beat.clone()), Answer::Behind);
    let known = decree(3, &[0, 1, 2]);
    assert_eq!(new.answer(disk(0), Question::Learn { decree: known.clone() }), Answer::Learned);
    for question in [
        beat,
        Question::Prepare { epoch: 3, ballot: ballot(1, 0) },
        Question::Accept { ballot: ballot(1, 0), decree: decree(4, &[0]) },
    ] {
        assert_eq!(new.answer(disk(0), question.clone()), Answer::OtherDisk(DiskId(7)));
        // Any disk is good before the first epoch only.
        assert_eq!(new.answer(DiskId::ANY, question), Answer::OtherDisk(DiskId(7)));
    }
    let old = Question::Beat { epoch: 2 };
    assert_eq!(new.answer(disk(0), old), Answer::Moved(known), "the chosen is told by any disk");
}

#[test]
fn only_the_electorate_counts() {
    let one = decree(1, &[0, 1, 2]);
    let electorate = decree(0, &[0, 1, 2]).voters;
    let (mut proposal, _) = Proposal::new(electorate, ballot(1, 0), 0, Some(one));
    let promise = Answer::Promise(None);
    for site in [3, 4, 5, 3] {
        assert_eq!(proposal.on_answer(SiteId(site), promise.clone()), Next::Wait);
    }
    for (answers, site) in [(1, 0), (1, 0), (2, 2)] {
        let next = proposal.on_answer(SiteId(site), promise.clone());
        assert_eq!(matches!(next, Next::Ask(_)), answers == 2);
    }
}

#[test]
fn the_accepted_decree_with_the_largest_ballot_goes_on() {
    let electorate = decree(0, &[0, 1, 2]).voters;
    let (mut proposal, _) = Proposal::new(electorate, ballot(9, 0), 0, Some(decree(1, &[0])));
    let accepted = |round, site| Some((ballot(round, site), decree(1, &[site])));
    proposal.on_answer(SiteId(1), Answer::Promise(accepted(3, 1)));
    let next = proposal.on_answer(SiteId(2), Answer::Promise(accepted(2, 2)));
    let Next::Ask(Question::Accept { decree: offered, .. }) = next else { panic!("a majority") };
    assert_eq!(offered, decree(1, &[1]));
}

#[test]
fn an_older_ballot_is_told_so() {
    let mut a = voter(0);
    a.answer(disk(0), Question::Prepare { epoch: 0, ballot: ballot(5, 1) });
    for question in [
        Question::Prepare { epoch: 0, ballot: ballot(4, 9) },
        Question::Accept { ballot: ballot(4, 9), decree: decree(1, &[0]) },
    ] {
        assert_eq!(a.answer(disk(0), question), Answer::Outbid(ballot(5, 1)));
    }
}
