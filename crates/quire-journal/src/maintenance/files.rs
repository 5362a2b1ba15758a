//! Archiving, compressing and removing sealed segments: of a running journal, from any thread, and
//! of a stopped one.
//!
//! Segments are processed one after the other, the oldest first, so that the log never has a gap.
//! The active segment is never touched. At every step there is exactly one valid copy of each
//! segment: a new file is complete and durable before the old one is removed. After a crash in
//! between, the next start repairs the file. Readers continue: a reader of a segment keeps its open
//! file, and later readers get the new file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::disk::{Disk, RealDisk};
use crate::error::JournalError;
use crate::format::SegmentHeader;
use crate::log::Log;
use crate::maintenance::archive_directory;
use crate::read::reader::{Reader, SegmentInfo};
use crate::record::Position;
use crate::recover::beginning::Missing;
use crate::recover::directory::check_archive;
use crate::recover::{self, Recovery, RecoveryProgress};
use crate::segment::compressed;
use crate::segment::index_file;
use crate::segment::{Segment, index_path, read_header};
use crate::{atomic_file, sidecar};
use quire_types::{Action, Timestamp};

/// Selects sealed segments, always the oldest. A segment that is not selected, or must stay, keeps
/// all later segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Segments that were not written after the instant. A segment without records counts as
    /// written until the next record.
    Until(Timestamp),
    /// As many segments as needed to leave at most this size, in bytes: of the files in the journal
    /// directory when archiving, of the uncompressed files when compressing, of all files when
    /// removing.
    Beyond {
        /// The size that may remain, in bytes.
        size_max: u64,
    },
    /// Every sealed one.
    All,
}

impl Which {
    /// Segments that were not written for `age`; 0 = every sealed segment.
    pub fn older_than(age: Duration, now: Timestamp) -> Which {
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        match age_ns {
            0 => Which::All,
            _ => Which::Until(Timestamp::from_ns(now.as_ns().saturating_sub(age_ns))),
        }
    }
}

/// Archives, compresses and removes the sealed segments of one journal. Cheap to clone; any thread
/// may use it.
#[derive(Clone)]
pub struct FileMaintenance {
    log: Arc<Log>,
    /// The lock of a stopped journal. No other process can open the journal meanwhile.
    _lock: Option<Arc<dyn Send + Sync>>,
}

