//! The commands of a client for messages of a queue that it received: [`Settle`] and [`Extend`]
//! (protocol.md section 3).

use super::frame::{Body, Encode, FromBody, WireError, put_frame};
use super::from_client::{EXTEND, SETTLE};
use quire_command::{Acks, Bookmarks, Extend, REASON_SIZE_MAX, Selection, Settle};
use quire_types::{TOPIC_SIZE_MAX, Verdict};

const FLAG_FILTER: u8 = 1;
const FLAG_DELAY: u8 = 2;
const FLAG_REASON: u8 = 4;

impl Encode for Settle<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, SETTLE, |out| {
            let filter = if matches!(self.messages, Selection::Matching(_)) { FLAG_FILTER } else { 0 };
            let (verdict, delay_ms) = verdict_number(self.verdict);
            let delay = if delay_ms.is_some() { FLAG_DELAY } else { 0 };
            let reason = if self.reason.is_empty() { 0 } else { FLAG_REASON };
            out.extend_from_slice(&[verdict, filter | delay | reason]);
            put_head(out, self.queue, self.command, self.acks);
            if let Some(delay_ms) = delay_ms {
                out.extend_from_slice(&delay_ms.to_le_bytes());
            }
            if !self.reason.is_empty() {
                debug_assert!(self.reason.len() <= REASON_SIZE_MAX && takes_reason(self.verdict));
                out.extend_from_slice(&(self.reason.len() as u16).to_le_bytes());
                out.extend_from_slice(self.reason.as_bytes());
            }
            match self.messages {
                Selection::Bookmarks(bookmarks) => out.extend_from_slice(bookmarks.as_bytes()),
                Selection::Matching(filter) => out.extend_from_slice(filter.as_bytes()),
            }
        });
    }
}

impl<'a> FromBody<'a> for Settle<'a> {
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
        let mut body = Body::new("settle", body);
        let [verdict, flags] = body.array("head")?;
        let verdict = match verdict {
            0 => Verdict::Acknowledge,
            1 => Verdict::Cancel,
            2 => Verdict::Expire,
            3 => Verdict::Release,
            _ => return Err(body.bad("verdict")),
        };
        let (queue, command, acks) = take_head(&mut body)?;
        let has_delay = flags & FLAG_DELAY != 0;
        let has_reason = flags & FLAG_REASON != 0;
        if flags > FLAG_FILTER | FLAG_DELAY | FLAG_REASON
            || (has_delay && verdict != Verdict::Cancel)
            || (has_reason && !takes_reason(verdict))
        {
            return Err(body.bad("flags"));
        }
        let verdict = match has_delay {
            true => Verdict::CancelWithDelay { delay_ms: body.u64("delay")? },
            false => verdict,
        };
        let reason = if has_reason { take_reason(&mut body)? } else { "" };
        let messages = if flags & FLAG_FILTER == 0 {
            Selection::Bookmarks(take_bookmarks(body)?)
        } else {
            let bad = body.bad("filter");
            Selection::Matching(std::str::from_utf8(body.rest()).map_err(|_| bad)?)
        };
        Ok(Settle { verdict, command, acks, queue, messages, reason })
    }
}

impl Encode for Extend<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, EXTEND, |out| {
            out.extend_from_slice(&self.period_ms.to_le_bytes());
            // Two bytes of zero are in the place of the verdict of a settle.
            out.extend_from_slice(&[0; 2]);
            put_head(out, self.queue, self.command, self.acks);
            out.extend_from_slice(self.bookmarks.as_bytes());
        });
    }
}

impl<'a> FromBody<'a> for Extend<'a> {
    fn from_body(body: &'a [u8]) -> Result<Self, WireError> {
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

fn take_reason<'a>(body: &mut Body<'a>) -> Result<&'a str, WireError> {
    let size = usize::from(body.u16("reason size")?);
    if !(1..=REASON_SIZE_MAX).contains(&size) {
        return Err(body.bad("reason size"));
    }
    std::str::from_utf8(body.bytes(size, "reason size")?).map_err(|_| body.bad("reason"))
}

/// Whether messages with this verdict can become dead letters.
fn takes_reason(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Cancel | Verdict::CancelWithDelay { .. } | Verdict::Expire)
}

fn take_bookmarks(body: Body<'_>) -> Result<Bookmarks<'_>, WireError> {
    let bad = body.bad("bookmarks");
    Bookmarks::from_bytes(body.rest()).ok_or(bad)
}

/// The number of a verdict, and its delay in milliseconds.
fn verdict_number(verdict: Verdict) -> (u8, Option<u64>) {
    match verdict {
        Verdict::Acknowledge => (0, None),
        Verdict::Cancel => (1, None),
        Verdict::CancelWithDelay { delay_ms } => (1, Some(delay_ms)),
        Verdict::Expire => (2, None),
        Verdict::Release => (3, None),
    }
}
