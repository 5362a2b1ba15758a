//! Opening a journal after any end of the process before: what is there, what was cut, what is damaged.
//!
//! A batch says which position was synced when it was written. So when the first bad batch is met, a valid batch behind it that claims its
//! position as synced proves damage, and the journal refuses to open; without such a proof the bytes were never acknowledged, and are
//! cut off: a torn tail. After a clean stop there is nothing to tear, and a bad byte is damage too (reliability J3).

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::clients;
use crate::disk::{Disk, File};
use crate::error::JournalError;
use crate::format::{
    ALIGNMENT, BATCH_HEADER_SIZE, BatchHeader, FLAG_CLOSED, HeaderError, SEGMENT_HEADER_FIELDS,
    SEGMENT_HEADER_SIZE, SegmentHeader,
};
use crate::index::Index;
use crate::log::Log;
use crate::record::{Position, PublisherId};
use crate::segment::{Segment, empty_index, index_path, segment_number, write_whole};

/// How far opening has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of segments looked at.
    pub done_bytes: u64,
    /// Bytes of segments there are.
    pub total_bytes: u64,
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether the journal was closed cleanly before (a new one counts as such).
    pub was_clean: bool,
    /// Segments that hold records.
    pub segments: usize,
    /// Records that are there.
    pub records: u64,
    /// The torn tail that was cut, if there was one. Nothing in it was ever acknowledged.
    pub cut: Option<Cut>,
    /// Indexes that were missing or wrong, and were made again.
    pub indexes_rebuilt: usize,
    /// How long it took.
    pub duration: Duration,
}

/// A torn tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The file.
    pub path: PathBuf,
    /// Where it was cut, in bytes.
    pub offset: u64,
    /// Bytes from there to the last one that was not zero.
    pub size: u64,
    /// What the first bad batch looked like.
    pub reason: &'static str,
}

/// What a journal goes on with.
pub(crate) struct Recovered {
    pub log: Log,
    /// The segment to append to, open; none in a new journal.
    pub active: Option<(Box<dyn File>, Arc<Segment>)>,
    /// The number after the last used segment, and the end of the prepared ones that follow it.
    pub unused: std::ops::Range<u32>,
    pub highest: HashMap<PublisherId, u64>,
    pub recovery: Recovery,
}

/// A segment file and what its header says.
struct Found {
    number: u32,
    path: PathBuf,
    size: u64,
    file: Box<dyn File>,
    header: Result<SegmentHeader, HeaderError>,
}

