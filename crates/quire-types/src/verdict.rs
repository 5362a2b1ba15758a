//! Verdicts on messages of a queue.

/// The verdict of a connection on messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Processed: remove it.
    Acknowledge,
    /// Return it to the queue, which delivers it again after its configured delay.
    Cancel,
    /// Return it to the queue, which delivers it again after this delay.
    CancelWithDelay {
        /// In milliseconds; 0: at once.
        delay_ms: u64,
    },
    /// Remove it unprocessed.
    Expire,
    /// Return it to the queue as if it had not been delivered, because the holder has not begun it.
    Release,
}

impl Verdict {
    /// Whether the message is in its queue again. Only its holder may give this verdict.
    pub fn gives_back(self) -> bool {
        matches!(self, Verdict::Cancel | Verdict::CancelWithDelay { .. } | Verdict::Release)
    }
}
