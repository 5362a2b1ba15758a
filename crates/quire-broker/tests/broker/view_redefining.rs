//! New definitions of views at run time (docs/views.md section 8): the view becomes a computation
//! from its sources with the new definition, every kind of reader gets exactly the difference, and
//! a crash at any place leaves the definition of before or after.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use quire_broker::{
    BrokerConfig, ConflatedTopicSettings, Event, Limits, SowTopicSettings, TableExpiration, ViewSettings,
};
use quire_command::*;
use quire_journal::{Disk, MemoryDisk};
use quire_wire::Encode;
use serde_json::{Value, json};

use crate::aggregated_subscriptions::packed;
use crate::faulty_disk::{Call, FaultyDisk};
use crate::last_value_pair::*;
use crate::last_value_restarts::{crash, restart};
use crate::pair::*;
use crate::slices::with_stopwatch;
use crate::view_restarts::view;

const OPERATOR: u64 = 3;
const READER: u64 = 4;
const COMMAND: u32 = 71;

fn filtered(filter: &str, view: ViewSettings) -> ViewSettings {
    ViewSettings { filter: Some(filter.into()), ..view }
}

fn joined(join: &str, view: ViewSettings) -> ViewSettings {
    ViewSettings { join: vec![join.into()], ..view }
}

/// The definitions of two views, each first that of the configuration. `names` can read `sums`.
fn definitions() -> [Vec<ViewSettings>; 2] {
    let all = ["/g", "COUNT(1) AS /n", "SUM(/v) AS /sum"];
    let of_sums = |projection: &[&str], grouping: &[&str]| view("sums", "orders", projection, grouping);
    let of_names = |projection: &[&str], grouping: &[&str]| view("names", "", projection, grouping);
    let desks = "[orders].[/g] = [desks].[/id]";
    let desk = ["[desks].[/name] AS /g", "SUM([orders].[/v]) AS /sum", "COUNT([orders].[/id]) AS /n"];
    [
        vec![
            of_sums(&all, &["/g"]),
            filtered("/v > 2", of_sums(&all, &["/g"])),
            of_sums(&["/g", "MAX(/v) AS /max", "SUM(/v) AS /sum"], &["/g"]),
            of_sums(&["/id", "/g", "SUM(/v) AS /sum"], &["/id", "/g"]),
            of_sums(&["COUNT(1) AS /n", "SUM(/v) AS /sum"], &[]),
            view("sums", "desks", &["/name AS /g", "COUNT(1) AS /n"], &["/name"]),
            joined(desks, view("sums", "", &desk, &["[desks].[/name]"])),
            ViewSettings { inline_conflation: true, ..of_sums(&all, &["/g"]) },
            ViewSettings {
                key_domain: Some("other".into()),
                ..filtered("/v != 100", of_sums(&all, &["/g"]))
            },
        ],
        vec![
            joined(desks, of_names(&desk, &["[desks].[/name]"])),
            joined(desks, of_names(&["[orders].[/id] AS /id", "[desks].[/name] AS /name"], &[])),
            joined(
                "[orders].[/g] = [sums].[/g]",
                of_names(&["[orders].[/id] AS /id", "[orders].[/v] / [sums].[/sum] AS /share"], &[]),
            ),
            view("names", "sums", &["/n", "COUNT(1) AS /groups"], &["/n"]),
            filtered("/v < 3", view("names", "orders", &["/g", "MIN(/v) AS /min"], &["/g"])),
        ],
    ]
}

fn config_of(views: Vec<ViewSettings>) -> BrokerConfig {
    let orders = SowTopicSettings { expiration: TableExpiration::Enabled, ..sow_topic("orders") };
    let copy = ConflatedTopicSettings {
        name: "sums-C".into(),
        message_type: "json".into(),
        underlying_topic: "sums".into(),
        interval_ns: 100_000_000,
        ..ConflatedTopicSettings::default()
    };
    let config = sow_config([orders, sow_topic("desks")]);
    BrokerConfig { views, conflated_topics: vec![copy], ..config }
}

