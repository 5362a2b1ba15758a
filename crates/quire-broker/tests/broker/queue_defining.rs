//! Queues that are created and dropped at run time (docs/queues.md section 14): the messages that
//! they take, and the commands that are refused.

use std::path::Path;
use std::time::Duration;

use quire_broker::{AdminCommand, AdminReply, Input, Limits, QueueSettings};
use quire_command::*;
use quire_journal::Disk;
use quire_types::Verdict;
use serde_json::Value;

use crate::pair::*;
use crate::queue_pair::*;

pub const COMMAND: u32 = 77;

/// A publisher 1, a worker 2 and an operator 3, on a server without queues.
pub fn start() -> Pair {
    log_on(Pair::with(config()))
}

pub fn log_on(mut pair: Pair) -> Pair {
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.client(3, "operator");
    pair
}

pub fn again(pair: Pair) -> Pair {
    log_on(pair.restart(config()))
}

pub fn named(name: &str) -> QueueSettings {
    QueueSettings { name: name.into(), ..QueueSettings::default() }
}

pub fn over(name: &str, topic: &str) -> QueueSettings {
    QueueSettings { underlying_topic: Some(topic.into()), ..named(name) }
}

/// The answer to the operator: the object of the queue, or the code.
pub fn answered(pair: &mut Pair) -> Result<Value, Code> {
    let said = pair.take(3);
    match &said[..] {
        [Said::Stats { command: COMMAND, json }] => {
            Ok(serde_json::from_str::<Value>(json).unwrap()["queue"].take())
        }
        [Said::Ack { kind: AckKind::Processed, code, command: COMMAND, .. }] => Err(*code),
        _ => panic!("{said:?}"),
    }
}

pub fn ask(pair: &mut Pair, action: DefineQueue<'_>) -> Result<Value, Code> {
    pair.send(3, &Command::DefineQueue { command: COMMAND, action });
    pair.turn();
    answered(pair)
}

/// Whether the queue is new.
pub fn create(pair: &mut Pair, settings: &QueueSettings) -> Result<bool, Code> {
    let answer = ask(pair, DefineQueue::Create { settings: &settings.to_json() })?;
    assert_eq!(answer["name"], settings.name);
    Ok(!answer["existed"].as_bool().unwrap())
}

/// How many messages were dropped.
pub fn drop_queue(pair: &mut Pair, queue: &str) -> Result<u64, Code> {
    Ok(ask(pair, DefineQueue::Drop { queue })?["dropped"].as_u64().unwrap())
}

/// Why the server refuses a command of its process.
pub fn refusal(pair: &mut Pair, command: AdminCommand) -> String {
    let now = pair.now();
    pair.broker.handle(now, Input::Admin { ticket: 9, command });
    pair.turn();
    match pair.replies.pop() {
        Some((9, AdminReply::Refused { reason, .. })) => reason,
        reply => panic!("{reply:?}"),
    }
}

pub fn creation_refusal(pair: &mut Pair, settings: QueueSettings) -> String {
    refusal(pair, AdminCommand::CreateQueue(Box::new(settings)))
}

pub fn queues(pair: &Pair) -> Vec<String> {
    pair.broker.queue_stats().into_keys().collect()
}

pub fn taken(pair: &mut Pair) -> Vec<String> {
    pair.turn();
    pair.take_queued(2).into_iter().map(|message| message.data).collect()
}

#[test]
fn a_created_queue_takes_the_messages_that_are_recorded_after_its_creation() {
    let mut pair = start();
    publish_all(&mut pair, 1..=2);
    // Recorded before the creation, and not yet persisted.
    pair.publish(1, 3, "jobs", "3");
    assert_eq!(create(&mut pair, &named("jobs")), Ok(true));
    publish_all(&mut pair, 4..=5);
    pair.subscribe(2, &consume(1, "jobs", 10));
    assert_eq!(taken(&mut pair), ["4", "5"]);
    let figures = &pair.broker.queue_stats()["jobs"];
    assert!(figures.created);
    assert_eq!(pair.broker.stats().queues.len(), 1);
}

