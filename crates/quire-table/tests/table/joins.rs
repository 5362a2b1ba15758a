//! The records of a view with joins against a computation from nothing, after each change; and the
//! work of a change in portions.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_expression::filter::{
    FilterOptions, JoinCondition, JoinedTopic, MessageContext, Projection, TopicField,
};
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::{Headers, Position, Timestamp};
use quire_table::*;
use serde_json::{Value, json};

const TOPICS: [&str; 4] = ["a", "b", "c", "d"];

/// A chain from `a` over `b` to `c`, and `d` by two fields.
const CONDITIONS: [&str; 4] =
    ["[a].[/b] = [b].[/id]", "[b].[/c] = [c].[/id]", "[a].[/x] = [d].[/x]", "[a].[/y] = [d].[/y]"];

fn joins() -> Vec<JoinKeys> {
    vec![
        JoinKeys { parent: 0, child: 1, parent_fields: vec![0], child_fields: vec![1] },
        JoinKeys { parent: 1, child: 2, parent_fields: vec![2], child_fields: vec![3] },
        JoinKeys { parent: 0, child: 3, parent_fields: vec![4, 6], child_fields: vec![5, 7] },
    ]
}

fn options() -> FilterOptions {
    let topic = |topic: &&str| JoinedTopic { topic: (*topic).into(), message_type: MessageType::Json };
    let joined: Arc<[JoinedTopic]> = TOPICS.iter().map(topic).collect();
    FilterOptions { joined: Some(joined), ..FilterOptions::default() }
}

fn keys() -> Vec<TopicField> {
    let sides = |text: &&str| JoinCondition::parse(text).map(|found| [found.left, found.right]).unwrap();
    CONDITIONS.iter().flat_map(sides).collect()
}

fn projection(projection: &[&str], grouping: &[&str]) -> Projection {
    Projection::parse_joined(projection, grouping, MessageType::Json, &options(), &keys()).unwrap()
}

fn config(entries: &[&str], grouping: &[&str]) -> JoinConfig {
    JoinConfig {
        sources: TOPICS.iter().map(|topic| ((*topic).into(), MessageType::Json)).collect(),
        joins: joins(),
        projection: projection(entries, grouping),
        key_domain: "view".into(),
    }
}

/// The same entry for a message that has the records of all topics.
fn of_whole(entry: &str) -> String {
    let inner = |text: String, topic: &&str| text.replace(&format!("[{topic}].[/"), &format!("/{topic}/"));
    TOPICS.iter().fold(entry.to_owned(), inner).replace(']', "")
}

/// The topics, the join that follows them, and the records of the view.
struct View {
    entries: Vec<&'static str>,
    grouping: Vec<&'static str>,
    topics: [BTreeMap<String, Value>; 4],
    joins: Joins,
    records: BTreeMap<GroupId, String>,
    arena: Arena,
}

impl View {
    fn new(entries: &[&'static str], grouping: &[&'static str]) -> View {
        let mut view = View {
            entries: entries.into(),
            grouping: grouping.into(),
            topics: Default::default(),
            joins: Joins::new(config(entries, grouping)),
            records: BTreeMap::new(),
            arena: Arena::default(),
        };
        let ids: Vec<_> = (0..PARTS).flat_map(|part| view.joins.ids_of_part(part)).collect();
        ids.into_iter().for_each(|id| drop(view.write(id)));
        view
    }

    fn write(&mut self, id: GroupId) -> Option<String> {
        let mut out = Vec::new();
        match self.joins.write(id, "view", &mut self.arena, &mut out).unwrap() {
            Written::Record(_) => {
                let record = String::from_utf8(out).unwrap();
                self.records.insert(id, record.clone());
                Some(record)
            }
            Written::Gone => {
                self.records.remove(&id);
                None
            }
        }
    }

