//! Messages whose content could not be read. They are counted, and logged at intervals
//! (docs/filters.md, "Unreadable messages").

use std::time::Duration;

use quire_expression::message_type::Arena;
use quire_expression::unreadable::Unreadables;
use quire_types::time::Instant;

use crate::Event;
use crate::context::Context;

/// The shortest time between two lines in the log. A line names one message, and contains the
/// number of messages since the previous line.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The unreadable messages of a broker.
#[derive(Default)]
pub struct UnreadableLog {
    all: Unreadables,
    /// The number of logged messages.
    logged_count: u64,
    /// When the next line may be logged; `None` before the first one.
    next_at: Option<Instant>,
}

impl UnreadableLog {
    /// An arena for messages that this broker reads, on any thread.
    pub fn arena(&self) -> Arena {
        Arena::reporting_to(&self.all)
    }

    /// The counter to which arenas report.
    pub fn reports(&self) -> &Unreadables {
        &self.all
    }
}

impl Context {
    /// Logs the unreadable messages since the last line, unless the last line was logged a short
    /// time ago.
    pub fn log_unreadable(&mut self) {
        let log = &mut self.messages.unreadable;
        let count = log.all.count();
        if count == log.logged_count || log.next_at.is_some_and(|next| self.clock.now.instant < next) {
            return;
        }
        let Some(example) = log.all.take() else { return };
        let new_count = count - log.logged_count;
        log.logged_count = count;
        log.next_at = Some(self.clock.now.instant + LOG_INTERVAL);
        self.note(Event::MessageUnreadable { example, count: new_count });
    }
}
