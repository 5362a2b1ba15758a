//! Aggregates in projections: `SUM(/price * /qty)`.

use super::field::Destination;
use super::{Parsed, Parser};
use crate::filter::aggregate::AggregateKind;
use crate::filter::lexer::Token;
use crate::filter::node::{Literal, Node};
use crate::filter::{FilterError, FilterOptions};

/// An aggregate of an entry: its kind, the expression whose values it takes, and the number of the
/// field that has its result.
#[derive(Debug)]
pub(in crate::filter) struct Aggregate {
    pub kind: AggregateKind,
    pub argument: Node,
    pub number: u32,
}

/// The result of parsing an entry of a projection.
pub(in crate::filter) struct Projected {
    pub parsed: Parsed,
    pub aggregates: Vec<Aggregate>,
    /// The fields outside of aggregates: the number, and the byte at which the field begins.
    pub plain: Vec<(u32, usize)>,
    pub destination: Destination,
}

/// The aggregates of an entry that were parsed so far.
#[derive(Default)]
pub(super) struct Aggregating {
    found: Vec<Aggregate>,
    plain: Vec<(u32, usize)>,
    /// The parser is inside an aggregate.
    is_inside: bool,
}

/// Functions about one message. A group has many.
const MESSAGE_FUNCTIONS: &[&str] =
    &["MESSAGE_SIZE", "CORRELATION_ID", "HEADER", "LAST_UPDATED", "BOOKMARK", "SOW_KEY"];

/// Parses `expression AS /destination`, with aggregates in the expression.
pub(in crate::filter) fn parse_projection(
    text: &str,
    options: &FilterOptions,
) -> Result<Projected, FilterError> {
    let mut parser = Parser::new(text, options, false)?;
    parser.aggregating = Some(Aggregating::default());
    let (root, destination) = parser.assigned(text)?;
    let Aggregating { found, plain, .. } = parser.aggregating.take().unwrap_or_default();
    Ok(Projected { parsed: parser.parsed(root), aggregates: found, plain, destination })
}

impl Parser<'_> {
    /// A call of an aggregate. `None`: it is another function, or aggregates are not possible here.
    pub(super) fn aggregate(&mut self, name: &str, start: usize) -> Result<Option<Node>, FilterError> {
        let Some(aggregating) = &mut self.aggregating else { return Ok(None) };
        let text = self.lexer.text;
        let refused = |expected: &str| FilterError::at(text, start, expected, Token::Word(name).describe());
        let Some(kind) = AggregateKind::of(name) else {
            if MESSAGE_FUNCTIONS.contains(&name) && self.options.joined.is_some() {
                return Err(refused("no function about one message, because a join has several messages"));
            }
            if MESSAGE_FUNCTIONS.contains(&name) && !aggregating.is_inside {
                return Err(refused("an aggregate around it, because a group has many messages"));
            }
            return Ok(None);
        };
        if aggregating.is_inside {
            return Err(refused("an expression without another aggregate"));
        }
        aggregating.is_inside = true;
        let arguments = Vec::from(if self.is_empty_list()? { Box::default() } else { self.list()? });
        let aggregating = self.aggregating.get_or_insert_default();
        aggregating.is_inside = false;
        let (kind, argument) = match (kind, <[Node; 1]>::try_from(arguments)) {
            (kind, Ok([argument])) => (kind, argument),
            (AggregateKind::DistinctList(_), Err(arguments)) => {
                let mut arguments = arguments.into_iter();
                match (arguments.next(), arguments.next(), arguments.next()) {
                    (Some(argument), Some(Node::Literal(Literal::Text(delimiter))), None) => {
                        (AggregateKind::DistinctList(delimiter), argument)
                    }
                    _ => {
                        return Err(refused(
                            "1 argument, and perhaps a delimiter in quotes, for DISTINCT_LIST",
                        ));
                    }
                }
            }
            (_, Err(_)) => return Err(refused(&format!("1 argument for {name}"))),
        };
        // A field without a name has the result.
        let number = self.names.len() as u32;
        self.names.push("".into());
        self.are_previous.push(false);
        aggregating.found.push(Aggregate { kind, argument, number });
        Ok(Some(Node::Field(number)))
    }

    /// Notes a field that is outside of an aggregate.
    pub(super) fn note_field(&mut self, number: u32, start: usize) {
        if let Some(aggregating) = self.aggregating.as_mut().filter(|aggregating| !aggregating.is_inside) {
            aggregating.plain.push((number, start));
        }
    }
}
