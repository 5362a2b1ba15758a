//! Full journal files are archived, compressed and removed, by command and by a schedule: one file
//! after the other, and nothing goes that a queue or a subscription needs (docs/operations.md,
//! docs/protocol.md section 3, `maintain`).

use quire_broker::*;
use quire_command::*;
use quire_journal::{Action, SegmentState};
use quire_types::Files;
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
    let archive_directory = None;
    pair.send(client, &Command::Maintain(Maintain { command, action, files, dry_run, archive_directory }));
    pair.turn();
}

/// Does what the broker handed out; whether there was anything.
fn work(pair: &mut Pair) -> bool {
    let Some(job) = pair.jobs.pop_front() else { return false };
    let now = pair.now();
    pair.broker.handle(now, Input::MaintenanceDone(job.run()));
    pair.turn();
    true
}

/// Asks once, lets it be done, and gives the files that the client was told, which is the whole
/// answer.
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
    pair.send(
        1,
        &Command::Unsubscribe(Unsubscribe {
            command: 6,
            acks: Acks::PROCESSED,
            subscription: 5,
            begun: None,
        }),
    );
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
    assert_eq!(pair.jobs.len(), 1, "one is worked on");
    ask(&mut pair, 1, 12, Action::Compress, ALL, false);
    ask(&mut pair, 2, 22, Action::Compress, ALL, false);
    assert_eq!(pair.take(1), [refused(Code::LimitExceeded, 12, 0)]);
    assert_eq!(pair.take(2), [refused(Code::LimitExceeded, 22, 0)]);
    // Other commands do not wait for it.
    pair.send(2, &Command::Flush { command: 23, acks: Acks::PERSISTED });
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
    pair.send(3, &Command::Goodbye);
    pair.turn();
    assert!(work(&mut pair));
    let of_the_first = |event: &&Event| matches!(event, Event::JournalFileTaken { client_name: Some(name), .. } if name == "loader");
    assert_eq!(pair.log.iter().filter(of_the_first).count(), 1, "the log says it");
    assert!(work(&mut pair));
    assert!(matches!(&pair.take(4)[..], [Said::JournalFile { command: 1, .. }, Said::Ack { .. }]));
    assert!(!work(&mut pair), "nobody else waits");
    // Numbers of connections are not used again, so a new connection is never confused with an old
    // one.
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
    config.transaction_log.maintenance.by_clients = ByClients { remove: false, ..ByClients::default() };
    let mut pair = filled(config);
    for dry_run in [false, true] {
        ask(&mut pair, 2, 7, Action::Remove, ALL, dry_run);
        assert_eq!(pair.take(2), [refused(Code::NotEntitled, 7, 0)]);
    }
    assert!(pair.jobs.is_empty());
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
    pair.jobs.pop_front().unwrap();
    pair.broker.handle(now, Input::MaintenanceDone(MaintenanceDone::failed("a bug")));
    pair.turn();
    assert_eq!(pair.take(2), [refused(Code::Internal, 8, 0)]);
    assert_eq!(take(&mut pair, 2, Action::Compress, ALL, false).len(), 1);
}

/// A broker that archives nothing, and compresses and removes by the given rules once a minute.
fn scheduled(change: impl FnOnce(&mut MaintenanceConfig)) -> Pair {
    let mut config = config();
    config.transaction_log.maintenance.interval_ns = MINUTE_NS;
    change(&mut config.transaction_log.maintenance);
    let mut pair = filled(config);
    // The filling takes no time: the first interval has just begun.
    pair.turn();
    pair
}

const MINUTE_NS: u64 = 60_000_000_000;

/// Lets time pass up to the next timeout of the broker, which is as far as a driver sleeps.
fn sleep(pair: &mut Pair) {
    pair.now_ns = pair.broker.next_timeout().unwrap().as_ns().max(pair.now_ns);
    pair.turn();
}

/// Runs the jobs that follow each other; how many there were.
fn work_all(pair: &mut Pair) -> usize {
    std::iter::from_fn(|| work(pair).then_some(())).take(1_000).count()
}

fn maintained(pair: &Pair) -> Vec<(Action, usize)> {
    let taken = |event: &Event| match event {
        Event::JournalFilesTaken { action, count } => Some((*action, *count)),
        _ => None,
    };
    pair.log.iter().filter_map(taken).collect()
}

