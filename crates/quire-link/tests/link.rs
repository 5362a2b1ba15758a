//! A source and a destination, joined by a connection that breaks, on virtual time.
//!
//! The model is the log of the source. After every step, each position that the source counts as
//! acknowledged must be safe at the destination, and the destination must have the records
//! of each publisher in order and without a gap. When the faults end, the destination gets
//! everything.
//!
//! The destination drops a record when it has the sequence of its publisher, as the log does. It
//! asks its log for each record that it may have. It rejects some records, because it has others of
//! another run: the source must hear of that before it counts their positions as acknowledged. It
//! asks for records again that the link has sent: their acknowledgements must change nothing. It
//! can crash, and then lacks what was not on its disk. It can lose its disk: then the next link
//! begins with the first record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use quire_link::replicated::Destinations;
use quire_link::*;
use quire_types::time::Instant;
use quire_types::{Bookmark, Position, PublisherId, Timestamp};
use quire_wire::link::*;

/// The largest data of a message.
const MESSAGE_SIZE_MAX: usize = 100;

/// A mistake in the world. The model must find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// The destination acknowledges records that are not on its disk.
    AcknowledgesEarly,
    /// The destination has every mark.
    HasEveryMark,
    /// The reader of the source passes over a record.
    PassesOver,
    /// An acknowledgement of the records with some hops counts for those with others.
    MixesHops,
    /// The destination forgets to reject a record.
    ForgetsToReject,
    /// The source gives records that the link has not sent yet.
    GivesEarly,
}

#[derive(Clone, Debug)]
enum Step {
    /// A publisher publishes this many messages at the source.
    Publish(u64, u8),
    PersistAtSource,
    PersistAtDestination,
    /// A message is published at the destination, so that positions differ.
    PublishThere,
    /// This many bytes arrive.
    ToDestination(u16),
    ToSource(u16),
    /// The connection can be made, or cannot.
    Connect(bool),
    Break,
    Crash,
    /// The destination loses its log.
    LoseDisk,
    /// The result of the read comes later.
    SlowReads(bool),
    /// Records of publisher 3 are not safe at the destination for now.
    HoldHops(bool),
    Pause(bool),
    /// The destination asks for some messages of a publisher, from a sequence on.
    Want(u64, u64),
    Wait(u64),
    Turn,
}

struct Pipe {
    number: Connection,
    to_destination: Vec<u8>,
    to_source: Vec<u8>,
    destination: Destination,
    split_there: Splitter,
    split_here: Splitter,
    answers: Vec<u8>,
    /// The destination has asked for messages.
    is_wanting: bool,
}

struct World {
    mistake: Mistake,
    now: Instant,
    log: Vec<Bookmark>,
    persisted: usize,
    source: Source,
    is_opening: bool,
    slow_reads: bool,
    read: Option<(u64, ReadFound)>,
    pipe: Option<Pipe>,
    connections: u64,
    there: Vec<Bookmark>,
    /// One of each record there. It increases over a loss of the disk.
    times_there: Vec<u64>,
    last_time_there: u64,
    persisted_there: usize,
    runs_there: u64,
    /// The disk was lost, and the source does not know it yet: its links so far.
    lost_after: Option<u64>,
    holds_hops: bool,
    /// Records of the destination among which those with [`HELD_HOPS`] are safe.
    safe_of_held: usize,
    /// The rejections that the source knows.
    rejected: BTreeSet<Bookmark>,
}

/// The hops of records that may wait for other instances.
const HELD_HOPS: u8 = 2;

fn hops_of(bookmark: Bookmark) -> u8 {
    bookmark.publisher.get() as u8 - 1
}

/// Whether the destination has another record with the bookmark.
fn is_other_there(bookmark: Bookmark) -> bool {
    bookmark.publisher.get() == 2 && bookmark.sequence.is_multiple_of(3)
}

fn link_record(position: Position, bookmark: Bookmark, data: &[u8]) -> LinkRecord<'_> {
    LinkRecord {
        position,
        kind: 1,
        message_type: 1,
        bookmark,
        expiration_s: None,
        stamp: None,
        topic: "orders",
        correlation_id: b"",
        attributes: b"",
        data,
    }
}

/// The next sequence of a publisher that the destination takes.
fn next_there(there: &[Bookmark], publisher: PublisherId) -> u64 {
    let last = there.iter().rfind(|bookmark| bookmark.publisher == publisher);
    let next = last.map_or(1, |bookmark| bookmark.sequence + 1);
    if is_other_there(Bookmark::new(publisher, next)) { next + 1 } else { next }
}

fn sequence_after(log: &[Bookmark], publisher: PublisherId) -> u64 {
    1 + log.iter().filter(|bookmark| bookmark.publisher == publisher).count() as u64
}

