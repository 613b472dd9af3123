//! Voters that crash and come back, proposers that die half way, messages in any order.

use std::collections::BTreeMap;

use super::*;

fn record(epoch: u64, body: &str) -> Record {
    Record { epoch, body: body.into() }
}

fn pulse(count: u64) -> Pulse {
    Pulse { site: "a".into(), incarnation: 1, count, note: Vec::new() }
}

fn ballot(round: u64, site: u16) -> Ballot {
    Ballot { round, site, incarnation: 1 }
}

#[test]
fn one_voter_decides_alone() {
    let mut voter = Register::default();
    let beat = Question::Beat { epoch: 0, pulse: pulse(1) };
    assert_eq!(voter.answer(beat.clone()), Reply::Beats(vec![pulse(1)]));
    let (mut proposal, ask) = Proposal::new(1, ballot(1, 0), 0, Some(record(1, "x")));
    let Next::Ask(ask) = proposal.on_reply(0, voter.answer(ask)) else { panic!() };
    let reply = voter.answer(ask);
    assert_eq!(voter.answer(beat.clone()), Reply::Pending);
    assert_eq!(proposal.on_reply(0, reply), Next::Chosen(record(1, "x")));
    voter.answer(Question::Learn { record: record(1, "x") });
    assert_eq!(voter.answer(beat), Reply::Moved(record(1, "x")));
    assert_eq!(voter.answer(Question::Beat { epoch: 2, pulse: pulse(1) }), Reply::Behind);
}

#[test]
fn what_may_have_been_chosen_is_taken_over() {
    let mut voters = vec![Register::default(); 3];
    let (mut first, ask) = Proposal::new(3, ballot(1, 0), 0, Some(record(1, "first")));
    let mut accept = Next::Wait;
    for (number, voter) in voters.iter_mut().enumerate().take(2) {
        accept = first.on_reply(number, voter.answer(ask.clone()));
    }
    let Next::Ask(accept) = accept else { panic!() };
    // One voter accepts, and the proposer is gone.
    voters[1].answer(accept);
    let (mut second, ask) = Proposal::new(3, ballot(2, 2), 0, Some(record(1, "second")));
    second.on_reply(1, voters[1].answer(ask.clone()));
    let next = second.on_reply(2, voters[2].answer(ask));
    let Next::Ask(Question::Accept { record: got, .. }) = next else { panic!() };
    assert_eq!(got, record(1, "first"));
}

#[test]
fn an_older_ballot_is_told_so() {
    let mut voter = Register::default();
    voter.answer(Question::Prepare { epoch: 0, ballot: ballot(5, 1) });
    let reply = voter.answer(Question::Prepare { epoch: 0, ballot: ballot(4, 9) });
    assert_eq!(reply, Reply::Outbid(ballot(5, 1)));
    let reply = voter.answer(Question::Accept { ballot: ballot(4, 9), record: record(1, "x") });
    assert_eq!(reply, Reply::Outbid(ballot(5, 1)));
}

/// Deliberate mistakes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// Answers first, and forgets what it answered when it crashes.
    AckBeforePersisting,
    /// Proposes its own record although another was accepted.
    IgnoreAccepted,
    /// Answers beats although a successor was accepted.
    BeatWhilePending,
    /// Takes any ballot.
    ForgetPromises,
    /// A new life proposes with the ballots of the last.
    ReuseBallots,
}

struct Lots(u64);

