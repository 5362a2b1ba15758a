//! Reading fields: in every format, the values are those of an independent reader of the same
//! bytes.

use proptest::prelude::*;
use quire_expression::message_type::*;
use serde_json::Value as Document;

/// Documents with few names, so that paths meet them, and all kinds of values.
fn document() -> impl Strategy<Value = Document> {
    let leaf = prop_oneof![
        Just(Document::Null),
        any::<bool>().prop_map(Document::from),
        any::<i64>().prop_map(Document::from),
        any::<u64>().prop_map(Document::from),
        any::<f64>().prop_filter("JSON has none", |float| float.is_finite()).prop_map(Document::from),
        "\\PC{0,6}".prop_map(Document::from),
        "[\\x00-\\x7f\"\\\\\u{e9}\u{1f600}]{0,12}".prop_map(Document::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Document::from),
            proptest::collection::hash_map("[ab\u{e9}\"]", inner, 0..4)
                .prop_map(|members| Document::Object(members.into_iter().collect())),
        ]
    })
}

/// Whether a value is what serde_json says.
fn is_same(value: Value<'_>, document: &Document) -> bool {
    match (value, document) {
        (Value::Null, Document::Null) => true,
        (Value::Null, Document::String(text)) => text.is_empty(),
        (Value::Boolean(left), Document::Bool(right)) => left == *right,
        (Value::Number(number, _), Document::Number(expected)) => match number {
            Number::Integer(number) => expected.as_i64() == Some(number),
            Number::Unsigned(number) => expected.as_u64() == Some(number),
            Number::Float(number) => expected.as_f64() == Some(number),
        },
        (Value::Text(text), Document::String(expected)) => text == expected.as_bytes(),
        (Value::Array(elements), Document::Array(expected)) => {
            elements.len() == expected.len()
                && elements.iter().zip(expected).all(|(value, expected)| is_same(*value, expected))
        }
        (Value::Compound(raw), Document::Object(_)) => {
            // Through text on both sides: serde_json does not read every float back as it wrote it.
            let written =
                serde_json::to_vec(document).and_then(|text| serde_json::from_slice::<Document>(&text));
            matches!((serde_json::from_slice::<Document>(raw), written), (Ok(raw), Ok(written)) if raw == written)
        }
        _ => false,
    }
}

fn names(names: &[&str]) -> Vec<Step> {
    names.iter().map(|name| Step::Name(name.as_bytes().into())).collect()
}

proptest! {
    #[test]
    fn json_is_read_as_serde_reads_it(document in document(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) }.unwrap();
        let mut plan = FieldPlan::default();
        let paths = [&["a"][..], &["b"], &["\u{e9}"], &["\""], &["a", "b"], &["b", "a", "a"]];
        let fields: Vec<FieldId> = paths.iter().map(|path| plan.add(&names(path))).collect();
        let arena = Arena::default();
        let values = MessageType::Json.read(text.as_bytes(), &plan, &arena).unwrap();
        for (path, field) in paths.iter().zip(fields) {
            let mut expected = Some(&document);
            for (step, name) in path.iter().enumerate() {
                // Through arrays there are rules of their own.
                if step > 0 && expected.is_some_and(Document::is_array) {
                    break;
                }
                expected = expected.and_then(|document| document.as_object()?.get(*name));
            }
            let value = values[field.index()];
            if expected.is_none_or(|expected| !expected.is_array() || path.len() == 1) {
                prop_assert!(is_same(value, expected.unwrap_or(&Document::Null)), "{path:?} of {text}: {value:?}");
            }
        }
    }

    /// Every text that is one change away from a document is well formed for both or for neither.
    #[test]
    fn json_is_refused_when_serde_refuses_it(
        document in document(), at in any::<prop::sample::Index>(), change in 0..3, byte in prop::sample::select(br#"{}[]",:0-.e\/ tn"#.to_vec()),
    ) {
        let mut text = serde_json::to_vec(&document).unwrap();
        let at = at.index(text.len());
        match change {
            0 => text[at] = byte,
            1 => text.insert(at, byte),
            _ => { text.remove(at); }
        }
        // The two differ only where they should: bytes that are not UTF-8, lone surrogates, floats
        // out of range, depth.
        let expected = serde_json::from_slice::<Document>(&text);
        if std::str::from_utf8(&text).is_err() || expected.as_ref().is_err_and(|error| {
            let reason = error.to_string();
            reason.contains("out of range") || reason.contains("surrogate") || reason.contains("unexpected end of hex escape")
        }) {
            return Ok(());
        }
        let mut plan = FieldPlan::default();
        plan.add(&names(&["a"]));
        plan.add(&names(&["in no document, so that the whole of it is read"]));
        let arena = Arena::default();
        let found = MessageType::Json.read(&text, &plan, &arena);
        prop_assert_eq!(found.is_ok(), expected.is_ok(), "{} {:?} {:?}", String::from_utf8_lossy(&text), found.err(), expected.err());
    }

    /// A message is not read after the last wanted member. For well-formed messages, this has no
    /// visible effect.
    #[test]
    fn json_that_is_not_read_to_its_end_says_the_same(
        members in proptest::collection::vec((
            prop::sample::select(vec!["a", "b", "\\u0061", "c", "ab"]),
            prop::sample::select(vec!["1", "2", "\"a\"", "\"b\\\\\"", "[\"a\"]", "{\"a\":3}", "{\"x\":{\"a\":4,\"b\":5}}"]),
        ), 0..8),
    ) {
        let members: Vec<_> = members.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
        let text = format!("{{{}}}", members.join(","));
        let paths = [&["a"][..], &["b", "a"]];
        let read = |more: Option<&str>| {
            let mut plan = FieldPlan::default();
            let fields = paths.map(|path| plan.add(&names(path)));
            if let Some(name) = more {
                plan.add(&names(&[name]));
            }
            let arena = Arena::default();
            let values = MessageType::Json.read(text.as_bytes(), &plan, &arena).unwrap();
            fields.map(|field| format!("{:?}", values[field.index()]))
        };
        prop_assert_eq!(read(None), read(Some("in no message")), "{}", text);
    }
}

