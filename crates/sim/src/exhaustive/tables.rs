//! Where the worlds are kept: each distinct part once, and rows of their numbers.

use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// Numbers for things that recur.
pub(super) struct Interner<T> {
    pub(super) items: Vec<T>,
    index: HashTable<u32>,
    /// The items of all interners that give the same numbers, if there are several.
    shared: Option<Arc<Mutex<Shared<T>>>>,
}

/// All items of several interners.
pub(super) struct Shared<T> {
    items: Vec<T>,
    index: HashTable<u32>,
}

/// The number of an item, if it has one.
fn find<T: Hash + Eq>(items: &[T], index: &HashTable<u32>, hash: u64, item: &T) -> Option<u32> {
    index.find(hash, |&i| items[i as usize] == *item).copied()
}

fn add<T: Hash + Eq>(items: &mut Vec<T>, index: &mut HashTable<u32>, hash: u64, item: T) -> u32 {
    let new = u32::try_from(items.len()).expect("fewer than 2^32 distinct parts");
    items.push(item);
    index.insert_unique(hash, new, |&i| FxBuildHasher.hash_one(&items[i as usize]));
    new
}

impl<T: Hash + Eq + Clone> Interner<T> {
    pub(super) const fn new() -> Self {
        Self { items: Vec::new(), index: HashTable::new(), shared: None }
    }

    /// Gives the same numbers as all others that share this.
    pub(super) const fn sharing(shared: Arc<Mutex<Shared<T>>>) -> Self {
        Self { items: Vec::new(), index: HashTable::new(), shared: Some(shared) }
    }

    pub(super) fn number(&mut self, item: T) -> u32 {
        let hash = FxBuildHasher.hash_one(&item);
        if let Some(i) = find(&self.items, &self.index, hash, &item) {
            return i;
        }
        let Some(shared) = self.shared.clone() else {
            return add(&mut self.items, &mut self.index, hash, item);
        };
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Shared { items, index } = &mut *shared;
        let known = find(items, index, hash, &item);
        let number = known.unwrap_or_else(|| add(items, index, hash, item));
        self.take_over(items);
        number
    }

    /// Learns what others have numbered.
    pub(super) fn sync(&mut self) {
        if let Some(shared) = self.shared.clone() {
            self.take_over(&shared.lock().unwrap_or_else(PoisonError::into_inner).items);
        }
    }

    fn take_over(&mut self, items: &[T]) {
        for item in &items[self.items.len()..] {
            let hash = FxBuildHasher.hash_one(item);
            add(&mut self.items, &mut self.index, hash, item.clone());
        }
    }
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self { items: Vec::new(), index: HashTable::new() }
    }
}

/// All worlds seen, as rows of numbers in one long vector.
pub(super) struct Rows {
    pub(super) width: usize,
    pub(super) cells: Vec<u32>,
    pub(super) index: HashTable<u32>,
    /// For each row, the row it was first reached from and what happened.
    pub(super) origin: Vec<(u32, Code)>,
}

impl Rows {
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.origin.len()).expect("fewer than 2^32 worlds")
    }

    pub(super) fn row(&self, i: u32) -> &[u32] {
        &self.cells[i as usize * self.width..][..self.width]
    }

    fn find(&self, hash: u64, row: &[u32]) -> Option<u32> {
        self.index.find(hash, |&i| self.row(i) == row).copied()
    }

    /// Whether a row is there.
    pub(super) fn has(&self, row: &[u32]) -> bool {
        self.find(FxBuildHasher.hash_one(row), row).is_some()
    }

    /// Adds a row; says its number, and whether it is new.
    pub(super) fn add(&mut self, row: &[u32], origin: (u32, Code)) -> (u32, bool) {
        let hash = FxBuildHasher.hash_one(row);
        if let Some(i) = self.find(hash, row) {
            return (i, false);
        }
        let new = self.count();
        self.cells.extend_from_slice(row);
        self.origin.push(origin);
        let (cells, width) = (&self.cells, self.width);
        let at = |i: u32| &cells[i as usize * width..][..width];
        self.index.insert_unique(hash, new, |&i| FxBuildHasher.hash_one(at(i)));
        (new, true)
    }
}

/// An action in 32 bits: a link, or a site and the number of its move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Code(pub(super) u32);

impl Code {
    const LINK: u32 = 1 << 31;
    /// Bits for the number of a link: sixty-four sites have fewer.
    const LINKS: u32 = 12;

    /// The message at this place of a link arrives.
    pub(super) fn link(i: usize, place: usize) -> Self {
        let (i, place) = (u32::try_from(i), u32::try_from(place));
        let (i, place) = (i.expect("few links"), place.expect("few messages"));
        assert!(i < 1 << Self::LINKS && place < 1 << (31 - Self::LINKS), "a small system");
        Self(Self::LINK | place << Self::LINKS | i)
    }

    pub(super) fn local(site: usize, number: usize) -> Self {
        let site = u32::try_from(site).expect("few sites");
        Self(site << 16 | u32::try_from(number).expect("few moves"))
    }

    /// The link and the place on it, if a message arrives.
    pub(super) const fn delivery(self) -> Option<(usize, usize)> {
        let rest = self.0 & !Self::LINK;
        let link = (rest & ((1 << Self::LINKS) - 1)) as usize;
        if self.0 == rest { None } else { Some((link, (rest >> Self::LINKS) as usize)) }
    }

    /// The site and the number of its move, if no message arrives.
    pub(super) const fn own(self) -> (usize, usize) {
        ((self.0 >> 16) as usize, (self.0 & 0xFFFF) as usize)
    }
}
