//! Links to other instances: records that are sent, records that arrive, and the progress of the
//! destinations (docs/replication.md).
//!
//! A link has one direction. The two links between a pair share a connection (`connection.rs`),
//! whichever of the two has made it. The engine is `quire-link`: the state machines of the source,
//! which `outgoing.rs` drives, and of the destination, which `incoming.rs` drives. The records come
//! from the log (`read.rs`), where the tests of `route.rs` choose them. The run loop records what
//! arrived, through the one intake.

mod behind;
mod check;
mod compare;
mod conflicts;
mod connection;
mod copies_file;
mod gap;
mod give;
mod incoming;
mod logon;
mod look_up;
mod members;
mod outgoing;
mod place;
mod read;
mod recent;
mod rejections;
mod summary;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::BrokerConfig;
use crate::access::LinkUser;
use crate::context::Context;
use crate::io::{ConnectionId, Event, Output};
use crate::replicated::Destinations;
use crate::slice::PASS;
use crate::stats::{DestinationStats, ReplicationStats, SourceStats};
use crate::tail::{Consumed, LogConsumer};
use crate::topic::TopicId;
use compare::Comparisons;
use conflicts::{Conflicts, Side};
use connection::Connection;
use copies_file::CopiesFile;
use gap::{Accepting, Gap};
use incoming::Incoming;
pub(crate) use look_up::look_up;
use members::Membership;
use outgoing::{Outgoing, Shared};
use place::Places;
use quire_command::LinkAction;
use quire_expression::filter::MessageContext;
use quire_expression::message_type::{Arena, MessageType};
use quire_expression::topic::TopicSelector;
use quire_journal::{Bookmark, InstancePath, JournalError, Position, Record, Timestamp};
use quire_link::{LinkPlace, LookedUp, Start};
use quire_types::time::Instant;
use recent::Recent;
use summary::{Asked, Asker};

use crate::config::links::{CHECKS, Definition, ReplicatedTopic, SyncType};
use crate::config::route::Route;
use quire_link::Greeted;
pub(crate) use quire_link::{Arrived, LinkRules, SentRecord, Taken};
use quire_wire::link::{EXCLUDED_MAX, Given, Mark, OFFERED_MAX, Offered};
use read::{LinkFound, LinkSearch};

/// How long clients wait after a start for news from the sync destinations, at most. They may have
/// messages that this instance lost.
const START_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(CHECKS.len() <= EXCLUDED_MAX);

/// Connections that other instances have made, at most: more than an instance has sources. The
/// driver reserves open files for them.
pub const LINKS_ACCEPTED_MAX: usize = 64;

/// The links of the instance.
pub(crate) struct Links {
    /// Those to the destinations, as the configuration has them.
    definitions: Arc<[Arc<Definition>]>,
    outgoing: Vec<Outgoing>,
    connections: Vec<Connection>,
    places: Places,
    conflicts: Conflicts,
    recent: Recent,
    comparisons: Comparisons,
    gap: Gap,
    accepting: Accepting,
    copies_order: Arc<copies_file::Order>,
    /// Questions about the messages of the log that are answered from memory.
    asked: VecDeque<Asked>,
    /// From the first turn of the process on, with links.
    members: Option<Membership>,
    /// Rejections of other instances that publishers were not told of, each with the run.
    rejections: Vec<(Bookmark, u64)>,
    arena: Arena,
    /// The last record that was recorded here, as far as the links were told.
    last: Option<Mark>,
    /// The first turn of the run.
    started: Option<Instant>,
    /// The instant after which clients wait no longer for instances that do not answer; `None` when
    /// it is past, or nothing waits.
    start_due: Option<Instant>,
}

impl Links {
    pub(crate) fn new(definitions: Vec<Definition>, cx: &mut Context) -> Self {
        let definitions: Arc<[_]> = definitions.into_iter().map(Arc::new).collect();
        let places = Places::new(&cx.log.journal);
        let saved = if definitions.is_empty() { Vec::new() } else { places.read() };
        let end = cx.log.journal.persisted();
        let own_name: Arc<str> = cx.config.name.as_str().into();
        let new_link = |(number, definition): (usize, &Arc<Definition>)| {
            // Beyond the end of the log the place is of a log that was replaced by an older copy.
            let is_usable = |(name, place): &&(String, LinkPlace)| {
                *name == definition.settings.name && place.resume_from <= end
            };
            let place = saved.iter().rfind(is_usable).map(|(_, place)| place.clone());
            let at_start = || LinkPlace { resume_from: start_of_log(cx), ..LinkPlace::default() };
            let all = definitions.iter().all(|other| sends_topics_of(definition, other));
            let place = place.unwrap_or_else(at_start);
            Outgoing::new(number, Arc::clone(&own_name), Arc::clone(definition), place, all)
        };
        let outgoing: Vec<_> = definitions.iter().enumerate().map(new_link).collect();
        let (gap, conflicts) = read_copies(cx);
        Links {
            definitions,
            outgoing,
            connections: Vec::new(),
            places,
            conflicts,
            recent: Recent::default(),
            comparisons: Comparisons::default(),
            gap,
            accepting: Accepting::default(),
            copies_order: Arc::default(),
            asked: VecDeque::new(),
            members: None,
            rejections: Vec::new(),
            arena: cx.messages.unreadable.arena(),
            last: None,
            started: None,
            start_due: None,
        }
    }

