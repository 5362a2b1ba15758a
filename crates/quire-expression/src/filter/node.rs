//! The compiled form of an expression: a tree without cycles or sharing, at most [`NESTING_MAX`]
//! levels deep.
//!
//! Chains of one level of operators (`a AND b AND c`, `1 + 2 - 3`) are one node with many children.
//! So the depth of the tree is the nesting in the text, and not its length. The recursion of
//! evaluating and dropping it is not deeper than that.

use std::sync::Arc;

use super::TopicGuard;
use super::function::Function;
use super::like::Pattern;
use crate::message_type::{Number, Value};

/// The deepest nesting of parentheses, NOT and calls: no person writes more. Evaluation recurses as
/// deep.
pub const NESTING_MAX: usize = 64;

#[derive(Debug)]
pub(super) enum Node {
    Literal(Literal),
    /// The index of one of the fields of the expression.
    Field(u32),
    And(Box<[Node]>),
    Or(Box<[Node]>),
    Not(Box<Node>),
    /// One comparison after the other, from the left.
    Compare(Box<Node>, Box<[(Comparison, Node)]>),
    Like(Box<Node>, Box<Pattern>),
    In(Box<Node>, Box<[Node]>),
    /// Left side, low, high.
    Between(Box<[Node; 3]>),
    Affix(Affix, Box<Node>, Box<[Node]>),
    IsNull(Box<Node>),
    IsNan(Box<Node>),
    Arithmetic(Box<Node>, Box<[(Operator, Node)]>),
    Negate(Box<Node>),
    /// Condition, value when TRUE, value otherwise.
    If(Box<[Node; 3]>),
    Call(&'static Function, Box<[Node]>),
    /// `REGEXP_REPLACE`: text and replacement, and the pattern.
    ReplacePattern(Box<[Node; 2]>, Box<Pattern>),
    /// Depends on the topic. No text has it.
    Guard(Arc<dyn TopicGuard>),
    /// The whole message can be read, and has no key twice. No text has it.
    Unambiguous,
}

impl Node {
    /// The number of patterns in it. It is counted when a subscription begins or ends, and not
    /// kept, because there are many filters.
    pub fn pattern_count(&self) -> usize {
        let all = |nodes: &[Node]| nodes.iter().map(Node::pattern_count).sum::<usize>();
        match self {
            Node::Literal(_) | Node::Field(_) | Node::Guard(_) | Node::Unambiguous => 0,
            Node::And(nodes) | Node::Or(nodes) | Node::Call(_, nodes) => all(nodes),
            Node::Not(node) | Node::IsNull(node) | Node::IsNan(node) | Node::Negate(node) => {
                node.pattern_count()
            }
            Node::Compare(first, rest) => {
                first.pattern_count() + rest.iter().map(|(_, node)| node.pattern_count()).sum::<usize>()
            }
            Node::Arithmetic(first, rest) => {
                first.pattern_count() + rest.iter().map(|(_, node)| node.pattern_count()).sum::<usize>()
            }
            Node::Like(node, _) => 1 + node.pattern_count(),
            Node::In(node, nodes) | Node::Affix(_, node, nodes) => node.pattern_count() + all(nodes),
            Node::Between(nodes) | Node::If(nodes) => all(&**nodes),
            Node::ReplacePattern(nodes, _) => 1 + all(&**nodes),
        }
    }
}

/// A constant that owns its bytes.
#[derive(Clone, Debug)]
pub(super) enum Literal {
    Null,
    Boolean(bool),
    Number(Number),
    /// Never empty: an empty text is NULL.
    Text(Box<[u8]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

/// Which end of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Affix {
    Begins,
    Ends,
}

impl Literal {
    pub fn text(bytes: &[u8]) -> Literal {
        if bytes.is_empty() { Literal::Null } else { Literal::Text(bytes.into()) }
    }

    pub fn value(&self) -> Value<'_> {
        match self {
            Literal::Null => Value::Null,
            Literal::Boolean(value) => Value::Boolean(*value),
            Literal::Number(number) => Value::number(*number),
            Literal::Text(text) => Value::Text(text),
        }
    }
}

impl Comparison {
    /// The equal comparison with the sides exchanged.
    pub fn flipped(self) -> Comparison {
        match self {
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
            same => same,
        }
    }
}