    /// Takes a change in portions. Returns the records that it touched, and the number of portions.
    fn change(
        &mut self,
        topic: usize,
        key: &str,
        data: Option<Value>,
        portion: u32,
    ) -> (Vec<Option<String>>, usize) {
        let text = data.as_ref().map(Value::to_string);
        match data {
            Some(data) => drop(self.topics[topic].insert(key.into(), data)),
            None => drop(self.topics[topic].remove(key)),
        }
        let row = text.as_ref().map(|text| Row {
            key: key.as_bytes(),
            position: Position(1),
            timestamp: Timestamp(7),
            stamp: None,
            expires: None,
            correlation_id: b"",
            headers: Headers::NONE,
            data: text.as_bytes(),
        });
        self.joins.begin(topic, key.as_bytes(), row.as_ref(), Timestamp(9), &mut self.arena);
        let mut portions = 1;
        while !self.joins.step(&mut { portion }, &mut self.arena) {
            portions += 1;
        }
        let mut written = Vec::new();
        while let Some(id) = self.joins.pop_touched() {
            let record = self.write(id);
            written.push(record);
        }
        (written, portions)
    }

    fn put(&mut self, topic: usize, key: &str, data: Value) -> Vec<Option<String>> {
        self.change(topic, key, Some(data), 1000).0
    }

    fn delete(&mut self, topic: usize, key: &str) -> Vec<Option<String>> {
        self.change(topic, key, None, 1000).0
    }

    fn shown(&self) -> Vec<String> {
        let mut shown: Vec<String> = self.records.values().cloned().collect();
        shown.sort();
        shown
    }

    /// The combinations, each as one message, found by comparing all records with all.
    fn combinations(&self) -> Vec<Value> {
        let field = |record: &Value, name: &str| match &record[name] {
            Value::Null => None,
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        };
        let matching = |topic: usize, parent: &Value, pairs: &[(&str, &str)]| -> Vec<Value> {
            let equal = |record: &&Value| {
                pairs.iter().all(|(left, right)| {
                    field(parent, left).is_some_and(|value| Some(value) == field(record, right))
                })
            };
            let found: Vec<Value> = self.topics[topic].values().filter(equal).cloned().collect();
            if found.is_empty() { vec![Value::Null] } else { found }
        };
        let mut all = Vec::new();
        for a in self.topics[0].values() {
            for b in matching(1, a, &[("b", "id")]) {
                for c in matching(2, &b, &[("c", "id")]) {
                    for d in matching(3, a, &[("x", "x"), ("y", "y")]) {
                        all.push(json!({ "a": a, "b": b, "c": c, "d": d }));
                    }
                }
            }
        }
        all
    }

    /// The records that a query of the combinations has.
    fn queried(&self) -> Vec<String> {
        let entries: Vec<String> = self.entries.iter().map(|entry| of_whole(entry)).collect();
        let grouping: Vec<String> = self.grouping.iter().map(|field| of_whole(field)).collect();
        let is_ungrouped = projection(&self.entries, &self.grouping).is_ungrouped();
        let mut shown = Vec::new();
        let mut query = |messages: &[Value], grouping: &[String]| {
            let parsed =
                Projection::parse(&entries, grouping, MessageType::Json, &FilterOptions::default()).unwrap();
            let mut query = Aggregation::new(parsed, MessageType::Json, None, 0, None, 1 << 30);
            let mut arena = Arena::default();
            for message in messages {
                let data = message.to_string();
                let message = MessageContext {
                    message_type: MessageType::Json,
                    data: data.as_bytes(),
                    topic: "orders",
                    key: None,
                    bookmark: None,
                    correlation_id: b"",
                    headers: Headers::NONE,
                    timestamp: Timestamp(7),
                    now: Timestamp(7),
                };
                query.add(&message, &mut arena).unwrap();
            }
            query.end_messages();
            while query.make_rows(100, "view", Timestamp(7), &mut arena).unwrap() {}
            let rows = std::iter::from_fn(|| query.next_row());
            shown.extend(rows.map(|row| String::from_utf8(row.data.into()).unwrap()));
        };
        match is_ungrouped {
            // Each combination is a group.
            true => {
                let fields: Vec<String> = TOPICS
                    .iter()
                    .flat_map(|topic| ["id", "v", "g", "c"].map(|field| format!("/{topic}/{field}")))
                    .collect();
                self.combinations().into_iter().for_each(|message| query(&[message], &fields));
            }
            false => query(&self.combinations(), &grouping),
        }
        shown.sort();
        shown
    }