#[test]
fn a_message_that_is_published_in_the_turn_of_the_creation_enters_the_queue() {
    let mut pair = start();
    pair.writes_at_once = false;
    let settings = named("jobs").to_json();
    let action = DefineQueue::Create { settings: &settings };
    pair.send(3, &Command::DefineQueue { command: COMMAND, action });
    pair.one_turn();
    // The command is not answered before its record is persisted, and commands do not find the
    // queue before that.
    assert_eq!(pair.take(3), []);
    assert_eq!(queues(&pair), Vec::<String>::new());
    pair.publish(1, 1, "jobs", "1");
    pair.writes_at_once = true;
    pair.turn();
    assert_eq!(answered(&mut pair).unwrap()["existed"], false);
    pair.subscribe(2, &consume(1, "jobs", 10));
    assert_eq!(taken(&mut pair), ["1"]);
}

#[test]
fn a_created_queue_survives_a_restart_with_its_messages_and_settlements() {
    let mut pair = start();
    let settings = QueueSettings { max_deliveries: Some(7), ..over("jobs", "orders") };
    create(&mut pair, &settings).unwrap();
    for sequence in 1..=4 {
        pair.publish(1, sequence, "orders", &sequence.to_string());
    }
    pair.turn();
    pair.subscribe(2, &consume(1, "jobs", 3));
    pair.turn();
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Acknowledge, &held[1..2]);
    pair.turn();
    let mut pair = again(pair);
    pair.subscribe(2, &consume(1, "jobs", 10));
    assert_eq!(taken(&mut pair), ["1", "3", "4"]);
    assert!(pair.broker.queue_stats()["jobs"].created);
    // The settings are the same.
    assert_eq!(create(&mut pair, &settings), Ok(false));
    let Pair { broker, disk, .. } = pair;
    broker.close().unwrap();
    let mut pair = log_on(Pair::on(disk, config()));
    pair.subscribe(2, &consume(1, "jobs", 10));
    assert_eq!(taken(&mut pair), ["1", "3", "4"]);
}

#[test]
fn a_dropped_queue_is_gone_with_its_messages_and_the_log_keeps_them() {
    let mut pair = start();
    create(&mut pair, &named("jobs")).unwrap();
    publish_all(&mut pair, 1..=5);
    pair.subscribe(2, &consume(4, "jobs", 2));
    pair.turn();
    let held = pair.take_queued(2);
    assert_eq!(drop_queue(&mut pair, "jobs"), Ok(5), "two are leased, three wait");
    assert_eq!(pair.take(2), [Said::Ended { subscription: 4, code: Code::UnknownQueue }]);
    assert_eq!(queues(&pair), Vec::<String>::new());
    // Commands that name it are refused, or change nothing.
    pair.settle_as(2, "jobs", Verdict::Acknowledge, &held, 8, Acks::PROCESSED);
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::UnknownQueue, 8, 0)]);
    assert_eq!(drop_queue(&mut pair, "jobs"), Err(Code::UnknownQueue));
    // The name is that of a topic again.
    pair.subscribe(2, &replay(5, "jobs", "0"));
    pair.turn();
    assert_eq!(pair.take_data(2), ["1", "2", "3", "4", "5"]);
    let pair = again(pair);
    assert_eq!(queues(&pair), Vec::<String>::new());
    assert_eq!(pair.broker.needed_position(), None);
}

#[test]
fn a_queue_that_is_created_again_has_nothing_of_the_dropped_one() {
    let mut pair = start();
    let settings = QueueSettings { file_backed_metadata: true, ..named("jobs") };
    for round in 0..3 {
        create(&mut pair, &settings).unwrap();
        let first = round * 10 + 1;
        publish_all(&mut pair, first..=first + 2);
        pair.subscribe(2, &consume(1, "jobs", 10));
        pair.turn();
        let held = pair.take_queued(2);
        let texts: Vec<String> = (first..=first + 2).map(|sequence| sequence.to_string()).collect();
        assert_eq!(data(&held), texts);
        pair.settle(2, "jobs", Verdict::Cancel, &held[..1]);
        pair.pass(Duration::from_secs(61));
        pair.turn();
        // Half of the rounds with a restart in between.
        if round == 1 {
            pair = again(pair);
            pair.subscribe(2, &consume(1, "jobs", 10));
            pair.turn();
            assert_eq!(data(&pair.take_queued(2)), texts);
        }
        assert_eq!(drop_queue(&mut pair, "jobs"), Ok(3));
        let states = pair.disk.list(Path::new("journal")).unwrap();
        assert!(!states.iter().any(|file| file.starts_with("queue-")), "{states:?}");
        pair.take(2);
    }
    create(&mut pair, &settings).unwrap();
    let mut pair = again(pair);
    pair.subscribe(2, &consume(1, "jobs", 10));
    assert_eq!(taken(&mut pair), Vec::<String>::new());
}

