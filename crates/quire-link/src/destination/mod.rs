//! A link from a source: the state machine of the destination (docs/replication.md).
//!
//! ```text
//! AwaitingHello, Idle ------> Checking ------> Searching ------> Open
//!                      `hello` came     the log is        `welcome` is sent: records arrive
//!                                       asked for the mark
//! ```
//!
//! When a link ends, the connection is `Idle`, and another link may begin on it. After bytes that
//! are not frames it is `Broken`. A frame of records is acknowledged when all that was recorded of
//! it is safe here. A record of another run than that of the log here is rejected before.

mod event;
mod input;
mod look_up;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use quire_types::{Bookmark, Position, Timestamp, time::Instant};
use quire_wire::link::{
    FRAME_OVERHEAD_MAX, Frame, Hello, Mark, VERSION, Wanted, Welcome, announced_size, next_frame,
    take_records,
};

pub use event::{Answer, DestinationEvent, DestinationFigures, DestinationOutput, Greeting};
pub use input::{Arrived, LinkRules, SourceInstance, Taken};
use input::{Begun, Waiting};
use look_up::Looking;
pub use look_up::{InLog, LookedUp, RecordHere, hash_of};

use crate::compress::decompress;
use crate::replicated::Destinations;
use crate::{Connection, HEARTBEAT, KeptMark, PlacesFrame, SILENCE_MAX};

/// The time between two `hello` frames on a connection, at least. Each costs checks, a search of
/// the log, and a line in the log of the server.
const HELLO_INTERVAL: Duration = Duration::from_millis(100);

/// The link from the other instance of a connection.
///
/// After every call, [`poll_output`](Destination::poll_output) until it has nothing. Hand in the
/// bytes of its frames ([`handle_bytes`](Destination::handle_bytes)), record what
/// [`poll_arrived`](Destination::poll_arrived) gives, and call [`advance`](Destination::advance) in
/// every turn. The next turn is due at [`poll_timeout`](Destination::poll_timeout).
#[derive(Debug)]
pub struct Destination {
    connection: Connection,
    /// The address of the other instance.
    peer: String,
    /// The frames of sources on this connection.
    input: Vec<u8>,
    /// Bytes of `input` that were worked on.
    taken_size: usize,
    state: DestinationState,
    received_at: Instant,
    sent_at: Instant,
    /// When the last `hello` was taken, and when the one that waits may be.
    greeted_at: Option<Instant>,
    greets_at: Option<Instant>,
    /// The number of the last search or question.
    number: u64,
    outputs: VecDeque<DestinationOutput>,
}

#[derive(Debug)]
enum DestinationState {
    /// The other instance has connected, and nothing else came.
    AwaitingHello,
    /// No link. Another one may begin.
    Idle,
    /// There is a link, or it is about to begin.
    Linked(Box<Link>),
    /// The bytes of the peer have no meaning: no link can begin on this connection.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkPhase {
    /// `hello` came. The configurations are checked.
    Checking { mark: Option<Mark> },
    /// The log is searched for the message of the mark.
    Searching { number: u64, mark: Mark },
    /// Records may arrive.
    Open,
}

/// A link, and all that ends with it.
#[derive(Debug)]
struct Link {
    phase: LinkPhase,
    /// The number of the log here that has the message of the mark, as the source knows it.
    marked_log: u64,
    source: SourceInstance,
    /// The checks that the source leaves out.
    rules: LinkRules,
    /// By hops at the source, each in the order of its log.
    pending: BTreeMap<u8, VecDeque<PendingAck>>,
    /// The place in the log of the source up to which its records came, and up to which they are
    /// acknowledged.
    received: Position,
    /// The last of these records that was not published at the source.
    received_passed_on: Position,
    acknowledged: Position,
    record_count: u64,
    duplicate_count: u64,
    looking: Looking,
    /// The frame of records at the front of the input has answers about the log up to here.
    answered: Option<Position>,
    /// The source has sent everything that it had when the link came up.
    has_caught_up: bool,
    /// It has done this since the caller asked.
    is_caught_up_new: bool,
    /// The request that the source has not answered.
    asked: Option<u64>,
    /// The source was let in during this turn.
    is_new: bool,
    /// The frame of records at the front of the input, when a part of its records was recorded.
    begun: Option<Begun>,
}

/// An acknowledgement that the source is to get: of the records with the same hops in a frame.
#[derive(Clone, Copy, Debug)]
struct PendingAck {
    /// The position of the last of them in the log of the source.
    through: Position,
    /// It is sent when this position of the log here is safe.
    position: Position,
    destinations: Destinations,
    mark: Option<Mark>,
}

