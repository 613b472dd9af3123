//! Sets that are stretches of a ring.
//!
//! Put the arbiters in a ring. A stretch that leaves out fewer than one in `meet` of them meets
//! any `meet − 1` others of its size: together they leave out fewer than there are. That is the
//! smallest that a set can be if *any* set of its size has to do, and small clusters have nothing
//! better.

use alloc::vec::Vec;
use core::ops::Range;

/// `length` positions from `start` on, around a ring of `size`, as runs in order.
pub(super) fn stretch(start: u32, length: u32, size: u32) -> Vec<Range<u32>> {
    let end = start + length;
    let runs = [0..end.saturating_sub(size), start..end.min(size)];
    runs.into_iter().filter(|run| !run.is_empty()).collect()
}

/// How many of a ring are enough to meet in every `meet` of such sets.
pub(super) const fn quorum(size: u32, meet: u32) -> u32 {
    size - size.div_ceil(meet) + 1
}

/// How many of the arbiters may be dead at most, in any arrangement of sets: split into `meet`
/// parts, each part is left out by some set, and those sets have nobody in common.
pub(super) const fn most_crashes(size: u32, meet: u32) -> u32 {
    size.div_ceil(meet) - 1
}

/// How many the site at `position` asks in a tournament where each asks half of the others.
///
/// Of any two sites one asks the other, and everybody asks himself, so any two sets meet (Baldoni
/// 1994, condition (v), read as "contains": with "equals" there are no such sets beyond three
/// sites). In an even ring the one opposite is asked from one side only.
pub(super) const fn tournament(position: u32, size: u32) -> u32 {
    if position < size / 2 { size / 2 + 1 } else { size.div_ceil(2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_goes_around() {
        let members = |start, length| stretch(start, length, 5).into_iter().flatten();
        assert!(members(1, 3).eq([1, 2, 3]));
        assert!(members(3, 4).eq([0, 1, 3, 4]));
        assert!(members(3, 5).eq(0..5));
    }

    #[test]
    fn of_two_sites_one_asks_the_other() {
        for size in 1..40 {
            let asks = |a: u32, b: u32| {
                stretch(a, tournament(a, size), size).into_iter().flatten().any(|c| c == b)
            };
            for a in 0..size {
                assert!((0..a).all(|b| asks(a, b) != asks(b, a)) && asks(a, a), "{a} of {size}");
            }
        }
    }
}