impl FileMaintenance {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        FileMaintenance { log, _lock: None }
    }

    /// Locks a stopped journal until the value is dropped. Recovers it first, as a start would.
    ///
    /// # Errors
    /// [`JournalError::Locked`] when a server has the journal open: ask that server. Otherwise the
    /// error of the recovery.
    pub fn open_stopped(
        directory: impl AsRef<Path>,
        archive: Option<&Path>,
        on_progress: &mut dyn FnMut(RecoveryProgress),
    ) -> Result<(Self, Recovery), JournalError> {
        let (disk, directory) = (Arc::new(RealDisk), directory.as_ref());
        let lock = lock(&*disk, directory)?;
        let (recovered, _) = recover::recover(disk.clone(), directory, archive, on_progress)?;
        if let (Some(clients), Some(_)) = (recovered.unwritten, recovered.active) {
            clients.write(&*disk, directory)?;
        }
        Ok((
            FileMaintenance { log: Arc::new(recovered.log), _lock: Some(Arc::new(lock)) },
            recovered.recovery,
        ))
    }

    /// Accepts that the oldest segments of a stopped journal are missing: from now on the log
    /// begins after them. Returns the numbers of the first missing segment, if it is known, and the
    /// last one. `None` when no segment is missing.
    ///
    /// # Errors
    /// [`JournalError::Locked`] when a server has the journal open. [`JournalError::Missing`] when
    /// no segment is left. Otherwise the error of the recovery.
    pub fn give_up_missing(
        directory: impl AsRef<Path>,
        archive: Option<&Path>,
    ) -> Result<Option<(Option<u32>, u32)>, JournalError> {
        let (disk, directory) = (Arc::new(RealDisk), directory.as_ref());
        let _lock = lock(&*disk, directory)?;
        let (recovered, _) = recover::recover_without_missing(disk.clone(), directory, archive)?;
        let Some(Missing { first, last: Some(last) }) = recovered.given_up else { return Ok(None) };
        if let Some(clients) = recovered.unwritten {
            clients.write(&*disk, directory)?;
        }
        Ok(Some((first, last)))
    }

    /// The directory to which segments are archived: the directory that was named, or else the one
    /// in `archive.place`.
    pub fn archive_directory(&self) -> Option<&Path> {
        self.log.archive.as_deref()
    }

    /// Whether segments are archived to `directory`, in any spelling.
    ///
    /// # Errors
    /// [`JournalError::BadOption`] when segments are archived to another directory, or not at all.
    /// Otherwise the error of the system.
    pub fn check_archives_to(&self, directory: &Path) -> Result<(), JournalError> {
        let archive = self.log.archive.as_deref();
        if let Some(archive) = archive {
            let same = self.log.disk.is_same_directory(archive, directory);
            let same =
                same.map_err(|error| JournalError::io(directory, "looking at the directory", &error))?;
            // Before the first archiving, the directory may not exist.
            if same || std::path::absolute(archive).is_ok_and(|archive| archive == directory) {
                return Ok(());
            }
        }
        let place = archive.map_or("nowhere".to_owned(), |archive| format!("to {}", archive.display()));
        let reason = format!("the server that runs on this journal archives {place}");
        Err(JournalError::BadOption { option: "archive_directory", reason })
    }

    /// Moves segments to the archive directory. Returns the moved segments, as they are now.
    ///
    /// # Errors
    /// As [`FileMaintenance::take_next`]. Segments before the error stay processed.
    pub fn archive(&self, which: Which) -> Result<Vec<SegmentInfo>, JournalError> {
        self.take(Action::Archive, which, None)
    }

    /// Compresses segments. Returns the compressed segments, as they are now.
    ///
    /// # Errors
    /// As [`FileMaintenance::take_next`]. Segments before the error stay processed.
    pub fn compress(&self, which: Which) -> Result<Vec<SegmentInfo>, JournalError> {
        self.take(Action::Compress, which, None)
    }

    /// Removes segments, up to the first one that must stay. A segment must stay when it holds
    /// `needed` or a later position, when a reader of this process has not passed it, or when the
    /// owner of a sidecar file needs it. Returns the removed segments, as they were.
    ///
    /// # Errors
    /// As [`FileMaintenance::take_next`]. Segments before the error stay processed.
    pub fn remove(&self, which: Which, needed: Option<Position>) -> Result<Vec<SegmentInfo>, JournalError> {
        self.take(Action::Remove, which, needed)
    }

    fn take(
        &self,
        action: Action,
        which: Which,
        needed: Option<Position>,
    ) -> Result<Vec<SegmentInfo>, JournalError> {
        std::iter::from_fn(|| self.take_next(action, which, needed).transpose()).collect()
    }

    /// Processes one segment, the oldest selected one. `None` when there is none, or it must stay.
    /// `needed` applies only to removing.
    ///
    /// # Errors
    /// [`JournalError::BadOption`] when archiving without an archive directory, when that is the
    /// journal directory, or when another file has the place of the segment there.
    /// [`JournalError::Closed`] when the journal is closed. Otherwise the error of the system.
    pub fn take_next(
        &self,
        action: Action,
        which: Which,
        needed: Option<Position>,
    ) -> Result<Option<SegmentInfo>, JournalError> {
        let ended = self.log.maintenance_ended.lock();
        if *ended {
            return Err(JournalError::Closed);
        }
        let archive = match (&self.log.archive, action) {
            (None, Action::Archive) => return Err(no_archive()),
            (archive, _) => archive.as_deref().unwrap_or(Path::new("")),
        };
        self.discard_doomed()?;
        let Some(segment) = self.chosen(action, which, needed).into_iter().next() else { return Ok(None) };
        let reader = Reader::new(self.log.clone());
        let before = reader.info(&segment);
        match action {
            Action::Archive => self.archive_one(&segment, archive).map(|segment| Some(reader.info(&segment))),
            Action::Compress => self.compress_one(&segment).map(|segment| Some(reader.info(&segment))),
            Action::Remove => Ok(self.remove_one(&segment)?.then_some(before)),
        }
    }

    /// The first position that the owner of a sidecar file needs, by the readable files. For a
    /// stopped journal, no more is known.
    pub fn needed(&self) -> Option<Position> {
        sidecar::needs(&*self.log.disk, &self.log.directory).into_iter().min()
    }

    /// The segments that the action would process if it began now.
    pub fn plan(&self, action: Action, which: Which, needed: Option<Position>) -> Vec<SegmentInfo> {
        let reader = Reader::new(self.log.clone());
        self.chosen(action, which, needed).iter().map(|segment| reader.info(segment)).collect()
    }

    fn chosen(&self, action: Action, which: Which, needed: Option<Position>) -> Vec<Arc<Segment>> {
        let segments = self.log.segments.read().clone();
        let concerned = |segment: &Segment| match action {
            Action::Archive => !segment.is_archived,
            Action::Compress => segment.frames.is_none(),
            Action::Remove => true,
        };
        let sizes = segments.iter().filter(|segment| concerned(segment)).map(|segment| segment.file_size);
        let mut size: u64 = sizes.sum();
        // The segments that sidecar files need are also kept when no broker runs.
        let needed = [needed, self.needed()].into_iter().flatten().min();
        let pins = self.log.pins.hold();
        let mut chosen = Vec::new();
        for pair in segments.windows(2) {
            let (segment, next) = (&pair[0], &pair[1]);
            let summary = segment.summary();
            // Until the next segment is durable, this is the last one after a crash, and a start
            // would append to it.
            let is_free = segment.is_sealed() && next.is_durable();
            let must_stay = action == Action::Remove
                && (needed.is_some_and(|needed| summary.last >= needed) || pins.keep(summary.last));
            if !concerned(segment) {
                continue;
            }
            let is_meant = match which {
                Which::Until(instant) => {
                    written_until(segment, &segments).is_some_and(|last| last <= instant)
                }
                Which::Beyond { size_max } => size > size_max,
                Which::All => true,
            };
            if !is_free || must_stay || !is_meant {
                break;
            }
            size -= segment.file_size;
            chosen.push(segment.clone());
        }
        chosen
    }

    fn archive_one(&self, segment: &Segment, archive: &Path) -> Result<Arc<Segment>, JournalError> {
        let disk = &*self.log.disk;
        let target = archive.join(segment.path.file_name().unwrap_or_default());
        let failed = |error: io::Error| JournalError::io(&target, "archiving a segment", &error);
        disk.create_directory(archive).map_err(failed)?;
        // It may have become a link since the start.
        check_archive(disk, &self.log.directory, archive)?;
        self.is_copied(&target, segment)?;
        archive_directory::note(disk, &self.log.directory, archive)?;
        copy(disk, segment, &target)?;
        // The file that there is has the sums, too.
        let kept = disk.read(&index_path(&segment.path)).unwrap_or_default();
        let own = segment.index.read();
        let index = match index_file::sums(&kept, &own, segment.number) {
            Some(_) => atomic_file::checked(&kept).unwrap_or_default().to_vec(),
            None => index_file::encode(&own, None, segment.number, segment.first),
        };
        drop(own);
        atomic_file::write(disk, &index_path(&target), index)?;
        let copied = self.switch(segment, target)?;
        self.log.doomed.lock().push_back(segment.path.clone());
        self.discard_doomed()?;
        Ok(copied)
    }

    /// Whether a copy of the segment is at `target`. Fails when another file is there.
    fn is_copied(&self, target: &Path, segment: &Segment) -> Result<bool, JournalError> {
        let file = match self.log.disk.open_read_only(target) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(JournalError::io(target, "opening the segment", &error)),
        };
        let found = read_header(&*file);
        let found = found.map_err(|error| JournalError::io(target, "reading the segment", &error))?;
        let own = segment.header_fields();
        let own = own.map_err(|fault| segment.error_of(0, fault, Position(segment.first.0 - 1)))?;
        let same = |found: SegmentHeader, own: SegmentHeader| {
            (found.number, found.first, found.previous) == (own.number, own.first, own.previous)
        };
        if found.is_ok_and(|found| own.is_ok_and(|own| same(found, own))) {
            return Ok(true);
        }
        let reason = format!("{} is there, and is no copy of this segment", target.display());
        Err(JournalError::BadOption { option: "journal_archive_directory", reason })
    }

    fn compress_one(&self, segment: &Segment) -> Result<Arc<Segment>, JournalError> {
        let disk = &*self.log.disk;
        let path = &segment.path;
        let bytes = compressed::compress(segment)?;
        self.keep_open(segment)?;
        atomic_file::replace(disk, path, "packing", &bytes)?;
        self.switch(segment, path.clone())
    }

    /// Returns whether it was removed: false when a reader has begun to use it.
    fn remove_one(&self, segment: &Arc<Segment>) -> Result<bool, JournalError> {
        // The cursors in it can continue.
        self.keep_open(segment)?;
        // First writes where the log will begin, and the sequences that only this segment has.
        let Some(next) = self.log.segment(segment.number + 1) else { return Ok(false) };
        self.log.write_beginning(&next, segment)?;
        if !self.log.forget_first(segment) {
            self.log.write_beginning(segment, segment)?;
            return Ok(false);
        }
        // The copy of an unfinished archiving would otherwise replace the segment again.
        let copy = self.log.archive.as_ref().filter(|_| !segment.is_archived);
        if let Some(copy) = copy.map(|archive| archive.join(segment.path.file_name().unwrap_or_default()))
            && self.is_copied(&copy, segment).unwrap_or(false)
        {
            self.log.doomed.lock().push_back(copy);
        }
        self.log.doomed.lock().push_back(segment.path.clone());
        self.discard_doomed()?;
        Ok(true)
    }

    /// Keeps the file open for the readers of the segment. Its name is about to be removed, or to
    /// be reused for another file.
    fn keep_open(&self, segment: &Segment) -> Result<(), JournalError> {
        let kept = segment.file.keep_open();
        kept.map_err(|error| JournalError::io(&segment.path, "opening the segment", &error))
    }

    /// From now on, the file at `path` is the file of the segment.
    fn switch(&self, segment: &Segment, path: PathBuf) -> Result<Arc<Segment>, JournalError> {
        self.keep_open(segment)?;
        let file = self.log.disk.open_read_only(&path);
        let file = file.map_err(|error| JournalError::io(&path, "opening the segment", &error))?;
        let is_archived = self.log.archive.as_deref().is_some_and(|archive| path.parent() == Some(archive));
        let segment = segment.at(&self.log.files, path, &*file, is_archived)?;
        self.log.replace(&segment);
        Ok(segment)
    }

    /// Removes the files that are no longer part of the log. A failed removal is tried again before
    /// any other action.
    fn discard_doomed(&self) -> Result<(), JournalError> {
        let mut doomed = self.log.doomed.lock();
        while let Some(path) = doomed.front() {
            self.discard(path)?;
            doomed.pop_front();
        }
        Ok(())
    }

    /// Removes a file that the log no longer needs, and makes that durable, because the next one
    /// must not be removed earlier.
    fn discard(&self, path: &Path) -> Result<(), JournalError> {
        let disk = &*self.log.disk;
        let _nobody_writes_an_index = self.log.writing_sidecars.lock();
        let directory = path.parent().unwrap_or(Path::new("."));
        // A missing file was removed before, and the removal may not be synced.
        let remove = |path: &Path| match disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
        let removed = remove(path).and(remove(&index_path(path)));
        removed
            .and_then(|()| disk.sync_directory(directory))
            .map_err(|error| JournalError::io(path, "removing a segment", &error))
    }
}

