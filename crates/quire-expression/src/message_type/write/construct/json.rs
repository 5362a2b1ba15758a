//! `json`: names and texts with escapes. Bytes that are not UTF-8 become U+FFFD.

use super::{AssignError, Field, Fields, check_size, write_number};
use crate::message_type::Value;

pub(super) fn write_object(
    fields: &Fields,
    values: &[Value<'_>],
    out: &mut Vec<u8>,
) -> Result<(), AssignError> {
    out.push(b'{');
    for (place, (name, field)) in fields.0.iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        write_text(name, out);
        out.push(b':');
        match field {
            Field::Value(number) => write_value(values[*number], out)?,
            Field::Object(inner) => write_object(inner, values, out)?,
        }
    }
    out.push(b'}');
    Ok(())
}

/// The depth of the message with the value bounds the recursion.
fn write_value(value: Value<'_>, out: &mut Vec<u8>) -> Result<(), AssignError> {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Boolean(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        Value::Number(number, raw) => {
            if !write_number(number, raw, out) {
                out.extend_from_slice(b"null");
            }
        }
        Value::Text(text) => write_text(text, out),
        Value::Array(elements) => {
            out.push(b'[');
            for (place, element) in elements.iter().enumerate() {
                if place > 0 {
                    out.push(b',');
                }
                write_value(*element, out)?;
            }
            out.push(b']');
        }
        Value::Compound(raw) => out.extend_from_slice(raw),
    }
    check_size(out)
}

fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for chunk in text.utf8_chunks() {
        for byte in chunk.valid().bytes() {
            match byte {
                b'"' => out.extend_from_slice(b"\\\""),
                b'\\' => out.extend_from_slice(b"\\\\"),
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\r' => out.extend_from_slice(b"\\r"),
                b'\t' => out.extend_from_slice(b"\\t"),
                0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                other => out.push(other),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{FFFD}".as_bytes());
        }
    }
    out.push(b'"');
}
