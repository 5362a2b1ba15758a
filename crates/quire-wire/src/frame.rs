//! Divides a byte stream into frames. Has the two small readers and writers under the codec.
//!
//! The length of a frame is checked first: [`Inbox`] refuses a frame above its limit after the
//! first four bytes, before it buffers any of it. It never copies a frame that arrived whole.

use quire_command::{Code, KEY_SIZE_MAX};
use quire_types::Headers;

/// Bytes of a frame's `length` field.
pub const LENGTH_SIZE: usize = 4;

/// The largest frame before logon: room for every field of a logon. An unknown peer gets no more
/// memory.
pub const LOGON_FRAME_SIZE_MAX: usize = 64 * 1024;

/// The most bytes of a frame other than the data of a message: topic, correlation id, headers,
/// fixed fields, and the fields of a command except its filter.
pub const FRAME_OVERHEAD_MAX: usize = 128 * 1024;

/// The largest frame that a server sends after logon. `max_message_size` limits what a connection
/// publishes, and not what it receives: a server delivers every message that it has. A record of
/// its log has at most 1 GiB.
pub const SERVER_FRAME_SIZE_MAX: usize = (1 << 30) + FRAME_OVERHEAD_MAX;

/// Why bytes are not a frame of this protocol. The peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The length field is above the limit in force.
    #[error("frame of {size} bytes, the limit is {limit} bytes")]
    TooLarge {
        /// The value of the length field, in bytes.
        size: usize,
        /// The limit in force, in bytes.
        limit: usize,
    },
    /// The length field is zero: a frame has at least its kind.
    #[error("frame without a kind")]
    Empty,
    /// No frame of this kind is sent in this direction.
    #[error("unknown frame kind {kind}")]
    UnknownKind {
        /// The kind byte.
        kind: u8,
    },
    /// The body does not match its kind.
    #[error("{frame}: bad {field}")]
    Malformed {
        /// The name of the frame kind.
        frame: &'static str,
        /// The field that is missing, doubled, unknown or out of range.
        field: &'static str,
    },
}

impl WireError {
    /// The code that the peer receives.
    pub fn code(self) -> Code {
        match self {
            WireError::TooLarge { .. } => Code::MessageTooLarge,
            _ => Code::InvalidFrame,
        }
    }
}

/// One whole frame: its kind and its body, borrowed from the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame<'a> {
    /// The kind byte.
    pub kind: u8,
    /// Everything after it.
    pub body: &'a [u8],
}

/// A value that is sent as a frame.
pub trait Encode {
    /// Appends the frame to `out`.
    fn encode(&self, out: &mut Vec<u8>);
}

/// All frames of one direction. The kind of a frame selects the variant.
pub trait Decode<'a>: Sized {
    /// Decodes the frame.
    ///
    /// # Errors
    /// [`WireError::UnknownKind`] and [`WireError::Malformed`].
    fn decode(frame: RawFrame<'a>) -> Result<Self, WireError>;
}

/// The content of one kind of frame.
pub(super) trait FromBody<'a>: Sized {
    fn from_body(body: &'a [u8]) -> Result<Self, WireError>;
}

/// The input of one direction of one connection.
///
/// Call [`Inbox::next`] with the received bytes until it returns `None`. The bytes of an unfinished
/// frame are then kept for the next call. A frame that is whole in the received bytes is not
/// copied.
#[derive(Debug)]
pub struct Inbox {
    /// The beginning of a frame whose rest has not arrived, or (until the next call) a frame that
    /// was completed here.
    partial: Vec<u8>,
    partial_is_done: bool,
    frame_size_max: usize,
}

/// The spare capacity that an idle connection keeps for unfinished frames.
const PARTIAL_CAPACITY_KEPT: usize = 4 * 1024;

impl Inbox {
    /// An inbox that refuses frames whose `length` field is above `frame_size_max` bytes.
    pub fn new(frame_size_max: usize) -> Self {
        Inbox { partial: Vec::new(), partial_is_done: false, frame_size_max }
    }

    /// From the next frame on, the limit is `frame_size_max` bytes.
    pub fn set_frame_size_max(&mut self, frame_size_max: usize) {
        self.frame_size_max = frame_size_max;
    }

    /// The kept bytes of an unfinished frame.
    pub fn partial_size(&self) -> usize {
        if self.partial_is_done { 0 } else { self.partial.len() }
    }

