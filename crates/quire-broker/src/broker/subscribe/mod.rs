//! Subscribe, replace and unsubscribe.

mod plan;
mod search;

use crate::queues::{QueueSubscription, Wanted};

use quire_journal::Position;

use crate::Broker;
use crate::bookmarks::{EndPosition, FormerPlace, LogPlan, LogRequest};
use crate::entitlement::Grant;
use crate::events::ClientEvent;
use crate::failure::code_of;
use crate::log::Moment;
use crate::reply::{Refused, unknown_subscription};
use crate::session::{Phase, SessionId, Stall};
use crate::subscription::{Delivery, Interest, Range, Subscription, SubscriptionId};
use crate::tables::{AskedState, FormerView, ViewPlan};
use plan::Plan;
use quire_command::subscribe::NotFound;
use quire_command::{AckKind, Acks, Code, LogPlace, Subscribe, Unsubscribe};
use quire_expression::filter::Filter;
use quire_expression::topic::TopicSelector;
use quire_table::AsOf;
pub(crate) use search::Searches;
use search::Start;

/// The parts of a replaced subscription that the new one continues with, by service.
#[derive(Default)]
struct Former {
    place: Option<FormerPlace>,
    view: Option<FormerView>,
    queued: Option<QueueSubscription>,
}

impl Broker {
    pub(crate) fn subscribe(&mut self, id: SessionId, subscribe: &Subscribe<'_>, grant: &Grant) {
        self.cx.acknowledge_received(id, subscribe.command, subscribe.subscription, subscribe.acks);
        let services = (&self.bookmarks, &self.queues, &mut self.tables);
        let plan = Plan::new(&mut self.cx, services, id, subscribe, grant);
        match plan.and_then(|plan| self.check_decided(plan)) {
            Ok(plan) => self.begin(id, plan),
            Err(refused) => self.cx.refuse_command(id, subscribe.command, subscribe.subscription, &refused),
        }
    }

