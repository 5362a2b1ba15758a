//! A subscribe command, checked as far as no search is needed.
//!
//! [`Request`] has the rules about which options go together. This module has those that need the
//! state of the server: the kind of the topic, the log, and the subscription that is replaced.

use crate::context::Context;
use std::time::Duration;

use quire_journal::Position;

use crate::bookmarks::{Bookmarks, PendingCompletion, Progress, Source};
use crate::queues::QueueService;
use crate::replay::{Pace, Rate};
use crate::reply::{Refused, bad_option, unknown_subscription};
use crate::session::SessionId;
use crate::subscription::{Conflation, Range, SubscriptionId};
use crate::tables::{AskedState, Changes, PENDING_CHANGES_MAX, RecordsPlan, Tables};
use quire_command::subscribe::{Delivery, Family, Former, FormerLog, Log, Request, Selected};
use quire_command::{Acks, Code, Keys, Subscribe, SubscribeOptions};
use quire_expression::filter::Filter;
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
    pub(super) family: Family,
    /// The queues that serve it.
    pub(super) queues: Vec<QueueId>,
    pub(super) max_backlog: Option<u32>,
    /// The subscription that is replaced.
    pub(super) replaced: Option<SubscriptionId>,
    /// How it is served from the log; `None`: it is not.
    pub(super) log: Option<LogPlan>,
    pub(super) conflation: Option<Conflation>,
    pub(super) select: Option<Select>,
    /// The records of last-value topics that it has in view.
    pub(super) records: Option<RecordsPlan>,
    /// The messages about their changes that it wants.
    pub(super) changes: Changes,
    /// The state that these records are, when it is not that of the command.
    pub(super) asked: Option<AskedState>,
    /// The end of the log when the command arrived.
    pub(super) log_end: Position,
    /// None of its bookmarks is in the log, and the options say where it begins instead.
    pub(super) is_bookmark_missing: bool,
    /// A note that the client logs when the subscription begins.
    pub(super) note: Option<String>,
}

/// How a subscription is served from the log.
pub(super) struct LogPlan {
    /// Where to begin and to end; `None` for a replaced one that keeps both.
    pub(super) range: Option<Range>,
    pub(super) rate: Option<Rate>,
    pub(super) delivery: Delivery,
}

impl Plan {
    /// Checks everything that can be checked without searching.
    pub(super) fn new(
        cx: &mut Context,
        bookmarks: &Bookmarks,
        queues: &QueueService,
        tables: &mut Tables,
        id: SessionId,
        subscribe: &Subscribe<'_>,
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
        let asked = plan_state(cx, tables, &request, &selector)?;
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
        let range = log.as_ref().and_then(|log| log.range.as_ref());
        let note = range.and_then(|range| note_about(cx, queues, &selector, range));
        let queues = if log.is_some() { Vec::new() } else { queues.matching(&selector) };
        let records = plan_records(cx, tables, id, &request, &selector)?;
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
            family: if log.is_some() { Family::Subscribe } else { Family::of(subscribe.options) },
            queues,
            max_backlog: subscribe.max_backlog,
            replaced,
            log,
            conflation,
            select,
            records,
            changes: Changes::of(&request),
            asked,
            // Messages that will never be persisted are not waited for.
            log_end: if cx.log.failure.is_some() { cx.log.visible() } else { cx.log.appended() },
            is_bookmark_missing: false,
            note,
        })
    }
}

impl Plan {
    /// Where it begins and ends in the log. `None`: it is not served from the log, or keeps its place.
    pub(super) fn range(&self) -> Option<&Range> {
        self.log.as_ref()?.range.as_ref()
    }

    /// How far the subscription has come in the log when it begins. `former` is that of a replaced one, which keeps its place
    /// without `after`.
    pub(super) fn progress(
        &self,
        log: &LogPlan,
        after: Option<Position>,
        former: Option<Box<Progress>>,
        is_durable: bool,
    ) -> Progress {
        let former = former.as_deref();
        let goal = PendingCompletion { command: self.command, goal: self.log_end };
        let completion = self.acks.has(Acks::COMPLETED).then_some(goal);
        let owed = former.and_then(|former| former.completed).filter(|_| after.is_none());
        let awaits_records = self.records.is_some();
        Progress {
            after: after.or(former.map(|former| former.after)).unwrap_or(self.log_end),
            // With an interval it does not matter whether a message is persisted when it is taken.
            live: log.delivery.is_live && self.conflation.is_none(),
            is_durable,
            wants_deletions: log.delivery.has_deletions,
            wants_resume_positions: self.acks.has(Acks::PERSISTED),
            // With records, the acknowledgement follows the last record.
            completed: completion.filter(|_| !awaits_records).or(owed),
            awaits_records,
            stage: Source::Detached,
            pace: log.rate.map(|rate| Box::new(Pace::new(rate))),
            until: None,
        }
    }

    /// It begins elsewhere in the log.
    pub(super) fn set_range(&mut self, range: Range) {
        if let Some(log) = &mut self.log {
            log.range = Some(range);
        }
    }
}

