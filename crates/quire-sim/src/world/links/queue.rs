//! The queue that each instance has over replicated topics: its settings, its workers, and what
//! must hold for it (docs/replication.md, *Queues*).
//!
//! Checked, for each instance:
//! - Its queue delivers every message of its log, also those that came from other instances, until
//!   a worker acknowledges it. After a disk was lost or replaced, this holds for the messages that
//!   the present log has.
//! - A message whose acknowledgement was confirmed is not delivered again, unless the disk of the
//!   instance was lost or replaced.
//!
//! A client sends acknowledgements that were not confirmed when its connection ended once more
//! after the next logon, also to another instance (docs/replication.md, *Queues*). The queue of
//! this instance need not deliver these messages: it is *told* about them. A client repeats an
//! acknowledgement when the queue delivers the message again before it has received the first one.
//! The program does not see such a delivery. So the auditor asks the client which acknowledgements
//! are not confirmed. Only messages that the worker has acknowledged may be among them.

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
    /// The events since the present disk was empty, and those up to each of its copies, by the
    /// times of the copies.
    present: Passed,
    copies: BTreeMap<u64, Passed>,
    /// When an acknowledgement was confirmed, and over which connection.
    acknowledged: BTreeMap<u64, (u64, Connection)>,
    replaced_ns: Option<u64>,
    pub delivered_count: u64,
    pub acknowledged_count: u64,
}

/// The messages that came, those that were acknowledged, and those of acknowledgements that were
/// sent once more.
#[derive(Clone, Default)]
struct Passed {
    delivered: BTreeSet<u64>,
    settled: BTreeSet<u64>,
    told: BTreeSet<u64>,
}

impl Deliveries {
    /// # Errors
    /// The queue still has to deliver a message of the log.
    pub fn judge(&self, value: u64) -> Result<(), String> {
        let Passed { delivered, settled, told } = &self.present;
        if told.contains(&value) {
            return Ok(());
        }
        match (delivered.contains(&value), settled.contains(&value)) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("never delivered message {value}")),
            (true, false) => Err(format!("did not deliver message {value} until it was acknowledged")),
        }
    }

    /// A message came over a connection.
    ///
    /// # Errors
    /// Its acknowledgement was confirmed before.
    pub fn delivered(&mut self, value: u64, connection: Connection) -> Result<(), String> {
        self.delivered_count += 1;
        if self.is_present(connection) {
            self.present.delivered.insert(value);
        }
        // On an older connection it may have been under way when another worker acknowledged it.
        match self.acknowledged.get(&value) {
            Some((at, confirmed)) if *at < connection.since_ns || *confirmed == connection => {
                Err(format!("message {value} was acknowledged, and came again"))
            }
            _ => Ok(()),
        }
    }

    /// A worker acknowledges a message that came over the connection `from`.
    fn settled(&mut self, value: u64, from: Connection) {
        if self.is_present(from) {
            self.present.settled.insert(value);
        }
    }

    /// The instance had its present disk as the connection was made.
    fn is_present(&self, connection: Connection) -> bool {
        self.replaced_ns.is_none_or(|at| at < connection.since_ns)
    }

    /// A worker logged on, and its acknowledgement of a message was not confirmed before.
    fn told(&mut self, value: u64) {
        self.present.told.insert(value);
    }

    /// A worker got the answer, over a connection, that its acknowledgement of a message is
    /// durable. The message came over the connection `from`.
    pub fn acknowledged(&mut self, value: u64, from: Connection, connection: Connection, now_ns: u64) {
        self.acknowledged_count += 1;
        // The instance lacks a message that came before the disk was lost or replaced, and so knows
        // nothing of its acknowledgement.
        if self.is_present(from) {
            self.acknowledged.entry(value).or_insert((now_ns, connection));
        }
    }

    /// The disk is copied.
    pub fn copied(&mut self, now_ns: u64) {
        self.copies.insert(now_ns, self.present.clone());
    }

    /// The disk was lost, or replaced by the copy of a time.
    pub fn replaced(&mut self, now_ns: u64, copied_ns: Option<u64>) {
        self.replaced_ns = Some(now_ns);
        self.acknowledged.clear();
        let copy = copied_ns.and_then(|copied_ns| self.copies.get(&copied_ns));
        self.present = copy.cloned().unwrap_or_default();
    }
}

/// Takes messages from the queue of the instance to which it is connected.
pub(in crate::world) struct Worker {
    number: usize,
    canary: Option<Canary>,
    subscription: Option<u32>,
    /// The messages that it has, with the connections over which they came.
    held: Vec<(Held, Message)>,
    /// The messages that its process has acknowledged.
    settled: BTreeSet<u64>,
    /// Those since the last flush.
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
    pub fn new(number: usize, canary: Option<Canary>) -> Self {
        Worker {
            number,
            canary,
            subscription: None,
            held: Vec::new(),
            settled: BTreeSet::new(),
            said: Vec::new(),
            flushing: None,
        }
    }

    pub fn restart(&mut self) {
        *self = Worker::new(self.number, self.canary);
    }

    /// An instance let it in. The client sends the acknowledgements that are not confirmed first.
    pub fn logged_on(&self, core: &ClientCore, instance: usize, auditor: &mut Auditor) {
        for bookmark in core.unconfirmed_messages(NAME) {
            match auditor.value_at(bookmark).filter(|value| self.settled.contains(value)) {
                Some(value) => auditor.queues[instance].told(value),
                None => auditor.fail(format!("a client acknowledges {bookmark}, and its program did not")),
            }
        }
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
                let is_kept = self.canary != Some(Canary::LostCancel);
                let verdict = if is_kept { Verdict::Cancel } else { Verdict::Acknowledge };
                // Fails when the client is closed, which gives the message back as well.
                let _ = core.settle(lease, verdict, now.instant);
            } else if core.settle(lease, Verdict::Acknowledge, now.instant).is_ok() {
                self.settled.insert(held.value);
                self.said.push(held);
                auditor.queues[held.from.instance].settled(held.value, held.from);
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
                    let confirmed = said.iter().filter(|held| held.from.instance == instance);
                    match result {
                        Ok(()) => confirmed.for_each(|held| {
                            queue.acknowledged(held.value, held.from, connection, now_ns);
                        }),
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
