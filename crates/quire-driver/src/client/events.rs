//! The events of the core: each goes to the caller that waits for it, to a queue, or to the log.

use quire_client::{CommandId, ConnectionState, Event, Failure};

use super::{Inner, Shared, leases};

impl Shared {
    /// Passes on the events of the core. Called with `inner` locked.
    pub(super) fn dispatch(&self, inner: &mut Inner) {
        let mut any = false;
        while let Some(event) = inner.core.poll_event() {
            any = true;
            match event {
                Event::StateChanged => self.change_state(inner),
                event => inner.pass_on(event),
            }
        }
        if any {
            self.announce();
        }
    }

    fn change_state(&self, inner: &mut Inner) {
        inner.note_state();
        if inner.core.storage_failure().is_some() {
            inner.announce_unsettled();
        }
        let mut known = self.instances.lock();
        let count = known.len();
        known.extend_from_slice(&inner.core.instances()[count..]);
    }

    /// Wakes the callers that wait, and calls `on_ready`.
    pub(super) fn announce(&self) {
        self.changed.notify_all();
        let on_ready = self.on_ready.lock().clone();
        if let Some(on_ready) = on_ready {
            on_ready();
        }
    }
}

impl Inner {
    fn pass_on(&mut self, event: Event) {
        match event {
            Event::Messages { subscription, messages } => self.deliver(subscription, messages),
            Event::Answered { command, result } => self.answer(command, result),
            Event::JsonReply { command, json } => {
                if !self.abandoned.contains(&command) {
                    self.json_replies.entry(command).or_default().push(json);
                }
            }
            Event::Completed { subscription, total } => {
                if let Some(feed) = self.feeds.get_mut(&subscription) {
                    feed.received_at = self.received_at;
                    feed.queue.complete(subscription, total);
                }
            }
            Event::Outdated { subscription } => {
                if let Some(feed) = self.feeds.get(&subscription) {
                    feed.queue.outdate(subscription);
                }
            }
            Event::Dropped { subscription } => {
                if let Some(feed) = self.feeds.get(&subscription) {
                    feed.queue.drop_over();
                }
            }
            Event::Ended { subscription, failure } => self.end(subscription, failure),
            Event::PublishFailed { sequence, failure } => self.note_failed_publish(sequence, failure),
            Event::Settled { receipt, outcome } => self.settle(receipt, outcome),
            Event::LoggedOn { publish_count, subscription_count } => {
                self.log_logon(publish_count, subscription_count);
            }
            Event::LeasesLost { queue, cause, count } => {
                log::warn!(target: "quire.client", "{}", leases::text_of(self.core.name(), &queue, cause, count));
            }
            Event::SubscriptionNote { topic, text } => log::warn!(
                target: "quire.client",
                quire_client = self.core.name(),
                quire_topic = topic.as_str();
                "client {:?}: {text}: check the name. The subscription waits for messages",
                self.core.name()
            ),
            Event::BookmarkMissing { topic, begins_now } => self.warn_of_bookmark(&topic, begins_now),
            Event::PlaceMissing { topic, begins_again } => self.warn_of_place(&topic, begins_again),
            Event::Places { subscription, after, generation, places } => {
                if let Some(feed) = self.feeds.get(&subscription) {
                    feed.progress.told_places(generation, after, &places);
                }
            }
            Event::ConnectionEnded { code, reason } => self.ended_because = Some((code.name(), reason)),
            Event::Overtaken { own, persisted, highest } => log::warn!(
                target: "quire.client",
                quire_client = self.core.name();
                "the server has sequence {highest} of the client name {:?}, which this client did not publish (its last sequence is \
                 {own}): another program has published under the name, or the publish store of the name was lost. Publishes of this \
                 client above {persisted} may have been dropped as duplicates. Give every running program its own name",
                self.core.name()
            ),
            // A caller that waits for either looks at the core. `dispatch` wakes it.
            Event::StateChanged | Event::Persisted => (),
        }
    }

    fn answer(&mut self, command: CommandId, result: Result<(), Failure>) {
        if let Some(number) = self.beginnings.remove(&command)
            && result.is_ok()
            && let Some(feed) = self.feeds.get(&number)
        {
            let start = self.core.subscription_bookmark(number);
            feed.progress.begin(self.core.generation(number), start);
        }
        if !self.abandoned.remove(&command) {
            self.answers.insert(command, result);
        }
    }

    fn end(&mut self, subscription: u32, failure: Option<Failure>) {
        let is_closed = matches!(self.core.state(), ConnectionState::Closed(_));
        match self.feeds.remove(&subscription) {
            Some(feed) if is_closed => feed.queue.end(subscription, failure),
            Some(feed) => feed.end(subscription, failure),
            None => (),
        }
    }

    /// Logs a logon that is not the first one, or that was preceded by a warning.
    fn log_logon(&mut self, publish_count: u64, subscription_count: usize) {
        let (client, address) = (self.core.name(), self.address.as_str());
        if let Some(lost_at) = self.lost_at.take() {
            log::info!(
                target: "quire.client",
                quire_client = client,
                quire_address = address,
                quire_seconds = lost_at.elapsed().as_secs_f64();
                "client {:?}: connected to {} again after {:.1} s; sent again: {publish_count} publishes, \
                 {subscription_count} subscriptions",
                client,
                address,
                lost_at.elapsed().as_secs_f64()
            );
        } else if self.warned_at.is_some() {
            log::info!(
                target: "quire.client",
                quire_client = client,
                quire_address = address;
                "client {client:?}: connected to {address}"
            );
        }
        self.warned_at = None;
    }

    fn warn_of_place(&self, topic: &str, begins_again: bool) {
        let begins = match begins_again {
            true => "begins with the oldest message of the log again. Messages that it has are dropped",
            false => {
                "continues after the last message of each publisher. Messages of publishers from which it has \
                 none may be left out, and others delivered again"
            }
        };
        log::warn!(
            target: "quire.client",
            quire_client = self.core.name(),
            quire_topic = topic;
            "client {:?}: the subscription to {topic:?} was on another instance, and its place in the log of this one is not \
             known, so it {begins}",
            self.core.name()
        );
    }

    fn warn_of_bookmark(&self, topic: &str, begins_now: bool) {
        let begins = match begins_now {
            true => "begins now: messages that were published after the bookmark are left out",
            false => {
                "begins with the oldest message of the log: messages may be delivered again, and those that \
                 were removed from the log are left out"
            }
        };
        log::warn!(
            target: "quire.client",
            quire_client = self.core.name(),
            quire_topic = topic;
            "client {:?}: the bookmark of the subscription to {topic:?} is not in the log, so it {begins}",
            self.core.name()
        );
    }
}
