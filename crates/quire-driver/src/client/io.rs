//! The thread of a client: connects, reads, writes, keeps the timers, until the client is closed.

#![allow(unsafe_code)] // registering a socket with the poller: see the SAFETY note

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use polling::{Event, Events};
use quire_client::{FailureCode, State};

use super::link::{ConnectError, Link, Stream};
use super::load::Asker;
use super::{Inner, LastError, Shared};

/// Bytes read at a time: enough for hundreds of messages per system call and lock.
const READ_SIZE: usize = 512 * 1024;

/// The key of the one socket at the poller.
const SOCKET: usize = 1;

/// One connection and what is half done on it.
struct Wire {
    stream: Stream,
    /// Bytes from the core that were not written yet.
    outgoing: Vec<u8>,
    written: usize,
}

pub(super) fn run(shared: &Shared, links: &[Link], asker: &Asker) {
    let mut wire: Option<Wire> = None;
    let mut scratch = vec![0; READ_SIZE];
    let mut events = Events::new();
    loop {
        shared.awake.store(true, Ordering::Release);
        let mut inner = shared.inner.lock();
        let is_hurried = shared.is_hurried.load(Ordering::Acquire);
        let is_closed = matches!(inner.core.state(), State::Closed(_));
        if is_closed && (is_hurried || wire.is_none() || inner.core.wants_close()) {
            if let Some(wire) = wire.take() {
                wire.leave(shared);
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
            return;
        }
        if wire.is_none() {
            wire = connect(shared, links, asker, inner);
            continue_or_sleep(shared, &wire, &mut events);
            continue;
        }
        drop(inner);
        let Some(connected) = &mut wire else { continue };
        if let Err(reason) = turn(shared, connected, &mut scratch) {
            if let Some(wire) = wire.take() {
                wire.leave(shared);
            }
            disconnected(shared, FailureCode::Disconnected.name(), reason);
            continue;
        }
        continue_or_sleep(shared, &wire, &mut events);
    }
}

/// Connects when it is time to; gives nothing when it is not, or did not work.
fn connect<'a>(
    shared: &'a Shared,
    links: &[Link],
    asker: &Asker,
    mut inner: parking_lot::MutexGuard<'a, Inner>,
) -> Option<Wire> {
    let (_, at) = inner.core.poll_connect()?;
    if at > shared.now() {
        return None;
    }
    if inner.core.wants_loads() {
        drop(inner);
        let loads = asker.ask(links);
        inner = shared.inner.lock();
        inner.core.set_loads(&loads);
    }
    let (address, _) = inner.core.poll_connect()?;
    drop(inner);
    let link = &links[address % links.len()];
    shared.inner.lock().address = link.to_string();
    let connected = link.connect(shared.connect_timeout).and_then(|stream| {
        // SAFETY: the socket is removed from the poller in `disconnect`, before it is dropped.
        unsafe { shared.poller.add(&as_source(&stream), Event::none(SOCKET)) }
            .map_err(ConnectError::Connect)?;
        Ok(stream)
    });
    match connected {
        Ok(stream) => {
            let mut inner = shared.inner.lock();
            inner.core.handle_connected(shared.now());
            shared.dispatch(&mut inner);
            Some(Wire { stream, outgoing: Vec::new(), written: 0 })
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
    let reason = inner.ended_because.take().unwrap_or(reason);
    let before = inner.core.state().clone();
    inner.last_error = Some(LastError { code, reason: format!("{}: {reason}", inner.address) });
    inner.core.handle_disconnected(shared.now());
    match before {
        State::Connecting => inner.failed_attempts += 1,
        State::Connected => {
            inner.lost_at = Some(Instant::now());
            log::warn!(
                target: "quire.client",
                "client {:?}: lost the connection to {}: {reason}; publishes that are not known to be persisted: {}",
                inner.core.name(),
                inner.address,
                inner.core.unpersisted_count()
            );
        }
        State::Reconnecting | State::Closed(_) => (),
    }
    shared.dispatch(&mut inner);
    // Callers wait for the outcome of the first attempts, of which the core has no event.
    shared.announce();
}

/// Reads and writes until neither makes progress.
///
/// # Errors
/// The connection is of no use any more: the reason.
fn turn(shared: &Shared, wire: &mut Wire, scratch: &mut [u8]) -> Result<(), String> {
    loop {
        let mut progress = false;
        let is_reading;
        {
            let mut inner = shared.inner.lock();
            is_reading = shared.is_reading(&mut inner);
            if inner.core.handle_timeout(shared.now()) {
                return Err("the server is silent".into());
            }
            if wire.outgoing.is_empty() {
                inner.core.poll_transmit(shared.now(), &mut wire.outgoing);
            }
            shared.dispatch(&mut inner);
        }
        match wire.write() {
            Ok(is_written) => progress |= is_written,
            Err(reason) => {
                // The server has closed. The reason may still be in the socket.
                while receive(shared, wire, scratch)? {}
                return Err(reason);
            }
        }
        shared.is_reading.store(is_reading, Ordering::Release);
        progress |= is_reading && receive(shared, wire, scratch)?;
        if !progress {
            return Ok(());
        }
    }
}

/// Reads once; whether there was anything.
///
/// # Errors
/// The connection is of no use any more: the reason.
fn receive(shared: &Shared, wire: &mut Wire, scratch: &mut [u8]) -> Result<bool, String> {
    let Some(size) = wire.read(scratch)? else { return Ok(false) };
    let bytes = Bytes::copy_from_slice(&scratch[..size]);
    let mut inner = shared.inner.lock();
    inner.heard_at = Some(SystemTime::now());
    let received = inner.core.handle_received(shared.now(), bytes);
    shared.dispatch(&mut inner);
    received.map_err(|error| format!("the server does not speak the protocol: {error}"))?;
    Ok(true)
}

/// Sleeps until the socket is ready, another thread wakes this one, or the next timer is due. Does not sleep when there is work.
fn continue_or_sleep(shared: &Shared, wire: &Option<Wire>, events: &mut Events) {
    shared.awake.store(false, Ordering::Release);
    let inner = shared.inner.lock();
    if wire.is_some() && inner.has_new_room() {
        return;
    }
    let now = shared.now();
    let is_closed = matches!(inner.core.state(), State::Closed(_));
    let wake_at = match wire {
        Some(wire) => {
            if (wire.is_idle() && !inner.core.is_idle()) || inner.core.wants_close() {
                return;
            }
            inner.core.next_timeout()
        }
        None if is_closed => return,
        None => inner.core.poll_connect().map(|(_, at)| at),
    };
    drop(inner);
    let timeout = wake_at.map(|at| at.since(now));
    if timeout == Some(Duration::ZERO) {
        return;
    }
    if let Some(wire) = wire {
        let interest = Event::new(SOCKET, shared.is_reading.load(Ordering::Acquire), !wire.is_idle());
        if shared.poller.modify(as_source(&wire.stream), interest).is_err() {
            return;
        }
    }
    events.clear();
    // An interrupted wait is as good as a wake-up.
    let _ = shared.poller.wait(events, timeout);
}

impl Wire {
    fn is_idle(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// The socket is not waited for any more.
    fn leave(&self, shared: &Shared) {
        // Fails only for a socket that is not registered, which changes nothing.
        let _ = shared.poller.delete(as_source(&self.stream));
    }

    /// Whether anything could be written, or why the connection is gone.
    fn write(&mut self) -> Result<bool, String> {
        let mut progress = false;
        while self.written < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.written..]) {
                Ok(0) => return Err("the server takes no bytes".into()),
                Ok(size) => {
                    progress = true;
                    self.written += size;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(progress),
                Err(error) => return Err(error.to_string()),
            }
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(progress)
    }

    /// Bytes read, `None` when there are none now, or why the connection is gone.
    fn read(&mut self, scratch: &mut [u8]) -> Result<Option<usize>, String> {
        loop {
            return match self.stream.read(scratch) {
                Ok(0) => Err("the server closed the connection".into()),
                Ok(size) => Ok(Some(size)),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error.to_string()),
            };
        }
    }
}

fn as_source(stream: &Stream) -> std::os::fd::BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(stream)
}
