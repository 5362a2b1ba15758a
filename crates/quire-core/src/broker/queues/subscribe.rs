//! Subscriptions to queues: how they begin, change and end.

use std::collections::VecDeque;

use quire_journal::Timestamp;

use super::BrokerQueues;
use super::deliver::Pending;
use super::filters::Answers;
use crate::broker::Broker;
use crate::filter::Filter;
use crate::queue::{
    self, ConnectionId, FilterId, LostCause, QueueId, Queues, SubscribeError, SubscriptionSpec,
};
use crate::session::SessionId;
use crate::subscription::{Course, SubscriptionId};
use crate::topic::TopicSelector;
use crate::wire::{LeaseEnd, ServerFrame};

/// How a subscription is served by queues.
#[derive(Debug)]
pub(crate) struct QueueCourse {
    /// The engine's number for it.
    pub(super) id: queue::SubscriptionId,
    /// Its topic is a pattern: each message says which queue it comes from.
    pub(super) is_named: bool,
    /// Delivered by the engine, not sent yet.
    pub(super) pending: VecDeque<Pending>,
    filters: Vec<FilterId>,
}

impl BrokerQueues {
    /// The queues whose names a subscription means.
    pub(in crate::broker) fn matching(&self, selector: &TopicSelector) -> Vec<QueueId> {
        match selector {
            TopicSelector::Name(name) => self.find(name).into_iter().collect(),
            TopicSelector::Pattern(_) => {
                let meant = self.by_name.iter().filter(|(name, _)| selector.matches(name));
                meant.map(|(_, queue)| *queue).collect()
            }
        }
    }

    /// The engine, and the one who answers its questions.
    pub(super) fn answers(&mut self, now: Timestamp) -> (&mut Queues, Answers<'_>) {
        let BrokerQueues { engine, filters, recent, unreadable, .. } = self;
        (engine, Answers { filters, recent, unreadable, missing: Vec::new(), now })
    }

    /// What a bookmark subscription to the name of a queue means (seed 000, reference: queues-and-transaction-log M9).
    pub(in crate::broker) fn replayed_for(&self, selector: TopicSelector) -> TopicSelector {
        match &selector {
            TopicSelector::Name(name) => match self.find(name) {
                Some(queue) => self.definition(queue).selector.clone(),
                None => selector,
            },
            TopicSelector::Pattern(_) => selector,
        }
    }
}

impl Broker {
    /// A subscription becomes one of these queues, or changes over to them and keeps what it holds.
    pub(in crate::broker) fn join_queues(
        &mut self,
        session: SessionId,
        kept: Option<QueueCourse>,
        queues: &[QueueId],
        is_named: bool,
        filter: Option<&Filter>,
        max_backlog: Option<u32>,
    ) -> Result<QueueCourse, SubscribeError> {
        let connection = ConnectionId::new(self.session(session).connection.0);
        let own = &mut self.queues;
        let spec = SubscriptionSpec {
            connection,
            backlog: max_backlog,
            queues: queues
                .iter()
                .map(|queue| (*queue, filter.map(|filter| own.filters.acquire(*queue, filter))))
                .collect(),
        };
        let filters = spec.queues.iter().filter_map(|(_, filter)| *filter).collect();
        let result = match &kept {
            Some(course) => own.engine.replace(course.id, &spec).map(|()| course.id),
            None => own.engine.subscribe(&spec),
        };
        match result {
            Ok(id) => {
                let pending = match kept {
                    Some(course) => {
                        course.filters.iter().for_each(|filter| own.filters.release(*filter));
                        course.pending
                    }
                    None => VecDeque::new(),
                };
                own.engine.hold(id, own.held.contains(&session));
                Ok(QueueCourse { id, is_named, pending, filters })
            }
            Err(error) => {
                filters.iter().for_each(|filter| own.filters.release(*filter));
                if let Some(course) = kept {
                    self.leave_queues(course);
                }
                Err(error)
            }
        }
    }

    /// The engine's deliveries for the course go to this subscription. Gives the backlog granted; `None` when no queue is meant.
    pub(in crate::broker) fn name_queue_subscription(&mut self, id: SubscriptionId) -> Option<u32> {
        let engine_id = self.queue_course(id)?.id;
        self.queues.subscriptions.insert(engine_id, id);
        self.queues.engine.backlog(engine_id).map(|(granted, _)| granted)
    }

    /// A subscription ends: what it holds goes back.
    pub(in crate::broker) fn leave_queues(&mut self, course: QueueCourse) {
        let now = self.queues.time(self.now);
        self.queues.engine.unsubscribe(course.id, now);
        self.queues.subscriptions.remove(&course.id);
        course.filters.iter().for_each(|filter| self.queues.filters.release(*filter));
    }

    /// A session ends, or its subscriptions do.
    pub(in crate::broker) fn forget_in_queues(&mut self, id: SessionId) {
        self.queues.held.remove(&id);
        self.queues.settling.remove(&id);
        self.queues.querying.remove(&id);
    }

    pub(super) fn queue_course(&mut self, id: SubscriptionId) -> Option<&mut QueueCourse> {
        match &mut self.subscriptions.get_mut(id)?.course {
            Course::Queue(course) => Some(course),
            _ => None,
        }
    }

    /// Ends the subscriptions whose filters took too much effort for a message.
    pub(super) fn end_costly_filters(&mut self) {
        for (filter, size) in self.queues.filters.take_costly() {
            let all: Vec<_> = self.queues.subscriptions.values().copied().collect();
            for id in all {
                if self.queue_course(id).is_some_and(|course| course.filters.contains(&filter)) {
                    self.end_costly(id, size);
                }
            }
        }
    }

    /// Tells holders what they hold no longer.
    pub(super) fn tell_lost_leases(&mut self) {
        while let Some(lost) = self.queues.engine.poll_lost() {
            let Some(&id) = self.queues.subscriptions.get(&lost.subscription) else { continue };
            let bookmark = self.queues.outstanding[lost.queue.get() as usize].bookmark(lost.position);
            // Without a bookmark it was never sent.
            let (Some(subscription), Some(bookmark)) = (self.subscriptions.get(id), bookmark) else {
                continue;
            };
            let reason = match lost.cause {
                LostCause::Returned => LeaseEnd::Expired,
                LostCause::Settled => LeaseEnd::SettledByAnother,
                LostCause::Expired => LeaseEnd::MessageExpired,
            };
            let (session, subscription) = (subscription.session, subscription.number);
            let (publisher, sequence) = (bookmark.publisher.get(), bookmark.sequence);
            self.put(session, &ServerFrame::LeaseLost { subscription, reason, publisher, sequence });
        }
    }
}
