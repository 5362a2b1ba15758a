//! Documents as the obvious tree, and how each format writes them. The encoders and decoders know
//! only what the generators make.

use proptest::collection::{hash_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use quick_xml::Reader;
use quick_xml::events::Event;
use quire_expression::message_type::MessageType;
use serde_json::{Map, Value as Document, json};

/// Few names, so that two messages share some.
const NAMES: &[&str] = &["a", "b", "c", "d", "\u{e9}"];

/// Data fields of FIX, and the tags of their sizes.
const DATA_TAGS: [(&str, &str); 3] = [("89", "93"), ("96", "95"), ("213", "212")];

/// Many names, so that they are looked up in a sorted list.
fn many_names() -> Vec<String> {
    (0..60).map(|number| format!("n{number}")).collect()
}

/// A message of this format as a document.
pub fn document(message_type: MessageType) -> BoxedStrategy<Document> {
    let text = "[a-z]{1,3}".prop_map(Document::from);
    match message_type {
        MessageType::Nvfix | MessageType::Fix => {
            let one = prop_oneof![Just(Document::Null), text];
            let value = prop_oneof![one.clone(), vec(one, 2..4).prop_map(Document::from)];
            let names: Vec<String> = (1..40).map(|number| number.to_string()).collect();
            let names = prop_oneof![select(names.clone()), select(names[..5].to_vec())];
            let fields = object(names, value, 0..30);
            if message_type == MessageType::Nvfix {
                return fields;
            }
            let data = prop_oneof![Just(Document::Null), "[a\u{1}=]{1,3}".prop_map(Document::from)];
            let data = prop_oneof![3 => data.clone(), 1 => vec(data, 2..4).prop_map(Document::from)];
            let data = object(select(&DATA_TAGS[..]).prop_map(|(tag, _)| tag.to_owned()), data, 0..4);
            (fields, data).prop_map(|(fields, data)| joined(fields, data)).boxed()
        }
        MessageType::Xml => {
            let names = || select(NAMES).prop_map(str::to_owned);
            let leaf = || prop_oneof![Just(Document::Null), "[a-z]{1,3}".prop_map(Document::from)];
            let attributes = move || object(names().prop_map(|name| format!("@{name}")), leaf(), 0..3);
            let element = leaf().prop_recursive(3, 20, 4, move |inner| {
                let array = vec(inner.clone(), 2..4).prop_map(Document::from);
                let element = prop_oneof![3 => inner, 1 => array];
                prop_oneof![
                    leaf(),
                    (attributes(), object(names(), element, 0..4))
                        .prop_map(|(left, right)| joined(left, right))
                        // Only the root element is an object without members.
                        .prop_map(|element| if element == json!({}) { Document::Null } else { element })
                ]
            });
            let array = vec(element.clone(), 2..4).prop_map(Document::from);
            let member = prop_oneof![3 => element, 1 => array];
            (attributes(), object(names(), member, 0..5))
                .prop_map(|(left, right)| json!({ "root": joined(left, right) }))
                .boxed()
        }
        _ => {
            let leaf = prop_oneof![
                Just(Document::Null),
                any::<bool>().prop_map(Document::from),
                (-300_000_i64..300_000).prop_map(Document::from),
                text,
            ];
            let value = leaf.clone().prop_recursive(4, 30, 4, |inner| {
                prop_oneof![
                    vec(inner.clone(), 0..4).prop_map(Document::from),
                    object(select(NAMES).prop_map(str::to_owned), inner, 0..5),
                ]
            });
            prop_oneof![
                3 => object(select(NAMES).prop_map(str::to_owned), value, 0..5),
                1 => object(select(many_names()), leaf, 0..50),
            ]
            .boxed()
        }
    }
}

fn object(
    name: impl Strategy<Value = String> + 'static,
    value: impl Strategy<Value = Document> + 'static,
    count: std::ops::Range<usize>,
) -> BoxedStrategy<Document> {
    hash_map(name, value, count).prop_map(|members| members.into_iter().collect()).boxed()
}

fn joined(left: Document, right: Document) -> Document {
    let members = [left, right].into_iter().filter_map(|part| match part {
        Document::Object(members) => Some(members),
        _ => None,
    });
    let members: Map<String, Document> = members.flatten().collect();
    Document::Object(members)
}

/// The result of a merge.
pub fn merged(base: &Document, delta: &Document) -> Document {
    match (base, delta) {
        (Document::Object(base), Document::Object(delta)) => {
            let mut members = base.clone();
            for (name, value) in delta {
                let value = base.get(name).map_or(value.clone(), |known| merged(known, value));
                members.insert(name.clone(), value);
            }
            members.into()
        }
        _ => delta.clone(),
    }
}

/// The members that differ; `None` when there are none.
pub fn difference(old: &Document, new: &Document) -> Option<Document> {
    let (Document::Object(old), Document::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut members = Map::new();
    for (name, value) in new {
        let part = old.get(name).map_or(Some(value.clone()), |known| difference(known, value));
        members.extend(part.map(|part| (name.clone(), part)));
    }
    for (name, value) in old {
        if !new.contains_key(name) && !value.is_null() {
            members.insert(name.clone(), Document::Null);
        }
    }
    (!members.is_empty()).then_some(members.into())
}

/// Without the members that are NULL.
pub fn without_nulls(document: &Document) -> Document {
    match document {
        Document::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            members.map(|(name, value)| (name.clone(), without_nulls(value))).collect()
        }
        other => other.clone(),
    }
}

pub fn encode(message_type: MessageType, document: &Document) -> Vec<u8> {
    let mut out = Vec::new();
    match message_type {
        MessageType::Json => return document.to_string().into_bytes(),
        MessageType::Nvfix | MessageType::Fix => {
            for (tag, value) in members(document) {
                for one in elements(value) {
                    let text = one.as_str().unwrap_or_default();
                    if message_type == MessageType::Fix
                        && let Some((_, size)) = DATA_TAGS.iter().find(|(data, _)| data == tag)
                    {
                        out.extend_from_slice(format!("{size}={}\u{1}", text.len()).as_bytes());
                    }
                    out.extend_from_slice(format!("{tag}={text}\u{1}").as_bytes());
                }
            }
        }
        MessageType::Xml => {
            members(document).for_each(|(name, value)| encode_element(name, value, &mut out));
        }
        MessageType::Msgpack => encode_msgpack(document, &mut out),
        MessageType::Bson => encode_bson(document, &mut out),
        MessageType::Binary => unreachable!("has no documents"),
    }
    out
}

/// Removes the separator after the last pair, where the message keeps its meaning without it.
pub fn remove_last_separator(message_type: MessageType, message: &mut Vec<u8>) {
    let has_pairs = matches!(message_type, MessageType::Nvfix | MessageType::Fix);
    if has_pairs && !message.ends_with(b"\x01\x01") {
        message.pop();
    }
}

fn members(document: &Document) -> impl Iterator<Item = (&String, &Document)> {
    document.as_object().into_iter().flatten()
}

fn elements(value: &Document) -> &[Document] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

fn encode_element(name: &str, value: &Document, out: &mut Vec<u8>) {
    let Document::Object(_) = value else {
        let text = value.as_str().unwrap_or_default();
        out.extend_from_slice(format!("<{name}>{text}</{name}>").as_bytes());
        return;
    };
    out.extend_from_slice(format!("<{name}").as_bytes());
    for (name, value) in members(value).filter(|(name, _)| name.starts_with('@')) {
        let text = value.as_str().unwrap_or_default();
        out.extend_from_slice(format!(" {}='{text}'", &name[1..]).as_bytes());
    }
    let inner: Vec<_> = members(value).filter(|(name, _)| !name.starts_with('@')).collect();
    if inner.is_empty() {
        out.extend_from_slice(b" />");
        return;
    }
    out.push(b'>');
    for (name, value) in inner {
        elements(value).iter().for_each(|one| encode_element(name, one, out));
    }
    out.extend_from_slice(format!("</{name}>").as_bytes());
}

fn encode_msgpack(value: &Document, out: &mut Vec<u8>) {
    let text = |text: &str, out: &mut Vec<u8>| {
        out.push(0xA0 | text.len() as u8);
        out.extend_from_slice(text.as_bytes());
    };
    match value {
        Document::Null => out.push(0xC0),
        Document::Bool(value) => out.push(0xC2 | u8::from(*value)),
        Document::Number(number) => {
            out.push(0xD2);
            out.extend_from_slice(&(number.as_i64().unwrap() as i32).to_be_bytes());
        }
        Document::String(value) => text(value, out),
        Document::Array(elements) => {
            out.push(0x90 | elements.len() as u8);
            elements.iter().for_each(|element| encode_msgpack(element, out));
        }
        Document::Object(members) => {
            out.push(0xDE);
            out.extend_from_slice(&(members.len() as u16).to_be_bytes());
            for (name, value) in members {
                text(name, out);
                encode_msgpack(value, out);
            }
        }
    }
}

fn encode_bson(document: &Document, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let members: Vec<(String, &Document)> = match document {
        Document::Array(elements) => {
            elements.iter().enumerate().map(|(place, element)| (place.to_string(), element)).collect()
        }
        document => members(document).map(|(name, value)| (name.clone(), value)).collect(),
    };
    for (name, value) in members {
        let kind = match value {
            Document::Null => 0x0A,
            Document::Bool(_) => 0x08,
            Document::Number(_) => 0x10,
            Document::String(_) => 0x02,
            Document::Array(_) => 0x04,
            Document::Object(_) => 0x03,
        };
        out.push(kind);
        out.extend_from_slice(name.as_bytes());
        out.push(0);
        match value {
            Document::Null => {}
            Document::Bool(value) => out.push((*value).into()),
            Document::Number(number) => {
                out.extend_from_slice(&(number.as_i64().unwrap() as i32).to_le_bytes());
            }
            Document::String(text) => {
                out.extend_from_slice(&(text.len() as i32 + 1).to_le_bytes());
                out.extend_from_slice(text.as_bytes());
                out.push(0);
            }
            inner => encode_bson(inner, out),
        }
    }
    out.push(0);
    let size = (out.len() - start) as i32;
    out[start..start + 4].copy_from_slice(&size.to_le_bytes());
}

pub fn decode(message_type: MessageType, mut data: &[u8]) -> Document {
    match message_type {
        MessageType::Json => serde_json::from_slice(data).unwrap(),
        MessageType::Nvfix => {
            let text = String::from_utf8(data.to_vec()).unwrap();
            let pairs = text.split_terminator('\u{1}').map(|pair| pair.split_once('=').unwrap());
            with_arrays(pairs.map(|(tag, value)| (tag.to_owned(), text_or_null(value))))
        }
        MessageType::Fix => decode_fix(std::str::from_utf8(data).unwrap()),
        MessageType::Xml => {
            let mut reader = Reader::from_str(std::str::from_utf8(data).unwrap());
            let mut document = decode_elements(&mut reader, Vec::new(), true);
            let root = document.as_object_mut().and_then(|members| members.values_mut().next()).unwrap();
            if root.is_null() {
                *root = json!({});
            }
            document
        }
        MessageType::Msgpack => {
            let document = decode_msgpack(&mut data);
            assert!(data.is_empty());
            document
        }
        MessageType::Bson => {
            let document = decode_bson(&mut data, false);
            assert!(data.is_empty());
            document
        }
        MessageType::Binary => unreachable!("has no documents"),
    }
}

fn decode_fix(mut rest: &str) -> Document {
    let (mut pairs, mut data_size) = (Vec::new(), None);
    while let Some((tag, after)) = rest.split_once('=') {
        let size = data_size.take().unwrap_or_else(|| after.find('\u{1}').unwrap_or(after.len()));
        let (value, after) = after.split_at(size);
        rest = after.strip_prefix('\u{1}').unwrap_or(after);
        match DATA_TAGS.iter().any(|(_, size_tag)| *size_tag == tag) {
            true => data_size = Some(value.parse().unwrap()),
            false => pairs.push((tag.to_owned(), text_or_null(value))),
        }
    }
    assert_eq!(rest, "");
    with_arrays(pairs.into_iter())
}

fn text_or_null(text: &str) -> Document {
    if text.is_empty() { Document::Null } else { text.into() }
}

fn with_arrays(members: impl Iterator<Item = (String, Document)>) -> Document {
    let mut all = Map::new();
    for (name, value) in members {
        match all.get_mut(&name) {
            None => {
                all.insert(name, value);
            }
            Some(Document::Array(elements)) => elements.push(value),
            Some(one) => *one = vec![one.take(), value].into(),
        }
    }
    all.into()
}

/// The members of an element that begins with these attributes, to its end tag.
fn decode_elements(
    reader: &mut Reader<&[u8]>,
    mut members: Vec<(String, Document)>,
    is_root: bool,
) -> Document {
    let mut text = String::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Start(tag) => {
                let name = tag.name().as_ref().to_owned();
                let attributes = decode_attributes(&tag);
                members.push((name, decode_elements(reader, attributes, false)));
            }
            Event::Empty(tag) => {
                let attributes = decode_attributes(&tag);
                let value = match attributes.len() {
                    0 => Document::Null,
                    _ => with_arrays(attributes.into_iter()),
                };
                members.push((tag.name().as_ref().to_owned(), value));
            }
            Event::Text(piece) => text.push_str(&piece),
            Event::End(_) | Event::Eof if members.is_empty() && !is_root => return text_or_null(&text),
            Event::End(_) | Event::Eof => return with_arrays(members.into_iter()),
            other => unreachable!("{other:?}"),
        }
    }
}

