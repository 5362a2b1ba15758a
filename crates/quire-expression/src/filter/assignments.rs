//! Constructed fields: values that are computed from a message and written into it
//! (docs/last-values.md, "Constructed fields").
//!
//! A list of `expression AS /destination` is parsed once, for one message type.
//! [`Assignments::apply`] promises:
//!
//! - Every expression reads the message as it was before the first assignment, and the previous
//!   record.
//! - A field that the message has is replaced in place. Another one is added at the end of its
//!   object.
//! - The other bytes of the message are copied unchanged. The result is a well-formed message of
//!   the type.
//! - An unreadable message is an error, and never half a result.

use std::fmt;
use std::sync::Arc;

use super::evaluate::Evaluation;
use super::parse::{Assigned, Destination, Parsed, parse_assignment, path_of};
use super::{FilterError, FilterOptions, MessageContext};
use crate::message_type::{
    Arena, AssignError, FieldId, FieldPlan, Fields, MessageType, PATH_STEP_COUNT_MAX, Step, assign,
    expected_path,
};
use crate::unreadable::contained;

/// The most entries of one list: more fields than a person writes one by one. Each entry is
/// compared with the others.
pub const ASSIGNMENT_COUNT_MAX: usize = 256;

/// When a list of assignments runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before the key is known. There is no previous record yet.
    Preprocessing,
    /// After the key is known: `OF PREVIOUS` reads the record that the message replaces.
    Enrichment,
}

/// Why a list of assignments is not valid. The caller has to correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {number}: {error}")]
pub struct AssignmentError {
    /// Which entry, from 1.
    pub number: usize,
    /// The text of the entry.
    pub text: String,
    /// What is wrong, and where in the entry.
    pub error: FilterError,
}

impl AssignmentError {
    /// Four lines for a terminal: the number of the entry, its text around the mistake, a caret
    /// under the mistake, and its description.
    pub fn with_caret(&self) -> String {
        format!("entry {}\n{}", self.number, self.error.with_caret(&self.text))
    }
}

/// A parsed list of assignments. Cloning shares it.
#[derive(Clone)]
pub struct Assignments(Arc<List>);

struct List {
    message_type: MessageType,
    entries: Box<[ListEntry]>,
    /// The paths of the destinations, by entry.
    paths: Box<[Vec<Step>]>,
    destinations: Fields,
    /// The fields that all expressions read in the message, and in the previous record.
    plan: FieldPlan,
    previous_plan: FieldPlan,
}

struct ListEntry {
    text: Box<str>,
    parsed: Parsed,
    /// The fields of the expression: indexes of the values of the message, which the values of the
    /// previous record follow.
    fields: Box<[FieldId]>,
}

impl Assignments {
    /// Parses a list of `expression AS /destination`, for messages of one type. An entry may be
    /// only the name of a field, which is then the destination, too.
    ///
    /// # Errors
    /// [`AssignmentError`] for these mistakes: an expression with a mistake, `OF PREVIOUS` in
    /// [`Stage::Preprocessing`], a destination that the message type cannot write. Two equal
    /// destinations are a mistake, too, and so is a destination that is a part of another one.
    pub fn parse<T: AsRef<str>>(
        entries: &[T],
        message_type: MessageType,
        stage: Stage,
        options: &FilterOptions,
    ) -> Result<Self, AssignmentError> {
        let mut list = Parsing::default();
        for (place, text) in entries.iter().map(AsRef::as_ref).enumerate() {
            list.add(place, text, message_type, stage, options).map_err(|error| AssignmentError {
                number: place + 1,
                text: text.into(),
                error,
            })?;
        }
        Ok(Assignments(Arc::new(list.finished(message_type))))
    }

    /// The texts of the entries.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.entries.iter().map(|entry| &*entry.text)
    }

    /// Where the values are written, by entry.
    pub fn destinations(&self) -> &[Vec<Step>] {
        &self.0.paths
    }

    /// Whether an expression reads the previous record.
    pub fn reads_previous(&self) -> bool {
        !self.0.previous_plan.is_empty()
    }

    /// Writes into `out` the message with the values of all entries. The earlier content of `out`
    /// is removed. Fields of a previous record that is missing or malformed are NULL.
    ///
    /// `message` must have the message type of the list.
    ///
    /// # Errors
    /// [`AssignError`]; `out` is empty then.
    pub fn apply(
        &self,
        message: &MessageContext<'_>,
        previous: Option<&[u8]>,
        arena: &mut Arena,
        out: &mut Vec<u8>,
    ) -> Result<(), AssignError> {
        debug_assert_eq!(message.message_type, self.0.message_type);
        out.clear();
        arena.reset();
        let result = contained(|| self.0.apply(message, previous, arena, out))
            .unwrap_or_else(|reason| Err(AssignError::Malformed(reason)));
        if result.is_err() {
            out.clear();
        }
        result
    }
}

