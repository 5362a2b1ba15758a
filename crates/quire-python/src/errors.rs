//! From the failures of the core to the exceptions that `quire._errors` defines.

use std::io;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use quire_client::{Failure, PublishError};
use quire_driver::client::StartError;
use quire_journal::limit_reached;

/// The exception for a failure. The stable code selects its class.
pub fn to_python(py: Python<'_>, failure: &Failure) -> PyErr {
    new_error(py, failure.code.name(), &failure.reason, failure.column)
}

/// The exception for a publish that was refused for good.
pub fn refused(py: Python<'_>, error: &PublishError) -> PyErr {
    match error {
        PublishError::Refused(failure) => to_python(py, failure),
        PublishError::Full { .. } => pyo3::exceptions::PyBlockingIOError::new_err(error.to_string()),
    }
}

/// The exception for a client that does not start.
pub fn not_started(py: Python<'_>, error: StartError) -> PyErr {
    match error {
        StartError::Thread(ref cause) => refused_by_system(py, &error.to_string(), cause),
        StartError::Store(error) => new_error(py, error.code(), &error.to_string(), 0),
        error => new_error(py, "internal", &error.to_string(), 0),
    }
}

/// The exception for a thread or descriptor that the system refused. When a limit of the process is
/// reached, it has a type and names the limit to raise.
pub fn refused_by_system(py: Python<'_>, reason: &str, cause: &io::Error) -> PyErr {
    match limit_reached(cause) {
        Some(limit) => new_error(py, "limit_exceeded", &format!("{reason}; raise {limit}"), 0),
        None => new_error(py, "internal", reason, 0),
    }
}

/// The exception with the class of `code`.
pub fn new_error(py: Python<'_>, code: &str, reason: &str, column: u32) -> PyErr {
    from_code(py, code, reason, column, None)
}

/// The exception for a setting or option that is not valid.
pub fn bad_option(py: Python<'_>, key: &str, reason: &str) -> PyErr {
    from_code(py, "bad_option", reason, 0, Some(key))
}

/// The exception with the class of `code`, for the input `key`.
pub fn from_code(py: Python<'_>, code: &str, reason: &str, column: u32, key: Option<&str>) -> PyErr {
    static FROM_CODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FROM_CODE
        .import(py, "quire._errors", "from_code")
        .and_then(|from_code| from_code.call1((code, reason, column, key)))
        .map_or_else(|error| error, PyErr::from_value)
}
