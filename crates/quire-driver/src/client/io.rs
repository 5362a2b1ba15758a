//! The connection of a client: connects, reads, writes, keeps the timers, until the client is
//! closed.
//!
//! The thread of the client, a call that waits, a publish and an event loop take turns with the
//! connection. [`quire_client::drive`] decides which of them has the connection, and which watches
//! the socket meanwhile. This module carries that out.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use parking_lot::MutexGuard;
use polling::Events;
use quire_client::drive::{Orders, Remaining, Sending};
use quire_client::{ConnectionState, FailureCode};

use super::server_load::Asker;
use super::transport::{ConnectError, Endpoint};
use super::wire::{Lost, Wire};
use super::{Inner, LastError, NewSecret, Shared};

/// The most bytes that an event loop reads at a time. After a full read, the thread reads for some
/// time, while the loop works on the messages that it has.
const LOOP_READ_SIZE: usize = 64 * 1024;

/// The pause between two warnings that a client still has no connection.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// The thread of a client.
pub(super) fn run(shared: &Shared, endpoints: &[Endpoint], asker: &Asker) {
    let mut events = Events::new();
    let mut reported = None;
    loop {
        let mut inner = shared.inner.lock();
        let mut until = None;
        if inner.drive.thread_takes(reported) {
            let mut wire = inner.wire.take();
            drop(inner);
            until = match work(shared, endpoints, asker, &mut wire) {
                Some(until) => until,
                None => return,
            };
        } else {
            drop(inner);
        }
        let timeout = until.map(|at| at.since(shared.now()));
        reported = shared.watchers.sleep_as_thread(&mut events, timeout);
    }
}

/// The thread works on the connection, or connects, until it has nothing more to do. Returns how
/// long it sleeps; `None` when the client has ended.
fn work(
    shared: &Shared,
    endpoints: &[Endpoint],
    asker: &Asker,
    wire: &mut Option<Wire>,
) -> Option<Option<quire_types::time::Instant>> {
    loop {
        let inner = shared.inner.lock();
        if inner.is_to_end(wire.as_ref()) {
            end(shared, inner, wire);
            return None;
        }
        match wire {
            None => *wire = connect(shared, endpoints, asker, inner),
            Some(connected) => {
                drop(inner);
                if let Err(lost) = turn(shared, connected, usize::MAX) {
                    lose(shared, wire, lost);
                }
            }
        }
        let mut inner = shared.inner.lock();
        let remaining = inner.remaining(wire.as_ref());
        if let Some((orders, until)) = inner.drive.thread_sleeps(shared.now(), remaining) {
            inner.wire = wire.take();
            shared.obey(inner, orders);
            return Some(until);
        }
    }
}

/// The client has sent everything, or does not wait for that any more.
fn end(shared: &Shared, mut inner: MutexGuard<'_, Inner>, wire: &mut Option<Wire>) {
    if let Some(wire) = wire.take() {
        shared.watchers.remove(&wire);
        inner.drive.note_lost();
        inner.core.handle_disconnected(shared.now());
    }
    inner.core.release_publish_log();
    inner.core.end_receipts();
    shared.dispatch(&mut inner);
    inner.is_done = true;
    for queue in inner.shared_queues.drain(..).filter_map(|queue| queue.upgrade()) {
        queue.close();
    }
    shared.announce();
}

/// The connection cannot be used any more.
fn lose(shared: &Shared, wire: &mut Option<Wire>, lost: Lost) {
    if let Some(wire) = wire.take() {
        shared.watchers.remove(&wire);
    }
    disconnected(shared, lost.code, lost.reason);
}

