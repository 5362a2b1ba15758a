//! The columns of a plan: each has its Arrow type and the source of its value.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields};

use quire_expression::message_type::FieldId;

use crate::field::timestamp_type;
use crate::predicate::Kind;
use crate::spec::{Attribute, FieldType};
use crate::variant::variant_fields;

/// A column of a compiled plan.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub name: String,
    pub nullable: bool,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    Attribute(Attribute),
    Field(FieldId, FieldType),
    Array(FieldId, FieldType),
    Map(FieldId, FieldType),
    Struct(Vec<Column>),
    Constant(String),
}

impl Column {
    pub fn data_type(&self) -> DataType {
        match &self.content {
            Content::Attribute(attribute) => attribute.data_type(),
            Content::Field(_, field) => field.data_type(),
            Content::Array(_, element) => DataType::List(element_field(*element)),
            Content::Map(_, value) => map_type(map_fields(value.data_type())),
            Content::Struct(columns) => DataType::Struct(Column::fields(columns)),
            Content::Constant(_) => DataType::Utf8,
        }
    }

    pub fn fields(columns: &[Column]) -> Fields {
        columns.iter().map(|column| Field::new(&column.name, column.data_type(), column.nullable)).collect()
    }
}

/// An element of an array, as Spark calls it.
pub(crate) fn element_field(element: FieldType) -> FieldRef {
    Arc::new(Field::new("element", element.data_type(), true))
}

/// The key and the value of a map, as Spark names them.
pub(crate) fn map_fields(value: DataType) -> Fields {
    vec![Field::new("key", DataType::Utf8, false), Field::new("value", value, true)].into()
}

pub(crate) fn map_type(parts: Fields) -> DataType {
    DataType::Map(entries_field(parts), false)
}

pub(crate) fn headers_type() -> DataType {
    map_type(map_fields(DataType::Binary))
}

/// An entry of a map.
pub(crate) fn entries_field(parts: Fields) -> FieldRef {
    Arc::new(Field::new("entries", DataType::Struct(parts), false))
}

impl Attribute {
    /// The kind of value that a condition compares; `None` for an attribute without a value that
    /// can be compared.
    pub(crate) fn kind(self) -> Option<Kind> {
        match self.data_type() {
            DataType::Int64 | DataType::Int32 | DataType::Timestamp(..) => Some(Kind::Whole),
            DataType::Utf8 => Some(Kind::Text),
            _ => None,
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Attribute::Position | Attribute::TimestampNs | Attribute::Sequence => DataType::Int64,
            Attribute::Timestamp => timestamp_type(),
            Attribute::FirstPosition | Attribute::LastPosition => DataType::Int64,
            Attribute::Deliveries | Attribute::Cancels => DataType::Int32,
            Attribute::DataBinary => DataType::Binary,
            Attribute::DataVariant => DataType::Struct(variant_fields()),
            Attribute::Headers => headers_type(),
            Attribute::Bookmark
            | Attribute::Topic
            | Attribute::Publisher
            | Attribute::Kind
            | Attribute::CorrelationId
            | Attribute::SowKey
            | Attribute::MessageType
            | Attribute::Data
            | Attribute::Reasons
            | Attribute::Consumer => DataType::Utf8,
        }
    }
}
