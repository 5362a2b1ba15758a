//! Well-formed XML as a series of pieces, for reading fields and for writing them.
//!
//! The library finds the pieces, and compares the names of tags. It does not check other rules of
//! well-formedness. This module does: characters, names, references, attributes, comments,
//! processing instructions, the declaration, and the pieces outside of the root element. A document
//! type is refused.
//!
//! A byte order mark before the document is not a part of it (XML 1.0, appendix F).

use std::borrow::Cow;

use quick_xml::Reader;
use quick_xml::events::Event;
use quick_xml::events::attributes::Attributes;

use super::{DOCUMENT_DEPTH_MAX, Malformed};

/// The most attributes of one element. Names are compared pair by pair to find doubled ones.
const ATTRIBUTE_COUNT_MAX: usize = 256;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Reads a document, or an element that was read before as a part of one.
pub(super) struct Markup<'a> {
    raw: &'a str,
    reader: Reader<&'a [u8]>,
    /// Bytes at the beginning that the reader does not count: those of a byte order mark.
    uncounted: usize,
    is_document: bool,
    has_root: bool,
    /// Elements that are open.
    depth: usize,
}

/// A piece of a document. Names and texts are as in the message, with their escapes.
pub(super) enum Piece<'a> {
    /// A start tag.
    Start(Tag<'a>),
    /// The tag of an element without content.
    Empty(Tag<'a>),
    /// An end tag.
    End,
    /// Text in an element. It has no escapes.
    Text(&'a str),
    /// The character of a reference in the text of an element.
    Character(char),
    /// The end.
    Eof,
}

/// A start tag, or the tag of an element without content.
pub(super) struct Tag<'a> {
    /// Without brackets and the slash.
    content: &'a str,
    name_size: usize,
    /// Where it begins in the text.
    start: usize,
}

impl<'a> Markup<'a> {
    /// A whole message.
    pub(super) fn document(data: &'a [u8]) -> Result<Self, Malformed> {
        let raw = utf8(data)?;
        match odd_character(raw) {
            Some(offset) => Err(Malformed::Syntax { offset, expected: "a character that XML can have" }),
            None => Ok(Markup::new(raw, true)),
        }
    }

    /// An element of a message that was read before.
    pub(super) fn element(raw: &'a [u8]) -> Result<Self, Malformed> {
        Ok(Markup::new(utf8(raw)?, false))
    }

    fn new(raw: &'a str, is_document: bool) -> Self {
        let uncounted = if raw.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len_utf8() } else { 0 };
        let mut reader = Reader::from_str(raw);
        reader.config_mut().check_comments = true;
        Markup { raw, reader, uncounted, is_document, has_root: false, depth: 0 }
    }

    /// The text that is read.
    pub(super) fn raw(&self) -> &'a str {
        self.raw
    }

    /// The offset in the text up to which it was read.
    pub(super) fn position(&self) -> usize {
        // A position in a slice fits.
        self.uncounted + self.reader.buffer_position() as usize
    }

    /// The next piece, and the place where it begins.
    pub(super) fn next(&mut self) -> Result<(usize, Piece<'a>), Malformed> {
        loop {
            let start = self.position();
            let malformed = |expected| Err(Malformed::Syntax { offset: start, expected });
            let Ok(event) = self.reader.read_event() else { return malformed("well-formed XML") };
            let text = &self.raw[start..self.position()];
            let is_outside = self.is_document && self.depth == 0;
            let inner =
                |before: usize, after: usize| text.get(before..text.len() - after).unwrap_or_default();
            let piece = match event {
                Event::Start(tag) => {
                    if self.depth + usize::from(self.is_document) == DOCUMENT_DEPTH_MAX {
                        return Err(Malformed::TooDeep);
                    }
                    let tag = self.tag(inner(1, 1), tag.name().as_ref().len(), start)?;
                    self.depth += 1;
                    Piece::Start(tag)
                }
                Event::Empty(tag) => Piece::Empty(self.tag(inner(1, 2), tag.name().as_ref().len(), start)?),
                Event::End(_) => {
                    self.depth -= 1;
                    Piece::End
                }
                Event::Text(_) if is_outside && text.bytes().all(is_blank) => continue,
                Event::Text(_) | Event::CData(_) | Event::GeneralRef(_) if is_outside => {
                    return malformed("no text outside of the root element");
                }
                Event::Text(_) if memchr::memmem::find(text.as_bytes(), b"]]>").is_some() => {
                    return malformed("no ]]> in text");
                }
                Event::Text(_) => Piece::Text(text),
                Event::CData(_) => Piece::Text(inner("<![CDATA[".len(), "]]>".len())),
                Event::GeneralRef(_) => match character_of(inner(1, 1)) {
                    Some(character) => Piece::Character(character),
                    None => return malformed("a known entity or a character"),
                },
                Event::Comment(_) => continue,
                Event::PI(_) => {
                    let target = inner(2, 2).split([' ', '\t', '\n', '\r']).next();
                    match target.is_some_and(|target| is_name(target) && !target.eq_ignore_ascii_case("xml"))
                    {
                        true => continue,
                        false => return malformed("the name of a processing instruction"),
                    }
                }
                Event::Decl(_) => {
                    match self.is_document && start == self.uncounted && is_declaration(inner(2, 2)) {
                        true => continue,
                        false => return malformed("an XML declaration, at the beginning only"),
                    }
                }
                Event::DocType(_) => return malformed("no document type"),
                Event::Eof if self.depth > 0 => return malformed("an end tag"),
                Event::Eof if self.is_document && !self.has_root => return malformed("one root element"),
                Event::Eof => Piece::Eof,
            };
            return Ok((start, piece));
        }
    }

    fn tag(&mut self, content: &'a str, name_size: usize, start: usize) -> Result<Tag<'a>, Malformed> {
        let tag = Tag { content, name_size, start };
        if !is_name(tag.name()) {
            return Err(Malformed::Syntax { offset: start, expected: "the name of an element" });
        }
        if self.is_document && self.depth == 0 && std::mem::replace(&mut self.has_root, true) {
            return Err(Malformed::Syntax { offset: start, expected: "one root element" });
        }
        Ok(tag)
    }
}

