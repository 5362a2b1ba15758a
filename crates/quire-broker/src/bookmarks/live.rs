//! The live tail: one pass over newly persisted records serves every bookmark subscription that has
//! caught up.
//!
//! `served` is the position of the last record that the pass has handed on. A replay that reaches
//! this position becomes a follower, and is served from the next record on, without a gap or a
//! duplicate, also while messages are published. A subscription whose connection accepts no more
//! bytes leaves the pass. A replay then serves it from the first record that it did not receive.
//!
//! A `live` subscription that reaches the tail is served from the publish stream instead. The pass
//! still delivers records that were appended but not persisted by then. Messages that are published
//! meanwhile wait until these records are delivered.

use std::sync::Arc;

use quire_journal::{Position, Record, RecordKind};

use super::{Bookmarks, LogProgress, Source};
use crate::context::Context;
use crate::scan::{context_of, message_of};
use crate::session::SharedData;
use crate::slice::WEIGHED_EFFORT;
use crate::subscription::{Gate, Subscription, SubscriptionId};
use crate::topic::{Stage, TopicId};
use quire_command::Message;
use quire_expression::filter::{Decision, MessageContext};

impl Bookmarks {
    /// A subscription has reached the tail, or begins at the tail or after it.
    pub(crate) fn follow_tail(&mut self, cx: &mut Context, id: SubscriptionId) {
        let appended = cx.log.appended();
        let Some(progress) = self.subscriptions.get_mut(id) else { return };
        let after = progress.after;
        if progress.delivery.has_deletions {
            self.wanting_deletions.insert(id);
        }
        match progress.delivery.is_live {
            false => {
                progress.stage = Source::Tailing;
                cx.join(id, Stage::Persisted);
                self.want_resume_position(id);
            }
            true if after >= appended => {
                progress.stage = Source::Live;
                cx.join(id, Stage::Published);
            }
            true => {
                progress.stage = Source::SwitchingToLive { switch_at: appended };
                cx.subscription(id).delivery.gate = Gate::closed(Vec::new());
                cx.join(id, Stage::Persisted);
                cx.join(id, Stage::Published);
                self.switching.insert(id);
            }
        }
        self.reach(cx, id, after);
        if self.running(cx, id).is_some_and(|progress| progress.awaited_positions().next().is_some()) {
            self.awaiting.insert(id);
        }
    }

    /// The nearest position above `served` at which a subscription ends or receives its
    /// `completed`.
    pub(super) fn next_awaited_above(&self, cx: &Context, served: Position) -> Option<Position> {
        let progress = |id: &SubscriptionId| self.running(cx, *id);
        self.awaiting
            .iter()
            .filter_map(progress)
            .flat_map(LogProgress::awaited_positions)
            .filter(|goal| *goal > served)
            .min()
    }

    /// Handles the goals that subscriptions have reached because the tail moved.
    pub(crate) fn advance_followers(&mut self, cx: &mut Context) {
        let served = cx.log.served;
        for id in self.awaiting.iter().copied().collect::<Vec<_>>() {
            let stage = self.running(cx, id).map(|progress| &progress.stage);
            match stage {
                Some(Source::Tailing | Source::SwitchingToLive { .. }) => self.reach(cx, id, served),
                // The subscription reaches its goals in a replay. It returns here if it has not
                // passed them by then.
                _ => drop(self.awaiting.remove(&id)),
            }
        }
        for id in self.switching.iter().copied().collect::<Vec<_>>() {
            self.switch_to_live(cx, id);
        }
    }

    /// Serves the followers. Returns the weight of this work, in the units of [`super::slice`].
    pub(super) fn serve_persisted(&mut self, cx: &mut Context, topic: TopicId, record: &Record<'_>) -> usize {
        if record.kind == RecordKind::Delete {
            self.serve_delete(cx, record);
        }
        if record.kind != RecordKind::Publish || !cx.topics.has_audience(topic, Stage::Persisted) {
            return 0;
        }
        let Some(context) = context_of(record, cx.clock.now.wall) else { return 0 };
        let mut matched = std::mem::take(&mut self.matched);
        let push = |id, decision| matched.push((id, decision));
        let turn_effort = cx.clock.turn_effort;
        let effort = cx.topics.for_each_decision(topic, Stage::Persisted, &context, turn_effort, push);
        let shared = cx.share(record.data, matched.len(), Stage::Persisted);
        let mut memory = std::mem::take(&mut self.selected);
        for &(subscription, decision) in &matched {
            if decision == Decision::Open {
                self.evaluate_in_replay(cx, subscription, record);
                continue;
            }
            let message_type = Some(context.message_type);
            let data = cx.select(subscription, message_type, record.topic, record.data, &mut memory);
            let shared = shared.as_ref().filter(|_| std::ptr::eq(data, record.data));
            self.deliver_persisted(cx, subscription, record, &context, data, shared);
        }
        self.selected = memory;
        matched.clear();
        self.matched = matched;
        effort as usize / WEIGHED_EFFORT
    }

    /// Replays deliver the deletes, also at the live tail. Deletes are rare, so that this has a low
    /// cost.
    fn serve_delete(&mut self, cx: &mut Context, record: &Record<'_>) {
        let is_wanted = |id: &SubscriptionId| {
            let Some(subscription) = cx.clients.subscriptions.get(*id) else { return false };
            let is_after = self.progress(*id).is_some_and(|progress| record.position > progress.after);
            is_after && subscription.wanted.selector.matches(record.topic)
        };
        let wanting: Vec<_> = self.wanting_deletions.iter().copied().filter(is_wanted).collect();
        for id in wanting {
            self.fall_back(cx, id, Position::new(record.position.get() - 1));
        }
    }

