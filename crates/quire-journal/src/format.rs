//! The bytes of a segment: its header, batches and records (`docs/journal-format.md`).
//!
//! A length is used only after the checksum of its header was checked. The checksum of a header
//! covers the segment number and the offset of the header. So zeros, a reused file or a misplaced
//! block are never taken for data.

use crate::knowledge::Step;
use crate::record::attributes::Attributes;
use crate::record::deleted::DeletedKeys;
use crate::record::{Bookmark, NewRecord, Position, PublisherId, Record, RecordKind};
use quire_types::Timestamp;

/// The version of the format that this build writes. It reads the earlier ones, too.
pub(crate) const VERSION: u32 = 8;

/// The first version whose records can name their run. Earlier ones are not part of the sums.
pub(crate) const RUNS_SINCE: u32 = 6;

/// The versions that this build reads, as text for an error.
pub(crate) const READABLE_VERSIONS: &str = "versions 1, 2, 3, 4, 5, 6, 7 and 8";

/// Where the first batch of a segment begins, in bytes.
pub(crate) const SEGMENT_HEADER_SIZE: u64 = 4096;

/// The used part of the segment header, in bytes.
pub(crate) const SEGMENT_HEADER_FIELDS: usize = 48;

/// Bytes of a batch header.
pub(crate) const BATCH_HEADER_SIZE: usize = 64;

/// A batch is closed when its records reach this many bytes. A bookmark is then found in
/// microseconds, and headers have a negligible cost. One larger record makes a larger batch.
pub(crate) const BATCH_BODY_TARGET: usize = 64 * 1024;

/// Reserved at the end of every segment, for the marker of a clean stop and the marker of the next
/// start.
pub(crate) const SEGMENT_RESERVE: u64 = 2 * BATCH_HEADER_SIZE as u64;

/// Batches begin at multiples of this.
pub(crate) const ALIGNMENT: usize = 8;

/// Flag of a batch without records: the journal was closed cleanly after this.
pub(crate) const FLAG_CLOSED: u32 = 1;
/// Flag of a batch without records: the journal was opened again after a clean stop.
pub(crate) const FLAG_OPENED: u32 = 2;

const SEGMENT_MAGIC: [u8; 8] = *b"QUIREJNL";
const BATCH_MAGIC: [u8; 4] = *b"QBAT";
const RECORD_HEADER_SIZE: usize = 40;
const FLAG_EXPIRATION: u8 = 1;
/// The record was appended below the highest sequence of its publisher.
const FLAG_LATE: u8 = 2;
/// Where the flags are in a record.
const FLAGS_AT: usize = 9;

/// The largest record, in bytes with its header. Sizes have 32 bits on disk.
pub(crate) const RECORD_SIZE_MAX: usize = 1 << 30;

/// The largest body of a batch, in bytes. A record that is larger than the target size gets a
/// separate batch.
pub(crate) const BATCH_BODY_MAX: usize = RECORD_SIZE_MAX;

/// The highest position. It is far above the positions of any log. It is so far below the largest
/// number that adding a count cannot overflow.
pub(crate) const POSITION_MAX: u64 = 1 << 62;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The version of the format of the segment.
    pub version: u32,
    pub number: u32,
    /// The first position that the segment may hold.
    pub first: Position,
    /// Size of the file before it was compressed, in bytes.
    pub size: u64,
    /// Checksum of the last batch header of the segment before; 0 for the first.
    pub previous: u32,
    /// Where the frame table begins when the segment is compressed, in bytes; 0 when it is not.
    pub table: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// All bytes are zero: a prepared segment that was never used.
    Unused,
    Version(u32),
    Bad(&'static str),
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_FIELDS] {
        let mut bytes = [0; SEGMENT_HEADER_FIELDS];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.size.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.previous.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.table.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let Some(bytes) = bytes.first_chunk::<SEGMENT_HEADER_FIELDS>() else {
            return Err(HeaderError::Bad("the segment header is cut short"));
        };
        if bytes.iter().all(|byte| *byte == 0) {
            return Err(HeaderError::Unused);
        }
        if bytes[..8] != SEGMENT_MAGIC {
            return Err(HeaderError::Bad("not a journal segment"));
        }
        if crc32c::crc32c(&bytes[..44]) != u32_at(bytes, 44) {
            return Err(HeaderError::Bad("the checksum of the segment header does not match"));
        }
        let version = u32_at(bytes, 8);
        if !(1..=VERSION).contains(&version) {
            return Err(HeaderError::Version(version));
        }
        let header = SegmentHeader {
            version,
            number: u32_at(bytes, 12),
            first: Position(u64_at(bytes, 16)),
            size: u64_at(bytes, 24),
            previous: u32_at(bytes, 32),
            table: u64_at(bytes, 36),
        };
        if !(1..=POSITION_MAX).contains(&header.first.0) || header.size < SEGMENT_HEADER_SIZE {
            return Err(HeaderError::Bad("the segment header contradicts itself"));
        }
        Ok(header)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    /// Checksum of this header. The next batch contains it as `previous`.
    pub checksum: u32,
    pub body_checksum: u32,
    pub body_size: u32,
    pub count: u32,
    pub flags: u32,
    pub segment: u32,
    /// Checksum of the header of the batch before: the chain.
    pub previous: u32,
    /// Where the batch begins in the segment, in bytes.
    pub offset: u64,
    pub first: Position,
    pub first_timestamp: Timestamp,
    /// The highest position that was on stable storage when this batch was written.
    pub synced: Position,
}

