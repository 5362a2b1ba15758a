//! The headers of a message: names with text or bytes.
//!
//! Frames of the protocol, records of the log, client and server all use the same list of bytes. It
//! has the headers in the order of their names, each name once. So two messages have the same
//! headers exactly when their lists are equal.
//!
//! `docs/protocol.md` has the layout of a list (section 3, `publish`).

/// The most headers of a message: enough for tracing, routing and a schema, and few enough for a
/// linear search.
pub const HEADERS_MAX: usize = 64;

/// The longest name of a header, in bytes: a list has one byte for its size.
pub const HEADER_NAME_SIZE_MAX: usize = u8::MAX as usize;

/// The most bytes of all names and values of a message together: half of the size of the attributes
/// of a record.
pub const HEADERS_SIZE_MAX: usize = 32 * 1024;

/// Bytes of a header in a list in addition to its name and its value.
const OVERHEAD: usize = 4;

/// The most bytes of a list.
const LIST_SIZE_MAX: usize = HEADERS_SIZE_MAX + HEADERS_MAX * OVERHEAD;

const TEXT: u8 = 0;
const BYTES: u8 = 1;

/// The value of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderValue<'a> {
    /// Published as text.
    Text(&'a str),
    /// Published as bytes.
    Bytes(&'a [u8]),
}

impl<'a> HeaderValue<'a> {
    /// The value as bytes; those of a text are UTF-8.
    pub const fn as_bytes(self) -> &'a [u8] {
        match self {
            HeaderValue::Text(text) => text.as_bytes(),
            HeaderValue::Bytes(bytes) => bytes,
        }
    }
}

/// The headers of a message, as a checked list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers<'a>(&'a [u8]);

impl<'a> Headers<'a> {
    /// No headers.
    pub const NONE: Headers<'static> = Headers(&[]);

    /// The headers in these bytes; `None` when they are not a list of headers within the limits.
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Headers::NONE);
        }
        let (mut rest, mut count, mut last) = (bytes, 0, "");
        while !rest.is_empty() {
            let (name, _, after) = split_header(rest)?;
            if name <= last || name.chars().any(char::is_control) {
                return None;
            }
            (rest, count, last) = (after, count + 1, name);
        }
        let size = bytes.len() - count * OVERHEAD;
        (count <= HEADERS_MAX && size <= HEADERS_SIZE_MAX).then_some(Headers(bytes))
    }

    /// The list, as [`Headers::from_bytes`] takes it.
    #[inline]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether it has no headers.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The headers, in the order of their names.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, HeaderValue<'a>)> {
        let mut rest = self.0;
        // The bytes were checked when the list was made.
        std::iter::from_fn(move || {
            let (name, value, after) = split_header(rest)?;
            rest = after;
            Some((name, value))
        })
    }

    /// The value of the header with this name.
    pub fn get(self, name: &[u8]) -> Option<HeaderValue<'a>> {
        self.iter().find(|(found, _)| found.as_bytes() == name).map(|(_, value)| value)
    }
}

/// The header at the front of a list, and the bytes after it.
fn split_header(bytes: &[u8]) -> Option<(&str, HeaderValue<'_>, &[u8])> {
    let (size, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*size))?;
    let ([kind, low, high], rest) = rest.split_first_chunk()?;
    let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
    let value = match *kind {
        TEXT => HeaderValue::Text(std::str::from_utf8(value).ok()?),
        BYTES => HeaderValue::Bytes(value),
        _ => return None,
    };
    Some((std::str::from_utf8(name).ok()?, value, rest))
}

/// Headers with an owned list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadersBuffer(Box<[u8]>);

