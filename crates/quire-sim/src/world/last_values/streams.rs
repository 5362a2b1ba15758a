//! Subscriptions with records: their view is the state of the topic at one position, and each later
//! message is the next one.
//!
//! After the records of a connection, a stream has one or more [`StreamPlace`]s: positions of the
//! log whose state is the view of the program. Each later message moves a place to the next change
//! that the subscription must see. A place at which another message is the next one is dropped.
//! When no place is left, the subscription saw something else than the log.
//!
//! A conflated subscription may see only some of the changes: each message about a record is newer
//! than the one before, and at the end the view is the state of the topic. After a lost connection
//! each record of the view has its own position: the client asks the server about the records that
//! it has lost, and the messages of intervals that end meanwhile come before the answer. A
//! subscription that begins with an earlier state gets its messages from the log: it must see every
//! one after the state, also over lost connections and crashes.

use std::collections::{BTreeMap, BTreeSet};

use quire_client::{Cause, Message};
use quire_expression::message_type::{MessageType, merge};

use super::ledger::Span;
use super::log::{Earlier, Instant, Log, Row, TopicState};
use super::place::{Seen, Shape, StreamPlace};

/// The records that a program has in view: numbers of messages by the field `/k`.
pub(in crate::world) type View = BTreeMap<u64, u64>;

/// The messages that a subscription asks for.
#[derive(Clone, Debug)]
pub(super) enum Course {
    /// All of them.
    Whole,
    /// At most one about each record in an interval. Has the positions of the newest ones, by the
    /// field `/k`.
    Conflated(BTreeMap<u64, u64>),
    /// The messages of the log after an earlier state. `next` has the change that it must see next,
    /// for each state that its records can be; `None` before they are complete.
    Log { earlier: Earlier, next: Option<Vec<usize>> },
}

pub(super) struct Stream {
    pub name: String,
    pub topic: usize,
    /// The shapes that it had, the newest at the end.
    pub shapes: Vec<Shape>,
    /// The server has not answered to the newest shape.
    pub is_replacing: bool,
    /// The number of the shape with which the connection began.
    pub entered: usize,
    pub course: Course,
    pub wants_oof: bool,
    /// Of a delta subscription: the records of the program by their keys, each made of a whole
    /// message and the differences after it.
    pub records: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// The view of the program.
    pub view: View,
    /// The program has all records of this connection.
    pub is_complete: bool,
    /// It had all records of an earlier connection.
    pub was_complete: bool,
    /// It has lost a connection.
    pub was_outdated: bool,
    /// It lost a connection, and got another shape before it had all records again: which view it
    /// has is not known.
    pub is_unsure: bool,
    pub is_over: bool,
    /// The server that sent all records last.
    pub life: u64,
    /// See the module; `None`: not known at present.
    places: Option<Vec<StreamPlace>>,
}

/// The lifetimes that may be over.
#[derive(Clone, Copy)]
pub(super) struct Lifetimes {
    /// Records that end here or earlier are gone.
    pub over: u64,
    /// Records that end later are there.
    pub peak: u64,
}

/// The view of a program when it had all records of a connection.
pub(super) struct Complete {
    pub view: View,
    pub is_first: bool,
    pub span: Span,
    /// The number of the shape in effect.
    pub shape: usize,
}

impl Stream {
    pub fn new(
        name: String,
        topic: usize,
        shape: Shape,
        course: Course,
        wants_oof: bool,
        is_delta: bool,
    ) -> Self {
        Stream {
            name,
            topic,
            shapes: vec![shape],
            is_replacing: false,
            entered: 0,
            course,
            wants_oof,
            records: is_delta.then(BTreeMap::new),
            view: View::new(),
            is_complete: false,
            was_complete: false,
            was_outdated: false,
            is_unsure: false,
            is_over: false,
            life: 0,
            places: None,
        }
    }

    /// The newest shape.
    pub fn shape(&self) -> &Shape {
        &self.shapes[self.shapes.len() - 1]
    }

    /// Whether the program has asked for such messages on this connection. The server answers to a
    /// command before it sends the difference, and up to 16 differences wait for the records of the
    /// first query, so messages of each shape may come. The places decide which.
    pub fn wants(&self, key: u64, quantity: u64) -> bool {
        self.shapes[self.entered..].iter().any(|shape| shape.want.matches(key, quantity))
    }

    /// The server has answered to the newest shape.
    pub fn replaced(&mut self, is_accepted: bool) {
        self.is_replacing = false;
        if !is_accepted {
            self.shapes.pop();
            let count = self.shapes.len();
            self.places.iter_mut().for_each(|places| places.retain(|place| place.shape < count));
        }
    }

    /// The record of the program after a message about it. A difference is merged into the record
    /// that the program has.
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

