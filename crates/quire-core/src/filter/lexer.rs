//! Cutting a filter into words.

use super::FilterError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A keyword, in upper case.
    Word(String),
    Field(String),
    Int(i64),
    Float(f64),
    Text(Vec<u8>),
    Symbol(&'static str),
    End,
}

impl Token {
    pub fn describe(&self) -> String {
        match self {
            Token::Word(word) => word.clone(),
            Token::Field(path) => format!("the field {path}"),
            Token::Int(number) => number.to_string(),
            Token::Float(number) => number.to_string(),
            Token::Text(_) => "a text".into(),
            Token::Symbol(symbol) => format!("'{symbol}'"),
            Token::End => "the end".into(),
        }
    }
}

/// Longest first, so that `<=` is not read as `<`.
const SYMBOLS: &[&str] = &["==", "!=", "<>", "<=", ">=", "=", "<", ">", "(", ")", ","];

/// The words of the text, each with its column.
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, usize)>, FilterError> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let column = text[..text.len() - rest.len()].chars().count() + 1;
        let Some(first) = rest.chars().next() else {
            found.push((Token::End, column));
            return Ok(found);
        };
        let error = |expected: &str, found: String| FilterError { column, expected: expected.into(), found };
        let (token, size) = match first {
            '\'' | '"' => {
                text_token(rest, first).ok_or_else(|| error("a closing quote", "the end".into()))?
            }
            '/' => {
                let size =
                    rest.find(|c: char| c.is_whitespace() || "=<>!(),'\"".contains(c)).unwrap_or(rest.len());
                (Token::Field(rest[..size].into()), size)
            }
            '0'..='9' | '-' | '+' | '.' => {
                number_token(rest).ok_or_else(|| error("a number", format!("'{first}'")))?
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let size = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                (Token::Word(rest[..size].to_ascii_uppercase()), size)
            }
            _ => {
                let symbol = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol));
                let symbol =
                    symbol.ok_or_else(|| error("a field, a value or an operator", format!("'{first}'")))?;
                (Token::Symbol(symbol), symbol.len())
            }
        };
        found.push((token, column));
        rest = &rest[size..];
    }
}

/// A text in quotes; the quote itself is written twice, and a backslash is an ordinary character (reference: topics-filters-sow 1.3).
fn text_token(rest: &str, quote: char) -> Option<(Token, usize)> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c != quote {
            text.push(c);
        } else if chars.next_if(|(_, next)| *next == quote).is_some() {
            text.push(quote);
        } else {
            return Some((Token::Text(text.into_bytes()), at + 1));
        }
    }
    None
}

fn number_token(rest: &str) -> Option<(Token, usize)> {
    let mut before = ' ';
    let size = rest.find(|c: char| {
        let is_sign = (c == '-' || c == '+') && (before == ' ' || before == 'e' || before == 'E');
        before = c;
        !(c.is_ascii_digit() || c == '.' || c == 'e' || c == 'E' || is_sign)
    });
    let size = size.unwrap_or(rest.len());
    let text = &rest[..size];
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    match text.strip_prefix('+').unwrap_or(text).parse() {
        Ok(number) => Some((Token::Int(number), size)),
        Err(_) => text.parse().ok().map(|number| (Token::Float(number), size)),
    }
}
