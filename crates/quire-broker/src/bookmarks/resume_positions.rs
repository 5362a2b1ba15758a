//! Sends resume positions to bookmark subscriptions: the position up to which the log was read for
//! them.
//!
//! Some subscriptions have no message after which to resume: they match few messages, or they began
//! at the end of the log and have received no message. So the broker sends the bookmark of the last
//! message up to the tail to the subscriptions that requested it, whether or not they match that
//! message. This resume position is exact, because all matching messages up to the tail were sent
//! before.
//!
//! An instance that replicates sends *places* next to it (docs/internals/copies.md, *A subscription
//! that moves*): positions of the logs of other instances, up to which everything comes before this
//! point, and the position of the log here. The first frame may have no place. It says that the
//! instance replicates.

use crate::context::Context;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use quire_journal::{Bookmark, Journal, Position, PublisherId, RecordKind};

use super::{Bookmarks, Source};
use crate::session::Phase;
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use quire_command::{LogPlace, PlaceList, Reply, SubscriptionNumbers, put_place};
use quire_types::time::Instant;

/// The shortest time between two resume positions. It limits the part of the log that is read again
/// after a lost connection. In comparison, one frame per connection and second has a low cost.
const INTERVAL: Duration = Duration::from_secs(1);

/// The most batches whose last message is stored until the tail has passed it. Above this number,
/// the newest two count as one, and the resume positions are coarser.
const AHEAD_MAX: usize = 4096;

/// The beginning of the log on the wire.
const BEGINNING: Bookmark = Bookmark { publisher: PublisherId(0), sequence: 0 };

/// The messages of a batch.
#[derive(Clone, Copy, Debug)]
struct Messages {
    first: Position,
    last: Position,
    /// Of the last message.
    bookmark: Bookmark,
}

#[derive(Debug)]
pub(super) struct ResumePositions {
    /// The messages of each batch, from the first batch whose last message is above the tail.
    ahead: VecDeque<Messages>,
    /// The messages of the open batch.
    open: Option<Messages>,
    /// The last message up to the tail; `None` = not known, because the last record of the log is
    /// not a message.
    reached: Option<Bookmark>,
    /// The tail.
    served: Position,
    /// The last position that was sent to all subscriptions that have caught up.
    told: Option<Bookmark>,
    /// The version of the places that were sent last.
    told_places: u64,
    next_at: Instant,
    /// Sessions with a subscription that requested resume positions.
    sessions: BTreeSet<SessionId>,
}

impl ResumePositions {
    /// The state at the end of `journal`.
    pub(crate) fn new(journal: &Journal) -> Self {
        ResumePositions {
            ahead: VecDeque::new(),
            open: None,
            reached: last_message(journal),
            served: journal.persisted(),
            told: None,
            told_places: 0,
            next_at: Instant::default(),
            sessions: BTreeSet::new(),
        }
    }

    /// A message or a delete was appended. Subscriptions with `deletions` receive deletes, too.
    pub(crate) fn appended(&mut self, position: Position, bookmark: Bookmark) {
        let first = self.open.map_or(position, |open| open.first);
        self.open = Some(Messages { first, last: position, bookmark });
    }

    /// The open batch goes to the journal.
    pub(crate) fn submitted(&mut self) {
        let Some(mut messages) = self.open.take() else { return };
        if self.ahead.len() >= AHEAD_MAX
            && let Some(before) = self.ahead.pop_back()
        {
            messages.first = before.first;
        }
        self.ahead.push_back(messages);
    }

    /// The tail has moved.
    fn reach(&mut self, served: Position) {
        while let Some(messages) = self.ahead.pop_front_if(|messages| messages.last <= served) {
            self.reached = Some(messages.bookmark);
        }
        self.served = served;
    }

    /// Whether no message is between `reached` and this position. Otherwise a subscription that has
    /// all messages up to the position would receive these messages again when it resumed after
    /// `reached`.
    fn is_exact(&self, position: Position) -> bool {
        let next = self.ahead.front().or(self.open.as_ref());
        next.is_none_or(|messages| messages.first > position)
    }

    /// When the next resume positions or places are due.
    pub(crate) fn due(&self, cx: &Context) -> Option<Instant> {
        let has_news = self.next().is_some() || cx.log.places.version() != self.told_places;
        (has_news && !self.sessions.is_empty()).then_some(self.next_at)
    }

    /// The next resume position. While the tail is inside a batch, it waits until it is at the end.
    fn next(&self) -> Option<Bookmark> {
        self.reached.filter(|reached| Some(*reached) != self.told && self.is_exact(self.served))
    }

    /// The next resume position is sent even if the log does not grow.
    pub(super) fn want(&mut self) {
        self.told = None;
    }

    pub(crate) fn forget(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }
}

