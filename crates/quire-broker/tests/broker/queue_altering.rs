//! Queues that get other settings at run time (docs/queues.md section 14): which settings can
//! change, the use for which a change counts, and that messages and leases stay as they are.

use std::time::Duration;

use quire_broker::{AdminCommand, QueueChanges, QueueSettings};
use quire_command::*;
use quire_queue::Semantics;
use quire_types::Verdict;
use serde_json::{Value, json};

use crate::pair::*;
use crate::queue_defining::*;
use crate::queue_pair::*;

/// The keys that changed.
pub fn alter(pair: &mut Pair, queue: &str, changes: Value) -> Result<Vec<String>, Code> {
    let answer = ask(pair, DefineQueue::Alter { queue, changes: &changes.to_string() })?;
    assert_eq!(answer["name"], queue);
    let keys = answer["altered"].as_array().unwrap();
    Ok(keys.iter().map(|key| key.as_str().unwrap().to_owned()).collect())
}

/// Why the change is refused, and the code.
fn alteration_refusal(pair: &mut Pair, queue: &str, changes: Value) -> (Code, String) {
    let code = alter(pair, queue, changes.clone()).unwrap_err();
    let changes = QueueChanges::from_json(&changes.to_string()).unwrap();
    (code, refusal(pair, AdminCommand::AlterQueue { queue: queue.to_owned(), changes }))
}

fn seconds(seconds: u64) -> u64 {
    seconds * 1_000_000_000
}

/// The messages that the worker got since the last call.
fn take(pair: &mut Pair) -> Vec<String> {
    pair.take_queued(2).into_iter().map(|message| message.data).collect()
}

#[test]
fn the_named_settings_change_and_the_others_stay() {
    let mut pair = start();
    let old = QueueSettings {
        lease_period_ns: Some(seconds(30)),
        max_deliveries: Some(5),
        dead_letter_topic: Some("dead".into()),
        ..over("jobs", "orders")
    };
    create(&mut pair, &old).unwrap();
    let changes = json!({ "lease_period_ns": seconds(60), "max_cancels": 3, "dead_letter_topic": null });
    let keys = ["dead_letter_topic", "lease_period", "max_cancels"];
    assert_eq!(alter(&mut pair, "jobs", changes.clone()).unwrap(), keys);
    assert_eq!(alter(&mut pair, "jobs", changes).unwrap(), [""; 0], "the queue has these settings");
    assert_eq!(alter(&mut pair, "jobs", json!({})).unwrap(), [""; 0]);
    let new = QueueSettings {
        lease_period_ns: Some(seconds(60)),
        max_cancels: Some(3),
        dead_letter_topic: None,
        ..old.clone()
    };
    let log: Vec<String> = pair.log.iter().map(|event| event.to_string()).collect();
    let lines: Vec<&String> = log.iter().filter(|line| line.contains("changed queue")).collect();
    assert_eq!(lines.len(), 1, "{log:?}");
    assert!(lines[0].ends_with("changed queue \"jobs\": dead_letter_topic, lease_period, max_cancels"));
    for _ in 0..2 {
        assert_eq!(create(&mut pair, &new), Ok(false));
        assert_eq!(create(&mut pair, &old), Err(Code::QueueExists));
        pair = again(pair);
    }
}

#[test]
fn the_defaults_of_leases_and_retries_are_those_of_the_semantics() {
    let mut pair = start();
    let once = QueueSettings { semantics: Semantics::AtMostOnce, ..over("once", "orders") };
    create(&mut pair, &once).unwrap();
    let reset = json!({ "lease_period": null, "retry_delay": null });
    assert_eq!(alter(&mut pair, "once", reset.clone()).unwrap(), [""; 0]);
    create(&mut pair, &over("jobs", "orders")).unwrap();
    assert_eq!(alter(&mut pair, "jobs", reset.clone()).unwrap(), ["lease_period", "retry_delay"]);
    assert_eq!(alter(&mut pair, "jobs", reset).unwrap(), [""; 0]);
    let expected = QueueSettings {
        lease_period_ns: Some(seconds(300)),
        retry_delay_ns: vec![seconds(1) / 10, seconds(1), seconds(10), seconds(60)],
        ..over("jobs", "orders")
    };
    assert_eq!(create(&mut pair, &expected), Ok(false));
    // Without `_ns` there is no other value than null.
    let (code, reason) = alteration_refusal(&mut pair, "jobs", json!({ "lease_period": 1 }));
    assert_eq!(code, Code::BadOption);
    assert!(reason.starts_with("lease_period: unknown field"), "{reason}");
}

