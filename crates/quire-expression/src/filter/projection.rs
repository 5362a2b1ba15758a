//! Projections: the records of groups, computed from the messages of each group
//! (docs/last-values.md, "Aggregation").
//!
//! A list of `expression AS /destination` is parsed once, with the fields that make the groups. An
//! expression may have aggregates. Outside of them it may have only the fields of `grouping`, which
//! are equal in all messages of a group.

use std::sync::Arc;

use super::aggregate::{AggregateKind, OwnedValue};
use super::assignments::{ASSIGNMENT_COUNT_MAX, AssignmentError};
use super::evaluate::Evaluation;
use super::node::Node;
use super::parse::{Parsed, Projected, parse_projection, path_of};
use super::{Expression, FilterError, FilterOptions, MessageContext};
use crate::message_type::{
    Arena, AssignError, FieldId, FieldPlan, Fields, Malformed, MessageType, PATH_STEP_COUNT_MAX, Step, Value,
    assign, expected_path,
};
use crate::unreadable::contained;

/// A parsed projection. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Projection(Arc<List>);

#[derive(Debug)]
struct List {
    /// Of the records of groups.
    message_type: MessageType,
    entries: Vec<Entry>,
    aggregates: Vec<Aggregate>,
    /// The fields of the messages.
    plan: FieldPlan,
    grouping: Vec<FieldId>,
    destinations: Fields,
    paths: Vec<Vec<Step>>,
    /// The destinations of the entries that are only a field of `grouping`, as written.
    shown: Vec<Box<str>>,
}

#[derive(Debug)]
struct Entry {
    parsed: Parsed,
    /// The fields of the expression. Results of aggregates follow the fields of the messages.
    fields: Box<[FieldId]>,
}

#[derive(Debug)]
struct Aggregate {
    kind: AggregateKind,
    argument: Node,
    /// The fields of the entry that has it.
    fields: Arc<[FieldId]>,
}

impl Projection {
    /// Parses the entries of `projection` and the fields of `grouping`. The records of groups are
    /// messages of `message_type`. Without fields, all messages are one group.
    ///
    /// # Errors
    /// [`AssignmentError`] for these mistakes: an expression with a mistake, a field outside of an
    /// aggregate that is not in `grouping`, an entry of `grouping` that is not a field, and no
    /// entry at all. The mistakes about destinations are those of
    /// [`Assignments`](super::Assignments).
    pub fn parse<T: AsRef<str>>(
        projection: &[T],
        grouping: &[T],
        message_type: MessageType,
        options: &FilterOptions,
    ) -> Result<Self, AssignmentError> {
        let mut list = List {
            message_type,
            entries: Vec::new(),
            aggregates: Vec::new(),
            plan: FieldPlan::default(),
            grouping: Vec::new(),
            destinations: Fields::default(),
            paths: Vec::new(),
            shown: Vec::new(),
        };
        let mut groups = Vec::new();
        for (place, text) in grouping.iter().map(AsRef::as_ref).enumerate() {
            let path = list.group(place, text, options).map_err(|error| mistake(place, text, error))?;
            groups.push(path);
        }
        let mut entries = Vec::new();
        for (place, text) in projection.iter().map(AsRef::as_ref).enumerate() {
            let entry = list.entry(place, text, &groups, options);
            entries.push(entry.map_err(|error| mistake(place, text, error))?);
        }
        if entries.is_empty() {
            return Err(mistake(0, "", FilterError::new(1, "at least one entry", "none")));
        }
        list.finish(entries);
        Ok(Projection(Arc::new(list)))
    }

    /// The kinds of the aggregates, in their order.
    pub fn kinds(&self) -> impl ExactSizeIterator<Item = &AggregateKind> {
        self.0.aggregates.iter().map(|aggregate| &aggregate.kind)
    }

    /// The number of fields of `grouping`.
    pub fn grouping_count(&self) -> usize {
        self.0.grouping.len()
    }

    /// The fields of a record that show fields of `grouping` unchanged, as written.
    pub fn shown_groups(&self) -> &[Box<str>] {
        &self.0.shown
    }

