//! What the core and the keeper of its right to grant tell each other.

use std::sync::Arc;

use crate::boottime::Moment;
use crate::store::{Pulse, Record};

/// What the store says.
#[derive(Debug)]
pub enum News {
    /// A beat that began then has succeeded.
    Beat { began: Moment, pulses: Vec<Pulse> },
    /// The store has this.
    Decided(Record),
    /// It does not answer, or does not agree.
    Trouble(String),
}

/// What the site says of itself with every beat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The newest record that it knows.
    pub record: Arc<Record>,
    pub incarnation: u64,
    /// Not in an epoch: whoever waits is in a hurry.
    pub hurry: bool,
    /// Raised to have the next beat at once.
    pub nudge: u64,
    pub note: Vec<u8>,
    /// It has to know what all other sites said.
    pub listens: bool,
}
