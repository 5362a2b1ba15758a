//! Random operations on the engine and on the model side by side. After each operation both must
//! have the same deliveries, logged changes, figures, holders and results of queries. proptest
//! prints the failing case and its seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use quire_journal::{Memory, PageFile};
use quire_queue::*;

use crate::model::{Model, bookmark_of, matches};

#[derive(Clone, Debug)]
enum Step {
    Enqueue {
        queue: usize,
        priority: Option<u64>,
        barrier: bool,
        expiration_s: Option<u32>,
        delay_ms: Option<u64>,
    },
    Subscribe {
        connection: u64,
        backlog: Option<u32>,
        queues: [bool; 2],
        filters: [u32; 2],
    },
    Replace {
        which: usize,
        backlog: Option<u32>,
        queues: [bool; 2],
        filters: [u32; 2],
    },
    Unsubscribe {
        which: usize,
    },
    Release {
        which: usize,
        one_in: u64,
    },
    Disconnect {
        connection: u64,
    },
    Poll {
        times: usize,
    },
    Settle {
        queue: usize,
        connection: u64,
        verdict: u8,
        positions: Vec<u64>,
    },
    SettleHeld {
        which: usize,
        verdict: u8,
    },
    SettleMatching {
        queue: usize,
        connection: u64,
        verdict: u8,
        filter: u32,
    },
    Extend {
        which: usize,
        by_ms: u64,
    },
    Wait {
        ms: u64,
    },
    /// The queue gets these settings, apart from those that cannot be changed.
    Alter {
        queue: usize,
        config: QueueConfig,
    },
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let priority = prop_oneof![Just(None), (0u64..4).prop_map(Some), Just(Some(u64::MAX))];
    let expiration = prop_oneof![6 => Just(None), 1 => Just(Some(0)), 2 => (1u32..4).prop_map(Some)];
    let delay = || prop_oneof![4 => Just(None), 1 => (0u64..900).prop_map(Some)];
    let backlog = || prop_oneof![1 => Just(None), 8 => (0u32..5).prop_map(Some), 1 => Just(Some(40))];
    let queues = || prop_oneof![Just([true, false]), Just([false, true]), Just([true, true])];
    let filters = || [0u32..4, 0u32..4];
    let step = prop_oneof![
        12 => (0usize..2, priority, prop::bool::weighted(0.07), expiration, delay()).prop_map(
            |(queue, priority, barrier, expiration_s, delay_ms)| Step::Enqueue { queue, priority, barrier, expiration_s, delay_ms }),
        4 => (0u64..4, backlog(), queues(), filters()).prop_map(
            |(connection, backlog, queues, filters)| Step::Subscribe { connection, backlog, queues, filters }),
        1 => (any::<usize>(), backlog(), queues(), filters()).prop_map(
            |(which, backlog, queues, filters)| Step::Replace { which, backlog, queues, filters }),
        1 => any::<usize>().prop_map(|which| Step::Unsubscribe { which }),
        1 => (any::<usize>(), 1u64..4).prop_map(|(which, one_in)| Step::Release { which, one_in }),
        1 => (0u64..4).prop_map(|connection| Step::Disconnect { connection }),
        10 => (1usize..20).prop_map(|times| Step::Poll { times }),
        3 => (0usize..2, 0u64..4, 0u8..6, prop::collection::vec(1u64..80, 1..5)).prop_map(
            |(queue, connection, verdict, positions)| Step::Settle { queue, connection, verdict, positions }),
        10 => (any::<usize>(), 0u8..9).prop_map(|(which, verdict)| Step::SettleHeld { which, verdict }),
        1 => (0usize..2, 0u64..4, 0u8..6, 0u32..8).prop_map(
            |(queue, connection, verdict, filter)| Step::SettleMatching { queue, connection, verdict, filter }),
        1 => (any::<usize>(), 0u64..4000).prop_map(|(which, by_ms)| Step::Extend { which, by_ms }),
        4 => (0u64..700).prop_map(|ms| Step::Wait { ms }),
        2 => (0usize..2, config()).prop_map(|(queue, config)| Step::Alter { queue, config }),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..160)
}

