//! Files in memory, for `memory:` engines and tests.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::{Disk, File};

/// Files in memory, up to a bound.
#[derive(Clone)]
pub struct MemoryDisk(Arc<MemoryDiskState>);

struct MemoryDiskState {
    files: Mutex<BTreeMap<PathBuf, Arc<MemoryBytes>>>,
    size_max: u64,
    size: Arc<AtomicU64>,
    id: u64,
}

/// The disks of this process, so far.
static DISK_COUNT: AtomicU64 = AtomicU64::new(0);

impl MemoryDisk {
    /// A disk of `size_max` bytes. Creating a file above this fails with "no space left".
    pub fn new(size_max: u64) -> Self {
        let id = 1 + DISK_COUNT.fetch_add(1, Ordering::Relaxed);
        MemoryDisk(Arc::new(MemoryDiskState { files: Mutex::default(), size_max, size: Arc::default(), id }))
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

/// The range of `size` bytes from `offset` in a file of `file_size` bytes; `None` when the file
/// ends before.
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

    fn directory_id(&self, _directory: &Path) -> u64 {
        self.0.id
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