impl List {
    fn apply(
        &self,
        message: &MessageContext<'_>,
        previous: Option<&[u8]>,
        arena: &Arena,
        out: &mut Vec<u8>,
    ) -> Result<(), AssignError> {
        let List { message_type, plan, previous_plan, .. } = self;
        if self.entries.is_empty() {
            out.extend_from_slice(message.data);
            return Ok(());
        }
        let fields = message_type.read_bare(message.data, plan, arena).map_err(AssignError::Malformed)?;
        let all = arena.nulls(plan.len() + previous_plan.len()).map_err(AssignError::Malformed)?;
        all[..plan.len()].copy_from_slice(fields);
        if let Some(previous) = previous
            && !previous_plan.is_empty()
            && let Ok(fields) = message_type.read_bare(previous, previous_plan, arena)
        {
            all[plan.len()..].copy_from_slice(fields);
        }
        let values = arena.nulls(self.entries.len()).map_err(AssignError::Malformed)?;
        for (value, ListEntry { parsed, fields, .. }) in values.iter_mut().zip(&self.entries) {
            *value = Evaluation { values: all, fields, message, arena }.value(&parsed.root);
        }
        assign(*message_type, message.data, &self.destinations, &self.paths, values, out)
    }
}

/// An entry whose fields have numbers in one of the two plans.
struct ParsedEntry {
    text: Box<str>,
    parsed: Parsed,
    /// Each field, and whether it is read in the previous record.
    fields: Vec<(FieldId, bool)>,
}

/// A list whose entries were parsed in part.
#[derive(Default)]
struct Parsing {
    entries: Vec<ParsedEntry>,
    paths: Vec<Vec<Step>>,
    destinations: Fields,
    plan: FieldPlan,
    previous_plan: FieldPlan,
}

impl Parsing {
    fn add(
        &mut self,
        place: usize,
        text: &str,
        message_type: MessageType,
        stage: Stage,
        options: &FilterOptions,
    ) -> Result<(), FilterError> {
        if place == ASSIGNMENT_COUNT_MAX {
            let expected = format!("at most {ASSIGNMENT_COUNT_MAX} entries");
            return Err(FilterError::at(text, 0, expected, "another one"));
        }
        let Assigned { parsed, are_previous, destination } =
            parse_assignment(text, options, stage == Stage::Enrichment)?;
        let path = path_of(&destination.name);
        let refused = |expected: &str| {
            let Destination { name, start } = &destination;
            FilterError::at(text, *start, expected, &**name)
        };
        if path.len() > PATH_STEP_COUNT_MAX {
            return Err(refused(&format!("at most {PATH_STEP_COUNT_MAX} steps")));
        }
        if let Some(expected) = expected_path(message_type, &path) {
            return Err(refused(expected));
        }
        if !self.destinations.add(&path, place) {
            return Err(refused(
                "a field that is not, contains or belongs to the destination of another entry",
            ));
        }
        if message_type == MessageType::Xml && self.destinations.root_count() > 1 {
            return Err(refused("the root element of the other entries as the first step"));
        }
        let reads = parsed.names.iter().zip(are_previous);
        let fields = reads.map(|(name, is_previous)| {
            let plan = if is_previous { &mut self.previous_plan } else { &mut self.plan };
            (plan.add(&path_of(name)), is_previous)
        });
        let fields = fields.collect();
        self.entries.push(ParsedEntry { text: text.into(), parsed, fields });
        self.paths.push(path);
        Ok(())
    }

    fn finished(self, message_type: MessageType) -> List {
        let Parsing { entries, paths, destinations, plan, previous_plan } = self;
        // The number of values of the message is known only now. The values of the previous record
        // follow them.
        let place = |(field, is_previous): (FieldId, bool)| {
            if is_previous { field.after(plan.len()) } else { field }
        };
        let entries = entries.into_iter().map(|ParsedEntry { text, parsed, fields }| ListEntry {
            fields: fields.into_iter().map(place).collect(),
            text,
            parsed,
        });
        List {
            message_type,
            entries: entries.collect(),
            paths: paths.into(),
            destinations,
            plan,
            previous_plan,
        }
    }
}

impl fmt::Debug for Assignments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.texts()).finish()
    }
}
