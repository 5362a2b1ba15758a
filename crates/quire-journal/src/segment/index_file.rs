//! The index of a sealed segment as a file, `<segment>.index`. It is only a copy: a missing or
//! wrong file is made again.

use std::sync::Arc;

use crate::atomic_file;
use crate::format::{POSITION_MAX, SEGMENT_HEADER_SIZE, SegmentHeader, u32_at, u64_at};
use crate::record::{Position, PublisherId};
use crate::segment::index::{Block, Blocks, Index, Mark, Marks, Names, Summary};
use crate::segment::sums::{Sums, for_each_in};
use quire_types::Timestamp;

const MAGIC: [u8; 8] = *b"QUIREIDX";
/// Contains the late records, and the sums of the records.
const VERSION: u32 = 3;
/// Without these parts.
const VERSION_2: u32 = 2;
/// Does not contain which blocks have only messages.
const VERSION_1: u32 = 1;
const HEAD_SIZE: usize = 84;

/// Bytes of the place of the sums, which is at the end; 0 = there are none.
const PLACE_SIZE: usize = 8;

/// The file without its checksum. `sums` are those of the records, if they are known.
pub(crate) fn encode(index: &Index, sums: Option<&Sums>, segment: u32, first: Position) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + index.blocks.len() * 24);
    let put32 = |out: &mut Vec<u8>, value: u32| out.extend_from_slice(&value.to_le_bytes());
    let put64 = |out: &mut Vec<u8>, value: u64| out.extend_from_slice(&value.to_le_bytes());
    let summary = &index.summary;
    out.extend_from_slice(&MAGIC);
    let version = version_of(index, sums.is_some());
    put32(&mut out, version);
    put32(&mut out, segment);
    put32(&mut out, summary.checksum);
    put32(&mut out, summary.flags);
    put64(&mut out, first.0);
    put64(&mut out, summary.end);
    put64(&mut out, summary.last.0);
    put64(&mut out, summary.first_timestamp.0);
    put64(&mut out, summary.last_timestamp.0);
    put64(&mut out, summary.count);
    put32(&mut out, index.blocks.len() as u32);
    put32(&mut out, index.publishers.len() as u32);
    put32(&mut out, index.topics.len() as u32);
    for block in &index.blocks {
        put64(&mut out, block.offset);
        put64(&mut out, block.first.0);
        put64(&mut out, block.first_timestamp.0);
    }
    let mut publishers: Vec<_> = index.publishers.iter().collect();
    publishers.sort_unstable_by_key(|(publisher, _)| **publisher);
    for (publisher, marks) in publishers {
        put64(&mut out, publisher.0);
        put32(&mut out, marks.len() as u32);
        for mark in marks {
            put64(&mut out, mark.sequence);
            put32(&mut out, mark.block);
        }
    }
    let mut topics: Vec<(&Arc<str>, &Blocks)> = index.topics.iter().collect();
    topics.sort_unstable();
    for (topic, blocks) in topics {
        put32(&mut out, topic.len() as u32);
        out.extend_from_slice(topic.as_bytes());
        put32(&mut out, blocks.len() as u32);
        blocks.iter().for_each(|block| put32(&mut out, *block));
    }
    if let Some(blocks) = &index.with_events {
        put32(&mut out, blocks.len() as u32);
        blocks.iter().for_each(|block| put32(&mut out, *block));
    }
    if version == VERSION {
        put32(&mut out, index.late.len() as u32);
        for ((publisher, sequence), position) in &index.late {
            [publisher.0, *sequence, position.0].into_iter().for_each(|value| put64(&mut out, value));
        }
        let place = sums.map_or(0, |_| out.len() as u64);
        sums.into_iter().for_each(|sums| sums.encode(&mut out));
        put64(&mut out, place);
    }
    out
}

/// The oldest version that has the parts that are known.
fn version_of(index: &Index, has_sums: bool) -> u32 {
    match index.with_events {
        None => VERSION_1,
        Some(_) if has_sums || !index.late.is_empty() => VERSION,
        Some(_) => VERSION_2,
    }
}

/// The sums in the file of this index, which [`for_each_in`] reads; `None` when it has none, is not
/// whole, or belongs to another segment or to fewer records.
pub(crate) fn sums<'a>(bytes: &'a [u8], index: &Index, segment: u32) -> Option<&'a [u8]> {
    let bytes = atomic_file::checked(bytes)?;
    let head = bytes.get(..HEAD_SIZE)?;
    let Summary { end, last, checksum, .. } = index.summary;
    let is_of_index = u32_at(head, 12) == segment
        && (u32_at(head, 16), u64_at(head, 32), u64_at(head, 40)) == (checksum, end, last.0);
    (head[..8] == MAGIC && u32_at(head, 8) == VERSION && is_of_index).then_some(())?;
    let (bytes, place) = bytes.split_last_chunk::<PLACE_SIZE>()?;
    let place = usize::try_from(u64_at(place, 0)).ok().filter(|place| *place >= HEAD_SIZE)?;
    let sums = bytes.get(place..)?;
    for_each_in(sums, |_, _| ())?;
    Some(sums)
}

