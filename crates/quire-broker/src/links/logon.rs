//! The logons of connections between instances, and their users. The engine is
//! `quire_link::LoggingOn`. The driver checks identities, as it does for clients.

use quire_command::Code;
use quire_link::{GivenIdentity, LoggingOn, LogonStep};
use quire_wire::link::{Frame, Logon, VERSION};

use super::connection::Connection;
use super::incoming::Incoming;
use super::{LINKS_ACCEPTED_MAX, Links};
use crate::access::LinkUser;
use crate::config::links::check_name;
use crate::context::Context;
use crate::io::{ConnectionId, Event, LinkIdentity, Output};

impl Links {
    /// The driver has connected to a destination. `tls`: the connection is encrypted.
    pub(crate) fn opened(
        &mut self,
        cx: &mut Context,
        destination: u32,
        (id, tls): (ConnectionId, bool),
        identity: LinkIdentity<'_>,
    ) {
        let number = destination as usize;
        let link = self.outgoing.get(number).filter(|link| link.is_opening());
        // The link was paused meanwhile, or the other instance has connected.
        let Some(link) = link else { return cx.outputs.push_back(Output::Close { connection: id }) };
        let now = cx.clock.now.instant;
        let LinkIdentity { user, password, token } = identity;
        let logon = Logon { version: VERSION, instance: &cx.config.name, user, password, token };
        let (logon, bytes) = LoggingOn::sent(now, logon);
        let incoming = Incoming::idle(id, link.address(), self.definitions.clone(), now);
        self.connections.push(Connection::new((id, tls), Some(number), logon, incoming));
        cx.outputs.push_back(Output::Send { connection: id, bytes });
    }

    /// The driver could not connect to a destination.
    pub(crate) fn not_opened(&mut self, cx: &mut Context, destination: u32, reason: &str) {
        if let Some(link) = self.outgoing.get_mut(destination as usize) {
            link.not_opened(cx, reason);
        }
    }

    /// Another instance has connected.
    pub(crate) fn accepted(&mut self, cx: &mut Context, (id, tls): (ConnectionId, bool), peer: &str) {
        if self.connections.len() >= LINKS_ACCEPTED_MAX + self.definitions.len() {
            let reason =
                format!("{} connections of other instances are open already", self.connections.len());
            cx.note(Event::LinkRefused { source: peer.to_owned(), reason });
            return cx.outputs.push_back(Output::Close { connection: id });
        }
        let now = cx.clock.now.instant;
        let logon = LoggingOn::awaited(now, cx.config.replication.logon_timeout());
        let incoming = Incoming::idle(id, peer, self.definitions.clone(), now);
        self.connections.push(Connection::new((id, tls), None, logon, incoming));
    }

    /// Does what is due of the logons.
    pub(super) fn advance_logons(&mut self, cx: &mut Context) {
        let now = cx.clock.now.instant;
        let due = self.connections.iter_mut().filter_map(|connection| {
            let step = connection.logon.as_mut()?.advance(now);
            (step != LogonStep::Wait).then_some((connection.id, step))
        });
        for (id, step) in due.collect::<Vec<_>>() {
            self.continue_logon(cx, id, step);
        }
    }

    /// Carries out a step of the logon of a connection.
    pub(super) fn continue_logon(&mut self, cx: &mut Context, id: ConnectionId, step: LogonStep) {
        let Some(index) = self.connections.iter().position(|connection| connection.id == id) else { return };
        let made_for = self.connections[index].made_for;
        match (step, made_for) {
            (LogonStep::Wait, _) => {
                if let Err(reason) = self.connections[index].count(cx) {
                    self.refuse_logon(cx, index, &Frame::Refused { reason: &reason });
                }
            }
            (LogonStep::Send(bytes), _) => cx.outputs.push_back(Output::Send { connection: id, bytes }),
            (LogonStep::Check(given), _) => self.check_identity(cx, index, given),
            (LogonStep::LoggedOn { user }, Some(number)) => self.logged_on(cx, index, number, &user),
            (LogonStep::Refused(reason), Some(number)) => {
                self.remove(cx, index);
                self.outgoing[number].not_logged_on(cx, &reason);
            }
            (LogonStep::Failed(reason) | LogonStep::Broken(reason), Some(number)) => {
                self.remove(cx, index);
                self.outgoing[number].not_opened(cx, &reason);
            }
            (LogonStep::Failed(reason), None) => {
                self.refuse_logon(cx, index, &Frame::Ended { reason: &reason });
            }
            (LogonStep::Broken(reason), None) => {
                self.refuse_logon(cx, index, &Frame::Refused { reason: &reason });
            }
            // Answers, which only the instance that made the connection gets.
            (LogonStep::LoggedOn { .. } | LogonStep::Refused(_), None) => (),
        }
    }

