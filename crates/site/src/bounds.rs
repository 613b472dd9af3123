//! Bounds on numbers that come from other sites.
//!
//! Epochs, incarnations, ballots and clocks only grow. A number that a peer made up must not use up
//! the numbers that are left, so each may lead the largest known one by a limited amount only. All
//! arithmetic on them stays far below the end of their type.

use kofm_core::epoch::accounts::REMEMBERED;
use kofm_core::epoch::{self, Copy, MAX_COPIES, Message, Report};
use kofm_core::{Clock, SiteId};

use crate::plan::{self, Plan};
use crate::store::Record;

/// The largest epoch. Clocks leap by 2³² with every epoch and must stay below [`Clock::LIMIT`].
const MAX_EPOCH: u64 = 1 << 29;
/// Epochs that a site can have missed.
const EPOCH_LEAD: u64 = 1 << 20;
/// One more than the largest incarnation, on disk and from peers.
pub const MAX_INCARNATION: u64 = 1 << 20;
/// Incarnations of a site that the others can have missed.
const INCARNATION_LEAD: u64 = 1 << 16;
/// Rounds by which a ballot may lead the promised one.
const ROUND_LEAD: u64 = 1 << 32;
/// How far clocks of two members of one epoch can be apart: more than 2³², by which they leap.
const CLOCK_LEAD: u64 = 1 << 40;
/// How far the clock of a site that joins can lead the cluster's: it starts at its incarnation
/// times 2³².
const JOIN_LEAD: u64 = 1 << 53;

/// Leases of departed sites that one site presents at a change of epoch.
pub const MAX_PAPERS: usize = 10_000;

/// Bytes of the facts with which another site goes on with a lease.
pub const MAX_FACTS: usize = 4000;

/// Why a number or a record is refused.
pub type Refusal = &'static str;

const EPOCH: Refusal = "an epoch far ahead of the known one";
const INCARNATION: Refusal = "an incarnation far ahead of the known one";
const CLOCK: Refusal = "a clock far ahead of the known one";
const COPIES: Refusal = "more copies of leases than a site keeps, or larger ones";
const BODY: Refusal = "a record that cannot be decoded";

fn ensure(good: bool, why: Refusal) -> Result<(), Refusal> {
    if good { Ok(()) } else { Err(why) }
}

/// Whether a peer can know of this epoch. A site that knows none yet can have missed any number.
pub fn epoch(epoch: u64, known: u64) -> Result<(), Refusal> {
    let lead = known == 0 || epoch <= known.saturating_add(EPOCH_LEAD);
    ensure(epoch < MAX_EPOCH && lead, EPOCH)
}

/// Whether a site can be in this incarnation.
pub fn incarnation(incarnation: u64, known: u64) -> Result<(), Refusal> {
    let lead = known.saturating_add(INCARNATION_LEAD);
    ensure(incarnation < MAX_INCARNATION && incarnation <= lead, INCARNATION)
}

/// Whether a proposer can have got to this round.
pub fn round(round: u64, promised: u64) -> Result<(), Refusal> {
    let lead = promised.saturating_add(ROUND_LEAD);
    ensure(round < u64::MAX / 2 && round <= lead, "a ballot far ahead of the promised one")
}

/// Whether a member of this epoch can have this clock.
pub fn clock(clock: Clock, known: Clock) -> Result<(), Refusal> {
    within(clock, known, CLOCK_LEAD)
}

fn within(clock: Clock, known: Clock, lead: u64) -> Result<(), Refusal> {
    let time = clock.time <= known.time.saturating_add(lead);
    let fence = clock.fence <= known.fence.saturating_add(lead);
    ensure(clock.is_plausible() && time && fence, CLOCK)
}

/// Decodes a record of the store, if it can follow the epoch `known`.
pub fn record(record: &Record, known: u64) -> Result<epoch::Record<Plan>, Refusal> {
    epoch(record.epoch, known)?;
    let decoded = plan::unpack(&record.body).map_err(|_| BODY)?;
    ensure(decoded.epoch == record.epoch, "a record of another epoch than it says")?;
    ensure(decoded.plan.voters == record.voters, "a record with other voters than it says")?;
    successor(&decoded, known, None)?;
    Ok(decoded)
}

/// Whether the numbers in a record are possible, for a site that knows `old`, if any.
fn successor(
    new: &epoch::Record<Plan>,
    known: u64,
    old: Option<&epoch::Record<Plan>>,
) -> Result<(), Refusal> {
    epoch(new.epoch, known)?;
    ensure(new.epoch > 0 && new.quarantine.keys().all(|&since| since <= new.epoch), EPOCH)?;
    for (site, &life) in new.lives.iter().chain(&new.members) {
        // A site that has been away for long knows none of the lives of the others.
        let known = old.and_then(|it| it.lives.get(site).copied()).unwrap_or(MAX_INCARNATION);
        incarnation(life, known)?;
    }
    let clocks = new.surveys.iter().map(|survey| survey.clock);
    let claims = new.surveys.iter().flat_map(|survey| survey.claims.keys());
    let good = |it: Clock| it.is_plausible();
    let stamps = claims.map(|claim| Clock { time: claim.time, fence: 0 });
    ensure(clocks.chain(stamps).all(good), CLOCK)
}

