//! The frames between two instances (docs/protocol.md, *Links between instances*).
//!
//! A frame is its size (u32, without these four bytes), its kind (u8) and its body. Numbers are
//! little-endian. A text is its size (u16) and its bytes. Any bytes decode to a frame or to
//! [`BadFrame`]. No memory is allocated for bytes that have not arrived.
//!
//! The bodies of records are not interpreted: their kinds and attributes are numbers and bytes
//! here. The compression of a frame is a number and bytes, too. The caller compresses.

mod member;
mod splitter;

use quire_types::{Bookmark, Position, PublisherId, Secret, Timestamp};

pub use member::{KnownPlace, MEMBERS_MAX, Member, NAMED_MAX, Named, RequiredPlace, SentAll, SentPlaces};
use member::{put_members, put_places, put_sent_all, take_members, take_places, take_sent_all};
pub use splitter::{Piece, Splitter};

/// The version of these frames. Both sides must have the same.
pub const VERSION: u16 = 10;

/// The largest frame in bytes apart from the data of one message: its other fields, the limit of a
/// frame of small records, or a `hello`.
pub const FRAME_OVERHEAD_MAX: usize = 4 * 1024 * 1024;

/// The largest frame in bytes before the logon of a connection is over.
pub const LOGON_SIZE_MAX: usize = 64 * 1024;

/// The most topics in one `hello`. Further topics are checked when their records arrive.
pub const OFFERED_MAX: usize = 10_000;

/// The most ranges in one `wanted`.
pub const WANTED_MAX: usize = 4_096;

/// The checks that a `hello` can leave out: all that exist.
pub const EXCLUDED_MAX: usize = 6;

/// Size and kind: the part of a frame that shows to which link it belongs.
const HEAD_SIZE: usize = 5;

/// The position and the mark at the front of the body of a `records` frame.
const RECORDS_HEAD_SIZE: usize = 8 + 4 * 8;

/// The flags of a record.
const HAS_EXPIRATION: u8 = 1;
const HAS_STAMP: u8 = 2;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const RECORDS: u8 = 4;
const ACKNOWLEDGED: u8 = 5;
const HEARTBEAT: u8 = 6;
const MARK: u8 = 7;
const COMPRESSED: u8 = 8;
const ENDED: u8 = 9;
const LOGON: u8 = 10;
const LOGGED_ON: u8 = 11;
const REJECTED: u8 = 12;
const MEMBERS: u8 = 13;
const QUESTION: u8 = 15;
const ANSWER: u8 = 16;
const WANTED: u8 = 17;
const GIVEN: u8 = 18;
const PLACES: u8 = 19;

/// Bytes that are not a frame. The peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes that are no frame of a link: {0}")]
pub struct BadFrame(pub &'static str);

const UNKNOWN_KIND: BadFrame = BadFrame("an unknown kind");

/// The part that an instance has in a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It sends its records.
    #[default]
    Source,
    /// It receives them.
    Destination,
    /// Both: the frame belongs to each of the two links of a connection.
    Either,
}

/// The part that the receiver of a frame has in the link to which the frame belongs.
///
/// # Errors
/// There is no such kind.
pub fn role_of(kind: u8) -> Result<Role, BadFrame> {
    match kind {
        WELCOME | REFUSED | ACKNOWLEDGED | REJECTED | QUESTION | WANTED => Ok(Role::Source),
        HELLO | RECORDS | COMPRESSED | MARK | ENDED | ANSWER | GIVEN | PLACES => Ok(Role::Destination),
        HEARTBEAT | MEMBERS => Ok(Role::Either),
        _ => Err(UNKNOWN_KIND),
    }
}

/// A message that the destination had at a position of its log. It has everything before it, as
/// long as it still has this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The position of the message in the log of the destination.
    pub position: Position,
    /// The message.
    pub bookmark: Bookmark,
    /// The time of the message in the log of the destination. A log that was filled again can have
    /// the same message at the same position, with other messages before it. Its time differs.
    pub time: Timestamp,
}

