//! The paper's grid: whoever shares a coordinate with me.
//!
//! Baldoni 1994: lay the sites out in a cube with as many dimensions as sets have to meet, and ask
//! every site that has a coordinate in common with you. To find the one that several sites all
//! ask, take a different coordinate from each.
//!
//! A cube that is not full has holes, and the site found may be one. It never is where the sites
//! are *down-closed*: with a site, all sites that are nowhere above it. Take the dimensions in
//! turn, and in each the smallest coordinate among the sites not used so far: what is found is
//! nowhere above the site used last. Here the sites fill the cube in the order of their
//! coordinates, first coordinate first, which is down-closed.

use alloc::vec::Vec;
use core::ops::Range;

/// A cube that is filled from its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    arbiters: u32,
    side: u32,
    dimensions: u32,
}

impl Grid {
    /// The smallest cube for `arbiters` sites where any `meet` sets share one.
    pub(super) fn new(arbiters: u32, meet: u32) -> Self {
        let side = (1..=arbiters)
            .find(|side| side.saturating_pow(meet) >= arbiters)
            .expect("a cube with a side for each site holds them all");
        Self { arbiters, side, dimensions: meet }
    }

    /// The set of the site at `position`, as runs of positions.
    pub(super) fn runs(&self, position: u32) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        self.slab(position, 0, 0, &mut runs);
        runs
    }

    /// Goes through the part of the cube that starts at `start` and that has no coordinate before
    /// `dimension` in common with `position`.
    fn slab(&self, position: u32, dimension: u32, start: u32, runs: &mut Vec<Range<u32>>) {
        let thickness = self.thickness(dimension);
        let own = position / thickness % self.side;
        let is_line = dimension + 1 == self.dimensions;
        // Nobody else on a line has its only coordinate.
        let coordinates = if is_line { own..own + 1 } else { 0..self.side };
        for coordinate in coordinates {
            let from = start.saturating_add(coordinate.saturating_mul(thickness));
            if from >= self.arbiters {
                return;
            }
            if coordinate == own {
                runs.push(from..from.saturating_add(thickness).min(self.arbiters));
            } else {
                self.slab(position, dimension + 1, from, runs);
            }
        }
    }

    /// How many positions have the same coordinates up to `dimension`.
    const fn thickness(&self, dimension: u32) -> u32 {
        self.side.saturating_pow(self.dimensions - dimension - 1)
    }

    /// How many others are asked when everybody asks once: all pairs but those of a site with
    /// itself and those that have no coordinate in common.
    pub(super) fn asked(&self) -> u64 {
        let last = self.arbiters - 1;
        let side = u64::from(self.side);
        // Pairs built up coordinate by coordinate: of both below the last site so far, and of one
        // that is still level with it. Both level would have coordinates in common.
        let (mut below, mut level, mut start) = (0, 0, 1);
        for dimension in 0..self.dimensions {
            let limit = u64::from(last / self.thickness(dimension) % self.side);
            below = below * side * (side - 1)
                + level * limit * (side - 1)
                + start * limit * limit.saturating_sub(1);
            level = level * (side - 1) + 2 * start * limit;
            start = 0;
        }
        u64::from(self.arbiters) * u64::from(last) - below - level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dumb way: compare all coordinates.
    fn model(grid: &Grid, position: u32) -> Vec<u32> {
        let digit = |n: u32, d: u32| n / grid.side.saturating_pow(d) % grid.side;
        let meets =
            |other: u32| (0..grid.dimensions).any(|dim| digit(position, dim) == digit(other, dim));
        (0..grid.arbiters).filter(|&other| meets(other)).collect()
    }

    #[test]
    fn a_set_is_whoever_shares_a_coordinate() {
        for meet in 1..6 {
            for arbiters in 1..130 {
                let grid = Grid::new(arbiters, meet);
                let mut asked = 0;
                for position in 0..arbiters {
                    let set: Vec<u32> = grid.runs(position).into_iter().flatten().collect();
                    assert_eq!(set, model(&grid, position), "{grid:?} at {position}");
                    asked += set.len() as u64 - 1;
                }
                assert_eq!(grid.asked(), asked, "{grid:?}");
            }
        }
    }
}
