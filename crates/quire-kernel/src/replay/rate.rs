//! The pace of a replay: the highest rate of its messages (docs/replay.md).
//!
//! Every message has an instant before which it is not sent. The instant is computed from the due
//! time of the previous message, so that errors do not add up: the replay compensates for a late
//! timer or a long read. It does *not* compensate for time in which the server could not have sent
//! anything. The pace then begins again.

use std::time::Duration;

use quire_journal::Timestamp;

use quire_types::time::Instant;

/// The highest rate at which messages may be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// This number per second.
    Messages(f64),
    /// This number of bytes of data per second.
    Bytes(f64),
    /// This multiple of the rate at which they were published.
    Multiple {
        /// How many times.
        factor: f64,
        /// The longest wait for a message, for any distance in time between two messages.
        gap_max: Option<Duration>,
    },
}

/// Why a text is not a rate: an error of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// The text is not a number, with or without one of the units.
    #[error(
        "rate: {text:?} is not messages per second like `1000`, bytes per second like `500KB`, or a multiple like `2X`"
    )]
    NotARate {
        /// The text as given.
        text: String,
    },
    /// Zero: no message would ever be sent.
    #[error("rate: it must be above zero")]
    Zero,
    /// A longest wait of zero, or one for a rate that is not a multiple.
    #[error("rate_max_gap: it must be above zero, and is for a multiple of the original pace like `2X` only")]
    Gap,
}

/// The units of bytes, and the number of bytes of each.
const BYTE_UNITS: [(&str, f64); 5] =
    [("KB", 1024.0), ("MB", 1048576.0), ("GB", 1073741824.0), ("TB", 1099511627776.0), ("B", 1.0)];

impl Rate {
    /// Reads `1000`, `0.5`, `500KB`, `2X`, `.5x`; `gap_max` belongs to the last form.
    ///
    /// # Errors
    /// [`RateError`] for anything else.
    pub fn parse(text: &str, gap_max: Option<Duration>) -> Result<Rate, RateError> {
        let upper = text.trim().to_ascii_uppercase();
        let with_unit =
            BYTE_UNITS.iter().find_map(|(unit, size)| Some((upper.strip_suffix(unit)?.trim_end(), *size)));
        let rate = match (upper.strip_suffix('X'), with_unit) {
            (Some(factor), _) => number(factor).map(|factor| Rate::Multiple { factor, gap_max }),
            (None, Some((count, size))) => number(count).map(|count| Rate::Bytes(count * size)),
            (None, None) => number(&upper).map(Rate::Messages),
        };
        // The text is from a peer, and becomes part of a reason. A prefix of it is enough.
        let rate = rate.ok_or_else(|| RateError::NotARate { text: text.chars().take(64).collect() })?;
        let (Rate::Messages(value) | Rate::Bytes(value) | Rate::Multiple { factor: value, .. }) = rate;
        if value <= 0.0 {
            return Err(RateError::Zero);
        }
        match gap_max {
            Some(gap_max) if gap_max.is_zero() || !matches!(rate, Rate::Multiple { .. }) => {
                Err(RateError::Gap)
            }
            _ => Ok(rate),
        }
    }
}

/// A decimal number without sign and exponent.
fn number(text: &str) -> Option<f64> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|value: &f64| is_plain && value.is_finite())
}

/// The longest delay of the server that the pace compensates for. It is longer than the delays of
/// timers and reads on a busy machine. It is short enough that the burst after the delay is
/// harmless.
const LATE_MAX: Duration = Duration::from_millis(200);

/// The shortest time between two groups of messages: a timer for each message would cost more than
/// the message.
const GROUP_INTERVAL: Duration = Duration::from_millis(1);

/// The place of one replay, or of one subscription at the live tail, in its pace. Call
/// [`Pace::opens_at`] before a message is sent, and [`Pace::went`] when it is sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    pub rate: Rate,
    last: Option<Last>,
    /// No message could have been sent for a while. The pace does not compensate for messages that
    /// were due in this time.
    is_resting: bool,
}

/// The last sent message.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Last {
    /// When it was due, in picoseconds: at a million messages per second a nanosecond is a
    /// thousandth of the interval.
    due_ps: u128,
    went_at: Instant,
    size: usize,
    timestamp: Timestamp,
}

const PS_PER_NS: u128 = 1000;

impl Pace {
    /// A pace whose first message is sent at once.
    pub fn new(rate: Rate) -> Self {
        Pace { rate, last: None, is_resting: true }
    }

