//! The rules that are compared, and mistakes in the new one.

/// The rule by which an instance records and confirms messages, and lets clients in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A record is a duplicate when its sequence is not above the highest one of its publisher.
    /// Clients are let in when the connected sync destinations have sent their logs.
    HighestSequence,
    /// The rule of docs/internals/copies.md, or that rule with a mistake.
    Copies(Option<Mistake>),
}

impl Rule {
    /// Whether it is the new rule with this mistake.
    pub fn makes(self, mistake: Mistake) -> bool {
        self == Rule::Copies(Some(mistake))
    }

    /// Whether it is the new rule, with a mistake or without one.
    pub fn is_copies(self) -> bool {
        matches!(self, Rule::Copies(_))
    }
}

/// A mistake in the new rule. The checker must find each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Clients are let in when one other instance has sent its log.
    LetsInAfterTheFirst,
    /// A source reports that all instances have sent their logs when it has sent its own log.
    SpeaksForOthers,
    /// An instance that crashes while it is filled does not know after its start that it lacks
    /// records.
    ForgetsFilling,
    /// A mark that was made for an earlier log of an instance counts for its new log.
    CountsOldMarks,
    /// A mark counts that was made before another instance lost its log.
    CountsMarksOfOldSystems,
    /// An instance passes on that another one has sent everything, although that one sends to it
    /// only the messages that were published there.
    RelaysOverPartialLinks,
    /// A publish is a duplicate by its sequence, whichever run it is from.
    IgnoresTheRunOfAPublish,
    /// A publish in a hole is a duplicate, and is confirmed before the hole is filled.
    ConfirmsInHoles,
    /// A sequence that a record passed over counts as present: a message with it is confirmed, and
    /// a record of a link with it is acknowledged.
    CountsPassedOver,
    /// A record of a link is a duplicate by its sequence, whichever run it is from.
    IgnoresTheRunOfARecord,
    /// A record of a link is dropped when its sequence is not above the highest one.
    DropsInsteadOfFilling,
    /// A source does not report to its own sources which of their messages were rejected.
    KeepsRejections,
    /// A destination that is filled gets only the records whose path allows it.
    FillsByPath,
    /// A record that returns to the instance that had lost it is not passed on.
    KeepsReturnedRecords,
}

/// The sequences of a new run of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// They follow the highest sequence that the instance of the first logon knows.
    Next,
    /// They are above every sequence that an earlier run can have used.
    Fresh,
}