#[test]
fn settings_that_the_content_of_the_queue_depends_on_are_refused_by_name() {
    let mut pair = start();
    let settings = QueueSettings { filter: Some("/a = 1".into()), ..over("jobs", "orders") };
    create(&mut pair, &settings).unwrap();
    let fixed = [
        ("name", json!("other")),
        ("message_type", json!("binary")),
        ("underlying_topic", json!("others")),
        ("default_publish_target", json!("orders")),
        ("semantics", json!("at-most-once")),
        ("fairness_model", json!("fast")),
        ("filter", json!("/a = 2")),
        ("filter", json!(null)),
        ("priority", json!("/a")),
        ("barrier_expression", json!("/a = 2")),
        ("target_queue_depth", json!(5)),
        ("recovery_point", json!("epoch")),
        ("file_backed_metadata", json!(true)),
    ];
    for (key, value) in &fixed {
        let (code, reason) = alteration_refusal(&mut pair, "jobs", json!({ *key: value, "max_cancels": 1 }));
        assert_eq!(code, Code::BadOption, "{key}");
        let expected = format!("{key}: cannot be changed while the queue exists; drop queue \"jobs\"");
        assert!(reason.starts_with(&expected), "{reason}");
    }
    let (_, reason) = alteration_refusal(&mut pair, "jobs", json!({ "filter": "/a = 2", "priority": "/a" }));
    assert!(reason.starts_with("filter, priority: cannot be changed"), "{reason}");
    // The value that the queue has is not a change, and nothing was changed.
    assert_eq!(alter(&mut pair, "jobs", json!({ "filter": "/a = 1" })).unwrap(), [""; 0]);
    assert_eq!(create(&mut pair, &settings), Ok(false));
}

#[test]
fn a_change_that_the_queue_cannot_have_is_refused_and_changes_nothing() {
    let mut config = config();
    config.transaction_log.topics = vec![quire_broker::RecordedTopic::new("orders", "json")];
    let mut pair = log_on(Pair::with(config));
    let settings = over("jobs", "orders");
    create(&mut pair, &settings).unwrap();
    let cases = [
        (json!({ "max_backlog": 0 }), "max_backlog: queue \"jobs\": max_backlog must be at least 1"),
        (json!({ "lease_perod": 1 }), "lease_perod: unknown field `lease_perod`"),
        (json!({ "lease_perod": null }), "lease_perod: unknown field `lease_perod`"),
        (json!({ "lease_period_ns": "soon" }), "lease_period: invalid type"),
        (json!({ "dead_letter_topic": "a.*" }), "dead_letter_topic: queue \"jobs\": \"a.*\" is a pattern"),
        (
            json!({ "dead_letter_topic": "dead" }),
            "dead_letter_topic: queue \"jobs\": the transaction log does not record",
        ),
        (
            json!({ "dead_letter_topic": "orders" }),
            "dead_letter_topic: queue \"jobs\": dead letters would come back",
        ),
        (json!({ "retry_delay_ns": vec![1; 40_000] }), "name: the settings have 80"),
    ];
    for (changes, expected) in cases {
        let (code, reason) = alteration_refusal(&mut pair, "jobs", changes);
        assert_eq!(code, Code::BadOption, "{expected}");
        assert!(reason.starts_with(expected), "{reason}");
    }
    for text in ["", "[]", "7"] {
        let action = DefineQueue::Alter { queue: "jobs", changes: text };
        assert_eq!(ask(&mut pair, action), Err(Code::BadOption), "{text}");
    }
    assert_eq!(create(&mut pair, &settings), Ok(false));
}