/// Reads the directory without changing it.
pub(crate) fn load(
    disk: Arc<dyn Disk>,
    directory: &Path,
    follows: bool,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Recovered, JournalError> {
    let found = find_segments(&*disk, directory, follows)?;
    let used = count_used(&found)?;
    let mut recovered = Recovered {
        log: Log::new(directory.to_owned(), disk.clone(), follows),
        active: None,
        unused: found
            .get(used.wrapping_sub(1))
            .map_or_else(|| found.first().map_or(0, |first| first.number), |last| last.number + 1)
            ..found.last().map_or(0, |last| last.number + 1),
        highest: clients::read(&*disk, directory),
        recovery: Recovery { was_clean: true, segments: used, ..Recovery::default() },
    };
    let total_bytes = found.iter().take(used).map(|segment| segment.size).sum();
    let mut done_bytes = 0;
    let mut before: Option<Arc<Segment>> = None;
    for (at, segment) in found.into_iter().take(used).enumerate() {
        let Ok(header) = segment.header else { continue };
        if let Some(before) = &before {
            check_follows(before, &segment.path, &header)?;
        }
        let Found { path, size, file, .. } = segment;
        let is_last = at + 1 == used;
        let kept = if is_last { None } else { read_index(&*disk, &path, &header) };
        let needs_scan = kept.is_none();
        let segment = Segment::new(path, &header, &*file, kept.unwrap_or_else(|| empty_index(&header)))?;
        if needs_scan && !is_last {
            rebuild(&segment, &*disk, directory, follows)?;
            recovered.recovery.indexes_rebuilt += 1;
        }
        if is_last {
            recovered.active = Some((file, segment.clone()));
        } else {
            recovered.log.note_sealed(&segment);
        }
        done_bytes += size;
        on_progress(Progress { done_bytes, total_bytes });
        before = Some(segment.clone());
        recovered.log.segments.write().push(segment);
    }
    Ok(recovered)
}

/// Reads the directory, cuts a torn tail, makes what is there durable, and gives what a writer goes on with.
pub(crate) fn recover(
    disk: Arc<dyn Disk>,
    directory: &Path,
    on_progress: &mut dyn FnMut(Progress),
) -> Result<Recovered, JournalError> {
    let started = std::time::Instant::now();
    let mut recovered = load(disk, directory, false, on_progress)?;
    if let Some((file, segment)) = &recovered.active {
        let (cut, was_clean) = recover_tail(&**file, segment)?;
        recovered.recovery.cut = cut;
        recovered.recovery.was_clean = was_clean;
    }
    finish(&mut recovered);
    recovered.recovery.duration = started.elapsed();
    Ok(recovered)
}

/// Takes the active segment in as far as it is whole, for a reader beside a running writer.
pub(crate) fn load_tail(recovered: &mut Recovered) {
    if let Some((_, segment)) = &recovered.active {
        let mut index = segment.index.write();
        segment.scan(&mut index, |_| ());
    }
    finish(recovered);
}

/// Looks for batches and segments that the writer of another process added.
pub(crate) fn follow(log: &Log) -> Result<(), JournalError> {
    let _one_at_a_time = log.following.lock();
    loop {
        let last = log.segments.read().last().cloned();
        let next_number = match &last {
            Some(last) => {
                let mut index = last.index.write();
                last.scan(&mut index, |_| ());
                let position = index.summary.last;
                drop(index);
                if position > log.persisted() {
                    log.advance(position, 0);
                }
                last.number + 1
            }
            None => 0,
        };
        let next = find_segments(&*log.disk, &log.directory, true)?
            .into_iter()
            .find(|found| found.number == next_number);
        let Some(Found { path, file, header: Ok(header), .. }) = next else { return Ok(()) };
        // The writer fills a segment before it begins the next: one more look at the old one, then on.
        if let Some(last) = last {
            let mut index = last.index.write();
            last.scan(&mut index, |_| ());
            if index.summary.last.next() != header.first {
                return Ok(());
            }
            drop(index);
            log.note_sealed(&last);
        }
        let segment = Segment::new(path, &header, &*file, empty_index(&header))?;
        log.segments.write().push(segment);
    }
}

fn finish(recovered: &mut Recovered) {
    let mut raise = |publisher: &PublisherId, sequence: u64| {
        let known = recovered.highest.entry(*publisher).or_insert(0);
        *known = sequence.max(*known);
    };
    for (publisher, segments) in &*recovered.log.sealed_publishers.read() {
        segments.last().into_iter().for_each(|(sequence, _)| raise(publisher, *sequence));
    }
    if let Some((_, segment)) = &recovered.active {
        for (publisher, marks) in &segment.index.read().publishers {
            marks.last().into_iter().for_each(|mark| raise(publisher, mark.sequence));
        }
        recovered.log.advance(segment.summary().last, 0);
    }
    recovered.recovery.records =
        recovered.log.segments.read().iter().map(|segment| segment.summary().count).sum();
}

fn find_segments(disk: &dyn Disk, directory: &Path, read_only: bool) -> Result<Vec<Found>, JournalError> {
    let names =
        disk.list(directory).map_err(|error| JournalError::io(directory, "listing the directory", &error))?;
    let mut numbered: Vec<(u32, String)> =
        names.into_iter().filter_map(|name| segment_number(&name).map(|number| (number, name))).collect();
    numbered.sort_unstable();
    let mut found: Vec<Found> = Vec::with_capacity(numbered.len());
    for (number, name) in numbered {
        let path = directory.join(name);
        if let Some(before) = found.last()
            && before.number + 1 != number
        {
            let (directory, missing) = (directory.to_owned(), before.number + 1);
            return Err(match before.number == number {
                true => JournalError::BadOption {
                    option: "journal_directory",
                    reason: format!("two files have the number {number:010}"),
                },
                false => JournalError::Gap { directory, missing },
            });
        }
        let opened = if read_only { disk.open_read_only(&path) } else { disk.open(&path) };
        let read = opened.and_then(|file| {
            let mapping = file.map()?;
            let header = SegmentHeader::decode(mapping.bytes(0, SEGMENT_HEADER_FIELDS).unwrap_or_default());
            Ok(Found { number, path: path.clone(), size: mapping.size() as u64, file, header })
        });
        found.push(read.map_err(|error| JournalError::io(&path, "opening the segment", &error))?);
    }
    Ok(found)
}

/// How many of the segments are in use: the last one with a header, and all before it.
fn count_used(found: &[Found]) -> Result<usize, JournalError> {
    let used = found.iter().rposition(|segment| segment.header.is_ok()).map_or(0, |at| at + 1);
    for (at, segment) in found.iter().enumerate() {
        let corrupt = |reason| JournalError::Corrupt {
            path: segment.path.clone(),
            offset: 0,
            reason,
            readable_to: Position::ZERO,
        };
        if segment.size < SEGMENT_HEADER_SIZE {
            return Err(corrupt("the file is shorter than a segment header"));
        }
        match segment.header {
            Err(HeaderError::Version(version)) => {
                return Err(JournalError::Version { path: segment.path.clone(), version });
            }
            Ok(header) if header.number != segment.number => {
                return Err(corrupt("the segment belongs to another place"));
            }
            Ok(header) if header.size > segment.size => {
                return Err(corrupt("the file is shorter than its header says"));
            }
            Ok(_) => (),
            Err(HeaderError::Unused) if at < used => {
                return Err(corrupt("the segment header is empty, but later segments are in use"));
            }
            Err(HeaderError::Bad(reason)) if at < used => return Err(corrupt(reason)),
            // A header that was torn while the segment was begun: nothing in it was acknowledged, unless a batch knows better.
            Err(HeaderError::Unused) if was_synced(segment)? => {
                return Err(corrupt("the segment header is empty, but its batches were synced"));
            }
            Err(HeaderError::Bad(reason)) if was_synced(segment)? => return Err(corrupt(reason)),
            Err(_) => (),
        }
    }
    Ok(used)
}

/// Whether a batch of the segment knows that the first one in it was synced.
fn was_synced(segment: &Found) -> Result<bool, JournalError> {
    let mapping =
        segment.file.map().map_err(|error| JournalError::io(&segment.path, "mapping the segment", &error))?;
    let header = |at| {
        BatchHeader::decode(mapping.bytes(at, BATCH_HEADER_SIZE).unwrap_or_default(), segment.number, at)
    };
    let Ok(first) = header(SEGMENT_HEADER_SIZE) else { return Ok(false) };
    let offsets = (SEGMENT_HEADER_SIZE..segment.size).step_by(ALIGNMENT);
    Ok(offsets.into_iter().any(|at| header(at).is_ok_and(|header| header.synced >= first.first)))
}

fn check_follows(before: &Segment, path: &Path, header: &SegmentHeader) -> Result<(), JournalError> {
    let summary = before.summary();
    if header.first != summary.last.next() || header.previous != summary.checksum {
        let (path, readable_to) = (path.to_owned(), summary.last);
        return Err(JournalError::Corrupt {
            path,
            offset: 0,
            reason: "the segment does not follow the one before it",
            readable_to,
        });
    }
    Ok(())
}

fn read_index(disk: &dyn Disk, segment: &Path, header: &SegmentHeader) -> Option<Index> {
    Index::decode(&disk.read(&index_path(segment)).ok()?, header.number, header.first)
}

/// Makes the index of a sealed segment again. Everything in it was synced before the next segment began, so whatever does not decode is
/// damage; what ends it is known only by the segment after it (`check_follows`).
fn rebuild(
    segment: &Segment,
    disk: &dyn Disk,
    directory: &Path,
    read_only: bool,
) -> Result<(), JournalError> {
    let mut index = segment.index.write();
    let reason = segment.scan(&mut index, |_| ());
    let (end, last) = (index.summary.end, index.summary.last);
    if first_nonzero(segment, end).is_some() {
        return Err(segment.corrupt(end, reason, last));
    }
    if !read_only {
        write_whole(
            disk,
            directory,
            &index_path(&segment.path),
            &index.encode(segment.number, segment.first),
        )?;
    }
    Ok(())
}

/// Takes in the active segment, cuts its torn tail, and makes the rest durable. Gives what was cut, and whether the stop was clean.
fn recover_tail(file: &dyn File, segment: &Segment) -> Result<(Option<Cut>, bool), JournalError> {
    let mut index = segment.index.write();
    let mut synced = Position::ZERO;
    let mut unsynced: VecDeque<(Position, u64)> = VecDeque::new();
    let reason = segment.scan(&mut index, |header| {
        synced = synced.max(header.synced);
        // A marker has no position of its own: what proves that it was synced is a sync of the position after it.
        let proof = if header.count == 0 { header.first } else { header.last() };
        unsynced.push_back((proof, header.offset));
        while unsynced.front().is_some_and(|(last, _)| *last <= synced) {
            unsynced.pop_front();
        }
    });
    let summary = index.summary;
    let was_clean = summary.flags == FLAG_CLOSED || summary.end == SEGMENT_HEADER_SIZE;
    let mut cut = None;
    if let Some((_, last)) = first_nonzero(segment, summary.end) {
        let closed = summary.flags == FLAG_CLOSED;
        if closed || proves_synced(segment, summary.end, summary.last.next()) {
            return Err(segment.corrupt(summary.end, reason, summary.last));
        }
        let size = last + 1 - summary.end;
        zero(file, segment, summary.end, size)?;
        cut = Some(Cut { path: segment.path.clone(), offset: summary.end, size, reason });
    }
    // After a failed sync the pages may be in memory only, and marked clean: written again they are on their way to the disk once more
    // (reliability J5).
    let from = unsynced.front().map_or(summary.end, |(_, offset)| *offset);
    let bytes = segment.mapping.bytes(from, (summary.end - from) as usize).unwrap_or_default();
    let head = segment.mapping.bytes(0, SEGMENT_HEADER_FIELDS).unwrap_or_default();
    let durable = file.write_at(bytes, from).and_then(|()| file.write_at(head, 0)).and_then(|()| file.sync());
    durable.map_err(|error| JournalError::io(&segment.path, "syncing the recovered tail", &error))?;
    Ok((cut, was_clean))
}

/// Whether a valid batch behind `offset` says that `position` was synced when it was written.
fn proves_synced(segment: &Segment, offset: u64, position: Position) -> bool {
    let mut at = offset;
    while at + (BATCH_HEADER_SIZE as u64) <= segment.size {
        if segment.header(at).is_ok_and(|header| header.synced >= position) {
            return true;
        }
        at += ALIGNMENT as u64;
    }
    false
}

/// The offsets of the first and the last byte from `offset` on that are not zero.
fn first_nonzero(segment: &Segment, offset: u64) -> Option<(u64, u64)> {
    let bytes = segment.mapping.bytes(offset, segment.size.checked_sub(offset)? as usize)?;
    let first = bytes.iter().position(|byte| *byte != 0)?;
    let last = bytes.iter().rposition(|byte| *byte != 0)?;
    Some((offset + first as u64, offset + last as u64))
}

fn zero(file: &dyn File, segment: &Segment, offset: u64, size: u64) -> Result<(), JournalError> {
    let zeros = vec![0; size as usize];
    file.write_at(&zeros, offset)
        .map_err(|error| JournalError::io(&segment.path, "cutting a torn tail", &error))
}
