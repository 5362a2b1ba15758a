//! The shared context of every part of the broker: the time of the turn, the connections, the log, and the requests to the outside.
//!
//! A part that serves something (queues, bookmark subscriptions, publishers, ...) owns its state and gets this as an argument. Some actions
//! need other parts: the end of a session or a subscription, or a connection whose commands may continue. The part requests such an action
//! here, and the run loop carries it out between two pieces of work.

use std::collections::VecDeque;

use crate::unreadable::UnreadableLog;
use quire_command::{Code, Reply};
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::{Journal, Timestamp};
use quire_types::time::{Instant, Now};
use slotmap::SlotMap;

use super::BrokerConfig;
use super::io::{Event, Output};
use super::log::Log;
use super::replicated::Replicated;
use super::send::Buffers;
use super::sessions::Sessions;
use super::slice::Slices;
use super::timer::Timers;
use super::work::Work;
use crate::config::links::{Definition, SyncType};
use crate::session::KeptBuffers;
use crate::stats::{PAGE_COUNT_MAX, Page, SubscriptionStats, TopicStats};
use crate::subscription::{ServedBy, Subscription, SubscriptionId};
use crate::topic::TopicTable;

/// See the module's documentation.
pub(crate) struct Context {
    pub(crate) config: BrokerConfig,
    pub(crate) log: Log,
    pub(crate) topics: TopicTable,
    pub(crate) sessions: Sessions,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) buffers: Buffers,
    pub(crate) kept_buffers: KeptBuffers,
    pub(crate) work: Work,
    pub(crate) slices: Slices,
    /// Effort that filters may take for one message while everything else waits.
    pub(crate) turn_effort: u64,
    pub(crate) timers: Timers,
    pub(crate) outputs: VecDeque<Output>,
    /// There is more to do than one turn should.
    pub(crate) wants_turn: bool,
    pub(crate) shutdown: Shutdown,
    pub(crate) counters: Counters,
    /// Kept between uses: memory for the fields of conflation keys.
    pub(crate) arena: Arena,
    pub(crate) unreadable: UnreadableLog,
    /// Memory for the selected parts of a message.
    pub(crate) selected: Vec<u8>,
    pub(crate) now: Now,
    /// The time of the first turn; `None` before it.
    pub(crate) started: Option<Timestamp>,
}

/// The subscriptions of all connections.
#[derive(Default)]
pub(crate) struct Subscriptions {
    pub(crate) all: SlotMap<SubscriptionId, Subscription>,
    /// Patterns in the filters of all subscriptions.
    pub(crate) pattern_count: usize,
    /// Those that the server has ended and that are still to be removed.
    ended: Vec<SubscriptionId>,
    /// Those that have got the state at their bookmark, and follow the log from there.
    following: Vec<SubscriptionId>,
}

impl Subscriptions {
    /// The subscription with this key; `None` once it was removed or ended.
    #[inline]
    pub(crate) fn get(&self, id: SubscriptionId) -> Option<&Subscription> {
        self.all.get(id).filter(|subscription| !subscription.has_ended)
    }

    /// As [`Subscriptions::get`].
    #[inline]
    pub(crate) fn get_mut(&mut self, id: SubscriptionId) -> Option<&mut Subscription> {
        self.all.get_mut(id).filter(|subscription| !subscription.has_ended)
    }

    /// The subscription has its records. When it has a bookmark, the messages after the bookmark follow.
    pub(crate) fn follow_log(&mut self, id: SubscriptionId) {
        let progress = self.get_mut(id).and_then(|subscription| subscription.progress_mut());
        if let Some(progress) = progress.filter(|progress| progress.awaits_records) {
            progress.awaits_records = false;
            self.following.push(id);
        }
    }

    /// One that follows the log from now on.
    pub(crate) fn next_following(&mut self) -> Option<SubscriptionId> {
        while let Some(id) = self.following.pop() {
            if self.get(id).is_some() {
                return Some(id);
            }
        }
        None
    }

    /// Whether one was ended and is to be removed.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// One that was ended and is to be removed.
    pub(crate) fn next_ended(&mut self) -> Option<SubscriptionId> {
        std::iter::from_fn(|| self.ended.pop()).find(|id| self.all.contains_key(*id))
    }
}

impl Context {
    pub(crate) fn new(
        config: BrokerConfig,
        journal: Journal,
        topics: TopicTable,
        unreadable: UnreadableLog,
        turn_effort: u64,
    ) -> Self {
        Context {
            config,
            log: Log::new(journal),
            topics,
            sessions: Sessions::default(),
            subscriptions: Subscriptions::default(),
            buffers: Buffers::default(),
            kept_buffers: KeptBuffers::default(),
            work: Work::default(),
            slices: Slices::new(),
            turn_effort,
            timers: Timers::default(),
            outputs: VecDeque::new(),
            wants_turn: false,
            shutdown: Shutdown::No,
            counters: Counters::default(),
            arena: unreadable.arena(),
            unreadable,
            selected: Vec::new(),
            now: Now { instant: Instant::default(), wall: Timestamp::default() },
            started: None,
        }
    }

