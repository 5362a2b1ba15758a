//! The programs of clients that move between the instances: a publisher with its publish store, a
//! subscriber with its bookmark store, a subscriber with records, a worker, and a reader of the
//! last-value topic at the end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_client::{
    Cause, ClientCore, DeleteSpec, Event, Failure, Message, NewMessage, PublishError, PublishLog, QuerySpec,
    RecordsSpec, ResumePosition, StoredPublishes, SubscriptionSpec,
};
use quire_command::{Code, SubscribeOptions};
use quire_expression::message_type::{MessageType, merge};
use quire_types::time::Now;

use super::auditor::{Action, Auditor, FIRST_SHARED_KEY, KEYS, SHARED_KEYS};
use super::queue::Worker;
use super::topology::{PARTS, Topology, VALUES};
use crate::random::Random;
use crate::world::Canary;
use crate::world::auditor::value_of;
use crate::world::instance::Instance;

/// The connection of a client: its instance, and when it was made.
#[derive(Clone, Copy)]
pub(in crate::world) struct At {
    pub instance: usize,
    pub since_ns: u64,
}

pub(in crate::world) enum Program {
    Publish {
        number: usize,
        store: Store,
    },
    Subscribe {
        stream: usize,
        is_durable: bool,
        subscription: Option<u32>,
        position: Option<ResumePosition>,
        canary: Option<Canary>,
    },
    Query {
        running: Option<u32>,
        rows: Rows,
        found: Option<Rows>,
    },
    Follow {
        subscription: Option<u32>,
        is_delta: bool,
        view: View,
        canary: Option<Canary>,
    },
    Work(Worker),
}

/// The records of the last-value topic, by key.
type Rows = BTreeMap<u64, u64>;

/// The records of the last-value topic that a subscriber has, by the key of the server.
type View = BTreeMap<Vec<u8>, Vec<u8>>;

/// The file of a publish store: it survives the process.
#[derive(Clone)]
pub(in crate::world) struct Store(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    frames: VecDeque<(u64, Vec<u8>)>,
    last_sequence: u64,
    persisted: u64,
    run: u64,
}

