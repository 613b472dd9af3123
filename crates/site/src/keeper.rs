//! What the core and the keeper of its right to grant tell each other.

use std::sync::Arc;

use kofm_core::voting::DiskId;
use serde::{Deserialize, Serialize};

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
    /// Not in an epoch: clients wait for the next one.
    pub hurry: bool,
    /// Raised to have the next beat at once.
    pub nudge: u64,
    pub note: Vec<u8>,
    /// It has to know what all other sites said.
    pub listens: bool,
}

/// What travels with a pulse.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Note {
    /// Where other sites reach it.
    pub address: String,
    /// Where it keeps its votes. It knows the epoch in which it tells of it.
    pub disk: DiskId,
}

impl Standing {
    /// What a site says that is not in an epoch yet.
    pub fn before_joining(incarnation: u64, note: &Note) -> Self {
        let note = postcard::to_stdvec(note).unwrap_or_default();
        Self { incarnation, hurry: true, note, listens: true, ..Self::default() }
    }
}