    /// Whether there is work for links at all.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.outgoing.is_empty() || !self.connections.is_empty()
    }

    /// Whether a destination gets messages of the topic. Their content is not tested.
    pub(crate) fn sends(&self, topic: &str, message_type: MessageType) -> bool {
        self.outgoing.iter().any(|link| link.definition.route.names(topic, message_type.name()))
    }

    /// Takes the bytes of a connection between instances.
    pub(crate) fn receive(&mut self, cx: &mut Context, id: ConnectionId, bytes: &[u8]) {
        let now = cx.clock.now.instant;
        let linked = self.linked_otherwise(id);
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else {
            return;
        };
        if let Some(logon) = &mut connection.logon {
            let step = logon.handle_bytes(now, bytes);
            return self.continue_logon(cx, id, step);
        }
        let mut link = self.outgoing.iter_mut().find(|link| link.connection() == Some(id));
        if let Some(link) = &mut link {
            link.heard(now);
        }
        let mut greeted = None;
        let received = connection.receive(now, bytes).and_then(|()| {
            connection.take_answers(|frame| {
                // Frames for a link that has ended were on their way.
                if let Some(link) = link.as_mut().filter(|link| link.connection() == Some(id)) {
                    greeted = link.take(cx, frame, &linked).or(greeted.take());
                }
            })
        });
        if let Err(reason) = received.map_err(|error| error.to_string()).and_then(|()| connection.count(cx)) {
            connection.incoming.break_off(cx, &reason);
        }
        let link = link.map(|link| (link.number, link.take_rejected(), link.take_questions()));
        if let Some((number, rejected, questions)) = link {
            for (question_number, question) in questions {
                self.ask(cx, Asker::Destination(number, question_number), &question);
            }
            greeted.into_iter().for_each(|greeted| self.greet(cx, id, number, greeted));
            if !rejected.is_empty() {
                self.note_rejected_by(cx, number, rejected);
            }
        }
        self.take_news(cx, id);
    }

    /// The instances of the links that are up, when the one of a connection is about to come up.
    fn linked_otherwise(&self, id: ConnectionId) -> Vec<String> {
        if !self.outgoing.iter().any(|link| link.connection() == Some(id) && link.is_greeting()) {
            return Vec::new();
        }
        self.outgoing
            .iter()
            .filter(|link| link.is_live())
            .filter_map(Outgoing::peer)
            .map(str::to_owned)
            .collect()
    }

    /// A destination has introduced itself.
    fn greet(&mut self, cx: &mut Context, id: ConnectionId, number: usize, greeted: Greeted) {
        for other in &mut self.outgoing {
            if other.number != number && other.peer() == Some(&greeted.instance) {
                other.forget_peer(cx);
            }
        }
        let link = &mut self.outgoing[number];
        link.set_sends_back(greeted.sends_back);
        if greeted.sends_back && link.start() == Start::Unknown {
            link.set_start(Start::Filling);
        } else if !greeted.sends_back {
            link.set_start(Start::Over);
        }
        // The new run may lack records that an earlier run of the instance has sent.
        for Connection { incoming, .. } in &mut self.connections {
            let is_earlier = incoming.source().is_some_and(|source| {
                *source.name == *greeted.instance && source.started_ns != greeted.started_ns
            });
            if is_earlier {
                incoming.end(cx, "the instance was started again");
            }
        }
        self.introduced(cx, id, greeted.members);
        self.note_contact();
    }

    /// The members that the other instance of a connection tells, when they have changed.
    fn take_news(&mut self, cx: &mut Context, id: ConnectionId) {
        let connection = self.connections.iter_mut().find(|connection| connection.id == id);
        // Before its introduction, an instance is not known.
        let Some(connection) = connection.filter(|connection| connection.peer.is_some()) else { return };
        match connection.take_news() {
            Ok(None) => (),
            Ok(Some(told)) => {
                if let Some(link) = self.outgoing.iter_mut().find(|link| link.connection() == Some(id)) {
                    link.note_members();
                }
                self.introduced(cx, id, told);
            }
            Err(error) => connection.incoming.break_off(cx, &error.to_string()),
        }
    }

    fn incoming_mut(&mut self, id: ConnectionId) -> Option<&mut Incoming> {
        let connection = self.connections.iter_mut().find(|connection| connection.id == id);
        connection.map(|connection| &mut connection.incoming)
    }

    /// The connection takes more, or does not.
    pub(crate) fn set_writable(&mut self, connection: ConnectionId, is_writable: bool) {
        if let Some(link) = self.outgoing.iter_mut().find(|link| link.connection() == Some(connection)) {
            link.set_writable(is_writable);
        }
    }

    pub(crate) fn disconnected(&mut self, cx: &mut Context, id: ConnectionId) {
        for mut connection in self.connections.extract_if(.., |connection| connection.id == id) {
            connection.forget(cx);
            if let Some(SourceStats { name: source, peer, .. }) = connection.incoming.stats(false) {
                cx.note(Event::LinkLost { source, peer });
            }
            if let Some(number) = connection.made_for.filter(|_| connection.logon.is_some()) {
                self.outgoing[number]
                    .not_opened(cx, "the connection was closed before the logon was answered");
            }
        }
        if let Some(link) = self.outgoing.iter_mut().find(|link| link.connection() == Some(id)) {
            link.disconnected(cx);
        }
    }

    /// The next frame of records that arrived. `None` while the journal takes no writes: the frames
    /// wait.
    pub(crate) fn next_arrived(&mut self, cx: &mut Context) -> Option<Arrived> {
        if cx.log.failure.is_some() || !self.members.as_ref().is_some_and(Membership::is_saved) {
            return None;
        }
        let mut index = 0;
        while let Some(connection) = self.connections.get_mut(index) {
            index += 1;
            let (id, arrived) = (connection.id, connection.incoming.next_arrived(cx));
            let heard = connection.incoming.take_heard();
            if arrived.is_some() {
                // Another source gets the next turn.
                self.connections.rotate_left(index);
            }
            self.heed(cx, id, heard);
            if arrived.is_some() {
                return arrived;
            }
        }
        None
    }

    /// The user of the instance that sent a frame. Give it back after the frame.
    pub(crate) fn take_user(&mut self, arrived: &Arrived) -> LinkUser {
        let incoming = self.incoming_mut(ConnectionId(arrived.connection().0));
        incoming.map(|incoming| std::mem::take(&mut incoming.user)).unwrap_or_default()
    }

    pub(crate) fn give_user_back(&mut self, arrived: &Arrived, user: LinkUser) {
        if let Some(incoming) = self.incoming_mut(ConnectionId(arrived.connection().0)) {
            incoming.user = user;
        }
    }

    /// The records of a frame were recorded. An error: one of them cannot be, and the link ends.
    pub(crate) fn taken(
        &mut self,
        cx: &mut Context,
        arrived: Arrived,
        taken: Taken,
        result: Result<(), String>,
    ) {
        let position = cx.log.appended();
        let mark = self.last.filter(|mark| mark.position == position);
        let (run, last) = (taken.run(position), arrived.last().filter(|_| result.is_ok()));
        if let Some(last) = last {
            self.note_last_of(arrived.source().name, Some(last.bookmark));
        }
        for link in self.outgoing.iter_mut().filter(|link| link.is_from_peer(&arrived)) {
            run.into_iter().for_each(|run| link.has_run(run));
            last.into_iter().for_each(|last| link.note_last_there(last));
        }
        let Some(incoming) = self.incoming_mut(ConnectionId(arrived.connection().0)) else { return };
        match result {
            Ok(()) => {
                incoming.taken(cx, arrived, mark, taken);
                if let Some((source, through, passed_on)) = incoming.recorded() {
                    cx.log.places.handle_records(&source.name, through, passed_on);
                }
            }
            Err(reason) => incoming.not_taken(cx, arrived, &reason),
        }
    }

    /// The rest of a frame, after `done` bytes of its records, waits for what the log has under
    /// these bookmarks.
    pub(crate) fn look_up(
        &mut self,
        cx: &mut Context,
        arrived: Arrived,
        begun: (usize, Taken),
        bookmarks: Vec<Bookmark>,
    ) {
        if let Some(incoming) = self.incoming_mut(ConnectionId(arrived.connection().0)) {
            incoming.look_up(cx, arrived, begun, bookmarks);
        }
    }

    /// The time of the turn is over after `done` bytes of the records of a frame. The next turn
    /// continues with them.
    pub(crate) fn suspend(&mut self, arrived: Arrived, done: usize, taken: Taken) {
        if let Some(incoming) = self.incoming_mut(ConnectionId(arrived.connection().0)) {
            incoming.suspend(arrived, done, taken);
        }
    }

    /// A record was appended. Gives the destinations that it goes to and that its sender waits for:
    /// the four routing tests. `path` is that of the record here.
    pub(crate) fn route<'a>(
        &mut self,
        cx: &Context,
        topic: TopicId,
        appended: (Position, Bookmark),
        path: InstancePath<'_>,
        context: impl Fn() -> Option<MessageContext<'a>>,
    ) -> Destinations {
        let (position, bookmark) = appended;
        self.last = Some(Mark { position, bookmark, time: cx.log.stamped });
        if !self.gap.is_empty() {
            self.gap.note_recorded(bookmark);
        }
        self.route_again(cx, topic, position, path, context)
    }

    /// As [`Links::route`], for a record that came again. It is at `position` or earlier.
    pub(crate) fn route_again<'a>(
        &mut self,
        cx: &Context,
        topic: TopicId,
        position: Position,
        path: InstancePath<'_>,
        context: impl Fn() -> Option<MessageContext<'a>>,
    ) -> Destinations {
        let known = cx.topics.topic(topic);
        let (name, message_type) = (&*known.name, known.recording.message_type);
        self.destinations_of(name, message_type, position, path, cx.clock.now.instant, context)
    }

    fn destinations_of<'a>(
        &mut self,
        topic: &str,
        message_type: MessageType,
        position: Position,
        path: InstancePath<'_>,
        now: Instant,
        context: impl Fn() -> Option<MessageContext<'a>>,
    ) -> Destinations {
        let mut destinations = Destinations::NONE;
        for (number, link) in self.outgoing.iter_mut().enumerate() {
            let route = &link.definition.route;
            let has_passed = |peer: &str| path.instances().any(|instance| instance.name == peer);
            if !route.passes_on(path)
                || route.has_passed(path)
                || link.peer().is_some_and(has_passed)
                || !route.takes(topic, message_type.code(), &mut self.arena, &context)
            {
                continue;
            }
            destinations.insert(number);
            link.expect(position, now);
        }
        destinations
    }

    /// A read for a destination is done.
    fn read_done(&mut self, cx: &mut Context, destination: usize, number: u64, found: Option<LinkFound>) {
        if let Some(link) = self.outgoing.get_mut(destination) {
            link.read_done(cx, number, found);
        }
    }

    /// A search for the oldest record that a destination lacks is done.
    fn searched(&mut self, cx: &mut Context, destination: usize, number: u64, found: Option<LinkSearch>) {
        if let Some(link) = self.outgoing.get_mut(destination) {
            link.searched(cx, number, found.as_ref());
        }
    }

    /// The search for the message that a source knows to be here is over.
    fn mark_found(
        &mut self,
        cx: &mut Context,
        connection: ConnectionId,
        number: u64,
        found: Option<(Position, Timestamp)>,
    ) {
        let introduction = (self.members.as_ref(), self.last.map(|last| last.bookmark));
        let found_by = self.connections.iter_mut().find(|each| each.id == connection);
        let Some(Connection { incoming, .. }) = found_by else { return };
        incoming.found(cx, number, found, introduction);
        let heard = incoming.take_heard();
        self.heed(cx, connection, heard);
    }

    /// The log was asked for records of a frame; `None` after a bug.
    fn looked_up(
        &mut self,
        cx: &mut Context,
        connection: ConnectionId,
        number: u64,
        found: Option<Result<LookedUp, JournalError>>,
    ) {
        let found = found.map_or_else(
            || Err("looking for records in the log failed".to_owned()),
            |found| found.map_err(|error| format!("a record that the log may have: {error}")),
        );
        if let Some(incoming) = self.incoming_mut(connection) {
            incoming.looked_up(cx, number, found);
        }
    }

    /// The messages that a destination asked for were read.
    fn given(
        &mut self,
        cx: &mut Context,
        destination: usize,
        number: u64,
        found: Option<Result<(Vec<u8>, Given), JournalError>>,
    ) {
        if let Some(link) = self.outgoing.get_mut(destination) {
            link.given(cx, number, found);
        }
    }

    /// A message of another instance is not recorded here, because of the settings.
    pub(crate) fn note_unrecorded(&mut self, bookmark: Bookmark) {
        self.comparisons.note_unrecorded(bookmark);
    }

    /// Compares the log with those of the sources.
    fn compare(&mut self, cx: &mut Context) {
        for connection in &mut self.connections {
            if connection.incoming.take_caught_up() {
                self.comparisons.want(false);
            }
        }
        let instances = cx.config.replication.instances.clone();
        let named = instances.iter().map(String::as_str);
        let expected: Vec<_> = self.outgoing.iter().filter_map(Outgoing::as_source).chain(named).collect();
        self.comparisons.advance(cx, &mut self.connections, &expected, &mut self.gap);
    }

    /// Acknowledges what is safe, connects, and sends what is new in the log.
    pub(crate) fn advance(&mut self, cx: &mut Context) {
        self.advance_asked(cx);
        // Also without connections: their last changes are to be saved.
        if !self.any() && self.members.is_none() {
            return;
        }
        let now = cx.clock.now.instant;
        let started = *self.started.get_or_insert(now);
        let deadline = cx.clock.slices.deadline(PASS);
        self.advance_logons(cx);
        let introduction = (self.members.as_ref(), self.last.map(|last| last.bookmark));
        let mut all_heard = Vec::new();
        for connection in &mut self.connections {
            connection.incoming.advance(cx, deadline, introduction);
            // It is less than before, or was counted when it came.
            let _ = connection.count(cx);
            all_heard.push((connection.id, connection.incoming.take_heard()));
        }
        for (id, heard) in all_heard {
            self.heed(cx, id, heard);
            // They came before the introduction was read.
            self.take_news(cx, id);
        }
        self.answer_new(cx);
        self.leave_broken(cx);
        self.advance_members(cx);
        cx.log.places.handle_reached(cx.log.served);
        for number in 0..self.outgoing.len() {
            let shared = self.shared_by(cx, number);
            let introduction = (self.members.as_ref(), self.last.map(|last| last.bookmark));
            self.outgoing[number].advance(cx, shared, introduction);
        }
        self.close_unused(cx);
        self.compare(cx);
        self.hold_logons(cx, started);
        self.save_places(cx);
    }

    /// An instance that connects can be reached again. It may have just started, and its clients
    /// wait for what it lacks.
    fn answer_new(&mut self, cx: &mut Context) {
        let introduction = (self.members.as_ref(), self.last.map(|last| last.bookmark));
        let mut is_contact = false;
        for connection in &mut self.connections {
            let Some(source) = connection.incoming.take_new().cloned() else { continue };
            is_contact = true;
            for (bookmark, run) in self.conflicts.passed_to(&source.name) {
                connection.incoming.reject(cx, bookmark, run);
            }
            // Another link to its group does not lead to it then.
            let is_linked = self.outgoing.iter().any(|link| link.is_live_with(&source.name));
            let leading = self.outgoing.iter_mut().filter(|link| link.leads_to(&source.name, &source.group));
            for link in leading.filter(|link| !is_linked || link.is_live_with(&source.name)) {
                link.try_now(cx.clock.now.instant);
                // Both have made a connection at the same time: one of the two links moves.
                let is_to_source = *link.definition.settings.name == *source.name;
                let has_another = link.connection().is_some_and(|other| other != connection.id);
                if is_to_source && has_another && *source.name < *cx.config.name {
                    let Some(shared) = connection.share(cx, link) else { continue };
                    link.begin(cx, shared.connection, Some(shared.address), shared.user, introduction);
                }
            }
        }
        if is_contact {
            self.note_contact();
        }
    }

    fn leave_broken(&mut self, cx: &mut Context) {
        for connection in self.connections.iter().filter(|connection| connection.incoming.is_broken()) {
            if let Some(link) = self.outgoing.iter_mut().find(|link| link.connection() == Some(connection.id))
            {
                link.lose(cx, "it sent bytes that are no frame of a link");
            }
        }
    }

    /// The connection over which the destination of a link sends its own records, if the link needs
    /// one.
    fn shared_by(&mut self, cx: &mut Context, number: usize) -> Option<Shared> {
        let Links { outgoing, connections, .. } = self;
        let link = &outgoing[number];
        if !link.wants_connection(cx.clock.now.instant) {
            return None;
        }
        let mut open = connections.iter_mut().filter(|connection| connection.incoming.is_open());
        let shared = open.find(|Connection { id, incoming, denied_links, .. }| {
            let Some(source) = incoming.source() else { return false };
            link.shares_with(&source.name, &source.group)
                && !denied_links.contains(&number)
                && !outgoing
                    .iter()
                    .any(|other| other.connection() == Some(*id) || other.is_live_with(&source.name))
        });
        shared?.share(cx, &mut outgoing[number])
    }

    /// Closes the connections that no link uses.
    fn close_unused(&mut self, cx: &mut Context) {
        let Links { connections, outgoing, .. } = self;
        connections.retain_mut(|connection| {
            let has_link = |link: &Outgoing| link.connection() == Some(connection.id);
            let is_used =
                connection.logon.is_some() || !connection.incoming.is_idle() || outgoing.iter().any(has_link);
            if !is_used {
                cx.outputs.push_back(Output::Close { connection: connection.id });
                connection.forget(cx);
            }
            is_used
        });
    }

    fn save_places(&mut self, cx: &mut Context) {
        if self.has_places() && self.places.is_due(cx.clock.now.instant) {
            self.outgoing.iter_mut().for_each(|link| link.look_at_retained(cx));
            let saved = self.saved(cx);
            let copies = self.changed_copies(cx);
            self.places.save(cx, saved, copies);
        }
    }

    fn saved(&self, cx: &Context) -> place::Saved {
        let places = self.outgoing.iter().map(|link| (link.definition.settings.name.clone(), link.place()));
        place::Saved { places: places.collect(), needs: self.needed_from(cx) }
    }

    /// The file of the members, the gap and the conflicts, when it does not have everything.
    fn changed_copies(&mut self, cx: &Context) -> Option<CopiesFile> {
        let members = self.members.as_mut()?;
        let has_conflicts = self.conflicts.take_changed();
        if !self.gap.take_changed() && !has_conflicts && !members.is_changed() {
            return None;
        }
        let saved = members.begin_save(cx);
        self.begin_accepting();
        Some(self.copies_file(cx, saved))
    }

    /// Whether there are places, members, conflicts or a changed gap to save.
    fn has_places(&self) -> bool {
        !self.outgoing.is_empty()
            || !self.conflicts.is_empty()
            || self.gap.is_changed()
            || self.members.as_ref().is_some_and(Membership::is_changed)
    }

    /// The places were written; false: that failed.
    fn places_written(&mut self, cx: &mut Context, is_written: bool) {
        self.places.written(is_written);
        if !is_written {
            self.conflicts.not_written();
            self.gap.not_written();
        }
        self.end_accepting(cx, is_written);
        if is_written && self.gap.is_changed() {
            // A command came meanwhile.
            self.places.look_now();
            cx.clock.wants_turn = true;
        }
        self.members.iter_mut().for_each(|members| members.written(is_written));
    }

    /// After a start, clients are let in when this instance has received its lost messages from the
    /// sync destinations. Otherwise a publisher would continue above messages that arrive later,
    /// and these would count as duplicates.
    fn hold_logons(&mut self, cx: &mut Context, started: Instant) {
        // Either of the two links of a pair can be made first, so that the source may have sent
        // everything before the greeting of the destination says that it sends.
        for link in self.outgoing.iter_mut().filter(|link| link.start() == Start::Filling) {
            let has_sent_all = |Connection { incoming, .. }: &Connection| {
                incoming.has_caught_up() && incoming.is_from(link.peer())
            };
            if self.connections.iter().any(has_sent_all) {
                link.set_start(Start::Over);
            }
        }
        let is_starting = self.outgoing.iter().any(|link| link.start() != Start::Over);
        let due = started + START_MAX;
        self.start_due = (is_starting && cx.clock.now.instant < due).then_some(due);
        let is_late = cx.clock.now.instant >= due;
        let is_held = self.outgoing.iter().any(|link| match link.start() {
            _ if link.definition.settings.sync_type == SyncType::Async => false,
            Start::Unknown => !is_late,
            Start::Filling => {
                let sends = |connection: &Connection| connection.incoming.is_from(link.peer());
                // It said that it sends. When it does not come, clients wait no longer than for an
                // instance that does not answer.
                !is_late || self.connections.iter().any(sends)
            }
            Start::Over => false,
        });
        let members = self.members.as_ref();
        let is_held = match members.is_some_and(Membership::is_filling) {
            true => members.is_some_and(Membership::holds_clients),
            false => is_held,
        };
        cx.clock.wants_turn |= cx.log.replicated.holds_logons && !is_held;
        cx.log.replicated.holds_logons = is_held;
        self.update_hold(cx);
    }

    /// When a link has something to do.
    pub(crate) fn next_timeout(&self, cx: &Context) -> Option<Instant> {
        let outgoing = self.outgoing.iter().filter_map(Outgoing::next_timeout);
        let incoming = self.connections.iter().filter_map(|connection| match &connection.logon {
            Some(logon) => Some(logon.poll_timeout()),
            None => connection.incoming.next_timeout(),
        });
        let places = self.places.due().filter(|_| self.has_places());
        let comparisons = self.comparisons.next_timeout(cx);
        let members = self.members.as_ref().and_then(Membership::next_timeout);
        let links = outgoing.chain(incoming).chain(self.start_due).chain(places);
        links.chain(comparisons).chain(members).min()
    }

    /// Changes the link to a destination, by command.
    ///
    /// # Errors
    /// The reason against it.
    pub(crate) fn act(
        &mut self,
        cx: &mut Context,
        destination: &str,
        action: LinkAction,
    ) -> Result<(), String> {
        if action == LinkAction::Compare {
            if destination != cx.config.name {
                return Err(format!("compare: the name is that of the server, {:?}", cx.config.name));
            }
            self.comparisons.want(true);
            // Without links, no turn does it.
            self.compare(cx);
            return Ok(());
        }
        if action == LinkAction::Admit {
            self.admit(cx);
            return Ok(());
        }
        let is_named = |link: &&mut Outgoing| link.definition.settings.name == destination;
        let Some(link) = self.outgoing.iter_mut().find(is_named) else {
            let names = self.outgoing.iter().map(|link| format!("{:?}", link.definition.settings.name));
            let names = names.collect::<Vec<_>>().join(", ");
            let names = if names.is_empty() { "none" } else { &names };
            return Err(format!(
                "no destination has the name {destination:?}; the destinations are: {names}"
            ));
        };
        match action {
            LinkAction::Downgrade => link.set_by_command(cx, true),
            LinkAction::Upgrade => link.set_by_command(cx, false),
            LinkAction::Pause => {
                link.pause(cx);
                Ok(())
            }
            LinkAction::Resume => {
                link.resume_by_command(cx);
                Ok(())
            }
            // See above, and `accept`.
            LinkAction::Admit | LinkAction::Compare | LinkAction::Accept => Ok(()),
        }
    }

    pub(crate) fn stats(&self, cx: &Context) -> ReplicationStats {
        let destinations: Vec<_> = self.outgoing.iter().map(|link| self.stats_of(cx, link)).collect();
        let sources = self.source_stats();
        let members = self.members.as_ref();
        let (missing_ranges, accepted_ranges) = self.gap.ranges();
        ReplicationStats {
            name: cx.config.name.clone(),
            group: cx.config.group().to_owned(),
            log: members.map_or(0, Membership::log),
            required_acks: cx.config.replication.required_acks,
            state: self.state(cx, &destinations, &sources),
            holds_logons: cx.log.replicated.holds_logons,
            is_admitted: members.is_some_and(Membership::is_admitted),
            not_heard: members.map_or_else(Vec::new, Membership::not_heard),
            destinations,
            sources,
            missing: self.gap.missing_count(),
            missing_ranges,
            accepted: self.gap.accepted_count(),
            accepted_ranges,
            missing_total: self.gap.total(),
            missing_publishers: self.gap.publishers(),
            comparing: self.comparisons.is_comparing(),
            comparisons: self.comparisons.round_count(),
        }
    }

    /// The state of the log among its copies: the first of these that applies.
    fn state(&self, cx: &Context, to: &[DestinationStats], from: &[SourceStats]) -> &'static str {
        let has = |state: &str| to.iter().any(|link| link.state == state);
        let has_gap = has("gap") || self.gap.missing_count() > 0;
        let has_conflicts =
            to.iter().any(|link| link.conflict_count > 0) || from.iter().any(|link| link.conflict_count > 0);
        let is_source_live =
            |name: &String| from.iter().any(|link| link.name == *name && link.state == "live");
        let is_away = to.iter().any(|link| !matches!(link.state, "live" | "catching_up"))
            || !cx.config.replication.instances.iter().all(is_source_live);
        match () {
            () if self.members.as_ref().is_some_and(Membership::is_filling) => "filling",
            () if has_gap => "gap",
            () if has_conflicts => "conflict",
            () if has("refused") => "refused",
            () if is_away => "away",
            () => "live",
        }
    }

    /// The connected sources, and those that are away and had conflicts.
    fn source_stats(&self) -> Vec<SourceStats> {
        let connected = self.connections.iter().filter_map(|each| each.incoming.stats(each.tls));
        let count = |name: &str| self.conflicts.count(Side::Source, name);
        let has_gap = self.gap.missing_count() > 0;
        let connected = connected.map(|stats| SourceStats {
            conflict_count: count(&stats.name),
            state: if has_gap && stats.state == "live" { "gap" } else { stats.state },
            ..stats
        });
        let mut sources: Vec<_> = connected.collect();
        for (name, conflict_count) in self.conflicts.instances(Side::Source) {
            if !sources.iter().any(|stats| stats.name == name) {
                let name = name.to_owned();
                sources.push(SourceStats { name, state: "away", conflict_count, ..SourceStats::default() });
            }
        }
        sources
    }

    fn stats_of(&self, cx: &Context, link: &Outgoing) -> DestinationStats {
        let connection = self.connections.iter().find(|connection| Some(connection.id) == link.connection());
        DestinationStats {
            user: connection.and_then(|each| each.incoming.user.name.as_deref().map(str::to_owned)),
            tls: connection.map(|each| each.tls),
            conflict_count: self.conflicts.count(Side::Destination, &link.definition.settings.name),
            ..link.stats(cx)
        }
    }

    /// Ends all links: the instance stops.
    pub(crate) fn close(&mut self, cx: &mut Context) {
        for Connection { id, .. } in &self.connections {
            cx.outputs.push_back(Output::Close { connection: *id });
        }
    }

    /// Saves where the destinations are. Waits for the disk.
    ///
    /// # Errors
    /// That of the journal.
    pub(crate) fn save(&self, cx: &Context) -> Result<(), JournalError> {
        self.write_copies(cx)?;
        if self.outgoing.is_empty() {
            return Ok(());
        }
        self.places.write_now(self.saved(cx))
    }
}

