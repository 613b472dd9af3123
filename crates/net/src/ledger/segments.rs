//! The files of the ledger: segments that are written once, read in order, and dropped oldest
//! first.
//!
//! A segment is a row of blocks, each with its length and a checksum. The one that is written now
//! ends in `.open`; it gets the times of its first and last row as a name when it is full. A block
//! that was not written whole is not read, and neither is what follows it. Without a directory the
//! segments are kept in memory.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::rows::{Decoder, Encoder, View};
use crate::api::Happening;

/// A segment that is longer is ended.
const MAX_SEGMENT: usize = 4 << 20;
/// A block that is longer is ended.
const MAX_BLOCK: usize = 64 << 10;
/// A block that says that it is longer was not written by a site.
const MAX_READ: usize = 16 << 20;
/// What a site without a directory keeps, and the length of its segments.
const IN_MEMORY: u64 = 16 << 20;
const MEMORY_SEGMENT: usize = 1 << 20;
/// Length and checksum before a block.
const HEAD: usize = 8;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub bytes: u64,
    pub age: Duration,
}

/// A part of the ledger, as it was when a question came.
#[derive(Clone)]
pub(super) struct Segment {
    number: u64,
    body: Body,
    bytes: u64,
    pub first_ms: u64,
    pub last_ms: u64,
}

#[derive(Clone)]
enum Body {
    File(PathBuf),
    Memory(Arc<Vec<u8>>),
}

/// The segment that is written now.
struct Current {
    number: u64,
    file: Option<File>,
    memory: Vec<u8>,
    bytes: u64,
    times: Option<(u64, u64)>,
    encoder: Encoder,
}

/// All segments of one site.
pub(super) struct Store {
    dir: Option<PathBuf>,
    limits: Limits,
    sealed: VecDeque<Segment>,
    current: Option<Current>,
    next: u64,
    /// The disk did not take what was written last.
    failing: bool,
    unsynced: bool,
}

impl Store {
    /// Opens the ledger in a directory, and ends the segment that a crash left open.
    pub(super) fn open(dir: Option<&Path>, limits: Limits) -> io::Result<Self> {
        let dir = dir.map(|dir| dir.join("ledger"));
        let mut sealed = Vec::new();
        if let Some(dir) = &dir {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            for entry in fs::read_dir(dir)? {
                sealed.extend(recover(&entry?.path())?);
            }
        }
        sealed.sort_by_key(|segment| segment.number);
        let most = if dir.is_some() { u64::MAX } else { IN_MEMORY };
        let limits = Limits { bytes: limits.bytes.min(most), ..limits };
        let next = sealed.last().map_or(1, |segment| segment.number + 1);
        let sealed = sealed.into();
        Ok(Self { dir, limits, sealed, current: None, next, failing: false, unsynced: false })
    }

    /// Writes rows; says how many were lost.
    pub(super) fn append(&mut self, rows: &[Happening], now_ms: u64) -> u64 {
        let mut rest = rows;
        while !rest.is_empty() {
            match self.block(rest) {
                Ok(written) => {
                    rest = &rest[written..];
                    if std::mem::take(&mut self.failing) {
                        info!("the history is written to the disk again");
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        warn!(
                            %error,
                            "cannot write the history to the disk: it has a gap until the disk \
                             takes it; make room or repair it"
                        );
                    }
                    // What was written before stays readable.
                    self.seal();
                    return rest.len() as u64;
                }
            }
            let full = if self.dir.is_some() { MAX_SEGMENT } else { MEMORY_SEGMENT } as u64;
            if self.current.as_ref().is_some_and(|it| it.bytes >= full) {
                self.seal();
            }
        }
        self.drop_old(now_ms);
        0
    }

