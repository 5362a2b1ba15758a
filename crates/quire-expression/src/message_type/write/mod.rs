//! The write side of message types: merging a part of a message into a message, the difference of
//! two messages, and messages with constructed fields (docs/last-values.md, "Merging and
//! differences" and "Constructed fields").
//!
//! [`merge`], [`difference`] and [`assign`] promise:
//!
//! - The bytes that a merge does not name are copied unchanged, including blanks and spelling.
//! - A result is a well-formed message of its format.
//! - Both messages are read whole. An unreadable one is an error, and never half a result: the
//!   output is empty then.
//! - Nesting is bounded by [`DOCUMENT_DEPTH_MAX`](super::DOCUMENT_DEPTH_MAX), and memory by
//!   [`ARENA_SIZE_MAX`]. Time grows with the size of the messages, and with the logarithm of the
//!   number of members of one object.
//!
//! Each message is read once, into a `Tree` of the places of its fields. The rules are written
//! once, over two trees. The trait `Layout` of a format defines how its bytes become a tree, and
//! how a member is written.

mod bson;
mod construct;
mod difference;
mod json;
mod merge;
mod msgpack;
mod pairs;
mod tree;
mod xml;

use super::{ARENA_SIZE_MAX, Malformed, MessageType, Step};
use crate::unreadable::contained;
use tree::{Kind, Node, Tree};

pub use construct::{AssignError, CONSTRUCTED_SIZE_MAX, TranslateError, translate};
pub(crate) use construct::{Fields, assign, expected_path};

/// The largest message that is merged or compared, in bytes. The sum of two of them fits the sizes
/// of BSON.
const MESSAGE_SIZE_MAX: usize = i32::MAX as usize / 2 - 16;

/// The most fields of one message. Two trees of them, and the room in which lists grow, are below
/// [`ARENA_SIZE_MAX`].
const NODE_COUNT_MAX: usize = ARENA_SIZE_MAX / 4 / size_of::<Node>();

/// A message of fewer bytes is read whole: looking up its fields in a delta takes longer than
/// keeping them.
const SMALL_SIZE: usize = 4096;

/// Which of two messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The existing message: the base of a merge, the earlier one of a difference.
    Old,
    /// The new message: the delta of a merge, the later one of a difference.
    New,
}

/// Why two messages cannot be merged or compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// One of the messages is not of its type.
    #[error("the {} message is {reason}", side.name())]
    Malformed {
        /// Which.
        side: Side,
        /// What is wrong with it.
        reason: Malformed,
    },
    /// One of the messages has no fields: it is, for example, a JSON array.
    #[error("the {} message is not an object, so it has no fields", side.name())]
    NotAnObject {
        /// Which.
        side: Side,
    },
    /// An XML document has one root element, so documents with different root elements cannot be
    /// merged.
    #[error("the root elements of the two messages have different names")]
    DifferentRoots,
}

impl Side {
    const fn name(self) -> &'static str {
        match self {
            Side::Old => "old",
            Side::New => "new",
        }
    }
}

/// Writes into `out` the message `base` with the fields that `delta` names: replaced in place, or
/// added at the end of their object. The earlier content of `out` is removed.
///
/// Objects merge field by field. Every other value is replaced whole, arrays too. A NULL in `delta`
/// sets the field to NULL. A `binary` message has no fields: its merge is `delta`.
///
/// # Errors
/// [`MergeError`]; `out` is empty then.
pub fn merge(
    message_type: MessageType,
    base: &[u8],
    delta: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), MergeError> {
    out.clear();
    let result = contained(|| match message_type {
        MessageType::Json => merge::merge::<json::Json>(base, delta, out),
        MessageType::Binary => {
            out.extend_from_slice(delta);
            Ok(())
        }
        MessageType::Nvfix => merge::merge::<pairs::Nvfix>(base, delta, out),
        MessageType::Fix => merge::merge::<pairs::Fix>(base, delta, out),
        MessageType::Msgpack => merge::merge::<msgpack::Msgpack>(base, delta, out),
        MessageType::Bson => merge::merge::<bson::Bson>(base, delta, out),
        MessageType::Xml => merge::merge::<xml::Xml>(base, delta, out),
    });
    let result = result.unwrap_or_else(|reason| Err(MergeError::Malformed { side: Side::New, reason }));
    if result.is_err() {
        out.clear();
    }
    result
}

