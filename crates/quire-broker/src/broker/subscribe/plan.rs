//! A subscribe command, after all checks that need no search.
//!
//! [`Request`] has the rules for combinations of options. This module has the rules that need the
//! state of the server: the kind of the topic, the log, and the subscription that is replaced.

use quire_journal::Position;

use crate::Access;
use crate::bookmarks::{Bookmarks, LogPlan};
use crate::context::Context;
use crate::entitlement::{Grant, TopicSelect};
use crate::events::options_text;
use crate::queues::QueueService;
use crate::reply::{Refused, bad_option, unknown_subscription};
use crate::session::SessionId;
use crate::subscription::{Conflation, Range, ServedBy, SubscriptionId};
use crate::tables::{PENDING_CHANGES_MAX, Tables, ViewPlan};
use quire_command::subscribe::{Family, Former, FormerLog, Request};
use quire_command::{Acks, Code, Keys, LogPlace, Subscribe, SubscribeOptions};
use quire_expression::filter::{Filter, path_of};
use quire_expression::select::Select;
use quire_expression::topic::TopicSelector;
use quire_queue::QueueId;

/// A subscribe command that was understood.
pub(super) struct Plan {
    pub(super) command: u32,
    pub(super) acks: Acks,
    pub(super) number: u32,
    pub(super) selector: TopicSelector,
    pub(super) filter: Option<Filter>,
    /// The messages that its user may see; `None` = all.
    pub(super) visible: Option<Filter>,
    pub(super) family: Family,
    /// The queues that serve it, with the filter of each.
    pub(super) queues: Vec<(QueueId, Option<Filter>)>,
    pub(super) max_backlog: Option<u32>,
    /// The subscription that is replaced.
    pub(super) replaced: Option<SubscriptionId>,
    /// How it is served from the log; `None`: it is not served from the log.
    pub(super) log: Option<LogPlan>,
    pub(super) conflation: Option<Conflation>,
    pub(super) select: Option<TopicSelect>,
    /// The records of last-value topics that it has in view.
    pub(super) view: Option<ViewPlan>,
    /// The end of the log when the command arrived.
    pub(super) log_end: Position,
    /// The log contains none of its bookmarks, and the options determine the start.
    pub(super) is_bookmark_missing: bool,
    /// The position at which it begins instead of at its bookmark, when it is of the log here.
    pub(super) place: Option<LogPlace>,
    /// It is not.
    pub(super) is_place_unknown: bool,
    /// The client takes places.
    pub(super) takes_places: bool,
    /// A note that the client logs when the subscription begins.
    pub(super) note: Option<String>,
    /// The options as text, for the event of the subscription; `None`: no event is wanted.
    pub(super) told: Option<Option<String>>,
}