    /// Returns the next whole frame, and removes its bytes from the front of `bytes`. `None` when
    /// more bytes must arrive first.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] and [`WireError::Empty`]. The stream cannot be read after either.
    pub fn next<'a, 'b: 'a>(&'a mut self, bytes: &mut &'b [u8]) -> Result<Option<RawFrame<'a>>, WireError> {
        if self.partial_is_done {
            self.partial.clear();
            self.partial.shrink_to(PARTIAL_CAPACITY_KEPT);
            self.partial_is_done = false;
        }
        if self.partial.is_empty() {
            if let Some(size) = self.frame_size(bytes)?
                && bytes.len() >= LENGTH_SIZE + size
            {
                let (frame, rest) = bytes.split_at(LENGTH_SIZE + size);
                *bytes = rest;
                return Ok(Some(whole(frame)));
            }
            self.keep(bytes, bytes.len());
            return Ok(None);
        }
        if self.partial.len() < LENGTH_SIZE {
            self.keep(bytes, LENGTH_SIZE - self.partial.len());
        }
        let Some(size) = self.frame_size(&self.partial)? else { return Ok(None) };
        self.keep(bytes, LENGTH_SIZE + size - self.partial.len());
        if self.partial.len() < LENGTH_SIZE + size {
            return Ok(None);
        }
        self.partial_is_done = true;
        Ok(Some(whole(&self.partial)))
    }

    /// The checked length at the front of `bytes`, or `None` when not all of its four bytes have
    /// arrived.
    fn frame_size(&self, bytes: &[u8]) -> Result<Option<usize>, WireError> {
        let Some(length) = bytes.first_chunk::<LENGTH_SIZE>() else { return Ok(None) };
        let size = u32::from_le_bytes(*length) as usize;
        if size == 0 {
            return Err(WireError::Empty);
        }
        if size > self.frame_size_max {
            return Err(WireError::TooLarge { size, limit: self.frame_size_max });
        }
        Ok(Some(size))
    }

    /// Moves up to `count` bytes from the front of `bytes` into `partial`.
    fn keep(&mut self, bytes: &mut &[u8], count: usize) {
        let (taken, rest) = bytes.split_at(count.min(bytes.len()));
        self.partial.extend_from_slice(taken);
        *bytes = rest;
    }
}

/// The frame at the front of `bytes`, and the bytes after it; `None` when it is empty or not
/// complete.
pub(super) fn split_frame(bytes: &[u8]) -> Option<(RawFrame<'_>, &[u8])> {
    let size = u32::from_le_bytes(*bytes.first_chunk::<LENGTH_SIZE>()?) as usize;
    let (frame, rest) = bytes.split_at_checked(LENGTH_SIZE + size)?;
    (size > 0).then(|| (whole(frame), rest))
}

fn whole(frame: &[u8]) -> RawFrame<'_> {
    RawFrame { kind: frame[LENGTH_SIZE], body: &frame[LENGTH_SIZE + 1..] }
}

/// Appends one frame to `out`. `body` writes the bytes after the kind; then the length is filled
/// in.
pub(super) fn put_frame(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH_SIZE]);
    out.push(kind);
    body(out);
    let size = (out.len() - start - LENGTH_SIZE) as u32;
    out[start..start + LENGTH_SIZE].copy_from_slice(&size.to_le_bytes());
}

/// Appends one field of a control frame.
pub(super) fn put_field(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
}

/// The fields of a control frame, in their order.
pub(super) struct Fields<'a> {
    frame: &'static str,
    rest: &'a [u8],
    /// Bit per tag below 128 that was seen: each tag may occur once.
    seen: u128,
}

/// The first tag that a receiver may skip if it is unknown.
pub(super) const FIRST_OPTIONAL_TAG: u8 = 128;

impl<'a> Fields<'a> {
    pub(super) fn new(frame: &'static str, body: &'a [u8]) -> Self {
        Fields { frame, rest: body, seen: 0 }
    }

    /// The next field, or `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u8, &'a [u8])>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (tag, size, rest) = match self.rest {
            [tag, a, b, c, d, rest @ ..] => (*tag, u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
            _ => return Err(self.bad("field")),
        };
        if size > rest.len() {
            return Err(self.bad("field size"));
        }
        if tag < FIRST_OPTIONAL_TAG {
            if self.seen & (1 << tag) != 0 {
                return Err(self.bad("field, it stands twice"));
            }
            self.seen |= 1 << tag;
        }
        let (value, rest) = rest.split_at(size);
        self.rest = rest;
        Ok(Some((tag, value)))
    }

    /// What to do with a tag that the frame does not define: skip it, or fail.
    pub(super) fn unknown(&self, tag: u8) -> Result<(), WireError> {
        if tag < FIRST_OPTIONAL_TAG { Err(self.bad("field, its tag is unknown")) } else { Ok(()) }
    }

    pub(super) fn text(&self, value: &'a [u8], field: &'static str) -> Result<&'a str, WireError> {
        std::str::from_utf8(value).map_err(|_| self.bad(field))
    }

    pub(super) fn array<const N: usize>(
        &self,
        value: &[u8],
        field: &'static str,
    ) -> Result<[u8; N], WireError> {
        value.try_into().map_err(|_| self.bad(field))
    }

    pub(super) fn u32(&self, value: &[u8], field: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array(value, field)?))
    }

    pub(super) fn u64(&self, value: &[u8], field: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array(value, field)?))
    }

    pub(super) fn bad(&self, field: &'static str) -> WireError {
        WireError::Malformed { frame: self.frame, field }
    }
}

