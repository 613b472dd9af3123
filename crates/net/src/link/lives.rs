//! Which process speaks for each site.
//!
//! Two processes with one name and one incarnation would be taken for one site: a copied
//! configuration, a cloned disk. Each process draws a random number when it starts and sends it
//! with every greeting. A site keeps to the process that it met first as long as that one is
//! connected, and refuses the other by name and address.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::random;
use crate::wire::{Refuse, RefuseCode, Who};

/// How long `kofm members` names a process that was refused.
const SHOWN: Duration = Duration::from_mins(1);
/// How often the other process of that name is told of it.
const TOLD: Duration = Duration::from_secs(10);

/// The processes that this site has met, and itself.
#[derive(Debug)]
pub(crate) struct Lives {
    name: String,
    life: u64,
    port: u16,
    incarnation: AtomicU64,
    /// Whether this process is in the cluster's epoch.
    member: AtomicBool,
    pause: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    met: BTreeMap<String, Met>,
    /// Another process has this one's name: the text of a peer's refusal, and until when this
    /// process keeps quiet.
    refused: Option<(String, Instant)>,
    /// The address of a process that was refused because it has this one's name.
    rival: Option<(String, Instant)>,
}

#[derive(Debug)]
struct Met {
    incarnation: u64,
    life: u64,
    address: String,
    /// Connections of this process that stand.
    open: usize,
    /// The last other process of this name that was refused, and when.
    twin: Option<(String, Instant)>,
}

/// A connection of a process that counts as open.
#[derive(Debug)]
pub(super) struct Open {
    lives: Arc<Lives>,
    name: String,
    life: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.lives.lock();
        if let Some(met) = state.met.get_mut(&self.name).filter(|it| it.life == self.life) {
            met.open = met.open.saturating_sub(1);
        }
    }
}

/// Why a process is refused, and whether the other one of that name should hear of it.
#[derive(Debug)]
pub(super) struct Twin {
    pub(super) refuse: Refuse,
    /// Where the refused process is, if that is news.
    pub(super) news: Option<String>,
}

impl Lives {
    /// This process is the site `name`, and listens on `port`.
    pub(crate) fn new(name: &str, incarnation: u64, port: u16, pause: Duration) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            life: random::number(),
            port,
            incarnation: AtomicU64::new(incarnation),
            member: AtomicBool::new(false),
            pause,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As this process greets.
    pub(crate) fn who(&self) -> Who {
        Who {
            name: self.name.clone(),
            incarnation: self.incarnation(),
            life: self.life,
            port: self.port,
        }
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::SeqCst)
    }

    pub(crate) fn set_incarnation(&self, incarnation: u64) {
        self.incarnation.store(incarnation, Ordering::SeqCst);
    }

    pub(crate) fn set_member(&self, member: bool) {
        self.member.store(member, Ordering::SeqCst);
    }

    /// Whether to go on with a process, which counts as connected until the result is dropped.
    pub(super) fn meet(self: &Arc<Self>, who: &Who, from: SocketAddr) -> Result<Open, Twin> {
        let address = SocketAddr::new(from.ip(), who.port).to_string();
        let Who { name, incarnation, life, .. } = who;
        let (now, mut state) = (Instant::now(), self.lock());
        let fresh = || Met {
            incarnation: *incarnation,
            life: *life,
            address: address.clone(),
            open: 0,
            twin: None,
        };
        if *name == self.name {
            let text = format!("this process is {name}, and another one says so, at {address}");
            state.rival = Some((address, now));
            return Err(Twin { refuse: Refuse { code: RefuseCode::Twin, text }, news: None });
        }
        let met = state.met.entry(name.clone()).or_insert_with(fresh);
        if met.life != *life {
            if met.open > 0 || *incarnation <= met.incarnation {
                let news = met.twin.as_ref().is_none_or(|(twin, since)| {
                    *twin != address || now.duration_since(*since) >= TOLD
                });
                if news {
                    met.twin = Some((address.clone(), now));
                }
                let refuse = met.refusal(name, *incarnation);
                return Err(Twin { refuse, news: news.then_some(address) });
            }
            *met = fresh();
        }
        met.incarnation = met.incarnation.max(*incarnation);
        met.address = address;
        met.open += 1;
        Ok(Open { lives: Arc::clone(self), name: name.clone(), life: *life })
    }

    /// A peer has refused this process because another one has its name. Unless this process is in
    /// the epoch, it keeps quiet for a while: it must not vote or grant as that site.
    pub(super) fn refused(&self, text: &str) {
        let pause = random::between(self.pause, self.pause * 2);
        self.lock().refused = Some((text.to_owned(), Instant::now() + pause));
    }

    /// Why this process keeps quiet, if it does.
    pub(crate) fn quiet(&self) -> Option<String> {
        if self.member.load(Ordering::SeqCst) {
            return None;
        }
        let state = self.lock();
        let (text, until) = state.refused.as_ref()?;
        (Instant::now() < *until).then(|| text.clone())
    }

    /// A peer has refused a process that has this one's name. Returns whether that is news.
    pub(super) fn rivalled(&self, address: String) -> bool {
        let mut state = self.lock();
        let news = state.rival.as_ref().is_none_or(|it| it.0 != address);
        state.rival = Some((address, Instant::now()));
        news
    }

    /// Another process that has this one's name, for people.
    pub(crate) fn rival(&self) -> Option<String> {
        let state = self.lock();
        let (address, since) = state.rival.as_ref()?;
        (since.elapsed() < SHOWN).then(|| another(&self.name, address))
    }

    /// Where the process of a peer was when it last greeted.
    pub(super) fn address_of(&self, name: &str) -> Option<String> {
        Some(self.lock().met.get(name)?.address.clone())
    }

    /// The site of this name is another one from now on, or gone.
    pub(crate) fn forget(&self, name: &str) {
        self.lock().met.remove(name);
    }

    /// Another process that has the name of a peer, for people.
    pub(super) fn twin_of(&self, name: &str) -> Option<String> {
        let state = self.lock();
        let (address, since) = state.met.get(name)?.twin.as_ref()?;
        (since.elapsed() < SHOWN).then(|| another(name, address))
    }
}

