//! Views with joins: a change with many matches is worked off between other work, and no record
//! shows a part of it (docs/views.md, section 2).
//!
//! `tests/test_view_joins.py` has the behavior for clients, and the tests of quire-table compare
//! the combinations with a computation from nothing.

use quire_broker::{BrokerConfig, ConfigError, ViewSettings};
use quire_command::*;
use quire_wire::Encode;

use crate::last_value_pair::*;
use crate::pair::*;
use crate::slices::with_stopwatch;

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

/// Orders (`/id`, `/g`, `/v`) with the names of their groups.
fn joined() -> ViewSettings {
    ViewSettings {
        name: "joined".into(),
        message_type: "json".into(),
        join: texts(&["[orders].[/g] = [groups].[/id]"]),
        projection: texts(&["[orders].[/id]", "[groups].[/name]"]),
        ..ViewSettings::default()
    }
}

fn join_config(view: ViewSettings) -> BrokerConfig {
    BrokerConfig { views: vec![view], ..sow_config([sow_topic("orders"), sow_topic("groups")]) }
}

fn start(mut pair: Pair) -> Pair {
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.client(3, "other");
    pair
}

/// Orders of one group, in one write.
fn put_orders(pair: &mut Pair, count: u64) {
    let mut frames = Vec::new();
    for number in 1..=count {
        let data = format!(r#"{{"id":{number},"g":"g","v":1}}"#);
        Command::Publish(publish(number, "orders", &data)).encode(&mut frames);
    }
    pair.send_bytes(1, &frames);
    for _ in 0..2_000 {
        pair.one_turn();
        if waiting(pair) == (0, 0.0) {
            return;
        }
    }
    panic!("the view does not get all changes");
}

/// The number of changes that the view does not have, and the age of the oldest one in seconds.
fn waiting(pair: &mut Pair) -> (u64, f64) {
    pair.send(3, &Command::Inspect { command: 4, subject: Subject::Topics { after: "" } });
    pair.one_turn();
    let said = pair.take(3);
    let Some(Said::Stats { json, .. }) = said.last() else { panic!("{said:?}") };
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let view = json["topics"].as_array().unwrap().iter().find(|topic| topic["topic"] == "joined");
    let figures = &view.unwrap()["last_values"];
    (figures["waiting_changes"].as_u64().unwrap(), figures["behind_s"].as_f64().unwrap())
}

#[test]
fn a_change_with_many_matches_is_worked_off_between_other_work() {
    // Each reading of the clock takes a tenth of a portion.
    let mut pair = start(with_stopwatch(join_config(joined())));
    put_orders(&mut pair, 2_000);
    pair.subscribe(2, &subscribe(7, "joined"));
    pair.turn();
    pair.take(2);
    pair.publish(1, 2_001, "groups", r#"{"id":"g","name":"first"}"#);
    pair.publish(1, 2_002, "orders", r#"{"id":7,"g":"g"}"#);
    let (mut rows, mut turns, mut was_behind) = (Vec::new(), 0, false);
    while rows.len() < 2_001 {
        pair.now_ns += 2_000_000;
        let (changes, seconds) = waiting(&mut pair);
        was_behind |= changes == 2 && seconds > 0.001;
        let delivered = pair.take_rows(2);
        assert!(delivered.len() <= 700, "{}", delivered.len());
        rows.extend(delivered);
        turns += 1;
        assert!(turns < 1_000);
    }
    assert!(was_behind && turns > 5, "{turns}");
    assert!(rows.iter().all(|row| row.ends_with(r#""name":"first"}"#)), "{:?}", rows.first());
    assert_eq!(rows.last().unwrap(), r#"+{"id":7,"name":"first"}"#);
    assert_eq!(waiting(&mut pair), (0, 0.0));
}

#[test]
fn with_conflation_no_record_shows_a_part_of_a_change() {
    let view = ViewSettings {
        projection: texts(&["[groups].[/name] AS /name", "COUNT(1) AS /n"]),
        grouping: texts(&["[groups].[/name]"]),
        inline_conflation: true,
        ..joined()
    };
    let mut pair = start(with_stopwatch(join_config(view)));
    put_orders(&mut pair, 2_000);
    pair.subscribe(2, &sow(7, "joined"));
    pair.turn();
    pair.take(2);
    for (sequence, name) in [(2_001, "first"), (2_002, "second"), (2_003, "third")] {
        let data = format!(r#"{{"id":"g","name":"{name}"}}"#);
        pair.publish(1, sequence, "groups", &data);
    }
    let mut rows = Vec::new();
    for _ in 0..500 {
        pair.one_turn();
        rows.extend(pair.take_rows(2));
    }
    assert_eq!(rows.last().unwrap(), r#"+{"name":"third","n":2000}"#);
    let counts: Vec<_> = rows.iter().filter(|row| row.starts_with('+')).collect();
    assert!(counts.iter().all(|row| row.ends_with(r#""n":2000}"#)), "{rows:?}");
}

#[test]
fn views_that_join_no_topic_or_too_many_are_refused() {
    let refused = |config: BrokerConfig| ConfigError::from(config.check().unwrap_err()).to_string();
    let many: Vec<String> = (0..20).map(|n| format!("[orders].[/a] = [v{n}].[/id]")).collect();
    let mut config = join_config(ViewSettings { join: many, ..joined() });
    config.views.extend((0..20).map(|n| ViewSettings {
        name: format!("v{n}"),
        underlying_topic: "groups".into(),
        join: Vec::new(),
        projection: texts(&["/id"]),
        grouping: texts(&["/id"]),
        ..joined()
    }));
    let reason = refused(config);
    assert!(reason.contains("views[0].join[15]") && reason.contains("more than 16 topics"), "{reason}");
    let reason = refused(join_config(ViewSettings { join: Vec::new(), ..joined() }));
    assert!(reason.contains("views[0].underlying_topic"), "{reason}");
}
