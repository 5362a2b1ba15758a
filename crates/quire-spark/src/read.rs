//! A batch read of a frame: its scan and its tasks.

use std::num::NonZero;

use quire_arrow::{
    AggregateSpec, Attribute, Bounds, Function, LastValues, Operator, Plan, ScanSpec, Source, SpecError,
    last_values,
};
use quire_journal::{Position, Reader};
use quire_types::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::columns;
use crate::conditions::{self, Expression, Taken};
use crate::failure::{Failure, Outcome};
use crate::frame::Frame;
use crate::journals::{Range, identity, reader_of, refreshed, retained};
use crate::options::ReadOptions;
use crate::schema::{Column, Schema, Type};
use crate::task::Task;
use crate::text::quoted;

/// Bytes of the log for one task: a few seconds of work, so that a lost task costs little.
const PARTITION_BYTES: u64 = 128 << 20;
/// The least bytes of a task: a smaller task would take more time to start than to run.
const PARTITION_BYTES_MIN: u64 = 16 << 20;

/// A read of a frame.
#[derive(Clone, Debug)]
pub struct Read {
    /// The frame.
    pub frame: Frame,
    /// The columns that the scan returns.
    schema: Schema,
    /// The columns of the frame: those that conditions and options name.
    all: Schema,
    conditions: Vec<Expression>,
    limit: Option<u64>,
    aggregation: Option<Aggregation>,
    parallelism: u64,
}

/// A read as JSON, as the sources pass it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    frame: Value,
    schema: Value,
    columns: Option<Value>,
    #[serde(default)]
    conditions: Vec<Expression>,
    limit: Option<u64>,
    aggregation: Option<Aggregation>,
    parallelism: Option<u64>,
}

/// Functions of all rows, or of those of each group.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Aggregation {
    #[serde(default)]
    group: Vec<Vec<String>>,
    functions: Vec<NamedFunction>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedFunction {
    name: String,
    column: Option<Vec<String>>,
}

/// The most that a scan reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Bytes of the blocks.
    pub bytes: u64,
    /// Positions.
    pub rows: u64,
}

/// The tasks of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// Texts for `TaskScan::open`.
    pub tasks: Vec<String>,
    /// Warnings for the log of the user.
    pub warnings: Vec<String>,
}

/// The scan of a read.
struct Scanned {
    spec: ScanSpec,
    plan: Plan,
    is_exact: bool,
}

impl Read {
    /// Reads the description.
    pub fn from_json(text: &str) -> Outcome<Self> {
        let wrong = |error: serde_json::Error| Failure::option(format!("the read cannot be read: {error}"));
        let given: Given = serde_json::from_str(text).map_err(wrong)?;
        let schema = Schema::from_json(&given.schema)?;
        Ok(Read {
            frame: Frame::from_json(&given.frame.to_string())?,
            all: given.columns.map_or_else(|| Ok(schema.clone()), |columns| Schema::from_json(&columns))?,
            schema,
            conditions: given.conditions,
            limit: given.limit,
            aggregation: given.aggregation,
            parallelism: given.parallelism.unwrap_or_else(processors).max(1),
        })
    }

    fn options(&self) -> &ReadOptions {
        &self.frame.options
    }

    /// Checks the filter and all columns of the frame, also those that the query does not use. So a
    /// mistake in a column does not depend on the query. The source in Python builds all columns,
    /// and finds the same mistakes.
    pub fn check(&self, now: Timestamp) -> Outcome<()> {
        let everything = Read { schema: self.all.clone(), aggregation: None, ..self.clone() };
        everything.scanned(now)?;
        self.scanned(now).map(drop)
    }

    /// The spec of the scan, as JSON.
    pub fn spec(&self, now: Timestamp) -> Outcome<String> {
        let scanned = self.scanned(now)?;
        serde_json::to_string(&scanned.spec).map_err(|error| Failure::internal(error.to_string()))
    }

