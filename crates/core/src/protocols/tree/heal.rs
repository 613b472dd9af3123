//! The tree that the ring goes round: grown from what neighbours say, and grown anew when one of
//! them is gone. And garbage, to see that all of it heals.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::{Bits, Control, Frame, Item, Own, Rules, Tally, Tree, Turn};
use crate::protocol::EffectsOf;
use crate::topology::Topology;
use crate::types::{Cluster, PoolId, SiteId};

/// Where a site is in the tree. The least of those on offer is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The site that it takes for the root.
    pub root: SiteId,
    /// How far that is.
    pub distance: u16,
    /// The next site on the way there; the site itself if it is the root.
    pub parent: SiteId,
}

/// What neighbours say to each other. A challenge is a bit that is turned when its echo is back:
/// on a link that keeps the order, what follows an echo is younger than the challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hello {
    /// Where the sender is.
    pub place: Place,
    /// To be echoed.
    pub challenge: bool,
    /// The last challenge that the sender heard.
    pub echo: bool,
    /// The sender wants an answer.
    pub ask: bool,
}

/// What a site knows of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Neighbour {
    pub(super) site: SiteId,
    pub(super) place: Place,
    /// What comes from there is known to be recent.
    pub(super) trusted: bool,
    /// Beats since the challenge was last turned.
    pub(super) age: u16,
    challenge: bool,
    echo: bool,
}

/// On a full network of more sites than this, each uses only some of its links.
const MOST_LINKS: u16 = 32;

/// The links that a site uses: all there are, but of very many only those to the sites 1, 8, 64 and
/// so on before and after it.
fn links(me: SiteId, cluster: &Cluster) -> Vec<SiteId> {
    if cluster.topology != Topology::Full || cluster.sites <= MOST_LINKS {
        return cluster.topology.neighbours(me, cluster.sites);
    }
    let (i, n) = (u32::from(me.0), u32::from(cluster.sites));
    let mut list = Vec::new();
    let mut stride = 1;
    while stride <= n / 2 {
        for other in [(i + stride) % n, (i + n - stride) % n] {
            list.push(SiteId(u16::try_from(other).unwrap_or(0)));
        }
        stride *= 8;
    }
    list.sort_unstable();
    list.dedup();
    list
}

/// The site that is the root while it lives.
pub(super) fn first_root(cluster: &Cluster) -> SiteId {
    cluster.root.filter(|root| root.0 < cluster.sites).unwrap_or(SiteId(0))
}

/// The breadth-first tree from the first root, as the rule for parents makes it.
fn places(cluster: &Cluster) -> Vec<Place> {
    let root = first_root(cluster);
    let lost = Place { root: SiteId(u16::MAX), distance: u16::MAX, parent: SiteId(u16::MAX) };
    let mut places = vec![lost; usize::from(cluster.sites)];
    places[root.index()] = Place { root, distance: 0, parent: root };
    let mut queue = VecDeque::from([root]);
    let graph = match &cluster.topology {
        Topology::Graph(graph) => graph.links(cluster.sites),
        Topology::Full | Topology::Ring | Topology::Tree => Vec::new(),
    };
    while let Some(site) = queue.pop_front() {
        let distance = places[site.index()].distance + 1;
        let next = graph.get(site.index()).cloned().unwrap_or_else(|| links(site, cluster));
        for next in next {
            let offer = Place { root, distance, parent: site };
            let place = &mut places[next.index()];
            if *place == lost {
                queue.push_back(next);
            }
            *place = offer.min(*place);
        }
    }
    places
}

/// Where a site and its neighbours are when all is well.
pub(super) fn neighbours(me: SiteId, cluster: &Cluster) -> (Place, Vec<Neighbour>) {
    let mine = links(me, cluster);
    let place_of: Vec<Place> = if cluster.topology == Topology::Full && cluster.sites <= MOST_LINKS
    {
        let root = first_root(cluster);
        let star = |site: SiteId| Place { root, distance: u16::from(site != root), parent: root };
        cluster.all().map(star).collect()
    } else {
        places(cluster)
    };
    let neighbour = |site: SiteId| Neighbour {
        site,
        place: place_of[site.index()],
        trusted: true,
        age: 0,
        challenge: false,
        // Not the other's challenge: the first echo has to be a true one.
        echo: true,
    };
    (place_of[me.index()], mine.into_iter().map(neighbour).collect())
}

