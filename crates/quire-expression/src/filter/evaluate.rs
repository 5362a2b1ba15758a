//! Evaluating a compiled expression over the fields of one message: conditions in three-valued
//! logic, everything else as values.

use std::cmp::Ordering;

use super::function::{Function, regexp_replace};
use super::node::{Affix, Comparison, Node, Operator};
use super::{MessageContext, TopicGuard};
use crate::message_type::{Arena, FieldId, Number, Truth, Value, compare};

/// The most pairs that a comparison of two arrays checks. Above it, the result is unknown, so that
/// no message makes a filter slow for all clients.
pub const ARRAY_PAIR_COUNT_MAX: usize = 1 << 20;

/// Effort of one search for a pattern, and of each byte that it reads. This is the time of slow
/// patterns; common ones take less.
const PATTERN_EFFORT: u64 = 500;
const SEARCH_EFFORT: u64 = 4;

/// Effort of a call of a function, in addition to the effort of each byte of its result.
const CALL_EFFORT: u64 = 50;

/// Effort of each element of an array that is read.
const ELEMENT_EFFORT: u64 = 10;

/// Effort of each part of a text that is replaced, and of each match of a pattern: a match has its
/// groups. This is the time for texts in which every byte is replaced.
const REPLACED_EFFORT: u64 = 12;
const REPLACED_MATCH_EFFORT: u64 = 36;

/// One message after reading, with everything that an expression may use.
#[derive(Clone, Copy)]
pub(super) struct Evaluation<'a> {
    /// By [`FieldId`].
    pub values: &'a [Value<'a>],
    /// The fields of the expression.
    pub fields: &'a [FieldId],
    pub message: &'a MessageContext<'a>,
    pub arena: &'a Arena,
}

impl<'a> Evaluation<'a> {
    /// The expression as a condition.
    pub fn truth(&self, node: &'a Node) -> Truth {
        match node {
            Node::And(nodes) => self.all(nodes),
            Node::Or(nodes) => self.any(nodes),
            Node::Not(node) => self.truth(node).negate(),
            Node::Compare(first, rest) => self.chain(first, rest),
            Node::Like(left, pattern) => {
                any_element(self.value(left), |value| match self.arena.text(value) {
                    Some(text) if self.may_search(text) => pattern.is_match(text).into(),
                    _ => Truth::Unknown,
                })
            }
            Node::In(left, members) => self.is_in(self.value(left), members),
            Node::Between(nodes) => self.between(nodes),
            Node::Affix(affix, left, affixes) => self.affix(*affix, self.value(left), affixes),
            Node::IsNull(node) => self.value(node).scalar().is_null().into(),
            Node::IsNan(node) => {
                matches!(self.value(node).scalar(), Value::Number(number, _) if number.is_nan()).into()
            }
            Node::Guard(guard) => self.guarded(&**guard),
            Node::Unambiguous => self.is_unambiguous().into(),
            _ => self.value(node).truth(),
        }
    }

    /// Whether all filters hold that a guard has for the topic.
    fn guarded(&self, guard: &dyn TopicGuard) -> Truth {
        let Some(filters) = guard.filters_of(self.message.topic) else { return Truth::False };
        filters.iter().fold(Truth::True, |truth, filter| truth.and(filter.truth(self.message, self.arena)))
    }

    /// Whether the whole message can be read, and has no key twice. All filters of one message
    /// share the answer.
    fn is_unambiguous(&self) -> bool {
        let MessageContext { message_type, data, .. } = *self.message;
        if let Some(known) = self.arena.is_unambiguous(data) {
            return known;
        }
        if !self.arena.spend(data.len() as u64) {
            return false;
        }
        let checked = message_type.is_unambiguous(data, self.arena);
        if let Err(reason) = checked {
            self.message.report(self.arena, reason);
        }
        let is_unambiguous = checked == Ok(true);
        self.arena.note_unambiguous(data, is_unambiguous);
        is_unambiguous
    }

