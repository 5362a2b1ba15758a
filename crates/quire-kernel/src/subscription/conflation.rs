//! Conflation: of the messages with the same key, only the newest in each interval is delivered
//! (docs/replay.md).
//!
//! All intervals of a subscription have the same length. So the intervals of the held messages end
//! in the order in which they began. A queue of the messages, with the place of each key in it, is
//! sufficient. This is also the order of the first messages of the intervals in the log. A
//! delivered message has the bookmark of the first message of its interval. So a client that
//! resumes after the last received bookmark misses no message.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::codec::Encoder;
use quire_command::RecordHash;
use quire_command::subscribe::Interval;
use quire_expression::filter::{Expression, FilterOptions, MessageContext};
use quire_expression::message_type::{self, Arena, FieldId, FieldPlan, MessageType, Step, Value};
use quire_types::time::Instant;

/// The most fields of a key: far more than an application needs to identify an object.
pub const KEY_FIELDS_MAX: usize = 16;

/// The shortest interval. With a shorter one, each message would need a timer.
pub const INTERVAL_MIN: Duration = Duration::from_millis(1);

/// The most bytes of frames and keys that one subscription holds: some hundred thousand keys of
/// small messages.
const HELD_SIZE_MAX: usize = 16 * 1024 * 1024;

/// The cost of a held message in addition to its frame and its key, in bytes.
const HELD_OVERHEAD_SIZE: usize = 128;

/// The values that must be equal for messages to be conflated. Clones share the key.
#[derive(Clone, Debug)]
pub enum ConflationKey {
    /// The key in the last-value topic.
    OfRecord,
    /// Values of fields.
    OfFields(Arc<KeyPlan>),
}

/// The fields of a key.
#[derive(Debug)]
pub struct KeyPlan {
    plan: FieldPlan,
    fields: Vec<FieldId>,
}

/// Why a subscription cannot be conflated: an error of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConflationError {
    /// A part of the key is not the name of a field.
    #[error("conflation_key: {text:?} is not a field like `/symbol`")]
    NotAField {
        /// The text as given.
        text: String,
    },
    /// More than [`KEY_FIELDS_MAX`].
    #[error("conflation_key: {count} fields, the limit is {KEY_FIELDS_MAX}")]
    TooManyFields {
        /// The number of fields.
        count: usize,
    },
    /// Below [`INTERVAL_MIN`].
    #[error("conflation: the interval is below {INTERVAL_MIN:?}")]
    TooShort,
    /// There is an interval without a key, and the messages have no keys.
    #[error("conflation: it requires conflation_key on a topic that keeps no last values")]
    NoKey,
}

impl ConflationKey {
    /// Reads `/symbol`, or several separated by commas.
    ///
    /// # Errors
    /// [`ConflationError`] for anything else.
    pub fn parse(text: &str) -> Result<Self, ConflationError> {
        let count = text.split(',').count();
        if count > KEY_FIELDS_MAX {
            return Err(ConflationError::TooManyFields { count });
        }
        let mut plan = FieldPlan::default();
        let field = |part: &str| {
            let expression = Expression::parse(part, &FilterOptions::default()).ok();
            let path = expression.and_then(|expression| expression.path());
            // The text is from a peer, and becomes part of a reason. A prefix of it is enough.
            let not = || ConflationError::NotAField { text: part.chars().take(64).collect() };
            Ok(plan.add(&path.ok_or_else(not)?))
        };
        let fields = text.split(',').map(str::trim).map(field).collect::<Result<_, _>>()?;
        Ok(ConflationKey::OfFields(Arc::new(KeyPlan { plan, fields })))
    }

    /// Whether a message can be conflated. A message of another topic has no key of a record.
    pub fn applies_to(&self, record_key: &[u8]) -> bool {
        matches!(self, ConflationKey::OfFields(_)) || !record_key.is_empty()
    }

