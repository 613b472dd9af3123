//! The members that keep copies of what others must not lose.
//!
//! They are few. Every later record has all that a majority of them has, as long as enough of them
//! report in the life in which they keep it. How many that takes does not depend on how many sites
//! there are.

use crate::parts::SiteSet;

/// The most keepers: a majority of them outlives the loss of any two.
pub const MOST: usize = 5;

/// The keepers among these members: those of `first` that are members, and then the others, in
/// order.
pub fn among(members: &SiteSet, first: &SiteSet) -> SiteSet {
    let preferred = members.iter().filter(|site| first.contains(*site));
    let others = members.iter().filter(|site| !first.contains(*site));
    preferred.chain(others).take(MOST).collect()
}

/// How many of them make a majority.
pub fn majority(keepers: &SiteSet) -> usize {
    keepers.len() / 2 + 1
}

/// Whether a majority that had something has one among these: then nothing is lost.
pub fn meet_every_majority(keepers: &SiteSet, left: &SiteSet) -> bool {
    let left = left.iter().filter(|site| keepers.contains(*site)).count();
    !keepers.is_empty() && left + majority(keepers) > keepers.len()
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::types::SiteId;

    fn sites(list: &[u16]) -> SiteSet {
        list.iter().copied().map(SiteId).collect()
    }

    #[test]
    fn keepers_are_few_and_the_preferred_ones_come_first() {
        assert_eq!(among(&sites(&[1, 2]), &sites(&[])), sites(&[1, 2]));
        let nine = sites(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(among(&nine, &sites(&[])), sites(&[1, 2, 3, 4, 5]));
        assert_eq!(among(&nine, &sites(&[7, 8, 12])), sites(&[1, 2, 3, 7, 8]));
    }

    #[test]
    fn what_is_left_meets_every_majority_or_not() {
        for (all, enough) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
            let all: Vec<u16> = (0..all).collect();
            for left in 0..=all.len() {
                let met = meet_every_majority(&sites(&all), &sites(&all[..left]));
                assert_eq!(met, left >= enough, "{left} of {}", all.len());
            }
        }
        assert!(!meet_every_majority(&sites(&[]), &sites(&[])));
        assert!(!meet_every_majority(&sites(&[1, 2, 3]), &sites(&[1, 7, 8])));
    }
}
