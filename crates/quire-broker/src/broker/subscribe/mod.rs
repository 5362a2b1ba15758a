//! Subscribe, replace and unsubscribe.

mod plan;
mod search;

use crate::queues::Wanted;

use quire_journal::Position;

use crate::failure::code_of;
use crate::log::Moment;
use crate::replay::Pace;
use crate::reply::{Refused, unknown_subscription};
use crate::session::{Phase, SessionId, Stall};
use crate::subscription::{
    EndPosition, Family, PendingCompletion, Progress, Range, ServedBy, Source, Subscription, SubscriptionId,
};
use crate::tables::AskedState;
use crate::topic::Stage;
use crate::{Broker, Timer};
use plan::Plan;
use quire_command::{AckKind, Acks, Code, Subscribe, SubscribeOptions, Unsubscribe};
use quire_expression::topic::TopicSelector;
use quire_table::AsOf;
pub(crate) use search::Searches;
use search::Start;

impl Broker {
    pub(crate) fn subscribe(&mut self, id: SessionId, subscribe: &Subscribe<'_>) {
        self.cx.acknowledge_received(id, subscribe.command, subscribe.subscription, subscribe.acks);
        let plan = Plan::new(&mut self.cx, &self.queues, &mut self.tables, id, subscribe);
        match plan.and_then(|plan| self.check_decided(plan)) {
            Ok(plan) => self.begin(id, plan),
            Err(refused) => self.cx.refuse_command(id, subscribe.command, subscribe.subscription, &refused),
        }
    }

    /// Refuses to replace a subscription with records while the filter of earlier messages is evaluated: the difference between the two
    /// views has to come after these messages.
    fn check_decided(&self, plan: Plan) -> Result<Plan, Refused> {
        if plan.records.is_some() && plan.replaced.is_some_and(|replaced| self.ordinary.is_deciding(replaced))
        {
            let reason = "replace: messages wait until the filter of the subscription is evaluated; replace it again later";
            return Err(Refused::new(Code::LimitExceeded, reason.to_owned()));
        }
        Ok(plan)
    }

    pub(crate) fn unsubscribe(&mut self, id: SessionId, unsubscribe: &Unsubscribe<'_>) {
        let Unsubscribe { command, acks, subscription: number, begun } = *unsubscribe;
        self.cx.acknowledge_received(id, command, number, acks);
        match self.cx.session(id).subscriptions.get(&number).copied() {
            Some(subscription) => {
                if let Some(begun) = begun {
                    self.queues.release(&mut self.cx, subscription, begun);
                }
                self.remove_subscription(subscription);
                self.cx.acknowledge_processed(id, command, number, acks);
            }
            None if self.tables.end_query(id, number) => {
                self.cx.acknowledge_processed(id, command, number, acks);
            }
            None => self.cx.refuse_command(id, command, number, &unknown_subscription(number)),
        }
    }

    /// Carries a plan out at once, or when its start has been found.
    fn begin(&mut self, id: SessionId, mut plan: Plan) {
        match plan.asked.take() {
            None => (),
            Some(AskedState::Current) => return self.enter_state(id, plan, None),
            Some(AskedState::At(instant)) => return self.enter_state(id, plan, Some(instant)),
            Some(AskedState::After(bookmark)) => return self.searches.find(&mut self.cx, id, plan, bookmark),
        }
        let Some(range) = &plan.range else { return self.enter_subscription(id, plan, None) };
        let end = range.end.as_ref().map(|end| end.without_search(plan.log_end));
        match (range.start.without_search(plan.log_end), end) {
            (Some(after), None) => self.enter_within(id, plan, after, None),
            (Some(after), Some(Some(until))) => self.enter_within(id, plan, after, Some(until)),
            _ => self.searches.begin(&mut self.cx, id, plan),
        }
    }

    /// Continues the subscribe commands whose starts were found, or cannot be.
    pub(crate) fn continue_found(&mut self) {
        while let Some((id, plan, start)) = self.searches.next_found() {
            let (command, number) = (plan.command, plan.number);
            let refused = match start {
                Start::At(Ok((after, until))) => {
                    self.enter_within(id, plan, after, until);
                    None
                }
                Start::WithStateOf(Ok(moment)) => {
                    self.enter_state(id, plan, Some(moment));
                    None
                }
                Start::At(Err(refused)) | Start::WithStateOf(Err(refused)) => Some(refused),
            };
            if let Some(refused) = refused {
                self.cx.refuse_command(id, command, number, &refused);
            }
            self.cx.resume_commands(id, Stall::Searching);
        }
    }

