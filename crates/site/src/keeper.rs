//! What the core and the keeper of its right to grant tell each other.

use std::sync::Arc;

use kofm_core::voting::DiskId;
use serde::{Deserialize, Serialize};

use crate::boottime::Moment;
use crate::config::check_name;
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Where other sites reach it.
    pub address: String,
    /// Where it keeps its votes. It knows the epoch in which it tells of it.
    pub disk: DiskId,
    /// Its zone and version; empty for a site of a version that does not tell.
    pub facts: Facts,
}

/// Facts that a site tells of itself for the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Facts {
    /// The zone in its configuration; empty if it names none.
    pub zone: String,
    /// The version of its program.
    pub version: String,
}

impl Facts {
    /// Of this program, in a zone.
    pub fn new(zone: &str) -> Self {
        Self { zone: zone.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// Whether a record may have them: they come from another machine.
    pub fn are_names(&self) -> bool {
        (self.zone.is_empty() || check_name(&self.zone).is_ok())
            && check_name(&self.version).is_ok()
    }
}

impl Note {
    /// Reads a note; one of an earlier version ends after the disk.
    pub fn read(bytes: &[u8]) -> Self {
        postcard::from_bytes(bytes).unwrap_or_else(|_| {
            let (address, disk) = postcard::from_bytes(bytes).unwrap_or_default();
            Self { address, disk, facts: Facts::default() }
        })
    }
}

impl Standing {
    /// What a site says that is not in an epoch yet.
    pub fn before_joining(incarnation: u64, note: &Note) -> Self {
        let note = postcard::to_stdvec(note).unwrap_or_default();
        Self { incarnation, hurry: true, note, listens: true, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_say_more_or_less_of_a_site_read_each_other() {
        let short = ("h:1".to_owned(), DiskId(7));
        let facts = Facts { zone: "eu".into(), version: "1.2.3".into() };
        let long = Note { address: short.0.clone(), disk: short.1, facts };
        let bytes = postcard::to_stdvec(&long).unwrap();
        assert_eq!(Note::read(&bytes), long);
        let earlier: (String, DiskId) = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(earlier, short);
        let bytes = postcard::to_stdvec(&short).unwrap();
        assert_eq!(Note::read(&bytes), Note { facts: Facts::default(), ..long });
        assert_eq!(Note::read(&[255]), Note::default());
    }
}
