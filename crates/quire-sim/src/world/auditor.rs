//! Records the answers that users received, and checks whether they were true.
//!
//! Checked (J1 and so on are the names of the invariants):
//! - J1, P1: a message that was acknowledged as persisted is in the log at the end, once. A refused
//!   message is not.
//! - J2: the log holds only messages that were published, and each publisher's messages in their
//!   order.
//! - B1: every reader saw exactly the log from where it began: no gap, no duplicate, one order for
//!   all.
//! - B2: a bookmark names the same message forever.
//! - A malformed message of a topic that is validated is not delivered.
//! - Q1: a message is never delivered again after a worker's acknowledgement of it was confirmed. A
//!   message that entered a queue was delivered.
//! - Q3: a queue that delivers at most once delivers no message twice.
//! - Q5: a queue delivers a message that was published with a delay when the delay is over, and not
//!   before.
//! - G3: a journal file is removed only when no queue and no subscription needs it. A reader that
//!   was not connected meanwhile continues after it.
//! - Q2: workers that fetch ahead: see [`jobs`].
//! - B3: combined replays keep the order of the log and their rate: see [`replays`].
//! - Ordinary subscribers see each publisher's messages in order, each once in the life of a
//!   connection.

use std::collections::{BTreeMap, HashMap};

use quire_client::Message;
use quire_journal::{Bookmark, Position};
use quire_types::time::{Instant, Now};

use super::Canary;
use super::delays::{ClockSteps, Delayed, delay_ns_of};
use super::last_values::Ledger;
use super::played::Played;
use super::{jobs, replays};
use crate::random::Random;

/// Number of a message over all publishers; its data.
pub(super) type Value = u64;

/// The messages that a reader asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    /// Ends of topics below `recorded/`; `None`: all of them.
    pub topic: Option<char>,
    pub condition: Condition,
}

/// A content filter, as a program would say it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Condition {
    All,
    Is(u64),
    Above(u64),
}

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Epoch,
    Now,
    /// An ordinary subscription.
    Unrecorded,
}

/// Number of a stream: the messages that one reader saw, over its reconnects and resumptions.
pub(super) type StreamId = usize;

pub(super) struct Auditor {
    canary: Option<Canary>,
    random: Random,
    validates: bool,
    /// The first publisher that does not wait for the end of its earlier connection. With
    /// replication, the instance records as late what arrives after later messages.
    first_late: usize,
    published: Vec<Published>,
    streams: Vec<Stream>,
    names: HashMap<Bookmark, Value>,
    /// Messages in journal files whose removal was begun, in the order of the log.
    gone: BTreeMap<Position, Value>,
    /// How many of them there were when each was added.
    gone_since: HashMap<Value, usize>,
    delivered: u64,
    pub clock_steps: ClockSteps,
    /// The checks of last-value topics.
    pub last_values: Ledger,
    /// The checks of workers that fetch ahead.
    pub jobs: jobs::Ledger,
    /// The checks of combined replays.
    pub replays: replays::Ledger,
    /// The first violation, if there was one.
    fault: Option<String>,
}

struct Published {
    publisher: usize,
    topic: &'static str,
    key: u64,
    is_malformed: bool,
    outcome: Outcome,
    /// Times that the queue which delivers at least once, and the one which delivers at most once,
    /// delivered it.
    deliveries: [u32; 2],
    /// When a worker got the answer that its acknowledgement is durable.
    acknowledged_at: Option<Instant>,
    /// It was published with a delay.
    delayed: Option<Delayed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unknown,
    Persisted,
    Refused,
}

struct Stream {
    reader: String,
    want: Want,
    start: Start,
    /// The number of published messages when the server accepted the subscription.
    accepted_at: Option<Value>,
    got: Vec<Value>,
    /// Nothing was received since the last connection was made.
    is_fresh: bool,
    /// Indexes of the first messages of each connection, and the number of messages that were gone
    /// then.
    resumed: HashMap<usize, usize>,
    /// Nothing more comes: it need not have reached the end.
    is_over: bool,
    /// Of an ordinary subscription: the last value of each publisher over this connection.
    last_of: HashMap<usize, Value>,
}

pub(super) const TOPICS: [&str; 3] = ["recorded/a", "recorded/b", "passing/c"];
const KEYS: u64 = 7;

impl Want {
    pub fn draw(random: &mut Random) -> Self {
        Want {
            topic: [None, Some('a'), Some('b')][random.below(3) as usize],
            condition: match random.below(4) {
                0 => Condition::Is(random.below(KEYS)),
                1 => Condition::Above(random.below(KEYS)),
                _ => Condition::All,
            },
        }
    }

    pub fn topic(&self) -> String {
        self.topic.map_or("^recorded/".into(), |end| format!("recorded/{end}"))
    }

