//! Records what clients of several instances were told, and checks whether it was true.
//!
//! Checked (R1 and so on are the names of the invariants):
//! - P2: a message that was acknowledged is in the log of every instance whose copy the
//!   acknowledgement counted, as long as the disk of that instance was not lost or replaced by an
//!   older one.
//! - R1: after everything has healed, the instances have the same messages and deletes of each
//!   publisher, once each. They are in the order of the publisher, except for *late* ones.
//! - R2: an instance that starts with an empty or an older disk makes no other instance lose a
//!   message.
//! - B1, B2: a subscriber that fails over sees the messages of each publisher, each once, and in
//!   the end all of them. They are in their order, except for late ones.
//! - The records of the last-value topic are the same everywhere: those that its publishers wrote
//!   last. Several publishers write the *shared* keys, on several instances at a time. Of these,
//!   each instance has the record that is the last one in its own log, and the instances may differ
//!   (docs/replication.md, *What is sent*).
//! - No instance says that two messages have one bookmark.
//! - A message that no link sends, because of a filter, is on no instance to which its publisher
//!   did not send it.
//!
//! A publisher leaves a *gap* when it logs on to an instance that lacks messages of it which were
//! acknowledged. It publishes above the gap, and the messages in it arrive late
//! (docs/replication.md, *What is sent*). That is an error where every destination is waited for
//! and no disk was lost. Subscribers need not see the messages in a gap, and last values need not
//! have them.
//!
//! A subscriber *returns* when it logs on to an instance on which it was before the disk of that
//! instance was lost or replaced. Only then may it miss messages, or receive them again.
//!
//! A subscriber may miss messages of journal files that were removed while it was not connected to
//! the instance. When its bookmark was in such a file, it counts as one that returns.

use std::collections::{BTreeMap, BTreeSet};

use quire_journal::{Bookmark, PublisherId};

use super::queue::{Connection, Deliveries};
use super::topology::{Instances, Topology, name_of};
use crate::random::Random;
use crate::world::Canary;
use crate::world::auditor::value_of;
use crate::world::played::Played;

/// Keys that each publisher writes.
pub(in crate::world) const KEYS: u64 = 5;

/// Keys that all publishers write, and the first of them.
pub(in crate::world) const SHARED_KEYS: u64 = 2;
pub(in crate::world) const FIRST_SHARED_KEY: u64 = 1_000;

/// A record of the log of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::world) struct Logged {
    pub publisher: u64,
    pub sequence: u64,
    /// The number of the message; `None`: it is a delete.
    pub value: Option<u64>,
    /// It is a delete of a record.
    pub removes: bool,
    /// The log had later messages of its publisher.
    pub is_late: bool,
    /// The sequence that the publisher used before.
    pub follows: u64,
    /// It passed more than one instance.
    pub is_passed_on: bool,
    /// The order of the changes of a key on all instances: a time, and the instance that took the
    /// message from its publisher.
    pub stamp: (u64, String),
}

/// Records of the last-value topic: numbers of messages by key. `None`: unknown.
pub(in crate::world) type Values = BTreeMap<u64, Option<u64>>;

pub(in crate::world) struct Auditor {
    canary: Option<Canary>,
    random: Random,
    is_strict: bool,
    has_filter: bool,
    publishers: Vec<Publisher>,
    by_id: BTreeMap<u64, usize>,
    /// Of every message, its publisher and its place among the operations of the publisher.
    values: Vec<(usize, usize)>,
    /// When the disk of an instance was lost or replaced last.
    replaced_at: Vec<Option<u64>>,
    streams: Vec<Stream>,
    /// Of each instance, the messages in removed journal files.
    removed: Vec<BTreeSet<u64>>,
    /// The checks of the queue of each instance.
    pub queues: Vec<Deliveries>,
    excused_count: u64,
    late_count: u64,
    differing_count: u64,
    delivered_count: u64,
    pub view_count: u64,
    pub difference_count: u64,
    fault: Option<String>,
}

struct Publisher {
    /// In the order of their sequences, from 1 on.
    operations: Vec<Operation>,
    acknowledged: u64,
    /// Up to here, every instance that an acknowledgement counts has the messages.
    counted: u64,
    /// When it logged on, and to which instance.
    logons: Vec<(u64, usize)>,
    /// The first and the last sequence of each gap.
    gaps: Vec<(u64, u64)>,
}

