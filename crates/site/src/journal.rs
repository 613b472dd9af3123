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

use kofm_core::epoch::{Adopted, Book, Kept, LeaseKey, Standing};
use kofm_core::{Clock, Demand, ProtocolId, Stamp, Unit};
use serde::{Deserialize, Serialize};

use crate::api::OnExpiry;
use crate::ids::home_of;
use crate::plan::Group;

/// One lease, with everything that it takes to go on with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
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
    /// Another site granted it.
    pub adopted: Option<Adopted>,
    /// It is over, and its units are kept back by the policy of their pool.
    pub kept: Option<OnExpiry>,
    /// The principal that asked. Kept beside the rest, so that older files can be read.
    #[serde(skip)]
    pub principal: Option<String>,
}

/// One claim of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPart {
    pub protocol: ProtocolId,
    pub claim: Stamp,
    pub demand: Demand,
    pub counted: bool,
    pub units: Vec<Unit>,
}

/// What a file begins with: its form, which changes with the entries. One of another form is left
/// unread.
const FORM: [u8; 5] = *b"kofm\x02";

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
        idle: Idle,
    },
    /// A lease of a principal.
    HeldBy(Saved, String),
    /// A lease was renewed: when it ends now, in nanoseconds of `CLOCK_BOOTTIME`.
    Renewed(String, u64),
}

impl Entry {
    fn held(saved: Saved) -> Self {
        match saved.principal.clone() {
            Some(principal) => Self::HeldBy(saved, principal),
            None => Self::Held(saved),
        }
    }
}

/// Unused units by protocol.
pub type Idle = BTreeMap<ProtocolId, Vec<Unit>>;

/// What the last life left behind, complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Legacy {
    pub leases: BTreeMap<String, Saved>,
    pub clock: Clock,
    /// The moments of its leases are of the clock of this boot. Otherwise it is not known how much
    /// of a lease is left.
    pub timely: bool,
    /// The units that lay at the site unused; none are known where it crashed.
    idle: Idle,
}

impl Legacy {
    /// The books that the next life joins with.
    pub fn books(&self, groups: &[Group], kept: &dyn Fn(&Saved) -> Option<Kept>) -> Vec<Book> {
        let book = |group: &Group| Book {
            claims: BTreeMap::new(),
            idle: Some(self.idle.get(&group.id()).cloned().unwrap_or_default()),
            ..Book::default()
        };
        let mut books: Vec<Book> = groups.iter().map(book).collect();
        for saved in self.leases.values() {
            let own = |giver| {
                let lease = LeaseKey { giver, fence: saved.fence };
                Adopted { lease, since: 0 }
            };
            let adopted = saved.adopted.or_else(|| home_of(&saved.lease).map(own));
            for part in &saved.parts {
                let place = groups.iter().position(|group| group.id() == part.protocol);
                if let Some(book) = place.and_then(|place| books.get_mut(place)) {
                    let standing = Standing::holding(part.demand.clone(), part.units.clone());
                    let kept = kept(saved);
                    book.claims.insert(part.claim, Standing { adopted, kept, ..standing });
                }
            }
        }
        books
    }
}

/// The file system under a journal: one file that is appended to, or replaced as a whole.
pub trait Disk: fmt::Debug + Send {
    /// The bytes of the file, if there is one.
    fn read(&self) -> Option<Vec<u8>>;
    /// Adds to the file that was put there by the last [`Disk::replace`].
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Has what was appended on the disk when it returns.
    fn sync(&mut self) -> io::Result<()>;
    /// Puts another file in the place of the old one: both or none of the two is there.
    fn replace(&mut self, bytes: &[u8], synced: bool) -> io::Result<()>;
    /// Makes the file unreadable for the next life, as far as the disk permits.
    fn remove(&mut self);
    /// Which run of the machine this is; empty if that is not known.
    fn boot(&self) -> String;
    /// The name of the file, for operators.
    fn path(&self) -> &Path;
}

/// A file in the site's directory.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    writes: Arc<dyn Writes>,
    /// Open for appending.
    file: Option<File>,
}

/// The operations on a file that a full or broken disk refuses.
trait Writes: fmt::Debug + Send + Sync {
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }
}

#[derive(Debug)]
struct RealWrites;

impl Writes for RealWrites {}

impl Directory {
    fn sync_dir(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), |dir| self.writes.sync(&File::open(dir)?))
    }
}

