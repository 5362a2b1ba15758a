//! Bytes of rows, one after the other in pages.
//!
//! Each entry of a page has 4 bytes with the slot of its row, 2 bytes with its size, and the bytes
//! of the row. A page is filled from the front. A row that becomes smaller stays in its place.
//! Otherwise its entry becomes a hole, and the row moves to the end of the current page. When the
//! current page is full, a page with holes of at least an eighth is compacted and used again,
//! before a new page is made. So at most eight bytes are copied for each new byte, and holes take
//! at most an eighth of the memory. The holes of removed rows can take more until new rows are
//! added.

use quire_journal::{Array, Memory};

use crate::prefetch::prefetch;

/// The size of pages on the heap.
const PAGE_SIZE: usize = 16 * 1024;
/// The size of pages in a mapped file, which is the size of its largest blocks.
const PAGE_SIZE_PAGED: usize = 4 * 1024;

/// Bytes before each row: slot and size.
const ENTRY_HEAD: usize = 6;
/// Entries are padded to this, so that a row with a number of one more digit often stays in its
/// place.
const ENTRY_UNIT: usize = 4;
/// The slot of a hole.
const HOLE: u32 = u32::MAX;

/// One part in this many of a page must be holes before it is compacted.
const HOLES_PART: usize = 8;
/// The number of pages with holes that are tried before a new page is made.
const TRIES: usize = 4;
/// The number of pages with holes among which the emptiest one is looked for.
const SQUEEZE_TRIES: usize = 256;
/// A row may have one part in this many of a page. Larger rows are separate.
const ROW_PART: usize = 4;

/// Where an entry begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowPlace {
    pub page: u32,
    pub offset: u16,
}

#[derive(Debug)]
pub(crate) struct Pages {
    pages: Vec<Page>,
    /// The page to which rows are appended.
    current: Option<u32>,
    /// Pages with many holes, other than the current one.
    sparse: Vec<u32>,
    /// Pages without memory.
    unused: Vec<u32>,
    page_size: usize,
    memory: Memory,
}

/// Rows in pages that no table has yet, so that another thread can fill them.
#[derive(Debug)]
pub(crate) struct NewPages {
    pages: Vec<Array<u8>>,
    page_size: usize,
    memory: Memory,
}

#[derive(Debug)]
struct Page {
    bytes: Array<u8>,
    /// Bytes of entries that are not holes.
    live: u32,
    /// Its index in `sparse`.
    sparse: Option<u32>,
}

impl NewPages {
    pub fn new(memory: &Memory) -> Self {
        NewPages { pages: Vec::new(), page_size: page_size_of(memory), memory: memory.clone() }
    }

    /// Adds a row. Its place has the number of the page among these pages. `None`: the row is too
    /// large for a page.
    pub fn push(&mut self, slot: u32, row: &[u8]) -> Option<RowPlace> {
        if row.len() > row_size_max(self.page_size) {
            return None;
        }
        let size = entry_size(&[row]);
        if self.pages.last().is_none_or(|last| last.len() + size > self.page_size) {
            self.pages.push(Array::with_capacity(self.page_size, &self.memory));
        }
        let number = self.pages.len() - 1;
        let offset = append(&mut self.pages[number], slot, size, &[row]);
        Some(RowPlace { page: number as u32, offset })
    }

    /// Removes and returns the last page and its number, when it has the room of a page with many
    /// holes.
    pub fn take_open(&mut self) -> Option<(u32, Array<u8>)> {
        let room = self.page_size - self.pages.last()?.len();
        if room * HOLES_PART < self.page_size {
            return None;
        }
        Some((self.pages.len() as u32 - 1, self.pages.pop()?))
    }
}

/// The bytes of the row at an offset of a page, and perhaps padding after them.
pub(crate) fn row_at(page: &[u8], offset: u16) -> &[u8] {
    let begin = usize::from(offset);
    &page[begin + ENTRY_HEAD..begin + head_at(page, begin).1]
}

impl Pages {
    pub fn new(memory: &Memory) -> Self {
        Pages {
            pages: Vec::new(),
            current: None,
            sparse: Vec::new(),
            unused: Vec::new(),
            page_size: page_size_of(memory),
            memory: memory.clone(),
        }
    }

    /// The largest row that fits into a page.
    pub fn row_size_max(&self) -> usize {
        row_size_max(self.page_size)
    }

