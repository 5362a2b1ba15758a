//! Messages whose leases ran out, and the subscriptions that held these leases.
//!
//! Such a message waits for another subscription, at most for one lease period after each return.
//! The entry stays until the message leaves the queue, so that a message meets each of several
//! silent consumers only once.

use std::collections::{BTreeSet, HashMap};

use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use super::messages::NEVER;

/// The messages of a queue whose leases ran out.
#[derive(Debug, Default)]
pub(super) struct Lapses {
    by_ordinal: HashMap<u64, Lapse, FxBuildHasher>,
    /// When each wait for another subscription ends.
    by_time: BTreeSet<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Lapse {
    /// At most the members of the queue, each once.
    holders: Holders,
    /// When it no longer waits for another subscription; 0: it does not wait for one.
    until: u64,
}

/// A subscription whose lease ran out: its class in the queue, and its order, which no other
/// subscription ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub class: u32,
    pub order: u64,
}

pub(super) type Holders = SmallVec<[Holder; 1]>;

impl Lapses {
    /// Whether no lease has run out. A queue whose consumers settle in time calls only this.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.by_ordinal.is_empty()
    }

    /// Notes the subscription whose lease on a message ran out. Drops earlier holders that are not
    /// members any more.
    pub fn note(&mut self, ordinal: u64, holder: Holder, is_member: impl Fn(&Holder) -> bool) {
        let holders = &mut self.by_ordinal.entry(ordinal).or_default().holders;
        holders.retain(|other| other != &holder && is_member(other));
        holders.push(holder);
    }

    /// A message returned. If leases on it ran out, it waits for another subscription until then.
    /// Gives the end of the wait, if there is one, or else `NEVER`.
    pub fn wait(&mut self, ordinal: u64, until: u64) -> u64 {
        self.end_wait(ordinal);
        let Some(lapse) = self.by_ordinal.get_mut(&ordinal) else { return NEVER };
        lapse.until = until;
        self.by_time.insert((until, ordinal));
        until
    }

    /// The subscriptions whose leases on a message ran out, while the message waits for another
    /// subscription.
    pub fn waiting(&self, ordinal: u64) -> Option<&Holders> {
        self.by_ordinal.get(&ordinal).filter(|lapse| lapse.until > 0).map(|lapse| &lapse.holders)
    }

    /// A message no longer waits for another subscription.
    pub fn end_wait(&mut self, ordinal: u64) {
        if let Some(lapse) = self.by_ordinal.get_mut(&ordinal) {
            self.by_time.remove(&(lapse.until, ordinal));
            lapse.until = 0;
        }
    }

    /// The message left the queue.
    pub fn remove(&mut self, ordinal: u64) {
        self.end_wait(ordinal);
        self.by_ordinal.remove(&ordinal);
    }

    /// When the first wait ends.
    pub fn next_due(&self) -> Option<u64> {
        self.by_time.first().map(|(until, _)| *until).filter(|until| *until != NEVER)
    }

    /// Ends the first wait whose time is over. Gives whether there was one.
    pub fn end_due(&mut self, now: u64) -> bool {
        let due = self.by_time.first().copied().filter(|(until, _)| *until <= now);
        if let Some((_, ordinal)) = due {
            self.end_wait(ordinal);
        }
        due.is_some()
    }
}
