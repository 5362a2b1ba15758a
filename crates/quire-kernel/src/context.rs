//! The shared context of every part of the broker: the time of the turn, the connections, the log,
//! and the requests to the outside.
//!
//! Each service (queues, bookmark subscriptions, publishers, ...) owns its state, and gets the
//! context as an argument. Some actions need other services: the end of a session or a
//! subscription, or a connection whose commands may continue. The service requests such an action
//! here, and the run loop carries it out between two pieces of work.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::unreadable::UnreadableLog;
use quire_command::Code;
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::{Journal, SYNC_BOUNDS_US, Timestamp};
use quire_types::time::{Instant, Now};

use super::BrokerConfig;
use super::access::AccessControl;
use super::delivered::Watch;
use super::events::Events;
use super::io::{Event, Output};
use super::limited::LimitedUsers;
use super::log::Log;
use super::offline::Offline;
use super::replicated::Replicated;
use super::send::Buffers;
use super::sessions::Sessions;
use super::slice::Slices;
use super::timer::Timers;
use super::work::Work;
use crate::config::links::{Definition, SyncType};
use crate::ids::TransportId;
use crate::session::{KeptBuffers, Traffic};
use crate::stats::{DurationFigures, PAGE_COUNT_MAX, Page, TopicStats, TransportFigures};
use crate::subscription::SubscriptionId;
use crate::subscriptions::Subscriptions;
use crate::topic::TopicTable;

/// See the module's documentation.
pub struct Context {
    pub config: BrokerConfig,
    pub clock: Clock,
    pub clients: Clients,
    pub topics: TopicTable,
    pub log: Log,
    pub work: Work,
    pub messages: Messages,
    pub outputs: VecDeque<Output>,
    pub shutdown: Shutdown,
}

/// The time, and the budgets of time for the work of a turn.
pub struct Clock {
    pub now: Now,
    /// The time of the first turn; `None` before it.
    pub started: Option<Timestamp>,
    pub slices: Slices,
    /// The most effort that filters may take for one message while all other work waits.
    pub turn_effort: u64,
    /// The largest message, and the largest record, that is read field by field while all other
    /// work waits, in bytes.
    pub turn_size: usize,
    pub timers: Timers,
    /// There is more work than one turn may do.
    pub wants_turn: bool,
}

/// The connections, their subscriptions, and the memory of their input and output.
#[derive(Default)]
pub struct Clients {
    pub sessions: Sessions,
    pub subscriptions: Subscriptions,
    pub buffers: Buffers,
    pub kept_buffers: KeptBuffers,
    pub counters: Counters,
    /// The entitlements of their users.
    pub access: AccessControl,
    /// How much of the limits of their users they have used.
    pub limited: LimitedUsers,
    pub blocked: Blocked,
    /// Messages of slow connections on disk.
    pub offline: Offline,
}

/// The client names that an administrator keeps from logging on, and until when.
#[derive(Debug, Default)]
pub struct Blocked(BTreeMap<Box<str>, Instant>);

/// The most client names that are blocked at a time.
const BLOCKED_MAX: usize = 10_000;

impl Blocked {
    /// Blocks a client name. Returns whether there was room for it.
    pub fn add(&mut self, client_name: &str, now: Instant, until: Instant) -> bool {
        self.0.retain(|_, until| *until > now);
        if self.0.len() >= BLOCKED_MAX && !self.0.contains_key(client_name) {
            return false;
        }
        self.0.insert(client_name.into(), until);
        true
    }

    /// How long a client name is still blocked; `None`: it is not blocked.
    pub fn left(&self, client_name: &str, now: Instant) -> Option<Duration> {
        self.0.get(client_name).filter(|until| **until > now).map(|until| *until - now)
    }
}

/// Reading the content of messages, and the messages of the server itself.
pub struct Messages {
    /// Memory for the fields that keys, filters and select lists read. It is kept between uses.
    pub arena: Arena,
    pub unreadable: UnreadableLog,
    /// Those of the server itself.
    pub events: Events,
}

impl Context {
    pub fn new(
        config: BrokerConfig,
        journal: Journal,
        topics: TopicTable,
        unreadable: UnreadableLog,
        watches: Vec<Watch>,
        (turn_effort, turn_size): (u64, usize),
    ) -> Self {
        Context {
            messages: Messages {
                arena: unreadable.arena(),
                events: Events::new(&config.events, &topics, watches),
                unreadable,
            },
            config,
            clock: Clock {
                now: Now { instant: Instant::default(), wall: Timestamp::default() },
                started: None,
                slices: Slices::default(),
                turn_effort,
                turn_size,
                timers: Timers::default(),
                wants_turn: false,
            },
            clients: Clients::default(),
            topics,
            log: Log::new(journal),
            work: Work::default(),
            outputs: VecDeque::new(),
            shutdown: Shutdown::No,
        }
    }

    /// The topics of the log, and the topics that are published or subscribed to, whose names sort
    /// after `after`, as far as `is_known` permits it.
    pub fn topics_after(&self, after: &str, is_known: impl Fn(&str) -> bool) -> Page<TopicStats> {
        let mut after = after.to_owned();
        loop {
            let (mut page, last) = self.topics_page(&after, &is_known);
            match last.filter(|_| page.items.is_empty()) {
                Some(last) => after = last,
                None => {
                    page.has_more &= !page.items.is_empty();
                    return page;
                }
            }
        }
    }