impl Met {
    fn refusal(&self, name: &str, incarnation: u64) -> Refuse {
        let (address, last) = (&self.address, self.incarnation);
        if self.open > 0 && incarnation > last {
            // A restart whose last connections are not closed yet, or a cloned disk.
            let text = format!(
                "{}, incarnation {last}; stop one of the two processes, or give this one another \
                 name",
                another(name, address)
            );
            return Refuse { code: RefuseCode::Busy, text };
        }
        let text = format!(
            "{}, incarnation {last}; a process must have a name and a state_dir of its own: give \
             this one another `site`, or if the state_dir of {name} was lost, write a number \
             larger \
             than {last} into its file `incarnation`",
            another(name, address)
        );
        Refuse { code: RefuseCode::Twin, text }
    }
}

fn another(name: &str, address: &str) -> String {
    format!("another process says it is {name}, at {address}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_mins(1);

    fn who(incarnation: u64, life: u64) -> Who {
        Who { name: "a".into(), incarnation, life, port: 7700 + u16::try_from(life).unwrap() }
    }

    fn from(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 40_000))
    }

    #[test]
    fn the_second_process_of_a_name_is_refused_and_named() {
        let lives = Lives::new("b", 1, 7700, PAUSE);
        let first = lives.meet(&who(1, 1), from(1)).unwrap();
        let again = lives.meet(&who(1, 1), from(1)).unwrap();
        let twin = lives.meet(&who(1, 2), from(2)).unwrap_err();
        assert_eq!(twin.refuse.code, RefuseCode::Twin);
        assert!(twin.refuse.text.contains("at 10.0.0.1:7701"), "{}", twin.refuse.text);
        assert_eq!(twin.news.as_deref(), Some("10.0.0.2:7702"));
        assert!(lives.meet(&who(1, 2), from(2)).unwrap_err().news.is_none(), "said once");
        assert!(lives.twin_of("a").unwrap().contains("at 10.0.0.2:7702"));
        // Its incarnation stays the first one's, also when that one is away.
        drop((first, again));
        assert_eq!(lives.meet(&who(1, 2), from(2)).unwrap_err().refuse.code, RefuseCode::Twin);
    }

    #[test]
    fn a_restart_is_taken_once_the_old_connections_are_closed() {
        let lives = Lives::new("b", 1, 7700, PAUSE);
        let first = lives.meet(&who(4, 1), from(1)).unwrap();
        let early = lives.meet(&who(5, 2), from(1)).unwrap_err();
        assert_eq!(early.refuse.code, RefuseCode::Busy);
        drop(first);
        let second = lives.meet(&who(5, 2), from(1)).unwrap();
        drop(second);
        assert!(lives.meet(&who(4, 1), from(1)).is_err(), "the past does not come back");
    }

    #[test]
    fn a_refused_process_keeps_quiet_unless_it_is_a_member() {
        let lives = Lives::new("a", 1, 7700, PAUSE);
        assert_eq!(lives.quiet(), None);
        lives.refused("no");
        assert_eq!(lives.quiet().as_deref(), Some("no"));
        lives.set_member(true);
        assert_eq!(lives.quiet(), None);
    }
}
