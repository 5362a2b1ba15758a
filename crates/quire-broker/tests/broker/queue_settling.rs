//! Verdicts on messages of queues: acknowledged, cancelled, expired, extended, one by one or by
//! filter (docs/queues.md).

use std::time::Duration;

use quire_broker::QueueSettings;
use quire_command::*;
use quire_queue::{Leasing, Semantics, Verdict};

use crate::pair::*;
use crate::queue_pair::*;

const SECOND: u64 = 1_000_000_000;

fn with_dead_letters(settings: QueueSettings) -> QueueSettings {
    QueueSettings { dead_letter_topic: Some("dead".into()), ..settings }
}

/// A publisher 1, a worker 2 with this backlog on `jobs`, and an auditor 3 of dead letters.
fn working(settings: QueueSettings, max_backlog: u32) -> Pair {
    let mut pair = with_queues([settings]);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.client(3, "auditor");
    pair.subscribe(2, &consume(1, "jobs", max_backlog));
    pair.subscribe(3, &subscribe(1, "dead"));
    pair.turn();
    pair.take(2);
    pair.take(3);
    pair
}

fn reasons(letters: &[String]) -> Vec<String> {
    let reason = |letter: &String| {
        let letter: serde_json::Value = serde_json::from_str(letter).unwrap();
        letter["reason"].as_array().unwrap().iter().map(|reason| reason.as_str().unwrap()).collect::<String>()
    };
    letters.iter().map(reason).collect()
}

#[test]
fn rule_8_max_cancels_returns_that_often_and_then_expires() {
    let settings = with_dead_letters(QueueSettings { max_cancels: Some(3), ..queue("jobs") });
    let mut pair = working(settings, 10);
    pair.publish(1, 1, "jobs", "{}");
    pair.turn();
    for cancels in 0..4 {
        let held = pair.take_queued(2);
        assert_eq!((held[0].deliveries, held[0].cancels), (cancels + 1, cancels));
        assert_eq!(pair.take_data(3), Vec::<String>::new());
        pair.settle(2, "jobs", Verdict::Cancel, &held);
    }
    assert_eq!(pair.take_queued(2), []);
    assert_eq!(reasons(&pair.take_data(3)), ["max_cancels"]);
    assert_eq!((pair.figure("jobs", "depth"), pair.figure("jobs", "dead_letters")), (0, 1));
}

#[test]
fn rule_9_max_deliveries_is_the_most_there_can_be() {
    let settings = QueueSettings {
        max_deliveries: Some(2),
        lease_period_ns: Some(SECOND),
        ..with_dead_letters(queue("jobs"))
    };
    let mut pair = working(settings, 10);
    pair.publish(1, 1, "jobs", "{}");
    pair.turn();
    assert_eq!(pair.take_queued(2)[0].deliveries, 1);
    pair.pass(Duration::from_secs(1));
    let again = pair.take_queued(2);
    assert_eq!(again[0].deliveries, 2);
    pair.pass(Duration::from_secs(1));
    let (reason, bookmark) = (LeaseEnd::MessageExpired, again[0].bookmark);
    let lost = Said::LeaseLost { subscription: 1, reason, bookmark, queue: None };
    assert_eq!(pair.take(2), [lost]);
    assert_eq!(reasons(&pair.take_data(3)), ["max_deliveries"]);
}

/// The lines of the log about dead letters since the last call.
fn letter_lines(pair: &mut Pair) -> Vec<String> {
    let lines = pair.log.drain(..).map(|event| (event.level(), event.to_string()));
    lines
        .filter(|(_, line)| line.contains("dead letter"))
        .map(|(level, line)| format!("{level:?} {line}"))
        .collect()
}

#[test]
fn a_message_that_becomes_a_dead_letter_is_logged() {
    let settings = QueueSettings { max_deliveries: Some(2), ..with_dead_letters(queue("jobs")) };
    let mut pair = working(settings, 10);
    pair.publish(1, 1, "jobs", "{}");
    pair.turn();
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Cancel, &held);
    assert_eq!(letter_lines(&mut pair), Vec::<String>::new(), "it is in the queue again");
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Cancel, &held);
    let (publisher, sequence) = held[0].bookmark;
    let expected = format!(
        "Warning queue \"jobs\": message {publisher}|{sequence}| expired (max_deliveries) after 2 deliveries, dead letter in \"dead\""
    );
    assert_eq!(letter_lines(&mut pair), [expected]);
}

