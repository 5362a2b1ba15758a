//! Records of the journal as Arrow batches: for analytics, which do not read messages one by one.
//!
//! A [`ScanSpec`] lists the wanted columns and records. A column is an attribute of a record or a
//! typed field of its JSON. A [`Plan`] is the spec, checked and compiled. [`Plan::split`] divides a
//! range of the log into parts that can be read in parallel. It reads only the indexes.
//! [`Plan::scan`] reads one part. A [`Collector`] makes the same batches from messages of a server,
//! and [`infer`] finds the types of their fields. [`Messages`] are the other direction: rows that
//! are published. Unwanted records are dropped before a row is built, and blocks without a wanted
//! topic are not read.
//!
//! Every column has a type that Spark accepts without a conversion (`docs/spark.md`, "Columns").

mod aggregate;
mod builder;
mod collector;
mod column;
mod counted_ranges;
mod event;
mod field;
mod infer;
mod iso_time;
mod last_values;
mod messages;
mod plan;
mod predicate;
mod scan;
mod spec;
mod variant;

pub use collector::Collector;
pub use infer::{Inferred, infer, top_level_fields};
pub use iso_time::time_ns;
pub use last_values::{LastValues, Lifetimes, Positions, last_values};
pub use messages::{Messages, MessagesError};
pub use plan::{Bounds, Part, Plan};
pub use scan::{Scan, ScanError, ScanProgress, Skipped};
pub use spec::{
    AggregateSpec, Attribute, ColumnSpec, FieldType, Function, Literal, Operator, PredicateSpec, ScanSpec,
    Source, SpecError, Topics,
};