impl Publisher {
    fn is_in_gap(&self, sequence: u64) -> bool {
        self.gaps.iter().any(|(first, last)| (*first..=*last).contains(&sequence))
    }

    /// The time of its last logon.
    fn since_ns(&self) -> u64 {
        self.logons.last().map_or(0, |(ns, _)| *ns)
    }

    /// The instances to which it can have sent an operation that began at a time.
    fn reached_since(&self, begun_ns: u64) -> Instances {
        let later = self.logons.partition_point(|(ns, _)| *ns <= begun_ns);
        self.logons[later.saturating_sub(1)..].iter().fold(0, |all, (_, instance)| all | 1 << instance)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::world) enum Action {
    /// A message of an ordinary topic.
    Order,
    /// A record of the last-value topic.
    Value { key: u64 },
    /// A delete of such a record.
    Delete { key: u64 },
    /// A message of the topic that links filter. `is_sent`: it passes the filter.
    Part { is_sent: bool },
}

struct Operation {
    action: Action,
    value: Option<u64>,
    begun_ns: u64,
    /// The instances that certainly have it; `None`: it was not acknowledged.
    holders: Option<Instances>,
}

impl Operation {
    /// No link sends it.
    fn is_local(&self, has_filter: bool) -> bool {
        has_filter && self.action == Action::Part { is_sent: false }
    }
}

/// The messages that a subscriber saw.
#[derive(Default)]
struct Stream {
    name: String,
    /// The last sequence of each publisher.
    last: Vec<u64>,
    seen: BTreeSet<u64>,
    /// The instance to which it logged on last, and whether it has got a message since.
    at: Option<(usize, bool)>,
    /// Messages that came after a later one of their publisher: publisher, sequence, and that of
    /// the later one.
    late: Vec<(usize, u64, u64)>,
    /// Messages that it need not see.
    excused: BTreeSet<u64>,
    /// When it was first on each instance.
    visits: BTreeMap<usize, u64>,
    /// It was on an instance before and after the disk was lost or replaced: docs/replication.md,
    /// *The cost of a fault*.
    has_returned: bool,
}

/// The messages that have different stamps in different logs, by publisher and sequence: their
/// client sent them to two instances.
fn taken_twice(logs: &[Vec<Logged>]) -> BTreeSet<(u64, u64)> {
    let mut stamps = BTreeMap::new();
    let mut twice = BTreeSet::new();
    for record in logs.iter().flatten() {
        let bookmark = (record.publisher, record.sequence);
        if *stamps.entry(bookmark).or_insert(&record.stamp) != &record.stamp {
            twice.insert(bookmark);
        }
    }
    twice
}

impl Auditor {
    pub fn new(canary: Option<Canary>, seed: u64, topology: &Topology) -> Self {
        Auditor {
            canary,
            random: Random::new(seed),
            is_strict: topology.is_strict(),
            has_filter: topology.has_filter(),
            by_id: BTreeMap::new(),
            publishers: Vec::new(),
            values: Vec::new(),
            replaced_at: vec![None; topology.count()],
            streams: Vec::new(),
            removed: vec![BTreeSet::new(); topology.count()],
            queues: (0..topology.count()).map(|_| Deliveries::default()).collect(),
            excused_count: 0,
            late_count: 0,
            differing_count: 0,
            delivered_count: 0,
            view_count: 0,
            difference_count: 0,
            fault: None,
        }
    }

    /// A client is going to publish.
    pub fn add_publisher(&mut self, name: &str) {
        self.by_id.insert(PublisherId::of_client_name(name).get(), self.publishers.len());
        self.publishers.push(Publisher {
            operations: Vec::new(),
            acknowledged: 0,
            counted: 0,
            logons: Vec::new(),
            gaps: Vec::new(),
        });
    }

    /// A client is going to subscribe. All publishers are known.
    pub fn add_stream(&mut self, name: &str) {
        let count = self.publishers.len();
        self.streams.push(Stream { name: name.to_owned(), last: vec![0; count], ..Stream::default() });
    }

