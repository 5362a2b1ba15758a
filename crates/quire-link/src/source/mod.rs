//! A link to a destination: the state machine of the source (docs/replication.md).
//!
//! ```text
//!            +---------------- the connection is lost, or the peer refuses <---------------+
//!            v                                                                             |
//! Waiting ------> Opening ------> Greeting ------> Live ----------------------------------- +
//!   at a time       the driver      `hello` is       `welcome` came: records are read and sent
//!                   connects        sent
//! ```
//!
//! A command brings the link from any state to `Paused`, and another one from there to `Waiting`.
//! The link is `Gap` when the log no longer has records that the destination lacks. The second
//! command brings it from there to `Waiting`, too.

mod age;
mod attempts;
mod event;
mod live;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quire_types::{Position, time::Instant};
use quire_wire::link::{FRAME_OVERHEAD_MAX, Frame, Given, Hello, Mark, SentAll, VERSION, Welcome};

use age::Ages;
use attempts::Attempts;
pub use event::{Greeted, Introduction, LogState, Read, ReadFound, SourceEvent, SourceOutput};
use live::{Connected, Live};
pub use live::{Run, SentFrame};

use crate::replicated::DestinationProgress;
use crate::{Connection, HEARTBEAT, KeptMark, MemberInfo, PlacesFrame, SILENCE_MAX};

/// The next attempt of a link whose destination is to connect.
const NEVER: Instant = Instant(u64::MAX);

/// Bytes of an answer to a question of a destination, at most: a frame has other fields, too.
const ANSWER_SIZE_MAX: usize = FRAME_OVERHEAD_MAX - 1024;

/// A destination as the configuration has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceSettings {
    /// The name of the instance.
    pub name: String,
    /// The group that it is in. Any instance of the group may answer.
    pub group: Option<String>,
    /// Equivalent addresses, tried from the top. Without one, the destination is to connect.
    pub addresses: Vec<String>,
    /// Whether publishers wait for it.
    pub is_sync: bool,
    /// Publishers stop waiting for it when its oldest message without an acknowledgement is older.
    pub downgrade_after: Option<Duration>,
    /// Publishers wait for it again when that message is younger.
    pub upgrade_below: Option<Duration>,
}

/// Where a link begins, and what is saved for the next run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkPlace {
    /// The next connection begins after it, when the destination still has the message of `mark`.
    pub resume_from: Position,
    /// The last message that the destination is known to have.
    pub mark: Option<Mark>,
    /// The instance at the other end, when there was one. Another instance of its group has another
    /// log.
    pub instance: Option<String>,
    /// The number of the log of this instance; 0: not known.
    pub log: u64,
}

impl LinkPlace {
    fn note_mark(&mut self, mark: Option<Mark>) {
        // A mark that an earlier version saved has no time.
        let rank = |mark: Mark| (mark.position, mark.time.as_ns() > 0);
        if let Some(mark) = mark.filter(|mark| Some(rank(*mark)) > self.mark.map(rank)) {
            self.mark = Some(mark);
        }
    }
}

/// An instance that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// The start of its process.
    pub started_ns: u64,
}

/// Whether a destination may have messages that this instance lacks, since the start of this
/// instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// It has not answered yet.
    #[default]
    Unknown,
    /// It is there, and sends the messages that this instance lacks.
    Filling,
    /// It has nothing for this instance, or it is not there.
    Over,
}

/// The state of a link, as figures show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// It waits for the next attempt.
    Waiting,
    /// It waits, because the destination has ended the link.
    Refused,
    /// A connection is being made, or `welcome` has not come.
    Connecting,
    /// Records that were in the log at the connect are sent.
    CatchingUp,
    /// New records are sent.
    Live,
    /// A command has paused it.
    Paused,
    /// The log lacks records that the destination lacks.
    Gap,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    /// Records that were sent.
    pub records: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Times that the destination has answered.
    pub connects: u64,
}