    pub fn filter(&self) -> Option<String> {
        match self.condition {
            Condition::All => None,
            Condition::Is(key) => Some(format!("/k = {key}")),
            Condition::Above(key) => Some(format!("/k > {key}")),
        }
    }

    fn matches(&self, published: &Published) -> bool {
        let topic = published.topic.starts_with("recorded/")
            && self.topic.is_none_or(|end| published.topic.ends_with(end));
        topic
            && match self.condition {
                Condition::All => true,
                Condition::Is(key) => published.key == key,
                Condition::Above(key) => published.key > key,
            }
    }
}

impl Auditor {
    /// `validates`: the server refuses malformed messages of recorded topics. `first_late`: the
    /// first publisher whose messages may be late.
    pub fn new(
        canary: Option<Canary>,
        seed: u64,
        validates: bool,
        first_late: usize,
        last_values: Ledger,
    ) -> Self {
        Auditor {
            canary,
            random: Random::new(seed),
            validates,
            first_late,
            published: Vec::new(),
            streams: Vec::new(),
            names: HashMap::new(),
            gone: BTreeMap::new(),
            gone_since: HashMap::new(),
            delivered: 0,
            clock_steps: ClockSteps::default(),
            last_values,
            jobs: jobs::Ledger::default(),
            replays: replays::Ledger::default(),
            fault: None,
        }
    }

    fn published_count(&self) -> u64 {
        self.published.len() as u64
    }

    /// The events that it saw.
    pub fn played(&self) -> Played {
        let acknowledged = self.published.iter().filter(|published| published.acknowledged_at.is_some());
        Played {
            published: self.published_count(),
            delivered: self.delivered,
            acknowledged: acknowledged.count() as u64,
            runs: self.jobs.run_count(),
            started: self.jobs.started_count(),
            combined: self.replays.count(),
            ..self.last_values.played()
        }
    }