impl LogPlan {
    fn new(log: &Log<'_>) -> Result<Self, Refused> {
        let range = log.bookmark.map(str::parse::<Range>).transpose();
        let rate = log.pace.map(|pace| Rate::parse(pace.rate, pace.gap_max_ns.map(Duration::from_nanos)));
        Ok(LogPlan {
            range: range.map_err(|error| Refused::new(Code::BadBookmark, error.to_string()))?,
            rate: rate.transpose().map_err(|error| Refused::new(Code::BadOption, error.to_string()))?,
            delivery: log.delivery,
        })
    }
}

/// A replay without an end, of a topic that the log does not have, waits for its first message. The
/// name may be misspelt: an entry with a pattern records any name.
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
    // A key that is not text belongs to no message.
    let texts = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
    let quoted: Vec<_> = texts.map(|text| format!("'{}'", text.replace('\'', "''"))).collect();
    let condition =
        if quoted.is_empty() { "1 = 0".to_owned() } else { format!("SOW_KEY() IN ({})", quoted.join(", ")) };
    match filter {
        Some(filter) => format!("({filter}) AND {condition}"),
        None => condition,
    }
}

/// Whether the messages of a topic have what is wanted of them.
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

/// The records in view of a subscription; `None` when it has none in view, or when no topic of it keeps last values.
fn plan_records(
    cx: &mut Context,
    tables: &mut Tables,
    id: SessionId,
    request: &Request<'_>,
    selector: &TopicSelector,
) -> Result<Option<RecordsPlan>, Refused> {
    if matches!(request, Request::Stream(_) | Request::Log(_)) {
        return Ok(None);
    }
    let mut named = cx.topics.tables_of(selector);
    let Selected { order_by, top_n, skip_n, keys } = request.selection().copied().unwrap_or_default();
    if skip_n.is_some() && matches!(selector, TopicSelector::Pattern(_)) {
        let reason =
            format!("skip_n: a page is of one topic, and {:?} is a pattern; name the topic", selector.text());
        return Err(Refused::new(Code::BadOption, reason));
    }
    let may_keep_values = cx.topics.may_keep_values(selector);
    if skip_n.is_some() && named.is_empty() && may_keep_values {
        // A page is computed by the table of its topic, so that the topic gets its table before its first message.
        let topic = cx.topics.intern(selector.text());
        tables.admit_topic(cx, topic, cx.config.limits.max_pattern_topics as usize)?;
        named = cx.topics.tables_of(selector);
    }
    if skip_n.is_some() && named.is_empty() {
        let reason = format!("skip_n: {:?} keeps no last values, so it has no pages", selector.text());
        return Err(Refused::new(Code::NotLastValue, reason));
    }
    let is_query = request.selection().is_some() && request.log().is_none();
    if named.is_empty() && !may_keep_values && !is_query {
        return Ok(None);
    }
    // Without last-value topics no message has a key.
    let keys = keys.filter(|_| may_keep_values || !named.is_empty());
    let plan = tables.plan(cx, id, named, &Selected { order_by, top_n, skip_n, keys })?;
    if skip_n.is_some() { plan.into_page().map(Some) } else { Ok(Some(plan)) }
}

/// The state that the bookmark of a command with records names; `None`: it has no bookmark, or its topic keeps no last values.
fn plan_state(
    cx: &mut Context,
    tables: &Tables,
    request: &Request<'_>,
    selector: &TopicSelector,
) -> Result<Option<AskedState>, Refused> {
    let Request::Records(records) = request else { return Ok(None) };
    let Some(bookmark) = records.log.and_then(|log| log.bookmark) else { return Ok(None) };
    let named = cx.topics.tables_of(selector);
    if named.is_empty() && !cx.topics.may_keep_values(selector) {
        return Ok(None);
    }
    if matches!(selector, TopicSelector::Pattern(_)) {
        let reason = format!(
            "bookmark: a state is of one topic, and {:?} is a pattern; name the topic",
            selector.text()
        );
        return Err(Refused::new(Code::BadOption, reason));
    }
    if !tables.keep_history(&named) {
        let reason = format!(
            "bookmark: {:?} keeps no history; add history to the topic, or subscribe without a bookmark",
            selector.text()
        );
        return Err(Refused::new(Code::BadOption, reason));
    }
    AskedState::parse(bookmark).map(Some)
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
        (existing, _) => Ok(existing),
    }
}

/// Whether queues can serve a request. Their messages are delivered whole, and all of them.
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
    let former = Former { family: former.family, is_page: tables.is_page(replaced), log };
    let request = Request::replacing(subscribe, &former).map_err(bad_option)?;
    if tables.pending_change_count(replaced) >= PENDING_CHANGES_MAX {
        let reason = format!(
            "replace: {PENDING_CHANGES_MAX} changes of the subscription wait until their records are sent; take its messages first"
        );
        return Err(Refused::new(Code::LimitExceeded, reason));
    }
    Ok(request)
}
