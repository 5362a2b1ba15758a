//! The files of segments that are open for reading.
//!
//! A log may have more segments than the process may have open files. So a segment opens its file
//! when a reader needs it. The most recently opened files stay open. There are enough of them that
//! a reader that jumps finds most of them open.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::disk::{Disk, File};
use crate::format::SegmentHeader;
use crate::segment::read_header;

/// The most files that stay open without a reader.
const OPEN_MAX: usize = 32;

/// Opens the files of one log.
pub(crate) struct OpenFiles {
    disk: Arc<dyn Disk>,
    /// Another process writes the log, and may replace a file by another one.
    follows: bool,
    /// The files that are open, in the order in which they were opened.
    open: Mutex<VecDeque<Weak<SegmentFile>>>,
}

/// A file that is open for reading.
pub(crate) type OpenFile = Arc<dyn File>;

/// The file of a segment, open or not.
pub(crate) struct SegmentFile {
    path: PathBuf,
    header: SegmentHeader,
    files: Arc<OpenFiles>,
    state: Mutex<FileState>,
}

enum FileState {
    Closed,
    Open(OpenFile),
    /// It is about to be removed, or replaced by another file of the same name. It stays open for
    /// the remaining holders of the segment.
    Kept(OpenFile),
}

impl OpenFiles {
    pub fn new(disk: Arc<dyn Disk>, follows: bool) -> Self {
        OpenFiles { disk, follows, open: Mutex::default() }
    }

    /// Closes the files that were opened first, until `count` are left.
    pub fn close_down_to(&self, count: usize) {
        let mut open = self.open.lock();
        let excess = open.len().saturating_sub(count);
        let first: Vec<_> = open.drain(..excess).collect();
        drop(open);
        for file in first.iter().filter_map(Weak::upgrade) {
            file.close();
        }
    }
}

impl SegmentFile {
    /// The file at `path`, in which the segment with this header is.
    pub fn new(files: &Arc<OpenFiles>, path: PathBuf, header: SegmentHeader) -> Arc<Self> {
        Arc::new(SegmentFile { path, header, files: files.clone(), state: Mutex::new(FileState::Closed) })
    }

    /// The open file. Its holder can continue to read it when its name is removed or reused.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when the file is missing, or another process has replaced it.
    /// Otherwise the error of the system.
    pub fn open(self: &Arc<Self>) -> io::Result<OpenFile> {
        if let Some(file) = self.state.lock().file() {
            return Ok(file);
        }
        let open = || self.files.disk.open_read_only(&self.path);
        let file = match open() {
            Err(error) if is_out_of_files(&error) => {
                self.files.close_down_to(0);
                open()?
            }
            opened => opened?,
        };
        // A damaged header is not checked here. The read of the file reports the damage.
        if self.files.follows
            && let Ok(found) = read_header(&*file)?
            && (found.number, found.first, found.table)
                != (self.header.number, self.header.first, self.header.table)
        {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(self.set_open(file))
    }

    /// Keeps a file that was opened by its name, unless another one is open. Returns the open file.
    pub fn set_open(self: &Arc<Self>, file: Box<dyn File>) -> OpenFile {
        let file: OpenFile = file.into();
        let mut state = self.state.lock();
        // Another reader may have been faster, and the file that it opened may have lost its name
        // since.
        if let Some(file) = state.file() {
            return file;
        }
        *state = FileState::Open(file.clone());
        drop(state);
        self.files.open.lock().push_back(Arc::downgrade(self));
        self.files.close_down_to(OPEN_MAX);
        file
    }

    /// Keeps the file open as long as the segment is in use. The name of the file is about to be
    /// removed, or to be reused for another file.
    pub fn keep_open(self: &Arc<Self>) -> io::Result<()> {
        let file = self.open()?;
        *self.state.lock() = FileState::Kept(file);
        Ok(())
    }

    fn close(&self) {
        let mut state = self.state.lock();
        if matches!(*state, FileState::Open(_)) {
            *state = FileState::Closed;
        }
    }
}

impl FileState {
    fn file(&self) -> Option<OpenFile> {
        match self {
            FileState::Closed => None,
            // The descriptor of a parent is closed in this process. The next read opens the file
            // again.
            FileState::Open(file) if file.is_of_parent() => None,
            FileState::Open(file) | FileState::Kept(file) => Some(file.clone()),
        }
    }
}

/// Whether the process, or the system, has reached its limit of open files.
pub(crate) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::disk::MemoryDisk;
    use crate::record::Position;

    fn open_count(files: &[Arc<SegmentFile>]) -> usize {
        files.iter().filter(|file| file.state.lock().file().is_some()).count()
    }

    #[test]
    fn a_bounded_number_of_files_stays_open_and_kept_ones_are_not_closed() {
        let disk = MemoryDisk::new(1 << 20);
        let files = Arc::new(OpenFiles::new(Arc::new(disk.clone()), false));
        let header =
            SegmentHeader { version: 3, number: 0, first: Position(1), size: 1, previous: 0, table: 0 };
        let all: Vec<_> = (0..3 * OPEN_MAX)
            .map(|number| {
                let path = Path::new("journal").join(number.to_string());
                disk.create(&path, 1).unwrap();
                SegmentFile::new(&files, path, header)
            })
            .collect();
        all[0].keep_open().unwrap();
        for file in &all {
            file.open().unwrap();
        }
        assert_eq!(open_count(&all), OPEN_MAX + 1);
        assert!(all[0].state.lock().file().is_some());
        // A file that is read again is opened again.
        all[1].open().unwrap();
        assert_eq!(open_count(&all), OPEN_MAX + 1);
        disk.remove(&all[0].path).unwrap();
        assert!(all[0].open().is_ok());
        disk.remove(&all[2].path).unwrap();
        assert_eq!(all[2].open().err().unwrap().kind(), io::ErrorKind::NotFound);
    }
}
