//! The parts of a record other than its fixed fields, such as the key of the message, the source of
//! the record, headers and the run of its publisher (`docs/journal-format.md`, *Attributes*).
//! Without them, a record has no additional byte.

use crate::error::JournalError;
use crate::record::{Bookmark, Position};
use quire_types::{Headers, Timestamp};

const KEY: u8 = 1;
const SOURCE: u8 = 2;
const HEADERS: u8 = 3;
const NOT_BEFORE: u8 = 4;
const RECEIVED: u8 = 5;
const RUN: u8 = 6;
const FOLLOWS: u8 = 7;
const STAMP: u8 = 8;

/// The most bytes of the attributes of one record. Their size has 16 bits on disk.
pub(crate) const ATTRIBUTES_SIZE_MAX: usize = u16::MAX as usize;

/// The most bytes of the name of an instance or a group.
const NAME_SIZE_MAX: usize = u8::MAX as usize;

/// An instance that a record passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instance<'a> {
    /// Its name; 1 to 255 bytes.
    pub name: &'a str,
    /// The group that it is in, by default its own name; 1 to 255 bytes.
    pub group: &'a str,
}

/// The instances that a record passed before this one, oldest first. The first one received it from
/// a publisher, the last one sent it here. Empty for a record that was published here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstancePath<'a>(&'a [u8]);

impl<'a> InstancePath<'a> {
    /// The path of a record that was published here.
    pub const EMPTY: InstancePath<'static> = InstancePath(&[]);

    /// The path in these bytes, which [`InstancePath::as_bytes`] returned. `None` when they are not
    /// a path.
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes;
        while !rest.is_empty() {
            (_, rest) = split_instance(rest)?;
        }
        Some(InstancePath(bytes))
    }

    /// The path as it is encoded in a record.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether the record was published here.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The instances, oldest first.
    pub fn instances(self) -> impl Iterator<Item = Instance<'a>> {
        let mut rest = self.0;
        // The bytes were checked when the path was made.
        std::iter::from_fn(move || {
            let (instance, after) = split_instance(rest)?;
            rest = after;
            Some(instance)
        })
    }
}

/// The instance at the front of a path, and the bytes after it.
fn split_instance(bytes: &[u8]) -> Option<(Instance<'_>, &[u8])> {
    let (name, rest) = split_name(bytes)?;
    let (group, rest) = split_name(rest)?;
    let group = if group.is_empty() { name } else { group };
    (!name.is_empty()).then_some((Instance { name, group }, rest))
}

fn split_name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (size, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*size))?;
    Some((std::str::from_utf8(name).ok()?, rest))
}

/// A path that grows: the path of a record that is forwarded to another instance, and the instance
/// that sends it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstancePathBuffer(Vec<u8>);

impl InstancePathBuffer {
    /// Becomes a copy of the path. Uses its existing memory.
    pub fn copy_from(&mut self, path: InstancePath<'_>) {
        self.0.clear();
        self.0.extend_from_slice(path.0);
    }

    /// Adds the instance that the record passed last.
    ///
    /// # Errors
    /// [`JournalError::BadOption`] for a name that is empty or longer than 255 bytes.
    pub fn push(&mut self, instance: Instance<'_>) -> Result<(), JournalError> {
        let Instance { name, group } = instance;
        for (option, text) in [("instance", name), ("group", group)] {
            if !(1..=NAME_SIZE_MAX).contains(&text.len()) {
                let reason = format!("{} bytes, a name has 1 to {NAME_SIZE_MAX}", text.len());
                return Err(JournalError::BadOption { option, reason });
            }
        }
        for text in [name, if group == name { "" } else { group }] {
            self.0.push(text.len() as u8);
            self.0.extend_from_slice(text.as_bytes());
        }
        Ok(())
    }

    /// The path so far.
    pub fn as_path(&self) -> InstancePath<'_> {
        InstancePath(&self.0)
    }
}

/// Where a record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source<'a> {
    /// The instance that sent it.
    pub instance: Instance<'a>,
    /// Its position in the log of that instance; `None` = not known.
    pub position: Option<Position>,
}

/// Where a record was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Its publisher and sequence, which identify it on every instance.
    pub bookmark: Bookmark,
    /// The instance that received it from the publisher; `None` = this one.
    pub instance: Option<Instance<'a>>,
}

