//! The connection of a client: connects, reads, writes, keeps the timers, until the client is closed.
//!
//! The thread of the client does all of this while no caller waits. A caller that waits for the server drives the connection itself
//! ([`drive`]): it reads the answer on the processor that it continues on, and no other thread has to be woken for that. The thread of the
//! client sleeps meanwhile. A caller that publishes while the thread sleeps writes the message itself ([`Shared::send`]).
//!
//! The asyncio client lends the connection to its event loop, which watches the socket and drives ([`loan`]).
//!
//! [`Io`] belongs to the thread that has locked it. `Shared::awake` says whether that thread looks at the core again before it sleeps.

#![allow(unsafe_code)] // registering a socket with the poller: see the SAFETY notes

pub(super) mod loan;

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use polling::{Event, Events, Poller};
use quire_client::{FailureCode, State};
use quire_journal::descriptor::Owned;
use quire_types::time::Instant as Moment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{ConnectError, Link, Stream};
use super::load::Asker;
use super::{Inner, LastError, Shared};
use crate::descriptor::wake_up_pair;

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
    /// An event loop watches the socket, and has time until then to look at it.
    lent_until: Option<Moment>,
}

/// The connection, and the buffer that it is read into.
struct Io {
    wire: Option<Wire>,
    scratch: Vec<u8>,
    rest: Rest,
    /// When the event loop last began to wait.
    loop_waited_at: Option<Moment>,
    /// The connection is not lent before.
    lent_from: Moment,
}

/// How long the thread leaves acknowledgements in the socket while no caller waits. A program that looks at its figures does not notice so
/// little.
const REST: Duration = Duration::from_millis(5);

/// Whether the thread watches the socket. It does not when acknowledgements come often and no caller waits for one, because the wake-up
/// costs more than the acknowledgement.
#[derive(Default)]
struct Rest {
    /// When the thread last found something in the socket.
    read_at: Option<Moment>,
    /// The socket is not watched until then.
    until: Option<Moment>,
}

impl Rest {
    /// Something was in the socket.
    fn note_read(&mut self, now: Moment) {
        let is_often = self.read_at.is_some_and(|read_at| now.since(read_at) < 2 * REST);
        (self.read_at, self.until) = (Some(now), is_often.then_some(now + REST));
    }

    /// Whether a rest is over now.
    fn end(&mut self, now: Moment) -> bool {
        self.until.take_if(|until| *until <= now).is_some()
    }
}

/// A publish finds the thread asleep, and the one before that did so less than this ago: more may follow at once, and the thread sends them
/// together.
const BURST_NS: u64 = 50_000;

/// The state that the threads share which drive a connection.
pub(super) struct Driving {
    io: Mutex<Io>,
    /// A caller drives.
    is_driven: AtomicBool,
    /// Wakes a caller that drives.
    wake_tx: Owned<UnixStream>,
    wake_rx: Owned<UnixStream>,
    /// Has the socket while the connection is lent to an event loop, which watches this poller.
    loop_poller: OnceLock<Owned<Poller>>,
    /// When a publish last found the thread asleep.
    found_asleep_ns: AtomicU64,
    /// A publish has found the thread awake since then: publishes follow each other.
    is_burst: AtomicBool,
}

impl Driving {
    pub fn new() -> io::Result<Self> {
        let (wake_tx, wake_rx) = wake_up_pair()?;
        Ok(Driving {
            io: Mutex::new(Io {
                wire: None,
                scratch: vec![0; READ_SIZE],
                rest: Rest::default(),
                loop_waited_at: None,
                lent_from: Moment::default(),
            }),
            is_driven: AtomicBool::new(false),
            wake_tx,
            wake_rx,
            loop_poller: OnceLock::new(),
            found_asleep_ns: AtomicU64::new(0),
            is_burst: AtomicBool::new(false),
        })
    }

    /// Whether a caller drives, which may sleep until [`Driving::wake`].
    pub fn is_driven(&self) -> bool {
        self.is_driven.load(Ordering::Acquire)
    }

    /// A publish after a wait is not one of a burst.
    fn end_burst(&self) {
        self.found_asleep_ns.store(0, Ordering::Release);
        self.is_burst.store(false, Ordering::Relaxed);
    }

    /// Wakes the caller that drives.
    pub fn wake(&self) {
        // Fails only when the bytes of hundreds of wake-ups are unread, and then the caller wakes up anyway.
        let _ = (&*self.wake_tx).write(&[1]);
    }
}