    /// Writes one block with some of the rows, at least one; says how many.
    fn block(&mut self, rows: &[Happening]) -> io::Result<usize> {
        if self.current.is_none() {
            let file = match &self.dir {
                Some(dir) => Some(create(&dir.join(format!("{:08}.open", self.next)))?),
                None => None,
            };
            self.current = Some(Current {
                number: self.next,
                file,
                memory: Vec::new(),
                bytes: 0,
                times: None,
                encoder: Encoder::default(),
            });
            self.next += 1;
        }
        let Some(current) = &mut self.current else { return Ok(rows.len()) };
        let mut block = vec![0; HEAD];
        let mut written = 0;
        for row in rows {
            current.encoder.put(row, &mut block);
            written += 1;
            if block.len() >= MAX_BLOCK {
                break;
            }
        }
        let length = u32::try_from(block.len() - HEAD).unwrap_or(u32::MAX);
        let sum = crc32fast::hash(&block[HEAD..]);
        block[..4].copy_from_slice(&length.to_le_bytes());
        block[4..HEAD].copy_from_slice(&sum.to_le_bytes());
        match &mut current.file {
            Some(file) => file.write_all(&block)?,
            None => current.memory.extend_from_slice(&block),
        }
        current.bytes += block.len() as u64;
        for row in &rows[..written] {
            let (first, last) = current.times.unwrap_or((row.at_ms, row.at_ms));
            current.times = Some((first.min(row.at_ms), last.max(row.at_ms)));
        }
        self.unsynced = true;
        Ok(written)
    }

    /// Waits until the disk has what was written.
    pub(super) fn sync(&mut self) {
        if std::mem::take(&mut self.unsynced)
            && let Some(file) = self.current.as_ref().and_then(|it| it.file.as_ref())
            && let Err(error) = file.sync_data()
        {
            warn!(%error, "the disk does not keep the history");
        }
    }

    pub(super) const fn is_synced(&self) -> bool {
        !self.unsynced
    }

    /// Ends the segment that is written now.
    pub(super) fn seal(&mut self) {
        self.sync();
        let Some(current) = self.current.take() else { return };
        let Some((first_ms, last_ms)) = current.times else {
            // Nothing was written whole.
            if let Some(dir) = &self.dir {
                fs::remove_file(dir.join(format!("{:08}.open", current.number))).ok();
            }
            return;
        };
        let body = match &self.dir {
            Some(dir) => {
                let open = dir.join(format!("{:08}.open", current.number));
                let name = dir.join(sealed_name(current.number, first_ms, last_ms));
                let renamed = fs::rename(&open, &name);
                Body::File(if renamed.is_ok() { name } else { open })
            }
            None => Body::Memory(Arc::new(current.memory)),
        };
        let (number, bytes) = (current.number, current.bytes);
        self.sealed.push_back(Segment { number, body, bytes, first_ms, last_ms });
    }

