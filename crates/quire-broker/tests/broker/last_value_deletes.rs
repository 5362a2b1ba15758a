//! Deletes of records (docs/last-values.md section 5).

use quire_command::*;

use crate::last_value_pair::*;
use crate::pair::*;

fn filled() -> Pair {
    let mut pair = with_topics([sow_topic("orders"), supplied("named")]);
    for id in 1..=4 {
        pair.publish(1, id, "orders", &format!(r#"{{"id":{id}}}"#));
    }
    pair.turn();
    pair.take(1);
    pair
}

#[test]
fn a_filter_selects_the_records_to_delete() {
    let mut pair = filled();
    assert_eq!(pair.delete(1, SowDelete { filter: Some("/id > 2"), ..delete(7, 5, "orders") }), 2);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1}"#, r#"{"id":2}"#]);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("/id > 2"), ..delete(7, 6, "orders") }), 0);
}

#[test]
fn a_message_selects_the_record_that_it_would_replace() {
    let mut pair = filled();
    let data = Some(&br#"{"id":3,"x":"other"}"#[..]);
    assert_eq!(pair.delete(1, SowDelete { data, ..delete(7, 5, "orders") }), 1);
    assert_eq!(pair.records(2, query(5, "orders")).len(), 3);
    assert_eq!(pair.delete(1, SowDelete { data, ..delete(7, 6, "orders") }), 0);
}

#[test]
fn keys_select_records_and_all_selectors_must_hold() {
    let mut pair = with_topics([supplied("named")]);
    for (sequence, key) in [(1, b"a"), (2, b"b"), (3, b"c")] {
        let data = sequence.to_string();
        pair.send(1, &Command::Publish(Publish { key, ..publish(sequence, "named", &data) }));
    }
    let keys = Keys::from_bytes(b"\x01a\x01b\x01x");
    let both = SowDelete { keys, filter: Some("SOW_KEY() != 'b'"), ..delete(7, 4, "named") };
    assert_eq!(pair.delete(1, both), 1);
    assert_eq!(pair.records(2, query(5, "named")), ["2", "3"]);
    assert_eq!(pair.delete(1, SowDelete { keys, ..delete(7, 5, "named") }), 1);
    assert_eq!(pair.records(2, query(5, "named")), ["3"]);
}

#[test]
fn the_sequence_of_a_delete_is_persisted_like_that_of_a_publish_and_a_repeated_delete_changes_nothing() {
    let mut pair = filled();
    let first = SowDelete { filter: Some("/id = 1"), ..delete(7, 5, "orders") };
    pair.send(1, &Command::SowDelete(first));
    pair.turn();
    assert_eq!(pair.take(1), [ack(AckKind::Processed, 7, 0), Said::Persisted(5)]);
    pair.publish(1, 6, "orders", r#"{"id":1}"#);
    assert_eq!(pair.delete(1, first), 0);
    assert_eq!(pair.records(2, query(5, "orders")).len(), 4);
    // A sequence without a delete that removes anything is persisted, too.
    let nothing = SowDelete { filter: Some("/id = 9"), acks: Acks::PERSISTED, ..delete(8, 7, "orders") };
    pair.send(1, &Command::SowDelete(nothing));
    pair.turn();
    let said = pair.take(1);
    assert!(said.contains(&Said::Persisted(7)) && said.contains(&ack(AckKind::Persisted, 8, 0)), "{said:?}");
    assert_eq!(
        pair.broker.journal().highest_sequence(quire_journal::PublisherId::of_client_name("publisher")),
        Some(7)
    );
}

#[test]
fn commands_after_a_delete_wait_for_it() {
    let mut pair = filled();
    pair.send(1, &Command::SowDelete(SowDelete { filter: Some("1 = 1"), ..delete(7, 5, "orders") }));
    pair.publish(1, 6, "orders", r#"{"id":9}"#);
    pair.turn();
    assert_eq!(pair.take(1), [ack(AckKind::Processed, 7, 0), Said::Persisted(6)]);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":9}"#]);
}

#[test]
fn a_record_that_another_client_replaced_meanwhile_is_deleted_only_when_it_still_matches() {
    let mut pair = filled();
    pair.client(3, "other");
    pair.send(1, &Command::SowDelete(SowDelete { filter: Some("/x IS NULL"), ..delete(7, 5, "orders") }));
    pair.publish(3, 1, "orders", r#"{"id":1,"x":1}"#);
    pair.publish(3, 2, "orders", r#"{"id":2}"#);
    pair.publish(3, 3, "orders", r#"{"id":5}"#);
    pair.turn();
    assert_eq!(pair.clients[&1].detail, 3);
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":1,"x":1}"#, r#"{"id":5}"#]);
}

#[test]
fn a_costly_filter_of_a_subscription_takes_no_effort_from_a_delete() {
    let mut pair = filled();
    pair.client(3, "other");
    let costly = Some("/big LIKE '(a|b)c$'");
    pair.subscribe(2, &Subscribe { filter: costly, ..sow(4, "orders") });
    pair.publish(3, 1, "orders", &format!(r#"{{"id":9,"big":"{}"}}"#, "x".repeat(2_000_000)));
    pair.turn();
    pair.take(2);
    pair.send(1, &Command::SowDelete(SowDelete { filter: Some("/x IS NULL"), ..delete(7, 5, "orders") }));
    pair.publish(3, 2, "orders", r#"{"id":2}"#);
    pair.publish(3, 3, "orders", r#"{"id":9,"x":1}"#);
    pair.turn();
    // The filter was not decided within its effort.
    let ended = Said::Ended { subscription: 4, code: Code::LimitExceeded };
    assert!(pair.take(2).contains(&ended));
    assert_eq!(pair.records(2, query(5, "orders")), [r#"{"id":9,"x":1}"#]);
}

#[test]
fn a_pattern_deletes_from_every_topic_under_one_sequence() {
    let mut pair = with_topics([sow_topic("a/1"), sow_topic("a/2"), sow_topic("b")]);
    for (sequence, topic) in [(1, "a/1"), (2, "a/2"), (3, "b")] {
        pair.publish(1, sequence, topic, r#"{"id":1}"#);
    }
    assert_eq!(pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 4, "^a/") }), 2);
    assert_eq!(pair.records(2, query(5, "^")).len(), 1);
    pair.publish(1, 4, "b", r#"{"id":2}"#);
    assert_eq!(pair.records(2, query(5, "^")).len(), 1);
}

#[test]
fn a_large_delete_is_several_records() {
    let mut pair = with_topics([sow_topic("orders")]);
    for id in 1..=3000 {
        pair.publish(1, id, "orders", &format!(r#"{{"id":{id}}}"#));
    }
    pair.turn();
    let before = pair.broker.stats().appended;
    assert_eq!(pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 3001, "orders") }), 3000);
    assert_eq!(pair.broker.stats().appended - before, 3);
    assert_eq!(pair.records(2, query(5, "orders")), Vec::<String>::new());
}

#[test]
fn deletes_that_cannot_be_are_refused_and_use_their_sequence() {
    let mut pair = filled();
    let all = Some("1 = 1");
    for (sequence, delete, code) in [
        (5, SowDelete { filter: all, ..delete(7, 5, "plain") }, Code::NotLastValue),
        // Nothing is deleted.
        (6, SowDelete { filter: all, ..delete(7, 6, "^none") }, Code::Ok),
        (7, SowDelete { filter: all, ..delete(7, 7, "a(") }, Code::BadTopic),
        (8, SowDelete { filter: Some("/a ="), ..delete(7, 8, "orders") }, Code::BadFilter),
        (9, SowDelete { data: Some(b"{"), ..delete(7, 9, "orders") }, Code::BadMessage),
        (10, SowDelete { data: Some(b"{}"), ..delete(7, 10, "named") }, Code::BadOption),
    ] {
        pair.send(1, &Command::SowDelete(delete));
        pair.turn();
        assert_eq!(pair.take(1), [refused(code, 7, 0), Said::Persisted(sequence)], "{delete:?}");
    }
    assert_eq!(pair.records(2, query(5, "orders")).len(), 4);
}

#[test]
fn replays_do_not_show_deletes() {
    let mut pair = filled();
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 5, "orders") });
    pair.subscribe(2, &replay(3, "orders", "0"));
    pair.turn();
    assert_eq!(pair.take_rows(2).len(), 4);
    pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 6, "orders") });
    pair.publish(1, 7, "orders", r#"{"id":1}"#);
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":1}"#]);
}

#[test]
fn a_delete_on_a_topic_that_is_not_recorded_is_accepted() {
    let mut pair = with_topics([transient("scratch")]);
    pair.publish(1, 1, "scratch", r#"{"id":1}"#);
    assert_eq!(pair.delete(1, SowDelete { filter: Some("1 = 1"), ..delete(7, 2, "scratch") }), 1);
    assert_eq!(pair.records(2, query(5, "scratch")), Vec::<String>::new());
    assert_eq!(pair.broker.stats().appended, 0);
    assert_eq!(pair.broker.stats().duplicate_count, 0);
}

/// The messages of a subscription: the key, and the data of a message, or the other keys of a
/// delete.
fn got(said: &[Said], number: u32) -> Vec<(MessageKind, &str, &str)> {
    let rows = said.iter().filter_map(|said| match said {
        Said::Row(row) if row.subscription == number => Some(row),
        _ => None,
    });
    rows.map(|row| (row.kind, &*row.key, &*row.data)).collect()
}

#[test]
fn a_replay_gets_the_deletes_of_the_log_when_it_asks_for_them() {
    let mut pair = with_topics([supplied("named"), supplied("others")]);
    let put = |pair: &mut Pair, sequence: u64, topic: &str, key: &[u8]| {
        let data = sequence.to_string();
        pair.send(1, &Command::Publish(Publish { key, ..publish(sequence, topic, &data) }));
    };
    for (sequence, key) in [(1, b"a"), (2, b"b"), (3, b"c")] {
        put(&mut pair, sequence, "named", key);
    }
    put(&mut pair, 4, "others", b"a");
    let keys = Keys::from_bytes(b"\x01a\x01b");
    pair.delete(1, SowDelete { keys, ..delete(7, 5, "named") });
    pair.delete(1, SowDelete { keys, ..delete(7, 6, "others") });
    let nothing = SowDelete { keys: Keys::from_bytes(b"\x01x"), ..delete(7, 7, "named") };
    pair.delete(1, nothing);
    pair.turn();
    pair.take(2);
    let deletions = |subscribe| Subscribe { options: SubscribeOptions::DELETIONS, ..subscribe };
    let filter = Some("/v = 1");
    for subscribe in [
        deletions(replay(1, "named", "0")),
        deletions(Subscribe { filter, rate: Some("1000"), ..replay(2, "named", "0") }),
        replay(3, "named", "0"),
        deletions(replay(4, "^(named|others)$", "0|1|")),
    ] {
        pair.subscribe(2, &subscribe);
    }
    pair.turn();
    // These come at the live tail.
    put(&mut pair, 8, "named", b"d");
    pair.turn();
    pair.delete(1, SowDelete { keys: Keys::from_bytes(b"\x01c"), ..delete(7, 9, "named") });
    put(&mut pair, 10, "named", b"e");
    pair.turn();
    pair.pass(std::time::Duration::from_secs(1));
    let said = pair.take(2);
    let publish = |key, data| (MessageKind::Publish, key, data);
    let deletes = [(MessageKind::Delete, "a", "\u{1}b"), (MessageKind::Delete, "c", "")];
    let before = [publish("a", "1"), publish("b", "2"), publish("c", "3")];
    let [d, e] = [publish("d", "8"), publish("e", "10")];
    let expected = [&before[..], &[deletes[0], d, deletes[1], e]].concat();
    assert_eq!(got(&said, 1), expected);
    assert_eq!(got(&said, 2), deletes);
    assert_eq!(got(&said, 3), [&before[..], &[d, e]].concat());
    assert_eq!(got(&said, 4), [d, deletes[1], e]);
    let bookmarks = said.iter().filter_map(|said| match said {
        Said::Row(row) if row.kind == MessageKind::Delete && row.subscription == 1 => row.bookmark,
        _ => None,
    });
    assert_eq!(bookmarks.map(|(_, sequence)| sequence).collect::<Vec<_>>(), [5, 9]);
}

#[test]
fn deletions_are_for_replays_that_are_neither_live_nor_conflated() {
    let mut pair = with_topics([supplied("named")]);
    let deletions = SubscribeOptions::DELETIONS;
    for subscribe in [
        Subscribe { options: deletions, ..subscribe(1, "named") },
        Subscribe { options: deletions.and(SubscribeOptions::LIVE), ..replay(1, "named", "0") },
        Subscribe { options: deletions, conflation_ns: Some(1_000_000), ..replay(1, "named", "0") },
    ] {
        pair.subscribe(2, &subscribe);
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::BadOption, 1, 1)]);
    }
}

#[test]
fn a_resume_position_is_not_reported_before_the_delete_that_a_replay_has_received() {
    for is_restarted in [false, true] {
        let mut pair = with_topics([supplied("named")]);
        pair.send(1, &Command::Publish(Publish { key: b"a", ..publish(1, "named", "1") }));
        pair.delete(1, SowDelete { keys: Keys::from_bytes(b"\x01a"), ..delete(7, 2, "named") });
        pair.turn();
        let publisher = pair.publisher_of("publisher");
        if is_restarted {
            pair = pair.restart(sow_config([supplied("named")]));
        }
        pair.client(3, "reader");
        let acks = Acks::PROCESSED.and(Acks::PERSISTED);
        let options = SubscribeOptions::DELETIONS;
        pair.subscribe(3, &Subscribe { acks, options, ..replay(1, "named", "0") });
        pair.turn();
        pair.pass(std::time::Duration::from_secs(2));
        let said = pair.take(3);
        assert_eq!(got(&said, 1).len(), 2);
        let last = said.iter().rev().find_map(|said| match said {
            Said::Place { bookmark, .. } => Some(*bookmark),
            _ => None,
        });
        assert_eq!(last, Some((publisher, 2)), "{said:?}");
    }
}
