//! The time for which queues do not deliver a published message.

use crate::Timestamp;

/// The longest delay: ten years with their leap days, in nanoseconds. A longer time is more likely
/// a mistake in its unit.
pub const DELAY_MAX_NS: u64 = 3_653 * 86_400 * 1_000_000_000;

/// The earliest time at which queues may deliver a message. Other subscriptions get it at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delay {
    /// At once.
    #[default]
    None,
    /// After a time that begins when the server receives the message.
    For {
        /// The time in nanoseconds.
        ns: u64,
    },
    /// At an instant. An instant in the past means at once.
    Until(Timestamp),
}

impl Delay {
    /// Whether there is no delay.
    #[inline]
    pub const fn is_none(self) -> bool {
        matches!(self, Delay::None)
    }

    /// When the delay of a message that the server received at this time ends. `None` when the
    /// message has no delay, or it has ended.
    pub fn end(self, taken: Timestamp) -> Option<Timestamp> {
        let end = match self {
            Delay::None => taken,
            Delay::For { ns } => Timestamp(taken.0.saturating_add(ns)),
            Delay::Until(end) => end,
        };
        (end > taken).then_some(end)
    }

    /// Whether the delay of a message that the server receives at this time is longer than
    /// [`DELAY_MAX_NS`].
    pub fn is_too_long(self, taken: Timestamp) -> bool {
        self.end(taken).is_some_and(|end| end.0 - taken.0 > DELAY_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_ends_after_the_message_was_taken_or_not_at_all() {
        let taken = Timestamp(100);
        for (delay, end) in [
            (Delay::None, None),
            (Delay::For { ns: 0 }, None),
            (Delay::For { ns: 1 }, Some(101)),
            (Delay::For { ns: u64::MAX }, Some(u64::MAX)),
            (Delay::Until(Timestamp(0)), None),
            (Delay::Until(Timestamp(100)), None),
            (Delay::Until(Timestamp(101)), Some(101)),
        ] {
            assert_eq!(delay.end(taken), end.map(Timestamp), "{delay:?}");
        }
        assert!(!Delay::For { ns: DELAY_MAX_NS }.is_too_long(taken));
        assert!(Delay::For { ns: DELAY_MAX_NS + 1 }.is_too_long(taken));
        assert!(Delay::Until(Timestamp(u64::MAX)).is_too_long(taken));
    }
}
