//! Headers of messages: from a mapping of Python, and as a dictionary.

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyDict, PyMapping, PyString};
use quire_journal::{HeaderValue, Headers, HeadersBuffer};

use crate::errors;

/// The value of a header, borrowed from its Python object.
enum Value {
    Text(PyBackedStr),
    Bytes(PyBackedBytes),
}

/// The headers of a message that is published: a mapping from names to `str`, `bytes` or
/// `bytearray`. `None`: no headers.
///
/// A name or a value that a header cannot have is a `ConfigError` with the key `headers`.
pub fn from_python(py: Python<'_>, headers: Option<&Bound<'_, PyAny>>) -> PyResult<HeadersBuffer> {
    let Some(headers) = headers else { return Ok(HeadersBuffer::default()) };
    let bad = |reason: &str| errors::bad_option(py, "headers", reason);
    let Ok(mapping) = headers.cast::<PyMapping>() else {
        let found = headers.get_type().name()?;
        return Err(bad(&format!("expected a mapping of names to text or bytes, got `{found}`")));
    };
    let mut found = Vec::new();
    for item in mapping.items()? {
        let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let Ok(text) = name.extract::<PyBackedStr>() else {
            let kind = name.get_type().name()?;
            return Err(bad(&match name.is_instance_of::<PyString>() {
                true => format!("the name {} is not valid Unicode", name.repr()?),
                false => format!("a name must be text, got `{kind}`"),
            }));
        };
        let value = if let Ok(bytes) = value.extract::<PyBackedBytes>() {
            Value::Bytes(bytes)
        } else if let Ok(text) = value.extract::<PyBackedStr>() {
            Value::Text(text)
        } else {
            let (name, kind) = (name.repr()?, value.get_type().name()?);
            return Err(bad(&match value.is_instance_of::<PyString>() {
                true => format!("the value of {name} is not valid Unicode"),
                false => format!("the value of {name} must be text or bytes, got `{kind}`"),
            }));
        };
        found.push((text, value));
    }
    let headers = found.iter().map(|(name, value)| {
        let value = match value {
            Value::Text(text) => HeaderValue::Text(text),
            Value::Bytes(bytes) => HeaderValue::Bytes(bytes),
        };
        (&**name, value)
    });
    HeadersBuffer::new(headers).map_err(|error| bad(&error.to_string()))
}

/// Checks headers as `publish` does, for callers that publish later.
#[pyfunction]
pub fn check_headers(py: Python<'_>, headers: &Bound<'_, PyAny>) -> PyResult<()> {
    from_python(py, Some(headers)).map(drop)
}

/// The headers as a new dictionary of `str` to `str` or `bytes`.
pub fn to_python<'py>(py: Python<'py>, headers: Headers<'_>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in headers.iter() {
        match value {
            HeaderValue::Text(text) => dict.set_item(name, text)?,
            HeaderValue::Bytes(bytes) => dict.set_item(name, PyBytes::new(py, bytes))?,
        }
    }
    Ok(dict)
}
