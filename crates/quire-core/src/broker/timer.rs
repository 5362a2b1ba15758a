//! All timers of a broker.

use std::collections::BTreeSet;

use slab::Slab;

use crate::session::{Session, SessionId};
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
        sessions: &mut Slab<Session>,
        session: SessionId,
        timer: Timer,
        at: Instant,
    ) {
        let slot = &mut sessions[session.0 as usize].timers[timer as usize];
        if let Some(before) = slot.replace(at) {
            self.0.remove(&(before, session, timer));
        }
        self.0.insert((at, session, timer));
    }

    pub(crate) fn clear(&mut self, sessions: &mut Slab<Session>, session: SessionId) {
        for timer in [Timer::Logon, Timer::Heartbeat, Timer::Silence, Timer::Acknowledge] {
            if let Some(at) = sessions[session.0 as usize].timers[timer as usize].take() {
                self.0.remove(&(at, session, timer));
            }
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, ..)| *at)
    }

    /// Takes one timer whose time has come.
    pub(crate) fn take(&mut self, sessions: &mut Slab<Session>, now: Instant) -> Option<(SessionId, Timer)> {
        let &(at, session, timer) = self.0.first()?;
        if at > now {
            return None;
        }
        self.0.pop_first();
        sessions[session.0 as usize].timers[timer as usize] = None;
        Some((session, timer))
    }
}