    /// A message to be published: its number, topic and data.
    pub fn next(&self, random: &mut Random) -> (Value, &'static str, String) {
        let value = self.published_count();
        let topic = TOPICS[random.below(3) as usize];
        let pad = "x".repeat(if random.percent(5) {
            random.below(6_000) as usize
        } else {
            random.below(80) as usize
        });
        (value, topic, format!(r#"{{"v":{value},"k":{},"pad":"{pad}"}}"#, value % KEYS))
    }

    /// Whether the next message of a topic is malformed, in some cases.
    pub fn is_malformed(&self, topic: &str, random: &mut Random) -> bool {
        self.validates && topic.starts_with("recorded/") && random.percent(3)
    }

    /// Whether clients lose the delays of messages.
    pub fn forgets_delays(&self) -> bool {
        self.canary == Some(Canary::ForgottenDelay)
    }

    /// A client has taken it. `now`: with its delay, if it has one.
    pub fn taken(&mut self, publisher: usize, topic: &'static str, now: Option<Now>, is_malformed: bool) {
        let value = self.published_count();
        let delay_ns = delay_ns_of(value, topic);
        let delayed = delay_ns.zip(now).map(|(ns, now)| self.clock_steps.delayed(ns, now));
        let key = value % KEYS;
        let is_early = self.canary == Some(Canary::EarlyAcknowledgement);
        let outcome = if is_early { Outcome::Persisted } else { Outcome::Unknown };
        self.published.push(Published {
            publisher,
            topic,
            key,
            is_malformed,
            outcome,
            deliveries: [0; 2],
            acknowledged_at: None,
            delayed,
        });
    }

    pub fn persisted(&mut self, value: Value) {
        self.published[value as usize].outcome = Outcome::Persisted;
    }

    pub fn refused(&mut self, value: Value) {
        let published = &mut self.published[value as usize];
        // An acknowledgement covers refused messages. After a lost connection it comes first.
        if published.outcome == Outcome::Persisted && !published.is_malformed {
            self.fault.get_or_insert(format!("message {value} was persisted, and then refused"));
        }
        published.outcome = Outcome::Refused;
    }

    pub fn begin(&mut self, reader: &str, want: Want, start: Start) -> StreamId {
        self.streams.push(Stream {
            reader: reader.to_owned(),
            want,
            start,
            accepted_at: None,
            got: Vec::new(),
            is_fresh: true,
            resumed: HashMap::new(),
            is_over: false,
            last_of: HashMap::new(),
        });
        self.streams.len() - 1
    }

    pub fn accepted(&mut self, stream: StreamId) {
        let count = self.published_count();
        self.streams[stream].accepted_at.get_or_insert(count);
    }

    pub fn over(&mut self, stream: StreamId) {
        self.streams[stream].is_over = true;
    }

    /// The reader has another connection.
    pub fn reconnected(&mut self, stream: StreamId) {
        self.streams[stream].last_of.clear();
        self.streams[stream].is_fresh = true;
    }

    /// The removal of the journal file with this record was begun.
    pub fn removing(&mut self, position: Position, data: &[u8]) {
        let Some(value) = value_of(data) else { return };
        let count = self.gone.len();
        self.gone.entry(position).or_insert(value);
        self.gone_since.entry(value).or_insert(count);
    }

    pub fn received(&mut self, stream: StreamId, message: &Message) {
        self.delivered += 1;
        if let Err(fault) = self.look_at(stream, message) {
            self.fault.get_or_insert(fault);
        }
    }

    fn look_at(&mut self, stream: StreamId, message: &Message) -> Result<(), String> {
        let reader = &self.streams[stream].reader;
        let value =
            value_of(message.data()).ok_or_else(|| format!("{reader} received what nobody published"))?;
        let published = self
            .published
            .get(value as usize)
            .ok_or_else(|| format!("{reader} received message {value} before it was published"))?;
        if published.topic.as_bytes() != message.source_topic() {
            return Err(format!("{reader} received message {value} under another topic"));
        }
        if !self.streams[stream].want.matches(published) {
            return Err(format!("{reader} received message {value}, for which it did not ask"));
        }
        if published.is_malformed {
            return Err(format!("{reader} received message {value}, which is malformed"));
        }
        if self.streams[stream].start == Start::Unrecorded {
            let publisher = published.publisher;
            let last = self.streams[stream].last_of.insert(publisher, value);
            return match last.filter(|last| *last >= value && publisher < self.first_late) {
                Some(last) => Err(format!(
                    "an ordinary subscription received message {value} of publisher {publisher} after {last}"
                )),
                None => Ok(()),
            };
        }
        let bookmark = message.bookmark().ok_or("a replayed message has no bookmark")?;
        let named = *self.names.entry(bookmark).or_insert(value);
        if named != value {
            return Err(format!("bookmark {bookmark} names message {named} and message {value}"));
        }
        let gone_count = self.gone.len();
        let Stream { got, is_fresh, resumed, .. } = &mut self.streams[stream];
        if std::mem::take(is_fresh) {
            resumed.insert(got.len(), gone_count);
        }
        let is_meant = self.random.percent(2);
        match self.canary {
            Some(Canary::SkippedDelivery) if is_meant => (),
            Some(Canary::RepeatedDelivery) if is_meant => got.extend([value, value]),
            Some(Canary::SwappedDelivery) if is_meant => got.insert(got.len().saturating_sub(1), value),
            _ => got.push(value),
        }
        Ok(())
    }

    /// A queue delivered a message at `now` over a connection that was made at `since`; gives its
    /// number.
    pub fn delivered(
        &mut self,
        worker: &str,
        now: Instant,
        since: Instant,
        at_most_once: bool,
        message: &Message,
    ) -> Option<Value> {
        self.delivered += 1;
        let value = value_of(message.data())?;
        let Some(published) = self.published.get_mut(value as usize) else {
            self.fault.get_or_insert(format!("{worker} received message {value} before it was published"));
            return None;
        };
        if published.is_malformed {
            self.fault.get_or_insert(format!("message {value} came to {worker}, and is malformed"));
        }
        published.deliveries[usize::from(at_most_once)] += 1;
        if published.delayed.is_some_and(|delayed| self.clock_steps.is_early(delayed, now.as_ns())) {
            self.fault.get_or_insert(format!("message {value} came to {worker} before its delay was over"));
        }
        if at_most_once && published.deliveries[1] > 1 {
            self.fault
                .get_or_insert(format!("message {value} was delivered twice, the second time to {worker}"));
        }
        // On an older connection it may have been under way when another worker, whose lease was
        // over, acknowledged it.
        if !at_most_once && published.acknowledged_at.is_some_and(|at| at < since) {
            self.fault.get_or_insert(format!("message {value} was acknowledged, and came again to {worker}"));
        }
        Some(value)
    }

    /// A worker got the answer that its acknowledgement of a message is durable.
    pub fn acknowledged(&mut self, value: Value, now: Instant) {
        self.published[value as usize].acknowledged_at.get_or_insert(now);
    }

    /// Messages of the queue whose messages are delivered until they are acknowledged that were
    /// delivered at least once.
    pub fn taken_count(&self) -> usize {
        self.published.iter().filter(|published| published.deliveries[0] > 0).count()
    }

    /// # Errors
    /// What was seen to be wrong so far.
    pub fn fault(&self) -> Result<(), String> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    /// `witness`: the stream of the reader of everything.
    ///
    /// # Errors
    /// What was promised and did not hold.
    pub fn verdict(&self, witness: Option<StreamId>) -> Result<(), String> {
        self.fault()?;
        self.last_values.verdict()?;
        self.jobs.verdict()?;
        let witness = witness.ok_or("no reader of the whole log at the end")?;
        let log = self.whole_log(&self.streams[witness].got);
        self.check_log(&log)?;
        for stream in &self.streams {
            self.check_stream(stream, &log)?;
        }
        let mut places = vec![None; self.published.len()];
        for (place, value) in log.iter().enumerate() {
            places[*value as usize] = Some(place);
        }
        self.replays.verdict(&places)
    }

    /// The log from its beginning on: the removed messages, and those that are there at the end.
    fn whole_log(&self, present: &[Value]) -> Vec<Value> {
        let removed = self.gone.values().copied().take_while(|value| present.first() != Some(value));
        removed.chain(present.iter().copied()).collect()
    }

    /// Whether the message may have been gone when `count` messages were gone.
    fn was_gone(&self, value: Value, count: usize) -> bool {
        self.gone_since.get(&value).is_some_and(|since| *since < count)
    }

    fn check_log(&self, log: &[Value]) -> Result<(), String> {
        let mut times = vec![0; self.published.len()];
        let mut last_of = HashMap::new();
        for &value in log {
            times[value as usize] += 1;
            let publisher = self.published[value as usize].publisher;
            let last = last_of.insert(publisher, value).filter(|last| *last >= value);
            if let Some(last) = last.filter(|_| publisher < self.first_late) {
                return Err(format!("the log holds message {value} of publisher {publisher} after {last}"));
            }
        }
        for &value in log {
            let published = &self.published[value as usize];
            let may_be_late = published.delayed.is_some() && self.clock_steps.may_be_late();
            if published.topic == "recorded/b" && published.deliveries[0] == 0 && !may_be_late {
                return Err(format!("message {value} entered the queue and was never delivered"));
            }
        }
        for (value, published) in self.published.iter().enumerate() {
            // A client does not learn of a refusal when the connection is lost before, and an
            // acknowledgement of later messages covers the refused one.
            let is_recorded = published.topic.starts_with("recorded/") && !published.is_malformed;
            match (published.outcome, times[value]) {
                (Outcome::Persisted, 0) if is_recorded => {
                    return Err(format!(
                        "message {value} was acknowledged as persisted and is not in the log"
                    ));
                }
                (Outcome::Refused, 1..) => {
                    return Err(format!("message {value} was refused and is in the log"));
                }
                (_, 2..) => return Err(format!("message {value} is in the log {} times", times[value])),
                _ => (),
            }
        }
        Ok(())
    }

    fn check_stream(&self, stream: &Stream, log: &[Value]) -> Result<(), String> {
        if stream.start == Start::Unrecorded {
            return Ok(());
        }
        let wanted: Vec<Value> = log
            .iter()
            .copied()
            .filter(|value| stream.want.matches(&self.published[*value as usize]))
            .collect();
        let begin = match (stream.start, stream.got.first()) {
            (Start::Epoch, _) => 0,
            (_, Some(first)) => {
                wanted.iter().position(|value| value == first).ok_or_else(|| stream.fault("saw", *first))?
            }
            (_, None) => wanted.len(),
        };
        let mut at = begin;
        for (index, value) in stream.got.iter().enumerate() {
            if let Some(gone_count) = stream.resumed.get(&index) {
                let is_passed = |next: &&Value| *next != value && self.was_gone(**next, *gone_count);
                at += wanted[at.min(wanted.len())..].iter().take_while(is_passed).count();
            }
            let expected = wanted.get(at);
            at += 1;
            match expected {
                Some(expected) if expected == value => (),
                Some(expected) => {
                    return Err(format!(
                        "{} saw message {value} where {expected} stands in the log ({:?})",
                        stream.reader, stream.start
                    ));
                }
                None => return Err(stream.fault("saw", *value)),
            }
        }
        if stream.is_over {
            return Ok(());
        }
        let missing = &wanted[at..];
        let owed = |value: &&Value| {
            if stream.is_fresh && self.was_gone(**value, self.gone.len()) {
                return false;
            }
            stream.start == Start::Epoch
                || !stream.got.is_empty()
                || stream.accepted_at.is_some_and(|accepted_at| **value >= accepted_at)
        };
        missing.iter().find(owed).map_or(Ok(()), |value| Err(stream.fault("never saw", *value)))
    }
}

impl Stream {
    fn fault(&self, verb: &str, value: Value) -> String {
        format!("{} {verb} message {value} of the log ({:?}, {:?})", self.reader, self.start, self.want)
    }
}

pub(super) fn value_of(data: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(data).ok()?.strip_prefix(r#"{"v":"#)?;
    text.split_once(',')?.0.parse().ok()
}
