//! The ends of subscriptions to a range of bookmarks or of time (docs/replay.md).
//!
//! An end that is in the log is a position, and is reached like any other goal. The pass over newly
//! persisted records searches for an end that is not in the log yet. The pass sees every record
//! before any replay does. A bookmark is found when its message is recorded. An instant is found
//! when a later record is recorded, or when it has passed and all records that were taken until
//! then are persisted.

use std::collections::BTreeSet;
use std::time::Duration;

use hashbrown::HashMap;
use quire_journal::{Bookmark, Position, Record, Timestamp};
use rustc_hash::FxBuildHasher;

use super::{Bookmarks, EndPosition, Source};
use crate::Timer;
use crate::context::Context;
use crate::subscription::{End, SubscriptionId};
use quire_command::{Code, Reply};

/// The ends that are not in the log yet.
#[derive(Debug, Default)]
pub(super) struct AwaitedEnds {
    bookmarks: HashMap<Bookmark, Vec<SubscriptionId>, FxBuildHasher>,
    /// The subscriptions by the last instant of their range.
    instants: BTreeSet<(Timestamp, SubscriptionId)>,
}

impl AwaitedEnds {
    pub(crate) fn is_empty(&self) -> bool {
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

/// Whether the user of a subscription may name the message. A message that it may not name must not
/// end its range: the end would tell that the log has the message.
fn may_name(cx: &Context, id: SubscriptionId, record: &Record<'_>) -> bool {
    let subscription = cx.clients.subscriptions.get(id);
    subscription.is_some_and(|subscription| cx.nameable(subscription.session).allows(record.topic))
}

impl Bookmarks {
    /// Sets the end of the subscription.
    pub(crate) fn set_until(&mut self, cx: &mut Context, id: SubscriptionId, until: Option<EndPosition>) {
        self.clear_until(id);
        if let Some(EndPosition::Awaited(end)) = &until {
            self.awaited_ends.add(id, end);
            self.set_end_timer(cx);
        }
        if let Some(progress) = self.subscriptions.get_mut(id) {
            progress.until = until;
        }
    }

    /// The search for the end of the subscription is over.
    pub(crate) fn clear_until(&mut self, id: SubscriptionId) {
        let until = self.subscriptions.get_mut(id).and_then(|progress| progress.until.take());
        if let Some(EndPosition::Awaited(end)) = until {
            self.awaited_ends.remove(id, &end);
        }
    }

    /// Finds the ends that this record, the next one of the pass, determines. Returns whether there
    /// were any.
    pub(crate) fn find_ends(&mut self, cx: &mut Context, record: &Record<'_>) -> bool {
        let before = Position::new(record.position.get() - 1);
        let mut found = Vec::new();
        while let Some(&(instant, id)) = self.awaited_ends.instants.first()
            && instant < record.timestamp
        {
            self.awaited_ends.instants.pop_first();
            found.push((id, before));
        }
        let mut hidden = self.awaited_ends.bookmarks.remove(&record.bookmark()).unwrap_or_default();
        for id in hidden.extract_if(.., |id| may_name(cx, *id, record)) {
            let until = self.subscriptions.get(id).and_then(|progress| progress.until.as_ref());
            if let Some(EndPosition::Awaited(end)) = until {
                found.push((id, end.with(record.position)));
            }
        }
        if !hidden.is_empty() {
            self.awaited_ends.bookmarks.insert(record.bookmark(), hidden);
        }
        for &(id, until) in &found {
            self.end_found(cx, id, until);
        }
        !found.is_empty()
    }

    /// Finds the ends that time alone determines: all messages that were taken until then are
    /// persisted, and no further message can belong to the range.
    pub(crate) fn find_passed_ends(&mut self, cx: &mut Context) {
        let is_all_served = cx.log.served == cx.log.appended() || cx.log.failure.is_some();
        let mut any = false;
        while is_all_served
            && let Some(&(instant, id)) = self.awaited_ends.instants.first()
            && instant < cx.clock.now.wall
        {
            self.awaited_ends.instants.pop_first();
            self.end_found(cx, id, cx.log.served);
            any = true;
        }
        if any {
            self.advance_followers(cx);
        }
        self.set_end_timer(cx);
    }

    fn end_found(&mut self, cx: &mut Context, id: SubscriptionId, until: Position) {
        let Some(progress) = self.subscriptions.get_mut(id) else { return };
        progress.until = Some(EndPosition::At(until));
        match progress.stage {
            // A replay that waits at the tail may be at the end already.
            Source::Replaying(replay) => {
                let replay = self.replay(replay);
                let index = replay.subscriptions.iter().position(|member| *member == id);
                if let Some(reached) = index.map(|index| replay.after(index)) {
                    self.reach(cx, id, reached);
                }
            }
            _ => drop(self.awaiting.insert(id)),
        }
    }

    /// The wall clock may be set meanwhile, so the time is checked again when the timer fires.
    fn set_end_timer(&mut self, cx: &mut Context) {
        let Some((instant, _)) = self.awaited_ends.instants.first() else {
            return cx.clock.timers.clear(Timer::End);
        };
        // An end that is determined but not persisted yet is found when it is persisted. This needs
        // no timer.
        match instant.0.checked_sub(cx.clock.now.wall.0) {
            Some(wait_ns) => {
                let at = cx.clock.now.instant + Duration::from_nanos(wait_ns.saturating_add(1));
                cx.clock.timers.set(Timer::End, at);
            }
            None => cx.clock.timers.clear(Timer::End),
        }
    }

    /// A subscription has reached the end of its range.
    pub(crate) fn end_range(&mut self, cx: &mut Context, id: SubscriptionId) {
        self.detach_bookmark(cx, id);
        let subscription = cx.subscription(id);
        let (session, number) = (subscription.session, subscription.number);
        cx.remove_subscription_later(id);
        let reason = "the end of the range was passed";
        cx.put(session, &Reply::SubscriptionEnded { subscription: number, code: Code::Ok, reason });
    }
}