/// The link to one destination.
///
/// After every call, [`poll_output`](Source::poll_output) until it has nothing. In every turn, call
/// [`begin_turn`](Source::begin_turn), read as long as [`poll_read`](Source::poll_read) says so,
/// and call [`end_turn`](Source::end_turn). The next turn is due at
/// [`poll_timeout`](Source::poll_timeout).
#[derive(Debug)]
pub struct Source {
    settings: Arc<SourceSettings>,
    state: SourcePhase,
    place: LinkPlace,
    acknowledged: Position,
    /// The instance that answered last.
    peer: Option<Peer>,
    attempts: Attempts,
    ages: Ages,
    start: Start,
    counts: SourceCounts,
    /// The number of the last read.
    read_number: u64,
    outputs: VecDeque<SourceOutput>,
}

#[derive(Debug)]
enum SourcePhase {
    Waiting(Instant),
    Opening,
    Greeting(Connected),
    Live(Box<Live>),
    Paused,
    Gap,
}

impl Source {
    /// A link that begins at `place`.
    pub fn new(settings: SourceSettings, place: LinkPlace) -> Self {
        Source {
            settings: Arc::new(settings),
            state: SourcePhase::Waiting(Instant::default()),
            place,
            acknowledged: Position::ZERO,
            peer: None,
            attempts: Attempts::default(),
            ages: Ages::default(),
            start: Start::Unknown,
            counts: SourceCounts::default(),
            read_number: 0,
            outputs: VecDeque::new(),
        }
    }

    /// The next thing that the caller has to do.
    pub fn poll_output(&mut self) -> Option<SourceOutput> {
        self.outputs.pop_front()
    }

    /// The destination.
    pub fn settings(&self) -> &SourceSettings {
        &self.settings
    }

    /// The connection that the link uses.
    pub fn connection(&self) -> Option<Connection> {
        self.connected().map(|connected| connected.connection)
    }

    fn connected(&self) -> Option<&Connected> {
        match &self.state {
            SourcePhase::Greeting(connected) => Some(connected),
            SourcePhase::Live(live) => Some(&live.connected),
            SourcePhase::Waiting(_) | SourcePhase::Opening | SourcePhase::Paused | SourcePhase::Gap => None,
        }
    }

    fn connected_mut(&mut self) -> Option<&mut Connected> {
        match &mut self.state {
            SourcePhase::Greeting(connected) => Some(connected),
            SourcePhase::Live(live) => Some(&mut live.connected),
            SourcePhase::Waiting(_) | SourcePhase::Opening | SourcePhase::Paused | SourcePhase::Gap => None,
        }
    }

    fn live(&self) -> Option<&Live> {
        match &self.state {
            SourcePhase::Live(live) => Some(live),
            _ => None,
        }
    }

    fn live_mut(&mut self) -> Option<&mut Live> {
        match &mut self.state {
            SourcePhase::Live(live) => Some(live),
            _ => None,
        }
    }

    /// Whether records are sent.
    pub fn is_live(&self) -> bool {
        self.live().is_some()
    }

    /// Whether a connection is being made.
    pub fn is_opening(&self) -> bool {
        matches!(self.state, SourcePhase::Opening)
    }

    /// Whether `hello` is sent, and `welcome` has not come.
    pub fn is_greeting(&self) -> bool {
        matches!(self.state, SourcePhase::Greeting(_))
    }

    /// The number of the read under way.
    pub fn reading(&self) -> Option<u64> {
        self.live().and_then(|live| live.reading)
    }

    /// The state for figures.
    pub fn state(&self) -> SourceState {
        match &self.state {
            SourcePhase::Waiting(_) if self.attempts.is_refused => SourceState::Refused,
            SourcePhase::Waiting(_) => SourceState::Waiting,
            SourcePhase::Opening | SourcePhase::Greeting(_) => SourceState::Connecting,
            SourcePhase::Live(live) if live.owes_caught_up => SourceState::CatchingUp,
            SourcePhase::Live(_) => SourceState::Live,
            SourcePhase::Paused => SourceState::Paused,
            SourcePhase::Gap => SourceState::Gap,
        }
    }

    /// The instance that answered last.
    pub fn peer(&self) -> Option<&Peer> {
        self.peer.as_ref()
    }

    /// Forgets the instance that answered last, and what it acknowledged. The place of the link
    /// stays.
    pub fn forget_peer(&mut self) {
        (self.peer, self.acknowledged) = (None, Position::ZERO);
    }

    /// The state to save for the next run.
    pub fn place(&self) -> &LinkPlace {
        &self.place
    }

