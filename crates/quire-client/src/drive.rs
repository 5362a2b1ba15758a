//! Decides which party works on the connection of a client, and which party watches its socket.
//!
//! [`Drive`] is one value. It has no socket, thread or lock. A driver with several threads keeps it
//! with the core, under the same lock, and does what it says.
//!
//! # The parties
//! | party | when it has the connection |
//! | --- | --- |
//! | the thread of the client | While no other party has it. It connects, and it ends the client. |
//! | a caller | While it waits for the server. |
//! | a publisher | For one write, when every other party sleeps. |
//! | an event loop | While it reads once. It watches the socket between the reads. |
//!
//! A caller reads its answer on the processor that it continues on. No other thread is woken for
//! it.
//!
//! # The contract
//! A party calls its `takes` method and works only if it gets the connection. While it works it
//! calls [`Drive::set_reading`] before each read, [`Drive::note_emptied`] when the socket is empty,
//! and [`Drive::note_lost`] when the connection is gone. When it has no more work, it calls its
//! `sleeps` or `leaves` method with [`Remaining`]. A call that changes the core calls
//! [`Drive::publishes`] or [`Drive::note_changed`]. All of this happens under the lock, and so do
//! the registrations in [`Orders`]. The wake-up in [`Orders`] may be done after the lock.
//!
//! # What it promises
//! At most one party has the connection. While bytes can arrive and are read, exactly one party
//! works or watches the socket. A party that leaves hands the connection over: the thread watches
//! the socket, or it is woken when it has work. No party sleeps while there is work, or before it
//! has called [`Drive::note_emptied`]. `tests/client/drive.rs` checks this, and so do the clients
//! of the simulation.
//!
//! A forked child has the memory of the client and none of its threads. It must not use the value:
//! another thread may have held the lock.

use std::time::Duration;

use quire_types::time::Instant;

/// How long an event loop keeps the socket without reading it. It may be busy with other things.
pub const LOAN_MAX: Duration = Duration::from_millis(100);

/// Publishes that find the thread asleep within this time follow each other. More may come at once,
/// and the thread sends them together.
pub const BURST_MAX: Duration = Duration::from_micros(50);

/// The events of the socket that a party waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Bytes from the server.
    pub readable: bool,
    /// Room for output.
    pub writable: bool,
}

/// The work and the timers that are left when a party can do no more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remaining {
    /// There is work that does not need anything from the server.
    pub has_work: bool,
    /// The socket did not take all output.
    pub has_unwritten: bool,
    /// The client has ended: no caller gets the connection any more.
    pub is_closed: bool,
    /// When a timer is due; without a connection, when to connect.
    pub due: Option<Instant>,
}

/// A new registration at the poller of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Its number, which the poller reports with the event. A thread that has an event of an
    /// earlier registration does not know of this one.
    pub number: usize,
    /// It reports one of these events, and then no more.
    pub interest: Interest,
}

/// The driver does this now.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// The poller of the thread watches the socket like this.
    pub watch_for_thread: Option<Registration>,
    /// The poller of the event loop begins (true) or ends (false) to watch the socket.
    pub watch_for_loop: Option<bool>,
    /// This sleeper is woken.
    pub wake: Option<Sleeper>,
}

/// A party that sleeps until the driver wakes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleeper {
    /// The thread of the client.
    Thread,
    /// The caller that has the connection.
    Caller,
}

/// The thread that sends the output of a call.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// The calling thread: it has the connection until [`Drive::publisher_leaves`].
    Here,
    /// Another party.
    Elsewhere(Orders),
}

/// The party that has the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Thread,
    Caller,
    Publisher,
    Loop,
}

/// The thread of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    /// It works, or it was woken and takes the connection soon.
    Awake,
    /// It wakes up by itself at this time, if ever.
    Asleep(Option<Instant>),
}

