//! A publish in the client: its number, its frame until it is persisted, its place among the other
//! frames, and the reports of the server about it.
//!
//! The store keeps publishes as encoded frames in one byte stream with ever-growing offsets. `sent`
//! is the offset up to which the current connection got them. After a reconnect it is the offset of
//! the oldest byte that is kept. Frames are dropped in chunks, so a few persisted frames may be
//! sent again. The server recognizes them by their sequence and discards them. Other commands end
//! with their connection. Each has a place in the stream.

use std::collections::VecDeque;

use super::receipt::frame_size_max;
use super::{ClientCore, Event, Failure, FailureCode, Sequence, StorageFailure};
use quire_command::{Code, FailureScope, Publish, TOPIC_SIZE_MAX};
use quire_types::{Delay, Headers, Timestamp, TopicNameError, check_topic_name};
use quire_wire::{Encode, replace_delay};

/// A message to be published.
#[derive(Clone, Copy, Debug)]
pub struct NewMessage<'a> {
    /// Where it goes.
    pub topic: &'a str,
    /// The message.
    pub data: &'a [u8],
    /// Its number.
    pub sequence: Sequence,
    /// Lifetime in seconds, 0 = never expires.
    pub expiration_s: Option<u32>,
    /// The time for which queues do not deliver it.
    pub delay: Option<NewDelay>,
    /// Delivered unchanged, at most 255 bytes; empty = none.
    pub correlation_id: &'a [u8],
    /// Delivered unchanged.
    pub headers: Headers<'a>,
    /// The key in its last-value topic that the publisher supplies; empty = none.
    pub key: &'a str,
    /// Its fields are merged into the record with the same key.
    pub is_delta: bool,
    /// It is only taken when its last-value topic has a record with its key.
    pub is_update: bool,
}

impl<'a> NewMessage<'a> {
    /// A message with the next sequence. It has no lifetime, delay, correlation id, headers or key,
    /// is not a delta, and does not depend on a record.
    pub const fn new(topic: &'a str, data: &'a [u8]) -> Self {
        NewMessage {
            topic,
            data,
            sequence: Sequence::Auto,
            expiration_s: None,
            delay: None,
            correlation_id: b"",
            headers: Headers::NONE,
            key: "",
            is_delta: false,
            is_update: false,
        }
    }
}

/// The delay of a message to be published.
///
/// A delay that begins when the server takes the message does not depend on the clock of the
/// client. It would begin again when the message is sent again. So the store keeps the end of the
/// delay by the clock of the client. The connection that is open at the publish gets the relative
/// delay. Any later connection gets the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDelay {
    /// The end of the delay by the clock of the client.
    pub end: Timestamp,
    /// The length of a relative delay in nanoseconds. `None` = the program named the end.
    pub ns: Option<u64>,
}

/// Why a publish was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The store is full: try again when some of it is persisted.
    #[error("{unpersisted} publishes wait to be persisted, which is as much as this client keeps")]
    Full {
        /// Publishes that wait.
        unpersisted: u64,
    },
    /// It can never be accepted.
    #[error(transparent)]
    Refused(#[from] Failure),
}

impl ClientCore {
    /// Takes a message, and returns its sequence. It is sent as soon as the driver polls.
    ///
    /// # Errors
    /// [`PublishError::Full`] when the store is full. [`PublishError::Refused`] for a message that
    /// can never be sent, when the server's disk takes no more writes, or when the client is
    /// closed. Also for [`Sequence::Auto`] after the last number, 2^64 - 1
    /// ([`Code::LimitExceeded`]).
    pub fn publish(&mut self, message: &NewMessage<'_>) -> Result<Option<u64>, PublishError> {
        self.check_open()?;
        self.check_message(message)?;
        let Some(sequence) = self.next_sequence(message.sequence, self.last_sequence)? else {
            self.has_unnumbered = true;
            let mut frame = Vec::new();
            // It is sent once, so that a relative delay begins once.
            let relative = message.delay.and_then(|delay| Some(Delay::For { ns: delay.ns? }));
            Publish { delay: relative.unwrap_or(end_of(message)), ..publish_of(message, 0) }
                .encode(&mut frame);
            if self.queue_frames(&frame) {
                return Ok(None);
            }
            let reason = "not connected, and a publish without a sequence is not kept";
            return Err(Failure::new(FailureCode::Disconnected, reason).into());
        };
        self.store.check_room(frame_size_max(message))?;
        self.store_publish(message, sequence)?;
        Ok(Some(sequence))
    }

