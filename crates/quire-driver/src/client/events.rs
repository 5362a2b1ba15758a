//! The events of the core: each goes to the caller that waits for it, to a queue, or to the log.

use quire_client::{ConnectionState, Event};

use super::{Inner, Shared, leases};

impl Shared {
    /// Passes on the events of the core. Called with `inner` locked.
    pub(super) fn dispatch(&self, inner: &mut Inner) {
        let mut any = false;
        while let Some(event) = inner.core.poll_event() {
            any = true;
            match event {
                Event::Messages { subscription, messages } => inner.deliver(subscription, messages),
                Event::Answered { command, result } => {
                    if let Some(number) = inner.beginnings.remove(&command)
                        && result.is_ok()
                        && let Some(feed) = inner.feeds.get(&number)
                    {
                        feed.progress.begin(inner.core.generation(number));
                    }
                    if !inner.abandoned.remove(&command) {
                        inner.answers.insert(command, result);
                    }
                }
                Event::JsonReply { command, json } => {
                    if !inner.abandoned.contains(&command) {
                        inner.json_replies.entry(command).or_default().push(json);
                    }
                }
                Event::Completed { subscription, total } => {
                    if let Some(feed) = inner.feeds.get_mut(&subscription) {
                        feed.received_at = inner.received_at;
                        feed.queue.complete(subscription, total);
                    }
                }
                Event::Outdated { subscription } => {
                    if let Some(feed) = inner.feeds.get(&subscription) {
                        feed.queue.outdate(subscription);
                    }
                }
                Event::Ended { subscription, failure } => {
                    let is_closed = matches!(inner.core.state(), ConnectionState::Closed(_));
                    match inner.feeds.remove(&subscription) {
                        Some(feed) if is_closed => feed.queue.end(subscription, failure),
                        Some(feed) => feed.end(subscription, failure),
                        None => (),
                    }
                }
                Event::PublishFailed { sequence, failure } => inner.note_failed_publish(sequence, failure),
                Event::Settled { receipt, outcome } => inner.settle(receipt, outcome),
                Event::LoggedOn { publish_count, subscription_count } => {
                    let (client, address) = (inner.core.name(), inner.address.as_str());
                    if let Some(lost_at) = inner.lost_at.take() {
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
                    } else if inner.warned_at.is_some() {
                        log::info!(
                            target: "quire.client",
                            quire_client = client,
                            quire_address = address;
                            "client {client:?}: connected to {address}"
                        );
                    }
                    inner.warned_at = None;
                }
                Event::Dropped { subscription } => {
                    if let Some(feed) = inner.feeds.get(&subscription) {
                        feed.queue.drop_over();
                    }
                }
                Event::LeasesLost { queue, cause, count } => {
                    log::warn!(target: "quire.client", "{}", leases::text_of(inner.core.name(), &queue, cause, count));
                }
                Event::SubscriptionNote { topic, text } => {
                    log::warn!(
                        target: "quire.client",
                        quire_client = inner.core.name(),
                        quire_topic = topic.as_str();
                        "client {:?}: {text}: check the name. The subscription waits for messages",
                        inner.core.name()
                    );
                }
                Event::BookmarkMissing { topic, begins_now } => {
                    let begins = match begins_now {
                        true => "begins now: messages that were published after the bookmark are left out",
                        false => {
                            "begins with the oldest message of the log: messages may be delivered again, and those that \
                             were removed from the log are left out"
                        }
                    };
                    log::warn!(
                        target: "quire.client",
                        quire_client = inner.core.name(),
                        quire_topic = topic.as_str();
                        "client {:?}: the bookmark of the subscription to {topic:?} is not in the log, so it {begins}",
                        inner.core.name()
                    );
                }
                Event::ConnectionEnded { reason } => inner.ended_because = Some(reason),
                Event::Overtaken { own, persisted, highest } => log::warn!(
                    target: "quire.client",
                    quire_client = inner.core.name();
                    "the server has sequence {highest} of the client name {:?}, which this client did not publish (its last sequence is \
                     {own}): another program has published under the name, or the publish store of the name was lost. Publishes of this \
                     client above {persisted} may have been dropped as duplicates. Give every running program its own name",
                    inner.core.name()
                ),
                Event::StateChanged => {
                    inner.note_state();
                    if inner.core.storage_failure().is_some() {
                        inner.announce_unsettled();
                    }
                    let mut known = self.instances.lock();
                    let count = known.len();
                    known.extend_from_slice(&inner.core.instances()[count..]);
                }
                Event::Persisted => (),
            }
        }
        if any {
            self.announce();
        }
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