/// Reads such a file; `None` when it is not whole, belongs to another segment, or contradicts
/// itself.
pub(crate) fn decode(bytes: &[u8], header: &SegmentHeader, names: &Names) -> Option<Index> {
    let bytes = atomic_file::checked(bytes)?;
    let (head, rest) = bytes.split_at_checked(HEAD_SIZE)?;
    let version = u32_at(head, 8);
    if head[..8] != MAGIC
        || !(VERSION_1..=VERSION).contains(&version)
        || u32_at(head, 12) != header.number
        || u64_at(head, 24) != header.first.0
    {
        return None;
    }
    let summary = Summary {
        checksum: u32_at(head, 16),
        flags: u32_at(head, 20),
        end: u64_at(head, 32),
        last: Position(u64_at(head, 40)),
        first_timestamp: Timestamp(u64_at(head, 48)),
        last_timestamp: Timestamp(u64_at(head, 56)),
        count: u64_at(head, 64),
    };
    let (block_count, publisher_count, topic_count) = (u32_at(head, 72), u32_at(head, 76), u32_at(head, 80));
    let mut rest = Rest(rest);
    let mut index = Index { summary, ..Index::default() };
    for _ in 0..block_count {
        let (offset, first) = (rest.u64()?, Position(rest.u64()?));
        index.blocks.push(Block { offset, first, first_timestamp: Timestamp(rest.u64()?) });
    }
    for _ in 0..publisher_count {
        let publisher = PublisherId(rest.u64()?);
        let count = rest.u32()?;
        let mut marks = Marks::new();
        for _ in 0..count {
            marks.push(Mark { sequence: rest.u64()?, block: rest.u32()? });
        }
        index.publishers.insert(publisher, marks);
    }
    for _ in 0..topic_count {
        let size = rest.u32()? as usize;
        let topic = std::str::from_utf8(rest.bytes(size)?).ok()?;
        index.topics.insert(names.intern(topic), rest.block_list()?);
    }
    if version != VERSION_1 {
        index.with_events = Some(rest.block_list()?);
    }
    if version == VERSION {
        for _ in 0..rest.u32()? {
            let message = (PublisherId(rest.u64()?), rest.u64()?);
            index.late.insert(message, Position(rest.u64()?));
        }
        let here = (bytes.len() - rest.0.len()) as u64;
        let (sums, place) = rest.0.split_last_chunk::<PLACE_SIZE>()?;
        match u64_at(place, 0) {
            0 if sums.is_empty() => (),
            place if place == here => for_each_in(sums, |_, _| ())?,
            _ => return None,
        }
        rest.0 = &[];
    }
    (rest.0.is_empty() && is_possible(&index, header)).then_some(index)
}

/// Whether the index can be that of the segment: its offsets are in order and inside of the
/// segment, so that readers can use them without checks.
fn is_possible(index: &Index, header: &SegmentHeader) -> bool {
    let Summary { end, last, count, .. } = index.summary;
    let block_count = index.blocks.len() as u32;
    let blocks_lie_inside = match (index.blocks.first(), index.blocks.last()) {
        (Some(first), Some(final_block)) => {
            first.offset >= SEGMENT_HEADER_SIZE
                && first.first == header.first
                && final_block.offset < end
                && final_block.first <= last
        }
        _ => count == 0,
    };
    (SEGMENT_HEADER_SIZE..=header.size).contains(&end)
        && last.0 <= POSITION_MAX
        && last.0.checked_sub(header.first.0 - 1) == Some(count)
        && blocks_lie_inside
        && index.late.values().all(|position| (header.first..=last).contains(position))
        && index.blocks.is_sorted_by(|a, b| a.offset < b.offset && a.first < b.first)
        && index.publishers.values().all(|marks| {
            marks.iter().all(|mark| mark.block < block_count)
                && marks.is_sorted_by(|a, b| a.sequence <= b.sequence && a.block < b.block)
        })
        && index.topics.values().chain(&index.with_events).all(|blocks| {
            blocks.iter().all(|block| *block < block_count) && blocks.is_sorted_by(|a, b| a < b)
        })
}

/// Reads from the front of an index file, never beyond its end.
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

    fn block_list(&mut self) -> Option<Blocks> {
        let count = self.u32()?;
        let mut blocks = Blocks::new();
        for _ in 0..count {
            blocks.push(self.u32()?);
        }
        Some(blocks)
    }
}
