//! The checks of two configurations against each other, when a link is made (docs/replication.md,
//! *How a link begins*).
//!
//! Each message says what differs, and which entry of which configuration to change.

use std::sync::Arc;

use super::key_of;
use crate::access::LinkUser;
use crate::config::links::{CASCADE, Definition, KEY, MESSAGE_TYPE, REPLICATE, SOW, TXLOG, check_name};
use crate::context::Context;
use quire_link::Greeting;
use quire_types::time::Instant;
use quire_wire::link::{Offered, VERSION};

/// Mistakes that one answer names, at most.
const MISTAKES_MAX: usize = 20;

/// Topics that are checked before the clock is read.
const PORTION_LEN: usize = 16;

/// The checks of an introduction, under way. A `hello` may name thousands of topics, so that the
/// checks may take several turns.
pub(super) struct Checking {
    greeting: Greeting,
    next: usize,
    mistakes: Vec<String>,
}

impl Checking {
    /// Checks the instances.
    ///
    /// # Errors
    /// They cannot be linked.
    pub(super) fn begin(
        cx: &mut Context,
        greeting: Greeting,
        own_links: &[Arc<Definition>],
        user: &mut LinkUser,
    ) -> Result<Self, String> {
        // Nothing is said about this instance to a user that may have nothing.
        if !user.may_have_any() {
            let first = greeting.offers.first().map_or("", |[topic, ..]| topic);
            cx.admit_replicated(user, first).map_err(|denied| denied.reason())?;
        }
        check_instances(cx, &greeting)?;
        let checking = Checking { greeting, next: 0, mistakes: Vec::new() };
        let name = &cx.config.name;
        let (source, sends_back) = (&checking.greeting.instance, checking.back(own_links).is_some());
        let missing = format!(
            "{REPLICATE}: {name:?} does not send to {source:?}, which would lack the messages of clients that fail over to {name:?}; add a [[replication.destination]] for {source:?} at {name:?}"
        );
        let is_missing = checking.is_checked(REPLICATE) && !sends_back;
        Ok(Checking { mistakes: is_missing.then_some(missing).into_iter().collect(), ..checking })
    }

    /// Whether the source wants this check.
    pub(super) fn is_checked(&self, check: &str) -> bool {
        !self.greeting.excluded.iter().any(|excluded| excluded == check)
    }

