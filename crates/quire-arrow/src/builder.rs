//! Rows on their way into the arrays of a batch.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, Date32Builder, Float32Builder, Float64Builder, Int8Builder, Int16Builder,
    Int32Builder, Int64Builder, StringBuilder, TimestampMicrosecondBuilder,
};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, StructArray};
use arrow_schema::ArrowError;
use quire_core::message_type::{MessageType, Value as Read};
use quire_journal::{PublisherId, Record, RecordKind};

use crate::column::{Column, Content};
use crate::event::Event;
use crate::field::Value;
use crate::plan::Compiled;
use crate::spec::{Attribute, FieldType};

/// A record that becomes a row.
pub(crate) struct Row<'a> {
    pub record: &'a Record<'a>,
    pub texts: &'a Texts,
    /// What was read from the data, when it could be.
    pub fields: Option<&'a [Read<'a>]>,
    /// What the row is about when it is not the record as a whole.
    pub event: Option<&'a Event>,
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
    pub fn set(&mut self, record: &Record<'_>) {
        if self.publisher != record.publisher || self.bookmark.is_empty() {
            self.publisher = record.publisher;
            self.bookmark.clear();
            // Writing to a string cannot fail.
            let _ = write!(self.bookmark, "{}", record.publisher);
            self.publisher_size = self.bookmark.len();
        }
        self.bookmark.truncate(self.publisher_size);
        self.bookmark.push('|');
        self.bookmark.push_str(itoa::Buffer::new().format(record.sequence));
        self.bookmark.push('|');
    }

    fn bookmark(&self) -> &str {
        &self.bookmark
    }

    fn publisher(&self) -> &str {
        &self.bookmark[..self.publisher_size]
    }
}

/// How the kind of a record is called in its column.
fn kind_name(kind: RecordKind) -> &'static str {
    match kind {
        RecordKind::Publish => "publish",
        RecordKind::Acknowledge => "acknowledge",
        RecordKind::Lease => "lease",
    }
}

/// The value of an attribute; `None` for NULL, and for what has no value that is compared.
pub(crate) fn attribute_value<'a>(
    attribute: Attribute,
    record: &Record<'a>,
    texts: &'a Texts,
    event: Option<&'a Event>,
) -> Option<Value<'a>> {
    attribute_number(attribute, record, event)
        .map(Value::Int)
        .or_else(|| attribute_text(attribute, record, texts, event).map(Value::Text))
}

/// The value of an attribute that is a number; of any other `None`.
#[inline]
fn attribute_number(attribute: Attribute, record: &Record<'_>, event: Option<&Event>) -> Option<i64> {
    // What a record of leases tells was before it was written.
    let time = || event.and_then(|event| event.time).unwrap_or(record.timestamp);
    match attribute {
        Attribute::Position => Some(record.position.get() as i64),
        Attribute::Timestamp => Some((time().as_ns() / 1000) as i64),
        Attribute::TimestampNs => i64::try_from(time().as_ns()).ok(),
        Attribute::Sequence => i64::try_from(record.sequence).ok(),
        Attribute::FirstPosition => Some(event?.first.get() as i64),
        Attribute::LastPosition => Some(event?.last.get() as i64),
        Attribute::Deliveries => event?.deliveries.map(Into::into),
        Attribute::Cancels => event?.cancels.map(Into::into),
        _ => None,
    }
}

/// The value of an attribute that is text; of any other `None`.
#[inline]
fn attribute_text<'a>(
    attribute: Attribute,
    record: &Record<'a>,
    texts: &'a Texts,
    event: Option<&'a Event>,
) -> Option<&'a str> {
    match attribute {
        Attribute::Bookmark => Some(texts.bookmark()),
        Attribute::Topic => Some(record.topic),
        Attribute::Publisher => Some(texts.publisher()),
        Attribute::Kind => Some(event.map_or(kind_name(record.kind), |event| event.kind)),
        Attribute::Reasons => event?.reasons.as_deref(),
        Attribute::Consumer => event?.consumer.as_deref(),
        // The data of an event is for the queue.
        Attribute::Data if event.is_some() => None,
        Attribute::Data => std::str::from_utf8(record.data).ok(),
        Attribute::CorrelationId if record.correlation_id.is_empty() => None,
        Attribute::CorrelationId => std::str::from_utf8(record.correlation_id).ok(),
        Attribute::MessageType => MessageType::from_code(record.message_type).map(MessageType::name),
        _ => None,
    }
}

/// The rows of the batch that is being built.
pub(crate) struct Table {
    builders: Vec<Builder>,
    row_count: usize,
    /// Bytes of their data.
    size: usize,
    room: String,
}

