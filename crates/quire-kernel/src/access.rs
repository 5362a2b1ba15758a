//! Access rights. Every command passes [`Context::admit`] once, before the part that carries it out
//! receives it. Only publishes are decided later, by topic: see [`Context::writable`].

use hashbrown::HashMap;
use quire_command::subscribe::Family;
use quire_command::{Code, Command, LinkAction, Selection, Settle, Subject, Subscribe, SubscribeOptions};
use quire_expression::filter::Filter;
use quire_expression::topic::TopicSelector;
use quire_types::Verdict;
use quire_types::time::Instant;
use rustc_hash::FxBuildHasher;
use std::sync::Arc;
use std::time::Duration;

use super::admin::{AccessQuestion, AdminCommand, Requester};
use super::context::Context;
use super::reply::Refused;
use crate::config::AccessRules;
use crate::config::queues::QueueSettings;
use crate::entitlement::{
    ANONYMOUS, Denied, Entitlements, Explanation, Grant, Nameable, Replicable, Resource, Right, Rights,
};
use crate::io::Event;
use crate::session::{Phase, Session, SessionId};
use crate::subscription::{Range, ServedBy};
use crate::timer::Timer;

/// Refusals of one user and right that are logged one by one, in one interval. The others are
/// counted, and their number is logged at its end.
const REFUSALS_LOGGED_MAX: u64 = 60;
const REFUSALS_INTERVAL: Duration = Duration::from_secs(60);

/// Users and rights whose refusals are counted. At the limit, further ones are not logged until an
/// interval ends.
const REFUSALS_MAX: usize = 10_000;

/// A pattern that matches no topic. Readers of ranges learn with it where the log ends.
const NO_TOPIC: &str = "^$";

/// The rights of the peer of a connection. The driver derives them from the address of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// The rights that the configuration gives to clients.
    #[default]
    Client,
    /// All rights: the user of the server, or root, on the machine of the server.
    Administrator,
    /// All rights: a client of the server itself.
    Internal,
    /// No rights: another user of the machine, on the socket of the administrator.
    Denied,
}

/// The entitlements, and the refusals that the log mentions.
#[derive(Default)]
pub struct AccessControl {
    /// `None`: there are no entries, and every user may do everything.
    pub entitlements: Option<Arc<Entitlements>>,
    refusals: HashMap<(Box<str>, Right), Refusals, FxBuildHasher>,
}

/// The refusals of one user and right in the present interval.
struct Refusals {
    since: Instant,
    count: u64,
}

/// The user of another instance on a connection, with its rights.
#[derive(Debug, Default)]
pub struct LinkUser {
    /// Its name; `None`: without authentication.
    pub name: Option<Box<str>>,
    /// The name of the instance, as in its logon.
    pub instance: Box<str>,
    /// `None`: there are no entries, or this instance has made the connection.
    rights: Option<Rights>,
    /// The topics that its links may have.
    replicable: Replicable,
}

impl LinkUser {
    /// The user with which this instance has logged on to another one. That instance decides about
    /// its rights.
    pub fn of_this_instance(name: &str) -> Self {
        LinkUser { name: (!name.is_empty()).then(|| name.into()), ..LinkUser::default() }
    }

    /// The same user, for one of its links.
    #[must_use]
    pub fn copy(&self) -> Self {
        let (name, instance) = (self.name.clone(), self.instance.clone());
        LinkUser { name, instance, rights: None, replicable: self.replicable.copy() }
    }

    /// The topics that its links may have, for another thread.
    pub fn replicable(&self) -> Replicable {
        self.replicable.copy()
    }

    /// Whether no entry limits it.
    pub fn may_have_all(&self) -> bool {
        self.rights.is_none()
    }

    /// Whether its links may have any topic.
    pub fn may_have_any(&self) -> bool {
        self.replicable.allows_any()
    }
}

/// The part of the messages that an admitted command may see or change; `None`: all of them.
pub type Granted = Option<Box<Grant>>;