/// See the [module](self).
#[derive(Debug)]
pub struct Drive {
    is_connected: bool,
    /// The client has ended: callers do not get the connection any more.
    is_ending: bool,
    holder: Option<Holder>,
    thread: Thread,
    /// The caller that has the connection sleeps.
    is_caller_asleep: bool,
    /// Bytes are read: messages have room.
    is_reading: bool,
    /// The socket may have bytes.
    may_read: bool,
    /// The registration at the poller of the thread.
    watched: Registration,
    /// An event loop watches the socket until then.
    lent_until: Option<Instant>,
    /// The socket is not lent before this time, because many bytes arrived a short time ago.
    lendable_from: Instant,
    /// When the event loop last began to wait.
    loop_waited_at: Option<Instant>,
    /// When a publish last found the thread asleep.
    found_asleep_at: Option<Instant>,
    /// A publish has found a party awake since then.
    is_burst: bool,
}

impl Default for Drive {
    fn default() -> Self {
        Drive {
            is_connected: false,
            is_ending: false,
            holder: None,
            thread: Thread::Awake,
            is_caller_asleep: false,
            is_reading: true,
            may_read: false,
            watched: Registration { number: 0, interest: Interest::default() },
            lent_until: None,
            lendable_from: Instant::default(),
            loop_waited_at: None,
            found_asleep_at: None,
            is_burst: false,
        }
    }
}

impl Drive {
    /// The party that has the connection reads before it writes again, if there is room.
    pub fn may_read(&self) -> bool {
        self.may_read && self.is_reading
    }

    /// Whether bytes are read. The party that last had the connection has set it.
    pub fn is_reading(&self) -> bool {
        self.is_reading
    }

    /// Whether messages have room, so that bytes are read.
    pub fn set_reading(&mut self, is_reading: bool) {
        self.is_reading = is_reading;
    }

    /// Neither the socket nor the stream has any more bytes. A stream that decrypts takes more from
    /// the socket than it hands out, and the socket does not announce those bytes again.
    pub fn note_emptied(&mut self) {
        self.may_read = false;
    }

    /// The thread has connected. It has the connection.
    pub fn note_connected(&mut self) {
        self.is_connected = true;
        // The stream may have taken bytes from the socket already.
        self.may_read = true;
        self.watched.interest = Interest::default();
    }

    /// The party that has the connection has lost it. No poller watches the socket any more.
    pub fn note_lost(&mut self) {
        self.is_connected = false;
        self.may_read = false;
        self.watched.interest = Interest::default();
        self.lent_until = None;
    }

    /// The poller of the thread could not be told to watch the socket.
    pub fn note_unwatched(&mut self) -> Orders {
        self.watched.interest = Interest::default();
        self.wake_thread(Orders::default())
    }

    /// The thread is awake. `reported`: its poller has reported the registration with this number.
    /// True: it has the connection, or connects. False: it sleeps until it is woken.
    pub fn thread_takes(&mut self, reported: Option<usize>) -> bool {
        if let Some(number) = reported {
            self.may_read = self.is_connected;
            if number == self.watched.number {
                self.watched.interest = Interest::default();
            }
        }
        let is_free = self.holder.is_none();
        if is_free {
            self.holder = Some(Holder::Thread);
        }
        self.thread = if is_free { Thread::Awake } else { Thread::Asleep(None) };
        is_free
    }

    /// The thread has no more work. It sleeps until the time, if any, or until the socket is ready.
    /// `None`: there is work, and the thread keeps the connection.
    pub fn thread_sleeps(&mut self, now: Instant, remaining: Remaining) -> Option<(Orders, Option<Instant>)> {
        if self.has_work(remaining) || remaining.due.is_some_and(|due| due <= now) {
            return None;
        }
        let orders = self.end_loan_if_over(now);
        let until = remaining.due.into_iter().chain(self.lent_until).min();
        self.holder = None;
        self.thread = Thread::Asleep(until);
        Some((Orders { watch_for_thread: self.watch(remaining), ..orders }, until))
    }