    /// The sequence of a message that is published after `last`; `None` when it has none.
    pub(super) fn next_sequence(&self, sequence: Sequence, last: u64) -> Result<Option<u64>, PublishError> {
        match sequence {
            Sequence::Auto => Ok(Some(last.checked_add(1).ok_or_else(|| self.sequences_end())?)),
            Sequence::Given(0) => {
                Err(Failure::new(Code::BadOption, "sequence: 0 is not a sequence number").into())
            }
            Sequence::Given(sequence) => Ok(Some(sequence)),
            Sequence::None => Ok(None),
        }
    }

    pub(super) fn store_publish(&mut self, message: &NewMessage<'_>, sequence: u64) -> Result<(), Failure> {
        let size = self.store.push(sequence, |out| publish_of(message, sequence).encode(out))?;
        if let Some(NewDelay { end, ns: Some(ns) }) = message.delay
            && self.is_up()
        {
            self.store.delay_last(size, Delay::For { ns }, Delay::Until(end));
        }
        if message.sequence == Sequence::Auto {
            self.assigned.push(sequence);
        }
        self.sent_last = (self.is_up() && sequence > self.last_sequence).then_some(sequence);
        self.last_sequence = self.last_sequence.max(sequence);
        Ok(())
    }

    pub(super) fn sequences_end(&self) -> Failure {
        let reason = format!(
            "sequence: the client name {:?} has used the last number, {}; publish under another name",
            self.config.name,
            u64::MAX
        );
        Failure::new(Code::LimitExceeded, reason)
    }

    pub(super) fn check_message(&self, message: &NewMessage<'_>) -> Result<(), Failure> {
        let (topic, correlation) = (message.topic, message.correlation_id);
        check_topic(topic)?;
        if correlation.len() > quire_command::CORRELATION_SIZE_MAX {
            let reason = format!(
                "correlation id: {} bytes, the limit is {}",
                correlation.len(),
                quire_command::CORRELATION_SIZE_MAX
            );
            return Err(Failure::new(Code::BadOption, reason));
        }
        if message.key.len() > quire_command::KEY_SIZE_MAX {
            let reason =
                format!("sow_key: {} bytes, the limit is {}", message.key.len(), quire_command::KEY_SIZE_MAX);
            return Err(Failure::new(Code::BadMessage, reason));
        }
        let limit = self.message_size_max.map_or(usize::MAX, |limit| limit as usize);
        if message.data.len() > limit {
            let reason = format!("message of {} bytes, the server takes up to {limit}", message.data.len());
            return Err(Failure::new(Code::MessageTooLarge, reason));
        }
        Ok(())
    }

    // Reports of a connection while it decodes.

    pub(super) fn persisted_up_to(&mut self, sequence: u64) {
        let released = self.store.released();
        self.settle_receipts(sequence);
        // Also when another server has acknowledged this sequence or a higher one: this server now
        // has the repeated publishes.
        self.store.persisted(sequence);
        self.assigned.persisted(sequence);
        // The server reports a failure from the first sequence that is not persisted, so its
        // journal takes writes again.
        if self.storage_failure.as_ref().is_some_and(|failed| sequence >= failed.from) {
            self.storage_failure = None;
        }
        if sequence > self.persisted || self.store.released() > released {
            self.persisted = self.persisted.max(sequence);
            self.events.push_back(Event::Persisted);
        }
        self.commands.acknowledged(sequence, &mut self.events);
    }