impl Plan {
    /// Checks everything that can be checked without searching.
    pub(super) fn new(
        cx: &mut Context,
        (bookmarks, queues, tables): (&Bookmarks, &QueueService, &mut Tables),
        id: SessionId,
        subscribe: &Subscribe<'_>,
        grant: &Grant,
    ) -> Result<Plan, Refused> {
        let number = subscribe.subscription;
        let replaced = find_replaced(cx, tables, id, subscribe)?;
        let request = match replaced {
            Some(replaced) => check_replaced(cx, bookmarks, tables, replaced, subscribe)?,
            None => Request::of(subscribe).map_err(bad_option)?,
        };
        let selector = TopicSelector::new(subscribe.topic)
            .map_err(|error| Refused::new(Code::BadTopic, error.to_string()))?;
        let mut filter = subscribe.filter.map(|text| cx.parse_filter(id, text)).transpose()?;
        if let Some(keys) = request.log().and_then(|log| log.keys) {
            // The log has no records in view. So the keys are a part of the filter of its messages.
            filter = Some(cx.parse_filter(id, &filter_of_keys(keys, subscribe.filter))?);
        }
        cx.check_pattern_count(id, replaced, filter.as_ref())?;
        let select = subscribe.select.map(Select::parse).transpose();
        let select = select.map_err(|error| Refused::new(Code::BadOption, error.to_string()))?;
        if let TopicSelector::Name(name) = &selector {
            check_message_type(cx, queues, name, filter.as_ref(), select.as_ref())?;
        }
        check_conflation_key(subscribe, grant)?;
        let select = grant.select(select);
        let asked = tables.asked_state(cx, &request, &selector)?;
        let log = request.log().map(LogPlan::new).transpose()?;
        let interval = request.conflation();
        let encoder = cx.session(id).outbox.encoder();
        // Records have keys.
        let has_default = !cx.topics.tables_of(&selector).is_empty() || cx.topics.may_keep_values(&selector);
        let conflation = interval
            .map(|interval| Conflation::parse(interval, has_default, encoder))
            .transpose()
            .map_err(|error| Refused::new(Code::BadOption, error.to_string()))?;
        let selector = if log.is_some() { queues.replayed_for(selector) } else { selector };
        if log.is_some() && !cx.topics.could_record(&selector) {
            let reason = format!("the transaction log does not record {:?}", selector.text());
            return Err(Refused::new(Code::NotJournaled, reason));
        }
        let range = log.as_ref().and_then(LogPlan::range);
        // The server itself does not misspell a name.
        let range = range.filter(|_| cx.session(id).access != Access::Internal);
        let note = range.and_then(|range| note_about(cx, queues, &selector, range));
        let joined = if log.is_some() { Vec::new() } else { queues.matching(&selector) };
        let queues = queues.visible(cx, id, joined, filter.as_ref(), grant)?;
        let filter = cx.narrow(id, grant, filter)?;
        let view = tables.plan_view(cx, id, &request, &selector, asked, (grant, filter.as_ref()))?;
        let is_aggregated = view.as_ref().is_some_and(ViewPlan::is_aggregated);
        let (filter, select) = if is_aggregated { (None, None) } else { (filter, select) };
        if !queues.is_empty() {
            check_queues(&request, &selector)?;
        }
        cx.topics.prepare(&selector).map_err(|_| {
            Refused::new(Code::LimitExceeded, "too many topics match too many patterns".to_owned())
        })?;
        Ok(Plan {
            command: subscribe.command,
            acks: subscribe.acks,
            number,
            selector,
            filter,
            visible: if is_aggregated || grant.is_whole() {
                None
            } else {
                grant.visible(&cx.filter_options(id))
            },
            family: if log.is_some() { Family::Subscribe } else { Family::of(subscribe.options) },
            queues,
            max_backlog: subscribe.max_backlog,
            replaced,
            log,
            conflation,
            select,
            view,
            // A subscription does not wait for messages that will never be persisted.
            log_end: if cx.log.failure.is_some() { cx.log.visible() } else { cx.log.appended() },
            is_bookmark_missing: false,
            place: subscribe.place,
            is_place_unknown: false,
            takes_places: subscribe.takes_places,
            note,
            told: cx.wants_client_events().then(|| options_text(subscribe)),
        })
    }
}

impl Plan {
    /// The range in the log. `None`: the subscription is not served from the log, or keeps its
    /// place.
    pub(super) fn range(&self) -> Option<&Range> {
        self.log.as_ref()?.range()
    }

    /// The subscription begins at another place in the log.
    pub(super) fn set_range(&mut self, range: Range) {
        if let Some(log) = &mut self.log {
            log.set_range(range);
        }
    }

    /// The service that serves it.
    pub(super) fn served_by(&self) -> ServedBy {
        match &self.view {
            _ if self.log.is_some() => ServedBy::Bookmark,
            _ if !self.queues.is_empty() => ServedBy::Queue,
            Some(view) => view.served_by(self.conflation.is_some()),
            None => ServedBy::Stream,
        }
    }
}

/// A replay without an end waits for the first message of a topic that the log does not have. The
/// name may be misspelt, because an entry with a pattern records any matching name.
fn note_about(
    cx: &Context,
    queues: &QueueService,
    selector: &TopicSelector,
    range: &Range,
) -> Option<String> {
    let TopicSelector::Name(name) = selector else { return None };
    let is_configured = cx.topics.rules().iter().any(|rule| rule.name() == Some(&**name))
        || cx.topics.table(name).is_some()
        || queues.names_topic(name);
    if range.end.is_some() || *range == Range::now() || is_configured || cx.log.journal.has_topic(name) {
        return None;
    }
    Some(format!("the log has no message of the topic {name:?}"))
}

/// The text of a filter that also holds only for messages with these keys.
fn filter_of_keys(keys: Keys<'_>, filter: Option<&str>) -> String {
    // No message has a key that is not text.
    let texts = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
    let quoted: Vec<_> = texts.map(|text| format!("'{}'", text.replace('\'', "''"))).collect();
    let condition =
        if quoted.is_empty() { "1 = 0".to_owned() } else { format!("SOW_KEY() IN ({})", quoted.join(", ")) };
    match filter {
        Some(filter) => format!("({filter}) AND {condition}"),
        None => condition,
    }
}

