//! Conditions of Spark against a slow obvious model: the three truth values of SQL, over the values
//! that were written.

mod support;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use quire_spark::abi;
use serde_json::{Value, json};
use support::{BEGIN_NS, append, call, frame, numbers, schema};

const COUNT: usize = 400;

/// The columns, with their types and the paths that conditions name.
const COLUMNS: [(&str, &str); 9] = [
    ("position", "long"),
    ("sequence", "long"),
    ("topic", "string"),
    ("timestamp", "timestamp"),
    ("n", "integer"),
    ("small", "byte"),
    ("price", "double"),
    ("ratio", "float"),
    ("symbol", "string"),
];

const WORDS: [&str; 8] = ["", "a", "ab", "b", "a/1", "IBM", "ä", "日本"];

/// A value as the model knows it; `Null` for one that is missing or has another type.
type Row = BTreeMap<&'static str, Value>;

struct World {
    rows: Vec<Row>,
    directory: tempfile::TempDir,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let mut seed = 7_u64;
    let mut draw = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let (mut rows, mut messages) = (Vec::new(), Vec::new());
    for number in 0..COUNT {
        let topic = ["a/1", "a/2", "b"][draw(3) as usize];
        let at_us = number as u64 / 3;
        let mut row = Row::from([
            ("position", json!(number + 1)),
            ("sequence", json!(number + 1)),
            ("topic", json!(topic)),
            ("timestamp", json!(BEGIN_NS / 1000 + at_us)),
        ]);
        let mut data = serde_json::Map::new();
        let candidates = [
            (
                "n",
                [
                    json!(-5),
                    json!(0),
                    json!(1),
                    json!(2),
                    json!(i32::MAX),
                    json!(i32::MIN),
                    json!(1_i64 << 31),
                    json!("2"),
                ],
            ),
            (
                "small",
                [json!(-128), json!(0), json!(127), json!(128), json!(1), json!(2.5), json!(null), json!([])],
            ),
            (
                "price",
                [
                    json!(-1.5),
                    json!(-0.0),
                    json!(0),
                    json!(1e300),
                    json!(2.5),
                    json!(7),
                    json!("7"),
                    json!(true),
                ],
            ),
            (
                "ratio",
                [
                    json!(0.1),
                    json!(0.5),
                    json!(2.5),
                    json!(16_777_217),
                    json!(0),
                    json!(null),
                    json!({}),
                    json!(-1),
                ],
            ),
            ("symbol", ["", "a", "ab", "b", "IBM", "ä", "日本", "x"].map(|word| json!(word))),
        ];
        for (name, values) in candidates {
            let value = values[draw(8) as usize].clone();
            let is_there = draw(10) > 0;
            row.insert(name, if is_there { typed(name, &value) } else { Value::Null });
            if is_there {
                data.insert(name.to_owned(), value);
            }
        }
        messages.push((topic, Value::Object(data).to_string(), at_us));
        rows.push(row);
    }
    let directory = tempfile::tempdir().unwrap();
    append(directory.path(), 7, &messages);
    World { rows, directory }
});

/// The value that a column of the data has, as docs/spark.md says it.
fn typed(name: &str, value: &Value) -> Value {
    let whole = |lowest: i64, highest: i64| {
        let found = value.as_i64().filter(|number| (lowest..=highest).contains(number));
        found.map_or(Value::Null, |number| json!(number))
    };
    match name {
        "n" => whole(i32::MIN.into(), i32::MAX.into()),
        "small" => whole(i8::MIN.into(), i8::MAX.into()),
        "price" => value.as_f64().map_or(Value::Null, |number| json!(number)),
        "ratio" => value.as_f64().map_or(Value::Null, |number| json!(f64::from(number as f32))),
        // An empty text is NULL, as in filters.
        _ => value.as_str().filter(|text| !text.is_empty()).map_or(Value::Null, |text| json!(text)),
    }
}

