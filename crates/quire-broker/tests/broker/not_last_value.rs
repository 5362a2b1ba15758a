//! The commands of last-value topics on topics that keep no last values (docs/last-values.md).

use quire_command::*;

use crate::pair::*;
use crate::queue_pair::{queue, with_queues};

fn query(topic: &str) -> Query<'_> {
    Query { command: 7, acks: Acks::PROCESSED, subscription: 9, topic, ..Query::default() }
}

#[test]
fn a_query_of_records_is_refused_with_not_last_value() {
    let mut pair = Pair::new();
    pair.client(1, "reader");
    pair.send(1, &Command::Query(Query { wants_last_values: true, ..query("orders") }));
    pair.send(1, &Command::Query(query("orders")));
    pair.turn();
    assert_eq!(pair.take(1), [refused(Code::NotLastValue, 7, 9), refused(Code::UnknownQueue, 7, 9)]);
    // The name of a queue need not be a pattern.
    pair.send(1, &Command::Query(Query { wants_last_values: true, ..query("(") }));
    pair.send(1, &Command::Query(query("(")));
    pair.turn();
    assert_eq!(pair.take(1), [refused(Code::BadTopic, 7, 9), refused(Code::UnknownQueue, 7, 9)]);
}

#[test]
fn a_publish_with_a_key_is_refused_and_a_delta_is_an_ordinary_message() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair.subscribe(2, &subscribe(3, "orders"));
    pair.turn();
    pair.take(2);
    pair.send(1, &Command::Publish(Publish { key: b"a", ..publish(1, "orders", "{}") }));
    pair.send(1, &Command::Publish(Publish { is_delta: true, ..publish(2, "orders", "{\"a\":1}") }));
    pair.turn();
    let failed = Said::Failed { sequence: 1, code: Code::NotLastValue, scope: FailureScope::One };
    assert_eq!(pair.take(1), [failed, Said::Persisted(2)]);
    assert_eq!(pair.take_data(2), ["{\"a\":1}"]);
}

#[test]
fn a_refused_delete_uses_its_sequence() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.publish(1, 1, "orders", "{}");
    let delete = SowDelete {
        command: 5,
        acks: Acks::PROCESSED,
        sequence: 2,
        topic: "orders",
        filter: Some("1 = 1"),
        ..SowDelete::default()
    };
    pair.send(1, &Command::SowDelete(delete));
    pair.turn();
    assert_eq!(pair.take(1), [refused(Code::NotLastValue, 5, 0), Said::Persisted(2)]);
    pair.publish(1, 2, "orders", "{}");
    pair.publish(1, 3, "orders", "{}");
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(3)]);
    assert_eq!(pair.broker.stats().duplicate_count, 1);
}

#[test]
fn a_subscription_with_sow_is_an_ordinary_one_after_an_empty_result() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.client(2, "reader");
    let options = SubscribeOptions::SOW.and(SubscribeOptions::OOF);
    pair.publish(1, 1, "orders", "before");
    let keys = Keys::from_bytes(b"\x01a");
    pair.subscribe(2, &Subscribe { options, top_n: Some(9), keys, ..subscribe(3, "orders") });
    pair.publish(1, 2, "orders", "after");
    pair.turn();
    let said = pair.take(2);
    assert_eq!(said[..2], [ack(AckKind::Processed, 3, 3), ack(AckKind::Completed, 3, 3)]);
    assert!(matches!(&said[2..], [Said::Message { data, .. }] if data == "after"), "{said:?}");
}

#[test]
fn a_queue_has_no_records_for_a_subscription() {
    let mut pair = with_queues([queue("JOBS")]);
    pair.client(1, "reader");
    for topic in ["JOBS", "^J"] {
        pair.subscribe(1, &Subscribe { options: SubscribeOptions::SOW, ..subscribe(3, topic) });
        pair.turn();
        assert_eq!(pair.take(1), [refused(Code::BadOption, 3, 3)], "{topic}");
    }
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let mut pair = Pair::new();
    pair.client(1, "reader");
    let plain = || subscribe(3, "orders");
    let sow = || Subscribe { options: SubscribeOptions::SOW, ..plain() };
    for refused_subscribe in [
        Subscribe { options: SubscribeOptions::OOF, ..plain() },
        Subscribe { order_by: Some("/a"), ..plain() },
        Subscribe { top_n: Some(1), ..plain() },
        Subscribe { keys: Keys::from_bytes(b"\x01a"), ..plain() },
        Subscribe { skip_n: Some(1), ..plain() },
        Subscribe {
            options: SubscribeOptions::SOW.and(SubscribeOptions::OOF),
            bookmark: Some("0"),
            ..plain()
        },
        Subscribe { conflation_ns: Some(10_000_000), ..sow() },
    ] {
        pair.subscribe(1, &refused_subscribe);
        pair.turn();
        assert_eq!(pair.take(1), [refused(Code::BadOption, 3, 3)], "{refused_subscribe:?}");
    }
    pair.subscribe(1, &plain());
    pair.turn();
    pair.take(1);
    let options = SubscribeOptions::SOW.and(SubscribeOptions::REPLACE);
    pair.subscribe(1, &Subscribe { options, ..plain() });
    pair.turn();
    assert_eq!(pair.take(1), [refused(Code::BadOption, 3, 3)]);
}
