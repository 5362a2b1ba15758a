//! The owner of the lease of a message that a client has fetched, over virtual time. The test is
//! the server.

use std::sync::{Arc, Weak};
use std::time::Duration;

use quire_client::*;
use quire_command::Reply;
use quire_types::Verdict;

use crate::queues::{LEASE, Worker, accepted, batching};

fn worker(renewal: Renewal) -> Worker {
    Worker::renewing(batching(80), 10, renewal)
}

/// Parts of the lease period, in hundredths.
fn part(hundredths: u32) -> Duration {
    LEASE * hundredths / 100
}

#[test]
fn the_client_renews_what_it_fetched_three_times_in_each_period() {
    let mut worker = worker(Renewal::UntilBegun);
    let messages = [worker.deliver(1), worker.deliver(2)];
    for _ in 0..30 {
        worker.pass(part(33));
        assert!(worker.said().is_empty());
        worker.pass(part(1));
        let said = worker.said();
        assert!(said[0].starts_with("extend jobs 0 [(5, ") && said[0].len() > 24, "{said:?}");
        worker.grant();
    }
    assert!(messages.iter().all(|message| worker.begin(message)), "after ten periods");
}

#[test]
fn a_lease_that_has_run_for_a_while_is_renewed_when_the_program_begins_the_message() {
    for renewal in [Renewal::UntilBegun, Renewal::WhileHandled] {
        let mut worker = worker(renewal);
        let messages = [worker.deliver(1), worker.deliver(2), worker.deliver(3)];
        assert!(worker.begin(&messages[0]));
        assert!(worker.said().is_empty(), "its lease has just begun");
        worker.pass(part(20));
        assert!(worker.begin(&messages[1]));
        let said = worker.said();
        assert_eq!(said.len(), 1, "one command for all of them: {said:?}");
        assert!(said[0].contains("(5, 2)") && said[0].contains("(5, 3)"), "{said:?}");
        worker.grant();
        assert_eq!(messages[1].lease().unwrap().deadline(), Some(worker.now + LEASE));
        assert!(worker.begin(&messages[2]) && worker.said().is_empty(), "it was renewed with the other");
    }
}

#[test]
fn the_client_renews_while_a_handler_runs_and_not_what_the_program_holds() {
    for (renewal, is_renewed) in [(Renewal::WhileHandled, true), (Renewal::UntilBegun, false)] {
        let mut worker = worker(renewal);
        let message = worker.deliver(1);
        assert!(worker.begin(&message));
        for _ in 0..10 {
            worker.pass(part(34));
            assert_eq!(!worker.said().is_empty(), is_renewed, "{renewal:?}");
            worker.grant();
        }
        assert_eq!(message.lease().unwrap().is_lost(worker.now), !is_renewed);
        message.lease().unwrap().end_handling();
        worker.pass(part(34));
        assert!(worker.said().is_empty(), "the handler has returned");
    }
}

#[test]
fn without_renewals_what_cannot_begin_before_its_lease_ends_goes_back_without_counting() {
    let mut worker = worker(Renewal::Never);
    let messages = [worker.deliver(1), worker.deliver(2)];
    assert!(worker.begin(&messages[0]));
    worker.pass(part(74));
    assert!(worker.said().is_empty());
    worker.pass(part(1));
    assert_eq!(worker.said(), ["Release jobs [(5, 2)]"]);
    assert!(!worker.begin(&messages[1]), "the program must not see it");
    worker.pass(part(50));
    assert!(worker.said().is_empty() && messages[0].lease().unwrap().is_lost(worker.now));
}

#[test]
fn a_message_does_not_begin_shortly_before_its_lease_ends() {
    let mut worker = worker(Renewal::Never);
    let message = worker.deliver(1);
    worker.now = worker.now + part(80);
    assert!(!worker.begin(&message), "a timer that is late changes nothing");
    worker.pass(Duration::ZERO);
    assert_eq!(worker.said(), ["Release jobs [(5, 1)]"]);
}