    /// The expression as a value.
    pub fn value(&self, node: &'a Node) -> Value<'a> {
        match node {
            Node::Literal(literal) => literal.value(),
            Node::Field(field) => self.values[self.fields[*field as usize].index()],
            Node::Arithmetic(first, rest) => rest
                .iter()
                .fold(self.value(first), |left, (operator, right)| operator.apply(left, self.value(right))),
            Node::Negate(node) => match self.value(node).to_number() {
                Some(number) => Operator::Subtract.apply(Value::integer(0), Value::number(number)),
                None => Value::Null,
            },
            Node::If(nodes) => match self.truth(&nodes[0]) {
                Truth::True => self.value(&nodes[1]),
                Truth::False | Truth::Unknown => self.value(&nodes[2]),
            },
            Node::Call(function, arguments) => self.call(function, arguments),
            Node::ReplacePattern(arguments, pattern) => {
                self.count_result(regexp_replace(self, arguments, pattern))
            }
            _ => self.truth(node).value(),
        }
    }

    /// Whether there is effort left to search a text for a pattern.
    pub fn may_search(&self, text: &[u8]) -> bool {
        self.arena.spend(PATTERN_EFFORT + SEARCH_EFFORT * text.len() as u64)
    }

    /// Whether there is effort left to replace a part of a text that was found.
    pub fn may_replace(&self) -> bool {
        self.arena.spend(REPLACED_EFFORT)
    }

    /// As [`Evaluation::may_replace`], for a match of a pattern with its groups.
    pub fn may_replace_match(&self) -> bool {
        self.arena.spend(REPLACED_MATCH_EFFORT)
    }

    fn call(&self, function: &'a Function, arguments: &'a [Node]) -> Value<'a> {
        if !self.arena.spend(CALL_EFFORT) {
            return Value::Null;
        }
        self.count_result((function.evaluate)(self, arguments))
    }

