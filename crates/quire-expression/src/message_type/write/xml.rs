//! `xml`: elements and attributes. Elements of one name and parent are an array.
//!
//! An element with text directly in it is one value, together with its attributes and elements. An
//! empty element is NULL, but an empty root element is an object.

use super::tree::{Kind, Mark, Node, Space, Tree};
use super::{Layout, MergeError, Patch};
use crate::message_type::Malformed;
use crate::message_type::markup::{Markup, Piece, Tag, place_in};

pub(super) struct Xml;

/// The node of the root element. The node of the document is before it.
const ROOT_ELEMENT: u32 = 1;

impl Layout for Xml {
    const REPEATED_NAMES_ARE_ARRAYS: bool = true;
    const ROUND_COUNT: u8 = 2;

    fn round(member: &Node) -> u8 {
        u8::from(member.space != Space::Attribute)
    }

    fn read(tree: &mut Tree<'_>) -> Result<(), Malformed> {
        let document = Open { node: 0, body: 0, member_count: 0, has_text: false };
        Reading { tree, open: vec![document] }.read()
    }

    fn names_fields(base: &Tree<'_>, delta: &Tree<'_>) -> Result<bool, MergeError> {
        // The base of a merge has only the nodes that the delta names.
        let has_root = base.nodes.len() > ROOT_ELEMENT as usize;
        if !has_root || base.name(ROOT_ELEMENT) != delta.name(ROOT_ELEMENT) {
            return Err(MergeError::DifferentRoots);
        }
        let is_object = base.node(ROOT_ELEMENT).kind == Kind::Object;
        let root = delta.node(ROOT_ELEMENT);
        Ok(!(is_object && root.kind == Kind::Object && root.member_count == 0))
    }

    fn keep_root(tree: &mut Tree<'_>) {
        let root = tree.node_mut(ROOT_ELEMENT);
        if root.mark == Mark::Nothing {
            root.mark = if root.kind == Kind::Object { Mark::Parts } else { Mark::Whole };
        }
    }

    fn go_to_end(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, round: u8) {
        let node = base.node(object);
        if round == 0 {
            patch.copy_to(node.body);
        } else if !is_empty_tag(base, object) {
            patch.copy_to(node.tail);
        } else if patch.at <= node.tail {
            patch.copy_to(node.tail);
            patch.out.push(b'>');
            patch.skip_to(node.end);
        }
    }

    fn leave(patch: &mut Patch<'_>, base: &Tree<'_>, object: u32, _entered: usize, _added_count: u32) {
        // When an empty tag gets elements, none of its bytes are kept.
        if is_empty_tag(base, object) && patch.at == base.node(object).end {
            write_end_tag(patch.out, base, object);
        }
    }

    fn remove(patch: &mut Patch<'_>, base: &Tree<'_>, member: u32) {
        let node = base.node(member);
        patch.copy_to(node.start);
        patch.skip_to(node.end);
        // The texts on both sides become one, which must not contain `]]>`. The texts of the base
        // do not contain it.
        let is_bracket = |byte: &&u8| **byte == b']';
        let before = patch.out.iter().rev().take(2).take_while(is_bracket).count();
        let after = patch.base[node.end as usize..].iter().take(2).take_while(is_bracket).count();
        let angle = node.end + after as u32;
        if before + after >= 2 && patch.base.get(angle as usize) == Some(&b'>') {
            patch.copy_to(angle);
            patch.out.extend_from_slice(b"&gt;");
            patch.skip_to(angle + 1);
        }
    }

    fn write_member(out: &mut Vec<u8>, tree: &Tree<'_>, member: u32) {
        if tree.node(member).space == Space::Attribute {
            out.push(b' ');
        }
        out.extend_from_slice(tree.value(member));
    }

    fn write_null(out: &mut Vec<u8>, tree: &Tree<'_>, member: u32) {
        let name = tree.name(member);
        let (before, after): (&[u8], &[u8]) = match name.space {
            Space::Attribute => (b" ", b"=\"\""),
            Space::Name | Space::Key => (b"<", b"/>"),
        };
        [before, name.bytes, after].into_iter().for_each(|part| out.extend_from_slice(part));
    }

