//! The persisted records of one last-value topic, in the order of the log.

use std::collections::HashMap;

use quire_types::{Bookmark, Timestamp};

use crate::random::Random;

/// One change of a topic.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub position: u64,
    pub timestamp_ns: u64,
    /// The name of the record of the log.
    pub bookmark: Bookmark,
    /// The field `/k` of its messages.
    pub key: u64,
    /// `None`: the record was deleted.
    pub row: Option<Row>,
}

/// An instant whose state is asked for, by the states that answer. With a granularity, the state
/// after a message is known only when the topic still has all of its records. Otherwise the state
/// at the end of the period before answers.
#[derive(Clone, Debug)]
pub(super) struct Earlier(pub Vec<Instant>);

/// The state of one instant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instant {
    /// The last change that the state has is here or before.
    pub position: u64,
    /// Records whose lifetime ended here or before are gone.
    pub time_ns: u64,
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub value: u64,
    pub quantity: u64,
    /// The end of its lifetime.
    pub expires: Option<u64>,
    pub position: u64,
}

/// The records at one position, by the field `/k`.
pub(super) type TopicState = Vec<Option<Row>>;

#[derive(Default)]
pub(super) struct Log {
    pub changes: Vec<Change>,
    /// The keys of the server, and the values of `/k`.
    names: HashMap<Vec<u8>, u64>,
    /// The first change that the running server has.
    base: usize,
    /// The newest state.
    state: TopicState,
    key_count: usize,
}

impl Log {
    pub fn new(key_count: u64) -> Self {
        let key_count = key_count as usize;
        Log { key_count, state: vec![None; key_count], ..Log::default() }
    }

    pub fn push(&mut self, change: Change) {
        change.apply(&mut self.state);
        self.changes.push(change);
    }

    /// A server starts that has the changes from this position on.
    pub fn begin(&mut self, first: u64) {
        self.base = self.changes.partition_point(|change| change.position < first);
        self.state = self.state_before(self.changes.len());
    }

    /// A message has the key `name`.
    ///
    /// # Errors
    /// The key belongs to another value of `/k`, or this value has another key.
    pub fn name(&mut self, name: &[u8], key: u64) -> Result<(), String> {
        let known = self.names.get(name).copied();
        let is_new = known.is_none() && !self.names.values().any(|other| *other == key);
        if is_new {
            self.names.insert(name.to_owned(), key);
        }
        if is_new || known == Some(key) {
            return Ok(());
        }
        Err(format!("the message with /k = {key} has the key of /k = {known:?}"))
    }

    /// The value of `/k` with this key.
    pub fn key_of(&self, name: &[u8]) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// The key of this value of `/k`.
    pub fn name_of(&self, key: u64) -> Option<&[u8]> {
        self.names.iter().find(|(_, known)| **known == key).map(|(name, _)| &name[..])
    }

    /// The state after all changes before this one.
    pub fn state_before(&self, end: usize) -> TopicState {
        let mut state = vec![None; self.key_count];
        self.changes[self.base.min(end)..end].iter().for_each(|change| change.apply(&mut state));
        state
    }

    /// The state of an earlier instant.
    pub fn state_at(&self, at: &Instant) -> TopicState {
        let mut state = self.state_before(self.index_after(at.position));
        for row in &mut state {
            row.take_if(|row| row.expires.is_some_and(|expires| expires <= at.time_ns));
        }
        state
    }

    /// The number of changes up to a position.
    pub fn index_after(&self, position: u64) -> usize {
        self.changes.partition_point(|change| change.position <= position)
    }

    /// The position of a message.
    pub fn position_of(&self, value: u64) -> Option<u64> {
        let is_meant = |change: &&Change| change.row.is_some_and(|row| row.value == value);
        self.changes.iter().rev().find(is_meant).map(|change| change.position)
    }

    /// An instant between the first and the last change, by a bookmark or a time: as a command
    /// names it, and its meaning.
    pub fn draw_earlier(&self, granularity_ns: u64, random: &mut Random) -> Option<(String, Earlier)> {
        let last = self.changes.last()?;
        let change = &self.changes[random.below(self.changes.len() as u64) as usize];
        // A server whose clock was set back gives the time of the last change to the next ones,
        // too. The state at this time is the current one, and its lifetimes end by the clock.
        if change.timestamp_ns >= last.timestamp_ns {
            return None;
        }
        // Texts have whole microseconds.
        let named_ns = change.timestamp_ns / 1_000 * 1_000;
        let is_bookmark = change.row.is_some() && random.percent(50);
        let asked_ns = if is_bookmark { change.timestamp_ns } else { named_ns };
        let text = if is_bookmark { change.bookmark.to_string() } else { Timestamp(named_ns).to_string() };
        let after_message = Instant { position: change.position, time_ns: asked_ns };
        let time_ns = match granularity_ns {
            0 if is_bookmark => return Some((text, Earlier(vec![after_message]))),
            0 => asked_ns,
            granularity => (asked_ns / granularity * granularity).saturating_sub(1),
        };
        let index = self.changes.partition_point(|change| change.timestamp_ns <= time_ns);
        let position = index.checked_sub(1).map_or(0, |index| self.changes[index].position);
        let mut states = vec![Instant { position, time_ns }];
        states.extend(is_bookmark.then_some(after_message));
        Some((text, Earlier(states)))
    }

    /// The newest state.
    pub fn state(&self) -> &TopicState {
        &self.state
    }

    /// Calls `visit` with each state between two positions, and with the number of changes before
    /// it, until it returns true. Returns whether it did.
    pub fn any_state(&self, from: u64, to: u64, mut visit: impl FnMut(usize, &TopicState) -> bool) -> bool {
        let mut at = self.index_after(from).max(self.base);
        let end = self.index_after(to);
        let mut state = self.state_before(at);
        loop {
            if visit(at, &state) {
                return true;
            }
            if at >= end {
                return false;
            }
            // All changes of one record of the log happen at one instant.
            let position = self.changes[at].position;
            while let Some(change) = self.changes.get(at).filter(|change| change.position == position) {
                change.apply(&mut state);
                at += 1;
            }
        }
    }
}

impl Change {
    pub fn apply(&self, state: &mut TopicState) {
        state[self.key as usize] = self.row;
    }
}
