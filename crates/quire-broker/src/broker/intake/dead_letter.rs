//! Dead letters. Queues create them, and they are messages of their topics.

use quire_command::Publish;

use super::{Ingested, Intake};
use crate::queues::DeadLetter;

/// Dead letters that are published in one turn. With more, other connections would wait too long.
const DEAD_LETTERS_PER_TURN_MAX: usize = 1024;

impl Intake<'_> {
    /// Publishes the dead letters that are ready.
    pub(crate) fn publish_dead_letters(&mut self) {
        for _ in 0..DEAD_LETTERS_PER_TURN_MAX {
            let Some(letter) = self.queues.next_dead_letter(self.cx) else { return };
            let DeadLetter { publisher, topic, correlation_id, headers, data } = letter;
            let publish = Publish {
                topic: topic.as_bytes(),
                correlation_id: &correlation_id,
                headers: headers.as_headers(),
                data: &data,
                ..Publish::default()
            };
            // The configuration was checked: the log records every message on the topic.
            match self.submit(publisher, &topic, &publish) {
                Ingested::Recorded(_) => self.queues.dead_letter_recorded(self.cx),
                // The service only creates dead letters that the journal accepts.
                Ingested::Unacceptable(error) => return self.cx.fail(&error),
                Ingested::Unrecorded | Ingested::Duplicate { .. } | Ingested::Refused => return,
            }
        }
        self.cx.clock.wants_turn = true;
    }
}
