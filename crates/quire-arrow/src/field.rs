//! Typed values out of the data of a message.
//!
//! A value that is not of the type of its column is NULL, as Spark's `from_json` has it: text is never read as a number, a number that does
//! not fit is not wrapped. Of an array the first element counts.

use std::ops::RangeInclusive;

use arrow_schema::{DataType, TimeUnit};
use chrono::{DateTime, NaiveDate, NaiveDateTime};
use quire_expression::message_type::{Number, Value as Read};

use crate::spec::FieldType;

/// A value of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Bool(bool),
    /// Any whole number; of a timestamp microseconds, of a date days.
    Int(i64),
    Float(f64),
    Text(&'a str),
}

impl FieldType {
    /// The type of an Arrow array of it.
    pub(crate) fn data_type(self) -> DataType {
        match self {
            FieldType::Boolean => DataType::Boolean,
            FieldType::Byte => DataType::Int8,
            FieldType::Short => DataType::Int16,
            FieldType::Int => DataType::Int32,
            FieldType::Long => DataType::Int64,
            FieldType::Float => DataType::Float32,
            FieldType::Double => DataType::Float64,
            FieldType::String => DataType::Utf8,
            FieldType::Timestamp => timestamp_type(),
            FieldType::Date => DataType::Date32,
        }
    }

    /// The value as one of this type; `room` holds text that has to be made.
    pub(crate) fn convert<'a>(self, read: Read<'a>, room: &'a mut String) -> Option<Value<'a>> {
        let read = read.scalar();
        let whole = |lowest: i64, highest: i64| {
            integer(read).filter(|value| (lowest..=highest).contains(value)).map(Value::Int)
        };
        match self {
            FieldType::Boolean => match read {
                Read::Boolean(value) => Some(Value::Bool(value)),
                _ => None,
            },
            FieldType::Byte => whole(i64::from(i8::MIN), i64::from(i8::MAX)),
            FieldType::Short => whole(i64::from(i16::MIN), i64::from(i16::MAX)),
            FieldType::Int => whole(i64::from(i32::MIN), i64::from(i32::MAX)),
            FieldType::Long => whole(i64::MIN, i64::MAX),
            FieldType::Float => number(read).map(|value| Value::Float(f64::from(value as f32))),
            FieldType::Double => number(read).map(Value::Float),
            FieldType::String => text(read, room).map(Value::Text),
            FieldType::Timestamp => match read {
                Read::Text(text) => timestamp_us(text).map(Value::Int),
                Read::Number(Number::Integer(seconds), _) => seconds.checked_mul(1_000_000).and_then(instant),
                // A number beyond the range of the integer is at its end, which is no instant.
                Read::Number(number, _) => instant((number.as_f64() * 1e6) as i64),
                _ => None,
            },
            FieldType::Date => match read {
                Read::Text(text) => date(text).map(Value::Int),
                _ => None,
            },
        }
    }
}

/// Microseconds in UTC, as Spark has them.
pub(crate) fn timestamp_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// Microseconds of the years 1 to 9999: Spark and Python have no others.
const INSTANTS_US: RangeInclusive<i64> = -62_135_596_800_000_000..=253_402_300_799_999_999;

fn instant(us: i64) -> Option<Value<'static>> {
    INSTANTS_US.contains(&us).then_some(Value::Int(us))
}

#[inline]
pub(crate) fn number(read: Read<'_>) -> Option<f64> {
    match read.scalar() {
        Read::Number(number, _) => Some(number.as_f64()),
        _ => None,
    }
}

#[inline]
pub(crate) fn integer(read: Read<'_>) -> Option<i64> {
    match read.scalar() {
        Read::Number(Number::Integer(value), _) => Some(value),
        _ => None,
    }
}

#[inline]
pub(crate) fn text<'a>(read: Read<'a>, room: &'a mut String) -> Option<&'a str> {
    match read.scalar() {
        // A number is the text that it had in the message.
        Read::Text(text) | Read::Number(_, text @ [_, ..]) => utf8(text),
        other => made_text(other, room),
    }
}

fn made_text<'a>(read: Read<'_>, room: &'a mut String) -> Option<&'a str> {
    room.clear();
    match read {
        Read::Boolean(value) => room.push_str(if value { "true" } else { "false" }),
        Read::Number(number, _) => {
            let mut bytes = Vec::new();
            number.write_text(&mut bytes).ok()?;
            room.push_str(std::str::from_utf8(&bytes).ok()?);
        }
        Read::Text(_) | Read::Null | Read::Compound(_) | Read::Array(_) => return None,
    }
    Some(room)
}

