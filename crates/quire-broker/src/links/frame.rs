//! The frames between two instances (docs/protocol.md, *Links between instances*).
//!
//! A frame is its size (u32, without these four bytes), its kind (u8) and its body. Numbers are little-endian. A text is its size (u16) and
//! its bytes. Any bytes decode to a frame or to [`BadFrame`], and nothing is allocated for a size that has not arrived.

use super::OFFERED_MAX;
use super::compress::{compress, decompress};
use crate::config::links::{CHECKS, Compression};
use quire_journal::{Attributes, Bookmark, Position, PublisherId, Record, RecordKind};

/// The version of these frames. Both sides must have the same.
pub(super) const VERSION: u16 = 3;

/// The largest frame in bytes apart from the data of one message: its other fields, the limit of a frame of small records, or a `hello`.
pub(super) const FRAME_OVERHEAD_MAX: usize = 4 * 1024 * 1024;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const RECORDS: u8 = 4;
const ACKNOWLEDGED: u8 = 5;
const HEARTBEAT: u8 = 6;
const CAUGHT_UP: u8 = 7;
const COMPRESSED: u8 = 8;
const ENDED: u8 = 9;

/// Bytes that are not a frame. The fault of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes that are no frame of a link: {0}")]
pub(super) struct BadFrame(pub(super) &'static str);

const UNKNOWN_KIND: BadFrame = BadFrame("an unknown kind");

/// The part that an instance has in a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    #[default]
    Source,
    Destination,
    /// In each of the two links of a connection.
    Either,
}

/// The part that the receiver of a frame has in the link to which the frame belongs.
///
/// # Errors
/// There is no such kind.
pub(super) fn role_of(kind: u8) -> Result<Role, BadFrame> {
    match kind {
        WELCOME | REFUSED | ACKNOWLEDGED => Ok(Role::Source),
        HELLO | RECORDS | COMPRESSED | CAUGHT_UP | ENDED => Ok(Role::Destination),
        HEARTBEAT => Ok(Role::Either),
        _ => Err(UNKNOWN_KIND),
    }
}

/// A message that the destination had at a position of its log. It has everything before it, as long as it still has this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) position: Position,
    pub(crate) bookmark: Bookmark,
}

/// A topic that the source will send, with what must be equal on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offered<'a> {
    pub(super) topic: &'a str,
    pub(super) message_type: &'a str,
    /// The fields of the key of its last-value topic, joined by commas; empty = it keeps no last values, or publishers supply the keys.
    pub(super) key: &'a str,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// Source: the first frame.
    Hello(Hello<'a>),
    /// Destination: the answer.
    Welcome(Welcome<'a>),
    /// Destination: the link ends, and why.
    Refused { reason: &'a str },
    /// Source: records, and how far the source has looked in its log.
    Records(Records<'a>),
    /// Source: a frame of records that is compressed.
    Compressed(Compressed<'a>),
    /// Destination: up to this position of the source's log, everything is safe here that had passed `hops` instances before the source.
    Acknowledged { through: Position, hops: u8, mark: Option<Mark> },
    /// Either: still there.
    Heartbeat,
    /// Source: all that it had when the link came up has been sent.
    CaughtUp,
    /// Source: the link ends, and why. The link of the other direction can continue.
    Ended { reason: &'a str },
}

/// Introduces the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hello<'a> {
    pub(super) version: u16,
    pub(super) instance: &'a str,
    pub(super) group: &'a str,
    /// The name that the source has for the destination, and its group.
    pub(super) destination: &'a str,
    pub(super) destination_group: &'a str,
    /// When the process of the source started: tells one run from the next.
    pub(super) started_ns: u64,
    /// The last message that the destination is known to have.
    pub(super) mark: Option<Mark>,
    pub(super) topics: Vec<Offered<'a>>,
    /// Checks that are left out.
    pub(super) excluded: Vec<&'a str>,
}

/// Introduces the destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Welcome<'a> {
    pub(super) version: u16,
    pub(super) instance: &'a str,
    pub(super) group: &'a str,
    pub(super) started_ns: u64,
    /// The destination still has the message of `mark` at the same place.
    pub(super) has_mark: bool,
    /// The destination is a source, too, and sends to the instance that said `hello`.
    pub(super) sends_back: bool,
}

/// Records on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Records<'a> {
    /// The source has looked at its log up to here.
    pub(super) through: Position,
    bytes: &'a [u8],
}

/// The body of a frame of records, compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compressed<'a> {
    algorithm: u8,
    /// Of the decompressed body.
    size: u32,
    bytes: &'a [u8],
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentRecord<'a> {
    /// Its place in the log of the source.
    pub(crate) position: Position,
    pub(crate) kind: RecordKind,
    pub(crate) message_type: u8,
    pub(crate) bookmark: Bookmark,
    pub(crate) expiration_s: Option<u32>,
    pub(crate) topic: &'a str,
    pub(crate) correlation_id: &'a [u8],
    pub(crate) attributes: Attributes<'a>,
    pub(crate) data: &'a [u8],
}

impl Frame<'_> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let begin = begin_frame(out, self.kind());
        match self {
            Frame::Hello(hello) => {
                out.extend_from_slice(&hello.version.to_le_bytes());
                for text in [hello.instance, hello.group, hello.destination, hello.destination_group] {
                    put_text(out, text);
                }
                put_u64(out, hello.started_ns);
                put_mark(out, hello.mark);
                put_u32(out, hello.topics.len() as u32);
                for Offered { topic, message_type, key } in &hello.topics {
                    [topic, message_type, key].into_iter().for_each(|text| put_text(out, text));
                }
                put_u32(out, hello.excluded.len() as u32);
                hello.excluded.iter().for_each(|text| put_text(out, text));
            }
            Frame::Welcome(welcome) => {
                out.extend_from_slice(&welcome.version.to_le_bytes());
                put_text(out, welcome.instance);
                put_text(out, welcome.group);
                put_u64(out, welcome.started_ns);
                out.push(welcome.has_mark.into());
                out.push(welcome.sends_back.into());
            }
            Frame::Refused { reason } | Frame::Ended { reason } => put_text(out, cut(reason)),
            Frame::Records(records) => {
                put_u64(out, records.through.get());
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
            Frame::Heartbeat | Frame::CaughtUp => (),
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
            Frame::CaughtUp => CAUGHT_UP,
            Frame::Ended { .. } => ENDED,
        }
    }
}

