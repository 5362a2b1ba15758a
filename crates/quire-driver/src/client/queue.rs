//! Messages on their way from the client's thread to whoever takes them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use quire_core::client::{Failure, Message};

/// The messages of one subscription, or of several in the order in which they arrived. Bounded by the client's `receive_size_max`.
pub struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    /// Bytes of messages in all queues of the client.
    received_size: Arc<AtomicUsize>,
}

#[derive(Default)]
struct QueueState {
    messages: VecDeque<Message>,
    completed: Vec<u32>,
    ended: HashMap<u32, Option<Failure>>,
    /// The client is: nothing more will come for anybody.
    is_closed: bool,
    /// Somebody waits: worth a wake-up.
    waiters: usize,
}

/// What came of taking.
#[derive(Debug)]
pub enum Taken {
    /// At least one message.
    Messages(Vec<Message>),
    /// None in time.
    Nothing,
    /// None, and there will be no more: the subscription was ended; `None` = by the user, or at the end of its range.
    Ended(Option<Failure>),
}

/// What a message costs beside its data, for the bound.
const MESSAGE_OVERHEAD_SIZE: usize = 128;

impl Queue {
    pub(super) fn new(received_size: Arc<AtomicUsize>) -> Self {
        Queue { state: Mutex::default(), changed: Condvar::new(), received_size }
    }

    /// Takes up to `count_max` messages of the subscription `number`'s queue, waiting up to `timeout` for the first.
    pub fn take(&self, number: u32, count_max: usize, timeout: Duration) -> Taken {
        let mut state = self.state.lock();
        let mut deadline = None;
        loop {
            if !state.messages.is_empty() {
                let count = count_max.min(state.messages.len());
                let messages: Vec<Message> = state.messages.drain(..count).collect();
                drop(state);
                let size = messages.iter().map(size_of_message).sum();
                self.received_size.fetch_sub(size, Ordering::AcqRel);
                return Taken::Messages(messages);
            }
            if let Some(ended) = state.end_of(number) {
                return Taken::Ended(ended);
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + timeout);
            state.waiters += 1;
            let timed_out = self.changed.wait_until(&mut state, deadline).timed_out();
            state.waiters -= 1;
            if timed_out && state.messages.is_empty() && state.end_of(number).is_none() {
                return Taken::Nothing;
            }
        }
    }

    /// Messages that wait to be taken.
    #[allow(clippy::len_without_is_empty)] // a figure for a report
    pub fn len(&self) -> usize {
        self.state.lock().messages.len()
    }

    /// Whether the replay of the subscription has caught up with the live stream.
    pub fn is_completed(&self, number: u32) -> bool {
        self.state.lock().completed.contains(&number)
    }

    /// Waits until it has; false when `timeout` passed first or the subscription ended.
    pub fn wait_completed(&self, number: u32, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        while !state.completed.contains(&number) && state.end_of(number).is_none() {
            state.waiters += 1;
            let timed_out = self.changed.wait_until(&mut state, deadline).timed_out();
            state.waiters -= 1;
            if timed_out {
                break;
            }
        }
        state.completed.contains(&number)
    }

    pub(super) fn push(&self, messages: Vec<Message>) {
        self.received_size.fetch_add(messages.iter().map(size_of_message).sum(), Ordering::AcqRel);
        let mut state = self.state.lock();
        state.messages.extend(messages);
        self.wake(&state);
    }

    pub(super) fn complete(&self, number: u32) {
        let mut state = self.state.lock();
        state.completed.push(number);
        self.wake(&state);
    }

    pub(super) fn end(&self, number: u32, failure: Option<Failure>) {
        let mut state = self.state.lock();
        state.ended.entry(number).or_insert(failure);
        self.wake(&state);
    }

    /// Nothing more comes, because the client has ended or stops taking: what is here can still be taken.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.wake(&state);
    }

    /// Nobody will ask about a subscription any more.
    pub fn forget(&self, number: u32) {
        let mut state = self.state.lock();
        state.completed.retain(|other| *other != number);
        state.ended.remove(&number);
    }

    fn wake(&self, state: &QueueState) {
        if state.waiters > 0 {
            self.changed.notify_all();
        }
    }
}

impl QueueState {
    /// How the subscription ended, if it has, or the client.
    fn end_of(&self, number: u32) -> Option<Option<Failure>> {
        self.ended.get(&number).cloned().or(self.is_closed.then_some(None))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let size = self.state.get_mut().messages.iter().map(size_of_message).sum();
        self.received_size.fetch_sub(size, Ordering::AcqRel);
    }
}

fn size_of_message(message: &Message) -> usize {
    MESSAGE_OVERHEAD_SIZE + message.data().len()
}
