//! Predicates of Spark as conditions of the scan.
//!
//! A condition of the scan may be wider than its predicate, never narrower.

use quire_arrow::{Attribute, Literal, Operator, PredicateSpec, Source};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::columns;
use crate::failure::Outcome;
use crate::options::ReadOptions;
use crate::schema::{Schema, Type};

/// A predicate of Spark or a part of one (`docs/internals/spark-reader.md`, "Conditions").
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Expression {
    /// A predicate.
    Predicate {
        /// Its name in Spark.
        name: String,
        /// Its arguments.
        #[serde(default)]
        children: Vec<Expression>,
    },
    /// A column.
    Column {
        /// Its name, then those of members of structs.
        column: Vec<String>,
    },
    /// A constant.
    Literal {
        /// Its value.
        literal: Value,
    },
    /// An expression without another form.
    Other {
        /// For people.
        other: String,
    },
}

/// How a scan applies a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Taken {
    /// It ignores it.
    None,
    /// It leaves out some of the rows that do not satisfy it.
    Partial,
    /// It leaves out every row that does not satisfy it.
    Exact,
}

/// The conditions that the scan applies for a predicate.
#[derive(Clone, Debug)]
pub(crate) struct Pushed {
    pub predicates: Vec<PredicateSpec>,
    pub taken: Taken,
}

impl Pushed {
    const NONE: Pushed = Pushed { predicates: Vec::new(), taken: Taken::None };

    fn exact(predicates: Vec<PredicateSpec>) -> Self {
        Pushed { predicates, taken: Taken::Exact }
    }

    fn and(mut self, other: Pushed) -> Self {
        self.predicates.extend(other.predicates);
        self.taken = match (self.taken, other.taken) {
            (one, other) if one == other => one,
            _ => Taken::Partial,
        };
        self
    }
}

/// Conditions for a predicate on columns of the schema.
pub(crate) fn push(expression: &Expression, schema: &Schema, options: &ReadOptions) -> Outcome<Pushed> {
    Pusher { schema, options }.push(expression, false)
}

struct Pusher<'a> {
    schema: &'a Schema,
    options: &'a ReadOptions,
}

impl Pusher<'_> {
    fn push(&self, expression: &Expression, negated: bool) -> Outcome<Pushed> {
        let Expression::Predicate { name, children } = expression else { return Ok(Pushed::NONE) };
        match (name.as_str(), children.as_slice()) {
            ("NOT", [child]) => self.push(child, !negated),
            // Both are true, or neither of two is: also with the third truth value of SQL.
            ("AND", [one, other]) if !negated => Ok(self.push(one, false)?.and(self.push(other, false)?)),
            ("OR", [one, other]) if negated => Ok(self.push(one, true)?.and(self.push(other, true)?)),
            ("ALWAYS_TRUE", []) if !negated => Ok(Pushed::exact(Vec::new())),
            ("IS_NULL", [Expression::Column { column }]) => self.is_null(column, negated),
            ("IS_NOT_NULL", [Expression::Column { column }]) => self.is_null(column, !negated),
            ("IN", [Expression::Column { column }, values @ ..]) => {
                let literals: Option<Vec<&Value>> = values.iter().map(literal).collect();
                literals.map_or(Ok(Pushed::NONE), |literals| self.is_in(column, literals, negated))
            }
            (_, [Expression::Column { column }, Expression::Literal { literal }]) => {
                self.comparison(name, column, literal, negated)
            }
            (_, [Expression::Literal { literal }, Expression::Column { column }]) => match name.as_str() {
                "<" => self.comparison(">", column, literal, negated),
                "<=" => self.comparison(">=", column, literal, negated),
                ">" => self.comparison("<", column, literal, negated),
                ">=" => self.comparison("<=", column, literal, negated),
                "=" | "<>" | "<=>" => self.comparison(name, column, literal, negated),
                _ => Ok(Pushed::NONE),
            },
            _ => Ok(Pushed::NONE),
        }
    }

    fn comparison(&self, name: &str, column: &[String], literal: &Value, negated: bool) -> Outcome<Pushed> {
        let operator = match name {
            "=" => Operator::In,
            "<>" => return self.comparison("=", column, literal, !negated),
            "<=>" if literal.is_null() => return self.is_null(column, negated),
            // Its negation is true for NULL, and no comparison here is.
            "<=>" if !negated => Operator::In,
            "<" => Operator::Less,
            "<=" => Operator::LessOrEqual,
            ">" => Operator::Greater,
            ">=" => Operator::GreaterOrEqual,
            "STARTS_WITH" => Operator::StartsWith,
            "ENDS_WITH" => Operator::EndsWith,
            "CONTAINS" => Operator::Contains,
            _ => return Ok(Pushed::NONE),
        };
        self.predicate(column, operator, &[literal], negated)
    }

    /// `IN` never finds NULL. `NOT IN` with a NULL is never true; Spark evaluates it.
    fn is_in(&self, column: &[String], mut values: Vec<&Value>, negated: bool) -> Outcome<Pushed> {
        let count = values.len();
        values.retain(|value| !value.is_null());
        match negated && values.len() < count {
            true => Ok(Pushed::NONE),
            false => self.predicate(column, Operator::In, &values, negated),
        }
    }

    fn is_null(&self, column: &[String], negated: bool) -> Outcome<Pushed> {
        Ok(match self.source(column)? {
            Some((source, _)) => {
                let predicate =
                    PredicateSpec { source, operator: Operator::IsNull, values: Vec::new(), negated };
                Pushed::exact(vec![predicate])
            }
            None => Pushed::NONE,
        })
    }

    fn predicate(
        &self,
        column: &[String],
        operator: Operator,
        values: &[&Value],
        negated: bool,
    ) -> Outcome<Pushed> {
        let Some((source, data_type)) = self.source(column)? else { return Ok(Pushed::NONE) };
        let is_of_text = matches!(operator, Operator::StartsWith | Operator::EndsWith | Operator::Contains);
        let values: Option<Vec<Literal>> = values.iter().map(|value| literal_of(value, &data_type)).collect();
        Ok(match values {
            Some(values) if !values.is_empty() && (!is_of_text || data_type == Type::String) => {
                Pushed::exact(vec![PredicateSpec { source, operator, values, negated }])
            }
            _ => Pushed::NONE,
        })
    }

    /// A value that the scan can compare.
    fn source(&self, column: &[String]) -> Outcome<Option<(Source, Type)>> {
        let found = columns::source(self.schema, column, self.options)?;
        Ok(found.filter(|(source, _)| {
            !matches!(
                source,
                Source::Attribute(Attribute::DataBinary | Attribute::DataVariant | Attribute::Headers)
            )
        }))
    }
}

fn literal(expression: &Expression) -> Option<&Value> {
    match expression {
        Expression::Literal { literal } => Some(literal),
        _ => None,
    }
}

/// The value as the scan compares it with a column of this type; `None` when it cannot.
fn literal_of(value: &Value, data_type: &Type) -> Option<Literal> {
    match data_type {
        Type::Boolean => value.as_bool().map(Literal::Bool),
        Type::Byte | Type::Short | Type::Int | Type::Long | Type::Timestamp | Type::Date => {
            value.as_i64().map(Literal::Int)
        }
        Type::Float | Type::Double => value.as_f64().filter(|value| value.is_finite()).map(Literal::Float),
        Type::String => value.as_str().map(|text| Literal::Text(text.to_owned())),
        _ => None,
    }
}
