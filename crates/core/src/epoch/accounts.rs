//! The P and V of each site, kept where they outlive it.
//!
//! # Idea
//!
//! A P or V must not be lost once its client was told of it, and units that were taken do not come
//! back. So each site writes its operations into an *account*, in order, and tells each of them to
//! the [`keepers`](super::keepers::among). An operation is *kept* when a majority of the keepers
//! has it. Only then its client is answered, and only then other sites are told of a V.
//!
//! Accounts are in the [reports](super::Report). The next record has the longest account of each
//! site that members know in the life in which they kept it. The record says whether an operation
//! was done, not the disk of a site that comes back.
//!
//! # Why it is safe
//!
//! A keeper that has reported takes no more copies, and messages of other epochs are dropped. So an
//! operation that was kept is in the report of each of a majority of the keepers that lives on in
//! its life, and if the reports meet every majority, it is in the record. Copies of one account
//! arrive in order, so that what a keeper has is its beginning. A P takes what is left or what was
//! added by a V that was kept before others heard of it, so no record has the P without the V.
//!
//! # Ids
//!
//! An operation may have an id, and then it is done once, however often and wherever it is called.
//! One keeper, the same for all sites in an epoch, says who does the operations of an id: the site
//! that asked first, and when that gives up, the next. When it is kept, all others hear that it was
//! done. The latest [`REMEMBERED`] operations with ids are part of the account.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::keepers;
use super::rules::{Rules, Slip, Sound};
use crate::parts::SiteSet;
use crate::protocol::PeerFault;
use crate::types::{PoolId, SiteId};

/// Operations with ids that an account remembers.
pub const REMEMBERED: usize = 1024;
/// Ids that one keeper can be asked about at a time.
const MAX_LINES: usize = 1 << 18;

/// Units that one site has added to a semaphore and taken from it, ever since it was made.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Tally {
    /// By V.
    pub added: u64,
    /// By P.
    pub taken: u64,
}

/// An operation that its client gave an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Named {
    /// The id.
    pub id: u128,
    /// Units: added, or below zero where they were taken.
    pub change: i64,
}

/// What one site did with one semaphore, in all its lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Account {
    /// The sums.
    pub tally: Tally,
    /// The latest operations with ids, oldest first.
    pub named: Vec<Named>,
}

/// Accounts by semaphore and site.
pub type Books = BTreeMap<PoolId, BTreeMap<SiteId, Account>>;

impl Account {
    /// Of two states of one account the longer one is the later.
    pub const fn length(&self) -> u64 {
        self.tally.added.saturating_add(self.tally.taken)
    }

    /// Takes over a later state of itself.
    pub(super) fn catch_up(&mut self, other: &Self) {
        if other.length() > self.length() {
            self.clone_from(other);
        }
    }

    /// Counts an operation.
    pub(super) const fn count(&mut self, change: i64) {
        let Tally { added, taken } = &mut self.tally;
        let sum = if change < 0 { taken } else { added };
        *sum = sum.saturating_add(change.unsigned_abs());
    }

    /// Writes an operation with an id down; says which one is forgotten for it.
    pub fn remember(&mut self, named: Named) -> Option<u128> {
        let full = self.named.len() >= REMEMBERED;
        let oldest = full.then(|| self.named.remove(0).id);
        self.named.push(named);
        oldest
    }
}

/// One P or V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Op {
    /// The semaphore.
    pub pool: PoolId,
    /// Units: added, or below zero where they were taken.
    pub change: i64,
    /// What its client calls it.
    pub id: Option<u128>,
}

impl Op {
    fn name(self) -> Option<OpId> {
        self.id.map(|id| (self.pool, id))
    }
}

