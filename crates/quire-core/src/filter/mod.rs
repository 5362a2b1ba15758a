//! Content filters: which messages a subscriber wants (`docs/filters.md`).
//!
//! A filter is parsed once into a small tree and evaluated against the fields that it names, which are read from the message in one
//! pass. It matches when it is TRUE; NULL, which any comparison with a missing field gives, does not match
//! (reference: topics-filters-sow 1.1, 1.7).

mod evaluate;
mod index;
mod lexer;
mod parse;

use std::sync::Arc;

use quire_journal::{Bookmark, Timestamp};

use crate::message_type::{Fields, MessageType, Path};
use parse::Node;

pub use index::SubscriptionIndex;

/// The longest filter, in bytes. Filters of hundreds of predicates are normal; a larger text is a mistake.
pub const FILTER_SIZE_MAX: usize = 1024 * 1024;

/// What a filter may use.
#[derive(Clone, Debug, Default)]
pub struct FilterOptions {}

/// Why a text is not a filter. The fault of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: expected {expected}, found {found}")]
pub struct FilterError {
    /// Where, in characters from 1.
    pub column: usize,
    /// What could have stood there.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

impl FilterError {
    /// Three lines for a terminal: the text, a caret under the spot, and what is wrong.
    pub fn with_caret(&self, text: &str) -> String {
        format!("{text}\n{}^\n{self}", " ".repeat(self.column - 1))
    }
}

/// A parsed filter. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Filter(Arc<Parsed>);

#[derive(Debug)]
struct Parsed {
    text: Box<str>,
    paths: Vec<Path>,
    root: Node,
}

/// What a filter may look at beside its own text.
#[derive(Clone, Copy, Debug)]
pub struct MessageContext<'a> {
    /// How `data` is to be read.
    pub message_type: MessageType,
    /// The message.
    pub data: &'a [u8],
    /// Where it was published.
    pub topic: &'a str,
    /// Its name, when the log records it.
    pub bookmark: Option<Bookmark>,
    /// As published.
    pub correlation_id: &'a [u8],
    /// When this instance took it.
    pub timestamp: Timestamp,
    /// The time of the evaluation.
    pub now: Timestamp,
}

impl Filter {
    /// Parses a filter.
    ///
    /// # Errors
    /// [`FilterError`] with the column and what was expected.
    pub fn parse(text: &str, _options: &FilterOptions) -> Result<Self, FilterError> {
        let (root, paths) = parse::parse(text)?;
        Ok(Filter(Arc::new(Parsed { text: text.into(), paths, root })))
    }

    /// The text that it was parsed from.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The names of the fields that it reads.
    pub fn fields(&self) -> impl Iterator<Item = String> {
        self.0.paths.iter().map(Path::to_string)
    }

    /// Whether the message matches. One that is not of its type matches no filter that reads fields.
    pub fn matches(&self, message: &MessageContext<'_>) -> bool {
        self.matches_with(message, &mut Fields::default())
    }

    /// As [`Filter::matches`], with room for the fields that is kept between calls.
    pub fn matches_with(&self, message: &MessageContext<'_>, fields: &mut Fields) -> bool {
        let Parsed { paths, root, .. } = &*self.0;
        if !paths.is_empty() && message.message_type.format().read(message.data, paths, fields).is_err() {
            return false;
        }
        evaluate::is_true(root, fields)
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Filter {}
