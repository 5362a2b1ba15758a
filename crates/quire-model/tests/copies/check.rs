//! The model as the checker has it.

use quire_model::{
    Action, Setup, State, a_client_is_refused, a_filled_instance_has_a_client, a_hole_is_filled,
    confirmed_messages_are_in_the_counted_logs, confirmed_messages_survive, conflicts_are_real,
    fresh_numbers_make_no_conflict, instances_let_clients_in, logons_wait_for_older_messages, logs_agree,
    publishes_are_settled, the_second_run_is_confirmed,
};
use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

/// Invariant 1.
pub const CONFIRMED: &str = "confirmed messages are in the counted logs";
/// No confirmed message is lost while there are disks to spare.
pub const SURVIVE: &str = "confirmed messages survive";
/// Invariant 2.
pub const LOGONS: &str = "logons wait for older messages";
/// Each publish gets an answer.
pub const SETTLED: &str = "publishes are settled";
/// Invariants 2 and 3.
pub const AGREE: &str = "logs agree, or say that they do not";

/// Examples. They show that the properties are not true for lack of events.
pub const CONFIRMED_AGAIN: &str = "the second run is confirmed";
/// An example.
pub const REFUSED: &str = "a client is refused";
/// An example.
pub const FILLED: &str = "a filled instance has a client";
/// An example.
pub const HOLE_FILLED: &str = "a hole is filled";

struct Checked(Setup);

impl Model for Checked {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.0)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(&self.0, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(state.after(&self.0, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(CONFIRMED, |model, state| {
                confirmed_messages_are_in_the_counted_logs(&model.0, state)
            }),
            Property::always(SURVIVE, |model, state| confirmed_messages_survive(&model.0, state)),
            Property::always(LOGONS, |model, state| logons_wait_for_older_messages(&model.0, state)),
            Property::always(AGREE, |model, state| logs_agree(&model.0, state)),
            Property::always("instances let clients in", |model, state| {
                instances_let_clients_in(&model.0, state)
            }),
            Property::always(SETTLED, |model, state| publishes_are_settled(&model.0, state)),
            Property::always("conflicts are real", |model, state| conflicts_are_real(&model.0, state)),
            Property::always("fresh numbers make no conflict", |model, state| {
                fresh_numbers_make_no_conflict(&model.0, state)
            }),
            Property::sometimes(CONFIRMED_AGAIN, |model, state| the_second_run_is_confirmed(&model.0, state)),
            Property::sometimes(REFUSED, |model, state| a_client_is_refused(&model.0, state)),
            Property::sometimes(FILLED, |model, state| a_filled_instance_has_a_client(&model.0, state)),
            Property::sometimes(HOLE_FILLED, |model, state| a_hole_is_filled(&model.0, state)),
        ]
    }
}

/// Visits every state. Fails when a property does not hold in one of them, or when one of the
/// `examples` is in none of them.
pub fn check_all(name: &str, setup: Setup, examples: &[&str]) {
    let checker = Checked(setup).checker().threads(2).spawn_bfs().join();
    let properties = checker.model().properties();
    let mut discoveries = checker.discoveries();
    for property in properties {
        let path = discoveries.remove(property.name);
        match property.expectation {
            Expectation::Sometimes => {
                assert!(path.is_some() || !examples.contains(&property.name), "{name}: {}", property.name);
            }
            _ => {
                if let Some(path) = path {
                    panic!("{name}: not always: {}\n{}", property.name, story(path.into_vec()));
                }
            }
        }
    }
    assert!(checker.is_done());
    println!("{name}: {} states, {} events at most", checker.unique_state_count(), checker.max_depth() - 1);
}

/// Visits states until the property does not hold in one of them. Returns the events that lead to
/// it, as few as possible.
pub fn counterexample(setup: Setup, property: &'static str) -> Vec<Action> {
    let wanted = HasDiscoveries::AnyOf([property].into());
    let checker = Checked(setup).checker().finish_when(wanted).spawn_bfs().join();
    let Some(path) = checker.discovery(property) else {
        panic!("holds in all {} states: {property}", checker.unique_state_count());
    };
    println!("not always: {property}\n{}", story(path.clone().into_vec()));
    path.into_actions()
}

fn story(path: Vec<(State, Option<Action>)>) -> String {
    let mut lines = Vec::new();
    for (state, action) in path {
        let logs = state.instances.iter().map(|instance| {
            let filling = if instance.is_filling { " filling" } else { "" };
            let conflict = if instance.has_conflict { " conflict" } else { "" };
            format!("{:?}{filling}{conflict}", instance.log)
        });
        let logs = logs.collect::<Vec<_>>().join("  ");
        let client = state.client;
        lines.push(format!(
            "  {logs}  client {:?} persisted {} of {}{}",
            client.at,
            client.persisted,
            client.last,
            if client.is_refused { " refused" } else { "" }
        ));
        lines.extend(action.map(|action| format!("{action:?}")));
    }
    lines.join("\n")
}
