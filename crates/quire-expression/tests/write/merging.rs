//! Merging a part of a message into a message.

use proptest::prelude::*;
use quire_expression::message_type::*;
use serde_json::Value as Document;

use super::model::{self, decode, document, encode};
use super::{merged, merged_text};

#[test]
fn json_members_are_replaced_in_place_and_added_at_the_end() {
    for (base, delta, expected) in [
        (r#"{"a":1,"b":2}"#, r#"{"a":3}"#, r#"{"a":3,"b":2}"#),
        (r#"{"a":1,"b":2}"#, r#"{"d": 4 ,"b":"x","c":5}"#, r#"{"a":1,"b":"x","d": 4,"c":5}"#),
        (r#" { "a" : 1 , "b" : 2 } "#, r#"{"b":null,"c":3}"#, r#" { "a" : 1 , "b" : null,"c":3 } "#),
        ("{}", r#"{"a":1,"b":{}}"#, r#"{"a":1,"b":{}}"#),
        ("{ }", r#"{"a":1}"#, r#"{"a":1 }"#),
        (r#"{"a":1}"#, "{}", r#"{"a":1}"#),
        (r#"{"a":"}"}"#, r#"{"b":"{"}"#, r#"{"a":"}","b":"{"}"#),
    ] {
        assert_eq!(merged_text(MessageType::Json, base, delta), expected, "{base} {delta}");
    }
}

#[test]
fn objects_merge_field_by_field_and_arrays_are_replaced_whole() {
    for (base, delta, expected) in [
        (
            r#"{"id":42,"contents":{"packages":[{"box":1},{"bowl":2}],"sum":3}}"#,
            r#"{"id":42,"contents":{"packages":[{"basket":"eggs"}]}}"#,
            r#"{"id":42,"contents":{"packages":[{"basket":"eggs"}],"sum":3}}"#,
        ),
        (r#"{"a":{"b":{"c":1}}}"#, r#"{"a":{"b":{"d":2},"e":3}}"#, r#"{"a":{"b":{"c":1,"d":2},"e":3}}"#),
        (r#"{"a":{"b":1}}"#, r#"{"a":null}"#, r#"{"a":null}"#),
        (r#"{"a":null}"#, r#"{"a":{"b":1}}"#, r#"{"a":{"b":1}}"#),
        (r#"{"a":{"b":1}}"#, r#"{"a":{}}"#, r#"{"a":{"b":1}}"#),
        (r#"{"a":[1]}"#, r#"{"a":{"b":1}}"#, r#"{"a":{"b":1}}"#),
    ] {
        assert_eq!(merged_text(MessageType::Json, base, delta), expected, "{base} {delta}");
    }
}

#[test]
fn of_members_with_one_name_the_last_one_counts() {
    for (base, delta, expected) in [
        (r#"{"a":1,"a":2,"b":3}"#, r#"{"a":4}"#, r#"{"a":1,"a":4,"b":3}"#),
        (r#"{"a":1}"#, r#"{"b":2,"a":3,"b":4,"a":5}"#, r#"{"a":5,"b":4}"#),
        (r#"{"a":{"x":1},"a":{"y":2}}"#, r#"{"a":{"z":3}}"#, r#"{"a":{"x":1},"a":{"y":2,"z":3}}"#),
        (r#"{"\u0061":1}"#, r#"{"a":2}"#, r#"{"\u0061":2}"#),
        (r#"{"a":1}"#, r#"{"\u0061":2,"\n":3}"#, r#"{"a":2,"\n":3}"#),
    ] {
        assert_eq!(merged_text(MessageType::Json, base, delta), expected, "{base} {delta}");
    }
}

#[test]
fn pairs_of_one_tag_are_replaced_together() {
    for (base, delta, expected) in [
        ("55=IBM|38=600|", "38=700|", "55=IBM|38=700|"),
        ("55=IBM|38=600", "38=700|44=1", "55=IBM|38=700|44=1|"),
        ("55=IBM|38=600", "55=", "55=|38=600"),
        ("1=a|2=x|1=b|3=y|1=c|", "1=d|", "1=d|2=x|3=y|"),
        ("1=a|2=x|1=b", "1=d|9=z|1=e|1=f|", "1=d|1=e|1=f|2=x|9=z|"),
        ("", "1=a", "1=a|"),
        ("1=a", "", "1=a"),
    ] {
        assert_eq!(merged_text(MessageType::Fix, base, delta), expected, "{base} {delta}");
        assert_eq!(merged_text(MessageType::Nvfix, base, delta), expected, "{base} {delta}");
    }
}

#[test]
fn a_data_field_of_fix_is_merged_and_compared_with_its_size() {
    let merged = |base, delta| merged_text(MessageType::Fix, base, delta);
    assert_eq!(merged("1=a|95=3|96=x|y|2=b|", "95=5|96=p|q|r|"), "1=a|95=5|96=p|q|r|2=b|");
    assert_eq!(merged("1=a|95=3|96=x|y|2=b|", "96=z|"), "1=a|96=z|2=b|");
    assert_eq!(merged("1=a|96=z|", "95=3|96=x|y|3=c|"), "1=a|95=3|96=x|y|3=c|");
    assert_eq!(merged("1=a|", "95=3|96=x|y|"), "1=a|95=3|96=x|y|");
    let compared = |old: &str, new: &str| {
        let mut out = Vec::new();
        let bytes = |text: &str| text.replace('|', "\u{1}").into_bytes();
        difference(MessageType::Fix, &bytes(old), &bytes(new), &[], &mut out).unwrap();
        String::from_utf8(out).unwrap().replace('\u{1}', "|")
    };
    assert_eq!(compared("1=a|95=3|96=x|y|", "1=a|95=3|96=x|z|"), "95=3|96=x|z|");
    // A wrong size, which leads to the end of a pair after the merge.
    let wrong = "95=6|96=4|1=a|95=3|96=7|>|".replace('|', "\u{1}").into_bytes();
    let mut out = b"an earlier result".to_vec();
    let error = merge(MessageType::Fix, &wrong, &wrong, &mut out);
    assert!(matches!(error, Err(MergeError::Malformed { side: Side::New, .. })), "{error:?}");
    assert!(out.is_empty());
    assert_eq!(compared("1=a|95=3|96=x|y|", "1=a|"), "96=|");
}

#[test]
fn a_data_field_of_fix_that_ends_with_soh_keeps_it() {
    for (base, delta, expected) in [
        ("1=a|", "95=2|96=x||58=t|", "1=a|95=2|96=x||58=t|"),
        ("1=a|", "58=t|95=2|96=x||", "1=a|58=t|95=2|96=x||"),
        ("95=2|96=x||", "58=t|", "95=2|96=x||58=t|"),
        ("95=2|96=x||", "58=t", "95=2|96=x||58=t|"),
        ("", "95=1|96=||58=t", "95=1|96=||58=t|"),
        // A base without the last separator.
        ("1=a", "95=2|96=x||", "1=a|95=2|96=x||"),
        ("1=a|96=z", "95=2|96=x||", "1=a|95=2|96=x||"),
        ("1=a|96=z", "95=2|96=x||58=t", "1=a|95=2|96=x||58=t|"),
        ("1=a|95=2|96=x||1=b", "1=c", "1=c|95=2|96=x||"),
        ("1=a|95=2|96=x||1=b", "1=c|2=d", "1=c|95=2|96=x||2=d|"),
        // Several data fields with one tag are an array.
        ("96=z|1=a|", "95=2|96=x||95=1|96=||", "95=2|96=x||95=1|96=||1=a|"),
    ] {
        assert_eq!(merged_text(MessageType::Fix, base, delta), expected, "{base} {delta}");
    }
}

#[test]
fn a_merge_that_a_wrong_size_would_give_other_fields_is_refused() {
    // The size is wrong before the merge. After it, it leads to the end of the added pair.
    let (base, delta) = ("95=7|96=abc|", "1=2|");
    let bytes = |text: &str| text.replace('|', "\u{1}").into_bytes();
    let mut out = b"an earlier result".to_vec();
    let error = merge(MessageType::Fix, &bytes(base), &bytes(delta), &mut out);
    assert!(matches!(error, Err(MergeError::Malformed { side: Side::New, .. })), "{error:?}");
    assert!(out.is_empty());
    assert_eq!(merged_text(MessageType::Fix, base, "2=345|"), "95=7|96=abc|2=345|");
}

#[test]
fn xml_elements_and_attributes_merge_by_name() {
    for (base, delta, expected) in [
        (
            "<?xml version='1.0'?>\n<o id='1'>\n  <qty>5</qty> <!-- note -->\n  <px>2</px>\n</o>\n",
            r#"<o side="buy"><px>3</px><memo/></o>"#,
            "<?xml version='1.0'?>\n<o id='1' side=\"buy\">\n  <qty>5</qty> <!-- note -->\n  <px>3</px>\n<memo/></o>\n",
        ),
        (r#"<o id="1"/>"#, "<o><a>1</a><b/></o>", r#"<o id="1"><a>1</a><b/></o>"#),
        (r#"<o id="1" />"#, r#"<o id="" x="2"/>"#, r#"<o id="" x="2" />"#),
        ("<o><i>1</i><n/><i>2</i></o>", "<o><i>3</i></o>", "<o><i>3</i><n/></o>"),
        ("<o><i>1</i><n/></o>", "<o><i>3</i><i>4</i></o>", "<o><i>3</i><i>4</i><n/></o>"),
        ("<o><i a='1'/><i a='2'/></o>", "<o><i b='3'/></o>", "<o><i b='3'/></o>"),
        ("<o><i a='1'/></o>", "<o><i b='2'/><i b='3'/></o>", "<o><i b='2'/><i b='3'/></o>"),
        ("<o><a><b>1</b></a></o>", "<o><a><c>2</c></a></o>", "<o><a><b>1</b><c>2</c></a></o>"),
        ("<o><a><b>1</b></a></o>", "<o><a/></o>", "<o><a/></o>"),
        ("<o><a x='1'>t</a></o>", "<o><a y='2'/></o>", "<o><a y='2'/></o>"),
        ("<o><a/></o>", "<o/>", "<o><a/></o>"),
        ("<o/>", "<o><a/></o>", "<o><a/></o>"),
        ("<o>1</o>", "<o>2</o>", "<o>2</o>"),
        ("<o>1</o>", "<o/>", "<o/>"),
    ] {
        assert_eq!(merged_text(MessageType::Xml, base, delta), expected, "{base} {delta}");
    }
    let different = merge(MessageType::Xml, b"<a/>", b"<b/>", &mut Vec::new());
    assert_eq!(different, Err(MergeError::DifferentRoots));
}

#[test]
fn xml_after_a_byte_order_mark_is_merged_and_compared() {
    let mark = "\u{feff}";
    let (base, delta) =
        ("<o a='1'><id>1</id><n/></o>", "<o b='2'><id>2</id><gr\u{f6}\u{df}e>3</gr\u{f6}\u{df}e></o>");
    let expected = merged_text(MessageType::Xml, base, delta);
    assert_eq!(merged_text(MessageType::Xml, &format!("{mark}{base}"), delta), format!("{mark}{expected}"));
    assert_eq!(merged_text(MessageType::Xml, base, &format!("{mark}{delta}")), expected);
    let compared = |old: &str, new: &str| {
        let mut out = Vec::new();
        difference(MessageType::Xml, old.as_bytes(), new.as_bytes(), &[], &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(compared(&format!("{mark}{base}"), &format!("{mark}{expected}")), compared(base, &expected));
}

#[test]
fn msgpack_keys_are_equal_when_paths_name_them_equally() {
    // 1 as an integer of one byte and of nine, and as a text; true and 'true'; nil, which no path
    // names.
    let base = b"\x84\x01\xa1a\xc3\xa1b\xc0\xa1c\xa1x\x05";
    let delta = b"\x84\xd3\0\0\0\0\0\0\0\x01\xa1d\xa4true\xa1e\xc0\xa1f\xa1y\x06";
    let expected = b"\x85\x01\xa1d\xc3\xa1e\xc0\xa1f\xa1x\x05\xa1y\x06";
    assert_eq!(merged(MessageType::Msgpack, base, delta), expected);
    let sixteen: Vec<u8> = (0..16).flat_map(|key| [0x20 + key, key]).collect();
    let (base, delta) = ([b"\xde\0\x10", &*sixteen].concat(), b"\x81\x01\x02");
    let expected = [b"\xde\0\x11", &*sixteen, b"\x01\x02"].concat();
    assert_eq!(merged(MessageType::Msgpack, &base, delta), expected);
}

#[test]
fn bson_values_change_their_type() {
    // {a: int32 1, b: {c: true}} and {a: 'x', b: {d: null}}
    let base = b"\x18\0\0\0\x10a\0\x01\0\0\0\x03b\0\x09\0\0\0\x08c\0\x01\0\0";
    let delta = b"\x19\0\0\0\x02a\0\x02\0\0\0x\0\x03b\0\x08\0\0\0\x0Ad\0\0\0";
    let expected = b"\x1d\0\0\0\x02a\0\x02\0\0\0x\0\x03b\0\x0c\0\0\0\x08c\0\x01\x0Ad\0\0\0";
    assert_eq!(merged(MessageType::Bson, base, delta), expected);
}

#[test]
fn a_binary_message_is_replaced() {
    assert_eq!(merged(MessageType::Binary, b"{\"a\":1}", b"\x00"), b"\x00");
}

#[test]
fn a_message_that_is_malformed_or_has_no_fields_is_an_error() {
    for message_type in MessageType::ALL.iter().filter(|known| known.has_fields()) {
        let good = encode(
            *message_type,
            &match message_type {
                MessageType::Xml => serde_json::json!({"root": {"a": "1"}}),
                _ => serde_json::json!({"1": "x"}),
            },
        );
        let bad = b"\x01";
        for (base, delta, side) in [(&good[..], &bad[..], Side::New), (bad, &good, Side::Old)] {
            let mut out = b"an earlier result".to_vec();
            let error = merge(*message_type, base, delta, &mut out).unwrap_err();
            let is_expected = matches!(error, MergeError::Malformed { side: found, .. } | MergeError::NotAnObject { side: found } if found == side);
            assert!(is_expected, "{message_type:?} {error}");
            assert!(out.is_empty(), "{message_type:?}");
        }
    }
    let error = merge(MessageType::Json, b"[1]", b"{}", &mut Vec::new()).unwrap_err();
    assert_eq!(error, MergeError::NotAnObject { side: Side::Old });
    assert_eq!(error.to_string(), "the old message is not an object, so it has no fields");
    let error = merge(MessageType::Json, b"{}", br#"{"a":1,}"#, &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "the new message is malformed at byte 7: name expected");
}

/// A message type with two messages.
fn two_messages() -> impl Strategy<Value = (MessageType, Document, Document)> {
    let types: Vec<_> = MessageType::ALL.iter().copied().filter(|known| known.has_fields()).collect();
    prop::sample::select(types)
        .prop_flat_map(|message_type| (Just(message_type), document(message_type), document(message_type)))
}

proptest! {
    #[test]
    fn a_merge_has_the_fields_that_the_model_has(
        (message_type, base, delta) in two_messages(),
        are_cut in any::<(bool, bool)>(),
    ) {
        let spelled = |document, is_cut| {
            let mut message = encode(message_type, document);
            if is_cut {
                model::remove_last_separator(message_type, &mut message);
            }
            message
        };
        let out = merged(message_type, &spelled(&base, are_cut.0), &spelled(&delta, are_cut.1));
        let expected = model::merged(&base, &delta);
        prop_assert_eq!(decode(message_type, &out), expected, "{:?} {} {}", message_type, base, delta);
    }

    #[test]
    fn a_delta_without_fields_changes_no_byte((message_type, base, _) in two_messages()) {
        let empty = match message_type {
            MessageType::Xml => serde_json::json!({"root": {}}),
            _ => serde_json::json!({}),
        };
        let base = encode(message_type, &base);
        prop_assert_eq!(merged(message_type, &base, &encode(message_type, &empty)), base);
    }

    /// JSON as people write it: blanks, escapes, and several members of one name, of which
    /// serde_json takes the last one too.
    #[test]
    fn json_merges_as_serde_reads_it(base in spelled(), delta in spelled()) {
        let out = merged(MessageType::Json, base.as_bytes(), delta.as_bytes());
        let read = |text: &[u8]| serde_json::from_slice::<Document>(text).unwrap();
        let expected = model::merged(&read(base.as_bytes()), &read(delta.as_bytes()));
        prop_assert_eq!(read(&out), expected, "{} {} {}", base, delta, String::from_utf8_lossy(&out));
    }
}

/// The text of an object.
fn spelled() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "1",
        "\"x\"",
        "null",
        "[ ]",
        "[1,{}]",
        "-1.50e3",
        "\"\\\"}\"",
        "{}",
        "{ }",
    ]);
    let members = |value: BoxedStrategy<String>| {
        let name = prop::sample::select(vec!["a", "b", "\\u0061", "c", "\\n", "", "bb"]);
        let blank = || prop::sample::select(vec!["", " ", "\n\t"]);
        proptest::collection::vec((name, blank(), blank(), value), 0..6).prop_map(|members| {
            let members: Vec<_> = members
                .iter()
                .map(|(name, before, after, value)| {
                    format!("{before}\"{name}\"{after}:{before}{value}{after}")
                })
                .collect();
            format!("{{{}}}", members.join(","))
        })
    };
    let value = leaf.prop_map(str::to_owned).boxed();
    let value = prop_oneof![value.clone(), members(value)].boxed();
    let value = prop_oneof![value.clone(), members(value)].boxed();
    members(value)
}
