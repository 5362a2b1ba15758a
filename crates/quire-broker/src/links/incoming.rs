//! The link from the other instance of a connection: drives the engine with the time, the bytes and
//! the log, and carries out what it asks for. The engine is `quire_link::Destination`.
//!
//! The run loop takes the frames of records one at a time, so that a source which has much to send
//! does not keep the other connections waiting.

use std::sync::Arc;

use quire_journal::{AllTopics, Bookmark, JournalError, Position, Reader, Timestamp};
use quire_link::summary::Question;
use quire_link::{
    Answer, Arrived, Connection, Destination, DestinationEvent, DestinationOutput, Greeting, LinkRules,
    LookedUp, SourceInstance, Taken,
};
use quire_types::time::Instant;
use quire_wire::link::{Mark, Wanted};

use super::Links;
use super::check::Checking;
use super::compare::FromSource;
use super::look_up::LookUp;
use super::members::{Heard, Membership};
use crate::access::LinkUser;
use crate::config::links::{Definition, KEY, SOW};
use crate::context::Context;
use crate::io::{ConnectionId, Event, Output};
use crate::stats::SourceStats;

/// The members, and the last message of the log here: for the introduction of this instance.
pub(super) type Introduced<'a> = (Option<&'a Membership>, Option<Bookmark>);

/// See the documentation of the module.
pub(super) struct Incoming {
    connection: ConnectionId,
    destination: Destination,
    /// The links of this instance.
    own_links: Arc<[Arc<Definition>]>,
    /// The introduction of the source, while it is checked.
    checking: Option<Checking>,
    /// The user of the other instance.
    pub(super) user: LinkUser,
    /// Answers of the source that were not taken.
    replies: Vec<FromSource>,
    /// News that the members are to have.
    heard: Vec<Heard>,
    /// The version of the members that `welcome` had.
    told: u64,
}

impl Incoming {
    /// Of a connection whose logon is not over, or that this instance has made.
    pub(super) fn idle(
        connection: ConnectionId,
        peer: &str,
        own_links: Arc<[Arc<Definition>]>,
        now: Instant,
    ) -> Self {
        let destination = Destination::idle(Connection(connection.0), peer, now);
        Incoming {
            connection,
            destination,
            own_links,
            checking: None,
            user: LinkUser::default(),
            replies: Vec::new(),
            heard: Vec::new(),
            told: 0,
        }
    }

    /// The other instance has made the connection, and has logged on: it is to begin a link.
    pub(super) fn accept(&mut self, user: LinkUser, now: Instant) {
        self.destination = Destination::accepted(Connection(self.connection.0), self.peer(), now);
        self.user = user;
    }

    /// The source, once after it was let in.
    pub(super) fn take_new(&mut self) -> Option<&SourceInstance> {
        self.destination.take_new()
    }

    pub(super) fn source(&self) -> Option<&SourceInstance> {
        self.destination.source()
    }

    /// See [`Destination::recorded`].
    pub(super) fn recorded(&self) -> Option<(&SourceInstance, Position, Position)> {
        self.destination.recorded()
    }

    pub(super) fn is_from(&self, instance: Option<&str>) -> bool {
        self.source().is_some_and(|source| Some(&*source.name) == instance)
    }

    pub(super) fn has_caught_up(&self) -> bool {
        self.destination.has_caught_up()
    }

    /// Whether the source has caught up since the last call.
    pub(super) fn take_caught_up(&mut self) -> bool {
        self.destination.take_caught_up()
    }

    /// The answers of the source since the last call.
    pub(super) fn take_replies(&mut self) -> Vec<FromSource> {
        std::mem::take(&mut self.replies)
    }

    /// Asks the source about its messages. Returns the number of the question; `None`: there is no
    /// link.
    pub(super) fn ask_source(&mut self, cx: &mut Context, question: &Question) -> Option<u64> {
        let mut bytes = Vec::new();
        question.encode(&mut bytes);
        let number = self.destination.ask_source(cx.clock.now.instant, &bytes);
        self.carry_out(cx);
        number
    }

    /// Asks the source for messages. Returns the number of the request; `None`: there is no link.
    pub(super) fn want(&mut self, cx: &mut Context, ranges: Vec<Wanted>) -> Option<u64> {
        let number = self.destination.want(cx.clock.now.instant, ranges);
        self.carry_out(cx);
        number
    }

    /// Whether the source is to answer the request. Not after the link began again.
    pub(super) fn awaits(&self, number: u64) -> bool {
        self.destination.awaits(number)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.destination.is_idle()
    }

    pub(super) fn is_open(&self) -> bool {
        self.destination.is_open()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.destination.is_broken()
    }

    /// The address of the other instance.
    pub(super) fn peer(&self) -> &str {
        self.destination.peer()
    }