/// The channels of a site in the tree that a cluster has when all is well.
pub(crate) fn fixed_channels(me: SiteId, cluster: &Cluster) -> Vec<SiteId> {
    let (place, neighbours) = neighbours(me, cluster);
    let parent = (place.parent != me).then_some(place.parent);
    let children = neighbours.iter().filter(|one| one.place.parent == me).map(|one| one.site);
    parent.into_iter().chain(children).collect()
}

impl<R: Rules> Tree<R> {
    /// A neighbour that is asked every other beat is asked at this age, by the lower of the two.
    const ASK: u16 = 2;
    /// The same for neighbours outside the tree.
    const ASK_FAR: u16 = 12;
    /// Ages go on from here, for neighbours that do not answer.
    const GONE: u16 = 64;

    pub(super) fn trusts(&self, site: SiteId) -> bool {
        self.neighbours.iter().any(|one| one.site == site && one.trusted)
    }

    pub(super) fn hello(&self, to: SiteId, ask: bool) -> Hello {
        let one = self.neighbours.iter().find(|one| one.site == to);
        let (challenge, echo) = one.map_or((false, false), |one| (one.challenge, one.echo));
        Hello { place: self.place, challenge, echo, ask }
    }

    pub(super) fn greeted(&mut self, from: SiteId, hello: Hello, turn: &mut Turn) {
        if !R::WATCHES {
            return;
        }
        let dead = self.dead_at(from);
        let Some(one) = self.neighbours.iter_mut().find(|one| one.site == from) else { return };
        one.place = hello.place;
        one.echo = hello.challenge;
        if hello.echo == one.challenge {
            one.trusted = one.age <= dead;
            one.age = 0;
            one.challenge = !one.challenge;
            if !one.trusted {
                // The challenge was old; the next one will tell.
                turn.greet.insert(from, true);
            }
        }
        if hello.ask {
            turn.greet.entry(from).or_insert(false);
        }
        self.regrow(turn);
    }

    fn dead_at(&self, site: SiteId) -> u16 {
        let pace = R::pace(self.sites);
        if self.channels.contains(&site) { pace.dead } else { pace.dead_far }
    }

    /// Ages everybody by a beat, asks those who have not been heard of, and gives up those who do
    /// not answer.
    pub(super) fn look_around(&mut self, turn: &mut Turn) {
        for i in 0..self.neighbours.len() {
            let site = self.neighbours[i].site;
            let (dead, near) = (self.dead_at(site), self.channels.contains(&site));
            let one = &mut self.neighbours[i];
            one.age += 1;
            let patience = if near { Self::ASK } else { Self::ASK_FAR } + u16::from(site < self.me);
            let asked = if one.trusted {
                one.age >= patience
            } else {
                one.age.is_multiple_of(Self::ASK_FAR) || one.age == 1
            };
            if one.age > dead {
                one.trusted = false;
            }
            if one.age >= Self::GONE + Self::ASK_FAR * 4 {
                one.age = Self::GONE;
            }
            if asked {
                turn.greet.insert(site, true);
            }
        }
        self.regrow(turn);
    }

    /// The channels as neighbours' places make them.
    pub(super) fn grown_channels(&self) -> Vec<SiteId> {
        let mut channels = Vec::new();
        if !self.is_root() {
            channels.push(self.place.parent);
        }
        let child = |place: Place| {
            place.parent == self.me
                && place.root == self.place.root
                && place.distance == self.place.distance.saturating_add(1)
        };
        let children = self
            .neighbours
            .iter()
            .filter(|one| one.trusted && one.site != self.place.parent && child(one.place));
        channels.extend(children.map(|one| one.site));
        if channels.is_empty() {
            channels.push(self.me);
        }
        channels
    }

