//! The messages that are missing, and that no source could send: the *gap* (docs/replication.md,
//! *Messages that are missing*). A comparison finds it (`compare.rs`). A part of it ends when its
//! messages are recorded after all, or when a command accepts them as lost. The file `copies.place`
//! has the gap and the accepted messages, so that both survive restarts (docs/journal-format.md).

use std::collections::BTreeMap;

use quire_command::Code;
use quire_journal::{Bookmark, Journal, PublisherId};
use quire_link::SequenceRanges;

use super::Links;
use crate::admin::{AdminReply, Requester};
use crate::context::Context;
use crate::io::Event;
use crate::stats::{MissingOfPublisher, MissingRange};

/// Ranges of the gap, at most. They take 240 KB in the file. A comparison looks at fewer holes.
const RANGES_MAX: usize = 10_000;

/// Publishers whose missing messages are counted each, at most. Those of further ones are only in
/// the sum.
const COUNTED_MAX: usize = 10_000;

/// Ranges and publishers that figures list, and ranges that the line of the log lists.
const LISTED_MAX: usize = 100;
const LOGGED_MAX: usize = 10;

/// See the documentation of the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Gap {
    open: SequenceRanges,
    /// Missing messages that a command has accepted as lost.
    accepted: SequenceRanges,
    /// Messages that were ever found to be missing.
    total: u64,
    total_by_publisher: BTreeMap<PublisherId, u64>,
    /// The file lacks a change.
    is_changed: bool,
}

/// The commands that have accepted a gap. They are answered when the file has it.
#[derive(Default)]
pub(super) struct Accepting {
    /// The next file has their changes.
    waiting: Vec<Requester>,
    /// The file that is being written has their changes.
    saving: Vec<Requester>,
}

