//! All timers of a broker.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::replay::ReplayId;
use crate::session::SessionId;
use crate::subscription::SubscriptionId;
use quire_types::time::Instant;

/// The events of timers. Each timer runs at most once at a time: setting it again moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// The time for the logon is over: a connection without a logon is ended.
    Logon(SessionId),
    /// If no output was sent for an interval, a heartbeat is sent.
    Heartbeat(SessionId),
    /// If no byte arrived for two intervals, the connection is ended.
    Silence(SessionId),
    /// The shortest time between two acknowledgements has passed: the due acknowledgement is sent.
    Acknowledge(SessionId),
    /// The user of a connection is no longer ahead of the rate at which it may publish.
    Rate(SessionId),
    /// The oldest unread message of a connection may be too old.
    Age(SessionId),
    /// The next message of a replay may be sent.
    Replay(ReplayId),
    /// The interval of a conflated message is over.
    Conflated(SubscriptionId),
    /// The first of the instants at which subscriptions end has passed.
    End,
    /// The interval of the maintenance schedule is over.
    Maintenance,
    /// The resume positions of subscribers must be written.
    Progress,
    /// A lease or a message of a queue may expire, or the state of the queues must be saved.
    Queues,
    /// The lifetime of a record of a last-value topic is over.
    Tables,
    /// A link to another instance has work.
    Links,
    /// The records of last-value topics are reported.
    SowStats,
    /// Refusals that were not logged one by one are logged with their number.
    Refusals,
}

/// The timers that run, earliest first. A frequent event does not set a timer again. Instead the
/// timer checks, when it fires, whether its time has been reached. So a received frame has no cost
/// here.
#[derive(Debug, Default)]
pub struct Timers {
    by_time: BTreeSet<(Instant, Timer)>,
    by_timer: HashMap<Timer, Instant, FxBuildHasher>,
}

impl Timers {
    /// Sets a timer, or moves it.
    pub fn set(&mut self, timer: Timer, at: Instant) {
        match self.by_timer.insert(timer, at) {
            Some(before) if before == at => return,
            Some(before) => {
                self.by_time.remove(&(before, timer));
            }
            None => (),
        }
        self.by_time.insert((at, timer));
    }

    /// Sets a timer, or stops it when there is no time for it.
    pub fn set_or_clear(&mut self, timer: Timer, at: Option<Instant>) {
        match at {
            Some(at) => self.set(timer, at),
            None => self.clear(timer),
        }
    }

    /// The connection of these subscriptions accepts bytes again. The overdue messages are
    /// delivered with the next turn.
    pub fn recall(&mut self, overdue: Vec<SubscriptionId>, now: Instant) {
        overdue.into_iter().for_each(|id| self.set(Timer::Conflated(id), now));
    }

    /// Stops a timer, if it runs.
    pub fn clear(&mut self, timer: Timer) {
        if let Some(at) = self.by_timer.remove(&timer) {
            self.by_time.remove(&(at, timer));
        }
    }

    /// Stops the timers of a session.
    pub fn clear_session(&mut self, id: SessionId) {
        let timers =
            [Timer::Logon, Timer::Heartbeat, Timer::Silence, Timer::Acknowledge, Timer::Rate, Timer::Age];
        timers.into_iter().for_each(|timer| self.clear(timer(id)));
    }

    /// Whether the timer runs, and has not fired.
    pub fn is_set(&self, timer: Timer) -> bool {
        self.by_timer.contains_key(&timer)
    }

    /// When the next timer fires.
    pub fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes a timer whose time has been reached.
    pub fn take(&mut self, now: Instant) -> Option<Timer> {
        let &(at, timer) = self.by_time.first()?;
        if at > now {
            return None;
        }
        self.clear(timer);
        Some(timer)
    }

    /// The replays that wait for their time, in the order of their waiting times: the longest
    /// first.
    pub fn waiting_replays(&self) -> impl Iterator<Item = ReplayId> {
        self.by_time.iter().rev().filter_map(|(_, timer)| match timer {
            Timer::Replay(replay) => Some(*replay),
            _ => None,
        })
    }
}