impl Disk for Directory {
    fn read(&self) -> Option<Vec<u8>> {
        fs::read(&self.path).ok()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.file.as_mut().ok_or_else(|| io::Error::other("no file is open"))?;
        self.writes.write(file, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| self.writes.sync(file))
    }

    /// Writes a new file, syncs it, renames it, and syncs the directory.
    fn replace(&mut self, bytes: &[u8], synced: bool) -> io::Result<()> {
        self.file = None;
        let fresh = self.path.with_extension("new");
        fs::remove_file(&fresh).ok();
        let write = || {
            let mut file = File::options().append(true).create_new(true).open(&fresh)?;
            self.writes.write(&mut file, bytes)?;
            if synced {
                self.writes.sync(&file)?;
            }
            fs::rename(&fresh, &self.path)?;
            if synced {
                self.sync_dir()?;
            }
            Ok(file)
        };
        let written: io::Result<File> = write();
        if written.is_err() {
            fs::remove_file(&fresh).ok();
        }
        self.file = Some(written?);
        Ok(())
    }

    fn remove(&mut self) {
        // Either of the two will do.
        if let Ok(old) = File::options().write(true).open(&self.path) {
            old.set_len(0).ok();
        }
        fs::remove_file(&self.path).ok();
        self.sync_dir().ok();
    }