/// A topic that the source will send, with what must be equal on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered<'a> {
    /// Its name.
    pub topic: &'a str,
    /// The type of its messages.
    pub message_type: &'a str,
    /// The fields of the key of its last-value topic, joined by commas; empty = it keeps no last
    /// values, or publishers supply the keys.
    pub key: &'a str,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Source: the first frame.
    Hello(Hello<'a>),
    /// Destination: the answer.
    Welcome(Welcome<'a>),
    /// Destination: the link ends, and why.
    Refused {
        /// The reason.
        reason: &'a str,
    },
    /// Source: records, and the position up to which the source has read its log.
    Records(Records<'a>),
    /// Source: a frame of records that is compressed.
    Compressed(Compressed<'a>),
    /// Destination: it has records of the source.
    Acknowledged {
        /// Up to this position of the log of the source, the destination has everything that had
        /// passed `hops` instances before the source.
        through: Position,
        /// The instances.
        hops: u8,
        /// The last record of the destination.
        mark: Option<Mark>,
    },
    /// Destination: it has another record with the bookmark of a record of the source, and keeps
    /// its own. It comes before the acknowledgement of the positions around the record.
    Rejected {
        /// The bookmark.
        bookmark: Bookmark,
        /// The run of the record of the source. 0: one of the two records names no run, and their
        /// contents differ. The record then counts as a duplicate.
        run: u64,
    },
    /// Destination: a question about the messages of the source.
    Question {
        /// For the answer.
        number: u64,
        /// The question. It is not interpreted here.
        question: &'a [u8],
    },
    /// Source: the answer.
    Answer {
        /// That of the question.
        number: u64,
        /// Why there is none; empty when there is one.
        reason: &'a str,
        /// The answer. It is not interpreted here.
        answer: &'a [u8],
    },
    /// Destination: messages that it lacks.
    Wanted {
        /// For the result.
        number: u64,
        /// The messages.
        ranges: Vec<Wanted>,
    },
    /// Source: the records of the messages were sent before, as far as they go to the destination.
    Given {
        /// That of the request.
        number: u64,
        /// Why the log cannot be read; empty when it was.
        reason: &'a str,
        /// The result.
        given: Given,
    },
    /// Either: still there.
    Heartbeat,
    /// Source: an instance has sent everything that it had.
    Mark(SentAll<'a>),
    /// Source: the places of instances at this point of the link.
    Places(SentPlaces<'a>),
    /// Either: the instances that the sender knows, itself first.
    Members(Vec<Member<'a>>),
    /// Source: the link ends, and why. The link of the other direction can continue.
    Ended {
        /// The reason.
        reason: &'a str,
    },
    /// The instance that has made the connection: its first frame.
    Logon(Logon<'a>),
    /// The other one: links can begin.
    LoggedOn {
        /// The user of the connection; empty without authentication.
        user: &'a str,
    },
}

/// The identity of the instance that has made a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Logon<'a> {
    /// The version of the frames of the sender.
    pub version: u16,
    /// The name of the sender.
    pub instance: &'a str,
    /// Its user.
    pub user: Option<&'a str>,
    /// Its password.
    pub password: Option<Secret<&'a str>>,
    /// Its token.
    pub token: Option<Secret<&'a str>>,
}

/// Introduces the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The version of the frames of the sender.
    pub version: u16,
    /// The name of the sender.
    pub instance: &'a str,
    /// Its group.
    pub group: &'a str,
    /// The name that the source has for the destination.
    pub destination: &'a str,
    /// The group that it has for the destination.
    pub destination_group: &'a str,
    /// When the process of the source started. It distinguishes two runs.
    pub started_ns: u64,
    /// The last message that the destination has, as far as the source knows.
    pub mark: Option<Mark>,
    /// The number of the log that has this message; 0: not known.
    pub marked_log: u64,
    /// The topics that the source will send.
    pub topics: Vec<Offered<'a>>,
    /// Checks that are left out.
    pub excluded: Vec<&'a str>,
    /// The instances that the source knows, itself first.
    pub members: Vec<Member<'a>>,
}

/// Introduces the destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome<'a> {
    /// The version of the frames of the sender.
    pub version: u16,
    /// The name of the sender.
    pub instance: &'a str,
    /// Its group.
    pub group: &'a str,
    /// When the process of the destination started.
    pub started_ns: u64,
    /// The destination still has the message of `mark` at the same place.
    pub has_mark: bool,
    /// The destination is a source, too, and sends to the sender of the `hello`.
    pub sends_back: bool,
    /// The instances that the destination knows, itself first.
    pub members: Vec<Member<'a>>,
}

/// Messages of a publisher that a destination lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The publisher.
    pub publisher: PublisherId,
    /// The first sequence.
    pub first: u64,
    /// The last sequence.
    pub last: u64,
    /// The destination has a later message of the publisher. So it gets the messages whatever their
    /// path is.
    pub is_hole: bool,
}

/// The result of a request for messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The number of ranges that are done,
    pub done: u32,
    /// and of the next one everything below this sequence. The destination asks for the rest again.
    pub next: u64,
    /// Records that were sent.
    pub sent: u64,
    /// Messages that the source has, and that do not go to the destination, or do later: publisher,
    /// first and last sequence.
    pub left_out: Vec<(PublisherId, u64, u64)>,
}

/// Records in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records<'a> {
    /// The source has read its log up to here.
    pub through: Position,
    /// The last of the records. Between the two instances it is a mark of the link in the other
    /// direction.
    pub last: Option<Mark>,
    bytes: &'a [u8],
}

/// The body of a frame of records, compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compressed<'a> {
    /// The number of the algorithm.
    pub algorithm: u8,
    /// The size of the decompressed body.
    pub size: u32,
    /// The compressed body.
    pub bytes: &'a [u8],
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkRecord<'a> {
    /// Its position in the log of the source.
    pub position: Position,
    /// The kind of the record, as in the log.
    pub kind: u8,
    /// The type of the message, as in the log.
    pub message_type: u8,
    /// Its bookmark.
    pub bookmark: Bookmark,
    /// The lifetime of the message.
    pub expiration_s: Option<u32>,
    /// The time of its stamp, when its attributes do not have it.
    pub stamp: Option<Timestamp>,
    /// Its topic.
    pub topic: &'a str,
    /// Its correlation id.
    pub correlation_id: &'a [u8],
    /// Its attributes, as in the log.
    pub attributes: &'a [u8],
    /// The message.
    pub data: &'a [u8],
}

