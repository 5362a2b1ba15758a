//! The records that a subscription to last-value topics has in view, and their difference after a
//! reconnect.
//!
//! A server keeps nothing of a subscription whose connection is gone. So the query of the
//! subscription runs again on the next connection. The program must not see its whole result a
//! second time, and it must get the records that were lost without a connection. A [`View`] knows
//! the keys that the program has, with a hash of the data of each. It compares the repeated result
//! with them. A delta subscription receives parts of records, so the server sends the hash of the
//! whole record with each part.
//!
//! - The program receives a new or changed record as `publish`.
//! - It receives nothing about a record with the same data. A page may have lost such a record and
//!   get it back before the result is whole.
//! - A record that is missing in the result is `oof`, if the program asked for that. The reason is
//!   `match` when the server still has the record, else `deleted`.
//!
//! A subscription may name a pattern, and topics may share a key domain. So a record is known by
//! its topic and its key.

use std::collections::{BTreeMap, VecDeque};

/// The keys in one question for lost records. Keys have at most 255 bytes, so the question fits
/// into the smallest frame that a server takes.
const QUESTION_KEYS_MAX: usize = 200;

/// The topic and the key of a record.
pub(super) type Name = (Box<[u8]>, Box<[u8]>);

/// The records of one topic by their keys.
type Records = BTreeMap<Box<[u8]>, Known>;

/// The message that a program receives for a record of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// A record of the first result.
    Record,
    /// A change since the program last received the record.
    Change,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct View {
    topics: BTreeMap<Box<[u8]>, Records>,
    /// The number of the last query.
    round: u32,
    /// The first result was received whole.
    has_first: bool,
    /// Records that were missing in the last result, and that were not asked about.
    lost: VecDeque<Name>,
    /// Those in the current question to the server.
    asked: Vec<Name>,
}

/// The state of a record before a message about it.
enum Before {
    Missing,
    Same,
    Other,
}

#[derive(Debug)]
struct Known {
    hash: u128,
    /// The last query in whose result it was, or after which it was published.
    round: u32,
}

impl View {
    /// The query runs again, because the connection was lost.
    pub fn restart(&mut self) {
        self.round = self.round.wrapping_add(1);
        self.lost.clear();
        self.asked.clear();
    }

    /// A record of a result has arrived. `None`: the program has it already.
    pub fn record(&mut self, topic: &[u8], key: &[u8], hash: u128) -> Option<Shown> {
        match self.know(topic, key, hash) {
            Before::Same => None,
            Before::Missing if !self.has_first => Some(Shown::Record),
            Before::Missing | Before::Other => Some(Shown::Change),
        }
    }

    /// A record has entered the view or changed. Returns whether the program has it already, from
    /// before the connection was lost.
    pub fn published(&mut self, topic: &[u8], key: &[u8], hash: u128) -> bool {
        let was_lost = self.is_lost(topic, key);
        matches!(self.know(topic, key, hash), Before::Same) && was_lost
    }

    /// A record has left the view. Returns whether the program had it.
    pub fn left(&mut self, topic: &[u8], key: &[u8]) -> bool {
        let Some(records) = self.topics.get_mut(topic) else { return false };
        let had = records.remove(key).is_some();
        if records.is_empty() {
            self.topics.remove(topic);
        }
        had
    }

    /// A result was received whole. `is_told`: the program wants messages about the records that it
    /// has lost. Returns whether it was the first result.
    pub fn complete(&mut self, is_told: bool) -> bool {
        let round = self.round;
        for (topic, records) in &mut self.topics {
            if is_told {
                let lost = records.iter().filter(|(_, known)| known.round != round);
                self.lost.extend(lost.map(|(key, _)| (topic.clone(), key.clone())));
            } else {
                records.retain(|_, known| known.round == round);
            }
        }
        !std::mem::replace(&mut self.has_first, true)
    }

    /// The next records to ask the server about; none when all were asked about. A publish may have
    /// brought some of them back.
    pub fn question(&mut self) -> Option<&[Name]> {
        self.asked.clear();
        while self.asked.len() < QUESTION_KEYS_MAX
            && let Some(name) = self.lost.pop_front()
        {
            if self.is_lost(&name.0, &name.1) {
                self.asked.push(name);
            }
        }
        (!self.asked.is_empty()).then_some(&self.asked)
    }

    /// The server still has a record that it was asked about. Returns whether the program gets a
    /// message that it left the view.
    pub fn exists(&mut self, topic: &[u8], key: &[u8]) -> bool {
        let is_asked = self.asked.iter().any(|name| *name.0 == *topic && *name.1 == *key);
        is_asked && self.is_lost(topic, key) && self.left(topic, key)
    }

    /// The question is answered. Returns the records that the server no longer has.
    pub fn answered(&mut self) -> Vec<Name> {
        let mut gone = std::mem::take(&mut self.asked);
        gone.retain(|(topic, key)| self.is_lost(topic, key) && self.left(topic, key));
        gone
    }

    /// Notes the hash of a record in view.
    fn know(&mut self, topic: &[u8], key: &[u8], hash: u128) -> Before {
        let known = Known { hash, round: self.round };
        // An entry of the map would copy the topic of every message.
        if let Some(records) = self.topics.get_mut(topic) {
            if let Some(before) = records.get_mut(key) {
                let is_same = before.hash == known.hash;
                *before = known;
                return if is_same { Before::Same } else { Before::Other };
            }
            records.insert(key.into(), known);
        } else {
            self.topics.insert(topic.into(), BTreeMap::from([(key.into(), known)]));
        }
        Before::Missing
    }

    /// Whether the program has a record that was missing in the last result, and was not published
    /// since.
    fn is_lost(&self, topic: &[u8], key: &[u8]) -> bool {
        let known = self.topics.get(topic).and_then(|records| records.get(key));
        known.is_some_and(|known| known.round != self.round)
    }
}
