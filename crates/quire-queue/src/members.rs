//! The subscriptions of one filter of a queue that have room, and which of them is next.
//!
//! Members are in the order of their creation. Members with room are bits: "first", "next after"
//! and "fewest outstanding" are found in a few words for any number of members. For the
//! proportional model there is one set of bits for every pair of backlog and outstanding count. So
//! a delivery or an acknowledgement moves one bit.

use std::cmp::Ordering;

use super::bits::Bits;
use super::config::FairnessModel;

/// How full a subscription is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub outstanding: u32,
    pub backlog: u32,
}

impl Load {
    /// Whether another message fits.
    pub fn has_room(self) -> bool {
        self.outstanding < self.backlog
    }

    /// Compares the parts in use exactly: 1 of 2 equals 2 of 4.
    fn cmp(self, other: Load) -> Ordering {
        let left = u64::from(self.outstanding) * u64::from(other.backlog);
        left.cmp(&(u64::from(other.outstanding) * u64::from(self.backlog)))
    }
}

/// A member that would get the next message, and the values by which it is compared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub subscription: u32,
    pub order: u64,
    load: Load,
}

#[derive(Debug)]
pub(super) struct Members {
    model: FairnessModel,
    /// In order of creation; `None` where one has left.
    members: Vec<Option<Member>>,
    /// The orders of the members, of those too that have left.
    orders: Vec<u64>,
    live: usize,
    /// Those with room.
    free: Bits,
    groups: Vec<Group>,
    /// Where round-robin continues: the first member after the cursor.
    hint: usize,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    subscription: u32,
    order: u64,
    load: Load,
    /// Its group, by the backlog, which stays as long as it is a member; 0 where the model needs no
    /// groups.
    group: usize,
}

/// The members with room that have the same backlog.
#[derive(Debug)]
struct Group {
    backlog: u32,
    /// Members with this backlog, with room or not.
    members: usize,
    /// By the outstanding count.
    levels: Vec<Bits>,
    occupied: Bits,
}

