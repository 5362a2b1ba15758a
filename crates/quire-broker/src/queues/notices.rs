//! Lines of the log about messages of queues: at most one for each queue, kind and minute, however
//! many messages there are.

use std::collections::BTreeMap;
use std::time::Duration;

use super::QueueService;
use crate::Event;
use crate::context::Context;
use quire_journal::Position;
use quire_queue::{QueueId, Reasons};
use quire_types::time::Instant;

/// The shortest time between two lines of one kind about one queue.
const INTERVAL: Duration = Duration::from_secs(60);

/// The number of cancels after which a line about the message is logged. With the default delays it
/// has failed for a minute then.
pub(super) const CANCELS_MANY: u32 = 5;

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A message expired, and is a dead letter.
    DeadLetter,
    /// A message expired at a limit of its queue, and no topic gets dead letters.
    Expired,
    /// A message was cancelled again and again.
    Cancelled,
}

/// The lines of the last minute.
#[derive(Default)]
pub(super) struct Notices(BTreeMap<(QueueId, Kind), Notice>);

struct Notice {
    /// From when on another line may follow.
    next_at: Instant,
    /// Messages without a line since then.
    left_out: u64,
}

impl Notices {
    /// Whether a line about a message may follow now. The message is counted otherwise.
    pub fn admits(&mut self, now: Instant, queue: QueueId, kind: Kind) -> bool {
        if let Some(notice) = self.0.get_mut(&(queue, kind)) {
            notice.left_out += 1;
            return false;
        }
        self.0.insert((queue, kind), Notice { next_at: now + INTERVAL, left_out: 0 });
        true
    }

    /// When [`QueueService::log_notices`] has something to do.
    pub fn due(&self) -> Option<Instant> {
        self.0.values().map(|notice| notice.next_at).min()
    }

    /// A queue was removed.
    pub fn forget(&mut self, queue: QueueId) {
        self.0.retain(|(other, _), _| *other != queue);
    }
}

impl QueueService {
    /// Logs that a message expired at a limit of its queue and that no topic gets it.
    pub(super) fn note_expired(
        &mut self,
        cx: &mut Context,
        queue: QueueId,
        position: Position,
        (reasons, deliveries, cancels): (Reasons, u32, u32),
    ) {
        if reasons.is_limit() && self.notices.admits(cx.clock.now.instant, queue, Kind::Expired) {
            let (queue, message) = (self.definition(queue).name.to_string(), self.name_of(position));
            let event = Event::MessageExpired { queue, message, reasons, deliveries, cancels };
            cx.note(event);
        }
    }

    /// Logs that a message was cancelled repeatedly.
    pub(super) fn note_cancelled(
        &mut self,
        cx: &mut Context,
        queue: QueueId,
        position: Position,
        cancels: u32,
    ) {
        if cancels >= CANCELS_MANY && self.notices.admits(cx.clock.now.instant, queue, Kind::Cancelled) {
            let (queue, message) = (self.definition(queue).name.to_string(), self.name_of(position));
            cx.note(Event::MessageCancelled { queue, message, cancels });
        }
    }

    /// A message as a line names it: by its bookmark, or its position when it is not in memory.
    pub(super) fn name_of(&self, position: Position) -> String {
        match self.recent.get(position) {
            Some(record) => record.bookmark().to_string(),
            None => format!("at position {}", position.get()),
        }
    }

    /// Logs how many messages had no line in the last minute, for each queue and kind whose minute
    /// is over.
    pub(super) fn log_notices(&mut self, cx: &mut Context) {
        let now = cx.clock.now.instant;
        if self.notices.due().is_none_or(|due| due > now) {
            return;
        }
        let all = &self.all;
        self.notices.0.retain(|(queue, kind), notice| {
            if notice.next_at > now {
                return true;
            }
            let count = std::mem::take(&mut notice.left_out);
            notice.next_at = now + INTERVAL;
            if count > 0 {
                let queue = all[queue.get() as usize].name.to_string();
                cx.note(match kind {
                    Kind::DeadLetter => Event::DeadLetters { queue, count },
                    Kind::Expired => Event::MessagesExpired { queue, count },
                    Kind::Cancelled => Event::MessagesCancelled { queue, count },
                });
            }
            count > 0
        });
    }
}
