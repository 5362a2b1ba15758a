//! The messages of slow connections that wait on disk.
//!
//! When the outbox of a connection has more bytes than its share of the memory, the middle of it
//! moves to disk, in pages of whole frames. The connection is then *offlined*. The first frames
//! stay in memory, and so do the newest ones until they fill a page. The pages return in their
//! order. So nothing is lost, repeated or reordered.
//!
//! Pages are written and read by jobs on other threads. A connection has at most one job of each
//! kind. A connection that is beyond its share of the disk, or whose messages are too old, is ended
//! as `slow_consumer` (docs/operations.md, "Slow clients").

use std::cmp::Reverse;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{BrokerConfig, TransportConfig};
use crate::context::{Clock, Context};
use crate::events::ClientEvent;
use crate::ids::TransportId;
use crate::io::Event;
use crate::session::{Phase, Piece, Session, SessionId};
use crate::timer::Timer;
use quire_journal::{SpillDirectory, Spilled};
use quire_types::time::Instant;

/// Bytes of a page, plus at most one message.
const PAGE_SIZE: usize = 4 << 20;

/// Bytes that stay in memory before the first page. A connection accepts them in some turns.
const BEFORE_SIZE: usize = 1 << 20;

/// Bytes above its limit that a connection may have in memory while the disk takes its messages: as
/// many as arrive while a disk that is busy lets a job wait for a tenth of a second.
const SLACK_MIN: u64 = 64 << 20;

/// Writes pieces to pages, in their order. Returns the pages, and with an error the pieces that are
/// not in one.
fn write(directory: &Arc<SpillDirectory>, pieces: Vec<Piece>) -> Written {
    let mut written = Written::default();
    let mut pieces = pieces.into_iter().peekable();
    while pieces.peek().is_some() {
        let mut size = 0;
        let mut group = Vec::new();
        while let Some(piece) = pieces.next_if(|_| size < PAGE_SIZE) {
            size += piece.size();
            group.push(piece);
        }
        let parts: Vec<_> = group.iter().flat_map(Piece::parts).collect();
        match directory.write(&parts) {
            Ok(file) => {
                let sizes = group.iter().map(|piece| (piece.size(), piece.replayed_size())).collect();
                written.pages.push(Page { file, pieces: sizes });
            }
            Err(error) => {
                written.left = group.into_iter().chain(pieces).collect();
                written.error = Some(error);
                break;
            }
        }
    }
    written
}

/// The result of a job that writes pages.
#[derive(Default)]
struct Written {
    pages: Vec<Page>,
    left: Vec<Piece>,
    error: Option<io::Error>,
}

/// A part of an outbox on disk.
#[derive(Debug)]
pub struct Page {
    file: Spilled,
    /// The sizes of its pieces, and their bytes from replays.
    pieces: Vec<(usize, usize)>,
}

impl Page {
    /// Its bytes.
    pub fn size(&self) -> usize {
        self.file.size()
    }

    /// Reads its pieces, with their bytes from replays.
    fn read(self) -> io::Result<Vec<(Vec<u8>, usize)>> {
        let bytes = self.file.read()?;
        let mut rest = bytes.as_slice();
        let mut found = Vec::with_capacity(self.pieces.len());
        for (size, replayed_size) in &self.pieces {
            let (piece, after) = rest.split_at(*size);
            found.push((piece.to_vec(), *replayed_size));
            rest = after;
        }
        Ok(found)
    }
}

/// Which connections wait on disk, and the sizes of it.
#[derive(Debug, Default)]
pub struct Offline {
    /// `None`: no connection is offlined, and one beyond its limit is ended.
    directory: Option<Arc<SpillDirectory>>,
    /// Sessions that are beyond their share.
    slow: Vec<SessionId>,
    /// Sessions whose next page is to be read.
    waiting: Vec<SessionId>,
    /// Bytes that jobs write now. They are still in memory.
    writing_size: usize,
    /// The lines of the log about connections that are offlined, and about those that are not any
    /// more.
    lines: (Paced, Paced),
}

/// A line of the log at most once in [`LINE_INTERVAL`]. With a small limit, a connection can be
/// offlined many times in a second.
#[derive(Debug, Default)]
struct Paced {
    last: Option<Instant>,
    left_out: u64,
}

const LINE_INTERVAL: Duration = Duration::from_secs(1);

impl Paced {
    /// Whether a line may be written now: the number of lines that were left out since the last
    /// one.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now < last + LINE_INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Offline {
    /// Bytes that wait on disk.
    pub fn size(&self) -> u64 {
        self.directory.as_ref().map_or(0, |directory| directory.size())
    }