    /// The events that it saw.
    pub fn played(&self) -> Played {
        Played {
            published: self.values.len() as u64,
            delivered: self.delivered_count,
            torn: self.publishers.iter().filter(|publisher| !publisher.gaps.is_empty()).count() as u64,
            late: self.late_count,
            differing: self.differing_count,
            excused: self.excused_count,
            shared_jobs: self.queues.iter().map(|queue| queue.delivered_count).sum(),
            shared_acknowledged: self.queues.iter().map(|queue| queue.acknowledged_count).sum(),
            shared_views: self.view_count,
            shared_differences: self.difference_count,
            ..Played::default()
        }
    }

    pub fn is_meant(&mut self, canary: Canary, percent: u64) -> bool {
        self.canary == Some(canary) && self.random.percent(percent)
    }

    pub fn fail(&mut self, reason: String) {
        self.fault.get_or_insert(reason);
    }

    pub fn fault(&self) -> Result<(), String> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    // Publishers.

    /// The number of the next message.
    pub fn next_value(&self) -> u64 {
        self.values.len() as u64
    }

    /// The number of the message with a bookmark.
    pub fn value_at(&self, bookmark: Bookmark) -> Option<u64> {
        let publisher = self.by_id.get(&bookmark.publisher.get())?;
        let place = usize::try_from(bookmark.sequence.checked_sub(1)?).ok()?;
        self.publishers[*publisher].operations.get(place)?.value
    }

    /// The client core has taken an operation.
    pub fn taken(&mut self, publisher: usize, sequence: u64, action: Action, now_ns: u64) {
        let operations = &mut self.publishers[publisher].operations;
        if sequence != operations.len() as u64 + 1 {
            let expected = operations.len() + 1;
            return self.fail(format!("publisher {publisher} numbers {sequence} where {expected} follows"));
        }
        let is_message = !matches!(action, Action::Delete { .. });
        let value = is_message.then_some(self.values.len() as u64);
        if is_message {
            self.values.push((publisher, operations.len()));
        }
        operations.push(Operation { action, value, begun_ns: now_ns, holders: None });
    }

    /// An instance let the publisher in, and told the highest sequence that it has.
    pub fn logged_on(&mut self, publisher: usize, instance: usize, highest: u64, now_ns: u64) {
        let was_lost = self.replaced_at.iter().any(Option::is_some);
        let has_filter = self.has_filter;
        let known = &mut self.publishers[publisher];
        known.logons.push((now_ns, instance));
        let goes_on = |operation: &Operation| !operation.is_local(has_filter);
        let lacked = known.operations.get(highest as usize..known.acknowledged as usize);
        if !lacked.is_some_and(|lacked| lacked.iter().any(goes_on)) {
            return;
        }
        let counted = known.counted;
        if self.is_strict && !was_lost && highest < counted {
            self.fail(format!(
                "{} has publisher {publisher} up to {highest}, and every instance had acknowledged {counted}",
                name_of(instance)
            ));
        } else {
            known.gaps.push((highest + 1, known.acknowledged));
        }
    }

    /// An instance has acknowledged everything up to a sequence. `counted` gives the instances that
    /// have what was begun at a time. `directly` gives those of them to which the instance sends
    /// itself, where it sends to all others itself.
    pub fn acknowledged(
        &mut self,
        publisher: usize,
        sequence: u64,
        by: usize,
        counted: &dyn Fn(u64) -> Instances,
        directly: &dyn Fn(u64) -> Option<Instances>,
    ) {
        let has_filter = self.has_filter;
        let known = &mut self.publishers[publisher];
        let since_ns = known.since_ns();
        for number in known.acknowledged..sequence.min(known.operations.len() as u64) {
            let operation = &mut known.operations[number as usize];
            let was_in_flight = operation.begun_ns < since_ns;
            let mut holders = 1 << by;
            if operation.is_local(has_filter) {
                // An instance has everything up to a sequence that it got by a link. Those before
                // it which links do not send are elsewhere.
                holders = if was_in_flight { 0 } else { holders };
            } else {
                // It was in flight when the publisher failed over. The first instance may have sent
                // it here. Then it is not sent back to the first one, and an instance further on
                // may still wait for it from there.
                let reached = match was_in_flight {
                    true => directly(operation.begun_ns),
                    false => Some(counted(operation.begun_ns)),
                };
                if let Some(reached) = reached {
                    holders = reached;
                    known.counted = known.counted.max(number + 1);
                }
            }
            for (instance, replaced_at) in self.replaced_at.iter().enumerate() {
                if replaced_at.is_some_and(|at| at >= operation.begun_ns) {
                    holders &= !(1 << instance);
                }
            }
            operation.holders = Some(holders);
        }
        known.acknowledged = known.acknowledged.max(sequence);
    }