#[test]
fn a_schedule_takes_every_file_that_a_rule_means_after_each_interval() {
    let mut pair = scheduled(|rules| {
        rules.compress_size_max = Some(0);
        rules.remove_after_ns = Some(2 * MINUTE_NS);
    });
    let count = states(&pair).len();
    assert_eq!(pair.broker.next_timeout().unwrap().as_ns(), MINUTE_NS, "nothing is due before");
    assert!(pair.jobs.is_empty());
    sleep(&mut pair);
    assert_eq!(pair.jobs.len(), 1, "one file at a time");
    // One job for each file, one that finds no more, and one for the rule that means none.
    assert_eq!(work_all(&mut pair), count + 1);
    assert_eq!(maintained(&pair), [(Action::Compress, count - 1)]);
    assert_eq!(pair.broker.next_timeout().unwrap().as_ns(), 2 * MINUTE_NS, "an interval after the round");
    sleep(&mut pair);
    work_all(&mut pair);
    assert_eq!(maintained(&pair), [(Action::Compress, count - 1), (Action::Remove, count - 1)]);
    assert_eq!(states(&pair), [SegmentState::Active]);
}

#[test]
fn rules_that_the_driver_follows_have_no_schedule() {
    let mut pair = scheduled(|rules| {
        rules.compress_size_max = Some(0);
        rules.is_scheduled = false;
    });
    pair.now_ns += 2 * MINUTE_NS;
    pair.turn();
    assert!(pair.jobs.is_empty());
}

#[test]
fn a_round_that_takes_long_delays_the_next_interval() {
    let mut pair = scheduled(|rules| rules.compress_size_max = Some(0));
    sleep(&mut pair);
    pair.now_ns += 10 * MINUTE_NS;
    work_all(&mut pair);
    assert_eq!(pair.broker.next_timeout().unwrap().as_ns(), 12 * MINUTE_NS);
}

#[test]
fn a_command_waits_for_one_file_of_a_schedule_and_not_for_all() {
    let mut pair = scheduled(|rules| rules.compress_size_max = Some(0));
    sleep(&mut pair);
    ask(&mut pair, 2, 7, Action::Remove, ALL, true);
    assert!(work(&mut pair));
    assert_eq!(pair.take(2), []);
    assert!(work(&mut pair));
    assert_eq!(pair.take(2).last(), Some(&ack(AckKind::Processed, 7, 0)));
    assert!(states(&pair).contains(&SegmentState::Sealed), "the schedule is not done");
    work_all(&mut pair);
    assert!(!states(&pair).contains(&SegmentState::Sealed));
}

#[test]
fn a_rule_that_fails_is_logged_and_tried_again_after_the_interval() {
    let mut pair = scheduled(|rules| {
        rules.compress_size_max = Some(0);
        rules.remove_after_ns = Some(1);
    });
    let failure = || MaintenanceDone::failed("the disk is gone");
    for round in 1..3 {
        sleep(&mut pair);
        assert!(work(&mut pair));
        assert_eq!(pair.jobs.pop_front().unwrap().action(), Action::Compress);
        let now = pair.now();
        pair.broker.handle(now, Input::MaintenanceDone(failure()));
        pair.turn();
        // The next rule continues.
        assert!(pair.jobs.front().is_some_and(|job| job.action() == Action::Remove));
        work_all(&mut pair);
        let failed = Event::MaintenanceFailed { action: Action::Compress, reason: "the disk is gone".into() };
        assert_eq!(pair.log.iter().filter(|event| **event == failed).count(), round);
        let filler = "x".repeat(50_000);
        for sequence in 0..12 {
            pair.publish(1, 40 * (round as u64 + 1) + sequence, "elsewhere", &filler);
            pair.turn();
        }
    }
    assert_eq!(maintained(&pair)[0], (Action::Compress, 1), "what was taken before the failure is logged");
}

#[test]
fn a_schedule_removes_nothing_that_a_paused_subscription_needs() {
    let mut pair = scheduled(|rules| rules.remove_size_max = Some(0));
    let paused = SubscribeOptions::PAUSED;
    pair.subscribe(1, &Subscribe { options: paused, ..replay(5, "elsewhere", "0") });
    pair.turn();
    sleep(&mut pair);
    work_all(&mut pair);
    assert_eq!(maintained(&pair), []);
    pair.send(
        1,
        &Command::Unsubscribe(Unsubscribe {
            command: 6,
            acks: Acks::PROCESSED,
            subscription: 5,
            begun: None,
        }),
    );
    sleep(&mut pair);
    work_all(&mut pair);
    assert_eq!(maintained(&pair).len(), 1);
}

/// The job runs some time after it was handed out; meanwhile a subscription at the end of the log
/// is paused, and the log grows.
#[test]
fn what_a_subscription_needs_that_was_paused_before_the_job_ran_is_not_removed() {
    let mut pair = filled(config());
    pair.subscribe(1, &replay(5, "elsewhere", "0|1|"));
    pair.turn();
    ask(&mut pair, 2, 7, Action::Remove, Files::Beyond(0), false);
    let five = SubscriptionNumbers::from_bytes(&[5, 0, 0, 0]).unwrap();
    pair.send(1, &Command::Pause { command: 8, acks: Acks::PROCESSED, subscriptions: five });
    let filler = "x".repeat(50_000);
    for sequence in 1..=40 {
        pair.publish(2, sequence, "elsewhere", &filler);
        pair.turn();
    }
    let job = pair.jobs.pop_front().unwrap();
    while job.run().files().is_some_and(|files| !files.is_empty()) {}
    pair.take(1);
    pair.send(1, &Command::Resume { command: 9, acks: Acks::PROCESSED, subscriptions: five });
    pair.turn();
    assert_eq!(pair.take_data(1).len(), 40);
}

