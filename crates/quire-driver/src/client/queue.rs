//! The messages between the client's thread and the threads that take them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use quire_client::{Failure, Message};

use super::receive_limit::Room;

/// The messages of one subscription, or of several in the order in which they arrived. Their size
/// is limited by `receive_size_max` of the client.
pub struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    room: Arc<Room>,
    /// A subscription that feeds it waits for room.
    is_full: AtomicBool,
    /// Messages that were taken and that the program does not have yet.
    ahead_count: AtomicU64,
    /// A replay was completed. At the last check, the program did not have its last message.
    is_completing: AtomicBool,
}

#[derive(Default)]
struct QueueState {
    messages: VecDeque<Message>,
    /// Bytes of `messages`.
    size: usize,
    /// All messages that ever arrived, and those that were taken.
    pushed_count: u64,
    taken_count: u64,
    completed: Vec<Completed>,
    ended: HashMap<u32, Ended>,
    /// The client is closed: no receiver gets anything more.
    is_closed: bool,
    /// The number of waiting threads. Without one, no wake-up is needed.
    waiters: usize,
}

/// The end of a replay, or of the result of a query.
struct Completed {
    number: u32,
    /// The number of messages that had reached the queue by then.
    behind: u64,
    /// Whether [`Queue::handed`] returned it.
    is_passed: bool,
    /// The same for the last result of a query that was repeated after a reconnect. `None`: the
    /// query runs again.
    behind_last: Option<u64>,
    /// For a query: the number of records that match it.
    total: Option<u64>,
}

/// The end of a subscription.
struct Ended {
    failure: Option<Failure>,
    /// The number of messages that had reached the queue by then.
    behind: u64,
    /// Whether [`Queue::take_passed`] returned it.
    is_passed: bool,
    /// The user makes no more calls about the subscription.
    is_forgotten: bool,
}

/// The result of taking.
#[derive(Debug)]
pub enum Taken {
    /// At least one message.
    Messages(Vec<Message>),
    /// None in time.
    Nothing,
    /// No message, and there will be no more: the subscription has ended. `None` = the user ended
    /// it, or it reached the end of its range.
    Ended(Option<Failure>),
}

/// No subscription has this number. A thread that takes from a queue that several subscriptions
/// share uses it.
pub const NO_SUBSCRIPTION: u32 = 0;

/// The bytes that a message counts against the limit in addition to its data.
const MESSAGE_OVERHEAD_SIZE: usize = 128;

impl Queue {
    pub(super) fn new(room: Arc<Room>) -> Self {
        Queue {
            state: Mutex::default(),
            changed: Condvar::new(),
            room,
            is_full: AtomicBool::new(false),
            ahead_count: AtomicU64::new(0),
            is_completing: AtomicBool::new(false),
        }
    }

    /// Takes up to `count_max` messages of the subscription `number`'s queue, waiting up to
    /// `timeout` for the first. They do not pass the end of a replay that has completed. Call
    /// [`Queue::handed`] when the program has them.
    pub fn take(&self, number: u32, count_max: usize, timeout: Duration) -> Taken {
        let mut state = self.state.lock();
        let mut deadline = None;
        loop {
            if !state.messages.is_empty() {
                let count = count_max.min(state.messages.len()).min(state.count_to_next_completed());
                let messages: Vec<Message> = state.messages.drain(..count).collect();
                state.taken_count += messages.len() as u64;
                self.ahead_count.fetch_add(messages.len() as u64, Ordering::AcqRel);
                let before = state.size;
                state.size -= messages.iter().map(size_of_message).sum::<usize>();
                self.room.changed(before, state.size);
                return Taken::Messages(messages);
            }
            if let Some(ended) = state.end_of(number) {
                return Taken::Ended(ended);
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + timeout);
            state.waiters += 1;
            let timed_out = self.changed.wait_until(&mut state, deadline).timed_out();
            state.waiters -= 1;
            let is_over = timed_out || (number == NO_SUBSCRIPTION && state.has_passed());
            if is_over && state.messages.is_empty() && state.end_of(number).is_none() {
                return Taken::Nothing;
            }
        }
    }

    /// The ended subscriptions whose messages were all taken, each once, with the failure that
    /// ended it. A thread that takes under [`NO_SUBSCRIPTION`] is woken for them.
    pub fn take_passed(&self) -> Vec<(u32, Option<Failure>)> {
        let mut state = self.state.lock();
        let taken_count = state.taken_count;
        let mut passed = Vec::new();
        state.ended.retain(|number, ended| {
            if !ended.is_passed && ended.behind <= taken_count {
                ended.is_passed = true;
                passed.push((*number, ended.failure.clone()));
            }
            !(ended.is_passed && ended.is_forgotten)
        });
        passed
    }

