//! When to connect again, and to which address: back-off with jitter over a list of addresses.

use std::time::Duration;

use quire_types::time::Instant;

/// The order in which the addresses are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerChooser {
    /// The order of the list.
    #[default]
    First,
    /// A new random order for each pass.
    Random,
    /// By the number of connections of the servers, which the driver asks for. Servers that do not
    /// answer are last.
    LeastLoaded,
}

/// How a client reconnects after a lost connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconnect {
    /// The order in which addresses are tried.
    pub chooser: ServerChooser,
    /// Wait before the second attempt at the same address.
    pub initial_delay: Duration,
    /// The longest wait.
    pub maximum_delay: Duration,
    /// The factor between one wait and the next.
    pub factor: f64,
    /// A random time up to this share of the initial delay is added to every wait, so that many
    /// clients do not reconnect at the same time.
    pub jitter: f64,
    /// Stop trying after this long without success; `None` = never.
    pub give_up_after: Option<Duration>,
}

impl Default for Reconnect {
    fn default() -> Self {
        Reconnect {
            chooser: ServerChooser::First,
            initial_delay: Duration::from_millis(200),
            maximum_delay: Duration::from_secs(2),
            factor: 2.0,
            jitter: 1.0,
            give_up_after: None,
        }
    }
}

/// A connection that is lost sooner after its logon does not count as a success: the same cause may
/// end the next one, too.
const LASTING: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Backoff {
    settings: Reconnect,
    /// The addresses in the order of this pass, and the index of the next one.
    order: Vec<usize>,
    place: usize,
    /// When it is tried.
    at: Instant,
    /// This pass is to be ordered by the loads of the servers.
    wants_loads: bool,
    /// Failures since the last success, over all addresses.
    failures: u32,
    /// When the server accepted the logon of the current connection.
    up_since: Option<Instant>,
    /// The last connection was lost within [`LASTING`].
    is_unsteady: bool,
    failing_since: Option<Instant>,
    random: u64,
}

impl Backoff {
    pub fn new(settings: Reconnect, address_count: usize, seed: u64, now: Instant) -> Self {
        let mut backoff = Backoff {
            settings,
            order: (0..address_count.max(1)).collect(),
            place: 0,
            at: now,
            wants_loads: false,
            failures: 0,
            up_since: None,
            is_unsteady: false,
            failing_since: Some(now),
            random: seed | 1,
        };
        backoff.begin_pass();
        backoff
    }

    pub fn next(&self) -> (usize, Instant) {
        (self.order[self.place], self.at)
    }

    /// Whether [`Backoff::set_loads`] is to be called before the next attempt.
    pub fn wants_loads(&self) -> bool {
        self.wants_loads
    }

    /// The loads of the servers, by address; `None`: it does not answer. The order of equal loads
    /// is random.
    pub fn set_loads(&mut self, loads: &[Option<u64>]) {
        if std::mem::take(&mut self.wants_loads) {
            self.order.sort_by_key(|address| loads.get(*address).copied().flatten().unwrap_or(u64::MAX));
        }
    }

    fn begin_pass(&mut self) {
        self.place = 0;
        let count = self.order.len();
        if count == 1 || self.settings.chooser == ServerChooser::First {
            return;
        }
        self.wants_loads = self.settings.chooser == ServerChooser::LeastLoaded;
        for end in (1..count).rev() {
            let other = self.random_share() * (end + 1) as f64;
            self.order.swap(end, (other as usize).min(end));
        }
    }

    /// The connection was lost or could not be made. After a lost one the first address of a new
    /// pass is tried at once; the wait begins when every address has failed. The second connection
    /// in a row that was lost soon after its logon is a failure of its address.
    pub fn failed(&mut self, now: Instant) {
        self.failing_since.get_or_insert(now);
        if let Some(up_since) = self.up_since.take() {
            let is_brief = now.since(up_since) < LASTING;
            let is_first = !std::mem::replace(&mut self.is_unsteady, is_brief);
            if is_first || !is_brief {
                (self.at, self.failures) = (now, 0);
                return self.begin_pass();
            }
        }
        self.place += 1;
        self.at = now;
        if self.place == self.order.len() {
            self.at = now + self.delay();
            self.failures = self.failures.saturating_add(1);
            self.begin_pass();
        }
    }

    /// The same address is tried at once, with another token.
    pub fn again(&mut self, now: Instant) {
        self.failing_since.get_or_insert(now);
        self.at = now;
    }

    /// The server accepted the logon.
    pub fn succeeded(&mut self, now: Instant) {
        if !self.is_unsteady {
            self.failures = 0;
        }
        self.failing_since = None;
        self.up_since = Some(now);
    }

    /// How long the attempts have failed, when that is longer than allowed.
    pub fn given_up(&self, now: Instant) -> Option<Duration> {
        let after = now.since(self.failing_since?);
        (after > self.settings.give_up_after?).then_some(after)
    }

