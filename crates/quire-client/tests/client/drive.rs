//! The parties that drive the connection of a client, against a simple model: a socket, two
//! pollers, a thread, two callers, a publisher and an event loop. Each of them makes one small step
//! at a time, in any order.
//!
//! The world holds these rules after every step: at most one party has the connection. When no
//! party can make a step, no byte is unread, no output unsent and no timer due, and exactly one
//! party watches the socket. The parties make few steps for one event.
//!
//! The last test plants mistakes and sees that the rules find each of them.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use quire_client::drive::{Drive, Interest, LOAN_MAX, Orders, Registration, Remaining, Sending, Sleeper};
use quire_types::time::Instant;

/// Bytes that one read takes at most.
const READ_SIZE: u32 = 4;

/// The pause before the next attempt to connect.
const PAUSE: Duration = Duration::from_millis(10);

/// A new connection is at the poller, which watches it for nothing.
const UNWATCHED: Registration =
    Registration { number: 0, interest: Interest { readable: false, writable: false } };

/// More steps than any event needs.
const STEPS_MAX: usize = 300;

/// The current action of a party.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Nothing,
    /// It is about to ask for the connection. The poller has reported the registration with this
    /// number to it.
    Asking(Option<usize>),
    /// It has the connection, and works.
    Working,
    /// It has done what it could.
    Done,
    /// It sleeps at the socket until this time. Callers keep the connection meanwhile.
    Asleep(Option<Instant>),
    /// It waits for what other parties announce.
    Waiting,
}

const THREAD: usize = 0;
const CALLERS: [usize; 2] = [1, 2];
const PUBLISHER: usize = 3;
const LOOP: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    LeaverDoesNotHandOver,
    LoanIsNotEnded,
    WakeUpIsLost,
    BufferedBytesAreForgotten,
    TimerIsForgotten,
    TwoPartiesWork,
    ThreadIsNotWatchedFor,
}

#[derive(Clone, Debug)]
enum Act {
    Step(usize),
    Arrive(u32),
    Block(bool),
    Wait(usize),
    GiveUp(usize),
    Publish(bool),
    Change,
    Timer(u64),
    Fill,
    MakeRoom,
    LoopWaits,
    LoopGone,
    LoopBusy(bool),
    ServerCloses,
    Refuse(bool),
    Close,
    Pass(u64),
}

struct World {
    drive: Drive,
    mistake: Option<Mistake>,
    now: Instant,
    doing: [Doing; 5],
    bytes_in_loop_turn: u32,

    is_open: bool,
    /// It hands out two bytes at a time, and takes all from the socket at once.
    is_decrypting: bool,
    in_socket: u32,
    in_stream: u32,
    has_hung_up: bool,
    is_blocked: bool,
    watched_for_thread: Registration,
    /// A hang-up is reported once for each registration.
    reports_hang_up: bool,
    watched_for_loop: bool,
    watched_by_caller: Interest,
    is_notified: bool,
    is_caller_woken: bool,

    has_output: bool,
    has_unwritten: bool,
    /// The next bytes that are read take all room.
    fills: bool,
    is_full: bool,
    has_new_room: bool,
    timer: Option<Instant>,
    connect_at: Instant,
    is_refusing: bool,
    is_closed: bool,
    has_ended: bool,
    is_loop_busy: bool,
    is_loop_gone: bool,
    gives_up: [bool; 5],
    is_answered: [bool; 5],
}

