//! The order of a result: the fields of `order_by`, and sort keys. The bytes of sort keys have the
//! order of the values.

use smallvec::SmallVec;

use crate::fields::{Fields, path_of};
use quire_expression::filter::{Expression, FilterError, FilterOptions};
use quire_expression::message_type::{Arena, MessageType, Number, Value};

/// The most fields of an order: each row of the result keeps its values.
pub const ORDER_FIELDS_MAX: usize = 16;

/// The order of a result, as `order_by` names it: `/price DESC TEXT, /time`.
///
/// NULL is sorted first, then numbers and texts that are numbers by value, then all other texts by
/// their bytes. `TEXT` compares the texts of all values. `DESC` reverses the order of its field.
/// For an array the first element counts. An object and NaN count as NULL.
#[derive(Clone, Debug)]
pub struct Order {
    fields: Fields,
    terms: Box<[Term]>,
}

#[derive(Clone, Copy, Debug)]
struct Term {
    is_descending: bool,
    is_text: bool,
}

/// The values of one row as bytes. A row is sorted before another when its bytes are less.
pub type SortKey = SmallVec<[u8; 24]>;

/// The kind of a value is the first byte of its part of a sort key.
const NULL: u8 = 0;
const NUMBER: u8 = 1;
const TEXT: u8 = 2;
/// After an object of a group, which is written as a text.
const COMPOUND: u8 = 3;

impl Order {
    /// Parses a list of fields, each with `ASC` or `DESC`, and with `TEXT`.
    ///
    /// # Errors
    /// [`FilterError`] with the column and the expected form.
    pub fn parse(text: &str, options: &FilterOptions) -> Result<Order, FilterError> {
        let (mut names, mut paths, mut terms) = (Vec::new(), Vec::new(), Vec::new());
        for item in items(text) {
            if terms.len() == ORDER_FIELDS_MAX {
                return Err(error(text, item.0, format!("at most {ORDER_FIELDS_MAX} fields"), "one more"));
            }
            let (name, path, term) = item_of(text, item, options)?;
            // A hidden field is NULL in every record, so it orders nothing.
            if options.hidden.as_ref().is_some_and(|hidden| hidden.hides(&path)) {
                continue;
            }
            names.push(name.into());
            paths.push(path);
            terms.push(term);
        }
        Ok(Order { fields: Fields::of_paths(names.into(), paths), terms: terms.into() })
    }

    /// The sort key of a message. An unreadable message has NULL in all fields, as in filters.
    pub fn key_of(&self, message_type: MessageType, data: &[u8], arena: &mut Arena) -> SortKey {
        arena.reset();
        let mut key = SortKey::new();
        match self.fields.read(message_type, data, arena) {
            Ok(values) => values.zip(&self.terms).for_each(|(value, term)| term.put(value, arena, &mut key)),
            Err(_) => self.terms.iter().for_each(|term| term.put(Value::Null, arena, &mut key)),
        }
        key
    }
}

/// The values of a group, or of an aggregate, as bytes. Values are in one group exactly when their
/// bytes are equal: numbers by value, texts that are numbers too, and NULL with NaN. An object
/// counts by its bytes.
pub(crate) fn put_value(value: Value<'_>, arena: &Arena, key: &mut SortKey) {
    match value.scalar() {
        Value::Compound(raw) => {
            put_text(raw, key);
            key.push(COMPOUND);
        }
        value => ASCENDING.put(value, arena, key),
    }
}

const ASCENDING: Term = Term { is_descending: false, is_text: false };

impl Term {
    fn put(self, value: Value<'_>, arena: &Arena, key: &mut SortKey) {
        let begin = key.len();
        let value = value.scalar();
        let number = if self.is_text { None } else { sorted_number(value) };
        match (number, arena.text(value)) {
            (Some(number), _) => put_number(number, key),
            (None, Some(text)) if !is_nan(value) => put_text(text, key),
            _ => key.push(NULL),
        }
        if self.is_descending {
            key[begin..].iter_mut().for_each(|byte| *byte = !*byte);
        }
    }
}

fn is_nan(value: Value<'_>) -> bool {
    matches!(value, Value::Number(number, _) if number.is_nan())
}

/// The number by which a value is sorted. `None` for text that is not a number, NULL, NaN and
/// objects.
fn sorted_number(value: Value<'_>) -> Option<Number> {
    let number = match value {
        Value::Text(text) => Number::parse(text)?,
        value => value.to_number()?,
    };
    (!number.is_nan()).then_some(number)
}

