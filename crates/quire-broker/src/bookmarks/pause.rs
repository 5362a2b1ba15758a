//! Pause and resume of bookmark subscriptions.

use super::{Bookmarks, Source};
use crate::Timer;
use crate::context::Context;
use crate::replay::{Rate, Replay};
use crate::reply::{Refused, unknown_subscription};
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use quire_command::{Acks, Code, SubscriptionNumbers};

impl Bookmarks {
    /// The limit of the rate of a subscription that no replay serves.
    fn rate(&self, cx: &Context, id: SubscriptionId) -> Option<Rate> {
        let progress = self.running(cx, id)?;
        progress.pace.as_ref().map(|pace| pace.rate)
    }

    /// The subscriptions that may be paused, and the first reason why a subscription may not be
    /// paused.
    fn pausable(
        &self,
        cx: &mut Context,
        id: SessionId,
        numbers: SubscriptionNumbers<'_>,
    ) -> (Vec<SubscriptionId>, Option<Refused>) {
        let mut pausable = Vec::new();
        let mut refused = None;
        for number in numbers.iter() {
            let Some(subscription) = cx.session(id).subscriptions.get(&number).copied() else {
                refused = refused.or(Some(unknown_subscription(number)));
                continue;
            };
            match self.progress(subscription) {
                Some(progress) if !progress.delivery.is_live => pausable.push(subscription),
                _ => {
                    let reason =
                        format!("subscription {number} cannot be paused: it is live, or has no bookmark");
                    refused = refused.or(Some(Refused::new(Code::BadOption, reason)));
                }
            }
        }
        (pausable, refused)
    }

    /// No further message is queued for these subscriptions. Messages that are queued are still
    /// sent.
    pub(crate) fn pause(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        command: u32,
        acks: Acks,
        numbers: SubscriptionNumbers<'_>,
    ) {
        cx.acknowledge_received(id, command, 0, acks);
        let (subscriptions, refused) = self.pausable(cx, id, numbers);
        for subscription in subscriptions {
            self.detach_bookmark(cx, subscription);
            cx.clock.timers.clear(Timer::Conflated(subscription));
            cx.subscription(subscription).delivery.is_paused = true;
        }
        answer(cx, id, command, acks, refused);
    }

    /// The subscriptions continue where they were paused. One replay serves the subscriptions with
    /// the same rate, and keeps the order of the log across them. It begins at the lowest of their
    /// places: after a lost connection, a client enters each subscription after its own last
    /// message.
    pub(crate) fn resume(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        command: u32,
        acks: Acks,
        numbers: SubscriptionNumbers<'_>,
    ) {
        cx.acknowledge_received(id, command, 0, acks);
        let mut resumed: Vec<SubscriptionId> = Vec::new();
        let (subscriptions, refused) = self.pausable(cx, id, numbers);
        for subscription in subscriptions {
            if std::mem::take(&mut cx.subscription(subscription).delivery.is_paused) {
                if self.progress(subscription).is_some_and(|progress| !progress.awaits_records) {
                    resumed.push(subscription);
                }
                cx.deliver_due(subscription);
            }
        }
        answer(cx, id, command, acks, refused);
        // The subscriptions with the same rate, in the order of the command.
        let mut groups: Vec<(Option<Rate>, Vec<SubscriptionId>)> = Vec::new();
        for subscription in resumed {
            let rate = self.rate(cx, subscription);
            match groups.iter_mut().find(|group| group.0 == rate) {
                Some((_, group)) => group.push(subscription),
                None => groups.push((rate, vec![subscription])),
            }
        }
        for (_, group) in groups {
            self.start_replay(cx, id, group);
        }
    }

    /// The subscriptions of the replay that serves this one, including this one, in their order.
    /// Empty when the subscription has its own replay.
    pub(super) fn companions(&self, cx: &Context, id: SubscriptionId) -> Vec<SubscriptionId> {
        match self.running(cx, id).map(|progress| &progress.stage) {
            Some(Source::Replaying(replay)) if self.replays[*replay].subscriptions.len() > 1 => {
                self.replays[*replay].subscriptions.clone()
            }
            _ => Vec::new(),
        }
    }

    /// A subscription was replaced, and continues at its place. It stays with its `companions`,
    /// unless its rate has changed.
    pub(super) fn restart(
        &mut self,
        cx: &mut Context,
        id: SubscriptionId,
        mut companions: Vec<SubscriptionId>,
    ) {
        let session = cx.subscription(id).session;
        let rate = self.rate(cx, id);
        companions.retain(|other| {
            *other == id || matches!(self.replay_of(cx, *other), Some(replay) if replay.rate() == rate)
        });
        for other in companions.iter().filter(|other| **other != id) {
            self.detach_bookmark(cx, *other);
        }
        if companions.is_empty() {
            companions.push(id);
        }
        self.start_replay(cx, session, companions);
    }

    fn replay_of(&self, cx: &Context, id: SubscriptionId) -> Option<&Replay> {
        match self.running(cx, id)?.stage {
            Source::Replaying(replay) => self.replays.get(replay),
            _ => None,
        }
    }
}

fn answer(cx: &mut Context, id: SessionId, command: u32, acks: Acks, refused: Option<Refused>) {
    match refused {
        None => cx.acknowledge_processed(id, command, 0, acks),
        Some(refused) => cx.refuse_command(id, command, 0, &refused),
    }
}
