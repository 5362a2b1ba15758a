//! A mistake in a filter names its column and what was expected there.

use proptest::prelude::*;
use quire_expression::filter::*;

use super::json;

#[test]
fn a_mistake_is_shown_at_its_column() {
    for (filter, column, mistake) in [
        ("", 1, "a field"),
        ("/a", 0, ""),
        ("/a =", 5, "a field"),
        ("/a = 1 /b = 2", 8, "AND, OR, another operator or the end"),
        ("(/a = 1", 8, "')'"),
        ("/a IN (1 2)", 10, ", or )"),
        ("f(/a)", 1, "a function of filters (docs/filters.md section 7"),
        ("UPER(/a) = 'X'", 1, "a function, perhaps UPPER"),
        ("INSTR(/a) = 1", 1, "2 arguments for INSTR"),
        ("SUM(/a) > 1", 1, "a function that looks at one message"),
        ("symbol = 'X'", 1, "a field, a value or (; fields begin with a slash"),
        ("/a BEGINS 'x'", 11, "WITH"),
        ("/a[x] = 1", 4, "the number of an element"),
        ("/a + = 1", 6, "a field"),
        ("1e = 1", 3, "a digit"),
        ("5x = 1", 2, "an operator after the number"),
        ("[/a b = 1", 10, "]"),
        ("/a / 2 = 1", 0, ""),
        ("/a /2", 4, "AND, OR, another operator"),
        ("/a // 2", 5, "a field name, or a blank before a divisor"),
        ("/a LIKE '('", 9, "a regular expression"),
        ("/a LIKE '(.)\\1'", 9, "a regular expression"),
        ("/a LIKE /b", 9, "a pattern"),
        (
            "/a LIKE '%x%'",
            9,
            "% is not a wildcard in LIKE: leave it out, write [%] for the character, or use BEGINS WITH or ENDS WITH",
        ),
        ("/a NOT LIKE 'x%'", 13, "% is not a wildcard in LIKE"),
        ("/a LIKE 'a%b' OR /a LIKE '[%]'", 0, ""),
        ("/a = 'x", 6, "a closing quote for the text that begins here"),
        ("/a = 1 && /b = 2", 8, "& is not an operator: use AND"),
        ("/a = 1 || /b = 2", 8, "| is not an operator: use OR"),
        ("!(/a = 1)", 1, "! is not an operator: use NOT"),
        ("/a BETWEEN 1 OR 2", 14, "AND"),
        ("/a IS 3", 7, "NULL"),
        ("/a IN 3", 7, "'('"),
        ("é = 1", 1, "a field"),
        ("'é' = /x//y", 10, "a field name"),
        ("/a # 1", 4, "a field, a value or an operator"),
        ("/a NOT = 1", 8, "LIKE, IN, BETWEEN"),
    ] {
        match Filter::parse(filter, &FilterOptions::default()) {
            Ok(_) => assert_eq!(column, 0, "{filter}"),
            Err(error) => {
                assert_eq!(error.column, column, "{filter}: {error}");
                let reason = error.reason.strip_prefix("expected ").unwrap_or(&error.reason);
                assert!(reason.starts_with(mistake), "{filter}: {error}");
            }
        }
    }
    let deep = format!("{}/a = 1{}", "(".repeat(65), ")".repeat(65));
    assert!(Filter::parse(&deep, &FilterOptions::default()).is_err());
}

#[test]
fn a_caret_stands_under_the_mistake() {
    let text = "/qty > 5 AND\t/symbol LIKE '('";
    let error = Filter::parse(text, &FilterOptions::default()).unwrap_err();
    let shown = error.with_caret(text);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0], "/qty > 5 AND /symbol LIKE '('");
    assert_eq!(lines[1], format!("{}^", " ".repeat(26)));
    assert!(lines[2].starts_with("column 27: expected a regular expression"), "{shown}");
    let long = format!("{}/a = = 1", "/a = 1 OR ".repeat(1000));
    let shown = Filter::parse(&long, &FilterOptions::default()).unwrap_err().with_caret(&long);
    assert!(shown.lines().all(|line| line.len() < 130), "{shown}");
}

#[test]
fn a_filter_names_the_fields_that_it_reads_once_each() {
    let filter = Filter::parse("/a = 1 AND (/b/c > 2 OR /a < 0)", &FilterOptions::default()).unwrap();
    assert_eq!(filter.fields().collect::<Vec<_>>(), ["/a", "/b/c"]);
}

proptest! {
    #[test]
    fn any_text_is_a_filter_or_a_mistake_with_a_column(text in "\\PC{0,60}") {
        if let Err(error) = Filter::parse(&text, &FilterOptions::default()) {
            prop_assert!(error.column >= 1 && error.column <= text.chars().count() + 1);
        }
    }

    #[test]
    fn words_in_any_order_are_a_filter_or_a_mistake(
        words in proptest::collection::vec(prop::sample::select(vec![
            "/a", "/b[1]", "1", "-2.5", "'x'", "NULL", "TRUE", "AND", "OR", "NOT", "(", ")", "=", "<", "LIKE", "IN", ",", "BETWEEN", "IS",
        ]), 0..14),
        data in "\\PC{0,30}",
    ) {
        if let Ok(filter) = Filter::parse(&words.join(" "), &FilterOptions::default()) {
            filter.matches(&json(&data));
        }
    }
}
