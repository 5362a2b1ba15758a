//! Queues with a target depth: what lies beyond it is read from the log when there is room (seed 001).

use quire_journal::{JournalError, Position};

use super::work::Refill;
use super::{Purpose, QueueWork};
use crate::broker::acknowledge::code_of;
use crate::broker::{Broker, Event, Output};
use crate::queue::{Entry, QueueId};
use crate::wire::Code;

/// Messages that one read brings: enough to keep consumers busy until the next.
const REFILL_COUNT_MAX: u64 = 64 * 1024;

impl Broker {
    /// Reads on for every queue below its target that has more.
    pub(super) fn refill(&mut self) {
        let idle = self.queues.refilling.iter().filter(|(_, is_under_way)| !**is_under_way);
        let wanted = |queue: &QueueId| Some((*queue, self.queues.engine.wanted(*queue)?));
        let wanted: Vec<_> = idle.filter_map(|(queue, _)| wanted(queue)).collect();
        for (queue, (after, count)) in wanted {
            let refill = Refill {
                reader: self.reader.clone(),
                after,
                count: count.min(REFILL_COUNT_MAX),
                limit: self.edge,
                definition: self.queues.definition(queue).clone(),
                now: self.queues.time(self.now),
                wall: self.now.wall,
            };
            self.queues.refilling.insert(queue, true);
            self.begin_work(Purpose::Refill(queue), QueueWork::Refill(refill));
        }
    }

    pub(super) fn refilled(
        &mut self,
        queue: QueueId,
        found: Option<Result<Vec<(Position, Entry)>, JournalError>>,
    ) {
        let error = match found {
            Some(Ok(entries)) if !entries.is_empty() => {
                for (position, entry) in entries {
                    self.queues.engine.enqueue(queue, position, entry);
                }
                self.queues.refilling.insert(queue, false);
                return;
            }
            Some(Err(error)) => (code_of(&error), error.to_string()),
            _ => (Code::Internal, "it could not be read".to_owned()),
        };
        // The queue stays as it is: what lies behind the damage must not overtake it.
        let position = self.queues.engine.wanted(queue).map_or(0, |(after, _)| after.get() + 1);
        let (code, reason) = error;
        self.outputs.push_back(Output::Log(Event::QueueMessageUnreadable { position, code, reason }));
    }
}
