//! Hyperplanes: any d of them share a point in a space of d dimensions.
//!
//! In a plane two lines always meet, and Maekawa (1985) made them request sets for M = 1. With M
//! units M + 1 sets have to meet. Lines do not, but in PG(M+1, q) the hyperplanes do: each takes
//! away one dimension, and M + 1 of them leave a point. A hyperplane has about N^(M/(M+1)) of the
//! N points, which is the bound.
//!
//! A space has 1 + q + ... + q^(M+1) points for a prime power q, rarely as many as there are
//! sites. If it has more, a site takes several points; if it has fewer, a point has several sites,
//! and all of them are asked. Either way the point that sets share becomes a site that they share.
//!
//! With more than (M+1)·F sites at each point, every claim may do without F of the sites it asked:
//! M + 1 claims leave out at most (M+1)·F of those that they share.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use super::field::is_prime_power;
use super::singer::{count_points, difference_set};

/// A projective space and where its points are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Projective {
    arbiters: u32,
    points: u32,
    /// Set i is this, shifted by i.
    hyperplane: Arc<[u32]>,
}

/// A space so much larger than the cluster puts every site into almost every set.
const MOST_POINTS_PER_SITE: u32 = 8;

impl Projective {
    /// The space where sets are smallest, among those with at least `copies` sites at each point,
    /// where any `meet` sets share a point. None where every space is too large.
    pub(super) fn new(arbiters: u32, meet: u32, copies: u32) -> Option<Self> {
        let length = usize::try_from(meet).ok()?.checked_add(1)?;
        let order = Self::best_order(arbiters, length, copies)?;
        let points = count_points(order, length)?;
        Some(Self { arbiters, points, hyperplane: difference_set(order, length)?.into() })
    }

    /// The most sets that can have to meet.
    pub(super) fn largest_meet(arbiters: u32) -> u32 {
        let limit = arbiters.saturating_mul(MOST_POINTS_PER_SITE);
        (limit.saturating_add(1)).ilog2() - 1
    }

    /// The most crashes that the smallest space leaves room for.
    pub(super) fn most_crashes(arbiters: u32, meet: u32) -> u32 {
        let smallest = count_points(2, meet as usize + 1).unwrap_or(u32::MAX);
        (arbiters / smallest).saturating_sub(1) / meet
    }

    /// The most points that a space has of which each can have a site of its own.
    pub(super) fn largest_within(arbiters: u32, meet: u32) -> Option<u32> {
        let length = usize::try_from(meet).ok()?.checked_add(1)?;
        count_points(largest_order(arbiters, length)?, length)
    }

    /// Of the largest space that fits and the smallest that does not, the one with smaller sets.
    fn best_order(arbiters: u32, length: usize, copies: u32) -> Option<u32> {
        let below = largest_order(arbiters / copies, length);
        let above = || smallest_order_from(arbiters, length);
        let above = if copies == 1 { above() } else { None };
        let (Some(low), Some(high)) = (below, above) else { return below.or(above) };
        let size = |order| count_points(order, length - 1).map(u64::from);
        let points = u64::from(count_points(low, length)?);
        let spread = size(low)? * u64::from(arbiters);
        Some(if spread <= size(high)? * points { low } else { high })
    }

    /// The set of the site at `position`, as runs of positions.
    pub(super) fn runs(&self, position: u32) -> Vec<Range<u32>> {
        let shift = position % self.points;
        let mut marks = Marks::new(self.arbiters);
        for &point in self.hyperplane.iter() {
            let point = (point + shift) % self.points;
            if self.points >= self.arbiters {
                marks.set(point % self.arbiters);
            } else {
                let sites = (point..self.arbiters).step_by(self.points as usize);
                sites.for_each(|site| marks.set(site));
            }
        }
        marks.runs()
    }

    /// How many others are asked when everybody asks once, without building the sets: for each
    /// site, how many sets it is in.
    pub(super) fn asked(&self) -> u64 {
        // The sites before `cut` have one point more than the others.
        let most = self.points.div_ceil(self.arbiters);
        let cut = self.points - (most - 1) * self.arbiters.min(self.points);
        let many = self.count_shifts(most);
        let few = self.count_shifts((most - 1).max(1));
        let load = |site| if site < cut { many(site) } else { few(site) };
        (0..self.arbiters).map(|site| load(site) - 1).sum()
    }

