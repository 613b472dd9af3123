//! What members tell keepers of semaphores: copies in order, and one site for each id.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::collections::VecDeque;

use kofm_core::epoch::accounts::{Message, Outcome, REMEMBERED, Steps};
use kofm_core::epoch::{Accounts, Books, Op, Sound, Tally};
use kofm_core::{PoolId, SiteId};

const POOL: PoolId = PoolId(0);

/// Members that say everything to each other at once, and what their calls heard.
struct Members {
    list: Vec<Accounts<u32>>,
    heard: Vec<(u16, u32, Outcome)>,
    wire: VecDeque<(u16, SiteId, Message)>,
}

impl Members {
    fn new(count: u16) -> Self {
        let keepers = (0..count).map(SiteId).collect();
        let one = |site| {
            let mut accounts = Accounts::new(Sound, SiteId(site));
            accounts.begin(&keepers, &Books::new(), &mut Steps::default());
            accounts
        };
        let list = (0..count).map(one).collect();
        Self { list, heard: Vec::new(), wire: VecDeque::new() }
    }

    fn at(&mut self, site: u16, act: impl FnOnce(&mut Accounts<u32>, &mut Steps<u32>)) {
        let mut steps = Steps::default();
        act(&mut self.list[usize::from(site)], &mut steps);
        self.wire.extend(steps.sends.into_iter().map(|(to, message)| (site, to, message)));
        self.heard.extend(steps.outcomes.into_iter().map(|(tag, it)| (site, tag, it)));
    }

    fn deliver(&mut self) {
        while let Some((from, to, message)) = self.wire.pop_front() {
            self.at(to.0, |accounts, steps| {
                accounts.receive(SiteId(from), message, steps).unwrap();
            });
        }
    }

    fn news(&mut self) -> Vec<(u16, u32, Outcome)> {
        std::mem::take(&mut self.heard)
    }
}

fn op(change: i64, id: Option<u128>) -> Op {
    Op { pool: POOL, change, id }
}

#[test]
fn an_operation_is_kept_when_a_majority_has_it() {
    let mut members = Members::new(5);
    members.at(0, |it, steps| it.enter(op(-2, None), 1, steps));
    let copies: Vec<_> = members.wire.drain(..).collect();
    assert_eq!(copies.len(), 4);
    for (number, copy) in copies.into_iter().enumerate() {
        members.wire.push_back(copy);
        members.deliver();
        let kept = (number == 1).then_some((0, 1, Outcome::Kept));
        assert_eq!(members.news(), Vec::from_iter(kept), "after copy {number}");
    }
    for accounts in &members.list {
        let tally = Tally { added: 0, taken: 2 };
        assert_eq!(
            accounts.of(POOL).map(|it| (it.0, it.1.tally)).collect::<Vec<_>>(),
            [(SiteId(0), tally)]
        );
    }
    let mut alone = Members::new(1);
    alone.at(0, |it, steps| it.enter(op(3, None), 1, steps));
    assert_eq!(alone.news(), [(0, 1, Outcome::Kept)]);
    assert!(alone.wire.is_empty());
}

#[test]
fn an_id_is_for_one_site_and_the_others_hear_what_was_done() {
    let mut members = Members::new(3);
    for site in [0, 1, 2] {
        members.at(site, |it, steps| it.ask(POOL, 7, 10 + u32::from(site), steps));
        members.deliver();
    }
    // The first that asked, wherever its keeper is.
    assert_eq!(members.news(), [(0, 10, Outcome::Yours)]);
    assert!(members.list[0].is_for(POOL, 7, 10) && !members.list[1].is_for(POOL, 7, 11));
    members.at(0, |it, steps| it.give_up(POOL, 7, 10, steps));
    members.deliver();
    assert_eq!(members.news(), [(1, 11, Outcome::Yours)]);
    members.at(1, |it, steps| it.enter(op(-1, Some(7)), 11, steps));
    members.deliver();
    let known = Outcome::Known(-1);
    let mut news = members.news();
    news.sort_unstable();
    assert_eq!(news, [(1, 11, Outcome::Kept), (2, 12, known)]);
    // Later calls hear at once, or after one question.
    for site in 0..3 {
        members.at(site, |it, steps| it.ask(POOL, 7, 20, steps));
        members.deliver();
        assert_eq!(members.news(), [(site, 20, known)]);
    }
}

#[test]
fn an_epoch_takes_over_what_was_not_kept() {
    let mut members = Members::new(3);
    members.at(0, |it, steps| it.ask(POOL, 5, 1, steps));
    members.at(0, |it, steps| it.enter(op(4, None), 2, steps));
    members.wire.clear();
    members.news();
    let books = members.list[0].report();
    let keepers = (0..2).map(SiteId).collect();
    for site in 0..2 {
        members.at(site, |it, steps| it.begin(&keepers, &books, steps));
    }
    assert_eq!(members.news(), [(0, 2, Outcome::Recorded)]);
    members.at(0, Accounts::resume);
    members.deliver();
    assert_eq!(members.news(), [(0, 1, Outcome::Yours)]);
}

#[test]
fn what_no_member_says_is_refused_and_changes_nothing() {
    let mut members = Members::new(3);
    let copy = |number, taken| Message::Copy {
        number,
        pool: POOL,
        tally: Tally { added: 0, taken },
        named: None,
    };
    let mut take = |message: Message| {
        let before = members.list[1].clone();
        let mut steps = Steps::default();
        let result = members.list[1].receive(SiteId(0), message, &mut steps);
        assert_eq!(result.is_err(), members.list[1] == before);
        assert_eq!(result.is_err(), steps.sends.is_empty());
        result.is_ok()
    };
    assert!(!take(copy(2, 1)), "not the first");
    assert!(take(copy(1, 3)));
    assert!(!take(copy(1, 4)), "again");
    assert!(!take(copy(2, 2)), "less than before");
    assert!(!take(Message::Have { number: 1 }), "nothing was sent");
    assert!(!take(Message::Ask { pool: POOL, id: 3, question: 1 }), "another keeper's");
}

#[test]
fn an_account_remembers_so_many_ids() {
    let mut members = Members::new(1);
    let count = u32::try_from(REMEMBERED).unwrap() + 1;
    for id in 0..count {
        members.at(0, |it, steps| it.ask(POOL, id.into(), id, steps));
        members.at(0, |it, steps| it.enter(op(1, Some(id.into())), id, steps));
    }
    let account = members.list[0].own_account(POOL).unwrap();
    assert_eq!((account.named.len(), account.named[0].id), (REMEMBERED, 1));
    members.news();
    members.at(0, |it, steps| it.ask(POOL, 1, 0, steps));
    members.at(0, |it, steps| it.ask(POOL, 0, 0, steps));
    assert_eq!(members.news(), [(0, 0, Outcome::Known(1)), (0, 0, Outcome::Yours)]);
}
