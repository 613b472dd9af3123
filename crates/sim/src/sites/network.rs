//! Channels in memory: reliable and ordered between two incarnations, as sessions make them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use kofm_site::links::Payload;

pub(super) type SharedNetwork = Arc<Mutex<Network>>;

pub(super) fn shared(sites: usize) -> SharedNetwork {
    Arc::new(Mutex::new(Network { lives: vec![0; sites], ..Network::default() }))
}

/// All channels of the world.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// The incarnation of each site.
    lives: Vec<u64>,
    /// The incarnation that the first site has met of the second.
    met: BTreeMap<(usize, usize), u64>,
    /// The number of the connection that stands between two sites.
    connections: BTreeMap<(usize, usize), u64>,
    next_connection: u64,
    queues: BTreeMap<(usize, usize), VecDeque<Payload>>,
    /// Messages that were sent over standing connections since the world last looked.
    sent: Vec<(usize, usize, u64)>,
    reborn: BTreeSet<usize>,
}

/// What a new connection brings.
#[derive(Debug)]
pub(super) struct Connected {
    /// Sites that meet another incarnation than before: the site, its peer, and both numbers.
    pub resets: Vec<(usize, usize, u64, u64)>,
    /// Messages that waited for it: from, to, how many.
    pub waiting: Vec<(usize, usize, usize)>,
    pub channel: u64,
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Network {
    pub(super) fn next_life(&mut self, site: usize) -> u64 {
        self.lives[site] += 1;
        self.lives[site]
    }

    pub(super) fn life(&self, site: usize) -> u64 {
        self.lives[site]
    }

    /// Connects two sites, unless they are connected.
    pub(super) fn connect(&mut self, a: usize, b: usize) -> Option<Connected> {
        if self.connections.contains_key(&pair(a, b)) {
            return None;
        }
        self.next_connection += 1;
        let channel = self.next_connection;
        self.connections.insert(pair(a, b), channel);
        let mut connected = Connected { resets: Vec::new(), waiting: Vec::new(), channel };
        for (site, peer) in [(a, b), (b, a)] {
            let new = self.lives[peer];
            let old = self.met.insert((site, peer), new);
            if let Some(old) = old.filter(|&old| old != new) {
                // Messages to the peer's earlier incarnation have no receiver.
                self.queues.remove(&(site, peer));
                connected.resets.push((site, peer, old, new));
            }
        }
        for (from, to) in [(a, b), (b, a)] {
            let count = self.queues.get(&(from, to)).map_or(0, VecDeque::len);
            connected.waiting.push((from, to, count));
        }
        Some(connected)
    }

    /// Ends a connection; its messages wait for the next one.
    pub(super) fn disconnect(&mut self, a: usize, b: usize) -> bool {
        self.connections.remove(&pair(a, b)).is_some()
    }

    /// The process of a site is gone, with all that it would have sent.
    pub(super) fn forget(&mut self, site: usize) {
        self.queues.retain(|&(from, to), _| from != site && to != site);
        self.met.retain(|&(from, _), _| from != site);
    }

    /// The next message of a connection that stands.
    pub(super) fn take(&mut self, from: usize, to: usize, channel: u64) -> Option<Payload> {
        if self.connections.get(&pair(from, to)) != Some(&channel) {
            return None;
        }
        self.queues.get_mut(&(from, to))?.pop_front()
    }

    /// Messages that a site has sent since the last call: to whom, over which connection.
    pub(super) fn take_sent(&mut self, site: usize) -> Vec<(usize, u64)> {
        let sent = std::mem::take(&mut self.sent);
        sent.into_iter().filter(|it| it.0 == site).map(|it| (it.1, it.2)).collect()
    }

    /// Whether a site has begun another incarnation since the last call.
    pub(super) fn take_reborn(&mut self, site: usize) -> bool {
        self.reborn.remove(&site)
    }

    pub(super) fn send(&mut self, from: usize, to: usize, payload: Payload) {
        self.queues.entry((from, to)).or_default().push_back(payload);
        if let Some(&channel) = self.connections.get(&pair(from, to)) {
            self.sent.push((from, to, channel));
        }
    }

    pub(super) fn is_up(&self, a: usize, b: usize) -> bool {
        self.connections.contains_key(&pair(a, b))
    }

    /// A site begins another incarnation: none of its channels goes on.
    pub(super) fn reborn(&mut self, site: usize, incarnation: u64) {
        self.lives[site] = incarnation;
        self.queues.retain(|&(from, to), _| from != site && to != site);
        self.connections.retain(|&(a, b), _| a != site && b != site);
        self.sent.clear();
        self.reborn.insert(site);
    }
}
