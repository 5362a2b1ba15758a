//! One queue: its messages, its classes of subscriptions, and the choice of the next message and
//! its subscription.
//!
//! Each filter is evaluated once for a message. Messages are *admitted* in log order up to the
//! *frontier*, which stops before the first unreleased barrier. Every filter that is up to date is
//! asked in one question, and the answer is kept in the class of the filter. A new filter first
//! catches up with the messages that were admitted before. The next delivery is the first message,
//! in delivery order, of any class that has a member with room. All such classes that hold this
//! message offer their best member.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use super::class::{Class, Matches};
use super::config::{FairnessModel, QueueConfig};
use super::delay::Delays;
use super::event::{ExpiredBy, Matcher};
use super::id::FilterId;
use super::lapse::{Holder, Lapses};
use super::lease::{Leases, NONE, QueueLeases};
use super::members::{Candidate, Members};
use super::messages::{Key, MessageState, Messages, ordinal_of};
use super::ordinal_set::OrdinalSet;
use super::ranked_set::RankedSet;
use quire_journal::{Bookmark, Memory, Position};

#[derive(Debug)]
pub(super) struct QueueState {
    pub config: QueueConfig,
    pub model: FairnessModel,
    pub lease_ns: Option<u64>,
    pub messages: Messages,
    pub leases: QueueLeases,
    pub delays: Delays,
    pub lapses: Lapses,
    /// The first is the class without a filter, which always exists.
    classes: Vec<Option<Class>>,
    generations: Vec<u32>,
    by_filter: HashMap<FilterId, u32, FxBuildHasher>,
    /// The filters that have been asked about everything up to the frontier.
    filters: Vec<FilterId>,
    /// The classes whose filter has not.
    behind: Vec<u32>,
    /// The classes that have a match and a member with room, by their first match.
    ready: BTreeSet<(Key, u32)>,
    frontier: u64,
    /// Unreleased barriers, in log order; expired ones are dropped when they are first in the list.
    pub barriers: VecDeque<u64>,
    /// The order of the subscription that got the last message.
    cursor: u64,
    pub subscriptions: u64,
    pub last_position: u64,
    pub inactive: Inactive,
    pub totals: Totals,
    /// A reader follows the messages up to this position; `None`: there is no reader.
    pub followed_to: Option<u64>,
    /// Whether the queue is in the line of queues to be served.
    pub in_line: bool,
    /// A message that a filter had to be evaluated for was not available.
    pub is_starved: bool,
    /// Leases or messages whose time has come have not ended yet, because they are too many for one
    /// call.
    pub is_behind: bool,
    /// The queue was removed. The state is empty, and keeps the number for a queue that is added
    /// later.
    pub is_removed: bool,
    matched: Vec<FilterId>,
}

/// The messages beyond the target depth.
#[derive(Debug, Default)]
pub(super) struct Inactive {
    pub count: u64,
    pub last_position: u64,
    /// Positions acknowledged before their messages became active.
    pub deferred: OrdinalSet,
    /// Restored from the log, of messages that are to become active again.
    pub counts: BTreeMap<u64, Counts>,
}

/// How often a message was delivered and cancelled, and until when it is delayed, 0 when it is not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub deliveries: u32,
    pub cancels: u32,
    pub delayed_until: u64,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub entered: u64,
    pub delivered: u64,
    pub acknowledged: u64,
    pub cancelled: u64,
    pub expired: u64,
    pub expired_by: ExpiredBy,
    pub expired_leases: u64,
    pub taken: u64,
    pub released: u64,
}

/// A message, the subscription that gets it, and the classes that had the message.
pub(super) struct Pick {
    pub ordinal: u64,
    pub subscription: u32,
    pub classes: Vec<(u32, u32)>,
}