impl Frame<'_> {
    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let begin = begin_frame(out, self.kind());
        match self {
            Frame::Hello(hello) => {
                out.extend_from_slice(&hello.version.to_le_bytes());
                for text in [hello.instance, hello.group, hello.destination, hello.destination_group] {
                    put_text(out, text);
                }
                put_u64(out, hello.started_ns);
                put_mark(out, hello.mark);
                put_u64(out, hello.marked_log);
                put_u32(out, hello.topics.len() as u32);
                for Offered { topic, message_type, key } in &hello.topics {
                    [topic, message_type, key].into_iter().for_each(|text| put_text(out, text));
                }
                put_u32(out, hello.excluded.len() as u32);
                hello.excluded.iter().for_each(|text| put_text(out, text));
                put_members(out, &hello.members);
            }
            Frame::Welcome(welcome) => {
                out.extend_from_slice(&welcome.version.to_le_bytes());
                put_text(out, welcome.instance);
                put_text(out, welcome.group);
                put_u64(out, welcome.started_ns);
                out.push(welcome.has_mark.into());
                out.push(welcome.sends_back.into());
                put_members(out, &welcome.members);
            }
            Frame::Refused { reason } | Frame::Ended { reason } => put_text(out, cut(reason)),
            Frame::Records(records) => {
                put_u64(out, records.through.get());
                put_mark(out, records.last);
                out.extend_from_slice(records.bytes);
            }
            Frame::Compressed(compressed) => {
                out.push(compressed.algorithm);
                put_u32(out, compressed.size);
                out.extend_from_slice(compressed.bytes);
            }
            Frame::Acknowledged { through, hops, mark } => {
                put_u64(out, through.get());
                out.push(*hops);
                put_mark(out, *mark);
            }
            Frame::Rejected { bookmark, run } => {
                [bookmark.publisher.get(), bookmark.sequence, *run]
                    .into_iter()
                    .for_each(|number| put_u64(out, number));
            }
            Frame::Question { number, question } => {
                put_u64(out, *number);
                out.extend_from_slice(question);
            }
            Frame::Answer { number, reason, answer } => {
                put_u64(out, *number);
                put_text(out, cut(reason));
                out.extend_from_slice(answer);
            }
            Frame::Wanted { number, ranges } => {
                put_u64(out, *number);
                for Wanted { publisher, first, last, is_hole } in ranges {
                    [publisher.get(), *first, *last].into_iter().for_each(|number| put_u64(out, number));
                    out.push((*is_hole).into());
                }
            }
            Frame::Given { number, reason, given: Given { done, next, sent, left_out } } => {
                put_u64(out, *number);
                put_text(out, cut(reason));
                put_u32(out, *done);
                [*next, *sent].into_iter().for_each(|number| put_u64(out, number));
                for (publisher, first, last) in left_out {
                    [publisher.get(), *first, *last].into_iter().for_each(|number| put_u64(out, number));
                }
            }
            Frame::Logon(logon) => {
                out.extend_from_slice(&logon.version.to_le_bytes());
                let secret = |secret: Option<Secret<_>>| secret.map(|Secret(text)| text);
                let texts = [logon.user, secret(logon.password), secret(logon.token)];
                put_text(out, logon.instance);
                texts.into_iter().for_each(|text| put_text(out, text.unwrap_or_default()));
            }
            Frame::LoggedOn { user } => put_text(out, user),
            Frame::Mark(sent) => put_sent_all(out, sent),
            Frame::Members(members) => put_members(out, members),
            Frame::Places(sent) => put_places(out, sent),
            Frame::Heartbeat => (),
        }
        end_frame(out, begin);
    }

    fn kind(&self) -> u8 {
        match self {
            Frame::Hello(_) => HELLO,
            Frame::Welcome(_) => WELCOME,
            Frame::Refused { .. } => REFUSED,
            Frame::Records(_) => RECORDS,
            Frame::Compressed(_) => COMPRESSED,
            Frame::Acknowledged { .. } => ACKNOWLEDGED,
            Frame::Heartbeat => HEARTBEAT,
            Frame::Mark(_) => MARK,
            Frame::Members(_) => MEMBERS,
            Frame::Places(_) => PLACES,
            Frame::Ended { .. } => ENDED,
            Frame::Logon(_) => LOGON,
            Frame::LoggedOn { .. } => LOGGED_ON,
            Frame::Rejected { .. } => REJECTED,
            Frame::Question { .. } => QUESTION,
            Frame::Answer { .. } => ANSWER,
            Frame::Wanted { .. } => WANTED,
            Frame::Given { .. } => GIVEN,
        }
    }
}

