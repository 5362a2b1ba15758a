//! How a queue that is created at run time enters the service, and how it leaves again.

use std::sync::Arc;

use super::created::CreatedQueue;
use super::settle::Outstanding;
use super::{Definition, QueueService, Refilling};
use crate::context::Context;
use crate::reply::Refused;
use quire_command::Code;
use quire_queue::{ChangesWriter, QueueId};

impl QueueService {
    /// Takes in a queue that commands do not find yet.
    pub(super) fn add(
        &mut self,
        cx: &mut Context,
        created: CreatedQueue,
        definition: Definition,
    ) -> Result<QueueId, Refused> {
        self.snapshots.prepare(&cx.log.journal, &definition);
        let memory = self.snapshots.memory_of(&definition);
        let added = self.engine.add_queue_in(definition.config.clone(), &memory);
        let queue = added.map_err(|error| Refused::new(Code::LimitExceeded, error.to_string()))?;
        let begin = created.takes_after();
        self.engine.begin_after(queue, begin);
        if created.is_from_epoch() {
            self.fills.add(queue);
        }
        cx.topics.set_route(queue, Some(definition.route()));
        self.snapshots.add(queue, &definition);
        self.dead_letters.add(queue);
        self.lease_log.add(queue);
        if definition.config.target_queue_depth.is_some() {
            self.refilling.insert(queue, Refilling::Idle);
        }
        self.defining.created.insert(queue, created);
        let (index, definition) = (queue.get() as usize, Arc::new(definition));
        if self.removed.remove(&queue) {
            self.all[index] = definition;
        } else {
            self.all.push(definition);
            self.outstanding.push(Outstanding::default());
            self.writers.push(ChangesWriter::default());
        }
        self.set_point(cx, queue, Some(begin));
        Ok(queue)
    }

    /// From now on commands do not find the queue, no message enters it, and its subscriptions end.
    pub(super) fn retire(&mut self, cx: &mut Context, queue: QueueId) {
        let name = self.definition(queue).name.clone();
        self.by_name.remove(&name);
        self.defining.created.remove(&queue);
        self.snapshots.forget(queue);
        self.fills.forget(queue);
        cx.topics.set_route(queue, None);
        self.end_subscriptions_of(cx, queue);
    }

    fn end_subscriptions_of(&mut self, cx: &mut Context, queue: QueueId) {
        let reason = format!("queue {:?} was dropped", self.definition(queue).name);
        for subscription in self.engine.subscriptions_of(queue) {
            if let Some(id) = self.subscriptions.get(&subscription) {
                cx.end_subscription(*id, Code::UnknownQueue, &reason);
            }
        }
    }

    /// Removes a queue that was retired, and gives how many messages it had; `None` while something
    /// still uses it.
    pub(super) fn try_remove(&mut self, cx: &mut Context, queue: QueueId) -> Option<u64> {
        let definition = self.definition(queue).clone();
        let is_settling = self.settling.values().any(|job| job.queue() == queue);
        let is_refilling = self.refilling.get(&queue) == Some(&Refilling::UnderWay);
        let is_filling = self.fills.read_to(queue).is_some();
        let is_writing = definition.keeps_state() && self.snapshots.is_writing();
        if is_settling || is_refilling || is_filling || is_writing {
            return None;
        }
        // The changes of its messages are logged under its name.
        self.log_changes(cx);
        self.log_leases(cx, true);
        // A subscription has ended, and the run loop has not removed it yet.
        let Some(message_count) = self.engine.remove_queue(queue) else {
            self.end_subscriptions_of(cx, queue);
            cx.clock.wants_turn = true;
            return None;
        };
        // Subscriptions that moved to other queues keep deliveries that they have not sent.
        self.served.values_mut().for_each(|queued| queued.forget_queue(queue));
        let index = queue.get() as usize;
        self.outstanding[index] = Outstanding::default();
        self.notices.forget(queue);
        self.refilling.remove(&queue);
        self.removed.insert(queue);
        self.set_point(cx, queue, None);
        self.save_now(cx);
        self.remove_state(cx, &definition);
        Some(message_count + self.dead_letters.forget(&mut cx.log, queue))
    }

    /// The queues whose dead letters no other queue than this one takes, each as a warning.
    pub(super) fn letters_without_queue(&self, queue: QueueId) -> Vec<String> {
        let dropped = self.definition(queue);
        let orphaned = self.live().filter(|(other, definition)| {
            let Some(topic) = definition.dead_letter_topic.as_deref() else { return false };
            let takes = |(taker, definition): (QueueId, &Arc<Definition>)| {
                taker != queue && definition.selector.matches(topic)
            };
            *other != queue && dropped.selector.matches(topic) && !self.live().any(takes)
        });
        orphaned
            .map(|(_, definition)| {
                let topic = definition.dead_letter_topic.as_deref().unwrap_or_default();
                format!(
                    "no queue takes the dead letters of queue {:?} on {topic:?} any more",
                    definition.name
                )
            })
            .collect()
    }
}