    /// Returns how the scan applies each condition.
    pub fn push(&self) -> Outcome<Vec<Taken>> {
        let pushed = |condition| Ok(conditions::push(condition, &self.all, self.options())?.taken);
        self.conditions.iter().map(pushed).collect()
    }

    /// The topics that satisfy the conditions, if the conditions name topics.
    pub fn topics(&self) -> Outcome<Option<Vec<String>>> {
        for condition in &self.conditions {
            for predicate in conditions::push(condition, &self.all, self.options())?.predicates {
                let is_topic = matches!(predicate.source, Source::Attribute(Attribute::Topic));
                if is_topic && predicate.operator == Operator::In && !predicate.negated {
                    let names = predicate.values.into_iter().filter_map(|literal| match literal {
                        quire_arrow::Literal::Text(name) => Some(name),
                        _ => None,
                    });
                    return Ok(Some(names.collect()));
                }
            }
        }
        Ok(None)
    }

    /// The columns of partial aggregates; `None` when the scan does not support the aggregation.
    pub fn aggregated(&self) -> Outcome<Option<Schema>> {
        let is_exact = self.push()?.iter().all(|taken| *taken == Taken::Exact);
        Ok(self.aggregates()?.filter(|_| is_exact).map(|(_, schema)| schema))
    }

    /// The most that is read.
    pub fn statistics(&self, now: Timestamp) -> Outcome<Statistics> {
        let scanned = self.scanned(now)?;
        let mut statistics = Statistics::default();
        for range in &self.frame.ranges {
            let found = reader_of(range)?;
            let bounds = scanned.plan.narrow(&found, bounds(range.after, range.limit))?;
            statistics.rows += bounds.limit.get().saturating_sub(bounds.after.get());
            statistics.bytes += size_of(&scanned.plan, &found, bounds);
        }
        Ok(statistics)
    }

    /// Cuts the read into tasks.
    pub fn plan(&self, now: Timestamp) -> Outcome<Planned> {
        self.plan_ranges(&self.frame.ranges, now)
    }

    /// Divides ranges into tasks by size, and joins small ranges. There are at least the wanted
    /// number of tasks if the data is sufficient.
    pub fn plan_ranges(&self, ranges: &[Range], now: Timestamp) -> Outcome<Planned> {
        let scanned = self.scanned(now)?;
        let wanted = self.options().min_partitions.unwrap_or(1).div_ceil((ranges.len() as u64).max(1));
        let rows = self.limit.filter(|_| scanned.is_exact);
        let mut planned = Planned::default();
        for range in ranges {
            refreshed(&range.directory, range.archive.as_deref())?;
            let found = reader_of(range)?;
            let begin = retained(&found, range, self.options().fail_on_data_loss, &mut planned.warnings)?;
            let newest = self.last_values(&found, range, begin, &mut planned.warnings)?;
            let narrowed = scanned.plan.narrow(&found, bounds(begin, range.limit))?;
            if narrowed.limit <= narrowed.after {
                continue;
            }
            let size = self.task_size(&scanned.plan, &found, narrowed);
            for part in scanned.plan.split(&found, narrowed, size, wanted) {
                let positions = newest.as_ref().map(|newest| newest.between(part.bounds));
                if positions.as_ref().is_some_and(Vec::is_empty) {
                    continue;
                }
                let (after, limit) = (part.bounds.after.get(), part.bounds.limit.get());
                let at = identity(&found, limit);
                let part = Range { after, limit, at, at_ns: None, ..range.clone() };
                planned.tasks.push(Task::new(part, scanned.spec.clone(), positions, rows).to_json()?);
            }
        }
        // Without a row of any task, Spark would return no count instead of 0.
        let is_total = scanned.spec.aggregate.as_ref().is_some_and(|aggregate| !aggregate.by_topic);
        if let Some(range) = ranges.first().filter(|_| is_total && planned.tasks.is_empty()) {
            let range = Range { after: range.limit, at_ns: None, ..range.clone() };
            planned.tasks.push(Task::new(range, scanned.spec, None, None).to_json()?);
        }
        Ok(planned)
    }