impl BatchHeader {
    /// Bytes of the whole batch, including its padding.
    pub fn batch_size(&self) -> usize {
        batch_size(self.body_size as usize)
    }

    /// The last position in the batch; for a marker, the position before it. It cannot overflow,
    /// because decoding has checked both numbers.
    pub fn last(&self) -> Position {
        Position(self.first.0 + u64::from(self.count) - 1)
    }

    /// Whether it has only flags that the format defines.
    pub fn has_defined_flags(&self) -> bool {
        self.flags & !(FLAG_CLOSED | FLAG_OPENED) == 0
    }

    /// The bytes, with the checksum filled in; `self.checksum` is ignored.
    pub fn encode(&self) -> ([u8; BATCH_HEADER_SIZE], u32) {
        let mut bytes = [0; BATCH_HEADER_SIZE];
        bytes[..4].copy_from_slice(&BATCH_MAGIC);
        bytes[8..12].copy_from_slice(&self.body_checksum.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.body_size.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.count.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.flags.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.segment.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.previous.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.offset.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.first_timestamp.0.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.synced.0.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    /// The header at `offset` of `segment`. Fails with the reason for any other bytes, and for a
    /// valid header of another segment or offset.
    pub fn decode(bytes: &[u8], segment: u32, offset: u64) -> Result<Self, &'static str> {
        let bytes = bytes.first_chunk::<BATCH_HEADER_SIZE>().ok_or("the batch header is cut short")?;
        if bytes[..4] != BATCH_MAGIC {
            return Err("no batch begins here");
        }
        let checksum = u32_at(bytes, 4);
        if crc32c::crc32c(&bytes[8..]) != checksum {
            return Err("the checksum of the batch header does not match");
        }
        let header = BatchHeader {
            checksum,
            body_checksum: u32_at(bytes, 8),
            body_size: u32_at(bytes, 12),
            count: u32_at(bytes, 16),
            flags: u32_at(bytes, 20),
            segment: u32_at(bytes, 24),
            previous: u32_at(bytes, 28),
            offset: u64_at(bytes, 32),
            first: Position(u64_at(bytes, 40)),
            first_timestamp: Timestamp(u64_at(bytes, 48)),
            synced: Position(u64_at(bytes, 56)),
        };
        if header.segment != segment || header.offset != offset {
            return Err("the batch belongs to another place");
        }
        let records_fit = u64::from(header.count) * RECORD_HEADER_SIZE as u64 <= u64::from(header.body_size);
        if !(1..=POSITION_MAX).contains(&header.first.0)
            || header.body_size as usize > BATCH_BODY_MAX
            || (header.count == 0) != (header.body_size == 0)
            || !records_fit
        {
            return Err("the batch header contradicts itself");
        }
        Ok(header)
    }
}

/// Bytes that a batch with this body takes in the segment.
pub(crate) const fn batch_size(body_size: usize) -> usize {
    (BATCH_HEADER_SIZE + body_size).next_multiple_of(ALIGNMENT)
}

/// Bytes that the record takes in a batch.
#[inline]
pub(crate) fn record_size(record: &NewRecord<'_>) -> usize {
    let attributes = record.attributes.as_bytes();
    RECORD_HEADER_SIZE
        + record.topic.len()
        + record.correlation_id.len()
        + attributes.len()
        + record.data.len()
}

/// Appends the record to the body of a batch, with this sequence and this time. `size` is that of
/// [`record_size`]. The caller has checked it and the sizes of the parts.
pub(crate) fn put_record(
    body: &mut Vec<u8>,
    record: &NewRecord<'_>,
    sequence: u64,
    timestamp: Timestamp,
    size: usize,
) {
    make_room(body, size);
    let attributes = record.attributes.as_bytes();
    // As one array, because every append to the body checks for room.
    let mut head = [0; RECORD_HEADER_SIZE];
    put_at(&mut head, 0, (size as u32).to_le_bytes());
    head[4] = record.kind as u8;
    head[5] = record.message_type;
    put_at(&mut head, 6, (record.topic.len() as u16).to_le_bytes());
    head[8] = record.correlation_id.len() as u8;
    head[FLAGS_AT] = if record.expiration_s.is_some() { FLAG_EXPIRATION } else { 0 };
    put_at(&mut head, 10, (attributes.len() as u16).to_le_bytes());
    put_at(&mut head, 12, record.expiration_s.unwrap_or(0).to_le_bytes());
    put_at(&mut head, 16, timestamp.0.to_le_bytes());
    put_at(&mut head, 24, record.publisher.0.to_le_bytes());
    put_at(&mut head, 32, sequence.to_le_bytes());
    body.extend_from_slice(&head);
    body.extend_from_slice(record.topic.as_bytes());
    // Most records have neither. Even a copy of no bytes costs a call.
    if !record.correlation_id.is_empty() {
        body.extend_from_slice(record.correlation_id);
    }
    if !attributes.is_empty() {
        body.extend_from_slice(attributes);
    }
    body.extend_from_slice(record.data);
}

/// Puts a number in its place: a store, also in a build that does not inline a copy.
#[inline]
fn put_at<const N: usize>(head: &mut [u8; RECORD_HEADER_SIZE], at: usize, number: [u8; N]) {
    if let Some((place, _)) = head[at..].split_first_chunk_mut() {
        *place = number;
    }
}

/// Marks the record of `size` bytes at the end of the body as late.
pub(crate) fn mark_late(body: &mut [u8], size: usize) {
    let flags = body.len() - size + FLAGS_AT;
    body[flags] |= FLAG_LATE;
}

/// Makes room for `size` more bytes. A body that has become large gets the space of a full one at
/// once. So it is copied only once more, and no body takes more than four times its bytes.
#[inline]
fn make_room(body: &mut Vec<u8>, size: usize) {
    if body.capacity() - body.len() < size {
        grow(body, size);
    }
}

#[cold]
#[inline(never)]
fn grow(body: &mut Vec<u8>, size: usize) {
    if body.len() >= BATCH_BODY_TARGET / 4 {
        body.reserve_exact(size.max(BATCH_BODY_TARGET.saturating_sub(body.len())));
    } else {
        body.reserve(size);
    }
}

/// A record in a body. It was not yet checked that its topic is UTF-8.
pub(crate) struct RawRecord<'a> {
    head: &'a [u8; RECORD_HEADER_SIZE],
    pub kind: RecordKind,
    pub topic: &'a [u8],
    correlation_id: &'a [u8],
    attributes: Attributes<'a>,
    data: &'a [u8],
}

