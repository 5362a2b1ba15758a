//! `msgpack`: integers in their narrowest form, floats with 64 bits. A text that is not UTF-8 is
//! `bin`.

use super::{AssignError, Field, Fields, check_size};
use crate::message_type::write::msgpack::{NIL, write_map_head};
use crate::message_type::{Number, Value};

pub(super) fn write_map(fields: &Fields, values: &[Value<'_>], out: &mut Vec<u8>) -> Result<(), AssignError> {
    // A list of assignments has a limit below 32 bits.
    write_map_head(out, fields.0.len() as u32);
    for (name, field) in &fields.0 {
        write_bytes(name, out)?;
        match field {
            Field::Value(number) => write_value(values[*number], out)?,
            Field::Object(inner) => write_map(inner, values, out)?,
        }
    }
    Ok(())
}

/// The depth of the message with the value bounds the recursion.
fn write_value(value: Value<'_>, out: &mut Vec<u8>) -> Result<(), AssignError> {
    match value {
        Value::Null => out.push(NIL),
        Value::Boolean(value) => out.push(0xC2 | u8::from(value)),
        Value::Number(number, _) => write_number(number, out),
        Value::Text(text) => write_bytes(text, out)?,
        Value::Array(elements) => {
            write_head(out, elements.len(), Some((0x90, 15)), [None, Some(0xDC), Some(0xDD)])?;
            for element in elements {
                write_value(*element, out)?;
            }
        }
        Value::Compound(raw) => out.extend_from_slice(raw),
    }
    check_size(out)
}

fn write_number(number: Number, out: &mut Vec<u8>) {
    match number {
        Number::Float(float) if !float.is_finite() => out.push(NIL),
        Number::Float(float) => {
            out.push(0xCB);
            out.extend_from_slice(&float.to_be_bytes());
        }
        Number::Unsigned(number) => write_unsigned(number, out),
        Number::Integer(number) => match u64::try_from(number) {
            Ok(number) => write_unsigned(number, out),
            Err(_) => write_negative(number, out),
        },
    }
}

fn write_unsigned(number: u64, out: &mut Vec<u8>) {
    if let Ok(number) = u8::try_from(number) {
        if number > 0x7F {
            out.push(0xCC);
        }
        out.push(number);
    } else if let Ok(number) = u16::try_from(number) {
        out.push(0xCD);
        out.extend_from_slice(&number.to_be_bytes());
    } else if let Ok(number) = u32::try_from(number) {
        out.push(0xCE);
        out.extend_from_slice(&number.to_be_bytes());
    } else {
        out.push(0xCF);
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn write_negative(number: i64, out: &mut Vec<u8>) {
    if let Ok(number) = i8::try_from(number) {
        if number < -32 {
            out.push(0xD0);
        }
        out.extend_from_slice(&number.to_be_bytes());
    } else if let Ok(number) = i16::try_from(number) {
        out.push(0xD1);
        out.extend_from_slice(&number.to_be_bytes());
    } else if let Ok(number) = i32::try_from(number) {
        out.push(0xD2);
        out.extend_from_slice(&number.to_be_bytes());
    } else {
        out.push(0xD3);
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), AssignError> {
    if std::str::from_utf8(bytes).is_ok() {
        write_head(out, bytes.len(), Some((0xA0, 31)), [Some(0xD9), Some(0xDA), Some(0xDB)])?;
    } else {
        write_head(out, bytes.len(), None, [Some(0xC4), Some(0xC5), Some(0xC6)])?;
    }
    out.extend_from_slice(bytes);
    Ok(())
}

/// Writes a size in its shortest form: in the byte of the type if it has room, otherwise in 8, 16
/// or 32 bits after the type.
fn write_head(
    out: &mut Vec<u8>,
    size: usize,
    short: Option<(u8, usize)>,
    [of_8_bits, of_16_bits, of_32_bits]: [Option<u8>; 3],
) -> Result<(), AssignError> {
    if let Some((kind, size_max)) = short
        && size <= size_max
    {
        out.push(kind | size as u8);
    } else if let (Some(kind), Ok(size)) = (of_8_bits, u8::try_from(size)) {
        out.extend_from_slice(&[kind, size]);
    } else if let (Some(kind), Ok(size)) = (of_16_bits, u16::try_from(size)) {
        out.push(kind);
        out.extend_from_slice(&size.to_be_bytes());
    } else if let (Some(kind), Ok(size)) = (of_32_bits, u32::try_from(size)) {
        out.push(kind);
        out.extend_from_slice(&size.to_be_bytes());
    } else {
        return Err(AssignError::TooLarge);
    }
    Ok(())
}
