//! Deliveries to subscribers as messages, for the trigger `deliver` of actions (docs/actions.md).
//!
//! A [`Watch`] selects messages by their topic and content. When one of them is handed to the
//! connection of a subscriber, it is published on the topic of the watch, to which the engine of
//! actions subscribes. The log does not record these topics. Without a watch, a delivery costs one
//! comparison.

use std::sync::Arc;
use std::time::Duration;

use quire_command::{Message, MessageKind};
use quire_expression::filter::{Filter, FilterOptions, MessageContext};
use quire_expression::topic::{TopicSelector, is_reserved};
use quire_journal::{Bookmark, PublisherId, Timestamp};
use quire_types::time::Instant;
use serde_json::{Map, Value};

use crate::Access;
use crate::config::{ConfigError, ConfigErrors};
use crate::context::Context;
use crate::enclosed::{add, enclosed};
use crate::events::{DeliveredTopic, EventMessage};
use crate::io::Event;
use crate::session::SessionId;

/// Effort for a filter, as for the filter of a scan.
const FILTER_EFFORT_MAX: u64 = 4_000_000;

/// Bytes of deliveries that may wait to be published. Further ones are left out: subscribers are
/// served first, and there may be thousands of them.
const WAITING_SIZE_MAX: usize = 16 << 20;

/// The log has at most one line about left out deliveries in this time.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Deliveries that were left out, and when a line of the log told so.
#[derive(Debug, Default)]
pub struct LeftOut {
    count: u64,
    logged: Option<Instant>,
}

/// Deliveries that are published.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The topic on which they are published.
    target: Arc<str>,
    selector: TopicSelector,
    filter: Option<Filter>,
}

/// The topic of the deliveries with this name.
pub fn delivered_topic(name: &str) -> String {
    format!("/quire/Delivered/{name}")
}

impl Watch {
    /// Compiles the entries of a configuration.
    ///
    /// # Errors
    /// Every bad key.
    pub fn compile(entries: &[DeliveredTopic], options: &FilterOptions) -> Result<Vec<Watch>, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let mut watches = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let error = |key: &str, reason: String| {
                ConfigError::new(format!("events.delivered[{index}].{key}"), reason)
            };
            let selector = TopicSelector::new(&entry.topic).map_err(|e| error("topic", e.to_string()));
            let filter = entry.filter.as_ref().map(|text| Filter::parse(text, options)).transpose();
            let filter = errors.note(filter.map_err(|e| error("filter", e.to_string())));
            if let (Some(selector), Some(filter)) = (errors.note(selector), filter) {
                watches.push(Watch { target: delivered_topic(&entry.name).into(), selector, filter });
            }
        }
        errors.none_or(watches)
    }
}

impl Context {
    /// Publishes a message that was handed to a connection, when an action wants it.
    #[inline]
    pub fn tell_delivered(&mut self, id: SessionId, message: &Message<'_>) {
        if !self.messages.events.watches.is_empty() {
            self.tell_watched(id, message);
        }
    }

    /// As [`Context::tell_delivered`], for encoded messages.
    #[inline]
    pub fn tell_frames_delivered(&mut self, id: SessionId, frames: &[u8]) {
        if !self.messages.events.watches.is_empty() {
            let encoder = self.session(id).outbox.encoder();
            encoder.messages(frames).for_each(|message| self.tell_watched(id, &message));
        }
    }

    #[inline(never)]
    fn tell_watched(&mut self, id: SessionId, message: &Message<'_>) {
        if !matches!(message.kind, MessageKind::Publish | MessageKind::Delta(_)) {
            return;
        }
        let Ok(topic) = std::str::from_utf8(message.topic) else { return };
        let Some(session) = self.clients.sessions.all.get(id) else { return };
        // The deliveries of these topics would be published again and again.
        if session.access == Access::Internal || is_reserved(topic) {
            return;
        }
        let subscriber = session.client_name();
        let known = self.topics.intern(topic);
        let message_type = self.topics.topic(known).recording.message_type;
        let bookmark = message.bookmark.map(|(id, sequence)| Bookmark::new(PublisherId::new(id), sequence));
        let timestamp = Timestamp(message.timestamp_ns);
        let context = MessageContext {
            message_type,
            data: message.data,
            topic,
            key: (!message.key.is_empty()).then_some(message.key),
            bookmark,
            correlation_id: message.correlation_id,
            headers: message.headers,
            timestamp,
            now: self.clock.now.wall,
        };
        let mut data = None;
        for index in 0..self.messages.events.watches.len() {
            let Watch { target, selector, filter } = &self.messages.events.watches[index];
            self.messages.arena.allow(FILTER_EFFORT_MAX);
            let is_wanted = selector.matches(topic)
                && self.topics.is_heard(target)
                && filter
                    .as_ref()
                    .is_none_or(|filter| filter.matches_with(&context, &mut self.messages.arena));
            if !is_wanted {
                continue;
            }
            if self.messages.events.deliveries_size > WAITING_SIZE_MAX {
                self.leave_out_delivery();
                return;
            }
            let target = target.clone();
            let size_max = self.config.message_size_max();
            let data = data.get_or_insert_with(|| {
                let mut members = Map::new();
                members.insert("topic".into(), topic.into());
                members.insert("message_type".into(), message_type.name().into());
                members.insert("subscriber".into(), subscriber.as_deref().into());
                members.insert("timestamp".into(), message.timestamp_ns.into());
                members.insert("bookmark".into(), bookmark.map(|bookmark| bookmark.to_string()).into());
                let mut data = Value::from(members).to_string().into_bytes();
                add(&mut data, Some(&enclosed(message_type, message.data)), size_max);
                data
            });
            self.messages.events.deliveries_size += data.len();
            self.messages.events.push(EventMessage {
                topic: target,
                correlation_id: message.correlation_id.to_vec(),
                headers: message.headers.into(),
                data: data.clone(),
                is_delivery: true,
            });
        }
    }

    #[cold]
    fn leave_out_delivery(&mut self) {
        let (left_out, now) = (&mut self.messages.events.deliveries_left_out, self.clock.now.instant);
        left_out.count += 1;
        if left_out.logged.is_none_or(|logged| now >= logged + LINE_INTERVAL) {
            left_out.logged = Some(now);
            let count = std::mem::take(&mut left_out.count);
            self.note(Event::DeliveriesLeftOut { count, limit: WAITING_SIZE_MAX });
        }
    }
}
