//! The groups of a view against a computation from nothing, after each change; and the cases that
//! random changes do not show.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_expression::filter::{Filter, FilterOptions, MessageContext, Projection};
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::{Headers, Position, Timestamp};
use quire_table::*;

const ALL: &[&str] = &[
    "COUNT(1) AS /rows",
    "COUNT(/v) AS /count",
    "SUM(/v) AS /sum",
    "AVG(/v) AS /avg",
    "VAR_POP(/v) AS /var",
    "STDDEV_SAMP(/v) AS /samp",
    "MIN(/v) AS /min",
    "MAX(/v) AS /max",
    "ANY(/v) AS /any",
    "COUNT_DISTINCT(/v) AS /different",
    "DISTINCT_LIST(/v, ';') AS /list",
    "SUM(IF(/v > 3, 1, 0)) + COUNT(/f) AS /mixed",
];

/// The entries whose results in a query do not depend on the order of its rows.
const UNORDERED: &[&str] = &[
    "COUNT(1) AS /rows",
    "COUNT(/v) AS /count",
    "SUM(/v) AS /sum",
    "AVG(/v) AS /avg",
    "VAR_POP(/v) AS /var",
    "STDDEV_SAMP(/v) AS /samp",
    "MIN(/v) * 1.0 AS /min",
    "MAX(/v) * 1.0 AS /max",
    "COUNT_DISTINCT(/v) AS /different",
];

fn config(projection: &[&str], grouping: &[&str], filter: Option<&str>, result: MessageType) -> GroupsConfig {
    let options = FilterOptions::default();
    GroupsConfig {
        source: "orders".into(),
        source_type: MessageType::Json,
        filter: filter.map(|text| Filter::parse(text, &options).unwrap()),
        projection: Projection::parse(projection, grouping, result, &options).unwrap(),
        key_domain: "view".into(),
    }
}

fn row<'a>(key: &'a str, data: &'a str) -> Row<'a> {
    Row {
        key: key.as_bytes(),
        position: Position(1),
        timestamp: Timestamp(7),
        stamp: None,
        expires: None,
        correlation_id: b"",
        headers: Headers::NONE,
        data: data.as_bytes(),
    }
}

/// The source, the groups that follow it, and the records of the view.
struct View {
    config: GroupsConfig,
    source: BTreeMap<String, String>,
    groups: Groups,
    records: BTreeMap<GroupId, String>,
    touched: Vec<GroupId>,
    arena: Arena,
}

impl View {
    fn new(config: GroupsConfig) -> View {
        let groups = Groups::new(config.clone());
        let mut view = View {
            touched: (0..PARTS).flat_map(|part| groups.ids_of_part(part)).collect(),
            groups,
            config,
            source: BTreeMap::new(),
            records: BTreeMap::new(),
            arena: Arena::default(),
        };
        view.write();
        view
    }

    /// Takes a change, without the records of the touched groups.
    fn take(&mut self, key: &str, data: Option<&str>) {
        let old = match data {
            Some(data) => self.source.insert(key.into(), data.into()),
            None => self.source.remove(key),
        };
        let (old, new) = (old.as_ref().map(|old| row(key, old)), data.map(|data| row(key, data)));
        // The copy that waits has the same rows.
        let waiting = RowChange::new(old.as_ref(), new.as_ref(), Timestamp(9));
        assert_eq!((waiting.old(), waiting.new_row()), (old, new));
        let (old, new) = (waiting.old(), waiting.new_row());
        self.touched.extend(self.groups.change(old.as_ref(), new.as_ref(), waiting.at, &mut self.arena));
    }

    /// Writes the records of the touched groups. Returns them, each once.
    fn write(&mut self) -> Vec<(GroupId, Option<String>)> {
        let mut written = Vec::new();
        let mut out = Vec::new();
        let mut touched = std::mem::take(&mut self.touched);
        touched.dedup();
        for id in touched {
            match self.groups.write(id, "view", &mut self.arena, &mut out).unwrap() {
                Written::Record(_) => {
                    let record = String::from_utf8(out.clone()).unwrap();
                    written.push((id, Some(record.clone())));
                    self.records.insert(id, record);
                }
                Written::Gone => {
                    written.push((id, None));
                    self.records.remove(&id);
                }
            }
        }
        written
    }

    fn change(&mut self, key: &str, data: Option<&str>) -> Vec<Option<String>> {
        self.take(key, data);
        self.write().into_iter().map(|(_, record)| record).collect()
    }

