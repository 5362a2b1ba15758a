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
//! While it is live, `scanned` is the position up to which the log was looked at. Records are in flight until the destination
//! acknowledges them. `acknowledged` follows `scanned` at once while nothing is in flight.
//!
//! A command brings the link from any state to `Paused`, and another one from there to `Waiting`. The link is `Gap` when the log no
//! longer has records that the destination lacks. The second command brings it from there to `Waiting`, too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quire_journal::{Cursor, Position};
use quire_types::time::Instant;
use quire_wire::link::{Frame, Hello, Mark, VERSION, Welcome};

use super::incoming::Run;
use super::place::Place;
use super::read::{LinkFound, LinkReading, SentFrame};
use super::{HEARTBEAT, Links, SILENCE_MAX, offered, start_of_log};
use crate::config::links::{Definition, SyncType, check_name};
use crate::context::Context;
use crate::io::{ConnectionId, Event, Output};
use crate::log::YIELD_MAX;
use crate::replicated::Progress;
use crate::stats::DestinationStats;

/// The first delay after every address was tried without success. It doubles with each pass. As with clients.
const DELAY_MIN: Duration = Duration::from_millis(200);

/// A link that ends earlier counts as a failure, unless something was acknowledged on it. The same record may end the next one, too.
const LASTING: Duration = Duration::from_secs(10);

/// The next attempt of a link whose destination is to connect.
const NEVER: Instant = Instant(u64::MAX);

/// The longest delay.
const DELAY_MAX: Duration = Duration::from_secs(20);

/// Bytes of records that may be in flight: several milliseconds of a fast network, and little for the memory of the destination.
const WINDOW_SIZE: usize = 4 * 1024 * 1024;

/// Records that are read on the loop, when so few are new. A thread for them would cost more than the read.
const INLINE_RECORDS_MAX: u64 = 64;

/// The longest pause of a link that catches up while clients publish. It then sends 51 MB/s, in reads of 256 KiB: much less work for both
/// instances than the publishes, and the records of an outage do arrive.
const CATCH_UP_YIELD_MAX: Duration = Duration::from_millis(5);

/// Pieces of the log that the link passes over, at most. At the limit the last one grows. A piece that does not follow it is read.
const RUNS_MAX: usize = 64;

/// Instants of messages that wait for an acknowledgement, at most. At the limit every second one is forgotten, so that ages become less
/// exact.
const WAITING_MAX: usize = 1024;

/// The link to one destination.
pub(super) struct Outgoing {
    pub(super) definition: Arc<Definition>,
    number: usize,
    state: State,
    /// The place of the address that is tried now, or next.
    address: usize,
    /// Passes over all addresses without success, and links in a row that ended soon.
    failed_passes: u32,
    /// When the destination answered `hello` last, and whether it has acknowledged anything since then.
    live_since: Instant,
    has_progress: bool,
    /// The last link ended soon: see [`LASTING`].
    is_unsteady: bool,
    /// The destination has ended the link.
    is_refused: bool,
    /// The name of the instance that answered.
    pub(super) peer: Option<String>,
    peer_group: String,
    /// The address of the destination when it has made the connection.
    shared: Option<String>,
    is_writable: bool,
    received_at: Instant,
    sent_at: Instant,
    cursor: Option<Cursor>,
    /// The place of the cursor.
    read_through: Position,
    /// Pieces of the log that came from the destination itself. They are not read.
    runs: VecDeque<Run>,
    /// The number of the read under way.
    reading: Option<u64>,
    /// Publishes have precedence: nothing is read until then.
    yields_until: Option<Instant>,
    greeted: Position,
    scanned: Position,
    acknowledged: Position,
    /// The instance of which `resume_from` and `mark` tell what it has.
    known: Option<String>,
    /// Where the next connection begins when the destination still has the message of `mark`.
    resume_from: Position,
    /// `mark` includes everything that was sent.
    is_marked: bool,
    /// The last record that was sent, and the last one that a mark includes.
    last_sent: Position,
    marked: Position,
    in_flight: VecDeque<SentFrame>,
    /// Of the records with the same hops in each frame in flight, the first and the last; by hops.
    unacknowledged: Vec<VecDeque<(Position, Position)>>,
    in_flight_size: usize,
    /// `caught_up` is still to be sent.
    owes_caught_up: bool,
    /// The last record that the destination is known to have.
    pub(super) mark: Option<Mark>,
    /// The instants at which messages were routed here, with their positions.
    waiting: VecDeque<(Position, Instant)>,
    /// The age of its messages or a command decided that it is not waited for.
    is_downgraded: bool,
    /// A command decided it, so that the age does not undo it.
    by_command: bool,
    /// The first attempt is over, and this instance has received what it lacked.
    pub(super) start: Start,
    last_error: Option<String>,
    sent_count: u64,
    sent_size: u64,
    reconnect_count: u64,
}

