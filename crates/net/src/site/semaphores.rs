//! Semaphores through the site's handle.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use kofm_core::{PoolId, SiteId};

use super::{Site, nonsense};
use crate::api::{
    self, AddSpec, Answer, Call, Code, PutSemaphore, SemaphoreShare, TakeSpec, Taken,
};
use crate::config::{DEFAULT_SEMAPHORE, SemaphoreConfig, check_name, semaphore_protocol_named};
use kofm_site::core::unknown_semaphore;
use kofm_site::plan::PlannedSemaphore;

impl Site {
    /// P: takes from a semaphore as soon as it is this call's turn and there are enough units.
    /// A client that stops waiting leaves nothing behind. Calls with the same
    /// id, at whatever site, take once.
    pub async fn p(&self, name: &str, spec: TakeSpec) -> Result<Taken, api::Error> {
        let units = amount("k", spec.k)?;
        let id = hash_of(spec.id.as_deref())?;
        let key = self.0.takers.fetch_add(1, Ordering::Relaxed);
        let (name, wait, owner) = (name.to_owned(), spec.wait, spec.owner);
        let mut taking = Taking { site: self, key: Some(key) };
        let answer = self.call(Call::Take { key, name, units, wait, owner, id }).await;
        taking.key = None;
        if let Answer::Taken(taken) = answer? { Ok(taken) } else { Err(nonsense()) }
    }

    /// V: adds to a semaphore. Anybody may, at any site, and it never waits.
    pub async fn v(&self, name: &str, m: u64) -> Result<(), api::Error> {
        self.add(name, AddSpec { m, id: None }).await
    }

    /// V. Calls with the same id, at whatever site, add once.
    pub async fn add(&self, name: &str, spec: AddSpec) -> Result<(), api::Error> {
        let units = amount("m", spec.m)?;
        let id = hash_of(spec.id.as_deref())?;
        self.call(Call::Add { name: name.to_owned(), units, id }).await.map(|_| ())
    }

    /// All semaphores, counted over all sites, and the sites that did not answer.
    pub async fn semaphores(&self) -> Result<(Vec<api::Semaphore>, Vec<String>), api::Error> {
        let (list, missing) = self
            .gather(Call::Semaphores, |answer| {
                if let Answer::Semaphores(list) = answer { list } else { Vec::new() }
            })
            .await?;
        Ok((count(list), missing))
    }

    /// One semaphore.
    pub async fn semaphore(&self, name: &str) -> Result<api::Semaphore, api::Error> {
        let (list, _) = self.semaphores().await?;
        list.into_iter().find(|it| it.name == name).ok_or_else(|| unknown_semaphore(name))
    }

    /// Makes a semaphore, or makes it anew with this value while nobody waits for it.
    pub async fn put_semaphore(&self, name: &str, spec: PutSemaphore) -> Result<(), api::Error> {
        let malformed = |text: String| api::Error::new(Code::Malformed, text);
        check_name(name).map_err(malformed)?;
        let value = u32::try_from(spec.value)
            .map_err(|_| malformed(format!("`value` is from 0 to {}", u32::MAX)))?;
        let said = spec.protocol.as_deref().map(semaphore_protocol_named);
        let said = said.transpose().map_err(malformed)?;
        let old = self.semaphore(name).await.ok();
        let same = old.and_then(|old| semaphore_protocol_named(&old.protocol).ok());
        let protocol = said.or(same).unwrap_or(DEFAULT_SEMAPHORE);
        self.set_semaphore(name, SemaphoreConfig { value, protocol, arbitration: None }).await
    }

    pub(super) async fn set_semaphore(
        &self,
        name: &str,
        config: SemaphoreConfig,
    ) -> Result<(), api::Error> {
        let old = self.semaphore(name).await.ok();
        self.plan_semaphore(name, old.as_ref(), Some(&config)).await
    }