impl Link {
    fn new(hello: &Hello<'_>) -> Self {
        Link {
            phase: LinkPhase::Checking { mark: hello.mark },
            marked_log: if hello.mark.is_some() { hello.marked_log } else { 0 },
            source: SourceInstance {
                name: hello.instance.into(),
                group: hello.group.into(),
                started_ns: hello.started_ns,
            },
            rules: LinkRules::default(),
            pending: BTreeMap::new(),
            received: Position::ZERO,
            received_passed_on: Position::ZERO,
            acknowledged: Position::ZERO,
            record_count: 0,
            duplicate_count: 0,
            looking: Looking::Nothing,
            answered: None,
            has_caught_up: false,
            is_caught_up_new: false,
            asked: None,
            is_new: false,
            begun: None,
        }
    }

    fn is_open(&self) -> bool {
        self.phase == LinkPhase::Open
    }

    fn is_looking(&self) -> bool {
        !matches!(self.looking, Looking::Nothing)
    }
}

impl Destination {
    /// Of a connection that the other instance has made: it is to send `hello`.
    pub fn accepted(connection: Connection, peer: &str, now: Instant) -> Self {
        Destination {
            connection,
            peer: peer.to_owned(),
            input: Vec::new(),
            taken_size: 0,
            state: DestinationState::AwaitingHello,
            received_at: now,
            sent_at: now,
            greeted_at: None,
            greets_at: None,
            number: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Of a connection that this instance has made.
    pub fn idle(connection: Connection, peer: &str, now: Instant) -> Self {
        Destination { state: DestinationState::Idle, ..Destination::accepted(connection, peer, now) }
    }

    /// The next thing that the caller has to do.
    pub fn poll_output(&mut self) -> Option<DestinationOutput> {
        self.outputs.pop_front()
    }

    fn link(&self) -> Option<&Link> {
        match &self.state {
            DestinationState::Linked(link) => Some(link),
            _ => None,
        }
    }

    fn link_mut(&mut self) -> Option<&mut Link> {
        match &mut self.state {
            DestinationState::Linked(link) => Some(link),
            _ => None,
        }
    }

    /// The source, once after it was let in.
    pub fn take_new(&mut self) -> Option<&SourceInstance> {
        let link = self.link_mut()?;
        std::mem::take(&mut link.is_new).then_some(&link.source)
    }

    /// The source, once its `hello` came.
    pub fn source(&self) -> Option<&SourceInstance> {
        self.link().map(|link| &link.source)
    }

    /// The source, the position of its log up to which its records were recorded on this link, and
    /// that of the last one that was not published at the source.
    pub fn recorded(&self) -> Option<(&SourceInstance, Position, Position)> {
        self.link().map(|link| (&link.source, link.received, link.received_passed_on))
    }

    /// Whether the source has sent everything that it had when the link came up.
    pub fn has_caught_up(&self) -> bool {
        self.link().is_some_and(|link| link.has_caught_up)
    }

    /// Whether it has done so since the last call.
    pub fn take_caught_up(&mut self) -> bool {
        self.link_mut().is_some_and(|link| std::mem::take(&mut link.is_caught_up_new))
    }

    /// There is no link, and none is about to begin.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, DestinationState::Idle | DestinationState::Broken)
    }

    /// Whether records may arrive.
    pub fn is_open(&self) -> bool {
        self.link().is_some_and(Link::is_open)
    }

    /// Whether no link can begin on the connection.
    pub fn is_broken(&self) -> bool {
        matches!(self.state, DestinationState::Broken)
    }

    /// The address of the other instance.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Bytes that came, and were not worked on.
    pub fn waiting_size(&self) -> usize {
        let begun = self.link().and_then(|link| link.begun.as_ref());
        self.input.len() + begun.and_then(|begun| begun.body.as_ref()).map_or(0, Vec::len)
    }

    /// Figures of the link; `None` when there is none.
    pub fn figures(&self) -> Option<DestinationFigures> {
        if self.is_idle() {
            return None;
        }
        let link = self.link();
        Some(DestinationFigures {
            source: self.name(),
            is_open: self.is_open(),
            received: link.map_or(Position::ZERO, |link| link.received),
            acknowledged: link.map_or(Position::ZERO, |link| link.acknowledged),
            record_count: link.map_or(0, |link| link.record_count),
            duplicate_count: link.map_or(0, |link| link.duplicate_count),
        })
    }

    fn name(&self) -> String {
        self.source().map_or_else(|| self.peer.clone(), |source| source.name.to_string())
    }

    /// Bytes arrived on the connection.
    pub fn handle_heard(&mut self, now: Instant) {
        if !matches!(self.state, DestinationState::AwaitingHello) {
            self.received_at = now;
        }
    }

    /// Takes bytes of frames of a source.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Works on what came, up to the next frame of records, which the caller is to record. `None`
    /// when there is no such frame. `appended` is the end of the log, and `message_size_max` the
    /// largest data of a message here. After outputs were carried out, another call may find more.
    pub fn poll_arrived(
        &mut self,
        now: Instant,
        appended: Position,
        message_size_max: usize,
    ) -> Option<Arrived> {
        let input = std::mem::take(&mut self.input);
        let found = self.find_records(now, appended, message_size_max, &input);
        if self.is_broken() {
            return None;
        }
        let connection = self.connection;
        match (found, self.link()) {
            (Some((begin, size, begun)), Some(link)) => {
                let (source, rules) = (link.source.clone(), link.rules);
                Some(Arrived { connection, source, input, begin, size, begun, rules })
            }
            _ => {
                self.input = input;
                self.input.drain(..std::mem::take(&mut self.taken_size));
                None
            }
        }
    }

    /// The place and the size of the next frame of records.
    fn find_records(
        &mut self,
        now: Instant,
        appended: Position,
        message_size_max: usize,
        input: &[u8],
    ) -> Option<(usize, usize, Begun)> {
        // The frame at the front waits for the log.
        if self.link().is_some_and(Link::is_looking) {
            return None;
        }
        let size_max = FRAME_OVERHEAD_MAX + message_size_max;
        while matches!(self.state, DestinationState::AwaitingHello | DestinationState::Idle) || self.is_open()
        {
            let begin = self.taken_size;
            if let Some(size) = announced_size(&input[begin..]).filter(|size| *size > size_max) {
                let reason = format!(
                    "a frame of {size} bytes; max_message_size is {message_size_max} bytes here: raise it, or publish smaller messages at the source"
                );
                self.break_off(now, &reason);
                return None;
            }
            match next_frame(&input[begin..], size_max) {
                Ok(None) => return None,
                Ok(Some((Frame::Hello(_), _))) if !self.may_greet(now) => return None,
                Ok(Some((Frame::Records(_), size))) if self.is_open() => {
                    let begun = self.take_begun().unwrap_or_else(|| Begun::new(appended, None));
                    return Some((begin, size, begun));
                }
                Ok(Some((Frame::Compressed(compressed), size))) if self.is_open() => {
                    if let Some(begun) = self.take_begun() {
                        return Some((begin, size, begun));
                    }
                    let body = decompress(compressed, size_max);
                    match body.and_then(|body| take_records(&body).map(drop).map(|()| body)) {
                        Ok(body) => return Some((begin, size, Begun::new(appended, Some(body)))),
                        Err(error) => self.break_off(now, &error.to_string()),
                    }
                }
                Ok(Some((frame, size))) => {
                    self.taken_size += size;
                    self.take(now, &frame);
                }
                Err(error) => self.break_off(now, &error.to_string()),
            }
        }
        None
    }

    fn take_begun(&mut self) -> Option<Begun> {
        self.link_mut().and_then(|link| link.begun.take())
    }

    /// Whether the time since the last `hello` has passed. Otherwise the next one waits.
    fn may_greet(&mut self, now: Instant) -> bool {
        let due = self.greeted_at.map(|greeted_at| greeted_at + HELLO_INTERVAL);
        self.greets_at = due.filter(|at| *at > now);
        if self.greets_at.is_none() {
            self.greeted_at = Some(now);
        }
        self.greets_at.is_none()
    }

    /// Takes a frame that has no records.
    fn take(&mut self, now: Instant, frame: &Frame<'_>) {
        match (&mut self.state, frame) {
            // The source may begin again before it has heard of the end of its link here.
            (
                DestinationState::AwaitingHello | DestinationState::Idle | DestinationState::Linked(_),
                Frame::Hello(hello),
            ) => {
                self.received_at = now;
                self.state = DestinationState::Linked(Box::new(Link::new(hello)));
                self.outputs.push_back(DestinationOutput::Check(Box::new(Greeting::new(hello))));
            }
            // The source cannot begin a link on this connection.
            (DestinationState::Idle, Frame::Ended { reason }) if self.greeted_at.is_none() => {
                self.ended(reason);
            }
            // They were on their way when the link ended.
            (DestinationState::Idle, _) => (),
            (DestinationState::Linked(link), Frame::Mark(sent)) if sent.origin.is_empty() => {
                (link.has_caught_up, link.is_caught_up_new) = (true, true);
            }
            (DestinationState::Linked(_), Frame::Mark(sent)) => {
                let (mark, is_whole) = (KeptMark::of_frame(sent), sent.is_whole);
                self.outputs.push_back(DestinationOutput::Mark { mark, is_whole });
            }
            (DestinationState::Linked(_), Frame::Places(sent)) => {
                self.outputs.push_back(DestinationOutput::Places(PlacesFrame::of_frame(sent)));
            }
            (DestinationState::Linked(link), Frame::Answer { number, reason, answer })
                if link.asked == Some(*number) =>
            {
                link.asked = None;
                let answer = if reason.is_empty() { Ok(answer.to_vec()) } else { Err((*reason).to_owned()) };
                self.outputs.push_back(DestinationOutput::Answered { number: *number, answer });
            }
            (DestinationState::Linked(link), Frame::Given { number, reason, given })
                if link.asked == Some(*number) =>
            {
                link.asked = None;
                let given = if reason.is_empty() { Ok(given.clone()) } else { Err((*reason).to_owned()) };
                self.outputs.push_back(DestinationOutput::Given { number: *number, given });
            }
            (_, Frame::Ended { reason }) => self.ended(reason),
            _ => self.break_off(now, "it sent a frame that a source does not send here"),
        }
    }

    /// The differences of the two configurations that the source permits.
    pub fn set_rules(&mut self, rules: LinkRules) {
        if let Some(link) = self.link_mut() {
            link.rules = rules;
        }
    }

    /// The configurations go together. The log is on the disk up to `persisted`.
    pub fn handle_checked(&mut self, now: Instant, persisted: Position, answer: Answer<'_>) {
        let number = self.number + 1;
        let Some(link) = self.link_mut() else { return };
        let LinkPhase::Checking { mark } = link.phase else { return };
        match mark {
            Some(mark) if mark.position <= persisted => {
                link.phase = LinkPhase::Searching { number, mark };
                self.number = number;
                self.outputs.push_back(DestinationOutput::Find { number, mark });
            }
            _ => self.welcome(now, false, answer),
        }
    }

    /// The search for the mark is over: the message is at the position of `found`, with the time
    /// there. The log begins at `first`.
    pub fn handle_found(
        &mut self,
        now: Instant,
        number: u64,
        found: Option<(Position, Timestamp)>,
        first: Position,
        answer: Answer<'_>,
    ) {
        match self.link().map(|link| link.phase) {
            Some(LinkPhase::Searching { number: wanted, mark }) if wanted == number => {
                // A record that maintenance has removed was there, because the log continues after
                // it.
                let was_removed = mark.position < first;
                let is_there = found.is_some_and(|(position, time)| {
                    // A mark that an earlier version saved has no time.
                    position == mark.position && (time == mark.time || mark.time.as_ns() == 0)
                });
                self.welcome(now, is_there || was_removed, answer);
            }
            _ => (),
        }
    }

    fn welcome(&mut self, now: Instant, has_mark: bool, answer: Answer<'_>) {
        let Some(link) = self.link_mut() else { return };
        let Answer { instance, group, started_ns, sends_back, members } = answer;
        // A log that is filling has lost records, and this is known.
        let is_complete =
            members.first().is_some_and(|own| !own.is_filling && own.log > 0 && own.log == link.marked_log);
        if is_complete && !has_mark {
            return self.outputs.push_back(DestinationOutput::LostRecord);
        }
        (link.phase, link.is_new) = (LinkPhase::Open, true);
        let (source, source_group) = (link.source.name.to_string(), link.source.group.to_string());
        let welcome =
            Welcome { version: VERSION, instance, group, started_ns, has_mark, sends_back, members };
        self.send(now, &Frame::Welcome(welcome));
        let peer = self.peer.clone();
        self.note(DestinationEvent::Accepted { source, group: source_group, peer });
        self.outputs.push_back(DestinationOutput::Turn);
    }

    /// The records of a frame were recorded, were duplicates, or were rejected. `mark` is the last
    /// record of the log.
    pub fn handle_taken(&mut self, now: Instant, arrived: Arrived, mark: Option<Mark>, taken: Taken) {
        // Before the acknowledgement of the positions around them.
        for (bookmark, run) in &taken.rejected {
            self.reject(now, *bookmark, *run);
        }
        if let Some(link) = self.link_mut() {
            link.answered = None;
            let through = arrived.frame().map_or(link.received, |records| records.through);
            link.received = link.received.max(through);
            link.record_count += taken.record_count;
            link.duplicate_count += taken.duplicate_count;
            for (hops, Waiting { through, position, destinations }) in taken.by_hops {
                if hops > 0 {
                    link.received_passed_on = link.received_passed_on.max(through);
                }
                let ack = PendingAck { through, position, destinations, mark };
                link.pending.entry(hops).or_default().push_back(ack);
            }
        }
        self.give_back(arrived);
    }

    /// A record of a frame cannot be recorded: the link ends.
    pub fn handle_not_taken(&mut self, now: Instant, arrived: Arrived, reason: &str) {
        self.give_back(arrived);
        self.end(now, reason);
    }

    /// The caller has no more time, after `done` bytes of the records of a frame.
    /// [`poll_arrived`](Destination::poll_arrived) gives the rest.
    pub fn suspend(&mut self, arrived: Arrived, done: usize, taken: Taken) {
        let Arrived { input, begin, begun, .. } = arrived;
        if let Some(link) = self.link_mut() {
            link.begun = Some(Begun { done, taken, ..begun });
        }
        (self.input, self.taken_size) = (input, begin);
    }

    /// The records of a frame after the first `done` bytes can be recorded when it is known what
    /// the log here has under these bookmarks. The log ends at `appended`, and must be on the disk
    /// up to there. [`poll_arrived`](Destination::poll_arrived) then gives the rest, with answers.
    pub fn look_up(
        &mut self,
        arrived: Arrived,
        done: usize,
        taken: Taken,
        bookmarks: Vec<Bookmark>,
        appended: Position,
    ) {
        self.suspend(arrived, done, taken);
        if let Some(link) = self.link_mut() {
            link.looking = Looking::Due(appended, bookmarks);
        }
        self.outputs.push_back(DestinationOutput::Turn);
    }

    /// The log was asked. An error: it cannot be read there, and the link ends.
    pub fn handle_looked_up(&mut self, now: Instant, number: u64, found: Result<LookedUp, String>) {
        let Some(link) = self.link_mut() else { return };
        let Looking::Running(wanted, through) = link.looking else { return };
        if wanted != number {
            return;
        }
        match found {
            Ok(found) => {
                (link.looking, link.answered) = (Looking::Nothing, Some(through));
                if let Some(begun) = &mut link.begun {
                    begun.answers = found.into_iter().collect();
                }
                self.outputs.push_back(DestinationOutput::Turn);
            }
            Err(reason) => self.end(now, &reason),
        }
    }

    /// The answers that are asked for, or that the rest of a frame has, are about the log up to
    /// here. `None`: there are none.
    pub fn looked_up_through(&self) -> Option<Position> {
        let link = self.link()?;
        match &link.looking {
            Looking::Due(position, _) | Looking::Running(_, position) => Some(*position),
            Looking::Nothing => link.answered,
        }
    }

    /// Another instance, or the log here, has another record with the bookmark of a record that the
    /// source has sent.
    pub fn reject(&mut self, now: Instant, bookmark: Bookmark, run: u64) {
        if self.is_open() {
            self.send(now, &Frame::Rejected { bookmark, run });
        }
    }

    /// Asks the source about its messages. Returns the number of the question; `None`: there is no
    /// link.
    pub fn ask_source(&mut self, now: Instant, question: &[u8]) -> Option<u64> {
        self.request(now, |number| Frame::Question { number, question })
    }

    /// Asks the source for messages. Returns the number of the request; `None`: there is no link.
    pub fn want(&mut self, now: Instant, ranges: Vec<Wanted>) -> Option<u64> {
        self.request(now, |number| Frame::Wanted { number, ranges })
    }

    fn request<'a>(&mut self, now: Instant, frame: impl FnOnce(u64) -> Frame<'a>) -> Option<u64> {
        if !self.is_open() {
            return None;
        }
        self.number += 1;
        let number = self.number;
        if let Some(link) = self.link_mut() {
            link.asked = Some(number);
        }
        self.send(now, &frame(number));
        Some(number)
    }

