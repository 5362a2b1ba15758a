//! The decisions about a message by its run and its sequence: whether it is recorded, is a
//! duplicate, or is refused (docs/internals/copies.md, *Decisions*).
//!
//! A run is one life of a publisher. Two messages of a publisher are the same when run and sequence
//! are the same. The run is 0 for messages that the program numbers, for records of earlier
//! versions and for clients of earlier versions. The sequence alone then names the message.
//!
//! The model of `quire-model` calls these functions, too.

/// The record that the log here has under the bookmark of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// It has one, of this run.
    Record {
        /// 0 = not known, or the program gave the sequence.
        run: u64,
    },
    /// It has none, and none of its publisher with this sequence or a higher one.
    Above,
    /// It has none, and one of its publisher with a higher sequence.
    Below {
        /// The run of the record with the highest sequence.
        current_run: u64,
    },
}

/// A publish of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The run of the client, or 0 when the program gave the sequence.
    pub run: u64,
    /// Another instance has rejected the message: it has another one with the bookmark.
    pub is_rejected: bool,
    /// An operator has accepted that the sequence is missing.
    pub is_gap: bool,
}

/// The result for a publish of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishDecision {
    /// It is recorded. In a hole, the publisher is as good a source of the missing message as
    /// another instance.
    Record,
    /// It is a duplicate: it is acknowledged when all counted copies have it.
    Duplicate,
    /// It is refused with `name_in_use`.
    Refuse,
}

/// The result for a record of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordDecision {
    /// It is recorded, also below the highest sequence of its publisher.
    Record,
    /// It is a duplicate, and is acknowledged.
    Duplicate,
    /// It has the sequence of a record here, and one of them has no run. It is acknowledged as a
    /// duplicate. A difference of the contents is a conflict.
    Compare,
    /// Another run of the publisher has used the sequence here. It is not recorded and not
    /// acknowledged: both instances keep a conflict.
    Reject,
}

/// Decides about a publish of a client.
pub fn decide_publish(here: Here, published: Published) -> PublishDecision {
    let Published { run, is_rejected, is_gap } = published;
    match here {
        Here::Above => PublishDecision::Record,
        Here::Record { run: known } if run != known && run != 0 && known != 0 => PublishDecision::Refuse,
        Here::Record { .. } if is_rejected => PublishDecision::Refuse,
        Here::Record { .. } => PublishDecision::Duplicate,
        Here::Below { current_run } if is_gap || (run != current_run && run != 0) => PublishDecision::Refuse,
        Here::Below { .. } => PublishDecision::Record,
    }
}

/// Decides about a record of a link.
pub fn decide_record(here: Here, run: u64) -> RecordDecision {
    match here {
        Here::Above | Here::Below { .. } => RecordDecision::Record,
        Here::Record { run: known } if known == 0 || run == 0 => RecordDecision::Compare,
        Here::Record { run: known } if known == run => RecordDecision::Duplicate,
        Here::Record { .. } => RecordDecision::Reject,
    }
}