impl Gap {
    /// From the bytes that an earlier run saved. Nothing when they cannot be used.
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        decode(bytes).unwrap_or_default()
    }

    /// Whether no message is missing, and none was accepted.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.accepted.is_empty()
    }

    /// Takes the result of a comparison with all sources: messages that the log lacks, and that no
    /// source has. `left_out` do not come here. Returns whether some were not missing before.
    pub(super) fn found(
        &mut self,
        journal: &Journal,
        found: SequenceRanges,
        left_out: &SequenceRanges,
    ) -> bool {
        let mut open = found;
        // A comparison does not look at merged holes.
        for (publisher, first, last) in self.open.iter() {
            let inside =
                merged_holes(journal, publisher).map(|(begin, end)| (begin.max(first), end.min(last)));
            for (first, last) in inside.filter(|(first, last)| first <= last) {
                for (first, last) in left_out.missing(publisher, first, last) {
                    if open.range_count() < RANGES_MAX {
                        open.insert(publisher, first, last);
                    }
                }
            }
        }
        for (publisher, first, last) in self.accepted.iter() {
            open.remove(publisher, first, last);
        }
        let mut has_new = false;
        for (publisher, first, last) in open.iter() {
            for (first, last) in self.open.missing(publisher, first, last) {
                has_new = true;
                let count = last - first + 1;
                self.total = self.total.saturating_add(count);
                if self.total_by_publisher.len() < COUNTED_MAX
                    || self.total_by_publisher.contains_key(&publisher)
                {
                    let total = self.total_by_publisher.entry(publisher).or_default();
                    *total = total.saturating_add(count);
                }
            }
        }
        self.is_changed |= open != self.open;
        self.open = open;
        has_new
    }

    /// Whether a command has accepted the message as lost.
    fn has_accepted(&self, bookmark: Bookmark) -> bool {
        let Bookmark { publisher, sequence } = bookmark;
        self.accepted.overlaps(publisher, sequence, sequence)
    }

    /// A message was recorded.
    pub(super) fn note_recorded(&mut self, bookmark: Bookmark) {
        let Bookmark { publisher, sequence } = bookmark;
        for ranges in [&mut self.open, &mut self.accepted] {
            if ranges.overlaps(publisher, sequence, sequence) {
                ranges.remove(publisher, sequence, sequence);
                self.is_changed = true;
            }
        }
    }

    /// Forgets what the log has: it was recorded after the file was written.
    pub(super) fn compare_with(&mut self, journal: &Journal) {
        for ranges in [&mut self.open, &mut self.accepted] {
            let mut lacking = SequenceRanges::default();
            for (publisher, first, last) in ranges.iter() {
                // The end of the log may have been lost.
                let above = (journal.highest_sequence(publisher).unwrap_or(0).saturating_add(1), u64::MAX);
                let holes = journal.holes(publisher).iter().copied().chain([above]);
                let inside = holes.map(|(begin, end)| (begin.max(first), end.min(last)));
                for (first, last) in inside.filter(|(first, last)| first <= last) {
                    lacking.insert(publisher, first, last);
                }
            }
            self.is_changed |= *ranges != lacking;
            *ranges = lacking;
        }
    }

    /// Accepts the missing messages of a publisher, or of all, as lost. Returns them.
    fn accept(&mut self, journal: &Journal, publisher: Option<PublisherId>) -> SequenceRanges {
        let mut taken = SequenceRanges::default();
        for (of, first, last) in self.open.iter().filter(|(of, ..)| publisher.is_none_or(|only| only == *of))
        {
            taken.insert(of, first, last);
        }
        for (of, first, last) in taken.iter() {
            self.open.remove(of, first, last);
            self.accepted.insert(of, first, last);
        }
        // Those in merged holes are never found again.
        let publishers: Vec<_> = self.accepted.publishers().collect();
        for publisher in publishers {
            for (first, last) in merged_holes(journal, publisher) {
                self.accepted.remove(publisher, first, last);
            }
        }
        self.is_changed |= !taken.is_empty();
        taken
    }

    /// The event that says which messages are missing; `None`: no message is.
    pub(super) fn event(&self) -> Option<Event> {
        let (count, publisher_count) = (self.open.sequence_count(), self.open.publisher_count() as u64);
        let ranges = described(&self.open);
        (count > 0).then_some(Event::MessagesMissing { count, publisher_count, ranges })
    }

    /// How many messages are missing.
    pub(super) fn missing_count(&self) -> u64 {
        self.open.sequence_count()
    }

    /// How many missing messages were accepted as lost.
    pub(super) fn accepted_count(&self) -> u64 {
        self.accepted.sequence_count()
    }

    /// How many messages were ever found to be missing.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The first ranges of the missing messages, and of the accepted ones.
    pub(super) fn ranges(&self) -> (Vec<MissingRange>, Vec<MissingRange>) {
        let listed = |ranges: &SequenceRanges| {
            let first = ranges.iter().take(LISTED_MAX);
            let range = |(publisher, first, last): (PublisherId, u64, u64)| MissingRange {
                publisher: publisher.get(),
                first,
                last,
            };
            first.map(range).collect()
        };
        (listed(&self.open), listed(&self.accepted))
    }

    /// The first publishers whose messages were ever missing.
    pub(super) fn publishers(&self) -> Vec<MissingOfPublisher> {
        let of = |(publisher, total): (&PublisherId, &u64)| MissingOfPublisher {
            publisher: publisher.get(),
            missing: self.open.sequence_count_of(*publisher),
            accepted: self.accepted.sequence_count_of(*publisher),
            total: *total,
        };
        self.total_by_publisher.iter().take(LISTED_MAX).map(of).collect()
    }

    /// The bytes for the file.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for ranges in [&self.open, &self.accepted] {
            put_count(&mut bytes, ranges.range_count());
            for (publisher, first, last) in ranges.iter() {
                put(&mut bytes, [publisher.get(), first, last]);
            }
        }
        put(&mut bytes, [self.total]);
        put_count(&mut bytes, self.total_by_publisher.len());
        for (publisher, total) in &self.total_by_publisher {
            put(&mut bytes, [publisher.get(), *total]);
        }
        bytes
    }

    /// Whether the file lacks a change.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// As [`Gap::is_changed`]. The file counts as written from now on.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// The file was not written.
    pub(super) fn not_written(&mut self) {
        self.is_changed = true;
    }
}

impl Links {
    /// Whether a command has accepted a message as lost. It is not confirmed to its publisher.
    pub(crate) fn has_accepted(&self, bookmark: Bookmark) -> bool {
        self.gap.has_accepted(bookmark)
    }

    /// Accepts the gap, or the part of a publisher, by command. The answer comes when the file has
    /// it.
    pub(crate) fn accept(&mut self, cx: &mut Context, by: Requester, publisher: &str) {
        let only = match publisher.parse() {
            Ok(id) => Some(PublisherId::new(id)),
            Err(_) if publisher.is_empty() => None,
            Err(_) => {
                let reason =
                    format!("publisher: {publisher:?} is not the id of a publisher, which is a number");
                return cx.reply(&by, AdminReply::refused(Code::BadOption, reason));
            }
        };
        let taken = self.gap.accept(&cx.log.journal, only);
        if taken.is_empty() && !self.gap.is_changed() && self.accepting.saving.is_empty() {
            return cx.reply(&by, AdminReply::Replication(Box::new(self.stats(cx))));
        }
        if !taken.is_empty() {
            let (count, publisher_count) = (taken.sequence_count(), taken.publisher_count() as u64);
            cx.note(Event::GapAccepted { count, publisher_count, ranges: described(&taken) });
        }
        // A file that is being written may lack the change: then the next one has it.
        self.gap.is_changed = true;
        self.accepting.waiting.push(by);
        self.places.look_now();
        cx.clock.wants_turn = true;
    }