fn config() -> impl Strategy<Value = QueueConfig> {
    let some = |range: std::ops::Range<u32>| prop::option::of(range);
    (
        (any::<bool>(), 0u8..3, any::<bool>(), any::<bool>()),
        (some(1..6), some(1..6), some(1..4), some(0..3)),
        (some(100..2000), some(200..3000), 0u8..3, 0u8..4, 1u64..8),
        prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(0u64..900, 1..4)],
    )
        .prop_map(
            |(
                (once, fairness, leasing, default),
                limits,
                (lease, expiration, model, kind, depth),
                delays,
            )| {
                let semantics = if once { Semantics::AtMostOnce } else { Semantics::AtLeastOnce };
                let fairness = [FairnessModel::Fast, FairnessModel::RoundRobin, FairnessModel::Proportional]
                    [fairness as usize];
                let millis = |ms: Option<u32>| ms.map(|ms| Duration::from_millis(u64::from(ms)));
                QueueConfig {
                    semantics,
                    fairness_model: (!default && !once).then_some(fairness),
                    lease_period: millis(lease),
                    leasing: if leasing { Leasing::Strict } else { Leasing::Sublease },
                    max_backlog: limits.0.map(|limit| limit * 2),
                    max_per_subscription_backlog: limits.1,
                    max_deliveries: limits.2,
                    max_cancels: limits.3,
                    retry_delay: delays.into_iter().map(Duration::from_millis).collect(),
                    expiration: millis(expiration),
                    expiration_model: [
                        ExpirationModel::Message,
                        ExpirationModel::Queue,
                        ExpirationModel::Minimum,
                    ][model as usize],
                    priority: kind == 1 || kind == 3,
                    barrier: kind == 2 || kind == 3,
                    target_queue_depth: (kind == 0 && depth < 6).then_some(depth),
                    record_leases: true,
                    earlier_expirations: Vec::new(),
                }
            },
        )
}

/// Engine and model, and the log from which both can be rebuilt.
struct Pair {
    engine: Queues,
    /// The memory of its state.
    memory: Memory,
    model: Model,
    log: Vec<Logged>,
    position: u64,
    barriers: VecDeque<(u64, SubscriptionId)>,
    /// The connections that hold messages, by queue and position, from the lease events.
    holders: BTreeMap<(u32, u64), u64>,
    followed: BTreeMap<u32, Followed>,
}

#[derive(Clone, Copy)]
enum Logged {
    Enqueue(usize, u64, QueueEntry),
    Change(Change),
}

/// Memory in a file that can grow to `size_max`.
fn paged(size_max: usize) -> Memory {
    let directory = tempfile::tempdir().unwrap();
    Memory::paged(PageFile::create(directory.path(), size_max).unwrap())
}

fn ask(position: Position, filter: FilterId) -> bool {
    matches(position.get(), Some(filter))
}

fn verdict(number: u8) -> Verdict {
    let all = [
        Verdict::Acknowledge,
        Verdict::Cancel,
        Verdict::Expire,
        Verdict::Release,
        Verdict::CancelWithDelay { delay_ms: 0 },
        Verdict::CancelWithDelay { delay_ms: 300 },
    ];
    all.get(number as usize).copied().unwrap_or(Verdict::Acknowledge)
}

/// The messages that a reader of a queue has.
#[derive(Default)]
struct Followed {
    messages: BTreeSet<u64>,
    is_complete: bool,
}

impl Pair {
    fn new(configs: &[QueueConfig], memory: &Memory) -> Self {
        let (mut engine, mut model) = (Queues::new(), Model::default());
        engine.set_questions_per_poll(u32::MAX);
        for config in configs {
            engine.add_queue_in(config.clone(), memory).unwrap();
            model.queues.push(crate::model::Queue { config: config.clone(), ..Default::default() });
        }
        let (memory, barriers) = (memory.clone(), VecDeque::new());
        let (log, holders, followed) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut pair = Pair { engine, memory, model, log, position: 0, barriers, holders, followed };
        pair.follow();
        pair
    }

    fn now(&self) -> Time {
        Time::new(self.model.now)
    }