    /// Whether the source is to answer the request with this number.
    pub fn awaits(&self, number: u64) -> bool {
        self.link().is_some_and(|link| link.asked == Some(number))
    }

    fn give_back(&mut self, arrived: Arrived) {
        self.taken_size = arrived.begin + arrived.size;
        self.input = arrived.input;
    }

    /// Acknowledges what has become safe, and sends a heartbeat when nothing else was sent for a
    /// while. The log is on the disk up to `persisted`. `is_safe` says whether a position is safe
    /// for a record that passed this many instances, and that these destinations get.
    pub fn advance(
        &mut self,
        now: Instant,
        persisted: Position,
        is_safe: impl Fn(Position, u8, Destinations) -> bool,
    ) {
        self.greets_at = self.greets_at.filter(|at| *at > now);
        if self.is_idle() {
            return;
        }
        self.ask(persisted);
        if self.acknowledge(now, is_safe) {
            return;
        }
        if self.received_at + SILENCE_MAX <= now {
            self.end(now, "nothing was heard from it for 10 s");
        } else if self.sent_at + HEARTBEAT <= now && self.is_open() {
            self.send(now, &Frame::Heartbeat);
        }
    }

    /// Whether something was acknowledged.
    fn acknowledge(&mut self, now: Instant, is_safe: impl Fn(Position, u8, Destinations) -> bool) -> bool {
        let Some(link) = self.link_mut() else { return false };
        let mut acknowledged = Vec::new();
        for (&hops, acks) in &mut link.pending {
            // A record has one hop more here than at the source.
            let is_over =
                |ack: &mut PendingAck| is_safe(ack.position, hops.saturating_add(1), ack.destinations);
            let mut last: Option<PendingAck> = None;
            while let Some(ack) = acks.pop_front_if(is_over) {
                // A record that was asked for has an earlier position than the ones before it.
                let through = last.map_or(ack.through, |last| last.through.max(ack.through));
                last = Some(PendingAck { through, ..ack });
            }
            acknowledged.extend(last.map(|ack| (hops, ack)));
        }
        for (_, ack) in &acknowledged {
            link.acknowledged = link.acknowledged.max(ack.through);
        }
        for (hops, PendingAck { through, mark, .. }) in &acknowledged {
            self.send(now, &Frame::Acknowledged { through: *through, hops: *hops, mark: *mark });
        }
        !acknowledged.is_empty()
    }

