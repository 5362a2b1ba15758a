//! The rule of docs/internals/copies.md holds in every state, and each mistake in it is found.
//!
//! The systems of `make test` have up to four faults each. `make model` visits larger ones, too.

use quire_model::{Action, Faults, Instances, Links, Mistake, Numbers, Rule, Setup};

use crate::check::{
    AGREE, CONFIRMED, CONFIRMED_AGAIN, FILLED, HOLE_FILLED, LOGONS, REFUSED, SETTLED, check_all,
    counterexample,
};

const RULE: Rule = Rule::Copies(None);

const NONE: Faults = Faults {
    crashes: 0,
    cuts: 0,
    lost_disks: 0,
    backups: 0,
    moves: 0,
    next_runs: 0,
    joins: 0,
    admits: 0,
    refusals: 0,
};

#[test]
fn a_pair_with_two_runs_and_a_partition() {
    let faults = Faults { next_runs: 1, cuts: 1, moves: 1, ..NONE };
    check_all(
        "pair, two runs, a partition",
        Setup { faults, ..Setup::pair(RULE) },
        &[CONFIRMED_AGAIN, REFUSED],
    );
}

#[test]
fn a_pair_with_two_runs_and_a_crash() {
    let faults = Faults { next_runs: 1, crashes: 1, moves: 1, ..NONE };
    check_all(
        "pair, two runs, a crash",
        Setup { faults, in_flight: 2, ..Setup::pair(RULE) },
        &[CONFIRMED_AGAIN, REFUSED],
    );
}

#[test]
fn a_pair_with_two_runs_and_a_lost_disk() {
    let faults = Faults { next_runs: 1, lost_disks: 1, ..NONE };
    check_all(
        "pair, two runs, a lost disk",
        Setup { faults, ..Setup::pair(RULE) },
        &[CONFIRMED_AGAIN, REFUSED, FILLED],
    );
}

#[test]
fn an_async_pair_with_two_runs_and_a_lost_disk() {
    let faults = Faults { next_runs: 1, lost_disks: 1, ..NONE };
    let pair = Setup { faults, sync: Instances::default(), ..Setup::pair(RULE) };
    check_all("async pair, two runs, a lost disk", pair, &[CONFIRMED_AGAIN, REFUSED, FILLED]);
}

#[test]
fn a_pair_with_two_runs_and_an_old_backup() {
    let faults = Faults { next_runs: 1, backups: 1, moves: 1, ..NONE };
    check_all(
        "pair, two runs, an old backup",
        Setup { faults, ..Setup::pair(RULE) },
        &[CONFIRMED_AGAIN, REFUSED, FILLED],
    );
}

#[test]
fn a_pair_with_an_old_backup_that_it_does_not_notice() {
    let faults = Faults { next_runs: 1, backups: 1, moves: 1, ..NONE };
    let pair = Setup { faults, notices_backups: false, ..Setup::pair(RULE) };
    check_all("pair, two runs, a backup that is not noticed", pair, &[CONFIRMED_AGAIN, REFUSED, FILLED]);
}

#[test]
fn a_pair_with_a_lost_disk_and_an_operator() {
    let faults = Faults { lost_disks: 1, admits: 1, moves: 1, ..NONE };
    check_all(
        "pair, a lost disk, let in",
        Setup { faults, publishes: [3, 0], ..Setup::pair(RULE) },
        &[FILLED],
    );
}

#[test]
fn a_pair_that_crashes_while_it_is_filled() {
    let faults = Faults { lost_disks: 1, crashes: 1, moves: 1, ..NONE };
    check_all(
        "pair, a lost disk, a crash",
        Setup { faults, publishes: [2, 0], ..Setup::pair(RULE) },
        &[FILLED],
    );
}

#[test]
fn both_disks_of_a_pair_are_lost() {
    let faults = Faults { lost_disks: 2, moves: 1, ..NONE };
    check_all("pair, two lost disks", Setup { faults, publishes: [2, 0], ..Setup::pair(RULE) }, &[FILLED]);
}

#[test]
fn fresh_numbers_make_no_conflict() {
    let faults = Faults { next_runs: 1, cuts: 1, moves: 1, ..NONE };
    let pair = Setup { faults, numbers: Numbers::Fresh, ..Setup::pair(RULE) };
    check_all("pair, two runs, fresh numbers", pair, &[CONFIRMED_AGAIN]);
}

