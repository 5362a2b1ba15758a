//! Time as the core sees it: an argument, never something it reads.
//!
//! The driver reads its clocks once per turn and passes both times on. Timers run on [`Instant`],
//! which never decreases. Messages are stamped with [`Now::wall`]. Tests begin at zero and move
//! time by hand.

use std::ops::{Add, Sub};
use std::time::Duration;

use crate::Timestamp;

/// Nanoseconds on a clock that never decreases. The driver decides where it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The instant this many nanoseconds after the beginning.
    pub const fn from_ns(ns: u64) -> Self {
        Instant(ns)
    }

    /// Nanoseconds since the beginning.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero when `earlier` is not before.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// The time since an earlier instant; zero for a later one.
    fn sub(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(ns))
    }
}

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// For timers.
    pub instant: Instant,
    /// For stamping messages.
    pub wall: Timestamp,
}
