//! What clients of real sites saw, and whether it can be: an interval sweep, O(n log n).
//!
//! A client holds for certain from the moment when it has the grant in its hands until the moment
//! when it sends the release, or when its lease ends by its own clock, counted from before it asked
//! or last renewed. Calls without an answer make no interval. Whatever the network did, at no
//! moment may the certain holds of a pool be more than its units, no unit may have two holders,
//! and each later holder of a unit has a larger fence.

use std::collections::BTreeMap;
use std::fmt;

/// One grant, as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Who, for people.
    pub who: String,
    /// What was asked.
    pub want: BTreeMap<String, u32>,
    /// What was given.
    pub units: BTreeMap<String, Vec<String>>,
    /// The fence.
    pub fence: u64,
    /// When the client had it in its hands, on a clock that all clients share.
    pub from: u64,
    /// When it may have been over: not for certain held from here on.
    pub until: u64,
}

/// Everything that clients saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The units of each pool.
    pub pools: BTreeMap<String, u32>,
    /// All grants, in any order.
    pub holds: Vec<Hold>,
}

/// What cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// More units of a pool were held at once than it has.
    TooMany {
        /// Which pool.
        pool: String,
        /// When.
        at: u64,
        /// How many.
        held: u64,
        /// How many there are.
        units: u32,
    },
    /// A unit had two holders at once.
    TwoHolders {
        /// Which unit.
        unit: String,
        /// When.
        at: u64,
        /// One holder.
        first: String,
        /// The other.
        second: String,
    },
    /// A later holder of a unit has no larger fence.
    Fence {
        /// Which unit.
        unit: String,
        /// The earlier fence.
        first: u64,
        /// The later one.
        second: u64,
        /// Who had the later one.
        who: String,
    },
    /// A grant is not what was asked: a part, or something else.
    Part {
        /// Whose.
        who: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { pool, at, held, units } => {
                write!(f, "{held} units of {pool} in use at {at}, it has {units}")
            }
            Self::TwoHolders { unit, at, first, second } => {
                write!(f, "{unit} is held by {first} and {second} at {at}")
            }
            Self::Fence { unit, first, second, who } => {
                write!(f, "{who} got {unit} with fence {second}, after fence {first}")
            }
            Self::Part { who } => write!(f, "{who} was granted something else than it asked for"),
        }
    }
}

impl History {
    /// All that cannot be, in order of pools and moments.
    pub fn violations(&self) -> Vec<Violation> {
        let mut list = Vec::new();
        for hold in &self.holds {
            let count = |(pool, units): (&String, &Vec<String>)| (pool.clone(), units.len());
            let got: BTreeMap<String, usize> = hold.units.iter().map(count).collect();
            let asked = hold.want.iter().map(|(pool, &k)| (pool.clone(), k as usize)).collect();
            if got != asked {
                list.push(Violation::Part { who: hold.who.clone() });
            }
        }
        for (pool, &units) in &self.pools {
            self.sweep(pool, units, &mut list);
        }
        list
    }

    /// The most units of each pool that were in use at one moment.
    pub fn most_in_use(&self) -> BTreeMap<String, u64> {
        let most = |pool: &String| {
            let mut held = 0;
            let edges = self.edges(pool);
            edges.into_iter().map(|edge| edge.apply(&mut held)).max().unwrap_or(0)
        };
        self.pools.keys().map(|pool| (pool.clone(), most(pool))).collect()
    }

    fn edges(&self, pool: &str) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (number, hold) in self.holds.iter().enumerate() {
            let count = hold.units.get(pool).map_or(0, Vec::len) as u64;
            if count > 0 && hold.from < hold.until {
                edges.push(Edge { at: hold.from, starts: true, count, number });
                edges.push(Edge { at: hold.until, starts: false, count, number });
            }
        }
        // What ends in a moment makes room for what begins in it.
        edges.sort_unstable_by_key(|edge| (edge.at, edge.starts, edge.number));
        edges
    }

    fn sweep(&self, pool: &str, units: u32, list: &mut Vec<Violation>) {
        let mut held = 0;
        let mut over = false;
        // Who has each unit, and the last fence that it was seen with.
        let mut holders: BTreeMap<&str, (Option<usize>, Option<u64>)> = BTreeMap::new();
        for edge in self.edges(pool) {
            edge.apply(&mut held);
            if held > u64::from(units) && !over {
                let pool = pool.to_owned();
                list.push(Violation::TooMany { pool, at: edge.at, held, units });
            }
            over = held > u64::from(units);
            let hold = &self.holds[edge.number];
            for unit in &hold.units[pool] {
                let (holder, fence) = holders.entry(unit).or_default();
                if !edge.starts {
                    if *holder == Some(edge.number) {
                        *holder = None;
                    }
                    continue;
                }
                let name = format!("{pool} {unit}");
                if let Some(other) = holder.replace(edge.number) {
                    let (first, second) = (self.holds[other].who.clone(), hold.who.clone());
                    list.push(Violation::TwoHolders { unit: name, at: edge.at, first, second });
                } else if let Some(first) = fence.filter(|fence| hold.fence <= *fence) {
                    let (second, who) = (hold.fence, hold.who.clone());
                    list.push(Violation::Fence { unit: name, first, second, who });
                }
                *fence = (*fence).max(Some(hold.fence));
            }
        }
    }
}

