//! What is wrong with a text that should have been a filter or an expression.

/// Why a text is not a filter. The fault of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: expected {expected}, found {found}")]
pub struct FilterError {
    /// Where, in characters from 1.
    pub column: usize,
    /// The tokens that are allowed at this place.
    pub expected: String,
    /// The text at this place.
    pub found: String,
}

impl FilterError {
    /// At byte `offset` of `text`.
    pub(super) fn at(
        text: &str,
        offset: usize,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        let column = text.get(..offset).unwrap_or(text).chars().count() + 1;
        FilterError { column, expected: expected.into(), found: found.into() }
    }

    /// Three lines for a terminal: the text around the mistake, a caret under the spot, and what is wrong.
    pub fn with_caret(&self, text: &str) -> String {
        format!("{}\n{self}", caret(text, self.column))
    }
}

/// Two lines for a terminal: a filter around `column`, counted in characters from 1, and a caret under it.
pub fn caret(text: &str, column: usize) -> String {
    let before = column.saturating_sub(1);
    let start = before.saturating_sub(CONTEXT_CHARS);
    let shown: String = text
        .chars()
        .skip(start)
        .take(before - start + CONTEXT_CHARS)
        // A line break or tab would move the caret away from its place.
        .map(|character| if character.is_control() { ' ' } else { character })
        .collect();
    format!("{shown}\n{}^", " ".repeat(before - start))
}

/// How much of a long filter is shown around the caret, in characters to either side: a line of a terminal.
const CONTEXT_CHARS: usize = 60;
