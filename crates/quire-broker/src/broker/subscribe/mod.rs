//! Subscribe, replace and unsubscribe.

mod plan;
mod search;

use crate::queues::{QueueSubscription, Wanted};

use quire_journal::{Position, Timestamp};

use crate::bookmarks::{EndPosition, Progress};
use crate::failure::code_of;
use crate::log::Moment;
use crate::reply::{Refused, unknown_subscription};
use crate::session::{Phase, SessionId, Stall};
use crate::subscription::{
    Bounds, Delivery, Gate, Interest, Range, ServedBy, SowView, Subscription, SubscriptionId,
};
use crate::tables::{AskedState, FormerView};
use crate::topic::Stage;
use crate::{Broker, Timer};
use plan::Plan;
use quire_command::{AckKind, Acks, Code, Subscribe, Unsubscribe};
use quire_expression::topic::TopicSelector;
use quire_table::AsOf;
pub(crate) use search::Searches;
use search::Start;

/// The parts of a replaced subscription that the new one continues with.
#[derive(Default)]
struct Former {
    /// How far it has come in the log.
    progress: Option<Box<Progress>>,
    /// Only messages taken after this instant were wanted.
    taken_after: Option<Timestamp>,
    is_paused: bool,
    /// The end of its range.
    until: Option<EndPosition>,
    /// Those with which it shares its replay, when it stays in it.
    companions: Vec<SubscriptionId>,
    /// The records that it has in view.
    view: Option<FormerView>,
    /// Its part in queues.
    queued: Option<QueueSubscription>,
}

/// How a subscription is served.
struct Service {
    served_by: ServedBy,
    bounds: Bounds,
    gate: Gate,
    is_paused: bool,
    /// For a bookmark subscription.
    progress: Option<Progress>,
    /// For one with records in view.
    view: Option<SowView>,
}

impl Service {
    fn of(served_by: ServedBy) -> Self {
        Service {
            served_by,
            bounds: Bounds::default(),
            gate: Gate::default(),
            is_paused: false,
            progress: None,
            view: None,
        }
    }
}