/// With a view of the first view.
fn with_totals(mut views: Vec<ViewSettings>) -> Vec<ViewSettings> {
    views.push(view("totals", "sums", &["COUNT(1) AS /groups", "SUM(/sum) AS /sum"], &[]));
    views
}

fn config() -> BrokerConfig {
    config_of(with_totals(definitions().map(|mut list| list.swap_remove(0)).into()))
}

fn log_on(mut pair: Pair) -> Pair {
    pair.client(OPERATOR, "operator");
    pair.client(READER, "watcher");
    pair.turn();
    pair
}

fn pair_with(config: BrokerConfig) -> Pair {
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    log_on(pair)
}

fn send_definition(pair: &mut Pair, settings: &ViewSettings) {
    let json = json!(settings).to_string();
    pair.send(OPERATOR, &Command::DefineView { command: COMMAND, settings: &json });
}

/// Whether the definition changed, or why it is refused; `None`: there is no answer yet.
fn answered(pair: &mut Pair) -> Option<Result<bool, String>> {
    Some(match &pair.take(OPERATOR)[..] {
        [] => return None,
        [Said::Stats { command: COMMAND, json }] => {
            let told: Value = serde_json::from_str(json).unwrap();
            Ok(told["view"]["changed"].as_bool().unwrap())
        }
        [Said::Ack { kind: AckKind::Processed, code, command: COMMAND, .. }] => {
            assert_ne!(*code, Code::Ok);
            Err(pair.clients[&OPERATOR].refusal.clone())
        }
        said => panic!("{said:?}"),
    })
}

fn define(pair: &mut Pair, settings: &ViewSettings) -> Result<bool, String> {
    send_definition(pair, settings);
    pair.turn();
    answered(pair).expect("an answer")
}

fn refusal(pair: &mut Pair, settings: &ViewSettings) -> String {
    define(pair, settings).expect_err("a mistake")
}

