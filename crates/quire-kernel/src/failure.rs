//! A journal that takes no writes, and its codes on the wire.

use quire_command::Code;
use quire_journal::JournalError;

use super::context::Context;
use super::io::Event;

/// Why the journal takes no writes.
#[derive(Clone, Debug)]
pub struct Failure {
    pub code: Code,
    pub reason: String,
    /// It ends when there is room again: the journal keeps what is appended until then.
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
        // A locked journal is an error of opening it. No connection gets this one.
        JournalError::Io { .. }
        | JournalError::OutOfFiles { .. }
        | JournalError::Locked { .. }
        | JournalError::TimedOut => Code::StorageFailed,
    }
}

impl Context {
    /// Whether the journal takes no more writes until the server is started again.
    pub fn has_failed(&self) -> bool {
        self.log.failure.as_ref().is_some_and(|failure| !failure.passes)
    }

    /// The journal takes no more writes until the server is started again. The run loop notifies
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
