//! One construction, built for a number of arbiters.

use alloc::vec::Vec;
use core::ops::Range;

use super::given::Given;
use super::grid::Grid;
use super::projective::Projective;
use super::{Construction, QuorumError, Terms, cyclic, ring};

/// What a construction has to do.
#[derive(Clone, Debug)]
pub(super) struct Task {
    units: u32,
    /// How many arbiters there are.
    arbiters: u32,
    /// Whether a group may be chosen among them.
    free: bool,
    /// How many sets have to have an arbiter in common.
    meet: u32,
    /// How many arbiters may be dead.
    crashes: u32,
}

impl Task {
    /// The task, with the number of arbiters if they are named.
    pub(super) fn new(terms: &Terms, named: Option<u32>) -> Self {
        let sites = u32::from(terms.sites);
        Self {
            units: terms.units,
            arbiters: named.unwrap_or(sites),
            free: named.is_none(),
            meet: sites.min(terms.units.saturating_add(1)),
            crashes: u32::from(terms.crashes),
        }
    }

    fn too_many_units(&self, construction: Construction, largest_meet: u32) -> QuorumError {
        QuorumError::TooManyUnits {
            construction,
            units: self.units,
            largest: largest_meet.saturating_sub(1),
            arbiters: narrow(self.arbiters),
        }
    }

    /// No more than `largest` crashes can be survived; by no construction unless one is named.
    fn at_most(&self, largest: u32, named: Option<Construction>) -> Result<(), QuorumError> {
        if self.crashes <= largest {
            return Ok(());
        }
        Err(QuorumError::TooManyCrashes {
            construction: named,
            crashes: narrow(self.crashes),
            largest: narrow(largest),
            arbiters: narrow(self.arbiters),
        })
    }
}

/// A construction of a certain size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Broadcast { arbiters: u32 },
    Threshold { arbiters: u32, group: u32, crashes: u32 },
    Uniform { arbiters: u32, size: u32, crashes: u32 },
    Tournament { arbiters: u32 },
    Projective { space: Projective, crashes: u32 },
    Grid(Grid),
    Cyclic { arbiters: u32, pattern: u32 },
    Given(Given),
}

impl Shape {
    /// The construction for the task, or why it cannot do it.
    pub(super) fn new(construction: Construction, task: &Task) -> Result<Self, QuorumError> {
        let &Task { arbiters, meet, crashes, .. } = task;
        let survives = |most, shape| task.at_most(most, Some(construction)).map(|()| shape);
        let most = ring::most_crashes(arbiters, meet);
        match construction {
            Construction::Broadcast => survives(0, Self::Broadcast { arbiters }),
            Construction::Threshold => survives(most, Self::threshold(task)),
            Construction::Uniform => {
                let size = ring::quorum(arbiters, meet) + crashes;
                survives(most, Self::Uniform { arbiters, size, crashes })
            }
            Construction::Tournament if meet > 2 => Err(task.too_many_units(construction, 2)),
            Construction::Tournament => survives(0, Self::Tournament { arbiters }),
            Construction::Projective => Self::projective(task),
            Construction::Grid => survives(0, Self::Grid(Grid::new(arbiters, meet))),
            Construction::Cyclic => {
                let (largest, meets) = cyclic::MOST;
                if arbiters > largest {
                    let (arbiters, largest) = (narrow(arbiters), narrow(largest));
                    return Err(QuorumError::TooManyArbiters { construction, arbiters, largest });
                }
                let pattern = cyclic::pattern(arbiters, meet)
                    .ok_or_else(|| task.too_many_units(construction, meets))?;
                survives(0, Self::Cyclic { arbiters, pattern })
            }
        }
    }

    /// The construction with the fewest messages among those that can do the task.
    pub(super) fn best(task: &Task) -> Result<Self, QuorumError> {
        task.at_most(ring::most_crashes(task.arbiters, task.meet), None)?;
        let able = Construction::ALL.iter().filter_map(|&name| Self::new(name, task).ok());
        Ok(able.min_by_key(Self::asked).expect("a threshold meets every budget that can be met"))
    }