    /// The disk of an instance is lost, or replaced by the copy of a time. `others` are the logs of
    /// the instances that run.
    pub fn replaced(
        &mut self,
        instance: usize,
        now_ns: u64,
        copied_ns: Option<u64>,
        others: &[(usize, Vec<Logged>)],
    ) {
        self.replaced_at[instance] = Some(now_ns);
        self.queues[instance].replaced(now_ns, copied_ns);
        let mut elsewhere: BTreeMap<(usize, u64), Instances> = BTreeMap::new();
        for (other, log) in others.iter().filter(|(other, _)| *other != instance) {
            for record in log {
                if let Some(publisher) = self.by_id.get(&record.publisher) {
                    *elsewhere.entry((*publisher, record.sequence)).or_default() |= 1 << other;
                }
            }
        }
        for (number, publisher) in self.publishers.iter_mut().enumerate() {
            for (sequence, operation) in (1..).zip(&mut publisher.operations) {
                let Some(holders) = &mut operation.holders else { continue };
                *holders &= !(1 << instance);
                if *holders == 0 {
                    // An instance that was filled again has it.
                    *holders = elsewhere.get(&(number, sequence)).copied().unwrap_or_default();
                }
            }
        }
    }

    /// An instance says that another message has the bookmark. Each publisher has one run.
    pub fn conflicted(&mut self, instance: usize, bookmark: Bookmark) {
        self.fail(format!("{} says that two messages have the bookmark {bookmark}", name_of(instance)));
    }

    // Workers of the queue that each instance has over replicated topics.

    /// The queue of an instance delivered a message.
    pub fn delivered(&mut self, connection: Connection, value: u64) {
        if self.is_meant(Canary::LostJob, 1) {
            return;
        }
        let instance = connection.instance;
        let result = self.queues[instance].delivered(value, connection);
        if let Err(reason) = result {
            self.fail(format!("the queue of {}: {reason}", name_of(instance)));
        }
    }

    // Subscribers.

    pub fn received(&mut self, stream: usize, instance: usize, bookmark: Option<Bookmark>, data: &[u8]) {
        self.delivered_count += 1;
        if self.is_meant(Canary::SkippedRecord, 2) {
            return;
        }
        if let Err(reason) = self.look_at(stream, bookmark, data) {
            let name = &self.streams[stream].name;
            let reason = format!("{name} on {}: {reason}", name_of(instance));
            self.fail(reason);
        }
    }

    fn look_at(&mut self, stream: usize, bookmark: Option<Bookmark>, data: &[u8]) -> Result<(), String> {
        let bookmark = bookmark.ok_or("a message has no bookmark")?;
        let value = value_of(data).ok_or("a message that nobody published")?;
        let &(publisher, place) = self.values.get(value as usize).ok_or("a message of the future")?;
        let id = self.by_id.get(&bookmark.publisher.get());
        if id != Some(&publisher) || bookmark.sequence != place as u64 + 1 {
            return Err(format!(
                "bookmark {bookmark} names message {value}, which is {publisher}|{}|",
                place + 1
            ));
        }
        let Stream { last, seen, has_returned, at, late, .. } = &mut self.streams[stream];
        if let Some((_, is_served)) = at {
            *is_served = true;
        }
        if *has_returned {
            seen.insert(value);
            return Ok(());
        }
        if !seen.insert(value) {
            return Err(format!("message {value} ({publisher}|{}|) came twice", bookmark.sequence));
        }
        let before = last[publisher];
        last[publisher] = before.max(bookmark.sequence);
        if before > bookmark.sequence {
            late.push((publisher, bookmark.sequence, before));
        }
        Ok(())
    }

    /// An instance lacks the place of a subscriber, which begins again there. It then forgets what
    /// it had from each publisher.
    pub fn bookmark_missing(&mut self, stream: usize, instance: usize) {
        let has_removed = !self.removed[instance].is_empty();
        self.streams[stream].has_returned |= has_removed || self.replaced_at[instance].is_some();
    }