    /// A subscription begins with the state of an instant, and continues with the messages after it.
    fn enter_state(&mut self, id: SessionId, mut plan: Plan, instant: Option<Moment>) {
        let table = plan.records.as_ref().and_then(|records| records.tables.first().copied());
        let as_of = match (table, instant) {
            (Some(table), Some(instant)) => self.tables.as_of(&mut self.cx, table, instant),
            _ => Ok(None),
        };
        let as_of = match as_of {
            Ok(as_of) => as_of,
            Err(refused) => return self.cx.refuse_command(id, plan.command, plan.number, &refused),
        };
        if let Some(records) = &mut plan.records {
            records.instant = instant.filter(|_| as_of.is_some());
        }
        match as_of {
            // The current state has every message that was appended.
            None => {
                plan.range = Some(Range::now());
                let after = self.cx.log.appended();
                self.enter_subscription(id, plan, Some((after, None)));
            }
            Some(AsOf { position: Some(position), .. }) => {
                self.enter_subscription(id, plan, Some((position, None)));
            }
            Some(AsOf { time, position: None }) => {
                plan.range = Some(Range::after(time));
                self.begin(id, plan);
            }
        }
    }

    /// A subscription has the state at its bookmark. The messages after it follow.
    pub(crate) fn follow_log(&mut self, id: SubscriptionId) {
        let subscription = self.cx.subscription(id);
        let session = subscription.session;
        let Some(progress) = subscription.progress() else { return };
        let is_paused = progress.is_paused;
        self.bookmarks.send_first_resume_position(&mut self.cx, id);
        if !is_paused {
            self.bookmarks.start_replay(&mut self.cx, session, vec![id]);
        }
    }

    /// The start of a plan was found, and its end if it is in the log by now.
    fn enter_within(&mut self, id: SessionId, plan: Plan, after: Position, found: Option<Position>) {
        let first = self.cx.log.reader.first();
        let is_state = plan.records.as_ref().is_some_and(|records| records.instant.is_some());
        if is_state && first > Position::new(1) && after < first {
            let reason = "bookmark: journal files were removed, and the log does not have every message after this state; ask for \
                          a later state, or keep journal files for longer with remove_after";
            let refused = Refused::new(Code::BadBookmark, reason.to_owned());
            return self.cx.refuse_command(id, plan.command, plan.number, &refused);
        }
        let Some(end) = plan.range.as_ref().and_then(|range| range.end) else {
            return self.enter_subscription(id, plan, Some((after, None)));
        };
        // It may have been recorded since it was looked for, and then the pass is already beyond it. To look again takes microseconds.
        let until = match found
            .map_or_else(|| end.locate(&self.cx.log.reader, plan.log_end), |until| Ok(Some(until)))
        {
            Ok(until) => until.map_or(EndPosition::Awaited(end), EndPosition::At),
            Err(error) => {
                let refused = Refused::new(code_of(&error), error.to_string());
                return self.cx.refuse_command(id, plan.command, plan.number, &refused);
            }
        };
        let until = match until {
            // `(A:A)` is empty, as `(A:A]` is: its last position is before A, and A is not before itself.
            EndPosition::At(last) if last < after && end.named(last) < after => {
                let reason = "the end of the range is before its start".to_owned();
                let refused = Refused::new(Code::BadBookmark, reason);
                return self.cx.refuse_command(id, plan.command, plan.number, &refused);
            }
            EndPosition::At(last) => EndPosition::At(last.max(after)),
            EndPosition::Awaited(_) => until,
        };
        self.enter_subscription(id, plan, Some((after, Some(until))));
    }