fn decode_attributes(tag: &quick_xml::events::BytesStart<'_>) -> Vec<(String, Document)> {
    let attributes = tag.attributes().map(Result::unwrap);
    attributes
        .map(|attribute| (format!("@{}", attribute.key.as_ref() as &str), text_or_null(&attribute.value)))
        .collect()
}

fn take<'a>(data: &mut &'a [u8], size: usize) -> &'a [u8] {
    data.split_off(..size).unwrap()
}

fn decode_msgpack(data: &mut &[u8]) -> Document {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let map = |count: usize, data: &mut &[u8]| {
        let members = (0..count).map(|_| {
            let name = decode_msgpack(data).as_str().unwrap().to_owned();
            (name, decode_msgpack(data))
        });
        Document::Object(members.collect())
    };
    match take(data, 1)[0] {
        0xC0 => Document::Null,
        byte @ 0xC2..=0xC3 => (byte == 0xC3).into(),
        0xD2 => i32::from_be_bytes(take(data, 4).try_into().unwrap()).into(),
        byte @ (..=0x7F | 0xE0..) => (byte as i8).into(),
        0xCC => take(data, 1)[0].into(),
        0xCD => u16::from_be_bytes(take(data, 2).try_into().unwrap()).into(),
        0xCE => u32::from_be_bytes(take(data, 4).try_into().unwrap()).into(),
        0xD0 => (take(data, 1)[0] as i8).into(),
        0xD1 => i16::from_be_bytes(take(data, 2).try_into().unwrap()).into(),
        byte @ 0xA0..=0xBF => text(take(data, (byte & 0x1F).into())).into(),
        byte @ 0x90..=0x9F => (0..byte & 0x0F).map(|_| decode_msgpack(data)).collect(),
        byte @ 0x80..=0x8F => map((byte & 0x0F).into(), data),
        0xDE => {
            let count = u16::from_be_bytes(take(data, 2).try_into().unwrap());
            map(count.into(), data)
        }
        other => unreachable!("{other:#x}"),
    }
}

