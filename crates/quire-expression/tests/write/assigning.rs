//! Fields that are computed from a message and written into it.

use proptest::prelude::*;
use quire_expression::filter::*;
use quire_expression::message_type::*;
use quire_types::{Headers, Timestamp};

use super::model::{decode, document, encode};
use super::path;

/// A message on topic `orders`.
fn message(message_type: MessageType, data: &[u8]) -> MessageContext<'_> {
    MessageContext {
        message_type,
        data,
        topic: "orders",
        key: None,
        bookmark: None,
        correlation_id: b"",
        headers: Headers::NONE,
        timestamp: Timestamp(0),
        now: Timestamp(0),
    }
}

fn parsed(message_type: MessageType, entries: &[&str]) -> Assignments {
    Assignments::parse(entries, message_type, Stage::Enrichment, &FilterOptions::default())
        .unwrap_or_else(|error| panic!("{}", error.with_caret()))
}

fn applied(
    message_type: MessageType,
    entries: &[&str],
    data: &[u8],
    previous: Option<&[u8]>,
) -> Result<Vec<u8>, AssignError> {
    let mut out = b"an earlier result".to_vec();
    let context = message(message_type, data);
    let result = parsed(message_type, entries).apply(&context, previous, &mut Arena::default(), &mut out);
    assert!(result.is_ok() || out.is_empty());
    result.map(|()| out)
}

/// The result as text. `|` means SOH.
fn applied_text(message_type: MessageType, entries: &[&str], data: &str) -> String {
    let data = data.replace('|', "\u{1}").into_bytes();
    let out = applied(message_type, entries, &data, None).unwrap_or_else(|error| panic!("{error}"));
    String::from_utf8(out).unwrap().replace('\u{1}', "|")
}

