//! Decodes received bytes into commands, and passes each command to the service that carries it
//! out.

use std::mem;
use std::time::Duration;

use super::{Broker, figures};
use crate::admin::{AdminCommand, AdminReply, Requester};
use crate::codec::{Codec, CodecError};
use crate::config::queues::{QueueChanges, QueueSettings};
use crate::config::views::ViewSettings;
use crate::context::Shutdown;
use crate::entitlement::{Denied, Grant, Resource};
use crate::events::ClientEvent;
use crate::queues::{Define, check_size};
use crate::reply::Refused;
use crate::session::{ACK_BACKLOG_MAX, Phase, RestOfBatch, SessionId, Stall};
use crate::slice::CONTINUATION;
use crate::stats::Page;
use crate::stats::{QueueFigures, ServerStats};
use crate::tail::LogConsumer;
use crate::{Access, ConnectionId, Output, TransportId};
use quire_command::{Code, Command, DefineQueue, LinkAction, Publish, PublishBatch, Query};
use quire_expression::topic::TopicSelector;

impl Broker {
    /// Takes the commands in `bytes`, or buffers them while the session is stalled.
    pub(super) fn receive(&mut self, id: SessionId, bytes: &[u8]) {
        if !self.hears(id) {
            return;
        }
        if self.cx.session(id).stall.is_some() {
            self.cx.keep(id, bytes);
            return self.cx.count_unfinished(id);
        }
        let taken_size = self.take_commands(id, bytes);
        if self.cx.session(id).stall.is_some() {
            self.cx.keep(id, &bytes[taken_size..]);
            self.cx.touch(id);
        }
        self.cx.count_unfinished(id);
    }

    /// Records that bytes were received from the peer. Returns whether its commands are still
    /// accepted.
    fn hears(&mut self, id: SessionId) -> bool {
        let now = self.cx.clock.now.instant;
        let is_stopping = self.cx.shutdown != Shutdown::No;
        let session = self.cx.session(id);
        session.received_at = now;
        !is_stopping && !matches!(session.phase, Phase::Closing | Phase::Closed)
    }

    /// Takes commands from the front of `bytes` until the session has to wait. Returns the number
    /// of bytes that were taken.
    fn take_commands(&mut self, id: SessionId, bytes: &[u8]) -> usize {
        // The codec lends the texts and data of a command while the broker works on it.
        let mut codec = self.cx.session(id).codec.take();
        let mut rest = bytes;
        self.cx.begin_slice();
        let result = self.take_decoded(id, &mut codec, &mut rest);
        codec.set_message_size_max(self.cx.message_size_max(id));
        self.cx.session(id).codec = codec;
        self.tables.forget_ahead();
        let taken_size = bytes.len() - rest.len();
        if let Err(error) = result {
            self.cx.end(id, error.code, &error.reason);
        }
        taken_size
    }

    fn take_decoded(&mut self, id: SessionId, codec: &mut Codec, rest: &mut &[u8]) -> Result<(), CodecError> {
        loop {
            let session = self.cx.session(id);
            if !session.takes_commands() {
                return Ok(());
            }
            let phase = session.phase;
            if self.tables.wants_ahead() {
                self.look_ahead(id, codec.publishes(rest));
            }
            if !codec.next(rest, |command| self.take_command(id, command))? {
                return Ok(());
            }
            if self.cx.session(id).phase != phase {
                codec.set_message_size_max(self.cx.message_size_max(id));
            }
        }
    }

