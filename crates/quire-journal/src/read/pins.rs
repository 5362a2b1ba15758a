//! The positions that readers have not passed yet, so that their segments are not removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::record::Position;

/// For each position: the number of readers whose last passed position it is.
#[derive(Debug, Default)]
pub(crate) struct Pins(Mutex<BTreeMap<Position, usize>>);

impl Pins {
    /// Keeps everything after the position that `after` returns. `after` is called while nothing
    /// can be removed.
    pub fn pin(self: &Arc<Self>, after: impl FnOnce() -> Position) -> Pin {
        let mut counts = self.0.lock();
        let after = after();
        *counts.entry(after).or_insert(0) += 1;
        Pin { pins: self.clone(), after }
    }

    /// While this is locked, no pin is added or moved.
    pub fn hold(&self) -> HeldPins<'_> {
        HeldPins(self.0.lock())
    }
}

/// The current pins.
pub(crate) struct HeldPins<'a>(MutexGuard<'a, BTreeMap<Position, usize>>);

impl HeldPins<'_> {
    /// Whether a reader has not passed the position.
    pub fn keep(&self, position: Position) -> bool {
        self.0.first_key_value().is_some_and(|(after, _)| *after < position)
    }
}

/// Prevents the removal of records after a position, until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    pins: Arc<Pins>,
    after: Position,
}

impl Pin {
    /// Everything up to `after` was passed.
    pub fn move_to(&mut self, after: Position) {
        let mut counts = self.pins.0.lock();
        release(&mut counts, self.after);
        *counts.entry(after).or_insert(0) += 1;
        self.after = after;
    }

    pub fn after(&self) -> Position {
        self.after
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        release(&mut self.pins.0.lock(), self.after);
    }
}

fn release(counts: &mut BTreeMap<Position, usize>, after: Position) {
    if let Some(count) = counts.get_mut(&after) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&after);
        }
    }
}
