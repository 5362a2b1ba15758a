//! `json`: members between braces, with commas.

use super::tree::{Kind, Space, Tree};
use super::{Layout, Patch};
use crate::message_type::json::{Escaped, Scanner};
use crate::message_type::{Arena, DOCUMENT_DEPTH_MAX, Malformed};

pub(super) struct Json;

impl Layout for Json {
    fn read(tree: &mut Tree<'_>) -> Result<(), Malformed> {
        let mut scanner = Scanner::new(tree.data);
        scanner.skip_blanks();
        tree.nodes[0].value = scanner.at as u32;
        if scanner.peek() == b'{' {
            read_object(&mut scanner, tree, 0, 0)?;
        } else {
            scanner.skip_value(0)?;
        }
        scanner.end()
    }

    fn go_to_end(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, _round: u8) {
        patch.copy_to(base.node(object).tail);
        Json::write_separator(patch.out);
    }

    fn write_null(out: &mut Vec<u8>, tree: &Tree<'_>, member: u32) {
        write_name(out, tree, member);
        out.extend_from_slice(b"null");
    }

    fn write_separator(out: &mut Vec<u8>) {
        // No member ends like that.
        if out.last() != Some(&b'{') {
            out.push(b',');
        }
    }

    fn write_start(out: &mut Vec<u8>, tree: &Tree<'_>, object: u32, _member_count: u32) -> usize {
        if object != 0 {
            write_name(out, tree, object);
        }
        out.push(b'{');
        0
    }

    fn write_end(out: &mut Vec<u8>, _tree: &Tree<'_>, _object: u32, _started: usize) {
        out.push(b'}');
    }
}

/// The name, its quotes, the colon and the blanks around.
fn write_name(out: &mut Vec<u8>, tree: &Tree<'_>, member: u32) {
    let node = tree.node(member);
    out.extend_from_slice(tree.bytes(node.start..node.value));
}

/// Takes an object. `depth` is the number of objects around it; recursion is bounded by
/// `DOCUMENT_DEPTH_MAX`.
fn read_object(
    scanner: &mut Scanner<'_>,
    tree: &mut Tree<'_>,
    object: usize,
    depth: usize,
) -> Result<(), Malformed> {
    if depth == DOCUMENT_DEPTH_MAX {
        return Err(Malformed::TooDeep);
    }
    scanner.at += 1;
    let (body, mut tail, mut member_count) = (scanner.at, scanner.at, 0);
    scanner.skip_blanks();
    while scanner.peek() != b'}' || member_count > 0 {
        read_member(scanner, tree, depth)?;
        (tail, member_count) = (scanner.at, member_count + 1);
        scanner.skip_blanks();
        match scanner.peek() {
            b',' => scanner.at += 1,
            b'}' => break,
            _ => return scanner.malformed(", or }"),
        }
        scanner.skip_blanks();
    }
    scanner.at += 1;
    tree.describe_object(object, body, tail, member_count);
    tree.close(object, Kind::Object, scanner.at);
    Ok(())
}

fn read_member(scanner: &mut Scanner<'_>, tree: &mut Tree<'_>, depth: usize) -> Result<(), Malformed> {
    let start = scanner.at;
    let name = scanner.member_name()?;
    let (name_start, value) = (start + 1, scanner.at);
    let node = if name.escaped == Escaped::No {
        tree.open(Space::Name, name_start..name_start + name.bytes.len(), start, value)?
    } else {
        tree.open_decoded(Space::Name, name.decoded(&Arena::default())?, start, value)?
    };
    let first = scanner.peek();
    if first == b'{' {
        return read_object(scanner, tree, node, depth + 1);
    }
    scanner.skip_value(depth + 1)?;
    tree.close(node, if first == b'n' { Kind::Null } else { Kind::Leaf }, scanner.at);
    Ok(())
}
