//! The queue that each instance has over replicated topics: its settings, its workers, and what
//! must hold for it (docs/replication.md, *Queues*).
//!
//! Checked, for each instance:
//! - Its queue delivers every message of its log, also those that came from other instances. A
//!   worker that moves may acknowledge a message on another instance than the one that delivered
//!   it: its lease may still last when the worker has another connection. The queue of the other
//!   instance then need not deliver the message.
//! - A message whose acknowledgement was confirmed is not delivered again, unless the disk of the
//!   instance was lost or replaced.

use std::collections::{BTreeMap, BTreeSet};

use quire_broker::{BrokerConfig, QueueSettings};
use quire_client::{ClientCore, CommandId, Event, Message, SubscriptionSpec};
use quire_types::Verdict;
use quire_types::time::Now;

use super::auditor::Auditor;
use crate::random::Random;
use crate::world::auditor::value_of;
use crate::world::{Canary, SECOND_NS};

const NAME: &str = "shared";

/// Adds the queue to the configuration of an instance with links.
pub(in crate::world) fn add_queue(config: &mut BrokerConfig, random: &mut Random) {
    if config.replication.destinations.is_empty() {
        return;
    }
    config.replication.local_queues.push(NAME.into());
    config.queues.push(QueueSettings {
        name: NAME.into(),
        message_type: "json".into(),
        underlying_topic: Some("^orders".into()),
        default_publish_target: Some("orders/a".into()),
        lease_period_ns: Some(2 * SECOND_NS),
        max_per_subscription_backlog: Some(50 + random.below(200) as u32),
        // From start to start the state is kept or not, and a file may be there or not.
        file_backed_metadata: random.below(2) == 0,
        record_leases: true,
        ..QueueSettings::default()
    });
}

/// The connection of a worker.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::world) struct Connection {
    worker: usize,
    pub instance: usize,
    since_ns: u64,
}

/// The deliveries and acknowledgements of the queue of one instance.
#[derive(Default)]
pub(in crate::world) struct Deliveries {
    delivered: BTreeSet<u64>,
    /// When an acknowledgement was confirmed, and over which connection.
    acknowledged: BTreeMap<u64, (u64, Connection)>,
    replaced_ns: Option<u64>,
    pub delivered_count: u64,
    pub acknowledged_count: u64,
}

impl Deliveries {
    pub fn has_delivered(&self, value: u64) -> bool {
        self.delivered.contains(&value)
    }

    /// A message came over a connection.
    ///
    /// # Errors
    /// Its acknowledgement was confirmed before.
    pub fn delivered(&mut self, value: u64, connection: Connection) -> Result<(), String> {
        self.delivered_count += 1;
        self.delivered.insert(value);
        // On an older connection it may have been under way when another worker acknowledged it.
        match self.acknowledged.get(&value) {
            Some((at, confirmed)) if *at < connection.since_ns || *confirmed == connection => {
                Err(format!("message {value} was acknowledged, and came again"))
            }
            _ => Ok(()),
        }
    }

    /// A worker got the answer, over a connection, that its acknowledgement of a message is
    /// durable. The message came over the connection `from`.
    pub fn acknowledged(&mut self, value: u64, from: Connection, connection: Connection, now_ns: u64) {
        self.acknowledged_count += 1;
        // The instance lacks a message that came before the disk was lost or replaced, and so knows
        // nothing of its acknowledgement.
        if self.replaced_ns.is_none_or(|at| at < from.since_ns) {
            self.acknowledged.entry(value).or_insert((now_ns, connection));
        }
    }

    /// The disk was lost, or replaced by an older one.
    pub fn replaced(&mut self, now_ns: u64) {
        self.replaced_ns = Some(now_ns);
        self.acknowledged.clear();
    }
}

/// Takes messages from the queue of the instance to which it is connected.
pub(in crate::world) struct Worker {
    number: usize,
    canary: Option<Canary>,
    /// It moves between the instances.
    moves: bool,
    subscription: Option<u32>,
    /// The messages that it has, with the connections over which they came.
    held: Vec<(Held, Message)>,
    /// The messages that were acknowledged since the last flush.
    said: Vec<Held>,
    /// The flush whose answer shows whether these acknowledgements are durable.
    flushing: Option<(CommandId, Vec<Held>)>,
}

#[derive(Clone, Copy)]
struct Held {
    value: u64,
    from: Connection,
}

impl Worker {
    pub fn new(number: usize, moves: bool, canary: Option<Canary>) -> Self {
        Worker {
            number,
            canary,
            moves,
            subscription: None,
            held: Vec::new(),
            said: Vec::new(),
            flushing: None,
        }
    }

    pub fn restart(&mut self) {
        *self = Worker::new(self.number, self.moves, self.canary);
    }

    pub fn act(
        &mut self,
        core: &mut ClientCore,
        now: Now,
        random: &mut Random,
        auditor: &mut Auditor,
        is_settling: bool,
    ) {
        if self.subscription.is_none() {
            let spec = SubscriptionSpec { max_backlog: Some(100), ..SubscriptionSpec::new(NAME) };
            self.subscription = core.subscribe(spec).ok().map(|(number, _)| number);
        }
        // Now and then a worker keeps its messages.
        if !is_settling && random.percent(30) {
            return;
        }
        for (held, message) in std::mem::take(&mut self.held) {
            let Some(lease) = message.lease().filter(|lease| !lease.is_lost(now.instant)) else { continue };
            if self.canary == Some(Canary::ForgottenVerdict) && random.percent(5) {
                self.said.push(held);
            } else if !is_settling && random.percent(5) {
                // Fails when the client is closed, which gives the message back as well.
                let _ = core.settle(lease, Verdict::Cancel, now.instant);
            } else if core.settle(lease, Verdict::Acknowledge, now.instant).is_ok() {
                self.said.push(held);
                if self.moves {
                    auditor.settled(held.value);
                }
            }
        }
        if !self.said.is_empty() && self.flushing.is_none() && random.percent(30) {
            let said = std::mem::take(&mut self.said);
            // A refused flush means that some of them are lost. The state of each is unknown.
            self.flushing = core.flush().ok().map(|command| (command, said));
        }
    }

    /// `instance`: to which it is connected, since `since_ns`.
    pub fn take(
        &mut self,
        event: Event,
        now: Now,
        (instance, since_ns): (usize, u64),
        auditor: &mut Auditor,
    ) {
        let connection = Connection { worker: self.number, instance, since_ns };
        match event {
            Event::Messages { subscription, messages } if Some(subscription) == self.subscription => {
                for message in messages {
                    let Some(value) = value_of(message.data()) else {
                        return auditor.fail("a queue delivered a message that was not published".into());
                    };
                    auditor.delivered(connection, value);
                    self.held.push((Held { value, from: connection }, message));
                }
            }
            Event::Answered { command, result } => {
                if let Some((_, said)) = self.flushing.take_if(|(flush, _)| *flush == command) {
                    let now_ns = now.instant.as_ns();
                    let queue = &mut auditor.queues[instance];
                    // A verdict that went to another instance than the one that delivered the
                    // message says nothing about this one.
                    let said = said.into_iter().filter(|held| held.from.instance == instance);
                    match result {
                        Ok(()) => said
                            .for_each(|held| queue.acknowledged(held.value, held.from, connection, now_ns)),
                        // It reports once all acknowledgements before the connection broke
                        // (docs/clients.md).
                        Err(_) => self.said.clear(),
                    }
                }
            }
            Event::Ended { subscription, .. } if Some(subscription) == self.subscription => {
                self.subscription = None;
            }
            _ => (),
        }
    }
}
