//! Divides the bytes of a connection among its two links.

use super::{BadFrame, HEAD_SIZE, Role, role_of};

/// Divides the bytes of a connection among its two links, without waiting for the end of a frame.
#[derive(Debug, Default)]
pub struct Splitter {
    /// The part of the head of a frame that has arrived.
    head: [u8; HEAD_SIZE],
    head_size: usize,
    /// Bytes of the body that have not arrived, and the link to which they belong.
    rest_size: usize,
    role: Role,
}

/// A part of a frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The part that this instance has in the link.
    pub role: Role,
    /// The head, when the frame begins here.
    pub head: Option<[u8; HEAD_SIZE]>,
    /// The bytes after the head.
    pub body: &'a [u8],
}

impl Splitter {
    /// Removes the next piece from the front of `bytes`. `None` when `bytes` is empty.
    ///
    /// # Errors
    /// The bytes are not a frame.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, BadFrame> {
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
