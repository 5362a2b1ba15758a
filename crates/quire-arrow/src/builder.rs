//! Builds the arrays of a batch from rows.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, Date32Builder, Float32Builder, Float64Builder, Int8Builder, Int16Builder,
    Int32Builder, Int64Builder, StringBuilder, TimestampMicrosecondBuilder,
};
use arrow_array::{
    Array, ArrayRef, ListArray, MapArray, RecordBatch, RecordBatchOptions, StringArray, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{FieldRef, Fields};
use quire_expression::message_type::{Arena, FieldId, MessageType, Value as Read};
use quire_journal::{Headers, PublisherId, Record};

use crate::aggregate::Totals;
use crate::column::{Column, Content, element_field, entries_field, map_fields};
use crate::counted_ranges::Counted;
use crate::event::Event;
use crate::field::{self, Value};
use crate::plan::Compiled;
use crate::scan::ScanError;
use crate::spec::{Attribute, FieldType};
use crate::variant::VariantBuilder;

/// A record that becomes a row.
pub(crate) struct Row<'a> {
    pub record: Record<'a>,
    /// The values that were read from the data, when it could be read.
    pub fields: Option<&'a [Read<'a>]>,
    /// The event of the row, when the row is not about the whole record.
    pub event: Option<&'a Event>,
}

impl<'a> Row<'a> {
    /// The value of a field, which may be an array.
    fn field(&self, path: FieldId) -> Option<Read<'a>> {
        self.fields?.get(path.index()).copied()
    }
}

/// Texts that are made from numbers. The publisher seldom changes from one record to the next.
#[derive(Default)]
pub(crate) struct Texts {
    publisher: PublisherId,
    /// `<publisher>|<sequence>|`
    bookmark: String,
    publisher_size: usize,
}

impl Texts {
    fn bookmark(&mut self, record: &Record<'_>) -> &str {
        self.publisher(record.publisher);
        self.bookmark.truncate(self.publisher_size);
        self.bookmark.push('|');
        self.bookmark.push_str(itoa::Buffer::new().format(record.sequence));
        self.bookmark.push('|');
        &self.bookmark
    }

    fn publisher(&mut self, publisher: PublisherId) -> &str {
        if self.publisher != publisher || self.bookmark.is_empty() {
            self.publisher = publisher;
            self.bookmark.clear();
            // Writing to a string cannot fail.
            let _ = write!(self.bookmark, "{publisher}");
            self.publisher_size = self.bookmark.len();
        }
        &self.bookmark[..self.publisher_size]
    }
}

/// The value of an attribute; `None` for NULL, and for an attribute without a value that can be
/// compared.
pub(crate) fn attribute_value<'a>(
    attribute: Attribute,
    record: &Record<'a>,
    texts: &'a mut Texts,
    event: Option<&'a Event>,
) -> Option<Value<'a>> {
    attribute_number(attribute, record, event)
        .map(Value::Int)
        .or_else(|| attribute_text(attribute, record, texts, event).map(Value::Text))
}

/// The value of an attribute that is a number; `None` for any other attribute.
#[inline]
pub(crate) fn attribute_number(
    attribute: Attribute,
    record: &Record<'_>,
    event: Option<&Event>,
) -> Option<i64> {
    // An event in a lease record happened before the record was written.
    let time = || event.and_then(|event| event.time).unwrap_or(record.timestamp);
    match attribute {
        Attribute::Position => Some(record.position.get() as i64),
        Attribute::Timestamp => Some((time().as_ns() / 1000) as i64),
        Attribute::TimestampNs => i64::try_from(time().as_ns()).ok(),
        Attribute::Sequence => i64::try_from(record.sequence).ok(),
        Attribute::FirstPosition => Some(event?.messages?.0.get() as i64),
        Attribute::LastPosition => Some(event?.messages?.1.get() as i64),
        Attribute::Deliveries => event?.deliveries.map(Into::into),
        Attribute::Cancels => event?.cancels.map(Into::into),
        _ => None,
    }
}