impl<'a> Tag<'a> {
    /// The name of the element.
    pub(super) fn name(&self) -> &'a str {
        self.content.get(..self.name_size).unwrap_or_default()
    }

    /// Calls `each` with the name and the value of each attribute. The value has its escapes, which
    /// are checked.
    pub(super) fn for_each_attribute(
        &self,
        mut each: impl FnMut(&'a str, &'a str) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let malformed = |expected| Err(Malformed::Syntax { offset: self.start, expected });
        for (count, attribute) in Attributes::new(self.content, self.name_size).enumerate() {
            if count == ATTRIBUTE_COUNT_MAX {
                return malformed("at most 256 attributes");
            }
            let Some((name, value)) = attribute.ok().and_then(|attribute| {
                let Cow::Borrowed(value) = attribute.value else { return None };
                Some((attribute.key.into_inner(), value))
            }) else {
                return malformed("name=\"value\"");
            };
            if !is_name(name) {
                return malformed("the name of an attribute");
            }
            let before = place_in(self.content, name).checked_sub(1);
            if !before.is_some_and(|before| is_blank(self.content.as_bytes()[before])) {
                return malformed("a blank before an attribute");
            }
            if value.contains('<') {
                return malformed("no < in an attribute");
            }
            if !has_known_references(value) {
                return malformed("a known entity or a character");
            }
            each(name, value)?;
        }
        Ok(())
    }
}

/// Where a part of a text begins in it.
pub(super) fn place_in(text: &str, part: &str) -> usize {
    // All parts are borrowed from the text.
    part.as_ptr().addr().saturating_sub(text.as_ptr().addr())
}

fn utf8(raw: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(raw)
        .map_err(|error| Malformed::Syntax { offset: error.valid_up_to(), expected: "UTF-8" })
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// A character that XML can have, as it is or by a reference.
fn is_character(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\r' | ' '..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..)
}

/// Where a text has a character that XML cannot have.
fn odd_character(text: &str) -> Option<usize> {
    /// Blocks of a fixed size become vector instructions.
    const BLOCK_SIZE: usize = 64;
    let is_control = |byte: u8| byte < b' ' && !is_blank(byte);
    let blocks = text.as_bytes().chunks(BLOCK_SIZE);
    let mut odd = blocks.map(|block| block.iter().fold(false, |odd, byte| odd | is_control(*byte)));
    // U+FFFE and U+FFFF have three bytes.
    let has_odd = odd.any(|odd| odd) || memchr::memmem::find(text.as_bytes(), b"\xEF\xBF").is_some();
    match has_odd {
        true => text.char_indices().find(|(_, character)| !is_character(*character)).map(|(place, _)| place),
        false => None,
    }
}

/// A name of XML 1.0, fifth edition.
pub(super) fn is_name(text: &str) -> bool {
    let is_ascii_start = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b':');
    let is_ascii_part =
        |byte: u8| is_ascii_start(byte) || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_start = |character: char| match u8::try_from(character) {
        Ok(byte) if byte.is_ascii() => is_ascii_start(byte),
        _ => is_other_name_start(character),
    };
    let is_part = |character: char| match u8::try_from(character) {
        Ok(byte) if byte.is_ascii() => is_ascii_part(byte),
        _ => {
            is_other_name_start(character)
                || matches!(character, '\u{B7}' | '\u{300}'..='\u{36F}' | '\u{203F}'..='\u{2040}')
        }
    };
    match text.as_bytes() {
        [first, rest @ ..] if text.is_ascii() => {
            is_ascii_start(*first) && rest.iter().all(|byte| is_ascii_part(*byte))
        }
        _ => text.chars().next().is_some_and(is_start) && text.chars().all(is_part),
    }
}