/// The gap and the conflicts that an earlier run saved. Publishers are not confirmed what was
/// rejected.
fn read_copies(cx: &mut Context) -> (Gap, Conflicts) {
    if !cx.log.has_links {
        return (Gap::default(), Conflicts::default());
    }
    let found = copies_file::read(&cx.log.journal);
    let conflicts = Conflicts::of_bytes(&found.conflicts);
    conflicts.rejected().for_each(|(bookmark, run)| cx.log.replicated.reject(bookmark, run));
    (Gap::of_bytes(&found.gap), conflicts)
}

/// Whether a link sends every topic that another one sends, with the same messages.
fn sends_topics_of(link: &Definition, other: &Definition) -> bool {
    let sends = |topic: &ReplicatedTopic| {
        link.settings.topics.iter().any(|own| {
            let is_same = own.name == topic.name && own.message_type == topic.message_type;
            is_same && (own.filter.is_none() || own.filter == topic.filter)
        })
    };
    other.settings.topics.iter().all(sends)
}

/// The position before the first record of the log.
fn start_of_log(cx: &Context) -> Position {
    Position::new(cx.log.reader.first().get() - 1)
}

impl LogConsumer for Links {
    fn is_following(&self, _: &Context) -> bool {
        false
    }

    fn on_record(&mut self, _: &mut Context, _: TopicId, _: &Record<'_>) -> Consumed {
        Consumed::default()
    }