/// Reads and writes on the calling thread, which has the connection, until `ready` returns a value
/// or `deadline` has passed. It calls `ready` after every turn.
pub(super) fn drive<T>(
    shared: &Shared,
    wire: Wire,
    deadline: Instant,
    ready: &mut impl FnMut(&mut Inner) -> Option<T>,
) -> Option<T> {
    let mut wire = Some(wire);
    loop {
        if let Some(connected) = &mut wire
            && let Err(lost) = turn(shared, connected, usize::MAX)
        {
            lose(shared, &mut wire, lost);
        }
        let mut inner = shared.inner.lock();
        let value = ready(&mut inner);
        let (now, remaining) = (shared.now(), inner.remaining(wire.as_ref()));
        let left = deadline.saturating_duration_since(Instant::now());
        let connected = match &wire {
            Some(connected) if value.is_none() && !remaining.is_closed && !left.is_zero() => connected,
            _ => {
                let orders = inner.drive.caller_leaves(now, remaining);
                inner.wire = wire;
                shared.obey(inner, orders);
                return value;
            }
        };
        let Some(interest) = inner.drive.caller_sleeps(now, remaining) else { continue };
        drop(inner);
        let timeout = remaining.due.map_or(left, |due| left.min(due.since(now)));
        let is_ready = shared.watchers.sleep_as_caller(connected, interest, timeout);
        shared.inner.lock().drive.caller_wakes(is_ready);
    }
}

/// The event loop is about to wait.
pub(super) fn lend(shared: &Shared) {
    let (mut inner, now) = (shared.inner.lock(), shared.now());
    let Inner { drive, wire, .. } = &mut *inner;
    let mut orders = drive.loop_waits(now);
    if orders.watch_for_loop == Some(true)
        && let Some(wire) = wire
        && shared.watchers.begin_loan(wire).is_err()
    {
        orders = Orders { wake: orders.wake, ..drive.loop_leaves_socket(now) };
    }
    shared.obey(inner, orders);
}

/// Reads and writes on the thread of the event loop, without waiting.
pub(super) fn step(shared: &Shared) {
    let mut inner = shared.inner.lock();
    if !inner.drive.loop_takes() {
        return;
    }
    let mut wire = inner.wire.take();
    drop(inner);
    let Some(connected) = &mut wire else { return };
    let turned = turn(shared, connected, LOOP_READ_SIZE);
    let is_flooded = turned.as_ref().is_ok_and(|size| *size >= LOOP_READ_SIZE);
    if let Err(lost) = turned {
        lose(shared, &mut wire, lost);
    }
    let mut inner = shared.inner.lock();
    let remaining = inner.remaining(wire.as_ref());
    let orders = inner.drive.loop_leaves(shared.now(), remaining, is_flooded);
    inner.wire = wire;
    shared.obey(inner, orders);
}

impl Inner {
    /// The work that is left when a party can do no more.
    fn remaining(&self, wire: Option<&Wire>) -> Remaining {
        let is_closed = matches!(self.core.state(), ConnectionState::Closed(_));
        let is_to_end = self.is_to_end(wire);
        match wire {
            Some(wire) => Remaining {
                has_work: self.has_new_room() || (wire.is_idle() && !self.core.is_idle()) || is_to_end,
                has_unwritten: !wire.is_idle(),
                is_closed,
                due: self.core.next_timeout(),
            },
            None => Remaining {
                has_work: is_to_end,
                is_closed,
                due: self.core.poll_connect().map(|(_, at)| at),
                ..Remaining::default()
            },
        }
    }

    /// Whether the thread ends the client now.
    fn is_to_end(&self, wire: Option<&Wire>) -> bool {
        let is_closed = matches!(self.core.state(), ConnectionState::Closed(_));
        is_closed && (self.is_hurried || wire.is_none() || self.core.wants_close())
    }

    /// Whether a failed attempt to connect is logged. A caller that waits for the first connection
    /// gets the error instead.
    fn is_to_warn(&self, shared: &Shared) -> bool {
        let is_unnoticed = match self.core.state() {
            ConnectionState::Connecting => {
                shared.is_in_background && self.failed_attempts >= shared.endpoint_count
            }
            ConnectionState::Reconnecting => true,
            ConnectionState::Connected | ConnectionState::Closed(_) => false,
        };
        is_unnoticed && self.warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL)
    }
}