impl World {
    fn new(mistake: Mistake) -> Self {
        let settings = SourceSettings {
            name: "there".to_owned(),
            addresses: vec!["first".to_owned(), "second".to_owned()],
            is_sync: true,
            ..SourceSettings::default()
        };
        World {
            mistake,
            now: Instant::default(),
            log: Vec::new(),
            persisted: 0,
            source: Source::new(settings, LinkPlace::default()),
            is_opening: false,
            slow_reads: false,
            read: None,
            pipe: None,
            connections: 0,
            there: Vec::new(),
            times_there: Vec::new(),
            last_time_there: 0,
            persisted_there: 0,
            runs_there: 1,
            lost_after: None,
            holds_hops: false,
            safe_of_held: 0,
            rejected: BTreeSet::new(),
        }
    }

    fn log_state(&self) -> LogState {
        LogState {
            first: Position::new(1),
            appended: Position::new(self.log.len() as u64),
            persisted: Position::new(self.persisted as u64),
            has_publishes: self.persisted < self.log.len(),
            single_publish: None,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish(publisher, count) => {
                let publisher = PublisherId::new(publisher);
                for _ in 0..count {
                    let sequence = sequence_after(&self.log, publisher);
                    self.log.push(Bookmark::new(publisher, sequence));
                    self.source.expect(Position::new(self.log.len() as u64), self.now);
                }
            }
            Step::PersistAtSource => self.persisted = self.log.len(),
            Step::PersistAtDestination => self.persisted_there = self.there.len(),
            Step::PublishThere => {
                let publisher = PublisherId::new(9 + self.runs_there);
                self.push_there(Bookmark::new(publisher, sequence_after(&self.there, publisher)));
            }
            Step::ToDestination(size) => self.deliver_there(size.into()),
            Step::ToSource(size) => self.deliver_here(size.into()),
            Step::Connect(works) => self.connect(works),
            Step::Break => self.break_off(),
            Step::Crash => {
                self.break_off();
                self.there.truncate(self.persisted_there);
                self.times_there.truncate(self.persisted_there);
                self.runs_there += 1;
            }
            Step::LoseDisk => {
                self.break_off();
                (self.there, self.persisted_there, self.safe_of_held) = (Vec::new(), 0, 0);
                self.times_there.clear();
                self.runs_there += 1;
                self.lost_after = Some(self.source.counts().connects);
            }
            Step::SlowReads(slow_reads) => self.slow_reads = slow_reads,
            Step::HoldHops(holds_hops) => self.holds_hops = holds_hops,
            Step::Pause(true) => self.source.handle_pause(self.now),
            Step::Pause(false) => self.source.handle_resume(self.now, &self.log_state()),
            Step::Want(publisher, first) => self.want(publisher, first),
            Step::Wait(ms) => self.now = self.now + Duration::from_millis(ms),
            Step::Turn => self.turn(),
        }
        self.carry_out();
        if !self.holds_hops {
            self.safe_of_held = self.persisted_there;
        }
        self.lost_after = self.lost_after.filter(|links| self.source.counts().connects == *links);
        if self.lost_after.is_none() {
            self.check();
        }
    }

    fn check(&self) {
        let (on_disk, safe_of_held) = (&self.there[..self.persisted_there], &self.there[..self.safe_of_held]);
        let is_safe = |bookmark: &Bookmark| match hops_of(*bookmark) {
            _ if is_other_there(*bookmark) => self.rejected.contains(bookmark),
            HELD_HOPS => safe_of_held.contains(bookmark),
            _ => on_disk.contains(bookmark),
        };
        let is_there = |position: Position, hops: Option<u8>| {
            let known = &self.log[..position.get() as usize];
            known.iter().filter(|bookmark| hops.is_none_or(|hops| hops_of(**bookmark) == hops)).all(is_safe)
        };
        let acknowledged = self.source.acknowledged();
        assert!(is_there(acknowledged, None), "{acknowledged:?} is acknowledged and not safe");
        let progress = self.source.progress();
        assert_eq!(progress.all, acknowledged);
        for hops in 0..3 {
            let reached = progress.by_hops.get(usize::from(hops)).copied().unwrap_or(progress.beyond);
            assert!(is_there(reached, Some(hops)), "{reached:?} is acknowledged for {hops} hops");
        }
        let resume_from = self.source.place().resume_from;
        assert!(is_there(resume_from, None), "the next link would begin after {resume_from:?}");
    }

    fn turn(&mut self) {
        let log = self.log_state();
        assert_eq!(self.source.begin_turn(self.now, &log, None), None);
        self.carry_out();
        if let Some((number, found)) = self.read.take() {
            self.source.handle_read(self.now, &log, number, Some(found));
            self.carry_out();
        }
        if let Some(read) = self.source.poll_read(self.now, &log, true) {
            let found = self.find(read);
            match self.slow_reads {
                true => self.read = Some((read.number, found)),
                false => self.source.handle_read(self.now, &log, read.number, Some(found)),
            }
            self.carry_out();
        }
        self.source.end_turn(self.now, &[]);
        self.carry_out();
        self.turn_there();
        if self.source.poll_timeout().is_some_and(|due| due <= self.now) {
            let state = self.source.state();
            assert!(self.read.is_some() || state == SourceState::Waiting, "{state:?} is due after a turn");
        }
    }

