//! Opens a journal after any end of the previous process, and reports the segments, a cut tail and
//! damage.
//!
//! Every batch contains the position that was synced when it was written. Suppose a batch is bad.
//! If a later valid batch contains the position of the bad one as synced, the bad one is damaged,
//! and the journal refuses to open. Without such a proof the bytes were never acknowledged. They
//! are a torn tail, and are cut off. After a clean stop there is no torn tail, so a bad byte is
//! damage too.

pub(crate) mod beginning;
pub(crate) mod directory;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::atomic_file;
use crate::disk::{Disk, File};
use crate::error::JournalError;
use crate::format::{
    ALIGNMENT, BATCH_HEADER_SIZE, BatchHeader, FLAG_CLOSED, HeaderError, RUNS_SINCE, SEGMENT_HEADER_FIELDS,
    SEGMENT_HEADER_SIZE, SegmentHeader,
};
use crate::knowledge::{Knowledge, Step};
use crate::log::Log;
use crate::maintenance::archive_directory;
use crate::publishers::{ClientsFile, ClientsFound, Publishers};
use crate::record::Position;
use crate::recover::beginning::{Beginning, Known, Missing};
use crate::recover::directory::{Files, Found, LIST_COUNT_MAX, find_segments, settle, tidy};
use crate::segment::index::{Index, Names};
use crate::segment::index_file;
use crate::segment::open_files::OpenFile;
use crate::segment::sums::Sums;
use crate::segment::view::READ_STEP;
use crate::segment::{
    Segment, empty_index, error_of, for_each_chunk, for_each_step, index_path, older_path, read_shape,
    segment_number, segment_path,
};

/// The progress of opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// Bytes of segments that were read.
    pub done_bytes: u64,
    /// Bytes of all segments.
    pub total_bytes: u64,
}

/// The result of opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether the journal was closed cleanly before (a new one counts as such).
    pub was_clean: bool,
    /// Segments with records.
    pub segments: usize,
    /// Records in them.
    pub records: u64,
    /// The torn tail that was cut, if there was one. No record in it was ever acknowledged.
    pub cut: Option<Cut>,
    /// Indexes that were missing or wrong, and were made again.
    pub indexes_rebuilt: usize,
    /// `clients.ack` is missing or damaged, and older segments were removed. Publishers that had
    /// records only in those are unknown now. If they send the records again, these are recorded a
    /// second time.
    pub sequences_lost: bool,
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
    /// Bytes from there to the last byte that was not zero.
    pub size: u64,
    /// The reason why the first bad batch is bad.
    pub reason: &'static str,
}

/// The state with which a journal continues.
pub(crate) struct Recovered {
    pub log: Log,
    /// The segment to append to; none in a new journal.
    pub active: Option<Arc<Segment>>,
    /// The number after the last used segment, and the number after the prepared segments that
    /// follow it.
    pub unused: std::ops::Range<u32>,
    /// Files that were prepared by another build under other names, and never used.
    spare: Vec<PathBuf>,
    /// The knowledge about publishers; of the sealed segments until the active one was read.
    pub knowledge: Knowledge,
    /// The content of `clients.ack` as it was read, until a writer makes the knowledge of it.
    clients: ClientsFile,
    /// The new content of `clients.ack`, when that lags or has an older version. To be written
    /// before anything is appended, and when there is a segment.
    pub unwritten: Option<ClientsFile>,
    /// The missing files at the front that were given up.
    pub given_up: Option<Missing>,
    pub recovery: Recovery,
}