impl Shared {
    /// Carries out the orders of [`quire_client::drive`], and unlocks. The pollers change under the
    /// lock, so that they agree with it.
    pub(super) fn obey(&self, mut inner: MutexGuard<'_, Inner>, orders: Orders) {
        let Inner { wire, drive, .. } = &mut *inner;
        let mut wake = orders.wake;
        if let Some(wire) = wire
            && let Err(error) = self.watchers.watch(wire, &orders)
        {
            wire.fail(&error);
            wake = wake.or(drive.note_unwatched().wake);
        }
        drop(inner);
        if let Some(sleeper) = wake {
            self.watchers.wake(sleeper);
        }
    }

    /// `inner` has changed. The party that has the connection checks it.
    pub(super) fn wake(&self, mut inner: MutexGuard<'_, Inner>) {
        let orders = inner.drive.note_changed();
        self.obey(inner, orders);
    }

    /// Sends what the core has, on the calling thread or on another one. `may_follow`: more calls
    /// may follow at once.
    pub(super) fn send<'a>(&'a self, mut inner: MutexGuard<'a, Inner>, may_follow: bool) {
        let mut wire = match inner.drive.publishes(may_follow, || self.now()) {
            Sending::Here => inner.wire.take(),
            Sending::Elsewhere(orders) => return self.obey(inner, orders),
        };
        let mut is_broken = false;
        if let Some(wire) = wire.as_mut() {
            inner.core.poll_transmit(self.now(), wire.outgoing());
            self.dispatch(&mut inner);
            drop(inner);
            is_broken = wire.write().is_err();
            inner = self.inner.lock();
        }
        let mut remaining = inner.remaining(wire.as_ref());
        // The thread of the client finds the error of a broken connection itself.
        remaining.has_work |= is_broken;
        let orders = inner.drive.publisher_leaves(self.now(), remaining);
        inner.wire = wire;
        self.obey(inner, orders);
    }
}

/// Connects when the next attempt is due. Returns `None` before that, and when the attempt failed.
fn connect<'a>(
    shared: &'a Shared,
    endpoints: &[Endpoint],
    asker: &Asker,
    mut inner: MutexGuard<'a, Inner>,
) -> Option<Wire> {
    let (_, at) = inner.core.poll_connect()?;
    if at > shared.now() {
        return None;
    }
    if inner.core.wants_loads() {
        drop(inner);
        let loads = asker.ask(endpoints);
        inner = shared.inner.lock();
        inner.core.set_loads(&loads);
    }
    let (address, _) = inner.core.poll_connect()?;
    drop(inner);
    let endpoint = &endpoints[address % endpoints.len()];
    shared.inner.lock().address = endpoint.to_string();
    if let Some(secret) = &shared.secret {
        match secret() {
            Ok(NewSecret::Password(password)) => shared.inner.lock().core.set_password(password),
            Ok(NewSecret::Token(token)) => shared.inner.lock().core.set_token(token),
            Err(reason) => {
                disconnected(shared, FailureCode::Disconnected.name(), reason);
                return None;
            }
        }
    }
    let connected = endpoint.connect(shared.connect_timeout).and_then(|stream| {
        shared.watchers.add(&stream).map_err(ConnectError::Connect)?;
        Ok(stream)
    });
    match connected {
        Ok(stream) => {
            let mut inner = shared.inner.lock();
            inner.core.handle_connected(shared.now());
            inner.drive.note_connected();
            shared.dispatch(&mut inner);
            Some(Wire::new(stream))
        }
        Err(error) => {
            disconnected(shared, error.code(), error.to_string());
            None
        }
    }
}

