//! Messages in the hands of subscriptions: leases, and for at-most-once the places in the backlog
//! that wait for an acknowledgement.
//!
//! One slab holds the leases of all queues. Each lease is in two lists: those of its subscription,
//! and those of its queue in the order in which they began. Leases of the same period also end in
//! this order, except for extended leases, whose ends are in a sorted set.

use std::collections::{BTreeSet, HashMap, VecDeque};

use rustc_hash::FxBuildHasher;

/// No lease, no subscription, no class.
pub(super) const NONE: u32 = u32::MAX;

/// A message in someone's hands.
#[derive(Debug)]
pub(super) struct Lease {
    pub queue: u32,
    pub subscription: u32,
    pub position: u64,
    /// Without meaning when `taken`.
    pub ordinal: u64,
    pub started: u64,
    /// When it ends; `u64::MAX`: it does not.
    pub deadline: u64,
    /// Deliveries so far, this one included.
    pub deliveries: u32,
    /// Cancels so far.
    pub cancels: u32,
    /// Delivered at most once: the message is gone, only the place in the backlog is held.
    pub taken: bool,
    /// The delivery was reported as an event, so the end is, too.
    pub is_recorded: bool,
    /// The classes (and their generations) whose filter matched the message. They do not have it
    /// during the lease.
    pub classes: Vec<(u32, u32)>,
    extended: bool,
    /// The number of the lease period.
    period: u32,
    of_queue: Links,
    of_subscription: Links,
}

/// The data of a lease that is over.
#[derive(Debug)]
pub(super) struct Ended {
    pub ordinal: u64,
    pub deliveries: u32,
    pub cancels: u32,
    pub taken: bool,
    pub classes: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

const UNLINKED: Links = Links { before: NONE, after: NONE };

/// Both ends of a list of leases.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub first: u32,
    last: u32,
}

impl Default for List {
    fn default() -> Self {
        List { first: NONE, last: NONE }
    }
}

/// The leases of one queue.
#[derive(Debug, Default)]
pub(super) struct QueueLeases {
    by_position: HashMap<u64, u32, FxBuildHasher>,
    list: List,
    /// The number of the lease period of the next lease. The period of a queue can change.
    period: u32,
    /// The first lease of each period that was not extended, with the number of the period, in
    /// ascending order.
    next_due: VecDeque<(u32, u32)>,
    extended: BTreeSet<(u64, u32)>,
}

/// All leases.
#[derive(Debug, Default)]
pub(super) struct Leases {
    slots: Vec<Lease>,
    unused: Vec<u32>,
}

impl Lease {
    /// A lease that is in no list yet.
    pub fn new(queue: u32, subscription: u32, position: u64, ordinal: u64) -> Self {
        Lease {
            queue,
            subscription,
            position,
            ordinal,
            started: 0,
            deadline: u64::MAX,
            deliveries: 1,
            cancels: 0,
            taken: false,
            is_recorded: false,
            classes: Vec::new(),
            extended: false,
            period: 0,
            of_queue: UNLINKED,
            of_subscription: UNLINKED,
        }
    }
}

impl QueueLeases {
    /// How many messages are outstanding.
    pub fn len(&self) -> usize {
        self.by_position.len()
    }

    /// The lease on the message at `position`.
    pub fn find(&self, position: u64) -> Option<u32> {
        self.by_position.get(&position).copied()
    }

    /// The lease that began first.
    pub fn oldest(&self) -> Option<u32> {
        (self.list.first != NONE).then_some(self.list.first)
    }

    /// Later leases have another period.
    pub fn begin_period(&mut self) {
        self.period = self.period.wrapping_add(1);
    }
}

impl Leases {
    pub fn get(&self, slot: u32) -> &Lease {
        &self.slots[slot as usize]
    }

    pub fn get_mut(&mut self, slot: u32) -> &mut Lease {
        &mut self.slots[slot as usize]
    }

    /// The lease of the same queue that began after this one.
    pub fn after(&self, slot: u32) -> Option<u32> {
        let after = self.get(slot).of_queue.after;
        (after != NONE).then_some(after)
    }

