//! The options of a subscribe command, checked as far as no search is needed.

use crate::context::Context;
use std::time::Duration;

use quire_journal::Position;

use crate::queues::QueueService;
use crate::replay::{Rate, RateError};
use crate::reply::{Refused, unknown_subscription};
use crate::session::SessionId;
use crate::subscription::{Conflation, Family, Range, SubscriptionId};
use crate::tables::{AskedState, PENDING_CHANGES_MAX, RecordsPlan, Tables, Wanted};
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
    pub(super) options: SubscribeOptions,
    /// The queues that serve it.
    pub(super) queues: Vec<QueueId>,
    pub(super) max_backlog: Option<u32>,
    /// The subscription that is replaced.
    pub(super) replaced: Option<SubscriptionId>,
    pub(super) is_bookmark: bool,
    /// Where to begin and to end; `None` for an ordinary one, and for a replaced one that keeps both.
    pub(super) range: Option<Range>,
    pub(super) rate: Option<Rate>,
    pub(super) conflation: Option<Conflation>,
    pub(super) select: Option<Select>,
    /// The records of last-value topics that it has in view.
    pub(super) records: Option<RecordsPlan>,
    /// The state that these records are, when it is not that of the command.
    pub(super) asked: Option<AskedState>,
    /// The end of the log when the command arrived.
    pub(super) log_end: Position,
    /// None of its bookmarks is in the log, and the options say where it begins instead.
    pub(super) is_bookmark_missing: bool,
    /// A note that the client logs when the subscription begins.
    pub(super) note: Option<String>,
}