/// The thread of a client.
pub(super) fn run(shared: &Shared, links: &[Link], asker: &Asker) {
    let mut events = Events::new();
    // Whether the socket may have something to read.
    let mut may_read = true;
    loop {
        // A caller that drives may keep it for long. It ends when the state of the client changes.
        let mut io = shared.driving.io.lock();
        let Io { wire, scratch, rest, .. } = &mut *io;
        shared.awake.store(true, Ordering::Release);
        let mut inner = shared.inner.lock();
        inner.is_resting = false;
        let is_hurried = shared.is_hurried.load(Ordering::Acquire);
        let is_closed = matches!(inner.core.state(), State::Closed(_));
        if is_closed && (is_hurried || wire.is_none() || inner.core.wants_close()) {
            if let Some(mut wire) = wire.take() {
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
        let Some(connected) = wire else {
            *wire = connect(shared, links, asker, inner);
            continue_or_sleep(shared, io, &mut events);
            may_read = true;
            continue;
        };
        drop(inner);
        let now = shared.now();
        may_read |= rest.end(now) | connected.end_old_loan(shared, now);
        match turn(shared, connected, scratch, read_count(may_read)) {
            Ok(0) => (),
            Ok(_) => rest.note_read(shared.now()),
            Err(reason) => {
                lose(shared, wire, reason);
                continue;
            }
        }
        may_read = continue_or_sleep(shared, io, &mut events);
    }
}

/// The connection cannot be used any more.
fn lose(shared: &Shared, wire: &mut Option<Wire>, reason: String) {
    if let Some(mut wire) = wire.take() {
        wire.leave(shared);
    }
    disconnected(shared, FailureCode::Disconnected.name(), reason);
}

/// Reads and writes on the calling thread until `ready` gives something or `deadline` has come. `ready` is asked after every step. Gives
/// nothing at once when another thread has the connection, or when there is none.
pub(super) fn drive<T>(
    shared: &Shared,
    deadline: Instant,
    ready: &mut impl FnMut(&mut Inner) -> Option<T>,
) -> Option<T> {
    let mut io = shared.driving.io.try_lock()?;
    let Io { wire, scratch, .. } = &mut *io;
    // The thread of the client may be about to sleep. It must not see what this thread reads.
    let connected = wire.as_mut()?;
    connected.end_loan(shared);
    shared.poller.modify(as_source(&connected.stream), Event::none(SOCKET)).ok()?;
    shared.driving.is_driven.store(true, Ordering::Release);
    let mut may_read = false;
    let value = loop {
        shared.awake.store(true, Ordering::Release);
        let Some(connected) = wire else { break None };
        if let Err(reason) = turn(shared, connected, scratch, read_count(may_read)) {
            lose(shared, wire, reason);
            break None;
        }
        let mut inner = shared.inner.lock();
        let value = ready(&mut inner);
        // The thread of the client ends it.
        let is_closed = matches!(inner.core.state(), State::Closed(_));
        if value.is_some() || is_closed || Instant::now() >= deadline {
            break value;
        }
        drop(inner);
        may_read = sleep(shared, connected, deadline);
    };
    hand_back(shared, wire);
    value
}

/// Sleeps until the socket is ready, another thread wakes this one, or a timer or `deadline` is due. Does not sleep when there is work. Gives
/// whether the socket may have something to read.
fn sleep(shared: &Shared, wire: &Wire, deadline: Instant) -> bool {
    shared.awake.store(false, Ordering::Release);
    let inner = shared.inner.lock();
    if has_work(&inner, wire) {
        return inner.has_new_room();
    }
    let mut timeout = deadline.saturating_duration_since(Instant::now());
    if let Some(at) = inner.core.next_timeout() {
        timeout = timeout.min(at.since(shared.now()));
    }
    drop(inner);
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, shared.is_reading.load(Ordering::Acquire));
    flags.set(PollFlags::OUT, !wire.is_idle());
    let wake_rx = &shared.driving.wake_rx;
    let mut both =
        [PollFd::new(wake_rx, PollFlags::IN), PollFd::from_borrowed_fd(as_source(&wire.stream), flags)];
    // A socket that was closed by the server is always ready, also for nothing.
    let descriptors = if flags.is_empty() { &mut both[..1] } else { &mut both[..] };
    // An interrupted wait counts as a wake-up. A time that is too long for the system means no limit.
    let _ = poll(descriptors, Timespec::try_from(timeout).ok().as_ref());
    if !both[0].revents().is_empty() {
        while matches!((&*shared.driving.wake_rx).read(&mut [0; 64]), Ok(64)) {}
    }
    !both[1].revents().is_empty()
}

/// Lets the thread of the client have the connection again. Wakes it only when it has something to do.
fn hand_back(shared: &Shared, wire: &Option<Wire>) {
    shared.driving.is_driven.store(false, Ordering::Release);
    shared.awake.store(false, Ordering::Release);
    shared.driving.end_burst();
    let inner = shared.inner.lock();
    let is_closed = matches!(inner.core.state(), State::Closed(_));
    let is_watched = wire.as_ref().is_some_and(|wire| {
        let interest = Event::new(SOCKET, shared.is_reading.load(Ordering::Acquire), !wire.is_idle());
        !is_closed
            && !has_work(&inner, wire)
            && !inner.is_too_early_for_thread()
            && shared.poller.modify(as_source(&wire.stream), interest).is_ok()
    });
    if !is_watched {
        shared.alarm();
    }
}

/// Whether the next turn has something to do, without anything from the server.
fn has_work(inner: &Inner, wire: &Wire) -> bool {
    inner.has_new_room() || (wire.is_idle() && !inner.core.is_idle()) || inner.core.wants_close()
}

/// The pause between two warnings that a client still has no connection.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

impl Inner {
    /// Whether the log is to say that another attempt to connect has failed. The caller of a client that waits for its first connection gets
    /// the error.
    fn is_to_warn(&self, shared: &Shared) -> bool {
        let is_unnoticed = match self.core.state() {
            State::Connecting => shared.is_in_background && self.failed_attempts >= shared.link_count,
            State::Reconnecting => true,
            State::Connected | State::Closed(_) => false,
        };
        is_unnoticed && self.warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL)
    }

    /// Whether a timer is due before the thread of the client wakes up.
    fn is_too_early_for_thread(&self) -> bool {
        match (self.core.next_timeout(), self.thread_wakes_at) {
            (Some(due), Some(wakes_at)) => due < wakes_at,
            (due, None) => due.is_some(),
            (None, Some(_)) => false,
        }
    }
}

