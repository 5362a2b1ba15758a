//! The leases and verdicts of a client for messages of queues (`quire_client`).

use std::sync::Arc;
use std::time::Duration;

use quire_client::{Begun, CommandId, Failure, Lease, LossCause, LossCount, Message};
use quire_journal::Bookmark;
use quire_types::Verdict;

use super::{Client, SharedProgress};

impl Client {
    /// Called before the program gets a message. False: the program must not see it; see
    /// [`quire_client::ClientCore::begin`].
    pub fn begin(&self, message: &Message) -> bool {
        let Some(lease) = message.lease() else { return true };
        let now = self.shared.now();
        let begun = lease.begin(now);
        if begun == Begun::Aged {
            let mut inner = self.shared.inner.lock();
            if inner.core.renew(lease, now) {
                self.shared.wake(inner);
            }
        }
        begun != Begun::No
    }

    /// See [`quire_client::ClientCore::take_unseen`].
    pub fn take_unseen(&self, number: u32) -> u64 {
        self.shared.inner.lock().core.take_unseen(number)
    }

    /// Gives a verdict on a message; see [`quire_client::ClientCore::settle`].
    ///
    /// # Errors
    /// As there.
    pub fn settle(&self, lease: &Arc<Lease>, verdict: Verdict) -> Result<(), Failure> {
        self.settle_because(lease, verdict, "")
    }

    /// As [`Client::settle`], with a reason; see [`quire_client::ClientCore::settle_because`].
    ///
    /// # Errors
    /// As there.
    pub fn settle_because(&self, lease: &Arc<Lease>, verdict: Verdict, reason: &str) -> Result<(), Failure> {
        let now = self.shared.now();
        let mut inner = self.shared.inner.lock();
        if inner.core.settle_because(lease, verdict, reason, now)? {
            self.shared.send(inner, true);
        }
        Ok(())
    }

    /// Acknowledges several messages, under one lock. Returns the number of messages that the
    /// client refused, and the last reason.
    fn acknowledge_all(&self, leases: &[Arc<Lease>]) -> (usize, Option<Failure>) {
        let now = self.shared.now();
        let mut inner = self.shared.inner.lock();
        let (mut is_news, mut refused_count, mut reason) = (false, 0, None);
        for lease in leases {
            match inner.core.settle(lease, Verdict::Acknowledge, now) {
                Ok(is_new) => is_news |= is_new,
                Err(failure) => (refused_count, reason) = (refused_count + 1, Some(failure)),
            }
        }
        if is_news {
            self.shared.send(inner, true);
        }
        (refused_count, reason)
    }

    /// The program asks for the next message of a subscription: it has processed all messages that
    /// it has.
    ///
    /// # Errors
    /// The store could not be written.
    pub fn processed_all(&self, progress: &SharedProgress) -> Result<(), Failure> {
        let (leases, kept) = progress.processed_all();
        if !leases.is_empty()
            && let (count, Some(failure)) = self.acknowledge_all(&leases)
        {
            // The iteration ends without an error when the program closes the client.
            let messages = if count == 1 { "message" } else { "messages" };
            log::warn!(
                target: "quire.client",
                "{count} {messages} of the subscription {:?} cannot be acknowledged: {failure}",
                progress.sub_id
            );
        }
        kept
    }

    /// The program has processed one message without a verdict. It is acknowledged if the
    /// subscription acknowledges.
    ///
    /// # Errors
    /// As [`Client::settle`], and when the store could not be written.
    pub fn processed(
        &self,
        progress: &SharedProgress,
        message: &Message,
        ordinal: u64,
    ) -> Result<(), Failure> {
        let verdict = progress.acknowledges().then_some(Verdict::Acknowledge);
        self.settled(progress, message, ordinal, verdict, "")
    }

    /// The program has processed one message. `verdict` and `reason` are for its queue, if it has
    /// one.
    ///
    /// # Errors
    /// As [`Client::settle_because`], and when the store could not be written.
    pub fn settled(
        &self,
        progress: &SharedProgress,
        message: &Message,
        ordinal: u64,
        verdict: Option<Verdict>,
        reason: &str,
    ) -> Result<(), Failure> {
        if let (Some(lease), Some(verdict)) = (message.lease(), verdict) {
            self.settle_because(lease, verdict, reason)?;
        }
        progress.processed(ordinal)
    }

    /// Asks for longer leases; see [`quire_client::ClientCore::extend`].
    ///
    /// # Errors
    /// As there.
    pub fn extend(&self, leases: &[Arc<Lease>], period: Option<Duration>) -> Result<(), Failure> {
        let mut inner = self.shared.inner.lock();
        if inner.core.extend(leases, period, self.shared.now())? {
            self.shared.wake(inner);
        }
        Ok(())
    }

    /// See [`quire_client::ClientCore::settle_bookmarks`].
    ///
    /// # Errors
    /// As there.
    pub fn settle_bookmarks(
        &self,
        queue: &str,
        verdict: Verdict,
        bookmarks: &[Bookmark],
        reason: &str,
    ) -> Result<CommandId, Failure> {
        self.command(|core| core.settle_bookmarks(queue, verdict, bookmarks, reason))
    }

    /// See [`quire_client::ClientCore::settle_matching`].
    ///
    /// # Errors
    /// As there.
    pub fn settle_matching(
        &self,
        queue: &str,
        verdict: Verdict,
        filter: &str,
        reason: &str,
    ) -> Result<CommandId, Failure> {
        self.command(|core| core.settle_matching(queue, verdict, filter, reason))
    }

    /// The number of settled messages whose verdicts are not known to be durable.
    pub fn unconfirmed_count(&self) -> u64 {
        self.shared.inner.lock().core.unconfirmed_count()
    }

    /// Whether a lease is over, by the state of this client.
    pub fn is_lost(&self, lease: &Lease) -> bool {
        lease.is_lost(self.shared.now())
    }
}

/// The log line about lost leases.
pub(super) fn text_of(client: &str, queue: &str, cause: LossCause, count: LossCount) -> String {
    let LossCount { begun, unbegun } = count;
    let leases = if begun + unbegun == 1 { "lease" } else { "leases" };
    let because = match cause {
        LossCause::Expired => "the lease period was over, and the messages are in the queue again",
        LossCause::MessageExpired => "the lease period was over, and the messages have expired",
        LossCause::Settled => "another client settled the messages",
        LossCause::Disconnected => "the connection was lost, and the messages are in the queue again",
        LossCause::Ended => "the server ended the subscription, and the messages are in the queue again",
    };
    format!(
        "client {client:?}: lost {} {leases} of the queue {queue:?} ({begun} of messages that the program had begun): {because}",
        begun + unbegun
    )
}
