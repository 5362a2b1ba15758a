//! Texts as people write them: numbers, durations, sizes, times.

use chrono::{NaiveDate, Weekday};

use crate::failure::{Failure, Outcome};

/// As for every duration: 10^9 seconds.
const DURATION_END_NS: u128 = 1_000_000_000 * NS_PER_S;

const NS_PER_S: u128 = 1_000_000_000;

const US_PER_DAY: i128 = 86_400_000_000;

/// Nanoseconds of the units of a duration.
const DURATION_UNITS: [(&str, u128); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", NS_PER_S),
    ("m", 60 * NS_PER_S),
    ("h", 3_600 * NS_PER_S),
    ("d", 86_400 * NS_PER_S),
];

/// Names of the units of a relative time.
const UNIT_NAMES: [(&str, &[&str]); 7] = [
    ("ns", &["nanosecond", "nanoseconds"]),
    ("us", &["microsecond", "microseconds"]),
    ("ms", &["msec", "msecs", "millisecond", "milliseconds"]),
    ("s", &["sec", "secs", "second", "seconds"]),
    ("m", &["min", "mins", "minute", "minutes"]),
    ("h", &["hour", "hours"]),
    ("d", &["day", "days"]),
];

/// Bytes of the units of a size.
const SIZE_UNITS: [(&str, f64); 6] = [
    ("", 1.0),
    ("B", 1.0),
    ("KB", 1024.0),
    ("MB", 1_048_576.0),
    ("GB", 1_073_741_824.0),
    ("TB", 1_099_511_627_776.0),
];

/// Characters of a text that a message shows.
const SHOWN_MAX: usize = 64;

/// The text in quotes; of a long one the beginning.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    shown = shown.replace("\\'", "'").replace("\\\"", "\"");
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    format!("'{shown}'")
}

/// The whole number that the text is. Numbers beyond the type are the nearest that it has.
pub(crate) fn whole(text: &str) -> Option<i128> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nearest = if text.starts_with('-') { i128::MIN } else { i128::MAX };
    Some(text.parse().unwrap_or(nearest))
}

/// A number without sign, split at the point, and the letters after it.
fn quantity(text: &str) -> Option<(&str, &str, &str)> {
    let text = text.trim();
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits(text));
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) if digits(rest) > 0 => rest.split_at(digits(rest)),
        Some(_) => return None,
        None => ("", rest),
    };
    let unit = rest.trim_start();
    let is_unit = unit.bytes().all(|byte| byte.is_ascii_alphabetic());
    (!number.is_empty() && is_unit).then_some((number, fraction, unit))
}

/// Nanoseconds of a number with a unit; `None` when it has as many as [`DURATION_END_NS`].
fn scaled(number: &str, fraction: &str, unit_ns: u128) -> Option<u64> {
    let number: u128 = number.parse().ok().filter(|number| *number < DURATION_END_NS)?;
    // More digits than this are less than a nanosecond of a day.
    let fraction = &fraction[..fraction.len().min(15)];
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let ns = number * unit_ns + parts * unit_ns / 10u128.pow(fraction.len() as u32);
    (ns < DURATION_END_NS).then_some(ns as u64)
}

/// Nanoseconds of a duration such as `100ms`.
pub(crate) fn duration_ns(key: &str, text: &str) -> Outcome<u64> {
    let text = if text.trim() == "0" { "0s" } else { text };
    let found = quantity(text).and_then(|(number, fraction, unit)| {
        let (_, unit_ns) = DURATION_UNITS.iter().find(|(name, _)| *name == unit)?;
        Some(scaled(number, fraction, *unit_ns))
    });
    match found {
        None => {
            let reason = "is not a duration such as '100ms', '10s' or '5m'";
            Err(Failure::option(format!("{key}: {} {reason}", quoted(text))))
        }
        Some(None) => Err(Failure::option(format!("{key}: {} is not between 0 and 31 years", quoted(text)))),
        Some(Some(ns)) => Ok(ns),
    }
}

