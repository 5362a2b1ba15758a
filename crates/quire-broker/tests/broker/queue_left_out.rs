//! Messages that a queue had and that its configuration no longer includes. The start logs their
//! number, the journal keeps them, and they return with the earlier configuration.

use std::path::Path;
use std::time::Duration;

use quire_broker::{AdminCommand, AdminReply, BrokerConfig, Event, Input, LeftOutBecause, QueueSettings};
use quire_journal::{Disk, Position, Which};
use quire_queue::Verdict;

use crate::pair::*;
use crate::queue_defining::{create, drop_queue, refusal};
use crate::queue_pair::*;

/// Over every topic whose name begins with `jobs`.
fn all() -> QueueSettings {
    QueueSettings {
        underlying_topic: Some("^jobs".into()),
        default_publish_target: Some("jobs".into()),
        ..queue("work")
    }
}

fn filtered(filter: &str) -> QueueSettings {
    QueueSettings { filter: Some(filter.into()), ..all() }
}

fn over(topic: &str) -> QueueSettings {
    QueueSettings { underlying_topic: Some(topic.into()), default_publish_target: None, ..all() }
}

/// A publisher 1, an administrator 3, and a worker 2 on `work`.
fn start(mut pair: Pair) -> Pair {
    pair.client(1, "publisher");
    pair.client(2, "worker");
    pair.client(3, "administrator");
    pair.subscribe(2, &consume(1, "work", 1000));
    pair.turn();
    pair
}

fn again(pair: Pair, config: BrokerConfig) -> Pair {
    start(pair.restart(config))
}

fn with(settings: QueueSettings) -> BrokerConfig {
    queue_config([settings])
}

/// Publishes `{"i": i}` to `jobs/0` and `jobs/1` in alternation.
fn publish(pair: &mut Pair, numbers: std::ops::RangeInclusive<u64>) {
    numbers.for_each(|i| pair.publish(1, i, &format!("jobs/{}", i % 2), &format!("{{\"i\":{i}}}")));
    pair.turn();
}

fn taken(pair: &mut Pair) -> Vec<u64> {
    numbers(&pair.take_queued(2))
}

fn numbers(messages: &[FromQueue]) -> Vec<u64> {
    let number = |message: &FromQueue| message.data[5..message.data.len() - 1].parse().unwrap();
    messages.iter().map(number).collect()
}

/// The queues whose messages the start left out, how many they are, and why.
fn left_out(pair: &mut Pair) -> Vec<(String, u64, LeftOutBecause)> {
    pair.turn();
    let left_out = |event: &Event| match event {
        Event::QueueMessagesLeftOut { queue, count, why } => Some((queue.clone(), *count, why.clone())),
        _ => None,
    };
    pair.log.iter().filter_map(left_out).collect()
}

fn because(why: LeftOutBecause, count: u64) -> Vec<(String, u64, LeftOutBecause)> {
    vec![("work".into(), count, why)]
}

fn save(pair: &mut Pair) {
    pair.pass(Duration::from_secs(11));
    pair.turn();
}

/// The first position that the journal keeps, as this process and another one know it.
fn kept_from(pair: &mut Pair) -> Option<u64> {
    save(pair);
    let needed = pair.broker.needed_position();
    assert_eq!(pair.broker.journal().sidecars().needs(), needed);
    needed.map(Position::get)
}

/// A queue with messages 1 to 10, of which 2, 3 and 9 were acknowledged.
fn working(settings: QueueSettings) -> Pair {
    let mut pair = start(Pair::with(with(settings)));
    publish(&mut pair, 1..=10);
    let held = pair.take_queued(2);
    assert_eq!(held.len(), 10);
    for index in [1, 2, 8] {
        pair.settle(2, "work", Verdict::Acknowledge, &held[index..=index]);
    }
    save(&mut pair);
    pair
}

#[test]
fn messages_that_a_narrower_filter_leaves_out_are_counted_and_come_back() {
    let pair = working(all());
    // At each start with the narrower filter.
    let mut pair = again(pair, with(filtered("/i > 6")));
    for _ in 0..2 {
        assert_eq!(left_out(&mut pair), because(LeftOutBecause::Settings, 4));
        assert_eq!((pair.figure("work", "left_out"), taken(&mut pair)), (4, vec![7, 8, 10]));
        // Where message 1 is.
        let first = kept_from(&mut pair);
        pair = again(pair, with(filtered("/i > 6")));
        assert_eq!(kept_from(&mut pair), first);
    }
    let held = pair.take_queued(2);
    pair.settle(2, "work", Verdict::Acknowledge, &held[1..2]);
    publish(&mut pair, 11..=11);
    let mut pair = again(pair, with(all()));
    assert_eq!((left_out(&mut pair), pair.figure("work", "left_out")), (vec![], 0));
    let held = pair.take_queued(2);
    assert_eq!(numbers(&held), [1, 4, 5, 6, 7, 10, 11]);
    pair.settle(2, "work", Verdict::Acknowledge, &held);
    save(&mut pair);
    assert!(pair.broker.needed_position() > Some(Position(11)));
}

