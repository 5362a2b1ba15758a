//! Records and checks the answers and messages that publishers, queries and subscriptions of
//! last-value topics get.
//!
//! Checked:
//! - A message or a delete that was acknowledged as persisted is in the log, once. A refused
//!   message is not.
//! - A delete removes the records that it names, and no others.
//! - The result of a query is the state of the topic at one instant after the command. After a
//!   start, the state is that of the log.
//! - A subscription that wants `oof` has the records that match at one instant in view, after each
//!   connection and after each message.
//! - A subscription sees every later publish that matches once and in order, as long as its
//!   connection lasts.
//! - A record leaves a view only when it is in the view. No record comes a second time.
//! - A difference, merged into the record that the program has, is the message that was published.
//! - A page has the records at its places of the order after each message. A replaced subscription
//!   receives the difference of the two views.
//! - A conflated subscription receives newer messages about each record, and has the state of the
//!   topic at the end.
//! - The state of an earlier instant is that of the log, and a subscription that begins with it
//!   sees every later message of the log.

use std::collections::{HashMap, VecDeque};

use quire_client::{Cause, Message};
use quire_journal::{Journal, Position};
use quire_types::time::Now;

use super::log::{Earlier, Log};
use super::place::{Seen, Shape};
use super::queries::Answered;
use super::records::read_data;
use super::streams::{Complete, Course, Lifetimes, Stream, View};
use super::{Topic, Want};
use crate::random::Random;
use crate::world::Canary;
use crate::world::played::Played;

/// The time in which the instant of a command is: positions of the log, and the wall clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub from: u64,
    pub to: u64,
    wall_from: u64,
    wall_to: u64,
    clock_steps: u64,
    pub(super) life: u64,
}

#[cfg(test)]
impl Span {
    /// The time between two positions of the log.
    pub fn between(from: u64, to: u64) -> Self {
        Span { from, to, wall_from: 0, wall_to: 0, clock_steps: 0, life: 0 }
    }
}

/// See the module.
pub(in crate::world) struct Ledger {
    canary: Option<Canary>,
    random: Random,
    pub(super) topics: Vec<Topic>,
    pub(super) messages: Vec<Sent>,
    /// By publisher and sequence.
    pub(super) deletes: HashMap<(u64, u64), Deletion>,
    pub(super) logs: Vec<Log>,
    streams: Vec<Stream>,
    /// Checks, and the positions up to which the log must be known for them.
    waiting: VecDeque<(u64, Check)>,
    /// The log is known up to here.
    pub(super) read_to: Position,
    appended: u64,
    /// The first position that the log has.
    first: u64,
    wall: u64,
    /// The latest time of the wall clock. A server that starts loads a snapshot without the records
    /// that had expired by the clock of that time.
    peak: u64,
    clock_steps: u64,
    /// Number of the running server.
    pub(super) life: u64,
    /// Of each topic: the position of the last query of everything whose result was right.
    confirmed: Vec<Option<u64>>,
    /// Of each topic that is not in the log: the result of the last query of everything.
    pub(super) last_views: Vec<Option<View>>,
    pub(super) played: Played,
    fault: Option<String>,
}

pub(super) struct Sent {
    pub topic: usize,
    pub key: u64,
    pub quantity: u64,
    outcome: Option<bool>,
    /// It is in the log.
    pub is_logged: bool,
}

pub(super) struct Deletion {
    pub topic: usize,
    pub want: Want,
    pub sent: Span,
    is_persisted: bool,
    /// The number of records in the answer to the publisher.
    told: Option<u64>,
    /// The server of this answer.
    told_life: u64,
    /// The number of keys in the log.
    pub logged: Option<u64>,
    /// The server that recorded it.
    pub logged_life: u64,
}

enum Check {
    Query(Answered),
    Complete { stream: usize, complete: Complete },
    Message { stream: usize, seen: Seen },
    Outdated { stream: usize },
}

impl Ledger {
    pub fn new(topics: Vec<Topic>, canary: Option<Canary>, seed: u64) -> Self {
        Ledger {
            canary,
            random: Random::new(seed),
            logs: topics.iter().map(|topic| Log::new(topic.key_count)).collect(),
            confirmed: vec![None; topics.len()],
            last_views: vec![None; topics.len()],
            topics,
            messages: Vec::new(),
            deletes: HashMap::new(),
            streams: Vec::new(),
            waiting: VecDeque::new(),
            read_to: Position::ZERO,
            appended: 0,
            first: 0,
            wall: 0,
            peak: 0,
            clock_steps: 0,
            life: 0,
            played: Played::default(),
            fault: None,
        }
    }