    /// Whether [`Queue::take_passed`] would return any subscription.
    pub fn has_passed(&self) -> bool {
        self.state.lock().has_passed()
    }

    /// Whether there will be no more messages of the subscription. For [`NO_SUBSCRIPTION`]: whether
    /// [`Queue::take`] returns for an end.
    pub(super) fn is_over(&self, number: u32) -> bool {
        let state = self.state.lock();
        state.end_of(number).is_some() || (number == NO_SUBSCRIPTION && state.has_passed())
    }

    /// Whether [`Queue::take`] would not wait.
    pub(super) fn has_news(&self, number: u32) -> bool {
        let has_messages = !self.state.lock().messages.is_empty();
        has_messages || self.is_over(number)
    }

    /// Messages that wait to be taken.
    #[allow(clippy::len_without_is_empty)] // a figure for a report
    pub fn len(&self) -> usize {
        self.state.lock().messages.len()
    }

    /// The program got `count` of the messages that were taken. True when the last message of a
    /// replay was among them. The caller then wakes the threads that wait for the end of the
    /// replay.
    pub fn handed(&self, count: u64) -> bool {
        self.ahead_count.fetch_sub(count, Ordering::AcqRel);
        if !self.is_completing.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state.lock();
        let handed_count = self.handed_count(&state);
        let mut is_passed = false;
        for completed in state.completed.iter_mut().filter(|completed| completed.behind <= handed_count) {
            is_passed |= !std::mem::replace(&mut completed.is_passed, true);
        }
        if state.completed.iter().all(|completed| completed.is_passed) {
            self.is_completing.store(false, Ordering::Release);
        }
        self.wake(&state);
        is_passed
    }

    /// Whether the replay of the subscription has caught up with the live stream as far as it was
    /// received, or the result of its query has arrived.
    pub fn is_caught_up(&self, number: u32) -> bool {
        self.state.lock().completed_of(number).is_some()
    }

    /// Waits until it has; false when `timeout` passed first or the subscription ended before.
    pub fn wait_caught_up(&self, number: u32, timeout: Duration) -> bool {
        self.wait_until(number, timeout, |state| state.completed_of(number).is_some())
    }

    /// Whether the replay of the subscription has caught up with the live stream, and the program
    /// has all its messages.
    pub fn is_completed(&self, number: u32) -> bool {
        self.has_completed(&self.state.lock(), number)
    }

    /// Waits until it has; false when `timeout` passed first or the subscription ended before it
    /// had caught up.
    pub fn wait_completed(&self, number: u32, timeout: Duration) -> bool {
        self.wait_until(number, timeout, |state| self.has_completed(state, number))
    }

    /// Waits until `is_so`, which can become true after a replay has caught up, or as long as its
    /// subscription has not ended.
    fn wait_until(&self, number: u32, timeout: Duration, is_so: impl Fn(&QueueState) -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        while !is_so(&state) && (state.completed_of(number).is_some() || state.end_of(number).is_none()) {
            state.waiters += 1;
            let timed_out = self.changed.wait_until(&mut state, deadline).timed_out();
            state.waiters -= 1;
            if timed_out {
                break;
            }
        }
        is_so(&state)
    }

    fn has_completed(&self, state: &QueueState, number: u32) -> bool {
        state.completed_of(number).is_some_and(|completed| completed.behind <= self.handed_count(state))
    }

    /// Messages that the program has.
    fn handed_count(&self, state: &QueueState) -> u64 {
        state.taken_count - self.ahead_count.load(Ordering::Acquire)
    }

    pub(super) fn push(&self, messages: Vec<Message>) {
        let mut state = self.state.lock();
        let before = state.size;
        state.size += messages.iter().map(size_of_message).sum::<usize>();
        self.room.changed(before, state.size);
        state.pushed_count += messages.len() as u64;
        state.messages.extend(messages);
        self.wake(&state);
    }

    /// The replay of the subscription has caught up, or its result is complete, for the first time
    /// or after a reconnect.
    pub(super) fn complete(&self, number: u32, total: Option<u64>) {
        let mut state = self.state.lock();
        let behind = state.pushed_count;
        // For a queue, the server does not send it.
        let total = total.map(|total| total.max(behind));
        match state.completed.iter_mut().find(|completed| completed.number == number) {
            Some(completed) => completed.behind_last = Some(behind),
            None => {
                let behind_last = Some(behind);
                let completed = Completed { number, behind, is_passed: false, behind_last, total };
                state.completed.push(completed);
                self.is_completing.store(true, Ordering::Release);
            }
        }
        self.wake(&state);
    }

