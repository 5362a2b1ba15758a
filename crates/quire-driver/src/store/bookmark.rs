//! The positions up to which subscriptions are processed, in memory or in a file. The file is a log
//! of changes, which is rewritten when it has grown (docs/stores.md).
//!
//! A change is in the file before the caller continues. So after `kill -9` at any instant, a
//! subscription resumes after the last message that counted as processed. No processed message is
//! delivered again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use quire_client::{Failure, PositionsByInstance, Processed, ResumePosition, SequenceRange};
use quire_command::{Code, LogPlace};
use quire_journal::{Bookmark, PublisherId};

use super::file::{Header, START, StoreEntries, StoreFile, encode_entry};
use super::{StoreError, failure};

pub(super) const MAGIC: [u8; 4] = *b"QBMK";

const BEGIN: u64 = 1;
const REACHED: u64 = 2;
const AHEAD: u64 = 3;
const FORGET: u64 = 4;
/// Only earlier versions wrote it. The first sequence of a new publisher may not be the first one
/// that was received.
const REACHED_RANGES: u64 = 5;
const REACHED_FROM: u64 = 6;
const PLACES: u64 = 7;
const START_AT: u64 = 8;

/// A file below this size is not rewritten: it is read in milliseconds.
const REWRITTEN_SIZE_MIN: u64 = 1024 * 1024;

/// The file is rewritten when it is this many times larger than its content, so that rewriting
/// costs less than the writing did.
const GROWTH: u64 = 4;

/// The most bytes of the bookmark with which a subscription began. A longer list is not kept.
const START_SIZE_MAX: usize = 1024;

/// The beginning of the log.
const EPOCH: &str = "0";

/// The most bytes of the name of a subscription.
const SUB_ID_SIZE_MAX: usize = 1024;

/// The positions of subscriptions, by the names that their users gave them. A clone shares them.
#[derive(Clone)]
pub struct BookmarkStore(Arc<Mutex<BookmarkStoreState>>);

struct BookmarkStoreState {
    slots: BTreeMap<String, Slot>,
    log: Option<Log>,
    is_closed: bool,
    /// A write failed. The content of the file is out of date, and is not written any more.
    failure: Option<Failure>,
}

#[derive(Default)]
struct Slot {
    resume_position: ResumePosition,
    /// The latest subscription with this name. Earlier ones no longer write here.
    owner: u64,
    /// The file has its start.
    is_start_written: bool,
}

struct Log {
    file: StoreFile,
    header: Header,
    end: u64,
    /// The size of the content when it was last written whole.
    kept_size: u64,
    scratch: Vec<u8>,
}

/// Writes the position of one subscription.
pub struct PositionWriter {
    store: BookmarkStore,
    sub_id: String,
    owner: u64,
}

impl BookmarkStore {
    /// A store in memory.
    pub fn in_memory() -> Self {
        BookmarkStore::new(BTreeMap::new(), None)
    }

