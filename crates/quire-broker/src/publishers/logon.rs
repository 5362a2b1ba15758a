//! Logon: version, the one connection per client name, and the last sequence.

use std::time::Duration;

use super::Publishers;
use crate::context::Context;
use crate::events::ClientEvent;
use crate::session::{Identity, Phase, Principal, SessionId, Stall};
use crate::{Event, Timer};
use quire_command::{Code, LoggedOn, Logon, Reply};

/// How long a logon waits while the log may lack messages of other instances. Those of a set that
/// is started together come sooner. Then the client hears which instances are waited for.
const HELD_MAX: Duration = Duration::from_secs(1);

/// Bytes of the version of a client that are kept: enough for each version of a library.
const CLIENT_VERSION_SIZE_MAX: usize = 64;

impl Publishers {
    pub(crate) fn log_on(&mut self, cx: &mut Context, id: SessionId, logon: &Logon<'_>) {
        // The server supports every version up to its own, and 0 is not a version. So it supports
        // the lower of the two versions.
        let key = self.of_client_name(logon.client_name, &cx.log);
        if let Some(holder) = self.get(key).and_then(|publisher| publisher.session) {
            let identity = cx.session(holder).identity.as_ref();
            let holder_user = identity.and_then(|identity| identity.principal.user.as_deref());
            if holder_user != logon.user {
                cx.end(id, Code::NameInUse, "name in use: another user's connection holds the client name");
                return;
            }
            // The client gave up that connection before its logon arrived, and no longer reads from
            // it.
            if identity.is_some_and(|identity| is_late(logon, identity.incarnation)) {
                cx.end(
                    id,
                    Code::NameInUse,
                    "name in use: a newer connection of this client holds the client name",
                );
                return;
            }
            cx.end(holder, Code::NameInUse, "name in use: a newer connection took over the client name");
        }
        if let Err(reason) = cx.count_logon(id, logon.user) {
            return cx.end(id, Code::LimitExceeded, &reason);
        }
        self.hold(key, id, Duration::from_millis(logon.ack_interval_ms.into()), logon.run);
        let now = cx.clock.now.instant;
        let session = &mut cx.clients.sessions.all[id];
        session.identity = Some(Identity {
            principal: Principal { client_name: logon.client_name.into(), user: logon.user.map(Into::into) },
            publisher: key,
            incarnation: (logon.incarnation, logon.connection_number),
            persisted: logon.persisted,
            observes: logon.observes,
            client_version: logon.client_version.map(shortened),
        });
        session.phase = Phase::LoggingOn;
        let rights = cx.rights_at_logon(id, logon.user);
        cx.session(id).rights = rights;
        cx.clock.timers.clear_session(id);
        if logon.heartbeat_ms > 0 {
            let interval = Duration::from_millis(logon.heartbeat_ms.into());
            cx.session(id).heartbeat = Some(interval);
            cx.clock.timers.set(Timer::Heartbeat(id), now + interval);
            cx.clock.timers.set(Timer::Silence(id), now + 2 * interval);
        }
        self.queue_acks();
        // The logon does not wait for messages for which the journal has no room.
        let answerable = cx.log.answerable();
        let is_answered = self.get(key).is_none_or(|publisher| publisher.is_within(answerable));
        let is_held = cx.log.replicated.holds_logons && !logon.observes;
        if (is_answered && !is_held) || cx.log.failure.is_some() {
            self.enter(cx, id);
        } else {
            self.hold_back(key);
            cx.stall(id, Stall::LoggingOn);
            if is_held {
                cx.clock.timers.set(Timer::Logon(id), now + HELD_MAX);
            }
        }
    }

    /// Accepts the logon of a session after all earlier messages of its publisher are persisted and
    /// served.
    pub(crate) fn enter(&mut self, cx: &mut Context, id: SessionId) {
        let Some(identity) = &cx.clients.sessions.all[id].identity else { return };
        let key = identity.publisher;
        let client_name = identity.principal.client_name.to_string();
        let (instance, persisted) = (cx.config.name.clone(), identity.persisted);
        let is_first = identity.incarnation.1 <= 1;
        self.refresh(key, &cx.log);
        let Some(publisher) = self.get_mut(key) else { return };
        let publisher_id = publisher.id.get();
        let publishers = Some([publisher_id, publisher.derived.get()]);
        publisher.note_followed(cx.log.highest_sequence(publisher.id).unwrap_or(0), persisted);
        let (mut last_sequence, mut refused) = publisher.enter(|position, to| cx.log.is_safe(position, to));
        let (highest_sequence, run) = (publisher.highest(), publisher.run_of(false));
        let is_rejected = cx.log.replicated.has_rejected_after(publisher.id, persisted, run);
        if is_rejected || (!is_first && !cx.log.has_all_after(publisher.id, persisted, run)) {
            // Those that the log has of this run, and that no other instance has rejected, are
            // duplicates. The others are refused.
            publisher.rewind(persisted);
            last_sequence = last_sequence.min(persisted);
            refused.retain(|(sequence, _)| *sequence <= persisted);
        } else if let Some(first) = cx.log.first_lacking_after(publisher.id, persisted, run) {
            // The log lacks messages of this run that no instance has confirmed: they are in a
            // hole, or were passed over. Each gets its own answer when the client sends it again.
            publisher.rewind(first - 1);
            last_sequence = last_sequence.min(first - 1);
            refused.retain(|(sequence, _)| *sequence < first);
        }
        publisher.begin_sending();
        let message_size_max = cx.transport_of(id).max_message_size;
        let logged_on = LoggedOn {
            version: cx.clients.sessions.all[id].outbox.encoder().version(),
            publisher: publisher_id,
            last_sequence,
            highest_sequence,
            message_size_max,
            instance: &instance,
            server_version: Some(env!("CARGO_PKG_VERSION")),
            takes_reasons: true,
        };
        let is_inside = cx.transport_of(id).is_inside;
        let session = cx.session(id);
        session.phase = Phase::Open;
        let (connection, peer) = (session.connection, session.peer.to_string());
        let event = Event::LoggedOn { connection, peer, client_name, is_inside };
        cx.note(event);
        cx.tell_client(id, ClientEvent { event: "logon", publishers, ..Default::default() });
        cx.put(id, &Reply::LoggedOn(logged_on));
        // These messages were refused on an earlier connection, which was lost before it received
        // the refusal.
        for (sequence, refusal) in refused {
            cx.send_refused(id, sequence, &refusal);
        }
        self.tidy(key, &cx.log);
    }
}

/// At most the first bytes of a text of a peer.
fn shortened(text: &str) -> Box<str> {
    text[..text.floor_char_boundary(CLIENT_VERSION_SIZE_MAX)].into()
}

/// Whether the logon is from an earlier connection of the client that holds the name.
fn is_late(logon: &Logon<'_>, (incarnation, connection_number): (u64, u32)) -> bool {
    logon.incarnation != 0 && logon.incarnation == incarnation && logon.connection_number < connection_number
}
