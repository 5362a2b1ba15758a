//! Messages of computed values, and their merge into a message (docs/last-values.md, "Constructed
//! fields").
//!
//! The values become a delta in the format of the message. It is merged as any other delta, except
//! that an assigned object replaces a whole object. Each format defines how it writes the kinds of
//! values. It checks the paths when they are configured, not for each message.

mod bson;
mod json;
mod msgpack;
mod pairs;
mod translate;
mod xml;

pub use translate::{TranslateError, translate};

use super::merge::merge_trees;
use super::tree::Kind;
use super::{Layout, MergeError, Side, read_object, read_objects_for};
use crate::message_type::{Malformed, MessageType, Number, Step, TEXT_SIZE_MAX, Value};

/// The most bytes of the constructed fields of one message: as large as the largest message.
pub const CONSTRUCTED_SIZE_MAX: usize = TEXT_SIZE_MAX;

/// Why a message cannot get its constructed fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// The message is not of its type, or would be nested too deep.
    #[error("the message is {0}")]
    Malformed(Malformed),
    /// The message is, for example, a JSON array.
    #[error("the message is not an object, so it cannot have fields")]
    NotAnObject,
    /// The paths of the fields begin with the name of another root element.
    #[error("the root element of the message is not the first step of the constructed fields")]
    DifferentRoots,
    /// A text for a `fix` or `nvfix` field contains SOH.
    #[error("/{field}: the value contains the separator of the message type")]
    Separator {
        /// The tag.
        field: String,
    },
    /// More than [`CONSTRUCTED_SIZE_MAX`].
    #[error("the constructed fields need more than {CONSTRUCTED_SIZE_MAX} bytes")]
    TooLarge,
}

/// Which values an object gets, by name and in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(Box<[u8]>, Field)>);

/// A field of an object: the number of its value, or further fields.
#[derive(Clone, Debug)]
enum Field {
    Value(usize),
    Object(Fields),
}

impl Fields {
    /// Adds the value with this number. False when the field has a value already, or when a field
    /// on its path has one.
    pub fn add(&mut self, path: &[Step], value: usize) -> bool {
        let [Step::Name(name), rest @ ..] = path else { return false };
        let known = self.0.iter_mut().find(|(known, _)| known == name);
        match (known, rest) {
            (None, []) => {
                self.0.push((name.clone(), Field::Value(value)));
                true
            }
            (None, rest) => {
                let mut inner = Fields::default();
                let is_added = inner.add(rest, value);
                self.0.push((name.clone(), Field::Object(inner)));
                is_added
            }
            (Some((_, Field::Object(inner))), rest) if !rest.is_empty() => inner.add(rest, value),
            (Some(_), _) => false,
        }
    }

    /// The number of names at the root.
    pub fn root_count(&self) -> usize {
        self.0.len()
    }
}

/// The form that a format expects instead of a path that it cannot write. `None` when it can write
/// the path.
pub(crate) fn expected_path(message_type: MessageType, path: &[Step]) -> Option<&'static str> {
    let name = |step: &Step| match step {
        Step::Name(name) => Some(name.clone()),
        Step::Index(_) => None,
    };
    let Some(names) = path.iter().map(name).collect::<Option<Vec<_>>>() else {
        return Some("a field without an index");
    };
    match message_type {
        MessageType::Json | MessageType::Msgpack => None,
        MessageType::Bson => bson::expected_path(&names),
        MessageType::Xml => xml::expected_path(&names),
        MessageType::Fix | MessageType::Nvfix => pairs::expected_path(message_type, &names),
        MessageType::Binary => Some("a message type with fields: binary messages have none"),
    }
}

/// Writes into `out` the message with the values of `fields`. `paths` are the paths of the same
/// fields.
pub(crate) fn assign(
    message_type: MessageType,
    message: &[u8],
    fields: &Fields,
    paths: &[Vec<Step>],
    values: &[Value<'_>],
    out: &mut Vec<u8>,
) -> Result<(), AssignError> {
    let mut delta = Vec::new();
    write(message_type, fields, values, &mut delta)?;
    match message_type {
        MessageType::Json => merge_delta::<super::json::Json>(message, &delta, paths, out),
        MessageType::Msgpack => merge_delta::<super::msgpack::Msgpack>(message, &delta, paths, out),
        MessageType::Bson => merge_delta::<super::bson::Bson>(message, &delta, paths, out),
        MessageType::Xml => merge_delta::<super::xml::Xml>(message, &delta, paths, out),
        MessageType::Fix => merge_delta::<super::pairs::Fix>(message, &delta, paths, out),
        MessageType::Nvfix => merge_delta::<super::pairs::Nvfix>(message, &delta, paths, out),
        MessageType::Binary => {
            out.extend_from_slice(message);
            Ok(())
        }
    }
}

/// Writes a message of these fields.
fn write(
    message_type: MessageType,
    fields: &Fields,
    values: &[Value<'_>],
    out: &mut Vec<u8>,
) -> Result<(), AssignError> {
    match message_type {
        MessageType::Json => json::write_object(fields, values, out),
        MessageType::Msgpack => msgpack::write_map(fields, values, out),
        MessageType::Bson => bson::write_document(fields, values, out),
        MessageType::Xml => xml::write_fields(fields, values, out),
        MessageType::Fix | MessageType::Nvfix => pairs::write_pairs(fields, values, out),
        // No list of fields is accepted for this type.
        MessageType::Binary => Ok(()),
    }
}

fn merge_delta<L: Layout>(
    message: &[u8],
    delta: &[u8],
    paths: &[Vec<Step>],
    out: &mut Vec<u8>,
) -> Result<(), AssignError> {
    let mut delta = read_object::<L>(delta, Side::New).map_err(assign_error)?;
    for path in paths {
        if let Some(field) = delta.path(path).last() {
            let node = delta.node_mut(*field);
            if node.kind == Kind::Object {
                node.kind = Kind::Leaf;
            }
        }
    }
    let (mut message, mut delta) = read_objects_for::<L>(message, delta, true).map_err(assign_error)?;
    merge_trees::<L>(&mut message, &mut delta, out).map_err(assign_error)
}

fn assign_error(error: MergeError) -> AssignError {
    match error {
        MergeError::DifferentRoots => AssignError::DifferentRoots,
        MergeError::NotAnObject { .. } => AssignError::NotAnObject,
        MergeError::Malformed { reason, .. } => AssignError::Malformed(reason),
    }
}

/// Whether there is room for further values.
fn check_size(out: &[u8]) -> Result<(), AssignError> {
    if out.len() > CONSTRUCTED_SIZE_MAX { Err(AssignError::TooLarge) } else { Ok(()) }
}

/// Writes a number so that it is read with its type: a whole float ends with `.0`. False for a
/// float that is not finite, which has no text.
fn write_number(number: Number, raw: &[u8], out: &mut Vec<u8>) -> bool {
    if !raw.is_empty() {
        out.extend_from_slice(raw);
        return true;
    }
    if !number.as_f64().is_finite() {
        return false;
    }
    let start = out.len();
    // Writing to memory does not fail.
    number.write_text(out).unwrap_or_default();
    if matches!(number, Number::Float(_)) && !out[start..].iter().any(|byte| matches!(byte, b'.' | b'e')) {
        out.extend_from_slice(b".0");
    }
    true
}
