//! Filters and messages with any bytes, deep nesting, huge numbers and texts. No input causes a
//! panic, and all of them end soon.

use proptest::prelude::*;
use quire_expression::message_type::*;

use super::{message, parsed};

/// Filters that reach every way of reading: members, elements, arrays of objects, attributes,
/// functions of whole arrays.
const FILTERS: &[&str] = &[
    "/a = 1 OR /b/c LIKE 'x' OR /a[0]/b = /b",
    "ARRAY_SUM(/a) > 1 OR ARRAY_TO_STRING(/a/b, ',', '-') = 'x'",
    "/a/@b = 1 OR /1 = 2 OR CONCAT(/a, /b) BEGINS WITH 'y'",
];

fn read_all(data: &[u8]) {
    for message_type in MessageType::ALL {
        for filter in FILTERS {
            parsed(filter).matches(&message(*message_type, data));
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_by_every_format(data in proptest::collection::vec(any::<u8>(), 0..200)) {
        read_all(&data);
    }

    /// Bytes that look like the formats reach further into their readers.
    #[test]
    fn any_parts_of_messages_are_read_or_refused(
        parts in proptest::collection::vec(prop::sample::select(vec![
            "{", "}", "[", "]", "\"a\"", ":", ",", "1", "-1e5", "\"\\ud800\"", "null", "true",
            "<a>", "</a>", "<b/>", "<a b=\"1\">", "&lt;", "&#x41;", "<![CDATA[", "]]>", "<!--", "-->", "<?x?>", "<!DOCTYPE a>",
            "a=1", "\u{1}", "1=2", "=",
            "\u{81}", "\u{0}", "\u{2}", "\u{3}a\u{0}", "\u{4}", "\u{10}b\u{0}", "\u{5}\u{0}\u{0}\u{0}\u{0}", " ", "\n",
        ]), 0..24),
        cut in any::<prop::sample::Index>(),
    ) {
        // Characters up to U+00FF stand for bytes.
        let mut data: Vec<u8> = parts.concat().chars().map(|character| character as u8).collect();
        read_all(&data);
        data.truncate(cut.index(data.len() + 1));
        read_all(&data);
    }
}

/// A document around `inner`, `depth` levels deep.
fn nested(message_type: MessageType, depth: usize) -> Vec<u8> {
    match message_type {
        MessageType::Json => {
            format!("{{\"a\":{}1{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1)).into_bytes()
        }
        MessageType::Xml => format!("{}{}", "<a>".repeat(depth), "</a>".repeat(depth)).into_bytes(),
        MessageType::Msgpack => [b"\x81\xa1a".repeat(depth), b"\x01".to_vec()].concat(),
        MessageType::Bson => (0..depth).fold(b"\x05\0\0\0\0".to_vec(), |inner, _| {
            let size = (inner.len() + 8) as i32;
            [&size.to_le_bytes()[..], b"\x03a\0", &inner, b"\0"].concat()
        }),
        MessageType::Binary | MessageType::Nvfix | MessageType::Fix => Vec::new(),
    }
}

#[test]
fn deep_messages_are_refused_and_shallower_ones_read() {
    for message_type in [MessageType::Json, MessageType::Xml, MessageType::Msgpack, MessageType::Bson] {
        let read = |depth| {
            let mut plan = FieldPlan::default();
            plan.add(&[Step::Name(b"a"[..].into()), Step::Name(b"a"[..].into())]);
            MessageType::read(message_type, &nested(message_type, depth), &plan, &Arena::default()).map(drop)
        };
        assert_eq!(read(DOCUMENT_DEPTH_MAX - 1), Ok(()), "{message_type:?}");
        for depth in [DOCUMENT_DEPTH_MAX + 1, 10_000] {
            assert_eq!(read(depth), Err(Malformed::TooDeep), "{message_type:?} {depth}");
        }
    }
}

/// The effort that a filter takes for a message.
fn effort(filter: &str, data: &[u8]) -> u64 {
    let (mut arena, allowed) = (Arena::default(), 1_000_000_000);
    arena.allow(allowed);
    assert!(parsed(filter).decide(&message(MessageType::Json, data), &mut arena).is_some(), "{filter}");
    allowed - arena.effort_left()
}

#[test]
fn each_part_of_a_text_that_is_replaced_takes_effort() {
    let texts =
        [format!("{{\"p\":\"{}\"}}", "a".repeat(1000)), format!("{{\"p\":\"{}\"}}", "b".repeat(1000))];
    let filters = [("REPLACE(/p, 'a', NULL) = 'x'", 12), ("REGEXP_REPLACE(/p, 'a', NULL) = 'x'", 36)];
    for (filter, each) in filters {
        let [replaced, unchanged] = texts.each_ref().map(|text| effort(filter, text.as_bytes()));
        // The unchanged text is a result of 1,000 bytes.
        assert_eq!(replaced, unchanged - 1000 + each * 1000, "{filter}");
        let mut arena = Arena::default();
        arena.allow(replaced - 1);
        let decided = parsed(filter).decide(&message(MessageType::Json, texts[0].as_bytes()), &mut arena);
        assert_eq!(decided, None, "{filter}");
    }
}

#[test]
fn sizes_that_lie_are_not_believed() {
    let array_of_4_billion = b"\x81\xa1a\xdd\xff\xff\xff\xff\x01";
    let text_of_4_billion = b"\x81\xa1a\xdb\xff\xff\xff\xffx";
    let map_of_4_billion = b"\xdf\xff\xff\xff\xff\xa1a\x01";
    for data in [&array_of_4_billion[..], text_of_4_billion, map_of_4_billion] {
        assert!(!parsed("/a IS NULL OR /a = 1").matches(&message(MessageType::Msgpack, data)));
    }
    let document_of_2_billion = b"\xff\xff\xff\x7f\x10a\0\x01\0\0\0\0";
    let text_of_minus_1 = b"\x0e\0\0\0\x02a\0\xff\xff\xff\xffx\0\0";
    for data in [&document_of_2_billion[..], text_of_minus_1] {
        assert!(!parsed("/a IS NULL OR /a = 1").matches(&message(MessageType::Bson, data)));
    }
}

#[test]
fn a_message_of_10_mb_and_a_filter_of_10_kb_are_ordinary() {
    let filter: Vec<String> = (0..500).map(|number| format!("/f{number} = 'value {number}'")).collect();
    let filter = parsed(&format!("({}) AND ARRAY_COUNT(/list) = 1000000", filter.join(" OR ")));
    assert!(filter.text().len() > 10_000);
    let data = format!("{{\"list\":[{}1],\"f499\":\"value 499\"}}", "1234567, ".repeat(999_999));
    assert!(data.len() > 9_000_000);
    assert!(filter.matches(&message(MessageType::Json, data.as_bytes())));
    let data = format!("{{\"text\":\"{}\",\"n\":{}}}", "\\u00e9".repeat(1_700_000), "9".repeat(1_000_000));
    assert!(
        parsed("LENGTH(/text) = 3400000 AND /n > 1e300")
            .matches(&message(MessageType::Json, data.as_bytes()))
    );
}

#[test]
fn bytes_that_are_no_utf8_are_compared_as_bytes() {
    let data = b"{\"a\":\"\xff\xfe\",\"\xff\":1}";
    assert!(parsed("LENGTH(/a) = 2 AND /a > 'z'").matches(&message(MessageType::Json, data)));
}
