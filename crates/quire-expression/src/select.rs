//! Select lists: the part of a message that a subscription wants (docs/replay.md).

use std::sync::Arc;

use crate::filter::{Expression, FilterOptions};
use crate::message_type::{Arena, MessageType, Selection, Step};

/// Entries of a list: more fields than an application names one by one.
pub const SELECT_ENTRIES_MAX: usize = 256;

/// The part of each message that is delivered. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Select(Arc<Parts>);

/// The content of a list. An idle subscription has a pointer to it, or none.
#[derive(Debug)]
struct Parts {
    /// The parts that may be delivered: a field must be in all of them.
    granted: Arc<[Granted]>,
    /// The part of it that is wanted.
    wanted: Option<Arc<Selection>>,
}

/// A list that hides fields. A message whose parts cannot be read is hidden as a whole.
#[derive(Debug)]
struct Granted {
    selection: Selection,
    /// The hidden fields, as the list names them.
    excluded: Vec<Vec<Step>>,
}

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
    fn new(granted: Arc<[Granted]>, wanted: Option<Arc<Selection>>) -> Self {
        Select(Arc::new(Parts { granted, wanted }))
    }

    /// Reads `-/,+/symbol,+/price`.
    ///
    /// # Errors
    /// [`SelectError`] for anything else.
    pub fn parse(text: &str) -> Result<Self, SelectError> {
        let (selection, _) = read(text)?;
        Ok(Select::new(Arc::default(), Some(Arc::new(selection))))
    }

    /// Lists that hide fields. A message whose parts cannot be read is then empty, and not whole.
    ///
    /// # Errors
    /// As [`Select::parse`].
    pub fn granted<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, SelectError> {
        let lists = texts.into_iter().map(read);
        let granted = lists.map(|read| read.map(|(selection, excluded)| Granted { selection, excluded }));
        Ok(Select::new(granted.collect::<Result<_, _>>()?, None))
    }

    /// A list that hides every field.
    pub fn nothing() -> Self {
        let mut selection = Selection::default();
        selection.rule(&[], false);
        Select::new([Granted { selection, excluded: vec![Vec::new()] }].into(), None)
    }

    /// The part that `wanted` selects of what these lists grant.
    #[must_use]
    pub fn of(&self, wanted: Option<&Select>) -> Self {
        Select::new(self.0.granted.clone(), wanted.and_then(|select| select.0.wanted.clone()))
    }

    /// Whether a list hides a field, or a part of it.
    pub fn hides(&self, path: &[Step]) -> bool {
        if self.0.granted.is_empty() {
            return false;
        }
        let is_name = |step: &&Step| matches!(step, Step::Name(_));
        let names: Vec<_> = path.iter().filter(is_name).cloned().collect();
        self.0.granted.iter().any(|granted| {
            let excluded = &granted.excluded;
            !granted.selection.has(&names) || excluded.iter().any(|excluded| excluded.starts_with(&names))
        })
    }

    /// Whether a field is selected. For an element of an array, the array counts.
    pub fn has(&self, path: &[Step]) -> bool {
        !self.hides(path) && self.0.wanted.as_ref().is_none_or(|selection| selection.has(path))
    }

    /// The selected part of a message, in `out` if it is not the whole message. A message that
    /// cannot be parsed is returned whole, unless the list hides fields.
    pub fn apply<'a>(
        &self,
        message_type: Option<MessageType>,
        data: &'a [u8],
        arena: &mut Arena,
        out: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        let [first, rest @ ..] = &*self.0.granted else {
            let Some(wanted) = &self.0.wanted else { return data };
            return wanted.apply(message_type, data, arena, out);
        };
        let mut visible = Vec::new();
        first.selection.apply_strictly(message_type, data, arena, out);
        for granted in rest {
            std::mem::swap(&mut visible, out);
            granted.selection.apply_strictly(message_type, &visible, arena, out);
        }
        if let Some(wanted) = &self.0.wanted {
            std::mem::swap(&mut visible, out);
            if !wanted.apply_to(message_type, &visible, arena, out) {
                *out = visible;
            }
        }
        out
    }

    /// The same list with these additional fields. Arrays are delivered with all elements.
    #[must_use]
    pub fn with_fields(&self, paths: &[Vec<Step>]) -> Self {
        let Some(wanted) = &self.0.wanted else { return self.clone() };
        let mut selection = Selection::clone(wanted);
        for path in paths {
            let end = path.iter().position(|step| matches!(step, Step::Index(_)));
            selection.rule(&path[..end.unwrap_or(path.len())], true);
        }
        Select::new(self.0.granted.clone(), Some(Arc::new(selection)))
    }
}

/// The rules of a list, and the fields that it excludes.
fn read(text: &str) -> Result<(Selection, Vec<Vec<Step>>), SelectError> {
    let mut excluded = Vec::new();
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
        if !is_in {
            excluded.push(path);
        }
    }
    Ok((selection, excluded))
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
    use crate::filter::{Filter, MessageContext};
    use quire_types::{Headers, Timestamp};

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

    #[test]
    fn a_granted_list_hides_fields_for_good() {
        let message = br#"{"a":1,"b":{"c":2,"d":3},"legs":[{"px":4,"q":5}]}"#;
        let granted = Select::granted(["-/a", "-/b/c,-/legs/px"]).unwrap();
        let apply = |select: &Select, message: &[u8]| {
            let mut out = Vec::new();
            let json = Some(MessageType::Json);
            String::from_utf8(select.apply(json, message, &mut Arena::default(), &mut out).to_vec()).unwrap()
        };
        assert_eq!(apply(&granted, message), r#"{"b":{"d":3},"legs":[{"q":5}]}"#);
        let wanted = Select::parse("-/,+/a,+/b").unwrap();
        assert_eq!(apply(&granted.of(Some(&wanted)), message), r#"{"b":{"d":3}}"#);
        for message in ["[1]", "17", "{", r#"{"a":1} x"#] {
            assert_eq!(apply(&granted, message.as_bytes()), "", "{message}");
            assert_eq!(apply(&granted.of(Some(&wanted)), message.as_bytes()), "", "{message}");
        }
        let options = FilterOptions { hidden: Some(granted), ..FilterOptions::default() };
        for filter in ["/a IS NULL", "/b IS NULL", "/b/c IS NULL", "/legs[0]/px IS NULL", "/b/d = 3"] {
            let filter = Filter::parse(filter, &options).unwrap();
            assert!(filter.matches(&message_of(message)), "{}", filter.text());
        }
    }

    fn message_of(data: &[u8]) -> MessageContext<'_> {
        MessageContext {
            message_type: MessageType::Json,
            data,
            topic: "t",
            key: None,
            bookmark: None,
            correlation_id: b"",
            headers: Headers::default(),
            timestamp: Timestamp::default(),
            now: Timestamp::default(),
        }
    }
}
