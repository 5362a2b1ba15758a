//! Subscribe, replace and unsubscribe.

use std::time::Duration;

use quire_journal::{JournalError, Position};

use super::acknowledge::code_of;
use super::{Alarm, Broker, Event, Output};
use crate::filter::{Filter, FilterOptions};
use crate::queue::QueueId;
use crate::replay::{Located, Outcome, Pace, Rate, RateError, ReadDone, ReadRequest, Ticket, Work};
use crate::session::{Phase, SessionId, Stall};
use crate::subscription::{
    Completion, Conflation, Course, Progress, Progressing, Range, Select, Subscription, SubscriptionId, Until,
};
use crate::topic::{Stage, TopicSelector};
use crate::wire::{Ack, AckKind, Acks, Code, ServerFrame, Subscribe, SubscribeOptions};

/// Why a command is refused. The fault of the caller.
pub(super) struct Refused {
    code: Code,
    /// For a filter: where.
    column: u32,
    reason: String,
}

/// A subscribe command that was understood.
struct Plan {
    command: u32,
    acks: Acks,
    number: u32,
    selector: TopicSelector,
    filter: Option<Filter>,
    options: SubscribeOptions,
    /// The queues that serve it.
    queues: Vec<QueueId>,
    max_backlog: Option<u32>,
    /// The subscription that is replaced.
    replaced: Option<SubscriptionId>,
    is_bookmark: bool,
    /// Where to begin and to end; `None` for an ordinary one, and for a replaced one that keeps both.
    range: Option<Range>,
    rate: Option<Rate>,
    conflation: Option<Conflation>,
    select: Option<Select>,
    /// What the log held when the command came.
    held: Position,
}

/// A plan whose start is being looked for. Its session takes no further command meanwhile, so that commands stay in order.
pub(super) struct PendingSubscribe {
    plan: Plan,
    /// The search under way; `None` while it waits for what was published before the command to be persisted.
    number: Option<u64>,
}

impl Broker {
    pub(super) fn subscribe(&mut self, id: SessionId, subscribe: &Subscribe<'_>) {
        self.acknowledge_received(id, subscribe.command, subscribe.subscription, subscribe.acks);
        match self.plan(id, subscribe) {
            Ok(plan) => self.begin(id, plan),
            Err(refused) => self.refuse_command(id, subscribe.command, subscribe.subscription, &refused),
        }
    }

    pub(super) fn unsubscribe(&mut self, id: SessionId, command: u32, acks: Acks, number: u32) {
        self.acknowledge_received(id, command, number, acks);
        match self.session(id).subscriptions.get(&number).copied() {
            Some(subscription) => {
                self.remove_subscription(subscription);
                self.acknowledge_processed(id, command, number, acks);
            }
            None => self.refuse_command(id, command, number, &unknown_subscription(number)),
        }
    }