impl World {
    fn new(is_decrypting: bool, mistake: Option<Mistake>) -> Self {
        World {
            drive: Drive::default(),
            mistake,
            now: Instant::from_ns(1_000_000_000),
            doing: [Doing::Asking(None), Doing::Nothing, Doing::Nothing, Doing::Nothing, Doing::Nothing],
            bytes_in_loop_turn: 0,
            is_open: false,
            is_decrypting,
            in_socket: 0,
            in_stream: 0,
            has_hung_up: false,
            is_blocked: false,
            watched_for_thread: UNWATCHED,
            reports_hang_up: false,
            watched_for_loop: false,
            watched_by_caller: Interest::default(),
            is_notified: false,
            is_caller_woken: false,
            has_output: false,
            has_unwritten: false,
            fills: false,
            is_full: false,
            has_new_room: false,
            timer: None,
            connect_at: Instant::default(),
            is_refusing: false,
            is_closed: false,
            has_ended: false,
            is_loop_busy: false,
            is_loop_gone: false,
            gives_up: [false; 5],
            is_answered: [false; 5],
        }
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Step(party) => {
                self.step(party);
            }
            Act::Arrive(count) if self.is_open && !self.has_hung_up => self.in_socket += count,
            Act::Arrive(_) => (),
            Act::Block(is_blocked) => self.is_blocked = is_blocked,
            Act::Wait(caller) => {
                if self.doing[caller] == Doing::Nothing && !self.is_closed {
                    (self.is_answered[caller], self.gives_up[caller]) = (false, false);
                    self.doing[caller] = Doing::Asking(None);
                }
            }
            Act::GiveUp(caller) => self.gives_up[caller] = true,
            Act::Publish(may_follow) => self.publish(may_follow),
            Act::Change => {
                self.has_output = true;
                self.changed();
            }
            Act::Timer(milliseconds) => {
                self.timer = Some(self.now + Duration::from_millis(milliseconds));
                self.changed();
            }
            Act::Fill => self.fills = true,
            Act::MakeRoom => {
                self.fills = false;
                if std::mem::take(&mut self.is_full) {
                    self.has_new_room = true;
                    self.changed();
                }
            }
            Act::LoopWaits => {
                self.is_loop_gone = false;
                let orders = self.drive.loop_waits(self.now);
                self.obey(orders);
            }
            Act::LoopGone => {
                self.is_loop_gone = true;
                let orders = self.drive.loop_leaves_socket(self.now);
                self.obey(orders);
            }
            Act::LoopBusy(is_busy) => self.is_loop_busy = is_busy,
            Act::ServerCloses => self.has_hung_up = self.is_open,
            Act::Refuse(is_refusing) => self.is_refusing = is_refusing,
            Act::Close => {
                self.is_closed = true;
                self.changed();
            }
            Act::Pass(milliseconds) => self.now = self.now + Duration::from_millis(milliseconds),
        }
    }

    fn changed(&mut self) {
        let mut orders = self.drive.note_changed();
        if self.mistake == Some(Mistake::WakeUpIsLost) {
            orders.wake = None;
        }
        self.obey(orders);
    }

    fn publish(&mut self, may_follow: bool) {
        if self.doing[PUBLISHER] != Doing::Nothing || self.is_closed {
            return;
        }
        self.has_output = true;
        let now = self.now;
        match self.drive.publishes(may_follow, || now) {
            Sending::Here => {
                assert!(self.is_open && !self.has_unwritten, "the socket takes no output");
                self.doing[PUBLISHER] = Doing::Working;
            }
            Sending::Elsewhere(orders) => self.obey(orders),
        }
    }

    fn obey(&mut self, orders: Orders) {
        if let Some(registration) = orders.watch_for_thread
            && self.mistake != Some(Mistake::ThreadIsNotWatchedFor)
        {
            assert!(self.is_open, "there is no socket to watch");
            self.watched_for_thread = registration;
            self.reports_hang_up = true;
        }
        match orders.watch_for_loop {
            Some(true) => {
                assert!(!self.watched_for_loop, "the loop watches already");
                self.watched_for_loop = true;
            }
            Some(false) if self.mistake != Some(Mistake::LoanIsNotEnded) => self.watched_for_loop = false,
            _ => (),
        }
        match orders.wake {
            Some(Sleeper::Thread) => self.is_notified = true,
            Some(Sleeper::Caller) => {
                let is_asleep = |caller: &usize| matches!(self.doing[*caller], Doing::Asleep(_));
                assert!(CALLERS.iter().any(is_asleep) && !self.is_caller_woken, "no caller sleeps");
                self.is_caller_woken = true;
            }
            None => (),
        }
    }

    fn remaining(&self) -> Remaining {
        let is_said = !self.has_output && !self.has_unwritten;
        if !self.is_open {
            let due = (!self.is_closed).then_some(self.connect_at);
            return Remaining { has_work: self.is_closed, due, ..Remaining::default() };
        }
        Remaining {
            has_work: self.has_new_room
                || (self.has_output && !self.has_unwritten)
                || (self.is_closed && is_said),
            has_unwritten: self.has_unwritten,
            is_closed: self.is_closed,
            due: self.timer.filter(|_| self.mistake != Some(Mistake::TimerIsForgotten)),
        }
    }

    fn is_readable(&self) -> bool {
        self.in_socket > 0 || self.has_hung_up
    }

    /// Whether a poller that watches for this reports the socket.
    fn is_ready(&self, interest: Interest) -> bool {
        (interest.readable && self.is_readable()) || (interest.writable && !self.is_blocked)
    }

    /// Makes the next step of a party. False: it can make none.
    fn step(&mut self, party: usize) -> bool {
        match (party, self.doing[party]) {
            (_, Doing::Working) => {
                if party != PUBLISHER && self.is_open && self.turn(party) {
                    return true;
                }
                if party == PUBLISHER {
                    self.write();
                }
                self.doing[party] = Doing::Done;
            }
            (THREAD, _) => return self.step_thread(),
            (PUBLISHER, Doing::Done) => {
                self.doing[PUBLISHER] = Doing::Nothing;
                let mut remaining = self.remaining();
                remaining.has_work |= self.is_broken();
                let orders = self.drive.publisher_leaves(self.now, remaining);
                self.obey(orders);
            }
            (LOOP, Doing::Nothing) => {
                if self.is_loop_busy || !self.watched_for_loop || !self.is_readable() {
                    return false;
                }
                self.bytes_in_loop_turn = 0;
                match self.drive.loop_takes() {
                    true => self.doing[LOOP] = Doing::Working,
                    false => return false,
                }
            }
            (LOOP, Doing::Done) => {
                self.doing[LOOP] = Doing::Nothing;
                let is_flooded = self.bytes_in_loop_turn >= READ_SIZE;
                let orders = self.drive.loop_leaves(self.now, self.remaining(), is_flooded);
                self.obey(orders);
                let is_found = self.mistake == Some(Mistake::LoanIsNotEnded);
                assert!(!is_flooded || !self.watched_for_loop || is_found, "the loop is flooded again");
            }
            (PUBLISHER | LOOP, _) => return false,
            (caller, _) => return self.step_caller(caller),
        }
        true
    }

    fn step_thread(&mut self) -> bool {
        match self.doing[THREAD] {
            Doing::Asking(reported) => {
                let is_taken = self.drive.thread_takes(reported);
                self.doing[THREAD] = if is_taken { Doing::Working } else { Doing::Asleep(None) };
            }
            Doing::Done if self.is_closed && !(self.is_open && (self.has_output || self.has_unwritten)) => {
                if self.is_open {
                    self.lose();
                }
                self.doing[THREAD] = Doing::Nothing;
                self.has_ended = true;
                self.announce();
            }
            Doing::Done => {
                if !self.is_open && self.connect_at <= self.now {
                    self.connect();
                    self.doing[THREAD] = Doing::Working;
                    return true;
                }
                self.doing[THREAD] = match self.drive.thread_sleeps(self.now, self.remaining()) {
                    None => Doing::Working,
                    Some((orders, until)) => {
                        self.obey(orders);
                        Doing::Asleep(until)
                    }
                };
            }
            Doing::Asleep(until) => {
                let has_hung_up = self.reports_hang_up && self.has_hung_up;
                if self.is_open && (has_hung_up || self.is_ready(self.watched_for_thread.interest)) {
                    self.watched_for_thread.interest = Interest::default();
                    self.reports_hang_up = false;
                    self.doing[THREAD] = Doing::Asking(Some(self.watched_for_thread.number));
                } else if std::mem::take(&mut self.is_notified) || until.is_some_and(|at| at <= self.now) {
                    self.doing[THREAD] = Doing::Asking(None);
                } else {
                    return false;
                }
            }
            _ => return false,
        }
        true
    }

    fn step_caller(&mut self, caller: usize) -> bool {
        let is_over = self.is_answered[caller] || self.gives_up[caller] || self.has_ended;
        match self.doing[caller] {
            Doing::Asking(_) | Doing::Waiting if is_over => self.doing[caller] = Doing::Nothing,
            Doing::Asking(_) => match self.drive.caller_takes() {
                Some(orders) => {
                    self.obey(orders);
                    self.doing[caller] = Doing::Working;
                }
                None if self.mistake == Some(Mistake::TwoPartiesWork) && self.is_open => {
                    self.doing[caller] = Doing::Working;
                }
                None => self.doing[caller] = Doing::Waiting,
            },
            Doing::Done if is_over || self.is_closed || !self.is_open => {
                // A caller that waits for the end of the client asks again.
                self.doing[caller] = if is_over { Doing::Nothing } else { Doing::Asking(None) };
                let orders = self.drive.caller_leaves(self.now, self.remaining());
                if self.mistake != Some(Mistake::LeaverDoesNotHandOver) {
                    self.obey(orders);
                }
            }
            Doing::Done => match self.drive.caller_sleeps(self.now, self.remaining()) {
                None => self.doing[caller] = Doing::Working,
                Some(interest) => {
                    self.watched_by_caller = interest;
                    self.doing[caller] = Doing::Asleep(self.remaining().due);
                }
            },
            Doing::Asleep(until) => {
                let is_watching = self.watched_by_caller != Interest::default();
                let is_ready = self.is_ready(self.watched_by_caller) || (is_watching && self.has_hung_up);
                let is_due = until.is_some_and(|at| at <= self.now) || self.gives_up[caller];
                let was_woken = std::mem::take(&mut self.is_caller_woken);
                if !is_ready && !is_due && !was_woken {
                    return false;
                }
                self.drive.caller_wakes(is_ready);
                self.watched_by_caller = Interest::default();
                self.doing[caller] = Doing::Working;
            }
            _ => return false,
        }
        true
    }

    /// One write and one read, as the party that has the connection makes them. False: neither did
    /// anything.
    fn turn(&mut self, party: usize) -> bool {
        self.has_new_room = false;
        self.drive.set_reading(!self.is_full);
        self.timer = self.timer.filter(|at| *at > self.now);
        let mut has_progressed = self.write();
        if self.is_broken() {
            self.lose();
            return false;
        }
        let may_continue = party != LOOP || self.bytes_in_loop_turn < READ_SIZE;
        if may_continue && self.drive.may_read() {
            let size = self.read();
            if !self.is_open {
                return false;
            }
            has_progressed |= size > 0;
            if party == LOOP {
                self.bytes_in_loop_turn += size;
            }
            let is_forgotten = self.mistake == Some(Mistake::BufferedBytesAreForgotten);
            if size < READ_SIZE && (self.in_stream == 0 || is_forgotten) {
                self.drive.note_emptied();
            }
        }
        has_progressed
    }

    fn write(&mut self) -> bool {
        if self.is_open && self.has_output && !self.has_unwritten {
            (self.has_output, self.has_unwritten) = (false, true);
        }
        let has_written = self.has_unwritten && !self.is_blocked && !self.has_hung_up;
        self.has_unwritten &= !has_written;
        has_written
    }

    /// Whether a write has failed.
    fn is_broken(&self) -> bool {
        self.has_unwritten && self.has_hung_up
    }

    fn read(&mut self) -> u32 {
        if self.in_socket + self.in_stream == 0 {
            if self.has_hung_up {
                self.lose();
            }
            return 0;
        }
        let size = if self.is_decrypting {
            self.in_stream += std::mem::take(&mut self.in_socket);
            let size = self.in_stream.min(2);
            self.in_stream -= size;
            size
        } else {
            let size = self.in_socket.min(READ_SIZE);
            self.in_socket -= size;
            size
        };
        self.is_answered = [true; 5];
        self.is_full |= std::mem::take(&mut self.fills);
        size
    }

    fn connect(&mut self) {
        if self.is_refusing {
            self.connect_at = self.now + PAUSE;
            return;
        }
        (self.is_open, self.has_hung_up, self.is_blocked) = (true, false, false);
        // A handshake may take more from the socket than it needs.
        self.in_stream = u32::from(self.is_decrypting);
        self.watched_for_thread = UNWATCHED;
        self.reports_hang_up = true;
        self.drive.note_connected();
        self.announce();
    }

    fn lose(&mut self) {
        self.is_open = false;
        (self.in_socket, self.in_stream, self.has_unwritten) = (0, 0, false);
        (self.watched_for_loop, self.watched_for_thread) = (false, UNWATCHED);
        self.timer = None;
        self.connect_at = self.now + PAUSE;
        self.drive.note_lost();
        self.announce();
    }

    /// Callers that wait for other parties look again.
    fn announce(&mut self) {
        for caller in CALLERS {
            if self.doing[caller] == Doing::Waiting {
                self.doing[caller] = Doing::Asking(None);
            }
        }
    }

    fn check_holders(&self) -> Result<(), TestCaseError> {
        let is_holding = |party: &usize| match self.doing[*party] {
            Doing::Working | Doing::Done => true,
            Doing::Asleep(_) => *party != THREAD,
            _ => false,
        };
        let holders: Vec<_> = (0..5).filter(is_holding).collect();
        prop_assert!(holders.len() <= 1, "parties {holders:?} have the connection");
        Ok(())
    }

    /// Lets every party make its steps until none can make one.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..STEPS_MAX {
            if (0..5).all(|party| !self.step(party)) {
                return Ok(());
            }
            self.check_holders()?;
        }
        Err(TestCaseError::fail("the parties make steps without end"))
    }

    /// The conditions that hold when no party can make a step. `is_loan_over`: a loan of that
    /// length has passed.
    fn check_settled(&self, is_loan_over: bool) -> Result<(), TestCaseError> {
        if self.is_closed {
            let is_saying = self.has_unwritten && self.is_blocked;
            prop_assert!(self.has_ended || is_saying, "the client does not end");
            return Ok(());
        }
        if !self.is_open {
            prop_assert!(self.connect_at > self.now, "the client does not connect");
            return Ok(());
        }
        let is_unread = self.in_socket > 0 || self.has_hung_up;
        let is_left_to_loop = self.watched_for_loop && self.is_loop_busy && !is_loan_over;
        prop_assert!(!self.watched_for_loop || !self.is_loop_gone, "the loop does not wait");
        prop_assert!(self.is_full || is_left_to_loop || !is_unread, "bytes are in the socket");
        prop_assert!(self.is_full || self.in_stream == 0, "bytes are in the stream");
        prop_assert!(!self.has_output || self.has_unwritten, "output is not encoded");
        prop_assert!(!self.has_unwritten || self.is_blocked, "output is not written");
        prop_assert!(self.timer.is_none_or(|at| at > self.now), "a timer is over");
        let is_thread_asleep = matches!(self.doing[THREAD], Doing::Asleep(_));
        let watchers = [
            self.watched_for_thread.interest.readable && is_thread_asleep,
            self.watched_for_loop,
            self.watched_by_caller.readable,
        ];
        let is_driven = CALLERS.iter().any(|caller| matches!(self.doing[*caller], Doing::Asleep(_)));
        let expected = match () {
            () if self.is_full => [false; 3],
            () if is_driven => [false, false, true],
            () if self.watched_for_loop => [false, true, false],
            () => [true, false, false],
        };
        prop_assert_eq!(watchers, expected, "the thread, the loop, a caller");
        Ok(())
    }
}

