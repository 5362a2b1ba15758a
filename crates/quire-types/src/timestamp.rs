//! Instants in UTC, as the log stores and prints them.

use std::fmt;
use std::str::FromStr;

/// Nanoseconds since 1970-01-01T00:00:00Z. Prints as `20210615T185233.126619Z` (microseconds, as
/// the log tools show).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// The text is not `YYYYmmddTHHMMSS[.fraction][Z]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a time of the form YYYYmmddTHHMMSS[.ffffff][Z]")]
pub struct TimestampError;

const NS_PER_S: u64 = 1_000_000_000;

impl Timestamp {
    /// From nanoseconds since 1970.
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Timestamp(ns)
    }

    /// Nanoseconds since 1970.
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, ns) = (self.0 / NS_PER_S, self.0 % NS_PER_S);
        let (year, month, day) = date_of_day(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{:06}Z", ns / 1000)
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;

    /// Always UTC, with or without the `Z`. The fraction has up to nine digits.
    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let text = text.strip_suffix('Z').unwrap_or(text);
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if whole.len() != 15 || !whole.is_ascii() || whole.as_bytes()[8] != b'T' {
            return Err(TimestampError);
        }
        let (date, time) = (&whole[..8], &whole[9..]);
        if !digits(date) || !digits(time) || !digits(fraction) || fraction.is_empty() || fraction.len() > 9 {
            return Err(TimestampError);
        }
        let number = |text: &str| text.parse::<u64>().map_err(|_| TimestampError);
        let (year, month, day) = (number(&date[..4])?, number(&date[4..6])?, number(&date[6..])?);
        let (hour, minute, second) = (number(&time[..2])?, number(&time[2..4])?, number(&time[4..])?);
        if year < 1970 || hour > 23 || minute > 59 || second > 59 {
            return Err(TimestampError);
        }
        let days = day_of_date(year, month, day).ok_or(TimestampError)?;
        let ns = number(fraction)? * 10u64.pow(9 - fraction.len() as u32);
        let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
        seconds
            .checked_mul(NS_PER_S)
            .and_then(|whole| whole.checked_add(ns))
            .map(Timestamp)
            .ok_or(TimestampError)
    }
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from year 0 to the first of January of `year`, less a constant.
const fn days_before_year(year: u64) -> u64 {
    let y = year - 1;
    y * 365 + y / 4 - y / 100 + y / 400
}

fn day_of_date(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || day == 0 || day > days_of_month(year, month) {
        return None;
    }
    let before: u64 = (1..month).map(|m| days_of_month(year, m)).sum();
    Some(days_before_year(year) - days_before_year(1970) + before + day - 1)
}

fn date_of_day(day: u64) -> (u64, u64, u64) {
    let mut year = 1970 + day / 366;
    while days_before_year(year + 1) - days_before_year(1970) <= day {
        year += 1;
    }
    let mut rest = day - (days_before_year(year) - days_before_year(1970));
    let mut month = 1;
    while rest >= days_of_month(year, month) {
        rest -= days_of_month(year, month);
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_instants_print_and_parse() {
        for (ns, text) in [
            (0, "19700101T000000.000000Z"),
            (1_420_202_100_000_000_000, "20150102T123500.000000Z"),
            (951_782_400_000_000_000, "20000229T000000.000000Z"),
            (1_623_783_153_126_619_000, "20210615T185233.126619Z"),
        ] {
            assert_eq!(Timestamp(ns).to_string(), text);
            assert_eq!(text.parse(), Ok(Timestamp(ns)));
        }
        assert_eq!("20150102T123500".parse(), Ok(Timestamp(1_420_202_100_000_000_000)));
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "20150102",
            "20150230T000000Z",
            "20150102T250000",
            "20150102 123500",
            "20150102T123500+01",
            "2015010éT12350",
            "20150102T123500.Z",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(TimestampError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_reads_back_to_the_microsecond(us in 0..u64::MAX / 1000) {
            let at = Timestamp(us * 1000);
            prop_assert_eq!(at.to_string().parse(), Ok(at));
        }
    }
}
