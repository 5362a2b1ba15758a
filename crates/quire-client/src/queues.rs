//! The commands of a client for queues: verdicts on messages, longer leases, figures, definitions.

use std::sync::Arc;
use std::time::Duration;

use quire_types::Bookmark;

use super::leases::{BegunList, Waiting, pieces};
use super::{Begun, ClientCore, CommandId, ConnectionState, Failure, Lease};
use quire_command::{
    Acks, Bookmarks, Code, Command, DefineQueue, LinkAction, REASON_SIZE_MAX, SETTLE_BOOKMARKS_MAX,
    Selection, Settle, Subject, put_bookmark,
};
use quire_types::Verdict;
use quire_types::time::Instant;
use quire_wire::Encode;

impl ClientCore {
    /// Called before the program gets a message. False: the program must not see it, because the
    /// message is delivered again, perhaps to another consumer.
    pub fn begin(&mut self, lease: &Arc<Lease>, now: Instant) -> bool {
        let begun = lease.begin(now);
        if begun == Begun::Aged {
            self.renew(lease, now);
        }
        begun != Begun::No
    }

    /// Renews the lease of a message that the program has begun, and others that have run for a
    /// while. Returns true when there is something to send.
    pub fn renew(&mut self, lease: &Arc<Lease>, now: Instant) -> bool {
        let ClientCore { leases, commands, .. } = self;
        let frames = leases.renew(lease, now, || commands.unanswered().0);
        !frames.is_empty() && self.queue_frames(&frames)
    }

    /// Deliveries of a subscription that were lost before the program saw them, since the last
    /// call.
    pub fn take_unseen(&mut self, number: u32) -> u64 {
        self.leases.take_unseen(number)
    }

    /// The program takes no more messages of a subscription, and keeps those that it has begun. The
    /// others are released, and their deliveries do not count. Returns the command that
    /// [`super::Event::Answered`] will name.
    ///
    /// # Errors
    /// [`quire_command::Code::UnknownSubscription`], and when the client is closed.
    pub fn retire(&mut self, number: u32) -> Result<CommandId, Failure> {
        let spec = self.subscriptions.retire(number)?;
        let command = self.replace(number, spec)?;
        let ClientCore { leases, commands, events, .. } = self;
        let frames = leases.give_back_unbegun(number, || commands.unanswered().0, events);
        self.queue_frames(&frames);
        Ok(command)
    }

    /// Gives a verdict on a message. The first verdict counts. Acknowledgements wait for a batch.
    /// Acknowledgements and expiries wait for a connection. When the lease is over, they are still
    /// sent, because a `sublease` queue that still has the message takes them. A cancel is not
    /// sent. Returns true when the driver has work now, or a new
    /// [`next_timeout`](Self::next_timeout).
    ///
    /// # Errors
    /// When the client is closed, and the verdict would be the first on a message with a lease.
    pub fn settle(&mut self, lease: &Arc<Lease>, verdict: Verdict, now: Instant) -> Result<bool, Failure> {
        self.settle_because(lease, verdict, "", now)
    }

    /// As [`settle`](Self::settle), with the reason of a cancel or an expiry for the dead letter of
    /// the message; empty: no reason. It is not sent to a server that takes none.
    ///
    /// # Errors
    /// As there, and when the reason is longer than [`REASON_SIZE_MAX`]. There is no verdict then.
    pub fn settle_because(
        &mut self,
        lease: &Arc<Lease>,
        verdict: Verdict,
        reason: &str,
        now: Instant,
    ) -> Result<bool, Failure> {
        check_reason(reason)?;
        if lease.is_unsettled() {
            self.check_settles()?;
        }
        if verdict == Verdict::Acknowledge {
            let granted = self.subscriptions.backlog(lease.subscription());
            return Ok(self.leases.acknowledge(lease, granted, now, &mut self.events));
        }
        if !self.leases.settle(lease, verdict, &mut self.events) {
            return Ok(false);
        }
        if verdict.gives_back() {
            if !self.is_up() {
                return Ok(false);
            }
            let CommandId(command) = self.commands.unanswered();
            let reason = self.commands.reason_to_send(reason);
            let frames = self.leases.cancel(lease, verdict, reason, command);
            self.commands.settled(1);
            return Ok(self.queue_frames(&frames));
        }
        self.leases.keep(lease, verdict, reason);
        if self.is_up() {
            self.send_verdicts();
        }
        Ok(self.is_up())
    }

    /// Asks for longer leases of messages that are still held. `None`: for the period of the queue.
    /// True: there is something to send.
    ///
    /// # Errors
    /// When the client is closed.
    pub fn extend(
        &mut self,
        leases: &[Arc<Lease>],
        period: Option<Duration>,
        now: Instant,
    ) -> Result<bool, Failure> {
        self.check_settles()?;
        let frames = self.leases.extend(leases, period, now);
        Ok(!frames.is_empty() && self.queue_frames(&frames))
    }

