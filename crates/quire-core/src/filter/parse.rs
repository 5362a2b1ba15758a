//! From words to a tree: `OR` of `AND` of `NOT` of predicates.

use regex::bytes::{Regex, RegexBuilder};

use super::lexer::{Token, tokens};
use super::{FILTER_SIZE_MAX, FilterError};
use crate::message_type::Path;

#[derive(Debug)]
pub(super) enum Node {
    Any(Vec<Node>),
    All(Vec<Node>),
    Not(Box<Node>),
    Compare {
        left: Operand,
        comparison: Comparison,
        right: Operand,
    },
    In {
        left: Operand,
        members: Vec<Operand>,
    },
    Between {
        left: Operand,
        low: Operand,
        high: Operand,
    },
    Like {
        left: Operand,
        pattern: Box<Regex>,
    },
    IsNull {
        left: Operand,
    },
    /// A field or constant on its own.
    Truth {
        value: Operand,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Operand {
    /// Which of the filter's paths.
    Field(usize),
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
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

/// Parentheses and NOTs inside one another: no person writes more, and evaluation recurses as deep.
const NESTING_MAX: usize = 64;

/// Bytes that a compiled pattern may take.
const PATTERN_SIZE_MAX: usize = 1024 * 1024;

pub(super) fn parse(text: &str) -> Result<(Node, Vec<Path>), FilterError> {
    if text.len() > FILTER_SIZE_MAX {
        let expected = format!("at most {FILTER_SIZE_MAX} bytes");
        return Err(FilterError { column: 1, expected, found: format!("{} bytes", text.len()) });
    }
    let mut parser = Parser { tokens: tokens(text)?, at: 0, paths: Vec::new(), depth: 0 };
    let root = parser.any()?;
    match parser.peek() {
        Token::End => Ok((root, parser.paths)),
        _ => Err(parser.expected("AND, OR or the end")),
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    paths: Vec<Path>,
    depth: usize,
}

impl Parser {
    fn any(&mut self) -> Result<Node, FilterError> {
        let mut nodes = vec![self.all()?];
        while self.take_word("OR") {
            nodes.push(self.all()?);
        }
        Ok(one_or(nodes, Node::Any))
    }

    fn all(&mut self) -> Result<Node, FilterError> {
        let mut nodes = vec![self.not()?];
        while self.take_word("AND") {
            nodes.push(self.not()?);
        }
        Ok(one_or(nodes, Node::All))
    }

    fn not(&mut self) -> Result<Node, FilterError> {
        let opens = matches!(self.peek(), Token::Symbol("("));
        if !opens && !matches!(self.peek(), Token::Word(word) if word == "NOT") {
            return self.predicate();
        }
        if self.depth == NESTING_MAX {
            return Err(self.expected(&format!("at most {NESTING_MAX} levels of parentheses and NOT")));
        }
        self.at += 1;
        self.depth += 1;
        let node = if opens {
            let node = self.any()?;
            self.take_symbol(")")?;
            node
        } else {
            Node::Not(Box::new(self.not()?))
        };
        self.depth -= 1;
        Ok(node)
    }

    fn predicate(&mut self) -> Result<Node, FilterError> {
        let left = self.operand()?;
        let negated = self.take_word("NOT");
        let node = match self.peek().clone() {
            Token::Symbol(symbol) if !negated && comparison(symbol).is_some() => {
                self.at += 1;
                let right = self.operand()?;
                let comparison = comparison(symbol).unwrap_or(Comparison::Equal);
                return Ok(Node::Compare { left, comparison, right });
            }
            Token::Word(word) => match word.as_str() {
                "IN" => {
                    self.at += 1;
                    self.take_symbol("(")?;
                    let mut members = vec![self.operand()?];
                    while matches!(self.peek(), Token::Symbol(",")) {
                        self.at += 1;
                        members.push(self.operand()?);
                    }
                    self.take_symbol(")")?;
                    Node::In { left, members }
                }
                "BETWEEN" => {
                    self.at += 1;
                    let low = self.operand()?;
                    if !self.take_word("AND") {
                        return Err(self.expected("AND"));
                    }
                    Node::Between { left, low, high: self.operand()? }
                }
                "LIKE" => {
                    self.at += 1;
                    Node::Like { left, pattern: Box::new(self.pattern()?) }
                }
                "IS" if !negated => {
                    self.at += 1;
                    let negated = self.take_word("NOT");
                    if !self.take_word("NULL") {
                        return Err(self.expected(if negated { "NULL" } else { "NULL or NOT NULL" }));
                    }
                    let node = Node::IsNull { left };
                    return Ok(if negated { Node::Not(Box::new(node)) } else { node });
                }
                _ if !negated => return Ok(Node::Truth { value: left }),
                _ => return Err(self.expected("IN, BETWEEN or LIKE")),
            },
            _ if !negated => return Ok(Node::Truth { value: left }),
            _ => return Err(self.expected("IN, BETWEEN or LIKE")),
        };
        Ok(if negated { Node::Not(Box::new(node)) } else { node })
    }

    fn operand(&mut self) -> Result<Operand, FilterError> {
        let operand = match self.peek().clone() {
            Token::Field(text) => {
                let path = Path::parse(&text)
                    .map_err(|_| self.expected("a field like /member or /member/member[0]"))?;
                Operand::Field(self.paths.iter().position(|known| *known == path).unwrap_or_else(|| {
                    self.paths.push(path);
                    self.paths.len() - 1
                }))
            }
            Token::Int(number) => Operand::Int(number),
            Token::Float(number) => Operand::Float(number),
            Token::Text(text) if text.is_empty() => Operand::Null,
            Token::Text(text) => Operand::Text(text.into()),
            Token::Word(word) if word == "TRUE" => Operand::Bool(true),
            Token::Word(word) if word == "FALSE" => Operand::Bool(false),
            Token::Word(word) if word == "NULL" => Operand::Null,
            _ => return Err(self.expected("a field, a number, a text, TRUE, FALSE or NULL")),
        };
        self.at += 1;
        Ok(operand)
    }

    /// A literal pattern, compiled once; the engine is linear in the text, so back-references and look-around are refused.
    fn pattern(&mut self) -> Result<Regex, FilterError> {
        let Token::Text(text) = self.peek().clone() else { return Err(self.expected("a pattern in quotes")) };
        let compiled = std::str::from_utf8(&text).ok().and_then(|text| {
            RegexBuilder::new(text).unicode(false).size_limit(PATTERN_SIZE_MAX).build().ok()
        });
        let Some(regex) = compiled else {
            return Err(self.expected("a regular expression without back-references and look-around"));
        };
        self.at += 1;
        Ok(regex)
    }

    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is_next = matches!(self.peek(), Token::Word(next) if next == word);
        self.at += usize::from(is_next);
        is_next
    }

    fn take_symbol(&mut self, symbol: &'static str) -> Result<(), FilterError> {
        if *self.peek() != Token::Symbol(symbol) {
            return Err(self.expected(&format!("'{symbol}'")));
        }
        self.at += 1;
        Ok(())
    }

    fn expected(&self, expected: &str) -> FilterError {
        let (token, column) = &self.tokens[self.at];
        FilterError { column: *column, expected: expected.into(), found: token.describe() }
    }
}

fn comparison(symbol: &str) -> Option<Comparison> {
    Some(match symbol {
        "=" | "==" => Comparison::Equal,
        "!=" | "<>" => Comparison::NotEqual,
        "<" => Comparison::Less,
        "<=" => Comparison::LessOrEqual,
        ">" => Comparison::Greater,
        ">=" => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

fn one_or(mut nodes: Vec<Node>, many: impl FnOnce(Vec<Node>) -> Node) -> Node {
    if nodes.len() == 1 { nodes.remove(0) } else { many(nodes) }
}
