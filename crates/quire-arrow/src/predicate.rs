//! Conditions on single values, with the meaning that Spark gives them.

use crate::field::Value;
use crate::spec::{Literal, Operator};

/// A condition; of which value, the plan knows.
#[derive(Clone, Debug)]
pub(crate) struct Predicate {
    pub operator: Operator,
    pub values: Vec<Literal>,
    pub negated: bool,
}

impl Predicate {
    /// Whether it is true of the value, `None` = NULL. A comparison of things that cannot be compared leaves the row in: Spark decides.
    pub fn holds(&self, value: Option<Value<'_>>) -> bool {
        if self.operator == Operator::IsNull {
            return value.is_none() != self.negated;
        }
        let Some(value) = value else { return false };
        let mut unknown = self.values.is_empty();
        let found = self.values.iter().any(|literal| match self.compare(value, literal) {
            Some(found) => found,
            None => {
                unknown = true;
                false
            }
        });
        unknown || found != self.negated
    }

    fn compare(&self, value: Value<'_>, literal: &Literal) -> Option<bool> {
        if let (Value::Text(value), Literal::Text(literal)) = (value, literal) {
            match self.operator {
                Operator::StartsWith => return Some(value.starts_with(literal)),
                Operator::EndsWith => return Some(value.ends_with(literal)),
                Operator::Contains => return Some(value.contains(literal)),
                _ => (),
            }
        }
        let order = match (value, literal) {
            (Value::Bool(value), Literal::Bool(literal)) => value.cmp(literal),
            (Value::Int(value), Literal::Int(literal)) => value.cmp(literal),
            (Value::Float(value), Literal::Float(literal)) => value.partial_cmp(literal)?,
            (Value::Text(value), Literal::Text(literal)) => value.cmp(literal),
            // A literal of another type: Spark casts one of both before it compares.
            _ => return None,
        };
        match self.operator {
            Operator::In => Some(order.is_eq()),
            Operator::Less => Some(order.is_lt()),
            Operator::LessOrEqual => Some(order.is_le()),
            Operator::Greater => Some(order.is_gt()),
            Operator::GreaterOrEqual => Some(order.is_ge()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predicate(operator: Operator, values: &[i64], negated: bool) -> Predicate {
        Predicate { operator, values: values.iter().map(|value| Literal::Int(*value)).collect(), negated }
    }

    #[test]
    fn null_meets_neither_a_condition_nor_its_opposite() {
        for negated in [false, true] {
            assert!(!predicate(Operator::In, &[1], negated).holds(None));
            assert!(!predicate(Operator::Less, &[1], negated).holds(None));
        }
        assert!(predicate(Operator::IsNull, &[], false).holds(None));
        assert!(!predicate(Operator::IsNull, &[], true).holds(None));
    }

    #[test]
    fn comparisons_and_their_opposites() {
        let one = Some(Value::Int(1));
        assert!(predicate(Operator::In, &[3, 1], false).holds(one));
        assert!(!predicate(Operator::In, &[3, 1], true).holds(one));
        assert!(predicate(Operator::In, &[3], true).holds(one));
        assert!(predicate(Operator::LessOrEqual, &[1], false).holds(one));
        assert!(!predicate(Operator::Less, &[1], false).holds(one));
        assert!(predicate(Operator::Less, &[1], true).holds(one));
    }

    #[test]
    fn what_cannot_be_compared_stays_in() {
        let text = Some(Value::Text("a"));
        assert!(predicate(Operator::In, &[1], false).holds(text));
        assert!(predicate(Operator::In, &[1], true).holds(text));
    }
}
