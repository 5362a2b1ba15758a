//! The parties that work on the connection of a client: its thread, two callers, a publisher and an
//! event loop. [`quire_client::drive`] decides which of them reads, which watches the socket, and
//! which is woken. They do what it says, one small step at a time, in any order. A step can be
//! late, as when the system runs another thread.
//!
//! A stream hands out its bytes in pieces. A stream that decrypts takes all bytes from the socket
//! at once, and hands them out when it has a whole write of the peer. So a readable socket can have
//! nothing for the client, and the stream can have bytes when the socket has none. Now and then, a
//! poller reports a socket that has nothing. Some sockets cannot be watched.
//!
//! Checked after each step: at most one party has the connection. Checked whenever no party can
//! make a step: no byte is unread, no output is unsent, no timer is over, and no attempt to connect
//! is due. The checks look at the parties, the socket and the core, and not at [`Drive`].

use quire_client::ConnectionState;
use quire_client::drive::{Drive, Interest, LOAN_MAX, Orders, Registration, Remaining, Sending, Sleeper};
use quire_types::time::{Instant, Now};

use super::{Client, Program, Surroundings};
use crate::network::{Arrival, Network, Site};
use crate::random::Random;
use crate::world::Canary;
use crate::world::played::Played;

const THREAD: usize = 0;
const CALLERS: [usize; 2] = [1, 2];
const PUBLISHER: usize = 3;
const LOOP: usize = 4;
const COUNT: usize = 5;

/// The most bytes of a read, and of all reads of an event loop until it leaves.
const READ_SIZE: usize = 64 << 10;
const LOOP_READ_SIZE: usize = 2 << 10;

/// The longest time by which a step is late.
const LATE_NS: u64 = 2_000_000;

/// The longest time for which a caller waits, and for which an event loop does other work.
const WAIT_NS: u64 = 200_000_000;
const BUSY_NS: u64 = 300_000_000;

/// More steps than the parties need at one time.
const STEPS_MAX: usize = 10_000;

/// The poller of the thread has a new socket, and does not watch it.
const UNWATCHED: Registration =
    Registration { number: 0, interest: Interest { readable: false, writable: false } };

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Doing {
    #[default]
    Nothing,
    /// It is about to ask for the connection. The poller has reported the registration with this
    /// number to it.
    Asking(Option<usize>),
    /// It has the connection, and works.
    Working,
    /// It has bytes that the core does not have yet.
    Holding,
    /// It has done what it could.
    Done,
    /// It sleeps at the socket until this time. Callers keep the connection meanwhile.
    Asleep(Option<Instant>),
    /// It waits for what other parties announce.
    Waiting,
}

#[derive(Default)]
struct Party {
    doing: Doing,
    /// The bytes that it has read, and whether there were no more.
    held: Vec<u8>,
    is_emptied: bool,
    /// Its next step is not before this time.
    runs_at: u64,
    /// Of a caller: it waits for the next event after this number of them, or until a time.
    seen: u64,
    until: Instant,
}

/// The parties of a client until one of them can make a step again.
pub(super) struct Rest {
    /// At this time one of them makes a step by itself.
    pub(super) until: Option<u64>,
    /// The state of the socket.
    state: (bool, bool),
}

/// The end of a connection at a client.
#[derive(Default)]
struct Stream {
    is_decrypting: bool,
    /// Bytes for the client. A stream that does not decrypt has left them in the socket.
    ready: Vec<u8>,
    /// A part of the bytes of one write, which cannot be decrypted yet.
    part: Vec<u8>,
    outgoing: Vec<u8>,
    has_ended: bool,
    /// The socket cannot be watched.
    has_failed: bool,
}

pub(super) struct Parties {
    drive: Drive,
    random: Random,
    canary: Option<Canary>,
    /// The program has little time: no step is late, and its event loop is never busy.
    is_prompt: bool,
    has_loop: bool,
    all: [Party; COUNT],
    stream: Option<Stream>,
    watched_for_thread: Registration,
    watched_for_loop: bool,
    watched_by_caller: Interest,
    is_notified: bool,
    is_caller_woken: bool,
    /// The next look at the socket finds it ready.
    is_spurious: bool,
    /// The program has room for messages again.
    has_new_room: bool,
    /// Events that the program got.
    event_count: u64,
    loop_busy_until: u64,
    is_loop_gone: bool,
    /// When the event loop began to wait at the socket, or last read from it.
    lent_ns: u64,
    loop_read_size: usize,
    has_ended: bool,
    played: Played,
}