/// What members say to each other about accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// To a keeper: the next operation in the sender's accounts.
    Copy {
        /// Its number in this epoch, from 1.
        number: u64,
        /// The semaphore.
        pool: PoolId,
        /// The sums after it.
        tally: Tally,
        /// Its id, if it has one.
        named: Option<Named>,
    },
    /// From a keeper: it has this operation and all before it.
    Have {
        /// The number.
        number: u64,
    },
    /// May the sender do the operation with this id?
    Ask {
        /// The semaphore.
        pool: PoolId,
        /// The id.
        id: u128,
        /// Tells this question from earlier ones that were given up.
        question: u64,
    },
    /// The receiver may, and no other site.
    Yours {
        /// The semaphore.
        pool: PoolId,
        /// The id.
        id: u128,
        /// The question.
        question: u64,
    },
    /// It was done, and is kept.
    Known {
        /// The semaphore.
        pool: PoolId,
        /// The operation.
        named: Named,
    },
    /// The sender has done it, and it is kept.
    Settled {
        /// The semaphore.
        pool: PoolId,
        /// The operation.
        named: Named,
    },
    /// The sender does not want to do it any more, and has not.
    Forget {
        /// The semaphore.
        pool: PoolId,
        /// The id.
        id: u128,
    },
}

impl Message {
    /// The semaphore that it is about.
    pub const fn pool(&self) -> Option<PoolId> {
        match self {
            Self::Have { .. } => None,
            Self::Copy { pool, .. }
            | Self::Ask { pool, .. }
            | Self::Yours { pool, .. }
            | Self::Known { pool, .. }
            | Self::Settled { pool, .. }
            | Self::Forget { pool, .. } => Some(*pool),
        }
    }
}

/// The end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Its operation has an id and is this site's to do.
    Yours,
    /// Its operation is kept. If it is a V, the protocol is to be told.
    Kept,
    /// Its operation is in the record of the epoch that begins, and in the values there.
    Recorded,
    /// An operation with its id was done before, with this change.
    Known(i64),
}

/// What follows from a step: messages, and news for calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps<T> {
    /// Messages, in order.
    pub sends: Vec<(SiteId, Message)>,
    /// News for calls, in order.
    pub outcomes: Vec<(T, Outcome)>,
}

impl<T> Default for Steps<T> {
    fn default() -> Self {
        Self { sends: Vec::new(), outcomes: Vec::new() }
    }
}

type OpId = (PoolId, u128);

/// The calls at one site for one operation with an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Calls<T> {
    question: u64,
    /// Whether the operation is this site's to do.
    yours: bool,
    tags: VecDeque<T>,
}

/// The accounts that one member has, in one epoch, of the semaphores of one protocol. Calls have a
/// tag each, which the driver chooses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Accounts<T, R = Sound> {
    me: SiteId,
    keepers: SiteSet,
    books: Books,
    /// Operations of this site in this epoch.
    entered: u64,
    /// Those of them that are not kept, by number.
    open: VecDeque<(u64, T, Op)>,
    /// The last of them that each keeper has.
    had: BTreeMap<SiteId, u64>,
    /// The last operation of each other site that this keeper has.
    heard: BTreeMap<SiteId, u64>,
    /// Calls at this site for operations with ids that are not kept; the first does the operation
    /// as soon as it may.
    calls: BTreeMap<OpId, Calls<T>>,
    /// The last question that was asked about any of them.
    asked: u64,
    /// At the keeper that says who does an operation: that site, and then those that ask for it,
    /// each with its question.
    lines: BTreeMap<OpId, VecDeque<(SiteId, u64)>>,
    /// The ids in the accounts: the change, and whether it is known to be kept.
    ids: BTreeMap<OpId, (i64, bool)>,
    rules: R,
}

impl<T: Copy + PartialEq, R: Rules> Accounts<T, R> {
    /// Before any epoch.
    pub const fn new(rules: R, me: SiteId) -> Self {
        Self {
            me,
            keepers: SiteSet::new(),
            books: BTreeMap::new(),
            entered: 0,
            open: VecDeque::new(),
            had: BTreeMap::new(),
            heard: BTreeMap::new(),
            calls: BTreeMap::new(),
            asked: 0,
            lines: BTreeMap::new(),
            ids: BTreeMap::new(),
            rules,
        }
    }

