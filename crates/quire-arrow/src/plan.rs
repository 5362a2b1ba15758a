//! A checked and compiled spec, and the division of its work into parts.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use quire_expression::filter::{Filter, FilterOptions, path_of};
use quire_expression::message_type::{FieldId, FieldPlan, PATH_STEP_COUNT_MAX, Step};
use quire_expression::topic::{TopicPattern, TopicSelector};
use quire_journal::{JournalError, Position, Reader, Timestamp, TopicFilter};

use crate::aggregate;
use crate::column::{Column, Content};
use crate::counted_ranges::CountedRanges;
use crate::field::Value;
use crate::last_values::Positions;
use crate::predicate::{Kind, Predicate};
use crate::scan::{Scan, ScanError};
use crate::spec::{
    AggregateSpec, Attribute, BATCH_BYTES_MAX, COLUMNS_MAX, ColumnSpec, FieldType, Literal, Operator,
    ScanSpec, Source, SpecError, Topics,
};

/// The most parts of one range: more tasks would take more time to distribute than to run.
const PARTS_MAX: u64 = 100_000;

/// The spec of a scan, checked and compiled. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Plan(pub(crate) Arc<Compiled>);

#[derive(Debug)]
pub(crate) struct Compiled {
    pub columns: Vec<Column>,
    pub schema: SchemaRef,
    /// Values of these functions are returned, not columns.
    pub aggregate: Option<AggregateSpec>,
    pub topics: Wanted,
    pub filter: Option<Filter>,
    /// The fields that are read from the data, for columns and predicates.
    pub fields: FieldPlan,
    pub attribute_predicates: Vec<(Attribute, Predicate)>,
    pub field_predicates: Vec<(FieldId, FieldType, Predicate)>,
    pub includes_events: bool,
    pub includes_deletes: bool,
    pub skips_damage: bool,
    pub batch_rows: usize,
    pub batch_bytes: usize,
    pub now: Timestamp,
}

/// The topics that are wanted.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    rule: Option<Rule>,
    predicates: Vec<Predicate>,
}

#[derive(Debug)]
enum Rule {
    Names(Vec<String>),
    Pattern(TopicPattern),
    Prefix(String),
    Selector(TopicSelector),
}

/// A range of the log: after `after`, up to `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Everything up to here stays out.
    pub after: Position,
    /// The last position.
    pub limit: Position,
}

/// A part of a range, to be read as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where.
    pub bounds: Bounds,
    /// Bytes of the blocks that have to be read.
    pub size: u64,
}