    /// A read of a few records, each two of them in a frame.
    fn find(&self, read: Read) -> ReadFound {
        let mut found = ReadFound { scanned: read.after, ..ReadFound::default() };
        let end = read.limit.min(Position::new(read.after.get() + 5));
        let positions: Vec<_> = (read.after.get() + 1..=end.get()).map(Position::new).collect();
        for pair in positions.chunks(2) {
            let mut writer = RecordsWriter::begin(&mut found.frames);
            let mut sent =
                SentFrame { through: pair[pair.len() - 1], size: 0, count: 0, by_hops: Vec::new() };
            for &position in pair {
                let bookmark = self.log[position.get() as usize - 1];
                if self.mistake == Mistake::PassesOver && position.get() % 7 == 0 {
                    continue;
                }
                let data = bookmark.sequence.to_le_bytes();
                writer.put(&link_record(position, bookmark, &data), &mut found.frames);
                sent.count += 1;
                let hops = hops_of(bookmark);
                match sent.by_hops.iter_mut().find(|(other, ..)| *other == hops) {
                    Some((_, _, last)) => *last = position,
                    None => sent.by_hops.push((hops, position, position)),
                }
            }
            sent.size = writer.size();
            let compress = |body: &[u8]| compress(Algorithm::Lz4, body);
            writer.end(sent.through, None, compress, &mut found.frames);
            found.scanned = sent.through;
            found.sent.push(sent);
        }
        found
    }

    fn want(&mut self, publisher: u64, first: u64) {
        let Some(pipe) = self.pipe.as_mut().filter(|pipe| !pipe.is_wanting) else { return };
        let publisher = PublisherId::new(publisher);
        let ranges = vec![Wanted { publisher, first, last: first + 3, is_hole: true }];
        pipe.is_wanting = pipe.destination.want(self.now, ranges).is_some();
    }

    /// The records that the destination asks for, as far as the link has sent them, in frames.
    fn give(&self, ranges: &[Wanted]) -> (Vec<u8>, Given) {
        let (mut frames, mut given) = (Vec::new(), Given::default());
        let limit = match self.mistake {
            Mistake::GivesEarly => self.persisted,
            _ => self.source.scanned().get() as usize,
        };
        for Wanted { publisher, first, last, .. } in ranges {
            for (index, bookmark) in self.log[..limit].iter().enumerate() {
                if bookmark.publisher == *publisher && (*first..=*last).contains(&bookmark.sequence) {
                    let (position, data) = (Position::new(index as u64 + 1), bookmark.sequence.to_le_bytes());
                    let mut writer = RecordsWriter::begin(&mut frames);
                    writer.put(&link_record(position, *bookmark, &data), &mut frames);
                    writer.end(Position::ZERO, None, |_| None, &mut frames);
                    given.sent += 1;
                }
            }
            given.done += 1;
        }
        (frames, given)
    }

