//! What a site writes down about its leases, so that a later life can take them over.
//!
//! A file of entries, each with its length and checksum; a tail that was cut off by a crash is not
//! read. It is good for the next life only, and on the same boot of the machine: moments are of the
//! clock that starts with it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kofm_core::epoch::{Book, Standing};
use kofm_core::{Clock, Demand, Stamp, Unit};
use serde::{Deserialize, Serialize};

/// One lease, with everything that it takes to go on with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub lease: String,
    pub request: String,
    pub want: BTreeMap<String, u32>,
    pub owner: Option<String>,
    pub reason: Option<String>,
    pub ttl: Duration,
    pub fence: u64,
    pub epoch: u64,
    /// Moments of `CLOCK_BOOTTIME`, in nanoseconds.
    pub expires: u64,
    pub since: u64,
    pub parts: Vec<SavedPart>,
}

/// One claim of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPart {
    pub engine: u16,
    pub claim: Stamp,
    pub demand: Demand,
    pub counted: bool,
    pub units: Vec<Unit>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Entry {
    /// Begins a file.
    Life {
        incarnation: u64,
        boot: String,
        /// Every grant is written before anybody hears of it.
        every: bool,
    },
    Held(Saved),
    /// A lease is over.
    Over(String),
    /// Ends a file: nothing happened after it.
    Clean {
        clock: Clock,
        idle: Vec<Vec<Unit>>,
    },
}

/// What the last life left behind, complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Legacy {
    pub leases: BTreeMap<String, Saved>,
    pub clock: Clock,
    /// The units that lay at the site unused; none are known where it crashed.
    idle: Vec<Vec<Unit>>,
}

impl Legacy {
    /// The books that the next life joins with.
    pub(crate) fn books(&self, engines: usize) -> Vec<Book> {
        let book = |number: usize| Book {
            claims: BTreeMap::new(),
            idle: Some(self.idle.get(number).cloned().unwrap_or_default()),
            tallies: None,
        };
        let mut books: Vec<Book> = (0..engines).map(book).collect();
        for part in self.leases.values().flat_map(|lease| &lease.parts) {
            if let Some(book) = books.get_mut(usize::from(part.engine)) {
                let held = Some(part.units.clone());
                let standing = Standing { demand: part.demand.clone(), held };
                book.claims.insert(part.claim, standing);
            }
        }
        books
    }
}

/// The file of this life.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    every: bool,
}

impl Journal {
    /// Begins the file of a life; says what the life before it left, if that is complete.
    pub(crate) fn open(
        dir: &Path,
        incarnation: u64,
        every: bool,
    ) -> io::Result<(Self, Option<Legacy>)> {
        let path = dir.join("leases");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let legacy = match fs::read(&path) {
            Ok(bytes) => read(&bytes, incarnation, &boot),
            Err(_) => None,
        };
        let fresh = dir.join("leases.new");
        let mut journal = Self { path, file: File::create(&fresh)?, every };
        journal.write(&[Entry::Life { incarnation, boot, every }])?;
        fs::rename(&fresh, &journal.path)?;
        File::open(dir)?.sync_all()?;
        Ok((journal, legacy))
    }

    /// Another life begins in this process, with nothing.
    pub(crate) fn begin(&mut self, incarnation: u64) -> io::Result<()> {
        let dir = self.path.parent().unwrap_or(&self.path).to_owned();
        *self = Self::open(&dir, incarnation, self.every)?.0;
        Ok(())
    }

    /// A lease is about to be given.
    pub(crate) fn held(&mut self, saved: Saved) -> io::Result<()> {
        if self.every { self.write(&[Entry::Held(saved)]) } else { Ok(()) }
    }

    /// A lease is about to be given back.
    pub(crate) fn over(&mut self, lease: &str) -> io::Result<()> {
        if self.every { self.write(&[Entry::Over(lease.to_owned())]) } else { Ok(()) }
    }

    /// Nobody shall read it.
    pub(crate) fn remove(self) {
        fs::remove_file(&self.path).ok();
    }

