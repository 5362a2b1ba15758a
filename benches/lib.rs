//! The Criterion benches are in `benches/`, those of whole processes in `end_to_end.py`. Here is what several of them use.

pub mod driven_broker;