#[test]
fn what_the_server_does_not_renew_goes_back() {
    let mut worker = worker(Renewal::UntilBegun);
    let message = worker.deliver(1);
    for hundredths in [34, 34] {
        worker.pass(part(hundredths));
        assert_eq!(worker.said(), ["extend jobs 0 [(5, 1)]"], "it is not answered");
    }
    worker.pass(part(7));
    assert_eq!(worker.said(), ["Release jobs [(5, 1)]"]);
    assert!(!worker.begin(&message));
}

#[test]
fn the_program_never_sees_a_message_whose_lease_is_lost_before_it_begins() {
    let losses: [fn(&mut Worker); 2] =
        [|worker| worker.lapse(1), |worker| worker.core.handle_disconnected(worker.now)];
    for lose in losses {
        let mut worker = worker(Renewal::UntilBegun);
        let message = worker.deliver(1);
        lose(&mut worker);
        let mut told = Vec::new();
        while let Some(event) = worker.core.poll_event() {
            match event {
                Event::Dropped { subscription } => told.push(format!("dropped {subscription}")),
                Event::LeasesLost { count, .. } => told.push(format!("{count:?}")),
                _ => (),
            }
        }
        assert_eq!(told, ["dropped 1", "LossCount { begun: 0, unbegun: 1 }"]);
        assert!(message.lease().unwrap().is_settled_or_over());
        assert!(!worker.begin(&message) && message.lease().unwrap().is_lost(worker.now));
        assert_eq!((worker.core.take_unseen(1), worker.core.take_unseen(1)), (1, 0));
    }
}

#[test]
fn losses_are_reported_once_a_minute_with_their_number() {
    let mut worker = worker(Renewal::UntilBegun);
    let mut reports = Vec::new();
    for (sequence, wait_s) in [(1, 0), (2, 1), (3, 1), (4, 60), (5, 0)] {
        worker.pass(Duration::from_secs(wait_s));
        let mut events = Vec::from_iter(std::iter::from_fn(|| worker.core.poll_event()));
        let message = worker.deliver(sequence);
        assert!(sequence == 1 || worker.begin(&message));
        worker.lapse(sequence);
        events.extend(std::iter::from_fn(|| worker.core.poll_event()));
        reports.extend(events.into_iter().filter_map(|event| match event {
            Event::LeasesLost { queue, cause, count } => {
                Some((queue.to_string(), cause, count.begun, count.unbegun))
            }
            _ => None,
        }));
    }
    let expired = |begun, unbegun| ("jobs".to_owned(), LossCause::Expired, begun, unbegun);
    assert_eq!(reports, [expired(0, 1), expired(2, 0)]);
}

#[test]
fn the_run_of_a_handler_continues_with_a_delivery_that_comes_meanwhile() {
    for is_disconnected in [false, true] {
        let mut worker = worker(Renewal::WhileHandled);
        let message = worker.deliver(1);
        assert!(worker.begin(&message));
        if is_disconnected {
            worker.core.handle_disconnected(worker.now);
            worker.connect();
            worker.said();
        } else {
            worker.lapse(1);
        }
        let lease = message.lease().unwrap();
        assert!(lease.is_lost(worker.now));
        assert!(worker.deliver_again(1, 3).is_none(), "the handler works on it");
        assert!(!lease.is_lost(worker.now));
        assert_eq!(worker.core.take_unseen(1), 1, "the first delivery was lost");
        worker.pass(part(34));
        assert_eq!(worker.said(), ["extend jobs 0 [(5, 1)]"]);
        worker.acknowledge(&message);
        worker.core.flush().unwrap();
        assert_eq!(worker.said(), ["Acknowledge jobs [(5, 1)]"]);
        assert!(!lease.is_lost(worker.now), "it counts in time");
    }
}