/// The attributes of a record as they are encoded in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The attributes of a record without any.
    pub const NONE: Attributes<'static> = Attributes(&[]);

    /// The attributes in these bytes. `None` when they are not valid.
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (mut rest, mut before) = (bytes, 0);
        while !rest.is_empty() {
            let (number, value, after) = split_attribute(rest)?;
            let is_whole = match number {
                KEY => !value.is_empty(),
                SOURCE => split_source(value).is_some(),
                HEADERS => Headers::from_bytes(value).is_some_and(|headers| !headers.is_empty()),
                NOT_BEFORE | RECEIVED | STAMP => split_time(value).is_some(),
                RUN => split_run(value).is_some(),
                FOLLOWS => split_follows(value).is_some(),
                _ => false,
            };
            if !is_whole || number <= before {
                return None;
            }
            (rest, before) = (after, number);
        }
        (bytes.len() <= ATTRIBUTES_SIZE_MAX).then_some(Attributes(bytes))
    }

    /// The bytes as they are in a record.
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The key of the message in its last-value topic, if it has one.
    pub fn key(self) -> Option<&'a [u8]> {
        self.value(KEY)
    }

    /// The instances that the record passed before this one.
    pub fn path(self) -> InstancePath<'a> {
        self.value(SOURCE).and_then(split_source).map_or(InstancePath::EMPTY, |(_, path)| path)
    }

    /// Where the record came from; `None` when it was published here.
    pub fn source(self) -> Option<Source<'a>> {
        let (position, path) = self.value(SOURCE).and_then(split_source)?;
        let instance = path.instances().last()?;
        Some(Source { instance, position: (position > 0).then_some(Position(position)) })
    }

    /// The headers of the message.
    #[inline]
    pub fn headers(self) -> Headers<'a> {
        if self.0.is_empty() { Headers::NONE } else { self.find_headers() }
    }

    /// Separate from [`Self::headers`], so that a record without attributes costs one comparison.
    #[cold]
    #[inline(never)]
    fn find_headers(self) -> Headers<'a> {
        self.value(HEADERS).and_then(Headers::from_bytes).unwrap_or_default()
    }

    /// The time before which queues do not deliver the message, if it was published with a delay.
    #[inline]
    pub fn not_before(self) -> Option<Timestamp> {
        if self.0.is_empty() { None } else { self.find_not_before() }
    }

    /// Separate from [`Self::not_before`], so that a record without attributes costs one
    /// comparison.
    #[cold]
    #[inline(never)]
    fn find_not_before(self) -> Option<Timestamp> {
        self.value(NOT_BEFORE).and_then(split_time)
    }

    /// When the record was taken, if the clock showed an earlier time than that of the record.
    #[inline]
    pub fn received(self) -> Option<Timestamp> {
        if self.0.is_empty() { None } else { self.find_received() }
    }

    #[cold]
    #[inline(never)]
    fn find_received(self) -> Option<Timestamp> {
        self.value(RECEIVED).and_then(split_time)
    }

    /// The run of its publisher; 0 = not known, or the program gave the sequence.
    pub fn run(self) -> u64 {
        self.value(RUN).and_then(split_run).unwrap_or_default()
    }

    /// The sequence that the publisher used before that of the record, when it is not the sequence
    /// minus one.
    pub fn follows(self) -> Option<u64> {
        self.value(FOLLOWS).and_then(split_follows)
    }

    /// The time by which last values are ordered, when it is not the time of the record.
    pub fn stamp(self) -> Option<Timestamp> {
        self.value(STAMP).and_then(split_time)
    }

    fn value(self, wanted: u8) -> Option<&'a [u8]> {
        let mut rest = self.0;
        while let Some((number, value, after)) = split_attribute(rest) {
            if number == wanted {
                return Some(value);
            }
            rest = after;
        }
        None
    }
}

/// The attribute at the front: its number and its value, and the bytes after it.
fn split_attribute(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (number, rest) = bytes.split_first()?;
    let (size, rest) = take_number(rest)?;
    let (value, rest) = rest.split_at_checked(usize::try_from(size).ok()?)?;
    Some((*number, value, rest))
}

/// The position in the log of the source, and the path, which is not empty.
fn split_source(value: &[u8]) -> Option<(u64, InstancePath<'_>)> {
    let (position, path) = take_number(value)?;
    let path = InstancePath::from_bytes(path).filter(|path| !path.is_empty())?;
    Some((position, path))
}

/// A time other than the beginning of 1970.
fn split_time(value: &[u8]) -> Option<Timestamp> {
    let ns = u64::from_le_bytes(value.try_into().ok()?);
    (ns > 0).then_some(Timestamp(ns))
}