impl Broker {
    pub(crate) fn subscribe(&mut self, id: SessionId, subscribe: &Subscribe<'_>) {
        self.cx.acknowledge_received(id, subscribe.command, subscribe.subscription, subscribe.acks);
        let plan = Plan::new(&mut self.cx, &self.bookmarks, &self.queues, &mut self.tables, id, subscribe);
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
        let Some(range) = plan.range() else { return self.enter_subscription(id, plan, None) };
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
                plan.set_range(Range::now());
                let after = self.cx.log.appended();
                self.enter_subscription(id, plan, Some((after, None)));
            }
            Some(AsOf { position: Some(position), .. }) => {
                self.enter_subscription(id, plan, Some((position, None)));
            }
            Some(AsOf { time, position: None }) => {
                plan.set_range(Range::after(time));
                self.begin(id, plan);
            }
        }
    }

    /// A subscription has the state at its bookmark. The messages after it follow.
    pub(crate) fn follow_log(&mut self, id: SubscriptionId) {
        let subscription = self.cx.subscription(id);
        let (session, is_paused) = (subscription.session, subscription.delivery.is_paused);
        if !self.bookmarks.has_records(id) {
            return;
        }
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
        let Some(end) = plan.range().and_then(|range| range.end) else {
            return self.enter_subscription(id, plan, Some((after, None)));
        };
        // It may have been recorded since it was looked for, and then the pass is already beyond it. To look again takes microseconds.
        let until = match found
            .map_or_else(|| end.locate(&self.cx.log.reader, plan.log_end), |until| Ok(Some(until)))
        {
            Ok(until) => until.map_or(EndPosition::Awaited(Box::new(end)), EndPosition::At),
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
            EndPosition::Awaited(end) => EndPosition::Awaited(end),
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
        let mut former =
            plan.replaced.map(|replaced| self.part(replaced, place.is_none())).unwrap_or_default();
        let after = place.as_ref().map(|(after, _)| *after);
        let until = place.map_or(former.until.take(), |(_, until)| until);
        let queued = match self.join_queues(id, &plan, former.queued.take()) {
            Ok(queued) => queued,
            Err(refused) => {
                if let Some(replaced) = plan.replaced {
                    self.remove_subscription(replaced);
                }
                return self.cx.refuse_command(id, plan.command, plan.number, &refused);
            }
        };
        let Service { served_by, bounds, gate, is_paused, progress, view } =
            self.service_of(&plan, after, &mut former);
        let Plan { command, acks, number, selector, filter, select, family, .. } = plan;
        let subscription = Subscription {
            session: id,
            number,
            family,
            wanted: Interest { selector, filter, select, bounds: bounds.boxed() },
            served_by,
            delivery: Delivery {
                conflation: plan.conflation.map(Box::new),
                gate,
                is_paused,
                has_ended: false,
            },
        };
        let subscription_id = match plan.replaced {
            Some(replaced) => {
                self.cx.release_patterns(replaced);
                *self.cx.subscription(replaced) = subscription;
                replaced
            }
            None => {
                let new = self.cx.clients.subscriptions.all.insert(subscription);
                self.cx.session(id).subscriptions.insert(number, new);
                new
            }
        };
        if let Some(progress) = progress {
            self.bookmarks.enter(subscription_id, progress);
        }
        if let Some(view) = view {
            self.tables.enter(subscription_id, view);
        }
        self.cx.count_patterns(subscription_id);
        self.bookmarks.set_until(&mut self.cx, subscription_id, until);
        let granted = queued.and_then(|queued| self.queues.attach(subscription_id, queued));
        let is_queue = !plan.queues.is_empty();
        let detail = granted.filter(|_| is_queue).unwrap_or(u32::from(plan.is_bookmark_missing));
        let note = plan.note.as_deref().unwrap_or_default();
        self.cx.acknowledge_with(id, command, number, acks, detail, note);
        // The acknowledgement may have been one frame too many for a slow connection.
        if self.cx.session(id).phase != Phase::Open {
            return;
        }
        match (plan.log, plan.records) {
            (Some(_), Some(records)) => {
                self.tables.subscribe(&mut self.cx, subscription_id, records, command, acks, None);
            }
            (Some(_), None) => self.begin_replay(subscription_id, former.companions),
            (None, records) => {
                if self.cx.is_in_audience(subscription_id) {
                    self.cx.join(subscription_id, Stage::Published);
                }
                let is_queried = records.is_some() && plan.changes.has_records;
                if let Some(records) = records {
                    self.tables.subscribe(&mut self.cx, subscription_id, records, command, acks, former.view);
                }
                if acks.has(Acks::COMPLETED) && !is_queried {
                    self.cx.acknowledge_command(id, AckKind::Completed, command, number);
                }
            }
        }
    }

    /// Takes a subscription that is replaced out of where its messages come from. Gives what the new one continues with.
    fn part(&mut self, replaced: SubscriptionId, keeps_place: bool) -> Former {
        let mut former = Former::default();
        // Subscriptions that share a replay stay in it, unless one of them begins at another bookmark.
        if keeps_place {
            former.companions = self.bookmarks.companions(&self.cx, replaced);
        }
        former.until = self.bookmarks.progress(replaced).and_then(|progress| progress.until.clone());
        self.bookmarks.clear_until(replaced);
        self.cx.deliver_all_conflated(replaced);
        if matches!(self.cx.subscription(replaced).served_by, ServedBy::Sow | ServedBy::Table) {
            self.cx.leave_audience(replaced);
            former.view = self.tables.part(&mut self.cx, replaced);
        } else {
            self.detach(replaced);
            let subscription = self.cx.subscription(replaced);
            subscription.served_by = ServedBy::Ordinary;
            former.is_paused = subscription.delivery.is_paused;
            former.taken_after = subscription.wanted.taken_after();
            former.progress = self.bookmarks.forget(replaced);
        }
        // The client finds a lease by the queue that its subscription has until the answer.
        self.queues.notify_lost_leases(&mut self.cx);
        former.queued = self.queues.detach(replaced);
        former
    }

    /// Joins the queues of a plan. A subscription that had others keeps the messages that it holds.
    fn join_queues(
        &mut self,
        id: SessionId,
        plan: &Plan,
        former: Option<QueueSubscription>,
    ) -> Result<Option<QueueSubscription>, Refused> {
        if plan.queues.is_empty() {
            return Ok(former.and_then(|former| self.queues.part(&mut self.cx, id, former)));
        }
        let is_named = matches!(plan.selector, TopicSelector::Pattern(_));
        let (queues, filter, max_backlog) = (&plan.queues, plan.filter.as_ref(), plan.max_backlog);
        let wanted = Wanted { queues, is_named, filter, max_backlog };
        let joined = self.queues.join(&mut self.cx, id, former, &wanted);
        joined.map(Some).map_err(|error| Refused::new(Code::LimitExceeded, error.to_string()))
    }

    /// How the subscription of a plan is served, from the position `after` of the log.
    fn service_of(&mut self, plan: &Plan, after: Option<Position>, former: &mut Former) -> Service {
        let is_conflated = plan.conflation.is_some();
        if let Some(log) = &plan.log {
            let is_durable = log.delivery.is_fully_durable && self.cx.log.replicated.any();
            let mut service = Service::of(ServedBy::Bookmark);
            service.bounds.taken_after = match &log.range {
                Some(range) => range.taken_after(),
                None => former.taken_after,
            };
            service.is_paused = former.is_paused || log.delivery.is_paused;
            service.progress = Some(plan.progress(log, after, former.progress.take(), is_durable));
            service
        } else if !plan.queues.is_empty() {
            Service::of(ServedBy::Queue)
        } else if let Some(records) = &plan.records {
            let is_follower = records.is_page() || (plan.changes.has_oof && is_conflated);
            let (select, former) = (plan.select.as_ref(), former.view.as_mut());
            let (view, gate) = self.tables.view(&mut self.cx, records, &plan.changes, select, former);
            let mut service = Service::of(if is_follower { ServedBy::Table } else { ServedBy::Sow });
            service.bounds.keys = records.wanted_keys();
            service.bounds.wants_oof = plan.changes.has_oof;
            (service.view, service.gate) = (Some(view), gate);
            service
        } else {
            Service::of(ServedBy::Ordinary)
        }
    }

    /// A subscription that is served from the log begins to receive its messages, unless it is paused.
    fn begin_replay(&mut self, id: SubscriptionId, companions: Vec<SubscriptionId>) {
        let is_paused = self.cx.subscription(id).delivery.is_paused;
        self.bookmarks.send_first_resume_position(&mut self.cx, id);
        if !is_paused {
            self.bookmarks.restart(&mut self.cx, id, companions);
        }
    }

    /// Takes a subscription out of where its messages come from; its place in the log is then exact.
    pub(crate) fn detach(&mut self, id: SubscriptionId) {
        match self.cx.clients.subscriptions.all[id].served_by {
            ServedBy::Ordinary | ServedBy::Queue => self.cx.leave_audience(id),
            ServedBy::Sow | ServedBy::Table => {
                self.cx.leave_audience(id);
                self.tables.leave(&mut self.cx, id);
            }
            ServedBy::Bookmark => {
                self.bookmarks.detach_bookmark(&mut self.cx, id);
                self.tables.leave(&mut self.cx, id);
            }
        }
    }

    pub(crate) fn remove_subscription(&mut self, id: SubscriptionId) {
        self.detach(id);
        self.ordinary.forget_deferred(&mut self.cx, id);
        self.cx.release_patterns(id);
        self.cx.clock.timers.clear(Timer::Conflated(id));
        self.bookmarks.clear_until(id);
        self.queues.end(&mut self.cx, id);
        self.bookmarks.forget(id);
        let Some(subscription) = self.cx.clients.subscriptions.all.remove(id) else { return };
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
            self.cx.clock.timers.clear(Timer::Conflated(subscription));
            self.bookmarks.clear_until(subscription);
            self.queues.end(&mut self.cx, subscription);
            self.bookmarks.forget(subscription);
            self.cx.clients.subscriptions.all.remove(subscription);
        }
        self.queues.forget_session(id);
        self.tables.forget_session(id);
    }
}
