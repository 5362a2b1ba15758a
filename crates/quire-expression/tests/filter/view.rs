//! The view into a filter names only conditions without which the filter is not TRUE.

use quire_expression::message_type::Value;

use super::parsed;

fn shown(value: Value<'_>) -> String {
    match value {
        Value::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
        Value::Number(number, _) => number.as_f64().to_string(),
        Value::Boolean(value) => value.to_string(),
        other => panic!("{other:?}"),
    }
}

fn equalities(text: &str) -> Vec<String> {
    let filter = parsed(text);
    let found = filter.equalities();
    found
        .iter()
        .map(|found| {
            let values: Vec<_> = found.values.iter().copied().map(shown).collect();
            format!("{} = {}", found.field, values.join("|"))
        })
        .collect()
}

fn ranges(text: &str) -> Vec<String> {
    let shown = |value: Option<Value<'_>>| value.map_or("*".to_owned(), shown);
    let filter = parsed(text);
    let found = filter.ranges();
    found.iter().map(|found| format!("{} {}..{}", found.field, shown(found.low), shown(found.high))).collect()
}

#[test]
fn equalities_are_those_with_constants_that_and_joins() {
    assert_eq!(equalities("/a = 'x'"), ["/a = x"]);
    assert_eq!(equalities("'x' == /a"), ["/a = x"]);
    assert_eq!(equalities("/a = 'x' AND (/b IN ('y', 'z') AND /c > 5)"), ["/a = x", "/b = y|z"]);
    assert_eq!(
        equalities("/a = 5 AND TRUE = /b AND /c IN (1.5, NULL, '7')"),
        ["/a = 5", "/b = true", "/c = 1.5|7"]
    );
    assert_eq!(equalities("/a IN (NULL, '')"), ["/a = "]);
    for text in [
        "/a = ''",
        "/a = NULL",
        "/a != 'x'",
        "/a = /b",
        "/a LIKE 'x'",
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
fn plain_texts_are_those_that_only_the_same_text_is_equal_to() {
    let is_plain = |text| parsed(text).equalities()[0].plain_texts().is_some();
    assert!(is_plain("/a = 'x'") && is_plain("/a IN ('x', '5x', NULL)"));
    for text in ["/a = 5", "/a = '5'", "/a = '-1.5e3'", "/a = 'True'", "/a = FALSE", "/a IN ('x', 5)"] {
        assert!(!is_plain(text), "{text}");
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