#[test]
fn a_queue_logs_one_line_a_minute_about_its_dead_letters_and_then_how_many_more_there_were() {
    let mut pair = working(with_dead_letters(queue("jobs")), 100);
    let expire = |pair: &mut Pair, sequences| {
        publish_all(pair, sequences);
        let held = pair.take_queued(2);
        pair.settle(2, "jobs", Verdict::Expire, &held);
        letter_lines(pair)
    };
    let lines = expire(&mut pair, 1..=50);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(expire(&mut pair, 51..=60), Vec::<String>::new());
    pair.pass(Duration::from_secs(59));
    assert_eq!(letter_lines(&mut pair), Vec::<String>::new());
    pair.pass(Duration::from_secs(1));
    let more = "Warning queue \"jobs\": 59 more messages expired, and each is a dead letter";
    assert_eq!(letter_lines(&mut pair), [more]);
    assert_eq!(expire(&mut pair, 61..=61), Vec::<String>::new());
    pair.pass(Duration::from_secs(60));
    let more = "Warning queue \"jobs\": 1 more message expired, and is a dead letter";
    assert_eq!(letter_lines(&mut pair), [more]);
    // After a quiet minute, the next one has its own line again.
    pair.pass(Duration::from_secs(60));
    assert_eq!(pair.figure("jobs", "dead_letters"), 61);
    assert!(expire(&mut pair, 62..=62)[0].contains("message "), "no line of its own");
}

/// Ends the subscription 1 of the worker 2, of which it has begun these messages.
fn unsubscribe(pair: &mut Pair, begun: &[FromQueue]) {
    let bytes = bookmarks(begun);
    let begun = BegunMessages::from_bytes(&bytes, None);
    let unsubscribe = Unsubscribe { command: 9, acks: Acks::PROCESSED, subscription: 1, begun };
    pair.send(2, &Command::Unsubscribe(unsubscribe));
    pair.turn();
}

#[test]
fn what_a_consumer_has_not_begun_when_it_unsubscribes_was_not_delivered() {
    let settings = QueueSettings { max_deliveries: Some(1), ..with_dead_letters(queue("jobs")) };
    let mut pair = working(settings, 10);
    publish_all(&mut pair, 1..=5);
    let held = pair.take_queued(2);
    assert_eq!(held.len(), 5);
    // Messages that the connection has not taken yet return, too.
    pair.set_writable(2, false);
    publish_all(&mut pair, 6..=7);
    unsubscribe(&mut pair, &held[1..2]);
    pair.set_writable(2, true);
    pair.turn();
    assert_eq!(reasons(&pair.take_data(3)), ["max_deliveries"], "the second was begun");
    pair.take(2);
    pair.subscribe(2, &consume(2, "jobs", 10));
    pair.turn();
    let again = pair.take_queued(2);
    assert_eq!(data(&again), ["1", "3", "4", "5", "6", "7"]);
    assert!(again.iter().all(|message| message.deliveries == 1));
}

#[test]
fn a_release_returns_a_message_without_a_count_and_only_its_holder_can_release_it() {
    let settings = QueueSettings { max_deliveries: Some(1), ..with_dead_letters(queue("jobs")) };
    let mut pair = working(settings, 1);
    publish_all(&mut pair, 1..=1);
    let held = pair.take_queued(2);
    pair.settle(3, "jobs", Verdict::Release, &held);
    assert_eq!(pair.take_queued(2), [], "it is with the worker");
    for _ in 0..3 {
        pair.settle(2, "jobs", Verdict::Release, &held);
        assert_eq!(pair.take_queued(2)[0].deliveries, 1);
    }
    assert_eq!(pair.take_data(3), Vec::<String>::new());
}

