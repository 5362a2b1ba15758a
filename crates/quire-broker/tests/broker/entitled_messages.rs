//! Messages that the filter of an entry hides: no way to read, to count, to change or to delete
//! them, and the fields that its select list hides.

use quire_broker::{Access, EntrySettings, Right};
use quire_command::*;
use quire_types::Verdict;

use super::entitling::*;
use super::last_value_pair::*;
use super::pair::*;
use super::queue_pair::*;

const ALL: [Right; 5] = [Right::Read, Right::Replay, Right::Query, Right::Write, Right::Delete];

/// Anna may see and change messages with `/desk = 'FX'`.
fn fx(topic: &str) -> EntrySettings {
    EntrySettings { filter: Some("/desk = 'FX'".into()), ..entry(&ALL, topic) }
}

fn with_entries(entries: Vec<EntrySettings>) -> Pair {
    let mut pair = start(entries);
    log_on_as(&mut pair, 2, "anna", "");
    pair
}

/// The administrator publishes a message.
fn put(pair: &mut Pair, topic: &str, sequence: u64, id: &str, desk: &str) {
    pair.publish(1, sequence, topic, &format!(r#"{{"id":"{id}","desk":"{desk}"}}"#));
    pair.turn();
}

fn rows(pair: &mut Pair) -> Vec<String> {
    pair.take_rows(2)
}

/// The acknowledgements apart, whether anything reached the client.
fn is_silent(pair: &mut Pair) -> bool {
    pair.take(2).iter().all(|said| matches!(said, Said::Ack { .. }))
}

#[test]
fn a_live_subscription_and_a_replay_have_the_visible_messages() {
    for topic in ["orders", "^ord"] {
        let mut pair = with_entries(vec![fx("orders")]);
        pair.subscribe(2, &Subscribe { filter: Some("1 = 1 OR /id = 'a'"), ..subscribe(1, topic) });
        pair.turn();
        pair.take(2);
        put(&mut pair, "orders", 11, "a", "FX");
        put(&mut pair, "orders", 12, "b", "EQ");
        assert_eq!(pair.take_data(2), [r#"{"id":"a","desk":"FX"}"#], "{topic}");
        pair.subscribe(2, &replay(2, topic, "0"));
        pair.turn();
        assert_eq!(pair.take_data(2), [r#"{"id":"a","desk":"FX"}"#], "{topic}");
        put(&mut pair, "orders", 13, "c", "EQ");
        assert_eq!(pair.take_data(2), Vec::<String>::new(), "{topic}: also the live tail");
    }
}

#[test]
fn a_pattern_covers_topics_that_appear_later_each_with_its_filter() {
    let entries = vec![refusing(Right::Read, "orders/closed"), fx("^orders/"), entry(&ALL, "^ordersopen")];
    let mut pair = with_entries(entries);
    pair.subscribe(2, &subscribe(1, "^orders"));
    pair.turn();
    pair.take(2);
    for (sequence, topic) in
        ["orders", "orders/closed", "orders/new", "ordersopen", "orders/new"].into_iter().enumerate()
    {
        put(&mut pair, topic, 11 + sequence as u64, topic, if sequence == 4 { "EQ" } else { "FX" });
    }
    let seen = pair.take_data(2);
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].contains("orders/new") && seen[1].contains("ordersopen"), "{seen:?}");
}

#[test]
fn records_that_are_hidden_are_in_no_result_and_in_no_total() {
    for topic in ["state", "^sta"] {
        let mut pair = with_entries(vec![fx("state")]);
        put(&mut pair, "state", 11, "a", "FX");
        put(&mut pair, "state", 12, "b", "EQ");
        let found = pair.records(2, query(1, topic));
        assert_eq!(found, [r#"{"id":"a","desk":"FX"}"#], "{topic}");
        assert_eq!(pair.clients[&2].total, 1, "{topic}: the total");
    }
    let mut pair = with_entries(vec![fx("state")]);
    put(&mut pair, "state", 11, "b", "EQ");
    let keys = {
        let mut bytes = Vec::new();
        put_key(&mut bytes, b"b");
        bytes
    };
    let by_key = Query { keys: Some(Keys::from_bytes(&keys).unwrap()), ..query(1, "state") };
    assert_eq!(pair.records(2, by_key), Vec::<String>::new(), "by a guessed key");
    assert_eq!(pair.clients[&2].total, 0);
}

#[test]
fn a_record_that_was_never_visible_causes_no_message() {
    let mut pair = with_entries(vec![fx("state")]);
    pair.subscribe(2, &sow(1, "state"));
    pair.turn();
    pair.take(2);
    for (sequence, desk) in [(11, "EQ"), (12, "EQ")] {
        put(&mut pair, "state", sequence, "a", desk);
        assert!(is_silent(&mut pair), "a hidden record changes");
    }
    pair.send(1, &Command::SowDelete(SowDelete { filter: Some("/id = 'a'"), ..delete(5, 13, "state") }));
    pair.turn();
    assert!(is_silent(&mut pair), "a hidden record is deleted");
    put(&mut pair, "state", 14, "a", "FX");
    assert_eq!(rows(&mut pair).len(), 1, "it becomes visible");
    put(&mut pair, "state", 15, "a", "EQ");
    let left = pair.take(2);
    let [Said::Row(left)] = &left[..] else { panic!("{left:?}") };
    assert_eq!((left.kind, &*left.data), (MessageKind::Oof(OofReason::Entitlement), ""));
    put(&mut pair, "state", 16, "a", "EQ");
    assert!(is_silent(&mut pair));
}

#[test]
fn a_delta_subscription_gets_a_record_whole_when_it_becomes_visible() {
    let mut pair = with_entries(vec![fx("state")]);
    pair.subscribe(2, &delta(1, "state"));
    pair.turn();
    pair.take(2);
    pair.publish(1, 11, "state", r#"{"id":"a","desk":"EQ","hidden":1}"#);
    pair.turn();
    assert!(is_silent(&mut pair));
    pair.publish(1, 12, "state", r#"{"id":"a","desk":"FX","n":1}"#);
    pair.turn();
    let seen = format!("{:?}", pair.take(2));
    assert!(seen.contains("FX") && !seen.contains("hidden"), "{seen}");
}

#[test]
fn a_delete_removes_visible_records_only() {
    for topic in ["state", "^sta"] {
        let mut pair = with_entries(vec![fx("state")]);
        put(&mut pair, "state", 11, "a", "FX");
        put(&mut pair, "state", 12, "b", "EQ");
        pair.take(2);
        pair.send(2, &Command::SowDelete(SowDelete { filter: Some("1 = 1"), ..delete(5, 1, topic) }));
        pair.turn();
        assert_eq!(pair.clients[&2].detail, 1, "{topic}: the number of deleted records");
        let left = pair.records(1, query(6, "state"));
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(!left.iter().any(|record| record.contains("FX")), "{left:?}");
    }
}

#[test]
fn a_publish_outside_of_the_filter_is_refused() {
    let mut pair = with_entries(vec![fx("^")]);
    let failed = |sequence| {
        let (code, scope) = (Code::NotEntitled, FailureScope::One);
        Said::Failed { sequence, code, scope }
    };
    put(&mut pair, "state", 11, "other", "EQ");
    put(&mut pair, "state", 12, "own", "FX");
    let recorded = pair.broker.stats().appended;
    let mut sequence = 0;
    let mut send = |pair: &mut Pair, topic: &str, data: &str, is_delta: bool| {
        sequence += 1;
        pair.send(2, &Command::Publish(Publish { is_delta, ..publish(sequence, topic, data) }));
        pair.turn();
        (sequence, pair.take(2))
    };
    for (topic, data, is_delta) in [
        ("orders", r#"{"desk":"EQ"}"#, false),
        ("orders", "not json", false),
        ("state", r#"{"id":"new","desk":"EQ"}"#, false),
        // It would replace a record that is hidden.
        ("state", r#"{"id":"other","desk":"FX"}"#, false),
        ("state", r#"{"id":"other","desk":"FX"}"#, true),
    ] {
        let (sequence, said) = send(&mut pair, topic, data, is_delta);
        assert_eq!(said, [failed(sequence)], "{topic} {data}");
    }
    assert_eq!(pair.broker.stats().appended, recorded);
    for (topic, data, is_delta) in [
        ("orders", r#"{"desk":"FX"}"#, false),
        ("state", r#"{"id":"own","desk":"FX","n":1}"#, false),
        ("state", r#"{"id":"own","desk":"FX","n":2}"#, true),
    ] {
        let (sequence, said) = send(&mut pair, topic, data, is_delta);
        assert_eq!(said, [Said::Persisted(sequence)], "{topic} {data}");
    }
}

#[test]
fn a_hidden_message_of_a_queue_goes_to_another_consumer() {
    let mut pair =
        with_entries(vec![EntrySettings { user: vec!["anna".into()], ..fx("jobs") }, entry(&ALL, "jobs")]);
    // Without the message of the preparation.
    pair.send(1, &Command::Settle(settle_all(Verdict::Acknowledge)));
    pair.turn();
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    pair.take(2);
    put(&mut pair, "work", 11, "a", "EQ");
    put(&mut pair, "work", 12, "b", "FX");
    assert_eq!(data(&pair.take_queued(2)), [r#"{"id":"b","desk":"FX"}"#]);
    log_on_as(&mut pair, 3, "bob", "");
    pair.subscribe(3, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(data(&pair.take_queued(3)), [r#"{"id":"a","desk":"EQ"}"#]);
}

fn settle_all(verdict: Verdict) -> Settle<'static> {
    let messages = Selection::Matching("");
    Settle { verdict, command: 8, acks: Acks::PROCESSED, queue: "jobs", messages, reason: "" }
}

#[test]
fn a_hidden_message_of_a_queue_is_neither_browsed_nor_settled() {
    for verdict in [Verdict::Acknowledge, Verdict::Expire] {
        let mut pair = with_entries(vec![fx("jobs")]);
        put(&mut pair, "work", 11, "a", "EQ");
        put(&mut pair, "work", 12, "b", "FX");
        let query = Query { wants_last_values: false, ..query(1, "jobs") };
        pair.send(2, &Command::Query(query));
        pair.turn();
        assert_eq!(data(&pair.take_queued(2)), [r#"{"id":"b","desk":"FX"}"#]);
        assert_eq!(pair.clients[&2].total, 1);
        let by_name: Vec<_> =
            (1..=12).map(|sequence| (pair.publisher_of("administrator"), sequence)).collect();
        assert_eq!(pair.figure("jobs", "waiting"), 3);
        if verdict == Verdict::Acknowledge {
            pair.settle_bookmarks_as(2, "jobs", verdict, &by_name, 7, Acks::PROCESSED);
        } else {
            pair.send(2, &Command::Settle(settle_all(verdict)));
        }
        pair.turn();
        assert_eq!(pair.clients[&2].detail, 1, "{verdict:?}: one message was visible");
        assert_eq!(pair.figure("jobs", "waiting"), 2, "{verdict:?}");
    }
}

#[test]
fn a_select_list_hides_fields_from_messages_filters_and_orders() {
    let mut pair = with_entries(vec![EntrySettings {
        select: Some("-/salary,-/deep/part".into()),
        ..entry(&[Right::Read, Right::Query, Right::Replay], "^")
    }]);
    let publish = |pair: &mut Pair, sequence: u64, id: &str, salary: u32| {
        let data = format!(r#"{{"id":"{id}","salary":{salary},"deep":{{"part":1,"n":2}}}}"#);
        pair.publish(1, sequence, "state", &data);
        pair.turn();
    };
    publish(&mut pair, 11, "a", 2);
    publish(&mut pair, 12, "b", 1);
    let filtered = |filter| Query { filter: Some(filter), ..query(1, "state") };
    assert_eq!(pair.records(2, filtered("/salary = 1")), Vec::<String>::new());
    assert_eq!(pair.records(2, filtered("/id = 'a' AND /salary IS NULL")), [r#"{"id":"a","deep":{"n":2}}"#]);
    assert_eq!(pair.records(2, filtered("/deep IS NOT NULL")), Vec::<String>::new());
    assert_eq!(pair.records(2, filtered("MESSAGE_SIZE() > 0")), Vec::<String>::new());
    let ordered =
        |order| Query { order_by: Some(order), filter: Some("/id IN ('a','b')"), ..query(1, "state") };
    let by_salary = pair.ordered(2, ordered("/salary, /id"));
    assert!(by_salary[0].contains(r#""a""#), "the hidden field does not order: {by_salary:?}");
    pair.subscribe(2, &Subscribe { select: Some("+/salary"), ..sow_delta(2, "state") });
    pair.turn();
    publish(&mut pair, 13, "a", 3);
    put(&mut pair, "state", 14, "a", "EQ");
    pair.send(1, &Command::SowDelete(SowDelete { filter: Some("/id = 'b'"), ..delete(5, 15, "state") }));
    pair.turn();
    let seen = format!("{:?}", pair.take(2));
    assert!(!seen.contains("salary") && !seen.contains("part"), "{seen}");
    pair.subscribe(2, &Subscribe { select: Some("-/,+/salary,+/deep"), ..replay(3, "state", "0") });
    pair.turn();
    let seen = pair.take_data(2).concat() + &format!("{:?}", pair.take(2));
    assert!(!seen.contains("salary") && !seen.contains("part"), "{seen}");
    let key = Subscribe {
        conflation_ns: Some(1_000_000),
        conflation_key: Some("/salary"),
        ..subscribe(4, "orders")
    };
    pair.subscribe(2, &key);
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::BadOption, 4, 4)]);
}

#[test]
fn a_filter_that_deletes_sees_the_visible_fields_only() {
    for topic in ["state", "^sta"] {
        let mut pair = with_entries(vec![
            EntrySettings {
                select: Some("-/salary".into()),
                ..entry(&[Right::Delete, Right::Query], "state")
            },
            EntrySettings { select: Some("-/salary".into()), ..entry(&[Right::Delete, Right::Read], "jobs") },
        ]);
        pair.publish(1, 11, "state", r#"{"id":"a","salary":2}"#);
        pair.publish(1, 12, "work", r#"{"id":"a","salary":2}"#);
        pair.turn();
        let waiting = pair.figure("jobs", "waiting");
        let filters = [("/salary = 2", 0), ("MESSAGE_SIZE() > 0", 0), ("/id = 'a'", 1)];
        for (sequence, (filter, count)) in (1..).zip(filters) {
            let command = SowDelete { filter: Some(filter), ..delete(5, sequence, topic) };
            pair.send(2, &Command::SowDelete(command));
            pair.turn();
            assert_eq!(pair.clients[&2].detail, count, "{topic} {filter}");
            let messages = Selection::Matching(filter);
            pair.send(2, &Command::Settle(Settle { messages, ..settle_all(Verdict::Expire) }));
            pair.turn();
            assert_eq!(pair.clients[&2].detail, count, "a queue, {filter}");
            assert_eq!(pair.figure("jobs", "waiting"), waiting - u64::from(count), "{filter}");
        }
    }
}

#[test]
fn a_message_that_cannot_be_parsed_is_not_delivered_where_fields_are_hidden() {
    let mut pair =
        with_entries(vec![EntrySettings { select: Some("-/salary".into()), ..entry(&ALL[..3], "^") }]);
    pair.subscribe(2, &subscribe(1, "orders"));
    pair.turn();
    pair.take(2);
    for (sequence, data) in [(11, r#"{"salary":1"#), (12, "[1]"), (13, r#"{"a":1,"salary":2}"#)] {
        pair.publish(1, sequence, "orders", data);
    }
    pair.turn();
    let seen = pair.take_data(2);
    assert!(!seen.concat().contains("salary"), "{seen:?}");
    assert_eq!(seen.last().map(String::as_str), Some(r#"{"a":1}"#));
}

#[test]
fn a_select_list_that_hides_a_key_is_a_mistake() {
    let hiding = EntrySettings { select: Some("-/id".into()), ..entry(&[Right::Read], "^") };
    let error = guarded(vec![hiding]).check().unwrap_err();
    let error = quire_broker::ConfigError::from(error);
    assert_eq!(error.key, "entitlements[0].select");
}

#[test]
fn a_bookmark_on_a_queue_leaves_out_topics_without_the_right() {
    let only_queue = vec![entry(&[Right::Read], "jobs")];
    let both = vec![entry(&[Right::Read], "jobs"), entry(&[Right::Replay], "work")];
    for (entries, count) in [(only_queue, 0), (both, 1)] {
        let mut pair = with_entries(entries);
        pair.subscribe(2, &replay(1, "jobs", "0"));
        pair.turn();
        assert_eq!(pair.take_data(2).len(), count);
    }
}

#[test]
fn a_consumer_acknowledges_the_messages_that_it_holds() {
    let mut pair = with_entries(vec![fx("jobs")]);
    pair.subscribe(2, &consume(1, "jobs", 10));
    put(&mut pair, "work", 11, "a", "EQ");
    put(&mut pair, "work", 12, "b", "FX");
    let held = pair.take_queued(2);
    assert_eq!(data(&held), [r#"{"id":"b","desk":"FX"}"#]);
    pair.reads_at_once = false;
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    assert!(pair.reads.is_empty(), "no message is read for it");
    assert_eq!(pair.figure("jobs", "acknowledged"), 1);
}

#[test]
fn a_replay_with_deletes_needs_an_entry_without_a_filter() {
    let deletions =
        |number| Subscribe { options: SubscribeOptions::DELETIONS, ..replay(number, "state", "0") };
    let mut pair = with_entries(vec![fx("state")]);
    pair.subscribe(2, &deletions(1));
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::NotEntitled, 1, 1)]);
    let mut pair = with_entries(vec![entry(&ALL, "state")]);
    pair.subscribe(2, &deletions(1));
    pair.turn();
    assert_eq!(pair.take(2)[0], ack(AckKind::Processed, 1, 1));
}

#[test]
fn a_page_has_the_visible_records() {
    let mut pair = with_entries(vec![fx("state")]);
    for (sequence, id, desk) in [(11, "a", "EQ"), (12, "b", "FX"), (13, "c", "FX")] {
        put(&mut pair, "state", sequence, id, desk);
    }
    let page = Subscribe { skip_n: Some(1), top_n: Some(1), order_by: Some("/id"), ..sow(1, "state") };
    pair.subscribe(2, &page);
    pair.turn();
    let records = format!("{:?}", pair.take(2));
    assert!(records.contains(r#"\"c\""#) && !records.contains("EQ"), "{records}");
    put(&mut pair, "state", 14, "a", "EQ");
    assert!(is_silent(&mut pair), "a hidden record takes no place");
    put(&mut pair, "state", 15, "c", "EQ");
    let left = pair.take(2);
    let [Said::Row(left)] = &left[..] else { panic!("{left:?}") };
    assert_eq!((left.kind, &*left.data), (MessageKind::Oof(OofReason::Entitlement), ""));
}

#[test]
fn a_pattern_does_not_count_hidden_topics() {
    let mut config = guarded(vec![entry(&ALL, "state")]);
    config.sow_topics.push(sow_topic("state2"));
    let mut pair = Pair::with(config);
    log_on_as(&mut pair, 2, "anna", "");
    // An order is for one topic.
    let ordered = Query { order_by: Some("/id"), ..query(1, "^state") };
    pair.send(2, &Command::Query(ordered));
    pair.turn();
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 1, 1), ack(AckKind::Completed, 1, 1)]);
}

#[test]
fn a_hidden_message_that_another_consumer_holds_is_not_settled() {
    let anna = EntrySettings { user: vec!["anna".into()], ..fx("jobs") };
    let mut pair = with_entries(vec![anna, entry(&ALL, "jobs")]);
    log_on_as(&mut pair, 3, "bob", "");
    pair.subscribe(3, &consume(1, "jobs", 10));
    put(&mut pair, "work", 11, "a", "EQ");
    let held = pair.take_bookmarks(3);
    assert_eq!(held.len(), 2, "with the message of the preparation");
    pair.settle_bookmarks_as(2, "jobs", Verdict::Acknowledge, &held, 7, Acks::PROCESSED);
    pair.turn();
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 7, 0)]);
    assert_eq!((pair.clients[&2].detail, pair.figure("jobs", "acknowledged")), (0, 0));
    pair.settle_bookmarks_as(3, "jobs", Verdict::Acknowledge, &held, 8, Acks::PROCESSED);
    pair.turn();
    assert_eq!((pair.clients[&3].detail, pair.figure("jobs", "acknowledged")), (2, 2));
}

/// A message of a topic without the right to replay is as if the log did not have it.
#[test]
fn a_bookmark_does_not_tell_whether_the_log_has_a_message_of_a_hidden_topic() {
    let replays = [Right::Read, Right::Replay, Right::Query];
    // Of one publisher. The position of a hidden message is that of none.
    let published = ["orders", "secret", "orders", "secret", "orders", "orders"];
    let answers = |hidden: &[&str], bookmark: &str| {
        let mut pair = with_entries(vec![entry(&replays, "orders"), entry(&replays, "state")]);
        pair.connect_as(3, Access::Administrator);
        pair.log_on(3, "publisher");
        for (sequence, topic) in (1..).zip(published) {
            if !hidden.contains(&topic) {
                pair.publish(3, sequence, topic, &format!(r#"{{"n":{sequence}}}"#));
            }
        }
        pair.turn();
        let publisher = quire_journal::PublisherId::of_client_name("publisher").get();
        let text = bookmark.replace("P", &publisher.to_string());
        pair.subscribe(
            2,
            &Subscribe { options: SubscribeOptions::NOT_FOUND_FAILS, ..replay(1, "orders", &text) },
        );
        pair.turn();
        let data = |said: Vec<Said>| {
            let said = said.into_iter().map(|said| match said {
                Said::Message { data, .. } => data,
                said => format!("{said:?}"),
            });
            said.collect::<Vec<_>>()
        };
        let first = data(pair.take(2));
        // An end that is not in the log yet.
        if hidden.is_empty() {
            pair.publish(3, 7, "secret", r#"{"n":7}"#);
        }
        pair.publish(3, 8, "orders", r#"{"n":8}"#);
        pair.turn();
        (first, data(pair.take(2)))
    };
    for bookmark in [
        "P|2|",
        "P|4|",
        "P|2|,P|5|",
        "P|4|,P|6|",
        "[P|2|:P|4|]",
        "(P|1|:P|4|]",
        "(P|1|:P|4|)",
        "(P|4|:P|2|)",
        "(P|1|:P|7|]",
        "0",
    ] {
        assert_eq!(answers(&[], bookmark), answers(&["secret"], bookmark), "{bookmark}");
    }
    let (found, _) = answers(&[], "P|3|");
    assert_eq!(found[1..3], [r#"{"n":5}"#, r#"{"n":6}"#], "{found:?}");
    let (found, _) = answers(&[], "P|2|");
    assert!(found[0].contains("BookmarkNotFound"), "{found:?}");
    let (found, _) = answers(&[], "(P|1|:P|5|]");
    assert_eq!(found.iter().filter(|data| data.contains("\"n\"")).count(), 2, "{found:?}");
}
