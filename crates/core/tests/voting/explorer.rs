//! Every interleaving of voters, proposers and a member that beats, breadth first.
//!
//! The registers and proposals are those of `kofm_core::voting`. Around them is a network in
//! which any message may be late, lost or doubled, and disks may be lost.
//!
//! Three reductions keep the states few. A promise whose answer is lost only forbids, so each
//! answer to `Prepare` is heard. An acceptance that is heard only enables, so each is heard. Every
//! `Accept` that was ever sent may arrive at any time, which covers loss, delay and doubling. A
//! proposer that crashes is one that begins again with the next ballot, or never does.
//!
//! # Laws
//!
//! | law | meaning |
//! | --- | --- |
//! | agreement | one decree per epoch is chosen |
//! | beat | no heartbeat that began after the next epoch was chosen succeeds |
//! | belief | no voter and no proposer knows a decree that was not chosen |
//! | progress | a new site that asks all living disks can have a later decree chosen |

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use kofm_core::SiteId;
use kofm_core::voting::{
    Answer, Ballot, Decree, DiskId, Durable, Electorate, Mistake, Next, Proposal, Question,
    Register, Rules,
};

/// What is explored.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Sites with a disk.
    pub(crate) sites: u16,
    /// The voters of epoch 1.
    pub(crate) first: Vec<u16>,
    /// For each proposer, the voters that it names in epoch 2, 3 and so on.
    pub(crate) wishes: Vec<Vec<Vec<u16>>>,
    /// Ballots of each proposer.
    pub(crate) ballots: u64,
    /// Whether a member beats.
    pub(crate) beats: bool,
    /// Disks that are lost for good.
    pub(crate) deaths: u8,
    /// Disks that are lost while the site comes back with an empty one.
    pub(crate) wipes: u8,
    /// Whether retired voters forget once they may.
    pub(crate) retires: bool,
    /// What is broken.
    pub(crate) flaw: Flaw,
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Nothing.
    #[default]
    None,
    /// A rule of voters and proposers.
    Rule(Mistake),
    /// A disk may come back as it was one write earlier.
    DiskGoesBack,
    /// A retired voter forgets at once.
    RetiredForgets,
    /// A proposer that crashed uses its ballots again.
    BallotAgain,
}

