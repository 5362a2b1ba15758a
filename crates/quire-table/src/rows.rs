//! The rows, each in a slot.

use quire_journal::{Array, Memory};

use crate::prefetch::{LINE_SIZE, prefetch_line};
use crate::row::{Head, Row};
use crate::row_pages::{NewPages, Pages, RowPlace, row_at};

/// The lines of a row that are prefetched. The processor prefetches later ones without a request.
const LINES_AHEAD: usize = 3;

/// Slots of one block: 2,560 bytes, which is a size of blocks in a mapped file.
const BLOCK_SLOTS: usize = 256;

/// The rows of a table. A row keeps its slot while its key exists. A new row gets the slot of a
/// removed row.
#[derive(Debug)]
pub(crate) struct Rows {
    blocks: Vec<Array<Slot>>,
    /// The slot that is used next; free slots are a list.
    free: Option<u32>,
    len: usize,
    pages: Pages,
    /// Rows that are too large for a page.
    large: Vec<Option<Array<u8>>>,
    unused_large: Vec<u32>,
    memory: Memory,
    /// Bytes of all rows.
    size: usize,
}

/// 10 bytes. Numbers of 32 bits are in two halves, because they would be aligned to 4 bytes
/// otherwise.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The kind of the place in the upper two bits, and a number.
    place: [u16; 2],
    offset: u16,
    /// When the slot was changed last: a count of scans.
    epoch: [u16; 2],
}

/// Where the row of a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Page(RowPlace),
    /// The index of the large row.
    Large(u32),
    /// No row. The next slot in the list of free ones, from 1; 0 = none.
    Free(u32),
}

const KIND_SHIFT: u32 = 30;
const NUMBER: u32 = (1 << KIND_SHIFT) - 1;
const LARGE: u32 = 1;
const FREE: u32 = 2;

/// The most slots. A table with this number of rows would have at least a hundred gigabytes.
pub(crate) const SLOTS_MAX: u32 = NUMBER;

/// Rows of a snapshot for consecutive slots, before a table has them.
#[derive(Debug)]
pub(crate) struct NewRows {
    pages: NewPages,
    large: Vec<Array<u8>>,
    /// The place of each row; `None`: it is the next large row.
    places: Vec<Option<RowPlace>>,
    size: usize,
    memory: Memory,
}

impl NewRows {
    /// Room for `count` rows.
    pub fn new(count: usize, memory: &Memory) -> Self {
        NewRows {
            pages: NewPages::new(memory),
            large: Vec::new(),
            places: Vec::with_capacity(count),
            size: 0,
            memory: memory.clone(),
        }
    }

    /// Adds the row of the next slot.
    pub fn push(&mut self, slot: u32, row: &[u8]) {
        self.size += row.len();
        let place = self.pages.push(slot, row);
        if place.is_none() {
            let mut bytes = Array::with_capacity(row.len(), &self.memory);
            bytes.extend_from_slice(row);
            self.large.push(bytes);
        }
        self.places.push(place);
    }
}

/// The row that a change replaced.
#[derive(Debug, Default)]
pub(crate) struct Previous {
    small: Vec<u8>,
    large: Option<Array<u8>>,
}

impl Previous {
    pub fn clear(&mut self) {
        self.small.clear();
        self.large = None;
    }

    pub fn row(&self) -> Option<Row<'_>> {
        self.bytes().map(Row::of)
    }

    /// The bytes of the row.
    pub fn bytes(&self) -> Option<&[u8]> {
        let bytes = self.large.as_deref().unwrap_or(&self.small);
        (!bytes.is_empty()).then_some(bytes)
    }
}

impl Slot {
    fn new(location: Location, epoch: u32) -> Self {
        let (number, offset) = match location {
            Location::Page(RowPlace { page, offset }) => (page, offset),
            Location::Large(index) => (LARGE << KIND_SHIFT | index, 0),
            Location::Free(next) => (FREE << KIND_SHIFT | next, 0),
        };
        Slot { place: halves(number), offset, epoch: halves(epoch) }
    }

    fn location(&self) -> Location {
        let place = whole(self.place);
        let number = place & NUMBER;
        match place >> KIND_SHIFT {
            FREE => Location::Free(number),
            LARGE => Location::Large(number),
            _ => Location::Page(RowPlace { page: number, offset: self.offset }),
        }
    }
}

fn halves(number: u32) -> [u16; 2] {
    [number as u16, (number >> 16) as u16]
}

fn whole([low, high]: [u16; 2]) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

impl Rows {
    pub fn new(memory: &Memory) -> Self {
        Rows {
            blocks: Vec::new(),
            free: None,
            len: 0,
            pages: Pages::new(memory),
            large: Vec::new(),
            unused_large: Vec::new(),
            memory: memory.clone(),
            size: 0,
        }
    }

