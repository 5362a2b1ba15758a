//! A disk that keeps its contract and not one bit more.
//!
//! The model:
//!
//! - Every reader sees a write at once. The write is durable only when a later sync of that file
//!   has returned. Of unsynced writes, a power cut keeps any subset of 512-byte sectors.
//! - A sync or a write may fail. After a failed sync the pages count as clean. So a later sync of
//!   the same file returns without having written them, until they are written again.
//! - A read may fail. The next read of the same place may succeed.
//! - Creations, renames and removals are durable only after a sync of the directory. Of those that
//!   were not synced, a power cut keeps the first few of each directory.
//! - Not simulated: a disk whose sync returns although it did not write.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_journal::{Disk, File, MemoryDisk};

use crate::random::Random;

/// Bytes that are written all or not at all.
const SECTOR_SIZE: usize = 512;

/// Bytes of all files together: enough for the histories, and far below the memory of the machine.
const DISK_SIZE_MAX: u64 = 256 << 20;

/// How often the disk fails, in percent of the calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Writes, renames and removals that fail.
    pub write_percent: u64,
    /// Syncs that fail, of files and of directories.
    pub sync_percent: u64,
    /// Reads of files that fail.
    pub read_percent: u64,
    /// Files that cannot be created, and writes that cannot be done: no space left.
    pub full_percent: u64,
    /// Of the sectors and the names that were not synced, those that a power cut keeps.
    pub kept_percent: u64,
}

/// See the module. Cloning shares the disk.
#[derive(Clone)]
pub struct SimulatedDisk(Arc<Mutex<DiskState>>);

struct DiskState {
    random: Random,
    faults: Faults,
    /// The files as running programs see them.
    now: MemoryDisk,
    /// Files that exist now, by path.
    files: BTreeMap<PathBuf, Arc<Mutex<Durable>>>,
    /// Files that a power cut leaves in any case.
    entries: BTreeMap<PathBuf, Arc<Mutex<Durable>>>,
    /// Changes of names that were not synced, in order.
    unsynced: Vec<NameChange>,
    /// Changes of the disk that still succeed, when that is limited: see
    /// [`SimulatedDisk::end_after`].
    steps_left: Option<u64>,
    /// A write by a bug: see [`SimulatedDisk::forget_syncs`].
    forgets_syncs: bool,
}

impl DiskState {
    fn may_refuse_read(&mut self) -> io::Result<()> {
        let percent = self.faults.read_percent;
        // Without this fault nothing is drawn: a seed plays as it always did.
        match percent > 0 && self.random.percent(percent) {
            true => Err(io::Error::other("the simulated disk refused to read")),
            false => Ok(()),
        }
    }

    fn may_refuse_name(&mut self) -> io::Result<()> {
        let percent = self.faults.write_percent;
        match self.random.percent(percent) {
            true => Err(io::Error::other("the simulated disk refused to change a name")),
            false => Ok(()),
        }
    }
}

/// A change of the names in a directory.
#[derive(Clone)]
enum NameChange {
    Create(PathBuf, Arc<Mutex<Durable>>),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl NameChange {
    fn directory(&self) -> Option<&Path> {
        let (NameChange::Create(path, _) | NameChange::Rename(path, _) | NameChange::Remove(path)) = self;
        path.parent()
    }

    fn apply(self, entries: &mut BTreeMap<PathBuf, Arc<Mutex<Durable>>>) {
        match self {
            NameChange::Create(path, durable) => drop(entries.insert(path, durable)),
            NameChange::Rename(from, to) => {
                if let Some(durable) = entries.remove(&from) {
                    entries.insert(to, durable);
                }
            }
            NameChange::Remove(path) => drop(entries.remove(&path)),
        }
    }
}

/// The durable side of a file.
struct Durable {
    bytes: Vec<u8>,
    /// Sectors that differ from the view of programs, and will be written by the next sync.
    dirty: BTreeMap<usize, [u8; SECTOR_SIZE]>,
    /// Sectors that a failed sync marked clean: in memory only.
    lost: BTreeMap<usize, [u8; SECTOR_SIZE]>,
}

impl SimulatedDisk {
    /// An empty disk whose faults follow from the seed.
    pub fn new(seed: u64, faults: Faults) -> Self {
        let state = DiskState {
            random: Random::new(seed),
            faults,
            now: MemoryDisk::new(DISK_SIZE_MAX),
            files: BTreeMap::new(),
            entries: BTreeMap::new(),
            unsynced: Vec::new(),
            steps_left: None,
            forgets_syncs: false,
        };
        SimulatedDisk(Arc::new(Mutex::new(state)))
    }