#[test]
fn rule_10_a_leased_message_outlives_its_expiration_and_goes_when_the_lease_ends() {
    let settings = QueueSettings {
        expiration_ns: Some(2 * SECOND),
        lease_period_ns: Some(5 * SECOND),
        ..with_dead_letters(queue("jobs"))
    };
    let mut pair = working(settings, 1);
    pair.publish(1, 1, "jobs", r#"{"n":1}"#);
    pair.publish(1, 2, "jobs", r#"{"n":2}"#);
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), [r#"{"n":1}"#]);
    pair.pass(Duration::from_secs(2));
    assert_eq!(reasons(&pair.take_data(3)), ["time_limit"], "the one that waits");
    assert_eq!(pair.figure("jobs", "depth"), 1);
    pair.pass(Duration::from_secs(3));
    assert_eq!(reasons(&pair.take_data(3)), ["time_limit"], "the one that was held");
    assert_eq!(pair.figure("jobs", "depth"), 0);
}

#[test]
fn rule_11_expire_makes_a_dead_letter_with_reason_counts_and_origin() {
    let mut pair = working(with_dead_letters(queue("jobs")), 10);
    let published = Publish { correlation_id: b"c-1", ..publish(7, "jobs", r#"{"n":1}"#) };
    pair.send(1, &Command::Publish(published));
    pair.publish(1, 8, "jobs", "no json");
    pair.send(1, &Command::Publish(Publish { data: b"\xff\xfe\xfd", ..publish(9, "jobs", "") }));
    pair.turn();
    let held = pair.take_bookmarks(2);
    assert_eq!(held.len(), 3);
    pair.settle_bookmarks(2, "jobs", Verdict::Expire, &held);
    let letters = pair.take_data(3);
    let letters: Vec<serde_json::Value> =
        letters.iter().map(|letter| serde_json::from_str(letter).unwrap()).collect();
    let (publisher, sequence) = held[0];
    let expected = serde_json::json!({
        "queue": "jobs", "source_topic": "jobs", "position": 1, "bookmark": format!("{publisher}|{sequence}|"),
        "timestamp": WALL_START_NS, "reason": ["forced_expire"], "deliveries": 1, "cancels": 0,
        "message": {"n": 1},
    });
    assert_eq!(letters[0], expected);
    assert_eq!((&letters[1]["text"], &letters[2]["base64"]), (&"no json".into(), &"//79".into()));
    // It is recorded: later subscriptions can read it, with the correlation id of the message.
    pair.subscribe(3, &replay(9, "dead", "0"));
    pair.turn();
    assert_eq!(pair.take_data(3).len(), 3);
}

#[test]
fn a_flush_and_a_settle_wait_for_the_dead_letters_of_expired_messages() {
    let configured = || with_dead_letters(queue("jobs"));
    let flush = Command::Flush { command: 9, acks: Acks::PERSISTED };
    let is_answered = |pair: &mut Pair| {
        let is_persisted = |said| matches!(said, Said::Ack { kind: AckKind::Persisted, .. });
        pair.take(1).into_iter().any(is_persisted)
    };
    for (settles, reads_at_once) in [(false, true), (false, false), (true, true), (true, false)] {
        let mut pair = with_queues([configured()]);
        pair.client(1, "publisher");
        publish_all(&mut pair, 1..=3);
        // The messages have to be read from the log.
        let mut pair = pair.restart(queue_config([configured()]));
        pair.client(1, "publisher");
        (pair.writes_at_once, pair.reads_at_once) = (false, reads_at_once);
        let (command, acks) = if settles { (8, Acks::PERSISTED) } else { (0, Acks::default()) };
        let messages = Selection::Matching("");
        pair.send(
            1,
            &Command::Settle(Settle {
                verdict: Verdict::Expire,
                command,
                acks,
                queue: "jobs",
                messages,
                reason: "",
            }),
        );
        if !settles {
            pair.send(1, &flush);
        }
        pair.turn();
        assert!(!is_answered(&mut pair), "{settles} {reads_at_once}");
        while pair.run_reads() {
            pair.turn();
        }
        assert!(!is_answered(&mut pair), "{settles} {reads_at_once}: before the letters are on the disk");
        pair.write();
        pair.turn();
        assert!(is_answered(&mut pair), "{settles} {reads_at_once}");
        // The process dies at once.
        let mut pair = pair.restart(queue_config([configured()]));
        pair.client(1, "reader");
        assert_eq!(pair.figure("jobs", "depth"), 0, "{settles} {reads_at_once}");
        pair.subscribe(1, &replay(1, "dead", "0"));
        pair.turn();
        assert_eq!(pair.take_data(1).len(), 3);
    }
}

#[test]
fn the_resume_position_moves_past_a_dead_letter() {
    let mut pair = working(with_dead_letters(queue("jobs")), 10);
    pair.subscribe(3, &Subscribe { acks: Acks::PERSISTED, ..replay(9, "other", "0|1|") });
    pair.publish(1, 7, "jobs", "{}");
    pair.turn();
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Expire, &held);
    pair.pass(Duration::from_secs(5));
    let said = pair.take(3);
    let letter = said.iter().find_map(|said| match said {
        Said::Message { topic, bookmark, .. } if topic == "dead" => *bookmark,
        _ => None,
    });
    let place = said.iter().rev().find_map(|said| match said {
        Said::Place { bookmark, .. } => Some(*bookmark),
        _ => None,
    });
    assert!(letter.is_some());
    assert_eq!(place, letter);
}

#[test]
fn rule_12_at_most_once_a_lost_connection_loses_what_it_was_sent_and_stops_at_its_backlog() {
    let settings = QueueSettings { semantics: Semantics::AtMostOnce, ..queue("jobs") };
    let mut pair = working(settings, 2);
    for sequence in 1..=4 {
        pair.publish(1, sequence, "jobs", &sequence.to_string());
    }
    pair.turn();
    let sent = pair.take_queued(2);
    assert_eq!((data(&sent), sent[0].lease_ms), (vec!["1", "2"], 0));
    pair.settle(2, "jobs", Verdict::Acknowledge, &sent[..1]);
    assert_eq!(data(&pair.take_queued(2)), ["3"]);
    pair.disconnect(2);
    pair.client(4, "other");
    pair.subscribe(4, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(data(&pair.take_queued(4)), ["4"]);
}

#[test]
fn at_most_once_a_message_leaves_when_that_is_durable() {
    let settings = QueueSettings { semantics: Semantics::AtMostOnce, ..queue("jobs") };
    let mut pair = working(settings.clone(), 10);
    pair.publish(1, 1, "jobs", "a");
    pair.turn();
    assert_eq!(pair.take_queued(2).len(), 1);
    pair.writes_at_once = false;
    pair.publish(1, 2, "jobs", "b");
    pair.turn();
    pair.write();
    pair.turn();
    assert_eq!(pair.take_queued(2), [], "the message is persistent, its leaving is not");
    let mut pair = pair.restart(queue_config([settings]));
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), ["b"], "a was sent once, b never was");
}

#[test]
fn the_holder_is_told_of_an_acknowledgement_by_another_connection_that_waits_until_it_is_persisted() {
    for acks in [Acks::default(), Acks::PROCESSED, Acks::PERSISTED] {
        let mut pair = working(queue("jobs"), 1);
        pair.client(4, "other");
        pair.publish(1, 1, "jobs", "a");
        pair.turn();
        let held = pair.take_queued(2);
        pair.settle_as(4, "jobs", Verdict::Acknowledge, &held, 9, acks);
        pair.turn();
        let (reason, bookmark) = (LeaseEnd::SettledByAnother, held[0].bookmark);
        let lost = Said::LeaseLost { subscription: 1, reason, bookmark, queue: None };
        assert_eq!(pair.take(2), [lost], "{acks:?}");
    }
}

#[test]
fn a_late_acknowledgement_removes_the_message_unless_leasing_is_strict() {
    for leasing in [Leasing::Sublease, Leasing::Strict] {
        let settings = QueueSettings { lease_period_ns: Some(SECOND), leasing, ..queue("jobs") };
        let mut pair = working(settings, 1);
        pair.publish(1, 1, "jobs", "a");
        pair.turn();
        let held = pair.take_queued(2);
        pair.subscribe(2, &Subscribe { options: SubscribeOptions::REPLACE, ..consume(1, "jobs", 0) });
        pair.pass(Duration::from_secs(1));
        pair.client(4, "other");
        pair.subscribe(4, &consume(1, "jobs", 1));
        pair.turn();
        assert_eq!(pair.take_queued(4).len(), 1);
        pair.settle(2, "jobs", Verdict::Acknowledge, &held);
        let is_gone = leasing == Leasing::Sublease;
        assert_eq!(pair.figure("jobs", "depth"), u64::from(!is_gone), "{leasing:?}");
        let lost = Said::LeaseLost {
            subscription: 1,
            reason: LeaseEnd::SettledByAnother,
            bookmark: held[0].bookmark,
            queue: None,
        };
        let told = if is_gone { vec![lost] } else { Vec::new() };
        assert_eq!(pair.take(4), told);
    }
}

#[test]
fn a_holder_that_never_got_the_message_is_not_told_that_another_connection_acknowledged_it() {
    let mut pair = with_queues([queue("jobs")]);
    pair.client(1, "publisher");
    pair.publish(1, 1, "jobs", "a");
    pair.turn();
    // The message has to be read from the log before it is sent.
    let mut pair = pair.restart(queue_config([queue("jobs")]));
    pair.client(2, "worker");
    pair.client(4, "other");
    pair.reads_at_once = false;
    pair.subscribe(2, &consume(1, "jobs", 1));
    pair.turn();
    pair.take(2);
    assert_eq!(pair.figure("jobs", "backlog"), 1);
    let bookmark = (pair.publisher_of("publisher"), 1);
    pair.settle_bookmarks(4, "jobs", Verdict::Acknowledge, &[bookmark]);
    // The search of the acknowledgement ends first.
    assert!(pair.run_last_read());
    pair.turn();
    assert_eq!(pair.figure("jobs", "depth"), 0);
    while pair.run_reads() {
        pair.turn();
    }
    assert_eq!(pair.take(2), []);
}

#[test]
fn a_message_that_nobody_holds_is_found_in_the_log_while_further_commands_wait() {
    let mut pair = working(queue("jobs"), 0);
    pair.publish(1, 1, "jobs", "a");
    pair.publish(1, 2, "jobs", "b");
    pair.publish(1, 3, "other topic", "c");
    pair.turn();
    pair.reads_at_once = false;
    let publisher = pair.publisher_of("publisher");
    let bookmarks = [(publisher, 2), (publisher, 3), (publisher, 99)];
    pair.settle_bookmarks_as(2, "jobs", Verdict::Acknowledge, &bookmarks, 5, Acks::PROCESSED);
    pair.send(2, &Command::Flush { command: 6, acks: Acks::PROCESSED });
    pair.turn();
    assert_eq!(pair.take(2), []);
    pair.run_reads();
    pair.turn();
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 5, 0), ack(AckKind::Processed, 6, 0)]);
    assert_eq!(pair.figure("jobs", "depth"), 1);
    pair.reads_at_once = true;
    pair.subscribe(2, &consume(2, "jobs", 5));
    pair.turn();
    assert_eq!(data(&pair.take_queued(2)), ["a"]);
}

