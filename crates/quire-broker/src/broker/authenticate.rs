//! Logons whose password or token the driver checks. The check may take long, so it runs on another
//! thread, and the logon waits for the result.

use std::time::Duration;

use super::Broker;
use crate::events::ClientEvent;
use crate::session::{Phase, SessionId, Stall};
use crate::{Access, ConnectionId, Output, Timer};
use quire_command::{Code, Logon, WaitingLogon};
use quire_types::Secret;

impl Broker {
    /// The first command of a connection.
    pub(super) fn log_on(&mut self, id: SessionId, logon: &Logon<'_>) {
        let session = &self.cx.clients.sessions.all[id];
        let blocked = self.cx.clients.blocked.left(logon.client_name, self.cx.clock.now.instant);
        if let Some(left) = blocked.filter(|_| session.access == Access::Client) {
            let reason = format!("an administrator has blocked the client name for {} s", left.as_secs() + 1);
            self.tell_logon_failed(id, logon.client_name, &reason);
            return self.cx.end_because(id, Code::AuthenticationUnavailable, "admin", &reason);
        }
        if session.access != Access::Client || !self.cx.transport_of(id).authenticates {
            return self.publishers.log_on(&mut self.cx, id, logon);
        }
        let connection = session.connection;
        if logon.heartbeat_ms > 0 {
            // The check may wait for other ones.
            let interval = Duration::from_millis(logon.heartbeat_ms.into());
            let due = self.cx.clock.now.instant + interval;
            self.cx.session(id).heartbeat = Some(interval);
            self.cx.clock.timers.set(Timer::Heartbeat(id), due);
        }
        self.cx.session(id).waiting_logon = Some(Box::new(WaitingLogon::new(logon)));
        self.cx.stall(id, Stall::Authenticating);
        self.cx.outputs.push_back(Output::Authenticate {
            connection,
            client_name: logon.client_name.to_owned(),
            user: logon.user.map(str::to_owned),
            password: logon.password.map(|password| Secret(password.0.to_owned())),
            token: logon.token.map(|token| Secret(token.0.to_owned())),
        });
    }

    /// The driver has checked the logon of a client or of an instance. Its connection may have
    /// ended meanwhile.
    pub(super) fn authenticated(
        &mut self,
        connection: ConnectionId,
        user: Result<&str, (Code, &str)>,
        groups: &str,
    ) {
        let Some(id) = self.cx.session_of(connection) else {
            return self.links.authenticated(&mut self.cx, connection, user, groups);
        };
        let session = self.cx.session(id);
        let Some(logon) = session.waiting_logon.take() else { return };
        if session.phase != Phase::AwaitingLogon {
            return;
        }
        match user {
            Ok(user) => {
                self.cx.session(id).groups = groups.lines().map(Into::into).collect();
                self.publishers.log_on(&mut self.cx, id, &logon.of_user(user));
                // A logon may still wait for the disk.
                self.cx.resume_commands(id, Stall::Authenticating);
            }
            Err((code, reason)) => {
                self.tell_logon_failed(id, logon.of_user("").client_name, reason);
                self.cx.end(id, code, reason);
            }
        }
    }

    fn tell_logon_failed(&mut self, id: SessionId, client_name: &str, reason: &str) {
        let (client_name, reason) = (Some(client_name), Some(reason));
        let told = ClientEvent { event: "logon_failed", client_name, reason, ..Default::default() };
        self.cx.tell_client(id, told);
    }
}