    fn check(&self) {
        assert_eq!(self.shown(), self.queried());
    }
}

const UNGROUPED: &[&str] =
    &["[a].[/id] AS /a", "[b].[/v] AS /b", "[c].[/v] + 1 AS /c", "COALESCE([d].[/v], [a].[/v]) AS /d"];

const SHAPES: &[(&[&str], &[&str])] = &[
    (UNGROUPED, &[]),
    (&["COUNT(1) AS /rows", "SUM([a].[/v] * [b].[/v]) AS /sum", "MAX([d].[/v]) AS /max"], &[]),
    (
        &[
            "[c].[/g] AS /g",
            "COUNT([d].[/v]) AS /d",
            "SUM([a].[/v]) AS /sum",
            "COUNT_DISTINCT([b].[/v]) AS /b",
        ],
        &["[c].[/g]"],
    ),
    (
        &[
            "[a].[/g] AS /g",
            "[d].[/g] AS /dg",
            "DISTINCT_LIST([a].[/v] + [b].[/v]) AS /list",
            "SUM(IF([c].[/v] IS NULL, 1, 0)) AS /without",
        ],
        &["[a].[/g]", "[d].[/g]"],
    ),
];

fn records() -> impl Strategy<Value = Value> {
    let key = || prop_oneof![Just(json!(null)), Just(json!("1")), (0..3).prop_map(|it| json!(it))];
    (key(), key(), (key(), key()), 0..3, 0..9, key()).prop_map(
        |(b, c, (x, y), g, v, id)| json!({ "id": id, "b": b, "c": c, "x": x, "y": y, "g": g, "v": v }),
    )
}

proptest! {
    #[test]
    fn the_records_are_those_of_a_computation_from_nothing(
        shape in 0..SHAPES.len(),
        changes in vec((0..4_usize, 0..4, proptest::option::weighted(0.75, records()), 1..9_u32), 1..40),
    ) {
        let (entries, grouping) = SHAPES[shape];
        let mut view = View::new(entries, grouping);
        for (topic, key, data, portion) in changes {
            let (written, _) = view.change(topic, &format!("k{key}"), data, portion);
            view.check();
            let total = written.len();
            prop_assert!(total <= 600, "each group is written once");
        }
        let records: usize = view.topics.iter().map(BTreeMap::len).sum();
        let kept: usize = view.joins.source_figures().map(|figures| figures.record_count).sum();
        prop_assert_eq!(kept, records);
        prop_assert_eq!(view.joins.combination_count(), view.combinations().len() as u64);
        for topic in 0..4 {
            for key in 0..4 {
                view.delete(topic, &format!("k{key}"));
                view.check();
            }
        }
        prop_assert!(view.joins.index_figures().all(|(_, _, figures)| figures.key_count == 0));
        prop_assert_eq!(view.joins.len(), usize::from(shape == 1));
    }
}

/// The entries of a snapshot of this instant, sorted.
fn entries_of(joins: &mut Joins) -> Vec<Vec<u8>> {
    joins.begin_saving();
    let mut entries = rest_of(joins);
    entries.sort();
    entries
}

