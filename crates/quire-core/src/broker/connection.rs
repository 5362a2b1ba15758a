//! Connections: how they begin, how their bytes become commands, how they end.

use std::mem;

use super::{Alarm, Broker, ConnectionId, Event, Output, Shutdown, Timer};
use crate::session::{Phase, Session, SessionId, Stall};
use crate::wire::{ClientFrame, Code, Inbox, ServerFrame, WireError};

impl Broker {
    pub(super) fn connect(&mut self, connection: ConnectionId, peer: &str) {
        let now = self.now.instant;
        let id = self.sessions.insert(Session::new(connection, peer, now));
        self.by_connection.insert(connection, id);
        if self.shutdown != Shutdown::No {
            self.end(id, Code::ShuttingDown, "the server is stopping");
        } else if self.sessions.len() > self.config.limits.max_connections as usize {
            self.end(id, Code::LimitExceeded, "max_connections is reached");
        } else {
            let deadline = now + self.config.limits.logon_timeout();
            self.timers.set(&mut self.sessions, id, Timer::Logon, deadline);
        }
    }

    /// Takes the commands in `bytes`, or keeps them while the session is stalled.
    pub(super) fn receive(&mut self, id: SessionId, bytes: &[u8]) {
        let now = self.now.instant;
        let is_stopping = self.shutdown != Shutdown::No;
        let session = self.session(id);
        session.heard_at = now;
        if is_stopping || matches!(session.phase, Phase::Leaving | Phase::Closed) {
            return;
        }
        if session.stall.is_some() {
            session.kept.extend_from_slice(bytes);
            return self.count_unfinished(id);
        }
        // The inbox lends out frames while the broker works on them.
        let mut inbox = mem::replace(&mut session.inbox, Inbox::new(0));
        let mut rest = bytes;
        self.begin_slice();
        let result = self.take_frames(id, &mut inbox, &mut rest);
        let frame_size_max = self.frame_size_max(id);
        inbox.set_frame_size_max(frame_size_max);
        let session = self.session(id);
        session.inbox = inbox;
        if session.stall.is_some() {
            session.kept.extend_from_slice(rest);
            self.touch(id);
        }
        if let Err(error) = result {
            self.end(id, error.code(), &error.to_string());
        }
        self.count_unfinished(id);
    }

    /// Counts what is kept of unfinished frames, and ends a session that lifts the sum of all above the limit.
    fn count_unfinished(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.phase == Phase::Closed {
            return;
        }
        let batch_size = session.batch.as_ref().map_or(0, |batch| batch.size());
        let size = session.inbox.partial_size() + session.kept.len() + batch_size;
        let grows = size > session.unfinished_size;
        self.unfinished_size = self.unfinished_size - session.unfinished_size + size;
        session.unfinished_size = size;
        let limit = self.config.limits.max_unfinished;
        if grows && self.unfinished_size as u64 > limit {
            let reason = format!("max_unfinished: {limit} bytes of unfinished frames are kept already");
            self.end(id, Code::LimitExceeded, &reason);
        }
    }

    fn take_frames(&mut self, id: SessionId, inbox: &mut Inbox, rest: &mut &[u8]) -> Result<(), WireError> {
        while self.session(id).takes_commands() {
            let phase = self.session(id).phase;
            let Some(frame) = inbox.next(rest)? else { return Ok(()) };
            self.take_command(id, ClientFrame::decode(frame)?);
            if self.session(id).phase != phase {
                let frame_size_max = self.frame_size_max(id);
                inbox.set_frame_size_max(frame_size_max);
            }
        }
        Ok(())
    }

    /// One command: only what it is decides here, each has its own place.
    fn take_command(&mut self, id: SessionId, frame: ClientFrame<'_>) {
        match (self.session(id).phase, frame) {
            (Phase::Strange, ClientFrame::Logon(logon)) => self.log_on(id, &logon),
            (Phase::Strange, _) => self.end(id, Code::LogonRequired, "the first frame is not a logon"),
            (_, ClientFrame::Logon(_)) => self.end(id, Code::DuplicateLogon, "logged on already"),
            (_, ClientFrame::Publish(publish)) => {
                if let Some(publisher) = self.begin_publish(id) {
                    self.publish(id, publisher, &publish);
                    self.end_of_publish(id, publish.data.len());
                }
                return;
            }
            (_, ClientFrame::PublishBatch(batch)) => return self.publish_batch(id, batch),
            (_, ClientFrame::Subscribe(subscribe)) => self.subscribe(id, &subscribe),
            (_, ClientFrame::Unsubscribe { command, acks, subscription }) => {
                self.unsubscribe(id, command, acks, subscription);
            }
            (_, ClientFrame::Flush { command, acks }) => self.flush(id, command, acks),
            (_, ClientFrame::Heartbeat) => (),
            (_, ClientFrame::Goodbye) => self.leave(id),
            (_, ClientFrame::Pause { command, acks, subscriptions }) => {
                self.pause(id, command, acks, subscriptions);
            }
            (_, ClientFrame::Resume { command, acks, subscriptions }) => {
                self.resume(id, command, acks, subscriptions);
            }
            (_, ClientFrame::Settle(settle)) => self.settle_queue(id, &settle),
            (_, ClientFrame::Extend(extend)) => self.extend(id, &extend),
            (_, ClientFrame::Query(query)) => self.query(id, &query),
            (_, ClientFrame::Stats { command, queue }) => self.tell_stats(id, command, queue),
            (_, ClientFrame::Upkeep(what)) => self.ask_upkeep(id, what),
        }
        self.end_of_command(id);
    }