/// A run other than 0.
fn split_run(value: &[u8]) -> Option<u64> {
    let run = u64::from_le_bytes(value.try_into().ok()?);
    (run > 0).then_some(run)
}

fn split_follows(value: &[u8]) -> Option<u64> {
    take_number(value).filter(|(_, rest)| rest.is_empty()).map(|(sequence, _)| sequence)
}

/// Input of [`AttributesBuffer::encode`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NewAttributes<'a> {
    /// The key of the message in its last-value topic; empty = none.
    pub key: &'a [u8],
    /// The position of the record in the log of the instance that sent it. Only with a path.
    pub position: Option<Position>,
    /// The instances that the record passed; empty = it was published here.
    pub path: InstancePath<'a>,
    /// The headers of the message.
    pub headers: Headers<'a>,
    /// The time before which queues do not deliver the message, later than 1970; `None` = it has no
    /// delay.
    pub not_before: Option<Timestamp>,
    /// The time by the clock, when it is before the timestamp that the record gets.
    pub received: Option<Timestamp>,
    /// The run of its publisher; 0 = not known, or the program gave the sequence.
    pub run: u64,
    /// The sequence that the publisher used before it, when it is not the sequence minus one.
    pub follows: Option<u64>,
    /// The time by which last values are ordered, when it is not the time of the record.
    pub stamp: Option<Timestamp>,
}

/// Encodes the attributes of one record after the other.
#[derive(Clone, Debug, Default)]
pub struct AttributesBuffer(Vec<u8>);

impl AttributesBuffer {
    /// The attributes of one record.
    ///
    /// # Errors
    /// [`JournalError::BadOption`] when all of them together take more than 65,535 bytes.
    pub fn encode(&mut self, new: &NewAttributes<'_>) -> Result<Attributes<'_>, JournalError> {
        let NewAttributes { key, position, path, headers, not_before, received, run, follows, stamp } = *new;
        let bytes = &mut self.0;
        bytes.clear();
        if !key.is_empty() {
            put_head(bytes, KEY, key.len());
            bytes.extend_from_slice(key);
        }
        if !path.is_empty() {
            let position = position.unwrap_or(Position::ZERO).0;
            put_head(bytes, SOURCE, number_size(position) + path.0.len());
            put_number(bytes, position);
            bytes.extend_from_slice(path.0);
        }
        if !headers.is_empty() {
            put_head(bytes, HEADERS, headers.as_bytes().len());
            bytes.extend_from_slice(headers.as_bytes());
        }
        put_time(bytes, NOT_BEFORE, not_before);
        put_time(bytes, RECEIVED, received);
        if run > 0 {
            put_head(bytes, RUN, size_of_val(&run));
            bytes.extend_from_slice(&run.to_le_bytes());
        }
        if let Some(follows) = follows {
            put_head(bytes, FOLLOWS, number_size(follows));
            put_number(bytes, follows);
        }
        put_time(bytes, STAMP, stamp);
        if bytes.len() > ATTRIBUTES_SIZE_MAX {
            let reason = format!(
                "{} bytes of attributes ({} of the key, {} of the path, {} of the headers), the limit is {ATTRIBUTES_SIZE_MAX}",
                bytes.len(),
                key.len(),
                path.0.len(),
                headers.as_bytes().len()
            );
            bytes.clear();
            return Err(JournalError::BadOption { option: "attributes", reason });
        }
        Ok(Attributes(bytes))
    }

    /// The attributes that were encoded last.
    pub fn attributes(&self) -> Attributes<'_> {
        Attributes(&self.0)
    }
}

/// Appends the number and the size of an attribute, which precede its value.
fn put_head(bytes: &mut Vec<u8>, number: u8, size: usize) {
    bytes.push(number);
    put_number(bytes, size as u64);
}

fn put_time(bytes: &mut Vec<u8>, number: u8, time: Option<Timestamp>) {
    if let Some(Timestamp(ns @ 1..)) = time {
        put_head(bytes, number, size_of_val(&ns));
        bytes.extend_from_slice(&ns.to_le_bytes());
    }
}

/// Appends a number as LEB128.
pub(crate) fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Bytes that the number takes.
const fn number_size(number: u64) -> usize {
    (64 - (number | 1).leading_zeros()).div_ceil(7) as usize
}

/// The number at the front, and the bytes after it; `None` when it is cut short or has more than 64
/// bits.
pub(crate) fn take_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if at == 9 && bits > 1 {
            return None;
        }
        number |= bits << (7 * at);
        if *byte < 0x80 {
            return Some((number, &bytes[at + 1..]));
        }
    }
    None
}
