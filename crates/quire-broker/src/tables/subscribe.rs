//! The begin, the replacement and the end of subscriptions with records in view.

use std::sync::Arc;

use quire_command::subscribe::{Request, Selected};
use quire_command::{Acks, Code};
use quire_expression::filter::Filter;
use quire_expression::select::Select;
use quire_expression::topic::TopicSelector;
use quire_table::AsOf;

use super::aggregated::{Awaiting, GroupsPlan};
use super::plan::Asker;
use super::replace::View;
use super::scan::drop_held;
use super::{AskedState, Following, FormerView, RecordsPlan, Scan, Tables};
use crate::context::Context;
use crate::entitlement::{Grant, TopicSelect};
use crate::log::Moment;
use crate::reply::Refused;
use crate::session::SessionId;
use crate::subscription::{Bounds, Delta, Gate, ServedBy, SowView, SubscriptionId};
use crate::topic::TableId;

/// The records that a subscription has in view, and the messages about their changes.
pub(crate) struct ViewPlan {
    records: RecordsPlan,
    changes: Changes,
    /// The state of these records, when it is not the state at the command.
    asked: Option<AskedState>,
    /// The records are those of groups.
    groups: Option<GroupsPlan>,
}

/// The messages that a subscription receives about the records in its view.
#[derive(Clone, Copy)]
struct Changes {
    /// The records are sent first.
    has_records: bool,
    /// A message for each record that leaves the view.
    has_oof: bool,
    /// Only the changed fields of each change are sent. `Some(true)`: no message when no field
    /// differs.
    delta: Option<bool>,
}

impl Changes {
    fn of(request: &Request<'_>) -> Self {
        let (has_oof, delta) = match request {
            Request::Stream(_) | Request::Log(_) => (false, None),
            Request::Records(records) => (records.has_oof, None),
            Request::Deltas(deltas) => (deltas.has_oof, Some(deltas.no_empties)),
        };
        Changes { has_records: request.selection().is_some(), has_oof, delta }
    }
}

impl ViewPlan {
    /// Takes the state of the records.
    pub(crate) fn take_asked(&mut self) -> Option<AskedState> {
        self.asked.take()
    }

    /// Whether the records are sent first.
    pub(crate) fn has_records(&self) -> bool {
        self.changes.has_records
    }

    /// Whether the records are from an earlier instant.
    pub(crate) fn is_of_earlier(&self) -> bool {
        self.records.instant.is_some()
    }

    /// Whether the records are those of groups. Filter and select list are then a part of their
    /// computation.
    pub(crate) fn is_aggregated(&self) -> bool {
        self.groups.is_some()
    }

    /// The source of the messages of a subscription without a bookmark.
    pub(crate) fn served_by(&self, is_conflated: bool) -> ServedBy {
        let needs_record = self.changes.has_oof || self.changes.delta.is_some();
        let is_follower = self.records.is_page() || self.is_aggregated() || (is_conflated && needs_record);
        if is_follower { ServedBy::Table } else { ServedBy::Sow }
    }
}

impl Tables {
    /// The state that the bookmark of a command with records names; `None`: it has no bookmark, or
    /// its topic keeps no last values.
    ///
    /// # Errors
    /// There is no such state.
    pub(crate) fn asked_state(
        &self,
        cx: &Context,
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
        if !self.keep_history(&named) {
            let reason = format!(
                "bookmark: {:?} keeps no history; add history to the topic, or subscribe without a bookmark",
                selector.text()
            );
            return Err(Refused::new(Code::BadOption, reason));
        }
        AskedState::parse(bookmark).map(Some)
    }

