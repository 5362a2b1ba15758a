//! Messages that a client can send: any bytes, deep nesting, names that repeat. Nothing panics, all
//! of it ends soon, and a result can be read.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_expression::filter::{Assignments, FilterOptions, MessageContext, Stage};
use quire_expression::message_type::*;

use super::merged;
use super::model::{document, encode};

/// Merges and compares, in both directions.
fn write_all(left: &[u8], right: &[u8]) {
    assign_all(left, right);
    assign_all(right, left);
    for message_type in MessageType::ALL {
        for (old, new) in [(left, right), (right, left), (left, left)] {
            let mut out = b"an earlier result".to_vec();
            match merge(*message_type, old, new, &mut out) {
                Ok(()) => assert_readable(*message_type, &out),
                Err(_) => assert!(out.is_empty()),
            }
            let keep = [super::path(&["a", "b"]), vec![Step::Name(b"@b"[..].into()), Step::Index(1)]];
            match difference(*message_type, old, new, &keep, &mut out) {
                Ok(differs) => {
                    assert_readable(*message_type, &out);
                    assert_merges_to(*message_type, old, new, &out, differs);
                }
                Err(_) => assert!(out.is_empty()),
            }
        }
    }
}

/// Entries that reach every way of writing, with paths that each message type has.
const ENTRIES: [&[&str]; 3] = [
    &[
        "/a AS /n",
        "/b AS /a",
        "/a/b AS /o/p",
        "[/a] OF PREVIOUS AS /q",
        "/a/a AS /o/b",
        "LENGTH(/b) / 2 AS /b",
    ],
    &[
        "/a AS /a/n",
        "/a/a AS /a/b",
        "/a/b AS /a/@b",
        "/a/@b AS /a/c/@x",
        "/a/b OF PREVIOUS AS /a/a",
        "/a/b AS /a/c/d",
    ],
    &["/a AS /1", "/1 AS /2", "/b AS /3", "/1 OF PREVIOUS AS /4", "CONCAT(/a, /1) AS /5"],
];

/// Writes constructed fields.
fn assign_all(data: &[u8], previous: &[u8]) {
    for message_type in MessageType::ALL {
        for entries in ENTRIES {
            let options = FilterOptions::default();
            let assignments = Assignments::parse(entries, *message_type, Stage::Enrichment, &options);
            let Ok(assignments) = assignments else { continue };
            let context = MessageContext {
                message_type: *message_type,
                data,
                topic: "orders",
                key: None,
                bookmark: None,
                correlation_id: b"",
                headers: quire_types::Headers::NONE,
                timestamp: quire_types::Timestamp(0),
                now: quire_types::Timestamp(0),
            };
            let mut out = b"an earlier result".to_vec();
            match assignments.apply(&context, Some(previous), &mut Arena::default(), &mut out) {
                Ok(()) => assert_readable(*message_type, &out),
                Err(_) => assert!(out.is_empty()),
            }
        }
    }
}

/// A message that the reader takes to its end, and JSON that serde_json takes.
fn assert_readable(message_type: MessageType, data: &[u8]) {
    let mut plan = FieldPlan::default();
    plan.add(&super::path(&["in no message, so that all of it is read"]));
    let arena = Arena::default();
    let shown = || format!("{message_type:?} {:?}", String::from_utf8_lossy(data));
    assert!(message_type.read(data, &plan, &arena).is_ok(), "{}", shown());
    if message_type == MessageType::Json
        && let Err(error) = serde_json::from_slice::<serde_json::Value>(data)
    {
        let reason = error.to_string();
        let is_known = ["surrogate", "hex escape", "recursion", "out of range"]
            .iter()
            .any(|known| reason.contains(known));
        assert!(is_known || std::str::from_utf8(data).is_err(), "{reason} {}", shown());
    }
}

