//! Blocks of a few sizes in a [`PageFile`].
//!
//! The file grows by extents and is divided into runs. A run has blocks of one size. The first free
//! block is used, so that the end of the file becomes free, and can be returned to the disk, when
//! fewer blocks are in use. A run without blocks can become one of another size.

use std::alloc::Layout;
use std::collections::BTreeSet;
use std::io;
use std::ptr::NonNull;

use parking_lot::Mutex;

use super::page_file::PageFile;

/// The file grows by this many bytes. Calls of the disk are then rare, and a queue that is nearly
/// empty needs little space.
const EXTENT_SIZE: u64 = 4 * 1024 * 1024;
/// Size of a row of blocks of one size. A rarely used size wastes at most this much.
const RUN_SIZE: usize = 32 * 1024;
/// The largest alignment.
const ALIGN_MAX: usize = 16;

/// The sizes of blocks: a quarter of a power of two apart, so that at most a fifth is wasted.
/// Larger values are on the heap.
const SIZES: [usize; 28] = [
    16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280,
    1536, 1792, 2048, 2560, 3072, 3584, 4096,
];

pub(super) struct Pool {
    file: PageFile,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// Bytes of the file that the disk has room for.
    size: u64,
    /// All runs up to the last that has blocks.
    runs: Vec<Run>,
    /// The runs among them that have none.
    unused: BTreeSet<u32>,
    /// For each of [`SIZES`], the runs that have a free block.
    open: [BTreeSet<u32>; SIZES.len()],
    /// Why the file grows no further. Growing is not tried again; freed blocks are used again.
    failure: Option<Failure>,
}

/// A range of the file with blocks of one size.
#[derive(Default)]
struct Run {
    /// Which of [`SIZES`].
    class: usize,
    blocks: usize,
    /// A bit for each block, set when it is free.
    free: Box<[u64]>,
}

struct Failure {
    /// `None`: it was reported.
    error: Option<io::Error>,
}

// SAFETY: the pointer to the mapping never changes, and the lock protects the decision which bytes
// are in use.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// Whether a block of the one layout is a block of the other.
pub(super) fn is_same_size(one: Layout, other: Layout) -> bool {
    class_of(one) == class_of(other)
}

impl Pool {
    pub fn new(file: PageFile) -> Self {
        Pool { file, state: Mutex::default() }
    }

    pub fn size(&self) -> u64 {
        self.state.lock().size
    }

    pub fn take_failure(&self) -> Option<io::Error> {
        self.state.lock().failure.as_mut()?.error.take()
    }

    pub fn page_out(&self) -> io::Result<()> {
        let state = self.state.lock();
        self.file.page_out(state.size as usize)
    }

    /// Allocates a block. `None` when the layout is too large, or there is no room.
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let class = class_of(layout)?;
        let offset = self.state.lock().take(class, &self.file)?;
        // SAFETY: a run is within the size of the file, which is within the mapping.
        Some(unsafe { self.file.base().add(offset) })
    }

    /// Frees a block of this pool.
    pub fn release(&self, block: NonNull<u8>) {
        let offset = block.addr().get() - self.file.base().addr().get();
        self.state.lock().give_back(offset, &self.file);
    }

    /// Whether the allocation is in the file.
    pub fn owns(&self, place: NonNull<u8>) -> bool {
        let base = self.file.base().addr().get();
        (base..base + self.file.size_max()).contains(&place.addr().get())
    }
}

impl PoolState {
    /// Allocates a block. Returns its offset in the file.
    fn take(&mut self, class: usize, file: &PageFile) -> Option<usize> {
        let number = match self.open[class].first() {
            Some(number) => *number,
            None => self.begin(class, file)?,
        };
        let run = &mut self.runs[number as usize];
        let word = run.free.iter().position(|word| *word != 0).expect("open runs have a free place");
        let place = word * 64 + run.free[word].trailing_zeros() as usize;
        run.free[word] &= run.free[word] - 1;
        run.blocks += 1;
        if run.blocks == places(class) {
            self.open[class].remove(&number);
        }
        Some(number as usize * RUN_SIZE + place * SIZES[class])
    }

    fn give_back(&mut self, offset: usize, file: &PageFile) {
        let number = (offset / RUN_SIZE) as u32;
        let run = &mut self.runs[number as usize];
        let (class, place) = (run.class, offset % RUN_SIZE / SIZES[run.class]);
        run.free[place / 64] |= 1 << (place % 64);
        run.blocks -= 1;
        if run.blocks > 0 {
            self.open[class].insert(number);
            return;
        }
        self.open[class].remove(&number);
        self.unused.insert(number);
        while self.runs.last().is_some_and(|run| run.blocks == 0) {
            self.runs.pop();
            self.unused.remove(&(self.runs.len() as u32));
        }
        self.shrink(file);
    }

    /// A run without blocks becomes one of this class.
    fn begin(&mut self, class: usize, file: &PageFile) -> Option<u32> {
        let number = match self.unused.pop_first() {
            Some(number) => number,
            None => {
                if self.used() + RUN_SIZE as u64 > self.size {
                    self.grow(file)?;
                }
                self.runs.push(Run::default());
                self.runs.len() as u32 - 1
            }
        };
        let mut free = vec![u64::MAX; places(class).div_ceil(64)].into_boxed_slice();
        if let (Some(last), rest @ 1..) = (free.last_mut(), places(class) % 64) {
            *last = (1 << rest) - 1;
        }
        self.runs[number as usize] = Run { class, blocks: 0, free };
        self.open[class].insert(number);
        Some(number)
    }

    /// Bytes up to the end of the last run.
    fn used(&self) -> u64 {
        self.runs.len() as u64 * RUN_SIZE as u64
    }

    fn grow(&mut self, file: &PageFile) -> Option<()> {
        if self.failure.is_some() {
            return None;
        }
        let size_new = self.size + EXTENT_SIZE;
        let grown = match size_new <= file.size_max() as u64 {
            true => file.grow(self.size, size_new),
            false => Err(io::ErrorKind::StorageFull.into()),
        };
        match grown {
            Ok(()) => self.size = size_new,
            Err(error) => self.failure = Some(Failure { error: Some(error) }),
        }
        self.failure.is_none().then_some(())
    }

    /// Returns the space after the last run, except for one extent, so that a state that grows and
    /// shrinks does not ask the disk each time.
    fn shrink(&mut self, file: &PageFile) {
        let size_new = self.used().next_multiple_of(EXTENT_SIZE) + EXTENT_SIZE;
        // If the file cannot be shortened, the space stays and is used again.
        if size_new < self.size && file.shrink(size_new).is_ok() {
            self.size = size_new;
        }
    }
}

/// Which of [`SIZES`] a block for this layout has.
fn class_of(layout: Layout) -> Option<usize> {
    let class = SIZES.partition_point(|size| *size < layout.size());
    (class < SIZES.len() && layout.align() <= ALIGN_MAX).then_some(class)
}

/// The number of blocks in a run.
fn places(class: usize) -> usize {
    RUN_SIZE / SIZES[class]
}

const _: () = assert!(EXTENT_SIZE.is_multiple_of(RUN_SIZE as u64) && RUN_SIZE.is_multiple_of(4096));