/// The result of an exploration.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// Distinct states, told apart by hashes of 128 bits.
    pub(crate) states: u64,
    /// Whether everything was seen.
    pub(crate) complete: bool,
    /// The law that was broken, and a shortest way there.
    pub(crate) violation: Option<(&'static str, Vec<String>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Broken(Option<u8>);

/// Rules are compared and hashed, which a mistake itself is not ordered for.
const MISTAKES: [Mistake; 9] = [
    Mistake::CountsNewVoters,
    Mistake::CountsAnybody,
    Mistake::AnswersForLostDisk,
    Mistake::AcceptedIsChosen,
    Mistake::BeatsThrough,
    Mistake::LearnKeeps,
    Mistake::StepsDown,
    Mistake::ForgetsBest,
    Mistake::ForgetsPromises,
];

impl Broken {
    fn by(flaw: Flaw) -> Self {
        let Flaw::Rule(mistake) = flaw else { return Self(None) };
        let place = MISTAKES.iter().position(|it| *it == mistake);
        Self(place.and_then(|it| u8::try_from(it).ok()))
    }
}

impl Rules for Broken {
    fn makes(self, mistake: Mistake) -> bool {
        self.0.is_some_and(|place| MISTAKES[usize::from(place)] == mistake)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Disk {
    register: Register<Broken>,
    /// As it was one write earlier, if that may come back.
    before: Option<Durable>,
    dead: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Proposer {
    known: Decree,
    proposal: Option<(Ballot, Proposal<Broken>)>,
    ballots: u64,
}

/// A heartbeat that began after the next epoch was chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Beat {
    epoch: Decree,
    answered: BTreeSet<SiteId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    disks: Vec<Disk>,
    proposers: Vec<Proposer>,
    beat: Option<Beat>,
    /// Every `Accept` that was sent.
    sent: BTreeSet<(Ballot, Decree)>,
    /// Which disks have accepted what.
    accepted: BTreeMap<(Ballot, Decree), BTreeSet<DiskId>>,
    /// What was chosen, in the order of epochs.
    chosen: Vec<Decree>,
    deaths: u8,
    wipes: u8,
}

#[derive(Clone, Debug)]
enum Action {
    Begin(usize),
    Prepare(usize, SiteId),
    Accept(Ballot, Decree, SiteId),
    Learn(SiteId, Decree),
    Hear(usize, Decree),
    StartBeat(Decree),
    Beat(SiteId),
    Die(SiteId),
    Wipe(SiteId),
    GoBack(SiteId),
    Retire(SiteId),
}

fn majority(voters: &Electorate) -> usize {
    voters.len() / 2 + 1
}

impl World {
    fn new(setting: &Setting) -> Self {
        let rules = Broken::by(setting.flaw);
        let disk = |site: u16| DiskId(u128::from(site) + 1);
        let voters: Electorate = setting.first.iter().map(|&it| (SiteId(it), disk(it))).collect();
        let first = Decree { epoch: 1, voters, body: Vec::new() };
        let disks = (0..setting.sites).map(|site| {
            let mut durable = Durable::new(disk(site));
            if setting.first.contains(&site) {
                durable.known = first.clone();
            }
            Disk { register: Register::by(rules, durable), before: None, dead: false }
        });
        let proposer = Proposer { known: first.clone(), ..Proposer::default() };
        Self {
            disks: disks.collect(),
            proposers: vec![proposer; setting.wishes.len()],
            beat: None,
            sent: BTreeSet::new(),
            accepted: BTreeMap::new(),
            chosen: vec![first],
            deaths: setting.deaths,
            wipes: setting.wipes,
        }
    }

    fn disk(&mut self, site: SiteId) -> &mut Disk {
        &mut self.disks[site.index()]
    }

    /// Asks a disk, and keeps what it was before it wrote.
    fn ask(&mut self, setting: &Setting, site: SiteId, to: DiskId, question: Question) -> Answer {
        let disk = self.disk(site);
        let before = disk.register.durable.clone();
        let answer = disk.register.answer(to, question);
        if setting.flaw == Flaw::DiskGoesBack && disk.register.durable != before {
            disk.before = Some(before);
        }
        answer
    }

    fn actions(&self, setting: &Setting) -> Vec<Action> {
        let mut list = Vec::new();
        let sites = || (0..setting.sites).map(SiteId);
        let living = |site: &SiteId| !self.disks[site.index()].dead;
        for (number, proposer) in self.proposers.iter().enumerate() {
            let wish = usize::try_from(proposer.known.epoch - 1).unwrap_or(usize::MAX);
            if proposer.ballots < setting.ballots && setting.wishes[number].len() > wish {
                list.push(Action::Begin(number));
            }
            if let Some((_, proposal)) = &proposer.proposal
                && proposal.offered().is_none()
            {
                let all = setting.flaw == Flaw::Rule(Mistake::CountsAnybody);
                let asked = |it: &SiteId| all || self.asks(setting, number).contains_key(it);
                list.extend(
                    sites().filter(living).filter(asked).map(|it| Action::Prepare(number, it)),
                );
            }
            let news = |it: &&Disk| it.register.durable.known.epoch > proposer.known.epoch;
            let news: BTreeSet<&Decree> =
                self.disks.iter().filter(news).map(|it| &it.register.durable.known).collect();
            list.extend(news.into_iter().map(|it| Action::Hear(number, it.clone())));
        }
        for (ballot, decree) in &self.sent {
            let all = setting.flaw == Flaw::Rule(Mistake::CountsAnybody);
            let voters = self.voters_of(setting, decree);
            let asked = |it: &SiteId| all || voters.contains_key(it);
            for site in sites().filter(living).filter(asked) {
                list.push(Action::Accept(*ballot, decree.clone(), site));
            }
        }
        let known = self.disks.iter().map(|it| &it.register.durable.known);
        let known: BTreeSet<&Decree> =
            known.chain(self.proposers.iter().map(|it| &it.known)).collect();
        for site in sites().filter(living) {
            let epoch = self.disks[site.index()].register.durable.known.epoch;
            let later = known.iter().filter(|it| it.epoch > epoch);
            list.extend(later.map(|it| Action::Learn(site, (*it).clone())));
        }
        if setting.beats {
            match &self.beat {
                None => {
                    let old = self.chosen.iter().rev().skip(1);
                    list.extend(old.map(|it| Action::StartBeat(it.clone())));
                }
                Some(beat) => {
                    let voters = beat.epoch.voters.keys().copied().filter(living);
                    list.extend(voters.map(Action::Beat));
                }
            }
        }
        for site in sites().filter(living) {
            if self.deaths > 0 {
                list.push(Action::Die(site));
            }
            if self.wipes > 0 {
                list.push(Action::Wipe(site));
            }
            if self.disks[site.index()].before.is_some() {
                list.push(Action::GoBack(site));
            }
            if setting.retires && self.may_retire(setting, site) {
                list.push(Action::Retire(site));
            }
        }
        list
    }

    /// Whom a proposer asks.
    fn asks(&self, setting: &Setting, number: usize) -> Electorate {
        let known = &self.proposers[number].known;
        if setting.flaw == Flaw::Rule(Mistake::CountsNewVoters) {
            return self.wish(setting, number).voters;
        }
        known.voters.clone()
    }

    /// Who is asked to accept a decree.
    fn voters_of(&self, setting: &Setting, decree: &Decree) -> Electorate {
        if setting.flaw == Flaw::Rule(Mistake::CountsNewVoters) {
            return decree.voters.clone();
        }
        let before = self.chosen.iter().find(|it| it.epoch + 1 == decree.epoch);
        before.map(|it| it.voters.clone()).unwrap_or_default()
    }

    /// What a proposer wants next.
    fn wish(&self, setting: &Setting, number: usize) -> Decree {
        let known = &self.proposers[number].known;
        let wish = usize::try_from(known.epoch - 1).unwrap_or(usize::MAX);
        let disk = |site: u16| self.disks[usize::from(site)].register.durable.disk;
        let voters = setting.wishes[number].get(wish).into_iter().flatten();
        let voters = voters.map(|&site| (SiteId(site), disk(site))).collect();
        let body = vec![u8::try_from(number).unwrap_or(u8::MAX)];
        Decree { epoch: known.epoch + 1, voters, body }
    }

    /// A voter of the past, whose knowledge is safe on a majority of the disks that follow.
    fn may_retire(&self, setting: &Setting, site: SiteId) -> bool {
        let durable = &self.disks[site.index()].register.durable;
        let known = &durable.known;
        let voted =
            |it: &Decree| it.epoch < known.epoch && it.voters.get(&site) == Some(&durable.disk);
        let votes = known.voters.get(&site) == Some(&durable.disk);
        if votes || !self.chosen.iter().any(voted) {
            return false;
        }
        let has = |site: &SiteId, disk: &DiskId| {
            let it = &self.disks[site.index()];
            !it.dead
                && it.register.durable.disk == *disk
                && it.register.durable.known.epoch >= known.epoch
        };
        let safe = known.voters.iter().filter(|(site, disk)| has(site, disk)).count();
        setting.flaw == Flaw::RetiredForgets || safe >= majority(&known.voters)
    }

    fn act(&mut self, setting: &Setting, action: Action) -> Result<(), &'static str> {
        match action {
            Action::Begin(number) => {
                let own = self.wish(setting, number);
                let proposer = &mut self.proposers[number];
                proposer.ballots += 1;
                let again = setting.flaw == Flaw::BallotAgain;
                let round = if again { 1 } else { proposer.ballots };
                let site = u16::try_from(number).unwrap_or(u16::MAX);
                let ballot = Ballot { round, site, incarnation: 1 };
                let Decree { epoch, voters, .. } = proposer.known.clone();
                let rules = Broken::by(setting.flaw);
                let (proposal, _) = Proposal::by(rules, voters, ballot, epoch, Some(own));
                proposer.proposal = Some((ballot, proposal));
            }
            Action::Prepare(number, site) => {
                let Some((ballot, _)) = self.proposers[number].proposal else { return Ok(()) };
                let epoch = self.proposers[number].known.epoch;
                let to = self.addressed(&self.asks(setting, number), site);
                let question = Question::Prepare { epoch, ballot };
                let answer = self.ask(setting, site, to, question);
                self.hear(number, ballot, site, answer);
            }
            Action::Accept(ballot, decree, site) => {
                let to = self.addressed(&self.voters_of(setting, &decree), site);
                let question = Question::Accept { ballot, decree: decree.clone() };
                let answer = self.ask(setting, site, to, question);
                if answer == Answer::Accepted {
                    self.note_acceptance(ballot, &decree, site)?;
                }
                let mine = |it: &Proposer| it.proposal.as_ref().is_some_and(|it| it.0 == ballot);
                if let Some(number) = self.proposers.iter().position(mine) {
                    self.hear(number, ballot, site, answer);
                }
            }
            Action::Learn(site, decree) => {
                self.ask(setting, site, DiskId::ANY, Question::Learn { decree });
            }
            Action::Hear(number, decree) => {
                let proposer = &mut self.proposers[number];
                proposer.known = decree;
                proposer.proposal = None;
            }
            Action::StartBeat(epoch) => self.beat = Some(Beat { epoch, ..Beat::default() }),
            Action::Beat(site) => {
                let Some(mut beat) = self.beat.take() else { return Ok(()) };
                let to = self.addressed(&beat.epoch.voters, site);
                let question = Question::Beat { epoch: beat.epoch.epoch };
                match self.ask(setting, site, to, question) {
                    Answer::Stands => {
                        beat.answered.insert(site);
                        if beat.answered.len() >= majority(&beat.epoch.voters) {
                            return Err("beat");
                        }
                        self.beat = Some(beat);
                    }
                    // The member goes on with what it was told.
                    Answer::Moved(_) => {}
                    Answer::Pending
                    | Answer::Promise(_)
                    | Answer::Accepted
                    | Answer::Outbid(_)
                    | Answer::Behind
                    | Answer::Learned
                    | Answer::OtherDisk(_)
                    | Answer::Failed => self.beat = Some(beat),
                }
            }
            Action::Die(site) => {
                self.deaths -= 1;
                self.disk(site).dead = true;
            }
            Action::Wipe(site) => {
                self.wipes -= 1;
                let rules = Broken::by(setting.flaw);
                let disk = self.disk(site);
                let id = DiskId(disk.register.durable.disk.0 + 100);
                disk.register = Register::by(rules, Durable::new(id));
                disk.before = None;
            }
            Action::GoBack(site) => {
                let disk = self.disk(site);
                if let Some(before) = disk.before.take() {
                    disk.register.durable = before;
                }
            }
            Action::Retire(site) => self.disk(site).dead = true,
        }
        self.check_beliefs()
    }

    /// The disk that a question to a site is for.
    fn addressed(&self, voters: &Electorate, site: SiteId) -> DiskId {
        let own = self.disks[site.index()].register.durable.disk;
        voters.get(&site).copied().unwrap_or(own)
    }

    fn hear(&mut self, number: usize, ballot: Ballot, site: SiteId, answer: Answer) {
        let proposer = &mut self.proposers[number];
        let Some((_, proposal)) = &mut proposer.proposal else { return };
        match proposal.on_answer(site, answer) {
            Next::Ask(Question::Accept { decree, .. }) => {
                self.sent.insert((ballot, decree));
            }
            Next::Chosen(decree) | Next::Moved(decree) => {
                proposer.known = decree;
                proposer.proposal = None;
            }
            Next::Outbid(_) | Next::Nothing => proposer.proposal = None,
            Next::Ask(_) | Next::Wait => {}
        }
    }

    /// A decree is chosen once a majority of the disks before it has accepted it in one ballot.
    fn note_acceptance(
        &mut self,
        ballot: Ballot,
        decree: &Decree,
        site: SiteId,
    ) -> Result<(), &'static str> {
        let disk = self.disks[site.index()].register.durable.disk;
        let by = self.accepted.entry((ballot, decree.clone())).or_default();
        by.insert(disk);
        let before = self.chosen.iter().find(|it| it.epoch + 1 == decree.epoch);
        let Some(voters) = before.map(|it| &it.voters) else { return Err("belief") };
        let count = voters.values().filter(|disk| by.contains(disk)).count();
        if count < majority(voters) {
            return Ok(());
        }
        match self.chosen.iter().find(|it| it.epoch == decree.epoch) {
            Some(known) if known != decree => Err("agreement"),
            Some(_) => Ok(()),
            None => {
                self.chosen.push(decree.clone());
                Ok(())
            }
        }
    }

    fn check_beliefs(&self) -> Result<(), &'static str> {
        let disks = self.disks.iter().map(|it| &it.register.durable.known);
        let mut known = disks.chain(self.proposers.iter().map(|it| &it.known));
        let good = |it: &Decree| it.epoch == 0 || self.chosen.contains(it);
        if known.all(good) { Ok(()) } else { Err("belief") }
    }

    /// Whether a new site can have a decree chosen after the newest one.
    fn goes_on(&self, setting: &Setting) -> bool {
        let mut world = self.clone();
        let newest = world.chosen.last().map_or(0, |it| it.epoch);
        for round in 0..=newest {
            let living = world.disks.iter().filter(|it| !it.dead);
            let known = living.map(|it| &it.register.durable.known).max_by_key(|it| it.epoch);
            let Some(known) = known.cloned() else { return false };
            if known.epoch > newest {
                return true;
            }
            let own = Decree {
                epoch: known.epoch + 1,
                voters: known.voters.clone(),
                body: vec![u8::MAX],
            };
            let ballot = Ballot { round: 1000 + round, site: 99, incarnation: 1 };
            let rules = Broken::by(setting.flaw);
            let (mut proposal, ask) =
                Proposal::by(rules, known.voters.clone(), ballot, known.epoch, Some(own));
            let mut ask = Some(ask);
            let mut chosen = None;
            while let Some(question) = ask.take() {
                for (&site, &to) in &known.voters {
                    if world.disks[site.index()].dead {
                        continue;
                    }
                    let register = &mut world.disks[site.index()].register;
                    register.answer(to, Question::Learn { decree: known.clone() });
                    match proposal.on_answer(site, register.answer(to, question.clone())) {
                        Next::Ask(next) => {
                            ask = Some(next);
                            break;
                        }
                        Next::Chosen(decree) | Next::Moved(decree) => chosen = Some(decree),
                        Next::Wait | Next::Nothing | Next::Outbid(_) => {}
                    }
                }
            }
            let Some(decree) = chosen else { return false };
            for disk in world.disks.iter_mut().filter(|it| !it.dead) {
                disk.register.answer(DiskId::ANY, Question::Learn { decree: decree.clone() });
            }
            if decree.epoch > newest {
                return true;
            }
        }
        false
    }
}