    /// Goes on with a stalled session whose reason has gone.
    pub(super) fn end_stall(&mut self, id: SessionId) {
        self.session(id).stall = None;
        self.touch(id);
        if self.session(id).batch.is_some() {
            self.begin_slice();
            self.wants_turn = true;
            if !self.continue_batch(id) {
                return self.count_unfinished(id);
            }
        }
        let kept = mem::take(&mut self.session(id).kept);
        if !kept.is_empty() {
            self.receive(id, &kept);
            // What the commands ask for may come too late for this turn.
            self.wants_turn = true;
        } else {
            self.count_unfinished(id);
        }
    }

    pub(super) fn stall(&mut self, id: SessionId, stall: Stall) {
        self.session(id).stall = Some(stall);
        self.touch(id);
    }

    /// The largest frame that the session may send now.
    fn frame_size_max(&mut self, id: SessionId) -> usize {
        let data = self.config.limits.max_message_size as usize;
        match self.session(id).phase {
            Phase::Strange => crate::wire::LOGON_FRAME_SIZE_MAX,
            _ => data + crate::wire::FRAME_OVERHEAD_MAX,
        }
    }

    pub(super) fn set_writable(&mut self, id: SessionId, is_writable: bool) {
        let session = self.session(id);
        session.is_writable = is_writable;
        let replays = session.replays.clone();
        let overdue = if is_writable { mem::take(&mut session.overdue) } else { Vec::new() };
        self.touch(id);
        if is_writable {
            self.to_feed.extend(replays);
            self.wants_turn |= self.queues.may_release(id);
            self.alarms.recall(overdue, self.now.instant);
        } else {
            self.hold_session(id);
            self.give_back_reads(id);
        }
    }

    /// The client said goodbye: nothing is delivered any more, what it published is still acknowledged.
    fn leave(&mut self, id: SessionId) {
        self.drop_subscriptions(id);
        self.publishers.note();
        self.session(id).phase = Phase::Leaving;
        self.touch(id);
        let publisher = self.session(id).identity.as_ref().map(|identity| identity.publisher);
        if self.failure.is_some() && publisher.is_some_and(|publisher| !self.publishers.is_settled(publisher))
        {
            self.say_failure(id);
        }
        self.leave_if_settled(id);
    }

    /// Closes a session that said goodbye, once nothing is owed to it.
    pub(super) fn leave_if_settled(&mut self, id: SessionId) {
        let session = self.session(id);
        let Some(identity) = &session.identity else { return };
        let publisher = identity.publisher;
        let owes_flush = !session.flushes.is_empty();
        let is_leaving = session.phase == Phase::Leaving;
        // What the journal has no room for is not waited for, once that was said.
        let owes_publishes = !session.knows_of_failure && !self.publishers.is_settled(publisher);
        if is_leaving && !owes_flush && !owes_publishes {
            self.acknowledge_now(id);
            self.close_session(id);
        }
    }

    /// The peer is gone.
    pub(super) fn disconnect(&mut self, id: SessionId) {
        let session = self.session(id);
        let event =
            Event::Disconnected { connection: session.connection, client_name: session.client_name() };
        if session.phase != Phase::Closed {
            self.outputs.push_back(Output::Log(event));
        }
        self.drop_subscriptions(id);
        self.release(id);
        self.forget_session(id);
    }

    /// Ends a connection with an error.
    pub(super) fn end(&mut self, id: SessionId, code: Code, reason: &str) {
        let session = self.session(id);
        if session.phase == Phase::Closed {
            return;
        }
        session.outbox.put(&ServerFrame::Error { code, reason });
        session.inbox = Inbox::new(0);
        session.kept = Vec::new();
        session.batch = None;
        let unfinished_size = mem::take(&mut session.unfinished_size);
        let event = Event::Ended {
            connection: session.connection,
            client_name: session.client_name(),
            code,
            reason: reason.to_owned(),
        };
        self.unfinished_size -= unfinished_size;
        self.outputs.push_back(Output::Log(event));
        self.close_session(id);
    }

