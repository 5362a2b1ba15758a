//! The publishes of a client: it takes messages, has room again, and learns what is persisted.

use std::time::Duration;

use quire_client::{CommandId, ConnectionState, DeleteSpec, Failure, NewMessage, PublishError};

use super::{Client, Inner, closed};

/// Refused publishes that are kept for [`Client::take_failed_publishes`]; older ones are dropped
/// first.
pub(super) const FAILED_PUBLISHES_MAX: usize = 1024;

impl Client {
    /// Takes a message. With [`PublishError::Full`], wait with [`Client::wait_room`] and try again.
    ///
    /// # Errors
    /// See [`ClientCore::publish`].
    pub fn publish(&self, message: &NewMessage<'_>) -> Result<Option<u64>, PublishError> {
        let mut inner = self.shared.inner.lock();
        let result = inner.core.publish(message);
        if result.is_ok() {
            self.shared.send(inner, true);
        }
        result
    }

    /// Deletes records. Returns the sequence of the delete, and its command. When the command is
    /// answered, [`Client::take_json_replies`] returns the number of deleted records. With
    /// [`PublishError::Full`], wait with [`Client::wait_room`] and try again.
    ///
    /// # Errors
    /// See [`ClientCore::delete`].
    pub fn delete(&self, spec: &DeleteSpec<'_>) -> Result<(u64, CommandId), PublishError> {
        let mut inner = self.shared.inner.lock();
        let result = inner.core.delete(spec);
        if result.is_ok() {
            self.shared.wake(inner);
        }
        result
    }

    /// Takes several messages under one lock, as many as there is room for. Returns their number,
    /// and the sequence of the last.
    ///
    /// # Errors
    /// As [`Client::publish`], when the first message was not taken.
    pub fn publish_rows<'a>(
        &self,
        messages: impl Iterator<Item = NewMessage<'a>>,
    ) -> Result<(usize, Option<u64>), PublishError> {
        let mut inner = self.shared.inner.lock();
        let (mut count, mut last) = (0, None);
        for message in messages {
            match inner.core.publish(&message) {
                Ok(sequence) => (count, last) = (count + 1, sequence),
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.shared.wake(inner);
        Ok((count, last))
    }

    /// Waits until more than `seen` bytes were released, so that the publish store may have room
    /// again, or until no publish is taken any more. False when `timeout` passed first. Read `seen`
    /// with [`Client::released`] before the publish that found the store full. A release in between
    /// is then not missed.
    pub fn wait_room(&self, seen: u64, timeout: Duration) -> bool {
        let found = |inner: &mut Inner| {
            let core = &inner.core;
            let is_refused =
                matches!(core.state(), ConnectionState::Closed(_)) || core.storage_failure().is_some();
            (is_refused || core.released() != seen).then_some(())
        };
        self.wait_for(timeout, found).is_some()
    }

    /// Asks the server to answer when everything published so far is persisted.
    ///
    /// # Errors
    /// See [`ClientCore::flush`].
    pub fn flush(&self) -> Result<CommandId, Failure> {
        let mut inner = self.shared.inner.lock();
        let command = inner.core.flush()?;
        if !inner.drive.is_reading() {
            // While a flush waits, the limit of received bytes is doubled. A publisher does not
            // check the limit.
            self.shared.wake(inner);
        } else if !inner.core.is_idle() {
            // The acknowledgement of a publish may answer it.
            self.shared.send(inner, false);
        }
        Ok(command)
    }

    /// The highest sequence that is persisted.
    pub fn persisted(&self) -> u64 {
        self.shared.inner.lock().core.persisted()
    }

    /// Waits until the server has persisted or refused every publish up to `sequence`. Fails when
    /// the client has ended before, or when the server's disk takes no more writes. `None` when
    /// `timeout` passed first.
    pub fn wait_persisted(&self, sequence: u64, timeout: Duration) -> Option<Result<(), Failure>> {
        self.wait_for(timeout, |inner| {
            let core = &inner.core;
            match core.state() {
                _ if core.persisted() >= sequence => Some(Ok(())),
                ConnectionState::Closed(failure) => Some(Err(failure.clone().unwrap_or_else(closed))),
                _ => core.storage_failure().cloned().map(Err),
            }
        })
    }

    /// The highest sequence of a publish that was taken.
    pub fn last_sequence(&self) -> u64 {
        self.shared.inner.lock().core.last_sequence()
    }

    /// See [`ClientCore::released`].
    pub fn released(&self) -> u64 {
        self.shared.inner.lock().core.released()
    }

    /// See [`ClientCore::message_size_max`].
    pub fn message_size_max(&self) -> Option<u32> {
        self.shared.inner.lock().core.message_size_max()
    }

    /// Publishes that are not known to be persisted.
    pub fn unpersisted_count(&self) -> u64 {
        self.shared.inner.lock().core.unpersisted_count()
    }

    /// The refused publishes since the last call, the latest 1,024 of them.
    pub fn take_failed_publishes(&self) -> Vec<(u64, Failure)> {
        self.shared.inner.lock().failed_publishes.drain(..).collect()
    }
}