    /// Refuses to replace a subscription with records while the filter of earlier messages is
    /// evaluated: the difference between the two views must follow these messages.
    fn check_decided(&self, plan: Plan) -> Result<Plan, Refused> {
        if plan.view.is_some() && plan.replaced.is_some_and(|replaced| self.stream.is_deciding(replaced)) {
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

    /// Carries out a plan at once, or when its start has been found.
    fn begin(&mut self, id: SessionId, mut plan: Plan) {
        match plan.view.as_mut().and_then(ViewPlan::take_asked) {
            None => (),
            Some(AskedState::Current) => return self.enter_state(id, plan, None),
            Some(AskedState::At(instant)) => return self.enter_state(id, plan, Some(instant)),
            Some(AskedState::After(bookmark)) => return self.searches.find(&mut self.cx, id, plan, bookmark),
        }
        if plan.range().is_none() {
            return self.enter_subscription(id, plan, None);
        }
        match self.look_at_place(&mut plan) {
            Ok(Some(after)) => {
                // Times of other instances do not count here.
                plan.set_range(Range::from_start());
                return self.enter_within(id, plan, after, None);
            }
            Ok(None) => (),
            Err(refused) => return self.cx.refuse_command(id, plan.command, plan.number, &refused),
        }
        let Some(range) = plan.range() else { return };
        let end = range.end.as_ref().map(|end| end.without_search(plan.log_end));
        match (range.start.without_search(plan.log_end), end) {
            (Some(after), None) => self.enter_within(id, plan, after, None),
            (Some(after), Some(Some(until))) => self.enter_within(id, plan, after, Some(until)),
            _ => self.searches.begin(&mut self.cx, id, plan),
        }
    }

    /// The position at which a subscription begins that was on another instance before. `None`: it
    /// begins at its bookmark.
    fn look_at_place(&self, plan: &mut Plan) -> Result<Option<Position>, Refused> {
        let has_end = plan.range().is_some_and(|range| range.end.is_some());
        let Some(LogPlace { log, position }) = plan.place.filter(|_| !has_end && plan.view.is_none()) else {
            return Ok(None);
        };
        let after = Position::new(position);
        let is_here = log != 0 && log == self.cx.log.number && after <= self.cx.log.visible();
        let is_kept = after.next() >= self.cx.log.reader.first();
        let not_found = plan.log.as_ref().map(LogPlan::not_found).unwrap_or_default();
        if !(is_here && is_kept) && not_found == NotFound::Fail {
            let reason = match is_here {
                false => {
                    "the subscription was on another instance, and its place in the log here is not known: a \
                     message may be missed or repeated (bookmark_not_found chooses another start)"
                }
                true => "journal files with messages after the place of the subscription were removed",
            };
            return Err(Refused::new(Code::BookmarkNotFound, reason.to_owned()));
        }
        (plan.is_place_unknown, plan.is_bookmark_missing) = (!is_here, is_here && !is_kept);
        Ok(is_here.then_some(after))
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

    /// A subscription begins with the state of an instant, and continues with the messages after
    /// it.
    fn enter_state(&mut self, id: SessionId, mut plan: Plan, instant: Option<Moment>) {
        let as_of = match &mut plan.view {
            Some(view) => self.tables.set_state(&mut self.cx, view, instant),
            None => Ok(None),
        };
        let as_of = match as_of {
            Ok(as_of) => as_of,
            Err(refused) => return self.cx.refuse_command(id, plan.command, plan.number, &refused),
        };
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

    /// The start of a plan was found, and its end if it is in the log by now.
    fn enter_within(&mut self, id: SessionId, plan: Plan, after: Position, found: Option<Position>) {
        let first = self.cx.log.reader.first();
        let is_state = plan.view.as_ref().is_some_and(ViewPlan::is_of_earlier);
        if is_state && first > Position::new(1) && after < first {
            let reason = "bookmark: journal files were removed, and the log does not have every message after this state; ask for \
                          a later state, or keep journal files for longer with remove_after";
            let refused = Refused::new(Code::BadBookmark, reason.to_owned());
            return self.cx.refuse_command(id, plan.command, plan.number, &refused);
        }
        let Some(end) = plan.range().and_then(|range| range.end) else {
            return self.enter_subscription(id, plan, Some((after, None)));
        };
        // The end may have been recorded since the search for it, and the pass is then already
        // beyond it. Another search takes microseconds.
        let nameable = self.cx.nameable(id);
        let locate = || end.locate(&self.cx.log.reader, plan.log_end, &nameable);
        let until = match found.map_or_else(locate, |until| Ok(Some(until))) {
            Ok(until) => until.map_or(EndPosition::Awaited(Box::new(end)), EndPosition::At),
            Err(error) => {
                let refused = Refused::new(code_of(&error), error.to_string());
                return self.cx.refuse_command(id, plan.command, plan.number, &refused);
            }
        };
        let until = match until {
            // `(A:A)` is empty, as `(A:A]` is: its last position is before A, and A is not before
            // itself.
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

    /// The subscription begins, or is replaced, between two messages. Each service first takes its
    /// part of the plan, and sends output only after the answer to the command.
    fn enter_subscription(
        &mut self,
        id: SessionId,
        plan: Plan,
        place: Option<(Position, Option<EndPosition>)>,
    ) {
        let former = plan.replaced.map(|replaced| self.part(replaced, place.is_none()));
        let Former { place: former_place, view: mut former_view, queued } = former.unwrap_or_default();
        let queued = match self.join_queues(id, &plan, queued) {
            Ok(queued) => queued,
            Err(refused) => {
                if let Some(replaced) = plan.replaced {
                    self.cx.tell_unsubscribed(replaced);
                    self.stream.forget_deferred(&mut self.cx, replaced);
                    self.cx.remove_subscription(replaced);
                }
                return self.cx.refuse_command(id, plan.command, plan.number, &refused);
            }
        };
        let served_by = plan.served_by();
        if let Some(options) = &plan.told {
            let told = ClientEvent {
                event: "subscribe",
                topic: Some(plan.selector.text()),
                filter: plan.filter.as_ref().map(Filter::text),
                sub_id: Some(plan.number),
                options: options.as_deref(),
                ..Default::default()
            };
            self.cx.tell_client(id, told);
        }
        let Plan { command, acks, number, selector, filter, visible, select, family, view, log_end, .. } =
            plan;
        let takes_places = plan.takes_places;
        let is_conflated = plan.conflation.is_some();
        let subscription = Subscription {
            session: id,
            number,
            family,
            wanted: Interest { selector, filter, visible, select, bounds: None },
            served_by,
            delivery: Delivery { conflation: plan.conflation.map(Box::new), ..Delivery::default() },
        };
        let subscription = self.cx.put_subscription(subscription, plan.replaced);
        self.stream.begin(&mut self.cx, subscription);
        let is_queue = !plan.queues.is_empty();
        let granted = queued.and_then(|queued| self.queues.attach(subscription, queued));
        let is_of_log = plan.log.is_some();
        let mut companions = Vec::new();
        match (plan.log, &view) {
            (Some(plan), _) => {
                let awaits_records = view.is_some();
                let request = LogRequest {
                    plan,
                    command,
                    acks,
                    log_end,
                    place,
                    takes_places,
                    awaits_records,
                    is_conflated,
                };
                companions = self.bookmarks.enter(&mut self.cx, subscription, request, former_place);
            }
            (None, Some(view)) => self.tables.enter(&mut self.cx, subscription, view, former_view.as_mut()),
            (None, None) => (),
        }
        let start = u32::from(plan.is_bookmark_missing) | u32::from(plan.is_place_unknown) << 1;
        let detail = granted.filter(|_| is_queue).unwrap_or(start);
        let note = plan.note.as_deref().unwrap_or_default();
        self.cx.acknowledge_with(id, command, number, acks, detail, note);
        // The acknowledgement may have exceeded the backlog of a slow connection.
        if self.cx.session(id).phase != Phase::Open {
            return former_view.iter().for_each(|view| self.tables.drop_view(view));
        }
        let is_queried = is_of_log || view.as_ref().is_some_and(ViewPlan::has_records);
        match view {
            Some(view) => {
                self.tables.begin(&mut self.cx, subscription, view, command, acks, former_view);
            }
            None if is_of_log => self.bookmarks.begin(&mut self.cx, subscription, companions),
            None => (),
        }
        if acks.has(Acks::COMPLETED) && !is_queried {
            self.cx.acknowledge_command(id, AckKind::Completed, command, number);
        }
    }

    /// A subscription is replaced. Each service stops its messages, and returns the parts that the
    /// new subscription continues with.
    fn part(&mut self, replaced: SubscriptionId, keeps_place: bool) -> Former {
        self.cx.deliver_all_conflated(replaced);
        self.stream.part(&mut self.cx, replaced);
        let place = self.bookmarks.part(&mut self.cx, replaced, keeps_place);
        let view = self.tables.part(&mut self.cx, replaced);
        // Until the answer, the client identifies a lease by the queue of its former subscription.
        self.queues.notify_lost_leases(&mut self.cx);
        Former { place, view, queued: self.queues.detach(replaced) }
    }

    /// Joins the queues of a plan. A subscription that had other queues keeps the messages that it
    /// holds.
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
        let wanted = Wanted { queues: &plan.queues, is_named, max_backlog: plan.max_backlog };
        let joined = self.queues.join(&mut self.cx, id, former, &wanted);
        joined.map(Some).map_err(|error| Refused::new(Code::LimitExceeded, error.to_string()))
    }

    pub(crate) fn remove_subscription(&mut self, id: SubscriptionId) {
        self.cx.tell_unsubscribed(id);
        self.stream.end(&mut self.cx, id);
        self.tables.end(&mut self.cx, id);
        self.bookmarks.end(&mut self.cx, id);
        self.queues.end(&mut self.cx, id);
        self.cx.remove_subscription(id);
    }

    /// Removes all subscriptions of a session.
    pub(crate) fn drop_subscriptions(&mut self, id: SessionId) {
        self.searches.forget(id);
        let subscriptions = std::mem::take(&mut self.cx.session(id).subscriptions);
        subscriptions.into_values().for_each(|subscription| self.remove_subscription(subscription));
        self.queues.forget_session(id);
        self.tables.forget_session(id);
    }
}
