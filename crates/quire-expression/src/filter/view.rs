//! A view into a parsed filter, for an index of values: conditions that must be TRUE wherever the
//! filter is.

use super::node::{Comparison, Literal, Node};
use super::{Filter, Parsed};
use crate::message_type::{Number, Value, boolean_text};

/// A field that must be equal to a constant. In an array, any element counts.
#[derive(Clone, Debug)]
pub struct Equality<'f> {
    /// The field, as written in the filter.
    pub field: &'f str,
    /// The constants, of which it must be equal to one: numbers, texts and Booleans. There are none
    /// when NULL is the only member of a list.
    pub values: Vec<Value<'f>>,
}

impl<'f> Equality<'f> {
    /// The constants, when all of them are texts, and none of them is a number, TRUE or FALSE. Only
    /// a text with the same bytes is equal to such a text.
    pub fn plain_texts(&self) -> Option<Vec<&'f [u8]>> {
        self.values.iter().map(|value| plain_text(*value)).collect()
    }
}

/// A field that must be in a range. In an array, one element may be above the lower bound and
/// another one below the upper bound.
#[derive(Clone, Copy, Debug)]
pub struct Range<'f> {
    /// The field, as written in the filter.
    pub field: &'f str,
    /// It is this or greater: a number, a text or a Boolean.
    pub low: Option<Value<'f>>,
    /// It is this or less.
    pub high: Option<Value<'f>>,
}

impl Filter {
    /// Comparisons with `=` and `IN` of a field with constants that the filter joins with AND. The
    /// filter is TRUE only for messages for which all of them hold. Other parts of the filter are
    /// left out.
    pub fn equalities(&self) -> Vec<Equality<'_>> {
        let parsed = self.parsed();
        let mut found = Vec::new();
        for_each_part(&parsed.root, &mut |part| found.extend(equality_of(part, parsed)));
        found
    }

    /// Comparisons with `=`, `<`, `<=`, `>`, `>=` and `BETWEEN` of a field with constants that the
    /// filter joins with AND. The filter is TRUE only for messages for which all of them hold.
    /// Other parts of the filter are left out. Bounds are included, also those of `<` and `>`.
    pub fn ranges(&self) -> Vec<Range<'_>> {
        let parsed = self.parsed();
        let mut found = Vec::new();
        for_each_part(&parsed.root, &mut |part| found.extend(range_of(part, parsed)));
        found
    }
}

/// The parts that AND joins. Without AND, the whole expression is the only part.
fn for_each_part<'f>(node: &'f Node, found: &mut impl FnMut(&'f Node)) {
    match node {
        // The depth is the nesting of the text, which has a limit.
        Node::And(parts) => parts.iter().for_each(|part| for_each_part(part, &mut *found)),
        part => found(part),
    }
}

/// A single comparison of a field with a constant, with the field on the left.
fn comparison_of(node: &Node) -> Option<(u32, Comparison, &Literal)> {
    let Node::Compare(left, rest) = node else { return None };
    let [(comparison, right)] = &**rest else { return None };
    match (&**left, right) {
        (Node::Field(field), Node::Literal(literal)) => Some((*field, *comparison, literal)),
        (Node::Literal(literal), Node::Field(field)) => Some((*field, comparison.flipped(), literal)),
        _ => None,
    }
}

fn equality_of<'f>(node: &'f Node, parsed: &'f Parsed) -> Option<Equality<'f>> {
    let (field, values) = match node {
        Node::In(left, members) => match &**left {
            Node::Field(field) => {
                let constant = |member: &'f Node| match member {
                    Node::Literal(literal) => Some(literal.value()),
                    _ => None,
                };
                let mut values = members.iter().map(constant).collect::<Option<Vec<_>>>()?;
                // No value is equal to NULL.
                values.retain(|value| !value.is_null());
                (*field, values)
            }
            _ => return None,
        },
        node => match comparison_of(node)? {
            (_, Comparison::Equal, Literal::Null) => return None,
            (field, Comparison::Equal, literal) => (field, vec![literal.value()]),
            _ => return None,
        },
    };
    Some(Equality { field: &parsed.names[field as usize], values })
}

/// The text of a constant, if only texts can be equal to it.
fn plain_text(value: Value<'_>) -> Option<&[u8]> {
    match value {
        Value::Text(text) if Number::parse(text).is_none() && boolean_text(text).is_none() => Some(text),
        _ => None,
    }
}

fn range_of<'f>(node: &'f Node, parsed: &'f Parsed) -> Option<Range<'f>> {
    let (field, low, high) = match node {
        Node::Between(nodes) => match &**nodes {
            [Node::Field(field), Node::Literal(low), Node::Literal(high)] => {
                (*field, Some(low.value()), Some(high.value()))
            }
            _ => return None,
        },
        node => {
            let (field, comparison, literal) = comparison_of(node)?;
            let value = Some(literal.value());
            match comparison {
                Comparison::Equal => (field, value, value),
                Comparison::Less | Comparison::LessOrEqual => (field, None, value),
                Comparison::Greater | Comparison::GreaterOrEqual => (field, value, None),
                Comparison::NotEqual => return None,
            }
        }
    };
    let is_bound = |value: Option<Value<'_>>| !value.is_some_and(Value::is_null);
    (is_bound(low) && is_bound(high)).then(|| Range { field: &parsed.names[field as usize], low, high })
}