/// The frame at the front of `bytes` and its size; `None` when it has not arrived completely.
///
/// # Errors
/// The bytes are not a frame of at most `size_max` bytes.
pub fn next_frame(bytes: &[u8], size_max: usize) -> Result<Option<(Frame<'_>, usize)>, BadFrame> {
    let Some((head, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let size = u32::from_le_bytes(*head) as usize;
    if size == 0 || size > size_max {
        return Err(BadFrame("the size of the frame"));
    }
    let Some((frame, _)) = rest.split_at_checked(size) else { return Ok(None) };
    let (kind, mut body) = frame.split_first().ok_or(BadFrame("an empty frame"))?;
    let body = &mut body;
    let frame = match *kind {
        HELLO => Frame::Hello(take_hello(body)?),
        WELCOME => Frame::Welcome(Welcome {
            version: take_u16(body)?,
            instance: take_text(body)?,
            group: take_text(body)?,
            started_ns: take_u64(body)?,
            has_mark: take_u8(body)? != 0,
            sends_back: take_u8(body)? != 0,
            members: take_members(body)?,
        }),
        REFUSED => Frame::Refused { reason: take_text(body)? },
        RECORDS => Frame::Records(take_records(std::mem::take(body))?),
        COMPRESSED => Frame::Compressed(Compressed {
            algorithm: take_u8(body)?,
            size: take_u32(body)?,
            bytes: std::mem::take(body),
        }),
        ACKNOWLEDGED => Frame::Acknowledged {
            through: Position::new(take_u64(body)?),
            hops: take_u8(body)?,
            mark: take_mark(body)?,
        },
        HEARTBEAT => Frame::Heartbeat,
        MARK => Frame::Mark(take_sent_all(body)?),
        MEMBERS => Frame::Members(take_members(body)?),
        PLACES => Frame::Places(take_places(body)?),
        ENDED => Frame::Ended { reason: take_text(body)? },
        LOGON => Frame::Logon(take_logon(body)?),
        LOGGED_ON => Frame::LoggedOn { user: take_text(body)? },
        REJECTED => Frame::Rejected {
            bookmark: Bookmark::new(PublisherId::new(take_u64(body)?), take_u64(body)?),
            run: take_u64(body)?,
        },
        QUESTION => Frame::Question { number: take_u64(body)?, question: std::mem::take(body) },
        ANSWER => {
            Frame::Answer { number: take_u64(body)?, reason: take_text(body)?, answer: std::mem::take(body) }
        }
        WANTED => Frame::Wanted { number: take_u64(body)?, ranges: take_wanted(body)? },
        GIVEN => Frame::Given { number: take_u64(body)?, reason: take_text(body)?, given: take_given(body)? },
        _ => return Err(UNKNOWN_KIND),
    };
    if !body.is_empty() {
        return Err(BadFrame("bytes after the last field"));
    }
    Ok(Some((frame, 4 + size)))
}

fn take_wanted(body: &mut &[u8]) -> Result<Vec<Wanted>, BadFrame> {
    let mut ranges = Vec::new();
    while !body.is_empty() {
        if ranges.len() == WANTED_MAX {
            return Err(BadFrame("more ranges than can be wanted"));
        }
        let (publisher, first, last) = take_range(body)?;
        ranges.push(Wanted { publisher, first, last, is_hole: take_u8(body)? != 0 });
    }
    Ok(ranges)
}

fn take_given(body: &mut &[u8]) -> Result<Given, BadFrame> {
    let (done, next, sent) = (take_u32(body)?, take_u64(body)?, take_u64(body)?);
    let mut given = Given { done, next, sent, left_out: Vec::new() };
    while !body.is_empty() {
        given.left_out.push(take_range(body)?);
    }
    Ok(given)
}

/// A publisher, and a range of its sequences.
fn take_range(body: &mut &[u8]) -> Result<(PublisherId, u64, u64), BadFrame> {
    let (publisher, first, last) = (PublisherId::new(take_u64(body)?), take_u64(body)?, take_u64(body)?);
    match first <= last {
        true => Ok((publisher, first, last)),
        false => Err(BadFrame("a range that ends before it begins")),
    }
}

fn take_logon<'a>(body: &mut &'a [u8]) -> Result<Logon<'a>, BadFrame> {
    let mut logon = Logon { version: take_u16(body)?, ..Logon::default() };
    if logon.version != VERSION {
        // The rest may have another layout. The other instance refuses it, and names both versions.
        *body = &[];
        return Ok(logon);
    }
    logon.instance = take_text(body)?;
    let mut text = || take_text(body).map(|text| (!text.is_empty()).then_some(text));
    (logon.user, logon.password, logon.token) = (text()?, text()?.map(Secret), text()?.map(Secret));
    Ok(logon)
}