    /// The places whose state is the view that the program had when it had all records of the
    /// connection.
    ///
    /// # Errors
    /// There is none.
    pub fn resynchronized(
        &mut self,
        log: &Log,
        complete: &Complete,
        lifetimes: Lifetimes,
    ) -> Result<(), String> {
        let Complete { view, is_first, span, shape: number } = complete;
        let shape = &self.shapes[*number];
        let mut places = Vec::new();
        // Without `oof` the program does not learn which records it has lost.
        let is_whole = self.wants_oof || *is_first;
        // The keys whose record in the view was that of the topic at no position yet.
        let mut unknown: BTreeSet<u64> = (0..log.state().len() as u64).collect();
        let has_one_position = *is_first || !matches!(self.course, Course::Conflated(_));
        log.any_state(span.from, span.to, |at, state| {
            if !has_one_position {
                unknown.retain(|key| !fits_at(*key, state, view, shape, is_whole, lifetimes));
            } else if fits(state, view, shape, is_whole, lifetimes) {
                let mut state = state.clone();
                for (key, row) in state.iter_mut().enumerate() {
                    let is_gone = row.is_some_and(|row| row.expires.is_some_and(|at| at <= lifetimes.peak));
                    if is_gone && !view.contains_key(&(key as u64)) {
                        *row = None;
                    }
                }
                places.push(StreamPlace::new(at, state, *number));
            }
            false
        });
        let is_known = if has_one_position { !places.is_empty() } else { unknown.is_empty() };
        if !is_known {
            return Err(format!(
                "{}: after {} records the view {view:?} is no state of the topic {} between {} and {} ({shape:?}, oof: {}), the last is {:?}",
                self.name,
                if *is_first { "its first" } else { "the repeated" },
                self.topic,
                span.from,
                span.to,
                self.wants_oof,
                brief(log.state()),
            ));
        }
        if let Course::Conflated(newest) = &mut self.course {
            // Without `oof` the view can have a message that a crash has lost, and that its
            // publisher sends again. Every later message about the record is newer than the logon.
            let newest_max = if is_whole { u64::MAX } else { span.from };
            let position = |value: &u64| log.position_of(*value).unwrap_or_default().min(newest_max);
            *newest = view.iter().map(|(key, value)| (*key, position(value))).collect();
        }
        self.places = Some(places);
        Ok(())
    }

    /// The program has all records of an earlier state. After it lost the connection meanwhile, it
    /// may have records that are gone.
    ///
    /// # Errors
    /// They are not those of this state.
    pub fn begun(&mut self, log: &Log, is_first: bool) -> Result<(), String> {
        let Course::Log { earlier, next: next @ None } = &mut self.course else { return Ok(()) };
        let shape = &self.shapes[0];
        let is_at = |at: &&Instant| {
            let exact = Lifetimes { over: at.time_ns, peak: at.time_ns };
            fits(&log.state_at(at), &self.view, shape, is_first, exact)
        };
        let found: Vec<usize> =
            earlier.0.iter().filter(is_at).map(|at| log.index_after(at.position)).collect();
        if found.is_empty() {
            let states: Vec<_> = earlier.0.iter().map(|at| brief(&log.state_at(at))).collect();
            return Err(format!(
                "{}: its view after the records is {:?}, and the state of topic {} at {earlier:?} is one of {states:?} ({shape:?})",
                self.name, self.view, self.topic
            ));
        }
        *next = Some(found);
        Ok(())
    }

    /// The program received a message while it had all records.
    ///
    /// # Errors
    /// The message is not the next one.
    pub fn follow(&mut self, log: &Log, seen: Seen) -> Result<(), String> {
        let Stream { name, topic, shapes, course, wants_oof, places, .. } = self;
        match course {
            Course::Whole => (),
            Course::Conflated(newest) => return follow_conflated(name, log, newest, seen),
            Course::Log { next: None, .. } => return Ok(()),
            Course::Log { next: Some(next), .. } => {
                let due = |from: &usize| next_message(log, *from, &shapes[0]);
                let expected: Vec<_> = next.iter().map(due).collect();
                let mut after: Vec<usize> =
                    expected.iter().flatten().filter(|(_, due)| *due == seen).map(|(at, _)| at + 1).collect();
                after.dedup();
                if after.is_empty() {
                    return Err(format!(
                        "{name} saw {seen:?} of topic {topic} where one of {expected:?} follows"
                    ));
                }
                *next = after;
                return Ok(());
            }
        }
        let Some(known) = places else { return Ok(()) };
        let (mut after, mut visited) = (Vec::<StreamPlace>::new(), BTreeSet::new());
        for place in known.iter().flat_map(|place| place.after(log, shapes, *wants_oof, seen, &mut visited)) {
            let is_known = |other: &StreamPlace| {
                (other.at, other.shape) == (place.at, place.shape)
                    && other.due == place.due
                    && other.state == place.state
            };
            if !after.iter().any(is_known) {
                after.push(place);
            }
        }
        if after.is_empty() {
            let expected: Vec<_> = known.iter().map(|place| place.missing(log, shapes, *wants_oof)).collect();
            return Err(format!(
                "{name} saw {seen:?} of topic {topic} where {expected:?} follows ({shapes:?}, oof: {wants_oof})"
            ));
        }
        *places = Some(after);
        Ok(())
    }