    /// The lease of the same subscription that began after this one.
    pub fn after_of_subscription(&self, slot: u32) -> Option<u32> {
        let after = self.get(slot).of_subscription.after;
        (after != NONE).then_some(after)
    }

    /// Enters a lease into both lists.
    pub fn insert(&mut self, mut lease: Lease, queue: &mut QueueLeases, subscription: &mut List) -> u32 {
        let position = lease.position;
        lease.period = queue.period;
        let slot = match self.unused.pop() {
            Some(slot) => {
                self.slots[slot as usize] = lease;
                slot
            }
            None => {
                self.slots.push(lease);
                (self.slots.len() - 1) as u32
            }
        };
        queue.by_position.insert(position, slot);
        append(&mut self.slots, &mut queue.list, slot, |lease| &mut lease.of_queue);
        append(&mut self.slots, subscription, slot, |lease| &mut lease.of_subscription);
        if queue.next_due.back().is_none_or(|(period, _)| *period != queue.period) {
            queue.next_due.push_back((queue.period, slot));
        }
        slot
    }

    /// Takes a lease out of both lists.
    pub fn remove(&mut self, slot: u32, queue: &mut QueueLeases, subscription: &mut List) -> Ended {
        self.pass(slot, queue);
        queue.by_position.remove(&self.get(slot).position);
        unlink(&mut self.slots, &mut queue.list, slot, |lease| &mut lease.of_queue);
        unlink(&mut self.slots, subscription, slot, |lease| &mut lease.of_subscription);
        self.unused.push(slot);
        let lease = self.get_mut(slot);
        if lease.extended {
            queue.extended.remove(&(lease.deadline, slot));
        }
        let Lease { ordinal, deliveries, cancels, taken, .. } = *lease;
        Ended { ordinal, deliveries, cancels, taken, classes: std::mem::take(&mut lease.classes) }
    }

    /// Gives a lease another end.
    pub fn extend(&mut self, slot: u32, deadline: u64, queue: &mut QueueLeases) {
        self.pass(slot, queue);
        let lease = self.get_mut(slot);
        if lease.extended {
            queue.extended.remove(&(lease.deadline, slot));
        }
        lease.extended = true;
        lease.deadline = deadline;
        queue.extended.insert((deadline, slot));
    }

    /// The lease of a queue that ends first, and when.
    pub fn next_due(&self, queue: &QueueLeases) -> Option<(u64, u32)> {
        let regular = queue.next_due.iter().map(|(_, slot)| (self.get(*slot).deadline, *slot));
        regular.chain(queue.extended.first().copied()).min().filter(|(deadline, _)| *deadline != u64::MAX)
    }

    /// Moves `next_due` beyond a lease that ends now or is about to be extended.
    fn pass(&mut self, slot: u32, queue: &mut QueueLeases) {
        let Some(at) = queue.next_due.iter().position(|(_, next)| *next == slot) else { return };
        let period = queue.next_due[at].0;
        let of_period = |slot: &u32| self.get(*slot).period == period;
        let mut next = self.after(slot).filter(of_period);
        while let Some(extended) = next.filter(|next| self.get(*next).extended) {
            next = self.after(extended).filter(of_period);
        }
        match next {
            Some(next) => queue.next_due[at].1 = next,
            None => drop(queue.next_due.remove(at)),
        }
    }
}

fn append(slots: &mut [Lease], list: &mut List, slot: u32, links: fn(&mut Lease) -> &mut Links) {
    *links(&mut slots[slot as usize]) = Links { before: list.last, after: NONE };
    match list.last {
        NONE => list.first = slot,
        last => links(&mut slots[last as usize]).after = slot,
    }
    list.last = slot;
}

fn unlink(slots: &mut [Lease], list: &mut List, slot: u32, links: fn(&mut Lease) -> &mut Links) {
    let Links { before, after } = std::mem::replace(links(&mut slots[slot as usize]), UNLINKED);
    match before {
        NONE => list.first = after,
        before => links(&mut slots[before as usize]).after = after,
    }
    match after {
        NONE => list.last = before,
        after => links(&mut slots[after as usize]).before = before,
    }
}
