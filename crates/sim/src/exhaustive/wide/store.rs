//! Where many worlds are kept: rows of numbers in blocks, found again by a table of their places.
//!
//! A world takes four bytes for each site, four for the world that it was first reached from, and
//! six to twelve in the table. Blocks never move, and the tables of the stores grow one by one, so
//! that growing takes no more memory than what is kept.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// How many stores there are: a power of two.
pub(super) const STORES: usize = 64;
/// Rows of a block: a power of two.
const BLOCK: usize = 1 << 14;
/// No world.
pub(super) const NONE: u32 = u32::MAX;

/// The number of a world by its store and its place there.
pub(super) fn number(store: usize, slot: u32) -> u32 {
    let store = u32::try_from(store).expect("few stores");
    slot.checked_mul(64).and_then(|slot| slot.checked_add(store)).expect("fewer than 2^32 worlds")
}

/// The store of a world and its place there.
pub(super) const fn place(number: u32) -> (usize, u32) {
    (number as usize % STORES, number / 64)
}

/// Some of the worlds.
pub(super) struct Store {
    width: usize,
    /// Rows, each behind the number of the world that it was reached from.
    blocks: Vec<Vec<u32>>,
    count: u32,
    table: HashTable<u32>,
    /// Where the level begins that is being found.
    level: u32,
    /// Steps that lead no further from the start.
    pub(super) returns: u64,
}

impl Store {
    pub(super) const fn new(width: usize) -> Self {
        let table = HashTable::new();
        Self { width, blocks: Vec::new(), count: 0, table, level: 0, returns: 0 }
    }

    /// The store of a world with this hash.
    pub(super) const fn of(hash: u64) -> usize {
        (hash >> 32) as usize % STORES
    }

    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// The worlds of the level that was found last; those that follow are of the next.
    pub(super) const fn begin_level(&mut self) -> std::ops::Range<u32> {
        let level = self.level..self.count;
        self.level = self.count;
        level
    }

    fn entry(&self, slot: u32) -> &[u32] {
        let (block, nth) = (slot as usize / BLOCK, slot as usize % BLOCK);
        &self.blocks[block][nth * (self.width + 1)..][..=self.width]
    }

    pub(super) fn row(&self, slot: u32) -> &[u32] {
        &self.entry(slot)[1..]
    }

    /// The world from which this one was reached.
    pub(super) fn before(&self, slot: u32) -> u32 {
        self.entry(slot)[0]
    }

    /// Adds a world if it is new.
    pub(super) fn add(&mut self, row: &[u32], before: u32) -> bool {
        let (blocks, width) = (&self.blocks, self.width);
        let at = |slot: u32| {
            let (block, nth) = (slot as usize / BLOCK, slot as usize % BLOCK);
            &blocks[block][nth * (width + 1) + 1..][..width]
        };
        let hash = FxBuildHasher.hash_one(row);
        if let Some(&slot) = self.table.find(hash, |&slot| at(slot) == row) {
            self.returns += u64::from(slot < self.level);
            return false;
        }
        let slot = self.count;
        self.table.insert_unique(hash, slot, |&slot| FxBuildHasher.hash_one(at(slot)));
        if (slot as usize).is_multiple_of(BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK * (width + 1)));
        }
        let block = self.blocks.last_mut().expect("it was made with its first row");
        block.push(before);
        block.extend_from_slice(row);
        self.count += 1;
        true
    }
}

/// Worlds that were written down for a store, each behind the one that it follows.
pub(super) struct Candidates {
    width: usize,
    cells: Vec<u32>,
}

impl Candidates {
    pub(super) const fn new(width: usize) -> Self {
        Self { width, cells: Vec::new() }
    }

    pub(super) fn push(&mut self, before: u32, row: &[u32]) {
        self.cells.push(before);
        self.cells.extend_from_slice(row);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[u32])> {
        self.cells.chunks_exact(self.width + 1).map(|entry| (entry[0], &entry[1..]))
    }

    pub(super) fn clear(&mut self) {
        self.cells.clear();
    }
}
