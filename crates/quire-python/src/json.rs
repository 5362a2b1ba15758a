//! JSON as text: for commands that print or cut out a message without changing its numbers and
//! names.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use serde::de::IgnoredAny;

/// Whether the text is one JSON value, as RFC 8259 defines it, nested to any depth.
#[pyfunction]
pub fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The members of a JSON object in their order: each name, and its value as text. `None` for text
/// that is not a JSON object.
///
/// A name that is not Unicode, such as `"\ud800"`, is kept as it is written, with its quotes.
#[pyfunction]
pub fn json_members(text: &str) -> Option<Vec<(String, &str)>> {
    let mut rest = text.trim_start().strip_prefix('{').filter(|_| is_json(text))?.trim_start();
    let mut members = Vec::new();
    while !rest.starts_with('}') {
        let (name, after) = split_value(rest)?;
        let (value, after) = split_value(after.trim_start().strip_prefix(':')?)?;
        members.push((serde_json::from_str(name).unwrap_or_else(|_| name.to_owned()), value));
        let after = after.trim_start();
        rest = after.strip_prefix(',').unwrap_or(after).trim_start();
    }
    Some(members)
}

/// Whether a dictionary of the value has a key that is not text. JSON converts `1` and `None` to
/// text, which may be equal to another key.
///
/// The value was converted to JSON before, so no part of it contains itself.
#[pyfunction]
pub fn has_other_keys(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let mut left = vec![value.clone()];
    while let Some(value) = left.pop() {
        if let Ok(members) = value.cast::<PyDict>() {
            for (name, value) in members.iter() {
                if !name.is_instance_of::<PyString>() {
                    return Ok(true);
                }
                if is_nested(&value) {
                    left.push(value);
                }
            }
        } else if is_nested(&value) {
            for value in value.try_iter()? {
                left.extend(Some(value?).filter(is_nested));
            }
        }
    }
    Ok(false)
}

fn is_nested(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyDict>() || value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>()
}

/// The value at the beginning of the text, and the text after it.
fn split_value(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    text.split_at_checked(values.byte_offset())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_the_text_between_the_names() {
        let text = " {\"a\" :1.10, \"b\":{\"c\":[1,\"}\"]} ,\n\"a\":-0,\"\\u00e9\":\"\\ud800\",\"\\ud800\": null }\r\n";
        let members = json_members(text).unwrap();
        let expected = [
            ("a", "1.10"),
            ("b", "{\"c\":[1,\"}\"]}"),
            ("a", "-0"),
            ("é", "\"\\ud800\""),
            ("\"\\ud800\"", "null"),
        ];
        assert_eq!(members, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(json_members("{}"), Some(vec![]));
    }

    #[test]
    fn other_text_has_no_members() {
        for text in ["", "[]", "1", "{", "{\"a\":1", "{\"a\":NaN}", "{\"a\":1}{", "{\"a\":1,}", "\u{feff}{}"]
        {
            assert_eq!(json_members(text), None, "{text}");
        }
    }

    #[test]
    fn depth_and_long_numbers_are_no_obstacle() {
        let deep = format!("{}1{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
        assert!(is_json(&deep));
        assert!(is_json(&"9".repeat(100_000)));
        assert!(is_json("1e400"));
        let letter = format!("{{\"message\":{deep}}}");
        assert_eq!(json_members(&letter), Some(vec![("message".to_owned(), &*deep)]));
    }
}
