//! A connection that is lent to an event loop: the loop watches the socket in place of the thread of the client, so that no other thread has
//! to be woken for what the loop waits for.
//!
//! The loop may be busy with something else. It loses the connection when it has not looked at it for [`LOAN_MAX`]. The thread of the client
//! wakes up for this, so the connection is lent only to a loop that waits often.

use std::os::fd::{AsRawFd, RawFd};

use polling::PollMode;

use super::{Driving, Duration, Event, Io, Moment, Ordering, SOCKET, Shared, State, Wire, as_source};
use super::{has_work, io, lose, turn};
use crate::descriptor::poller;

/// How long a loop keeps the connection without a look at it.
const LOAN_MAX: Duration = Duration::from_millis(100);

/// Bytes that a loop reads at a time. When there are as many, the thread reads for some time, while the loop works on what it has.
const LOAN_READ_SIZE: usize = 64 * 1024;

impl Driving {
    /// A descriptor that is readable while the connection is lent and has something to read. It belongs to the client.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn loop_descriptor(&self) -> io::Result<RawFd> {
        if self.loop_poller.get().is_none() {
            let _ = self.loop_poller.set(poller()?);
        }
        self.loop_poller.get().map(|poller| poller.as_raw_fd()).ok_or_else(|| io::ErrorKind::Other.into())
    }
}

/// Lends the connection to the event loop, which is about to wait. Does nothing when the thread of the client works on the connection, when
/// the last wait was long ago, or when much came a short time ago.
pub(in crate::client) fn lend(shared: &Shared) {
    let Some(loop_poller) = shared.driving.loop_poller.get() else { return };
    let Some(mut io) = shared.driving.io.try_lock() else { return };
    let now = shared.now();
    let is_often = io.loop_waited_at.replace(now).is_some_and(|at| now.since(at) < LOAN_MAX);
    let may_lend = is_often && io.lent_from <= now && shared.is_reading.load(Ordering::Acquire);
    let Some(wire) = &mut io.wire else { return };
    if !may_lend || wire.lent_until.is_some() {
        return;
    }
    let source = as_source(&wire.stream);
    // SAFETY: the socket is removed from the poller in `end_loan` or `leave`, before it is dropped.
    let is_watched =
        unsafe { loop_poller.add_with_mode(&source, Event::readable(SOCKET), PollMode::Level).is_ok() };
    if !is_watched {
        return;
    }
    wire.lent_until = Some(now + LOAN_MAX);
    let is_left = shared.poller.modify(source, Event::new(SOCKET, false, !wire.is_idle())).is_ok();
    let wakes_at = shared.inner.lock().thread_wakes_at;
    if !is_left || wakes_at.is_none_or(|at| at > now + LOAN_MAX) {
        shared.alarm();
    }
}

/// Reads and writes on the thread of the event loop, without waiting.
pub(in crate::client) fn step(shared: &Shared) {
    let Some(mut io) = shared.driving.io.try_lock() else { return };
    let Io { wire, scratch, lent_from, .. } = &mut *io;
    let Some(connected) = wire else { return };
    shared.awake.store(true, Ordering::Release);
    let turned = turn(shared, connected, &mut scratch[..LOAN_READ_SIZE], 1);
    shared.awake.store(false, Ordering::Release);
    shared.driving.end_burst();
    let now = shared.now();
    match turned {
        Err(reason) => {
            lose(shared, wire, reason);
            return shared.alarm();
        }
        Ok(size) if size >= LOAN_READ_SIZE || !shared.is_reading.load(Ordering::Acquire) => {
            connected.end_loan(shared);
            *lent_from = now + LOAN_MAX;
            return shared.alarm();
        }
        Ok(_) => connected.lent_until = connected.lent_until.map(|_| now + LOAN_MAX),
    }
    let inner = shared.inner.lock();
    let is_closed = matches!(inner.core.state(), State::Closed(_));
    let is_for_thread =
        has_work(&inner, connected) || !connected.is_idle() || inner.is_too_early_for_thread();
    drop(inner);
    if is_closed || is_for_thread {
        shared.alarm();
    }
}

/// The event loop does not wait any more.
pub(in crate::client) fn take_back(shared: &Shared) {
    let Some(mut io) = shared.driving.io.try_lock() else { return };
    if let Some(wire) = io.wire.as_mut().filter(|wire| wire.lent_until.is_some()) {
        wire.end_loan(shared);
        let interest = Event::new(SOCKET, shared.is_reading.load(Ordering::Acquire), !wire.is_idle());
        if shared.poller.modify(as_source(&wire.stream), interest).is_err() {
            shared.alarm();
        }
    }
}

impl Wire {
    /// The event loop does not watch the socket any more.
    pub(super) fn end_loan(&mut self, shared: &Shared) {
        if self.lent_until.take().is_some()
            && let Some(loop_poller) = shared.driving.loop_poller.get()
        {
            // Fails only for a socket that is not registered, which changes nothing.
            let _ = loop_poller.delete(as_source(&self.stream));
        }
    }

    /// Ends a loan whose time is over. Gives whether there was one.
    pub(super) fn end_old_loan(&mut self, shared: &Shared, now: Moment) -> bool {
        let is_over = self.lent_until.is_some_and(|until| until <= now);
        if is_over {
            self.end_loan(shared);
        }
        is_over
    }
}
