//! Subscriptions with records: their view is the state of the topic at one position, and each later message is the next change.
//!
//! After the records of a connection, a stream has one or more *places*: positions of the log whose state is the view of the program. Each
//! later message moves a place to the next change that the subscription must see. A place whose next change is another one is dropped. When
//! no place is left, the subscription saw something else than the log.

use std::collections::BTreeMap;

use quire_client::{Cause, Message};
use quire_command::OofReason;
use quire_expression::message_type::{MessageType, merge};

use super::Want;
use super::ledger::Span;
use super::log::{Change, Log, State};

/// The records that a program has in view: numbers of messages by the field `/k`.
pub(in crate::world) type View = BTreeMap<u64, u64>;

/// A message of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Publish { key: u64, value: u64 },
    Left { reason: OofReason, key: u64, value: Option<u64> },
}

pub(super) struct Stream {
    pub name: String,
    pub topic: usize,
    pub want: Want,
    pub wants_oof: bool,
    /// Of a delta subscription: the records of the program by their keys, each made of a whole message and the differences after it.
    pub records: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// The view of the program.
    pub view: View,
    /// The program has all records of this connection.
    pub is_complete: bool,
    /// It had all records of an earlier connection.
    pub was_complete: bool,
    /// It has lost a connection.
    pub was_outdated: bool,
    pub is_over: bool,
    /// The server that sent all records last.
    pub life: u64,
    /// See the module; `None`: not known at present.
    places: Option<Vec<Place>>,
}

struct Place {
    at: usize,
    state: State,
}

/// The lifetimes that may be over.
#[derive(Clone, Copy)]
pub(super) struct Lifetimes {
    /// Records that end here or earlier are gone.
    pub over: u64,
    /// Records that end later are there.
    pub peak: u64,
}

impl Stream {
    pub fn new(name: String, topic: usize, want: Want, wants_oof: bool, is_delta: bool) -> Self {
        Stream {
            name,
            topic,
            want,
            wants_oof,
            records: is_delta.then(BTreeMap::new),
            view: View::new(),
            is_complete: false,
            was_complete: false,
            was_outdated: false,
            is_over: false,
            life: 0,
            places: None,
        }
    }

    /// The record of the program after a message about it. A difference is merged into the record that the program has.
    ///
    /// # Errors
    /// The program has no record for a difference, or has not asked for differences.
    pub fn whole(&mut self, message: &Message) -> Result<Vec<u8>, String> {
        let Stream { name, records, .. } = self;
        let is_delta = message.cause() == Cause::Delta;
        let Some(records) = records else {
            let unexpected = || Err(format!("{name} received a difference, for which it did not ask"));
            return if is_delta { unexpected() } else { Ok(message.data().to_vec()) };
        };
        let mut whole = Vec::new();
        if is_delta {
            let known = records.get(message.key());
            let known = known
                .ok_or_else(|| format!("{name} received a difference to a record that it does not have"))?;
            merge(MessageType::Json, known, message.data(), &mut whole).map_err(|error| error.to_string())?;
        } else {
            whole.extend_from_slice(message.data());
        }
        records.insert(message.key().to_vec(), whole.clone());
        Ok(whole)
    }

    /// Nothing is known of its place in the log.
    pub fn lose_place(&mut self) {
        self.places = None;
    }

    /// The places whose state is the view that the program had when it had all records of the connection.
    ///
    /// # Errors
    /// There is none.
    pub fn resynchronized(
        &mut self,
        log: &Log,
        view: &View,
        is_first: bool,
        span: &Span,
        lifetimes: Lifetimes,
    ) -> Result<(), String> {
        let mut places = Vec::new();
        // Without `oof` the program does not learn which records it has lost.
        let is_whole = self.wants_oof || is_first;
        log.any_state(span.from, span.to, |at, state| {
            if fits(state, view, &self.want, is_whole, lifetimes) {
                let mut state = state.clone();
                for (key, row) in state.iter_mut().enumerate() {
                    let is_gone = row.is_some_and(|row| row.expires.is_some_and(|at| at <= lifetimes.peak));
                    if is_gone && !view.contains_key(&(key as u64)) {
                        *row = None;
                    }
                }
                places.push(Place { at, state });
            }
            false
        });
        if places.is_empty() {
            return Err(format!(
                "{}: after {} records the view {view:?} is no state of the topic {} between {} and {} ({:?}, oof: {}), the last is {:?}",
                self.name,
                if is_first { "its first" } else { "the repeated" },
                self.topic,
                span.from,
                span.to,
                self.want,
                self.wants_oof,
                brief(log.state()),
            ));
        }
        self.places = Some(places);
        Ok(())
    }

