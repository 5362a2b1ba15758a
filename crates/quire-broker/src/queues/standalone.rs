//! [`StandaloneQueue`]: one queue with its messages in memory, for programs that use the engine
//! without a broker.

use std::collections::BTreeMap;

use bytes::Bytes;
use quire_journal::{Headers, Position, Timestamp};
use slab::Slab;

use super::{Definition, QueueSettings};
use crate::topic::RecordingRule;
use crate::{ConfigError, RecordedTopic};
use quire_expression::filter::{Filter, FilterError, FilterOptions, MessageContext};
use quire_expression::message_type::{Arena, MessageType};
use quire_queue::{
    Change, ChangeKind, ConnectionId, Delivery, Enqueued, FilterId, Matcher, QueueEntry, QueueId, QueueStats,
    Queues, Reasons, SubscribeError, SubscriptionId, SubscriptionSpec, Time, Verdict,
};

/// A queue on the caller's clock. It writes no file. The rules are those of docs/queues.md. The
/// settings `name` and the topics have no effect here.
///
/// Every call that takes a `now` first ends the leases and messages whose time has come. After any
/// of these calls, [`dispatch`](Self::dispatch) returns the deliverable messages, and
/// [`take_expired`](Self::take_expired) the expired ones. Call [`advance`](Self::advance) by
/// [`next_timeout`](Self::next_timeout).
pub struct StandaloneQueue {
    definition: Definition,
    engine: Queues,
    queue: QueueId,
    messages: BTreeMap<Position, Kept>,
    /// The last barrier that left: it may be under way to further subscriptions.
    released: Option<(Position, Bytes)>,
    last: Position,
    filters: Slab<(Filter, u32)>,
    subscriptions: BTreeMap<SubscriptionId, (ConnectionId, Option<FilterId>)>,
    expired: Vec<Expired>,
    arena: Arena,
}

/// A message that is in the queue.
struct Kept {
    data: Bytes,
    entry: QueueEntry,
}

/// A message that left the queue unprocessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The message.
    pub position: Position,
    /// Its data.
    pub data: Bytes,
    /// Why it expired.
    pub reasons: Reasons,
    /// How often it was delivered.
    pub deliveries: u32,
    /// How often it was cancelled.
    pub cancels: u32,
}

/// Why a subscription to a [`StandaloneQueue`] was refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StandaloneError {
    /// The filter cannot be parsed.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// There are too many.
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
}

impl StandaloneQueue {
    /// An empty queue.
    ///
    /// # Errors
    /// [`ConfigError`] for a bad key or a forbidden combination.
    pub fn new(settings: &QueueSettings) -> Result<Self, ConfigError> {
        let options = FilterOptions::default();
        let everything = RecordedTopic::new("^", &settings.message_type);
        let rules = RecordingRule::compile(&[everything], &options)?;
        let settings = QueueSettings { name: "queue".into(), ..settings.clone() };
        let mut definitions = Definition::compile(&[settings], &rules, &options)?;
        let definition = definitions.remove(0);
        let mut engine = Queues::new();
        // No other work waits for the caller's thread.
        engine.set_ends_per_portion(u32::MAX);
        let queue = engine
            .add_queue(definition.config.clone())
            .map_err(|error| ConfigError::new("queue", error.to_string()))?;
        Ok(StandaloneQueue {
            definition,
            engine,
            queue,
            messages: BTreeMap::new(),
            released: None,
            last: Position::default(),
            filters: Slab::new(),
            subscriptions: BTreeMap::new(),
            expired: Vec::new(),
            arena: Arena::default(),
        })
    }