    /// The named arbiters, or as many sites as the crash budget needs: for none that would be a
    /// single site, a master, and all sites are the group instead.
    fn threshold(task: &Task) -> Self {
        let &Task { arbiters, meet, crashes, .. } = task;
        let group = if task.free && crashes > 0 { crashes * meet + 1 } else { arbiters };
        Self::Threshold { arbiters, group, crashes: ring::most_crashes(group, meet) }
    }

    fn projective(task: &Task) -> Result<Self, QuorumError> {
        let &Task { arbiters, meet, crashes, .. } = task;
        let name = Construction::Projective;
        let largest = Projective::largest_meet(arbiters);
        if meet > largest {
            return Err(task.too_many_units(name, largest));
        }
        if crashes > 0 {
            task.at_most(Projective::most_crashes(arbiters, meet), Some(name))?;
        }
        let space =
            Projective::new(arbiters, meet, crashes * meet + 1).expect("the smallest space fits");
        Ok(Self::Projective { space, crashes })
    }

    pub(super) const fn construction(&self) -> Option<Construction> {
        Some(match self {
            Self::Broadcast { .. } => Construction::Broadcast,
            Self::Threshold { .. } => Construction::Threshold,
            Self::Uniform { .. } => Construction::Uniform,
            Self::Tournament { .. } => Construction::Tournament,
            Self::Projective { .. } => Construction::Projective,
            Self::Grid(_) => Construction::Grid,
            Self::Cyclic { .. } => Construction::Cyclic,
            Self::Given(_) => return None,
        })
    }

    /// How many grants of its set a site can do without.
    pub(super) const fn crashes(&self) -> u32 {
        match *self {
            Self::Broadcast { .. }
            | Self::Tournament { .. }
            | Self::Grid(_)
            | Self::Cyclic { .. }
            | Self::Given(_) => 0,
            Self::Threshold { crashes, .. }
            | Self::Uniform { crashes, .. }
            | Self::Projective { crashes, .. } => crashes,
        }
    }

    /// The set at `position`, as runs of positions in order.
    pub(super) fn runs(&self, position: u32) -> Vec<Range<u32>> {
        match *self {
            Self::Broadcast { arbiters } => ring::stretch(0, arbiters, arbiters),
            Self::Threshold { arbiters, group, .. } => ring::stretch(0, group, arbiters),
            Self::Uniform { arbiters, size, .. } => ring::stretch(position, size, arbiters),
            Self::Tournament { arbiters } => {
                ring::stretch(position, ring::tournament(position, arbiters), arbiters)
            }
            Self::Projective { ref space, .. } => space.runs(position),
            Self::Grid(ref grid) => grid.runs(position),
            Self::Cyclic { arbiters, pattern } => cyclic::runs(pattern, arbiters, position),
            Self::Given(ref sets) => sets.runs(position),
        }
    }

    /// How many others are asked when every arbiter claims once. Never builds all sets: every
    /// site of a cluster works out for itself which construction is best.
    fn asked(&self) -> u64 {
        let square = |arbiters: u32, size: u32| u64::from(arbiters) * u64::from(size - 1);
        match *self {
            Self::Broadcast { arbiters } => square(arbiters, arbiters),
            Self::Threshold { arbiters, group, .. } => {
                u64::from(arbiters) * u64::from(group) - u64::from(group)
            }
            Self::Uniform { arbiters, size, .. } => square(arbiters, size),
            // Of any two sites one asks the other.
            Self::Tournament { arbiters } => square(arbiters, arbiters) / 2,
            Self::Projective { ref space, .. } => space.asked(),
            Self::Grid(ref grid) => grid.asked(),
            Self::Cyclic { arbiters, pattern } => square(arbiters, pattern.count_ones()),
            Self::Given(ref sets) => sets.asked(),
        }
    }
}

fn narrow(count: u32) -> u16 {
    u16::try_from(count).expect("no more than there are sites")
}