#[test]
fn a_copy_that_waits_is_settled_with_the_message_that_the_program_had() {
    let mut worker = worker(Renewal::UntilBegun);
    let first = worker.deliver(1);
    assert!(worker.begin(&first));
    worker.lapse(1);
    let copy = worker.deliver_again(1, 3).unwrap();
    worker.acknowledge(&first);
    assert!(!worker.begin(&copy), "the program has dealt with it");
    worker.core.unsubscribe(worker.number).unwrap();
    assert_eq!(worker.said(), ["Acknowledge jobs [(5, 1)]", "Unsubscribe begun []"]);
}

#[test]
fn a_message_that_the_program_has_settled_does_not_come_again() {
    for verdict in [Verdict::Acknowledge, Verdict::Expire] {
        for is_sent in [false, true] {
            let mut worker = worker(Renewal::UntilBegun);
            let message = worker.deliver(1);
            assert!(worker.begin(&message));
            worker.core.settle(message.lease().unwrap(), verdict, worker.now).unwrap();
            if is_sent {
                worker.core.flush().unwrap();
            }
            worker.said();
            assert!(worker.deliver_again(1, 3).is_none());
            let repeated = [format!("{verdict:?} jobs [(5, 1)]")];
            let is_expected = worker.said() == repeated;
            assert!(is_expected, "the server is told again");
        }
    }
}

#[test]
fn a_verdict_that_may_be_lost_with_the_connection_is_sent_again() {
    let mut worker = worker(Renewal::UntilBegun);
    let messages = [worker.deliver(1), worker.deliver(2), worker.deliver(3)];
    assert!(messages.iter().all(|message| worker.begin(message)));
    worker.acknowledge(&messages[0]);
    worker.core.settle(messages[1].lease().unwrap(), Verdict::Cancel, worker.now).unwrap();
    worker.core.flush().unwrap();
    worker.said();
    worker.acknowledge(&messages[2]);
    worker.core.handle_disconnected(worker.now);
    worker.connect();
    let said = worker.said();
    assert_eq!(said[0], "Acknowledge jobs [(5, 1), (5, 3)]", "before the subscription: {said:?}");
    assert!(worker.deliver_again(1, 1).is_none(), "the count of deliveries began again");
    assert!(worker.deliver_again(2, 1).is_some(), "it was cancelled");
}

#[test]
fn a_repeated_verdict_is_unconfirmed_although_the_first_one_is_durable() {
    let mut worker = worker(Renewal::UntilBegun);
    let message = worker.deliver(1);
    assert!(worker.begin(&message));
    worker.acknowledge(&message);
    let flush = worker.core.flush().unwrap();
    worker.said();
    assert!(worker.deliver_again(1, 2).is_none());
    assert_eq!(worker.said(), ["Acknowledge jobs [(5, 1)]"]);
    worker.hear(&accepted(flush));
    let unconfirmed = |worker: &Worker, queue| {
        worker.core.unconfirmed_messages(queue).map(|it| it.sequence).collect::<Vec<_>>()
    };
    assert_eq!((unconfirmed(&worker, "jobs"), unconfirmed(&worker, "other")), (vec![1], vec![]));
    worker.core.handle_disconnected(worker.now);
    assert_eq!(unconfirmed(&worker, "jobs"), [1]);
    worker.connect();
    assert_eq!(worker.said()[0], "Acknowledge jobs [(5, 1)]");
}

#[test]
fn a_message_that_comes_before_its_late_verdict_is_sent_is_dropped() {
    let mut worker = worker(Renewal::UntilBegun);
    let message = worker.deliver(1);
    assert!(worker.begin(&message));
    worker.core.handle_disconnected(worker.now);
    worker.connect();
    worker.said();
    worker.acknowledge(&message);
    assert!(worker.said().is_empty(), "it waits for its batch");
    assert!(worker.deliver_again(1, 1).is_none(), "the count of deliveries began again");
    assert_eq!(worker.said(), ["Acknowledge jobs [(5, 1)]"]);
}

