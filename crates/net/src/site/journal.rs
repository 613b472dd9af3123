//! What a site writes down about its leases, so that a later life can take them over.
//!
//! A file of entries, each with its length and checksum; a tail that was cut off by a crash is not
//! read. It is good for the next life only. Each grant, and each end of a lease, is in it before
//! anybody hears of it, so it is complete whenever the process dies. Whether it is also on the
//! disk then, which costs a grant some milliseconds, matters only when the machine dies: what was
//! written is the kernel's, and outlives its writer.
//!
//! A journal whose file cannot be written is *behind*. It keeps its path, and is good again once a
//! new file with all leases has taken the place of the old one. Nothing is ever appended to a file
//! after a failed write or sync: the kernel may have dropped its pages, and a second sync may
//! succeed all the same.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kofm_core::epoch::{Book, Standing};
use kofm_core::{Clock, Demand, Stamp, Unit};
use serde::{Deserialize, Serialize};

use crate::api::OnExpiry;

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
    /// It is over, and its units are kept back by the policy of their pool.
    pub kept: Option<OnExpiry>,
    /// The principal that asked. Kept beside the rest, so that older files can be read.
    #[serde(skip)]
    pub principal: Option<String>,
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
        /// Everything is on the disk before it takes effect.
        synced: bool,
    },
    Held(Saved),
    /// A lease is over.
    Over(String),
    /// Ends a file: nothing happened after it.
    Clean {
        clock: Clock,
        idle: Vec<Vec<Unit>>,
    },
    /// A lease of a principal.
    HeldBy(Saved, String),
}

impl Entry {
    fn held(saved: Saved) -> Self {
        match saved.principal.clone() {
            Some(principal) => Self::HeldBy(saved, principal),
            None => Self::Held(saved),
        }
    }
}

/// What the last life left behind, complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Legacy {
    pub leases: BTreeMap<String, Saved>,
    pub clock: Clock,
    /// The moments of its leases are those of the end, and of the clock of this boot. Otherwise
    /// nobody knows when they were last renewed.
    pub timely: bool,
    /// The units that lay at the site unused; none are known where it crashed.
    idle: Vec<Vec<Unit>>,
}

impl Legacy {
    /// The books that the next life joins with.
    pub(crate) fn books(&self, engines: usize) -> Vec<Book> {
        let book = |number: usize| Book {
            claims: BTreeMap::new(),
            idle: Some(self.idle.get(number).cloned().unwrap_or_default()),
            lines: BTreeMap::new(),
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

/// The operations on a file that a full or broken disk refuses.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }
}

#[derive(Debug)]
struct RealDisk;

impl Disk for RealDisk {}

/// The file of this life.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    /// Open for appending; none while the journal is behind.
    file: Option<File>,
    incarnation: u64,
    synced: bool,
    /// How long it is, and may become before it is written anew.
    bytes: usize,
    limit: usize,
}

/// The shortest that is written anew: what is over makes a file longer for ever.
const LONG: usize = 1 << 20;

impl Journal {
    /// Begins the file of a life; says what the life before it left, if that is complete.
    pub(crate) fn open(
        dir: &Path,
        incarnation: u64,
        synced: bool,
    ) -> io::Result<(Self, Option<Legacy>)> {
        Self::open_on(Arc::new(RealDisk), dir, incarnation, synced)
    }

    fn open_on(
        disk: Arc<dyn Disk>,
        dir: &Path,
        incarnation: u64,
        synced: bool,
    ) -> io::Result<(Self, Option<Legacy>)> {
        let path = dir.join("leases");
        let legacy = match fs::read(&path) {
            Ok(bytes) => read(&bytes, incarnation, &boot()),
            Err(_) => None,
        };
        let (file, limit) = (None, LONG);
        let mut journal = Self { path, disk, file, incarnation, synced, bytes: 0, limit };
        journal.replace(&journal.all(Vec::new()))?;
        Ok((journal, legacy))
    }