fn ring(rule: Rule, faults: Faults) -> Setup {
    Setup { faults, publishes: [2, 0], ..Setup::three(rule, Links::Ring) }
}

#[test]
fn a_ring_with_a_lost_disk() {
    check_all("ring, a lost disk", ring(RULE, Faults { lost_disks: 1, ..NONE }), &[FILLED]);
}

#[test]
fn a_ring_with_one_required_copy_two_runs_and_a_lost_disk() {
    let faults = Faults { next_runs: 1, lost_disks: 1, ..NONE };
    let setup = Setup { required: Some(1), publishes: [2, 1], ..ring(RULE, faults) };
    check_all("ring, one required copy, two runs, a lost disk", setup, &[CONFIRMED_AGAIN, REFUSED, FILLED]);
}

#[test]
#[ignore = "larger: make model"]
fn a_mesh_with_one_required_copy_and_a_lost_disk() {
    let faults = Faults { next_runs: 1, lost_disks: 1, ..NONE };
    let mesh = Setup { faults, publishes: [1, 1], ..Setup::three(RULE, Links::Mesh) };
    let setup = Setup { required: Some(1), ..mesh };
    check_all("mesh, one required copy, two runs, a lost disk", setup, &[CONFIRMED_AGAIN, REFUSED, FILLED]);
}

#[test]
fn a_ring_that_begins_with_empty_logs() {
    let setup =
        Setup { begins_unheard: true, publishes: [1, 0], ..ring(RULE, Faults { crashes: 1, ..NONE }) };
    check_all("ring, empty logs", setup, &[]);
}

fn joined(rule: Rule, faults: Faults) -> Setup {
    let faults = Faults { joins: 1, ..faults };
    Setup { faults, sync: Instances(0b011), publishes: [3, 0], ..Setup::three(rule, Links::Mesh) }
}

#[test]
fn an_added_instance_after_the_publisher_moved() {
    let setup = joined(RULE, Faults { moves: 1, ..NONE });
    check_all(
        "added, the publisher moved",
        Setup { publishes: [2, 0], in_flight: 0, ..setup },
        &[HOLE_FILLED],
    );
}

#[test]
fn an_added_instance_after_a_lost_disk() {
    let faults = Faults { lost_disks: 1, ..NONE };
    let setup = Setup { publishes: [2, 0], ..joined(RULE, faults) };
    check_all("added, a lost disk", setup, &[]);
}

#[test]
#[ignore = "larger: make model"]
fn an_added_instance_after_the_publisher_moved_and_returned() {
    let setup = joined(RULE, Faults { moves: 2, ..NONE });
    check_all("added, the publisher moved twice", Setup { in_flight: 0, ..setup }, &[HOLE_FILLED]);
}

#[test]
fn a_pair_with_all_faults() {
    let faults = Faults { next_runs: 1, crashes: 1, cuts: 1, lost_disks: 1, backups: 1, moves: 1, ..NONE };
    check_all(
        "pair, all faults",
        Setup { faults, publishes: [2, 1], ..Setup::pair(RULE) },
        &[CONFIRMED_AGAIN, REFUSED, FILLED],
    );
}

#[test]
fn a_ring_with_two_runs_and_a_lost_disk() {
    let faults = Faults { next_runs: 1, lost_disks: 1, ..NONE };
    check_all(
        "ring, two runs, a lost disk",
        Setup { publishes: [2, 1], ..ring(RULE, faults) },
        &[CONFIRMED_AGAIN, REFUSED, FILLED],
    );
}

#[test]
#[ignore = "larger: make model"]
fn a_ring_with_two_lost_disks_and_an_operator() {
    let faults = Faults { lost_disks: 2, admits: 1, ..NONE };
    check_all("ring, two lost disks, let in", ring(RULE, faults), &[FILLED]);
}

#[test]
#[ignore = "larger: make model"]
fn a_mesh_with_two_runs_and_a_lost_disk() {
    let faults = Faults { next_runs: 1, lost_disks: 1, ..NONE };
    let mesh = Setup { faults, publishes: [1, 1], ..Setup::three(RULE, Links::Mesh) };
    check_all("mesh, two runs, a lost disk", mesh, &[CONFIRMED_AGAIN, REFUSED, FILLED]);
}

#[test]
#[ignore = "larger: make model"]
fn a_mesh_with_an_old_backup_and_a_crash() {
    let faults = Faults { backups: 1, crashes: 1, ..NONE };
    let mesh = Setup { faults, publishes: [2, 0], ..Setup::three(RULE, Links::Mesh) };
    check_all("mesh, an old backup, a crash", mesh, &[FILLED]);
}

