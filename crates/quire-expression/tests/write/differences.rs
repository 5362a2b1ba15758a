//! The difference of two messages.

use proptest::prelude::*;
use quire_expression::message_type::*;
use serde_json::{Value as Document, json};

use super::model::{self, decode, document, encode};
use super::{merged, path};

fn difference_text(message_type: MessageType, old: &str, new: &str, keep: &[Vec<Step>]) -> (String, bool) {
    let bytes = |text: &str| text.replace('|', "\u{1}").into_bytes();
    let mut out = b"an earlier result".to_vec();
    let differs = difference(message_type, &bytes(old), &bytes(new), keep, &mut out).unwrap();
    (String::from_utf8(out).unwrap().replace('\u{1}', "|"), differs)
}

#[test]
fn changed_leaves_are_sent_under_their_parents() {
    for (old, new, expected) in [
        (r#"{"a":1,"b":2}"#, r#"{"b":3,"a":1}"#, r#"{"b":3}"#),
        (
            r#"{"a":{"b":1,"c":{"d":2,"e":3}}}"#,
            r#"{"a":{"b":1,"c":{"d":2,"e":4}}}"#,
            r#"{"a":{"c":{"e":4}}}"#,
        ),
        (r#"{"a":1}"#, r#"{"a":1.0}"#, r#"{"a":1.0}"#),
        (r#"{"a":1}"#, r#"{"a":"1"}"#, r#"{"a":"1"}"#),
        (r#"{"a":[1,2]}"#, r#"{"a":[1,3]}"#, r#"{"a":[1,3]}"#),
        (r#"{"a":1,"b":{"c":2,"d":3}}"#, r#"{"b":{"d":3}}"#, r#"{"b":{"c":null},"a":null}"#),
        (r#"{"a":{"b":1}}"#, "{}", r#"{"a":null}"#),
        (r#"{"a":null}"#, "{}", "{}"),
        (r#"{"a":{"b":1}}"#, r#"{"a":5}"#, r#"{"a":5}"#),
        (r#"{"a":5}"#, r#"{"a":{"b":1}}"#, r#"{"a":{"b":1}}"#),
        (r#"{ "a" : 1 }"#, r#"{"a":1}"#, "{}"),
        (r#"{"a":{}}"#, r#"{"a":{"b":{"c":1}}}"#, r#"{"a":{"b":{"c":1}}}"#),
        (r#"{"a":1,"a":2}"#, r#"{"\u0061":2,"b":1,"b":2}"#, r#"{"b":2}"#),
    ] {
        let (out, differs) = difference_text(MessageType::Json, old, new, &[]);
        assert_eq!((&*out, differs), (expected, expected != "{}"), "{old} {new}");
    }
}

#[test]
fn key_fields_are_sent_although_they_are_equal() {
    let old = r#"{"id":1,"k":{"x":1,"y":2},"list":[{"z":1}],"v":1}"#;
    let new = r#"{"v":2,"list":[{"z":1}],"k":{"y":2,"x":1},"id":1}"#;
    for (keep, expected) in [
        (vec![path(&["id"])], r#"{"v":2,"id":1}"#),
        (vec![path(&["k", "x"])], r#"{"v":2,"k":{"x":1}}"#),
        (vec![path(&["k"]), path(&["k", "x"])], r#"{"v":2,"k":{"y":2,"x":1}}"#),
        (vec![path(&["list", "z"])], r#"{"v":2,"list":[{"z":1}]}"#),
        (vec![vec![Step::Name(b"list"[..].into()), Step::Index(0)]], r#"{"v":2,"list":[{"z":1}]}"#),
        (vec![path(&["v"]), path(&["none"]), path(&["k", "none"])], r#"{"v":2}"#),
    ] {
        assert_eq!(difference_text(MessageType::Json, old, new, &keep), (expected.to_owned(), true));
    }
    let (out, differs) = difference_text(MessageType::Json, old, old, &[path(&["id"])]);
    assert_eq!((&*out, differs), (r#"{"id":1}"#, false));
    // A part of the kept object differs, and a part of it was removed.
    let (out, _) = difference_text(
        MessageType::Json,
        r#"{"k":{"x":1,"y":2}}"#,
        r#"{"k":{"x":1,"z":3}}"#,
        &[path(&["k"])],
    );
    assert_eq!(out, r#"{"k":{"x":1,"z":3,"y":null}}"#);
}

#[test]
fn each_format_writes_its_differences() {
    for (message_type, old, new, keep, expected) in [
        (MessageType::Fix, "1=a|2=b|2=c|3=d|", "1=a|2=b|3=e", vec![path(&["1"])], "1=a|2=b|3=e|"),
        (MessageType::Fix, "1=a|2=b|", "2=b|", vec![], "1=|"),
        (MessageType::Fix, "1=a|", "1=a|95=2|96=x||", vec![], "95=2|96=x||"),
        (MessageType::Fix, "1=a|2=b|", "95=2|96=x||2=c|", vec![], "95=2|96=x||2=c|1=|"),
        (MessageType::Fix, "", "95=1|96=||95=2|96=x||1=a", vec![], "95=1|96=||95=2|96=x||1=a|"),
        (MessageType::Nvfix, "a=1|b=2", "a=1|b=2|", vec![], ""),
        (
            MessageType::Xml,
            "<o id='1' x='2' y='3'><a>1</a><i>1</i><i>2</i><g/></o>",
            "<o id='1' x='4'><i>1</i><i>3</i><a>1</a></o>",
            vec![path(&["o", "@id"])],
            "<o id='1' x='4' y=\"\"><i>1</i><i>3</i></o>",
        ),
        (MessageType::Xml, "<o><a>1</a></o>", "<o><b x='1'/></o>", vec![], "<o><b x='1'/><a/></o>"),
        (MessageType::Xml, "<o><a>1</a></o>", " <o><a>1</a></o>", vec![], "<o></o>"),
        (MessageType::Xml, "<o>1</o>", "<o>1</o>", vec![], "<o>1</o>"),
        (MessageType::Xml, "<o><i a='1'/><i a='2'/></o>", "<o><i a='1'/></o>", vec![], "<o><i a='1'/></o>"),
        (
            MessageType::Xml,
            "<o><i a='1'/></o>",
            "<o><i a='1'/><i a='2'/></o>",
            vec![],
            "<o><i a='1'/><i a='2'/></o>",
        ),
        (
            MessageType::Xml,
            "<o><i a='1'/><i a='2'/></o>",
            "<o><i a='1'/><i a='3'/></o>",
            vec![path(&["o", "i", "@a"])],
            "<o><i a='1'/><i a='3'/></o>",
        ),
        (
            MessageType::Xml,
            "<o><i a='1'/><i a='2'/></o>",
            "<o><i a='1'/><i a='2'/></o>",
            vec![path(&["o", "i", "@a"])],
            "<o><i a='1'/><i a='2'/></o>",
        ),
    ] {
        let (out, _) = difference_text(message_type, old, new, &keep);
        assert_eq!(out, expected, "{old} {new}");
    }
    let mut out = Vec::new();
    let differs = difference(MessageType::Binary, b"a", b"b", &[], &mut out);
    assert_eq!((differs, &*out), (Ok(true), &b"b"[..]));
    let error = difference(MessageType::Xml, b"<a/>", b"<b/>", &[], &mut out);
    assert_eq!((error, out.len()), (Err(MergeError::DifferentRoots), 0));
}

fn two_messages() -> impl Strategy<Value = (MessageType, Document, Document)> {
    let types: Vec<_> = MessageType::ALL.iter().copied().filter(|known| known.has_fields()).collect();
    prop::sample::select(types).prop_flat_map(|message_type| {
        let near = (document(message_type), document(message_type))
            .prop_map(|(old, changes)| (old.clone(), model::merged(&old, &changes)));
        let far = (document(message_type), document(message_type));
        (Just(message_type), prop_oneof![near, far])
            .prop_map(|(message_type, (old, new))| (message_type, old, new))
    })
}

proptest! {
    #[test]
    fn a_difference_is_what_the_model_says((message_type, old, new) in two_messages()) {
        let mut out = Vec::new();
        let (old_bytes, new_bytes) = (encode(message_type, &old), encode(message_type, &new));
        let differs = difference(message_type, &old_bytes, &new_bytes, &[], &mut out).unwrap();
        let expected = model::difference(&old, &new);
        prop_assert_eq!(differs, expected.is_some());
        let nothing = if message_type == MessageType::Xml { json!({"root": {}}) } else { json!({}) };
        let expected = expected.unwrap_or(nothing);
        prop_assert_eq!(decode(message_type, &out), expected, "{:?} {} {}", message_type, old, new);
        let result = decode(message_type, &merged(message_type, &old_bytes, &out));
        prop_assert_eq!(model::without_nulls(&result), model::without_nulls(&new), "{:?} {} {}", message_type, old, new);
    }
}
