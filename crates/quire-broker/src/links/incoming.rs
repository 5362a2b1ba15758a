//! A link from a source: the state machine of the destination (docs/replication.md).
//!
//! A link begins with `hello`. The two configurations are checked against each other, and the log is asked for the message that the source
//! knows to be here. Then `welcome` is sent, and records arrive. The run loop takes them one frame at a time, so that a source which has
//! much to send does not keep the other connections waiting. A frame is acknowledged when all that was recorded of it is safe here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quire_journal::{Instance, Position, PublisherId};
use quire_types::time::Instant;
use quire_wire::link::{
    FRAME_OVERHEAD_MAX, Frame, Hello, Mark, Records, VERSION, Welcome, announced_size, next_frame,
    take_records,
};

use super::check::Checking;
use super::compress::decompress;
use super::conflict::{Comparison, Conflict, Duplicates};
use super::record::SentRecord;
use super::{HEARTBEAT, Links, SILENCE_MAX};
use crate::config::links::{Definition, KEY, SOW};
use crate::context::Context;
use crate::io::{ConnectionId, Event, Output};
use crate::replicated::Destinations;
use crate::stats::SourceStats;

/// The time between two `hello` frames on a connection, at least. Each costs checks, a search of the log, and a line in the log of the server.
const HELLO_INTERVAL: Duration = Duration::from_millis(100);

/// The link from the other instance of a connection.
pub(super) struct Incoming {
    connection: ConnectionId,
    peer: String,
    /// The links of this instance.
    own_links: Arc<[Arc<Definition>]>,
    /// The frames of sources on this connection.
    input: Vec<u8>,
    /// Bytes of `input` that were worked on.
    taken_size: usize,
    state: State,
    received_at: Instant,
    sent_at: Instant,
    /// When the last `hello` was taken, and when the one that waits may be.
    greeted_at: Option<Instant>,
    greets_at: Option<Instant>,
    link: Link,
}

/// All that ends with the link.
#[derive(Default)]
struct Link {
    /// The source, once its `hello` came.
    source: Option<SourceInstance>,
    /// By hops at the source, each in the order of its log.
    pending: BTreeMap<u8, VecDeque<PendingAck>>,
    /// The place in the log of the source up to which its records came, and up to which they are acknowledged.
    received: Position,
    acknowledged: Position,
    record_count: u64,
    duplicate_count: u64,
    comparing: Comparing,
    conflict_count: u64,
    /// Publishers whose first conflict was logged.
    reported: Vec<PublisherId>,
    /// The source has sent everything that it had when the link came up.
    has_caught_up: bool,
    /// The source was let in during this turn.
    is_new: bool,
    /// The introduction of the source, while it is checked.
    checking: Option<(Checking, Option<Mark>)>,
    /// The checks that the source leaves out.
    rules: LinkRules,
    /// The frame of records at the front of the input, when a part of its records was recorded.
    begun: Option<Begun>,
}

/// The differences of the two configurations that the source permits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkRules {
    /// Only one of the two keeps last values of a topic.
    pub(crate) any_sow: bool,
    /// The keys of a topic have different rules.
    pub(crate) any_key: bool,
}

/// A frame of records of which a part was recorded.
struct Begun {
    /// The body of the frame when it was compressed.
    body: Option<Vec<u8>>,
    /// Bytes of its records that were worked on.
    done: usize,
    taken: Taken,
}

/// The instance at the other end.
#[derive(Clone, Debug)]
pub(super) struct SourceInstance {
    pub(super) name: Arc<str>,
    pub(super) group: Arc<str>,
    pub(super) started_ns: u64,
}

impl SourceInstance {
    pub(super) fn as_instance(&self) -> Instance<'_> {
        Instance { name: &self.name, group: &self.group }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The other instance has connected, and nothing else came.
    AwaitingHello,
    /// No link. Another one may begin.
    Idle,
    /// `hello` came, and is not answered.
    Greeting,
    /// The log is searched for the message of the mark.
    Searching {
        number: u64,
        mark: Mark,
    },
    Open,
    /// The bytes of the peer have no meaning: no link can begin on this connection.
    Broken,
}

