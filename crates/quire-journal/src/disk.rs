//! Where files live: the one door to the file system, so that a simulated disk can stand in for it.
//!
//! [`RealDisk`] is the machine's file system, [`MemoryDisk`] keeps files in memory for `memory:` engines and tests. Both hold the same
//! contract: every reader of the file sees at once what `write_at` wrote; what `sync` returned for survives a power cut.
//!
//! No file is mapped: a disk that cannot read a mapped page, or a mapped file that another process shortens, ends the process with a
//! signal. A call that reads returns an error.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::memory::PageFile;

/// A file system, as far as the journal needs one.
pub trait Disk: Send + Sync {
    /// Opens an existing file for writing and reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>>;
    /// Opens an existing file for reading only. The disk reads what it is asked for and nothing around it.
    fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn File>>;
    /// Makes a file of `size` zero bytes with the space reserved; an existing one is emptied first.
    fn create(&self, path: &Path, size: u64) -> io::Result<Box<dyn File>>;
    /// Reads a small file whole.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Names of the files in a directory.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Makes the directory, and those above it, durably.
    fn create_directory(&self, directory: &Path) -> io::Result<()>;
    /// Gives a file another name in the same directory, replacing what has that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in the directory durable.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
    /// Takes the directory for one process until the value is dropped; `None` when another has it.
    fn lock(&self, directory: &Path) -> io::Result<Option<Box<dyn Send + Sync>>>;
    /// Bytes that can still be written to files in the directory; `None` when that is not known.
    fn free_bytes(&self, _directory: &Path) -> Option<u64> {
        None
    }
    /// Space in the directory for memory that the system may write out; `None`: this disk has none, and the heap serves.
    fn page_file(&self, _directory: &Path) -> io::Result<Option<PageFile>> {
        Ok(None)
    }
    /// Whether both paths lead to one directory. One that is not there is none.
    fn is_same_directory(&self, one: &Path, other: &Path) -> io::Result<bool> {
        Ok(one == other)
    }
}

/// An open file of fixed size.
pub trait File: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all of the parts, one behind the other, from `offset` on.
    fn write_parts_at(&self, parts: &mut [io::IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        for part in parts {
            self.write_at(part, offset)?;
            offset += part.len() as u64;
        }
        Ok(())
    }
    /// Returns when what was written is on stable storage.
    fn sync(&self) -> io::Result<()>;
    /// Size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Appends `size` bytes of the file, from `offset` on, to `buffer`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the file ends before; what the disk cannot read. The buffer may have got a part of the bytes.
    fn read_at(&self, buffer: &mut Vec<u8>, size: usize, offset: u64) -> io::Result<()>;
    /// Asks the disk to read these bytes into memory, and does not wait for it. A hint: without it, each byte is read when it is asked
    /// for.
    fn will_need(&self, _range: Range<u64>) {}
}

/// The machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

const LOCK_NAME: &str = "journal.lock";

/// The most that can be paged out: the states of thousands of millions of messages. Until it is used it costs addresses only.
const PAGE_FILE_SIZE_MAX: usize = 64 * 1024 * 1024 * 1024;

