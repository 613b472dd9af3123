//! The audit log: who asked a site for which change, and what came of it.
//!
//! One JSON object per line. Each line has the hash of the line before it, and its own hash covers
//! the rest of the line, so a line that was changed, removed or inserted breaks the chain. The
//! chain goes on over restarts and from file to file. A site without a directory keeps the last
//! entries in memory.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::api::{AuditCheck, AuditEntry};

/// A file that is longer is put away.
const MAX_FILE: u64 = 16 << 20;
/// Files that are kept beside the current one.
const KEPT: u32 = 8;
/// Entries that a site without a directory keeps.
const IN_MEMORY: usize = 10_000;
const NAME: &str = "audit.log";
/// The hash before the first entry.
const START: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The log of one site.
#[derive(Debug)]
pub(crate) struct Audit {
    dir: Option<PathBuf>,
    site: String,
    limit: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: Option<File>,
    bytes: u64,
    /// The number and the hash of the last entry.
    number: u64,
    hash: String,
    /// Lines, if there is no directory.
    memory: VecDeque<String>,
    failed: bool,
}

/// A line: the hash is the last field, and covers the text before it.
#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    entry: AuditEntry,
    prev: String,
}

/// Text after the hashed part of a line.
const HASH: &str = ",\"hash\":\"";

fn digest(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    hash.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// Reads a line and checks it against the one before; says what is wrong with it.
fn read(line: &str, before: Option<(u64, &str)>) -> Result<(AuditEntry, String), &'static str> {
    let (body, hash) = line.rsplit_once(HASH).ok_or("it is not an entry of the log")?;
    let hash = hash.strip_suffix("\"}").ok_or("it is not an entry of the log")?;
    if digest(body) != hash {
        return Err("it was changed: its hash does not match");
    }
    let parsed = serde_json::from_str::<Line>(&format!("{body}}}"));
    let Line { entry, prev } = parsed.map_err(|_| "it is not an entry of the log")?;
    if let Some((number, last)) = before
        && (prev != last || entry.number != number + 1)
    {
        return Err("entries before it were removed or inserted");
    }
    Ok((entry, hash.to_owned()))
}

/// Whether a line can be an entry.
#[cfg(test)]
pub(crate) fn is_entry(line: &str) -> bool {
    read(line, Some((0, START))).is_ok()
}

impl Audit {
    /// Goes on with the log in a directory, if there is one.
    pub(crate) fn open(dir: Option<&Path>, site: &str) -> io::Result<Self> {
        Self::open_with(dir, site, MAX_FILE)
    }

