//! The instances that replicate to each other, and the hold of logons while the log may lack
//! records (docs/internals/copies.md, *States, and when clients are let in*). The engine is
//! `quire_link::Members`: this drives it with the introductions and the marks of the links, keeps
//! its state in `copies.place`, and carries out what it asks for.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quire_command::Code;
use quire_journal::{Bookmark, JournalError, Position};
use quire_link::{
    KeptMark, MemberInfo, Members, MembersEvent, MembersOutput, NamedInstance, NotHeard, Place, Places,
    PlacesFrame, log_number,
};
use quire_types::time::Instant;
use quire_wire::link::Member;

use super::Links;
use super::connection::Connection;
use super::copies_file::{self, CopiesFile, FoundCopies, SavedCopies};
use super::outgoing::Outgoing;
use crate::config::links::{Definition, check_name};
use crate::context::Context;
use crate::io::{ConnectionId, Event, Output};
use crate::session::Session;
use crate::stats::NotHeardStats;

/// How often the log of the server may name the members that were not heard.
const NAMED_INTERVAL: Duration = Duration::from_secs(5);

/// News of another instance that a link was given.
pub(super) enum Heard {
    /// The source has introduced itself and the instances that it knows.
    Introduced(Vec<MemberInfo>),
    /// The log here has lost a message. The source had seen it.
    LostRecord,
    /// An instance has sent everything that it had.
    Mark { mark: KeptMark, is_whole: bool },
    /// The places of instances after the records before.
    Places(PlacesFrame),
}

/// See the documentation of the module.
pub(super) struct Membership {
    engine: Members,
    /// Marks that came. Each counts when the log is on the disk up to its position.
    marks: VecDeque<(Position, KeptMark, bool)>,
    /// The identity of the journal directory.
    directory: u64,
    /// The version of the engine that `copies.place` has; 0: not known.
    saved: u64,
    /// The number of the log that the file has.
    saved_log: u64,
    /// The members that the log of the server named last as not heard, and when it may name others.
    named: Vec<NotHeard>,
    name_due: Option<Instant>,
    /// The destinations that get everything which a destination of this instance gets.
    whole_destinations: Vec<String>,
}

impl Membership {
    /// Of the process that starts. Writes the number of the log before anything is recorded.
    pub(super) fn begin(cx: &mut Context, definitions: &[impl AsRef<Definition>]) -> Self {
        let directory = cx.log.journal.sidecars().directory_id();
        let end = cx.log.journal.persisted();
        let found =
            if cx.log.has_links { copies_file::read(&cx.log.journal) } else { FoundCopies::default() };
        let begins = reason_to_fill(&found, directory, end);
        let mut saved = found.saved.unwrap_or_default().members;
        let now_ns = cx.clock.now.wall.as_ns();
        if begins.is_some() {
            saved.log = log_number(now_ns, saved.log);
        } else if saved.log == 0 {
            // An earlier version has written the log, or it had no links.
            saved.log = now_ns;
        }
        let destinations = definitions.iter().map(|definition| {
            let settings = &definition.as_ref().settings;
            match &settings.group {
                Some(group) => NamedInstance::Group(group.clone()),
                None => NamedInstance::Destination(settings.name.clone()),
            }
        });
        let instances = cx.config.replication.instances.iter().cloned().map(NamedInstance::Instance);
        let own = MemberInfo {
            name: cx.config.name.clone(),
            group: cx.config.group().to_owned(),
            started_ns: cx.started_ns(),
            named: destinations.chain(instances).collect(),
            ..MemberInfo::default()
        };
        let is_whole = |definition: &Definition| {
            let mut others = definitions.iter();
            others.all(|other| super::sends_topics_of(definition, other.as_ref()))
        };
        let whole = definitions.iter().map(AsRef::as_ref).filter(|definition| is_whole(definition));
        // Of a group, only one instance gets the messages.
        let whole = whole.filter(|definition| definition.settings.group.is_none());
        let whole_destinations = whole.map(|definition| definition.settings.name.clone()).collect();
        let engine = Members::new(own, saved, begins, end);
        let name_due = engine.is_filling().then(|| cx.clock.now.instant + NAMED_INTERVAL);
        Membership {
            engine,
            marks: VecDeque::new(),
            directory,
            saved: 0,
            saved_log: 0,
            named: Vec::new(),
            name_due,
            whole_destinations,
        }
    }

    /// The number of the log.
    pub(super) fn log(&self) -> u64 {
        self.engine.log()
    }

