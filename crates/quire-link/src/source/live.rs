//! A link that is up: how far the log was looked at, and the records in flight.
//!
//! `scanned` is the position up to which the log was looked at. Records are in flight until the
//! destination acknowledges them. The acknowledged position follows `scanned` at once while nothing
//! is in flight.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use quire_types::{Position, time::Instant};
use quire_wire::link::Mark;

use super::LogState;
use crate::{Connection, KeptMark, PlacesFrame};

/// A link that ends earlier counts as a failure, unless something was acknowledged on it. The same
/// record may end the next one, too.
const LASTING: Duration = Duration::from_secs(10);

/// Bytes of records that may be in flight: several milliseconds of a fast network, and little for
/// the memory of the destination.
const WINDOW_SIZE: usize = 4 * 1024 * 1024;

/// Records that are read on the loop, when so few are new. A thread for them would cost more than
/// the read.
const SHORT_READ_MAX: u64 = 64;

/// The longest pause of a link that catches up while clients publish. It then sends 51 MB/s, in
/// reads of 256 KiB: much less work for both instances than the publishes, and the records of an
/// outage do arrive.
const CATCH_UP_YIELD_MAX: Duration = Duration::from_millis(5);

/// The shortest time between two frames of places. A subscription that moves gets the messages of
/// this time again.
const PLACES_INTERVAL: Duration = Duration::from_secs(1);

/// Pieces of the log that the link passes over, at most. At the limit the last one grows. A piece
/// that does not follow it is read.
const RUNS_MAX: usize = 64;

/// The use of a connection.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) connection: Connection,
    /// The address of the destination when it has made the connection.
    pub(super) shared: Option<String>,
    pub(super) is_writable: bool,
    pub(super) received_at: Instant,
    pub(super) sent_at: Instant,
}

impl Connected {
    pub(super) fn new(connection: Connection, shared: Option<String>, now: Instant) -> Self {
        Connected { connection, shared, is_writable: true, received_at: now, sent_at: now }
    }
}

/// A piece of the log that came from one other instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The position before it.
    pub after: Position,
    /// Its last position.
    pub through: Position,
    /// The place of its last record in the log of the other instance.
    pub last_there: Position,
}

/// One frame of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    /// The position up to which the log was looked at for it.
    pub through: Position,
    /// Bytes of its records.
    pub size: usize,
    /// Its records.
    pub count: u64,
    /// The hops of its records, and of the records with the same hops the first and the last.
    pub by_hops: Vec<(u8, Position, Position)>,
}

/// See the documentation of the module.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) connected: Connected,
    /// When the destination answered `hello`.
    since: Instant,
    /// The destination has acknowledged something.
    pub(super) has_progress: bool,
    /// Pieces of the log that came from the destination itself. They are not read.
    runs: VecDeque<Run>,
    /// The number of the read under way.
    pub(super) reading: Option<u64>,
    /// Publishes have precedence: nothing is read until then.
    pub(super) yields_until: Option<Instant>,
    /// The end of the log when the destination answered.
    pub(super) greeted: Position,
    pub(super) scanned: Position,
    /// The last record that was sent, and the last one that a mark includes.
    last_sent: Position,
    marked: Position,
    /// Of the records that came from the destination and are not sent back, the place of the last
    /// one in its log.
    left_out: Position,
    pub(super) flight: Flight,
    /// The mark of everything that was in the log at `welcome` is still to be sent.
    pub(super) owes_caught_up: bool,
    /// The request of the destination that is being answered: its number here, and there.
    pub(super) request: Option<(u64, u64)>,
    /// The other marks that were sent, by origin and the instance that they are for. Each with
    /// whether the link sent everything then.
    marks: BTreeMap<(String, String), (KeptMark, bool)>,
    pub(super) places: SentPlaces,
}