    fn on_unreadable(&mut self, _: &mut Context, _: Position, _: &JournalError) {}

    fn needed_from(&self, cx: &Context) -> Option<Position> {
        self.outgoing.iter().map(|link| link.needed_from(cx)).min()
    }
}

/// A topic that is offered to a destination.
pub(super) struct Offer {
    topic: String,
    message_type: &'static str,
    key: String,
}

impl Offer {
    fn as_frame(&self) -> Offered<'_> {
        Offered { topic: &self.topic, message_type: self.message_type, key: &self.key }
    }
}

/// The topics that the route sends: those that it names, and those that it matches of the log and
/// of the queues in the configuration. The log has no message for a new queue, and the destination
/// is to check the queue before the first one.
fn offered(cx: &Context, route: &Route) -> Vec<Offer> {
    let mut offers = Vec::new();
    for topic in &route.topics {
        let message_type = topic.message_type.name();
        let offer =
            |name: &str| Offer { topic: name.to_owned(), message_type, key: key_of(&cx.config, name) };
        match &topic.selector {
            TopicSelector::Name(name) => offers.push(offer(name)),
            TopicSelector::Pattern(pattern) => {
                let mut names: BTreeSet<Arc<str>> = BTreeSet::new();
                for queue in cx.config.queues.iter().filter(|queue| queue.message_type == message_type) {
                    let underlying = queue.underlying_topic.as_deref().unwrap_or(&queue.name);
                    if let Ok(TopicSelector::Name(name)) = TopicSelector::new(underlying) {
                        names.insert(name);
                    }
                }
                names.extend(cx.log.journal.topics_after("", cx.config.limits.max_topics as usize));
                offers.extend(names.iter().filter(|name| pattern.matches(name)).map(|name| offer(name)));
            }
        }
    }
    offers.truncate(OFFERED_MAX);
    offers
}

/// The rule of the keys of a last-value topic, as both instances write it: the fields, joined by
/// commas, with the domain when the configuration names one. Empty for other topics.
fn key_of(config: &BrokerConfig, topic: &str) -> String {
    let is_named = |name: &str| match TopicSelector::new(name) {
        Ok(selector) => selector.matches(topic),
        Err(_) => false,
    };
    let settings = config.sow_topics.iter().find(|settings| match &settings.pattern {
        Some(pattern) => is_named(pattern),
        None => settings.name == topic,
    });
    settings.map_or_else(String::new, |settings| match &settings.key_domain {
        _ if settings.key.is_empty() => "supplied by publishers".to_owned(),
        Some(domain) => format!("{} in the domain {domain}", settings.key.join(",")),
        None => settings.key.join(","),
    })
}
