//! Acknowledges and refuses messages of publishers, and answers flushes.

use crate::context::Context;
use quire_journal::JournalError;

use super::Publishers;
use crate::failure::{Failure, code_of};
use crate::publishers::{NextAck, Settled};
use crate::session::{ACK_BACKLOG_MAX, Phase, PublisherKey, SessionId, Stall};
use crate::{Event, Timer};
use quire_command::{Ack, AckKind, Acks, Code, FailureScope, Reply};

impl Publishers {
    /// Sends every publisher its new acknowledgements and refusals, answers flushes, and accepts
    /// the logons that waited for this.
    pub(crate) fn acknowledge_all(&mut self, cx: &mut Context) {
        let answerable = cx.log.answerable();
        let may_enter = !cx.log.replicated.holds_logons;
        for key in self.unsettled() {
            // An earlier iteration of this loop may have removed this publisher.
            let Some(publisher) = self.get(key) else { continue };
            let Some(id) = publisher.session else {
                self.acknowledge_absent(key, &cx.log);
                continue;
            };
            if cx.clients.sessions.all[id].phase == Phase::LoggingOn {
                if publisher.is_within(answerable) && may_enter {
                    self.enter(cx, id);
                    cx.resume_commands(id, Stall::LoggingOn);
                }
                continue;
            }
            self.acknowledge_session(cx, id, key);
            self.tidy(key, &cx.log);
        }
        let waiting: Vec<_> = std::mem::take(&mut cx.clients.sessions.flushing).into_iter().collect();
        for id in waiting {
            self.answer_flushes(cx, id);
        }
    }

    fn acknowledge_session(&mut self, cx: &mut Context, id: SessionId, key: PublisherKey) {
        let mut answers = Vec::new();
        let Some(publisher) = self.get_mut(key) else { return };
        let (log, now, durations) = (&cx.log, cx.clock.now.instant, &mut cx.clients.counters.persisted);
        publisher.settle(
            |position, to| log.is_safe(position, to),
            |received_at| durations.note(now - received_at),
            |settled| answers.push(settled),
        );
        match publisher.next_ack(cx.clock.now.instant) {
            Some(NextAck::Due(sequence)) => answers.push(Settled::Persisted(sequence)),
            Some(NextAck::At(at)) => cx.clock.timers.set(Timer::Acknowledge(id), at),
            None => (),
        }
        let may_owe_more = publisher.refusal_count() < ACK_BACKLOG_MAX;
        for settled in answers {
            match settled {
                Settled::Persisted(sequence) => cx.put(id, &Reply::Persisted { sequence }),
                Settled::Refused(sequence, refusal) => cx.send_refused(id, sequence, &refusal),
            }
        }
        if may_owe_more {
            cx.resume_commands(id, Stall::AckBacklog);
        }
        self.close_if_settled(cx, id);
    }

    /// Sends the due acknowledgement, if there is one, and ignores the interval.
    pub(crate) fn acknowledge_now(&mut self, cx: &mut Context, id: SessionId) {
        let Some(key) = cx.session(id).identity.as_ref().map(|identity| identity.publisher) else {
            return;
        };
        if cx.session(id).phase == Phase::LoggingOn {
            return;
        }
        if let Some(sequence) =
            self.get_mut(key).and_then(|publisher| publisher.take_due(cx.clock.now.instant))
        {
            cx.put(id, &Reply::Persisted { sequence });
        }
    }

    /// Sends the last acknowledgement once more.
    pub(crate) fn repeat_acknowledgement(&mut self, cx: &mut Context, id: SessionId) {
        let key = cx.session(id).identity.as_ref().map(|identity| identity.publisher);
        let sequence = key.and_then(|key| self.get(key)).map_or(0, |publisher| publisher.persisted());
        if sequence > 0 {
            cx.put(id, &Reply::Persisted { sequence });
        }
    }

    pub(crate) fn flush(&mut self, cx: &mut Context, id: SessionId, command: u32, acks: Acks) {
        cx.acknowledge_received(id, command, 0, acks);
        let session = cx.session(id);
        let may_miss = session.knows_of_failure || session.has_settled;
        if acks.has(Acks::PERSISTED) && may_miss && cx.log.failure.is_some() {
            return cx.fail_command(id, command, 0, &cx.failure_frame());
        }
        cx.acknowledge_processed(id, command, 0, acks);
        if acks.has(Acks::PERSISTED) {
            cx.owe_persisted(id, command);
        }
    }

    /// Answers the flushes that can be answered now, each after the acknowledgement of its
    /// messages.
    fn answer_flushes(&mut self, cx: &mut Context, id: SessionId) {
        let answerable = cx.log.answerable();
        loop {
            let Some(session) = cx.clients.sessions.all.get_mut(id) else { return };
            if session.phase == Phase::Closed {
                return;
            }
            let Some(flush) = session.flushes.front_mut() else { break };
            if flush.announced.is_some_and(|last| cx.log.announced.is_done(last)) {
                flush.position = cx.log.appended();
                flush.announced = None;
            }
            let flush = *flush;
            let publisher = session.identity.as_ref().map(|identity| identity.publisher);
            // The destinations have the earlier publishes of the connection, too.
            let is_done = flush.announced.is_none()
                && flush.position <= answerable
                && publisher
                    .and_then(|key| self.get(key))
                    .is_none_or(|publisher| publisher.has_settled(flush.position));
            if !is_done && cx.log.failure.is_none() {
                cx.clients.sessions.flushing.insert(id);
                break;
            }
            session.flushes.pop_front();
            let (code, reason) = if is_done {
                self.acknowledge_now(cx, id);
                (Code::Ok, String::new())
            } else {
                let failure = cx.failure_frame();
                (failure.code, failure.reason)
            };
            let ack = Ack {
                kind: AckKind::Persisted,
                code,
                command: flush.command,
                subscription: 0,
                detail: 0,
                reason: &reason,
            };
            cx.put(id, &Reply::Ack(ack));
        }
        cx.resume_commands(id, Stall::AckBacklog);
        self.close_if_settled(cx, id);
    }

