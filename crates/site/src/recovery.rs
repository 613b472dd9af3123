//! What a cluster goes on with where most of its voters are lost for good.

use std::collections::{BTreeMap, BTreeSet};

use kofm_core::SiteId;
use kofm_core::epoch::Record;
use kofm_core::voting::DiskId;

use crate::plan::Plan;

/// How far the epoch leaps: further than the lost sites can have got without those that are left.
/// Epochs that peers are told of may lead by 2²⁰.
const LEAP: u64 = 1 << 16;
/// How far the clocks leap with each epoch.
const CLOCK_LEAP: u64 = 1 << 32;

/// The record with which the site `me` goes on alone, without the `lost` ones. All that any site
/// may have is withheld until every lease of the old record is over, and each site that is left
/// brings what it still has when it joins. A lost site that comes back learns that it is out.
///
/// Where members are `listed` in files, a lost one may return with an empty disk.
pub fn recovered(
    record: &Record<Plan>,
    lost: &BTreeSet<SiteId>,
    (me, disk): (SiteId, DiskId),
    listed: bool,
) -> Record<Plan> {
    let mut next = record.revived(&BTreeMap::new());
    let departed = next.quarantine.remove(&next.epoch);
    next.epoch = record.epoch + LEAP;
    next.quarantine.extend(departed.map(|it| (next.epoch, it)));
    for survey in &mut next.surveys {
        // Fences stay larger than all that the lost sites can have given.
        survey.clock.time += LEAP * CLOCK_LEAP;
        survey.clock.fence += LEAP * CLOCK_LEAP;
    }
    let plan = &mut next.plan;
    for &site in lost {
        let Some((name, address)) = plan.sites.get(&site).cloned() else { continue };
        plan.take_out(site);
        if listed {
            plan.give_number(&name, address);
        }
    }
    plan.voters = [(me, disk)].into();
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds;
    use crate::config::{Config, PoolConfig};
    use crate::plan::decree;

    #[test]
    fn what_the_lost_sites_may_have_is_withheld_and_they_are_out() {
        let mut config = Config::single("a");
        config.pools.insert("gpu".into(), PoolConfig::new(4));
        let mut plan = Plan::first(&config);
        for (name, address) in [("b", "h:2"), ("c", "h:3")] {
            plan.give_number(name, address.into());
        }
        let sites = [0, 1, 2].map(SiteId);
        plan.voters = sites.map(|site| (site, DiskId(u128::from(site.0) + 1))).into();
        plan.keys = ["a", "b", "c"].map(|name| (name.to_owned(), [1; 32])).into();
        let record = Record::first(sites.map(|site| (site, 1)).into(), plan);
        let lost = BTreeSet::from([SiteId(1), SiteId(2)]);
        let next = recovered(&record, &lost, (SiteId(0), DiskId(1)), false);
        assert_eq!(next.plan.voters, [(SiteId(0), DiskId(1))].into());
        assert_eq!(next.plan.sites.keys().copied().collect::<Vec<_>>(), [SiteId(0)]);
        assert_eq!(next.plan.keys.keys().collect::<Vec<_>>(), ["a"]);
        assert!(next.members.is_empty());
        assert_eq!(next.lives, record.lives, "an old life must not come back");
        let kept = &next.quarantine[&next.epoch];
        assert_eq!(kept.sites, record.members);
        let all: u32 = next.surveys.iter().flat_map(|it| it.withheld.values()).map(|it| it.0).sum();
        assert_eq!(all, 4);
        let leapt = |epoch: u64| next.surveys[0].clock.fence > (epoch << 32);
        assert!(leapt(record.epoch + 1000), "fences are larger than those of the lost sites");
        // A site that knows the old record, or one a little later, follows.
        for known in [record.epoch, record.epoch + 1000] {
            bounds::record(&decree(&next), known).unwrap();
        }
        // In a cluster of files, they may return with empty disks.
        let next = recovered(&record, &lost, (SiteId(0), DiskId(1)), true);
        let names: Vec<&str> = next.plan.sites.values().map(|it| it.0.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert!(!next.plan.sites.contains_key(&SiteId(1)));
    }
}
