//! The bytes of a segment as its readers see them, whether it is compressed or not.

use std::ops::Range;
use std::sync::Arc;

use crate::disk::Mapping;
use crate::format::{BATCH_HEADER_SIZE, BatchHeader};
use crate::segment::Segment;

/// How the bytes come from the disk when they are not in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    /// As the system reads ahead, which may be many MiB: the fastest way through all of it.
    Ahead,
    /// What is looked at and little more, for who jumps, or must not keep the disk from others; of what comes next so many bytes at a time.
    Sparingly { step: usize },
}

/// Enough for a disk to be busy while what it brought is looked at.
pub(crate) const READ_STEP: usize = 256 * 1024;

/// A part of a segment, readable for as long as this lives: all of it, or what one frame of a compressed one holds.
#[derive(Clone)]
pub(crate) struct View {
    segment: Arc<Segment>,
    /// Where it begins in the segment, and the bytes.
    unpacked: Option<(u64, Arc<Vec<u8>>)>,
    /// Of who reads sparingly.
    ahead: Option<ReadAhead>,
}

/// What to ask the disk for when somebody reads batch after batch, or jumps. Pure: [`View`] asks.
#[derive(Clone, Copy)]
struct ReadAhead {
    /// Bytes to ask for at a time.
    step: u64,
    /// Where the last batch ended.
    next: u64,
    /// Everything from there up to here was asked for.
    to: u64,
}

impl ReadAhead {
    fn new(step: usize) -> Self {
        ReadAhead { step: step as u64, next: 0, to: 0 }
    }

    /// The bytes to ask for before the batch at `offset` is looked at: those that come next, for who goes on where the last one ended.
    fn before(&mut self, offset: u64) -> Range<u64> {
        if offset != self.next {
            self.to = offset;
            return offset..offset;
        }
        let from = self.to.max(offset);
        if from - offset < self.step / 2 {
            self.to = from + self.step;
        }
        from..self.to
    }

    /// The bytes of it that are still to be asked for, now that it is known where it ends.
    fn within(&mut self, end: u64) -> Range<u64> {
        let from = self.to;
        self.to = from.max(end);
        self.next = end;
        from..self.to
    }
}

impl View {
    /// The part in which the batch at `offset` lies.
    pub fn of(segment: &Arc<Segment>, offset: u64, reads: Reads) -> Result<Self, &'static str> {
        let ahead = match reads {
            Reads::Ahead => None,
            Reads::Sparingly { step } => Some(ReadAhead::new(step)),
        };
        let mut view = View { segment: segment.clone(), unpacked: None, ahead };
        if let Some(frames) = &segment.frames {
            let frame = frames.entry_at(offset).ok_or("the segment ends here")?;
            view.unpacked = Some((frame.offset, Arc::new(frame.unpack(view.mapping())?)));
        }
        Ok(view)
    }

    fn mapping(&self) -> &Mapping {
        match self.ahead {
            None => &self.segment.mapping,
            Some(_) => &self.segment.sparing,
        }
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
            let reads =
                self.ahead.map_or(Reads::Ahead, |ahead| Reads::Sparingly { step: ahead.step as usize });
            *self = View::of(&self.segment, offset, reads)?;
        }
        Ok(())
    }

    /// Reads in this way from now on.
    pub fn set_reads(&mut self, reads: Reads) {
        match reads {
            Reads::Ahead => self.ahead = None,
            Reads::Sparingly { step } => {
                self.ahead.get_or_insert_with(|| ReadAhead::new(step)).step = step as u64;
            }
        }
    }

    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The bytes from `offset` of the segment, `size` of them; `None` when they do not lie in this part.
    pub fn bytes(&self, offset: u64, size: usize) -> Option<&[u8]> {
        let Some((start, bytes)) = &self.unpacked else { return self.mapping().bytes(offset, size) };
        let at = usize::try_from(offset.checked_sub(*start)?).ok()?;
        bytes.get(at..at.checked_add(size)?)
    }

    /// The batch at `offset`, its header and its body checked. Bytes that are not one are the reason why not.
    pub fn batch(&mut self, offset: u64) -> Result<(BatchHeader, &[u8]), &'static str> {
        if let (Some(ahead), None) = (&mut self.ahead, &self.unpacked) {
            self.segment.sparing.will_need(ahead.before(offset));
        }
        let bytes = self.bytes(offset, BATCH_HEADER_SIZE).ok_or("the segment ends here")?;
        let header = BatchHeader::decode(bytes, self.segment.number, offset)?;
        if let (Some(ahead), None) = (&mut self.ahead, &self.unpacked) {
            self.segment.sparing.will_need(ahead.within(offset + header.batch_size() as u64));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const KB: u64 = 1024;
    const STEP: u64 = READ_STEP as u64;

    /// What is asked for by reading batches of these offsets and sizes.
    fn asked(batches: &[(u64, u64)]) -> Vec<Range<u64>> {
        let mut ahead = ReadAhead::new(READ_STEP);
        let ranges =
            batches.iter().flat_map(|(offset, size)| [ahead.before(*offset), ahead.within(offset + size)]);
        ranges.filter(|range| !range.is_empty()).collect()
    }

    #[test]
    fn who_jumps_has_only_the_batch_read() {
        let batches = [(900 * KB, 4 * KB), (40 * KB, 300 * KB), (500 * KB, KB)];
        assert_eq!(asked(&batches), batches.map(|(offset, size)| offset..offset + size));
    }

    #[test]
    fn who_goes_on_has_a_bounded_stretch_ahead_and_nothing_twice() {
        let batches: Vec<_> = (0..200).map(|number| (4 * KB + number * 10 * KB, 10 * KB)).collect();
        let ranges = asked(&batches);
        assert_eq!(ranges[0], 4 * KB..14 * KB);
        for (before, range) in ranges.iter().zip(&ranges[1..]) {
            assert_eq!(before.end, range.start);
            assert_eq!(range.end - range.start, STEP);
        }
        let end = ranges.last().map(|range| range.end).unwrap();
        assert!((2004 * KB + STEP / 2..=2004 * KB + 2 * STEP).contains(&end), "{end}");
    }

    #[test]
    fn a_batch_that_is_larger_than_what_was_asked_for_is_asked_for_whole() {
        assert_eq!(asked(&[(0, 900 * KB)]), [0..STEP, STEP..900 * KB]);
    }
}
