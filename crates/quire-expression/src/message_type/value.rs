//! Values that an identifier names in a message, or that an expression computes.
//!
//! A value borrows its bytes from the message, from the filter or from the [`Arena`](super::Arena)
//! of the evaluation, and is copied freely. The message format defines the type. In formats of
//! untyped text, the form of the text defines it. The type never limits how the value can be used.

use std::cmp::Ordering;

/// A number in its narrowest exact form.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// Fits a signed 64-bit integer.
    Integer(i64),
    /// Above the signed maximum. Never a value that [`Number::Integer`] could have.
    Unsigned(u64),
    /// Everything else, with infinities and NaN.
    Float(f64),
}

/// A value of the expression language.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Unknown: an absent field, an explicit null, an empty string.
    Null,
    /// True or false.
    Boolean(bool),
    /// A number, with its text in the message. The text is empty when the number was computed or
    /// was binary.
    Number(Number, &'a [u8]),
    /// Bytes, never empty.
    Text(&'a [u8]),
    /// The elements in order.
    Array(&'a [Value<'a>]),
    /// An object, map, document or element: its bytes in the message.
    Compound(&'a [u8]),
}

/// The result of a condition in three-valued logic. NaN counts as unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truth {
    /// The only result that matches.
    True,
    /// It is false.
    False,
    /// It depends on NULL or NaN.
    Unknown,
}

/// Bytes of a decimal number whose digits fit a float exactly: 15 digits and the point.
const SHORT_DECIMAL: usize = 16;

const POWERS_OF_TEN: [f64; SHORT_DECIMAL] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

impl Number {
    /// The number, if all of `text` is one: `[+-]digits[.digits][e[+-]digits]`. `nan`, `inf`,
    /// hexadecimal and surrounding blanks do not make numbers, so that ticker symbols stay text.
    pub fn parse(text: &[u8]) -> Option<Number> {
        let (negative, digits) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        let whole = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if whole == 0 {
            return None;
        }
        if whole == digits.len() {
            return Some(Number::of_digits(negative, digits));
        }
        let mut rest = &digits[whole..];
        if let [b'.', fraction @ ..] = rest {
            rest = after_digits(fraction)?;
            if rest.is_empty() && digits.len() <= SHORT_DECIMAL {
                return Some(Number::of_short_decimal(negative, &digits[..whole], fraction));
            }
        }
        if let [b'e' | b'E', exponent @ ..] = rest {
            let exponent = exponent.strip_prefix(b"+").or(exponent.strip_prefix(b"-")).unwrap_or(exponent);
            rest = after_digits(exponent)?;
        }
        if !rest.is_empty() {
            return None;
        }
        std::str::from_utf8(text).ok()?.parse().ok().map(Number::Float)
    }

    /// The number with these ASCII digits before and after its point. Together they are at most as
    /// many as a float has exactly, and so is the power of ten. The result of one division of two
    /// exact numbers is the nearest float.
    fn of_short_decimal(negative: bool, whole: &[u8], fraction: &[u8]) -> Number {
        let digits = whole.iter().chain(fraction);
        let magnitude = digits.fold(0_u64, |sum, digit| sum * 10 + u64::from(digit - b'0')) as f64;
        let number = magnitude / POWERS_OF_TEN[fraction.len()];
        Number::Float(if negative { -number } else { number })
    }

    /// The integer with these ASCII digits; a float when it is beyond 64 bits.
    fn of_digits(negative: bool, digits: &[u8]) -> Number {
        // 19 digits always fit a u64, so no step of this loop overflows.
        if digits.len() <= 19 {
            let magnitude = digits.iter().fold(0_u64, |sum, digit| sum * 10 + u64::from(digit - b'0'));
            return Number::of_i128(if negative { -i128::from(magnitude) } else { i128::from(magnitude) });
        }
        let significant = &digits[digits.iter().take_while(|digit| **digit == b'0').count()..];
        if significant.len() <= 19 {
            return Number::of_digits(negative, significant);
        }
        if significant.len() <= 38 {
            let magnitude = significant.iter().fold(0_i128, |sum, digit| sum * 10 + i128::from(digit - b'0'));
            return Number::of_i128(if negative { -magnitude } else { magnitude });
        }
        let magnitude: f64 =
            std::str::from_utf8(significant).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::INFINITY);
        Number::Float(if negative { -magnitude } else { magnitude })
    }

    /// The narrowest form of `number`; a float beyond 64 bits.
    pub fn of_i128(number: i128) -> Number {
        if let Ok(number) = i64::try_from(number) {
            Number::Integer(number)
        } else if let Ok(number) = u64::try_from(number) {
            Number::Unsigned(number)
        } else {
            Number::Float(number as f64)
        }
    }

    /// The narrowest form of `number`.
    pub fn of_u64(number: u64) -> Number {
        i64::try_from(number).map_or(Number::Unsigned(number), Number::Integer)
    }

    /// As a float, rounded to the nearest.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Integer(number) => number as f64,
            Number::Unsigned(number) => number as f64,
            Number::Float(number) => number,
        }
    }

    /// Exactly, when it is an integer.
    pub fn as_i128(self) -> Option<i128> {
        match self {
            Number::Integer(number) => Some(number.into()),
            Number::Unsigned(number) => Some(number.into()),
            Number::Float(_) => None,
        }
    }

    /// Whether this is not a number.
    pub fn is_nan(self) -> bool {
        matches!(self, Number::Float(number) if number.is_nan())
    }

    /// The order by value; `None` when either is NaN. An integer is compared with a float as a
    /// float.
    pub fn compare(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Integer(left), Number::Integer(right)) => Some(left.cmp(&right)),
            (Number::Unsigned(left), Number::Unsigned(right)) => Some(left.cmp(&right)),
            (Number::Integer(_), Number::Unsigned(_)) => Some(Ordering::Less),
            (Number::Unsigned(_), Number::Integer(_)) => Some(Ordering::Greater),
            (left, right) => left.as_f64().partial_cmp(&right.as_f64()),
        }
    }

    /// The shortest text that reads back as the same number, into `out`. A zero has no sign,
    /// because -0 and 0 are equal.
    pub fn write_text(self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        match self {
            Number::Integer(number) => write!(out, "{number}"),
            Number::Unsigned(number) => write!(out, "{number}"),
            Number::Float(0.0) => out.write_all(b"0"),
            // Plain digits as long as they stay short; an exponent beyond.
            Number::Float(number) if (1e-5..1e17).contains(&number.abs()) => write!(out, "{number}"),
            Number::Float(number) => write!(out, "{number:e}"),
        }
    }
}

