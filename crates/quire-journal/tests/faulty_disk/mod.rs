//! A disk in memory that fails where a test says. The tests of the broker include this file, too.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quire_journal::{Disk, File, MemoryDisk, PageFile};

/// The next operation of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code)] // each test looks at some of it
pub enum Call<'a> {
    /// Open a file for reading.
    Open(&'a Path),
    /// Make a file.
    Create(&'a Path),
    /// Reserve the space of a file that it has just made.
    Reserve(&'a Path),
    /// Read these bytes of a file.
    Read(&'a Path, Range<u64>),
    /// Write to a file. A write that fails leaves the first half of its bytes.
    Write(&'a Path),
    /// Sync a file.
    Sync(&'a Path),
    /// Give a file this name.
    Rename(&'a Path),
    /// Sync a directory.
    SyncDirectory(&'a Path),
}

type Fault = dyn Fn(Call<'_>) -> io::Result<()> + Send + Sync;

/// See the module's documentation.
#[derive(Clone)]
pub struct FaultyDisk {
    pub disk: Arc<MemoryDisk>,
    fault: Arc<Fault>,
    page_file_size: Option<usize>,
}

impl FaultyDisk {
    /// Asks `fault` before each call. The call fails with the error that `fault` returns.
    pub fn new(
        disk: Arc<MemoryDisk>,
        fault: impl Fn(Call<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        FaultyDisk { disk, fault: Arc::new(fault), page_file_size: None }
    }

    /// Gives page files of this size; with 0 there is no space for one.
    #[allow(dead_code)] // not every test pages
    pub fn with_page_files(self, size: usize) -> Self {
        FaultyDisk { page_file_size: Some(size), ..self }
    }

    fn file(&self, path: &Path, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(FaultyFile { fault: self.fault.clone(), path: path.to_owned(), file })
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(self.file(path, self.disk.open(path)?))
    }
    fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let file = self.disk.open_read_only(path)?;
        (self.fault)(Call::Open(path))?;
        Ok(self.file(path, file))
    }
    fn create(&self, path: &Path, size: u64) -> io::Result<Box<dyn File>> {
        (self.fault)(Call::Create(path))?;
        let file = self.disk.create(path, size)?;
        (self.fault)(Call::Reserve(path))?;
        Ok(self.file(path, file))
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.read(path)
    }
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.disk.list(directory)
    }
    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        self.disk.create_directory(directory)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.fault)(Call::Rename(to))?;
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        (self.fault)(Call::SyncDirectory(directory))?;
        self.disk.sync_directory(directory)
    }
    fn free_bytes(&self, _: &Path) -> Option<u64> {
        Some(77)
    }
    fn lock(&self, directory: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        self.disk.lock(directory)
    }
    fn page_file(&self, _: &Path) -> io::Result<Option<PageFile>> {
        match self.page_file_size {
            None => Ok(None),
            Some(0) => Err(io::ErrorKind::StorageFull.into()),
            Some(size) => PageFile::create(tempfile::tempdir()?.path(), size).map(Some),
        }
    }
}

struct FaultyFile {
    fault: Arc<Fault>,
    path: PathBuf,
    file: Box<dyn File>,
}

impl File for FaultyFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Err(error) = (self.fault)(Call::Write(&self.path)) {
            self.file.write_at(&bytes[..bytes.len() / 2], offset)?;
            return Err(error);
        }
        self.file.write_at(bytes, offset)
    }
    fn sync(&self) -> io::Result<()> {
        (self.fault)(Call::Sync(&self.path))?;
        self.file.sync()
    }
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn read_at(&self, buffer: &mut Vec<u8>, size: usize, offset: u64) -> io::Result<()> {
        (self.fault)(Call::Read(&self.path, offset..offset + size as u64))?;
        self.file.read_at(buffer, size, offset)
    }
}
