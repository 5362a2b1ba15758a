//! The columns of messages without a description: their names and types are found in the messages.

use std::collections::BTreeSet;

use quire_expression::filter::path_of;
use quire_expression::message_type::{
    Arena, FieldId, FieldPlan, MessageType, Number, Value, json_member_names,
};

use crate::field::utf8;
use crate::plan::check_path;
use crate::spec::{FieldType, SpecError};

/// Up to this number, a double is exact for every integer.
const EXACT_MAX: u64 = 1 << 53;

/// The type of a column that the values of all messages fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inferred {
    /// A type that a scan builds.
    Type(FieldType),
    /// Objects or lists.
    Nested,
}

/// The fields at the top level of JSON messages as paths, in the order in which they first appear.
/// Data that is not a JSON object has none.
pub fn top_level_fields<'a>(messages: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let (mut known, mut paths, mut arena) = (BTreeSet::new(), Vec::new(), Arena::default());
    for data in messages {
        arena.reset();
        let Ok(names) = json_member_names(data, &arena) else { continue };
        for name in names.iter().filter_map(|name| utf8(name)) {
            if !known.contains(name) {
                paths.extend(path_to(name));
                known.insert(name.to_owned());
            }
        }
    }
    paths
}

/// The type of each path.
///
/// # Errors
/// [`SpecError::Path`].
pub fn infer<'a>(
    paths: &[String],
    message_type: MessageType,
    messages: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Inferred>, SpecError> {
    let mut plan = FieldPlan::default();
    let mut fields: Vec<(FieldId, Seen)> = Vec::with_capacity(paths.len());
    for path in paths {
        fields.push((plan.add(&check_path(path, path)?), Seen::Nothing));
    }
    let mut arena = Arena::default();
    for data in messages {
        arena.reset();
        let Ok(values) = message_type.read(data, &plan, &arena) else { continue };
        for (field, seen) in &mut fields {
            if let Some(value) = values.get(field.index()) {
                *seen = seen.and(*value);
            }
        }
    }
    Ok(fields.iter().map(|(_, seen)| seen.inferred()).collect())
}

/// The path of a member of the root. `None` for a name that no path can express.
fn path_to(name: &str) -> Option<String> {
    if name.is_empty() || (name.contains(['/', '[']) && name.contains(']')) {
        return None;
    }
    let plain = format!("/{name}");
    let is_plain = check_path(&plain, &plain).is_ok_and(|steps| steps == path_of(&plain) && steps.len() == 1);
    Some(if is_plain { plain } else { format!("[/{name}]") })
}

/// The kinds of values that a field had so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Booleans,
    /// Integers that are exact in a double.
    Integers,
    /// Integers, and one of them is not exact in a double.
    LongIntegers,
    /// Integers, and one of them does not fit into 64 bits with a sign.
    LargeIntegers,
    Numbers,
    Texts,
    Nested,
    /// Values of different kinds.
    Mixed,
}

impl Seen {
    fn and(self, value: Value<'_>) -> Seen {
        let other = match value {
            Value::Null => return self,
            Value::Boolean(_) => Seen::Booleans,
            Value::Number(Number::Integer(number), _) if number.unsigned_abs() <= EXACT_MAX => Seen::Integers,
            Value::Number(Number::Integer(_), _) => Seen::LongIntegers,
            Value::Number(_, text) if is_integer(text) => Seen::LargeIntegers,
            Value::Number(number, text) if is_beyond_doubles(number.as_f64(), text) => Seen::Mixed,
            Value::Number(..) => Seen::Numbers,
            Value::Text(_) => Seen::Texts,
            Value::Array(_) | Value::Compound(_) => Seen::Nested,
        };
        match (self, other) {
            (Seen::Nothing, other) => other,
            (seen, other) if seen == other => seen,
            (Seen::LargeIntegers, Seen::Integers | Seen::LongIntegers)
            | (Seen::Integers | Seen::LongIntegers, Seen::LargeIntegers) => Seen::LargeIntegers,
            (Seen::Integers, Seen::LongIntegers) | (Seen::LongIntegers, Seen::Integers) => Seen::LongIntegers,
            // Longer integers would lose digits in a double.
            (Seen::Integers, Seen::Numbers) | (Seen::Numbers, Seen::Integers) => Seen::Numbers,
            // A text column has no form for an object.
            (Seen::Nested, _) | (_, Seen::Nested) => Seen::Nested,
            _ => Seen::Mixed,
        }
    }

