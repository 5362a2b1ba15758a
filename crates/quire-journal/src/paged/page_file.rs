//! The file under a [`Memory`](super::Memory). It is mapped once, with its largest size. The part
//! for which the disk has reserved room is usable.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

use super::bus_error::Watch;
use crate::descriptor::Owned;

/// The name of the file, until it is removed.
const NAME: &str = "queues.paging";

/// Space in a file without a name. The system frees it after a crash. No other process can shorten
/// it under the mapping, which would be a bus error. `df` counts it, and `ls` does not show it. One
/// cause of a bus error remains: a disk that cannot read a page. `bus_error.rs` reports it.
pub struct PageFile {
    map: MmapRaw,
    file: Owned<fs::File>,
    _watch: Watch,
}

impl PageFile {
    /// Makes a file in the directory that can grow to `size_max` bytes. It has no room before
    /// [`PageFile::grow`].
    ///
    /// # Errors
    /// The error of the system.
    pub fn create(directory: &Path, size_max: usize) -> io::Result<Self> {
        let path = directory.join(NAME);
        // An existing file is not in use: its process ended before it removed the name.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => (),
        }
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = Owned::open(|| options.open(&path))?;
        fs::remove_file(&path)?;
        let map = MmapOptions::new().len(size_max).map_raw(&*file)?;
        // A child of this process must not write into the state of its parent.
        #[cfg(target_os = "linux")]
        map.advise(Advice::DontFork)?;
        let watch = Watch::new(map.as_ptr().addr(), size_max);
        Ok(PageFile { map, file, _watch: watch })
    }

    /// The first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).expect("a mapping does not begin at address 0")
    }

    /// The most bytes that it can have.
    pub(super) fn size_max(&self) -> usize {
        self.map.len()
    }

    /// Makes the bytes from `size` to `size_new` usable: reserves room for them on the disk.
    pub(super) fn grow(&self, size: u64, size_new: u64) -> io::Result<()> {
        // A file system that cannot reserve room is not used: a full disk would end the process at
        // some write to memory.
        let flags = rustix::fs::FallocateFlags::empty();
        let grow = || rustix::fs::fallocate(&self.file, flags, size, size_new - size);
        Ok(rustix::io::retry_on_intr(grow)?)
    }

    /// Returns the space after `size`, which is not in use.
    pub(super) fn shrink(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    /// Writes everything up to `size` to the disk, and drops it from memory.
    pub(super) fn page_out(&self, size: usize) -> io::Result<()> {
        if size == 0 {
            return Ok(());
        }
        self.file.sync_data()?;
        // SAFETY: of a shared mapping of a file nothing is lost: it is read again from the file.
        unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, 0, size) }?;
        Ok(rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Set for the process that will end.
    const DIRECTORY: &str = "QUIRE_TEST_BUS_ERROR";

    #[test]
    fn a_page_that_cannot_be_read_ends_the_process_with_a_message() {
        if let Some(directory) = std::env::var_os(DIRECTORY) {
            let file = PageFile::create(Path::new(&directory), 1 << 20).unwrap();
            file.grow(0, 1 << 20).unwrap();
            // For a reader, a page that no longer exists is a page that the disk cannot read.
            file.shrink(0).unwrap();
            // SAFETY: it is mapped; the system ends the process.
            unsafe { file.base().as_ptr().read_volatile() };
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let name = "paged::page_file::tests::a_page_that_cannot_be_read_ends_the_process_with_a_message";
        let ended = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .output()
            .unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(said.matches("the disk cannot read memory that was paged out").count(), 1, "{said}");
    }
}