    fn put(&mut self, key: &str, data: &str) -> Vec<Option<String>> {
        self.change(key, Some(data))
    }

    /// A view of the same source, computed from nothing.
    fn again(&self) -> View {
        let mut view = View::new(self.config.clone());
        self.source.iter().for_each(|(key, data)| view.take(key, Some(data)));
        view.touched.sort();
        view.write();
        view
    }

    /// The records that a query of the source has, in their order.
    fn queried(&self) -> Vec<String> {
        let GroupsConfig { projection, filter, .. } = &self.config;
        let mut query = Aggregation::new(projection.clone(), MessageType::Json, None, 0, None, 1 << 30);
        let mut arena = Arena::default();
        for (key, data) in &self.source {
            let message = MessageContext {
                message_type: MessageType::Json,
                data: data.as_bytes(),
                topic: "orders",
                key: Some(key.as_bytes()),
                bookmark: None,
                correlation_id: b"",
                headers: Headers::NONE,
                timestamp: Timestamp(7),
                now: Timestamp(7),
            };
            if filter.as_ref().is_none_or(|filter| filter.matches(&message)) {
                query.add(&message, &mut arena).unwrap();
            }
        }
        query.end_messages();
        while query.make_rows(100, "view", Timestamp(7), &mut arena).unwrap() {}
        let rows = std::iter::from_fn(|| query.next_row());
        rows.map(|row| String::from_utf8(row.data.into()).unwrap()).collect()
    }
}

fn values() -> impl Strategy<Value = String> {
    let odd = [
        "null",
        "true",
        "false",
        "\"\"",
        "\"4\"",
        "\"4.0\"",
        "4",
        "4.0",
        "\"007\"",
        "7",
        "\"true\"",
        "\"x\"",
        "\"xy\"",
        "[3,9]",
        "[]",
        "{\"a\":1}",
        "0.1",
        "0.2",
        "-0.3",
        "-0.0",
        "1e100",
        "-1e100",
        "1e200",
        "1e308",
        "1e400",
        "-1e400",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "123456789012345678901234567890",
        "1e-300",
        "5e-324",
    ];
    prop_oneof![
        3 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned),
        2 => (-3i64..9).prop_map(|number| number.to_string()),
        1 => any::<i64>().prop_map(|number| number.to_string()),
        1 => any::<f32>().prop_filter("finite", |float| float.is_finite()).prop_map(|float| format!("{float:?}")),
    ]
}

fn messages() -> impl Strategy<Value = String> {
    let group = prop_oneof![
        4 => prop::sample::select(vec!["1", "\"1\"", "1.0", "true", "null", "\"a\"", "\"b\"", "{\"x\":1}", "[2]"])
            .prop_map(|group| format!("\"g\":{group},")),
        1 => Just(String::new()),
    ];
    let value =
        prop_oneof![6 => values().prop_map(|value| format!("\"v\":{value},")), 1 => Just(String::new())];
    let flag = prop_oneof![Just("1"), Just("null"), Just("\"no\"")];
    let whole =
        (group, value, flag).prop_map(|(group, value, flag)| format!("{{{group}{value}\"f\":{flag}}}"));
    prop_oneof![
        20 => whole,
        1 => Just("nonsense".to_owned()),
        1 => Just("{\"g\":1,".to_owned()),
        1 => Just("{\"g\":\"a\",\"v\":1,\"v\":2}".to_owned()),
    ]
}

fn steps() -> impl Strategy<Value = Vec<(u8, Option<String>)>> {
    vec((0u8..12, proptest::option::weighted(0.8, messages())), 1..60)
}

/// The groups, without the times of their changes.
fn state_of(groups: &Groups) -> String {
    format!("{groups:?}").replace("Timestamp(9)", "Timestamp(0)")
}

/// The entries of a snapshot of this instant, sorted.
fn entries_of(groups: &mut Groups) -> Vec<Vec<u8>> {
    groups.begin_saving();
    let mut entries = rest_of(groups);
    entries.sort();
    entries
}

/// The entries that a snapshot does not have yet.
fn rest_of(groups: &mut Groups) -> Vec<Vec<u8>> {
    let mut entries = Vec::new();
    loop {
        let mut entry = Vec::new();
        match groups.save(1, &mut entry) {
            Some(_) => entries.push(entry),
            None => return entries,
        }
    }
}

