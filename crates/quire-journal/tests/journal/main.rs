//! The journal keeps its promises over restarts, torn tails, damage and limits: behaviour on real files, a model, and any bytes at all.

mod any_bytes;
mod archive_place;
mod damage;
mod full;
mod golden;
mod memory;
mod model;
mod names;
mod reading;
mod restarts;
mod support;
mod unreadable;
mod upkeep;
mod writing;
