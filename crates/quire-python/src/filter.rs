//! A content filter for programs without a broker.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use quire_expression::filter::{Filter as CoreFilter, FilterError, FilterOptions, MessageContext};
use quire_journal::Timestamp;

use crate::errors;
use crate::headers;
use crate::journal::message_type_of;

/// A parsed content filter; see `docs/filters.md`.
#[pyclass(frozen, module = "quire._quire")]
pub struct Filter {
    filter: CoreFilter,
}

#[pymethods]
impl Filter {
    #[new]
    fn new(py: Python<'_>, text: &str, allow_backtracking: bool) -> PyResult<Self> {
        let options = FilterOptions { allow_backtracking, ..FilterOptions::default() };
        let filter = CoreFilter::parse(text, &options).map_err(|error| bad_filter(py, &error))?;
        Ok(Filter { filter })
    }

    /// Whether a message with this data matches. Data that is not of its type matches no filter
    /// that reads fields.
    fn matches(
        &self,
        py: Python<'_>,
        data: PyBackedBytes,
        message_type: &str,
        headers: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let headers = headers::from_python(py, headers)?;
        let message_type = message_type_of(py, message_type)?;
        Ok(self.filter.matches(&MessageContext {
            message_type,
            data: &data,
            topic: "",
            key: None,
            bookmark: None,
            correlation_id: b"",
            headers: headers.as_headers(),
            timestamp: Timestamp::default(),
            now: Timestamp::default(),
        }))
    }

    /// The fields that it reads, each once.
    #[getter]
    fn fields(&self) -> Vec<String> {
        self.filter.fields().map(str::to_owned).collect()
    }
}

/// The exception for a filter that cannot be parsed.
pub fn bad_filter(py: Python<'_>, error: &FilterError) -> PyErr {
    errors::new_error(py, "bad_filter", &error.reason, u32::try_from(error.column).unwrap_or(u32::MAX))
}

/// A filter and a caret under one of its columns, for a terminal.
#[pyfunction]
pub fn caret(text: &str, column: usize) -> String {
    quire_expression::filter::caret(text, column)
}
