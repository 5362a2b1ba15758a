//! The fields of the events of the log, as a JSON object.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use quire_expression::unreadable::Unreadable;
use quire_journal::Action;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::entitlement::Right;
use crate::io::{Event, LeftOutBecause};

impl Event {
    /// The fields by their names, as a JSON object.
    pub fn fields(&self) -> String {
        match serde_json::to_value(self) {
            // The only member has the name of the event.
            Ok(Value::Object(event)) => event.into_values().next().unwrap_or_default().to_string(),
            // An event without fields is its name. An event has no field that cannot be written.
            _ => "{}".to_owned(),
        }
    }
}

pub(super) fn text<S: Serializer>(value: &impl Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(super) fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

pub(super) fn action<S: Serializer>(action: &Action, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(action.verb())
}

pub(super) fn right<S: Serializer>(right: &Right, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(right.name())
}

pub(super) fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

pub(super) fn why<S: Serializer>(why: &LeftOutBecause, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match why {
        LeftOutBecause::Settings => "settings",
        LeftOutBecause::Removed => "removed",
        LeftOutBecause::Begins { .. } => "begins",
    })
}

pub(super) fn unreadable<S: Serializer>(example: &Unreadable, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(4))?;
    map.serialize_entry("topic", &example.topic)?;
    map.serialize_entry("bookmark", &example.bookmark.map(|bookmark| bookmark.to_string()))?;
    map.serialize_entry("message_type", example.message_type.name())?;
    map.serialize_entry("reason", &example.reason.to_string())?;
    map.end()
}

impl Serialize for crate::ids::ConnectionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ConnectionId;

    #[test]
    fn an_event_is_an_object_with_its_fields() {
        let (connection, client_name) = (ConnectionId(7), "loader \"1\"".to_owned());
        let event = Event::SequenceJumped { connection, client_name, from: 1, to: 9 };
        assert_eq!(event.fields(), r#"{"client_name":"loader \"1\"","connection":7,"from":1,"to":9}"#);
        assert_eq!(Event::ShuttingDown.fields(), "{}");
        let why = LeftOutBecause::Removed;
        let event = Event::QueueMessagesLeftOut { queue: "jobs".to_owned(), count: 2, why };
        assert_eq!(event.fields(), r#"{"count":2,"queue":"jobs","why":"removed"}"#);
    }
}
