//! Select lists: each rule of docs/replay.md for every way in which a message is delivered.

use std::time::Duration;

use quire_broker::RecordedTopic;
use quire_command::*;

use super::pair::*;
use super::queue_pair::{consume, queue, with_queues};

const LIST: &str = "-/,+/symbol,+/order/price";
const WHOLE: &str = r#"{"symbol":"IBM", "qty":7, "order":{"id":4, "price":1.50}}"#;
const PART: &str = r#"{"symbol":"IBM","order":{"price":1.50}}"#;

fn selecting<'a>(subscribe: Subscribe<'a>) -> Subscribe<'a> {
    Subscribe { select: Some(LIST), ..subscribe }
}

fn pair() -> Pair {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair
}

#[test]
fn rule_1_every_kind_of_subscription_gets_its_part_and_others_the_whole() {
    let mut pair = pair();
    pair.publish(1, 1, "ticks", WHOLE);
    pair.turn();
    let live = Subscribe { options: SubscribeOptions::LIVE, ..replay(4, "ticks", "0") };
    let filtered = Subscribe { filter: Some("/qty = 7 AND /order/id = 4"), ..replay(3, "ticks", "0") };
    for subscribe in [subscribe(1, "ticks"), replay(2, "ticks", "0"), filtered, live] {
        pair.subscribe(2, &selecting(subscribe));
    }
    pair.subscribe(2, &replay(5, "ticks", "0"));
    pair.turn();
    for sequence in 2..=3 {
        pair.publish(1, sequence, "ticks", WHOLE);
        pair.turn();
    }
    let mut got = std::collections::BTreeMap::<u32, Vec<String>>::new();
    for said in pair.take(2) {
        if let Said::Message { subscription, data, .. } = said {
            got.entry(subscription).or_default().push(data);
        }
    }
    assert_eq!(got.remove(&5), Some(vec![WHOLE.to_owned(); 3]));
    assert_eq!(got.remove(&1), Some(vec![PART.to_owned(); 2]));
    assert_eq!(got.into_values().collect::<Vec<_>>(), vec![vec![PART.to_owned(); 3]; 3]);
}

#[test]
fn rule_1_messages_of_a_queue_too() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &Subscribe { filter: Some("/qty = 7"), ..selecting(consume(1, "jobs", 10)) });
    pair.publish(1, 1, "jobs", WHOLE);
    pair.turn();
    let got: Vec<_> = pair.take_queued(2).into_iter().map(|message| message.data).collect();
    assert_eq!(got, [PART]);
}