/// The frame at the front of `bytes` and its size; `None` when it has not arrived completely.
pub(super) fn next_frame(bytes: &[u8], size_max: usize) -> Result<Option<(Frame<'_>, usize)>, BadFrame> {
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
        CAUGHT_UP => Frame::CaughtUp,
        ENDED => Frame::Ended { reason: take_text(body)? },
        _ => return Err(UNKNOWN_KIND),
    };
    if !body.is_empty() {
        return Err(BadFrame("bytes after the last field"));
    }
    Ok(Some((frame, 4 + size)))
}

fn take_hello<'a>(body: &mut &'a [u8]) -> Result<Hello<'a>, BadFrame> {
    let mut hello = Hello {
        version: take_u16(body)?,
        instance: take_text(body)?,
        group: take_text(body)?,
        destination: take_text(body)?,
        destination_group: take_text(body)?,
        started_ns: take_u64(body)?,
        mark: take_mark(body)?,
        ..Hello::default()
    };
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
    if excluded_count as usize > CHECKS.len() {
        return Err(BadFrame("more excluded checks than there are"));
    }
    for _ in 0..excluded_count {
        hello.excluded.push(take_text(body)?);
    }
    Ok(hello)
}

/// The size of the frame at the front of `bytes`, as far as it has arrived. It is not checked.
pub(super) fn announced_size(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk::<4>().map(|size| u32::from_le_bytes(*size) as usize)
}

/// The body of a frame of records.
pub(super) fn take_records(mut body: &[u8]) -> Result<Records<'_>, BadFrame> {
    let through = Position::new(take_u64(&mut body)?);
    Ok(Records { through, bytes: body })
}

impl Compressed<'_> {
    /// The body of a frame of records, which has at most `size_max` bytes.
    pub(super) fn decompress(self, size_max: usize) -> Result<Vec<u8>, BadFrame> {
        decompress(self.algorithm, self.bytes, self.size as usize, size_max)
    }
}