    /// The events that it saw.
    pub fn played(&self) -> Played {
        self.played
    }

    pub(super) fn is_meant(&mut self, canary: Canary, percent: u64) -> bool {
        self.canary == Some(canary) && self.random.percent(percent)
    }

    fn fail(&mut self, result: Result<(), String>) {
        if let Err(reason) = result {
            self.fault.get_or_insert(reason);
        }
    }

    // The server and the log.

    /// The wall clock made a step.
    pub fn clock_stepped(&mut self) {
        self.clock_steps += 1;
    }

    /// A server has started.
    pub fn server_starts(&mut self, journal: &Journal, now: Now) {
        self.waiting.clear();
        self.streams.iter_mut().for_each(Stream::lose_place);
        self.follow(journal, now);
        self.life += 1;
        let first = journal.reader().first().get();
        for (topic, log) in self.topics.iter().zip(&mut self.logs) {
            log.begin(topic.known_from(first));
        }
    }

    /// Reads the records that were persisted since the last call, and makes the checks that waited
    /// for them.
    pub fn follow(&mut self, journal: &Journal, now: Now) {
        self.appended = journal.appended().get();
        self.first = journal.reader().first().get();
        self.wall = now.wall.as_ns();
        self.peak = self.peak.max(self.wall);
        if !self.topics.is_empty() && journal.persisted() > self.read_to {
            let result = self.read(&journal.reader(), journal.persisted());
            self.fail(result);
        }
        self.check_known();
    }

    /// Makes the checks for which the log is known.
    fn check_known(&mut self) {
        while let Some((_, check)) = self.waiting.pop_front_if(|(until, _)| *until <= self.read_to.get()) {
            let result = self.check(check);
            self.fail(result);
        }
    }

    fn check(&mut self, check: Check) -> Result<(), String> {
        match check {
            Check::Query(answered) => {
                let topic = answered.topic;
                answered.check(&self.logs[topic], self.lifetimes(&answered.span))?;
                self.played.queried += 1;
                self.played.earlier += u64::from(answered.earlier.is_some());
                if matches!(answered.want, Want { condition: super::Condition::All, keys: None })
                    && answered.top_n.is_none()
                    && answered.earlier.is_none()
                {
                    self.confirmed[topic] = Some(answered.span.from);
                }
                Ok(())
            }
            Check::Complete { stream, complete } => {
                let lifetimes = self.lifetimes(&complete.span);
                let stream = &mut self.streams[stream];
                stream.resynchronized(&self.logs[stream.topic], &complete, lifetimes)
            }
            Check::Message { stream, seen } => {
                let stream = &mut self.streams[stream];
                stream.follow(&self.logs[stream.topic], seen)
            }
            Check::Outdated { stream } => {
                self.streams[stream].lose_place();
                Ok(())
            }
        }
    }

    fn lifetimes(&self, span: &Span) -> Lifetimes {
        let is_steady = span.clock_steps == self.clock_steps;
        let over = if is_steady { span.wall_from.min(span.wall_to) } else { 0 };
        Lifetimes { over, peak: self.peak }
    }

    // Programs.

    /// The time from now on.
    pub(super) fn span(&self, now: Now) -> Span {
        let wall = now.wall.as_ns();
        Span {
            from: self.appended,
            to: self.appended,
            wall_from: wall,
            wall_to: wall,
            clock_steps: self.clock_steps,
            life: self.life,
        }
    }

    fn end(&self, span: &mut Span, now: Now) {
        (span.to, span.wall_to) = (self.appended, now.wall.as_ns());
        if span.life != self.life || span.clock_steps != self.clock_steps {
            // The command is older than the server, or the clock made a step meanwhile.
            span.wall_from = 0;
        }
        if span.life != self.life {
            span.from = 0;
        }
    }

    /// The key of the server for a value of `/k`, when a message with it is known.
    pub(super) fn key_name(&self, topic: usize, key: u64) -> Option<String> {
        if !self.topics[topic].has_generated_keys {
            return Some(format!("key-{key}"));
        }
        Some(String::from_utf8_lossy(self.logs[topic].name_of(key)?).into_owned())
    }

