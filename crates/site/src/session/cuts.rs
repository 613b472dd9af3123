//! Two sites that die and come back, over connections that are cut, late, or left half open:
//! everything that was sent in a session arrives once, in order, at the life that it was meant for.
//! And mistakes on purpose, each of which must be noticed.

use std::collections::VecDeque;

use super::*;

/// A deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// In the session.
    Session(Slip),
    /// What came counts as received before the site has it.
    ReceivesBeforeHandingOver,
    /// A greeting that was overtaken by a newer one binds the session all the same.
    BindsOvertaken,
    /// A session with a newer life forgets that it is the newer one.
    ForgetsWhomItMet,
}

const BUGS: [Bug; 11] = [
    Bug::Session(Slip::ResendsWithoutDeduplication),
    Bug::Session(Slip::ForgetsWhatWasSent),
    Bug::Session(Slip::ForgetsUnacknowledged),
    Bug::Session(Slip::ResendsNothing),
    Bug::Session(Slip::AcknowledgesAhead),
    Bug::Session(Slip::IgnoresIncarnation),
    Bug::Session(Slip::WelcomesThePast),
    Bug::Session(Slip::IgnoresWhoIsKnown),
    Bug::ReceivesBeforeHandingOver,
    Bug::BindsOvertaken,
    Bug::ForgetsWhomItMet,
];

/// Who sent it, in which of its sessions, for which life, as the how manieth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Letter {
    life: u64,
    session: u64,
    number: u64,
    to: u64,
}

impl Letter {
    fn write(self) -> Bytes {
        let words = [self.life, self.session, self.number, self.to];
        words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>().into()
    }

    fn read(bytes: &Bytes) -> Self {
        let word = |i: usize| u64::from_le_bytes(bytes[i * 8..][..8].try_into().unwrap());
        Self { life: word(0), session: word(1), number: word(2), to: word(3) }
    }
}

#[derive(Debug)]
enum Frame {
    Hello(Greeting),
    Welcome,
    Data { seq: u64, ack: u64, payload: Bytes },
    Ack(u64),
}

/// One end of a connection.
#[derive(Debug)]
struct End {
    open: bool,
    /// The say that it has in its site's session, once it is bound.
    number: Option<u64>,
    /// Whether the greeting is over.
    up: bool,
    hello: Option<Greeting>,
    /// On its way here.
    incoming: VecDeque<Frame>,
    /// Received, and not yet handed over.
    inbox: VecDeque<Bytes>,
}

/// Between site 0, which dials, and site 1.
type Connection = [End; 2];

struct Site {
    life: u64,
    session: Session,
    /// The number of this session.
    sessions: u64,
    pushed: u64,
    /// The newest connection's number.
    newest: u64,
    broken: Option<Broken>,
    last: Option<Letter>,
}

struct Pair {
    bug: Option<Bug>,
    sites: [Site; 2],
    connections: Vec<Connection>,
}

impl Site {
    fn new(life: u64, bug: Option<Bug>) -> Self {
        let session = fresh(None, bug);
        Self { life, session, sessions: 0, pushed: 0, newest: 0, broken: None, last: None }
    }
}

fn fresh(peer: Option<u64>, bug: Option<Bug>) -> Session {
    let slip = if let Some(Bug::Session(slip)) = bug { Some(slip) } else { None };
    Session { peer, slip, ..Session::default() }
}

impl Pair {
    fn push(&mut self, who: usize) {
        let site = &mut self.sites[who];
        let (life, session, number) = (site.life, site.sessions, site.pushed);
        let to = site.session.peer().unwrap_or(0);
        site.pushed += 1;
        site.session.push(Letter { life, session, number, to }.write()).unwrap();
    }

    fn dial(&mut self) {
        let end = |open| End {
            open,
            number: None,
            up: false,
            hello: None,
            incoming: VecDeque::new(),
            inbox: VecDeque::new(),
        };
        // Whoever dials has given up what it had before.
        for connection in &mut self.connections {
            connection[0].open = false;
        }
        let mut connection = [end(true), end(true)];
        let hello = self.sites[0].session.greeting(self.sites[0].life);
        connection[1].incoming.push_back(Frame::Hello(hello));
        self.connections.push(connection);
    }

