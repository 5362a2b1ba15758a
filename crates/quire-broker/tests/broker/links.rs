//! Several brokers with links between them, over pipes in memory: connections are opened, cut and
//! refused when the test says so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quire_broker::{
    AdminCommand, AdminReply, BrokerConfig, ConnectionId, DestinationSettings, Input, LinkIdentity,
    RecordedTopic, ReplicatedTopic, ReplicationConfig, ReplicationStats, SyncType, TransactionLogConfig,
};
use quire_command::LinkAction;
use quire_journal::{AllTopics, Disk, MemoryDisk, Position, Record};

use super::pair::*;

/// Connections above this number are links.
const LINKS: u64 = 1_000;

/// One end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    broker: usize,
    connection: u64,
}

/// The brokers, and the pipes between them. An address is the name of an instance.
pub struct Cluster {
    pub brokers: Vec<Option<Pair>>,
    configs: Vec<BrokerConfig>,
    pub disks: Vec<Arc<MemoryDisk>>,
    pipes: BTreeMap<End, End>,
    /// Pairs of brokers that cannot reach each other.
    cuts: BTreeSet<(usize, usize)>,
    /// An instance whose connections to others are not made for now, and those that it asked for.
    pub held: Option<usize>,
    /// With which the instances log on.
    pub identities: Vec<LinkIdentity<'static>>,
    wanted: Vec<(usize, u32, String)>,
    last_connection: u64,
    now_ns: u64,
    /// Frames of links so far, in bytes.
    pub carried_size: usize,
}

/// A destination that gets all topics that begin with `orders`. Many tests have links of one
/// direction, so the check `replicate` is left out.
pub fn destination(name: &str, sync_type: SyncType) -> DestinationSettings {
    DestinationSettings {
        name: name.into(),
        addresses: vec![name.into()],
        sync_type,
        topics: vec![ReplicatedTopic {
            name: "^orders".into(),
            message_type: "json".into(),
            ..ReplicatedTopic::default()
        }],
        exclude_validation: vec!["replicate".into()],
        ..DestinationSettings::default()
    }
}

pub fn instance(name: &str, destinations: Vec<DestinationSettings>) -> BrokerConfig {
    let topics = vec![RecordedTopic::new("^orders", "json"), RecordedTopic::new("^local", "json")];
    BrokerConfig {
        name: name.into(),
        transaction_log: TransactionLogConfig { topics, ..TransactionLogConfig::default() },
        replication: ReplicationConfig { accepts: true, destinations, ..ReplicationConfig::default() },
        ..BrokerConfig::default()
    }
}

/// Two instances that send to each other.
pub fn pair_of(sync_type: SyncType) -> Vec<BrokerConfig> {
    let checked = |name| DestinationSettings { exclude_validation: vec![], ..destination(name, sync_type) };
    vec![instance("a", vec![checked("b")]), instance("b", vec![checked("a")])]
}

impl Cluster {
    pub fn new(configs: Vec<BrokerConfig>) -> Self {
        let count = configs.len();
        let disks: Vec<_> = configs.iter().map(|_| Arc::new(MemoryDisk::new(1 << 30))).collect();
        let mut cluster = Cluster {
            brokers: configs.iter().map(|_| None).collect(),
            configs,
            disks,
            pipes: BTreeMap::new(),
            cuts: BTreeSet::new(),
            held: None,
            identities: vec![LinkIdentity::default(); count],
            wanted: Vec::new(),
            last_connection: LINKS,
            now_ns: 0,
            carried_size: 0,
        };
        (0..cluster.configs.len()).for_each(|number| cluster.start(number));
        cluster.settle();
        cluster
    }

    /// Adds instances that log on to others with this identity.
    pub fn add(&mut self, configs: Vec<BrokerConfig>, identity: LinkIdentity<'static>) {
        for config in configs {
            self.disks.push(Arc::new(MemoryDisk::new(1 << 30)));
            self.brokers.push(None);
            self.configs.push(config);
            self.identities.push(identity);
        }
        for number in 0..self.configs.len() {
            if self.brokers[number].is_none() {
                self.start(number);
            }
        }
        self.settle();
    }

    /// A connection of an instance to another one.
    pub fn link_of(&self, number: usize) -> ConnectionId {
        let mut ends = self.pipes.keys().filter(|end| end.broker == number);
        ConnectionId(ends.next().expect("a connection").connection)
    }

    pub fn at(&mut self, number: usize) -> &mut Pair {
        self.brokers[number].as_mut().expect("the instance runs")
    }

    /// Starts an instance over what is on its disk.
    pub fn start(&mut self, number: usize) {
        self.start_over(number, self.disks[number].clone());
    }

    /// As [`Cluster::start`]. `as_disk` passes on to its disk.
    pub fn start_over(&mut self, number: usize, as_disk: Arc<dyn Disk>) {
        let mut pair = Pair::over(as_disk, self.disks[number].clone(), self.configs[number].clone());
        pair.now_ns = self.now_ns;
        self.brokers[number] = Some(pair);
    }