/// Whether the messages of a topic have the requested parts.
fn check_message_type(
    cx: &mut Context,
    queues: &QueueService,
    topic: &str,
    filter: Option<&Filter>,
    select: Option<&Select>,
) -> Result<(), Refused> {
    let message_type = match queues.message_type(topic) {
        Some(message_type) => message_type,
        None => {
            let topic = cx.topics.intern(topic);
            cx.topics.topic(topic).recording.message_type
        }
    };
    let reads_fields = filter.is_some_and(|filter| filter.fields().next().is_some());
    if reads_fields && !message_type.has_fields() {
        let reason = format!("messages of type {} have no fields", message_type.name());
        return Err(Refused { code: Code::BadFilter, column: 1, reason });
    }
    if select.is_some() && !message_type.has_parts() {
        let reason = format!("select: of a message of type {} no part can be delivered", message_type.name());
        return Err(Refused::new(Code::BadOption, reason));
    }
    Ok(())
}

/// The subscription that a command replaces; `None` when it begins a new one.
fn find_replaced(
    cx: &mut Context,
    tables: &Tables,
    id: SessionId,
    subscribe: &Subscribe<'_>,
) -> Result<Option<SubscriptionId>, Refused> {
    let number = subscribe.subscription;
    let session = cx.session(id);
    let count = session.subscriptions.len();
    let existing = session.subscriptions.get(&number).copied();
    match (existing, subscribe.options.has(SubscribeOptions::REPLACE)) {
        (Some(_), false) => {
            let reason = format!("subscription {number} exists; replace changes it");
            Err(Refused::new(Code::SubscriptionInUse, reason))
        }
        (None, true) => Err(unknown_subscription(number)),
        (None, false) if count >= cx.transport_of(id).max_subscriptions_per_connection as usize => {
            let reason = format!("max_subscriptions_per_connection ({count}) is reached");
            Err(Refused::new(Code::LimitExceeded, reason))
        }
        (None, _) if tables.has_query(id, number) => {
            let reason = format!("a query has the number {number}");
            Err(Refused::new(Code::SubscriptionInUse, reason))
        }
        (None, false) => match cx.check_subscription_count(id) {
            Ok(()) => Ok(None),
            Err(reason) => Err(Refused::new(Code::LimitExceeded, reason)),
        },
        (existing, _) => Ok(existing),
    }
}

/// Refuses a key that the grant hides: which messages have equal keys would tell about them.
fn check_conflation_key(subscribe: &Subscribe<'_>, grant: &Grant) -> Result<(), Refused> {
    let Some(key) = subscribe.conflation_key else { return Ok(()) };
    match key.split(',').map(str::trim).find(|field| grant.hides(&path_of(field))) {
        Some(field) => Err(Refused::new(
            Code::BadOption,
            format!("conflation_key: {field:?} is no field of the messages"),
        )),
        None => Ok(()),
    }
}

/// Whether queues can serve a request. Queues deliver all of their messages, and each message
/// whole.
fn check_queues(request: &Request<'_>, selector: &TopicSelector) -> Result<(), Refused> {
    let topic = selector.text();
    let reason = if request.conflation().is_some() {
        "conflation: the messages of a queue cannot be conflated: none may be dropped".to_owned()
    } else if matches!(request, Request::Deltas(_)) {
        format!("delta: {topic:?} names a queue, whose messages are always delivered whole; remove delta")
    } else if matches!(request, Request::Records(_)) {
        format!("sow: {topic:?} names a queue; a queue is queried or subscribed to")
    } else {
        return Ok(());
    };
    Err(Refused::new(Code::BadOption, reason))
}

/// The request of a command that replaces a subscription.
fn check_replaced<'a>(
    cx: &Context,
    bookmarks: &Bookmarks,
    tables: &Tables,
    replaced: SubscriptionId,
    subscribe: &Subscribe<'a>,
) -> Result<Request<'a>, Refused> {
    let former = &cx.clients.subscriptions.all[replaced];
    let progress = bookmarks.progress(replaced);
    if progress.is_some_and(|progress| progress.awaits_records) {
        let reason = "replace: the records of the subscription are still being sent; replace it again when all have arrived";
        return Err(Refused::new(Code::LimitExceeded, reason.to_owned()));
    }
    let is_paused = former.delivery.is_paused;
    let log = progress.map(|progress| FormerLog { is_paused, has_end: progress.until.is_some() });
    let (is_page, is_aggregated) = (tables.is_page(replaced), tables.is_aggregated(replaced));
    let former = Former { family: former.family, is_page, is_aggregated, log };
    let request = Request::replacing(subscribe, &former).map_err(bad_option)?;
    if tables.pending_change_count(replaced) >= PENDING_CHANGES_MAX {
        let reason = format!(
            "replace: {PENDING_CHANGES_MAX} changes of the subscription wait until their records are sent; take its messages first"
        );
        return Err(Refused::new(Code::LimitExceeded, reason));
    }
    Ok(request)
}
