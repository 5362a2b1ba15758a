//! The spec of a scan, as JSON from Python, which is read strictly.

use quire_expression::filter::FilterError;
use quire_expression::message_type::PATH_STEP_COUNT_MAX;
use quire_expression::topic::TopicError;
use serde::{Deserialize, Serialize};

/// The rows after which a batch ends. Its fixed cost is then small per row, and it fits into a Java
/// heap of any size.
const BATCH_ROWS: usize = 10_000;

/// Bytes of data after which a batch ends.
const BATCH_BYTES: usize = 4 << 20;

/// The largest limit of a batch. A batch may exceed its limit by one batch of the log or one
/// message, and must still fit 32-bit offsets.
pub(crate) const BATCH_BYTES_MAX: usize = 256 << 20;

/// The most columns and predicates of one scan together: far more than a table has. It limits the
/// memory per row.
pub(crate) const COLUMNS_MAX: usize = 4096;

/// The columns and the records that a scan returns.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ScanSpec {
    /// The columns in their order.
    pub columns: Vec<ColumnSpec>,
    /// Returns values of functions of all rows, instead of rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregate: Option<AggregateSpec>,
    /// Only these topics; `None` = all.
    #[serde(default)]
    pub topics: Option<Topics>,
    /// A content filter (`docs/filters.md`).
    #[serde(default)]
    pub filter: Option<String>,
    /// Conditions that are all true for every returned row. Parts of the log in which one of them
    /// cannot be true are not read.
    #[serde(default)]
    pub predicates: Vec<PredicateSpec>,
    /// Includes the changes of messages of queues: one row for every run of neighbors with the same
    /// change.
    #[serde(default)]
    pub includes_events: bool,
    /// Includes the deletes of last-value topics: one row for every deleted key.
    #[serde(default)]
    pub includes_deletes: bool,
    /// Damaged and missing records are left out and reported, not an error.
    #[serde(default)]
    pub skips_damage: bool,
    /// Rows of a batch, about.
    #[serde(default = "batch_rows")]
    pub batch_rows: usize,
    /// Bytes of data of a batch, about.
    #[serde(default = "batch_bytes")]
    pub batch_bytes: usize,
    /// The current time for functions of the filter, in nanoseconds since 1970.
    #[serde(default)]
    pub now_ns: u64,
}

/// Functions of all rows. Every scan returns their values for its part of the log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AggregateSpec {
    /// One row for each topic, with the topic as its first column. Otherwise exactly one row, also
    /// without records.
    pub by_topic: bool,
    /// The other columns.
    pub functions: Vec<Function>,
}

/// A function of rows. NULL counts neither as the least nor as the greatest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Function {
    /// The number of rows.
    Count,
    /// The least value of an attribute that is a number or a time.
    Min(Attribute),
    /// The greatest one.
    Max(Attribute),
}

/// A column.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ColumnSpec {
    /// Its name.
    pub name: String,
    /// Whether it may be NULL. If not, a row with NULL is an error.
    #[serde(default = "nullable")]
    pub nullable: bool,
    /// The source of its values.
    #[serde(flatten)]
    pub source: Source,
}

/// The source of the values of a column.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The record itself.
    Attribute(Attribute),
    /// A field of its data.
    Field {
        /// Its path as filters write it: `/order/price`, `/legs[0]/price`, or `[/a/b]` for a member
        /// of the root with any characters in its name but `]`.
        path: String,
        /// The type of the column.
        r#type: FieldType,
    },
    /// An array in its data. Any other value is NULL, and so is an element of another type.
    Array {
        /// Its path.
        path: String,
        /// The type of the elements.
        r#type: FieldType,
    },
    /// The members of an object of its data by their names. Any other value is NULL, and so is a
    /// member of another type.
    Map {
        /// Its path.
        path: String,
        /// The type of the values.
        r#type: FieldType,
    },
    /// Several columns as one.
    Struct(Vec<ColumnSpec>),
    /// The same text in every row.
    Constant(String),
}

fn nullable() -> bool {
    true
}

/// A property that every record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribute {
    /// Its position in this log.
    Position,
    /// Its bookmark.
    Bookmark,
    /// When this instance received it, in microseconds.
    Timestamp,
    /// The same in nanoseconds.
    TimestampNs,
    /// Where it was published.
    Topic,
    /// The id of its publisher.
    Publisher,
    /// Its number among those of its publisher.
    Sequence,
    /// `publish`, or the kind of the event.
    Kind,
    /// As published.
    CorrelationId,
    /// Its key in a last-value topic, or the key that a delete removed.
    SowKey,
    /// As published: names and values as bytes. Texts are UTF-8. NULL when there are none.
    Headers,
    /// `json`, `binary`.
    MessageType,
    /// The message as text; NULL when it is not UTF-8.
    Data,
    /// The message as bytes.
    DataBinary,
    /// The message, which is JSON, as a variant of Spark: a struct of `value` and `metadata`. NULL
    /// when Spark makes no variant of it.
    DataVariant,
    /// For an event: its first message.
    FirstPosition,
    /// For an event: its last message.
    LastPosition,
    /// For an expiry: the number of deliveries of the message.
    Deliveries,
    /// For an expiry or a cancel: the number of cancels of the message.
    Cancels,
    /// For an expiry: why, separated by commas. For the end of a lease: how.
    Reasons,
    /// For a delivery and the end of a lease: the client name of the consumer.
    Consumer,
}

