//! Receipts: the outcome of publishes that the program follows one by one, or in batches.
//!
//! The server acknowledges publishes up to a sequence, and reports a refusal before it acknowledges
//! beyond it. So a receipt needs only the range of its sequences: it is settled when the
//! acknowledged sequence reaches the last of them. A sequence that the client used before is not
//! acknowledged again. A receipt of such a repeat is settled by the answer to a *barrier*, a flush
//! that is sent after it. Repeats of one sequence that are in progress at the same time cannot be
//! distinguished: the first of them gets a refusal.

use std::collections::BTreeMap;

use super::command::CommandId;
use super::{ClientCore, Event, Failure, NewMessage, PublishError, Sequence};
use quire_command::Code;

/// Names a receipt of this client; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiptId(pub u64);

/// The outcome of the messages of a receipt. The messages that are not named are persisted. On a
/// topic that is not recorded on purpose they are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The messages that the server refused: sequence and reason.
    pub refusals: Vec<(u64, Failure)>,
    /// Why the result of the others is unknown.
    pub unknown: Option<Failure>,
}

/// A batch with a message that can never be accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct BatchError {
    /// The index of that message; `None` when the error is not about one of them.
    pub index: Option<usize>,
    /// The sequences of the messages before it that were taken. Only a failing disk of the publish
    /// store stops a batch in the middle.
    pub taken: Vec<u64>,
    /// Why.
    pub error: PublishError,
}

/// The receipts that are not settled.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    last: u64,
    open: BTreeMap<ReceiptId, Open>,
    /// By the last sequence of each range. Ranges do not overlap: each begins above all sequences
    /// that were assigned before.
    ranges: BTreeMap<u64, ReceiptId>,
    /// Receipts that wait for a barrier.
    barriers: BTreeMap<CommandId, ReceiptId>,
}

#[derive(Debug, Default)]
struct Open {
    /// The first and the last sequence that were new, until all between them are acknowledged.
    range: Option<(u64, u64)>,
    /// The client assigned one of them, so the program cannot have repeated it.
    is_auto: bool,
    /// The sequences that were assigned before, until the barrier is answered.
    repeats: Option<Vec<u64>>,
    outcome: Outcome,
}

