//! The number of a site's life, durable before the first frame.
//!
//! A site that starts again has forgotten everything its peers rely on. The number tells them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};

use kofm_site::bounds::MAX_INCARNATION;

/// The directory where a site keeps its incarnation, locked while the site lives.
#[derive(Debug)]
pub struct StateDir {
    dir: PathBuf,
    incarnation: AtomicU64,
    /// Held open for its lock: two sites with one identity would answer for each other.
    _lock: File,
}

/// Why a site cannot have its identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The file system says no.
    #[error("{path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// Another process uses the directory.
    #[error("{0}: another site runs in this directory")]
    InUse(PathBuf),
    /// The file is not what was written.
    #[error(
        "{0}: it is damaged: it must have the number of the last incarnation and its checksum; the \
         other sites know the number (`kofm members`): write a larger one into the file, alone"
    )]
    Damaged(PathBuf),
}

impl StateDir {
    /// Keeps every other process out of the directory as long as the result lives.
    pub fn lock(dir: &Path) -> Result<File, IdentityError> {
        let path = dir.join("lock");
        let lock = File::create(&path).map_err(|source| IdentityError::Io { path, source })?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| IdentityError::InUse(dir.to_owned()))?;
        Ok(lock)
    }

    /// Takes the next incarnation and makes it durable.
    pub fn open(dir: &Path) -> Result<Self, IdentityError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| IdentityError::Io { path, source }
        };
        fs::create_dir_all(dir).map_err(io(dir))?;
        let lock = Self::lock(dir)?;

        let path = dir.join("incarnation");
        let last = match fs::read_to_string(&path) {
            Ok(text) => parse(&text).ok_or_else(|| IdentityError::Damaged(path.clone()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(io(&path)(error)),
        };
        let state = Self { dir: dir.to_owned(), incarnation: AtomicU64::new(last), _lock: lock };
        state.next()?;
        Ok(state)
    }

    /// Begins another life, durably, and says its number.
    pub fn next(&self) -> Result<u64, IdentityError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| IdentityError::Io { path, source }
        };
        let dir = &self.dir;
        let (path, fresh) = (dir.join("incarnation"), dir.join("incarnation.new"));
        let incarnation = self.incarnation.load(Ordering::SeqCst) + 1;
        let mut file = File::create(&fresh).map_err(io(&fresh))?;
        writeln!(file, "{}", show(incarnation)).map_err(io(&fresh))?;
        file.sync_all().map_err(io(&fresh))?;
        fs::rename(&fresh, &path).map_err(io(&path))?;
        // The rename itself has to survive, too.
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(io(dir))?;
        self.incarnation.store(incarnation, Ordering::SeqCst);
        Ok(incarnation)
    }

    /// The number of this life.
    pub fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::SeqCst)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }
}

impl kofm_site::core::Births for StateDir {
    fn next(&self) -> Result<u64, String> {
        Self::next(self).map_err(|error| error.to_string())
    }
}

/// The number with its checksum: a flipped digit would make the site look older or newer than the
/// others know it.
fn show(incarnation: u64) -> String {
    let text = format!("incarnation {incarnation} crc32");
    format!("{text} {:08x}", crc32fast::hash(text.as_bytes()))
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    // A number alone was written by a person, or by an earlier version.
    let words = text.strip_prefix("incarnation ").and_then(|it| it.split_once(' '));
    let number = words.map_or(text, |it| it.0);
    let number = number.parse().ok().filter(|&n| n > 0 && n < MAX_INCARNATION)?;
    (words.is_none() || show(number) == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_life_has_a_larger_number_and_the_directory_to_itself() {
        let dir = std::env::temp_dir().join(format!("kofm-incarnation-{}", std::process::id()));
        let first = StateDir::open(&dir).unwrap();
        assert_eq!(first.incarnation(), 1);
        assert!(matches!(StateDir::open(&dir), Err(IdentityError::InUse(_))));
        drop(first);
        // A test beside this one may start a process, which has the lock until it is under way.
        let open = || loop {
            match StateDir::open(&dir) {
                Err(IdentityError::InUse(_)) => std::thread::yield_now(),
                opened => return opened,
            }
        };
        assert_eq!(open().unwrap().incarnation(), 2);
        let path = dir.join("incarnation");
        let good = fs::read(&path).unwrap();
        for place in 0..good.len() - 1 {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[place] ^= 1 << bit;
                let flipped = String::from_utf8(bad).ok().and_then(|text| parse(&text));
                assert_eq!(flipped, None, "bit {bit} of byte {place}");
            }
        }
        for bad in ["garbage", "", "incarnation 3", "incarnation 3 crc32 00000000", "-1"] {
            fs::write(&path, bad).unwrap();
            let refused = open().unwrap_err().to_string();
            assert!(refused.contains("write a larger one"), "{refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), bad, "nothing changes");
        }
        fs::write(&path, "7\n").unwrap();
        assert_eq!(open().unwrap().incarnation(), 8);
        fs::remove_dir_all(dir).unwrap();
    }
}