    /// The values of the fields of `grouping` in a message, and then the values that it gives to
    /// the aggregates. `None`: the message is unreadable, or that takes more effort than
    /// [`Arena::allow`] has left. The arena reports it.
    pub fn read<'a>(&'a self, message: &'a MessageContext<'a>, arena: &'a Arena) -> Option<&'a [Value<'a>]> {
        message.readable(arena, || match arena.spend(message.data.len() as u64) {
            true => self.0.read(message, arena),
            false => Err(Malformed::TooCostly),
        })
    }

    /// Writes into `out` the record of a group. `grouping` and `results` are its values of the
    /// fields of `grouping`, and the results of its aggregates. The earlier content of `out` is
    /// removed. The expressions may take the effort that [`Arena::allow`] has left.
    ///
    /// # Errors
    /// [`AssignError`]; `out` is empty then.
    pub fn write(
        &self,
        grouping: &[OwnedValue],
        results: &[OwnedValue],
        topic: &str,
        now: quire_types::Timestamp,
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) -> Result<(), AssignError> {
        out.clear();
        arena.reset();
        let message = MessageContext {
            message_type: self.0.message_type,
            data: b"",
            topic,
            key: None,
            bookmark: None,
            correlation_id: b"",
            headers: quire_types::Headers::default(),
            timestamp: now,
            now,
        };
        let result = contained(|| self.0.write(grouping, results, &message, arena, out))
            .unwrap_or_else(|reason| Err(AssignError::Malformed(reason)));
        if result.is_err() {
            out.clear();
        }
        result
    }
}

fn mistake(place: usize, text: &str, error: FilterError) -> AssignmentError {
    AssignmentError { number: place + 1, text: text.into(), error }
}

/// An entry before the number of fields is known.
struct Draft {
    parsed: Parsed,
    aggregates: Vec<super::parse::Aggregate>,
    /// The field of each name; `None`: the result of an aggregate.
    fields: Vec<Option<FieldId>>,
}

impl List {
    fn group(&mut self, place: usize, text: &str, options: &FilterOptions) -> Result<Vec<Step>, FilterError> {
        if place == ASSIGNMENT_COUNT_MAX {
            return Err(FilterError::at(
                text,
                0,
                format!("at most {ASSIGNMENT_COUNT_MAX} fields"),
                "another one",
            ));
        }
        let expression = Expression::parse(text, options)?;
        let names = expression.parsed().names.len();
        // A hidden field is NULL in every message, so all messages are in one group.
        let path = match expression.path() {
            Some(path) => path,
            None if names == 0 && text.starts_with(['/', '[']) => path_of(text),
            None => return Err(FilterError::at(text, 0, "only a field like /symbol", "an expression")),
        };
        let field = self.plan.add(if names == 0 { &[] } else { &path });
        self.grouping.push(field);
        Ok(path)
    }

    fn entry(
        &mut self,
        place: usize,
        text: &str,
        groups: &[Vec<Step>],
        options: &FilterOptions,
    ) -> Result<Draft, FilterError> {
        if place == ASSIGNMENT_COUNT_MAX {
            return Err(FilterError::at(
                text,
                0,
                format!("at most {ASSIGNMENT_COUNT_MAX} entries"),
                "another one",
            ));
        }
        let Projected { parsed, aggregates, plain, destination } = parse_projection(text, options)?;
        for (number, start) in plain {
            let name = &parsed.names[number as usize];
            if !groups.contains(&path_of(name)) {
                return Err(FilterError::at(text, start, "an aggregate, or a field of grouping", &**name));
            }
        }
        let path = path_of(&destination.name);
        if matches!(parsed.root, Node::Field(_)) && aggregates.is_empty() {
            self.shown.push(destination.name.clone());
        }
        let refused = |expected: &str| FilterError::at(text, destination.start, expected, &*destination.name);
        if path.len() > PATH_STEP_COUNT_MAX {
            return Err(refused(&format!("at most {PATH_STEP_COUNT_MAX} steps")));
        }
        if let Some(expected) = expected_path(self.message_type, &path) {
            return Err(refused(expected));
        }
        if !self.destinations.add(&path, place) {
            return Err(refused(
                "a field that is not, contains or belongs to the destination of another entry",
            ));
        }
        if self.message_type == MessageType::Xml && self.destinations.root_count() > 1 {
            return Err(refused("the root element of the other entries as the first step"));
        }
        self.paths.push(path);
        let fields =
            parsed.names.iter().map(|name| (!name.is_empty()).then(|| self.plan.add(&path_of(name))));
        let fields = fields.collect();
        Ok(Draft { parsed, aggregates, fields })
    }

