//! Checks everything that was written: the headers, every batch and record, their order, the
//! indexes and the sidecar files.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::format::{
    BATCH_HEADER_SIZE, BatchHeader, HeaderError, SEGMENT_HEADER_FIELDS, SEGMENT_HEADER_SIZE, SegmentHeader,
    fault_of,
};
use crate::log::Log;
use crate::maintenance::archive_directory;
use crate::publishers::{ClientsFile, ClientsFound, clients_path};
use crate::read::reader::Reader;
use crate::record::Position;
use crate::segment::compressed::FrameTable;
use crate::segment::index::Index;
use crate::segment::index_file;
use crate::segment::sums::Sums;
use crate::segment::view::{Fault, READ_STEP, Reads, View};
use crate::segment::{Segment, empty_index, for_each_step, holds_records, index_path};
use crate::sidecar;

/// A place at which the bytes differ from the written ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub reason: Cow<'static, str>,
}

impl Reader {
    /// Checks every byte that was written. Returns no damage when everything is sound. A missing
    /// index does not count as damage: the next start makes it again. A missing segment of a
    /// journal that this process writes is reported; of any other journal [`Reader::refresh`] finds
    /// it.
    pub fn verify(&self) -> Vec<Damage> {
        let log = self.log();
        let segments = log.segments.read().clone();
        let mut damages = Vec::new();
        let mut before = None;
        for segment in segments {
            if let Some(damage) = check_is_there(&log, &segment) {
                damages.push(damage);
                before = None;
                continue;
            }
            let path = segment.path.clone();
            let segment = match log.reach(segment) {
                Ok((segment, _)) => segment,
                Err(error) => {
                    damages.push(Damage { path, offset: 0, reason: error.to_string().into() });
                    before = None;
                    continue;
                }
            };
            let mut check = Check { log: &log, segment: &segment, damages: Vec::new() };
            before = check.run(before);
            damages.append(&mut check.damages);
        }
        damages.extend(check_sidecars(&log));
        damages
    }
}

/// The values that the next batch must follow: the last position and the checksum of the last
/// header.
type End = (Position, u32);

struct Check<'a> {
    log: &'a Log,
    segment: &'a Arc<Segment>,
    damages: Vec<Damage>,
}