#[test]
fn a_verdict_that_a_failed_disk_did_not_keep_is_sent_again() {
    let mut worker = worker(Renewal::UntilBegun);
    let message = worker.deliver(1);
    assert!(worker.begin(&message));
    worker.acknowledge(&message);
    worker.pass(Duration::from_secs(1));
    assert_eq!(worker.said(), ["Acknowledge jobs [(5, 1)]"]);
    worker.not_persisted(0);
    let command = worker.core.queue_stats(None).unwrap();
    worker.hear(&accepted(command));
    worker.core.handle_disconnected(worker.now);
    worker.connect();
    assert_eq!(worker.said()[0], "Acknowledge jobs [(5, 1)]");
}

#[test]
fn a_delivery_that_a_command_gives_back_on_its_way_is_dropped() {
    let mut worker = worker(Renewal::Never);
    worker.deliver(1);
    let held = worker.deliver(2);
    assert!(worker.begin(&held));
    worker.pass(part(75));
    worker.core.settle(held.lease().unwrap(), Verdict::Cancel, worker.now).unwrap();
    assert_eq!(worker.said(), ["Release jobs [(5, 1)]", "Cancel jobs [(5, 2)]"]);
    // The leases were over, and the server had delivered both again before it heard the commands.
    assert!(worker.deliver_again(1, 3).is_none() && worker.deliver_again(2, 3).is_none());
    worker.grant();
    assert!(worker.deliver_again(1, 3).is_some() && worker.deliver_again(2, 3).is_some());
}

#[test]
fn a_subscription_that_the_server_ends_loses_its_leases() {
    let mut worker = worker(Renewal::UntilBegun);
    let messages = [worker.deliver(1), worker.deliver(2)];
    assert!(worker.begin(&messages[0]));
    let (subscription, code) = (worker.number, quire_command::Code::JournalCorrupt);
    worker.hear(&Reply::SubscriptionEnded { subscription, code, reason: "" });
    assert!(!worker.begin(&messages[1]));
    assert!(messages.iter().all(|message| message.lease().unwrap().is_lost(worker.now)));
    worker.pass(LEASE);
    assert!(worker.said().is_empty(), "nothing is renewed");
}

#[test]
fn a_subscription_that_is_dropped_keeps_what_the_program_has_begun_and_gives_back_the_rest() {
    let mut worker = worker(Renewal::UntilBegun);
    let messages = [worker.deliver(1), worker.deliver(2)];
    assert!(worker.begin(&messages[0]));
    worker.core.retire(worker.number).unwrap();
    let said = worker.said();
    assert!(said[0].starts_with("Subscribe") && said[0].contains("max_backlog: Some(0)"), "{said:?}");
    assert_eq!(said[1], "Release jobs [(5, 2)]");
    assert!(!messages[0].lease().unwrap().is_lost(worker.now));
}

#[test]
fn a_lease_in_what_was_not_read_has_run_since_reading_stopped() {
    let mut worker = worker(Renewal::UntilBegun);
    worker.core.handle_unread(worker.now);
    worker.now = worker.now + part(80);
    let message = worker.deliver(1);
    assert!(!worker.begin(&message), "its lease may be over");
    worker.pass(Duration::ZERO);
    assert_eq!(worker.said(), ["Release jobs [(5, 1)]"]);
    worker.core.handle_emptied();
    let fresh = worker.deliver(2);
    assert!(worker.begin(&fresh));
}

/// Two queues have the same topic, and one subscription gets the copy of a message from each.
fn copies(worker: &mut Worker) -> [Message; 2] {
    ["q-a", "q-b"].map(|queue| worker.deliver_from(queue, 1, 1).unwrap())
}