#[test]
#[ignore = "larger: make model"]
fn a_pair_with_all_faults_and_more_messages() {
    let faults = Faults { next_runs: 1, crashes: 1, cuts: 1, lost_disks: 1, backups: 1, moves: 1, ..NONE };
    check_all(
        "pair, all faults, more messages",
        Setup { faults, ..Setup::pair(RULE) },
        &[CONFIRMED_AGAIN, REFUSED, FILLED],
    );
}

#[test]
#[ignore = "larger: make model"]
fn an_async_pair_with_all_faults() {
    let faults = Faults { next_runs: 1, crashes: 1, cuts: 1, lost_disks: 1, backups: 1, moves: 1, ..NONE };
    let pair = Setup { faults, sync: Instances::default(), publishes: [2, 1], ..Setup::pair(RULE) };
    check_all("async pair, all faults", pair, &[CONFIRMED_AGAIN, REFUSED, FILLED]);
}

#[test]
#[ignore = "larger: make model"]
fn a_pair_with_fresh_numbers_and_a_lost_disk() {
    let faults = Faults { next_runs: 1, crashes: 1, cuts: 1, lost_disks: 1, moves: 1, ..NONE };
    let pair = Setup { faults, numbers: Numbers::Fresh, publishes: [2, 1], ..Setup::pair(RULE) };
    check_all("pair, a lost disk, fresh numbers", pair, &[CONFIRMED_AGAIN, FILLED]);
}

#[test]
#[ignore = "larger: make model"]
fn a_ring_with_two_runs_a_lost_disk_and_a_crash() {
    let faults = Faults { next_runs: 1, lost_disks: 1, crashes: 1, ..NONE };
    check_all(
        "ring, two runs, a lost disk, a crash",
        Setup { publishes: [1, 1], ..ring(RULE, faults) },
        &[CONFIRMED_AGAIN, REFUSED, FILLED],
    );
}

#[test]
#[ignore = "larger: make model"]
fn a_ring_with_an_old_backup_and_a_partition() {
    let faults = Faults { backups: 1, cuts: 1, moves: 1, ..NONE };
    check_all("ring, an old backup, a partition", ring(RULE, faults), &[FILLED]);
}

#[test]
#[ignore = "larger: make model"]
fn an_added_instance_with_two_runs() {
    let setup = joined(RULE, Faults { next_runs: 1, moves: 1, ..NONE });
    check_all(
        "added, two runs",
        Setup { publishes: [2, 1], in_flight: 0, ..setup },
        &[CONFIRMED_AGAIN, REFUSED, HOLE_FILLED],
    );
}

#[test]
fn a_mesh_in_which_the_publisher_moves_before_its_messages_are_confirmed() {
    let faults = Faults { moves: 2, ..NONE };
    let mesh = Setup { faults, publishes: [2, 0], in_flight: 0, ..Setup::three(RULE, Links::Mesh) };
    check_all("mesh, the publisher moves twice", mesh, &[HOLE_FILLED]);
}

#[test]
fn a_pair_that_refuses_messages() {
    let faults = Faults { refusals: 2, crashes: 1, moves: 1, next_runs: 1, ..NONE };
    check_all(
        "pair, two runs, two refusals, a crash",
        Setup { faults, publishes: [3, 1], ..Setup::pair(RULE) },
        &[CONFIRMED_AGAIN, REFUSED, HOLE_FILLED],
    );
}

#[test]
fn a_mesh_that_refuses_a_message_before_the_publisher_moves() {
    let faults = Faults { refusals: 1, moves: 2, ..NONE };
    let mesh = Setup { faults, publishes: [2, 0], in_flight: 0, ..Setup::three(RULE, Links::Mesh) };
    check_all("mesh, a refusal, the publisher moves twice", mesh, &[HOLE_FILLED]);
}

fn with(mistake: Mistake) -> Rule {
    Rule::Copies(Some(mistake))
}

#[test]
fn the_mistake_of_letting_clients_in_after_the_first_instance_is_found() {
    let rule = with(Mistake::LetsInAfterTheFirst);
    counterexample(ring(rule, Faults { lost_disks: 1, ..NONE }), LOGONS);
}

#[test]
fn the_mistake_of_speaking_for_others_is_found() {
    let rule = with(Mistake::SpeaksForOthers);
    counterexample(ring(rule, Faults { lost_disks: 1, ..NONE }), LOGONS);
}