impl QueueState {
    pub fn new(config: QueueConfig, memory: &Memory) -> Self {
        let model = config.fairness();
        let mut state = QueueState {
            model,
            lease_ns: config.lease_period.map(super::config::nanoseconds),
            messages: Messages::new(config.priority, memory),
            leases: QueueLeases::default(),
            delays: Delays::default(),
            lapses: Lapses::default(),
            classes: Vec::new(),
            generations: Vec::new(),
            by_filter: HashMap::default(),
            filters: Vec::new(),
            behind: Vec::new(),
            ready: BTreeSet::new(),
            frontier: 0,
            barriers: VecDeque::new(),
            cursor: 0,
            subscriptions: 0,
            last_position: 0,
            inactive: Inactive::default(),
            totals: Totals::default(),
            followed_to: None,
            in_line: false,
            is_starved: false,
            is_behind: false,
            is_removed: false,
            matched: Vec::new(),
            config,
        };
        state.add_class(
            None,
            if state.config.priority { Matches::Ranked(RankedSet::new(memory)) } else { Matches::All },
        );
        state
    }

    /// The state of a removed queue.
    pub fn removed() -> Self {
        QueueState { is_removed: true, ..QueueState::new(QueueConfig::default(), &Memory::heap()) }
    }

    /// Returns the class of a filter. Makes it if the queue has no such class.
    pub fn class_for(&mut self, filter: Option<FilterId>) -> u32 {
        let Some(id) = filter else { return 0 };
        if let Some(class) = self.by_filter.get(&id) {
            return *class;
        }
        let matches = match self.config.priority {
            true => Matches::Ranked(RankedSet::new(self.messages.memory())),
            false => Matches::Fifo(OrdinalSet::default()),
        };
        let class = self.add_class(filter, matches);
        self.by_filter.insert(id, class);
        self.behind.push(class);
        class
    }

    pub fn class_mut(&mut self, class: u32) -> Option<&mut Class> {
        self.classes.get_mut(class as usize)?.as_mut()
    }

    pub fn classes(&self) -> impl Iterator<Item = &Class> {
        self.classes.iter().flatten()
    }

    /// Filters that have not been asked about everything up to the first barrier.
    pub fn catching_up(&self) -> u64 {
        let end = self.barriers.front().copied().unwrap_or(self.messages.next_ordinal());
        let others = if self.frontier < end { self.filters.len() } else { 0 };
        (self.behind.len() + others) as u64
    }

    /// Removes a class without members.
    pub fn drop_if_empty(&mut self, class: u32) {
        let filter = match &self.classes[class as usize] {
            Some(Class { filter: Some(filter), members, .. }) if members.len() == 0 => *filter,
            _ => return,
        };
        if let Some(Class { ready: Some(key), .. }) = self.classes[class as usize].take() {
            self.ready.remove(&(key, class));
        }
        self.generations[class as usize] += 1;
        self.by_filter.remove(&filter);
        self.filters.retain(|other| *other != filter);
        self.behind.retain(|other| *other != class);
    }

    /// Puts the class under its first match among the ready ones, or takes it from there.
    pub fn settle_class(&mut self, class: u32) {
        let ranked = self.config.priority;
        let Some(entry) = self.classes[class as usize].as_mut() else { return };
        let may = entry.members.any_free() && (!ranked || entry.scanned == UP_TO_DATE);
        let key = if may { entry.matches.first() } else { None };
        if key != entry.ready {
            if let Some(old) = std::mem::replace(&mut entry.ready, key) {
                self.ready.remove(&(old, class));
            }
            if let Some(new) = key {
                self.ready.insert((new, class));
            }
        }
    }

    /// Gives a returned message back to the classes that had it. Returns the time of the next event
    /// of the message.
    pub fn give_back(&mut self, ordinal: u64, classes: &[(u32, u32)], now: u64) -> u64 {
        self.messages.give_back(ordinal);
        let key = self.messages.key(ordinal);
        for (class, generation) in classes {
            if let Some(Some(entry)) = self.classes.get_mut(*class as usize)
                && entry.generation == *generation
            {
                entry.matches.insert(key, &self.messages);
                self.settle_class(*class);
            }
        }
        let expires = self.messages.expires(ordinal);
        match self.lease_ns {
            Some(period) if !self.lapses.is_empty() => {
                expires.min(self.lapses.wait(ordinal, now.saturating_add(period)))
            }
            _ => expires,
        }
    }