/// Numbers compare exactly, also integers with floats: first as floats, then by the difference to
/// the float. That is a total order. The comparison of filters is not total above 2^53.
fn put_number(number: Number, key: &mut SortKey) {
    // Adding zero makes the negative zero the positive one.
    let float = number.as_f64() + 0.0;
    let difference = number.as_i128().map_or(0, |exact| exact - float as i128);
    key.push(NUMBER);
    key.extend_from_slice(&ordered_bits(float).to_be_bytes());
    // A float that an integer of 64 bits is rounded to is at most 1,024 away.
    key.extend_from_slice(&((difference as i16) as u16 ^ 0x8000).to_be_bytes());
}

/// Bits with the order of the floats.
pub(crate) fn ordered_bits(float: f64) -> u64 {
    let bits = float.to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

/// Bytes of a text, with an end that is less than every byte of a longer text.
fn put_text(text: &[u8], key: &mut SortKey) {
    key.push(TEXT);
    for part in text.split_inclusive(|byte| *byte == 0) {
        key.extend_from_slice(part);
        if part.ends_with(&[0]) {
            key.push(0xff);
        }
    }
    key.extend_from_slice(&[0, 0]);
}

/// The parts between commas: the byte at which each begins, and its end. A comma in `[/a name]`
/// belongs to the name.
fn items(text: &str) -> impl Iterator<Item = (usize, usize)> {
    let mut is_bracketed = false;
    let mut begin = 0;
    let ends = text.bytes().enumerate().filter(move |(_, byte)| {
        is_bracketed = match byte {
            b'[' => true,
            b']' => false,
            _ => is_bracketed,
        };
        *byte == b',' && !is_bracketed
    });
    ends.map(|(end, _)| end).chain([text.len()]).map(move |end| {
        let item = (begin, end);
        begin = end + 1;
        item
    })
}

/// One part of the list.
fn item_of<'t>(
    text: &'t str,
    (begin, end): (usize, usize),
    options: &FilterOptions,
) -> Result<(&'t str, Vec<quire_expression::message_type::Step>, Term), FilterError> {
    let item = &text[begin..end];
    let begin = begin + (item.len() - item.trim_start().len());
    let item = item.trim();
    let size = match item.strip_prefix('[').and_then(|rest| rest.find(']')) {
        Some(close) => close + 2,
        None => item.find(|letter: char| letter.is_ascii_whitespace()).unwrap_or(item.len()),
    };
    let (name, words) = item.split_at(size);
    let Some(path) = path_of(name) else {
        // A mistake within the name is shown at its place.
        let inner = Expression::parse(name, options).err().filter(|_| !name.is_empty());
        let offset = inner.as_ref().map_or(0, |inner| inner.column - 1);
        let found = if name.is_empty() { "nothing".to_owned() } else { format!("{name:?}") };
        return Err(FilterError::new(column(text, begin) + offset, "a field like /symbol", found));
    };
    let mut term = Term { is_descending: false, is_text: false };
    // 0: ASC, DESC or TEXT may follow. 1: TEXT may follow. 2: the end.
    let mut state = 0;
    for word in words.split_ascii_whitespace() {
        state = match (state, word) {
            (0, word) if word.eq_ignore_ascii_case("ASC") => 1,
            (0, word) if word.eq_ignore_ascii_case("DESC") => {
                term.is_descending = true;
                1
            }
            (0 | 1, word) if word.eq_ignore_ascii_case("TEXT") => {
                term.is_text = true;
                2
            }
            _ => {
                let expected = ["ASC, DESC, TEXT, a comma", "TEXT, a comma", "a comma"][state];
                // The word is a part of the text, so its address is its position.
                let offset = word.as_ptr().addr() - text.as_ptr().addr();
                return Err(error(text, offset, format!("{expected} or the end"), &format!("{word:?}")));
            }
        };
    }
    Ok((name, path, term))
}

fn error(text: &str, offset: usize, expected: String, found: &str) -> FilterError {
    FilterError::new(column(text, offset), expected, found)
}