impl Check<'_> {
    /// Checks the segment. It follows `before`, if that is known. Returns its end, if it could be
    /// read.
    fn run(&mut self, before: Option<End>) -> Option<End> {
        let segment = self.segment;
        let summary = segment.summary();
        let header = self.header(before);
        let mut index = header.as_ref().map_or_else(Index::default, empty_index);
        let mut sums = Sums::default();
        let mut end = header.map(|header| (Position(header.first.0 - 1), header.previous));
        let mut offset = SEGMENT_HEADER_SIZE;
        let mut view = View::new(segment, None, Reads::AHEAD);
        while offset < summary.end {
            match self.batch(offset, end, &mut view, (&mut index, &mut sums)) {
                Ok(header) => {
                    end = Some((header.last(), header.checksum));
                    offset += header.batch_size() as u64;
                }
                Err(fault) => {
                    self.note(offset, fault);
                    end = None;
                    // Its length is not reliable. Continues with the next batch in the index.
                    let index = segment.index.read();
                    let next = index.blocks.partition_point(|block| block.offset <= offset);
                    offset = index.blocks.get(next).map_or(summary.end, |block| block.offset);
                }
            }
        }
        self.frames();
        if end.is_some() && segment.is_sealed() {
            if segment.frames.is_none() {
                self.is_zero(summary.end, segment.size, "something stands behind the last batch");
            }
            if self.damages.is_empty() {
                self.index_file(&index, &sums);
            }
        }
        end
    }

    fn header(&mut self, before: Option<End>) -> Option<SegmentHeader> {
        let segment = self.segment;
        let header = match segment.header_fields() {
            Ok(Ok(header)) => header,
            Ok(Err(error)) => {
                let reason = match error {
                    HeaderError::Unused => "the segment header is empty",
                    HeaderError::Version(_) => "the segment header names another version",
                    HeaderError::Bad(reason) => reason,
                };
                self.note(0, reason.into());
                return None;
            }
            Err(fault) => {
                self.note(0, fault);
                return None;
            }
        };
        if header.number != segment.number || header.first != segment.first {
            self.note(0, "the segment belongs to another place".into());
            return None;
        }
        if before.is_some_and(|(last, checksum)| last.next() != header.first || checksum != header.previous) {
            self.note(0, "the segment does not follow the one before it".into());
        }
        let what = "something stands behind the segment header";
        self.is_zero(SEGMENT_HEADER_FIELDS as u64, SEGMENT_HEADER_SIZE, what);
        Some(header)
    }

    /// Notes the first byte in a range of the file that is not zero as damage.
    fn is_zero(&mut self, from: u64, to: u64, reason: &'static str) {
        match self.segment.first_nonzero(from, to) {
            Ok(None) => (),
            Ok(Some((offset, _))) => self.note(offset, reason.into()),
            Err((offset, fault)) => self.note(offset, fault),
        }
    }

    /// Reads the batch at `offset`, and adds it to `index` and `sums`. It follows `end`, if that is
    /// known.
    fn batch(
        &self,
        offset: u64,
        end: Option<End>,
        view: &mut View,
        (index, sums): (&mut Index, &mut Sums),
    ) -> Result<BatchHeader, Fault> {
        let (header, body) = view.batch(offset, offset + READ_STEP as u64)?;
        if end.is_some_and(|(_, checksum)| checksum != header.previous) {
            return Err("the batch does not follow the one before it".into());
        }
        if end.is_some_and(|(last, _)| last.next() != header.first) {
            return Err("the batch does not continue the positions".into());
        }
        if !holds_records(&header, body) || !index.add(&header, body, &self.log.names) {
            return Err(fault_of(&header, body).into());
        }
        for_each_step(&header, body, |_, step| sums.add(&step));
        let padding = offset + (BATCH_HEADER_SIZE + body.len()) as u64;
        if !view.is_zero(padding, offset + header.batch_size() as u64)? {
            return Err("something stands between this batch and the next".into());
        }
        Ok(header)
    }

    /// Checks the bytes of the frames of a compressed segment. A changed bit is damage even when
    /// the frame decompresses to the same bytes.
    fn frames(&mut self) {
        let segment = self.segment;
        let Some(frames) = &segment.frames else { return };
        let file = match segment.file.open() {
            Ok(file) => file,
            Err(error) => return self.note(0, Fault::Closed(error)),
        };
        if let Ok(Ok(header)) = segment.header_fields()
            && let Err(fault) = FrameTable::read(&*file, segment.file_size, &header)
        {
            self.note(header.table, fault);
        }
        for entry in frames.entries() {
            let is_known = self.damages.iter().any(|damage| damage.offset >= entry.offset);
            if is_known {
                continue;
            }
            match entry.is_whole(&*file) {
                Ok(true) => (),
                Ok(false) => self.note(entry.offset, "the checksum of the frame does not match".into()),
                Err(fault) => self.note(entry.offset, fault),
            }
        }
    }

    /// Compares the index file of the segment with the index that its batches produce.
    fn index_file(&mut self, index: &Index, sums: &Sums) {
        let Segment { version, number, first, size, .. } = **self.segment;
        let header = SegmentHeader { version, number, first, size, previous: 0, table: 0 };
        let path = index_path(&self.segment.path);
        let reason = match self.log.disk.read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => "the index cannot be read",
            Ok(bytes) => match index_file::decode(&bytes, &header, &self.log.names) {
                Some(found) if found.agrees_with(index) && sums.are_in(&bytes, index, number) => return,
                _ => "the index is not that of its segment",
            },
        };
        self.damages.push(Damage { path, offset: 0, reason: reason.into() });
    }

    fn note(&mut self, offset: u64, fault: Fault) {
        let reason = match fault {
            Fault::Damage(reason) => reason.into(),
            Fault::Disk(error) => format!("it cannot be read: {error}").into(),
            Fault::Closed(error) => format!("the file cannot be opened: {error}").into(),
        };
        self.damages.push(Damage { path: self.segment.path.clone(), offset, reason });
    }
}

/// Whether the file of a segment was removed by hand while this process has it open.
fn check_is_there(log: &Log, segment: &Arc<Segment>) -> Option<Damage> {
    let opened = log.disk.open_read_only(&segment.path);
    let is_gone = opened.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    // It may have been archived or removed on purpose in the meantime.
    let is_known = || log.segment(segment.number).is_some_and(|known| Arc::ptr_eq(&known, segment));
    let reason = "the file is not there any more";
    (is_gone && !log.follows && is_known()).then(|| Damage {
        path: segment.path.clone(),
        offset: 0,
        reason: reason.into(),
    })
}

/// Checks the sidecar files, and the content of the files that the journal owns.
fn check_sidecars(log: &Log) -> Vec<Damage> {
    // Before the files are read, because the positions that they need only increase.
    let first = log.before_first().next();
    let mut damages = sidecar::check(&*log.disk, &log.directory, first);
    // Before the end of the log is read, which may grow in between.
    let clients = ClientsFile::read(&*log.disk, &log.directory);
    let last = log.persisted();
    let contradicts = "the file contradicts itself, or is of a version that this build does not read";
    let clients = match clients {
        Ok(ClientsFound::Whole(clients)) if clients.durable > last && !log.follows => {
            Some("the log ends before what was on stable storage")
        }
        Ok(ClientsFound::Damaged) => Some(contradicts),
        _ => None,
    };
    let noted = archive_directory::read(&*log.disk, &log.directory);
    let noted = matches!(noted, Ok(archive_directory::Found::Damaged)).then_some(contradicts);
    let own =
        [(clients_path(&log.directory), clients), (archive_directory::file_path(&log.directory), noted)];
    for (path, reason) in own {
        if let Some(reason) = reason
            && damages.iter().all(|damage| damage.path != path)
        {
            damages.push(Damage { path, offset: 0, reason: reason.into() });
        }
    }
    damages
}
