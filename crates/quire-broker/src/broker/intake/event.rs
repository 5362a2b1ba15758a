//! Messages of the server itself: the events of clients, of last-value topics and of actions.

use quire_command::Publish;
use quire_journal::PublisherId;

use super::{Ingested, Intake};
use crate::events::EventMessage;

/// Messages that are published in one phase. With more, other connections would wait too long.
const EVENTS_PER_PHASE_MAX: usize = 1024;

impl Intake<'_> {
    /// Publishes the events that wait. A journal that has failed records none of them.
    pub(crate) fn publish_events(&mut self) {
        if !self.cx.messages.events.any() {
            return;
        }
        let publisher = PublisherId::of_instance(&self.cx.config.name, "events");
        for _ in 0..EVENTS_PER_PHASE_MAX {
            let Some(message) = self.cx.messages.events.pop() else { return };
            let EventMessage { topic, correlation_id, headers, data, .. } = message;
            let publish = Publish {
                topic: topic.as_bytes(),
                correlation_id: &correlation_id,
                headers: headers.as_headers(),
                data: &data,
                ..Publish::default()
            };
            if let Ingested::Unacceptable(error) = self.submit(publisher, &topic, &publish) {
                return self.cx.fail(&error);
            }
        }
        self.cx.clock.wants_turn = true;
    }
}
