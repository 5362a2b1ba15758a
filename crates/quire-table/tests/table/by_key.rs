//! Filters that say which values all key fields have: they find their rows through the keys, and a
//! model that looks at every row agrees.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_expression::filter::MessageContext;
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::{Headers, Timestamp};
use quire_table::*;

use crate::indexes::cost;
use crate::snapshots::{restore, written};
use crate::{PutRow, any_memory, everything, filter, row};

fn key_fields(names: &[&str]) -> KeyFields {
    let names: Vec<_> = names.iter().map(|name| name.to_string()).collect();
    KeyFields::new(MessageType::Json, "orders", &names).unwrap()
}

/// A table whose keys are generated from these fields.
pub fn keyed_table(names: &[&str]) -> Table {
    let config = TableConfig {
        name: "orders".into(),
        message_type: MessageType::Json,
        key: Some(key_fields(names)),
        hash_indexes: Vec::new(),
        ordered_indexes: Vec::new(),
        history: None,
        limits: IndexLimits::default(),
    };
    Table::new(config, &any_memory()).unwrap()
}

/// Puts a message with the key that its fields generate.
fn put(table: &mut Table, fields: &KeyFields, data: &str) {
    let key = fields.key_of(data.as_bytes(), &mut Arena::default()).unwrap();
    table.put(&row(key.as_str(), data));
}

