//! The events of the server as messages: the topics below `/quire/` (docs/operations.md, "Event
//! topics").
//!
//! A service reports an event to the [`Context`]. The message is only made when it is wanted: the
//! log records the topic, a last-value topic keeps it, or a subscription is served. The run loop
//! publishes the waiting messages twice in each turn.
//!
//! The engine of actions is outside of the broker. It gets the events of clients as
//! [`Output::Signal`], and the records that were removed as messages of the topics
//! [`left_topic`], which the log records. `delivered.rs` publishes deliveries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use quire_command::{OofReason, Subscribe, SubscribeOptions};
use quire_expression::message_type::MessageType;
use quire_journal::{HeadersBuffer, Timestamp};
use quire_table::Row;
use rustc_hash::FxBuildHasher;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Access;
use crate::config::queues::QueueSettings;
use crate::context::Context;
use crate::delivered::{LeftOut, Watch};
use crate::enclosed::{add, enclosed};
use crate::io::Output;
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use crate::timer::Timer;
use crate::topic::TopicTable;

/// The settings of events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventsConfig {
    /// The time between two reports of the records of last-value topics, in nanoseconds; `None`: no
    /// reports.
    pub sow_stats_interval_ns: Option<u64>,
    /// The events of clients are signals for the driver, too.
    pub signals_clients: bool,
    /// The last-value topics whose removed records are published.
    pub left: Vec<LeftTopic>,
    /// The deliveries that are published.
    pub delivered: Vec<DeliveredTopic>,
    /// The queues whose expired messages are published. Those without a `dead_letter_topic` get the
    /// topic of [`left_topic`].
    pub expired: Vec<String>,
}

impl EventsConfig {
    /// The settings of the queues, with the topics for their expired messages.
    pub fn with_letters(&self, queues: &[QueueSettings]) -> Vec<QueueSettings> {
        let mut queues = queues.to_vec();
        for queue in queues.iter_mut().filter(|queue| self.expired.contains(&queue.name)) {
            queue.dead_letter_topic.get_or_insert_with(|| left_topic(&queue.name));
        }
        queues
    }
}

/// A last-value topic whose removed records are published.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeftTopic {
    /// The topic.
    pub topic: String,
    /// Those that were deleted.
    pub deleted: bool,
    /// Those whose lifetime is over.
    pub expired: bool,
}

/// Deliveries that are published on the topic of [`delivered_topic`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeliveredTopic {
    /// The name of the wish.
    pub name: String,
    /// The topic of the messages, or a pattern.
    pub topic: String,
    /// Only messages that match.
    pub filter: Option<String>,
}

/// A topic of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTopic {
    /// Connections, and what their clients do.
    ClientStatus,
    /// The number of records of each last-value topic.
    SowStats,
    /// The runs of actions.
    Action,
}

impl EventTopic {
    const ALL: [EventTopic; 3] = [EventTopic::ClientStatus, EventTopic::SowStats, EventTopic::Action];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            EventTopic::ClientStatus => "/quire/ClientStatus",
            EventTopic::SowStats => "/quire/SowStats",
            EventTopic::Action => "/quire/Action",
        }
    }
}

/// The topic of the messages that left a queue or a last-value topic, for actions.
pub fn left_topic(name: &str) -> String {
    format!("/quire/Left/{name}")
}

/// A message of the server that waits to be published.
pub struct EventMessage {
    pub topic: Arc<str>,
    pub correlation_id: Vec<u8>,
    pub headers: HeadersBuffer,
    pub data: Vec<u8>,
    /// It is a delivery (`delivered.rs`).
    pub is_delivery: bool,
}

/// The events that wait to be published.
pub struct Events {
    waiting: VecDeque<EventMessage>,
    /// Of each topic, in the order of [`EventTopic::ALL`]: the log or a last-value topic keeps its
    /// messages.
    kept: [bool; EventTopic::ALL.len()],
    /// Of last-value topics: whether deleted and expired records are published.
    left: HashMap<Box<str>, (bool, bool), FxBuildHasher>,
    /// The client of the server itself whose delete removes records now.
    deleting: Option<Box<str>>,
    /// The deliveries that are published.
    pub(crate) watches: Vec<Watch>,
    /// Bytes of deliveries among the waiting messages.
    pub(crate) deliveries_size: usize,
    pub(crate) deliveries_left_out: LeftOut,
}

impl Events {
    pub fn new(config: &EventsConfig, topics: &TopicTable, watches: Vec<Watch>) -> Self {
        let left = config.left.iter().map(|left| (left.topic.as_str().into(), (left.deleted, left.expired)));
        Events {
            waiting: VecDeque::new(),
            kept: EventTopic::ALL.map(|topic| topics.keeps(topic.name())),
            left: left.collect(),
            deleting: None,
            watches,
            deliveries_size: 0,
            deliveries_left_out: LeftOut::default(),
        }
    }