    /// Returns when a message that was taken at `timestamp` may be sent. If the result is not after
    /// `now`, it may be sent now. Messages are sent in groups. A call for the next message with a
    /// later `now` returns an instant that is at least a millisecond after the last group. The
    /// exception is a message that was due with that group but had not been read.
    pub fn opens_at(&self, now: Instant, timestamp: Timestamp) -> Instant {
        let Some(last) = &self.last else { return now };
        let due =
            Instant(u64::try_from(self.due_ps(last, timestamp).div_ceil(PS_PER_NS)).unwrap_or(u64::MAX));
        if last.went_at == now || due <= last.went_at { due } else { due.max(last.went_at + GROUP_INTERVAL) }
    }

    /// When to check again, if a message may be sent at `opens_at` and not now.
    pub fn wakes_at(&self, opens_at: Instant) -> Instant {
        self.last.map_or(opens_at, |last| opens_at.max(last.went_at + GROUP_INTERVAL))
    }

    /// Records that a message is sent now.
    pub fn went(&mut self, now: Instant, size: usize, timestamp: Timestamp) {
        let now_ps = u128::from(now.0) * PS_PER_NS;
        let floor_ps = match self.is_resting {
            true => now_ps,
            false => now_ps.saturating_sub(LATE_MAX.as_nanos() * PS_PER_NS),
        };
        let due_ps = self.last.map_or(now_ps, |last| self.due_ps(&last, timestamp).max(floor_ps));
        self.is_resting = false;
        self.last = Some(Last { due_ps, went_at: now, size, timestamp });
    }

    /// From now until the next message, no message could be sent: the replay was paused, its
    /// connection accepted no bytes, or there was no message.
    pub fn rest(&mut self) {
        self.is_resting = true;
    }

    /// Of two paces that continue together, the one that has to wait longer.
    pub fn later(self: Box<Self>, other: Box<Pace>) -> Box<Pace> {
        let due_ps = |pace: &Pace| pace.last.map_or(0, |last| last.due_ps);
        if due_ps(&other) > due_ps(&self) { other } else { self }
    }

    fn due_ps(&self, last: &Last, timestamp: Timestamp) -> u128 {
        // A float beyond the range of the integer becomes its largest value: a time that is never
        // reached.
        let gap_ps = match self.rate {
            Rate::Messages(per_second) => (1e12 / per_second) as u128,
            Rate::Bytes(per_second) => (last.size as f64 * 1e12 / per_second) as u128,
            Rate::Multiple { factor, gap_max } => {
                let original_ps = timestamp.0.saturating_sub(last.timestamp.0) as f64 * PS_PER_NS as f64;
                let gap_ps = (original_ps / factor) as u128;
                gap_max.map_or(gap_ps, |gap_max| gap_ps.min(gap_max.as_nanos() * PS_PER_NS))
            }
        };
        last.due_ps.saturating_add(gap_ps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Result<Rate, RateError> {
        Rate::parse(text, None)
    }

    #[test]
    fn every_form_of_a_rate_is_told_from_the_others() {
        assert_eq!(rate("1000"), Ok(Rate::Messages(1000.0)));
        assert_eq!(rate("0.5"), Ok(Rate::Messages(0.5)));
        assert_eq!(rate("500KB"), Ok(Rate::Bytes(512_000.0)));
        assert_eq!(rate("1.5 mb"), Ok(Rate::Bytes(1_572_864.0)));
        assert_eq!(rate("100B"), Ok(Rate::Bytes(100.0)));
        assert_eq!(rate("2X"), Ok(Rate::Multiple { factor: 2.0, gap_max: None }));
        assert_eq!(rate(".5x"), Ok(Rate::Multiple { factor: 0.5, gap_max: None }));
        let gap_max = Some(Duration::from_secs(1));
        assert_eq!(Rate::parse("1X", gap_max), Ok(Rate::Multiple { factor: 1.0, gap_max }));
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in ["", "x", "KB", "-1", "+1", "1e3", "inf", "nan", "1.2.3", "10 msgs", "2XX", "1KBX"] {
            assert!(matches!(rate(text), Err(RateError::NotARate { .. })), "{text:?}");
        }
        for text in ["0", "0KB", "0.0X"] {
            assert_eq!(rate(text), Err(RateError::Zero), "{text:?}");
        }
        for (text, gap) in [("2X", Duration::ZERO), ("1000", Duration::from_secs(1))] {
            assert_eq!(Rate::parse(text, Some(gap)), Err(RateError::Gap), "{text:?}");
        }
    }

    #[test]
    fn a_rate_that_never_comes_does_not_overflow() {
        let mut pace = Pace::new(Rate::Messages(f64::MIN_POSITIVE));
        pace.went(Instant(u64::MAX), 1, Timestamp(0));
        assert_eq!(pace.opens_at(Instant(u64::MAX), Timestamp(u64::MAX)), Instant(u64::MAX));
    }
}
