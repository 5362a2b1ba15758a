//! The machine's file system.

use std::fs;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{Disk, File};
use crate::descriptor::Owned;
use crate::paged::PageFile;

/// The machine's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

const LOCK_NAME: &str = "journal.lock";

/// Only the user of the server reads its directories, unless the operator widens them.
const DIRECTORY_MODE: u32 = 0o700;
/// A file may be read by the user of the server, and by the users who may list its directory.
const FILE_MODE: u32 = 0o600;
const READ_BY_OTHERS: u32 = 0o044;

/// The most memory that can be paged out: the states of billions of messages. Unused, it needs only
/// addresses.
const PAGE_FILE_SIZE_MAX: usize = 64 * 1024 * 1024 * 1024;

impl Disk for RealDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(Owned::open(|| fs::OpenOptions::new().read(true).write(true).open(path))?))
    }

    fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let file = Owned::open(|| fs::File::open(path))?;
        // A hint: without it the system may read many MiB around each offset, and all other users
        // of the disk wait for these reads.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        Ok(Box::new(file))
    }

    fn create(&self, path: &Path, size: u64) -> io::Result<Box<dyn File>> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(mode_in(path));
        let file = match Owned::open(|| options.open(path)) {
            // A file of an earlier process, or a link that another program made. It is replaced,
            // and a link is not followed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(path)?;
                Owned::open(|| options.open(path))?
            }
            opened => opened?,
        };
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size) {
            Ok(()) => (),
            // The file system has no preallocation. The space is not reserved, so a full disk is
            // noticed at the write.
            Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(size)?,
            Err(error) => return Err(error.into()),
        }
        Ok(Box::new(file))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Owned::open(|| fs::File::open(path))?.read_to_end(&mut content)?;
        Ok(content)
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
        fs::DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
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
        Owned::open(|| fs::File::open(directory))?.sync_all()
    }

    fn lock(&self, directory: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        let path = directory.join(LOCK_NAME);
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(mode_in(&path));
        let file = Owned::open(|| options.open(path))?;
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

    fn directory_id(&self, directory: &Path) -> u64 {
        fs::metadata(directory).map_or(0, |found| found.ino())
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

/// The mode of a new file: the users who may list the directory may read the file.
fn mode_in(path: &Path) -> u32 {
    let directory = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let open = fs::metadata(directory).map_or(0, |found| found.mode());
    FILE_MODE | (open & READ_BY_OTHERS)
}

impl File for Owned<fs::File> {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.get()?.write_all_at(bytes, offset)
    }

    fn write_parts_at(&self, mut parts: &mut [io::IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        while !parts.is_empty() {
            // Passes as many parts as the system takes in one call.
            match rustix::io::pwritev(self.get()?, parts, offset) {
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
        self.get()?.sync_data()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.get()?.metadata()?.len())
    }

    #[allow(unsafe_code)] // memory that is not filled with zeros before it is read into
    fn read_at(&self, buffer: &mut Vec<u8>, size: usize, mut offset: u64) -> io::Result<()> {
        buffer.reserve_exact(size);
        let end = buffer.len() + size;
        while buffer.len() < end {
            let missing = end - buffer.len();
            let read =
                match rustix::io::pread(self.get()?, &mut buffer.spare_capacity_mut()[..missing], offset) {
                    Ok((read, _)) => read.len(),
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(error) => return Err(error.into()),
                };
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            // SAFETY: the system has just written `read` bytes after the length, and they are
            // within the capacity.
            unsafe { buffer.set_len(buffer.len() + read) };
            offset += read as u64;
        }
        Ok(())
    }

    fn is_of_parent(&self) -> bool {
        Owned::is_of_parent(self)
    }

    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)] // no crate has a safe function for it
    fn write_soon(&self, range: Range<u64>) {
        use std::os::fd::AsRawFd;
        let place = (i64::try_from(range.start), i64::try_from(range.end.saturating_sub(range.start)));
        if let (Ok(begin), Ok(size), Ok(file)) = (place.0, place.1, self.get()) {
            // SAFETY: the descriptor is open while `file` is borrowed, and the call takes no
            // pointers.
            unsafe { libc::sync_file_range(file.as_raw_fd(), begin, size, libc::SYNC_FILE_RANGE_WRITE) };
        }
    }

    fn will_need(&self, range: Range<u64>) {
        let size = std::num::NonZeroU64::new(range.end.saturating_sub(range.start));
        if let (Some(size), Ok(file)) = (size, self.get()) {
            let _ = rustix::fs::fadvise(file, range.start, Some(size), rustix::fs::Advice::WillNeed);
        }
    }
}