/// Bytes of a size such as `64MB`, or `64m` as Spark writes it.
pub(crate) fn size(key: &str, text: &str) -> Outcome<u64> {
    let found = quantity(text).and_then(|(number, fraction, unit)| {
        let mut unit = unit.to_ascii_uppercase();
        if fraction.is_empty() && matches!(unit.as_str(), "K" | "M" | "G" | "T") {
            unit.push('B');
        }
        let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
        // Whole numbers of bytes are exact.
        let exact = || number.parse::<u64>().ok()?.checked_mul(*factor as u64);
        let about = || Some((format!("{number}.{fraction}0").parse::<f64>().ok()? * factor) as u64);
        Some(if fraction.is_empty() { exact().unwrap_or(u64::MAX) } else { about()? })
    });
    match found {
        None => {
            let reason = "is not a size: bytes, or text such as '64MB'";
            Err(Failure::option(format!("{key}: {} {reason}", quoted(text))))
        }
        Some(size) if size > i64::MAX as u64 => {
            Err(Failure::option(format!("{key}: {} is not below 8388608TB", quoted(text))))
        }
        Some(size) => Ok(size),
    }
}

/// Nanoseconds of a time back from now, such as `-10 minutes`; `None` when the text is not of this form.
pub(crate) fn ago_ns(key: &str, text: &str) -> Outcome<Option<u64>> {
    let lower = text.trim().to_lowercase();
    let Some((number, fraction, unit)) = lower.strip_prefix('-').and_then(quantity) else { return Ok(None) };
    if unit.is_empty() {
        return Ok(None);
    }
    let is_of = |names: &[&str], short: &str| short == unit || names.contains(&unit);
    let short = UNIT_NAMES.iter().find(|(short, names)| is_of(names, short)).map(|(short, _)| *short);
    let Some((_, unit_ns)) = DURATION_UNITS.iter().find(|(name, _)| Some(*name) == short) else {
        return Err(Failure::option(format!(
            "{key}: {} has the unknown unit {}; the units are ns, us, ms, s, m, h, d, and their names, such as minutes",
            quoted(text),
            quoted(unit)
        )));
    };
    let ns = scaled(number, fraction, *unit_ns);
    let too_long = || Failure::option(format!("{key}: {} is not between 0 and 31 years", quoted(text)));
    ns.map(Some).ok_or_else(too_long)
}

/// Nanoseconds since 1970 of an ISO 8601 time, UTC when it names no zone; `None` when the text is not a time.
pub(crate) fn time_ns(text: &str) -> Option<i128> {
    let text = text.trim();
    let mut rest = Rest(text.as_bytes());
    let date = rest.date()?;
    let day_us = i128::from(date.signed_duration_since(NaiveDate::default()).num_days()) * US_PER_DAY;
    if rest.0.is_empty() {
        // Eight digits are a number, unless something shows that they are a date.
        return text.contains(['-', 'T', 't', ' ']).then_some(day_us * 1000);
    }
    // Anything may separate the time, but something has to show that it is one.
    let separator = std::str::from_utf8(rest.0).ok()?.chars().next()?;
    rest.0 = &rest.0[separator.len_utf8()..];
    if !text.contains(['-', 'T', 't', ' ']) {
        return None;
    }
    let of_day_ns = rest.time_of_day()?;
    let offset_ns = rest.zone()?;
    rest.0.is_empty().then_some(day_us * 1000 + of_day_ns - offset_ns)
}

/// Nanoseconds since 1970 of a date such as `20260131`; `None` when the text is not one. As milliseconds since 1970, it would be a time of
/// the first of January.
pub(crate) fn date_ns(text: &str) -> Option<i128> {
    let text = text.trim();
    let is_date = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_date.then(|| time_ns(&format!("{text}T00"))).flatten()
}