    /// Opens the store, or makes an empty one.
    ///
    /// # Errors
    /// See [`StoreError`]. Nothing was changed then.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = StoreFile::open(path)?;
        let corrupt = |at| StoreError::Corrupt { path: path.to_owned(), at: START + at };
        let (header, log) = match file.read(MAGIC)? {
            Some((header, log)) => (header, log),
            None => (Header { magic: MAGIC, ..Header::default() }, Vec::new()),
        };
        let parsed = StoreEntries::parse(&log, 0).map_err(corrupt)?;
        let mut slots = BTreeMap::new();
        let mut at = 0;
        for entry in &parsed.entries {
            apply(&mut slots, entry.tag, entry.body).ok_or_else(|| corrupt(at))?;
            at += super::file::entry_size(entry.body.len()) as u64;
        }
        let mut log = Log { file, header, end: parsed.end, kept_size: 0, scratch: Vec::new() };
        log.header.generation += 1;
        let begun = log.file.truncate(START + log.end).and_then(|()| log.file.write_header(&log.header));
        begun.map_err(StoreError::io(path))?;
        Ok(BookmarkStore::new(slots, Some(log)))
    }

    fn new(slots: BTreeMap<String, Slot>, log: Option<Log>) -> Self {
        BookmarkStore(Arc::new(Mutex::new(BookmarkStoreState {
            slots,
            log,
            is_closed: false,
            failure: None,
        })))
    }

    /// A subscription writes its position here from now on. Returns the position of an earlier
    /// subscription with the same name, if it `resumes` there.
    ///
    /// Without `resumes`, [`PositionWriter::begin`] removes that position when the server has
    /// accepted the subscription.
    ///
    /// # Errors
    /// The store is closed, or failed before.
    pub fn keep(
        &self,
        sub_id: &str,
        resumes: bool,
    ) -> Result<(PositionWriter, Option<ResumePosition>), Failure> {
        if sub_id.len() > SUB_ID_SIZE_MAX {
            let reason = format!("sub_id: {} bytes, the limit is {SUB_ID_SIZE_MAX}", sub_id.len());
            return Err(Failure::new(Code::BadOption, reason));
        }
        let mut state = self.0.lock();
        state.check()?;
        let slot = state.slots.entry(sub_id.to_owned()).or_default();
        slot.owner += 1;
        let writer = PositionWriter { store: self.clone(), sub_id: sub_id.to_owned(), owner: slot.owner };
        if resumes && slot.resume_position.is_empty() {
            slot.resume_position.start = Some(EPOCH.into());
            slot.is_start_written = false;
        }
        let resume_position = Some(slot.resume_position.clone())
            .filter(|resume_position| resumes && !resume_position.is_empty());
        Ok((writer, resume_position))
    }

    /// The bookmark after which a subscription with this name resumes.
    pub fn most_recent(&self, sub_id: &str) -> Option<Bookmark> {
        self.0.lock().slots.get(sub_id)?.resume_position.last
    }

    /// The names of the subscriptions that have a position.
    pub fn sub_ids(&self) -> Vec<String> {
        let state = self.0.lock();
        let kept = state.slots.iter().filter(|(_, slot)| !slot.resume_position.is_empty());
        kept.map(|(sub_id, _)| sub_id.clone()).collect()
    }

    /// Removes the position of a subscription. Returns whether it had one.
    ///
    /// # Errors
    /// It could not be written.
    pub fn forget(&self, sub_id: &str) -> Result<bool, Failure> {
        let mut state = self.0.lock();
        state.check()?;
        let Some(slot) = state.slots.get_mut(sub_id) else { return Ok(false) };
        let was_kept = !slot.resume_position.is_empty();
        slot.resume_position = ResumePosition::default();
        slot.owner += 1;
        state.write(FORGET, &body(sub_id))?;
        Ok(was_kept)
    }

    /// Closes the file. Later progress is not written. A second call has no effect.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        if let Some(log) = state.log.take() {
            // A power cut could take the newest entries, so they are synced. The caller cannot
            // receive an error any more.
            let _ = log.file.sync();
        }
    }
}

impl PositionWriter {
    /// The server accepted the subscription with the bookmark `start` of its command. The old
    /// position is removed.
    ///
    /// # Errors
    /// It could not be written.
    pub fn begin(&self, start: Option<&str>) -> Result<(), Failure> {
        let begin = |resume_position: &mut ResumePosition| {
            *resume_position = ResumePosition::default();
            BEGIN
        };
        self.change(begin, |_, _| ())?;
        let mut state = self.store.0.lock();
        if let Some(slot) = state.slots.get_mut(&self.sub_id).filter(|slot| slot.owner == self.owner) {
            slot.resume_position.start = start.filter(|start| start.len() <= START_SIZE_MAX).map(Arc::from);
            // It is written with the first progress: without progress, the store does not have the
            // subscription.
            slot.is_start_written = slot.resume_position.start.is_none();
        }
        Ok(())
    }

    /// Notes the processed messages. `instance` is the name for the number in `processed`.
    ///
    /// # Errors
    /// It could not be written. The message may be delivered again after a restart.
    pub fn processed(&self, processed: &Processed, instance: &Arc<str>) -> Result<(), Failure> {
        match processed {
            Processed::UpTo { last, received, places, .. } => {
                self.change(
                    |resume_position| {
                        // Most entries need only the last message of each publisher.
                        let is_next = resume_position.publishers.is_next(received);
                        resume_position.reach(*last, instance, received);
                        if is_next { REACHED } else { REACHED_FROM }
                    },
                    |out, kind| {
                        put_reached(out, *last, instance);
                        match kind {
                            REACHED => {
                                received.iter().for_each(|range| put_bookmark(out, range.last_bookmark()))
                            }
                            _ => received.iter().for_each(|range| put_range(out, range)),
                        }
                    },
                )?;
                let Some(places) = places else { return Ok(()) };
                let note = |resume_position: &mut ResumePosition| {
                    resume_position.note_places(places.iter().map(|(name, place)| (&**name, *place)));
                    PLACES
                };
                self.change(note, |out, _| put_places(out, places))
            }
            Processed::Ahead(bookmark) => self.change(
                |resume_position| {
                    resume_position.ahead.insert(*bookmark);
                    AHEAD
                },
                |out, _| put_bookmark(out, *bookmark),
            ),
        }
    }