    /// The removal of a journal file with these messages was begun.
    pub fn removing(&mut self, instance: usize, values: &[u64]) {
        self.removed[instance].extend(values);
        for stream in self.streams.iter_mut().filter(|stream| stream.at == Some((instance, false))) {
            stream.excused.extend(values);
        }
    }

    /// A subscriber has logged on.
    pub fn arrived(&mut self, stream: usize, instance: usize, now_ns: u64) {
        let (stream, replaced_at) = (&mut self.streams[stream], self.replaced_at[instance]);
        let first_ns = *stream.visits.entry(instance).or_insert(now_ns);
        // The log of the instance may have another order than before.
        stream.has_returned |= replaced_at.is_some_and(|at| first_ns <= at);
        stream.at = Some((instance, false));
        stream.excused.extend(&self.removed[instance]);
    }

    // The end.

    /// The records of the last-value topic that must be there at the end on each instance.
    pub fn last_values(&self, logs: &[Vec<Logged>]) -> Vec<Values> {
        let own = self.last_values_of_publishers();
        let shared = logs.iter().map(|log| self.shared_values(log));
        shared.map(|shared| own.iter().chain(&shared).map(|(key, value)| (*key, *value)).collect()).collect()
    }

    /// The records of the keys that only one publisher writes.
    fn last_values_of_publishers(&self) -> Values {
        let mut state = BTreeMap::new();
        for publisher in &self.publishers {
            for (sequence, operation) in (1..).zip(&publisher.operations) {
                let (key, value) = match operation.action {
                    Action::Value { key } => (key, Some(operation.value)),
                    Action::Delete { key } => (key, None),
                    Action::Order | Action::Part { .. } => continue,
                };
                if key >= FIRST_SHARED_KEY {
                    continue;
                }
                // A delete names the records that its instance had, so one after a gap may leave
                // the record of the gap elsewhere.
                let was_unknown = value.is_none() && state.get(&key) == Some(&None);
                let is_unknown = publisher.is_in_gap(sequence) || was_unknown;
                match value {
                    _ if is_unknown => state.insert(key, None),
                    Some(value) => state.insert(key, value),
                    None => state.remove(&key),
                };
            }
        }
        state
    }

    /// The records of the shared keys of an instance. A change replaces one of the same publisher,
    /// and those with a lower stamp.
    fn shared_values(&self, log: &[Logged]) -> Values {
        let mut state: BTreeMap<u64, (&Logged, &(u64, String))> = BTreeMap::new();
        for record in log {
            let publisher = self.by_id.get(&record.publisher).map(|number| &self.publishers[*number]);
            let operation = publisher.and_then(|known| known.operations.get(record.sequence as usize - 1));
            let key = match operation.map(|operation| operation.action) {
                Some(Action::Value { key }) => key,
                Some(Action::Delete { key }) if record.removes => key,
                _ => continue,
            };
            if key < FIRST_SHARED_KEY {
                continue;
            }
            let (last, stamp) = *state.entry(key).or_insert((record, &record.stamp));
            let is_own = last.publisher == record.publisher;
            if is_own && last.sequence > record.sequence {
                continue;
            }
            if is_own || *stamp <= record.stamp {
                state.insert(key, (record, stamp.max(&record.stamp)));
            }
        }
        let records = state.into_iter().filter(|(_, (record, _))| record.value.is_some());
        records.map(|(key, (record, _))| (key, record.value)).collect()
    }

    /// Counts the shared keys whose records differ. They may differ only when a message of the key
    /// is not on all instances, or when two of them took it from its publisher.
    ///
    /// # Errors
    /// A record differs otherwise.
    fn count_differing(&self, logs: &[Vec<Logged>]) -> Result<u64, String> {
        let states: Vec<_> = logs.iter().map(|log| self.shared_values(log)).collect();
        let keys = FIRST_SHARED_KEY..FIRST_SHARED_KEY + SHARED_KEYS;
        let differs = |key: &u64| states.iter().any(|state| state.get(key) != states[0].get(key));
        let differing: Vec<_> = keys.filter(differs).collect();
        let twice = taken_twice(logs);
        match differing.iter().find(|key| !self.may_differ(**key, &twice)) {
            Some(key) => {
                let found: Vec<_> = states.iter().map(|state| state.get(key)).collect();
                Err(format!("the instances have different records of the key {key}: {found:?}"))
            }
            None => Ok(differing.len() as u64),
        }
    }

