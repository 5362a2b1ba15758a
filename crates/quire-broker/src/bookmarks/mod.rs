//! Bookmark subscriptions. They are served from the log, each from its place.
//!
//! A subscription that has not caught up reads the log separately, at the pace of its connection
//! (`replay.rs`). A subscription that has caught up follows the tail of the log with all others
//! (`live.rs`). With `live` it follows the publishes themselves. It changes between these sources
//! without a gap or a duplicate, because its state ([`LogProgress`]) contains the place up to which
//! it was served.

mod ends;
mod figures;
mod live;
mod pause;
mod progress;
mod replay;
mod resume_positions;
mod subscribe;

use std::collections::{BTreeSet, VecDeque};

use quire_expression::filter::Decision;
use quire_journal::{Bookmark, Journal, JournalError, Position, Record};
use quire_types::time::Instant;
use slotmap::{SecondaryMap, SlotMap};

use super::context::Context;
use super::tail::{Consumed, LogConsumer};
use crate::replay::{Replay, ReplayId};
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use crate::topic::TopicId;
use ends::AwaitedEnds;
pub(crate) use progress::{EndPosition, LogProgress};
use progress::{PendingCompletion, Source};
use replay::ReadSlots;
use resume_positions::ResumePositions;
pub(crate) use subscribe::{FormerPlace, LogPlan, LogRequest};

/// See the module's documentation.
pub(crate) struct Bookmarks {
    /// The progress of each subscription. It is boxed, because other subscriptions leave gaps.
    subscriptions: SecondaryMap<SubscriptionId, Box<LogProgress>>,
    resume_positions: ResumePositions,
    replays: SlotMap<ReplayId, Replay>,
    /// Replays that are checked before the turn ends.
    runnable: VecDeque<ReplayId>,
    /// Replays that must wait for the next turn.
    runnable_next_turn: Vec<ReplayId>,
    /// Replays that wait, each with a timer, for a publish that waits for the disk.
    yielding: BTreeSet<ReplayId>,
    /// Replays of several subscriptions that have caught up. These subscriptions continue together.
    caught_up_groups: Vec<ReplayId>,
    /// Durable replays at the position that the sync destinations have.
    awaiting_destinations: Vec<ReplayId>,
    read_slots: ReadSlots,
    /// Caught up subscriptions with a goal at a certain position, or with a goal that was just
    /// reached.
    awaiting: BTreeSet<SubscriptionId>,
    awaited_ends: AwaitedEnds,
    /// `live` subscriptions that are not synchronized yet.
    switching: BTreeSet<SubscriptionId>,
    /// Subscriptions at the live tail that also receive deletes.
    wanting_deletions: BTreeSet<SubscriptionId>,
    /// The subscriptions that receive the current record. The buffer is reused.
    matched: Vec<(SubscriptionId, Decision)>,
    /// The part of a message that a subscription wants. The buffer is reused.
    selected: Vec<u8>,
}

impl Bookmarks {
    pub(crate) fn new(journal: &Journal) -> Self {
        Bookmarks {
            subscriptions: SecondaryMap::new(),
            resume_positions: ResumePositions::new(journal),
            replays: SlotMap::with_key(),
            runnable: VecDeque::new(),
            runnable_next_turn: Vec::new(),
            yielding: BTreeSet::new(),
            caught_up_groups: Vec::new(),
            awaiting_destinations: Vec::new(),
            read_slots: ReadSlots::default(),
            awaiting: BTreeSet::new(),
            awaited_ends: AwaitedEnds::default(),
            switching: BTreeSet::new(),
            wanting_deletions: BTreeSet::new(),
            matched: Vec::new(),
            selected: Vec::new(),
        }
    }

    /// The progress of a subscription; `None` for a subscription of another service.
    pub(crate) fn progress(&self, id: SubscriptionId) -> Option<&LogProgress> {
        self.subscriptions.get(id).map(|progress| &**progress)
    }

    /// As [`Bookmarks::progress`]; `None` also for a subscription that has ended.
    fn running(&self, cx: &Context, id: SubscriptionId) -> Option<&LogProgress> {
        cx.clients.subscriptions.get(id)?;
        self.progress(id)
    }

    /// Subscriptions, or groups of them, that have not caught up.
    pub(crate) fn replay_count(&self) -> usize {
        self.replays.len()
    }

    /// A message or a delete was appended.
    pub(crate) fn appended(&mut self, position: Position, bookmark: Bookmark) {
        self.resume_positions.appended(position, bookmark);
    }

    /// The open batch is submitted to the journal.
    pub(crate) fn submitted(&mut self) {
        self.resume_positions.submitted();
    }

    /// The session has ended.
    pub(crate) fn forget_session(&mut self, id: SessionId) {
        self.resume_positions.forget(id);
    }

    /// When the next resume positions are due.
    pub(crate) fn due(&self, cx: &Context) -> Option<Instant> {
        self.resume_positions.due(cx)
    }

    fn replay(&mut self, id: ReplayId) -> &mut Replay {
        &mut self.replays[id]
    }
}

impl LogConsumer for Bookmarks {
    fn is_following(&self, cx: &Context) -> bool {
        cx.topics.anyone_waits_for_persisted() || !self.awaited_ends.is_empty()
    }

    fn on_news(&mut self) {
        self.runnable.extend(self.caught_up_groups.drain(..));
    }

    fn next_stop(&self, cx: &Context) -> Option<Position> {
        self.next_awaited_above(cx, cx.log.served)
    }

    fn on_record(&mut self, cx: &mut Context, topic: TopicId, record: &Record<'_>) -> Consumed {
        let has_reached = !self.awaited_ends.is_empty() && self.find_ends(cx, record);
        if has_reached {
            self.advance_followers(cx);
        }
        Consumed { weight: self.serve_persisted(cx, topic, record), has_reached }
    }

    fn on_reached(&mut self, cx: &mut Context) {
        self.advance_followers(cx);
    }

    /// The subscriptions fall back to replays, which find the damage again and report it.
    fn on_unreadable(&mut self, cx: &mut Context, limit: Position, _: &JournalError) {
        self.fall_back_all(cx, limit);
    }

    fn on_end_of_turn(&mut self, cx: &mut Context) {
        self.find_passed_ends(cx);
    }

    fn needed_from(&self, _: &Context) -> Option<Position> {
        let subscriptions = self.subscriptions.values().filter_map(|progress| match progress.stage {
            // The next record is in memory, or at the end of the log.
            Source::Tailing | Source::Live => None,
            Source::Detached | Source::Replaying(_) | Source::SwitchingToLive { .. } => {
                Some(progress.after.next())
            }
        });
        subscriptions.min()
    }
}
