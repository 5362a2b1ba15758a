//! Output: frames for sessions, and the limits of the bytes that wait for connections.

use std::sync::Arc;

use super::context::Context;
use super::ids::TransportId;
use super::io::Output;
use super::slice::PENDING_INPUT_MAX;
use crate::session::{Outbox, Phase, Session, SessionId, SharedData, Stall, Taken};
use crate::subscription::{ServedBy, Subscription, SubscriptionId};
use crate::topic::Stage;
use quire_command::{Code, Message, MessageKind, OofReason, Reply};
use quire_expression::filter::MessageContext;
use quire_types::Headers;

/// The most bytes that are sent to a connection in one turn, plus at most one chunk. The backlog of
/// a connection that accepts bytes again must not delay other connections.
const SEND_SIZE_MAX: usize = 1024 * 1024;

/// Bytes of buffers kept for the next turn's output: enough for a fan-out to a thousand
/// connections.
const SPARES_SIZE_MAX: usize = 16 * 1024 * 1024;

/// The most buffers that are kept. Replies to commands are small and need no spare buffer, so
/// without the limit every connection would leave a buffer.
const SPARES_COUNT_MAX: usize = 1024;

/// A larger spare buffer is returned to the allocator, so that the memory of one huge message is
/// freed.
const SPARE_SIZE_MAX: usize = 1024 * 1024;

/// A smaller spare buffer is also returned. The head of a message with shared data has a buffer of
/// a few dozen bytes.
const SPARE_SIZE_MIN: usize = 128;

/// Outboxes share data of at least this many bytes. Every separate part of the output costs the
/// driver about the time of a copy of 2 KiB.
const SHARED_SIZE_MIN: usize = 4 * 1024;

/// Sharing saves copies of at least this many bytes. With 16 KiB for two connections, sharing has
/// no benefit.
const SAVED_SIZE_MIN: usize = 32 * 1024;

/// Used buffers for the next turn's output.
#[derive(Default)]
pub struct Buffers {
    spares: Vec<Vec<u8>>,
    /// Their capacity in bytes.
    size: usize,
}

impl Buffers {
    /// Keeps an unused buffer, if there is room for it.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        let size = buffer.capacity();
        if (SPARE_SIZE_MIN..=SPARE_SIZE_MAX).contains(&size)
            && self.size + size <= SPARES_SIZE_MAX
            && self.spares.len() < SPARES_COUNT_MAX
        {
            buffer.clear();
            self.size += size;
            self.spares.push(buffer);
        }
    }

    /// Gives the outbox a used buffer, when it wants one and there is one.
    #[inline]
    pub fn give(&mut self, outbox: &mut Outbox) {
        if outbox.wants_buffer()
            && let Some(buffer) = self.take()
        {
            outbox.give_buffer(buffer);
        }
    }

    fn take(&mut self) -> Option<Vec<u8>> {
        let buffer = self.spares.pop()?;
        self.size -= buffer.capacity();
        Some(buffer)
    }
}

/// The sessions with new output.
#[derive(Default)]
pub struct Sent {
    /// These sessions have room for more output.
    pub to: Vec<SessionId>,
    /// The last output of these sessions was sent.
    pub closed: Vec<SessionId>,
}

/// As [`Context::touch`], for a session that is borrowed.
#[inline]
pub fn mark_dirty(session: &mut Session, dirty: &mut Vec<SessionId>, id: SessionId) {
    if !session.is_dirty {
        session.is_dirty = true;
        dirty.push(id);
    }
}