    fn ask(&mut self, persisted: Position) {
        let number = self.number + 1;
        let Some(link) = self.link_mut() else { return };
        let through = match &link.looking {
            Looking::Due(position, _) if *position <= persisted => *position,
            _ => return,
        };
        if let Looking::Due(_, bookmarks) =
            std::mem::replace(&mut link.looking, Looking::Running(number, through))
        {
            self.number = number;
            self.outputs.push_back(DestinationOutput::LookUp { number, bookmarks });
        }
    }

    /// When it has something to do next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let silence = self.received_at + SILENCE_MAX;
        let state = match &self.state {
            DestinationState::Linked(link) if link.is_open() => Some(silence.min(self.sent_at + HEARTBEAT)),
            // Nothing is sent before the greeting.
            DestinationState::AwaitingHello | DestinationState::Linked(_) => Some(silence),
            DestinationState::Idle | DestinationState::Broken => None,
        };
        state.into_iter().chain(self.greets_at).min()
    }

    /// Ends the link, and says why at both ends.
    pub fn end(&mut self, now: Instant, reason: &str) {
        if !self.is_idle() {
            self.send(now, &Frame::Refused { reason });
            self.ended(reason);
        }
    }

    /// The link has ended.
    fn ended(&mut self, reason: &str) {
        let source = self.name();
        self.note(DestinationEvent::Ended { source, reason: reason.to_owned() });
        self.state = DestinationState::Idle;
        self.outputs.push_back(DestinationOutput::Turn);
    }

    /// The connection cannot be used any more.
    pub fn break_off(&mut self, now: Instant, reason: &str) {
        self.end(now, reason);
        (self.state, self.input, self.taken_size) = (DestinationState::Broken, Vec::new(), 0);
        self.outputs.push_back(DestinationOutput::Turn);
    }

    fn send(&mut self, now: Instant, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.sent_at = now;
        self.outputs.push_back(DestinationOutput::Send { connection: self.connection, bytes });
    }

    fn note(&mut self, event: DestinationEvent) {
        self.outputs.push_back(DestinationOutput::Note(event));
    }
}
