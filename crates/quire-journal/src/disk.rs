//! Where files live: the one door to the file system, so that a simulated disk can stand in for it.
//!
//! [`RealDisk`] is the machine's file system, [`MemoryDisk`] keeps files in memory for `memory:` engines and tests. Both hold the same
//! contract: what `write_at` wrote is seen at once by every mapping of the file; what `sync` returned for survives a power cut.

#![allow(unsafe_code)] // mapped files: see the SAFETY notes at each use

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::memory::PageFile;

/// A file system, as far as the journal needs one.
pub trait Disk: Send + Sync {
    /// Opens an existing file for writing and mapping.
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>>;
    /// Opens an existing file for mapping only.
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
    /// The bytes of the file, following what is written to it.
    fn map(&self) -> io::Result<Mapping>;
}

/// Read access to the bytes of a file.
///
/// Bytes are handed out only by range, and the journal asks only for ranges that are no longer written to, or checks what it reads by
/// checksum.
pub struct Mapping {
    base: *const u8,
    size: usize,
    /// Keeps the memory behind `base` alive.
    owner: Owner,
}

enum Owner {
    Map(memmap2::MmapRaw),
    Memory(#[allow(dead_code)] Arc<MemoryBytes>),
    None,
}

// SAFETY: a mapping only reads, and its owner keeps the memory where it is for as long as the mapping lives.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Bytes that are mapped.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The system reads from the disk what is touched or was said to [`Mapping::will_need`], and nothing around it.
    pub fn expect_jumps(&self) {
        if let Owner::Map(map) = &self.owner {
            // A hint: without it more is read than is needed.
            let _ = map.advise(memmap2::Advice::Random);
        }
    }

    /// The system reads these bytes, as far as they are there and not in memory, and nobody waits for it.
    pub fn will_need(&self, range: Range<u64>) {
        let end = range.end.min(self.size as u64);
        if let Owner::Map(map) = &self.owner
            && range.start < end
        {
            // A hint: without it each page is read when it is touched.
            let _ = map.advise_range(
                memmap2::Advice::WillNeed,
                range.start as usize,
                (end - range.start) as usize,
            );
        }
    }

    /// The bytes from `offset`, `size` of them; `None` when the file does not reach that far.
    pub fn bytes(&self, offset: u64, size: usize) -> Option<&[u8]> {
        let offset = usize::try_from(offset).ok()?;
        if size > self.size.checked_sub(offset)? {
            return None;
        }
        // SAFETY: the range lies in the mapping, which lives as long as `self`. The writer appends behind what readers are given and
        // never changes it; a range at the tail that is read during recovery or beside a running server is believed only after its
        // checksum matched. Files are never shortened (a shorter file would be a bus error).
        Some(unsafe { std::slice::from_raw_parts(self.base.add(offset), size) })
    }
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
        Ok(Box::new(fs::File::open(path)?))
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

    fn map(&self) -> io::Result<Mapping> {
        if self.metadata()?.len() == 0 {
            return Ok(Mapping { base: std::ptr::NonNull::dangling().as_ptr(), size: 0, owner: Owner::None });
        }
        let map = memmap2::MmapOptions::new().map_raw_read_only(self)?;
        Ok(Mapping { base: map.as_ptr(), size: map.len(), owner: Owner::Map(map) })
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

/// A block of memory that is written through a pointer: it is shared with mappings, so there is never a `&mut` to it.
struct MemoryBytes {
    base: *mut u8,
    size: usize,
    disk_size: Arc<AtomicU64>,
}

// SAFETY: see `Mapping::bytes` for who reads what; the pointer itself never changes.
unsafe impl Send for MemoryBytes {}
// SAFETY: as above.
unsafe impl Sync for MemoryBytes {}

impl Drop for MemoryBytes {
    fn drop(&mut self) {
        self.disk_size.fetch_sub(self.size as u64, Ordering::Relaxed);
        // SAFETY: `base` and `size` came from `Box::into_raw` of a slice of this size, and are given back once.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.base, self.size)) });
    }
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
        let base = Box::into_raw(vec![0u8; size].into_boxed_slice()).cast::<u8>();
        self.0.size.fetch_add(size as u64, Ordering::Relaxed);
        let file = Arc::new(MemoryBytes { base, size, disk_size: self.0.size.clone() });
        files.insert(path.to_owned(), file.clone());
        Ok(Box::new(file))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.file(path)?;
        let mapping = File::map(&file)?;
        Ok(mapping.bytes(0, mapping.size()).unwrap_or_default().to_vec())
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

    fn lock(&self, _directory: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        Ok(Some(Box::new(())))
    }
}

impl File for Arc<MemoryBytes> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the range lies in the block; one writer writes, and only where readers have not been given the bytes yet. Recovery
        // writes bytes over themselves, so the ranges may overlap.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.base.add(offset), bytes.len()) };
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.size as u64)
    }

    fn map(&self) -> io::Result<Mapping> {
        Ok(Mapping { base: self.base, size: self.size, owner: Owner::Memory(self.clone()) })
    }
}