/// Reads the fixed layout of a hot frame from its front.
pub(super) struct Body<'a> {
    frame: &'static str,
    rest: &'a [u8],
}

impl<'a> Body<'a> {
    #[inline]
    pub(super) fn new(frame: &'static str, body: &'a [u8]) -> Self {
        Body { frame, rest: body }
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        let (value, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.bad(field))?;
        self.rest = rest;
        Ok(*value)
    }

    #[inline]
    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    #[inline]
    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    #[inline]
    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    #[inline]
    pub(super) fn bytes(&mut self, size: usize, field: &'static str) -> Result<&'a [u8], WireError> {
        if size > self.rest.len() {
            return Err(self.bad(field));
        }
        let (value, rest) = self.rest.split_at(size);
        self.rest = rest;
        Ok(value)
    }

    #[inline]
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.bad("end, bytes are left over")) }
    }

    pub(super) fn bad(&self, field: &'static str) -> WireError {
        WireError::Malformed { frame: self.frame, field }
    }
}

/// Appends headers with their size before them.
pub(super) fn put_headers(out: &mut Vec<u8>, headers: Headers<'_>) {
    // The limits of headers keep the size far below its 16 bits.
    out.extend_from_slice(&(headers.as_bytes().len() as u16).to_le_bytes());
    out.extend_from_slice(headers.as_bytes());
}

/// Reads headers that a flag announced: at least one.
pub(super) fn take_headers<'a>(body: &mut Body<'a>) -> Result<Headers<'a>, WireError> {
    let size = body.u16("headers size")?;
    let headers = Headers::from_bytes(body.bytes(size.into(), "headers size")?);
    headers.filter(|headers| !headers.is_empty()).ok_or_else(|| body.bad("headers"))
}

/// Appends the key of a message with its size before it. It is not empty.
pub(super) fn put_message_key(out: &mut Vec<u8>, key: &[u8]) {
    debug_assert!((1..=KEY_SIZE_MAX).contains(&key.len()));
    out.push(key.len() as u8);
    out.extend_from_slice(key);
}

/// Reads a key that a flag announced: at least one byte.
pub(super) fn take_message_key<'a>(body: &mut Body<'a>) -> Result<&'a [u8], WireError> {
    let [size] = body.array("key size")?;
    if size == 0 { Err(body.bad("key size")) } else { body.bytes(size.into(), "key size") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(bodies: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for body in bodies {
            put_frame(&mut out, 7, |out| out.extend_from_slice(body));
        }
        out
    }

    fn cut(pieces: &[&[u8]], frame_size_max: usize) -> Result<Vec<Vec<u8>>, WireError> {
        let mut inbox = Inbox::new(frame_size_max);
        let mut bodies = Vec::new();
        for piece in pieces {
            let mut bytes = *piece;
            while let Some(frame) = inbox.next(&mut bytes)? {
                bodies.push(frame.body.to_vec());
            }
        }
        Ok(bodies)
    }

    #[test]
    fn any_split_of_a_stream_gives_the_same_frames() {
        let bytes = stream(&[b"", b"one", &[9; 300], b"two"]);
        let whole = cut(&[&bytes], 1024).unwrap();
        assert_eq!(whole.len(), 4);
        for piece_size in 1..bytes.len() {
            let pieces: Vec<&[u8]> = bytes.chunks(piece_size).collect();
            assert_eq!(cut(&pieces, 1024).unwrap(), whole, "pieces of {piece_size}");
        }
    }

    #[test]
    fn a_frame_above_the_limit_is_refused_from_its_length_alone() {
        assert_eq!(
            cut(&[&1025u32.to_le_bytes()], 1024),
            Err(WireError::TooLarge { size: 1025, limit: 1024 })
        );
        let bytes = 1025u32.to_le_bytes();
        assert!(cut(&[&bytes[..2], &bytes[2..]], 1024).is_err());
        assert_eq!(cut(&[&1024u32.to_le_bytes()], 1024), Ok(vec![]));
    }

    #[test]
    fn a_frame_without_a_kind_is_refused() {
        assert_eq!(cut(&[&[0; 4]], 1024), Err(WireError::Empty));
    }

    #[test]
    fn an_unfinished_frame_keeps_only_what_arrived() {
        let mut inbox = Inbox::new(1 << 30);
        let mut bytes: &[u8] = &(1u32 << 29).to_le_bytes();
        assert_eq!(inbox.next(&mut bytes), Ok(None));
        assert_eq!(inbox.partial_size(), 4);
        assert!(inbox.partial.capacity() < 1024);
    }
}
