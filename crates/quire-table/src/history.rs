//! The rows that a table had before: the newest version of each key at earlier instants.
//!
//! A row that is replaced or removed becomes a *version* with the moment of its end. Versions are
//! in the order of their ends, so the oldest ones are dropped at the front. With a granularity,
//! time is divided into periods. A version that begins and ends within one period is not kept,
//! because no state between two periods has it. So the state after a message within a period is
//! known only when no such version was in it ([`Dropped`]). Otherwise the state at the end of the
//! period before answers.
//!
//! The state of an instant has the versions and the current rows that began before the instant and
//! did not end before it.

use std::collections::{BTreeMap, VecDeque};

use crate::row::Row;
use quire_journal::{Position, Timestamp};

/// How much of its history a table keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// How long a version is kept after its end.
    pub window_ns: u64,
    /// The distance of the instants whose states are kept; 0 = every instant.
    pub granularity_ns: u64,
    /// The most bytes of versions. Above it, the oldest ones are dropped, and the history begins
    /// later.
    pub size_max: usize,
}

impl HistoryConfig {
    fn period(&self, time: Timestamp) -> u64 {
        time.as_ns().checked_div(self.granularity_ns).unwrap_or(time.as_ns())
    }
}

/// The end of a lifetime has no record of the log.
const EXPIRED: Position = Position(u64::MAX);

/// The record of the log that changed a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Its position.
    pub position: Position,
    /// Its time.
    pub timestamp: Timestamp,
}

/// An instant whose state is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsOf {
    /// The state after all messages up to this time.
    pub time: Timestamp,
    /// The state after the message at this position, which has the time.
    pub position: Option<Position>,
}

/// The states that a history has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownHistory {
    /// The states of instants from this time on.
    pub begin: Timestamp,
    /// The distance of the instants; 0 = every instant.
    pub granularity_ns: u64,
}

impl KnownHistory {
    /// Whether it has all states of another granularity.
    pub fn has_all_of(&self, granularity_ns: u64) -> bool {
        match self.granularity_ns {
            0 => true,
            own => granularity_ns != 0 && granularity_ns.is_multiple_of(own),
        }
    }
}

/// Why the state of an instant is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the history begins later")]
pub struct BeforeHistory {
    /// The first instant whose state is known.
    pub begin: Timestamp,
    /// The versions before it were dropped because of the limit of bytes.
    pub is_by_size: bool,
}

/// Bytes of a version in addition to its row, about.
const VERSION_SIZE: usize = 64;

/// The most versions that one change drops, so that no change takes long.
const DROPPED_PER_CHANGE_MAX: usize = 16;

/// The most periods for which the history knows which versions were not kept: about 300 KiB. The
/// states after messages of earlier periods are those of the ends of periods.
const DROPPED_PERIODS_MAX: usize = 4096;

/// A row that was replaced or removed.
#[derive(Debug)]
struct Version {
    ended: Moment,
    row: Box<[u8]>,
}

/// The versions of a table.
#[derive(Debug)]
pub(crate) struct History {
    config: HistoryConfig,
    versions: VecDeque<Version>,
    /// The number of the first version.
    first: u64,
    size: usize,
    /// Versions that ended before it are not known.
    begin: Timestamp,
    /// `begin` was set by the limit of bytes.
    is_short: bool,
    /// With a granularity: the versions of each period that were not kept.
    dropped: BTreeMap<u64, Dropped>,
    /// It is not known which versions of this period, and of the periods before, were not kept.
    forgotten: Option<u64>,
}

/// The versions of one period that were not kept: they were in states from a position on, until
/// another one, and until a time when their lifetimes ended.
#[derive(Clone, Copy, Debug)]
struct Dropped {
    from: Position,
    until: Position,
    until_time: Timestamp,
}

impl Dropped {
    fn add(&mut self, began: Position, ended: Moment) {
        self.from = self.from.min(began);
        if ended.position == EXPIRED {
            self.until_time = self.until_time.max(ended.timestamp);
        } else {
            self.until = self.until.max(ended.position);
        }
    }