    /// Checks everything that can be checked without searching.
    fn plan(&mut self, id: SessionId, subscribe: &Subscribe<'_>) -> Result<Plan, Refused> {
        let number = subscribe.subscription;
        let options = subscribe.options;
        let session = self.session(id);
        let count = session.subscriptions.len();
        let existing = session.subscriptions.get(&number).copied();
        let replaced = match (existing, options.has(SubscribeOptions::REPLACE)) {
            (Some(_), false) => {
                let reason = format!("subscription {number} exists; replace changes it");
                return Err(Refused::new(Code::SubscriptionInUse, reason));
            }
            (None, true) => return Err(unknown_subscription(number)),
            (None, false) if count >= self.config.limits.max_subscriptions_per_connection as usize => {
                let reason = "max_subscriptions_per_connection is reached".to_owned();
                return Err(Refused::new(Code::LimitExceeded, reason));
            }
            (existing, _) => existing,
        };
        let selector = TopicSelector::new(subscribe.topic)
            .map_err(|error| Refused::new(Code::BadTopic, error.to_string()))?;
        let filter = subscribe.filter.map(|text| self.parse_filter(id, text)).transpose()?;
        self.check_pattern_count(id, replaced, filter.as_ref())?;
        let select = subscribe.select.map(Select::parse).transpose();
        let select = select.map_err(|error| Refused::new(Code::BadOption, error.to_string()))?;
        if let TopicSelector::Name(name) = &selector {
            self.check_message_type(name, filter.as_ref(), select.as_ref())?;
        }
        let range = subscribe
            .bookmark
            .map(str::parse::<Range>)
            .transpose()
            .map_err(|error| Refused::new(Code::BadBookmark, error.to_string()))?;
        let rate = parse_rate(subscribe)?;
        let interval = subscribe.conflation_ns.map(Duration::from_nanos);
        let conflation = Conflation::parse(interval, subscribe.conflation_key)
            .map_err(|error| Refused::new(Code::BadOption, error.to_string()))?;
        let progress = replaced.and_then(|id| self.subscriptions[id].progress());
        let is_bookmark = range.is_some() || progress.is_some();
        let is_paused = progress.is_some_and(|progress| progress.is_paused);
        let has_end = match &range {
            Some(range) => range.end.is_some(),
            None => progress.is_some_and(|progress| progress.until.is_some()),
        };
        check_options(options, &Kind { is_bookmark, is_paused, has_end, has_rate: rate.is_some() })?;
        let selector = if is_bookmark { self.queues.replayed_for(selector) } else { selector };
        if is_bookmark && !self.topics.could_record(&selector) {
            let reason = format!("the transaction log does not record {:?}", selector.text());
            return Err(Refused::new(Code::NotJournaled, reason));
        }
        let queues = if is_bookmark { Vec::new() } else { self.queues.matching(&selector) };
        if !queues.is_empty() && conflation.is_some() {
            let reason = "the messages of a queue cannot be conflated: none may be dropped".to_owned();
            return Err(Refused::new(Code::BadOption, reason));
        }
        self.topics.prepare(&selector).map_err(|_| {
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
            // What will never be persisted is not waited for.
            held: if self.failure.is_some() { self.journal.persisted() } else { self.journal.appended() },
        })
    }

