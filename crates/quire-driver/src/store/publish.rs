//! Unpersisted publishes in a file: a ring of entries, one per publish (docs/stores.md).
//!
//! A publish is written before the client takes it. It is removed from the ring when the start of
//! the ring moves, and the header has the start. So after `kill -9` at any instant, the file has
//! every publish that was taken and is not known to be persisted. It may also have some that are
//! persisted. The server drops these when they are sent again.

use std::collections::VecDeque;
use std::path::Path;

pub use quire_client::StoredPublishes;
use quire_client::{Failure, PublishLog};

use super::file::{ENTRY_HEAD_SIZE, HEADER_SIZE, Header, StoreEntries, StoreFile, encode_entry, entry_size};
use super::{StoreError, failure};

const MAGIC: [u8; 4] = *b"QPUB";

/// Bytes of entries that are removed from the ring together. The header is written once for each
/// such group.
const GROUP_SIZE: u64 = 64 * 1024;

/// The file of a publish store, open and locked.
pub struct PublishFile {
    file: StoreFile,
    header: Header,
    end: u64,
    /// For each group, from the first entry on: where it ends, and its highest sequence.
    groups: VecDeque<Group>,
    scratch: Vec<u8>,
    /// The header could not be written, so the next start may not find the entries of the ring.
    failure: Option<Failure>,
}

struct Group {
    end: u64,
    last_sequence: u64,
}

impl PublishFile {
    /// Opens the store of the client `name`, or makes one with room for `size_max` bytes. A new
    /// store gets the number `new_run`, which must be random. So does one of an earlier version,
    /// which has no number.
    ///
    /// # Errors
    /// See [`StoreError`]. Nothing was changed then.
    pub fn open(
        path: &Path,
        name: &str,
        size_max: u64,
        new_run: u64,
    ) -> Result<(Self, StoredPublishes), StoreError> {
        let file = StoreFile::open(path)?;
        let capacity = size_max.max(GROUP_SIZE).next_multiple_of(8);
        let new = Header { magic: MAGIC, capacity, run: new_run, name: name.to_owned(), ..Header::default() };
        let (mut header, ring) = match file.read(MAGIC)? {
            Some((header, ring)) if header.capacity != 0 => (header, ring),
            _ => (new.clone(), Vec::new()),
        };
        if header.name != name {
            let what = format!("belongs to the client {:?}, not to {name:?}", header.name);
            return Err(StoreError::Unfit { path: path.to_owned(), what });
        }
        let log = unroll(&header, ring);
        let parsed = StoreEntries::parse(&log, header.start).map_err(|offset| StoreError::Corrupt {
            path: path.to_owned(),
            at: super::file::START + offset % header.capacity,
        })?;
        let frames: Vec<_> = parsed.entries.iter().map(|entry| (entry.tag, entry.body.to_vec())).collect();
        let highest = frames.iter().map(|(sequence, _)| *sequence).max().unwrap_or(0);
        let last_sequence = highest.max(header.last_sequence);
        if frames.is_empty() && header.capacity != capacity {
            // The offset continues, so that an entry of the old ring is not taken for one of the
            // new ring.
            let (generation, start) = (header.generation, parsed.end.next_multiple_of(capacity));
            header = Header { generation, start, run: header.run, ..new };
            file.truncate(super::file::START).map_err(StoreError::io(path))?;
        }
        if header.run == 0 {
            header.run = new_run;
        }
        header.last_sequence = header.last_sequence.max(if frames.is_empty() { last_sequence } else { 0 });
        let end = if frames.is_empty() { header.start } else { parsed.end };
        let mut store =
            PublishFile { file, header, end, groups: VecDeque::new(), scratch: Vec::new(), failure: None };
        let mut at = store.header.start;
        for (sequence, frame) in &frames {
            at += entry_size(frame.len()) as u64;
            store.note(at, *sequence);
        }
        store.write_header().map_err(StoreError::io(path))?;
        let (persisted, run) = (store.header.last_sequence, store.header.run);
        Ok((store, StoredPublishes { frames, last_sequence, persisted, run }))
    }

    fn note(&mut self, end: u64, sequence: u64) {
        let begin = self.groups.iter().rev().nth(1).map_or(self.header.start, |group| group.end);
        match self.groups.back_mut() {
            Some(group) if group.end - begin < GROUP_SIZE => {
                group.end = end;
                group.last_sequence = group.last_sequence.max(sequence);
            }
            _ => self.groups.push_back(Group { end, last_sequence: sequence }),
        }
    }

    fn write_header(&mut self) -> std::io::Result<()> {
        self.header.generation += 1;
        self.file.write_header(&self.header)
    }
}

impl PublishLog for PublishFile {
    fn has_room(&self, frame_size: usize) -> bool {
        self.end - self.header.start + entry_size(frame_size) as u64 <= self.header.capacity
    }

    fn frame_size_max(&self) -> usize {
        usize::try_from(self.header.capacity).unwrap_or(usize::MAX) - ENTRY_HEAD_SIZE
    }

    fn append(&mut self, sequence: u64, frame: &[u8]) -> Result<(), Failure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        encode_entry(&mut self.scratch, self.end, sequence, frame);
        let written = self.file.write(&self.scratch, self.end, self.header.capacity);
        written.map_err(|error| failure(&self.file.path, self.scratch.len(), &error))?;
        self.end += self.scratch.len() as u64;
        self.note(self.end, sequence);
        Ok(())
    }

    fn persisted(&mut self, sequence: u64) {
        let mut is_moved = false;
        while let Some(group) = self.groups.front()
            && group.last_sequence <= sequence
        {
            self.header.start = group.end;
            self.header.last_sequence = self.header.last_sequence.max(group.last_sequence);
            self.groups.pop_front();
            is_moved = true;
        }
        if is_moved && let Err(error) = self.write_header() {
            self.failure = Some(failure(&self.file.path, HEADER_SIZE, &error));
        }
    }
}

impl Drop for PublishFile {
    fn drop(&mut self) {
        // A power cut could take the newest entries, so they are synced. The caller cannot receive
        // an error any more.
        let _ = self.file.sync();
    }
}

/// The bytes of the ring from `start` on, once around.
fn unroll(header: &Header, mut ring: Vec<u8>) -> Vec<u8> {
    let capacity = usize::try_from(header.capacity).unwrap_or(usize::MAX);
    let start = usize::try_from(header.start % header.capacity.max(1)).unwrap_or_default();
    if ring.len() < capacity {
        // The ring was never filled completely: no kept entry is before `start`.
        ring.drain(..start.min(ring.len()));
    } else {
        ring.rotate_left(start);
    }
    ring
}