/// The data as text, if it is. Most is ASCII, which is checked several times as fast.
#[inline]
pub(crate) fn utf8(data: &[u8]) -> Option<&str> {
    // The standard library looks at 64 bytes at once, and at each of those that are left.
    let (fast, end) = (data.len() & !63, data.len().saturating_sub(64));
    if data[..fast].is_ascii() && data[end..].is_ascii() {
        // SAFETY: the two parts are all of it, and ASCII is UTF-8.
        #[allow(unsafe_code)]
        return Some(unsafe { std::str::from_utf8_unchecked(data) });
    }
    std::str::from_utf8(data).ok()
}

/// `YYYY-MM-DD`, alone or with `[T ]HH:MM:SS[.fraction]` and perhaps a zone; without one it is UTC.
fn timestamp_us(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(instant) = DateTime::parse_from_rfc3339(text) {
        return Some(instant.timestamp_micros());
    }
    let local = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"];
    local
        .iter()
        .find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())
        .or_else(|| parse_date(text)?.and_hms_opt(0, 0, 0))
        .map(|instant| instant.and_utc().timestamp_micros())
}

/// The date at the beginning of `YYYY-MM-DD` or of a timestamp.
fn date(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let day = parse_date(text.split(['T', ' ']).next()?)?;
    Some(day.signed_duration_since(NaiveDate::default()).num_days())
}

fn parse_date(text: &str) -> Option<NaiveDate> {
    NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(kind: FieldType, read: Read<'_>) -> Option<String> {
        let mut room = String::new();
        kind.convert(read, &mut room).map(|value| format!("{value:?}"))
    }

    #[test]
    fn data_is_text_exactly_when_it_is_utf8() {
        for size in 0..200 {
            let ascii = vec![b'x'; size];
            assert_eq!(utf8(&ascii), std::str::from_utf8(&ascii).ok());
            for at in 0..size {
                let mut data = ascii.clone();
                data[at] = 0xc3;
                assert_eq!(utf8(&data), None, "{at} of {size}");
                if let Some(second) = data.get_mut(at + 1) {
                    *second = 0xa4;
                    assert_eq!(utf8(&data), std::str::from_utf8(&data).ok(), "{at} of {size}");
                    assert!(utf8(&data).is_some());
                }
            }
        }
    }

    #[test]
    fn a_value_of_another_type_is_null() {
        assert_eq!(convert(FieldType::Long, Read::Text(b"12")), None);
        assert_eq!(convert(FieldType::Long, Read::float(2.5)), None);
        assert_eq!(convert(FieldType::Byte, Read::integer(128)), None);
        assert_eq!(convert(FieldType::Byte, Read::integer(-128)).unwrap(), "Int(-128)");
        assert_eq!(convert(FieldType::Boolean, Read::integer(1)), None);
        assert_eq!(convert(FieldType::Double, Read::integer(3)).unwrap(), "Float(3.0)");
        assert_eq!(convert(FieldType::String, Read::Compound(b"{}")), None);
        assert_eq!(
            convert(FieldType::String, Read::Number(Number::Float(1.5), b"1.50")).unwrap(),
            "Text(\"1.50\")"
        );
        assert_eq!(convert(FieldType::String, Read::integer(-3)).unwrap(), "Text(\"-3\")");
        assert_eq!(convert(FieldType::Long, Read::Array(&[Read::integer(7)])).unwrap(), "Int(7)");
    }

    #[test]
    fn a_number_is_a_time_of_the_years_that_people_count() {
        let at = |read| convert(FieldType::Timestamp, read);
        assert_eq!(at(Read::integer(1)).unwrap(), "Int(1000000)");
        assert_eq!(at(Read::float(-0.5)).unwrap(), "Int(-500000)");
        assert_eq!(at(Read::integer(253_402_300_799)).unwrap(), "Int(253402300799000000)");
        for beyond in [Read::integer(253_402_300_800), Read::integer(i64::MIN), Read::float(1e300)] {
            assert_eq!(at(beyond), None);
        }
    }

    #[test]
    fn times_are_read_in_the_forms_that_people_write() {
        let us = 1_357_016_400_000_000i64;
        for text in
            ["2013-01-01T05:00:00Z", "2013-01-01 05:00:00", "2013-01-01T06:00:00+01:00", "2013-01-01T05:00"]
        {
            assert_eq!(timestamp_us(text.as_bytes()), Some(us), "{text}");
        }
        assert_eq!(timestamp_us(b"2013-01-01T05:00:00.000001Z"), Some(us + 1));
        assert_eq!(timestamp_us(b"yesterday"), None);
        assert_eq!(date(b"1970-01-03"), Some(2));
        assert_eq!(date(b"2013-01-01T05:00:00Z"), Some(us / 86_400_000_000));
        assert_eq!(date(b"2013-02-30"), None);
    }
}
