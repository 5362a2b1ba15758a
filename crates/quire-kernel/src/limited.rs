//! The limits of users: how much of them the connections of each user have used.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use quire_types::time::Instant;
use rustc_hash::FxBuildHasher;

use crate::Access;
use crate::context::Context;
use crate::entitlement::{ANONYMOUS, PublishRate, UserLimitSettings, UserLimits};
use crate::session::{Phase, Session, SessionId, Stall};
use crate::timer::Timer;

/// A user may be ahead of its rate by the messages of this time. Then its connection waits until
/// the rate has caught up.
const BURST: Duration = Duration::from_millis(100);

/// Users without connections are forgotten when there are this many users, or twice as many as
/// after the last time.
const USERS_KEPT: usize = 1_024;

/// The users with limits.
#[derive(Default)]
pub struct LimitedUsers {
    configured: Arc<UserLimits>,
    by_name: HashMap<Arc<str>, Limited, FxBuildHasher>,
    forget_at: usize,
}

/// One user.
struct Limited {
    settings: UserLimitSettings,
    /// Its connections. Some of them may have ended.
    sessions: Vec<SessionId>,
    /// The instant at which the rate has caught up with the published messages.
    even_at: Instant,
}

impl LimitedUsers {
    /// The limits of a configuration.
    pub fn new(configured: impl Into<Arc<UserLimits>>) -> Self {
        LimitedUsers { configured: configured.into(), ..LimitedUsers::default() }
    }
}

fn is_open(session: &Session) -> bool {
    session.phase != Phase::Closed
}

impl Context {
    /// Whether the user of a connection that logs on may have another connection. The connection
    /// then counts.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn count_logon(&mut self, id: SessionId, user: Option<&str>) -> Result<(), String> {
        let session = &self.clients.sessions.all[id];
        if session.access != Access::Client {
            return Ok(());
        }
        let user = user.filter(|_| self.transport_of(id).authenticates).unwrap_or(ANONYMOUS);
        let limited = &mut self.clients.limited;
        let Some(settings) = limited.configured.of_user(user, &session.groups).cloned() else {
            return Ok(());
        };
        let sessions = &self.clients.sessions.all;
        if limited.by_name.len() >= limited.forget_at.max(USERS_KEPT) {
            let is_used = |limited: &Limited| limited.sessions.iter().any(|id| sessions.contains_key(*id));
            limited.by_name.retain(|_, limited| is_used(limited));
            limited.forget_at = 2 * limited.by_name.len();
        }
        let name: Arc<str> = user.into();
        let now = self.clock.now.instant;
        let of_user = limited.by_name.entry(name.clone()).or_insert_with(|| Limited {
            settings: settings.clone(),
            sessions: Vec::new(),
            even_at: now,
        });
        of_user.sessions.retain(|id| sessions.get(*id).is_some_and(is_open));
        let limit = settings.max_connections;
        of_user.settings = settings;
        if of_user.sessions.len() >= limit as usize {
            return Err(format!("max_connections: the user has {limit} connections, which is its limit"));
        }
        of_user.sessions.push(id);
        self.session(id).limited = Some(name);
        Ok(())
    }

    /// Whether the user of a connection may have another subscription.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn check_subscription_count(&self, id: SessionId) -> Result<(), String> {
        let Some(limited) = self.limited(id) else { return Ok(()) };
        let Some(limit) = limited.settings.max_subscriptions else { return Ok(()) };
        let sessions = limited.sessions.iter().filter_map(|id| self.clients.sessions.all.get(*id));
        let count: usize = sessions.map(|session| session.subscriptions.len()).sum();
        if count < limit as usize {
            return Ok(());
        }
        Err(format!("max_subscriptions: the user has {count} subscriptions, and its limit is {limit}"))
    }

    fn limited(&self, id: SessionId) -> Option<&Limited> {
        self.clients.limited.by_name.get(self.clients.sessions.all[id].limited.as_ref()?)
    }

    /// Counts a published message of a user with limits. Makes the connection wait when the user is
    /// ahead of its rate.
    #[cold]
    pub fn count_publish(&mut self, id: SessionId, size: usize) {
        let now = self.clock.now.instant;
        let Some(name) = &self.clients.sessions.all[id].limited else { return };
        let Some(limited) = self.clients.limited.by_name.get_mut(name) else { return };
        let (count, rate) = match limited.settings.publish_rate {
            None => return,
            Some(PublishRate::Messages(rate)) => (1, rate),
            Some(PublishRate::Bytes(rate)) => (size as u64, rate),
        };
        let cost_ns = u128::from(count) * 1_000_000_000 / u128::from(rate.max(1));
        let cost = Duration::from_nanos(u64::try_from(cost_ns).unwrap_or(u64::MAX));
        limited.even_at = limited.even_at.max(now) + cost;
        let even_at = limited.even_at;
        // A session that waits for something else waits for its rate after its next message.
        if even_at > now + BURST && self.session(id).takes_commands() {
            self.stall(id, Stall::Rate);
            self.clock.timers.set(Timer::Rate(id), even_at);
        }
    }

    /// Ends connections of users for which more bytes wait than their limit: the connection with
    /// the most bytes first. Returns whether it has ended one.
    pub fn end_slow_users(&mut self) -> bool {
        // What is on disk counts, too: it is a limit of the user, and not of the memory.
        let waiting_size = |session: &Session| {
            session.outbox.backlog_size() + session.outbox.stored_size() + session.deferred_size
        };
        let mut slow = Vec::new();
        for limited in self.clients.limited.by_name.values() {
            let Some(limit) = limited.settings.max_waiting else { continue };
            let sessions = || {
                let found = |id: &SessionId| self.clients.sessions.all.get(*id).map(|session| (*id, session));
                limited.sessions.iter().filter_map(found).filter(|(_, session)| is_open(session))
            };
            let size: usize = sessions().map(|(_, session)| waiting_size(session)).sum();
            if size as u64 > limit {
                let slowest = sessions().max_by_key(|(_, session)| waiting_size(session));
                slow.extend(slowest.map(|(id, _)| (id, limit)));
            }
        }
        for (id, limit) in &slow {
            let reason = format!(
                "max_waiting: more than {limit} bytes wait for the connections of the user, most of them for this one"
            );
            self.drop_slow(*id, &reason);
        }
        !slow.is_empty()
    }

    /// Uses other limits, also for the connections that exist. None of them ends.
    pub fn limit_users(&mut self, configured: Arc<UserLimits>) {
        let mut before = std::mem::replace(&mut self.clients.limited, LimitedUsers::new(configured));
        let all: Vec<_> = self.clients.sessions.all.keys().collect();
        for id in all {
            let session = self.session(id);
            let former = session.limited.take();
            let Some(identity) = session.identity.as_ref().filter(|_| is_open(session)) else { continue };
            if session.access != Access::Client {
                continue;
            }
            let user: Option<Box<str>> = identity.principal.user.clone();
            let groups = session.groups.clone();
            let user = user.as_deref().filter(|_| self.transport_of(id).authenticates).unwrap_or(ANONYMOUS);
            let limited = &mut self.clients.limited;
            let Some(settings) = limited.configured.of_user(user, &groups).cloned() else { continue };
            let name = former.unwrap_or_else(|| user.into());
            let even_at = before.by_name.remove(&name).map(|limited| limited.even_at).unwrap_or_default();
            let of_user = limited.by_name.entry(name.clone()).or_insert_with(|| Limited {
                settings: settings.clone(),
                sessions: Vec::new(),
                even_at,
            });
            of_user.settings = settings;
            of_user.sessions.push(id);
            self.session(id).limited = Some(name);
        }
    }
}