impl<'a> Value<'a> {
    /// Text of a typed format: empty is NULL.
    pub fn text(bytes: &'a [u8]) -> Value<'a> {
        if bytes.is_empty() { Value::Null } else { Value::Text(bytes) }
    }

    /// Text of an untyped format (FIX, NVFIX, XML): a number when all of it reads as one.
    pub fn inferred(bytes: &'a [u8]) -> Value<'a> {
        // Nearly all text fails on its first byte, before the parser is called.
        match bytes.first() {
            None => Value::Null,
            Some(b'0'..=b'9' | b'-' | b'+') => {
                Number::parse(bytes).map_or(Value::Text(bytes), |number| Value::Number(number, bytes))
            }
            Some(_) => Value::Text(bytes),
        }
    }

    /// A computed number.
    pub fn number(number: Number) -> Value<'a> {
        Value::Number(number, b"")
    }

    /// A computed integer.
    pub fn integer(number: i64) -> Value<'a> {
        Value::number(Number::Integer(number))
    }

    /// A computed float.
    pub fn float(number: f64) -> Value<'a> {
        Value::number(Number::Float(number))
    }

    /// A result that is not a number, and not because of a missing value.
    pub const NAN: Value<'static> = Value::Number(Number::Float(f64::NAN), b"");

    /// Whether this is NULL itself.
    pub fn is_null(self) -> bool {
        matches!(self, Value::Null)
    }

    /// The value as a single one. An array becomes its first element, an empty array NULL.
    pub fn scalar(self) -> Value<'a> {
        let mut value = self;
        while let Value::Array(elements) = value {
            value = elements.first().copied().unwrap_or(Value::Null);
        }
        value
    }

    /// As a condition: numbers by being non-zero, text through a number or `true` and `false` in
    /// any case.
    pub fn truth(self) -> Truth {
        match self.scalar() {
            Value::Boolean(value) => Truth::from(value),
            Value::Number(number, _) if number.is_nan() => Truth::Unknown,
            Value::Number(number, _) => Truth::from(number.as_f64() != 0.0),
            Value::Text(text) => match (boolean_text(text), Number::parse(text)) {
                (Some(value), _) => Truth::from(value),
                (None, Some(number)) => Truth::from(number.as_f64() != 0.0),
                (None, None) => Truth::Unknown,
            },
            Value::Null | Value::Array(_) | Value::Compound(_) => Truth::Unknown,
        }
    }

    /// As a number: `None` for NULL and compound values, NaN for text that is not a number.
    pub fn to_number(self) -> Option<Number> {
        match self.scalar() {
            Value::Boolean(value) => Some(Number::Integer(value.into())),
            Value::Number(number, _) => Some(number),
            Value::Text(text) => Some(Number::parse(text).unwrap_or(Number::Float(f64::NAN))),
            Value::Null | Value::Array(_) | Value::Compound(_) => None,
        }
    }
}

impl From<bool> for Truth {
    fn from(value: bool) -> Truth {
        if value { Truth::True } else { Truth::False }
    }
}

impl Truth {
    /// NOT: unknown stays unknown.
    pub fn negate(self) -> Truth {
        match self {
            Truth::True => Truth::False,
            Truth::False => Truth::True,
            Truth::Unknown => Truth::Unknown,
        }
    }

