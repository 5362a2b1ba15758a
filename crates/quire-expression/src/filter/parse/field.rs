//! The fields that an expression names, and the destination of its value.

use super::{Parsed, Parser};
use crate::filter::join::{TopicField, split_name};
use crate::filter::lexer::Token;
use crate::filter::node::{Literal, Node};
use crate::filter::{FilterError, FilterOptions};
use crate::message_type::{FieldPlan, MessageType, PATH_STEP_COUNT_MAX, Step};

/// The most different fields of one expression. Each costs time for every message.
const FIELD_COUNT_MAX: usize = 4_096;

/// The destination of the value of an expression.
#[derive(Debug)]
pub(in crate::filter) struct Destination {
    /// As written.
    pub name: Box<str>,
    /// The byte at which it begins.
    pub start: usize,
}

/// The result of parsing an assignment.
pub(in crate::filter) struct Assigned {
    pub parsed: Parsed,
    /// Which of its fields are read in the previous record.
    pub are_previous: Vec<bool>,
    pub destination: Destination,
}

/// Parses `expression AS /destination`. An entry may be only the name of a field, which is then the
/// destination, too.
pub(in crate::filter) fn parse_assignment(
    text: &str,
    options: &FilterOptions,
    allows_previous: bool,
) -> Result<Assigned, FilterError> {
    let mut parser = Parser::new(text, options, allows_previous)?;
    let (root, destination) = parser.assigned(text)?;
    let are_previous = std::mem::take(&mut parser.are_previous);
    Ok(Assigned { parsed: parser.parsed(root), are_previous, destination })
}

/// The fields of an expression that are read in one message.
#[derive(Default)]
pub(super) struct Known {
    /// Identifies fields, in any notation.
    plan: FieldPlan,
    /// The number of a field of the plan in this expression, from 1; 0 = none yet.
    numbers: Vec<u32>,
}

impl Parser<'_> {
    /// The expression of an assignment, and where its value goes.
    pub(super) fn assigned(&mut self, text: &str) -> Result<(Node, Destination), FilterError> {
        let start = self.start;
        let root = self.expression()?;
        let is_field = matches!(root, Node::Field(_)) && self.are_previous == [false];
        let destination = if self.take_word("AS")? {
            let destination = Destination { name: self.field_name()?, start: self.start };
            self.advance()?;
            destination
        } else if self.token == Token::End
            && is_field
            && let Some(name) = shown_name(text[start..].trim_end(), &self.names[0])
        {
            Destination { name, start }
        } else {
            return Err(self.expected("an operator, or AS and the field that gets the value"));
        };
        if self.token != Token::End {
            return Err(self.expected("the end"));
        }
        Ok((root, destination))
    }

    /// The name of a field, as written.
    pub(super) fn field_name(&self) -> Result<Box<str>, FilterError> {
        match self.token {
            Token::Identifier(text) => Ok(text.into()),
            Token::Bracketed(name) => Ok(format!("[/{name}]").into()),
            _ => Err(self.expected("a field like /symbol")),
        }
    }

    /// The name of a field that an expression reads. Where there are several topics, it has its
    /// topic.
    fn read_name(&self) -> Result<Box<str>, FilterError> {
        let (text, topics) = match (self.token, &self.options.joined) {
            (Token::Qualified(text), Some(topics)) => (text, topics),
            (Token::Qualified(_), None) => {
                return Err(
                    self.expected("a field like /symbol; only views with joins name the topic of a field")
                );
            }
            (_, Some(_)) => {
                return Err(self.expected("the topic of the field before it, as in [orders].[/id]"));
            }
            (_, None) => return self.field_name(),
        };
        let field = TopicField::of_token(text);
        let Some(found) = topics.iter().find(|topic| topic.topic == field.topic) else {
            return Err(self.expected("a field of a topic that join names"));
        };
        match &field.message_type {
            Some(name) if MessageType::from_name(name) != Some(found.message_type) => {
                Err(self.expected(&format!("the message type of the topic, {}", found.message_type.name())))
            }
            _ => Ok(field.name()),
        }
    }

    /// A field of the message, or of the previous record.
    pub(super) fn identifier(&mut self) -> Result<Node, FilterError> {
        let name = self.read_name()?;
        let path = path_of(&name);
        if path.len() > PATH_STEP_COUNT_MAX {
            return Err(self.expected(&format!("at most {PATH_STEP_COUNT_MAX} steps")));
        }
        let (token, start) = (self.token, self.start);
        self.advance()?;
        let is_previous = self.is_word("OF");
        if is_previous && !self.allows_previous {
            return Err(self.expected("an operator or the end; OF PREVIOUS is only for enrichment"));
        }
        if self.take_word("OF")? && !self.take_word("PREVIOUS")? {
            return Err(self.expected("PREVIOUS"));
        }
        if self.options.hidden.as_ref().is_some_and(|select| select.hides(&path)) {
            return Ok(Node::Literal(Literal::Null));
        }
        let known = &mut self.known[usize::from(is_previous)];
        let field = known.plan.add(&path).index();
        known.numbers.resize(known.plan.len(), 0);
        if known.numbers[field] == 0 {
            if self.names.len() == FIELD_COUNT_MAX {
                let expected = format!("at most {FIELD_COUNT_MAX} different fields");
                return Err(FilterError::at(self.lexer.text, start, expected, token.describe()));
            }
            self.names.push(name);
            self.are_previous.push(is_previous);
            known.numbers[field] = self.names.len() as u32;
        }
        let number = known.numbers[field] - 1;
        self.note_field(number, start);
        Ok(Node::Field(number))
    }
}

/// The destination of an entry that is only the name of a field: the field without its topic.
fn shown_name(text: &str, name: &str) -> Option<Box<str>> {
    match split_name(name) {
        Some((_, field)) => (text.starts_with('[') && text.ends_with(name)).then_some(field),
        None => (text == name).then(|| name.into()),
    }
}

/// The steps of an identifier, `/order/legs[0]/price`, as expressions write it. The topic of a
/// field is the first step, in brackets.
pub fn path_of(identifier: &str) -> Vec<Step> {
    if let Some((topic, field)) = split_name(identifier) {
        let mut steps = vec![Step::Name(format!("[{topic}]").into_bytes().into())];
        steps.extend(path_of(&field));
        return steps;
    }
    if let Some(name) = identifier.strip_prefix("[/").and_then(|name| name.strip_suffix(']')) {
        return vec![Step::Name(name.as_bytes().into())];
    }
    let mut steps = Vec::new();
    for part in identifier.split('/').skip(1) {
        let mut pieces = part.split('[');
        steps.extend(pieces.next().map(|name| Step::Name(name.as_bytes().into())));
        // No array has an index above 32 bits, so the largest index has the same meaning.
        let index = |piece: &str| Step::Index(piece.trim_end_matches(']').parse().unwrap_or(u32::MAX));
        steps.extend(pieces.map(index));
    }
    steps
}