    /// What a site does about a greeting; whether it goes on.
    fn check(&mut self, who: usize, hello: &Greeting) -> bool {
        let site = &mut self.sites[who];
        match site.session.meet(hello) {
            Visitor::Peer => {}
            Visitor::Past(_) => return false,
            Visitor::Newer(_) => {
                let forgets = self.bug == Some(Bug::ForgetsWhomItMet);
                let peer = (!forgets).then_some(hello.incarnation);
                site.session = fresh(peer, self.bug);
                site.sessions += 1;
                site.pushed = 0;
                site.last = None;
                site.broken = None;
                site.newest += 1;
            }
        }
        let expects = site.session.expected(site.life, hello);
        if let Err(why) = site.session.fits(hello.incarnation, expects) {
            site.broken.get_or_insert(why);
        }
        site.broken.is_none()
    }

    fn bind(&mut self, who: usize, at: usize) -> bool {
        let site = &mut self.sites[who];
        let end = &mut self.connections[at][who];
        let hello = end.hello.expect("it was greeted");
        if end.number.is_none_or(|number| number != site.newest)
            && self.bug != Some(Bug::BindsOvertaken)
        {
            return false;
        }
        site.newest += 1;
        end.number = Some(site.newest);
        let expects = site.session.expected(site.life, &hello);
        if let Err(why) = site.session.resume(hello.incarnation, expects) {
            site.broken.get_or_insert(why);
        }
        site.broken.is_none()
    }

    /// The oldest frame on its way to a site arrives.
    fn arrive(&mut self, at: usize, who: usize) -> Result<(), String> {
        let Some(frame) = self.connections[at][who].incoming.pop_front() else { return Ok(()) };
        if !self.connections[at][who].open {
            return Ok(());
        }
        let goes_on = match frame {
            Frame::Hello(hello) => {
                let welcome = self.check(who, &hello);
                if welcome {
                    // From here on older greetings and connections have lost their say.
                    self.sites[who].newest += 1;
                    let newest = self.sites[who].newest;
                    let end = &mut self.connections[at][who];
                    (end.hello, end.number) = (Some(hello), Some(newest));
                    let answer = if who == 1 {
                        Some(Frame::Hello(self.sites[1].session.greeting(self.sites[1].life)))
                    } else {
                        self.bind(0, at).then_some(Frame::Welcome)
                    };
                    let going = answer.is_some();
                    self.connections[at][1 - who].incoming.extend(answer);
                    going
                } else {
                    false
                }
            }
            Frame::Welcome if who == 1 => {
                let bound = self.bind(1, at);
                if bound {
                    self.connections[at][1].up = true;
                    self.connections[at][0].incoming.push_back(Frame::Welcome);
                }
                bound
            }
            Frame::Welcome => {
                self.connections[at][0].up = true;
                true
            }
            Frame::Data { seq, ack, payload } => self.data(at, who, seq, ack, payload)?,
            Frame::Ack(ack) => {
                let has_say = self.has_say(at, who);
                if has_say {
                    self.take(who, |session| session.acknowledged(ack))?;
                }
                has_say
            }
        };
        self.connections[at][who].open &= goes_on;
        Ok(())
    }

    fn has_say(&self, at: usize, who: usize) -> bool {
        self.connections[at][who].number == Some(self.sites[who].newest)
    }

    /// A session that breaks while nobody dies is a mistake.
    fn take<T>(
        &mut self,
        who: usize,
        step: impl FnOnce(&mut Session) -> Result<T, Broken>,
    ) -> Result<T, String> {
        step(&mut self.sites[who].session).map_err(|why| format!("site {who}: {why}"))
    }

    fn data(
        &mut self,
        at: usize,
        who: usize,
        seq: u64,
        ack: u64,
        payload: Bytes,
    ) -> Result<bool, String> {
        if !self.has_say(at, who) {
            return Ok(false);
        }
        self.take(who, |session| session.acknowledged(ack))?;
        if self.take(who, |session| session.arrived(seq))? == Arrival::New {
            if self.bug == Some(Bug::ReceivesBeforeHandingOver) {
                self.connections[at][who].inbox.push_back(payload);
            } else {
                self.hand_over(who, &payload)?;
            }
        }
        Ok(true)
    }

    fn hand_over(&mut self, who: usize, payload: &Bytes) -> Result<(), String> {
        let letter = Letter::read(payload);
        let site = &mut self.sites[who];
        if letter.to != 0 && letter.to != site.life {
            return Err(format!("{letter:?} came to life {}", site.life));
        }
        let due = match site.last {
            Some(last) if (last.life, last.session) == (letter.life, letter.session) => {
                letter.number == last.number + 1
            }
            last => letter.number == 0 && last.is_none_or(|last| last < letter),
        };
        if !due {
            return Err(format!("{letter:?} after {:?}", site.last));
        }
        site.last = Some(letter);
        Ok(())
    }

