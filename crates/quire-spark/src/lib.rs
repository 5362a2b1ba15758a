//! The reads of Spark: options, columns, conditions, ranges, tasks, micro-batches and scans
//! (`docs/internals/spark-reader.md`).
//!
//! The sources in Python and on the JVM convert values and decide nothing. [`abi`] has the
//! functions for a library in another language.
#![expect(clippy::missing_errors_doc, reason = "every error is a `Failure` for the user of Spark")]

#[allow(unsafe_code)]
pub mod abi;
pub mod clock;
pub mod columns;
pub mod conditions;
pub mod failure;
pub mod frame;
pub mod journals;
pub mod options;
pub mod ranges;
pub mod read;
pub mod schema;
pub mod stream;
pub mod task;
mod text;