impl ClientCore {
    /// Takes several messages at once, in their order, or none of them. Returns their sequences.
    /// With `is_followed` it also returns the receipt, and [`Event::Settled`] reports its outcome.
    ///
    /// # Errors
    /// As [`ClientCore::publish`]. [`Sequence::None`] is refused with [`Code::BadOption`].
    /// [`PublishError::Full`] when there is no room for all of them. An empty store in memory takes
    /// a batch of any size.
    pub fn publish_many(
        &mut self,
        messages: &[NewMessage<'_>],
        is_followed: bool,
    ) -> Result<(Vec<u64>, Option<ReceiptId>), BatchError> {
        let refused = |index, error: PublishError| BatchError { index, taken: Vec::new(), error };
        self.check_open().map_err(|failure| refused(None, failure.into()))?;
        let mut sequences = Vec::with_capacity(messages.len());
        let (mut last, mut size) = (self.last_sequence, 0);
        for (index, message) in messages.iter().enumerate() {
            let sequence = self.check_message(message).map_err(PublishError::from);
            let sequence = sequence.and_then(|()| match self.next_sequence(message.sequence, last)? {
                Some(sequence) => Ok(sequence),
                None => Err(Failure::new(
                    Code::BadOption,
                    "sequence: a message without a sequence is not acknowledged, so it cannot be followed or be part of a batch",
                )
                .into()),
            });
            let sequence = sequence.map_err(|error| refused(Some(index), error))?;
            last = last.max(sequence);
            size += frame_size_max(message);
            sequences.push(sequence);
        }
        if !messages.is_empty() {
            self.store.check_room(size).map_err(|error| refused(None, error))?;
        }
        let before = self.last_sequence;
        for (index, (message, sequence)) in messages.iter().zip(&sequences).enumerate() {
            if let Err(failure) = self.store_publish(message, *sequence) {
                sequences.truncate(index);
                return Err(BatchError { index: Some(index), taken: sequences, error: failure.into() });
            }
        }
        let receipt = is_followed.then(|| {
            let is_auto = messages.iter().any(|message| message.sequence == Sequence::Auto);
            self.follow(before, &sequences, is_auto)
        });
        Ok((sequences, receipt))
    }

    /// The program has dropped the receipt. [`Event::PublishFailed`] reports the refusals of its
    /// messages.
    pub fn forget_receipt(&mut self, receipt: ReceiptId) {
        let Some(open) = self.receipts.remove(receipt) else { return };
        for (sequence, failure) in open.outcome.refusals {
            self.events.push_back(Event::PublishFailed { sequence, failure });
        }
    }

    /// Whether a receipt waits for an answer of the server.
    pub fn awaits_receipt(&self) -> bool {
        !self.receipts.open.is_empty()
    }

    /// The client is closed, and receives no more from a server. The outcome of publishes that
    /// receipts wait for stays unknown.
    pub fn end_receipts(&mut self) {
        if self.receipts.open.is_empty() {
            return;
        }
        let failure = self.check_not_closed().err().unwrap_or_else(super::closed);
        let receipts: Vec<ReceiptId> = self.receipts.open.keys().copied().collect();
        for receipt in receipts {
            self.settle_unknown(receipt, failure.clone());
        }
    }

    /// Follows messages that were taken: those above `before` are new.
    fn follow(&mut self, before: u64, sequences: &[u64], is_auto: bool) -> ReceiptId {
        self.receipts.last += 1;
        let receipt = ReceiptId(self.receipts.last);
        let (mut range, mut last) = (None, before);
        let mut repeats = Vec::new();
        for sequence in sequences {
            if *sequence > last {
                last = *sequence;
                range = Some((range.map_or(*sequence, |(first, _)| first), last));
            } else {
                repeats.push(*sequence);
            }
        }
        let mut open = Open { range, is_auto, ..Open::default() };
        if let Some((_, last)) = range {
            self.receipts.ranges.insert(last, receipt);
        }
        if !repeats.is_empty() || range.is_none() {
            open.repeats = Some(repeats);
            let barrier = self.command(super::Commands::barrier);
            self.receipts.barriers.insert(barrier, receipt);
        }
        self.receipts.open.insert(receipt, open);
        receipt
    }

    // Reports of a connection while it decodes.

    /// Everything up to `sequence` is persisted, or was refused before.
    pub(super) fn settle_receipts(&mut self, sequence: u64) {
        while let Some(entry) = self.receipts.ranges.first_entry()
            && *entry.key() <= sequence
        {
            let receipt = entry.remove();
            if let Some(open) = self.receipts.open.get_mut(&receipt) {
                open.range = None;
                self.settle_if_done(receipt);
            }
        }
    }

    /// Returns the failure when it belongs to no receipt.
    pub(super) fn refuse_receipt(&mut self, sequence: u64, failure: Failure) -> Option<Failure> {
        let Receipts { open, ranges, barriers, .. } = &mut self.receipts;
        if sequence > self.persisted {
            // The publish that was the first with this sequence.
            let ranged = ranges.range(sequence..).next().and_then(|(_, receipt)| open.get_mut(receipt));
            return match ranged {
                Some(open) if open.range.is_some_and(|(first, _)| first <= sequence) => {
                    open.outcome.refusals.push((sequence, failure));
                    None
                }
                _ => Some(failure),
            };
        }
        for receipt in barriers.values() {
            if let Some(open) = open.get_mut(receipt)
                && let Some(repeats) = &mut open.repeats
                && let Some(index) = repeats.iter().position(|repeat| *repeat == sequence)
            {
                repeats.swap_remove(index);
                open.outcome.refusals.push((sequence, failure));
                return None;
            }
        }
        Some(failure)
    }

    /// Another program has published under the name of the client. Messages that the client
    /// numbered may have been dropped as duplicates. Returns how many of them belong to settled
    /// receipts.
    pub(super) fn overtake_receipts(&mut self, highest: u64) -> u64 {
        let is_overtaken = |open: &Open| open.is_auto && open.range.is_none_or(|(first, _)| first <= highest);
        let overtaken = self.receipts.open.iter().filter(|(_, open)| is_overtaken(open));
        let overtaken: Vec<(ReceiptId, Option<(u64, u64)>)> =
            overtaken.map(|(id, open)| (*id, open.range)).collect();
        let mut count = 0;
        for (receipt, range) in overtaken {
            count += range.map_or(0, |(first, last)| self.assigned.count(first, last.min(highest)));
            let reason = format!(
                "the server has sequence {highest} of the client name {:?} from another program, so the message may have been dropped as \
                 a duplicate",
                self.config.name
            );
            self.settle_unknown(receipt, Failure::new(Code::NameInUse, reason));
        }
        count
    }

    /// Processes the answer to a barrier. Returns whether it was one.
    pub(super) fn answer_barrier(&mut self, command: CommandId, result: &Result<(), Failure>) -> bool {
        let Some(receipt) = self.receipts.barriers.remove(&command) else { return false };
        if let Some(open) = self.receipts.open.get_mut(&receipt) {
            open.repeats = None;
            if let Err(failure) = result {
                open.outcome.unknown = Some(failure.clone());
            }
            self.settle_if_done(receipt);
        }
        true
    }

    fn settle_if_done(&mut self, receipt: ReceiptId) {
        if self.receipts.open.get(&receipt).is_some_and(|open| open.range.is_none() && open.repeats.is_none())
            && let Some(open) = self.receipts.remove(receipt)
        {
            self.events.push_back(Event::Settled { receipt, outcome: open.outcome });
        }
    }

    fn settle_unknown(&mut self, receipt: ReceiptId, failure: Failure) {
        if let Some(mut open) = self.receipts.remove(receipt) {
            open.outcome.unknown = Some(failure);
            self.events.push_back(Event::Settled { receipt, outcome: open.outcome });
        }
    }
}

impl Receipts {
    /// The barrier of a receipt stays, because its answer has to be recognized.
    fn remove(&mut self, receipt: ReceiptId) -> Option<Open> {
        let open = self.open.remove(&receipt)?;
        if let Some((_, last)) = open.range {
            self.ranges.remove(&last);
        }
        Some(open)
    }
}

/// The most bytes that a message takes as a frame.
pub(super) fn frame_size_max(message: &NewMessage<'_>) -> usize {
    let parts = message.topic.len() + message.headers.as_bytes().len() + message.key.len();
    parts + message.data.len() + FRAME_SIZE_ALLOWANCE
}

/// The bytes of a publish frame without topic, headers, key and data, at most.
const FRAME_SIZE_ALLOWANCE: usize = 300;
