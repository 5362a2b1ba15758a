//! Replacing a subscription that has records in view (docs/last-values.md section 4).

use std::time::Duration;

use quire_broker::{SowTopicSettings, TableExpiration};
use quire_command::*;

use crate::last_value_pair::*;
use crate::pair::*;

fn publish_all(pair: &mut Pair, first: u64, messages: &[&str]) {
    for (sequence, data) in (first..).zip(messages) {
        pair.publish(1, sequence, "orders", data);
    }
    pair.turn();
}

fn replacing(subscribe: Subscribe<'_>) -> Subscribe<'_> {
    Subscribe { options: subscribe.options.and(SubscribeOptions::REPLACE), ..subscribe }
}

/// A topic with the records `1` to `5`, and a subscription `3` that has those up to `3` in view.
fn up_to_three() -> Pair {
    let mut pair = with_topics([sow_topic("orders"), sow_topic("others")]);
    for id in 1..=5 {
        pair.publish(1, id, "orders", &format!(r#"{{"id":{id}}}"#));
    }
    pair.subscribe(2, &Subscribe { filter: Some("/id <= 3"), ..sow(3, "orders") });
    pair.turn();
    assert_eq!(pair.take_rows(2).len(), 3);
    pair
}

#[test]
fn records_that_leave_give_oof_and_records_that_enter_are_published() {
    let mut pair = up_to_three();
    pair.subscribe(
        2,
        &replacing(Subscribe { filter: Some("/id >= 2"), order_by: Some("/id"), ..sow(3, "orders") }),
    );
    publish_all(&mut pair, 6, &[r#"{"id":2,"n":1}"#, r#"{"id":1,"n":1}"#, r#"{"id":6}"#]);
    let said = pair.take(2);
    assert_eq!(said[..1], [ack(AckKind::Processed, 3, 3)]);
    assert_eq!(said[4], ack(AckKind::Completed, 3, 3));
    assert_eq!(pair.clients[&2].total, 4);
    let rows: Vec<_> = said.into_iter().filter_map(short).collect();
    let difference = [r#"-Match {"id":1}"#, r#"+{"id":4}"#, r#"+{"id":5}"#];
    assert_eq!(rows, [&difference[..], &[r#"+{"id":2,"n":1}"#, r#"+{"id":6}"#]].concat());
}

#[test]
fn without_oof_only_records_that_enter_are_sent() {
    let mut pair = up_to_three();
    let options = SubscribeOptions::SOW.and(SubscribeOptions::REPLACE);
    pair.subscribe(2, &Subscribe { options, filter: Some("/id IN (3, 4)"), ..sow(3, "orders") });
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":4}"#]);
    pair.subscribe(2, &replacing(Subscribe { filter: Some("/id = 5"), ..sow(3, "orders") }));
    pair.turn();
    let rows = pair.take_rows(2);
    assert_eq!(rows, [r#"-Match {"id":3}"#, r#"-Match {"id":4}"#, r#"+{"id":5}"#]);
}

#[test]
fn a_message_between_the_views_is_neither_missed_nor_repeated() {
    let mut pair = up_to_three();
    pair.publish(1, 6, "orders", r#"{"id":3,"n":"before"}"#);
    pair.subscribe(2, &replacing(Subscribe { filter: Some("/id >= 3"), ..sow(3, "orders") }));
    pair.publish(1, 7, "orders", r#"{"id":4,"n":"after"}"#);
    pair.turn();
    let mut rows = pair.take_rows(2);
    rows[1..5].sort();
    // Record 3 is in both views, and record 4 enters as it was at the command.
    let difference = [r#"+{"id":4}"#, r#"+{"id":5}"#, r#"-Match {"id":1}"#, r#"-Match {"id":2}"#];
    let (before, after) = (r#"+{"id":3,"n":"before"}"#, r#"+{"id":4,"n":"after"}"#);
    assert_eq!(rows, [&[before][..], &difference[..], &[after]].concat());
}

#[test]
fn topic_keys_and_select_list_can_change() {
    let mut pair = up_to_three();
    pair.publish(1, 6, "others", r#"{"id":1,"a":1}"#);
    pair.subscribe(2, &replacing(Subscribe { filter: Some("/id = 1"), ..sow(3, "others") }));
    pair.turn();
    let mut rows = pair.take_rows(2);
    rows.sort();
    assert_eq!(
        rows,
        [r#"+{"id":1,"a":1}"#, r#"-Match {"id":1}"#, r#"-Match {"id":2}"#, r#"-Match {"id":3}"#]
    );
    pair.subscribe(2, &replacing(Subscribe { select: Some("-/,+/a"), ..sow(3, "others") }));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"a":1}"#], "the program has another part of the record");
    pair.subscribe(2, &replacing(Subscribe { select: Some("-/id"), ..sow(3, "others") }));
    pair.turn();
    assert_eq!(pair.take_rows(2), Vec::<String>::new(), "the program has this part of the record");
    let keys = Keys::from_bytes(b"\x01a");
    pair.subscribe(2, &replacing(Subscribe { keys, ..sow(3, "others") }));
    publish_all(&mut pair, 7, &[r#"{"id":1}"#]);
    assert_eq!(pair.take_rows(2), [r#"-Match {"id":1,"a":1}"#]);
}

#[test]
fn top_n_limits_the_records_that_enter() {
    let mut pair = up_to_three();
    let order_by = Some("/id DESC");
    pair.subscribe(2, &replacing(Subscribe { top_n: Some(1), order_by, ..sow(3, "orders") }));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":5}"#]);
    assert_eq!(pair.clients[&2].total, 5);
}

#[test]
fn a_subscription_is_replaced_while_its_records_are_sent() {
    let mut pair = with_topics([sow_topic("orders")]);
    let filler = "x".repeat(100_000);
    let message = |id: u64, n: u64| format!(r#"{{"id":{id},"n":{n},"x":"{filler}"}}"#);
    for sequence in 1..=60 {
        publish_all(&mut pair, sequence, &[&message(sequence, 1)]);
    }
    let select = Some("-/x");
    pair.set_writable(2, false);
    pair.subscribe(2, &Subscribe { filter: Some("/id <= 30 OR /x = ''"), ..sow(3, "orders") });
    pair.turn();
    publish_all(&mut pair, 61, &[&message(30, 2)]);
    pair.subscribe(2, &replacing(Subscribe { filter: Some("/id IN (30, 31)"), select, ..sow(3, "orders") }));
    publish_all(&mut pair, 62, &[&message(31, 2)]);
    pair.subscribe(2, &replacing(Subscribe { filter: Some("/id IN (30, 32)"), select, ..sow(3, "orders") }));
    publish_all(&mut pair, 63, &[&message(32, 2), &message(31, 3)]);
    pair.set_writable(2, true);
    pair.turn();
    let shown: Vec<String> =
        pair.take_rows(2).iter().map(|row| row.replace(&format!(r#","x":"{filler}""#), "")).collect();
    assert!(shown[..30].iter().all(|row| row.starts_with('=')), "{shown:?}");
    assert_eq!(shown[30], r#"+{"id":30,"n":2}"#, "published under the first filter");
    assert!(shown[31..60].iter().all(|row| row.starts_with("-Match")), "{shown:?}");
    let mut entered = shown[60..62].to_vec();
    entered.sort();
    // The select list changed, so record 30 has another part.
    assert_eq!(entered, [r#"+{"id":30,"n":2}"#, r#"+{"id":31,"n":1}"#]);
    let rest =
        [r#"+{"id":31,"n":2}"#, r#"-Match {"id":31,"n":2}"#, r#"+{"id":32,"n":1}"#, r#"+{"id":32,"n":2}"#];
    assert_eq!(shown[62..], rest);
}

#[test]
fn an_ended_subscription_ends_the_differences_that_wait() {
    let mut pair = up_to_three();
    for filter in ["/id > 3", "/id > 2", "/id > 1"] {
        pair.subscribe(2, &replacing(Subscribe { filter: Some(filter), ..sow(3, "orders") }));
    }
    let unsubscribe = Unsubscribe { command: 4, acks: Acks::PROCESSED, subscription: 3, begun: None };
    pair.send(2, &Command::Unsubscribe(unsubscribe));
    publish_all(&mut pair, 6, &[r#"{"id":4,"n":1}"#]);
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
    pair.subscribe(2, &Subscribe { filter: Some("/id = 4"), ..sow(3, "orders") });
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"={"id":4,"n":1}"#]);
}

#[test]
fn a_subscription_keeps_its_command() {
    let mut pair = up_to_three();
    let numbers = [(4, subscribe(4, "orders")), (5, delta(5, "orders")), (6, sow_delta(6, "orders"))];
    for (_, subscribe) in &numbers {
        pair.subscribe(2, subscribe);
    }
    pair.turn();
    pair.take(2);
    type Make = fn(u32, &'static str) -> Subscribe<'static>;
    let makes: [(u32, Make); 4] = [(3, sow), (4, subscribe), (5, delta), (6, sow_delta)];
    for (number, _) in makes {
        for (own, make) in makes {
            pair.subscribe(2, &replacing(make(number, "orders")));
            pair.turn();
            let said = pair.take(2);
            let code = if own == number { Code::Ok } else { Code::BadOption };
            assert!(
                matches!(said[0], Said::Ack { kind: AckKind::Processed, code: found, .. } if found == code),
                "{number} {own}: {said:?}"
            );
        }
    }
}

#[test]
fn too_many_differences_that_wait_are_refused_and_change_nothing() {
    let mut pair = up_to_three();
    for count in 0..20 {
        let filter = if count % 2 == 0 { "/id = 5" } else { "/id = 4" };
        pair.subscribe(2, &replacing(Subscribe { filter: Some(filter), ..sow(3, "orders") }));
    }
    pair.turn();
    let said = pair.take(2);
    let refusals = said.iter().filter(|said| **said == refused(Code::LimitExceeded, 3, 3)).count();
    // One is under way, and 16 wait.
    assert_eq!(refusals, 3);
    let mut view = vec![r#"{"id":1}"#.to_owned(), r#"{"id":2}"#.into(), r#"{"id":3}"#.into()];
    for row in said.into_iter().filter_map(short) {
        match row.strip_prefix("-Match ") {
            Some(left) => view.retain(|row| row != left),
            None => view.push(row[1..].to_owned()),
        }
    }
    assert_eq!(view, [r#"{"id":5}"#]);
}

#[test]
fn a_replacement_waits_for_no_filter_and_is_refused_meanwhile() {
    let mut pair = up_to_three();
    pair.broker.set_turn_effort(1);
    pair.reads_at_once = false;
    publish_all(&mut pair, 6, &[r#"{"id":1,"n":1}"#]);
    let replace = replacing(Subscribe { filter: Some("/id = 5"), ..sow(3, "orders") });
    pair.subscribe(2, &replace);
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::LimitExceeded, 3, 3)]);
    pair.reads_at_once = true;
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":1,"n":1}"#]);
    pair.subscribe(2, &replace);
    pair.turn();
    assert_eq!(pair.take_rows(2).len(), 4);
}

#[test]
fn a_record_that_expired_before_the_replacement_gives_oof_once() {
    let topic =
        SowTopicSettings { expiration: TableExpiration::AfterNs(1_000_000_000), ..sow_topic("orders") };
    let mut pair = with_topics([topic]);
    pair.subscribe(2, &sow(3, "orders"));
    for (sequence, after_ms) in [(1, 0), (2, 50), (3, 1)] {
        pair.pass(Duration::from_millis(after_ms));
        publish_all(&mut pair, sequence, &[&format!(r#"{{"id":{sequence}}}"#)]);
    }
    // The first record is removed at its end, the others up to 100 ms later.
    pair.pass(Duration::from_millis(1010));
    assert_eq!(pair.take_rows(2)[3..], [r#"-Expired {"id":1}"#]);
    pair.subscribe(2, &replacing(Subscribe { filter: Some("/id < 3"), ..sow(3, "orders") }));
    pair.turn();
    let mut rows = pair.take_rows(2);
    rows.sort();
    assert_eq!(rows, [r#"-Expired {"id":2}"#, r#"-Expired {"id":3}"#]);
    pair.pass(Duration::from_millis(200));
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
}

#[test]
fn a_delta_subscription_has_records_that_enter_whole_and_then_differences() {
    let mut pair = with_topics([sow_topic("orders")]);
    publish_all(&mut pair, 1, &[r#"{"id":1,"a":1}"#, r#"{"id":2,"a":1}"#]);
    pair.subscribe(2, &Subscribe { filter: Some("/id = 1"), ..sow_delta(3, "orders") });
    pair.subscribe(2, &replacing(sow_delta(3, "orders")));
    publish_all(&mut pair, 3, &[r#"{"id":1,"a":2}"#, r#"{"id":2,"a":2}"#]);
    let rows = [r#"={"id":1,"a":1}"#, r#"+{"id":2,"a":1}"#, r#"~{"id":1,"a":2}"#, r#"~{"id":2,"a":2}"#];
    assert_eq!(pair.take_rows(2), rows);
}

#[test]
fn a_delta_subscription_without_a_query_changes_between_two_messages() {
    let mut pair = with_topics([sow_topic("orders")]);
    publish_all(&mut pair, 1, &[r#"{"id":1,"a":1}"#, r#"{"id":2,"a":1}"#]);
    let options = SubscribeOptions::DELTA.and(SubscribeOptions::OOF);
    pair.subscribe(2, &Subscribe { options, filter: Some("/id = 1"), ..delta(3, "orders") });
    publish_all(&mut pair, 3, &[r#"{"id":1,"a":2}"#, r#"{"id":2,"a":2}"#]);
    pair.subscribe(2, &replacing(Subscribe { options, filter: Some("/id = 2"), ..delta(3, "orders") }));
    publish_all(&mut pair, 5, &[r#"{"id":1,"a":3}"#, r#"{"id":2,"a":3}"#]);
    assert_eq!(pair.take_rows(2), [r#"~{"id":1,"a":2}"#, r#"~{"id":2,"a":3}"#]);
}

#[test]
fn a_subscription_can_move_to_a_topic_without_last_values_and_back() {
    let mut pair = up_to_three();
    pair.subscribe(2, &replacing(sow(3, "plain")));
    pair.publish(1, 6, "plain", "message");
    pair.turn();
    let said = pair.take(2);
    assert!(matches!(said.last(), Some(Said::Message { data, .. }) if data == "message"), "{said:?}");
    assert_eq!(said.into_iter().filter_map(short).count(), 3);
    pair.subscribe(2, &replacing(Subscribe { filter: Some("/id > 4"), ..sow(3, "orders") }));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":5}"#]);
}

/// The records of the topic at these places, from the highest id on.
fn page(number: u32, skip_n: u32, top_n: u32) -> Subscribe<'static> {
    let (skip_n, top_n) = (Some(skip_n), Some(top_n));
    Subscribe { order_by: Some("/id DESC"), skip_n, top_n, ..sow(number, "orders") }
}

#[test]
fn only_a_page_is_replaced_by_a_page() {
    let mut pair = up_to_three();
    pair.subscribe(2, &page(4, 0, 1));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"={"id":5}"#]);
    for (number, replace) in [(4, sow(4, "orders")), (3, page(3, 0, 1))] {
        pair.subscribe(2, &replacing(replace));
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::BadOption, number, number)]);
    }
    publish_all(&mut pair, 6, &[r#"{"id":6}"#]);
    assert_eq!(pair.take_rows(2), [r#"-Match {"id":5}"#, r#"+{"id":6}"#]);
}

#[test]
fn a_replaced_page_gives_the_records_that_leave_and_those_that_enter() {
    let mut pair = up_to_three();
    pair.subscribe(2, &page(4, 0, 2));
    pair.turn();
    pair.take(2);
    // The next page, and then a larger one that has some of its records.
    pair.subscribe(2, &replacing(page(4, 2, 2)));
    pair.turn();
    let turned = [r#"-Match {"id":5}"#, r#"-Match {"id":4}"#, r#"+{"id":3}"#, r#"+{"id":2}"#];
    assert_eq!(pair.take_rows(2), turned);
    pair.subscribe(2, &replacing(page(4, 1, 4)));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":4}"#, r#"+{"id":1}"#]);
    // Another filter, and then another select list, which delivers the same parts of the records 5
    // and 3.
    let odd = || Subscribe { filter: Some("/id % 2 = 1"), ..page(4, 0, 2) };
    pair.subscribe(2, &replacing(odd()));
    pair.turn();
    let turned = [r#"-Match {"id":4}"#, r#"-Match {"id":2}"#, r#"-Match {"id":1}"#, r#"+{"id":5}"#];
    assert_eq!(pair.take_rows(2), turned);
    pair.subscribe(2, &replacing(Subscribe { select: Some("-/x"), ..odd() }));
    pair.turn();
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
    publish_all(&mut pair, 6, &[r#"{"id":5,"x":1}"#, r#"{"id":7}"#]);
    assert_eq!(pair.take_rows(2), [r#"+{"id":5}"#, r#"-Match {"id":3}"#, r#"+{"id":7}"#]);
    pair.subscribe(2, &replacing(odd()));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":5,"x":1}"#], "the program has another part of the record");
}

#[test]
fn a_page_moves_to_another_topic_and_keeps_no_record_of_the_former_one() {
    let mut pair = up_to_three();
    pair.publish(1, 6, "others", r#"{"id":7}"#);
    pair.subscribe(2, &page(4, 0, 1));
    pair.turn();
    pair.take(2);
    pair.subscribe(2, &replacing(Subscribe { topic: "others", ..page(4, 0, 1) }));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"-Match {"id":5}"#, r#"+{"id":7}"#]);
    publish_all(&mut pair, 7, &[r#"{"id":9}"#]);
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
}

#[test]
fn a_page_stays_in_effect_until_the_page_that_replaces_it_has_looked_at_all_records() {
    let mut pair = with_topics([sow_topic("orders")]);
    for id in 1..=3000 {
        pair.publish(1, id, "orders", &format!(r#"{{"id":{id}}}"#));
    }
    pair.subscribe(2, &page(4, 0, 1));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"={"id":3000}"#]);
    // A clock that moves by itself ends each portion of work early.
    let mut at_ns = 0;
    pair.broker.set_stopwatch(Box::new(move || {
        at_ns += 2_000_000;
        quire_types::time::Instant(at_ns)
    }));
    pair.subscribe(2, &replacing(page(4, 1, 1)));
    pair.subscribe(2, &replacing(page(4, 0, 2)));
    pair.one_turn();
    pair.publish(1, 3001, "orders", r#"{"id":3001}"#);
    pair.one_turn();
    assert_eq!(pair.take_rows(2), [r#"-Match {"id":3000}"#, r#"+{"id":3001}"#]);
    pair.turn();
    // The second page, and then the third one.
    let turns = [r#"-Match {"id":3001}"#, r#"+{"id":3000}"#, r#"+{"id":3001}"#];
    assert_eq!(pair.take_rows(2), turns);
    pair.publish(1, 3002, "orders", r#"{"id":3002}"#);
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"-Match {"id":3000}"#, r#"+{"id":3002}"#]);
}

/// Found by the simulation: the keys of the new page hid the messages of the former one.
#[test]
fn a_page_gets_all_its_messages_until_a_page_of_other_keys_takes_its_place() {
    let mut pair = with_topics([supplied("orders")]);
    let put = |pair: &mut Pair, sequence, key: &str, data: &str| {
        let publish = Publish { key: key.as_bytes(), ..publish(sequence, "orders", data) };
        pair.send(1, &Command::Publish(publish));
    };
    put(&mut pair, 1, "a", r#"{"id":1}"#);
    put(&mut pair, 2, "b", r#"{"id":2}"#);
    let of_key = |key| Subscribe { keys: Keys::from_bytes(key), ..page(4, 0, 2) };
    pair.subscribe(2, &of_key(b"\x01a"));
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"={"id":1}"#]);
    // The new page looks at the records at the end of the turn.
    pair.subscribe(2, &replacing(of_key(b"\x01b")));
    put(&mut pair, 3, "a", r#"{"id":3}"#);
    put(&mut pair, 4, "b", r#"{"id":4}"#);
    pair.turn();
    let rows = [r#"+{"id":3}"#, r#"-Match {"id":3}"#, r#"+{"id":4}"#];
    assert_eq!(pair.take_rows(2), rows);
    put(&mut pair, 5, "a", r#"{"id":5}"#);
    put(&mut pair, 6, "b", r#"{"id":6}"#);
    pair.turn();
    assert_eq!(pair.take_rows(2), [r#"+{"id":6}"#]);
}

#[test]
fn a_page_that_is_replaced_before_its_records_were_sent_gives_them_first() {
    let mut pair = up_to_three();
    pair.subscribe(2, &page(4, 0, 2));
    pair.subscribe(2, &replacing(page(4, 1, 2)));
    pair.publish(1, 6, "orders", r#"{"id":6}"#);
    pair.turn();
    let mut shown = std::collections::BTreeSet::new();
    for row in pair.take_rows(2) {
        match row.strip_prefix("-Match ") {
            Some(left) => assert!(shown.remove(left), "{row}"),
            None => assert!(shown.insert(row[1..].to_owned()), "{row}"),
        }
    }
    assert_eq!(Vec::from_iter(shown), [r#"{"id":4}"#, r#"{"id":5}"#]);
}

#[test]
fn a_conflated_subscription_is_replaced_after_the_messages_that_it_holds() {
    let mut pair = up_to_three();
    let conflated =
        |filter| Subscribe { filter: Some(filter), conflation_ns: Some(1_000_000_000), ..sow(3, "orders") };
    pair.subscribe(2, &replacing(conflated("/id <= 3")));
    publish_all(&mut pair, 6, &[r#"{"id":1,"n":1}"#, r#"{"id":1,"n":2}"#]);
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
    pair.subscribe(2, &replacing(conflated("/id IN (3, 4)")));
    publish_all(&mut pair, 8, &[r#"{"id":4,"n":1}"#, r#"{"id":4,"n":2}"#]);
    let mut rows = pair.take_rows(2);
    rows[1..3].sort();
    let difference = [r#"-Match {"id":1,"n":2}"#, r#"-Match {"id":2}"#, r#"+{"id":4}"#];
    assert_eq!(rows, [&[r#"+{"id":1,"n":2}"#][..], &difference].concat());
    pair.pass(Duration::from_millis(1001));
    assert_eq!(pair.take_rows(2), [r#"+{"id":4,"n":2}"#]);
    // From here on each message comes at once, and once.
    pair.subscribe(2, &replacing(Subscribe { filter: Some("/id = 4"), ..sow(3, "orders") }));
    publish_all(&mut pair, 10, &[r#"{"id":4,"n":3}"#, r#"{"id":4,"n":4}"#]);
    let rows = [r#"-Match {"id":3}"#, r#"+{"id":4,"n":3}"#, r#"+{"id":4,"n":4}"#];
    assert_eq!(pair.take_rows(2), rows);
    pair.pass(Duration::from_millis(1001));
    assert_eq!(pair.take_rows(2), Vec::<String>::new());
}