    fn carry_out(&mut self) {
        while let Some(output) = self.source.poll_output() {
            match output {
                SourceOutput::Open { .. } => self.is_opening = true,
                SourceOutput::Send { connection, bytes } => {
                    if let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.number == connection) {
                        pipe.to_destination.extend(bytes);
                    }
                }
                SourceOutput::Rejected { bookmark, run } => {
                    assert!(is_other_there(bookmark) && run == 5);
                    self.rejected.insert(bookmark);
                }
                SourceOutput::Give { number, ranges } => {
                    let found = self.give(&ranges);
                    self.source.handle_given(self.now, number, Ok(found));
                }
                SourceOutput::Answer { .. } => unreachable!("nothing is asked"),
                SourceOutput::WaitFor(_) | SourceOutput::Note(_) | SourceOutput::Turn => (),
            }
        }
    }

    fn connect(&mut self, works: bool) {
        if !std::mem::take(&mut self.is_opening) || !self.source.is_opening() {
            return;
        }
        if !works {
            return self.source.handle_not_opened(self.now, "nothing listens there");
        }
        self.connections += 1;
        let number = Connection(self.connections);
        self.pipe = Some(Pipe {
            number,
            to_destination: Vec::new(),
            to_source: Vec::new(),
            destination: Destination::accepted(number, "here:1", self.now),
            split_there: Splitter::default(),
            split_here: Splitter::default(),
            answers: Vec::new(),
            is_wanting: false,
        });
        let introduction =
            Introduction { instance: "here", group: "here", started_ns: 1, ..Introduction::default() };
        self.source.begin(self.now, number, None, introduction);
    }

    fn break_off(&mut self) {
        if let Some(pipe) = self.pipe.take()
            && self.source.connection() == Some(pipe.number)
        {
            self.source.handle_disconnected(self.now);
        }
    }

    fn deliver_there(&mut self, size: usize) {
        let Some(pipe) = &mut self.pipe else { return };
        pipe.destination.handle_heard(self.now);
        let arrived: Vec<_> = pipe.to_destination.drain(..size.min(pipe.to_destination.len())).collect();
        let mut rest = &arrived[..];
        while let Some(Piece { role, head, body }) = pipe.split_there.next(&mut rest).unwrap() {
            if role == Role::Destination {
                pipe.destination.handle_bytes(head.as_ref().map_or(&[][..], |head| head));
                pipe.destination.handle_bytes(body);
            }
        }
        self.turn_there();
    }

    fn deliver_here(&mut self, size: usize) {
        let log = self.log_state();
        let Some(pipe) = &mut self.pipe else { return };
        self.source.handle_heard(self.now);
        let arrived: Vec<_> = pipe.to_source.drain(..size.min(pipe.to_source.len())).collect();
        let mut rest = &arrived[..];
        while let Some(Piece { role, head, body }) = pipe.split_here.next(&mut rest).unwrap() {
            if role == Role::Source {
                pipe.answers.extend(head.into_iter().flatten());
                pipe.answers.extend_from_slice(body);
            }
        }
        let answers = std::mem::take(&mut pipe.answers);
        let mut rest = &answers[..];
        while let Some((frame, size)) = next_frame(rest, FRAME_OVERHEAD_MAX).unwrap() {
            rest = &rest[size..];
            match frame {
                Frame::Acknowledged { through, mark, .. } if self.mistake == Mistake::MixesHops => {
                    for hops in 0..3 {
                        let frame = Frame::Acknowledged { through, hops, mark };
                        self.source.handle_frame(self.now, &log, &frame);
                    }
                }
                frame => {
                    self.source.handle_frame(self.now, &log, &frame);
                }
            }
        }
        pipe.answers = rest.to_vec();
    }

    fn turn_there(&mut self) {
        let Some(mut pipe) = self.pipe.take() else { return };
        loop {
            self.carry_out_there(&mut pipe);
            let appended = Position::new(self.there.len() as u64);
            let Some(mut arrived) = pipe.destination.poll_arrived(self.now, appended, MESSAGE_SIZE_MAX)
            else {
                if pipe.destination.figures().is_none_or(|figures| figures.is_open) {
                    break;
                }
                match pipe.destination.poll_output() {
                    Some(output) => self.carry_out_one(&mut pipe, output),
                    None => break,
                }
                continue;
            };
            let mut taken = arrived.take_result();
            let (mut stopped, mut done) = (None, arrived.done());
            let mut unknown = Vec::new();
            for (record, count) in arrived.records().zip(1..) {
                let (record, end) = record.unwrap();
                let may_be_there =
                    record.bookmark.sequence < next_there(&self.there, record.bookmark.publisher);
                if !unknown.is_empty() || (may_be_there && arrived.answer(record.bookmark).is_none()) {
                    unknown.push(record.bookmark);
                    continue;
                }
                self.record(&record, arrived.answer(record.bookmark), &mut taken);
                done = end;
                // Every third frame is recorded in two turns.
                if count == 1 && self.there.len().is_multiple_of(3) {
                    stopped = Some(end);
                    break;
                }
            }
            let appended = Position::new(self.there.len() as u64);
            let mark = self.there.last().map(|bookmark| Mark {
                position: appended,
                bookmark: *bookmark,
                time: self.time_there(appended),
            });
            if !unknown.is_empty() {
                pipe.destination.look_up(arrived, done, taken, unknown, appended);
                break;
            }
            match stopped {
                Some(done) => pipe.destination.suspend(arrived, done, taken),
                None => pipe.destination.handle_taken(self.now, arrived, mark, taken),
            }
        }
        let persisted = Position::new(self.persisted_there as u64);
        let (mistake, holds_hops) = (self.mistake, self.holds_hops);
        pipe.destination.advance(self.now, persisted, |position, hops, _| {
            let is_held = holds_hops && hops == HELD_HOPS + 1;
            (position <= persisted && !is_held) || mistake == Mistake::AcknowledgesEarly
        });
        self.carry_out_there(&mut pipe);
        self.pipe = Some(pipe);
    }

    fn record(&mut self, record: &SentRecord<'_>, answer: Option<InLog>, taken: &mut Taken) {
        taken.record_count += 1;
        let bookmark = record.bookmark;
        assert_eq!(record.data, bookmark.sequence.to_le_bytes());
        let next = next_there(&self.there, bookmark.publisher);
        if is_other_there(bookmark) {
            if self.mistake != Mistake::ForgetsToReject {
                taken.note_rejected(bookmark, 5);
            }
            taken.note(hops_of(bookmark), record.position, Position::ZERO, Destinations::NONE);
            return;
        }
        if bookmark.sequence < next {
            assert!(
                matches!(answer, Some(InLog::Record(RecordHere { hash, .. })) if hash == bookmark.sequence)
            );
            taken.duplicate_count += 1;
        } else {
            assert_eq!(bookmark.sequence, next, "a record is missing before {bookmark}");
            self.push_there(bookmark);
            taken.note_recorded(record);
        }
        let position = Position::new(self.there.len() as u64);
        taken.note(hops_of(bookmark), record.position, position, Destinations::NONE);
    }

    /// Answers as the log there, which has only what is on its disk.
    fn look_up(&mut self, pipe: &mut Pipe, number: u64, bookmarks: &[Bookmark]) {
        let on_disk = &self.there[..self.persisted_there];
        let answer = |bookmark: &Bookmark| {
            let here = RecordHere { run: 0, hash: bookmark.sequence };
            let is_there = on_disk.contains(bookmark);
            (*bookmark, if is_there { InLog::Record(here) } else { InLog::Nothing })
        };
        let found = bookmarks.iter().map(answer).collect();
        pipe.destination.handle_looked_up(self.now, number, Ok(found));
    }

    fn push_there(&mut self, bookmark: Bookmark) {
        self.last_time_there += 1;
        self.there.push(bookmark);
        self.times_there.push(self.last_time_there);
    }

    fn time_there(&self, position: Position) -> Timestamp {
        Timestamp::from_ns(self.times_there[position.get() as usize - 1])
    }

    fn carry_out_there(&mut self, pipe: &mut Pipe) {
        while let Some(output) = pipe.destination.poll_output() {
            self.carry_out_one(pipe, output);
        }
    }

    fn carry_out_one(&mut self, pipe: &mut Pipe, output: DestinationOutput) {
        let answer =
            Answer { instance: "there", group: "there", started_ns: self.runs_there, ..Answer::default() };
        match output {
            DestinationOutput::Send { bytes, .. } => pipe.to_source.extend(bytes),
            DestinationOutput::Check(greeting) => {
                assert_eq!((&*greeting.instance, &*greeting.destination), ("here", "there"));
                let persisted = match self.mistake {
                    Mistake::HasEveryMark => u64::MAX,
                    _ => self.persisted_there as u64,
                };
                pipe.destination.handle_checked(self.now, Position::new(persisted), answer);
            }
            DestinationOutput::Find { number, mark } => {
                let found = self.there.iter().position(|bookmark| *bookmark == mark.bookmark);
                let found = found.map(|index| Position::new(index as u64 + 1));
                let found = found.map(|position| (position, self.time_there(position)));
                let found = match self.mistake {
                    Mistake::HasEveryMark => Some((mark.position, mark.time)),
                    _ => found,
                };
                pipe.destination.handle_found(self.now, number, found, Position::new(1), answer);
            }
            DestinationOutput::LookUp { number, bookmarks } => self.look_up(pipe, number, &bookmarks),
            DestinationOutput::Given { given, .. } => {
                assert_eq!(given.map(|given| given.done), Ok(1));
                pipe.is_wanting = false;
            }
            DestinationOutput::Answered { .. } => unreachable!("nothing is asked"),
            DestinationOutput::LostRecord | DestinationOutput::Mark { .. } | DestinationOutput::Places(_) => {
                panic!("the logs have no numbers here: {output:?}")
            }
            DestinationOutput::Note(_) | DestinationOutput::Turn => (),
        }
    }

    /// The faults end: everything arrives.
    fn heal(&mut self) {
        let steps =
            [Step::HoldHops(false), Step::SlowReads(false), Step::Pause(false), Step::PersistAtSource];
        steps.iter().for_each(|step| self.step(step));
        for _ in 0..200 {
            let end = self.log.len() as u64;
            if self.source.acknowledged().get() == end && self.source.state() == SourceState::Live {
                break;
            }
            for step in [
                Step::Turn,
                Step::Connect(true),
                Step::ToDestination(u16::MAX),
                Step::PersistAtDestination,
                Step::Turn,
                Step::ToSource(u16::MAX),
                Step::Wait(500),
            ] {
                self.step(&step);
            }
        }
        let from_here = self.there.iter().filter(|bookmark| bookmark.publisher.get() < 9);
        let mut by_publisher = BTreeMap::new();
        from_here.for_each(|bookmark| *by_publisher.entry(bookmark.publisher).or_insert(0) += 1);
        let mut expected = BTreeMap::new();
        let taken = self.log.iter().filter(|bookmark| !is_other_there(**bookmark));
        taken.for_each(|bookmark| *expected.entry(bookmark.publisher).or_insert(0) += 1);
        assert_eq!(by_publisher, expected);
        assert_eq!(self.source.acknowledged().get(), self.log.len() as u64);
        assert_eq!(self.source.unacknowledged_size(), 0);
        assert_eq!(self.source.state(), SourceState::Live);
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_u64..=3, 1_u8..6).prop_map(|(publisher, count)| Step::Publish(publisher, count)),
        4 => Just(Step::PersistAtSource),
        3 => Just(Step::PersistAtDestination),
        1 => Just(Step::PublishThere),
        4 => (1_u16..400).prop_map(Step::ToDestination),
        4 => (1_u16..200).prop_map(Step::ToSource),
        4 => prop::bool::weighted(0.8).prop_map(Step::Connect),
        1 => Just(Step::Break),
        1 => Just(Step::Crash),
        1 => Just(Step::LoseDisk),
        1 => any::<bool>().prop_map(Step::SlowReads),
        1 => any::<bool>().prop_map(Step::HoldHops),
        1 => prop::bool::weighted(0.2).prop_map(Step::Pause),
        2 => (1_u64..=3, 1_u64..20).prop_map(|(publisher, first)| Step::Want(publisher, first)),
        2 => (1_u64..3_000).prop_map(Step::Wait),
        6 => Just(Step::Turn),
    ]
}