/// The latest time at which a segment was written. A segment without records was the last one until
/// the next record; `None`: there is no such record yet.
fn written_until(segment: &Segment, segments: &[Arc<Segment>]) -> Option<Timestamp> {
    let summary = segment.summary();
    if summary.count > 0 {
        return Some(summary.last_timestamp);
    }
    let later = segments.iter().filter(|other| other.number > segment.number).map(|other| other.summary());
    later.filter(|summary| summary.count > 0).map(|summary| summary.first_timestamp).next()
}

/// The bytes that are copied at a time. So a copy does not fill the memory with dirty pages.
const COPY_SIZE: usize = 4 * 1024 * 1024;

/// Copies the file of the segment, completely and durably, before it gets its name. The name is
/// durable when its index was written.
fn copy(disk: &dyn Disk, segment: &Segment, target: &Path) -> Result<(), JournalError> {
    let failed = |error: io::Error| JournalError::io(target, "archiving a segment", &error);
    let original = segment.file.open();
    let original =
        original.map_err(|error| JournalError::io(&segment.path, "opening the segment", &error))?;
    let temporary = target.with_extension("archiving");
    let file = disk.create(&temporary, segment.file_size).map_err(failed)?;
    let mut offset = 0;
    let mut bytes = Vec::new();
    while offset < segment.file_size {
        let size = COPY_SIZE.min((segment.file_size - offset) as usize);
        bytes.clear();
        let read = original.read_at(&mut bytes, size, offset);
        read.map_err(|error| segment.error_of(offset, error.into(), Position(segment.first.0 - 1)))?;
        file.write_at(&bytes, offset).and_then(|()| file.sync()).map_err(failed)?;
        offset += size as u64;
    }
    file.sync().and_then(|()| disk.rename(&temporary, target)).map_err(failed)
}

fn lock(disk: &dyn Disk, directory: &Path) -> Result<Box<dyn Send + Sync>, JournalError> {
    let lock = disk.lock(directory);
    let lock = lock.map_err(|error| JournalError::io(directory, "locking the directory", &error))?;
    lock.ok_or_else(|| JournalError::Locked { directory: directory.to_owned() })
}

fn no_archive() -> JournalError {
    JournalError::BadOption {
        option: "journal_archive_directory",
        reason: "not set: there is nowhere to archive to".into(),
    }
}