    /// Whether the filter keeps within the limits on patterns, when the subscription `replaced` is gone.
    fn check_pattern_count(
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
        let limits = &self.config.limits;
        let used = [
            (
                "max_patterns_per_connection",
                self.sessions[id].pattern_count,
                limits.max_patterns_per_connection,
            ),
            ("max_patterns", self.pattern_count, limits.max_patterns),
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

    fn pattern_count_of(&self, id: SubscriptionId) -> usize {
        let filter = self.subscriptions.get(id).and_then(|subscription| subscription.filter.as_ref());
        filter.map_or(0, Filter::pattern_count)
    }

    /// Counts the patterns of a subscription that begins; undone by [`Broker::release_patterns`].
    fn count_patterns(&mut self, id: SubscriptionId) {
        let count = self.pattern_count_of(id);
        self.pattern_count += count;
        let session = self.subscriptions[id].session;
        self.session(session).pattern_count += count;
    }

    fn release_patterns(&mut self, id: SubscriptionId) {
        let count = self.pattern_count_of(id);
        self.pattern_count -= count;
        if let Some(subscription) = self.subscriptions.get(id) {
            let session = subscription.session;
            self.session(session).pattern_count -= count;
        }
    }

    /// Whether the messages of a topic have what is wanted of them.
    fn check_message_type(
        &mut self,
        topic: &str,
        filter: Option<&Filter>,
        select: Option<&Select>,
    ) -> Result<(), Refused> {
        let message_type = match self.queues.message_type(topic) {
            Some(message_type) => message_type,
            None => {
                let topic = self.topics.intern(topic);
                self.topics.topic(topic).recording.message_type
            }
        };
        let reads_fields = filter.is_some_and(|filter| filter.fields().next().is_some());
        if reads_fields && !message_type.has_fields() {
            let reason = format!("messages of type {} have no fields", message_type.name());
            return Err(Refused { code: Code::BadFilter, column: 1, reason });
        }
        if select.is_some() && !message_type.has_parts() {
            let reason =
                format!("select: of a message of type {} no part can be delivered", message_type.name());
            return Err(Refused::new(Code::BadOption, reason));
        }
        Ok(())
    }

    /// What the filters of a session may use.
    pub(super) fn filter_options(&mut self, id: SessionId) -> FilterOptions {
        FilterOptions { client: self.session(id).client_facts(), ..self.config.filter_options() }
    }

    pub(super) fn parse_filter(&mut self, id: SessionId, text: &str) -> Result<Filter, Refused> {
        let options = self.filter_options(id);
        Filter::parse(text, &options).map_err(|error| Refused {
            code: Code::BadFilter,
            column: u32::try_from(error.column).unwrap_or(u32::MAX),
            reason: format!("expected {}, found {}", error.expected, error.found),
        })
    }

    /// Carries a plan out at once, or when its start has been found.
    fn begin(&mut self, id: SessionId, plan: Plan) {
        let Some(range) = &plan.range else { return self.enter_subscription(id, plan, None) };
        let end = range.end.as_ref().map(|end| end.without_search(plan.held));
        match (range.start.without_search(plan.held), end) {
            (Some(after), None) => self.enter_within(id, plan, after, None),
            (Some(after), Some(Some(until))) => self.enter_within(id, plan, after, Some(until)),
            _ => {
                self.pending.insert(id, PendingSubscribe { plan, number: None });
                self.stall(id, Stall::Locating);
                self.search(id);
            }
        }
    }

    /// Asks where the start of the pending plan lies.
    fn search(&mut self, id: SessionId) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        let Some(range) = pending.plan.range.clone() else { return };
        self.read_number += 1;
        pending.number = Some(self.read_number);
        let work = Work::Locate { reader: self.reader.clone(), range, now: pending.plan.held };
        let ticket = Ticket::Locate { session: id, number: self.read_number };
        self.outputs.push_back(Output::Read(ReadRequest { ticket, work }));
    }

    pub(super) fn read_done(&mut self, done: ReadDone) {
        match (done.ticket, done.outcome) {
            (Ticket::Locate { session, number }, Outcome::Located(found)) => {
                self.located(session, number, found)
            }
            (Ticket::Replay { replay, number }, Outcome::Read(found)) => self.read(replay, number, found),
            (Ticket::Queue { number }, Outcome::Queue(found)) => self.queue_work_done(number, Some(found)),
            (Ticket::Decide { number }, Outcome::Decided(answers)) => self.decided(number, Some(answers)),
            (Ticket::Locate { session, number }, _) => self.locate_panicked(session, number),
            (Ticket::Replay { replay, number }, _) => self.read_panicked(replay, number),
            (Ticket::Queue { number }, _) => self.queue_work_done(number, None),
            (Ticket::Decide { number }, _) => self.decided(number, None),
        }
    }

    fn locate_panicked(&mut self, id: SessionId, number: u64) {
        if self.pending.get(&id).is_none_or(|pending| pending.number != Some(number)) {
            return;
        }
        if let Some(PendingSubscribe { plan, .. }) = self.pending.remove(&id) {
            let refused = Refused::new(Code::Internal, "looking for the bookmark failed".to_owned());
            self.refuse_command(id, plan.command, plan.number, &refused);
            self.end_stall(id);
        }
    }

    fn located(&mut self, id: SessionId, number: u64, found: Result<Located, JournalError>) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        if pending.number != Some(number) {
            return;
        }
        let plan = &pending.plan;
        let fails = plan.options.has(SubscribeOptions::NOT_FOUND_FAILS);
        let now = plan.options.has(SubscribeOptions::NOT_FOUND_NOW);
        let after = match found {
            Ok(Located { after: Some(after), until }) => Ok((after, until)),
            // A bookmark is known to subscribers before its message is persisted: it may only not be there yet.
            Ok(_) if self.journal.persisted() < plan.held && self.failure.is_none() => {
                pending.number = None;
                self.waiting_starts.push(id);
                return;
            }
            Ok(_) if fails => {
                let reason = "none of the bookmarks is in the log".to_owned();
                Err(Refused::new(Code::BookmarkNotFound, reason))
            }
            Ok(Located { until, .. }) if now => Ok((plan.held, until)),
            Ok(Located { until, .. }) => Ok((Position::default(), until)),
            Err(error) => Err(Refused::new(code_of(&error), error.to_string())),
        };
        let Some(PendingSubscribe { plan, .. }) = self.pending.remove(&id) else { return };
        match after {
            Ok((after, until)) => self.enter_within(id, plan, after, until),
            Err(refused) => self.refuse_command(id, plan.command, plan.number, &refused),
        }
        self.end_stall(id);
    }

