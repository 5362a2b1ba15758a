//! Links between instances: what is sent to a destination, when it is acknowledged, and from where
//! it is sent again.
//!
//! **What for.** A link sends the records of one log, the source, to another instance, the
//! destination. [`Source`] is the state machine of one link at the source, and [`Destination`] that
//! at the destination. [`LoggingOn`] is the logon of the connection of both. The rules are in
//! `docs/replication.md`, and the frames in `quire_wire::link`. [`replicated`] combines the
//! destinations of an instance. [`decide`] says which message of a publisher is a duplicate, on one
//! instance and between several. [`summary`] finds the messages that two logs do not both have, and
//! [`reconcile`] asks a source for those that are missing here.
//!
//! **What it promises.** Records are sent in the order of the log. After a connection was lost,
//! sending continues after the last record that the destination is known to have, or earlier. A
//! position counts as acknowledged when the destination has acknowledged every record up to it.
//! This crate does not read a clock, has no socket and does not read the log, except to answer
//! questions about it ([`summary`]). The same calls give the same results.
//!
//! **What the caller must do.** Carry out the outputs after every call, and hand in frames, the
//! results of reads, and the state of the log. Each type says in which order.

mod compress;
pub mod decide;
mod destination;
mod logon;
mod members;
mod places;
mod ranges;
pub mod reconcile;
mod record;
pub mod replicated;
mod source;
pub mod summary;

pub use compress::{Algorithm, compress};
pub use destination::{
    Answer, Arrived, Destination, DestinationEvent, DestinationFigures, DestinationOutput, Greeting, InLog,
    LinkRules, LookedUp, RecordHere, SourceInstance, Taken, hash_of,
};
pub use logon::{GivenIdentity, LoggingOn, LogonStep};
pub use members::{
    KeptMark, MemberInfo, Members, MembersEvent, MembersOutput, NamedInstance, NotHeard, SavedMembers,
    log_number,
};
pub use places::{Place, PlaceVector, Places, PlacesFrame, Required};
pub use ranges::SequenceRanges;
pub use record::{SentRecord, for_frame};
pub use source::{
    Greeted, Introduction, LinkPlace, LogState, Peer, Read, ReadFound, Run, SentFrame, Source, SourceCounts,
    SourceEvent, SourceOutput, SourceSettings, SourceState, Start,
};

use std::time::Duration;

/// The time without another frame after which a heartbeat is sent.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// The time without any byte after which the peer counts as gone.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);

/// The number of a connection. The caller chooses it, and never uses it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection(pub u64);
