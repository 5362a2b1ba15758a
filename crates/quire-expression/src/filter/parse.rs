//! From tokens to the compiled form. One method per level of precedence, the lowest precedence
//! first.

mod aggregate;
mod call;
mod field;

use std::sync::Arc;

use super::lexer::{Lexer, Token};
use super::like::Pattern;
use super::node::{Affix, Comparison, Literal, NESTING_MAX, Node, Operator};
use super::{FILTER_SIZE_MAX, FilterError, FilterOptions, TopicGuard};
use crate::message_type::Number;
use aggregate::Aggregating;
use field::Known;

pub(super) use aggregate::{Aggregate, Projected, parse_projection};
pub use field::path_of;
pub(super) use field::{Assigned, Destination, parse_assignment};

/// The most patterns of one expression. Their compiled forms make a filter large.
const PATTERN_COUNT_MAX: usize = 512;

/// The result of parsing a text.
#[derive(Debug)]
pub(super) struct Parsed {
    pub root: Node,
    /// The fields as written, by the number in [`Node::Field`].
    pub names: Box<[Box<str>]>,
    /// Equal for texts that differ only in blanks, case of keywords and spelling of operators.
    pub canonical: Box<str>,
}

pub(super) fn parse(text: &str, options: &FilterOptions) -> Result<Parsed, FilterError> {
    let mut parser = Parser::new(text, options, false)?;
    let root = parser.whole()?;
    Ok(parser.parsed(root))
}

/// Parses texts that are joined with AND, and joins them with a guard and with the condition that
/// no key is there twice. Each text is parsed alone, so that none of them can change the meaning of
/// another one.
pub(super) fn parse_all<'t>(
    texts: &[(&'t str, &'t FilterOptions)],
    guard: Option<Arc<dyn TopicGuard>>,
    is_unambiguous: bool,
) -> Result<Parsed, FilterError> {
    let (mut nodes, mut canonical) = (Vec::new(), String::new());
    if let Some(guard) = guard {
        canonical.push_str(&format!("\u{1}{} ", guard.number()));
        nodes.push(Node::Guard(guard));
    }
    if is_unambiguous {
        canonical.push('\u{3}');
    }
    // It costs more than most texts, so it is decided last.
    let last = is_unambiguous.then_some(Node::Unambiguous);
    let [(first, options), rest @ ..] = texts else {
        nodes.extend(last);
        return Ok(Parsed {
            root: one_or(nodes, Node::And),
            names: Box::default(),
            canonical: canonical.into(),
        });
    };
    let mut parser = Parser::new(first, options, false)?;
    parser.canonical = canonical;
    nodes.push(parser.whole()?);
    for (text, options) in rest {
        parser.restart(text, options)?;
        nodes.push(parser.whole()?);
    }
    nodes.extend(last);
    Ok(parser.parsed(one_or(nodes, Node::And)))
}