    /// A subscription let its lease on a message run out.
    pub fn note_lapse(&mut self, ordinal: u64, holder: Holder) {
        let is_member = |other: &Holder| member(&self.classes, other).is_some();
        self.lapses.note(ordinal, holder, is_member);
    }

    /// Delays a message that waited or was leased, and keeps its `classes`. Returns the time of the
    /// next event of the message.
    pub fn delay(&mut self, ordinal: u64, until: u64, classes: Vec<(u32, u32)>) -> u64 {
        self.messages.set_aside(ordinal);
        let expires = self.messages.expires(ordinal);
        self.delays.insert(ordinal, until, expires, classes);
        until.min(expires)
    }

    /// Takes a message out of the queue. Gives its bookmark, if it has one.
    #[inline]
    pub fn remove(&mut self, ordinal: u64) -> Option<Bookmark> {
        let bookmark = self.messages.remove(ordinal);
        if !self.delays.is_empty() {
            self.delays.remove(ordinal);
        }
        if !self.lapses.is_empty() {
            self.lapses.remove(ordinal);
        }
        bookmark
    }

    /// The first unreleased barrier that has not expired.
    pub fn barrier(&mut self) -> Option<u64> {
        while let Some(ordinal) = self.barriers.front().copied() {
            if self.messages.state(ordinal) != MessageState::Gone {
                return Some(ordinal);
            }
            self.barriers.pop_front();
        }
        None
    }

    /// Admits messages and lets new filters catch up, asking about at most `budget` messages.
    /// Returns whether all is done.
    pub fn admit(&mut self, matcher: &mut dyn Matcher, budget: &mut u32) -> bool {
        self.catch_up(matcher, budget) && self.advance_frontier(matcher, budget)
    }

    /// The next delivery, if there is one.
    pub fn pick(&mut self, leases: &mut Leases) -> Option<Pick> {
        if self.config.max_backlog.is_some_and(|limit| self.leases.len() >= limit as usize) {
            return None;
        }
        if !self.lapses.is_empty() {
            return self.pick_for_another(leases);
        }
        let key = self.first_deliverable(leases)?;
        self.choose(key)
    }

    /// As [`pick`](Self::pick), while leases have run out. A message that waits for another
    /// subscription takes the room of the subscriptions whose lease on it ran out, for the time of
    /// this choice. So they do not get a later message before it.
    #[cold]
    fn pick_for_another(&mut self, leases: &mut Leases) -> Option<Pick> {
        let mut filled = Vec::new();
        let mut pick = None;
        while let Some(key) = self.first_deliverable(leases) {
            if !self.fill_holders(ordinal_of(key), &mut filled) {
                pick = self.choose(key);
                break;
            }
        }
        for (class, index, outstanding) in filled {
            if let Some(entry) = self.class_mut(class) {
                entry.members.set_outstanding(index, outstanding);
            }
            self.settle_class(class);
        }
        if let Some(pick) = &pick {
            self.lapses.end_wait(pick.ordinal);
        }
        pick
    }

    /// Takes the room of the subscriptions that let leases on this message run out, if it waits for
    /// another subscription and there is one that takes messages: without a filter, or with the
    /// filter of one of them. Returns whether any had room.
    fn fill_holders(&mut self, ordinal: u64, filled: &mut Vec<(u32, u32, u32)>) -> bool {
        let Some(holders) = self.lapses.waiting(ordinal) else { return false };
        let members: Vec<(u32, u32)> = holders
            .iter()
            .filter_map(|holder| Some((holder.class, member(&self.classes, holder)?)))
            .collect();
        let is_another = |order| holders.iter().all(|holder| holder.order != order);
        let mut classes = members.iter().map(|(class, _)| *class).chain([0]);
        let takes = |class: u32| {
            let class = self.classes[class as usize].as_ref();
            class.is_some_and(|class| class.members.any_that_takes(is_another))
        };
        if !classes.any(takes) {
            return false;
        }
        let before = filled.len();
        for (class, index) in members {
            let outstanding = self.class_mut(class).and_then(|entry| entry.members.fill(index));
            if let Some(outstanding) = outstanding {
                filled.push((class, index, outstanding));
                self.settle_class(class);
            }
        }
        filled.len() > before
    }