/// Writes into `out` the message that turns `old` into `new` when it is merged: the fields of `new`
/// that differ, and a NULL for each field that `new` does not have. The fields `keep` of `new` are
/// in it too. Returns whether the messages differ in any field. The earlier content of `out` is
/// removed.
///
/// Values are equal when their types and their texts are equal: `1` and `1.0` differ. Objects are
/// compared field by field, arrays as a whole. A path of `keep` that leads into an array keeps the
/// whole array. A `binary` message has no fields: its difference is `new`.
///
/// # Errors
/// [`MergeError`]; `out` is empty then.
pub fn difference(
    message_type: MessageType,
    old: &[u8],
    new: &[u8],
    keep: &[Vec<Step>],
    out: &mut Vec<u8>,
) -> Result<bool, MergeError> {
    out.clear();
    let result = contained(|| match message_type {
        MessageType::Json => difference::difference::<json::Json>(old, new, keep, out),
        MessageType::Binary => {
            out.extend_from_slice(new);
            Ok(old != new)
        }
        MessageType::Nvfix => difference::difference::<pairs::Nvfix>(old, new, keep, out),
        MessageType::Fix => difference::difference::<pairs::Fix>(old, new, keep, out),
        MessageType::Msgpack => difference::difference::<msgpack::Msgpack>(old, new, keep, out),
        MessageType::Bson => difference::difference::<bson::Bson>(old, new, keep, out),
        MessageType::Xml => difference::difference::<xml::Xml>(old, new, keep, out),
    });
    let result = result.unwrap_or_else(|reason| Err(MergeError::Malformed { side: Side::New, reason }));
    if result.is_err() {
        out.clear();
    }
    result
}

/// The layout of fields in the bytes of one format.
trait Layout {
    /// Whether several members of one name are an array, or only the last one counts.
    const REPEATED_NAMES_ARE_ARRAYS: bool = false;

    /// In XML, attributes come before elements. So the members of an object are written in several
    /// rounds.
    const ROUND_COUNT: u8 = 1;

    /// The round in which a member is written.
    fn round(_member: &Node) -> u8 {
        0
    }

