//! The outcome of publishes that the program follows, kept until the program drops the receipt.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use quire_client::{BatchError, ConnectionState, Failure, FailureCode, NewMessage, Outcome, ReceiptId};
use quire_command::Code;

use super::publish::FAILED_PUBLISHES_MAX;
use super::{Client, Inner};

/// The receipts of a client that the program still has.
#[derive(Default)]
pub(super) struct Receipts {
    settled: HashMap<ReceiptId, Settled>,
    /// Receipts that are not settled and will be announced.
    announcing: HashSet<ReceiptId>,
    /// Receipts that were settled, to be announced.
    announced: VecDeque<ReceiptId>,
}

struct Settled {
    outcome: Outcome,
    /// The program has asked for the outcome.
    is_seen: bool,
}

/// How the program follows a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It calls [`Client::outcome`].
    ByAsking,
    /// [`Client::take_settled`] returns the receipt, too.
    ByAnnouncement,
}

impl Client {
    /// Takes several messages at once, or none of them. Returns their sequences, and a receipt when
    /// they are followed. With [`PublishError::Full`](quire_client::PublishError::Full), wait with
    /// [`Client::wait_room`] and try again.
    ///
    /// # Errors
    /// See [`quire_client::ClientCore::publish_many`].
    pub fn publish_many(
        &self,
        messages: &[NewMessage<'_>],
        followed: Option<Followed>,
    ) -> Result<(Vec<u64>, Option<ReceiptId>), BatchError> {
        let mut inner = self.shared.inner.lock();
        let result = inner.core.publish_many(messages, followed.is_some());
        if let (Ok((_, Some(receipt))), Some(Followed::ByAnnouncement)) = (&result, followed) {
            inner.receipts.announcing.insert(*receipt);
        }
        self.shared.wake(inner);
        result
    }

    /// Whether the result of the messages of a receipt is known.
    pub fn is_settled(&self, receipt: ReceiptId) -> bool {
        self.shared.inner.lock().receipts.settled.contains_key(&receipt)
    }

    /// The outcome of the messages of a receipt; `None` when it is not known within `timeout`.
    ///
    /// # Errors
    /// The disk of the server takes no publishes for now. The messages stay in the publish store,
    /// so a later call may return the outcome.
    pub fn outcome(&self, receipt: ReceiptId, timeout: Duration) -> Option<Result<Outcome, Failure>> {
        self.wait_for(timeout, |inner| match inner.receipts.settled.get_mut(&receipt) {
            Some(settled) => {
                settled.is_seen = true;
                Some(Ok(settled.outcome.clone()))
            }
            None => inner.core.storage_failure().cloned().map(Err),
        })
    }

    /// The program has dropped a receipt. [`Client::take_failed_publishes`] returns the refusals
    /// that it has not seen.
    pub fn forget_receipt(&self, receipt: ReceiptId) {
        let mut inner = self.shared.inner.lock();
        inner.receipts.announcing.remove(&receipt);
        match inner.receipts.settled.remove(&receipt) {
            Some(settled) if settled.is_seen => (),
            Some(settled) => {
                for (sequence, failure) in settled.outcome.refusals {
                    inner.note_failed_publish(sequence, failure);
                }
                if let Some(failure) = settled.outcome.unknown
                    && failure.code == FailureCode::Wire(Code::NameInUse)
                {
                    inner.note_failed_publish(0, failure);
                }
            }
            None => {
                inner.core.forget_receipt(receipt);
                self.shared.dispatch(&mut inner);
            }
        }
    }

    /// The receipts to announce that were settled since the last call, none when `timeout` passed
    /// first. `None` when the client has ended and all were announced.
    pub fn take_settled(&self, timeout: Duration) -> Option<Vec<ReceiptId>> {
        let found = |inner: &mut Inner| {
            let receipts = &mut inner.receipts;
            if !receipts.announced.is_empty() {
                return Some(Some(receipts.announced.drain(..).collect()));
            }
            let is_over =
                matches!(inner.core.state(), ConnectionState::Closed(_)) && receipts.announcing.is_empty();
            is_over.then_some(None)
        };
        self.wait_for(timeout, found).unwrap_or_else(|| Some(Vec::new()))
    }
}

impl Inner {
    /// The result of the messages of a receipt is known.
    pub(super) fn settle(&mut self, receipt: ReceiptId, outcome: Outcome) {
        if self.receipts.announcing.remove(&receipt) {
            self.receipts.announced.push_back(receipt);
        }
        self.receipts.settled.insert(receipt, Settled { outcome, is_seen: false });
    }

    /// The server takes no publishes for now. Callers that wait for a receipt check it. The
    /// receipts are announced again when they are settled.
    pub(super) fn announce_unsettled(&mut self) {
        let mut unsettled: Vec<ReceiptId> = self.receipts.announcing.iter().copied().collect();
        unsettled.sort_unstable();
        self.receipts.announced.extend(unsettled);
    }

    /// A publish was refused, and no receipt asks for it.
    pub(super) fn note_failed_publish(&mut self, sequence: u64, failure: Failure) {
        if self.failed_publishes.len() == FAILED_PUBLISHES_MAX {
            self.failed_publishes.pop_front();
        }
        self.failed_publishes.push_back((sequence, failure));
    }
}