/// A difference that was merged leaves no other difference than NULLs for removed fields.
fn assert_merges_to(message_type: MessageType, old: &[u8], new: &[u8], delta: &[u8], differs: bool) {
    let shown = || [old, new, delta].map(String::from_utf8_lossy).join(" / ");
    let mut result = Vec::new();
    if let Err(error) = merge(message_type, old, delta, &mut result) {
        // A wrong size of a data field would lead to another place in the result.
        assert_eq!(message_type, MessageType::Fix, "{error} {}", shown());
        return;
    }
    let mut rest = Vec::new();
    // From the new message to the merged one only NULLs are added, and NULLs are not sent for
    // fields that are not there.
    let is_other = difference(message_type, &result, new, &[], &mut rest);
    assert_eq!(is_other, Ok(false), "{message_type:?} {} / {}", shown(), String::from_utf8_lossy(&rest));
    if !differs && message_type != MessageType::Binary {
        let is_other = difference(message_type, old, &result, &[], &mut rest);
        assert_eq!(is_other, Ok(false), "{message_type:?} {}", shown());
    }
}

/// Bytes that look like the formats. Characters up to U+00FF stand for bytes.
fn parts() -> impl Strategy<Value = Vec<u8>> {
    let parts = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        "\"a\":",
        "\"b\":",
        "\"\\u0061\":",
        ",",
        "1",
        "-1e5",
        "\"\\ud800\"",
        "null",
        "{}",
        " ",
        "<a>",
        "</a>",
        "<b/>",
        "<a b=\"1\">",
        "<a/>",
        "<b x='' b='2'>",
        "</b>",
        "text",
        "&lt;",
        "&#x41;",
        "<![CDATA[ ]]>",
        "<!--",
        "-->",
        "a=1",
        "\u{1}",
        "1=2",
        "=",
        "1=",
        "95=1\u{1}96=",
        "95=5\u{1}96=",
        "b=",
        "\u{81}",
        "\u{82}",
        "\u{a1}a",
        "\u{a1}b",
        "\u{c0}",
        "\u{80}",
        "\u{0}",
        "\u{2}",
        "\u{3}a\u{0}",
        "\u{5}\u{0}\u{0}\u{0}\u{0}",
    ]);
    vec(parts, 0..16).prop_map(|parts| parts.concat().chars().map(|character| character as u8).collect())
}

/// JSON, XML, pairs and MessagePack of few names, mostly well-formed, with names that repeat.
fn members() -> impl Strategy<Value = Vec<u8>> {
    let member = (prop::sample::select(vec!["a", "b"]), 0..6_usize);
    (0..4_usize, vec((member, 0..3_usize), 0..6)).prop_map(|(format, members)| {
        let mut out = Vec::new();
        let values: [[&str; 6]; 4] = [
            ["1", "null", "{}", "{\"a\":1,\"a\":2}", "{\"b\":{\"a\":3}}", "[{}]"],
            ["1", "", "<a/>", "<a>1</a><a>2</a>", "<b><a>3</a></b>", "4<a/>"],
            ["1", "", "2", "3", "x", "\u{e9}"],
            ["\u{1}", "\u{c0}", "\u{80}", "\u{82}\u{a1}a\u{1}\u{a1}a\u{2}", "\u{81}\u{a1}b\u{80}", "\u{90}"],
        ];
        for (place, ((name, value), spelling)) in members.iter().enumerate() {
            let value = values[format][*value];
            let comma = if place > 0 { "," } else { "" };
            out.push(match format {
                0 => format!("{comma}\"{name}\":{value}"),
                1 if *spelling == 0 => format!("<{name} a='{place}'>{value}</{name}>"),
                1 => format!("<{name}>{value}</{name}>"),
                2 => format!("{name}={value}\u{1}"),
                _ => format!("\u{a1}{name}{value}"),
            });
        }
        let inner = out.concat();
        let text = match format {
            0 => format!("{{{inner}}}"),
            1 => format!("<o>{inner}</o>"),
            2 => inner,
            _ => format!("{}{inner}", char::from(0x80 + members.len() as u8)),
        };
        text.chars().map(|character| character as u8).collect()
    })
}

