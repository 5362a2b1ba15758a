//! Questions and answers as bytes. Numbers are LEB128, hashes and ids are 8 bytes, little endian.
//! Ascending numbers are differences. Any bytes are a value or `None`, and no memory is allocated
//! for more entries than there are bytes.

use quire_journal::{Bookmark, PublisherDigest, PublisherId, RangeSum};

use super::{Answer, PARTS_MAX, PUBLISHER_RANGES_MAX, Part, PartSums, Question};

const DIGESTS: u8 = 1;
const PUBLISHERS: u8 = 2;
const SUMS: u8 = 3;
const MESSAGES: u8 = 4;

impl Question {
    /// Appends the bytes of the question.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Question::Digests => out.push(DIGESTS),
            Question::Publishers(ranges) => {
                out.push(PUBLISHERS);
                out.extend_from_slice(ranges);
            }
            Question::Sums(parts) => {
                out.push(SUMS);
                for Part { publisher, level, number } in parts {
                    put_hash(out, publisher.get());
                    out.push(*level);
                    put_number(out, *number);
                }
            }
            Question::Messages(ranges) => {
                out.push(MESSAGES);
                for (publisher, number) in ranges {
                    put_hash(out, publisher.get());
                    put_number(out, *number);
                }
            }
        }
    }

    /// The question in these bytes; `None` when they are not one, or ask for more than a
    /// [`Comparison`](super::Comparison) does at a time.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let mut rest = Rest(rest);
        match *kind {
            DIGESTS if rest.0.is_empty() => Some(Question::Digests),
            PUBLISHERS if rest.0.len() <= PUBLISHER_RANGES_MAX => Some(Question::Publishers(rest.0.to_vec())),
            SUMS => {
                let mut parts = Vec::new();
                while !rest.0.is_empty() {
                    let publisher = PublisherId::new(rest.hash()?);
                    parts.push(Part { publisher, level: rest.byte()?, number: rest.number()? });
                }
                (parts.len() <= PARTS_MAX).then_some(Question::Sums(parts))
            }
            MESSAGES => {
                let mut ranges = Vec::new();
                while !rest.0.is_empty() {
                    ranges.push((PublisherId::new(rest.hash()?), rest.number()?));
                }
                (ranges.len() <= PARTS_MAX).then_some(Question::Messages(ranges))
            }
            _ => None,
        }
    }
}

impl Answer {
    /// Appends the bytes of the answer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Answer::Digests(digests) => {
                out.push(DIGESTS);
                digests.iter().for_each(|digest| put_hash(out, *digest));
            }
            Answer::Publishers(digests) => {
                out.push(PUBLISHERS);
                for PublisherDigest { publisher, highest, sum } in digests {
                    put_hash(out, publisher.get());
                    put_number(out, *highest);
                    put_hash(out, *sum);
                }
            }
            Answer::Sums(parts) => {
                out.push(SUMS);
                for PartSums { kept_from, sums } in parts {
                    put_number(out, *kept_from);
                    put_number(out, sums.len() as u64);
                    let mut before = 0;
                    for RangeSum { number, count, sum } in sums {
                        put_number(out, number.wrapping_sub(before));
                        put_number(out, u64::from(*count));
                        put_hash(out, *sum);
                        before = *number;
                    }
                }
            }
            Answer::Messages(messages) => {
                out.push(MESSAGES);
                let (mut publisher, mut sequence, mut run) = (None, 0, 0);
                for (bookmark, of) in messages {
                    let is_same = publisher == Some(bookmark.publisher) && run == *of;
                    out.push(u8::from(!is_same));
                    if !is_same {
                        put_hash(out, bookmark.publisher.get());
                        put_hash(out, *of);
                    }
                    put_number(out, bookmark.sequence.wrapping_sub(sequence));
                    (publisher, sequence, run) = (Some(bookmark.publisher), bookmark.sequence, *of);
                }
            }
        }
    }

    /// The answer in these bytes; `None` when they are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let mut rest = Rest(rest);
        match *kind {
            DIGESTS => {
                let mut digests = Box::new([0; 256]);
                for digest in digests.iter_mut() {
                    *digest = rest.hash()?;
                }
                rest.0.is_empty().then_some(Answer::Digests(digests))
            }
            PUBLISHERS => {
                let mut digests = Vec::new();
                while !rest.0.is_empty() {
                    let publisher = PublisherId::new(rest.hash()?);
                    digests.push(PublisherDigest { publisher, highest: rest.number()?, sum: rest.hash()? });
                }
                Some(Answer::Publishers(digests))
            }
            SUMS => {
                let mut parts = Vec::new();
                while !rest.0.is_empty() {
                    let (kept_from, count) = (rest.number()?, rest.number()?);
                    let (mut sums, mut before) = (Vec::new(), 0u64);
                    for _ in 0..count {
                        let number = before.wrapping_add(rest.number()?);
                        let count = u32::try_from(rest.number()?).ok()?;
                        sums.push(RangeSum { number, count, sum: rest.hash()? });
                        before = number;
                    }
                    parts.push(PartSums { kept_from, sums });
                }
                Some(Answer::Sums(parts))
            }
            MESSAGES => {
                let (mut messages, mut publisher, mut sequence, mut run) = (Vec::new(), 0, 0u64, 0);
                while !rest.0.is_empty() {
                    match rest.byte()? {
                        0 if !messages.is_empty() => (),
                        1 => (publisher, run) = (rest.hash()?, rest.hash()?),
                        _ => return None,
                    }
                    sequence = sequence.wrapping_add(rest.number()?);
                    messages.push((Bookmark { publisher: PublisherId::new(publisher), sequence }, run));
                }
                Some(Answer::Messages(messages))
            }
            _ => None,
        }
    }
}

fn put_hash(out: &mut Vec<u8>, hash: u64) {
    out.extend_from_slice(&hash.to_le_bytes());
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads from the front of bytes, never beyond their end.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn hash(&mut self) -> Option<u64> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The last byte has one bit.
            if shift == 63 && byte > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}