/// Whether a predicate is true of a row; `None` = unknown.
fn is_true(predicate: &Value, row: &Row) -> Option<bool> {
    let children = predicate["children"].as_array().unwrap();
    let child = |at: usize| is_true(&children[at], row);
    let value = |at: usize| -> Value {
        match &children[at]["column"] {
            Value::Array(path) => row[path[0].as_str().unwrap()].clone(),
            _ => children[at]["literal"].clone(),
        }
    };
    match predicate["name"].as_str().unwrap() {
        "NOT" => child(0).map(|truth| !truth),
        "AND" => match (child(0), child(1)) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        },
        "OR" => match (child(0), child(1)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        },
        "IS_NULL" => Some(value(0).is_null()),
        "IS_NOT_NULL" => Some(!value(0).is_null()),
        "<=>" if value(0).is_null() || value(1).is_null() => Some(value(0).is_null() && value(1).is_null()),
        "IN" => {
            let compared: Vec<Option<bool>> = (1..children.len())
                .map(|at| compare(&value(0), &value(at)).map(std::cmp::Ordering::is_eq))
                .collect();
            match compared.contains(&Some(true)) {
                true => Some(true),
                false => compared.iter().all(Option::is_some).then_some(false),
            }
        }
        "STARTS_WITH" => Some(value(0).as_str()?.starts_with(value(1).as_str()?)),
        "ENDS_WITH" => Some(value(0).as_str()?.ends_with(value(1).as_str()?)),
        "CONTAINS" => Some(value(0).as_str()?.contains(value(1).as_str()?)),
        name => {
            let order = compare(&value(0), &value(1))?;
            Some(match name {
                "=" | "<=>" => order.is_eq(),
                "<>" => order.is_ne(),
                "<" => order.is_lt(),
                "<=" => order.is_le(),
                ">" => order.is_gt(),
                ">=" => order.is_ge(),
                other => panic!("{other}"),
            })
        }
    }
}

fn compare(one: &Value, other: &Value) -> Option<std::cmp::Ordering> {
    match (one, other) {
        (Value::String(one), Value::String(other)) => Some(one.cmp(other)),
        (Value::Number(one), Value::Number(other)) => match (one.as_i64(), other.as_i64()) {
            (Some(one), Some(other)) => Some(one.cmp(&other)),
            _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
        },
        _ => None,
    }
}

fn literal(kind: &str) -> BoxedStrategy<Value> {
    let values = match kind {
        "string" => WORDS.map(|word| json!(word)).to_vec(),
        "timestamp" => [0, 1, 50, 132, 133, 134].map(|us| json!(BEGIN_NS / 1000 + us)).to_vec(),
        "double" => [json!(0.0), json!(-0.0), json!(2.5), json!(7.0), json!(1e300), json!(-1.5)].to_vec(),
        "float" => {
            [json!(f64::from(0.1_f32)), json!(0.1), json!(0.5), json!(16_777_216.0), json!(-1.0)].to_vec()
        }
        _ => [-128, -5, 0, 1, 2, 17, 127, 200, 400, 401, i64::from(i32::MAX)]
            .map(|number| json!(number))
            .to_vec(),
    };
    prop::sample::select(values).boxed()
}

/// A predicate on one column.
fn leaf() -> impl Strategy<Value = Value> {
    prop::sample::select(COLUMNS.to_vec()).prop_flat_map(|(name, kind)| {
        let mut names = vec![
            "=",
            "<>",
            "<=>",
            "<",
            "<=",
            ">",
            ">=",
            "IN",
            "IN NULL",
            "IS_NULL",
            "IS_NOT_NULL",
            "<=> NULL",
        ];
        if kind == "string" {
            names.extend(["STARTS_WITH", "ENDS_WITH", "CONTAINS"]);
        }
        let column = json!({"column": [name]});
        (prop::sample::select(names), literal(kind), literal(kind), any::<bool>()).prop_map(
            move |(operator, one, other, is_reversed)| {
                let (one, other) = (json!({"literal": one}), json!({"literal": other}));
                let children = match operator {
                    "IS_NULL" | "IS_NOT_NULL" => json!([column]),
                    "IN" => json!([column, one, other]),
                    "IN NULL" => json!([column, one, {"literal": null}]),
                    "<=> NULL" => json!([column, {"literal": null}]),
                    "STARTS_WITH" | "ENDS_WITH" | "CONTAINS" => json!([column, one]),
                    _ if is_reversed => json!([one, column]),
                    _ => json!([column, one]),
                };
                json!({"name": operator.trim_end_matches(" NULL"), "children": children})
            },
        )
    })
}

fn condition() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            inner.clone().prop_map(|child| json!({"name": "NOT", "children": [child]})),
            (prop::sample::select(vec!["AND", "OR"]), inner.clone(), inner)
                .prop_map(|(name, one, other)| json!({"name": name, "children": [one, other]})),
        ]
    })
}

