//! A worker: takes messages from a queue, holds each for a while, and gives a verdict on it.

use quire_client::{ClientCore, CommandId, Event, Message, SubscriptionSpec};
use quire_types::Verdict;
use quire_types::time::{Instant, Now};

use super::auditor::{Auditor, Value};
use super::cast::{AT_LEAST_ONCE, AT_MOST_ONCE};
use crate::random::Random;

/// Takes messages from a queue, holds each for a while, and gives a verdict on it.
pub(super) struct Worker {
    at_most_once: bool,
    /// When the present connection was made.
    pub since: Instant,
    subscription: Option<u32>,
    entering: Option<CommandId>,
    held: Vec<(Value, Message)>,
    /// The messages that were acknowledged since the last flush.
    said: Vec<Value>,
    /// The flush whose answer shows whether these acknowledgements are durable.
    flushing: Option<(CommandId, Vec<Value>)>,
}

impl Worker {
    pub fn new(at_most_once: bool, now: Instant) -> Self {
        Worker {
            at_most_once,
            since: now,
            subscription: None,
            entering: None,
            held: Vec::new(),
            said: Vec::new(),
            flushing: None,
        }
    }

    pub fn restart(&mut self) {
        self.subscription = None;
        self.entering = None;
        self.held.clear();
        self.said.clear();
        self.flushing = None;
    }

    pub fn act(&mut self, core: &mut ClientCore, now: Now, random: &mut Random, is_settling: bool) {
        if self.subscription.is_none() {
            let queue = if self.at_most_once { AT_MOST_ONCE } else { AT_LEAST_ONCE };
            let max_backlog = Some(1 + random.below(40) as u32);
            let spec = SubscriptionSpec { max_backlog, ..SubscriptionSpec::new(queue) };
            if let Ok((subscription, command)) = core.subscribe(spec) {
                self.subscription = Some(subscription);
                self.entering = Some(command);
            }
        }
        // It begins one half at once, whose leases end with their time. The client renews the
        // leases of the others.
        for lease in
            self.held.iter().filter(|(value, _)| value % 2 == 0).filter_map(|(_, message)| message.lease())
        {
            core.begin(lease, now.instant);
        }
        // A worker that leaves has begun some of its messages; the others are released.
        if !is_settling && random.percent(3) {
            if let Some(subscription) = self.subscription.take() {
                // Fails when the client is closed, which releases them as well.
                let _ = core.unsubscribe(subscription);
            }
            return;
        }
        // Now and then a worker keeps its messages until its leases are over.
        if !is_settling && random.percent(30) {
            return;
        }
        for (value, message) in std::mem::take(&mut self.held) {
            let Some(lease) = message.lease().filter(|lease| !lease.is_lost(now.instant)) else { continue };
            if !is_settling && random.percent(10) {
                let delay_ms = random.below(5_000);
                let later = Verdict::CancelWithDelay { delay_ms };
                let verdict = if random.percent(50) { later } else { Verdict::Cancel };
                // Fails when the client is closed, which gives the message back as well.
                let _ = core.settle(lease, verdict, now.instant);
            } else if core.settle(lease, Verdict::Acknowledge, now.instant).is_ok() {
                self.said.push(value);
            }
        }
        if !self.said.is_empty() && self.flushing.is_none() && random.percent(30) {
            let said = std::mem::take(&mut self.said);
            // A refused flush means that some of them are lost. The state of each is unknown.
            self.flushing = core.flush().ok().map(|command| (command, said));
        }
    }

    pub fn take(&mut self, name: &str, event: Event, now: Instant, auditor: &mut Auditor) {
        match event {
            Event::Messages { subscription, messages } if Some(subscription) == self.subscription => {
                for message in messages {
                    if let Some(value) = auditor.delivered(name, now, self.since, self.at_most_once, &message)
                        && !self.at_most_once
                    {
                        self.held.push((value, message));
                    }
                }
            }
            Event::Answered { command, result } => {
                if let Some((_, said)) = self.flushing.take_if(|(flush, _)| *flush == command) {
                    match result {
                        Ok(()) => said.into_iter().for_each(|value| auditor.acknowledged(value, now)),
                        // It reports once all acknowledgements before the connection broke
                        // (docs/clients.md).
                        Err(_) => self.said.clear(),
                    }
                } else if Some(command) == self.entering {
                    self.entering = None;
                    if result.is_err() {
                        self.subscription = None;
                    }
                }
            }
            Event::Ended { subscription, .. } if Some(subscription) == self.subscription => {
                self.subscription = None;
            }
            _ => (),
        }
    }
}