    /// Subtracts the effort of making a value.
    fn count_result(&self, value: Value<'a>) -> Value<'a> {
        let effort = match value {
            Value::Text(text) => text.len() as u64,
            Value::Array(elements) => ELEMENT_EFFORT * elements.len() as u64,
            _ => 0,
        };
        if effort == 0 || self.arena.spend(effort) { value } else { Value::Null }
    }

    /// Whether there is effort left to compare two values. Each may be an array.
    fn may_compare(&self, left: Value<'a>, right: Value<'a>) -> bool {
        let count = match (left, right) {
            (Value::Array(lefts), Value::Array(rights)) => lefts.len().saturating_mul(rights.len()),
            (Value::Array(elements), _) | (_, Value::Array(elements)) => elements.len(),
            _ => return true,
        };
        self.arena.spend(ELEMENT_EFFORT.saturating_mul(count as u64))
    }

    /// The text of a single value, as functions take it.
    pub fn text(&self, node: &'a Node) -> Option<&'a [u8]> {
        let text = self.arena.text(self.value(node))?;
        // Functions process plain text several bytes at a time.
        self.arena.spend(1 + text.len() as u64 / 4).then_some(text)
    }

    /// The number of a single value; `None` for NULL, NaN for a value without a number.
    pub fn number(&self, node: &'a Node) -> Option<Number> {
        self.value(node).to_number()
    }

    fn all(&self, nodes: &'a [Node]) -> Truth {
        let mut result = Truth::True;
        for node in nodes {
            match self.truth(node) {
                Truth::False => return Truth::False,
                Truth::Unknown => result = Truth::Unknown,
                Truth::True => {}
            }
        }
        result
    }

    fn any(&self, nodes: &'a [Node]) -> Truth {
        let mut result = Truth::False;
        for node in nodes {
            match self.truth(node) {
                Truth::True => return Truth::True,
                Truth::Unknown => result = Truth::Unknown,
                Truth::False => {}
            }
        }
        result
    }

    #[inline]
    fn chain(&self, first: &'a Node, rest: &'a [(Comparison, Node)]) -> Truth {
        let mut left = self.value(first);
        let mut truth = Truth::Unknown;
        for (comparison, right) in rest {
            let right = self.value(right);
            if !self.may_compare(left, right) {
                return Truth::Unknown;
            }
            truth = comparison.holds(left, right);
            left = truth.value();
        }
        truth
    }

    fn is_in(&self, left: Value<'a>, members: &'a [Node]) -> Truth {
        let mut result = Truth::False;
        for member in members {
            let member = self.value(member);
            if !self.may_compare(left, member) {
                return Truth::Unknown;
            }
            match Comparison::Equal.holds(left, member) {
                Truth::True => return Truth::True,
                Truth::Unknown => result = Truth::Unknown,
                Truth::False => {}
            }
        }
        result
    }

    fn between(&self, nodes: &'a [Node; 3]) -> Truth {
        let (low, high) = (self.value(&nodes[1]).scalar(), self.value(&nodes[2]).scalar());
        any_element(self.value(&nodes[0]), |value| {
            Comparison::GreaterOrEqual
                .holds_single(value, low)
                .and(Comparison::LessOrEqual.holds_single(value, high))
        })
    }

    fn affix(&self, affix: Affix, left: Value<'a>, affixes: &'a [Node]) -> Truth {
        let mut result = Truth::False;
        for node in affixes {
            let wanted = self.text(node);
            let truth = any_element(left, |value| match (self.arena.text(value), wanted) {
                (Some(text), Some(wanted)) if affix == Affix::Begins => text.starts_with(wanted).into(),
                (Some(text), Some(wanted)) => text.ends_with(wanted).into(),
                _ => Truth::Unknown,
            });
            match truth {
                Truth::True => return Truth::True,
                other => result = result.or(other),
            }
        }
        result
    }
}

impl Comparison {
    /// Whether the comparison holds for any element of one side and any element of the other.
    #[inline]
    pub fn holds(self, left: Value<'_>, right: Value<'_>) -> Truth {
        match (left, right) {
            (Value::Array(lefts), Value::Array(rights))
                if lefts.len().saturating_mul(rights.len()) > ARRAY_PAIR_COUNT_MAX =>
            {
                Truth::Unknown
            }
            (Value::Array(_), _) | (_, Value::Array(_)) => {
                any_element(left, |left| any_element(right, |right| self.holds_single(left, right)))
            }
            (left, right) => self.holds_single(left, right),
        }
    }

    #[inline]
    fn holds_single(self, left: Value<'_>, right: Value<'_>) -> Truth {
        match compare(left, right) {
            None => Truth::Unknown,
            Some(order) => self.accepts(order).into(),
        }
    }

    fn accepts(self, order: Ordering) -> bool {
        match self {
            Comparison::Equal => order.is_eq(),
            Comparison::NotEqual => order.is_ne(),
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Greater => order.is_gt(),
            Comparison::GreaterOrEqual => order.is_ge(),
        }
    }
}

impl Operator {
    /// NULL with any value is NULL. A value that is not a number is NaN. Integers stay exact while
    /// they fit, and become floats beyond.
    pub fn apply<'a>(self, left: Value<'a>, right: Value<'a>) -> Value<'a> {
        let (Some(left), Some(right)) = (left.to_number(), right.to_number()) else { return Value::Null };
        let exact =
            left.as_i128().zip(right.as_i128()).and_then(|(left, right)| self.apply_exactly(left, right));
        Value::number(exact.unwrap_or_else(|| {
            let (left, right) = (left.as_f64(), right.as_f64());
            Number::Float(match self {
                Operator::Add => left + right,
                Operator::Subtract => left - right,
                Operator::Multiply => left * right,
                Operator::Divide => left / right,
                Operator::Modulo => left % right,
            })
        }))
    }

    /// Both operands fit 64 bits, so that no sum or product here overflows 128.
    fn apply_exactly(self, left: i128, right: i128) -> Option<Number> {
        match self {
            Operator::Add => Some(Number::of_i128(left + right)),
            Operator::Subtract => Some(Number::of_i128(left - right)),
            // Two unsigned 64-bit factors pass the signed 128-bit maximum.
            Operator::Multiply => left.checked_mul(right).map(Number::of_i128),
            Operator::Divide | Operator::Modulo if right == 0 => Some(Number::Float(f64::NAN)),
            Operator::Divide => (left % right == 0).then(|| Number::of_i128(left / right)),
            Operator::Modulo => Some(Number::of_i128(left % right)),
        }
    }
}

/// TRUE if it holds for any element. NULL if it is unknown for one, or there is no element. Else
/// FALSE. A value that is not an array counts as one element.
#[inline]
pub(super) fn any_element<'a>(value: Value<'a>, mut holds: impl FnMut(Value<'a>) -> Truth) -> Truth {
    let Value::Array(elements) = value else { return holds(value) };
    let mut result = if elements.is_empty() { Truth::Unknown } else { Truth::False };
    for element in elements {
        match holds(*element) {
            Truth::True => return Truth::True,
            Truth::Unknown => result = Truth::Unknown,
            Truth::False => {}
        }
    }
    result
}
