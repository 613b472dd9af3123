//! Who can talk to whom.
//!
//! Sites send only to neighbours. A ring and a tree are given by arithmetic; any other connected
//! graph is reduced to the breadth-first spanning tree from site 0, so that there is exactly one
//! path between two sites and messages along it stay in order.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::parts::SiteSet;
use crate::types::{Cluster, SiteId};

/// The shape of the network.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Topology {
    /// Every pair of sites has a link.
    Full,
    /// Site i has links to i−1 and i+1, around.
    Ring,
    /// Site i has a link to (i−1)/2: a balanced binary tree with root 0.
    Tree,
    /// Links as given.
    Graph(Graph),
}

/// A connected graph and its spanning tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<(SiteId, SiteId)>", into = "Vec<(SiteId, SiteId)>")]
pub struct Graph {
    edges: Arc<[(SiteId, SiteId)]>,
    /// The parent of each site in the spanning tree; site 0 is its own.
    parents: Arc<[SiteId]>,
}

impl Graph {
    /// The graph with these links, or the first site that cannot be reached from site 0.
    pub fn new(sites: u16, edges: Vec<(SiteId, SiteId)>) -> Result<Self, SiteId> {
        let mut neighbours = vec![Vec::new(); usize::from(sites)];
        for &(a, b) in &edges {
            neighbours[a.index()].push(b);
            neighbours[b.index()].push(a);
        }
        let mut parents: Vec<Option<SiteId>> = vec![None; usize::from(sites)];
        parents[0] = Some(SiteId(0));
        let mut queue = VecDeque::from([SiteId(0)]);
        while let Some(site) = queue.pop_front() {
            for &next in &neighbours[site.index()] {
                if parents[next.index()].is_none() {
                    parents[next.index()] = Some(site);
                    queue.push_back(next);
                }
            }
        }
        let mut tree = Vec::with_capacity(parents.len());
        for (site, parent) in (0..).map(SiteId).zip(parents) {
            tree.push(parent.ok_or(site)?);
        }
        Ok(Self { edges: edges.into(), parents: tree.into() })
    }

    /// The neighbours of every site.
    pub fn links(&self, sites: u16) -> Vec<Vec<SiteId>> {
        let mut links = vec![Vec::new(); usize::from(sites)];
        for &(a, b) in self.edges.iter().filter(|(a, b)| a != b) {
            links[a.index()].push(b);
            links[b.index()].push(a);
        }
        for list in &mut links {
            list.sort_unstable();
            list.dedup();
        }
        links
    }
}

impl TryFrom<Vec<(SiteId, SiteId)>> for Graph {
    type Error = &'static str;
    fn try_from(edges: Vec<(SiteId, SiteId)>) -> Result<Self, Self::Error> {
        let largest = edges.iter().map(|edge| edge.0.max(edge.1)).max();
        let sites = largest.map_or(Some(1), |site| site.0.checked_add(1));
        let sites = sites.ok_or("a site's number is too large")?;
        Self::new(sites, edges).map_err(|_| "the graph is not connected")
    }
}

impl From<Graph> for Vec<(SiteId, SiteId)> {
    fn from(graph: Graph) -> Self {
        graph.edges.to_vec()
    }
}

impl Topology {
    /// The sites that `me` has a link to, in order.
    pub fn neighbours(&self, me: SiteId, sites: u16) -> Vec<SiteId> {
        let all = (0..sites).map(SiteId).filter(|&site| site != me);
        let (i, n) = (u32::from(me.0), u32::from(sites));
        match self {
            Self::Full => all.collect(),
            Self::Ring | Self::Tree => {
                let linked = if *self == Self::Ring {
                    [Some((i + 1) % n), Some((i + n - 1) % n), None]
                } else {
                    [i.checked_sub(1).map(|above| above / 2), Some(2 * i + 1), Some(2 * i + 2)]
                };
                let linked = linked.into_iter().flatten().filter(|&j| j < n && j != i);
                let mut list: Vec<_> = linked.filter_map(|j| u16::try_from(j).ok()).collect();
                list.sort_unstable();
                list.dedup();
                list.into_iter().map(SiteId).collect()
            }
            Self::Graph(graph) => {
                let other = |&(a, b): &(SiteId, SiteId)| {
                    if a == me { Some(b) } else { (b == me).then_some(a) }
                };
                let mut list: Vec<SiteId> =
                    graph.edges.iter().filter_map(other).filter(|&site| site != me).collect();
                list.sort_unstable();
                list.dedup();
                list
            }
        }
    }
}

/// One site's view of the topology: where to send what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Routes {
    me: SiteId,
    sites: u16,
    absent: SiteSet,
    topology: Topology,
    /// The neighbours in the tree; empty where there is none.
    tree_links: Vec<SiteId>,
    /// The parent of each site in the tree of those that take part, where some do not.
    parents: Option<Arc<[SiteId]>>,
}

impl Routes {
    /// The view of `me`.
    pub fn new(me: SiteId, cluster: &Cluster) -> Self {
        let topology = cluster.topology.clone();
        let (sites, absent) = (cluster.sites, cluster.absent.clone());
        let parents = (!absent.is_empty()).then(|| parents_of_present(cluster));
        let mut routes = Self { me, sites, absent, topology, tree_links: Vec::new(), parents };
        if matches!(routes.topology, Topology::Tree | Topology::Graph(_)) {
            let others = cluster.others(me);
            let linked =
                others.filter(|&site| routes.parent(site) == me || routes.parent(me) == site);
            routes.tree_links = linked.collect();
        }
        routes
    }