impl Shared {
    /// Whether nothing but acknowledgements is to come, and no caller waits for one.
    fn may_rest(&self, inner: &Inner) -> bool {
        let is_up = matches!(inner.core.state(), State::Connected);
        is_up && inner.feeds.is_empty() && inner.waiter_count == 0 && self.on_ready.lock().is_none()
    }

    /// Sends what the core has, or wakes the thread of the client for it. The calling thread writes itself while that thread sleeps, unless
    /// publishes follow each other so fast that they are better sent together.
    pub(super) fn send(&self, may_be_burst: bool) {
        let Driving { is_burst, found_asleep_ns, .. } = &self.driving;
        if self.awake.load(Ordering::Acquire) {
            is_burst.store(true, Ordering::Relaxed);
            return self.wake();
        }
        if may_be_burst {
            let now = self.now().as_ns();
            let since = now.saturating_sub(found_asleep_ns.swap(now, Ordering::AcqRel));
            if is_burst.swap(false, Ordering::Relaxed) || since < BURST_NS {
                return self.wake();
            }
        }
        if self.driving.is_driven() || !self.write_now() {
            self.wake();
        }
    }

    /// Whether everything that the core has was written to the socket.
    fn write_now(&self) -> bool {
        let Some(mut io) = self.driving.io.try_lock() else { return false };
        let Some(wire) = &mut io.wire else { return false };
        if !wire.is_idle() {
            return false;
        }
        let mut inner = self.inner.lock();
        inner.core.poll_transmit(self.now(), &mut wire.outgoing);
        self.dispatch(&mut inner);
        let is_done = !has_work(&inner, wire) && !inner.is_too_early_for_thread();
        drop(inner);
        // The thread of the client finds the error of a broken connection itself.
        wire.write().is_ok() && wire.is_idle() && is_done
    }
}

/// Connects when it is time to; gives nothing when it is not, or did not work.
fn connect<'a>(
    shared: &'a Shared,
    links: &[Link],
    asker: &Asker,
    mut inner: MutexGuard<'a, Inner>,
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
            Some(Wire { stream, outgoing: Vec::new(), written: 0, lent_until: None })
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
    let code = inner.last_error.as_ref().map_or("", |error| error.code);
    match before {
        State::Connecting => inner.failed_attempts += 1,
        State::Connected => {
            inner.lost_at = Some(Instant::now());
            inner.warned_at = inner.lost_at;
            warn(&inner, code, format_args!("lost the connection to {}: {reason}", inner.address));
        }
        State::Reconnecting | State::Closed(_) => (),
    }
    if inner.is_to_warn(shared) {
        inner.warned_at = Some(Instant::now());
        warn(&inner, code, format_args!("no connection to {}: {reason}; it tries again", inner.address));
    }
    shared.dispatch(&mut inner);
    // Callers wait for the outcome of the first attempts, of which the core has no event.
    shared.announce();
}

/// Logs `text` about the connection, with the client, the address, the code and the number of unpersisted publishes as fields.
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

/// The reads of a turn that is not limited otherwise.
fn read_count(may_read: bool) -> usize {
    if may_read { usize::MAX } else { 0 }
}