    fn boot(&self) -> String {
        fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// The file of this life.
#[derive(Debug)]
pub struct Journal {
    disk: Box<dyn Disk>,
    /// The file has everything; false while the journal is behind.
    good: bool,
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
    pub fn open(dir: &Path, incarnation: u64, synced: bool) -> io::Result<(Self, Option<Legacy>)> {
        let (path, writes) = (dir.join("leases"), Arc::new(RealWrites));
        Self::open_on(Box::new(Directory { path, writes, file: None }), incarnation, synced)
    }

    /// The same on any disk.
    pub fn open_on(
        disk: Box<dyn Disk>,
        incarnation: u64,
        synced: bool,
    ) -> io::Result<(Self, Option<Legacy>)> {
        let bytes = disk.read();
        let legacy = bytes.and_then(|bytes| read(&bytes, incarnation, &disk.boot()));
        let mut journal = Self { disk, good: false, incarnation, synced, bytes: 0, limit: LONG };
        journal.replace(&journal.all(Vec::new()))?;
        Ok((journal, legacy))
    }

    /// Another life begins in this process, with nothing.
    pub fn begin(&mut self, incarnation: u64) -> io::Result<()> {
        self.incarnation = incarnation;
        self.rewrite(Vec::new())
    }

    pub fn path(&self) -> &Path {
        self.disk.path()
    }

    /// Whether its file lacks something, or says something that is no longer true.
    pub const fn is_behind(&self) -> bool {
        !self.good
    }

    /// Whether most of it is over.
    pub const fn is_long(&self) -> bool {
        self.bytes > self.limit
    }

    /// Puts a file with these leases, which are all there are, in the place of the old one. If
    /// that fails, the old one is removed, and its space may be enough for the new one.
    pub fn rewrite(&mut self, leases: Vec<Saved>) -> io::Result<()> {
        self.good = false;
        let entries = self.all(leases);
        if self.replace(&entries).is_ok() {
            return Ok(());
        }
        // The next life must not read a file that is not true.
        self.disk.remove();
        self.replace(&entries)
    }

    /// A lease is about to be given.
    pub fn held(&mut self, saved: Saved) -> io::Result<()> {
        self.append(&[Entry::held(saved)])
    }

    /// A lease is about to be given back.
    pub fn over(&mut self, lease: &str) -> io::Result<()> {
        self.append(&[Entry::Over(lease.to_owned())])
    }

    /// A lease was renewed. Never synced: after the machine has died, no moment of its clock means
    /// anything, and while it lives, the kernel has what was written.
    pub fn renewed(&mut self, lease: &str, expires: u64) -> io::Result<()> {
        self.write(&[Entry::Renewed(lease.to_owned(), expires)], false)
    }

    pub const fn synced(&self) -> bool {
        self.synced
    }

    /// The site stops, and takes no step any more.
    pub fn close(&mut self, leases: Vec<Saved>, clock: Clock, idle: Idle) -> io::Result<()> {
        let mut entries: Vec<Entry> = leases.into_iter().map(Entry::held).collect();
        entries.push(Entry::Clean { clock, idle });
        self.append(&entries)?;
        self.disk.sync()
    }

    /// Adds entries. After an error the journal is behind.
    fn append(&mut self, entries: &[Entry]) -> io::Result<()> {
        self.write(entries, self.synced)
    }

    fn write(&mut self, entries: &[Entry], synced: bool) -> io::Result<()> {
        let bytes = encode(entries)?;
        if !std::mem::take(&mut self.good) {
            return Err(io::Error::other("the journal is behind"));
        }
        self.disk.append(&bytes)?;
        if synced {
            self.disk.sync()?;
        }
        self.bytes = self.bytes.saturating_add(bytes.len());
        self.good = true;
        Ok(())
    }

    /// Everything that a new file begins with.
    fn all(&self, leases: Vec<Saved>) -> Vec<Entry> {
        let Self { incarnation, synced, .. } = *self;
        let life = Entry::Life { incarnation, boot: self.disk.boot(), synced };
        [life].into_iter().chain(leases.into_iter().map(Entry::held)).collect()
    }

    fn replace(&mut self, entries: &[Entry]) -> io::Result<()> {
        let bytes = whole(entries)?;
        self.disk.replace(&bytes, self.synced)?;
        self.good = true;
        self.bytes = bytes.len();
        self.limit = LONG.max(bytes.len().saturating_mul(4));
        Ok(())
    }
}

/// A file of leases that begins with these entries.
fn whole(entries: &[Entry]) -> io::Result<Vec<u8>> {
    Ok([FORM.to_vec(), encode(entries)?].concat())
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

fn read(bytes: &[u8], incarnation: u64, boot: &str) -> Option<Legacy> {
    let mut entries = entries(bytes.strip_prefix(&FORM)?).into_iter();
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
            Entry::Renewed(lease, expires) => {
                if let Some(saved) = legacy.leases.get_mut(&lease) {
                    saved.expires = expires;
                }
            }
            Entry::Clean { clock, idle } => {
                (legacy.clock, legacy.idle) = (clock, idle);
                clean = true;
            }
            Entry::Life { .. } => return None,
        }
    }
    legacy.timely = same;
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
            adopted: None,
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
        first.close(vec![saved("b")], Clock { time: 3, fence: 4 }, Idle::new()).unwrap();
        let (_, legacy) = Journal::open(&dir, 2, false).unwrap();
        assert!(legacy.as_ref().unwrap().timely);
        assert_eq!(names(legacy), ["b"]);
        // The second life wrote nothing and crashed.
        let (mut third, legacy) = Journal::open(&dir, 3, false).unwrap();
        assert!(legacy.as_ref().unwrap().timely);
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
    fn a_renewal_is_written_without_a_sync_and_moves_the_end() {
        for synced in [false, true] {
            let dir = dir(&format!("renewal-{synced}"));
            let (mut journal, _) = Journal::open(&dir, 1, synced).unwrap();
            journal.held(saved("a")).unwrap();
            journal.held(saved("b")).unwrap();
            journal.renewed("a", 77).unwrap();
            journal.over("b").unwrap();
            // A renewal does not bring back a lease that is over.
            journal.renewed("b", 78).unwrap();
            let (_, legacy) = Journal::open(&dir, 2, synced).unwrap();
            let legacy = legacy.unwrap();
            assert!(legacy.timely);
            let ends: Vec<(&str, u64)> =
                legacy.leases.iter().map(|(id, saved)| (id.as_str(), saved.expires)).collect();
            assert_eq!(ends, [("a", 77)]);
            fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn after_the_machine_died_only_what_was_on_the_disk_counts() {
        let dir = dir("machine");
        for (synced, clean) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut journal, _) = Journal::open(&dir, 1, synced).unwrap();
            journal.held(saved("a")).unwrap();
            if clean {
                journal.close(Vec::new(), Clock::default(), Idle::new()).unwrap();
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

    impl Writes for FaultyDisk {
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

    fn open_on(writes: &Arc<FaultyDisk>, dir: &Path, synced: bool) -> Journal {
        let (path, writes) = (dir.join("leases"), Arc::clone(writes) as Arc<dyn Writes>);
        let disk = Directory { path, writes, file: None };
        Journal::open_on(Box::new(disk), 1, synced).unwrap().0
    }

    #[test]
    fn a_journal_that_is_behind_is_good_again_once_there_is_room() {
        for synced in [false, true] {
            let dir = dir(&format!("behind-{synced}"));
            let disk = Arc::new(FaultyDisk::default());
            let mut journal = open_on(&disk, &dir, synced);
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
        let mut journal = open_on(&disk, &dir, true);
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