    /// Searches again for starts that were not there yet.
    pub(super) fn search_again(&mut self) {
        let persisted = self.journal.persisted();
        for id in std::mem::take(&mut self.waiting_starts) {
            match self.pending.get(&id) {
                Some(pending) if pending.plan.held <= persisted || self.failure.is_some() => self.search(id),
                Some(_) => self.waiting_starts.push(id),
                None => (),
            }
        }
    }

    /// The start of a plan was found, and its end if it is in the log by now.
    fn enter_within(&mut self, id: SessionId, plan: Plan, after: Position, found: Option<Position>) {
        let Some(end) = plan.range.as_ref().and_then(|range| range.end) else {
            return self.enter_subscription(id, plan, Some((after, None)));
        };
        // It may have been recorded since it was looked for, and the pass has gone over it then. To look again takes microseconds.
        let until = match found.map_or_else(|| end.locate(&self.reader, plan.held), |until| Ok(Some(until))) {
            Ok(until) => until.map_or(Until::Awaited(end), Until::At),
            Err(error) => {
                let refused = Refused::new(code_of(&error), error.to_string());
                return self.refuse_command(id, plan.command, plan.number, &refused);
            }
        };
        if matches!(until, Until::At(until) if until < after) {
            let refused =
                Refused::new(Code::BadBookmark, "the end of the range lies before its start".to_owned());
            return self.refuse_command(id, plan.command, plan.number, &refused);
        }
        self.enter_subscription(id, plan, Some((after, Some(until))));
    }

