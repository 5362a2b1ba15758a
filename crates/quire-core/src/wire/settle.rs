//! What a client says about messages of a queue that it was given: [`Settle`] and [`Extend`] (protocol.md section 3).

use super::TOPIC_SIZE_MAX;
use super::frame::{Body, WireError, put_frame};
use super::from_client::{Acks, EXTEND, SETTLE};
use crate::queue::Verdict;

/// Bookmarks in one `settle` or `extend`: a mebibyte of them, far more than a client gathers before it speaks.
pub const SETTLE_BOOKMARKS_MAX: usize = 65_536;

const FLAG_FILTER: u8 = 1;
const BOOKMARK_SIZE: usize = 16;

/// Acknowledges, cancels or expires messages of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle<'a> {
    /// What becomes of them.
    pub verdict: Verdict,
    /// Number that the acknowledgements echo, 0 = none is wanted.
    pub command: u32,
    /// The acknowledgements wanted.
    pub acks: Acks,
    /// The queue.
    pub queue: &'a str,
    /// Which messages.
    pub messages: Selection<'a>,
}

/// Keeps leases longer, or as long as the queue grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extend<'a> {
    /// From now on, in milliseconds; 0 = the queue's own period.
    pub period_ms: u64,
    /// Number that the acknowledgements echo, 0 = none is wanted.
    pub command: u32,
    /// The acknowledgements wanted.
    pub acks: Acks,
    /// The queue.
    pub queue: &'a str,
    /// Which messages.
    pub bookmarks: Bookmarks<'a>,
}

/// The messages that a [`Settle`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection<'a> {
    /// These.
    Bookmarks(Bookmarks<'a>),
    /// Every active one that the filter matches; empty: every one.
    Matching(&'a str),
}

/// A list of bookmarks, publisher and sequence each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bookmarks<'a>(&'a [[u8; BOOKMARK_SIZE]]);

impl<'a> Bookmarks<'a> {
    /// From the bookmarks as bytes, 16 each; `None` when bytes are left over, or there are more than [`SETTLE_BOOKMARKS_MAX`].
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        let (bookmarks, rest) = bytes.as_chunks::<BOOKMARK_SIZE>();
        (rest.is_empty() && bookmarks.len() <= SETTLE_BOOKMARKS_MAX).then_some(Bookmarks(bookmarks))
    }

    /// Publisher and sequence of each, in the order in which they stand.
    pub fn iter(self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.0.iter().map(|bookmark| {
            let number = u128::from_le_bytes(*bookmark);
            (number as u64, (number >> 64) as u64)
        })
    }

    /// How many there are.
    pub fn count(self) -> usize {
        self.0.len()
    }
}

/// Appends one bookmark to the bytes that [`Bookmarks::from_bytes`] takes.
pub fn put_bookmark(out: &mut Vec<u8>, publisher: u64, sequence: u64) {
    out.extend_from_slice(&(u128::from(sequence) << 64 | u128::from(publisher)).to_le_bytes());
}

impl<'a> Settle<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, SETTLE, |out| {
            let is_filter = matches!(self.messages, Selection::Matching(_));
            out.extend_from_slice(&[verdict_number(self.verdict), if is_filter { FLAG_FILTER } else { 0 }]);
            put_head(out, self.queue, self.command, self.acks);
            match self.messages {
                Selection::Bookmarks(bookmarks) => out.extend_from_slice(bookmarks.0.as_flattened()),
                Selection::Matching(filter) => out.extend_from_slice(filter.as_bytes()),
            }
        });
    }

    pub(super) fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut body = Body::new("settle", body);
        let [verdict, flags] = body.array("head")?;
        let verdict = match verdict {
            0 => Verdict::Acknowledge,
            1 => Verdict::Cancel,
            2 => Verdict::Expire,
            _ => return Err(body.bad("verdict")),
        };
        let (queue, command, acks) = take_head(&mut body)?;
        let messages = match flags {
            0 => Selection::Bookmarks(take_bookmarks(body)?),
            FLAG_FILTER => {
                let bad = body.bad("filter");
                Selection::Matching(std::str::from_utf8(body.rest()).map_err(|_| bad)?)
            }
            _ => return Err(body.bad("flags")),
        };
        Ok(Settle { verdict, command, acks, queue, messages })
    }
}

impl<'a> Extend<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, EXTEND, |out| {
            out.extend_from_slice(&self.period_ms.to_le_bytes());
            // Two bytes of zero stand where a settle has its verdict.
            out.extend_from_slice(&[0; 2]);
            put_head(out, self.queue, self.command, self.acks);
            out.extend_from_slice(self.bookmarks.0.as_flattened());
        });
    }

    pub(super) fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        let mut body = Body::new("extend", body);
        let period_ms = body.u64("head")?;
        if body.array("head")? != [0, 0] {
            return Err(body.bad("head"));
        }
        let (queue, command, acks) = take_head(&mut body)?;
        Ok(Extend { period_ms, command, acks, queue, bookmarks: take_bookmarks(body)? })
    }
}

fn put_head(out: &mut Vec<u8>, queue: &str, command: u32, acks: Acks) {
    debug_assert!(queue.len() <= TOPIC_SIZE_MAX);
    out.extend_from_slice(&(queue.len() as u16).to_le_bytes());
    out.extend_from_slice(&command.to_le_bytes());
    out.extend_from_slice(&[acks.0, 0, 0, 0]);
    out.extend_from_slice(queue.as_bytes());
}

fn take_head<'a>(body: &mut Body<'a>) -> Result<(&'a str, u32, Acks), WireError> {
    let queue_size = body.u16("head")?;
    let command = body.u32("head")?;
    let [acks, zeros @ ..] = body.array::<4>("head")?;
    if acks > Acks::ALL.0 || zeros != [0; 3] {
        return Err(body.bad("acks"));
    }
    let queue = std::str::from_utf8(body.bytes(queue_size.into(), "queue size")?);
    Ok((queue.map_err(|_| body.bad("queue"))?, command, Acks(acks)))
}

fn take_bookmarks(body: Body<'_>) -> Result<Bookmarks<'_>, WireError> {
    let bad = body.bad("bookmarks");
    Bookmarks::from_bytes(body.rest()).ok_or(bad)
}

fn verdict_number(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Acknowledge => 0,
        Verdict::Cancel => 1,
        Verdict::Expire => 2,
    }
}
