//! Typed values from the data of a message.
//!
//! A value that is not of the type of its column is NULL, as with `from_json` of Spark. Text is
//! never read as a number, and a number that does not fit is not wrapped. For an array, the first
//! element counts.

use std::ops::RangeInclusive;

use arrow_schema::{DataType, TimeUnit};
use quire_expression::message_type::{Number, Value as Read};

use crate::iso_time::{date_days, time_ns};
use crate::spec::FieldType;

/// A value of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Bool(bool),
    /// Any whole number. For a timestamp, microseconds; for a date, days.
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

    /// The value with this type. `room` gets text that is computed.
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
                Read::Text(text) => timestamp_us(text),
                Read::Number(Number::Integer(seconds), _) => seconds.checked_mul(1_000_000).and_then(instant),
                Read::Number(number, _) if number.is_nan() => None,
                // A number outside of the range of the integer becomes its limit, which is not an
                // instant.
                Read::Number(number, _) => instant((number.as_f64() * 1e6).round() as i64),
                _ => None,
            },
            FieldType::Date => match read {
                Read::Text(text) => date(text),
                _ => None,
            },
        }
    }
}

/// Microseconds in UTC, as in Spark.
pub(crate) fn timestamp_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// Microseconds of the years 1 to 9999: Spark and Python have no others. `datetime.fromtimestamp`,
/// with which PySpark makes the rows of `collect`, fails for the first day of year 1, which
/// programs write for "no time".
const INSTANTS_US: RangeInclusive<i64> = -62_135_510_400_000_000..=253_402_300_799_999_999;

/// Days of the same years.
const DAYS: RangeInclusive<i64> = -719_162..=2_932_896;

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
        // A number is its text in the message.
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
    // The standard library checks 64 bytes at once, and the remaining ones singly.
    let (fast, end) = (data.len() & !63, data.len().saturating_sub(64));
    if data[..fast].is_ascii() && data[end..].is_ascii() {
        // SAFETY: the two parts are all of it, and ASCII is UTF-8.
        #[allow(unsafe_code)]
        return Some(unsafe { std::str::from_utf8_unchecked(data) });
    }
    std::str::from_utf8(data).ok()
}

/// An ISO 8601 time, in microseconds.
fn timestamp_us(text: &[u8]) -> Option<Value<'static>> {
    let ns = time_ns(std::str::from_utf8(text).ok()?)?;
    instant(i64::try_from(ns.div_euclid(1000)).ok()?)
}

/// The date of an ISO 8601 date or time.
fn date(text: &[u8]) -> Option<Value<'static>> {
    let days = date_days(std::str::from_utf8(text).ok()?)?;
    DAYS.contains(&days).then_some(Value::Int(days))
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
        assert_eq!(at(Read::float(1_700_000_000.123_457)).unwrap(), "Int(1700000000123457)");
        let beyond = [Read::integer(253_402_300_800), Read::integer(i64::MIN), Read::float(1e300)];
        for beyond in beyond.into_iter().chain([Read::NAN, Read::float(f64::NEG_INFINITY)]) {
            assert_eq!(at(beyond), None);
        }
    }

    #[test]
    fn times_are_read_in_the_forms_of_bookmarks() {
        let at = |text: &str| convert(FieldType::Timestamp, Read::Text(text.as_bytes()));
        for text in [
            "2013-01-01T05:00:00Z",
            "2013-01-01 05:00:00",
            "2013-01-01T06:00:00+01:00",
            "2013-01-01T07:00:00+0200",
            "2013-01-01T07:00:00+02",
            "20130101T050000Z",
            "2013-01-01T05:00",
            "2013-W01-2T05:00",
            "20130101-05:00:00",
        ] {
            assert_eq!(at(text).as_deref(), Some("Int(1357016400000000)"), "{text}");
        }
        assert_eq!(at("2013-01-01T05:00:00.000001999Z").unwrap(), "Int(1357016400000001)");
        assert_eq!(at("1969-12-31T23:59:59.9999999Z").unwrap(), "Int(-1)");
        assert_eq!(at("20130101").unwrap(), "Int(1356998400000000)");
        for text in ["yesterday", "2013", "20131301", "2013010105"] {
            assert_eq!(at(text), None, "{text}");
        }
        let day = |text: &str| convert(FieldType::Date, Read::Text(text.as_bytes()));
        assert_eq!(day("2013-01-01T23:00:00-05:00").unwrap(), "Int(15706)");
        assert_eq!(day("2013-02-30"), None);
    }

    #[test]
    fn a_time_that_no_calendar_of_spark_and_python_has_is_null() {
        for text in ["0000-01-01", "10000-01-01", "+12345-01-01", "-0001-01-01"] {
            for kind in [FieldType::Timestamp, FieldType::Date] {
                assert_eq!(convert(kind, Read::Text(text.as_bytes())), None, "{text}");
            }
        }
        for text in ["0001-01-01T23:59:59", "9999-12-31T23:59:59-00:01", "9999-W52-7T00:00:00"] {
            assert_eq!(convert(FieldType::Timestamp, Read::Text(text.as_bytes())), None, "{text}");
        }
        assert_eq!(convert(FieldType::Date, Read::Text(b"9999-W52-7")), None);
    }
}
