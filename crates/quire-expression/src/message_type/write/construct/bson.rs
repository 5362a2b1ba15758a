//! `bson`: integers in their narrowest form, floats unchanged. A text that is not UTF-8 is binary.

use super::{AssignError, Field, Fields, check_size};
use crate::message_type::bson::Bytes;
use crate::message_type::write::bson::{DOCUMENT, NULL, set_size};
use crate::message_type::{Number, Value};

pub(super) fn expected_path(names: &[Box<[u8]>]) -> Option<&'static str> {
    names.iter().any(|name| name.contains(&0)).then_some("a name without a zero byte")
}

pub(super) fn write_document(
    fields: &Fields,
    values: &[Value<'_>],
    out: &mut Vec<u8>,
) -> Result<(), AssignError> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    for (name, field) in &fields.0 {
        match field {
            Field::Value(number) => write_element(name, values[*number], out)?,
            Field::Object(inner) => {
                write_name(DOCUMENT, name, out);
                write_document(inner, values, out)?;
            }
        }
    }
    out.push(0);
    set_size(out, start);
    Ok(())
}

fn write_name(kind: u8, name: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(name);
    out.push(0);
}

/// The depth of the message with the value bounds the recursion.
fn write_element(name: &[u8], value: Value<'_>, out: &mut Vec<u8>) -> Result<(), AssignError> {
    check_size(out)?;
    match value {
        Value::Boolean(value) => {
            write_name(0x08, name, out);
            out.push(value.into());
        }
        Value::Number(Number::Integer(number), _) => match i32::try_from(number) {
            Ok(number) => {
                write_name(0x10, name, out);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Err(_) => {
                write_name(0x12, name, out);
                out.extend_from_slice(&number.to_le_bytes());
            }
        },
        // The format has no integers above the signed maximum.
        Value::Number(number, _) => {
            write_name(0x01, name, out);
            out.extend_from_slice(&number.as_f64().to_le_bytes());
        }
        Value::Text(text) if std::str::from_utf8(text).is_ok() => {
            write_name(0x02, name, out);
            out.extend_from_slice(&size_of_value(text.len() + 1)?.to_le_bytes());
            out.extend_from_slice(text);
            out.push(0);
        }
        Value::Text(bytes) => {
            write_name(0x05, name, out);
            out.extend_from_slice(&size_of_value(bytes.len())?.to_le_bytes());
            // Binary of no particular kind.
            out.push(0);
            out.extend_from_slice(bytes);
        }
        Value::Array(elements) => {
            write_name(0x04, name, out);
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            for (place, element) in elements.iter().enumerate() {
                write_element(place.to_string().as_bytes(), *element, out)?;
            }
            out.push(0);
            check_size(out)?;
            set_size(out, start);
        }
        Value::Compound(raw) if is_document(raw) => {
            write_name(DOCUMENT, name, out);
            out.extend_from_slice(raw);
        }
        // Values of types that expressions do not have arrive without their type.
        Value::Null | Value::Compound(_) => write_name(NULL, name, out),
    }
    check_size(out)
}

fn size_of_value(size: usize) -> Result<i32, AssignError> {
    i32::try_from(size).map_err(|_| AssignError::TooLarge)
}

fn is_document(raw: &[u8]) -> bool {
    let mut reader = Bytes { data: raw, at: 0 };
    reader.document(0, |reader, kind, _| reader.skip(kind, 1)).is_ok() && reader.at == raw.len()
}