    fn delay(&mut self) -> Duration {
        let settings = &self.settings;
        let factor = settings.factor.max(1.0).powi(self.failures.min(64) as i32);
        let initial = settings.initial_delay.as_secs_f64();
        let delay = (initial * factor).min(settings.maximum_delay.as_secs_f64());
        let jitter = initial * settings.jitter.max(0.0);
        Duration::from_secs_f64(delay + jitter * self.random_share())
    }

    /// A random number from 0 up to 1.
    fn random_share(&mut self) -> f64 {
        // xorshift: the spread of the values is sufficient here.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
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
            backoff.failed(at);
        }
        assert_eq!(seen, [(0, 0), (1, 0), (0, 200), (1, 200), (0, 600), (1, 600), (0, 1100), (1, 1100)]);
    }

    #[test]
    fn a_lost_connection_is_made_again_at_once_from_the_top_of_the_list() {
        let mut backoff = Backoff::new(Reconnect::default(), 3, 7, ms(0));
        backoff.failed(ms(1));
        backoff.succeeded(ms(2));
        backoff.failed(ms(9));
        assert_eq!(backoff.next(), (0, ms(9)));
    }

    /// The instants of the attempts, in milliseconds, when each connection is lost `life_ms` after
    /// its logon.
    fn attempts(life_ms: u64, address_count: usize) -> Vec<(usize, u64)> {
        let settings = Reconnect { jitter: 0.0, ..Reconnect::default() };
        let mut backoff = Backoff::new(settings, address_count, 7, ms(0));
        let mut attempts = Vec::new();
        for _ in 0..6 {
            let (address, at) = backoff.next();
            attempts.push((address, at.as_ns() / 1_000_000));
            backoff.succeeded(at);
            backoff.failed(at + Duration::from_millis(life_ms));
        }
        attempts
    }

    #[test]
    fn connections_that_are_lost_right_after_their_logon_are_made_with_growing_waits() {
        assert_eq!(attempts(0, 1), [0, 0, 200, 600, 1_400, 3_000].map(|at| (0, at)));
        assert_eq!(attempts(1_000, 1), [0, 1_000, 2_000, 3_000, 4_000, 5_000].map(|at| (0, at)));
        // The other address is tried before a wait.
        assert_eq!(attempts(0, 2), [(0, 0), (0, 0), (1, 0), (0, 200), (1, 200), (0, 600)]);
    }

    fn with(chooser: ServerChooser, address_count: usize, seed: u64) -> Backoff {
        Backoff::new(Reconnect { chooser, ..Reconnect::default() }, address_count, seed, ms(0))
    }

    #[test]
    fn a_random_order_has_every_address_once_in_each_pass() {
        let mut first_ones = [0; 3];
        for number in 0..300_u64 {
            // Seeds are random numbers of 64 bits.
            let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut backoff = with(ServerChooser::Random, 3, seed);
            for _ in 0..2 {
                let mut pass = Vec::new();
                for _ in 0..3 {
                    pass.push(backoff.next().0);
                    backoff.failed(ms(1));
                }
                first_ones[pass[0]] += 1;
                pass.sort_unstable();
                assert_eq!(pass, [0, 1, 2]);
            }
        }
        assert!(first_ones.iter().all(|count| *count > 120), "{first_ones:?}");
    }

    #[test]
    fn the_server_with_the_fewest_connections_is_first_and_one_that_does_not_answer_is_last() {
        let mut backoff = with(ServerChooser::LeastLoaded, 4, 5);
        assert!(backoff.wants_loads());
        backoff.set_loads(&[Some(7), None, Some(2), Some(9)]);
        assert!(!backoff.wants_loads());
        let mut pass = Vec::new();
        for _ in 0..4 {
            pass.push(backoff.next().0);
            backoff.failed(ms(1));
        }
        assert_eq!(pass, [2, 0, 3, 1]);
        assert!(backoff.wants_loads(), "they are asked again in the next pass");
        backoff.set_loads(&[Some(1), Some(1), Some(0), Some(1)]);
        backoff.succeeded(ms(1));
        backoff.failed(ms(2));
        assert!(backoff.wants_loads(), "and after a lost connection");
        assert!(!with(ServerChooser::LeastLoaded, 1, 5).wants_loads(), "there is nothing to choose");
    }

    #[test]
    fn jitter_adds_less_than_one_initial_delay() {
        let mut backoff = Backoff::new(Reconnect::default(), 1, 99, ms(0));
        backoff.failed(ms(0));
        let (_, at) = backoff.next();
        assert!(at >= ms(200) && at < ms(400), "{at:?}");
    }

    #[test]
    fn it_gives_up_after_the_time_it_was_given() {
        let settings = Reconnect { give_up_after: Some(Duration::from_secs(1)), ..Reconnect::default() };
        let mut backoff = Backoff::new(settings, 1, 7, ms(0));
        backoff.failed(ms(900));
        assert_eq!(backoff.given_up(ms(1000)), None);
        assert!(backoff.given_up(ms(1001)).is_some());
    }
}