/// Whether the duplicates of a frame are compared with the log here. Those of the frames that come meanwhile are not.
#[derive(Debug, Default)]
enum Comparing {
    #[default]
    Nothing,
    /// They begin to be compared when the log is on the disk up to this position, because only then it can be searched.
    Due(Position, Duplicates),
    Running(u64),
}

/// An acknowledgement that the source is to get: of the records with the same hops in a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingAck {
    /// The position of the last of them in the log of the source.
    through: Position,
    /// It is sent when this position of the log here is safe.
    position: Position,
    destinations: Destinations,
    mark: Option<Mark>,
}

/// A frame of records for the run loop.
pub(crate) struct Arrived {
    connection: ConnectionId,
    source: SourceInstance,
    input: Vec<u8>,
    begin: usize,
    size: usize,
    begun: Begun,
    rules: LinkRules,
}

/// The result of recording the records of a frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) record_count: u64,
    pub(crate) duplicate_count: u64,
    /// By hops at the source.
    by_hops: BTreeMap<u8, Waiting>,
    duplicates: Duplicates,
    /// The last position of the log before the frame, and how many of its records the log took.
    after: Position,
    recorded_count: u64,
    /// The last of these, at its place in the log of the source.
    last: Option<Mark>,
}

/// A piece of the log that came from one other instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// The position before it.
    pub(super) after: Position,
    pub(super) through: Position,
    /// Its last record, at its place in the log of the other instance.
    pub(super) mark: Mark,
}

/// The condition under which the records with the same hops in a frame are acknowledged.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    through: Position,
    position: Position,
    destinations: Destinations,
}

impl Begun {
    fn new(cx: &Context, body: Option<Vec<u8>>) -> Self {
        Begun { body, done: 0, taken: Taken::after(cx.log.appended()) }
    }
}

impl Taken {
    fn after(after: Position) -> Self {
        Taken { after, ..Taken::default() }
    }

    /// The log took a record.
    pub(crate) fn note_recorded(&mut self, record: &SentRecord<'_>) {
        self.recorded_count += 1;
        self.last = Some(Mark { position: record.position, bookmark: record.bookmark });
    }

    /// The piece of the log that has the records of the frame, when it has nothing else.
    pub(super) fn run(&self, appended: Position) -> Option<Run> {
        let is_whole = appended.get() - self.after.get() == self.recorded_count;
        self.last.filter(|_| is_whole).map(|mark| Run { after: self.after, through: appended, mark })
    }

    /// A record was at `through` in the log of the source, and is at `position` or earlier here. Its acknowledgement waits for the
    /// destinations.
    pub(crate) fn note(
        &mut self,
        hops: u8,
        through: Position,
        position: Position,
        destinations: Destinations,
    ) {
        let waiting = self.by_hops.entry(hops).or_default();
        waiting.through = waiting.through.max(through);
        waiting.position = waiting.position.max(position);
        waiting.destinations = waiting.destinations.union(destinations);
    }

    /// A record counts as a duplicate. Those that the source has from elsewhere are compared by the instances that they come from.
    pub(crate) fn note_duplicate(&mut self, record: &SentRecord<'_>) {
        self.duplicate_count += 1;
        if record.attributes.path().instances().next().is_none() {
            self.duplicates.note(record);
        }
    }
}

impl Arrived {
    pub(super) fn connection(&self) -> ConnectionId {
        self.connection
    }