impl Context {
    /// Whether the requester may run an administrative command. [`Context::admit`] has checked the
    /// entitlements of a client.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn admit_admin(&self, by: &Requester, command: &AdminCommand) -> Result<(), Refused> {
        let by_clients = &self.config.transaction_log.maintenance.by_clients;
        match (by, command) {
            // An entitlement for the journal replaces the setting.
            _ if self.clients.access.entitlements.is_some() => Ok(()),
            (Requester::Client { access: Access::Client, .. }, AdminCommand::Maintain(what))
                if !by_clients.allows(what.action) =>
            {
                let verb = what.action.verb();
                let reason = format!(
                    "clients of this server may not {verb} journal files: its transaction_log.maintenance.by_clients says what they may"
                );
                Err(Refused::new(Code::NotEntitled, reason))
            }
            _ => Ok(()),
        }
    }

    /// Decides whether the user of a connection may run a command.
    ///
    /// # Errors
    /// The right that is missing. It was counted and logged.
    #[inline]
    pub fn admit(&mut self, id: SessionId, command: &Command<'_>) -> Result<Granted, Denied> {
        match &self.clients.sessions.all[id].rights {
            None => Ok(None),
            Some(_) => self.admit_entitled(id, command),
        }
    }

    #[inline(never)]
    fn admit_entitled(&mut self, id: SessionId, command: &Command<'_>) -> Result<Granted, Denied> {
        let decided = self.decide(id, command);
        match decided {
            Ok(grant) => {
                if let Some((action, resource)) = administration(command) {
                    self.note_administered(id, action, resource.name());
                }
                Ok((!grant.is_whole()).then(|| Box::new(grant)))
            }
            Err(denied) => {
                self.note_denied(id, &denied);
                Err(denied)
            }
        }
    }

    fn decide(&mut self, id: SessionId, command: &Command<'_>) -> Result<Grant, Denied> {
        use Right::{Admin, Delete, Monitor, Query, Read, Replay};
        let session = &self.clients.sessions.all[id];
        let Some(rights) = &session.rights else { return Ok(Grant::default()) };
        let of_resource =
            |right: Right, resource: Resource| rights.grant_name(&[right], resource.name(), resource.name());
        match command {
            // They name no topic, or only subscriptions and messages of the connection itself.
            Command::Logon(_)
            | Command::Unsubscribe(_)
            | Command::Flush { .. }
            | Command::Heartbeat
            | Command::Goodbye
            | Command::Pause { .. }
            | Command::Resume { .. } => Ok(Grant::default()),
            // See `writable`.
            Command::Publish(_) | Command::PublishBatch(_) => Ok(Grant::default()),
            Command::Subscribe(subscribe) => self.decide_subscribe(id, rights, subscribe),
            Command::Query(query) => {
                let needed: &[Right] = if query.bookmark.is_some() { &[Query, Replay] } else { &[Query] };
                rights.grant(needed, query.topic)
            }
            Command::SowDelete(delete) => rights.grant(&[Delete], delete.topic),
            Command::Settle(Settle {
                verdict: Verdict::Expire,
                messages: Selection::Matching(_),
                queue,
                ..
            }) => rights.grant_name(&[Delete], queue, queue),
            Command::Settle(settle) => rights.grant_name(&[Read], settle.queue, settle.queue),
            Command::Extend(extend) => rights.grant_name(&[Read], extend.queue, extend.queue),
            Command::Stats { queue: Some(queue), .. } => rights.grant_name(&[Monitor], queue, queue),
            // The answer has what the user may see: `may_monitor`, `knows`.
            Command::Stats { queue: None, .. }
            | Command::Inspect { subject: Subject::Server | Subject::Topics { .. }, .. } => {
                Ok(Grant::default())
            }
            Command::Inspect { subject: Subject::Clients { .. } | Subject::Subscriptions { .. }, .. } => {
                of_resource(Monitor, Resource::Clients)
            }
            Command::Inspect { subject: Subject::Replication, .. } => {
                of_resource(Monitor, Resource::Replication)
            }
            // The answer tells about every message of the log.
            Command::Inspect { subject: Subject::Messages { .. }, .. } | Command::Replicate { .. } => {
                of_resource(Admin, Resource::Replication)
            }
            Command::Inspect { subject: Subject::Access { .. }, .. } => {
                of_resource(Monitor, Resource::Access)
            }
            Command::Inspect { subject: Subject::Statistics { .. }, .. } => {
                of_resource(Monitor, Resource::Server)
            }
            Command::Maintain(_) => of_resource(Admin, Resource::Journal),
            Command::Reload { .. } => of_resource(Admin, Resource::Access),
            Command::Disconnect { .. } => of_resource(Admin, Resource::Clients),
            // The name of the queue, or of the view, is in its settings: `admit_define`.
            Command::DefineQueue { .. } | Command::DefineView { .. } => Ok(Grant::default()),
        }
    }

    fn decide_subscribe(
        &self,
        id: SessionId,
        rights: &Rights,
        subscribe: &Subscribe<'_>,
    ) -> Result<Grant, Denied> {
        use Right::{Query, Read, Replay};
        let topic = subscribe.topic;
        // A subscription that is replaced keeps its place in the log.
        let replaced = subscribe.options.has(SubscribeOptions::REPLACE).then_some(subscribe.subscription);
        let replaced = replaced
            .and_then(|number| self.clients.sessions.all[id].subscriptions.get(&number))
            .map(|replaced| &self.clients.subscriptions.all[*replaced]);
        let is_of_log = subscribe.bookmark.is_some()
            || replaced.is_some_and(|replaced| replaced.served_by == ServedBy::Bookmark);
        let has_records = subscribe.options.has(SubscribeOptions::SOW)
            || replaced.is_some_and(|replaced| {
                matches!(replaced.family, Family::SowAndSubscribe | Family::SowAndDeltaSubscribe)
            });
        let has_end = subscribe
            .bookmark
            .and_then(|text| text.parse::<Range>().ok())
            .is_some_and(|range| range.end.is_some())
            || topic == NO_TOPIC;
        let needed: &[Right] = match (is_of_log, has_records) {
            (false, false) => &[Read],
            (false, true) => &[Read, Query],
            // It ends with a message of the log.
            (true, false) if has_end => &[Replay],
            (true, false) => &[Read, Replay],
            (true, true) => &[Read, Query, Replay],
        };
        let has_deletions = subscribe.options.has(SubscribeOptions::DELETIONS);
        let route = self.topics.queue_route(topic).filter(|_| is_of_log);
        let Some(route) = route else {
            let grant = rights.grant(needed, topic)?;
            // A delete names the keys of its records. Whether they were visible is not known.
            if has_deletions && !grant.is_whole() {
                return Err(Denied { right: Replay, topic: topic.into() });
            }
            return Ok(grant);
        };
        // A range of the log needs no right to read. Without any right on the name of the queue,
        // the answer would show that the queue exists.
        if has_end && !rights.knows(topic) {
            return Err(Denied { right: Replay, topic: topic.into() });
        }
        // A bookmark on a queue: topics without the right are left out.
        let own: &[Right] = if has_end { &[] } else { &[Read] };
        let own = rights.grant_name(own, topic, topic)?;
        Ok(own.and(rights.grant_left_out(&[Replay], &route.selector)))
    }

    /// Whether the user of a connection may define a queue or a view with these settings, or drop
    /// the queue with this name.
    ///
    /// # Errors
    /// The right that is missing. It was counted and logged.
    pub fn admit_define(&mut self, id: SessionId, command: &AdminCommand) -> Result<(), Denied> {
        let checked = self.check_define(id, command);
        match (&checked, command) {
            (Err(denied), _) => self.note_denied(id, denied),
            (Ok(()), AdminCommand::CreateQueue(settings)) => {
                self.note_administered(id, "create", &settings.name);
            }
            (Ok(()), AdminCommand::AlterQueue { queue, .. }) => self.note_administered(id, "alter", queue),
            (Ok(()), AdminCommand::DropQueue(queue)) => self.note_administered(id, "drop", queue),
            (Ok(()), AdminCommand::DefineView(settings)) => {
                self.note_administered(id, "define", &settings.name);
            }
            (Ok(()), _) => (),
        }
        checked
    }

    fn check_define(&self, id: SessionId, command: &AdminCommand) -> Result<(), Denied> {
        let Some(rights) = &self.clients.sessions.all[id].rights else { return Ok(()) };
        let allow = |right: Right, topic: &str| rights.grant_name(&[right], topic, topic).map(drop);
        match command {
            AdminCommand::CreateQueue(settings) => {
                allow(Right::Admin, &settings.name)?;
                self.check_topics_of(rights, settings)
            }
            AdminCommand::AlterQueue { queue, changes } => {
                allow(Right::Admin, queue)?;
                let route = self.topics.queue_route(queue);
                if let Some(route) = route {
                    rights.check_whole(&[Right::Read, Right::Replay], &route.selector)?;
                    if *route.publish_target != *route.selector.text() {
                        allow(Right::Write, &route.publish_target)?;
                    }
                }
                if let Some(selector) =
                    changes.text("underlying_topic").and_then(|topic| TopicSelector::new(topic).ok())
                {
                    rights.check_whole(&[Right::Read, Right::Replay], &selector)?;
                }
                let targets = ["default_publish_target", "dead_letter_topic"];
                targets
                    .into_iter()
                    .filter_map(|key| changes.text(key))
                    .try_for_each(|topic| allow(Right::Write, topic))
            }
            AdminCommand::DropQueue(queue) => allow(Right::Admin, queue),
            // A view shows the records of its topics to everyone with a right on the view.
            AdminCommand::DefineView(settings) => {
                allow(Right::Admin, &settings.name)?;
                settings
                    .sources()
                    .iter()
                    .filter_map(|topic| TopicSelector::new(topic).ok())
                    .try_for_each(|selector| rights.check_whole(&[Right::Read, Right::Query], &selector))
            }
            _ => Ok(()),
        }
    }

    /// A queue shows messages of other topics, and publishes to them.
    fn check_topics_of(&self, rights: &Rights, settings: &QueueSettings) -> Result<(), Denied> {
        let underlying = settings.underlying_topic.as_deref().unwrap_or(&settings.name);
        if let Ok(selector) = TopicSelector::new(underlying) {
            rights.check_whole(&[Right::Read, Right::Replay], &selector)?;
        }
        let targets = [&settings.default_publish_target, &settings.dead_letter_topic];
        for target in targets.into_iter().flatten() {
            rights.grant_name(&[Right::Write], target, target)?;
        }
        Ok(())
    }

    /// The filter of the messages that a connection may publish to a topic; `None`: of all
    /// messages.
    ///
    /// # Errors
    /// The right is missing. It was counted and logged.
    pub fn writable(&mut self, id: SessionId, topic: &str) -> Result<Option<Filter>, Denied> {
        let Some(mut rights) = self.session(id).rights.take() else { return Ok(None) };
        let writable = rights.writable(topic, || self.filter_options(id));
        self.session(id).rights = Some(rights);
        if let Err(denied) = &writable {
            self.note_denied(id, denied);
        }
        writable
    }

    /// The messages of the log that the user of a connection may name by their bookmarks.
    pub fn nameable(&self, id: SessionId) -> Nameable {
        self.clients.sessions.all[id]
            .rights
            .as_ref()
            .map_or_else(Nameable::default, |rights| rights.nameable())
    }

    /// Whether the requester may see the figures of a queue or of a resource.
    pub fn may_monitor(&self, by: &Requester, name: &str) -> bool {
        self.rights_of(by).is_none_or(|rights| rights.allows(Right::Monitor, name))
    }

    /// Whether the requester has any right on a topic.
    pub fn knows(&self, by: &Requester, topic: &str) -> bool {
        self.rights_of(by).is_none_or(|rights| rights.knows(topic))
    }

    /// Returns which entry decides about a request, and why. `question`: the JSON of an
    /// [`AccessQuestion`].
    ///
    /// # Errors
    /// The question is not one.
    pub fn explain_access(&self, question: &[u8]) -> Result<Explanation, String> {
        let asked: AccessQuestion = serde_json::from_slice(question)
            .map_err(|error| format!("the question cannot be read: {error}"))?;
        let Some(right) = Right::of_name(&asked.right) else {
            return Err(format!("right: expected one of {}", Right::ALL.map(Right::name).join(", ")));
        };
        let groups = asked.groups.unwrap_or_else(|| self.groups_of(&asked.user));
        Ok(match &self.clients.access.entitlements {
            Some(entitlements) => entitlements.explain(&asked.user, &groups, right, &asked.topic),
            None => Explanation::without_entries(&groups),
        })
    }

    /// The groups of the newest connection of a user.
    fn groups_of(&self, user: &str) -> Vec<Box<str>> {
        let sessions = self.clients.sessions.all.values();
        let own = sessions.filter(|session| session.client_facts().user.as_deref() == Some(user));
        own.max_by_key(|session| session.connection.0).map_or(Vec::new(), |session| session.groups.to_vec())
    }

    fn rights_of(&self, by: &Requester) -> Option<&Rights> {
        let id = self.session_of(by.connection()?)?;
        self.clients.sessions.all[id].rights.as_deref()
    }

    /// The rights of a connection whose client logs on; `None`: it may do everything.
    pub fn rights_at_logon(&self, id: SessionId, user: Option<&str>) -> Option<Box<Rights>> {
        let entitlements = self.clients.access.entitlements.as_ref()?;
        let session = &self.clients.sessions.all[id];
        if session.access != Access::Client {
            return None;
        }
        let user = user.filter(|_| self.transport_of(id).authenticates).unwrap_or(ANONYMOUS);
        Some(Box::new(entitlements.of_user(user, &session.groups)))
    }

    /// The user of an instance that has logged on to this one. `groups` are its groups, one a line.
    pub fn link_user(&self, instance: &str, name: Option<&str>, groups: &str) -> LinkUser {
        let groups: Vec<Box<str>> = groups.lines().map(Into::into).collect();
        let entitlements = self.clients.access.entitlements.as_ref();
        let rights = entitlements.map(|entries| entries.of_user(name.unwrap_or(ANONYMOUS), &groups));
        LinkUser {
            name: name.map(Into::into),
            instance: instance.into(),
            replicable: rights.as_ref().map(Rights::replicable).unwrap_or_default(),
            rights,
        }
    }

    /// Decides whether a link of the user may have a topic.
    ///
    /// # Errors
    /// The right is missing. It was counted and logged.
    #[inline]
    pub fn admit_replicated(&mut self, user: &mut LinkUser, topic: &str) -> Result<(), Denied> {
        if user.replicable.allows(topic) {
            return Ok(());
        }
        let denied = Denied { right: Right::Replicate, topic: topic.into() };
        self.log_denied(user.name.as_deref().unwrap_or(ANONYMOUS), &user.instance, &denied);
        Err(denied)
    }

    /// Whether the user of a link has other entries now.
    pub fn has_other_entries(&self, user: &LinkUser) -> bool {
        let entitlements = self.clients.access.entitlements.as_ref();
        match (&user.rights, entitlements) {
            (Some(rights), Some(entries)) => !rights.has_same_entries(&rights.within(entries)),
            (None, Some(_)) => true,
            (_, None) => false,
        }
    }

    /// Uses other entitlements and limits. Connections whose user has other entitlements end. A
    /// running server does not lose its last entitlement, so that no user can suddenly do
    /// everything.
    pub fn entitle(&mut self, rules: AccessRules) {
        self.authenticate_from_now_on(&rules.authenticates);
        self.limit_users(rules.user_limits);
        let Some(entitlements) = rules.entitlements else { return };
        self.clients.access.entitlements = Some(entitlements);
        let all: Vec<_> = self.clients.sessions.all.keys().collect();
        for id in all {
            let session = &self.clients.sessions.all[id];
            let Some(identity) = &session.identity else { continue };
            let user = identity.principal.user.as_deref();
            let Some(rights) = self.rights_at_logon(id, user) else { continue };
            let is_same = session.rights.as_ref().is_some_and(|known| known.has_same_entries(&rights));
            if !is_same {
                self.reset(id, "the rights of the user were changed");
            }
        }
    }

    /// Connections of a transport that now has users, or no longer has them, end: their user is
    /// another one.
    fn authenticate_from_now_on(&mut self, authenticates: &[bool]) {
        let transports = self.config.transports.iter_mut().zip(authenticates);
        let changed: Vec<bool> = transports
            .map(|(transport, now)| std::mem::replace(&mut transport.authenticates, *now) != *now)
            .collect();
        if !changed.contains(&true) {
            return;
        }
        let is_changed = |session: &Session| {
            let has_changed = changed.get(session.transport.0 as usize).copied().unwrap_or_default();
            has_changed && session.access == Access::Client && session.phase != Phase::Closed
        };
        let sessions = &self.clients.sessions.all;
        let ending: Vec<_> =
            sessions.iter().filter(|(_, session)| is_changed(session)).map(|(id, _)| id).collect();
        for id in ending {
            self.reset(id, "the authentication of the server was changed");
        }
    }

    /// Ends a session whose user has changed. Messages that wait for the connection were decided by
    /// the old rights, so they are dropped.
    pub fn reset(&mut self, id: SessionId, reason: &str) {
        let session = self.session(id);
        if session.phase != Phase::Closed {
            session.outbox.drop_messages();
            self.end(id, Code::EntitlementReset, reason);
        }
    }

    /// Logs a command that administers the server, or a queue.
    fn note_administered(&mut self, id: SessionId, action: &'static str, resource: &str) {
        let session = self.session(id);
        let Some(rights) = &session.rights else { return };
        let (user, client) = (rights.user().to_owned(), session.client_name().unwrap_or_default());
        self.note(Event::Administered { user, client, action, resource: resource.to_owned() });
    }

    /// Counts a refusal, and logs it.
    pub fn note_denied(&mut self, id: SessionId, denied: &Denied) {
        let session = self.session(id);
        let count = match denied.right.is_of_reading() {
            true => &mut session.denied_read_count,
            false => &mut session.denied_write_count,
        };
        *count += 1;
        let client = session.client_name().unwrap_or_default();
        let user = session.rights.as_ref().map(|rights| rights.user().to_owned()).unwrap_or_default();
        self.log_denied(&user, &client, denied);
    }

    fn log_denied(&mut self, user: &str, client: &str, denied: &Denied) {
        if self.clients.access.note(user, denied.right, self.clock.now.instant) {
            let (user, client) = (user.to_owned(), client.to_owned());
            let (right, topic) = (denied.right, denied.topic.to_string());
            self.note(Event::Refused { user, client, right, topic });
        }
        self.clock.timers.set_or_clear(Timer::Refusals, self.clients.access.next_due());
    }

    /// Logs the number of refusals that were not logged one by one, of the intervals that are over.
    pub fn log_refusals(&mut self) {
        let now = self.clock.now.instant;
        for (user, right, count) in self.clients.access.take_due(now) {
            self.note(Event::MoreRefused { user, right, count });
        }
        self.clock.timers.set_or_clear(Timer::Refusals, self.clients.access.next_due());
    }
}