#[test]
fn the_process_of_the_server_gets_the_same_replies_by_its_tickets() {
    let mut config = config();
    config.transaction_log.maintenance.by_clients =
        ByClients { archive: false, compress: false, remove: false };
    let mut pair = filled(config);
    let admin = |pair: &mut Pair, ticket, command| {
        let now = pair.now();
        pair.broker.handle(now, Input::Admin { ticket, command });
        pair.turn();
    };
    let compress =
        Maintenance { action: Action::Compress, files: ALL, dry_run: false, archive_directory: None };
    admin(&mut pair, 1, AdminCommand::Maintain(compress.clone()));
    assert!(pair.replies.is_empty(), "nothing is said before it is done");
    admin(&mut pair, 2, AdminCommand::Maintain(Maintenance { dry_run: true, ..compress.clone() }));
    admin(&mut pair, 3, AdminCommand::Stats);
    admin(&mut pair, 4, AdminCommand::QueueStats(Some("nothing".into())));
    let elsewhere = Maintenance { archive_directory: Some("elsewhere".into()), ..compress };
    admin(&mut pair, 5, AdminCommand::Maintain(elsewhere));
    work_all(&mut pair);
    let count = states(&pair).len();
    let mut replies = std::mem::take(&mut pair.replies);
    replies.sort_by_key(|(ticket, _)| *ticket);
    match &replies[..] {
        [
            (1, AdminReply::Files(taken)),
            (2, AdminReply::Files(meant)),
            (3, AdminReply::Stats(stats)),
            (4, AdminReply::Refused { code: Code::UnknownQueue, .. }),
            (5, AdminReply::Refused { code: Code::BadOption, reason }),
        ] => {
            assert_eq!((taken.len(), taken[0].state), (1, SegmentState::Compressed));
            assert_eq!(meant.len(), count - 2);
            assert_eq!(stats.connection_count, 2);
            assert!(reason.contains("archives nowhere"), "{reason}");
        }
        replies => panic!("{replies:?}"),
    }
}

#[test]
fn the_local_administrator_may_do_what_clients_may_not_and_a_stranger_nothing() {
    let mut config = config();
    config.transaction_log.maintenance.by_clients.remove = false;
    config.transports[0].max_connections = 3;
    let mut pair = filled(config);
    pair.client(3, "third");
    pair.connect_as(4, Access::Administrator);
    pair.log_on(4, "administrator");
    assert_eq!(take(&mut pair, 4, Action::Remove, ALL, false).len(), 1);
    pair.connect_as(5, Access::Denied);
    pair.turn();
    assert_eq!(pair.take(5), [Said::Error(Code::NotEntitled), Said::Closed]);
    pair.connect(6);
    pair.turn();
    assert_eq!(pair.take(6), [Said::Error(Code::LimitExceeded), Said::Closed]);
}

#[test]
fn the_figures_have_the_same_names_for_clients_and_for_the_process() {
    let mut pair = filled(queue_config([queue("jobs")]));
    pair.send(2, &Command::Stats { command: 7, queue: None });
    pair.turn();
    let [Said::Stats { command: 7, json }] = &pair.take(2)[..] else { panic!("no figures") };
    let told: Value = serde_json::from_str(json).unwrap();
    let stats: Value = serde_json::from_str(&pair.broker.stats().to_json()).unwrap();
    assert_eq!(told["queues"], stats["queues"]);
    let names = |value: &Value| {
        let mut names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        names.sort();
        names.join(" ")
    };
    assert_eq!(
        names(&stats),
        "appended clients connections delivered duplicates journal_failed offlined_bytes offlined_clients persisted published publishers \
         queues received_bytes refused replay_lag replays sent_bytes subscriptions unpersisted_bytes unreadable"
    );
    assert_eq!(
        names(&stats["queues"]["jobs"]),
        "acknowledged age_of_oldest_lease_s age_of_oldest_s backlog cancelled catching_up created dead_letters deferred_acks delayed \
         delivered depth entered expired expired_forced_expire expired_leases expired_max_cancels expired_max_deliveries \
         expired_time_limit inactive left_out max_backlog message_type owned released settled strict subscriptions taken \
         takes_dead_letters target_queue_depth waiting"
    );
    assert_eq!(
        names(&stats["clients"][0]),
        "backlog_bytes bytes_in bytes_out client_name client_version connected_ns connection denied_reads denied_writes messages_in messages_out \
         offlined offlined_bytes peer sequence sequence_jumps subscriptions tls transport user writable"
    );
}
