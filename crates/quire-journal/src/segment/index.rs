//! The index of one segment: the block of each publisher and sequence, time and topic, and the
//! blocks that have only messages.
//!
//! A *block* is a run of batches of about 64 KiB and the unit that a reader skips or scans. The
//! index of the active segment grows in memory with each flush. When the segment is sealed, the
//! index is written to a file next to it (`index_file`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

use crate::format::{BATCH_BODY_TARGET, BatchHeader, split_raw};
use crate::record::{Position, PublisherId, RecordKind};
use quire_types::Timestamp;

/// The topics of one log. Every name is stored once for all segments, so equal names have equal
/// addresses.
#[derive(Debug, Default)]
pub(crate) struct Names {
    all: Mutex<FxHashSet<Arc<str>>>,
    /// A segment was removed, so some topics may be in no segment.
    may_be_unused: AtomicBool,
}

impl Names {
    /// The single copy of the name.
    pub fn intern(&self, name: &str) -> Arc<str> {
        let mut names = self.all.lock();
        names.get(name).cloned().unwrap_or_else(|| {
            let name: Arc<str> = name.into();
            names.insert(name.clone());
            name
        })
    }

    /// The single copy of the name. Adds it if there are fewer than `count_max` names, and else
    /// returns `None`.
    pub fn admit(&self, name: &Arc<str>, count_max: usize) -> Option<Arc<str>> {
        let mut names = self.all.lock();
        if let Some(known) = names.get(name) {
            return Some(known.clone());
        }
        (names.len() < count_max).then(|| {
            names.insert(name.clone());
            name.clone()
        })
    }

    /// Whether it is one of them.
    pub fn contains(&self, name: &str) -> bool {
        self.all.lock().contains(name)
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.all.lock().len()
    }

    /// The first `count_max` names after `after`, in order.
    pub fn after(&self, after: &str, count_max: usize) -> Vec<Arc<str>> {
        let all = self.all.lock();
        let mut names: Vec<&Arc<str>> = all.iter().filter(|name| ***name > *after).collect();
        if names.len() > count_max {
            names.select_nth_unstable(count_max);
            names.truncate(count_max);
        }
        names.sort_unstable();
        names.into_iter().cloned().collect()
    }

    pub fn segment_removed(&self) {
        self.may_be_unused.store(true, Ordering::Release);
    }

    /// Removes the names that have no other holder. Returns false at once when no segment was
    /// removed since the last call. It calls `release` first, to drop references to names.
    pub fn forget_unused(&self, release: impl FnOnce()) -> bool {
        let is_worth_it = self.may_be_unused.swap(false, Ordering::AcqRel);
        if is_worth_it {
            release();
            self.all.lock().retain(|name| Arc::strong_count(name) > 1);
        }
        is_worth_it
    }
}

/// The topics that a reader wants. Each is asked for once, and not once per segment.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// By the address of the interned name. A weak reference reserves the address, and lets the log
    /// drop the name with its last file.
    decided: FxHashMap<usize, (bool, Weak<str>)>,
}

impl Wanted {
    /// Whether the topic is wanted. Calls `ask` for an unknown topic.
    pub fn wants(&mut self, topic: &Arc<str>, ask: impl FnOnce(&str) -> bool) -> bool {
        let address = topic.as_ptr().addr();
        self.decided.entry(address).or_insert_with(|| (ask(topic), Arc::downgrade(topic))).0
    }

    /// Forgets the topics that the log no longer holds.
    pub fn forget_removed(&mut self) {
        self.decided.retain(|_, (_, topic)| topic.strong_count() > 0);
    }
}

/// The start of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// In the segment, in bytes.
    pub offset: u64,
    pub first: Position,
    pub first_timestamp: Timestamp,
}

/// The highest sequence of a publisher up to the end of a block, without late records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub sequence: u64,
    pub block: u32,
}

/// The marks of one publisher. On a server with very many publishers, most publish once in a
/// segment, which needs no allocation.
pub(crate) type Marks = SmallVec<[Mark; 1]>;

/// The blocks that have one topic. Most topics need no allocation either.
pub(crate) type Blocks = SmallVec<[u32; 2]>;

/// Publisher and sequence, time, and topic to blocks, and where the segment ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    pub blocks: Vec<Block>,
    /// Per publisher, in log order: both members grow.
    pub publishers: FxHashMap<PublisherId, Marks>,
    /// For each topic, the blocks that have it, in order.
    pub topics: FxHashMap<Arc<str>, Blocks>,
    /// The blocks with a record that is not a message, in order. `None` = unknown, because the
    /// index was read from a file of version 1.
    pub with_events: Option<Blocks>,
    /// The positions of the late records, by publisher and sequence.
    pub late: BTreeMap<(PublisherId, u64), Position>,
    pub summary: Summary,
}

/// The facts about the whole content of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Where the next batch would begin, in bytes.
    pub end: u64,
    /// The last position. For an empty segment, the position before it.
    pub last: Position,
    pub first_timestamp: Timestamp,
    pub last_timestamp: Timestamp,
    /// Checksum of the last batch header.
    pub checksum: u32,
    /// Flags of the last batch.
    pub flags: u32,
    /// Records.
    pub count: u64,
}

impl Index {
    /// The index of a segment without records.
    pub fn empty(first: Position, end: u64, previous: u32) -> Self {
        let summary = Summary { end, last: Position(first.0 - 1), checksum: previous, ..Summary::default() };
        Index { summary, with_events: Some(Blocks::new()), ..Index::default() }
    }