    /// Whether clients are not let in.
    pub(super) fn holds_clients(&self) -> bool {
        self.engine.holds_clients()
    }

    /// Whether the log may lack records.
    pub(super) fn is_filling(&self) -> bool {
        self.engine.is_filling()
    }

    /// Whether the log of another instance may lack records.
    pub(super) fn fills(&self, peer: Option<&str>) -> bool {
        peer.is_some_and(|peer| self.engine.is_member_filling(peer))
    }

    /// The introduction of this instance and of those that it knows. `last` is the last message of
    /// the log.
    pub(super) fn told(&self, last: Option<Bookmark>) -> Vec<Member<'_>> {
        let mut told: Vec<_> = self.engine.told().map(MemberInfo::as_frame).collect();
        told[0].last = last.or(told[0].last);
        told
    }

    /// Changes with all news for other instances.
    pub(super) fn version(&self) -> u64 {
        self.engine.version()
    }

    /// Whether `copies.place` has the number of the log.
    pub(super) fn is_saved(&self) -> bool {
        self.saved_log == self.engine.log()
    }

    /// Whether `copies.place` lacks something.
    pub(super) fn is_changed(&self) -> bool {
        self.saved != self.engine.version()
    }

    /// The state to save now.
    pub(super) fn begin_save(&mut self, cx: &Context) -> SavedCopies {
        self.saved = self.engine.version();
        self.saved_copies(cx)
    }

    pub(super) fn saved_copies(&self, cx: &Context) -> SavedCopies {
        let end = cx.log.journal.persisted();
        SavedCopies { members: self.engine.saved(), directory: self.directory, end }
    }

    /// The file was written, or the write failed: the next one comes soon.
    pub(super) fn written(&mut self, is_written: bool) {
        match is_written {
            true => self.saved_log = self.engine.log(),
            false => self.saved = 0,
        }
    }

    /// The marks to send over a link, each with whether the link sends everything that can be
    /// missing at its destination.
    pub(super) fn marks_for(&self, link: &Outgoing) -> Vec<(KeptMark, bool)> {
        let Some(peer) = link.peer() else { return Vec::new() };
        let mut marks = self.engine.marks().filter(|mark| mark.origin != peer).peekable();
        if marks.peek().is_none() {
            return Vec::new();
        }
        let route = &link.definition.route;
        let groups = self.engine.groups_before(peer);
        let passes_on = groups.is_some_and(|groups| groups.iter().all(|group| route.passes_on_from(group)));
        let is_whole = passes_on && link.sends_all_topics;
        marks.map(|mark| (mark.clone(), is_whole)).collect()
    }

    /// The places to send over a link at a position of the log here. `None`: the link leaves out
    /// records that another one sends, or the log here may lack some.
    pub(super) fn places_for(
        &self,
        link: &Outgoing,
        position: Position,
        places: &Places,
    ) -> Option<PlacesFrame> {
        let peer = link.peer()?;
        if self.is_filling() || !self.is_saved() || !link.sends_all_topics {
            return None;
        }
        let senders = self.engine.senders_before(peer)?;
        let others = senders.into_iter().filter(|(_, group)| !link.definition.route.passes_on_from(group));
        // A log that was lost and filled again has the messages of its former log that are here.
        let required = others.map(|(name, _)| {
            let is_filled_from_here = self.whole_destinations.iter().any(|whole| *whole == *name);
            places.required(name).filter(|_| is_filled_from_here)
        });
        let (taken_at, known) = places.current();
        let known = known.iter().filter(|(name, _)| ***name != *peer && taken_at <= position);
        Some(PlacesFrame {
            place: Place { log: self.log(), position },
            known: known.map(|(name, place)| (Arc::clone(name), *place)).collect(),
            required: required.collect(),
        })
    }

    /// The members that were not heard, for figures.
    pub(super) fn not_heard(&self) -> Vec<NotHeardStats> {
        let stats = |not_heard: NotHeard| NotHeardStats {
            name: not_heard.name,
            is_group: not_heard.is_group,
            last: not_heard.last.map(|last| last.to_string()),
        };
        self.engine.not_heard().into_iter().map(stats).collect()
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.engine.is_admitted()
    }

    /// Why a client is not let in; `None`: it is let in.
    pub(super) fn reason(&self) -> Option<String> {
        self.holds_clients().then(|| {
            format!(
                "the instance {:?} takes no clients yet: its log may lack messages that other instances have. It has not \
                 heard everything from {}. `quire replication ls` shows the state, and `quire replication admit` lets \
                 clients in without the missing messages",
                self.engine.name(),
                describe(&self.engine.not_heard())
            )
        })
    }

    /// Whether clients wait, and when the log of the server may name the members not heard.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.name_due
    }

    /// Names the members that were not heard in the log of the server, when others are to be named.
    fn name_not_heard(&mut self, cx: &mut Context) {
        let now = cx.clock.now.instant;
        if self.name_due.take_if(|due| *due <= now).is_none() {
            return;
        }
        if self.engine.holds_clients() {
            self.name_due = Some(now + NAMED_INTERVAL);
            let not_heard = self.engine.not_heard();
            let names = |list: &[NotHeard]| list.iter().map(|each| each.name.clone()).collect::<Vec<_>>();
            if names(&not_heard) != names(&self.named) {
                cx.note(Event::ClientsWait { members: describe(&not_heard) });
                self.named = not_heard;
            }
        }
    }
}