    /// The position up to which everything is acknowledged.
    pub fn acknowledged(&self) -> Position {
        self.acknowledged
    }

    /// The position up to which the log was looked at.
    pub fn scanned(&self) -> Position {
        self.live().map_or(self.acknowledged, |live| live.scanned)
    }

    /// The position of the end of the log when the destination answered.
    pub fn greeted(&self) -> Position {
        self.live().map_or(Position::ZERO, |live| live.greeted)
    }

    /// Bytes of records that are not acknowledged.
    pub fn unacknowledged_size(&self) -> usize {
        self.live().map_or(0, |live| live.flight.size())
    }

    /// The time since the oldest message that is not acknowledged was routed here.
    pub fn age(&self, now: Instant) -> Duration {
        self.ages.oldest(now)
    }

    /// Counts since the start.
    pub fn counts(&self) -> SourceCounts {
        self.counts
    }

    /// The reason why the link was last not connected.
    pub fn last_error(&self) -> Option<&str> {
        self.attempts.last_error.as_deref()
    }

    /// Replaces the last error by a description of the caller.
    pub fn describe_error(&mut self, error: String) {
        self.attempts.last_error = Some(error);
    }

    /// Whether the destination may have messages that this instance lacks.
    pub fn start(&self) -> Start {
        self.start
    }

    /// The destination has answered, and sends records to this instance or does not; or it has sent
    /// everything.
    pub fn set_start(&mut self, start: Start) {
        self.start = start;
    }

    /// The address that is connected, or is tried next; empty when the destination is to connect.
    pub fn address(&self) -> &str {
        let shared = self.connected().and_then(|connected| connected.shared.as_deref());
        let configured = || self.settings.addresses.get(self.attempts.address).map_or("", |address| address);
        shared.unwrap_or_else(configured)
    }

    /// How far the destination is.
    pub fn progress(&self) -> DestinationProgress {
        let scanned = self.scanned();
        let by_hops = self.live().map_or_else(Vec::new, |live| live.flight.by_hops(scanned));
        DestinationProgress { all: self.acknowledged, by_hops, beyond: scanned }
    }

    /// Whether the instance is the destination, or one of its group.
    pub fn leads_to(&self, instance: &str, group: &str) -> bool {
        self.settings.name == instance || self.settings.group.as_deref() == Some(group)
    }

    /// Whether it uses a connection that the instance has made. Addresses of a group have an order,
    /// so that they are tried instead.
    pub fn shares_with(&self, instance: &str, group: &str) -> bool {
        self.settings.name == instance
            || (self.settings.addresses.is_empty() && self.leads_to(instance, group))
    }

    /// Whether it would use a connection that the destination has made.
    pub fn wants_connection(&self, now: Instant) -> bool {
        match self.state {
            SourcePhase::Waiting(at) => at <= now,
            SourcePhase::Opening => true,
            SourcePhase::Greeting(_) | SourcePhase::Live(_) | SourcePhase::Paused | SourcePhase::Gap => false,
        }
    }

    /// The first position of the log that must stay for the destination. With a limit of the files
    /// that are kept for it, `retained_from` is the first position within this limit.
    pub fn needed_from(&self, retained_from: Option<Position>) -> Position {
        self.place.resume_from.next().max(retained_from.unwrap_or_default())
    }

    /// Files that the destination needs may have been removed: the link ends when this has
    /// happened.
    pub fn handle_removed_files(&mut self, now: Instant, log: &LogState) {
        if !self.is_live() && log.lacks(self.place.resume_from) {
            self.stop_at_gap(now, log);
        }
    }

    /// Records that the destination lacks are no longer in the log: nothing is sent until a command
    /// accepts the gap.
    fn stop_at_gap(&mut self, now: Instant, log: &LogState) {
        if matches!(self.state, SourcePhase::Gap | SourcePhase::Paused) {
            return;
        }
        self.stop(now, SourcePhase::Gap, "it lacks records that are no longer in the log of the source");
        self.note(SourceEvent::HasGap { after: self.place.resume_from, first: log.first });
        if self.settings.is_sync {
            self.ages.by_command = true;
            self.set_downgraded(true, "journal files that it needs were removed");
        }
        self.outputs.push_back(SourceOutput::Turn);
    }

