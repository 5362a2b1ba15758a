//! Delta subscriptions: the difference between a message and the record that it replaces.
//!
//! The tables leave the replaced record in the context when a delta subscription follows its topic.
//! A subscription that had the record in view receives the difference. It receives the whole
//! message when it did not have the record, or when the two messages have no difference, for
//! example two XML messages with different root elements. Subscriptions without a select list share
//! one difference.

use quire_command::{Message, MessageKind, RecordHash};
use quire_expression::filter::MessageContext;
use quire_expression::message_type::{self, Arena, MessageType};
use quire_expression::select::Select;
use xxhash_rust::xxh3::xxh3_128;

use super::PublishStream;
use crate::context::Context;
use crate::slice::WEIGHED_EFFORT;
use crate::subscription::{Delta, Replaced, ServedBy, SowView, SowViews, SubscriptionId};

/// Effort that the filter of a delta subscription may take for one message: a few milliseconds, as
/// for `oof`. A subscription whose filter is not decided within this effort is ended, because its
/// messages cannot wait for a reader thread while the record changes again.
const FILTER_EFFORT_MAX: u64 = 4_000_000;

/// The record that a message replaces, and the views of the subscriptions that may have it.
pub(crate) struct Replacement<'a> {
    pub(crate) views: &'a SowViews,
    /// `Some` when a delta subscription follows the topic.
    pub(crate) replaced: Option<Replaced>,
    /// The record of the key is newer than the message. Subscriptions that have records in view do
    /// not receive it.
    pub(crate) is_older: bool,
}

/// The change of a record that is being served.
pub(super) struct Change {
    replaced: Replaced,
    /// The difference of the whole messages. It is computed for the first subscription that
    /// receives it.
    shared: Option<Difference>,
}

/// The difference between two messages.
struct Difference {
    /// Whether any field differs.
    differs: bool,
    /// The fields that differ, and the hash of the new message. `None`: the messages have no
    /// difference, and the new one is sent whole.
    parts: Option<(Vec<u8>, RecordHash)>,
}

/// The part of a change that a subscription receives.
#[derive(Clone, Copy)]
enum Part<'a> {
    Nothing,
    Whole,
    Difference(&'a [u8], RecordHash),
}

impl Difference {
    fn of(message_type: MessageType, old: &[u8], new: &[u8], replaced: &Replaced, whole: &[u8]) -> Self {
        let mut data = Vec::new();
        let compare = |out| message_type::difference(message_type, old, new, &replaced.key_fields, out);
        let differs = if message_type.has_fields() { compare(&mut data).ok() } else { None };
        Difference {
            differs: differs.unwrap_or(old != new),
            parts: differs.map(|_| (data, RecordHash(xxh3_128(whole).to_le_bytes()))),
        }
    }

    fn part(&self, no_empties: bool) -> Part<'_> {
        match &self.parts {
            _ if no_empties && !self.differs => Part::Nothing,
            Some((data, hash)) => Part::Difference(data, *hash),
            None => Part::Whole,
        }
    }
}

impl Change {
    pub(super) fn of(replaced: Replaced) -> Self {
        Change { replaced, shared: None }
    }
}

impl PublishStream {
    /// Decides at once about a message that the filter of a delta subscription has not decided
    /// within the effort of a turn. `None` for other subscriptions.
    pub(super) fn decide_delta(
        &mut self,
        cx: &mut Context,
        views: &SowViews,
        id: SubscriptionId,
        context: &MessageContext<'_>,
    ) -> Option<bool> {
        views.get(id)?.delta.as_ref()?;
        Some(decides(cx, &mut self.arena, id, context))
    }

    /// Serves a delta subscription that had the replaced record in view. Returns false for any
    /// other subscription, which receives the whole message. The table serves conflated ones.
    pub(super) fn serve_change(
        &mut self,
        cx: &mut Context,
        view: &SowView,
        id: SubscriptionId,
        context: &MessageContext<'_>,
        message: &Message<'_>,
        change: &mut Change,
    ) -> bool {
        let Change { replaced, shared } = change;
        let Some(subscription) = cx.clients.subscriptions.get(id) else { return false };
        let Some(delta) = &view.delta else { return false };
        if subscription.served_by == ServedBy::Table {
            return true;
        }
        if !subscription.wanted.wants_key(message.key) || !view.had(replaced.position, replaced.expires) {
            return false;
        }
        if !decides(cx, &mut self.arena, id, &replaced.context(context.now)) {
            return false;
        }
        let message_type = context.message_type;
        let own;
        let difference = match selects_of(cx, delta, id, replaced) {
            Some((with_key, select)) => {
                let (mut old, mut new, mut whole) = (Vec::new(), Vec::new(), Vec::new());
                let mut part = |select: &Select, data, memory| {
                    select.apply(Some(message_type), data, &mut cx.messages.arena, memory).to_vec()
                };
                let old = part(&with_key, &replaced.message.data, &mut old);
                let new = part(&with_key, message.data, &mut new);
                let whole = part(&select, message.data, &mut whole);
                own = Difference::of(message_type, &old, &new, replaced, &whole);
                &own
            }
            None => shared.get_or_insert_with(|| {
                Difference::of(message_type, &replaced.message.data, message.data, replaced, message.data)
            }),
        };
        match difference.part(delta.no_empties) {
            Part::Nothing => true,
            Part::Whole => false,
            Part::Difference(data, hash) => {
                let message = Message { data, kind: MessageKind::Delta(hash), ..*message };
                cx.deliver_published(id, context, &message, false, None);
                true
            }
        }
    }
}

/// Whether a message matches the filter of a subscription. A subscription whose filter takes too
/// much effort is ended.
fn decides(cx: &mut Context, arena: &mut Arena, id: SubscriptionId, context: &MessageContext<'_>) -> bool {
    let Some(subscription) = cx.clients.subscriptions.get(id) else { return false };
    let Some(filter) = &subscription.wanted.filter else { return true };
    arena.allow(FILTER_EFFORT_MAX);
    let decided = filter.decide(context, arena);
    cx.clock.slices.weigh((FILTER_EFFORT_MAX - arena.effort_left()) as usize / WEIGHED_EFFORT);
    if decided.is_none() {
        cx.end_costly(id, context.data.len());
    }
    decided.unwrap_or_default()
}

/// The select list of a delta subscription: extended by the key fields, and as the client sent it.
fn selects_of(
    cx: &Context,
    delta: &Delta,
    id: SubscriptionId,
    replaced: &Replaced,
) -> Option<(Select, Select)> {
    let with_key = delta.select(replaced.table)?.clone();
    let select = cx.clients.subscriptions.get(id)?.wanted.select.as_ref()?;
    Some((with_key, select.of_topic(&replaced.message.topic)?.into_owned()))
}