impl<'a> Records<'a> {
    /// The records after the first `done` bytes, in their order, each with the number of bytes up to its end. Ends after the first bytes
    /// that are not a record.
    pub(super) fn each_after(
        self,
        done: usize,
    ) -> impl Iterator<Item = Result<(SentRecord<'a>, usize), BadFrame>> {
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

fn take_record<'a>(body: &mut &'a [u8]) -> Result<SentRecord<'a>, BadFrame> {
    let position = Position::new(take_u64(body)?);
    let kind = RecordKind::from_number(take_u8(body)?).ok_or(BadFrame("the kind of a record"))?;
    let message_type = take_u8(body)?;
    let bookmark = Bookmark::new(PublisherId::new(take_u64(body)?), take_u64(body)?);
    let expiration_s = match take_u8(body)? {
        0 => None,
        _ => Some(take_u32(body)?),
    };
    let topic = take_text(body)?;
    let correlation_id = take_bytes(body)?;
    let attributes =
        Attributes::from_bytes(take_bytes(body)?).ok_or(BadFrame("the attributes of a record"))?;
    let size = take_u32(body)? as usize;
    let data = take(body, size)?;
    if bookmark.sequence == 0 || position == Position::ZERO {
        return Err(BadFrame("a record without a number"));
    }
    Ok(SentRecord {
        position,
        kind,
        message_type,
        bookmark,
        expiration_s,
        topic,
        correlation_id,
        attributes,
        data,
    })
}

/// Makes `records` frames.
pub(super) struct RecordsWriter {
    begin: usize,
    /// Bytes of the frame so far.
    pub(super) size: usize,
}

impl RecordsWriter {
    pub(super) fn begin(out: &mut Vec<u8>) -> Self {
        let begin = begin_frame(out, RECORDS);
        put_u64(out, 0);
        RecordsWriter { begin, size: 0 }
    }

    pub(super) fn put(&mut self, record: &Record<'_>, out: &mut Vec<u8>) {
        let before = out.len();
        put_u64(out, record.position.get());
        out.extend_from_slice(&[record.kind as u8, record.message_type]);
        put_u64(out, record.publisher.get());
        put_u64(out, record.sequence);
        out.push(record.expiration_s.is_some().into());
        record.expiration_s.into_iter().for_each(|seconds| put_u32(out, seconds));
        put_text(out, record.topic);
        put_bytes(out, record.correlation_id);
        put_bytes(out, record.attributes.for_other_instances().as_bytes());
        put_u32(out, record.data.len() as u32);
        out.extend_from_slice(record.data);
        self.size += out.len() - before;
    }

