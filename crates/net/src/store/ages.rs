//! How far the writes of each site's disk have got, so that an older copy of a disk is noticed.
//!
//! A disk counts its writes. Its site says the number with every question and answer, and the
//! others remember the largest, in memory and with their own writes. A site that hears of a larger
//! number than its own uses an older copy: a restored snapshot, a cloned machine, or a disk that
//! lost what it had confirmed. It has forgotten votes, so it takes no part any more.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use kofm_core::voting::DiskId;
use serde::{Deserialize, Serialize};
use tracing::{error, warn};

/// Sites whose disks are remembered.
const MAX_SITES: usize = 4096;
/// A disk on which nothing changes counts on after this time: an older copy has a smaller number.
pub(super) const PAUSE: Duration = Duration::from_mins(5);

/// The writes of one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Age {
    /// Which disk.
    pub disk: DiskId,
    /// How many there were.
    pub writes: u64,
}

impl Age {
    fn is_before(self, other: Self) -> bool {
        self.disk == other.disk && self.writes < other.writes
    }
}

/// What this site has heard of the disks of others, and of its own.
#[derive(Debug, Default)]
pub(super) struct Ages {
    heard: Mutex<BTreeMap<String, Age>>,
    /// Why this disk must not be used.
    old: OnceLock<String>,
}

impl Ages {
    pub(super) fn new(heard: BTreeMap<String, Age>) -> Self {
        Self { heard: Mutex::new(heard), old: OnceLock::new() }
    }

    /// The ages of all disks that were heard of, to be kept.
    pub(super) fn heard(&self) -> BTreeMap<String, Age> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The most that was heard of a site's disk.
    pub(super) fn of(&self, site: &str) -> Age {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(site).copied().unwrap_or_default()
    }

    /// Hears of a site's disk. An older copy of it is refused with what was heard before.
    pub(super) fn hear(&self, site: &str, told: Age) -> Result<(), Age> {
        // One that is not written to cannot be behind.
        if told.writes == 0 {
            return Ok(());
        }
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let room = heard.len() < MAX_SITES;
        match heard.get_mut(site) {
            Some(known) if told.is_before(*known) => {
                let (there, known) = (told.writes, *known);
                warn!(
                    site,
                    "refused: it has {there} writes of a disk that had {} before", known.writes
                );
                return Err(known);
            }
            Some(known) => *known = told,
            None if room => drop(heard.insert(site.to_owned(), told)),
            None => {}
        }
        Ok(())
    }

    /// Compares what another site has heard of this disk with what is on it.
    pub(super) fn compare(&self, site: &str, own: Age, heard: Age) {
        if !own.is_before(heard) {
            return;
        }
        let text = format!(
            "state_dir is an older copy: it has {} writes, and site {site} has heard of {}; it has \
             forgotten votes and leases and must not be used: stop this site, `kofm member \
             replace` it at another one, and start it with an empty state_dir or `kofm join`",
            own.writes, heard.writes
        );
        if self.old.set(text.clone()).is_ok() {
            error!("{text}");
        }
    }

    /// Why this disk must not be used, if it must not.
    pub(super) fn old(&self) -> Option<&str> {
        self.old.get().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(disk: u128, writes: u64) -> Age {
        Age { disk: DiskId(disk), writes }
    }

    #[test]
    fn an_older_copy_is_noticed_at_both_ends_and_another_disk_is_not_one() {
        let peer = Ages::default();
        for (told, good) in [
            (age(1, 5), true),
            (age(1, 5), true),
            (age(1, 4), false),
            (age(1, 6), true),
            (age(2, 1), true),
            (age(2, 0), true),
        ] {
            assert_eq!(peer.hear("b", told).is_ok(), good, "{told:?}");
        }
        assert_eq!(peer.of("b"), age(2, 1));
        assert_eq!(Ages::new(peer.heard()).of("b"), age(2, 1));
        let own = Ages::default();
        own.compare("a", age(1, 5), age(1, 5));
        own.compare("a", age(1, 5), age(2, 9));
        assert_eq!(own.old(), None);
        own.compare("a", age(1, 5), age(1, 6));
        assert!(own.old().unwrap().contains("older copy"));
    }
}