    /// Whether an instance may lack a message or a delete of a key, or has another stamp of it.
    fn may_differ(&self, wanted: u64, twice: &BTreeSet<(u64, u64)>) -> bool {
        self.by_id.iter().any(|(id, number)| {
            let publisher = &self.publishers[*number];
            (1..).zip(&publisher.operations).any(|(sequence, operation)| {
                matches!(operation.action, Action::Value { key } | Action::Delete { key } if key == wanted)
                    && (publisher.is_in_gap(sequence)
                        || operation.is_local(self.has_filter)
                        || twice.contains(&(*id, sequence)))
            })
        })
    }

    /// # Errors
    /// What was promised and did not hold.
    pub fn verdict(&mut self, logs: &[Vec<Logged>]) -> Result<(), String> {
        self.fault()?;
        for (instance, log) in logs.iter().enumerate() {
            self.look_at_queue(instance, log)?;
        }
        let mut found: Vec<Vec<BTreeSet<u64>>> = Vec::new();
        for (instance, log) in logs.iter().enumerate() {
            found.push(self.look_through(instance, log)?);
        }
        self.differing_count = self.count_differing(logs)?;
        self.excused_count = 0;
        for (number, publisher) in self.publishers.iter().enumerate() {
            for (sequence, operation) in (1..).zip(&publisher.operations) {
                let has = |instance: usize| found[instance][number].contains(&sequence);
                match operation.holders {
                    None => continue,
                    Some(0) => self.excused_count += 1,
                    Some(holders) => {
                        let is_holder = |instance: &usize| holders & (1 << instance) != 0;
                        let missing = (0..logs.len()).filter(is_holder).find(|instance| !has(*instance));
                        if let Some(instance) = missing {
                            return Err(format!(
                                "{number}|{sequence}| ({:?}) was acknowledged, and is not on {}",
                                operation.action,
                                name_of(instance)
                            ));
                        }
                    }
                }
            }
            let is_local =
                |sequence: u64| publisher.operations[sequence as usize - 1].is_local(self.has_filter);
            let is_everywhere = |sequence: &&u64| !is_local(**sequence);
            for instance in 0..logs.len() {
                let (first, other) = (&found[0][number], &found[instance][number]);
                for sequence in other.iter().filter(|sequence| is_local(**sequence)) {
                    let begun_ns = publisher.operations[*sequence as usize - 1].begun_ns;
                    if publisher.reached_since(begun_ns) & (1 << instance) == 0 {
                        let name = name_of(instance);
                        return Err(format!("{number}|{sequence}| is on {name}, and no link sends it"));
                    }
                }
                if let Some(sequence) = first.symmetric_difference(other).find(is_everywhere) {
                    let (with, without) =
                        if first.contains(sequence) { (0, instance) } else { (instance, 0) };
                    return Err(format!(
                        "{number}|{sequence}| ({:?}) is on {} and not on {}: {}",
                        publisher.operations[*sequence as usize - 1].action,
                        name_of(with),
                        name_of(without),
                        self.ranges(logs, number)
                    ));
                }
            }
        }
        self.look_at_streams(logs, &found)
    }

