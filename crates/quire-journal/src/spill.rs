//! Data that waits on disk for a while: files in a directory of their own, which go with their
//! owners. They are not synced, because a start removes them.

use std::fs;
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::descriptor::Owned;

/// The end of the names of the files.
const SUFFIX: &str = ".page";

/// Messages are in the files.
const FILE_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o700;

/// The directory of the files.
#[derive(Debug)]
pub struct SpillDirectory {
    path: PathBuf,
    /// The number of the last file.
    number: AtomicU64,
    /// Bytes of all files.
    size: AtomicU64,
    /// Files that are not needed any more.
    unused: Mutex<Vec<PathBuf>>,
}

impl SpillDirectory {
    /// Makes the directory, and removes the files of a process that was killed.
    ///
    /// # Errors
    /// The error of the system.
    pub fn open(path: &Path) -> io::Result<Arc<Self>> {
        fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)?;
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().ends_with(SUFFIX) {
                fs::remove_file(entry.path())?;
            }
        }
        let (number, size, unused) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::default());
        Ok(Arc::new(SpillDirectory { path: path.to_owned(), number, size, unused }))
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Writes a file.
    ///
    /// # Errors
    /// The error of the system.
    pub fn write(self: &Arc<Self>, parts: &[&[u8]]) -> io::Result<Spilled> {
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let path = self.path.join(format!("{number}{SUFFIX}"));
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(FILE_MODE);
        let mut file = Owned::open(|| options.open(&path))?;
        let size = parts.iter().map(|part| part.len()).sum::<usize>();
        self.size.fetch_add(size as u64, Ordering::Relaxed);
        let checksum = parts.iter().fold(0, |sum, part| crc32c::crc32c_append(sum, part));
        // From here on, the file is removed with its owner.
        let spilled = Spilled { directory: self.clone(), path, checksum, size };
        let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        write_all(&mut file, &mut slices)?;
        Ok(spilled)
    }

    /// Removes the files that are not needed. After an error, the next start removes the file.
    pub fn remove_unused(&self) {
        for path in std::mem::take(&mut *self.unused.lock().unwrap_or_else(PoisonError::into_inner)) {
            let _ = fs::remove_file(path);
        }
    }

    /// Whether there are files that are not needed.
    pub fn has_unused(&self) -> bool {
        !self.unused.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Drop for SpillDirectory {
    fn drop(&mut self) {
        self.remove_unused();
    }
}

fn write_all(file: &mut fs::File, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(size) => IoSlice::advance_slices(&mut slices, size),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A file. [`SpillDirectory::remove_unused`] removes it after its owner has dropped it.
#[derive(Debug)]
pub struct Spilled {
    directory: Arc<SpillDirectory>,
    path: PathBuf,
    checksum: u32,
    size: usize,
}

impl Spilled {
    /// Its bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it, and removes it.
    ///
    /// # Errors
    /// The error of the system, also for a file that was changed.
    pub fn read(self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.size);
        io::Read::read_to_end(&mut *Owned::open(|| fs::File::open(&self.path))?, &mut bytes)?;
        if bytes.len() != self.size || crc32c::crc32c(&bytes) != self.checksum {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file was changed"));
        }
        let directory = self.directory.clone();
        drop(self);
        directory.remove_unused();
        Ok(bytes)
    }
}

impl Drop for Spilled {
    fn drop(&mut self) {
        self.directory.size.fetch_sub(self.size as u64, Ordering::Relaxed);
        let path = std::mem::take(&mut self.path);
        self.directory.unused.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn count(path: &Path) -> usize {
        fs::read_dir(path).unwrap().count()
    }

    #[test]
    fn files_are_readable_by_their_owner_only() {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("data").join("offline");
        let spilled = SpillDirectory::open(&path).unwrap().write(&[b"a"]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(spilled.path()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_has_the_parts_and_goes_with_its_owner() {
        let above = tempfile::tempdir().unwrap();
        let directory = SpillDirectory::open(above.path()).unwrap();
        let (first, second) = (directory.write(&[b"one", b"", b"two"]), directory.write(&[]));
        assert_eq!((directory.size(), count(above.path())), (6, 2));
        assert_eq!(first.unwrap().read().unwrap(), b"onetwo");
        assert_eq!((directory.size(), count(above.path())), (0, 1));
        drop(second);
        assert!(directory.has_unused());
        directory.remove_unused();
        assert_eq!(count(above.path()), 0);
    }

    #[test]
    fn a_start_removes_the_files_of_a_process_that_was_killed() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("notes.txt");
        fs::write(&other, "mine").unwrap();
        std::mem::forget(SpillDirectory::open(directory.path()).unwrap().write(&[b"a"]));
        assert_eq!(count(directory.path()), 2);
        assert_eq!(SpillDirectory::open(directory.path()).unwrap().size(), 0);
        assert!(other.exists() && count(directory.path()) == 1);
    }

    #[test]
    fn a_file_that_was_changed_or_removed_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let pages = SpillDirectory::open(directory.path()).unwrap();
        let changes: [fn(&Path); 4] = [
            |path| fs::remove_file(path).unwrap(),
            |path| fs::write(path, b"").unwrap(),
            |path| fs::write(path, b"content and more").unwrap(),
            |path| fs::write(path, b"contenx").unwrap(),
        ];
        for change in changes {
            let spilled = pages.write(&[b"content"]).unwrap();
            change(spilled.path());
            assert!(spilled.read().is_err());
        }
    }
}