    fn spec(connection: u64, backlog: Option<u32>, queues: [bool; 2], filters: [u32; 2]) -> SubscriptionSpec {
        let named = (0..2).filter(|queue| queues[*queue]);
        let queues = named.map(|queue| {
            (QueueId::new(queue as u32), (filters[queue] > 0).then(|| FilterId::new(filters[queue])))
        });
        SubscriptionSpec { connection: ConnectionId::new(connection), backlog, queues: queues.collect() }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Enqueue { queue, priority, barrier, expiration_s, delay_ms } => {
                self.position += 1 + self.position % 3;
                let delayed_until = delay_ms.map(|ms| Time::new(self.model.now + ms * 1_000_000));
                let (bookmark, received) = (Some(bookmark_of(self.position)), self.now());
                let entry = QueueEntry { bookmark, received, priority, barrier, expiration_s, delayed_until };
                self.log.push(Logged::Enqueue(queue, self.position, entry));
                self.enqueue(queue, self.position, entry);
            }
            Step::Subscribe { connection, backlog, queues, filters } => {
                let spec = Self::spec(connection, backlog, queues, filters);
                let id = self.engine.subscribe(&spec).unwrap();
                self.model.subscribe(id, connection, &spec);
            }
            Step::Replace { which, backlog, queues, filters } => {
                if let Some(at) = self.live(which) {
                    let spec = Self::spec(0, backlog, queues, filters);
                    self.engine.replace(self.model.subscriptions[at].id, &spec).unwrap();
                    self.model.replace(at, &spec);
                }
            }
            Step::Unsubscribe { which } => {
                if let Some(at) = self.live(which) {
                    self.engine.unsubscribe(self.model.subscriptions[at].id, self.now());
                    self.model.end(at);
                }
            }
            Step::Release { which, one_in } => {
                if let Some(at) = self.live(which) {
                    let is_begun = |position: u64| position.is_multiple_of(one_in);
                    let (id, now) = (self.model.subscriptions[at].id, self.now());
                    self.engine.release(id, now, |_, position, _| is_begun(position.get()));
                    self.model.give_back(at, is_begun);
                }
            }
            Step::Disconnect { connection } => {
                self.engine.disconnect(ConnectionId::new(connection), self.now());
                for at in 0..self.model.subscriptions.len() {
                    let subscription = &self.model.subscriptions[at];
                    if subscription.live && subscription.connection == connection {
                        self.model.end(at);
                    }
                }
            }
            Step::Poll { times } => (0..times).for_each(|_| self.poll()),
            Step::Settle { queue, connection, verdict: number, positions } => {
                self.settle(queue, connection, verdict(number), &positions);
            }
            Step::SettleHeld { which, verdict: number } => {
                if let Some((queue, position, connection)) = self.held(which) {
                    self.settle(queue, connection, verdict(number), &[position]);
                }
            }
            Step::SettleMatching { queue, connection, verdict: number, filter } => {
                let filter = (filter > 0).then(|| FilterId::new(filter));
                let (id, connection_id) = (QueueId::new(queue as u32), ConnectionId::new(connection));
                let now = self.now();
                let done =
                    self.engine.settle_matching(id, connection_id, verdict(number), filter, now, &mut ask);
                let state = &self.model.queues[queue];
                let mut all: Vec<u64> = state.messages.iter().map(|message| message.position).collect();
                all.extend(state.taken.iter().map(|(position, _)| *position));
                all.retain(|position| matches(*position, filter));
                let expected = all
                    .iter()
                    .filter(|position| self.model.settle(queue, connection, verdict(number), **position));
                assert_eq!(done, expected.count() as u64);
            }
            Step::Extend { which, by_ms } => {
                if let Some((queue, position, connection)) = self.held(which) {
                    let until = self.model.now + by_ms * 1_000_000 + 1;
                    let (id, place) = (QueueId::new(queue as u32), Position::new(position));
                    let (connection, now) = (ConnectionId::new(connection), self.now());
                    let done = self.engine.extend(id, connection, place, Time::new(until), now);
                    let state = &mut self.model.queues[queue];
                    let message = state.messages.iter_mut().find(|message| message.position == position);
                    assert_eq!(done, message.is_some());
                    if let Some(message) = message {
                        message.holder.as_mut().unwrap().deadline = Some(until);
                    }
                }
            }
            Step::Wait { ms } => {
                self.model.now += ms * 1_000_000;
                self.engine.advance(self.now());
                self.model.advance(self.model.now);
            }
            Step::Alter { queue, config } => self.alter(queue, config),
            Step::Restart => self.restart(),
        }
        self.compare();
        self.feed();
        self.compare();
    }

    fn alter(&mut self, queue: usize, new: QueueConfig) {
        let state = &mut self.model.queues[queue];
        let old = state.config.clone();
        let mut earlier_expirations = old.earlier_expirations.clone();
        earlier_expirations.push(EarlierExpiration {
            until: Position::new(self.position),
            expiration: old.expiration,
            model: old.expiration_model,
        });
        let altered = QueueConfig {
            semantics: old.semantics,
            fairness_model: old.fairness_model,
            priority: old.priority,
            barrier: old.barrier,
            target_queue_depth: old.target_queue_depth,
            earlier_expirations,
            ..new.clone()
        };
        let id = QueueId::new(queue as u32);
        self.engine.alter_queue(id, altered.clone()).unwrap();
        state.config = altered;
        // Other settings are refused, without an effect.
        if new.priority != old.priority {
            let refused = self.engine.alter_queue(id, new).unwrap_err();
            assert!(matches!(refused, ConfigError::Fixed { .. }), "{refused:?}");
        }
    }

    fn enqueue(&mut self, queue: usize, position: u64, entry: QueueEntry) {
        let done = self.engine.enqueue(QueueId::new(queue as u32), Position::new(position), entry);
        assert_eq!(done, self.model.enqueue(queue, position, entry));
        // A message that has expired leaves when the engine looks at the clock, which is now.
        self.engine.advance(self.now());
        self.model.advance(self.model.now);
    }

    fn feed(&mut self) {
        for queue in 0..self.model.queues.len() {
            while let Some((after, count)) = self.engine.wanted(QueueId::new(queue as u32)) {
                let inactive = self.model.queues[queue].inactive.clone();
                assert!(inactive[0].0 > after.get() && count <= inactive.len() as u64);
                for (position, entry) in inactive.into_iter().take(count as usize) {
                    self.enqueue(queue, position, entry);
                }
            }
        }
    }

    fn settle(&mut self, queue: usize, connection: u64, verdict: Verdict, positions: &[u64]) {
        let all: Vec<Position> = positions.iter().map(|position| Position::new(*position)).collect();
        let (id, connection_id) = (QueueId::new(queue as u32), ConnectionId::new(connection));
        let done = self.engine.settle(id, connection_id, verdict, &all, self.now());
        let expected =
            positions.iter().filter(|position| self.model.settle(queue, connection, verdict, **position));
        assert_eq!(done, expected.count() as u64);
    }

    fn poll(&mut self) {
        let delivery = self.engine.poll_delivery(self.now(), &mut ask);
        let changes: Vec<Change> = std::iter::from_fn(|| self.engine.poll_change()).collect();
        for change in &changes {
            if change.kind == ChangeKind::Released {
                let queue = change.queue.get() as usize;
                assert_eq!(self.model.releasable(queue), Some(change.position.get()));
                let all = self.model.release(queue);
                self.barriers.extend(all.into_iter().map(|id| (change.position.get(), id)));
            }
        }
        let live =
            |id: SubscriptionId| self.model.subscriptions.iter().any(|entry| entry.id == id && entry.live);
        self.barriers.retain(|(_, id)| live(*id));
        match delivery {
            Some(delivery) if delivery.barrier => {
                assert_eq!(Some((delivery.position.get(), delivery.subscription)), self.barriers.pop_front());
            }
            Some(delivery) => {
                let queue = delivery.queue.get() as usize;
                let (position, subscription) =
                    self.model.next(queue).expect("the model has nothing to deliver");
                assert_eq!(delivery, self.model.deliver(queue, position, subscription));
            }
            None => {
                assert!(self.barriers.is_empty());
                for queue in 0..self.model.queues.len() {
                    assert_eq!(
                        (self.model.next(queue), self.model.releasable(queue)),
                        (None, None),
                        "queue {queue}"
                    );
                }
            }
        }
        self.compare_changes(changes);
    }

    /// Drops everything but the log.
    fn restart(&mut self) {
        let configs: Vec<QueueConfig> = self.model.queues.iter().map(|queue| queue.config.clone()).collect();
        self.engine = Queues::new();
        self.engine.set_questions_per_poll(u32::MAX);
        for config in &configs {
            self.engine.add_queue_in(config.clone(), &self.memory).unwrap();
        }
        for logged in &self.log {
            match *logged {
                Logged::Enqueue(queue, position, entry) => {
                    self.engine.enqueue(QueueId::new(queue as u32), Position::new(position), entry);
                }
                Logged::Change(change) => self.engine.restore(change),
            }
        }
        self.follow();
        self.barriers.clear();
        self.holders.clear();
        self.model.subscriptions.clear();
        self.model.orders = 0;
        for queue in &mut self.model.queues {
            queue.taken.clear();
            (queue.cursor, queue.expired_leases) = (0, 0);
            for message in &mut queue.messages {
                (message.deliveries, message.holder) = (message.logged_deliveries, None);
                message.let_run_out.clear();
                message.waits_until = None;
            }
        }
        self.refeed();
        self.engine.advance(self.now());
        self.model.advance(self.model.now);
    }

    /// With a target depth, a message that is inactive after a restart may have been active before.
    fn refeed(&mut self) {
        for queue in 0..self.model.queues.len() {
            let id = QueueId::new(queue as u32);
            while let Some((after, count)) = self.engine.wanted(id) {
                let later = self.log.iter().filter_map(|logged| match logged {
                    Logged::Enqueue(of, position, entry) if *of == queue && *position > after.get() => {
                        Some((*position, *entry))
                    }
                    _ => None,
                });
                let later: Vec<(u64, QueueEntry)> = later.take(count as usize).collect();
                for (position, entry) in later {
                    self.engine.enqueue(id, Position::new(position), entry);
                }
            }
        }
    }

    /// Begins to follow all queues.
    fn follow(&mut self) {
        for queue in 0..self.model.queues.len() as u32 {
            self.engine.follow(QueueId::new(queue));
            self.followed.insert(queue, Followed::default());
        }
    }

    /// A reader has the messages that wait or are leased. It gets those that a queue has at the
    /// beginning one by one.
    fn follow_messages(&mut self) {
        for queue in 0..self.model.queues.len() as u32 {
            if !self.followed[&queue].is_complete {
                self.engine.follow_next(QueueId::new(queue), 1);
            }
        }
        while let Some(moved) = self.engine.next_move() {
            self.engine.pop_move();
            let followed = self.followed.get_mut(&moved.queue.get()).unwrap();
            let position = moved.position.get();
            match moved.kind {
                MoveKind::Entered => assert!(followed.messages.insert(position), "{position} entered twice"),
                MoveKind::Left => drop(followed.messages.remove(&position)),
                MoveKind::Complete => followed.is_complete = true,
            }
            let bookmark = (moved.kind != MoveKind::Complete).then(|| bookmark_of(position));
            assert_eq!(moved.bookmark, bookmark);
        }
        for (queue, followed) in &self.followed {
            let messages = self.model.queues[*queue as usize].messages.iter();
            let active = messages.filter(|message| message.delayed_until.is_none());
            let active: BTreeSet<u64> = active.map(|message| message.position).collect();
            match followed.is_complete {
                true => assert_eq!(followed.messages, active),
                false => assert!(followed.messages.is_subset(&active)),
            }
        }
    }

    fn compare(&mut self) {
        self.follow_messages();
        let changes: Vec<Change> = std::iter::from_fn(|| self.engine.poll_change()).collect();
        self.compare_changes(changes);
        self.follow_leases();
        for queue in 0..self.model.queues.len() {
            let id = QueueId::new(queue as u32);
            let stats = self.engine.stats(id, self.now()).unwrap();
            let state = &self.model.queues[queue];
            assert_eq!(stats.queue_depth, state.messages.len() as u64, "depth of {queue}");
            let held = state.messages.iter().filter(|message| message.holder.is_some()).count() as u64;
            assert_eq!(stats.waiting + stats.delayed + held, stats.queue_depth, "depth of {queue}");
            assert_eq!(stats.backlog, self.model.backlog(queue) as u64, "backlog of {queue}");
            let delayed = state.messages.iter().filter(|message| message.delayed_until.is_some()).count();
            assert_eq!(stats.delayed, delayed as u64, "delayed of {queue}");
            assert_eq!(stats.expired_leases, state.expired_leases);
            assert_eq!(stats.inactive_message_count, state.inactive.len() as u64);
            assert_eq!(stats.deferred_ack_count, state.deferred.len() as u64);
            let mut seen = Vec::new();
            self.engine.browse(id, self.now(), |message| {
                seen.push((message.position.get(), message.delivery_count, message.cancel_count));
                true
            });
            assert_eq!(seen, self.model.browse(queue), "browsing {queue}");
            let settled = self.engine.settled(id, Position::new(self.position)).unwrap().get();
            assert!(state.messages.iter().all(|message| message.position > settled));
            assert!(state.inactive.iter().all(|(position, _)| *position > settled));
        }
        for (at, subscription) in self.model.subscriptions.iter().enumerate().filter(|(_, entry)| entry.live)
        {
            let expected = Some((subscription.backlog, self.model.outstanding(at)));
            assert_eq!(self.engine.backlog(subscription.id), expected);
        }
    }

    fn compare_changes(&mut self, mut changes: Vec<Change>) {
        self.log.extend(changes.iter().map(|change| Logged::Change(*change)));
        let key = |change: &Change| (change.queue, change.position, format!("{:?}", change.kind));
        changes.sort_by_key(key);
        self.model.changes.sort_by_key(key);
        assert_eq!(changes, std::mem::take(&mut self.model.changes));
    }

    /// A message is delivered to a connection that does not hold it yet. Only its holder can lose
    /// it.
    fn follow_leases(&mut self) {
        while let Some(event) = self.engine.poll_lease_event() {
            let LeaseEvent { queue, position, bookmark, connection, kind } = event;
            // The engine does not know the bookmark of a message that is not active.
            if bookmark.is_some() || kind != LeaseEventKind::AcknowledgedUnheld {
                assert_eq!(bookmark, Some(bookmark_of(position.get())));
            }
            let key = (queue.get(), position.get());
            let holder = self.holders.get(&key).copied();
            match kind {
                LeaseEventKind::Delivered => {
                    assert_eq!(holder, None, "{key:?} has two holders");
                    let config = &self.model.queues[queue.get() as usize].config;
                    if config.semantics == Semantics::AtLeastOnce {
                        self.holders.insert(key, connection.get());
                    }
                }
                LeaseEventKind::AcknowledgedUnheld | LeaseEventKind::ExpiredUnheld => {
                    assert_eq!(holder, None, "{key:?} was settled before it was lost");
                }
                _ => {
                    assert_eq!(holder, Some(connection.get()), "{kind:?} of {key:?}");
                    self.holders.remove(&key);
                }
            }
        }
        let mut expected = BTreeMap::new();
        for (queue, state) in (0..).zip(&self.model.queues) {
            for message in &state.messages {
                if let Some(holder) = message.holder {
                    let connection = self.model.subscriptions[holder.subscription].connection;
                    expected.insert((queue, message.position), connection);
                }
            }
        }
        assert_eq!(self.holders, expected);
    }

    fn live(&self, which: usize) -> Option<usize> {
        let live = self.model.subscriptions.iter().enumerate().filter(|(_, entry)| entry.live);
        let live: Vec<usize> = live.map(|(at, _)| at).collect();
        (!live.is_empty()).then(|| live[which % live.len()])
    }

    fn held(&self, which: usize) -> Option<(usize, u64, u64)> {
        let mut held = Vec::new();
        for (index, queue) in self.model.queues.iter().enumerate() {
            let leased = queue
                .messages
                .iter()
                .filter_map(|message| Some((message.position, message.holder?.subscription)));
            held.extend(
                leased
                    .chain(queue.taken.iter().copied())
                    .map(|(position, holder)| (index, position, self.model.subscriptions[holder].connection)),
            );
        }
        (!held.is_empty()).then(|| held[which % held.len()])
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_does_what_the_model_does(configs in [config(), config()], steps in steps()) {
        let mut pair = Pair::new(&configs, &Memory::heap());
        steps.into_iter().for_each(|step| pair.step(step));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_does_what_the_model_does_wherever_its_state_lies(
        configs in [config(), config()],
        steps in steps(),
        size_max in prop_oneof![Just(1 << 26), Just(1 << 20)],
    ) {
        let memory = paged(size_max);
        let mut pair = Pair::new(&configs, &memory);
        for step in steps {
            if matches!(step, Step::Wait { .. }) {
                memory.page_out().unwrap();
            }
            pair.step(step);
        }
        assert_eq!(memory.file_size() > 0, size_max > 1 << 22 && pair.position > 0);
    }
}