impl Disk for RealDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(fs::OpenOptions::new().read(true).write(true).open(path)?))
    }

    fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let file = fs::File::open(path)?;
        // A hint: without it the system may read many MiB around each place, and whoever waits for the same disk waits for them too.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        Ok(Box::new(file))
    }

    fn create(&self, path: &Path, size: u64) -> io::Result<Box<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size) {
            Ok(()) => (),
            // A file system without preallocation: the space is not reserved, and running out shows at the write.
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(size)?,
            Err(error) => return Err(error.into()),
        }
        Ok(Box::new(file))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = directory.ancestors().take_while(|above| !above.exists()).collect();
        fs::create_dir_all(directory)?;
        for made in missing {
            let above = made.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
            self.sync_directory(above)?;
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        fs::File::open(directory)?.sync_all()
    }

    fn lock(&self, directory: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        let path = directory.join(LOCK_NAME);
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    fn free_bytes(&self, directory: &Path) -> Option<u64> {
        let space = rustix::fs::statvfs(directory).ok()?;
        Some(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn page_file(&self, directory: &Path) -> io::Result<Option<PageFile>> {
        PageFile::create(directory, PAGE_FILE_SIZE_MAX).map(Some)
    }

    fn is_same_directory(&self, one: &Path, other: &Path) -> io::Result<bool> {
        let identity = |path: &Path| match fs::metadata(path) {
            Ok(found) => Ok(Some((found.dev(), found.ino()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let one = identity(one)?;
        Ok(one.is_some() && one == identity(other)?)
    }
}

impl File for fs::File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn write_parts_at(&self, mut parts: &mut [io::IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        while !parts.is_empty() {
            // Takes as many as the system takes at once.
            match rustix::io::pwritev(self, parts, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    io::IoSlice::advance_slices(&mut parts, written);
                    offset += written as u64;
                }
                Err(rustix::io::Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    #[allow(unsafe_code)] // memory that is not filled with zeros before it is read into
    fn read_at(&self, buffer: &mut Vec<u8>, size: usize, mut offset: u64) -> io::Result<()> {
        buffer.reserve_exact(size);
        let end = buffer.len() + size;
        while buffer.len() < end {
            let missing = end - buffer.len();
            let read = match rustix::io::pread(self, &mut buffer.spare_capacity_mut()[..missing], offset) {
                Ok((read, _)) => read.len(),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // SAFETY: so many bytes behind the length were just read, and the capacity reaches further.
            unsafe { buffer.set_len(buffer.len() + read) };
            offset += read as u64;
        }
        Ok(())
    }

    fn will_need(&self, range: Range<u64>) {
        if let Some(size) = std::num::NonZeroU64::new(range.end.saturating_sub(range.start)) {
            let _ = rustix::fs::fadvise(self, range.start, Some(size), rustix::fs::Advice::WillNeed);
        }
    }
}

/// Files in memory, up to a bound.
#[derive(Clone)]
pub struct MemoryDisk(Arc<MemoryDiskState>);

struct MemoryDiskState {
    files: Mutex<BTreeMap<PathBuf, Arc<MemoryBytes>>>,
    size_max: u64,
    size: Arc<AtomicU64>,
}

impl MemoryDisk {
    /// A disk of `size_max` bytes; creating a file beyond that is "no space left".
    pub fn new(size_max: u64) -> Self {
        MemoryDisk(Arc::new(MemoryDiskState { files: Mutex::default(), size_max, size: Arc::default() }))
    }

    fn file(&self, path: &Path) -> io::Result<Arc<MemoryBytes>> {
        self.0.files.lock().get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// The bytes of a file in memory.
struct MemoryBytes {
    bytes: RwLock<Box<[u8]>>,
    disk_size: Arc<AtomicU64>,
}

impl Drop for MemoryBytes {
    fn drop(&mut self) {
        self.disk_size.fetch_sub(self.bytes.get_mut().len() as u64, Ordering::Relaxed);
    }
}

/// Where `size` bytes from `offset` on lie in a file of `file_size` bytes; `None` when the file ends before.
fn range_of(offset: u64, size: usize, file_size: usize) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(size)?;
    (end <= file_size).then_some(start..end)
}

impl Disk for MemoryDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(self.file(path)?))
    }

    fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.open(path)
    }

    fn create(&self, path: &Path, size: u64) -> io::Result<Box<dyn File>> {
        let mut files = self.0.files.lock();
        files.remove(path);
        if self.0.size.load(Ordering::Relaxed) + size > self.0.size_max {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let size = usize::try_from(size).map_err(|_| io::ErrorKind::StorageFull)?;
        let bytes = RwLock::new(vec![0; size].into_boxed_slice());
        self.0.size.fetch_add(size as u64, Ordering::Relaxed);
        let file = Arc::new(MemoryBytes { bytes, disk_size: self.0.size.clone() });
        files.insert(path.to_owned(), file.clone());
        Ok(Box::new(file))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(self.file(path)?.bytes.read().to_vec())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let files = self.0.files.lock();
        let names = files
            .keys()
            .filter(|path| path.parent() == Some(directory))
            .filter_map(|path| path.file_name()?.to_str());
        Ok(names.map(str::to_owned).collect())
    }

    fn create_directory(&self, _directory: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = self.0.files.lock();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.files.lock().remove(path).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_directory(&self, _directory: &Path) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&self, _directory: &Path) -> Option<u64> {
        Some(self.0.size_max.saturating_sub(self.0.size.load(Ordering::Relaxed)))
    }

    fn lock(&self, _directory: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        Ok(Some(Box::new(())))
    }
}

impl File for Arc<MemoryBytes> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut file = self.bytes.write();
        let range = range_of(offset, bytes.len(), file.len()).ok_or(io::ErrorKind::InvalidInput)?;
        file[range].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.read().len() as u64)
    }

    fn read_at(&self, buffer: &mut Vec<u8>, size: usize, offset: u64) -> io::Result<()> {
        let file = self.bytes.read();
        let range = range_of(offset, size, file.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.extend_from_slice(&file[range]);
        Ok(())
    }
}
