//! The names of the constructions.

use core::fmt;

use serde::{Deserialize, Serialize};

/// A way to make request sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Construction {
    /// Everybody asks everybody.
    Broadcast,
    /// Everybody asks one group, and enough of it will do.
    Threshold,
    /// Stretches of a ring that leave out fewer than one in M + 1.
    Uniform,
    /// Of any two sites one asks the other: M = 1 only.
    Tournament,
    /// Hyperplanes of a projective space; with M = 1 Maekawa's lines.
    Projective,
    /// Baldoni's cube: whoever shares a coordinate.
    Grid,
    /// A small pattern on a ring, found by search.
    Cyclic,
}

impl Construction {
    /// All of them, the plainest first: where two cost the same the first is chosen.
    pub const ALL: &'static [Self] = &[
        Self::Broadcast,
        Self::Threshold,
        Self::Uniform,
        Self::Tournament,
        Self::Projective,
        Self::Grid,
        Self::Cyclic,
    ];

    /// The name users type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast",
            Self::Threshold => "threshold",
            Self::Uniform => "uniform",
            Self::Tournament => "tournament",
            Self::Projective => "projective",
            Self::Grid => "grid",
            Self::Cyclic => "cyclic",
        }
    }

    /// The construction of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|construction| construction.name() == name)
    }
}

impl fmt::Display for Construction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for &construction in Construction::ALL {
            assert_eq!(Construction::named(construction.name()), Some(construction));
        }
        assert_eq!(Construction::named("star"), None);
    }
}
