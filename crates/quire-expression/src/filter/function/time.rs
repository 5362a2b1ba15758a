//! Functions on dates and times. A time is a float, the seconds since 1970 UTC; the time zone is
//! UTC throughout.

use std::io::Write;

use quire_types::Timestamp;

use crate::filter::evaluate::Evaluation;
use crate::filter::node::Node;
use crate::message_type::{TextBuilder, Value};

/// The most bytes that STRFTIME writes. The rest is cut off.
const FORMATTED_SIZE_MAX: usize = 128;

/// The times that have a date with a year from 0 to 9999, in seconds.
const SECONDS: std::ops::Range<f64> = -62_167_219_200.0..253_402_300_800.0;

const DAY_S: i64 = 86_400;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// One value for the whole evaluation, in steps of a microsecond.
pub fn unix_timestamp<'a>(evaluation: &Evaluation<'a>, _arguments: &'a [Node]) -> Value<'a> {
    Value::float(seconds(evaluation.message.now))
}

/// The format comes first, as in the C library.
pub fn strftime<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let (Some(format), Some(number)) = (evaluation.text(&arguments[0]), evaluation.number(&arguments[1]))
    else {
        return Value::Null;
    };
    let Some(moment) = Moment::at(number.as_f64()) else { return Value::Null };
    let mut text = evaluation.arena.builder();
    moment.format(format, &mut text);
    text.bytes().map_or(Value::Null, |text| Value::text(&text[..text.len().min(FORMATTED_SIZE_MAX)]))
}

/// The text comes first, as in the C library. All of it must match the format.
pub fn strptime<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let (Some(text), Some(format)) = (evaluation.text(&arguments[0]), evaluation.text(&arguments[1])) else {
        return Value::Null;
    };
    let mut parts = Parts::default();
    match parts.parse(text, format) {
        Some(b"") => parts.seconds().map_or(Value::Null, Value::float),
        _ => Value::Null,
    }
}

/// Seconds since 1970 with microseconds.
pub(super) fn seconds(time: Timestamp) -> f64 {
    (time.0 / 1_000) as f64 / 1e6
}

/// A date and a time of day.
struct Moment {
    seconds: i64,
    microsecond: i64,
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    /// From 0, Sunday.
    weekday: i64,
    /// From 0.
    yearday: i64,
}

impl Moment {
    fn at(time: f64) -> Option<Moment> {
        if !SECONDS.contains(&time) {
            return None;
        }
        let microseconds = (time * 1e6).round() as i64;
        let seconds = microseconds.div_euclid(1_000_000);
        let days = seconds.div_euclid(DAY_S);
        let (year, month, day) = date_of(days);
        let of_day = seconds.rem_euclid(DAY_S);
        Some(Moment {
            seconds,
            microsecond: microseconds.rem_euclid(1_000_000),
            year,
            month,
            day,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
            weekday: (days + 4).rem_euclid(7),
            yearday: days - days_of(year, 1, 1),
        })
    }

