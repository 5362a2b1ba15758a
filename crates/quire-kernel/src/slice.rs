//! The budget of a turn for the commands of one connection, and for each kind of other work.
//!
//! A turn must be short, because every other connection waits for its end. So the commands of a
//! connection run for one slice at a time. The rest of its bytes waits for a later turn. In that
//! turn all waiting connections share one budget. The passes over the log and over replays have
//! separate budgets, and also continue in the next turn.
//!
//! The stopwatch of the driver ([`Broker::set_stopwatch`]) measures the time of the work. A broker
//! without a stopwatch has no budgets.

use crate::context::Context;
use std::collections::VecDeque;
use std::time::Duration;

use crate::session::{SessionId, Stall};
use quire_types::time::Instant;

/// The longest time that the commands of one connection run before those of the next connection.
const SLICE: Duration = Duration::from_micros(500);

/// The longest time in one turn, in total, for connections whose slice was over.
pub const CONTINUATION: Duration = Duration::from_micros(500);

/// The longest time that a pass over the log, or over the replays, takes in one turn. A pass ends
/// between two of its steps.
pub const PASS: Duration = Duration::from_millis(1);

/// Bytes of commands that wait for the next slice of a connection. Above this limit, reading from
/// the connection is paused.
pub const PENDING_INPUT_MAX: usize = 64 * 1024;

/// The clock is read after commands of this weight. Reading it costs about a tenth of a publish.
pub const WEIGHT_MAX: usize = 32;

/// The weight of a command that does more than append one message.
const HEAVY: usize = WEIGHT_MAX;

/// The weight of the search for subscriptions that are served at once with a publish. Each
/// subscription adds one.
pub const SERVED: usize = 2;

/// Bytes of data with the weight of a small publish.
const WEIGHED_SIZE: usize = 1024;

/// Effort of filters with the weight of a small publish.
pub const WEIGHED_EFFORT: usize = 500;

/// Nanoseconds that it takes to write a byte to a socket. The driver writes after the turn, but
/// other connections also wait for this.
const WRITE_NS: u64 = 1;

/// Measures time within a turn.
pub type Stopwatch = Box<dyn FnMut() -> Instant + Send>;

/// The budgets of the current turn.
#[derive(Default)]
pub struct Slices {
    stopwatch: Option<Stopwatch>,
    /// Time for writing the charged bytes, since the start of the broker.
    charged: Duration,
    ends_at: Instant,
    weight: usize,
    /// The connections whose slices ended before their bytes were processed, in the order of their
    /// waiting times: the longest first.
    waiting: VecDeque<SessionId>,
}

impl Slices {
    pub fn set_stopwatch(&mut self, stopwatch: Stopwatch) {
        self.stopwatch = Some(stopwatch);
    }

    /// When work with this `budget` must end if it begins now; `None` = there is no budget.
    #[inline]
    pub fn deadline(&mut self, budget: Duration) -> Option<Instant> {
        let charged = self.charged;
        self.stopwatch.as_mut().map(|stopwatch| stopwatch() + charged + budget)
    }

    /// Whether the work must end.
    #[inline]
    pub fn is_past(&mut self, deadline: Option<Instant>) -> bool {
        match (&mut self.stopwatch, deadline) {
            (Some(stopwatch), Some(deadline)) => stopwatch() + self.charged >= deadline,
            _ => false,
        }
    }

    fn begin(&mut self) {
        self.weight = 0;
        self.ends_at = self.deadline(SLICE).unwrap_or_default();
    }

    /// Whether the slice is over after a command of this weight.
    #[inline]
    fn is_over(&mut self, weight: usize) -> bool {
        self.weight += weight;
        if self.weight < WEIGHT_MAX {
            return false;
        }
        self.weight = 0;
        let ends_at = self.ends_at;
        self.is_past(Some(ends_at))
    }

    /// Adds to the weight of the current command.
    #[inline]
    pub fn weigh(&mut self, weight: usize) {
        self.weight += weight;
    }

    /// Adds bytes to the weight of the current command: other data that the command has read or
    /// written.
    #[inline]
    pub fn weigh_bytes(&mut self, size: usize) {
        self.weight += size / WEIGHED_SIZE;
    }

    /// Returns connections that cannot continue yet to the end of the queue.
    pub fn hold(&mut self, sessions: Vec<SessionId>) {
        self.waiting.extend(sessions);
    }

    /// The connection that waits longest for its next slice.
    pub fn next_waiting(&mut self) -> Option<SessionId> {
        self.waiting.pop_front()
    }

    /// Counts the time to write data that was not copied. Adding a pointer for each of many
    /// connections is fast, but each pointer later becomes a copy into a socket.
    #[inline]
    pub fn charge(&mut self, size: usize) {
        self.charged += Duration::from_nanos(size as u64 * WRITE_NS);
    }

    /// Whether any connection waits to continue.
    #[inline]
    pub fn any_waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Context {
    pub fn begin_slice(&mut self) {
        self.clock.slices.begin();
    }

    /// Call after each command except a publish. Makes the connection wait for its next slice when
    /// this one is over.
    pub fn end_of_command(&mut self, id: SessionId) {
        if self.clock.slices.is_over(HEAVY) {
            self.wait_for_slice(id);
        }
    }

    /// The same after a publish.
    #[inline]
    pub fn end_of_publish(&mut self, id: SessionId, size: usize) {
        if self.clients.sessions.all[id].limited.is_some() {
            self.count_publish(id, size);
        }
        if self.clock.slices.is_over(1 + size / WEIGHED_SIZE) {
            self.wait_for_slice(id);
        }
    }

    pub fn wait_for_slice(&mut self, id: SessionId) {
        // A session that is already stalled gets a slice when that stall ends.
        if self.session(id).takes_commands() {
            self.stall(id, Stall::Waiting);
            self.clock.slices.waiting.push_back(id);
        }
    }
}