    /// Counts the shifts, one for each site, that bring one of a site's first `own` points into
    /// the hyperplane.
    fn count_shifts(&self, own: u32) -> impl Fn(u32) -> u64 + use<> {
        let (points, sites) = (self.points, self.arbiters);
        let mut hit = vec![0u64; points as usize];
        for &point in self.hyperplane.iter() {
            for step in 0..own {
                hit[((point + points - step * sites % points) % points) as usize] = 1;
            }
        }
        let mut before = vec![0u64];
        for flag in hit {
            before.push(before[before.len() - 1] + flag);
        }
        // A site is hit by a shift where the site less the shift is marked: a window on the marks
        // that is as long as there are sites, and may go around more than once.
        move |site| {
            let at = |place: u32| before[place as usize];
            let (rounds, rest) = (u64::from(sites / points), sites % points);
            let end = site % points + 1;
            let window = if end >= rest {
                at(end) - at(end - rest)
            } else {
                at(end) + at(points) - at(points + end - rest)
            };
            rounds * at(points) + window
        }
    }
}

/// Marked positions. Hyperplanes come in no useful order, and marking is quicker than sorting.
struct Marks(Vec<u64>);

impl Marks {
    fn new(positions: u32) -> Self {
        Self(vec![0; positions.div_ceil(64) as usize])
    }

    fn set(&mut self, position: u32) {
        self.0[position as usize / 64] |= 1 << (position % 64);
    }

    /// What is marked, in order.
    fn runs(self) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for (start, mut word) in (0..).step_by(64).zip(self.0) {
            while word != 0 {
                let position = start + word.trailing_zeros();
                match runs.last_mut() {
                    Some(run) if run.end == position => run.end += 1,
                    _ => runs.push(position..position + 1),
                }
                word &= word - 1;
            }
        }
        runs
    }
}

/// The largest order of a space with no more than `limit` points.
fn largest_order(limit: u32, length: usize) -> Option<u32> {
    let fits = |order: &u32| count_points(*order, length).is_some_and(|points| points <= limit);
    (2..=limit).take_while(fits).filter(|&order| is_prime_power(order)).last()
}

/// The smallest order of a space with a point for each site, unless it is far too large.
fn smallest_order_from(arbiters: u32, length: usize) -> Option<u32> {
    let limit = arbiters.saturating_mul(MOST_POINTS_PER_SITE);
    let fits = |order: &u32| count_points(*order, length).is_some_and(|points| points <= limit);
    let enough =
        |order: &u32| count_points(*order, length).is_some_and(|points| points >= arbiters);
    (2..=limit).take_while(fits).find(|order| is_prime_power(*order) && enough(order))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_agrees_with_the_sets() {
        for meet in 1..5 {
            for arbiters in 1..90 {
                for copies in [1, meet + 1] {
                    let Some(space) = Projective::new(arbiters, meet, copies) else { continue };
                    let sets = (0..arbiters).flat_map(|position| space.runs(position));
                    let total: u64 = sets.map(|run| u64::from(run.end - run.start)).sum();
                    let asked = total - u64::from(arbiters);
                    assert_eq!(space.asked(), asked, "{arbiters} sites, {meet} meet");
                }
            }
        }
    }

    #[test]
    fn everybody_is_in_his_own_set() {
        for arbiters in 1..200 {
            let space = Projective::new(arbiters, 2, 1).expect("planes fit everywhere");
            assert!(
                (0..arbiters).all(|site| space.runs(site).iter().any(|run| run.contains(&site)))
            );
        }
    }

    #[test]
    fn prime_powers_are_used() {
        assert_eq!(Projective::new(73, 2, 1).expect("order 8").hyperplane.len(), 9);
        assert_eq!(Projective::new(85, 3, 1).expect("order 4").hyperplane.len(), 21);
    }
}
