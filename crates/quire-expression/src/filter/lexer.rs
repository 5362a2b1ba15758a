//! The tokens of the language.
//!
//! A slash right before a name character begins an identifier. A slash before a blank or a
//! parenthesis divides. Any other slash is a mistake.

use std::fmt;

use super::FilterError;

/// One word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'t> {
    /// `/step/step[0]`, as written.
    Identifier(&'t str),
    /// The text between `[/` and `]`: a name with characters that a step cannot have.
    Bracketed(&'t str),
    /// `[topic].[/step/step[0]]`, or the same with a message type before it, as written.
    Qualified(&'t str),
    /// A number, as written and without sign.
    Number(&'t str),
    /// A string with its quotes.
    Text(&'t str),
    /// A keyword or the name of a function.
    Word(&'t str),
    /// An operator or a piece of punctuation.
    Symbol(&'static str),
    /// The end of the text.
    End,
}

/// Longer ones first, so that `<=` is not read as `<`.
const SYMBOLS: &[&str] =
    &["==", ">=", "<=", "!=", "<>", "=", ">", "<", "(", ")", ",", "+", "-", "*", "/", "%"];

#[derive(Clone, Debug)]
pub(super) struct Lexer<'t> {
    pub text: &'t str,
    at: usize,
}

impl<'t> Lexer<'t> {
    pub fn new(text: &'t str) -> Self {
        Lexer { text, at: 0 }
    }

    /// The next token, and the byte at which it begins.
    pub fn next(&mut self) -> Result<(Token<'t>, usize), FilterError> {
        let blanks = self.rest().bytes().take_while(u8::is_ascii_whitespace).count();
        self.at += blanks;
        let start = self.at;
        let token = match self.rest().as_bytes() {
            [] => Token::End,
            [quote @ (b'\'' | b'"'), ..] => self.string(*quote)?,
            [b'0'..=b'9', ..] => self.number()?,
            [b'/', next, ..] if is_name_start(*next) => self.identifier()?,
            [b'/', next, ..] if !next.is_ascii_whitespace() && *next != b'(' => {
                return Err(self.error(start + 1, "a field name, or a blank before a divisor"));
            }
            [b'[', b'/', ..] => self.bracketed()?,
            [b'[', ..] => self.qualified()?,
            [letter, ..] if letter.is_ascii_alphabetic() || *letter == b'_' => {
                let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                Token::Word(self.take(self.rest().bytes().take_while(word).count()))
            }
            _ => self.symbol()?,
        };
        Ok((token, start))
    }

    /// An error at byte `offset` that shows the character there.
    pub fn error(&self, offset: usize, expected: impl fmt::Display) -> FilterError {
        let found = match self.text.get(offset..).and_then(|rest| rest.chars().next()) {
            Some(character) => format!("{character:?}"),
            None => "the end".into(),
        };
        FilterError::at(self.text, offset, expected, found)
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn take(&mut self, size: usize) -> &'t str {
        let taken = &self.rest()[..size];
        self.at += size;
        taken
    }

    fn string(&mut self, quote: u8) -> Result<Token<'t>, FilterError> {
        let bytes = self.rest().as_bytes();
        let mut size = 1;
        loop {
            match memchr::memchr(quote, &bytes[size..]) {
                // At its first quote, because the missing one could be anywhere after it.
                None => {
                    let expected = "a closing quote for the text that begins here";
                    return Err(FilterError::at(self.text, self.at, expected, "the end"));
                }
                // A doubled quote means one quote.
                Some(plain) if bytes.get(size + plain + 1) == Some(&quote) => size += plain + 2,
                Some(plain) => return Ok(Token::Text(self.take(size + plain + 1))),
            }
        }
    }

    fn number(&mut self) -> Result<Token<'t>, FilterError> {
        let bytes = self.rest().as_bytes();
        let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut size = digits(0);
        if bytes.get(size) == Some(&b'.') {
            match digits(size + 1) {
                0 => return Err(self.error(self.at + size + 1, "a digit")),
                count => size += 1 + count,
            }
        }
        if let Some(b'e' | b'E') = bytes.get(size) {
            size += 1 + usize::from(matches!(bytes.get(size + 1), Some(b'+' | b'-')));
            match digits(size) {
                0 => return Err(self.error(self.at + size, "a digit")),
                count => size += count,
            }
        }
        if bytes.get(size).is_some_and(|byte| is_name_start(*byte) || *byte == b'.') {
            return Err(self.error(self.at + size, "an operator after the number"));
        }
        Ok(Token::Number(self.take(size)))
    }

    fn identifier(&mut self) -> Result<Token<'t>, FilterError> {
        let bytes = self.rest().as_bytes();
        let mut size = 0;
        loop {
            match &bytes[size..] {
                [b'/', b'@', first, ..] if is_name_start(*first) => size += 3,
                [b'/', b'@', ..] => return Err(self.error(self.at + size + 2, "the name of an attribute")),
                [b'/', first, ..] if is_name_start(*first) => size += 2,
                [b'[', ..] => {
                    let digits = bytes[size + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    size += 1 + digits;
                    if digits == 0 {
                        return Err(self.error(self.at + size, "the number of an element, from 0"));
                    }
                    if bytes.get(size) != Some(&b']') {
                        return Err(self.error(self.at + size, "]"));
                    }
                    size += 1;
                    continue;
                }
                _ => return Ok(Token::Identifier(self.take(size))),
            }
            size += bytes[size..].iter().take_while(|byte| is_name(**byte)).count();
        }
    }

    fn bracketed(&mut self) -> Result<Token<'t>, FilterError> {
        let Some(size) = self.rest().find(']') else {
            return Err(self.error(self.text.len(), "]"));
        };
        let inner = &self.take(size + 1)[2..size];
        if inner.is_empty() {
            return Err(self.error(self.at - 1, "a field name"));
        }
        if self.rest().starts_with('.') {
            return Err(
                self.error(self.at, "an operator; a topic is written without the slash: [orders].[/id]")
            );
        }
        Ok(Token::Bracketed(inner))
    }

    /// `[topic].[/field]` or `[type].[topic].[/field]`.
    fn qualified(&mut self) -> Result<Token<'t>, FilterError> {
        let mut size = 0;
        for _ in 0..2 {
            let rest = &self.rest()[size..];
            let Some(end) = rest.find(']') else { return Err(self.error(self.text.len(), "]")) };
            if end == 1 {
                return Err(self.error(self.at + size + 1, "the name of a topic"));
            }
            size += end + 1;
            if !self.rest()[size..].starts_with(".[") {
                return Err(self.error(
                    self.at + size,
                    "a point and a field, as in [orders].[/id]; only fields and topics are in brackets",
                ));
            }
            size += 1;
            if self.rest()[size..].starts_with("[/") {
                break;
            }
        }
        if !self.rest()[size..].starts_with("[/") {
            return Err(self.error(self.at + size + 1, "a field like /id"));
        }
        size += 2;
        match field_size(&self.rest().as_bytes()[size..]) {
            Some(0) => Err(self.error(self.at + size, "a field name")),
            Some(field) => Ok(Token::Qualified(self.take(size + field + 1))),
            None => Err(self.error(self.text.len(), "]")),
        }
    }

    fn symbol(&mut self) -> Result<Token<'t>, FilterError> {
        match SYMBOLS.iter().find(|symbol| self.rest().starts_with(**symbol)) {
            Some(symbol) => {
                self.at += symbol.len();
                Ok(Token::Symbol(symbol))
            }
            // As in other languages.
            None if self.rest().starts_with('&') => {
                Err(self.not_an_operator("& is not an operator: use AND"))
            }
            None if self.rest().starts_with('|') => Err(self.not_an_operator("| is not an operator: use OR")),
            None if self.rest().starts_with('!') => {
                Err(self.not_an_operator("! is not an operator: use NOT"))
            }
            None => Err(self.error(self.at, "a field, a value or an operator")),
        }
    }

    fn not_an_operator(&self, advice: &str) -> FilterError {
        FilterError::advise(self.text, self.at, advice)
    }
}

