//! A command with a pattern shows the same messages, records and fields of a topic as a command
//! with the name of the topic. The entries of the other topics have no effect.

use quire_broker::{Access, EntrySettings, Right, SowTopicSettings};
use quire_command::*;

use super::entitling::*;
use super::last_value_pair::*;
use super::pair::*;
use super::queue_pair::*;

const READING: [Right; 3] = [Right::Read, Right::Replay, Right::Query];

fn limited(topic: &str, filter: Option<&str>, select: Option<&str>) -> EntrySettings {
    let (filter, select) = (filter.map(Into::into), select.map(Into::into));
    EntrySettings { filter, select, ..entry(&READING, topic) }
}

/// Topics with different filters and select lists, of which some keep last values, and two queues.
fn with_different_entries() -> Pair {
    let mut config = guarded(vec![
        EntrySettings { topic: vec!["t/closed".into()], deny: READING.to_vec(), ..EntrySettings::default() },
        limited("t/a", Some("/desk = 'FX'"), Some("-/s")),
        limited("^t/b", None, Some("-/t")),
        limited("t/c", Some("/desk = 'FX'"), None),
        limited("^t/", None, None),
        limited("q/a", None, Some("-/s")),
        limited("q/b", Some("/desk = 'FX'"), Some("-/t")),
    ]);
    let container = SowTopicSettings { pattern: Some("t/.*".into()), ..sow_topic("all") };
    config.sow_topics.push(container);
    config.queues.extend([queue("q/a"), queue("q/b")]);
    let mut pair = Pair::with(config);
    pair.connect_as(1, Access::Administrator);
    pair.log_on(1, "administrator");
    log_on_as(&mut pair, 2, "anna", "");
    pair
}

const TOPICS: [&str; 5] = ["t/a", "t/b", "t/b/new", "t/c", "t/d"];

