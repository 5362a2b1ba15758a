//! Commands of a client that act on the server or ask about it: queries, figures, queues, links,
//! journal files (`quire_client`).

use std::sync::Arc;

use quire_client::{CommandId, Failure, QuerySpec};
use quire_command::{DefineQueue, LinkAction, Subject};
use quire_journal::Action;
use quire_types::Files;

use super::{Client, Feed, Queue, SharedProgress, Subscribed};

impl Client {
    /// Asks for records, or for the messages of a queue that could be delivered. The local queue
    /// ends after the last of them.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::query`].
    pub fn query(&self, spec: &QuerySpec) -> Result<Subscribed, Failure> {
        let queue = Arc::new(Queue::new(self.shared.room.clone()));
        let instances = self.shared.instances.clone();
        let progress = SharedProgress::new(
            &spec.topic,
            quire_client::SubscriptionProgress::default(),
            None,
            None,
            instances,
        );
        let mut inner = self.shared.inner.lock();
        let (number, command) = inner.core.query(spec)?;
        let feed = Feed::new(&queue, &progress);
        inner.feeds.insert(number, feed);
        self.shared.send(inner, false);
        Ok(Subscribed { number, command, queue, progress })
    }

    /// Asks for the figures of a queue, or of all. Take them with
    /// [`take_json_replies`](Self::take_json_replies) when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::queue_stats`].
    pub fn queue_stats(&self, queue: Option<&str>) -> Result<CommandId, Failure> {
        self.command(|core| core.queue_stats(queue))
    }

    /// Asks about the server; take the answer with [`take_json_replies`](Self::take_json_replies)
    /// when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::inspect`].
    pub fn inspect(&self, subject: Subject<'_>) -> Result<CommandId, Failure> {
        self.command(|core| core.inspect(subject))
    }

    /// Has the server create or drop a queue. Take the answer with
    /// [`take_json_replies`](Self::take_json_replies) when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::define_queue`].
    pub fn define_queue(&self, action: DefineQueue<'_>) -> Result<CommandId, Failure> {
        self.command(|core| core.define_queue(action))
    }

    /// Has the server replace the definition of a view. Take the answer with
    /// [`take_json_replies`](Self::take_json_replies) when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::define_view`].
    pub fn define_view(&self, settings: &str) -> Result<CommandId, Failure> {
        self.command(|core| core.define_view(settings))
    }

    /// Downgrades, upgrades, pauses or resumes the link of the server to a destination. Take the
    /// answer with [`take_json_replies`](Self::take_json_replies) when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::replicate`].
    pub fn replicate(&self, destination: &str, action: LinkAction) -> Result<CommandId, Failure> {
        self.command(|core| core.replicate(destination, action))
    }

    /// Makes the server end a connection. Take the answer with
    /// [`take_json_replies`](Self::take_json_replies) when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::disconnect_client`].
    pub fn disconnect_client(&self, connection: u64, block_ms: u32) -> Result<CommandId, Failure> {
        self.command(|core| core.disconnect_client(connection, block_ms))
    }

    /// Makes the server read its configuration again. Take the answer with
    /// [`take_json_replies`](Self::take_json_replies) when the command is answered.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::reload`].
    pub fn reload(&self) -> Result<CommandId, Failure> {
        self.command(quire_client::ClientCore::reload)
    }

    /// Asks the server to archive, compress or remove a full journal file; see
    /// [`quire_client::ClientCore::maintain`]. Take the result with
    /// [`take_json_replies`](Self::take_json_replies) when the command is answered.
    ///
    /// # Errors
    /// As there.
    pub fn maintain(
        &self,
        action: Action,
        files: Files,
        dry_run: bool,
        archive_directory: Option<&str>,
    ) -> Result<CommandId, Failure> {
        self.command(|core| core.maintain(action, files, dry_run, archive_directory))
    }
}