struct Parser<'t> {
    lexer: Lexer<'t>,
    token: Token<'t>,
    /// The byte at which `token` begins.
    start: usize,
    options: &'t FilterOptions,
    allows_previous: bool,
    /// The fields of the message, and of the previous record.
    known: [Known; 2],
    names: Vec<Box<str>>,
    /// Which of the fields are read in the previous record: those with `OF PREVIOUS`.
    are_previous: Vec<bool>,
    canonical: String,
    depth: usize,
    pattern_count: usize,
    /// The aggregates, where there may be some.
    aggregating: Option<Aggregating>,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str, options: &'t FilterOptions, allows_previous: bool) -> Result<Self, FilterError> {
        if text.len() > FILTER_SIZE_MAX {
            let expected = format!("at most {FILTER_SIZE_MAX} bytes");
            return Err(FilterError::at(text, 0, expected, format!("{} bytes", text.len())));
        }
        let mut lexer = Lexer::new(text);
        let (token, start) = lexer.next()?;
        Ok(Parser {
            lexer,
            token,
            start,
            options,
            allows_previous,
            known: Default::default(),
            names: Vec::new(),
            are_previous: Vec::new(),
            canonical: String::new(),
            depth: 0,
            pattern_count: 0,
            aggregating: None,
        })
    }

    /// Continues with another text. The fields of the earlier ones keep their numbers.
    fn restart(&mut self, text: &'t str, options: &'t FilterOptions) -> Result<(), FilterError> {
        let Parser { lexer, token, start, .. } = Parser::new(text, options, false)?;
        (self.lexer, self.token, self.start, self.options) = (lexer, token, start, options);
        self.canonical.push('\u{2}');
        Ok(())
    }

    /// An expression that is all of the text.
    fn whole(&mut self) -> Result<Node, FilterError> {
        let root = self.expression()?;
        if self.token != Token::End {
            return Err(self.expected("AND, OR, another operator or the end"));
        }
        Ok(root)
    }

    fn parsed(self, root: Node) -> Parsed {
        let Parser { names, canonical, .. } = self;
        Parsed { root, names: names.into(), canonical: canonical.into() }
    }

    fn expression(&mut self) -> Result<Node, FilterError> {
        let mut nodes = vec![self.and()?];
        while self.take_word("OR")? {
            nodes.push(self.and()?);
        }
        Ok(one_or(nodes, Node::Or))
    }

    fn and(&mut self) -> Result<Node, FilterError> {
        let mut nodes = vec![self.not()?];
        while self.take_word("AND")? {
            nodes.push(self.not()?);
        }
        Ok(one_or(nodes, Node::And))
    }

    fn not(&mut self) -> Result<Node, FilterError> {
        if !self.is_word("NOT") {
            return self.predicate();
        }
        self.nested(|parser| {
            parser.advance()?;
            Ok(Node::Not(Box::new(parser.not()?)))
        })
    }

    fn predicate(&mut self) -> Result<Node, FilterError> {
        let mut node = self.sum()?;
        let depth = self.depth;
        loop {
            let mut chain = Vec::new();
            while let Some(comparison) = self.comparison()? {
                chain.push((comparison, self.sum()?));
            }
            let is_compared = !chain.is_empty();
            if is_compared {
                node = Node::Compare(Box::new(node), chain.into());
            }
            match self.tail(node)? {
                (tailed, true) => node = tailed,
                (plain, false) => {
                    self.depth = depth;
                    return Ok(plain);
                }
            }
            // Each further operator nests the expression before it.
            self.deeper()?;
        }
    }

    /// `[NOT] LIKE`, `IN`, `BETWEEN`, `BEGINS WITH`, `ENDS WITH`, and `IS [NOT]`. Returns whether
    /// it has parsed one.
    fn tail(&mut self, left: Node) -> Result<(Node, bool), FilterError> {
        if self.take_word("IS")? {
            let is_negated = self.take_word("NOT")?;
            let node = if self.take_word("NULL")? {
                Node::IsNull(Box::new(left))
            } else if self.take_word("NAN")? {
                Node::IsNan(Box::new(left))
            } else {
                return Err(self.expected(if is_negated { "NULL or NAN" } else { "NULL, NAN or NOT" }));
            };
            return Ok((negated(node, is_negated), true));
        }
        let is_negated = self.take_word("NOT")?;
        let node = if self.take_word("LIKE")? {
            self.check_like()?;
            Node::Like(Box::new(left), Box::new(self.pattern()?))
        } else if self.take_word("IN")? {
            Node::In(Box::new(left), self.list()?)
        } else if self.take_word("BETWEEN")? {
            let low = self.sum()?;
            if !self.take_word("AND")? {
                return Err(self.expected("AND and the upper bound"));
            }
            Node::Between(Box::new([left, low, self.sum()?]))
        } else if let Some(affix) = self.affix()? {
            if !self.take_word("WITH")? {
                return Err(self.expected("WITH"));
            }
            let affixes = match self.token {
                Token::Symbol("(") => self.list()?,
                _ => [self.sum()?].into(),
            };
            Node::Affix(affix, Box::new(left), affixes)
        } else if is_negated {
            return Err(self.expected("LIKE, IN, BETWEEN, BEGINS WITH or ENDS WITH"));
        } else {
            return Ok((left, false));
        };
        Ok((negated(node, is_negated), true))
    }

    fn affix(&mut self) -> Result<Option<Affix>, FilterError> {
        if self.take_word("BEGINS")? {
            Ok(Some(Affix::Begins))
        } else if self.take_word("ENDS")? {
            Ok(Some(Affix::Ends))
        } else {
            Ok(None)
        }
    }

    fn comparison(&mut self) -> Result<Option<Comparison>, FilterError> {
        let comparison = match self.token {
            Token::Symbol("=" | "==") => Comparison::Equal,
            Token::Symbol("!=" | "<>") => Comparison::NotEqual,
            Token::Symbol("<") => Comparison::Less,
            Token::Symbol("<=") => Comparison::LessOrEqual,
            Token::Symbol(">") => Comparison::Greater,
            Token::Symbol(">=") => Comparison::GreaterOrEqual,
            _ => return Ok(None),
        };
        self.advance()?;
        Ok(Some(comparison))
    }

    fn sum(&mut self) -> Result<Node, FilterError> {
        let first = self.product()?;
        let mut rest = Vec::new();
        loop {
            let operator = match self.token {
                Token::Symbol("+") => Operator::Add,
                Token::Symbol("-") => Operator::Subtract,
                _ => return Ok(arithmetic(first, rest)),
            };
            self.advance()?;
            rest.push((operator, self.product()?));
        }
    }

    fn product(&mut self) -> Result<Node, FilterError> {
        let first = self.unary()?;
        let mut rest = Vec::new();
        loop {
            let operator = match self.token {
                Token::Symbol("*") => Operator::Multiply,
                Token::Symbol("/") => Operator::Divide,
                Token::Symbol("%") => Operator::Modulo,
                Token::Word(word) if word.eq_ignore_ascii_case("MOD") => Operator::Modulo,
                _ => return Ok(arithmetic(first, rest)),
            };
            self.advance()?;
            rest.push((operator, self.unary()?));
        }
    }

    fn unary(&mut self) -> Result<Node, FilterError> {
        let is_negative = self.token == Token::Symbol("-");
        if is_negative || self.token == Token::Symbol("+") {
            self.advance()?;
        }
        Ok(match (self.primary()?, is_negative) {
            (node, false) => node,
            (Node::Literal(Literal::Number(number)), true) => Node::Literal(Literal::Number(minus(number))),
            (node, true) => Node::Negate(Box::new(node)),
        })
    }

    fn primary(&mut self) -> Result<Node, FilterError> {
        let node = match self.token {
            Token::Identifier(_) | Token::Bracketed(_) | Token::Qualified(_) => return self.identifier(),
            Token::Number(text) => {
                // The lexer has checked that it is a number.
                Node::Literal(Number::parse(text.as_bytes()).map_or(Literal::Null, Literal::Number))
            }
            Token::Text(quoted) => Node::Literal(Literal::text(unquoted(quoted).as_bytes())),
            Token::Symbol("(") => {
                return self.nested(|parser| {
                    parser.advance()?;
                    let node = parser.expression()?;
                    parser.take_symbol(")")?;
                    Ok(node)
                });
            }
            Token::Word(word) => return self.word(word),
            _ => return Err(self.expected("a field like /symbol, a value or (")),
        };
        self.advance()?;
        Ok(node)
    }

    /// A constant, IF, or a call.
    fn word(&mut self, word: &'t str) -> Result<Node, FilterError> {
        let start = self.start;
        let name = word.to_ascii_uppercase();
        let literal = match name.as_str() {
            "TRUE" => Some(Literal::Boolean(true)),
            "FALSE" => Some(Literal::Boolean(false)),
            "NULL" => Some(Literal::Null),
            _ => None,
        };
        if literal.is_none() && self.lexer.clone().next()?.0 != Token::Symbol("(") {
            return Err(self.expected(&format!(
                "a field, a value or (; fields begin with a slash, texts stand in quotes: /{word} or '{word}'"
            )));
        }
        self.advance()?;
        match literal {
            Some(literal) => Ok(Node::Literal(literal)),
            None => self.nested(|parser| parser.call(&name, start)),
        }
    }

    fn is_empty_list(&mut self) -> Result<bool, FilterError> {
        let is_empty = self.lexer.clone().next()?.0 == Token::Symbol(")");
        if is_empty {
            self.advance()?;
            self.advance()?;
        }
        Ok(is_empty)
    }

    /// `(expression, ...)`, at least one.
    fn list(&mut self) -> Result<Box<[Node]>, FilterError> {
        self.nested(|parser| {
            parser.take_symbol("(")?;
            let mut nodes = vec![parser.expression()?];
            while parser.token == Token::Symbol(",") {
                parser.advance()?;
                nodes.push(parser.expression()?);
            }
            match parser.token {
                Token::Symbol(")") => parser.advance()?,
                _ => return Err(parser.expected(", or )")),
            }
            Ok(nodes.into())
        })
    }

    /// Refuses the wildcard of SQL. As a regular expression it means a percent sign, so the filter
    /// would match no message, without an error.
    fn check_like(&self) -> Result<(), FilterError> {
        match self.token {
            Token::Text(quoted) if unquoted(quoted).starts_with('%') || unquoted(quoted).ends_with('%') => {
                Err(FilterError::advise(
                    self.lexer.text,
                    self.start,
                    "% is not a wildcard in LIKE: leave it out, write [%] for the character, or use BEGINS WITH or ENDS WITH",
                ))
            }
            _ => Ok(()),
        }
    }

    fn pattern(&mut self) -> Result<Pattern, FilterError> {
        let Token::Text(quoted) = self.token else { return Err(self.expected("a pattern in quotes")) };
        if self.pattern_count == PATTERN_COUNT_MAX {
            return Err(self.expected(&format!("at most {PATTERN_COUNT_MAX} patterns")));
        }
        self.pattern_count += 1;
        let pattern = Pattern::new(&unquoted(quoted), self.options.allow_backtracking)
            .map_err(|expected| self.expected(&expected))?;
        self.advance()?;
        Ok(pattern)
    }

    /// Runs `parse` one level deeper.
    fn nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<T, FilterError>,
    ) -> Result<T, FilterError> {
        self.deeper()?;
        let result = parse(self)?;
        self.depth -= 1;
        Ok(result)
    }

    fn deeper(&mut self) -> Result<(), FilterError> {
        if self.depth == NESTING_MAX {
            return Err(self.expected(&format!("at most {NESTING_MAX} levels of nesting")));
        }
        self.depth += 1;
        Ok(())
    }

    fn advance(&mut self) -> Result<(), FilterError> {
        match self.token {
            Token::Word(word) => self.canonical.push_str(&word.to_ascii_uppercase()),
            Token::Bracketed(name) => {
                self.canonical.push_str("[/");
                self.canonical.push_str(name);
                self.canonical.push(']');
            }
            Token::Symbol("==") => self.canonical.push('='),
            Token::Symbol("<>") => self.canonical.push_str("!="),
            Token::Identifier(text) | Token::Qualified(text) | Token::Number(text) | Token::Text(text) => {
                self.canonical.push_str(text)
            }
            Token::Symbol(text) => self.canonical.push_str(text),
            Token::End => {}
        }
        self.canonical.push(' ');
        (self.token, self.start) = self.lexer.next()?;
        Ok(())
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.token, Token::Word(next) if next.eq_ignore_ascii_case(word))
    }

    fn take_word(&mut self, word: &str) -> Result<bool, FilterError> {
        let is_next = self.is_word(word);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    fn take_symbol(&mut self, symbol: &'static str) -> Result<(), FilterError> {
        if self.token != Token::Symbol(symbol) {
            return Err(self.expected(&format!("'{symbol}'")));
        }
        self.advance()
    }

    fn expected(&self, expected: &str) -> FilterError {
        FilterError::at(self.lexer.text, self.start, expected, self.token.describe())
    }
}

/// The text between the quotes. A doubled quote becomes one.
fn unquoted(text: &str) -> String {
    let quote = &text[..1];
    text[1..text.len() - 1].replace(&quote.repeat(2), quote)
}

fn minus(number: Number) -> Number {
    match number.as_i128() {
        Some(exact) => Number::of_i128(-exact),
        None => Number::Float(-number.as_f64()),
    }
}

fn negated(node: Node, is_negated: bool) -> Node {
    if is_negated { Node::Not(Box::new(node)) } else { node }
}

fn arithmetic(first: Node, rest: Vec<(Operator, Node)>) -> Node {
    if rest.is_empty() { first } else { Node::Arithmetic(Box::new(first), rest.into()) }
}

fn one_or(mut nodes: Vec<Node>, many: impl FnOnce(Box<[Node]>) -> Node) -> Node {
    if nodes.len() == 1 { nodes.remove(0) } else { many(nodes.into()) }
}
