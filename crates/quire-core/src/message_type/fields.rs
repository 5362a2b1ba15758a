//! The fields of one message that somebody asked for, and the paths that name them.

use std::fmt;
use std::ops::Range;

/// Names a field: `/symbol`, `/order/price`, `/data[0]` (reference: topics-filters-sow 1.4).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    text: Box<str>,
    pub(super) steps: Box<[Box<str>]>,
    /// `[n]` at the end: one element of an array, from 0.
    pub(super) index: Option<u32>,
}

/// The text does not name a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a field name like /member or /member/member")]
pub struct PathError;

/// The deepest path: deeper documents exist, but nobody filters on them.
const STEPS_MAX: usize = 32;

impl Path {
    /// Reads `/step/step[index]`.
    ///
    /// # Errors
    /// [`PathError`] for anything else.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let (steps, index) = match text.strip_suffix(']').and_then(|text| text.rsplit_once('[')) {
            Some((steps, index)) => (steps, Some(index.parse().map_err(|_| PathError)?)),
            None => (text, None),
        };
        let steps: Box<[Box<str>]> =
            steps.strip_prefix('/').ok_or(PathError)?.split('/').map(Into::into).collect();
        if steps.len() > STEPS_MAX || steps.iter().any(|step| step.is_empty() || step.contains(['[', ']'])) {
            return Err(PathError);
        }
        Ok(Path { text: text.into(), steps, index })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// One value as filters see it. An empty text is NULL (reference: topics-filters-sow 1.5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar<'a> {
    /// Absent, `null`, or an empty text.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number that fits.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// Bytes of a text.
    Text(&'a [u8]),
    /// An object: not NULL, and equal to nothing.
    Compound,
}

/// The values at some paths of one message. Kept between messages, so that reading allocates nothing once it has grown.
#[derive(Debug, Default)]
pub struct Fields {
    values: Vec<Value>,
    /// Per path the values it has, one or (an array) many, and whether it was an array.
    ranges: Vec<(Range<usize>, bool)>,
    text: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Range<usize>),
    Compound,
}

impl Fields {
    /// Forgets everything and makes room for `count` paths, all NULL.
    pub(super) fn reset(&mut self, count: usize) {
        self.values.clear();
        self.text.clear();
        self.ranges.clear();
        self.ranges.resize(count, (0..0, false));
    }

    /// Begins the value at a path; what was there before (a repeated member) is replaced: the last one wins.
    pub(super) fn begin(&mut self, path: usize, is_array: bool) {
        self.ranges[path] = (self.values.len()..self.values.len(), is_array);
    }

    pub(super) fn push(&mut self, path: usize, scalar: Scalar<'_>) {
        let value = match scalar {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Int(value) => Value::Int(value),
            Scalar::Float(value) => Value::Float(value),
            Scalar::Text(text) => {
                let start = self.text.len();
                self.text.extend_from_slice(text);
                Value::Text(start..self.text.len())
            }
            Scalar::Compound => Value::Compound,
        };
        self.values.push(value);
        self.ranges[path].0.end = self.values.len();
    }

    /// Keeps only the element with this index, of an array; NULL when it has no such element. The first of a scalar is the scalar.
    pub(super) fn select(&mut self, path: usize, index: u32) {
        let (range, _) = self.ranges[path].clone();
        let at = range.start + index as usize;
        self.ranges[path] = (if at < range.end { at..at + 1 } else { 0..0 }, false);
    }

    /// The values at a path: none for NULL, one for a scalar, all elements of an array.
    pub fn values(&self, path: usize) -> impl Iterator<Item = Scalar<'_>> {
        let range = self.ranges.get(path).map_or(0..0, |(range, _)| range.clone());
        self.values[range].iter().map(|value| match value {
            Value::Null => Scalar::Null,
            Value::Bool(value) => Scalar::Bool(*value),
            Value::Int(value) => Scalar::Int(*value),
            Value::Float(value) => Scalar::Float(*value),
            Value::Text(range) if range.is_empty() => Scalar::Null,
            Value::Text(range) => Scalar::Text(&self.text[range.clone()]),
            Value::Compound => Scalar::Compound,
        })
    }
}