    /// The subscription begins, or is replaced, between two messages.
    fn enter_subscription(
        &mut self,
        id: SessionId,
        plan: Plan,
        place: Option<(Position, Option<EndPosition>)>,
    ) {
        let Plan { command, acks, number, selector, filter, options, replaced, is_bookmark, .. } = plan;
        let (queues, max_backlog, select) = (plan.queues, plan.max_backlog, plan.select);
        let records = plan.records;
        let (is_bookmark_missing, note) = (plan.is_bookmark_missing, plan.note);
        let (range, rate, log_end, conflation) =
            (plan.range, plan.rate, plan.log_end, plan.conflation.map(Box::new));
        let after = place.map(|(after, _)| after);
        // Subscriptions that share a replay stay in it, unless one of them begins at another bookmark.
        let companions = match replaced.filter(|_| after.is_none()) {
            Some(replaced) => self.bookmarks.companions(&self.cx, replaced),
            None => Vec::new(),
        };
        let kept_until = replaced.and_then(|id| self.cx.subscription(id).progress()?.until);
        let until = place.map_or(kept_until, |(_, until)| until);
        if let Some(replaced) = replaced {
            self.bookmarks.clear_until(&mut self.cx, replaced);
            self.cx.deliver_all_conflated(replaced);
        }
        let mut former = None;
        let before = replaced.map(|subscription| {
            if matches!(self.cx.subscription(subscription).served_by, ServedBy::Sow(_)) {
                self.cx.leave_audience(subscription);
                former = self.tables.part(&mut self.cx, subscription);
                return ServedBy::Ordinary;
            }
            self.detach(subscription);
            std::mem::replace(&mut self.cx.subscription(subscription).served_by, ServedBy::Ordinary)
        });
        // The client finds a lease by the queue that its subscription has until the answer.
        self.queues.notify_lost_leases(&mut self.cx);
        let queue_before = replaced.and_then(|replaced| self.queues.detach(replaced));
        let is_queue = !queues.is_empty();
        let queued = if queues.is_empty() {
            queue_before.and_then(|before| self.queues.part(&mut self.cx, id, before))
        } else {
            let is_named = matches!(selector, TopicSelector::Pattern(_));
            let wanted = Wanted { queues: &queues, is_named, filter: filter.as_ref(), max_backlog };
            match self.queues.join(&mut self.cx, id, queue_before, &wanted) {
                Ok(served_by) => Some(served_by),
                Err(error) => {
                    if let Some(replaced) = replaced {
                        self.remove_subscription(replaced);
                    }
                    let refused = Refused::new(Code::LimitExceeded, error.to_string());
                    return self.cx.refuse_command(id, command, number, &refused);
                }
            }
        };
        let wants_completed = acks.has(Acks::COMPLETED);
        let served_by = if is_bookmark {
            let kept = match before {
                Some(ServedBy::Bookmark(progress)) => Some(progress),
                _ => None,
            };
            let was_paused = kept.as_ref().is_some_and(|p| p.is_paused);
            let completion = wants_completed.then_some(PendingCompletion { command, goal: log_end });
            let owed = kept.as_ref().and_then(|p| p.completed).filter(|_| after.is_none());
            let awaits_records = records.is_some();
            ServedBy::Bookmark(Box::new(Progress {
                after: after.or(kept.as_ref().map(|p| p.after)).unwrap_or(log_end),
                taken_after: match &range {
                    Some(range) => range.taken_after(),
                    None => kept.as_ref().and_then(|p| p.taken_after),
                },
                // With an interval it does not matter whether a message is persisted when it is taken.
                live: options.has(SubscribeOptions::LIVE) && conflation.is_none(),
                is_durable: options.has(SubscribeOptions::FULLY_DURABLE) && self.cx.log.replicated.any(),
                wants_deletions: options.has(SubscribeOptions::DELETIONS),
                wants_resume_positions: acks.has(Acks::PERSISTED),
                // With records, the acknowledgement follows the last record.
                completed: completion.filter(|_| !awaits_records).or(owed),
                awaits_records,
                stage: Source::Detached,
                is_paused: was_paused || options.has(SubscribeOptions::PAUSED),
                pace: rate.map(|rate| Box::new(Pace::new(rate))),
                until: None,
            }))
        } else if is_queue {
            ServedBy::Queue
        } else if let Some(records) = &records {
            let is_follower =
                records.is_page() || (options.has(SubscribeOptions::OOF) && conflation.is_some());
            let view = self.tables.view(
                &mut self.cx,
                records,
                options,
                select.as_ref(),
                is_follower,
                former.as_mut(),
            );
            ServedBy::Sow(Box::new(view))
        } else {
            ServedBy::Ordinary
        };
        let subscription = Subscription {
            session: id,
            number,
            selector,
            filter,
            served_by,
            conflation,
            select,
            family: if is_bookmark { Family::Subscribe } else { Family::of(options) },
            has_ended: false,
        };
        let subscription_id = match replaced {
            Some(replaced) => {
                self.cx.release_patterns(replaced);
                *self.cx.subscription(replaced) = subscription;
                replaced
            }
            None => {
                let new = self.cx.subscriptions.all.insert(subscription);
                self.cx.session(id).subscriptions.insert(number, new);
                new
            }
        };
        self.cx.count_patterns(subscription_id);
        self.bookmarks.set_until(&mut self.cx, subscription_id, until);
        let granted = queued.and_then(|queued| self.queues.attach(subscription_id, queued));
        let detail = granted.filter(|_| is_queue).unwrap_or(u32::from(is_bookmark_missing));
        self.cx.acknowledge_with(id, command, number, acks, detail, note.as_deref().unwrap_or_default());
        // The acknowledgement may have been one frame too many for a slow connection.
        if self.cx.session(id).phase != Phase::Open {
            return;
        }
        let is_replayed = self.cx.subscription(subscription_id).progress().is_some();
        if let (true, Some(records)) = (is_replayed, &records) {
            let records = records.clone();
            return self.tables.subscribe(&mut self.cx, subscription_id, records, command, acks, None);
        }
        match self.cx.subscription(subscription_id).progress() {
            None => {
                if self.cx.is_in_audience(subscription_id) {
                    self.cx.join(subscription_id, Stage::Published);
                }
                let is_queried = records.is_some() && options.has(SubscribeOptions::SOW);
                if let Some(records) = records {
                    self.tables.subscribe(&mut self.cx, subscription_id, records, command, acks, former);
                }
                if wants_completed && !is_queried {
                    self.cx.acknowledge_command(id, AckKind::Completed, command, number);
                }
            }
            Some(progress) => {
                let is_paused = progress.is_paused;
                self.bookmarks.send_first_resume_position(&mut self.cx, subscription_id);
                if is_paused {
                    return;
                }
                self.bookmarks.restart(&mut self.cx, subscription_id, companions);
            }
        }
    }