    /// Looks up the records of the next messages, as far as they have the topic of the previous
    /// message.
    fn look_ahead<'a>(&mut self, id: SessionId, publishes: impl Iterator<Item = Publish<'a>>) {
        let generation = self.cx.topics.generation();
        let known =
            self.cx.clients.sessions.all[id].topic.as_ref().filter(|known| known.generation == generation);
        let Some(known) = known else { return };
        let Some(table) = self.cx.topics.topic(known.id).table() else { return };
        let is_same = |publish: &Publish<'_>| publish.topic == known.name.as_bytes();
        self.tables.look_ahead(
            table,
            self.cx.clock.turn_size,
            publishes.take_while(is_same).map(|publish| publish.data),
        );
    }

    /// One command. The sender and the kind of the command decide which service carries it out.
    ///
    /// The intake decides about publishes, by their topics.
    fn take_command(&mut self, id: SessionId, command: &Command<'_>) {
        let is_logged_on = self.cx.clients.sessions.all[id].phase != Phase::AwaitingLogon;
        if self.cx.log.replicated.holds_logons && is_logged_on && !may_observe(command) {
            let reason = self.cx.log.replicated.not_ready.clone();
            let reason =
                reason.as_deref().unwrap_or("the instance has just started, and takes no clients yet");
            return self.cx.end(id, Code::NotReady, reason);
        }
        match command {
            Command::Publish(publish) if is_logged_on => {
                if let Some(publisher) = self.publishers.begin_publish(&mut self.cx, id) {
                    self.intake().publish(id, publisher, publish);
                    self.cx.end_of_publish(id, publish.data.len());
                }
            }
            Command::PublishBatch(batch) if is_logged_on => self.publish_batch(id, *batch),
            command => self.take_other(id, command),
        }
    }

    /// A command that is not a publish, or the first command of a connection.
    #[inline(never)]
    fn take_other(&mut self, id: SessionId, command: &Command<'_>) {
        // Before its logon, a connection has no rights, and may send only a logon: see below.
        let granted = match self.cx.admit(id, command) {
            Ok(granted) => granted,
            Err(denied) => return self.refuse(id, command, &denied),
        };
        let grant = granted.as_deref().unwrap_or(Grant::whole());
        match (self.cx.clients.sessions.all[id].phase, command) {
            (Phase::AwaitingLogon, Command::Logon(logon)) => self.log_on(id, logon),
            (Phase::AwaitingLogon, _) => {
                self.cx.end(id, Code::LogonRequired, "the first frame is not a logon")
            }
            (_, Command::Logon(_)) => self.cx.end(id, Code::DuplicateLogon, "logged on already"),
            // See `take_command`.
            (_, Command::Publish(_) | Command::PublishBatch(_)) => return,
            (_, Command::Subscribe(subscribe)) => self.subscribe(id, subscribe, grant),
            (_, Command::Unsubscribe(unsubscribe)) => self.unsubscribe(id, unsubscribe),
            (_, Command::Flush { command, acks }) => {
                // A flush includes the earlier changes of queues.
                self.queues.log_changes(&mut self.cx);
                self.publishers.flush(&mut self.cx, id, *command, *acks);
            }
            (_, Command::Heartbeat) => (),
            (_, Command::Goodbye) => self.leave(id),
            (_, Command::Pause { command, acks, subscriptions }) => {
                self.bookmarks.pause(&mut self.cx, id, *command, *acks, *subscriptions);
            }
            (_, Command::Resume { command, acks, subscriptions }) => {
                self.bookmarks.resume(&mut self.cx, id, *command, *acks, *subscriptions);
            }
            (_, Command::Settle(settle)) => self.queues.settle(&mut self.cx, id, settle, grant),
            (_, Command::Extend(extend)) => self.queues.extend(&mut self.cx, id, extend),
            (_, Command::Query(query)) => {
                let (topic, filter, query_id) = (Some(query.topic), query.filter, Some(query.command));
                let told = ClientEvent { event: "query", topic, filter, query_id, ..Default::default() };
                self.cx.tell_client(id, told);
                self.query(id, query, grant);
            }
            (_, Command::SowDelete(delete)) => {
                let (topic, filter) = (Some(delete.topic), delete.filter);
                let told = ClientEvent { event: "sow_delete", topic, filter, ..Default::default() };
                self.cx.tell_client(id, told);
                self.intake().begin_delete(id, delete, grant);
            }
            (_, Command::Stats { command, queue }) => {
                let stats = AdminCommand::QueueStats(queue.map(str::to_owned));
                self.administer(self.cx.requester(id, *command), stats);
            }
            (_, Command::Inspect { command, subject }) => {
                self.administer(self.cx.requester(id, *command), (*subject).into());
            }
            (_, Command::DefineQueue { command, action }) => {
                self.define(id, *command, define_queue(action));
            }
            (_, Command::DefineView { command, settings }) => {
                self.define(id, *command, define_view(settings));
            }
            (_, Command::Replicate { command, destination, action }) => {
                let (destination, action) = ((*destination).to_owned(), *action);
                let by = self.cx.requester(id, *command);
                self.administer(by, AdminCommand::Link { destination, action });
            }
            (_, Command::Reload { command }) => self.ask_to_reload(id, *command),
            (_, Command::Disconnect { command, connection, block_ms }) => {
                let block = Duration::from_millis((*block_ms).into());
                let by = self.cx.requester(id, *command);
                self.administer(by, AdminCommand::Disconnect(*connection, block));
            }
            (_, Command::Maintain(maintain)) => {
                let by = self.cx.requester(id, maintain.command);
                self.administer(by, AdminCommand::Maintain((*maintain).into()));
            }
        }
        self.cx.end_of_command(id);
    }

    /// Carries out a command about a queue or a view, if it was understood and its user may run it.
    fn define(&mut self, id: SessionId, command: u32, define: Result<AdminCommand, String>) {
        let by = self.cx.requester(id, command);
        match define {
            Ok(define) => match self.cx.admit_define(id, &define) {
                Ok(()) => self.administer(by, define),
                Err(denied) => self.cx.reply(&by, denied.refused().into()),
            },
            Err(reason) => self.cx.reply(&by, AdminReply::refused(Code::BadOption, reason)),
        }
    }

    /// The driver reads the configuration. Without entitlements, only an administrator may ask for
    /// it.
    fn ask_to_reload(&mut self, id: SessionId, command: u32) {
        let session = &self.cx.clients.sessions.all[id];
        if session.rights.is_none() && session.access != Access::Administrator {
            let reason = "only the administrator of the machine, or a user with the right admin on /quire/access, may reload";
            let refused = Refused::new(Code::NotEntitled, reason.to_owned());
            return self.cx.refuse_command(id, command, 0, &refused);
        }
        let connection = session.connection;
        self.cx.outputs.push_back(Output::Reload { connection, command });
    }

    /// Ends a connection for an administrator. Its client connects again.
    fn disconnect_client(&mut self, connection: ConnectionId, block: Duration) -> AdminReply {
        let id = self.cx.session_of(connection);
        let Some(id) = id.filter(|id| self.cx.clients.sessions.all[*id].phase != Phase::Closed) else {
            return AdminReply::Disconnected { count: 0 };
        };
        let now = self.cx.clock.now.instant;
        let name = self.cx.session(id).client_name().filter(|_| !block.is_zero());
        if name.is_some_and(|name| !self.cx.clients.blocked.add(&name, now, now + block)) {
            let reason = "block: too many client names are blocked; nothing was done";
            return AdminReply::refused(Code::LimitExceeded, reason);
        }
        let reason = "an administrator has ended the connection";
        self.cx.end_because(id, Code::EntitlementReset, "admin", reason);
        AdminReply::Disconnected { count: 1 }
    }

    /// Ends the connections of clients of a transport that accepts no more of them.
    fn disconnect_transport(&mut self, transport: TransportId) -> AdminReply {
        let sessions = self.cx.clients.sessions.all.iter();
        let its = sessions.filter(|(_, session)| {
            session.transport == transport
                && session.access == Access::Client
                && session.phase != Phase::Closed
        });
        let ids: Vec<SessionId> = its.map(|(id, _)| id).collect();
        let reason = "an administrator has disabled the transport";
        for id in &ids {
            self.cx.end_because(*id, Code::EntitlementReset, "transport_disabled", reason);
        }
        AdminReply::Disconnected { count: ids.len() as u64 }
    }

    /// The driver answers a question about its statistics.
    fn ask_statistics(&mut self, by: &Requester, question: Vec<u8>) {
        let Requester::Client { connection, command, .. } = by else {
            return self.cx.reply(by, AdminReply::refused(Code::BadOption, "the process has them"));
        };
        let shows_clients = self.cx.may_monitor(by, Resource::Clients.name());
        let (connection, command) = (*connection, *command);
        self.cx.outputs.push_back(Output::Statistics { connection, command, question, shows_clients });
    }

    /// The driver has answered a question about its statistics.
    pub(super) fn statistics(&mut self, connection: ConnectionId, command: u32, result: Result<&str, &str>) {
        let Some(id) = self.cx.session_of(connection) else { return };
        let reply = match result {
            Ok(answer) => AdminReply::Statistics(answer.to_owned()),
            Err(reason) => AdminReply::refused(Code::BadOption, reason),
        };
        let by = self.cx.requester(id, command);
        self.cx.reply(&by, reply);
    }

    /// The driver has read the configuration.
    pub(super) fn reloaded(&mut self, connection: ConnectionId, command: u32, result: Result<&str, &str>) {
        let Some(id) = self.cx.session_of(connection) else { return };
        let reply = match result {
            Ok(keys) => AdminReply::Reloaded { keys: keys.lines().map(str::to_owned).collect() },
            Err(reason) => AdminReply::refused(Code::BadOption, reason),
        };
        let by = self.cx.requester(id, command);
        self.cx.reply(&by, reply);
    }

    /// Answers a command that its user may not run.
    fn refuse(&mut self, id: SessionId, command: &Command<'_>, denied: &Denied) {
        let (command, subscription) = match command {
            Command::SowDelete(delete) => {
                self.intake().refuse_delete(id, delete, denied);
                return self.cx.end_of_command(id);
            }
            Command::Subscribe(subscribe) => (subscribe.command, subscribe.subscription),
            Command::Query(query) => (query.command, query.subscription),
            Command::Settle(settle) => (settle.command, 0),
            Command::Extend(extend) => (extend.command, 0),
            Command::Maintain(maintain) => (maintain.command, 0),
            Command::Stats { command, .. }
            | Command::Inspect { command, .. }
            | Command::DefineQueue { command, .. }
            | Command::DefineView { command, .. }
            | Command::Replicate { command, .. }
            | Command::Disconnect { command, .. }
            | Command::Reload { command } => (*command, 0),
            // They need no right, or are decided later.
            Command::Logon(_)
            | Command::Publish(_)
            | Command::PublishBatch(_)
            | Command::Unsubscribe(_)
            | Command::Flush { .. }
            | Command::Heartbeat
            | Command::Goodbye
            | Command::Pause { .. }
            | Command::Resume { .. } => (0, 0),
        };
        // Without a number, the client waits for no answer.
        if command != 0 {
            self.cx.refuse_command(id, command, subscription, &denied.refused());
        }
        self.cx.end_of_command(id);
    }

    /// Carries out an administrative command of any requester. The reply to maintenance follows
    /// when its job is done.
    pub(super) fn administer(&mut self, by: Requester, command: AdminCommand) {
        if let Err(refused) = self.cx.admit_admin(&by, &command) {
            return self.cx.reply(&by, refused.into());
        }
        self.begin_links();
        let reply = match command {
            AdminCommand::Maintain(what) => {
                let consumers = consumers!(self);
                return self.maintenance.ask(&mut self.cx, &consumers, by, what);
            }
            AdminCommand::CreateQueue(settings) => {
                return self.queues.define(&mut self.cx, by, Define::Create(settings));
            }
            AdminCommand::AlterQueue { queue, changes } => {
                return self.queues.define(&mut self.cx, by, Define::Alter { queue, changes });
            }
            AdminCommand::DropQueue(name) => {
                return self.queues.define(&mut self.cx, by, Define::Drop(name));
            }
            AdminCommand::DefineView(settings) => {
                return self.tables.define_view(&mut self.cx, by, settings);
            }
            AdminCommand::QueueStats(None) => {
                let mut figures = self.queues.stats(&self.cx);
                figures.retain(|name, _| self.cx.knows(&by, name));
                let hidden = figures.extract_if(.., |name, _| !self.cx.may_monitor(&by, name));
                let names = hidden.map(|(name, _)| name).collect();
                AdminReply::Queues { figures, names }
            }
            AdminCommand::QueueStats(Some(name)) => match self.queues.stats_of(&self.cx, &name) {
                Some(stats) => {
                    AdminReply::Queues { figures: QueueFigures::from([(name, stats)]), names: Vec::new() }
                }
                None => AdminReply::refused(Code::UnknownQueue, format!("no queue has the name {name:?}")),
            },
            AdminCommand::Stats => AdminReply::Stats(Box::new(self.stats())),
            AdminCommand::Figures => AdminReply::Figures(Box::new(figures::figures(self))),
            AdminCommand::Held(name, limit) => match self.queues.held(&self.cx, &name, limit) {
                Some(held) => AdminReply::Held(held),
                None => AdminReply::refused(Code::UnknownQueue, format!("no queue has the name {name:?}")),
            },
            AdminCommand::Server if !self.cx.may_monitor(&by, Resource::Server.name()) => {
                AdminReply::Identity { name: self.cx.config.name.clone(), user: self.cx.user_of(&by) }
            }
            AdminCommand::Server => {
                let user = self.cx.user_of(&by);
                AdminReply::Server(Box::new(ServerStats { user, ..self.server_stats() }))
            }
            AdminCommand::Clients(after) => AdminReply::Clients(self.connections_after(after)),
            AdminCommand::Replication => AdminReply::Replication(Box::new(self.links.stats(&self.cx))),
            AdminCommand::Disconnect(connection, block) => {
                self.disconnect_client(ConnectionId(connection), block)
            }
            AdminCommand::DisconnectTransport(transport) => self.disconnect_transport(transport),
            AdminCommand::CompactRecords(topic) => match self.tables.compact(&self.cx, &topic) {
                Ok(freed) => AdminReply::Compacted { freed: freed as u64 },
                Err(refused) => refused.into(),
            },
            AdminCommand::Statistics(question) => return self.ask_statistics(&by, question),
            AdminCommand::Access(question) => match self.cx.explain_access(&question) {
                Ok(explanation) => AdminReply::Access(Box::new(explanation)),
                Err(reason) => AdminReply::refused(Code::BadOption, reason),
            },
            AdminCommand::Messages(question) => return self.links.answer(&mut self.cx, by, &question),
            AdminCommand::Link { destination: publisher, action: LinkAction::Accept } => {
                return self.links.accept(&mut self.cx, by, &publisher);
            }
            AdminCommand::Link { destination, action } => {
                match self.links.act(&mut self.cx, &destination, action) {
                    Ok(()) => AdminReply::Replication(Box::new(self.links.stats(&self.cx))),
                    Err(reason) => AdminReply::refused(Code::BadOption, reason),
                }
            }
            AdminCommand::Topics(after) => {
                AdminReply::Topics(figures::topics_after(self, &after, |topic| self.cx.knows(&by, topic)))
            }
            AdminCommand::Subscriptions(connection, number) => {
                let ids = self.cx.subscriptions_after(connection, number);
                AdminReply::Subscriptions(Page::of(figures::subscriptions(self, &ids)))
            }
        };
        self.cx.reply(&by, reply);
    }

    /// A query of last-value topics, or of a queue.
    fn query(&mut self, id: SessionId, query: &Query<'_>, grant: &Grant) {
        let selector = TopicSelector::new(query.topic).ok();
        let mut tables =
            selector.as_ref().map(|selector| self.cx.topics.tables_of(selector)).unwrap_or_default();
        self.tables.retain_visible(&mut tables, grant);
        // A pattern that matches no last-value topic has an empty result, and so has a topic of a
        // container without records.
        let may_be_empty = selector.is_some_and(|selector| {
            matches!(selector, TopicSelector::Pattern(_)) || self.cx.topics.may_keep_values(&selector)
        });
        if tables.is_empty() && !(may_be_empty && query.wants_last_values) {
            return self.queues.query(&mut self.cx, id, query, grant);
        }
        self.tables.query(&mut self.cx, id, query, tables, grant);
    }

    /// Continues with a stalled session whose reason has ended.
    pub(super) fn resume_session(&mut self, id: SessionId) {
        self.cx.session(id).stall = None;
        self.cx.touch(id);
        if self.cx.session(id).batch.is_some() {
            self.cx.begin_slice();
            self.cx.clock.wants_turn = true;
            if !self.continue_batch(id) {
                return self.cx.count_unfinished(id);
            }
        }
        let mut kept = mem::take(&mut self.cx.session(id).kept);
        if kept.size() > 0 && self.hears(id) {
            let taken_size = self.take_commands(id, kept.bytes());
            kept.remove(taken_size);
            // The requests of these commands may be too late for this turn.
            self.cx.clock.wants_turn = true;
        }
        let session = self.cx.session(id);
        match session.stall {
            Some(stall) => {
                if stall != Stall::Waiting {
                    kept.shrink();
                }
                session.kept = kept;
                self.cx.touch(id);
            }
            None => self.cx.clients.kept_buffers.recycle(kept),
        }
        self.cx.count_unfinished(id);
    }

    /// The client logged off. No further message is delivered, and its publishes are still
    /// acknowledged.
    fn leave(&mut self, id: SessionId) {
        self.drop_subscriptions(id);
        self.publishers.queue_acks();
        self.cx.session(id).phase = Phase::Closing;
        if self.cx.session(id).outbox.drop_away() {
            // It was among what is dropped.
            self.publishers.repeat_acknowledgement(&mut self.cx, id);
        }
        self.cx.clients.counters.note_end("closed");
        let told = ClientEvent { event: "disconnect", reason: Some("closed"), ..Default::default() };
        self.cx.tell_client(id, told);
        self.cx.touch(id);
        let publisher = self.cx.session(id).identity.as_ref().map(|identity| identity.publisher);
        if self.cx.log.failure.is_some()
            && publisher.is_some_and(|publisher| !self.publishers.is_settled(publisher))
        {
            self.publishers.send_failure(&mut self.cx, id);
        }
        self.publishers.close_if_settled(&mut self.cx, id);
    }

    /// Publishes the messages of a batch, as many as there is time for. The session keeps the rest.
    pub(super) fn publish_batch(&mut self, id: SessionId, mut batch: PublishBatch<'_>) {
        self.publish_some(id, &mut batch);
        if !batch.is_empty() && self.cx.session(id).phase == Phase::Open {
            self.cx.session(id).batch = Some(Box::new(RestOfBatch::new(&batch)));
        }
    }

    /// Continues with the batch that an earlier slice left. Returns whether the session may take
    /// the input after it.
    pub(super) fn continue_batch(&mut self, id: SessionId) -> bool {
        let Some(mut rest) = self.cx.session(id).batch.take() else { return true };
        let mut batch = rest.batch();
        self.publish_some(id, &mut batch);
        let (sequence, left) = (batch.head.sequence, batch.items.bytes().len());
        if left > 0 && self.cx.session(id).phase == Phase::Open {
            rest.keep(sequence, left);
            self.cx.session(id).batch = Some(rest);
        }
        self.cx.session(id).takes_commands()
    }

    /// Publishes messages of a batch until it is empty, or the session has to wait or has ended.
    fn publish_some(&mut self, id: SessionId, batch: &mut PublishBatch<'_>) {
        let Some(publisher) = self.publishers.begin_publish(&mut self.cx, id) else { return };
        while self.cx.session(id).takes_commands()
            && let Some(publish) = batch.next_message()
        {
            self.intake().publish(id, publisher, &publish);
            self.cx.end_of_publish(id, publish.data.len());
        }
    }

    /// Continues with connections that wait for their next slice, round robin, as long as the turn
    /// has time for them. Publishers also wait while too many bytes wait for the disk.
    pub(super) fn continue_waiting(&mut self) {
        let deadline = self.cx.clock.slices.deadline(CONTINUATION);
        let mut held = Vec::new();
        while let Some(id) = self.cx.clock.slices.next_waiting() {
            // The rest of a batch may become far larger in the journal.
            let is_pushing_back = self.cx.clients.sessions.is_pushing_back;
            if is_pushing_back
                && self.cx.clients.sessions.all.get(id).is_some_and(|session| session.has_published)
            {
                held.push(id);
                continue;
            }
            if self
                .cx
                .clients
                .sessions
                .all
                .get(id)
                .is_some_and(|session| session.stall == Some(Stall::Waiting))
            {
                self.resume_session(id);
                self.remove_ended();
            }
            if self.cx.clock.slices.is_past(deadline) {
                break;
            }
        }
        self.cx.clock.wants_turn |= self.cx.clock.slices.any_waits();
        self.cx.clock.slices.hold(held);
    }

    /// Continues with sessions that waited for their answers.
    pub(crate) fn resume_sessions(&mut self) {
        for (id, stall) in std::mem::take(&mut self.cx.clients.sessions.resumable) {
            let Some(session) = self.cx.clients.sessions.all.get(id) else { continue };
            let owes_too_much = stall == Stall::AckBacklog && session.flushes.len() >= ACK_BACKLOG_MAX;
            if session.stall == Some(stall) && !owes_too_much {
                self.resume_session(id);
            }
        }
    }
}