/// Why the log is to be filled from now on; `None`: it has everything that it had.
fn reason_to_fill(found: &FoundCopies, directory: u64, end: Position) -> Option<&'static str> {
    match &found.saved {
        // It could have said that the log lacks messages.
        None if found.is_unreadable => Some("its file copies.place cannot be read"),
        None if end == Position::ZERO => Some("its log is new"),
        // An earlier version has written it, or it had no links.
        None => None,
        Some(saved) if saved.directory != 0 && directory != 0 && saved.directory != directory => {
            Some("its journal directory is a copy, such as a restored backup")
        }
        Some(saved) if end < saved.end => Some("its log ends before the position that it had"),
        Some(_) => None,
    }
}

/// The names of members, each with its last message that is known.
fn describe(not_heard: &[NotHeard]) -> String {
    let name = |each: &NotHeard| {
        let kind = if each.is_group { "the group " } else { "" };
        match each.last {
            Some(last) => format!("{kind}{:?} (last known message {last})", each.name),
            None => format!("{kind}{:?}", each.name),
        }
    };
    let names: Vec<_> = not_heard.iter().map(name).collect();
    if names.is_empty() { "no instance".to_owned() } else { names.join(", ") }
}

impl Links {
    /// The first turn of the process.
    pub(crate) fn begin(&mut self, cx: &mut Context) {
        if self.members.is_some() || !cx.log.has_links {
            return;
        }
        let members = self.members.insert(Membership::begin(cx, &self.definitions));
        cx.log.number = members.log();
        self.gap.compare_with(&cx.log.journal);
        self.gap.event().into_iter().for_each(|event| cx.note(event));
        self.save_copies(cx);
        self.follow_members(cx);
        self.update_hold(cx);
    }

    /// Writes `copies.place` now, when the members have changed. Waits for the disk. Until it has
    /// the number of the log, nothing that arrives is recorded: after a restart, a part of the log
    /// would count as the whole.
    pub(super) fn save_copies(&mut self, cx: &Context) {
        let Some(members) = self.members.as_mut().filter(|members| members.is_changed()) else { return };
        let saved = members.begin_save(cx);
        let is_written = self.copies_file(cx, saved).write().is_ok();
        self.members.iter_mut().for_each(|members| members.written(is_written));
    }

    /// The file at the stop.
    pub(super) fn write_copies(&self, cx: &Context) -> Result<(), JournalError> {
        let Some(members) = &self.members else { return Ok(()) };
        self.copies_file(cx, members.saved_copies(cx)).write()
    }

    /// The file with everything that it is to have now.
    pub(super) fn copies_file(&self, cx: &Context, saved: SavedCopies) -> CopiesFile {
        let (gap, conflicts) = (self.gap.encoded(), self.conflicts.encoded());
        let (order, number) = (Arc::clone(&self.copies_order), self.copies_order.next());
        CopiesFile { files: cx.log.journal.sidecars(), order, number, saved, gap, conflicts }
    }

    /// Takes news from the link of a connection.
    pub(super) fn heed(&mut self, cx: &mut Context, id: ConnectionId, heard: Vec<Heard>) {
        for heard in heard {
            let now_ns = cx.clock.now.wall.as_ns();
            let Some(members) = &mut self.members else { return };
            match heard {
                Heard::Introduced(told) => {
                    if let Some(source) = told.first() {
                        cx.log.places.handle_link(&source.name);
                    }
                    self.introduced(cx, id, told);
                }
                Heard::LostRecord => members.engine.handle_lost_record(now_ns),
                Heard::Mark { mark, is_whole } => {
                    members.marks.push_back((cx.log.appended(), mark, is_whole));
                }
                Heard::Places(frame) => self.take_places(cx, id, frame),
            }
            self.follow_members(cx);
        }
    }

