//! The subscriptions of all connections, and the actions of each part on them.

use slotmap::{SecondaryMap, SlotMap};

use crate::context::Context;
use crate::entitlement::Grant;
use crate::io::Event;
use crate::reply::Refused;
use crate::session::SessionId;
use crate::stats::{PAGE_COUNT_MAX, SubscriptionStats};
use crate::subscription::{Interest, Sent, ServedBy, Subscription, SubscriptionId};
use crate::timer::Timer;
use crate::topic::Stage;
use quire_command::{Code, Reply};
use quire_expression::filter::{Filter, FilterOptions};
use quire_expression::topic::TopicSelector;

/// The subscriptions of all connections.
#[derive(Default)]
pub struct Subscriptions {
    pub all: SlotMap<SubscriptionId, Subscription>,
    /// Patterns in the filters of all subscriptions.
    pub pattern_count: usize,
    /// Subscriptions that the server has ended, and that will be removed.
    ended: Vec<SubscriptionId>,
    /// The messages that each subscription has received. An idle one has no entry.
    sent: SecondaryMap<SubscriptionId, Sent>,
    /// Subscriptions that have received the state at their bookmark, and follow the log from there.
    following: Vec<SubscriptionId>,
}

impl Subscriptions {
    /// The subscription with this key; `None` after it was removed or ended.
    #[inline]
    pub fn get(&self, id: SubscriptionId) -> Option<&Subscription> {
        self.all.get(id).filter(|subscription| !subscription.delivery.has_ended)
    }

    /// As [`Subscriptions::get`].
    #[inline]
    pub fn get_mut(&mut self, id: SubscriptionId) -> Option<&mut Subscription> {
        self.all.get_mut(id).filter(|subscription| !subscription.delivery.has_ended)
    }

    /// Counts messages that were sent to a subscription.
    #[inline]
    pub fn note_sent(&mut self, id: SubscriptionId, message_count: u64, size: usize) {
        match self.sent.get_mut(id) {
            Some(sent) => sent.note(message_count, size),
            None => self.note_first_sent(id, message_count, size),
        }
    }

    #[cold]
    fn note_first_sent(&mut self, id: SubscriptionId, message_count: u64, size: usize) {
        if self.all.contains_key(id) {
            self.sent.insert(id, Sent::default());
            self.note_sent(id, message_count, size);
        }
    }

    /// The subscription has its records. When it is served from the log, the messages after the
    /// records may follow.
    pub fn follow_log(&mut self, id: SubscriptionId) {
        if self.get(id).is_some_and(|subscription| subscription.served_by == ServedBy::Bookmark) {
            self.following.push(id);
        }
    }

    /// A subscription that follows the log from now on.
    pub fn next_following(&mut self) -> Option<SubscriptionId> {
        while let Some(id) = self.following.pop() {
            if self.get(id).is_some() {
                return Some(id);
            }
        }
        None
    }

    /// Whether an ended subscription must be removed.
    #[inline]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// An ended subscription that must be removed.
    pub fn next_ended(&mut self) -> Option<SubscriptionId> {
        std::iter::from_fn(|| self.ended.pop()).find(|id| self.all.contains_key(*id))
    }
}

impl Context {
    #[inline]
    pub fn subscription(&mut self, id: SubscriptionId) -> &mut Subscription {
        &mut self.clients.subscriptions.all[id]
    }

    /// Ends one subscription for a reason of the server. The connection continues. The client is
    /// notified at once, and receives no further message. The run loop removes the subscription
    /// after the phase. Code that works on the subscription keeps a valid key until then.
    pub fn end_subscription(&mut self, id: SubscriptionId, code: Code, reason: &str) {
        let Some(subscription) = self.clients.subscriptions.get_mut(id) else { return };
        let (session, number) = (subscription.session, subscription.number);
        self.remove_subscription_later(id);
        let connection = self.session(session).connection;
        let event =
            Event::SubscriptionEnded { connection, subscription: number, code, reason: reason.to_owned() };
        self.note(event);
        self.put(session, &Reply::SubscriptionEnded { subscription: number, code, reason });
    }

    /// The subscription receives no more messages from now on. The run loop removes it between two
    /// pieces of work.
    pub fn remove_subscription_later(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.clients.subscriptions.get_mut(id) else { return };
        subscription.delivery.has_ended = true;
        self.clients.subscriptions.ended.push(id);
        self.clock.wants_turn = true;
    }