    /// A call waits for the server. `None`: another party has the connection, or there is none. The
    /// call then waits until the other party wakes it.
    pub fn caller_takes(&mut self) -> Option<Orders> {
        if self.holder.is_some() || !self.is_connected || self.is_ending {
            return None;
        }
        self.holder = Some(Holder::Caller);
        self.is_caller_asleep = false;
        let is_lent = self.lent_until.take().is_some();
        Some(Orders {
            watch_for_thread: self.register(Interest::default()),
            watch_for_loop: is_lent.then_some(false),
            wake: None,
        })
    }

    /// The caller has no more work. It sleeps until the socket is ready for this, until a timer is
    /// due, or until it is woken. `None`: there is work.
    pub fn caller_sleeps(&mut self, now: Instant, remaining: Remaining) -> Option<Interest> {
        if self.has_work(remaining) || remaining.due.is_some_and(|due| due <= now) {
            return None;
        }
        self.is_caller_asleep = true;
        Some(Interest { readable: self.is_reading, writable: remaining.has_unwritten })
    }

    /// The caller is awake. `is_ready`: the socket was ready.
    pub fn caller_wakes(&mut self, is_ready: bool) {
        self.is_caller_asleep = false;
        self.may_read |= is_ready;
    }

    /// The caller has its result, or waits no more.
    pub fn caller_leaves(&mut self, now: Instant, remaining: Remaining) -> Orders {
        self.end_burst();
        self.hand_over(now, remaining)
    }

    /// A call has put output into the core. `may_follow`: more calls may follow at once. `now`
    /// returns the time.
    pub fn publishes(&mut self, may_follow: bool, now: impl FnOnce() -> Instant) -> Sending {
        let is_asleep = self.holder.is_none() && matches!(self.thread, Thread::Asleep(_));
        if !is_asleep {
            self.is_burst |= !self.is_caller_asleep;
            return Sending::Elsewhere(self.note_changed());
        }
        // The thread sends it when there is a connection, and when the socket takes output again.
        if !self.is_connected || self.watched.interest.writable {
            return Sending::Elsewhere(Orders::default());
        }
        if may_follow {
            let now = now();
            let found_at = self.found_asleep_at.replace(now);
            let is_soon = found_at.is_some_and(|at| now.since(at) < BURST_MAX);
            if std::mem::take(&mut self.is_burst) || is_soon {
                return Sending::Elsewhere(self.note_changed());
            }
        }
        self.holder = Some(Holder::Publisher);
        Sending::Here
    }

    /// The publisher has written.
    pub fn publisher_leaves(&mut self, now: Instant, remaining: Remaining) -> Orders {
        self.hand_over(now, remaining)
    }

    /// A call has changed the core: the party that has the connection looks at it.
    pub fn note_changed(&mut self) -> Orders {
        match self.holder {
            // It looks before it sleeps or leaves.
            Some(Holder::Thread | Holder::Publisher | Holder::Loop) => Orders::default(),
            Some(Holder::Caller) => {
                let was_asleep = std::mem::take(&mut self.is_caller_asleep);
                Orders { wake: was_asleep.then_some(Sleeper::Caller), ..Orders::default() }
            }
            None => self.wake_thread(Orders::default()),
        }
    }

    /// The event loop is about to wait. It gets the socket to watch when it waits often, because
    /// the thread has to wake up when the loan may be over.
    pub fn loop_waits(&mut self, now: Instant) -> Orders {
        let before = self.loop_waited_at.replace(now);
        let is_often = before.is_some_and(|at| now.since(at) < LOAN_MAX);
        let is_free = self.holder.is_none() && self.is_connected && self.lent_until.is_none();
        if !is_often || !is_free || !self.is_reading || now < self.lendable_from {
            return Orders::default();
        }
        let until = now + LOAN_MAX;
        self.lent_until = Some(until);
        let orders = Orders {
            watch_for_thread: self.register(Interest { readable: false, ..self.watched.interest }),
            watch_for_loop: Some(true),
            wake: None,
        };
        if self.is_too_early_for_thread(Some(until)) { self.wake_thread(orders) } else { orders }
    }