fn run(is_decrypting: bool, acts: &[Act], mistake: Option<Mistake>) -> Result<(), TestCaseError> {
    let mut world = World::new(is_decrypting, mistake);
    world.settle()?;
    for act in acts {
        world.act(act);
        world.check_holders()?;
    }
    world.settle()?;
    world.check_settled(false)?;
    // A loan to a busy loop ends.
    world.act(&Act::Pass(LOAN_MAX.as_millis() as u64));
    world.settle()?;
    world.check_settled(true)?;
    if let Some(timer) = world.timer.filter(|_| world.is_open) {
        world.now = world.now.max(timer);
        world.settle()?;
        world.check_settled(false)?;
    }
    Ok(())
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        24 => (0usize..5).prop_map(Act::Step),
        6 => (1u32..10).prop_map(Act::Arrive),
        4 => (1usize..3).prop_map(Act::Wait),
        2 => (1usize..3).prop_map(Act::GiveUp),
        4 => any::<bool>().prop_map(Act::Publish),
        2 => Just(Act::Change),
        2 => (1u64..200).prop_map(Act::Timer),
        2 => any::<bool>().prop_map(Act::Block),
        3 => Just(Act::Fill),
        2 => Just(Act::MakeRoom),
        8 => Just(Act::LoopWaits),
        3 => Just(Act::LoopGone),
        2 => any::<bool>().prop_map(Act::LoopBusy),
        1 => Just(Act::ServerCloses),
        1 => any::<bool>().prop_map(Act::Refuse),
        1 => (0u64..150).prop_map(Act::Pass),
    ]
}

