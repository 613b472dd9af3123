//! Readings of a published listing: which of its faults are left in, and which of its parts.
//!
//! A listing as printed has all its faults. A reading names those that stay, so that each can be
//! shown alone, and the repaired listing as well: `kofm check --reading`.

use alloc::collections::BTreeSet;
use core::fmt;

use serde::{Deserialize, Serialize};

macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident = $name:literal,)*) => {
        /// A fault of a listing, or a part of it that is left out.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(rename_all = "kebab-case")]
        #[repr(u8)]
        pub enum Fault {
            $($(#[$doc])* $fault,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$fault,)*];

            /// The name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$fault => $name,)*
                }
            }
        }
    };
}

faults! {
    /// Raynal 1990 §5.1: a late request gets free(M) from a user, which is then not counted.
    LateFree = "late-free",
    /// Raynal 1990 §5.1, the obvious repair: a user has priority, and counts only itself.
    UserFirst = "user-first",
    /// Raynal 1990 §6: each type of resource has a clock of its own.
    ClockPerType = "clock-per-type",
    /// Raynal 1990 §6: a site has one type while it still waits for another.
    TypeByType = "type-by-type",
    /// Raynal 1992, annex: `attendus` is never filled.
    AwaitsNobody = "awaits-nobody",
    /// Raynal 1992, annex: a request carries `h` and not `dernier`.
    StampedByClock = "stamped-by-clock",
    /// Raynal 1992 §3.2: the token goes round a ring forever, instead of along a tree on request.
    Ring = "ring",
    /// Raynal 1992 §3.5.1: the token moves on before all sites have reset their counters.
    Unacknowledged = "unacknowledged",
    /// Raynal 1992 §3.5.1: a counter that is reset stops at zero.
    Unsigned = "unsigned",
    /// Raynal 1992 §3.4: a permission is never asked for back.
    NoCallBack = "no-call-back",
    /// Raynal 1992 §3.4: a permission that is given back unused overwrites the arbiter's count.
    YieldWrites = "yield-writes",
    /// Raynal 1992 §3.4: a site is claimant and arbiter with one np.
    OneVariable = "one-variable",
    /// Raynal 1992 §3.5.1: a reset says nothing about counts on their way.
    MixedScales = "mixed-scales",
    /// Raynal 1992 §3.5.1: one variable vs for nv and np.
    OneValue = "one-value",
    /// Datta 2009, lines 66 to 72: the root decides before it has counted what it holds.
    CountsLate = "counts-late",
    /// Datta 2009, lines 21 and 17: the process with the priority token yields to the pusher.
    PriorityYields = "priority-yields",
    /// Datta 2009, line 40: a priority token that the root passes on is not counted.
    PassesUncounted = "passes-uncounted",
    /// Datta 2009: lines 78 to 98 run after a pass over all channels, not after each message.
    WholePass = "whole-pass",
    /// Datta 2009, the second stage: no priority token, and nothing is counted.
    NoPriority = "no-priority",
    /// Datta 2009, the first stage: no pusher either.
    NoPusher = "no-pusher",
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The faults that a listing has.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Faults(u32);

impl Faults {
    /// Those of a reading; without one those that are printed.
    pub fn new(reading: Option<&BTreeSet<Fault>>, printed: &[Fault]) -> Self {
        let bits = |bits, fault: &Fault| bits | 1 << (*fault as u8);
        Self(
            reading.map_or_else(
                || printed.iter().fold(0, bits),
                |reading| reading.iter().fold(0, bits),
            ),
        )
    }

    /// Whether this one is there.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & 1 << (fault as u8) != 0
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Fault::ALL.iter().filter(|fault| self.has(**fault))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_replaces_what_is_printed() {
        let printed = [Fault::NoCallBack, Fault::OneVariable];
        let all = Faults::new(None, &printed);
        assert!(all.has(Fault::NoCallBack) && all.has(Fault::OneVariable));
        let one = Faults::new(Some(&[Fault::NoPusher].into()), &printed);
        assert!(one.has(Fault::NoPusher) && !one.has(Fault::OneVariable));
        assert!(!Faults::new(Some(&BTreeSet::new()), &printed).has(Fault::NoCallBack));
    }

    #[test]
    fn names_are_those_of_the_trace_format() {
        for fault in Fault::ALL {
            let written = alloc::format!("{fault:?}");
            let lower = fault.name().replace('-', "");
            assert_eq!(written.to_lowercase(), lower);
        }
        assert!(Fault::ALL.len() <= 32);
    }
}
