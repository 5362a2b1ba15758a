//! The outputs of a destination, and the introductions.

use quire_types::{Bookmark, Position};
use quire_wire::link::{Given, Hello, Mark, Member};

use crate::{Connection, KeptMark, MemberInfo, PlacesFrame};

/// A request to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DestinationOutput {
    /// Send the bytes.
    Send {
        /// The connection.
        connection: Connection,
        /// Whole frames.
        bytes: Vec<u8>,
    },
    /// Check the configurations against each other. Then call
    /// [`handle_checked`](super::Destination::handle_checked), or
    /// [`end`](super::Destination::end) when the link cannot be.
    Check(Box<Greeting>),
    /// Look for the message of the mark in the log. Then call
    /// [`handle_found`](super::Destination::handle_found).
    Find {
        /// For the result.
        number: u64,
        /// The message.
        mark: Mark,
    },
    /// Look for records with these bookmarks in the log. Then call
    /// [`handle_looked_up`](super::Destination::handle_looked_up).
    LookUp {
        /// For the result.
        number: u64,
        /// The bookmarks.
        bookmarks: Vec<Bookmark>,
    },
    /// The source has answered a question, or says why it cannot.
    Answered {
        /// The number of the question.
        number: u64,
        /// The answer.
        answer: Result<Vec<u8>, String>,
    },
    /// The source has sent the messages that were wanted, or says why it cannot. Their records came
    /// before.
    Given {
        /// The number of the request.
        number: u64,
        /// The result.
        given: Result<Given, String>,
    },
    /// The log here has lost a message. The source had seen it. When the log is known
    /// to be filling, [`handle_checked`](super::Destination::handle_checked) does not give this.
    /// The link waits: end the connection.
    LostRecord,
    /// An instance has sent everything that it had. The records before it were recorded.
    Mark {
        /// The mark.
        mark: KeptMark,
        /// The link sends everything that can be missing here.
        is_whole: bool,
    },
    /// The places of instances at this point of the link. The records before it were recorded.
    Places(PlacesFrame),
    /// Something happened.
    Note(DestinationEvent),
    /// Another turn is needed soon.
    Turn,
}

/// An event that the log of the server shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DestinationEvent {
    /// A source was let in.
    Accepted {
        /// The name of the instance.
        source: String,
        /// Its group.
        group: String,
        /// Its address.
        peer: String,
    },
    /// The link has ended.
    Ended {
        /// The name of the instance, or its address.
        source: String,
        /// The reason.
        reason: String,
    },
}

/// The introduction of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version of its frames.
    pub version: u16,
    /// The name of the instance.
    pub instance: String,
    /// Its group.
    pub group: String,
    /// The instances that it knows, itself first.
    pub members: Vec<MemberInfo>,
    /// The name that the source has for this instance.
    pub destination: String,
    /// The group that it has for this instance.
    pub destination_group: String,
    /// Topics, each with its message type and its key.
    pub offers: Vec<[String; 3]>,
    /// Checks that are left out.
    pub excluded: Vec<String>,
}

impl Greeting {
    pub(super) fn new(hello: &Hello<'_>) -> Self {
        let offers = hello.topics.iter();
        let offers = offers.map(|offer| [offer.topic, offer.message_type, offer.key].map(str::to_owned));
        Greeting {
            version: hello.version,
            instance: hello.instance.to_owned(),
            group: hello.group.to_owned(),
            members: hello.members.iter().map(MemberInfo::of_frame).collect(),
            destination: hello.destination.to_owned(),
            destination_group: hello.destination_group.to_owned(),
            offers: offers.collect(),
            excluded: hello.excluded.iter().map(|check| (*check).to_owned()).collect(),
        }
    }
}

/// The parts of `welcome` that the caller knows.
#[derive(Clone, Debug, Default)]
pub struct Answer<'a> {
    /// The name of the instance.
    pub instance: &'a str,
    /// Its group.
    pub group: &'a str,
    /// The start of its process.
    pub started_ns: u64,
    /// It is a source, too, and sends to the instance that said `hello`.
    pub sends_back: bool,
    /// The instances that it knows, itself first.
    pub members: Vec<Member<'a>>,
}

/// Figures of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationFigures {
    /// The name of the instance.
    pub source: String,
    /// Records may arrive.
    pub is_open: bool,
    /// The place in the log of the source up to which its records came.
    pub received: Position,
    /// The place up to which they are acknowledged.
    pub acknowledged: Position,
    /// Records that arrived.
    pub record_count: u64,
    /// Those that the log had.
    pub duplicate_count: u64,
}