#[test]
fn creating_again_succeeds_with_the_same_settings_and_names_the_keys_that_differ() {
    let mut pair = start();
    assert_eq!(create(&mut pair, &named("jobs")), Ok(true));
    let spelled_out = QueueSettings {
        message_type: "json".into(),
        recovery_point: Some("now".into()),
        ..over("jobs", "jobs")
    };
    assert_eq!(create(&mut pair, &spelled_out), Ok(false));
    let other = QueueSettings { lease_period_ns: Some(1_000_000_000), max_cancels: Some(2), ..named("jobs") };
    assert_eq!(create(&mut pair, &other), Err(Code::QueueExists));
    let reason = creation_refusal(&mut pair, other);
    assert!(reason.contains("other settings: lease_period, max_cancels."), "{reason}");
}

#[test]
fn a_queue_of_the_configuration_is_neither_created_nor_dropped_at_run_time() {
    let mut pair = log_on(with_queues([queue("jobs")]));
    assert_eq!(create(&mut pair, &named("jobs")), Err(Code::QueueExists));
    assert_eq!(drop_queue(&mut pair, "jobs"), Err(Code::QueueExists));
    let reason = refusal(&mut pair, AdminCommand::DropQueue("jobs".into()));
    assert!(reason.contains("the configuration of the server defines queue \"jobs\""), "{reason}");
    assert!(!pair.broker.queue_stats()["jobs"].created);
}

#[test]
fn the_configuration_replaces_a_created_queue_of_the_same_name() {
    let mut pair = start();
    create(&mut pair, &named("jobs")).unwrap();
    create(&mut pair, &named("others")).unwrap();
    publish_all(&mut pair, 1..=2);
    // With the same recovery point the queue continues at its position.
    let settings = QueueSettings { recovery_point: Some("now".into()), ..queue("jobs") };
    let mut pair = log_on(pair.restart(queue_config([settings.clone()])));
    let log: Vec<String> = pair.log.iter().map(|event| event.to_string()).collect();
    assert!(log.iter().any(|line| line.contains("from now on the configuration defines it")), "{log:?}");
    assert!(!pair.broker.queue_stats()["jobs"].created);
    pair.subscribe(2, &consume(1, "jobs", 10));
    assert_eq!(taken(&mut pair), ["1", "2"]);
    assert_eq!(queues(&pair), ["jobs", "others"]);
    // The configuration is the only definition from here on.
    assert_eq!(queues(&again(pair)), ["others"]);
}

#[test]
fn a_bad_setting_is_refused_with_its_key() {
    let mut pair = start();
    let zero = QueueSettings { max_backlog: Some(0), ..named("jobs") };
    let filter = QueueSettings { filter: Some("/a >".into()), ..named("jobs") };
    let point = QueueSettings { recovery_point: Some("0".into()), ..named("jobs") };
    let kind = QueueSettings { message_type: "yaml".into(), ..named("jobs") };
    let long = QueueSettings { filter: Some(format!("/a = '{}'", "x".repeat(70_000))), ..named("jobs") };
    let cases = [
        (zero, "max_backlog: queue \"jobs\": "),
        (filter, "filter: queue \"jobs\": "),
        (point, "recovery_point: a queue that is created at run time begins with the next message"),
        (kind, "message_type: "),
        (named(""), "name: "),
        (named("a.*"), "name: queue \"a.*\": \"a.*\" is a pattern"),
        (over("jobs", "a.*"), "default_publish_target: "),
        (long, "name: the settings have 70"),
    ];
    // Blanks count, too.
    let json = format!("{}{}", named("jobs").to_json(), " ".repeat(70_000));
    assert_eq!(ask(&mut pair, DefineQueue::Create { settings: &json }), Err(Code::BadOption));
    assert_eq!(ask(&mut pair, DefineQueue::Alter { queue: "jobs", changes: &json }), Err(Code::BadOption));
    for (settings, expected) in cases {
        assert_eq!(create(&mut pair, &settings), Err(Code::BadOption), "{settings:?}");
        let reason = creation_refusal(&mut pair, settings);
        assert!(reason.starts_with(expected), "{reason}");
    }
    for text in ["", "[]", "{\"name\": \"a\", \"lease\": 1}", "{\"name\": 1}"] {
        assert_eq!(ask(&mut pair, DefineQueue::Create { settings: text }), Err(Code::BadOption), "{text}");
    }
    assert_eq!(queues(&pair), Vec::<String>::new());
}