impl Bookmarks {
    /// The pass over newly persisted records is done for this turn.
    pub(crate) fn send_resume_positions(&mut self, cx: &mut Context) {
        self.resume_positions.reach(cx.log.served);
        cx.log.places.handle_reached(cx.log.served);
        if self.resume_positions.due(cx).is_none_or(|at| at > cx.clock.now.instant) {
            return;
        }
        let reached = self.resume_positions.next();
        self.resume_positions.told = reached.or(self.resume_positions.told);
        self.resume_positions.told_places = cx.log.places.version();
        let places = (cx.log.number != 0).then(|| current_places(cx));
        self.resume_positions.next_at = cx.clock.now.instant + INTERVAL;
        for id in self.resume_positions.sessions.iter().copied().collect::<Vec<_>>() {
            let session = &cx.clients.sessions.all[id];
            let wanting = session.subscriptions.iter().filter_map(|(number, subscription)| {
                let progress = self.progress(*subscription)?;
                let subscription = &cx.clients.subscriptions.all[*subscription];
                let holds = subscription.delivery.conflation.as_ref().is_some_and(|held| !held.is_empty());
                let is_at_tail = match progress.stage {
                    Source::Tailing => true,
                    // Subscriptions that share a replay wait in it at the tail.
                    Source::Replaying(replay) => self.replays[replay].place.after >= cx.log.served,
                    _ => false,
                };
                let is_served = is_at_tail && !holds;
                progress.wants_resume_positions.then_some((*number, is_served, progress.takes_places))
            });
            let wanting: Vec<(u32, bool, bool)> = wanting.collect();
            if wanting.is_empty() {
                self.resume_positions.forget(id);
            }
            let is_writable = session.is_writable;
            let following = wanting.iter().filter(|(_, is_following, _)| *is_following && is_writable);
            let numbers = |takes_places: bool| -> Vec<u8> {
                let takes = following.clone().filter(|(.., takes)| *takes || !takes_places);
                takes.flat_map(|(number, ..)| number.to_le_bytes()).collect()
            };
            if let Some(reached) = reached {
                send_resume_position(cx, id, reached, &numbers(false));
            }
            if let Some(places) = &places {
                send_places(cx, id, places, &numbers(true));
            }
        }
    }

    /// A bookmark subscription begins. Sends its resume position when that is the end of the log.
    pub(crate) fn send_first_resume_position(&mut self, cx: &mut Context, id: SubscriptionId) {
        let served = cx.log.served;
        let subscription = cx.subscription(id);
        let (session, number) = (subscription.session, subscription.number);
        let Some(progress) = self.progress(id).filter(|progress| progress.wants_resume_positions) else {
            return;
        };
        let (is_at_tail, takes_places) = (progress.after >= served, progress.takes_places);
        let is_at_end = is_at_tail && self.resume_positions.is_exact(progress.after);
        self.resume_positions.sessions.insert(session);
        if is_at_end && let Some(reached) = self.resume_positions.reached {
            send_resume_position(cx, session, reached, &number.to_le_bytes());
        }
        if takes_places && cx.log.number != 0 {
            // One that has not caught up learns that the instance replicates.
            let places = if is_at_tail { current_places(cx) } else { Vec::new() };
            send_places(cx, session, &places, &number.to_le_bytes());
        }
    }

    /// A subscription has caught up. The next resume position is sent even if the log does not
    /// grow.
    pub(crate) fn want_resume_position(&mut self, id: SubscriptionId) {
        if self.progress(id).is_some_and(|progress| progress.wants_resume_positions) {
            self.resume_positions.want();
        }
    }
}

fn send_resume_position(cx: &mut Context, id: SessionId, place: Bookmark, numbers: &[u8]) {
    if let Some(subscriptions) = SubscriptionNumbers::from_bytes(numbers)
        && cx.session(id).phase == Phase::Open
    {
        let Bookmark { publisher, sequence } = place;
        cx.put(id, &Reply::ResumePosition { publisher: publisher.get(), sequence, subscriptions });
    }
}

/// The places of the log up to the tail, packed.
fn current_places(cx: &Context) -> Vec<u8> {
    let mut out = Vec::new();
    let (_, places) = cx.log.places.current();
    for (instance, place) in places.iter() {
        put_place(&mut out, instance, LogPlace { log: place.log, position: place.position.get() });
    }
    let own = LogPlace { log: cx.log.number, position: cx.log.served.get() };
    put_place(&mut out, &cx.config.name, own);
    out
}

fn send_places(cx: &mut Context, id: SessionId, places: &[u8], numbers: &[u8]) {
    if let (Some(places), Some(subscriptions)) =
        (PlaceList::from_bytes(places), SubscriptionNumbers::from_bytes(numbers))
        && cx.session(id).phase == Phase::Open
    {
        cx.put(id, &Reply::Places { places, subscriptions });
    }
}

/// The last message that the journal holds, when it ends with one.
fn last_message(journal: &Journal) -> Option<Bookmark> {
    let last = journal.persisted();
    let Some(before) = last.get().checked_sub(1) else { return Some(BEGINNING) };
    let mut cursor = journal.reader().cursor(Position::new(before)).sparingly();
    // A read error is ignored here, because a resume position is optional. The next reader of this
    // place reports the error.
    let batch = cursor.next(last, &quire_journal::AllTopics).ok().flatten()?;
    let record = batch.records().find(|record| record.position == last)?;
    matches!(record.kind, RecordKind::Publish | RecordKind::Delete)
        .then_some(Bookmark { publisher: record.publisher, sequence: record.sequence })
}