    /// Another life begins in this process, with nothing.
    pub(crate) fn begin(&mut self, incarnation: u64) -> io::Result<()> {
        self.incarnation = incarnation;
        self.rewrite(Vec::new())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its file lacks something, or says something that is no longer true.
    pub(crate) const fn is_behind(&self) -> bool {
        self.file.is_none()
    }

    /// Whether most of it is over.
    pub(crate) const fn is_long(&self) -> bool {
        self.bytes > self.limit
    }

    /// Puts a file with these leases, which are all there are, in the place of the old one. If
    /// that fails, the old one is removed, and its space may be enough for the new one.
    pub(crate) fn rewrite(&mut self, leases: Vec<Saved>) -> io::Result<()> {
        self.file = None;
        let entries = self.all(leases);
        if self.replace(&entries).is_ok() {
            return Ok(());
        }
        // The next life must not read a file that is not true. Either of the two will do.
        if let Ok(old) = File::options().write(true).open(&self.path) {
            old.set_len(0).ok();
        }
        fs::remove_file(&self.path).ok();
        self.sync_dir().ok();
        self.replace(&entries)
    }

    /// A lease is about to be given.
    pub(crate) fn held(&mut self, saved: Saved) -> io::Result<()> {
        self.append(&[Entry::held(saved)])
    }

    /// A lease is about to be given back.
    pub(crate) fn over(&mut self, lease: &str) -> io::Result<()> {
        self.append(&[Entry::Over(lease.to_owned())])
    }

    pub(crate) const fn synced(&self) -> bool {
        self.synced
    }

    /// The site stops, and takes no step any more.
    pub(crate) fn close(
        &mut self,
        leases: Vec<Saved>,
        clock: Clock,
        idle: Vec<Vec<Unit>>,
    ) -> io::Result<()> {
        let mut entries: Vec<Entry> = leases.into_iter().map(Entry::held).collect();
        entries.push(Entry::Clean { clock, idle });
        self.append(&entries)?;
        self.file.as_ref().map_or(Ok(()), |file| self.disk.sync(file))
    }

    /// Adds entries. After an error the journal is behind.
    fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        let bytes = encode(entries)?;
        let Some(mut file) = self.file.take() else {
            return Err(io::Error::other("the journal is behind"));
        };
        self.disk.write(&mut file, &bytes)?;
        if self.synced {
            self.disk.sync(&file)?;
        }
        self.bytes = self.bytes.saturating_add(bytes.len());
        self.file = Some(file);
        Ok(())
    }

    /// Everything that a new file begins with.
    fn all(&self, leases: Vec<Saved>) -> Vec<Entry> {
        let Self { incarnation, synced, .. } = *self;
        let life = Entry::Life { incarnation, boot: boot(), synced };
        [life].into_iter().chain(leases.into_iter().map(Entry::held)).collect()
    }

    /// Writes a new file, syncs it, renames it, and syncs the directory.
    fn replace(&mut self, entries: &[Entry]) -> io::Result<()> {
        let bytes = encode(entries)?;
        let fresh = self.path.with_extension("new");
        fs::remove_file(&fresh).ok();
        let write = || {
            let mut file = File::options().append(true).create_new(true).open(&fresh)?;
            self.disk.write(&mut file, &bytes)?;
            if self.synced {
                self.disk.sync(&file)?;
            }
            fs::rename(&fresh, &self.path)?;
            if self.synced {
                self.sync_dir()?;
            }
            Ok(file)
        };
        let written: io::Result<File> = write();
        if written.is_err() {
            fs::remove_file(&fresh).ok();
        }
        self.file = Some(written?);
        self.bytes = bytes.len();
        self.limit = LONG.max(bytes.len().saturating_mul(4));
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), |dir| self.disk.sync(&File::open(dir)?))
    }
}