    /// An epoch begins. If this life was in the epoch before, all that it has done is in the
    /// record.
    pub fn begin(&mut self, keepers: &SiteSet, books: &Books, steps: &mut Steps<T>) {
        self.keepers.clone_from(keepers);
        self.books.clone_from(books);
        self.entered = 0;
        self.had.clear();
        self.heard.clear();
        self.lines.clear();
        self.ids.clear();
        for (&pool, accounts) in books {
            let named = accounts.values().flat_map(|account| &account.named);
            self.ids.extend(named.map(|it| ((pool, it.id), (it.change, true))));
        }
        for (_, tag, op) in core::mem::take(&mut self.open) {
            steps.outcomes.push((tag, Outcome::Recorded));
            self.tell_calls(op, Some(tag), steps);
        }
        let ids = &self.ids;
        let known = |name: &OpId| ids.get(name).map(|it| it.0);
        for (name, calls) in self.calls.extract_if(.., |name, _| ids.contains_key(name)) {
            let change = known(&name).unwrap_or_default();
            let tags = calls.tags.into_iter();
            steps.outcomes.extend(tags.map(|tag| (tag, Outcome::Known(change))));
        }
        for calls in self.calls.values_mut() {
            calls.yours = false;
        }
    }

    /// All members have begun the epoch: asks again for what was asked before.
    pub fn resume(&mut self, steps: &mut Steps<T>) {
        let names: Vec<OpId> = self.calls.keys().copied().collect();
        for name in names {
            self.ask_registrar(name, steps);
        }
    }

    /// What this member can say of accounts when it reports.
    pub fn report(&self) -> Books {
        if self.keepers.contains(self.me) {
            return self.books.clone();
        }
        let own = self.books.iter().filter_map(|(&pool, accounts)| {
            let account = accounts.get(&self.me)?;
            Some((pool, BTreeMap::from([(self.me, account.clone())])))
        });
        own.collect()
    }

    /// The accounts of one semaphore, as far as they are known here.
    pub fn of(&self, pool: PoolId) -> impl Iterator<Item = (SiteId, &Account)> {
        self.books.get(&pool).into_iter().flatten().map(|(&site, account)| (site, account))
    }

    /// The sums of this site.
    pub fn own(&self, pool: PoolId) -> Tally {
        self.own_account(pool).map_or_else(Tally::default, |account| account.tally)
    }

    /// What this site did.
    pub fn own_account(&self, pool: PoolId) -> Option<&Account> {
        self.books.get(&pool)?.get(&self.me)
    }

    /// Operations that wait for keepers.
    pub fn waiting(&self) -> usize {
        self.open.len()
    }

    /// A call for an operation with an id. It hears [`Outcome::Yours`] or [`Outcome::Known`].
    pub fn ask(&mut self, pool: PoolId, id: u128, tag: T, steps: &mut Steps<T>) {
        let name = (pool, id);
        if let Some(&(change, true)) = self.ids.get(&name) {
            return steps.outcomes.push((tag, Outcome::Known(change)));
        }
        let fresh = || Calls { question: 0, yours: false, tags: VecDeque::new() };
        let calls = self.calls.entry(name).or_insert_with(fresh);
        calls.tags.push_back(tag);
        if calls.tags.len() == 1 {
            self.ask_registrar(name, steps);
        }
    }

    /// Whether the operation with this id is for this call to do now.
    pub fn is_for(&self, pool: PoolId, id: u128, tag: T) -> bool {
        let calls = self.calls.get(&(pool, id));
        calls.is_some_and(|calls| calls.yours && calls.tags.front() == Some(&tag))
    }

    /// Whether the operation of this call is done and not kept.
    pub fn is_open(&self, tag: T) -> bool {
        self.open.iter().any(|it| it.1 == tag)
    }

    /// A call for an operation with an id is given up. Its operation is not done.
    pub fn give_up(&mut self, pool: PoolId, id: u128, tag: T, steps: &mut Steps<T>) {
        let name = (pool, id);
        let Some(Calls { yours, tags, .. }) = self.calls.get_mut(&name) else { return };
        let Some(place) = tags.iter().position(|it| *it == tag) else { return };
        tags.remove(place);
        let next = tags.front().copied().filter(|_| place == 0 && *yours);
        let empty = tags.is_empty();
        steps.outcomes.extend(next.map(|next| (next, Outcome::Yours)));
        if empty {
            self.calls.remove(&name);
            self.tell_registrar(Message::Forget { pool, id }, name, steps);
        }
    }

