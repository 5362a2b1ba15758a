//! The bytes of a segment as its readers see them, whether it is compressed or not.

use std::sync::Arc;

use crate::format::{BATCH_HEADER_SIZE, BatchHeader};
use crate::segment::Segment;

/// A part of a segment, readable for as long as this lives: all of it, or what one frame of a compressed one holds.
#[derive(Clone)]
pub(crate) struct View {
    segment: Arc<Segment>,
    /// Where it begins in the segment, and the bytes.
    unpacked: Option<(u64, Arc<Vec<u8>>)>,
}

impl View {
    /// The part in which the batch at `offset` lies.
    pub fn of(segment: &Arc<Segment>, offset: u64) -> Result<Self, &'static str> {
        let unpacked = match &segment.frames {
            None => None,
            Some(frames) => {
                let frame = frames.entry_at(offset).ok_or("the segment ends here")?;
                Some((frame.offset, Arc::new(frame.unpack(&segment.mapping)?)))
            }
        };
        Ok(View { segment: segment.clone(), unpacked })
    }

    /// Whether the byte at `offset` lies in it.
    pub fn covers(&self, offset: u64) -> bool {
        match &self.unpacked {
            None => true,
            Some((start, bytes)) => (*start..*start + bytes.len() as u64).contains(&offset),
        }
    }

    /// Moves to the part in which the batch at `offset` lies, if that is another one.
    pub fn move_to(&mut self, offset: u64) -> Result<(), &'static str> {
        if !self.covers(offset) {
            *self = View::of(&self.segment, offset)?;
        }
        Ok(())
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The bytes from `offset` of the segment, `size` of them; `None` when they do not lie in this part.
    pub fn bytes(&self, offset: u64, size: usize) -> Option<&[u8]> {
        let Some((start, bytes)) = &self.unpacked else { return self.segment.mapping.bytes(offset, size) };
        let at = usize::try_from(offset.checked_sub(*start)?).ok()?;
        bytes.get(at..at.checked_add(size)?)
    }

    /// The batch at `offset`, its header and its body checked. Bytes that are not one are the reason why not.
    pub fn batch(&self, offset: u64) -> Result<(BatchHeader, &[u8]), &'static str> {
        let bytes = self.bytes(offset, BATCH_HEADER_SIZE).ok_or("the segment ends here")?;
        let header = BatchHeader::decode(bytes, self.segment.number, offset)?;
        let body = self.bytes(offset + BATCH_HEADER_SIZE as u64, header.body_size as usize);
        let body = body.ok_or("the batch reaches beyond the end of the segment")?;
        if crc32c::crc32c(body) != header.body_checksum {
            return Err("the checksum of the batch does not match");
        }
        Ok((header, body))
    }

    /// Whether the bytes from one offset to another are zero, as far as they lie in this part.
    pub fn is_zero(&self, from: u64, to: u64) -> bool {
        let size = to.saturating_sub(from) as usize;
        self.bytes(from, size).is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0))
    }
}
