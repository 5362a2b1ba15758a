//! Messages that are published with a delay: which ones, and whether a queue delivered one before
//! its time.
//!
//! The journal and the state files have the end of a delay as a time of day, so steps of the wall
//! clock move it when the server starts again. A message may come earlier by the steps forward
//! since the start of the server that took it. After a step back it may come later.

use quire_client::NewDelay;
use quire_types::time::Now;

use super::auditor::Value;

/// How far the wall clock was put forward and back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClockSteps {
    forward_ns: u64,
    back_ns: u64,
    /// The first of them as the server started last.
    forward_at_start_ns: u64,
}

/// The delay of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delayed {
    /// When it is over, on the clock that makes no steps.
    end_ns: u64,
    /// How far the wall clock had been put forward as the server started.
    forward_ns: u64,
}

impl ClockSteps {
    pub fn step(&mut self, step_ns: i64) {
        if step_ns > 0 {
            self.forward_ns += step_ns.unsigned_abs();
        } else {
            self.back_ns += step_ns.unsigned_abs();
        }
    }

    pub fn server_starts(&mut self) {
        self.forward_at_start_ns = self.forward_ns;
    }

    /// The delay of a message that is published now.
    pub fn delayed(&self, delay_ns: u64, now: Now) -> Delayed {
        Delayed { end_ns: now.instant.as_ns() + delay_ns, forward_ns: self.forward_at_start_ns }
    }

    /// Whether the message comes too early.
    pub fn is_early(&self, delayed: Delayed, now_ns: u64) -> bool {
        now_ns + (self.forward_ns - delayed.forward_ns) < delayed.end_ns
    }

    /// Whether a message with a delay may not have come at the end of the history.
    pub fn may_be_late(&self) -> bool {
        self.back_ns > 0
    }
}

/// How long the message with this number is delayed, in nanoseconds; only queues can do that.
pub(super) fn delay_ns_of(value: Value, topic: &str) -> Option<u64> {
    let is_delayed = topic.starts_with("recorded/") && value % 9 == 4;
    is_delayed.then(|| (1 + value * 613 % 4_000) * 1_000_000)
}

/// The same as an argument of a publish: for most of them relative.
pub(super) fn new_delay(value: Value, topic: &str, now: Now) -> Option<NewDelay> {
    let ns = delay_ns_of(value, topic)?;
    let end = quire_types::Timestamp::from_ns(now.wall.as_ns() + ns);
    Some(NewDelay { end, ns: (!value.is_multiple_of(4)).then_some(ns) })
}
