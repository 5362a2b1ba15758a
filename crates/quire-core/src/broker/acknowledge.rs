//! Telling publishers what has become of their messages, and answering flushes.

use quire_journal::JournalError;

use super::{Broker, Event, Output, Timer};
use crate::session::{Flush, OWED_MAX, Phase, Publisher, PublisherKey, Refusal, SessionId, Settled, Stall};
use crate::wire::{Ack, AckKind, Acks, Code, FailureScope, ServerFrame};

/// Why the journal takes no writes.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) code: Code,
    pub(super) reason: String,
    /// It ends when there is room again: the journal keeps what is appended until then.
    pub(super) passes: bool,
}

/// What publishers are told when the journal fails.
pub(super) fn code_of(error: &JournalError) -> Code {
    match error {
        JournalError::Full { .. } => Code::StorageFull,
        JournalError::Corrupt { .. }
        | JournalError::Unreadable { .. }
        | JournalError::Gap { .. }
        | JournalError::Missing { .. }
        | JournalError::Truncated { .. }
        | JournalError::Version { .. } => Code::JournalCorrupt,
        JournalError::BadOption { .. }
        | JournalError::SequencesEnd { .. }
        | JournalError::Behind { .. }
        | JournalError::Panicked => Code::Internal,
        JournalError::Io { .. }
        | JournalError::OutOfFiles { .. }
        | JournalError::Removed { .. }
        | JournalError::Locked { .. }
        | JournalError::Closed
        | JournalError::TimedOut => Code::StorageFailed,
    }
}

impl Broker {
    /// Tells every publisher what is now true of its messages, answers flushes, lets in those who waited for it.
    pub(super) fn settle(&mut self) {
        let persisted = self.journal.persisted();
        for key in self.publishers.unsettled() {
            // An earlier one of this loop may have been the reason to forget this one.
            let Some(publisher) = self.publishers.get(key) else { continue };
            let Some(id) = publisher.session else {
                self.publishers.settle_absent(key, &self.journal);
                continue;
            };
            if self.sessions[id].phase == Phase::Entering {
                if publisher.is_persisted(persisted) {
                    self.enter(id);
                    self.end_stall(id);
                }
                continue;
            }
            self.settle_session(id, key);
            self.publishers.tidy(key, &self.journal);
        }
        let waiting: Vec<_> = std::mem::take(&mut self.flushing).into_iter().collect();
        for id in waiting {
            self.answer_flushes(id);
        }
    }

    fn settle_session(&mut self, id: SessionId, key: PublisherKey) {
        let persisted = self.journal.persisted();
        let mut said = Vec::new();
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        publisher.settle(persisted, |settled| said.push(settled));
        let may_owe_more = publisher.refusal_count() < OWED_MAX;
        for settled in said {
            match settled {
                Settled::Persisted(sequence) => self.put(id, &ServerFrame::Persisted { sequence }),
                Settled::Refused(sequence, refusal) => self.say_refused(id, sequence, refusal),
            }
        }
        self.acknowledge(id);
        if may_owe_more && self.session(id).stall == Some(Stall::Owing) {
            self.stalled.push(id);
        }
        self.leave_if_settled(id);
    }

    pub(super) fn say_refused(&mut self, id: SessionId, sequence: u64, refusal: Refusal) {
        let (code, reason) = (refusal.code(), refusal.reason());
        let scope = FailureScope::One;
        self.put(id, &ServerFrame::PublishFailed { sequence, code, scope, reason });
    }

    /// Sends the acknowledgement that is due, now or when the client's shortest interval has passed.
    fn acknowledge(&mut self, id: SessionId) {
        let session = &self.sessions[id];
        let Some(key) = session.identity.as_ref().map(|identity| identity.publisher) else { return };
        if self.publishers.get(key).and_then(Publisher::due).is_none() {
            return;
        }
        let at = session.acked_at.map(|at| at + session.ack_interval);
        match at {
            Some(at) if at > self.now.instant => {
                if session.timers[Timer::Acknowledge as usize].is_none() {
                    self.timers.set(&mut self.sessions, id, Timer::Acknowledge, at);
                }
            }
            _ => self.acknowledge_now(id),
        }
    }