#[test]
fn rule_5_a_conflation_key_is_taken_from_the_whole_message() {
    for bookmark in [None, Some("0")] {
        let mut pair = pair();
        let conflated = Subscribe {
            bookmark,
            conflation_ns: Some(100_000_000),
            conflation_key: Some("/qty"),
            ..subscribe(1, "ticks")
        };
        pair.subscribe(2, &selecting(conflated));
        pair.turn();
        for (sequence, qty) in [(1, 1), (2, 2), (3, 1)] {
            pair.publish(1, sequence, "ticks", &format!(r#"{{"symbol":{sequence},"qty":{qty}}}"#));
        }
        pair.turn();
        pair.pass(Duration::from_millis(200));
        assert_eq!(pair.take_data(2), [r#"{"symbol":3}"#, r#"{"symbol":2}"#], "{bookmark:?}");
    }
}

#[test]
fn rule_5_bytes_of_a_rate_are_those_that_are_delivered() {
    let mut pair = pair();
    let part = format!(r#"{{"symbol":"{}"}}"#, "x".repeat(1024 - 13));
    let whole = format!(r#"{{"rest":"{}",{}"#, "y".repeat(10_000), &part[1..]);
    for sequence in 1..=3 {
        pair.publish(1, sequence, "ticks", &whole);
    }
    pair.turn();
    pair.subscribe(2, &selecting(Subscribe { rate: Some("1KB"), ..replay(1, "ticks", "0") }));
    pair.turn();
    pair.pass(Duration::from_millis(2_100));
    assert_eq!(part.len(), 1024);
    assert_eq!(pair.take_data(2), vec![part; 3]);
}

#[test]
fn rule_6_what_has_no_parts_is_refused_by_name_and_whole_under_a_pattern() {
    let recorded = RecordedTopic::new;
    let mut config = config();
    config.transaction_log.topics =
        vec![recorded("^marked", "xml"), recorded("^pairs", "nvfix"), recorded(".*", "json")];
    let mut pair = Pair::with(config);
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.subscribe(2, &selecting(replay(1, "marked", "0")));
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::BadOption, 1, 1)]);
    pair.subscribe(2, &selecting(replay(1, "^(marked|pairs|ticks)$", "0")));
    let (xml, nvfix) = ("<symbol>IBM</symbol>", "qty=7\u{1}symbol=IBM\u{1}");
    let messages = [("marked", xml), ("pairs", nvfix), ("ticks", WHOLE), ("ticks", "{\"qty\":")];
    for (sequence, (topic, data)) in (1..).zip(messages) {
        pair.publish(1, sequence, topic, data);
    }
    pair.turn();
    assert_eq!(pair.take_data(2), [xml, "symbol=IBM\u{1}", PART, "{\"qty\":"]);
}

#[test]
fn a_list_that_makes_no_sense_is_refused_and_changes_nothing() {
    let mut pair = pair();
    pair.subscribe(2, &selecting(replay(1, "ticks", "0")));
    pair.turn();
    pair.take(2);
    let replace = Subscribe { options: SubscribeOptions::REPLACE, ..subscribe(1, "ticks") };
    for list in ["", "symbol", "+/legs[0]", &vec!["-/a"; 257].join(",")] {
        pair.subscribe(2, &Subscribe { select: Some(list), ..replace.clone() });
        pair.turn();
        assert_eq!(pair.take(2), [refused(Code::BadOption, 1, 1)], "{list}");
    }
    pair.publish(1, 1, "ticks", WHOLE);
    pair.turn();
    assert_eq!(pair.take_data(2), [PART]);
    pair.subscribe(2, &Subscribe { select: Some("-/order,-/symbol"), ..replace.clone() });
    pair.publish(1, 2, "ticks", WHOLE);
    pair.turn();
    assert_eq!(pair.take_data(2), [r#"{"qty":7}"#]);
    pair.subscribe(2, &replace);
    pair.publish(1, 3, "ticks", WHOLE);
    pair.turn();
    assert_eq!(pair.take_data(2), [WHOLE]);
}

#[test]
fn a_large_message_goes_whole_to_some_subscriptions_and_in_part_to_others() {
    let mut pair = pair();
    let whole =
        format!(r#"{{"symbol":"IBM", "order":{{"id":4, "price":1.50}}, "pad":"{}"}}"#, "x".repeat(20_000));
    for (number, client) in [(1, 3), (2, 4)] {
        pair.client(client, &format!("reader-{client}"));
        pair.subscribe(client, &subscribe(number, "ticks"));
        pair.subscribe(client, &selecting(subscribe(number + 10, "ticks")));
        pair.subscribe(client, &replay(number + 20, "ticks", "0"));
        pair.subscribe(client, &selecting(replay(number + 30, "ticks", "0")));
        pair.turn();
        pair.take(client);
    }
    for sequence in 1..=2 {
        pair.publish(1, sequence, "ticks", &whole);
        pair.turn();
    }
    for (number, client) in [(1, 3), (2, 4)] {
        let mut got = std::collections::BTreeMap::<u32, Vec<String>>::new();
        for said in pair.take(client) {
            if let Said::Message { subscription, data, .. } = said {
                got.entry(subscription).or_default().push(data);
            }
        }
        let (wholes, parts) = (vec![whole.clone(); 2], vec![PART.to_owned(); 2]);
        let expected =
            [(number, &wholes), (number + 10, &parts), (number + 20, &wholes), (number + 30, &parts)];
        assert!(got.iter().map(|(number, data)| (*number, data)).eq(expected), "{:?}", got.keys());
    }
}