impl Parties {
    /// The process begins: its thread runs.
    pub fn new(program: &Program, canary: Option<Canary>, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let has_loop = random.percent(50);
        let mut all: [Party; COUNT] = Default::default();
        all[THREAD].doing = Doing::Asking(None);
        Parties {
            drive: Drive::default(),
            random,
            canary,
            is_prompt: matches!(program, Program::Jobs(_) | Program::Work(_) | Program::Replays(_)),
            has_loop,
            all,
            stream: None,
            watched_for_thread: UNWATCHED,
            watched_for_loop: false,
            watched_by_caller: Interest::default(),
            is_notified: false,
            is_caller_woken: false,
            is_spurious: false,
            has_new_room: false,
            event_count: 0,
            loop_busy_until: 0,
            is_loop_gone: false,
            lent_ns: 0,
            loop_read_size: 0,
            has_ended: false,
            played: Played::default(),
        }
    }

    pub fn make_mistake(&mut self, canary: Option<Canary>) {
        self.canary = canary;
    }

    /// Now and then it is checked that no party can make a step while they rest.
    pub fn looks_anyway(&mut self) -> bool {
        self.random.percent(1)
    }

    /// Counts their reads and writes.
    pub fn played(&self) -> Played {
        self.played
    }

    /// The next process begins after this one.
    pub fn followed_by(&mut self, next: Parties) {
        let played = std::mem::replace(self, next).played;
        self.played = played;
    }

    /// A line for the history of a failure.
    pub fn describe(&self) -> String {
        let doing = self.all.iter().map(|party| format!("{:?}", party.doing));
        format!("thread, callers, publisher, loop: {}", doing.collect::<Vec<_>>().join(", "))
    }

    /// When one of them makes a step by itself, after a time.
    pub fn next_due(&self, ns: u64) -> Option<u64> {
        let late = self.all.iter().map(|party| party.runs_at);
        let asleep = self.all.iter().filter_map(|party| match party.doing {
            Doing::Asleep(until) => until.map(|at| at.as_ns()),
            Doing::Waiting => Some(party.until.as_ns()),
            _ => None,
        });
        late.chain(asleep).chain([self.loop_busy_until]).filter(|at| *at > ns).min()
    }

    /// The process keeps running. Calls begin to wait, and the event loop does its work.
    pub fn continue_process(&mut self, now: Instant, is_settling: bool) {
        for caller in CALLERS {
            if self.all[caller].doing == Doing::Nothing && self.random.percent(10) {
                let party = &mut self.all[caller];
                (party.doing, party.seen) = (Doing::Asking(None), self.event_count);
                party.until = Instant::from_ns(now.as_ns() + self.random.below(WAIT_NS));
            }
        }
        self.is_spurious |= self.random.percent(2);
        if is_settling {
            (self.loop_busy_until, self.is_loop_gone) = (0, false);
        }
        if !self.has_loop || now.as_ns() < self.loop_busy_until {
            return;
        }
        if self.is_loop_gone {
            self.is_loop_gone = !self.random.percent(10);
        } else if !is_settling && self.random.percent(3) {
            self.is_loop_gone = true;
            let orders = self.drive.loop_leaves_socket(now);
            self.obey(orders);
        } else if !is_settling && !self.is_prompt && self.random.percent(5) {
            self.loop_busy_until = now.as_ns() + self.random.below(BUSY_NS);
        } else {
            self.lend(now);
        }
    }

    /// The event loop is about to wait.
    fn lend(&mut self, now: Instant) {
        let mut orders = self.drive.loop_waits(now);
        if orders.watch_for_loop == Some(true) {
            if self.random.below(500) == 0 {
                orders = Orders { wake: orders.wake, ..self.drive.loop_leaves_socket(now) };
            } else {
                (self.watched_for_loop, self.lent_ns) = (true, now.as_ns());
            }
        }
        self.obey(orders);
    }

