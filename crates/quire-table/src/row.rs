//! One row, and its bytes in memory.
//!
//! - flags (1 byte): which of the optional parts exist, and the sizes of two numbers;
//! - only with a stamp: 0 (1 byte), the time of the stamp (8 bytes), the number of its instance (2
//!   bytes), the number of its publisher (4 bytes);
//! - size of the key (1 byte), of the data (1 to 4 bytes), and the position in the log (1 to 8
//!   bytes);
//! - time of the publish (8 bytes), end of the lifetime (0 or 8 bytes);
//! - size of the correlation id (0 or 4 bytes), size of the headers (0 or 4 bytes);
//! - correlation id, headers, key, data.
//!
//! Numbers are little endian.
//! A row of 300 bytes of data at a position below 16 million has 15 bytes before its key.

use std::ops::Range;

use quire_journal::{Headers, Position, Timestamp};

use crate::error::RowError;
use crate::key::KEY_SIZE_MAX;
use crate::stamp::RowStamp;

/// A record of a last-value topic: the newest message of a key. (In Rust, a record is one of the
/// log.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Its key: 1 to [`KEY_SIZE_MAX`] bytes.
    pub key: &'a [u8],
    /// The position of the message in the log; zero when the topic is not recorded.
    pub position: Position,
    /// When this instance received the message.
    pub timestamp: Timestamp,
    /// The order of the message; `None`: its stamp is the timestamp, and of this instance. The
    /// table sets it ([`PutOptions::change`](crate::PutOptions::change)).
    pub stamp: Option<RowStamp>,
    /// When its lifetime ends; `None` = never.
    pub expires: Option<Timestamp>,
    /// As it was published; empty when there is none.
    pub correlation_id: &'a [u8],
    /// As published.
    pub headers: Headers<'a>,
    /// The message. It is smaller than 4 GiB.
    pub data: &'a [u8],
}

const POSITION_SIZE: u8 = 0b0000_0111;
const HAS_EXPIRES: u8 = 0b0000_1000;
const HAS_CORRELATION_ID: u8 = 0b0001_0000;
const HAS_HEADERS: u8 = 0b0010_0000;
const DATA_SIZE_SHIFT: u8 = 6;

/// In place of the size of the key: a stamp precedes the size.
const HAS_STAMP: u8 = 0;

/// The most bytes before the correlation id.
const HEAD_SIZE_MAX: usize = 64;

/// The bytes of a row before its correlation id.
pub(crate) struct Head {
    bytes: [u8; HEAD_SIZE_MAX],
    size: usize,
}

impl Head {
    /// Makes the head of a row that [`Row::check`] accepts.
    pub fn new(row: &Row<'_>) -> Head {
        debug_assert_eq!(row.check(), Ok(()));
        let data_size = row.data.len() as u64;
        let position = row.position.get();
        let (position_bytes, data_size_bytes) = (bytes_of(position), bytes_of(data_size));
        let mut flags = (position_bytes as u8 - 1) | (data_size_bytes as u8 - 1) << DATA_SIZE_SHIFT;
        let mut head = Head { bytes: [0; HEAD_SIZE_MAX], size: 1 };
        if let Some(stamp) = row.stamp {
            head.put(HAS_STAMP.into(), 1);
            head.put(stamp.time.as_ns(), 8);
            head.put(stamp.instance.into(), 2);
            head.put(stamp.publisher.into(), 4);
        }
        head.put(row.key.len() as u64, 1);
        head.put(data_size, data_size_bytes);
        head.put(position, position_bytes);
        head.put(row.timestamp.as_ns(), 8);
        if let Some(expires) = row.expires {
            flags |= HAS_EXPIRES;
            head.put(expires.as_ns(), 8);
        }
        let optional = [(HAS_CORRELATION_ID, row.correlation_id), (HAS_HEADERS, row.headers.as_bytes())];
        for (flag, bytes) in optional {
            if !bytes.is_empty() {
                flags |= flag;
                head.put(bytes.len() as u64, 4);
            }
        }
        head.bytes[0] = flags;
        head
    }

    /// Appends the lowest bytes of a number. All 8 are copied, because a copy of a known size is
    /// the fastest. The next number replaces the rest.
    fn put(&mut self, number: u64, size: usize) {
        self.bytes[self.size..self.size + 8].copy_from_slice(&number.to_le_bytes());
        self.size += size;
    }

    /// The bytes of the row, in parts that follow each other.
    pub fn parts<'a>(&'a self, row: &Row<'a>) -> [&'a [u8]; 5] {
        [&self.bytes[..self.size], row.correlation_id, row.headers.as_bytes(), row.key, row.data]
    }
}

