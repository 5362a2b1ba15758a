//! `xml`: elements and attributes of any schema, without document types.
//!
//! The first step of a path is the root element. `/a/@b` is an attribute. The value of an element
//! is the text directly in it, without blanks around it and with its type inferred. An element that
//! holds only other elements, or attributes, is an object. Several elements with the same name and
//! parent are an array.
//!
//! A document is read in one pass. Only elements that a step with an index names are read a second
//! time, for the fields below that step.
//!
//! Entities other than the five of XML itself need a document type. Document types are refused, so
//! that no message can expand into something large or refer to an outside resource. The other rules
//! of well-formedness are those of XML 1.0: see `markup`.

use super::arena::TEXT_SIZE_MAX;
use super::markup::{Markup, Piece, Tag, unescape};
use super::{
    Arena, FieldId, FieldPlan, Format, Found, Level, Malformed, Occurrences, Reading, TextBuilder, Value,
    Visit, push,
};

pub(super) struct Xml;

/// A direct part of an element.
enum Part<'e, 'a> {
    /// Name and value, with its escapes.
    Attribute(&'a str, &'a str),
    /// Name, and all of the element.
    Element(&'a str, &'a str),
    /// A piece of text, without escapes.
    Text(&'e str),
}

/// A wanted element that is open.
struct Open<'a> {
    field: FieldId,
    /// The number of open elements, including it.
    depth: usize,
    /// Where it begins.
    start: usize,
    /// The text directly in it, if its value is wanted.
    text: Option<Text<'a>>,
    /// It has attributes or elements.
    is_object: bool,
}

/// The text directly in an element. Nearly all of them have one piece.
#[derive(Default)]
struct Text<'a> {
    piece: &'a str,
    pieces: Option<TextBuilder<'a>>,
}

impl Format for Xml {
    const REPEATED_NAMES_ARE_ARRAYS: bool = true;

    fn members<'a>(
        &self,
        raw: &'a [u8],
        level: &Level<'_, 'a>,
        found: Found<'_, 'a>,
    ) -> Result<(), Malformed> {
        walk(Markup::element(raw)?, &mut |part| match part {
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
        walk(Markup::element(raw)?, &mut |part| {
            match part {
                Part::Text(piece) => text.push(piece.as_bytes()),
                Part::Attribute(..) | Part::Element(..) => is_object = true,
            }
            Ok(())
        })?;
        Ok(value_of(text.bytes().ok_or(Malformed::TooLarge)?, is_object, raw))
    }

    fn document<'a>(&self, data: &'a [u8], reading: &mut Reading<'_, 'a>) -> Result<(), Malformed> {
        let mut found = Occurrences::new(reading.plan, reading.arena)?;
        find(Markup::document(data)?, reading.plan, reading.arena, &mut found)?;
        reading.set_all(self, FieldPlan::ROOT, false, &found.by_field(reading.arena)?)
    }
}

/// The value of an element with this text directly in it.
fn value_of<'a>(text: &'a [u8], is_object: bool, raw: &'a [u8]) -> Value<'a> {
    let text = text.trim_ascii();
    if text.is_empty() && is_object { Value::Compound(raw) } else { Value::inferred(text) }
}