    /// AND: false wins over unknown.
    pub fn and(self, other: Truth) -> Truth {
        match (self, other) {
            (Truth::False, _) | (_, Truth::False) => Truth::False,
            (Truth::True, Truth::True) => Truth::True,
            _ => Truth::Unknown,
        }
    }

    /// OR: true wins over unknown.
    pub fn or(self, other: Truth) -> Truth {
        self.negate().and(other.negate()).negate()
    }

    /// As a value: TRUE, FALSE or NULL.
    pub fn value(self) -> Value<'static> {
        match self {
            Truth::True => Value::Boolean(true),
            Truth::False => Value::Boolean(false),
            Truth::Unknown => Value::Null,
        }
    }
}

/// The Boolean whose name is `text`, in any case.
pub(crate) fn boolean_text(text: &[u8]) -> Option<bool> {
    if text.eq_ignore_ascii_case(b"true") {
        Some(true)
    } else if text.eq_ignore_ascii_case(b"false") {
        Some(false)
    } else {
        None
    }
}

/// The order of two single values, `None` when it is unknown (NULL, NaN, compound).
///
/// Equal types compare in that type, text as bytes. Text is compared with a number as a number if
/// it is one. Otherwise it is greater than any number. A Boolean is 1 or 0, except against the
/// texts `true` and `false`.
pub fn compare(left: Value<'_>, right: Value<'_>) -> Option<Ordering> {
    match (left.scalar(), right.scalar()) {
        (Value::Number(left, _), Value::Number(right, _)) => left.compare(right),
        (Value::Text(left), Value::Text(right)) => Some(left.cmp(right)),
        (Value::Boolean(left), Value::Boolean(right)) => Some(left.cmp(&right)),
        (Value::Number(left, _), Value::Boolean(right)) => left.compare(Number::Integer(right.into())),
        (Value::Boolean(left), Value::Number(right, _)) => Number::Integer(left.into()).compare(right),
        (Value::Number(number, _), Value::Text(text)) => compare_with_text(number, text),
        (Value::Text(text), Value::Number(number, _)) => {
            compare_with_text(number, text).map(Ordering::reverse)
        }
        (Value::Boolean(boolean), Value::Text(text)) => compare_boolean_with_text(boolean, text),
        (Value::Text(text), Value::Boolean(boolean)) => {
            compare_boolean_with_text(boolean, text).map(Ordering::reverse)
        }
        _ => None,
    }
}

fn compare_with_text(number: Number, text: &[u8]) -> Option<Ordering> {
    match Number::parse(text) {
        Some(other) => number.compare(other),
        None if number.is_nan() => None,
        None => Some(Ordering::Less),
    }
}

fn compare_boolean_with_text(boolean: bool, text: &[u8]) -> Option<Ordering> {
    match boolean_text(text) {
        Some(other) => Some(boolean.cmp(&other)),
        None => compare_with_text(Number::Integer(boolean.into()), text),
    }
}

/// The text after one or more digits.
fn after_digits(text: &[u8]) -> Option<&[u8]> {
    match text.iter().take_while(|byte| byte.is_ascii_digit()).count() {
        0 => None,
        count => Some(&text[count..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_plain_numbers_are_numbers() {
        for text in
            ["nan", "inf", "0x10", " 1", "1 ", "1.", ".5", "1e", "1e+", "+", "-", "", "1_000", "1.5.2"]
        {
            assert!(Number::parse(text.as_bytes()).is_none(), "{text:?}");
        }
        for (text, expected) in
            [("007", 7.0), ("-5", -5.0), ("+5", 5.0), ("2.50", 2.5), ("1e5", 1e5), ("1E-2", 0.01)]
        {
            assert_eq!(Number::parse(text.as_bytes()).map(Number::as_f64), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn integers_keep_all_their_digits_up_to_64_bits() {
        let parse = |text: &str| Number::parse(text.as_bytes());
        assert!(matches!(parse("-9223372036854775808"), Some(Number::Integer(i64::MIN))));
        assert!(matches!(parse("18446744073709551615"), Some(Number::Unsigned(u64::MAX))));
        assert!(matches!(
            parse("000000000000000000000000000018446744073709551615"),
            Some(Number::Unsigned(_))
        ));
        assert!(
            matches!(parse("18446744073709551616"), Some(Number::Float(number)) if number == 18446744073709551616.0)
        );
        assert!(matches!(parse(&"9".repeat(400)), Some(Number::Float(number)) if number.is_infinite()));
    }

    #[test]
    fn computed_numbers_are_written_as_short_as_they_read_back() {
        for (number, expected) in [(2.0, "2"), (2.5, "2.5"), (1e300, "1e300"), (1e-7, "1e-7"), (0.1, "0.1")] {
            let mut text = Vec::new();
            Number::Float(number).write_text(&mut text).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }

    #[test]
    fn the_text_of_a_computed_zero_has_no_sign() {
        for number in [0.0, -0.0, (-0.5_f64).trunc(), (-0.5_f64).ceil()] {
            let mut text = Vec::new();
            Number::Float(number).write_text(&mut text).unwrap();
            assert_eq!(text, b"0");
        }
    }
}