#[test]
fn the_mistake_of_passing_on_what_another_instance_did_not_send_is_found() {
    let rule = with(Mistake::RelaysOverPartialLinks);
    let faults = Faults { lost_disks: 1, ..NONE };
    counterexample(Setup { faults, publishes: [2, 0], ..Setup::three(rule, Links::Mesh) }, LOGONS);
}

#[test]
fn the_mistake_of_forgetting_that_records_lack_is_found() {
    let rule = with(Mistake::ForgetsFilling);
    let faults = Faults { lost_disks: 1, crashes: 1, ..NONE };
    counterexample(Setup { faults, ..Setup::pair(rule) }, LOGONS);
}

#[test]
fn the_mistake_of_counting_marks_for_an_older_log_is_found() {
    let rule = with(Mistake::CountsOldMarks);
    let faults = Faults { lost_disks: 2, admits: 1, ..NONE };
    counterexample(ring(rule, faults), LOGONS);
}

#[test]
fn the_mistake_of_counting_marks_that_are_older_than_another_log_is_found() {
    let rule = with(Mistake::CountsMarksOfOldSystems);
    let faults = Faults { lost_disks: 1, ..NONE };
    counterexample(Setup { publishes: [2, 0], ..joined(rule, faults) }, LOGONS);
}

#[test]
fn the_mistake_of_ignoring_the_run_of_a_publish_is_found() {
    let rule = with(Mistake::IgnoresTheRunOfAPublish);
    let faults = Faults { next_runs: 1, ..NONE };
    counterexample(Setup { faults, ..Setup::pair(rule) }, CONFIRMED);
}

#[test]
fn the_mistake_of_confirming_a_publish_in_a_hole_is_found() {
    let rule = with(Mistake::ConfirmsInHoles);
    let faults = Faults { moves: 2, ..NONE };
    let mesh = Setup { faults, publishes: [2, 0], in_flight: 0, ..Setup::three(rule, Links::Mesh) };
    counterexample(mesh, CONFIRMED);
}

#[test]
fn the_mistake_of_counting_as_present_what_was_passed_over_is_found() {
    let rule = with(Mistake::CountsPassedOver);
    let faults = Faults { refusals: 1, moves: 1, ..NONE };
    let events = counterexample(Setup { faults, ..Setup::pair(rule) }, CONFIRMED);
    assert!(events.contains(&Action::PublishRefused) && events.contains(&Action::Leave));
    // The client moves twice: a record of a link is dropped, too.
    let faults = Faults { refusals: 1, moves: 2, ..NONE };
    let mesh = Setup { faults, in_flight: 0, ..Setup::three(rule, Links::Mesh) };
    counterexample(mesh, AGREE);
}

#[test]
fn the_mistake_of_ignoring_the_run_of_a_record_is_found() {
    let rule = with(Mistake::IgnoresTheRunOfARecord);
    let faults = Faults { next_runs: 1, ..NONE };
    let pair = Setup { faults, ..Setup::pair(rule) };
    counterexample(pair.clone(), CONFIRMED);
    counterexample(pair, AGREE);
}

#[test]
fn the_mistake_of_keeping_rejections_is_found() {
    let rule = with(Mistake::KeepsRejections);
    let faults = Faults { next_runs: 1, lost_disks: 1, ..NONE };
    counterexample(Setup { publishes: [2, 1], ..ring(rule, faults) }, SETTLED);
}

#[test]
fn the_mistake_of_dropping_what_fills_a_hole_is_found() {
    let rule = with(Mistake::DropsInsteadOfFilling);
    let setup = joined(rule, Faults { moves: 1, ..NONE });
    let events = counterexample(Setup { in_flight: 0, ..setup }, AGREE);
    assert!(events.contains(&Action::Join(2)));
}

#[test]
fn the_mistake_of_filling_by_the_path_of_records_is_found() {
    let rule = with(Mistake::FillsByPath);
    let setup = joined(rule, Faults { lost_disks: 1, ..NONE });
    counterexample(Setup { publishes: [1, 0], ..setup }, LOGONS);
}

#[test]
fn the_mistake_of_keeping_records_that_returned_is_found() {
    let rule = with(Mistake::KeepsReturnedRecords);
    let faults = Faults { lost_disks: 1, ..NONE };
    counterexample(Setup { faults, publishes: [2, 0], ..Setup::three(rule, Links::Mesh) }, AGREE);
}