/// Finds the wanted elements and attributes of a document, and checks all of it.
fn find<'a>(
    mut markup: Markup<'a>,
    plan: &FieldPlan,
    arena: &'a Arena,
    found: &mut Occurrences<'_, 'a>,
) -> Result<(), Malformed> {
    let raw = markup.raw();
    let mut open = arena.list();
    let (mut depth, mut name) = (0, Vec::new());
    loop {
        let (start, piece) = markup.next()?;
        let parent = open.last_mut().filter(|parent: &&mut Open<'a>| parent.depth == depth);
        match piece {
            Piece::Start(ref tag) | Piece::Empty(ref tag) => {
                let at = match &parent {
                    Some(parent) => Some(parent.field),
                    None => (depth == 0).then_some(FieldPlan::ROOT),
                };
                if let Some(parent) = parent {
                    parent.is_object = true;
                }
                let field = at.and_then(|at| plan.names(at).find(tag.name().as_bytes()));
                let is_object = attributes_of(tag, field, plan, arena, found, &mut name)?;
                let is_open = matches!(piece, Piece::Start(_));
                depth += usize::from(is_open);
                if let Some(field) = field {
                    // An element that is read again for an index gets its value then.
                    let wants_text =
                        plan.is_end(field) && plan.indexes(field).is_empty() && found.wants(field);
                    let text = wants_text.then(Text::default);
                    let element = Open { field, depth, start, text, is_object };
                    match is_open {
                        true => push(&mut open, element)?,
                        false => element.end(raw, markup.position(), found)?,
                    }
                }
            }
            Piece::End => {
                depth -= 1;
                if parent.is_some()
                    && let Some(element) = open.pop()
                {
                    element.end(raw, markup.position(), found)?;
                }
            }
            Piece::Text(piece) => {
                if let Some(Open { text: Some(text), .. }) = parent {
                    text.push(piece, arena);
                }
            }
            Piece::Character(character) => {
                if let Some(Open { text: Some(text), .. }) = parent {
                    text.builder(arena).push(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
            Piece::Eof => return Ok(()),
        }
    }
}

/// Checks the attributes of an element, and reads the wanted ones. Returns whether there is any.
/// `name` is reused memory.
fn attributes_of<'a>(
    tag: &Tag<'a>,
    field: Option<FieldId>,
    plan: &FieldPlan,
    arena: &'a Arena,
    found: &mut Occurrences<'_, 'a>,
    name: &mut Vec<u8>,
) -> Result<bool, Malformed> {
    let mut is_any = false;
    tag.for_each_attribute(|key, value| {
        is_any = true;
        let Some(field) = field.filter(|field| plan.has_names(*field)) else { return Ok(()) };
        name.clear();
        name.push(b'@');
        name.extend_from_slice(key.as_bytes());
        match plan.names(field).find(name) {
            Some(field) => found.push(field, attribute_value(value, arena)?),
            None => Ok(()),
        }
    })?;
    Ok(is_any)
}

impl<'a> Open<'a> {
    /// The element ends here.
    fn end(self, raw: &'a str, end: usize, found: &mut Occurrences<'_, 'a>) -> Result<(), Malformed> {
        let raw = &raw.as_bytes()[self.start..end];
        let value = match self.text {
            Some(text) => value_of(text.bytes()?, self.is_object, raw),
            None => Value::Compound(raw),
        };
        found.push(self.field, value)
    }
}

impl<'a> Text<'a> {
    fn push(&mut self, piece: &'a str, arena: &'a Arena) {
        if self.piece.is_empty() && self.pieces.is_none() {
            self.piece = piece;
        } else {
            self.builder(arena).push(piece.as_bytes());
        }
    }

    /// The copy of the text, to which more text is added.
    fn builder(&mut self, arena: &'a Arena) -> &mut TextBuilder<'a> {
        let first = self.piece;
        self.pieces.get_or_insert_with(|| {
            let mut pieces = arena.builder();
            pieces.push(first.as_bytes());
            pieces
        })
    }

    fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self.pieces {
            Some(pieces) => pieces.bytes().ok_or(Malformed::TooLarge),
            None if self.piece.len() > TEXT_SIZE_MAX => Err(Malformed::TooLarge),
            None => Ok(self.piece.as_bytes()),
        }
    }
}

/// The name and the bytes of the root element of a document.
pub(super) fn root(data: &[u8]) -> Result<(&str, &[u8]), Malformed> {
    let mut markup = Markup::document(data)?;
    let (mut depth, mut root) = (0, None);
    loop {
        let (start, piece) = markup.next()?;
        let ends = match piece {
            Piece::Start(tag) => {
                root.get_or_insert((tag.name(), start));
                depth += 1;
                false
            }
            Piece::Empty(tag) => {
                root.get_or_insert((tag.name(), start));
                depth == 0
            }
            Piece::End => {
                depth -= 1;
                depth == 0
            }
            Piece::Text(_) | Piece::Character(_) => false,
            // A document has a root element.
            Piece::Eof => return Ok(("", &[])),
        };
        if let Some((name, start)) = root.filter(|_| ends) {
            return Ok((name, &markup.raw().as_bytes()[start..markup.position()]));
        }
    }
}

/// The attributes and elements of an element that was checked before.
pub(super) fn all_members<'a>(
    raw: &'a [u8],
    arena: &'a Arena,
    visit: Visit<'_, 'a>,
) -> Result<(), Malformed> {
    walk(Markup::element(raw)?, &mut |part| match part {
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

/// Calls `visit` with the parts directly in an element.
fn walk<'a>(
    mut markup: Markup<'a>,
    visit: &mut dyn FnMut(Part<'_, 'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let raw = markup.raw();
    // Elements that are open.
    let mut depth = 0;
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

fn attribute_value<'a>(escaped: &'a str, arena: &'a Arena) -> Result<Value<'a>, Malformed> {
    if !escaped.contains('&') {
        return Ok(Value::inferred(escaped.as_bytes()));
    }
    let mut text = arena.builder();
    unescape(escaped, |part| text.push(part.as_bytes()));
    text.bytes().map(Value::inferred).ok_or(Malformed::TooLarge)
}