    /// From now on, this client of the server itself removes records; `None`: none does.
    pub fn set_deleting(&mut self, client_name: Option<String>) {
        self.deleting = client_name.map(Into::into);
    }

    /// Adds a message to publish.
    pub(crate) fn push(&mut self, message: EventMessage) {
        self.waiting.push_back(message);
    }

    /// The next message to publish.
    pub fn pop(&mut self) -> Option<EventMessage> {
        let message = self.waiting.pop_front()?;
        if message.is_delivery {
            self.deliveries_size -= message.data.len();
        }
        Some(message)
    }

    /// Whether a message waits.
    pub fn any(&self) -> bool {
        !self.waiting.is_empty()
    }
}

/// An event of a client. Members that are `None` are null.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientEvent<'a> {
    pub event: &'static str,
    /// The name of a client that has not logged on.
    pub client_name: Option<&'a str>,
    pub reason: Option<&'a str>,
    pub topic: Option<&'a str>,
    pub filter: Option<&'a str>,
    pub sub_id: Option<u32>,
    pub options: Option<&'a str>,
    pub query_id: Option<u32>,
    /// The bytes that wait for a client that is offlined, or have waited for one that is not any
    /// more.
    pub bytes: Option<u64>,
    /// The ids of the publisher of a client that logs on: of messages with and without a sequence.
    pub publishers: Option<[u64; 2]>,
}

/// A message of `/quire/ClientStatus`.
#[derive(Serialize)]
struct ClientStatus<'a> {
    event: &'a str,
    timestamp: String,
    client_name: Option<&'a str>,
    connection_name: Option<&'a str>,
    remote_address: Option<&'a str>,
    user: Option<&'a str>,
    reason: Option<&'a str>,
    topic: Option<&'a str>,
    filter: Option<&'a str>,
    sub_id: Option<String>,
    options: Option<&'a str>,
    query_id: Option<String>,
    correlation_id: Option<&'a str>,
    /// Only in signals.
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<&'a str>,
    /// Only in signals.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Only in signals.
    #[serde(skip_serializing_if = "Option::is_none")]
    publishers: Option<[String; 2]>,
}

/// A message of `/quire/SowStats`.
#[derive(Serialize)]
struct SowStats<'a> {
    topic: &'a str,
    message_type: &'a str,
    record_count: u64,
    timestamp: String,
}

impl Context {
    /// Whether a message of a topic of events would reach the log, a last-value topic or a
    /// subscription.
    pub fn wants_event(&self, topic: EventTopic) -> bool {
        self.messages.events.kept[topic as usize] || self.topics.is_heard(topic.name())
    }

    /// Whether events of clients are wanted.
    #[inline]
    pub fn wants_client_events(&self) -> bool {
        self.config.events.signals_clients || self.wants_event(EventTopic::ClientStatus)
    }

    /// Publishes a message of the server with the next events.
    pub fn tell(&mut self, topic: EventTopic, data: Vec<u8>) {
        if self.wants_event(topic) {
            self.push_event(topic.name().into(), data);
        }
    }

    fn push_event(&mut self, topic: Arc<str>, data: Vec<u8>) {
        let (correlation_id, headers) = (Vec::new(), HeadersBuffer::default());
        self.messages.events.push(EventMessage { topic, correlation_id, headers, data, is_delivery: false });
    }

    /// Reports an event of a client. The clients of the server itself have none.
    pub fn tell_client(&mut self, id: SessionId, what: ClientEvent<'_>) {
        let Some(session) = self.clients.sessions.all.get(id) else { return };
        if session.access == Access::Internal || !self.wants_client_events() {
            return;
        }
        let facts = session.client_facts();
        let mut status = ClientStatus {
            event: what.event,
            timestamp: self.clock.now.wall.to_string(),
            client_name: what.client_name.or(facts.client_name.as_deref()),
            connection_name: facts.connection_name.as_deref(),
            remote_address: facts.remote_address.as_deref(),
            user: facts.user.as_deref(),
            reason: what.reason,
            topic: what.topic,
            filter: what.filter.filter(|filter| !filter.is_empty()),
            sub_id: what.sub_id.map(|number| number.to_string()),
            options: what.options,
            query_id: what.query_id.map(|number| number.to_string()),
            correlation_id: None,
            transport: None,
            bytes: None,
            publishers: None,
        };
        // Every member is text, so it can be written as JSON.
        let data = serde_json::to_vec(&status).unwrap_or_default();
        status.bytes = what.bytes;
        status.transport = Some(&self.transport_of(id).name);
        status.publishers = what.publishers.map(|ids| ids.map(|id| id.to_string()));
        let signal = self.config.events.signals_clients.then(|| serde_json::to_string(&status));
        if let Some(Ok(signal)) = signal {
            self.outputs.push_back(Output::Signal(signal));
        }
        self.tell(EventTopic::ClientStatus, data);
    }