fn encode(entries: &[Entry]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for entry in entries {
        let body = postcard::to_stdvec(entry).map_err(io::Error::other)?;
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
    }
    Ok(bytes)
}

/// Which run of the machine this is.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn read(bytes: &[u8], incarnation: u64, boot: &str) -> Option<Legacy> {
    let mut entries = entries(bytes).into_iter();
    let Entry::Life { incarnation: last, boot: then, synced } = entries.next()? else {
        return None;
    };
    if last + 1 != incarnation {
        return None;
    }
    // Where it is not known, a run of the machine is not the same.
    let same = then == boot && !boot.is_empty();
    let mut legacy = Legacy::default();
    let mut clean = false;
    for entry in entries {
        match entry {
            Entry::Held(saved) => drop(legacy.leases.insert(saved.lease.clone(), saved)),
            Entry::HeldBy(saved, principal) => {
                let saved = Saved { principal: Some(principal), ..saved };
                legacy.leases.insert(saved.lease.clone(), saved);
            }
            Entry::Over(lease) => drop(legacy.leases.remove(&lease)),
            Entry::Clean { clock, idle } => {
                (legacy.clock, legacy.idle) = (clock, idle);
                clean = true;
            }
            Entry::Life { .. } => return None,
        }
    }
    legacy.timely = same && clean;
    (same || synced || clean).then_some(legacy)
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn saved(lease: &str) -> Saved {
        Saved {
            lease: lease.into(),
            request: "r".into(),
            want: BTreeMap::from([("gpu".into(), 1)]),
            owner: None,
            principal: Some("ci".into()),
            reason: None,
            ttl: Duration::from_secs(1),
            fence: 7,
            epoch: 2,
            expires: 5,
            since: 4,
            kept: None,
            parts: Vec::new(),
        }
    }

    fn names(legacy: Option<Legacy>) -> Vec<String> {
        legacy.unwrap().leases.into_keys().collect()
    }

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("kofm-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn the_next_life_finds_what_was_written_and_no_later_one() {
        let dir = dir("journal");
        let (mut first, legacy) = Journal::open(&dir, 1, false).unwrap();
        assert_eq!(legacy, None);
        first.held(saved("a")).unwrap();
        first.over("a").unwrap();
        first.close(vec![saved("b")], Clock { time: 3, fence: 4 }, vec![vec![]]).unwrap();
        let (_, legacy) = Journal::open(&dir, 2, false).unwrap();
        assert!(legacy.as_ref().unwrap().timely);
        assert_eq!(names(legacy), ["b"]);
        // The second life wrote nothing and crashed.
        let (mut third, legacy) = Journal::open(&dir, 3, false).unwrap();
        assert!(!legacy.as_ref().unwrap().timely);
        assert_eq!(names(legacy), [""; 0]);
        for lease in ["a", "b", "c"] {
            third.held(saved(lease)).unwrap();
        }
        third.over("b").unwrap();
        // A crash in the middle of an entry.
        let path = dir.join("leases");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        assert_eq!(names(Journal::open(&dir, 4, true).unwrap().1), ["a", "b", "c"]);
        // A life was skipped: what it knew is not known.
        fs::write(&path, &whole).unwrap();
        assert_eq!(Journal::open(&dir, 5, true).unwrap().1, None);
        fs::write(&path, "garbage").unwrap();
        assert_eq!(Journal::open(&dir, 6, true).unwrap().1, None);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn after_the_machine_died_only_what_was_on_the_disk_counts() {
        let dir = dir("machine");
        for (synced, clean) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut journal, _) = Journal::open(&dir, 1, synced).unwrap();
            journal.held(saved("a")).unwrap();
            if clean {
                journal.close(Vec::new(), Clock::default(), Vec::new()).unwrap();
            }
            let bytes = fs::read(dir.join("leases")).unwrap();
            let legacy = read(&bytes, 2, "another boot");
            assert_eq!(legacy.is_some(), synced || clean);
            // Its moments are of a clock that has begun anew.
            assert!(legacy.is_none_or(|legacy| !legacy.timely));
        }
        fs::remove_dir_all(dir).unwrap();
    }

    /// A disk that is full, or that fails to sync, on demand.
    #[derive(Debug, Default)]
    struct FaultyDisk {
        full: AtomicBool,
        sync_fails: AtomicBool,
    }

    impl Disk for FaultyDisk {
        fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
            if self.full.load(Ordering::Relaxed) {
                // As much as there is room for.
                file.write_all(&bytes[..bytes.len() / 2])?;
                return Err(io::ErrorKind::StorageFull.into());
            }
            file.write_all(bytes)
        }

        fn sync(&self, _: &File) -> io::Result<()> {
            // The kernel reports an error once, and has dropped the pages.
            if self.sync_fails.swap(false, Ordering::Relaxed) {
                return Err(io::Error::other("injected"));
            }
            Ok(())
        }
    }

    #[test]
    fn a_journal_that_is_behind_is_good_again_once_there_is_room() {
        for synced in [false, true] {
            let dir = dir(&format!("behind-{synced}"));
            let disk = Arc::new(FaultyDisk::default());
            let (mut journal, _) =
                Journal::open_on(Arc::clone(&disk) as _, &dir, 1, synced).unwrap();
            journal.held(saved("a")).unwrap();
            journal.held(saved("b")).unwrap();
            disk.full.store(true, Ordering::Relaxed);
            journal.over("a").unwrap_err();
            assert!(journal.is_behind());
            journal.rewrite(vec![saved("b")]).unwrap_err();
            // The end of `a` is nowhere, so the next life must not go on with `a`.
            assert!(!dir.join("leases").exists() && !dir.join("leases.new").exists());
            journal.held(saved("c")).unwrap_err();
            disk.full.store(false, Ordering::Relaxed);
            // Not by another append, although it would succeed.
            journal.held(saved("c")).unwrap_err();
            journal.rewrite(vec![saved("b"), saved("c")]).unwrap();
            assert!(!journal.is_behind());
            journal.held(saved("d")).unwrap();
            assert_eq!(names(Journal::open(&dir, 2, synced).unwrap().1), ["b", "c", "d"]);
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn a_failed_sync_is_followed_by_a_new_file_only() {
        use std::os::unix::fs::MetadataExt;
        let dir = dir("sync");
        let disk = Arc::new(FaultyDisk::default());
        let (mut journal, _) = Journal::open_on(Arc::clone(&disk) as _, &dir, 1, true).unwrap();
        let path = dir.join("leases");
        journal.held(saved("a")).unwrap();
        // Keeps its number from being used again.
        let old = File::open(&path).unwrap();
        disk.sync_fails.store(true, Ordering::Relaxed);
        journal.held(saved("b")).unwrap_err();
        journal.held(saved("b")).unwrap_err();
        journal.rewrite(vec![saved("a"), saved("b")]).unwrap();
        assert_ne!(fs::metadata(&path).unwrap().ino(), old.metadata().unwrap().ino());
        assert_eq!(names(Journal::open(&dir, 2, true).unwrap().1), ["a", "b"]);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_journal_does_not_grow_for_ever() {
        let dir = dir("growth");
        let (mut journal, _) = Journal::open(&dir, 1, false).unwrap();
        journal.held(saved("a")).unwrap();
        while !journal.is_long() {
            journal.held(saved("b")).unwrap();
            journal.over("b").unwrap();
        }
        journal.rewrite(vec![saved("a")]).unwrap();
        assert!(!journal.is_long());
        assert!(fs::metadata(dir.join("leases")).unwrap().len() < 1000);
        journal.held(saved("c")).unwrap();
        assert_eq!(names(Journal::open(&dir, 2, false).unwrap().1), ["a", "c"]);
        fs::remove_dir_all(dir).unwrap();
    }
}