    /// The other instance has accepted the logon of this one: the link can begin.
    fn logged_on(&mut self, cx: &mut Context, index: usize, number: usize, user: &str) {
        let connection = &mut self.connections[index];
        connection.logon = None;
        connection.incoming.user = LinkUser::of_this_instance(user);
        let id = connection.id;
        let introduction = (self.members.as_ref(), self.last.map(|last| last.bookmark));
        let link = &mut self.outgoing[number];
        // Otherwise the connection is closed at the end of the turn, because no link uses it.
        if link.is_opening() {
            link.begin(cx, id, None, LinkUser::default(), introduction);
        }
    }

    fn check_identity(&mut self, cx: &mut Context, index: usize, given: GivenIdentity) {
        let GivenIdentity { instance, user, password, token } = given;
        if let Err(error) = check_name("the name of the instance", &instance) {
            let reason = error.to_string();
            return self.refuse_logon(cx, index, &Frame::Refused { reason: &reason });
        }
        let connection = &mut self.connections[index];
        if !cx.config.replication.authenticates {
            let user = cx.link_user(&instance, None, "");
            return connection.accept(cx, user);
        }
        // The answer comes with the user.
        connection.incoming.user.instance = instance.as_str().into();
        let (connection, client_name) = (connection.id, instance);
        cx.outputs.push_back(Output::Authenticate { connection, client_name, user, password, token });
    }

    /// The driver has checked the identity of an instance. Its connection may have ended meanwhile.
    pub(crate) fn authenticated(
        &mut self,
        cx: &mut Context,
        id: ConnectionId,
        user: Result<&str, (Code, &str)>,
        groups: &str,
    ) {
        let is_checked = |connection: &Connection| {
            connection.id == id && connection.logon.as_ref().is_some_and(LoggingOn::is_checking)
        };
        let Some(index) = self.connections.iter().position(is_checked) else { return };
        match user {
            Ok(user) => {
                let connection = &mut self.connections[index];
                let user = cx.link_user(&connection.incoming.user.instance, Some(user), groups);
                connection.accept(cx, user);
            }
            // The instance tries again soon.
            Err((Code::AuthenticationUnavailable, reason)) => {
                self.refuse_logon(cx, index, &Frame::Ended { reason });
            }
            Err((_, reason)) => self.refuse_logon(cx, index, &Frame::Refused { reason }),
        }
    }

    /// Ends a connection whose logon is not accepted. The frame says why.
    fn refuse_logon(&mut self, cx: &mut Context, index: usize, frame: &Frame<'_>) {
        let connection = &self.connections[index];
        if let Frame::Refused { reason } | Frame::Ended { reason } = frame {
            let source = connection.incoming.peer().to_owned();
            cx.note(Event::LinkRefused { source, reason: (*reason).to_owned() });
        }
        connection.send(cx, frame);
        self.remove(cx, index);
    }

    fn remove(&mut self, cx: &mut Context, index: usize) {
        let mut connection = self.connections.swap_remove(index);
        connection.forget(cx);
        cx.outputs.push_back(Output::Close { connection: connection.id });
    }

    /// The user of a connection has changed: its links end, and then the connection.
    pub(crate) fn reset(&mut self, cx: &mut Context, id: ConnectionId, reason: &str) {
        let Some(index) = self.connections.iter().position(|connection| connection.id == id) else { return };
        let connection = &mut self.connections[index];
        let LinkUser { name, instance, .. } = &connection.incoming.user;
        let (user, client) = (name.as_deref().unwrap_or_default().to_owned(), instance.to_string());
        cx.note(Event::LoggedOff { user, client, reason: reason.to_owned() });
        connection.incoming.break_off(cx, reason);
        if let Some(link) = self.outgoing.iter_mut().find(|link| link.connection() == Some(id)) {
            link.lose(cx, reason);
        }
        self.remove(cx, index);
    }

    /// Uses other entries, and `authenticates` the instances that connect or does not. Connections
    /// end whose user is another one, or has other entries.
    pub(crate) fn entitle(&mut self, cx: &mut Context, authenticates: bool) {
        let before = std::mem::replace(&mut cx.config.replication.authenticates, authenticates);
        let logged_on =
            self.connections.iter().filter(|each| each.made_for.is_none() && each.logon.is_none());
        let changed = logged_on.filter_map(|connection| match &connection.incoming.user {
            _ if before != authenticates => {
                Some((connection.id, "the authentication of the server was changed"))
            }
            user if cx.has_other_entries(user) => {
                Some((connection.id, "the rights of the user were changed"))
            }
            _ => None,
        });
        for (id, reason) in changed.collect::<Vec<_>>() {
            self.reset(cx, id, reason);
        }
    }
}

impl Connection {
    /// The other instance has logged on: it may begin a link.
    fn accept(&mut self, cx: &mut Context, user: LinkUser) {
        self.logon = None;
        let name = user.name.clone().unwrap_or_default();
        self.send(cx, &Frame::LoggedOn { user: &name });
        self.incoming.accept(user, cx.clock.now.instant);
    }

    pub(super) fn send(&self, cx: &mut Context, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        cx.outputs.push_back(Output::Send { connection: self.id, bytes });
    }
}
