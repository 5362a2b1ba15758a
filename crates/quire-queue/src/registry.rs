//! Queues that are added and removed.
//!
//! A queue is known by its number. The number of a removed queue goes to a queue that is added
//! later, so that adding and removing queues does not need more and more memory.

use super::config::{ConfigError, QueueConfig, nanoseconds};
use super::id::{QueueId, SubscriptionId};
use super::queues::Queues;
use super::state::QueueState;
use quire_journal::{Memory, Position};

/// The most queues of one instance: each costs a kilobyte when empty, and timers are found by
/// looking at each.
pub const QUEUES_MAX: usize = 10_000;

impl Queues {
    /// Adds a queue.
    ///
    /// # Errors
    /// A bad configuration, or [`QUEUES_MAX`].
    pub fn add_queue(&mut self, config: QueueConfig) -> Result<QueueId, ConfigError> {
        self.add_queue_in(config, &Memory::heap())
    }

    /// As [`add_queue`](Self::add_queue). The state of the messages of the queue is in `memory`.
    ///
    /// # Errors
    /// As [`add_queue`](Self::add_queue).
    pub fn add_queue_in(&mut self, config: QueueConfig, memory: &Memory) -> Result<QueueId, ConfigError> {
        config.validate()?;
        if let Some(number) = self.removed.pop() {
            self.queues[number as usize] = QueueState::new(config, memory);
            return Ok(QueueId::new(number));
        }
        if self.queues.len() == QUEUES_MAX {
            return Err(ConfigError::TooManyQueues { limit: QUEUES_MAX });
        }
        self.queues.push(QueueState::new(config, memory));
        Ok(QueueId::new(self.queues.len() as u32 - 1))
    }

    /// Gives a queue other settings. Messages, leases, delays and the backlogs of subscriptions
    /// stay as they are: each setting applies when it is used for the next time.
    ///
    /// # Errors
    /// [`ConfigError`]: the settings are not allowed, or differ in one that the state of the queue
    /// depends on. Nothing is changed then.
    pub fn alter_queue(&mut self, queue: QueueId, config: QueueConfig) -> Result<(), ConfigError> {
        let Some(state) = self.live_mut(queue) else { return Ok(()) };
        state.config.check_change(&config)?;
        let lease_ns = config.lease_period.map(nanoseconds);
        if lease_ns != state.lease_ns {
            state.leases.begin_period();
        }
        (state.lease_ns, state.config) = (lease_ns, config);
        // There may be room for more deliveries.
        self.line_up(queue.get());
        Ok(())
    }

    /// Has a queue without messages begin after a position: messages up to there do not enter it.
    pub fn begin_after(&mut self, queue: QueueId, position: Position) {
        if let Some(state) = self.live_mut(queue) {
            state.last_position = state.last_position.max(position.get());
        }
    }

    /// Removes a queue that has no subscriptions, with all its messages, and gives how many
    /// messages it had. No output concerns the queue afterwards, and calls treat its number as
    /// unknown. A queue that is added later gets the number: before this call, the caller drops
    /// everything that it keeps under the number.
    ///
    /// `None`: the number is unknown, or the queue has subscriptions.
    pub fn remove_queue(&mut self, queue: QueueId) -> Option<u64> {
        let number = queue.get();
        if self.live(queue)?.subscriptions > 0 {
            return None;
        }
        // Subscriptions that moved to other queues may still hold messages of this one.
        while let Some(slot) = self.queues[number as usize].leases.oldest() {
            self.take_lease(slot);
        }
        let state = &mut self.queues[number as usize];
        let message_count = state.messages.present() + state.inactive.count;
        *state = QueueState::removed();
        self.line.retain(|other| *other != number);
        self.starved.retain(|other| *other != number);
        self.barriers.retain(|delivery| delivery.queue != queue);
        self.changes.retain(|change| change.queue != queue);
        self.lost.retain(|lost| lost.queue != queue);
        self.lease_events.retain(|event| event.queue != queue);
        self.moves.retain(|moved| moved.queue != queue);
        self.removed.push(number);
        Some(message_count)
    }

    /// The subscriptions of a queue.
    pub fn subscriptions_of(&self, queue: QueueId) -> Vec<SubscriptionId> {
        let classes = self.live(queue).into_iter().flat_map(QueueState::classes);
        classes.flat_map(|class| class.members.subscriptions()).map(|slot| self.id(slot)).collect()
    }

    /// The configuration of a queue.
    pub fn config(&self, queue: QueueId) -> Option<&QueueConfig> {
        self.live(queue).map(|queue| &queue.config)
    }

    /// A queue that was not removed.
    pub(super) fn live(&self, queue: QueueId) -> Option<&QueueState> {
        self.queues.get(queue.get() as usize).filter(|state| !state.is_removed)
    }

    pub(super) fn live_mut(&mut self, queue: QueueId) -> Option<&mut QueueState> {
        self.queues.get_mut(queue.get() as usize).filter(|state| !state.is_removed)
    }
}