    pub(crate) fn source(&self) -> Instance<'_> {
        self.source.as_instance()
    }

    /// The differences of the two configurations that the source permits.
    pub(crate) fn rules(&self) -> LinkRules {
        self.rules
    }

    /// Takes the result so far out. The caller continues it, and gives it back to the link.
    pub(crate) fn take_result(&mut self) -> Taken {
        std::mem::take(&mut self.begun.taken)
    }

    /// The records that were not worked on yet, in their order, each with the number of bytes up to its end.
    ///
    /// # Errors
    /// The bytes after the last one are not a record.
    pub(crate) fn records(&self) -> impl Iterator<Item = Result<(SentRecord<'_>, usize), String>> {
        let records = self.frame().map(|records| records.each_after(self.begun.done));
        records.into_iter().flatten().map(|record| {
            let record = record.and_then(|(record, end)| Ok((SentRecord::new(record)?, end)));
            record.map_err(|error| error.to_string())
        })
    }

    fn frame(&self) -> Option<Records<'_>> {
        if let Some(body) = &self.begun.body {
            return take_records(body).ok();
        }
        match next_frame(&self.input[self.begin..self.begin + self.size], usize::MAX) {
            Ok(Some((Frame::Records(records), _))) => Some(records),
            _ => None,
        }
    }
}

impl Incoming {
    /// Of a connection that the other instance has made.
    pub(super) fn accepted(
        connection: ConnectionId,
        peer: &str,
        own_links: Arc<[Arc<Definition>]>,
        now: Instant,
    ) -> Self {
        Incoming {
            connection,
            peer: peer.to_owned(),
            own_links,
            input: Vec::new(),
            taken_size: 0,
            state: State::AwaitingHello,
            received_at: now,
            sent_at: now,
            greeted_at: None,
            greets_at: None,
            link: Link::default(),
        }
    }

    /// Of a connection that this instance has made.
    pub(super) fn idle(
        connection: ConnectionId,
        peer: &str,
        own_links: Arc<[Arc<Definition>]>,
        now: Instant,
    ) -> Self {
        Incoming { state: State::Idle, ..Incoming::accepted(connection, peer, own_links, now) }
    }

    /// The source, once after it was let in.
    pub(super) fn take_new(&mut self) -> Option<&SourceInstance> {
        let is_new = std::mem::take(&mut self.link.is_new);
        self.source().filter(|_| is_new)
    }

    pub(super) fn source(&self) -> Option<&SourceInstance> {
        self.link.source.as_ref()
    }

    pub(super) fn is_from(&self, instance: Option<&str>) -> bool {
        self.source().is_some_and(|source| Some(&*source.name) == instance)
    }

    pub(super) fn has_caught_up(&self) -> bool {
        self.link.has_caught_up
    }

    /// There is no link, and none is about to begin.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle | State::Broken)
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// Bytes arrived on the connection.
    pub(super) fn heard(&mut self, now: Instant) {
        if self.state != State::AwaitingHello {
            self.received_at = now;
        }
    }

    /// Takes bytes of frames of a source.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Bytes that came, and were not worked on.
    pub(super) fn waiting_size(&self) -> usize {
        self.input.len() + self.link.begun.as_ref().and_then(|begun| begun.body.as_ref()).map_or(0, Vec::len)
    }

    /// Works on what came, up to the next frame of records. `None` when there is no such frame.
    pub(super) fn next_arrived(&mut self, cx: &mut Context) -> Option<Arrived> {
        let input = std::mem::take(&mut self.input);
        let found = self.find_records(cx, &input);
        let (Some((source, begin, size, begun)), false) = (found, self.is_broken()) else {
            if !self.is_broken() {
                self.input = input;
                self.input.drain(..std::mem::take(&mut self.taken_size));
            }
            return None;
        };
        let rules = self.link.rules;
        Some(Arrived { connection: self.connection, source, input, begin, size, begun, rules })
    }

