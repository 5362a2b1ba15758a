//! Commands that request records. They are checked before the scans of the tables begin.

use std::collections::VecDeque;

use quire_command::subscribe::{Selected, check_query};
use quire_command::{Acks, Code, Query, SowDelete};
use quire_expression::filter::{Filter, Projection};
use quire_expression::select::Select;
use quire_expression::topic::TopicSelector;
use quire_journal::Timestamp;
use quire_table::{self as table, AsOf, Order, PageQuery};

use super::history::AskedState;
use super::scan::{QUERIES_PER_SESSION_MAX, Total};
use super::view::context_of_row;
use super::{Scan, Tables};
use crate::context::Context;
use crate::entitlement::{Grant, TopicSelect};
use crate::log::Moment;
use crate::reply::{Refused, bad_option, bad_order};
use crate::session::SessionId;
use crate::subscription::KeySet;
use crate::topic::TableId;

/// The most records of a page. They are collected in one piece of work, of less than a millisecond.
const PAGE_RECORDS_MAX: u64 = 65_536;

/// The records that a command requests.
#[derive(Clone)]
pub(super) struct RecordsPlan {
    pub tables: Vec<TableId>,
    pub keys: Option<Vec<Box<[u8]>>>,
    pub(super) order: Option<Order>,
    pub(super) skip_n: u64,
    pub top_n: Option<u64>,
    /// The part of the result that the subscription keeps up to date.
    is_page: bool,
    /// The instant of the result; `None`: the current state.
    pub instant: Option<Moment>,
    /// The result has a record for each group of records.
    pub projection: Option<Projection>,
}

impl RecordsPlan {
    /// Makes the result of a subscription a page.
    ///
    /// # Errors
    /// There can be no such page.
    pub(crate) fn into_page(self) -> Result<Self, Refused> {
        if self.top_n.is_none_or(|top_n| top_n > PAGE_RECORDS_MAX) {
            let reason = format!(
                "top_n: a page that the server keeps up to date has at most {PAGE_RECORDS_MAX} records; ask for fewer, or \
                 subscribe without skip_n"
            );
            return Err(Refused::new(Code::BadOption, reason));
        }
        Ok(RecordsPlan { is_page: true, ..self })
    }

    /// The same without topics, because a page reads the records before it has a result.
    pub(super) fn without_tables(&self) -> Self {
        RecordsPlan { tables: Vec::new(), ..self.clone() }
    }

    /// The same for another table.
    pub(super) fn over(self, table: TableId) -> Self {
        RecordsPlan { tables: vec![table], ..self }
    }

    /// Whether the subscription keeps a part of the result up to date.
    pub(crate) fn is_page(&self) -> bool {
        self.is_page
    }

    /// The keys of the wanted records; `None` = all keys.
    pub(crate) fn wanted_keys(&self) -> Option<KeySet> {
        self.keys.as_ref().map(|keys| keys.iter().cloned().collect())
    }

    /// The rows of a page. `None` without a page.
    pub(super) fn page_query(&self, filter: Option<&Filter>, size_max: u64) -> Option<PageQuery> {
        self.is_page.then(|| PageQuery {
            filter: filter.cloned(),
            keys: self.keys.clone(),
            order: self.order.clone(),
            skip_n: self.skip_n as usize,
            top_n: self.top_n.unwrap_or_default() as usize,
            size_max: usize::try_from(size_max).unwrap_or(usize::MAX),
        })
    }

    pub(super) fn query(
        &self,
        filter: Option<&Filter>,
        as_of: Option<AsOf>,
        copies_size_max: u64,
    ) -> table::Query {
        // Order and limits are those of the groups then.
        let is_whole = self.projection.is_some();
        table::Query {
            as_of,
            filter: filter.cloned(),
            keys: self.keys.clone(),
            order: self.order.clone().filter(|_| !is_whole),
            skip_n: if is_whole { 0 } else { self.skip_n },
            top_n: self.top_n.filter(|_| !is_whole),
            copies_size_max: usize::try_from(copies_size_max).unwrap_or(usize::MAX),
        }
    }
}

/// Pages of records that are emptied in one turn: about a megabyte is copied.
const COMPACTED_PAGES: usize = 64;

