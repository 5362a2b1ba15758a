//! Snapshots of views, and what a start does with them (docs/views.md section 7).

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use quire_broker::{BrokerConfig, Event, SowTopicSettings, TableExpiration, ViewSettings};
use quire_command::*;
use quire_journal::Disk;

use crate::last_value_pair::*;
use crate::last_value_restarts::{crash, restart};
use crate::pair::*;

pub fn view(name: &str, source: &str, projection: &[&str], grouping: &[&str]) -> ViewSettings {
    let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    ViewSettings {
        name: name.into(),
        message_type: "json".into(),
        underlying_topic: source.into(),
        projection: texts(projection),
        grouping: texts(grouping),
        ..ViewSettings::default()
    }
}

/// The aggregates of a view of one topic, a view of it, and a join.
fn all_views() -> Vec<ViewSettings> {
    let aggregates = ["/g", "COUNT(1) AS /n", "SUM(/v) AS /sum", "MAX(/v) AS /max", "VAR_POP(/v) AS /var"];
    let joined = ["[desks].[/name] AS /name", "SUM([orders].[/v]) AS /sum", "MIN([orders].[/g]) AS /min"];
    vec![
        view("sums", "orders", &aggregates, &["/g"]),
        view("counts", "sums", &["/n", "COUNT(1) AS /groups", "SUM(/sum) AS /sum"], &["/n"]),
        ViewSettings {
            join: vec!["[orders].[/g] = [desks].[/id]".into()],
            ..view("names", "", &joined, &["[desks].[/name]"])
        },
        ViewSettings {
            join: vec!["[orders].[/g] = [sums].[/g]".into()],
            inline_conflation: true,
            ..view("shares", "", &["[orders].[/id] AS /id", "[orders].[/v] / [sums].[/sum] AS /share"], &[])
        },
    ]
}

const TOPICS: [&str; 6] = ["orders", "desks", "sums", "counts", "names", "shares"];

fn config_of(views: Vec<ViewSettings>) -> BrokerConfig {
    let orders = SowTopicSettings { expiration: TableExpiration::Enabled, ..sow_topic("orders") };
    BrokerConfig { views, ..sow_config([orders, sow_topic("desks")]) }
}

fn config() -> BrokerConfig {
    config_of(all_views())
}

fn pair_with(config: BrokerConfig) -> Pair {
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair
}

/// The records of all topics.
fn all_records(pair: &mut Pair) -> Vec<Vec<String>> {
    pair.turn();
    TOPICS.map(|topic| pair.records(2, query(5, topic))).into()
}

/// The views that were computed again, with the reasons.
fn computed_again(pair: &Pair) -> Vec<(&str, &str)> {
    let mut again = Vec::new();
    for event in &pair.log {
        if let Event::ViewComputedAgain { view, reason } = event {
            again.push((view.as_str(), reason.as_str()));
        }
    }
    again
}