#[test]
fn a_queue_of_the_configuration_and_an_unknown_queue_are_not_altered() {
    let mut pair = log_on(with_queues([queue("jobs")]));
    let (code, reason) = alteration_refusal(&mut pair, "jobs", json!({ "max_backlog": 1 }));
    assert_eq!(code, Code::QueueExists);
    assert!(reason.contains("the configuration of the server defines queue \"jobs\""), "{reason}");
    assert_eq!(alter(&mut pair, "none", json!({ "max_backlog": 1 })), Err(Code::UnknownQueue));
}

#[test]
fn messages_and_leases_stay_and_later_deliveries_have_the_new_period() {
    let mut pair = start();
    create(&mut pair, &QueueSettings { lease_period_ns: Some(seconds(100)), ..named("jobs") }).unwrap();
    publish_all(&mut pair, 1..=2);
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    assert_eq!(take(&mut pair), ["1", "2"]);
    alter(&mut pair, "jobs", json!({ "lease_period_ns": seconds(10) })).unwrap();
    publish_all(&mut pair, 3..=3);
    let third = pair.take_queued(2);
    assert_eq!(data(&third), ["3"]);
    pair.pass(Duration::from_secs(11));
    pair.turn();
    // The third message comes again; the leases of the others are not over.
    assert_eq!(take(&mut pair), ["3"]);
    assert_eq!(pair.figure("jobs", "expired_leases"), 1);
    pair.settle(2, "jobs", Verdict::Acknowledge, &third);
    pair.pass(Duration::from_secs(90));
    pair.turn();
    assert_eq!(pair.figure("jobs", "expired_leases"), 3);
}

#[test]
fn limits_apply_to_the_next_use() {
    let mut pair = start();
    let settings = QueueSettings { max_backlog: Some(2), max_cancels: Some(5), ..named("jobs") };
    create(&mut pair, &settings).unwrap();
    publish_all(&mut pair, 1..=6);
    pair.subscribe(2, &consume(1, "jobs", 10));
    pair.turn();
    let mut held = pair.take_queued(2);
    assert_eq!(data(&held), ["1", "2"]);
    // There is room for more at once.
    alter(&mut pair, "jobs", json!({ "max_backlog": 4 })).unwrap();
    held.extend(pair.take_queued(2));
    assert_eq!(data(&held), ["1", "2", "3", "4"]);
    assert_eq!(pair.figure("jobs", "max_backlog"), 4);
    // Above the limit nothing is delivered, and nothing is taken away.
    alter(&mut pair, "jobs", json!({ "max_backlog": 1 })).unwrap();
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[..3]);
    pair.turn();
    assert_eq!(take(&mut pair), [""; 0]);
    assert_eq!(pair.figure("jobs", "backlog"), 1);
    // The cancel after the change reaches the new limit.
    alter(&mut pair, "jobs", json!({ "max_cancels": 0 })).unwrap();
    pair.settle(2, "jobs", Verdict::Cancel, &held[3..]);
    pair.turn();
    assert_eq!(pair.figure("jobs", "expired"), 1);
    assert_eq!(take(&mut pair), ["5"]);
}

#[test]
fn a_later_subscription_has_the_new_limit_of_its_backlog() {
    let mut pair = start();
    create(&mut pair, &named("jobs")).unwrap();
    publish_all(&mut pair, 1..=6);
    pair.subscribe(2, &consume(1, "jobs", 3));
    pair.turn();
    assert_eq!(take(&mut pair).len(), 3);
    alter(&mut pair, "jobs", json!({ "max_per_subscription_backlog": 1 })).unwrap();
    pair.client(4, "other");
    pair.subscribe(4, &consume(1, "jobs", 3));
    pair.turn();
    assert_eq!(pair.take_queued(4).len(), 1);
    assert_eq!(pair.figure("jobs", "backlog"), 4);
}