#[test]
fn json_is_not_read_behind_the_last_wanted_member() {
    let read = |text: &str, wanted: &[&str]| {
        let mut plan = FieldPlan::default();
        for name in wanted {
            plan.add(&names(&[name]));
        }
        MessageType::Json.read(text.as_bytes(), &plan, &Arena::default()).is_ok()
    };
    assert!(read(r#"{"a":1,"b":2,"#, &["a", "b"]));
    assert!(read(r#"{"b":{"c":2},"a":1}}"#, &["a", "b"]));
    assert!(!read(r#"{"a":1,"b":2,"#, &["a", "b", "c"]), "c could be there");
    assert!(!read(r#"{"a":1,"b":2,"a":"#, &["a", "b"]), "the last a counts");
    assert!(!read(r#"{"a":1,"b":2,"\u0061":"#, &["a", "b"]), "which is an a");
    assert!(!read(r#"{"a":1 "b":2}"#, &["a", "b"]));
}

/// Each repetition of a wanted name could be a reason to look through the rest once more, for
/// hours.
#[test]
#[expect(clippy::disallowed_methods, reason = "what would take hours is to fail after a minute")]
fn a_message_of_repetitions_is_searched_once() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let text = format!("{{\"b\":1{}}}", r#","a":1"#.repeat(3_000_000));
        let mut plan = FieldPlan::default();
        plan.add(&names(&["b"]));
        plan.add(&names(&["a"]));
        done.send(MessageType::Json.read(text.as_bytes(), &plan, &Arena::default()).is_ok())
    });
    assert_eq!(is_done.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
}

/// The reader of a library leaves the mark out of its positions.
#[test]
fn xml_after_a_byte_order_mark_is_read() {
    let fields = ["id", "legs/leg/px", "note/@lang", "gr\u{f6}\u{df}e"];
    for text in [
        "<o><id>1</id><legs><leg><px>2</px></leg></legs><note lang='de'/><gr\u{f6}\u{df}e>3</gr\u{f6}\u{df}e></o>",
        "<?xml version='1.0'?>\n<o><id>1</id></o>",
        "<o id='1'/>",
        "<gr\u{f6}\u{df}e/>",
    ] {
        let read = |text: &str| {
            let mut plan = FieldPlan::default();
            let path =
                |field: &&str| names(&std::iter::once("o").chain(field.split('/')).collect::<Vec<_>>());
            let ids: Vec<_> = fields.iter().map(|field| plan.add(&path(field))).collect();
            let arena = Arena::default();
            let values = MessageType::Xml.read(text.as_bytes(), &plan, &arena);
            values.map(|values| ids.iter().map(|id| format!("{:?}", values[id.index()])).collect::<Vec<_>>())
        };
        let marked = format!("\u{feff}{text}");
        assert_eq!(read(&marked), read(text), "{text}");
        assert!(read(text).is_ok(), "{text}");
        // A second one would be text outside of the root element.
        assert!(read(&format!("\u{feff}{marked}")).is_err(), "{text}");
    }
}

/// The values of some tags of a FIX message; `|` means SOH.
fn fix(message: &str, tags: [&str; 3]) -> [String; 3] {
    let data = message.replace('|', "\u{1}");
    let mut plan = FieldPlan::default();
    let ids = tags.map(|tag| plan.add(&names(&[tag])));
    let arena = Arena::default();
    let values = MessageType::Fix.read(data.as_bytes(), &plan, &arena).unwrap();
    ids.map(|id| match values[id.index()] {
        Value::Array(elements) => format!("{} values", elements.len()),
        value => String::from_utf8_lossy(arena.text(value).unwrap_or(b"NULL")).replace('\u{1}', "|"),
    })
}

#[test]
fn a_data_field_of_fix_has_the_size_that_the_field_before_it_says() {
    for (message, expected) in [
        ("95=5|96=a|b=c|58=x|", ["5", "a|b=c", "x"]),
        ("95=5|96=a|b=c", ["5", "a|b=c", "NULL"]),
        ("95=5|96=a|58=|58=x|", ["5", "a|58=", "x"]),
        ("95=0|96=|58=x|", ["0", "NULL", "x"]),
        // A size that does not lead to the end of a pair, or that belongs to no data, has no
        // effect.
        ("95=4|96=abc|58=x|", ["4", "abc", "x"]),
        ("95=900|96=abc|58=x|", ["900", "abc", "x"]),
        ("95=-1|96=abc|58=x|", ["-1", "abc", "x"]),
        ("95=99999999999999999999|96=abc|58=x|", ["99999999999999999999", "abc", "x"]),
        ("95=5|58=x|96=a|1=c|", ["5", "a", "x"]),
        ("95=5|", ["5", "NULL", "NULL"]),
        ("96=abc|95=3|58=x|", ["3", "abc", "x"]),
    ] {
        assert_eq!(fix(message, ["95", "96", "58"]), expected, "{message}");
    }
    assert_eq!(fix("93=3|89=a|b|58=x|", ["93", "89", "58"]), ["3", "a|b", "x"]);
    assert_eq!(fix("43109=3|42684=a|b|58=x|", ["43109", "42684", "58"]), ["3", "a|b", "x"]);
    assert_eq!(fix("212=3|213=<|>|354=1|355=||", ["213", "354", "355"]), ["<|>", "1", "|"]);
    // Names of NVFIX are of the application.
    let data = b"95=3\x0196=a\x01b\x01";
    assert!(MessageType::Nvfix.check(data, &mut Arena::default()).is_err());
}

/// The type, name and value of one element around `value`.
fn bson(kind: u8, value: &[u8]) -> Vec<u8> {
    let size = (4 + 1 + 2 + value.len() + 1) as u32;
    [&size.to_le_bytes()[..], &[kind], b"a\0", value, b"\0"].concat()
}

/// They begin with a size, as documents do, and were taken for documents.
#[test]
fn bson_values_that_are_no_documents_have_no_fields_below_them() {
    let code =
        [&26_u32.to_le_bytes()[..], b"\x06\0\0\0f(a);\0", &[12, 0, 0, 0, 0x10, b'b', 0, 1, 0, 0, 0, 0]]
            .concat();
    let pointer = [&b"\x03\0\0\0db\0"[..], &[0xAB; 12]].concat();
    for (kind, value, expected) in [
        (0x0F, &code[..], "f(a);"),
        (0x0C, &pointer, "abababababababababababab"),
        (0x7F, b"", "-"),
        (0xFF, b"", "-"),
    ] {
        let data = bson(kind, value);
        let mut plan = FieldPlan::default();
        let (own, below) = (plan.add(&names(&["a"])), plan.add(&names(&["a", "b"])));
        let arena = Arena::default();
        let values = MessageType::Bson.read(&data, &plan, &arena).unwrap();
        assert_eq!(arena.text(values[own.index()]).unwrap_or(b"-"), expected.as_bytes(), "{kind:#x}");
        assert!(values[below.index()].is_null() && !values[own.index()].is_null(), "{kind:#x}");
    }
}

#[test]
fn bson_strings_are_utf8_and_binary_of_the_old_subtype_has_its_size_twice() {
    let check = |data: &[u8]| MessageType::Bson.check(data, &mut Arena::default());
    for kind in [0x02, 0x0D, 0x0E] {
        assert_eq!(check(&bson(kind, b"\x03\0\0\0\xc3\xa9\0")), Ok(()));
        assert!(check(&bson(kind, b"\x03\0\0\0\xc3\x28\0")).is_err(), "{kind:#x}");
        assert!(check(&bson(kind, b"\0\0\0\0\0")).is_err(), "{kind:#x}");
    }
    let pointer = |name: &[u8]| [b"\x03\0\0\0", name, b"\0", &[7; 12]].concat();
    assert_eq!(check(&bson(0x0C, &pointer("\u{e9}".as_bytes()))), Ok(()));
    assert!(check(&bson(0x0C, &pointer(b"\xc3\x28"))).is_err());
    assert!(check(&bson(0x0B, b"\xff\0i\0")).is_err());
    assert!(check(b"\x08\0\0\0\x0a\xff\0\0").is_err());
    let binary = |size: u8, inner: i8| {
        let inner = i32::from(inner).to_le_bytes();
        bson(0x05, &[&[size, 0, 0, 0, 2][..], &inner, b"xy"].concat())
    };
    assert_eq!(check(&binary(6, 2)), Ok(()));
    for data in [binary(6, 1), binary(6, 3), binary(6, -1), bson(0x05, b"\x03\0\0\0\x02xyz")] {
        assert!(check(&data).is_err(), "{data:?}");
    }
    let mut plan = FieldPlan::default();
    let (field, arena) = (plan.add(&names(&["a"])), Arena::default());
    let data = binary(6, 2);
    let values = MessageType::Bson.read(&data, &plan, &arena).unwrap();
    assert_eq!(arena.text(values[field.index()]), Some(&b"xy"[..]));
}