    fn write_start(out: &mut Vec<u8>, tree: &Tree<'_>, object: u32, _member_count: u32) -> usize {
        if object != 0 {
            out.push(b'<');
            out.extend_from_slice(tree.name(object).bytes);
        }
        0
    }

    fn write_end_of_round(out: &mut Vec<u8>, object: u32, round: u8) {
        if object != 0 && round == 0 {
            out.push(b'>');
        }
    }

    fn write_end(out: &mut Vec<u8>, tree: &Tree<'_>, object: u32, _started: usize) {
        if object != 0 {
            write_end_tag(out, tree, object);
        }
    }
}

/// Whether an element is written as `<name/>`.
fn is_empty_tag(tree: &Tree<'_>, element: u32) -> bool {
    tree.data.get(tree.node(element).tail as usize) == Some(&b'/')
}

fn write_end_tag(out: &mut Vec<u8>, tree: &Tree<'_>, element: u32) {
    [b"</", tree.name(element).bytes, b">"].into_iter().for_each(|part| out.extend_from_slice(part));
}

struct Reading<'r, 'a> {
    tree: &'r mut Tree<'a>,
    /// The document, and the elements that are open. Not recursion: an element costs less here than
    /// a call.
    open: Vec<Open>,
}

/// An element whose end was not read yet.
struct Open {
    node: usize,
    /// The end of its attributes.
    body: usize,
    member_count: u32,
    has_text: bool,
}

impl<'a> Reading<'_, 'a> {
    fn read(mut self) -> Result<(), Malformed> {
        let mut markup = Markup::document(self.tree.data)?;
        let raw = markup.raw();
        loop {
            let (start, piece) = markup.next()?;
            match piece {
                Piece::Start(tag) => self.start(raw, start, &tag)?,
                Piece::Empty(tag) => {
                    self.start(raw, start, &tag)?;
                    let end = markup.position();
                    self.end(end - "/>".len(), end);
                }
                Piece::End => self.end(start, markup.position()),
                Piece::Text(text) => self.text(text),
                Piece::Character(character) => self.text(character.encode_utf8(&mut [0; 4])),
                Piece::Eof => break,
            }
        }
        self.tree.describe_object(0, 0, raw.len(), 1);
        self.tree.close(0, Kind::Object, raw.len());
        Ok(())
    }

    /// Reads the name and the attributes of an element.
    fn start(&mut self, raw: &'a str, start: usize, tag: &Tag<'a>) -> Result<(), Malformed> {
        let name = start + 1..start + 1 + tag.name().len();
        let mut open = Open { node: 0, body: name.end, member_count: 0, has_text: false };
        open.node = self.tree.open(Space::Name, name, start, start)?;
        tag.for_each_attribute(|name, value| {
            let start = place_in(raw, name);
            // The closing quote is part of the attribute.
            let end = place_in(raw, value) + value.len() + 1;
            let node = self.tree.open(Space::Attribute, start..start + name.len(), start, start)?;
            self.tree.close(node, if value.is_empty() { Kind::Null } else { Kind::Leaf }, end);
            (open.body, open.member_count) = (end, open.member_count + 1);
            Ok(())
        })?;
        self.open.push(open);
        Ok(())
    }

    /// Reads a piece of text without escapes.
    fn text(&mut self, text: &str) {
        if !text.trim_ascii().is_empty()
            && let Some(element) = self.open.last_mut()
        {
            element.has_text = true;
        }
    }

    /// Ends an element. `tail` is the beginning of its end tag.
    fn end(&mut self, tail: usize, end: usize) {
        // The reader has compared the tags, so the document is still open.
        let Some(Open { node, body, member_count, has_text }) = self.open.pop() else { return };
        let kind = match (has_text, member_count) {
            (true, _) if !self.tree.has_text_objects => Kind::Leaf,
            (false, 0) if node != ROOT_ELEMENT as usize => Kind::Null,
            _ => Kind::Object,
        };
        if kind == Kind::Object {
            self.tree.describe_object(node, body, tail, member_count);
        } else {
            self.tree.forget_members(node);
        }
        self.tree.close(node, kind, end);
        if let Some(around) = self.open.last_mut() {
            around.member_count += 1;
        }
    }
}
