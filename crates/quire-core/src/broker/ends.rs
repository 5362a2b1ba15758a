//! Ends of subscriptions: a range of bookmarks, or of time, that has one (docs/replay.md).
//!
//! An end that is in the log is a position, and reached like any other goal. One that is not there yet is looked for by the pass over
//! what has just been persisted, which sees every record before any replay does: a bookmark is found when it is recorded, an instant when
//! something later is, or when it has passed and all that was taken until then is persisted.

use std::collections::BTreeSet;
use std::time::Duration;

use hashbrown::HashMap;
use quire_journal::{Bookmark, Position, Record, Timestamp};
use rustc_hash::FxBuildHasher;

use super::{Alarm, Broker};
use crate::subscription::{End, Progressing, SubscriptionId, Until};
use crate::wire::{Code, ServerFrame};

/// The ends that are not in the log yet.
#[derive(Debug, Default)]
pub(super) struct AwaitedEnds {
    bookmarks: HashMap<Bookmark, Vec<SubscriptionId>, FxBuildHasher>,
    /// By the last instant that is wanted.
    instants: BTreeSet<(Timestamp, SubscriptionId)>,
}

impl AwaitedEnds {
    pub(super) fn is_empty(&self) -> bool {
        self.bookmarks.is_empty() && self.instants.is_empty()
    }

    fn add(&mut self, id: SubscriptionId, end: &End) {
        if let Some(bookmark) = end.bookmark() {
            self.bookmarks.entry(bookmark).or_default().push(id);
        }
        if let Some(instant) = end.last_instant() {
            self.instants.insert((instant, id));
        }
    }

    fn remove(&mut self, id: SubscriptionId, end: &End) {
        if let Some(bookmark) = end.bookmark()
            && let Some(ids) = self.bookmarks.get_mut(&bookmark)
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.bookmarks.remove(&bookmark);
            }
        }
        if let Some(instant) = end.last_instant() {
            self.instants.remove(&(instant, id));
        }
    }
}

impl Broker {
    /// From now on the subscription ends there.
    pub(super) fn set_until(&mut self, id: SubscriptionId, until: Option<Until>) {
        self.clear_until(id);
        if let Some(Until::Awaited(end)) = &until {
            self.awaited_ends.add(id, end);
            self.set_end_alarm();
        }
        if let Some(progress) = self.subscription(id).progress_mut() {
            progress.until = until;
        }
    }

    /// Nobody looks for the subscription's end any more.
    pub(super) fn clear_until(&mut self, id: SubscriptionId) {
        let until = self.subscription(id).progress_mut().and_then(|progress| progress.until.take());
        if let Some(Until::Awaited(end)) = until {
            self.awaited_ends.remove(id, &end);
        }
    }

    /// Finds the ends that this record, the next one of the pass, decides; whether there were any.
    pub(super) fn find_ends(&mut self, record: &Record<'_>) -> bool {
        let before = Position::new(record.position.get() - 1);
        let mut found = Vec::new();
        while let Some(&(instant, id)) = self.awaited_ends.instants.first()
            && instant < record.timestamp
        {
            self.awaited_ends.instants.pop_first();
            found.push((id, before));
        }
        for id in self.awaited_ends.bookmarks.remove(&record.bookmark()).unwrap_or_default() {
            let until = self.subscription(id).progress().and_then(|progress| progress.until);
            if let Some(Until::Awaited(end)) = until {
                found.push((id, end.with(record.position)));
            }
        }
        for &(id, until) in &found {
            self.end_found(id, until);
        }
        !found.is_empty()
    }

    /// Finds the ends that are decided by time alone: everything taken until then is persisted, and nothing more can come.
    pub(super) fn find_passed_ends(&mut self) {
        let is_all_served = self.edge == self.journal.appended() || self.failure.is_some();
        let mut any = false;
        while is_all_served
            && let Some(&(instant, id)) = self.awaited_ends.instants.first()
            && instant < self.now.wall
        {
            self.awaited_ends.instants.pop_first();
            self.end_found(id, self.edge);
            any = true;
        }
        if any {
            self.arrive();
        }
        self.set_end_alarm();
    }

    fn end_found(&mut self, id: SubscriptionId, until: Position) {
        let Some(progress) = self.subscription(id).progress_mut() else { return };
        progress.until = Some(Until::At(until));
        match progress.stage {
            // A replay that waits at the edge may stand at the end already.
            Progressing::Replaying(replay) => {
                let replay = self.replay(replay);
                let index = replay.subscriptions.iter().position(|member| *member == id);
                if let Some(reached) = index.map(|index| replay.after(index)) {
                    self.reach(id, reached);
                }
            }
            _ => drop(self.with_goals.insert(id)),
        }
    }

    /// The wall clock may be set meanwhile: when the alarm rings, the time is looked at again.
    fn set_end_alarm(&mut self) {
        let Some((instant, _)) = self.awaited_ends.instants.first() else {
            return self.alarms.clear(Alarm::End);
        };
        // What is decided but not persisted yet is found when it is; that needs no alarm.
        match instant.0.checked_sub(self.now.wall.0) {
            Some(wait_ns) => {
                let at = self.now.instant + Duration::from_nanos(wait_ns.saturating_add(1));
                self.alarms.set(Alarm::End, at);
            }
            None => self.alarms.clear(Alarm::End),
        }
    }

    /// A subscription has come to the end of its range.
    pub(super) fn end_range(&mut self, id: SubscriptionId) {
        let (session, number) = {
            let subscription = self.subscription(id);
            (subscription.session, subscription.number)
        };
        self.remove_subscription(id);
        let reason = "the end of the range was passed";
        self.put(session, &ServerFrame::SubscriptionEnded { subscription: number, code: Code::Ok, reason });
    }
}