    /// Drops the oldest segments while there is too much, or they are too old.
    fn drop_old(&mut self, now_ms: u64) {
        let age = u64::try_from(self.limits.age.as_millis()).unwrap_or(u64::MAX);
        let mut bytes = self.bytes();
        while let Some(oldest) = self.sealed.front() {
            if bytes <= self.limits.bytes && oldest.last_ms >= now_ms.saturating_sub(age) {
                break;
            }
            if let Body::File(path) = &oldest.body
                && let Err(error) = fs::remove_file(path)
            {
                warn!(path = %path.display(), %error, "cannot remove old history");
            }
            bytes = bytes.saturating_sub(oldest.bytes);
            self.sealed.pop_front();
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let sealed: u64 = self.sealed.iter().map(|segment| segment.bytes).sum();
        sealed + self.current.as_ref().map_or(0, |it| it.bytes)
    }

    /// All segments with what has been written up to now, oldest first.
    pub(super) fn segments(&self) -> Vec<Segment> {
        let mut list: Vec<Segment> = self.sealed.iter().cloned().collect();
        if let Some(current) = &self.current
            && let Some((first_ms, last_ms)) = current.times
        {
            let body = match &self.dir {
                Some(dir) => Body::File(dir.join(format!("{:08}.open", current.number))),
                None => Body::Memory(Arc::new(current.memory.clone())),
            };
            let (number, bytes) = (current.number, current.bytes);
            list.push(Segment { number, body, bytes, first_ms, last_ms });
        }
        list
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn sealed_name(number: u64, first_ms: u64, last_ms: u64) -> String {
    format!("{number:08}-{first_ms}-{last_ms}.seg")
}

/// A segment by the name of its file; other files are left alone. One that was not ended is read.
fn recover(path: &Path) -> io::Result<Option<Segment>> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let bytes = fs::metadata(path)?.len();
    if let Some(parts) = name.strip_suffix(".seg") {
        let numbers: Option<Vec<u64>> = parts.split('-').map(|it| it.parse().ok()).collect();
        let Some([number, first_ms, last_ms]) = numbers.as_deref() else { return Ok(None) };
        let body = Body::File(path.to_owned());
        let (number, first_ms, last_ms) = (*number, *first_ms, *last_ms);
        return Ok(Some(Segment { number, body, bytes, first_ms, last_ms }));
    }
    let Some(number) = name.strip_suffix(".open").and_then(|it| it.parse::<u64>().ok()) else {
        return Ok(None);
    };
    let body = Body::File(path.to_owned());
    let mut segment = Segment { number, body, bytes, first_ms: u64::MAX, last_ms: 0 };
    let (mut first_ms, mut last_ms) = (u64::MAX, 0);
    segment.read(|view| {
        first_ms = first_ms.min(view.at_ms);
        last_ms = last_ms.max(view.at_ms);
    });
    if first_ms > last_ms {
        fs::remove_file(path)?;
        return Ok(None);
    }
    let sealed = path.with_file_name(sealed_name(number, first_ms, last_ms));
    fs::rename(path, &sealed)?;
    (segment.body, segment.first_ms, segment.last_ms) = (Body::File(sealed), first_ms, last_ms);
    Ok(Some(segment))
}

impl Segment {
    /// Reads all rows, up to the first block that is not whole.
    pub(super) fn read(&self, mut each: impl FnMut(View<'_>)) {
        let bytes = match &self.body {
            Body::Memory(bytes) => Arc::clone(bytes),
            Body::File(path) => match self.load(path) {
                Ok(bytes) => Arc::new(bytes),
                Err(error) => {
                    return warn!(path = %path.display(), %error, "cannot read history");
                }
            },
        };
        let mut decoder = Decoder::default();
        let mut rest = bytes.as_slice();
        while let Some((head, body)) = rest.split_at_checked(HEAD) {
            let number = |range: std::ops::Range<usize>| {
                head[range].try_into().map_or(0, u32::from_le_bytes)
            };
            let (length, sum) = (number(0..4) as usize, number(4..HEAD));
            let Some((block, next)) = body.split_at_checked(length) else { break };
            let good = length <= MAX_READ && crc32fast::hash(block) == sum;
            if !good || decoder.block(block, &mut each).is_err() {
                break;
            }
            rest = next;
        }
        if !rest.is_empty() {
            warn!(segment = self.number, bytes = rest.len(), "a part of the history is damaged");
        }
    }

    /// The bytes of a file, as many as it had when the question came. It may have been ended, and
    /// so renamed, since.
    fn load(&self, path: &Path) -> io::Result<Vec<u8>> {
        let most = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        let read = |path: &Path| -> io::Result<Vec<u8>> {
            let mut bytes = fs::read(path)?;
            bytes.truncate(most);
            Ok(bytes)
        };
        match read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let prefix = format!("{:08}-", self.number);
                for entry in fs::read_dir(path.parent().unwrap_or(path))? {
                    let entry = entry?;
                    if entry.file_name().to_string_lossy().starts_with(&prefix) {
                        return read(&entry.path());
                    }
                }
                // Dropped meanwhile, because it was too old.
                Ok(Vec::new())
            }
            other => other,
        }
    }
}
