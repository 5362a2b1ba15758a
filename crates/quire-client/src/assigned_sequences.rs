//! The sequences that the client assigned itself, of publishes that are not known to be persisted.
//!
//! When the server has a sequence that the client did not publish, it drops these publishes as
//! duplicates, and the client has to report that. A program that assigns the sequences may repeat
//! one. The server drops such a repeat on purpose.

use std::collections::VecDeque;

/// Runs of sequences, each from the first to the last, in ascending order. They do not overlap.
#[derive(Debug, Default)]
pub(super) struct AssignedSequences {
    runs: VecDeque<(u64, u64)>,
}

impl AssignedSequences {
    /// A sequence was assigned. It is above all earlier ones.
    pub fn push(&mut self, sequence: u64) {
        match self.runs.back_mut() {
            Some((_, last)) if last.checked_add(1) == Some(sequence) => *last = sequence,
            _ => self.runs.push_back((sequence, sequence)),
        }
    }

    /// Everything up to `sequence` is persisted, refused or dropped.
    pub fn persisted(&mut self, sequence: u64) {
        while let Some((first, last)) = self.runs.front_mut() {
            if *last > sequence {
                *first = (*first).max(sequence.saturating_add(1));
                break;
            }
            self.runs.pop_front();
        }
    }

    /// The first sequence.
    pub fn first(&self) -> Option<u64> {
        self.runs.front().map(|(first, _)| *first)
    }

    /// The number of sequences from `from` up to `to`.
    pub fn count(&self, from: u64, to: u64) -> u64 {
        let begin = self.runs.partition_point(|(_, last)| *last < from);
        let runs = self.runs.range(begin..).take_while(|(first, _)| *first <= to);
        runs.map(|(first, last)| (*last).min(to) - (*first).max(from) + 1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_publishes_are_counted_until_they_are_persisted() {
        let mut numbered = AssignedSequences::default();
        assert_eq!((numbered.first(), numbered.count(1, u64::MAX)), (None, 0));
        [1, 2, 3, 7, 8, 12, u64::MAX].into_iter().for_each(|sequence| numbered.push(sequence));
        assert_eq!(numbered.runs, [(1, 3), (7, 8), (12, 12), (u64::MAX, u64::MAX)]);
        assert_eq!((numbered.count(1, 7), numbered.count(3, 3), numbered.count(4, 6)), (4, 1, 0));
        assert_eq!(numbered.count(2, u64::MAX), 6);
        numbered.persisted(2);
        assert_eq!((numbered.first(), numbered.count(1, 7)), (Some(3), 2));
        numbered.persisted(9);
        assert_eq!((numbered.first(), numbered.count(1, 100)), (Some(12), 1));
        numbered.persisted(u64::MAX);
        assert_eq!(numbered.first(), None);
    }
}
