//! The constructions side by side.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::projective::Projective;
use super::{Census, Construction, QuorumError, RequestSets, Terms, Thousandths};
use crate::types::SiteId;

/// What each construction costs for the same cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// How many sites ask and arbitrate.
    pub sites: u16,
    /// How many units they share.
    pub units: u32,
    /// How many crashes have to be survived.
    pub crashes: u16,
    /// In every arrangement some arbiter is in so many sets.
    pub bound: Thousandths,
    /// The constructions that can be built, the fewest messages first.
    pub rows: Vec<Row>,
    /// What naming fewer arbiters would give.
    pub fewer: Option<Fewer>,
}

/// One construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which.
    pub construction: Construction,
    /// What it costs.
    pub census: Census,
    /// How many crashes it survives. Where that is less than the budget, it cannot meet it.
    pub crashes: u16,
    /// Whether it is the one that is used unless another is named.
    pub chosen: bool,
}

/// The largest projective space within the cluster, each point at one site. The sites left over
/// ask and do not arbitrate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fewer {
    /// How many sites are arbiters.
    pub arbiters: u16,
    /// What that costs.
    pub census: Census,
}

/// Compares the constructions for a cluster, or says why it can have none.
pub fn compare(sites: u16, units: u32, crashes: u16) -> Result<Comparison, QuorumError> {
    let terms = Terms { crashes, ..Terms::new(sites, units) };
    let best = RequestSets::new(&terms)?;
    let rows = Construction::ALL.iter().filter_map(|&construction| {
        let sets = built(construction, &terms)?;
        Some(Row {
            construction,
            census: Census::of(&sets),
            crashes: sets.crashes(),
            chosen: Some(construction) == best.construction(),
        })
    });
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_by_key(|row| row.census.messages);
    Ok(Comparison {
        sites,
        units,
        crashes,
        bound: Thousandths::bound(sites, units),
        rows,
        fewer: if crashes == 0 { fewer(&terms) } else { None },
    })
}

/// The construction for the budget, or for none where it cannot meet it.
fn built(construction: Construction, terms: &Terms) -> Option<RequestSets> {
    let named = Terms { construction: Some(construction), ..terms.clone() };
    let unprotected = || RequestSets::new(&Terms { crashes: 0, ..named.clone() }).ok();
    RequestSets::new(&named).ok().or_else(unprotected)
}

fn fewer(terms: &Terms) -> Option<Fewer> {
    let sites = u32::from(terms.sites);
    let meet = sites.min(terms.units.saturating_add(1));
    let points = Projective::largest_within(sites, meet).filter(|&points| points < sites)?;
    let arbiters = u16::try_from(points).ok()?;
    let construction = Some(Construction::Projective);
    let named = Some((0..arbiters).map(SiteId).collect());
    let sets = RequestSets::new(&Terms { construction, arbiters: named, ..terms.clone() }).ok()?;
    Some(Fewer { arbiters, census: Census::of(&sets) })
}

impl Comparison {
    /// The construction that is used unless another is named.
    pub fn chosen(&self) -> &Row {
        self.rows.iter().find(|row| row.chosen).expect("the best is one of those compared")
    }

    /// Why that one, in a sentence.
    pub fn reason(&self) -> String {
        let chosen = self.chosen();
        let among = match self.crashes {
            0 => String::new(),
            1 => String::from(" among those that survive 1 crash"),
            crashes => format!(" among those that survive {crashes} crashes"),
        };
        format!(
            "{} has the fewest messages per grant{among}: {}{}",
            chosen.construction,
            chosen.census.messages,
            self.against()
        )
    }

    /// What everybody asking everybody would cost, where that is more.
    fn against(&self) -> String {
        let broadcast = self.rows.iter().find(|row| row.construction == Construction::Broadcast);
        let more = broadcast.filter(|row| row.census.messages > self.chosen().census.messages);
        more.map_or_else(String::new, |row| format!(", broadcast {}", row.census.messages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_has_the_fewest_messages() {
        for units in 1..=5 {
            for sites in 1..=120 {
                for crashes in 0..=2 {
                    let Ok(comparison) = compare(sites, units, crashes) else { continue };
                    let able = comparison.rows.iter().filter(|row| row.crashes >= crashes);
                    let least = able.map(|row| row.census.messages).min();
                    let chosen = comparison.chosen();
                    assert_eq!(Some(chosen.census.messages), least, "{sites} share {units}");
                    assert!(chosen.crashes >= crashes);
                }
            }
        }
    }

    #[test]
    fn no_busiest_arbiter_beats_the_bound() {
        for (sites, units) in [(7, 1), (13, 1), (40, 2), (100, 2), (100, 3), (1000, 2), (1000, 4)] {
            let comparison = compare(sites, units, 0).unwrap();
            for row in comparison.rows {
                let load = u64::from(row.census.load_max) * 1000;
                assert!(load >= comparison.bound.0, "{}", row.construction);
            }
        }
    }

    fn census(construction: Construction, sites: u16, units: u32) -> Census {
        let terms = Terms { construction: Some(construction), ..Terms::new(sites, units) };
        Census::of(&RequestSets::new(&terms).unwrap())
    }

    #[test]
    fn ten_thousand_sites_share_one_unit() {
        let comparison = compare(10_000, 1, 0).unwrap();
        let chosen = comparison.chosen();
        assert_eq!(chosen.construction, Construction::Projective);
        assert!(chosen.census.mean <= Thousandths(103_000), "{chosen:?}");
        assert_eq!(census(Construction::Grid, 10_000, 1).mean, Thousandths(199_000));
        assert_eq!(census(Construction::Uniform, 10_000, 1).max, 5001);
    }

    #[test]
    fn ten_thousand_sites_share_two_units() {
        let comparison = compare(10_000, 2, 0).unwrap();
        let chosen = comparison.chosen();
        assert_eq!(chosen.construction, Construction::Projective);
        assert!(chosen.census.mean <= Thousandths(560_000), "{chosen:?}");
        let grid = census(Construction::Grid, 10_000, 2);
        assert_eq!((grid.min, grid.max), (1180, 1337));
        assert_eq!((grid.mean.0 + 500) / 1000, 1325);
    }

    /// Sizes that other programs counted for the same cubes and rings.
    #[test]
    fn the_grid_and_the_ring_have_known_sizes() {
        let sizes = |census: Census| (census.min, (census.mean.0 + 500) / 1000, census.max);
        assert_eq!(sizes(census(Construction::Grid, 10, 1)), (4, 5, 6));
        assert_eq!(sizes(census(Construction::Grid, 1000, 1)), (39, 62, 63));
        assert_eq!(sizes(census(Construction::Grid, 10, 2)), (6, 9, 10));
        assert_eq!(sizes(census(Construction::Grid, 100, 3)), (73, 81, 91));
        assert_eq!(sizes(census(Construction::Grid, 1000, 4)), (757, 763, 772));
        assert_eq!(sizes(census(Construction::Grid, 256, 4)), (256, 256, 256));
        assert_eq!(sizes(census(Construction::Uniform, 1000, 8)), (889, 889, 889));
        assert_eq!(sizes(census(Construction::Projective, 57, 1)), (8, 8, 8));
        assert_eq!(sizes(census(Construction::Projective, 15, 2)), (7, 7, 7));
    }

    #[test]
    fn fewer_arbiters_have_smaller_sets() {
        let fewer = compare(1000, 3, 0).unwrap().fewer.expect("781 sites are a space");
        assert_eq!((fewer.arbiters, fewer.census.max), (781, 156));
        assert_eq!(compare(781, 3, 0).unwrap().fewer, None);
    }
}