#[test]
fn a_settle_tells_how_many_messages_it_settled() {
    for reads_at_once in [true, false] {
        let mut pair = working(queue("jobs"), 2);
        for sequence in 1..=4 {
            pair.publish(1, sequence, "jobs", "{}");
        }
        pair.publish(1, 5, "other topic", "{}");
        pair.turn();
        assert_eq!(pair.take_queued(2).len(), 2);
        pair.reads_at_once = reads_at_once;
        let publisher = pair.publisher_of("publisher");
        let mut settled = |verdict, sequences: &[u64]| {
            let bookmarks: Vec<_> = sequences.iter().map(|sequence| (publisher, *sequence)).collect();
            pair.settle_bookmarks_as(2, "jobs", verdict, &bookmarks, 5, Acks::PROCESSED);
            pair.turn();
            pair.run_reads();
            pair.turn();
            pair.clients[&2].detail
        };
        // One that it holds, twice; one that waits; one of another topic; one that does not exist.
        assert_eq!(settled(Verdict::Acknowledge, &[1, 1, 3, 5, 99]), 2, "{reads_at_once}");
        assert_eq!(settled(Verdict::Acknowledge, &[1, 3]), 0, "{reads_at_once}");
        assert_eq!(settled(Verdict::Cancel, &[2, 99]), 1, "{reads_at_once}");
    }
}