    /// Whether one of them can be in the state after the message at a position, which has the time.
    fn affects(&self, position: Position, time: Timestamp) -> bool {
        self.from <= position && (position < self.until || time < self.until_time)
    }
}

impl AsOf {
    /// Whether the state has a row that was not replaced or removed before.
    pub(crate) fn has(&self, row: &Row<'_>) -> bool {
        let has_begun = match self.position {
            Some(position) => row.position <= position,
            None => row.timestamp <= self.time,
        };
        has_begun && row.expires.is_none_or(|expires| expires > self.time)
    }

    fn is_before(&self, ended: Moment) -> bool {
        match self.position {
            Some(position) => ended.position > position,
            None => ended.timestamp > self.time,
        }
    }
}

impl History {
    pub fn new(config: HistoryConfig) -> Self {
        History {
            config,
            versions: VecDeque::new(),
            first: 0,
            size: 0,
            begin: Timestamp(0),
            is_short: false,
            dropped: BTreeMap::new(),
            forgotten: None,
        }
    }

    /// Bytes of the versions.
    pub fn size(&self) -> usize {
        self.size
    }

    pub fn len(&self) -> usize {
        self.versions.len()
    }

    /// The states that the history has.
    pub fn known(&self) -> KnownHistory {
        KnownHistory { begin: self.begin, granularity_ns: self.config.granularity_ns }
    }

    pub fn set_begin(&mut self, begin: Timestamp) {
        self.begin = self.begin.max(begin);
    }

    /// It is not known which versions that began at this time or before were not kept.
    pub fn set_exact_after(&mut self, time: Timestamp) {
        self.forgotten = self.forgotten.max(Some(self.period(time)));
    }

    /// Whether the state after the message at a position, which has the time, is known. A version
    /// that was in it and that was not kept began before the message and ended after it, both in
    /// the period of the message.
    fn is_exact(&self, position: Position, time: Timestamp) -> bool {
        let period = self.period(time);
        self.config.granularity_ns == 0
            || self.forgotten.is_none_or(|last| last < period)
                && !self.dropped.get(&period).is_some_and(|dropped| dropped.affects(position, time))
    }

    /// The numbers of the versions: from the first one to before the end.
    pub fn numbers(&self) -> (u64, u64) {
        (self.first, self.first + self.versions.len() as u64)
    }

    /// Whether versions were dropped that an open scan of this instant needs.
    pub fn has_lost(&self, as_of: AsOf) -> bool {
        as_of.time < self.begin
    }

