//! The only interface to the file system, so that a simulated disk can replace it.
//!
//! [`RealDisk`] is the file system of the machine. [`MemoryDisk`] keeps files in memory for
//! `memory:` engines and tests. Both hold the same contract: every reader of the file sees at once
//! the bytes that `write_at` wrote, and the bytes survive a power cut once `sync` has returned.
//!
//! No file is mapped: a disk that cannot read a mapped page, or a mapped file that another process
//! shortens, ends the process with a signal. A call that reads returns an error.

mod memory;
mod real;

use std::io;
use std::ops::Range;
use std::path::Path;

pub use memory::MemoryDisk;
pub use real::RealDisk;

use crate::paged::PageFile;

/// The functions of a file system that the journal needs.
pub trait Disk: Send + Sync {
    /// Opens an existing file for writing and reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>>;
    /// Opens an existing file for reading only. The disk reads only the requested bytes.
    fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn File>>;
    /// Makes a file of `size` zero bytes, and reserves its space. An existing file is emptied
    /// first.
    fn create(&self, path: &Path, size: u64) -> io::Result<Box<dyn File>>;
    /// Reads a small file whole.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Names of the files in a directory.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Makes the directory, and those above it, durably.
    fn create_directory(&self, directory: &Path) -> io::Result<()>;
    /// Renames a file within its directory, and replaces a file with the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in the directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// Locks the directory for one process until the value is dropped. `None` when another process
    /// has it.
    fn lock(&self, directory: &Path) -> io::Result<Option<Box<dyn Send + Sync>>>;
    /// Bytes that can still be written to files in the directory; `None` when that is not known.
    fn free_bytes(&self, _directory: &Path) -> Option<u64> {
        None
    }
    /// Space in the directory for memory that the system may write out. `None`: this disk does not
    /// support it, and the heap is used.
    fn page_file(&self, _directory: &Path) -> io::Result<Option<PageFile>> {
        Ok(None)
    }
    /// A number that another directory does not have, also one that is a copy; 0: not known. It
    /// stays the same while the directory exists.
    fn directory_id(&self, _directory: &Path) -> u64 {
        0
    }
    /// Whether both paths lead to one directory. False when one of them does not exist.
    fn is_same_directory(&self, one: &Path, other: &Path) -> io::Result<bool> {
        Ok(one == other)
    }
}

/// An open file of fixed size.
pub trait File: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all of the parts, one after the other, from `offset` on.
    fn write_parts_at(&self, parts: &mut [io::IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        for part in parts {
            self.write_at(part, offset)?;
            offset += part.len() as u64;
        }
        Ok(())
    }
    /// Returns when the written bytes are on stable storage.
    fn sync(&self) -> io::Result<()>;
    /// Size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Appends `size` bytes of the file, from `offset` on, to `buffer`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the file ends too early, and the error of a disk that
    /// cannot read. The buffer may contain a part of the bytes.
    fn read_at(&self, buffer: &mut Vec<u8>, size: usize, offset: u64) -> io::Result<()>;
    /// Whether a parent of this process opened it, so that it cannot be used here.
    fn is_of_parent(&self) -> bool {
        false
    }
    /// Asks the disk to read these bytes into memory, and does not wait. A hint: without it, bytes
    /// are read when a caller needs them.
    fn will_need(&self, _range: Range<u64>) {}
    /// Asks the system to begin to write these bytes to the disk, and does not wait. A hint: only
    /// [`File::sync`] makes bytes durable.
    fn write_soon(&self, _range: Range<u64>) {}
}