#[test]
fn settling_by_filter_reaches_every_active_message_and_none_that_comes_later() {
    let mut pair = working(queue("jobs"), 3);
    for sequence in 1..=10 {
        pair.publish(1, sequence, "jobs", &format!(r#"{{"n":{sequence}}}"#));
    }
    pair.turn();
    assert_eq!(pair.take_queued(2).len(), 3);
    pair.reads_at_once = false;
    let settle = Settle {
        verdict: Verdict::Acknowledge,
        command: 4,
        acks: Acks::PROCESSED.and(Acks::PERSISTED),
        queue: "jobs",
        messages: Selection::Matching("/n % 2 = 0"),
        reason: "",
    };
    pair.client(4, "operator");
    pair.send(4, &Command::Settle(settle));
    pair.turn();
    pair.publish(1, 11, "jobs", r#"{"n":12}"#);
    pair.turn();
    assert_eq!(pair.take(4), []);
    pair.reads_at_once = true;
    pair.run_reads();
    pair.turn();
    assert_eq!(pair.take(4), [ack(AckKind::Processed, 4, 0), ack(AckKind::Persisted, 4, 0)]);
    assert_eq!(pair.clients[&4].detail, 5);
    assert_eq!(pair.figure("jobs", "depth"), 6);
    // An empty filter means everything: with expire it empties the queue.
    let purge = Settle { verdict: Verdict::Expire, messages: Selection::Matching(""), ..settle };
    pair.send(4, &Command::Settle(purge));
    pair.send(4, &Command::Settle(Settle { messages: Selection::Matching("/n ="), ..purge }));
    pair.turn();
    assert_eq!((pair.figure("jobs", "depth"), pair.figure("jobs", "expired")), (0, 6));
    let told = pair.take(4);
    assert!(told.contains(&ack(AckKind::Persisted, 4, 0)) && told.contains(&refused(Code::BadFilter, 4, 0)));
}

#[test]
fn a_purge_of_a_deep_queue_takes_several_turns_and_all_of_it() {
    let mut pair = working(queue("jobs"), 0);
    (1..=10_000).for_each(|sequence| pair.publish(1, sequence, "jobs", "x"));
    pair.turn();
    let settle = Settle {
        verdict: Verdict::Expire,
        command: 4,
        acks: Acks::PROCESSED,
        queue: "jobs",
        messages: Selection::Matching(""),
        reason: "",
    };
    pair.send(2, &Command::Settle(settle));
    pair.one_turn();
    let left = pair.figure("jobs", "depth");
    assert!(left > 0 && left < 10_000, "{left}");
    pair.turn();
    assert_eq!(pair.figure("jobs", "depth"), 0);
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 4, 0)]);
    assert_eq!(pair.clients[&2].detail, 10_000);
}