    /// Adds pages of the same memory. Returns the number that the first of them gets.
    pub fn adopt(&mut self, new: NewPages) -> u32 {
        let first = self.pages.len() as u32;
        let page_of = |bytes: Array<u8>| Page { live: bytes.len() as u32, bytes, sparse: None };
        self.pages.extend(new.pages.into_iter().map(page_of));
        first
    }

    /// The bytes of the row at a place, and perhaps padding after them.
    #[inline]
    pub fn get(&self, place: RowPlace) -> &[u8] {
        row_at(&self.pages[place.page as usize].bytes, place.offset)
    }

    /// Makes the processor read the row at a place, which probably has `size` bytes. Its size is
    /// not read, because that would wait for memory.
    pub fn prefetch(&self, place: RowPlace, size: usize) {
        let (bytes, begin) = (&self.pages[place.page as usize].bytes, usize::from(place.offset));
        prefetch(&bytes[begin..bytes.len().min(begin + size)]);
    }

    /// Adds a row of at most [`row_size_max`](Self::row_size_max) bytes. Calls `moved` for rows
    /// that get another place.
    pub fn insert(&mut self, slot: u32, parts: &[&[u8]], moved: &mut impl FnMut(u32, RowPlace)) -> RowPlace {
        let size = entry_size(parts);
        let number = self.page_with_room(size, moved);
        let page = &mut self.pages[number as usize];
        page.live += size as u32;
        RowPlace { page: number, offset: append(&mut page.bytes, slot, size, parts) }
    }

    /// Replaces the row at a place by one that is not larger. Returns whether there was room for
    /// it.
    pub fn replace(&mut self, place: RowPlace, parts: &[&[u8]]) -> bool {
        let (begin, end) = self.entry(place);
        let size = entry_size(parts);
        if size > end - begin {
            return false;
        }
        let page = &mut self.pages[place.page as usize];
        let mut at = begin + ENTRY_HEAD;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            page.bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let rest = end - begin - size;
        // The rest becomes a hole when it has room for the head of one.
        if rest >= 2 * ENTRY_UNIT {
            page.bytes[begin + 4..begin + 6].copy_from_slice(&(size as u16).to_le_bytes());
            page.bytes[begin + size + 4..begin + size + 6].copy_from_slice(&(rest as u16).to_le_bytes());
            self.make_hole(place.page, begin + size, rest);
        }
        true
    }

    /// Removes the row at a place.
    pub fn remove(&mut self, place: RowPlace) {
        let (begin, end) = self.entry(place);
        self.make_hole(place.page, begin, end - begin);
    }

    /// Bytes of memory.
    pub fn memory_size(&self) -> usize {
        let rooms: usize = self.pages.iter().map(|page| page.bytes.capacity()).sum();
        let lists = self.sparse.capacity() + self.unused.capacity();
        rooms + self.pages.capacity() * size_of::<Page>() + lists * size_of::<u32>()
    }

    fn entry(&self, place: RowPlace) -> (usize, usize) {
        let begin = usize::from(place.offset);
        let (_, size) = head_at(&self.pages[place.page as usize].bytes, begin);
        (begin, begin + size)
    }

    fn make_hole(&mut self, number: u32, begin: usize, size: usize) {
        let page = &mut self.pages[number as usize];
        page.bytes[begin..begin + 4].copy_from_slice(&HOLE.to_le_bytes());
        page.live -= size as u32;
        let is_current = self.current == Some(number);
        if page.live == 0 {
            if is_current {
                page.bytes.truncate(0);
                return;
            }
            page.bytes = Array::new(&self.memory);
            self.unused.push(number);
            self.leave_sparse(number);
        } else if !is_current {
            self.note_holes(number);
        }
    }

    /// Adds a page with many holes to their list, unless it is the current one.
    fn note_holes(&mut self, number: u32) {
        let page = &mut self.pages[number as usize];
        let holes = self.page_size - page.live as usize;
        if page.sparse.is_none() && holes * HOLES_PART >= self.page_size {
            page.sparse = Some(self.sparse.len() as u32);
            self.sparse.push(number);
        }
    }

    fn leave_sparse(&mut self, number: u32) {
        if let Some(index) = self.pages[number as usize].sparse.take() {
            self.sparse.swap_remove(index as usize);
            if let Some(moved) = self.sparse.get(index as usize) {
                self.pages[*moved as usize].sparse = Some(index);
            }
        }
    }

