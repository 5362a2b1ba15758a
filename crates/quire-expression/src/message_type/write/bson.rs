//! `bson`: documents with their size at the beginning and a zero byte at the end. The type of a
//! value comes before its name.

use super::tree::{Kind, Space, Tree};
use super::{Layout, Patch};
use crate::message_type::Malformed;
use crate::message_type::bson::Bytes;

pub(super) struct Bson;

/// The types of values that are used here.
pub(super) const DOCUMENT: u8 = 0x03;
const UNDEFINED: u8 = 0x06;
pub(super) const NULL: u8 = 0x0A;

impl Layout for Bson {
    fn read(tree: &mut Tree<'_>) -> Result<(), Malformed> {
        let mut reader = Bytes { data: tree.data, at: 0 };
        read_document(&mut reader, tree, 0, 0)?;
        if reader.at == reader.data.len() { Ok(()) } else { reader.malformed("end of the message") }
    }

    fn enter(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, _added_count: u32) -> usize {
        patch.copy_to(base.node(object).body);
        patch.out.len()
    }

    fn go_to_end(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, _round: u8) {
        patch.copy_to(base.node(object).tail);
    }

    fn leave(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, entered: usize, _added_count: u32) {
        patch.copy_to(base.node(object).end);
        set_size(patch.out, entered);
    }

    fn write_null(out: &mut Vec<u8>, tree: &Tree<'_>, member: u32) {
        write_name(out, NULL, tree, member);
    }

    fn write_start(out: &mut Vec<u8>, tree: &Tree<'_>, object: u32, _member_count: u32) -> usize {
        if object != 0 {
            write_name(out, DOCUMENT, tree, object);
        }
        out.extend_from_slice(&[0; 4]);
        out.len() - 4
    }

    fn write_end(out: &mut Vec<u8>, _tree: &Tree<'_>, _object: u32, started: usize) {
        out.push(0);
        set_size(out, started);
    }
}

fn write_name(out: &mut Vec<u8>, kind: u8, tree: &Tree<'_>, member: u32) {
    out.push(kind);
    out.extend_from_slice(tree.name(member).bytes);
    out.push(0);
}

/// Writes the size of the document that begins at `start`, at its beginning.
pub(super) fn set_size(out: &mut [u8], start: usize) {
    // `MESSAGE_SIZE_MAX` is below the half of what fits.
    let size = (out.len() - start) as i32;
    out[start..start + 4].copy_from_slice(&size.to_le_bytes());
}

/// Reads a document. `depth` is the number of documents around it. `DOCUMENT_DEPTH_MAX` bounds the
/// recursion.
fn read_document(
    reader: &mut Bytes<'_>,
    tree: &mut Tree<'_>,
    object: usize,
    depth: usize,
) -> Result<(), Malformed> {
    let (body, mut member_count) = (reader.at, 0);
    reader.document(depth, |reader, kind, name| {
        member_count += 1;
        let (name_start, value) = (reader.at - name.len() - 1, reader.at);
        let start = name_start - 1;
        let node = tree.open(Space::Name, name_start..value - 1, start, start)?;
        match kind {
            DOCUMENT => read_document(reader, tree, node, depth + 1),
            kind => {
                reader.skip(kind, depth + 1)?;
                let is_null = matches!(kind, NULL | UNDEFINED);
                tree.close(node, if is_null { Kind::Null } else { Kind::Leaf }, reader.at);
                Ok(())
            }
        }
    })?;
    tree.describe_object(object, body, reader.at - 1, member_count);
    tree.close(object, Kind::Object, reader.at);
    Ok(())
}