impl Store {
    fn new(run: u64) -> Self {
        Store(Arc::new(Mutex::new(Stored { run, ..Stored::default() })))
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PublishLog for Store {
    fn has_room(&self, _: usize) -> bool {
        true
    }

    fn frame_size_max(&self) -> usize {
        1 << 20
    }

    fn append(&mut self, sequence: u64, frame: &[u8]) -> Result<(), Failure> {
        let mut stored = self.stored();
        stored.frames.push_back((sequence, frame.to_vec()));
        stored.last_sequence = stored.last_sequence.max(sequence);
        Ok(())
    }

    fn persisted(&mut self, sequence: u64) {
        let mut stored = self.stored();
        while let Some((first, _)) = stored.frames.pop_front_if(|(first, _)| *first <= sequence) {
            stored.persisted = stored.persisted.max(first);
        }
    }
}

impl Program {
    pub fn publisher(number: usize) -> Self {
        Program::Publish { number, store: Store::new(number as u64 + 1) }
    }

    pub fn subscriber(stream: usize, canary: Option<Canary>, random: &mut Random) -> Self {
        let is_durable = random.percent(50);
        Program::Subscribe { stream, is_durable, subscription: None, position: None, canary }
    }

    /// Keeps the records of the last-value topic. Some get the changes as differences.
    pub fn follower(canary: Option<Canary>, random: &mut Random) -> Self {
        Program::Follow { subscription: None, is_delta: random.percent(50), view: View::new(), canary }
    }

    pub fn worker(number: usize, canary: Option<Canary>) -> Self {
        Program::Work(Worker::new(number, canary))
    }

    /// Asks an instance for its last values, again and again.
    pub fn querier() -> Self {
        Program::Query { running: None, rows: BTreeMap::new(), found: None }
    }

    /// The process begins. Its stores have survived.
    pub fn open_stores(&self, core: &mut ClientCore) {
        if let Program::Publish { store, .. } = self {
            let stored = {
                let Stored { frames, last_sequence, persisted, run } = &*store.stored();
                let frames = frames.iter().cloned().collect();
                StoredPublishes { frames, last_sequence: *last_sequence, persisted: *persisted, run: *run }
            };
            core.keep_publishes_in(Box::new(store.clone()), &stored);
        }
    }

    /// The process ends.
    pub fn restart(&mut self, core: &ClientCore) {
        match self {
            Program::Subscribe { subscription, position, canary, .. } => {
                let last = subscription.and_then(|number| core.resume_position(number).cloned());
                *position = last.or(position.take());
                *subscription = None;
                if *canary == Some(Canary::LaterPlaces) {
                    let places = position.iter_mut().flat_map(|position| &mut position.places);
                    places.flat_map(|places| places.values_mut()).for_each(|place| place.position += 20);
                }
            }
            Program::Query { running, .. } => *running = None,
            Program::Follow { subscription, view, .. } => {
                *subscription = None;
                view.clear();
            }
            Program::Work(worker) => worker.restart(),
            Program::Publish { .. } => (),
        }
    }

    /// The last values that it found, by key; `None`: it has none yet, or looks for none.
    pub fn found(&self) -> Option<BTreeMap<u64, u64>> {
        match self {
            Program::Query { found, .. } => found.clone(),
            Program::Follow { subscription: Some(_), view, .. } => {
                let pair = |data: &Vec<u8>| key_of(data).zip(value_of(data));
                Some(view.values().filter_map(pair).collect())
            }
            _ => None,
        }
    }

    /// Whether it must have found the last values at the end.
    pub fn looks_for_values(&self) -> bool {
        matches!(self, Program::Query { .. } | Program::Follow { .. })
    }

    /// One step of the program.
    pub fn act(
        &mut self,
        core: &mut ClientCore,
        now: Now,
        random: &mut Random,
        auditor: &mut Auditor,
        (is_connected, is_settling): (bool, bool),
    ) {
        match self {
            // A publisher continues without a connection: its store keeps the messages.
            Program::Publish { number, .. } if !is_settling && (is_connected || random.percent(10)) => {
                publish(*number, core, now, random, auditor);
            }
            Program::Subscribe { subscription, position, is_durable, .. }
                if is_connected && subscription.is_none() =>
            {
                let durable = SubscribeOptions::FULLY_DURABLE;
                let spec = SubscriptionSpec {
                    bookmark: Some("0".into()),
                    resume_position: position.clone(),
                    options: if *is_durable { durable } else { SubscribeOptions::default() },
                    ..SubscriptionSpec::new("^orders")
                };
                *subscription = core.subscribe(spec).ok().map(|(number, _)| number);
            }
            Program::Query { running: running @ None, rows, .. } if is_connected => {
                let spec = QuerySpec { topic: VALUES.into(), ..QuerySpec::default() };
                rows.clear();
                *running = core.query(&spec).ok().map(|(number, _)| number);
            }
            Program::Follow { subscription: subscription @ None, is_delta, view, .. } if is_connected => {
                let delta = if *is_delta { SubscribeOptions::DELTA } else { SubscribeOptions::default() };
                let spec = SubscriptionSpec {
                    options: SubscribeOptions::SOW.and(SubscribeOptions::OOF).and(delta),
                    records: Some(RecordsSpec::default()),
                    ..SubscriptionSpec::new(VALUES)
                };
                view.clear();
                *subscription = core.subscribe(spec).ok().map(|(number, _)| number);
            }
            Program::Work(worker) if is_connected => worker.act(core, now, random, auditor, is_settling),
            _ => (),
        }
    }

    /// The instance `at` let the client in, and told the highest sequence that it has.
    pub fn logged_on(&self, core: &ClientCore, at: At, highest: u64, now: Now, auditor: &mut Auditor) {
        let now_ns = now.instant.as_ns();
        match self {
            Program::Subscribe { stream, .. } => auditor.arrived(*stream, at.instance, now_ns),
            Program::Publish { number, .. } => auditor.logged_on(*number, at.instance, highest, now_ns),
            Program::Work(worker) => worker.logged_on(core, at.instance, auditor),
            _ => (),
        }
    }

    /// An event of the connection `at`.
    pub fn take(
        &mut self,
        name: &str,
        core: &ClientCore,
        event: Event,
        (now, at): (Now, At),
        (instances, topology): (&[Instance], &Topology),
        auditor: &mut Auditor,
    ) {
        match self {
            Program::Publish { number, .. } => {
                published((*number, name), core, event, at.instance, (instances, topology), auditor);
            }
            Program::Subscribe { stream, subscription, position, .. } => {
                subscribed(*stream, (subscription, position), core, event, at.instance, auditor);
            }
            Program::Query { running, rows, found } => queried((running, rows, found), event),
            Program::Follow { subscription, view, canary, .. } => {
                followed(name, (subscription, view), *canary, event, auditor);
            }
            Program::Work(worker) => worker.take(event, now, (at.instance, at.since_ns), auditor),
        }
    }
}

/// An event of a publisher that uses the instance `at`.
fn published(
    (number, name): (usize, &str),
    core: &ClientCore,
    event: Event,
    at: usize,
    (instances, topology): (&[Instance], &Topology),
    auditor: &mut Auditor,
) {
    match event {
        Event::Persisted => {
            let waits = |since_ns| move |by: usize, name: &str| instances[by].has_waited_for(name, since_ns);
            let counted = |since_ns| topology.counted(at, &waits(since_ns));
            let directly = |since_ns| match topology.reaches_all(at) {
                true => Some(topology.counted_directly(at, &waits(since_ns))),
                false => None,
            };
            auditor.acknowledged(number, core.persisted(), at, &counted, &directly);
        }
        Event::PublishFailed { sequence, failure } if failure.code != Code::StorageFailed => {
            auditor.fail(format!("{name}: publish {sequence} failed: {failure}"));
        }
        Event::Overtaken { own, persisted, highest } => {
            auditor.fail(format!("{name} is overtaken: {own} own, {persisted} persisted, {highest} there"));
        }
        _ => (),
    }
}

/// An event of a subscriber that uses the instance `at`.
fn subscribed(
    stream: usize,
    (subscription, position): (&mut Option<u32>, &mut Option<ResumePosition>),
    core: &ClientCore,
    event: Event,
    at: usize,
    auditor: &mut Auditor,
) {
    match event {
        Event::Messages { subscription: number, messages } if Some(number) == *subscription => {
            for message in &messages {
                auditor.received(stream, at, message.bookmark(), message.data());
            }
        }
        Event::BookmarkMissing { .. } => auditor.bookmark_missing(stream, at),
        Event::Ended { subscription: number, .. } if Some(number) == *subscription => {
            *position = core.resume_position(number).cloned().or(position.take());
            *subscription = None;
        }
        _ => (),
    }
}

/// An event of a reader of the last-value topic.
fn queried((running, rows, found): (&mut Option<u32>, &mut Rows, &mut Option<Rows>), event: Event) {
    match event {
        Event::Messages { subscription, messages } if Some(subscription) == *running => {
            let read = |message: &Message| key_of(message.data()).zip(value_of(message.data()));
            rows.extend(messages.iter().filter_map(read));
        }
        Event::Completed { subscription, .. } if Some(subscription) == *running => {
            *found = Some(std::mem::take(rows));
        }
        Event::Ended { subscription, .. } if Some(subscription) == *running => *running = None,
        _ => (),
    }
}

/// An event of a subscriber with records.
fn followed(
    name: &str,
    (subscription, view): (&mut Option<u32>, &mut View),
    canary: Option<Canary>,
    event: Event,
    auditor: &mut Auditor,
) {
    match event {
        Event::Messages { subscription: number, messages } if Some(number) == *subscription => {
            for message in &messages {
                auditor.view_count += 1;
                let is_skipped = canary == Some(Canary::StaleView) && auditor.view_count.is_multiple_of(9);
                if !is_skipped && let Err(reason) = apply(message, view, &mut auditor.difference_count) {
                    auditor.fail(format!("{name}: {reason}"));
                }
            }
        }
        Event::Ended { subscription: number, .. } if Some(number) == *subscription => *subscription = None,
        _ => (),
    }
}

/// Publishes some messages, and deletes records.
fn publish(number: usize, core: &mut ClientCore, now: Now, random: &mut Random, auditor: &mut Auditor) {
    let now_ns = now.instant.as_ns();
    for _ in 0..random.below(4) {
        let key = match random.percent(20) {
            true => FIRST_SHARED_KEY + random.below(SHARED_KEYS),
            false => number as u64 * KEYS + random.below(KEYS),
        };
        if random.percent(8) {
            let filter = format!("/k = {key}");
            let spec = DeleteSpec { topic: VALUES, filter: Some(&filter), ..DeleteSpec::default() };
            match core.delete(&spec) {
                Ok((sequence, _)) => auditor.taken(number, sequence, Action::Delete { key }, now_ns),
                Err(_) => return,
            }
            continue;
        }
        let value = auditor.next_value();
        let size = if random.percent(5) { random.below(6_000) } else { random.below(60) };
        let pad = "x".repeat(size as usize);
        let is_sent = random.percent(50);
        let data = format!(r#"{{"v":{value},"k":{key},"sent":{is_sent},"pad":"{pad}"}}"#);
        let (topic, action) = match random.below(12) {
            0..4 => (VALUES, Action::Value { key }),
            4..7 => ("orders/a", Action::Order),
            7..10 => ("orders/b", Action::Order),
            _ => (PARTS, Action::Part { is_sent }),
        };
        match core.publish(&NewMessage::new(topic, data.as_bytes())) {
            Ok(Some(sequence)) => auditor.taken(number, sequence, action, now_ns),
            Ok(None) | Err(PublishError::Full { .. } | PublishError::Refused(_)) => return,
        }
    }
}

/// Applies a message to the records of a subscriber.
///
/// # Errors
/// It is a difference to a record that the subscriber does not have.
fn apply(message: &Message, view: &mut View, difference_count: &mut u64) -> Result<(), String> {
    match message.cause() {
        Cause::Left(_) => drop(view.remove(message.key())),
        Cause::Delta => {
            *difference_count += 1;
            let known =
                view.get_mut(message.key()).ok_or("a difference to a record that it does not have")?;
            let mut whole = Vec::new();
            merge(MessageType::Json, known, message.data(), &mut whole).map_err(|error| error.to_string())?;
            *known = whole;
        }
        _ => drop(view.insert(message.key().to_owned(), message.data().to_owned())),
    }
    Ok(())
}

fn key_of(data: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(data).ok()?;
    text.split_once(r#""k":"#)?.1.split_once(',')?.0.parse().ok()
}