    fn change(
        &self,
        change: impl FnOnce(&mut ResumePosition) -> u64,
        put: impl FnOnce(&mut Vec<u8>, u64),
    ) -> Result<(), Failure> {
        let mut state = self.store.0.lock();
        let Some(slot) = state.slots.get_mut(&self.sub_id) else { return Ok(()) };
        if slot.owner != self.owner {
            return Ok(());
        }
        let start = slot.resume_position.start.clone().filter(|_| !slot.is_start_written);
        let kind = change(&mut slot.resume_position);
        let start = start.filter(|_| kind != BEGIN);
        slot.is_start_written |= start.is_some();
        if state.log.is_none() {
            return Ok(());
        }
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if let Some(start) = start {
            state.write(START_AT, &start_body(&self.sub_id, &start))?;
        }
        let mut body = body(&self.sub_id);
        put(&mut body, kind);
        state.write(kind, &body)
    }
}

impl BookmarkStoreState {
    fn check(&self) -> Result<(), Failure> {
        if self.is_closed {
            let reason = "the bookmark store is closed".to_owned();
            return Err(Failure::new(Code::BadOption, reason));
        }
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn write(&mut self, kind: u64, body: &[u8]) -> Result<(), Failure> {
        let Some(log) = &mut self.log else { return Ok(()) };
        let path = log.file.path.clone();
        let mut written = log.append(kind, body);
        if written.is_ok() && log.end > REWRITTEN_SIZE_MIN.max(log.kept_size * GROWTH) {
            written = log.rewrite(&path, &self.slots);
        }
        written.map_err(|error| {
            let failure = failure(&path, body.len(), &error);
            self.failure = Some(failure.clone());
            failure
        })
    }
}

impl Log {
    fn append(&mut self, kind: u64, body: &[u8]) -> std::io::Result<()> {
        encode_entry(&mut self.scratch, self.end, kind, body);
        self.file.write(&self.scratch, self.end, 0)?;
        self.end += self.scratch.len() as u64;
        Ok(())
    }