    /// Carries out the orders of [`Drive`].
    fn obey(&mut self, orders: Orders) {
        let mut wake = orders.wake;
        if let Some(stream) = &mut self.stream {
            if orders.watch_for_loop == Some(false) {
                self.watched_for_loop = false;
            }
            if let Some(registration) = orders.watch_for_thread {
                self.watched_for_thread = registration;
                if self.random.below(2_000) == 0 {
                    stream.has_failed = true;
                    self.watched_for_thread = UNWATCHED;
                    wake = wake.or(self.drive.note_unwatched().wake);
                }
            }
        }
        if wake.is_some() && self.is_meant(Canary::ForgottenWakeUp, 2) {
            return;
        }
        match wake {
            Some(Sleeper::Thread) => self.is_notified = true,
            Some(Sleeper::Caller) => self.is_caller_woken = true,
            None => (),
        }
    }

    fn is_meant(&mut self, canary: Canary, percent: u64) -> bool {
        self.canary == Some(canary) && self.random.percent(percent)
    }

    /// Callers that wait for other parties look again.
    fn announce(&mut self) {
        for caller in CALLERS {
            if self.all[caller].doing == Doing::Waiting {
                self.all[caller].doing = Doing::Asking(None);
            }
        }
    }

    /// The program got an event.
    pub fn announce_event(&mut self) {
        self.event_count += 1;
        self.announce();
    }

    /// The client has lost its connection.
    fn note_lost(&mut self) {
        self.stream = None;
        (self.watched_for_thread, self.watched_for_loop) = (UNWATCHED, false);
        self.drive.note_lost();
        self.announce();
    }

    /// The number of parties that have the connection.
    fn holder_count(&self) -> usize {
        let is_holder = |(number, party): &(usize, &Party)| match party.doing {
            Doing::Working | Doing::Holding | Doing::Done => true,
            Doing::Asleep(_) => CALLERS.contains(number),
            Doing::Nothing | Doing::Asking(_) | Doing::Waiting => false,
        };
        self.all.iter().enumerate().filter(is_holder).count()
    }

    fn is_over(&self, caller: usize, now: Now) -> bool {
        let Party { seen, until, .. } = self.all[caller];
        self.event_count > seen || until <= now.instant || self.has_ended
    }
}

/// The connection of a client, as its parties use it.
#[derive(Clone, Copy)]
struct Socket {
    connection: u64,
    site: Site,
    ns: u64,
}

impl Stream {
    /// Whether the socket has bytes, or has ended.
    fn is_readable(&self, socket: Socket, network: &Network) -> bool {
        let is_left = !self.is_decrypting && !self.ready.is_empty();
        self.has_ended || is_left || network.is_readable(socket.connection, socket.site, socket.ns)
    }

    /// Whether a poller that watches for this reports the socket.
    fn is_ready(&self, interest: Interest, socket: Socket, network: &Network) -> bool {
        let is_readable = interest.readable && self.is_readable(socket, network);
        is_readable || (interest.writable && network.room(socket.connection, socket.site) > 0)
    }

    /// Reads once, up to `size_max` bytes. Returns the bytes, and whether there are no more.
    /// `None`: the connection has ended.
    fn read(
        &mut self,
        socket: Socket,
        network: &mut Network,
        size_max: usize,
        piece_size_max: usize,
        forgets_buffered: bool,
    ) -> Option<(Vec<u8>, bool)> {
        let Socket { connection, site, ns } = socket;
        while !self.has_ended
            && (self.is_decrypting || self.ready.len() < size_max)
            && let Some(arrival) = network.take(connection, site, ns)
        {
            match arrival {
                Arrival::Bytes(mut bytes) => {
                    self.part.append(&mut bytes);
                    if !self.is_decrypting || !network.is_mid_write(connection, site) {
                        self.ready.append(&mut self.part);
                    }
                }
                Arrival::Ended => self.has_ended = true,
                Arrival::Opened(_) | Arrival::Writable(_) => (),
            }
        }
        if self.ready.is_empty() {
            return (!self.has_ended).then(|| (Vec::new(), true));
        }
        let size = self.ready.len().min(size_max).min(piece_size_max);
        let rest = self.ready.split_off(size);
        let bytes = std::mem::replace(&mut self.ready, rest);
        let is_emptied = size < size_max && (self.ready.is_empty() || forgets_buffered);
        Some((bytes, is_emptied))
    }