impl HeadersBuffer {
    /// The list of these headers, which may be in any order.
    ///
    /// # Errors
    /// [`HeadersError`] for a name that a header cannot have, a name that occurs twice, and more
    /// than the limits allow.
    pub fn new<'a>(
        headers: impl IntoIterator<Item = (&'a str, HeaderValue<'a>)>,
    ) -> Result<Self, HeadersError> {
        let mut headers: Vec<_> = headers.into_iter().collect();
        headers.sort_unstable_by_key(|(name, _)| *name);
        if headers.len() > HEADERS_MAX {
            return Err(HeadersError::TooMany { count: headers.len() });
        }
        let size: usize = headers.iter().map(|(name, value)| name.len() + value.as_bytes().len()).sum();
        let mut list = Vec::with_capacity(size.min(HEADERS_SIZE_MAX) + headers.len() * OVERHEAD);
        let mut last = None;
        for (name, value) in headers {
            if !(1..=HEADER_NAME_SIZE_MAX).contains(&name.len()) {
                let shown = name.chars().take(NAME_SHOWN_MAX).collect();
                return Err(HeadersError::NameSize { name: shown, size: name.len() });
            }
            if name.chars().any(char::is_control) {
                return Err(HeadersError::ControlCharacter { name: name.to_owned() });
            }
            if last.replace(name) == Some(name) {
                return Err(HeadersError::Twice { name: name.to_owned() });
            }
            if size > HEADERS_SIZE_MAX {
                continue;
            }
            let (kind, value) = match value {
                HeaderValue::Text(text) => (TEXT, text.as_bytes()),
                HeaderValue::Bytes(bytes) => (BYTES, bytes),
            };
            list.push(name.len() as u8);
            list.extend_from_slice(name.as_bytes());
            list.push(kind);
            list.extend_from_slice(&(value.len() as u16).to_le_bytes());
            list.extend_from_slice(value);
        }
        if size > HEADERS_SIZE_MAX {
            Err(HeadersError::Size { size })
        } else {
            Ok(HeadersBuffer(list.into()))
        }
    }

    /// The headers.
    pub fn as_headers(&self) -> Headers<'_> {
        Headers(&self.0)
    }
}

impl From<Headers<'_>> for HeadersBuffer {
    fn from(headers: Headers<'_>) -> Self {
        HeadersBuffer(headers.0.into())
    }
}

/// Why a message cannot have these headers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadersError {
    /// There are more than [`HEADERS_MAX`].
    #[error("{count} headers, the limit is {HEADERS_MAX}")]
    TooMany {
        /// Their number.
        count: usize,
    },
    /// A name is empty, or longer than [`HEADER_NAME_SIZE_MAX`].
    #[error("the name {name:?} has {size} bytes, a name has 1 to {HEADER_NAME_SIZE_MAX}")]
    NameSize {
        /// The beginning of the name.
        name: String,
        /// Bytes of the whole name.
        size: usize,
    },
    /// A name contains a control character, which would break lines of logs and of the command
    /// line.
    #[error("the name {name:?} contains a control character")]
    ControlCharacter {
        /// The name.
        name: String,
    },
    /// Two headers have one name.
    #[error("the name {name:?} occurs twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// Names and values together are larger than [`HEADERS_SIZE_MAX`].
    #[error("names and values have {size} bytes together, the limit is {HEADERS_SIZE_MAX}")]
    Size {
        /// Bytes of all names and values.
        size: usize,
    },
}

/// The characters of a too long name in its error.
const NAME_SHOWN_MAX: usize = 40;