impl Plan {
    /// Checks and compiles a spec.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn new(spec: ScanSpec) -> Result<Self, SpecError> {
        in_range("batch_rows", spec.batch_rows, i32::MAX as usize)?;
        in_range("batch_bytes", spec.batch_bytes, BATCH_BYTES_MAX)?;
        let mut compiler = Compiler::default();
        let columns = compiler.columns(&spec.columns)?;
        let rule = match spec.topics {
            None => None,
            Some(Topics::Names(names)) => Some(Rule::Names(names)),
            Some(Topics::Pattern(pattern)) => Some(Rule::Pattern(TopicPattern::new(&pattern)?)),
            Some(Topics::Prefix(prefix)) => Some(Rule::Prefix(prefix)),
            Some(Topics::Selector(topic)) => Some(Rule::Selector(TopicSelector::new(&topic)?)),
        };
        let mut topics = Wanted { rule, predicates: Vec::new() };
        let (mut attribute_predicates, mut field_predicates) = (Vec::new(), Vec::new());
        for spec in spec.predicates {
            match spec.source.clone() {
                Source::Attribute(attribute) => {
                    let Some(kind) = attribute.kind() else {
                        let reason = format!("{attribute:?} has no value to compare");
                        return Err(SpecError::Predicate { reason });
                    };
                    let predicate = Predicate::new(spec, kind)?;
                    match attribute {
                        Attribute::Topic => topics.predicates.push(predicate),
                        _ => attribute_predicates.push((attribute, predicate)),
                    }
                }
                Source::Field { path, r#type } => {
                    let field = compiler.path(&path, &path)?;
                    field_predicates.push((field, r#type, Predicate::new(spec, Kind::of_field(r#type))?));
                }
                source => {
                    let reason = format!("{source:?} is neither an attribute nor a field with one value");
                    return Err(SpecError::Predicate { reason });
                }
            }
        }
        let filter = spec.filter.map(|text| Filter::parse(&text, &FilterOptions::default())).transpose()?;
        let fields = match &spec.aggregate {
            Some(aggregate) => aggregate::fields(aggregate)?,
            None => Column::fields(&columns),
        };
        let schema = Arc::new(Schema::new(fields));
        Ok(Plan(Arc::new(Compiled {
            columns,
            schema,
            aggregate: spec.aggregate,
            topics,
            filter,
            fields: compiler.fields,
            attribute_predicates,
            field_predicates,
            includes_events: spec.includes_events,
            includes_deletes: spec.includes_deletes,
            skips_damage: spec.skips_damage,
            batch_rows: spec.batch_rows,
            batch_bytes: spec.batch_bytes,
            now: Timestamp::from_ns(spec.now_ns),
        })))
    }

    /// The columns as an Arrow schema.
    pub fn schema(&self) -> SchemaRef {
        self.0.schema.clone()
    }

    /// The topics of which records are read.
    pub fn topics(&self) -> &dyn TopicFilter {
        &self.0.topics
    }

    /// The part of the range in which the predicates can be true. Predicates on positions, times
    /// and bookmarks make it smaller.
    ///
    /// # Errors
    /// The log is damaged where the index leads.
    pub fn narrow(&self, reader: &Reader, bounds: Bounds) -> Result<Bounds, JournalError> {
        let mut narrowed = bounds;
        for (attribute, predicate) in &self.0.attribute_predicates {
            let Some(between) = Between::of(predicate) else { continue };
            let (mut first, mut last) = match attribute {
                Attribute::Position => (between.lowest, between.highest),
                Attribute::Timestamp => self.timestamps(&between, reader, 1000)?,
                Attribute::TimestampNs => self.timestamps(&between, reader, 1)?,
                _ => continue,
            };
            (first, last) = (first.max(1), last.max(0));
            narrowed.after = narrowed.after.max(Position::new(first as u64 - 1));
            narrowed.limit = narrowed.limit.min(Position::new(last as u64));
        }
        for (attribute, predicate) in &self.0.attribute_predicates {
            if *attribute == Attribute::Bookmark
                && let Some((first, last)) = bookmarks(predicate, reader)?
            {
                narrowed.after = narrowed.after.max(Position::new(first.get() - 1));
                narrowed.limit = narrowed.limit.min(last);
            }
        }
        narrowed.limit = narrowed.limit.max(narrowed.after);
        Ok(narrowed)
    }

    /// The first and the last position at which the time of a row, in units of `unit_ns`, can be
    /// between the limits.
    fn timestamps(
        &self,
        between: &Between,
        reader: &Reader,
        unit_ns: i128,
    ) -> Result<(i64, i64), JournalError> {
        let position_before = |ns: i128| -> Result<i64, JournalError> {
            // A time before 1970 is before every record.
            if ns < 0 {
                return Ok(0);
            }
            let ns = u64::try_from(ns).unwrap_or(u64::MAX);
            Ok(reader.position_before(Timestamp::from_ns(ns))?.get() as i64)
        };
        let first = match between.lowest {
            i64::MIN => 1,
            lowest => position_before(i128::from(lowest) * unit_ns - 1)?.saturating_add(1),
        };
        let last = match between.highest {
            i64::MAX => i64::MAX,
            // The record of an event can be written any time after the event.
            _ if self.0.includes_events => i64::MAX,
            highest => position_before((i128::from(highest) + 1) * unit_ns - 1)?,
        };
        Ok((first, last))
    }

    /// Divides a range into parts of about `part_size` bytes, or into `part_count_min` smaller
    /// ones. Only blocks with a wanted topic count. A range without them has no part. Blocks that
    /// an aggregate counts from the index have no bytes.
    pub fn split(&self, reader: &Reader, bounds: Bounds, part_size: u64, part_count_min: u64) -> Vec<Part> {
        let Bounds { after, limit } = bounds;
        // Without them when a file is missing: the scan reports that.
        let mut counted = CountedRanges::find(&self.0, reader, bounds).unwrap_or_default().ranges;
        let (mut total, mut ranges) = (0, Vec::new());
        reader.for_each_block_range(after, limit, &self.0.topics, |mut range| {
            while counted.front().is_some_and(|counted| counted.last < range.first) {
                counted.pop_front();
            }
            if counted.front().is_some_and(|counted| counted.first <= range.first) {
                range.size = 0;
            }
            total += range.size;
            ranges.push(range);
            ControlFlow::Continue(())
        });
        let part_size = part_size.min(total / part_count_min.max(1)).max(total / PARTS_MAX).max(1);
        let mut parts: Vec<Part> = Vec::new();
        // Divided where the sum exceeds a multiple of the size. If one part is too large, the next
        // one is smaller, so there are not too few parts.
        let (mut size, mut is_full) = (0, true);
        for range in ranges {
            match parts.last_mut() {
                Some(part) if !is_full => {
                    part.bounds.limit = range.last;
                    part.size += range.size;
                }
                _ => parts.push(Part {
                    bounds: Bounds { after: Position::new(range.first.get() - 1), limit: range.last },
                    size: range.size,
                }),
            }
            let before = size;
            size += range.size;
            is_full = size / part_size > before / part_size;
        }
        parts
    }

    /// The last position of about `size` bytes of the log after `after`: at least one block, at
    /// most up to `limit`.
    pub fn limit_by_size(reader: &Reader, bounds: Bounds, size: u64) -> Position {
        let (mut end, mut left) = (bounds.limit, size);
        reader.for_each_block_range(bounds.after, bounds.limit, &quire_journal::AllTopics, |range| {
            end = range.last;
            left = left.saturating_sub(range.size);
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        end
    }

    /// Reads a range.
    ///
    /// # Errors
    /// [`ScanError::Removed`] when the log does not reach back to its beginning any more.
    pub fn scan(&self, reader: &Reader, bounds: Bounds) -> Result<Scan, ScanError> {
        Scan::new(self.clone(), reader, bounds, None)
    }

    /// Reads the messages of a range that have one of these positions.
    ///
    /// # Errors
    /// As [`Plan::scan`].
    pub fn scan_at(&self, reader: &Reader, bounds: Bounds, positions: Positions) -> Result<Scan, ScanError> {
        Scan::new(self.clone(), reader, bounds, Some(positions))
    }
}

impl Wanted {
    /// Whether every topic is wanted.
    pub fn is_everything(&self) -> bool {
        self.rule.is_none() && self.predicates.is_empty()
    }
}

impl TopicFilter for Wanted {
    fn wants(&self, topic: &str) -> bool {
        let is_named = match &self.rule {
            None => true,
            Some(Rule::Names(names)) => names.iter().any(|name| name == topic),
            Some(Rule::Pattern(pattern)) => pattern.matches(topic),
            Some(Rule::Prefix(prefix)) => topic.starts_with(prefix.as_str()),
            Some(Rule::Selector(selector)) => selector.matches(topic),
        };
        is_named && self.predicates.iter().all(|predicate| predicate.holds(Some(Value::Text(topic))))
    }
}

#[derive(Default)]
struct Compiler {
    fields: FieldPlan,
    column_count: usize,
}

impl Compiler {
    fn columns(&mut self, specs: &[ColumnSpec]) -> Result<Vec<Column>, SpecError> {
        self.column_count += specs.len();
        in_range("columns", self.column_count.max(1), COLUMNS_MAX)?;
        specs
            .iter()
            .map(|spec| {
                Ok(Column { name: spec.name.clone(), nullable: spec.nullable, content: self.content(spec)? })
            })
            .collect()
    }

    fn content(&mut self, spec: &ColumnSpec) -> Result<Content, SpecError> {
        Ok(match &spec.source {
            Source::Attribute(attribute) => Content::Attribute(*attribute),
            Source::Field { path, r#type } => Content::Field(self.path(&spec.name, path)?, *r#type),
            Source::Array { path, r#type } => Content::Array(self.path(&spec.name, path)?, *r#type),
            Source::Map { path, r#type } => Content::Map(self.path(&spec.name, path)?, *r#type),
            // No deeper than the JSON that it was read from, which has a bound.
            Source::Struct(columns) if columns.is_empty() => {
                let reason = format!("column {:?}: a struct without columns", spec.name);
                return Err(SpecError::Form { reason });
            }
            Source::Struct(columns) => Content::Struct(self.columns(columns)?),
            Source::Constant(text) => Content::Constant(text.clone()),
        })
    }

    fn path(&mut self, column: &str, text: &str) -> Result<FieldId, SpecError> {
        let field = self.fields.add(&check_path(column, text)?);
        in_range("fields", self.fields.len(), COLUMNS_MAX * PATH_STEP_COUNT_MAX)?;
        Ok(field)
    }
}

/// The steps of the path of a column.
///
/// # Errors
/// [`SpecError::Path`].
pub(crate) fn check_path(column: &str, text: &str) -> Result<Vec<Step>, SpecError> {
    let steps = path_of(text);
    let is_path = text.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_step));
    if !(is_path || is_odd_name(text)) || steps.len() > PATH_STEP_COUNT_MAX {
        return Err(SpecError::Path { column: column.to_owned(), path: text.to_owned() });
    }
    Ok(steps)
}

/// Whether the text is a name with any number of indexes, `legs[0]`.
fn is_step(text: &str) -> bool {
    let (name, indexes) = text.split_at(text.find('[').unwrap_or(text.len()));
    let is_index = |text: &str| {
        let digits = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        digits.is_some_and(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
    };
    !name.is_empty() && indexes.split_inclusive(']').all(is_index)
}

/// Whether the text is `[/name]`: one member at the root, with any characters in its name but `]`.
fn is_odd_name(text: &str) -> bool {
    let name = text.strip_prefix("[/").and_then(|rest| rest.strip_suffix(']'));
    name.is_some_and(|name| !name.is_empty() && !name.contains(']'))
}

fn in_range(key: &'static str, value: usize, limit: usize) -> Result<(), SpecError> {
    if (1..=limit).contains(&value) { Ok(()) } else { Err(SpecError::Range { key, value, limit }) }
}

/// The whole numbers for which a predicate can be true.
struct Between {
    lowest: i64,
    highest: i64,
}

impl Between {
    fn of(predicate: &Predicate) -> Option<Self> {
        let whole = |literal: &Literal| match literal {
            Literal::Int(value) => Some(*value),
            _ => None,
        };
        let values: Vec<i64> = predicate.values.iter().map(whole).collect::<Option<_>>()?;
        let (lowest, highest) = (*values.iter().min()?, *values.iter().max()?);
        let all = Between { lowest: i64::MIN, highest: i64::MAX };
        Some(match (predicate.operator, predicate.negated) {
            (Operator::In, false) => Between { lowest, highest },
            (Operator::Less, false) | (Operator::GreaterOrEqual, true) => {
                Between { highest: lowest.saturating_sub(1), ..all }
            }
            (Operator::LessOrEqual, false) | (Operator::Greater, true) => Between { highest: lowest, ..all },
            (Operator::Greater, false) | (Operator::LessOrEqual, true) => {
                Between { lowest: highest.saturating_add(1), ..all }
            }
            (Operator::GreaterOrEqual, false) | (Operator::Less, true) => Between { lowest: highest, ..all },
            _ => return None,
        })
    }
}

/// The first and the last position of the bookmarks that a predicate names; `None` when it names
/// none, or a text that is not a bookmark.
fn bookmarks(predicate: &Predicate, reader: &Reader) -> Result<Option<(Position, Position)>, JournalError> {
    if predicate.operator != Operator::In || predicate.negated {
        return Ok(None);
    }
    let mut found: Option<(Position, Position)> = None;
    for literal in &predicate.values {
        let Literal::Text(text) = literal else { return Ok(None) };
        let Ok(bookmark) = text.parse() else { return Ok(None) };
        let Some(at) = reader.find(bookmark)? else { continue };
        found = Some(found.map_or((at, at), |(first, last)| (first.min(at), last.max(at))));
    }
    Ok(found)
}