    /// Begins the work of a turn: connects, and notices silence. `shared` is a connection that the
    /// destination has made, with its address, when [`wants_connection`](Source::wants_connection).
    /// Returns the connection that the caller is to [`begin`](Source::begin) with.
    pub fn begin_turn(
        &mut self,
        now: Instant,
        log: &LogState,
        shared: Option<(Connection, String)>,
    ) -> Option<(Connection, String)> {
        match &self.state {
            SourcePhase::Waiting(at) if *at <= now => {
                if log.lacks(self.place.resume_from) {
                    self.stop_at_gap(now, log);
                    return None;
                }
                if shared.is_none() {
                    self.open();
                }
                return shared;
            }
            SourcePhase::Opening => return shared,
            SourcePhase::Waiting(_) | SourcePhase::Paused | SourcePhase::Gap => (),
            SourcePhase::Greeting(connected) => self.look_at_silence(now, connected.received_at),
            SourcePhase::Live(live) => self.look_at_silence(now, live.connected.received_at),
        }
        None
    }

    fn look_at_silence(&mut self, now: Instant, received_at: Instant) {
        if received_at + SILENCE_MAX <= now {
            self.lose(now, "nothing was heard from it for 10 s");
        }
    }

    /// Ends the work of a turn: says that everything was sent, sends the marks that are due and a
    /// heartbeat, and looks at the age of messages that are not acknowledged. Each mark comes with
    /// whether the link sends everything that can be missing at the destination.
    pub fn end_turn(&mut self, now: Instant, marks: &[(KeptMark, bool)]) {
        let mut frames = Vec::new();
        let mut has_caught_up = false;
        if let SourcePhase::Live(live) = &mut self.state {
            has_caught_up = live.owes_caught_up && live.scanned >= live.greeted;
            if has_caught_up {
                live.owes_caught_up = false;
                frames.push(Frame::Mark(SentAll::default()));
            }
            let due = live.take_due(marks);
            frames.extend(due.into_iter().map(|(mark, is_whole)| Frame::Mark(mark.as_frame(*is_whole))));
            if frames.is_empty() && live.connected.sent_at + HEARTBEAT <= now {
                frames.push(Frame::Heartbeat);
            }
        }
        frames.iter().for_each(|frame| self.send(now, frame));
        if has_caught_up {
            self.note(SourceEvent::CaughtUp);
        }
        self.look_at_age(now);
    }

    /// The position of the log for which a frame of places is due. Call it after
    /// [`end_turn`](Source::end_turn), and then [`send_places`](Source::send_places). `version`
    /// changes with the places that this instance knows.
    pub fn places_due(&mut self, now: Instant, version: (u64, u64)) -> Option<Position> {
        self.live_mut()?.places_due(now, version)
    }

    /// Sends the places at the position that was due, unless they are those that were sent last.
    pub fn send_places(&mut self, now: Instant, frame: Option<PlacesFrame>) {
        let Some(live) = self.live_mut() else { return };
        let Some(frame) = live.places.make(now, frame).cloned() else { return };
        self.send(now, &Frame::Places(frame.as_frame()));
    }