    /// Another disk with the files as running programs see them now, all of them durable.
    pub fn copy(&self) -> Self {
        let state = self.state();
        let mut random = state.random.clone();
        let copy = SimulatedDisk::new(random.number(), state.faults);
        {
            let mut copied = copy.state();
            for path in state.files.keys() {
                let Ok(bytes) = state.now.read(path) else { continue };
                if let Ok(file) = copied.now.create(path, bytes.len() as u64) {
                    // The file has just this size.
                    let _ = file.write_at(&bytes, 0);
                }
                let durable = Durable { bytes, dirty: BTreeMap::new(), lost: BTreeMap::new() };
                copied.files.insert(path.clone(), Arc::new(Mutex::new(durable)));
            }
            copied.entries = copied.files.clone();
        }
        copy
    }

    /// A canary: from now on syncs return without making anything durable. The checks must notice.
    pub fn forget_syncs(&self) {
        self.state().forgets_syncs = true;
    }

    /// The process ends after `count` more changes of the disk: every later one fails. `None`: it
    /// does not.
    pub fn end_after(&self, count: Option<u64>) {
        self.state().steps_left = count;
    }

    /// Whether calls may fail.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The power fails and is restored. Changes that were not durable are kept in part, or not at
    /// all.
    pub fn cut_power(&self) {
        let mut state = self.state();
        let mut random = state.random.clone();
        let kept_percent = state.faults.kept_percent;
        state.now = MemoryDisk::new(DISK_SIZE_MAX);
        // Of a directory, the first changes are kept, as a file system with a journal keeps them.
        let mut ended: Vec<PathBuf> = Vec::new();
        for change in std::mem::take(&mut state.unsynced) {
            let directory = change.directory().map(Path::to_owned).unwrap_or_default();
            if ended.contains(&directory) {
                continue;
            }
            if random.percent(kept_percent) {
                change.apply(&mut state.entries);
            } else {
                ended.push(directory);
            }
        }
        state.files = state.entries.clone();
        for (path, durable) in &state.files {
            let mut durable = lock(durable);
            let pending =
                std::mem::take(&mut durable.dirty).into_iter().chain(std::mem::take(&mut durable.lost));
            for (sector, bytes) in pending.collect::<Vec<_>>() {
                if random.percent(kept_percent) {
                    durable.put(sector, &bytes);
                }
            }
            if let Ok(file) = state.now.create(path, durable.bytes.len() as u64) {
                // The file has just this size.
                let _ = file.write_at(&durable.bytes, 0);
            }
        }
        state.random = random;
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        lock(&self.0)
    }

    /// Counts a change of the disk; an error when the process has ended.
    fn step(&self) -> io::Result<MutexGuard<'_, DiskState>> {
        let mut state = self.state();
        match &mut state.steps_left {
            Some(0) => return Err(io::Error::other("the simulated process has ended")),
            Some(left) => *left -= 1,
            None => (),
        }
        Ok(state)
    }

    fn file(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let state = self.state();
        let durable = state.files.get(path).cloned().ok_or(io::ErrorKind::NotFound)?;
        let now = state.now.open(path)?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), now, durable }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Durable {
    fn put(&mut self, sector: usize, bytes: &[u8; SECTOR_SIZE]) {
        let start = sector * SECTOR_SIZE;
        let end = (start + SECTOR_SIZE).min(self.bytes.len());
        self.bytes[start..end].copy_from_slice(&bytes[..end - start]);
    }
}

