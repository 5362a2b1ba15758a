//! Pause and resume of bookmark subscriptions (seed 003).

use quire_journal::Position;

use super::subscribe::{Refused, unknown_subscription};
use super::{Alarm, Broker};
use crate::replay::Rate;
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use crate::wire::{Acks, Code, SubscriptionNumbers};

impl Broker {
    /// Nothing more is put in line for these subscriptions; what is in line already still goes out.
    pub(super) fn pause(
        &mut self,
        id: SessionId,
        command: u32,
        acks: Acks,
        numbers: SubscriptionNumbers<'_>,
    ) {
        self.acknowledge_received(id, command, 0, acks);
        let refused = self.for_each_pausable(id, numbers, |broker, subscription| {
            broker.halt(subscription);
            broker.alarms.clear(Alarm::Held(subscription));
            if let Some(progress) = broker.subscription(subscription).progress_mut() {
                progress.is_paused = true;
            }
        });
        self.answer(id, command, acks, refused);
    }

    /// The subscriptions go on where they were paused. Those at one place with one rate are served by one replay, which keeps the order of
    /// the log across them (reference: queues-and-transaction-log 2.5 W2).
    pub(super) fn resume(
        &mut self,
        id: SessionId,
        command: u32,
        acks: Acks,
        numbers: SubscriptionNumbers<'_>,
    ) {
        self.acknowledge_received(id, command, 0, acks);
        let mut resumed: Vec<SubscriptionId> = Vec::new();
        let refused = self.for_each_pausable(id, numbers, |broker, subscription| {
            if let Some(progress) = broker.subscription(subscription).progress_mut()
                && progress.is_paused
            {
                progress.is_paused = false;
                resumed.push(subscription);
                broker.deliver_due(subscription);
            }
        });
        self.answer(id, command, acks, refused);
        // Those at one place with one rate, in the order in which the command names them.
        let mut groups: Vec<(Position, Option<Rate>, Vec<SubscriptionId>)> = Vec::new();
        resumed.sort_by_key(|id| self.subscription(*id).progress().map(|progress| progress.after));
        for subscription in resumed {
            let Some(progress) = self.subscription(subscription).progress() else { continue };
            let (after, rate) = (progress.after, progress.pace.as_ref().map(|pace| pace.rate));
            let mut groups_here = groups.iter_mut().rev().take_while(|group| group.0 == after);
            match groups_here.find(|group| group.1 == rate) {
                Some((_, _, group)) => group.push(subscription),
                None => groups.push((after, rate, vec![subscription])),
            }
        }
        for (after, _, group) in groups {
            self.start_replay(id, group, after);
        }
    }

    /// Calls `act` for every subscription that may be paused; gives the first reason why one may not.
    fn for_each_pausable(
        &mut self,
        id: SessionId,
        numbers: SubscriptionNumbers<'_>,
        mut act: impl FnMut(&mut Self, SubscriptionId),
    ) -> Option<Refused> {
        let mut refused = None;
        for number in numbers.iter() {
            let Some(subscription) = self.session(id).subscriptions.get(&number).copied() else {
                refused = refused.or(Some(unknown_subscription(number)));
                continue;
            };
            match self.subscription(subscription).progress() {
                Some(progress) if !progress.live => act(self, subscription),
                _ => {
                    let reason =
                        format!("subscription {number} cannot be paused: it is live, or has no bookmark");
                    refused = refused.or(Some(Refused::new(Code::BadOption, reason)));
                }
            }
        }
        refused
    }

    fn answer(&mut self, id: SessionId, command: u32, acks: Acks, refused: Option<Refused>) {
        match refused {
            None => self.acknowledge_processed(id, command, 0, acks),
            Some(refused) => self.refuse_command(id, command, 0, &refused),
        }
    }
}