fn decode_bson(data: &mut &[u8], is_array: bool) -> Document {
    let size = i32::from_le_bytes(data[..4].try_into().unwrap()) as usize;
    let mut document = &take(data, size)[4..];
    let mut members = Vec::new();
    loop {
        let kind = take(&mut document, 1)[0];
        if kind == 0 {
            assert!(document.is_empty());
            break;
        }
        let name_size = document.iter().position(|byte| *byte == 0).unwrap();
        let name = String::from_utf8(take(&mut document, name_size).to_vec()).unwrap();
        take(&mut document, 1);
        let value = match kind {
            0x0A => Document::Null,
            0x08 => (take(&mut document, 1) == [1]).into(),
            0x10 => i32::from_le_bytes(take(&mut document, 4).try_into().unwrap()).into(),
            0x02 => {
                let size = i32::from_le_bytes(take(&mut document, 4).try_into().unwrap()) as usize;
                String::from_utf8(take(&mut document, size)[..size - 1].to_vec()).unwrap().into()
            }
            0x03 => decode_bson(&mut document, false),
            0x04 => decode_bson(&mut document, true),
            other => unreachable!("{other:#x}"),
        };
        members.push((name, value));
    }
    match is_array {
        true => members.into_iter().map(|(_, value)| value).collect(),
        false => members.into_iter().collect(),
    }
}
