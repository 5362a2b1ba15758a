//! How connections begin and end: logon, names, heartbeats, goodbye, shutdown, strangers
//! (docs/protocol.md section 2).

use std::time::Duration;

use proptest::prelude::*;
use quire_broker::Event;
use quire_command::*;

use super::pair::*;

fn ends(pair: &mut Pair, client: u64, code: Code) {
    pair.turn();
    let said = pair.take(client);
    assert_eq!(said[said.len() - 2..], [Said::Error(code), Said::Closed], "{said:?}");
}

#[test]
fn the_same_user_takes_over_its_name() {
    let mut pair = Pair::new();
    pair.client(1, "loader");
    pair.subscribe(1, &subscribe(7, "orders"));
    pair.turn();
    pair.take(1);
    pair.connect(2);
    pair.send(2, &Command::Logon(logon("loader")));
    pair.turn();
    assert_eq!(pair.take(1), [Said::Error(Code::NameInUse), Said::Closed]);
    assert_eq!(pair.take(2), [Said::LoggedOn { last_sequence: 0 }]);
    assert_eq!(pair.broker.stats().subscription_count, 0);
    let told =
        |event: &Event| matches!(event, Event::Ended { reason, .. } if reason.starts_with("name in use"));
    assert!(pair.log.iter().any(told));
}

#[test]
fn a_late_logon_of_an_earlier_connection_does_not_end_the_newer_one() {
    let mut pair = Pair::new();
    let logon = |connection_number| Logon { incarnation: 5, connection_number, ..logon("loader") };
    for (client, number) in [(1, 2), (2, 1), (3, 3)] {
        pair.connect(client);
        pair.send(client, &Command::Logon(logon(number)));
        pair.turn();
    }
    assert_eq!(pair.take(2), [Said::Error(Code::NameInUse), Said::Closed]);
    let said = [Said::LoggedOn { last_sequence: 0 }, Said::Error(Code::NameInUse), Said::Closed];
    assert_eq!(pair.take(1), said, "the third connection is newer");
    assert_eq!(pair.take(3), [Said::LoggedOn { last_sequence: 0 }]);
    // Another client with the name takes over, with any number.
    pair.connect(4);
    pair.send(4, &Command::Logon(Logon { incarnation: 6, ..logon(1) }));
    pair.turn();
    assert_eq!(pair.take(3), [Said::Error(Code::NameInUse), Said::Closed]);
    assert_eq!(pair.take(4), [Said::LoggedOn { last_sequence: 0 }]);
}

#[test]
fn another_user_is_refused_the_name() {
    let mut pair = Pair::new();
    pair.connect(1);
    pair.send(1, &Command::Logon(Logon { user: Some("ann"), ..logon("loader") }));
    pair.connect(2);
    pair.send(2, &Command::Logon(Logon { user: Some("bob"), ..logon("loader") }));
    pair.turn();
    assert_eq!(pair.take(1), [Said::LoggedOn { last_sequence: 0 }]);
    assert_eq!(pair.take(2), [Said::Error(Code::NameInUse), Said::Closed]);
    pair.publish(1, 1, "orders", "goes on");
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1)]);
}

#[test]
fn what_an_older_connection_published_is_persisted_before_the_newer_one_is_let_in() {
    let mut pair = Pair::new();
    pair.client(1, "loader");
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", "a");
    pair.connect(2);
    pair.send(2, &Command::Logon(logon("loader")));
    pair.publish(2, 2, "orders", "sent without waiting for the answer");
    pair.turn();
    assert_eq!(pair.take(2), []);
    pair.write();
    pair.turn();
    assert_eq!(pair.take(2), [Said::LoggedOn { last_sequence: 1 }]);
    pair.write();
    pair.turn();
    assert_eq!(pair.take(2), [Said::Persisted(2)]);
}

#[test]
fn nothing_but_a_logon_comes_first_and_only_once() {
    let mut pair = Pair::new();
    pair.connect(1);
    pair.publish(1, 1, "orders", "a");
    ends(&mut pair, 1, Code::LogonRequired);
    pair.client(2, "twice");
    pair.send(2, &Command::Logon(logon("twice")));
    ends(&mut pair, 2, Code::DuplicateLogon);
    assert_eq!(pair.broker.stats().appended, 0);
}

#[test]
fn a_logon_must_come_in_time() {
    let mut pair = Pair::new();
    pair.connect(1);
    pair.turn();
    pair.pass(Duration::from_millis(4999));
    assert_eq!(pair.take(1), []);
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.take(1), [Said::Error(Code::LogonRequired), Said::Closed]);
    assert_eq!(pair.broker.stats().connection_count, 0);
}

#[test]
fn heartbeats_go_out_when_nothing_else_does_and_silence_ends_the_connection() {
    let mut pair = Pair::new();
    pair.connect(1);
    pair.send(1, &Command::Logon(Logon { heartbeat_ms: 1000, ..logon("a") }));
    pair.turn();
    pair.take(1);
    for _ in 0..5 {
        pair.pass(Duration::from_millis(999));
        pair.send(1, &Command::Heartbeat);
        pair.pass(Duration::from_millis(1));
        assert_eq!(pair.take(1), [Said::Heartbeat]);
    }
    pair.pass(Duration::from_millis(500));
    pair.publish(1, 1, "orders", "x");
    pair.turn();
    pair.pass(Duration::from_millis(999));
    assert_eq!(pair.take(1), [Said::Persisted(1)], "something was sent within the interval");
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.take(1), [Said::Heartbeat]);
    pair.pass(Duration::from_millis(999));
    assert_eq!(pair.take(1), []);
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.take(1), [Said::Heartbeat, Said::Error(Code::HeartbeatTimeout), Said::Closed]);
}

