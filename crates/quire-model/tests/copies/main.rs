//! Every state of bounded systems is visited by a model checker: docs/internals/copies.md.

mod check;
mod highest_sequence;
mod new_rule;
