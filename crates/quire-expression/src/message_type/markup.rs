//! Well-formed XML as a series of pieces, for reading fields and for writing them.
//!
//! It is written by hand, because a message may have a million tags, and other connections wait
//! while it is read. The rules of well-formedness are here: characters, names, the order of tags,
//! references, attributes, comments, processing instructions, the declaration, and what may be
//! outside of the root element. A document type is refused.
//!
//! A byte order mark before the document is not a part of it (XML 1.0, appendix F).

use super::{DOCUMENT_DEPTH_MAX, Malformed};

/// The most attributes of one element: many more than real messages have.
const ATTRIBUTE_COUNT_MAX: usize = 256;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Reads a document, or an element that was read before as a part of one.
pub(super) struct Markup<'a> {
    raw: &'a str,
    /// The place up to which it was read.
    at: usize,
    is_document: bool,
    has_root: bool,
    /// The names of the elements that are open.
    open: Vec<&'a str>,
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
        let at = if raw.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len_utf8() } else { 0 };
        Markup { raw, at, is_document, has_root: false, open: Vec::new() }
    }

    /// The text that is read.
    pub(super) fn raw(&self) -> &'a str {
        self.raw
    }

    /// The place in the text up to which it was read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The next piece, and the place where it begins.
    pub(super) fn next(&mut self) -> Result<(usize, Piece<'a>), Malformed> {
        loop {
            let start = self.at;
            let rest = &self.raw.as_bytes()[start..];
            let piece = match rest {
                [b'<', b'/', ..] => self.end_tag()?,
                [b'<', b'!', ..] => match self.declaration()? {
                    Some(text) => Piece::Text(text),
                    None => continue,
                },
                [b'<', b'?', ..] => {
                    self.instruction()?;
                    continue;
                }
                [b'<', ..] => self.tag()?,
                [] if !self.open.is_empty() => return self.malformed("an end tag"),
                [] if self.is_document && !self.has_root => return self.malformed("one root element"),
                [] => Piece::Eof,
                [first, ..] if self.is_outside() => {
                    let size = size_of_text(rest);
                    if *first == b'&' || !rest[..size].iter().all(|byte| is_blank(*byte)) {
                        return self.malformed("no text outside of the root element");
                    }
                    self.at += size;
                    continue;
                }
                [b'&', ..] => self.reference()?,
                [..] => {
                    let text = &self.raw[start..start + size_of_text(rest)];
                    if text.len() > 2 && memchr::memmem::find(text.as_bytes(), b"]]>").is_some() {
                        return self.malformed("no ]]> in text");
                    }
                    self.at += text.len();
                    Piece::Text(text)
                }
            };
            return Ok((start, piece));
        }
    }

    #[cold]
    fn malformed<T>(&self, expected: &'static str) -> Result<T, Malformed> {
        Err(Malformed::Syntax { offset: self.at, expected })
    }

    fn is_outside(&self) -> bool {
        self.is_document && self.open.is_empty()
    }

    /// Takes the text between `before`, at which the reader is, and the next `after`.
    fn between(&mut self, before: &str, after: &str) -> Result<&'a str, Malformed> {
        let rest = &self.raw[self.at + before.len()..];
        match memchr::memmem::find(rest.as_bytes(), after.as_bytes()) {
            Some(size) => {
                self.at += before.len() + size + after.len();
                Ok(&rest[..size])
            }
            None => self.malformed(NOT_WELL_FORMED),
        }
    }

    /// Takes a tag other than an end tag.
    fn tag(&mut self) -> Result<Piece<'a>, Malformed> {
        let start = self.at;
        let rest = &self.raw[start + 1..];
        let bytes = rest.as_bytes();
        // A quoted value may contain any of these.
        let (mut size, mut quote) = (0, 0);
        loop {
            match bytes.get(size) {
                None => return self.malformed(NOT_WELL_FORMED),
                Some(b'>') if quote == 0 => break,
                Some(byte @ (b'"' | b'\'')) if quote == 0 => quote = *byte,
                Some(byte) if *byte == quote => quote = 0,
                Some(_) => {}
            }
            size += 1;
        }
        let is_empty = rest[..size].ends_with('/');
        let content = &rest[..size - usize::from(is_empty)];
        let name_size = content.bytes().position(is_blank).unwrap_or(content.len());
        let tag = Tag { content, name_size, start };
        if !is_empty && self.open.len() + usize::from(self.is_document) == DOCUMENT_DEPTH_MAX {
            return Err(Malformed::TooDeep);
        }
        if !is_name(tag.name()) {
            return self.malformed("the name of an element");
        }
        if self.is_outside() && std::mem::replace(&mut self.has_root, true) {
            return self.malformed("one root element");
        }
        self.at = start + 1 + size + 1;
        if is_empty {
            return Ok(Piece::Empty(tag));
        }
        self.open.push(tag.name());
        Ok(Piece::Start(tag))
    }

    fn end_tag(&mut self) -> Result<Piece<'a>, Malformed> {
        let name = self.open.pop().unwrap_or_default();
        let rest = &self.raw.as_bytes()[self.at + "</".len()..];
        // Without an open element the name is empty, and so no end tag is right.
        match rest.strip_prefix(name.as_bytes()).filter(|_| !name.is_empty()) {
            Some([b'>', ..]) => {
                self.at += "</".len() + name.len() + 1;
                Ok(Piece::End)
            }
            Some(after) => match after.iter().position(|byte| !is_blank(*byte)) {
                Some(blanks) if after[blanks] == b'>' => {
                    self.at += "</".len() + name.len() + blanks + 1;
                    Ok(Piece::End)
                }
                _ => self.malformed(NOT_WELL_FORMED),
            },
            None => self.malformed(NOT_WELL_FORMED),
        }
    }

    /// Takes what begins with `<!`. Returns the text of a CDATA section, and nothing for a comment.
    fn declaration(&mut self) -> Result<Option<&'a str>, Malformed> {
        let start = self.at;
        let rest = &self.raw.as_bytes()[start..];
        if rest.starts_with(b"<!--") {
            self.between("<!--", "--")?;
            // Two hyphens are the end of a comment.
            if self.raw.as_bytes().get(self.at) != Some(&b'>') {
                self.at = start;
                return self.malformed(NOT_WELL_FORMED);
            }
            self.at += 1;
            return Ok(None);
        }
        if rest.starts_with(b"<![CDATA[") {
            if self.is_outside() {
                return self.malformed("no text outside of the root element");
            }
            return self.between("<![CDATA[", "]]>").map(Some);
        }
        let is_document_type = rest.get(2..9).is_some_and(|keyword| keyword.eq_ignore_ascii_case(b"doctype"));
        self.malformed(if is_document_type { "no document type" } else { NOT_WELL_FORMED })
    }

    /// Takes a processing instruction, or the declaration of XML.
    fn instruction(&mut self) -> Result<(), Malformed> {
        let start = self.at;
        let is_first = self.is_document && self.raw[..start].chars().all(|before| before == BYTE_ORDER_MARK);
        let content = self.between("<?", "?>")?;
        let target = content.split([' ', '\t', '\n', '\r']).next().unwrap_or_default();
        let expected = match target {
            "xml" if is_first && is_declaration(content) => return Ok(()),
            "xml" => "an XML declaration, at the beginning only",
            target if is_name(target) && !target.eq_ignore_ascii_case("xml") => return Ok(()),
            _ => "the name of a processing instruction",
        };
        self.at = start;
        self.malformed(expected)
    }

    /// Takes a reference in text.
    fn reference(&mut self) -> Result<Piece<'a>, Malformed> {
        let rest = &self.raw[self.at + 1..];
        let size = rest.bytes().position(|byte| matches!(byte, b';' | b'&' | b'<'));
        let Some(size) = size.filter(|size| rest.as_bytes()[*size] == b';') else {
            return self.malformed(NOT_WELL_FORMED);
        };
        match character_of(&rest[..size]) {
            Some(character) => {
                self.at += 1 + size + 1;
                Ok(Piece::Character(character))
            }
            None => self.malformed("a known entity or a character"),
        }
    }
}

