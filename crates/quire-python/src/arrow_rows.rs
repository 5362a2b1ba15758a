//! Rows that come from Python through the Arrow C data interface.

#![allow(unsafe_code)] // taking over what another library exports: see the SAFETY notes

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::{RecordBatch, StructArray};
use arrow_schema::{ArrowError, DataType};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use quire_arrow::Messages;
use quire_expression::topic;

use crate::errors;
use crate::interpreter;

/// A topic or a correlation id that no message can have.
enum BadRow {
    Topic(topic::TopicError),
    CorrelationId(usize),
}

/// Checks rows as `publish_rows` does, for callers that publish later. Returns the size of the
/// largest data, in bytes. The limit is known only to the server.
#[pyfunction]
pub fn check_rows(py: Python<'_>, rows: ArrowRows) -> PyResult<usize> {
    let messages = Messages::new(&rows.0).map_err(|error| PyValueError::new_err(format!("rows: {error}")))?;
    let checked = interpreter::outside(py, || {
        let (mut largest, mut known_topic) = (0, "");
        for message in messages.from_row(0, 0) {
            if message.topic != known_topic || known_topic.is_empty() {
                topic::check_name(message.topic.as_bytes()).map_err(BadRow::Topic)?;
                known_topic = message.topic;
            }
            if message.correlation_id.len() > quire_command::CORRELATION_SIZE_MAX {
                return Err(BadRow::CorrelationId(message.correlation_id.len()));
            }
            largest = largest.max(message.data.len());
        }
        Ok(largest)
    });
    checked.map_err(|bad| match bad {
        BadRow::Topic(error) => {
            errors::new_error(py, "bad_topic", &format!("column topic: a row has a bad topic: {error}"), 0)
        }
        BadRow::CorrelationId(size) => {
            let limit = quire_command::CORRELATION_SIZE_MAX;
            let reason = format!("a row has {size} bytes there, the limit is {limit}");
            errors::bad_option(py, "column correlation_id", &reason)
        }
    })
}

/// Raises when no message can have the topic.
#[pyfunction]
pub fn check_topic(py: Python<'_>, topic: &str) -> PyResult<()> {
    topic::check_name(topic.as_bytes())
        .map(drop)
        .map_err(|error| errors::new_error(py, "bad_topic", &format!("topic: {error}"), 0))
}

/// A record batch of any library, without a copy. Its content is checked: text is UTF-8, and every
/// value is inside its column.
pub struct ArrowRows(pub RecordBatch);

impl<'py> FromPyObject<'_, 'py> for ArrowRows {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let exported = object.call_method0("__arrow_c_array__")?;
        let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) = exported.extract()?;
        let schema = schema.pointer_checked(Some(c"arrow_schema"))?.cast::<FFI_ArrowSchema>();
        let array = array.pointer_checked(Some(c"arrow_array"))?.cast::<FFI_ArrowArray>();
        // SAFETY: a capsule of this name holds such a struct, which lives as long as the capsule,
        // and no other thread looks at it.
        let array = unsafe { FFI_ArrowArray::from_raw(array.as_ptr()) };
        // SAFETY: as above; it is only looked at while the capsule is held.
        let schema = unsafe { schema.as_ref() };
        // Before the import, which panics when they differ.
        if !matches!(DataType::try_from(schema).map_err(of_arrow)?, DataType::Struct(fields) if fields.len() == array.num_children())
        {
            return Err(PyTypeError::new_err("rows must be a record batch"));
        }
        // SAFETY: with the names of the capsules, the exporter promises that the array matches the
        // schema. The content of the buffers is checked next.
        let data = unsafe { from_ffi(array, schema) }.map_err(of_arrow)?;
        data.validate_full().map_err(of_arrow)?;
        if data.null_count() > 0 {
            return Err(PyValueError::new_err("a row of a record batch cannot be NULL"));
        }
        Ok(ArrowRows(RecordBatch::from(StructArray::from(data))))
    }
}

fn of_arrow(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