fn any_message() -> impl Strategy<Value = (MessageType, Vec<u8>)> {
    let types: Vec<_> = MessageType::ALL.iter().copied().filter(|known| known.has_fields()).collect();
    prop::sample::select(types).prop_flat_map(|message_type| {
        (Just(message_type), document(message_type).prop_map(move |document| encode(message_type, &document)))
    })
}

proptest! {
    #[test]
    fn any_bytes_are_merged_or_refused(left in vec(any::<u8>(), 0..100), right in vec(any::<u8>(), 0..100)) {
        write_all(&left, &right);
    }

    #[test]
    fn any_parts_of_messages_are_merged_or_refused(left in parts(), right in parts()) {
        write_all(&left, &right);
    }

    #[test]
    fn any_repeated_names_are_merged(left in members(), right in members()) {
        write_all(&left, &right);
    }

    /// One byte of a well-formed message is another one.
    #[test]
    fn any_changed_message_is_merged_or_refused(
        (message_type, base) in any_message(),
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let mut changed = base.clone();
        if !changed.is_empty() {
            let at = at.index(changed.len());
            changed[at] = byte;
        }
        let _ = message_type;
        write_all(&base, &changed);
    }
}

#[test]
fn deep_messages_are_refused_and_shallower_ones_merged() {
    for (message_type, open, close) in [
        (MessageType::Json, &b"{\"a\":"[..], &b"}"[..]),
        (MessageType::Xml, b"<a>", b"</a>"),
        (MessageType::Msgpack, b"\x81\xa1a", b""),
        (MessageType::Bson, b"", b""),
    ] {
        let nested = |depth: usize| {
            if message_type == MessageType::Bson {
                // A document has its size before it.
                let around = |inner: &Vec<u8>| {
                    let size = (inner.len() + 8) as i32;
                    Some([&size.to_le_bytes()[..], b"\x03a\0", inner, b"\0"].concat())
                };
                let innermost = b"\x05\0\0\0\0".to_vec();
                return std::iter::successors(Some(innermost), around).nth(depth).unwrap_or_default();
            }
            let inner: &[u8] = if message_type == MessageType::Xml { b"" } else { b"1" };
            [open.repeat(depth), inner.to_vec(), close.repeat(depth)].concat()
        };
        let good = nested(DOCUMENT_DEPTH_MAX - 1);
        assert_eq!(merged(message_type, &good, &good), good, "{message_type:?}");
        for depth in [DOCUMENT_DEPTH_MAX + 1, 10_000] {
            let error = merge(message_type, &good, &nested(depth), &mut Vec::new());
            let expected = MergeError::Malformed { side: Side::New, reason: Malformed::TooDeep };
            assert_eq!(error, Err(expected), "{message_type:?} {depth}");
        }
    }
}

/// Looking through all members for each of them would take hours.
#[test]
#[expect(clippy::disallowed_methods, reason = "what would take hours is to fail after a minute")]
fn messages_with_a_million_fields_are_merged() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let message = |step: usize| {
            let members: Vec<_> = (0..200_000).map(|number| format!("\"n{}\":1", number * step)).collect();
            format!("{{{}}}", members.join(",")).into_bytes()
        };
        let same = format!("{{\"b\":1{}}}", r#","a":1"#.repeat(500_000)).into_bytes();
        let out = merged(MessageType::Json, &message(1), &message(3));
        assert!(out.len() > message(1).len());
        assert_eq!(merged(MessageType::Json, &same, b"{\"a\":2}").len(), same.len());
        assert_eq!(merged(MessageType::Json, b"{}", &same), b"{\"b\":1,\"a\":1}");
        let twice: Vec<_> = (0..2 * 100_000).map(|number| format!("{}=x\u{1}", number % 100_000)).collect();
        assert!(merged(MessageType::Fix, b"1=y", twice.concat().as_bytes()).len() >= twice.concat().len());
        let mut delta = Vec::new();
        let differs = difference(MessageType::Json, &message(1), &message(3), &[], &mut delta);
        done.send(differs == Ok(true)).unwrap();
    });
    assert_eq!(is_done.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
}