fn any_acts() -> impl Strategy<Value = Vec<Act>> {
    let ending = prop_oneof![4 => Just(None), 1 => Just(Some(Act::Close))];
    let acts = proptest::collection::vec(any_act(), 0..80);
    let after = proptest::collection::vec(any_act(), 0..10);
    (acts, ending, after)
        .prop_map(|(acts, ending, after)| acts.into_iter().chain(ending).chain(after).collect())
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(20_000) })]

    #[test]
    fn one_party_drives_and_no_byte_output_or_timer_is_left(
        is_decrypting in any::<bool>(),
        acts in any_acts(),
    ) {
        run(is_decrypting, &acts, None)?;
    }
}

#[test]
fn a_thread_that_found_the_loop_reading_still_ends_the_loan() {
    let steps = |party, count| std::iter::repeat_n(Act::Step(party), count);
    let mut acts = vec![Act::LoopWaits, Act::LoopWaits];
    acts.extend(steps(THREAD, 5));
    acts.extend([Act::Pass(60), Act::Arrive(1)]);
    acts.extend(steps(LOOP, 5));
    // The thread wakes up for the end of the loan, which is longer now, while the loop reads.
    acts.extend([Act::Pass(50), Act::Arrive(1), Act::Step(LOOP)]);
    acts.extend(steps(THREAD, 2));
    acts.extend(steps(LOOP, 4));
    acts.extend([Act::LoopBusy(true), Act::Arrive(1)]);
    run(false, &acts, None).unwrap();
}

