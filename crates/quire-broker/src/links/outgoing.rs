//! The link to one destination: drives the engine with the time, the connection and the log, and
//! carries out what it asks for. The engine is `quire_link::Source`.

use std::sync::Arc;

use quire_journal::{Bookmark, Cursor, JournalError, Position};
use quire_link::{
    Arrived, Connection, Greeted, Introduction, LinkPlace, LogState, Read, ReadFound, Run, Source,
    SourceEvent, SourceOutput, SourceSettings, SourceState, Start,
};
use quire_types::time::Instant;
use quire_wire::link::{Frame, Given, Mark, Wanted};

use super::behind::Behind;
use super::give::Giving;
use super::incoming::Introduced;
use super::members::Membership;
use super::read::{LinkFound, LinkReading, LinkSearch};
use super::{Links, Offer, offered};
use crate::access::LinkUser;
use crate::config::links::{Definition, SyncType, check_name};
use crate::context::Context;
use crate::io::{ConnectionId, Event, Output};
use crate::log::YIELD_MAX;
use crate::stats::DestinationStats;

/// Records that a cursor passes over. It looks at all batches between, so that beyond this a new
/// one is made.
const CURSOR_STEP_MAX: u64 = 64;

/// A connection that the destination has made.
pub(super) struct Shared {
    pub(super) connection: ConnectionId,
    /// The address of the destination.
    pub(super) address: String,
    pub(super) user: LinkUser,
}

/// See the documentation of the module.
pub(super) struct Outgoing {
    pub(super) definition: Arc<Definition>,
    pub(super) number: usize,
    /// The name of this instance.
    own_name: Arc<str>,
    source: Source,
    /// Where reading continues. It keeps the files of the log that it needs.
    cursor: Option<Cursor>,
    /// The end of the last read.
    read_through: Position,
    /// The user of the connection.
    user: LinkUser,
    /// Rejections of the destination, each with the run.
    rejected: Vec<(Bookmark, u64)>,
    /// Questions of the destination, each with its number.
    questions: Vec<(u64, Vec<u8>)>,
    /// Whether the destination sends to this instance, too, as it said last.
    sends_back: Option<bool>,
    behind: Behind,
    /// The version of the members that the last `hello` had.
    pub(super) told: u64,
    /// The link sends all topics that another link of this instance sends.
    pub(super) sends_all_topics: bool,
}

impl Outgoing {
    pub(super) fn new(
        number: usize,
        own_name: Arc<str>,
        definition: Arc<Definition>,
        place: LinkPlace,
        sends_all_topics: bool,
    ) -> Self {
        let settings = SourceSettings {
            name: definition.settings.name.clone(),
            group: definition.settings.group.clone(),
            addresses: definition.settings.addresses.clone(),
            is_sync: definition.settings.sync_type == SyncType::Sync,
            downgrade_after: definition.downgrade_after(),
            upgrade_below: definition.upgrade_below(),
        };
        let source = Source::new(settings, place);
        Outgoing {
            definition,
            number,
            own_name,
            source,
            cursor: None,
            read_through: Position::ZERO,
            user: LinkUser::default(),
            rejected: Vec::new(),
            questions: Vec::new(),
            sends_back: None,
            behind: Behind::default(),
            told: 0,
            sends_all_topics,
        }
    }

    /// The messages that the destination has rejected since the last call, each with its run.
    pub(super) fn take_rejected(&mut self) -> Vec<(Bookmark, u64)> {
        std::mem::take(&mut self.rejected)
    }

