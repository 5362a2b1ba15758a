//! The state of a join for each topic: its records, and for each pair of topics the records by
//! their key of the join.
//!
//! An entry is a key of a join. It has two lists, of the records of the two topics that have the
//! key. A record has its place in the list of each join, so it is added, removed and found again in
//! constant time. Nothing moves when the memory grows.

use hashbrown::HashTable;
use quire_types::Timestamp;

/// No record, or no entry.
pub(super) const NONE: u32 = u32::MAX;

/// The sides of a join: the places of their lists in an entry.
pub(super) const PARENT: usize = 0;
pub(super) const CHILD: usize = 1;

const PAGE: usize = 1024;
const MAPS: usize = 256;

/// The hash of a key.
pub(super) type Hash = [u64; 2];

pub(super) fn hash_of(hash: u128) -> Hash {
    [(hash >> 64) as u64, hash as u64]
}

/// Items at fixed places.
#[derive(Debug)]
struct Pages<T> {
    pages: Vec<Box<[T]>>,
    free: Vec<u32>,
    end: u32,
}

impl<T: Clone + Default> Pages<T> {
    fn new() -> Self {
        Pages { pages: Vec::new(), free: Vec::new(), end: 0 }
    }

    fn add(&mut self, item: T) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        });
        self.put(place, item);
        place
    }

    /// Puts an item at a place that another list has chosen.
    fn put(&mut self, place: u32, item: T) {
        while self.pages.len() <= place as usize / PAGE {
            self.pages.push(vec![T::default(); PAGE].into());
        }
        *self.get_mut(place) = item;
    }

    fn remove(&mut self, place: u32) -> T {
        self.free.push(place);
        std::mem::take(self.get_mut(place))
    }

    #[inline]
    fn get(&self, place: u32) -> &T {
        &self.pages[place as usize / PAGE][place as usize % PAGE]
    }

    #[inline]
    fn get_mut(&mut self, place: u32) -> &mut T {
        &mut self.pages[place as usize / PAGE][place as usize % PAGE]
    }

    fn memory_size(&self) -> usize {
        self.pages.len() * PAGE * size_of::<T>() + self.free.capacity() * size_of::<u32>()
    }
}

/// Places by the hashes of their items, in many small maps.
#[derive(Debug)]
struct Places(Box<[HashTable<u32>]>);

impl Places {
    fn new() -> Self {
        Places(std::iter::repeat_with(HashTable::new).take(MAPS).collect())
    }

    fn find(&self, hash: Hash, hash_at: impl Fn(u32) -> Hash) -> Option<u32> {
        self.0[hash[0] as usize % MAPS].find(hash[1], |place| hash_at(*place) == hash).copied()
    }

    fn insert(&mut self, hash: Hash, place: u32, hash_at: impl Fn(u32) -> Hash) {
        self.0[hash[0] as usize % MAPS].insert_unique(hash[1], place, |place| hash_at(*place)[1]);
    }

    fn remove(&mut self, hash: Hash, place: u32) {
        if let Ok(entry) = self.0[hash[0] as usize % MAPS].find_entry(hash[1], |found| *found == place) {
            entry.remove();
        }
    }

    fn len(&self) -> usize {
        self.0.iter().map(HashTable::len).sum()
    }

    fn memory_size(&self) -> usize {
        self.0.iter().map(HashTable::allocation_size).sum()
    }
}

/// A record of a topic of the join.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    /// Of its key in the topic.
    pub hash: Hash,
    /// The values of the fields that the view reads.
    pub values: Box<[u8]>,
    /// The time of its message.
    pub timestamp: Timestamp,
}

/// The place of a record in the list of a join.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// The entry; [`NONE`]: the record has no key for the join.
    pub entry: u32,
    previous: u32,
    pub next: u32,
}

impl Default for Link {
    fn default() -> Self {
        Link { entry: NONE, previous: NONE, next: NONE }
    }
}

/// The records of one topic.
#[derive(Debug)]
pub(super) struct Side {
    records: Pages<Record>,
    by_hash: Places,
    /// For each join of the topic.
    links: Box<[Pages<Link>]>,
    /// The bytes of all values.
    values_size: usize,
}

impl Side {
    pub fn new(join_count: usize) -> Self {
        let links = std::iter::repeat_with(Pages::new).take(join_count).collect();
        Side { records: Pages::new(), by_hash: Places::new(), links, values_size: 0 }
    }

    pub fn find(&self, hash: Hash) -> Option<u32> {
        self.by_hash.find(hash, |place| self.records.get(place).hash)
    }