    pub(crate) const fn every(&self) -> bool {
        self.every
    }

    /// The site stops, and takes no step any more.
    pub(crate) fn close(
        &mut self,
        leases: Vec<Saved>,
        clock: Clock,
        idle: Vec<Vec<Unit>>,
    ) -> io::Result<()> {
        let mut entries: Vec<Entry> = leases.into_iter().map(Entry::Held).collect();
        entries.push(Entry::Clean { clock, idle });
        self.write(&entries)
    }

    fn write(&mut self, entries: &[Entry]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for entry in entries {
            let body = postcard::to_stdvec(entry).map_err(io::Error::other)?;
            let length = u32::try_from(body.len()).map_err(io::Error::other)?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
            bytes.extend_from_slice(&body);
        }
        self.file.write_all(&bytes)?;
        self.file.sync_data()
    }
}

fn read(bytes: &[u8], incarnation: u64, boot: &str) -> Option<Legacy> {
    let mut entries = entries(bytes).into_iter();
    let Entry::Life { incarnation: last, boot: then, every } = entries.next()? else { return None };
    if last + 1 != incarnation || then != boot {
        return None;
    }
    let mut legacy = Legacy::default();
    let mut complete = every;
    for entry in entries {
        match entry {
            Entry::Held(saved) => drop(legacy.leases.insert(saved.lease.clone(), saved)),
            Entry::Over(lease) => drop(legacy.leases.remove(&lease)),
            Entry::Clean { clock, idle } => {
                (legacy.clock, legacy.idle) = (clock, idle);
                complete = true;
            }
            Entry::Life { .. } => return None,
        }
    }
    complete.then_some(legacy)
}

fn entries(mut bytes: &[u8]) -> Vec<Entry> {
    let mut list = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let Some((sum, rest)) = rest.split_first_chunk::<4>() else { break };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let Some((body, rest)) = rest.split_at_checked(length) else { break };
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            break;
        }
        let Ok(entry) = postcard::from_bytes(body) else { break };
        list.push(entry);
        bytes = rest;
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(lease: &str) -> Saved {
        Saved {
            lease: lease.into(),
            request: "r".into(),
            want: BTreeMap::from([("gpu".into(), 1)]),
            owner: None,
            reason: None,
            ttl: Duration::from_secs(1),
            fence: 7,
            epoch: 2,
            expires: 5,
            since: 4,
            parts: Vec::new(),
        }
    }

    #[test]
    fn a_life_that_ended_well_leaves_everything_and_one_that_crashed_only_what_was_written() {
        let dir = std::env::temp_dir().join(format!("kofm-journal-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (mut first, legacy) = Journal::open(&dir, 1, false).unwrap();
        assert_eq!(legacy, None);
        first.held(saved("a")).unwrap();
        first.close(vec![saved("b")], Clock { time: 3, fence: 4 }, vec![vec![]]).unwrap();
        let (_, legacy) = Journal::open(&dir, 2, false).unwrap();
        assert_eq!(legacy.unwrap().leases.into_keys().collect::<Vec<_>>(), ["b"]);
        // The second life wrote nothing and crashed.
        let (mut third, legacy) = Journal::open(&dir, 3, true).unwrap();
        assert_eq!(legacy, None);
        for lease in ["a", "b", "c"] {
            third.held(saved(lease)).unwrap();
        }
        third.over("b").unwrap();
        // A crash in the middle of an entry.
        let path = dir.join("leases");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let (_, legacy) = Journal::open(&dir, 4, true).unwrap();
        assert_eq!(legacy.unwrap().leases.into_keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        // A life was skipped: what it knew is not known.
        fs::write(&path, &whole).unwrap();
        assert_eq!(Journal::open(&dir, 5, true).unwrap().1, None);
        fs::write(&path, "garbage").unwrap();
        assert_eq!(Journal::open(&dir, 6, true).unwrap().1, None);
        fs::remove_dir_all(dir).unwrap();
    }
}
