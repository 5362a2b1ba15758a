//! A journal that accepts no writes, and its codes on the wire.

use quire_command::Code;
use quire_journal::JournalError;

use super::context::Context;
use super::io::Event;

/// Why the journal accepts no writes.
#[derive(Clone, Debug)]
pub struct Failure {
    pub code: Code,
    pub reason: String,
    /// The failure ends when there is room again. The journal buffers appended records until then.
    pub passes: bool,
}

/// The stable code of an error of the journal, for every way in which it is reported.
pub fn code_of(error: &JournalError) -> Code {
    match error {
        JournalError::Full { .. } => Code::StorageFull,
        JournalError::Removed { .. } => Code::BookmarkNotFound,
        JournalError::Corrupt { .. }
        | JournalError::Unreadable { .. }
        | JournalError::Gap { .. }
        | JournalError::Missing { .. }
        | JournalError::Truncated { .. }
        | JournalError::Version { .. }
        | JournalError::LaterRecord { .. } => Code::JournalCorrupt,
        JournalError::BadOption { .. } => Code::BadOption,
        JournalError::Topic(_) => Code::BadTopic,
        JournalError::SequencesEnd { .. } => Code::LimitExceeded,
        JournalError::Closed => Code::ShuttingDown,
        JournalError::Behind { .. } | JournalError::Panicked { .. } => Code::Internal,
        // The journal reports this error only when it is opened. No connection receives it.
        JournalError::Io { .. }
        | JournalError::OutOfFiles { .. }
        | JournalError::Locked { .. }
        | JournalError::TimedOut => Code::StorageFailed,
    }
}

impl Context {
    /// Whether the journal accepts no writes until the server is restarted.
    pub fn has_failed(&self) -> bool {
        self.log.failure.as_ref().is_some_and(|failure| !failure.passes)
    }

    /// The journal accepts no writes until the server is restarted. The run loop notifies
    /// publishers. Reading continues.
    pub fn fail(&mut self, error: &JournalError) {
        if self.has_failed() {
            return;
        }
        let failure = Failure { code: code_of(error), reason: error.to_string(), passes: false };
        let event = Event::JournalFailed { code: failure.code, reason: failure.reason.clone() };
        self.note(event);
        self.log.failure = Some(failure);
        self.log.is_failure_news = true;
        self.clock.wants_turn = true;
    }

    /// The answer to commands that the failure prevents.
    pub fn failure_frame(&self) -> Failure {
        let unknown = Failure { code: Code::Internal, reason: String::new(), passes: false };
        self.log.failure.clone().unwrap_or(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_journal::Position;

    #[test]
    fn records_that_were_removed_are_a_bookmark_that_is_not_found() {
        let error = JournalError::Removed { directory: "journal".into(), after: Position::ZERO };
        assert_eq!(code_of(&error), Code::BookmarkNotFound);
    }
}