#[test]
fn a_registration_that_the_thread_has_not_seen_is_not_forgotten() {
    // The thread has an event of the socket, and has not asked for the connection yet. The loop
    // begins and ends to watch, so that the poller of the thread watches again.
    let mut acts = vec![Act::Timer(43)];
    acts.extend(std::iter::repeat_n(Act::Step(THREAD), 4));
    acts.extend([
        Act::Arrive(6),
        Act::Step(THREAD),
        Act::LoopWaits,
        Act::LoopWaits,
        Act::LoopGone,
        Act::Fill,
    ]);
    run(true, &acts, None).unwrap();
}

#[test]
fn each_planted_mistake_is_found() {
    let mistakes = [
        Mistake::LeaverDoesNotHandOver,
        Mistake::LoanIsNotEnded,
        Mistake::WakeUpIsLost,
        Mistake::BufferedBytesAreForgotten,
        Mistake::TimerIsForgotten,
        Mistake::TwoPartiesWork,
        Mistake::ThreadIsNotWatchedFor,
    ];
    for mistake in mistakes {
        let config =
            Config { cases: 5_000, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(
            config,
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let result = runner.run(&(any::<bool>(), any_acts()), |(is_decrypting, acts)| {
            run(is_decrypting, &acts, Some(mistake))
        });
        assert!(result.is_err(), "{mistake:?} is not found");
    }
}