    pub(super) fn publish_failed(&mut self, sequence: u64, scope: FailureScope, failure: Failure) {
        if scope == FailureScope::AllFromHere {
            // No publish is lost yet: the store keeps them for the next server that can take them.
            self.commands.fail_flushes(&failure, &mut self.events);
            self.storage_failure = Some(StorageFailure { from: sequence, failure });
            self.events.push_back(Event::StateChanged);
            return;
        }
        // This comes first: the acknowledgement of its sequence settles its receipt.
        let failure = self.refuse_receipt(sequence, failure);
        if sequence != 0 {
            self.persisted_up_to(sequence);
        }
        if let Some(failure) = failure {
            self.events.push_back(Event::PublishFailed { sequence, failure });
        }
    }
}

fn publish_of<'a>(message: &NewMessage<'a>, sequence: u64) -> Publish<'a> {
    Publish {
        sequence,
        expiration_s: message.expiration_s,
        delay: end_of(message),
        topic: message.topic.as_bytes(),
        correlation_id: message.correlation_id,
        headers: message.headers,
        key: message.key.as_bytes(),
        is_delta: message.is_delta,
        is_update: message.is_update,
        is_numbered: matches!(message.sequence, Sequence::Given(_)),
        data: message.data,
    }
}

/// The delay of a message with its end.
fn end_of(message: &NewMessage<'_>) -> Delay {
    message.delay.map_or(Delay::None, |delay| Delay::Until(delay.end))
}

/// Bytes of a chunk. Persisted frames are dropped by chunks.
const CHUNK_SIZE: usize = if cfg!(test) { 32 * 1024 } else { 256 * 1024 };

/// Keeps the unpersisted publishes in a file of the driver, so that they are still there after the
/// client has ended (docs/stores.md).
pub trait PublishLog: Send {
    /// Whether a frame of `frame_size` bytes can be appended now.
    fn has_room(&self, frame_size: usize) -> bool;

    /// The largest frame that fits into an empty log, in bytes.
    fn frame_size_max(&self) -> usize;

    /// Keeps the frame with this sequence: when this returns, it survives the end of the process.
    ///
    /// # Errors
    /// It could not be kept. The publish is refused. A later one may succeed.
    fn append(&mut self, sequence: u64, frame: &[u8]) -> Result<(), Failure>;

    /// Everything up to and including `sequence` is persisted and need not be kept. The log may
    /// keep it for some time.
    fn persisted(&mut self, sequence: u64);
}

/// The content of a [`PublishLog`] when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredPublishes {
    /// Sequence and frame of each publish, in their order.
    pub frames: Vec<(u64, Vec<u8>)>,
    /// The highest sequence that was ever in it.
    pub last_sequence: u64,
    /// The highest sequence that is known to be persisted.
    pub persisted: u64,
    /// The random number of the log: everything that is published through it is one run.
    pub run: u64,
}

/// The unpersisted publishes of one client, in the order of their sequence, and the commands that
/// its connection sends between them.
pub(super) struct PublishStore {
    log: Option<Box<dyn PublishLog>>,
    chunks: VecDeque<Chunk>,
    /// Offset of the first byte that is kept.
    start: u64,
    /// Offset after the last byte that this connection got.
    sent: u64,
    /// Offset after the last byte.
    end: u64,
    /// Commands of this connection that were not sent yet. Each is sent after the publishes up to
    /// its offset.
    commands: VecDeque<(u64, Vec<u8>)>,
    /// The server has accepted the logon. Until then only the logon is sent.
    is_up: bool,
    size_max: usize,
    /// Frames that have a relative delay on this connection: where each begins, and its delay on
    /// any later connection.
    relative: VecDeque<(u64, Delay)>,
    /// A dropped chunk, to be filled again.
    spare: Vec<u8>,
    /// Publishes in all chunks.
    count: u64,
    /// The highest sequence that the server of this connection has acknowledged. The server
    /// acknowledges once: a repeated publish below it gets no further answer.
    known: u64,
}

#[derive(Debug)]
struct Chunk {
    frames: Vec<u8>,
    count: u64,
    last_sequence: u64,
}

