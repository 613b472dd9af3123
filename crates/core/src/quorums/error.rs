//! Why there are no request sets.

use alloc::string::ToString;
use alloc::vec::Vec;
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
    /// Sets of this construction are known for fewer arbiters only.
    TooManyArbiters {
        /// The one that was named.
        construction: Construction,
        /// How many arbiters there are.
        arbiters: u16,
        /// How many there may be.
        largest: u16,
    },
    /// Sets were given for more or fewer sites than there are.
    SetsOfOthers {
        /// How many sets.
        sets: usize,
        /// How many sites.
        sites: u16,
    },
    /// The set of this site was given, and has no members.
    EmptySet(SiteId),
    /// The sets of these sites were given, and share no arbiter.
    Apart(Vec<SiteId>),
    /// More sets were given than can be checked.
    TooManySets,
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
            Self::TooManyArbiters { construction, arbiters, largest } => write!(
                f,
                "{construction} sets are known for {largest} arbiters at most, not for {arbiters}"
            ),
            Self::SetsOfOthers { sets, sites } => {
                write!(f, "{sets} request sets were given for {sites} sites: give one for each")
            }
            Self::EmptySet(site) => write!(f, "the request set of {site} has no members"),
            Self::Apart(sites) => {
                let names: Vec<_> = sites.iter().map(ToString::to_string).collect();
                write!(
                    f,
                    "the request sets of {} share no arbiter, so more units could be granted than \
                     there are",
                    names.join(", ")
                )
            }
            Self::TooManySets => write!(
                f,
                "it would take too long to check whether these request sets meet: give fewer sets"
            ),
        }
    }
}

impl core::error::Error for QuorumError {}