#[test]
fn a_filter_with_the_values_of_all_key_fields_looks_at_one_row() {
    let (mut table, fields) = (keyed_table(&["/id"]), key_fields(&["/id"]));
    (0..1_000).for_each(|id| put(&mut table, &fields, &format!(r#"{{"id":{id},"n":1}}"#)));
    assert_eq!(cost(&mut table, "/id = 7"), (1, 1));
    assert_eq!(cost(&mut table, "/id = '7'"), (1, 1));
    assert_eq!(cost(&mut table, "/id = 7.0 AND /n = 1"), (1, 1));
    assert_eq!(cost(&mut table, "/id = 7 AND /n = 2"), (0, 1));
    assert_eq!(cost(&mut table, "/id IN (1, '2', 2, NULL, 5000)"), (2, 2));
    assert_eq!(cost(&mut table, "/id = 5000"), (0, 0));
    assert_eq!(cost(&mut table, "/id > 7 AND /id < 9"), (1, 1_000), "no equality");
    assert_eq!(cost(&mut table, "/id = TRUE"), (1, 1_000), "a Boolean");
    assert_eq!(cost(&mut table, "/id = 7 OR /id = 8"), (2, 1_000), "OR");
}

#[test]
fn texts_with_leading_zeros_are_found_as_texts_through_the_key() {
    let (mut table, fields) = (keyed_table(&["/id"]), key_fields(&["/id"]));
    (0..1_000).for_each(|id| put(&mut table, &fields, &format!(r#"{{"id":"{id:06}"}}"#)));
    assert_eq!(cost(&mut table, "/id = '000007'"), (1, 1));
    // The number 7 is equal to every text that spells it, so that all such texts are looked at.
    assert_eq!(cost(&mut table, "/id = 7"), (1, 1_000));
    assert_eq!(cost(&mut table, "/id = '7'"), (0, 0));
}

#[test]
fn several_key_fields_are_found_only_by_filters_of_all_of_them() {
    let (mut table, fields) = (keyed_table(&["/a", "/b"]), key_fields(&["/a", "/b"]));
    for number in 0..1_000 {
        put(&mut table, &fields, &format!(r#"{{"b":"b{}","a":{}}}"#, number % 10, number / 10));
    }
    assert_eq!(cost(&mut table, "/b = 'b3' AND /a = 70"), (1, 1));
    assert_eq!(cost(&mut table, "/a IN (1, 2) AND /b IN ('b3', 'b4', 'b5')"), (6, 6));
    assert_eq!(cost(&mut table, "/a = 70"), (10, 1_000));
}

#[test]
fn rows_whose_fields_did_not_make_their_keys_are_looked_at_for_every_filter() {
    let (mut table, fields) = (keyed_table(&["/id"]), key_fields(&["/id"]));
    (0..1_000).for_each(|id| put(&mut table, &fields, &format!(r#"{{"id":"id {id}"}}"#)));
    table.put(&row("another key", r#"{"id":"id 7"}"#));
    assert_eq!(cost(&mut table, "/id = 'id 7'"), (2, 2));
    put(&mut table, &fields, r#"{"id":["id 8","id 7"]}"#);
    assert_eq!(cost(&mut table, "/id = 'id 7'"), (3, 3));
    table.put(&row("another key", r#"{"id":"id 9"}"#));
    put(&mut table, &fields, r#"{"id":"id 8"}"#);
    assert_eq!(cost(&mut table, "/id = 'id 7'"), (1, 2));
    table.remove(b"another key", Moment::default());
    assert_eq!(cost(&mut table, "/id = 'id 7'"), (1, 1));
}

/// Values of a key field as JSON, with spellings that are equal to each other in some comparisons.
fn value() -> impl Strategy<Value = String> {
    let spelled = prop_oneof![
        Just("7"),
        Just("7.0"),
        Just("0.7e1"),
        Just("70e-1"),
        Just("0"),
        Just("-0"),
        Just("-0.0"),
        Just("1"),
        Just("1.5"),
        Just("1.50"),
        Just("1e22"),
        Just("9007199254740992"),
        Just("9007199254740993"),
        Just("9007199254740992.0"),
        Just("18446744073709551615"),
        Just("18446744073709551616"),
        Just("1e999"),
        Just("-7"),
    ];
    let texts = prop_oneof![
        Just("7"),
        Just("007"),
        Just("+7"),
        Just("7.0"),
        Just("7x"),
        Just("x"),
        Just("true"),
        Just("TRUE"),
        Just("1"),
        Just("0"),
        Just("-0"),
        Just("1.5"),
        Just("1.50"),
        Just("1e22"),
        Just("9007199254740993"),
        Just("18446744073709551616"),
        Just(""),
        Just("1.8446744073709552e19"),
        Just("NaN"),
    ];
    let single = prop_oneof![
        4 => spelled.prop_map(str::to_owned),
        4 => texts.prop_map(|text| format!("\"{text}\"")),
        1 => prop_oneof![Just("true"), Just("false"), Just("null"), Just(r#"{"x":7}"#)].prop_map(str::to_owned),
    ];
    prop_oneof![
        8 => single.clone(),
        1 => vec(single, 0..3).prop_map(|elements| format!("[{}]", elements.join(","))),
    ]
}

/// A constant of a filter: a value of JSON that a filter can have.
fn constant() -> impl Strategy<Value = String> {
    value().prop_map(|json| match json.as_bytes()[0] {
        b'"' => json.replace('"', "'"),
        b'[' | b'{' => "'7'".to_owned(),
        _ => json,
    })
}

fn condition(field: &'static str) -> impl Strategy<Value = String> {
    prop_oneof![
        4 => constant().prop_map(move |constant| format!("/{field} = {constant}")),
        2 => vec(constant(), 1..4).prop_map(move |constants| format!("/{field} IN ({})", constants.join(","))),
        1 => constant().prop_map(move |constant| format!("{constant} = /{field}")),
        1 => constant().prop_map(move |constant| format!("/{field} >= {constant}")),
    ]
}

fn message() -> impl Strategy<Value = String> {
    let field = || proptest::option::weighted(0.9, value());
    (field(), field(), any::<bool>(), proptest::option::weighted(0.1, value())).prop_map(
        |(a, b, is_turned, repeated)| {
            let mut members: Vec<_> = [("a", a), ("b", b)]
                .into_iter()
                .filter_map(|(name, value)| value.map(|value| format!("\"{name}\":{value}")))
                .collect();
            if is_turned {
                members.reverse();
            }
            members.extend(repeated.map(|value| format!("\"a\":{value}")));
            format!("{{{}}}", members.join(","))
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    /// Puts the second message with the key of the first, as enrichment does.
    Put(String, Option<String>),
    /// Removes the record that a message would replace.
    Remove(String),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (message(), proptest::option::weighted(0.1, message())).prop_map(|(key, data)| Step::Put(key, data)),
        1 => message().prop_map(Step::Remove),
    ]
}

fn check(names: &[&str], steps: &[Step], filters: &[String]) {
    let (mut table, fields) = (keyed_table(names), key_fields(names));
    let mut model: BTreeMap<Vec<u8>, String> = BTreeMap::new();
    let key_of = |data: &str| fields.key_of(data.as_bytes(), &mut Arena::default()).unwrap();
    for step in steps {
        match step {
            Step::Put(made, data) => {
                let (key, data) = (key_of(made), data.as_ref().unwrap_or(made));
                table.put(&row(key.as_str(), data));
                model.insert(key.to_vec(), data.clone());
            }
            Step::Remove(data) => {
                let key = key_of(data);
                table.remove(&key, Moment::default());
                model.remove(&key.to_vec());
            }
        }
    }
    let mut restored = keyed_table(names);
    restore(&mut restored, &written(&mut table), 100).unwrap();
    for (text, is_restored) in filters.iter().flat_map(|text| [(text, false), (text, true)]) {
        let table = if is_restored { &mut restored } else { &mut table };
        let wanted = filter(text);
        let matches = |key: &[u8], data: &str| {
            wanted.matches(&MessageContext {
                message_type: MessageType::Json,
                data: data.as_bytes(),
                topic: "orders",
                key: Some(key),
                bookmark: None,
                correlation_id: b"",
                headers: Headers::NONE,
                timestamp: Timestamp(1),
                now: Timestamp(0),
            })
        };
        let expected: Vec<_> =
            model.iter().filter(|(key, data)| matches(key, data)).map(|(key, _)| key.clone()).collect();
        let scan = table.open(Query { filter: Some(wanted.clone()), ..everything() }, Timestamp(0));
        let mut found = Vec::new();
        while table.poll(scan, 3, &mut |row| {
            found.push(row.key.to_vec());
            true
        }) == Polled::More
        {}
        table.close(scan);
        found.sort();
        assert_eq!(found, expected, "{text} of {model:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn results_of_one_key_field_are_those_of_the_model(
        steps in vec(step(), 1..40),
        filters in vec(prop_oneof![
            3 => condition("a"),
            1 => (condition("a"), condition("b")).prop_map(|(a, b)| format!("{a} AND {b}")),
            1 => (condition("a"), condition("a")).prop_map(|(one, other)| format!("{one} AND {other}")),
        ], 1..20),
    ) {
        check(&["/a"], &steps, &filters);
    }

    #[test]
    fn results_of_two_key_fields_are_those_of_the_model(
        steps in vec(step(), 1..60),
        filters in vec((condition("a"), condition("b")).prop_map(|(a, b)| format!("{b} AND {a}")), 1..20),
    ) {
        check(&["/a", "/b"], &steps, &filters);
    }
}