/// Writes until there is no progress, and reads up to `read_count` times, until the socket is empty. Gives the number of bytes that were
/// read.
///
/// # Errors
/// The connection cannot be used any more: the reason.
fn turn(
    shared: &Shared,
    wire: &mut Wire,
    scratch: &mut [u8],
    mut read_count: usize,
) -> Result<usize, String> {
    let mut read_size = 0;
    loop {
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
        let mut progress = match wire.write() {
            Ok(is_written) => is_written,
            Err(reason) => {
                // The server has closed. The reason may still be in the socket.
                while receive(shared, wire, scratch)? > 0 {}
                return Err(reason);
            }
        };
        shared.is_reading.store(is_reading, Ordering::Release);
        if read_count > 0 && is_reading {
            let size = receive(shared, wire, scratch)?;
            progress |= size > 0;
            read_size += size;
            // A read that did not fill the buffer has emptied the socket.
            read_count = if size == scratch.len() { read_count - 1 } else { 0 };
        }
        if !progress {
            return Ok(read_size);
        }
    }
}

/// Reads once. Gives the number of bytes.
///
/// # Errors
/// The connection cannot be used any more: the reason.
fn receive(shared: &Shared, wire: &mut Wire, scratch: &mut [u8]) -> Result<usize, String> {
    let Some(size) = wire.read(scratch)? else { return Ok(0) };
    let bytes = Bytes::copy_from_slice(&scratch[..size]);
    let mut inner = shared.inner.lock();
    inner.received_at = Some(SystemTime::now());
    let received = inner.core.handle_received(shared.now(), bytes);
    if size < scratch.len() {
        inner.core.handle_emptied();
    }
    shared.dispatch(&mut inner);
    received.map_err(|error| format!("the server does not speak the protocol: {error}"))?;
    Ok(size)
}

/// Sleeps until the socket is ready, another thread wakes this one, or the next timer is due. Does not sleep when there is work. Callers
/// may have the connection meanwhile. Gives whether the socket may have something to read.
fn continue_or_sleep(shared: &Shared, mut io: MutexGuard<'_, Io>, events: &mut Events) -> bool {
    shared.awake.store(false, Ordering::Release);
    let mut inner = shared.inner.lock();
    if !shared.may_rest(&inner) {
        io.rest.until = None;
    }
    let (now, rests_until) = (shared.now(), io.rest.until);
    let is_reading = shared.is_reading.load(Ordering::Acquire);
    if let Some(wire) = io.wire.as_mut().filter(|_| !is_reading) {
        // The event loop would find it ready again and again.
        wire.end_loan(shared);
    }
    let lent_until = io.wire.as_ref().and_then(|wire| wire.lent_until);
    let wake_at = match &io.wire {
        // With new room, it reads again.
        Some(wire) if has_work(&inner, wire) => return inner.has_new_room(),
        Some(_) => inner.core.next_timeout().into_iter().chain(rests_until).chain(lent_until).min(),
        None if matches!(inner.core.state(), State::Closed(_)) => return false,
        None => inner.core.poll_connect().map(|(_, at)| at),
    };
    inner.thread_wakes_at = wake_at;
    inner.is_resting = rests_until.is_some();
    drop(inner);
    let timeout = wake_at.map(|at| at.since(now));
    if timeout == Some(Duration::ZERO) {
        return false;
    }
    if let Some(wire) = &io.wire {
        let is_watched = is_reading && rests_until.is_none() && lent_until.is_none();
        let interest = Event::new(SOCKET, is_watched, !wire.is_idle());
        if shared.poller.modify(as_source(&wire.stream), interest).is_err() {
            return true;
        }
    }
    drop(io);
    events.clear();
    // An interrupted wait is as good as a wake-up.
    let _ = shared.poller.wait(events, timeout);
    !events.is_empty()
}

impl Wire {
    fn is_idle(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// The socket is not waited for any more.
    fn leave(&mut self, shared: &Shared) {
        self.end_loan(shared);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_left_alone_after_it_had_something_twice_in_a_short_time() {
        let at = |milliseconds: u64| Moment::from_ns(milliseconds * 1_000_000);
        let mut rest = Rest::default();
        rest.note_read(at(1000));
        assert_eq!(rest.until, None, "one acknowledgement");
        rest.note_read(at(1009));
        assert_eq!(rest.until, Some(at(1014)), "a second one soon after it");
        assert!(!rest.end(at(1013)));
        assert!(rest.end(at(1014)));
        assert_eq!(rest.until, None, "watched, until there is something again");
        rest.note_read(at(1024));
        assert_eq!(rest.until, None, "too long after the last one");
    }
}
