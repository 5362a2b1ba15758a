//! Texts as people write them: numbers, durations, sizes.

use crate::failure::{Failure, Outcome};

/// The limit of every duration: 10^9 seconds.
const DURATION_END_NS: u128 = 1_000_000_000 * NS_PER_S;

const NS_PER_S: u128 = 1_000_000_000;

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

/// The text in quotes; for a long text, its beginning.
pub(crate) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    shown = shown.replace("\\'", "'").replace("\\\"", "\"");
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    format!("'{shown}'")
}

/// A URL with `***` in the place of its password, which ends at the last `@`.
pub(crate) fn without_password(url: &str) -> String {
    let is_scheme =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-_".contains(&byte));
    let user = url.find("://").filter(|end| is_scheme(&url[..*end])).map_or(0, |end| end + 3);
    match (url[user..].find(':'), url.rfind('@')) {
        (Some(colon), Some(at)) if user + colon < at => format!("{}:***{}", &url[..user + colon], &url[at..]),
        _ => url.to_owned(),
    }
}

/// The text with each `%` and two hexadecimal digits decoded to a byte. `None` when that is not
/// UTF-8.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let is_hexadecimal = |digits: &&str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        match digits.filter(is_hexadecimal).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Parses a whole number. A number outside of the type becomes the nearest one.
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

/// Nanoseconds of a number with a unit; `None` from [`DURATION_END_NS`] on.
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

/// Nanoseconds of a time back from now, such as `-10 minutes`; `None` when the text is not of this
/// form.
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

/// The name that is most similar to another one, if one is similar enough.
pub(crate) fn closest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.map(|each| (distance(name, &each.to_lowercase()), each));
    let (distance, found) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= (found.len().max(name.len()) / 3).max(1)).then_some(found)
}

/// The number of characters to insert, remove or replace.
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