    fn format(&self, format: &[u8], text: &mut TextBuilder<'_>) {
        let mut rest = format;
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            if *byte != b'%' {
                text.push(&[*byte]);
                continue;
            }
            if let Some(after) = rest.strip_prefix(b"03f") {
                rest = after;
                self.write(text, format_args!("{:03}", self.microsecond / 1000));
                continue;
            }
            match rest.split_first() {
                Some((letter, after)) => {
                    rest = after;
                    self.specifier(*letter, text);
                }
                None => text.push(b"%"),
            }
            // A longer result is cut off in any case, and a message may contain a format of
            // megabytes.
            if text.bytes_mut().len() > FORMATTED_SIZE_MAX {
                return;
            }
        }
    }

    fn specifier(&self, letter: u8, text: &mut TextBuilder<'_>) {
        let hour_12 = (self.hour + 11) % 12 + 1;
        let (iso_year, iso_week) = self.iso_week();
        match letter {
            b'a' => text.push(&DAYS[self.weekday as usize].as_bytes()[..3]),
            b'A' => text.push(DAYS[self.weekday as usize].as_bytes()),
            b'b' | b'h' => text.push(&MONTHS[self.month as usize - 1].as_bytes()[..3]),
            b'B' => text.push(MONTHS[self.month as usize - 1].as_bytes()),
            b'c' => self.format(b"%a %b %e %H:%M:%S %Y", text),
            b'C' => self.write(text, format_args!("{:02}", self.year / 100)),
            b'd' => self.write(text, format_args!("{:02}", self.day)),
            b'D' | b'x' => self.format(b"%m/%d/%y", text),
            b'e' => self.write(text, format_args!("{:2}", self.day)),
            b'f' => self.write(text, format_args!("{:06}", self.microsecond)),
            b'F' => self.format(b"%Y-%m-%d", text),
            b'g' => self.write(text, format_args!("{:02}", iso_year.rem_euclid(100))),
            b'G' => self.write(text, format_args!("{iso_year:04}")),
            b'H' => self.write(text, format_args!("{:02}", self.hour)),
            b'I' => self.write(text, format_args!("{hour_12:02}")),
            b'j' => self.write(text, format_args!("{:03}", self.yearday + 1)),
            b'k' => self.write(text, format_args!("{:2}", self.hour)),
            b'l' => self.write(text, format_args!("{hour_12:2}")),
            b'm' => self.write(text, format_args!("{:02}", self.month)),
            b'M' => self.write(text, format_args!("{:02}", self.minute)),
            b'n' => text.push(b"\n"),
            b'p' => text.push(if self.hour < 12 { b"AM" } else { b"PM" }),
            b'P' => text.push(if self.hour < 12 { b"am" } else { b"pm" }),
            b'r' => self.format(b"%I:%M:%S %p", text),
            b'R' => self.format(b"%H:%M", text),
            b's' => self.write(text, format_args!("{}", self.seconds)),
            b'S' => self.write(text, format_args!("{:02}", self.second)),
            b't' => text.push(b"\t"),
            b'T' | b'X' => self.format(b"%H:%M:%S", text),
            b'u' => self.write(text, format_args!("{}", (self.weekday + 6) % 7 + 1)),
            b'U' => self.write(text, format_args!("{:02}", (self.yearday + 7 - self.weekday) / 7)),
            b'V' => self.write(text, format_args!("{iso_week:02}")),
            b'w' => self.write(text, format_args!("{}", self.weekday)),
            b'W' => self.write(text, format_args!("{:02}", (self.yearday + 7 - (self.weekday + 6) % 7) / 7)),
            b'y' => self.write(text, format_args!("{:02}", self.year % 100)),
            b'Y' => self.write(text, format_args!("{:04}", self.year)),
            b'z' => text.push(b"+0000"),
            b'Z' => text.push(b"UTC"),
            b'%' => text.push(b"%"),
            other => text.push(&[b'%', other]),
        }
    }

    fn write(&self, text: &mut TextBuilder<'_>, arguments: std::fmt::Arguments<'_>) {
        // Writing to memory does not fail: what is too large is NULL.
        let _ = text.write_fmt(arguments);
    }

    /// The year and number of the ISO 8601 week: the one that holds this week's Thursday.
    fn iso_week(&self) -> (i64, i64) {
        let thursday = days_of(self.year, 1, 1) + self.yearday + 3 - (self.weekday + 6) % 7;
        let (year, ..) = date_of(thursday);
        (year, (thursday - days_of(year, 1, 1)) / 7 + 1)
    }
}

/// The parts that STRPTIME has read so far.
struct Parts {
    year: i64,
    month: i64,
    day: i64,
    yearday: Option<i64>,
    hour: i64,
    hour_12: Option<i64>,
    afternoon: bool,
    minute: i64,
    second: i64,
    microsecond: i64,
    zone_s: i64,
    epoch_s: Option<i64>,
}

impl Default for Parts {
    fn default() -> Self {
        Parts {
            year: 1970,
            month: 1,
            day: 1,
            yearday: None,
            hour: 0,
            hour_12: None,
            afternoon: false,
            minute: 0,
            second: 0,
            microsecond: 0,
            zone_s: 0,
            epoch_s: None,
        }
    }
}

