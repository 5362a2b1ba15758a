//! How long syncs take, and how much is written.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The upper bounds of the durations that are counted together, in microseconds. A last count has
/// the longer ones.
pub const SYNC_BOUNDS_US: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000];

/// Counters that the threads of a journal add to.
#[derive(Debug, Default)]
pub struct SyncCounters {
    counts: [AtomicU64; SYNC_BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
    written: AtomicU64,
}

/// The syncs since the journal was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Syncs {
    /// The number of syncs up to each of [`SYNC_BOUNDS_US`] and above the bound before it, and the
    /// number of longer ones.
    pub counts: [u64; SYNC_BOUNDS_US.len() + 1],
    /// The sum of their durations.
    pub sum: Duration,
    /// Bytes of records that were written.
    pub written_bytes: u64,
}

impl SyncCounters {
    /// Measures a sync.
    pub fn measure<T>(&self, sync: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = sync();
        let taken = begun.elapsed();
        let bound = SYNC_BOUNDS_US.partition_point(|bound| u128::from(*bound) < taken.as_micros());
        self.counts[bound].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(taken.as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// Counts bytes of records that were written.
    pub fn note_written(&self, size: usize) {
        self.written.fetch_add(size as u64, Ordering::Relaxed);
    }

    /// The counters as they are now.
    pub fn read(&self) -> Syncs {
        Syncs {
            counts: std::array::from_fn(|bound| self.counts[bound].load(Ordering::Relaxed)),
            sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)),
            written_bytes: self.written.load(Ordering::Relaxed),
        }
    }
}
