//! The index returns exactly the subscriptions that want a message, in the order in which they were
//! inserted: the same as evaluating each filter.

use proptest::prelude::*;
use quire_expression::filter::*;
use quire_expression::message_type::Arena;

use super::{json, parsed};

fn found(index: &mut SubscriptionIndex<u32>, data: &str) -> Vec<u32> {
    let mut found = Vec::new();
    index.for_each_match(&json(data), &mut Arena::default(), |id| found.push(id));
    found
}

#[test]
fn the_index_gives_every_subscription_that_wants_the_message_and_forgets_those_that_left() {
    let filter = |text| Some(parsed(text));
    let mut index = SubscriptionIndex::default();
    index.insert(1, None);
    index.insert(2, filter("/a = 1"));
    index.insert(3, filter("/a = 2"));
    index.insert(4, filter("/a = 1"));
    assert_eq!(found(&mut index, r#"{"a":1}"#), [1, 2, 4]);
    index.remove(2);
    assert_eq!(found(&mut index, r#"{"a":1}"#), [1, 4]);
    index.insert(1, filter("/a > 0"));
    assert_eq!(found(&mut index, r#"{"a":1}"#), [4, 1], "a subscription with a new filter comes last");
    for id in [1, 3, 4] {
        index.remove(id);
    }
    assert!(index.is_empty());
}

/// A constant: numbers in several spellings, texts that are and are not numbers, Booleans and their
/// names.
fn constant() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (-3..6_i32).prop_map(|number| number.to_string()),
        1 => (-30..60_i32).prop_map(|number| format!("{:.1}", f64::from(number) / 10.0)),
        2 => (-3..6_i32).prop_map(|number| format!("'{number}'")),
        2 => "[a-c]{1,2}".prop_map(|text| format!("'{text}'")),
        1 => prop::sample::select(vec![
            "TRUE", "FALSE", "NULL", "'true'", "'False'", "''", "-0.0", "'007'", "'1e0'", "1e400", "'nan'",
            "9007199254740993", "9007199254740992.0", "18446744073709551615", "-9223372036854775808",
        ])
        .prop_map(String::from),
    ]
}

fn field() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["/a", "/b", "/c/d", "/a[0]"])
}

/// Conditions that the index supports, with the field on either side, and conditions that it does
/// not support.
fn predicate() -> impl Strategy<Value = String> {
    let comparison = prop::sample::select(vec!["=", "!=", "<", "<=", ">", ">="]);
    prop_oneof![
        6 => (field(), comparison.clone(), constant()).prop_map(|(field, op, value)| format!("{field} {op} {value}")),
        2 => (field(), comparison, constant()).prop_map(|(field, op, value)| format!("{value} {op} {field}")),
        2 => (field(), proptest::collection::vec(constant(), 1..4))
            .prop_map(|(field, values)| format!("{field} IN ({})", values.join(", "))),
        2 => (field(), constant(), constant())
            .prop_map(|(field, low, high)| format!("{field} BETWEEN {low} AND {high}")),
        1 => field().prop_map(|field| format!("{field} LIKE '1'")),
        1 => field().prop_map(|field| format!("{field} IS NULL")),
        1 => field().prop_map(|field| format!("{field} + 1 = 2")),
        1 => Just("1 = 1".to_owned()),
    ]
}

fn filter() -> impl Strategy<Value = String> {
    predicate().prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            3 => proptest::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" AND "))),
            2 => proptest::collection::vec(inner.clone(), 2..4).prop_map(|parts| format!("({})", parts.join(" OR "))),
            1 => inner.prop_map(|part| format!("NOT ({part})")),
        ]
    })
}

fn json_value() -> impl Strategy<Value = String> {
    let single = prop_oneof![
        4 => (-3..6_i32).prop_map(|number| number.to_string()),
        1 => (-30..60_i32).prop_map(|number| format!("{:.1}", f64::from(number) / 10.0)),
        2 => (-3..6_i32).prop_map(|number| format!("\"{number}\"")),
        2 => "[a-c]{1,2}".prop_map(|text| format!("\"{text}\"")),
        1 => prop::sample::select(vec![
            "true", "false", "null", "\"true\"", "\"FALSE\"", "\"\"", "{}", "-0", "\"007\"", "\"1.0\"", "1e999",
            "9007199254740993", "9007199254740992", "18446744073709551615",
        ])
        .prop_map(String::from),
    ];
    single.prop_recursive(2, 6, 3, |inner| {
        proptest::collection::vec(inner, 0..4).prop_map(|values| format!("[{}]", values.join(",")))
    })
}

fn data() -> impl Strategy<Value = String> {
    let member = |value: Option<String>, name: &str| value.map(|value| format!("\"{name}\":{value}"));
    let optional = || prop::option::weighted(0.9, json_value());
    prop_oneof![
        20 => (optional(), optional(), optional()).prop_map(move |(a, b, d)| {
            let nested = d.map(|d| format!("{{\"d\":{d}}}"));
            let members: Vec<String> =
                [member(a, "a"), member(b, "b"), member(nested, "c")].into_iter().flatten().collect();
            format!("{{{}}}", members.join(","))
        }),
        1 => Just("malformed".to_owned()),
    ]
}

/// An operation on the index.
#[derive(Clone, Debug)]
enum Step {
    Insert(u32, Option<String>),
    Remove(u32),
    Message(String),
}

fn step() -> impl Strategy<Value = Step> {
    // Few ids and few filters of their own, so that filters are replaced, shared and left.
    prop_oneof![
        4 => (0..24_u32, prop::option::weighted(0.95, filter())).prop_map(|(id, filter)| Step::Insert(id, filter)),
        2 => (0..24_u32).prop_map(Step::Remove),
        3 => data().prop_map(Step::Message),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_index_gives_what_evaluating_each_filter_gives(steps in proptest::collection::vec(step(), 1..60)) {
        let mut index = SubscriptionIndex::default();
        let mut list: Vec<(u32, Option<Filter>)> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(id, text) => {
                    let filter = text.as_deref().map(parsed);
                    list.retain(|(known, _)| *known != id);
                    list.push((id, filter.clone()));
                    index.insert(id, filter);
                }
                Step::Remove(id) => {
                    list.retain(|(known, _)| *known != id);
                    index.remove(id);
                }
                Step::Message(data) => {
                    let wants = |filter: &Option<Filter>| {
                        filter.as_ref().is_none_or(|filter| filter.matches(&json(&data)))
                    };
                    let expected: Vec<u32> =
                        list.iter().filter(|(_, filter)| wants(filter)).map(|(id, _)| *id).collect();
                    prop_assert_eq!(found(&mut index, &data), expected, "{}", data);
                }
            }
            prop_assert_eq!(index.len(), list.len());
        }
    }
}
