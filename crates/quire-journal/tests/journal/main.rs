//! The journal keeps its promises over restarts, torn tails, damage and limits: behaviour on real
//! files, a model, and any bytes at all.

mod any_bytes;
mod archive_directory;
mod attributes;
mod damage;
#[path = "../faulty_disk/mod.rs"]
mod faulty_disk;
mod full;
mod golden;
mod late;
mod maintenance;
mod memory;
mod model;
mod names;
mod reading;
mod restarts;
mod support;
mod unreadable;
mod writing;
