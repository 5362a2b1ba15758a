//! The part of a message that a select list keeps.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use quire_expression::message_type::*;
use quire_expression::select::Select;
use serde_json::{Map, Value as Document};

use super::model::{decode, document, encode};

fn selected(message_type: MessageType, list: &str, message: &[u8]) -> Vec<u8> {
    let (mut arena, mut out) = (Arena::default(), b"an earlier result".to_vec());
    Select::parse(list).unwrap().apply(Some(message_type), message, &mut arena, &mut out).to_vec()
}

/// The part of a message of pairs. `|` means SOH.
fn selected_text(message_type: MessageType, list: &str, message: &str) -> String {
    let left = selected(message_type, list, message.replace('|', "\u{1}").as_bytes());
    String::from_utf8(left).unwrap().replace('\u{1}', "|")
}

#[test]
fn pairs_keep_their_bytes_and_their_order() {
    let message = "symbol=IBM|qty= 1.50 |symbol=MSFT|note=a=b|qty=|";
    for (list, left) in [
        ("-/,+/symbol", "symbol=IBM|symbol=MSFT|"),
        ("-/,+/qty,+/note", "qty= 1.50 |note=a=b|qty=|"),
        ("-/symbol", "qty= 1.50 |note=a=b|qty=|"),
        ("+/symbol", message),
        ("-/,+/symbol/x", ""),
        ("-/", ""),
    ] {
        assert_eq!(selected_text(MessageType::Nvfix, list, message), left, "{list}");
    }
    // The last SOH may be missing.
    assert_eq!(selected_text(MessageType::Nvfix, "-/,+/b", "a=1|b=2"), "b=2");
    assert_eq!(selected_text(MessageType::Nvfix, "-/,+/a", "a=1|b=2"), "a=1|");
    // Sizes of data are of FIX only.
    assert_eq!(selected_text(MessageType::Nvfix, "-/,+/96", "95=1|96=x|"), "96=x|");
}

#[test]
fn the_header_and_the_checksum_of_fix_are_ordinary_fields() {
    let message = "8=FIX.4.4|9=30|35=D|55=IBM|38=100|10=128|";
    assert_eq!(selected_text(MessageType::Fix, "-/38", message), "8=FIX.4.4|9=30|35=D|55=IBM|10=128|");
    assert_eq!(selected_text(MessageType::Fix, "-/,+/55", message), "55=IBM|");
}

#[test]
fn a_data_field_of_fix_and_its_size_are_one_field() {
    let message = "35=D|95=3|96=a|b|58=t|354=2|355=cd|";
    for (list, left) in [
        ("-/,+/96", "95=3|96=a|b|"),
        ("-/96", "35=D|58=t|354=2|355=cd|"),
        ("-/,+/95", ""),
        ("-/95", message),
        ("-/,+/355,+/58", "58=t|354=2|355=cd|"),
    ] {
        assert_eq!(selected_text(MessageType::Fix, list, message), left, "{list}");
    }
}

#[test]
fn a_wrong_size_never_gets_data_by_what_is_left_out() {
    for message in ["95=5|58=x|96=ab|1=2|", "95=6|96=ab|7=1|8=9|"] {
        // `96` would get the value `ab|1=2`, or `ab|8=9`.
        assert_eq!(selected_text(MessageType::Fix, "-/58,-/7", message), message);
    }
    assert_eq!(selected_text(MessageType::Fix, "-/,+/95", "95=5|58=x|96=ab|"), "95=5|");
}

#[test]
fn maps_keep_their_keys_and_the_form_of_their_heads() {
    let type_ = MessageType::Msgpack;
    // {"a": 1, "b": {"c": 2, 7: 3}, "l": [{"c": 4, "d": 5}, 6]}, with heads of three bytes.
    let message = b"\xde\x00\x03\xa1a\x01\xa1b\xdf\x00\x00\x00\x02\xa1c\x02\x07\x03\xa1l\xdc\x00\x02\x82\xa1c\x04\xa1d\xcc\x05\x06";
    for (list, left) in [
        ("-/,+/a", &b"\xde\x00\x01\xa1a\x01"[..]),
        ("-/,+/b/7", b"\xde\x00\x01\xa1b\xdf\x00\x00\x00\x01\x07\x03"),
        ("-/,+/l/d", b"\xde\x00\x01\xa1l\xdc\x00\x01\x81\xa1d\xcc\x05"),
        ("-/a,-/b,-/l/d", b"\xde\x00\x01\xa1l\xdc\x00\x02\x81\xa1c\x04\x06"),
        ("-/,+/none", b"\x80"),
        ("-/", b"\x80"),
        ("+/a", message),
    ] {
        assert_eq!(
            selected(type_, list, message).escape_ascii().to_string(),
            left.escape_ascii().to_string()
        );
    }
    // Maps and arrays without members that are kept as such, and keys that no path names.
    let message = b"\x83\xa1a\x80\x91\x01\x90\xa1b\x90";
    assert_eq!(selected(type_, "-/,+/a,-/a/x", message), b"\x81\xa1a\x80");
    assert_eq!(selected(type_, "-/a,-/b/x", message), b"\x82\x91\x01\x90\xa1b\x90");
    for whole in [&b"\x01"[..], b"\x90", b"\x81\xa1a", b"\x81\xa1a\x01\x01", b""] {
        assert_eq!(selected(type_, "-/,+/b/c", whole), whole);
    }
}

