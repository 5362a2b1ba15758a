//! The extension module `quire._quire`: registration only.

mod arrow;
mod arrow_range;
mod arrow_rows;
mod client;
mod embedded;
mod engine;
mod errors;
mod filter;
mod fork;
mod headers;
mod interpreter;
mod journal;
mod journal_reader;
mod json;
mod logging;
mod maintenance;
mod message;
mod options;
mod pace;
mod queue;
mod receipt;
mod rows;
mod spark;
mod store;
mod subscription;

use pyo3::prelude::*;

#[pymodule]
fn _quire(module: &Bound<'_, PyModule>) -> PyResult<()> {
    logging::install(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("BOOKMARKS_MAX", quire_broker::scan::BOOKMARKS_MAX)?;
    module.add("CORRELATION_SIZE_MAX", quire_command::CORRELATION_SIZE_MAX)?;
    module.add("DELAY_MAX_NS", quire_types::DELAY_MAX_NS)?;
    module.add("DOCUMENT_DEPTH_MAX", quire_expression::message_type::DOCUMENT_DEPTH_MAX)?;
    module.add("LINKS_ACCEPTED_MAX", quire_broker::LINKS_ACCEPTED_MAX)?;
    module.add_class::<client::Client>()?;
    module.add_class::<receipt::Receipt>()?;
    module.add_class::<store::BookmarkStore>()?;
    module.add_class::<subscription::Subscription>()?;
    module.add_class::<subscription::SubscriptionMessages>()?;
    module.add_class::<message::Message>()?;
    module.add_class::<embedded::Embedded>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<engine::Turn>()?;
    module.add_class::<filter::Filter>()?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<journal::Journal>()?;
    module.add_class::<maintenance::JournalMaintenance>()?;
    module.add_class::<journal_reader::JournalReader>()?;
    module.add_class::<journal_reader::Messages>()?;
    module.add_class::<journal_reader::Records>()?;
    module.add_class::<journal_reader::Record>()?;
    module.add_class::<pace::Pace>()?;
    module.add_class::<arrow::ArrowScan>()?;
    module.add_class::<arrow_range::ArrowRange>()?;
    module.add_class::<spark::SparkRead>()?;
    module.add_class::<spark::SparkStream>()?;
    module.add_class::<spark::SparkJournal>()?;
    module.add_class::<rows::Rows>()?;
    module.add_class::<rows::Fields>()?;
    module.add_function(wrap_pyfunction!(arrow::scan_journal, module)?)?;
    module.add_function(wrap_pyfunction!(spark::spark_columns, module)?)?;
    module.add_function(wrap_pyfunction!(spark::spark_frame, module)?)?;
    module.add_function(wrap_pyfunction!(spark::spark_read_options, module)?)?;
    module.add_function(wrap_pyfunction!(spark::spark_scan, module)?)?;
    module.add_function(wrap_pyfunction!(spark::spark_schema, module)?)?;
    module.add_function(wrap_pyfunction!(spark::spark_write_options, module)?)?;
    module.add_function(wrap_pyfunction!(embedded::local_socket_name, module)?)?;
    module.add_function(wrap_pyfunction!(embedded::runs_locally, module)?)?;
    module.add_function(wrap_pyfunction!(engine::check_config, module)?)?;
    module.add_function(wrap_pyfunction!(filter::caret, module)?)?;
    module.add_function(wrap_pyfunction!(headers::check_headers, module)?)?;
    module.add_function(wrap_pyfunction!(json::has_other_keys, module)?)?;
    module.add_function(wrap_pyfunction!(json::is_json, module)?)?;
    module.add_function(wrap_pyfunction!(json::json_members, module)?)?;
    module.add_function(wrap_pyfunction!(arrow_rows::check_rows, module)?)?;
    module.add_function(wrap_pyfunction!(arrow_rows::check_topic, module)?)?;
    module.add_function(wrap_pyfunction!(message::copy_message, module)?)?;
    module.add_function(wrap_pyfunction!(message::test_message, module)?)?;
    module.add_function(wrap_pyfunction!(options::check_options, module)?)?;
    module.add_function(wrap_pyfunction!(options::check_subscription, module)?)?;
    module.add_function(wrap_pyfunction!(fork::before_fork, module)?)?;
    module.add_function(wrap_pyfunction!(fork::after_fork_in_parent, module)?)?;
    module.add_function(wrap_pyfunction!(fork::after_fork_in_child, module)?)
}
