//! Last-value topics with a pattern (docs/last-values.md section 12).

use std::path::Path;
use std::time::Duration;

use quire_broker::{
    BrokerConfig, Event, Limits, QueueSettings, RecordedTopic, SowTopicSettings, TransportConfig,
};
use quire_command::*;
use quire_journal::{Disk, Position, Which};
use quire_types::Verdict;
use quire_wire::Encode;

use crate::last_value_pair::*;
use crate::last_value_restarts::{crash, restart};
use crate::pair::*;
use crate::queue_pair::*;

fn patterned(name: &str, pattern: &str) -> SowTopicSettings {
    SowTopicSettings { pattern: Some(pattern.into()), ..sow_topic(name) }
}

fn orders() -> SowTopicSettings {
    patterned("all-orders", "orders/.*")
}

fn refusal(sequence: u64, code: Code) -> Said {
    Said::Failed { sequence, code, scope: FailureScope::One }
}

fn publish_some(pair: &mut Pair) {
    for (sequence, topic, data) in [
        (1, "orders/eu", r#"{"id":1,"n":1}"#),
        (2, "orders/us", r#"{"id":1,"n":2}"#),
        (3, "orders/eu", r#"{"id":2,"n":3}"#),
        (4, "orders/eu", r#"{"id":1,"n":4}"#),
    ] {
        pair.publish(1, sequence, topic, data);
    }
    pair.turn();
}

const EU: [&str; 2] = [r#"{"id":1,"n":4}"#, r#"{"id":2,"n":3}"#];
const US: [&str; 1] = [r#"{"id":1,"n":2}"#];

#[test]
fn each_topic_that_matches_keeps_its_own_records() {
    let mut pair = with_topics([orders()]);
    publish_some(&mut pair);
    assert_eq!(pair.records(2, query(5, "orders/eu")), EU);
    assert_eq!(pair.records(2, query(5, "orders/us")), US);
    assert_eq!(pair.records(2, query(5, "^orders/")).len(), 3);
    // A topic without records, and a pattern without topics.
    assert_eq!(pair.records(2, query(5, "orders/none")), [""; 0]);
    assert_eq!(pair.records(2, query(5, "^nothing")), [""; 0]);
    // The whole name must match. The name of the entry does not name a topic.
    for topic in ["all-orders", "orders", "my/orders/eu"] {
        pair.send(2, &Command::Query(query(5, topic)));
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::NotLastValue, 5, 5)], "{topic}");
    }
}

#[test]
fn the_key_domain_is_the_name_of_the_topic_unless_it_is_configured() {
    let keys = |topic| {
        let mut pair = with_topics([topic]);
        publish_some(&mut pair);
        pair.send(2, &Command::Query(Query { filter: Some("/id = 1"), ..query(5, "^orders/") }));
        pair.turn();
        let keys = pair.take(2).into_iter().filter_map(|said| match said {
            Said::Row(row) => Some((row.topic, row.key)),
            _ => None,
        });
        keys.collect::<Vec<_>>()
    };
    let own = keys(orders());
    assert_eq!([&own[0].0, &own[1].0], ["orders/eu", "orders/us"]);
    assert_ne!(own[0].1, own[1].1);
    let shared = keys(SowTopicSettings { key_domain: Some("ids".into()), ..orders() });
    assert_eq!(shared[0].1, shared[1].1);
}

#[test]
fn a_name_wins_over_a_pattern_and_the_first_pattern_over_a_later_one() {
    let named = |number: u32, topic: SowTopicSettings| SowTopicSettings {
        enrichment: vec![format!("{number} AS /by")],
        ..topic
    };
    let mut pair = Pair::with(BrokerConfig {
        queues: vec![QueueSettings { underlying_topic: Some("orders/tasks".into()), ..queue("orders/jobs") }],
        ..sow_config([
            named(1, patterned("some", "orders/.u")),
            named(2, patterned("all", ".*")),
            named(3, sow_topic("orders/eu")),
        ])
    });
    pair.client(1, "publisher");
    pair.client(2, "reader");
    let topics = ["orders/eu", "orders/au", "x", "all", "orders/jobs"];
    for (sequence, topic) in topics.iter().enumerate() {
        pair.publish(1, sequence as u64 + 1, topic, r#"{"id":1}"#);
    }
    for (topic, number) in [("orders/eu", 3), ("orders/au", 1), ("x", 2), ("orders/tasks", 2)] {
        assert_eq!(pair.records(2, query(5, topic)), [format!(r#"{{"id":1,"by":{number}}}"#)], "{topic}");
    }
    pair.send(2, &Command::Query(query(5, "all")));
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::NotLastValue, 5, 5)]);
    // A queue that is made later would take the name of a topic of the pattern.
    let settings = r#"{"name":"y","message_type":"json","underlying_topic":"x"}"#;
    pair.send(1, &Command::DefineQueue { command: 7, action: DefineQueue::Create { settings } });
    pair.turn();
    assert!(pair.take(1).contains(&refused(Code::BadOption, 7, 0)));
}

#[test]
fn a_subscription_from_before_the_first_message_follows_the_new_topics() {
    let mut pair = with_topics([orders()]);
    for (number, topic) in [(3, "orders/eu"), (4, "^orders"), (5, "orders/us")] {
        pair.subscribe(2, &Subscribe { filter: Some("/n < 4"), ..sow(number, topic) });
    }
    pair.turn();
    pair.take(2);
    publish_some(&mut pair);
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 5, "orders/us") });
    let said = pair.take(2);
    let of = |number: u32| {
        let rows = said.iter().filter(|said| matches!(said, Said::Row(row) if row.subscription == number));
        rows.cloned().filter_map(short).collect::<Vec<_>>()
    };
    let left = r#"-Match {"id":1,"n":4}"#;
    assert_eq!(of(3), [r#"+{"id":1,"n":1}"#, r#"+{"id":2,"n":3}"#, left]);
    assert_eq!(of(5), [r#"+{"id":1,"n":2}"#, r#"-Deleted {"id":1,"n":2}"#]);
    let mut both = [of(3), of(5)].concat();
    let mut all = of(4);
    both.sort();
    all.sort();
    assert_eq!(all, both);
}

/// The messages of one subscription.
fn rows_of(said: &[Said], number: u32) -> Vec<String> {
    let rows = said.iter().filter(|said| matches!(said, Said::Row(row) if row.subscription == number));
    rows.cloned().filter_map(short).collect()
}

fn page(number: u32, topic: &str) -> Subscribe<'_> {
    Subscribe { order_by: Some("/n"), skip_n: Some(0), top_n: Some(1), ..sow(number, topic) }
}

#[test]
fn delta_subscriptions_from_before_the_first_message_get_differences() {
    let mut pair = with_topics([orders()]);
    pair.subscribe(2, &sow_delta(3, "orders/eu"));
    pair.subscribe(2, &Subscribe { select: Some("-/,+/n"), ..delta(4, "^orders") });
    pair.turn();
    pair.take(2);
    for (sequence, topic) in [(1, "orders/eu"), (2, "orders/eu"), (3, "orders/us"), (4, "orders/us")] {
        pair.publish(1, sequence, topic, &format!(r#"{{"id":1,"n":{sequence},"m":{sequence}}}"#));
    }
    pair.turn();
    let said = pair.take(2);
    assert_eq!(rows_of(&said, 3), [r#"+{"id":1,"n":1,"m":1}"#, r#"~{"id":1,"n":2,"m":2}"#]);
    // The differences have the fields of the key.
    let selected = [r#"+{"n":1}"#, r#"~{"id":1,"n":2}"#, r#"+{"n":3}"#, r#"~{"id":1,"n":4}"#];
    assert_eq!(rows_of(&said, 4), selected);
    // The end of the subscriptions is noted for the new topics, too.
    for subscription in [3, 4] {
        let acks = Acks::PROCESSED;
        pair.send(2, &Command::Unsubscribe(Unsubscribe { command: 9, acks, subscription, begun: None }));
    }
    pair.publish(1, 5, "orders/eu", r#"{"id":1,"n":5}"#);
    pair.turn();
    assert_eq!(rows_of(&pair.take(2), 3), [""; 0]);
}

#[test]
fn conflated_subscriptions_from_before_the_first_message_get_changes_by_record() {
    let mut pair = with_topics([orders()]);
    for (number, topic) in [(3, "orders/eu"), (4, "^orders")] {
        let conflation_ns = Some(1_000_000_000);
        pair.subscribe(2, &Subscribe { conflation_ns, filter: Some("/n < 4"), ..sow(number, topic) });
    }
    pair.turn();
    pair.take(2);
    publish_some(&mut pair);
    pair.pass(Duration::from_secs(1));
    let said = pair.take(2);
    // The first record came and left within one interval.
    assert_eq!(rows_of(&said, 3), [r#"+{"id":2,"n":3}"#]);
    assert_eq!(rows_of(&said, 4), [r#"+{"id":1,"n":2}"#, r#"+{"id":2,"n":3}"#]);
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 5, "^orders") });
    pair.pass(Duration::from_secs(1));
    let said = pair.take(2);
    assert_eq!(rows_of(&said, 3), [r#"-Deleted {"id":2,"n":3}"#]);
    assert_eq!(rows_of(&said, 4).len(), 2);
}

#[test]
fn a_page_of_a_topic_without_records_gets_its_first_ones_and_keeps_the_topic() {
    let mut pair = limited(2);
    pair.subscribe(2, &page(3, "orders/eu"));
    pair.turn();
    assert!(!pair.take(2).contains(&refused(Code::LimitExceeded, 3, 3)));
    pair.publish(1, 1, "orders/eu", r#"{"id":1,"n":2}"#);
    pair.publish(1, 2, "orders/eu", r#"{"id":2,"n":1}"#);
    pair.turn();
    let first = r#"+{"id":1,"n":2}"#;
    assert_eq!(pair.take_rows(2), [first, r#"-Match {"id":1,"n":2}"#, r#"+{"id":2,"n":1}"#]);
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 3, "orders/eu") });
    pair.take(2);
    // The topic with the page has no records, and keeps its place.
    pair.publish(1, 4, "orders/us", r#"{"id":1}"#);
    pair.publish(1, 5, "orders/asia", r#"{"id":1}"#);
    pair.turn();
    assert!(pair.take(1).contains(&refusal(5, Code::LimitExceeded)));
    pair.subscribe(2, &page(4, "orders/asia"));
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::LimitExceeded, 4, 4)]);
    pair.publish(1, 6, "orders/eu", r#"{"id":3,"n":3}"#);
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":3,"n":3}"#]);
    // Without the page and without records, the topic leaves its place to another one.
    let acks = Acks::PROCESSED;
    pair.send(2, &Command::Unsubscribe(Unsubscribe { command: 9, acks, subscription: 3, begun: None }));
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 7, "orders/eu") });
    pair.publish(1, 8, "orders/asia", r#"{"id":1}"#);
    pair.turn();
    assert_eq!(pair.records(2, query(5, "orders/asia")).len(), 1);
}

#[test]
fn an_earlier_state_of_a_topic_of_a_pattern_is_refused() {
    let mut pair = with_topics([orders()]);
    publish_some(&mut pair);
    for topic in ["orders/eu", "orders/none", "^orders"] {
        let options = SubscribeOptions::SOW;
        pair.subscribe(2, &Subscribe { bookmark: Some("0"), options, ..subscribe(3, topic) });
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::BadOption, 3, 3)], "{topic}");
    }
}

fn limited(max_pattern_topics: u32) -> Pair {
    let limits = Limits { max_pattern_topics, ..Limits::default() };
    let mut pair = Pair::with(BrokerConfig { limits, ..sow_config([orders()]) });
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair
}

/// A connection may end at each of the answers to commands that turn a page.
#[test]
fn a_connection_that_ends_while_it_turns_a_page_leaves_no_page() {
    for filling in 0..40 {
        let limits = Limits { max_pattern_topics: 1, ..Limits::default() };
        let mut config = BrokerConfig { limits, ..sow_config([orders()]) };
        config.transports = vec![TransportConfig { max_client_backlog: 1024, ..TransportConfig::default() }];
        let mut pair = Pair::with(config);
        pair.client(1, "publisher");
        pair.client(2, "reader");
        let page = Subscribe { skip_n: Some(0), top_n: Some(1), ..sow(3, "orders/eu") };
        pair.subscribe(2, &page);
        pair.turn();
        pair.take(2);
        pair.set_writable(2, false);
        let mut input = Vec::new();
        for number in 0..filling {
            Command::Subscribe(subscribe(100 + number, "other")).encode(&mut input);
        }
        let options = page.options.and(SubscribeOptions::REPLACE);
        for skip_n in 1..60 {
            let turned = Subscribe { options, skip_n: Some(skip_n), ..page.clone() };
            Command::Subscribe(turned).encode(&mut input);
        }
        pair.send_bytes(2, &input);
        pair.turn();
        pair.disconnect(2);
        pair.publish(1, 1, "orders/us", r#"{"id":1}"#);
        pair.turn();
        assert_eq!(pair.take(1), [Said::Persisted(1)], "after {filling} other commands");
    }
}

#[test]
fn a_topic_above_the_limit_is_refused_until_another_one_has_no_records() {
    let mut pair = limited(2);
    publish_some(&mut pair);
    // This subscription and this session know both topics.
    pair.subscribe(2, &sow(3, "^orders"));
    pair.publish(1, 5, "orders/asia", r#"{"id":1}"#);
    pair.turn();
    assert!(pair.take(1).contains(&refusal(5, Code::LimitExceeded)));
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 6, "orders/us") });
    pair.take(2);
    pair.publish(1, 7, "orders/asia", r#"{"id":1,"n":7}"#);
    pair.publish(1, 8, "orders/asia", r#"{"id":1,"n":8}"#);
    // The topic that has no table any more is a new one again.
    pair.publish(1, 9, "orders/us", r#"{"id":1}"#);
    pair.turn();
    assert!(pair.take(1).contains(&refusal(9, Code::LimitExceeded)));
    assert_eq!(pair.records(1, query(5, "orders/asia")), [r#"{"id":1,"n":8}"#]);
    assert_eq!(pair.records(1, query(5, "orders/us")), [""; 0]);
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 10, "orders/asia") });
    let rows = [r#"+{"id":1,"n":7}"#, r#"+{"id":1,"n":8}"#, r#"-Deleted {"id":1,"n":8}"#];
    assert_eq!(pair.take_rows(2), rows);
    pair.publish(1, 11, "orders/us", r#"{"id":5}"#);
    pair.turn();
    assert_eq!(pair.records(1, query(5, "orders/us")), [r#"{"id":5}"#]);
    assert_eq!(pair.records(1, query(5, "orders/eu")), EU);
}

#[test]
fn a_delete_of_a_topic_without_records_removes_nothing() {
    let mut pair = with_topics([orders()]);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 1, "orders/eu") }), 0);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(8, 2, "^orders") }), 0);
    publish_some(&mut pair);
    assert_eq!(pair.broker.stats().duplicate_count, 2, "the deletes used their sequences");
    pair.publish(1, 5, "orders/eu", r#"{"id":1,"n":4}"#);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("/n >= 3"), ..delete(9, 6, "^orders") }), 2);
    assert_eq!(pair.records(2, query(5, "^")), [""; 0]);
}

#[test]
fn a_topic_that_the_log_does_not_record_as_required_is_refused() {
    let mut config = sow_config([orders()]);
    let never = RecordedTopic { recorded: false, ..RecordedTopic::new("orders/never", "json") };
    let part = RecordedTopic { filter: Some("/n = 1".into()), ..RecordedTopic::new("orders/part", "json") };
    let fix = RecordedTopic::new("orders/fix", "fix");
    config.transaction_log.topics = vec![never, part, fix, RecordedTopic::new("orders/eu", "json")];
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    for (sequence, topic) in [(1, "orders/part"), (2, "orders/fix"), (3, "orders/never")] {
        pair.publish(1, sequence, topic, r#"{"id":1}"#);
        pair.turn();
        assert!(pair.take(1).contains(&refusal(sequence, Code::BadTopic)), "{topic}");
    }
    assert_eq!(pair.records(1, query(5, "^")), [""; 0]);
}

#[test]
fn a_dead_letter_becomes_a_record_of_a_topic_of_the_pattern() {
    let jobs = QueueSettings { dead_letter_topic: Some("dead/jobs".into()), ..queue("jobs") };
    let dead = SowTopicSettings { key: vec!["/message/id".into()], ..patterned("dead", "dead/.*") };
    let mut pair = Pair::with(BrokerConfig { queues: vec![jobs], ..sow_config([dead]) });
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.publish(1, 1, "jobs", r#"{"id":1}"#);
    pair.subscribe(2, &consume(3, "jobs", 10));
    pair.turn();
    let taken = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Expire, &taken);
    pair.turn();
    assert_eq!(pair.records(2, query(5, "dead/jobs")).len(), 1);
}

/// The figures of a topic in the list of topics.
fn figures(pair: &mut Pair, topic: &str) -> serde_json::Value {
    pair.take(2);
    pair.send(2, &Command::Inspect { command: 4, subject: Subject::Topics { after: "" } });
    pair.turn();
    let said = pair.take(2);
    let Some(Said::Stats { json, .. }) = said.last() else { panic!("{said:?}") };
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let topics = json["topics"].as_array().unwrap();
    let found: Vec<_> = topics.iter().filter(|known| known["topic"] == topic).collect();
    assert_eq!(found.len(), 1, "{json}");
    found[0]["last_values"].clone()
}

fn snapshot_position(pair: &mut Pair) -> u64 {
    figures(pair, "all-orders")["snapshot_position"].as_u64().unwrap()
}

#[test]
fn the_figures_of_the_entry_are_those_of_its_topics_together() {
    let mut pair = with_topics([orders()]);
    publish_some(&mut pair);
    // A refused message makes no topic with records.
    pair.publish(1, 5, "orders/none", "{");
    pair.turn();
    assert!(pair.take(1).contains(&refusal(5, Code::BadMessage)));
    let all = figures(&mut pair, "all-orders");
    assert_eq!((&all["records"], &all["topics"]), (&3.into(), &2.into()));
    assert_eq!((&all["pattern"], &all["key"][0]), (&"orders/.*".into(), &"/id".into()));
    let eu = figures(&mut pair, "orders/eu");
    assert_eq!((&eu["records"], &eu["topics"], &eu["pattern"]), (&2.into(), &().into(), &().into()));
    assert!(all["bytes"].as_u64() > eu["bytes"].as_u64());
}

#[test]
fn a_start_reads_the_topics_from_the_log_or_from_the_snapshot_and_the_log_after_it() {
    let mut pair = with_topics([orders()]);
    publish_some(&mut pair);
    assert_eq!(pair.broker.needed_position(), Some(Position::new(1)));
    let mut pair = crash(pair, sow_config([orders()]));
    assert_eq!(
        (pair.records(2, query(5, "orders/eu")), snapshot_position(&mut pair)),
        (EU.map(str::to_owned).to_vec(), 0)
    );
    let mut pair = restart(pair, sow_config([orders()]));
    assert_eq!((snapshot_position(&mut pair), pair.broker.needed_position()), (4, Some(Position::new(5))));
    assert_eq!(pair.broker.journal().sidecars().needs(), Some(Position::new(5)));
    assert_eq!(pair.records(2, query(5, "^orders")).len(), 3);
    pair.publish(1, 5, "orders/us", r#"{"id":1,"n":5}"#);
    pair.publish(1, 6, "orders/new", r#"{"id":1,"n":6}"#);
    pair.delete(1, SowDelete { filter: Some("/id = 2"), ..delete(7, 7, "orders/eu") });
    let mut pair = crash(pair, sow_config([orders()]));
    for (topic, record) in [("orders/us", 5), ("orders/new", 6), ("orders/eu", 4)] {
        assert_eq!(pair.records(2, query(5, topic)), [format!(r#"{{"id":1,"n":{record}}}"#)], "{topic}");
    }
    // One file has all topics.
    let files = pair.broker.journal().sidecars().files().unwrap();
    assert_eq!(files.iter().filter(|file| file.starts_with("table-")).count(), 1);
}

#[test]
fn topics_without_records_are_forgotten_at_a_start() {
    let mut pair = limited(2);
    publish_some(&mut pair);
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 5, "orders/us") });
    let mut pair = restart(pair, sow_config([orders()]));
    assert_eq!(figures(&mut pair, "all-orders")["topics"], 1);
    assert_eq!(pair.records(2, query(5, "orders/us")), [""; 0]);
}

/// Publishes to two topics until the log has several full files. The topics have two records each.
fn fill_files(pair: &mut Pair, first: u64) {
    let filler = "x".repeat(10_000);
    for sequence in first..first + 200 {
        let data = format!(r#"{{"id":{},"x":"{filler}","n":{sequence}}}"#, sequence / 2 % 2);
        pair.publish(1, sequence, ["orders/eu", "orders/us"][sequence as usize % 2], &data);
        pair.turn();
    }
}

#[test]
fn a_snapshot_of_all_topics_is_written_while_messages_arrive() {
    let mut pair = with_topics([orders()]);
    fill_files(&mut pair, 1);
    // Each portion of the snapshot is followed by a publish to both topics, and to a new one.
    let mut at_ns = 0;
    pair.broker.set_stopwatch(Box::new(move || {
        at_ns += 1_000_000;
        quire_types::time::Instant(at_ns)
    }));
    pair.now_ns += 11_000_000_000;
    for sequence in 201..=230 {
        let topic = ["orders/eu", "orders/us", "orders/new"][sequence as usize % 3];
        pair.publish(1, sequence, topic, &format!(r#"{{"id":{sequence}}}"#));
        pair.one_turn();
        while pair.write() {}
    }
    pair.turn();
    let position = snapshot_position(&mut pair);
    assert!((200..=230).contains(&position), "{position}");
    let before = pair.records(2, query(5, "^orders"));
    assert_eq!(before.len(), 34);
    let mut pair = crash(pair, sow_config([orders()]));
    assert_eq!(snapshot_position(&mut pair), position);
    assert_eq!(pair.records(2, query(5, "^orders")), before);
}

#[test]
fn records_of_removed_files_stay_in_the_snapshot() {
    let mut pair = with_topics([orders()]);
    pair.publish(1, 1, "orders/first", r#"{"id":"first"}"#);
    fill_files(&mut pair, 2);
    let pair = restart(pair, sow_config([orders()]));
    let needed = pair.broker.needed_position();
    assert!(!pair.broker.journal().maintenance().remove(Which::All, needed).unwrap().is_empty());
    let mut pair = crash(pair, sow_config([orders()]));
    assert_eq!(pair.records(2, query(5, "orders/first")), [r#"{"id":"first"}"#]);
    assert_eq!(pair.records(2, query(5, "^")).len(), 5);
    assert!(!pair.log.iter().any(|event| matches!(event, Event::RecordsMissing { .. })));
}

#[test]
fn a_snapshot_of_other_topics_or_with_damage_is_not_used() {
    let changes: [fn() -> BrokerConfig; 4] = [
        || sow_config([patterned("all-orders", "(orders|x)/.*")]),
        // The name is not a topic of the pattern any more.
        || sow_config([orders(), sow_topic("orders/eu")]),
        || sow_config([SowTopicSettings { key: vec!["/n".into()], ..orders() }]),
        || sow_config([orders()]),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut pair = with_topics([orders()]);
        publish_some(&mut pair);
        let pair = restart(pair, sow_config([orders()]));
        if number == 3 {
            let path = Path::new("journal").join(quire_table::snapshot_file("all-orders"));
            let mut bytes = pair.disk.read(&path).unwrap();
            let at = bytes.len() - 20;
            bytes[at] ^= 1;
            pair.disk.create(&path, bytes.len() as u64).unwrap().write_at(&bytes, 0).unwrap();
        }
        let mut pair = crash(pair, change());
        let is_warning =
            |event: &Event| matches!(event, Event::SnapshotNotUsed { topic, .. } if topic == "all-orders");
        assert!(pair.log.iter().any(is_warning), "{number}");
        assert_eq!(snapshot_position(&mut pair), 0);
        assert_eq!(pair.records(2, query(5, "orders/eu")), EU, "{number}");
        assert_eq!(pair.records(2, query(5, "orders/us")), US, "{number}");
    }
}

#[test]
fn a_topic_that_came_back_while_a_snapshot_was_written_keeps_its_new_records() {
    let mut pair = limited(4);
    // Enough records for a snapshot of the first topic that takes many turns.
    for sequence in 1..=20_000 {
        pair.publish(1, sequence, "orders/us", &format!(r#"{{"id":{}}}"#, sequence % 10_000));
    }
    for (sequence, topic) in [(20_001, "orders/a"), (20_002, "orders/b"), (20_003, "orders/eu")] {
        pair.publish(1, sequence, topic, r#"{"id":1}"#);
    }
    pair.turn();
    let mut at_ns = 0;
    pair.broker.set_stopwatch(Box::new(move || {
        at_ns += 400_000;
        quire_types::time::Instant(at_ns)
    }));
    pair.now_ns += 11_000_000_000;
    pair.one_turn();
    let filter = Some("1 = 1");
    pair.send(1, &Command::SowDelete(SowDelete { filter, ..delete(7, 20_004, "^orders/(a|b|eu)") }));
    // The fourth topic is removed, and returns in the place of the third one.
    pair.publish(1, 20_005, "orders/new", r#"{"id":2}"#);
    pair.publish(1, 20_006, "orders/eu", r#"{"id":3}"#);
    for _ in 0..6 {
        pair.one_turn();
    }
    pair.turn();
    assert_eq!(snapshot_position(&mut pair), 20_003);
    assert!(!pair.take(1).iter().any(|said| matches!(said, Said::Failed { .. })));
    let mut pair = crash(pair, sow_config([orders()]));
    assert_eq!(snapshot_position(&mut pair), 20_003);
    assert_eq!(pair.records(2, query(5, "orders/new")), [r#"{"id":2}"#]);
    assert_eq!(pair.records(2, query(5, "orders/eu")), [r#"{"id":3}"#]);
    assert_eq!(pair.records(2, query(5, "orders/us")).len(), 10_000);
}

#[test]
fn a_transient_pattern_is_empty_or_read_from_the_log_and_may_be_unrecorded() {
    let in_memory = || SowTopicSettings { pattern: Some("scratch|memory/.*".into()), ..transient("memory") };
    let read = || SowTopicSettings {
        pattern: Some("read/.*".into()),
        recovery_point: Some("epoch".into()),
        ..transient("read")
    };
    let mut pair = with_topics([in_memory(), read()]);
    for (sequence, topic) in [(1, "scratch"), (2, "memory/1"), (3, "read/1")] {
        pair.publish(1, sequence, topic, r#"{"id":1}"#);
    }
    assert_eq!(pair.records(2, query(5, "^")).len(), 3);
    assert_eq!(pair.broker.needed_position(), None);
    let mut pair = restart(pair, sow_config([in_memory(), read()]));
    assert_eq!(pair.records(2, query(5, "^")).len(), 1);
    assert_eq!(pair.records(2, query(5, "read/1")), [r#"{"id":1}"#]);
}

/// The format is described in docs/journal-format.md, `table-*.state`, content version 2.
#[test]
fn the_snapshot_file_is_the_golden_one() {
    let mut pair = with_topics([orders()]);
    publish_some(&mut pair);
    let pair = restart(pair, sow_config([orders()]));
    let path = Path::new("journal").join(quire_table::snapshot_file("all-orders"));
    let written = pair.disk.read(&path).unwrap();
    let golden = include_bytes!("../../../../tests/golden/table-v2.state");
    assert!(written == golden, "another format needs another version");
}

#[test]
fn keys_select_the_records_of_a_topic_that_has_none_yet() {
    let settings = SowTopicSettings { key: Vec::new(), ..orders() };
    let mut pair = with_topics([settings]);
    pair.subscribe(2, &Subscribe { keys: Keys::from_bytes(b"\x01a"), ..sow(3, "orders/eu") });
    pair.take(2);
    for (sequence, key) in [(1, b"b"), (2, b"a")] {
        let publish = Publish { key, ..publish(sequence, "orders/eu", "{}") };
        pair.send(1, &Command::Publish(publish));
    }
    pair.turn();
    let keys = pair.take(2).into_iter().filter_map(|said| match said {
        Said::Row(row) => Some(row.key),
        _ => None,
    });
    assert_eq!(keys.collect::<Vec<_>>(), ["a"]);
}