#[test]
fn documents_get_their_new_sizes_and_arrays_their_new_indexes() {
    let type_ = MessageType::Bson;
    // {"a": 1, "b": {"c": true}, "l": [{"c": null}, {"d": "x"}]}
    let message = b"\x3c\0\0\0\x10a\0\x01\0\0\0\x03b\0\x09\0\0\0\x08c\0\x01\0\x04l\0\x21\0\0\0\
\x030\0\x08\0\0\0\x0ac\0\0\x031\0\x0e\0\0\0\x02d\0\x02\0\0\0x\0\0\0\0";
    for (list, left) in [
        ("-/,+/a", &b"\x0c\0\0\0\x10a\0\x01\0\0\0\0"[..]),
        ("-/,+/b/c", b"\x11\0\0\0\x03b\0\x09\0\0\0\x08c\0\x01\0\0"),
        ("-/,+/l/d", b"\x1e\0\0\0\x04l\0\x16\0\0\0\x030\0\x0e\0\0\0\x02d\0\x02\0\0\0x\0\0\0\0"),
        ("-/", b"\x05\0\0\0\0"),
        ("+/a", message),
        ("-/none", message),
    ] {
        assert_eq!(
            selected(type_, list, message).escape_ascii().to_string(),
            left.escape_ascii().to_string(),
            "{list}"
        );
    }
    for whole in [&message[..message.len() - 1], b"\x05\0\0\0\0\0", b""] {
        assert_eq!(selected(type_, "-/,+/a", whole), whole);
    }
}

#[test]
fn a_message_that_is_too_deep_is_left_whole() {
    let maps = |count| [b"\x81\xa1a".repeat(count), vec![0x01]].concat();
    let list = format!("-/,+{}", "/a".repeat(PATH_STEP_COUNT_MAX));
    assert_eq!(selected(MessageType::Msgpack, &list, &maps(DOCUMENT_DEPTH_MAX)), maps(DOCUMENT_DEPTH_MAX));
    assert_eq!(selected(MessageType::Msgpack, "-/", &maps(DOCUMENT_DEPTH_MAX)), b"\x80");
    let too_deep = maps(DOCUMENT_DEPTH_MAX + 1);
    assert_eq!(selected(MessageType::Msgpack, "-/", &too_deep), too_deep);
}

/// `+` or `-`, and the names of a path.
type Entry = (bool, Vec<&'static str>);

/// The rules as they are written, applied to one value at a time.
fn left_of(value: &Document, path: &mut Vec<String>, list: &[Entry]) -> Option<Document> {
    let is_about =
        |named: &[&str]| named.len() <= path.len() && named.iter().zip(path.iter()).all(|(a, b)| a == b);
    let entries = list.iter().filter(|(_, named)| is_about(named));
    // Of equal lengths the last is the greatest.
    let is_in = entries.max_by_key(|(_, named)| named.len()).is_none_or(|(is_in, _)| *is_in);
    match value {
        Document::Object(members) => {
            let mut left = Map::new();
            for (name, member) in members {
                path.push(name.clone());
                left.extend(left_of(member, path, list).map(|member| (name.clone(), member)));
                path.pop();
            }
            (!left.is_empty() || (is_in && members.is_empty())).then_some(left.into())
        }
        Document::Array(elements) => {
            let left: Vec<_> = elements.iter().filter_map(|element| left_of(element, path, list)).collect();
            (!left.is_empty() || (is_in && elements.is_empty())).then_some(left.into())
        }
        scalar => is_in.then(|| scalar.clone()),
    }
}

/// A type, a message of it, and a list.
fn case() -> impl Strategy<Value = (MessageType, Document, Vec<Entry>)> {
    let types: Vec<_> = MessageType::ALL.iter().copied().filter(|known| known.has_parts()).collect();
    select(types).prop_flat_map(|message_type| {
        let names = match message_type {
            MessageType::Nvfix | MessageType::Fix => vec!["1", "2", "3", "4", "5"],
            _ => vec!["a", "b", "c", "d", "n1", "n2"],
        };
        let entry = (any::<bool>(), vec(select(names), 0..4));
        (Just(message_type), document(message_type), vec(entry, 1..6))
    })
}

proptest! {
    #[test]
    fn what_is_left_is_what_the_rules_say((message_type, message, list) in case()) {
        let text = |(is_in, path): &Entry| format!("{}/{}", if *is_in { '+' } else { '-' }, path.join("/"));
        let text = list.iter().map(text).collect::<Vec<_>>().join(",");
        let expected = left_of(&message, &mut Vec::new(), &list).unwrap_or_else(|| Map::new().into());
        let left = selected(message_type, &text, &encode(message_type, &message));
        prop_assert_eq!(decode(message_type, &left), expected, "{} of {}", text, message);
    }
}