    /// The topics of the log, and those that are published or subscribed to, whose names come after `after`.
    pub(crate) fn topics_after(&self, after: &str) -> Page<TopicStats> {
        // One more than a page takes, so that it is known whether there are more.
        let mut names = self.log.journal.topics_after(after, PAGE_COUNT_MAX + 1);
        names.extend(self.topics.names_after(after, PAGE_COUNT_MAX + 1));
        names.sort_unstable();
        names.dedup();
        let count = self.topics.describable_count(&names);
        let is_cut = count < names.len();
        let names = &names[..count];
        let mut page = Page::of(names.iter().map(|name| self.topics.describe(name)));
        page.has_more |= is_cut;
        page
    }

    /// The subscriptions after the one with this number on this connection, in the order of both: one more than a page takes.
    pub(crate) fn subscriptions_after(&self, connection: u64, number: u32) -> Vec<SubscriptionId> {
        let key = |subscription: &Subscription| {
            (self.sessions.all[subscription.session].connection.0, subscription.number)
        };
        let all = self.subscriptions.all.iter().map(|(id, subscription)| (key(subscription), id));
        let mut found: Vec<_> = all.filter(|(key, _)| *key > (connection, number)).collect();
        if found.len() > PAGE_COUNT_MAX {
            found.select_nth_unstable_by_key(PAGE_COUNT_MAX, |(key, _)| *key);
            found.truncate(PAGE_COUNT_MAX + 1);
        }
        found.sort_unstable_by_key(|(key, _)| *key);
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// A subscription, apart from the figures of the service that serves it.
    pub(crate) fn describe(&self, id: SubscriptionId) -> SubscriptionStats {
        let subscription = &self.subscriptions.all[id];
        let session = &self.sessions.all[subscription.session];
        SubscriptionStats {
            connection: session.connection,
            client_name: session.client_name().unwrap_or_default(),
            subscription: subscription.number,
            topic: subscription.selector.text().to_owned(),
            filter: subscription.filter.as_ref().map(|filter| filter.text().to_owned()),
            kind: match subscription.served_by {
                ServedBy::Ordinary => "live",
                ServedBy::Bookmark(_) => "replay",
                ServedBy::Queue => "queue",
                ServedBy::Sow(_) => "last_value",
            },
            position: None,
            lag: None,
            lag_s: None,
            backlog: None,
            max_backlog: None,
            is_paused: subscription.progress().is_some_and(|progress| progress.is_paused),
        }
    }

    /// Ends one subscription for a reason of the server. The connection continues. The client is notified at once and gets no further
    /// message. The run loop removes the subscription after the phase. Code that works on the subscription keeps a valid key until then.
    pub(crate) fn end_subscription(&mut self, id: SubscriptionId, code: Code, reason: &str) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        let (session, number) = (subscription.session, subscription.number);
        self.remove_subscription_later(id);
        let connection = self.session(session).connection;
        let event =
            Event::SubscriptionEnded { connection, subscription: number, code, reason: reason.to_owned() };
        self.note(event);
        self.put(session, &Reply::SubscriptionEnded { subscription: number, code, reason });
    }

    /// The subscription gets nothing more from now on; the run loop removes it between two pieces of work.
    pub(crate) fn remove_subscription_later(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return };
        subscription.has_ended = true;
        self.subscriptions.ended.push(id);
        self.wants_turn = true;
    }

    /// A filter takes so much effort that its subscription is ended.
    pub(crate) fn end_costly(&mut self, id: SubscriptionId, size: usize) {
        let reason = format!(
            "the filter takes more than the limit of effort for one message, of {size} bytes; use fewer patterns, or smaller messages"
        );
        self.end_subscription(id, Code::LimitExceeded, &reason);
    }

    /// Makes the log wait for the destinations.
    pub(crate) fn open_links(&mut self, definitions: &[Definition]) {
        let replication = &self.config.replication;
        let is_sync = |definition: &Definition| definition.settings.sync_type == SyncType::Sync;
        self.log.replicated = Replicated::new(definitions.iter().map(is_sync), replication.required_acks);
        self.log.replicated.holds_logons = definitions.iter().any(is_sync);
        self.log.has_links = replication.accepts || !definitions.is_empty();
    }

    /// The time of the first turn, in nanoseconds: it tells one run of the instance from the next.
    pub(crate) fn started_ns(&self) -> u64 {
        self.started.unwrap_or(self.now.wall).as_ns()
    }

    /// The part of a message that a subscription wants; `memory` holds it when that is not the whole.
    pub(crate) fn select<'a>(
        &mut self,
        id: SubscriptionId,
        message_type: Option<MessageType>,
        data: &'a [u8],
        memory: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let select = self.subscriptions.get(id).and_then(|subscription| subscription.select.as_ref());
        let Some(select) = select else { return data };
        select.apply(message_type, data, &mut self.arena, memory)
    }

    /// Says that something happened. The driver writes it to the log of the server.
    pub(crate) fn note(&mut self, event: Event) {
        self.outputs.push_back(Output::Log(event));
    }

    pub(crate) fn subscription(&mut self, id: SubscriptionId) -> &mut Subscription {
        &mut self.subscriptions.all[id]
    }
}

/// Whether the broker is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    No,
    /// Waits until the journal has persisted the taken messages.
    Flushing,
    /// Every client was notified.
    Done,
}

/// Counters since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) published: u64,
    pub(crate) duplicates: u64,
    pub(crate) refused: u64,
    pub(crate) delivered: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
}
