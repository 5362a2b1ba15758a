//! Conditions on single values, with their meaning in Spark.

use std::cmp::Ordering;

use crate::field::Value;
use crate::spec::{FieldType, Literal, Operator, PredicateSpec, SpecError};

/// A condition. The plan has its value.
#[derive(Clone, Debug)]
pub(crate) struct Predicate {
    pub operator: Operator,
    /// Literals of the kind of the value.
    pub values: Vec<Literal>,
    pub negated: bool,
}

/// The kind of a value in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Boolean,
    /// A whole number, also a time and a date.
    Whole,
    Float,
    Text,
}

impl Kind {
    pub fn of_field(field: FieldType) -> Self {
        match field {
            FieldType::Boolean => Kind::Boolean,
            FieldType::Byte
            | FieldType::Short
            | FieldType::Int
            | FieldType::Long
            | FieldType::Timestamp
            | FieldType::Date => Kind::Whole,
            FieldType::Float | FieldType::Double => Kind::Float,
            FieldType::String => Kind::Text,
        }
    }

    fn of_literal(literal: &Literal) -> Self {
        match literal {
            Literal::Bool(_) => Kind::Boolean,
            Literal::Int(_) => Kind::Whole,
            Literal::Float(_) => Kind::Float,
            Literal::Text(_) => Kind::Text,
        }
    }
}

impl Predicate {
    /// Checks the constants against the kind of the value. So a comparison always has a result.
    ///
    /// # Errors
    /// [`SpecError::Predicate`].
    pub fn new(spec: PredicateSpec, kind: Kind) -> Result<Self, SpecError> {
        let PredicateSpec { operator, values, negated, .. } = spec;
        let is_of_text = matches!(operator, Operator::StartsWith | Operator::EndsWith | Operator::Contains);
        let has_values = match operator {
            Operator::IsNull => values.is_empty(),
            Operator::In => !values.is_empty(),
            _ => values.len() == 1,
        };
        let are_of_kind = values.iter().all(|literal| Kind::of_literal(literal) == kind);
        if !has_values || !are_of_kind || (is_of_text && kind != Kind::Text) {
            let reason = format!("{operator:?} {values:?} cannot be asked of a value of the kind {kind:?}");
            return Err(SpecError::Predicate { reason });
        }
        Ok(Predicate { operator, values, negated })
    }

    /// Whether it is true for the value; `None` = NULL.
    pub fn holds(&self, value: Option<Value<'_>>) -> bool {
        if self.operator == Operator::IsNull {
            return value.is_none() != self.negated;
        }
        let Some(value) = value else { return false };
        self.values.iter().any(|literal| self.compare(value, literal)) != self.negated
    }

    fn compare(&self, value: Value<'_>, literal: &Literal) -> bool {
        if let (Value::Text(value), Literal::Text(literal)) = (value, literal) {
            match self.operator {
                Operator::StartsWith => return value.starts_with(literal),
                Operator::EndsWith => return value.ends_with(literal),
                Operator::Contains => return value.contains(literal),
                _ => (),
            }
        }
        let order = match (value, literal) {
            (Value::Bool(value), Literal::Bool(literal)) => value.cmp(literal),
            (Value::Int(value), Literal::Int(literal)) => value.cmp(literal),
            (Value::Float(value), Literal::Float(literal)) => order_of_floats(value, *literal),
            (Value::Text(value), Literal::Text(literal)) => value.cmp(literal),
            // `new` refused it.
            _ => return false,
        };
        match self.operator {
            Operator::In => order.is_eq(),
            Operator::Less => order.is_lt(),
            Operator::LessOrEqual => order.is_le(),
            Operator::Greater => order.is_gt(),
            Operator::GreaterOrEqual => order.is_ge(),
            Operator::IsNull | Operator::StartsWith | Operator::EndsWith | Operator::Contains => false,
        }
    }
}

/// The order of Spark: NaN equals NaN and is greater than every number, and -0.0 equals 0.0.
fn order_of_floats(one: f64, other: f64) -> Ordering {
    one.partial_cmp(&other).unwrap_or_else(|| one.is_nan().cmp(&other.is_nan()))
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
    fn nan_is_greater_than_every_number_and_equals_itself() {
        let holds = |value: f64, operator, literal: f64, negated| {
            Predicate { operator, values: vec![Literal::Float(literal)], negated }
                .holds(Some(Value::Float(value)))
        };
        for literal in [f64::NEG_INFINITY, -1.0, 0.0, 5.0, f64::INFINITY] {
            for operator in [Operator::In, Operator::Less, Operator::LessOrEqual] {
                assert!(!holds(f64::NAN, operator, literal, false), "{operator:?} {literal}");
                assert!(holds(f64::NAN, operator, literal, true), "{operator:?} {literal}");
            }
            for operator in [Operator::Greater, Operator::GreaterOrEqual] {
                assert!(holds(f64::NAN, operator, literal, false), "{operator:?} {literal}");
                assert!(!holds(f64::NAN, operator, literal, true), "{operator:?} {literal}");
                assert!(!holds(literal, operator, f64::NAN, false), "{operator:?} {literal}");
            }
            assert!(holds(literal, Operator::Less, f64::NAN, false), "{literal}");
        }
        assert!(holds(f64::NAN, Operator::In, -f64::NAN, false));
        assert!(!holds(f64::NAN, Operator::Less, f64::NAN, false));
        assert!(holds(-0.0, Operator::In, 0.0, false));
        assert!(!holds(-0.0, Operator::Less, 0.0, false));
    }

    #[test]
    fn constants_of_another_type_than_the_value_are_refused() {
        let new = |operator, values: &[Literal], kind| {
            let source = crate::spec::Source::Constant(String::new());
            Predicate::new(PredicateSpec { source, operator, values: values.to_vec(), negated: false }, kind)
        };
        assert!(new(Operator::In, &[Literal::Int(1), Literal::Int(2)], Kind::Whole).is_ok());
        for (operator, values, kind) in [
            (Operator::In, vec![Literal::Int(1)], Kind::Float),
            (Operator::In, vec![Literal::Text("1".into()), Literal::Int(1)], Kind::Text),
            (Operator::In, vec![], Kind::Whole),
            (Operator::Less, vec![Literal::Int(1), Literal::Int(2)], Kind::Whole),
            (Operator::IsNull, vec![Literal::Int(1)], Kind::Whole),
            (Operator::StartsWith, vec![Literal::Int(1)], Kind::Whole),
        ] {
            assert!(matches!(new(operator, &values, kind), Err(SpecError::Predicate { .. })), "{operator:?}");
        }
    }
}
