//! The figures of queues (docs/queues.md section 10).

use super::QueueService;
use crate::context::Context;
use crate::stats::{HeldFigures, QueueFigures, QueueStats, SubscriptionStats};
use crate::subscription::{ServedBy, SubscriptionId};
use quire_queue::{QueueId, Time};

impl QueueService {
    /// The figures of every queue.
    pub fn stats(&self, cx: &Context) -> QueueFigures {
        let queues = self.by_name.iter();
        queues.map(|(name, queue)| (name.to_string(), self.stats_by_id(cx, *queue))).collect()
    }

    /// The figures of one queue; `None` when no queue has the name.
    pub fn stats_of(&self, cx: &Context, name: &str) -> Option<QueueStats> {
        self.find(name).map(|queue| self.stats_by_id(cx, queue))
    }

    /// Adds the outstanding messages of a subscription.
    pub(crate) fn describe(&self, cx: &Context, id: SubscriptionId, stats: &mut SubscriptionStats) {
        if let ServedBy::Queue = cx.clients.subscriptions.all[id].served_by
            && let Some(queued) = self.served.get(id)
            && let Some((backlog, outstanding)) = self.engine.backlog(queued.id)
        {
            (stats.backlog, stats.max_backlog) = (Some(outstanding), Some(backlog));
        }
    }

    /// Up to `limit` messages in the hands of subscriptions: those that were delivered first.
    /// `None` when no queue has the name.
    pub(crate) fn held(&self, cx: &Context, name: &str, limit: usize) -> Option<Vec<HeldFigures>> {
        let now = self.time_or_start(cx.clock.now);
        let seconds = |from: Time, to: Time| to.get().saturating_sub(from.get()) as f64 / 1e9;
        let held = self.engine.held(self.find(name)?, limit).into_iter().filter_map(|held| {
            let id = *self.subscriptions.get(&held.subscription)?;
            let subscription = cx.clients.subscriptions.all.get(id)?;
            let session = &cx.clients.sessions.all[subscription.session];
            Some(HeldFigures {
                bookmark: held.bookmark.map(|bookmark| bookmark.to_string()),
                position: held.position.get(),
                connection: session.connection,
                client_name: session.client_name().unwrap_or_default(),
                subscription: subscription.number,
                age_s: seconds(held.since, now),
                left_s: held.deadline.map(|deadline| seconds(now, deadline)),
                deliveries: held.delivery_count,
                cancels: held.cancel_count,
            })
        });
        Some(held.collect())
    }

    fn stats_by_id(&self, cx: &Context, queue: QueueId) -> QueueStats {
        let now = self.time_or_start(cx.clock.now);
        let topics = &self.definition(queue).selector;
        let mut dead_letter_topics = self.live().filter_map(|(_, other)| other.dead_letter_topic.as_deref());
        let mut engine = self.engine.stats(queue, now).unwrap_or_default();
        engine.catching_up += u64::from(self.fills.read_to(queue).is_some());
        QueueStats {
            engine,
            message_type: self.definition(queue).message_type.name(),
            dead_letters: self.dead_letters.count(queue),
            takes_dead_letters: dead_letter_topics.any(|topic| topics.matches(topic)),
            settled: self.settled(queue, cx.log.served).get(),
            strict: self.definition(queue).config.leasing == quire_queue::Leasing::Strict,
            left_out: self.left_out.of(queue).map_or(0, |left_out| left_out.count),
            created: self.defining.is_created(queue),
        }
    }
}