    /// The subscription begins, or is replaced, between two messages.
    fn enter_subscription(&mut self, id: SessionId, plan: Plan, place: Option<(Position, Option<Until>)>) {
        let Plan { command, acks, number, selector, filter, options, replaced, is_bookmark, .. } = plan;
        let (queues, max_backlog, select) = (plan.queues, plan.max_backlog, plan.select);
        let (range, rate, held, conflation) =
            (plan.range, plan.rate, plan.held, plan.conflation.map(Box::new));
        let after = place.map(|(after, _)| after);
        let kept_until = replaced.and_then(|id| self.subscription(id).progress()?.until);
        let until = place.map_or(kept_until, |(_, until)| until);
        if let Some(replaced) = replaced {
            self.clear_until(replaced);
            self.deliver_all_held(replaced);
        }
        let mut before = replaced.map(|subscription| {
            self.halt(subscription);
            std::mem::replace(&mut self.subscription(subscription).course, Course::Ordinary)
        });
        let kept_course = match before.take_if(|course| matches!(course, Course::Queue(_))) {
            Some(Course::Queue(course)) => Some(*course),
            _ => None,
        };
        let queue_course = if queues.is_empty() {
            kept_course.into_iter().for_each(|course| self.leave_queues(course));
            None
        } else {
            let is_named = matches!(selector, TopicSelector::Pattern(_));
            let joined = self.join_queues(id, kept_course, &queues, is_named, filter.as_ref(), max_backlog);
            match joined {
                Ok(course) => Some(course),
                Err(error) => {
                    if let Some(replaced) = replaced {
                        self.remove_subscription(replaced);
                    }
                    let refused = Refused::new(Code::LimitExceeded, error.to_string());
                    return self.refuse_command(id, command, number, &refused);
                }
            }
        };
        let wants_completed = acks.has(Acks::COMPLETED);
        let course = if is_bookmark {
            let kept = match before {
                Some(Course::Bookmark(progress)) => Some(progress),
                _ => None,
            };
            let was_paused = kept.as_ref().is_some_and(|p| p.is_paused);
            let completion = wants_completed.then_some(Completion { command, goal: held });
            let owed = kept.as_ref().and_then(|p| p.completed).filter(|_| after.is_none());
            Course::Bookmark(Box::new(Progress {
                after: after.or(kept.as_ref().map(|p| p.after)).unwrap_or(held),
                taken_after: match &range {
                    Some(range) => range.taken_after(),
                    None => kept.as_ref().and_then(|p| p.taken_after),
                },
                // Behind an interval it makes no difference whether a message is persisted when it is taken.
                live: options.has(SubscribeOptions::LIVE) && conflation.is_none(),
                wants_places: acks.has(Acks::PERSISTED),
                completed: completion.or(owed),
                stage: Progressing::Halted,
                is_paused: was_paused || options.has(SubscribeOptions::PAUSED),
                pace: rate.map(|rate| Box::new(Pace::new(rate))),
                until: None,
            }))
        } else if let Some(course) = queue_course {
            Course::Queue(Box::new(course))
        } else {
            Course::Ordinary
        };
        let subscription = Subscription { session: id, number, selector, filter, course, conflation, select };
        let subscription_id = match replaced {
            Some(replaced) => {
                self.release_patterns(replaced);
                *self.subscription(replaced) = subscription;
                replaced
            }
            None => {
                let new = self.subscriptions.insert(subscription);
                self.session(id).subscriptions.insert(number, new);
                new
            }
        };
        self.count_patterns(subscription_id);
        self.set_until(subscription_id, until);
        let granted = self.name_queue_subscription(subscription_id);
        self.acknowledge_entered(id, command, number, acks, granted);
        // The acknowledgement may have been one frame too many for a slow connection.
        if self.session(id).phase != Phase::Open {
            return;
        }
        match self.subscription(subscription_id).progress() {
            None => {
                if self.is_in_audience(subscription_id) {
                    self.join(subscription_id, Stage::Published);
                }
                if wants_completed {
                    self.acknowledge_command(id, AckKind::Completed, command, number);
                }
            }
            Some(progress) => {
                let (after, is_paused) = (progress.after, progress.is_paused);
                self.tell_first_place(subscription_id);
                if is_paused {
                    return;
                }
                self.start_replay(id, vec![subscription_id], after);
            }
        }
    }

    /// Whether a subscription without a bookmark is served from the publish stream: the name of a queue alone is not a topic.
    fn is_in_audience(&self, id: SubscriptionId) -> bool {
        let Subscription { selector, course, .. } = &self.subscriptions[id];
        matches!(course, Course::Ordinary) || matches!(selector, TopicSelector::Pattern(_))
    }

    /// Adds a subscription to the audience of its topic.
    pub(super) fn join(&mut self, id: SubscriptionId, stage: Stage) {
        let Subscription { selector, filter, .. } = &self.subscriptions[id];
        let (selector, filter) = (selector.clone(), filter.clone());
        self.topics.add(&selector, stage, id, filter);
    }

    /// Takes a subscription out of where its messages come from; its place in the log is then exact.
    pub(super) fn halt(&mut self, id: SubscriptionId) {
        let (edge, appended) = (self.edge, self.journal.appended());
        let is_in_audience = self.is_in_audience(id);
        let Subscription { selector, course, .. } = &mut self.subscriptions[id];
        let progress = match course {
            Course::Ordinary | Course::Queue(_) => {
                if is_in_audience {
                    self.topics.remove(selector, Stage::Published, id);
                }
                return;
            }
            Course::Bookmark(progress) => progress,
        };
        self.with_goals.remove(&id);
        self.joining.remove(&id);
        match std::mem::replace(&mut progress.stage, Progressing::Halted) {
            Progressing::Halted => (),
            Progressing::AtEdge => {
                self.topics.remove(selector, Stage::Persisted, id);
                progress.after = progress.after.max(edge);
            }
            Progressing::Joining(_) => {
                self.topics.remove(selector, Stage::Persisted, id);
                self.topics.remove(selector, Stage::Published, id);
                progress.after = progress.after.max(edge);
            }
            Progressing::Live => {
                self.topics.remove(selector, Stage::Published, id);
                progress.after = progress.after.max(appended);
            }
            Progressing::Replaying(replay) => self.leave_replay(replay, id),
        }
    }

