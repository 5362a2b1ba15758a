//! Logon: version, the one connection per client name, and the last sequence (seed 004).

use std::time::Duration;

use super::{Broker, Event, Output, Timer};
use crate::session::{Identity, Phase, SessionId, Stall};
use crate::wire::{Code, LoggedOn, Logon, ServerFrame, VERSION};

impl Broker {
    pub(super) fn log_on(&mut self, id: SessionId, logon: &Logon<'_>) {
        // Every version up to ours is spoken, and 0 is not a version: the lower of both is never one that we do not know.
        let key = self.publishers.of_client_name(logon.client_name, &self.journal);
        if let Some(holder) = self.publishers.get(key).and_then(|publisher| publisher.session) {
            let holder_user = self.session(holder).identity.as_ref().and_then(|i| i.user.as_deref());
            if holder_user != logon.user {
                self.end(id, Code::NameInUse, "name in use: another user's connection holds the client name");
                return;
            }
            self.end(holder, Code::NameInUse, "name in use: a newer connection took over the client name");
        }
        self.publishers.hold(key, id);
        let now = self.now.instant;
        let session = &mut self.sessions[id];
        session.identity = Some(Identity {
            client_name: logon.client_name.into(),
            user: logon.user.map(Into::into),
            publisher: key,
        });
        session.phase = Phase::Entering;
        session.ack_interval = Duration::from_millis(logon.ack_interval_ms.into());
        self.timers.clear(&mut self.sessions, id);
        if logon.heartbeat_ms > 0 {
            let interval = Duration::from_millis(logon.heartbeat_ms.into());
            self.session(id).heartbeat = Some(interval);
            self.timers.set(&mut self.sessions, id, Timer::Heartbeat, now + interval);
            self.timers.set(&mut self.sessions, id, Timer::Silence, now + 2 * interval);
        }
        self.publishers.note();
        // What the journal has no room for is not waited for.
        let persisted = self.journal.persisted();
        let is_persisted = self.publishers.get(key).is_none_or(|publisher| publisher.is_persisted(persisted));
        if is_persisted || self.failure.is_some() {
            self.enter(id);
        } else {
            self.stall(id, Stall::Entering);
        }
    }

    /// Lets a session in, once all that its publisher has sent before is persisted.
    pub(super) fn enter(&mut self, id: SessionId) {
        let Some(identity) = &self.sessions[id].identity else { return };
        let key = identity.publisher;
        let client_name = identity.client_name.to_string();
        let instance = self.config.name.clone();
        let persisted = self.journal.persisted();
        let Some(publisher) = self.publishers.get_mut(key) else { return };
        let publisher_id = publisher.id.get();
        let (last_sequence, refused) = publisher.enter(persisted);
        let highest_sequence = publisher.highest();
        let logged_on = LoggedOn {
            version: VERSION,
            publisher: publisher_id,
            last_sequence,
            highest_sequence,
            message_size_max: self.config.limits.max_message_size,
            instance: &instance,
            server_version: Some(env!("CARGO_PKG_VERSION")),
        };
        let session = self.session(id);
        session.phase = Phase::Open;
        let event =
            Event::LoggedOn { connection: session.connection, peer: session.peer.to_string(), client_name };
        self.outputs.push_back(Output::Log(event));
        self.put(id, &ServerFrame::LoggedOn(logged_on));
        // Refused on an earlier connection that was lost before it could be told.
        for (sequence, refusal) in refused {
            self.say_refused(id, sequence, refusal);
        }
        self.publishers.tidy(key, &self.journal);
    }
}