impl Recovered {
    /// Makes the knowledge at the end of the sealed segments from that in `clients.ack` and the
    /// segments after it. Mostly the file covers all of them.
    fn learn(&mut self) -> Result<Knowledge, JournalError> {
        let segments = self.log.segments.read().clone();
        let clients = &mut self.clients;
        let is_newest = clients.counted_after.is_some();
        clients.upgrade(&segments);
        let has_more = clients.cover(&segments[..segments.len().saturating_sub(1)], &mut |_, _| ())?;
        let beginning = Some(self.log.publishers.read().beginning);
        if !is_newest || has_more || clients.beginning != beginning {
            clients.beginning = beginning;
            // Sealed segments are synced.
            let synced = if has_more { clients.covers } else { Position::ZERO };
            let durable = clients.durable.max(synced);
            self.unwritten = Some(ClientsFile { durable, ..clients.clone() });
        }
        Ok(std::mem::take(&mut clients.knowledge))
    }
}

/// How a log is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// For reading, while another process may write.
    Follow,
    Write,
    /// As `Write`, and missing oldest files are given up.
    GiveUpMissing,
}

/// The facts about a journal before its segments are read.
struct Looked {
    clients: ClientsFound,
    archive: Option<PathBuf>,
    files: Files,
    missing: Option<Missing>,
}

/// Finds the files of the log, and the missing files at its front.
fn look(
    disk: &dyn Disk,
    directory: &Path,
    named: Option<&Path>,
    read_only: bool,
) -> Result<Looked, JournalError> {
    let mut tries = 1;
    loop {
        // Before the segments, which may grow in the meantime.
        let clients = ClientsFile::read(disk, directory)?;
        let archive = archive_directory::resolve(disk, directory, named)?;
        let known = Known { disk, directory, named, clients: &clients };
        let found = find_segments(disk, directory, archive.as_deref())
            .and_then(|files| Ok((known.missing(&files.segments)?, files)));
        // A missing file may have been archived or removed on purpose during the search.
        if !matches!(found, Ok((None, _))) && read_only && tries < LIST_COUNT_MAX {
            tries += 1;
            if archive != archive_directory::resolve(disk, directory, named)?
                || clients.beginning() != ClientsFile::read(disk, directory)?.beginning()
            {
                continue;
            }
        }
        let (missing, files) = found?;
        return Ok(Looked { clients, archive, files, missing });
    }
}

