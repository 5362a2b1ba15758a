//! The state of a view in snapshots: its groups and, with joins, the records that it keeps of its
//! topics.
//!
//! A snapshot has the state of one instant, and is written in portions while the state changes. So
//! a group or a record that changes before it was written is first copied, as a scan does with rows
//! (`scan.rs`). The items are written in their order: an item before the next one was written.

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;
use std::hash::Hash;

/// Bytes of a set for each item.
const KNOWN_SIZE: usize = 24;

/// The items of one kind on their way into a snapshot.
#[derive(Debug)]
pub(crate) struct Saving<K> {
    /// The items before it were written.
    next: K,
    /// Later items that changed since the snapshot began. They were copied, or they are new.
    known: HashSet<K, FxBuildHasher>,
    copies: Vec<u8>,
    copy_count: u32,
}

impl<K: Copy + Default + Hash + Ord> Default for Saving<K> {
    fn default() -> Self {
        Saving { next: K::default(), known: HashSet::default(), copies: Vec::new(), copy_count: 0 }
    }
}

impl<K: Copy + Default + Hash + Ord> Saving<K> {
    /// An item changes. `copy` appends it, and returns whether it is an item of the snapshot; it is
    /// not when it is new.
    pub fn before_change(&mut self, item: K, copy: impl FnOnce(&mut Vec<u8>) -> bool) {
        if item >= self.next && self.known.insert(item) && copy(&mut self.copies) {
            self.copy_count += 1;
        }
    }

    /// The next item to look at.
    pub fn next(&self) -> K {
        self.next
    }

    /// All items before this one were written.
    pub fn advance(&mut self, next: K) {
        self.next = next;
    }

    /// Whether an item was copied, or is new.
    pub fn is_known(&self, item: K) -> bool {
        self.known.contains(&item)
    }

    /// Appends the copies. Returns their number.
    pub fn take_copies(&mut self, out: &mut Vec<u8>) -> u32 {
        out.append(&mut self.copies);
        std::mem::take(&mut self.copy_count)
    }

    /// The bytes that it holds.
    pub fn size(&self) -> usize {
        self.copies.len() + self.known.len() * KNOWN_SIZE
    }
}