    /// One page, without the topics that are not known; and the last topic of it when there are
    /// more.
    fn topics_page(
        &self,
        after: &str,
        is_known: &impl Fn(&str) -> bool,
    ) -> (Page<TopicStats>, Option<String>) {
        // One more than a page has, to detect whether there are more.
        let mut names = self.log.journal.topics_after(after, PAGE_COUNT_MAX + 1);
        names.extend(self.topics.names_after(after, PAGE_COUNT_MAX + 1));
        names.sort_unstable();
        names.dedup();
        let count = self.topics.describable_count(&names);
        let is_cut = count < names.len();
        let names = &names[..count];
        let has_more = is_cut || count > PAGE_COUNT_MAX;
        let names = &names[..count.min(PAGE_COUNT_MAX)];
        let known = names.iter().filter(|name| is_known(name));
        let mut page = Page::of(known.map(|name| {
            let mut topic = self.topics.describe(name);
            topic.queues.retain(|queue| is_known(queue));
            topic
        }));
        page.has_more |= has_more;
        (page, names.last().filter(|_| has_more).map(|name| name.to_string()))
    }

    /// Makes the log wait for the destinations.
    pub fn open_links(&mut self, definitions: &[Definition]) {
        let replication = &self.config.replication;
        let is_sync = |definition: &Definition| definition.settings.sync_type == SyncType::Sync;
        self.log.replicated = Replicated::new(definitions.iter().map(is_sync), replication.required_acks);
        self.log.replicated.holds_logons = !definitions.is_empty() || !replication.instances.is_empty();
        self.log.has_links = replication.accepts || !definitions.is_empty();
    }

    /// The time of the first turn, in nanoseconds. It distinguishes the runs of the instance.
    pub fn started_ns(&self) -> u64 {
        self.clock.started.unwrap_or(self.clock.now.wall).as_ns()
    }

    /// The part of a message that a subscription wants. `memory` holds it unless it is the whole
    /// message.
    #[inline]
    pub fn select<'a>(
        &mut self,
        id: SubscriptionId,
        message_type: Option<MessageType>,
        topic: &str,
        data: &'a [u8],
        memory: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let select =
            self.clients.subscriptions.get(id).and_then(|subscription| subscription.wanted.select.as_ref());
        let Some(select) = select.and_then(|select| select.of_topic(topic)) else { return data };
        select.apply(message_type, data, &mut self.messages.arena, memory)
    }

    /// Reports an event. The driver writes it to the log of the server.
    pub fn note(&mut self, event: Event) {
        self.outputs.push_back(Output::Log(event));
    }
}

/// Whether the broker is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    No,
    /// Waits until the journal has persisted the taken messages.
    Flushing,
    /// Every client was notified.
    Done,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Counters {
    pub published: u64,
    pub duplicates: u64,
    pub refused: u64,
    pub delivered: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Of each transport: its connections that have ended, in sum. `connections` is not used.
    pub gone: Vec<TransportFigures>,
    /// The ends of connections, by their reasons.
    pub ends: BTreeMap<&'static str, u64>,
    /// The times from the receipt of publishes to their persistence.
    pub persisted: Durations,
}

/// Durations, counted by the bounds of [`SYNC_BOUNDS_US`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Durations {
    counts: [u64; SYNC_BOUNDS_US.len() + 1],
    sum: Duration,
}

impl Durations {
    /// Counts a duration.
    pub fn note(&mut self, duration: Duration) {
        let bound = SYNC_BOUNDS_US.partition_point(|bound| u128::from(*bound) < duration.as_micros());
        self.counts[bound] += 1;
        self.sum += duration;
    }

    /// The figures.
    pub fn figures(&self) -> DurationFigures {
        DurationFigures::new(&self.counts, self.sum)
    }
}

impl Counters {
    /// A connection was made.
    pub fn note_connected(&mut self, transport: TransportId) {
        self.of(transport).accepted += 1;
    }

    /// A connection was refused because of a limit.
    pub fn note_refused(&mut self, transport: TransportId) {
        self.of(transport).refused += 1;
    }

    /// A connection is no longer known. `sent_count`: the messages that were sent to it.
    pub fn note_gone(&mut self, transport: TransportId, traffic: &Traffic, sent_count: u64) {
        let gone = self.of(transport);
        gone.messages_in += traffic.published_count;
        gone.messages_out += sent_count;
        gone.bytes_in += traffic.received_bytes;
        gone.bytes_out += traffic.sent_bytes;
    }

    /// A connection has ended.
    pub fn note_end(&mut self, reason: &'static str) {
        *self.ends.entry(reason).or_default() += 1;
    }

    fn of(&mut self, transport: TransportId) -> &mut TransportFigures {
        let index = usize::from(transport.0);
        if self.gone.len() <= index {
            self.gone.resize_with(index + 1, TransportFigures::default);
        }
        &mut self.gone[index]
    }
}

/// The reason of an end for statistics (docs/admin.md, "disconnects").
pub const fn reason_of_end(code: Code) -> &'static str {
    match code {
        Code::NameInUse => "name_in_use",
        Code::HeartbeatTimeout => "heartbeat",
        Code::SlowConsumer => "slow_consumer",
        Code::LimitExceeded | Code::MessageTooLarge => "limit",
        Code::AuthenticationFailed | Code::NotEntitled => "authentication",
        Code::EntitlementReset => "entitlement_reset",
        Code::ShuttingDown => "shutdown",
        _ => "protocol",
    }
}
