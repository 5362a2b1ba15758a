//! Subscriptions to queues: how they begin, change and end.

use std::collections::{BTreeSet, VecDeque};

use quire_journal::{Bookmark, Timestamp};

use super::QueueService;
use super::deliver::Pending;
use super::filters::Answers;
use crate::context::Context;
use crate::entitlement::Grant;
use crate::reply::Refused;
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use quire_command::{BegunMessages, LeaseEnd, Reply};
use quire_expression::filter::Filter;
use quire_expression::topic::TopicSelector;
use quire_queue::{
    self as queue, ConnectionId, FilterId, LostCause, QueueId, Queues, SubscribeError, SubscriptionSpec,
};

/// How a subscription is served by queues.
#[derive(Debug)]
pub(crate) struct QueueSubscription {
    /// The engine's number for it.
    pub(super) id: queue::SubscriptionId,
    /// Each message and each lost lease names its queue: the topic is a pattern, or the
    /// subscription was replaced while it held messages, so that they may come from another queue
    /// than its topic names.
    pub(super) is_named: bool,
    /// Delivered by the engine, not sent yet.
    pub(super) pending: VecDeque<Pending>,
    filters: Vec<FilterId>,
}

impl QueueSubscription {
    /// Drops the deliveries of a queue that was removed.
    pub fn forget_queue(&mut self, queue: QueueId) {
        self.pending.retain(|pending| pending.queue() != queue);
    }
}

/// The options of a subscription to queues.
pub(crate) struct Wanted<'a> {
    /// With the filter of each.
    pub queues: &'a [(QueueId, Option<Filter>)],
    /// See [`QueueSubscription::is_named`].
    pub is_named: bool,
    /// The most messages outstanding; 1 when it is not given.
    pub max_backlog: Option<u32>,
}

impl QueueService {
    /// The queues whose names a subscription means.
    pub(crate) fn matching(&self, selector: &TopicSelector) -> Vec<QueueId> {
        match selector {
            TopicSelector::Name(name) => self.find(name).into_iter().collect(),
            TopicSelector::Pattern(_) => {
                let meant = self.by_name.iter().filter(|(name, _)| selector.matches(name));
                meant.map(|(_, queue)| *queue).collect()
            }
        }
    }

    /// The queues among these that a grant shows, with the filter of each for a subscription that
    /// wants these messages.
    ///
    /// # Errors
    /// The filters are too large together.
    pub(crate) fn visible(
        &self,
        cx: &mut Context,
        session: SessionId,
        queues: Vec<QueueId>,
        wanted: Option<&Filter>,
        grant: &Grant,
    ) -> Result<Vec<(QueueId, Option<Filter>)>, Refused> {
        let mut visible = Vec::with_capacity(queues.len());
        for queue in queues {
            if let Some(own) = grant.of_topic(&self.all[queue.get() as usize].name) {
                visible.push((queue, cx.narrow(session, &own, wanted.cloned())?));
            }
        }
        Ok(visible)
    }

    /// The engine, and the callbacks that answer its questions.
    pub(super) fn answers(&mut self, now: Timestamp) -> (&mut Queues, Answers<'_>) {
        let QueueService { engine, filters, recent, unreadable, .. } = self;
        (engine, Answers { filters, recent, unreadable, missing: Vec::new(), now })
    }

    /// The topics that a bookmark subscription to the name of a queue selects.
    pub(crate) fn replayed_for(&self, selector: TopicSelector) -> TopicSelector {
        match &selector {
            TopicSelector::Name(name) => match self.find(name) {
                Some(queue) => self.definition(queue).selector.clone(),
                None => selector,
            },
            TopicSelector::Pattern(_) => selector,
        }
    }
}

impl QueueService {
    /// Whether a queue takes its messages from the topic of this name, or publishes its dead
    /// letters to it.
    pub(crate) fn names_topic(&self, name: &str) -> bool {
        self.live().any(|(_, definition)| {
            let is_source = matches!(&definition.selector, TopicSelector::Name(source) if **source == *name);
            is_source || definition.dead_letter_topic.as_deref() == Some(name)
        })
    }

    /// A subscription becomes one of these queues, or changes over to them and keeps its messages.
    pub(crate) fn join(
        &mut self,
        cx: &mut Context,
        session: SessionId,
        kept: Option<QueueSubscription>,
        wanted: &Wanted<'_>,
    ) -> Result<QueueSubscription, SubscribeError> {
        let Wanted { queues, is_named, max_backlog } = *wanted;
        let connection = ConnectionId::new(cx.session(session).connection.0);
        let spec = SubscriptionSpec {
            connection,
            backlog: max_backlog,
            queues: queues
                .iter()
                .map(|(queue, filter)| {
                    (*queue, filter.as_ref().map(|filter| self.filters.acquire(*queue, filter)))
                })
                .collect(),
        };
        let filters = spec.queues.iter().filter_map(|(_, filter)| *filter).collect();
        let is_named = is_named || kept.as_ref().is_some_and(|queued| self.holds_any(queued));
        let result = match &kept {
            Some(queued) => self.engine.replace(queued.id, &spec).map(|()| queued.id),
            None => self.engine.subscribe(&spec),
        };
        match result {
            Ok(id) => {
                let pending = match kept {
                    Some(queued) => {
                        queued.filters.iter().for_each(|filter| self.filters.release(*filter));
                        queued.pending
                    }
                    None => VecDeque::new(),
                };
                self.engine.hold(id, self.paused.contains(&session));
                Ok(QueueSubscription { id, is_named, pending, filters })
            }
            Err(error) => {
                filters.iter().for_each(|filter| self.filters.release(*filter));
                if let Some(queued) = kept {
                    self.leave(cx, queued);
                }
                Err(error)
            }
        }
    }