    fn task_size(&self, plan: &Plan, found: &Reader, bounds: Bounds) -> u64 {
        if let Some(size) = self.options().partition_bytes {
            return size;
        }
        task_size(size_of(plan, found, bounds), self.parallelism)
    }

    /// The newest message of each key, when the read is one of last values.
    fn last_values(
        &self,
        found: &Reader,
        range: &Range,
        after: u64,
        warnings: &mut Vec<String>,
    ) -> Outcome<Option<LastValues>> {
        let Some(topic) = &self.options().last_values else { return Ok(None) };
        let lifetimes = self.options().expiration.into();
        let at = Timestamp::from_ns(range.at_ns.unwrap_or_default());
        let search = |after, limit| last_values(found, topic, bounds(after, limit), lifetimes, at);
        let newest = search(after, range.limit)?;
        let directory = &range.directory;
        if newest.keyed_count == 0 && search(range.limit, found.persisted().get())?.keyed_count == 0 {
            let what = match newest.keyless_count {
                0 => "no message".to_owned(),
                count => format!("{} without a key", counted(count)),
            };
            let reason = "a last-value topic has a key for each message";
            return Err(Failure::new(
                "not_last_value",
                format!("lastValues: {directory} has {what} of the topic {}; {reason}", quoted(topic)),
            ));
        }
        if newest.keyed_count > 0 && newest.keyless_count > 0 {
            let is_or_are = if newest.keyless_count == 1 { "is" } else { "are" };
            warnings.push(format!(
                "{directory}: {} of {topic} {is_or_are} left out, because the log has no key for them",
                counted(newest.keyless_count)
            ));
        }
        Ok(Some(newest))
    }

    fn scanned(&self, now: Timestamp) -> Outcome<Scanned> {
        let options = self.options();
        columns::check_paths(&self.all, options)?;
        let (mut predicates, mut is_exact) = (Vec::new(), true);
        for condition in &self.conditions {
            let pushed = conditions::push(condition, &self.all, options)?;
            is_exact &= pushed.taken == Taken::Exact;
            predicates.extend(pushed.predicates);
        }
        let aggregate = match (self.aggregates()?, &self.aggregation) {
            (Some((aggregate, _)), _) if is_exact => Some(aggregate),
            (_, None) => None,
            _ => return Err(Failure::internal("the aggregation was not taken")),
        };
        let spec = ScanSpec {
            columns: match aggregate {
                Some(_) => Vec::new(),
                None => columns::specs(&self.schema, &self.all, options)?,
            },
            aggregate,
            topics: options.topics.clone(),
            // A server filters its messages, because it has their types.
            filter: options.filter.clone().filter(|_| options.url.is_none()),
            predicates,
            includes_events: options.includes_events,
            includes_deletes: options.includes_deletes,
            skips_damage: !options.fail_on_data_loss,
            batch_rows: options.batch_rows as usize,
            batch_bytes: options.batch_bytes as usize,
            now_ns: now.as_ns(),
        };
        let plan = Plan::new(spec.clone()).map_err(|error| of_spec(&error, options))?;
        Ok(Scanned { spec, plan, is_exact })
    }