    /// The questions of the destination since the last call, each with its number.
    pub(super) fn take_questions(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.questions)
    }

    /// The destination was asked for its name, and whether it sends to this instance.
    pub(super) fn set_sends_back(&mut self, sends_back: bool) {
        self.sends_back = Some(sends_back);
    }

    /// The instance whose messages come here, too; `None`: it said that it sends none.
    pub(super) fn as_source(&self) -> Option<&str> {
        let name = self.peer().unwrap_or(&self.definition.settings.name);
        (self.sends_back != Some(false)).then_some(name)
    }

    /// The answer to a question of the destination.
    pub(super) fn answer(&mut self, cx: &mut Context, number: u64, answer: Result<&[u8], &str>) {
        self.source.handle_answer(cx.clock.now.instant, number, answer);
        self.carry_out(cx);
    }

    /// Reads the messages that the destination asks for.
    fn give(&self, cx: &mut Context, number: u64, ranges: Vec<Wanted>) {
        let Some(peer) = self.source.peer().map(|peer| (peer.name.clone(), peer.group.clone())) else {
            return;
        };
        let scanned = self.source.scanned();
        let reading = self.reading(cx, peer, cx.log.reader.cursor(scanned), (scanned, scanned));
        let (reader, instance) = (cx.log.reader.clone(), cx.config.name.clone());
        let giving = Giving { reading, reader, instance, ranges };
        let destination = self.number;
        cx.begin_job(
            move |arena| giving.run(arena),
            move |links: &mut Links, cx, _, found| links.given(cx, destination, number, found),
        );
    }

    /// The messages that the destination asked for were read; `None` after a bug.
    pub(super) fn given(
        &mut self,
        cx: &mut Context,
        number: u64,
        found: Option<Result<(Vec<u8>, Given), JournalError>>,
    ) {
        let found = found.map_or_else(
            || Err("reading the log failed".to_owned()),
            |found| found.map_err(|error| error.to_string()),
        );
        self.source.handle_given(cx.clock.now.instant, number, found);
        self.carry_out(cx);
    }

    pub(super) fn connection(&self) -> Option<ConnectionId> {
        self.source.connection().map(|connection| ConnectionId(connection.0))
    }

    /// The name of the instance that answered last.
    pub(super) fn peer(&self) -> Option<&str> {
        self.source.peer().map(|peer| &*peer.name)
    }

    /// Whether the frame came from the process that answered last.
    pub(super) fn is_from_peer(&self, arrived: &Arrived) -> bool {
        self.source.peer().is_some_and(|peer| {
            peer.name == arrived.source().name && peer.started_ns == arrived.source_started_ns()
        })
    }

    pub(super) fn start(&self) -> Start {
        self.source.start()
    }

    pub(super) fn set_start(&mut self, start: Start) {
        self.source.set_start(start);
    }

    /// Whether records are sent.
    pub(super) fn is_live(&self) -> bool {
        self.source.is_live()
    }

    /// Whether the link is up, and leads to this instance.
    pub(super) fn is_live_with(&self, instance: &str) -> bool {
        self.is_live() && self.peer() == Some(instance)
    }

    pub(super) fn is_greeting(&self) -> bool {
        self.source.is_greeting()
    }

    /// Another link leads to the instance that answered last. Its acknowledgements on this link do
    /// not count any more.
    pub(super) fn forget_peer(&mut self, cx: &mut Context) {
        self.source.forget_peer();
        self.report(cx);
    }

    pub(super) fn is_opening(&self) -> bool {
        self.source.is_opening()
    }

    /// The address that is connected, or is tried next; empty when the destination is to connect.
    pub(super) fn address(&self) -> &str {
        self.source.address()
    }

    pub(super) fn leads_to(&self, instance: &str, group: &str) -> bool {
        self.source.leads_to(instance, group)
    }

    pub(super) fn shares_with(&self, instance: &str, group: &str) -> bool {
        self.source.shares_with(instance, group)
    }

    pub(super) fn wants_connection(&self, now: Instant) -> bool {
        self.source.wants_connection(now)
    }

    /// The state to save for the next run.
    pub(super) fn place(&self) -> LinkPlace {
        self.source.place().clone()
    }

    /// When it has something to do next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.source.poll_timeout().into_iter().chain(self.behind.due()).min()
    }

    /// The first position of the log that must stay for the destination.
    pub(super) fn needed_from(&self, cx: &Context) -> Position {
        let size_max = self.definition.settings.retained_size_max;
        self.source.needed_from(size_max.map(|size_max| cx.log.reader.start_of_newest(size_max)))
    }

    /// At the limit, files that the destination needs may be removed. The link ends when this has
    /// happened.
    pub(super) fn look_at_retained(&mut self, cx: &mut Context) {
        if self.source.reading().is_none() && self.source.scanned().next() < self.needed_from(cx) {
            // A cursor would keep the files.
            self.cursor = None;
        }
        self.source.handle_removed_files(cx.clock.now.instant, &log_state(cx));
        self.carry_out(cx);
    }

    /// Does what is due: connects, reads and sends records, sends a heartbeat, looks at the age of
    /// messages that are not acknowledged. `shared` is a connection that the destination has made.
    pub(super) fn advance(&mut self, cx: &mut Context, shared: Option<Shared>, introduction: Introduced<'_>) {
        let now = cx.clock.now.instant;
        let (shared, user) = match shared {
            Some(Shared { connection, address, user }) => (Some((Connection(connection.0), address)), user),
            None => (None, LinkUser::default()),
        };
        let begun = self.source.begin_turn(now, &log_state(cx), shared);
        self.carry_out(cx);
        if let Some((connection, address)) = begun {
            self.begin(cx, ConnectionId(connection.0), Some(address), user, introduction);
        }
        let (members, _) = introduction;
        self.read(cx, members.is_some_and(|members| members.fills(self.peer())));
        let marks = members.map_or_else(Vec::new, |members| members.marks_for(self));
        self.source.end_turn(now, &marks);
        if let Some(members) = members {
            self.send_places(cx, members);
        }
        self.carry_out(cx);
        self.report(cx);
        self.look_behind(cx);
    }

    /// Tells the destination the places at the position up to which the log was looked at.
    fn send_places(&mut self, cx: &Context, members: &Membership) {
        let (now, version) = (cx.clock.now.instant, (cx.log.places.version(), members.version()));
        if let Some(position) = self.source.places_due(now, version) {
            let frame = members.places_for(self, position, &cx.log.places);
            self.source.send_places(now, frame);
        }
    }

    /// Searches the log for the oldest record that the destination has not acknowledged, while the
    /// engine may not know it.
    fn look_behind(&mut self, cx: &mut Context) {
        let (now, place) = (cx.clock.now.instant, self.source.place());
        let acknowledged = self.source.acknowledged().max(place.resume_from);
        self.behind.reach(acknowledged, cx.log.reader.first());
        let knows_all = self.source.state() == SourceState::Live && !self.source.age(now).is_zero();
        let persisted = cx.log.journal.persisted();
        let Some(after) = self.behind.next_search(now, persisted, !knows_all) else { return };
        let name = &self.definition.settings.name;
        let peer = match self.source.peer() {
            Some(peer) => (peer.name.clone(), peer.group.clone()),
            None => (place.instance.clone().unwrap_or_else(|| name.clone()), String::new()),
        };
        let reading = LinkReading {
            // It has the records that came from it.
            greeted: Position::ZERO,
            ..self.reading(cx, peer, cx.log.reader.cursor(after), (after, persisted))
        };
        let destination = self.number;
        let number = cx.begin_job(
            move |arena| reading.search(arena),
            move |links: &mut Links, cx, number, found| links.searched(cx, destination, number, found),
        );
        self.behind.begin(number, now);
    }

    /// A search is done; `None` after a bug.
    pub(super) fn searched(&mut self, cx: &mut Context, number: u64, found: Option<&LinkSearch>) {
        cx.clock.wants_turn |= found.is_some_and(|found| self.behind.found(number, found));
    }

    /// Tells the log how far the destination is.
    fn report(&self, cx: &mut Context) {
        cx.log.replicated.set(self.number, self.source.progress());
    }

    /// Waits no longer for the next attempt.
    pub(super) fn try_now(&mut self, now: Instant) {
        self.source.try_now(now);
    }

    /// The driver could not connect.
    pub(super) fn not_opened(&mut self, cx: &mut Context, reason: &str) {
        self.source.handle_not_opened(cx.clock.now.instant, reason);
        self.carry_out(cx);
    }

    /// The logon of this instance was not accepted.
    pub(super) fn not_logged_on(&mut self, cx: &mut Context, reason: &str) {
        self.source.handle_not_logged_on(cx.clock.now.instant, reason);
        self.carry_out(cx);
    }

    /// Checks that the user of a connection may have the topics of the link.
    ///
    /// # Errors
    /// The reason against it. It was logged.
    pub(super) fn check_user(&mut self, cx: &mut Context, user: &mut LinkUser) -> Result<(), String> {
        if user.may_have_all() {
            return Ok(());
        }
        for Offer { topic, .. } in offered(cx, &self.definition.route) {
            if let Err(denied) = cx.admit_replicated(user, &topic) {
                let reason = denied.reason();
                self.source.handle_share_refused(&reason);
                self.carry_out(cx);
                return Err(reason);
            }
        }
        Ok(())
    }

    /// There is a connection of the user: introduces this instance. `shared` is the address of the
    /// destination when it has made the connection.
    pub(super) fn begin(
        &mut self,
        cx: &mut Context,
        connection: ConnectionId,
        shared: Option<String>,
        user: LinkUser,
        (members, last): Introduced<'_>,
    ) {
        self.user = user;
        self.told = members.map_or(0, Membership::version);
        let offers = offered(cx, &self.definition.route);
        let introduction = Introduction {
            instance: &cx.config.name,
            group: cx.config.group(),
            started_ns: cx.started_ns(),
            topics: offers.iter().map(Offer::as_frame).collect(),
            excluded: self.definition.excluded().collect(),
            members: members.map_or_else(Vec::new, |members| members.told(last)),
        };
        self.source.begin(cx.clock.now.instant, Connection(connection.0), shared, introduction);
        self.carry_out(cx);
    }

    /// The connection takes more, or does not.
    pub(super) fn set_writable(&mut self, is_writable: bool) {
        self.source.handle_writable(is_writable);
    }

    /// Bytes arrived on the connection.
    pub(super) fn heard(&mut self, now: Instant) {
        self.source.handle_heard(now);
    }

    /// Takes a frame of the destination. Gives its introduction when the frame is this. `linked`
    /// has the instances of the other links, because one instance is one copy.
    pub(super) fn take(&mut self, cx: &mut Context, frame: &Frame<'_>, linked: &[String]) -> Option<Greeted> {
        let now = cx.clock.now.instant;
        let mut greeted = None;
        match frame {
            Frame::Welcome(welcome) if self.source.is_greeting() => {
                let names = [("the name of the destination", welcome.instance), ("its group", welcome.group)];
                let error = names.into_iter().find_map(|(what, name)| check_name(what, name).err());
                let error = error.map(|error| error.to_string()).or_else(|| {
                    let is_linked = linked.iter().any(|name| name == welcome.instance);
                    is_linked.then(|| format!("another link leads to the instance {:?}", welcome.instance))
                });
                match error {
                    Some(error) => self.source.refuse(now, &error),
                    None => greeted = self.source.handle_frame(now, &log_state(cx), frame),
                }
            }
            _ => greeted = self.source.handle_frame(now, &log_state(cx), frame),
        }
        self.carry_out(cx);
        if matches!(frame, Frame::Acknowledged { .. }) {
            self.report(cx);
        }
        greeted
    }

    /// A piece of the log was received from the destination.
    pub(super) fn has_run(&mut self, run: Run) {
        self.source.handle_run(run);
    }

    /// A frame of records of the destination was recorded here. `last` is its last record there.
    pub(super) fn note_last_there(&mut self, last: Mark) {
        self.source.handle_last_there(last);
    }

    /// The destination says which members it knows.
    pub(super) fn note_members(&mut self) {
        self.source.handle_members();
    }

    /// A read of records for the instance at the other end, after one position up to another one.
    fn reading(
        &self,
        cx: &Context,
        (peer, peer_group): (String, String),
        cursor: Cursor,
        (after, limit): (Position, Position),
    ) -> LinkReading {
        LinkReading {
            cursor,
            scanned: after,
            limit,
            definition: Arc::clone(&self.definition),
            peer,
            peer_group,
            greeted: self.source.greeted(),
            now: cx.clock.now.wall,
            replicable: self.user.replicable(),
            own_name: Arc::clone(&self.own_name),
            fills: false,
        }
    }

    /// `fills`: the log of the destination may lack records.
    fn read(&mut self, cx: &mut Context, fills: bool) {
        let before = self.source.scanned();
        let read = self.source.poll_read(cx.clock.now.instant, &log_state(cx), self.cursor.is_some());
        self.carry_out(cx);
        if self.source.scanned() != before {
            self.move_cursor();
        }
        let Some(Read { number, after, limit, is_short }) = read else { return };
        let Some(peer) = self.source.peer().map(|peer| (peer.name.clone(), peer.group.clone())) else {
            return;
        };
        let cursor = self.cursor.take().unwrap_or_else(|| {
            self.read_through = after;
            cx.log.reader.cursor(after)
        });
        let reading = LinkReading { fills, ..self.reading(cx, peer, cursor, (after, limit)) };
        let has_filter = self.definition.route.topics.iter().any(|topic| topic.filter.is_some());
        if is_short && !has_filter {
            return self.add_found(cx, number, Some(reading.run(cx.messages.unreadable.arena())));
        }
        let destination = self.number;
        cx.begin_job(
            move |arena| reading.run(arena),
            move |links: &mut Links, cx, _, found| links.read_done(cx, destination, number, found),
        );
    }

    /// The source has passed over records that came from the destination.
    fn move_cursor(&mut self) {
        let scanned = self.source.scanned();
        let is_far = scanned.get().saturating_sub(self.read_through.get()) > CURSOR_STEP_MAX;
        self.cursor.take_if(|_| is_far);
        if let Some(cursor) = &mut self.cursor {
            cursor.rest_at(scanned);
        }
    }

    /// A read on another thread is done; `None` after a bug.
    pub(super) fn read_done(&mut self, cx: &mut Context, number: u64, found: Option<LinkFound>) {
        if self.source.reading() == Some(number) {
            self.add_found(cx, number, found);
            cx.clock.wants_turn = true;
        }
    }

    fn add_found(&mut self, cx: &mut Context, number: u64, found: Option<LinkFound>) {
        let found = found.map(|LinkFound { frames, sent, scanned, cursor, last_there, denied }| {
            let denied = denied.and_then(|topic| cx.admit_replicated(&mut self.user, &topic).err());
            let (cursor, error) = match cursor {
                Ok(cursor) => (Some(cursor), denied.map(|denied| denied.reason())),
                Err(error) => (None, Some(error.to_string())),
            };
            (self.cursor, self.read_through) = (cursor, scanned);
            ReadFound { frames, sent, scanned, last_there, error }
        });
        self.source.handle_read(cx.clock.now.instant, &log_state(cx), number, found);
        self.carry_out(cx);
    }

    /// A message at `position` goes to the destination. It may be an old one that a publisher or
    /// another instance has sent again.
    #[inline]
    pub(super) fn expect(&mut self, position: Position, now: Instant) {
        self.source.expect(position, now);
    }

    /// A command decides whether the destination is waited for.
    ///
    /// # Errors
    /// The reason against it.
    pub(super) fn set_by_command(&mut self, cx: &mut Context, is_downgraded: bool) -> Result<(), String> {
        let result = self.source.handle_downgrade(is_downgraded);
        self.carry_out(cx);
        result
    }

    /// Sends nothing from now on.
    pub(super) fn pause(&mut self, cx: &mut Context) {
        self.source.handle_pause(cx.clock.now.instant);
        self.carry_out(cx);
    }

    /// Connects again after a pause. A destination with a gap gets the records that are in the log.
    pub(super) fn resume_by_command(&mut self, cx: &mut Context) {
        self.source.handle_resume(cx.clock.now.instant, &log_state(cx));
        self.carry_out(cx);
    }

    /// The connection is gone.
    pub(super) fn disconnected(&mut self, cx: &mut Context) {
        self.source.handle_disconnected(cx.clock.now.instant);
        self.carry_out(cx);
    }

    /// The link ends here. The connection may carry on the link from the destination.
    pub(super) fn lose(&mut self, cx: &mut Context, reason: &str) {
        self.source.lose(cx.clock.now.instant, reason);
        self.carry_out(cx);
    }

    fn carry_out(&mut self, cx: &mut Context) {
        while let Some(output) = self.source.poll_output() {
            match output {
                SourceOutput::Open { address } => {
                    let address = self.definition.settings.addresses[address].clone();
                    cx.outputs.push_back(Output::OpenLink { destination: self.number as u32, address });
                }
                SourceOutput::Send { connection, bytes } => {
                    cx.outputs.push_back(Output::Send { connection: ConnectionId(connection.0), bytes });
                }
                SourceOutput::WaitFor(is_waited_for) => {
                    cx.log.replicated.wait_for(self.number, is_waited_for);
                }
                SourceOutput::Rejected { bookmark, run } => self.rejected.push((bookmark, run)),
                SourceOutput::Answer { number, question } => self.questions.push((number, question)),
                SourceOutput::Give { number, ranges } => self.give(cx, number, ranges),
                SourceOutput::Note(event) => self.note(cx, event),
                SourceOutput::Turn => cx.clock.wants_turn = true,
            }
        }
        if !self.source.is_live() {
            self.cursor = None;
        }
    }

    fn note(&mut self, cx: &mut Context, event: SourceEvent) {
        let destination = self.definition.settings.name.clone();
        let event = match event {
            SourceEvent::Up { instance, group, after } => {
                Event::LinkUp { destination, instance, group, after: after.get() }
            }
            SourceEvent::CaughtUp => Event::LinkCaughtUp { destination },
            SourceEvent::Down { reason } => Event::LinkDown { destination, reason },
            SourceEvent::WaitedFor { is_waited_for, reason } => {
                Event::LinkWaitedFor { destination, is_waited_for, reason }
            }
            SourceEvent::Paused { is_paused } => Event::LinkPaused { destination, is_paused },
            SourceEvent::HasGap { after, first } => {
                let event = Event::LinkHasGap { destination, after: after.get(), first: first.get() };
                self.source.describe_error(event.to_string());
                event
            }
        };
        cx.note(event);
    }

    pub(super) fn stats(&self, cx: &Context) -> DestinationStats {
        let (settings, source) = (&self.definition.settings, &self.source);
        let counts = source.counts();
        DestinationStats {
            name: settings.name.clone(),
            instance: self.peer().filter(|_| source.is_live()).map(str::to_owned),
            address: source.address().to_owned(),
            addresses: settings.addresses.clone(),
            user: None,
            tls: None,
            state: match source.state() {
                SourceState::Refused => "refused",
                SourceState::Waiting => "waiting",
                SourceState::Connecting => "connecting",
                SourceState::CatchingUp => "catching_up",
                SourceState::Live => "live",
                SourceState::Paused => "paused",
                SourceState::Gap => "gap",
            },
            configured_sync_type: settings.sync_type,
            sync_type: match source.is_waited_for() {
                true => SyncType::Sync,
                false => SyncType::Async,
            },
            acknowledged: source.acknowledged().get(),
            scanned: source.scanned().get(),
            unacknowledged_bytes: source.unacknowledged_size() as u64,
            seconds_behind: source.age(cx.clock.now.instant).max(self.behind.age(cx)).as_secs_f64(),
            sent_count: counts.records,
            sent_bytes: counts.bytes,
            connect_count: counts.connects,
            conflict_count: 0,
            last_error: source.last_error().map(str::to_owned),
        }
    }
}

/// The log as the engine sees it.
fn log_state(cx: &Context) -> LogState {
    LogState {
        first: cx.log.reader.first(),
        appended: cx.log.appended(),
        persisted: cx.log.journal.persisted(),
        has_publishes: cx.log.has_publishes(),
        single_publish: cx.log.has_lone_publish().then_some(YIELD_MAX),
    }
}