    /// The memory that has them.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Every slot is below.
    pub fn end(&self) -> u32 {
        self.blocks.last().map_or(0, |last| ((self.blocks.len() - 1) * BLOCK_SLOTS + last.len()) as u32)
    }

    /// The row in a slot.
    #[inline]
    pub fn row(&self, slot: u32) -> Option<Row<'_>> {
        self.bytes(slot).map(Row::of)
    }

    /// The bytes of the row in a slot, and perhaps padding after them.
    #[inline]
    pub fn bytes(&self, slot: u32) -> Option<&[u8]> {
        match self.slot(slot).location() {
            Location::Page(place) => Some(self.pages.get(place)),
            Location::Large(index) => self.large[index as usize].as_deref(),
            Location::Free(_) => None,
        }
    }

    /// Reads the first lines of rows, so that the processor waits for several of them at once.
    pub fn read_ahead(&self, slots: impl Iterator<Item = u32>) {
        let mut sum = 0_u8;
        for slot in slots {
            let bytes = self.bytes(slot).unwrap_or_default();
            let lines = bytes.iter().step_by(LINE_SIZE).take(LINES_AHEAD);
            sum = lines.fold(sum, |sum, byte| sum.wrapping_add(*byte));
        }
        std::hint::black_box(sum);
    }

    /// Makes the processor read where the row of a slot is.
    #[inline]
    pub fn prefetch_slot(&self, slot: u32) {
        prefetch_line(self.slot(slot));
    }

    /// Makes the processor read the row in a slot, which probably has `size` bytes.
    pub fn prefetch(&self, slot: u32, size: usize) {
        if let Location::Page(place) = self.slot(slot).location() {
            self.pages.prefetch(place, size);
        }
    }

    /// Whether a slot has the row with this key.
    #[inline]
    pub fn has_key(&self, slot: u32, key: &[u8]) -> bool {
        self.bytes(slot).is_some_and(|bytes| Row::key_of(bytes) == key)
    }

    /// When the slot was changed last.
    #[inline]
    pub fn epoch(&self, slot: u32) -> u32 {
        whole(self.slot(slot).epoch)
    }

    /// Puts a row into a free slot: its bytes, in parts that follow each other.
    ///
    /// # Panics
    /// When there are 2^30 rows.
    pub fn insert(&mut self, parts: &[&[u8]], epoch: u32) -> u32 {
        let slot = match self.free {
            Some(slot) => {
                let Location::Free(next) = self.slot(slot).location() else {
                    unreachable!("the slot is free")
                };
                self.free = next.checked_sub(1);
                slot
            }
            None => self.new_slot(),
        };
        let location = self.store(slot, parts);
        *self.slot_mut(slot) = Slot::new(location, epoch);
        self.len += 1;
        slot
    }

    /// Adds rows to the next slots. No slot is free, and no row was removed.
    pub fn adopt(&mut self, mut new: NewRows, epoch: u32) {
        self.len += new.places.len();
        self.size += new.size;
        // Its rows are copied, so that no page stays with few rows.
        let open = new.pages.take_open();
        let first_page = self.pages.adopt(new.pages);
        let mut large = new.large.into_iter();
        for place in new.places {
            let slot = self.new_slot();
            let location = match (place, &open) {
                (Some(RowPlace { page, offset }), Some((open, bytes))) if page == *open => {
                    let row = row_at(bytes, offset);
                    let row = &row[..Row::size_of(row)];
                    self.size -= row.len();
                    self.store(slot, &[row])
                }
                (Some(RowPlace { page, offset }), _) => {
                    Location::Page(RowPlace { page: first_page + page, offset })
                }
                (None, _) => {
                    self.large.push(large.next());
                    Location::Large(self.large.len() as u32 - 1)
                }
            };
            *self.slot_mut(slot) = Slot::new(location, epoch);
        }
    }

    /// Replaces the row in a slot that has one. `previous` gets the old row, when the caller needs
    /// it.
    pub fn replace(&mut self, slot: u32, row: &Row<'_>, epoch: u32, previous: Option<&mut Previous>) {
        let location = self.slot(slot).location();
        self.size -= self.size_at(location);
        if let Some(previous) = previous {
            self.keep(location, previous);
        }
        let head = Head::new(row);
        let parts = head.parts(row);
        let is_replaced = match location {
            Location::Page(place) if size_of_parts(&parts) <= self.pages.row_size_max() => {
                self.pages.replace(place, &parts)
            }
            _ => false,
        };
        let location = if is_replaced {
            self.size += size_of_parts(&parts);
            location
        } else {
            self.free_place(location);
            self.store(slot, &parts)
        };
        *self.slot_mut(slot) = Slot::new(location, epoch);
    }

    /// Removes the row in a slot that has one.
    pub fn remove(&mut self, slot: u32, epoch: u32, previous: &mut Previous) {
        let location = self.slot(slot).location();
        self.size -= self.size_at(location);
        self.keep(location, previous);
        self.free_place(location);
        let next = self.free.map_or(0, |next| next + 1);
        *self.slot_mut(slot) = Slot::new(Location::Free(next), epoch);
        self.free = Some(slot);
        self.len -= 1;
    }

    /// Moves rows of at most `page_count_max` pages with many holes together. Returns the bytes of
    /// memory that this frees.
    pub fn squeeze(&mut self, page_count_max: usize) -> usize {
        let before = self.pages.memory_size();
        let blocks = &mut self.blocks;
        self.pages.squeeze(page_count_max, &mut |slot, place| set_place(blocks, slot, place));
        before.saturating_sub(self.pages.memory_size())
    }

    /// Sets the epoch of every slot to the result of `number_of` for its epoch.
    pub fn renumber_epochs(&mut self, number_of: impl Fn(u32) -> u32) {
        for slot in self.blocks.iter_mut().flat_map(|block| block.iter_mut()) {
            slot.epoch = halves(number_of(whole(slot.epoch)));
        }
    }

    /// Bytes of all rows.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes of memory.
    pub fn memory_size(&self) -> usize {
        let slots: usize = self.blocks.iter().map(|block| block.capacity() * size_of::<Slot>()).sum();
        let blocks = self.blocks.capacity() * size_of::<Array<Slot>>();
        let large: usize = self.large.iter().flatten().map(|row| row.capacity()).sum();
        let lists = self.large.capacity() * size_of::<Option<Array<u8>>>()
            + self.unused_large.capacity() * size_of::<u32>();
        slots + blocks + large + lists + self.pages.memory_size()
    }

    #[inline]
    fn slot(&self, slot: u32) -> &Slot {
        &self.blocks[slot as usize / BLOCK_SLOTS][slot as usize % BLOCK_SLOTS]
    }

    fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        slot_mut(&mut self.blocks, slot)
    }

    fn new_slot(&mut self) -> u32 {
        let slot = self.end();
        assert!(slot < SLOTS_MAX, "a table has fewer than {SLOTS_MAX} rows");
        if self.blocks.last().is_none_or(|last| last.len() == BLOCK_SLOTS) {
            // The first block grows with the table. A table with few rows is small.
            let capacity = if self.blocks.is_empty() { 0 } else { BLOCK_SLOTS };
            self.blocks.push(Array::with_capacity(capacity, &self.memory));
        }
        if let Some(last) = self.blocks.last_mut() {
            last.extend_from_slice(&[Slot::new(Location::Free(0), 0)]);
        }
        slot
    }

    /// Finds a place for a row, and writes it there.
    fn store(&mut self, slot: u32, parts: &[&[u8]]) -> Location {
        let size = size_of_parts(parts);
        self.size += size;
        if size <= self.pages.row_size_max() {
            let blocks = &mut self.blocks;
            let moved = &mut |slot, place| set_place(blocks, slot, place);
            return Location::Page(self.pages.insert(slot, parts, moved));
        }
        let mut bytes = Array::with_capacity(size, &self.memory);
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        match self.unused_large.pop() {
            Some(index) => {
                self.large[index as usize] = Some(bytes);
                Location::Large(index)
            }
            None => {
                self.large.push(Some(bytes));
                Location::Large(self.large.len() as u32 - 1)
            }
        }
    }

    /// Bytes of the row at a location.
    fn size_at(&self, location: Location) -> usize {
        match location {
            Location::Page(place) => Row::size_of(self.pages.get(place)),
            Location::Large(index) => self.large[index as usize].as_ref().map_or(0, |row| row.len()),
            Location::Free(_) => 0,
        }
    }

    /// Makes the row at a location the previous one. A large row is moved, because copying it would
    /// take long.
    fn keep(&mut self, location: Location, previous: &mut Previous) {
        previous.clear();
        match location {
            Location::Page(place) => {
                let bytes = self.pages.get(place);
                previous.small.extend_from_slice(&bytes[..Row::size_of(bytes)]);
            }
            Location::Large(index) => previous.large = self.large[index as usize].take(),
            Location::Free(_) => {}
        }
    }

    fn free_place(&mut self, location: Location) {
        match location {
            Location::Page(place) => self.pages.remove(place),
            Location::Large(index) => {
                self.large[index as usize] = None;
                self.unused_large.push(index);
            }
            Location::Free(_) => {}
        }
    }
}

fn slot_mut(blocks: &mut [Array<Slot>], slot: u32) -> &mut Slot {
    &mut blocks[slot as usize / BLOCK_SLOTS][slot as usize % BLOCK_SLOTS]
}

/// The row of a slot has moved.
fn set_place(blocks: &mut [Array<Slot>], slot: u32, place: RowPlace) {
    let moved = slot_mut(blocks, slot);
    *moved = Slot::new(Location::Page(place), whole(moved.epoch));
}

fn size_of_parts(parts: &[&[u8]]) -> usize {
    parts.iter().map(|part| part.len()).sum()
}