    /// The aggregation of the scan with its columns, if the scan has it.
    fn aggregates(&self) -> Outcome<Option<(AggregateSpec, Schema)>> {
        let Some(Aggregation { group, functions }) = &self.aggregation else { return Ok(None) };
        let attribute = |column: &[String]| -> Outcome<Option<(Attribute, Column)>> {
            let found = columns::source(&self.all, column, self.options())?;
            Ok(found.and_then(|(source, data_type)| match source {
                Source::Attribute(attribute) => Some((attribute, Column::new(&column.join("."), data_type))),
                _ => None,
            }))
        };
        let mut schema = Schema::default();
        for column in group {
            match attribute(column)? {
                Some((Attribute::Topic, column)) if schema.columns.is_empty() => schema.columns.push(column),
                _ => return Ok(None),
            }
        }
        let mut taken = Vec::new();
        for (number, function) in functions.iter().enumerate() {
            let found = match &function.column {
                Some(column) => match attribute(column)? {
                    Some(found) => Some(found),
                    None => return Ok(None),
                },
                None => None,
            };
            let name = format!("{}_{number}", function.name);
            let (function, data_type) = match (function.name.as_str(), found) {
                ("count", None) => (Function::Count, Type::Long),
                // These are never NULL.
                ("count", Some((Attribute::Position | Attribute::Timestamp | Attribute::Topic, _))) => {
                    (Function::Count, Type::Long)
                }
                ("min", Some((attribute, column))) if has_order(attribute) => {
                    (Function::Min(attribute), column.data_type)
                }
                ("max", Some((attribute, column))) if has_order(attribute) => {
                    (Function::Max(attribute), column.data_type)
                }
                _ => return Ok(None),
            };
            taken.push(function);
            schema.columns.push(Column::new(&name, data_type));
        }
        Ok(Some((AggregateSpec { by_topic: !group.is_empty(), functions: taken }, schema)))
    }
}

/// Bytes for a task: every core gets the same number of tasks, unless the tasks would become too
/// small.
fn task_size(total: u64, parallelism: u64) -> u64 {
    let rounds = total.div_ceil(PARTITION_BYTES.saturating_mul(parallelism)).max(1);
    (total / rounds.saturating_mul(parallelism).max(1)).max(PARTITION_BYTES_MIN)
}

/// The attributes whose least and greatest values the scan can find.
fn has_order(attribute: Attribute) -> bool {
    matches!(attribute, Attribute::Position | Attribute::Timestamp | Attribute::TimestampNs)
}

fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, NonZero::get) as u64
}

fn size_of(plan: &Plan, found: &Reader, bounds: Bounds) -> u64 {
    plan.split(found, bounds, u64::MAX, 1).iter().map(|part| part.size).sum()
}

pub(crate) fn bounds(after: u64, limit: u64) -> Bounds {
    Bounds { after: Position::new(after), limit: Position::new(limit) }
}

fn counted(count: u64) -> String {
    let digits = count.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    format!("{shown} {}", if count == 1 { "message" } else { "messages" })
}

/// The error for a scan that is not possible, for the user who set the options.
pub(crate) fn of_spec(error: &SpecError, options: &ReadOptions) -> Failure {
    match error {
        SpecError::Filter(filter) => {
            let text = options.filter.as_deref().unwrap_or_default();
            let reason = format!("filter: '{text}': {}", filter.reason);
            Failure { column: filter.column, ..Failure::new("bad_filter", reason) }
        }
        SpecError::Topic(_) => Failure::new("bad_topic", error.to_string()),
        _ => Failure::option(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_gets_as_many_tasks_as_the_others() {
        const MB: u64 = 1 << 20;
        // Bytes, cores, and tasks of each core.
        for (total, cores, rounds) in
            [(100 * MB, 2, 1), (256 * MB, 2, 1), (257 * MB, 2, 2), (10_000 * MB, 3, 27)]
        {
            let size = task_size(total, cores);
            assert_eq!(total / size, rounds * cores, "{total} {cores}");
            assert!(size <= PARTITION_BYTES, "{total} {cores}");
        }
        // Small tasks cost more than they save.
        assert_eq!(task_size(20 * MB, 8), 16 * MB);
        assert_eq!(task_size(0, u64::MAX), 16 * MB);
    }

    #[test]
    fn numbers_are_shown_in_groups_of_three_digits() {
        assert_eq!(
            [1, 20, 1234, 1_234_567].map(counted),
            ["1 message", "20 messages", "1,234 messages", "1,234,567 messages"]
        );
    }
}