/// A character beyond ASCII with which a name can begin.
fn is_other_name_start(character: char) -> bool {
    matches!(
        character,
        '\u{C0}'..='\u{D6}'
            | '\u{D8}'..='\u{F6}'
            | '\u{F8}'..='\u{2FF}'
            | '\u{370}'..='\u{37D}'
            | '\u{37F}'..='\u{1FFF}'
            | '\u{200C}'..='\u{200D}'
            | '\u{2070}'..='\u{218F}'
            | '\u{2C00}'..='\u{2FEF}'
            | '\u{3001}'..='\u{D7FF}'
            | '\u{F900}'..='\u{FDCF}'
            | '\u{FDF0}'..='\u{FFFD}'
            | '\u{10000}'..='\u{EFFFF}'
    )
}

/// The character of a reference, without `&` and `;`.
fn character_of(reference: &str) -> Option<char> {
    let number = |digits: &str, radix: u32| {
        // A sign is a part of a number for the standard library.
        let is_number = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
        let number = u32::from_str_radix(digits, radix).ok().filter(|_| is_number)?;
        char::from_u32(number).filter(|character| is_character(*character))
    };
    match reference {
        "lt" => Some('<'),
        "gt" => Some('>'),
        "amp" => Some('&'),
        "apos" => Some('\''),
        "quot" => Some('"'),
        reference => match reference.strip_prefix("#x") {
            Some(digits) => number(digits, 16),
            None => number(reference.strip_prefix('#')?, 10),
        },
    }
}

/// Calls `push` with the parts of a checked text in order, with the characters of its references.
pub(super) fn unescape(text: &str, mut push: impl FnMut(&str)) {
    let mut parts = text.split('&');
    push(parts.next().unwrap_or_default());
    for part in parts {
        let Some((reference, rest)) = part.split_once(';') else { continue };
        if let Some(character) = character_of(reference) {
            push(character.encode_utf8(&mut [0; 4]));
        }
        push(rest);
    }
}

fn has_known_references(text: &str) -> bool {
    let mut parts = text.split('&');
    parts.next();
    parts.all(|part| part.split_once(';').is_some_and(|(reference, _)| character_of(reference).is_some()))
}