/// A hold begins or ends.
struct Edge {
    at: u64,
    starts: bool,
    count: u64,
    number: usize,
}

impl Edge {
    const fn apply(&self, held: &mut u64) -> u64 {
        *held = if self.starts { *held + self.count } else { *held - self.count };
        *held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(who: &str, units: &[&str], fence: u64, from: u64, until: u64) -> Hold {
        let units: Vec<String> = units.iter().map(ToString::to_string).collect();
        let want = BTreeMap::from([("gpu".to_owned(), u32::try_from(units.len()).unwrap())]);
        let units = BTreeMap::from([("gpu".to_owned(), units)]);
        Hold { who: who.into(), want, units, fence, from, until }
    }

    fn judge(holds: Vec<Hold>) -> Vec<Violation> {
        History { pools: BTreeMap::from([("gpu".into(), 2)]), holds }.violations()
    }

    #[test]
    fn what_can_be_is_accepted() {
        let holds = vec![
            hold("a", &["0", "1"], 1, 0, 10),
            // Touches: the unit moves on in the moment when it is given back.
            hold("b", &["0"], 2, 10, 20),
            hold("c", &["1"], 3, 12, 30),
            // Over before it came: nobody used it.
            hold("late", &["0"], 1, 15, 15),
            hold("d", &["0"], 4, 25, 40),
        ];
        assert_eq!(judge(holds.clone()), []);
        let history = History { pools: BTreeMap::from([("gpu".into(), 2)]), holds };
        assert_eq!(history.most_in_use()["gpu"], 2);
        assert_eq!(judge(vec![]), []);
    }

    #[test]
    fn too_many_at_once_is_rejected_even_with_other_names() {
        let list = judge(vec![hold("a", &["0", "1"], 1, 0, 10), hold("b", &["7"], 2, 9, 12)]);
        assert_eq!(list, [Violation::TooMany { pool: "gpu".into(), at: 9, held: 3, units: 2 }]);
    }

    #[test]
    fn two_holders_of_one_unit_are_rejected() {
        let list = judge(vec![hold("a", &["0"], 1, 0, 10), hold("b", &["0"], 2, 9, 12)]);
        assert!(matches!(&list[..], [Violation::TwoHolders { at: 9, .. }]), "{list:?}");
    }

    #[test]
    fn fences_that_do_not_grow_are_rejected() {
        for fence in [5, 4] {
            let list = judge(vec![hold("a", &["0"], 5, 0, 10), hold("b", &["0"], fence, 10, 12)]);
            assert!(matches!(&list[..], [Violation::Fence { first: 5, .. }]), "{list:?}");
        }
        // Other units have fences of their own.
        assert_eq!(judge(vec![hold("a", &["0"], 5, 0, 10), hold("b", &["1"], 4, 10, 12)]), []);
    }

    #[test]
    fn a_part_of_a_demand_is_rejected() {
        let mut part = hold("a", &["0"], 1, 0, 10);
        part.want.insert("licence".into(), 1);
        assert_eq!(judge(vec![part]), [Violation::Part { who: "a".into() }]);
    }

    #[test]
    fn agrees_with_a_slow_and_simple_judge() {
        let mut state = 7_u64;
        let mut lot = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            (state >> 33) % bound
        };
        let mut seen = [0, 0];
        for _ in 0..2000 {
            let holds: Vec<Hold> = (0..6)
                .map(|n| {
                    let (from, unit) = (lot(20), lot(3).to_string());
                    hold("x", &[&unit], n + 1, from, from + lot(6))
                })
                .collect();
            let overlap = |moment: u64| {
                let live = |it: &&Hold| it.from <= moment && moment < it.until;
                let live: Vec<&Hold> = holds.iter().filter(live).collect();
                let units = |it: &&Hold| it.units["gpu"][0].clone();
                let mut names: Vec<String> = live.iter().map(units).collect();
                names.sort();
                let count = names.len();
                names.dedup();
                count > 2 || names.len() < count
            };
            let slow = (0..30).any(overlap);
            let fast = judge(holds.clone()).iter().any(|it| !matches!(it, Violation::Fence { .. }));
            assert_eq!(slow, fast, "{holds:?}");
            seen[usize::from(slow)] += 1;
        }
        assert!(seen[0] > 100 && seen[1] > 100, "{seen:?}");
    }
}
