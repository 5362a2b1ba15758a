//! All timers of a broker.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use slotmap::SlotMap;

use crate::replay::ReplayId;
use crate::session::{Session, SessionId};
use crate::subscription::SubscriptionId;
use crate::time::Instant;

/// What happens at a time; each at most once per session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The logon must have been taken: the connection is ended.
    Logon,
    /// Nothing may have been sent for an interval: a heartbeat goes out.
    Heartbeat,
    /// Nothing may have been heard for two intervals: the connection is ended.
    Silence,
    /// The shortest time between two acknowledgements has passed: the one that is due goes out.
    Acknowledge,
}

/// The number of kinds.
pub(crate) const TIMER_COUNT: usize = 4;

/// The timers that run, earliest first. A timer is set once and, when it fires, looks whether its time has really come: so
/// what happens for every frame (something was heard) costs nothing here.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Instant, SessionId, Timer)>);

impl Timers {
    pub(crate) fn set(
        &mut self,
        sessions: &mut SlotMap<SessionId, Session>,
        session: SessionId,
        timer: Timer,
        at: Instant,
    ) {
        let slot = &mut sessions[session].timers[timer as usize];
        if let Some(before) = slot.replace(at) {
            self.0.remove(&(before, session, timer));
        }
        self.0.insert((at, session, timer));
    }

    pub(crate) fn clear(&mut self, sessions: &mut SlotMap<SessionId, Session>, session: SessionId) {
        for timer in [Timer::Logon, Timer::Heartbeat, Timer::Silence, Timer::Acknowledge] {
            if let Some(at) = sessions[session].timers[timer as usize].take() {
                self.0.remove(&(at, session, timer));
            }
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, ..)| *at)
    }

    /// Takes one timer whose time has come.
    pub(crate) fn take(
        &mut self,
        sessions: &mut SlotMap<SessionId, Session>,
        now: Instant,
    ) -> Option<(SessionId, Timer)> {
        let &(at, session, timer) = self.0.first()?;
        if at > now {
            return None;
        }
        self.0.pop_first();
        sessions[session].timers[timer as usize] = None;
        Some((session, timer))
    }
}

/// What is looked at again when its time has come, beside the timers of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Alarm {
    /// The next message of a replay may go.
    Replay(ReplayId),
    /// The interval of a conflated message is over.
    Held(SubscriptionId),
    /// The first of the instants at which subscriptions end has passed.
    End,
}

/// The alarms that are set, earliest first; each at most once.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    by_time: BTreeSet<(Instant, Alarm)>,
    by_alarm: HashMap<Alarm, Instant, FxBuildHasher>,
}

impl Alarms {
    /// Sets an alarm, or sets it anew.
    pub(crate) fn set(&mut self, alarm: Alarm, at: Instant) {
        self.clear(alarm);
        self.by_alarm.insert(alarm, at);
        self.by_time.insert((at, alarm));
    }

    /// The connection of these subscriptions takes more: what is overdue is delivered with the next turn.
    pub(crate) fn recall(&mut self, overdue: Vec<SubscriptionId>, now: Instant) {
        overdue.into_iter().for_each(|id| self.set(Alarm::Held(id), now));
    }

    /// Forgets an alarm, if it is set.
    pub(crate) fn clear(&mut self, alarm: Alarm) {
        if let Some(at) = self.by_alarm.remove(&alarm) {
            self.by_time.remove(&(at, alarm));
        }
    }

    /// Whether it is set, and has not rung.
    pub(crate) fn is_set(&self, alarm: Alarm) -> bool {
        self.by_alarm.contains_key(&alarm)
    }

    /// When the next one rings.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes one whose time has come.
    pub(crate) fn take(&mut self, now: Instant) -> Option<Alarm> {
        let &(at, alarm) = self.by_time.first()?;
        if at > now {
            return None;
        }
        self.clear(alarm);
        Some(alarm)
    }

    /// The replays that wait for their time, the one that waits longest first.
    pub(crate) fn waiting_replays(&self) -> impl Iterator<Item = ReplayId> {
        self.by_time.iter().rev().filter_map(|(_, alarm)| match alarm {
            Alarm::Replay(replay) => Some(*replay),
            Alarm::Held(_) | Alarm::End => None,
        })
    }
}
