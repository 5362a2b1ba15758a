//! The properties that must hold in every state.

use crate::log::{Instances, Messages};
use crate::rule::Numbers;
use crate::setup::Setup;
use crate::state::State;

/// When `persisted` confirms a message, it is in the log here, and in the log of every other copy
/// that the acknowledgement counts.
pub fn confirmed_messages_are_in_the_counted_logs(_: &Setup, state: &State) -> bool {
    !state.has_false_confirmation
}

/// A log has each message that was confirmed, unless more disks were lost at a time than there are
/// copies to spare. A disk no longer counts as lost when all instances are connected and show that
/// they are complete.
pub fn confirmed_messages_survive(_: &Setup, state: &State) -> bool {
    state.confirmed.without(state.kept()) == Messages::default()
}

/// An instance that has less than it had before, or that is new, lets no client in while another
/// instance has a message that it lacks. After an operator let clients in, they are not counted.
pub fn logons_wait_for_older_messages(_: &Setup, state: &State) -> bool {
    !state.has_early_logon
}

/// When all instances are connected and nothing is left to send, each log has every message that
/// another one has. A sequence that two runs have used is excepted when both instances report it.
pub fn logs_agree(setup: &Setup, state: &State) -> bool {
    if !state.is_quiet(setup) {
        return true;
    }
    let members = state.members(setup);
    let mut pairs = members.each().flat_map(|one| members.each().map(move |other| (one, other)));
    pairs.all(|(one, other)| {
        let (here, there) = (&state.instances[one], &state.instances[other]);
        here.log.records().iter().all(|record| {
            let message = record.message;
            let is_said = here.has_conflict && there.has_conflict && setup.rule.is_copies();
            there.log.has(message) || (is_said && there.log.find(message.sequence).is_some())
        })
    })
}

/// When all instances are connected and nothing is left to send, every instance lets clients in.
pub fn instances_let_clients_in(setup: &Setup, state: &State) -> bool {
    !state.is_quiet(setup) || !state.members(setup).each().any(|number| state.instances[number].is_filling)
}

/// When all instances are connected and nothing is left to send, each publish of a connected client
/// is confirmed, can be confirmed, or was refused.
pub fn publishes_are_settled(setup: &Setup, state: &State) -> bool {
    let client = &state.client;
    let Some(at) = client.at else { return true };
    client.is_refused || !state.is_quiet(setup) || state.confirmable(setup, at) == client.last
}

/// An instance reports that two runs have used a sequence only when they have.
pub fn conflicts_are_real(setup: &Setup, state: &State) -> bool {
    let members: Instances = state.members(setup);
    if !members.each().any(|number| state.instances[number].has_conflict) {
        return true;
    }
    let all = members.each().fold(Default::default(), |all, number| state.instances[number].had.or(all));
    let is_used_twice = |sequence: u8| all.each().filter(|message| message.sequence == sequence).count() > 1;
    all.each().any(|message| is_used_twice(message.sequence))
}

/// When a run begins above every sequence of the earlier one, the two never meet.
pub fn fresh_numbers_make_no_conflict(setup: &Setup, state: &State) -> bool {
    setup.numbers == Numbers::Next || !state.instances.iter().any(|instance| instance.has_conflict)
}

/// An example: a message of the second run is confirmed.
pub fn the_second_run_is_confirmed(_: &Setup, state: &State) -> bool {
    state.confirmed.each().any(|message| message.run == 2)
}

/// An example: the client gets `NameInUseError`, because another run uses its sequences.
pub fn a_client_is_refused(_: &Setup, state: &State) -> bool {
    state.client.is_refused
}

/// An example: an instance that lost records has some again, and has a client.
pub fn a_filled_instance_has_a_client(setup: &Setup, state: &State) -> bool {
    let has_client = |number: &usize| state.client.at == Some(*number);
    let is_filled = |number: usize| {
        let instance = &state.instances[number];
        instance.known[number] > 0 && !instance.is_filling && instance.log.size() > 0
    };
    state.members(setup).each().filter(has_client).any(is_filled)
}

/// An example: a log has a record after one with a higher sequence.
pub fn a_hole_is_filled(_: &Setup, state: &State) -> bool {
    let mut logs = state.instances.iter().map(|instance| instance.log.records());
    logs.any(|records| records.windows(2).any(|two| two[0].message.sequence > two[1].message.sequence))
}