    /// A page with room at its end, which becomes the current one.
    fn page_with_room(&mut self, size: usize, moved: &mut impl FnMut(u32, RowPlace)) -> u32 {
        if let Some(current) = self.current {
            let page = &self.pages[current as usize];
            if page.bytes.len() + size <= self.page_size {
                return current;
            }
            self.current = None;
            self.note_holes(current);
        }
        let live_max = self.page_size - size;
        let candidates = self.sparse.iter().rev().take(TRIES);
        let found = candidates.copied().find(|number| self.pages[*number as usize].live as usize <= live_max);
        let number = match found {
            Some(number) => {
                self.leave_sparse(number);
                self.compact(number, moved);
                number
            }
            None => self.new_page(),
        };
        self.current = Some(number);
        number
    }

    fn new_page(&mut self) -> u32 {
        let bytes = Array::with_capacity(self.page_size, &self.memory);
        let page = Page { bytes, live: 0, sparse: None };
        match self.unused.pop() {
            Some(number) => {
                self.pages[number as usize] = page;
                number
            }
            None => {
                self.pages.push(page);
                self.pages.len() as u32 - 1
            }
        }
    }

    /// Moves the rows of at most `count_max` pages with many holes into the holes of others. Then
    /// these pages need no memory. Calls `moved` for rows that get another place.
    pub fn squeeze(&mut self, count_max: usize, moved: &mut impl FnMut(u32, RowPlace)) {
        let mut rows: Vec<(u32, Vec<u8>)> = Vec::new();
        for _ in 0..count_max {
            let room = |number: &u32| self.page_size - self.pages[*number as usize].live as usize;
            let candidates = || self.sparse.iter().rev().take(SQUEEZE_TRIES);
            let Some(emptiest) = candidates().copied().max_by_key(room) else { return };
            let rooms: usize = candidates().chain(&self.current).map(room).sum();
            if rooms - room(&emptiest) < self.pages[emptiest as usize].live as usize {
                return;
            }
            self.leave_sparse(emptiest);
            let bytes = std::mem::replace(&mut self.pages[emptiest as usize].bytes, Array::new(&self.memory));
            self.pages[emptiest as usize].live = 0;
            let mut at = 0;
            while at < bytes.len() {
                let (slot, size) = head_at(&bytes, at);
                if slot != HOLE {
                    rows.push((slot, bytes[at + ENTRY_HEAD..at + size].to_vec()));
                }
                at += size;
            }
            self.unused.push(emptiest);
            for (slot, row) in rows.drain(..) {
                let place = self.insert(slot, &[&row], moved);
                moved(slot, place);
            }
        }
    }

    /// Moves the rows of a page to its front.
    fn compact(&mut self, number: u32, moved: &mut impl FnMut(u32, RowPlace)) {
        let bytes = &mut self.pages[number as usize].bytes;
        let (mut from, mut to) = (0, 0);
        while from < bytes.len() {
            let (slot, size) = head_at(bytes, from);
            if slot != HOLE {
                if to < from {
                    bytes.copy_within(from..from + size, to);
                    moved(slot, RowPlace { page: number, offset: to as u16 });
                }
                to += size;
            }
            from += size;
        }
        bytes.truncate(to);
    }
}

fn page_size_of(memory: &Memory) -> usize {
    if memory.is_paged() { PAGE_SIZE_PAGED } else { PAGE_SIZE }
}

/// The largest row that fits into a page of this size.
fn row_size_max(page_size: usize) -> usize {
    page_size / ROW_PART - ENTRY_HEAD
}

/// Appends an entry of `size` bytes to a page, which has room for it. Returns where it begins.
#[inline]
fn append(bytes: &mut Array<u8>, slot: u32, size: usize, parts: &[&[u8]]) -> u16 {
    let begin = bytes.len();
    bytes.extend_from_slice(&slot.to_le_bytes());
    bytes.extend_from_slice(&(size as u16).to_le_bytes());
    let parts = parts.iter().filter(|part| !part.is_empty());
    parts.for_each(|part| bytes.extend_from_slice(part));
    let padding = begin + size - bytes.len();
    bytes.extend_from_slice(&[0; ENTRY_UNIT][..padding]);
    begin as u16
}

/// Slot and size of the entry at an offset.
fn head_at(bytes: &[u8], begin: usize) -> (u32, usize) {
    let head = &bytes[begin..begin + ENTRY_HEAD];
    let slot = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    (slot, usize::from(u16::from_le_bytes([head[4], head[5]])))
}

