//! The properties that must hold in every state.

use crate::log::Instances;
use crate::rule::Numbers;
use crate::setup::Setup;
use crate::state::State;

/// When `persisted` says so, the message is in the log here, and in that of every other copy which
/// the acknowledgement counts.
pub fn confirmed_messages_are_in_the_counted_logs(_: &Setup, state: &State) -> bool {
    !state.has_false_confirmation
}

/// An instance that has less than it had before, or that is new, lets no client in while another
/// instance has a message that it lacks. After an operator let clients in, they are not counted.
pub fn logons_wait_for_older_messages(_: &Setup, state: &State) -> bool {
    !state.has_early_logon
}

/// When all instances are connected and nothing is left to send, each log has every message that
/// another one has. A sequence that two runs have used is excepted when both instances say so.
pub fn logs_agree(setup: &Setup, state: &State) -> bool {
    if !is_quiet(setup, state) {
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
    !is_quiet(setup, state) || !state.members(setup).each().any(|number| state.instances[number].is_filling)
}

/// When all instances are connected and nothing is left to send, each publish of a connected client
/// is confirmed, can be confirmed, or was refused.
pub fn publishes_are_settled(setup: &Setup, state: &State) -> bool {
    let client = &state.client;
    let Some(at) = client.at else { return true };
    client.is_refused || !is_quiet(setup, state) || state.confirmable(setup, at) == client.last
}

/// An instance says that two runs have used a sequence only when they have.
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

/// All instances are connected, and nothing is left to send.
fn is_quiet(setup: &Setup, state: &State) -> bool {
    let mut actions = Vec::new();
    state.protocol_actions(setup, &mut actions);
    actions.is_empty()
}