/// The connection was lost, or could not be made.
fn disconnected(shared: &Shared, code: &'static str, reason: String) {
    let mut inner = shared.inner.lock();
    let (code, reason) = inner.ended_because.take().unwrap_or((code, reason));
    let before = inner.core.state().clone();
    inner.last_error = Some(LastError { code, reason: format!("{}: {reason}", inner.address) });
    inner.core.handle_disconnected(shared.now());
    inner.drive.note_lost();
    match before {
        ConnectionState::Connecting if inner.core.is_renewing_token() => (),
        ConnectionState::Connecting => inner.failed_attempts += 1,
        ConnectionState::Connected => {
            inner.lost_at = Some(Instant::now());
            inner.warned_at = inner.lost_at;
            warn(&inner, code, format_args!("lost the connection to {}: {reason}", inner.address));
        }
        ConnectionState::Reconnecting | ConnectionState::Closed(_) => (),
    }
    if inner.is_to_warn(shared) {
        inner.warned_at = Some(Instant::now());
        warn(&inner, code, format_args!("no connection to {}: {reason}; it tries again", inner.address));
    }
    shared.dispatch(&mut inner);
    // Callers wait for the outcome of the first attempts. The core has no event for it.
    shared.announce();
}

/// Logs `text` about the connection, with the client, the address, the code and the number of
/// unpersisted publishes as fields.
fn warn(inner: &Inner, code: &str, text: std::fmt::Arguments<'_>) {
    log::warn!(
        target: "quire.client",
        quire_client = inner.core.name(),
        quire_address = inner.address.as_str(),
        quire_code = code,
        quire_unpersisted = inner.core.unpersisted_count();
        "client {:?}: {text}; publishes that are not known to be persisted: {}",
        inner.core.name(),
        inner.core.unpersisted_count()
    );
}

/// Writes and reads until there is no progress, and reads up to about `size_max` bytes. Returns the
/// number of bytes that it has read.
///
/// # Errors
/// The connection cannot be used any more: the reason.
fn turn(shared: &Shared, wire: &mut Wire, size_max: usize) -> Result<usize, Lost> {
    let mut read_size = 0;
    loop {
        let may_read;
        {
            let mut inner = shared.inner.lock();
            let is_reading = shared.is_reading(&mut inner);
            inner.drive.set_reading(is_reading);
            may_read = inner.drive.may_read();
            if inner.core.handle_timeout(shared.now()) {
                return Err("the server is silent".into());
            }
            if wire.is_idle() {
                inner.core.poll_transmit(shared.now(), wire.outgoing());
            }
            shared.dispatch(&mut inner);
        }
        let mut progress = match wire.write() {
            Ok(is_written) => is_written,
            Err(lost) => {
                // The server has closed the connection. Its reason may still be in the socket.
                while receive(shared, wire, usize::MAX)? > 0 {}
                return Err(lost);
            }
        };
        if may_read && read_size < size_max {
            let size = receive(shared, wire, size_max - read_size)?;
            progress |= size > 0;
            read_size += size;
        }
        if !progress {
            return Ok(read_size);
        }
    }
}

/// Reads once, up to `size_max` bytes. Returns the number of bytes.
///
/// # Errors
/// The connection cannot be used any more: the reason.
fn receive(shared: &Shared, wire: &mut Wire, size_max: usize) -> Result<usize, Lost> {
    let (read, is_emptied) = wire.read(size_max)?;
    let bytes = Bytes::copy_from_slice(read);
    let size = bytes.len();
    let mut inner = shared.inner.lock();
    if is_emptied {
        inner.drive.note_emptied();
    }
    if size == 0 {
        return Ok(0);
    }
    inner.received_at = Some(SystemTime::now());
    let received = inner.core.handle_received(shared.now(), bytes);
    if is_emptied {
        inner.core.handle_emptied();
    }
    shared.dispatch(&mut inner);
    received.map_err(|error| format!("the server does not speak the protocol: {error}"))?;
    Ok(size)
}