    /// Bytes in memory that are on their way to the disk.
    pub fn writing_size(&self) -> usize {
        self.writing_size
    }

    /// Whether the messages of the connections of a transport may wait on disk.
    #[inline]
    fn takes(&self, transport: &TransportConfig) -> bool {
        self.directory.is_some() && transport.message_disk_limit != Some(0)
    }

    /// The most bytes in memory that may wait for a connection of a transport.
    #[inline]
    pub fn size_max(&self, transport: &TransportConfig) -> u64 {
        backlog_max(transport.max_client_backlog, self.takes(transport))
    }

    /// Looks at a session for which messages wait, after output was sent to it.
    pub fn note(&mut self, id: SessionId, session: &mut Session, config: &BrokerConfig, clock: &mut Clock) {
        if session.phase == Phase::Closed {
            return;
        }
        let transport = &config.transports[session.transport.0 as usize];
        if let Some(limit) = transport.client_message_age_limit() {
            session.outbox.mark(clock.now.instant, mark_interval(limit));
            if !clock.timers.is_set(Timer::Age(id)) {
                clock.timers.set(Timer::Age(id), clock.now.instant + limit);
            }
        }
        if !self.takes(transport) {
            return;
        }
        let share = transport.memory_share(config.limits.max_waiting);
        let outbox = &session.outbox;
        if outbox.is_away() {
            if outbox.tail_size() >= PAGE_SIZE.min(share as usize) {
                self.slow.push(id);
            }
            if session.is_writable {
                self.waiting.push(id);
            }
            return;
        }
        // A connection that accepts bytes may have the pages that it reads in memory.
        let read_size = if session.is_writable { (PAGE_SIZE + BEFORE_SIZE) as u64 } else { 0 };
        if outbox.backlog_size() as u64 > share + read_size {
            self.slow.push(id);
        }
    }
}

impl Context {
    /// Uses a directory for the messages of slow connections.
    ///
    /// # Errors
    /// The error of the system.
    pub fn open_offline(&mut self) -> io::Result<()> {
        let limits = &self.config.limits;
        if let Some(path) = limits.message_disk_path.as_ref().filter(|_| limits.message_disk_limit > 0) {
            self.clients.offline.directory = Some(SpillDirectory::open(path)?);
        }
        Ok(())
    }

    /// Connections that are offlined.
    pub fn offlined_count(&self) -> usize {
        self.clients.sessions.all.values().filter(|session| session.outbox.is_away()).count()
    }

    /// Begins the jobs of connections that are offlined.
    pub fn serve_offline(&mut self) {
        for id in std::mem::take(&mut self.clients.offline.slow) {
            self.page_out(id);
        }
        for id in std::mem::take(&mut self.clients.offline.waiting) {
            self.page_in(id);
        }
        let Some(directory) = &self.clients.offline.directory else { return };
        if directory.has_unused() {
            let directory = directory.clone();
            self.begin_inner_job(move || directory.remove_unused(), |_, _| ());
        }
    }

    /// Keeps the waiting bytes of the connections of each transport within the limit of the
    /// transport: those of the connection with the most move to disk, or the connection is ended.
    /// Returns whether there is output to be sent before the next call.
    pub fn limit_transports(&mut self) -> bool {
        let limits = self.config.transports.iter().map(|transport| transport.message_memory_limit);
        let limited = (0..).map(TransportId).zip(limits);
        let limited: Vec<_> = limited.filter_map(|(id, limit)| Some((id, limit?))).collect();
        for (transport, limit) in limited {
            let mut waiting_size = 0;
            let mut writing_size = 0;
            for session in self.clients.sessions.all.values() {
                if session.transport == transport && session.phase != Phase::Closed {
                    waiting_size += session.outbox.backlog_size() + session.deferred_size;
                    writing_size += session.outbox.writing_size();
                }
            }
            // As for all connections together, what is written now may be within the limit again.
            if waiting_size.saturating_sub(writing_size.min(limit as usize)) as u64 > limit {
                if !self.page_out_largest(Some(transport)) {
                    self.end_slowest(Some((transport, limit)));
                }
                return true;
            }
        }
        false
    }