    /// The configuration for the next start of an instance.
    pub fn configure(&mut self, number: usize, config: BrokerConfig) {
        self.configs[number] = config;
    }

    /// The process of the instance is gone, and what it had not written.
    pub fn kill(&mut self, number: usize) {
        let ends: Vec<_> = self.pipes.keys().filter(|end| end.broker == number).copied().collect();
        ends.into_iter().for_each(|end| self.cut_pipe(end));
        drop(self.brokers[number].take());
    }

    /// The instance stops cleanly: it writes its snapshots.
    pub fn stop(&mut self, number: usize) {
        let ends: Vec<_> = self.pipes.keys().filter(|end| end.broker == number).copied().collect();
        ends.into_iter().for_each(|end| self.cut_pipe(end));
        let pair = self.brokers[number].take();
        pair.expect("the instance runs").broker.close().unwrap();
    }

    /// As [`Cluster::kill`], and the disk is gone.
    pub fn destroy(&mut self, number: usize) {
        self.kill(number);
        self.disks[number] = Arc::new(MemoryDisk::new(1 << 30));
    }

    /// A copy of the disk of an instance that does not run.
    pub fn backup(&self, number: usize) -> Arc<MemoryDisk> {
        copy_of(&self.disks[number])
    }

    pub fn partition(&mut self, a: usize, b: usize) {
        self.cuts.insert((a.min(b), a.max(b)));
        let is_between = |(one, other): &(&End, &End)| {
            (one.broker.min(other.broker), one.broker.max(other.broker)) == (a.min(b), a.max(b))
        };
        let ends: Vec<_> = self.pipes.iter().filter(is_between).map(|(end, _)| *end).collect();
        ends.into_iter().for_each(|end| self.cut_pipe(end));
    }

    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    fn cut_pipe(&mut self, end: End) {
        let Some(other) = self.pipes.remove(&end) else { return };
        self.pipes.remove(&other);
        for End { broker, connection } in [end, other] {
            if let Some(pair) = &mut self.brokers[broker] {
                let (now, connection) = (pair.now(), ConnectionId(connection));
                pair.broker.handle(now, Input::Disconnected { connection });
            }
        }
    }

    /// Lets time pass for all of them.
    pub fn pass(&mut self, duration: Duration) {
        let end = self.now_ns + duration.as_nanos() as u64;
        while self.now_ns < end {
            let timeouts = self.brokers.iter().flatten().filter_map(|pair| pair.broker.next_timeout());
            let next = timeouts.map(|at| at.0).filter(|at| *at <= end).min().unwrap_or(end);
            self.now_ns = self.now_ns.max(next);
            for pair in self.brokers.iter_mut().flatten() {
                pair.now_ns = self.now_ns;
            }
            self.settle();
            if next == end {
                return;
            }
        }
    }