/// The number of bytes that a number needs, at least 1.
fn bytes_of(number: u64) -> usize {
    (8 - number.leading_zeros() as usize / 8).max(1)
}

/// Reads numbers from the front of bytes.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    /// Reads 1 to 8 bytes.
    #[inline]
    fn take(&mut self, size: usize) -> Option<u64> {
        // Reads 8 bytes, and clears the upper ones: a copy of a known size is the fastest.
        if let Some(bytes) = self.0.first_chunk() {
            self.0 = &self.0[size..];
            return Some(u64::from_le_bytes(*bytes) & (u64::MAX >> (64 - 8 * size)));
        }
        let (bytes, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        let mut number = [0; 8];
        number[..size].copy_from_slice(bytes);
        Some(u64::from_le_bytes(number))
    }
}

/// The numbers at the front of a row, which determine the offsets of its other parts.
struct Numbered {
    flags: u8,
    position: Position,
    timestamp: Timestamp,
    stamp: Option<RowStamp>,
    expires: Option<Timestamp>,
    correlation_id: Range<usize>,
    headers: Range<usize>,
    key: Range<usize>,
    data: Range<usize>,
}

impl Numbered {
    /// Reads the numbers. The offsets may be after the end of the bytes.
    #[inline]
    fn read(bytes: &[u8]) -> Option<Numbered> {
        let mut numbers = Numbers(bytes);
        let flags = numbers.take(1)? as u8;
        let mut key_size = numbers.take(1)? as usize;
        let mut stamp = None;
        if key_size == usize::from(HAS_STAMP) {
            stamp = Some(read_stamp(&mut numbers)?);
            key_size = numbers.take(1)? as usize;
        }
        let data_size = numbers.take(usize::from(flags >> DATA_SIZE_SHIFT) + 1)? as usize;
        let position = Position(numbers.take(usize::from(flags & POSITION_SIZE) + 1)?);
        let timestamp = Timestamp(numbers.take(8)?);
        let has = |flag: u8| flags & flag != 0;
        let expires = if has(HAS_EXPIRES) { Some(Timestamp(numbers.take(8)?)) } else { None };
        let correlation_size = if has(HAS_CORRELATION_ID) { numbers.take(4)? as usize } else { 0 };
        let headers_size = if has(HAS_HEADERS) { numbers.take(4)? as usize } else { 0 };
        // The sum of four numbers of 32 bits does not overflow.
        let mut end = bytes.len() - numbers.0.len();
        let mut next = |size: usize| {
            end += size;
            end - size..end
        };
        let (correlation_id, headers) = (next(correlation_size), next(headers_size));
        let (key, data) = (next(key_size), next(data_size));
        Some(Numbered { flags, position, timestamp, stamp, expires, correlation_id, headers, key, data })
    }

    /// For bytes that were made by [`Head::parts`].
    #[inline]
    fn of(bytes: &[u8]) -> Numbered {
        Numbered::read(bytes).expect(MADE)
    }
}

#[cold]
fn read_stamp(numbers: &mut Numbers<'_>) -> Option<RowStamp> {
    let time = Timestamp(numbers.take(8)?);
    Some(RowStamp { time, instance: numbers.take(2)? as u16, publisher: numbers.take(4)? as u32 })
}

/// The reason why the bytes of a page are a row.
const MADE: &str = "the bytes were made from a row";

impl<'a> Row<'a> {
    /// Whether a table can have the row.
    ///
    /// # Errors
    /// The key is empty or longer than [`KEY_SIZE_MAX`], or the data is not smaller than 4 GiB.
    pub(crate) fn check(&self) -> Result<(), RowError> {
        let (size, data_size) = (self.key.len(), self.data.len());
        if !(1..=KEY_SIZE_MAX).contains(&size) {
            return Err(RowError::KeySize { size });
        }
        u32::try_from(data_size).map(drop).map_err(|_| RowError::DataSize { size: data_size })
    }

