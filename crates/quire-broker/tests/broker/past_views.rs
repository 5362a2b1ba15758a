//! The records of views at earlier instants (docs/views.md, "Earlier states").

use std::time::Duration;

use proptest::prelude::*;
use quire_broker::{BrokerConfig, HistorySettings, SowTopicSettings, ViewSettings};
use quire_command::*;
use quire_journal::PublisherId;

use crate::last_value_pair::*;
use crate::pair::*;

const S: u64 = 1_000_000_000;
const VIEWS: [&str; 3] = ["sums", "total", "names"];

fn kept(name: &str, granularity_s: u64) -> SowTopicSettings {
    let history =
        HistorySettings { window_ns: 3600 * S, granularity_ns: granularity_s * S, max_size: 1 << 30 };
    SowTopicSettings { history: Some(history), ..sow_topic(name) }
}

fn view(name: &str, source: &str, projection: &[&str], grouping: &[&str]) -> ViewSettings {
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

/// A view of a topic, a view of this view, and a join of the view and a topic.
fn config(topics: [SowTopicSettings; 2]) -> BrokerConfig {
    let joined = ["[sums].[/g] AS /g", "[desks].[/name] AS /name", "[sums].[/sum] AS /sum"];
    let views = vec![
        view("sums", "orders", &["/g", "COUNT(1) AS /n", "SUM(/v) AS /sum"], &["/g"]),
        view("total", "sums", &["COUNT(1) AS /groups", "SUM(/sum) AS /sum"], &[]),
        ViewSettings { join: vec!["[sums].[/g] = [desks].[/id]".into()], ..view("names", "", &joined, &[]) },
    ];
    BrokerConfig { views, ..sow_config(topics) }
}

fn pair_with(topics: [SowTopicSettings; 2]) -> Pair {
    let mut pair = Pair::with(config(topics));
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair
}

fn refusal(pair: &mut Pair, query: Query<'_>) -> (Code, String) {
    pair.take(2);
    pair.send(2, &Command::Query(query));
    pair.turn();
    match pair.take(2).last() {
        Some(Said::Ack { code, .. }) => (*code, pair.clients[&2].refusal.clone()),
        other => panic!("{other:?}"),
    }
}

fn order(pair: &mut Pair, sequence: u64, id: u64, g: u64, v: u64) -> String {
    pair.publish(1, sequence, "orders", &format!(r#"{{"id":{id},"g":{g},"v":{v}}}"#));
    pair.turn();
    bookmark(sequence)
}

fn bookmark(sequence: u64) -> String {
    format!("{}|{sequence}|", PublisherId::of_client_name("publisher"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_records_after_each_message_are_those_that_the_views_had(
        changes in proptest::collection::vec((0..5_u64, 0..3_u64, 0..9_u64, 0..6_u8), 1..24),
    ) {
        let mut pair = pair_with([kept("orders", 0), kept("desks", 0)]);
        let mut states = Vec::new();
        for ((id, g, v, kind), sequence) in changes.into_iter().zip(1..) {
            match kind {
                0 => {
                    let filter = format!("/id = {id}");
                    pair.delete(1, SowDelete { filter: Some(&filter), ..delete(7, sequence, "orders") });
                }
                1 => pair.publish(1, sequence, "desks", &format!(r#"{{"id":{g},"name":{v}}}"#)),
                _ => drop(order(&mut pair, sequence, id, g, v)),
            }
            pair.turn();
            let all = VIEWS.map(|view| pair.records(2, query(5, view)));
            // The deletion of no record is not in the log.
            if kind != 0 {
                states.push((bookmark(sequence), all));
            }
            pair.pass(Duration::from_millis(10));
        }
        for (bookmark, expected) in &states {
            for (view, expected) in VIEWS.iter().zip(expected) {
                let query = Query { bookmark: Some(bookmark), ..query(5, view) };
                prop_assert_eq!(&pair.records(2, query), expected, "{} after {}", view, bookmark);
            }
        }
    }
}

#[test]
fn a_query_of_an_earlier_state_has_the_options_of_every_query() {
    let mut pair = pair_with([kept("orders", 0), kept("desks", 0)]);
    order(&mut pair, 1, 1, 1, 10);
    let then = order(&mut pair, 2, 2, 2, 20);
    order(&mut pair, 3, 2, 1, 30);
    let past = || Query { bookmark: Some(&then), ..query(5, "sums") };
    let [one, two] = [r#"{"g":1,"n":1,"sum":10}"#, r#"{"g":2,"n":1,"sum":20}"#];
    assert_eq!(pair.records(2, past()), [one, two]);
    assert_eq!(pair.ordered(2, Query { order_by: Some("/g DESC"), top_n: Some(1), ..past() }), [two]);
    assert_eq!(pair.records(2, Query { filter: Some("/sum < 15"), ..past() }), [one]);
    assert_eq!(pair.records(2, query(5, "sums")), [r#"{"g":1,"n":2,"sum":40}"#]);
    // The tables of the queries are free again.
    assert_eq!(pair.records(2, past()), [one, two]);
}

#[test]
fn a_view_of_a_topic_without_history_has_no_earlier_state() {
    let mut pair = pair_with([kept("orders", 0), sow_topic("desks")]);
    let then = order(&mut pair, 1, 1, 1, 10);
    assert_eq!(pair.records(2, Query { bookmark: Some(&then), ..query(5, "sums") }).len(), 1);
    let (code, reason) = refusal(&mut pair, Query { bookmark: Some(&then), ..query(5, "names") });
    assert_eq!(code, Code::BadBookmark);
    assert!(reason.contains(r#""names" is a view of "desks", which keeps no history"#), "{reason}");
    assert_eq!(pair.records(2, Query { bookmark: Some("0|1|"), ..query(5, "names") }).len(), 1);
}

#[test]
fn the_topics_of_a_join_have_states_of_one_instant() {
    let mut pair = pair_with([kept("orders", 60), kept("desks", 0)]);
    pair.pass(Duration::from_secs(600));
    let minute_ns = (WALL_START_NS + pair.now_ns) / (60 * S) * (60 * S) + 60 * S - WALL_START_NS;
    pair.pass(Duration::from_nanos(minute_ns + 10 * S - pair.now_ns));
    order(&mut pair, 1, 1, 1, 10);
    pair.pass(Duration::from_secs(60));
    order(&mut pair, 2, 1, 1, 20);
    pair.publish(1, 3, "desks", r#"{"id":1,"name":"late"}"#);
    pair.turn();
    let then = bookmark(3);
    order(&mut pair, 4, 1, 1, 30);
    // The order of the message before was replaced within its minute.
    let state = pair.records(2, Query { bookmark: Some(&then), ..query(5, "names") });
    assert_eq!(state, [r#"{"g":1,"name":null,"sum":10}"#]);
}

#[test]
fn topics_with_different_granularities_have_the_state_of_a_common_multiple() {
    let mut pair = pair_with([kept("orders", 60), kept("desks", 45)]);
    pair.pass(Duration::from_secs(600));
    let multiple_ns = (WALL_START_NS + pair.now_ns) / (180 * S) * (180 * S) + 180 * S - WALL_START_NS;
    // Ten seconds before a multiple of 180 seconds, and in the periods after it.
    for (sequence, after_s) in (1..).zip([0, 60, 110, 170]) {
        pair.pass(Duration::from_nanos(multiple_ns + after_s * S - 10 * S - pair.now_ns));
        order(&mut pair, sequence * 3, 1, 1, sequence);
        pair.publish(1, sequence * 3 + 1, "desks", &format!(r#"{{"id":1,"name":{sequence}}}"#));
        pair.turn();
        order(&mut pair, sequence * 3 + 2, 1, 1, sequence * 10);
    }
    let mut state = |sequence| {
        let then = bookmark(sequence);
        pair.records(2, Query { bookmark: Some(&then), ..query(5, "names") })
    };
    // The order of the message before was replaced within its period, and the desk was not.
    assert_eq!(state(13), [r#"{"g":1,"name":1,"sum":10}"#]);
    assert_eq!(state(14), [r#"{"g":1,"name":4,"sum":40}"#]);
    assert_eq!(state(4), Vec::<String>::new());
}

#[test]
fn a_record_with_many_combinations_is_added_in_portions() {
    let joined = ["[desks].[/id] AS /id", "COUNT([orders].[/id]) AS /orders"];
    let many = ViewSettings {
        join: vec!["[desks].[/id] = [orders].[/g]".into()],
        ..view("many", "", &joined, &["[desks].[/id]"])
    };
    let mut config = config([kept("orders", 0), kept("desks", 0)]);
    config.views.push(many);
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    for sequence in 1..=5_000 {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{sequence},"g":1,"v":1}}"#));
    }
    pair.publish(1, 5_001, "desks", r#"{"id":1}"#);
    pair.turn();
    pair.publish(1, 5_002, "desks", r#"{"id":2}"#);
    pair.turn();
    let then = bookmark(5_001);
    pair.take(2);
    pair.send(2, &Command::Query(Query { bookmark: Some(&then), ..query(5, "many") }));
    // Each portion takes the time of a turn.
    let mut at_ns = 0;
    pair.broker.set_stopwatch(Box::new(move || {
        at_ns += 1_000_000;
        quire_types::time::Instant(at_ns)
    }));
    let before = pair.repeat_count;
    pair.turn();
    // 5,000 orders are read in portions of 64, and their combinations in portions of 256.
    assert!(pair.repeat_count - before > 5_000 / 64 + 5_000 / 256, "{}", pair.repeat_count - before);
    assert_eq!(pair.take_rows(2), [r#"={"id":1,"orders":5000}"#]);
}

#[test]
fn a_query_that_needs_too_much_memory_is_refused_and_frees_it() {
    let mut limited = config([kept("orders", 0), kept("desks", 0)]);
    limited.limits.max_query_copies = 100_000;
    let mut pair = Pair::with(limited);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    for sequence in 1..=2_000 {
        pair.publish(1, sequence, "orders", &format!(r#"{{"id":{sequence},"g":{sequence},"v":1}}"#));
    }
    pair.turn();
    let then = bookmark(1_900);
    let (code, reason) = refusal(&mut pair, Query { bookmark: Some(&then), ..query(5, "sums") });
    assert!(code == Code::LimitExceeded && reason.contains("max_query_copies"), "{reason}");
    let first = bookmark(5);
    assert_eq!(pair.records(2, Query { bookmark: Some(&first), ..query(5, "sums") }).len(), 5);
}
