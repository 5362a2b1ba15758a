//! Times and dates as people write them: forms of ISO 8601, including those of bookmarks
//! (`docs/replay.md`).

use chrono::{NaiveDate, Weekday};

const NS_PER_S: i128 = 1_000_000_000;

const NS_PER_DAY: i128 = 86_400 * NS_PER_S;

/// Nanoseconds since 1970 of an ISO 8601 time or date, UTC without a zone. `None` when the text is
/// neither.
pub fn time_ns(text: &str) -> Option<i128> {
    let text = text.trim();
    let (date, of_day_ns) = Rest(text.as_bytes()).whole()?;
    // Eight digits are a date: as milliseconds since 1970, they would be a time on the first of
    // January. With more digits, a separator has to show that the text is a time.
    let is_date = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_time = is_date || text.contains(['-', 'T', 't', ' ']);
    is_time.then(|| i128::from(days_of(date)) * NS_PER_DAY + of_day_ns)
}

/// Days since 1970 of the date in an ISO 8601 date or time, as it is written there; `None` when the
/// text is neither.
pub(crate) fn date_days(text: &str) -> Option<i64> {
    Rest(text.trim().as_bytes()).whole().map(|(date, _)| days_of(date))
}

fn days_of(date: NaiveDate) -> i64 {
    date.signed_duration_since(NaiveDate::default()).num_days()
}