    /// Moves what waits for the connection with the most bytes in memory to disk. Returns whether
    /// there was one. `transport`: only its connections.
    pub fn page_out_largest(&mut self, transport: Option<TransportId>) -> bool {
        if self.clients.offline.directory.is_none() {
            return false;
        }
        let of_transport = |session: &Session| transport.is_none_or(|id| session.transport == id);
        let sessions = self.clients.sessions.all.iter().filter(|(_, session)| of_transport(session));
        let movable = |(id, session): (SessionId, &Session)| (session.outbox.movable_size(BEFORE_SIZE), id);
        let mut found: Vec<_> = sessions.map(movable).filter(|(size, _)| *size > 0).collect();
        found.sort_unstable_by_key(|(size, _)| Reverse(*size));
        found.into_iter().any(|(_, id)| self.page_out(id))
    }

    /// Begins to write what may wait on disk. Returns whether there was something.
    fn page_out(&mut self, id: SessionId) -> bool {
        let Some(directory) = self.clients.offline.directory.clone() else { return false };
        let Some(session) = self.clients.sessions.all.get_mut(id) else { return false };
        let transport = &self.config.transports[session.transport.0 as usize];
        if session.phase == Phase::Closed || !self.clients.offline.takes(transport) {
            return false;
        }
        let was_away = session.outbox.is_away();
        let Some(pieces) = session.outbox.page_out(BEFORE_SIZE) else { return false };
        let size: usize = pieces.iter().map(Piece::size).sum();
        let (connection, client_name) = (session.connection, session.client_name());
        self.clients.offline.writing_size += size;
        if !was_away {
            let bytes = self.clients.sessions.all[id].outbox.size() as u64;
            if let Some(left_out) = self.clients.offline.lines.0.next(self.clock.now.instant) {
                self.note(Event::ClientOfflined { connection, client_name, bytes, left_out });
            }
            self.tell_client(id, ClientEvent { event: "offline", bytes: Some(bytes), ..Default::default() });
        }
        self.begin_inner_job(
            move || write(&directory, pieces),
            move |cx, written| cx.paged_out(id, size, written),
        );
        true
    }

    fn paged_out(&mut self, id: SessionId, size: usize, written: Option<Written>) {
        self.clients.offline.writing_size -= size;
        let is_panic = written.is_none();
        let Written { pages, left, error } = written.unwrap_or_default();
        let Some(session) = self.clients.sessions.all.get_mut(id) else { return };
        if !session.outbox.paged_out(pages, left) {
            return;
        }
        self.touch(id);
        if let Some(error) = error {
            let reason = format!("its messages cannot be written to disk: {error}");
            self.drop_slow(id, &reason);
        } else if is_panic {
            self.drop_slow(id, "its messages cannot be written to disk");
        } else {
            self.check_disk(id);
        }
    }

    /// Ends a connection beyond its share of the disk, or the largest one beyond the limit.
    fn check_disk(&mut self, id: SessionId) {
        let limit = self.config.limits.message_disk_limit;
        let (transport, share) = (self.session(id).transport, self.transport_of(id).disk_share(limit));
        let stored = self.clients.sessions.all[id].outbox.stored_size() as u64;
        if stored > share {
            let reason =
                format!("more than {share} bytes wait for it on disk, its share of message_disk_limit");
            return self.drop_slow(id, &reason);
        }
        let of_transport = |(_, session): &(SessionId, &Session)| session.transport == transport;
        let stored_size = |(_, session): &(SessionId, &Session)| session.outbox.stored_size();
        if let Some(limit) = self.transport_of(id).message_disk_limit {
            let sessions = || self.clients.sessions.all.iter().filter(of_transport);
            let size: usize = sessions().map(|session| stored_size(&session)).sum();
            if size as u64 > limit
                && let Some((largest, _)) = sessions().max_by_key(stored_size)
            {
                let reason = format!(
                    "more than message_disk_limit of the transport, {limit} bytes, wait on disk for its clients, most of \
                     them for this one"
                );
                return self.drop_slow(largest, &reason);
            }
        }
        if self.clients.offline.size() <= limit {
            return;
        }
        if let Some((largest, _)) = self.clients.sessions.all.iter().max_by_key(stored_size) {
            let reason = format!(
                "more than message_disk_limit, {limit} bytes, wait on disk for all connections, most of them for it"
            );
            self.drop_slow(largest, &reason);
        }
    }

    /// Reads the next page of a connection that accepts bytes.
    fn page_in(&mut self, id: SessionId) {
        let Some(session) = self.clients.sessions.all.get_mut(id) else { return };
        if session.phase == Phase::Closed {
            return;
        }
        let Some(page) = session.outbox.page_in(BEFORE_SIZE) else { return };
        let path = page.file.path().to_owned();
        self.begin_inner_job(
            move || page.read(),
            move |cx, read| {
                let Some(session) = cx.clients.sessions.all.get_mut(id) else { return };
                match read {
                    Some(Ok(pieces)) => {
                        if session.outbox.paged_in(pieces) {
                            cx.touch(id);
                            cx.note_online(id);
                        }
                    }
                    Some(Err(error)) => {
                        let reason =
                            format!("its messages on disk cannot be read: {}: {error}", path.display());
                        cx.drop_slow(id, &reason);
                    }
                    None => cx.drop_slow(id, "its messages on disk cannot be read"),
                }
            },
        );
    }