    /// Ends the frame. With a compression, a smaller frame takes its place.
    pub(super) fn end(self, through: Position, compression: Compression, out: &mut Vec<u8>) {
        let at = self.begin + 5;
        out[at..at + 8].copy_from_slice(&through.get().to_le_bytes());
        if let Some((algorithm, bytes)) = compress(compression, &out[at..]) {
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

/// Of a record every part that is written in this way has at most 65,535 bytes.
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
    let (position, publisher, sequence) = mark.map_or((0, 0, 0), |mark| {
        (mark.position.get(), mark.bookmark.publisher.get(), mark.bookmark.sequence)
    });
    [position, publisher, sequence].into_iter().for_each(|number| put_u64(out, number));
}

fn take_mark(body: &mut &[u8]) -> Result<Option<Mark>, BadFrame> {
    let (position, publisher, sequence) = (take_u64(body)?, take_u64(body)?, take_u64(body)?);
    let bookmark = Bookmark::new(PublisherId::new(publisher), sequence);
    Ok((position > 0).then_some(Mark { position: Position::new(position), bookmark }))
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

#[cfg(test)]
mod tests {
    use super::*;
    use quire_journal::Timestamp;

    fn record() -> Record<'static> {
        Record {
            position: Position::new(7),
            kind: RecordKind::Publish,
            message_type: 1,
            publisher: PublisherId::new(3),
            sequence: 4,
            timestamp: Timestamp::default(),
            topic: "orders",
            correlation_id: b"c",
            expiration_s: Some(9),
            attributes: Attributes::NONE,
            data: b"{}",
        }
    }

    /// Every kind of frame, with its name in the golden file.
    fn examples() -> Vec<(&'static str, Vec<u8>)> {
        let mark = Some(Mark { position: Position::new(2), bookmark: Bookmark::new(PublisherId::new(1), 5) });
        let hello = Hello {
            version: 1,
            instance: "a",
            group: "g",
            destination: "b",
            destination_group: "",
            started_ns: 11,
            mark,
            topics: vec![Offered { topic: "orders", message_type: "json", key: "/id" }],
            excluded: vec!["key"],
        };
        let welcome = Welcome { version: 1, instance: "b", group: "b", has_mark: true, ..Welcome::default() };
        let frames = [
            ("hello", Frame::Hello(hello)),
            ("welcome", Frame::Welcome(welcome)),
            ("refused", Frame::Refused { reason: "no" }),
            ("acknowledged", Frame::Acknowledged { through: Position::new(9), hops: 1, mark }),
            ("heartbeat", Frame::Heartbeat),
            ("caught_up", Frame::CaughtUp),
            ("ended", Frame::Ended { reason: "no" }),
        ];
        let mut examples: Vec<_> = frames
            .iter()
            .map(|(name, frame)| {
                let mut bytes = Vec::new();
                frame.encode(&mut bytes);
                assert_eq!(next_frame(&bytes, 1000), Ok(Some((frame.clone(), bytes.len()))));
                (*name, bytes)
            })
            .collect();
        let mut bytes = Vec::new();
        let mut writer = RecordsWriter::begin(&mut bytes);
        writer.put(&record(), &mut bytes);
        writer.end(Position::new(8), Compression::None, &mut bytes);
        let mut compressed = Vec::new();
        let mut writer = RecordsWriter::begin(&mut compressed);
        (0..20).for_each(|_| writer.put(&record(), &mut compressed));
        writer.end(Position::new(8), Compression::Lz4, &mut compressed);
        examples.push(("compressed", compressed));
        examples.push(("records", bytes));
        examples
    }

    #[test]
    fn records_arrive_as_they_were_sent() {
        let (_, bytes) = examples().pop().unwrap_or_default();
        let Ok(Some((Frame::Records(records), size))) = next_frame(&bytes, 1000) else {
            panic!("no records")
        };
        assert_eq!((size, records.through), (bytes.len(), Position::new(8)));
        let found: Vec<_> = records.each_after(0).map(|record| record.map(|(record, _)| record)).collect();
        let record = record();
        let expected = SentRecord {
            position: record.position,
            kind: record.kind,
            message_type: 1,
            bookmark: record.bookmark(),
            expiration_s: Some(9),
            topic: "orders",
            correlation_id: b"c",
            attributes: Attributes::NONE,
            data: b"{}",
        };
        assert_eq!(found, [Ok(expected)]);
    }

    /// An encoder and a decoder that drift together pass every round trip, and fail here.
    #[test]
    fn every_frame_has_the_bytes_of_the_golden_file() {
        let golden = include_str!("../../tests/golden/link-frames.txt");
        let golden = golden.lines().filter(|line| !line.starts_with('#'));
        let golden: Vec<(&str, Vec<u8>)> = golden
            .map(|line| {
                let (name, digits) = line.split_once(' ').unwrap();
                let digits = digits.replace(' ', "");
                let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
                (name, (0..digits.len()).step_by(2).map(byte).collect())
            })
            .collect();
        for (name, bytes) in examples() {
            let expected = golden.iter().find(|(key, _)| *key == name);
            let expected = expected.map(|(_, bytes)| &bytes[..]);
            // Another version of the library may compress in another way, and must read what this one has written.
            if name == "compressed" {
                let Ok(Some((Frame::Compressed(read), _))) = next_frame(expected.unwrap_or_default(), 1000)
                else {
                    panic!("no compressed frame: {bytes:02x?}")
                };
                let Ok(Some((Frame::Compressed(made), _))) = next_frame(&bytes, 1000) else { panic!() };
                assert_eq!(read.decompress(10_000), made.decompress(10_000));
                let mut again = Vec::new();
                Frame::Compressed(read).encode(&mut again);
                assert_eq!(Some(&again[..]), expected);
                continue;
            }
            assert_eq!(expected, Some(&bytes[..]), "{name}: {bytes:02x?}");
        }
        for kind in 0..=255 {
            let is_known = next_frame(&[1, 0, 0, 0, kind], 1000) != Err(BadFrame("an unknown kind"));
            let is_golden = golden.iter().any(|(_, bytes)| bytes[4] == kind);
            assert_eq!(is_known, is_golden, "the kind {kind}");
        }
    }

    #[test]
    fn a_frame_that_is_cut_short_is_waited_for_and_a_changed_one_never_panics() {
        for (_, bytes) in examples() {
            for size in 0..bytes.len() {
                assert_eq!(next_frame(&bytes[..size], 1000), Ok(None));
            }
            for at in 0..bytes.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    match next_frame(&changed, 1000) {
                        Ok(Some((Frame::Records(records), _))) => records.each_after(0).for_each(drop),
                        Ok(Some((Frame::Compressed(compressed), _))) => {
                            if let Ok(body) = compressed.decompress(10_000) {
                                let records = take_records(&body).into_iter();
                                records.flat_map(|records| records.each_after(0)).for_each(drop);
                            }
                        }
                        _ => (),
                    }
                }
            }
        }
    }

    #[test]
    fn a_frame_above_the_limit_is_refused_before_it_arrives() {
        assert!(next_frame(&[0xff, 0xff, 0, 0], 1000).is_err());
    }
}
