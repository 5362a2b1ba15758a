//! The ages of messages that wait for an acknowledgement. They decide whether publishers wait.

use std::collections::VecDeque;
use std::time::Duration;

use quire_types::{Position, time::Instant};

use super::SourceSettings;

/// Instants of messages, at most. At the limit every second one is forgotten, so that ages become
/// less exact.
const WAITING_MAX: usize = 1024;

/// See the documentation of the module.
#[derive(Debug, Default)]
pub(super) struct Ages {
    /// The instants at which messages were routed to the destination, with their positions.
    waiting: VecDeque<(Position, Instant)>,
    /// The age of its messages or a command decided that the destination is not waited for.
    pub(super) is_downgraded: bool,
    /// A command decided it, so that the age does not undo it.
    pub(super) by_command: bool,
}

impl Ages {
    /// The age of the oldest message; zero without one.
    pub(super) fn oldest(&self, now: Instant) -> Duration {
        self.waiting.front().map_or(Duration::ZERO, |(_, since)| now.since(*since))
    }

    /// A message at this position is routed to the destination now.
    #[inline]
    pub(super) fn note(&mut self, position: Position, now: Instant) {
        if self.waiting.back().is_some_and(|(_, since)| *since == now) {
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            let mut is_kept = false;
            self.waiting.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
        }
        self.waiting.push_back((position, now));
    }

    /// Everything up to this position is acknowledged.
    pub(super) fn forget_through(&mut self, acknowledged: Position) {
        while self.waiting.pop_front_if(|(position, _)| *position <= acknowledged).is_some() {}
    }

    /// When the oldest message becomes too old.
    pub(super) fn downgrade_due(&self, settings: &SourceSettings) -> Option<Instant> {
        let after = settings.downgrade_after.filter(|_| !self.is_downgraded && !self.by_command)?;
        self.waiting.front().map(|(_, since)| *since + after)
    }
}