#[test]
fn a_queue_over_a_topic_that_is_not_recorded_is_refused() {
    let mut config = config();
    config.transaction_log.topics = vec![quire_broker::RecordedTopic::new("orders", "binary")];
    let mut pair = log_on(Pair::with(config));
    let reason = creation_refusal(&mut pair, named("jobs"));
    assert_eq!(reason, "underlying_topic: the transaction log does not record \"jobs\"");
    // The message type is that of the topic.
    assert_eq!(create(&mut pair, &over("jobs", "orders")), Ok(true));
    let json = QueueSettings { message_type: "json".into(), ..over("others", "orders") };
    assert_eq!(create(&mut pair, &json), Err(Code::BadOption));
}

#[test]
fn a_queue_is_compared_with_the_others() {
    let mut pair = start();
    create(&mut pair, &over("jobs", "orders")).unwrap();
    let reason = creation_refusal(&mut pair, named("orders"));
    assert!(reason.contains("messages that are published to queue \"jobs\" go to the topic"), "{reason}");
    let reason = creation_refusal(&mut pair, over("more", "jobs"));
    assert!(
        reason.starts_with("default_publish_target: queue \"more\": \"jobs\" is another queue; name a topic"),
        "{reason}"
    );
    // Dead letters must not return to their queue, over any number of queues.
    let to =
        |name: &str, letters: &str| QueueSettings { dead_letter_topic: Some(letters.into()), ..named(name) };
    create(&mut pair, &to("first", "second")).unwrap();
    let reason = creation_refusal(&mut pair, to("second", "first"));
    assert!(reason.contains("dead letters would come back"), "{reason}");
    let elsewhere = over("second", "elsewhere");
    let reason = creation_refusal(&mut pair, elsewhere);
    assert!(reason.contains("the dead letters of queue \"first\" go to the topic"), "{reason}");
}

#[test]
fn a_name_that_subscriptions_use_as_a_topic_is_refused() {
    let mut pair = start();
    pair.subscribe(2, &subscribe(1, "jobs"));
    pair.turn();
    let reason = creation_refusal(&mut pair, named("jobs"));
    assert!(reason.starts_with("name: 1 subscriptions without a bookmark"), "{reason}");
    pair.send(
        2,
        &Command::Unsubscribe(Unsubscribe { command: 5, subscription: 1, ..Unsubscribe::default() }),
    );
    pair.turn();
    assert_eq!(create(&mut pair, &named("jobs")), Ok(true));
}

#[test]
fn there_are_at_most_max_created_queues() {
    let mut config = queue_config([queue("configured")]);
    config.limits = Limits { max_created_queues: 2, ..Limits::default() };
    let mut pair = log_on(Pair::with(config));
    create(&mut pair, &named("a")).unwrap();
    create(&mut pair, &named("b")).unwrap();
    assert_eq!(create(&mut pair, &named("c")), Err(Code::LimitExceeded));
    assert_eq!(create(&mut pair, &named("a")), Ok(false));
    drop_queue(&mut pair, "a").unwrap();
    assert_eq!(create(&mut pair, &named("c")), Ok(true));
}