    pub(super) fn remove_subscription(&mut self, id: SubscriptionId) {
        self.halt(id);
        self.forget_deferred(id);
        self.release_patterns(id);
        self.alarms.clear(Alarm::Held(id));
        self.clear_until(id);
        let Some(subscription) = self.subscriptions.remove(id) else { return };
        self.session(subscription.session).subscriptions.remove(&subscription.number);
        if let Course::Queue(course) = subscription.course {
            self.leave_queues(*course);
        }
    }

    /// All subscriptions of a session go.
    pub(super) fn drop_subscriptions(&mut self, id: SessionId) {
        self.pending.remove(&id);
        let subscriptions = std::mem::take(&mut self.session(id).subscriptions);
        for subscription in subscriptions.into_values() {
            self.halt(subscription);
            self.forget_deferred(subscription);
            self.release_patterns(subscription);
            self.alarms.clear(Alarm::Held(subscription));
            self.clear_until(subscription);
            let removed = self.subscriptions.remove(subscription);
            if let Some(Subscription { course: Course::Queue(course), .. }) = removed {
                self.leave_queues(*course);
            }
        }
        self.forget_in_queues(id);
    }

    /// Ends one subscription for a reason of the server's; the connection goes on.
    pub(super) fn end_subscription(&mut self, id: SubscriptionId, code: Code, reason: &str) {
        let Subscription { session, number, .. } = self.subscriptions[id];
        self.remove_subscription(id);
        let connection = self.session(session).connection;
        let event =
            Event::SubscriptionEnded { connection, subscription: number, code, reason: reason.to_owned() };
        self.outputs.push_back(Output::Log(event));
        self.put(session, &ServerFrame::SubscriptionEnded { subscription: number, code, reason });
    }

    /// A command about a queue that is not there.
    pub(super) fn no_queue(&mut self, id: SessionId, command: u32, queue: &str) {
        if command != 0 {
            let reason = format!("no queue has the name {queue:?}");
            self.refuse_command(id, command, 0, &Refused::new(Code::UnknownQueue, reason));
        }
    }

    /// A refused command gets one `processed` with the code, whatever it asked for.
    pub(super) fn refuse_command(
        &mut self,
        id: SessionId,
        command: u32,
        subscription: u32,
        refused: &Refused,
    ) {
        let Refused { code, column, reason } = refused;
        let kind = AckKind::Processed;
        self.put(
            id,
            &ServerFrame::Ack(Ack { kind, code: *code, command, subscription, detail: *column, reason }),
        );
    }
}

impl Refused {
    pub(super) fn new(code: Code, reason: String) -> Self {
        Refused { code, column: 0, reason }
    }
}

pub(super) fn unknown_subscription(number: u32) -> Refused {
    Refused::new(Code::UnknownSubscription, format!("the connection has no subscription {number}"))
}

fn parse_rate(subscribe: &Subscribe<'_>) -> Result<Option<Rate>, Refused> {
    let gap_max = subscribe.rate_max_gap_ns.map(Duration::from_nanos);
    let rate = match subscribe.rate {
        None if gap_max.is_some() => Err(RateError::Gap),
        rate => rate.map(|rate| Rate::parse(rate, gap_max)).transpose(),
    };
    rate.map_err(|error| Refused::new(Code::BadOption, error.to_string()))
}

/// What a command makes, as far as it decides which options may be there.
struct Kind {
    is_bookmark: bool,
    is_paused: bool,
    has_end: bool,
    has_rate: bool,
}

/// Which options go together (seed 003; reference: queues-and-transaction-log 2.5).
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