    fn open_with(dir: Option<&Path>, site: &str, limit: u64) -> io::Result<Self> {
        let mut inner = Inner {
            file: None,
            bytes: 0,
            number: 0,
            hash: START.to_owned(),
            memory: VecDeque::new(),
            failed: false,
        };
        if let Some(dir) = dir {
            let path = dir.join(NAME);
            let mut file =
                File::options().read(true).append(true).create(true).mode(0o600).open(&path)?;
            let (last, whole) = last_line(&mut file)?;
            // A line that a crash cut off says nothing.
            file.set_len(whole)?;
            let last = match last {
                Some(line) => Some(line),
                None => match File::open(numbered(dir, 1)) {
                    Ok(mut old) => last_line(&mut old)?.0,
                    Err(_) => None,
                },
            };
            if let Some((entry, hash)) = last.and_then(|line| read(&line, None).ok()) {
                (inner.number, inner.hash) = (entry.number, hash);
            }
            inner.bytes = whole;
            inner.file = Some(file);
        }
        let audit = Self {
            dir: dir.map(Path::to_path_buf),
            site: site.to_owned(),
            limit,
            inner: inner.into(),
        };
        let mut inner = audit.lock();
        if inner.bytes == 0 {
            audit.append(&mut inner, begin());
        }
        drop(inner);
        Ok(audit)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry.
    pub(crate) fn note(&self, entry: AuditEntry) {
        let mut inner = self.lock();
        if inner.bytes > self.limit && inner.file.is_some() {
            self.rotate(&mut inner);
            self.append(&mut inner, begin());
        }
        self.append(&mut inner, entry);
    }

    fn append(&self, inner: &mut Inner, mut entry: AuditEntry) {
        entry.number = inner.number + 1;
        entry.site.clone_from(&self.site);
        let (number, prev) = (entry.number, inner.hash.clone());
        let mut body = serde_json::to_string(&Line { entry, prev }).unwrap_or_default();
        body.pop();
        let hash = digest(&body);
        let line = format!("{body}{HASH}{hash}\"}}\n");
        let written = match &mut inner.file {
            Some(file) => file.write_all(line.as_bytes()),
            None if self.dir.is_some() => Err(io::ErrorKind::NotFound.into()),
            None => {
                inner.memory.push_back(line.trim_end().to_owned());
                if inner.memory.len() > IN_MEMORY {
                    inner.memory.pop_front();
                }
                Ok(())
            }
        };
        match written {
            Ok(()) => {
                inner.bytes += line.len() as u64;
                (inner.number, inner.hash) = (number, hash);
                inner.failed = false;
            }
            Err(error) if !inner.failed => {
                inner.failed = true;
                warn!(%error, "cannot write the audit log; entries are missing from it");
            }
            Err(_) => {}
        }
    }

    /// Puts the file away and begins another one.
    fn rotate(&self, inner: &mut Inner) {
        let Some(dir) = &self.dir else { return };
        for number in (1..KEPT).rev() {
            fs::rename(numbered(dir, number), numbered(dir, number + 1)).ok();
        }
        let path = dir.join(NAME);
        let fresh = fs::rename(&path, numbered(dir, 1)).and_then(|()| {
            File::options().read(true).append(true).create_new(true).mode(0o600).open(&path)
        });
        match fresh {
            Ok(file) => (inner.file, inner.bytes) = (Some(file), 0),
            Err(error) => warn!(%error, "cannot begin another audit log"),
        }
    }

    /// The files, the oldest first, as far as they exist.
    fn files(&self) -> Vec<PathBuf> {
        let Some(dir) = &self.dir else { return Vec::new() };
        let old = (1..=KEPT).rev().map(|number| numbered(dir, number));
        old.chain([dir.join(NAME)]).filter(|path| path.exists()).collect()
    }

    /// Calls `each` with every line, its file and its place in the file.
    fn lines(&self, mut each: impl FnMut(&str, usize, &str)) -> io::Result<()> {
        if self.dir.is_none() {
            let lines: Vec<String> = self.lock().memory.iter().cloned().collect();
            lines.iter().enumerate().for_each(|(place, line)| each("memory", place, line));
            return Ok(());
        }
        for path in self.files() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            for (place, line) in BufReader::new(File::open(&path)?).lines().enumerate() {
                each(&name, place, &line?);
            }
        }
        Ok(())
    }

    /// The last entries that `select` accepts, oldest first.
    pub(crate) fn entries(
        &self,
        limit: usize,
        select: impl Fn(&AuditEntry) -> bool,
    ) -> io::Result<Vec<AuditEntry>> {
        let mut list = VecDeque::new();
        self.lines(|_, _, line| {
            let Ok(Line { entry, .. }) = serde_json::from_str::<Line>(line) else { return };
            if select(&entry) {
                list.push_back(entry);
                if list.len() > limit {
                    list.pop_front();
                }
            }
        })?;
        Ok(list.into())
    }

    /// Checks the chain from the oldest entry that is kept to the last one that was written.
    pub(crate) fn verify(&self) -> io::Result<AuditCheck> {
        // Entries that are written meanwhile are not missed.
        let (number, hash) = {
            let inner = self.lock();
            (inner.number, inner.hash.clone())
        };
        let mut check = AuditCheck { entries: 0, first: 0, verified: true, fault: None };
        let mut before: Option<(u64, String)> = None;
        let mut reached = false;
        let in_memory = self.dir.is_none();
        self.lines(|file, place, line| {
            if check.fault.is_some() {
                return;
            }
            let last = before.as_ref().map(|(number, hash)| (*number, hash.as_str()));
            let wrong = match read(line, last) {
                Ok((entry, _)) if place == 0 && entry.verb != BEGIN && !in_memory => {
                    "entries before it were removed: a file must start with `begin`"
                }
                Ok((entry, own)) => {
                    if check.entries == 0 {
                        check.first = entry.number;
                    }
                    check.entries += 1;
                    reached |= entry.number == number && own == hash;
                    before = Some((entry.number, own));
                    return;
                }
                Err(why) => why,
            };
            check.fault = Some(format!("{file} line {}: {wrong}", place + 1));
        })?;
        if check.fault.is_none() && !reached {
            let text = format!("entry {number}, the last one that the site wrote, is missing");
            check.fault = Some(text);
        }
        check.verified = check.fault.is_none();
        Ok(check)
    }
}

/// The verb of the first entry of each file.
const BEGIN: &str = "begin";

fn begin() -> AuditEntry {
    entry(None, "", BEGIN, NAME, Vec::new(), "ok")
}

fn numbered(dir: &Path, number: u32) -> PathBuf {
    dir.join(format!("audit.{number}.log"))
}