    /// The version of the members that the source was told in `welcome`.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// The news since the last call.
    pub(super) fn take_heard(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.heard)
    }

    /// Bytes arrived on the connection.
    pub(super) fn heard(&mut self, now: Instant) {
        self.destination.handle_heard(now);
    }

    /// Takes bytes of frames of a source.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.destination.handle_bytes(bytes);
    }

    /// Bytes that came, and were not worked on.
    pub(super) fn waiting_size(&self) -> usize {
        self.destination.waiting_size()
    }

    /// Works on what came, up to the next frame of records. `None` when there is no such frame.
    pub(super) fn next_arrived(&mut self, cx: &mut Context) -> Option<Arrived> {
        loop {
            let (now, size_max) = (cx.clock.now.instant, cx.config.message_size_max());
            let arrived = self.destination.poll_arrived(now, cx.log.appended(), size_max);
            // Frames may wait after the `hello` of a source that is refused.
            let may_find_more = self.carry_out(cx);
            if arrived.is_some() || !may_find_more {
                return arrived;
            }
        }
    }

    /// Checks the instances of an introduction. Returns whether they can be linked. The topics are
    /// checked in the next turns.
    fn begin_checks(&mut self, cx: &mut Context, mut greeting: Greeting) -> bool {
        let told = std::mem::take(&mut greeting.members);
        match Checking::begin(cx, greeting, &self.own_links, &mut self.user) {
            Ok(checking) => {
                self.destination.set_rules(LinkRules {
                    any_sow: !checking.is_checked(SOW),
                    any_key: !checking.is_checked(KEY),
                });
                self.checking = Some(checking);
                self.heard.push(Heard::Introduced(told));
                cx.clock.wants_turn = true;
                true
            }
            Err(reason) => {
                self.destination.end(cx.clock.now.instant, &reason);
                false
            }
        }
    }

    /// Continues with the checks of an introduction until the deadline, and answers it.
    fn check(&mut self, cx: &mut Context, deadline: Option<Instant>, introduction: Introduced<'_>) {
        let Some(mut checking) = self.checking.take() else { return };
        match checking.run(cx, &self.own_links, &mut self.user, deadline) {
            None => {
                self.checking = Some(checking);
                cx.clock.wants_turn = true;
            }
            Some(Err(reason)) => self.destination.end(cx.clock.now.instant, &reason),
            Some(Ok(())) => {
                let persisted = cx.log.journal.persisted();
                self.told = introduction.0.map_or(0, Membership::version);
                let answer = answer(cx, self.destination.source(), introduction);
                self.destination.handle_checked(cx.clock.now.instant, persisted, answer);
            }
        }
        self.carry_out(cx);
    }

    /// The search for the mark is over.
    pub(super) fn found(
        &mut self,
        cx: &mut Context,
        number: u64,
        found: Option<(Position, Timestamp)>,
        introduction: Introduced<'_>,
    ) {
        self.told = introduction.0.map_or(0, Membership::version);
        let first = cx.log.reader.first();
        let answer = answer(cx, self.destination.source(), introduction);
        self.destination.handle_found(cx.clock.now.instant, number, found, first, answer);
        self.carry_out(cx);
    }

    /// The records of a frame were recorded, were duplicates, or were rejected. `mark` is the last
    /// record of the log.
    pub(super) fn taken(&mut self, cx: &mut Context, arrived: Arrived, mark: Option<Mark>, taken: Taken) {
        self.destination.handle_taken(cx.clock.now.instant, arrived, mark, taken);
        self.carry_out(cx);
    }

    /// The rest of a frame, after `done` bytes of its records, waits for what the log has under
    /// these bookmarks.
    pub(super) fn look_up(
        &mut self,
        cx: &mut Context,
        arrived: Arrived,
        (done, taken): (usize, Taken),
        bookmarks: Vec<Bookmark>,
    ) {
        self.destination.look_up(arrived, done, taken, bookmarks, cx.log.appended());
        self.carry_out(cx);
    }

    /// See [`Destination::looked_up_through`].
    pub(super) fn looked_up_through(&self) -> Option<Position> {
        self.destination.looked_up_through()
    }

    /// Another instance has another record with the bookmark of a record that the source has sent.
    pub(super) fn reject(&mut self, cx: &mut Context, bookmark: Bookmark, run: u64) {
        self.destination.reject(cx.clock.now.instant, bookmark, run);
        self.carry_out(cx);
    }

    /// A record of a frame cannot be recorded: the link ends.
    pub(super) fn not_taken(&mut self, cx: &mut Context, arrived: Arrived, reason: &str) {
        self.destination.handle_not_taken(cx.clock.now.instant, arrived, reason);
        self.carry_out(cx);
    }

    /// The time of the turn is over in the middle of a frame.
    pub(super) fn suspend(&mut self, arrived: Arrived, done: usize, taken: Taken) {
        self.destination.suspend(arrived, done, taken);
    }

    /// Acknowledges what has become safe, and sends a heartbeat when nothing else was sent for a
    /// while.
    pub(super) fn advance(
        &mut self,
        cx: &mut Context,
        deadline: Option<Instant>,
        introduction: Introduced<'_>,
    ) {
        self.check(cx, deadline, introduction);
        let log = &cx.log;
        self.destination.advance(
            cx.clock.now.instant,
            log.journal.persisted(),
            |position, hops, destinations| log.is_persisted_after(position, hops, destinations),
        );
        self.carry_out(cx);
    }

    /// The log was asked for records of a frame.
    pub(super) fn looked_up(&mut self, cx: &mut Context, number: u64, found: Result<LookedUp, String>) {
        self.destination.handle_looked_up(cx.clock.now.instant, number, found);
        self.carry_out(cx);
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.destination.poll_timeout()
    }

    /// Ends the link, and says why at both ends.
    pub(super) fn end(&mut self, cx: &mut Context, reason: &str) {
        self.destination.end(cx.clock.now.instant, reason);
        self.carry_out(cx);
    }

    /// The connection cannot be used any more.
    pub(super) fn break_off(&mut self, cx: &mut Context, reason: &str) {
        self.destination.break_off(cx.clock.now.instant, reason);
        self.carry_out(cx);
    }

    /// Returns whether a source was refused at its `hello`.
    fn carry_out(&mut self, cx: &mut Context) -> bool {
        let mut is_refused = false;
        while let Some(output) = self.destination.poll_output() {
            match output {
                DestinationOutput::Send { connection, bytes } => {
                    cx.outputs.push_back(Output::Send { connection: ConnectionId(connection.0), bytes });
                }
                DestinationOutput::Check(greeting) => is_refused |= !self.begin_checks(cx, *greeting),
                DestinationOutput::Find { number, mark } => {
                    let (reader, connection) = (cx.log.reader.clone(), self.connection);
                    cx.begin_job(
                        move |_| find(&reader, mark.bookmark),
                        move |links: &mut Links, cx, _, found| {
                            links.mark_found(cx, connection, number, found.and_then(Result::ok).flatten());
                        },
                    );
                }
                DestinationOutput::LookUp { number, bookmarks } => {
                    let look_up = LookUp { reader: cx.log.reader.clone(), bookmarks };
                    let connection = self.connection;
                    cx.begin_job(
                        move |_| look_up.run(),
                        move |links: &mut Links, cx: &mut Context, _, found| {
                            links.looked_up(cx, connection, number, found);
                        },
                    );
                }
                DestinationOutput::Answered { number, answer } => {
                    self.replies.push(FromSource::Answered(number, answer));
                }
                DestinationOutput::Given { number, given } => {
                    self.replies.push(FromSource::Given(number, given));
                }
                DestinationOutput::Note(event) => cx.note(match event {
                    DestinationEvent::Accepted { source, group, peer } => {
                        Event::LinkAccepted { source, group, peer }
                    }
                    DestinationEvent::Ended { source, reason } => Event::LinkRefused { source, reason },
                }),
                DestinationOutput::LostRecord => self.heard.push(Heard::LostRecord),
                DestinationOutput::Mark { mark, is_whole } => {
                    self.heard.push(Heard::Mark { mark, is_whole });
                    cx.clock.wants_turn = true;
                }
                DestinationOutput::Places(frame) => {
                    self.heard.push(Heard::Places(frame));
                    cx.clock.wants_turn = true;
                }
                DestinationOutput::Turn => cx.clock.wants_turn = true,
            }
        }
        if self.is_idle() {
            self.checking = None;
        }
        is_refused
    }

    /// Figures of the link; `None` when there is none.
    pub(super) fn stats(&self, tls: bool) -> Option<SourceStats> {
        self.destination.figures().map(|figures| SourceStats {
            name: figures.source,
            peer: self.peer().to_owned(),
            user: self.user.name.as_deref().map(str::to_owned),
            tls,
            state: if figures.is_open { "live" } else { "connecting" },
            received: figures.received.get(),
            acknowledged: figures.acknowledged.get(),
            received_count: figures.record_count,
            duplicate_count: figures.duplicate_count,
            conflict_count: 0,
        })
    }
}

/// The place and the time of a record in the log here.
fn find(reader: &Reader, bookmark: Bookmark) -> Result<Option<(Position, Timestamp)>, JournalError> {
    let Some(position) = reader.find(bookmark)? else { return Ok(None) };
    let batch = reader.cursor(Position::new(position.get() - 1)).next(position, &AllTopics)?;
    let record = batch.as_ref().and_then(|batch| batch.records().next());
    Ok(record.filter(|record| record.position == position).map(|record| (position, record.timestamp)))
}

/// The introduction of this instance to a source.
fn answer<'a>(
    cx: &'a Context,
    source: Option<&SourceInstance>,
    (members, last): Introduced<'a>,
) -> Answer<'a> {
    let mut destinations = cx.config.replication.destinations.iter();
    Answer {
        instance: &cx.config.name,
        group: cx.config.group(),
        started_ns: cx.started_ns(),
        sends_back: destinations
            .any(|destination| source.is_some_and(|source| destination.name == *source.name)),
        members: members.map_or_else(Vec::new, |members| members.told(last)),
    }
}