impl Tables {
    /// Checks which records of these topics a command wants.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn plan(
        &self,
        cx: &mut Context,
        id: SessionId,
        tables: Vec<TableId>,
        wanted: &Selected<'_>,
        grant: &Grant,
    ) -> Result<RecordsPlan, Refused> {
        let bad = |reason: String| Refused::new(Code::BadOption, reason);
        let option = wanted.order_by.map(|_| "order_by").or(wanted.top_n.map(|_| "top_n"));
        if let Some(option) = option.filter(|_| tables.len() > 1) {
            let reason =
                format!("{option}: the pattern matches {} last-value topics; name one of them", tables.len());
            return Err(bad(reason));
        }
        // Only one topic can have an order.
        let topic = tables.first().map_or("", |table| &*self.all[table.0 as usize].definition.name);
        let options = cx.options_within(id, grant, topic);
        let order = wanted.order_by.map(|text| Order::parse(text, &options)).transpose();
        let order = order.map_err(|error| bad_order(&error))?;
        if let Some(table) = tables.iter().find(|table| order.is_some() && !self.has_fields(**table)) {
            let name = &self.all[table.0 as usize].definition.name;
            return Err(bad(format!("order_by: the messages on {name:?} have no fields")));
        }
        Ok(RecordsPlan {
            tables,
            keys: wanted.keys.map(|keys| keys.iter().map(Box::from).collect()),
            order,
            skip_n: wanted.skip_n.unwrap_or_default().into(),
            top_n: wanted.top_n.map(u64::from),
            is_page: false,
            instant: None,
            projection: None,
        })
    }

    fn has_fields(&self, table: TableId) -> bool {
        self.all[table.0 as usize].definition.message_type.has_fields()
    }

    /// Whether the messages of the topics have the parts that a filter and a select list read.
    fn check_types(
        &self,
        tables: &[TableId],
        filter: Option<&Filter>,
        select: Option<&Select>,
    ) -> Result<(), Refused> {
        let reads_fields = filter.is_some_and(|filter| filter.fields().next().is_some());
        for table in tables {
            let message_type = self.all[table.0 as usize].definition.message_type;
            if reads_fields && !message_type.has_fields() {
                let reason = format!("messages of type {} have no fields", message_type.name());
                return Err(Refused { code: Code::BadFilter, column: 1, reason });
            }
            if select.is_some() && !message_type.has_parts() {
                let reason =
                    format!("select: of a message of type {} no part can be delivered", message_type.name());
                return Err(Refused::new(Code::BadOption, reason));
            }
        }
        Ok(())
    }

    /// A query of the records of these topics. The instant of the result is this call.
    pub(crate) fn query(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        query: &Query<'_>,
        tables: Vec<TableId>,
        grant: &Grant,
    ) {
        cx.acknowledge_received(id, query.command, query.subscription, query.acks);
        let asked = query.bookmark.map_or(Ok(AskedState::Current), AskedState::parse);
        let planned = asked.and_then(|asked| {
            let planned = self.plan_query(cx, id, query, tables, grant)?;
            Ok((asked, self.needs_instant(&asked, &planned.0.tables)?, planned))
        });
        match planned {
            Ok((AskedState::After(bookmark), true, planned)) => {
                self.find_bookmark(cx, id, planned, bookmark);
            }
            Ok((asked, _, (plan, filter, asker))) => {
                let instant = match asked {
                    AskedState::At(instant) => Some(instant),
                    // A topic without history has its current state only.
                    AskedState::Current | AskedState::After(_) => None,
                };
                self.begin_query(cx, id, &plan, filter.as_ref(), asker, instant);
            }
            Err(refused) => cx.refuse_command(id, query.command, query.subscription, &refused),
        }
    }

    /// A valid query begins.
    pub(super) fn begin_query(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        plan: &RecordsPlan,
        filter: Option<&Filter>,
        asker: Asker,
        instant: Option<Moment>,
    ) {
        let Asker { command, acks, number, .. } = asker;
        match self.open(cx, id, plan, filter, asker, instant) {
            Ok(scan) => {
                cx.acknowledge_processed(id, command, number, acks);
                self.scanning.push(scan);
                cx.clock.wants_turn = true;
            }
            Err(refused) => cx.refuse_command(id, command, number, &refused),
        }
    }

    fn plan_query(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        query: &Query<'_>,
        tables: Vec<TableId>,
        grant: &Grant,
    ) -> Result<(RecordsPlan, Option<Filter>, Asker), Refused> {
        check_query(query).map_err(bad_option)?;
        let number = query.subscription;
        if cx.session(id).subscriptions.contains_key(&number) || self.has_query(id, number) {
            let reason = format!("a subscription or a query has the number {number}");
            return Err(Refused::new(Code::SubscriptionInUse, reason));
        }
        if self.scanning.count_of(id) >= QUERIES_PER_SESSION_MAX {
            let reason = format!("the connection runs {QUERIES_PER_SESSION_MAX} queries, which is the limit");
            return Err(Refused::new(Code::LimitExceeded, reason));
        }
        let filter = query.filter.map(|text| cx.parse_filter(id, text)).transpose()?;
        let select = query.select.map(Select::parse).transpose();
        let select = select.map_err(|error| Refused::new(Code::BadOption, error.to_string()))?;
        self.check_types(&tables, filter.as_ref(), select.as_ref())?;
        let Query { order_by, skip_n, top_n, keys, .. } = *query;
        let projection = self.plan_projection(cx, id, query, &tables, grant)?;
        let plan =
            self.plan(cx, id, tables, &Selected { order_by, skip_n, top_n, keys, groups: None }, grant)?;
        let plan = RecordsPlan { projection, ..plan };
        let (filter, select) = (cx.narrow(id, grant, filter)?, grant.select(select));
        Ok((plan, filter, Asker { command: query.command, acks: query.acks, number, select }))
    }

    /// Opens the scans of a plan. Without an instant, the result has the instant of this call.
    pub(super) fn open(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        plan: &RecordsPlan,
        filter: Option<&Filter>,
        asker: Asker,
        instant: Option<Moment>,
    ) -> Result<Scan, Refused> {
        let past = self.open_past_view(cx, plan, filter, instant)?;
        // The scan of a view that has to be computed begins later.
        let tables: &[TableId] = if past.is_some() { &[] } else { &plan.tables };
        let mut states = Vec::with_capacity(tables.len());
        for table in tables {
            let state = &self.all[table.0 as usize];
            states.push(instant.map_or(Ok(None), |instant| state.as_of(cx, instant))?);
        }
        let mut parts = VecDeque::new();
        for (table, as_of) in tables.iter().zip(states) {
            let query = plan.query(filter, as_of, cx.config.limits.max_query_copies);
            let state = self.state(*table);
            state.changes.queries += 1;
            parts.push_back((*table, state.table.open(query, cx.clock.now.wall)));
        }
        let Asker { command, acks, number, select } = asker;
        let encoder = cx.session(id).outbox.encoder();
        let groups = if past.is_some() { None } else { self.groups_of(cx, plan) };
        Ok(Scan {
            session: id,
            command,
            acks,
            number,
            subscription: None,
            page: None,
            parts,
            total: Total::default(),
            select,
            groups,
            past,
            temporary: Vec::new(),
            awaiting: None,
            encoder,
            change: None,
            next: None,
            lead_size: 0,
        })
    }

    /// Whether a message with this key replaces a record that the filter does not match.
    pub(crate) fn replaces_other(
        &mut self,
        cx: &Context,
        table: TableId,
        key: &[u8],
        filter: &Filter,
    ) -> bool {
        let Tables { all, arena, .. } = self;
        let state = &all[table.0 as usize];
        let definition = &state.definition;
        arena.allow(u64::MAX);
        state.table.get(key).is_some_and(|row| {
            let now = cx.clock.now.wall;
            let context = context_of_row(&definition.name, definition.message_type, &row, now);
            !filter.matches_with(&context, arena)
        })
    }

    /// Whether a topic has a record with this key, whose lifetime is not over.
    pub(crate) fn has_record(&self, table: TableId, key: &[u8], now: Timestamp) -> bool {
        let row = self.all[table.0 as usize].table.get(key);
        row.is_some_and(|row| row.expires.is_none_or(|expires| expires > now))
    }

    /// Moves the records of the named topics together in memory. Returns the bytes of memory that
    /// this frees. To free all, call it until it frees none.
    ///
    /// # Errors
    /// No last-value topic has the name.
    pub(crate) fn compact(&mut self, cx: &Context, topic: &str) -> Result<usize, Refused> {
        let selector = TopicSelector::new(topic);
        let selector = selector.map_err(|error| Refused::new(Code::BadTopic, error.to_string()))?;
        let tables = cx.topics.tables_of(&selector);
        if tables.is_empty() {
            return Err(Refused::new(
                Code::NotLastValue,
                format!("no last-value topic has the name {topic:?}"),
            ));
        }
        let mut freed = 0;
        for table in tables {
            freed += self.all[table.0 as usize].table.compact(COMPACTED_PAGES);
            if freed > 0 {
                break;
            }
        }
        Ok(freed)
    }

    /// Leaves out the topics that a grant hides.
    pub(crate) fn retain_visible(&self, tables: &mut Vec<TableId>, grant: &Grant) {
        tables.retain(|table| grant.includes(&self.all[table.0 as usize].definition.name));
    }

    /// Checks the selectors of a delete that has no `data`.
    pub(super) fn open_delete(
        &mut self,
        cx: &mut Context,
        id: SessionId,
        delete: &SowDelete<'_>,
        tables: &[TableId],
    ) -> Result<Option<Filter>, Refused> {
        let filter = delete.filter.map(|text| cx.parse_filter(id, text)).transpose()?;
        self.check_types(tables, filter.as_ref(), None)?;
        Ok(filter)
    }
}

/// The command that requests records.
pub(super) struct Asker {
    pub command: u32,
    pub acks: Acks,
    pub number: u32,
    pub select: Option<TopicSelect>,
}