/// The places that the destination was sent.
#[derive(Debug, Default)]
pub(super) struct SentPlaces {
    last: Option<PlacesFrame>,
    /// The position of the log and the version of the places at the last frame.
    made_of: Option<(Position, (u64, u64))>,
    /// When the next one may be sent.
    next_at: Instant,
    /// There is news for it.
    is_due: bool,
}

impl SentPlaces {
    /// When the next frame is sent.
    pub(super) fn due(&self) -> Option<Instant> {
        self.is_due.then_some(self.next_at)
    }

    /// A frame was made; `None`: the places are not known. Returns whether it says something new.
    pub(super) fn make(&mut self, now: Instant, frame: Option<PlacesFrame>) -> Option<&PlacesFrame> {
        let frame = frame.filter(|frame| self.last.as_ref() != Some(frame))?;
        self.next_at = now + PLACES_INTERVAL;
        self.last = Some(frame);
        self.last.as_ref()
    }
}

impl Live {
    pub(super) fn new(connected: Connected, now: Instant, after: Position, greeted: Position) -> Self {
        Live {
            connected,
            since: now,
            has_progress: false,
            runs: VecDeque::new(),
            reading: None,
            yields_until: None,
            greeted,
            scanned: after,
            last_sent: after,
            marked: after,
            left_out: Position::ZERO,
            flight: Flight::default(),
            owes_caught_up: true,
            request: None,
            marks: BTreeMap::new(),
            places: SentPlaces::default(),
        }
    }

    /// The position for which a frame of places is due; `None`: nothing has changed, or the last
    /// one was sent a moment ago. `version` is that of the places of this instance.
    pub(super) fn places_due(&mut self, now: Instant, version: (u64, u64)) -> Option<Position> {
        let made_of = Some((self.scanned, version));
        self.places.is_due = !self.owes_caught_up && self.places.made_of != made_of;
        if !self.places.is_due || self.places.next_at > now {
            return None;
        }
        (self.places.made_of, self.places.is_due) = (made_of, false);
        Some(self.scanned)
    }

    /// Whether the link has ended soon, without progress.
    pub(super) fn is_brief(&self, now: Instant) -> bool {
        !self.has_progress && now < self.since + LASTING
    }

    /// Whether the mark includes everything that the destination has: the records that were sent,
    /// and those from there.
    pub(super) fn is_marked(&self, mark: Option<Mark>) -> bool {
        let marked_there = mark.map_or(Position::ZERO, |mark| mark.position);
        self.marked >= self.last_sent && marked_there >= self.left_out
    }

    /// Records up to this place in the log of the destination came from there.
    pub(super) fn leave_out(&mut self, last_there: Position) {
        self.left_out = self.left_out.max(last_there);
    }

    /// See [`Source::handle_run`](super::Source::handle_run).
    pub(super) fn note_run(&mut self, run: Run) {
        if run.after < self.greeted {
            return;
        }
        if self.runs.len() < RUNS_MAX {
            return self.runs.push_back(run);
        }
        if let Some(last) = self.runs.back_mut().filter(|last| last.through == run.after) {
            *last = Run { after: last.after, ..run };
        }
    }

    /// Passes over what came from the destination, as far as the log is on the disk. Returns
    /// whether there was something.
    pub(super) fn pass_runs(&mut self, limit: Position) -> bool {
        if self.reading.is_some() {
            return false;
        }
        let before = self.scanned;
        let scanned = &mut self.scanned;
        while let Some(run) = self.runs.pop_front_if(|run| run.through <= limit && run.after <= *scanned) {
            if run.through > *scanned {
                *scanned = run.through;
                self.left_out = self.left_out.max(run.last_there);
            }
        }
        self.scanned > before
    }

    /// Whether there is something to read, and room for it.
    pub(super) fn may_read(&self, limit: Position) -> bool {
        let has_room = self.connected.is_writable && self.flight.size < WINDOW_SIZE;
        self.reading.is_none() && self.scanned < limit && has_room
    }

    pub(super) fn is_near(&self, limit: Position) -> bool {
        limit.get() - self.scanned.get() <= SHORT_READ_MAX
    }