    /// Takes nothing more from a session and adds nothing more to what it gets. Its subscriptions and its name stay until
    /// [`Broker::bury_closed`]: a frame that is one too many closes a session in the middle of work on just these.
    fn close_session(&mut self, id: SessionId) {
        let session = self.session(id);
        session.phase = Phase::Closed;
        session.outbox.close();
        self.closed.push(id);
        self.touch(id);
    }

    /// Removes the subscriptions of sessions that were closed, and gives back their names. Called between two pieces of work, never within
    /// one.
    pub(super) fn bury_closed(&mut self) {
        while let Some(id) = self.closed.pop() {
            if self.sessions.contains_key(id) {
                self.drop_subscriptions(id);
                self.release(id);
            }
        }
    }

    /// Ends a connection for which more waits than `max_client_backlog`.
    pub(super) fn end_slow(&mut self, id: SessionId) {
        let limit = self.config.limits.max_client_backlog;
        self.drop_slow(id, &format!("more than max_client_backlog, {limit} bytes, wait for it"));
    }

    /// Ends the connection for which most waits. There is one: only a sum above its limit leads here.
    pub(super) fn end_slowest(&mut self) {
        let slowest = self.sessions.iter().max_by_key(|(_, session)| session.waiting_size);
        let Some((id, _)) = slowest else { return };
        let limit = self.config.limits.max_waiting;
        let reason =
            format!("more than max_waiting, {limit} bytes, wait for all connections, most of them for it");
        self.drop_slow(id, &reason);
    }

    /// Ends a connection that does not take its messages; what waits for it is dropped.
    pub(super) fn drop_slow(&mut self, id: SessionId, reason: &str) {
        self.session(id).outbox.clear();
        self.end(id, Code::SlowConsumer, reason);
    }

    /// Lets go of the name.
    fn release(&mut self, id: SessionId) {
        // What the consumer did is noted under it.
        self.note_leases();
        if let Some(identity) = self.session(id).identity.take() {
            self.publishers.release(identity.publisher, id, &self.journal);
        }
    }

    pub(super) fn forget_session(&mut self, id: SessionId) {
        self.timers.clear(&mut self.sessions, id);
        let Some(session) = self.sessions.remove(id) else { return };
        self.unfinished_size -= session.unfinished_size;
        self.waiting_size -= session.waiting_size;
        self.places.forget(id);
        self.by_connection.remove(&session.connection);
    }

    pub(super) fn fire_timers(&mut self) {
        let now = self.now.instant;
        while let Some((id, timer)) = self.timers.take(&mut self.sessions, now) {
            match timer {
                Timer::Logon => self.end(id, Code::LogonRequired, "no logon within logon_timeout"),
                Timer::Heartbeat => self.beat(id),
                Timer::Silence => self.check_silence(id),
                Timer::Acknowledge => self.acknowledge_now(id),
            }
        }
        while let Some(alarm) = self.alarms.take(now) {
            match alarm {
                Alarm::Replay(replay) => self.to_feed.push_back(replay),
                Alarm::Held(subscription) => self.deliver_due(subscription),
                // Looked at behind the pass over what is persisted.
                Alarm::End => (),
            }
        }
    }

    /// Sends a heartbeat unless something else was sent since the last one, or waits to be sent.
    fn beat(&mut self, id: SessionId) {
        let now = self.now.instant;
        let session = self.session(id);
        let Some(interval) = session.heartbeat else { return };
        let due = session.sent_at + interval;
        let next = if due > now { due } else { now + interval };
        if due <= now && session.outbox.is_empty() {
            self.put(id, &ServerFrame::Heartbeat);
        }
        if self.session(id).phase != Phase::Closed {
            self.timers.set(&mut self.sessions, id, Timer::Heartbeat, next);
        }
    }

    /// Ends a connection from which nothing came for two intervals. While it is not read from, nothing can come.
    fn check_silence(&mut self, id: SessionId) {
        let now = self.now.instant;
        let session = self.session(id);
        let Some(interval) = session.heartbeat else { return };
        if session.is_reading_paused {
            session.heard_at = now;
        }
        let deadline = session.heard_at + 2 * interval;
        if deadline <= now {
            self.end(id, Code::HeartbeatTimeout, "nothing was heard for two heartbeat intervals");
        } else {
            self.timers.set(&mut self.sessions, id, Timer::Silence, deadline);
        }
    }
}