    /// A message to be published: its number, the value of `/k`, and its data.
    pub(super) fn next(&self, topic: usize, random: &mut Random) -> (u64, u64, u64, String) {
        let value = self.messages.len() as u64;
        let key = random.below(self.topics[topic].key_count);
        let quantity = random.below(super::QUANTITIES);
        let size = if random.percent(20) { random.below(4_000) } else { random.below(60) };
        let pad = "x".repeat(size as usize);
        (value, key, quantity, format!(r#"{{"v":{value},"k":{key},"q":{quantity},"pad":"{pad}"}}"#))
    }

    pub(super) fn sent(&mut self, topic: usize, key: u64, quantity: u64) {
        self.messages.push(Sent { topic, key, quantity, outcome: None, is_logged: false });
    }

    pub(super) fn published(&mut self, value: u64, is_persisted: bool) {
        self.messages[value as usize].outcome = Some(is_persisted);
    }

    pub(super) fn delete(&mut self, publisher: u64, sequence: u64, topic: usize, want: Want, sent: Span) {
        let deletion = Deletion {
            topic,
            want,
            sent,
            is_persisted: false,
            told: None,
            told_life: 0,
            logged: None,
            logged_life: 0,
        };
        self.deletes.insert((publisher, sequence), deletion);
    }

    pub(super) fn deleted(&mut self, publisher: u64, sequence: u64, told: Option<u64>) {
        let Some(deletion) = self.deletes.get_mut(&(publisher, sequence)) else { return };
        match told {
            Some(told) => (deletion.told, deletion.told_life) = (Some(told), self.life),
            None => deletion.is_persisted = true,
        }
    }

    pub(super) fn answered(&mut self, mut answered: Answered, now: Now) {
        if !self.topics[answered.topic].is_logged {
            let result = self.take_unlogged(&answered);
            return self.fail(result);
        }
        self.end(&mut answered.span, now);
        let canary = if answered.earlier.is_some() { Canary::LaterState } else { Canary::LateRecord };
        if self.is_meant(canary, 20)
            && let Some((key, value)) = answered.rows.last_mut()
            && let Some(later) =
                self.messages.iter().rposition(|sent| (sent.topic, sent.key) == (answered.topic, *key))
        {
            *value = later as u64;
        }
        self.waiting.push_back((answered.span.to, Check::Query(answered)));
        self.check_known();
    }

    pub(super) fn refused(&mut self, reason: String) {
        self.fault.get_or_insert(reason);
    }

    /// Reads a record of a query: the value of `/k`, and the number of the message.
    pub(super) fn record(&mut self, topic: usize, message: &Message) -> Option<(u64, u64)> {
        let read = self.read_message(topic, message);
        let Ok((value, key, _)) = read else {
            self.fail(read.map(drop));
            return None;
        };
        if message.cause() != Cause::Query {
            self.refused(format!("a query received message {value} with the cause {:?}", message.cause()));
        }
        Some((key, value))
    }

    fn read_message(&mut self, topic: usize, message: &Message) -> Result<(u64, u64, u64), String> {
        self.read_data(topic, message, message.data())
    }

    /// Reads `data`, which is the record after a message.
    fn read_data(&mut self, topic: usize, message: &Message, data: &[u8]) -> Result<(u64, u64, u64), String> {
        let read = read_data(data).ok_or("a message with unknown data")?;
        let (value, key, quantity) = read;
        let sent = self.messages.get(value as usize).map(|sent| (sent.topic, sent.key, sent.quantity));
        if sent != Some((topic, key, quantity))
            || message.source_topic() != self.topics[topic].name.as_bytes()
        {
            return Err(format!("message {value} came from topic {topic}, sent was {sent:?}"));
        }
        self.logs[topic].name(message.key(), key)?;
        Ok(read)
    }

    pub(super) fn begin(
        &mut self,
        name: &str,
        topic: usize,
        shape: Shape,
        course: Course,
        wants_oof: bool,
        is_delta: bool,
    ) -> usize {
        let name = format!("{name}, stream {}", self.streams.len());
        self.streams.push(Stream::new(name, topic, shape, course, wants_oof, is_delta));
        self.streams.len() - 1
    }

    /// A command was sent that replaces a subscription.
    pub(super) fn replace(&mut self, stream: usize, shape: Shape) {
        let stream = &mut self.streams[stream];
        stream.shapes.push(shape);
        stream.is_replacing = true;
    }

    /// It was answered.
    pub(super) fn replaced(&mut self, stream: usize, is_accepted: bool) {
        self.played.replaced += u64::from(is_accepted);
        self.streams[stream].replaced(is_accepted);
    }

    /// A subscription is entered on a new connection.
    pub(super) fn entered(&mut self, stream: usize) {
        let stream = &mut self.streams[stream];
        stream.entered = stream.shapes.len() - 1 - usize::from(stream.is_replacing);
    }

    /// The newest position of the log.
    pub(super) fn appended(&self) -> u64 {
        self.appended
    }

    /// An instant of a topic that keeps its history, as a command names it, and its meaning.
    pub(super) fn draw_earlier(&self, topic: usize, random: &mut Random) -> Option<(String, Earlier)> {
        self.logs[topic].draw_earlier(self.topics[topic].granularity_ns?, random)
    }

    /// Whether the log no longer has the message of an instant.
    pub(super) fn is_removed(&self, earlier: Option<&Earlier>) -> bool {
        earlier.is_some_and(|earlier| earlier.0.iter().any(|at| at.position < self.first))
    }

    pub(super) fn over(&mut self, stream: usize) {
        self.streams[stream].is_over = true;
    }

    /// The connection of a subscription is gone.
    pub(super) fn outdated(&mut self, stream: usize) {
        self.streams[stream].was_outdated = true;
        if matches!(self.streams[stream].course, Course::Log { next: Some(_), .. }) {
            return;
        }
        self.streams[stream].is_complete = false;
        self.waiting.push_back((self.appended, Check::Outdated { stream }));
        self.check_known();
    }

    /// The program has all records of a connection.
    pub(super) fn complete(&mut self, number: usize, mut span: Span, now: Now) {
        self.end(&mut span, now);
        let stream = &mut self.streams[number];
        // Of a first result that was cut off, the program may have records that are gone now.
        let is_first = !std::mem::replace(&mut stream.was_complete, true) && !stream.was_outdated;
        stream.is_complete = true;
        stream.life = self.life;
        if !self.topics[stream.topic].is_logged {
            return;
        }
        if matches!(stream.course, Course::Log { .. }) {
            let result = stream.begun(&self.logs[stream.topic], is_first);
            return self.fail(result);
        }
        // The client looks for the records that it has lost, and the difference to the next shape
        // may come meanwhile.
        let shape = stream.entered;
        stream.is_unsure = stream.was_outdated && shape + 1 < stream.shapes.len();
        if stream.is_unsure {
            return;
        }
        let complete = Complete { view: stream.view.clone(), is_first, span, shape };
        self.waiting.push_back((span.to, Check::Complete { stream: number, complete }));
        self.check_known();
    }

    /// A message of a subscription.
    pub(super) fn followed(&mut self, stream: usize, message: &Message) {
        self.played.followed += 1;
        let result = self.take_message(stream, message);
        self.fail(result);
    }

    /// Whether a deliberate mistake keeps a message from a stream.
    fn skips(&mut self, number: usize) -> bool {
        let stream = &self.streams[number];
        let is_meant = stream.is_complete
            && match self.canary {
                Some(Canary::SkippedFollowing) => matches!(stream.course, Course::Log { .. }),
                Some(Canary::SkippedMove) => stream.shape().page.is_some(),
                Some(Canary::SkippedDifference) => stream.shapes.len() > 1,
                _ => false,
            };
        is_meant && self.random.percent(10)
    }

    fn take_message(&mut self, number: usize, message: &Message) -> Result<(), String> {
        let topic = self.streams[number].topic;
        if self.skips(number) {
            return Ok(());
        }
        let seen = match message.cause() {
            Cause::Left(_) if self.is_meant(Canary::ForgottenOof, 10) => return Ok(()),
            Cause::Publish | Cause::Delta if self.is_meant(Canary::SkippedChange, 5) => return Ok(()),
            Cause::Delete => return Err("a delete of the log, for which no stream asks".to_owned()),
            Cause::Left(reason) => {
                self.played.left += 1;
                let (key, value) = if message.data().is_empty() {
                    // The client core has only the key.
                    (self.logs[topic].key_of(message.key()).ok_or("an unknown key left a view")?, None)
                } else {
                    let (value, key, _) = self.read_message(topic, message)?;
                    (key, Some(value))
                };
                Seen::Left { reason, key, value }
            }
            cause @ (Cause::Query | Cause::Publish | Cause::Delta) => {
                self.played.differences += u64::from(cause == Cause::Delta);
                let whole = self.streams[number].whole(message)?;
                let (value, key, quantity) = self.read_data(topic, message, &whole)?;
                let stream = &self.streams[number];
                if !stream.wants(key, quantity) {
                    return Err(format!(
                        "{} received message {value}, for which it did not ask",
                        stream.name
                    ));
                }
                let is_conflated = stream.is_complete && matches!(stream.course, Course::Conflated(_));
                let is_older = |sent: &Sent| (sent.topic, sent.key) == (topic, key) && sent.is_logged;
                let value = match self.messages.iter().position(is_older) {
                    Some(older) if is_conflated && self.is_meant(Canary::OlderMessage, 20) => older as u64,
                    _ => value,
                };
                Seen::Publish { key, value }
            }
        };
        let stream = &mut self.streams[number];
        self.played.paged += u64::from(stream.shape().page.is_some());
        self.played.conflated += u64::from(matches!(stream.course, Course::Conflated(_)));
        let name = &stream.name;
        if let Course::Log { next: Some(_), .. } = &stream.course {
            self.played.earlier += 1;
            return stream.follow(&self.logs[topic], seen);
        }
        match seen {
            Seen::Publish { key, value } => {
                // A publisher sends a message again that a crash has lost. A message that the log
                // does not record it sends again after each lost connection over which it was not
                // acknowledged.
                let is_same_server = stream.life == self.life && self.topics[topic].is_logged;
                if stream.view.insert(key, value) == Some(value) && stream.wants_oof && is_same_server {
                    return Err(format!("{name} received message {value} again"));
                }
            }
            Seen::Left { .. } if !stream.wants_oof => return Err(format!("{name} received an oof")),
            Seen::Left { key, .. } => {
                if stream.view.remove(&key).is_none() {
                    return Err(format!("{name} saw {seen:?}, and did not have the record in view"));
                }
            }
        }
        if message.cause() == Cause::Query && stream.was_complete {
            return Err(format!(
                "{name} received {seen:?} as a record of its first result, which is complete"
            ));
        }
        if stream.is_complete && self.topics[topic].is_logged {
            self.waiting.push_back((self.appended, Check::Message { stream: number, seen }));
            self.check_known();
        }
        Ok(())
    }

    /// # Errors
    /// What was promised and did not hold.
    pub fn verdict(&self) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if !self.waiting.is_empty() {
            return Err("some checks of last values wait for the log".into());
        }
        for (value, sent) in self.messages.iter().enumerate() {
            if !self.topics[sent.topic].is_logged {
                continue;
            }
            match (sent.outcome, sent.is_logged) {
                (Some(true), false) => {
                    return Err(format!("last value {value} was persisted, and is not in the log"));
                }
                (Some(false), true) => {
                    return Err(format!("last value {value} was refused, and is in the log"));
                }
                _ => (),
            }
        }
        for (at, deletion) in &self.deletes {
            let is_logged = self.topics[deletion.topic].is_logged;
            // A topic of a pattern that has no records has no table, and the log has no delete of
            // it. A crash may have lost the records, and the delete is repeated after it.
            let has_told = deletion.told.is_some_and(|told| told > 0) && deletion.told_life == self.life;
            let is_empty = self.topics[deletion.topic].is_of_pattern && !has_told;
            if deletion.is_persisted && deletion.logged.is_none() && is_logged && !is_empty {
                let Deletion { topic, want, told, .. } = deletion;
                return Err(format!(
                    "the delete {at:?} of {want:?} of topic {topic} was persisted and answered with {told:?}, and is not in the log"
                ));
            }
            // After a crash that lost the record, a repeated delete may find other records.
            if deletion.logged.is_some()
                && deletion.logged_life == deletion.told_life
                && deletion.told.is_some_and(|told| told > 0 && Some(told) != deletion.logged)
            {
                return Err(format!("the delete {at:?} was answered with {:?}", deletion.told));
            }
        }
        let lifetimes = Lifetimes { over: self.wall.saturating_sub(super::SECOND_NS), peak: self.peak };
        for stream in &self.streams {
            match &self.last_views[stream.topic] {
                Some(last) if !stream.is_over => {
                    stream.verdict_unlogged(&self.visible(stream.shape(), last))?
                }
                Some(_) => (),
                None => stream.verdict(&self.logs[stream.topic], lifetimes)?,
            }
        }
        for (topic, log) in self.logs.iter().enumerate() {
            let last = log.changes.last().map(|change| change.position);
            if self.last_views[topic].is_some() {
                continue;
            }
            if self.confirmed[topic].is_none_or(|at| last.is_some_and(|last| at < last)) {
                return Err(format!("the last state of topic {topic} was not queried"));
            }
        }
        Ok(())
    }
}