impl Disk for SimulatedDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.file(path)
    }

    fn open_read_only(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.file(path)
    }

    fn create(&self, path: &Path, size: u64) -> io::Result<Box<dyn File>> {
        let mut state = self.step()?;
        let percent = state.faults.full_percent;
        if state.random.percent(percent) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.now.create(path, size)?;
        let durable =
            Durable { bytes: vec![0; size as usize], dirty: BTreeMap::new(), lost: BTreeMap::new() };
        let durable = Arc::new(Mutex::new(durable));
        state.files.insert(path.to_owned(), durable.clone());
        state.unsynced.push(NameChange::Create(path.to_owned(), durable));
        drop(state);
        self.file(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut state = self.state();
        state.may_refuse_read()?;
        state.now.read(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.state().now.list(directory)
    }

    fn create_directory(&self, _directory: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.step()?;
        state.may_refuse_name()?;
        state.now.rename(from, to)?;
        let durable = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), durable);
        state.unsynced.push(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.step()?;
        state.may_refuse_name()?;
        state.now.remove(path)?;
        state.files.remove(path);
        state.unsynced.push(NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let mut state = self.step()?;
        let percent = state.faults.sync_percent;
        if state.random.percent(percent) {
            return Err(io::Error::other("the simulated disk refused to sync the directory"));
        }
        let changes = std::mem::take(&mut state.unsynced);
        for change in changes {
            if change.directory() == Some(directory) {
                change.apply(&mut state.entries);
            } else {
                state.unsynced.push(change);
            }
        }
        Ok(())
    }

    fn lock(&self, _directory: &Path) -> io::Result<Option<Box<dyn Send + Sync>>> {
        Ok(Some(Box::new(())))
    }
}

struct SimulatedFile {
    disk: SimulatedDisk,
    now: Box<dyn File>,
    durable: Arc<Mutex<Durable>>,
}

impl File for SimulatedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let error = {
            let mut state = self.disk.step()?;
            let Faults { write_percent, full_percent, .. } = state.faults;
            match state.random.percent(write_percent) {
                true => Some(io::Error::other("the simulated disk refused the write")),
                // Without this fault nothing is drawn.
                false if full_percent > 0 && state.random.percent(full_percent) => {
                    Some(io::ErrorKind::StorageFull.into())
                }
                false => None,
            }
        };
        // A failed write may have written the front of it.
        let bytes = if error.is_some() { &bytes[..bytes.len() / 2] } else { bytes };
        self.now.write_at(bytes, offset)?;
        let file_size = self.now.size()? as usize;
        let mut durable = lock(&self.durable);
        let start = offset as usize / SECTOR_SIZE;
        let end = (offset as usize + bytes.len()).div_ceil(SECTOR_SIZE);
        for sector in start..end {
            let from = sector * SECTOR_SIZE;
            let size = SECTOR_SIZE.min(file_size - from);
            let mut bytes = Vec::new();
            self.now.read_at(&mut bytes, size, from as u64)?;
            let mut content = [0; SECTOR_SIZE];
            content[..size].copy_from_slice(&bytes);
            durable.lost.remove(&sector);
            durable.dirty.insert(sector, content);
        }
        error.map_or(Ok(()), Err)
    }

    fn sync(&self) -> io::Result<()> {
        let (fails, forgets) = {
            let mut state = self.disk.step()?;
            let percent = state.faults.sync_percent;
            (state.random.percent(percent), state.forgets_syncs)
        };
        let mut durable = lock(&self.durable);
        if forgets {
            return Ok(());
        }
        let dirty = std::mem::take(&mut durable.dirty);
        if fails {
            durable.lost.extend(dirty);
            return Err(io::Error::other("the simulated disk refused the sync"));
        }
        for (sector, bytes) in dirty {
            durable.put(sector, &bytes);
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        self.now.size()
    }

    fn read_at(&self, buffer: &mut Vec<u8>, size: usize, offset: u64) -> io::Result<()> {
        self.disk.state().may_refuse_read()?;
        self.now.read_at(buffer, size, offset)
    }
}