    /// The records in view of a subscription, as [`Tables::asked_state`] has found their state;
    /// `None` when it has none in view, or when no topic of it keeps last values.
    ///
    /// # Errors
    /// There can be no such view.
    pub(crate) fn plan_view(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        request: &Request<'_>,
        selector: &TopicSelector,
        asked: Option<AskedState>,
        (grant, filter): (&Grant, Option<&Filter>),
    ) -> Result<Option<ViewPlan>, Refused> {
        if matches!(request, Request::Stream(_) | Request::Log(_)) {
            return Ok(None);
        }
        if let Some(selected) = request.selection()
            && let Some(groups) = &selected.groups
        {
            let groups = self.plan_groups(cx, id, selector, groups, (filter, selected.keys), grant)?;
            let wanted = Selected { keys: None, groups: None, ..*selected };
            let records = self.plan(cx, id, vec![groups.source()], &wanted, grant)?;
            let (changes, groups) = (Changes::of(request), Some(groups));
            return Ok(Some(ViewPlan { records, changes, asked: None, groups }));
        }
        let mut named = cx.topics.tables_of(selector);
        self.retain_visible(&mut named, grant);
        let Selected { order_by, top_n, skip_n, keys, .. } = request.selection().copied().unwrap_or_default();
        if skip_n.is_some() && matches!(selector, TopicSelector::Pattern(_)) {
            let reason = format!(
                "skip_n: a page is of one topic, and {:?} is a pattern; name the topic",
                selector.text()
            );
            return Err(Refused::new(Code::BadOption, reason));
        }
        let may_keep_values = cx.topics.may_keep_values(selector);
        if skip_n.is_some() && named.is_empty() && may_keep_values {
            // A page is computed by the table of its topic, so that the topic gets its table before
            // its first message.
            let topic = cx.topics.intern(selector.text());
            self.admit_topic(cx, topic, cx.config.limits.max_pattern_topics as usize)?;
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
        let records =
            self.plan(cx, id, named, &Selected { order_by, top_n, skip_n, keys, groups: None }, grant)?;
        let records = if skip_n.is_some() { records.into_page()? } else { records };
        Ok(Some(ViewPlan { records, changes: Changes::of(request), asked, groups: None }))
    }

    /// The records of a view are the state of an instant; `None`: the current state. Returns the
    /// instant of the topic after which the messages follow; `None`: after this call.
    ///
    /// # Errors
    /// The topic has no such state.
    pub(crate) fn set_state(
        &mut self,
        cx: &mut Context,
        plan: &mut ViewPlan,
        instant: Option<Moment>,
    ) -> Result<Option<AsOf>, Refused> {
        let as_of = match (plan.records.tables.first(), instant) {
            (Some(table), Some(instant)) => self.as_of(cx, *table, instant)?,
            _ => None,
        };
        plan.records.instant = instant.filter(|_| as_of.is_some());
        Ok(as_of)
    }

    /// Creates the view of a subscription, which begins now. The messages that wait for the records
    /// of the former view remain in the former view. [`Tables::begin`] sends the records.
    pub(crate) fn enter(
        &mut self,
        cx: &mut Context,
        id: SubscriptionId,
        plan: &ViewPlan,
        former: Option<&mut FormerView>,
    ) {
        let ViewPlan { records, changes, .. } = plan;
        let turns_page = former.as_ref().is_some_and(|former| former.page.is_some());
        let held = former.and_then(|former| former.held.as_mut().map(std::mem::take));
        let holds = changes.has_records && !turns_page;
        let begun = self.begun(cx);
        let subscription = cx.subscription(id);
        let bounds = Bounds { keys: records.wanted_keys(), wants_oof: changes.has_oof, ..Bounds::default() };
        subscription.wanted.bounds = bounds.shared();
        subscription.delivery.gate =
            held.or_else(|| holds.then(Vec::new)).map(Gate::closed).unwrap_or_default();
        let select = subscription.wanted.select.as_ref();
        let delta = changes.delta.map(|no_empties| Delta::new(no_empties, self.selects(records, select)));
        self.views.insert(id, Box::new(SowView { delta, begun }));
    }

    /// The select list of a delta subscription for each topic: with the fields of the key.
    fn selects(&self, records: &RecordsPlan, select: Option<&TopicSelect>) -> Vec<(TableId, Select)> {
        let select_of = |table: &TableId| {
            let definition = &self.all[table.0 as usize].definition;
            let select = select?.of_topic(&definition.name)?;
            Some((*table, select.with_fields(&definition.key_fields)))
        };
        records.tables.iter().filter_map(select_of).collect()
    }

    /// A view has other key fields: the select lists of its delta subscriptions get them.
    pub(super) fn show_keys(&mut self, cx: &Context, table: TableId) {
        let definition = &*self.all[table.0 as usize].definition;
        let (name, key_fields) = (&definition.name, &definition.key_fields);
        let followers = self.subscriptions.iter().filter(|(_, following)| following.tables.contains(&table));
        for (id, _) in followers {
            let delta = self.views.get_mut(*id).and_then(|view| view.delta.as_mut());
            let subscription = cx.clients.subscriptions.get(*id);
            let select = subscription.and_then(|it| it.wanted.select.as_ref()?.of_topic(name));
            if let (Some(delta), Some(select)) = (delta, select) {
                delta.set_select(table, select.with_fields(key_fields));
            }
        }
    }

    /// A subscription follows its topics. With `sow`, it first receives its records, or the
    /// difference to the former view. The instant of the result is this call.
    pub(crate) fn begin(
        &mut self,
        cx: &mut Context,
        subscription_id: SubscriptionId,
        ViewPlan { records: mut plan, groups, .. }: ViewPlan,
        command: u32,
        acks: Acks,
        former: Option<FormerView>,
    ) {
        if let Some(groups) = groups {
            return self.begin_aggregated(cx, subscription_id, plan, groups, (command, acks));
        }
        let subscription = &cx.clients.subscriptions.all[subscription_id];
        let (id, number, filter) =
            (subscription.session, subscription.number, subscription.wanted.filter.clone());
        let select = subscription.wanted.select.clone();
        let (mut page, mut is_delta, mut wants_oof, mut held_size) = (None, false, false, Some(0));
        // A subscription with a bookmark receives the messages after its records from the log.
        if let Some(view) = self.views.get(subscription_id) {
            (is_delta, wants_oof) = (view.delta.is_some(), subscription.wanted.wants_oof());
            held_size = subscription.delivery.gate.held_size();
            for table in &plan.tables {
                let state = &mut self.all[table.0 as usize];
                state.delta_count += usize::from(is_delta);
                if subscription.served_by == ServedBy::Table {
                    page = state.follow(cx, subscription_id, &plan).map(|page| (*table, page));
                } else if wants_oof {
                    state.watchers.push(subscription_id);
                }
            }
        }
        let mut tables = plan.tables.clone();
        let former_page = former.as_ref().and_then(|former| former.page);
        if let Some((former_table, _)) = former_page {
            tables.push(former_table);
            held_size.get_or_insert(0);
        }
        self.subscriptions.insert(subscription_id, Following { tables, is_delta, page, computation: None });
        // Without `sow`, no records are sent.
        let Some(held_size) = held_size else { return };
        let is_of_change = former.is_some();
        let top_n = plan.top_n.take_if(|_| is_of_change);
        let asker = Asker { command, acks, number, select: select.clone() };
        let scan = match page {
            Some((table, _)) => {
                self.state(table).changes.queries += 1;
                self.open(cx, id, &plan.without_tables(), None, asker, None)
            }
            None => self.open(cx, id, &plan, filter.as_ref(), asker, plan.instant),
        };
        match scan {
            Ok(scan) => {
                let mut scan = Scan { subscription: Some(subscription_id), page, ..scan };
                if let Some(former) = former {
                    let keys = plan.keys.map(|keys| keys.into_iter().collect());
                    let new = View { tables: plan.tables, keys, filter, select };
                    self.compare(cx, former, new, wants_oof, top_n, &mut scan);
                }
                self.scanning.push_after(scan, held_size);
            }
            Err(refused) => cx.end_subscription(subscription_id, refused.code, &refused.reason),
        }
        cx.clock.wants_turn = true;
    }

    /// An aggregated subscription first receives the records of its groups. It follows them when
    /// their computation is ready.
    fn begin_aggregated(
        &mut self,
        cx: &mut Context,
        id: SubscriptionId,
        plan: RecordsPlan,
        groups: GroupsPlan,
        (command, acks): (u32, Acks),
    ) {
        let subscription = &cx.clients.subscriptions.all[id];
        let (session, number) = (subscription.session, subscription.number);
        let held_size = subscription.delivery.gate.held_size().unwrap_or_default();
        let computation = match self.join_computation(cx, (id, session), groups) {
            Ok(computation) => computation,
            Err(refused) => return cx.end_subscription(id, refused.code, &refused.reason),
        };
        let following =
            Following { tables: Vec::new(), is_delta: false, page: None, computation: Some(computation) };
        self.subscriptions.insert(id, following);
        let asker = Asker { command, acks, number, select: None };
        match self.open(cx, session, &plan.without_tables(), None, asker, None) {
            Ok(scan) => {
                let awaiting = Some(Box::new(Awaiting::new(computation, plan)));
                self.scanning.push_after(Scan { subscription: Some(id), awaiting, ..scan }, held_size);
            }
            Err(refused) => cx.end_subscription(id, refused.code, &refused.reason),
        }
        cx.clock.wants_turn = true;
    }

    /// A subscription is about to be replaced. Returns its view, if it has one. Its scans continue,
    /// and so does its page.
    pub(crate) fn part(&mut self, cx: &mut Context, id: SubscriptionId) -> Option<FormerView> {
        let Some(view) = self.views.remove(id) else {
            self.end(cx, id);
            return None;
        };
        let begun = view.begun.time;
        let Following { tables, is_delta, page, .. } = self.subscriptions.remove(&id)?;
        if page.is_none() {
            self.unwatch(id, &tables, is_delta);
        }
        let subscription = cx.subscription(id);
        let (filter, select) = (subscription.wanted.filter.clone(), subscription.wanted.select.clone());
        let keys = subscription.wanted.bounds.take().and_then(|bounds| Arc::unwrap_or_clone(bounds).keys);
        let view = View { tables, keys, filter, select };
        Some(FormerView { view, begun, held: subscription.delivery.gate.open(), page })
    }

    /// No subscription continues with a view. Its page ends.
    pub(crate) fn drop_view(&mut self, view: &FormerView) {
        if let Some((table, page)) = view.page {
            self.state(table).close_page(page);
        }
    }

    /// The subscription is about to be removed, or receives no more messages.
    pub(crate) fn end(&mut self, cx: &mut Context, id: SubscriptionId) {
        self.views.remove(id);
        let Some(following) = self.subscriptions.remove(&id) else { return };
        self.unwatch(id, &following.tables, following.is_delta);
        self.end_scans(id);
        drop_held(cx, id);
        if let Some(computation) = following.computation {
            self.leave_computation(computation, id);
        }
    }
}
