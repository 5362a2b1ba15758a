//! The rule of the highest sequence: the checker finds the faults that were seen with real
//! processes.

use quire_model::{Action, Faults, Instances, Links, Rule, Setup};

use crate::check::{AGREE, CONFIRMED, LOGONS, SURVIVE, counterexample};

const RULE: Rule = Rule::HighestSequence;

#[test]
fn a_new_run_gets_a_confirmation_of_messages_that_no_instance_has() {
    let faults = Faults { next_runs: 1, ..Faults::default() };
    let events = counterexample(Setup { faults, ..Setup::pair(RULE) }, CONFIRMED);
    assert!(events.contains(&Action::NextRun));
}

#[test]
fn a_new_run_leaves_another_message_with_the_same_bookmark_on_each_instance() {
    let faults = Faults { next_runs: 1, ..Faults::default() };
    let events = counterexample(Setup { faults, ..Setup::pair(RULE) }, AGREE);
    assert!(events.contains(&Action::NextRun));
}

#[test]
fn a_ring_lets_clients_in_to_a_lost_disk_before_its_source_was_heard() {
    let faults = Faults { lost_disks: 1, ..Faults::default() };
    let ring = Setup { faults, ..Setup::three(RULE, Links::Ring) };
    let events = counterexample(ring.clone(), LOGONS);
    assert!(events.iter().any(|event| matches!(event, Action::Restore(_, 0))));
    counterexample(ring, AGREE);
}

#[test]
fn an_async_pair_lets_clients_in_to_a_lost_disk_before_the_other_one_was_heard() {
    let faults = Faults { lost_disks: 1, ..Faults::default() };
    let pair = Setup { faults, sync: Instances::default(), ..Setup::pair(RULE) };
    counterexample(pair.clone(), LOGONS);
    counterexample(pair, AGREE);
}

#[test]
fn the_disk_that_is_lost_after_another_one_was_filled_takes_confirmed_messages() {
    let faults = Faults { lost_disks: 2, ..Faults::default() };
    counterexample(Setup { faults, ..Setup::pair(RULE) }, SURVIVE);
}

#[test]
fn a_sync_pair_lets_clients_in_to_an_old_backup_while_the_other_one_is_away() {
    let faults = Faults { backups: 1, ..Faults::default() };
    counterexample(Setup { faults, ..Setup::pair(RULE) }, LOGONS);
}

/// The pair and the instance that is added to it, over async links and with one hop.
fn joined(faults: Faults) -> Setup {
    let faults = Faults { joins: 1, ..faults };
    Setup { faults, sync: Instances(0b011), publishes: [3, 0], ..Setup::three(RULE, Links::Mesh) }
}

#[test]
fn an_added_instance_lacks_messages_after_the_publisher_moved() {
    let events = counterexample(joined(Faults { moves: 1, ..Faults::default() }), AGREE);
    assert!(events.contains(&Action::Join(2)));
    assert!(events.contains(&Action::Leave));
}

#[test]
fn an_added_instance_lacks_messages_after_a_lost_disk_of_the_pair() {
    let events = counterexample(joined(Faults { lost_disks: 1, ..Faults::default() }), AGREE);
    assert!(events.iter().any(|event| matches!(event, Action::Restore(_, 0))));
}