/// The state of a destination since the start of this instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Nothing yet.
    Unknown,
    /// It is there, and sends what this instance lacks.
    Filling,
    /// It has nothing for this instance, or it is not there.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting(Instant),
    Opening,
    Greeting(ConnectionId),
    Live(ConnectionId),
    Paused,
    Gap,
}

impl Outgoing {
    pub(super) fn new(number: usize, definition: Arc<Definition>) -> Self {
        Outgoing {
            definition,
            number,
            state: State::Waiting(Instant::default()),
            address: 0,
            failed_passes: 0,
            live_since: Instant::default(),
            has_progress: false,
            is_unsteady: false,
            is_refused: false,
            peer: None,
            peer_group: String::new(),
            shared: None,
            is_writable: true,
            received_at: Instant::default(),
            sent_at: Instant::default(),
            cursor: None,
            read_through: Position::ZERO,
            runs: VecDeque::new(),
            reading: None,
            yields_until: None,
            greeted: Position::ZERO,
            scanned: Position::ZERO,
            acknowledged: Position::ZERO,
            known: None,
            resume_from: Position::ZERO,
            is_marked: true,
            last_sent: Position::ZERO,
            marked: Position::ZERO,
            in_flight: VecDeque::new(),
            unacknowledged: Vec::new(),
            in_flight_size: 0,
            owes_caught_up: false,
            mark: None,
            waiting: VecDeque::new(),
            is_downgraded: false,
            by_command: false,
            start: Start::Unknown,
            last_error: None,
            sent_count: 0,
            sent_size: 0,
            reconnect_count: 0,
        }
    }

    pub(super) fn connection(&self) -> Option<ConnectionId> {
        match self.state {
            State::Greeting(connection) | State::Live(connection) => Some(connection),
            State::Waiting(_) | State::Opening | State::Paused | State::Gap => None,
        }
    }

    /// Whether the instance is the destination, or one of its group.
    pub(super) fn leads_to(&self, instance: &str, group: &str) -> bool {
        let settings = &self.definition.settings;
        settings.name == instance || settings.group.as_deref() == Some(group)
    }