    /// The record at a place; `None` for [`NONE`].
    #[inline]
    pub fn get(&self, place: u32) -> Option<&Record> {
        (place != NONE).then(|| self.records.get(place))
    }

    /// The place in the list of a join of the topic.
    #[inline]
    pub fn link(&self, join: usize, place: u32) -> &Link {
        self.links[join].get(place)
    }

    /// Adds a record that is in no list.
    pub fn add(&mut self, record: Record) -> u32 {
        let hash = record.hash;
        self.values_size += record.values.len();
        let place = self.records.add(record);
        self.links.iter_mut().for_each(|links| links.put(place, Link::default()));
        self.by_hash.insert(hash, place, |place| self.records.get(place).hash);
        place
    }

    pub fn replace(&mut self, place: u32, values: Box<[u8]>, timestamp: Timestamp) {
        let record = self.records.get_mut(place);
        self.values_size = self.values_size + values.len() - record.values.len();
        (record.values, record.timestamp) = (values, timestamp);
    }

    /// Removes a record that is in no list.
    pub fn remove(&mut self, place: u32) {
        let record = self.records.remove(place);
        self.values_size -= record.values.len();
        self.by_hash.remove(record.hash, place);
    }

    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// The places of all records are before this one.
    pub fn end(&self) -> u32 {
        self.records.end
    }

    /// The record at a place, if one is there.
    pub fn used(&self, place: u32) -> Option<&Record> {
        let record = self.records.get(place);
        (self.find(record.hash) == Some(place)).then_some(record)
    }

    pub fn memory_size(&self) -> usize {
        let links: usize = self.links.iter().map(Pages::memory_size).sum();
        self.records.memory_size() + links + self.by_hash.memory_size() + self.values_size
    }
}

#[derive(Clone, Debug)]
struct Entry {
    hash: Hash,
    /// The first records of the lists.
    first: [u32; 2],
}

impl Default for Entry {
    fn default() -> Self {
        Entry { hash: Hash::default(), first: [NONE; 2] }
    }
}

/// The keys of one join.
#[derive(Debug)]
pub(super) struct JoinIndex {
    entries: Pages<Entry>,
    by_hash: Places,
}

impl JoinIndex {
    pub fn new() -> Self {
        JoinIndex { entries: Pages::new(), by_hash: Places::new() }
    }

    /// The entry of a key; [`NONE`]: no record has the key.
    pub fn find(&self, hash: Option<Hash>) -> u32 {
        let found = hash.and_then(|hash| self.by_hash.find(hash, |place| self.entries.get(place).hash));
        found.unwrap_or(NONE)
    }

    /// The first record of a list; [`NONE`]: it is empty.
    #[inline]
    pub fn first(&self, entry: u32, side: usize) -> u32 {
        if entry == NONE { NONE } else { self.entries.get(entry).first[side] }
    }

    /// The hash of the key of an entry.
    pub fn hash(&self, entry: u32) -> Option<Hash> {
        (entry != NONE).then(|| self.entries.get(entry).hash)
    }

    /// Adds a record to the list of a key.
    pub fn link(&mut self, hash: Hash, place: u32, side: usize, records: &mut Side, join: usize) {
        let mut entry = self.find(Some(hash));
        if entry == NONE {
            entry = self.entries.add(Entry { hash, first: [NONE; 2] });
            self.by_hash.insert(hash, entry, |place| self.entries.get(place).hash);
        }
        let first = &mut self.entries.get_mut(entry).first[side];
        let links = &mut records.links[join];
        if *first != NONE {
            links.get_mut(*first).previous = place;
        }
        links.put(place, Link { entry, previous: NONE, next: *first });
        *first = place;
    }

    /// Removes a record from its list. An entry without records is removed.
    pub fn unlink(&mut self, place: u32, side: usize, records: &mut Side, join: usize) {
        let links = &mut records.links[join];
        let Link { entry, previous, next } = std::mem::take(links.get_mut(place));
        if entry == NONE {
            return;
        }
        if next != NONE {
            links.get_mut(next).previous = previous;
        }
        match previous {
            NONE => self.entries.get_mut(entry).first[side] = next,
            previous => links.get_mut(previous).next = next,
        }
        if self.entries.get(entry).first == [NONE; 2] {
            let Entry { hash, .. } = self.entries.remove(entry);
            self.by_hash.remove(hash, entry);
        }
    }

    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    pub fn memory_size(&self) -> usize {
        self.entries.memory_size() + self.by_hash.memory_size()
    }
}