    /// The delivery of a message: the best member of the classes that hold it.
    fn choose(&mut self, key: Key) -> Option<Pick> {
        let mut best = None;
        if !self.config.priority
            && let Some(everything) = &mut self.classes[0]
        {
            best = everything.members.best(self.cursor);
        }
        let classes = if self.ready.is_empty() { Vec::new() } else { self.ask_ready(key, &mut best) };
        let best = best?;
        self.cursor = best.order;
        Some(Pick { ordinal: ordinal_of(key), subscription: best.subscription, classes })
    }

    /// The classes of filters whose first match this is, which have it no longer; a member of
    /// theirs may be `best`.
    fn ask_ready(&mut self, key: Key, best: &mut Option<Candidate>) -> Vec<(u32, u32)> {
        let (model, cursor) = (self.model, self.cursor);
        let candidates: SmallVec<[u32; 8]> =
            self.ready.range((key, 0)..=(key, NONE)).map(|(_, class)| *class).collect();
        for class in &candidates {
            let candidate = self.class_mut(*class).and_then(|class| class.members.best(cursor));
            if let Some(candidate) = candidate
                && best.as_ref().is_none_or(|best| Members::prefers(model, cursor, &candidate, best))
            {
                *best = Some(candidate);
            }
        }
        let mut known = Vec::with_capacity(candidates.len());
        for class in candidates {
            known.push((class, self.generations[class as usize]));
            if let Some(entry) = self.class_mut(class) {
                entry.matches.remove(key);
            }
            self.settle_class(class);
        }
        known
    }

    /// The subscriptions that get a barrier; `None` when filters must be evaluated and the message
    /// is not available.
    pub fn barrier_subscriptions(&mut self, ordinal: u64, matcher: &mut dyn Matcher) -> Option<Vec<u32>> {
        let position = Position::new(self.messages.position(ordinal));
        let filters: Vec<FilterId> = self.classes().filter_map(|class| class.filter).collect();
        let mut matched = Vec::new();
        if !filters.is_empty() {
            if !matcher.is_at_hand(position) {
                self.is_starved = true;
                return None;
            }
            matcher.matching(position, &filters, &mut matched);
        }
        matched.sort_unstable();
        let takes = |class: &&Class| class.filter.is_none_or(|filter| matched.binary_search(&filter).is_ok());
        Some(self.classes().filter(takes).flat_map(|class| class.members.subscriptions()).collect())
    }

    fn add_class(&mut self, filter: Option<FilterId>, matches: Matches) -> u32 {
        let slot = self.classes.iter().skip(1).position(Option::is_none).map(|slot| slot + 1);
        let slot = slot.unwrap_or_else(|| {
            self.classes.push(None);
            self.generations.push(0);
            self.classes.len() - 1
        });
        self.classes[slot] = Some(Class {
            filter,
            generation: self.generations[slot],
            members: Members::new(self.model),
            matches,
            scanned: if filter.is_none() { UP_TO_DATE } else { 0 },
            ready: None,
        });
        slot as u32
    }

