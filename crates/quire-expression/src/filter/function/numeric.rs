//! Functions on numbers, coordinates, and checksums.

use std::cmp::Ordering;

use super::array::best;
use crate::filter::evaluate::Evaluation;
use crate::filter::node::Node;
use crate::message_type::{Number, Value};

/// The mean radius of the earth, in metres.
const EARTH_RADIUS_M: f64 = 6_371_008.8;

/// The checksum of zip and Ethernet.
const CRC_32: crc::Crc<u32, crc::Table<16>> = crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISO_HDLC);

/// The checksum of xz.
const CRC_64: crc::Crc<u64, crc::Table<16>> = crc::Crc::<u64, crc::Table<16>>::new(&crc::CRC_64_XZ);

pub fn abs<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    whole_or(evaluation, arguments, i128::abs, f64::abs)
}

pub fn ceiling<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    whole_or(evaluation, arguments, |whole| whole, f64::ceil)
}

pub fn floor<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    whole_or(evaluation, arguments, |whole| whole, f64::floor)
}

pub fn trunc<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    whole_or(evaluation, arguments, |whole| whole, f64::trunc)
}

/// NaN stays NaN, which has no sign.
pub fn sign<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let sign = |number: f64| if number == 0.0 || number.is_nan() { number } else { number.signum() };
    whole_or(evaluation, arguments, i128::signum, sign)
}

/// Rounds half away from zero. Negative places round before the decimal point.
pub fn round<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let Some(number) = evaluation.number(&arguments[0]) else { return Value::Null };
    let places = match arguments.get(1) {
        None => 0.0,
        Some(places) => match evaluation.number(places) {
            None => return Value::Null,
            Some(places) if places.is_nan() => return Value::NAN,
            Some(places) => places.as_f64().trunc().clamp(-400.0, 400.0),
        },
    };
    match number.as_i128() {
        Some(whole) if places >= 0.0 => Value::number(Number::of_i128(whole)),
        // 64-bit integers have at most 20 digits.
        Some(_) if places < -20.0 => Value::integer(0),
        Some(whole) => {
            let unit = 10_i128.pow(-places as u32);
            Value::number(Number::of_i128((whole + whole.signum() * (unit / 2)) / unit * unit))
        }
        None => {
            let (number, scale) = (number.as_f64(), 10_f64.powi(places as i32));
            let rounded = (number * scale).round() / scale;
            // A float has no further digits to round.
            Value::float(if rounded.is_finite() { rounded } else { number })
        }
    }
}

pub fn exp<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    float(evaluation, arguments, f64::exp)
}

pub fn ln<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    float(evaluation, arguments, f64::ln)
}

pub fn log2<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    float(evaluation, arguments, f64::log2)
}

pub fn log10<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    float(evaluation, arguments, f64::log10)
}

pub fn sqrt<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    float(evaluation, arguments, f64::sqrt)
}

/// Exact for integers while the result fits 64 bits.
pub fn power<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let (Some(base), Some(exponent)) = (evaluation.number(&arguments[0]), evaluation.number(&arguments[1]))
    else {
        return Value::Null;
    };
    let exact = base.as_i128().zip(exponent.as_i128().and_then(|exponent| u32::try_from(exponent).ok()));
    match exact.and_then(|(base, exponent)| base.checked_pow(exponent)) {
        Some(exact) => Value::number(Number::of_i128(exact)),
        None => Value::float(base.as_f64().powf(exponent.as_f64())),
    }
}

pub fn least<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    best(arguments.iter().map(|argument| evaluation.value(argument)), Ordering::Less)
}

pub fn greatest<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    best(arguments.iter().map(|argument| evaluation.value(argument)), Ordering::Greater)
}

/// Which of `n` equal parts between `low` and `high` holds `x`: 0 before them, `n + 1` after them.
/// The bounds may fall instead of rise.
pub fn width_bucket<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let Some([x, low, high, count]) = four(evaluation, arguments) else { return Value::Null };
    if [x, low, high, count].iter().any(|number| number.is_nan()) {
        return Value::NAN;
    }
    let count = count.trunc();
    if low == high || !(1.0..1e15).contains(&count) {
        return Value::Null;
    }
    let place = (x - low) / (high - low);
    let bucket = if place < 0.0 {
        0.0
    } else if place >= 1.0 {
        count + 1.0
    } else {
        (place * count).floor().min(count - 1.0) + 1.0
    };
    if bucket.is_nan() { Value::NAN } else { Value::integer(bucket as i64) }
}

/// The great-circle distance of two places in degrees, in metres (haversine).
pub fn geo_distance<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let Some(degrees) = four(evaluation, arguments) else { return Value::Null };
    let [latitude_1, longitude_1, latitude_2, longitude_2] = degrees.map(f64::to_radians);
    let half = |from: f64, to: f64| ((to - from) / 2.0).sin().powi(2);
    let chord =
        half(latitude_1, latitude_2) + latitude_1.cos() * latitude_2.cos() * half(longitude_1, longitude_2);
    // Rounding errors can make the value of antipodes slightly greater than 1. NaN must stay NaN.
    let chord = if chord > 1.0 { 1.0 } else { chord };
    Value::float(2.0 * EARTH_RADIUS_M * chord.sqrt().asin())
}

pub fn crc32<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let Some(text) = evaluation.text(&arguments[0]) else { return Value::Null };
    Value::integer(CRC_32.checksum(text).into())
}

pub fn crc64<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Value<'a> {
    let Some(text) = evaluation.text(&arguments[0]) else { return Value::Null };
    Value::number(Number::of_u64(CRC_64.checksum(text)))
}

/// Exactly on an integer, else on the float.
fn whole_or<'a>(
    evaluation: &Evaluation<'a>,
    arguments: &'a [Node],
    whole: fn(i128) -> i128,
    float: fn(f64) -> f64,
) -> Value<'a> {
    let Some(number) = evaluation.number(&arguments[0]) else { return Value::Null };
    Value::number(match number.as_i128() {
        Some(exact) => Number::of_i128(whole(exact)),
        None => Number::Float(float(number.as_f64())),
    })
}

fn float<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node], function: fn(f64) -> f64) -> Value<'a> {
    evaluation.number(&arguments[0]).map_or(Value::Null, |number| Value::float(function(number.as_f64())))
}

/// Four numbers; `None` when any is NULL.
fn four<'a>(evaluation: &Evaluation<'a>, arguments: &'a [Node]) -> Option<[f64; 4]> {
    let mut numbers = [0.0; 4];
    for (number, argument) in numbers.iter_mut().zip(arguments) {
        *number = evaluation.number(argument)?.as_f64();
    }
    Some(numbers)
}