    /// Writes an operation of this site down. Its call hears [`Outcome::Kept`], or
    /// [`Outcome::Recorded`] when another epoch begins before that.
    pub fn enter(&mut self, op: Op, tag: T, steps: &mut Steps<T>) {
        let Op { pool, change, id } = op;
        let account = self.books.entry(pool).or_default().entry(self.me).or_default();
        account.count(change);
        let tally = account.tally;
        let named = id.map(|id| Named { id, change });
        self.note(pool, self.me, named);
        self.entered += 1;
        let number = self.entered;
        self.open.push_back((number, tag, op));
        for to in self.keepers.iter().filter(|&to| to != self.me) {
            steps.sends.push((to, Message::Copy { number, pool, tally, named }));
        }
        self.settle(steps);
    }

    /// A message of this epoch arrives. `Err` means that nothing was changed and nothing said.
    pub fn receive(
        &mut self,
        from: SiteId,
        message: Message,
        steps: &mut Steps<T>,
    ) -> Result<(), PeerFault> {
        match message {
            Message::Copy { number, pool, tally, named } => {
                self.on_copy(from, number, pool, tally, named)?;
                steps.sends.push((from, Message::Have { number }));
            }
            Message::Have { number } => {
                if number > self.entered || !self.keepers.contains(from) {
                    return Err(PeerFault::Unexpected("a copy of what was not sent"));
                }
                let had = self.had.entry(from).or_default();
                *had = number.max(*had);
                self.settle(steps);
            }
            Message::Ask { pool, id, question } => {
                if self.registrar((pool, id)) != self.me || self.lines.len() >= MAX_LINES {
                    return Err(PeerFault::Unexpected("an id that is another keeper's to give"));
                }
                self.on_ask((from, question), (pool, id), steps);
            }
            Message::Yours { pool, id, question } => self.on_yours((pool, id), question, steps),
            Message::Known { pool, named } => self.on_known(pool, named, steps),
            Message::Settled { pool, named } => self.on_settled(from, pool, named, steps),
            Message::Forget { pool, id } => self.on_forget(from, (pool, id), steps),
        }
        Ok(())
    }

    fn on_copy(
        &mut self,
        from: SiteId,
        number: u64,
        pool: PoolId,
        tally: Tally,
        named: Option<Named>,
    ) -> Result<(), PeerFault> {
        let heard = self.heard.get(&from).copied().unwrap_or(0);
        if number != heard + 1 || from == self.me || !self.keepers.contains(self.me) {
            return Err(PeerFault::Unexpected("a copy out of order"));
        }
        let known = self.books.get(&pool).and_then(|accounts| accounts.get(&from));
        let old = known.map_or_else(Tally::default, |account| account.tally);
        if tally.added < old.added || tally.taken < old.taken {
            return Err(PeerFault::Unexpected("a copy that takes something back"));
        }
        self.heard.insert(from, number);
        self.books.entry(pool).or_default().entry(from).or_default().tally = tally;
        self.note(pool, from, named);
        Ok(())
    }

    /// Remembers the id of an operation in the account of `site`.
    fn note(&mut self, pool: PoolId, site: SiteId, named: Option<Named>) {
        let Some(named) = named else { return };
        let account = self.books.entry(pool).or_default().entry(site).or_default();
        if let Some(oldest) = account.remember(named) {
            self.ids.remove(&(pool, oldest));
        }
        self.ids.insert((pool, named.id), (named.change, false));
    }

    /// Goes on with the operations that enough keepers have.
    fn settle(&mut self, steps: &mut Steps<T>) {
        let enough = keepers::majority(&self.keepers);
        while let Some(&(number, tag, op)) = self.open.front() {
            let has = |site: &SiteId| {
                *site == self.me || self.had.get(site).is_some_and(|&had| had >= number)
            };
            let alone = self.keepers.is_empty() || self.rules.slips(Slip::AnswersAlone);
            if !alone && self.keepers.iter().filter(has).count() < enough {
                return;
            }
            self.open.pop_front();
            steps.outcomes.push((tag, Outcome::Kept));
            self.tell_calls(op, Some(tag), steps);
            if let (Some(name), Some(id)) = (op.name(), op.id) {
                if let Some(known) = self.ids.get_mut(&name) {
                    known.1 = true;
                }
                let (pool, named) = (op.pool, Named { id, change: op.change });
                self.tell_registrar(Message::Settled { pool, named }, name, steps);
            }
        }
    }

