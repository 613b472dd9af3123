//! What a site has added to semaphores and taken from them, kept over its lives.
//!
//! A lease ends by itself, so a crash may forget it. What was taken from a semaphore is taken: a
//! site that comes back must know how much, or nobody can say what is left. So each P and V is on
//! disk before its client hears of it. A thread of its own writes, many at once where many come.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use kofm_core::PoolId;
use kofm_core::epoch::Tally;

/// A semaphore by its protocol and its number there.
pub type Key = (String, PoolId);

/// What follows when it is written.
pub type After = Box<dyn FnOnce() + Send>;

/// The way to the disk.
pub struct Tallies {
    thread: mpsc::Sender<(Key, Tally, After)>,
    failed: Arc<AtomicBool>,
}

impl fmt::Debug for Tallies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tallies")
    }
}

impl Tallies {
    /// Opens the file; says what earlier lives did, if that is known. The first life did nothing.
    pub fn open(dir: &Path, incarnation: u64) -> io::Result<(Self, Option<BTreeMap<Key, Tally>>)> {
        let (path, fresh) = (dir.join("semaphores"), dir.join("semaphores.new"));
        let known = match fs::read_to_string(&path) {
            Ok(text) => parse(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound && incarnation == 1 => {
                Some(BTreeMap::new())
            }
            Err(_) => None,
        };
        if known.is_none() {
            let path = path.display();
            tracing::error!(%path, "unreadable: what this site took from semaphores is forgotten");
        }
        let mut file = File::create(&fresh)?;
        for ((protocol, id), tally) in known.iter().flatten() {
            writeln!(file, "{}", line(protocol, *id, *tally))?;
        }
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        File::open(dir)?.sync_all()?;
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::Builder::new().name("kofm-tallies".into());
        let failed = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&failed);
        thread.spawn(move || {
            write_all(&mut file, &receiver);
            ended.store(true, Ordering::Relaxed);
        })?;
        Ok((Self { thread: sender, failed }, known))
    }

    /// Writes the new total of a semaphore, then goes on.
    pub fn write(&self, key: Key, tally: Tally, after: After) {
        // The thread ends only when the disk fails; then nobody is told that it worked.
        self.thread.send((key, tally, after)).ok();
    }

    /// Whether the disk has failed: nothing more may be taken or added.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

fn write_all(file: &mut File, list: &mpsc::Receiver<(Key, Tally, After)>) {
    while let Ok(first) = list.recv() {
        let batch: Vec<_> = std::iter::once(first).chain(list.try_iter()).collect();
        let mut text = String::new();
        for ((protocol, id), tally, _) in &batch {
            text += &line(protocol, *id, *tally);
            text.push('\n');
        }
        if let Err(error) = file.write_all(text.as_bytes()).and_then(|()| file.sync_data()) {
            return tracing::error!(%error, "semaphores stand still: cannot write what is taken");
        }
        for (_, _, after) in batch {
            after();
        }
    }
}

/// The sum at the end tells a whole line from one that was cut off.
fn line(protocol: &str, id: PoolId, tally: Tally) -> String {
    let text = format!("{protocol} {} {} {}", id.0, tally.added, tally.taken);
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text} {sum:08x}")
}

/// Later lines count; a last one that was cut off does not. Anything else is damage.
fn parse(text: &str) -> Option<BTreeMap<Key, Tally>> {
    let mut list = BTreeMap::new();
    let (whole, _torn) = text.rsplit_once('\n').unwrap_or(("", text));
    for entry in whole.lines() {
        let mut words = entry.split(' ');
        let protocol = words.next()?.to_owned();
        let id = PoolId(words.next()?.parse().ok()?);
        let tally =
            Tally { added: words.next()?.parse().ok()?, taken: words.next()?.parse().ok()? };
        if line(&protocol, id, tally) != entry {
            return None;
        }
        list.insert((protocol, id), tally);
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_survive_a_crash_and_damage_is_noticed() {
        let dir = std::env::temp_dir().join(format!("kofm-tallies-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let key = ("sem-token".to_owned(), PoolId(1));
        let (tallies, known) = Tallies::open(&dir, 1).unwrap();
        assert_eq!(known, Some(BTreeMap::new()));
        let (sender, receiver) = mpsc::channel();
        for taken in 1..=3 {
            let sender = sender.clone();
            let after = Box::new(move || sender.send(taken).unwrap());
            tallies.write(key.clone(), Tally { added: 7, taken }, after);
        }
        assert_eq!(receiver.iter().take(3).collect::<Vec<_>>(), [1, 2, 3]);
        let path = dir.join("semaphores");
        let mut text = fs::read_to_string(&path).unwrap();
        text += "sem-token 1 7 99";
        fs::write(&path, &text).unwrap();
        let (_, known) = Tallies::open(&dir, 2).unwrap();
        assert_eq!(known, Some(BTreeMap::from([(key, Tally { added: 7, taken: 3 })])));
        fs::write(&path, text.replace("7 2", "7 1")).unwrap();
        assert_eq!(Tallies::open(&dir, 3).unwrap().1, None);
        fs::remove_file(&path).unwrap();
        assert_eq!(Tallies::open(&dir, 4).unwrap().1, None);
        fs::remove_dir_all(dir).unwrap();
    }
}