/// Changes of records: some leave the filters of entries and of clients, some have no difference in
/// the visible fields, one has a key twice.
fn publish_all(pair: &mut Pair, first: u64) {
    let mut sequence = first;
    for topic in TOPICS.into_iter().chain(["t/closed"]) {
        for (id, desk, s, t) in
            [("x", "FX", 1, 1), ("y", "EQ", 1, 2), ("x", "FX", 2, 1), ("x", "FX", 2, 2), ("x", "EQ", 1, 1)]
        {
            let data = format!(r#"{{"id":"{id}","desk":"{desk}","s":{s},"t":{t}}}"#);
            pair.publish(1, sequence, topic, &data);
            sequence += 1;
        }
        pair.publish(1, sequence, topic, r#"{"id":"z","desk":"EQ","s":1,"t":1,"desk":"FX"}"#);
        pair.publish(1, sequence + 1, topic, r#"{"id":"z","desk":"FX","s":1,"t":1}"#);
        sequence += 2;
    }
    pair.turn();
}

/// The messages that the client got about a topic, without the number of the subscription.
fn about(said: &[Said], number: u32, topic: &str) -> Vec<String> {
    let shown = said.iter().filter_map(|said| match said {
        Said::Message { subscription, topic: of, data, .. } if *subscription == number && of == topic => {
            Some(data.clone())
        }
        Said::Row(row) if row.subscription == number && row.topic == topic => {
            Some(format!("{:?} {} {}", row.kind, row.key, row.data))
        }
        _ => None,
    });
    shown.collect()
}

/// Begins a command with a pattern, and the same command with each name. Publishes, and compares.
fn check(name: &str, publishes_before: bool, of: impl Fn(u32, &'static str) -> Subscribe<'static>) {
    let mut pair = with_different_entries();
    if publishes_before {
        publish_all(&mut pair, 1);
    }
    pair.subscribe(2, &of(1, "^t/"));
    for (number, topic) in (2..).zip(TOPICS) {
        pair.subscribe(2, &of(number, topic));
    }
    pair.turn();
    publish_all(&mut pair, 101);
    pair.pass(std::time::Duration::from_secs(1));
    let said = pair.take(2);
    let mut shown = 0;
    for (number, topic) in (2..).zip(TOPICS) {
        let by_name = about(&said, number, topic);
        assert_eq!(about(&said, 1, topic), by_name, "{name}: {topic}");
        shown += by_name.len();
        let (a_text, b_text) = (r#""s":"#, r#""t":"#);
        let text = by_name.concat();
        assert!(!(topic == "t/a" && text.contains(a_text)), "{name}: {text}");
        assert!(!(topic.starts_with("t/b") && text.contains(b_text)), "{name}: {text}");
    }
    assert!(shown >= 2, "{name}: {shown}");
    assert_eq!(about(&said, 1, "t/closed"), Vec::<String>::new(), "{name}");
}

const FILTERS: [Option<&str>; 4] = [None, Some("/s = 1"), Some("/s IS NULL OR /t = 1"), Some("/t IS NULL")];

#[test]
fn live_messages_replays_and_records_are_those_of_each_topic() {
    for filter in FILTERS {
        for select in [None, Some("-/,+/id,+/s,+/t")] {
            let with = |subscribe: Subscribe<'static>| Subscribe { filter, select, ..subscribe };
            let conflated = |subscribe: Subscribe<'static>| Subscribe {
                conflation_ns: Some(1_000_000),
                options: subscribe.options.and(SubscribeOptions::OOF),
                ..with(subscribe)
            };
            let oof = |subscribe: Subscribe<'static>| Subscribe {
                options: subscribe.options.and(SubscribeOptions::OOF),
                ..with(subscribe)
            };
            for is_before in [false, true] {
                check("live", is_before, |number, topic| with(subscribe(number, topic)));
                check("replay", is_before, |number, topic| with(replay(number, topic, "0")));
                check("records", is_before, |number, topic| oof(sow(number, topic)));
                check("delta", is_before, |number, topic| with(delta(number, topic)));
                check("records and delta", is_before, |number, topic| oof(sow_delta(number, topic)));
                check("conflated", is_before, |number, topic| conflated(sow(number, topic)));
            }
        }
    }
}

#[test]
fn a_costly_filter_sees_the_fields_of_each_topic() {
    let patterns: Vec<_> = (0..60).map(|n| format!("/id LIKE 'a{n}b$'")).collect();
    let filter = format!("/s IS NULL OR {}", patterns.join(" OR "));
    let mut pair = with_different_entries();
    pair.subscribe(2, &Subscribe { filter: Some(&filter), ..subscribe(1, "^t/") });
    pair.turn();
    pair.take(2);
    let id = "a".repeat(50_000);
    for (sequence, topic) in (1..).zip(["t/a", "t/b", "t/d", "t/a"]) {
        pair.publish(1, sequence, topic, &format!(r#"{{"id":"{id}","desk":"FX","s":1,"t":1}}"#));
    }
    pair.turn();
    let said = pair.take(2);
    assert_eq!(said.len(), 2, "only t/a hides the field");
    let expected = format!(r#"{{"id":"{id}","desk":"FX","t":1}}"#);
    assert_eq!(about(&said, 1, "t/a").iter().filter(|row| row.ends_with(&expected)).count(), 2);
}

#[test]
fn queries_have_the_records_of_each_topic() {
    for filter in FILTERS {
        let mut pair = with_different_entries();
        publish_all(&mut pair, 1);
        let of = |number, topic| Query { filter, ..query(number, topic) };
        let mut all = pair.records(2, of(1, "^t/"));
        let total = pair.clients[&2].total;
        let mut by_name = Vec::new();
        for topic in TOPICS {
            by_name.extend(pair.records(2, of(1, topic)));
        }
        all.sort();
        by_name.sort();
        assert_eq!(all, by_name, "{filter:?}");
        assert_eq!(total as usize, all.len(), "{filter:?}");
    }
}

#[test]
fn a_replaced_subscription_gets_the_records_whose_visible_part_changes() {
    let mut pair = with_different_entries();
    publish_all(&mut pair, 1);
    pair.subscribe(2, &sow(1, "^t/"));
    for (number, topic) in (2..).zip(TOPICS) {
        pair.subscribe(2, &sow(number, topic));
    }
    pair.turn();
    pair.take(2);
    let replacing = |number, topic| {
        let sow = sow(number, topic);
        Subscribe {
            options: sow.options.and(SubscribeOptions::REPLACE).and(SubscribeOptions::OOF),
            select: Some("-/s"),
            filter: Some("/id != 'y' OR /t IS NULL"),
            ..sow
        }
    };
    pair.subscribe(2, &replacing(1, "^t/"));
    for (number, topic) in (2..).zip(TOPICS) {
        pair.subscribe(2, &replacing(number, topic));
    }
    pair.turn();
    let said = pair.take(2);
    for (number, topic) in (2..).zip(TOPICS) {
        assert_eq!(about(&said, 1, topic), about(&said, number, topic), "{topic}");
    }
    assert!(about(&said, 1, "t/a").is_empty(), "its entry hides the field before and after");
    assert!(!about(&said, 1, "t/b").is_empty());
}

#[test]
fn a_delete_with_a_pattern_has_the_filter_of_each_topic() {
    let mut config = guarded(vec![
        EntrySettings { filter: Some("/desk = 'FX'".into()), ..entry(&[Right::Delete], "state") },
        EntrySettings { filter: Some("/desk = 'EQ'".into()), ..entry(&[Right::Delete], "state2") },
    ]);
    config.sow_topics.push(sow_topic("state2"));
    let mut pair = Pair::with(config);
    pair.connect_as(1, Access::Administrator);
    pair.log_on(1, "administrator");
    log_on_as(&mut pair, 2, "anna", "");
    let all = ["state", "state2"].into_iter().flat_map(|topic| [(topic, "FX"), (topic, "EQ")]);
    for (sequence, (topic, desk)) in (1..).zip(all) {
        pair.publish(1, sequence, topic, &format!(r#"{{"id":"{desk}","desk":"{desk}"}}"#));
    }
    pair.turn();
    pair.take(1);
    pair.send(2, &Command::SowDelete(SowDelete { filter: Some("1 = 1"), ..delete(5, 1, "^state") }));
    pair.turn();
    assert_eq!(pair.clients[&2].detail, 2);
    assert_eq!(pair.records(1, query(6, "state")), [r#"{"id":"EQ","desk":"EQ"}"#]);
    assert_eq!(pair.records(1, query(6, "state2")), [r#"{"id":"FX","desk":"FX"}"#]);
}

#[test]
fn a_consumer_of_several_queues_gets_the_fields_of_each() {
    let mut pair = with_different_entries();
    pair.subscribe(2, &consume(1, "^q/", 10));
    pair.turn();
    for (sequence, (topic, desk)) in (1..).zip([("q/a", "FX"), ("q/b", "FX"), ("q/b", "EQ"), ("q/a", "EQ")]) {
        pair.publish(1, sequence, topic, &format!(r#"{{"desk":"{desk}","s":1,"t":1}}"#));
    }
    pair.turn();
    let held = pair.take_queued(2);
    let mut taken = data(&held);
    taken.sort_unstable();
    assert_eq!(taken, [r#"{"desk":"EQ","t":1}"#, r#"{"desk":"FX","s":1}"#, r#"{"desk":"FX","t":1}"#]);
}

#[test]
fn a_field_that_an_entry_hides_is_no_conflation_key_of_a_pattern() {
    let mut pair = with_different_entries();
    for (key, topic, is_refused) in
        [("/s", "^t/", true), ("/t", "^t/", true), ("/id", "^t/", false), ("/s", "t/d", false)]
    {
        let conflated =
            Subscribe { conflation_ns: Some(1_000_000), conflation_key: Some(key), ..subscribe(1, topic) };
        pair.subscribe(2, &conflated);
        pair.turn();
        assert_eq!(pair.take(2) == [refused(Code::BadOption, 1, 1)], is_refused, "{key} {topic}");
        pair.send(
            2,
            &Command::Unsubscribe(Unsubscribe {
                command: 2,
                acks: Acks::default(),
                subscription: 1,
                begun: None,
            }),
        );
        pair.turn();
        pair.take(2);
    }
}