impl Parts {
    /// Parses the text that `format` describes at the front of `text`, and returns the rest. `None`
    /// when `text` does not match.
    fn parse<'t>(&mut self, mut text: &'t [u8], mut format: &[u8]) -> Option<&'t [u8]> {
        while let Some((byte, after)) = format.split_first() {
            format = after;
            if byte.is_ascii_whitespace() {
                text = text.trim_ascii_start();
            } else if *byte != b'%' {
                text = text.strip_prefix(std::slice::from_ref(byte))?;
            } else if let Some(after) = format.strip_prefix(b"03f") {
                format = after;
                text = self.fraction(text, 3)?;
            } else {
                let (letter, after) = format.split_first()?;
                format = after;
                text = self.specifier(*letter, text)?;
            }
        }
        Some(text)
    }

    fn specifier<'t>(&mut self, letter: u8, text: &'t [u8]) -> Option<&'t [u8]> {
        match letter {
            b'a' | b'A' => name(text, &DAYS).map(|(_, rest)| rest),
            b'b' | b'B' | b'h' => {
                let (index, rest) = name(text, &MONTHS)?;
                self.month = index as i64 + 1;
                Some(rest)
            }
            b'd' | b'e' => number(text.trim_ascii_start(), 2, 1..=31, &mut self.day),
            b'D' | b'x' => self.parse(text, b"%m/%d/%y"),
            b'f' => self.fraction(text, 6),
            b'F' => self.parse(text, b"%Y-%m-%d"),
            b'H' | b'k' => {
                self.hour_12 = None;
                number(text.trim_ascii_start(), 2, 0..=23, &mut self.hour)
            }
            b'I' | b'l' => number(text.trim_ascii_start(), 2, 1..=12, self.hour_12.insert(12)),
            b'j' => number(text, 3, 1..=366, self.yearday.insert(1)),
            b'm' => number(text, 2, 1..=12, &mut self.month),
            b'M' => number(text, 2, 0..=59, &mut self.minute),
            b'n' | b't' => Some(text.trim_ascii_start()),
            b'p' | b'P' => {
                let (index, rest) = name(text, &["AM", "PM"])?;
                self.afternoon = index == 1;
                Some(rest)
            }
            b'r' => self.parse(text, b"%I:%M:%S %p"),
            b'R' => self.parse(text, b"%H:%M"),
            b's' => {
                let negative = text.starts_with(b"-");
                let rest = text.strip_prefix(b"-").unwrap_or(text);
                let seconds = self.epoch_s.insert(0);
                let rest = number(rest, 12, 0..=i64::MAX, seconds)?;
                *seconds *= if negative { -1 } else { 1 };
                Some(rest)
            }
            // 60 is a leap second.
            b'S' => number(text, 2, 0..=60, &mut self.second),
            b'T' | b'X' => self.parse(text, b"%H:%M:%S"),
            b'y' => {
                let rest = number(text, 2, 0..=99, &mut self.year)?;
                self.year += if self.year < 69 { 2000 } else { 1900 };
                Some(rest)
            }
            b'Y' => number(text, 4, 0..=9999, &mut self.year),
            b'z' => self.zone(text),
            b'Z' => name(text, &["UTC", "GMT", "Z"]).map(|(_, rest)| rest),
            b'%' => text.strip_prefix(b"%"),
            _ => None,
        }
    }

    /// Up to `digits` digits of a fraction of a second.
    fn fraction<'t>(&mut self, text: &'t [u8], digits: usize) -> Option<&'t [u8]> {
        let rest = number(text, digits, 0..=999_999, &mut self.microsecond)?;
        self.microsecond *= 10_i64.pow(6 - (text.len() - rest.len()) as u32);
        Some(rest)
    }

    /// `Z`, `+hh`, `+hhmm` or `+hh:mm`.
    fn zone<'t>(&mut self, text: &'t [u8]) -> Option<&'t [u8]> {
        if let Some(rest) = text.strip_prefix(b"Z") {
            return Some(rest);
        }
        let (sign, rest) = match text.split_first()? {
            (b'+', rest) => (1, rest),
            (b'-', rest) => (-1, rest),
            _ => return None,
        };
        let (mut hours, mut minutes) = (0, 0);
        let rest = number(rest, 2, 0..=14, &mut hours)?;
        let after_colon = rest.strip_prefix(b":").unwrap_or(rest);
        let rest = number(after_colon, 2, 0..=59, &mut minutes).unwrap_or(rest);
        self.zone_s = sign * (hours * 3600 + minutes * 60);
        Some(rest)
    }

    /// Seconds since 1970; `None` for a date that does not exist.
    fn seconds(&self) -> Option<f64> {
        let fraction = self.microsecond as f64 / 1e6;
        if let Some(seconds) = self.epoch_s {
            return Some(seconds as f64 + fraction);
        }
        let days = match self.yearday {
            Some(yearday) => days_of(self.year, 1, 1) + yearday - 1,
            None => days_of(self.year, self.month, self.day),
        };
        let (year, _, day) = date_of(days);
        if year != self.year || (self.yearday.is_none() && day != self.day) {
            return None;
        }
        let hour = self.hour_12.map_or(self.hour, |hour| hour % 12 + if self.afternoon { 12 } else { 0 });
        let seconds = days * DAY_S + hour * 3600 + self.minute * 60 + self.second - self.zone_s;
        Some(seconds as f64 + fraction)
    }
}

/// Parses a number of one to `digits` digits within `range`.
fn number<'t>(
    text: &'t [u8],
    digits: usize,
    range: std::ops::RangeInclusive<i64>,
    number: &mut i64,
) -> Option<&'t [u8]> {
    let count = text.iter().take(digits).take_while(|byte| byte.is_ascii_digit()).count();
    let (taken, rest) = text.split_at(count);
    *number = taken.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    (count > 0 && range.contains(number)).then_some(rest)
}

/// Parses one of `names`, whole or by its first three letters, in any case. Returns its index.
fn name<'t>(text: &'t [u8], names: &[&str]) -> Option<(usize, &'t [u8])> {
    let starts = |name: &[u8]| text.len() >= name.len() && text[..name.len()].eq_ignore_ascii_case(name);
    names.iter().enumerate().find_map(|(index, name)| {
        let (whole, short) = (name.as_bytes(), &name.as_bytes()[..name.len().min(3)]);
        [whole, short].into_iter().find(|name| starts(name)).map(|name| (index, &text[name.len()..]))
    })
}

/// Days since 1970 of a date of the Gregorian calendar. Years begin in March here, so that the leap
/// day is the last.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day of a number of days since 1970.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}