    /// The event loop looks at the socket. True: it has the connection, and reads once.
    pub fn loop_takes(&mut self) -> bool {
        let is_free = self.holder.is_none() && self.is_connected;
        if is_free {
            self.holder = Some(Holder::Loop);
            self.may_read = true;
        }
        is_free
    }

    /// The event loop has read. `is_flooded`: enough bytes arrived that the thread reads for some
    /// time, while the loop works on the messages.
    pub fn loop_leaves(&mut self, now: Instant, remaining: Remaining, is_flooded: bool) -> Orders {
        self.end_burst();
        if is_flooded {
            self.lendable_from = now + LOAN_MAX;
            self.lent_until = self.lent_until.map(|_| now);
        } else if self.lent_until.is_some_and(|until| until > now) {
            self.lent_until = Some(now + LOAN_MAX);
        }
        self.hand_over(now, remaining)
    }

    /// The event loop waits no more.
    pub fn loop_leaves_socket(&mut self, now: Instant) -> Orders {
        if self.lent_until.is_none() {
            return Orders::default();
        }
        self.lent_until = Some(now);
        if self.holder.is_some() {
            // That party ends the loan when it leaves.
            return Orders::default();
        }
        let mut orders = self.end_loan_if_over(now);
        if self.thread != Thread::Awake {
            orders.watch_for_thread = self
                .watch(Remaining { has_unwritten: self.watched.interest.writable, ..Remaining::default() });
        }
        orders
    }

    /// The party leaves: the thread watches the socket, or is woken when it has work.
    fn hand_over(&mut self, now: Instant, remaining: Remaining) -> Orders {
        self.holder = None;
        self.is_ending |= remaining.is_closed;
        let mut orders = self.end_loan_if_over(now);
        // A thread that did not get the connection does not wake up by itself, so it is woken for
        // the loan, too.
        let due = remaining.due.into_iter().chain(self.lent_until).min();
        if self.has_work(remaining) || self.is_too_early_for_thread(due) {
            return self.wake_thread(orders);
        }
        if self.thread != Thread::Awake {
            orders.watch_for_thread = self.watch(remaining);
        }
        orders
    }

    /// Whether the party that has the connection has to continue.
    fn has_work(&self, remaining: Remaining) -> bool {
        remaining.has_work || self.may_read()
    }

    /// Whether a timer is due before the thread wakes up.
    fn is_too_early_for_thread(&self, due: Option<Instant>) -> bool {
        match (due, self.thread) {
            (Some(due), Thread::Asleep(Some(until))) => due < until,
            (due, Thread::Asleep(None)) => due.is_some(),
            (None, _) | (_, Thread::Awake) => false,
        }
    }

    fn wake_thread(&mut self, orders: Orders) -> Orders {
        let was_asleep = std::mem::replace(&mut self.thread, Thread::Awake) != Thread::Awake;
        Orders { wake: was_asleep.then_some(Sleeper::Thread), ..orders }
    }

    /// The poller of the thread watches the socket.
    fn watch(&mut self, remaining: Remaining) -> Option<Registration> {
        self.register(Interest {
            readable: self.is_connected && self.is_reading && self.lent_until.is_none(),
            writable: self.is_connected && remaining.has_unwritten,
        })
    }

    /// The new registration, if it has changed.
    fn register(&mut self, interest: Interest) -> Option<Registration> {
        if interest == self.watched.interest {
            return None;
        }
        self.watched = Registration { number: self.watched.number.wrapping_add(1), interest };
        Some(self.watched)
    }

    /// Ends a loan whose time is over. A loan also ends when bytes are not read: the event loop
    /// would find the socket ready again and again.
    fn end_loan_if_over(&mut self, now: Instant) -> Orders {
        let is_over = self.lent_until.is_some_and(|until| until <= now || !self.is_reading);
        if !is_over {
            return Orders::default();
        }
        self.lent_until = None;
        Orders { watch_for_loop: Some(false), ..Orders::default() }
    }

    /// A publish after a wait is not part of a burst.
    fn end_burst(&mut self) {
        self.found_asleep_at = None;
        self.is_burst = false;
    }
}
