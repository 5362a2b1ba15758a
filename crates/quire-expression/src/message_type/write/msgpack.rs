//! `msgpack`: maps that begin with the number of their members.

use std::io::Write;

use super::tree::{Kind, Space, Tree};
use super::{Layout, Patch};
use crate::message_type::msgpack::{Bytes, Head};
use crate::message_type::{DOCUMENT_DEPTH_MAX, Malformed};

pub(super) struct Msgpack;

pub(super) const NIL: u8 = 0xC0;

impl Layout for Msgpack {
    fn read(tree: &mut Tree<'_>) -> Result<(), Malformed> {
        let mut reader = Bytes { data: tree.data, at: 0 };
        match reader.head()? {
            Head::Map(count) => read_map(&mut reader, tree, 0, count, 0)?,
            head => reader.skip_rest(head, 0)?,
        }
        if reader.at == reader.data.len() { Ok(()) } else { reader.malformed("end of the message") }
    }

    fn enter(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, added_count: u32) -> usize {
        if added_count > 0 {
            let node = base.node(object);
            patch.copy_to(node.value);
            write_map_head(patch.out, node.member_count + added_count);
            patch.skip_to(node.body);
        }
        0
    }

    fn go_to_end(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, _round: u8) {
        patch.copy_to(base.node(object).tail);
    }

    fn write_null(out: &mut Vec<u8>, tree: &Tree<'_>, member: u32) {
        write_key(out, tree, member);
        out.push(NIL);
    }

    fn write_start(out: &mut Vec<u8>, tree: &Tree<'_>, object: u32, member_count: u32) -> usize {
        if object != 0 {
            write_key(out, tree, object);
        }
        write_map_head(out, member_count);
        0
    }

    fn write_end(_out: &mut Vec<u8>, _tree: &Tree<'_>, _object: u32, _started: usize) {}
}

fn write_key(out: &mut Vec<u8>, tree: &Tree<'_>, member: u32) {
    let node = tree.node(member);
    out.extend_from_slice(tree.bytes(node.start..node.value));
}

pub(super) fn write_map_head(out: &mut Vec<u8>, count: u32) {
    match count {
        // Four bits, which the pattern has checked.
        0..=15 => out.push(0x80 | count as u8),
        16..=0xFFFF => {
            out.push(0xDE);
            out.extend_from_slice(&(count as u16).to_be_bytes());
        }
        _ => {
            out.push(0xDF);
            out.extend_from_slice(&count.to_be_bytes());
        }
    }
}

/// Reads the members of a map. `depth` is the number of maps around it. `DOCUMENT_DEPTH_MAX` bounds
/// the recursion.
fn read_map(
    reader: &mut Bytes<'_>,
    tree: &mut Tree<'_>,
    object: usize,
    count: u32,
    depth: usize,
) -> Result<(), Malformed> {
    if depth == DOCUMENT_DEPTH_MAX {
        return Err(Malformed::TooDeep);
    }
    let body = reader.at;
    for _ in 0..count {
        let node = read_key(reader, tree, depth + 1)?;
        match reader.head()? {
            Head::Map(count) => read_map(reader, tree, node, count, depth + 1)?,
            Head::Nil => tree.close(node, Kind::Null, reader.at),
            head => {
                reader.skip_rest(head, depth + 1)?;
                tree.close(node, Kind::Leaf, reader.at);
            }
        }
    }
    tree.describe_object(object, body, reader.at, count);
    tree.close(object, Kind::Object, reader.at);
    Ok(())
}

/// Takes a key. Its name is its text, as paths name it.
fn read_key(reader: &mut Bytes<'_>, tree: &mut Tree<'_>, depth: usize) -> Result<usize, Malformed> {
    let start = reader.at;
    let mut text = Vec::new();
    match reader.head()? {
        Head::Bytes(size) => {
            reader.take(size)?;
            if size > 0 {
                return tree.open(Space::Name, reader.at - size..reader.at, start, reader.at);
            }
        }
        // Writing to memory does not fail.
        Head::Number(number) if !number.is_nan() => number.write_text(&mut text).unwrap_or_default(),
        Head::Boolean(value) => write!(text, "{value}").unwrap_or_default(),
        head => reader.skip_rest(head, depth)?,
    }
    if text.is_empty() {
        tree.open(Space::Key, start..reader.at, start, reader.at)
    } else {
        tree.open_decoded(Space::Name, &text, start, reader.at)
    }
}