/// How far the scan takes conditions, and the positions that it returns. The columns of the
/// conditions are not among those of the scan.
fn pushed(options: &[(&str, &str)], conditions: &[Value]) -> (Vec<String>, Vec<i64>) {
    let frame = frame(WORLD.directory.path(), options).unwrap();
    let read = json!({
        "frame": frame, "schema": schema(&COLUMNS[..1]), "columns": schema(&COLUMNS), "conditions": conditions,
    });
    let taken = serde_json::from_str(&call(abi::push, &read.to_string()).unwrap()).unwrap();
    (taken, numbers(&read))
}

fn expected(conditions: &[Value]) -> Vec<i64> {
    let meets = |row: &&Row| conditions.iter().all(|condition| is_true(condition, row) == Some(true));
    WORLD.rows.iter().filter(meets).map(|row| row["position"].as_i64().unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn a_condition_that_is_taken_exactly_returns_what_sql_would_and_any_other_no_row_less(
        conditions in prop::collection::vec(condition(), 1..3),
        size in prop::sample::select(vec!["8KB", "1GB"]),
    ) {
        let (taken, found) = pushed(&[("partitionBytes", size)], &conditions);
        let expected = expected(&conditions);
        if taken.iter().all(|taken| taken == "exact") {
            prop_assert_eq!(&found, &expected, "{:?}", conditions);
        }
        prop_assert!(expected.iter().all(|position| found.binary_search(position).is_ok()), "{:?}", conditions);
        if taken.iter().all(|taken| taken == "none") {
            prop_assert_eq!(found.len(), COUNT, "{:?}", conditions);
        }
    }
}

fn taken(condition: Value) -> String {
    pushed(&[], &[condition]).0.remove(0)
}

#[test]
fn what_is_taken_is_known_before_the_scan() {
    let n = json!({"column": ["n"]});
    let of = |name: &str, literal: Value| json!({"name": name, "children": [n, {"literal": literal}]});
    for name in ["=", "<>", "<", "<=", ">", ">=", "<=>", "IN"] {
        assert_eq!(taken(of(name, json!(1))), "exact", "{name}");
    }
    // A literal of another type, NULL in NOT IN, and the opposite of <=> are for Spark.
    assert_eq!(taken(of("=", json!("1"))), "none");
    assert_eq!(taken(of("=", json!(null))), "none");
    let not = |child: Value| json!({"name": "NOT", "children": [child]});
    assert_eq!(taken(not(of("<=>", json!(1)))), "none");
    assert_eq!(taken(not(json!({"name": "IN", "children": [n, {"literal": 1}, {"literal": null}]}))), "none");
    let other = json!({"name": "=", "children": [n, {"other": "1.5BD"}]});
    assert_eq!(taken(other.clone()), "none");
    let both = json!({"name": "AND", "children": [of("<", json!(2)), other]});
    assert_eq!(taken(both.clone()), "partial");
    // Neither of two: each of them can be left out. One of two: none can.
    assert_eq!(
        taken(not(json!({"name": "OR", "children": [of("<", json!(2)), of(">", json!(5))]}))),
        "exact"
    );
    assert_eq!(taken(json!({"name": "OR", "children": [of("<", json!(2)), of(">", json!(5))]})), "none");
    assert_eq!(taken(not(both)), "none");
    assert_eq!(taken(json!({"name": "ALWAYS_TRUE"})), "exact");
    for unknown in [
        json!({"name": "RLIKE", "children": [n, {"literal": "a"}]}),
        json!({"column": ["n"]}),
        json!({"literal": true}),
    ] {
        assert_eq!(taken(unknown), "none");
    }
    // Spark names columns as the schema has them: another case is another column.
    for column in ["absent", "N"] {
        assert_eq!(taken(json!({"name": "=", "children": [{"column": [column]}, {"literal": 1}]})), "none");
    }
}

#[test]
fn conditions_on_positions_and_times_leave_out_blocks() {
    let position = json!({"name": ">", "children": [{"column": ["position"]}, {"literal": COUNT}]});
    let frame = frame(WORLD.directory.path(), &[]).unwrap();
    let read = json!({"frame": frame, "schema": schema(&COLUMNS), "conditions": [position]});
    assert!(support::tasks(&read).unwrap().is_empty(), "no task for an empty range");
    let late =
        json!({"name": ">", "children": [{"column": ["timestamp"]}, {"literal": BEGIN_NS / 1000 + 1000}]});
    let read = json!({"frame": frame, "schema": schema(&COLUMNS), "conditions": [late]});
    assert!(support::tasks(&read).unwrap().is_empty());
}