    /// Reports a connection whose messages are in memory again.
    fn note_online(&mut self, id: SessionId) {
        let session = &self.clients.sessions.all[id];
        if !session.outbox.is_away() {
            let (connection, client_name) = (session.connection, session.client_name());
            if let Some(left_out) = self.clients.offline.lines.1.next(self.clock.now.instant) {
                self.note(Event::ClientOnline { connection, client_name, left_out });
            }
            self.tell_client(id, ClientEvent { event: "online", bytes: Some(0), ..Default::default() });
        }
    }

    /// Ends a connection whose oldest unread message is older than `client_message_age_limit`.
    pub fn check_age(&mut self, id: SessionId) {
        let now = self.clock.now.instant;
        let Some(limit) = self.transport_of(id).client_message_age_limit() else { return };
        let Some(oldest) = self.session(id).outbox.oldest() else { return };
        // A mark can be earlier than its messages.
        let end = oldest + limit + mark_interval(limit);
        if now >= end {
            let seconds = limit.as_secs_f64();
            let reason =
                format!("its oldest unread message is older than client_message_age_limit, {seconds} s");
            self.drop_slow(id, &reason);
        } else {
            self.clock.timers.set(Timer::Age(id), end);
        }
    }
}

/// The most bytes in memory that may wait for a connection with a limit. When a disk takes them, it
/// has some time.
#[inline]
pub const fn backlog_max(limit: u64, offlines: bool) -> u64 {
    let slack = if limit > SLACK_MIN { limit } else { SLACK_MIN };
    if offlines { limit.saturating_add(slack) } else { limit }
}

/// Marks of the age of messages in an outbox, for each limit.
const AGE_MARKS: u32 = 16;

/// The share of a limit that one client may use, in thousandths.
pub fn share_of(limit: u64, capacity: u16) -> u64 {
    (u128::from(limit) * u128::from(capacity) / 1000) as u64
}