    /// Removes a semaphore that nobody waits for.
    pub async fn remove_semaphore(&self, name: &str) -> Result<(), api::Error> {
        let old = self.semaphore(name).await?;
        self.plan_semaphore(name, Some(&old), None).await
    }

    /// Makes, or removes, a semaphore with the next epoch. Whoever began to wait meanwhile is told.
    async fn plan_semaphore(
        &self,
        name: &str,
        old: Option<&api::Semaphore>,
        config: Option<&SemaphoreConfig>,
    ) -> Result<(), api::Error> {
        if old.is_some_and(|old| old.waiting > 0) {
            let text = format!("semaphore `{name}` is in use; try again when no P waits for it");
            return Err(api::Error::new(Code::InUse, text));
        }
        let semaphore = config.map(|config| PlannedSemaphore {
            id: PoolId(0),
            value: config.value,
            protocol: config.protocol.name().to_owned(),
            arbitration: config.arbitration.clone(),
        });
        self.next_epoch(Call::PlanSemaphore { name: name.to_owned(), semaphore }).await
    }
}

/// Gives up a P whose waiter is dropped.
struct Taking<'a> {
    site: &'a Site,
    key: Option<u64>,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.site.tell(Call::GiveUp(key));
        }
    }
}

fn amount(what: &str, number: u64) -> Result<u32, api::Error> {
    let units = u32::try_from(number).ok().filter(|&units| units > 0);
    units.ok_or_else(|| {
        let text = format!("`{what}` is from 1 to {}", u32::MAX);
        api::Error::new(Code::Malformed, text)
    })
}

/// The hash of an id, which sites remember: its length must not matter to them.
fn hash_of(id: Option<&str>) -> Result<Option<u128>, api::Error> {
    let Some(id) = id else { return Ok(None) };
    if id.is_empty() || id.len() > 200 || id.chars().any(char::is_control) {
        let text = "`id` is 1 to 200 bytes of printable text";
        return Err(api::Error::new(Code::Malformed, text));
    }
    let hash = kofm_site::rules::hash(id.as_bytes());
    let bytes = hash.first_chunk().copied().unwrap_or_default();
    Ok(Some(u128::from_le_bytes(bytes)))
}

/// Adds up what all sites say. Of each site the largest sums count that any member knows: it may
/// not answer, or know less now than a keeper did when it was asked.
fn count(list: Vec<SemaphoreShare>) -> Vec<api::Semaphore> {
    #[derive(Default)]
    struct Sum {
        epoch: u64,
        first: u64,
        sites: BTreeMap<SiteId, (u64, u64)>,
        shown: Option<api::Semaphore>,
    }
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for share in list {
        let SemaphoreShare { name, protocol, epoch, first, sites, waiting, head, unsure } = share;
        let sum = sums.entry(name.clone()).or_default();
        if sum.shown.is_none() || epoch > sum.epoch {
            // Earlier operations are in the value with which the epoch began.
            (sum.epoch, sum.first) = (epoch, first);
            sum.sites.clear();
            if let Some(shown) = &mut sum.shown {
                shown.unsure.clone_from(&unsure);
            }
        }
        for (site, added, taken) in sites.into_iter().filter(|_| epoch == sum.epoch) {
            let known = sum.sites.entry(site).or_default();
            *known = (known.0.max(added), known.1.max(taken));
        }
        let none = || api::Semaphore { name, value: 0, waiting: 0, head: None, protocol, unsure };
        let shown = sum.shown.get_or_insert_with(none);
        shown.waiting += waiting;
        shown.head = shown.head.take().or(head);
    }
    let value = |sum: Sum| {
        let added: u64 = sum.sites.values().map(|it| it.0).sum();
        let taken: u64 = sum.sites.values().map(|it| it.1).sum();
        // A site that was asked late may have seen more than one that was asked early.
        let value = sum.first.saturating_add(added).saturating_sub(taken);
        Some(api::Semaphore { value, ..sum.shown? })
    };
    sums.into_values().filter_map(value).collect()
}