    /// Sends what there is on the connection that has the say.
    fn send(&mut self, who: usize) {
        let newest = self.sites[who].newest;
        let its = |connection: &&mut Connection| {
            connection[who].open && connection[who].up && connection[who].number == Some(newest)
        };
        let Some(connection) = self.connections.iter_mut().find(its) else { return };
        let session = &mut self.sites[who].session;
        let frame = match session.pop() {
            Some((seq, payload)) => Frame::Data { seq, ack: session.tell(), payload },
            None if session.untold() > 0 => Frame::Ack(session.tell()),
            None => return,
        };
        connection[1 - who].incoming.push_back(frame);
    }

    /// What the site has read of a connection but not taken.
    fn empty_inboxes(&mut self, who: usize) -> Result<(), String> {
        for at in 0..self.connections.len() {
            while let Some(payload) = self.connections[at][who].inbox.pop_front() {
                self.hand_over(who, &payload)?;
            }
        }
        Ok(())
    }

    fn die(&mut self, who: usize) {
        self.sites[who] = Site::new(self.sites[who].life + 1, self.bug);
        for connection in &mut self.connections {
            connection[who].open = false;
            connection[who].inbox.clear();
        }
    }

    /// Nothing is lost from now on: everything arrives.
    fn heal(&mut self) -> Result<(), String> {
        // Greetings may be overtaken by late ones of before, and are tried again.
        for _ in 0..4 {
            self.dial();
            for _ in 0..200 {
                for who in [0, 1] {
                    self.send(who);
                    self.empty_inboxes(who)?;
                    for at in 0..self.connections.len() {
                        self.arrive(at, who)?;
                    }
                }
            }
        }
        for who in [0, 1] {
            let (sender, receiver) = (&self.sites[who], &self.sites[1 - who]);
            if let Some(why) = sender.broken {
                return Err(format!("site {who} does not talk any more: {why}"));
            }
            let last = receiver.last.filter(|last| last.session == sender.sessions);
            let got = last.map_or(0, |last| last.number + 1);
            if got != sender.pushed || sender.session.waiting() > 0 {
                return Err(format!("{got} of {} messages of site {who} came", sender.pushed));
            }
        }
        Ok(())
    }
}

/// One run; says what went wrong.
fn play(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut lots = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |bound: usize| {
        lots ^= lots << 13;
        lots ^= lots >> 7;
        lots ^= lots << 17;
        usize::try_from((lots >> 16) % bound as u64).unwrap()
    };
    let sites = [Site::new(1, bug), Site::new(1, bug)];
    let mut pair = Pair { bug, sites, connections: Vec::new() };
    for _ in 0..below(300) {
        let who = below(2);
        let at = below(pair.connections.len().max(1));
        match below(24) {
            0..4 => pair.push(who),
            4..9 => pair.send(who),
            9..19 if at < pair.connections.len() => pair.arrive(at, who)?,
            19 => pair.empty_inboxes(who)?,
            // One end gives the connection up; what it has sent may still arrive.
            20 if at < pair.connections.len() => {
                pair.connections[at][who].open = false;
                pair.connections[at][who].inbox.clear();
            }
            // What is on its way is lost, and all that follows.
            21 if at < pair.connections.len() => {
                pair.connections[at][who].incoming.clear();
                pair.connections[at][who].open = false;
                pair.connections[at][1 - who].open = false;
            }
            22 if below(4) == 0 => pair.die(who),
            _ if pair.connections.iter().all(|connection| !connection[0].open) => pair.dial(),
            _ => {}
        }
    }
    pair.heal()
}

#[test]
fn nothing_is_lost_repeated_or_misdelivered() {
    for seed in 0..5_000 {
        let result = play(seed, None);
        assert_eq!(result, Ok(()), "seed {seed}");
    }
}

#[test]
fn every_mistake_is_noticed() {
    for bug in BUGS {
        let found = (0..20_000).find_map(|seed| Some((seed, play(seed, Some(bug)).err()?)));
        let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} was not noticed"));
        println!("| {bug:?} | seed {seed}: {what} |");
    }
}