    fn inferred(self) -> Inferred {
        match self {
            Seen::Booleans => Inferred::Type(FieldType::Boolean),
            Seen::Integers | Seen::LongIntegers => Inferred::Type(FieldType::Long),
            Seen::Numbers => Inferred::Type(FieldType::Double),
            // As numbers they would lose digits.
            Seen::LargeIntegers => Inferred::Type(FieldType::String),
            Seen::Nothing | Seen::Texts | Seen::Mixed => Inferred::Type(FieldType::String),
            Seen::Nested => Inferred::Nested,
        }
    }
}

/// Whether the text of a number has no fraction and no exponent.
fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Whether the text becomes an infinity, or 0, as a double.
fn is_beyond_doubles(number: f64, text: &[u8]) -> bool {
    let mut digits = text.iter().take_while(|byte| !matches!(byte, b'e' | b'E'));
    match text {
        [] => false,
        _ if number == 0.0 => digits.any(|digit| matches!(digit, b'1'..=b'9')),
        _ => !number.is_finite(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inferred(messages: &[&str]) -> Vec<(String, String)> {
        let data = || messages.iter().map(|message| message.as_bytes());
        let paths = top_level_fields(data());
        let types = infer(&paths, MessageType::Json, data()).unwrap();
        let named = paths.into_iter().zip(types).map(|(path, inferred)| (path, format!("{inferred:?}")));
        named.collect()
    }

    fn pair(path: &str, inferred: &str) -> (String, String) {
        (path.to_owned(), inferred.to_owned())
    }

    #[test]
    fn a_column_has_the_type_of_all_values_of_its_field() {
        let messages = [
            r#"{"id": "a", "qty": 1, "price": 2, "open": true, "legs": [1], "note": null, "mixed": 1}"#,
            "not JSON",
            r#"{"late": {"a": 1}, "id": "b", "qty": 2, "price": 2.5, "mixed": "x"}"#,
        ];
        let expected = [
            pair("/id", "Type(String)"),
            pair("/qty", "Type(Long)"),
            pair("/price", "Type(Double)"),
            pair("/open", "Type(Boolean)"),
            pair("/legs", "Nested"),
            pair("/note", "Type(String)"),
            pair("/mixed", "Type(String)"),
            pair("/late", "Nested"),
        ];
        assert_eq!(inferred(&messages), expected);
    }

    #[test]
    fn integers_that_a_long_cannot_hold_are_text_so_that_they_keep_their_digits() {
        let messages = [
            r#"{"large": 9223372036854775809, "some": 1, "floats": 9223372036854775809, "less": -9223372036854775809}"#,
            r#"{"large": 9223372036854775811, "some": 18446744073709551615, "floats": 0.5, "less": -1}"#,
        ];
        let expected = [
            pair("/large", "Type(String)"),
            pair("/some", "Type(String)"),
            pair("/floats", "Type(String)"),
            pair("/less", "Type(String)"),
        ];
        assert_eq!(inferred(&messages), expected);
    }

    #[test]
    fn numbers_that_a_double_would_change_are_text() {
        let messages = [
            r#"{"id": 9007199254740993, "exact": 9007199254740992, "less": 1.5, "longs": 9007199254740993, "huge": 1e400, "tiny": -1e-400, "zero": 0.0e-400}"#,
            r#"{"id": 1.5, "exact": -1.5, "less": -9007199254740993, "longs": 1, "huge": 1}"#,
        ];
        let expected = [
            pair("/id", "Type(String)"),
            pair("/exact", "Type(Double)"),
            pair("/less", "Type(String)"),
            pair("/longs", "Type(Long)"),
            pair("/huge", "Type(String)"),
            pair("/tiny", "Type(String)"),
            pair("/zero", "Type(Double)"),
        ];
        assert_eq!(inferred(&messages), expected);
    }

    #[test]
    fn a_message_has_its_fields_whatever_else_is_in_it() {
        let deep = format!(r#"{{"deep": {}1{}}}"#, "[".repeat(200), "]".repeat(200));
        let messages = [r#"{"a\ud800": 1, "b": "\udfff", "c\u0000d": 2}"#, &deep, r#" {"last": true} "#];
        let paths: Vec<String> = inferred(&messages).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["/a\u{fffd}", "/b", "/c\0d", "/deep", "/last"]);
    }

    #[test]
    fn a_name_that_looks_like_a_path_is_still_one_field() {
        let found = inferred(&[r#"{"a/b": 1, "c[0": 2, "": 3, "d[0]": 4}"#]);
        assert_eq!(found, [pair("[/a/b]", "Type(Long)"), pair("[/c[0]", "Type(Long)")]);
    }
}