/// The column of a byte, in characters from 1.
fn column(text: &str, offset: usize) -> usize {
    text[..offset].chars().count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> Order {
        Order::parse(text, &FilterOptions::default()).unwrap()
    }

    fn sorted<'d>(order_by: &str, mut data: Vec<&'d str>) -> Vec<&'d str> {
        let order = order(order_by);
        let mut arena = Arena::default();
        data.sort_by_cached_key(|data| order.key_of(MessageType::Json, data.as_bytes(), &mut arena));
        data
    }

    #[test]
    fn null_is_sorted_before_numbers_and_numbers_before_texts() {
        let ascending = vec![
            "{}",
            r#"{"a":-1e300}"#,
            r#"{"a":-5}"#,
            r#"{"a":"-4.5"}"#,
            r#"{"a":0}"#,
            r#"{"a":true}"#,
            r#"{"a":9}"#,
            r#"{"a":"10"}"#,
            r#"{"a":10.5}"#,
            r#"{"a":9007199254740992}"#,
            r#"{"a":9007199254740993}"#,
            r#"{"a":18446744073709551614}"#,
            r#"{"a":18446744073709551615}"#,
            r#"{"a":18446744073709551616.0}"#,
            r#"{"a":"A"}"#,
            r#"{"a":"a"}"#,
            r#"{"a":"a\u0000"}"#,
            r#"{"a":"a\u0000b"}"#,
            r#"{"a":"a\u0001"}"#,
            r#"{"a":"ab"}"#,
            r#"{"a":["b", 1]}"#,
        ];
        let mut shuffled = ascending.clone();
        shuffled.reverse();
        shuffled.swap(3, 7);
        assert_eq!(sorted("/a", shuffled.clone()), ascending);
        let descending: Vec<_> = ascending.iter().rev().copied().collect();
        assert_eq!(sorted("/a DESC", shuffled), descending);
    }

    #[test]
    fn null_objects_and_messages_that_cannot_be_read_are_equal() {
        let rows = vec![r#"{"a":{"b":1}}"#, "{}", r#"{"a":""}"#, "nonsense", r#"{"a":[]}"#];
        assert_eq!(sorted("/a", rows.clone()), rows);
        assert_eq!(sorted("/a DESC", rows.clone()), rows);
    }

    #[test]
    fn text_compares_the_texts_of_numbers() {
        let rows = vec![r#"{"a":10}"#, r#"{"a":"1x"}"#, r#"{"a":9}"#, r#"{"a":"9.0"}"#, r#"{"a":true}"#];
        assert_eq!(sorted("/a text", rows.iter().rev().copied().collect()), rows);
        assert_eq!(sorted("/a desc TEXT", rows.clone()), rows.into_iter().rev().collect::<Vec<_>>());
    }

    #[test]
    fn later_fields_decide_between_rows_that_are_equal_in_the_earlier_ones() {
        let rows = vec![
            r#"{"a":1,"b":"z"}"#,
            r#"{"a":1,"b":"b"}"#,
            r#"{"a":1,"b":"a"}"#,
            r#"{"a":1}"#,
            r#"{"a":2,"b":"a"}"#,
        ];
        assert_eq!(sorted("/a ASC,/b DESC", rows.iter().rev().copied().collect()), rows);
        let odd = vec![r#"{"a, b":1}"#, r#"{"a, b":2}"#];
        assert_eq!(sorted("[/a, b], /c", odd.iter().rev().copied().collect()), odd);
    }

    #[test]
    fn a_mistake_is_shown_at_its_column() {
        let mistake = |text: &str| Order::parse(text, &FilterOptions::default()).unwrap_err().to_string();
        assert_eq!(mistake(""), "column 1: expected a field like /symbol, found nothing");
        assert_eq!(mistake("/a, "), "column 5: expected a field like /symbol, found nothing");
        assert_eq!(mistake("/a,price"), "column 4: expected a field like /symbol, found \"price\"");
        assert_eq!(mistake("/a+1"), "column 1: expected a field like /symbol, found \"/a+1\"");
        assert_eq!(
            mistake("/größe UP"),
            "column 8: expected ASC, DESC, TEXT, a comma or the end, found \"UP\""
        );
        assert_eq!(mistake("/a DESC ASC"), "column 9: expected TEXT, a comma or the end, found \"ASC\"");
        assert_eq!(mistake("/a TEXT DESC"), "column 9: expected a comma or the end, found \"DESC\"");
        let many = vec!["/a"; 17].join(",");
        assert_eq!(mistake(&many), "column 49: expected at most 16 fields, found one more");
    }
}
