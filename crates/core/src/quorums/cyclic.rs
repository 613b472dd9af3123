//! Small sets that a search has found.
//!
//! Put the arbiters in a ring and let every site ask the same pattern, turned to its own place.
//! Such sets meet if the pattern does with its own turns, which is quick to check; so for small
//! rings all patterns were tried, and of the smallest that meet the first is kept here. The search
//! is a test below.

use alloc::vec::Vec;
use core::ops::Range;

/// The largest ring, and the largest number of sets that have to meet.
pub(super) const MOST: (u32, u32) = (21, 4);

/// By how many sets meet, from two, and by the size of the ring, from two: the pattern, a bit for
/// each place. Every site asks itself.
const PATTERNS: [[u32; 20]; 3] = [
    [
        0x3, 0x3, 0x7, 0x7, 0xb, 0xb, 0x17, 0x17, 0x27, 0x27, 0x53, 0x53, 0x8f, 0x8f, 0x127, 0x127,
        0x247, 0x247, 0x44f, 0x985,
    ],
    [
        0x3, 0x7, 0x7, 0xf, 0x17, 0x1f, 0x2f, 0x5f, 0x5f, 0xb7, 0x13f, 0x177, 0x27f, 0x537, 0xa6f,
        0x9df, 0x14ef, 0x5793, 0x279f, 0x539f,
    ],
    [
        0x3, 0x7, 0xf, 0xf, 0x1f, 0x3f, 0x7f, 0x7f, 0xef, 0x17f, 0x2ff, 0x2ff, 0x5ff, 0xb7f,
        0x17df, 0x1bf7, 0x2eff, 0x5def, 0x1acef, 0xbdef,
    ],
];

/// The pattern for a ring of which any `meet` sets have to share an arbiter.
pub(super) fn pattern(size: u32, meet: u32) -> Option<u32> {
    if size == 1 {
        return Some(1);
    }
    let row = PATTERNS.get(meet.min(size).max(2) as usize - 2)?;
    row.get(size.checked_sub(2)? as usize).copied()
}

/// The pattern turned to a place, as runs in order.
pub(super) fn runs(pattern: u32, size: u32, position: u32) -> Vec<Range<u32>> {
    let asked = |place: &u32| pattern >> ((place + size - position) % size) & 1 == 1;
    let mut runs: Vec<Range<u32>> = Vec::new();
    for place in (0..size).filter(asked) {
        match runs.last_mut() {
            Some(run) if run.end == place => run.end += 1,
            _ => runs.push(place..place + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(pattern: u32, size: u32, by: u32) -> u32 {
        (pattern << by | pattern >> (size - by)) & ((1 << size) - 1)
    }

    /// Whether the pattern shares a place with any `more` of its turns by at least `from`.
    fn meets(common: u32, pattern: u32, size: u32, from: u32, more: u32) -> bool {
        if common == 0 || more == 0 {
            return common != 0;
        }
        (from..size)
            .all(|by| meets(common & turned(pattern, size, by), pattern, size, by + 1, more - 1))
    }

    #[test]
    fn no_smaller_pattern_meets() {
        for size in 2..=MOST.0 {
            for meet in 2..=MOST.1 {
                let kept = pattern(size, meet).unwrap();
                let meet = meet.min(size);
                assert!(meets(kept, kept, size, 1, meet - 1), "{size} {meet}");
                // Every site asks itself: turned, any pattern has its first place there.
                let smaller = (1..1u32 << size).step_by(2);
                let mut smaller = smaller.filter(|other| other.count_ones() < kept.count_ones());
                assert!(
                    !smaller.any(|other| meets(other, other, size, 1, meet - 1)),
                    "{size} {meet}"
                );
            }
        }
    }

    #[test]
    fn a_pattern_turns_around_the_ring() {
        let places = |position| runs(0b1011, 6, position).into_iter().flatten();
        assert!(places(0).eq([0, 1, 3]) && places(4).eq([1, 4, 5]));
        assert_eq!(pattern(1, 2), Some(1));
        assert_eq!(pattern(22, 2), None);
        assert_eq!(pattern(9, 5), None);
        assert_eq!(pattern(3, 4), pattern(3, 3), "three sets are all there are");
    }
}
