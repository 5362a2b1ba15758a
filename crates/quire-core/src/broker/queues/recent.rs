//! The stretches of the log that queues can read without waiting: what was just written, and what was fetched for them.
//!
//! A stretch is a batch of the journal, checked when it was read, together with where its records begin.

use std::collections::{BTreeMap, VecDeque};

use quire_journal::{Batch, Position, Record};

/// Bytes of the log that are kept in memory: twice what all fetches under way can bring, and several times what leaves a broker in a turn.
const RECENT_SIZE_MAX: usize = 32 * 1024 * 1024;

#[derive(Default)]
pub(super) struct Recent {
    /// By the first position.
    stretches: BTreeMap<u64, Stretch>,
    /// In the order in which they came, oldest first.
    order: VecDeque<u64>,
    size: usize,
}

struct Stretch {
    batch: Batch,
    offsets: Box<[u32]>,
    /// Whoever comes here will soon want what lies behind the last stretch of the same fetch, which is this position.
    ahead: Option<Position>,
}

impl Recent {
    /// Adds a stretch. Those that came first make room for it.
    pub fn add(&mut self, batch: Batch, ahead: Option<Position>) {
        let first = batch.first().get();
        self.size += batch.size();
        let offsets = batch.offsets().into();
        match self.stretches.insert(first, Stretch { batch, offsets, ahead }) {
            Some(before) => self.size -= before.batch.size(),
            None => self.order.push_back(first),
        }
        while self.size > RECENT_SIZE_MAX && self.order.len() > 1 {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(stretch) = self.stretches.remove(&oldest) {
                self.size -= stretch.batch.size();
            }
        }
    }

    /// The record at a position, if it is at hand.
    pub fn get(&self, position: Position) -> Option<Record<'_>> {
        let (first, stretch) = self.stretches.range(..=position.get()).next_back()?;
        let offset = stretch.offsets.get((position.get() - first) as usize)?;
        stretch.batch.record_at(*offset, position)
    }

    /// Whether the record at a position is at hand.
    pub fn has(&self, position: Position) -> bool {
        self.stretches
            .range(..=position.get())
            .next_back()
            .is_some_and(|(_, stretch)| position <= stretch.batch.last())
    }

    /// The position behind which to fetch, when somebody comes to where that was to be done. Says it once.
    pub fn take_ahead(&mut self, position: Position) -> Option<Position> {
        let (_, stretch) = self.stretches.range_mut(..=position.get()).next_back()?;
        stretch.ahead.take_if(|_| position <= stretch.batch.last())
    }
}
