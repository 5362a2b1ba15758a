//! The rate of a replay for a program that reads a journal without a server.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use quire_broker::replay::{Pace as CorePace, Rate};
use quire_journal::Timestamp;
use quire_types::time;

use crate::errors;
use crate::interpreter;

/// The rate of messages; see `docs/replay.md`.
#[pyclass(frozen, module = "quire._quire")]
pub struct Pace {
    group: Mutex<Group>,
    started: Instant,
}

/// Messages that are released at one instant. A message that was due by then is released without
/// reading the clock again.
struct Group {
    pace: CorePace,
    now: time::Instant,
}

#[pymethods]
impl Pace {
    #[new]
    #[pyo3(signature = (rate, rate_max_gap=None))]
    fn new(py: Python<'_>, rate: &str, rate_max_gap: Option<Duration>) -> PyResult<Self> {
        let rate = Rate::parse(rate, rate_max_gap)
            .map_err(|error| errors::new_error(py, "bad_option", &error.to_string(), 0))?;
        let group = Group { pace: CorePace::new(rate), now: time::Instant(0) };
        Ok(Pace { group: Mutex::new(group), started: Instant::now() })
    }

    /// Waits until a message of `size` bytes that was received at `timestamp_ns` may be released.
    fn wait(&self, py: Python<'_>, timestamp_ns: u64, size: usize) -> PyResult<()> {
        let timestamp = Timestamp(timestamp_ns);
        interpreter::wait(py, None, |slice| {
            let mut group = self.group.lock();
            if group.pace.opens_at(group.now, timestamp) > group.now {
                group.now = self.now();
            }
            let (opens_at, now) = (group.pace.opens_at(group.now, timestamp), group.now);
            if opens_at > now {
                drop(group);
                std::thread::sleep(opens_at.since(now).min(slice));
                return None;
            }
            group.pace.went(now, size, timestamp);
            Some(())
        })?;
        Ok(())
    }
}

impl Pace {
    fn now(&self) -> time::Instant {
        time::Instant(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
