//! The tests of single fields without which a filter cannot be TRUE.
//!
//! A *cover* is a list of tests. Whenever the filter is TRUE, at least one of its tests holds.
//! `AND` has the covers of each of its parts, because all of them must be TRUE. `OR` has a cover
//! when all its parts have one: the tests of all these covers together. Other expressions have no
//! cover, which is always correct. An empty cover means that the filter is never TRUE.

use super::field::FLOAT_EXACT_MAX;
use super::ranges::ValueRank;
use crate::filter::node::{Comparison, Literal, Node};
use crate::message_type::{Number, boolean_text};

/// The most tests of one cover. With more tests, finding the filter in the index has about the cost
/// of evaluating it.
const TEST_COUNT_MAX: usize = 1_024;

/// A test of one field.
#[derive(Clone, Debug)]
pub(super) struct Test {
    /// The number of the field in its filter.
    pub field: u32,
    pub wanted: Wanted,
}

/// The values for which a test holds. In an array, any element counts.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// Equal to this.
    Equal(Literal),
    /// Between these, both included. In an array, one element may be above the first and another
    /// one below the second.
    Within(ValueRank, ValueRank),
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

/// Whether the filter only compares a field for equality with one constant, or with several. Then
/// it is TRUE when one of its tests holds, and does not need to be evaluated.
pub(super) fn is_only_equality(node: &Node) -> bool {
    // The index has the texts `true` and `false` as numbers, and they are not equal to these
    // numbers.
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
        Comparison::Less => Wanted::Within(ValueRank::BOTTOM, before(literal)?),
        Comparison::LessOrEqual => Wanted::Within(ValueRank::BOTTOM, place(literal)?),
        Comparison::Greater => Wanted::Within(after(literal)?, ValueRank::TOP),
        Comparison::GreaterOrEqual => Wanted::Within(place(literal)?, ValueRank::TOP),
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
    let (low, high) = (place(low)?, place(high)?);
    // Text that is a number has one rank among the numbers and another among the texts. So bounds
    // of both kinds are not an interval for it.
    low.is_like(high).then(|| vec![Test { field, wanted: Wanted::Within(low, high) }])
}

/// The rank of a constant in the order of values. Only for constants that have the same rank for
/// all values with which they are compared.
fn place(literal: &Literal) -> Option<ValueRank> {
    match literal {
        Literal::Number(number) if !number.is_nan() => Some(ValueRank::number(number.as_f64())),
        Literal::Text(text) if Number::parse(text).is_none() && boolean_text(text).is_none() => {
            Some(ValueRank::text(text))
        }
        _ => None,
    }
}

/// A rank below a constant, if a rank can express it.
fn before(literal: &Literal) -> Option<ValueRank> {
    place(literal).map(|place| if is_exact(literal) { place.just_below() } else { place })
}

/// A rank above a constant, if a rank can express it.
fn after(literal: &Literal) -> Option<ValueRank> {
    place(literal).map(|place| if is_exact(literal) { place.just_above() } else { place })
}

fn is_exact(literal: &Literal) -> bool {
    matches!(literal, Literal::Number(number) if number.as_f64().abs() < FLOAT_EXACT_MAX)
}

/// The test that is equal to the filter for numbers below [`FLOAT_EXACT_MAX`], if the filter only
/// compares one field with numbers.
pub(super) fn only_range(node: &Node) -> Option<Test> {
    let parts = match node {
        Node::And(parts) => parts,
        single => std::slice::from_ref(single),
    };
    let mut range: Option<(u32, ValueRank, ValueRank)> = None;
    for part in parts {
        let (field, part_low, part_high) = range_of(part)?;
        range = Some(match range {
            None => (field, part_low, part_high),
            Some((known, low, high)) if known == field => (field, low.max(part_low), high.min(part_high)),
            Some(_) => return None,
        });
    }
    range.map(|(field, low, high)| Test { field, wanted: Wanted::Within(low, high) })
}

/// For a comparison of a field with numbers.
fn range_of(node: &Node) -> Option<(u32, ValueRank, ValueRank)> {
    let is_number = |node: &Node| matches!(node, Node::Literal(Literal::Number(_)));
    let test = match node {
        Node::Compare(left, rest) => match &**rest {
            [(comparison, right)] if is_number(left) || is_number(right) => {
                comparison_test(left, *comparison, right)?.pop()?
            }
            _ => return None,
        },
        Node::Between(nodes) => match &**nodes {
            [
                Node::Field(field),
                Node::Literal(low @ Literal::Number(_)),
                Node::Literal(high @ Literal::Number(_)),
            ] => within(*field, low, high)?.pop()?,
            _ => return None,
        },
        _ => return None,
    };
    match test.wanted {
        Wanted::Within(low, high) => Some((test.field, low, high)),
        Wanted::Equal(_) => None,
    }
}

/// Adds to the half-open ranges of an AND those that a lower and an upper bound on one field make.
fn merge_ranges(covers: &mut Vec<Vec<Test>>) {
    let mut merged = Vec::new();
    for low in &*covers {
        let [Test { field, wanted: Wanted::Within(low, ValueRank::TOP) }] = &**low else { continue };
        for high in &*covers {
            match &**high {
                [Test { field: other, wanted: Wanted::Within(ValueRank::BOTTOM, high) }]
                    if other == field && low.is_like(*high) =>
                {
                    let wanted = Wanted::Within(*low, *high);
                    merged.push(vec![Test { field: *field, wanted }]);
                }
                _ => {}
            }
            // Each pair is correct. A few are enough to choose from.
            if merged.len() == MERGED_COUNT_MAX {
                break;
            }
        }
    }
    covers.append(&mut merged);
}

/// The most pairs of bounds that are tried in one AND.
const MERGED_COUNT_MAX: usize = 16;