#[test]
fn copies_of_a_message_from_two_queues_have_a_lease_each() {
    let mut worker = worker(Renewal::UntilBegun);
    let copies = copies(&mut worker);
    worker.pass(part(34));
    let mut said = worker.said();
    said.sort();
    assert_eq!(said, ["extend q-a 0 [(5, 1)]", "extend q-b 0 [(5, 1)]"]);
    worker.grant();
    assert!(worker.begin(&copies[0]));
    worker.acknowledge(&copies[0]);
    worker.core.flush().unwrap();
    worker.said();
    worker.pass(part(34));
    assert_eq!(worker.said(), ["extend q-b 0 [(5, 1)]"], "only the other one was acknowledged");
    worker.grant();
    assert!(worker.begin(&copies[1]));
    let lease = copies[1].lease().unwrap().clone();
    assert!(worker.core.extend(&[lease], None, worker.now).unwrap());
    assert_eq!(worker.said(), ["extend q-b 0 [(5, 1)]"]);
}

#[test]
fn a_lost_lease_of_one_queue_leaves_that_of_another_queue_as_it_is() {
    let mut worker = worker(Renewal::UntilBegun);
    let copies = copies(&mut worker);
    worker.lapse_in("q-a", 1);
    assert!(copies[0].lease().unwrap().is_lost(worker.now));
    assert!(!copies[1].lease().unwrap().is_lost(worker.now) && worker.begin(&copies[1]));
    worker.core.handle_disconnected(worker.now);
    assert!(copies[1].lease().unwrap().is_lost(worker.now));
}

#[test]
fn a_handler_does_not_continue_with_a_delivery_of_another_queue() {
    let mut worker = worker(Renewal::WhileHandled);
    let first = worker.deliver_from("q-a", 1, 1).unwrap();
    assert!(worker.begin(&first));
    worker.lapse_in("q-a", 1);
    assert!(worker.deliver_from("q-b", 1, 1).is_some(), "the program has not seen it");
    assert!(first.lease().unwrap().is_lost(worker.now));
    assert!(worker.deliver_from("q-a", 1, 2).is_none());
    assert!(!first.lease().unwrap().is_lost(worker.now));
}

#[test]
fn the_command_that_ends_a_subscription_names_the_queues_of_what_has_begun() {
    let mut worker = worker(Renewal::UntilBegun);
    let copies = copies(&mut worker);
    assert!(worker.begin(&copies[0]));
    worker.core.unsubscribe(worker.number).unwrap();
    assert_eq!(worker.said(), ["Unsubscribe begun [q-a (5, 1)]"]);
}

#[test]
fn a_message_that_comes_after_the_end_of_its_subscription_is_not_given_back() {
    let mut worker = worker(Renewal::UntilBegun);
    worker.core.unsubscribe(worker.number).unwrap();
    worker.said();
    // The server released it with the subscription, and may have delivered it to another one of
    // this client.
    assert!(worker.deliver_from("q-a", 1, 1).is_none());
    worker.pass(LEASE);
    assert!(worker.said().is_empty());
}

#[test]
fn a_message_that_comes_to_a_dropped_subscription_goes_back_at_once() {
    let mut worker = worker(Renewal::UntilBegun);
    let held = worker.deliver(1);
    assert!(worker.begin(&held));
    let retired = worker.core.retire(worker.number).unwrap();
    worker.said();
    // The server had sent it before it received the replacement.
    assert!(worker.deliver_again(2, 1).is_none());
    assert_eq!(worker.said(), ["Release jobs [(5, 2)]"]);
    assert!(!held.lease().unwrap().is_lost(worker.now), "the program has it");
    // A delivery that waited for the journal of the server may still come.
    worker.enter(retired, 0);
    worker.acknowledge(&held);
    worker.core.unsubscribe(worker.number).unwrap();
    let said = worker.said();
    assert_eq!(said.last().unwrap(), "Unsubscribe begun []", "it is released: {said:?}");
}

