//! `xml`: elements and attributes of any schema, without document types.
//!
//! The first step of a path is the root element. `/a/@b` is an attribute. The value of an element is the text directly in it, without
//! blanks around it and with its type inferred. An element that holds only other elements, or attributes, is an object. Several elements
//! with the same name and parent are an array.
//!
//! Entities other than the five of XML itself need a document type. Document types are refused, so that no message can expand into
//! something large or refer to an outside resource. The other rules of well-formedness are those of XML 1.0: see `markup`.

use quick_xml::escape::unescape;

use super::markup::{Markup, Piece, Tag};
use super::{Arena, FieldPlan, Format, Found, Level, Malformed, TextBuilder, Value, Visit};

pub(super) struct Xml;

/// A direct part of an element, or of the document.
enum Part<'e, 'a> {
    /// Name and value, with its escapes.
    Attribute(&'e str, &'e str),
    /// Name, and all of the element.
    Element(&'a str, &'a str),
    /// A piece of text, without escapes.
    Text(&'e str),
}

impl Format for Xml {
    const REPEATED_NAMES_ARE_ARRAYS: bool = true;

    fn members<'a>(
        &self,
        raw: &'a [u8],
        level: &Level<'_, 'a>,
        found: Found<'_, 'a>,
    ) -> Result<(), Malformed> {
        let is_document = level.at == FieldPlan::ROOT;
        let markup = if is_document { Markup::document(raw)? } else { Markup::element(raw)? };
        walk(markup, is_document, &mut |part| match part {
            Part::Attribute(name, value) => {
                match attribute_name(name, level.arena).and_then(|key| level.child(key)) {
                    Some(field) => found(field, attribute_value(value, level.arena)?),
                    None => Ok(()),
                }
            }
            Part::Element(name, raw) => match level.child(name.as_bytes()) {
                Some(field) => found(field, Value::Compound(raw.as_bytes())),
                None => Ok(()),
            },
            Part::Text(_) => Ok(()),
        })
    }

    fn value_of_compound<'a>(&self, raw: &'a [u8], arena: &'a Arena) -> Result<Value<'a>, Malformed> {
        let mut text: TextBuilder<'a> = arena.builder();
        let mut is_object = false;
        walk(Markup::element(raw)?, false, &mut |part| {
            match part {
                Part::Text(piece) => text.push(piece.as_bytes()),
                Part::Attribute(..) | Part::Element(..) => is_object = true,
            }
            Ok(())
        })?;
        let text = text.bytes().ok_or(Malformed::TooLarge)?.trim_ascii();
        Ok(if text.is_empty() && is_object { Value::Compound(raw) } else { Value::inferred(text) })
    }
}

/// The attributes and elements of an element that was checked before.
pub(super) fn all_members<'a>(
    raw: &'a [u8],
    arena: &'a Arena,
    visit: Visit<'_, 'a>,
) -> Result<(), Malformed> {
    walk(Markup::element(raw)?, false, &mut |part| match part {
        Part::Attribute(name, value) => {
            visit(attribute_name(name, arena).ok_or(Malformed::TooLarge)?, attribute_value(value, arena)?)
        }
        Part::Element(name, raw) => visit(name.as_bytes(), Xml.value_of_compound(raw.as_bytes(), arena)?),
        Part::Text(_) => Ok(()),
    })
}

/// An attribute as a step of a path.
fn attribute_name<'a>(name: &str, arena: &'a Arena) -> Option<&'a [u8]> {
    let mut key = arena.builder();
    key.push(b"@");
    key.push(name.as_bytes());
    key.bytes()
}

/// Calls `visit` with the parts directly in an element, or in the document, and checks everything below.
fn walk<'a>(
    mut markup: Markup<'a>,
    is_document: bool,
    visit: &mut dyn FnMut(Part<'_, 'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let raw = markup.raw();
    // Elements that are open; a document counts as one.
    let mut depth = usize::from(is_document);
    let (mut child_start, mut child_name) = (0, "");
    loop {
        let (start, piece) = markup.next()?;
        match piece {
            Piece::Start(tag) => {
                if depth == 1 {
                    (child_start, child_name) = (start, tag.name());
                }
                attributes(&tag, depth == 0, visit)?;
                depth += 1;
            }
            Piece::Empty(tag) => {
                attributes(&tag, depth == 0, visit)?;
                if depth == 1 {
                    visit(Part::Element(tag.name(), &raw[start..markup.position()]))?;
                }
            }
            Piece::End => {
                depth -= 1;
                if depth == 1 {
                    visit(Part::Element(child_name, &raw[child_start..markup.position()]))?;
                }
            }
            Piece::Text(text) if depth == 1 => visit(Part::Text(text))?,
            Piece::Character(character) if depth == 1 => {
                visit(Part::Text(character.encode_utf8(&mut [0; 4])))?;
            }
            Piece::Text(_) | Piece::Character(_) => {}
            Piece::Eof => return Ok(()),
        }
    }
}

/// Checks the attributes of a tag, and visits them when they are wanted.
fn attributes<'a>(
    tag: &Tag<'a>,
    is_wanted: bool,
    visit: &mut dyn FnMut(Part<'_, 'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    tag.for_each_attribute(|name, value| if is_wanted { visit(Part::Attribute(name, value)) } else { Ok(()) })
}

fn attribute_value<'a>(escaped: &str, arena: &'a Arena) -> Result<Value<'a>, Malformed> {
    let mut text = arena.builder();
    // The walk has checked it.
    text.push(unescape(escaped).unwrap_or_default().as_bytes());
    text.bytes().map(Value::inferred).ok_or(Malformed::TooLarge)
}
