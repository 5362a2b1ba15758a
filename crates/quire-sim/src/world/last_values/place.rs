//! A place of a subscription in the log: the state that it has seen, and the messages that must
//! come next.

use std::collections::{BTreeSet, VecDeque};

use quire_command::OofReason;

use super::Want;
use super::log::{Change, Log, Row, TopicState};

/// A message of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Publish { key: u64, value: u64 },
    Left { reason: OofReason, key: u64, value: Option<u64> },
}

/// The records that a subscription has in view.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub want: Want,
    /// Of a page: how many records are before it, and how many it has.
    pub page: Option<(usize, usize)>,
    /// The log was here, or later, when the server got the command.
    pub from: u64,
}

/// See the module. The state is that after the changes before `at`, except for records that have
/// expired since.
#[derive(Clone, Debug)]
pub(super) struct StreamPlace {
    pub at: usize,
    pub state: TopicState,
    /// The number of the shape in effect.
    pub shape: usize,
    /// The next messages, in groups. The messages of one group have any order.
    pub due: VecDeque<Vec<Seen>>,
}

impl Shape {
    /// The records in view, and their keys. Those of a page are in its order.
    pub fn shown(&self, state: &TopicState) -> Vec<(u64, Row)> {
        let rows = (0..).zip(state).filter_map(|(key, row)| Some((key, (*row)?)));
        let mut shown: Vec<_> = rows.filter(|(key, row)| self.want.matches(*key, row.quantity)).collect();
        if let Some((skip_n, top_n)) = self.page {
            shown.sort_by_key(|(_, row)| (std::cmp::Reverse(row.quantity), row.value));
            shown = shown.into_iter().skip(skip_n).take(top_n).collect();
        }
        shown
    }

    /// The messages about a change, in groups.
    fn messages(&self, change: &Change, state: &TopicState, wants_oof: bool) -> VecDeque<Vec<Seen>> {
        let before = self.shown(state);
        let mut changed = state.clone();
        change.apply(&mut changed);
        let after = self.shown(&changed);
        let has = |shown: &[(u64, Row)], key| shown.iter().any(|(other, _)| *other == key);
        let leaving = before.iter().filter(|(key, _)| wants_oof && !has(&after, *key));
        let left = |(key, row): &(u64, Row)| {
            let current = if *key == change.key { change.row } else { Some(*row) };
            let reason = if current.is_some() { OofReason::Match } else { OofReason::Deleted };
            Seen::Left { reason, key: *key, value: Some(current.unwrap_or(*row).value) }
        };
        let is_new = |(key, _): &&(u64, Row)| *key == change.key || !has(&before, *key);
        let entering =
            after.iter().filter(is_new).filter(|(key, _)| *key != change.key || change.row.is_some());
        let published = |(key, row): &(u64, Row)| Seen::Publish { key: *key, value: row.value };
        groups(leaving.map(left).collect(), entering.map(published).collect())
    }

    /// The messages for a subscription that gets this shape instead of a former one.
    fn difference(&self, former: &Shape, state: &TopicState, wants_oof: bool) -> VecDeque<Vec<Seen>> {
        let (before, after) = (former.shown(state), self.shown(state));
        let leaving = before.iter().filter(|shown| wants_oof && !after.contains(shown));
        let left = |(key, row): &(u64, Row)| Seen::Left {
            reason: OofReason::Match,
            key: *key,
            value: Some(row.value),
        };
        let entering = after.iter().filter(|shown| !before.contains(shown));
        let published = |(key, row): &(u64, Row)| Seen::Publish { key: *key, value: row.value };
        groups(leaving.map(left).collect(), entering.map(published).collect())
    }
}

fn groups(first: Vec<Seen>, second: Vec<Seen>) -> VecDeque<Vec<Seen>> {
    [first, second].into_iter().filter(|group| !group.is_empty()).collect()
}

impl StreamPlace {
    pub fn new(at: usize, state: TopicState, shape: usize) -> Self {
        StreamPlace { at, state, shape, due: VecDeque::new() }
    }

    /// The places after a message; none when the message is not the next one. A shape takes effect
    /// at one of the places between two messages. `visited` has the numbers of shapes and the
    /// places from which the walk continued: from there, others find the same.
    pub fn after(
        &self,
        log: &Log,
        shapes: &[Shape],
        wants_oof: bool,
        seen: Seen,
        visited: &mut BTreeSet<(usize, usize)>,
    ) -> Vec<StreamPlace> {
        let mut place = self.clone();
        if let Seen::Left { reason: OofReason::Expired, key, value } = seen {
            let Some(row) = place.state.get_mut(key as usize).and_then(Option::take) else {
                return Vec::new();
            };
            let is_in_view = shapes[place.shape].want.matches(key, row.quantity);
            let is_right = row.expires.is_some() && Some(row.value) == value && is_in_view;
            return if is_right { vec![place] } else { Vec::new() };
        }
        if !place.due.is_empty() {
            return if place.take(seen) { vec![place] } else { Vec::new() };
        }
        let mut places = Vec::new();
        loop {
            // With one shape, records can have expired, so that the states of two places differ.
            if shapes.len() > 1 && !visited.insert((place.shape, place.at)) {
                return places;
            }
            if let Some(mut replaced) = place.replaced(log, shapes, wants_oof) {
                if replaced.due.is_empty() {
                    places.extend(replaced.after(log, shapes, wants_oof, seen, visited));
                } else if replaced.take(seen) {
                    places.push(replaced);
                }
            }
            if !place.advance(log, shapes, wants_oof) {
                return places;
            }
            if !place.due.is_empty() {
                if place.take(seen) {
                    places.push(place);
                }
                return places;
            }
        }
    }

    /// The messages that must come next; none when everything was seen.
    pub fn missing(&self, log: &Log, shapes: &[Shape], wants_oof: bool) -> Option<VecDeque<Vec<Seen>>> {
        let mut place = self.clone();
        loop {
            if !place.due.is_empty() {
                return Some(place.due);
            }
            if let Some(replaced) = place.replaced(log, shapes, wants_oof)
                && replaced.missing(log, shapes, wants_oof).is_none()
            {
                return None;
            }
            if !place.advance(log, shapes, wants_oof) {
                let is_last = place.shape + 1 == shapes.len();
                return (!is_last).then(VecDeque::new);
            }
        }
    }

    /// The next shape takes effect here; `None`: there is none, or its command came later.
    fn replaced(&self, log: &Log, shapes: &[Shape], wants_oof: bool) -> Option<StreamPlace> {
        let next = shapes.get(self.shape + 1).filter(|next| self.at >= log.index_after(next.from))?;
        let due = next.difference(&shapes[self.shape], &self.state, wants_oof);
        Some(StreamPlace { shape: self.shape + 1, due, ..self.clone() })
    }

    /// Goes to the next change. Returns whether there is one.
    fn advance(&mut self, log: &Log, shapes: &[Shape], wants_oof: bool) -> bool {
        let Some(change) = log.changes.get(self.at) else { return false };
        self.due = shapes[self.shape].messages(change, &self.state, wants_oof);
        change.apply(&mut self.state);
        self.at += 1;
        true
    }

    /// Whether the message is one of the next ones.
    fn take(&mut self, seen: Seen) -> bool {
        let Some(group) = self.due.front_mut() else { return false };
        let Some(index) = group.iter().position(|due| *due == seen) else { return false };
        group.swap_remove(index);
        if group.is_empty() {
            self.due.pop_front();
        }
        true
    }
}