    /// The results of aggregates follow the fields, whose number is known now.
    fn finish(&mut self, drafts: Vec<Draft>) {
        for Draft { parsed, aggregates, fields } in drafts {
            let first = self.aggregates.len();
            let place_of = |(number, field): (usize, &Option<FieldId>)| match field {
                Some(field) => *field,
                None => {
                    let place = aggregates.iter().position(|each| each.number as usize == number);
                    FieldPlan::ROOT.after(self.plan.len() + first + place.unwrap_or_default())
                }
            };
            let fields: Arc<[FieldId]> = fields.iter().enumerate().map(place_of).collect();
            self.aggregates.extend(aggregates.into_iter().map(|each| Aggregate {
                kind: each.kind,
                argument: each.argument,
                fields: fields.clone(),
            }));
            self.entries.push(Entry { parsed, fields: fields.iter().copied().collect() });
        }
    }

    fn read<'a>(
        &'a self,
        message: &'a MessageContext<'a>,
        arena: &'a Arena,
    ) -> Result<&'a [Value<'a>], Malformed> {
        let values = message.message_type.read_bare(message.data, &self.plan, arena)?;
        let result = arena.nulls(self.grouping.len() + self.aggregates.len())?;
        let (grouping, arguments) = result.split_at_mut(self.grouping.len());
        for (value, field) in grouping.iter_mut().zip(&self.grouping) {
            *value = values[field.index()];
        }
        for (value, aggregate) in arguments.iter_mut().zip(&self.aggregates) {
            let fields = &aggregate.fields;
            *value = Evaluation { values, fields, message, arena }.value(&aggregate.argument);
        }
        if arena.effort_left() == 0 {
            return Err(Malformed::TooCostly);
        }
        Ok(result)
    }

    fn write(
        &self,
        grouping: &[OwnedValue],
        results: &[OwnedValue],
        message: &MessageContext<'_>,
        arena: &Arena,
        out: &mut Vec<u8>,
    ) -> Result<(), AssignError> {
        let all = arena.nulls(self.plan.len() + self.aggregates.len()).map_err(AssignError::Malformed)?;
        for (field, value) in self.grouping.iter().zip(grouping) {
            all[field.index()] = value.value();
        }
        for (place, value) in all[self.plan.len()..].iter_mut().zip(results) {
            *place = value.value();
        }
        let values = arena.nulls(self.entries.len()).map_err(AssignError::Malformed)?;
        for (value, Entry { parsed, fields }) in values.iter_mut().zip(&self.entries) {
            *value = Evaluation { values: all, fields, message, arena }.value(&parsed.root);
        }
        if arena.effort_left() == 0 {
            return Err(AssignError::Malformed(Malformed::TooCostly));
        }
        let empty = empty_message(self.message_type, &self.paths);
        assign(self.message_type, &empty, &self.destinations, &self.paths, values, out)
    }
}

/// A message without fields.
fn empty_message(message_type: MessageType, paths: &[Vec<Step>]) -> Vec<u8> {
    match message_type {
        MessageType::Json => b"{}".to_vec(),
        MessageType::Msgpack => vec![0x80],
        MessageType::Bson => vec![5, 0, 0, 0, 0],
        MessageType::Xml => {
            let root = match paths.first().map(Vec::as_slice) {
                Some([Step::Name(name), ..]) => String::from_utf8_lossy(name).into_owned(),
                _ => String::new(),
            };
            format!("<{root}/>").into_bytes()
        }
        MessageType::Fix | MessageType::Nvfix | MessageType::Binary => Vec::new(),
    }
}
