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
use super::join::split_name;
use super::node::Node;
use super::parse::{Parsed, Projected, parse_projection, path_of};
use super::{Expression, FilterError, FilterOptions, JoinedTopic, MessageContext, TopicField};
use crate::message_type::{
    Arena, AssignError, FieldId, FieldPlan, Fields, Malformed, MessageType, PATH_STEP_COUNT_MAX, Step,
    Unpacking, Value, assign, expected_path, pack,
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
    /// The messages that it reads: one, or one of each topic of a join.
    sources: Vec<Source>,
    /// The topics of the messages, when there are several.
    topics: Option<Arc<[JoinedTopic]>>,
    /// The fields of all messages.
    field_count: usize,
    grouping: Vec<Place>,
    /// The fields of `grouping` among those of all messages.
    groups: Vec<FieldId>,
    /// Fields by which topics are joined.
    keys: Vec<Place>,
    /// There are neither groups nor aggregates. So each message, or each combination of joined
    /// messages, makes a record.
    is_ungrouped: bool,
    destinations: Fields,
    paths: Vec<Vec<Step>>,
    /// The destinations of the entries that are only a field of `grouping`, as written.
    shown: Vec<Box<str>>,
}

/// The fields of one message.
#[derive(Debug, Default)]
struct Source {
    plan: FieldPlan,
    /// The place of its values among those of all messages.
    offset: usize,
    /// The fields that expressions read, each once.
    read: Vec<FieldId>,
}