    fn find_records(
        &mut self,
        cx: &mut Context,
        input: &[u8],
    ) -> Option<(SourceInstance, usize, usize, Begun)> {
        let size_max = FRAME_OVERHEAD_MAX + cx.config.message_size_max();
        while matches!(self.state, State::AwaitingHello | State::Idle | State::Open) {
            let begin = self.taken_size;
            if let Some(size) = announced_size(&input[begin..]).filter(|size| *size > size_max) {
                let limit = cx.config.message_size_max();
                let reason = format!(
                    "a frame of {size} bytes; max_message_size is {limit} bytes here: raise it, or publish smaller messages at the source"
                );
                self.break_off(cx, &reason);
                return None;
            }
            match next_frame(&input[begin..], size_max) {
                Ok(None) => return None,
                Ok(Some((Frame::Hello(_), _))) if !self.may_greet(cx) => return None,
                Ok(Some((Frame::Records(_), size))) if self.is_open() => {
                    let begun = self.link.begun.take().unwrap_or_else(|| Begun::new(cx, None));
                    return Some((self.source()?.clone(), begin, size, begun));
                }
                Ok(Some((Frame::Compressed(compressed), size))) if self.is_open() => {
                    if let Some(begun) = self.link.begun.take() {
                        return Some((self.source()?.clone(), begin, size, begun));
                    }
                    let body = decompress(compressed, size_max);
                    let body = body.and_then(|body| take_records(&body).map(drop).map(|()| body));
                    match body {
                        Ok(body) => {
                            return Some((self.source()?.clone(), begin, size, Begun::new(cx, Some(body))));
                        }
                        Err(error) => self.break_off(cx, &error.to_string()),
                    }
                }
                Ok(Some((frame, size))) => {
                    self.taken_size += size;
                    self.take(cx, &frame);
                }
                Err(error) => self.break_off(cx, &error.to_string()),
            }
        }
        None
    }

    /// Whether the time since the last `hello` has passed. Otherwise the next one waits.
    fn may_greet(&mut self, cx: &Context) -> bool {
        let now = cx.now.instant;
        self.greets_at = self.greeted_at.map(|greeted_at| greeted_at + HELLO_INTERVAL).filter(|at| *at > now);
        if self.greets_at.is_none() {
            self.greeted_at = Some(now);
        }
        self.greets_at.is_none()
    }

    /// Takes a frame that has no records.
    fn take(&mut self, cx: &mut Context, frame: &Frame<'_>) {
        match (self.state, frame) {
            (State::AwaitingHello | State::Idle, Frame::Hello(hello)) => self.greet(cx, hello),
            // The source may begin again before it has heard of the end of its link here.
            (State::Open, Frame::Hello(hello)) => {
                self.link = Link::default();
                self.greet(cx, hello);
            }
            // They were on their way when the link ended.
            (State::Idle, _) => (),
            (State::Open, Frame::CaughtUp) => self.link.has_caught_up = true,
            (_, Frame::Ended { reason }) => self.ended(cx, reason),
            _ => self.break_off(cx, "it sent a frame that a source does not send here"),
        }
    }

    fn greet(&mut self, cx: &mut Context, hello: &Hello<'_>) {
        (self.state, self.received_at) = (State::Greeting, cx.now.instant);
        self.link.source = Some(SourceInstance {
            name: hello.instance.into(),
            group: hello.group.into(),
            started_ns: hello.started_ns,
        });
        match Checking::begin(cx, hello, &self.own_links) {
            Ok(checking) => {
                self.link.rules =
                    LinkRules { any_sow: !checking.is_checked(SOW), any_key: !checking.is_checked(KEY) };
                self.link.checking = Some((checking, hello.mark));
                cx.wants_turn = true;
            }
            Err(reason) => self.end(cx, &reason),
        }
    }

    /// Continues with the checks of an introduction until the deadline, and answers it.
    fn check(&mut self, cx: &mut Context, deadline: Option<Instant>) {
        let Some((mut checking, mark)) = self.link.checking.take() else { return };
        match checking.run(cx, &self.own_links, deadline) {
            None => {
                self.link.checking = Some((checking, mark));
                cx.wants_turn = true;
            }
            Some(Err(reason)) => self.end(cx, &reason),
            Some(Ok(())) => self.search(cx, mark),
        }
    }