    /// Whether it wrote anything.
    fn write(&mut self, socket: Socket, network: &mut Network) -> bool {
        let Socket { connection, site, ns } = socket;
        let size = self.outgoing.len().min(network.room(connection, site));
        if size == 0 {
            return false;
        }
        network.send(connection, site, ns, &self.outgoing[..size]);
        self.outgoing.drain(..size);
        true
    }
}

impl Client {
    /// Lets the parties make their steps until none can make one now. Returns whether one did.
    ///
    /// # Errors
    /// The server violates the protocol, or something is left that a party should have done.
    pub(super) fn let_parties_work(
        &mut self,
        now: Now,
        around: &mut Surroundings<'_>,
    ) -> Result<bool, String> {
        let ns = now.instant.as_ns();
        let parties = &mut self.parties;
        if !parties.drive.is_reading() && !parties.has_new_room && self.reads_from <= ns {
            parties.has_new_room = true;
            let orders = parties.drive.note_changed();
            parties.obey(orders);
        }
        for step in 0..STEPS_MAX {
            let first = self.parties.random.below(COUNT as u64) as usize;
            let mut stepped = None;
            for party in (first..first + COUNT).map(|number| number % COUNT) {
                if self.parties.all[party].runs_at <= ns && self.step(party, now, around)? {
                    stepped = Some(party);
                    break;
                }
            }
            let Some(party) = stepped else {
                let is_late = self.parties.all.iter().any(|party| party.runs_at > ns);
                return if is_late {
                    Ok(step > 0)
                } else {
                    self.check(now, around.network).map(|()| step > 0)
                };
            };
            let count = self.parties.holder_count();
            if count > 1 {
                return Err(format!("{count} parties of {} have its connection", self.name));
            }
            if !self.parties.is_prompt && self.parties.random.percent(1) {
                self.parties.all[party].runs_at = ns + self.parties.random.below(LATE_NS);
            }
        }
        Err(format!("the parties of {} make steps without end", self.name))
    }

    /// The program has called the core. Before the call, the core had nothing to write
    /// (`was_idle`), and this was its next timer.
    pub(super) fn called(&mut self, was_idle: bool, due: Option<Instant>, now: Instant) {
        let parties = &mut self.parties;
        let has_output = !self.core.is_idle();
        if !has_output && self.core.next_timeout() == due {
            return;
        }
        let orders = if has_output && (!was_idle || parties.random.percent(70)) {
            let may_follow = parties.random.percent(50);
            match parties.drive.publishes(may_follow, || now) {
                Sending::Here => {
                    parties.all[PUBLISHER].doing = Doing::Working;
                    return;
                }
                Sending::Elsewhere(orders) => orders,
            }
        } else {
            parties.drive.note_changed()
        };
        parties.obey(orders);
    }

    /// Whether no party can make a step since the rest began. The steps of a party depend on the
    /// calls of the program, on times, and on whether the socket has bytes and room.
    pub(super) fn rests(&mut self, now: Now, network: &Network) -> bool {
        let is_over = |rest: &Rest| {
            rest.until.is_some_and(|at| at <= now.instant.as_ns()) || rest.state != self.state(now, network)
        };
        if self.rest.as_ref().is_some_and(is_over) {
            self.rest = None;
        }
        self.rest.is_some()
    }

    /// No party can make a step now.
    pub(super) fn begin_rest(&mut self, now: Now, network: &Network) {
        let (until, state) = (self.next_due(now.instant.as_ns()), self.state(now, network));
        self.rest = Some(Rest { until, state });
    }

    /// Whether the socket has bytes, and whether it has room.
    fn state(&self, now: Now, network: &Network) -> (bool, bool) {
        self.socket(now).map_or((false, false), |Socket { connection, site, ns }| {
            (network.is_readable(connection, site, ns), network.room(connection, site) > 0)
        })
    }

    /// The connection ends. A party learns of it as from its peer.
    pub(super) fn hang_up(&mut self) {
        self.rest = None;
        if let Some(stream) = &mut self.parties.stream {
            stream.has_ended = true;
        }
    }

    fn socket(&self, now: Now) -> Option<Socket> {
        let (connection, _) = self.connection?;
        Some(Socket { connection, site: self.site, ns: now.instant.as_ns() })
    }

    fn is_closed(&self) -> bool {
        matches!(self.core.state(), ConnectionState::Closed(_))
    }

    /// Whether the thread ends the client now.
    fn is_to_end(&self) -> bool {
        self.is_closed() && (self.connection.is_none() || self.core.wants_close())
    }