fn run(mistake: Mistake, steps: &[Step]) {
    let mut world = World::new(mistake);
    steps.iter().for_each(|step| world.step(step));
    world.heal();
}

proptest! {
    #[test]
    fn every_record_arrives_once_and_in_order_and_no_acknowledgement_is_too_early(
        steps in vec(step(), 0..200),
    ) {
        run(Mistake::None, &steps);
    }
}

#[test]
fn the_model_finds_every_planted_mistake() {
    let mistakes = [
        Mistake::AcknowledgesEarly,
        Mistake::HasEveryMark,
        Mistake::PassesOver,
        Mistake::MixesHops,
        Mistake::ForgetsToReject,
        Mistake::GivesEarly,
    ];
    for mistake in mistakes {
        let config =
            Config { cases: 20_000, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(
            config,
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let result = runner.run(&vec(step(), 50..200), |steps| {
            run(mistake, &steps);
            Ok(())
        });
        assert!(matches!(result, Err(TestError::Fail(..))), "{mistake:?} was not found");
    }
}

fn mark(position: u64, time_ns: u64) -> Mark {
    Mark {
        position: Position::new(position),
        bookmark: Bookmark::new(PublisherId::new(1), position),
        time: Timestamp::from_ns(time_ns),
    }
}

#[test]
fn a_mark_counts_only_with_the_time_that_the_message_has_there() {
    let answer = || Answer { instance: "there", group: "there", started_ns: 1, ..Answer::default() };
    // Without a time, the mark was saved by an earlier version.
    for (marked_ns, time_ns, is_there) in [(5, 5, true), (5, 6, false), (0, 6, true)] {
        let (now, end) = (Instant::default(), Position::new(3));
        let mut destination = Destination::accepted(Connection(1), "peer", now);
        let mark = mark(2, marked_ns);
        let hello = Hello { version: VERSION, instance: "here", mark: Some(mark), ..Hello::default() };
        let mut bytes = Vec::new();
        Frame::Hello(hello).encode(&mut bytes);
        destination.handle_bytes(&bytes);
        assert!(destination.poll_arrived(now, end, MESSAGE_SIZE_MAX).is_none());
        destination.handle_checked(now, end, answer());
        let mut number = 0;
        while let Some(output) = destination.poll_output() {
            if let DestinationOutput::Find { number: found, mark: wanted } = output {
                assert_eq!(wanted, mark);
                number = found;
            }
        }
        let found = Some((mark.position, Timestamp::from_ns(time_ns)));
        destination.handle_found(now, number, found, Position::new(1), answer());
        let Some(DestinationOutput::Send { bytes, .. }) = destination.poll_output() else { panic!() };
        let Ok(Some((Frame::Welcome(welcome), _))) = next_frame(&bytes, 1000) else { panic!() };
        assert_eq!(welcome.has_mark, is_there);
    }
}

#[test]
fn a_link_resumes_after_records_of_its_destination_only_with_a_mark_that_includes_them() {
    let now = Instant::default();
    let (settings, place) =
        (SourceSettings { name: "there".into(), ..Default::default() }, LinkPlace::default());
    let mut source = Source::new(settings, place);
    let log = |end| LogState {
        first: Position::new(1),
        appended: Position::new(end),
        persisted: Position::new(end),
        has_publishes: false,
        single_publish: None,
    };
    source.begin(now, Connection(1), None, Introduction::default());
    let welcome = Welcome { version: VERSION, instance: "there", ..Welcome::default() };
    source.handle_frame(now, &log(0), &Frame::Welcome(welcome));
    let (after, through, last_there) = (Position::ZERO, Position::new(3), Position::new(7));
    source.handle_run(Run { after, through, last_there });
    assert_eq!(source.poll_read(now, &log(3), false), None);
    assert_eq!((source.acknowledged(), source.place().resume_from), (through, Position::ZERO));
    source.handle_last_there(mark(6, 1));
    assert_eq!(source.place().resume_from, Position::ZERO);
    source.handle_last_there(mark(7, 1));
    assert_eq!((source.place().resume_from, source.place().mark), (through, Some(mark(7, 1))));
}

#[test]
fn a_mark_with_a_time_replaces_the_same_mark_without_one() {
    let now = Instant::default();
    let (settings, instance) =
        (SourceSettings { name: "there".into(), ..Default::default() }, Some("there".to_owned()));
    let place = LinkPlace { resume_from: Position::new(3), mark: Some(mark(7, 0)), instance, log: 0 };
    let mut source = Source::new(settings, place);
    let log = LogState {
        first: Position::new(1),
        appended: Position::new(3),
        persisted: Position::new(3),
        has_publishes: false,
        single_publish: None,
    };
    source.begin(now, Connection(1), None, Introduction::default());
    let welcome = Welcome { version: VERSION, instance: "there", has_mark: true, ..Welcome::default() };
    source.handle_frame(now, &log, &Frame::Welcome(welcome));
    assert_eq!(source.place().resume_from, Position::new(3));
    for (told, kept) in [(mark(6, 9), mark(7, 0)), (mark(7, 5), mark(7, 5)), (mark(7, 0), mark(7, 5))] {
        source.handle_last_there(told);
        assert_eq!(source.place().mark, Some(kept));
    }
}

/// The frames that a source has sent since the last call.
fn sent_marks(source: &mut Source) -> Vec<(String, bool)> {
    let mut sent = Vec::new();
    while let Some(output) = source.poll_output() {
        let SourceOutput::Send { bytes, .. } = output else { continue };
        if let Ok(Some((Frame::Mark(mark), _))) = next_frame(&bytes, 1000) {
            sent.push((mark.origin.to_owned(), mark.is_whole));
        }
    }
    sent
}

#[test]
fn a_mark_is_sent_after_the_records_before_it_and_again_when_the_destination_tells_its_members() {
    let now = Instant::default();
    let settings = SourceSettings { name: "there".into(), ..Default::default() };
    let mut source = Source::new(settings, LinkPlace::default());
    let log = |end| LogState {
        first: Position::new(1),
        appended: Position::new(end),
        persisted: Position::new(end),
        has_publishes: false,
        single_publish: None,
    };
    source.begin(now, Connection(1), None, Introduction::default());
    let welcome = Welcome { version: VERSION, instance: "there", ..Welcome::default() };
    source.handle_frame(now, &log(0), &Frame::Welcome(welcome));
    let known = [("here".to_owned(), 5)].into();
    let after = Position::new(3);
    let mark = KeptMark { origin: "here".into(), of: "there".into(), log: 7, known, after };
    let marks = |is_whole| [(mark.clone(), is_whole)];
    source.end_turn(now, &marks(true));
    assert_eq!(sent_marks(&mut source), [(String::new(), false)], "that of the log at `welcome`");
    source.handle_run(Run { after: Position::ZERO, through: after, last_there: Position::new(1) });
    source.poll_read(now, &log(3), false);
    source.end_turn(now, &marks(false));
    source.end_turn(now, &marks(false));
    assert_eq!(sent_marks(&mut source), [("here".to_owned(), false)]);
    source.end_turn(now, &marks(true));
    assert_eq!(sent_marks(&mut source), [("here".to_owned(), true)], "the link sends more now");
    source.handle_members();
    source.end_turn(now, &marks(true));
    source.end_turn(now, &marks(true));
    assert_eq!(sent_marks(&mut source), [("here".to_owned(), true)], "the destination has other members");
}

#[test]
fn a_lost_message_is_reported_unless_the_log_is_known_to_be_filling_or_is_another_one() {
    for (marked_log, is_filling, is_lost) in [(7, false, true), (7, true, false), (6, false, false)] {
        let now = Instant::default();
        let mut destination = Destination::accepted(Connection(1), "peer", now);
        let mark = Some(mark(2, 1));
        let hello = Hello { version: VERSION, instance: "here", mark, marked_log, ..Hello::default() };
        let mut bytes = Vec::new();
        Frame::Hello(hello).encode(&mut bytes);
        destination.handle_bytes(&bytes);
        assert!(destination.poll_arrived(now, Position::new(1), MESSAGE_SIZE_MAX).is_none());
        let own = Member { name: "there", log: 7, is_filling, ..Member::default() };
        let answer = Answer { instance: "there", group: "there", members: vec![own], ..Answer::default() };
        // The log ends before the message.
        destination.handle_checked(now, Position::new(1), answer);
        let found = outputs(&mut destination);
        assert_eq!(found.contains(&DestinationOutput::LostRecord), is_lost, "{found:?}");
        assert_eq!(destination.is_open(), !is_lost);
    }
}

/// A destination with an open link, and a frame with one record.
fn with_a_record(now: Instant) -> (Destination, Arrived) {
    let answer = Answer { instance: "there", group: "there", started_ns: 1, ..Answer::default() };
    let mut destination = Destination::accepted(Connection(1), "peer", now);
    let mut bytes = Vec::new();
    Frame::Hello(Hello { version: VERSION, instance: "here", ..Hello::default() }).encode(&mut bytes);
    destination.handle_bytes(&bytes);
    assert!(destination.poll_arrived(now, Position::ZERO, MESSAGE_SIZE_MAX).is_none());
    destination.handle_checked(now, Position::ZERO, answer);
    let mut frame = Vec::new();
    let mut writer = RecordsWriter::begin(&mut frame);
    let record = LinkRecord {
        position: Position::new(1),
        kind: 1,
        message_type: 1,
        bookmark: Bookmark::new(PublisherId::new(1), 1),
        expiration_s: None,
        stamp: None,
        topic: "orders",
        correlation_id: b"",
        attributes: b"",
        data: b"",
    };
    writer.put(&record, &mut frame);
    writer.end(Position::new(1), None, |_| None, &mut frame);
    destination.handle_bytes(&frame);
    let arrived = destination.poll_arrived(now, Position::ZERO, MESSAGE_SIZE_MAX).expect("a frame");
    while destination.poll_output().is_some() {}
    (destination, arrived)
}

fn outputs(destination: &mut Destination) -> Vec<DestinationOutput> {
    std::iter::from_fn(|| destination.poll_output()).collect()
}

#[test]
fn the_log_is_asked_when_it_is_on_the_disk_and_the_frame_waits_for_the_answer() {
    let now = Instant::default();
    let (mut destination, mut arrived) = with_a_record(now);
    let bookmark = Bookmark::new(PublisherId::new(1), 1);
    assert_eq!(arrived.answer(bookmark), None);
    let taken = arrived.take_result();
    let (three, four) = (Position::new(3), Position::new(4));
    destination.look_up(arrived, 0, taken, vec![bookmark], four);
    destination.advance(now, three, |_, _, _| true);
    assert_eq!(outputs(&mut destination), [DestinationOutput::Turn]);
    destination.advance(now, four, |_, _, _| true);
    let asked = outputs(&mut destination);
    assert_eq!(asked, [DestinationOutput::LookUp { number: 1, bookmarks: vec![bookmark] }]);
    assert!(destination.poll_arrived(now, four, MESSAGE_SIZE_MAX).is_none());
    assert_eq!(destination.looked_up_through(), Some(four));
    destination.handle_looked_up(now, 2, Ok(vec![]));
    assert!(destination.poll_arrived(now, four, MESSAGE_SIZE_MAX).is_none(), "an earlier question");
    destination.handle_looked_up(now, 1, Ok(vec![(bookmark, InLog::Nothing)]));
    let arrived = destination.poll_arrived(now, four, MESSAGE_SIZE_MAX).expect("the rest of the frame");
    assert_eq!(arrived.answer(bookmark), Some(InLog::Nothing));
    // Records that come until the frame is done may differ from the answer.
    assert_eq!(destination.looked_up_through(), Some(four));
    destination.handle_taken(now, arrived, None, Taken::default());
    assert_eq!(destination.looked_up_through(), None);
}

#[test]
fn a_log_that_cannot_be_read_ends_the_link_with_the_reason() {
    let now = Instant::default();
    let (mut destination, mut arrived) = with_a_record(now);
    let taken = arrived.take_result();
    let bookmark = Bookmark::new(PublisherId::new(1), 1);
    destination.look_up(arrived, 0, taken, vec![bookmark], Position::ZERO);
    destination.advance(now, Position::ZERO, |_, _, _| true);
    destination.handle_looked_up(now, 1, Err("the file is damaged".to_owned()));
    let reasons = outputs(&mut destination).into_iter().filter_map(|output| match output {
        DestinationOutput::Note(DestinationEvent::Ended { reason, .. }) => Some(reason),
        _ => None,
    });
    assert_eq!(reasons.collect::<Vec<_>>(), ["the file is damaged"]);
    assert!(destination.is_idle());
}

#[test]
fn a_rejection_is_sent_before_the_acknowledgement_of_its_position() {
    let now = Instant::default();
    let (mut destination, mut arrived) = with_a_record(now);
    let mut taken = arrived.take_result();
    let bookmark = Bookmark::new(PublisherId::new(1), 1);
    taken.note_rejected(bookmark, 7);
    taken.note(0, Position::new(1), Position::ZERO, Destinations::NONE);
    destination.handle_taken(now, arrived, None, taken);
    destination.advance(now, Position::ZERO, |_, _, _| true);
    let mut sent = Vec::new();
    for output in outputs(&mut destination) {
        if let DestinationOutput::Send { bytes, .. } = output {
            sent.extend(bytes);
        }
    }
    let Ok(Some((first, size))) = next_frame(&sent, 1000) else { panic!() };
    assert_eq!(first, Frame::Rejected { bookmark, run: 7 });
    let Ok(Some((second, _))) = next_frame(&sent[size..], 1000) else { panic!() };
    assert_eq!(second, Frame::Acknowledged { through: Position::new(1), hops: 0, mark: None });
}

#[test]
fn an_answer_that_was_not_asked_for_ends_the_link() {
    let now = Instant::default();
    let answer = |number| Frame::Answer { number, reason: "", answer: b"x" };
    let given = |number| Frame::Given { number, reason: "", given: Given::default() };
    let take = |destination: &mut Destination, frame: &Frame<'_>| {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        destination.handle_bytes(&bytes);
        assert!(destination.poll_arrived(now, Position::ZERO, MESSAGE_SIZE_MAX).is_none());
        let is_answer = |output: &DestinationOutput| {
            matches!(output, DestinationOutput::Answered { .. } | DestinationOutput::Given { .. })
        };
        (outputs(destination).iter().filter(|output| is_answer(output)).count(), destination.is_idle())
    };
    let with_a_link = || {
        let (mut destination, mut arrived) = with_a_record(now);
        let taken = arrived.take_result();
        destination.handle_taken(now, arrived, None, taken);
        destination
    };
    let mut destination = with_a_link();
    assert_eq!(destination.ask_source(now, b"?"), Some(1));
    assert!(destination.awaits(1));
    assert_eq!(take(&mut destination, &answer(1)), (1, false));
    assert!(!destination.awaits(1));
    assert_eq!(take(&mut destination, &answer(1)), (0, true), "a second answer");
    for frame in [answer(1), given(1), answer(2), given(2)] {
        let mut destination = with_a_link();
        assert_eq!(take(&mut destination, &frame), (0, true));
    }
    let mut destination = with_a_link();
    assert_eq!(destination.want(now, Vec::new()), Some(1));
    assert_eq!(take(&mut destination, &given(1)), (1, false));
}
