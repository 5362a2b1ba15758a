//! The checks of two configurations against each other, when a link is made (docs/replication.md, *How a link begins*).
//!
//! Each message says what differs, and which entry of which configuration to change.

use std::sync::Arc;

use super::frame::{Hello, Offered, VERSION};
use super::key_of;
use super::settings::{CASCADE, Definition, KEY, MESSAGE_TYPE, NAME_SIZE_MAX, REPLICATE, SOW, TXLOG};
use crate::context::Context;

/// Checks the introduction of a source. `own_links` are the links of this instance.
///
/// # Errors
/// Every difference.
pub(super) fn check(
    cx: &mut Context,
    hello: &Hello<'_>,
    own_links: &[Arc<Definition>],
) -> Result<(), String> {
    check_instances(cx, hello)?;
    let name = cx.config.name.clone();
    let source = hello.instance;
    let back = own_links.iter().find(|link| link.leads_to(source, hello.group));
    let mut mistakes = Vec::new();
    let is_checked = |check: &str| !hello.excluded.contains(&check);
    if is_checked(REPLICATE) && back.is_none() {
        mistakes.push(format!(
            "{REPLICATE}: {name:?} does not send to {source:?}, which would lack the messages of clients that fail over to {name:?}; add a [[replication.destination]] for {source:?} at {name:?}"
        ));
    }
    for offer in &hello.topics {
        let Offered { topic, message_type, .. } = *offer;
        let id = cx.topics.intern(topic);
        let recording = &cx.topics.topic(id).recording;
        if is_checked(TXLOG) && !(recording.is_configured() && recording.records_any()) {
            mistakes.push(format!(
                "{TXLOG}: {name:?} does not record the topic {topic:?}; add it to [[transaction_log.topic]] at {name:?}, or remove it from the destination at {source:?}"
            ));
            continue;
        }
        let type_here = recording.message_type.name();
        if is_checked(MESSAGE_TYPE) && type_here != message_type {
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
            let (with, without) = if key.is_empty() { (source, &*name) } else { (&*name, source) };
            if is_checked(SOW) {
                mistakes.push(format!(
                    "{SOW}: {with:?} keeps last values of the topic {topic:?} and {without:?} does not; define the same [[sow_topic]] on both"
                ));
            }
        } else if is_checked(KEY) && key != offer.key {
            mistakes.push(format!(
                "{KEY}: the last-value topic {topic:?} has the key {:?} at {source:?} and {key:?} at {name:?}; set the same key and key_domain on both",
                offer.key
            ));
        }
        if is_checked(REPLICATE) && back.is_some_and(|back| !back.route.names(topic, message_type)) {
            mistakes.push(format!(
                "{REPLICATE}: {name:?} does not send the topic {topic:?} to {source:?}; add it to that destination at {name:?}"
            ));
        }
        if is_checked(CASCADE) {
            mistakes.extend(weaker_links(hello, offer, own_links, &name));
        }
    }
    if mistakes.is_empty() {
        for offer in &hello.topics {
            let topic = cx.topics.intern(offer.topic);
            cx.topics.note_incoming(topic);
        }
        return Ok(());
    }
    Err(mistakes.join("; "))
}

/// Refuses two instances that cannot be linked.
fn check_instances(cx: &Context, hello: &Hello<'_>) -> Result<(), String> {
    let (name, group, source) = (&cx.config.name, cx.config.group(), hello.instance);
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
    if [source, hello.group].iter().any(|text| !(1..=NAME_SIZE_MAX).contains(&text.len())) {
        return Err("the name or the group of the source is empty or too long".to_owned());
    }
    let is_meant = hello.destination == name
        || (!hello.destination_group.is_empty() && hello.destination_group == group);
    if !is_meant {
        return Err(format!(
            "the instance at the address has the name {name:?} and the group {group:?}, and {source:?} looks for {:?}: correct addresses or name of the destination at {source:?}",
            hello.destination
        ));
    }
    Ok(())
}

/// The destinations to which this instance sends the topic on without checks that the source makes.
fn weaker_links(
    hello: &Hello<'_>,
    offer: &Offered<'_>,
    own_links: &[Arc<Definition>],
    name: &str,
) -> Vec<String> {
    let sends_on = |link: &&Arc<Definition>| {
        !link.leads_to(hello.instance, hello.group)
            && link.route.passes_on_from(hello.group)
            && link.route.names(offer.topic, offer.message_type)
    };
    let mut mistakes = Vec::new();
    for link in own_links.iter().filter(sends_on) {
        let left_out = &link.settings.exclude_validation;
        for check in left_out.iter().filter(|check| !hello.excluded.contains(&check.as_str())) {
            mistakes.push(format!(
                "{CASCADE}: {name:?} sends the topic {:?} to {:?} without the check {check:?}; remove it from exclude_validation of that destination at {name:?}, or add \"{CASCADE}\" to exclude_validation at {:?}",
                offer.topic, link.settings.name, hello.instance
            ));
        }
    }
    mistakes
}