impl Context {
    /// Queues the pending output of every touched session, as far as its connection accepts bytes.
    pub fn send(&mut self) -> Sent {
        let mut sent = Sent::default();
        let mut unsent = Vec::new();
        for id in std::mem::take(&mut self.clients.sessions.dirty) {
            let Some(session) = self.clients.sessions.all.get_mut(id) else { continue };
            if !session.is_dirty {
                continue;
            }
            session.is_dirty = false;
            let connection = session.connection;
            let is_closed = session.phase == Phase::Closed;
            if session.outbox.has_next() && (session.is_writable || is_closed) {
                session.sent_at = self.clock.now.instant;
                let mut sent_size = 0;
                while (sent_size < SEND_SIZE_MAX || is_closed)
                    && session.outbox.has_next()
                    && let Some(taken) = session.outbox.take()
                {
                    sent_size += taken.size();
                    self.outputs.push_back(match taken {
                        Taken::Own(bytes) => Output::Send { connection, bytes },
                        Taken::Shared(bytes) => Output::SendShared { connection, bytes },
                    });
                }
                self.clients.counters.sent_bytes += sent_size as u64;
                session.traffic.sent_bytes += sent_size as u64;
                if !is_closed && session.outbox.has_next() {
                    session.is_dirty = true;
                    unsent.push(id);
                }
                sent.to.push(id);
                if session.is_writable {
                    let overdue = std::mem::take(&mut session.overdue);
                    self.clock.timers.recall(overdue, self.clock.now.instant);
                }
            }
            let waiting_size = session.outbox.own_backlog_size() + session.deferred_size;
            self.clients.sessions.waiting_size =
                self.clients.sessions.waiting_size - session.waiting_size + waiting_size;
            session.waiting_size = waiting_size;
            if session.outbox.backlog_size() > 0 || session.outbox.is_away() {
                self.clients.offline.note(id, session, &self.config, &mut self.clock);
            }
            if is_closed {
                self.outputs.push_back(Output::Close { connection });
                sent.closed.push(id);
                continue;
            }
            let waits_briefly =
                session.stall == Some(Stall::Waiting) && session.kept.size() < PENDING_INPUT_MAX;
            let pause = (session.stall.is_some() && !waits_briefly)
                || session.phase == Phase::Closing
                || (self.clients.sessions.is_pushing_back && session.has_published);
            if pause != session.is_reading_paused {
                session.is_reading_paused = pause;
                session.received_at = self.clock.now.instant;
                self.outputs.push_back(if pause {
                    Output::PauseReading { connection }
                } else {
                    Output::ResumeReading { connection }
                });
            }
        }
        // These sessions have used their share of this turn.
        self.clock.wants_turn |= !unsent.is_empty();
        self.clients.sessions.dirty.extend(unsent);
        sent
    }

    /// Whether a session that accepts bytes has output.
    #[inline]
    pub fn has_output(&self) -> bool {
        let mut sessions =
            self.clients.sessions.dirty.iter().filter_map(|id| self.clients.sessions.all.get(*id));
        sessions.any(|session| session.is_writable && session.outbox.has_next())
    }

    /// Gives the session a used buffer for its output, when there is one.
    #[inline]
    pub fn give_buffer(&mut self, id: SessionId) {
        self.clients.buffers.give(&mut self.clients.sessions.all[id].outbox);
    }

    /// The data of a message that the outboxes of its subscriptions share; `None` when each outbox
    /// has a copy.
    #[inline]
    pub fn share(&self, data: &[u8], subscription_count: usize, stage: Stage) -> Option<Arc<SharedData>> {
        let saved_size = data.len() * subscription_count.saturating_sub(1);
        if data.len() < SHARED_SIZE_MIN || saved_size < SAVED_SIZE_MIN {
            return None;
        }
        Some(match stage {
            Stage::Published => SharedData::new(data, &self.clients.sessions.shared_size),
            // This data does not count as backlog, so no sum includes it.
            Stage::Persisted => SharedData::new(data, &Arc::default()),
        })
    }

    /// Marks the session for a check at the end of the turn.
    #[inline]
    pub fn touch(&mut self, id: SessionId) {
        mark_dirty(&mut self.clients.sessions.all[id], &mut self.clients.sessions.dirty, id);
    }

    /// Queues a frame for the session. Bytes that a connection does not accept count as its
    /// backlog.
    pub fn put(&mut self, id: SessionId, frame: &Reply<'_>) {
        let session = self.session(id);
        if session.phase == Phase::Closed {
            return;
        }
        session.outbox.put(frame);
        let size = session.outbox.backlog_size() as u64;
        self.touch(id);
        if size > self.backlog_max(id) {
            self.end_slow(id);
        }
    }

    /// The most bytes that may wait for a connection in memory.
    #[inline]
    pub fn backlog_max(&self, id: SessionId) -> u64 {
        self.clients.offline.size_max(self.transport_of(id))
    }

