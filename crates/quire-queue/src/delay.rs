//! Messages of one queue that were published, or cancelled, with a delay and wait for their time.
//!
//! A delayed message is in the queue and neither waits nor is leased. It keeps its ordinal, so that
//! it returns to its old place.

use std::collections::{BTreeSet, HashMap};

use rustc_hash::FxBuildHasher;

/// The delayed messages of a queue.
#[derive(Debug, Default)]
pub(super) struct Delays {
    by_ordinal: HashMap<u64, Delayed, FxBuildHasher>,
    /// When something happens to each: its delay is over, or the message expires before that.
    by_time: BTreeSet<(u64, u64)>,
}

/// A delayed message.
#[derive(Debug)]
pub(super) struct Delayed {
    /// When the delay is over.
    pub until: u64,
    /// The classes (and their generations) whose filter matched the message.
    pub classes: Vec<(u32, u32)>,
    due: u64,
}

impl Delays {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_ordinal.len()
    }

    /// Whether no message is delayed. A queue without delays calls only this.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_ordinal.is_empty()
    }

    /// Delays a message until then. It expires at `expires` if that is before.
    pub fn insert(&mut self, ordinal: u64, until: u64, expires: u64, classes: Vec<(u32, u32)>) {
        self.remove(ordinal);
        let due = until.min(expires);
        self.by_time.insert((due, ordinal));
        self.by_ordinal.insert(ordinal, Delayed { until, classes, due });
    }

    /// The message is no longer delayed.
    pub fn remove(&mut self, ordinal: u64) -> Option<Delayed> {
        let delayed = self.by_ordinal.remove(&ordinal)?;
        self.by_time.remove(&(delayed.due, ordinal));
        Some(delayed)
    }

    /// A class learned that it matches the message.
    pub fn note_class(&mut self, ordinal: u64, class: (u32, u32)) {
        if let Some(delayed) = self.by_ordinal.get_mut(&ordinal) {
            delayed.classes.push(class);
        }
    }

    /// When the delay of the message is over, if it is delayed.
    pub fn until(&self, ordinal: u64) -> Option<u64> {
        self.by_ordinal.get(&ordinal).map(|delayed| delayed.until)
    }

    /// When something happens to the first of them.
    pub fn next_due(&self) -> Option<u64> {
        self.by_time.first().map(|(due, _)| *due).filter(|due| *due != u64::MAX)
    }

    /// The first of them to which something happens by `now`.
    pub fn take_due(&mut self, now: u64) -> Option<(u64, Delayed)> {
        let (_, ordinal) = self.by_time.first().copied().filter(|(due, _)| *due <= now)?;
        Some((ordinal, self.remove(ordinal)?))
    }
}