#[test]
fn goodbye_waits_for_the_acknowledgements_that_are_owed() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.writes_at_once = false;
    pair.subscribe(1, &subscribe(7, "orders"));
    pair.publish(1, 1, "orders", "x");
    pair.send(1, &Command::Flush { command: 3, acks: Acks::PERSISTED });
    pair.send(1, &Command::Goodbye);
    pair.publish(1, 2, "orders", "too late");
    pair.turn();
    pair.take(1);
    assert_eq!(pair.broker.stats().subscription_count, 0);
    pair.write();
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1), ack(AckKind::Persisted, 3, 0), Said::Closed]);
    assert_eq!(pair.broker.stats().connection_count, 0);
    assert_eq!(pair.broker.stats().appended, 1);
}

#[test]
fn nothing_remains_of_publishers_that_are_gone_and_settled() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.publish(1, 1, "orders", "x");
    pair.turn();
    assert_eq!(pair.broker.stats().publisher_count, 1);
    pair.publish(1, 1, "orders", "a duplicate");
    pair.disconnect(1);
    pair.turn();
    assert_eq!(pair.broker.stats().publisher_count, 0);
    pair.client(2, "b");
    pair.publish(2, 1, "orders", "x");
    pair.disconnect(2);
    pair.turn();
    assert_eq!(pair.broker.stats().publisher_count, 0);
}

#[test]
fn a_shutdown_flushes_acknowledges_and_says_so() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.client(2, "idle");
    pair.writes_at_once = false;
    pair.publish(1, 1, "orders", "x");
    let now = pair.now();
    pair.broker.handle(now, quire_broker::Input::Shutdown);
    pair.publish(1, 2, "orders", "too late");
    pair.turn();
    assert_eq!(pair.take(1), []);
    assert!(!pair.broker.is_drained());
    pair.write();
    pair.turn();
    assert_eq!(pair.take(1), [Said::Persisted(1), Said::Error(Code::ShuttingDown), Said::Closed]);
    assert_eq!(pair.take(2), [Said::Error(Code::ShuttingDown), Said::Closed]);
    assert!(pair.broker.is_drained());
    assert_eq!(pair.broker.stats().appended, 1);
}

#[test]
fn a_frame_that_is_none_ends_the_connection() {
    let mut pair = Pair::new();
    pair.client(1, "a");
    pair.send_bytes(1, &[1, 0, 0, 0, 200]);
    ends(&mut pair, 1, Code::InvalidFrame);
    pair.connect(2);
    pair.send_bytes(2, &(64 * 1024 + 1u32).to_le_bytes());
    ends(&mut pair, 2, Code::MessageTooLarge);
}

proptest! {
    /// Any bytes give frames, an error and a close, or nothing yet: no panic, and no more memory
    /// than they take.
    #[test]
    fn any_bytes_are_survived(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 1..8),
        logged_on: bool,
        kinds in proptest::collection::vec((1u8..17, proptest::collection::vec(any::<u8>(), 0..64)), 0..8),
    ) {
        let mut pair = Pair::new();
        if logged_on {
            pair.client(1, "a");
        } else {
            pair.connect(1);
        }
        for (kind, body) in kinds {
            let mut frame = (body.len() as u32 + 1).to_le_bytes().to_vec();
            frame.push(kind);
            frame.extend(body);
            pair.send_bytes(1, &frame);
        }
        for piece in pieces {
            pair.send_bytes(1, &piece);
            pair.turn();
        }
        let said = pair.take(1);
        if let Some(at) = said.iter().position(|said| matches!(said, Said::Error(_))) {
            prop_assert_eq!(&said[at + 1..], &[Said::Closed]);
            prop_assert_eq!(pair.broker.stats().connection_count, 0);
        }
    }
}

/// One publisher says goodbye before a message is persisted, and another one does not. The broker
/// must not confuse or lose them.
#[test]
fn a_publisher_that_says_goodbye_without_waiting_is_acknowledged_and_forgotten() {
    let mut pair = Pair::new();
    pair.client(1, "honest");
    for round in 0..50 {
        let client = 2 + round;
        pair.connect(client);
        let name = format!("hasty-{}", round % 3);
        pair.send(client, &Command::Logon(logon(&name)));
        pair.publish(client, 1 + round, "orders", "hasty");
        pair.send(client, &Command::Goodbye);
        pair.publish(1, 1 + round, "orders", "honest");
        pair.turn();
        let said = pair.take(client);
        assert_eq!(said[1..], [Said::Persisted(1 + round), Said::Closed], "round {round}: {said:?}");
        assert_eq!(pair.take(1), [Said::Persisted(1 + round)], "round {round}");
    }
    assert_eq!(pair.broker.stats().publisher_count, 1, "who left and is owed nothing is forgotten");
}

/// The connection ends before the batch is written. Its messages are persisted when the name logs
/// on again.
#[test]
fn a_publisher_that_says_goodbye_and_disconnects_before_the_sync_finds_its_last_sequence() {
    let mut pair = Pair::new();
    pair.writes_at_once = false;
    pair.connect(1);
    pair.send(1, &Command::Logon(logon("hasty")));
    pair.publish(1, 1, "orders", "hasty");
    pair.send(1, &Command::Goodbye);
    pair.one_turn();
    pair.disconnect(1);
    pair.one_turn();
    pair.writes_at_once = true;
    pair.connect(2);
    pair.send(2, &Command::Logon(logon("hasty")));
    pair.turn();
    assert_eq!(pair.take(2), [Said::LoggedOn { last_sequence: 1 }]);
}