impl Plan {
    /// Checks everything that can be checked without searching.
    pub(super) fn new(
        cx: &mut Context,
        queues: &QueueService,
        tables: &mut Tables,
        id: SessionId,
        subscribe: &Subscribe<'_>,
    ) -> Result<Plan, Refused> {
        let number = subscribe.subscription;
        let options = subscribe.options;
        let session = cx.session(id);
        let count = session.subscriptions.len();
        let existing = session.subscriptions.get(&number).copied();
        let replaced = match (existing, options.has(SubscribeOptions::REPLACE)) {
            (Some(_), false) => {
                let reason = format!("subscription {number} exists; replace changes it");
                return Err(Refused::new(Code::SubscriptionInUse, reason));
            }
            (None, true) => return Err(unknown_subscription(number)),
            (None, false) if count >= cx.transport_of(id).max_subscriptions_per_connection as usize => {
                let reason = format!("max_subscriptions_per_connection ({count}) is reached");
                return Err(Refused::new(Code::LimitExceeded, reason));
            }
            (None, _) if tables.has_query(id, number) => {
                return Err(Refused::new(
                    Code::SubscriptionInUse,
                    format!("a query has the number {number}"),
                ));
            }
            (existing, _) => existing,
        };
        if let Some(replaced) = replaced {
            check_replaced(cx, tables, replaced, subscribe)?;
        }
        let selector = TopicSelector::new(subscribe.topic)
            .map_err(|error| Refused::new(Code::BadTopic, error.to_string()))?;
        let mut filter = subscribe.filter.map(|text| cx.parse_filter(id, text)).transpose()?;
        let progress = replaced.and_then(|id| cx.subscriptions.all[id].progress());
        let is_bookmark = subscribe.bookmark.is_some() || progress.is_some();
        if let Some(keys) = subscribe.keys.filter(|_| is_bookmark) {
            // The log has no records in view. So the keys are a part of the filter of its messages.
            filter = Some(cx.parse_filter(id, &filter_of_keys(keys, subscribe.filter))?);
        }
        cx.check_pattern_count(id, replaced, filter.as_ref())?;
        let select = subscribe.select.map(Select::parse).transpose();
        let select = select.map_err(|error| Refused::new(Code::BadOption, error.to_string()))?;
        if let TopicSelector::Name(name) = &selector {
            check_message_type(cx, queues, name, filter.as_ref(), select.as_ref())?;
        }
        let asked = plan_state(cx, tables, subscribe, &selector)?;
        let range = subscribe
            .bookmark
            .map(str::parse::<Range>)
            .transpose()
            .map_err(|error| Refused::new(Code::BadBookmark, error.to_string()))?;
        let rate = parse_rate(subscribe)?;
        let interval = subscribe.conflation_ns.map(Duration::from_nanos);
        let encoder = cx.session(id).outbox.encoder();
        // Records have keys.
        let has_default = !cx.topics.tables_of(&selector).is_empty() || cx.topics.may_keep_values(&selector);
        let conflation = Conflation::parse(interval, subscribe.conflation_key, has_default, encoder)
            .map_err(|error| Refused::new(Code::BadOption, error.to_string()))?;
        let progress = replaced.and_then(|id| cx.subscriptions.all[id].progress());
        let is_paused = progress.is_some_and(|progress| progress.is_paused);
        let has_end = match &range {
            Some(range) => range.end.is_some(),
            None => progress.is_some_and(|progress| progress.until.is_some()),
        };
        let (has_rate, is_conflated) = (rate.is_some(), conflation.is_some());
        check_options(options, &Kind { is_bookmark, is_paused, has_end, has_rate, is_conflated })?;
        check_result_options(subscribe, is_bookmark)?;
        let selector = if is_bookmark { queues.replayed_for(selector) } else { selector };
        if is_bookmark && !cx.topics.could_record(&selector) {
            let reason = format!("the transaction log does not record {:?}", selector.text());
            return Err(Refused::new(Code::NotJournaled, reason));
        }
        let note = range.as_ref().and_then(|range| note_about(cx, queues, &selector, range));
        let queues = if is_bookmark { Vec::new() } else { queues.matching(&selector) };
        if !queues.is_empty() && conflation.is_some() {
            let reason = "the messages of a queue cannot be conflated: none may be dropped".to_owned();
            return Err(Refused::new(Code::BadOption, reason));
        }
        let records = plan_records(cx, tables, id, subscribe, &selector)?;
        if options.has(SubscribeOptions::DELTA) && !queues.is_empty() {
            let reason = format!(
                "delta: {:?} names a queue, whose messages are always delivered whole; remove delta",
                selector.text()
            );
            return Err(Refused::new(Code::BadOption, reason));
        }
        if records.is_some() && !queues.is_empty() {
            let reason =
                format!("sow: {:?} names a queue; a queue is queried or subscribed to", selector.text());
            return Err(Refused::new(Code::BadOption, reason));
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
            options,
            queues,
            max_backlog: subscribe.max_backlog,
            replaced,
            is_bookmark,
            range,
            rate,
            conflation,
            select,
            records,
            asked,
            // Messages that will never be persisted are not waited for.
            log_end: if cx.log.failure.is_some() { cx.log.visible() } else { cx.log.appended() },
            is_bookmark_missing: false,
            note,
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

fn parse_rate(subscribe: &Subscribe<'_>) -> Result<Option<Rate>, Refused> {
    let gap_max = subscribe.rate_max_gap_ns.map(Duration::from_nanos);
    let rate = match subscribe.rate {
        None if gap_max.is_some() => Err(RateError::Gap),
        rate => rate.map(|rate| Rate::parse(rate, gap_max)).transpose(),
    };
    rate.map_err(|error| Refused::new(Code::BadOption, error.to_string()))
}

/// The properties of a command that decide which options are allowed.
struct Kind {
    is_bookmark: bool,
    is_paused: bool,
    has_end: bool,
    has_rate: bool,
    is_conflated: bool,
}

/// The records in view of a subscription; `None` when it has none in view, or when no topic of it keeps last values.
fn plan_records(
    cx: &mut Context,
    tables: &mut Tables,
    id: SessionId,
    subscribe: &Subscribe<'_>,
    selector: &TopicSelector,
) -> Result<Option<RecordsPlan>, Refused> {
    let is_viewing = |option| subscribe.options.has(option);
    if !is_viewing(SubscribeOptions::SOW) && !is_viewing(SubscribeOptions::DELTA) {
        return Ok(None);
    }
    let mut named = cx.topics.tables_of(selector);
    let Subscribe { order_by, top_n, skip_n, keys, .. } = *subscribe;
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
    let is_query = is_viewing(SubscribeOptions::SOW) && subscribe.bookmark.is_none();
    if named.is_empty() && !may_keep_values && !is_query {
        return Ok(None);
    }
    // Without last-value topics no message has a key.
    let keys = keys.filter(|_| may_keep_values || !named.is_empty());
    let plan = tables.plan(cx, id, named, &Wanted { order_by, top_n, skip_n, keys })?;
    if skip_n.is_some() { plan.into_page().map(Some) } else { Ok(Some(plan)) }
}

/// The state that the bookmark of a command with records names; `None`: it has no bookmark, or its topic keeps no last values.
fn plan_state(
    cx: &mut Context,
    tables: &Tables,
    subscribe: &Subscribe<'_>,
    selector: &TopicSelector,
) -> Result<Option<AskedState>, Refused> {
    let Some(bookmark) = subscribe.bookmark.filter(|_| subscribe.options.has(SubscribeOptions::SOW)) else {
        return Ok(None);
    };
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

/// Whether a subscription may be replaced by one that is made with this command.
fn check_replaced(
    cx: &Context,
    tables: &Tables,
    replaced: SubscriptionId,
    subscribe: &Subscribe<'_>,
) -> Result<(), Refused> {
    let former = &cx.subscriptions.all[replaced];
    let progress = former.progress();
    if progress.is_some_and(|progress| progress.awaits_records) {
        let reason = "replace: the records of the subscription are still being sent; replace it again when all have arrived";
        return Err(Refused::new(Code::LimitExceeded, reason.to_owned()));
    }
    let is_sow = subscribe.options.has(SubscribeOptions::SOW);
    if is_sow && (subscribe.bookmark.is_some() || progress.is_some()) {
        let reason = "replace: a subscription with a bookmark cannot receive records again; leave out sow, or unsubscribe, and \
                      subscribe again";
        return Err(Refused::new(Code::BadOption, reason.to_owned()));
    }
    if tables.is_page(replaced) != (is_sow && subscribe.skip_n.is_some()) {
        let reason = "replace: a page is replaced by a page, with skip_n, and no other subscription can become one; unsubscribe, \
                      and subscribe again";
        return Err(Refused::new(Code::BadOption, reason.to_owned()));
    }
    let (former, family) = (former.family, Family::of(subscribe.options));
    if former != family {
        let reason = format!(
            "replace: the subscription was made with {}, and {} cannot replace it; use the same options sow and delta, or \
             unsubscribe first",
            former.name(),
            family.name()
        );
        return Err(Refused::new(Code::BadOption, reason));
    }
    if tables.pending_change_count(replaced) >= PENDING_CHANGES_MAX {
        let reason = format!(
            "replace: {PENDING_CHANGES_MAX} changes of the subscription wait until their records are sent; take its messages first"
        );
        return Err(Refused::new(Code::LimitExceeded, reason));
    }
    Ok(())
}

/// Which options of the records of last-value topics go together.
fn check_result_options(subscribe: &Subscribe<'_>, is_bookmark: bool) -> Result<(), Refused> {
    let has = |option| subscribe.options.has(option);
    let (is_sow, is_delta) = (has(SubscribeOptions::SOW), has(SubscribeOptions::DELTA));
    let sow_only = [
        ("order_by", subscribe.order_by.is_some()),
        ("top_n", subscribe.top_n.is_some()),
        ("skip_n", subscribe.skip_n.is_some()),
        ("keys", subscribe.keys.is_some() && !is_bookmark),
    ];
    let is_of_log = subscribe.bookmark.is_some();
    let not_with_delta = [
        ("a bookmark", is_of_log),
        ("conflation", subscribe.conflation_ns.is_some()),
        ("skip_n", subscribe.skip_n.is_some()),
    ];
    let by_record = [("oof", has(SubscribeOptions::OOF)), ("skip_n", subscribe.skip_n.is_some())];
    let reason = if has(SubscribeOptions::OOF) && !is_sow && !is_delta {
        "oof requires sow or delta".to_owned()
    } else if has(SubscribeOptions::NO_EMPTIES) && !is_delta {
        "no_empties requires delta".to_owned()
    } else if let Some((option, _)) = sow_only.iter().find(|(_, is_given)| *is_given && !is_sow) {
        format!("{option} requires sow")
    } else if let Some((option, _)) = not_with_delta.iter().find(|(_, is_given)| *is_given && is_delta) {
        format!("delta does not go together with {option} in this version: remove one of the two")
    } else if let Some((option, _)) = by_record.iter().find(|(_, is_given)| *is_given && is_of_log) {
        format!(
            "{option} does not go together with a bookmark: after the bookmark the messages come from the log, which does not \
             tell when a record leaves"
        )
    } else if let Some((option, _)) = by_record.iter().find(|(_, is_given)| *is_given)
        && subscribe.conflation_key.is_some()
    {
        format!(
            "conflation_key does not go together with {option}: messages about different records would replace each other; \
             remove conflation_key, and the key of the records counts"
        )
    } else {
        return Ok(());
    };
    Err(Refused::new(Code::BadOption, reason))
}

/// Which options go together.
fn check_options(options: SubscribeOptions, kind: &Kind) -> Result<(), Refused> {
    let has = |option| options.has(option);
    let bookmark_only = [
        SubscribeOptions::LIVE,
        SubscribeOptions::FULLY_DURABLE,
        SubscribeOptions::PAUSED,
        SubscribeOptions::NOT_FOUND_FAILS,
        SubscribeOptions::NOT_FOUND_NOW,
        SubscribeOptions::DELETIONS,
    ];
    let reason = if !kind.is_bookmark && (bookmark_only.into_iter().any(has) || kind.has_rate) {
        "rate, live, fully_durable, paused, deletions and bookmark_not_found are for bookmark subscriptions"
    } else if has(SubscribeOptions::DELETIONS) && has(SubscribeOptions::LIVE) {
        "deletions does not go together with live: a delete comes when it is persisted"
    } else if has(SubscribeOptions::DELETIONS) && has(SubscribeOptions::SOW) {
        "deletions does not go together with sow"
    } else if has(SubscribeOptions::DELETIONS) && kind.is_conflated {
        "deletions does not go together with conflation: a message that is held would come after the delete of its record"
    } else if has(SubscribeOptions::LIVE) && has(SubscribeOptions::FULLY_DURABLE) {
        "live does not go together with fully_durable"
    } else if has(SubscribeOptions::LIVE) && (kind.is_paused || has(SubscribeOptions::PAUSED)) {
        "live does not go together with paused"
    } else if has(SubscribeOptions::LIVE) && kind.has_rate {
        "live does not go together with rate"
    } else if has(SubscribeOptions::LIVE) && kind.has_end {
        "live does not go together with an end"
    } else if has(SubscribeOptions::NOT_FOUND_FAILS) && has(SubscribeOptions::NOT_FOUND_NOW) {
        "bookmark_not_found has one meaning at a time"
    } else {
        return Ok(());
    };
    Err(Refused::new(Code::BadOption, reason.to_owned()))
}
