//! What a site has added to semaphores and taken from them, kept over its lives.
//!
//! A lease ends by itself, so a crash may forget it. A P or V does not.
//! Members keep that for each other; where too many of them are lost at once, this file says what
//! this site did. So each P and V is on disk before its client hears of it. A thread of its own
//! writes, many at once where many come.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use kofm_core::PoolId;
use kofm_core::epoch::{Account, Named, Tally};

/// A semaphore by its protocol and its number there.
pub type Key = (String, PoolId);

/// A line of the file: the new sums of a semaphore.
#[derive(Debug)]
pub struct Entry {
    pub key: Key,
    pub tally: Tally,
    pub what: What,
}

/// How the sums came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// By an operation without an id.
    Nameless,
    /// By one with an id.
    Named(Named),
    /// The cluster's record says so: operations that were written and are not in it are void.
    Record,
}

/// What follows when it is written.
pub type After = Box<dyn FnOnce() + Send>;

/// The way to the disk.
pub struct Tallies {
    thread: mpsc::Sender<(Entry, After)>,
    failed: Arc<AtomicBool>,
}

impl fmt::Debug for Tallies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tallies")
    }
}

impl Tallies {
    /// Opens the file; says what earlier lives did, if that is known. Where there is no file, the
    /// disk may have been emptied: what this site did is for the others to say.
    pub fn open(dir: &Path) -> io::Result<(Self, Option<BTreeMap<Key, Account>>)> {
        let (path, fresh) = (dir.join("semaphores"), dir.join("semaphores.new"));
        let known = match fs::read_to_string(&path) {
            Ok(text) => Some(parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(_) => Some(None),
        };
        if known == Some(None) {
            let path = path.display();
            tracing::error!(%path, "unreadable: what this site took from semaphores is forgotten");
        }
        let known = known.flatten();
        let mut file = File::create(&fresh)?;
        for (key, account) in known.iter().flatten() {
            let named = account.named.iter().map(|it| What::Named(*it));
            for what in std::iter::once(What::Record).chain(named) {
                writeln!(
                    file,
                    "{}",
                    line(&Entry { key: key.clone(), tally: account.tally, what })
                )?;
            }
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
    pub fn write(&self, entry: Entry, after: After) {
        // The thread ends only when the disk fails; then nobody is told that it worked.
        self.thread.send((entry, after)).ok();
    }

    /// Whether the disk has failed: nothing more may be taken or added.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

fn write_all(file: &mut File, list: &mpsc::Receiver<(Entry, After)>) {
    while let Ok(first) = list.recv() {
        let batch: Vec<_> = std::iter::once(first).chain(list.try_iter()).collect();
        let mut text = String::new();
        for (entry, _) in &batch {
            text += &line(entry);
            text.push('\n');
        }
        if let Err(error) = file.write_all(text.as_bytes()).and_then(|()| file.sync_data()) {
            return tracing::error!(%error, "semaphores stand still: cannot write what is taken");
        }
        for (_, after) in batch {
            after();
        }
    }
}

/// The sum at the end tells a whole line from one that was cut off.
fn line(entry: &Entry) -> String {
    let Entry { key: (protocol, id), tally, what } = entry;
    let what = match what {
        What::Nameless => "-".to_owned(),
        What::Record => "=".to_owned(),
        What::Named(Named { id, change }) => format!("{id:x}:{change}"),
    };
    let text = format!("{protocol} {} {} {} {what}", id.0, tally.added, tally.taken);
    let sum = crc32fast::hash(text.as_bytes());
    format!("{text} {sum:08x}")
}

fn entry(text: &str) -> Option<Entry> {
    let mut words = text.split(' ');
    let key = (words.next()?.to_owned(), PoolId(words.next()?.parse().ok()?));
    let tally = Tally { added: words.next()?.parse().ok()?, taken: words.next()?.parse().ok()? };
    let what = match words.next()? {
        "-" => What::Nameless,
        "=" => What::Record,
        named => {
            let (id, change) = named.split_once(':')?;
            let id = u128::from_str_radix(id, 16).ok()?;
            What::Named(Named { id, change: change.parse().ok()? })
        }
    };
    let entry = Entry { key, tally, what };
    (line(&entry) == text).then_some(entry)
}

/// Later lines count; a last one that was cut off does not. Anything else is damage.
fn parse(text: &str) -> Option<BTreeMap<Key, Account>> {
    let mut list: BTreeMap<Key, Account> = BTreeMap::new();
    let (whole, _torn) = text.rsplit_once('\n').unwrap_or(("", text));
    for text in whole.lines() {
        let Entry { key, tally, what } = entry(text)?;
        let account = list.entry(key).or_default();
        account.tally = tally;
        match what {
            What::Nameless => {}
            What::Named(named) => drop(account.remember(named)),
            What::Record => account.named.clear(),
        }
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
        let named = |taken: u64| Named { id: u128::MAX - u128::from(taken), change: -1 };
        let (tallies, known) = Tallies::open(&dir).unwrap();
        assert_eq!(known, None);
        let (sender, receiver) = mpsc::channel();
        for taken in 1..=3 {
            let sender = sender.clone();
            let after = Box::new(move || sender.send(taken).unwrap());
            let (key, tally) = (key.clone(), Tally { added: 7, taken });
            let what = if taken == 2 { What::Nameless } else { What::Named(named(taken)) };
            tallies.write(Entry { key, tally, what }, after);
        }
        assert_eq!(receiver.iter().take(3).collect::<Vec<_>>(), [1, 2, 3]);
        let path = dir.join("semaphores");
        let mut text = fs::read_to_string(&path).unwrap();
        text += "sem-token 1 7 99";
        fs::write(&path, &text).unwrap();
        let (_, known) = Tallies::open(&dir).unwrap();
        let account =
            Account { tally: Tally { added: 7, taken: 3 }, named: vec![named(1), named(3)] };
        let all = BTreeMap::from([(key.clone(), account)]);
        assert_eq!(known, Some(all.clone()));
        // The file that it has rewritten says the same.
        let (tallies, known) = Tallies::open(&dir).unwrap();
        assert_eq!(known, Some(all));
        let (sender, receiver) = mpsc::channel();
        let tally = Tally { added: 7, taken: 2 };
        let after = Box::new(move || sender.send(()).unwrap());
        tallies.write(Entry { key: key.clone(), tally, what: What::Record }, after);
        receiver.recv().unwrap();
        let account = Account { tally, named: Vec::new() };
        assert_eq!(Tallies::open(&dir).unwrap().1, Some(BTreeMap::from([(key, account)])));
        fs::write(&path, text.replace("7 2", "7 1")).unwrap();
        assert_eq!(Tallies::open(&dir).unwrap().1, None);
        fs::remove_file(&path).unwrap();
        assert_eq!(Tallies::open(&dir).unwrap().1, None);
        fs::remove_dir_all(dir).unwrap();
    }
}
