//! Where things are in one segment: publisher and sequence, time and topic, each to a block.
//!
//! A *block* is a run of batches of about 64 KiB and the unit that a reader skips or scans. The index of the active segment grows in
//! memory with each flush; when the segment is sealed it is written beside it as `<segment>.index`, with a checksum. A missing or wrong
//! file is rebuilt from the segment: the index is never the truth.

use std::collections::{BTreeMap, HashMap};

use crate::format::{BATCH_BODY_TARGET, BatchHeader, split_record, u32_at, u64_at};
use crate::record::{Position, PublisherId};
use crate::timestamp::Timestamp;

const MAGIC: [u8; 8] = *b"QUIREIDX";
const VERSION: u32 = 1;

/// Where a block begins and what it begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// In the segment, in bytes.
    pub offset: u64,
    pub first: Position,
    pub first_timestamp: Timestamp,
}

/// The highest sequence of a publisher up to the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub sequence: u64,
    pub block: u32,
}

/// Publisher and sequence, time, and topic to blocks, and where the segment ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    pub blocks: Vec<Block>,
    /// Per publisher, in log order: both members grow.
    pub publishers: HashMap<PublisherId, Vec<Mark>>,
    /// Per topic the blocks that hold it, in order.
    pub topics: BTreeMap<Box<str>, Vec<u32>>,
    pub summary: Summary,
}

/// What is known of the contents of a segment as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Where the next batch would begin, in bytes.
    pub end: u64,
    /// The last position; that before the segment when it is empty.
    pub last: Position,
    pub first_timestamp: Timestamp,
    pub last_timestamp: Timestamp,
    /// Checksum of the last batch header.
    pub checksum: u32,
    /// Flags of the last batch.
    pub flags: u16,
    /// Records.
    pub count: u64,
}

impl Index {
    /// An index of a segment that holds nothing yet.
    pub fn empty(first: Position, end: u64, previous: u32) -> Self {
        let summary = Summary { end, last: Position(first.0 - 1), checksum: previous, ..Summary::default() };
        Index { summary, ..Index::default() }
    }

    /// Takes in the batch that follows; false when its body does not hold the records that its header counts.
    #[must_use]
    pub fn add(&mut self, header: &BatchHeader, mut body: &[u8]) -> bool {
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
        let mut before: Option<(PublisherId, &str)> = None;
        let mut run: Option<(PublisherId, u64)> = None;
        for i in 0..u64::from(header.count) {
            let Some((record, rest)) = split_record(body, Position(header.first.0 + i)) else { return false };
            body = rest;
            summary.last_timestamp = record.timestamp;
            if before.is_none_or(|(_, topic)| topic != record.topic) {
                note_topic(&mut self.topics, record.topic, block);
            }
            if let Some((publisher, sequence)) = run
                && publisher != record.publisher
            {
                note_publisher(&mut self.publishers, publisher, Mark { sequence, block });
            }
            run = Some((record.publisher, record.sequence));
            before = Some((record.publisher, record.topic));
        }
        if let Some((publisher, sequence)) = run {
            note_publisher(&mut self.publishers, publisher, Mark { sequence, block });
        }
        self.summary.last = header.last();
        self.summary.count += u64::from(header.count);
        body.is_empty()
    }

    /// The block that would hold this message, if the segment does.
    pub fn block_of(&self, publisher: PublisherId, sequence: u64) -> Option<u32> {
        let marks = self.publishers.get(&publisher)?;
        let at = marks.partition_point(|mark| mark.sequence < sequence);
        marks.get(at).map(|mark| mark.block)
    }

    /// The block that holds the position, for one that lies in the segment.
    pub fn block_at(&self, position: Position) -> usize {
        self.blocks.partition_point(|block| block.first <= position).saturating_sub(1)
    }

    /// The blocks that hold a wanted topic, in order; `None` when all do.
    pub fn blocks_with(&self, wants: &dyn Fn(&str) -> bool) -> Option<Vec<u32>> {
        if self.topics.keys().all(|topic| wants(topic)) {
            return None;
        }
        let mut blocks: Vec<u32> = self
            .topics
            .iter()
            .filter(|(topic, _)| wants(topic))
            .flat_map(|(_, blocks)| blocks)
            .copied()
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        Some(blocks)
    }

