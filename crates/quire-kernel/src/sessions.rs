//! The connections, and the actions on them: to end a connection, to make it wait, and to let it
//! continue.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use slotmap::SlotMap;

use super::access::Access;
use super::config::TransportConfig;
use super::context::{Context, reason_of_end};
use super::events::ClientEvent;
use super::io::{ConnectionId, Event, TransportId};
use super::timer::Timer;
use crate::session::{ACK_BACKLOG_MAX, Flush, KeptBytes, Phase, Session, SessionId, Stall};
use quire_command::{Code, Reply};

/// The most connections of administrators. Administrators can run a few commands at a time when the
/// transports are full. The open files that the server reserves for itself are sufficient for these
/// connections.
pub const ADMINISTRATORS_MAX: usize = 5;

/// The connections.
#[derive(Default)]
pub struct Sessions {
    pub all: SlotMap<SessionId, Session>,
    pub by_connection: HashMap<ConnectionId, SessionId, FxBuildHasher>,
    /// The number of connections of clients, for each transport.
    counts: Vec<usize>,
    /// The number of connections of administrators. They do not count for a transport.
    pub administrator_count: usize,
    /// Bytes of unfinished frames of all sessions.
    pub unfinished_size: usize,
    /// Bytes that wait for one connection each, without replays.
    pub waiting_size: usize,
    /// Bytes of messages that wait for several connections, without replays. Each message counts
    /// once.
    pub shared_size: Arc<AtomicUsize>,
    pub dirty: Vec<SessionId>,
    /// Closed sessions that still have their subscriptions and their names.
    pub closed: Vec<SessionId>,
    /// Sessions that wait for acknowledgements of records that are not persisted yet.
    pub flushing: BTreeSet<SessionId>,
    /// Sessions whose reason to wait may have ended, and that reason.
    pub resumable: Vec<(SessionId, Stall)>,
    /// Reading from publishers is paused until the journal has caught up.
    pub is_pushing_back: bool,
}

impl Sessions {
    /// Bytes that wait for connections, without replays.
    pub fn all_waiting_size(&self) -> usize {
        self.waiting_size + self.shared_size.load(Ordering::Relaxed)
    }

    pub fn add(&mut self, session: Session) -> SessionId {
        let connection = session.connection;
        if let Some(count) = self.count_for(&session) {
            *count += 1;
        }
        let id = self.all.insert(session);
        self.by_connection.insert(connection, id);
        id
    }

    pub fn remove(&mut self, id: SessionId) {
        let Some(session) = self.all.remove(id) else { return };
        if let Some(count) = self.count_for(&session) {
            *count -= 1;
        }
        self.unfinished_size -= session.unfinished_size;
        self.waiting_size -= session.waiting_size;
        self.by_connection.remove(&session.connection);
    }

    /// The counter of connections that includes the session; `None`: the session is closed at once,
    /// or is that of the server itself.
    fn count_for(&mut self, session: &Session) -> Option<&mut usize> {
        match session.access {
            Access::Administrator => Some(&mut self.administrator_count),
            Access::Denied | Access::Internal => None,
            Access::Client => {
                let transport = session.transport.0 as usize;
                self.counts.resize(self.counts.len().max(transport + 1), 0);
                self.counts.get_mut(transport)
            }
        }
    }

    /// Connections of clients of that transport.
    pub fn count_of(&self, transport: TransportId) -> usize {
        self.counts.get(transport.0 as usize).copied().unwrap_or_default()
    }
}

impl Context {
    /// The transport of the session, with its limits.
    #[inline]
    pub fn transport_of(&self, id: SessionId) -> &TransportConfig {
        &self.config.transports[self.clients.sessions.all[id].transport.0 as usize]
    }

    /// The session no longer waits for the reason `stall`. Its commands continue before the turn
    /// ends.
    pub fn resume_commands(&mut self, id: SessionId, stall: Stall) {
        if self.clients.sessions.all.get(id).is_some_and(|session| session.stall == Some(stall)) {
            self.clients.sessions.resumable.push((id, stall));
        }
    }

    /// The session receives the `persisted` acknowledgement of a command after all records that
    /// were appended or announced so far are persisted.
    pub fn owe_persisted(&mut self, id: SessionId, command: u32) {
        let position = self.log.appended();
        let announced = self.log.announced.last();
        let session = self.session(id);
        session.flushes.push_back(Flush { command, position, announced });
        let count = session.flushes.len();
        self.clients.sessions.flushing.insert(id);
        if count >= ACK_BACKLOG_MAX {
            self.stall(id, Stall::AckBacklog);
        }
    }

    #[inline]
    pub fn session(&mut self, id: SessionId) -> &mut Session {
        &mut self.clients.sessions.all[id]
    }

    #[inline]
    pub fn session_of(&self, connection: ConnectionId) -> Option<SessionId> {
        self.clients.sessions.by_connection.get(&connection).copied()
    }

    /// Keeps bytes whose commands wait.
    pub fn keep(&mut self, id: SessionId, bytes: &[u8]) {
        self.clients.sessions.all[id].kept.push(bytes, &mut self.clients.kept_buffers);
    }

