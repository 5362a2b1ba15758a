//! The bookmarks of messages in the records of queues (docs/journal-format.md).
//!
//! A position names a message in one log only, and a bookmark names it on every instance. A record
//! has both. Neighbors in the log are often consecutive messages of one publisher, so that a list
//! of bookmarks consists of *parts*: consecutive messages of one publisher.

use std::collections::HashMap;

use quire_types::{Bookmark, PublisherId};
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use super::record::{put_distance, put_number, take_distance, take_number};

/// Flags of a part: its first sequence does not follow the last one of its publisher in the record;
/// it has more than one message.
const JUMPS: u64 = 1;
const IS_LONG: u64 = 2;

/// Bits of the flags.
const FLAG_BITS: u32 = 2;

/// The number of the publisher of messages whose bookmark is not known.
const UNNAMED: u64 = 0;

/// Consecutive messages of one publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedRun {
    /// The first of them. `None`: the bookmarks of these messages are not known.
    pub first: Option<Bookmark>,
    /// How many they are.
    pub count: u64,
}

impl NamedRun {
    /// The bookmark of each message.
    pub fn bookmarks(self) -> impl Iterator<Item = Option<Bookmark>> {
        let named = move |first: Bookmark, number| {
            Bookmark::new(first.publisher, first.sequence.saturating_add(number))
        };
        (0..self.count).map(move |number| self.first.map(|first| named(first, number)))
    }

    /// Whether the next message has this bookmark.
    fn is_followed_by(&self, bookmark: Option<Bookmark>) -> bool {
        match self.first {
            None => bookmark.is_none(),
            Some(Bookmark { publisher, sequence }) => sequence
                .checked_add(self.count)
                .is_some_and(|next| bookmark == Some(Bookmark::new(publisher, next))),
        }
    }
}

/// Parts of a run, at most. At the limit a run ends, so that the size of a record is known while it
/// grows.
pub(super) const PARTS_MAX: usize = 1024;

/// The bookmarks of the messages of a run of positions.
pub type Names = SmallVec<[NamedRun; 1]>;

/// Adds the bookmark of the next message.
#[inline]
pub(super) fn push_name(names: &mut Vec<NamedRun>, bookmark: Option<Bookmark>) {
    match names.last_mut() {
        Some(last) if last.is_followed_by(bookmark) => last.count += 1,
        _ => names.push(NamedRun { first: bookmark, count: 1 }),
    }
}

/// A record of changes or of leases begins: its version, and the group of records that it is in.
pub(super) fn put_header(bytes: &mut Vec<u8>, kind: u64, kind_bits: u32) {
    put_number(bytes, VERSION << kind_bits | kind);
    put_number(bytes, NO_GROUP);
}

/// The version of the records of queues.
pub(super) const VERSION: u64 = 2;

/// The record is applied by itself.
const NO_GROUP: u64 = 0;

/// The rest of the header, after its first number, the version.
pub(super) fn take_header(version: u64, rest: &mut &[u8]) -> Result<(), BadChanges> {
    if version != VERSION {
        return Err(BadChanges::Version(version));
    }
    match take_number(rest).ok_or(BadChanges::NotAList)? {
        NO_GROUP => Ok(()),
        // Bit 0 says whether it is the last record of the group.
        group => Err(BadChanges::Group(group >> 1)),
    }
}

/// Data of a record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChanges {
    /// A [`ChangesWriter`](super::ChangesWriter) or a [`LeasesWriter`](super::LeasesWriter) could
    /// not have written the bytes.
    #[error("not a list of changes or leases of a queue")]
    NotAList,
    /// Another version of quire has written it.
    #[error(
        "a record of a queue has the version {0}, and this version of quire reads the versions 1 and {VERSION}: use the version of quire that wrote it, or a later one"
    )]
    Version(u64),
    /// It is one of a group of records, which are to be applied as a whole.
    #[error(
        "a record of a queue belongs to the group {0} of records, and this version of quire does not read groups: use the version of quire that wrote it, or a later one"
    )]
    Group(u64),
}

