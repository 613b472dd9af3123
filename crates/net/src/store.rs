//! Where the cluster's epoch is decided: one record, two verbs.
//!
//! A site may grant while its last successful [`Store::beat`] *began* less than its lease ago. A
//! beat succeeds only while the epoch is unchanged, and [`Store::swap`] replaces the record of one
//! epoch by that of the next. So once a swap has succeeded, whoever is not told of it stops by
//! itself within a lease, whatever the store thinks about time: no store is trusted with a clock.
//!
//! | store | who keeps the record |
//! | --- | --- |
//! | [`voters::Voters`] (default) | a few sites, by durable majority promises |
//! | [`etcd::Etcd`] | etcd, through its key-value API; its leases are not used |

pub(crate) mod ages;
pub(crate) mod ballots;
pub(crate) mod etcd;
pub(crate) mod voters;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

pub(crate) use kofm_site::store::{Beat, Pulse, Record, StoreError, Swap};

/// An answer that comes later.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A store. Linearizable; nothing else is asked of it.
pub(crate) trait Store: Send + Sync + fmt::Debug {
    /// Replaces the record of the epoch before `next` by `next`.
    fn swap(&self, next: Record) -> Later<'_, Swap>;
    /// Says that a site lives, if the epoch is still that of this record. A site that `listens`
    /// hears what each site last said.
    fn beat(&self, record: Arc<Record>, pulse: Pulse, listens: bool) -> Later<'_, Beat>;
    /// Beats per site lease. The more, the longer is certain what a client is promised, and the
    /// sooner a dead site is missed.
    fn pace(&self) -> u32 {
        20
    }
}
