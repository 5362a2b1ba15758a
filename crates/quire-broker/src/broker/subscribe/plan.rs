//! The options of a subscribe command, checked as far as no search is needed.

use crate::context::Context;
use std::time::Duration;

use quire_journal::Position;

use crate::queues::QueueService;
use crate::replay::{Rate, RateError};
use crate::reply::{Refused, unknown_subscription};
use crate::session::SessionId;
use crate::subscription::{Conflation, Range, SubscriptionId};
use quire_command::{Acks, Code, Subscribe, SubscribeOptions};
use quire_expression::filter::{Filter, FilterOptions};
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
    /// The end of the log when the command arrived.
    pub(super) log_end: Position,
    /// None of its bookmarks is in the log, and the options say where it begins instead.
    pub(super) is_bookmark_missing: bool,
}

impl Plan {
    /// Checks everything that can be checked without searching.
    pub(super) fn new(
        cx: &mut Context,
        queues: &QueueService,
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
                let reason = "max_subscriptions_per_connection is reached".to_owned();
                return Err(Refused::new(Code::LimitExceeded, reason));
            }
            (existing, _) => existing,
        };
        let selector = TopicSelector::new(subscribe.topic)
            .map_err(|error| Refused::new(Code::BadTopic, error.to_string()))?;
        let filter = subscribe.filter.map(|text| cx.parse_filter(id, text)).transpose()?;
        cx.check_pattern_count(id, replaced, filter.as_ref())?;
        let select = subscribe.select.map(Select::parse).transpose();
        let select = select.map_err(|error| Refused::new(Code::BadOption, error.to_string()))?;
        if let TopicSelector::Name(name) = &selector {
            check_message_type(cx, queues, name, filter.as_ref(), select.as_ref())?;
        }
        let range = subscribe
            .bookmark
            .map(str::parse::<Range>)
            .transpose()
            .map_err(|error| Refused::new(Code::BadBookmark, error.to_string()))?;
        let rate = parse_rate(subscribe)?;
        let interval = subscribe.conflation_ns.map(Duration::from_nanos);
        let encoder = cx.session(id).outbox.encoder();
        let conflation = Conflation::parse(interval, subscribe.conflation_key, encoder)
            .map_err(|error| Refused::new(Code::BadOption, error.to_string()))?;
        let progress = replaced.and_then(|id| cx.subscriptions.all[id].progress());
        let is_bookmark = range.is_some() || progress.is_some();
        let is_paused = progress.is_some_and(|progress| progress.is_paused);
        let has_end = match &range {
            Some(range) => range.end.is_some(),
            None => progress.is_some_and(|progress| progress.until.is_some()),
        };
        check_options(options, &Kind { is_bookmark, is_paused, has_end, has_rate: rate.is_some() })?;
        let selector = if is_bookmark { queues.replayed_for(selector) } else { selector };
        if is_bookmark && !cx.topics.could_record(&selector) {
            let reason = format!("the transaction log does not record {:?}", selector.text());
            return Err(Refused::new(Code::NotJournaled, reason));
        }
        let queues = if is_bookmark { Vec::new() } else { queues.matching(&selector) };
        if !queues.is_empty() && conflation.is_some() {
            let reason = "the messages of a queue cannot be conflated: none may be dropped".to_owned();
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
            // Messages that will never be persisted are not waited for.
            log_end: if cx.log.failure.is_some() { cx.log.visible() } else { cx.log.appended() },
            is_bookmark_missing: false,
        })
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

impl Context {
    /// Whether the filter keeps within the limits on patterns, when the subscription `replaced` is gone.
    pub(crate) fn check_pattern_count(
        &mut self,
        id: SessionId,
        replaced: Option<SubscriptionId>,
        filter: Option<&Filter>,
    ) -> Result<(), Refused> {
        let count = filter.map_or(0, Filter::pattern_count);
        if count == 0 {
            return Ok(());
        }
        let gone = replaced.map_or(0, |replaced| self.pattern_count_of(replaced));
        let in_one = self.transport_of(id).max_patterns_per_connection;
        let used = [
            ("max_patterns_per_connection", self.sessions.all[id].pattern_count, in_one),
            ("max_patterns", self.subscriptions.pattern_count, self.config.limits.max_patterns),
        ];
        for (name, used, limit) in used {
            if used - gone + count > limit as usize {
                let reason = format!(
                    "{name}: this filter has {count} patterns, other subscriptions have {}, and the limit is {limit}",
                    used - gone
                );
                return Err(Refused::new(Code::LimitExceeded, reason));
            }
        }
        Ok(())
    }

    pub(crate) fn parse_filter(&mut self, id: SessionId, text: &str) -> Result<Filter, Refused> {
        let options = self.filter_options(id);
        Filter::parse(text, &options).map_err(|error| Refused {
            code: Code::BadFilter,
            column: u32::try_from(error.column).unwrap_or(u32::MAX),
            reason: format!("expected {}, found {}", error.expected, error.found),
        })
    }

    /// The options for the filters of a session.
    pub(crate) fn filter_options(&mut self, id: SessionId) -> FilterOptions {
        FilterOptions { client: self.session(id).client_facts(), ..self.config.filter_options() }
    }
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
    ];
    let reason = if !kind.is_bookmark && (bookmark_only.into_iter().any(has) || kind.has_rate) {
        "rate, live, fully_durable, paused and bookmark_not_found are for bookmark subscriptions"
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