impl RawRecord<'_> {
    /// The part of which the knowledge of publishers is made.
    pub fn step(&self) -> Step {
        let bookmark = Bookmark { publisher: self.publisher(), sequence: self.sequence() };
        Step::new(bookmark, self.attributes, self.is_late())
    }

    #[inline]
    pub fn is_late(&self) -> bool {
        self.head[FLAGS_AT] & FLAG_LATE != 0
    }

    pub fn publisher(&self) -> PublisherId {
        PublisherId(u64_at(self.head, 24))
    }

    pub fn sequence(&self) -> u64 {
        u64_at(self.head, 32)
    }

    pub fn timestamp(&self) -> Timestamp {
        Timestamp(u64_at(self.head, 16))
    }

    /// Whether its data is a list of keys, if it is a delete.
    #[inline]
    pub fn has_valid_keys(&self) -> bool {
        self.kind != RecordKind::Delete || DeletedKeys::from_bytes(self.data).is_some()
    }
}

/// The record at the front of `body`, and the bytes after it. `None` when the bytes are not a
/// record. With a matching checksum that is a bug of the writer; [`fault_of`] names it.
#[inline]
pub(crate) fn split_raw(body: &[u8]) -> Option<(RawRecord<'_>, &[u8])> {
    let head = body.first_chunk::<RECORD_HEADER_SIZE>()?;
    let (record, rest) = body.split_at_checked(u32_at(head, 0) as usize)?;
    let kind = RecordKind::from_number(head[4])?;
    let (topic, tail) = record
        .get(RECORD_HEADER_SIZE..)?
        .split_at_checked(usize::from(u16::from_le_bytes([head[6], head[7]])))?;
    let (correlation_id, tail) = tail.split_at_checked(usize::from(head[8]))?;
    // One comparison for both: most records have neither attributes nor an undefined flag.
    let (attributes, data) = match u32_at(head, 8) & !(0xff | u32::from(FLAG_EXPIRATION | FLAG_LATE) << 8) {
        0 => (Attributes::NONE, tail),
        _ => split_attributes(head, tail)?,
    };
    Some((RawRecord { head, kind, topic, correlation_id, attributes, data }, rest))
}

