//! A connection between two instances. It carries a link in each direction, whichever of the two instances has made it
//! (docs/protocol.md, *Links between instances*).

use quire_types::time::Instant;

use super::frame::{BadFrame, FRAME_OVERHEAD_MAX, Frame, Role, next_frame, role_of};
use super::incoming::Incoming;
use crate::context::Context;
use crate::io::ConnectionId;

/// Size and kind: the part of a frame that says to which link it belongs.
const HEAD_SIZE: usize = 5;

pub(super) struct Connection {
    pub(super) id: ConnectionId,
    splitter: Splitter,
    /// The frames for the link to the other instance that are not taken yet.
    answers: Vec<u8>,
    /// The link from the other instance.
    pub(super) incoming: Incoming,
    /// Bytes that are counted among the unfinished frames of all connections.
    counted_size: usize,
}

impl Connection {
    pub(super) fn new(id: ConnectionId, incoming: Incoming) -> Self {
        Connection { id, splitter: Splitter::default(), answers: Vec::new(), incoming, counted_size: 0 }
    }

    /// Takes what came. The frames for the link from the other instance wait there for the run loop.
    ///
    /// # Errors
    /// The peer does not speak the protocol: nothing more can be taken.
    pub(super) fn receive(&mut self, now: Instant, mut bytes: &[u8]) -> Result<(), BadFrame> {
        self.incoming.heard(now);
        while let Some(Piece { role, head, body }) = self.splitter.next(&mut bytes)? {
            let head = head.as_ref().map_or(&[][..], |head| &head[..]);
            match role {
                Role::Source => {
                    [head, body].into_iter().for_each(|part| self.answers.extend_from_slice(part))
                }
                Role::Destination => [head, body].into_iter().for_each(|part| self.incoming.receive(part)),
                Role::Either => (),
            }
        }
        Ok(())
    }

    /// Counts the bytes that wait here among the unfinished frames of all connections.
    ///
    /// # Errors
    /// They lift the sum above its limit: the reason.
    pub(super) fn count(&mut self, cx: &mut Context) -> Result<(), String> {
        let size = self.answers.len() + self.incoming.waiting_size();
        let grows = size > self.counted_size;
        let all = &mut cx.sessions.unfinished_size;
        *all = *all - self.counted_size + size;
        self.counted_size = size;
        let limit = cx.config.limits.max_unfinished;
        match grows && *all as u64 > limit {
            true => Err(format!("max_unfinished: {limit} bytes of unfinished frames are kept already")),
            false => Ok(()),
        }
    }

    /// The connection is gone: its bytes count no longer.
    pub(super) fn forget(&mut self, cx: &mut Context) {
        cx.sessions.unfinished_size -= std::mem::take(&mut self.counted_size);
    }

    /// Takes the frames for the link to the other instance.
    ///
    /// # Errors
    /// As [`Connection::receive`].
    pub(super) fn take_answers(&mut self, mut take: impl FnMut(&Frame<'_>)) -> Result<(), BadFrame> {
        let mut taken_size = 0;
        while let Some((frame, size)) = next_frame(&self.answers[taken_size..], FRAME_OVERHEAD_MAX)? {
            taken_size += size;
            take(&frame);
        }
        self.answers.drain(..taken_size);
        Ok(())
    }
}

/// Divides the bytes of a connection among its two links, without waiting for the end of a frame.
#[derive(Debug, Default)]
struct Splitter {
    /// The head of a frame, as far as it came.
    head: [u8; HEAD_SIZE],
    head_size: usize,
    /// Bytes of the body that are still to come, and whose they are.
    rest_size: usize,
    role: Role,
}

/// A part of a frame.
#[derive(Debug, PartialEq, Eq)]
struct Piece<'a> {
    /// The part that this instance has in the link.
    role: Role,
    /// The head, when the frame begins here.
    head: Option<[u8; HEAD_SIZE]>,
    body: &'a [u8],
}

impl Splitter {
    /// The next piece; `None` when everything is taken.
    fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, BadFrame> {
        let mut head = None;
        if self.rest_size == 0 {
            let wanted = HEAD_SIZE - self.head_size;
            let came = take_most(bytes, wanted);
            self.head[self.head_size..self.head_size + came.len()].copy_from_slice(came);
            self.head_size += came.len();
            if self.head_size < HEAD_SIZE {
                return Ok(None);
            }
            let [size @ .., kind] = self.head;
            let size = u32::from_le_bytes(size) as usize;
            self.rest_size = size.checked_sub(1).ok_or(BadFrame("the size of the frame"))?;
            self.role = role_of(kind)?;
            self.head_size = 0;
            head = Some(self.head);
        } else if bytes.is_empty() {
            return Ok(None);
        }
        let body = take_most(bytes, self.rest_size);
        self.rest_size -= body.len();
        Ok(Some(Piece { role: self.role, head, body }))
    }
}

fn take_most<'a>(bytes: &mut &'a [u8], size: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(size.min(bytes.len()));
    *bytes = rest;
    taken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Frames of several kinds, each with a body of its number.
    fn stream(kinds: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, kind) in kinds.iter().enumerate() {
            bytes.extend_from_slice(&(1 + number as u32).to_le_bytes());
            bytes.push(*kind);
            bytes.extend(std::iter::repeat_n(number as u8, number));
        }
        bytes
    }

    proptest! {
        #[test]
        fn each_link_gets_its_own_frames_whatever_the_pieces(
            kinds in prop::collection::vec(1_u8..=9, 0..20),
            sizes in prop::collection::vec(1_usize..12, 1..40),
        ) {
            let bytes = stream(&kinds);
            let mut splitter = Splitter::default();
            let mut found = [Vec::new(), Vec::new(), Vec::new()];
            let (mut rest, mut sizes) = (&bytes[..], sizes.iter().cycle());
            while !rest.is_empty() {
                let mut part = take_most(&mut rest, *sizes.next().unwrap());
                while let Some(piece) = splitter.next(&mut part).unwrap() {
                    let found = &mut found[piece.role as usize];
                    found.extend(piece.head.into_iter().flatten());
                    found.extend_from_slice(piece.body);
                }
            }
            for role in [Role::Source, Role::Destination, Role::Either] {
                let mut expected = Vec::new();
                let mut begin = 0;
                for (number, kind) in kinds.iter().enumerate() {
                    let end = begin + HEAD_SIZE + number;
                    if role_of(*kind).unwrap() == role {
                        expected.extend_from_slice(&bytes[begin..end]);
                    }
                    begin = end;
                }
                prop_assert_eq!(&found[role as usize], &expected);
            }
        }
    }

    #[test]
    fn an_unknown_kind_and_an_empty_frame_are_refused() {
        for bytes in [&[1, 0, 0, 0, 200][..], &[0, 0, 0, 0, 1], &[1, 0, 0, 0, 0]] {
            assert!(Splitter::default().next(&mut &*bytes).is_err(), "{bytes:?}");
        }
    }
}
