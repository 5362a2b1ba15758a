//! The functions of the language, as one table.
//!
//! A function takes its arguments as nodes and evaluates those that it needs. Unless
//! `docs/filters.md` states another rule, the result for a NULL argument is NULL, and for an
//! argument that is not a number NaN. Only the first element of an array counts.

mod array;
mod message;
mod numeric;
mod text;
mod time;

use std::fmt;
use std::ops::RangeInclusive;

use super::evaluate::Evaluation;
use super::node::Node;
use crate::message_type::Value;

pub(super) use text::regexp_replace;

/// A function that can be called.
pub(super) struct Function {
    /// In capitals.
    pub name: &'static str,
    /// The number of its arguments.
    pub arguments: RangeInclusive<usize>,
    /// Returns its value for these arguments. Their number is right.
    pub evaluate: for<'a> fn(&Evaluation<'a>, &'a [Node]) -> Value<'a>,
}

/// At least the given number of arguments.
const ANY: usize = usize::MAX;

const fn function(
    name: &'static str,
    arguments: RangeInclusive<usize>,
    evaluate: for<'a> fn(&Evaluation<'a>, &'a [Node]) -> Value<'a>,
) -> Function {
    Function { name, arguments, evaluate }
}

/// Every function, in the order of `docs/filters.md`. The parser handles the others:
/// `REGEXP_REPLACE`, which needs its pattern compiled, and the functions about client and instance,
/// which are constants for a filter.
pub(super) const FUNCTIONS: &[Function] = &[
    function("INSTR", 2..=2, text::instr),
    function("INSTR_I", 2..=2, text::instr_i),
    function("STREQUAL_I", 2..=2, text::strequal_i),
    function("CONCAT", 1..=ANY, text::concat),
    function("UPPER", 1..=1, text::upper),
    function("LOWER", 1..=1, text::lower),
    function("SUBSTR", 2..=3, text::substr),
    function("REVERSE", 1..=1, text::reverse),
    function("LENGTH", 1..=1, text::length),
    function("TRIM", 1..=1, text::trim),
    function("LTRIM", 1..=1, text::ltrim),
    function("RTRIM", 1..=1, text::rtrim),
    function("REPLACE", 3..=3, text::replace),
    function("STRFTIME", 2..=2, time::strftime),
    function("STRPTIME", 2..=2, time::strptime),
    function("UNIX_TIMESTAMP", 0..=0, time::unix_timestamp),
    function("ARRAY_COUNT", 1..=1, array::count),
    function("ARRAY_MAX", 1..=1, array::max),
    function("ARRAY_MIN", 1..=1, array::min),
    function("ARRAY_SUM", 1..=1, array::sum),
    function("ARRAY_TO_STRING", 3..=3, array::to_string),
    function("ABS", 1..=1, numeric::abs),
    function("CEILING", 1..=1, numeric::ceiling),
    function("FLOOR", 1..=1, numeric::floor),
    function("TRUNC", 1..=1, numeric::trunc),
    function("ROUND", 1..=2, numeric::round),
    function("SIGN", 1..=1, numeric::sign),
    function("EXP", 1..=1, numeric::exp),
    function("LN", 1..=1, numeric::ln),
    function("LOG2", 1..=1, numeric::log2),
    function("LOG10", 1..=1, numeric::log10),
    function("SQRT", 1..=1, numeric::sqrt),
    function("POWER", 2..=2, numeric::power),
    function("LEAST", 1..=ANY, numeric::least),
    function("GREATEST", 1..=ANY, numeric::greatest),
    function("WIDTH_BUCKET", 4..=4, numeric::width_bucket),
    function("GEO_DISTANCE", 4..=4, numeric::geo_distance),
    function("CRC32", 1..=1, numeric::crc32),
    function("CRC64", 1..=1, numeric::crc64),
    function("COALESCE", 1..=ANY, message::coalesce),
    function("AS_INTEGER", 1..=1, message::as_integer),
    function("AS_FLOAT", 1..=1, message::as_float),
    function("AS_STRING", 1..=1, message::as_string),
    function("AS_BOOLEAN", 1..=1, message::as_boolean),
    function("MESSAGE_SIZE", 0..=0, message::message_size),
    function("CORRELATION_ID", 0..=0, message::correlation_id),
    function("HEADER", 1..=1, message::header),
    function("LAST_UPDATED", 0..=0, message::last_updated),
    function("BOOKMARK", 0..=0, message::bookmark),
    function("TOPIC_NAME", 0..=0, message::topic_name),
    function("SOW_KEY", 0..=0, message::sow_key),
];

/// The function with this name in capitals.
pub(super) fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}

/// The known name that is most similar to `name`, when one is similar enough to be meant.
pub fn similar<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    known
        .map(|known| (distance(name.as_bytes(), known.as_bytes()), known))
        .filter(|(distance, known)| *distance * 3 <= known.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// How many letters must be added, removed or changed. Names are short; longer ones are compared by
/// their beginning.
fn distance(left: &[u8], right: &[u8]) -> usize {
    const COMPARED: usize = 24;
    let (left, right) = (&left[..left.len().min(COMPARED)], &right[..right.len().min(COMPARED)]);
    let mut row: [usize; COMPARED + 1] = std::array::from_fn(|index| index);
    for (index, from) in left.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, to) in right.iter().enumerate() {
            let changed = diagonal + usize::from(from != to);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
