//! What a family of request sets costs, counted set by set.

use alloc::vec;
use alloc::vec::Vec;

use super::{RequestSets, Thousandths};

/// The sizes of all sets, and how they are spread over the arbiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// Members of the smallest set.
    pub min: u32,
    /// Members of a set, on average.
    pub mean: Thousandths,
    /// Members of the largest set.
    pub max: u32,
    /// Sets that the busiest arbiter is in.
    pub load_max: u32,
    /// Fewest messages for a grant, on average: request, grant and release for each member but
    /// the site itself.
    pub messages: Thousandths,
}

impl Census {
    /// Goes through the sets of all sites.
    pub fn of(sets: &RequestSets) -> Self {
        let mut load = Load::new(sets.arbiters());
        let (mut min, mut max, mut total, mut own) = (u32::MAX, 0, 0, 0);
        for site in sets.sites() {
            let position = sets.position(site);
            let mut size = 0;
            for run in sets.shape.runs(position) {
                load.add(run.start, run.end);
                size += run.end - run.start;
                own += u64::from(sets.is_arbiter(site) && run.contains(&position));
            }
            min = min.min(size);
            max = max.max(size);
            total += u64::from(size);
        }
        let sites = sets.sites().len() as u64;
        Self {
            min,
            mean: Thousandths::mean(total, sites),
            max,
            load_max: load.max(),
            messages: Thousandths::mean(3 * (total - own), sites),
        }
    }
}

/// How many sets each arbiter is in, kept as the differences from one to the next so that a run
/// costs no more than a single member.
struct Load {
    differences: Vec<i64>,
}

impl Load {
    fn new(arbiters: u32) -> Self {
        Self { differences: vec![0; arbiters as usize + 1] }
    }

    fn add(&mut self, start: u32, end: u32) {
        self.differences[start as usize] += 1;
        self.differences[end as usize] -= 1;
    }

    fn max(&self) -> u32 {
        let mut load = 0;
        let loads = self.differences.iter().map(|difference| {
            load += difference;
            load
        });
        u32::try_from(loads.max().unwrap_or(0)).expect("a load is a number of sites")
    }
}