impl Members {
    pub fn new(model: FairnessModel) -> Self {
        Members {
            model,
            members: Vec::new(),
            orders: Vec::new(),
            live: 0,
            free: Bits::default(),
            groups: Vec::new(),
            hint: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether any member has room.
    pub fn any_free(&self) -> bool {
        self.free.len() > 0
    }

    /// Adds a member after all others and returns its index.
    pub fn add(&mut self, subscription: u32, order: u64, load: Load) -> u32 {
        let index = self.members.len();
        let group = if self.model == FairnessModel::Proportional { self.group_for(load.backlog) } else { 0 };
        if let Some(group) = self.groups.get_mut(group) {
            group.members += 1;
        }
        self.members.push(Some(Member { subscription, order, load, group }));
        self.orders.push(order);
        self.live += 1;
        if load.has_room() {
            self.free.insert(index);
            if let Some(group) = self.groups.get_mut(group) {
                group.enter(index, load.outstanding as usize);
            }
        }
        index as u32
    }

    /// Takes a member out; the indices of the others stay.
    pub fn remove(&mut self, index: u32) {
        let index = index as usize;
        let Some(Member { load, group, .. }) = self.members[index].take() else { return };
        self.live -= 1;
        self.free.remove(index);
        if let Some(group) = self.groups.get_mut(group) {
            group.members -= 1;
            if load.has_room() {
                group.leave(index, load.outstanding as usize);
            }
        }
    }

    /// Whether there are enough gaps that [`compact`](Self::compact) pays.
    pub fn is_sparse(&self) -> bool {
        self.members.len() > 64 && self.live * 2 < self.members.len()
    }

    /// Closes the gaps and reports every member with its new index.
    pub fn compact(&mut self, mut moved: impl FnMut(u32, u32)) {
        let members = std::mem::take(&mut self.members);
        *self = Members::new(self.model);
        for member in members.into_iter().flatten() {
            let index = self.add(member.subscription, member.order, member.load);
            moved(member.subscription, index);
        }
    }

    /// Records how many messages a member has outstanding now. Returns whether that gave it room or
    /// took the last of it.
    #[inline]
    pub fn set_outstanding(&mut self, index: u32, outstanding: u32) -> bool {
        let index = index as usize;
        let Some(member) = &mut self.members[index] else { return false };
        let before = member.load;
        member.load.outstanding = outstanding;
        let (had, has) = (before.has_room(), member.load.has_room());
        if let Some(group) = self.groups.get_mut(member.group) {
            if had {
                group.leave(index, before.outstanding as usize);
            }
            if has {
                group.enter(index, outstanding as usize);
            }
        }
        match (had, has) {
            (false, true) => self.free.insert(index),
            (true, false) => self.free.remove(index),
            _ => {}
        }
        had != has
    }

    /// The member that gets the next message, if any has room. `cursor` is the order of the
    /// subscription that got the last one.
    pub fn best(&mut self, cursor: u64) -> Option<Candidate> {
        let index = match self.model {
            FairnessModel::Fast => self.free.next(0),
            FairnessModel::RoundRobin => {
                self.hint = self.after(cursor);
                self.free.next(self.hint).or_else(|| self.free.next(0))
            }
            FairnessModel::Proportional => self.least_loaded(),
        }?;
        let Member { subscription, order, load, .. } = self.members[index]?;
        Some(Candidate { subscription, order, load })
    }

    /// Whether `left` gets the message rather than `right`, which matches it through another
    /// filter.
    pub fn prefers(model: FairnessModel, cursor: u64, left: &Candidate, right: &Candidate) -> bool {
        match model {
            FairnessModel::Fast => left.order < right.order,
            FairnessModel::RoundRobin => {
                (left.order <= cursor, left.order) < (right.order <= cursor, right.order)
            }
            FairnessModel::Proportional => {
                left.load.cmp(right.load).then(left.order.cmp(&right.order)).is_lt()
            }
        }
    }

    /// The index of the member with this order.
    pub fn find(&self, order: u64) -> Option<u32> {
        let index = self.orders.binary_search(&order).ok()?;
        self.members[index].map(|_| index as u32)
    }

    /// Whether any member that `is_meant` selects by its order can hold messages, now or when it
    /// has settled others.
    pub fn any_that_takes(&self, is_meant: impl Fn(u64) -> bool) -> bool {
        self.members.iter().flatten().any(|member| member.load.backlog > 0 && is_meant(member.order))
    }

    /// Takes the room of a member, if it has any. Gives how many messages it has outstanding, for
    /// `set_outstanding`.
    pub fn fill(&mut self, index: u32) -> Option<u32> {
        let Load { outstanding, backlog } = self.members[index as usize]?.load;
        (outstanding < backlog).then(|| {
            self.set_outstanding(index, backlog);
            outstanding
        })
    }

    /// All members, in order.
    pub fn subscriptions(&self) -> impl Iterator<Item = u32> {
        self.members.iter().flatten().map(|member| member.subscription)
    }

    /// The index of the first member created after `cursor`: usually where it was before, or one
    /// further.
    fn after(&self, cursor: u64) -> usize {
        let is_it = |index: usize| {
            self.orders.get(index).is_none_or(|order| *order > cursor)
                && index
                    .checked_sub(1)
                    .is_none_or(|before| self.orders.get(before).is_some_and(|order| *order <= cursor))
        };
        (self.hint..self.hint + 2)
            .find(|index| is_it(*index))
            .unwrap_or_else(|| self.orders.partition_point(|order| *order <= cursor))
    }

    fn least_loaded(&self) -> Option<usize> {
        let mut best: Option<(Load, usize)> = None;
        for group in &self.groups {
            let Some(outstanding) = group.occupied.next(0) else { continue };
            let Some(index) = group.levels[outstanding].next(0) else { continue };
            let load = Load { outstanding: outstanding as u32, backlog: group.backlog };
            let order = best.map(|best| load.cmp(best.0).then(index.cmp(&best.1)));
            if order.is_none_or(Ordering::is_lt) {
                best = Some((load, index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// The group for a backlog. An empty group is used again.
    fn group_for(&mut self, backlog: u32) -> usize {
        let has = |group: &Group| group.backlog == backlog;
        if let Some(at) = self.groups.iter().position(has) {
            return at;
        }
        let new = Group { backlog, members: 0, levels: Vec::new(), occupied: Bits::default() };
        match self.groups.iter().position(|group| group.members == 0) {
            Some(at) => {
                self.groups[at] = new;
                at
            }
            None => {
                self.groups.push(new);
                self.groups.len() - 1
            }
        }
    }
}

impl Group {
    #[inline]
    fn enter(&mut self, index: usize, outstanding: usize) {
        if self.levels.len() <= outstanding {
            self.levels.resize_with(outstanding + 1, Bits::default);
        }
        let level = &mut self.levels[outstanding];
        level.insert(index);
        if level.len() == 1 {
            self.occupied.insert(outstanding);
        }
    }

    #[inline]
    fn leave(&mut self, index: usize, outstanding: usize) {
        let level = &mut self.levels[outstanding];
        level.remove(index);
        if level.len() == 0 {
            self.occupied.remove(outstanding);
        }
    }
}