    /// Counts the bytes of unfinished frames, and ends a session that raises the sum above the
    /// limit.
    pub fn count_unfinished(&mut self, id: SessionId) {
        let Some(session) = self.clients.sessions.all.get_mut(id) else { return };
        if session.phase == Phase::Closed {
            return;
        }
        let batch_size = session.batch.as_ref().map_or(0, |batch| batch.size());
        let size =
            session.codec.unfinished_size() + session.kept.size() + batch_size + session.preparing_size;
        let grows = size > session.unfinished_size;
        self.clients.sessions.unfinished_size =
            self.clients.sessions.unfinished_size - session.unfinished_size + size;
        session.unfinished_size = size;
        // The large message of a connection is complete. It counts against other connections, and
        // not against its own. Otherwise its connection would be ended, and would send the message
        // again.
        let own_size = session.preparing_size;
        let limit = self.config.limits.max_unfinished;
        if grows && (self.clients.sessions.unfinished_size - own_size) as u64 > limit {
            let reason = format!("max_unfinished: {limit} bytes of unfinished frames are kept already");
            self.end(id, Code::LimitExceeded, &reason);
        }
    }

    pub fn stall(&mut self, id: SessionId, stall: Stall) {
        self.session(id).stall = Some(stall);
        self.touch(id);
    }

    /// The most bytes of data that the session may send in a message now; `None` = only a logon.
    pub fn message_size_max(&self, id: SessionId) -> Option<usize> {
        let size = self.transport_of(id).max_message_size as usize;
        (self.clients.sessions.all[id].phase != Phase::AwaitingLogon).then_some(size)
    }

    /// Ends a connection with an error.
    pub fn end(&mut self, id: SessionId, code: Code, reason: &str) {
        self.end_because(id, code, reason_of_end(code), reason);
    }

    /// As [`Context::end`]. `counted_as` is the reason in the statistics.
    pub fn end_because(&mut self, id: SessionId, code: Code, counted_as: &'static str, reason: &str) {
        let session = self.session(id);
        if session.phase == Phase::Closed {
            return;
        }
        // The error follows what the connection can still get without a gap.
        session.outbox.drop_away();
        session.outbox.put(&Reply::Error { code, reason });
        session.codec.take();
        session.kept = KeptBytes::default();
        session.batch = None;
        let unfinished_size = mem::take(&mut session.unfinished_size);
        let event = Event::Ended {
            connection: session.connection,
            client_name: session.client_name(),
            code,
            reason: reason.to_owned(),
        };
        self.clients.sessions.unfinished_size -= unfinished_size;
        self.clients.counters.note_end(counted_as);
        let told = ClientEvent { event: "disconnect", reason: Some(counted_as), ..Default::default() };
        self.tell_client(id, told);
        self.note(event);
        self.note_logoff(id, reason);
        self.close_session(id);
    }

    /// Logs the end of the connection of a user whose logon was checked.
    fn note_logoff(&mut self, id: SessionId, reason: &str) {
        let is_checked = self.transport_of(id).authenticates;
        let session = &self.clients.sessions.all[id];
        if let Some(user) =
            session.client_facts().user.filter(|_| is_checked && session.access == Access::Client)
        {
            let client = session.client_name().unwrap_or_default();
            self.note(Event::LoggedOff { user, client, reason: reason.to_owned() });
        }
    }

    /// Stops the input and the output of a session. Its subscriptions and its name remain until
    /// [`Broker::remove_ended`], because a session may be closed for its backlog in the middle of
    /// work on its subscriptions.
    pub fn close_session(&mut self, id: SessionId) {
        let session = self.session(id);
        session.phase = Phase::Closed;
        session.outbox.close();
        self.clients.sessions.closed.push(id);
        self.touch(id);
    }

    /// Sends a heartbeat, unless other output was sent since the last one or waits to be sent.
    pub fn beat(&mut self, id: SessionId) {
        let now = self.clock.now.instant;
        let session = self.session(id);
        let Some(interval) = session.heartbeat else { return };
        let due = session.sent_at + interval;
        let next = if due > now { due } else { now + interval };
        if due <= now && session.outbox.is_empty() {
            self.put(id, &Reply::Heartbeat);
        }
        if self.session(id).phase != Phase::Closed {
            self.clock.timers.set(Timer::Heartbeat(id), next);
        }
    }

    /// Ends a connection that sent no bytes for two intervals. It is not ended while reading from
    /// it is paused.
    pub fn check_silence(&mut self, id: SessionId) {
        let now = self.clock.now.instant;
        let session = self.session(id);
        let Some(interval) = session.heartbeat else { return };
        if session.is_reading_paused {
            session.received_at = now;
        }
        let deadline = session.received_at + 2 * interval;
        if deadline <= now {
            self.end(id, Code::HeartbeatTimeout, "nothing was heard for two heartbeat intervals");
        } else {
            self.clock.timers.set(Timer::Silence(id), deadline);
        }
    }
}
