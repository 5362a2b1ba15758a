//! Aggregated queries: a record for each group of records (docs/last-values.md, "Aggregation").
//!
//! The scan of the topic reads its records in portions, as for every query. The groups then become
//! records in portions, too, and are sent.

use quire_command::{Code, Message, MessageKind, Query, Texts};
use quire_expression::filter::{AssignmentError, MessageContext, Projection};
use quire_table::{Aggregation, AggregationError, Polled};

use super::follow::refusal_of;
use super::plan::RecordsPlan;
use super::scan::{EFFORT, Scan, Step};
use super::view::context_of_row;
use super::{TableDefinition, Tables};
use crate::context::Context;
use crate::entitlement::Grant;
use crate::replay::CHUNK_SIZE_MAX;
use crate::reply::Refused;
use crate::session::SessionId;
use crate::topic::TableId;

/// The groups of a query.
pub(super) struct Groups {
    aggregation: Aggregation,
    table: TableId,
    /// All groups have become records.
    is_made: bool,
}

impl Tables {
    /// The projection of a query; `None` without one.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn plan_projection(
        &self,
        cx: &mut Context,
        id: SessionId,
        query: &Query<'_>,
        tables: &[TableId],
        grant: &Grant,
    ) -> Result<Option<Projection>, Refused> {
        let bad = |reason: String| Err(Refused::new(Code::BadOption, reason));
        let Some(projection) = query.projection else {
            return match query.grouping {
                Some(_) => bad("grouping: it requires projection".into()),
                None => Ok(None),
            };
        };
        if query.select.is_some() {
            return bad("select: a projection has its own fields; leave select out".into());
        }
        let [table] = tables else {
            // A topic of a container that has no records yet.
            if tables.is_empty() {
                return Ok(None);
            }
            let count = tables.len();
            return bad(format!(
                "projection: the pattern matches {count} last-value topics; name one of them"
            ));
        };
        let TableDefinition { name, message_type, .. } = &*self.all[table.0 as usize].definition;
        if !message_type.has_fields() {
            return bad(format!("projection: the messages on {name:?} have no fields"));
        }
        let options = cx.options_within(id, grant, name);
        let texts = |list: Option<Texts<'_>>| -> Vec<String> {
            list.into_iter().flat_map(Texts::iter).map(str::to_owned).collect()
        };
        let (entries, grouping) = (texts(Some(projection)), texts(query.grouping));
        match Projection::parse(&entries, &grouping, *message_type, &options) {
            Ok(projection) => Ok(Some(projection)),
            Err(mistake) => bad(refusal(&mistake, &entries)),
        }
    }

    /// No groups yet; `None` for a query of records.
    pub(super) fn groups_of(&self, cx: &Context, plan: &RecordsPlan) -> Option<Box<Groups>> {
        let projection = plan.projection.clone()?;
        let table = *plan.tables.first()?;
        let message_type = self.all[table.0 as usize].definition.message_type;
        let size_max = usize::try_from(cx.config.limits.max_query_copies).unwrap_or(usize::MAX);
        let (order, skip, top) = (plan.order.clone(), plan.skip_n, plan.top_n);
        let aggregation = Aggregation::new(projection, message_type, order, skip, top, size_max);
        Some(Box::new(Groups { aggregation, table, is_made: false }))
    }

    /// One portion of an aggregated query.
    pub(super) fn step_groups(&mut self, cx: &mut Context, scan: &mut Scan) -> Step {
        match scan.parts.front() {
            Some(_) => self.add_rows(cx, scan),
            None => self.send_groups(cx, scan),
        }
    }

    /// Adds the next records to the groups.
    fn add_rows(&mut self, cx: &mut Context, scan: &mut Scan) -> Step {
        let (Some(&(table, number)), Some(groups)) = (scan.parts.front(), &mut scan.groups) else {
            return Step::Done;
        };
        let Tables { all, arena, .. } = self;
        let state = &mut all[table.0 as usize];
        let definition = &state.definition;
        // The list of the rights. The query itself has none.
        let select = scan.select.as_ref().and_then(|select| select.of_topic(&definition.name));
        let (now, mut selected, mut failure) = (cx.clock.now.wall, Vec::new(), None);
        let polled = state.table.poll(number, EFFORT, &mut |row| {
            let context = context_of_row(&definition.name, definition.message_type, row, now);
            let data = match &select {
                Some(select) => select.apply(Some(definition.message_type), row.data, arena, &mut selected),
                None => row.data,
            };
            // The rights hide the whole message.
            if data.is_empty() && !row.data.is_empty() {
                return true;
            }
            failure = groups.aggregation.add(&MessageContext { data, ..context }, arena).err();
            failure.is_none()
        });
        if let Some(error) = failure {
            return Step::Failed(refusal_of_groups(cx, definition, &error));
        }
        match polled {
            Polled::More => return Step::More,
            Polled::Done { .. } => (),
            failed => return Step::Failed(refusal_of(cx, definition, failed)),
        }
        groups.aggregation.end_messages();
        scan.total.add(groups.aggregation.count());
        state.table.close(number);
        self.note_building(cx, table);
        scan.parts.pop_front();
        Step::More
    }

    /// Makes records of groups, and sends them when all are made.
    fn send_groups(&mut self, cx: &mut Context, scan: &mut Scan) -> Step {
        let Some(groups) = &mut scan.groups else { return Step::Done };
        let definition = &self.all[groups.table.0 as usize].definition;
        let now = cx.clock.now.wall;
        if !groups.is_made {
            match groups.aggregation.make_rows(EFFORT, &definition.name, now, &mut self.arena) {
                Ok(has_more) => groups.is_made = !has_more,
                Err(error) => return Step::Failed(refusal_of_groups(cx, definition, &error)),
            }
            return Step::More;
        }
        let (mut frames, mut count) = (Vec::new(), 0);
        while frames.len() < CHUNK_SIZE_MAX
            && count < EFFORT as u64
            && let Some(row) = groups.aggregation.next_row()
        {
            let message = Message {
                subscription: scan.number,
                bookmark: None,
                timestamp_ns: now.as_ns(),
                queued: None,
                topic: definition.name.as_bytes(),
                correlation_id: b"",
                headers: quire_types::Headers::default(),
                key: &row.key,
                kind: MessageKind::Record,
                data: &row.data,
            };
            scan.encoder.put_message(&message, &mut frames);
            count += 1;
        }
        if count == 0 {
            return Step::Done;
        }
        cx.clients.counters.delivered += count;
        cx.session(scan.session).outbox.note_messages(count);
        cx.session(scan.session).outbox.put_replayed(frames);
        cx.touch(scan.session);
        Step::More
    }
}

/// The mistake, with the option that has it.
pub(super) fn refusal(mistake: &AssignmentError, projection: &[String]) -> String {
    let is_of_projection =
        projection.is_empty() || projection.get(mistake.number - 1).is_some_and(|text| *text == mistake.text);
    format!("{}: {mistake}", if is_of_projection { "projection" } else { "grouping" })
}

fn refusal_of_groups(cx: &Context, definition: &TableDefinition, error: &AggregationError) -> Refused {
    match error {
        AggregationError::TooLarge => {
            let reason = format!(
                "max_query_copies: the groups of the query of {1:?} need more than {0} bytes; use a filter, or fewer groups",
                cx.config.limits.max_query_copies, definition.name
            );
            Refused::new(Code::LimitExceeded, reason)
        }
        AggregationError::Unwritable(_) => {
            let reason = format!("projection: on {:?}, {error}", definition.name);
            Refused::new(Code::BadMessage, reason)
        }
    }
}