/// The value of an attribute that is text; `None` for any other attribute.
#[inline]
fn attribute_text<'a>(
    attribute: Attribute,
    record: &Record<'a>,
    texts: &'a mut Texts,
    event: Option<&'a Event>,
) -> Option<&'a str> {
    match attribute {
        Attribute::Bookmark => Some(texts.bookmark(record)),
        Attribute::Topic => Some(record.topic),
        Attribute::Publisher => Some(texts.publisher(record.publisher)),
        Attribute::Kind => Some(event.map_or(record.kind.name(), |event| event.kind)),
        Attribute::Reasons => event?.reasons.as_deref(),
        Attribute::Consumer => event?.consumer.as_deref(),
        // The data of an event is for the queue or the last-value topic.
        Attribute::Data if event.is_some() => None,
        Attribute::Data => field::utf8(record.data),
        Attribute::CorrelationId if record.correlation_id.is_empty() => None,
        Attribute::CorrelationId => std::str::from_utf8(record.correlation_id).ok(),
        Attribute::SowKey => match event {
            Some(event) => event.key.as_deref(),
            None => record.key().and_then(|key| std::str::from_utf8(key).ok()),
        },
        Attribute::MessageType => MessageType::from_code(record.message_type).map(MessageType::name),
        _ => None,
    }
}

/// Whether the text attribute is the same for both, by a cheap comparison. A false result may be
/// wrong.
#[inline]
fn has_same_text(attribute: Attribute, row: &Row<'_>, next: &Row<'_>) -> bool {
    row.event.is_none()
        && next.event.is_none()
        && match attribute {
            Attribute::Topic => row.record.topic == next.record.topic,
            Attribute::Publisher => row.record.publisher == next.record.publisher,
            Attribute::Kind => row.record.kind == next.record.kind,
            Attribute::MessageType => row.record.message_type == next.record.message_type,
            Attribute::SowKey => row.record.key().is_none() && next.record.key().is_none(),
            Attribute::CorrelationId => {
                row.record.correlation_id.is_empty() && next.record.correlation_id.is_empty()
            }
            _ => false,
        }
}

/// The rows of the batch that is being built.
pub(crate) struct Table {
    builders: Vec<Builder>,
    row_count: usize,
    /// Bytes of their data.
    size: usize,
    room: Room,
    /// Instead of the columns: values of functions of all rows.
    totals: Option<Totals>,
}

/// The memory for values that are computed.
#[derive(Default)]
struct Room {
    texts: Texts,
    text: String,
    members: Arena,
}

impl Table {
    pub fn new(compiled: &Compiled) -> Self {
        let builders = compiled.columns.iter().map(Builder::new).collect();
        let totals = compiled.aggregate.as_ref().map(Totals::new);
        Table { builders, row_count: 0, size: 0, room: Room::default(), totals }
    }

    /// Rows of the batch that [`Table::finish`] would return.
    pub fn row_count(&self) -> usize {
        self.totals.as_ref().map_or(self.row_count, Totals::row_count)
    }

    /// Whether to finish the batch. A batch of functions waits for all rows.
    pub fn is_full(&self, compiled: &Compiled) -> bool {
        self.row_count >= compiled.batch_rows || self.size >= compiled.batch_bytes
    }

    /// Adds rows, column by column. Many rows in one call cost less per row.
    pub fn append(&mut self, compiled: &Compiled, rows: &[Row<'_>]) {
        if let Some(totals) = &mut self.totals {
            totals.append(rows);
            return;
        }
        self.row_count += rows.len();
        // Columns that are computed from numbers are not counted. They are small compared with a
        // row of a table.
        self.size += rows.iter().map(|row| size_of_row(&row.record)).sum::<usize>();
        for (builder, column) in self.builders.iter_mut().zip(&compiled.columns) {
            builder.append(&column.content, rows, &mut self.room);
        }
    }

    /// Adds messages that are not read, to functions of all rows.
    pub fn append_counted(&mut self, counted: &Counted) {
        if let Some(totals) = &mut self.totals {
            totals.append_counted(counted);
        }
    }

    /// The rows as a batch; the table is empty again.
    pub fn finish(&mut self, compiled: &Compiled) -> Result<RecordBatch, ScanError> {
        if let Some(totals) = &mut self.totals {
            return totals.finish(&compiled.schema);
        }
        let arrays = finish_all(&mut self.builders, compiled.schema.fields(), self.row_count)?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.row_count));
        (self.row_count, self.size) = (0, 0);
        Ok(RecordBatch::try_new_with_options(compiled.schema.clone(), arrays, &options)?)
    }
}