#[test]
fn a_lease_that_is_extended_lasts_so_long_from_then_on() {
    let mut pair = working(QueueSettings { lease_period_ns: Some(SECOND), ..queue("jobs") }, 1);
    pair.publish(1, 1, "jobs", "a");
    pair.turn();
    let held = pair.take_queued(2);
    let bytes = bookmarks(&held);
    let bookmarks = Bookmarks::from_bytes(&bytes).unwrap();
    let extend = Extend { period_ms: 5000, command: 3, acks: Acks::PROCESSED, queue: "jobs", bookmarks };
    pair.pass(Duration::from_millis(900));
    pair.send(2, &Command::Extend(extend));
    pair.pass(Duration::from_millis(4900));
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 3, 0)]);
    pair.send(2, &Command::Extend(Extend { period_ms: 0, command: 0, ..extend }));
    pair.pass(Duration::from_millis(999));
    assert_eq!(pair.take(2), [], "the queue's own period from then on");
    pair.pass(Duration::from_millis(1));
    assert_eq!(pair.figure("jobs", "expired_leases"), 1);
}

#[test]
fn when_the_journal_fails_whoever_wants_persisted_gets_the_error() {
    let settings = queue_config([queue("jobs")]);
    let disk = std::sync::Arc::new(quire_journal::MemoryDisk::new(1 << 20));
    let mut pair = Pair::on(disk, settings);
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.subscribe(2, &consume(1, "jobs", 2));
    pair.publish(1, 1, "jobs", "a");
    pair.turn();
    let held = pair.take_queued(2);
    let large = "x".repeat(100_000);
    (2..40).for_each(|sequence| {
        pair.publish(1, sequence, "other", &large);
        pair.turn();
    });
    assert!(pair.broker.stats().journal_failed);
    pair.settle_as(2, "jobs", Verdict::Acknowledge, &held, 5, Acks::PROCESSED.and(Acks::PERSISTED));
    pair.turn();
    let failed = Said::Ack { kind: AckKind::Persisted, code: Code::StorageFull, command: 5, subscription: 0 };
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 5, 0), failed]);
    pair.send(2, &Command::Flush { command: 6, acks: Acks::PERSISTED });
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::StorageFull, 6, 0)]);
}

