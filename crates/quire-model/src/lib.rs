//! A model of the copies of a log on two or three instances (docs/internals/copies.md).
//!
//! **What for.** The rules of replication decide which record of a link is recorded, when a client
//! is let in, and when a message is confirmed. A fault in such a rule shows only in a rare order of
//! events. The model is small enough that a model checker visits every order of a bounded number
//! of events.
//!
//! **What it has.** [`State`] is a whole system: the logs, the links with their frames in flight,
//! and one publisher name that is used by two runs of a program. [`Action`] is one event.
//! [`Setup`] says which instances, links, faults and [`Rule`] there are. The tests hand these to
//! the checker, and no other crate uses them.
//!
//! **What it leaves out.** See the page. Of the code of the product it has only the decisions about
//! one message (`quire_link::decide`). It shows that a rule is right, and not that the rest of the
//! product follows the rule.

mod log;
mod properties;
mod rule;
mod setup;
mod state;
mod step;

pub use log::{Instances, Log, Message, Messages, Record};
pub use properties::{
    a_client_is_refused, a_filled_instance_has_a_client, a_hole_is_filled,
    confirmed_messages_are_in_the_counted_logs, confirmed_messages_survive, conflicts_are_real,
    fresh_numbers_make_no_conflict, instances_let_clients_in, logons_wait_for_older_messages, logs_agree,
    publishes_are_settled, the_second_run_is_confirmed,
};
pub use rule::{Mistake, Numbers, Rule};
pub use setup::{Faults, Links, Setup};
pub use state::{Client, Connection, Instance, Link, LogNumbers, Mark, Run, State};
pub use step::Action;