impl Lots {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

enum Asker {
    Proposer(Proposal),
    /// The epoch and moment in which it began, and who has answered.
    Beater(u64, u64, BTreeSet<usize>),
}

/// One run; says what went wrong.
fn explore(seed: u64, bug: Bug) -> Result<(), String> {
    let mut lots = Lots(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let voters = [1, 3, 3, 4, 5][lots.below(5)];
    let mut state = vec![Register::default(); voters];
    // Where a voter answers before it writes, this is what is on its disk.
    let mut disk = vec![Durable::default(); voters];
    let mut askers: Vec<Asker> = Vec::new();
    let mut flying: Vec<(usize, usize, Question)> = Vec::new();
    let mut answers: Vec<(usize, usize, Reply)> = Vec::new();
    // What was accepted by a majority, per epoch, and when.
    let mut votes: BTreeMap<(u64, Ballot), (Record, BTreeSet<usize>)> = BTreeMap::new();
    let mut chosen: BTreeMap<u64, (Record, u64)> = BTreeMap::new();
    let mut round = 0;
    for now in 0..400_u64 {
        match lots.below(12) {
            0 => {
                let epoch = chosen.keys().max().copied().unwrap_or(0);
                let epoch = epoch.saturating_sub(u64::from(lots.below(4) == 0));
                round += if bug == Bug::ReuseBallots { u64::from(lots.below(2) == 0) } else { 1 };
                let site = u16::try_from(lots.below(2)).unwrap();
                let own = record(epoch + 1, &format!("{now}"));
                let number = Ballot { round, site, incarnation: 1 };
                let (proposal, ask) = Proposal::new(voters, number, epoch, Some(own));
                let number = askers.len();
                askers.push(Asker::Proposer(proposal));
                flying.extend((0..voters).map(|voter| (number, voter, ask.clone())));
            }
            1 | 2 => {
                let epoch = chosen.keys().max().copied().unwrap_or(0);
                let epoch = epoch.saturating_sub(u64::from(lots.below(2) == 0));
                let ask = Question::Beat { epoch, pulse: pulse(now) };
                let number = askers.len();
                askers.push(Asker::Beater(epoch, now, BTreeSet::new()));
                flying.extend((0..voters).map(|voter| (number, voter, ask.clone())));
            }
            3 => {
                // A crash: what is on disk comes back.
                let voter = lots.below(voters);
                state[voter] = Register::restored(disk[voter].clone());
            }
            4 if !flying.is_empty() => drop(flying.swap_remove(lots.below(flying.len()))),
            5..8 if !answers.is_empty() => {
                let (number, voter, reply) = answers.swap_remove(lots.below(answers.len()));
                match &mut askers[number] {
                    Asker::Beater(epoch, began, from) => {
                        if matches!(reply, Reply::Beats(_)) && from.insert(voter) {
                            let enough = from.len() == voters / 2 + 1;
                            if let Some((_, since)) = chosen.get(&(*epoch + 1))
                                && enough
                                && since < began
                            {
                                return Err(format!("a beat of {epoch} after its end"));
                            }
                        }
                    }
                    Asker::Proposer(proposal) => {
                        let mut next = proposal.on_reply(voter, reply);
                        if let (Next::Ask(Question::Accept { record, .. }), Bug::IgnoreAccepted) =
                            (&mut next, bug)
                        {
                            *record = self::record(record.epoch, &format!("mine {number}"));
                            proposal.chosen = Some(record.clone());
                        }
                        let ask = match next {
                            Next::Ask(ask) => ask,
                            Next::Chosen(record) => Question::Learn { record },
                            Next::Wait | Next::Nothing | Next::Outbid(_) | Next::Moved(_) => {
                                continue;
                            }
                        };
                        flying.extend((0..voters).map(|voter| (number, voter, ask.clone())));
                    }
                }
            }
            _ if !flying.is_empty() => {
                let (number, voter, question) = flying.swap_remove(lots.below(flying.len()));
                if lots.below(8) == 0 {
                    // Duplicated by a reconnect.
                    flying.push((number, voter, question.clone()));
                }
                if bug == Bug::ForgetPromises {
                    state[voter].durable.promised = Ballot::default();
                }
                let accepted = state[voter].durable.accepted.clone();
                if bug == Bug::BeatWhilePending && matches!(question, Question::Beat { .. }) {
                    state[voter].durable.accepted = None;
                }
                let beat = matches!(question, Question::Beat { .. });
                let accept = match &question {
                    Question::Accept { ballot, record } => Some((*ballot, record.clone())),
                    Question::Beat { .. } | Question::Prepare { .. } | Question::Learn { .. } => {
                        None
                    }
                };
                let reply = state[voter].answer(question);
                if bug == Bug::BeatWhilePending && beat {
                    state[voter].durable.accepted = accepted;
                }
                if let (Reply::Accepted, Some((ballot, record))) = (&reply, accept) {
                    let key = (record.epoch, ballot);
                    let entry =
                        votes.entry(key).or_insert_with(|| (record.clone(), BTreeSet::new()));
                    if entry.0 != record {
                        return Err("one ballot, two records".into());
                    }
                    entry.1.insert(voter);
                    if entry.1.len() > voters / 2 {
                        let (first, _) =
                            chosen.entry(record.epoch).or_insert_with(|| (record.clone(), now));
                        if *first != record {
                            return Err(format!("two records for epoch {}", record.epoch));
                        }
                    }
                }
                if bug != Bug::AckBeforePersisting || lots.below(2) == 0 {
                    disk[voter] = state[voter].durable.clone();
                }
                answers.push((number, voter, reply));
            }
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn one_record_per_epoch_and_no_beat_after_its_end() {
    for seed in 0..4000 {
        explore(seed, Bug::None).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn every_deliberate_mistake_is_found() {
    for (bug, name) in [
        (Bug::AckBeforePersisting, "ack before persisting"),
        (Bug::IgnoreAccepted, "ignore what was accepted"),
        (Bug::BeatWhilePending, "beat while a successor is pending"),
        (Bug::ForgetPromises, "forget promises"),
        (Bug::ReuseBallots, "reuse the ballots of an earlier life"),
    ] {
        let found = (0..20_000).find(|&seed| explore(seed, bug).is_err());
        let seed = found.unwrap_or_else(|| panic!("not found: {name}"));
        println!("{name}: found after {} seeds", seed + 1);
    }
}