    /// Takes the best place on offer, and what follows from that.
    pub(super) fn regrow(&mut self, turn: &mut Turn) {
        let own = Place { root: self.me, distance: 0, parent: self.me };
        let offers = self.neighbours.iter().filter(|one| {
            // A distance that no path has belongs to a root that is gone.
            one.trusted && one.place.parent != self.me && one.place.distance + 1 < self.sites
        });
        let offers = offers.map(|one| Place {
            root: one.place.root,
            distance: one.place.distance + 1,
            parent: one.site,
        });
        // Whoever is nearer to the first root, and without it to the lowest.
        let best = offers.fold(own, |one, other| {
            core::cmp::min_by_key(one, other, |place| (place.root != self.first_root, *place))
        });
        let was_root = self.is_root();
        if best != self.place {
            self.place = best;
            self.changed = true;
            for one in &self.neighbours {
                turn.greet.entry(one.site).or_insert(false);
            }
        }
        let channels = self.grown_channels();
        if channels == self.channels && was_root == self.is_root() {
            return;
        }
        self.changed = true;
        self.channels = channels;
        let first = self.channels[0];
        let ours = |site: &mut SiteId, channels: &[SiteId]| {
            if !channels.contains(site) {
                *site = first;
            }
        };
        let kept = self.spare.values_mut().chain(self.parked.values_mut());
        kept.for_each(|from| ours(from, &self.channels));
        self.used.values_mut().for_each(|(from, _)| ours(from, &self.channels));
        self.priority.iter_mut().for_each(|(from, _)| ours(from, &self.channels));
        self.next = 0;
        if self.is_root() {
            if !was_root {
                let gate = core::mem::take(&mut self.root.gate);
                self.root.forget();
                self.root.gate = gate;
            }
            // Whatever controller is on its way is not this one.
            self.colour = self.next_colour();
            self.root.gate.retain(|item| item.token().is_some());
            self.send_again(turn);
        } else if was_root {
            for item in core::mem::take(&mut self.root.gate) {
                if let Item::Token(token) = item {
                    self.pass(token, first, turn);
                }
            }
            self.root.forget();
        }
    }

    /// The right to use units has run out: nobody here has anything.
    pub(super) fn give_up(&mut self, out: &mut EffectsOf<Self>) {
        let held = self.claims.iter().filter(|(_, own)| matches!(own, Own::Held(_)));
        let held: Vec<_> = held.map(|(&claim, _)| claim).collect();
        for claim in held {
            self.claims.remove(&claim);
            out.revoke(claim);
        }
        self.spare.clear();
        self.parked.clear();
        self.used.clear();
        self.priority = None;
        self.root.gate.retain(|item| item.token().is_none());
    }

    /// After a fault: passes on what nobody here uses or needs.
    pub(super) fn forget_strays(&mut self, turn: &mut Turn) {
        let claims = &self.claims;
        let strays: Vec<u32> = self
            .used
            .iter()
            .filter(|(_, (_, claim))| !matches!(claims.get(claim), Some(Own::Held(_))))
            .map(|(&token, _)| token)
            .collect();
        for token in strays {
            if let Some((from, _)) = self.used.remove(&token) {
                self.pass(token, from, turn);
            }
        }
        self.shed(turn);
        // Only the root has a gate.
        if !self.is_root() {
            self.root.gate.clear();
        }
    }

