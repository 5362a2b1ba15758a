//! The figures of queues (docs/queues.md section 10; reference: queues-and-transaction-log 1.18).

use serde_json::{Map, Value, json};

use crate::broker::Broker;
use crate::queue::QueueId;
use crate::session::SessionId;
use crate::wire::ServerFrame;

impl Broker {
    /// Answers a `stats` command.
    pub(in crate::broker) fn tell_stats(&mut self, id: SessionId, command: u32, queue: Option<&str>) {
        let queues = match queue {
            None => self.queue_stats(),
            Some(name) => match self.queues.find(name) {
                Some(queue) => Map::from_iter([(name.to_owned(), self.stats_of(queue))]),
                None => return self.no_queue(id, command, name),
            },
        };
        let json = json!({ "queues": queues }).to_string();
        self.put(id, &ServerFrame::Stats { command, json: &json });
    }

    /// The figures of every queue, by name.
    pub fn queue_stats(&self) -> Map<String, Value> {
        let queues = self.queues.by_name.iter();
        queues.map(|(name, queue)| (name.to_string(), self.stats_of(*queue))).collect()
    }

    fn stats_of(&self, queue: QueueId) -> Value {
        let now = self.queues.time_or_start(self.now);
        let stats = self.queues.engine.stats(queue, now).unwrap_or_default();
        let seconds = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e9);
        json!({
            "depth": stats.queue_depth,
            "waiting": stats.waiting,
            "backlog": stats.backlog,
            "max_backlog": stats.max_backlog,
            "owned": stats.owned,
            "subscriptions": stats.subscriptions,
            "age_of_oldest_lease_s": seconds(stats.age_of_oldest_lease_ns),
            "age_of_oldest_s": seconds(stats.age_of_oldest_message_ns),
            "expired_leases": stats.expired_leases,
            "inactive": stats.inactive_message_count,
            "target_queue_depth": stats.target_queue_depth,
            "deferred_acks": stats.deferred_ack_count,
            "catching_up": stats.catching_up,
            "entered": stats.entered,
            "delivered": stats.delivered,
            "acknowledged": stats.acknowledged,
            "cancelled": stats.cancelled,
            "expired": stats.expired,
            "taken": stats.taken,
            "released": stats.released,
            "dead_letters": self.queues.dead_letters.count(queue),
            "settled": self.queues.settled(queue, self.edge).get(),
        })
    }
}