    /// As [`Stream::verdict`], for a topic that is not in the log. `last` has the records that
    /// match.
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

    /// Whether the program got every message, when there are no more changes.
    ///
    /// # Errors
    /// What is missing.
    pub fn verdict(&self, log: &Log, lifetimes: Lifetimes) -> Result<(), String> {
        if self.is_over {
            return Ok(());
        }
        let unknown = || format!("{} did not receive all records of topic {}", self.name, self.topic);
        if !self.is_complete {
            return Err(unknown());
        }
        match &self.course {
            Course::Log { next: None, .. } => return Err(unknown()),
            Course::Log { next: Some(next), .. } => {
                let due = next.iter().map(|from| next_message(log, *from, self.shape()));
                // Without a next message for one of the states, the program has all of them.
                return match due.min_by_key(Option::is_some).flatten() {
                    None => Ok(()),
                    Some((_, due)) => Err(format!("{} never saw {due:?} of topic {}", self.name, self.topic)),
                };
            }
            Course::Conflated(_) => (),
            Course::Whole if self.is_unsure => (),
            Course::Whole => {
                let places = self.places.as_ref().ok_or_else(unknown)?;
                let missing = |place: &StreamPlace| place.missing(log, &self.shapes, self.wants_oof);
                let mut missing = places.iter().map(missing);
                if missing.all(|missing| missing.is_some()) {
                    let due =
                        places.first().and_then(|place| place.missing(log, &self.shapes, self.wants_oof));
                    return Err(format!("{} never saw {due:?} of topic {}", self.name, self.topic));
                }
            }
        }
        let is_whole = self.wants_oof;
        if !fits(log.state(), &self.view, self.shape(), is_whole, lifetimes) {
            return Err(format!(
                "the view of {} is {:?} at the end, topic {} has {:?} ({:?})",
                self.name,
                self.view,
                self.topic,
                brief(log.state()),
                self.shape()
            ));
        }
        Ok(())
    }
}

/// A message about a record is newer than the one before.
fn follow_conflated(
    name: &str,
    log: &Log,
    newest: &mut BTreeMap<u64, u64>,
    seen: Seen,
) -> Result<(), String> {
    let (Seen::Publish { key, value } | Seen::Left { key, value: Some(value), .. }) = seen else {
        return Ok(());
    };
    let Some(position) = log.position_of(value) else { return Ok(()) };
    let before = newest.insert(key, position).unwrap_or_default();
    let is_newer = match seen {
        Seen::Publish { .. } => position > before,
        Seen::Left { .. } => position >= before,
    };
    if is_newer {
        return Ok(());
    }
    Err(format!("{name} saw {seen:?} of {position} after a message of {before}"))
}

/// The next message of the log for a subscription, and the number of its change.
fn next_message(log: &Log, from: usize, shape: &Shape) -> Option<(usize, Seen)> {
    log.changes.iter().enumerate().skip(from).find_map(|(at, change)| {
        let row = change.row.filter(|row| shape.want.matches(change.key, row.quantity))?;
        Some((at, Seen::Publish { key: change.key, value: row.value }))
    })
}

/// Whether the records that are shown are those of a view. `is_whole`: the view has no others.
fn fits(state: &TopicState, view: &View, shape: &Shape, is_whole: bool, lifetimes: Lifetimes) -> bool {
    let mut count = 0;
    for (key, row) in shape.shown(state) {
        let seen = view.get(&key).copied();
        if !fits_record(Some(row), seen, is_whole, lifetimes) {
            return false;
        }
        count += usize::from(seen.is_some());
    }
    !is_whole || count == view.len()
}

/// As [`fits`], for the record of one key. The subscription does not have a page.
fn fits_at(
    key: u64,
    state: &TopicState,
    view: &View,
    shape: &Shape,
    is_whole: bool,
    lifetimes: Lifetimes,
) -> bool {
    let row = state[key as usize].filter(|row| shape.want.matches(key, row.quantity));
    fits_record(row, view.get(&key).copied(), is_whole, lifetimes)
}