fn take_hello<'a>(body: &mut &'a [u8]) -> Result<Hello<'a>, BadFrame> {
    let mut hello = Hello {
        version: take_u16(body)?,
        instance: take_text(body)?,
        group: take_text(body)?,
        destination: take_text(body)?,
        destination_group: take_text(body)?,
        started_ns: take_u64(body)?,
        ..Hello::default()
    };
    if hello.version != VERSION {
        // The rest may have another layout. The destination refuses the link, and names both
        // versions.
        *body = &[];
        return Ok(hello);
    }
    (hello.mark, hello.marked_log) = (take_mark(body)?, take_u64(body)?);
    let topic_count = take_u32(body)?;
    if topic_count as usize > OFFERED_MAX {
        return Err(BadFrame("more topics than a hello has"));
    }
    for _ in 0..topic_count {
        hello.topics.push(Offered {
            topic: take_text(body)?,
            message_type: take_text(body)?,
            key: take_text(body)?,
        });
    }
    let excluded_count = take_u32(body)?;
    if excluded_count as usize > EXCLUDED_MAX {
        return Err(BadFrame("more excluded checks than there are"));
    }
    for _ in 0..excluded_count {
        hello.excluded.push(take_text(body)?);
    }
    hello.members = take_members(body)?;
    Ok(hello)
}