#[test]
fn a_message_keeps_the_expiration_that_it_was_recorded_with() {
    for restarts in [false, true] {
        let mut pair = start();
        let settings =
            QueueSettings { expiration_ns: Some(seconds(100)), file_backed_metadata: true, ..named("jobs") };
        create(&mut pair, &settings).unwrap();
        publish_all(&mut pair, 1..=2);
        alter(&mut pair, "jobs", json!({ "expiration_ns": seconds(10) })).unwrap();
        publish_all(&mut pair, 3..=4);
        alter(&mut pair, "jobs", json!({ "expiration_ns": null })).unwrap();
        publish_all(&mut pair, 5..=5);
        if restarts {
            pair = again(pair);
            // A state that was written since then has the times.
            let Pair { broker, disk, now_ns, .. } = pair;
            broker.close().unwrap();
            pair = log_on(Pair { now_ns, ..Pair::on(disk, config()) });
        }
        let mut left = Vec::new();
        for wait in [0, 20, 100] {
            pair.pass(Duration::from_secs(wait));
            pair.turn();
            left.push(pair.figure("jobs", "depth"));
        }
        assert_eq!(left, [5, 3, 1], "restarts: {restarts}");
    }
}

#[test]
fn an_inactive_message_keeps_the_expiration_that_it_was_recorded_with() {
    let mut pair = start();
    let settings =
        QueueSettings { expiration_ns: Some(seconds(100)), target_queue_depth: Some(1), ..named("jobs") };
    create(&mut pair, &settings).unwrap();
    publish_all(&mut pair, 1..=2);
    alter(&mut pair, "jobs", json!({ "expiration_ns": seconds(10) })).unwrap();
    publish_all(&mut pair, 3..=3);
    pair.subscribe(2, &consume(1, "jobs", 1));
    pair.turn();
    let first = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &first);
    pair.turn();
    // The second message became active after the change.
    let second = pair.take_queued(2);
    assert_eq!(data(&second), ["2"]);
    pair.pass(Duration::from_secs(20));
    pair.settle(2, "jobs", Verdict::Cancel, &second);
    pair.turn();
    assert_eq!(pair.figure("jobs", "expired"), 0, "its lifetime is 100 s");
    let second = pair.take_queued(2);
    assert_eq!(data(&second), ["2"]);
    pair.settle(2, "jobs", Verdict::Acknowledge, &second);
    pair.turn();
    assert_eq!(pair.figure("jobs", "expired"), 1, "the third message had 10 s");
}

#[test]
fn earlier_expirations_are_forgotten_with_their_messages_and_limited() {
    let mut pair = start();
    create(&mut pair, &named("jobs")).unwrap();
    publish_all(&mut pair, 1..=1);
    let change = |pair: &mut Pair, number: u64| {
        alter(pair, "jobs", json!({ "expiration_ns": seconds(1000 + number) }))
    };
    for number in 1..=100 {
        change(&mut pair, number).unwrap();
        publish_all(&mut pair, number + 1..=number + 1);
    }
    assert_eq!(change(&mut pair, 101), Err(Code::LimitExceeded));
    assert_eq!(alter(&mut pair, "jobs", json!({ "max_backlog": 5 })).unwrap(), ["max_backlog"]);
    // All messages are settled, and that is saved.
    pair.subscribe(2, &consume(1, "jobs", 200));
    alter(&mut pair, "jobs", json!({ "max_backlog": null })).unwrap();
    let held = pair.take_queued(2);
    assert_eq!(held.len(), 101);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held);
    pair.pass(Duration::from_secs(11));
    pair.turn();
    change(&mut pair, 101).unwrap();
    // Without a message in between, there is nothing to remember.
    for number in 200..400 {
        change(&mut pair, number).unwrap();
    }
}

