//! Errors of texts that are not a filter or an expression.

use std::fmt;

/// Why a text is not a filter. The caller has to correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {reason}")]
pub struct FilterError {
    /// Where, in characters from 1.
    pub column: usize,
    /// The tokens that are allowed at this place and the text that is there, or a sentence.
    pub reason: String,
}

impl FilterError {
    /// At `column`, in characters from 1: the tokens that are allowed there, and the text that is
    /// there.
    pub fn new(column: usize, expected: impl fmt::Display, found: impl fmt::Display) -> Self {
        FilterError { column, reason: format!("expected {expected}, found {found}") }
    }

    /// The same at byte `offset` of `text`.
    pub(super) fn at(
        text: &str,
        offset: usize,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        FilterError::new(column_of(text, offset), expected, found)
    }

    /// A mistake at byte `offset` of `text`, and the form to write instead.
    pub(super) fn advise(text: &str, offset: usize, advice: &str) -> Self {
        FilterError { column: column_of(text, offset), reason: advice.to_owned() }
    }

    /// Three lines for a terminal: the text around the mistake, a caret under the mistake, and its
    /// description.
    pub fn with_caret(&self, text: &str) -> String {
        format!("{}\n{self}", caret(text, self.column))
    }
}

fn column_of(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or(text).chars().count() + 1
}

/// Two lines for a terminal: a filter around `column`, counted in characters from 1, and a caret
/// under it.
pub fn caret(text: &str, column: usize) -> String {
    let before = column.saturating_sub(1);
    let start = before.saturating_sub(CONTEXT_CHARS);
    let shown: String = text
        .chars()
        .skip(start)
        .take(before - start + CONTEXT_CHARS)
        // A line break or tab would move the caret away from the mistake.
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect();
    format!("{shown}\n{}^", " ".repeat(before - start))
}

/// The characters of a long filter that are shown on either side of the caret: a line of a
/// terminal.
const CONTEXT_CHARS: usize = 60;