/// Writes names. A publisher is written once in each record.
#[derive(Debug, Default)]
pub(super) struct NamesWriter {
    /// The publisher of the last part. The next part mostly has the same one.
    last: Option<WrittenPublisher>,
    /// Every other publisher of the record.
    others: HashMap<PublisherId, WrittenPublisher, FxBuildHasher>,
}

#[derive(Clone, Copy, Debug)]
struct WrittenPublisher {
    id: PublisherId,
    number: u64,
    /// The sequence after its last message.
    next: u64,
}

impl NamesWriter {
    pub fn clear(&mut self) {
        self.last = None;
        if !self.others.is_empty() {
            self.others.clear();
        }
    }

    /// Writes the names of a run.
    pub fn put(&mut self, names: &[NamedRun], bytes: &mut Vec<u8>) {
        names.iter().for_each(|part| self.put_part(*part, bytes));
    }

    fn put_part(&mut self, NamedRun { first, count }: NamedRun, bytes: &mut Vec<u8>) {
        let long = if count > 1 { IS_LONG } else { 0 };
        match first {
            None => put_number(bytes, UNNAMED << FLAG_BITS | long),
            Some(Bookmark { publisher, sequence }) => {
                let is_last = self.last.is_some_and(|last| last.id == publisher);
                let is_new = !is_last && self.change_to(publisher);
                let Some(known) = &mut self.last else { return };
                let jumps = if sequence == known.next { 0 } else { JUMPS };
                put_number(bytes, known.number << FLAG_BITS | jumps | long);
                if is_new {
                    bytes.extend_from_slice(&publisher.get().to_le_bytes());
                }
                if jumps != 0 {
                    put_distance(bytes, known.next, sequence);
                }
                known.next = sequence.wrapping_add(count);
            }
        }
        if count > 1 {
            put_number(bytes, count - 2);
        }
    }

    /// Makes another publisher than that of the last part the last one. Returns whether the record
    /// does not have it yet. A separate function, because most parts do not need it.
    #[inline(never)]
    fn change_to(&mut self, id: PublisherId) -> bool {
        if let Some(last) = self.last.take() {
            self.others.insert(last.id, last);
        }
        let known = self.others.get(&id).copied();
        let number = self.others.len() as u64 + 1;
        self.last = Some(known.unwrap_or(WrittenPublisher { id, number, next: 0 }));
        known.is_none()
    }
}

/// Reads names.
#[derive(Debug, Default)]
pub(super) struct NamesReader {
    /// The publishers of the record, and the sequence after the last message of each.
    publishers: Vec<(PublisherId, u64)>,
}

impl NamesReader {
    /// The names of a run of `count` messages.
    pub fn take(&mut self, mut count: u64, rest: &mut &[u8]) -> Option<Names> {
        let mut names = Names::new();
        while count > 0 {
            let part = self.take_part(rest)?;
            count = count.checked_sub(part.count)?;
            names.push(part);
        }
        Some(names)
    }

    fn take_part(&mut self, rest: &mut &[u8]) -> Option<NamedRun> {
        let head = take_number(rest)?;
        let number = head >> FLAG_BITS;
        let mut sequence = 0;
        let named = match number.checked_sub(1) {
            None if head & JUMPS != 0 => return None,
            None => None,
            Some(index) => {
                let index = usize::try_from(index).ok()?;
                if index == self.publishers.len() {
                    let (id, after) = rest.split_first_chunk::<8>()?;
                    *rest = after;
                    self.publishers.push((PublisherId::new(u64::from_le_bytes(*id)), 0));
                }
                sequence = self.publishers.get(index)?.1;
                if head & JUMPS != 0 {
                    sequence = take_distance(rest, sequence)?;
                }
                Some(index)
            }
        };
        let count = if head & IS_LONG != 0 { take_number(rest)?.checked_add(2)? } else { 1 };
        let Some(index) = named else { return Some(NamedRun { first: None, count }) };
        let (publisher, next) = &mut self.publishers[index];
        // The last message has a sequence, too.
        sequence.checked_add(count - 1)?;
        *next = sequence.wrapping_add(count);
        Some(NamedRun { first: Some(Bookmark::new(*publisher, sequence)), count })
    }
}
