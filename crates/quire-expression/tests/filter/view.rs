//! The view into a filter names only conditions without which the filter is not TRUE.

use quire_expression::message_type::Value;

use super::parsed;

fn equalities(text: &str) -> Vec<String> {
    let text_of = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
    let filter = parsed(text);
    let found = filter.equalities();
    found
        .iter()
        .map(|found| {
            let texts: Vec<_> = found.texts.iter().map(|text| text_of(text)).collect();
            format!("{} = {}", found.field, texts.join("|"))
        })
        .collect()
}

fn ranges(text: &str) -> Vec<String> {
    let shown = |value: Option<Value<'_>>| match value {
        None => "*".to_owned(),
        Some(Value::Text(text)) => String::from_utf8(text.to_vec()).unwrap(),
        Some(Value::Number(number, _)) => number.as_f64().to_string(),
        Some(Value::Boolean(value)) => value.to_string(),
        other => panic!("{other:?}"),
    };
    let filter = parsed(text);
    let found = filter.ranges();
    found.iter().map(|found| format!("{} {}..{}", found.field, shown(found.low), shown(found.high))).collect()
}

#[test]
fn equalities_are_those_with_texts_that_and_joins() {
    assert_eq!(equalities("/a = 'x'"), ["/a = x"]);
    assert_eq!(equalities("'x' == /a"), ["/a = x"]);
    assert_eq!(equalities("/a = 'x' AND (/b IN ('y', 'z') AND /c > 5)"), ["/a = x", "/b = y|z"]);
    for text in [
        "/a = 5",
        "/a = '5'",
        "/a = '-1.5e3'",
        "/a = 'True'",
        "/a = ''",
        "/a != 'x'",
        "/a = /b",
        "/a LIKE 'x'",
        "/a IN ('x', 5)",
        "/a IN ('x', /b)",
        "/a NOT IN ('x')",
        "NOT (/a = 'x')",
        "/a = 'x' OR /b = 'y'",
        "/a = 'x' = TRUE",
        "LOWER(/a) = 'x'",
        "IF(/a = 'x', 1, 0)",
    ] {
        assert!(equalities(text).is_empty(), "{text}");
    }
}

#[test]
fn ranges_are_those_with_constants_that_and_joins() {
    assert_eq!(
        ranges("/a < 5 AND /b >= 'x' AND 3 < /c AND TRUE = /d"),
        ["/a *..5", "/b x..*", "/c 3..*", "/d true..true"]
    );
    assert_eq!(ranges("/a BETWEEN 1 AND 'z' AND /b > 1"), ["/a 1..z", "/b 1..*"]);
    for text in [
        "/a != 5",
        "/a < /b",
        "/a + 1 < 5",
        "/a NOT BETWEEN 1 AND 2",
        "/a < NULL",
        "/a BETWEEN 1 AND ''",
        "/a < 5 OR /b < 5",
        "/a < 5 < 6",
        "/a IN (1, 2)",
    ] {
        assert!(ranges(text).is_empty(), "{text}");
    }
}