/// Bytes that the record adds to a row.
fn size_of_row(record: &Record<'_>) -> usize {
    record.data.len() + record.topic.len() + record.headers().as_bytes().len()
}

enum Builder {
    Boolean(BooleanBuilder),
    Byte(Int8Builder),
    Short(Int16Builder),
    Int(Int32Builder),
    Long(Int64Builder),
    Float(Float32Builder),
    Double(Float64Builder),
    Timestamp(TimestampMicrosecondBuilder),
    Date(Date32Builder),
    Text(StringBuilder),
    Bytes(BinaryBuilder),
    Headers(HeadersBuilder),
    Variant(Box<VariantBuilder>),
    Array(Box<ArrayBuilder>),
    Map(Box<MapBuilder>),
    Struct(Vec<Builder>, Fields),
}

impl Builder {
    fn new(column: &Column) -> Self {
        match &column.content {
            Content::Attribute(attribute) => match attribute {
                Attribute::Position
                | Attribute::TimestampNs
                | Attribute::Sequence
                | Attribute::FirstPosition
                | Attribute::LastPosition => Builder::Long(Int64Builder::new()),
                Attribute::Deliveries | Attribute::Cancels => Builder::Int(Int32Builder::new()),
                Attribute::Timestamp => Builder::timestamp(),
                Attribute::DataBinary => Builder::Bytes(BinaryBuilder::new()),
                Attribute::DataVariant => Builder::Variant(Box::new(VariantBuilder::new())),
                Attribute::Headers => Builder::Headers(HeadersBuilder::default()),
                _ => Builder::Text(StringBuilder::new()),
            },
            Content::Constant(_) => Builder::Text(StringBuilder::new()),
            Content::Struct(columns) => {
                Builder::Struct(columns.iter().map(Builder::new).collect(), Column::fields(columns))
            }
            Content::Field(_, kind) => Builder::of_field(*kind),
            Content::Array(_, kind) => Builder::Array(Box::new(ArrayBuilder::new(*kind))),
            Content::Map(_, kind) => Builder::Map(Box::new(MapBuilder::new(*kind))),
        }
    }

    fn of_field(kind: FieldType) -> Self {
        match kind {
            FieldType::Boolean => Builder::Boolean(BooleanBuilder::new()),
            FieldType::Byte => Builder::Byte(Int8Builder::new()),
            FieldType::Short => Builder::Short(Int16Builder::new()),
            FieldType::Int => Builder::Int(Int32Builder::new()),
            FieldType::Long => Builder::Long(Int64Builder::new()),
            FieldType::Float => Builder::Float(Float32Builder::new()),
            FieldType::Double => Builder::Double(Float64Builder::new()),
            FieldType::String => Builder::Text(StringBuilder::new()),
            FieldType::Timestamp => Builder::timestamp(),
            FieldType::Date => Builder::Date(Date32Builder::new()),
        }
    }

    fn timestamp() -> Self {
        Builder::Timestamp(TimestampMicrosecondBuilder::new().with_timezone("UTC"))
    }

