//! Clients have full journal files taken care of: one file after the other, whoever asks, and nothing goes that somebody needs
//! (docs/protocol.md section 3, `upkeep`).

use quire_core::broker::{BrokerConfig, ByClients, Event, Input, UpkeepDone};
use quire_core::wire::*;
use quire_journal::{Action, SegmentState};
use serde_json::Value;

use crate::pair::*;
use crate::queue_pair::{publish_all, queue, queue_config};

/// Every full file.
const ALL: Files = Files::OlderThan(0);

/// Clients 1 and 2 at a broker with several full files, the first of which hold messages 1 to 3.
fn filled(config: BrokerConfig) -> Pair {
    let mut pair = Pair::with(config);
    pair.client(1, "loader");
    pair.client(2, "keeper");
    publish_all(&mut pair, 1..=3);
    let filler = "x".repeat(50_000);
    for sequence in 4..=40 {
        pair.publish(1, sequence, "elsewhere", &filler);
        pair.turn();
    }
    pair.take(1);
    pair
}

fn ask(pair: &mut Pair, client: u64, command: u32, action: Action, files: Files, dry_run: bool) {
    pair.send(client, &ClientFrame::Upkeep(Upkeep { command, action, files, dry_run }));
    pair.turn();
}

/// Does what the broker handed out; whether there was anything.
fn work(pair: &mut Pair) -> bool {
    let Some(request) = pair.upkeeps.pop_front() else { return false };
    let now = pair.now();
    pair.broker.handle(now, Input::UpkeepDone(request.run()));
    pair.turn();
    true
}

/// Asks once, lets it be done, and gives the files that the client was told, which is the whole answer.
fn take(pair: &mut Pair, client: u64, action: Action, files: Files, dry_run: bool) -> Vec<Value> {
    ask(pair, client, 7, action, files, dry_run);
    assert_eq!(pair.take(client), [], "nothing is said before it is done");
    assert!(work(pair));
    let mut said = pair.take(client);
    assert_eq!(said.pop(), Some(ack(AckKind::Processed, 7, 0)));
    let file = |said| match said {
        Said::JournalFile { command: 7, json } => serde_json::from_str(&json).unwrap(),
        other => panic!("{other:?}"),
    };
    said.into_iter().map(file).collect()
}

fn states(pair: &Pair) -> Vec<SegmentState> {
    pair.broker.journal().reader().segments().iter().map(|file| file.state).collect()
}

#[test]
fn one_full_file_is_taken_at_a_time_and_the_client_is_told_which() {
    let mut pair = filled(config());
    let before = pair.broker.journal().reader().segments();
    let count = before.len();
    assert!(count > 4, "{count}");
    for (number, file) in before[..count - 1].iter().enumerate() {
        let [told] = &take(&mut pair, 2, Action::Compress, ALL, false)[..] else { panic!("no file") };
        assert_eq!(told["path"], file.path.to_str().unwrap());
        assert_eq!(
            (told["number"].as_u64(), told["state"].as_str()),
            (Some(number as u64), Some("compressed"))
        );
        assert_eq!(told["count"], file.count);
        let (first, last) = file.bookmarks.unwrap();
        assert_eq!(
            (told["first"].as_str(), told["last"].as_str()),
            (Some(&*first.to_string()), Some(&*last.to_string()))
        );
        let (first, last) = file.timestamps.unwrap();
        assert_eq!(
            (told["first_ns"].as_u64(), told["last_ns"].as_u64()),
            (Some(first.as_ns()), Some(last.as_ns()))
        );
        assert!(told["size"].as_u64().unwrap() < file.size / 10, "{told}");
    }
    assert_eq!(take(&mut pair, 2, Action::Compress, ALL, false), Vec::<Value>::new());
    let done = pair.log.iter().filter(|event| {
        matches!(event, Event::JournalFileTaken { client_name: Some(name), action: Action::Compress, .. } if name == "keeper")
    });
    assert_eq!(done.count(), count - 1);
    assert_eq!(take(&mut pair, 2, Action::Remove, ALL, false).len(), 1);
    assert_eq!(pair.broker.journal().reader().segments().len(), count - 1);
}