    /// Sends the acknowledgement that is due, if there is one.
    pub(super) fn acknowledge_now(&mut self, id: SessionId) {
        let Some(key) = self.session(id).identity.as_ref().map(|identity| identity.publisher) else { return };
        if self.session(id).phase == Phase::Entering {
            return;
        }
        if let Some(sequence) = self.publishers.get_mut(key).and_then(Publisher::take_due) {
            let now = self.now.instant;
            self.session(id).acked_at = Some(now);
            self.put(id, &ServerFrame::Persisted { sequence });
        }
    }

    pub(super) fn flush(&mut self, id: SessionId, command: u32, acks: Acks) {
        self.acknowledge_received(id, command, 0, acks);
        self.log_changes();
        let session = self.session(id);
        let may_miss = session.knows_of_failure || session.has_settled;
        if acks.has(Acks::PERSISTED) && may_miss && self.failure.is_some() {
            return self.fail_command(id, command, 0, &self.failure_frame());
        }
        self.acknowledge_processed(id, command, 0, acks);
        if acks.has(Acks::PERSISTED) {
            let position = self.journal.appended();
            let session = self.session(id);
            session.flushes.push_back(Flush { command, position });
            let count = session.flushes.len();
            self.flushing.insert(id);
            if count >= OWED_MAX {
                self.stall(id, Stall::Owing);
            }
        }
    }

    /// Answers the flushes whose time has come, each after the acknowledgement of what it is about.
    fn answer_flushes(&mut self, id: SessionId) {
        let persisted = self.journal.persisted();
        loop {
            let Some(session) = self.sessions.get_mut(id) else { return };
            if session.phase == Phase::Closed {
                return;
            }
            let Some(&flush) = session.flushes.front() else { break };
            let is_persisted = flush.position <= persisted;
            if !is_persisted && self.failure.is_none() {
                self.flushing.insert(id);
                break;
            }
            session.flushes.pop_front();
            let (code, reason) = if is_persisted {
                self.acknowledge_now(id);
                (Code::Ok, String::new())
            } else {
                let failure = self.failure_frame();
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
            self.put(id, &ServerFrame::Ack(ack));
        }
        if self.session(id).stall == Some(Stall::Owing) {
            self.stalled.push(id);
        }
        self.leave_if_settled(id);
    }

    /// Goes on with sessions that waited for their answers.
    pub(super) fn resume_stalled(&mut self) {
        for id in std::mem::take(&mut self.stalled) {
            let Some(session) = self.sessions.get(id) else { continue };
            if session.stall == Some(Stall::Owing) && session.flushes.len() < OWED_MAX {
                self.end_stall(id);
            }
        }
    }

    /// Looks whether the journal has failed since the last turn, or has room again.
    pub(super) fn notice_failure(&mut self) {
        if let Some(error) = self.journal.failure() {
            return self.fail(&error);
        }
        match (self.journal.stall(), &self.failure) {
            (Some(error), None) => self.journal_stalled(&error),
            (None, Some(Failure { passes: true, .. })) => self.journal_resumed(),
            _ => (),
        }
    }

    /// The journal has no room: every publisher that waits is told from where on nothing is persisted for now. What was appended is
    /// kept, and so is what queues have to say of their messages; publishes are refused until there is room.
    fn journal_stalled(&mut self, error: &JournalError) {
        let failure = Failure { code: code_of(error), reason: error.to_string(), passes: true };
        let event = Event::JournalStalled { code: failure.code, reason: failure.reason.clone() };
        self.outputs.push_back(Output::Log(event));
        self.failure = Some(failure);
        self.publishers.note();
        for key in self.publishers.unsettled() {
            let Some(id) = self.publishers.get(key).and_then(|publisher| publisher.session) else { continue };
            if self.session(id).phase == Phase::Entering {
                self.enter(id);
                self.end_stall(id);
                continue;
            }
            self.settle_session(id, key);
            if !self.publishers.is_settled(key) {
                self.say_failure(id);
                self.leave_if_settled(id);
            }
        }
        self.clamp_goals();
    }

    /// Everything that was appended is persisted. A connection that was told of the failure may miss publishes that were refused after
    /// that, so that nothing more is taken from it: its client sends them again, in their order, on the next one.
    fn journal_resumed(&mut self) {
        let Some(failure) = self.failure.take() else { return };
        self.outputs.push_back(Output::Log(Event::JournalResumed));
        let told = self.sessions.iter().filter(|(_, session)| session.knows_of_failure);
        let told: Vec<_> = told.map(|(id, _)| id).collect();
        for id in told {
            self.acknowledge_now(id);
            self.end(
                id,
                failure.code,
                "the journal takes writes again: connect again, and publish again what was not persisted",
            );
        }
    }

    /// Whether the journal takes no more writes until the server is started again.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.as_ref().is_some_and(|failure| !failure.passes)
    }