/// The last whole line of a file, and the length of all whole lines.
fn last_line(file: &mut File) -> io::Result<(Option<String>, u64)> {
    let length = file.seek(SeekFrom::End(0))?;
    // Lines are short: names and addresses.
    let start = length.saturating_sub(256 << 10);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(file, &mut bytes)?;
    let Some(end) = bytes.iter().rposition(|&byte| byte == b'\n') else { return Ok((None, 0)) };
    let whole = start + end as u64 + 1;
    let begin = bytes[..end].iter().rposition(|&byte| byte == b'\n').map_or(0, |it| it + 1);
    Ok((Some(String::from_utf8_lossy(&bytes[begin..end]).into_owned()), whole))
}

/// An entry of now.
pub(crate) fn entry(
    principal: Option<&str>,
    address: &str,
    verb: &str,
    object: &str,
    pools: Vec<String>,
    result: &str,
) -> AuditEntry {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    AuditEntry {
        number: 0,
        at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        site: String::new(),
        principal: principal.map(str::to_owned),
        address: address.to_owned(),
        verb: verb.to_owned(),
        object: object.to_owned(),
        pools,
        result: result.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("kofm-audit-{name}-{}", std::process::id()));
        fs::remove_dir_all(&dir).ok();
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn acquired(object: &str) -> AuditEntry {
        entry(Some("ci"), "127.0.0.1:5", "acquire", object, vec![object.into()], "ok")
    }

    #[test]
    fn a_line_that_is_changed_removed_inserted_or_cut_off_is_found() {
        let dir = temp("chain");
        let path = dir.join(NAME);
        let audit = Audit::open(Some(&dir), "a").unwrap();
        for number in 0..6 {
            audit.note(acquired(&format!("p{number}")));
        }
        assert_eq!(audit.verify().unwrap().entries, 7);
        assert!(audit.verify().unwrap().verified);
        let good = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = good.lines().collect();
        let without = |skip: &[usize]| {
            let kept = lines.iter().enumerate().filter(|it| !skip.contains(&it.0));
            kept.map(|it| format!("{}\n", it.1)).collect::<Vec<_>>().concat()
        };
        let mut twice = lines.clone();
        twice.insert(3, lines[3]);
        let mut swapped = lines.clone();
        swapped.swap(2, 4);
        for (what, text) in [
            ("changed", good.replace("\"p3\"", "\"p9\"")),
            ("removed", without(&[3])),
            ("removed first", without(&[0])),
            ("removed first two", without(&[0, 1])),
            ("removed last", without(&[6])),
            ("inserted", twice.join("\n") + "\n"),
            ("swapped", swapped.join("\n") + "\n"),
            ("emptied", String::new()),
            ("nonsense", good.clone() + "x\n"),
        ] {
            fs::write(&path, text).unwrap();
            let check = audit.verify().unwrap();
            assert!(!check.verified && check.fault.is_some(), "{what}");
        }
        fs::write(&path, &good).unwrap();
        assert!(audit.verify().unwrap().verified);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_chain_goes_on_over_restarts_torn_lines_and_files() {
        let dir = temp("files");
        for life in 0..3 {
            let audit = Audit::open_with(Some(&dir), "a", 2000).unwrap();
            for number in 0..30 {
                audit.note(acquired(&format!("p{life}-{number}")));
            }
            let check = audit.verify().unwrap();
            assert!(check.verified, "{check:?}");
            drop(audit);
            let mut file = File::options().append(true).open(dir.join(NAME)).unwrap();
            file.write_all(b"{\"n\":").unwrap();
        }
        let audit = Audit::open_with(Some(&dir), "a", 2000).unwrap();
        let check = audit.verify().unwrap();
        assert!(check.verified && check.first > 1, "{check:?}");
        assert!(dir.join("audit.8.log").exists() && !dir.join("audit.9.log").exists());
        let list = audit.entries(5, |it| it.object.starts_with("p2")).unwrap();
        let objects: Vec<&str> = list.iter().map(|it| it.object.as_str()).collect();
        assert_eq!(objects, ["p2-25", "p2-26", "p2-27", "p2-28", "p2-29"]);
        fs::remove_file(dir.join("audit.4.log")).unwrap();
        assert!(!audit.verify().unwrap().verified);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_site_without_a_directory_keeps_the_last_entries() {
        let audit = Audit::open(None, "a").unwrap();
        for number in 0..IN_MEMORY + 10 {
            audit.note(acquired(&number.to_string()));
        }
        let list = audit.entries(1, |_| true).unwrap();
        assert_eq!(list[0].object, (IN_MEMORY + 9).to_string());
        assert!(audit.verify().unwrap().verified);
    }
}