/// Converts a command about a queue into an administrative command.
///
/// # Errors
/// Its settings are too long, or cannot be read.
fn define_queue(action: &DefineQueue<'_>) -> Result<AdminCommand, String> {
    match action {
        DefineQueue::Create { settings } => check_size(settings)
            .and_then(|()| QueueSettings::from_json(settings))
            .map(|settings| AdminCommand::CreateQueue(Box::new(settings)))
            .map_err(|error| error.to_string()),
        DefineQueue::Alter { queue, changes } => check_size(changes)
            .and_then(|()| QueueChanges::from_json(changes))
            .map(|changes| AdminCommand::AlterQueue { queue: (*queue).to_owned(), changes })
            .map_err(|error| error.to_string()),
        DefineQueue::Drop { queue } => Ok(AdminCommand::DropQueue((*queue).to_owned())),
    }
}

/// As [`define_queue`], for a view.
///
/// # Errors
/// Its settings are too long, or cannot be read.
fn define_view(settings: &str) -> Result<AdminCommand, String> {
    check_size(settings)
        .and_then(|()| ViewSettings::from_json(settings))
        .map(|settings| AdminCommand::DefineView(Box::new(settings)))
        .map_err(|error| error.to_string())
}

/// Whether a client that only looks at the server and administers it may send the command while
/// other clients are not let in.
fn may_observe(command: &Command<'_>) -> bool {
    match command {
        Command::Logon(_)
        | Command::Heartbeat
        | Command::Goodbye
        | Command::Stats { .. }
        | Command::Maintain(_)
        | Command::Inspect { .. }
        | Command::Replicate { .. }
        | Command::Reload { .. }
        | Command::Disconnect { .. } => true,
        Command::Publish(_)
        | Command::PublishBatch(_)
        | Command::Subscribe(_)
        | Command::Unsubscribe(_)
        | Command::Flush { .. }
        | Command::Pause { .. }
        | Command::Resume { .. }
        | Command::Settle(_)
        | Command::Extend(_)
        | Command::Query(_)
        | Command::DefineQueue { .. }
        | Command::DefineView { .. }
        | Command::SowDelete(_) => false,
    }
}