    /// An operation is done: all calls for it hear of it but the one that did it.
    fn tell_calls(&mut self, op: Op, doer: Option<T>, steps: &mut Steps<T>) {
        let Some(calls) = op.name().and_then(|name| self.calls.remove(&name)) else { return };
        let others = calls.tags.into_iter().filter(|tag| Some(*tag) != doer);
        steps.outcomes.extend(others.map(|tag| (tag, Outcome::Known(op.change))));
    }

    // The site that does an operation with an id

    /// The keeper that says who does it.
    fn registrar(&self, (_, id): OpId) -> SiteId {
        let place = u128::try_from(self.keepers.len()).map_or(0, |count| id % count.max(1));
        let place = usize::try_from(place).unwrap_or(0);
        self.keepers.iter().nth(place).unwrap_or(self.me)
    }

    fn ask_registrar(&mut self, name: OpId, steps: &mut Steps<T>) {
        let (pool, id) = name;
        let Some(calls) = self.calls.get_mut(&name) else { return };
        self.asked += 1;
        calls.question = self.asked;
        let question = self.asked;
        self.tell_registrar(Message::Ask { pool, id, question }, name, steps);
    }

    fn tell_registrar(&mut self, message: Message, name: OpId, steps: &mut Steps<T>) {
        self.tell(self.registrar(name), message, steps);
    }

    /// Sends, or takes what this site says to itself.
    fn tell(&mut self, to: SiteId, message: Message, steps: &mut Steps<T>) {
        if to != self.me {
            return steps.sends.push((to, message));
        }
        match message {
            Message::Ask { pool, id, question } => self.on_ask((to, question), (pool, id), steps),
            Message::Yours { pool, id, question } => self.on_yours((pool, id), question, steps),
            Message::Known { pool, named } => self.on_known(pool, named, steps),
            Message::Settled { pool, named } => self.on_settled(to, pool, named, steps),
            Message::Forget { pool, id } => self.on_forget(to, (pool, id), steps),
            Message::Copy { .. } | Message::Have { .. } => {}
        }
    }

    fn on_ask(&mut self, (from, question): (SiteId, u64), name: OpId, steps: &mut Steps<T>) {
        let (pool, id) = name;
        if let Some(&(change, true)) = self.ids.get(&name)
            && !self.rules.slips(Slip::DoesAgain)
        {
            let named = Named { id, change };
            return self.tell(from, Message::Known { pool, named }, steps);
        }
        let line = self.lines.entry(name).or_default();
        line.retain(|it| it.0 != from);
        line.push_back((from, question));
        if line.len() == 1 || self.rules.slips(Slip::DoesAgain) {
            self.tell(from, Message::Yours { pool, id, question }, steps);
        }
    }

    fn on_yours(&mut self, name: OpId, question: u64, steps: &mut Steps<T>) {
        // The question may have been given up meanwhile, and then the keeper hears of it.
        let asks = |calls: &&mut Calls<T>| calls.question == question && !calls.yours;
        let Some(calls) = self.calls.get_mut(&name).filter(asks) else { return };
        calls.yours = true;
        steps.outcomes.extend(calls.tags.front().map(|&tag| (tag, Outcome::Yours)));
    }

    fn on_known(&mut self, pool: PoolId, named: Named, steps: &mut Steps<T>) {
        let op = Op { pool, change: named.change, id: Some(named.id) };
        self.tell_calls(op, None, steps);
    }

    fn on_settled(&mut self, from: SiteId, pool: PoolId, named: Named, steps: &mut Steps<T>) {
        let name = (pool, named.id);
        if let Some(known) = self.ids.get_mut(&name) {
            known.1 = true;
        }
        if self.lines.get(&name).is_some_and(|line| line.front().is_some_and(|it| it.0 == from)) {
            for (to, _) in self.lines.remove(&name).into_iter().flatten().skip(1) {
                self.tell(to, Message::Known { pool, named }, steps);
            }
        }
    }

    fn on_forget(&mut self, from: SiteId, name: OpId, steps: &mut Steps<T>) {
        let Some(line) = self.lines.get_mut(&name) else { return };
        let Some(place) = line.iter().position(|it| it.0 == from) else { return };
        line.remove(place);
        let next = line.front().copied();
        match next {
            None => drop(self.lines.remove(&name)),
            Some((next, question)) if place == 0 => {
                let (pool, id) = name;
                self.tell(next, Message::Yours { pool, id, question }, steps);
            }
            Some(_) => {}
        }
    }
}