    /// Whether it uses a connection that the instance has made. Addresses of a group have an order, so that they are tried instead.
    pub(super) fn shares_with(&self, instance: &str, group: &str) -> bool {
        let settings = &self.definition.settings;
        settings.name == instance || (settings.addresses.is_empty() && self.leads_to(instance, group))
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.state, State::Live(_))
    }

    /// The first position of the log that must stay for the destination.
    pub(super) fn needed_from(&self, cx: &Context) -> Position {
        let size_max = self.definition.settings.retained_size_max;
        let limit = size_max.map(|size_max| cx.log.reader.start_of_newest(size_max));
        self.resume_from.next().max(limit.unwrap_or_default())
    }

    /// At the limit, files that the destination needs may be removed. The link ends when this has happened.
    pub(super) fn look_at_retained(&mut self, cx: &mut Context) {
        if self.reading.is_none() && self.scanned.next() < self.needed_from(cx) {
            // A cursor would keep the files.
            self.cursor = None;
        }
        if !self.is_live() && self.lacks_files(cx, self.resume_from) {
            self.stop_at_gap(cx);
        }
    }

    fn lacks_files(&self, cx: &Context, after: Position) -> bool {
        after.next() < cx.log.reader.first()
    }

    /// Records that the destination lacks are no longer in the log: nothing is sent until a command accepts the gap.
    fn stop_at_gap(&mut self, cx: &mut Context) {
        if matches!(self.state, State::Gap | State::Paused) {
            return;
        }
        self.stop(cx, State::Gap, "it lacks records that are no longer in the log of the source");
        let (after, first) = (self.resume_from.get(), cx.log.reader.first().get());
        let event = Event::LinkHasGap { destination: self.name(), after, first };
        self.last_error = Some(event.to_string());
        cx.note(event);
        if self.definition.settings.sync_type == SyncType::Sync {
            self.by_command = true;
            self.set_downgraded(cx, true, "journal files that it needs were removed");
        }
        cx.wants_turn = true;
    }

    /// Continues after an earlier run, from what it saved.
    pub(super) fn resume(&mut self, place: Place) {
        (self.resume_from, self.mark, self.known) = (place.resume_from, place.mark, place.instance);
    }

    /// Nothing is known to be at the destination.
    pub(super) fn begin_at_start(&mut self, cx: &Context) {
        (self.resume_from, self.mark) = (start_of_log(cx), None);
    }

    /// The state to save for the next run.
    pub(super) fn place(&self) -> Place {
        Place { resume_from: self.resume_from, mark: self.mark, instance: self.known.clone() }
    }

    /// Whether it would use a connection that the destination has made.
    pub(super) fn wants_connection(&self, now: Instant) -> bool {
        match self.state {
            State::Waiting(at) => at <= now,
            State::Opening => true,
            State::Greeting(_) | State::Live(_) | State::Paused | State::Gap => false,
        }
    }

    /// Does what is due: connects, reads and sends records, sends a heartbeat, looks at the age of what is not acknowledged. `shared` is a
    /// connection that the destination has made, with its address.
    pub(super) fn advance(&mut self, cx: &mut Context, shared: Option<(ConnectionId, String)>) {
        let now = cx.now.instant;
        match self.state {
            State::Waiting(at) if at <= now && self.lacks_files(cx, self.resume_from) => {
                self.stop_at_gap(cx);
            }
            State::Waiting(at) if at <= now => match shared {
                Some((connection, address)) => self.begin(cx, connection, Some(address)),
                None => self.open(cx),
            },
            State::Opening if let Some((connection, address)) = shared => {
                self.begin(cx, connection, Some(address));
            }
            State::Greeting(_) | State::Live(_) if self.received_at + SILENCE_MAX <= now => {
                self.lose(cx, "nothing was heard from it for 10 s");
            }
            State::Live(connection) => {
                self.read(cx);
                if self.owes_caught_up && self.scanned >= self.greeted {
                    self.owes_caught_up = false;
                    self.send(cx, connection, &Frame::CaughtUp);
                    cx.note(Event::LinkCaughtUp { destination: self.name() });
                }
                if self.sent_at + HEARTBEAT <= now {
                    self.send(cx, connection, &Frame::Heartbeat);
                }
            }
            State::Waiting(_) | State::Opening | State::Greeting(_) | State::Paused | State::Gap => (),
        }
        self.look_at_age(cx);
        self.report(cx);
    }

    /// Tells the log how far the destination is.
    fn report(&self, cx: &mut Context) {
        let before = |records: &VecDeque<(Position, Position)>| {
            let first = records.front().map(|(first, _)| first.get().saturating_sub(1));
            first.map_or(self.scanned, Position::new)
        };
        let by_hops = self.unacknowledged.iter().map(before).collect();
        let progress = Progress { all: self.acknowledged, by_hops, beyond: self.scanned };
        cx.log.replicated.set(self.number, progress);
    }

    /// When it has something to do next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let link = match self.state {
            State::Waiting(NEVER) => None,
            State::Waiting(at) => Some(at),
            State::Opening | State::Paused | State::Gap => None,
            State::Greeting(_) => Some(self.received_at + SILENCE_MAX),
            State::Live(_) => Some((self.received_at + SILENCE_MAX).min(self.sent_at + HEARTBEAT)),
        };
        let link = link.into_iter().chain(self.yields_until);
        let is_aging = self.definition.downgrade_after().filter(|_| !self.is_downgraded && !self.by_command);
        let age = self.waiting.front().zip(is_aging).map(|((_, since), after)| *since + after);
        link.chain(age).min()
    }

    /// Waits no longer for the next attempt. An attempt that is under way now is followed by the next one after the shortest delay.
    pub(super) fn try_now(&mut self, now: Instant) {
        self.failed_passes = 0;
        if let State::Waiting(at) = &mut self.state {
            self.address = 0;
            *at = now.min(*at);
        }
    }

    fn open(&mut self, cx: &mut Context) {
        let Some(address) = self.definition.settings.addresses.get(self.address).cloned() else {
            // The destination is to connect.
            self.state = State::Waiting(NEVER);
            return;
        };
        self.state = State::Opening;
        cx.outputs.push_back(Output::OpenLink { destination: self.number as u32, address });
    }

    pub(super) fn is_opening(&self) -> bool {
        self.state == State::Opening
    }

    /// The address that is connected, or is tried next; empty when the destination is to connect.
    pub(super) fn address(&self) -> &str {
        let configured =
            || self.definition.settings.addresses.get(self.address).map_or("", |address| address);
        self.shared.as_deref().unwrap_or_else(configured)
    }

    /// The driver could not connect.
    pub(super) fn not_opened(&mut self, cx: &mut Context, reason: &str) {
        if self.state == State::Opening {
            self.fail(cx, reason);
        }
    }

    /// There is a connection: introduces this instance. `shared` is the address of the destination when it has made the connection.
    pub(super) fn begin(&mut self, cx: &mut Context, connection: ConnectionId, shared: Option<String>) {
        if let Some(earlier) = self.connection() {
            self.send(
                cx,
                earlier,
                &Frame::Ended { reason: "it uses the other connection of the two instances" },
            );
        }
        self.forget_connection();
        let now = cx.now.instant;
        (self.received_at, self.is_writable, self.shared) = (now, true, shared);
        self.state = State::Greeting(connection);
        let settings = &self.definition.settings;
        let offers = offered(cx, &self.definition.route);
        let (name, group) = (cx.config.name.clone(), cx.config.group().to_owned());
        let hello = Hello {
            version: VERSION,
            instance: &name,
            group: &group,
            destination: &settings.name,
            destination_group: settings.group.as_deref().unwrap_or_default(),
            started_ns: cx.started_ns(),
            mark: self.mark,
            topics: offers.iter().map(super::Offer::as_frame).collect(),
            excluded: self.definition.excluded().collect(),
        };
        let mut bytes = Vec::new();
        Frame::Hello(hello).encode(&mut bytes);
        self.sent_at = now;
        cx.outputs.push_back(Output::Send { connection, bytes });
    }

    /// The connection takes more, or does not.
    pub(super) fn set_writable(&mut self, is_writable: bool) {
        self.is_writable = is_writable;
    }

    /// Bytes arrived on the connection.
    pub(super) fn heard(&mut self, now: Instant) {
        self.received_at = now;
    }

    /// Takes a frame of the destination. Gives its introduction when the frame is this.
    pub(super) fn take(&mut self, cx: &mut Context, frame: &Frame<'_>) -> Option<Greeted> {
        match (self.state, frame) {
            (State::Greeting(connection), Frame::Welcome(welcome)) => {
                return self.welcomed(cx, connection, welcome);
            }
            (_, Frame::Refused { reason }) => self.refused(cx, reason),
            (State::Live(_), Frame::Acknowledged { through, hops, mark }) => {
                self.acknowledged(*through, *hops, *mark);
                self.report(cx);
            }
            // It belongs to an earlier link on the connection.
            (State::Greeting(_), Frame::Acknowledged { .. }) => (),
            _ => self.lose(cx, "it sent a frame that a destination does not send here"),
        }
        None
    }

    fn welcomed(
        &mut self,
        cx: &mut Context,
        connection: ConnectionId,
        welcome: &Welcome<'_>,
    ) -> Option<Greeted> {
        let names = [("the name of the destination", welcome.instance), ("its group", welcome.group)];
        if let Some(error) = names.into_iter().find_map(|(what, name)| check_name(what, name).err()) {
            self.refused(cx, &error.to_string());
            return None;
        }
        if !self.leads_to(welcome.instance, welcome.group) {
            let reason = format!(
                "the instance there has the name {:?} and the group {:?}, which is not the destination",
                welcome.instance, welcome.group
            );
            self.refused(cx, &reason);
            return None;
        }
        self.state = State::Live(connection);
        (self.live_since, self.has_progress, self.is_refused) = (cx.now.instant, false, false);
        if !self.is_unsteady {
            self.failed_passes = 0;
        }
        self.reconnect_count += 1;
        // The logs of a group are so alike that another instance may have the message of the mark at the same position.
        let has_mark = welcome.has_mark && self.known.as_deref() == Some(welcome.instance);
        self.known = Some(welcome.instance.to_owned());
        self.peer.clone_from(&self.known);
        welcome.group.clone_into(&mut self.peer_group);
        self.last_error = None;
        if !has_mark {
            // It is another instance of the group, it has lost its log, or nothing was ever sent: everything is offered again.
            self.begin_at_start(cx);
        }
        if self.lacks_files(cx, self.resume_from) {
            self.stop_at_gap(cx);
            return None;
        }
        self.is_marked = true;
        (self.last_sent, self.marked) = (self.resume_from, self.resume_from);
        self.acknowledged = self.resume_from;
        self.scanned = self.resume_from;
        self.greeted = cx.log.appended();
        self.owes_caught_up = true;
        self.forget_flight();
        (self.cursor, self.reading) = (None, None);
        let event = Event::LinkUp {
            destination: self.name(),
            instance: welcome.instance.to_owned(),
            after: self.scanned.get(),
        };
        cx.note(event);
        Some(Greeted {
            instance: welcome.instance.to_owned(),
            started_ns: welcome.started_ns,
            sends_back: welcome.sends_back,
        })
    }

    fn acknowledged(&mut self, through: Position, hops: u8, mark: Option<Mark>) {
        if let Some(records) = self.unacknowledged.get_mut(usize::from(hops)) {
            while records.pop_front_if(|(_, last)| *last <= through).is_some() {}
        }
        let unacknowledged = &self.unacknowledged;
        let is_over = |sent: &mut SentFrame| {
            let first = unacknowledged.iter().filter_map(VecDeque::front).map(|(first, _)| *first).min();
            first.is_none_or(|first| first > sent.through)
        };
        while let Some(sent) = self.in_flight.pop_front_if(is_over) {
            // The next connection begins after it, so that it does not fail at the same place again.
            self.has_progress = true;
            self.in_flight_size -= sent.size;
            self.acknowledged = self.acknowledged.max(sent.through);
        }
        if mark.is_some() {
            self.marked = self.marked.max(through);
        }
        self.is_marked = self.marked >= self.last_sent;
        self.note_mark(mark);
        self.settle();
    }

    fn forget_flight(&mut self) {
        self.in_flight.clear();
        self.in_flight_size = 0;
        self.unacknowledged.clear();
    }

    fn note_mark(&mut self, mark: Option<Mark>) {
        let known = self.mark.map(|mark| mark.position);
        if let Some(mark) = mark.filter(|mark| Some(mark.position) > known) {
            self.mark = Some(mark);
        }
    }

    /// Without anything in flight, everything that was looked at is acknowledged.
    fn settle(&mut self) {
        if self.in_flight.is_empty() {
            self.acknowledged = self.acknowledged.max(self.scanned);
        }
        if self.is_marked {
            self.resume_from = self.acknowledged;
        }
        while self.waiting.pop_front_if(|(position, _)| *position <= self.acknowledged).is_some() {}
    }

    /// A piece of the log was received from the destination. Pieces that existed before the link came up are read: the destination may have lost
    /// them.
    pub(super) fn has_run(&mut self, run: Run) {
        if !self.is_live() || run.after < self.greeted {
            return;
        }
        if self.runs.len() < RUNS_MAX {
            return self.runs.push_back(run);
        }
        if let Some(last) = self.runs.back_mut().filter(|last| last.through == run.after) {
            *last = Run { after: last.after, ..run };
        }
    }

    /// Passes over what came from the destination, as far as the log is on the disk.
    fn pass_runs(&mut self, limit: Position) {
        if self.reading.is_some() {
            return;
        }
        let before = self.scanned;
        while let Some(run) = self.runs.pop_front_if(|run| run.through <= limit && run.after <= self.scanned)
        {
            if run.through > self.scanned {
                self.scanned = run.through;
                self.note_mark(Some(run.mark));
            }
        }
        if self.scanned == before {
            return;
        }
        self.settle();
        // A cursor looks at all batches in between.
        let is_far = self.scanned.get() - self.read_through.get() > INLINE_RECORDS_MAX;
        self.cursor.take_if(|_| is_far);
        if let Some(cursor) = &mut self.cursor {
            cursor.rest_at(self.scanned);
        }
    }

    fn read(&mut self, cx: &mut Context) {
        let limit = cx.log.journal.persisted();
        self.pass_runs(limit);
        let has_room = self.is_writable && self.in_flight_size < WINDOW_SIZE;
        if self.reading.is_some() || self.scanned >= limit || !has_room {
            self.yields_until = None;
            return;
        }
        if self.yields_to_publishes(cx, limit) {
            return;
        }
        let Some(peer) = self.peer.clone() else { return };
        if self.cursor.is_none() && self.lacks_files(cx, self.scanned) {
            return self.stop_at_gap(cx);
        }
        let cursor = self.cursor.take().unwrap_or_else(|| {
            self.read_through = self.scanned;
            cx.log.reader.cursor(self.scanned)
        });
        let reading = LinkReading {
            cursor,
            scanned: self.scanned,
            limit,
            definition: Arc::clone(&self.definition),
            peer,
            peer_group: self.peer_group.clone(),
            greeted: self.greeted,
            now: cx.now.wall,
        };
        let has_filter = self.definition.route.topics.iter().any(|topic| topic.filter.is_some());
        if self.is_near(limit) && !has_filter {
            self.add_found(cx, reading.run(cx.unreadable.arena()));
        } else {
            let destination = self.number;
            let number = cx.begin_job(
                move |arena| reading.run(arena),
                move |links: &mut Links, cx, number, found| links.read_done(cx, destination, number, found),
            );
            self.reading = Some(number);
        }
    }

    fn is_near(&self, limit: Position) -> bool {
        limit.get() - self.scanned.get() <= INLINE_RECORDS_MAX
    }

    /// Unless publishers wait for the destination, a link that lags far pauses while publishes wait for the disk. One that has caught up
    /// since it was made must keep up with publishers, so that it pauses as a replay does: for a single publish.
    fn yields_to_publishes(&mut self, cx: &Context, limit: Position) -> bool {
        let is_waited_for = cx.log.replicated.is_waited_for(self.number);
        let (is_busy, longest) = match self.owes_caught_up {
            true => (cx.log.has_publishes(), CATCH_UP_YIELD_MAX),
            false => (cx.log.has_lone_publish(), YIELD_MAX),
        };
        if is_waited_for || self.is_near(limit) || !is_busy {
            self.yields_until = None;
            return false;
        }
        let now = cx.now.instant;
        let yields = *self.yields_until.get_or_insert(now + longest) > now;
        self.yields_until = self.yields_until.filter(|_| yields);
        yields
    }

    /// A read is done; `None` after a bug.
    pub(super) fn read_done(&mut self, cx: &mut Context, number: u64, found: Option<LinkFound>) {
        if self.reading != Some(number) {
            return;
        }
        self.reading = None;
        match found {
            Some(found) => self.add_found(cx, found),
            None => self.lose(cx, "reading the log for it failed"),
        }
        cx.wants_turn = true;
    }

    fn add_found(&mut self, cx: &mut Context, found: LinkFound) {
        let State::Live(connection) = self.state else { return };
        self.note_mark(found.mark);
        (self.scanned, self.read_through) = (found.scanned, found.scanned);
        for sent in found.sent {
            self.in_flight_size += sent.size;
            self.sent_count += sent.count;
            for &(hops, first, last) in &sent.by_hops {
                let place = usize::from(hops);
                if self.unacknowledged.len() <= place {
                    self.unacknowledged.resize_with(place + 1, VecDeque::new);
                }
                self.unacknowledged[place].push_back((first, last));
                self.last_sent = self.last_sent.max(last);
            }
            self.is_marked = false;
            self.in_flight.push_back(sent);
        }
        if !found.frames.is_empty() {
            self.sent_at = cx.now.instant;
            self.sent_size += found.frames.len() as u64;
            cx.outputs.push_back(Output::Send { connection, bytes: found.frames });
        }
        self.settle();
        match found.cursor {
            Ok(cursor) => self.cursor = Some(cursor),
            Err(error) => self.lose(cx, &error.to_string()),
        }
        cx.wants_turn |= self.scanned < cx.log.journal.persisted();
    }

    /// A message at `position` goes to the destination. It may be an old one that a publisher or another instance has sent again.
    pub(super) fn expect(&mut self, position: Position, now: Instant) {
        if position <= self.acknowledged || self.waiting.back().is_some_and(|(_, since)| *since == now) {
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            let mut is_kept = false;
            self.waiting.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        self.waiting.push_back((position, now));
    }

    /// Downgrades and upgrades the destination by the age of the oldest message that it has not acknowledged.
    fn look_at_age(&mut self, cx: &mut Context) {
        if self.by_command || self.definition.settings.sync_type == SyncType::Async {
            return;
        }
        let now = cx.now.instant;
        let age = self.waiting.front().map_or(Duration::ZERO, |(_, since)| now.since(*since));
        let is_too_old = self.definition.downgrade_after().is_some_and(|after| age >= after);
        let is_close = self.definition.upgrade_below().is_some_and(|below| age < below);
        if !self.is_downgraded && is_too_old {
            self.set_downgraded(cx, true, "its oldest message without an acknowledgement is too old");
        } else if self.is_downgraded && is_close && self.is_live() {
            self.set_downgraded(cx, false, "it has caught up");
        }
    }

    /// A command decides whether the destination is waited for.
    ///
    /// # Errors
    /// The reason against it.
    pub(super) fn set_by_command(&mut self, cx: &mut Context, is_downgraded: bool) -> Result<(), String> {
        if self.definition.settings.sync_type == SyncType::Async {
            return Err(format!(
                "destination {:?}: it has sync_type = \"async\", so publishers never wait for it",
                self.definition.settings.name
            ));
        }
        self.by_command = is_downgraded;
        self.set_downgraded(cx, is_downgraded, "a command asked for it");
        Ok(())
    }

    /// Sends nothing from now on. The log keeps the records that the destination has not acknowledged.
    pub(super) fn pause(&mut self, cx: &mut Context) {
        if self.state == State::Paused {
            return;
        }
        self.stop(cx, State::Paused, "a command paused it");
        cx.note(Event::LinkPaused { destination: self.name(), is_paused: true });
        cx.wants_turn = true;
    }

    /// Connects again after a pause. A destination with a gap gets the records that are in the log.
    pub(super) fn resume_by_command(&mut self, cx: &mut Context) {
        match self.state {
            State::Paused => (),
            State::Gap => {
                self.begin_at_start(cx);
                (self.acknowledged, self.scanned) = (self.resume_from, self.resume_from);
                self.settle();
            }
            State::Waiting(_) | State::Opening | State::Greeting(_) | State::Live(_) => return,
        }
        self.failed_passes = 0;
        self.state = State::Waiting(cx.now.instant);
        cx.note(Event::LinkPaused { destination: self.name(), is_paused: false });
        cx.wants_turn = true;
    }

    /// Ends the link until a command. Clients of an instance that has just started do not wait for this.
    fn stop(&mut self, cx: &mut Context, state: State, reason: &str) {
        if let Some(connection) = self.connection() {
            self.send(cx, connection, &Frame::Ended { reason });
        }
        self.forget_connection();
        (self.start, self.address, self.state) = (Start::Over, 0, state);
    }

    /// Forgets all that belongs to the connection.
    fn forget_connection(&mut self) {
        self.shared = None;
        (self.cursor, self.reading, self.yields_until) = (None, None, None);
        self.runs.clear();
        self.forget_flight();
        // Nothing above it is known to be there.
        self.scanned = self.acknowledged;
    }

    fn set_downgraded(&mut self, cx: &mut Context, is_downgraded: bool, reason: &'static str) {
        if self.is_downgraded == is_downgraded {
            return;
        }
        self.is_downgraded = is_downgraded;
        cx.log.replicated.wait_for(self.number, !is_downgraded);
        cx.note(Event::LinkWaitedFor { destination: self.name(), is_waited_for: !is_downgraded, reason });
        cx.wants_turn = true;
    }

    /// The peer does not accept the link, or ends it. It may have another configuration later.
    fn refused(&mut self, cx: &mut Context, reason: &str) {
        if !self.is_live() {
            // Every address is tried, and then the longest delay passes.
            self.failed_passes = self.failed_passes.max(16);
        }
        let is_up = self.connection().is_some();
        self.lose(cx, reason);
        self.is_refused = is_up;
    }

    /// The connection is gone.
    pub(super) fn disconnected(&mut self, cx: &mut Context) {
        self.fail(cx, "the connection was closed");
    }

    /// The link ends here. The connection may carry on the link from the destination.
    pub(super) fn lose(&mut self, cx: &mut Context, reason: &str) {
        if let Some(connection) = self.connection() {
            self.send(cx, connection, &Frame::Ended { reason });
            self.fail(cx, reason);
        }
    }

    /// Tries the next address. A link that was up begins at the top again.
    fn fail(&mut self, cx: &mut Context, reason: &str) {
        let (was_live, was_shared) = (self.is_live(), self.shared.is_some());
        if self.last_error.as_deref() != Some(reason) {
            let event = Event::LinkDown { destination: self.name(), reason: reason.to_owned() };
            cx.note(event);
            self.last_error = Some(reason.to_owned());
        }
        self.forget_connection();
        if was_live {
            let is_brief = !self.has_progress && cx.now.instant < self.live_since + LASTING;
            let was_unsteady = std::mem::replace(&mut self.is_unsteady, is_brief);
            if !is_brief || !was_unsteady {
                self.failed_passes = 0;
            }
        }
        self.is_refused = false;
        let is_last = self.address + 1 >= self.definition.settings.addresses.len();
        self.address = if was_live || is_last { 0 } else { self.address + 1 };
        let delay = if was_live || is_last {
            self.start = Start::Over;
            let delay = DELAY_MIN.saturating_mul(1 << self.failed_passes.min(16)).min(DELAY_MAX);
            self.failed_passes += 1;
            // The destination connects again, and this connection is used.
            if was_live && was_shared { delay.max(DELAY_MIN * 2) } else { delay }
        } else {
            Duration::ZERO
        };
        self.state = State::Waiting(cx.now.instant + delay);
        cx.wants_turn |= delay.is_zero();
    }

    fn send(&mut self, cx: &mut Context, connection: ConnectionId, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.sent_at = cx.now.instant;
        cx.outputs.push_back(Output::Send { connection, bytes });
    }

    fn name(&self) -> String {
        self.definition.settings.name.clone()
    }

    pub(super) fn stats(&self, cx: &Context) -> DestinationStats {
        let settings = &self.definition.settings;
        let since = self.waiting.front().map(|(_, since)| cx.now.instant.since(*since));
        DestinationStats {
            name: settings.name.clone(),
            instance: self.peer.clone().filter(|_| self.is_live()),
            address: self.address().to_owned(),
            state: match self.state {
                State::Waiting(_) if self.is_refused => "refused",
                State::Waiting(_) => "waiting",
                State::Opening | State::Greeting(_) => "connecting",
                State::Live(_) if self.owes_caught_up => "catching_up",
                State::Live(_) => "live",
                State::Paused => "paused",
                State::Gap => "gap",
            },
            configured_sync_type: settings.sync_type,
            sync_type: match cx.log.replicated.is_waited_for(self.number) {
                true => SyncType::Sync,
                false => SyncType::Async,
            },
            acknowledged: self.acknowledged.get(),
            scanned: self.scanned.get(),
            unacknowledged_bytes: self.in_flight_size as u64,
            seconds_behind: since.map_or(0.0, |since| since.as_secs_f64()),
            sent_count: self.sent_count,
            sent_bytes: self.sent_size,
            connect_count: self.reconnect_count,
            last_error: self.last_error.clone(),
        }
    }
}

/// The introduction of a destination.
pub(super) struct Greeted {
    pub(super) instance: String,
    pub(super) started_ns: u64,
    pub(super) sends_back: bool,
}
