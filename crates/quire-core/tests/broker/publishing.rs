//! What a publisher is told, and what subscribers get at once.

use super::pair::*;
use quire_core::wire::*;

#[test]
fn a_publish_is_delivered_at_once_and_acknowledged_when_persisted() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.client(2, "subscriber");
    pair.subscribe(2, &subscribe(7, "orders"));
    pair.turn();
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 7, 7), ack(AckKind::Completed, 7, 7)]);
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", "a");
    pair.turn();
    assert_eq!(pair.take_data(2), ["a"]);
    assert_eq!(pair.take(1), []);
    pair.write();
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1)]);
}

#[test]
fn a_replay_joins_the_live_edge() {
    let mut pair = Pair::new();
    pair.client(1, "publisher");
    pair.client(2, "subscriber");
    for sequence in 1..=1000 {
        pair.publish(1, sequence, "orders", &sequence.to_string());
    }
    pair.turn();
    pair.subscribe(2, &replay(7, "orders", "0"));
    pair.turn();
    let said = pair.take(2);
    assert_eq!(said.len(), 1002);
    assert_eq!(said[1001], ack(AckKind::Completed, 7, 7));
    pair.publish(1, 1001, "orders", "1001");
    pair.turn();
    assert_eq!(pair.take_data(2), ["1001"]);
}
