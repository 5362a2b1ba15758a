//! Which tests of single fields a filter cannot be TRUE without.
//!
//! A *cover* is a list of tests of which at least one holds whenever the filter is TRUE. `AND` has the covers of each of its parts, since
//! all of them must be TRUE; `OR` has a cover when all its parts have one, put together. Whatever else stands in a filter has none, which
//! is always right. An empty cover says that the filter is never TRUE.

use super::ranges::Bound;
use crate::filter::node::{Comparison, Literal, Node};
use crate::message_type::{Number, boolean_text};

/// The most tests of one cover: beyond it, evaluating the filter costs about as much as finding it in so many places.
const TEST_COUNT_MAX: usize = 1_024;

/// Something about one field.
#[derive(Clone, Debug)]
pub(super) struct Test {
    /// The number of the field in its filter.
    pub field: u32,
    pub wanted: Wanted,
}

/// What a value must be for a test to hold. Of an array, any element.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// Equal to this.
    Equal(Literal),
    /// Between these, both included. Of an array, one element may be above the first and another below the second.
    Within(Bound, Bound),
}

/// The covers to choose from; none when every message must be evaluated.
pub(super) fn covers(node: &Node) -> Vec<Vec<Test>> {
    match node {
        Node::And(parts) => {
            let mut covers: Vec<Vec<Test>> = parts.iter().flat_map(covers).collect();
            merge_ranges(&mut covers);
            covers
        }
        Node::Or(parts) => either(parts).into_iter().collect(),
        Node::Compare(left, rest) => match &**rest {
            [(comparison, right)] => comparison_test(left, *comparison, right).into_iter().collect(),
            _ => Vec::new(),
        },
        Node::In(left, members) => membership(left, members).into_iter().collect(),
        Node::Between(nodes) => match &**nodes {
            [Node::Field(field), Node::Literal(low), Node::Literal(high)] => within(*field, low, high),
            _ => None,
        }
        .into_iter()
        .collect(),
        _ => Vec::new(),
    }
}

/// Whether the filter says nothing but that a field is equal to a constant, or to one of several: then it is TRUE as soon as one of its tests is
/// known to hold, and need not be evaluated.
pub(super) fn is_only_equality(node: &Node) -> bool {
    // The texts `true` and `false` are entered as numbers, which they are not equal to.
    let is_plain = |node: &Node| match node {
        Node::Literal(Literal::Text(text)) => boolean_text(text).is_none(),
        Node::Literal(Literal::Number(_)) => true,
        _ => false,
    };
    match node {
        Node::Compare(left, rest) => match (&**left, &**rest) {
            (Node::Field(_), [(Comparison::Equal, right)]) => is_plain(right),
            _ => false,
        },
        Node::In(left, members) => matches!(**left, Node::Field(_)) && members.iter().all(is_plain),
        _ => false,
    }
}

/// One cover of an OR: the shortest of each part.
fn either(parts: &[Node]) -> Option<Vec<Test>> {
    let mut tests = Vec::new();
    for part in parts {
        tests.extend(covers(part).into_iter().min_by_key(Vec::len)?);
        if tests.len() > TEST_COUNT_MAX {
            return None;
        }
    }
    Some(tests)
}

fn comparison_test(left: &Node, comparison: Comparison, right: &Node) -> Option<Vec<Test>> {
    let (field, comparison, literal) = match (left, right) {
        (Node::Field(field), Node::Literal(literal)) => (*field, comparison, literal),
        (Node::Literal(literal), Node::Field(field)) => (*field, comparison.flipped(), literal),
        _ => return None,
    };
    if matches!(literal, Literal::Null) {
        return Some(Vec::new());
    }
    let wanted = match comparison {
        Comparison::Equal => Wanted::Equal(literal.clone()),
        Comparison::NotEqual => return None,
        Comparison::Less | Comparison::LessOrEqual => Wanted::Within(Bound::Bottom, bound(literal)?),
        Comparison::Greater | Comparison::GreaterOrEqual => Wanted::Within(bound(literal)?, Bound::Top),
    };
    Some(vec![Test { field, wanted }])
}

fn membership(left: &Node, members: &[Node]) -> Option<Vec<Test>> {
    let Node::Field(field) = left else { return None };
    if members.len() > TEST_COUNT_MAX {
        return None;
    }
    let mut tests = Vec::new();
    for member in members {
        match member {
            Node::Literal(Literal::Null) => {}
            Node::Literal(literal) => {
                tests.push(Test { field: *field, wanted: Wanted::Equal(literal.clone()) });
            }
            _ => return None,
        }
    }
    Some(tests)
}

fn within(field: u32, low: &Literal, high: &Literal) -> Option<Vec<Test>> {
    if matches!(low, Literal::Null) || matches!(high, Literal::Null) {
        return Some(Vec::new());
    }
    let (low, high) = (bound(low)?, bound(high)?);
    // Text that spells a number stands at one place among the numbers and at another among the texts: bounds of both kinds are no interval for it.
    same_kind(&low, &high).then(|| vec![Test { field, wanted: Wanted::Within(low, high) }])
}

/// The place of a constant in the order of values. Only those whose place does not depend on what they are compared with.
fn bound(literal: &Literal) -> Option<Bound> {
    match literal {
        Literal::Number(number) if !number.is_nan() => Some(Bound::number(number.as_f64())),
        Literal::Text(text) if Number::parse(text).is_none() && boolean_text(text).is_none() => {
            Some(Bound::Text(text.clone()))
        }
        _ => None,
    }
}

fn same_kind(low: &Bound, high: &Bound) -> bool {
    matches!((low, high), (Bound::Number(_), Bound::Number(_)) | (Bound::Text(_), Bound::Text(_)))
}

/// Adds to the half-open ranges of an AND those that a lower and an upper bound on one field make.
fn merge_ranges(covers: &mut Vec<Vec<Test>>) {
    let mut merged = Vec::new();
    for low in &*covers {
        let [Test { field, wanted: Wanted::Within(low, Bound::Top) }] = &**low else { continue };
        for high in &*covers {
            match &**high {
                [Test { field: other, wanted: Wanted::Within(Bound::Bottom, high) }]
                    if other == field && same_kind(low, high) =>
                {
                    let wanted = Wanted::Within(low.clone(), high.clone());
                    merged.push(vec![Test { field: *field, wanted }]);
                }
                _ => {}
            }
            // Each pair is right; a few are enough to choose from.
            if merged.len() == MERGED_COUNT_MAX {
                break;
            }
        }
    }
    covers.append(&mut merged);
}

/// The most pairs of bounds that are tried in one AND.
const MERGED_COUNT_MAX: usize = 16;