    /// A subscription is replaced by one that is not served by queues. It keeps its messages.
    /// `None`: it has none, and has ended for the queues.
    pub(crate) fn part(
        &mut self,
        cx: &mut Context,
        session: SessionId,
        mut queued: QueueSubscription,
    ) -> Option<QueueSubscription> {
        if !self.holds_any(&queued) {
            self.leave(cx, queued);
            return None;
        }
        std::mem::take(&mut queued.filters).iter().for_each(|filter| self.filters.release(*filter));
        queued.is_named = true;
        let connection = ConnectionId::new(cx.session(session).connection.0);
        let spec = SubscriptionSpec { connection, backlog: Some(0), queues: Vec::new() };
        // Only a specification that names queues can be refused.
        let _ = self.engine.replace(queued.id, &spec);
        Some(queued)
    }

    /// Whether messages are leased to the subscription, or wait to be sent to it.
    fn holds_any(&self, queued: &QueueSubscription) -> bool {
        !queued.pending.is_empty()
            || self.engine.backlog(queued.id).is_some_and(|(_, outstanding)| outstanding > 0)
    }

    /// From now on the engine's deliveries for the subscription go to its connection. Gives the
    /// granted backlog.
    pub(crate) fn attach(&mut self, id: SubscriptionId, queued: QueueSubscription) -> Option<u32> {
        let engine_id = queued.id;
        self.subscriptions.insert(engine_id, id);
        self.served.insert(id, Box::new(queued));
        self.engine.backlog(engine_id).map(|(granted, _)| granted)
    }

    /// Takes the part of a subscription that is about to be replaced.
    pub(crate) fn detach(&mut self, id: SubscriptionId) -> Option<QueueSubscription> {
        self.served.remove(id).map(|queued| *queued)
    }

    /// The part of a subscription that queues serve, or have served while it still holds messages
    /// of them.
    pub(super) fn served(&mut self, cx: &Context, id: SubscriptionId) -> Option<&mut QueueSubscription> {
        cx.clients.subscriptions.get(id)?;
        self.served.get_mut(id).map(Box::as_mut)
    }

    /// Releases the messages of a subscription that is about to end, except those that its consumer
    /// has begun.
    pub(crate) fn release(&mut self, cx: &mut Context, id: SubscriptionId, begun: BegunMessages<'_>) {
        let now = self.time(cx.clock.now);
        let Some(engine_id) = self.served(cx, id).map(|queued| queued.id) else { return };
        let begun: BTreeSet<_> = begun.iter().collect();
        let QueueService { engine, outstanding, all, .. } = self;
        engine.release(engine_id, now, |queue, position, bookmark| {
            let is_sent =
                |name: &Bookmark| outstanding[queue.get() as usize].position(*name) == Some(position);
            let name = &*all[queue.get() as usize].name;
            bookmark.filter(is_sent).is_some_and(|Bookmark { publisher, sequence }| {
                let named = |queue| begun.contains(&(queue, (publisher.get(), sequence)));
                named(Some(name)) || named(None)
            })
        });
    }

    /// A subscription ends. It is not one of its queues any more, nor of those that it had left.
    pub(crate) fn end(&mut self, cx: &mut Context, id: SubscriptionId) {
        if let Some(queued) = self.detach(id) {
            self.leave(cx, queued);
        }
    }

    /// The messages that a subscription holds return to the queues.
    fn leave(&mut self, cx: &mut Context, queued: QueueSubscription) {
        let now = self.time(cx.clock.now);
        self.engine.unsubscribe(queued.id, now);
        self.subscriptions.remove(&queued.id);
        queued.filters.iter().for_each(|filter| self.filters.release(*filter));
    }

    /// A session ends, or its subscriptions do.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        self.paused.remove(&id);
        self.settling.remove(&id);
        self.querying.remove(&id);
    }

    /// Ends the subscriptions whose filters took too much effort for a message.
    pub(super) fn end_costly_filters(&mut self, cx: &mut Context) {
        for (filter, size) in self.filters.take_costly() {
            let all: Vec<_> = self.subscriptions.values().copied().collect();
            for id in all {
                if self.served(cx, id).is_some_and(|queued| queued.filters.contains(&filter)) {
                    cx.end_costly(id, size);
                }
            }
        }
    }

    /// Tells subscriptions which leases they have lost.
    pub(crate) fn notify_lost_leases(&mut self, cx: &mut Context) {
        while let Some(lost) = self.engine.poll_lost() {
            let Some(&id) = self.subscriptions.get(&lost.subscription) else { continue };
            let outstanding = &self.outstanding[lost.queue.get() as usize];
            let is_sent = |name: &Bookmark| outstanding.position(*name) == Some(lost.position);
            let (Some(subscription), Some(bookmark)) =
                (cx.clients.subscriptions.get(id), lost.bookmark.filter(is_sent))
            else {
                continue;
            };
            let reason = match lost.cause {
                LostCause::Returned => LeaseEnd::Expired,
                LostCause::Settled => LeaseEnd::SettledByAnother,
                LostCause::Expired => LeaseEnd::MessageExpired,
            };
            let (session, subscription) = (subscription.session, subscription.number);
            let (publisher, sequence) = (bookmark.publisher.get(), bookmark.sequence);
            let is_named = self.served.get(id).is_some_and(|queued| queued.is_named);
            let queue = is_named.then_some(&*self.all[lost.queue.get() as usize].name);
            cx.put(session, &Reply::LeaseLost { subscription, reason, publisher, sequence, queue });
        }
    }
}