/// A field of one of the messages.
#[derive(Clone, Copy, Debug)]
struct Place {
    source: usize,
    field: FieldId,
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
        Projection::parse_joined(projection, grouping, message_type, options, &[])
    }

    /// As [`parse`](Self::parse), for the topics of [`FilterOptions::joined`]. `keys` are the
    /// fields by which they are joined. Without fields in `grouping` and without aggregates, each
    /// combination of messages makes a record.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn parse_joined<T: AsRef<str>>(
        projection: &[T],
        grouping: &[T],
        message_type: MessageType,
        options: &FilterOptions,
        keys: &[TopicField],
    ) -> Result<Self, AssignmentError> {
        let source_count = options.joined.as_ref().map_or(1, |topics| topics.len());
        let mut list = List {
            message_type,
            entries: Vec::new(),
            aggregates: Vec::new(),
            sources: std::iter::repeat_with(Source::default).take(source_count).collect(),
            topics: options.joined.clone(),
            field_count: 0,
            grouping: Vec::new(),
            groups: Vec::new(),
            keys: Vec::new(),
            is_ungrouped: false,
            destinations: Fields::default(),
            paths: Vec::new(),
            shown: Vec::new(),
        };
        list.keys = keys.iter().map(|key| list.place_of(&path_of(&key.name()))).collect();
        let mut groups = Vec::new();
        for (place, text) in grouping.iter().map(AsRef::as_ref).enumerate() {
            let path = list.group(place, text, options).map_err(|error| mistake(place, text, error))?;
            groups.push(path);
        }
        let mut all = Vec::new();
        for (place, text) in projection.iter().map(AsRef::as_ref).enumerate() {
            let projected = projected(place, text, options);
            all.push((text, projected.map_err(|error| mistake(place, text, error))?));
        }
        if all.is_empty() {
            return Err(mistake(0, "", FilterError::new(1, "at least one entry", "none")));
        }
        let has_aggregates = all.iter().any(|(_, projected)| !projected.aggregates.is_empty());
        list.is_ungrouped = list.topics.is_some() && grouping.is_empty() && !has_aggregates;
        let mut entries = Vec::new();
        for (place, (text, projected)) in all.into_iter().enumerate() {
            let entry = list.entry(place, text, projected, &mut groups);
            entries.push(entry.map_err(|error| mistake(place, text, error))?);
        }
        list.finish(entries);
        Ok(Projection(Arc::new(list)))
    }

    /// A text that is equal for two projections only when they have the same entries, also with the
    /// values of functions about the client.
    pub fn canonical(&self) -> String {
        let entries = self.0.entries.iter().map(|entry| &*entry.parsed.canonical);
        entries.collect::<Vec<_>>().join("\u{1}")
    }

    /// The kinds of the aggregates, in their order.
    pub fn kinds(&self) -> impl ExactSizeIterator<Item = &AggregateKind> {
        self.0.aggregates.iter().map(|aggregate| &aggregate.kind)
    }

    /// The number of fields of `grouping`.
    pub fn grouping_count(&self) -> usize {
        self.0.groups.len()
    }

    /// Whether each combination of joined messages makes a record.
    pub fn is_ungrouped(&self) -> bool {
        self.0.is_ungrouped
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

    /// For a join: appends to `out` the values of the fields of one message that expressions read,
    /// and returns the values of the keys of its topic, with their numbers. An unreadable message
    /// has only NULL, and the arena reports it.
    pub fn pack<'a>(
        &'a self,
        source: usize,
        message: &'a MessageContext<'a>,
        arena: &'a Arena,
        out: &mut Vec<u8>,
    ) -> impl Iterator<Item = (usize, Value<'a>)> {
        let Source { plan, read, .. } = &self.0.sources[source];
        let values = message.readable(arena, || message.message_type.read_bare(message.data, plan, arena));
        let value = move |field: FieldId| values.map_or(Value::Null, |values| values[field.index()]);
        read.iter().for_each(|field| pack(value(*field), out));
        let keys = self.0.keys.iter().enumerate().filter(move |(_, key)| key.source == source);
        keys.map(move |(number, key)| (number, value(key.field)))
    }

    /// For a join: as [`read`](Self::read), of the values that [`pack`](Self::pack) wrote for each
    /// topic. All fields of a topic without a message are NULL. `message` has no data.
    pub fn read_joined<'a>(
        &'a self,
        parts: impl Iterator<Item = Option<&'a [u8]>>,
        message: &'a MessageContext<'a>,
        arena: &'a Arena,
    ) -> Option<&'a [Value<'a>]> {
        message.readable(arena, || self.0.read_parts(parts, message, arena))
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

/// Whether a text is only the name of a field with its topic.
fn is_field_of_topic(text: &str, name: &str) -> bool {
    split_name(name).is_some() && text.starts_with('[') && text.ends_with(name)
}

fn mistake(place: usize, text: &str, error: FilterError) -> AssignmentError {
    AssignmentError { number: place + 1, text: text.into(), error }
}

/// An entry before the number of fields is known.
struct Draft {
    parsed: Parsed,
    aggregates: Vec<super::parse::Aggregate>,
    /// The field of each name; `None`: the result of an aggregate.
    fields: Vec<Option<Place>>,
}

fn projected(place: usize, text: &str, options: &FilterOptions) -> Result<Projected, FilterError> {
    if place == ASSIGNMENT_COUNT_MAX {
        let expected = format!("at most {ASSIGNMENT_COUNT_MAX} entries");
        return Err(FilterError::at(text, 0, expected, "another one"));
    }
    parse_projection(text, options)
}

impl List {
    /// The place of a field. From now on, it is read.
    fn place_of(&mut self, path: &[Step]) -> Place {
        let Some(topics) = &self.topics else {
            return Place { source: 0, field: self.sources[0].plan.add(path) };
        };
        let of_topic = |step: &Step, topic: &JoinedTopic| match step {
            Step::Name(name) => **name == *format!("[{}]", topic.topic).as_bytes(),
            Step::Index(_) => false,
        };
        // The parser has checked that the topic is one of these.
        let source = path.first().and_then(|step| topics.iter().position(|topic| of_topic(step, topic)));
        let source = source.unwrap_or_default();
        Place { source, field: self.sources[source].plan.add(path.get(1..).unwrap_or_default()) }
    }

    /// As [`place_of`](Self::place_of), for a field that expressions read.
    fn read_place(&mut self, path: &[Step]) -> Place {
        let place = self.place_of(path);
        let read = &mut self.sources[place.source].read;
        if !read.contains(&place.field) {
            read.push(place.field);
        }
        place
    }

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
        let names = &expression.parsed().names;
        // A hidden field is NULL in every message, so all messages are in one group.
        let path = match (expression.path(), &**names) {
            (Some(path), _) => path,
            (None, [name]) if is_field_of_topic(text, name) => path_of(name),
            (None, []) if text.starts_with(['/', '[']) => path_of(text),
            (None, _) => return Err(FilterError::at(text, 0, "only a field like /symbol", "an expression")),
        };
        let field = self.read_place(if names.is_empty() { &[] } else { &path });
        self.grouping.push(field);
        Ok(path)
    }

    fn entry(
        &mut self,
        place: usize,
        text: &str,
        projected: Projected,
        groups: &mut Vec<Vec<Step>>,
    ) -> Result<Draft, FilterError> {
        let Projected { parsed, aggregates, plain, destination } = projected;
        for (number, start) in plain {
            let name = &parsed.names[number as usize];
            let path = path_of(name);
            if groups.contains(&path) {
                continue;
            }
            if !self.is_ungrouped {
                return Err(FilterError::at(text, start, "an aggregate, or a field of grouping", &**name));
            }
            let field = self.read_place(&path);
            self.grouping.push(field);
            groups.push(path);
        }
        let path = path_of(&destination.name);
        if matches!(parsed.root, Node::Field(_)) && aggregates.is_empty() && !self.is_ungrouped {
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
        let fields = parsed.names.iter();
        let fields = fields.map(|name| (!name.is_empty()).then(|| self.read_place(&path_of(name)))).collect();
        Ok(Draft { parsed, aggregates, fields })
    }

    /// The results of aggregates follow the fields, whose number is known now.
    fn finish(&mut self, drafts: Vec<Draft>) {
        for source in &mut self.sources {
            source.offset = self.field_count;
            self.field_count += source.plan.len();
        }
        let sources = &self.sources;
        let id_of = |place: &Place| place.field.after(sources[place.source].offset);
        self.groups = self.grouping.iter().map(id_of).collect();
        for Draft { parsed, aggregates, fields } in drafts {
            let first = self.aggregates.len();
            let place_of = |(number, field): (usize, &Option<Place>)| match field {
                Some(place) => id_of(place),
                None => {
                    let place = aggregates.iter().position(|each| each.number as usize == number);
                    FieldPlan::ROOT.after(self.field_count + first + place.unwrap_or_default())
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
        let values = message.message_type.read_bare(message.data, &self.sources[0].plan, arena)?;
        self.evaluate(values, message, arena)
    }

    fn read_parts<'a>(
        &'a self,
        parts: impl Iterator<Item = Option<&'a [u8]>>,
        message: &'a MessageContext<'a>,
        arena: &'a Arena,
    ) -> Result<&'a [Value<'a>], Malformed> {
        let values = arena.nulls(self.field_count)?;
        for (source, part) in self.sources.iter().zip(parts) {
            let Some(part) = part else { continue };
            let mut unpacking = Unpacking(part);
            for field in &source.read {
                values[source.offset + field.index()] = unpacking.next(arena)?;
            }
        }
        self.evaluate(values, message, arena)
    }

    /// The values of `grouping`, and those that the aggregates get.
    fn evaluate<'a>(
        &'a self,
        values: &'a [Value<'a>],
        message: &'a MessageContext<'a>,
        arena: &'a Arena,
    ) -> Result<&'a [Value<'a>], Malformed> {
        let result = arena.nulls(self.groups.len() + self.aggregates.len())?;
        let (grouping, arguments) = result.split_at_mut(self.groups.len());
        for (value, field) in grouping.iter_mut().zip(&self.groups) {
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
        let all = arena.nulls(self.field_count + self.aggregates.len()).map_err(AssignError::Malformed)?;
        for (field, value) in self.groups.iter().zip(grouping) {
            all[field.index()] = value.value();
        }
        for (place, value) in all[self.field_count..].iter_mut().zip(results) {
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
