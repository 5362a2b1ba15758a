//! The one place where the drivers read a clock.

use std::time::{Duration, SystemTime};

use quire_journal::Timestamp;
use quire_types::time::{Instant, Now};

/// A monotonic clock that starts at zero, and the wall clock.
///
/// The core takes time as an argument. A driver reads it here once per turn and passes the same
/// [`Now`] to every call of that turn.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock whose monotonic side is zero now.
    pub fn start() -> Self {
        Clock { origin: std::time::Instant::now() }
    }

    /// The current times of both clocks.
    pub fn now(&self) -> Now {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Now { instant: self.instant(), wall: Timestamp::from_ns(nanoseconds(since_1970)) }
    }

    /// The monotonic clock alone.
    pub fn instant(&self) -> Instant {
        Instant::from_ns(nanoseconds(self.origin.elapsed()))
    }

    /// The time from now until `deadline`; zero when it has passed.
    pub fn until(&self, deadline: Instant) -> Duration {
        Duration::from_nanos(deadline.as_ns().saturating_sub(self.instant().as_ns()))
    }
}

/// The nanoseconds of a duration, at most 584 years.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