    /// Appends the key of a message on `topic` to `out`. Messages that cannot be read, or have no
    /// known type, share one key. A recorded message that has no key of a record gets its bookmark
    /// as the key: it is held, and never replaced.
    pub fn write(
        &self,
        topic: &str,
        message: Option<&MessageContext<'_>>,
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) {
        arena.reset();
        put_bytes(out, topic.as_bytes());
        let ConflationKey::OfFields(plan) = self else {
            match message.map(|message| (message.key, message.bookmark)) {
                Some((Some(key), _)) => out.extend_from_slice(key),
                Some((None, Some(bookmark))) => {
                    out.push(0);
                    out.extend_from_slice(&bookmark.publisher.get().to_le_bytes());
                    out.extend_from_slice(&bookmark.sequence.to_le_bytes());
                }
                _ => out.push(UNREADABLE),
            }
            return;
        };
        let KeyPlan { plan, fields } = &**plan;
        match message.and_then(|message| message.read(plan, arena)) {
            Some(values) => fields.iter().for_each(|field| put_value(out, &values[field.index()])),
            None => out.push(UNREADABLE),
        }
    }
}

const UNREADABLE: u8 = 255;

/// Equal values produce equal bytes, and different values produce different bytes. The nesting is
/// limited to that of a message.
fn put_value(out: &mut Vec<u8>, value: &Value<'_>) {
    match *value {
        Value::Null => out.push(0),
        Value::Boolean(value) => out.extend_from_slice(&[1, value.into()]),
        Value::Number(number, _) => {
            let float = number.as_f64();
            // 1.0 is 1. Above this limit a float no longer distinguishes whole numbers.
            let whole = (float.fract() == 0.0 && float.abs() < 1e15).then_some(float as i128);
            match number.as_i128().or(whole) {
                Some(exact) => {
                    out.push(2);
                    out.extend_from_slice(&exact.to_le_bytes());
                }
                None => {
                    out.push(3);
                    out.extend_from_slice(&float.to_bits().to_le_bytes());
                }
            }
        }
        Value::Text(text) => {
            out.push(4);
            put_bytes(out, text);
        }
        Value::Array(values) => {
            out.push(5);
            out.extend_from_slice(&(values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| put_value(out, value));
        }
        Value::Compound(bytes) => {
            out.push(6);
            put_bytes(out, bytes);
        }
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The held messages of one subscription.
#[derive(Debug)]
pub struct Conflation {
    pub key: ConflationKey,
    /// Encodes the messages that are held.
    pub encoder: Encoder,
    interval: Duration,
    held: VecDeque<HeldMessage>,
    /// The number of the first held message, counted over all messages that were ever held.
    first: u64,
    by_key: HashMap<Arc<[u8]>, u64, FxBuildHasher>,
    size: usize,
}

#[derive(Debug)]
struct HeldMessage {
    key: Arc<[u8]>,
    /// When its interval ends.
    ends_at: Instant,
    /// Empty: there is no message to deliver.
    frame: Vec<u8>,
    /// The subscription did not have the record when the interval began.
    is_new: bool,
    /// For a delta subscription that has the record. The frame has the whole record then.
    delta: Option<Box<HeldDelta>>,
}

/// The changes of a record in one interval, for a delta subscription.
///
/// The delivered fields are those that any of the changes has, each with its newest value. So a
/// field that has its first value again is among them, and a field that no change has is not. The
/// difference between the first record and the newest one has in addition the members of an object
/// that was replaced and then set again.
#[derive(Debug)]
struct HeldDelta {
    message_type: MessageType,
    key_fields: Arc<[Vec<Step>]>,
    no_empties: bool,
    /// The record that the subscription has.
    base: Box<[u8]>,
    newest: Vec<u8>,
    /// Of the newest record.
    hash: RecordHash,
    /// The differences of all changes, merged. `None`: two of them cannot be merged.
    merged: Option<Vec<u8>>,
}

/// One change of a record, for a delta subscription that had the record and still has it.
#[derive(Debug)]
pub struct DeltaChange<'a> {
    pub message_type: MessageType,
    /// Each difference has these fields.
    pub key_fields: &'a Arc<[Vec<Step>]>,
    /// No message when no field differs.
    pub no_empties: bool,
    pub old: &'a [u8],
    pub new: &'a [u8],
    /// The difference between the two.
    pub difference: &'a [u8],
    /// Of the record that the client computes.
    pub hash: RecordHash,
}

impl HeldDelta {
    fn new(change: &DeltaChange<'_>) -> Self {
        HeldDelta {
            message_type: change.message_type,
            key_fields: change.key_fields.clone(),
            no_empties: change.no_empties,
            base: change.old.into(),
            newest: change.new.to_vec(),
            hash: change.hash,
            merged: Some(change.difference.to_vec()),
        }
    }

    fn add(&mut self, change: &DeltaChange<'_>) {
        self.newest = change.new.to_vec();
        self.hash = change.hash;
        self.merged = self.merged.take().and_then(|merged| self.merge(&merged, change.difference));
    }

    fn merge(&self, delta: &[u8], later: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        message_type::merge(self.message_type, delta, later, &mut out).ok().map(|()| out)
    }

    /// What is delivered: a difference and the hash of the newest record. `None`: nothing.
    ///
    /// # Errors
    /// There is no difference, so the whole record is delivered.
    fn finish(self) -> Result<Option<(Vec<u8>, RecordHash)>, ()> {
        let mut difference = Vec::new();
        let (base, newest) = (&self.base, &self.newest);
        let differs =
            message_type::difference(self.message_type, base, newest, &self.key_fields, &mut difference);
        let differs = differs.map_err(|_| ())?;
        if self.no_empties && !differs {
            return Ok(None);
        }
        let merged = self.merged.as_ref().ok_or(())?;
        let data = self.merge(merged, &difference).ok_or(())?;
        Ok(Some((data, self.hash)))
    }

    fn size(&self) -> usize {
        self.base.len() + self.newest.len() + self.merged.as_ref().map_or(0, Vec::len)
    }
}

/// The change of a record in the view of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewChange {
    /// The record came into view.
    Entered,
    /// The record was in view, and still is.
    Replaced,
    /// The record is no longer in view.
    Left,
}

impl Conflation {
    /// # Errors
    /// [`ConflationError`] when the interval and its key cannot be combined.
    pub fn parse(
        wanted: &Interval<'_>,
        has_default: bool,
        encoder: Encoder,
    ) -> Result<Conflation, ConflationError> {
        let interval = Duration::from_nanos(wanted.ns);
        let key = match wanted.key {
            Some(key) => ConflationKey::parse(key)?,
            None if has_default => ConflationKey::OfRecord,
            None => return Err(ConflationError::NoKey),
        };
        if interval < INTERVAL_MIN {
            return Err(ConflationError::TooShort);
        }
        Ok(Conflation {
            key,
            encoder,
            interval,
            held: VecDeque::new(),
            first: 0,
            by_key: HashMap::default(),
            size: 0,
        })
    }

    /// Holds a message. It replaces the held message with the same key.
    pub fn hold(&mut self, now: Instant, key: &[u8], frame: &[u8]) {
        if let Some(number) = self.by_key.get(key) {
            let held = &mut self.held[(number - self.first) as usize];
            let before = std::mem::replace(&mut held.frame, frame.to_vec());
            self.encoder.copy_bookmark(&before, &mut held.frame);
            self.size = self.size + held.frame.len() - before.len();
            return;
        }
        self.begin(now, key, frame.to_vec(), false, None);
    }

    /// Takes the change of a record. `frame` is the message about it; empty = none. `delta`: the
    /// change for a delta subscription, whose frame has the whole record. A record that comes into
    /// view and leaves it within one interval produces no message.
    pub fn hold_change(
        &mut self,
        now: Instant,
        key: &[u8],
        change: ViewChange,
        frame: Vec<u8>,
        delta: Option<&DeltaChange<'_>>,
    ) {
        let Some(number) = self.by_key.get(key) else {
            if !frame.is_empty() {
                let delta = delta.map(|delta| Box::new(HeldDelta::new(delta)));
                self.begin(now, key, frame, change == ViewChange::Entered, delta);
            }
            return;
        };
        let held = &mut self.held[(number - self.first) as usize];
        self.size -= held.size();
        held.frame = if held.is_new && change == ViewChange::Left { Vec::new() } else { frame };
        // Without a difference in hand, the whole record is delivered.
        match (&mut held.delta, delta) {
            (Some(held), Some(delta)) => held.add(delta),
            (held, _) => *held = None,
        }
        self.size += held.size();
    }

    fn begin(
        &mut self,
        now: Instant,
        key: &[u8],
        frame: Vec<u8>,
        is_new: bool,
        delta: Option<Box<HeldDelta>>,
    ) {
        let key: Arc<[u8]> = key.into();
        let held = HeldMessage { key: key.clone(), ends_at: now + self.interval, frame, is_new, delta };
        self.size += held.size();
        self.by_key.insert(key, self.first + self.held.len() as u64);
        self.held.push_back(held);
    }

    /// When the next interval ends.
    pub fn next_end(&self) -> Option<Instant> {
        self.held.front().map(|held| held.ends_at)
    }

    /// Whether there is room for another message.
    pub fn has_room(&self) -> bool {
        self.size <= HELD_SIZE_MAX
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The message that was held for the longest time. It is empty when the record left within its
    /// interval, or has no difference.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let held = self.held.pop_front()?;
        self.first += 1;
        self.by_key.remove(&held.key);
        self.size -= held.size();
        Some(match held.delta.map(|delta| delta.finish()) {
            None | Some(Err(())) => held.frame,
            Some(Ok(None)) => Vec::new(),
            Some(Ok(Some((data, hash)))) => self.encoder.as_delta(held.frame, &data, hash),
        })
    }
}

impl HeldMessage {
    fn size(&self) -> usize {
        let delta = self.delta.as_ref().map_or(0, |delta| delta.size());
        HELD_OVERHEAD_SIZE + self.key.len() + self.frame.len() + delta
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_field_or_a_few() {
        for text in ["/symbol", "/a,/b/c", " /a , /b "] {
            assert!(ConflationKey::parse(text).is_ok(), "{text:?}");
        }
        for text in ["", "symbol", "/a,,/b", "/a + 1", "'x'", "/a = 1", "1"] {
            assert!(matches!(ConflationKey::parse(text), Err(ConflationError::NotAField { .. })), "{text:?}");
        }
        let many = vec!["/a"; KEY_FIELDS_MAX + 1].join(",");
        assert!(matches!(ConflationKey::parse(&many), Err(ConflationError::TooManyFields { count: 17 })));
    }

    #[test]
    fn what_is_held_never_grows_by_being_replaced() {
        let wanted = Interval { ns: INTERVAL_MIN.as_nanos() as u64, key: Some("/a") };
        let mut conflation = Conflation::parse(&wanted, false, Encoder::Quire).unwrap();
        let frame = |size: usize| {
            let mut frame = Vec::new();
            let data = vec![b'x'; size];
            let message = quire_command::Message { data: &data, ..Default::default() };
            Encoder::Quire.put_message(&message, &mut frame);
            frame
        };
        for size in [10, 1000, 0, 100] {
            conflation.hold(Instant(0), b"key", &frame(size));
        }
        let one = HELD_OVERHEAD_SIZE + 3 + frame(100).len();
        assert_eq!((conflation.size, conflation.held.len()), (one, 1));
        assert!(conflation.take().is_some() && conflation.take().is_none());
        assert_eq!((conflation.size, conflation.by_key.len()), (0, 0));
    }
}
