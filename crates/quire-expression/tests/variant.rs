//! JSON as a variant. The bytes of the first test are those of `parse_json` of Spark 4.3.
//! `tests/spark/test_variant.py` compares both for random texts.

use proptest::prelude::*;
use quire_expression::message_type::{VARIANT_DEPTH_MAX, VariantEncoder};

/// Value and names of a text, as hexadecimal digits.
fn encoded(encoder: &mut VariantEncoder, json: &str) -> Option<(String, String)> {
    let (mut value, mut names) = (b"before".to_vec(), b"before".to_vec());
    let is_variant = encoder.encode(json, &mut value, &mut names).is_ok();
    assert!(value.starts_with(b"before") && names.starts_with(b"before"));
    let hex = |bytes: &[u8]| bytes[6..].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let found = (hex(&value), hex(&names));
    match is_variant {
        true => Some(found),
        false => {
            assert_eq!(found, Default::default(), "{json}");
            None
        }
    }
}

fn value_of(json: &str) -> Option<String> {
    encoded(&mut VariantEncoder::default(), json).map(|(value, _)| value)
}

#[test]
fn values_are_the_bytes_that_spark_writes() {
    let nines = "9".repeat(38);
    let small = format!("0.{}1", "0".repeat(37));
    let smaller = format!("0.{}1", "0".repeat(38));
    for (json, expected) in [
        ("null", "00"),
        (" true ", "04"),
        ("false", "08"),
        ("1", "0c01"),
        ("-128", "0c80"),
        ("128", "108000"),
        ("-32769", "14ff7fffff"),
        ("2147483648", "180000008000000000"),
        ("-9223372036854775808", "180000000000000080"),
        ("9223372036854775808", "280000000000000000800000000000000000"),
        ("-9223372036854775809", "2800ffffffffffffff7fffffffffffffffff"),
        ("-0", "0c00"),
        ("-0.0", "200100000000"),
        ("1.0", "20010a000000"),
        ("1.10", "20026e000000"),
        ("0.000000001", "200901000000"),
        ("0.0000000001", "240a0100000000000000"),
        ("123456789.0123456789", "280a1581e97df41022110000000000000000"),
        ("1234567890123456789012345678901234567.8", "28014ef338de509049c4133302f0f6b04909"),
        ("12345678901234567890123456789012345678.9", "1c6604e0ed6193a247"),
        (nines.as_str(), "2800ffffffff3f228a097ac4865aa84c3b4b"),
        (small.as_str(), "282601000000000000000000000000000000"),
        (smaller.as_str(), "1c832d55b12fc7d537"),
        ("1e2", "1c0000000000005940"),
        ("0.1e0", "1c9a9999999999b93f"),
        ("-0e0", "1c0000000000000080"),
        ("1e400", "1c000000000000f07f"),
        ("4.9e-324", "1c0100000000000000"),
        (r#""""#, "01"),
        (r#""a\u00e4""#, "0d61c3a4"),
        (r#""\ud83d\ude00\n""#, "15f09f98800a"),
        ("[]", "030000"),
        ("[1,2]", "03020002040c010c02"),
        ("{}", "020000"),
        (r#"{"b":1,"a":[{}]}"#, "020201000200090c0103010003020000"),
    ] {
        let found = value_of(json);
        assert_eq!(found.as_deref(), Some(expected), "{json}");
    }
}

#[test]
fn members_have_the_order_of_utf_16_and_names_that_of_the_text() {
    let mut encoder = VariantEncoder::default();
    let found = encoded(&mut encoder, "{\"\u{e000}\":1,\"\u{1f600}\":2}");
    let expected = ("020201000200040c010c02".to_owned(), "0102000307ee8080f09f9880".to_owned());
    assert_eq!(found, Some(expected));
    // The same name in two objects is there once, also with an escape.
    let (_, names) = encoded(&mut encoder, r#"[{"ab":1,"":0},{"\u0061b":2}]"#).unwrap();
    assert_eq!(names, "010200020261 62".replace(' ', ""));
}

#[test]
fn long_texts_and_many_members_have_wide_sizes() {
    let long = "x".repeat(63);
    assert!(value_of(&format!("\"{long}\"")).unwrap().starts_with("fd78"));
    assert!(value_of(&format!("\"{long}x\"")).unwrap().starts_with("404000000078"));
    let ones = |count: usize| format!("[{}1]", "1,".repeat(count - 1));
    assert!(value_of(&ones(255)).unwrap().starts_with("07ff0000"));
    assert!(value_of(&ones(256)).unwrap().starts_with("17000100000000"));
    assert!(value_of(&ones(40_000)).unwrap().starts_with("1b409c0000000000"));
    let members = |count: usize| {
        let members: Vec<_> = (0..count).map(|number| format!("\"k{number:05}\":1")).collect();
        encoded(&mut VariantEncoder::default(), &format!("{{{}}}", members.join(","))).unwrap()
    };
    let (value, names) = members(300);
    assert!(value.starts_with("562c010000000001000200"), "{}", &value[..40]);
    assert!(names.starts_with("412c010000060 0".replace(' ', "").as_str()), "{}", &names[..40]);
    let (value, names) = members(70_000);
    assert!(value.starts_with("6a70110100"), "{}", &value[..40]);
    assert!(names.starts_with("81701101000000060000"), "{}", &names[..40]);
}

#[test]
fn what_spark_makes_no_variant_of_is_an_error() {
    let deep = "[".repeat(VARIANT_DEPTH_MAX) + &"]".repeat(VARIANT_DEPTH_MAX);
    assert!(value_of(&deep).is_some());
    let deeper = format!("[{deep}]");
    let (digits, more_digits) = ("1".repeat(1000), "1".repeat(1001));
    assert!(value_of(&digits).is_some());
    let (name, longer_name) = ("\u{1f600}".repeat(25_000), "\u{1f600}".repeat(25_000) + "a");
    assert!(value_of(&format!("{{\"{name}\":1}}")).is_some());
    let longer_name = format!("{{\"{longer_name}\":1}}");
    for json in [
        "",
        "  ",
        "NaN",
        "1x",
        "1,",
        "truex",
        "true_",
        "nul",
        "\u{feff}1",
        "01",
        "1.",
        "+1",
        ".5",
        "-",
        "\"\t\"",
        "'a'",
        "[1 2]",
        "[1,]",
        "[",
        "{",
        "{\"a\"",
        "{\"a\":1,}",
        "{\"a\":tru}",
        "/**/1",
        r#""\ud835""#,
        r#""\ude00\ud83d""#,
        r#"{"\ud835":1}"#,
        r#"{"a":1,"b":2,"a":3}"#,
        r#"{"a":1,"\u0061":3}"#,
        r#"[{"a":{"b":1,"b":1}}]"#,
        deeper.as_str(),
        more_digits.as_str(),
        longer_name.as_str(),
    ] {
        assert_eq!(value_of(json), None, "{json:.60}");
    }
}

#[test]
fn the_text_after_the_value_is_not_read() {
    for (json, expected) in [
        (r#"{"a":1} x"#, "02010000020c01"),
        ("[1]]", "030100020c01"),
        ("1 2", "0c01"),
        ("1\n", "0c01"),
        ("true,", "04"),
        ("null#", "00"),
        (r#""a"b"#, "0561"),
    ] {
        assert_eq!(value_of(json).as_deref(), Some(expected), "{json}");
    }
}

#[test]
fn earlier_messages_do_not_change_later_ones() {
    let mut encoder = VariantEncoder::default();
    let texts: Vec<_> = (0..6000)
        .map(|number: u32| match number % 5 {
            0 => r#"{"a":1,"b":{"a":2}}"#.to_owned(),
            1 => format!("{{\"k{number}\":[{{\"b\":1,\"a\":2}}]}}"),
            2 => r#"{"b":1,"a":1,"a":1}"#.to_owned(),
            3 => "7".to_owned(),
            _ => format!("{{\"{}\":1,\"a\":{{\"k{}\":1}}}}", "n".repeat(number as usize % 700), number / 2),
        })
        .collect();
    for json in &texts {
        assert_eq!(encoded(&mut encoder, json), encoded(&mut VariantEncoder::default(), json), "{json}");
    }
}

#[test]
fn names_are_new_after_a_message_with_too_many() {
    let mut encoder = VariantEncoder::default();
    assert!(encoded(&mut encoder, r#"{"a":1}"#).is_some());
    let names: String = (0..5000).map(|number| format!("\"k{number}\":1,")).collect();
    assert_eq!(encoded(&mut encoder, &format!("{{{names}\"k0\":1}}")), None);
    let (_, names) = encoded(&mut encoder, r#"{"b":1}"#).unwrap();
    assert_eq!(names, "0101000162");
}

/// Reads a whole value. Panics where a place is not in it. Returns its size.
fn walk(value: &[u8], names: &[String]) -> usize {
    let number = |at: usize, width: usize| {
        value[at..at + width].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let info = usize::from(value[0] >> 2);
    let (is_object, offset_width, id_width, count_width) = match value[0] & 3 {
        0 => {
            let sizes = [1, 1, 1, 2, 3, 5, 9, 9, 6, 10, 18];
            return if info == 16 { 5 + number(1, 4) } else { sizes[info] };
        }
        1 => return 1 + info,
        2 => (true, (info & 3) + 1, (info >> 2 & 3) + 1, if info & 16 > 0 { 4 } else { 1 }),
        _ => (false, (info & 3) + 1, 0, if info & 4 > 0 { 4 } else { 1 }),
    };
    let count = number(1, count_width);
    let ids = 1 + count_width;
    let offsets = ids + count * id_width;
    let data = offsets + (count + 1) * offset_width;
    let mut end = 0;
    let mut places: Vec<_> =
        (0..count).map(|entry| number(offsets + entry * offset_width, offset_width)).collect();
    if is_object {
        let name = |entry: usize| names[number(ids + entry * id_width, id_width)].encode_utf16();
        assert!((1..count).all(|entry| name(entry - 1).lt(name(entry))), "the members are sorted");
        places.sort_unstable();
    }
    for place in places {
        assert_eq!(place, end, "each value begins where the one before ends");
        end += walk(&value[data + place..], names);
    }
    assert_eq!(end, number(offsets + count * offset_width, offset_width));
    data + end
}

fn names_of(metadata: &[u8]) -> Vec<String> {
    let width = usize::from(metadata[0] >> 6) + 1;
    assert_eq!(metadata[0] & 0x3F, 1);
    let number = |at: usize| {
        let bytes = &metadata[1 + at * width..1 + (at + 1) * width];
        bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let (count, start) = (number(0), 1 + (number(0) + 2) * width);
    assert_eq!(metadata.len(), start + number(count + 1));
    let name = |name: usize| metadata[start + number(1 + name)..start + number(2 + name)].to_vec();
    (0..count).map(|number| String::from_utf8(name(number)).unwrap()).collect()
}

fn member_count(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(elements) => elements.iter().map(member_count).sum(),
        serde_json::Value::Object(members) => members.values().map(|value| 1 + member_count(value)).sum(),
        _ => 0,
    }
}

/// JSON, and what is nearly JSON.
fn json() -> impl Strategy<Value = String> {
    let name =
        prop_oneof!["[abc]{0,2}", "\\PC{0,9}", Just("\\u0061".to_owned()), Just("\u{ffff}".to_owned())];
    let plain = prop_oneof![
        4 => "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?",
        2 => "\"([a\u{e4}\u{1f600}]|\\\\n|\\\\u[0-9a-dA-F]{4}){0,40}\"",
        1 => "[\\[\\]{}\",:0a-]{0,5}",
        3 => prop::sample::select(vec!["true", "false", "null", "\"\""]).prop_map(str::to_owned),
    ];
    plain.prop_recursive(5, 200, 8, move |inner| {
        let member = (name.clone(), inner.clone()).prop_map(|(name, value)| format!("\"{name}\": {value}"));
        prop_oneof![
            prop::collection::vec(inner, 0..6).prop_map(|values| format!("[{}]", values.join(","))),
            prop::collection::vec(member, 0..8).prop_map(|values| format!("{{{}}}", values.join(","))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_texts_are_whole_variants_or_errors(texts in prop::collection::vec(json(), 1..6)) {
        let mut encoder = VariantEncoder::default();
        for json in texts {
            let (mut value, mut metadata) = (Vec::new(), Vec::new());
            let is_variant = encoder.encode(&json, &mut value, &mut metadata).is_ok();
            if is_variant {
                prop_assert_eq!(walk(&value, &names_of(&metadata)), value.len(), "{}", json);
            }
            // Other JSON has a name twice: then it has fewer members than the text.
            if let Ok(parsed) = serde_json::from_str(&json) && !is_variant {
                prop_assert!(member_count(&parsed) < json.matches("\": ").count(), "{}", json);
            }
        }
    }
}
