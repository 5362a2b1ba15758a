//! A message in another type, for the step `translate` of actions (docs/actions.md).
//!
//! A field keeps its path. So the root element of XML is the only member of an object in the other
//! types, and `@id` is an attribute. A value keeps its type where both types have it. The values of
//! `fix`, `nvfix` and `xml` are texts: a text of digits may be an identifier.

use std::collections::BTreeMap;

use crate::message_type::nvfix::{FIX, NVFIX, Pair, Pairs};
use crate::message_type::xml::{self, Xml};
use crate::message_type::{Arena, Format, Malformed, MessageType, Step, Value};
use crate::unreadable::contained;

use super::{AssignError, Field, Fields, expected_path, write};

/// Why a message cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// The message is not of its type.
    #[error("the message is {0}")]
    Malformed(#[from] Malformed),
    /// The message is, for example, a JSON array, or one of the types has no fields.
    #[error("the message is not an object, so it has no fields")]
    NotAnObject,
    /// The other type cannot have a field.
    #[error("the field /{field} cannot be written: expected {expected}")]
    Path {
        /// Its path.
        field: String,
        /// The form that the type expects.
        expected: &'static str,
    },
    /// The other type has no objects in objects.
    #[error("the message has an object in a field, and messages of the type {} have none", .0.name())]
    Nested(MessageType),
    /// In FIX, the size of a data field decides where the field ends.
    #[error("the message has a field with the size of a data field, and the size is another one")]
    DataSize,
    /// XML has one root element, and the message has several fields, or none.
    #[error("the message has {count} fields, and an XML document has one root element")]
    Roots {
        /// The number of fields.
        count: usize,
    },
    /// A value cannot be written.
    #[error(transparent)]
    Value(#[from] AssignError),
}

/// Writes a message into `out` in another type. The earlier content of `out` is removed.
///
/// # Errors
/// [`TranslateError`]; `out` is empty then.
pub fn translate(
    source: MessageType,
    data: &[u8],
    target: MessageType,
    out: &mut Vec<u8>,
) -> Result<(), TranslateError> {
    out.clear();
    let result = contained(|| {
        let mut arena = Arena::default();
        source.check(data, &mut arena)?;
        if source == target {
            out.extend_from_slice(data);
            return Ok(());
        }
        let mut translation = Translation { source, target, arena: &arena, values: Vec::new() };
        let fields = translation.document(data)?;
        translation.check(&fields, &mut Vec::new())?;
        if target == MessageType::Xml && fields.0.len() != 1 {
            return Err(TranslateError::Roots { count: fields.0.len() });
        }
        write(target, &fields, &translation.values, out)?;
        if target == MessageType::Fix && pair_count(FIX, out)? != pair_count(NVFIX, out)? {
            return Err(TranslateError::DataSize);
        }
        Ok(())
    });
    let result = result.unwrap_or_else(|reason| Err(TranslateError::Malformed(reason)));
    if result.is_err() {
        out.clear();
    }
    result
}

fn is_utf8(step: &Step) -> bool {
    matches!(step, Step::Name(name) if std::str::from_utf8(name).is_ok())
}

fn pair_count(pairs: Pairs, data: &[u8]) -> Result<usize, Malformed> {
    let (mut reader, mut count) = (pairs.read(data), 0);
    while reader.next()?.is_some() {
        count += 1;
    }
    Ok(count)
}

struct Translation<'a> {
    source: MessageType,
    target: MessageType,
    arena: &'a Arena,
    /// The values of all fields, by their numbers.
    values: Vec<Value<'a>>,
}

impl<'a> Translation<'a> {
    /// The fields of a whole message, which was checked.
    fn document(&mut self, data: &'a [u8]) -> Result<Fields, TranslateError> {
        match self.source {
            MessageType::Nvfix => self.pairs(NVFIX, data),
            MessageType::Fix => self.pairs(FIX, data),
            MessageType::Xml => {
                let (name, raw) = xml::root(data)?;
                let value = Xml.value_of_compound(raw, self.arena)?;
                let field = self.field(value)?;
                Ok(Fields(vec![(name.as_bytes().into(), field)]))
            }
            MessageType::Json => match data.trim_ascii() {
                object @ [b'{', ..] => self.object(object),
                _ => Err(TranslateError::NotAnObject),
            },
            MessageType::Msgpack | MessageType::Bson => self.object(data),
            MessageType::Binary => Err(TranslateError::NotAnObject),
        }
    }

    /// The fields of an object in a field.
    fn nested(&mut self, raw: &'a [u8]) -> Result<Fields, TranslateError> {
        if matches!(self.target, MessageType::Fix | MessageType::Nvfix) {
            return Err(TranslateError::Nested(self.target));
        }
        self.object(raw)
    }

