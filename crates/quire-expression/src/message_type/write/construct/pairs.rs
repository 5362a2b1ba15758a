//! `nvfix` and `fix`: an array is its tag with each element. A Boolean is `1` or `0`.

use super::{AssignError, Field, Fields, check_size, write_number};
use crate::message_type::nvfix::SEPARATOR;
use crate::message_type::{MessageType, Value};

pub(super) fn expected_path(message_type: MessageType, names: &[Box<[u8]>]) -> Option<&'static str> {
    let [name] = names else { return Some("one step: messages of this type have no nested fields") };
    if message_type == MessageType::Fix {
        return (!name.iter().all(u8::is_ascii_digit)).then_some("a tag of digits");
    }
    name.iter().any(|byte| matches!(*byte, b'=' | SEPARATOR)).then_some("a tag without = and SOH")
}

pub(super) fn write_pairs(
    fields: &Fields,
    values: &[Value<'_>],
    out: &mut Vec<u8>,
) -> Result<(), AssignError> {
    for (tag, field) in &fields.0 {
        // Such messages have no other fields.
        if let Field::Value(number) = field {
            write_values(tag, values[*number], out)?;
        }
    }
    Ok(())
}

/// The depth of the message with the value bounds the recursion.
fn write_values(tag: &[u8], value: Value<'_>, out: &mut Vec<u8>) -> Result<(), AssignError> {
    if let Value::Array(elements @ [_, ..]) = value {
        return elements.iter().try_for_each(|element| write_values(tag, *element, out));
    }
    out.extend_from_slice(tag);
    out.push(b'=');
    match value {
        Value::Boolean(value) => out.push(if value { b'1' } else { b'0' }),
        // A number that is not finite is NULL.
        Value::Number(number, raw) => drop(write_number(number, raw, out)),
        Value::Text(text) if text.contains(&SEPARATOR) => {
            return Err(AssignError::Separator { field: String::from_utf8_lossy(tag).into_owned() });
        }
        Value::Text(text) => out.extend_from_slice(text),
        Value::Null | Value::Array(_) | Value::Compound(_) => {}
    }
    out.push(SEPARATOR);
    check_size(out)
}
