//! The progress of the messages that a subscription handed out.
//!
//! The resume position is after the last message that was processed together with every earlier
//! message. A message that is processed before an earlier one is noted separately, and does not
//! move the position past unprocessed messages.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use quire_types::Bookmark;

use super::resume_position::ranges_of;
use super::{Lease, Message, PositionsByInstance, SequenceRange};

/// The most messages, from the first unprocessed one on, whose state is remembered, 32 bytes each.
/// A handler that fails on one message and continues with others fills it. From then on the
/// position does not move, and later messages are delivered again after a restart.
const OUTSTANDING_MAX: usize = 1_000_000;

/// The most places that wait for the processing of messages. At the limit, the last one is
/// replaced.
const TOLD_MAX: usize = 16;

/// The ordinal of a message that is not tracked.
const UNTRACKED: u64 = u64::MAX;

/// The progress of one subscription.
#[derive(Debug, Default)]
pub struct SubscriptionProgress {
    /// From the first message that is not processed.
    messages: VecDeque<Outstanding>,
    /// The ordinal of the first of them.
    first: u64,
    /// Messages of earlier ones belong to a bookmark that the subscription no longer has.
    generation: u16,
    /// Messages after the resume position that were processed before a restart. They are not handed
    /// out again.
    known: BTreeSet<Bookmark>,
    is_overflowed: bool,
    /// Whether a message of a queue is acknowledged when it is processed.
    acknowledges: bool,
    /// Leases of messages that a loop got. They are acknowledged when the loop asks for the next
    /// message.
    leases: Vec<Arc<Lease>>,
    /// Places, each with the message after which it counts.
    told: VecDeque<(Bookmark, Arc<PositionsByInstance>)>,
    /// Those that count, and were not stored.
    places: Option<Arc<PositionsByInstance>>,
    /// The last message up to which all are processed.
    last: Option<Bookmark>,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    bookmark: Option<Bookmark>,
    instance: u16,
    is_processed: bool,
}

/// A change that has to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Processed {
    /// Every message up to here.
    UpTo {
        /// The last of them.
        last: Bookmark,
        /// The number of its instance.
        instance: u16,
        /// The new messages.
        received: Vec<SequenceRange>,
        /// Places up to which everything was processed, when there are later ones.
        places: Option<Arc<PositionsByInstance>>,
    },
    /// A message after unprocessed messages.
    Ahead(Bookmark),
}

impl SubscriptionProgress {
    /// For a subscription that resumes. The messages of `known` were processed before. With
    /// `acknowledges`, a message of a queue is acknowledged when it is processed.
    pub fn new(known: BTreeSet<Bookmark>, acknowledges: bool) -> Self {
        SubscriptionProgress { known, acknowledges, ..SubscriptionProgress::default() }
    }

    /// Whether a message of a queue is acknowledged when it is processed.
    pub fn acknowledges(&self) -> bool {
        self.acknowledges
    }

    /// As [`hand_out`](Self::hand_out), to a program that has processed a message when it asks for
    /// the next one.
    pub fn hand_out_in_turn(&mut self, message: &Message) -> Option<u64> {
        if self.acknowledges {
            self.leases.extend(message.lease().cloned());
        }
        self.hand_out(message)
    }

    /// A loop asks for the next message. Returns the leases of the earlier ones, to be
    /// acknowledged.
    pub fn take_leases(&mut self) -> Vec<Arc<Lease>> {
        std::mem::take(&mut self.leases)
    }

    /// The subscription begins again with another bookmark. Messages that were handed out before no
    /// longer count.
    pub fn begin(&mut self, generation: u16) {
        self.first += self.messages.len() as u64;
        self.messages.clear();
        self.known.clear();
        self.told.clear();
        (self.places, self.last) = (None, None);
        self.generation = generation;
        self.is_overflowed = false;
    }

    /// Places were told after a message was given to the program. They count when it and all
    /// earlier messages are processed, and are stored with the next progress.
    pub fn told_places(
        &mut self,
        generation: u16,
        after: Option<Bookmark>,
        places: &Arc<PositionsByInstance>,
    ) {
        if generation != self.generation {
            return;
        }
        match after.filter(|after| Some(*after) != self.last) {
            None => {
                self.told.clear();
                self.places = Some(Arc::clone(places));
            }
            Some(after) => {
                if self.told.len() >= TOLD_MAX {
                    self.told.pop_back();
                }
                self.told.push_back((after, Arc::clone(places)));
            }
        }
    }

    /// A message is handed out. Returns its ordinal. `None`: it was processed before, and is not to
    /// be handed out.
    pub fn hand_out(&mut self, message: &Message) -> Option<u64> {
        let bookmark = message.bookmark();
        if message.generation() != self.generation {
            return Some(UNTRACKED);
        }
        let is_known =
            !self.known.is_empty() && bookmark.is_some_and(|bookmark| self.known.remove(&bookmark));
        if self.messages.len() >= OUTSTANDING_MAX {
            self.is_overflowed = true;
        }
        if self.is_overflowed {
            return (!is_known).then_some(UNTRACKED);
        }
        let ordinal = self.first + self.messages.len() as u64;
        self.messages.push_back(Outstanding {
            bookmark,
            instance: message.instance(),
            is_processed: is_known,
        });
        (!is_known).then_some(ordinal)
    }

    /// Messages that were handed out and are not processed.
    pub fn outstanding_count(&self) -> usize {
        self.messages.iter().filter(|message| !message.is_processed).count()
    }

    /// Whether too many messages are outstanding, so that the position does not move.
    pub fn is_overflowed(&self) -> bool {
        self.is_overflowed
    }

    /// The program asks for the next message: all earlier ones are processed.
    pub fn processed_all(&mut self) -> Option<Processed> {
        self.is_overflowed = false;
        self.take(self.messages.len())
    }

    /// One message is.
    pub fn processed(&mut self, ordinal: u64) -> Option<Processed> {
        let index = usize::try_from(ordinal.checked_sub(self.first)?).ok()?;
        let message = self.messages.get_mut(index)?;
        if message.is_processed {
            return None;
        }
        message.is_processed = true;
        if index > 0 {
            return message.bookmark.map(Processed::Ahead);
        }
        let count = self.messages.iter().take_while(|message| message.is_processed).count();
        self.take(count)
    }

    /// The first `count` are processed.
    fn take(&mut self, count: usize) -> Option<Processed> {
        self.first += count as u64;
        for message in self.messages.range(..count) {
            let Some(bookmark) = message.bookmark else { continue };
            self.last = Some(bookmark);
            if let Some(index) = self.told.iter().rposition(|(after, _)| *after == bookmark) {
                self.places = self.told.drain(..=index).next_back().map(|(_, places)| places);
            }
        }
        let last = self
            .messages
            .range(..count)
            .rev()
            .find_map(|message| Some((message.bookmark?, message.instance)));
        let received = ranges_of(self.messages.drain(..count).filter_map(|message| message.bookmark));
        let (last, instance) = last?;
        Some(Processed::UpTo { last, instance, received, places: self.places.take() })
    }
}