    /// Checks whether the journal has failed since the last turn, or has room again. Returns
    /// whether no more records are persisted from now on.
    pub(crate) fn notice_journal(&mut self, cx: &mut Context) -> bool {
        if let Some(error) = cx.log.journal.failure() {
            cx.fail(&error);
        }
        if std::mem::take(&mut cx.log.is_failure_news) {
            self.send_failures(cx);
            return true;
        }
        match (cx.log.journal.stall(), &cx.log.failure) {
            (Some(error), None) => {
                self.journal_stalled(cx, &error);
                true
            }
            (None, Some(Failure { passes: true, .. })) => {
                self.journal_resumed(cx);
                false
            }
            _ => false,
        }
    }

    /// The journal has no room. Every waiting publisher receives the first sequence that is not
    /// persisted for now. Appended records are kept, and so are the changes of queues. Publishes
    /// are refused until there is room.
    fn journal_stalled(&mut self, cx: &mut Context, error: &JournalError) {
        let failure = Failure { code: code_of(error), reason: error.to_string(), passes: true };
        let event = Event::JournalStalled { code: failure.code, reason: failure.reason.clone() };
        cx.note(event);
        cx.log.failure = Some(failure);
        self.queue_acks();
        for key in self.unsettled() {
            let Some(id) = self.get(key).and_then(|publisher| publisher.session) else { continue };
            if cx.session(id).phase == Phase::LoggingOn {
                self.enter(cx, id);
                cx.resume_commands(id, Stall::LoggingOn);
                continue;
            }
            self.acknowledge_session(cx, id, key);
            if !self.is_settled(key) {
                self.send_failure(cx, id);
                self.close_if_settled(cx, id);
            }
        }
    }

    /// All appended records are persisted. After a connection received the failure, its later
    /// publishes may have been refused. So no more commands are accepted from it: its client sends
    /// these publishes again, in their order, on the next connection.
    fn journal_resumed(&mut self, cx: &mut Context) {
        let Some(failure) = cx.log.failure.take() else { return };
        cx.note(Event::JournalResumed);
        let notified = cx.clients.sessions.all.iter().filter(|(_, session)| session.knows_of_failure);
        let notified: Vec<_> = notified.map(|(id, _)| id).collect();
        for id in notified {
            self.acknowledge_now(cx, id);
            cx.end(
                id,
                failure.code,
                "the journal takes writes again: connect again, and publish again what was not persisted",
            );
        }
    }

    /// The journal accepts no more writes. Every waiting publisher receives the first sequence that
    /// is not persisted.
    fn send_failures(&mut self, cx: &mut Context) {
        self.queue_acks();
        // Messages that were persisted before the failure are still acknowledged.
        for key in self.unsettled() {
            let session = self.get(key).and_then(|publisher| publisher.session);
            if let Some(id) = session
                && cx.session(id).phase != Phase::LoggingOn
            {
                self.acknowledge_session(cx, id, key);
                if !self.is_settled(key) {
                    self.send_failure(cx, id);
                }
            }
            let Some(publisher) = self.get_mut(key) else { continue };
            publisher.settle(|position, to| cx.log.is_safe(position, to), |_| (), |_| ());
            publisher.fail(cx.log.replicated.all());
            if let Some(id) = publisher.session {
                cx.resume_commands(id, Stall::AckBacklog);
                if cx.session(id).phase == Phase::LoggingOn {
                    self.enter(cx, id);
                    cx.resume_commands(id, Stall::LoggingOn);
                }
                self.close_if_settled(cx, id);
            }
            self.tidy(key, &cx.log);
        }
    }

    /// Notifies a publisher once that no more messages are persisted, with the first such sequence.
    pub(crate) fn send_failure(&mut self, cx: &mut Context, id: SessionId) {
        if cx.session(id).knows_of_failure {
            return;
        }
        self.acknowledge_now(cx, id);
        let failure = cx.failure_frame();
        let session = cx.session(id);
        session.knows_of_failure = true;
        let Some(key) = session.identity.as_ref().map(|identity| identity.publisher) else { return };
        let Some(publisher) = self.get(key) else { return };
        let sequence = publisher.persisted() + 1;
        let scope = FailureScope::AllFromHere;
        let Failure { code, reason, .. } = &failure;
        cx.put(id, &Reply::PublishFailed { sequence, code: *code, scope, reason });
    }

    /// Closes a session that has logged off, when no answer is pending.
    pub(crate) fn close_if_settled(&mut self, cx: &mut Context, id: SessionId) {
        let session = cx.session(id);
        let Some(identity) = &session.identity else { return };
        let publisher = identity.publisher;
        let owes_flush = !session.flushes.is_empty();
        let is_leaving = session.phase == Phase::Closing;
        // After the failure was reported, the session does not wait for messages for which the
        // journal has no room.
        let owes_publishes = !session.knows_of_failure && !self.is_settled(publisher);
        if is_leaving && !owes_flush && !owes_publishes {
            self.acknowledge_now(cx, id);
            cx.close_session(id);
        }
    }
}