    fn back<'a>(&self, own_links: &'a [Arc<Definition>]) -> Option<&'a Arc<Definition>> {
        own_links.iter().find(|link| link.leads_to(&self.greeting.instance, &self.greeting.group))
    }

    /// Checks topics until the deadline. `own_links` are the links of this instance. `None`: there
    /// are more.
    pub(super) fn run(
        &mut self,
        cx: &mut Context,
        own_links: &[Arc<Definition>],
        user: &mut LinkUser,
        deadline: Option<Instant>,
    ) -> Option<Result<(), String>> {
        while let Some([topic, message_type, key]) = self.greeting.offers.get(self.next) {
            if self.mistakes.len() >= MISTAKES_MAX {
                self.mistakes.push("there are more differences".to_owned());
                break;
            }
            let offer = Offered { topic, message_type, key };
            let mistakes = match cx.admit_replicated(user, topic) {
                Ok(()) => self.check_topic(cx, &offer, own_links),
                Err(denied) => vec![denied.reason()],
            };
            self.mistakes.extend(mistakes);
            self.next += 1;
            if self.next.is_multiple_of(PORTION_LEN) && cx.clock.slices.is_past(deadline) {
                return None;
            }
        }
        if !self.mistakes.is_empty() {
            return Some(Err(self.mistakes.join("; ")));
        }
        for [topic, ..] in &self.greeting.offers {
            let topic = cx.topics.intern(topic);
            cx.topics.note_incoming(topic);
        }
        Some(Ok(()))
    }

    fn check_topic(
        &self,
        cx: &mut Context,
        offer: &Offered<'_>,
        own_links: &[Arc<Definition>],
    ) -> Vec<String> {
        let Offered { topic, message_type, .. } = *offer;
        let (name, source) = (cx.config.name.clone(), &self.greeting.instance);
        let mut mistakes = Vec::new();
        let id = cx.topics.intern(topic);
        let recording = &cx.topics.topic(id).recording;
        if self.is_checked(TXLOG) && !(recording.is_configured() && recording.records_any()) {
            return vec![format!(
                "{TXLOG}: {name:?} does not record the topic {topic:?}; add it to [[transaction_log.topic]] at {name:?}, or remove it from the destination at {source:?}"
            )];
        }
        let type_here = recording.message_type.name();
        if self.is_checked(MESSAGE_TYPE) && type_here != message_type {
            mistakes.push(format!(
                "{MESSAGE_TYPE}: the topic {topic:?} has the type {message_type:?} at {source:?} and {type_here:?} at {name:?}; set the same message_type on both"
            ));
        }
        let queues = cx.topics.describe(topic).queues;
        if let Some(queue) = queues.iter().find(|queue| !cx.config.is_local_queue(queue)) {
            mistakes.push(format!(
                "queue: {queue:?} of {name:?} takes messages of the topic {topic:?}, which comes from another instance; define it as [[local_queue]]: then each instance delivers every message to its own consumers"
            ));
        }
        let key = key_of(&cx.config, topic);
        if key.is_empty() != offer.key.is_empty() {
            let (with, without) = if key.is_empty() { (source, &name) } else { (&name, source) };
            if self.is_checked(SOW) {
                mistakes.push(format!(
                    "{SOW}: {with:?} keeps last values of the topic {topic:?} and {without:?} does not; define the same [[sow_topic]] on both"
                ));
            }
        } else if self.is_checked(KEY) && key != offer.key {
            mistakes.push(format!(
                "{KEY}: the last-value topic {topic:?} has the key {:?} at {source:?} and {key:?} at {name:?}; set the same key and key_domain on both",
                offer.key
            ));
        }
        let back = self.back(own_links);
        if self.is_checked(REPLICATE) && back.is_some_and(|back| !back.route.names(topic, message_type)) {
            mistakes.push(format!(
                "{REPLICATE}: {name:?} does not send the topic {topic:?} to {source:?}; add it to that destination at {name:?}"
            ));
        }
        if self.is_checked(CASCADE) {
            mistakes.extend(self.weaker_links(offer, own_links, &name));
        }
        mistakes
    }

    /// The destinations to which this instance sends the topic on without checks that the source
    /// makes.
    fn weaker_links(&self, offer: &Offered<'_>, own_links: &[Arc<Definition>], name: &str) -> Vec<String> {
        let sends_on = |link: &&Arc<Definition>| {
            !link.leads_to(&self.greeting.instance, &self.greeting.group)
                && link.route.passes_on_from(&self.greeting.group)
                && link.route.names(offer.topic, offer.message_type)
        };
        let mut mistakes = Vec::new();
        for link in own_links.iter().filter(sends_on) {
            let left_out = &link.settings.exclude_validation;
            for check in left_out.iter().filter(|check| self.is_checked(check)) {
                mistakes.push(format!(
                    "{CASCADE}: {name:?} sends the topic {:?} to {:?} without the check {check:?}; remove it from exclude_validation of that destination at {name:?}, or add \"{CASCADE}\" to exclude_validation at {:?}",
                    offer.topic, link.settings.name, self.greeting.instance
                ));
            }
        }
        mistakes
    }
}

/// Refuses two instances that cannot be linked.
fn check_instances(cx: &Context, hello: &Greeting) -> Result<(), String> {
    let (name, group, source) = (&cx.config.name, cx.config.group(), &hello.instance);
    if hello.version != VERSION {
        return Err(format!(
            "{source:?} uses version {} of links and {name:?} version {VERSION}: run the same version of quire on both",
            hello.version
        ));
    }
    if !cx.config.replication.accepts {
        return Err(format!("{name:?} accepts no links: set address in [replication] at {name:?}"));
    }
    if source == name {
        return Err(format!("both instances have the name {name:?}: set another name at one of them"));
    }
    for (what, text) in [("the name of the source", source), ("the group of the source", &hello.group)] {
        check_name(what, text).map_err(|error| error.to_string())?;
    }
    let is_meant = hello.destination == *name
        || (!hello.destination_group.is_empty() && hello.destination_group == group);
    if !is_meant {
        return Err(format!(
            "the instance at the address has the name {name:?} and the group {group:?}, and {source:?} looks for {:?}: correct addresses or name of the destination at {source:?}",
            hello.destination
        ));
    }
    Ok(())
}
