//! When to try again, and where: back-off with jitter over a list of addresses.

use std::time::Duration;

use quire_types::time::Instant;

/// How a client reconnects after a lost connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconnect {
    /// Wait before the second attempt at the same address.
    pub initial_delay: Duration,
    /// The longest wait.
    pub maximum_delay: Duration,
    /// The factor between one wait and the next.
    pub factor: f64,
    /// A random time up to this share of the initial delay is added to every wait, so that many clients do not reconnect at the same time.
    pub jitter: f64,
    /// Stop trying after this long without success; `None` = never.
    pub give_up_after: Option<Duration>,
}

impl Default for Reconnect {
    fn default() -> Self {
        Reconnect {
            initial_delay: Duration::from_millis(200),
            maximum_delay: Duration::from_secs(20),
            factor: 2.0,
            jitter: 1.0,
            give_up_after: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Backoff {
    settings: Reconnect,
    address_count: usize,
    /// The address to be tried next, and when.
    address: usize,
    at: Instant,
    /// Failures since the last success, over all addresses.
    failures: u32,
    failing_since: Option<Instant>,
    random: u64,
}

impl Backoff {
    pub fn new(settings: Reconnect, address_count: usize, seed: u64, now: Instant) -> Self {
        let random = seed | 1;
        Backoff {
            settings,
            address_count: address_count.max(1),
            address: 0,
            at: now,
            failures: 0,
            failing_since: Some(now),
            random,
        }
    }

    pub fn next(&self) -> (usize, Instant) {
        (self.address, self.at)
    }

    /// The connection was lost (`was_up`) or could not be made. A lost one is tried again at once from the top of the list, which is
    /// in order of preference; the wait begins when every address has failed.
    pub fn failed(&mut self, now: Instant, was_up: bool) {
        let since = *self.failing_since.get_or_insert(now);
        if was_up {
            (self.address, self.at, self.failures) = (0, now, 0);
            self.failing_since = Some(now);
            return;
        }
        self.failing_since = Some(since);
        self.address = (self.address + 1) % self.address_count;
        self.at = now;
        if self.address == 0 {
            self.at = now + self.delay();
            self.failures = self.failures.saturating_add(1);
        }
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.failing_since = None;
    }

    /// How long it has been failing, when that is longer than allowed.
    pub fn given_up(&self, now: Instant) -> Option<Duration> {
        let after = now.since(self.failing_since?);
        (after > self.settings.give_up_after?).then_some(after)
    }

    fn delay(&mut self) -> Duration {
        let settings = &self.settings;
        let factor = settings.factor.max(1.0).powi(self.failures.min(64) as i32);
        let initial = settings.initial_delay.as_secs_f64();
        let delay = (initial * factor).min(settings.maximum_delay.as_secs_f64());
        // xorshift: the spread is all that matters here.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        Duration::from_secs_f64(delay + initial * settings.jitter.max(0.0) * share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn every_address_is_tried_before_a_wait_that_doubles_up_to_its_bound() {
        let settings =
            Reconnect { jitter: 0.0, maximum_delay: Duration::from_millis(500), ..Reconnect::default() };
        let mut backoff = Backoff::new(settings, 2, 7, ms(0));
        let mut seen = Vec::new();
        for _ in 0..8 {
            let (address, at) = backoff.next();
            seen.push((address, at.as_ns() / 1_000_000));
            backoff.failed(at, false);
        }
        assert_eq!(seen, [(0, 0), (1, 0), (0, 200), (1, 200), (0, 600), (1, 600), (0, 1100), (1, 1100)]);
    }

    #[test]
    fn a_lost_connection_is_made_again_at_once_from_the_top_of_the_list() {
        let mut backoff = Backoff::new(Reconnect::default(), 3, 7, ms(0));
        backoff.failed(ms(1), false);
        backoff.succeeded();
        backoff.failed(ms(9), true);
        assert_eq!(backoff.next(), (0, ms(9)));
    }

    #[test]
    fn jitter_adds_less_than_one_initial_delay() {
        let mut backoff = Backoff::new(Reconnect::default(), 1, 99, ms(0));
        backoff.failed(ms(0), false);
        let (_, at) = backoff.next();
        assert!(at >= ms(200) && at < ms(400), "{at:?}");
    }

    #[test]
    fn it_gives_up_after_the_time_it_was_given() {
        let settings = Reconnect { give_up_after: Some(Duration::from_secs(1)), ..Reconnect::default() };
        let mut backoff = Backoff::new(settings, 1, 7, ms(0));
        backoff.failed(ms(900), false);
        assert_eq!(backoff.given_up(ms(1000)), None);
        assert!(backoff.given_up(ms(1001)).is_some());
    }
}