    /// Ends a subscription because its filter takes too much effort.
    pub fn end_costly(&mut self, id: SubscriptionId, size: usize) {
        let reason = format!(
            "the filter takes more than the limit of effort for one message, of {size} bytes; use fewer patterns, or smaller messages"
        );
        self.end_subscription(id, Code::LimitExceeded, &reason);
    }

    /// The subscriptions after the one with this number on this connection, in the order of both:
    /// one more than a page takes.
    pub fn subscriptions_after(&self, connection: u64, number: u32) -> Vec<SubscriptionId> {
        let key = |subscription: &Subscription| {
            (self.clients.sessions.all[subscription.session].connection.0, subscription.number)
        };
        let all = self.clients.subscriptions.all.iter().map(|(id, subscription)| (key(subscription), id));
        let mut found: Vec<_> = all.filter(|(key, _)| *key > (connection, number)).collect();
        if found.len() > PAGE_COUNT_MAX {
            found.select_nth_unstable_by_key(PAGE_COUNT_MAX, |(key, _)| *key);
            found.truncate(PAGE_COUNT_MAX + 1);
        }
        found.sort_unstable_by_key(|(key, _)| *key);
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Every subscription, in the order of connections and of their numbers.
    pub fn all_subscriptions(&self) -> Vec<SubscriptionId> {
        let mut ids: Vec<_> = self.clients.subscriptions.all.keys().collect();
        ids.sort_by_cached_key(|id| {
            let subscription = &self.clients.subscriptions.all[*id];
            (self.clients.sessions.all[subscription.session].connection.0, subscription.number)
        });
        ids
    }

    /// The figures of a subscription, without those of the service that serves it.
    pub fn describe(&self, id: SubscriptionId) -> SubscriptionStats {
        let subscription = &self.clients.subscriptions.all[id];
        let session = &self.clients.sessions.all[subscription.session];
        let sent = self.clients.subscriptions.sent.get(id).copied().unwrap_or_default();
        SubscriptionStats {
            connection: session.connection,
            client_name: session.client_name().unwrap_or_default(),
            subscription: subscription.number,
            topic: subscription.wanted.selector.text().to_owned(),
            filter: subscription
                .wanted
                .filter
                .as_ref()
                .map(|filter| filter.text().to_owned())
                .filter(|text| !text.is_empty()),
            kind: match subscription.served_by {
                ServedBy::Stream => "live",
                ServedBy::Bookmark => "replay",
                ServedBy::Queue => "queue",
                ServedBy::Sow | ServedBy::Table => "last_value",
            },
            position: None,
            lag: None,
            lag_s: None,
            backlog: None,
            max_backlog: None,
            is_paused: subscription.delivery.is_paused,
            messages_out: sent.message_count,
            bytes_out: sent.size,
        }
    }

    pub fn pattern_count_of(&self, id: SubscriptionId) -> usize {
        let filter = self
            .clients
            .subscriptions
            .all
            .get(id)
            .and_then(|subscription| subscription.wanted.filter.as_ref());
        filter.map_or(0, Filter::pattern_count)
    }

    /// Counts the patterns of a new subscription. [`Context::release_patterns`] undoes this.
    fn count_patterns(&mut self, id: SubscriptionId) {
        let count = self.pattern_count_of(id);
        self.clients.subscriptions.pattern_count += count;
        let session = self.clients.subscriptions.all[id].session;
        self.session(session).pattern_count += count;
    }

    fn release_patterns(&mut self, id: SubscriptionId) {
        let count = self.pattern_count_of(id);
        self.clients.subscriptions.pattern_count -= count;
        if let Some(subscription) = self.clients.subscriptions.all.get(id) {
            let session = subscription.session;
            self.session(session).pattern_count -= count;
        }
    }

    /// Whether a subscription without a bookmark is served from the publish stream. The exact name
    /// of a queue is not a topic.
    pub fn is_in_audience(&self, id: SubscriptionId) -> bool {
        let subscription = &self.clients.subscriptions.all[id];
        match subscription.served_by {
            ServedBy::Stream | ServedBy::Sow => true,
            ServedBy::Queue | ServedBy::Table => {
                matches!(subscription.wanted.selector, TopicSelector::Pattern(_))
            }
            ServedBy::Bookmark => false,
        }
    }

    /// Adds a subscription to the audience of its topic.
    pub fn join(&mut self, id: SubscriptionId, stage: Stage) {
        let Interest { selector, filter, .. } = &self.clients.subscriptions.all[id].wanted;
        self.topics.add(selector, stage, id, filter.clone());
    }

    /// Undoes [`Context::join`].
    pub fn leave(&mut self, id: SubscriptionId, stage: Stage) {
        let Interest { selector, .. } = &self.clients.subscriptions.all[id].wanted;
        self.topics.remove(selector, stage, id);
    }

    /// Adds a new subscription, or one that replaces another, to its connection.
    pub fn put_subscription(
        &mut self,
        subscription: Subscription,
        replaced: Option<SubscriptionId>,
    ) -> SubscriptionId {
        let (session, number) = (subscription.session, subscription.number);
        let id = match replaced {
            Some(replaced) => {
                self.release_patterns(replaced);
                *self.subscription(replaced) = subscription;
                replaced
            }
            None => {
                let new = self.clients.subscriptions.all.insert(subscription);
                self.session(session).subscriptions.insert(number, new);
                new
            }
        };
        self.count_patterns(id);
        id
    }

    /// Removes a subscription that no service serves any more.
    pub fn remove_subscription(&mut self, id: SubscriptionId) {
        self.release_patterns(id);
        self.clock.timers.clear(Timer::Conflated(id));
        self.clients.subscriptions.sent.remove(id);
        let Some(subscription) = self.clients.subscriptions.all.remove(id) else { return };
        self.session(subscription.session).subscriptions.remove(&subscription.number);
    }

    /// Whether the filter is within the limits on patterns, when the subscription `replaced` is
    /// removed.
    pub fn check_pattern_count(
        &mut self,
        id: SessionId,
        replaced: Option<SubscriptionId>,
        filter: Option<&Filter>,
    ) -> Result<(), Refused> {
        let count = filter.map_or(0, Filter::pattern_count);
        if count == 0 {
            return Ok(());
        }
        let gone = replaced.map_or(0, |replaced| self.pattern_count_of(replaced));
        let in_one = self.transport_of(id).max_patterns_per_connection;
        let used = [
            ("max_patterns_per_connection", self.clients.sessions.all[id].pattern_count, in_one),
            ("max_patterns", self.clients.subscriptions.pattern_count, self.config.limits.max_patterns),
        ];
        for (name, used, limit) in used {
            if used - gone + count > limit as usize {
                let reason = format!(
                    "{name}: this filter has {count} patterns, other subscriptions have {}, and the limit is {limit}",
                    used - gone
                );
                return Err(Refused::new(Code::LimitExceeded, reason));
            }
        }
        Ok(())
    }

    pub fn parse_filter(&mut self, id: SessionId, text: &str) -> Result<Filter, Refused> {
        let options = self.filter_options(id);
        Filter::parse(text, &options).map_err(|error| Refused {
            code: Code::BadFilter,
            column: u32::try_from(error.column).unwrap_or(u32::MAX),
            reason: error.reason,
        })
    }

    /// The filter of a command: the messages that it wants among those that its grant leaves it.
    ///
    /// # Errors
    /// The filters are too large together.
    pub fn narrow(
        &mut self,
        id: SessionId,
        grant: &Grant,
        wanted: Option<Filter>,
    ) -> Result<Option<Filter>, Refused> {
        if grant.is_whole() {
            return Ok(wanted);
        }
        let options = self.filter_options(id);
        grant.filter(wanted, &options).map_err(|error| Refused::new(Code::BadFilter, error.reason))
    }

    /// The options for the expressions of a command about a topic, without the fields that its
    /// grant hides.
    pub fn options_within(&mut self, id: SessionId, grant: &Grant, topic: &str) -> FilterOptions {
        FilterOptions { hidden: grant.visible_fields(topic), ..self.filter_options(id) }
    }

    /// The options for the filters of a session.
    pub fn filter_options(&self, id: SessionId) -> FilterOptions {
        let client = self.clients.sessions.all[id].client_facts();
        FilterOptions { client, ..self.config.filter_options() }
    }
}
