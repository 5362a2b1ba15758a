//! Names that an object has twice. Readers of such an object do not agree about the value: some
//! take the first one, others the last one.

use bumpalo::collections::Vec as BumpVec;

use super::{Arena, Malformed, push};

/// Up to this number of names, a new name is compared with each of them. The names of a larger
/// object are sorted at its end.
const COMPARED_MAX: usize = 32;

/// The names of the objects around a place in a message, the outermost object first.
pub(super) struct Names<'a> {
    pub arena: &'a Arena,
    names: BumpVec<'a, Name<'a>>,
    is_any_repeated: bool,
}

/// A name, and a number that equal names have in common: comparing numbers decides most pairs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Name<'a> {
    key: u64,
    text: &'a [u8],
}

impl<'a> Names<'a> {
    pub fn new(arena: &'a Arena) -> Self {
        Names { arena, names: arena.list(), is_any_repeated: false }
    }

    /// Whether an object had a name twice.
    pub fn is_any_repeated(&self) -> bool {
        self.is_any_repeated
    }

    /// An object begins. Its end needs the result.
    pub fn begin(&self) -> usize {
        self.names.len()
    }

    /// The object that began at `begin` has another name.
    #[inline]
    pub fn add(&mut self, begin: usize, text: &'a [u8]) -> Result<(), Malformed> {
        let name = Name { key: key_of(text), text };
        let known = &self.names[begin..];
        if known.len() < COMPARED_MAX {
            self.is_any_repeated |= known.iter().any(|known| known.key == name.key && known.text == text);
        }
        push(&mut self.names, name)
    }

    /// The object that began at `begin` ends.
    #[inline]
    pub fn end(&mut self, begin: usize) {
        if self.names.len() - begin > COMPARED_MAX {
            let names = &mut self.names[begin..];
            names.sort_unstable();
            self.is_any_repeated |= names.windows(2).any(|pair| pair[0] == pair[1]);
        }
        self.names.truncate(begin);
    }
}

/// The size of a name, and its first and last bytes.
#[inline]
fn key_of(text: &[u8]) -> u64 {
    let last = text.last_chunk::<4>().map_or(0, |last| u32::from_le_bytes(*last));
    let [first, ..] = text else { return 0 };
    u64::from(last) << 32 | u64::from(*first) << 24 | (text.len() as u64 & 0xFF_FFFF)
}

#[cfg(test)]
mod tests {
    use super::super::MessageType;
    use super::*;

    fn check(message_type: MessageType, data: &[u8]) -> Result<bool, Malformed> {
        message_type.is_unambiguous(data, &Arena::default())
    }

    #[test]
    fn a_key_twice_in_any_object_is_found() {
        for (text, expected) in [
            (r#"{"a":1,"b":2}"#, true),
            (r#"{"a":1,"b":2,"a":1}"#, false),
            (r#"{"a":1,"\u0061":2}"#, false),
            (r#"{"a":{"b":1},"c":{"b":2},"b":3}"#, true),
            (r#"{"a":{"b":1,"c":{},"b":2}}"#, false),
            (r#"{"a":[1,{"b":1},[{"b":1},{"b":1,"b":2}]]}"#, false),
            (r#"{"a":[{"b":1},{"b":1}]}"#, true),
            (r#"[{"b":1,"b":2}]"#, false),
            (r#"{"":1,"":2}"#, false),
            (r#"{"abcde":1,"aXcde":2}"#, true),
            ("17", true),
            ("{}", true),
        ] {
            assert_eq!(check(MessageType::Json, text.as_bytes()), Ok(expected), "{text}");
        }
        for text in [r#"{"a":1} x"#, r#"{"a":1"#, r#"{"a":1,}"#, r#"{"a" 1}"#, ""] {
            assert!(check(MessageType::Json, text.as_bytes()).is_err(), "{text}");
        }
        let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
        assert_eq!(check(MessageType::Json, deep.as_bytes()), Err(Malformed::TooDeep));
    }

    #[test]
    fn a_key_twice_is_found_among_many() {
        for count in [2, COMPARED_MAX, COMPARED_MAX + 1, 1_000] {
            for repeated in [None, Some(0), Some(count / 2), Some(count - 1)] {
                let names =
                    (0..count).chain(repeated).map(|number| format!("\"field {number}\":{{\"a\":1}}"));
                let text = format!("{{{}}}", names.collect::<Vec<_>>().join(","));
                let expected = Ok(repeated.is_none());
                assert_eq!(check(MessageType::Json, text.as_bytes()), expected, "{count}, {repeated:?}");
            }
        }
    }

    #[test]
    fn the_binary_formats_have_keys_too() {
        // {"a": 1, "b": {"c": 1}} and others.
        for (data, expected) in [
            (&b"\x82\xa1a\x01\xa1b\x81\xa1c\x01"[..], true),
            (b"\x82\xa1a\x01\xa1a\x01", false),
            (b"\x81\xa1a\x92\x01\x82\xa1a\x01\xa1a\x02", false),
            // A name is compared as a filter names it: 7 and "7".
            (b"\x82\x07\x01\xa17\x02", false),
            (b"\x92\x01\x02", true),
        ] {
            assert_eq!(check(MessageType::Msgpack, data), Ok(expected), "{data:?}");
        }
        assert!(check(MessageType::Msgpack, b"\x81\xa1a\x01\x00").is_err());
        let document = |elements: &[u8]| {
            let size = 4 + elements.len() as u32 + 1;
            [&size.to_le_bytes()[..], elements, b"\0"].concat()
        };
        let inner = |elements: &[u8]| document(&[b"\x03d\0", &*document(elements)].concat());
        let (once, twice) = (&b"\x08b\0\x01\x08c\0\x01"[..], &b"\x08b\0\x01\x08b\0\x00"[..]);
        for (data, expected) in
            [(document(once), true), (document(twice), false), (inner(once), true), (inner(twice), false)]
        {
            assert_eq!(check(MessageType::Bson, &data), Ok(expected), "{data:?}");
        }
        assert!(check(MessageType::Bson, &[&document(once)[..], b"x"].concat()).is_err());
    }

    #[test]
    fn several_values_of_one_name_are_an_array_where_the_format_has_no_other() {
        assert_eq!(check(MessageType::Fix, b"55=A\x0155=B\x01"), Ok(true));
        assert_eq!(check(MessageType::Nvfix, b"a=A\x01a=B\x01"), Ok(true));
        assert_eq!(check(MessageType::Xml, b"<m><a>1</a><a>2</a></m>"), Ok(true));
        assert_eq!(check(MessageType::Binary, b"anything"), Ok(true));
        assert!(check(MessageType::Xml, b"<m>").is_err());
    }
}
