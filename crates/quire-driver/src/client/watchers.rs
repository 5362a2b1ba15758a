//! The parties of a connection sleep here: the thread of the client at a poller, an event loop at
//! another poller, and the caller that has the connection at its socket and a socket pair.

#![allow(unsafe_code)] // registering a socket with a poller: see the SAFETY notes

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::time::Duration;

use polling::{Event, Events, PollMode, Poller};
use quire_client::drive::{Interest, Orders, Registration, Sleeper};
use quire_journal::descriptor::Owned;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::wire::Wire;
use crate::descriptor::{poller, wake_up_pair};

/// The key of a socket at the pollers, where it is not the number of a registration.
const SOCKET: usize = 0;

pub(super) struct Watchers {
    thread: Owned<Poller>,
    event_loop: OnceLock<Owned<Poller>>,
    caller_tx: Owned<UnixStream>,
    caller_rx: Owned<UnixStream>,
}

impl Watchers {
    /// # Errors
    /// The system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let (caller_tx, caller_rx) = wake_up_pair()?;
        Ok(Watchers { thread: poller()?, event_loop: OnceLock::new(), caller_tx, caller_rx })
    }

    /// A descriptor that is readable while the connection is lent and has something to read. It
    /// belongs to the client.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn loop_descriptor(&self) -> io::Result<RawFd> {
        if self.event_loop.get().is_none() {
            let _ = self.event_loop.set(poller()?);
        }
        self.event_loop.get().map(|poller| poller.as_raw_fd()).ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Registers a new connection with the poller of the thread, without watching it for events.
    ///
    /// # Errors
    /// The system has no room for it.
    pub fn add(&self, stream: &impl AsFd) -> io::Result<()> {
        // SAFETY: the socket is removed from the poller in `remove`, before it is dropped.
        unsafe { self.thread.add(&stream.as_fd(), Event::none(SOCKET)) }
    }

    /// No poller watches the connection any more.
    pub fn remove(&self, wire: &Wire) {
        // Fails only for a socket that is not registered. That has no effect.
        let _ = self.thread.delete(wire);
        self.end_loan(wire);
    }

    /// Changes what the poller of the thread watches the connection for, and ends a loan.
    ///
    /// # Errors
    /// The system has no room for it.
    pub fn watch(&self, wire: &Wire, orders: &Orders) -> io::Result<()> {
        if orders.watch_for_loop == Some(false) {
            self.end_loan(wire);
        }
        match orders.watch_for_thread {
            Some(Registration { number, interest: Interest { readable, writable } }) => {
                self.thread.modify(wire, Event::new(number, readable, writable))
            }
            None => Ok(()),
        }
    }

    /// The poller of the event loop watches the connection.
    ///
    /// # Errors
    /// There is no event loop, or the system has no room for it.
    pub fn begin_loan(&self, wire: &Wire) -> io::Result<()> {
        let Some(poller) = self.event_loop.get() else { return Err(io::ErrorKind::Other.into()) };
        // SAFETY: the socket is removed from the poller in `end_loan`, before it is dropped.
        unsafe { poller.add_with_mode(&wire.as_fd(), Event::readable(SOCKET), PollMode::Level) }
    }

    fn end_loan(&self, wire: &Wire) {
        if let Some(poller) = self.event_loop.get() {
            // Fails only for a socket that is not registered. That has no effect.
            let _ = poller.delete(wire);
        }
    }

    pub fn wake(&self, sleeper: Sleeper) {
        match sleeper {
            // The poller exists as long as the client, so this cannot fail.
            Sleeper::Thread => drop(self.thread.notify()),
            // Fails only when the bytes of hundreds of wake-ups are unread, and then the caller
            // wakes up anyway.
            Sleeper::Caller => drop((&*self.caller_tx).write(&[1])),
        }
    }

    /// The thread sleeps here; `None` = until it is woken. Returns the number of the registration
    /// that has reported the socket.
    pub fn sleep_as_thread(&self, events: &mut Events, timeout: Option<Duration>) -> Option<usize> {
        events.clear();
        // An interrupted wait is as good as a wake-up.
        let _ = self.thread.wait(events, timeout);
        events.iter().next().map(|event| event.key)
    }

    /// The caller that has the connection sleeps here. True: the socket is ready.
    pub fn sleep_as_caller(&self, wire: &Wire, interest: Interest, timeout: Duration) -> bool {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.readable);
        flags.set(PollFlags::OUT, interest.writable);
        let mut both =
            [PollFd::new(&self.caller_rx, PollFlags::IN), PollFd::from_borrowed_fd(wire.as_fd(), flags)];
        // A socket that the server has closed is always ready, also when no event is wanted.
        let descriptors = if flags.is_empty() { &mut both[..1] } else { &mut both[..] };
        // An interrupted wait counts as a wake-up. A time that is too long for the system means no
        // limit.
        let _ = poll(descriptors, Timespec::try_from(timeout).ok().as_ref());
        if !both[0].revents().is_empty() {
            while matches!((&*self.caller_rx).read(&mut [0; 64]), Ok(64)) {}
        }
        !both[1].revents().is_empty()
    }
}
