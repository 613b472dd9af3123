//! The one place that knows how the core of a site is built and driven.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kofm_core::SiteId;
use kofm_site::api::{self, Answer, Call};
use kofm_site::boottime::{Moment, Now};
use kofm_site::config::{Config, PoolConfig};
use kofm_site::core::{Change, Core, Doors, Mutant, Origin, View};
use kofm_site::input::{Command, Input};
use kofm_site::keeper::{News, Note, Standing};
use kofm_site::links::{Event, LinkInfo, Links, Payload};
use kofm_site::plan::Plan;
use kofm_site::session::Broken;
use kofm_site::store::{Pulse, Record};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::network::SharedNetwork;

/// The facts with which a process starts.
pub(super) struct Start<'a> {
    pub number: usize,
    pub sites: usize,
    pub pools: &'a BTreeMap<String, PoolConfig>,
    pub site_lease: Duration,
    pub incarnation: u64,
    pub now: Now,
    pub seed: [u8; 32],
    pub mutant: Option<Mutant>,
}

/// One thing that comes in.
pub(super) enum Stimulus {
    /// A timer may be due.
    Time,
    Messages {
        from: usize,
        list: Vec<Payload>,
    },
    Up(usize),
    Down(usize),
    Reset {
        peer: usize,
        old: u64,
        new: u64,
    },
    /// A heartbeat that began then has succeeded.
    Beat {
        began: u64,
        pulses: Vec<Pulse>,
    },
    Decided(Record),
    Trouble(&'static str),
    Call(Message),
    /// The site is told to stop.
    Drain,
    /// The last that its process hears.
    Farewell,
}

/// A call under way to a site.
#[derive(Debug)]
pub(super) struct Message {
    call: Call,
    reply: oneshot::Sender<Result<Answer, api::Error>>,
}

/// The other end of a call.
#[derive(Debug)]
pub(super) struct Reply(oneshot::Receiver<Result<Answer, api::Error>>);

/// The state of a call.
pub(super) enum Told {
    Nothing,
    Answer(Result<Answer, api::Error>),
    /// It will not be answered.
    Lost,
}

impl Reply {
    pub(super) fn of(call: Call) -> (Message, Self) {
        let (reply, receiver) = oneshot::channel();
        (Message { call, reply }, Self(receiver))
    }

    pub(super) fn take(&mut self) -> Told {
        match self.0.try_recv() {
            Ok(answer) => Told::Answer(answer),
            Err(TryRecvError::Empty) => Told::Nothing,
            Err(TryRecvError::Closed) => Told::Lost,
        }
    }
}

/// The process of a site.
pub(super) struct Machine {
    core: Core,
    standing: watch::Receiver<Standing>,
    proposals: mpsc::Receiver<Record>,
    view: watch::Receiver<View>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Machine")
    }
}

impl Machine {
    pub(super) fn start(start: &Start<'_>, network: &SharedNetwork) -> Self {
        let members = (0..start.sites).map(|it| (format!("s{it}"), String::new())).collect();
        let name = format!("s{}", start.number);
        let (pools, site_lease) = (start.pools.clone(), start.site_lease);
        let config = Config { members, pools, site_lease, ..Config::single(&name) }.with_seats();
        let note = Note { address: config.site.clone(), ..Note::default() };
        let (me, standing) = watch::channel(Standing::before_joining(start.incarnation, &note));
        let (offers, proposals) = mpsc::channel(4);
        let (running, view) = watch::channel(View::default());
        let doors = Doors {
            me,
            proposals: offers,
            running,
            state: None,
            joinable: false,
            wanted: None,
            sole: false,
            whole: false,
        };
        let Start { incarnation, now, seed, .. } = *start;
        let plan = Plan::first(&config);
        let change = Change::new(config.me(), incarnation, now.boot, plan, site_lease, doors);
        let links = Box::new(Channels { site: start.number, network: Arc::clone(network) });
        let events = broadcast::Sender::new(1);
        let mut core =
            Core::new(&config, Origin { incarnation, now, seed }, links, events, change, None);
        if let Some(mutant) = start.mutant {
            core.mutate(mutant);
        }
        Self { core, standing, proposals, view }
    }

    pub(super) fn handle(&mut self, now: Now, stimulus: Stimulus) {
        let input = match stimulus {
            Stimulus::Time => Input::Nothing,
            Stimulus::Messages { from, list } => {
                Input::Link(Event::Messages { from: site_id(from), list })
            }
            Stimulus::Up(peer) => Input::Link(Event::Up(site_id(peer))),
            Stimulus::Down(peer) => Input::Link(Event::Down(site_id(peer))),
            Stimulus::Reset { peer, old, new } => {
                let why = Broken::Reset { old, new };
                Input::Link(Event::PeerReset { peer: site_id(peer), why })
            }
            Stimulus::Beat { began, pulses } => {
                Input::News(News::Beat { began: Moment::from_nanos(began), pulses })
            }
            Stimulus::Decided(record) => Input::News(News::Decided(record)),
            Stimulus::Trouble(why) => Input::News(News::Trouble(why.to_owned())),
            Stimulus::Call(Message { call, reply }) => {
                Input::Command(Command::Call { call, reply })
            }
            Stimulus::Drain => Input::Command(Command::Drain),
            Stimulus::Farewell => Input::Command(Command::Farewell(oneshot::channel().0)),
        };
        self.core.on_input(now, input);
    }

    pub(super) fn next_timer(&self) -> Option<Moment> {
        self.core.next_timer()
    }

    /// Whether its heartbeats say something else since the last call of [`Self::standing`].
    pub(super) fn has_news(&mut self) -> bool {
        let news = self.standing.has_changed().unwrap_or(false);
        if news {
            self.standing.mark_unchanged();
        }
        news
    }

    pub(super) fn standing(&mut self) -> Standing {
        self.standing.borrow_and_update().clone()
    }

    /// The latest record that it proposes, if it has proposed one since the last call.
    pub(super) fn proposal(&mut self) -> Option<Record> {
        let mut offered = None;
        while let Ok(record) = self.proposals.try_recv() {
            offered = Some(record);
        }
        offered
    }

    pub(super) fn view(&self) -> View {
        self.view.borrow().clone()
    }

    /// A request waits, or a unit is in a lease.
    pub(super) fn is_busy(&self) -> bool {
        self.core.is_busy()
    }
}

fn site_id(site: usize) -> SiteId {
    SiteId(u16::try_from(site).unwrap_or(u16::MAX))
}

/// The channels of one site.
#[derive(Debug)]
struct Channels {
    site: usize,
    network: SharedNetwork,
}

impl Links for Channels {
    fn send(&self, to: SiteId, payload: &Payload) -> Result<(), Broken> {
        // What cannot be encoded and decoded would not arrive in production either.
        let bytes = postcard::to_stdvec(payload).expect("payloads have an encoding");
        let payload = postcard::from_bytes(&bytes).expect("and a decoding");
        self.network.lock().expect("one thread").send(self.site, to.index(), payload);
        Ok(())
    }

    fn is_up(&self, peer: SiteId) -> bool {
        self.network.lock().expect("one thread").is_up(self.site, peer.index())
    }

    fn reach(&self, _: SiteId, _: String, _: String) {}

    fn reborn(&self, incarnation: u64) {
        self.network.lock().expect("one thread").reborn(self.site, incarnation);
    }

    fn end(&self, peer: SiteId, _: Broken) {
        // The world has no way to show a broken session; its sites send no nonsense.
        panic!("site {} sent nonsense to site {}", peer.0, self.site);
    }

    fn info(&self) -> Vec<LinkInfo> {
        Vec::new()
    }
}