    /// The program received a message while it had all records.
    ///
    /// # Errors
    /// The message is not the next one.
    pub fn follow(&mut self, log: &Log, seen: Seen) -> Result<(), String> {
        let Stream { places: Some(places), want, wants_oof, .. } = self else { return Ok(()) };
        let mut expected = None;
        places.retain_mut(|place| {
            let (is_next, other) = place.follow(log, want, *wants_oof, seen);
            expected = other.or(expected);
            is_next
        });
        if places.is_empty() {
            return Err(format!(
                "{} saw {seen:?} of topic {} where {expected:?} follows",
                self.name, self.topic
            ));
        }
        Ok(())
    }

    /// As [`Stream::verdict`], for a topic that is not in the log. `last` has the records that match.
    ///
    /// # Errors
    /// What is missing.
    pub fn verdict_unlogged(&self, last: &View) -> Result<(), String> {
        let has_all = last.iter().all(|(key, value)| self.view.get(key) == Some(value));
        if self.is_complete && has_all && (!self.wants_oof || self.view.len() == last.len()) {
            return Ok(());
        }
        Err(format!(
            "the view of {} is {:?} at the end, topic {} has {last:?}",
            self.name, self.view, self.topic
        ))
    }

    /// Whether the program saw everything, when nothing changes any more.
    ///
    /// # Errors
    /// What is missing.
    pub fn verdict(&self, log: &Log, lifetimes: Lifetimes) -> Result<(), String> {
        if self.is_over {
            return Ok(());
        }
        let Some(places) = self.places.as_ref().filter(|_| self.is_complete) else {
            return Err(format!("{} did not receive all records of topic {}", self.name, self.topic));
        };
        let is_done = |place: &Place| place.next(log, &self.want, self.wants_oof).is_none();
        if !places.iter().any(is_done) {
            let next = places.first().and_then(|place| place.next(log, &self.want, self.wants_oof));
            return Err(format!("{} never saw {next:?} of topic {}", self.name, self.topic));
        }
        let is_whole = self.wants_oof;
        if !fits(log.state(), &self.view, &self.want, is_whole, lifetimes) {
            return Err(format!(
                "the view of {} is {:?} at the end, topic {} has {:?} ({:?})",
                self.name,
                self.view,
                self.topic,
                brief(log.state()),
                self.want
            ));
        }
        Ok(())
    }
}

impl Place {
    /// The next message that the subscription must see, and the number of changes before it.
    fn next(&self, log: &Log, want: &Want, wants_oof: bool) -> Option<Seen> {
        let mut state = self.state.clone();
        for change in &log.changes[self.at..] {
            let seen = visible(change, &state, want, wants_oof);
            if seen.is_some() {
                return seen;
            }
            change.apply(&mut state);
        }
        None
    }

    /// Moves to the change of a message. Returns whether the message is the next one, and otherwise the next one.
    fn follow(&mut self, log: &Log, want: &Want, wants_oof: bool, seen: Seen) -> (bool, Option<Seen>) {
        if let Seen::Left { reason: OofReason::Expired, key, value } = seen {
            let Some(row) = self.state.get_mut(key as usize) else { return (false, None) };
            let is_right = row.is_some_and(|row| {
                row.expires.is_some() && Some(row.value) == value && want.matches(key, row.quantity)
            });
            *row = None;
            return (is_right, None);
        }
        while let Some(change) = log.changes.get(self.at) {
            let expected = visible(change, &self.state, want, wants_oof);
            if expected.is_some_and(|expected| expected != seen) {
                return (false, expected);
            }
            change.apply(&mut self.state);
            self.at += 1;
            if expected.is_some() {
                return (true, None);
            }
        }
        (false, None)
    }
}

/// The message about a change; `None`: the subscription receives none.
fn visible(change: &Change, state: &State, want: &Want, wants_oof: bool) -> Option<Seen> {
    let key = change.key;
    let before = state[key as usize].filter(|row| wants_oof && want.matches(key, row.quantity));
    match change.row {
        Some(row) if want.matches(key, row.quantity) => Some(Seen::Publish { key, value: row.value }),
        Some(row) => before.map(|_| Seen::Left { reason: OofReason::Match, key, value: Some(row.value) }),
        None => before.map(|row| Seen::Left { reason: OofReason::Deleted, key, value: Some(row.value) }),
    }
}

/// Whether the records that match are those of a view. `is_whole`: the view has no others.
fn fits(state: &State, view: &View, want: &Want, is_whole: bool, lifetimes: Lifetimes) -> bool {
    let mut count = 0;
    for (key, row) in (0..).zip(state) {
        let Some(row) = row.filter(|row| want.matches(key, row.quantity)) else { continue };
        let is_there = view.get(&key) == Some(&row.value);
        let may_be_there = row.expires.is_none_or(|at| at > lifetimes.over);
        let must_be_there = row.expires.is_none_or(|at| at > lifetimes.peak);
        if (is_there && !may_be_there && is_whole) || (!is_there && must_be_there) {
            return false;
        }
        count += usize::from(is_there);
    }
    !is_whole || count == view.len()
}

fn brief(state: &State) -> View {
    (0..).zip(state).filter_map(|(key, row)| Some((key, (*row)?.value))).collect()
}