/// The rest of a time.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    /// A date, and the nanoseconds from its midnight in UTC.
    fn whole(mut self) -> Option<(NaiveDate, i128)> {
        let date = self.date()?;
        if self.0.is_empty() {
            return Some((date, 0));
        }
        // Any character may separate the time.
        let separator = std::str::from_utf8(self.0).ok()?.chars().next()?;
        self.0 = &self.0[separator.len_utf8()..];
        let of_day_ns = self.time_of_day()?;
        let offset_ns = self.zone()?;
        self.0.is_empty().then_some((date, of_day_ns - offset_ns))
    }

    fn digits(&mut self, count: usize) -> Option<u32> {
        let digits = self.0.get(..count).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
        self.0 = &self.0[count..];
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.0.first() == Some(&byte);
        if is_there {
            self.0 = &self.0[1..];
        }
        is_there
    }

    /// `2026-01-31`, `20260131`, `2026-W05-6`, `2026W056`; a week without a day begins with Monday.
    fn date(&mut self) -> Option<NaiveDate> {
        let year = i32::try_from(self.digits(4)?).ok().filter(|year| *year > 0)?;
        let is_extended = self.take(b'-');
        if self.take(b'W') {
            let week = self.digits(2)?;
            let has_day = if is_extended {
                self.0.first() == Some(&b'-') && self.0.get(1).is_some_and(u8::is_ascii_digit)
            } else {
                self.0.first().is_some_and(u8::is_ascii_digit)
            };
            if has_day && is_extended {
                self.take(b'-');
            }
            let day = if has_day { self.digits(1)? } else { 1 };
            let weekday = Weekday::try_from(u8::try_from(day).ok()?.checked_sub(1)?).ok()?;
            return NaiveDate::from_isoywd_opt(year, week, weekday);
        }
        let month = self.digits(2)?;
        if is_extended && !self.take(b'-') {
            return None;
        }
        NaiveDate::from_ymd_opt(year, month, self.digits(2)?)
    }

    /// Nanoseconds of `12`, `12:30`, `12:30:15.5`, `123015.5`.
    fn time_of_day(&mut self) -> Option<i128> {
        let hour = self.digits(2)?;
        let is_extended = self.0.first() == Some(&b':');
        let (mut minute, mut second, mut fraction_ns) = (0, 0, 0);
        if self.part(is_extended) {
            minute = self.digits(2)?;
            if self.part(is_extended) {
                second = self.digits(2)?;
                fraction_ns = self.fraction_ns()?;
            }
        }
        let is_midnight = (hour, minute, second, fraction_ns) == (24, 0, 0, 0);
        if (hour > 23 && !is_midnight) || minute > 59 || second > 59 {
            return None;
        }
        Some(i128::from(hour * 3600 + minute * 60 + second) * NS_PER_S + i128::from(fraction_ns))
    }

    /// Whether another part of a time follows. Removes its colon.
    fn part(&mut self, is_extended: bool) -> bool {
        if is_extended { self.take(b':') } else { self.0.first().is_some_and(u8::is_ascii_digit) }
    }

    /// Nine digits count, the others are dropped.
    fn fraction_ns(&mut self) -> Option<u32> {
        if !self.take(b'.') && !self.take(b',') {
            return Some(0);
        }
        let count = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(count);
        self.0 = rest;
        let digits = std::str::from_utf8(&digits[..count.min(9)]).ok().filter(|digits| !digits.is_empty())?;
        Some(digits.parse::<u32>().ok()? * 10u32.pow(9 - digits.len() as u32))
    }

    /// Nanoseconds east of UTC.
    fn zone(&mut self) -> Option<i128> {
        if self.0.is_empty() || self.take(b'Z') || self.take(b'z') {
            return Some(0);
        }
        let is_west = match self.0.first()? {
            b'+' => false,
            b'-' => true,
            _ => return None,
        };
        self.0 = &self.0[1..];
        let offset = self.time_of_day().filter(|offset| *offset < 86_400 * NS_PER_S)?;
        Some(if is_west { -offset } else { offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_to_the_nanosecond() {
        let base = 1_767_323_045_000_000_000;
        for (text, ns) in [
            ("2026-01-02T03:04:05.123456789Z", base + 123_456_789),
            ("2026-01-02T04:04:05.1234567+01:00", base + 123_456_700),
            ("2026-01-02 03:04:05.12", base + 120_000_000),
            ("20260102T030405Z", base),
            ("20260102T030405,5", base + 500_000_000),
            ("2026-W01-5T03:04:05", base),
            ("2026W015T03:04:05", base),
            ("2026-01-01T22:04:05-05:00", base),
            ("2026-01-02T08:49:05+0545", base),
            ("2026-01-02T05:04:05+02", base),
            ("2026-01-02t03:04:05z", base),
            (" 2026-01-02T03:04:05Z ", base),
            ("20260102-03:04:05", base),
            ("20260102", 1_767_312_000_000_000_000),
            ("2026-01-02", 1_767_312_000_000_000_000),
            ("2026-01-02T24:00", 1_767_398_400_000_000_000),
            ("1969-12-31T23:59:59.5Z", -500_000_000),
            ("0001-01-01", -62_135_596_800_000_000_000),
        ] {
            assert_eq!(time_ns(text), Some(ns), "{text}");
        }
        for text in [
            "",
            "2026",
            "20260102123",
            "2026W015",
            "20260102x12:30",
            "yesterday",
            "2026-13-01",
            "2026-02-30",
            "2026-01-02T25:00",
            "2026-01-02T03:60",
            "2026-01-02T03:04:05.",
            "2026-01-02T03:04:05+24:00",
            "2026-01-02T03:04Zx",
            "0000-01-01",
            "1|2|",
            "2026-1-2",
            "2026-0102",
        ] {
            assert_eq!(time_ns(text), None, "{text}");
        }
    }

    #[test]
    fn a_date_is_the_one_that_is_written() {
        for (text, days) in [
            ("1970-01-03", 2),
            ("19700103", 2),
            ("1970-01-03T23:00:00-05:00", 2),
            ("1970-01-03T00:30+0100", 2),
            ("1969-12-31", -1),
            ("0001-01-01", -719_162),
            ("9999-12-31", 2_932_896),
        ] {
            assert_eq!(date_days(text), Some(days), "{text}");
        }
        for text in ["1970-02-30", "1970-1-3", "10000-01-01", "-0001-01-01", "0000-12-31", "1970-01-03 soon"]
        {
            assert_eq!(date_days(text), None, "{text}");
        }
    }
}
