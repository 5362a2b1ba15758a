//! Pause and resume of bookmark subscriptions.

use crate::context::Context;
use quire_journal::Position;

use super::Bookmarks;
use crate::Timer;
use crate::replay::Rate;
use crate::reply::{Refused, unknown_subscription};
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use quire_command::{Acks, Code, SubscriptionNumbers};

impl Bookmarks {
    /// Nothing more is put in line for these subscriptions; what is in line already still goes out.
    pub(crate) fn pause(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        command: u32,
        acks: Acks,
        numbers: SubscriptionNumbers<'_>,
    ) {
        cx.acknowledge_received(id, command, 0, acks);
        let (subscriptions, refused) = cx.pausable(id, numbers);
        for subscription in subscriptions {
            self.detach_bookmark(cx, subscription);
            cx.timers.clear(Timer::Conflated(subscription));
            if let Some(progress) = cx.subscription(subscription).progress_mut() {
                progress.is_paused = true;
            }
        }
        cx.answer(id, command, acks, refused);
    }

    /// The subscriptions continue where they were paused. One replay serves those at one place with one rate. It keeps the order of the log
    /// across them.
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
        let (subscriptions, refused) = cx.pausable(id, numbers);
        for subscription in subscriptions {
            if let Some(progress) = cx.subscription(subscription).progress_mut()
                && progress.is_paused
            {
                progress.is_paused = false;
                if !progress.awaits_records {
                    resumed.push(subscription);
                }
                cx.deliver_due(subscription);
            }
        }
        cx.answer(id, command, acks, refused);
        // Those at one place with one rate, in the order in which the command names them.
        let mut groups: Vec<(Position, Option<Rate>, Vec<SubscriptionId>)> = Vec::new();
        resumed.sort_by_key(|id| cx.subscription(*id).progress().map(|progress| progress.after));
        for subscription in resumed {
            let Some(progress) = cx.subscription(subscription).progress() else { continue };
            let (after, rate) = (progress.after, progress.pace.as_ref().map(|pace| pace.rate));
            let mut groups_here = groups.iter_mut().rev().take_while(|group| group.0 == after);
            match groups_here.find(|group| group.1 == rate) {
                Some((_, _, group)) => group.push(subscription),
                None => groups.push((after, rate, vec![subscription])),
            }
        }
        for (after, _, group) in groups {
            self.start_replay(cx, id, group, after);
        }
    }
}

impl Context {
    /// The subscriptions that may be paused, and the first reason why one may not.
    pub(super) fn pausable(
        &mut self,
        id: SessionId,
        numbers: SubscriptionNumbers<'_>,
    ) -> (Vec<SubscriptionId>, Option<Refused>) {
        let mut pausable = Vec::new();
        let mut refused = None;
        for number in numbers.iter() {
            let Some(subscription) = self.session(id).subscriptions.get(&number).copied() else {
                refused = refused.or(Some(unknown_subscription(number)));
                continue;
            };
            match self.subscription(subscription).progress() {
                Some(progress) if !progress.live => pausable.push(subscription),
                _ => {
                    let reason =
                        format!("subscription {number} cannot be paused: it is live, or has no bookmark");
                    refused = refused.or(Some(Refused::new(Code::BadOption, reason)));
                }
            }
        }
        (pausable, refused)
    }

    pub(super) fn answer(&mut self, id: SessionId, command: u32, acks: Acks, refused: Option<Refused>) {
        match refused {
            None => self.acknowledge_processed(id, command, 0, acks),
            Some(refused) => self.refuse_command(id, command, 0, &refused),
        }
    }
}