#[test]
fn dead_letters_go_where_the_queue_sends_them_when_the_message_expires() {
    let mut pair = start();
    let settings = QueueSettings {
        dead_letter_topic: Some("dead/old".into()),
        max_cancels: Some(0),
        file_backed_metadata: true,
        ..named("jobs")
    };
    create(&mut pair, &settings).unwrap();
    create(&mut pair, &over("letters", "dead/new")).unwrap();
    publish_all(&mut pair, 1..=3);
    pair.subscribe(2, &consume(1, "jobs", 3));
    pair.turn();
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Cancel, &held[..1]);
    pair.turn();
    alter(&mut pair, "jobs", json!({ "dead_letter_topic": "letters" })).unwrap();
    pair.settle(2, "jobs", Verdict::Cancel, &held[1..2]);
    pair.turn();
    alter(&mut pair, "jobs", json!({ "dead_letter_topic": null })).unwrap();
    pair.settle(2, "jobs", Verdict::Cancel, &held[2..]);
    pair.turn();
    assert_eq!(pair.figure("jobs", "depth"), 0);
    assert_eq!(pair.figure("letters", "depth"), 1);
    let mut pair = again(pair);
    assert_eq!(pair.figure("jobs", "depth"), 0);
    for (subscription, topic) in [(5, "dead/old"), (6, "dead/new")] {
        pair.subscribe(2, &replay(subscription, topic, "0"));
        pair.turn();
        assert_eq!(pair.take_data(2).len(), 1, "{topic}");
    }
}

#[test]
fn a_letter_that_is_not_published_yet_keeps_its_topic() {
    let mut pair = start();
    let settings = QueueSettings {
        dead_letter_topic: Some("dead".into()),
        expiration_ns: Some(seconds(59)),
        ..named("jobs")
    };
    create(&mut pair, &settings).unwrap();
    publish_all(&mut pair, 1..=3);
    // The messages have to be read for their letters.
    pair = again(pair);
    pair.pass(Duration::from_secs(55));
    pair.reads_at_once = false;
    pair.pass(Duration::from_secs(5));
    pair.turn();
    let reads: Vec<_> = pair.reads.drain(..).collect();
    assert_eq!(reads.len(), 1);
    pair.reads_at_once = true;
    assert_eq!(
        alter(&mut pair, "jobs", json!({ "dead_letter_topic": null })).unwrap(),
        ["dead_letter_topic"]
    );
    pair.reads.extend(reads);
    pair.run_reads();
    pair.turn();
    pair.subscribe(2, &replay(2, "dead", "0"));
    pair.turn();
    assert_eq!(pair.take_data(2).len(), 3);
}

#[test]
fn commands_about_a_queue_are_carried_out_in_order() {
    let mut pair = start();
    let settings = named("jobs").to_json();
    let actions = [
        DefineQueue::Create { settings: &settings },
        DefineQueue::Alter { queue: "jobs", changes: r#"{"max_backlog": 1}"# },
        DefineQueue::Alter { queue: "jobs", changes: r#"{"max_backlog": 1}"# },
        DefineQueue::Drop { queue: "jobs" },
        DefineQueue::Alter { queue: "jobs", changes: r#"{"max_backlog": 1}"# },
    ];
    for (command, action) in (1..).zip(actions) {
        pair.send(3, &Command::DefineQueue { command, action });
    }
    pair.turn();
    let said = pair.take(3);
    let altered = |said: &Said| match said {
        Said::Stats { json, .. } => {
            Some(serde_json::from_str::<Value>(json).unwrap()["queue"]["altered"].clone())
        }
        _ => None,
    };
    assert_eq!(said.len(), 5, "{said:?}");
    assert_eq!(altered(&said[1]), Some(json!(["max_backlog"])));
    assert_eq!(altered(&said[2]), Some(json!([])));
    assert_eq!(said[4], refused(Code::UnknownQueue, 5, 0));
}