    /// Reports that a subscription ends.
    pub fn tell_unsubscribed(&mut self, id: SubscriptionId) {
        if !self.wants_client_events() {
            return;
        }
        let Some(subscription) = self.clients.subscriptions.all.get(id) else { return };
        let (session, number) = (subscription.session, subscription.number);
        let topic = subscription.wanted.selector.text().to_owned();
        let filter = subscription.wanted.filter.as_ref().map(|filter| filter.text().to_owned());
        let (topic, filter) = (Some(topic.as_str()), filter.as_deref());
        let what =
            ClientEvent { event: "unsubscribe", topic, filter, sub_id: Some(number), ..Default::default() };
        self.tell_client(session, what);
    }

    /// Sets the timer of the next report about last-value topics.
    pub fn time_sow_stats(&mut self) {
        if let Some(interval) = self.config.events.sow_stats_interval_ns {
            let due = self.clock.now.instant + Duration::from_nanos(interval);
            self.clock.timers.set(Timer::SowStats, due);
        }
    }

    /// Reports the number of records of a last-value topic.
    pub fn tell_sow_stats(&mut self, topic: &str, message_type: MessageType, record_count: u64) {
        let timestamp = self.clock.now.wall.to_string();
        let stats = SowStats { topic, message_type: message_type.name(), record_count, timestamp };
        self.tell(EventTopic::SowStats, serde_json::to_vec(&stats).unwrap_or_default());
    }

    /// Publishes a removed record of a last-value topic, when an action wants it.
    pub fn tell_left(
        &mut self,
        topic: &str,
        message_type: MessageType,
        row: &Row<'_>,
        reason: OofReason,
        at: Timestamp,
    ) {
        if self.messages.events.left.is_empty() {
            return;
        }
        let (deleted, expired) = self.messages.events.left.get(topic).copied().unwrap_or_default();
        let reason = match reason {
            OofReason::Deleted if deleted => "deleted",
            OofReason::Expired if expired => "time_limit",
            _ => return,
        };
        let mut members = Map::new();
        members.insert("topic".into(), topic.into());
        members.insert("reason".into(), Value::from(vec![reason]));
        members.insert("timestamp".into(), row.timestamp.as_ns().into());
        members.insert("left".into(), at.as_ns().into());
        members.insert("sow_key".into(), String::from_utf8_lossy(row.key).into());
        if let Some(client) = &self.messages.events.deleting {
            members.insert("action".into(), client.as_ref().into());
        }
        let mut data = Value::from(members).to_string().into_bytes();
        add(&mut data, Some(&enclosed(message_type, row.data)), self.config.message_size_max());
        let message = EventMessage {
            topic: left_topic(topic).into(),
            correlation_id: row.correlation_id.to_vec(),
            headers: row.headers.into(),
            data,
            is_delivery: false,
        };
        self.messages.events.push(message);
    }
}

/// The options of a subscribe command as text; `None`: it has none.
pub fn options_text(subscribe: &Subscribe<'_>) -> Option<String> {
    let flags = [
        (SubscribeOptions::REPLACE, "replace"),
        (SubscribeOptions::LIVE, "live"),
        (SubscribeOptions::FULLY_DURABLE, "fully_durable"),
        (SubscribeOptions::PAUSED, "paused"),
        (SubscribeOptions::SOW, "sow"),
        (SubscribeOptions::OOF, "oof"),
        (SubscribeOptions::DELTA, "delta"),
        (SubscribeOptions::NO_EMPTIES, "no_empties"),
        (SubscribeOptions::DELETIONS, "deletions"),
    ];
    let set = flags.into_iter().filter(|(flag, _)| subscribe.options.has(*flag));
    let mut texts: Vec<String> = set.map(|(_, name)| name.to_owned()).collect();
    let numbers =
        [("max_backlog", subscribe.max_backlog), ("top_n", subscribe.top_n), ("skip_n", subscribe.skip_n)];
    let numbers = numbers.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
    texts.extend(numbers);
    let values = [
        ("bookmark", subscribe.bookmark),
        ("rate", subscribe.rate),
        ("conflation_key", subscribe.conflation_key),
        ("select", subscribe.select),
        ("order_by", subscribe.order_by),
    ];
    texts.extend(values.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))));
    if let Some(conflation) = subscribe.conflation_ns {
        texts.push(format!("conflation={}ns", conflation));
    }
    (!texts.is_empty()).then(|| texts.join(","))
}