fn put_some(pair: &mut Pair) {
    for number in 1..=9 {
        let g = number % 3;
        pair.publish(1, number, "orders", &format!(r#"{{"id":{number},"g":{g},"v":{number}}}"#));
    }
    pair.publish(1, 10, "desks", r#"{"id":1,"name":"one"}"#);
    pair.turn();
}

/// The records of a start without the snapshots of the views.
fn recomputed(pair: Pair, config: BrokerConfig) -> (Vec<Vec<String>>, Pair) {
    let Pair { broker, disk, now_ns, .. } = pair;
    broker.abandon();
    for topic in &TOPICS[2..] {
        let _ = disk.remove(&Path::new("journal").join(quire_table::snapshot_file(topic)));
    }
    let mut pair = Pair::on(disk, config);
    pair.now_ns = now_ns;
    pair.client(1, "publisher");
    pair.client(2, "reader");
    (all_records(&mut pair), pair)
}

fn view_positions(pair: &mut Pair) -> Vec<u64> {
    pair.take(2);
    pair.send(2, &Command::Inspect { command: 4, subject: Subject::Topics { after: "" } });
    pair.turn();
    let said = pair.take(2);
    let Some(Said::Stats { json, .. }) = said.last() else { panic!("{said:?}") };
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let topics = json["topics"].as_array().unwrap();
    let position = |name: &&str| {
        let topic = topics.iter().find(|topic| topic["topic"] == **name).unwrap();
        topic["last_values"]["snapshot_position"].as_u64().unwrap()
    };
    TOPICS[2..].iter().map(position).collect()
}

#[test]
fn a_start_reads_the_snapshots_of_views_and_applies_the_later_records() {
    let mut pair = pair_with(config());
    put_some(&mut pair);
    let before = all_records(&mut pair);
    let mut pair = restart(pair, config());
    assert_eq!(all_records(&mut pair), before);
    // After a crash, the log has more than the snapshots.
    pair.publish(1, 11, "orders", r#"{"id":1,"g":2,"v":100}"#);
    pair.publish(1, 12, "desks", r#"{"id":2,"name":"two"}"#);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("/id = 2"), ..delete(7, 13, "orders") }), 1);
    let before = all_records(&mut pair);
    let mut pair = crash(pair, config());
    assert_eq!(all_records(&mut pair), before);
    assert_eq!(computed_again(&pair), []);
    assert_eq!(view_positions(&mut pair), [10; 4]);
    // The views follow their sources.
    pair.subscribe(2, &sow(7, "sums"));
    pair.turn();
    pair.take(2);
    pair.publish(1, 14, "orders", r#"{"id":14,"g":"new","v":1}"#);
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"g":"new","n":1,"sum":1,"max":1,"var":0.0}"#]);
    let before = all_records(&mut pair);
    assert_eq!(recomputed(pair, config()).0, before);
}

#[test]
fn a_snapshot_is_written_while_the_log_grows_and_while_records_change() {
    let mut pair = pair_with(config());
    let filler = "x".repeat(10_000);
    for sequence in 1..=200 {
        let (id, g) = (sequence % 40, sequence % 7);
        let data = format!(r#"{{"id":{id},"g":{g},"v":{sequence},"x":"{filler}"}}"#);
        pair.publish(1, sequence, "orders", &data);
        pair.turn();
    }
    assert_eq!(view_positions(&mut pair), [0; 4]);
    pair.pass(Duration::from_secs(11));
    pair.turn();
    assert_eq!(view_positions(&mut pair), [200; 4]);
    pair.publish(1, 201, "orders", r#"{"id":1,"g":1,"v":7}"#);
    let before = all_records(&mut pair);
    let mut pair = crash(pair, config());
    assert_eq!((view_positions(&mut pair), all_records(&mut pair)), (vec![200; 4], before));
    assert_eq!(computed_again(&pair), []);
}

#[test]
fn a_changed_definition_computes_the_view_and_the_views_of_it_again() {
    let mut pair = pair_with(config());
    put_some(&mut pair);
    let pair = restart(pair, config());
    let mut views = all_views();
    views[0].filter = Some("/v > 4".into());
    let mut pair = restart(pair, config_of(views.clone()));
    let again = computed_again(&pair);
    assert_eq!(again.iter().map(|(view, _)| *view).collect::<Vec<_>>(), ["sums", "counts", "shares"]);
    assert_eq!(again[0].1, "it is of another definition of the view, or of another version");
    assert_eq!(again[1].1, "it is not of the same instant as the snapshots of its sources");
    let found = all_records(&mut pair);
    assert_eq!(found[2].len(), 3);
    assert_eq!(recomputed(pair, config_of(views)).0, found);
}

#[test]
fn a_snapshot_of_an_instance_with_another_name_is_computed_again() {
    let mut pair = pair_with(config());
    put_some(&mut pair);
    let before = all_records(&mut pair);
    let renamed = BrokerConfig { name: "renamed".into(), ..config() };
    let mut pair = restart(pair, renamed);
    assert_eq!(computed_again(&pair).len(), 4, "an expression may have the name");
    assert_eq!(all_records(&mut pair), before);
}

#[test]
fn a_damaged_or_missing_snapshot_of_a_view_is_computed_again() {
    let mut pair = pair_with(config());
    put_some(&mut pair);
    let before = all_records(&mut pair);
    let size = |pair: &Pair, path: &Path| pair.disk.read(path).unwrap().len();
    let path = Path::new("journal").join(quire_table::snapshot_file("sums"));
    let mut pair = restart(pair, config());
    for at in (0..size(&pair, &path)).step_by(61) {
        let mut bytes = pair.disk.read(&path).unwrap();
        bytes[at] ^= 1;
        pair.disk.create(&path, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
        pair = crash(pair, config());
        assert_eq!(all_records(&mut pair), before);
        assert_eq!(computed_again(&pair).first().map(|(view, _)| *view), Some("sums"), "byte {at}");
        bytes[at] ^= 1;
        pair.disk.create(&path, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
    }
    pair.disk.remove(&path).unwrap();
    let mut pair = crash(pair, config());
    assert_eq!(all_records(&mut pair), before);
    assert_eq!(computed_again(&pair).len(), 2, "the views of the view");
}

#[test]
fn a_snapshot_of_another_instant_than_that_of_the_source_is_not_used() {
    let mut pair = pair_with(config());
    put_some(&mut pair);
    let mut pair = restart(pair, config());
    let path = Path::new("journal").join(quire_table::snapshot_file("orders"));
    let older = pair.disk.read(&path).unwrap();
    pair.publish(1, 11, "orders", r#"{"id":1,"g":2,"v":100}"#);
    let before = all_records(&mut pair);
    let pair = restart(pair, config());
    pair.disk.create(&path, older.len() as u64).unwrap().write_at(&older, 0).unwrap();
    let mut pair = crash(pair, config());
    assert_eq!(computed_again(&pair).len(), 4);
    assert_eq!(all_records(&mut pair), before);
}

#[derive(Clone, Debug)]
enum Step {
    Put { id: u64, g: u64, v: i64, lifetime_s: u32 },
    Desk { id: u64, name: u64 },
    Delete(u64),
    Pass(u64),
    Restart,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let put = (0..8_u64, 0..3_u64, -5..9_i64, prop_oneof![Just(0), 1..4_u32])
        .prop_map(|(id, g, v, lifetime_s)| Step::Put { id, g, v, lifetime_s });
    let step = prop_oneof![
        8 => put,
        2 => (0..3_u64, 0..3_u64).prop_map(|(id, name)| Step::Desk { id, name }),
        2 => (0..8_u64).prop_map(Step::Delete),
        1 => (1..3_000_u64).prop_map(Step::Pass),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn views_are_those_of_a_computation_from_their_sources_after_restarts_at_any_place(steps in steps()) {
        let mut pair = pair_with(config());
        let mut sequence = 0;
        for step in steps {
            sequence += 1;
            match step {
                Step::Put { id, g, v, lifetime_s } => {
                    let data = format!(r#"{{"id":{id},"g":{g},"v":{v}}}"#);
                    let expiration_s = (lifetime_s > 0).then_some(lifetime_s);
                    let publish = Publish { expiration_s, ..publish(sequence, "orders", &data) };
                    pair.send(1, &Command::Publish(publish));
                }
                Step::Desk { id, name } => {
                    pair.publish(1, sequence, "desks", &format!(r#"{{"id":{id},"name":{name}}}"#));
                }
                Step::Delete(id) => {
                    let filter = format!("/id = {id}");
                    pair.delete(1, SowDelete { filter: Some(&filter), ..delete(7, sequence, "orders") });
                }
                Step::Pass(ms) => pair.pass(Duration::from_millis(ms)),
                Step::Restart => pair = again(pair, false),
                Step::Crash => pair = again(pair, true),
            }
            pair.turn();
        }
        pair.turn();
        let mut pair = again(pair, true);
        let found = all_records(&mut pair);
        prop_assert_eq!(computed_again(&pair), []);
        let (expected, _) = recomputed(pair, config());
        prop_assert_eq!(found, expected);
    }
}

/// Starts again at the same time.
fn again(pair: Pair, crashes: bool) -> Pair {
    let now_ns = pair.now_ns;
    let mut pair = if crashes { crash(pair, config()) } else { restart(pair, config()) };
    pair.now_ns = now_ns;
    pair.turn();
    pair
}
