//! The reasons that consumers give for cancels and expiries, in dead letters (docs/queues.md
//! section 9).

use std::time::Duration;

use quire_broker::QueueSettings;
use quire_command::*;
use quire_queue::{Leasing, Verdict};

use crate::pair::*;
use crate::queue_pair::*;

const SECOND: u64 = 1_000_000_000;

/// A queue `jobs` with dead letters, and these limits.
fn jobs() -> QueueSettings {
    QueueSettings {
        dead_letter_topic: Some("dead".into()),
        lease_period_ns: Some(30 * SECOND),
        retry_delay_ns: Vec::new(),
        ..queue("jobs")
    }
}

/// A publisher 1, workers 2 and 4 on `jobs`, and an auditor 3 of dead letters.
fn working(settings: QueueSettings) -> Pair {
    let mut pair = with_queues([settings]);
    enter(&mut pair);
    pair
}

fn enter(pair: &mut Pair) {
    for (client, name) in [(1, "publisher"), (2, "worker"), (3, "auditor"), (4, "other")] {
        pair.client(client, name);
    }
    pair.subscribe(2, &consume(1, "jobs", 100_000));
    pair.subscribe(3, &subscribe(1, "dead"));
    pair.turn();
    pair.take(2);
    pair.take(3);
}

/// The reasons of the letters since the last call: those of the queue, and that of the consumer.
fn letters(pair: &mut Pair) -> Vec<(String, Option<String>)> {
    let reasons = |letter: String| {
        let letter: serde_json::Value = serde_json::from_str(&letter).unwrap();
        let names: Vec<&str> =
            letter["reason"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        (names.join(","), letter.get("consumer_reason").map(|reason| reason.as_str().unwrap().to_owned()))
    };
    pair.take_data(3).into_iter().map(reasons).collect()
}

fn letter(reasons: &str, consumer_reason: Option<&str>) -> (String, Option<String>) {
    (reasons.to_owned(), consumer_reason.map(str::to_owned))
}

#[test]
fn a_letter_has_the_reason_of_the_cancel_that_ended_the_message_and_of_no_earlier_one() {
    for (settings, reasons) in [
        (QueueSettings { max_cancels: Some(1), ..jobs() }, "max_cancels"),
        (QueueSettings { max_deliveries: Some(2), ..jobs() }, "max_deliveries"),
    ] {
        for (last, shown) in [("KeyError: 'id'", Some("KeyError: 'id'")), ("", None)] {
            let mut pair = working(settings.clone());
            publish_all(&mut pair, 1..=1);
            for reason in ["the first one", last] {
                let held = pair.take_queued(2);
                assert_eq!(letters(&mut pair), []);
                pair.settle_because(2, "jobs", Verdict::CancelWithDelay { delay_ms: 0 }, &held, reason);
                pair.turn();
            }
            assert_eq!(letters(&mut pair), [letter(reasons, shown)]);
        }
    }
}

#[test]
fn a_letter_has_the_reason_of_an_expiry_of_held_messages_of_others_and_of_a_filter() {
    let mut pair = working(jobs());
    publish_all(&mut pair, 1..=6);
    let held = pair.take_queued(2);
    pair.settle_because(2, "jobs", Verdict::Expire, &held[..1], "it holds this one");
    pair.settle_because(4, "jobs", Verdict::Expire, &held[1..2], "späť");
    pair.settle_because(2, "jobs", Verdict::Expire, &held[2..3], "");
    pair.turn();
    let seen = letters(&mut pair);
    let expired = |reason| letter("forced_expire", reason);
    assert_eq!(seen, [expired(Some("it holds this one")), expired(Some("späť")), expired(None)]);
    // After a restart nothing is out: the bookmarks are looked for in the log.
    let mut pair = pair.restart(queue_config([jobs()]));
    pair.client(1, "operator");
    pair.client(3, "auditor");
    pair.subscribe(3, &subscribe(1, "dead"));
    pair.turn();
    pair.take(3);
    pair.settle_because(1, "jobs", Verdict::Expire, &held[3..4], "found in the log");
    pair.turn();
    assert_eq!(letters(&mut pair), [expired(Some("found in the log"))]);
    let (messages, acks) = (Selection::Matching("1 = 1"), Acks::default());
    let purge =
        Settle { verdict: Verdict::Expire, command: 0, acks, queue: "jobs", messages, reason: "a load test" };
    pair.send(1, &Command::Settle(purge));
    pair.turn();
    assert_eq!(letters(&mut pair), vec![expired(Some("a load test")); 2]);
    publish_all(&mut pair, 11..=20);
    pair.send(1, &Command::Settle(Settle { messages: Selection::Matching(""), ..purge }));
    pair.turn();
    assert_eq!(letters(&mut pair), vec![expired(Some("a load test")); 10]);
}

#[test]
fn a_letter_without_a_verdict_has_no_reason() {
    let settings = QueueSettings { max_deliveries: Some(2), ..jobs() };
    let mut pair = working(settings);
    publish_all(&mut pair, 1..=2);
    let held = pair.take_queued(2);
    pair.settle_because(2, "jobs", Verdict::CancelWithDelay { delay_ms: 0 }, &held, "busy");
    pair.turn();
    assert_eq!(pair.take_queued(2).len(), 2);
    // The lease of one is over before its cancel is handled, in the same turn.
    pair.now_ns += 30 * SECOND;
    pair.settle_because(2, "jobs", Verdict::Cancel, &held[..1], "too late");
    pair.turn();
    assert_eq!(letters(&mut pair), vec![letter("max_deliveries", None); 2]);
}

#[test]
fn the_reason_of_a_cancel_that_returns_a_message_is_not_that_of_its_next_end() {
    let mut pair = working(jobs());
    publish_all(&mut pair, 1..=1);
    let held = pair.take_queued(2);
    // Both commands come in one turn.
    pair.settle_because(2, "jobs", Verdict::CancelWithDelay { delay_ms: 0 }, &held, "busy");
    pair.settle_because(4, "jobs", Verdict::Expire, &held, "");
    pair.turn();
    assert_eq!(letters(&mut pair), [letter("forced_expire", None)]);
}

#[test]
fn a_cancel_after_the_time_of_a_message_gives_its_reason() {
    let mut pair = working(QueueSettings { expiration_ns: Some(SECOND), ..jobs() });
    publish_all(&mut pair, 1..=1);
    let held = pair.take_queued(2);
    pair.pass(Duration::from_secs(2));
    pair.settle_because(2, "jobs", Verdict::Cancel, &held, "busy");
    pair.turn();
    assert_eq!(letters(&mut pair), [letter("time_limit", Some("busy"))]);
}

#[test]
fn a_strict_queue_takes_no_reason_from_another_consumer() {
    let mut pair = working(QueueSettings { leasing: Leasing::Strict, ..jobs() });
    publish_all(&mut pair, 1..=1);
    let held = pair.take_queued(2);
    pair.settle_because(4, "jobs", Verdict::Expire, &held, "not its message");
    pair.turn();
    assert_eq!(letters(&mut pair), []);
    pair.settle_because(2, "jobs", Verdict::Expire, &held, "no item");
    pair.turn();
    assert_eq!(letters(&mut pair), [letter("forced_expire", Some("no item"))]);
}

#[test]
fn a_crash_leaves_the_letter_with_its_reason_or_the_message_in_its_queue() {
    for is_written in [false, true] {
        let mut pair = working(jobs());
        publish_all(&mut pair, 1..=1);
        let held = pair.take_queued(2);
        pair.writes_at_once = false;
        pair.settle_because(2, "jobs", Verdict::Expire, &held, "no item");
        pair.turn();
        if is_written {
            while pair.write() {
                pair.turn();
            }
        }
        let mut pair = pair.restart(queue_config([jobs()]));
        pair.client(3, "auditor");
        assert_eq!(pair.figure("jobs", "depth"), u64::from(!is_written));
        pair.subscribe(3, &replay(1, "dead", "0"));
        pair.turn();
        let expected = is_written.then(|| letter("forced_expire", Some("no item")));
        assert_eq!(letters(&mut pair), Vec::from_iter(expected));
    }
}

#[test]
fn a_reason_does_not_take_the_room_of_the_message() {
    let mut settings = queue_config([jobs()]);
    settings.transports[0].max_message_size = 2048;
    let mut pair = Pair::with(settings);
    enter(&mut pair);
    let (reason, control) = ("x".repeat(REASON_SIZE_MAX), "\u{1}".repeat(REASON_SIZE_MAX));
    let long = format!("{:?}", "m".repeat(1500));
    for (sequence, data) in [(1, "1"), (2, &*long), (3, "3")] {
        pair.publish(1, sequence, "jobs", data);
    }
    pair.turn();
    let held = pair.take_queued(2);
    for (message, reason) in held.iter().zip([&reason, &reason, &control]) {
        pair.settle_because(2, "jobs", Verdict::Expire, std::slice::from_ref(message), reason);
    }
    pair.turn();
    let letters: Vec<serde_json::Value> =
        pair.take_data(3).iter().map(|letter| serde_json::from_str(letter).unwrap()).collect();
    assert_eq!((&letters[0]["message"], &letters[0]["consumer_reason"]), (&1.into(), &reason.into()));
    assert_eq!((&letters[1]["message"], letters[1].get("consumer_reason")), (&"m".repeat(1500).into(), None));
    // As JSON, each control character has six bytes.
    assert_eq!((&letters[2]["message"], letters[2].get("consumer_reason")), (&3.into(), None));
}

#[test]
fn a_letter_has_the_reason_also_when_its_message_cannot_have_a_place_in_it() {
    let mut settings = queue_config([jobs()]);
    settings.transports[0].max_message_size = 2048;
    let mut pair = Pair::with(settings);
    enter(&mut pair);
    pair.publish(1, 1, "jobs", &format!("{:?}", "m".repeat(2000)));
    pair.turn();
    let held = pair.take_queued(2);
    pair.settle_because(2, "jobs", Verdict::Expire, &held, "too large for the database");
    pair.turn();
    let letter: serde_json::Value = serde_json::from_str(&pair.take_data(3)[0]).unwrap();
    assert_eq!(letter["consumer_reason"], "too large for the database");
    assert_eq!(letter.get("message"), None);
}

#[test]
fn the_reasons_of_letters_that_wait_have_a_limit_and_a_shared_one_counts_once() {
    const COUNT: u64 = 16 * 1024;
    let mut pair = working(jobs());
    publish_all(&mut pair, 1..=COUNT + 100);
    let held = pair.take_queued(2);
    let reason = |number: usize| format!("{number:0size$}", size = REASON_SIZE_MAX);
    for (number, message) in held.iter().enumerate() {
        pair.settle_because(2, "jobs", Verdict::Expire, std::slice::from_ref(message), &reason(number));
    }
    pair.turn();
    let shown = letters(&mut pair);
    assert_eq!(shown.len() as u64, COUNT + 100);
    for (number, (_, shown)) in shown.iter().enumerate() {
        let expected = (number < COUNT as usize).then(|| reason(number));
        assert!(*shown == expected, "letter {number}");
    }
    // Nothing waits any more, so there is room again.
    publish_all(&mut pair, COUNT + 101..=2 * COUNT + 400);
    let held = pair.take_queued(2);
    pair.settle_because(2, "jobs", Verdict::Expire, &held, &reason(7));
    pair.turn();
    let shown = letters(&mut pair);
    assert_eq!(shown.len() as u64, COUNT + 300);
    assert!(shown.iter().all(|(_, shown)| *shown == Some(reason(7))));
}