    /// The file for a sealed segment.
    pub fn encode(&self, segment: u32, first: Position) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + self.blocks.len() * 24);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let put32 = |out: &mut Vec<u8>, value: u32| out.extend_from_slice(&value.to_le_bytes());
        let put64 = |out: &mut Vec<u8>, value: u64| out.extend_from_slice(&value.to_le_bytes());
        put32(&mut out, segment);
        put32(&mut out, self.summary.checksum);
        put64(&mut out, first.0);
        put64(&mut out, self.summary.end);
        put64(&mut out, self.summary.last.0);
        put64(&mut out, self.summary.first_timestamp.0);
        put64(&mut out, self.summary.last_timestamp.0);
        put64(&mut out, self.summary.count);
        put32(&mut out, u32::from(self.summary.flags));
        put32(&mut out, self.blocks.len() as u32);
        put32(&mut out, self.publishers.len() as u32);
        put32(&mut out, self.topics.len() as u32);
        for block in &self.blocks {
            put64(&mut out, block.offset);
            put64(&mut out, block.first.0);
            put64(&mut out, block.first_timestamp.0);
        }
        let mut publishers: Vec<_> = self.publishers.iter().collect();
        publishers.sort_unstable_by_key(|(publisher, _)| **publisher);
        for (publisher, marks) in publishers {
            put64(&mut out, publisher.0);
            put32(&mut out, marks.len() as u32);
            for mark in marks {
                put64(&mut out, mark.sequence);
                put32(&mut out, mark.block);
            }
        }
        for (topic, blocks) in &self.topics {
            put32(&mut out, topic.len() as u32);
            out.extend_from_slice(topic.as_bytes());
            put32(&mut out, blocks.len() as u32);
            blocks.iter().for_each(|block| put32(&mut out, *block));
        }
        let checksum = crc32c::crc32c(&out[16..]);
        out[12..16].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads such a file; `None` when it is not whole, or belongs to another segment.
    pub fn decode(bytes: &[u8], segment: u32, first: Position) -> Option<Self> {
        if bytes.len() < 96 || bytes[..8] != MAGIC || u32_at(bytes, 8) != VERSION {
            return None;
        }
        if crc32c::crc32c(&bytes[16..]) != u32_at(bytes, 12)
            || u32_at(bytes, 16) != segment
            || u64_at(bytes, 24) != first.0
        {
            return None;
        }
        let summary = Summary {
            checksum: u32_at(bytes, 20),
            end: u64_at(bytes, 32),
            last: Position(u64_at(bytes, 40)),
            first_timestamp: Timestamp(u64_at(bytes, 48)),
            last_timestamp: Timestamp(u64_at(bytes, 56)),
            count: u64_at(bytes, 64),
            flags: u32_at(bytes, 72) as u16,
        };
        let (block_count, publisher_count, topic_count) =
            (u32_at(bytes, 76), u32_at(bytes, 80), u32_at(bytes, 84));
        let mut rest = Rest(&bytes[88..]);
        let mut index = Index { summary, ..Index::default() };
        for _ in 0..block_count {
            let (offset, first) = (rest.u64()?, Position(rest.u64()?));
            index.blocks.push(Block { offset, first, first_timestamp: Timestamp(rest.u64()?) });
        }
        for _ in 0..publisher_count {
            let publisher = PublisherId(rest.u64()?);
            let count = rest.u32()?;
            let mut marks = Vec::new();
            for _ in 0..count {
                let (sequence, block) = (rest.u64()?, rest.u32()?);
                marks.push(Mark { sequence, block: (block < block_count).then_some(block)? });
            }
            index.publishers.insert(publisher, marks);
        }
        for _ in 0..topic_count {
            let size = rest.u32()? as usize;
            let topic = std::str::from_utf8(rest.bytes(size)?).ok()?;
            let count = rest.u32()?;
            let mut blocks = Vec::new();
            for _ in 0..count {
                let block = rest.u32()?;
                blocks.push((block < block_count).then_some(block)?);
            }
            index.topics.insert(topic.into(), blocks);
        }
        rest.0.is_empty().then_some(index)
    }
}

fn note_topic(topics: &mut BTreeMap<Box<str>, Vec<u32>>, topic: &str, block: u32) {
    match topics.get_mut(topic) {
        Some(blocks) if blocks.last() == Some(&block) => (),
        Some(blocks) => blocks.push(block),
        None => drop(topics.insert(topic.into(), vec![block])),
    }
}

fn note_publisher(publishers: &mut HashMap<PublisherId, Vec<Mark>>, publisher: PublisherId, mark: Mark) {
    let marks = publishers.entry(publisher).or_default();
    match marks.last_mut() {
        Some(last) if last.block == mark.block => last.sequence = mark.sequence,
        _ => marks.push(mark),
    }
}

/// Reads from the front of an index file, never further than it reaches.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, size: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes(4).map(|bytes| u32_at(bytes, 0))
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes(8).map(|bytes| u64_at(bytes, 0))
    }
}