    /// Whether a request goes once around and gathers answers on its way.
    pub fn is_ring(&self) -> bool {
        matches!(self.topology, Topology::Ring)
    }

    /// Whether every site can be reached directly.
    pub fn is_full(&self) -> bool {
        matches!(self.topology, Topology::Full)
    }

    /// The next site around the ring.
    pub fn successor(&self) -> SiteId {
        let after = (self.me.0 + 1..self.sites).chain(0..self.me.0).map(SiteId);
        after.into_iter().find(|&site| !self.absent.contains(site)).unwrap_or(self.me)
    }

    fn others(&self) -> impl Iterator<Item = SiteId> + '_ {
        let others = (0..self.sites).map(SiteId).filter(|&site| site != self.me);
        others.filter(|&site| !self.absent.contains(site))
    }

    /// Where a flood goes on to when it came from `from` (`me` where it starts here).
    pub fn onward(&self, from: SiteId) -> Vec<SiteId> {
        match &self.topology {
            Topology::Full if from == self.me => self.others().collect(),
            Topology::Full => Vec::new(),
            Topology::Ring if self.successor() == self.me => Vec::new(),
            Topology::Ring => Vec::from([self.successor()]),
            Topology::Tree | Topology::Graph(_) => {
                self.tree_links.iter().copied().filter(|&site| site != from).collect()
            }
        }
    }

    /// The neighbour on the way to `to`. On a ring everything goes the same way around: what was
    /// sent first arrives first, also where a request was held up at a site between.
    pub fn toward(&self, to: SiteId) -> SiteId {
        match &self.topology {
            Topology::Full => to,
            Topology::Ring => self.successor(),
            Topology::Tree | Topology::Graph(_) => self.tree_step(to),
        }
    }

    /// Climbs from `to` until the site below this one is found; if this one is not above `to`,
    /// the way is up.
    fn tree_step(&self, to: SiteId) -> SiteId {
        let mut below = to;
        loop {
            let parent = self.parent(below);
            if parent == self.me {
                return below;
            }
            if parent == below {
                return self.parent(self.me);
            }
            below = parent;
        }
    }

    fn parent(&self, site: SiteId) -> SiteId {
        if let Some(parents) = &self.parents {
            return parents[site.index()];
        }
        match &self.topology {
            Topology::Graph(graph) => graph.parents[site.index()],
            Topology::Full | Topology::Ring | Topology::Tree => {
                SiteId(site.0.saturating_sub(1) / 2)
            }
        }
    }
}

/// The tree of those that take part: balanced, or of the links that are left, where the first site
/// takes in whoever would be cut off. Sites that are absent are their own parents.
fn parents_of_present(cluster: &Cluster) -> Arc<[SiteId]> {
    let present: Vec<SiteId> = cluster.all().collect();
    let mut parents: Vec<SiteId> = (0..cluster.sites).map(SiteId).collect();
    let Some(&root) = present.first() else { return parents.into() };
    if let Topology::Graph(graph) = &cluster.topology {
        let mut reached: SiteSet = [root].into_iter().collect();
        let mut queue = VecDeque::from([root]);
        while let Some(site) = queue.pop_front() {
            for &(a, b) in graph.edges.iter() {
                for (from, to) in [(a, b), (b, a)] {
                    let new = !cluster.absent.contains(to) && !reached.contains(to);
                    if from == site && new {
                        reached.insert(to);
                        parents[to.index()] = site;
                        queue.push_back(to);
                    }
                }
            }
        }
        for &site in present.iter().filter(|&&site| !reached.contains(site)) {
            parents[site.index()] = root;
        }
    } else {
        for (place, &site) in present.iter().enumerate() {
            parents[site.index()] = present[place.saturating_sub(1) / 2];
        }
    }
    parents.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(n: u16) -> SiteId {
        SiteId(n)
    }

    #[test]
    fn a_tree_routes_up_and_down() {
        let routes =
            Routes::new(site(1), &Cluster { topology: Topology::Tree, ..Cluster::new(7, 1) });
        assert_eq!(routes.toward(site(4)), site(4));
        assert_eq!(routes.toward(site(6)), site(0));
        assert_eq!(routes.onward(site(0)), [site(3), site(4)]);
        assert_eq!(routes.onward(site(1)), [site(0), site(3), site(4)]);
    }

    #[test]
    fn a_graph_routes_along_its_spanning_tree() {
        let edges = [(0, 1), (1, 2), (2, 3), (3, 0)].map(|(a, b)| (site(a), site(b)));
        let graph = Graph::new(4, edges.to_vec()).expect("connected");
        let routes = Routes::new(
            site(2),
            &Cluster { topology: Topology::Graph(graph), ..Cluster::new(4, 1) },
        );
        assert_eq!(routes.toward(site(3)), site(1));
    }

    #[test]
    fn a_graph_in_two_parts_names_a_site_that_is_cut_off() {
        assert_eq!(Graph::new(3, [(site(0), site(1))].to_vec()), Err(site(2)));
    }
}