/// The version of the `hello` or of the `logon` at the front of `bytes`; `None` for other bytes. It
/// has the same place in every version.
pub fn announced_version(bytes: &[u8]) -> Option<u16> {
    match bytes.get(4..7) {
        Some(&[HELLO | LOGON, low, high]) => Some(u16::from_le_bytes([low, high])),
        _ => None,
    }
}

/// The size of the frame at the front of `bytes`, if it has arrived. It is not checked.
pub fn announced_size(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk::<4>().map(|size| u32::from_le_bytes(*size) as usize)
}

/// The body of a frame of records.
///
/// # Errors
/// It is cut short.
pub fn take_records(mut body: &[u8]) -> Result<Records<'_>, BadFrame> {
    let (through, last) = (Position::new(take_u64(&mut body)?), take_mark(&mut body)?);
    Ok(Records { through, last, bytes: body })
}

impl<'a> Records<'a> {
    /// The records after the first `done` bytes, in their order, each with the number of bytes up
    /// to its end. Ends after the first bytes that are not a record.
    pub fn each_after(self, done: usize) -> impl Iterator<Item = Result<(LinkRecord<'a>, usize), BadFrame>> {
        let mut rest = self.bytes.get(done..).unwrap_or_default();
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let record = take_record(&mut rest);
            if record.is_err() {
                rest = &[];
            }
            Some(record.map(|record| (record, self.bytes.len() - rest.len())))
        })
    }
}

fn take_record<'a>(body: &mut &'a [u8]) -> Result<LinkRecord<'a>, BadFrame> {
    let position = Position::new(take_u64(body)?);
    let kind = take_u8(body)?;
    let message_type = take_u8(body)?;
    let bookmark = Bookmark::new(PublisherId::new(take_u64(body)?), take_u64(body)?);
    let flags = take_u8(body)?;
    if flags & !(HAS_EXPIRATION | HAS_STAMP) != 0 {
        return Err(BadFrame("an unknown flag of a record"));
    }
    let expiration_s = if flags & HAS_EXPIRATION == 0 { None } else { Some(take_u32(body)?) };
    let stamp = if flags & HAS_STAMP == 0 { None } else { Some(Timestamp::from_ns(take_u64(body)?)) };
    let topic = take_text(body)?;
    let correlation_id = take_bytes(body)?;
    let attributes = take_bytes(body)?;
    let size = take_u32(body)? as usize;
    let data = take(body, size)?;
    if bookmark.sequence == 0 || position == Position::ZERO {
        return Err(BadFrame("a record without a number"));
    }
    Ok(LinkRecord {
        position,
        kind,
        message_type,
        bookmark,
        expiration_s,
        stamp,
        topic,
        correlation_id,
        attributes,
        data,
    })
}

/// Makes `records` frames.
pub struct RecordsWriter {
    begin: usize,
    size: usize,
}

impl RecordsWriter {
    /// Begins a frame at the end of `out`.
    pub fn begin(out: &mut Vec<u8>) -> Self {
        let begin = begin_frame(out, RECORDS);
        out.extend_from_slice(&[0; RECORDS_HEAD_SIZE]);
        RecordsWriter { begin, size: 0 }
    }

    /// Bytes of the records so far.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Appends a record.
    pub fn put(&mut self, record: &LinkRecord<'_>, out: &mut Vec<u8>) {
        let before = out.len();
        put_u64(out, record.position.get());
        out.extend_from_slice(&[record.kind, record.message_type]);
        put_u64(out, record.bookmark.publisher.get());
        put_u64(out, record.bookmark.sequence);
        let (expiration, stamp) = (record.expiration_s, record.stamp);
        let flag = |has: bool, flag: u8| if has { flag } else { 0 };
        out.push(flag(expiration.is_some(), HAS_EXPIRATION) | flag(stamp.is_some(), HAS_STAMP));
        expiration.into_iter().for_each(|seconds| put_u32(out, seconds));
        stamp.into_iter().for_each(|time| put_u64(out, time.as_ns()));
        put_text(out, record.topic);
        put_bytes(out, record.correlation_id);
        put_bytes(out, record.attributes);
        put_u32(out, record.data.len() as u32);
        out.extend_from_slice(record.data);
        self.size += out.len() - before;
    }