    /// Each subscriber saw the messages of each publisher. `found` are those of the logs.
    fn look_at_streams(&self, logs: &[Vec<Logged>], found: &[Vec<BTreeSet<u64>>]) -> Result<(), String> {
        let was_lost = self.replaced_at.iter().any(Option::is_some);
        let late = logs.iter().flatten().filter(|record| record.is_late);
        let late = late.filter_map(|record| Some((*self.by_id.get(&record.publisher)?, record.sequence)));
        let late: BTreeSet<_> = late.collect();
        for stream in self.streams.iter().filter(|stream| !stream.has_returned) {
            let is_unknown = |(publisher, sequence, _): &&(usize, u64, u64)| {
                !late.contains(&(*publisher, *sequence)) && !was_lost
            };
            if let Some((publisher, sequence, before)) = stream.late.iter().find(is_unknown) {
                let name = &stream.name;
                let after = format!("{publisher}|{sequence}| after {publisher}|{before}|");
                return Err(format!("{name} saw {after}, and no log has it late"));
            }
            for (number, publisher) in self.publishers.iter().enumerate() {
                for sequence in found[0][number].iter().filter(|sequence| !publisher.is_in_gap(**sequence)) {
                    let operation = &publisher.operations[*sequence as usize - 1];
                    let value = operation.value.filter(|_| operation.action == Action::Order);
                    let value = value.filter(|value| !stream.excused.contains(value));
                    if let Some(value) = value.filter(|value| !stream.seen.contains(value)) {
                        return Err(format!(
                            "{} never saw message {value} ({number}|{sequence}|)",
                            stream.name
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// The messages of a publisher in the order of each log. Those that follow each other are one
    /// range, with what its first message follows.
    fn ranges(&self, logs: &[Vec<Logged>], publisher: usize) -> String {
        let of_publisher = |record: &&Logged| self.by_id.get(&record.publisher) == Some(&publisher);
        let log = |log: &Vec<Logged>| {
            let mut ranges: Vec<(&Logged, u64)> = Vec::new();
            for record in log.iter().filter(of_publisher) {
                match ranges.last_mut() {
                    Some((first, last)) if record.follows == *last && record.is_late == first.is_late => {
                        *last = record.sequence;
                    }
                    _ => ranges.push((record, record.sequence)),
                }
            }
            let describe = |(first, last): &(&Logged, u64)| {
                let late = if first.is_late { " late" } else { "" };
                format!("{} to {last} after {}{late}", first.sequence, first.follows)
            };
            format!("[{}]", ranges.iter().map(describe).collect::<Vec<_>>().join(", "))
        };
        logs.iter().map(log).collect::<Vec<_>>().join(" ")
    }

    /// The queue of an instance delivered every message of its log until it was acknowledged.
    fn look_at_queue(&self, instance: usize, log: &[Logged]) -> Result<(), String> {
        for value in log.iter().filter_map(|record| record.value) {
            let Some(&(publisher, place)) = self.values.get(value as usize) else { continue };
            let is_order = self.publishers[publisher].operations[place].action == Action::Order;
            if is_order && let Err(reason) = self.queues[instance].judge(value) {
                let name = name_of(instance);
                return Err(format!("the queue of {name} {reason} ({publisher}|{}|)", place + 1));
            }
        }
        Ok(())
    }

    /// The sequences of each publisher in a log.
    fn look_through(&mut self, instance: usize, log: &[Logged]) -> Result<Vec<BTreeSet<u64>>, String> {
        let mut found = vec![BTreeSet::new(); self.publishers.len()];
        let name = name_of(instance);
        let was_lost = self.replaced_at.iter().any(Option::is_some);
        let mut records = Vec::with_capacity(log.len());
        for record in log {
            records.push(record);
            if record.is_passed_on && self.is_meant(Canary::KeptDuplicate, 1) {
                records.push(record);
            }
        }
        for record in records {
            let &Logged { publisher, sequence, value, .. } = record;
            let number = *self.by_id.get(&publisher).ok_or(format!("{name} has a record of nobody"))?;
            let known = &self.publishers[number].operations;
            let operation = known.get(sequence as usize - 1);
            let operation =
                operation.ok_or(format!("{name} has {number}|{sequence}|, which is of the future"))?;
            if operation.value != value {
                return Err(format!(
                    "{name} has message {value:?} as {number}|{sequence}|, published was {:?}",
                    operation.value
                ));
            }
            let last = found[number].last().copied().unwrap_or(0);
            // Only a message in a gap of its publisher, or of a lost disk, can be late. A link
            // sends no message of a local topic, so its publisher can fill the hole of one.
            let is_again = operation.is_local(self.has_filter) && !record.is_passed_on;
            let is_in_gap = self.publishers[number].is_in_gap(sequence);
            let may_be_late = is_in_gap || is_again || !self.is_strict || was_lost;
            if last >= sequence && !(record.is_late && may_be_late) {
                return Err(format!("{name} has {number}|{sequence}| after {number}|{last}|"));
            }
            if record.is_late != (last >= sequence) {
                return Err(format!("{name} says of {number}|{sequence}| late: {}", record.is_late));
            }
            self.late_count += u64::from(record.is_late);
            if !found[number].insert(sequence) {
                return Err(format!("{name} has {number}|{sequence}| twice"));
            }
        }
        Ok(found)
    }
}
