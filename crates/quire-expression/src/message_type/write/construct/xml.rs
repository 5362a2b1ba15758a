//! `xml`: elements and attributes. An array is several elements of one name.
//!
//! XML cannot have most control characters, and bytes that are not UTF-8: they become U+FFFD.

use super::{AssignError, Field, Fields, check_size, write_number};
use crate::message_type::{Value, markup};

pub(super) fn expected_path(names: &[Box<[u8]>]) -> Option<&'static str> {
    let [elements @ .., last] = names else { return Some("a field") };
    let last = last.strip_prefix(b"@").unwrap_or(last);
    if elements.is_empty() {
        Some("a path of two or more steps, of which the first is the root element")
    } else if !is_name(last) || !elements.iter().all(|name| is_name(name)) {
        Some("names that XML can have; an attribute can only be the last step")
    } else {
        None
    }
}

fn is_name(name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(markup::is_name)
}

/// Writes the elements of an object. Its attributes are in its start tag.
pub(super) fn write_fields(
    fields: &Fields,
    values: &[Value<'_>],
    out: &mut Vec<u8>,
) -> Result<(), AssignError> {
    for (name, field) in fields.0.iter().filter(|(name, _)| !name.starts_with(b"@")) {
        match field {
            Field::Value(number) => write_elements(name, values[*number], out)?,
            Field::Object(inner) => {
                out.push(b'<');
                out.extend_from_slice(name);
                for (name, field) in &inner.0 {
                    // An attribute is the last step of a path.
                    if let (Some(name), Field::Value(number)) = (name.strip_prefix(b"@"), field) {
                        write_attribute(name, values[*number], out)?;
                    }
                }
                out.push(b'>');
                write_fields(inner, values, out)?;
                [b"</", &**name, b">"].into_iter().for_each(|part| out.extend_from_slice(part));
            }
        }
    }
    Ok(())
}

fn write_attribute(name: &[u8], value: Value<'_>, out: &mut Vec<u8>) -> Result<(), AssignError> {
    out.push(b' ');
    out.extend_from_slice(name);
    out.extend_from_slice(b"=\"");
    write_text(value.scalar(), out);
    out.push(b'"');
    check_size(out)
}

/// Writes an element, or one for each element of an array. The depth of the message with the value
/// bounds the recursion.
fn write_elements(name: &[u8], value: Value<'_>, out: &mut Vec<u8>) -> Result<(), AssignError> {
    match value {
        Value::Array(elements) if !elements.is_empty() => {
            for element in elements {
                write_elements(name, *element, out)?;
            }
        }
        Value::Compound(raw) => write_renamed(name, raw, out),
        value => {
            out.push(b'<');
            out.extend_from_slice(name);
            out.push(b'>');
            let start = out.len();
            write_text(value, out);
            if out.len() > start {
                [b"</", name, b">"].into_iter().for_each(|part| out.extend_from_slice(part));
            } else {
                out.pop();
                out.extend_from_slice(b"/>");
            }
        }
    }
    check_size(out)
}

/// Writes an element under another name.
fn write_renamed(name: &[u8], raw: &[u8], out: &mut Vec<u8>) {
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>');
    let content = &raw[raw.iter().position(is_end).unwrap_or(raw.len())..];
    out.push(b'<');
    out.extend_from_slice(name);
    if raw.ends_with(b"/>") {
        out.extend_from_slice(content);
        return;
    }
    let size = memchr::memmem::rfind(content, b"</").unwrap_or(content.len());
    out.extend_from_slice(&content[..size]);
    [b"</", name, b">"].into_iter().for_each(|part| out.extend_from_slice(part));
}

/// Writes a single value. Writes no bytes for NULL, and for an object in an attribute.
fn write_text(value: Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Boolean(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        // A number that is not finite is NULL.
        Value::Number(number, raw) => drop(write_number(number, raw, out)),
        Value::Text(text) => {
            for chunk in text.utf8_chunks() {
                chunk.valid().chars().for_each(|character| write_character(character, out));
                if !chunk.invalid().is_empty() {
                    write_character(char::REPLACEMENT_CHARACTER, out);
                }
            }
        }
        Value::Null | Value::Array(_) | Value::Compound(_) => {}
    }
}

fn write_character(character: char, out: &mut Vec<u8>) {
    let escaped: &[u8] = match character {
        '&' => b"&amp;",
        '<' => b"&lt;",
        '>' => b"&gt;",
        '"' => b"&quot;",
        // Parsers change them in attributes when they are not escaped.
        '\t' => b"&#9;",
        '\n' => b"&#10;",
        '\r' => b"&#13;",
        '\0'..' ' | '\u{FFFE}' | '\u{FFFF}' => "\u{FFFD}".as_bytes(),
        other => return out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
    };
    out.extend_from_slice(escaped);
}