const _: () = assert!(LIST_SIZE_MAX <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;

    fn text(value: &str) -> HeaderValue<'_> {
        HeaderValue::Text(value)
    }

    #[test]
    fn a_list_has_the_bytes_of_its_page_in_the_order_of_the_names() {
        let headers =
            HeadersBuffer::new([("trace", text("abc")), ("b", HeaderValue::Bytes(&[0, 255]))]).unwrap();
        let expected = [&[1][..], b"b", &[1, 2, 0, 0, 255], &[5], b"trace", &[0, 3, 0], b"abc"].concat();
        assert_eq!(headers.as_headers().as_bytes(), expected);
        assert_eq!(headers.as_headers().get(b"trace"), Some(text("abc")));
        assert_eq!(headers.as_headers().get(b"b"), Some(HeaderValue::Bytes(&[0, 255])));
        assert_eq!(headers.as_headers().get(b"trac"), None);
        assert_eq!(HeadersBuffer::new([]).unwrap().as_headers(), Headers::NONE);
    }

    #[test]
    fn headers_beyond_the_limits_are_refused() {
        let reason = |headers: &[(&str, HeaderValue<'_>)]| {
            HeadersBuffer::new(headers.iter().copied()).unwrap_err().to_string()
        };
        assert_eq!(reason(&[("", text("a"))]), "the name \"\" has 0 bytes, a name has 1 to 255");
        let long = "n".repeat(256);
        let shown = "n".repeat(40);
        assert_eq!(
            reason(&[(&long, text("a"))]),
            format!("the name {shown:?} has 256 bytes, a name has 1 to 255")
        );
        assert_eq!(reason(&[("a\nb", text("a"))]), "the name \"a\\nb\" contains a control character");
        assert_eq!(reason(&[("a", text("1")), ("a", text("2"))]), "the name \"a\" occurs twice");
        let names: Vec<String> = (0..=HEADERS_MAX).map(|number| number.to_string()).collect();
        let headers: Vec<_> = names.iter().map(|name| (&name[..], text(""))).collect();
        assert_eq!(reason(&headers), "65 headers, the limit is 64");
        assert!(HeadersBuffer::new(headers[..HEADERS_MAX].iter().copied()).is_ok());
        let value = "v".repeat(HEADERS_SIZE_MAX);
        assert_eq!(
            reason(&[("a", text(&value))]),
            "names and values have 32769 bytes together, the limit is 32768"
        );
        assert!(HeadersBuffer::new([("a", text(&value[1..]))]).is_ok());
    }

    #[test]
    fn bytes_beyond_the_limits_are_no_list() {
        let header = |name: &str, value: &[u8]| {
            let mut list = vec![name.len() as u8];
            list.extend_from_slice(name.as_bytes());
            list.push(TEXT);
            list.extend_from_slice(&(value.len() as u16).to_le_bytes());
            list.extend_from_slice(value);
            list
        };
        let is_list = |bytes: &[u8]| Headers::from_bytes(bytes).is_some();
        let two = |first, second| [header(first, b"1"), header(second, b"2")].concat();
        assert!(is_list(&two("a", "b")));
        assert!(!is_list(&two("b", "a")), "out of order");
        assert!(!is_list(&two("a", "a")), "twice");
        assert!(!is_list(&header("", b"1")), "no name");
        assert!(!is_list(&header("a\tb", b"1")), "a control character");
        assert!(!is_list(&header("a", &[0xff])), "the value is no text");
        let value = vec![b'v'; HEADERS_SIZE_MAX];
        assert!(is_list(&header("a", &value[1..])));
        assert!(!is_list(&header("a", &value)), "too large");
        let many = |count: u8| (0..count).flat_map(|n| header(&format!("{n:03}"), b"")).collect::<Vec<u8>>();
        assert!(is_list(&many(64)));
        assert!(!is_list(&many(65)), "too many");
    }

    proptest! {
        #[test]
        fn headers_come_back_as_they_were_given(
            headers in btree_map("[a-zß😀.-]{1,20}", (any::<bool>(), ".{0,20}", vec(any::<u8>(), 0..20)), 0..10),
        ) {
            let values: Vec<_> = headers
                .iter()
                .map(|(name, (is_text, text, bytes))| {
                    let value = if *is_text { HeaderValue::Text(text) } else { HeaderValue::Bytes(bytes) };
                    (name.as_str(), value)
                })
                .collect();
            let buffer = HeadersBuffer::new(values.iter().rev().copied()).unwrap();
            let read = Headers::from_bytes(buffer.as_headers().as_bytes()).unwrap();
            prop_assert_eq!(read.iter().collect::<Vec<_>>(), values.clone());
            for (name, value) in values {
                prop_assert_eq!(read.get(name.as_bytes()), Some(value));
            }
        }

        #[test]
        fn any_bytes_are_a_list_that_encodes_to_the_same_bytes_or_no_list(
            bytes in vec(prop_oneof![0u8..4, b'a'..b'd', any::<u8>()], 0..40),
        ) {
            if let Some(headers) = Headers::from_bytes(&bytes) {
                let again = HeadersBuffer::new(headers.iter()).unwrap();
                prop_assert_eq!(again.as_headers().as_bytes(), &bytes[..]);
            }
        }
    }
}