fn digest(world: &World) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        world.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

/// Explores up to `limit` states.
pub(crate) fn explore(setting: &Setting, limit: u64) -> Finding {
    let first = World::new(setting);
    let mut seen = HashSet::new();
    seen.insert(digest(&first));
    // Where each state came from, and by which action.
    let mut ways: Vec<(usize, Action)> = vec![(0, Action::Begin(0))];
    let mut queue = VecDeque::from([(0, first)]);
    let finding = |ways: &[(usize, Action)], complete, violation| {
        let states = u64::try_from(ways.len()).unwrap_or(u64::MAX);
        Finding { states, complete, violation }
    };
    let way = |ways: &[(usize, Action)], mut at: usize, last: &Action| {
        let mut list = vec![format!("{last:?}")];
        while at > 0 {
            list.push(format!("{:?}", ways[at].1));
            at = ways[at].0;
        }
        list.reverse();
        list
    };
    while let Some((at, world)) = queue.pop_front() {
        for action in world.actions(setting) {
            let mut next = world.clone();
            let law = next.act(setting, action.clone()).err();
            let stuck = || (!next.goes_on(setting)).then_some("progress");
            if law.is_none() && !seen.insert(digest(&next)) {
                continue;
            }
            if let Some(law) = law.or_else(stuck) {
                let way = way(&ways, at, &action);
                return finding(&ways, false, Some((law, way)));
            }
            ways.push((at, action));
            queue.push_back((ways.len() - 1, next));
            if finding(&ways, false, None).states >= limit {
                return finding(&ways, false, None);
            }
        }
    }
    finding(&ways, true, None)
}