    /// Settles messages by bookmark. Unlike [`settle`](Self::settle), it is answered. Waiting
    /// acknowledgements are sent first. `reason`: as in [`settle_because`](Self::settle_because).
    ///
    /// # Errors
    /// More bookmarks than one command takes, a reason longer than [`REASON_SIZE_MAX`], and when
    /// the client is closed.
    pub fn settle_bookmarks(
        &mut self,
        queue: &str,
        verdict: Verdict,
        bookmarks: &[Bookmark],
        reason: &str,
    ) -> Result<CommandId, Failure> {
        let mut bytes = Vec::new();
        for bookmark in bookmarks {
            put_bookmark(&mut bytes, bookmark.publisher.get(), bookmark.sequence);
        }
        let Some(bookmarks) = Bookmarks::from_bytes(&bytes) else {
            let reason = format!("{} bookmarks, one command takes {SETTLE_BOOKMARKS_MAX}", bookmarks.len());
            return Err(Failure::new(quire_command::Code::LimitExceeded, reason));
        };
        self.settle_selected(queue, verdict, Selection::Bookmarks(bookmarks), reason)
    }

    /// Settles every active message that a filter matches. An empty filter matches all. The command
    /// is answered. `reason`: as in [`settle_because`](Self::settle_because).
    ///
    /// # Errors
    /// A reason longer than [`REASON_SIZE_MAX`], and when the client is closed.
    pub fn settle_matching(
        &mut self,
        queue: &str,
        verdict: Verdict,
        filter: &str,
        reason: &str,
    ) -> Result<CommandId, Failure> {
        self.settle_selected(queue, verdict, Selection::Matching(filter), reason)
    }

