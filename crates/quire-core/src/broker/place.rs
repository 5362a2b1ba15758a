//! Telling bookmark subscriptions how far the log has been looked at for them (reference: queues-and-transaction-log 2.5, BR9).
//!
//! A subscription that matches little, or that began at the end of the log and has received nothing, has no message to resume behind.
//! So those that asked for it are told the bookmark of the last message up to the edge, whether or not they match it: to resume there
//! is exact, because everything up to the edge was sent to them before.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use quire_journal::{Bookmark, Journal, Position, PublisherId, RecordKind};

use super::{Broker, Phase};
use crate::session::SessionId;
use crate::subscription::{Progressing, SubscriptionId};
use crate::time::Instant;
use crate::wire::{ServerFrame, SubscriptionNumbers};

/// Shortest time between two places: what a client that lost its connection has looked at again at the most, beside which a frame per
/// connection and second is nothing.
const INTERVAL: Duration = Duration::from_secs(1);

/// Batches whose last message is remembered until the edge has passed it. Beyond it the newest two count as one, and the places that are
/// told are that much coarser.
const AHEAD_MAX: usize = 4096;

/// Stands for the beginning of the log on the wire.
const BEGINNING: Bookmark = Bookmark { publisher: PublisherId(0), sequence: 0 };

#[derive(Debug)]
pub(super) struct Places {
    /// The last message of each batch, from the first that is above the edge.
    ahead: VecDeque<(Position, Bookmark)>,
    /// The last message of the open batch.
    open: Option<(Position, Bookmark)>,
    /// The last message up to the edge; `None` = not known, because what the log ends with is no message.
    reached: Option<Bookmark>,
    /// Everybody who has caught up was told this.
    told: Option<Bookmark>,
    next_at: Instant,
    /// Sessions with a subscription that asked.
    sessions: BTreeSet<SessionId>,
}

impl Places {
    /// At the end of what `journal` holds.
    pub(super) fn new(journal: &Journal) -> Self {
        Places {
            ahead: VecDeque::new(),
            open: None,
            reached: last_message(journal),
            told: None,
            next_at: Instant::default(),
            sessions: BTreeSet::new(),
        }
    }

    /// A message was appended.
    pub(super) fn appended(&mut self, position: Position, bookmark: Bookmark) {
        self.open = Some((position, bookmark));
    }

    /// The open batch goes to the journal.
    pub(super) fn submitted(&mut self) {
        let Some(last) = self.open.take() else { return };
        if self.ahead.len() >= AHEAD_MAX {
            self.ahead.pop_back();
        }
        self.ahead.push_back(last);
    }

    /// The edge has moved.
    fn reach(&mut self, edge: Position) {
        while let Some((position, bookmark)) = self.ahead.front().copied()
            && position <= edge
        {
            self.ahead.pop_front();
            self.reached = Some(bookmark);
        }
    }

    /// When there is something to tell.
    pub(super) fn due(&self) -> Option<Instant> {
        let has_news = self.reached.is_some() && self.reached != self.told && !self.sessions.is_empty();
        has_news.then_some(self.next_at)
    }

    pub(super) fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }
}

impl Broker {
    /// The pass over what was persisted is done for this turn.
    pub(super) fn tell_places(&mut self) {
        self.places.reach(self.edge);
        if self.places.due().is_none_or(|at| at > self.now.instant) {
            return;
        }
        let Some(reached) = self.places.reached else { return };
        self.places.told = Some(reached);
        self.places.next_at = self.now.instant + INTERVAL;
        for id in self.places.sessions.iter().copied().collect::<Vec<_>>() {
            let session = &self.sessions[id];
            let wanting = session.subscriptions.iter().filter_map(|(number, subscription)| {
                let progress = self.subscriptions[*subscription].progress()?;
                let subscription = &self.subscriptions[*subscription];
                let holds = subscription.conflation.as_ref().is_some_and(|held| !held.is_empty());
                let is_served = matches!(progress.stage, Progressing::AtEdge) && !holds;
                progress.wants_places.then_some((*number, is_served))
            });
            let wanting: Vec<(u32, bool)> = wanting.collect();
            if wanting.is_empty() {
                self.places.forget(id);
            }
            let at_edge = wanting.iter().filter(|(_, is_at_edge)| *is_at_edge && session.is_writable);
            let numbers: Vec<u8> = at_edge.flat_map(|(number, _)| number.to_le_bytes()).collect();
            self.tell_place(id, reached, &numbers);
        }
    }

    /// A bookmark subscription begins: it is told its place when that is the end of the log.
    pub(super) fn tell_first_place(&mut self, id: SubscriptionId) {
        let edge = self.edge;
        let subscription = self.subscription(id);
        let (session, number) = (subscription.session, subscription.number);
        let Some(progress) = subscription.progress().filter(|progress| progress.wants_places) else { return };
        let is_at_end = progress.after >= edge;
        self.places.sessions.insert(session);
        if is_at_end && let Some(reached) = self.places.reached {
            self.tell_place(session, reached, &number.to_le_bytes());
        }
    }

    /// A subscription has caught up: it is told the next place, even if the log does not grow.
    pub(super) fn place_is_wanted(&mut self, id: SubscriptionId) {
        if self.subscription(id).progress().is_some_and(|progress| progress.wants_places) {
            self.places.told = None;
        }
    }

    fn tell_place(&mut self, id: SessionId, place: Bookmark, numbers: &[u8]) {
        if let Some(subscriptions) = SubscriptionNumbers::from_bytes(numbers)
            && self.session(id).phase == Phase::Open
        {
            let Bookmark { publisher, sequence } = place;
            self.put(id, &ServerFrame::Place { publisher: publisher.get(), sequence, subscriptions });
        }
    }
}

/// The last message that the journal holds, when it ends with one.
fn last_message(journal: &Journal) -> Option<Bookmark> {
    let last = journal.persisted();
    let Some(before) = last.get().checked_sub(1) else { return Some(BEGINNING) };
    let mut cursor = journal.reader().cursor(Position::new(before)).sparingly();
    // What cannot be read is found out by whoever reads it next; a place is a convenience.
    let batch = cursor.next(last, &quire_journal::AllTopics).ok().flatten()?;
    let record = batch.records().find(|record| record.position == last)?;
    (record.kind == RecordKind::Publish)
        .then_some(Bookmark { publisher: record.publisher, sequence: record.sequence })
}
