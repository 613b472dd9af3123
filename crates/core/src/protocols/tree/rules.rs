//! The rules by name, so that tests and experiments can leave one out, and the pace.

use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

/// What the checker and the experiments vary.
pub trait Rules: Clone + Copy + Debug + Eq + Hash + Send + 'static {
    /// The name users type.
    const NAME: &'static str = "tree";

    /// Neighbours are watched, and the tree grows from what they say. Without it the tree is the
    /// breadth-first one from site 0 for ever.
    const WATCHES: bool = true;
    /// What leaves together for one neighbour is one message.
    const COALESCES: bool = true;
    /// The root holds tokens back while nobody asks. Without it nobody says that somebody waits.
    const GATED: bool = true;
    /// Units rest at sites all around while nobody waits. Only where there is a gate.
    const PARKS: bool = true;

    /// The pusher leaves alone what the claim with priority has gathered, and that only.
    const SPARES_PRIORITY: bool = true;
    /// The root counts what it has itself before it decides.
    const COUNTS_OWN: bool = true;
    /// The root counts a priority token that it passes straight on.
    const COUNTS_PASSED: bool = true;
    /// What is purged is also dropped by the root.
    const ROOT_PURGES: bool = true;
    /// A circulation that a timeout began decides nothing.
    const PART: bool = true;
    /// A token in use is not purged, but waited for.
    const BUSY: bool = true;
    /// A circulation that met a site whose tree has changed decides nothing.
    const TAINT: bool = true;
    /// Units are made anew only after a while without changes.
    const SETTLE: bool = true;
    /// A site that hears of no circulation for a while stops using units.
    const LEASE: bool = true;
    /// Only a circulation through more than half of the sites renews leases and makes units.
    const QUORUM: bool = true;

    /// Controllers count tokens, and what is missing is made. Without it they only go round.
    const COUNTS: bool = true;

    /// How long things take.
    fn pace(sites: u16) -> Pace {
        Pace::real(sites)
    }

    /// How many colours circulations have where checker and simulator run it: more than the
    /// controllers that can be on their way. Sites have [`UNBOUNDED`](super::UNBOUNDED).
    fn colours(sites: u16) -> u64 {
        // The paper's 2(n−1)(CMAX+1), for up to eight messages on a link.
        18 * (u64::from(sites).max(2) - 1)
    }
}

/// How long things take. Everything but the beat itself is counted in beats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// A site's own clock: its shortest beat; the longest is a fifth longer.
    pub beat: Duration,
    /// The root lets tokens go at least this often.
    pub gate: u16,
    /// A controller that is not back by then is sent again.
    pub timeout: u16,
    /// A neighbour that has not answered for longer is gone.
    pub dead: u16,
    /// The same for neighbours that are no neighbours in the tree, which are asked less often.
    pub dead_far: u16,
    /// Without a circulation for longer, nothing may be used.
    pub lease: u16,
    /// Units are made only after so long without changes.
    pub settle: u16,
}

impl Pace {
    /// For sites with links that take a millisecond or a few.
    pub fn real(sites: u16) -> Self {
        // A tour is 2(n−1) links; allow 5 ms for each.
        Self::new(Duration::from_millis(250), 1 + sites / 25)
    }

    /// With beats of this length, where a controller needs so many to go round.
    pub const fn new(beat: Duration, tour: u16) -> Self {
        let (gate, dead) = (4, 5);
        let timeout = gate + 2 * tour + 2;
        let lease = 2 * timeout;
        // Beats differ by a fifth, and half as much again is cheap.
        let settle = (dead + 2 * timeout + lease) * 3 / 2;
        Self { beat, gate, timeout, dead, dead_far: 20, lease, settle }
    }
}

/// The rules as they are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {}
