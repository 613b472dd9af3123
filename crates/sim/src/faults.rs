//! What can go wrong in a simulated run, drawn from its seed.

use std::fmt;
use std::str::FromStr;

use kofm_core::SiteId;
use kofm_core::parts::SiteSet;

use crate::rng::Rng;
use crate::span::{Span, Time};

/// A kind of fault, by the name users type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A site stands still for a while; its messages and clients wait.
    Pause,
    /// The sites fall into two halves that cannot talk for a while; links resume where they were.
    Partition,
    /// A site dies with its memory.
    Crash,
    /// A site that died comes back.
    Restart,
    /// One half of the sites hears the other for a while, but not the other way round.
    OneWay,
    /// Clocks run a little too fast or too slow.
    ClockRate,
    /// All variables and channels hold garbage at the start.
    ArbitraryStart,
    /// A step scrambles its site with this probability.
    Corrupt(f64),
}

impl Fault {
    const NAMES: &'static str = "pause, partition, crash, restart, one-way, clock-rate, \
                                 arbitrary-start, corrupt=P";

    /// Whether it takes a change of epoch to survive it: then sites are members, with leases.
    pub const fn needs_epochs(self) -> bool {
        matches!(self, Self::Crash | Self::Restart | Self::OneWay | Self::ClockRate)
    }

    /// Whether it puts garbage into memories.
    pub const fn garbles(self) -> bool {
        matches!(self, Self::ArbitraryStart | Self::Corrupt(_))
    }

    /// The name without its parameter.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Partition => "partition",
            Self::Crash => "crash",
            Self::Restart => "restart",
            Self::OneWay => "one-way",
            Self::ClockRate => "clock-rate",
            Self::ArbitraryStart => "arbitrary-start",
            Self::Corrupt(_) => "corrupt",
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "pause" => return Ok(Self::Pause),
            "partition" => return Ok(Self::Partition),
            "crash" => return Ok(Self::Crash),
            "restart" => return Ok(Self::Restart),
            "one-way" => return Ok(Self::OneWay),
            "clock-rate" => return Ok(Self::ClockRate),
            "arbitrary-start" => return Ok(Self::ArbitraryStart),
            _ => {}
        }
        let Some(p) = text.strip_prefix("corrupt=") else {
            return Err(format!("there is no fault `{text}`: use some of {}", Self::NAMES));
        };
        let p: f64 = p.parse().map_err(|_| format!("`{p}` is not a probability"))?;
        if !(0.0..=1.0).contains(&p) {
            return Err(format!("{p} is not a probability: use one from 0 to 1"));
        }
        Ok(Self::Corrupt(p))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(p) => write!(f, "corrupt={p}"),
            Self::Pause
            | Self::Partition
            | Self::Crash
            | Self::Restart
            | Self::OneWay
            | Self::ClockRate
            | Self::ArbitraryStart => f.write_str(self.name()),
        }
    }
}

/// The weather: who stands still and who cannot talk to whom, until when.
#[derive(Clone, Debug)]
pub struct Weather {
    rng: Rng,
    sites: u16,
    frozen: Vec<Time>,
    /// One half, and until when it cannot talk to the other.
    cut: (SiteSet, Time),
}

impl Weather {
    /// Mean time between two faults of a kind, and mean length of one, in link delays.
    const EVERY: Span = Span::Exponential(100.0);
    const LASTS: Span = Span::Exponential(20.0);

    /// Fine weather.
    pub fn new(sites: u16, rng: Rng) -> Self {
        let frozen = vec![0; usize::from(sites)];
        Self { rng, sites, frozen, cut: (SiteSet::new(), 0) }
    }

    /// When the next fault of a kind comes.
    pub fn next(&mut self, now: Time) -> Time {
        now + Self::EVERY.draw(&mut self.rng)
    }

    /// Lets a fault happen.
    pub fn strike(&mut self, fault: Fault, now: Time) {
        let until = now + Self::LASTS.draw(&mut self.rng);
        match fault {
            Fault::Pause => {
                let site = self.rng.below(u64::from(self.sites));
                let frozen = &mut self.frozen[usize::try_from(site).expect("a small number")];
                *frozen = until.max(*frozen);
            }
            Fault::Partition => {
                let bits = (0..self.sites).map(SiteId).filter(|_| self.rng.below(2) == 0);
                self.cut = (bits.collect(), until);
            }
            Fault::Crash | Fault::Restart | Fault::OneWay | Fault::ClockRate => {
                unreachable!("{fault} is a matter for members")
            }
            Fault::ArbitraryStart | Fault::Corrupt(_) => {
                unreachable!("no registered protocol claims to survive {fault}")
            }
        }
    }

    /// When something at `site` that is due now can happen; `from` is the sender of a message.
    pub fn clear_at(&self, site: SiteId, from: Option<SiteId>, now: Time) -> Time {
        let frozen = self.frozen[site.index()];
        let (half, until) = &self.cut;
        let apart = from.is_some_and(|from| half.contains(from) != half.contains(site));
        let cut = if apart { *until } else { 0 };
        now.max(frozen).max(cut)
    }
}