    /// When it has something to do next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let link = match &self.state {
            SourcePhase::Waiting(NEVER) => None,
            SourcePhase::Waiting(at) => Some(*at),
            SourcePhase::Opening | SourcePhase::Paused | SourcePhase::Gap => None,
            SourcePhase::Greeting(connected) => Some(connected.received_at + SILENCE_MAX),
            SourcePhase::Live(live) => {
                let connected = &live.connected;
                Some((connected.received_at + SILENCE_MAX).min(connected.sent_at + HEARTBEAT))
            }
        };
        let yields = self.live().and_then(|live| live.yields_until);
        let places = self.live().and_then(|live| live.places.due());
        link.into_iter().chain(yields).chain(places).chain(self.ages.downgrade_due(&self.settings)).min()
    }

    /// Waits no longer for the next attempt. An attempt that is under way now is followed by the
    /// next one after the shortest delay.
    pub fn try_now(&mut self, now: Instant) {
        self.attempts.failed_passes = 0;
        if let SourcePhase::Waiting(at) = &mut self.state {
            self.attempts.address = 0;
            *at = now.min(*at);
        }
    }

    fn open(&mut self) {
        let address = self.attempts.address;
        if address >= self.settings.addresses.len() {
            // The destination is to connect.
            self.state = SourcePhase::Waiting(NEVER);
            return;
        }
        self.state = SourcePhase::Opening;
        self.outputs.push_back(SourceOutput::Open { address });
    }

    /// The caller could not connect.
    pub fn handle_not_opened(&mut self, now: Instant, reason: &str) {
        if self.is_opening() {
            self.fail(now, reason);
        }
    }

    /// The other instance has not accepted the logon of the connection. Every address is tried, and
    /// then the longest delay passes: the identity may be another one later.
    pub fn handle_not_logged_on(&mut self, now: Instant, reason: &str) {
        if self.is_opening() {
            self.attempts.failed_passes = self.attempts.failed_passes.max(16);
            self.fail(now, reason);
            self.attempts.is_refused = true;
        }
    }

    /// The link cannot use the connection that the destination has made: this instance refuses it.
    pub fn handle_share_refused(&mut self, reason: &str) {
        if self.attempts.note_error(reason) {
            self.note(SourceEvent::Down { reason: reason.to_owned() });
        }
        self.attempts.is_refused = true;
    }

    /// There is a connection: introduces this instance. `shared` is the address of the destination
    /// when it has made the connection.
    pub fn begin(
        &mut self,
        now: Instant,
        connection: Connection,
        shared: Option<String>,
        introduction: Introduction<'_>,
    ) {
        let reason = "it uses the other connection of the two instances";
        self.send(now, &Frame::Ended { reason });
        self.state = SourcePhase::Greeting(Connected::new(connection, shared, now));
        let Introduction { instance, group, started_ns, topics, excluded, members } = introduction;
        let settings = Arc::clone(&self.settings);
        let hello = Hello {
            version: VERSION,
            instance,
            group,
            destination: &settings.name,
            destination_group: settings.group.as_deref().unwrap_or_default(),
            started_ns,
            mark: self.place.mark,
            marked_log: self.place.log,
            topics,
            excluded,
            members,
        };
        self.send(now, &Frame::Hello(hello));
    }

    /// The connection takes more, or does not.
    pub fn handle_writable(&mut self, is_writable: bool) {
        if let Some(connected) = self.connected_mut() {
            connected.is_writable = is_writable;
        }
    }

    /// Bytes arrived on the connection.
    pub fn handle_heard(&mut self, now: Instant) {
        if let Some(connected) = self.connected_mut() {
            connected.received_at = now;
        }
    }

    /// Takes a frame of the destination. Gives its introduction when the frame is this. The caller
    /// has checked the names in it.
    pub fn handle_frame(&mut self, now: Instant, log: &LogState, frame: &Frame<'_>) -> Option<Greeted> {
        match (&mut self.state, frame) {
            (SourcePhase::Greeting(_), Frame::Welcome(welcome)) => return self.welcomed(now, log, welcome),
            (_, Frame::Refused { reason }) => self.refuse(now, reason),
            (SourcePhase::Live(live), Frame::Acknowledged { through, hops, mark }) => {
                if let Some(acknowledged) = live.acknowledge(*through, *hops, mark.is_some()) {
                    // The next connection begins after it, so that it does not fail at the same
                    // place again.
                    live.has_progress = true;
                    self.acknowledged = self.acknowledged.max(acknowledged);
                }
                self.place.note_mark(*mark);
                self.settle();
            }
            (SourcePhase::Live(_), Frame::Rejected { bookmark, run }) => {
                self.outputs.push_back(SourceOutput::Rejected { bookmark: *bookmark, run: *run });
            }
            (SourcePhase::Live(live), Frame::Question { number, question }) if live.request.is_none() => {
                self.read_number += 1;
                live.request = Some((self.read_number, *number));
                let (number, question) = (self.read_number, question.to_vec());
                self.outputs.push_back(SourceOutput::Answer { number, question });
            }
            (SourcePhase::Live(live), Frame::Wanted { number, ranges }) if live.request.is_none() => {
                self.read_number += 1;
                live.request = Some((self.read_number, *number));
                let (number, ranges) = (self.read_number, ranges.clone());
                self.outputs.push_back(SourceOutput::Give { number, ranges });
            }
            // They belong to an earlier link on the connection.
            (
                SourcePhase::Greeting(_),
                Frame::Acknowledged { .. }
                | Frame::Rejected { .. }
                | Frame::Question { .. }
                | Frame::Wanted { .. },
            ) => (),
            _ => self.lose(now, "it sent a frame that a destination does not send here"),
        }
        None
    }

    fn welcomed(&mut self, now: Instant, log: &LogState, welcome: &Welcome<'_>) -> Option<Greeted> {
        let (instance, group) = (welcome.instance, welcome.group);
        if !self.leads_to(instance, group) {
            let reason = format!(
                "the instance there has the name {instance:?} and the group {group:?}, which is not the destination"
            );
            self.refuse(now, &reason);
            return None;
        }
        // The logs of a group are so alike that another instance may have the message of the mark
        // at the same position.
        let has_mark = welcome.has_mark && self.place.instance.as_deref() == Some(instance);
        self.attempts.answered();
        self.counts.connects += 1;
        self.place.instance = Some(instance.to_owned());
        self.place.log = welcome.members.first().map_or(0, |member| member.log);
        let started_ns = welcome.started_ns;
        self.peer = Some(Peer { name: instance.to_owned(), group: group.to_owned(), started_ns });
        if !has_mark {
            // It is another instance of the group, it has lost its log, or nothing was ever sent:
            // everything is offered again.
            (self.place.resume_from, self.place.mark) = (log.start(), None);
        }
        let after = self.place.resume_from;
        self.state = match std::mem::replace(&mut self.state, SourcePhase::Opening) {
            SourcePhase::Greeting(connected) => {
                SourcePhase::Live(Box::new(Live::new(connected, now, after, log.appended)))
            }
            other => other,
        };
        if log.lacks(after) {
            self.stop_at_gap(now, log);
            return None;
        }
        self.acknowledged = after;
        self.note(SourceEvent::Up { instance: instance.to_owned(), group: group.to_owned(), after });
        let members = welcome.members.iter().map(MemberInfo::of_frame).collect();
        Some(Greeted { instance: instance.to_owned(), started_ns, sends_back: welcome.sends_back, members })
    }

    /// Without anything in flight, everything that was looked at is acknowledged.
    fn settle(&mut self) {
        if let SourcePhase::Live(live) = &self.state {
            if live.flight.is_empty() {
                self.acknowledged = self.acknowledged.max(live.scanned);
            }
            if live.is_marked(self.place.mark) {
                self.place.resume_from = self.acknowledged;
            }
        }
        self.ages.forget_through(self.acknowledged);
    }

    /// A piece of the log was received from the destination. Pieces that existed before the link
    /// came up are read: the destination may have lost them.
    pub fn handle_run(&mut self, run: Run) {
        if let Some(live) = self.live_mut() {
            live.note_run(run);
        }
    }

    /// A frame of records came from the destination. `last` is its last record.
    pub fn handle_last_there(&mut self, last: Mark) {
        if self.is_live() {
            self.place.note_mark(Some(last));
            self.settle();
        }
    }

    /// The destination says which members it knows. It drops marks of instances that are not
    /// members, so all marks are sent again.
    pub fn handle_members(&mut self) {
        if let SourcePhase::Live(live) = &mut self.state {
            live.forget_marks();
        }
    }

    /// The next piece of the log to read; then call [`handle_read`](Source::handle_read).
    /// `has_files`: the reader still holds the files of the log after
    /// [`scanned`](Source::scanned).
    pub fn poll_read(&mut self, now: Instant, log: &LogState, has_files: bool) -> Option<Read> {
        let is_waited_for = self.is_waited_for();
        let SourcePhase::Live(live) = &mut self.state else { return None };
        if live.pass_runs(log.persisted) {
            self.settle();
        }
        let SourcePhase::Live(live) = &mut self.state else { return None };
        if !live.may_read(log.persisted) {
            live.yields_until = None;
            return None;
        }
        if live.yields_to_publishes(now, log, is_waited_for) {
            return None;
        }
        if !has_files && log.lacks(live.scanned) {
            self.stop_at_gap(now, log);
            return None;
        }
        self.read_number += 1;
        live.reading = Some(self.read_number);
        let is_short = live.is_near(log.persisted);
        Some(Read { number: self.read_number, after: live.scanned, limit: log.persisted, is_short })
    }

    /// A read is done; `None` after a bug. An error of the log is in `found`, after the records
    /// before it.
    pub fn handle_read(&mut self, now: Instant, log: &LogState, number: u64, found: Option<ReadFound>) {
        let SourcePhase::Live(live) = &mut self.state else { return };
        if live.reading != Some(number) {
            return;
        }
        live.reading = None;
        let Some(found) = found else { return self.lose(now, "reading the log for it failed") };
        found.last_there.into_iter().for_each(|last_there| live.leave_out(last_there));
        live.scanned = found.scanned;
        for sent in found.sent {
            self.counts.records += sent.count;
            live.add_sent(sent);
        }
        if !found.frames.is_empty() {
            live.connected.sent_at = now;
            self.counts.bytes += found.frames.len() as u64;
            let connection = live.connected.connection;
            self.outputs.push_back(SourceOutput::Send { connection, bytes: found.frames });
        }
        let has_more = live.scanned < log.persisted;
        self.settle();
        if let Some(error) = found.error {
            self.lose(now, &error);
        }
        if has_more {
            self.outputs.push_back(SourceOutput::Turn);
        }
    }

    /// The answer to a question of the destination, or why there is none.
    pub fn handle_answer(&mut self, now: Instant, number: u64, answer: Result<&[u8], &str>) {
        let Some(number) = self.end_request(number) else { return };
        let answer = match answer {
            Ok(answer) if answer.len() > ANSWER_SIZE_MAX => Err("the answer is larger than a frame"),
            answer => answer,
        };
        let (answer, reason) = match answer {
            Ok(answer) => (answer, ""),
            Err(reason) => (&[][..], reason),
        };
        self.send(now, &Frame::Answer { number, reason, answer });
    }

    /// The messages that the destination asked for, as frames of records, or why there are none.
    pub fn handle_given(&mut self, now: Instant, number: u64, found: Result<(Vec<u8>, Given), String>) {
        let Some(number) = self.end_request(number) else { return };
        let (frames, given, reason) = match found {
            Ok((frames, given)) => (frames, given, String::new()),
            Err(reason) => (Vec::new(), Given::default(), reason),
        };
        self.counts.records += given.sent;
        self.counts.bytes += frames.len() as u64;
        let connection = self.connection();
        if let Some(connection) = connection.filter(|_| !frames.is_empty()) {
            self.outputs.push_back(SourceOutput::Send { connection, bytes: frames });
        }
        self.send(now, &Frame::Given { number, reason: &reason, given });
    }

    /// A request is answered. Returns its number there; `None`: the link has ended meanwhile.
    fn end_request(&mut self, number: u64) -> Option<u64> {
        let live = self.live_mut()?;
        live.request.take_if(|(here, _)| *here == number).map(|(_, there)| there)
    }

    /// A message at `position` goes to the destination. It may be an old one that a publisher or
    /// another instance has sent again.
    #[inline]
    pub fn expect(&mut self, position: Position, now: Instant) {
        if position > self.acknowledged {
            self.ages.note(position, now);
        }
    }

    /// Whether publishers wait for the destination.
    pub fn is_waited_for(&self) -> bool {
        self.settings.is_sync && !self.ages.is_downgraded
    }

    /// Downgrades and upgrades the destination by the age of the oldest message that it has not
    /// acknowledged.
    fn look_at_age(&mut self, now: Instant) {
        if self.ages.by_command || !self.settings.is_sync {
            return;
        }
        let age = self.ages.oldest(now);
        let is_too_old = self.settings.downgrade_after.is_some_and(|after| age >= after);
        let is_close = self.settings.upgrade_below.is_some_and(|below| age < below);
        if !self.ages.is_downgraded && is_too_old {
            self.set_downgraded(true, "its oldest message without an acknowledgement is too old");
        } else if self.ages.is_downgraded && is_close && self.is_live() {
            self.set_downgraded(false, "it has caught up");
        }
    }

    /// A command decides whether the destination is waited for.
    ///
    /// # Errors
    /// The reason against it.
    pub fn handle_downgrade(&mut self, is_downgraded: bool) -> Result<(), String> {
        if !self.settings.is_sync {
            return Err(format!(
                "destination {:?}: it has sync_type = \"async\", so publishers never wait for it",
                self.settings.name
            ));
        }
        self.ages.by_command = is_downgraded;
        self.set_downgraded(is_downgraded, "a command asked for it");
        Ok(())
    }

    fn set_downgraded(&mut self, is_downgraded: bool, reason: &'static str) {
        if self.ages.is_downgraded != is_downgraded {
            self.ages.is_downgraded = is_downgraded;
            self.outputs.push_back(SourceOutput::WaitFor(!is_downgraded));
            self.note(SourceEvent::WaitedFor { is_waited_for: !is_downgraded, reason });
            self.outputs.push_back(SourceOutput::Turn);
        }
    }

    /// Sends nothing from now on. The log keeps the records that the destination has not
    /// acknowledged.
    pub fn handle_pause(&mut self, now: Instant) {
        if !matches!(self.state, SourcePhase::Paused) {
            self.stop(now, SourcePhase::Paused, "a command paused it");
            self.note(SourceEvent::Paused { is_paused: true });
            self.outputs.push_back(SourceOutput::Turn);
        }
    }

    /// Connects again after a pause. A destination with a gap gets the records that are in the log.
    pub fn handle_resume(&mut self, now: Instant, log: &LogState) {
        match self.state {
            SourcePhase::Paused => (),
            SourcePhase::Gap => {
                (self.place.resume_from, self.place.mark) = (log.start(), None);
                self.acknowledged = self.place.resume_from;
                self.ages.forget_through(self.acknowledged);
            }
            SourcePhase::Waiting(_)
            | SourcePhase::Opening
            | SourcePhase::Greeting(_)
            | SourcePhase::Live(_) => return,
        }
        self.attempts.failed_passes = 0;
        self.state = SourcePhase::Waiting(now);
        self.note(SourceEvent::Paused { is_paused: false });
        self.outputs.push_back(SourceOutput::Turn);
    }

    /// Ends the link until a command. Clients of an instance that has just started do not wait for
    /// this.
    fn stop(&mut self, now: Instant, state: SourcePhase, reason: &str) {
        self.send(now, &Frame::Ended { reason });
        (self.start, self.attempts.address, self.state) = (Start::Over, 0, state);
    }

    /// The peer does not accept the link, or ends it. It may have another configuration later.
    pub fn refuse(&mut self, now: Instant, reason: &str) {
        if !self.is_live() {
            // Every address is tried, and then the longest delay passes.
            self.attempts.failed_passes = self.attempts.failed_passes.max(16);
        }
        let is_up = self.connected().is_some();
        self.lose(now, reason);
        self.attempts.is_refused = is_up;
    }

    /// The connection is gone.
    pub fn handle_disconnected(&mut self, now: Instant) {
        self.fail(now, "the connection was closed");
    }

    /// The link ends here. The connection may carry on the link from the destination.
    pub fn lose(&mut self, now: Instant, reason: &str) {
        if self.connected().is_some() {
            self.send(now, &Frame::Ended { reason });
            self.fail(now, reason);
        }
    }

    /// Tries the next address. A link that was up begins at the top again.
    fn fail(&mut self, now: Instant, reason: &str) {
        let was_shared = self.connected().is_some_and(|connected| connected.shared.is_some());
        if self.attempts.note_error(reason) {
            self.note(SourceEvent::Down { reason: reason.to_owned() });
        }
        let ended = self.live().map(|live| live.is_brief(now));
        let delay = match self.attempts.fail(ended, was_shared, self.settings.addresses.len()) {
            Some(delay) => {
                self.start = Start::Over;
                delay
            }
            None => Duration::ZERO,
        };
        self.state = SourcePhase::Waiting(now + delay);
        if delay.is_zero() {
            self.outputs.push_back(SourceOutput::Turn);
        }
    }

    /// Sends a frame, when there is a connection.
    fn send(&mut self, now: Instant, frame: &Frame<'_>) {
        let Some(connected) = self.connected_mut() else { return };
        connected.sent_at = now;
        let connection = connected.connection;
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.outputs.push_back(SourceOutput::Send { connection, bytes });
    }

    fn note(&mut self, event: SourceEvent) {
        self.outputs.push_back(SourceOutput::Note(event));
    }
}