    /// Recursion is bounded by `DOCUMENT_DEPTH_MAX`, because the message was checked.
    fn object(&mut self, raw: &'a [u8]) -> Result<Fields, TranslateError> {
        let members = self.source.members(raw, self.arena)?;
        let named = members.iter().map(|(name, value)| Ok(((*name).into(), self.field(*value)?)));
        Ok(Fields(named.collect::<Result<_, TranslateError>>()?))
    }

    fn field(&mut self, value: Value<'a>) -> Result<Field, TranslateError> {
        if let Value::Compound(raw) = value {
            return Ok(Field::Object(self.nested(raw)?));
        }
        let value = self.value(value)?;
        self.values.push(value);
        Ok(Field::Value(self.values.len() - 1))
    }

    /// A value for the other type. An object in an array is already written in that type.
    fn value(&mut self, value: Value<'a>) -> Result<Value<'a>, TranslateError> {
        match value {
            Value::Array(elements) => {
                let translated = self.arena.nulls(elements.len())?;
                for (translated, element) in translated.iter_mut().zip(elements) {
                    *translated = self.value(*element)?;
                }
                Ok(Value::Array(translated))
            }
            Value::Compound(raw) => {
                let mut inner = self.nested(raw)?;
                if self.target == MessageType::Xml {
                    // Its name is replaced by that of the array.
                    inner = Fields(vec![((*b"element").into(), Field::Object(inner))]);
                }
                self.check(&inner, &mut Vec::new())?;
                let mut bytes = Vec::new();
                write(self.target, &inner, &self.values, &mut bytes)?;
                let mut kept = self.arena.builder();
                kept.push(&bytes);
                Ok(Value::Compound(kept.bytes().ok_or(Malformed::TooLarge)?))
            }
            // The message has a text. Its form does not say that it is a number.
            Value::Number(_, text) if self.source == MessageType::Xml => Ok(Value::Text(text)),
            value => Ok(value),
        }
    }

    /// The fields of a message of pairs. Several values of one tag are an array.
    fn pairs(&mut self, pairs: Pairs, data: &'a [u8]) -> Result<Fields, TranslateError> {
        let mut found: Vec<(&'a [u8], Vec<Value<'a>>)> = Vec::new();
        let mut places = BTreeMap::<&'a [u8], usize>::new();
        let mut reader = pairs.read(data);
        while let Some(Pair { start, value, end, .. }) = reader.next()? {
            let tag = &data[start..value - 1];
            let place = *places.entry(tag).or_insert_with(|| {
                found.push((tag, Vec::new()));
                found.len() - 1
            });
            found[place].1.push(Value::text(&data[value..end]));
        }
        let mut fields = Vec::with_capacity(found.len());
        for (tag, values) in found {
            let value = match values.as_slice() {
                [value] => *value,
                values => {
                    let elements = self.arena.nulls(values.len())?;
                    elements.copy_from_slice(values);
                    Value::Array(elements)
                }
            };
            fields.push((tag.into(), self.field(value)?));
        }
        Ok(Fields(fields))
    }

    /// Checks that the other type can have the fields. `path` leads to them.
    fn check(&self, fields: &Fields, path: &mut Vec<Step>) -> Result<(), TranslateError> {
        for (name, field) in &fields.0 {
            path.push(Step::Name(name.clone()));
            match field {
                Field::Object(inner) if !inner.0.is_empty() => self.check(inner, path)?,
                _ => {
                    // Of an object without fields, the path of a field in it.
                    let is_object = matches!(field, Field::Object(_));
                    path.extend(is_object.then(|| Step::Name((*b"field").into())));
                    if let Some(expected) = self.expected(name, path) {
                        let names = path.iter().map(|step| match step {
                            Step::Name(name) => String::from_utf8_lossy(name).into_owned(),
                            Step::Index(index) => index.to_string(),
                        });
                        let field = names.collect::<Vec<_>>().join("/");
                        return Err(TranslateError::Path { field, expected });
                    }
                    path.truncate(path.len() - usize::from(is_object));
                }
            }
            path.pop();
        }
        Ok(())
    }

    fn expected(&self, name: &[u8], path: &[Step]) -> Option<&'static str> {
        match self.target {
            MessageType::Fix | MessageType::Nvfix if name.is_empty() => Some("a tag"),
            MessageType::Bson if !path.iter().all(is_utf8) => Some("names in UTF-8"),
            target => expected_path(target, path),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn translated(source: MessageType, data: &[u8], target: MessageType) -> Result<Vec<u8>, TranslateError> {
        let mut out = b"earlier".to_vec();
        let result = translate(source, data, target, &mut out);
        assert!(result.is_ok() || out.is_empty());
        result.map(|()| out)
    }

    fn there_and_back(json: &str, other: MessageType) -> String {
        let there = translated(MessageType::Json, json.as_bytes(), other).unwrap();
        other.check(&there, &mut Arena::default()).unwrap();
        String::from_utf8(translated(other, &there, MessageType::Json).unwrap()).unwrap()
    }

    #[test]
    fn nested_messages_keep_their_values_in_types_with_objects() {
        let json = r#"{"id":7,"big":18446744073709551615,"price":1.5,"on":true,"none":null,"text":"a\"é",
            "lines":[{"n":1,"tags":["x",[2]]},{"n":-2}],"to":{"zip":{"code":"01"},"empty":{}}}"#;
        let plain: String = json.split_whitespace().collect();
        assert_eq!(there_and_back(json, MessageType::Msgpack), plain);
        let bson = there_and_back(json, MessageType::Bson);
        assert_eq!(bson, plain.replace("18446744073709551615", "1.8446744073709552e19"));
    }

    #[test]
    fn an_xml_document_is_an_object_with_its_root_element() {
        let xml = b"<?xml version='1.0'?>\n<!-- an order --><order id='07'><line><n>1</n></line>\
            <line><n>2</n></line><to/><note>a &amp; b</note></order>\n<!-- end -->";
        let json = translated(MessageType::Xml, xml, MessageType::Json).unwrap();
        let expected = br#"{"order":{"@id":"07","line":[{"n":"1"},{"n":"2"}],"to":null,"note":"a & b"}}"#;
        assert_eq!(String::from_utf8(json.clone()), String::from_utf8(expected.to_vec()));
        let back = translated(MessageType::Json, &json, MessageType::Xml).unwrap();
        let expected =
            b"<order id=\"07\"><line><n>1</n></line><line><n>2</n></line><to/><note>a &amp; b</note></order>";
        assert_eq!(String::from_utf8(back), String::from_utf8(expected.to_vec()));
    }

    #[test]
    fn several_values_of_one_tag_are_an_array() {
        let fix = b"35=D\x0138=05\x01453=a\x01453=b\x01";
        let json = translated(MessageType::Fix, fix, MessageType::Json).unwrap();
        assert_eq!(json, br#"{"35":"D","38":"05","453":["a","b"]}"#);
        assert_eq!(translated(MessageType::Json, &json, MessageType::Fix).unwrap(), fix);
    }

    #[test]
    fn what_the_other_type_cannot_have_is_refused_with_its_path() {
        use MessageType::{Binary, Bson, Fix, Json, Msgpack, Nvfix, Xml};
        for (source, data, target, reason) in [
            (Json, "{", Nvfix, "the message is malformed"),
            (Json, "[1]", Nvfix, "not an object"),
            (
                Json,
                r#"{"a":{"b":1}}"#,
                Nvfix,
                "an object in a field, and messages of the type nvfix have none",
            ),
            (Json, r#"{"1":[{"b":1}]}"#, Fix, "an object in a field"),
            (Json, r#"{"1":{}}"#, Fix, "an object in a field"),
            (Json, r#"{"95":"6","96":"a","5":"bc"}"#, Fix, "size of a data field"),
            (Json, r#"{"a":1}"#, Fix, "the field /a cannot be written: expected a tag of digits"),
            (Json, r#"{"a":"x\u0001y"}"#, Nvfix, "separator"),
            (Json, r#"{"a\u0000":1}"#, Bson, "a name without a zero byte"),
            (Json, r#"{"a":{"x y":1}}"#, Xml, "the field /a/x y cannot be written: expected names"),
            (Json, r#"{"a":{"b":1},"c":{"d":1}}"#, Xml, "has 2 fields, and an XML document"),
            (Json, "{}", Xml, "has 0 fields"),
            (Json, r#"{"a":1}"#, Xml, "expected a path of two or more steps"),
            (Nvfix, "a\u{1}", Json, "malformed"),
            (Binary, "a", Json, "not an object"),
            (Msgpack, "\u{7}", Json, "map expected"),
        ] {
            let error = translated(source, data.as_bytes(), target).unwrap_err().to_string();
            assert!(error.contains(reason), "{data}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_translated_or_refused(data in proptest::collection::vec(any::<u8>(), 0..60)) {
            for source in MessageType::ALL {
                for target in MessageType::ALL {
                    if let Ok(result) = translated(*source, &data, *target) {
                        prop_assert!(target.check(&result, &mut Arena::default()).is_ok());
                    }
                }
            }
        }
    }
}