/// Whether the numbers in a message of the epoch machine are possible for a site with this record.
pub fn message(
    message: &Message<Plan>,
    from: SiteId,
    known: &epoch::Record<Plan>,
) -> Result<(), Refusal> {
    match message {
        Message::Freeze { epoch: it }
        | Message::Ready { epoch: it }
        | Message::Kept { epoch: it, leases: _ } => epoch(*it, known.epoch),
        Message::Report { epoch: it, report: told } => {
            epoch(*it, known.epoch)?;
            report(from, told, known)
        }
        Message::Commit(record) => successor(record, known.epoch, Some(known)),
        Message::Wish { suspects: _, joins, plan: _, over, papers: _, leaves: _ } => {
            epoch(*over, known.epoch)?;
            joins.iter().try_for_each(|(&site, told)| report(site, told, known))
        }
        Message::Join(told) => report(from, told, known),
        Message::Copies { epoch: it, copies: told, over } => {
            ensure(over.len() <= 2 * MAX_COPIES, COPIES)?;
            epoch(*it, known.epoch)?;
            copies(told)
        }
    }
}

fn report(site: SiteId, report: &Report, known: &epoch::Record<Plan>) -> Result<(), Refusal> {
    let life = known.lives.get(&site).copied().unwrap_or(0);
    incarnation(report.incarnation, life)?;
    let mut clock = Clock::default();
    for survey in &known.surveys {
        clock.merge(survey.clock);
    }
    let per_site = report.copies.values();
    per_site.map(Vec::as_slice).try_for_each(copies)?;
    ensure(report.papers.len() <= MAX_PAPERS, "more presented leases than a site keeps")?;
    ensure(report.tickets.len() <= MAX_PAPERS, "more presented requests than a site keeps")?;
    let books = report.books.iter().filter_map(|book| book.accounts.as_ref());
    let mut accounts = books.flat_map(|books| books.values().flat_map(|sites| sites.values()));
    ensure(accounts.all(|it| it.named.len() <= REMEMBERED), "more ids than a site remembers")?;
    within(report.clock, clock, JOIN_LEAD)
}

fn copies(copies: &[Copy]) -> Result<(), Refusal> {
    let small = copies.iter().all(|copy| copy.facts.len() <= MAX_FACTS);
    ensure(small && copies.len() <= MAX_COPIES, COPIES)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;

    fn packed(epoch: u64, change: impl FnOnce(&mut epoch::Record<Plan>)) -> Record {
        let mut record = epoch::Record::first([(SiteId(0), 1)].into(), Plan::default());
        record.epoch = epoch;
        change(&mut record);
        plan::decree(&record)
    }

    #[test]
    fn a_record_with_possible_numbers_is_taken() {
        assert!(record(&packed(1, |_| ()), 0).is_ok());
        assert!(record(&packed(5_000, |_| ()), 0).is_ok());
        let later = |it: &mut epoch::Record<Plan>| _ = it.lives.insert(SiteId(1), 900_000);
        assert!(record(&packed(7, later), 6).is_ok());
    }

    #[test]
    fn a_record_with_impossible_numbers_is_refused() {
        for epoch in [u64::MAX, u64::MAX - 1, 1 << 62, 2_000_000] {
            assert_eq!(record(&packed(epoch, |_| ()), 3), Err(EPOCH), "{epoch}");
        }
        let owned = Record { epoch: 4, body: b"owned".to_vec(), ..Record::default() };
        assert_eq!(record(&owned, 3), Err(BODY));
        let other = Record { epoch: 5, ..packed(4, |_| ()) };
        assert!(record(&other, 3).is_err());
        let life = |it: &mut epoch::Record<Plan>| _ = it.lives.insert(SiteId(0), 1 << 63);
        assert_eq!(record(&packed(4, life), 3), Err(INCARNATION));
        let clock = |it: &mut epoch::Record<Plan>| {
            it.surveys.push(epoch::Survey::default());
            it.surveys[0].clock.fence = u64::MAX;
        };
        assert_eq!(record(&packed(4, clock), 3), Err(CLOCK));
    }

    #[test]
    fn a_message_with_impossible_numbers_is_refused() {
        let known = epoch::Record::first([(SiteId(0), 1)].into(), Plan::default());
        let from = SiteId(1);
        let told = |incarnation, time| Report {
            clock: Clock { time, fence: 0 },
            ..Report::empty(incarnation)
        };
        assert!(message(&Message::Join(told(9, 9 << 32)), from, &known).is_ok());
        let mut far = known.clone();
        far.epoch = u64::MAX;
        for bad in [
            Message::Join(told(1 << 63, 0)),
            Message::Join(told(1, 1 << 61)),
            Message::Ready { epoch: u64::MAX },
            Message::Freeze { epoch: 1 << 40 },
            Message::Commit(Arc::new(far)),
            Message::Wish {
                suspects: BTreeMap::new(),
                joins: BTreeMap::from([(SiteId(2), told(1 << 20, 0))]),
                plan: None,
                over: 0,
                papers: false,
                leaves: false,
            },
        ] {
            assert!(message(&bad, from, &known).is_err(), "{bad:?}");
        }
    }
}