    /// The journal takes no more writes: every publisher that waits is told from where on nothing is persisted. Reading goes on.
    pub(super) fn fail(&mut self, error: &JournalError) {
        if self.has_failed() {
            return;
        }
        let failure = Failure { code: code_of(error), reason: error.to_string(), passes: false };
        let event = Event::JournalFailed { code: failure.code, reason: failure.reason.clone() };
        self.outputs.push_back(Output::Log(event));
        self.failure = Some(failure);
        self.publishers.note();
        // What became persisted before the failure is still acknowledged.
        let persisted = self.journal.persisted();
        for key in self.publishers.unsettled() {
            let session = self.publishers.get(key).and_then(|publisher| publisher.session);
            if let Some(id) = session
                && self.session(id).phase != Phase::Entering
            {
                self.settle_session(id, key);
                if !self.publishers.is_settled(key) {
                    self.say_failure(id);
                }
            }
            let Some(publisher) = self.publishers.get_mut(key) else { continue };
            publisher.settle(persisted, |_| ());
            publisher.fail();
            if let Some(id) = publisher.session {
                self.stalled.push(id);
                if self.session(id).phase == Phase::Entering {
                    self.enter(id);
                    self.end_stall(id);
                }
                self.leave_if_settled(id);
            }
            self.publishers.tidy(key, &self.journal);
        }
        self.clamp_goals();
    }

    /// Tells a publisher, once, that nothing more is persisted, and from where on.
    pub(super) fn say_failure(&mut self, id: SessionId) {
        if self.session(id).knows_of_failure {
            return;
        }
        self.acknowledge_now(id);
        let failure = self.failure_frame();
        let session = self.session(id);
        session.knows_of_failure = true;
        let Some(key) = session.identity.as_ref().map(|identity| identity.publisher) else { return };
        let Some(publisher) = self.publishers.get(key) else { return };
        let sequence = publisher.persisted() + 1;
        let scope = FailureScope::AllFromHere;
        let Failure { code, reason, .. } = &failure;
        self.put(id, &ServerFrame::PublishFailed { sequence, code: *code, scope, reason });
    }

    fn failure_frame(&self) -> Failure {
        let unknown = Failure { code: Code::Internal, reason: String::new(), passes: false };
        self.failure.clone().unwrap_or(unknown)
    }

    pub(super) fn acknowledge_received(
        &mut self,
        id: SessionId,
        command: u32,
        subscription: u32,
        acks: Acks,
    ) {
        if acks.has(Acks::RECEIVED) {
            self.acknowledge_command(id, AckKind::Received, command, subscription);
        }
    }

    pub(super) fn acknowledge_processed(
        &mut self,
        id: SessionId,
        command: u32,
        subscription: u32,
        acks: Acks,
    ) {
        if acks.has(Acks::PROCESSED) {
            self.acknowledge_command(id, AckKind::Processed, command, subscription);
        }
    }

    /// A subscription has begun or changed; `granted`: the backlog that its queues give it.
    pub(super) fn acknowledge_entered(
        &mut self,
        id: SessionId,
        command: u32,
        subscription: u32,
        acks: Acks,
        granted: Option<u32>,
    ) {
        if acks.has(Acks::PROCESSED) {
            let (kind, detail) = (AckKind::Processed, granted.unwrap_or_default());
            let ack = Ack { kind, code: Code::Ok, command, subscription, detail, reason: "" };
            self.put(id, &ServerFrame::Ack(ack));
        }
    }

    pub(super) fn acknowledge_command(
        &mut self,
        id: SessionId,
        kind: AckKind,
        command: u32,
        subscription: u32,
    ) {
        let ack = Ack { kind, code: Code::Ok, command, subscription, detail: 0, reason: "" };
        self.put(id, &ServerFrame::Ack(ack));
    }

    /// A failed command gets one `processed` with its code, whatever it asked for.
    fn fail_command(&mut self, id: SessionId, command: u32, subscription: u32, failure: &Failure) {
        let Failure { code, reason, .. } = failure;
        let ack = Ack { kind: AckKind::Processed, code: *code, command, subscription, detail: 0, reason };
        self.put(id, &ServerFrame::Ack(ack));
    }
}