    /// The row at the front of these bytes, and its size. `None` when they do not begin with a row.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<(Row<'a>, usize)> {
        let read = Numbered::read(bytes)?;
        let end = read.data.end;
        let bytes = bytes.get(..end)?;
        let headers = if read.flags & HAS_HEADERS == 0 {
            Headers::NONE
        } else {
            Headers::from_bytes(&bytes[read.headers])?
        };
        let row = Row {
            key: &bytes[read.key],
            position: read.position,
            timestamp: read.timestamp,
            stamp: read.stamp,
            expires: read.expires,
            correlation_id: &bytes[read.correlation_id],
            headers,
            data: &bytes[read.data],
        };
        (!row.key.is_empty()).then_some((row, end))
    }

    /// The row at the front of bytes that were made by [`Head::parts`].
    pub(crate) fn of(bytes: &'a [u8]) -> Row<'a> {
        Row::decode(bytes).expect(MADE).0
    }

    /// The size of the row at the front of these bytes. Bytes as for [`of`](Self::of).
    #[inline]
    pub(crate) fn size_of(bytes: &[u8]) -> usize {
        Numbered::of(bytes).data.end
    }

    /// The key of the row at the front of these bytes, without the rest. Bytes as for
    /// [`of`](Self::of).
    #[inline]
    pub(crate) fn key_of(bytes: &[u8]) -> &[u8] {
        &bytes[Numbered::of(bytes).key]
    }

    /// The end of its lifetime, as [`key_of`](Self::key_of).
    #[inline]
    pub(crate) fn expires_of(bytes: &[u8]) -> Option<Timestamp> {
        if bytes[0] & HAS_EXPIRES == 0 { None } else { Numbered::of(bytes).expires }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use quire_journal::{HeaderValue, HeadersBuffer};

    use super::*;

    fn encoded(row: &Row<'_>) -> Vec<u8> {
        Head::new(row).parts(row).concat()
    }

    #[test]
    fn a_row_has_the_bytes_of_its_page() {
        let row = Row {
            key: b"k1",
            position: Position(258),
            timestamp: Timestamp(7),
            stamp: None,
            expires: None,
            correlation_id: b"",
            headers: Headers::NONE,
            data: b"{}",
        };
        let bytes = encoded(&row);
        assert_eq!(bytes, [&[1, 2, 2, 2, 1, 7, 0, 0, 0, 0, 0, 0, 0][..], b"k1{}"].concat());
        let headers = HeadersBuffer::new([("h", HeaderValue::Text("v"))]).unwrap();
        let headers = headers.as_headers();
        let row = Row { expires: Some(Timestamp(9)), correlation_id: b"c", headers, ..row };
        let mut expected = vec![0b0011_1001, 2, 2, 2, 1];
        expected.extend([7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 6, 0, 0, 0]);
        expected.extend(b"c\x01h\x00\x01\x00vk1{}");
        assert_eq!(encoded(&row), expected);
        let stamp = Some(RowStamp { time: Timestamp(3), instance: 258, publisher: 7 });
        expected.splice(1..1, [0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 7, 0, 0, 0]);
        assert_eq!(encoded(&Row { stamp, ..row }), expected);
    }

    proptest! {
        #[test]
        fn a_row_is_read_as_it_was_written(
            key in vec(any::<u8>(), 1..=255),
            position in prop_oneof![0u64..300, any::<u64>()],
            timestamp in any::<u64>(),
            stamp in proptest::option::of(any::<(u64, u16, u32)>()),
            expires in any::<Option<u64>>(),
            correlation_id in vec(any::<u8>(), 0..10),
            header in proptest::option::of(".{0,9}"),
            data in prop_oneof![vec(any::<u8>(), 0..10), vec(any::<u8>(), 250..260), vec(any::<u8>(), 65_530..65_540)],
        ) {
            let list = header.iter().map(|value| ("name", HeaderValue::Text(value)));
            let headers = HeadersBuffer::new(list).unwrap();
            let row = Row {
                key: &key,
                position: Position(position),
                timestamp: Timestamp(timestamp),
                stamp: stamp.map(|(time, instance, publisher)| RowStamp {
                    time: Timestamp(time),
                    instance,
                    publisher,
                }),
                expires: expires.map(Timestamp),
                correlation_id: &correlation_id,
                headers: headers.as_headers(),
                data: &data,
            };
            let mut bytes = encoded(&row);
            let size = bytes.len();
            prop_assert_eq!(Row::decode(&bytes), Some((row, size)));
            prop_assert_eq!((Row::key_of(&bytes), Row::expires_of(&bytes)), (row.key, row.expires));
            prop_assert_eq!(Row::size_of(&bytes), size);
            prop_assert_eq!(Row::decode(&bytes[..size - 1]), None);
            bytes.push(0);
            prop_assert_eq!(Row::decode(&bytes).map(|(_, size)| size), Some(size));
        }

        #[test]
        fn any_bytes_are_a_row_or_refused(bytes in vec(prop_oneof![0u8..8, any::<u8>()], 0..60)) {
            if let Some((row, size)) = Row::decode(&bytes) {
                prop_assert!(size <= bytes.len());
                prop_assert!(!row.key.is_empty());
            }
        }
    }
}
