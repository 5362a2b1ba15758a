//! The broker behaves as docs/protocol.md and the seeds say: a real codec on the client's side, a real journal below, virtual time.

mod any_options;
mod beside_publishes;
mod bookmarks;
mod conflating;
mod connections;
mod costly_filters;
mod failures;
#[path = "../../../quire-journal/tests/faulty_disk/mod.rs"]
mod faulty_disk;
mod filtering;
mod inspecting;
mod limits;
mod maintenance;
mod model;
mod pair;
mod pausing;
mod publishing;
mod queue_basics;
mod queue_defining;
mod queue_defining_faults;
mod queue_defining_model;
mod queue_delays;
mod queue_delivery;
mod queue_keeping;
mod queue_leases;
mod queue_model;
mod queue_pair;
mod queue_query;
mod queue_recovery;
mod queue_settings;
mod queue_settling;
mod ranges;
mod rates;
mod selecting;
mod slices;
mod subscribing;
