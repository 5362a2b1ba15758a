//! The figures of queues (docs/queues.md section 10).

use super::QueueService;
use crate::context::Context;
use crate::stats::{QueueFigures, QueueStats, SubscriptionStats};
use crate::subscription::{ServedBy, SubscriptionId};
use quire_queue::QueueId;

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

    fn stats_by_id(&self, cx: &Context, queue: QueueId) -> QueueStats {
        let now = self.time_or_start(cx.clock.now);
        let topics = &self.definition(queue).selector;
        let mut dead_letter_topics = self.live().filter_map(|(_, other)| other.dead_letter_topic.as_deref());
        let mut engine = self.engine.stats(queue, now).unwrap_or_default();
        engine.catching_up += u64::from(self.fills.read_to(queue).is_some());
        QueueStats {
            engine,
            dead_letters: self.dead_letters.count(queue),
            takes_dead_letters: dead_letter_topics.any(|topic| topics.matches(topic)),
            settled: self.settled(queue, cx.log.served).get(),
            strict: self.definition(queue).config.leasing == quire_queue::Leasing::Strict,
            left_out: self.left_out.of(queue).map_or(0, |left_out| left_out.count),
            created: self.defining.is_created(queue),
        }
    }
}