fn entry_size(parts: &[&[u8]]) -> usize {
    let size: usize = parts.iter().map(|part| part.len()).sum();
    (ENTRY_HEAD + size).next_multiple_of(ENTRY_UNIT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Puts and removes rows of these sizes, and checks every row after each step. Returns the
    /// bytes of the rows and of the pages.
    fn run(steps: &[(u8, usize)]) -> (usize, usize) {
        let mut pages = Pages::new(&Memory::heap());
        let mut rows: BTreeMap<u32, (RowPlace, Vec<u8>)> = BTreeMap::new();
        for (step, (slot, size)) in steps.iter().enumerate() {
            let slot = u32::from(*slot);
            let new = vec![step as u8; *size];
            let known = rows.remove(&slot).map(|(place, _)| place);
            if *size == 0 {
                known.iter().for_each(|place| pages.remove(*place));
            } else if let Some(place) = known.filter(|place| pages.replace(*place, &[&new])) {
                rows.insert(slot, (place, new));
            } else {
                known.iter().for_each(|place| pages.remove(*place));
                let place = pages.insert(slot, &[&new], &mut |slot, place| {
                    rows.get_mut(&slot).unwrap().0 = place;
                });
                rows.insert(slot, (place, new));
            }
            for (place, bytes) in rows.values() {
                assert!(pages.get(*place).starts_with(bytes), "after step {step}");
                assert!(pages.get(*place).len() < bytes.len() + ENTRY_HEAD + 2 * ENTRY_UNIT);
            }
        }
        let live: u32 = pages.pages.iter().map(|page| page.live).sum();
        let expected: usize =
            rows.values().map(|(place, _)| pages.entry(*place).1 - usize::from(place.offset)).sum();
        assert_eq!(live as usize, expected);
        (rows.values().map(|(_, bytes)| bytes.len()).sum(), pages.memory_size())
    }

    proptest! {
        #[test]
        fn every_row_keeps_its_bytes(steps in vec((0u8..60, prop_oneof![Just(0), 1usize..400, 3_000usize..4_090]), 1..300)) {
            run(&steps);
        }
    }

    #[test]
    fn rows_that_change_their_sizes_leave_few_holes() {
        // Sizes without a pattern, from 200 to 455 bytes.
        let size = |step: usize| 200 + ((step * 2_654_435_761) >> 7) % 256;
        let steps: Vec<_> = (0..6_000).map(|step| ((step % 251) as u8, size(step))).collect();
        let (rows, memory) = run(&steps);
        assert!(memory < rows * 5 / 4 + 2 * PAGE_SIZE, "{memory} bytes for {rows}");
    }

    #[test]
    fn squeezed_pages_have_few_holes_and_the_same_rows() {
        let mut pages = Pages::new(&Memory::heap());
        let mut rows: BTreeMap<u32, (RowPlace, Vec<u8>)> = BTreeMap::new();
        for slot in 0..4_000 {
            let row = vec![slot as u8; 100 + slot as usize % 900];
            rows.insert(slot, (pages.insert(slot, &[&row], &mut |_, _| unreachable!()), row));
        }
        rows.retain(|slot, (place, _)| {
            let is_kept = slot % 5 == 0;
            if !is_kept {
                pages.remove(*place);
            }
            is_kept
        });
        let before = pages.memory_size();
        loop {
            let size = pages.memory_size();
            pages.squeeze(7, &mut |slot, place| rows.get_mut(&slot).unwrap().0 = place);
            assert!(pages.memory_size() <= size);
            for (place, row) in rows.values() {
                assert!(pages.get(*place).starts_with(row));
            }
            if pages.memory_size() == size {
                break;
            }
        }
        let live: usize = rows.values().map(|(_, row)| row.len()).sum();
        assert!(pages.memory_size() < live * 5 / 4 + 2 * PAGE_SIZE, "{} for {live}", pages.memory_size());
        assert!(pages.memory_size() < before / 3);
    }

    #[test]
    fn pages_without_rows_give_back_their_memory() {
        let mut steps: Vec<_> = (0..=255).map(|slot| (slot, 1_000)).collect();
        steps.extend((0..=255).map(|slot| (slot, 0)));
        let (rows, memory) = run(&steps);
        assert_eq!(rows, 0);
        assert!(memory < PAGE_SIZE + 4_096, "{memory}");
    }
}