#[test]
fn fields_are_overwritten_in_place_and_new_ones_are_added() {
    for (entries, data, expected) in [
        (&["/a + 1 AS /a", "'x' as /c"][..], r#"{ "a": 1, "b": 2 }"#, r#"{ "a": 2, "b": 2,"c":"x" }"#),
        (&["/a AS /b", "/b AS /a"], r#"{"a":1,"b":"two"}"#, r#"{"a":"two","b":1}"#),
        (&["/a", "/missing"], r#"{"a":2.50}"#, r#"{"a":2.50,"missing":null}"#),
        (&["1 AS /x/y", "2 AS /x/z", "3 AS /w"], "{}", r#"{"x":{"y":1,"z":2},"w":3}"#),
        (&["1 AS /x/y"], r#"{"x":{"y":0,"z":2}}"#, r#"{"x":{"y":1,"z":2}}"#),
        (&["1 AS /x/y"], r#"{"x":[1]}"#, r#"{"x":{"y":1}}"#),
        (&["/b AS /a"], r#"{"a":{"x":1},"b":{"y":2}}"#, r#"{"a":{"y":2},"b":{"y":2}}"#),
        (
            &["/b AS /a/c"],
            r#"{"a":{"x":1,"c":{"z":1}},"b":{"y":2}}"#,
            r#"{"a":{"x":1,"c":{"y":2}},"b":{"y":2}}"#,
        ),
        (&["/a AS [/odd \"name\"]"], r#"{"a":1}"#, r#"{"a":1,"odd \"name\"":1}"#),
        (&[], r#"{"a":1"#, r#"{"a":1"#),
    ] {
        assert_eq!(applied_text(MessageType::Json, entries, data), expected, "{entries:?} {data}");
    }
}

#[test]
fn each_message_type_writes_each_kind_of_value() {
    const ENTRIES: [&str; 7] = [
        "NULL AS /r/n",
        "TRUE AS /r/t",
        "6 / 2 AS /r/i",
        "AS_FLOAT(3) AS /r/f",
        "CONCAT('<\"&', /r/s) AS /r/s",
        "/r/l AS /r/m",
        "0.0 / 0 AS /r/nan",
    ];
    assert_eq!(
        applied_text(
            MessageType::Json,
            &ENTRIES,
            r#"{"r":{"s":"\\\u0001\n\u00e9","l":[1,[null,{"a":2}],"x"]}}"#
        ),
        concat!(
            r#"{"r":{"s":"<\"&\\\u0001\né","l":[1,[null,{"a":2}],"x"],"n":null,"t":true,"i":3,"f":3.0,"#,
            r#""m":[1,[null,{"a":2}],"x"],"nan":null}}"#
        )
    );
    assert_eq!(
        applied_text(MessageType::Xml, &ENTRIES, "<r><s>a</s><l>1</l><l><a>2</a></l><l/></r>"),
        concat!(
            "<r><s>&lt;&quot;&amp;a</s><l>1</l><l><a>2</a></l><l/><n/><t>true</t><i>3</i><f>3.0</f>",
            "<m>1</m><m><a>2</a></m><m/><nan/></r>"
        )
    );
    let flat: Vec<String> = ENTRIES.iter().map(|entry| entry.replace("/r/", "/")).collect();
    let flat: Vec<&str> = flat.iter().map(String::as_str).collect();
    assert_eq!(
        applied_text(MessageType::Nvfix, &flat, "s=a|l=1|l=x"),
        "s=<\"&a|l=1|l=x|n=|t=1|i=3|f=3.0|m=1|m=x|nan=|"
    );
    let msgpack = b"\x81\xa1r\x82\xa1s\xc4\x01\xff\xa1l\x92\x01\x80";
    let expected = [
        &b"\x81\xa1r\x88\xa1s\xc4\x04<\"&\xff\xa1l\x92\x01\x80"[..],
        b"\xa1n\xc0\xa1t\xc3\xa1i\x03\xa1f\xcb\x40\x08\0\0\0\0\0\0\xa1m\x92\x01\x80\xa3nan\xc0",
    ]
    .concat();
    assert_eq!(applied(MessageType::Msgpack, &ENTRIES, msgpack, None).unwrap(), expected);
    let bson = b"\x11\0\0\0\x02a\0\x02\0\0\0x\0\x0Ab\0\0";
    let entries = ["/a AS /c", "300 AS /a", "5000000000 AS /b", "1.5 AS /d", "FALSE AS /e"];
    let expected = [
        &b"\x2f\0\0\0\x10a\0\x2c\x01\0\0\x12b\0\0\xf2\x05\x2a\x01\0\0\0\x02c\0\x02\0\0\0x\0"[..],
        b"\x01d\0\0\0\0\0\0\0\xf8\x3f\x08e\0\0\0",
    ]
    .concat();
    assert_eq!(applied(MessageType::Bson, &entries, bson, None).unwrap(), expected);
}

#[test]
fn msgpack_integers_are_as_narrow_as_they_can_be() {
    for (number, expected) in [
        ("127", &b"\x7f"[..]),
        ("128", b"\xcc\x80"),
        ("256", b"\xcd\x01\0"),
        ("65536", b"\xce\0\x01\0\0"),
        ("4294967296", b"\xcf\0\0\0\x01\0\0\0\0"),
        ("18446744073709551615", b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("-32", b"\xe0"),
        ("-33", b"\xd0\xdf"),
        ("-129", b"\xd1\xff\x7f"),
        ("-32769", b"\xd2\xff\xff\x7f\xff"),
        ("-2147483649", b"\xd3\xff\xff\xff\xff\x7f\xff\xff\xff"),
    ] {
        let out = applied(MessageType::Msgpack, &[&format!("{number} AS /a")], b"\x80", None).unwrap();
        assert_eq!(out, [b"\x81\xa1a", expected].concat(), "{number}");
    }
    for size in [31, 32, 255, 256, 65_535, 65_536] {
        let text = "x".repeat(size);
        let out = applied(MessageType::Msgpack, &[&format!("'{text}' AS /a")], b"\x80", None).unwrap();
        let mut plan = FieldPlan::default();
        let field = plan.add(&path(&["a"]));
        let arena = Arena::default();
        let value = MessageType::Msgpack.read(&out, &plan, &arena).unwrap()[field.index()];
        assert!(matches!(value, Value::Text(read) if read == text.as_bytes()), "{size}");
    }
}

#[test]
fn xml_attributes_can_be_assigned_and_keep_the_text_of_their_element() {
    for (entries, data, expected) in [
        (&["'USD' AS /o/px/@ccy"][..], "<o><px>5</px></o>", r#"<o><px ccy="USD">5</px></o>"#),
        (&["/o/px * 2 AS /o/px"], "<o><px>5</px></o>", "<o><px>10</px></o>"),
        // A character that XML cannot have.
        (&["'a\u{7}' AS /o/b"], "<o/>", "<o><b>a\u{FFFD}</b></o>"),
        (&["'a\"\n' AS /o/@x", "1 AS /o/b"], "<o/>", r#"<o x="a&quot;&#10;"><b>1</b></o>"#),
        (&["/o/i AS /o/@x"], "<o><i>1</i><i>2</i></o>", r#"<o x="1"><i>1</i><i>2</i></o>"#),
        (&["/o/b AS /o/c"], "<o><b x='1' ><d/></b ></o>", "<o><b x='1' ><d/></b ><c x='1' ><d/></c></o>"),
        (&["/o/b AS /o/c"], "<o><b x='1'/></o>", "<o><b x='1'/><c x='1'/></o>"),
    ] {
        assert_eq!(applied_text(MessageType::Xml, entries, data), expected, "{entries:?} {data}");
    }
}

#[test]
fn texts_of_xml_between_which_an_element_is_removed_do_not_become_the_end_of_a_section() {
    for (data, expected) in [
        ("<o>]]<n/>><n/></o>", "<o>]]<n>1</n>></o>"),
        ("<o><n/>]]<n/>></o>", "<o><n>1</n>]]&gt;</o>"),
        ("<o><n/>]<n/>]></o>", "<o><n>1</n>]]&gt;</o>"),
        ("<o><n/>]<n/>]<n/>></o>", "<o><n>1</n>]]&gt;</o>"),
        ("<o><n/>]]<n/><n/>></o>", "<o><n>1</n>]]&gt;</o>"),
        ("<o><n/>]<n/>></o>", "<o><n>1</n>]></o>"),
        ("<o><n/>]<n/>]]</o>", "<o><n>1</n>]]]</o>"),
    ] {
        assert_eq!(applied_text(MessageType::Xml, &["1 AS /o/n"], data), expected, "{data}");
    }
}

#[test]
fn enrichment_reads_the_previous_record() {
    let entries =
        ["IF(/qty < 0, /qty OF PREVIOUS, /qty) as /qty", "/qty - COALESCE([/qty] OF PREVIOUS, 0) AS /change"];
    let apply = |data: &[u8], previous: Option<&[u8]>| {
        String::from_utf8(applied(MessageType::Json, &entries, data, previous).unwrap()).unwrap()
    };
    assert_eq!(apply(br#"{"qty":-1}"#, None), r#"{"qty":null,"change":-1}"#);
    assert_eq!(apply(br#"{"qty":-1}"#, Some(br#"{"a":1,"qty":5}"#)), r#"{"qty":5,"change":-6}"#);
    assert_eq!(apply(br#"{"qty":7}"#, Some(br#"{"qty":5}"#)), r#"{"qty":7,"change":2}"#);
    assert_eq!(apply(br#"{"qty":7}"#, Some(br#"{"qty":"#)), r#"{"qty":7,"change":7}"#);
    assert!(parsed(MessageType::Json, &entries).reads_previous());
    assert!(!parsed(MessageType::Json, &["/a"]).reads_previous());
}

#[test]
fn preprocessing_creates_a_key() {
    let entries = ["CONCAT(/customer_id,\"-\",/order_id) as /order_key"];
    let out = applied_text(MessageType::Json, &entries, r#"{"customer_id":"c1","order_id":7}"#);
    assert_eq!(out, r#"{"customer_id":"c1","order_id":7,"order_key":"c1-7"}"#);
}

#[test]
fn a_mistake_is_shown_at_its_entry_and_column() {
    use MessageType::{Binary, Bson, Fix, Json, Nvfix, Xml};
    for (message_type, stage, entries, number, column, expected) in [
        (
            Json,
            Stage::Preprocessing,
            &["/a", "/qty OF PREVIOUS AS /b"][..],
            2,
            6,
            "an operator or the end; OF PREVIOUS",
        ),
        (Json, Stage::Enrichment, &["/qty OF PREVIOUS"], 1, 17, "an operator, or AS"),
        (Json, Stage::Enrichment, &["/qty OF CURRENT AS /a"], 1, 9, "PREVIOUS"),
        (Json, Stage::Enrichment, &["/a + 1"], 1, 7, "an operator, or AS"),
        (Json, Stage::Enrichment, &["(/a)"], 1, 5, "an operator, or AS"),
        (Json, Stage::Enrichment, &["1 AS a"], 1, 6, "a field like /symbol"),
        (Json, Stage::Enrichment, &["1 AS /a /b"], 1, 9, "the end"),
        (Json, Stage::Enrichment, &["1 AS /a + 1"], 1, 9, "the end"),
        (Json, Stage::Enrichment, &["é AS /a"], 1, 1, "a field, a value or an operator"),
        (Json, Stage::Enrichment, &["1 AS /a[0]"], 1, 6, "a field without an index"),
        (Json, Stage::Enrichment, &["SUM(/a) AS /a"], 1, 1, "a function that looks at one message"),
        (Json, Stage::Enrichment, &["1 AS /a", "2 AS /b", "3 AS /a"], 3, 6, "a field that is not"),
        (Json, Stage::Enrichment, &["1 AS /a/b", "2 AS /a"], 2, 6, "a field that is not"),
        (Json, Stage::Enrichment, &["1 AS /a", "2 AS /a/b"], 2, 6, "a field that is not"),
        (Fix, Stage::Enrichment, &["1 AS /55/1"], 1, 6, "one step"),
        (Fix, Stage::Enrichment, &["1 AS /a"], 1, 6, "a tag of digits"),
        (Nvfix, Stage::Enrichment, &["1 AS [/a=b]"], 1, 6, "a tag without ="),
        (Xml, Stage::Enrichment, &["1 AS /a"], 1, 6, "a path of two or more steps"),
        (Xml, Stage::Enrichment, &["1 AS /a/5"], 1, 6, "names that XML can have"),
        (Xml, Stage::Enrichment, &["1 AS /a/@b/c"], 1, 6, "names that XML can have"),
        (Xml, Stage::Enrichment, &["1 AS /a/b", "1 AS /c/b"], 2, 6, "the root element of the other"),
        (Bson, Stage::Enrichment, &["1 AS [/a\0b]"], 1, 6, "a name without a zero byte"),
        (Binary, Stage::Enrichment, &["1 AS /a"], 1, 6, "a message type with fields"),
    ] {
        let error = Assignments::parse(entries, message_type, stage, &FilterOptions::default()).unwrap_err();
        assert_eq!((error.number, error.error.column), (number, column), "{entries:?} {error}");
        assert!(error.error.reason.starts_with(&format!("expected {expected}")), "{entries:?} {error}");
    }
    let many = vec!["/a"; ASSIGNMENT_COUNT_MAX + 1];
    let many: Vec<String> = many.iter().enumerate().map(|(number, name)| format!("{name}{number}")).collect();
    let options = FilterOptions::default();
    let error = Assignments::parse(&many, MessageType::Json, Stage::Enrichment, &options).unwrap_err();
    assert_eq!(error.number, ASSIGNMENT_COUNT_MAX + 1);
    assert!(Assignments::parse(&many[1..], MessageType::Json, Stage::Enrichment, &options).is_ok());
    let error =
        Assignments::parse(&["/qty OF PREVIOUS AS /a"], MessageType::Json, Stage::Preprocessing, &options);
    let shown = error.unwrap_err().with_caret();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[..3], ["entry 1", "/qty OF PREVIOUS AS /a", "     ^"], "{shown}");
    assert!(Filter::parse("/qty OF PREVIOUS > 1", &options).is_err());
}

#[test]
fn a_message_that_cannot_get_its_fields_is_an_error() {
    for (message_type, entry, data, expected) in [
        (MessageType::Json, "1 AS /a", &b"[1]"[..], AssignError::NotAnObject),
        (
            MessageType::Json,
            "1 AS /a",
            b"{",
            AssignError::Malformed(Malformed::Syntax { offset: 1, expected: "name" }),
        ),
        (MessageType::Xml, "1 AS /a/b", b"<c/>", AssignError::DifferentRoots),
        (
            MessageType::Fix,
            "HEADER('none') AS /1",
            b"x",
            AssignError::Malformed(Malformed::Syntax { offset: 0, expected: "tag and =" }),
        ),
        (MessageType::Nvfix, "'\u{1}' AS /a", b"", AssignError::Separator { field: "a".into() }),
    ] {
        assert_eq!(applied(message_type, &[entry], data, None), Err(expected), "{entry}");
    }
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(CONSTRUCTED_SIZE_MAX / 2));
    let entries = ["/a AS /b", "/a AS /c", "/a AS /d"];
    assert_eq!(applied(MessageType::Json, &entries, large.as_bytes(), None), Err(AssignError::TooLarge));
    let deep = format!("{{\"a\":{}1{}}}", "{\"b\":".repeat(254), "}".repeat(254));
    assert!(applied(MessageType::Json, &["/a AS /c"], deep.as_bytes(), None).is_ok());
    let result = applied(MessageType::Json, &["/a AS /c/d/e"], deep.as_bytes(), None);
    assert_eq!(result, Err(AssignError::Malformed(Malformed::TooDeep)));
}

/// The text of a value as another reader of it compares it.
fn shown(value: Value<'_>) -> String {
    match value {
        Value::Number(Number::Float(float), _) => format!("float {float}"),
        Value::Number(number, _) => format!("integer {:?}", number.as_i128()),
        Value::Array(elements) => {
            format!("{:?}", elements.iter().map(|element| shown(*element)).collect::<Vec<_>>())
        }
        // The names of elements differ.
        Value::Compound(raw) => format!("an object, {} bytes", raw.len()),
        other => format!("{other:?}"),
    }
}

proptest! {
    /// A value that was written is read as it was, and the other fields are as they were.
    #[test]
    fn an_assigned_value_is_read_again(
        (message_type, document) in prop::sample::select(
            MessageType::ALL.iter().copied().filter(|known| known.has_fields()).collect::<Vec<_>>()
        ).prop_flat_map(|message_type| (Just(message_type), document(message_type))),
    ) {
        let (from, to) = match message_type {
            MessageType::Fix | MessageType::Nvfix => (vec!["1"], vec!["99"]),
            MessageType::Xml => (vec!["root", "a"], vec!["root", "z"]),
            _ => (vec!["a"], vec!["z"]),
        };
        let entry = format!("/{} AS /{}", from.join("/"), to.join("/"));
        let data = encode(message_type, &document);
        let out = applied(message_type, &[&entry], &data, None).unwrap();
        let read = |data: &[u8], names: &[&str]| {
            let mut plan = FieldPlan::default();
            let field = plan.add(&path(names));
            let arena = Arena::default();
            let value = message_type.read(data, &plan, &arena).unwrap()[field.index()];
            shown(value)
        };
        let read_back = read(&out, &to);
        let expected = match read(&data, &from) {
            // XML and pairs have no empty arrays, and an empty text is NULL everywhere.
            empty if empty == "[]" && message_type == MessageType::Xml => "Null".to_owned(),
            other => other,
        };
        prop_assert_eq!(read_back, expected, "{:?} {}", message_type, document);
        let mut rest = decode(message_type, &out);
        let members = match message_type {
            MessageType::Xml => rest["root"].as_object_mut(),
            _ => rest.as_object_mut(),
        };
        let removed = members.and_then(|members| members.remove(to[to.len() - 1]));
        prop_assert!(removed.is_some());
        prop_assert_eq!(rest, document);
    }

    #[test]
    fn any_text_is_an_assignment_or_a_mistake_with_a_column(text in "\\PC{0,60}") {
        for message_type in MessageType::ALL {
            let entries = [&*text, "1 AS /x/y"];
            if let Err(error) = Assignments::parse(&entries, *message_type, Stage::Enrichment, &FilterOptions::default()) {
                let size = error.text.chars().count();
                prop_assert!(error.error.column >= 1 && error.error.column <= size + 1);
            }
        }
    }
}