    /// Takes a message in, which is not delivered before `delay_ns` nanoseconds have passed; its
    /// position, or `None` when the queue's filter keeps it out. Positions count from 1.
    pub fn enqueue(
        &mut self,
        data: Bytes,
        expiration_s: Option<u32>,
        delay_ns: u64,
        now: Time,
    ) -> Option<Position> {
        self.advance(now);
        let Definition { message_type, filter, priority, barrier, .. } = &self.definition;
        let delayed_until = (delay_ns > 0).then(|| Time::new(now.get().saturating_add(delay_ns)));
        let mut entry = QueueEntry { received: now, expiration_s, delayed_until, ..QueueEntry::default() };
        if filter.is_some() || priority.is_some() || barrier.is_some() {
            let message = context(*message_type, &data);
            let arena = &mut self.arena;
            if filter.as_ref().is_some_and(|filter| !filter.matches_with(&message, arena)) {
                return None;
            }
            entry.priority = priority.as_ref().and_then(|priority| priority.of(&message, arena));
            entry.barrier = barrier.as_ref().is_some_and(|barrier| barrier.matches_with(&message, arena));
        }
        self.last = Position::new(self.last.get() + 1);
        self.messages.insert(self.last, Kept { data, entry });
        self.engine.enqueue(self.queue, self.last, entry);
        Some(self.last)
    }

    /// Adds a subscription of a connection.
    ///
    /// # Errors
    /// A filter that cannot be parsed, and more subscriptions than there can be.
    pub fn subscribe(
        &mut self,
        connection: ConnectionId,
        backlog: Option<u32>,
        filter: Option<&str>,
    ) -> Result<SubscriptionId, StandaloneError> {
        let parsed = filter.map(|text| Filter::parse(text, &FilterOptions::default())).transpose()?;
        let filter = parsed.map(|filter| self.acquire(filter));
        let spec = SubscriptionSpec { connection, backlog, queues: vec![(self.queue, filter)] };
        match self.engine.subscribe(&spec) {
            Ok(subscription) => {
                self.subscriptions.insert(subscription, (connection, filter));
                Ok(subscription)
            }
            Err(error) => {
                self.release(filter);
                Err(error.into())
            }
        }
    }

    /// Ends a subscription. The messages that it holds return to the queue. False when there is no
    /// such subscription.
    pub fn unsubscribe(&mut self, subscription: SubscriptionId, now: Time) -> bool {
        let Some((_, filter)) = self.subscriptions.remove(&subscription) else { return false };
        self.engine.unsubscribe(subscription, now);
        self.release(filter);
        self.settled();
        true
    }

    /// Ends all subscriptions of a connection.
    pub fn disconnect(&mut self, connection: ConnectionId, now: Time) {
        self.engine.disconnect(connection, now);
        let ended = self.subscriptions.extract_if(.., |_, (of, _)| *of == connection);
        let filters: Vec<Option<FilterId>> = ended.map(|(_, (_, filter))| filter).collect();
        filters.into_iter().for_each(|filter| self.release(filter));
        self.settled();
    }

    /// Deliveries at `now` with their data, up to `limit` of them.
    pub fn dispatch(&mut self, now: Time, limit: usize) -> Vec<(Delivery, Bytes)> {
        self.advance(now);
        let mut all = Vec::new();
        while all.len() < limit {
            let StandaloneQueue { definition, engine, messages, filters, arena, .. } = self;
            let message_type = definition.message_type;
            let mut answers = Answers { messages, filters, message_type, arena };
            match engine.poll_delivery(now, &mut answers) {
                Some(delivery) => {
                    let released =
                        self.released.as_ref().filter(|(position, _)| *position == delivery.position);
                    let kept = messages.get(&delivery.position).map(|kept| &kept.data);
                    let data = kept.or(released.map(|(_, data)| data)).cloned();
                    all.push((delivery, data.unwrap_or_default()));
                }
                // As many questions were asked as one call may.
                None if engine.poll_timeout().is_some_and(|at| at <= now) => {}
                None => break,
            }
        }
        self.settled();
        all
    }

    /// Acknowledges, cancels or expires messages; gives how many it had an effect on.
    pub fn settle(
        &mut self,
        connection: ConnectionId,
        verdict: Verdict,
        positions: &[Position],
        now: Time,
    ) -> u64 {
        let count = self.engine.settle(self.queue, connection, verdict, positions, now);
        self.settled();
        count
    }