#[test]
fn commands_are_carried_out_in_order_and_later_commands_of_a_connection_wait() {
    let mut pair = start();
    let (a, b) = (named("a").to_json(), named("b").to_json());
    pair.send(3, &Command::DefineQueue { command: 1, action: DefineQueue::Create { settings: &a } });
    pair.send(3, &Command::DefineQueue { command: 2, action: DefineQueue::Drop { queue: "a" } });
    pair.send(2, &Command::DefineQueue { command: 3, action: DefineQueue::Create { settings: &b } });
    pair.send(3, &Command::Stats { command: 4, queue: Some("a") });
    pair.turn();
    let said = pair.take(3);
    let commands: Vec<u32> = said
        .iter()
        .map(|said| match said {
            Said::Stats { command, .. } | Said::Ack { command, .. } => *command,
            said => panic!("{said:?}"),
        })
        .collect();
    assert_eq!(commands, [1, 2, 4]);
    assert_eq!(said[2], refused(Code::UnknownQueue, 4, 0));
    assert_eq!(queues(&pair), ["b"]);
}

#[test]
fn a_connection_that_ends_while_it_waits_does_no_harm() {
    for writes in [true, false] {
        let mut pair = start();
        pair.writes_at_once = writes;
        pair.reads_at_once = false;
        let settings = named("jobs").to_json();
        let action = DefineQueue::Create { settings: &settings };
        pair.send(3, &Command::DefineQueue { command: COMMAND, action });
        pair.send(2, &Command::DefineQueue { command: COMMAND, action });
        pair.one_turn();
        pair.disconnect(2);
        pair.disconnect(3);
        pair.writes_at_once = true;
        pair.reads_at_once = true;
        pair.turn();
        assert_eq!(queues(&pair), ["jobs"]);
        pair.client(3, "operator");
        assert_eq!(drop_queue(&mut pair, "jobs"), Ok(0));
    }
}

#[test]
fn every_subscription_that_takes_from_a_dropped_queue_is_ended() {
    let mut pair = start();
    create(&mut pair, &named("jobs/a")).unwrap();
    create(&mut pair, &named("jobs/b")).unwrap();
    pair.client(4, "other");
    pair.subscribe(2, &consume(1, "^jobs/", 10));
    pair.subscribe(2, &consume(2, "jobs/b", 10));
    pair.subscribe(4, &Subscribe { filter: Some("1 = 1"), ..consume(1, "jobs/a", 10) });
    pair.publish(1, 1, "jobs/a", "1");
    pair.turn();
    pair.take(2);
    pair.take(4);
    assert_eq!(drop_queue(&mut pair, "jobs/a"), Ok(1));
    assert_eq!(pair.take(2), [Said::Ended { subscription: 1, code: Code::UnknownQueue }]);
    assert_eq!(pair.take(4), [Said::Ended { subscription: 1, code: Code::UnknownQueue }]);
    pair.publish(1, 2, "jobs/b", "2");
    assert_eq!(taken(&mut pair), ["2"]);
}

#[test]
fn a_subscription_that_moved_away_loses_what_it_holds_of_a_dropped_queue() {
    let mut pair = start();
    create(&mut pair, &named("jobs")).unwrap();
    create(&mut pair, &named("others")).unwrap();
    publish_all(&mut pair, 1..=2);
    pair.subscribe(2, &consume(1, "jobs", 2));
    pair.turn();
    assert_eq!(pair.take_queued(2).len(), 2);
    let replace = SubscribeOptions::REPLACE;
    pair.subscribe(2, &Subscribe { options: replace, ..consume(1, "others", 2) });
    pair.turn();
    pair.take(2);
    assert_eq!(drop_queue(&mut pair, "jobs"), Ok(2));
    // Its backlog is free again.
    for sequence in 3..=4 {
        pair.publish(1, sequence, "others", &sequence.to_string());
    }
    assert_eq!(taken(&mut pair), ["3", "4"]);
}

