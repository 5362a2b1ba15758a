//! Errors as values for other languages.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The stable name of the case (`docs/reference/errors.md`).
    pub code: Cow<'static, str>,
    /// The mistake, its input, and what to do.
    pub text: String,
    /// The option, if it is a single one that `text` does not name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'static str>,
    /// The column in a filter, from 1; 0 = unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub column: usize,
}

/// The result of a call.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure with a code.
    pub fn new(code: impl Into<Cow<'static, str>>, text: impl Into<String>) -> Self {
        Failure { code: code.into(), text: text.into(), key: None, column: 0 }
    }

    /// A wrong option or argument.
    pub fn option(text: impl Into<String>) -> Self {
        Failure::new("bad_option", text)
    }

    /// A defect of quire.
    pub fn internal(text: impl Into<String>) -> Self {
        Failure::new("internal", text)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = self.key {
            write!(f, "{key}: ")?;
        }
        f.write_str(&self.text)?;
        match self.column {
            0 => Ok(()),
            column => write!(f, ", at column {column}"),
        }
    }
}

impl std::error::Error for Failure {}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}