    /// The filter of a subscription takes more effort for the record than the pass has: a replay on
    /// another thread evaluates it.
    fn evaluate_in_replay(&mut self, cx: &mut Context, id: SubscriptionId, record: &Record<'_>) {
        let Some(progress) = self.running(cx, id) else { return };
        let is_served_otherwise =
            matches!(progress.stage, Source::SwitchingToLive { switch_at } if record.position > switch_at);
        if record.position > progress.after && !is_served_otherwise {
            self.fall_back(cx, id, Position::new(record.position.get() - 1));
        }
    }

    /// `data` is the part of the record that the subscription wants; `shared` has the same bytes.
    fn deliver_persisted(
        &mut self,
        cx: &mut Context,
        id: SubscriptionId,
        record: &Record<'_>,
        context: &MessageContext<'_>,
        data: &[u8],
        shared: Option<&Arc<SharedData>>,
    ) {
        let now = cx.clock.now.instant;
        let Some(subscription) = cx.clients.subscriptions.get_mut(id) else { return };
        let Subscription { session: session_id, number, .. } = *subscription;
        let conflation = &subscription.delivery.conflation;
        let Some(progress) = self.subscriptions.get_mut(id) else { return };
        let is_wanted = record.position > progress.after
            && !subscription.wanted.leaves_out(|| *context)
            && !matches!(progress.stage, Source::SwitchingToLive { switch_at } if record.position > switch_at);
        if !is_wanted {
            return;
        }
        let can_go = progress.pace.as_mut().is_none_or(|pace| {
            // The messages at the tail have just arrived. No message could have been sent before.
            pace.rest();
            pace.opens_at(now, record.timestamp) <= now
        });
        // Conflated messages are held for a connection that accepts no bytes, as long as there is
        // room.
        let has_room = conflation.as_ref().is_some_and(|conflation| conflation.has_room());
        if !can_go || !(has_room || cx.clients.sessions.all[session_id].has_room()) {
            return self.fall_back(cx, id, Position::new(record.position.get() - 1));
        }
        if let Some(pace) = &mut progress.pace {
            pace.went(now, data.len(), record.timestamp);
        }
        if conflation.is_some() {
            return cx.conflate_record(id, record, data);
        }
        match shared {
            None => cx.give_buffer(session_id),
            Some(_) => cx.clock.slices.charge(data.len()),
        }
        let message = Message { data, ..message_of(record, number) };
        let size = cx.clients.sessions.all[session_id].outbox.put_replayed_message(&message, shared);
        cx.clients.subscriptions.note_sent(id, 1, size);
        cx.clients.counters.delivered += 1;
        cx.tell_delivered(session_id, &message);
        cx.touch(session_id);
    }

    /// A `live` subscription cannot take the message that was just appended. It continues from the
    /// log.
    pub(crate) fn fall_back_from_publish(&mut self, cx: &mut Context, id: SubscriptionId) {
        let Some(progress) = self.running(cx, id) else { return };
        // A subscription that is not synchronized yet is served up to the tail.
        let after = match progress.stage {
            Source::Live => Position::new(cx.log.appended().get() - 1),
            _ => progress.after.max(cx.log.served),
        };
        self.fall_back(cx, id, after);
    }

    /// A subscription cannot follow. It continues from the log, at the pace of its connection.
    pub(crate) fn fall_back(&mut self, cx: &mut Context, id: SubscriptionId, after: Position) {
        self.detach_bookmark(cx, id);
        let session = cx.subscription(id).session;
        if let Some(progress) = self.subscriptions.get_mut(id) {
            progress.after = after;
        }
        // The tail moves past this record before the replay reads, so the replay begins after it.
        self.begin_replay(cx, session, vec![id]);
    }

    pub(super) fn fall_back_all(&mut self, cx: &mut Context, limit: Position) {
        let served = cx.log.served;
        let is_following = |id: SubscriptionId| {
            let progress = self.progress(id)?;
            let follows = matches!(progress.stage, Source::Tailing | Source::SwitchingToLive { .. });
            (follows && progress.after < limit).then_some(id)
        };
        let followers: Vec<_> = cx.clients.subscriptions.all.keys().filter_map(is_following).collect();
        for id in followers {
            let after = self.progress(id).map_or(served, |progress| progress.after.max(served));
            self.fall_back(cx, id, after);
        }
    }

    /// A `live` subscription changes to the publish stream after the pass has served all records
    /// that were appended before it joined.
    fn switch_to_live(&mut self, cx: &mut Context, id: SubscriptionId) {
        let served = cx.log.served;
        let subscription = &mut cx.clients.subscriptions.all[id];
        let session_id = subscription.session;
        let selector = subscription.wanted.selector.clone();
        let Some(progress) = self.subscriptions.get_mut(id) else { return };
        let Source::SwitchingToLive { switch_at } = progress.stage else { return };
        if served < switch_at {
            return;
        }
        let buffered = subscription.delivery.gate.open().unwrap_or_default();
        progress.stage = Source::Live;
        self.switching.remove(&id);
        cx.topics.remove(&selector, Stage::Persisted, id);
        if !buffered.is_empty() {
            cx.session(session_id).outbox.put_frames(&buffered);
            cx.touch(session_id);
        }
    }
}