/// The type of a column from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldType {
    /// `true` or `false`.
    Boolean,
    /// 8 bits.
    Byte,
    /// 16 bits.
    Short,
    /// 32 bits.
    Int,
    /// 64 bits.
    Long,
    /// 32 bits.
    Float,
    /// 64 bits.
    Double,
    /// Text.
    String,
    /// Microseconds since 1970, from ISO 8601 text or from seconds.
    Timestamp,
    /// Days since 1970, from ISO 8601 text.
    Date,
}

impl FieldType {
    /// Its name in a spec.
    pub const fn name(self) -> &'static str {
        match self {
            FieldType::Boolean => "boolean",
            FieldType::Byte => "byte",
            FieldType::Short => "short",
            FieldType::Int => "int",
            FieldType::Long => "long",
            FieldType::Float => "float",
            FieldType::Double => "double",
            FieldType::String => "string",
            FieldType::Timestamp => "timestamp",
            FieldType::Date => "date",
        }
    }
}

/// Which topics.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topics {
    /// Exactly these.
    Names(Vec<String>),
    /// All topics in which the regular expression is found.
    Pattern(String),
    /// All topics with this prefix.
    Prefix(String),
    /// As in subscriptions: exactly this topic, or a pattern when it looks like one.
    Selector(String),
}

/// A condition on one value.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PredicateSpec {
    /// The value.
    pub source: Source,
    /// The comparison.
    pub operator: Operator,
    /// The values to compare with.
    #[serde(default)]
    pub values: Vec<Literal>,
    /// The comparison is negated.
    #[serde(default)]
    pub negated: bool,
}

/// A comparison with a value. A comparison with NULL is not true, and neither is its negation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operator {
    /// Is one of the values.
    In,
    /// Is less.
    Less,
    /// Is less or equal.
    LessOrEqual,
    /// Is greater.
    Greater,
    /// Is greater or equal.
    GreaterOrEqual,
    /// Is NULL.
    IsNull,
    /// Text with this prefix.
    StartsWith,
    /// Text with this suffix.
    EndsWith,
    /// Text that contains it.
    Contains,
}

/// A constant.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Literal {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number; of a timestamp microseconds, of a date days.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
}

/// Why a spec is not valid. The caller has to correct it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SpecError {
    /// It does not have the form of a spec.
    #[error("the scan cannot be read: {reason}")]
    Form {
        /// The mistake and its place.
        reason: String,
    },
    /// The content filter does not parse.
    #[error("filter: {0}")]
    Filter(#[from] FilterError),
    /// The name is not a valid topic, or its pattern does not compile.
    #[error("topics: {0}")]
    Topic(#[from] TopicError),
    /// The path of a column is not the name of a field.
    #[error(
        "column {column:?}: {path:?} is no path: expected something like /order/price or /legs[0]/price, at most {PATH_STEP_COUNT_MAX} steps, or [/a/b] for a member named a/b"
    )]
    Path {
        /// The column.
        column: String,
        /// The path as given.
        path: String,
    },
    /// The scan has no function of this attribute.
    #[error("{attribute:?}: the least and the greatest are known of numbers and times of records only")]
    Function {
        /// The attribute.
        attribute: Attribute,
    },
    /// A condition does not fit the type of its value.
    #[error("a condition of the scan: {reason}")]
    Predicate {
        /// What is wrong.
        reason: String,
    },
    /// A number is out of its range.
    #[error("{key}: {value} is not between 1 and {limit}")]
    Range {
        /// Which.
        key: &'static str,
        /// The value as given.
        value: usize,
        /// The highest valid value.
        limit: usize,
    },
}

impl ScanSpec {
    /// Reads a spec.
    ///
    /// # Errors
    /// [`SpecError::Form`].
    pub fn from_json(text: &str) -> Result<Self, SpecError> {
        serde_json::from_str(text).map_err(|error| SpecError::Form { reason: error.to_string() })
    }
}

fn batch_rows() -> usize {
    BATCH_ROWS
}

fn batch_bytes() -> usize {
    BATCH_BYTES
}