#[test]
fn dropping_waits_for_a_settle_that_is_under_way() {
    let mut pair = start();
    create(&mut pair, &named("jobs")).unwrap();
    publish_all(&mut pair, 1..=3);
    pair.reads_at_once = false;
    let settle = Settle {
        verdict: Verdict::Expire,
        command: 6,
        acks: Acks::PROCESSED,
        queue: "jobs",
        messages: Selection::Matching("1 = 1"),
        reason: "",
    };
    pair.send(2, &Command::Settle(settle));
    pair.turn();
    let search = pair.reads.pop_front().unwrap();
    pair.reads_at_once = true;
    pair.send(3, &Command::DefineQueue { command: COMMAND, action: DefineQueue::Drop { queue: "jobs" } });
    pair.turn();
    assert_eq!((pair.take(2), pair.take(3)), (vec![], vec![]), "the search is not done");
    pair.reads.push_back(search);
    pair.run_reads();
    pair.turn();
    assert_eq!(pair.take(2), [ack(AckKind::Processed, 6, 0)]);
    assert_eq!(answered(&mut pair).unwrap()["dropped"], 0, "the settle expired all messages");
    assert_eq!(create(&mut pair, &named("jobs")), Ok(true));
}

#[test]
fn messages_that_are_published_to_the_name_of_a_dropped_queue_stay_on_this_topic() {
    let mut pair = start();
    create(&mut pair, &over("jobs", "orders")).unwrap();
    publish_all(&mut pair, 1..=1);
    drop_queue(&mut pair, "jobs").unwrap();
    publish_all(&mut pair, 2..=2);
    pair.subscribe(2, &replay(1, "orders", "0"));
    pair.subscribe(2, &replay(2, "jobs", "0"));
    pair.turn();
    let on = |said: &Said| match said {
        Said::Message { topic, data, .. } => Some((topic.clone(), data.clone())),
        _ => None,
    };
    let messages: Vec<(String, String)> = pair.take(2).iter().filter_map(on).collect();
    assert_eq!(messages, [("orders".into(), "1".into()), ("jobs".into(), "2".into())]);
}

#[test]
fn dropping_the_queue_over_dead_letters_warns() {
    let mut pair = start();
    create(&mut pair, &named("dead")).unwrap();
    let letters =
        QueueSettings { dead_letter_topic: Some("dead".into()), max_cancels: Some(0), ..named("jobs") };
    create(&mut pair, &letters).unwrap();
    let answer = ask(&mut pair, DefineQueue::Drop { queue: "dead" }).unwrap();
    let warning = "no queue takes the dead letters of queue \"jobs\" on \"dead\" any more";
    assert_eq!(answer["warnings"], serde_json::json!([warning]));
    // The topic takes them.
    publish_all(&mut pair, 1..=1);
    pair.subscribe(2, &consume(1, "jobs", 1));
    pair.turn();
    let held = pair.take_queued(2);
    pair.settle(2, "jobs", Verdict::Cancel, &held);
    pair.subscribe(2, &replay(2, "dead", "0"));
    pair.turn();
    assert_eq!(pair.take_data(2).len(), 1);
}

#[test]
fn letters_that_are_not_published_yet_are_dropped_with_their_queue() {
    let mut pair = start();
    let settings = QueueSettings {
        dead_letter_topic: Some("dead".into()),
        expiration_ns: Some(59_000_000_000),
        ..named("jobs")
    };
    create(&mut pair, &settings).unwrap();
    publish_all(&mut pair, 1..=3);
    // The part of the log that they need is not read.
    pair = again(pair);
    pair.reads_at_once = false;
    pair.pass(Duration::from_secs(60));
    pair.send(3, &Command::DefineQueue { command: COMMAND, action: DefineQueue::Drop { queue: "jobs" } });
    pair.turn();
    pair.reads_at_once = true;
    pair.turn();
    let dropped = answered(&mut pair).unwrap()["dropped"].as_u64().unwrap();
    pair.subscribe(2, &replay(2, "dead", "0"));
    pair.turn();
    assert_eq!(pair.take_data(2).len() as u64 + dropped, 3);
}

#[test]
fn a_broker_is_idle_after_the_last_queue_that_keeps_its_state_was_dropped() {
    let mut pair = start();
    create(&mut pair, &QueueSettings { file_backed_metadata: true, ..queue("jobs") }).unwrap();
    pair.turn();
    drop_queue(&mut pair, "jobs").unwrap();
    pair.pass(Duration::from_secs(60));
    pair.turn();
    assert!(pair.broker.next_timeout().is_none_or(|at| at.as_ns() > pair.now_ns));
}
