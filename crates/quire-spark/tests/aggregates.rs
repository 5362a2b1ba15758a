//! Counts and extremes of the scan against those of the rows that the same read returns.

mod support;

use std::collections::BTreeMap;

use quire_spark::abi;
use serde_json::{Value, json};
use support::{BEGIN_NS, Scanned, call, frame, longs, schema, tasks, texts, trades};

const COUNT: i64 = 3000;

fn columns() -> Value {
    schema(&[("position", "long"), ("topic", "string"), ("timestamp", "timestamp"), ("n", "integer")])
}

fn read(directory: &std::path::Path, conditions: Value, aggregation: Value) -> Value {
    let frame = frame(directory, &[("partitionBytes", "64KB")]).unwrap();
    json!({
        "frame": frame, "schema": schema(&[]), "columns": columns(), "conditions": conditions, "aggregation": aggregation,
    })
}

fn functions(by_topic: bool) -> Value {
    let group = if by_topic { json!([["topic"]]) } else { json!([]) };
    json!({"group": group, "functions": [
        {"name": "count"},
        {"name": "min", "column": ["position"]},
        {"name": "max", "column": ["position"]},
        {"name": "max", "column": ["timestamp"]},
        {"name": "count", "column": ["topic"]},
    ]})
}

/// Count, least position, greatest position and time of each topic, or of all messages under the
/// empty name, over all tasks.
fn totals(read: &Value, by_topic: bool) -> BTreeMap<String, [Option<i64>; 4]> {
    let mut totals: BTreeMap<String, [Option<i64>; 4]> = BTreeMap::new();
    for task in tasks(read).unwrap() {
        let scan = Scanned::open(&task).unwrap();
        let (rows, numbers) = scan.next(30).unwrap();
        let (topics, at) = match by_topic && rows > 0 {
            true => (texts(&numbers[..5]), 5),
            false => (vec![Some(String::new()); rows], 0),
        };
        let column = |number: usize| if rows > 0 { longs(&numbers[at + 5 * number..]) } else { vec![] };
        let [counts, least, greatest, times, again] = [column(0), column(1), column(2), column(3), column(4)];
        assert_eq!(counts, again);
        for (row, topic) in topics.into_iter().enumerate() {
            let total = totals.entry(topic.unwrap()).or_default();
            total[0] = Some(total[0].unwrap_or(0) + counts[row].unwrap());
            total[1] = total[1].into_iter().chain(least[row]).min();
            total[2] = total[2].into_iter().chain(greatest[row]).max();
            total[3] = total[3].into_iter().chain(times[row]).max();
        }
        assert_eq!(scan.next(30).unwrap().0, 0, "one batch");
    }
    totals
}

fn topic_of(number: i64) -> &'static str {
    if number % 100 == 0 { "rare" } else { ["t/0", "t/1"][(number % 2) as usize] }
}

fn expected(meets: impl Fn(i64) -> bool, by_topic: bool) -> BTreeMap<String, [Option<i64>; 4]> {
    let mut totals: BTreeMap<String, [Option<i64>; 4]> = BTreeMap::new();
    for number in (0..COUNT).filter(|number| meets(*number)) {
        let topic = if by_topic { topic_of(number) } else { "" };
        let total = totals.entry(topic.to_owned()).or_default();
        let time = BEGIN_NS as i64 / 1000 + number;
        *total =
            [Some(total[0].unwrap_or(0) + 1), total[1].or(Some(number + 1)), Some(number + 1), Some(time)];
    }
    totals
}

#[test]
fn the_values_of_all_tasks_combine_to_those_of_the_rows() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), COUNT as u64);
    let rare = json!({"name": "=", "children": [{"column": ["topic"]}, {"literal": "rare"}]});
    let late = json!({"name": ">", "children": [{"column": ["position"]}, {"literal": 1234}]});
    let field = json!({"name": "<", "children": [{"column": ["n"]}, {"literal": 100}]});
    for by_topic in [false, true] {
        let found =
            |conditions: Value| totals(&read(directory.path(), conditions, functions(by_topic)), by_topic);
        assert_eq!(found(json!([])), expected(|_| true, by_topic));
        assert_eq!(found(json!([rare])), expected(|number| number % 100 == 0, by_topic));
        assert_eq!(found(json!([late])), expected(|number| number >= 1234, by_topic));
        assert_eq!(
            found(json!([field, late])),
            expected(|_| false, by_topic)
                .into_iter()
                .chain(
                    // Without rows there is still one count, of 0, unless it is one of each topic.
                    (!by_topic).then(|| (String::new(), [Some(0), None, None, None]))
                )
                .collect()
        );
        assert_eq!(found(json!([field])), expected(|number| number < 100, by_topic));
    }
}

#[test]
fn an_empty_range_has_a_count_of_0() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), 10);
    let frame = frame(directory.path(), &[("startingOffsets", "latest")]).unwrap();
    let mut read = read(directory.path(), json!([]), functions(false));
    read["frame"] = frame;
    assert_eq!(totals(&read, false), BTreeMap::from([(String::new(), [Some(0), None, None, None])]));
    read["aggregation"] = functions(true);
    assert_eq!(tasks(&read).unwrap().len(), 0);
}

#[test]
fn what_is_not_exact_is_not_taken() {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), 10);
    let taken = |conditions: Value, aggregation: Value| -> Value {
        let read = read(directory.path(), conditions, aggregation);
        serde_json::from_str(&call(abi::aggregate, &read.to_string()).unwrap()).unwrap()
    };
    let schema = taken(json!([]), functions(true));
    let types: Vec<_> =
        schema["fields"].as_array().unwrap().iter().map(|field| field["type"].clone()).collect();
    assert_eq!(json!(types), json!(["string", "long", "long", "long", "timestamp", "long"]));
    let left = json!({"name": "RLIKE", "children": [{"column": ["topic"]}, {"literal": "r"}]});
    assert_eq!(taken(json!([left]), functions(false)), Value::Null);
    for aggregation in [
        json!({"functions": [{"name": "sum", "column": ["position"]}]}),
        json!({"functions": [{"name": "min", "column": ["n"]}]}),
        json!({"functions": [{"name": "max", "column": ["topic"]}]}),
        json!({"functions": [{"name": "count", "column": ["n"]}]}),
        json!({"group": [["n"]], "functions": [{"name": "count"}]}),
        json!({"group": [["topic"], ["topic"]], "functions": [{"name": "count"}]}),
    ] {
        assert_eq!(taken(json!([]), aggregation.clone()), Value::Null, "{aggregation}");
    }
}