#[test]
fn other_topics_leave_messages_out_and_bring_them_back() {
    let mut pair = again(working(all()), with(over("jobs/1")));
    assert_eq!(left_out(&mut pair), because(LeftOutBecause::Settings, 4));
    assert_eq!(taken(&mut pair), [1, 5, 7]);
    // A further change: messages of both earlier selections are left out.
    let mut pair = again(pair, with(over("jobs/0")));
    assert_eq!(left_out(&mut pair), because(LeftOutBecause::Settings, 3));
    assert_eq!(taken(&mut pair), [4, 6, 8, 10]);
    let mut pair = again(pair, with(filtered("/i > 7")));
    assert_eq!(left_out(&mut pair), because(LeftOutBecause::Settings, 5));
    assert_eq!(taken(&mut pair), [8, 10]);
    let mut pair = again(pair, with(all()));
    assert_eq!(taken(&mut pair), [1, 4, 5, 6, 7, 8, 10]);
}

#[test]
fn what_never_entered_a_queue_is_not_left_out_of_it() {
    let mut pair = start(Pair::with(with(filtered("/i > 3"))));
    publish(&mut pair, 1..=6);
    let mut pair = again(pair, with(filtered("/i > 5")));
    assert_eq!(left_out(&mut pair), because(LeftOutBecause::Settings, 2));
    // The filter before the last one would have taken it.
    pair.publish(1, 7, "jobs", r#"{"i":4}"#);
    pair.turn();
    let mut pair = again(pair, with(filtered("/i > 6")));
    assert_eq!(left_out(&mut pair), because(LeftOutBecause::Settings, 3));
    assert!(taken(&mut pair).is_empty());
}

#[test]
fn nothing_is_said_when_all_messages_of_a_queue_are_acknowledged() {
    let mut pair = start(Pair::with(with(all())));
    publish(&mut pair, 1..=5);
    let held = pair.take_queued(2);
    pair.settle(2, "work", Verdict::Acknowledge, &held);
    let mut pair = again(pair, with(filtered("/i > 6")));
    assert_eq!((left_out(&mut pair), pair.figure("work", "left_out")), (vec![], 0));
    assert!(kept_from(&mut pair) > Some(5));
    let mut pair = again(pair, config());
    assert_eq!((left_out(&mut pair), kept_from(&mut pair)), (vec![], None));
}

#[test]
fn a_queue_that_leaves_the_configuration_keeps_its_messages_until_it_is_put_back() {
    for (file_backed_metadata, others) in [(false, vec![]), (true, vec![]), (false, vec![queue("other")])] {
        let settings = QueueSettings { file_backed_metadata, ..all() };
        let mut pair = again(working(settings.clone()), queue_config(others.clone()));
        for _ in 0..2 {
            assert_eq!(left_out(&mut pair), because(LeftOutBecause::Removed, 7));
            let first = kept_from(&mut pair);
            pair = again(pair, queue_config(others.clone()));
            assert_eq!(kept_from(&mut pair), first);
        }
        publish(&mut pair, 11..=11);
        let mut pair = again(pair, with(settings));
        assert_eq!((left_out(&mut pair), taken(&mut pair)), (vec![], vec![1, 4, 5, 6, 7, 8, 10, 11]));
    }
}

#[test]
fn a_queue_that_is_put_back_with_another_filter_leaves_messages_out() {
    let pair = again(working(all()), config());
    let mut pair = again(pair, with(filtered("/i > 4")));
    assert_eq!(left_out(&mut pair), because(LeftOutBecause::Settings, 2));
    assert_eq!(taken(&mut pair), [5, 6, 7, 8, 10]);
    let mut pair = again(pair, with(all()));
    assert_eq!(taken(&mut pair), [1, 4, 5, 6, 7, 8, 10]);
}

#[test]
fn a_queue_with_another_name_is_another_queue_and_the_messages_of_the_first_are_kept() {
    let renamed = QueueSettings { name: "renamed".into(), recovery_point: Some("now".into()), ..all() };
    let mut pair = again(working(all()), with(renamed));
    assert_eq!(left_out(&mut pair), because(LeftOutBecause::Removed, 7));
    let mut pair = again(pair, with(all()));
    assert_eq!(taken(&mut pair), [1, 4, 5, 6, 7, 8, 10]);
}

#[test]
fn a_queue_that_left_the_configuration_is_dropped_with_its_messages() {
    let mut pair = again(working(all()), config());
    let reason = refusal(&mut pair, AdminCommand::CreateQueue(Box::new(all())));
    assert!(reason.contains("not acknowledged: 7"), "{reason}");
    assert_eq!(drop_queue(&mut pair, "work"), Ok(7));
    assert!(pair.log.iter().any(|event| matches!(event, Event::QueueDropped { message_count: 7, .. })));
    assert_eq!(kept_from(&mut pair), None);
    assert!(drop_queue(&mut pair, "work").is_err());
    let mut pair = again(pair, config());
    assert_eq!((left_out(&mut pair), kept_from(&mut pair)), (vec![], None));
    pair.disconnect(2);
    assert_eq!(create(&mut pair, &all()), Ok(true));
}

#[test]
fn a_queue_that_left_the_configuration_exists_until_its_drop_is_on_stable_storage() {
    let mut pair = again(working(all()), config());
    let first = kept_from(&mut pair);
    assert!(first.is_some());
    let now = pair.now();
    for ticket in [1, 2] {
        let command = AdminCommand::DropQueue("work".into());
        pair.broker.handle(now, Input::Admin { ticket, command });
    }
    let create = AdminCommand::CreateQueue(Box::new(all()));
    pair.broker.handle(now, Input::Admin { ticket: 3, command: create });
    // The file is being written.
    pair.one_turn();
    assert_eq!(pair.broker.needed_position().map(Position::get), first, "a crash could keep the old file");
    assert!(matches!(&pair.replies[..], [(3, AdminReply::Refused { .. })]), "{:?}", pair.replies);
    pair.turn();
    let dropped =
        |(_, reply): &(u64, AdminReply)| matches!(reply, AdminReply::QueueDropped { message_count: 7, .. });
    assert_eq!(pair.replies.iter().filter(|reply| dropped(reply)).count(), 2, "{:?}", pair.replies);
    assert_eq!((pair.broker.needed_position(), kept_from(&mut pair)), (None, None));
}

#[test]
fn a_message_that_the_count_of_the_start_cannot_read_is_reported() {
    let mut pair = start(Pair::with(with(filtered("/i > 0"))));
    publish(&mut pair, 1..=2);
    pair.publish(1, 3, "jobs/1", "{\"i\": ");
    pair.turn();
    save(&mut pair);
    let mut pair = again(pair, config());
    assert_eq!(left_out(&mut pair), because(LeftOutBecause::Removed, 2));
    assert_ne!(pair.broker.stats().unreadable_count, 0);
}

#[test]
fn a_later_recovery_point_gives_up_messages_and_the_start_says_so() {
    for narrowed in [false, true] {
        let mut pair = working(all());
        if narrowed {
            pair = again(pair, with(filtered("/i > 6")));
            save(&mut pair);
        }
        let now = QueueSettings { recovery_point: Some("now".into()), ..all() };
        let mut pair = again(pair, with(now.clone()));
        let why = LeftOutBecause::Begins { recovery_point: "now".into() };
        assert_eq!(left_out(&mut pair), because(why, 7));
        assert_eq!((taken(&mut pair), pair.figure("work", "left_out")), (vec![], 0));
        assert!(kept_from(&mut pair) > Some(10));
        let mut pair = again(pair, with(now));
        assert_eq!(left_out(&mut pair), []);
    }
}

#[test]
fn an_expired_or_dead_message_is_not_left_out() {
    let dead_letters = QueueSettings { dead_letter_topic: Some("dead".into()), ..all() };
    for settings in [all(), dead_letters] {
        let mut pair = start(Pair::with(with(settings)));
        publish(&mut pair, 1..=4);
        let held = pair.take_queued(2);
        pair.settle(2, "work", Verdict::Expire, &held[..2]);
        let mut pair = again(pair, config());
        assert_eq!(left_out(&mut pair), because(LeftOutBecause::Removed, 2));
    }
}

#[test]
fn journal_files_with_messages_that_are_left_out_are_not_removed() {
    let mut pair = start(Pair::with(with(all())));
    let filler = "x".repeat(8 * 1024);
    for i in 1..=80 {
        pair.publish(1, i, "jobs", &format!("{{\"i\":{i}, \"filler\":\"{filler}\"}}"));
    }
    pair.turn();
    let mut pair = again(pair, with(filtered("/i > 78")));
    let held = pair.take_queued(2);
    pair.settle(2, "work", Verdict::Acknowledge, &held);
    save(&mut pair);
    let removed =
        pair.broker.journal().maintenance().remove(Which::All, pair.broker.needed_position()).unwrap();
    assert_eq!(removed.len(), 0);
    let mut pair = again(pair, with(all()));
    assert_eq!(pair.take_queued(2).len(), 78);
}

#[test]
fn created_queues_whose_definitions_are_missing_are_named_and_the_start_fails() {
    let mut pair = start(Pair::with(config()));
    pair.disconnect(2);
    create(&mut pair, &all()).unwrap();
    publish(&mut pair, 1..=3);
    save(&mut pair);
    pair.disk.remove(Path::new("journal/created-queues.state")).unwrap();
    let Pair { broker, disk, .. } = pair;
    std::mem::forget(broker);
    let open = |config: BrokerConfig| {
        let options = quire_journal::Options { segment_size: 256 * 1024, ..config.journal_options() };
        let opened = quire_journal::Journal::driven_by_hand(disk.clone(), Path::new("journal"), &options);
        quire_broker::Broker::new(config, opened.unwrap().0)
    };
    let error = open(config()).err().unwrap().to_string();
    assert!(error.contains("created-queues.state is missing") && error.contains("work"), "{error}");
    // The configuration may define them instead.
    let now = QueueSettings { recovery_point: Some("now".into()), ..all() };
    assert_eq!(open(with(now)).unwrap().queue_stats()["work"].engine.queue_depth, 3);
}