/// Reads the directory without changing it.
fn load(
    disk: Arc<dyn Disk>,
    directory: &Path,
    named_archive: Option<&Path>,
    mode: Mode,
    on_progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<Recovered, JournalError> {
    let follows = mode == Mode::Follow;
    let Looked { clients, archive, files, missing } = look(&*disk, directory, named_archive, follows)?;
    let Files { segments: found, mut spare } = files;
    if let Some(Missing { first, last }) = missing
        && (mode != Mode::GiveUpMissing || last.is_none())
    {
        let archive = archive_directory::read(&*disk, directory)?.noted().map(|noted| noted.archive);
        return Err(JournalError::Missing { directory: directory.to_owned(), first, last, archive });
    }
    let used = count_used(&*disk, &found)?;
    let prepared = found[used..].iter();
    spare.extend(
        prepared
            .filter(|file| file.path != segment_path(directory, file.number))
            .map(|file| file.path.clone()),
    );
    let must_begin = clients.beginning();
    let begins = found.first().and_then(|first| {
        first.header.ok().map(|header| Beginning { number: first.number, first: header.first })
    });
    if let (Some(found), Some(begins), Some(must)) = (found.first(), begins, must_begin)
        && begins.number == must.number
        && begins.first != must.first
    {
        let (path, reason) =
            (found.path.clone(), "the segment begins at another position than clients.ack says");
        return Err(JournalError::Corrupt { path, offset: 0, reason, readable_to: Position::ZERO });
    }
    let begins_at_1 = begins.is_none_or(|begins| begins.first.0 == 1);
    let sequences_lost = !begins_at_1 && !matches!(clients, ClientsFound::Whole(_));
    let clients = if let ClientsFound::Whole(clients) = clients { clients } else { ClientsFile::default() };
    let beginning = begins.or(must_begin).unwrap_or_default();
    let publishers = Publishers::new(clients.durable, beginning);
    let mut recovered = Recovered {
        log: Log::new(directory.to_owned(), archive, disk.clone(), publishers, follows),
        active: None,
        unused: found
            .get(used.wrapping_sub(1))
            .map_or_else(|| found.first().map_or(0, |first| first.number), |last| last.number + 1)
            ..found.last().map_or(0, |last| last.number + 1),
        knowledge: Knowledge::default(),
        clients,
        unwritten: None,
        spare,
        given_up: missing,
        recovery: Recovery { was_clean: true, segments: used, sequences_lost, ..Recovery::default() },
    };
    let total_bytes = found.iter().take(used).map(|segment| segment.shape.file_size).sum();
    let mut done_bytes = 0;
    for (at, segment) in found.into_iter().take(used).enumerate() {
        let Ok(header) = segment.header else { continue };
        let before = recovered.log.segments.read().last().cloned();
        if let Some(before) = before {
            recovered.recovery.indexes_rebuilt +=
                usize::from(seal(&before, &segment.path, &header, &recovered.log)?);
        }
        let Found { path, shape, is_archived, .. } = segment;
        let size = shape.file_size;
        let is_last = at + 1 == used;
        let kept = if is_last { None } else { read_index(&*disk, &path, &header, &recovered.log.names) };
        let index = kept.unwrap_or_else(|| empty_index(&header));
        let segment = Segment::new(&recovered.log.files, path, &header, shape, index, is_archived);
        if is_last {
            recovered.active = Some(segment.clone());
        }
        recovered.log.segments.write().push(segment);
        done_bytes += size;
        on_progress(RecoveryProgress { done_bytes, total_bytes });
    }
    Ok(recovered)
}

/// Reads the directory, cuts a torn tail, and makes the rest durable. Returns the state with which
/// a writer continues, and the active segment open for writing.
pub(crate) fn recover(
    disk: Arc<dyn Disk>,
    directory: &Path,
    archive: Option<&Path>,
    on_progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<(Recovered, Option<Box<dyn File>>), JournalError> {
    recover_as(disk, directory, archive, Mode::Write, on_progress)
}

/// As [`recover`]. If the oldest files are missing, the log begins after them from now on.
pub(crate) fn recover_without_missing(
    disk: Arc<dyn Disk>,
    directory: &Path,
    archive: Option<&Path>,
) -> Result<(Recovered, Option<Box<dyn File>>), JournalError> {
    recover_as(disk, directory, archive, Mode::GiveUpMissing, &mut |_| ())
}

fn recover_as(
    disk: Arc<dyn Disk>,
    directory: &Path,
    named_archive: Option<&Path>,
    mode: Mode,
    on_progress: &mut dyn FnMut(RecoveryProgress),
) -> Result<(Recovered, Option<Box<dyn File>>), JournalError> {
    let started = std::time::Instant::now();
    settle(&*disk, directory, archive_directory::resolve(&*disk, directory, named_archive)?.as_deref())?;
    let mut recovered = load(disk.clone(), directory, named_archive, mode, on_progress)?;
    let mut knowledge = recovered.learn()?;
    let mut file = None;
    if let Some(segment) = &recovered.active {
        let opened = disk.open(&segment.path);
        let opened =
            opened.map_err(|error| JournalError::io(&segment.path, "opening the segment", &error))?;
        let counts = segment.version >= RUNS_SINCE;
        let ClientsFile { durable, covers, .. } = recovered.clients;
        let (cut, was_clean) = recover_tail(&*opened, segment, &recovered.log, durable, |position, step| {
            // The segment was sealed before a power cut removed the next one.
            if position > covers {
                knowledge.take(&step, counts);
            }
        })?;
        recovered.recovery.cut = cut;
        recovered.recovery.was_clean = was_clean;
        file = Some(opened);
    }
    recovered.knowledge = knowledge;
    finish(&mut recovered)?;
    let archive = recovered.log.archive.as_deref();
    if let Some(segment) = &recovered.active {
        tidy(&*disk, directory, archive, segment.number)?;
    }
    remove_spare(&*disk, directory, &recovered.spare)?;
    // It was moved, or an older build wrote it without all facts.
    if let Some(archive) = archive
        && recovered.log.segments.read().first().is_some_and(|first| first.is_archived)
    {
        archive_directory::note(&*disk, directory, archive)?;
    }
    recovered.recovery.duration = started.elapsed();
    Ok((recovered, file))
}

/// Reads the whole batches of the active segment, for a reader that runs together with its writer.
fn load_tail(recovered: &mut Recovered) -> Result<(), JournalError> {
    if let Some(segment) = &recovered.active {
        let mut index = segment.index.write();
        segment.scan(&mut index, &recovered.log.names, |_, _| ())?;
    }
    finish(recovered)
}

/// Opens the log of a directory for a reader, while a writer may run.
pub(crate) fn open_to_follow(
    disk: Arc<dyn Disk>,
    directory: &Path,
    archive: Option<&Path>,
) -> Result<Log, JournalError> {
    let mut recovered = load(disk, directory, archive, Mode::Follow, &mut |_| ())?;
    load_tail(&mut recovered)?;
    Ok(recovered.log)
}

/// Opens the directory of `log` again, because its files were moved or removed.
pub(crate) fn reopen_to_follow(log: &Log, named_archive: Option<&Path>) -> Result<Log, JournalError> {
    let reopened = open_to_follow(log.disk.clone(), &log.directory, named_archive)?;
    let (known, found) = (log.segments.read(), reopened.segments.read());
    if let (Some(last), Some(first)) = (known.last(), found.first()) {
        let continues = match reopened.segment(last.number) {
            Some(same) => same.first == last.first && same.index.read().continues(&last.index.read()),
            None => first.number > last.number && first.first > last.summary().last,
        };
        if !continues {
            let reason = format!(
                "{} holds another journal than when it was opened; open it again",
                log.directory.display()
            );
            return Err(JournalError::BadOption { option: "journal_directory", reason });
        }
    }
    drop((known, found));
    Ok(reopened)
}

/// The result of a search for records that another process wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Followed {
    ToTheEnd,
    /// The next file is missing, and later ones exist.
    FilesGone,
}

/// Searches for batches and segments that the writer of another process added.
pub(crate) fn follow(log: &Log) -> Result<Followed, JournalError> {
    let _one_at_a_time = log.following.lock();
    loop {
        let last = log.segments.read().last().cloned();
        let Some(last) = last else { return follow_first(log).map(|()| Followed::ToTheEnd) };
        take_in(log, &last)?;
        // Only the next file is checked, for any number of files.
        let next = match open_next(log, &last)? {
            Next::Begun(next) => next,
            Next::NotBegun => return Ok(Followed::ToTheEnd),
            Next::Gone => return Ok(Followed::FilesGone),
        };
        // The writer fills a segment before it begins the next one. So the old segment is read once
        // more before the next one.
        take_in(log, &last)?;
        if last.summary().last.next() != next.first {
            return Ok(Followed::ToTheEnd);
        }
        log.note_sealed(&last);
        log.segments.write().push(next);
    }
}

/// Whether another process archived or removed segments since. It begins with the oldest, so two
/// segments are checked: the first that is not archived, and the first of the archive.
pub(crate) fn has_lost_files(log: &Log) -> Result<bool, JournalError> {
    let segments = log.segments.read();
    // Archived segments are not always before the others. A cursor notices the change of the
    // segment that it reads.
    let kept = segments.iter().position(|segment| !segment.is_archived);
    let oldest = [segments.first(), kept.and_then(|at| segments.get(at))];
    let mut paths: Vec<_> = oldest.into_iter().flatten().map(|segment| segment.path.clone()).collect();
    drop(segments);
    paths.dedup();
    for path in paths {
        if open_if_there(log, &path)?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the batches that were added to the active segment.
fn take_in(log: &Log, segment: &Arc<Segment>) -> Result<(), JournalError> {
    let mut index = segment.index.write();
    segment.scan(&mut index, &log.names, |_, _| ())?;
    let position = index.summary.last;
    drop(index);
    if position > log.persisted() {
        log.advance(position, 0);
    }
    Ok(())
}

/// The segment after the last one that is known.
enum Next {
    Begun(Arc<Segment>),
    NotBegun,
    /// It existed, because later ones exist.
    Gone,
}

/// The segment after `last`. It may have been archived since.
fn open_next(log: &Log, last: &Segment) -> Result<Next, JournalError> {
    let number = last.number + 1;
    let mut is_prepared = false;
    for is_archived in [false, true] {
        let Some(directory) = place(log, is_archived)? else { continue };
        let path = segment_path(&directory, number);
        let older = older_path(&directory, &last.path, number).filter(|older| *older != path);
        for path in [Some(path), older].into_iter().flatten() {
            let Some(file) = open_if_there(log, &path)? else { continue };
            let (header, shape) = read_shape(&path, &*file)?;
            match header.ok().filter(|header| header.number == number) {
                Some(header) => {
                    let index = empty_index(&header);
                    let next = Segment::new(&log.files, path, &header, shape, index, is_archived);
                    next.file.set_open(file);
                    return Ok(Next::Begun(next));
                }
                None => is_prepared = true,
            }
        }
        if is_prepared {
            return Ok(Next::NotBegun);
        }
    }
    let names = log.disk.list(&log.directory);
    let names = names.map_err(|error| JournalError::io(&log.directory, "listing the directory", &error))?;
    let is_gone = names.iter().filter_map(|name| segment_number(name)).any(|found| found >= number);
    Ok(if is_gone { Next::Gone } else { Next::NotBegun })
}

/// The sealed segment, which the writer of another process may have archived or compressed since.
/// `None` when it was removed.
pub(crate) fn find_moved(
    log: &Log,
    segment: &Segment,
) -> Result<Option<(Arc<Segment>, OpenFile)>, JournalError> {
    let name = segment.path.file_name().unwrap_or_default();
    for is_archived in [false, true] {
        let Some(directory) = place(log, is_archived)? else { continue };
        let path = directory.join(name);
        let Some(file) = open_if_there(log, &path)? else { continue };
        let moved = segment.at(&log.files, path, &*file, is_archived)?;
        let file = moved.file.set_open(file);
        log.replace(&moved);
        return Ok(Some((moved, file)));
    }
    Ok(None)
}

/// The journal directory, or the archive directory. The first archiving may have been since.
fn place(log: &Log, is_archived: bool) -> Result<Option<PathBuf>, JournalError> {
    match (is_archived, &log.archive) {
        (false, _) => Ok(Some(log.directory.clone())),
        (true, Some(archive)) => Ok(Some(archive.clone())),
        (true, None) => archive_directory::resolve(&*log.disk, &log.directory, None),
    }
}

/// Opens a segment for reading; `None` when there is no such file.
fn open_if_there(log: &Log, path: &Path) -> Result<Option<Box<dyn File>>, JournalError> {
    match log.disk.open_read_only(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(JournalError::io(path, "opening the segment", &error)),
    }
}

/// Opens a journal that had no segment yet.
fn follow_first(log: &Log) -> Result<(), JournalError> {
    let files = find_segments(&*log.disk, &log.directory, log.archive.as_deref())?;
    let found = files.segments.into_iter().next();
    let Some(Found { path, shape, header: Ok(header), .. }) = found else { return Ok(()) };
    let segment = Segment::new(&log.files, path, &header, shape, empty_index(&header), false);
    take_in(log, &segment)?;
    log.segments.write().push(segment);
    Ok(())
}

/// Removes files without data, before others are prepared with their numbers.
fn remove_spare(disk: &dyn Disk, directory: &Path, spare: &[PathBuf]) -> Result<(), JournalError> {
    for path in spare {
        let removed = disk.remove(path);
        removed.map_err(|error| JournalError::io(path, "removing a file that was never used", &error))?;
    }
    if spare.is_empty() {
        return Ok(());
    }
    let synced = disk.sync_directory(directory);
    synced.map_err(|error| JournalError::io(directory, "syncing the directory", &error))
}

fn finish(recovered: &mut Recovered) -> Result<(), JournalError> {
    let log = &recovered.log;
    let mut last = Position::ZERO;
    if let Some(segment) = &recovered.active {
        last = segment.summary().last;
        log.advance(last, 0);
    }
    if last < recovered.clients.durable {
        let (directory, durable) = (log.directory.clone(), recovered.clients.durable);
        return Err(JournalError::Truncated { directory, last, durable });
    }
    recovered.recovery.records = log.segments.read().iter().map(|segment| segment.summary().count).sum();
    Ok(())
}

/// The number of used segments: the last one with a header, and all before it.
fn count_used(disk: &dyn Disk, found: &[Found]) -> Result<usize, JournalError> {
    let used = found.iter().rposition(|segment| segment.header.is_ok()).map_or(0, |at| at + 1);
    for (at, segment) in found.iter().enumerate() {
        let corrupt = |reason| JournalError::Corrupt {
            path: segment.path.clone(),
            offset: 0,
            reason,
            readable_to: Position::ZERO,
        };
        if segment.shape.file_size < SEGMENT_HEADER_SIZE {
            return Err(corrupt("the file is shorter than a segment header"));
        }
        match segment.header {
            Err(HeaderError::Version(version)) => {
                return Err(JournalError::Version { path: segment.path.clone(), version });
            }
            Ok(header) if header.number != segment.number => {
                return Err(corrupt("the segment belongs to another place"));
            }
            Ok(header) if header.table == 0 && header.size > segment.shape.file_size => {
                return Err(corrupt("the file is shorter than its header says"));
            }
            Ok(_) => (),
            Err(HeaderError::Unused) if at < used => {
                return Err(corrupt("the segment header is empty, but later segments are in use"));
            }
            Err(HeaderError::Bad(reason)) if at < used => return Err(corrupt(reason)),
            // A header that was torn when the segment was begun. No record in the segment was
            // acknowledged, unless a batch proves the opposite.
            Err(HeaderError::Unused) if was_synced(disk, segment)? => {
                return Err(corrupt("the segment header is empty, but its batches were synced"));
            }
            Err(HeaderError::Bad(reason)) if was_synced(disk, segment)? => return Err(corrupt(reason)),
            Err(_) => (),
        }
    }
    Ok(used)
}

/// Whether a batch of the segment proves that its first batch was synced.
fn was_synced(disk: &dyn Disk, segment: &Found) -> Result<bool, JournalError> {
    let file = disk.open_read_only(&segment.path);
    let file = file.map_err(|error| JournalError::io(&segment.path, "opening the segment", &error))?;
    let first = |bytes: &[u8]| BatchHeader::decode(bytes, segment.number, SEGMENT_HEADER_SIZE).ok();
    let mut is_synced = false;
    let mut begin = None;
    let size = segment.shape.file_size;
    for_each_header(&*file, SEGMENT_HEADER_SIZE..size, |offset, bytes| {
        if offset == SEGMENT_HEADER_SIZE {
            begin = first(bytes).map(|header| header.first);
        }
        let Some(begin) = begin else { return false };
        let header = BatchHeader::decode(bytes, segment.number, offset);
        is_synced = header.is_ok_and(|header| header.synced >= begin);
        !is_synced
    })
    .map_err(|(offset, error)| error_of(&segment.path, offset, error.into(), Position::ZERO))?;
    Ok(is_synced)
}

/// Passes the offset of each possible batch header in a range of a file to `each`, until it returns
/// false.
///
/// # Errors
/// Where reading failed, and why.
fn for_each_header(
    file: &dyn File,
    range: Range<u64>,
    mut each: impl FnMut(u64, &[u8]) -> bool,
) -> Result<(), (u64, io::Error)> {
    let mut start = range.start;
    let mut goes_on = true;
    while goes_on && start + BATCH_HEADER_SIZE as u64 <= range.end {
        // The next chunk begins with the first header that this chunk contains only in part.
        let end = range.end.min(start + READ_STEP as u64);
        let mut next = start;
        for_each_chunk(file, start..end, |offset, bytes| {
            let places = (0..=bytes.len().saturating_sub(BATCH_HEADER_SIZE)).step_by(ALIGNMENT);
            for at in places {
                goes_on = each(offset + at as u64, &bytes[at..at + BATCH_HEADER_SIZE]);
                if !goes_on {
                    return false;
                }
                next = offset + at as u64 + ALIGNMENT as u64;
            }
            true
        })?;
        start = next;
    }
    Ok(())
}

/// Opens a sealed segment. The next segment has the header `next` and the file `next_path`. If the
/// index of the segment does not end where the next one begins, it is made again: it is missing, or
/// a crash has left an old one. Returns whether it was made again.
fn seal(
    segment: &Arc<Segment>,
    next_path: &Path,
    next: &SegmentHeader,
    log: &Log,
) -> Result<bool, JournalError> {
    let is_followed = || {
        let summary = segment.summary();
        next.first == summary.last.next() && next.previous == summary.checksum
    };
    let needs_index = !is_followed();
    if needs_index {
        rebuild(segment, &log.names, &*log.disk, log.follows)?;
    }
    if !is_followed() {
        let (path, readable_to) = (next_path.to_owned(), segment.summary().last);
        let reason = "the segment does not follow the one before it";
        return Err(JournalError::Corrupt { path, offset: 0, reason, readable_to });
    }
    log.note_sealed(segment);
    Ok(needs_index)
}

fn read_index(disk: &dyn Disk, segment: &Path, header: &SegmentHeader, names: &Names) -> Option<Index> {
    index_file::decode(&disk.read(&index_path(segment)).ok()?, header, names)
}

/// Rebuilds the index of a sealed segment. Everything in it was synced before the next segment
/// began, so bytes that do not decode are damage. Only the next segment contains where it ends.
fn rebuild(
    segment: &Arc<Segment>,
    names: &Names,
    disk: &dyn Disk,
    read_only: bool,
) -> Result<(), JournalError> {
    let mut index = segment.index.write();
    let header = segment.header_fields();
    let header = header.map_err(|fault| segment.error_of(0, fault, Position(segment.first.0 - 1)))?;
    *index = header.map_or_else(|_| Index::default(), |header| empty_index(&header));
    let mut sums = Sums::default();
    let reason = segment.scan(&mut index, names, |header, body| {
        // The scan has checked that the body holds the records.
        for_each_step(header, body, |_, step| sums.add(&step));
    })?;
    let (end, last) = (index.summary.end, index.summary.last);
    let is_whole = match &segment.frames {
        None => {
            let behind = segment.first_nonzero(end, segment.size);
            behind.map_err(|(offset, fault)| segment.error_of(offset, fault, last))?.is_none()
        }
        Some(frames) => frames.end() == end,
    };
    if !is_whole {
        return Err(segment.corrupt(end, reason, last));
    }
    if read_only {
        return Ok(());
    }
    let bytes = index_file::encode(&index, Some(&sums), segment.number, segment.first);
    atomic_file::write(disk, &index_path(&segment.path), bytes)
}

/// Reads the active segment, cuts its torn tail, and makes the rest durable. Passes the position of
/// each record, and what the knowledge of publishers needs of it, to `each`. Returns the cut, and
/// whether the stop was clean.
fn recover_tail(
    file: &dyn File,
    segment: &Arc<Segment>,
    log: &Log,
    durable: Position,
    mut each: impl FnMut(Position, Step),
) -> Result<(Option<Cut>, bool), JournalError> {
    if segment.frames.is_some() {
        let reason = "the newest segment is compressed: those behind it are missing";
        return Err(segment.corrupt(0, reason, Position(segment.first.0 - 1)));
    }
    let mut index = segment.index.write();
    let mut synced = Position::ZERO;
    let mut unsynced: VecDeque<(Position, u64)> = VecDeque::new();
    let reason = segment.scan(&mut index, &log.names, |header, body| {
        // The scan has checked that the body holds the records.
        for_each_step(header, body, &mut each);
        synced = synced.max(header.synced);
        // A marker has no position. A sync of the position after it proves that the marker was
        // synced.
        let proof = if header.count == 0 { header.first } else { header.last() };
        unsynced.push_back((proof, header.offset));
        while unsynced.front().is_some_and(|(last, _)| *last <= synced) {
            unsynced.pop_front();
        }
    })?;
    let summary = index.summary;
    // A new journal without a write needs no marker.
    let is_new = segment.first == Position(1) && summary.end == SEGMENT_HEADER_SIZE;
    let was_clean = summary.flags == FLAG_CLOSED || is_new;
    let mut cut = None;
    let behind = segment.first_nonzero(summary.end, segment.size);
    let behind = behind.map_err(|(offset, fault)| segment.error_of(offset, fault, summary.last))?;
    if let Some((_, last)) = behind {
        let closed = summary.flags == FLAG_CLOSED;
        if closed || summary.last < durable || proves_synced(file, segment, summary.end, summary.last.next())?
        {
            return Err(segment.corrupt(summary.end, reason, summary.last));
        }
        let size = last + 1 - summary.end;
        zero(file, segment, summary.end, size)?;
        cut = Some(Cut { path: segment.path.clone(), offset: summary.end, size, reason });
    }
    if summary.last < durable {
        let directory = log.directory.clone();
        return Err(JournalError::Truncated { directory, last: summary.last, durable });
    }
    // After a failed sync, the pages may be in memory only, and marked as clean. Writing them again
    // makes the system write them to the disk.
    let from = unsynced.front().map_or(summary.end, |(_, offset)| *offset);
    let rewritten =
        rewrite(file, from..summary.end).and_then(|()| rewrite(file, 0..SEGMENT_HEADER_FIELDS as u64));
    rewritten
        .and_then(|()| file.sync())
        .map_err(|error| JournalError::io(&segment.path, "syncing the recovered tail", &error))?;
    segment.note_durable();
    let was_clean = was_clean && cut.is_none();
    Ok((cut, was_clean))
}

/// Reads a range of the file and writes the same bytes over it.
fn rewrite(file: &dyn File, range: Range<u64>) -> io::Result<()> {
    let mut written = Ok(());
    for_each_chunk(file, range, |offset, bytes| {
        written = file.write_at(bytes, offset);
        written.is_ok()
    })
    .map_err(|(_, error)| error)?;
    written
}

/// Whether a valid batch after `offset` proves that `position` was synced when it was written.
fn proves_synced(
    file: &dyn File,
    segment: &Segment,
    offset: u64,
    position: Position,
) -> Result<bool, JournalError> {
    let mut is_proven = false;
    for_each_header(file, offset..segment.size, |at, bytes| {
        let header = BatchHeader::decode(bytes, segment.number, at);
        is_proven = header.is_ok_and(|header| header.synced >= position);
        !is_proven
    })
    .map_err(|(offset, error)| error_of(&segment.path, offset, error.into(), Position(position.0 - 1)))?;
    Ok(is_proven)
}

fn zero(file: &dyn File, segment: &Segment, offset: u64, size: u64) -> Result<(), JournalError> {
    let zeros = vec![0; size as usize];
    file.write_at(&zeros, offset)
        .map_err(|error| JournalError::io(&segment.path, "cutting a torn tail", &error))
}
