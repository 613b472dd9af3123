//! Semaphores through the site's handle.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use kofm_core::PoolId;

use super::{Site, nonsense};
use crate::api::{self, Answer, Call, Code, PutSemaphore, SemaphoreShare, TakeSpec, Taken};
use crate::config::{DEFAULT_SEMAPHORE, SemaphoreConfig, check_name, semaphore_protocol_named};
use kofm_site::core::unknown_semaphore;
use kofm_site::plan::PlannedSemaphore;

impl Site {
    /// P: takes from a semaphore as soon as it is this call's turn and there are enough units.
    /// Whoever stops waiting leaves nothing behind; what was taken is taken.
    pub async fn p(&self, name: &str, spec: TakeSpec) -> Result<Taken, api::Error> {
        let units = amount("k", spec.k)?;
        let key = self.0.takers.fetch_add(1, Ordering::Relaxed);
        let (name, wait, owner) = (name.to_owned(), spec.wait, spec.owner);
        let mut taking = Taking { site: self, key: Some(key) };
        let answer = self.call(Call::Take { key, name, units, wait, owner }).await;
        taking.key = None;
        if let Answer::Taken(taken) = answer? { Ok(taken) } else { Err(nonsense()) }
    }

    /// V: adds to a semaphore. Anybody may, at any site, and it never waits.
    pub async fn v(&self, name: &str, m: u64) -> Result<(), api::Error> {
        let units = amount("m", m)?;
        self.call(Call::Add { name: name.to_owned(), units }).await.map(|_| ())
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

/// Adds up what all sites say.
fn count(list: Vec<SemaphoreShare>) -> Vec<api::Semaphore> {
    let mut sums: BTreeMap<String, (u64, u64, api::Semaphore)> = BTreeMap::new();
    for share in list {
        let empty = || {
            let SemaphoreShare { name, protocol, first, unsure, .. } = share.clone();
            let (value, waiting, head) = (0, 0, None);
            let semaphore = api::Semaphore { name, value, waiting, head, protocol, unsure };
            (first, 0, semaphore)
        };
        let (given, taken, semaphore) = sums.entry(share.name.clone()).or_insert_with(empty);
        *given += share.added;
        *taken += share.taken;
        semaphore.waiting += share.waiting;
        semaphore.head = semaphore.head.take().or(share.head);
    }
    // A site that was asked late may have seen more than one that was asked early.
    let value = |(given, taken, semaphore): (u64, u64, api::Semaphore)| api::Semaphore {
        value: given.saturating_sub(taken),
        ..semaphore
    };
    sums.into_values().map(value).collect()
}