    fn remaining(&self) -> Remaining {
        let (is_closed, is_to_end) = (self.is_closed(), self.is_to_end());
        match &self.parties.stream {
            Some(stream) => {
                let is_written = stream.outgoing.is_empty();
                let has_output = is_written && !self.core.is_idle();
                Remaining {
                    has_work: self.parties.has_new_room || has_output || is_to_end,
                    has_unwritten: !is_written,
                    is_closed,
                    due: self.core.next_timeout(),
                }
            }
            None => Remaining {
                has_work: is_to_end,
                is_closed,
                due: self.core.poll_connect().map(|(_, at)| at),
                ..Remaining::default()
            },
        }
    }

    /// Makes the next step of a party. False: it can make none.
    fn step(&mut self, party: usize, now: Now, around: &mut Surroundings<'_>) -> Result<bool, String> {
        match (party, self.parties.all[party].doing) {
            (_, Doing::Nothing) if party != LOOP => return Ok(false),
            (_, Doing::Working) => self.work(party, now, around),
            (_, Doing::Holding) => self.hand_in(party, now, around)?,
            (THREAD, doing) => return Ok(self.step_thread(doing, now, around)),
            (LOOP, doing) => return Ok(self.step_loop(doing, now, around)),
            (PUBLISHER, _) => {
                self.parties.all[PUBLISHER].doing = Doing::Nothing;
                let remaining = self.remaining();
                let orders = self.parties.drive.publisher_leaves(now.instant, remaining);
                self.parties.obey(orders);
            }
            (caller, doing) => return Ok(self.step_caller(caller, doing, now, around)),
        }
        Ok(true)
    }

    fn step_thread(&mut self, doing: Doing, now: Now, around: &mut Surroundings<'_>) -> bool {
        let next = match doing {
            Doing::Asking(reported) => {
                let is_taken = self.parties.drive.thread_takes(reported);
                if is_taken { Doing::Working } else { Doing::Asleep(None) }
            }
            Doing::Done if self.is_to_end() => {
                self.lose(now, around);
                self.parties.has_ended = true;
                self.parties.announce();
                Doing::Nothing
            }
            Doing::Done if self.is_time_to_connect(now) => {
                self.connect(now, around);
                Doing::Working
            }
            Doing::Done => {
                let remaining = self.remaining();
                match self.parties.drive.thread_sleeps(now.instant, remaining) {
                    None => Doing::Working,
                    Some((orders, until)) => {
                        self.parties.obey(orders);
                        Doing::Asleep(until)
                    }
                }
            }
            Doing::Asleep(until) => {
                let Registration { number, interest } = self.parties.watched_for_thread;
                if self.is_reported(interest, now, around.network) {
                    self.parties.watched_for_thread.interest = Interest::default();
                    Doing::Asking(Some(number))
                } else if std::mem::take(&mut self.parties.is_notified)
                    || until.is_some_and(|at| at <= now.instant)
                {
                    Doing::Asking(None)
                } else {
                    return false;
                }
            }
            _ => return false,
        };
        self.parties.all[THREAD].doing = next;
        true
    }

    fn step_caller(&mut self, caller: usize, doing: Doing, now: Now, around: &mut Surroundings<'_>) -> bool {
        let is_over = self.parties.is_over(caller, now);
        let next = match doing {
            Doing::Asking(_) | Doing::Waiting if is_over => Doing::Nothing,
            Doing::Asking(_) => match self.parties.drive.caller_takes() {
                Some(orders) => {
                    self.parties.obey(orders);
                    Doing::Working
                }
                None if self.connection.is_some() && self.parties.is_meant(Canary::TwoReaders, 30) => {
                    Doing::Working
                }
                None => Doing::Waiting,
            },
            Doing::Done if is_over || self.is_closed() || self.connection.is_none() => {
                let remaining = self.remaining();
                let orders = self.parties.drive.caller_leaves(now.instant, remaining);
                if !self.parties.is_meant(Canary::ForgottenHandover, 20) {
                    self.parties.obey(orders);
                }
                // A caller that waits for the next connection asks again.
                if is_over { Doing::Nothing } else { Doing::Asking(None) }
            }
            Doing::Done => {
                let remaining = self.remaining();
                match self.parties.drive.caller_sleeps(now.instant, remaining) {
                    None => Doing::Working,
                    Some(interest) => {
                        self.parties.watched_by_caller = interest;
                        let until = self.parties.all[caller].until;
                        Doing::Asleep(Some(remaining.due.map_or(until, |due| due.min(until))))
                    }
                }
            }
            Doing::Asleep(until) => {
                let is_ready = self.is_reported(self.parties.watched_by_caller, now, around.network);
                let was_woken = std::mem::take(&mut self.parties.is_caller_woken);
                if !is_ready && !was_woken && until.is_none_or(|at| at > now.instant) {
                    return false;
                }
                self.parties.watched_by_caller = Interest::default();
                self.parties.drive.caller_wakes(is_ready);
                Doing::Working
            }
            _ => return false,
        };
        self.parties.all[caller].doing = next;
        true
    }