    /// Writes the content to a new file, which replaces this one.
    fn rewrite(&mut self, path: &Path, slots: &BTreeMap<String, Slot>) -> std::io::Result<()> {
        let mut new_path = path.as_os_str().to_owned();
        new_path.push(".new");
        let new_path = PathBuf::from(new_path);
        match std::fs::remove_file(&new_path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => (),
        }
        let file = StoreFile::open(&new_path).map_err(std::io::Error::other)?;
        let header = Header { magic: MAGIC, generation: 1, ..Header::default() };
        let mut new = Log { file, header, end: 0, kept_size: 0, scratch: Vec::new() };
        new.file.write_header(&new.header)?;
        for (sub_id, Slot { resume_position, is_start_written, .. }) in slots {
            if let Some(start) = resume_position.start.as_deref().filter(|_| *is_start_written) {
                new.append(START_AT, &start_body(sub_id, start))?;
            }
            if let Some(last) = resume_position.last {
                let mut body = body(sub_id);
                put_reached(&mut body, last, &resume_position.instance);
                let ranges = resume_position.publishers.ranges();
                // A publisher has one range, unless sequences were passed over.
                let are_all_from_first = ranges.iter().all(|range| range.first == 1);
                let kind = if are_all_from_first {
                    resume_position.publishers.iter().for_each(|bookmark| put_bookmark(&mut body, bookmark));
                    REACHED
                } else {
                    ranges.iter().for_each(|range| put_range(&mut body, range));
                    REACHED_FROM
                };
                new.append(kind, &body)?;
            }
            if let Some(places) = &resume_position.places {
                let mut body = body(sub_id);
                put_places(&mut body, places);
                new.append(PLACES, &body)?;
            }
            for bookmark in &resume_position.ahead {
                let mut body = body(sub_id);
                put_bookmark(&mut body, *bookmark);
                new.append(AHEAD, &body)?;
            }
        }
        new.file.sync()?;
        std::fs::rename(&new_path, path)?;
        new.file.path = path.to_owned();
        new.kept_size = new.end;
        *self = new;
        Ok(())
    }
}

/// One change that was read from the file; `None` when its content is not valid.
fn apply(slots: &mut BTreeMap<String, Slot>, kind: u64, body: &[u8]) -> Option<()> {
    let mut body = body;
    let sub_id = take_text(&mut body)?;
    match kind {
        BEGIN => slots.entry(sub_id.to_owned()).or_default().resume_position = ResumePosition::default(),
        REACHED => {
            let last = take_bookmark(&mut body)?;
            let instance = take_text(&mut body)?.into();
            let resume_position = &mut slots.entry(sub_id.to_owned()).or_default().resume_position;
            let mut received = Vec::new();
            while !body.is_empty() {
                received.push(resume_position.publishers.range_to(take_bookmark(&mut body)?));
            }
            resume_position.reach(last, &instance, &received);
        }
        REACHED_RANGES | REACHED_FROM => {
            let last = take_bookmark(&mut body)?;
            let instance = take_text(&mut body)?.into();
            let mut received = Vec::new();
            while !body.is_empty() {
                received.push(take_range(&mut body)?);
            }
            let resume_position = &mut slots.entry(sub_id.to_owned()).or_default().resume_position;
            if kind == REACHED_RANGES {
                let mut known = BTreeSet::new();
                for range in &mut received {
                    let is_new = known.insert(range.publisher);
                    if is_new && !resume_position.publishers.knows(range.publisher) {
                        range.first = 1;
                    }
                }
            }
            resume_position.reach(last, &instance, &received);
        }
        AHEAD => {
            let bookmark = take_bookmark(&mut body)?;
            slots.entry(sub_id.to_owned()).or_default().resume_position.ahead.insert(bookmark);
        }
        PLACES => {
            let resume_position = &mut slots.entry(sub_id.to_owned()).or_default().resume_position;
            resume_position.note_places([]);
            while !body.is_empty() {
                let Bookmark { publisher: PublisherId(log), sequence: position } = take_bookmark(&mut body)?;
                resume_position.note_places([(take_text(&mut body)?, LogPlace { log, position })]);
            }
        }
        START_AT => {
            let slot = slots.entry(sub_id.to_owned()).or_default();
            slot.resume_position.start = Some(take_text(&mut body)?.into());
            slot.is_start_written = true;
        }
        FORGET => {
            slots.remove(sub_id);
        }
        _ => return None,
    }
    body.is_empty().then_some(())
}

/// The beginning of every body.
fn body(sub_id: &str) -> Vec<u8> {
    let mut body = Vec::with_capacity(64);
    put_text(&mut body, sub_id);
    body
}

fn start_body(sub_id: &str, start: &str) -> Vec<u8> {
    let mut body = body(sub_id);
    put_text(&mut body, start);
    body
}

fn put_places(out: &mut Vec<u8>, places: &PositionsByInstance) {
    for (instance, place) in places {
        out.extend_from_slice(&place.log.to_le_bytes());
        out.extend_from_slice(&place.position.to_le_bytes());
        put_text(out, instance);
    }
}

fn put_reached(out: &mut Vec<u8>, last: Bookmark, instance: &str) {
    put_bookmark(out, last);
    put_text(out, instance);
}

/// At most 65,535 bytes of it. Names of subscriptions and instances are far shorter, and were
/// checked before.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_bookmark(out: &mut Vec<u8>, bookmark: Bookmark) {
    out.extend_from_slice(&bookmark.publisher.get().to_le_bytes());
    out.extend_from_slice(&bookmark.sequence.to_le_bytes());
}

fn put_range(out: &mut Vec<u8>, range: &SequenceRange) {
    put_bookmark(out, Bookmark { publisher: range.publisher, sequence: range.first });
    out.extend_from_slice(&range.last.to_le_bytes());
}

fn take_text<'a>(body: &mut &'a [u8]) -> Option<&'a str> {
    let (size, rest) = body.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*size)))?;
    *body = rest;
    std::str::from_utf8(text).ok()
}

fn take_bookmark(body: &mut &[u8]) -> Option<Bookmark> {
    let (publisher, rest) = body.split_first_chunk::<8>()?;
    let (sequence, rest) = rest.split_first_chunk::<8>()?;
    *body = rest;
    let publisher = PublisherId(u64::from_le_bytes(*publisher));
    Some(Bookmark { publisher, sequence: u64::from_le_bytes(*sequence) })
}

fn take_range(body: &mut &[u8]) -> Option<SequenceRange> {
    let Bookmark { publisher, sequence: first } = take_bookmark(body)?;
    let (last, rest) = body.split_first_chunk::<8>()?;
    *body = rest;
    let last = u64::from_le_bytes(*last);
    (1..=last).contains(&first).then_some(SequenceRange { publisher, first, last })
}
