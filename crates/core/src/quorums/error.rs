//! Why there are no request sets.

use core::fmt;

use super::Construction;
use crate::types::SiteId;

/// What is wrong with the terms, and the largest value that would do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuorumError {
    /// There is nobody to ask for.
    NoSites,
    /// There is nothing to share.
    NoUnits,
    /// The list of arbiters is empty.
    NoArbiters,
    /// An arbiter is not a site of the cluster.
    Stranger {
        /// The one that is not.
        arbiter: SiteId,
        /// The last site of the cluster.
        last: SiteId,
    },
    /// The construction cannot share out so many units.
    TooManyUnits {
        /// The one that was named.
        construction: Construction,
        /// What it was to share out.
        units: u32,
        /// What it can, with so many arbiters; zero where it cannot be built at all.
        largest: u32,
        /// How many arbiters there are.
        arbiters: u16,
    },
    /// The arbiters cannot survive so many crashes.
    TooManyCrashes {
        /// The one that was named; without one, no construction can.
        construction: Option<Construction>,
        /// How many were to be survived.
        crashes: u16,
        /// How many can be.
        largest: u16,
        /// How many arbiters there are.
        arbiters: u16,
    },
}

impl fmt::Display for QuorumError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSites => write!(f, "a cluster has at least 1 site"),
            Self::NoUnits => write!(f, "a pool that is shared has at least 1 unit"),
            Self::NoArbiters => write!(f, "a pool has at least 1 arbiter"),
            Self::Stranger { arbiter, last } => {
                write!(f, "arbiter {arbiter} is not in the cluster: the last site is {last}")
            }
            Self::TooManyUnits { construction, units, largest: 0, arbiters } => {
                write!(f, "{construction} cannot share {units} units with {arbiters} arbiters")
            }
            Self::TooManyUnits { construction, units, largest, arbiters } => write!(
                f,
                "{construction} cannot share {units} units with {arbiters} arbiters: \
                 the most is {largest}"
            ),
            Self::TooManyCrashes {
                construction: Some(construction),
                crashes,
                largest,
                arbiters,
            } => {
                write!(
                    f,
                    "{construction} cannot survive {crashes} crashes among {arbiters} arbiters: \
                     the most is {largest}"
                )
            }
            Self::TooManyCrashes { construction: None, crashes, largest, arbiters } => write!(
                f,
                "no construction survives {crashes} crashes among {arbiters} arbiters: \
                 the most is {largest}"
            ),
        }
    }
}

impl core::error::Error for QuorumError {}
