//! One register that every heartbeat and every proposal reaches at once or not at all.

use std::collections::BTreeMap;

use kofm_site::keeper::Standing;
use kofm_site::store::{Pulse, Record};

use super::StoreNews;

#[derive(Debug, Default)]
pub(super) struct AtomicStore {
    record: Record,
    pulses: BTreeMap<usize, Pulse>,
}

impl AtomicStore {
    /// A heartbeat that began at `began` by the site's clock.
    pub(super) fn beat(&mut self, site: usize, began: u64, standing: &Standing) -> StoreNews {
        if self.record.epoch > standing.record.epoch {
            return StoreNews::Decided(self.record.clone());
        }
        let old = self.pulses.get(&site).filter(|it| it.incarnation == standing.incarnation);
        let count = old.map_or(0, |it| it.count + 1);
        let (incarnation, note) = (standing.incarnation, standing.note.clone());
        self.pulses.insert(site, Pulse { site: format!("s{site}"), incarnation, count, note });
        StoreNews::Steady { began, pulses: self.pulses.values().cloned().collect() }
    }

    /// Replaces the record by its successor; returns the one that stands afterwards.
    pub(super) fn swap(&mut self, next: Record) -> Record {
        if next.epoch == self.record.epoch + 1 {
            self.record = next;
        }
        self.record.clone()
    }
}