/// The entries that a snapshot does not have yet.
fn rest_of(joins: &mut Joins) -> Vec<Vec<u8>> {
    let mut entries = Vec::new();
    loop {
        let mut entry = Vec::new();
        match joins.save(1, &mut entry) {
            Some(0) => (),
            Some(_) => entries.push(entry),
            None => return entries,
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<(usize, i32, Option<Value>)>> {
    vec((0..4_usize, 0..4, proptest::option::weighted(0.75, records())), 1..30)
}

proptest! {
    #[test]
    fn a_snapshot_has_the_state_of_its_instant_and_it_continues_from_there(
        shape in 0..SHAPES.len(),
        before in changes(),
        after in changes(),
        effort in 1_usize..4,
    ) {
        let (entries, grouping) = SHAPES[shape];
        let mut views = [View::new(entries, grouping), View::new(entries, grouping)];
        for (topic, key, data) in &before {
            for view in &mut views {
                view.change(*topic, &format!("k{key}"), data.clone(), 1000);
            }
        }
        let [view, stopped] = &mut views;
        view.joins.begin_saving();
        let mut saved = Vec::new();
        for (topic, key, data) in &after {
            view.change(*topic, &format!("k{key}"), data.clone(), 1000);
            let mut entries = Vec::new();
            if view.joins.save(effort, &mut entries).is_some_and(|count| count > 0) {
                saved.push(entries);
            }
        }
        saved.extend(rest_of(&mut view.joins));
        prop_assert_eq!(view.joins.saving_size(), 0);
        let mut restored = Joins::new(config(entries, grouping));
        for entries in &saved {
            prop_assert_eq!(restored.restore(entries), Some(()));
        }
        prop_assert_eq!(entries_of(&mut restored), entries_of(&mut stopped.joins));
        prop_assert_eq!(restored.combination_count(), stopped.joins.combination_count());
        stopped.joins = restored;
        stopped.check();
        for (topic, key, data) in &after {
            stopped.change(*topic, &format!("k{key}"), data.clone(), 1000);
            stopped.check();
        }
        prop_assert_eq!(entries_of(&mut stopped.joins), entries_of(&mut view.joins));
    }
}

fn two(entries: &[&'static str], grouping: &[&'static str]) -> View {
    View::new(entries, grouping)
}

#[test]
fn the_record_without_a_match_comes_and_goes_with_the_matches() {
    let mut view = two(&["[a].[/id] AS /a", "[b].[/v] AS /b"], &[]);
    assert_eq!(view.put(0, "a1", json!({ "id": 1, "b": 7 })), [Some(r#"{"a":1,"b":null}"#.to_owned())]);
    let touched = view.put(1, "b1", json!({ "id": "7", "v": 5 }));
    assert_eq!(touched, [None, Some(r#"{"a":1,"b":5}"#.to_owned())]);
    assert_eq!(view.put(1, "b2", json!({ "id": 7.0, "v": 6 })), [Some(r#"{"a":1,"b":6}"#.to_owned())]);
    // The record of the same pair is updated under its key.
    assert_eq!(view.put(1, "b2", json!({ "id": 7, "v": 8 })), [Some(r#"{"a":1,"b":8}"#.to_owned())]);
    assert_eq!(view.delete(1, "b1"), [None]);
    assert_eq!(
        view.put(1, "b2", json!({ "id": null, "v": 8 })),
        [None, Some(r#"{"a":1,"b":null}"#.to_owned())]
    );
    assert_eq!(view.put(0, "a1", json!({ "id": 2 })), [Some(r#"{"a":2,"b":null}"#.to_owned())]);
    assert_eq!(view.delete(0, "a1"), [None]);
    assert_eq!(view.delete(0, "a1"), []);
}

#[test]
fn keys_that_are_null_nan_or_objects_match_nothing() {
    let mut view = two(&["COUNT([a].[/id]) AS /a", "COUNT([b].[/id]) AS /b"], &[]);
    for (number, key) in
        [json!(null), json!(""), json!({ "o": 1 }), json!([]), json!("x")].into_iter().enumerate()
    {
        view.put(0, &number.to_string(), json!({ "id": 1, "b": key }));
        view.put(1, &number.to_string(), json!({ "id": key }));
    }
    assert_eq!(view.shown(), [r#"{"a":5,"b":1}"#]);
}

#[test]
fn a_change_with_many_matches_is_worked_off_in_portions_and_each_group_is_written_once() {
    let mut view = two(&["[a].[/id] AS /a", "SUM([b].[/v]) AS /b"], &["[a].[/id]"]);
    for id in 0..1000 {
        view.put(0, &id.to_string(), json!({ "id": id, "b": 7 }));
    }
    let (written, portions) = view.change(1, "b", Some(json!({ "id": 7, "v": 1 })), 50);
    assert_eq!((written.len(), view.records.len()), (1000, 1000));
    assert!((200..280).contains(&portions), "{portions}");
    let (written, _) = view.change(1, "b", Some(json!({ "id": 7, "v": 2 })), 50);
    assert_eq!(written.len(), 1000);
    assert!(view.shown().iter().all(|record| record.ends_with("\"b\":2}")), "{:?}", view.shown());
}

#[test]
fn an_unreadable_record_has_only_null() {
    let mut view = two(&["[a].[/id] AS /a", "[b].[/v] AS /b"], &[]);
    view.put(0, "a1", json!({ "id": 1, "b": 7 }));
    view.joins.begin(
        0,
        b"a1",
        Some(&Row {
            key: b"a1",
            position: Position(1),
            timestamp: Timestamp(7),
            stamp: None,
            expires: None,
            correlation_id: b"",
            headers: Headers::NONE,
            data: b"{\"id\":",
        }),
        Timestamp(9),
        &mut view.arena,
    );
    assert!(view.joins.step(&mut 100, &mut view.arena));
    let id = view.joins.pop_touched().unwrap();
    assert_eq!(view.write(id).unwrap(), r#"{"a":null,"b":null}"#);
    assert_eq!(view.delete(0, "a1"), [None]);
}

#[test]
fn mistakes_of_fields_name_their_place() {
    let refused = |entries: &[&str], grouping: &[&str]| {
        Projection::parse_joined(entries, grouping, MessageType::Json, &options(), &keys())
            .unwrap_err()
            .to_string()
    };
    for (entries, grouping, expected) in [
        (
            &["/id"][..],
            &[][..],
            "entry 1: column 1: expected the topic of the field before it, as in [orders].[/id], found /id",
        ),
        (
            &["[z].[/id] AS /id"],
            &[],
            "entry 1: column 1: expected a field of a topic that join names, found [z].[/id]",
        ),
        (
            &["[nvfix].[a].[/id] AS /id"],
            &[],
            "entry 1: column 1: expected the message type of the topic, json, found [nvfix].[a].[/id]",
        ),
        (
            &["[a].[/id]", "COUNT(1) AS /n"],
            &[],
            "entry 1: column 1: expected an aggregate, or a field of grouping, found [a].[/id]",
        ),
        (
            &["COUNT(1) AS /n"],
            &["/id"],
            "entry 1: column 1: expected the topic of the field before it, as in [orders].[/id], found /id",
        ),
        (
            &["SUM(MESSAGE_SIZE()) AS /n"],
            &[],
            "entry 1: column 5: expected no function about one message, because a join has several messages, found \
             MESSAGE_SIZE",
        ),
        (
            &["[a].[/id]", "[b].[/id]"],
            &[],
            "entry 2: column 1: expected a field that is not, contains or belongs to the destination of another entry, \
             found /id",
        ),
    ] {
        assert_eq!(refused(entries, grouping), expected);
    }
    let shown = projection(
        &["[json].[a].[/id]", "[b].[/g] AS /x/y", "COUNT(1) AS /n"],
        &["[a].[/id]", "[json].[b].[/g]"],
    );
    let shown: Vec<&str> = shown.shown_groups().iter().map(|field| &**field).collect();
    assert_eq!(shown, ["/id", "/x/y"]);
}