    /// As [`settle`](Self::settle) for every active message that a filter matches; an empty filter
    /// matches all.
    ///
    /// # Errors
    /// A filter that cannot be parsed.
    pub fn settle_matching(
        &mut self,
        connection: ConnectionId,
        verdict: Verdict,
        filter: &str,
        now: Time,
    ) -> Result<u64, FilterError> {
        let filter = match filter {
            "" => None,
            text => Some(self.acquire(Filter::parse(text, &FilterOptions::default())?)),
        };
        let StandaloneQueue { definition, engine, messages, filters, arena, queue, .. } = self;
        let mut answers = Answers { messages, filters, message_type: definition.message_type, arena };
        let count = engine.settle_matching(*queue, connection, verdict, filter, now, &mut answers);
        self.release(filter);
        self.settled();
        Ok(count)
    }

    /// Lets a connection keep a message until `deadline`. False when it does not hold it.
    pub fn extend(
        &mut self,
        connection: ConnectionId,
        position: Position,
        deadline: Time,
        now: Time,
    ) -> bool {
        let extended = self.engine.extend(self.queue, connection, position, deadline, now);
        self.settled();
        extended
    }

    /// Ends leases and messages whose time has come.
    pub fn advance(&mut self, now: Time) {
        self.engine.advance(now);
        self.settled();
    }

    /// The time at which [`advance`](Self::advance) must be called, also without other calls. When
    /// it is not in the future, there are messages to deliver.
    pub fn next_timeout(&self) -> Option<Time> {
        self.engine.poll_timeout()
    }

    /// The messages that expired since the last call.
    pub fn take_expired(&mut self) -> Vec<Expired> {
        std::mem::take(&mut self.expired)
    }

    /// The figures of the queue.
    pub fn stats(&self, now: Time) -> QueueStats {
        self.engine.stats(self.queue, now).unwrap_or_default()
    }

    /// Drops the messages that have left the queue, and activates those that may be active now.
    fn settled(&mut self) {
        while let Some(Change { position, kind, .. }) = self.engine.poll_change() {
            if !kind.removes() {
                continue;
            }
            let Some(Kept { data, .. }) = self.messages.remove(&position) else { continue };
            match kind {
                ChangeKind::Expired { reasons, deliveries, cancels } => {
                    self.expired.push(Expired { position, data, reasons, deliveries, cancels });
                }
                ChangeKind::Released => self.released = Some((position, data)),
                _ => {}
            }
        }
        while self.engine.poll_lost().is_some() {}
        while let Some((after, _)) = self.engine.wanted(self.queue) {
            let next = self.messages.range(Position::new(after.get() + 1)..).next();
            let Some((position, entry)) = next.map(|(position, kept)| (*position, kept.entry)) else { break };
            if self.engine.enqueue(self.queue, position, entry) == Enqueued::Acknowledged {
                self.messages.remove(&position);
            }
        }
    }

    fn acquire(&mut self, filter: Filter) -> FilterId {
        let same = self.filters.iter().find(|(_, (other, _))| *other == filter).map(|(id, _)| id);
        let id = same.unwrap_or_else(|| self.filters.insert((filter, 0)));
        self.filters[id].1 += 1;
        FilterId::new(id as u32)
    }

    fn release(&mut self, filter: Option<FilterId>) {
        let Some(id) = filter.map(|filter| filter.get() as usize) else { return };
        self.filters[id].1 -= 1;
        if self.filters[id].1 == 0 {
            self.filters.remove(id);
        }
    }
}

/// Answers from the messages that are kept.
struct Answers<'a> {
    messages: &'a BTreeMap<Position, Kept>,
    filters: &'a Slab<(Filter, u32)>,
    message_type: MessageType,
    arena: &'a mut Arena,
}

impl Matcher for Answers<'_> {
    fn matches(&mut self, position: Position, filter: FilterId) -> bool {
        let (Some(kept), Some((filter, _))) =
            (self.messages.get(&position), self.filters.get(filter.get() as usize))
        else {
            return false;
        };
        filter.matches_with(&context(self.message_type, &kept.data), self.arena)
    }
}

fn context(message_type: MessageType, data: &[u8]) -> MessageContext<'_> {
    let timestamp = Timestamp::default();
    MessageContext {
        message_type,
        data,
        topic: "",
        key: None,
        bookmark: None,
        correlation_id: b"",
        headers: Headers::NONE,
        timestamp,
        now: timestamp,
    }
}
