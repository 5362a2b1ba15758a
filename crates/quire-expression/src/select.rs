//! Select lists: the part of a message that a subscription wants (docs/replay.md).

use std::ops::Deref;
use std::sync::Arc;

use crate::filter::{Expression, FilterOptions};
use crate::message_type::{Selection, Step};

/// Entries of a list: more fields than an application names one by one.
pub const SELECT_ENTRIES_MAX: usize = 256;

/// The part of each message that is delivered. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Select(Arc<Selection>);

/// Why a select list is not valid. The caller has to correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// An entry is not `+` or `-` and a field.
    #[error("select: {text:?} is not `+` or `-` and a field like `/symbol`, or `/`")]
    NotAnEntry {
        /// The text of the entry.
        text: String,
    },
    /// An entry names one element of an array.
    #[error("select: {text:?} has an index; a path means every element")]
    Index {
        /// The text of the entry.
        text: String,
    },
    /// More than [`SELECT_ENTRIES_MAX`].
    #[error("select: {count} entries, the limit is {SELECT_ENTRIES_MAX}")]
    TooManyEntries {
        /// Their number.
        count: usize,
    },
}

impl Select {
    /// Reads `-/,+/symbol,+/price`.
    ///
    /// # Errors
    /// [`SelectError`] for anything else.
    pub fn parse(text: &str) -> Result<Self, SelectError> {
        let count = text.split(',').count();
        if count > SELECT_ENTRIES_MAX {
            return Err(SelectError::TooManyEntries { count });
        }
        let mut selection = Selection::default();
        for entry in text.split(',').map(str::trim) {
            // The text is from a peer and becomes part of a reason. A prefix of it is enough.
            let shown = || entry.chars().take(64).collect();
            let (is_in, field) = match (entry.strip_prefix('+'), entry.strip_prefix('-')) {
                (Some(field), _) => (true, field),
                (_, Some(field)) => (false, field),
                _ => return Err(SelectError::NotAnEntry { text: shown() }),
            };
            let path = path_of(field).ok_or_else(|| SelectError::NotAnEntry { text: shown() })?;
            if path.iter().any(|step| matches!(step, Step::Index(_))) {
                return Err(SelectError::Index { text: shown() });
            }
            selection.rule(&path, is_in);
        }
        Ok(Select(Arc::new(selection)))
    }

    /// The same list with these additional fields. Arrays are delivered with all elements.
    #[must_use]
    pub fn with_fields(&self, paths: &[Vec<Step>]) -> Self {
        let mut selection = Selection::clone(&self.0);
        for path in paths {
            let end = path.iter().position(|step| matches!(step, Step::Index(_)));
            selection.rule(&path[..end.unwrap_or(path.len())], true);
        }
        Select(Arc::new(selection))
    }
}

impl Deref for Select {
    type Target = Selection;

    fn deref(&self) -> &Selection {
        &self.0
    }
}

/// The steps of a field; none for the message itself.
fn path_of(field: &str) -> Option<Vec<Step>> {
    if field == "/" {
        return Some(Vec::new());
    }
    Expression::parse(field, &FilterOptions::default()).ok()?.path()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_signs_and_fields() {
        for text in ["-/", "+/a", " -/ , +/a/b ", "-/,+[/odd name]", "+/a,+/a"] {
            assert!(Select::parse(text).is_ok(), "{text:?}");
        }
        for text in ["", "/a", "+a", "+", "-/,", "+/a + 1", "+'x'", "* /a", "[-/]"] {
            assert!(matches!(Select::parse(text), Err(SelectError::NotAnEntry { .. })), "{text:?}");
        }
        assert!(matches!(Select::parse("+/a[1]"), Err(SelectError::Index { .. })));
        let many = vec!["+/a"; SELECT_ENTRIES_MAX + 1].join(",");
        assert!(matches!(Select::parse(&many), Err(SelectError::TooManyEntries { count: 257 })));
    }
}