#[test]
fn a_lost_lease_is_told_before_the_message_comes_again() {
    let mut pair = working(QueueSettings { lease_period_ns: Some(SECOND), ..queue("jobs") }, 1);
    pair.publish(1, 1, "jobs", "a");
    pair.turn();
    let bookmark = pair.take_bookmarks(2)[0];
    pair.pass(Duration::from_secs(1));
    let said = pair.take(2);
    assert_eq!(
        said[0],
        Said::LeaseLost { subscription: 1, reason: LeaseEnd::Expired, bookmark, queue: None }
    );
    assert!(matches!(&said[1], Said::Queued(message) if message.deliveries == 2), "{said:?}");
}

#[test]
fn a_late_cancel_does_not_take_the_message_from_its_next_holder() {
    let mut pair = working(queue("jobs"), 1);
    publish_all(&mut pair, 1..=1);
    let late = pair.take_queued(2);
    assert_eq!(data(&late), ["1"]);
    pair.send(
        2,
        &Command::Unsubscribe(Unsubscribe {
            command: 1,
            acks: Acks::default(),
            subscription: 1,
            begun: None,
        }),
    );
    pair.client(4, "next");
    pair.subscribe(4, &consume(1, "jobs", 1));
    pair.turn();
    assert_eq!(data(&pair.take_queued(4)), ["1"]);
    pair.settle(2, "jobs", Verdict::Cancel, &late);
    assert!(pair.take_queued(4).is_empty());
    assert_eq!(pair.figure("jobs", "cancelled"), 0);
    // An acknowledgement removes the message, also when another worker has it now.
    pair.settle(2, "jobs", Verdict::Acknowledge, &late);
    assert_eq!(pair.figure("jobs", "depth"), 0);
}

#[test]
fn a_lease_that_another_consumer_ended_is_reported_before_the_subscription_moves_to_another_queue() {
    let mut pair = with_queues([queue("jobs"), queue("other")]);
    for (client, name) in [(1, "publisher"), (2, "ann"), (3, "bob")] {
        pair.client(client, name);
    }
    pair.subscribe(2, &consume(1, "jobs", 10));
    publish_all(&mut pair, 1..=1);
    let held = pair.take_queued(2);
    let bookmark = held[0].bookmark;
    // In one turn: the client looks for the lease in the queue of its subscription.
    pair.settle_as(3, "jobs", Verdict::Acknowledge, &held, 0, Acks::default());
    let moved = Subscribe { options: SubscribeOptions::REPLACE, ..consume(1, "other", 10) };
    pair.subscribe(2, &moved);
    pair.turn();
    let lost = Said::LeaseLost { subscription: 1, reason: LeaseEnd::SettledByAnother, bookmark, queue: None };
    assert_eq!(pair.take(2)[0], lost);
}

#[test]
fn the_answer_to_an_extension_says_the_period_that_was_granted() {
    for (lease_period_ns, period_ms, granted_ms) in [
        (Some(30 * SECOND), 0, 30_000),
        (Some(30 * SECOND), 70_000, 70_000),
        (None, 0, 0),
        (None, u64::MAX, u32::MAX),
    ] {
        let mut pair = working(QueueSettings { lease_period_ns, ..queue("jobs") }, 1);
        publish_all(&mut pair, 1..=1);
        let held = bookmarks(&pair.take_queued(2));
        let bookmarks = Bookmarks::from_bytes(&held).unwrap();
        let acks = Acks::PROCESSED;
        pair.send(2, &Command::Extend(Extend { period_ms, command: 9, acks, queue: "jobs", bookmarks }));
        pair.turn();
        assert_eq!(pair.take(2), [ack(AckKind::Processed, 9, 0)]);
        assert_eq!(pair.clients[&2].detail, granted_ms);
    }
}