/// The action of a command that administers the server, and on which resource.
fn administration(command: &Command<'_>) -> Option<(&'static str, Resource)> {
    match command {
        Command::Maintain(maintain) if !maintain.dry_run => Some((maintain.action.verb(), Resource::Journal)),
        Command::Replicate { action, .. } => {
            let action = match action {
                LinkAction::Downgrade => "downgrade",
                LinkAction::Upgrade => "upgrade",
                LinkAction::Pause => "pause",
                LinkAction::Resume => "resume",
                LinkAction::Compare => "compare",
                LinkAction::Admit => "admit",
                LinkAction::Accept => "accept",
            };
            Some((action, Resource::Replication))
        }
        Command::Reload { .. } => Some(("reload", Resource::Access)),
        Command::Disconnect { .. } => Some(("disconnect", Resource::Clients)),
        _ => None,
    }
}

impl AccessControl {
    /// Counts a refusal. Returns whether it is logged.
    fn note(&mut self, user: &str, right: Right, now: Instant) -> bool {
        if self.refusals.len() >= REFUSALS_MAX {
            return false;
        }
        let refusals = self.refusals.entry((user.into(), right)).or_insert(Refusals { since: now, count: 0 });
        refusals.count += 1;
        refusals.count <= REFUSALS_LOGGED_MAX
    }

    /// The end of the first interval.
    fn next_due(&self) -> Option<Instant> {
        self.refusals.values().map(|refusals| refusals.since + REFUSALS_INTERVAL).min()
    }

    /// Forgets the intervals that are over. Returns the numbers of their refusals that were not
    /// logged.
    fn take_due(&mut self, now: Instant) -> Vec<(String, Right, u64)> {
        let mut due = Vec::new();
        self.refusals.retain(|(user, right), refusals| {
            let is_over = refusals.since + REFUSALS_INTERVAL <= now;
            if is_over && refusals.count > REFUSALS_LOGGED_MAX {
                due.push((user.to_string(), *right, refusals.count - REFUSALS_LOGGED_MAX));
            }
            !is_over
        });
        due.sort();
        due
    }
}
