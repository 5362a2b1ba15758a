//! Any texts from other processes and from users: a failure that says what is wrong, or a result;
//! never a panic.

mod support;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use quire_spark::abi;
use quire_spark::columns::defined_by;
use quire_spark::options::{ReadOptions, WriteOptions};
use quire_spark::task::TaskScan;
use serde_json::{Value, json};
use support::{frame, schema, tasks, trades};

struct World {
    directory: tempfile::TempDir,
    /// A good read and a good task, as JSON.
    read: Value,
    task: Value,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    trades(directory.path(), 300);
    let frame = frame(directory.path(), &[("filter", "/n > 3"), ("fields", "n int")]).unwrap();
    let condition = json!({"name": "<", "children": [{"column": ["position"]}, {"literal": 200}]});
    let aggregation = json!({"group": [], "functions": [{"name": "count"}]});
    let columns = schema(&[("position", "long"), ("symbol", "string")]);
    let read = json!({
        "frame": frame, "schema": columns, "columns": columns, "conditions": [condition], "limit": 10,
        "aggregation": null, "parallelism": 2,
    });
    let mut task: Value = serde_json::from_str(&tasks(&read).unwrap()[0]).unwrap();
    task["positions"] = json!([1, 5, 7]);
    task["spec"]["aggregate"] = json!(null);
    let read = json!({"read": read, "aggregation": aggregation});
    World { directory, read, task }
});

/// A value that takes the place of another one in a good text.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "in", "NOT", "position", "/a/b", "struct", "count", "string", "topic", "0|1|"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("(name|children|column|literal|type|fields|[a-z]{1,3})", inner, 0..3)
                .prop_map(|map| json!(map)),
        ]
    })
}

/// Puts another value at one of the places of a text.
fn replace(text: &mut Value, mut at: usize, value: &Value) {
    fn walk(place: &mut Value, at: &mut usize, value: &Value) -> bool {
        if *at == 0 {
            *place = value.clone();
            return true;
        }
        *at -= 1;
        match place {
            Value::Array(items) => items.iter_mut().any(|item| walk(item, at, value)),
            Value::Object(members) => members.values_mut().any(|member| walk(member, at, value)),
            _ => false,
        }
    }
    let count = count_of(text);
    at %= count;
    walk(text, &mut at, value);
}

fn count_of(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count_of).sum::<usize>(),
        Value::Object(members) => members.values().map(count_of).sum::<usize>(),
        _ => 0,
    }
}

fn drain(task: &str) {
    let Ok(mut scan) = TaskScan::open(task) else { return };
    let mut numbers = vec![0; 4096];
    for _ in 0..1000 {
        match scan.next_columns(&mut numbers) {
            Ok(1..) => (),
            Ok(_) | Err(_) => break,
        }
    }
}

const NAMES: [&str; 12] = [
    "path",
    "paths",
    "url",
    "startingOffsets",
    "endingTimestamp",
    "maxTriggerDelay",
    "partitionBytes",
    "minPartitions",
    "topics",
    "fields",
    "expiration",
    "lastValues",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_task_is_refused_or_read(at in any::<usize>(), value in value(), text in ".{0,40}") {
        let mut task = WORLD.task.clone();
        replace(&mut task, at, &value);
        drain(&task.to_string());
        drain(&text);
        let good = WORLD.task.to_string();
        let cut = good.char_indices().map(|(index, _)| index).nth(at % good.len()).unwrap_or(0);
        assert!(TaskScan::open(&good[..cut]).is_err());
    }

    #[test]
    fn any_read_is_refused_or_planned(at in any::<usize>(), value in value(), aggregates in any::<bool>()) {
        let mut read = WORLD.read["read"].clone();
        if aggregates {
            read["aggregation"] = WORLD.read["aggregation"].clone();
        }
        replace(&mut read, at, &value);
        let text = read.to_string();
        for function in [abi::check, abi::push, abi::aggregate, abi::statistics, abi::plan] {
            if let Err(failure) = support::call(function, &text) {
                prop_assert!(!failure["text"].as_str().unwrap().is_empty());
            }
        }
        for task in tasks(&read).unwrap_or_default() {
            drain(&task);
        }
    }

    #[test]
    fn any_options_are_refused_or_read(
        given in prop::collection::btree_map(
            prop_oneof![prop::sample::select(NAMES.to_vec()).prop_map(str::to_owned), "[a-zA-Z.]{0,12}"],
            prop_oneof![".{0,30}", "-? ?[0-9]{1,25}(\\.[0-9]{0,20})? ?[a-zA-Z]{0,3}", "[0-9]{4}-?[0-9W]{2}-?[0-9T:+.Z -]{0,30}"],
            0..4,
        ),
    ) {
        let mut given: BTreeMap<String, String> = given;
        for known in [false, true] {
            if known {
                given.insert("path".into(), WORLD.directory.path().to_str().unwrap().into());
                given.remove("paths");
                given.remove("url");
            }
            for failure in [ReadOptions::new(&given).err(), WriteOptions::new(&given).err()].into_iter().flatten() {
                prop_assert!(!failure.text.is_empty());
            }
            // Of what is read, the range is found or refused.
            let _ = support::call(abi::frame, &json!(given).to_string());
        }
    }

    #[test]
    fn any_definitions_of_columns_are_refused_or_read(
        text in "([a-z`ä ]{1,3}[ :](int|struct<|string|>|not null|comment 'x'|,|\"|'|`|array<){1,3} ?[,>]?){0,5}|.{0,40}",
    ) {
        if let Ok(columns) = defined_by("fields", &text) {
            prop_assert!(!columns.is_empty());
        }
    }
}