impl Token<'_> {
    /// The text for an error.
    pub fn describe(self) -> String {
        match self {
            Token::Identifier(text) | Token::Number(text) | Token::Text(text) | Token::Word(text) => {
                short(text)
            }
            Token::Qualified(text) => short(text),
            Token::Bracketed(text) => short(&format!("[/{text}]")),
            Token::Symbol(symbol) => format!("'{symbol}'"),
            Token::End => "the end".into(),
        }
    }
}

/// At most 40 characters of it.
fn short(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((size, _)) => format!("{}…", &text[..size]),
        None => text.into(),
    }
}

/// The bytes of a field up to its closing bracket. The number of an element has brackets, too.
fn field_size(bytes: &[u8]) -> Option<usize> {
    let mut size = 0;
    loop {
        match bytes.get(size)? {
            b']' => return Some(size),
            b'[' => {
                let digits = bytes[size + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                let is_index = digits > 0 && bytes.get(size + 1 + digits) == Some(&b']');
                size += if is_index { digits + 2 } else { 1 };
            }
            _ => size += 1,
        }
    }
}

/// First byte of a step: a letter, an underscore, an `@`, part of a character beyond ASCII, or, for
/// FIX tags, a digit.
fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'@' || byte >= 0x80
}

/// Further bytes of a step (the XPath rule for names, with prefixes).
fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':') || byte >= 0x80
}