    /// A version by its number.
    pub fn version(&self, number: u64) -> Option<(Moment, &[u8])> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.versions.get(index).map(|version| (version.ended, &*version.row))
    }

    /// A version by its number, when the state of the instant has it.
    pub fn version_at(&self, number: u64, as_of: AsOf) -> Option<Row<'_>> {
        let (ended, bytes) = self.version(number)?;
        let row = Row::of(bytes);
        (as_of.has(&row) && as_of.is_before(ended)).then_some(row)
    }

    /// A row was replaced or removed. `needed` is the oldest instant of an open scan.
    pub fn push(&mut self, ended: Moment, row: &[u8], needed: Option<Timestamp>) {
        let Row { timestamp: began, position, .. } = Row::of(row);
        let period = self.period(began);
        if period != self.period(ended.timestamp) || self.config.granularity_ns == 0 {
            self.restore(ended, row);
        } else {
            let none = Dropped { from: position, until: Position::ZERO, until_time: Timestamp(0) };
            self.dropped.entry(period).or_insert(none).add(position, ended);
            if self.dropped.len() > DROPPED_PERIODS_MAX {
                self.forgotten = self.dropped.pop_first().map(|(period, _)| period).max(self.forgotten);
            }
        }
        self.drop_old(ended.timestamp, needed);
    }

    /// Adds a version that was kept before.
    pub fn restore(&mut self, ended: Moment, row: &[u8]) {
        self.size += VERSION_SIZE + row.len();
        self.versions.push_back(Version { ended, row: row.into() });
        while self.size > self.config.size_max && self.drop_first() {
            self.is_short = true;
        }
    }

    /// Returns whether there was a version.
    fn drop_first(&mut self) -> bool {
        let Some(Version { ended, row }) = self.versions.pop_front() else { return false };
        self.first += 1;
        self.size -= VERSION_SIZE + row.len();
        self.begin = self.begin.max(Timestamp(ended.timestamp.as_ns().saturating_add(1)));
        true
    }

    /// Drops versions that ended before the window.
    fn drop_old(&mut self, now: Timestamp, needed: Option<Timestamp>) {
        let horizon = needed.map_or(self.horizon(now), |needed| needed.min(self.horizon(now)));
        let first = self.dropped.first_entry();
        if let Some(first) = first.filter(|first| *first.key() < self.config.period(horizon)) {
            first.remove();
        }
        for _ in 0..DROPPED_PER_CHANGE_MAX {
            match self.versions.front() {
                Some(version) if version.ended.timestamp < horizon => self.drop_first(),
                _ => return,
            };
        }
    }

    fn period(&self, time: Timestamp) -> u64 {
        self.config.period(time)
    }

    /// The last kept instant at a time or before it: the end of a period.
    fn kept(&self, time: Timestamp) -> Timestamp {
        match self.config.granularity_ns {
            0 => time,
            granularity => Timestamp((self.period(time) * granularity).saturating_sub(1)),
        }
    }

    /// The first time whose state is an instant from `begin` on.
    fn first_kept(&self, begin: Timestamp) -> Timestamp {
        match self.config.granularity_ns {
            0 => begin,
            granularity => Timestamp(self.period(begin).saturating_add(1).saturating_mul(granularity)),
        }
    }

    /// The first instant of the window.
    fn horizon(&self, now: Timestamp) -> Timestamp {
        self.kept(Timestamp(now.as_ns().saturating_sub(self.config.window_ns)))
    }

    /// The instant whose state answers for a time, or for the message at a position. `None` = the
    /// current state.
    ///
    /// # Errors
    /// [`BeforeHistory`].
    pub fn as_of(
        &self,
        time: Timestamp,
        position: Option<Position>,
        now: Timestamp,
    ) -> Result<Option<AsOf>, BeforeHistory> {
        if time > now || (time == now && position.is_none()) {
            return Ok(None);
        }
        let position = position.filter(|position| self.is_exact(*position, time));
        let time = if position.is_some() { time } else { self.kept(time) };
        let as_of = AsOf { time, position };
        let horizon = self.horizon(now);
        let begin = self.begin.max(horizon);
        if as_of.time < begin {
            let is_by_size = self.is_short && self.begin > horizon;
            return Err(BeforeHistory { begin: self.first_kept(begin), is_by_size });
        }
        Ok(Some(as_of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(granularity_ns: u64) -> History {
        History::new(HistoryConfig { window_ns: 100, granularity_ns, size_max: 1_000 })
    }

    fn kept(granularity_ns: u64, time: u64) -> u64 {
        history(granularity_ns).kept(Timestamp(time)).as_ns()
    }

    #[test]
    fn an_instant_is_rounded_down_to_the_end_of_a_period() {
        assert_eq!([kept(10, 9), kept(10, 10), kept(10, 19), kept(10, 20)], [0, 9, 9, 19]);
        assert_eq!([kept(0, 9), kept(0, 10)], [9, 10]);
    }

    #[test]
    fn an_instant_before_the_window_is_refused_and_a_later_one_is_the_current_state() {
        let history = history(10);
        let as_of = |time| history.as_of(Timestamp(time), None, Timestamp(1005));
        let refused = |begin| Err(BeforeHistory { begin: Timestamp(begin), is_by_size: false });
        assert_eq!(as_of(899), refused(900));
        assert_eq!(as_of(900), Ok(Some(AsOf { time: Timestamp(899), position: None })));
        assert_eq!(as_of(1004), Ok(Some(AsOf { time: Timestamp(999), position: None })));
        assert_eq!([as_of(1005), as_of(1006)], [Ok(None), Ok(None)]);
    }
}