    /// Unless publishers wait for the destination, a link that lags far pauses while publishes wait
    /// for the disk. One that has caught up since it was made must keep up with publishers, so that
    /// it pauses as a replay does: for a single publish.
    pub(super) fn yields_to_publishes(&mut self, now: Instant, log: &LogState, is_waited_for: bool) -> bool {
        let longest = match self.owes_caught_up {
            true => log.has_publishes.then_some(CATCH_UP_YIELD_MAX),
            false => log.single_publish,
        };
        let longest = longest.filter(|_| !is_waited_for && !self.is_near(log.persisted));
        self.yields_until = longest.map(|longest| self.yields_until.unwrap_or(now + longest));
        self.yields_until = self.yields_until.filter(|until| *until > now);
        self.yields_until.is_some()
    }

    /// The marks that are due, and were not sent.
    pub(super) fn take_due<'a>(&mut self, marks: &'a [(KeptMark, bool)]) -> Vec<&'a (KeptMark, bool)> {
        let mut due = Vec::new();
        for sent in marks.iter().filter(|(mark, _)| mark.after <= self.scanned) {
            let key = (sent.0.origin.clone(), sent.0.of.clone());
            if self.marks.get(&key) != Some(sent) {
                self.marks.insert(key, sent.clone());
                due.push(sent);
            }
        }
        due
    }

    /// The destination has heard of other members: it may have dropped marks of them.
    pub(super) fn forget_marks(&mut self) {
        self.marks.clear();
    }

    /// A frame is sent.
    pub(super) fn add_sent(&mut self, sent: SentFrame) {
        let last = sent.by_hops.iter().map(|(_, _, last)| *last).max();
        self.last_sent = self.last_sent.max(last.unwrap_or_default());
        self.flight.add(sent);
    }

    /// The destination has everything with these hops up to `through`. Gives the position up to
    /// which everything is acknowledged, when it has changed.
    pub(super) fn acknowledge(&mut self, through: Position, hops: u8, has_mark: bool) -> Option<Position> {
        if has_mark {
            self.marked = self.marked.max(through);
        }
        self.flight.acknowledge(through, hops)
    }
}

/// The records that are not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Flight {
    frames: VecDeque<SentFrame>,
    /// Of the records with the same hops in each frame, the first and the last; by hops.
    unacknowledged: Vec<VecDeque<(Position, Position)>>,
    size: usize,
}

impl Flight {
    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    fn add(&mut self, sent: SentFrame) {
        self.size += sent.size;
        for &(hops, first, last) in &sent.by_hops {
            let place = usize::from(hops);
            if self.unacknowledged.len() <= place {
                self.unacknowledged.resize_with(place + 1, VecDeque::new);
            }
            self.unacknowledged[place].push_back((first, last));
        }
        self.frames.push_back(sent);
    }

    fn acknowledge(&mut self, through: Position, hops: u8) -> Option<Position> {
        if let Some(records) = self.unacknowledged.get_mut(usize::from(hops)) {
            while records.pop_front_if(|(_, last)| *last <= through).is_some() {}
        }
        let first = self.unacknowledged.iter().filter_map(VecDeque::front).map(|(first, _)| *first).min();
        let mut acknowledged = None;
        let is_over = |sent: &mut SentFrame| first.is_none_or(|first| first > sent.through);
        while let Some(sent) = self.frames.pop_front_if(is_over) {
            self.size -= sent.size;
            acknowledged = Some(sent.through);
        }
        acknowledged
    }

    /// The position up to which everything with as many hops as the place in the list is
    /// acknowledged. Everything up to `scanned` was looked at.
    pub(super) fn by_hops(&self, scanned: Position) -> Vec<Position> {
        let before = |records: &VecDeque<(Position, Position)>| {
            let first = records.front().map(|(first, _)| first.get().saturating_sub(1));
            first.map_or(scanned, Position::new)
        };
        self.unacknowledged.iter().map(before).collect()
    }
}