    fn step_loop(&mut self, doing: Doing, now: Now, around: &mut Surroundings<'_>) -> bool {
        let ns = now.instant.as_ns();
        match doing {
            Doing::Nothing => {
                let interest = Interest { readable: self.parties.watched_for_loop, writable: false };
                let is_busy = ns < self.parties.loop_busy_until;
                if is_busy || !self.is_reported(interest, now, around.network) {
                    return false;
                }
                if !self.parties.drive.loop_takes() {
                    return false;
                }
                self.parties.loop_read_size = 0;
                self.parties.all[LOOP].doing = Doing::Working;
            }
            Doing::Done => {
                self.parties.all[LOOP].doing = Doing::Nothing;
                let is_flooded = self.parties.loop_read_size >= LOOP_READ_SIZE;
                let remaining = self.remaining();
                let orders = self.parties.drive.loop_leaves(now.instant, remaining, is_flooded);
                self.parties.obey(orders);
                self.parties.lent_ns = ns;
                self.parties.lend(now.instant);
            }
            _ => return false,
        }
        true
    }

    /// Whether a poller reports the socket.
    fn is_reported(&mut self, interest: Interest, now: Now, network: &Network) -> bool {
        let Some((socket, stream)) = self.socket(now).zip(self.parties.stream.as_ref()) else { return false };
        let is_ready = interest != Interest::default() && stream.is_ready(interest, socket, network);
        let is_spurious = interest.readable && std::mem::take(&mut self.parties.is_spurious);
        self.parties.played.spurious += u64::from(is_spurious && !is_ready);
        is_ready || is_spurious
    }

    /// One write and one read of the party that has the connection.
    fn work(&mut self, party: usize, now: Now, around: &mut Surroundings<'_>) {
        self.parties.all[party].doing = Doing::Done;
        let Some(socket) = self.socket(now) else { return };
        if party == PUBLISHER {
            self.encode(now);
            self.take_events(now, around);
            self.parties.played.publisher_writes += u64::from(self.write(socket, around.network));
            return;
        }
        let is_full = self.reads_from > socket.ns;
        if is_full {
            self.core.handle_unread(now.instant);
        }
        self.parties.has_new_room = false;
        self.parties.drive.set_reading(!is_full);
        let may_read = self.parties.drive.may_read();
        let is_silent = self.core.handle_timeout(now.instant);
        let has_failed = self.parties.stream.as_ref().is_some_and(|stream| stream.has_failed);
        if is_silent || has_failed {
            return self.lose(now, around);
        }
        self.encode(now);
        self.take_events(now, around);
        let has_written = self.write(socket, around.network);
        if has_written {
            self.parties.all[party].doing = Doing::Working;
        }
        let is_enough = party == LOOP && self.parties.loop_read_size >= LOOP_READ_SIZE;
        if may_read && !is_enough {
            self.read(party, socket, now, around);
        }
    }

    /// The core puts its output into the stream, when the stream has written what it had.
    fn encode(&mut self, now: Now) {
        let Some(stream) = self.parties.stream.as_mut().filter(|stream| stream.outgoing.is_empty()) else {
            return;
        };
        self.core.poll_transmit(now.instant, &mut stream.outgoing);
        if let Program::Jobs(program) = &self.program {
            stream.outgoing = program.pass_frames(std::mem::take(&mut stream.outgoing));
        }
    }