    /// Garbage in everything but the claims.
    pub(super) fn garble(&mut self, draw: &mut dyn FnMut() -> u64) {
        let pace = R::pace(self.sites);
        let tokens = self.tokens();
        if R::WATCHES {
            for i in 0..self.neighbours.len() {
                let place = self.garbled_place(draw);
                let one = &mut self.neighbours[i];
                one.place = place;
                one.trusted = draw().is_multiple_of(2);
                one.age = below(draw, u64::from(pace.dead_far) + 2);
                one.challenge = draw().is_multiple_of(2);
                one.echo = draw().is_multiple_of(2);
            }
            self.place = self.garbled_place(draw);
            let pick = self.pick(draw);
            self.place.parent = pick;
            if self.place.parent == self.me {
                self.place = Place { root: self.me, distance: 0, parent: self.me };
            }
        }
        self.channels = self.grown_channels();
        self.changed = draw().is_multiple_of(2);
        self.next = usize::from(below(draw, self.channels.len() as u64));
        self.colour = draw() % self.colours;
        self.moved = draw().is_multiple_of(2);
        self.scarce = draw().is_multiple_of(2);
        self.root.scarce = draw().is_multiple_of(2);
        self.lease = below(draw, u64::from(pace.lease) + 2);
        self.licensed = draw().is_multiple_of(2);
        self.newborn = below(draw, u64::from(pace.settle) + 1);
        self.rank = below(draw, self.sites.into());
        self.garble_tokens(draw);
        self.root.purge = Bits::garbage(tokens, draw);
        self.root.wrapped = Tally::garbage(tokens, draw);
        self.root.gate = self.garbled_frame(draw).items;
        self.root.closed = below(draw, u64::from(pace.gate) + 1);
        self.root.hurry = u8::try_from(draw() % 4).unwrap_or(0);
        self.root.wanted = draw().is_multiple_of(2);
        self.root.woken = draw().is_multiple_of(2);
        self.root.silence = below(draw, u64::from(pace.timeout) + 1);
        self.root.calm = below(draw, u64::from(pace.settle) + 1);
        self.root.quorate = draw().is_multiple_of(2);
        self.root.sure = draw().is_multiple_of(2);
    }

    fn garble_tokens(&mut self, draw: &mut dyn FnMut() -> u64) {
        let channel = |draw: &mut dyn FnMut() -> u64, channels: &[SiteId]| {
            channels[usize::from(below(draw, channels.len() as u64))]
        };
        // Units that claims were told of stay, or are forgotten.
        self.used.retain(|_, _| draw().is_multiple_of(2));
        for (from, _) in self.used.values_mut() {
            *from = channel(draw, &self.channels);
        }
        self.spare.clear();
        self.parked.clear();
        for token in 0..self.units() {
            let from = channel(draw, &self.channels);
            match draw() % 8 {
                0 => self.spare.insert(token, from),
                1 => self.parked.insert(token, from),
                _ => None,
            };
        }
        let from = channel(draw, &self.channels);
        let claim = crate::types::Stamp { time: draw() % 1_000, site: self.me };
        self.priority = draw().is_multiple_of(2).then_some((from, claim));
    }

    fn pick(&self, draw: &mut dyn FnMut() -> u64) -> SiteId {
        let pick = usize::from(below(draw, self.neighbours.len() as u64 + 1));
        self.neighbours.get(pick).map_or(self.me, |one| one.site)
    }

    fn garbled_place(&self, draw: &mut dyn FnMut() -> u64) -> Place {
        Place {
            root: SiteId(below(draw, self.sites.into())),
            distance: below(draw, self.sites.into()),
            parent: SiteId(below(draw, self.sites.into())),
        }
    }

    pub(super) fn garbled_frame(&self, draw: &mut dyn FnMut() -> u64) -> Frame {
        let hello = (R::WATCHES && draw().is_multiple_of(2)).then(|| Hello {
            place: self.garbled_place(draw),
            challenge: draw().is_multiple_of(2),
            echo: draw().is_multiple_of(2),
            ask: draw().is_multiple_of(2),
        });
        let colours = self.colours;
        let items = (0..draw() % 3).map(|_| match draw() % 8 {
            0 => match draw() % 2 {
                0 => Item::Wake,
                _ => Item::Want { pool: PoolId(0), units: 1, hops: below(draw, 8) },
            },
            1..4 => Item::Control(Control::garbage(colours, self.tokens(), draw)),
            _ => Item::Token(u32::try_from(draw() % u64::from(self.tokens())).unwrap_or(0)),
        });
        Frame { hello, items: items.collect() }
    }
}

fn below(draw: &mut dyn FnMut() -> u64, bound: u64) -> u16 {
    u16::try_from(draw() % bound.max(1)).unwrap_or(0)
}