    /// The other instance of a connection has introduced itself, or tells what has changed.
    pub(super) fn introduced(&mut self, cx: &mut Context, id: ConnectionId, told: Vec<MemberInfo>) {
        let Some((name, log)) = told.first().map(|first| (first.name.clone(), first.log)) else { return };
        let is_later = |connection: &&Connection| {
            let later = connection.peer.as_ref().is_some_and(|(other, later)| *other == name && *later > log);
            connection.id != id && later
        };
        if self.connections.iter().any(|connection| is_later(&connection)) {
            let reason = format!("two instances have the name {name:?}, and the other one has the later log");
            return self.end_links(cx, id, &reason);
        }
        let is_valid = |member: &MemberInfo| {
            let named = member.named.iter().map(|named| match named {
                NamedInstance::Destination(name)
                | NamedInstance::Group(name)
                | NamedInstance::Instance(name) => name,
            });
            let mut names = [&member.name, &member.group].into_iter().chain(named);
            names.all(|name| check_name("a name of an instance", name).is_ok())
        };
        let told: Vec<_> = told.into_iter().filter(is_valid).collect();
        if let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) {
            connection.peer = Some((name, log));
            connection.members.clone_from(&told);
        }
        let Some(members) = &mut self.members else { return };
        members.engine.handle_told(cx.clock.now.wall.as_ns(), told, cx.log.appended());
        self.follow_members(cx);
    }

    /// The source of a connection says its places. Those of instances that are not members are
    /// dropped.
    fn take_places(&mut self, cx: &mut Context, id: ConnectionId, mut frame: PlacesFrame) {
        let connection = self.connections.iter().find(|connection| connection.id == id);
        let source = connection.and_then(|connection| connection.incoming.source());
        let (Some(source), Some(members)) = (source, &self.members) else { return };
        if members.engine.log_of(&source.name) != frame.place.log {
            return;
        }
        let names = members.engine.names();
        frame.known.retain(|name, _| names.contains(&**name));
        let appended = cx.log.appended();
        cx.log.places.handle_places(&source.name, frame, appended, members.engine.name());
    }

    /// Ends both links of a connection, and says why.
    fn end_links(&mut self, cx: &mut Context, id: ConnectionId, reason: &str) {
        if let Some(incoming) = self.incoming_mut(id) {
            incoming.end(cx, reason);
        }
        if let Some(link) = self.outgoing.iter_mut().find(|link| link.connection() == Some(id)) {
            link.lose(cx, reason);
        }
    }

    /// A link to or from another instance is open.
    pub(super) fn note_contact(&mut self) {
        if let Some(members) = &mut self.members {
            members.engine.handle_contact();
        }
    }

    /// The last message of another instance that is known.
    pub(super) fn note_last_of(&mut self, instance: &str, last: Option<Bookmark>) {
        if let Some(members) = &mut self.members {
            members.engine.note_last(instance, last);
        }
    }

    /// Carries out what the engine asks for.
    fn follow_members(&mut self, cx: &mut Context) {
        while let Some(output) = self.members.as_mut().and_then(|members| members.engine.poll_output()) {
            match output {
                MembersOutput::DropOlder { name, log } => {
                    let is_older = |connection: &Connection| {
                        connection.peer.as_ref().is_some_and(|(other, older)| *other == name && *older < log)
                    };
                    self.drop_connections(cx, is_older);
                }
                MembersOutput::BeginAgain => self.begin_again(cx),
                MembersOutput::Note(MembersEvent::Filling { reason }) => {
                    cx.note(Event::LogFilling { reason });
                }
                MembersOutput::Note(MembersEvent::Complete) => {
                    self.places.look_now();
                    cx.note(Event::LogComplete);
                }
                MembersOutput::Note(MembersEvent::NameUsedTwice) => {
                    cx.note(Event::NameUsedTwice { name: cx.config.name.clone() });
                }
            }
        }
    }

    /// The log has another number: the links begin again, and clients wait. The file has the number
    /// before anything else is recorded.
    fn begin_again(&mut self, cx: &mut Context) {
        self.save_copies(cx);
        self.drop_connections(cx, |_| true);
        if let Some(members) = &mut self.members {
            (cx.log.number, cx.log.places) = (members.log(), Places::default());
            members.marks.clear();
            members.name_due = Some(cx.clock.now.instant + NAMED_INTERVAL);
        }
        self.update_hold(cx);
        self.end_clients(cx);
    }

    /// Closes connections. Bytes that came over them and were not read are dropped.
    fn drop_connections(&mut self, cx: &mut Context, is_dropped: impl Fn(&Connection) -> bool) {
        for mut connection in self.connections.extract_if(.., |connection| is_dropped(connection)) {
            connection.forget(cx);
            if let Some(link) = self.outgoing.iter_mut().find(|link| link.connection() == Some(connection.id))
            {
                link.disconnected(cx);
            }
            if let Some(number) = connection.made_for.filter(|_| connection.logon.is_some()) {
                self.outgoing[number]
                    .not_opened(cx, "the connection was closed before the logon was answered");
            }
            cx.outputs.push_back(Output::Close { connection: connection.id });
        }
        cx.clock.wants_turn = true;
    }

    /// Does what is due of the members: takes the marks before which everything is on the disk, and
    /// tells other instances what has changed.
    pub(super) fn advance_members(&mut self, cx: &mut Context) {
        let Some(members) = &mut self.members else { return };
        let (persisted, now_ns) = (cx.log.journal.persisted(), cx.clock.now.wall.as_ns());
        let open = self.connections.iter().filter(|connection| connection.incoming.is_open());
        let sources = || open.clone().filter_map(|each| each.incoming.source());
        if !members.engine.is_connected_to(sources().map(|source| &*source.name)) {
            let names: BTreeSet<String> = sources().map(|source| source.name.to_string()).collect();
            members.engine.set_connected(names, cx.log.appended());
            // A source that no configuration names is a member while it is connected. Its earlier
            // news were dropped.
            for connection in self.connections.iter().filter(|each| each.incoming.is_open()) {
                members.engine.handle_told(now_ns, connection.members.iter().cloned(), cx.log.appended());
            }
        }
        while let Some((_, mark, is_whole)) = members.marks.pop_front_if(|(after, ..)| *after <= persisted) {
            members.engine.handle_mark(now_ns, mark, is_whole, cx.log.appended());
        }
        members.name_not_heard(cx);
        self.follow_members(cx);
        self.tell_members(cx);
    }

    fn tell_members(&mut self, cx: &mut Context) {
        let Links { connections, outgoing, members, last, .. } = self;
        let Some(members) = members else { return };
        let version = members.engine.version();
        for connection in connections {
            let link = outgoing.iter().find(|link| link.connection() == Some(connection.id));
            let (told_by_hello, is_live) = link.map_or((0, false), |link| (link.told, link.is_live()));
            connection.told = connection.told.max(connection.incoming.told()).max(told_by_hello);
            if connection.told != version && (connection.incoming.is_open() || is_live) {
                connection.told = version;
                connection.tell(cx, members.told(last.map(|last| last.bookmark)));
            }
        }
    }

    /// An operator lets clients in.
    pub(super) fn admit(&mut self, cx: &mut Context) {
        let Some(members) = self.members.as_mut().filter(|members| members.holds_clients()) else { return };
        let not_heard = members.engine.handle_admit();
        cx.note(Event::ClientsAdmitted { members: describe(&not_heard) });
        self.save_copies(cx);
        self.update_hold(cx);
        cx.clock.wants_turn = true;
    }

    /// Holds clients, or lets them in.
    pub(super) fn update_hold(&mut self, cx: &mut Context) {
        let reason = self.members.as_ref().and_then(Membership::reason);
        cx.log.replicated.holds_logons |= reason.is_some();
        cx.log.replicated.not_ready = reason.map(Into::into);
    }

    /// Disconnects the clients: the log lacks messages that they may have heard of.
    fn end_clients(&mut self, cx: &mut Context) {
        let Some(reason) = cx.log.replicated.not_ready.clone() else { return };
        let all = cx.clients.sessions.all.iter();
        let is_client =
            |session: &Session| session.identity.as_ref().is_some_and(|identity| !identity.observes);
        let clients: Vec<_> = all.filter(|(_, session)| is_client(session)).map(|(id, _)| id).collect();
        clients.into_iter().for_each(|id| cx.end(id, Code::NotReady, &reason));
    }
}
