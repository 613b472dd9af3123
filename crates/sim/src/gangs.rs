//! Gangs in a simulated run: who is asked to take part, and whether all did.

use std::collections::BTreeMap;

use kofm_core::protocols::gang::Shares;
use kofm_core::{Cluster, Demand, PoolId, SiteId, Stamp, Units};

use crate::rng::Rng;
use crate::world::Violation;

/// The most members that are drawn for a gang, with its leader.
const MOST: u64 = 4;

/// The gangs of a run.
#[derive(Debug)]
pub(crate) struct Gangs {
    shares: Shares,
    sites: u16,
    /// By claim: its number, its members, those that have begun, and those that are done.
    live: BTreeMap<Stamp, Gang>,
}

#[derive(Debug)]
struct Gang {
    number: u32,
    members: Vec<SiteId>,
    started: bool,
    begun: Vec<SiteId>,
    done: usize,
}

impl Gangs {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let shares = Shares::new(cluster).expect("checked by whoever made the cluster");
        Self { shares, sites: cluster.sites, live: BTreeMap::new() }
    }

    /// The cluster with a seat for each site behind its pools.
    pub(crate) fn seated(&self, cluster: &Cluster) -> Cluster {
        let seats = (0..self.sites).map(|_| Units(1));
        let pools = cluster.pools.iter().copied().chain(seats).collect();
        Cluster { pools, ..cluster.clone() }
    }

    /// A gang led by this site for these units: some members, each with some of them. Says what it
    /// comes to, and how it is asked for.
    pub(crate) fn draw(&self, leader: SiteId, demand: &Demand, rng: &mut Rng) -> (Demand, Demand) {
        let mut members = vec![leader];
        let size = rng.between(1, MOST.min(self.sites.into()));
        while (members.len() as u64) < size {
            let site = SiteId(u16::try_from(rng.below(self.sites.into())).expect("a site"));
            if !members.contains(&site) {
                members.push(site);
            }
        }
        let mut parts: Vec<(PoolId, Units)> =
            members.iter().map(|&member| (self.shares.seat(member), Units(1))).collect();
        for (pool, units) in demand.parts() {
            for _ in 0..units.0 {
                let member = members[usize::try_from(rng.below(size)).expect("few members")];
                parts.push((self.shares.share(member, pool), Units(1)));
            }
        }
        let asked: Demand = parts.into_iter().collect();
        (self.shares.total(&asked), asked)
    }

    pub(crate) fn claimed(&mut self, claim: Stamp, number: u32, demand: &Demand) {
        let members = self.shares.members(demand).into_iter().collect();
        let gang = Gang { number, members, started: false, begun: Vec::new(), done: 0 };
        self.live.insert(claim, gang);
    }

    /// The leader starts.
    pub(crate) fn started(&mut self, claim: Stamp) {
        if let Some(gang) = self.live.get_mut(&claim) {
            gang.started = true;
            gang.begun.push(claim.site);
        }
    }

    /// Another member starts.
    pub(crate) fn begun(&mut self, claim: Stamp, site: SiteId) -> Result<(), Violation> {
        let gang = self.live.get_mut(&claim).filter(|gang| gang.started);
        let Some(gang) = gang.filter(|g| g.members.contains(&site) && !g.begun.contains(&site))
        else {
            let detail = format!("{site} works for {claim}, which did not ask for that");
            return Err(Violation::new("together", detail));
        };
        gang.begun.push(site);
        Ok(())
    }

    /// A member is done; the number of the claim where it was the last.
    pub(crate) fn done(&mut self, claim: Stamp) -> Option<u32> {
        let gang = self.live.get_mut(&claim)?;
        gang.done += 1;
        let over = gang.done == gang.members.len();
        over.then(|| self.live.remove(&claim).map(|gang| gang.number)).flatten()
    }

    /// The claim was given up.
    pub(crate) fn ended(&mut self, claim: Stamp) {
        self.live.remove(&claim);
    }

    /// Gangs that are not over.
    pub(crate) fn open(&self) -> usize {
        self.live.len()
    }
}