impl PublishStore {
    pub fn new(size_max: usize) -> Self {
        PublishStore {
            log: None,
            chunks: VecDeque::new(),
            start: 0,
            sent: 0,
            end: 0,
            commands: VecDeque::new(),
            is_up: false,
            size_max,
            relative: VecDeque::new(),
            spare: Vec::new(),
            count: 0,
            known: 0,
        }
    }

    /// From now on, every publish is kept in `log` too. The log already has `frames`: sequence and
    /// frame of each, in their order.
    pub fn keep_in(&mut self, log: Box<dyn PublishLog>, frames: &[(u64, Vec<u8>)]) {
        for (sequence, frame) in frames {
            self.put(*sequence, |out| out.extend_from_slice(frame));
        }
        self.log = Some(log);
    }

    pub fn release_log(&mut self) {
        self.log = None;
    }

    /// Whether another frame of this size may be stored. An empty store takes any frame that its
    /// log takes.
    ///
    /// # Errors
    /// [`PublishError::Full`], and [`PublishError::Refused`] for a frame that the log can never
    /// take.
    pub fn check_room(&self, size: usize) -> Result<(), PublishError> {
        if let Some(log) = &self.log {
            let limit = log.frame_size_max();
            if size > limit {
                let reason =
                    format!("message of about {size} bytes, the file of the publish store takes {limit}");
                return Err(Failure::new(Code::MessageTooLarge, reason).into());
            }
        }
        let log_has_room = self.log.as_ref().is_none_or(|log| log.has_room(size));
        if log_has_room && (self.is_empty() || (self.end - self.start) as usize + size <= self.size_max) {
            return Ok(());
        }
        Err(PublishError::Full { unpersisted: self.count })
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The number of publishes that are kept. All publishes of a partly persisted chunk count.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Appends the frame that `encode` writes. Returns its size.
    ///
    /// # Errors
    /// The log did not take it; the store is as before.
    pub fn push(&mut self, sequence: u64, encode: impl FnOnce(&mut Vec<u8>)) -> Result<usize, Failure> {
        let size = self.put(sequence, encode);
        if let (Some(log), Some(chunk)) = (&mut self.log, self.chunks.back_mut()) {
            let start = chunk.frames.len() - size;
            if let Err(failure) = log.append(sequence, &chunk.frames[start..]) {
                chunk.frames.truncate(start);
                chunk.count -= 1;
                self.count -= 1;
                self.end -= size as u64;
                return Err(failure);
            }
        }
        Ok(size)
    }

    /// Sets the delay of the last appended frame, which has this size: `now` on this connection,
    /// `later` on any later one. The log keeps the frame as it was appended.
    pub fn delay_last(&mut self, size: usize, now: Delay, later: Delay) {
        if let Some(chunk) = self.chunks.back_mut() {
            let start = chunk.frames.len() - size;
            replace_delay(&mut chunk.frames[start..], now);
            self.relative.push_back((self.end - size as u64, later));
        }
    }

    /// Returns the size of the frame.
    fn put(&mut self, sequence: u64, encode: impl FnOnce(&mut Vec<u8>)) -> usize {
        if self.chunks.back().is_none_or(|chunk| chunk.frames.len() >= CHUNK_SIZE) {
            let frames = std::mem::take(&mut self.spare);
            self.chunks.push_back(Chunk { frames, count: 0, last_sequence: 0 });
        }
        let Some(chunk) = self.chunks.back_mut() else { return 0 };
        let before = chunk.frames.len();
        encode(&mut chunk.frames);
        chunk.last_sequence = chunk.last_sequence.max(sequence);
        chunk.count += 1;
        self.count += 1;
        let size = chunk.frames.len() - before;
        self.end += size as u64;
        size
    }

    /// The total of released bytes.
    pub fn released(&self) -> u64 {
        self.start
    }

    /// The server has accepted the logon, and has everything up to `sequence`. It may be another
    /// server than before, and have fewer.
    pub fn reach(&mut self, sequence: u64) {
        self.known = sequence;
        self.is_up = true;
    }

    /// Whether the server has accepted the logon of this connection.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Releases sent publishes that the server had already acknowledged, because it does not
    /// acknowledge them again. True when there is more room.
    pub fn release_known(&mut self) -> bool {
        let is_known = self.chunks.front().is_some_and(|chunk| {
            chunk.last_sequence <= self.known && self.start + chunk.frames.len() as u64 <= self.sent
        });
        if is_known {
            if let Some(log) = &mut self.log {
                log.persisted(self.known);
            }
            self.release(self.known, self.sent);
        }
        is_known
    }

    /// Everything up to `sequence` is persisted.
    pub fn persisted(&mut self, sequence: u64) {
        self.known = self.known.max(sequence);
        self.release(sequence, u64::MAX);
    }

    /// Drops the chunks up to `sequence` that end at the offset `until` or before.
    fn release(&mut self, sequence: u64, until: u64) {
        if let Some(log) = &mut self.log {
            log.persisted(sequence);
        }
        while let Some(chunk) = self.chunks.front()
            && chunk.last_sequence <= sequence
            && self.start + chunk.frames.len() as u64 <= until
        {
            self.start += chunk.frames.len() as u64;
            self.sent = self.sent.max(self.start);
            self.count -= chunk.count;
            if let Some(mut chunk) = self.chunks.pop_front() {
                chunk.frames.clear();
                self.spare = chunk.frames;
            }
        }
        while self.relative.pop_front_if(|(offset, _)| *offset < self.start).is_some() {}
    }

    /// A connection begins with its logon. The publishes follow from the start when the logon is
    /// accepted.
    pub fn begin(&mut self, logon: Vec<u8>) {
        self.rewind();
        self.commands.push_back((self.start, logon));
    }

    /// The connection was lost, and its commands with it. The next one gets every publish from the
    /// start.
    pub fn rewind(&mut self) {
        self.is_up = false;
        self.commands.clear();
        self.sent = self.start;
        let mut start = self.start;
        for chunk in &mut self.chunks {
            let end = start + chunk.frames.len() as u64;
            while let Some((offset, delay)) = self.relative.pop_front_if(|(offset, _)| *offset < end) {
                replace_delay(&mut chunk.frames[(offset - start) as usize..], delay);
            }
            start = end;
        }
    }

    /// Adds commands that are sent after every publish so far, on this connection only.
    pub fn put_command(&mut self, frames: &[u8]) {
        match self.commands.back_mut() {
            Some((after, waiting)) if *after == self.end => waiting.extend_from_slice(frames),
            _ => self.commands.push_back((self.end, frames.to_vec())),
        }
    }

    /// Whether everything that may be sent was sent.
    pub fn is_sent(&self) -> bool {
        self.commands.is_empty() && (!self.is_up || self.sent == self.end)
    }

    /// Moves frames that were not sent yet to `out`, in their order: publishes of about `size`
    /// bytes, and the commands between them.
    pub fn take(&mut self, out: &mut Vec<u8>, size: usize) {
        let full_size = out.len() + size;
        loop {
            let sent = self.sent;
            while let Some((_, commands)) = self.commands.pop_front_if(|(after, _)| *after <= sent) {
                out.extend_from_slice(&commands);
            }
            let room = full_size.saturating_sub(out.len());
            if !self.is_up || self.sent == self.end || room == 0 {
                return;
            }
            let until = self.commands.front().map_or(self.end, |(after, _)| *after);
            self.take_publishes(out, until.min(self.sent + room as u64));
        }
    }

    /// Moves publishes to `out` up to the offset `until`.
    fn take_publishes(&mut self, out: &mut Vec<u8>, until: u64) {
        let mut offset = self.start;
        for chunk in &self.chunks {
            let chunk_end = offset + chunk.frames.len() as u64;
            if chunk_end > self.sent && offset < until {
                let from = (self.sent - offset) as usize;
                let to = (until.min(chunk_end) - offset) as usize;
                out.extend_from_slice(&chunk.frames[from..to]);
                self.sent = offset + to as u64;
            }
            if self.sent >= until {
                return;
            }
            offset = chunk_end;
        }
    }
}

/// Checks whether a message or a delete may name the topic.
pub(super) fn check_topic(topic: &str) -> Result<(), Failure> {
    check_topic_name(topic).map_err(|error| {
        let size = match error {
            TopicNameError::Control { topic, at } => {
                let reason = format!("topic: {topic:?} has a control character at byte {at}");
                return Failure::new(Code::BadTopic, reason);
            }
            TopicNameError::Empty => "is empty".to_owned(),
            TopicNameError::TooLong { size } => format!("has {size} bytes"),
        };
        let reason = format!("topic: it {size}; it must have 1 to {TOPIC_SIZE_MAX} bytes");
        Failure::new(Code::BadTopic, reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares with a simple model: a list of frames, and a count of sent bytes.
        #[test]
        fn what_is_not_persisted_is_sent_in_order_after_every_reconnect(
            steps in proptest::collection::vec((0u8..5, 1usize..20_000), 1..60),
        ) {
            let mut store = PublishStore::new(1 << 30);
            store.reach(0);
            let mut frames: Vec<(u64, Vec<u8>)> = Vec::new();
            let mut wire: Vec<u8> = Vec::new();
            let (mut sequence, mut persisted) = (0u64, 0u64);
            for (step, number) in steps {
                match step {
                    0 | 1 => {
                        sequence += 1;
                        let frame = vec![sequence as u8; number];
                        store.push(sequence, |out| out.extend_from_slice(&frame)).unwrap();
                        frames.push((sequence, frame));
                    }
                    2 => store.take(&mut wire, number),
                    3 => {
                        persisted = persisted.max(number as u64 % (sequence + 1));
                        store.persisted(persisted);
                    }
                    _ => {
                        store.rewind();
                        store.reach(0);
                        wire.clear();
                        while !store.is_sent() {
                            store.take(&mut wire, number);
                        }
                        let unpersisted: Vec<u8> =
                            frames.iter().filter(|(sequence, _)| *sequence > persisted).flat_map(|(_, frame)| frame.clone()).collect();
                        prop_assert!(wire.ends_with(&unpersisted));
                        let all: Vec<u8> = frames.iter().flat_map(|(_, frame)| frame.clone()).collect();
                        prop_assert!(all.ends_with(&wire));
                    }
                }
            }
        }
    }

    #[test]
    fn a_command_goes_out_between_the_publishes_around_it_and_ends_with_its_connection() {
        for size in [1, 10, 1000] {
            let mut store = PublishStore::new(1000);
            let transmit = |store: &mut PublishStore| {
                let mut wire = Vec::new();
                while !store.is_sent() {
                    store.take(&mut wire, size);
                }
                String::from_utf8(wire).unwrap()
            };
            let publish = |store: &mut PublishStore, sequence, frame: &str| {
                store.push(sequence, |out| out.extend_from_slice(frame.as_bytes())).unwrap();
            };
            publish(&mut store, 1, "<one>");
            store.begin(b"<logon>".to_vec());
            assert_eq!(transmit(&mut store), "<logon>", "publishes wait until the logon is accepted");
            store.reach(0);
            store.put_command(b"<flush>");
            publish(&mut store, 2, "<two>");
            store.put_command(b"<pause>");
            store.put_command(b"<resume>");
            publish(&mut store, 3, "<three>");
            assert_eq!(transmit(&mut store), "<one><flush><two><pause><resume><three>");
            store.put_command(b"<stats>");
            store.begin(b"<logon>".to_vec());
            store.reach(0);
            assert_eq!(transmit(&mut store), "<logon><one><two><three>");
        }
    }

    #[test]
    fn a_full_store_takes_no_more_but_an_empty_one_takes_anything() {
        let mut store = PublishStore::new(10);
        assert_eq!(store.check_room(1000), Ok(()));
        store.push(1, |out| out.extend_from_slice(&[0; 8])).unwrap();
        assert_eq!(store.check_room(2), Ok(()));
        assert_eq!(store.check_room(3), Err(PublishError::Full { unpersisted: 1 }));
        store.persisted(1);
        assert_eq!(store.check_room(1000), Ok(()));
        assert_eq!(store.count(), 0);
    }
}