    /// Looks for the message of the mark.
    fn search(&mut self, cx: &mut Context, mark: Option<Mark>) {
        match mark {
            Some(mark) if mark.position <= cx.log.journal.persisted() => {
                let (reader, connection) = (cx.log.reader.clone(), self.connection);
                let number = cx.begin_job(
                    move |_| reader.find(mark.bookmark),
                    move |links: &mut Links, cx, number, found| {
                        links.mark_found(cx, connection, number, found.and_then(Result::ok).flatten());
                    },
                );
                self.state = State::Searching { number, mark };
            }
            _ => self.welcome(cx, false),
        }
    }

    /// The search for the mark is over.
    pub(super) fn found(&mut self, cx: &mut Context, number: u64, found: Option<Position>) {
        match self.state {
            State::Searching { number: wanted, mark } if wanted == number => {
                // A record that maintenance has removed was there, because the log continues after it.
                let was_removed = mark.position < cx.log.reader.first();
                self.welcome(cx, found == Some(mark.position) || was_removed);
            }
            _ => (),
        }
    }

    fn welcome(&mut self, cx: &mut Context, has_mark: bool) {
        let Some(source) = &self.link.source else { return };
        let (name, group) = (cx.config.name.clone(), cx.config.group().to_owned());
        let sends_back =
            (cx.config.replication.destinations.iter()).any(|destination| *destination.name == *source.name);
        let welcome = Welcome {
            version: VERSION,
            instance: &name,
            group: &group,
            started_ns: cx.started_ns(),
            has_mark,
            sends_back,
        };
        let event = Event::LinkAccepted { source: source.name.to_string(), peer: self.peer.clone() };
        self.state = State::Open;
        self.link.is_new = true;
        self.send(cx, &Frame::Welcome(welcome));
        cx.note(event);
        cx.wants_turn = true;
    }

    /// The records of a frame were recorded, or were duplicates. `mark` is the last record of the log.
    pub(super) fn taken(&mut self, cx: &Context, arrived: Arrived, mark: Option<Mark>, taken: Taken) {
        let link = &mut self.link;
        let through = arrived.frame().map_or(link.received, |records| records.through);
        link.received = link.received.max(through);
        link.record_count += taken.record_count;
        link.duplicate_count += taken.duplicate_count;
        for (hops, Waiting { through, position, destinations }) in taken.by_hops {
            let ack = PendingAck { through, position, destinations, mark };
            link.pending.entry(hops).or_default().push_back(ack);
        }
        if matches!(link.comparing, Comparing::Nothing) && !taken.duplicates.is_empty() {
            link.comparing = Comparing::Due(cx.log.appended(), taken.duplicates);
        }
        self.give_back(arrived);
    }

    /// A record of a frame cannot be recorded: the link ends.
    pub(super) fn not_taken(&mut self, cx: &mut Context, arrived: Arrived, reason: &str) {
        self.give_back(arrived);
        self.end(cx, reason);
    }

    /// The time of the turn is over in the middle of a frame.
    pub(super) fn suspend(&mut self, arrived: Arrived, done: usize, taken: Taken) {
        self.link.begun = Some(Begun { body: arrived.begun.body, done, taken });
        (self.input, self.taken_size) = (arrived.input, arrived.begin);
    }

    fn give_back(&mut self, arrived: Arrived) {
        self.taken_size = arrived.begin + arrived.size;
        self.input = arrived.input;
    }

    /// Acknowledges what has become safe, and sends a heartbeat when nothing else was sent for a while.
    pub(super) fn advance(&mut self, cx: &mut Context, deadline: Option<Instant>) {
        let now = cx.now.instant;
        self.greets_at = self.greets_at.filter(|at| *at > now);
        if self.is_idle() {
            return;
        }
        self.check(cx, deadline);
        self.compare(cx);
        let mut acknowledged = Vec::new();
        for (&hops, acks) in &mut self.link.pending {
            let mut safe = None;
            // A record has one hop more here than at the source.
            let is_safe = |ack: &mut PendingAck| {
                cx.log.is_safe_after(ack.position, hops.saturating_add(1), ack.destinations)
            };
            while let Some(ack) = acks.pop_front_if(is_safe) {
                safe = Some(ack);
            }
            acknowledged.extend(safe.map(|ack| (hops, ack)));
        }
        for (hops, PendingAck { through, mark, .. }) in &acknowledged {
            self.link.acknowledged = self.link.acknowledged.max(*through);
            self.send(cx, &Frame::Acknowledged { through: *through, hops: *hops, mark: *mark });
        }
        if !acknowledged.is_empty() {
            return;
        }
        if self.received_at + SILENCE_MAX <= now {
            self.end(cx, "nothing was heard from it for 10 s");
        } else if self.sent_at + HEARTBEAT <= now && self.is_open() {
            self.send(cx, &Frame::Heartbeat);
        }
    }