    /// The message about a record that left a view: without content, when the user of the
    /// subscription may not see the message that replaced the record.
    pub fn leaving<'a>(
        &mut self,
        id: SubscriptionId,
        context: &MessageContext<'_>,
        message: Message<'a>,
    ) -> Message<'a> {
        let Context { clients, messages, .. } = self;
        let shows = |subscription: &Subscription| subscription.wanted.shows(context, &mut messages.arena);
        if message.kind != MessageKind::Oof(OofReason::Match)
            || clients.subscriptions.get(id).is_none_or(shows)
        {
            return message;
        }
        let kind = MessageKind::Oof(OofReason::Entitlement);
        Message { kind, data: b"", correlation_id: b"", headers: Headers::NONE, ..message }
    }

    /// Puts a message into the outbox of the connection of the subscription, or into the messages
    /// that the subscription holds. `shared` has the same bytes as the data of the message.
    pub fn deliver_published(
        &mut self,
        id: SubscriptionId,
        context: &MessageContext<'_>,
        message: &Message<'_>,
        is_queue: bool,
        shared: Option<&Arc<SharedData>>,
    ) {
        // A connection may have been ended while this message was served. Its subscriptions ended
        // with it.
        let Some(subscription) = self.clients.subscriptions.get_mut(id) else { return };
        let session_id = subscription.session;
        let message = Message { subscription: subscription.number, ..*message };
        let conflation = subscription.delivery.conflation.as_ref().filter(|_| !is_queue);
        if conflation.is_some_and(|conflation| conflation.key.applies_to(message.key)) {
            if subscription.served_by == ServedBy::Table && !message.key.is_empty() {
                return;
            }
            if !subscription.wanted.wants_key(message.key) {
                return;
            }
            self.conflate_message(id, context.topic, Some(context), &message);
            return self.check_backlog(session_id);
        }
        let session = &mut self.clients.sessions.all[session_id];
        if shared.is_none() {
            self.clients.buffers.give(&mut session.outbox);
        }
        let is_foreign = match subscription.served_by {
            // The name belongs to a queue, which serves the subscriptions without a bookmark.
            ServedBy::Stream | ServedBy::Queue => is_queue,
            ServedBy::Sow | ServedBy::Table => subscription.leaves_out(message.key),
            // A bookmark subscription receives only recorded messages.
            ServedBy::Bookmark => message.bookmark.is_none() || subscription.wanted.leaves_out(|| *context),
        };
        if is_foreign {
            return;
        }
        let (frame_size, size) = match subscription.delivery.gate.held() {
            None => {
                let frame_size = session.outbox.put_message(&message, shared);
                (frame_size, session.outbox.backlog_size())
            }
            Some(held) => {
                let size_before = held.len();
                session.outbox.note_messages(1);
                session.outbox.encoder().put_message(&message, held);
                let frame_size = held.len() - size_before;
                // Frames that wait until a `live` subscription is synchronized count only for that
                // subscription.
                let deferred_size = match subscription.served_by {
                    ServedBy::Bookmark => held.len(),
                    _ => {
                        session.deferred_size += frame_size;
                        session.deferred_size
                    }
                };
                (frame_size, deferred_size + session.outbox.backlog_size())
            }
        };
        self.clients.subscriptions.note_sent(id, 1, frame_size);
        if shared.is_some() && session.is_writable {
            self.clock.slices.charge(message.data.len());
        }
        self.clients.counters.delivered += 1;
        let transport = &self.config.transports[session.transport.0 as usize];
        let size_max = self.clients.offline.size_max(transport);
        mark_dirty(session, &mut self.clients.sessions.dirty, session_id);
        self.tell_delivered(session_id, &message);
        if size as u64 > size_max {
            self.end_slow(session_id);
        }
    }

    /// Held messages of a conflated subscription have a limit. Messages beyond it are added to the
    /// backlog, which has its own limit.
    pub fn check_backlog(&mut self, id: SessionId) {
        let session = self.session(id);
        let size = session.outbox.backlog_size() + session.deferred_size;
        if size as u64 > self.backlog_max(id) {
            self.end_slow(id);
        }
    }

    /// Ends a connection whose backlog exceeds `max_client_backlog`.
    pub fn end_slow(&mut self, id: SessionId) {
        let limit = self.transport_of(id).max_client_backlog;
        let disk =
            if self.session(id).outbox.is_away() { ", and the disk does not take them in time" } else { "" };
        self.drop_slow(id, &format!("more than max_client_backlog, {limit} bytes, wait for it{disk}"));
    }

    /// Ends the connection with the largest backlog. There is always one, because this is only
    /// called for a sum above its limit. `transport`: only its connections, with their limit.
    pub fn end_slowest(&mut self, transport: Option<(TransportId, u64)>) {
        let of_transport = |session: &Session| {
            transport.is_none_or(|(id, _)| session.transport == id && session.phase != Phase::Closed)
        };
        let waiting_size = |session: &Session| session.outbox.backlog_size() + session.deferred_size;
        let sessions = self.clients.sessions.all.iter().filter(|(_, session)| of_transport(session));
        let Some((id, _)) = sessions.max_by_key(|(_, session)| waiting_size(session)) else { return };
        let reason = match transport {
            None => format!(
                "more than max_waiting, {} bytes, wait for all connections, most of them for it",
                self.config.limits.max_waiting
            ),
            Some((_, limit)) => format!(
                "more than message_memory_limit of the transport, {limit} bytes, wait for its clients, most of them for \
                 this one"
            ),
        };
        self.drop_slow(id, &reason);
    }

    /// Ends a connection that does not read its messages. Its buffered output is dropped.
    pub fn drop_slow(&mut self, id: SessionId, reason: &str) {
        let session = self.session(id);
        if session.phase == Phase::Closed {
            // Later messages of the same input are also dropped. The client receives the reason,
            // and no messages.
            return session.outbox.drop_unsendable();
        }
        session.outbox.clear();
        self.end(id, Code::SlowConsumer, reason);
    }
}