impl Table {
    pub fn new(compiled: &Compiled) -> Self {
        let builders = compiled.columns.iter().map(Builder::new).collect();
        Table { builders, row_count: 0, size: 0, room: String::new() }
    }

    pub fn row_count(&self) -> usize {
        self.row_count
    }

    pub fn is_full(&self, compiled: &Compiled) -> bool {
        self.row_count >= compiled.batch_rows || self.size >= compiled.batch_bytes
    }

    pub fn append(&mut self, compiled: &Compiled, row: &Row<'_>) {
        self.row_count += 1;
        // Topics and what is made from numbers come on top, and are small beside a row of a table.
        self.size += row.record.data.len() + row.record.topic.len();
        for (builder, column) in self.builders.iter_mut().zip(&compiled.columns) {
            builder.append(&column.content, row, &mut self.room);
        }
    }

    /// The rows as a batch; the table is empty again.
    pub fn finish(&mut self, compiled: &Compiled) -> Result<RecordBatch, ArrowError> {
        let arrays = self.builders.iter_mut().map(|builder| builder.finish(self.row_count)).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.row_count));
        (self.row_count, self.size) = (0, 0);
        RecordBatch::try_new_with_options(compiled.schema.clone(), arrays, &options)
    }
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
    Struct(Vec<Builder>, arrow_schema::Fields),
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
                _ => Builder::Text(StringBuilder::new()),
            },
            Content::Constant(_) => Builder::Text(StringBuilder::new()),
            Content::Struct(columns) => {
                Builder::Struct(columns.iter().map(Builder::new).collect(), Column::fields(columns))
            }
            Content::Field(_, kind) => match kind {
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
            },
        }
    }

    fn timestamp() -> Self {
        Builder::Timestamp(TimestampMicrosecondBuilder::new().with_timezone("UTC"))
    }

    fn append(&mut self, content: &Content, row: &Row<'_>, room: &mut String) {
        let value = match (content, &mut *self) {
            (Content::Struct(columns), Builder::Struct(builders, _)) => {
                for (builder, column) in builders.iter_mut().zip(columns) {
                    builder.append(&column.content, row, room);
                }
                return;
            }
            (Content::Attribute(Attribute::DataBinary), Builder::Bytes(bytes)) => {
                return bytes.append_option(row.event.is_none().then_some(row.record.data));
            }
            // Most of what most scans build: without the detour through a value of any type.
            (Content::Attribute(attribute), Builder::Text(text)) => {
                return text.append_option(attribute_text(*attribute, row.record, row.texts, row.event));
            }
            (Content::Attribute(attribute), Builder::Long(long)) => {
                return long.append_option(attribute_number(*attribute, row.record, row.event));
            }
            (Content::Attribute(attribute), Builder::Timestamp(timestamp)) => {
                return timestamp.append_option(attribute_number(*attribute, row.record, row.event));
            }
            (Content::Attribute(attribute), _) => {
                attribute_value(*attribute, row.record, row.texts, row.event)
            }
            (Content::Constant(text), _) => Some(Value::Text(text)),
            (Content::Field(path, kind), _) => {
                let read = row.fields.and_then(|fields| fields.get(path.index()));
                read.and_then(|read| kind.convert(*read, room))
            }
            (Content::Struct(_), _) => None,
        };
        self.push(value);
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
            Builder::Struct(builders, _) => builders.iter_mut().for_each(|builder| builder.push(None)),
        }
    }

    fn finish(&mut self, row_count: usize) -> ArrayRef {
        match self {
            Builder::Boolean(builder) => Arc::new(builder.finish()),
            Builder::Byte(builder) => Arc::new(builder.finish()),
            Builder::Short(builder) => Arc::new(builder.finish()),
            Builder::Int(builder) => Arc::new(builder.finish()),
            Builder::Long(builder) => Arc::new(builder.finish()),
            Builder::Float(builder) => Arc::new(builder.finish()),
            Builder::Double(builder) => Arc::new(builder.finish()),
            Builder::Timestamp(builder) => Arc::new(builder.finish()),
            Builder::Date(builder) => Arc::new(builder.finish()),
            // The next batch will be about as large: room for it at once, instead of growing by copies.
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
            Builder::Struct(builders, fields) => {
                let arrays = builders.iter_mut().map(|builder| builder.finish(row_count)).collect();
                // The arrays were built from these fields and have one length.
                match StructArray::try_new(fields.clone(), arrays, None) {
                    Ok(array) => Arc::new(array),
                    Err(_) => Arc::new(StructArray::new_null(fields.clone(), row_count)),
                }
            }
        }
    }
}