#[test]
fn a_dry_run_tells_all_that_are_meant_and_changes_nothing() {
    let mut pair = filled(config());
    let before = states(&pair);
    for action in [Action::Compress, Action::Remove] {
        let told = take(&mut pair, 2, action, ALL, true);
        let numbers: Vec<_> = told.iter().map(|file| file["number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..before.len() as u64 - 1).collect::<Vec<_>>());
        assert_eq!(told[0]["state"], "sealed");
    }
    assert_eq!(states(&pair), before);
    assert!(!pair.log.iter().any(|event| matches!(event, Event::JournalFileTaken { .. })));
}

#[test]
fn an_age_and_a_size_say_which() {
    let mut pair = filled(config());
    let count = states(&pair).len();
    let sizes: u64 = pair.broker.journal().reader().segments().iter().map(|file| file.size).sum();
    assert_eq!(take(&mut pair, 2, Action::Remove, Files::OlderThan(1_000_000_000), true).len(), 0);
    assert_eq!(take(&mut pair, 2, Action::Remove, Files::Beyond(sizes), true).len(), 0);
    assert_eq!(take(&mut pair, 2, Action::Remove, Files::Beyond(sizes - 1), true).len(), 1);
    // By the clock of the broker, at the time at which it is its turn.
    pair.now_ns += 2_000_000_000;
    assert_eq!(take(&mut pair, 2, Action::Remove, Files::OlderThan(1_000_000_000), true).len(), count - 1);
}

#[test]
fn what_a_paused_subscription_or_a_queue_needs_is_not_removed() {
    let mut pair = filled(config());
    let paused = SubscribeOptions::PAUSED;
    pair.subscribe(1, &Subscribe { options: paused, ..replay(5, "elsewhere", "0") });
    pair.turn();
    assert_eq!(take(&mut pair, 2, Action::Remove, ALL, false).len(), 0);
    assert_eq!(take(&mut pair, 2, Action::Compress, ALL, false).len(), 1, "it stays part of the log");
    pair.send(1, &ClientFrame::Unsubscribe { command: 6, acks: Acks::PROCESSED, subscription: 5 });
    assert_eq!(take(&mut pair, 2, Action::Remove, ALL, false).len(), 1);
    let mut pair = filled(queue_config([queue("jobs")]));
    assert_eq!(take(&mut pair, 2, Action::Remove, ALL, true).len(), 0);
    assert_eq!(take(&mut pair, 2, Action::Remove, ALL, false).len(), 0);
}

#[test]
fn two_clients_take_turns_and_one_has_one_command_at_a_time() {
    let mut pair = filled(config());
    ask(&mut pair, 1, 11, Action::Compress, ALL, false);
    ask(&mut pair, 2, 21, Action::Compress, ALL, false);
    assert_eq!(pair.upkeeps.len(), 1, "one is worked on");
    ask(&mut pair, 1, 12, Action::Compress, ALL, false);
    ask(&mut pair, 2, 22, Action::Compress, ALL, false);
    assert_eq!(pair.take(1), [refused(Code::LimitExceeded, 12, 0)]);
    assert_eq!(pair.take(2), [refused(Code::LimitExceeded, 22, 0)]);
    // Other commands do not wait for it.
    pair.send(2, &ClientFrame::Flush { command: 23, acks: Acks::PERSISTED });
    pair.turn();
    assert_eq!(pair.take(2), [ack(AckKind::Persisted, 23, 0)]);
    assert!(work(&mut pair));
    assert!(matches!(
        &pair.take(1)[..],
        [Said::JournalFile { command: 11, .. }, Said::Ack { command: 11, .. }]
    ));
    ask(&mut pair, 1, 13, Action::Compress, ALL, false);
    assert!(work(&mut pair));
    assert!(matches!(
        &pair.take(2)[..],
        [Said::JournalFile { command: 21, .. }, Said::Ack { command: 21, .. }]
    ));
    assert!(work(&mut pair));
    assert!(matches!(
        &pair.take(1)[..],
        [Said::JournalFile { command: 13, .. }, Said::Ack { command: 13, .. }]
    ));
    assert!(!work(&mut pair));
}

#[test]
fn what_waits_is_dropped_with_its_connection_and_what_is_under_way_is_finished() {
    let mut pair = filled(config());
    pair.client(3, "third");
    pair.client(4, "fourth");
    (1..=4).for_each(|client| ask(&mut pair, client, 1, Action::Compress, ALL, false));
    pair.disconnect(1);
    pair.disconnect(2);
    pair.send(3, &ClientFrame::Goodbye);
    pair.turn();
    assert!(work(&mut pair));
    let of_the_first = |event: &&Event| matches!(event, Event::JournalFileTaken { client_name: Some(name), .. } if name == "loader");
    assert_eq!(pair.log.iter().filter(of_the_first).count(), 1, "the log says it");
    assert!(work(&mut pair));
    assert!(matches!(&pair.take(4)[..], [Said::JournalFile { command: 1, .. }, Said::Ack { .. }]));
    assert!(!work(&mut pair), "nobody else waits");
    // Numbers of connections are not used again: who comes later is not taken for who was there before.
    pair.client(5, "fifth");
    assert_eq!(take(&mut pair, 5, Action::Compress, ALL, false).len(), 1);
}

#[test]
fn a_server_that_stops_begins_nothing_more() {
    let mut pair = filled(config());
    ask(&mut pair, 1, 1, Action::Compress, ALL, false);
    ask(&mut pair, 2, 1, Action::Compress, ALL, false);
    // It stops as long as the disk takes.
    pair.writes_at_once = false;
    pair.publish(1, 41, "elsewhere", "{}");
    let now = pair.now();
    pair.broker.handle(now, Input::Shutdown);
    pair.turn();
    assert!(work(&mut pair));
    assert!(matches!(
        &pair.take(1)[..],
        [Said::JournalFile { command: 1, .. }, Said::Ack { command: 1, .. }]
    ));
    assert!(!work(&mut pair));
    assert!(!pair.broker.is_drained());
    pair.write();
    pair.turn();
    assert_eq!(pair.take(2), [Said::Error(Code::ShuttingDown), Said::Closed]);
    assert!(pair.broker.is_drained());
    assert_eq!(states(&pair).iter().filter(|state| **state == SegmentState::Compressed).count(), 1);
}

#[test]
fn clients_may_do_what_the_configuration_lets_them() {
    let mut config = config();
    config.transaction_log.upkeep.by_clients = ByClients { remove: false, ..ByClients::default() };
    let mut pair = filled(config);
    for dry_run in [false, true] {
        ask(&mut pair, 2, 7, Action::Remove, ALL, dry_run);
        assert_eq!(pair.take(2), [refused(Code::NotEntitled, 7, 0)]);
    }
    assert!(pair.upkeeps.is_empty());
    assert_eq!(take(&mut pair, 2, Action::Compress, ALL, false).len(), 1);
}

#[test]
fn what_cannot_be_done_is_refused_and_the_next_one_gets_its_turn() {
    let mut pair = filled(config());
    ask(&mut pair, 1, 7, Action::Archive, ALL, false);
    ask(&mut pair, 2, 8, Action::Compress, ALL, false);
    assert!(work(&mut pair));
    assert_eq!(pair.take(1), [refused(Code::BadOption, 7, 0)], "there is no archive directory");
    let now = pair.now();
    pair.upkeeps.pop_front().unwrap();
    pair.broker.handle(now, Input::UpkeepDone(UpkeepDone::failed("a bug")));
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::Internal, 8, 0)]);
    assert_eq!(take(&mut pair, 2, Action::Compress, ALL, false).len(), 1);
}