#[test]
fn a_new_connection_enters_a_dropped_subscription_without_a_backlog() {
    let mut worker = worker(Renewal::UntilBegun);
    let held = worker.deliver(1);
    assert!(worker.begin(&held));
    worker.core.retire(worker.number).unwrap();
    worker.core.handle_disconnected(worker.now);
    worker.connect();
    let said = worker.said();
    let entries: Vec<_> = said.iter().filter(|said| said.starts_with("Subscribe")).collect();
    assert!(entries.iter().all(|said| said.contains("max_backlog: Some(0)")), "{entries:?}");
}

#[test]
fn a_lease_is_not_lost_while_the_answers_to_its_renewals_are_not_read() {
    let mut worker = worker(Renewal::WhileHandled);
    let messages = [worker.deliver(1), worker.deliver(2)];
    assert!(worker.begin(&messages[0]));
    worker.pass(part(34));
    assert_eq!(worker.said().len(), 1);
    for _ in 0..30 {
        worker.core.handle_unread(worker.now);
        worker.pass(part(34));
        let said = worker.said();
        assert!(said[0].starts_with("extend jobs 0 [(5, ") && said[0].len() > 24, "{said:?}");
        assert!(!messages[0].lease().unwrap().is_lost(worker.now));
    }
    assert!(worker.begin(&messages[1]), "it did not go back");
    worker.said();
    worker.core.handle_emptied();
    worker.pass(LEASE);
    assert!(
        messages.iter().all(|message| message.lease().unwrap().is_lost(worker.now)),
        "no answer was read"
    );
}

#[test]
fn a_lost_lease_whose_handler_has_ended_is_not_kept() {
    let mut worker = worker(Renewal::WhileHandled);
    let mut leases: Vec<Weak<Lease>> = Vec::new();
    for sequence in 1..=1000 {
        let message = worker.deliver(sequence);
        assert!(worker.begin(&message));
        worker.lapse(sequence);
        message.lease().unwrap().end_handling();
        leases.push(Arc::downgrade(message.lease().unwrap()));
        worker.said();
        worker.core.poll_event();
    }
    let kept = leases.iter().filter(|lease| lease.strong_count() > 0).count();
    assert!(kept <= 64, "{kept} leases are kept");
}

#[test]
fn a_message_is_known_as_settled_until_that_is_durable() {
    let mut worker = worker(Renewal::UntilBegun);
    for sequence in 1..=2 {
        let message = worker.deliver(sequence);
        assert!(worker.begin(&message));
        worker.acknowledge(&message);
        worker.core.flush().unwrap();
        worker.said();
        // The first delivery that is looked for makes the index, the second one finds what was
        // added to it.
        assert!(worker.deliver_again(sequence, 3).is_none());
        worker.said();
    }
    worker.core.flush().unwrap();
    worker.said();
    worker.persist_all();
    assert!(worker.deliver_again(1, 4).is_some() && worker.deliver_again(2, 4).is_some());
}

#[test]
fn a_client_renews_by_the_period_that_its_last_renewal_was_granted() {
    let mut worker = worker(Renewal::WhileHandled);
    let message = worker.deliver(1);
    assert!(worker.begin(&message));
    worker.pass(part(34));
    assert_eq!(worker.said(), ["extend jobs 0 [(5, 1)]"]);
    // The queue was altered.
    worker.grant_for(part(10));
    let lease = message.lease().unwrap();
    assert_eq!((lease.period(), lease.deadline()), (Some(part(10)), Some(worker.now + part(10))));
    for period in [part(10), LEASE * 2] {
        worker.pass(part(4));
        assert_eq!(worker.said(), ["extend jobs 0 [(5, 1)]"]);
        worker.grant_for(period);
    }
    for hundredths in [4, 56] {
        worker.pass(part(hundredths));
        assert!(worker.said().is_empty(), "the period is longer again");
    }
    worker.pass(part(7));
    assert_eq!(worker.said(), ["extend jobs 0 [(5, 1)]"]);
}