    fn append(&mut self, content: &Content, rows: &[Row<'_>], room: &mut Room) {
        match (content, &mut *self) {
            (Content::Struct(columns), Builder::Struct(builders, _)) => {
                for (builder, column) in builders.iter_mut().zip(columns) {
                    builder.append(&column.content, rows, room);
                }
            }
            (Content::Array(path, _), Builder::Array(array)) => {
                for row in rows {
                    array.append(row.fields.and_then(|fields| fields.get(path.index())), &mut room.text);
                }
            }
            (Content::Map(path, _), Builder::Map(map)) => {
                for row in rows {
                    let read = row.fields.and_then(|fields| fields.get(path.index()));
                    map.append(read, row.record.message_type, room);
                }
            }
            (Content::Attribute(attribute), _) => self.append_attribute(*attribute, rows, room),
            (Content::Constant(text), _) => rows.iter().for_each(|_| self.push(Some(Value::Text(text)))),
            (Content::Field(path, kind), _) => self.append_field(*path, *kind, rows, room),
            (Content::Struct(_) | Content::Array(..) | Content::Map(..), _) => {
                rows.iter().for_each(|_| self.push(None))
            }
        }
    }

    fn append_attribute(&mut self, attribute: Attribute, rows: &[Row<'_>], room: &mut Room) {
        match (attribute, &mut *self) {
            (Attribute::Headers, Builder::Headers(builder)) => {
                for Row { record, event, .. } in rows {
                    // An event has no headers.
                    builder.append(if event.is_none() { record.headers() } else { Headers::NONE });
                }
            }
            (Attribute::DataVariant, Builder::Variant(variants)) => {
                rows.iter().for_each(|row| variants.append(row.event.is_none().then_some(row.record.data)));
            }
            (Attribute::DataBinary, Builder::Bytes(bytes)) => {
                rows.iter()
                    .for_each(|row| bytes.append_option(row.event.is_none().then_some(row.record.data)));
            }
            // The most frequent columns. They do not use a value of any type.
            (attribute, Builder::Text(text)) => {
                // Consecutive rows often have the same.
                for run in rows.chunk_by(|row, next| has_same_text(attribute, row, next)) {
                    let Row { record, event, .. } = &run[0];
                    match attribute_text(attribute, record, &mut room.texts, *event) {
                        Some(value) => text.append_value_n(value, run.len()),
                        None => text.append_nulls(run.len()),
                    }
                }
            }
            (attribute, Builder::Long(long)) => {
                rows.iter()
                    .for_each(|row| long.append_option(attribute_number(attribute, &row.record, row.event)));
            }
            (attribute, Builder::Timestamp(timestamp)) => {
                rows.iter().for_each(|row| {
                    timestamp.append_option(attribute_number(attribute, &row.record, row.event))
                });
            }
            (attribute, _) => {
                for Row { record, event, .. } in rows {
                    self.push(attribute_value(attribute, record, &mut room.texts, *event));
                }
            }
        }
    }

    fn append_field(&mut self, path: FieldId, kind: FieldType, rows: &[Row<'_>], room: &mut Room) {
        match (kind, &mut *self) {
            // The frequent types of fields. They do not use a value of any type, either.
            (FieldType::String, Builder::Text(text)) => {
                rows.iter().for_each(|row| {
                    match row.field(path).and_then(|read| field::text(read.scalar(), &mut room.text)) {
                        Some(value) => text.append_value(value),
                        None => text.append_null(),
                    }
                });
            }
            (FieldType::Double, Builder::Double(double)) => {
                rows.iter().for_each(|row| double.append_option(row.field(path).and_then(field::number)));
            }
            (FieldType::Long, Builder::Long(long)) => {
                rows.iter().for_each(|row| long.append_option(row.field(path).and_then(field::integer)));
            }
            (FieldType::Int, Builder::Int(int)) => {
                let value = |read| field::integer(read).and_then(|value| value.try_into().ok());
                rows.iter().for_each(|row| int.append_option(row.field(path).and_then(value)));
            }
            (kind, _) => {
                for row in rows {
                    let value = row.field(path).and_then(|read| kind.convert(read, &mut room.text));
                    self.push(value);
                }
            }
        }
    }

    /// Appends a value that has the type of the builder; anything else is NULL.
    fn push(&mut self, value: Option<Value<'_>>) {
        let whole = match value {
            Some(Value::Int(value)) => Some(value),
            _ => None,
        };
        let number = match value {
            Some(Value::Float(value)) => Some(value),
            _ => None,
        };
        match self {
            Builder::Boolean(builder) => builder.append_option(match value {
                Some(Value::Bool(value)) => Some(value),
                _ => None,
            }),
            Builder::Byte(builder) => builder.append_option(whole.and_then(|value| value.try_into().ok())),
            Builder::Short(builder) => builder.append_option(whole.and_then(|value| value.try_into().ok())),
            Builder::Int(builder) => builder.append_option(whole.and_then(|value| value.try_into().ok())),
            Builder::Date(builder) => builder.append_option(whole.and_then(|value| value.try_into().ok())),
            Builder::Long(builder) => builder.append_option(whole),
            Builder::Timestamp(builder) => builder.append_option(whole),
            Builder::Float(builder) => builder.append_option(number.map(|value| value as f32)),
            Builder::Double(builder) => builder.append_option(number),
            Builder::Text(builder) => builder.append_option(match value {
                Some(Value::Text(value)) => Some(value),
                _ => None,
            }),
            Builder::Bytes(builder) => builder.append_null(),
            Builder::Variant(builder) => builder.append(None),
            Builder::Headers(builder) => builder.append(Headers::NONE),
            Builder::Array(array) => array.counts.push(None),
            Builder::Map(map) => map.counts.push(None),
            Builder::Struct(builders, _) => builders.iter_mut().for_each(|builder| builder.push(None)),
        }
    }

    fn finish(&mut self, row_count: usize) -> Result<ArrayRef, ScanError> {
        Ok(match self {
            Builder::Boolean(builder) => Arc::new(builder.finish()),
            Builder::Byte(builder) => Arc::new(builder.finish()),
            Builder::Short(builder) => Arc::new(builder.finish()),
            Builder::Int(builder) => Arc::new(builder.finish()),
            Builder::Long(builder) => Arc::new(builder.finish()),
            Builder::Float(builder) => Arc::new(builder.finish()),
            Builder::Double(builder) => Arc::new(builder.finish()),
            Builder::Timestamp(builder) => Arc::new(builder.finish()),
            Builder::Date(builder) => Arc::new(builder.finish()),
            // The next batch will have about the same size, so room for it is reserved at once.
            Builder::Text(builder) => {
                let array = builder.finish();
                *builder = StringBuilder::with_capacity(row_count, array.value_data().len());
                Arc::new(array)
            }
            Builder::Bytes(builder) => {
                let array = builder.finish();
                *builder = BinaryBuilder::with_capacity(row_count, array.value_data().len());
                Arc::new(array)
            }
            Builder::Variant(builder) => Arc::new(builder.finish()?),
            Builder::Headers(builder) => Arc::new(builder.finish()?),
            Builder::Array(array) => Arc::new(array.finish()?),
            Builder::Map(map) => Arc::new(map.finish()?),
            Builder::Struct(builders, fields) => {
                let arrays = finish_all(builders, fields, row_count)?;
                Arc::new(StructArray::try_new(fields.clone(), arrays, None)?)
            }
        })
    }
}

/// A column of arrays.
struct ArrayBuilder {
    kind: FieldType,
    elements: Builder,
    /// Elements of each row; `None` for NULL.
    counts: Vec<Option<usize>>,
}

impl ArrayBuilder {
    fn new(kind: FieldType) -> Self {
        ArrayBuilder { kind, elements: Builder::of_field(kind), counts: Vec::new() }
    }

    fn append(&mut self, read: Option<&Read<'_>>, room: &mut String) {
        let Some(Read::Array(elements)) = read else {
            self.counts.push(None);
            return;
        };
        for element in *elements {
            // For an array in an array, not even the first element is used.
            let element = if matches!(element, Read::Array(_)) { Read::Null } else { *element };
            self.elements.push(self.kind.convert(element, room));
        }
        self.counts.push(Some(elements.len()));
    }

    fn finish(&mut self) -> Result<ListArray, ScanError> {
        let counts = std::mem::take(&mut self.counts);
        let present = counts.iter().map(Option::is_some).collect();
        let lengths = counts.iter().map(|count| count.unwrap_or(0));
        let elements = self.elements.finish(lengths.clone().sum())?;
        Ok(ListArray::try_new(
            element_field(self.kind),
            OffsetBuffer::from_lengths(lengths),
            elements,
            Some(present),
        )?)
    }
}

/// A column of maps.
struct MapBuilder {
    kind: FieldType,
    keys: StringBuilder,
    values: Builder,
    /// Entries of each row; `None` for NULL.
    counts: Vec<Option<usize>>,
}

impl MapBuilder {
    fn new(kind: FieldType) -> Self {
        let (keys, values) = (StringBuilder::new(), Builder::of_field(kind));
        MapBuilder { kind, keys, values, counts: Vec::new() }
    }

    fn append(&mut self, read: Option<&Read<'_>>, message_type: u8, room: &mut Room) {
        let Room { text, members, .. } = room;
        members.reset();
        let count = match read {
            Some(Read::Compound(raw)) => self.entries(raw, message_type, members, text),
            _ => None,
        };
        self.counts.push(count);
    }

    /// Appends the members of an object. Returns their number, or `None` when a name is not UTF-8.
    fn entries(&mut self, raw: &[u8], message_type: u8, arena: &Arena, room: &mut String) -> Option<usize> {
        let members = MessageType::from_code(message_type)?.members(raw, arena).ok()?;
        if members.iter().any(|(name, _)| field::utf8(name).is_none()) {
            return None;
        }
        for (name, value) in members {
            self.keys.append_option(field::utf8(name));
            // As in an array, an array has no value.
            let value = if matches!(value, Read::Array(_)) { Read::Null } else { *value };
            self.values.push(self.kind.convert(value, room));
        }
        Some(members.len())
    }

    fn finish(&mut self) -> Result<MapArray, ScanError> {
        let counts = std::mem::take(&mut self.counts);
        let values = self.values.finish(counts.iter().map(|count| count.unwrap_or(0)).sum())?;
        map_of(self.keys.finish(), values, &counts)
    }
}

fn map_of(keys: StringArray, values: ArrayRef, counts: &[Option<usize>]) -> Result<MapArray, ScanError> {
    let parts = map_fields(values.data_type().clone());
    let entries = StructArray::try_new(parts.clone(), vec![Arc::new(keys), values], None)?;
    let offsets = OffsetBuffer::from_lengths(counts.iter().map(|count| count.unwrap_or(0)));
    let present = counts.iter().map(Option::is_some).collect();
    Ok(MapArray::try_new(entries_field(parts), offsets, entries, Some(present), false)?)
}

/// A column of headers: a map in each row, NULL where there are none.
#[derive(Default)]
struct HeadersBuilder {
    names: StringBuilder,
    values: BinaryBuilder,
    /// Headers of each row.
    counts: Vec<Option<usize>>,
}

impl HeadersBuilder {
    fn append(&mut self, headers: Headers<'_>) {
        let mut count = 0;
        for (name, value) in headers.iter() {
            self.names.append_value(name);
            self.values.append_value(value.as_bytes());
            count += 1;
        }
        self.counts.push(Some(count).filter(|count| *count > 0));
    }

    fn finish(&mut self) -> Result<MapArray, ScanError> {
        let counts = std::mem::take(&mut self.counts);
        map_of(self.names.finish(), Arc::new(self.values.finish()), &counts)
    }
}

fn finish_all(
    builders: &mut [Builder],
    fields: &Fields,
    row_count: usize,
) -> Result<Vec<ArrayRef>, ScanError> {
    let finish = |(builder, field): (&mut Builder, &FieldRef)| {
        let array = builder.finish(row_count)?;
        match array.null_count() {
            null_count if null_count > 0 && !field.is_nullable() => {
                Err(ScanError::Null { column: field.name().clone(), null_count, row_count })
            }
            _ => Ok(array),
        }
    };
    builders.iter_mut().zip(fields).map(finish).collect()
}