    fn write(&mut self, socket: Socket, network: &mut Network) -> bool {
        let Some(stream) = &mut self.parties.stream else { return false };
        let has_written = stream.write(socket, network);
        self.parties.played.blocked += u64::from(has_written && !stream.outgoing.is_empty());
        has_written
    }

    fn read(&mut self, party: usize, socket: Socket, now: Now, around: &mut Surroundings<'_>) {
        let Parties { stream, random, canary, played, loop_read_size, all, drive, .. } = &mut self.parties;
        let Some(stream) = stream else { return };
        let size_max = match party {
            LOOP => LOOP_READ_SIZE - *loop_read_size,
            _ if random.percent(20) => 1 + random.below(500) as usize,
            _ => READ_SIZE,
        };
        let piece_size_max = if stream.is_decrypting { 1 + random.below(2_000) as usize } else { size_max };
        let forgets = *canary == Some(Canary::ForgottenBuffer);
        let Some((bytes, is_emptied)) =
            stream.read(socket, around.network, size_max, piece_size_max, forgets)
        else {
            self.parties.all[party].doing = Doing::Done;
            return self.lose(now, around);
        };
        if bytes.is_empty() {
            drive.note_emptied();
            return;
        }
        match party {
            THREAD => played.thread_reads += 1,
            LOOP => played.loop_reads += 1,
            _ => played.caller_reads += 1,
        }
        *loop_read_size += if party == LOOP { bytes.len() } else { 0 };
        let party = &mut all[party];
        (party.doing, party.held, party.is_emptied) = (Doing::Holding, bytes, is_emptied);
    }

    /// The core gets the bytes that a party has read.
    fn hand_in(&mut self, party: usize, now: Now, around: &mut Surroundings<'_>) -> Result<(), String> {
        let party = &mut self.parties.all[party];
        let (bytes, is_emptied) = (std::mem::take(&mut party.held), party.is_emptied);
        party.doing = Doing::Working;
        if is_emptied {
            self.parties.drive.note_emptied();
        }
        let Some((_, at)) = self.connection else { return Ok(()) };
        self.receive(bytes, at, now, around)?;
        if is_emptied {
            self.core.handle_emptied();
        }
        self.take_events(now, around);
        Ok(())
    }

    /// Whether the next attempt to connect is due.
    fn is_time_to_connect(&self, now: Now) -> bool {
        let is_due = self.core.poll_connect().is_some_and(|(_, at)| at <= now.instant);
        is_due && self.connection.is_none()
    }

    /// The thread has connected.
    pub(super) fn note_connected(&mut self) {
        let is_decrypting = self.parties.random.percent(30);
        self.parties.stream = Some(Stream { is_decrypting, ..Stream::default() });
        self.parties.watched_for_thread = UNWATCHED;
        self.parties.drive.note_connected();
    }

    /// The connection is over.
    fn lose(&mut self, now: Now, around: &mut Surroundings<'_>) {
        self.end_connection(now, around);
        self.parties.note_lost();
    }

    /// No party can make a step.
    ///
    /// # Errors
    /// Something is left that a party should have done.
    fn check(&self, now: Now, network: &Network) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{}: {what}, and every party sleeps", self.name));
        if self.parties.has_ended {
            return Ok(());
        }
        if self.is_to_end() {
            return wrong("the client has to end");
        }
        let Some((socket, stream)) = self.socket(now).zip(self.parties.stream.as_ref()) else {
            return if self.is_time_to_connect(now) { wrong("the client has to connect") } else { Ok(()) };
        };
        let is_full = self.reads_from > socket.ns;
        let is_unread = stream.is_readable(socket, network) || !stream.ready.is_empty();
        // An event loop that is busy reads later.
        let is_loop_busy = self.parties.watched_for_loop && socket.ns < self.parties.loop_busy_until;
        let is_left_to_loop = is_loop_busy && socket.ns < self.parties.lent_ns + LOAN_MAX.as_nanos() as u64;
        if is_unread && !is_full && !is_left_to_loop {
            return wrong("bytes are unread");
        }
        if stream.outgoing.is_empty() && !self.core.is_idle() {
            return wrong("output is not encoded");
        }
        if !stream.outgoing.is_empty() && network.room(socket.connection, socket.site) > 0 {
            return wrong("output is not written");
        }
        if self.core.next_timeout().is_some_and(|at| at <= now.instant) {
            return wrong("a timer is over");
        }
        Ok(())
    }
}
