//! `xml`: elements and attributes of any schema, without document types.
//!
//! The first step of a path is the root element. `/a/@b` is an attribute. The value of an element is the text directly in it, without
//! blanks around it and with its type inferred. An element that holds only other elements, or attributes, is an object. Several elements
//! with the same name and parent are an array.
//!
//! Entities other than the five of XML itself need a document type. Document types are refused, so that no message can expand into
//! something large or refer to an outside resource.
//!
//! A byte order mark before the document is not a part of it (XML 1.0, appendix F).

use quick_xml::Reader;
use quick_xml::escape::{resolve_predefined_entity, unescape};
use quick_xml::events::{BytesStart, Event};

use super::{
    Arena, DOCUMENT_DEPTH_MAX, FieldPlan, Format, Found, Level, Malformed, TextBuilder, Value, Visit,
};

/// The most attributes of one element. Names are compared pair by pair to find doubled ones.
pub(super) const ATTRIBUTE_COUNT_MAX: usize = 256;

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
        let raw = utf8(raw)?;
        let is_document = level.at == FieldPlan::ROOT;
        let mut root_count = 0;
        walk(raw, is_document, &mut |part| match part {
            Part::Attribute(name, value) => {
                match attribute_name(name, level.arena).and_then(|key| level.child(key)) {
                    Some(field) => found(field, attribute_value(value, level.arena)?),
                    None => Ok(()),
                }
            }
            Part::Element(name, raw) => {
                root_count += 1;
                match level.child(name.as_bytes()) {
                    Some(field) => found(field, Value::Compound(raw.as_bytes())),
                    None => Ok(()),
                }
            }
            Part::Text(text) if is_document && !text.trim_ascii().is_empty() => {
                Err(Malformed::Syntax { offset: 0, expected: "no text outside of the root element" })
            }
            Part::Text(_) => Ok(()),
        })?;
        if is_document && root_count != 1 {
            return Err(Malformed::Syntax { offset: raw.len(), expected: "one root element" });
        }
        Ok(())
    }

    fn value_of_compound<'a>(&self, raw: &'a [u8], arena: &'a Arena) -> Result<Value<'a>, Malformed> {
        let mut text: TextBuilder<'a> = arena.builder();
        let mut is_object = false;
        walk(utf8(raw)?, false, &mut |part| {
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
    walk(utf8(raw)?, false, &mut |part| match part {
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

/// Calls `visit` with the parts directly in the element `raw`, or in the document, and checks everything below.
fn walk<'a>(
    raw: &'a str,
    is_document: bool,
    visit: &mut dyn FnMut(Part<'_, 'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut reader = Markup::new(raw);
    // Elements that are open; a document counts as one.
    let outside = usize::from(is_document);
    let mut depth = outside;
    let (mut child_start, mut child_name) = (0, "");
    loop {
        let start = reader.position();
        let malformed = |expected| Malformed::Syntax { offset: start, expected };
        match reader.next()? {
            Event::Start(tag) => {
                if depth == DOCUMENT_DEPTH_MAX {
                    return Err(Malformed::TooDeep);
                }
                if depth == 1 {
                    (child_start, child_name) = (start, name_of(raw, start, &tag));
                }
                attributes(&tag, start, depth == 0, visit)?;
                depth += 1;
            }
            Event::Empty(tag) => {
                attributes(&tag, start, depth == 0, visit)?;
                if depth == 1 {
                    visit(Part::Element(name_of(raw, start, &tag), &raw[start..reader.position()]))?;
                }
            }
            Event::End(_) => {
                depth -= 1;
                if depth == 1 {
                    visit(Part::Element(child_name, &raw[child_start..reader.position()]))?;
                }
            }
            Event::Text(text) if depth == 1 => visit(Part::Text(&text))?,
            Event::CData(text) if depth == 1 => visit(Part::Text(&text))?,
            Event::GeneralRef(reference) => {
                let character = reference.resolve_char_ref().map_err(|_| malformed("a character"))?;
                let mut buffer = [0; 4];
                let text = match character {
                    Some(character) => &*character.encode_utf8(&mut buffer),
                    None => resolve_predefined_entity(&reference).ok_or(malformed("a known entity"))?,
                };
                if depth == 1 {
                    visit(Part::Text(text))?;
                }
            }
            Event::DocType(_) => return Err(malformed("no document type")),
            Event::Text(_) | Event::CData(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
            Event::Eof if depth == outside => return Ok(()),
            Event::Eof => return Err(malformed("an end tag")),
        }
    }
}

/// Checks the attributes of a tag, and visits them when they are wanted.
fn attributes<'a>(
    tag: &BytesStart<'_>,
    offset: usize,
    is_wanted: bool,
    visit: &mut dyn FnMut(Part<'_, 'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    for (count, attribute) in tag.attributes().enumerate() {
        if count == ATTRIBUTE_COUNT_MAX {
            return Err(Malformed::Syntax { offset, expected: "at most 256 attributes" });
        }
        let attribute = attribute.map_err(|_| Malformed::Syntax { offset, expected: "name=\"value\"" })?;
        unescape(&attribute.value).map_err(|_| Malformed::Syntax { offset, expected: "a known entity" })?;
        if is_wanted {
            visit(Part::Attribute(attribute.key.as_ref(), &attribute.value))?;
        }
    }
    Ok(())
}

fn attribute_value<'a>(escaped: &str, arena: &'a Arena) -> Result<Value<'a>, Malformed> {
    let mut text = arena.builder();
    // The walk has checked it.
    text.push(unescape(escaped).unwrap_or_default().as_bytes());
    text.bytes().map(Value::inferred).ok_or(Malformed::TooLarge)
}

/// The name in the tag that begins at `start`.
fn name_of<'a>(raw: &'a str, start: usize, tag: &BytesStart<'_>) -> &'a str {
    &raw[start + 1..start + 1 + tag.name().as_ref().len()]
}

/// Reads markup, and knows where in the text it is.
pub(super) struct Markup<'a> {
    reader: Reader<&'a [u8]>,
    /// Bytes at the beginning of the text that the reader does not count: those of a byte order mark.
    uncounted: usize,
}

impl<'a> Markup<'a> {
    pub(super) fn new(raw: &'a str) -> Self {
        let uncounted = if raw.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len_utf8() } else { 0 };
        Markup { reader: Reader::from_str(raw), uncounted }
    }

    /// Where the next piece begins: a place in the text.
    pub(super) fn position(&self) -> usize {
        // The reader counts no byte before it has read a piece. A position in a slice fits.
        self.uncounted + self.reader.buffer_position() as usize
    }

    /// The next piece.
    pub(super) fn next(&mut self) -> Result<Event<'a>, Malformed> {
        let offset = self.position();
        self.reader.read_event().map_err(|_| Malformed::Syntax { offset, expected: "well-formed XML" })
    }
}

/// It says that the text is UTF-8, and belongs to the document no more than a file name does.
const BYTE_ORDER_MARK: char = '\u{feff}';

pub(super) fn utf8(raw: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(raw)
        .map_err(|error| Malformed::Syntax { offset: error.valid_up_to(), expected: "UTF-8" })
}