    /// Reads a whole message.
    fn read(tree: &mut Tree<'_>) -> Result<(), Malformed>;

    /// Whether the delta names any field. Fails when the two roots do not fit.
    fn names_fields(_base: &Tree<'_>, _delta: &Tree<'_>) -> Result<bool, MergeError> {
        Ok(true)
    }

    /// Marks the root element, without which there is no message.
    fn keep_root(_new: &mut Tree<'_>) {}

    /// Begins to change an object that gets `added_count` new members. The result is for
    /// [`Layout::leave`].
    fn enter(_patch: &mut Patch<'_>, _base: &Tree<'_>, _object: u32, _added_count: u32) -> usize {
        0
    }

    /// Moves to the place where a member is added to an object, and writes the bytes before it.
    fn go_to_end(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, round: u8);

    /// Ends the change of an object to which `added_count` members were added.
    fn leave(_patch: &mut Patch<'_>, _base: &Tree<'_>, _object: u32, _entered: usize, _added_count: u32) {}

    /// Replaces a value by the values of the members of `group`.
    fn replace(patch: &mut Patch<'_>, base: &Tree<'_>, member: u32, delta: &Tree<'_>, group: &[u32]) {
        let node = base.node(member);
        patch.copy_to(node.value);
        for with in group {
            patch.out.extend_from_slice(delta.value(*with));
        }
        patch.skip_to(node.end);
    }

    /// Removes a member that is one of several of its name.
    fn remove(patch: &mut Patch<'_>, base: &Tree<'_>, member: u32) {
        let node = base.node(member);
        patch.copy_to(node.start);
        patch.skip_to(node.end);
    }

    /// Writes a member as it is in its message.
    fn write_member(out: &mut Vec<u8>, tree: &Tree<'_>, member: u32) {
        let node = tree.node(member);
        out.extend_from_slice(tree.bytes(node.start..node.end));
    }

    /// Writes the name of a member, and the value NULL.
    fn write_null(out: &mut Vec<u8>, tree: &Tree<'_>, member: u32);

    /// Writes the bytes before a further member of an object.
    fn write_separator(_out: &mut Vec<u8>) {}

    /// Begins to write an object with the name, the place and the number of members of `object`.
    /// The result is for [`Layout::write_end`].
    fn write_start(out: &mut Vec<u8>, tree: &Tree<'_>, object: u32, member_count: u32) -> usize;

    /// Ends the members of one round.
    fn write_end_of_round(_out: &mut Vec<u8>, _object: u32, _round: u8) {}

    /// Ends an object.
    fn write_end(out: &mut Vec<u8>, tree: &Tree<'_>, object: u32, started: usize);

    /// Checks that a result has the `member_count` members of the root that were written into it.
    fn check(_out: &[u8], _member_count: impl FnOnce() -> u32) -> Result<(), MergeError> {
        Ok(())
    }
}

/// Reads both messages.
fn read_both<'a, L: Layout>(old: &'a [u8], new: &'a [u8]) -> Result<(Tree<'a>, Tree<'a>), MergeError> {
    Ok((read_object::<L>(old, Side::Old)?, read_object::<L>(new, Side::New)?))
}

/// Reads a message.
fn read_object<L: Layout>(data: &[u8], side: Side) -> Result<Tree<'_>, MergeError> {
    #[cfg(test)]
    super::tests::panic_at_bug(data);
    let read = || -> Result<_, Malformed> {
        let mut tree = Tree::new(data, L::REPEATED_NAMES_ARE_ARRAYS)?;
        L::read(&mut tree)?;
        Ok(tree)
    };
    let tree = read().map_err(|reason| MergeError::Malformed { side, reason })?;
    if tree.node(0).kind == Kind::Object { Ok(tree) } else { Err(MergeError::NotAnObject { side }) }
}

/// Reads the base of a merge: its fields that the delta names. Returns both. An element of XML with
/// text is a value, or an object whose text is not a field.
fn read_objects_for<'a, L: Layout>(
    base: &'a [u8],
    mut delta: Tree<'a>,
    has_text_objects: bool,
) -> Result<(Tree<'a>, Tree<'a>), MergeError> {
    #[cfg(test)]
    super::tests::panic_at_bug(base);
    let side = Side::Old;
    delta.index_all();
    let read = || -> Result<_, Malformed> {
        let mut tree = Tree::new(base, L::REPEATED_NAMES_ARE_ARRAYS)?;
        tree.has_text_objects = has_text_objects;
        if base.len() < SMALL_SIZE {
            L::read(&mut tree)?;
            return Ok((tree, delta));
        }
        let delta = tree.read_for(delta, L::read)?;
        Ok((tree, delta))
    };
    let (tree, delta) = read().map_err(|reason| MergeError::Malformed { side, reason })?;
    if tree.node(0).kind == Kind::Object { Ok((tree, delta)) } else { Err(MergeError::NotAnObject { side }) }
}

/// A copy of a message while it is changed.
struct Patch<'p> {
    base: &'p [u8],
    /// The bytes of the base that were processed.
    at: u32,
    out: &'p mut Vec<u8>,
}

impl Patch<'_> {
    /// Copies the base up to here.
    fn copy_to(&mut self, end: u32) {
        self.out.extend_from_slice(&self.base[self.at as usize..end as usize]);
        self.at = end;
    }

    /// Leaves out the base up to here.
    fn skip_to(&mut self, end: u32) {
        self.at = end;
    }
}