    /// Asks for the figures of a queue, or of all: [`Event::JsonReply`](super::Event::JsonReply).
    ///
    /// # Errors
    /// When the client is closed.
    pub fn queue_stats(&mut self, queue: Option<&str>) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        Ok(self.command(|commands| {
            commands.once(None, |command, out| Command::Stats { command, queue }.encode(out))
        }))
    }

    /// Asks about the server: [`Event::JsonReply`](super::Event::JsonReply).
    ///
    /// # Errors
    /// When the client is closed.
    pub fn inspect(&mut self, subject: Subject<'_>) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        Ok(self.command(|commands| {
            commands.once(None, |command, out| Command::Inspect { command, subject }.encode(out))
        }))
    }

    /// Has the server create or drop a queue: [`Event::JsonReply`](super::Event::JsonReply).
    ///
    /// # Errors
    /// When the client is closed.
    pub fn define_queue(&mut self, action: DefineQueue<'_>) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        Ok(self.command(|commands| {
            commands.once(None, |command, out| Command::DefineQueue { command, action }.encode(out))
        }))
    }

    /// Has the server replace the definition of a view. `settings`: all of them, as JSON:
    /// [`Event::JsonReply`](super::Event::JsonReply).
    ///
    /// # Errors
    /// When the client is closed.
    pub fn define_view(&mut self, settings: &str) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        Ok(self.command(|commands| {
            commands.once(None, |command, out| Command::DefineView { command, settings }.encode(out))
        }))
    }

    /// Downgrades, upgrades, pauses or resumes the link of the server to a destination:
    /// [`Event::JsonReply`](super::Event::JsonReply).
    ///
    /// # Errors
    /// When the client is closed.
    pub fn replicate(&mut self, destination: &str, action: LinkAction) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        Ok(self.command(|commands| {
            commands.once(None, |command, out| {
                Command::Replicate { command, destination, action }.encode(out);
            })
        }))
    }

    /// Makes the server end a connection: [`Event::JsonReply`](super::Event::JsonReply). The client
    /// name of the connection cannot log on for `block_ms` milliseconds.
    ///
    /// # Errors
    /// When the client is closed.
    pub fn disconnect_client(&mut self, connection: u64, block_ms: u32) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        Ok(self.command(|commands| {
            commands.once(None, |command, out| {
                Command::Disconnect { command, connection, block_ms }.encode(out);
            })
        }))
    }

    /// Makes the server read its configuration again:
    /// [`Event::JsonReply`](super::Event::JsonReply).
    ///
    /// # Errors
    /// When the client is closed.
    pub fn reload(&mut self) -> Result<CommandId, Failure> {
        self.check_not_closed()?;
        Ok(self
            .command(|commands| commands.once(None, |command, out| Command::Reload { command }.encode(out))))
    }

    /// The number of settled messages whose verdicts are not known to be durable.
    pub fn unconfirmed_count(&self) -> u64 {
        self.leases.waiting_count() + self.commands.unconfirmed_count()
    }

    /// The messages of a queue that were acknowledged or expired, and whose verdicts are not known
    /// to be durable. These verdicts are sent again when the connection is lost. A message is named
    /// again when it was delivered again after its verdict.
    pub fn unconfirmed_messages(&self, queue: &str) -> impl Iterator<Item = Bookmark> {
        self.leases.unconfirmed(queue)
    }

    /// Whether a verdict can be sent, now or later.
    fn check_settles(&self) -> Result<(), Failure> {
        let explain = |failure: Failure| Failure {
            reason: format!("{}; messages that were not settled return to their queues", failure.reason),
            ..failure
        };
        self.check_not_closed().map_err(explain)
    }

    /// Sends the waiting verdicts, before the next command. Without a connection they continue to
    /// wait.
    pub(super) fn send_verdicts(&mut self) {
        if self.is_up() {
            let frames = self.take_verdicts();
            self.queue_frames(&frames);
        }
    }

    /// The frames of the verdicts that wait, to be sent now.
    pub(super) fn take_verdicts(&mut self) -> Vec<u8> {
        let mut frames = Vec::new();
        for waiting in self.leases.take_waiting() {
            let reason = waiting.reason.as_deref().unwrap_or_default();
            let count = put_settles(&mut frames, &waiting, self.commands.reason_to_send(reason));
            let settled_count = self.commands.settled(count);
            self.leases.said(waiting, settled_count);
        }
        frames
    }

    /// Renews leases, and releases messages that the program cannot begin in time.
    pub(super) fn attend_leases(&mut self, now: Instant) {
        let ClientCore { leases, commands, events, .. } = self;
        let frames = leases.attend(now, || commands.unanswered().0, events);
        self.queue_frames(&frames);
    }

    /// Releases the messages that arrived for retired subscriptions.
    pub(super) fn give_back_retired(&mut self) {
        let ClientCore { leases, commands, .. } = self;
        let frames = leases.give_back_retired(|| commands.unanswered().0);
        self.queue_frames(&frames);
    }

    /// Whether to ask now if the settled messages are durable.
    pub(super) fn wants_confirmation(&self) -> bool {
        self.is_up()
            && self.commands.wants_confirmation()
            && !matches!(self.state, ConnectionState::Closed(_))
    }

    /// Releases the messages of queues that the program has not begun. Returns the messages that it
    /// has begun, for the command that ends the subscription. `None` when the subscription gets no
    /// messages of queues.
    pub(super) fn release(&mut self, number: u32) -> Option<BegunList> {
        // A replacement may have left the queue and kept the leases.
        let is_of_queue = self.subscriptions.is_of_queue(number) || self.leases.has_any(number);
        self.leases.release(number).filter(|_| is_of_queue)
    }

    /// Ends every subscription that has messages of queues, without waiting for the answers.
    pub(super) fn release_all(&mut self) {
        let mut frames = Vec::new();
        for number in self.subscriptions.accepted_numbers().collect::<Vec<_>>() {
            if let Some(begun) = self.release(number) {
                self.commands.put_last_unsubscribe(number, Some(&begun), &mut frames);
            }
        }
        self.queue_frames(&frames);
    }

    /// Sends the frames after all earlier output. False: there is no connection, and they are
    /// dropped.
    pub(super) fn queue_frames(&mut self, frames: &[u8]) -> bool {
        let is_up = self.is_up();
        if is_up && !frames.is_empty() {
            self.store.put_command(frames);
            self.sent_last = None;
        }
        is_up
    }

    fn settle_selected(
        &mut self,
        queue: &str,
        verdict: Verdict,
        messages: Selection<'_>,
        reason: &str,
    ) -> Result<CommandId, Failure> {
        check_reason(reason)?;
        self.check_not_closed()?;
        self.send_verdicts();
        Ok(self.command(|commands| {
            let acks = Acks::PROCESSED;
            commands.settle(&Settle { verdict, command: 0, acks, queue, messages, reason })
        }))
    }
}

/// Whether a command can have this reason of a cancel or an expiry.
fn check_reason(reason: &str) -> Result<(), Failure> {
    if reason.len() <= REASON_SIZE_MAX {
        return Ok(());
    }
    let text = format!("the reason has {} bytes in UTF-8, the limit is {REASON_SIZE_MAX}", reason.len());
    Err(Failure::new(Code::BadOption, text))
}

/// Appends the commands that settle messages, as many as are needed. Returns the number of
/// messages.
fn put_settles(frames: &mut Vec<u8>, waiting: &Waiting, reason: &str) -> u64 {
    let Waiting { queue, verdict, bookmarks, .. } = waiting;
    frames.reserve(bookmarks.len() + queue.len() + reason.len() + 32);
    let mut count = 0;
    for bookmarks in pieces(bookmarks) {
        count += bookmarks.count() as u64;
        let messages = Selection::Bookmarks(bookmarks);
        let settle = Settle { verdict: *verdict, command: 0, acks: Acks(0), queue, messages, reason };
        Command::Settle(settle).encode(frames);
    }
    count
}