    /// Adds the next batch. False when its body does not contain the records that its header
    /// counts.
    #[must_use]
    pub fn add(&mut self, header: &BatchHeader, mut body: &[u8], names: &Names) -> bool {
        let summary = &mut self.summary;
        summary.end = header.offset + header.batch_size() as u64;
        summary.checksum = header.checksum;
        summary.flags = header.flags;
        if header.count == 0 {
            return true;
        }
        if self.blocks.last().is_none_or(|block| header.offset - block.offset >= BATCH_BODY_TARGET as u64) {
            self.blocks.push(Block {
                offset: header.offset,
                first: header.first,
                first_timestamp: header.first_timestamp,
            });
        }
        if summary.count == 0 {
            summary.first_timestamp = header.first_timestamp;
        }
        let block = (self.blocks.len() - 1) as u32;
        let mut topic: Option<&[u8]> = None;
        let mut run: Option<(PublisherId, u64)> = None;
        for position in header.first.0..header.first.0 + u64::from(header.count) {
            let Some((record, rest)) = split_raw(body) else { return false };
            body = rest;
            summary.last_timestamp = record.timestamp();
            if record.kind != RecordKind::Publish {
                note_event(&mut self.with_events, block);
            }
            // Consecutive records mostly have one topic, which was already checked to be text.
            if topic != Some(record.topic) {
                let Ok(name) = std::str::from_utf8(record.topic) else { return false };
                note_topic(&mut self.topics, name, block, names);
                topic = Some(record.topic);
            }
            if record.is_late() {
                self.late.insert((record.publisher(), record.sequence()), Position(position));
                continue;
            }
            if let Some((publisher, sequence)) = run
                && publisher != record.publisher()
            {
                note_publisher(&mut self.publishers, publisher, Mark { sequence, block });
            }
            run = Some((record.publisher(), record.sequence()));
        }
        if let Some((publisher, sequence)) = run {
            note_publisher(&mut self.publishers, publisher, Mark { sequence, block });
        }
        self.summary.last = header.last();
        self.summary.count += u64::from(header.count);
        body.is_empty()
    }

    /// Whether this is the index of the same segment, taken at the same time or later.
    pub fn continues(&self, before: &Index) -> bool {
        self.blocks.starts_with(&before.blocks) && self.summary.last >= before.summary.last
    }

    /// Whether this is the index `made` from the batches of its segment, in all parts that the
    /// version of its file has.
    pub fn agrees_with(&self, made: &Index) -> bool {
        let with_events = if self.with_events.is_some() { &made.with_events } else { &None };
        let Index { blocks, publishers, topics, late, summary, .. } = made;
        self.with_events == *with_events
            && (&self.blocks, &self.publishers, &self.topics, &self.late, self.summary)
                == (blocks, publishers, topics, late, *summary)
    }

    /// The block that has this message, if the segment has it.
    pub fn block_of(&self, publisher: PublisherId, sequence: u64) -> Option<u32> {
        let marks = self.publishers.get(&publisher)?;
        let at = marks.partition_point(|mark| mark.sequence < sequence);
        marks.get(at).map(|mark| mark.block)
    }

    /// The late record of the publisher with this sequence, or the next one: its sequence and its
    /// position.
    pub fn late_from(&self, publisher: PublisherId, sequence: u64) -> Option<(u64, Position)> {
        let mut following = self.late.range((publisher, sequence)..);
        let (at, position) = following.next()?;
        (at.0 == publisher).then_some((at.1, *position))
    }

    /// The block that holds the position. The position must be in the segment.
    pub fn block_at(&self, position: Position) -> usize {
        self.blocks.partition_point(|block| block.first <= position).saturating_sub(1)
    }

    /// Where to end a read of about `step` bytes from `offset`: at the end of a block, so that no
    /// batch is cut, and not before the end of the block of `offset`.
    pub fn read_end(&self, offset: u64, step: u64) -> u64 {
        let reach = offset.saturating_add(step);
        if reach >= self.summary.end {
            return self.summary.end;
        }
        let next = self.blocks.partition_point(|block| block.offset <= reach);
        let last_within =
            next.checked_sub(1).map(|at| self.blocks[at].offset).filter(|start| *start > offset);
        last_within.unwrap_or_else(|| self.blocks.get(next).map_or(self.summary.end, |block| block.offset))
    }

    /// The blocks that hold a wanted topic, in order; `None` when all topics are wanted.
    pub fn blocks_with(&self, mut wants: impl FnMut(&Arc<str>) -> bool) -> Option<Vec<u32>> {
        let mut blocks: Vec<u32> = Vec::new();
        let mut all = true;
        for (topic, its_blocks) in &self.topics {
            if wants(topic) {
                blocks.extend(its_blocks);
            } else {
                all = false;
            }
        }
        if all {
            return None;
        }
        blocks.sort_unstable();
        blocks.dedup();
        Some(blocks)
    }
}

#[cold]
fn note_event(with_events: &mut Option<Blocks>, block: u32) {
    if let Some(blocks) = with_events
        && blocks.last() != Some(&block)
    {
        blocks.push(block);
    }
}

fn note_topic(topics: &mut FxHashMap<Arc<str>, Blocks>, topic: &str, block: u32, names: &Names) {
    match topics.get_mut(topic) {
        Some(blocks) if blocks.last() == Some(&block) => (),
        Some(blocks) => blocks.push(block),
        None => drop(topics.insert(names.intern(topic), smallvec![block])),
    }
}

fn note_publisher(publishers: &mut FxHashMap<PublisherId, Marks>, publisher: PublisherId, mark: Mark) {
    let marks = publishers.entry(publisher).or_default();
    match marks.last_mut() {
        Some(last) if last.block == mark.block => last.sequence = mark.sequence,
        _ => marks.push(mark),
    }
}
