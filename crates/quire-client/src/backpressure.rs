//! Calls for a driver that has no room for more messages, or is about to stop reading.

use super::{ClientCore, CommandId, Failure};
use quire_command::Code;
use quire_types::time::Instant;

impl ClientCore {
    /// The driver has no room for the messages of some bookmark subscriptions. Asks the server to
    /// hold them until a call with `is_held` false, also over reconnects. Subscriptions that the
    /// user paused stay paused. Returns the commands that [`super::Event::Answered`] will name.
    pub fn set_held(&mut self, numbers: &[u32], is_held: bool) -> Vec<CommandId> {
        let lists = self.subscriptions.set_held(numbers, is_held);
        lists.iter().map(|numbers| self.command(|commands| commands.pause(numbers, is_held))).collect()
    }

    /// The subscriptions that share a replay with this one, with itself, in the order of their
    /// numbers. Their messages arrive in the order of the log only if they are held together.
    pub fn companions(&self, number: u32) -> Vec<u32> {
        self.subscriptions.companions(number)
    }

    /// The driver stops reading because it has no room, so the server does not count as silent.
    /// Until [`ClientCore::handle_emptied`], unread messages may have leases that run, and renewals
    /// of leases count when they are sent.
    pub fn handle_unread(&mut self, now: Instant) {
        if let Some(connection) = &mut self.connection {
            connection.unread(now);
            self.leases.unread();
        }
    }

    /// All waiting bytes were read, after [`ClientCore::handle_unread`].
    pub fn handle_emptied(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.emptied();
            self.leases.emptied();
        }
    }

    /// Whether a flush waits for an answer of the server.
    pub fn awaits_flush(&self) -> bool {
        self.commands.awaits_flush()
    }

    /// Fails the waiting flushes, because their answers follow `unread_size` bytes of messages that
    /// are not taken.
    pub fn stall_flushes(&mut self, unread_size: usize) {
        let reason = format!(
            "receive_size_max: {unread_size} bytes of messages wait to be taken, and the answer comes behind them"
        );
        self.commands.fail_flushes(&Failure::new(Code::LimitExceeded, reason), &mut self.events);
    }
}