/// Whether this is the text of a declaration between `<?` and `?>`.
fn is_declaration(content: &str) -> bool {
    let tag = Tag { content, name_size: "xml".len(), start: 0 };
    let mut found = Vec::new();
    let read = tag.for_each_attribute(|name, value| {
        found.push((name, value));
        Ok(())
    });
    if read.is_err() {
        return false;
    }
    let is_version = |value: &str| {
        let digits = value.strip_prefix("1.").unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_encoding = |value: &str| {
        value.starts_with(|first: char| first.is_ascii_alphabetic())
            && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    match &*found {
        [("version", version), rest @ ..] if is_version(version) => match rest {
            [] | [("standalone", "yes" | "no")] => true,
            [("encoding", encoding)] | [("encoding", encoding), ("standalone", "yes" | "no")] => {
                is_encoding(encoding)
            }
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Arena, MessageType, difference};

    /// Whether a document is well-formed, for the reader and for the writer.
    fn is_well_formed(text: &str) -> bool {
        let read = MessageType::Xml.check(text.as_bytes(), &mut Arena::default()).is_ok();
        let written = difference(MessageType::Xml, text.as_bytes(), text.as_bytes(), &[], &mut Vec::new());
        assert_eq!(written.is_ok(), read, "{text:?}: {written:?}");
        read
    }

    #[test]
    fn well_formed_documents_are_read() {
        for text in [
            "<a/>",
            "<a />",
            "<a\n/>",
            "<a></a\t>",
            "\u{feff}<a/>",
            "\u{feff}<?xml version='1.0'?><a/>",
            "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone='no' ?>\r\n<!-- c --><?p q?><a/> <!---->\n<?p?>",
            "<?xml version='1.1' encoding='iso-8859-1'?><a/>",
            "<a b='1' c=\"'\"/>",
            "<a b = '1'\tc\n=\n'2'></a>",
            "<a b='&lt;&#60;&#x3c;&quot;&apos;&amp;&gt;>'/>",
            "<a>]] > ]]&gt; &#9;&#xD;&#x10FFFF;&amp;amp;</a>",
            "<a><![CDATA[<b> & ]]]]><![CDATA[>]]></a>",
            "<a><!-- - -<b>& --><?x <b> & ?></a>",
            "<gr\u{f6}\u{df}e:x.y-1_\u{b7}/>",
            "<_/>",
            "<:/>",
            "<\u{10000}/>",
            "<a>\u{85}\u{7f}\u{fffd}\u{e000}</a>",
            "<a xml:lang='de' xmlns:p='q'><p:b/></a>",
        ] {
            assert!(is_well_formed(text), "{text:?}");
        }
    }

    #[test]
    fn documents_that_are_not_well_formed_are_malformed() {
        for text in [
            "",
            " ",
            "a",
            "<a>",
            "</a>",
            "<a></b>",
            "<a></a></a>",
            "<a/><a/>",
            "<a/><b></b>",
            "a<a/>",
            "<a/>a",
            "<a/>&#32;",
            "&#32;<a/>",
            "<a/><![CDATA[]]>",
            "\u{feff}\u{feff}<a/>",
            "<a>\u{1}</a>",
            "<a b='\u{b}'/>",
            "<a><!-- \u{c} --></a>",
            "<a>\u{fffe}</a>",
            "<a>\u{ffff}</a>",
            "<a>&#0;</a>",
            "<a>&#x1F;</a>",
            "<a b='&#1;'/>",
            "<a>&#xD800;</a>",
            "<a>&#xFFFF;</a>",
            "<a>&#x110000;</a>",
            "<a>&#X41;</a>",
            "<a>&#x+41;</a>",
            "<a>&#+65;</a>",
            "<a>&#;</a>",
            "<a>&#x;</a>",
            "<a>&;</a>",
            "<a>& </a>",
            "<a>&amp</a>",
            "<a>& amp;</a>",
            "<a>&nbsp;</a>",
            "<a b='&nbsp;'/>",
            "<a b='&'/>",
            "<a b='&amp'/>",
            "<a b='<'/>",
            "<a b=1/>",
            "<a b/>",
            "<a b=/>",
            "<a ='1'/>",
            "<a b='1'c='2'/>",
            "<a b='1' b='2'/>",
            "<a b='1\"/>",
            "<a b='1' / >",
            "<a / >",
            "<a 1='1'/>",
            "<a -b='1'/>",
            "<a b,c='1'/>",
            "< a/>",
            "<1/>",
            "<-/>",
            "<./>",
            "<a&b/>",
            "<a$/>",
            "<\u{d7}/>",
            "<\u{b7}/>",
            "<a\u{2028}/>",
            "<a></ a>",
            "<a></a b='1'>",
            "<a></a/>",
            "<a>]]></a>",
            "<a><b></a></b>",
            "<a><!-- a -- b --></a>",
            "<a><!-- a ---></a>",
            "<a><!-- a </a>",
            "<a><!- a --></a>",
            "<a><!></a>",
            "<a><![CDATA[</a>",
            "<a><![cdata[]]></a>",
            "<a><![ CDATA[]]></a>",
            "<a><?></a>",
            "<a><??></a>",
            "<a><? p?></a>",
            "<a><?1 p?></a>",
            "<a><?p </a>",
            "<a><?xml version='1.0'?></a>",
            "<a><?XML p?></a>",
            "<a/><?xml version='1.0'?>",
            " <?xml version='1.0'?><a/>",
            "<!-- --><?xml version='1.0'?><a/>",
            "<?xml?><a/>",
            "<?xml ?><a/>",
            "<?xml encoding='UTF-8'?><a/>",
            "<?xml version='1.0' standalone='no' encoding='UTF-8'?><a/>",
            "<?xml version='1.0' standalone='maybe'?><a/>",
            "<?xml version='1.0' encoding='8'?><a/>",
            "<?xml version='1.0' encoding=''?><a/>",
            "<?xml version='1.0'encoding='UTF-8'?><a/>",
            "<?xml version='2.0'?><a/>",
            "<?xml version='1'?><a/>",
            "<?xml version='1.0' version='1.0'?><a/>",
            "<?xml version='1.0' other='1'?><a/>",
            "<?xml version=1.0?><a/>",
            "<?xml VERSION='1.0'?><a/>",
            "<?XML version='1.0'?><a/>",
            "<?xml version='1.0'><a/>",
            "<!DOCTYPE a><a/>",
            "<!doctype a><a/>",
            "<!ELEMENT a ANY><a/>",
            "<a",
            "<a b",
            "<a b='",
            "<a/",
            "<",
            "<a><",
            "<a></",
            "<a></a",
        ] {
            assert!(!is_well_formed(text), "{text:?}");
        }
    }
}