    /// Takes a subscription out of where its messages come from; its place in the log is then exact.
    pub(crate) fn detach(&mut self, id: SubscriptionId) {
        match self.cx.subscriptions.all[id].served_by {
            ServedBy::Ordinary | ServedBy::Queue => self.cx.leave_audience(id),
            ServedBy::Sow(_) => {
                self.cx.leave_audience(id);
                self.tables.leave(&mut self.cx, id);
            }
            ServedBy::Bookmark(_) => {
                self.bookmarks.detach_bookmark(&mut self.cx, id);
                self.tables.leave(&mut self.cx, id);
            }
        }
    }

    pub(crate) fn remove_subscription(&mut self, id: SubscriptionId) {
        self.detach(id);
        self.ordinary.forget_deferred(&mut self.cx, id);
        self.cx.release_patterns(id);
        self.cx.timers.clear(Timer::Conflated(id));
        self.bookmarks.clear_until(&mut self.cx, id);
        self.queues.end(&mut self.cx, id);
        let Some(subscription) = self.cx.subscriptions.all.remove(id) else { return };
        self.cx.session(subscription.session).subscriptions.remove(&subscription.number);
    }

    /// All subscriptions of a session go.
    pub(crate) fn drop_subscriptions(&mut self, id: SessionId) {
        self.searches.forget(id);
        let subscriptions = std::mem::take(&mut self.cx.session(id).subscriptions);
        for subscription in subscriptions.into_values() {
            self.detach(subscription);
            self.ordinary.forget_deferred(&mut self.cx, subscription);
            self.cx.release_patterns(subscription);
            self.cx.timers.clear(Timer::Conflated(subscription));
            self.bookmarks.clear_until(&mut self.cx, subscription);
            self.queues.end(&mut self.cx, subscription);
            self.cx.subscriptions.all.remove(subscription);
        }
        self.queues.forget_session(id);
        self.tables.forget_session(id);
    }
}
