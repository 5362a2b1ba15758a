//! Filters say yes to what the language says, no to the rest, and point at the column of a mistake. The vectors stand in
//! `tests/golden/filters.txt`, one per line: result, filter, message.

use proptest::prelude::*;
use quire_core::filter::*;
use quire_core::message_type::MessageType;
use quire_journal::Timestamp;

fn matches(filter: &str, data: &str) -> bool {
    let filter = Filter::parse(filter, &FilterOptions::default())
        .unwrap_or_else(|error| panic!("{}", error.with_caret(filter)));
    let message = MessageContext {
        message_type: MessageType::Json,
        data: data.as_bytes(),
        topic: "t",
        bookmark: None,
        correlation_id: b"",
        timestamp: Timestamp(0),
        now: Timestamp(0),
    };
    filter.matches(&message)
}

#[test]
fn the_golden_vectors_hold() {
    let vectors = include_str!("../../../tests/golden/filters.txt");
    let mut count = 0;
    for line in vectors.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut parts = line.split(" | ");
        let (want, filter, data) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        assert_eq!(matches(filter, data), want == "yes", "{line}");
        count += 1;
    }
    assert!(count > 60, "{count} vectors");
}

#[test]
fn a_mistake_is_shown_at_its_column() {
    for (filter, column, expected) in [
        ("", 1, "a field"),
        ("/a", 0, ""),
        ("/a =", 5, "a field"),
        ("/a = 1 /b = 2", 8, "AND, OR or the end"),
        ("(/a = 1", 8, "')'"),
        ("/a LIKE '('", 9, "a regular expression"),
        ("/a LIKE '(.)\\1'", 9, "a regular expression"),
        ("/a LIKE /b", 9, "a pattern"),
        ("/a = 'x", 6, "a closing quote"),
        ("/a BETWEEN 1 OR 2", 14, "AND"),
        ("/a IS 3", 7, "NULL"),
        ("/a IN 3", 7, "'('"),
        ("é = 1", 1, "a field"),
        ("'é' = /x//y", 7, "a field like"),
        ("/a # 1", 4, "a field, a value or an operator"),
        ("/a NOT = 1", 8, "IN, BETWEEN or LIKE"),
    ] {
        match Filter::parse(filter, &FilterOptions::default()) {
            Ok(_) => assert_eq!(column, 0, "{filter}"),
            Err(error) => {
                assert_eq!(error.column, column, "{filter}: {error}");
                assert!(error.expected.starts_with(expected), "{filter}: {error}");
            }
        }
    }
    let deep = format!("{}/a = 1{}", "(".repeat(65), ")".repeat(65));
    assert!(Filter::parse(&deep, &FilterOptions::default()).is_err());
}

#[test]
fn a_filter_names_the_fields_that_it_reads_once_each() {
    let filter = Filter::parse("/a = 1 AND (/b/c > 2 OR /a < 0)", &FilterOptions::default()).unwrap();
    assert_eq!(filter.fields().collect::<Vec<_>>(), ["/a", "/b/c"]);
}

#[test]
fn the_index_gives_every_subscription_that_wants_the_message_and_forgets_those_that_left() {
    let filter = |text| Some(Filter::parse(text, &FilterOptions::default()).unwrap());
    let mut index = SubscriptionIndex::default();
    index.insert(1, None);
    index.insert(2, filter("/a = 1"));
    index.insert(3, filter("/a = 2"));
    index.insert(4, filter("/a = 1"));
    let message = MessageContext {
        message_type: MessageType::Json,
        data: br#"{"a":1}"#,
        topic: "t",
        bookmark: None,
        correlation_id: b"",
        timestamp: Timestamp(0),
        now: Timestamp(0),
    };
    let mut found = Vec::new();
    index.for_each_match(&message, |id| found.push(id));
    assert_eq!(found, [1, 2, 4]);
    for id in [1, 2, 3, 4] {
        index.remove(id);
    }
    assert!(index.is_empty());
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
            let message = MessageContext {
                message_type: MessageType::Json, data: data.as_bytes(), topic: "t", bookmark: None, correlation_id: b"",
                timestamp: Timestamp(0), now: Timestamp(0),
            };
            filter.matches(&message);
        }
    }

    /// Against the obvious model: numbers compared as numbers.
    #[test]
    fn comparisons_agree_with_arithmetic(field in -50i64..50, constant in -50i64..50, low in -50i64..50, high in -50i64..50) {
        let data = format!("{{\"n\":{field}}}");
        let results = [
            (format!("/n = {constant}"), field == constant), (format!("/n != {constant}"), field != constant),
            (format!("/n < {constant}"), field < constant), (format!("/n <= {constant}"), field <= constant),
            (format!("/n > {constant}"), field > constant), (format!("/n >= {constant}"), field >= constant),
            (format!("/n BETWEEN {low} AND {high}"), low <= field && field <= high),
            (format!("/n NOT BETWEEN {low} AND {high}"), !(low <= field && field <= high)),
            (format!("/n IN ({constant}, {low}, {high})"), [constant, low, high].contains(&field)),
            (format!("NOT (/n < {constant}) AND /n < {high}"), field >= constant && field < high),
        ];
        for (filter, want) in results {
            prop_assert_eq!(matches(&filter, &data), want, "{}", filter);
        }
    }
}