/// Whether a view has the message `seen` as the record of a key whose record is `row`.
fn fits_record(row: Option<Row>, seen: Option<u64>, is_whole: bool, lifetimes: Lifetimes) -> bool {
    let Some(row) = row else { return seen.is_none() || !is_whole };
    let may_be_there = row.expires.is_none_or(|at| at > lifetimes.over);
    let must_be_there = row.expires.is_none_or(|at| at > lifetimes.peak);
    match seen {
        Some(value) if value == row.value => may_be_there || !is_whole,
        Some(_) => !must_be_there && !is_whole,
        None => !must_be_there,
    }
}

pub(super) fn brief(state: &TopicState) -> View {
    (0..).zip(state).filter_map(|(key, row)| Some((key, (*row)?.value))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::log::Change;
    use super::super::{Condition, Want};
    use super::*;

    const LIFETIMES: Lifetimes = Lifetimes { over: 0, peak: 0 };

    /// A log in which the message with the number n, from 1 on, is at the position n, and has the
    /// key `keys[n - 1]`.
    fn log(keys: &[u64]) -> Log {
        let mut log = Log::new(2);
        for (position, key) in (1..).zip(keys) {
            let row = Row { value: position, quantity: 0, expires: None, position };
            log.push(Change {
                position,
                timestamp_ns: position,
                bookmark: quire_types::Bookmark {
                    publisher: quire_types::PublisherId(1),
                    sequence: position,
                },
                key: *key,
                row: Some(row),
            });
        }
        log
    }

    fn shape(condition: Condition) -> Shape {
        Shape { want: Want { condition, keys: None }, page: None, from: 0 }
    }

    fn stream(course: Course, wants_oof: bool) -> Stream {
        Stream::new("reader".into(), 0, shape(Condition::All), course, wants_oof, false)
    }

    fn complete(view: &[(u64, u64)], span: Span) -> Complete {
        Complete { view: view.iter().copied().collect(), is_first: false, span, shape: 0 }
    }

    /// While the client asked about the records that it had lost, conflated messages about other
    /// records came.
    #[test]
    fn a_conflated_view_after_a_reconnect_has_records_of_several_instants() {
        let log = log(&[0, 1, 0, 1]);
        let mixed = complete(&[(0, 1), (1, 4)], Span::between(0, 4));
        let mut conflated = stream(Course::Conflated(BTreeMap::new()), true);
        assert_eq!(conflated.resynchronized(&log, &mixed, LIFETIMES), Ok(()));
        assert!(stream(Course::Whole, true).resynchronized(&log, &mixed, LIFETIMES).is_err());
    }

    /// The records were those of both states that the topic could answer with. The next message
    /// tells which one it was.
    #[test]
    fn a_subscription_that_begins_with_one_of_two_states_sees_the_messages_after_it() {
        let log = log(&[0, 1, 0, 1]);
        let states = || Earlier([2, 3].map(|position| Instant { position, time_ns: position }).into());
        let begun = |view: &[(u64, u64)], seen: u64| {
            let mut stream = stream(Course::Log { earlier: states(), next: None }, false);
            stream.view = view.iter().copied().collect();
            let begun = stream.begun(&log, true);
            begun.and_then(|()| stream.follow(&log, Seen::Publish { key: (seen + 1) % 2, value: seen }))
        };
        assert_eq!(begun(&[(0, 1), (1, 2)], 3), Ok(()));
        assert_eq!(begun(&[(0, 3), (1, 2)], 4), Ok(()));
        assert!(begun(&[(0, 1), (1, 2)], 4).is_err());
        assert!(begun(&[(0, 3), (1, 2)], 3).is_err());
        assert!(begun(&[(0, 1)], 3).is_err());
    }

    /// The records of a repeated query came after the answers to two replacements.
    #[test]
    fn records_come_after_the_answers_to_several_replacements() {
        let mut stream = stream(Course::Whole, true);
        stream.shapes = [1, 2, 3].map(|key| shape(Condition::Is(key))).to_vec();
        assert!(stream.wants(1, 0));
        stream.entered = 1;
        assert!(!stream.wants(1, 0));
    }

    /// A conflated subscription without `oof` had a message that a crash of the server lost, and
    /// received it again.
    #[test]
    fn a_message_that_a_crash_lost_comes_again_to_a_conflated_subscription() {
        let log = log(&[1, 0, 0]);
        let seen = Seen::Publish { key: 0, value: 3 };
        for (wants_oof, is_right) in [(false, true), (true, false)] {
            let mut stream = stream(Course::Conflated(BTreeMap::new()), wants_oof);
            let known = complete(&[(0, 3), (1, 1)], Span::between(2, 3));
            assert_eq!(stream.resynchronized(&log, &known, LIFETIMES), Ok(()));
            assert_eq!(stream.follow(&log, seen).is_ok(), is_right);
        }
    }
}