/// The rest of a time.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
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
        Some(i128::from(hour * 3600 + minute * 60 + second) * NS_PER_S as i128 + i128::from(fraction_ns))
    }

    /// Whether another part of a time follows; its colon is taken.
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
        if self.take(b'Z') || self.take(b'z') || self.0.is_empty() {
            return Some(0);
        }
        let is_west = match self.0.first()? {
            b'+' => false,
            b'-' => true,
            _ => return None,
        };
        self.0 = &self.0[1..];
        let offset = self.time_of_day().filter(|offset| *offset < 86_400 * NS_PER_S as i128)?;
        Some(if is_west { -offset } else { offset })
    }
}

/// The name that is most like another one, when it is like it at all.
pub(crate) fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.map(|each| (distance(name, &each.to_lowercase()), each));
    let (distance, found) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= (found.len().max(name.len()) / 3).max(1)).then_some(found)
}

/// The characters to insert, remove or replace.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, character) in one.chars().take(4 * SHOWN_MAX).enumerate() {
        let mut before = row[0];
        row[0] = at + 1;
        for (index, each) in other.iter().enumerate() {
            let replaced = before + usize::from(*each != character);
            before = row[index + 1];
            row[index + 1] = replaced.min(before + 1).min(row[index] + 1);
        }
    }
    row[other.len()]
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
            ("2026-01-02", 1_767_312_000_000_000_000),
            ("2026-01-02T24:00", 1_767_398_400_000_000_000),
            ("1969-12-31T23:59:59.5Z", -500_000_000),
            ("0001-01-01", -62_135_596_800_000_000_000),
        ] {
            assert_eq!(time_ns(text), Some(ns), "{text}");
        }
        for text in [
            "",
            "20260102",
            "2026",
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
    fn a_relative_time_is_counted_in_its_unit_for_every_spelling() {
        for (short, names) in UNIT_NAMES {
            let (_, unit_ns) = DURATION_UNITS.iter().find(|(name, _)| *name == short).unwrap();
            for name in names.iter().chain([&short]) {
                for text in [format!("-5{name}"), format!(" - 5  {} ", name.to_uppercase())] {
                    assert_eq!(ago_ns("k", &text).unwrap(), Some(5 * *unit_ns as u64), "{text}");
                }
                let thousandths = ago_ns("k", &format!("-1.234{name}")).unwrap();
                assert_eq!(thousandths, Some((1234 * unit_ns / 1000) as u64), "{name}");
            }
        }
        for unit in ["weeks", "month", "mss"] {
            let failure = ago_ns("startingOffsets", &format!("-5 {unit}")).unwrap_err();
            assert!(
                failure.text.starts_with("startingOffsets: ") && failure.text.contains(unit),
                "{failure}"
            );
        }
        assert_eq!(ago_ns("k", "-1000").unwrap(), None);
        assert!(ago_ns("k", &format!("-{} days", "9".repeat(400))).is_err());
        assert!(ago_ns("k", "-11575 days").is_err());
    }

    #[test]
    fn sizes_and_durations_have_units() {
        for (text, bytes) in
            [("1", 1), ("64KB", 65_536), ("128m", 128 << 20), ("2G", 2 << 30), ("1.5 kb", 1536)]
        {
            assert_eq!(size("k", text).unwrap(), bytes, "{text}");
        }
        for text in ["many", "-1", "1e3", "nan", "1.", "9999999999TB", &"9".repeat(400), "1.5m x"] {
            assert!(size("k", text).is_err(), "{text}");
        }
        for (text, ns) in [("0", 0), ("30us", 30_000), ("1.5s", 1_500_000_000), ("7d", 604_800_000_000_000)] {
            assert_eq!(duration_ns("k", text).unwrap(), ns, "{text}");
        }
        for text in ["soon", "5", "5 minutes", "-1s", "40000d", &format!("{}s", "9".repeat(400))] {
            assert!(duration_ns("k", text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_that_is_nearly_known_is_suggested() {
        let known = ["startingOffsets", "topics", "topicPattern", "filter"];
        let close = |name| closest(name, known.into_iter());
        assert_eq!(close("startingofsets"), Some("startingOffsets"));
        assert_eq!(close("topicz"), Some("topics"));
        assert_eq!(close("nothing like these"), None);
    }
}