    fn catch_up(&mut self, matcher: &mut dyn Matcher, budget: &mut u32) -> bool {
        while let Some(slot) = self.behind.last().copied() {
            let Some(class) = self.classes[slot as usize].as_mut() else {
                self.behind.pop();
                continue;
            };
            let Some(filter) = class.filter else { break };
            let done = loop {
                let Some(ordinal) =
                    self.messages.next_present(class.scanned).filter(|next| *next < self.frontier)
                else {
                    break true;
                };
                if *budget == 0 {
                    break false;
                }
                let position = Position::new(self.messages.position(ordinal));
                if !matcher.is_at_hand(position) {
                    self.is_starved = true;
                    break false;
                }
                *budget -= 1;
                class.scanned = ordinal + 1;
                if matcher.matches(position, filter) {
                    class.matches.insert(self.messages.key(ordinal), &self.messages);
                }
            };
            if done {
                class.scanned = UP_TO_DATE;
                self.behind.pop();
                self.filters.push(filter);
            }
            self.settle_class(slot);
            if !done {
                return false;
            }
        }
        true
    }

    fn advance_frontier(&mut self, matcher: &mut dyn Matcher, budget: &mut u32) -> bool {
        let end = self.barrier().unwrap_or(self.messages.next_ordinal());
        if self.frontier == end {
            return true;
        }
        if self.filters.is_empty() && !self.config.priority {
            self.frontier = end;
            return true;
        }
        while let Some(ordinal) = self.next_to_admit().filter(|next| *next < end) {
            if *budget == 0 {
                return false;
            }
            let position = Position::new(self.messages.position(ordinal));
            if !self.filters.is_empty() && !matcher.is_at_hand(position) {
                self.is_starved = true;
                return false;
            }
            *budget -= 1;
            self.frontier = ordinal + 1;
            let key = self.messages.key(ordinal);
            if self.config.priority {
                self.learn(0, key);
            }
            if !self.filters.is_empty() {
                let mut matched = std::mem::take(&mut self.matched);
                matcher.matching(position, &self.filters, &mut matched);
                for filter in matched.drain(..) {
                    if let Some(class) = self.by_filter.get(&filter).copied() {
                        self.learn(class, key);
                    }
                }
                self.matched = matched;
            }
        }
        self.frontier = end;
        true
    }

    /// The first message that was not admitted. A delayed one is among them after a restart.
    fn next_to_admit(&self) -> Option<u64> {
        match self.delays.is_empty() {
            true => self.messages.next_waiting(self.frontier),
            false => self.messages.next_present(self.frontier),
        }
    }

    /// Notes that a message matches a class.
    fn learn(&mut self, class: u32, key: Key) {
        if let Some(entry) = self.classes[class as usize].as_mut() {
            entry.matches.insert(key, &self.messages);
            self.settle_class(class);
        }
    }

    /// The first message in delivery order that a class with room holds. Matches that are gone or
    /// leased are dropped on the way.
    fn first_deliverable(&mut self, leases: &mut Leases) -> Option<Key> {
        let everything =
            !self.config.priority && self.classes[0].as_ref().is_some_and(|class| class.members.any_free());
        let first = match everything {
            true => {
                self.messages.first_waiting().filter(|first| *first < self.frontier).map(|first| (0, first))
            }
            false => None,
        };
        while let Some((key, class)) = self.ready.first().copied() {
            if first.is_some_and(|first| first < key) {
                break;
            }
            let ordinal = ordinal_of(key);
            match self.messages.state(ordinal) {
                MessageState::Waiting => return Some(key),
                MessageState::Leased => {
                    let known = (class, self.generations[class as usize]);
                    match self.leases.find(self.messages.position(ordinal)) {
                        Some(slot) => leases.get_mut(slot).classes.push(known),
                        None => self.delays.note_class(ordinal, known),
                    }
                }
                MessageState::Gone => {}
            }
            if let Some(entry) = self.class_mut(class) {
                entry.matches.remove(key);
            }
            self.settle_class(class);
        }
        first
    }
}

/// The index of a subscription in its class, as long as it is a member.
fn member(classes: &[Option<Class>], holder: &Holder) -> Option<u32> {
    classes.get(holder.class as usize)?.as_ref()?.members.find(holder.order)
}

/// `Class::scanned` of a class that has been asked about everything up to the frontier.
const UP_TO_DATE: u64 = u64::MAX;