const NOT_WELL_FORMED: &str = "well-formed XML";

/// The size of the text before the next tag or reference.
fn size_of_text(rest: &[u8]) -> usize {
    /// A call takes longer than a loop over this number of bytes.
    const SHORT_SIZE: usize = 16;
    let short = &rest[..rest.len().min(SHORT_SIZE)];
    match short.iter().position(|byte| matches!(byte, b'<' | b'&')) {
        Some(size) => size,
        None => {
            memchr::memchr2(b'<', b'&', &rest[short.len()..]).map_or(rest.len(), |size| short.len() + size)
        }
    }
}

impl<'a> Tag<'a> {
    /// The name of the element.
    pub(super) fn name(&self) -> &'a str {
        self.content.get(..self.name_size).unwrap_or_default()
    }

    /// Calls `each` with the name and the value of each attribute. The value has its escapes, which are checked.
    pub(super) fn for_each_attribute(
        &self,
        mut each: impl FnMut(&'a str, &'a str) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let malformed = |expected| Err(Malformed::Syntax { offset: self.start, expected });
        let (mut rest, mut names) = (self.content.get(self.name_size..).unwrap_or_default(), Vec::new());
        loop {
            let attribute = rest.trim_start_matches(is_blank_character);
            if attribute.is_empty() {
                break;
            }
            if names.len() == ATTRIBUTE_COUNT_MAX {
                return malformed("at most 256 attributes");
            }
            if attribute.len() == rest.len() {
                return malformed("a blank before an attribute");
            }
            let Some((name, value)) = attribute.split_once('=') else {
                return malformed("name=\"value\"");
            };
            let name = name.trim_end_matches(is_blank_character);
            if !is_name(name) {
                return malformed("the name of an attribute");
            }
            let value = value.trim_start_matches(is_blank_character);
            let quote = value.chars().next().filter(|first| matches!(first, '"' | '\''));
            let Some((value, after)) = quote.and_then(|quote| value[1..].split_once(quote)) else {
                return malformed("name=\"value\"");
            };
            if value.contains('<') {
                return malformed("no < in an attribute");
            }
            if !has_known_references(value) {
                return malformed("a known entity or a character");
            }
            each(name, value)?;
            names.push(name);
            rest = after;
        }
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return malformed("each attribute once");
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

fn is_blank_character(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
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

/// Whether this is what a declaration has between `<?` and `?>`.
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