/// The time between two marks for a limit of the age.
fn mark_interval(limit: Duration) -> Duration {
    limit / AGE_MARKS
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::codec::Encoder;
    use crate::session::{Outbox, SharedData, Taken};
    use quire_command::{Message, Reply};

    #[derive(Clone, Debug)]
    enum Step {
        Message(usize),
        Shared(usize),
        Reply(u64),
        Take,
        PageOut,
        /// A write ends. A part of it may have failed.
        Written {
            is_whole: bool,
        },
        PageIn,
        Read,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let size = prop_oneof![0usize..500, 100_000usize..300_000];
        let step = prop_oneof![
            4 => size.clone().prop_map(Step::Message),
            2 => size.prop_map(Step::Shared),
            1 => any::<u64>().prop_map(Step::Reply),
            3 => Just(Step::Take),
            2 => Just(Step::PageOut),
            2 => any::<bool>().prop_map(|is_whole| Step::Written { is_whole }),
            2 => Just(Step::PageIn),
            2 => Just(Step::Read),
        ];
        prop::collection::vec(step, 0..80)
    }

    fn bytes_of(taken: Taken) -> Vec<u8> {
        match taken {
            Taken::Own(bytes) => bytes,
            Taken::Shared(bytes) => bytes.to_vec(),
        }
    }

    /// An outbox with a disk that a test drives by hand, and all bytes that were put into it.
    struct World {
        directory: Arc<SpillDirectory>,
        outbox: Outbox,
        put: Vec<u8>,
        sent: Vec<u8>,
        writing: Option<Vec<Piece>>,
        reading: Option<Page>,
    }

    impl World {
        fn new(path: &Path) -> Self {
            World {
                directory: SpillDirectory::open(path).unwrap(),
                outbox: Outbox::new(Encoder::Quire),
                put: Vec::new(),
                sent: Vec::new(),
                writing: None,
                reading: None,
            }
        }

        fn message(&mut self, size: usize, is_shared: bool) {
            let data = vec![(self.put.len() % 251) as u8; size];
            let message = Message { topic: b"orders", data: &data, ..Message::default() };
            Encoder::Quire.put_message(&message, &mut self.put);
            let shared = is_shared.then(|| SharedData::new(&data, &Arc::default()));
            self.outbox.put_message(&message, shared.as_ref());
        }

        fn written(&mut self, is_whole: bool) {
            let Some(mut pieces) = self.writing.take() else { return };
            let failed = if is_whole { Vec::new() } else { pieces.split_off(pieces.len() / 2) };
            let Written { pages, left, error } = write(&self.directory, pieces);
            assert!(left.is_empty() && error.is_none());
            assert!(self.outbox.paged_out(pages, failed));
        }

        fn read(&mut self) {
            let Some(page) = self.reading.take() else { return };
            assert!(self.outbox.paged_in(page.read().unwrap()));
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Message(size) => self.message(size, false),
                Step::Shared(size) => self.message(size, true),
                Step::Reply(sequence) => {
                    let reply = Reply::Persisted { sequence };
                    Encoder::Quire.put(&reply, &mut self.put);
                    self.outbox.put(&reply);
                }
                Step::Take => self.sent.extend(self.outbox.take().map(bytes_of).unwrap_or_default()),
                Step::PageOut if self.writing.is_none() => self.writing = self.outbox.page_out(300_000),
                Step::PageIn if self.reading.is_none() => self.reading = self.outbox.page_in(300_000),
                Step::Written { is_whole } => self.written(is_whole),
                Step::Read => self.read(),
                Step::PageOut | Step::PageIn => (),
            }
            let stored = self.outbox.stored_size();
            assert_eq!(self.outbox.size(), self.put.len() - self.sent.len());
            assert_eq!(self.outbox.backlog_size(), self.outbox.size() - stored);
            assert!(self.outbox.own_backlog_size() <= self.outbox.backlog_size());
        }
    }

    proptest! {
        #[test]
        fn an_outbox_on_disk_sends_what_was_put_into_it_in_order(steps in steps()) {
            let directory = tempfile::tempdir().unwrap();
            let mut world = World::new(directory.path());
            steps.into_iter().for_each(|step| world.step(step));
            // Everything comes, whatever is on its way.
            for step in [Step::Written { is_whole: true }, Step::Read] {
                world.step(step);
            }
            while !world.outbox.is_empty() {
                for step in [Step::Take, Step::PageIn, Step::Read] {
                    world.step(step);
                }
            }
            prop_assert!(world.sent == world.put);
            prop_assert!(!world.outbox.is_away());
            prop_assert_eq!((world.outbox.backlog_size(), world.outbox.own_backlog_size()), (0, 0));
            world.directory.remove_unused();
            prop_assert_eq!(world.directory.size(), 0);
            prop_assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        }

        #[test]
        fn what_follows_the_disk_is_dropped_with_it(steps in steps(), drops_messages in any::<bool>()) {
            let directory = tempfile::tempdir().unwrap();
            let mut world = World::new(directory.path());
            steps.into_iter().for_each(|step| world.step(step));
            let was_away = world.outbox.is_away();
            if drops_messages {
                // The frames that stay are whole.
                world.outbox.drop_messages();
            } else {
                prop_assert_eq!(world.outbox.drop_away(), was_away);
                while let Some(taken) = world.outbox.take() {
                    world.sent.extend(bytes_of(taken));
                }
                prop_assert!(world.put.starts_with(&world.sent));
            }
            prop_assert!(!world.outbox.is_away());
            // Jobs that end later change nothing.
            if let Some(pieces) = world.writing.take() {
                let pages = write(&world.directory, pieces).pages;
                prop_assert!(!world.outbox.paged_out(pages, Vec::new()));
            }
            if let Some(page) = world.reading.take() {
                prop_assert!(!world.outbox.paged_in(page.read().unwrap()));
            }
            world.directory.remove_unused();
            prop_assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn pieces_that_a_disk_does_not_take_return_to_their_place() {
        let directory = tempfile::tempdir().unwrap();
        let pages = SpillDirectory::open(&directory.path().join("offline")).unwrap();
        let mut world = World::new(&directory.path().join("other"));
        for _ in 0..40 {
            world.message(200_000, false);
        }
        let pieces = world.outbox.page_out(0).unwrap();
        fs::remove_dir_all(directory.path().join("offline")).unwrap();
        let Written { pages, left, error } = write(&pages, pieces);
        assert_eq!(error.unwrap().kind(), io::ErrorKind::NotFound);
        assert!(pages.is_empty());
        assert!(world.outbox.paged_out(pages, left));
        assert!(!world.outbox.is_away());
        while let Some(taken) = world.outbox.take() {
            world.sent.extend(bytes_of(taken));
        }
        assert!(world.sent == world.put);
    }
}