fn put_some(pair: &mut Pair) {
    for number in 1..=9 {
        let g = number % 3;
        pair.publish(1, number, "orders", &format!(r#"{{"id":{number},"g":{g},"v":{number}}}"#));
    }
    pair.publish(1, 10, "desks", r#"{"id":1,"name":"one"}"#);
    pair.publish(1, 11, "desks", r#"{"id":2,"name":"two"}"#);
    pair.turn();
}

#[test]
fn a_view_gets_its_new_records_and_its_subscribers_get_exactly_the_difference() {
    let mut pair = pair_with(config());
    put_some(&mut pair);
    pair.subscribe(READER, &sow(7, "sums"));
    pair.subscribe(READER, &sow(8, "totals"));
    pair.turn();
    pair.take(READER);
    let [sums, _] = definitions();
    // The group 0 has 3, 6 and 9, and the group 1 has 1, 4 and 7.
    assert_eq!(define(&mut pair, &filtered("/v != 1", sums[0].clone())), Ok(true));
    assert_eq!(
        pair.take_rows(READER),
        [r#"+{"g":1,"n":2,"sum":11}"#, r#"+{"groups":3,"sum":44}"#],
        "unchanged records are not sent"
    );
    assert_eq!(define(&mut pair, &filtered("/v = 3 OR /v = 1", sums[0].clone())), Ok(true));
    let mut rows = pair.take_rows(READER);
    rows.sort();
    assert_eq!(
        rows,
        [
            r#"+{"g":0,"n":1,"sum":3}"#,
            r#"+{"g":1,"n":1,"sum":1}"#,
            r#"+{"groups":2,"sum":14}"#,
            r#"+{"groups":2,"sum":29}"#,
            r#"+{"groups":2,"sum":4}"#,
            r#"-Deleted {"g":2,"n":3,"sum":15}"#,
        ]
    );
    // From now on, the view follows its source with the new definition.
    pair.publish(1, 12, "orders", r#"{"id":1,"g":2,"v":3}"#);
    pair.turn();
    assert_eq!(
        pair.take_rows(READER),
        [
            r#"-Deleted {"g":1,"n":1,"sum":1}"#,
            r#"+{"g":2,"n":1,"sum":3}"#,
            r#"+{"groups":1,"sum":3}"#,
            r#"+{"groups":2,"sum":6}"#
        ]
    );
}

#[test]
fn differences_with_a_select_list_have_the_key_fields_of_the_new_definition() {
    let mut pair = pair_with(config());
    put_some(&mut pair);
    pair.subscribe(READER, &Subscribe { select: Some("-/,+/sum"), ..sow_delta(7, "sums") });
    pair.turn();
    let [sums, _] = definitions();
    assert_eq!(define(&mut pair, &sums[3]), Ok(true));
    pair.take(READER);
    pair.publish(1, 12, "orders", r#"{"id":4,"g":1,"v":30}"#);
    pair.turn();
    assert_eq!(pair.take_rows(READER), [r#"~{"id":4,"g":1,"sum":30}"#]);
}

#[test]
fn the_definition_in_force_again_changes_nothing_and_that_of_the_configuration_ends_the_replacement() {
    let mut pair = pair_with(config());
    put_some(&mut pair);
    let [sums, _] = definitions();
    assert_eq!(define(&mut pair, &sums[0]), Ok(false));
    assert_eq!(define(&mut pair, &sums[1]), Ok(true));
    assert_eq!(define(&mut pair, &sums[1]), Ok(false));
    let stored = |pair: &Pair| pair.disk.read(Path::new("journal/replaced-views.state")).unwrap().len();
    let with_one = stored(&pair);
    assert!(replaced(&mut pair, "sums"));
    assert_eq!(define(&mut pair, &sums[0]), Ok(true));
    assert!(!replaced(&mut pair, "sums"));
    assert!(stored(&pair) < with_one);
    assert!(pair.log.iter().any(|event| matches!(event, Event::ViewDefined { view, .. } if view == "sums")));
}

/// The figures of a view.
fn inspected(pair: &mut Pair, name: &str) -> Value {
    pair.take(2);
    pair.send(2, &Command::Inspect { command: 4, subject: Subject::Topics { after: "" } });
    pair.turn();
    let said = pair.take(2);
    let Some(Said::Stats { json, .. }) = said.last() else { panic!("{said:?}") };
    let mut told: Value = serde_json::from_str(json).unwrap();
    let topics = told["topics"].as_array_mut().unwrap();
    topics.iter_mut().find(|topic| topic["topic"] == name).unwrap()["last_values"].take()
}

fn replaced(pair: &mut Pair, name: &str) -> bool {
    inspected(pair, name)["view"]["replaced_ns"].is_u64()
}

#[test]
fn a_mistake_is_refused_with_its_key_and_leaves_the_definition() {
    let mut config = config();
    config.sow_topics.push(SowTopicSettings { pattern: Some("many/.*".into()), ..sow_topic("many") });
    let mut pair = pair_with(config);
    put_some(&mut pair);
    let [sums, _] = definitions();
    let sums = || sums[0].clone();
    let with = |source: &str| ViewSettings { underlying_topic: source.into(), ..sums() };
    let cases = [
        (ViewSettings { name: "none".into(), ..sums() }, "name: the server has no view \"none\""),
        (ViewSettings { name: "orders".into(), ..sums() }, "name: the server has no view \"orders\""),
        (
            ViewSettings { projection: vec!["/g".into(), "SUM(/v AS /sum".into()], ..sums() },
            "projection[1]: ",
        ),
        (ViewSettings { projection: vec!["/v".into()], ..sums() }, "projection[0]: "),
        (ViewSettings { grouping: vec!["/g +".into()], ..sums() }, "grouping[0]: "),
        (filtered("/v >", sums()), "filter: "),
        (with("missing"), "underlying_topic: \"missing\" keeps no last values"),
        (with("many"), "underlying_topic: the sow_topic \"many\" has a pattern"),
        (with("sums"), "underlying_topic: the view reads itself: sums reads sums"),
        (with("totals"), "underlying_topic: the view reads itself: sums reads totals reads sums"),
        (with("sums-C"), "underlying_topic: the view reads itself: sums reads sums-C reads sums"),
        (joined("[orders].[/g] = [nothing].[/id]", with("")), "join[0]: \"nothing\" keeps no last values"),
        (joined("[orders].[/g] = [desks].[/id]", sums()), "underlying_topic: join names the topics already"),
        (ViewSettings { message_type: "nvfix".into(), ..sums() }, "message_type: the messages of the view"),
        (ViewSettings { message_type: "binary".into(), ..sums() }, "message_type: the messages of the view"),
        (ViewSettings { hash_index: vec![vec!["v".into()]], ..sums() }, "hash_index: "),
    ];
    let before = pair.records(2, query(5, "sums"));
    for (settings, expected) in cases {
        let reason = refusal(&mut pair, &settings);
        assert!(reason.starts_with(expected), "{expected}: {reason}");
    }
    for text in ["", "[]", r#"{"name": 1}"#, r#"{"name": "sums", "nonsense": 1}"#] {
        pair.send(OPERATOR, &Command::DefineView { command: COMMAND, settings: text });
        pair.turn();
        answered(&mut pair).unwrap().unwrap_err();
    }
    let long = ViewSettings { filter: Some(" ".repeat(70_000)), ..sums() };
    assert!(refusal(&mut pair, &long).contains("the limit is 65536"));
    assert_eq!(pair.records(2, query(5, "sums")), before);
    assert!(!pair.disk.list(Path::new("journal")).unwrap().iter().any(|file| file.starts_with("replaced")));
    // Commands after a refusal are carried out.
    assert_eq!(define(&mut pair, &filtered("/v > 8", sums())), Ok(true));
}

/// A server with small portions: each reading of the clock takes a tenth of one.
fn with_small_portions(config: BrokerConfig) -> Pair {
    let mut pair = with_stopwatch(config);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    log_on(pair)
}

#[test]
fn a_definition_is_built_and_replaced_in_portions_while_its_source_changes() {
    let mut pair = with_small_portions(config());
    let mut frames = Vec::new();
    for number in 1..=2_000_u64 {
        let data = format!(r#"{{"id":{number},"g":{number},"v":{number}}}"#);
        Command::Publish(publish(number, "orders", &data)).encode(&mut frames);
    }
    pair.send_bytes(1, &frames);
    pair.turn();
    pair.subscribe(READER, &sow(7, "sums"));
    pair.turn();
    let mut rows = BTreeMap::new();
    apply(&mut rows, pair.take(READER));
    assert_eq!(rows.len(), 2_000);
    let [sums, _] = definitions();
    send_definition(&mut pair, &filtered("/v > 1000", sums[0].clone()));
    let (mut turn_count, mut most, mut sequence) = (0, 0, 2_000);
    let answer = loop {
        turn_count += 1;
        sequence += 1;
        let (id, v) = (1 + sequence * 37 % 2_000, sequence % 2_000);
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id},"g":{id},"v":{v}}}"#));
        pair.one_turn();
        pair.write();
        pair.run_reads();
        let said = pair.take(READER);
        most = most.max(said.len());
        apply(&mut rows, said);
        if let Some(answer) = answered(&mut pair) {
            break answer;
        }
    };
    assert_eq!(answer, Ok(true));
    assert!(turn_count > 10, "{turn_count} turns");
    assert!(most <= 500, "{most} messages in one turn");
    pair.turn();
    apply(&mut rows, pair.take(READER));
    let mut rows: Vec<String> = rows.into_values().map(|row| row.to_string()).collect();
    let mut records: Vec<String> =
        pair.records(2, query(5, "sums")).iter().map(|it| parsed(it).to_string()).collect();
    rows.sort();
    records.sort();
    assert_eq!(rows, records);
    assert!(rows.len() > 900 && rows.len() < 1_010, "{}", rows.len());
}

#[test]
fn a_source_that_changes_too_fast_refuses_the_definition_with_the_limit() {
    let limits = Limits { max_query_copies: 20_000, ..Limits::default() };
    let mut pair = with_small_portions(BrokerConfig { limits, ..config() });
    let put = |pair: &mut Pair, sequences: std::ops::RangeInclusive<u64>, v: u64| {
        let mut frames = Vec::new();
        for sequence in sequences {
            let data = format!(r#"{{"id":{},"g":{0},"v":{v}}}"#, sequence % 8_000);
            Command::Publish(publish(sequence, "orders", &data)).encode(&mut frames);
        }
        pair.send_bytes(1, &frames);
    };
    put(&mut pair, 1..=8_000, 1);
    pair.turn();
    let [sums, _] = definitions();
    send_definition(&mut pair, &filtered("/v > 0", sums[0].clone()));
    pair.one_turn();
    put(&mut pair, 8_001..=9_000, 0);
    pair.turn();
    let reason = answered(&mut pair).unwrap().unwrap_err();
    assert!(reason.starts_with("max_query_copies: "), "{reason}");
    assert_eq!(pair.records(2, query(5, "sums")).len(), 8_000);
    assert_eq!(define(&mut pair, &filtered("/v > 0", sums[0].clone())), Ok(true));
    assert_eq!(pair.records(2, query(5, "sums")).len(), 7_000);
}

#[test]
fn a_replaced_definition_survives_restarts_until_the_configuration_is_edited() {
    let mut pair = pair_with(config());
    put_some(&mut pair);
    let [sums, names] = definitions();
    assert_eq!(define(&mut pair, &sums[3]), Ok(true));
    assert_eq!(define(&mut pair, &names[2]), Ok(true));
    let all = |pair: &mut Pair| ["sums", "names", "totals"].map(|topic| pair.records(2, query(5, topic)));
    let expected = all(&mut pair);
    let pair = log_on(crash(pair, config()));
    let mut pair = log_on(restart(pair, config()));
    assert_eq!(all(&mut pair), expected);
    assert!(replaced(&mut pair, "sums") && replaced(&mut pair, "names"));
    // The snapshots are those of the replaced definitions.
    let mut pair = log_on(restart(pair, config()));
    assert_eq!(all(&mut pair), expected);
    let is_again = |event: &Event| matches!(event, Event::ViewComputedAgain { .. });
    assert!(!pair.log.iter().any(is_again));
    // The configuration has another definition now, which wins, also when it is as before later.
    let mut edited = config();
    edited.views[0] = sums[1].clone();
    let mut pair = restart(pair, edited);
    let unused = |pair: &Pair| -> Vec<(String, String)> {
        let of = |event: &Event| match event {
            Event::ViewDefinitionNotUsed { view, reason } => Some((view.clone(), reason.clone())),
            _ => None,
        };
        pair.log.iter().filter_map(of).collect()
    };
    let reason = "the configuration has another definition than the one that was replaced";
    assert_eq!(unused(&pair), [("sums".to_owned(), reason.to_owned())]);
    assert!(!replaced(&mut pair, "sums") && replaced(&mut pair, "names"));
    assert_eq!(
        pair.records(2, query(5, "sums")),
        [r#"{"g":0,"n":3,"sum":18}"#, r#"{"g":1,"n":2,"sum":11}"#, r#"{"g":2,"n":2,"sum":13}"#]
    );
    let mut pair = restart(pair, config());
    assert_eq!(unused(&pair), []);
    assert!(!replaced(&mut pair, "sums"));
    // A definition that does not fit the configuration is not used.
    let mut without = config();
    without.views.swap_remove(0);
    without.views.retain(|view| view.name != "totals");
    without.conflated_topics.clear();
    let pair = restart(pair, without);
    let (view, reason) = unused(&pair).remove(0);
    assert_eq!(view, "names");
    assert!(reason.contains("\"sums\" keeps no last values"), "{reason}");
}

#[test]
fn a_damaged_file_keeps_the_server_from_starting_and_says_what_to_do() {
    let mut pair = pair_with(config());
    define(&mut pair, &definitions()[0][1]).unwrap();
    let path = Path::new("journal/replaced-views.state");
    let bytes = pair.disk.read(path).unwrap();
    let disk = pair.disk.clone();
    pair.broker.abandon();
    let opened = |content: &[u8]| {
        disk.remove(path).unwrap();
        disk.create(path, content.len() as u64).unwrap().write_at(content, 0).unwrap();
        let options = config().journal_options();
        let (journal, _) =
            quire_journal::Journal::driven_by_hand(disk.clone(), Path::new("journal"), &options).unwrap();
        quire_broker::Broker::new(config(), journal).map(drop)
    };
    for end in (0..bytes.len()).step_by(7) {
        let error = opened(&bytes[..end]).unwrap_err().to_string();
        assert!(
            error.contains("replaced-views.state") && error.contains("restore the file from a backup"),
            "{end}: {error}"
        );
    }
    opened(&bytes).unwrap();
}

/// A broker on a disk that fails the call with this number among those on the definitions; 0: none.
/// Counts them.
fn on_a_disk_that_fails_once(number: usize) -> (Pair, Arc<AtomicUsize>) {
    let (disk, count) = (Arc::new(MemoryDisk::new(1 << 30)), Arc::new(AtomicUsize::new(0)));
    let calls = count.clone();
    let faulty = FaultyDisk::new(disk.clone(), move |call| {
        let path = match call {
            Call::Create(path) | Call::Reserve(path) | Call::Write(path) | Call::Sync(path) => path,
            Call::Rename(path) => path,
            _ => return Ok(()),
        };
        let is_definition = path.to_string_lossy().contains("replaced-views");
        if is_definition && calls.fetch_add(1, Ordering::Relaxed) + 1 == number {
            return Err(io::Error::other("the disk refused the call"));
        }
        Ok(())
    });
    let mut pair = Pair::over(Arc::new(faulty), disk, config());
    pair.client(1, "publisher");
    pair.client(2, "reader");
    (log_on(pair), count)
}

#[test]
fn a_write_of_the_definitions_that_fails_refuses_the_command_and_leaves_the_view() {
    let [sums, _] = definitions();
    let (mut pair, count) = on_a_disk_that_fails_once(0);
    define(&mut pair, &sums[1]).unwrap();
    let per_write = count.load(Ordering::Relaxed);
    assert!(per_write >= 5, "{per_write} calls");
    for failing in 1..=per_write {
        let (mut pair, _) = on_a_disk_that_fails_once(failing);
        put_some(&mut pair);
        let before = pair.records(2, query(5, "sums"));
        let reason = refusal(&mut pair, &sums[1]);
        assert!(reason.contains("the disk refused the call"), "{reason}");
        assert_eq!(pair.records(2, query(5, "sums")), before);
        pair.publish(1, 20, "orders", r#"{"id":20,"g":9,"v":1}"#);
        pair.turn();
        assert_eq!(pair.records(2, query(5, "sums")).len(), 4);
        // The definition in force is made durable again.
        assert_eq!(define(&mut pair, &sums[0]), Ok(false), "call {failing}");
        let mut pair = log_on(crash(pair, config()));
        assert!(!replaced(&mut pair, "sums"));
        assert_eq!(define(&mut pair, &sums[1]), Ok(true));
        assert!(replaced(&mut log_on(restart(pair, config())), "sums"));
    }
}

/// Applies the messages of a subscription with `oof`. Differences are merged.
fn apply(rows: &mut BTreeMap<String, Value>, said: Vec<Said>) {
    for said in said {
        let Said::Row(RowMessage { kind, key, data, .. }) = said else { continue };
        match kind {
            MessageKind::Record | MessageKind::Publish => {
                rows.insert(key, parsed(&data));
            }
            MessageKind::Delta(_) => {
                let Value::Object(changed) = parsed(&data) else { panic!("{data}") };
                let row = rows.get_mut(&key).expect("a difference of a record in view");
                for (field, value) in changed {
                    row[field] = value;
                }
            }
            MessageKind::Oof(_) => {
                rows.remove(&key).expect("only a record in view leaves");
            }
            MessageKind::Delete => panic!("a delete"),
        }
    }
}

fn parsed(data: &str) -> Value {
    serde_json::from_str(data).unwrap()
}

/// The records without their fields that are NULL, sorted.
fn without_nulls<'a>(rows: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    let text = |row: &Value| {
        let Value::Object(fields) = row else { panic!("{row}") };
        let known: BTreeMap<_, _> = fields.iter().filter(|(_, value)| !value.is_null()).collect();
        json!(known).to_string()
    };
    let mut all: Vec<String> = rows.into_iter().map(text).collect();
    all.sort();
    all
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        id: u64,
        g: u64,
        v: i64,
        lifetime_s: u32,
    },
    Desk {
        id: u64,
        name: u64,
    },
    Delete(u64),
    Pass(u64),
    /// A definition, and the turns that follow at once.
    Define {
        view: usize,
        definition: usize,
        turns: usize,
    },
    Settle,
    Restart,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let put = (0..40_u64, 0..4_u64, -5..9_i64, prop_oneof![4 => Just(0), 1 => 1..4_u32])
        .prop_map(|(id, g, v, lifetime_s)| Step::Put { id, g, v, lifetime_s });
    let step = prop_oneof![
        20 => put,
        4 => (0..4_u64, 0..3_u64).prop_map(|(id, name)| Step::Desk { id, name }),
        3 => (0..40_u64).prop_map(Step::Delete),
        2 => (1..3_000_u64).prop_map(Step::Pass),
        6 => (0..2_usize, 0..9_usize, 0..4_usize)
            .prop_map(|(view, definition, turns)| Step::Define { view, definition, turns }),
        3 => Just(Step::Settle),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 1..90)
}

const TOPICS: [&str; 4] = ["sums", "names", "totals", "sums-C"];

/// The subscriptions to a topic: plain, with differences, with conflation, a page over all of it,
/// and with groups.
const READERS: [&str; 4] = ["plain", "delta", "conflated", "grouped"];

/// One server, its model, and what its readers have.
struct World {
    pair: Pair,
    /// The definitions in force.
    views: [ViewSettings; 2],
    /// A definition whose answer has not come.
    asked: Option<(usize, ViewSettings)>,
    /// The records of each subscription, by its number.
    readers: BTreeMap<u32, BTreeMap<String, Value>>,
    sequence: u64,
}

impl World {
    fn new(is_small: bool) -> Self {
        let pair = if is_small { with_small_portions(config()) } else { pair_with(config()) };
        let views = definitions().map(|mut list| list.swap_remove(0));
        let mut world = World { pair, views, asked: None, readers: BTreeMap::new(), sequence: 0 };
        world.subscribe();
        world
    }

    fn subscribe(&mut self) {
        self.readers.clear();
        let (projection, grouping) = (packed(&["/n", "COUNT(1) AS /c", "SUM(/sum) AS /s"]), packed(&["/n"]));
        for (number, topic) in (0..).zip(TOPICS) {
            for (place, reader) in (1..).zip(READERS) {
                let id = number * 10 + place;
                let wanted = match reader {
                    "plain" => sow(id, topic),
                    "delta" => sow_delta(id, topic),
                    "conflated" => Subscribe { conflation_ns: Some(200_000_000), ..sow(id, topic) },
                    _ => Subscribe {
                        projection: Texts::from_bytes(&projection),
                        grouping: Texts::from_bytes(&grouping),
                        ..sow(id, topic)
                    },
                };
                self.pair.subscribe(READER, &wanted);
                self.readers.insert(id, BTreeMap::new());
            }
        }
    }

    fn hear(&mut self) {
        for said in self.pair.take(READER) {
            let Said::Row(row) = &said else { continue };
            apply(self.readers.get_mut(&row.subscription).unwrap(), vec![said]);
        }
        let Some(answer) = answered(&mut self.pair) else { return };
        let (view, settings) = self.asked.take().expect("a command");
        if let Ok(changed) = answer {
            assert_eq!(changed, self.views[view] != settings);
            self.views[view] = settings;
        }
    }

    /// Every part of the server has done its work.
    fn settle(&mut self) {
        self.pair.turn();
        // After the longest lifetime, and the intervals of both conflations.
        for _ in 0..10 {
            self.pair.pass(Duration::from_millis(400));
            self.pair.turn();
        }
        self.hear();
        assert!(self.asked.is_none());
    }

    fn begin_again(&mut self, crashes: bool) {
        let fresh = Pair::with(config());
        let pair = std::mem::replace(&mut self.pair, fresh);
        let now_ns = pair.now_ns;
        self.pair = log_on(if crashes { crash(pair, config()) } else { restart(pair, config()) });
        self.pair.now_ns = now_ns;
        self.pair.turn();
        // The definition is that of before or after a command without an answer.
        if let Some((view, settings)) = self.asked.take() {
            let name = settings.name.clone();
            let told = inspected(&mut self.pair, &name);
            let has = |settings: &ViewSettings| {
                told["view"]["projection"] == json!(settings.projection)
                    && told["view"]["filter"] == json!(settings.filter)
                    && told["key"] == json!(settings.grouping)
                    && told["view"]["inline_conflation"] == json!(settings.inline_conflation)
            };
            if has(&settings) {
                self.views[view] = settings;
            } else {
                assert!(has(&self.views[view]), "{told}");
            }
        }
        self.subscribe();
    }

    /// The records of each topic as a new server computes them.
    fn computed(&mut self) -> Vec<Vec<String>> {
        let mut fresh = pair_with(config_of(with_totals(self.views.clone().into())));
        let mut sequence = 0;
        for topic in ["orders", "desks"] {
            for record in self.pair.records(2, query(5, topic)) {
                sequence += 1;
                fresh.publish(1, sequence, topic, &record);
            }
        }
        fresh.turn();
        fresh.pass(Duration::from_millis(150));
        fresh.turn();
        let mut records = |topic: &&str| -> Vec<String> {
            let records = fresh.records(2, query(5, topic));
            without_nulls(&records.iter().map(|data| parsed(data)).collect::<Vec<_>>())
        };
        TOPICS.iter().map(&mut records).collect()
    }

    fn check(&mut self) {
        self.settle();
        let expected = self.computed();
        for (number, (topic, expected)) in (0..).zip(TOPICS.iter().zip(&expected)) {
            let records: Vec<Value> =
                self.pair.records(2, query(5, topic)).iter().map(|data| parsed(data)).collect();
            assert_eq!(without_nulls(&records), *expected, "{topic}");
            for (place, reader) in (1..).zip(&READERS[..3]) {
                let has = without_nulls(self.readers[&(number * 10 + place)].values());
                assert_eq!(has, *expected, "{reader} of {topic}");
            }
            let grouped = &self.readers[&(number * 10 + 4)];
            let count: u64 = grouped.values().map(|row| row["c"].as_u64().unwrap()).sum();
            assert_eq!(count, expected.len() as u64, "groups of {topic}");
        }
    }

    fn take(&mut self, step: Step) {
        self.sequence += 1;
        let sequence = self.sequence;
        match step {
            Step::Put { id, g, v, lifetime_s } => {
                let data = format!(r#"{{"id":{id},"g":{g},"v":{v}}}"#);
                let expiration_s = (lifetime_s > 0).then_some(lifetime_s);
                let publish = Publish { expiration_s, ..publish(sequence, "orders", &data) };
                self.pair.send(1, &Command::Publish(publish));
                self.pair.one_turn();
            }
            Step::Desk { id, name } => {
                self.pair.publish(1, sequence, "desks", &format!(r#"{{"id":{id},"name":{name}}}"#));
            }
            Step::Delete(id) => {
                let filter = format!("/id = {id}");
                let delete = SowDelete { filter: Some(&filter), ..delete(7, sequence, "orders") };
                self.pair.send(1, &Command::SowDelete(delete));
            }
            Step::Pass(ms) => self.pair.pass(Duration::from_millis(ms)),
            Step::Define { view, definition, turns } => {
                self.hear();
                let list = &definitions()[view];
                let settings = list[definition % list.len()].clone();
                if self.asked.is_none() {
                    send_definition(&mut self.pair, &settings);
                    self.asked = Some((view, settings));
                }
                for _ in 0..turns {
                    self.pair.one_turn();
                    self.pair.write();
                    self.pair.run_reads();
                }
            }
            Step::Settle => self.check(),
            Step::Restart => self.begin_again(false),
            Step::Crash => self.begin_again(true),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn views_and_their_readers_are_those_of_a_computation_after_any_definitions(
        steps in steps(),
        is_small in any::<bool>(),
    ) {
        let mut world = World::new(is_small);
        for step in steps {
            world.take(step);
        }
        world.check();
    }
}