    /// Turns of all of them, until nothing is under way.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut moved = false;
            for number in 0..self.brokers.len() {
                let Some(pair) = &mut self.brokers[number] else { continue };
                pair.turn();
                moved |= self.carry(number);
            }
            if !moved {
                return;
            }
        }
        panic!("the links never come to rest");
    }

    /// Carries out what an instance wants of its links.
    fn carry(&mut self, number: usize) -> bool {
        let wanted: VecDeque<_> = std::mem::take(&mut self.at(number).links);
        let moved = !wanted.is_empty();
        for wanted in wanted {
            match wanted {
                LinkOutput::Open { destination, address } => self.open(number, destination, &address),
                LinkOutput::Send { connection, bytes } => {
                    self.carried_size += bytes.len();
                    let end = End { broker: number, connection };
                    if let Some(End { broker, connection }) = self.pipes.get(&end).copied() {
                        let connection = ConnectionId(connection);
                        let pair = self.at(broker);
                        let now = pair.now();
                        pair.broker.handle(now, Input::Received { connection, bytes: &bytes });
                    }
                }
                LinkOutput::Close { connection } => self.cut_pipe(End { broker: number, connection }),
            }
        }
        moved
    }

    /// Makes the connections of the held instance.
    pub fn release(&mut self) {
        self.held = None;
        for (number, destination, address) in std::mem::take(&mut self.wanted) {
            self.open(number, destination, &address);
        }
        self.settle();
    }

    fn open(&mut self, number: usize, destination: u32, address: &str) {
        if self.held == Some(number) {
            return self.wanted.push((number, destination, address.to_owned()));
        }
        let target = self.configs.iter().position(|config| config.name == address);
        let target = target
            .filter(|target| self.brokers[*target].is_some())
            .filter(|target| !self.cuts.contains(&(number.min(*target), number.max(*target))));
        let now = self.at(number).now();
        let Some(target) = target else {
            let reason = "connection refused";
            return self.at(number).broker.handle(now, Input::LinkNotOpened { destination, reason });
        };
        let here = End { broker: number, connection: self.last_connection + 1 };
        let there = End { broker: target, connection: self.last_connection + 2 };
        self.last_connection += 2;
        self.pipes.insert(here, there);
        self.pipes.insert(there, here);
        let connection = ConnectionId(here.connection);
        let (tls, identity) = (false, self.identities[number]);
        self.at(number).broker.handle(now, Input::LinkOpened { destination, connection, tls, identity });
        let (now, connection) = (self.at(target).now(), ConnectionId(there.connection));
        self.at(target).broker.handle(now, Input::LinkAccepted { connection, peer: "test", tls });
    }

    /// The links of an instance can send more, or cannot.
    pub fn set_writable(&mut self, number: usize, writable: bool) {
        let ends: Vec<_> = self.pipes.keys().filter(|end| end.broker == number).copied().collect();
        for End { broker, connection } in ends {
            let (pair, connection) = (self.at(broker), ConnectionId(connection));
            let now = pair.now();
            pair.broker.handle(now, Input::Writable { connection, writable });
        }
    }

    /// The connections between instances.
    pub fn connection_count(&self) -> usize {
        self.pipes.len() / 2
    }

    /// The messages of the log of an instance, as publisher, sequence and data, in their order.
    pub fn log(&mut self, number: usize) -> Vec<(u64, u64, String)> {
        self.records(number, |record| {
            let data = String::from_utf8_lossy(record.data).into_owned();
            (record.publisher.get(), record.sequence, data)
        })
    }

    /// The names of the instances that the records of a log passed.
    pub fn paths(&mut self, number: usize) -> Vec<String> {
        self.records(number, |record| {
            let names: Vec<_> = record.path().instances().map(|instance| instance.name).collect();
            names.join(",")
        })
    }

    pub fn records<T>(&mut self, number: usize, view: impl Fn(&Record<'_>) -> T) -> Vec<T> {
        let reader = self.at(number).broker.journal().reader();
        let mut cursor = reader.cursor(Position::ZERO);
        let mut found = Vec::new();
        while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).unwrap() {
            found.extend(batch.records().map(|record| view(&record)));
        }
        found
    }

    /// As [`Cluster::log`], without the order of different publishers.
    pub fn sorted(&mut self, number: usize) -> Vec<(u64, u64, String)> {
        let mut log = self.log(number);
        let per_publisher: Vec<_> =
            log.iter().map(|(publisher, sequence, _)| (*publisher, *sequence)).collect();
        for publisher in per_publisher.iter().map(|(publisher, _)| publisher).collect::<BTreeSet<_>>() {
            let of_publisher = per_publisher.iter().filter(|(p, _)| p == publisher).map(|(_, s)| s);
            assert!(of_publisher.is_sorted(), "out of order");
        }
        log.sort();
        log
    }

    /// An operator lets clients in to an instance that waits for others.
    pub fn admit(&mut self, number: usize) -> ReplicationStats {
        let command = AdminCommand::Link { destination: String::new(), action: LinkAction::Admit };
        match self.admin(number, command) {
            AdminReply::Replication(stats) => *stats,
            reply => panic!("{reply:?}"),
        }
    }

    pub fn stats(&mut self, number: usize) -> ReplicationStats {
        match self.admin(number, AdminCommand::Replication) {
            AdminReply::Replication(stats) => *stats,
            reply => panic!("{reply:?}"),
        }
    }

    pub fn admin(&mut self, number: usize, command: AdminCommand) -> AdminReply {
        let pair = self.at(number);
        let now = pair.now();
        pair.broker.handle(now, Input::Admin { ticket: 1, command });
        pair.turn();
        pair.replies.pop().unwrap().1
    }

    /// A client of an instance that publishes `count` messages, the first one with `first`.
    pub fn publish(&mut self, number: usize, client: u64, first: u64, count: u64) {
        for sequence in first..first + count {
            self.at(number).publish(client, sequence, "orders", &format!("{{\"n\":{sequence}}}"));
        }
        self.settle();
    }

    /// The highest sequence that the client was told to be persisted; 0: none.
    pub fn persisted(&mut self, number: usize, client: u64) -> u64 {
        let said = self.at(number).take(client);
        let persisted = said.into_iter().filter_map(|said| match said {
            Said::Persisted(sequence) => Some(sequence),
            _ => None,
        });
        persisted.max().unwrap_or(0)
    }
}

fn copy_of(disk: &MemoryDisk) -> Arc<MemoryDisk> {
    let copy = Arc::new(MemoryDisk::new(1 << 30));
    let directory = Path::new("journal");
    copy.create_directory(directory).unwrap();
    for name in disk.list(directory).unwrap() {
        let path = directory.join(name);
        let file = disk.open_read_only(&path).unwrap();
        let size = file.size().unwrap();
        let mut bytes = Vec::new();
        file.read_at(&mut bytes, size as usize, 0).unwrap();
        copy.create(&path, size).unwrap().write_at(&bytes, 0).unwrap();
    }
    copy
}