/// The attributes of a record and its data. `None` when the attributes are not valid, or a flag of
/// the record is not defined.
#[inline(never)]
fn split_attributes<'a>(
    head: &[u8; RECORD_HEADER_SIZE],
    tail: &'a [u8],
) -> Option<(Attributes<'a>, &'a [u8])> {
    let size = usize::from(u16::from_le_bytes([head[10], head[11]]));
    let (attributes, data) = tail.split_at_checked(size)?;
    let attributes = Attributes::from_bytes(attributes)?;
    (head[FLAGS_AT] & !(FLAG_EXPIRATION | FLAG_LATE) == 0).then_some((attributes, data))
}

/// Why the body of a batch with matching checksums does not contain the records that its header
/// counts.
#[cold]
pub(crate) fn fault_of(header: &BatchHeader, mut body: &[u8]) -> &'static str {
    if !header.has_defined_flags() {
        return "the batch has a flag that this version does not define";
    }
    for _ in 0..header.count {
        match split_raw(body) {
            Some((record, _)) if !record.has_valid_keys() => {
                return "the data of a delete is not a list of keys";
            }
            Some((_, rest)) => body = rest,
            None => match body.first_chunk::<RECORD_HEADER_SIZE>() {
                Some(head) if RecordKind::from_number(head[4]).is_none() => {
                    return "a record has a kind that this version does not define";
                }
                Some(head) if head[FLAGS_AT] & !(FLAG_EXPIRATION | FLAG_LATE) != 0 => {
                    return "a record has a flag that this version does not define";
                }
                Some(head) if head[10..12] != [0; 2] => {
                    return "a record has attributes that this version does not define";
                }
                _ => break,
            },
        }
    }
    "the batch does not hold the records that it counts"
}

/// The bytes after the record at the front of `body`. The caller has checked that there is a
/// record.
#[inline]
pub(crate) fn skip_record(body: &[u8]) -> Option<&[u8]> {
    body.get((u32_at(body.first_chunk::<RECORD_HEADER_SIZE>()?, 0) as usize).max(RECORD_HEADER_SIZE)..)
}

/// As [`split_raw`], whole.
#[inline]
pub(crate) fn split_record(body: &[u8], position: Position) -> Option<(Record<'_>, &[u8])> {
    let (raw, rest) = split_raw(body)?;
    let record = Record {
        position,
        kind: raw.kind,
        message_type: raw.head[5],
        publisher: raw.publisher(),
        sequence: raw.sequence(),
        timestamp: raw.timestamp(),
        topic: std::str::from_utf8(raw.topic).ok()?,
        correlation_id: raw.correlation_id,
        expiration_s: (raw.head[FLAGS_AT] & FLAG_EXPIRATION != 0).then(|| u32_at(raw.head, 12)),
        is_late: raw.is_late(),
        attributes: raw.attributes,
        data: raw.data,
    };
    Some((record, rest))
}

/// The number and the sequence of the first record in `body` with this publisher, and this sequence
/// or a higher one; reads no other part of the records before it.
pub(crate) fn find_record(body: &[u8], publisher: PublisherId, sequence: u64) -> Option<(u64, u64)> {
    let publisher = publisher.0.to_le_bytes();
    let mut rest = body;
    for number in 0.. {
        let head = rest.first_chunk::<RECORD_HEADER_SIZE>()?;
        if head[24..32] == publisher {
            let found = u64_at(head, 32);
            if found >= sequence {
                return Some((number, found));
            }
        }
        rest = skip_record(rest)?;
    }
    None
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_takes_the_space_of_a_full_one_when_it_has_become_large() {
        let data = [5; 512];
        let record = NewRecord {
            kind: RecordKind::Publish,
            message_type: 1,
            publisher: PublisherId(7),
            sequence: 1,
            timestamp: Timestamp(1),
            topic: "orders",
            correlation_id: b"",
            expiration_s: None,
            attributes: Attributes::NONE,
            data: &data,
        };
        let mut body = Vec::new();
        while body.len() + record_size(&record) <= BATCH_BODY_TARGET {
            put_record(&mut body, &record, 1, Timestamp(1), record_size(&record));
            assert!(body.capacity() <= 4 * body.len(), "{} bytes for {}", body.capacity(), body.len());
        }
        assert_eq!(body.capacity(), BATCH_BODY_TARGET);
    }
}