proptest! {
    #[test]
    fn a_snapshot_has_the_groups_of_its_instant_and_they_continue_from_there(
        before in steps(),
        after in steps(),
        effort in 1_usize..4,
        is_grouped in any::<bool>(),
        conflates in any::<bool>(),
    ) {
        let grouping: &[&str] = if is_grouped { &["/g"] } else { &[] };
        let config = config(ALL, grouping, None, MessageType::Json);
        let mut views = [View::new(config.clone()), View::new(config.clone())];
        for (key, data) in &before {
            views.iter_mut().for_each(|view| drop(view.change(&key.to_string(), data.as_deref())));
        }
        let [view, stopped] = &mut views;
        view.groups.begin_saving();
        let mut saved = Vec::new();
        for (key, data) in &after {
            view.take(&key.to_string(), data.as_deref());
            if !conflates {
                view.write();
            }
            let mut entries = Vec::new();
            if view.groups.save(effort, &mut entries).is_some() {
                saved.push(entries);
            }
        }
        view.write();
        saved.extend(rest_of(&mut view.groups));
        prop_assert_eq!(view.groups.saving_size(), 0);
        let mut restored = Groups::new(config.clone());
        for entries in &saved {
            prop_assert_eq!(restored.restore(entries), Some(()));
            for size in 0..entries.len() {
                // A part is refused, or it has fewer groups.
                let _ = Groups::new(config.clone()).restore(&entries[..size]);
            }
        }
        prop_assert_eq!(entries_of(&mut restored), entries_of(&mut stopped.groups));
        prop_assert_eq!((restored.len(), restored.row_count()), (stopped.groups.len(), stopped.groups.row_count()));
        stopped.groups = restored;
        for (key, data) in &after {
            stopped.change(&key.to_string(), data.as_deref());
        }
        prop_assert_eq!(&stopped.records, &view.records);
        prop_assert_eq!(entries_of(&mut stopped.groups), entries_of(&mut view.groups));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_view_is_equal_to_a_computation_from_nothing_after_each_change(
        steps in steps(),
        is_grouped in any::<bool>(),
        is_filtered in any::<bool>(),
        conflates in any::<bool>(),
    ) {
        let grouping: &[&str] = if is_grouped { &["/g"] } else { &[] };
        let filter = is_filtered.then_some("/f = 1 OR /f IS NULL");
        let mut view = View::new(config(ALL, grouping, filter, MessageType::Json));
        let mut unordered = View::new(config(UNORDERED, grouping, filter, MessageType::Json));
        for (number, (key, data)) in steps.iter().enumerate() {
            let key = key.to_string();
            for view in [&mut view, &mut unordered] {
                view.take(&key, data.as_deref());
                if conflates && number % 3 != 2 {
                    continue;
                }
                view.touched.sort();
                view.write();
                let again = view.again();
                prop_assert_eq!(&view.records, &again.records);
                // A group without rows leaves nothing.
                prop_assert_eq!(view.groups.len(), again.groups.len());
            }
            if !conflates || number % 3 == 2 {
                let (mut records, mut queried): (Vec<_>, _) =
                    (unordered.records.values().cloned().collect(), unordered.queried());
                records.sort();
                queried.sort();
                prop_assert_eq!(records, queried);
            }
        }
        // Without its source, a view has no state.
        let keys: Vec<_> = view.source.keys().cloned().collect();
        keys.iter().for_each(|key| view.take(key, None));
        view.touched.sort();
        view.write();
        let expected = Groups::new(view.config.clone());
        prop_assert_eq!(state_of(&view.groups), state_of(&expected));
    }
}

#[test]
fn a_changed_row_leaves_its_old_group_before_it_enters_the_new_one() {
    let projection = ["/account", "SUM(/price * /qty) AS /notional", "COUNT(/id) AS /orders"];
    let mut view = View::new(config(&projection, &["/account"], None, MessageType::Json));
    let first = view.put("1", r#"{"id":1,"account":"A","price":2,"qty":3}"#);
    assert_eq!(first, [Some(r#"{"account":"A","notional":6,"orders":1}"#.to_owned())]);
    view.put("2", r#"{"id":2,"account":"A","price":1.5,"qty":1}"#);
    assert_eq!(
        view.put("1", r#"{"id":1,"account":"B","price":2,"qty":3}"#),
        [
            Some(r#"{"account":"A","notional":1.5,"orders":1}"#.to_owned()),
            Some(r#"{"account":"B","notional":6,"orders":1}"#.to_owned()),
        ]
    );
    assert_eq!(view.change("2", None), [None], "an empty group has no record");
    // A change without effect is an update of the view.
    assert_eq!(
        view.put("1", r#"{"id":1,"account":"B","price":2,"qty":3}"#),
        [Some(r#"{"account":"B","notional":6,"orders":1}"#.to_owned())]
    );
}

#[test]
fn a_view_has_the_aggregates_of_the_reference() {
    let projection =
        ["/oid", "SUM(/qty) AS /totalOrderQty", "SUM(IF((/qty % 10) == 0,1,0)) AS /evenTensOrderCount"];
    let mut view = View::new(config(&projection, &["/oid"], None, MessageType::Json));
    for (id, qty) in [(1, 10), (2, 10), (3, 25)] {
        view.put(&id.to_string(), &format!(r#"{{"id":{id},"item":{id},"qty":{qty},"oid":1}}"#));
    }
    let records: Vec<_> = view.records.values().collect();
    assert_eq!(records, [r#"{"oid":1,"totalOrderQty":45,"evenTensOrderCount":2}"#]);
}

#[test]
fn a_filter_decides_about_the_row_before_and_after_a_change() {
    let mut view =
        View::new(config(&["COUNT(1) AS /n"], &["/g"], Some("/state != 'cancelled'"), MessageType::Json));
    assert_eq!(view.put("1", r#"{"g":1,"state":"cancelled"}"#), []);
    assert_eq!(view.put("1", r#"{"g":1,"state":"new"}"#), [Some(r#"{"n":1}"#.to_owned())]);
    assert_eq!(view.put("1", r#"{"g":1,"state":"cancelled"}"#), [None]);
    assert_eq!(view.change("1", None), []);
}

#[test]
fn a_view_can_have_another_message_type_than_its_source() {
    let mut view = View::new(config(&["/g", "SUM(/v) AS /sum"], &["/g"], None, MessageType::Nvfix));
    assert_eq!(view.put("1", r#"{"g":"a","v":2}"#), [Some("g=a\u{1}sum=2\u{1}".to_owned())]);
    // A value with the separator cannot be written. The group has no record until it can.
    view.take("2", Some(r#"{"g":"a\u0001","v":2}"#));
    let id = view.touched.pop().unwrap();
    let mut out = b"earlier".to_vec();
    assert!(view.groups.write(id, "view", &mut view.arena, &mut out).is_err());
    assert!(out.is_empty());
}

#[test]
fn a_function_of_the_time_has_the_time_of_the_row() {
    let mut view = View::new(config(&["SUM(UNIX_TIMESTAMP()) AS /time"], &[], None, MessageType::Json));
    let at = |seconds: u64| Row { timestamp: Timestamp(seconds * 1_000_000_000), ..row("1", "{}") };
    let (first, second) = (at(5), at(8));
    let mut change = |old: Option<&Row<'_>>, new: Option<&Row<'_>>| {
        let touched = view.groups.change(old, new, Timestamp(99), &mut view.arena);
        let mut out = Vec::new();
        view.groups.write(touched[0], "view", &mut view.arena, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(change(None, Some(&first)), r#"{"time":5.0}"#);
    assert_eq!(change(Some(&first), Some(&second)), r#"{"time":8.0}"#);
    assert_eq!(change(Some(&second), None), r#"{"time":null}"#);
}

#[test]
fn equal_groups_have_equal_keys_in_views_of_one_domain() {
    let key_of = |domain: &str, data: &str| {
        let own = GroupsConfig {
            key_domain: domain.into(),
            ..config(&["COUNT(1) AS /n"], &["/g"], None, MessageType::Json)
        };
        let touched =
            Groups::new(own).change(None, Some(&row("1", data)), Timestamp(1), &mut Arena::default());
        touched[0].key()
    };
    assert_eq!(key_of("view", r#"{"g":1}"#), key_of("view", r#"{"g":"1.0"}"#));
    assert_ne!(key_of("view", r#"{"g":1}"#), key_of("other", r#"{"g":1}"#));
    assert_ne!(key_of("view", r#"{"g":1}"#), key_of("view", r#"{"g":2}"#));
    assert_eq!(key_of("view", "nonsense"), key_of("view", "{}"), "it is in the group of NULL");
}