    /// Ends the frame. `last` is its last record. When `compress` returns the number of an
    /// algorithm and a compressed body, a compressed frame replaces it.
    pub fn end(
        self,
        through: Position,
        last: Option<Mark>,
        compress: impl FnOnce(&[u8]) -> Option<(u8, Vec<u8>)>,
        out: &mut Vec<u8>,
    ) {
        let at = self.begin + HEAD_SIZE;
        let head = out[at..at + RECORDS_HEAD_SIZE].as_chunks_mut::<8>().0;
        let numbers = std::iter::once(through.get()).chain(numbers_of(last));
        head.iter_mut().zip(numbers).for_each(|(bytes, number)| *bytes = number.to_le_bytes());
        if let Some((algorithm, bytes)) = compress(&out[at..]) {
            let size = (out.len() - at) as u32;
            out.truncate(self.begin);
            Frame::Compressed(Compressed { algorithm, size, bytes: &bytes }).encode(out);
        } else {
            end_frame(out, self.begin);
        }
    }
}

fn begin_frame(out: &mut Vec<u8>, kind: u8) -> usize {
    let begin = out.len();
    put_u32(out, 0);
    out.push(kind);
    begin
}

fn end_frame(out: &mut [u8], begin: usize) {
    let size = (out.len() - begin - 4) as u32;
    out[begin..begin + 4].copy_from_slice(&size.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// Every part of a record that is written in this way has at most 65,535 bytes.
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The longest reason that fits.
fn cut(text: &str) -> &str {
    let end = text.floor_char_boundary(text.len().min(u16::MAX as usize));
    &text[..end]
}

fn put_mark(out: &mut Vec<u8>, mark: Option<Mark>) {
    numbers_of(mark).into_iter().for_each(|number| put_u64(out, number));
}

/// A mark as the frames have it.
fn numbers_of(mark: Option<Mark>) -> [u64; 4] {
    mark.map_or([0; 4], |Mark { position, bookmark, time }| {
        [position.get(), bookmark.publisher.get(), bookmark.sequence, time.as_ns()]
    })
}

fn take_mark(body: &mut &[u8]) -> Result<Option<Mark>, BadFrame> {
    let (position, publisher, sequence) = (take_u64(body)?, take_u64(body)?, take_u64(body)?);
    let bookmark = Bookmark::new(PublisherId::new(publisher), sequence);
    let (position, time) = (Position::new(position), Timestamp::from_ns(take_u64(body)?));
    Ok((position > Position::ZERO).then_some(Mark { position, bookmark, time }))
}

fn take<'a>(body: &mut &'a [u8], size: usize) -> Result<&'a [u8], BadFrame> {
    let (taken, rest) = body.split_at_checked(size).ok_or(BadFrame("a field that is cut short"))?;
    *body = rest;
    Ok(taken)
}

fn take_array<const N: usize>(body: &mut &[u8]) -> Result<[u8; N], BadFrame> {
    let (taken, rest) = body.split_first_chunk().ok_or(BadFrame("a field that is cut short"))?;
    *body = rest;
    Ok(*taken)
}

fn take_u8(body: &mut &[u8]) -> Result<u8, BadFrame> {
    take_array::<1>(body).map(|[byte]| byte)
}

fn take_u16(body: &mut &[u8]) -> Result<u16, BadFrame> {
    take_array(body).map(u16::from_le_bytes)
}

fn take_u32(body: &mut &[u8]) -> Result<u32, BadFrame> {
    take_array(body).map(u32::from_le_bytes)
}

fn take_u64(body: &mut &[u8]) -> Result<u64, BadFrame> {
    take_array(body).map(u64::from_le_bytes)
}

fn take_bytes<'a>(body: &mut &'a [u8]) -> Result<&'a [u8], BadFrame> {
    let size = take_u16(body)?;
    take(body, size.into())
}

fn take_text<'a>(body: &mut &'a [u8]) -> Result<&'a str, BadFrame> {
    std::str::from_utf8(take_bytes(body)?).map_err(|_| BadFrame("a text that is not UTF-8"))
}