    /// The changes of the commands are in the file that is written next.
    pub(super) fn begin_accepting(&mut self) {
        self.accepting.saving.append(&mut self.accepting.waiting);
    }

    /// Answers the commands whose changes were to be in the file.
    pub(super) fn end_accepting(&mut self, cx: &mut Context, is_written: bool) {
        for by in std::mem::take(&mut self.accepting.saving) {
            let reply = match is_written {
                true => AdminReply::Replication(Box::new(self.stats(cx))),
                false => AdminReply::refused(
                    Code::StorageFailed,
                    "the file copies.place of the journal directory cannot be written, so a restart may forget that \
                     the gap was accepted: look at the disk, and repeat the command",
                ),
            };
            cx.reply(&by, reply);
        }
    }
}

/// The ranges of holes in which the log may have messages.
fn merged_holes(journal: &Journal, publisher: PublisherId) -> impl Iterator<Item = (u64, u64)> {
    let exact_from = journal.exact_holes_of(publisher).next().map_or(u64::MAX, |(first, _)| first);
    let holes = journal.holes(publisher).iter().copied();
    holes
        .take_while(move |(first, _)| *first < exact_from)
        .map(move |(first, last)| (first, last.min(exact_from - 1)))
}

/// The first ranges, as the log of the server shows them.
fn described(ranges: &SequenceRanges) -> String {
    let range = |(publisher, first, last): (PublisherId, u64, u64)| match first == last {
        true => format!("publisher {publisher}: {first}"),
        false => format!("publisher {publisher}: {first} to {last}"),
    };
    let mut listed: Vec<_> = ranges.iter().take(LOGGED_MAX).map(range).collect();
    if ranges.range_count() > LOGGED_MAX {
        listed.push(format!("and {} more ranges", ranges.range_count() - LOGGED_MAX));
    }
    listed.join(", ")
}

fn put<const N: usize>(bytes: &mut Vec<u8>, numbers: [u64; N]) {
    numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    bytes.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

/// `None`: the bytes are something else.
fn decode(mut bytes: &[u8]) -> Option<Gap> {
    let mut gap = Gap::default();
    for ranges in [&mut gap.open, &mut gap.accepted] {
        for _ in 0..take_count(&mut bytes)? {
            let [publisher, first, last] = take(&mut bytes)?;
            if first > last {
                return None;
            }
            ranges.insert(PublisherId::new(publisher), first, last);
        }
    }
    [gap.total] = take(&mut bytes)?;
    for _ in 0..take_count(&mut bytes)? {
        let [publisher, total] = take(&mut bytes)?;
        gap.total_by_publisher.insert(PublisherId::new(publisher), total);
    }
    bytes.is_empty().then_some(gap)
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        let (value, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        *number = u64::from_le_bytes(*value);
    }
    Some(numbers)
}

fn take_count(bytes: &mut &[u8]) -> Option<u32> {
    let (count, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*count))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_gap_or_refused(
            bytes in prop::collection::vec(prop_oneof![8 => Just(0u8), 2 => 0u8..3, 1 => any::<u8>()], 0..140),
        ) {
            if let Some(gap) = decode(&bytes) {
                prop_assert_eq!(decode(&gap.encoded()), Some(gap));
            }
        }

        #[test]
        fn a_gap_is_saved_and_read_again(
            ranges in prop::collection::vec((any::<bool>(), 0u64..3, 0u64..90, 0u64..9), 0..20),
            total in any::<u64>(),
        ) {
            let mut gap = Gap { total, ..Gap::default() };
            for (is_open, publisher, first, size) in ranges {
                let publisher = PublisherId::new(publisher);
                let of = if is_open { &mut gap.open } else { &mut gap.accepted };
                of.insert(publisher, first, first + size);
                *gap.total_by_publisher.entry(publisher).or_default() += size + 1;
            }
            prop_assert_eq!(Gap::of_bytes(&gap.encoded()), gap);
        }
    }
}
