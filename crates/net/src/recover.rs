//! How one site goes on where the majority of the voters is lost for good.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use kofm_core::SiteId;
use kofm_site::plan;
use kofm_site::recovery::recovered;

use crate::config::Config;
use crate::incarnation::StateDir;
use crate::store::ballots::Ballots;

/// How long a site that is said to be lost has to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The changes that were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The epoch that this site knew.
    pub before: u64,
    /// The one with which it goes on.
    pub epoch: u64,
    /// The sites that are left, beside this one; those that were away come back by themselves.
    pub left: Vec<String>,
}

/// Makes the site of this configuration, which must not run, the only voter of its cluster, and
/// takes the `lost` sites out.
///
/// That is safe only if the lost ones are gone for good, and hold nothing: two sites that both go
/// on in this way would grant the same units. Refused where a majority of the voters is not lost,
/// and where a lost one answers; nothing changes then.
pub async fn recover(config: &Config, lost: &BTreeSet<String>) -> Result<Recovered, String> {
    if !config.etcd.is_empty() {
        return Err("etcd decides in this cluster: recover etcd, with `etcdctl snapshot restore`"
            .to_owned());
    }
    let dir = config.state_dir.as_deref();
    let dir = dir.filter(|dir| dir.join("promises").exists()).ok_or_else(|| {
        let dir = config.state_dir.clone().unwrap_or_default();
        format!("state_dir {} has no votes: there is nothing to go on with", dir.display())
    })?;
    let _lock = StateDir::lock(dir).map_err(|error| format!("{error}: stop it first"))?;
    let ballots = Ballots::open(Some(dir)).map_err(|error| error.to_string())?;
    let newest = ballots.newest();
    if newest.epoch == 0 {
        return Err("this site was in no epoch yet: there is nothing to go on with".to_owned());
    }
    let record = plan::unpack(&newest.body)?;
    let sites: BTreeMap<&str, SiteId> =
        record.plan.sites.iter().map(|(&site, it)| (it.0.as_str(), site)).collect();
    let me = *sites
        .get(config.site.as_str())
        .ok_or_else(|| format!("site {} was removed from the cluster", config.site))?;
    let number = |name: &String| {
        let known = || sites.keys().copied().collect::<Vec<_>>().join(", ");
        sites.get(name.as_str()).copied().ok_or_else(|| {
            format!("--lost {name}: the cluster has no such site; it has {}", known())
        })
    };
    let numbers = lost.iter().map(number).collect::<Result<BTreeSet<SiteId>, String>>()?;
    if numbers.contains(&me) {
        return Err(format!("--lost {}: this is the site that goes on", config.site));
    }
    let voters = &record.plan.voters;
    let left: Vec<&str> = voters
        .keys()
        .filter(|it| !numbers.contains(it))
        .filter_map(|it| Some(record.plan.sites.get(it)?.0.as_str()))
        .collect();
    if left.len() > voters.len() / 2 {
        return Err(format!(
            "{} of {} voters are not lost ({}), a majority: start them, and the cluster goes on",
            left.len(),
            voters.len(),
            left.join(", ")
        ));
    }
    if let (Some(first), false) = (left.first(), left.contains(&config.site.as_str())) {
        return Err(format!(
            "site {first} votes and is not lost, so it may know more than this one: recover there"
        ));
    }
    for site in &numbers {
        let (name, address) = &record.plan.sites[site];
        let configured = config.members.get(name).filter(|it| *it != address);
        for address in [address].into_iter().chain(configured) {
            if answers(address) {
                return Err(format!(
                    "--lost {name}: a process listens at {address}; a site that is lost must be \
                     gone for good: stop it first"
                ));
            }
        }
    }
    let next = recovered(&record, &numbers, (me, ballots.disk()), !config.is_open());
    let decree = plan::decree(&next);
    if !ballots.learn(&decree).await {
        return Err("the votes cannot be written: nothing was changed".to_owned());
    }
    let left = next.plan.sites.values().map(|it| it.0.clone());
    let left = left.filter(|it| *it != config.site && !lost.contains(it)).collect();
    Ok(Recovered { before: record.epoch, epoch: next.epoch, left })
}

fn answers(address: &str) -> bool {
    let Ok(mut found) = address.to_socket_addrs() else { return false };
    found.any(|it| TcpStream::connect_timeout(&it, PATIENCE).is_ok())
}