    /// The query of the subscription is repeated: until it is complete, the program may miss
    /// changes.
    pub(super) fn outdate(&self, number: u32) {
        let mut state = self.state.lock();
        if let Some(completed) = state.completed.iter_mut().find(|completed| completed.number == number) {
            completed.behind_last = None;
        }
    }

    /// The number of records that match the query, when its last record has arrived.
    pub fn total(&self, number: u32) -> Option<u64> {
        self.state.lock().completed_of(number)?.total
    }

    /// Whether the last result of the query is complete, and the program has all of it.
    pub fn is_current(&self, number: u32) -> bool {
        let state = self.state.lock();
        let behind = state.completed_of(number).and_then(|completed| completed.behind_last);
        behind.is_some_and(|behind| behind <= self.handed_count(&state))
    }

    pub(super) fn end(&self, number: u32, failure: Option<Failure>) {
        let mut state = self.state.lock();
        let behind = state.pushed_count;
        let ended = Ended { failure, behind, is_passed: false, is_forgotten: false };
        state.ended.entry(number).or_insert(ended);
        self.wake(&state);
    }

    /// No more messages arrive, because the client has ended or takes no more. The messages here
    /// can still be taken.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.wake(&state);
    }

    /// The user takes no more messages of the subscription. Its waiting messages are dropped.
    pub fn discard(&self, number: u32) {
        let mut state = self.state.lock();
        let dropped = std::mem::take(&mut state.messages);
        state.taken_count += dropped.len() as u64;
        let before = std::mem::take(&mut state.size);
        self.room.changed(before, 0);
        drop(state);
        self.end(number, None);
    }

    /// Drops the messages that the program must not see any more. Nothing else changes for the
    /// subscriptions that share the queue.
    pub(super) fn drop_over(&self) {
        let mut state = self.state.lock();
        let before = state.size;
        let taken_count = state.taken_count;
        let (mut place, mut dropped) = (taken_count, Vec::new());
        state.messages.retain(|message| {
            place += 1;
            let is_over = message.lease().is_some_and(|lease| lease.is_settled_or_over());
            if is_over {
                dropped.push((place, size_of_message(message)));
            }
            !is_over
        });
        if dropped.is_empty() {
            return;
        }
        state.size -= dropped.iter().map(|(_, size)| size).sum::<usize>();
        self.room.changed(before, state.size);
        let earlier = |behind: u64| behind - dropped.partition_point(|(place, _)| *place <= behind) as u64;
        let QueueState { completed, ended, pushed_count, .. } = &mut *state;
        for completed in completed {
            completed.behind = earlier(completed.behind);
            completed.behind_last = completed.behind_last.map(earlier);
        }
        ended.values_mut().for_each(|ended| ended.behind = earlier(ended.behind));
        *pushed_count = earlier(*pushed_count);
        self.wake(&state);
    }

    /// The user makes no more calls about a subscription.
    pub fn forget(&self, number: u32) {
        let mut state = self.state.lock();
        state.completed.retain(|completed| completed.number != number);
        if let Some(ended) = state.ended.get_mut(&number) {
            ended.is_forgotten = true;
        }
    }

    /// Whether it holds more than its share of the room.
    pub(super) fn is_over_share(&self) -> bool {
        self.room.is_over_share(self.state.lock().size)
    }

    /// Whether a queue that was full may continue.
    pub(super) fn has_room(&self) -> bool {
        self.room.is_under_half(self.state.lock().size)
    }

    pub(super) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Release);
    }

    /// Whether a subscription waits for room, and there is room.
    pub(super) fn is_awaited(&self) -> bool {
        self.is_full.load(Ordering::Acquire) && self.has_room()
    }

    fn wake(&self, state: &QueueState) {
        if state.waiters > 0 {
            self.changed.notify_all();
        }
    }
}

impl QueueState {
    /// The end of the subscription or of the client, if it has ended.
    fn end_of(&self, number: u32) -> Option<Option<Failure>> {
        self.ended.get(&number).map(|ended| ended.failure.clone()).or(self.is_closed.then_some(None))
    }

    fn completed_of(&self, number: u32) -> Option<&Completed> {
        self.completed.iter().find(|completed| completed.number == number)
    }

    /// The number of messages that may be taken without passing the end of a replay.
    fn count_to_next_completed(&self) -> usize {
        let ahead =
            self.completed.iter().filter_map(|completed| completed.behind.checked_sub(self.taken_count));
        ahead.filter(|count| *count > 0).min().map_or(usize::MAX, |count| count as usize)
    }

    fn has_passed(&self) -> bool {
        self.ended.values().any(|ended| !ended.is_passed && ended.behind <= self.taken_count)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.room.changed(self.state.get_mut().size, 0);
    }
}

fn size_of_message(message: &Message) -> usize {
    MESSAGE_OVERHEAD_SIZE + message.data().len()
}