    fn compare(&mut self, cx: &mut Context) {
        let persisted = cx.log.journal.persisted();
        self.link.comparing = match std::mem::take(&mut self.link.comparing) {
            Comparing::Due(position, duplicates) if position <= persisted => {
                let comparison = Comparison { reader: cx.log.reader.clone(), duplicates };
                let connection = self.connection;
                let compared = move |links: &mut Links, cx: &mut Context, number, found: Option<Vec<_>>| {
                    links.compared(cx, connection, number, &found.unwrap_or_default());
                };
                Comparing::Running(cx.begin_job(move |_| comparison.run(), compared))
            }
            unchanged => unchanged,
        };
    }

    /// The duplicates were compared with the log. The first conflict of each publisher is logged.
    pub(super) fn compared(&mut self, cx: &mut Context, number: u64, conflicts: &[Conflict]) {
        if !matches!(self.link.comparing, Comparing::Running(wanted) if wanted == number) {
            return;
        }
        self.link.comparing = Comparing::Nothing;
        self.link.conflict_count += conflicts.len() as u64;
        for Conflict { bookmark, is_other } in conflicts.iter().copied() {
            if !self.link.reported.contains(&bookmark.publisher) {
                self.link.reported.push(bookmark.publisher);
                let source = self.name();
                cx.note(Event::LinkConflict { source, bookmark, is_other });
            }
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let silence = self.received_at + SILENCE_MAX;
        let state = match self.state {
            State::Open => Some(silence.min(self.sent_at + HEARTBEAT)),
            // Nothing is sent before the greeting.
            State::AwaitingHello | State::Greeting | State::Searching { .. } => Some(silence),
            State::Idle | State::Broken => None,
        };
        state.into_iter().chain(self.greets_at).min()
    }

    /// Ends the link, and says why at both ends.
    pub(super) fn end(&mut self, cx: &mut Context, reason: &str) {
        if self.is_idle() {
            return;
        }
        self.send(cx, &Frame::Refused { reason });
        self.ended(cx, reason);
    }

    /// The link has ended.
    fn ended(&mut self, cx: &mut Context, reason: &str) {
        let event = Event::LinkRefused { source: self.name(), reason: reason.to_owned() };
        cx.note(event);
        (self.state, self.link) = (State::Idle, Link::default());
        cx.wants_turn = true;
    }

    /// The connection cannot be used any more.
    pub(super) fn break_off(&mut self, cx: &mut Context, reason: &str) {
        self.end(cx, reason);
        (self.state, self.input, self.taken_size) = (State::Broken, Vec::new(), 0);
        cx.wants_turn = true;
    }

    fn send(&mut self, cx: &mut Context, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.sent_at = cx.now.instant;
        cx.outputs.push_back(Output::Send { connection: self.connection, bytes });
    }

    fn name(&self) -> String {
        self.source().map_or_else(|| self.peer.clone(), |source| source.name.to_string())
    }

    /// The address of the other instance.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Figures of the link; `None` when there is none.
    pub(super) fn stats(&self) -> Option<SourceStats> {
        let link = &self.link;
        (!self.is_idle()).then(|| SourceStats {
            name: self.name(),
            peer: self.peer.clone(),
            state: if self.is_open() { "live" } else { "connecting" },
            received: link.received.get(),
            acknowledged: link.acknowledged.get(),
            received_count: link.record_count,
            duplicate_count: link.duplicate_count,
            conflict_count: link.conflict_count,
        })
    }
}
