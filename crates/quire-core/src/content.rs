//! What the broker needs of content filters and message types.
//!
//! Filters are not part of this build yet: [`Filter`] has no value, and a text that asks for one is refused.

use std::collections::BTreeSet;

use quire_journal::{Bookmark, Timestamp};

/// How the bytes of a message are to be read. The codes are stored in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageType {
    /// JSON text.
    Json = 1,
    /// Bytes without fields.
    Binary = 2,
}

impl MessageType {
    /// The type with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(MessageType::Json),
            2 => Some(MessageType::Binary),
            _ => None,
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "json" => Some(MessageType::Json),
            "binary" => Some(MessageType::Binary),
            _ => None,
        }
    }

    /// The stored code.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// A message as a filter sees it.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, dead_code)]
pub struct MessageContext<'a> {
    pub message_type: MessageType,
    pub data: &'a [u8],
    pub topic: &'a str,
    pub bookmark: Option<Bookmark>,
    pub correlation_id: &'a [u8],
    pub timestamp: Timestamp,
    pub now: Timestamp,
}

/// A content filter.
#[derive(Clone, Debug)]
pub enum Filter {}

/// Why a text is no filter.
#[derive(Clone, Debug, thiserror::Error)]
#[error("content filters are not part of this build")]
pub struct FilterError {
    /// Where, from 1.
    pub column: usize,
}

/// What a filter may use.
#[derive(Clone, Debug, Default)]
pub struct FilterOptions {}

impl Filter {
    /// Compiles a filter.
    pub fn parse(_text: &str, _options: &FilterOptions) -> Result<Filter, FilterError> {
        Err(FilterError { column: 1 })
    }

    /// Whether the message matches.
    pub fn matches(&self, _message: &MessageContext<'_>) -> bool {
        match *self {}
    }
}

/// Subscriptions with their filters.
#[derive(Debug)]
pub struct SubscriptionIndex<Id>(BTreeSet<Id>);

impl<Id> Default for SubscriptionIndex<Id> {
    fn default() -> Self {
        SubscriptionIndex(BTreeSet::new())
    }
}

impl<Id: Copy + Ord> SubscriptionIndex<Id> {
    /// Adds a subscription.
    pub fn insert(&mut self, id: Id, _filter: Option<Filter>) {
        self.0.insert(id);
    }

    /// Removes a subscription.
    pub fn remove(&mut self, id: Id) {
        self.0.remove(&id);
    }

    /// Calls `act` for every subscription that the message matches.
    pub fn for_each_match(&mut self, _message: &MessageContext<'_>, act: impl FnMut(Id)) {
        self.0.iter().copied().for_each(act);
    }
}
