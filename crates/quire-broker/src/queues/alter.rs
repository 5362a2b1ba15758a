//! Changes of the settings of queues that were created at run time (docs/queues.md section 14).
//!
//! A queue gets other settings in these steps, which `define.rs` takes as for any other command
//! about a queue:
//!
//! 1. The new settings are checked as those of a new queue, together with the other queues. The
//!    queue keeps the old ones for now.
//! 2. The server waits until the log is persisted up to its present end. With another expiration,
//!    the messages up to this position keep the old one.
//! 3. `created-queues.state` is written with the new settings.
//! 4. The queue uses the new settings. The answer is sent.
//!
//! A crash leaves the queue with its settings from before or after the file was written, never with
//! a part of them.

use std::sync::Arc;

use quire_journal::Position;

use super::created::{CreatedQueue, check_size};
use super::define::{Begun, Change, Step, bad, check_journal, check_targets, configured, unknown};
use super::{Definition, QueueService};
use crate::admin::{AdminReply, Requester};
use crate::config::queues::{QueueChanges, QueueSettings};
use crate::context::Context;
use crate::reply::Refused;
use crate::{ConfigError, Event};
use quire_command::Code;
use quire_queue::{EarlierExpiration, QueueId};

/// The settings that can change while the queue has messages. The others decide which messages it
/// has, in which order they are delivered, or where its state is kept.
const ALTERABLE: [&str; 11] = [
    "lease_period",
    "leasing",
    "max_backlog",
    "max_per_subscription_backlog",
    "max_deliveries",
    "max_cancels",
    "retry_delay",
    "expiration",
    "expiration_model",
    "dead_letter_topic",
    "record_leases",
];

/// The most expirations that a queue remembers, because it may still have messages from before
/// their change. They take some 100 bytes each in the file with the queues.
const EARLIER_EXPIRATIONS_MAX: usize = 100;

/// A queue with its new settings.
pub(super) struct Altered {
    created: CreatedQueue,
    definition: Definition,
    /// The keys that differ.
    keys: Vec<String>,
}

impl Altered {
    pub fn created(&self) -> &CreatedQueue {
        &self.created
    }
}

impl QueueService {
    pub(super) fn begin_alter(
        &mut self,
        cx: &mut Context,
        name: &str,
        changes: &QueueChanges,
    ) -> Result<Begun, Refused> {
        let queue = self.find(name).ok_or_else(|| unknown(name))?;
        let Some(created) = self.defining.created(queue) else { return Err(configured(name)) };
        let refuse = |error: ConfigError| bad(error.into());
        let mut settings = changes.applied_to(&created.settings).map_err(refuse)?;
        settings.dead_letter_topic = settings.dead_letter_topic.map(|topic| self.letters_to(topic));
        let keys = created.settings.differences(&settings);
        if keys.is_empty() {
            return Ok(Begun::Done(AdminReply::QueueAltered { queue: name.to_owned(), keys }));
        }
        let fixed: Vec<&str> =
            keys.iter().map(String::as_str).filter(|key| !ALTERABLE.contains(key)).collect();
        if !fixed.is_empty() {
            let reason = format!(
                "cannot be changed while the queue exists; drop queue {name:?} and create it again to change it. Nothing was \
                 changed"
            );
            return Err(refuse(ConfigError::new(fixed.join(", "), reason)));
        }
        check_size(&settings.to_json()).map_err(refuse)?;
        check_journal(cx)?;
        let end = cx.log.journal.appended();
        let is_expiration = |key: &String| key == "expiration" || key == "expiration_model";
        let earlier_expirations = match keys.iter().any(is_expiration) {
            true => self.expirations_until(queue, created, end)?,
            false => created.earlier_expirations.clone(),
        };
        let created = CreatedQueue { begin: created.begin, settings, earlier_expirations };
        let others: Vec<&Definition> =
            self.live().filter(|(other, _)| *other != queue).map(|(_, definition)| &**definition).collect();
        let definition =
            created.compile(&others, cx.topics.rules(), &cx.config.filter_options()).map_err(bad)?;
        check_targets(cx, &definition)?;
        let altered = Altered { created, definition, keys };
        Ok(Begun::Step(queue, Step::Ready(end, Change::Alter(Box::new(altered)))))
    }

    /// The expirations of a queue whose messages after a position will have another one.
    /// Expirations before the part of the log that the queue still needs are left out.
    fn expirations_until(
        &self,
        queue: QueueId,
        created: &CreatedQueue,
        until: Position,
    ) -> Result<Vec<EarlierExpiration>, Refused> {
        let needed_after = self.saving.saved(queue).unwrap_or(created.takes_after());
        let mut all = created.earlier_expirations.clone();
        all.retain(|earlier| earlier.until > needed_after);
        // Otherwise the queue can have no message from before this change.
        if all.last().map_or(needed_after, |earlier| earlier.until) < until {
            let QueueSettings { expiration_model, .. } = created.settings;
            let expiration = self.definition(queue).config.expiration;
            all.push(EarlierExpiration { until, expiration, model: expiration_model });
        }
        if all.len() <= EARLIER_EXPIRATIONS_MAX {
            return Ok(all);
        }
        let reason = format!(
            "queue {:?} may have messages with {EARLIER_EXPIRATIONS_MAX} earlier expirations; change its expiration again when its oldest \
             messages are settled",
            created.settings.name
        );
        Err(Refused::new(Code::LimitExceeded, reason))
    }

    /// The queue has its new settings from here on.
    pub(super) fn altered(
        &mut self,
        cx: &mut Context,
        by: &Requester,
        queue: QueueId,
        altered: Altered,
    ) -> AdminReply {
        let Altered { created, definition, keys } = altered;
        if let Err(error) = self.engine.alter_queue(queue, definition.config.clone()) {
            // The settings were checked, so this is a bug. The file gets the settings that hold.
            self.defining.is_uncertain = true;
            return AdminReply::refused(Code::Internal, error.to_string());
        }
        let name = definition.name.to_string();
        self.defining.created.insert(queue, created);
        self.all[queue.get() as usize] = Arc::new(definition);
        let event = Event::QueueAltered { queue: name.clone(), keys: keys.clone(), by: by.name() };
        cx.note(event);
        AdminReply::QueueAltered { queue: name, keys }
    }

    /// The topic for dead letters that are to go to a topic or to a queue. The queue may be
    /// dropped. The topic is kept.
    pub(super) fn letters_to(&self, topic: String) -> String {
        match self.find(&topic) {
            Some(queue) => self.definition(queue).publish_target.to_string(),
            None => topic,
        }
    }
}
