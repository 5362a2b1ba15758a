//! The links of a world: the configurations of the instances, and the copies that an
//! acknowledgement counts.

use quire_broker::{
    BrokerConfig, Compression, DestinationSettings, Limits, RecordedTopic, ReplicatedTopic,
    ReplicationConfig, SowTopicSettings, SyncType, TransactionLogConfig, TransportConfig,
};

use crate::random::Random;
use crate::world::SECOND_NS;

/// A set of instances, one bit each.
pub(in crate::world) type Instances = u64;

/// The topic that keeps last values.
pub(in crate::world) const VALUES: &str = "values";

/// The topic of which links send a part, where they have a filter.
pub(in crate::world) const PARTS: &str = "parts";

/// Whether links send the messages of a topic.
pub(in crate::world) fn is_sent(topic: &str) -> bool {
    topic.starts_with("orders/") || topic == VALUES || topic == PARTS
}

/// How publishers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::world) enum Waiting {
    /// For every destination, as long as it takes.
    Always,
    /// For every destination that is not too far back.
    Downgrading,
    /// For all destinations but one.
    Required,
    /// For none.
    Never,
}

/// A link from one instance to another one, or to any instance of a group.
#[derive(Clone, Debug)]
struct Link {
    to: Vec<usize>,
    name: String,
    group: Option<String>,
    pass_through: Vec<String>,
}

pub(in crate::world) struct Topology {
    pub kind: &'static str,
    pub waiting: Waiting,
    groups: Vec<Option<String>>,
    links: Vec<Vec<Link>>,
    downgrade_after_ns: u64,
    /// Of the messages of [`PARTS`].
    filter: Option<String>,
    compression: Compression,
}

/// The name of an instance, which is also its address.
pub(in crate::world) fn name_of(number: usize) -> String {
    format!("i{number}")
}

fn link_to(to: usize) -> Link {
    Link { to: vec![to], name: name_of(to), group: None, pass_through: Vec::new() }
}

fn passing(to: usize) -> Link {
    Link { pass_through: vec![".*".into()], ..link_to(to) }
}

impl Topology {
    /// One instance without links.
    pub fn alone() -> Self {
        Topology {
            kind: "alone",
            waiting: Waiting::Never,
            groups: vec![None],
            links: vec![Vec::new()],
            downgrade_after_ns: 0,
            filter: None,
            compression: Compression::None,
        }
    }

    pub fn draw(random: &mut Random) -> Self {
        let waiting =
            [Waiting::Always, Waiting::Always, Waiting::Downgrading, Waiting::Required, Waiting::Never]
                [random.below(5) as usize];
        let (kind, links) = match random.below(6) {
            0 | 1 => ("pair", vec![vec![link_to(1)], vec![link_to(0)]]),
            2 => {
                let count = 3 + random.below(3) as usize;
                ("ring", (0..count).map(|number| vec![passing((number + 1) % count)]).collect())
            }
            3 => {
                let count = 3 + random.below(3) as usize;
                let spokes = (1..count).map(|_| vec![link_to(0)]);
                let hub = (1..count).map(passing).collect();
                ("hub", std::iter::once(hub).chain(spokes).collect())
            }
            4 => {
                let links = |own: usize| (0..3).filter(|to| *to != own).map(passing).collect();
                ("mesh", (0..3).map(links).collect())
            }
            _ => return Topology::regions(waiting, random),
        };
        let groups = vec![None; links.len()];
        Topology::new(kind, waiting, groups, links, random)
    }

    fn new(
        kind: &'static str,
        waiting: Waiting,
        groups: Vec<Option<String>>,
        links: Vec<Vec<Link>>,
        random: &mut Random,
    ) -> Self {
        Topology {
            kind,
            waiting,
            groups,
            links,
            downgrade_after_ns: (2 + random.below(10)) * SECOND_NS,
            filter: random.percent(50).then(|| "/sent = true".to_owned()),
            compression: [Compression::None, Compression::Lz4, Compression::Zstd][random.below(3) as usize],
        }
    }

    /// The records are not compressed: some deliberate mistakes change their frames.
    pub fn uncompressed(self) -> Self {
        Topology { compression: Compression::None, ..self }
    }

    /// Whether links send only some of the messages of [`PARTS`].
    pub fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    pub fn is_compressed(&self) -> bool {
        self.compression != Compression::None
    }

    /// Two groups of two. Each instance sends everything to the other one of its group, and to any
    /// instance of the other group. Patterns that leave out some groups are not played:
    /// docs/replication.md says why they do not go with several paths.
    fn regions(waiting: Waiting, random: &mut Random) -> Self {
        let group = |number: usize| if number < 2 { "east" } else { "west" };
        let links = |own: usize| {
            let far = if own < 2 { [2, 3] } else { [0, 1] };
            let peer = own ^ 1;
            let to_peer = passing(peer);
            let to = [far[own % 2], far[1 - own % 2]];
            let to_far = Link {
                to: to.to_vec(),
                name: group(far[0]).into(),
                group: Some(group(far[0]).into()),
                pass_through: vec![".*".into()],
            };
            vec![to_peer, to_far]
        };
        let groups = (0..4).map(|number| Some(group(number).to_owned())).collect();
        Topology::new("regions", waiting, groups, (0..4).map(links).collect(), random)
    }

    pub fn count(&self) -> usize {
        self.links.len()
    }

    /// Every message that is acknowledged is on every instance.
    pub fn is_strict(&self) -> bool {
        self.waiting == Waiting::Always
    }

    /// Whether an instance sends to all others itself, and not to any one of a group.
    pub fn reaches_all(&self, number: usize) -> bool {
        self.links[number].iter().filter(|link| link.to.len() == 1).count() + 1 == self.count()
    }

    pub fn is_alone(&self) -> bool {
        self.count() == 1
    }

    /// The configuration of an instance, with its links and the topics that they send.
    pub fn config(&self, number: usize) -> BrokerConfig {
        if self.is_alone() {
            let transport = TransportConfig { logon_timeout_ns: 2 * SECOND_NS, ..TransportConfig::default() };
            return BrokerConfig {
                name: name_of(number),
                // Only the topics of its cast.
                transaction_log: TransactionLogConfig {
                    topics: Vec::new(),
                    ..TransactionLogConfig::default()
                },
                transports: vec![transport],
                ..BrokerConfig::default()
            };
        }
        let is_downgrading = self.waiting == Waiting::Downgrading;
        let topics = ["^orders", VALUES, PARTS].map(|name| ReplicatedTopic {
            name: name.into(),
            message_type: "json".into(),
            filter: self.filter.clone().filter(|_| name == PARTS),
        });
        let destinations = self.links[number].iter().map(|link| DestinationSettings {
            name: link.name.clone(),
            group: link.group.clone(),
            addresses: link.to.iter().map(|to| name_of(*to)).collect(),
            sync_type: if self.waiting == Waiting::Never { SyncType::Async } else { SyncType::Sync },
            pass_through: link.pass_through.clone(),
            compression: self.compression,
            downgrade_after_ns: is_downgrading.then_some(self.downgrade_after_ns),
            upgrade_below_ns: is_downgrading.then_some(self.downgrade_after_ns / 2),
            // In a ring, messages return over the other instances.
            exclude_validation: if self.kind == "ring" { vec!["replicate".into()] } else { Vec::new() },
            topics: topics.to_vec(),
            ..DestinationSettings::default()
        });
        let link_count = self.links[number].len() as u32;
        BrokerConfig {
            name: name_of(number),
            transaction_log: TransactionLogConfig {
                topics: ["^orders", VALUES, PARTS].map(|name| RecordedTopic::new(name, "json")).to_vec(),
                ..TransactionLogConfig::default()
            },
            sow_topics: vec![SowTopicSettings {
                name: VALUES.into(),
                message_type: "json".into(),
                key: vec!["/k".into()],
                ..SowTopicSettings::default()
            }],
            replication: ReplicationConfig {
                group: self.groups[number].clone(),
                accepts: true,
                required_acks: (self.waiting == Waiting::Required).then_some((link_count - 1).max(1)),
                destinations: destinations.collect(),
                ..ReplicationConfig::default()
            },
            transports: vec![TransportConfig {
                logon_timeout_ns: 20 * SECOND_NS,
                ..TransportConfig::default()
            }],
            limits: Limits::default(),
            ..BrokerConfig::default()
        }
    }

    /// The instances that certainly have a message when `by` acknowledges it. `waits` says whether
    /// an instance waited for one of its destinations all the time.
    pub fn counted(&self, by: usize, waits: &dyn Fn(usize, &str) -> bool) -> Instances {
        self.counted_at(by, by, 1 << by, waits)
    }

    /// As `counted`, without the instances that only get the message from another one than `by`.
    pub fn counted_directly(&self, by: usize, waits: &dyn Fn(usize, &str) -> bool) -> Instances {
        let single = self.links[by].iter().filter(|link| link.to.len() == 1);
        let reached = single.fold(1 << by, |reached, link| reached | 1 << link.to[0]);
        let waited = |from: usize, name: &str| from == by && waits(from, name);
        reached & self.counted(by, &waited)
    }

    /// The instances that certainly have a message of `origin` when `at` has acknowledged it to an
    /// instance of `path`.
    ///
    /// The message may have come over another path before. An instance passes on the first copy.
    /// The acknowledgement of another one means only that it has the message (docs/replication.md,
    /// *When a publisher is acknowledged*). So its destinations have the message for certain only
    /// when every instance of the path of the first copy waited for the next one.
    fn counted_at(
        &self,
        origin: usize,
        at: usize,
        path: Instances,
        waits: &dyn Fn(usize, &str) -> bool,
    ) -> Instances {
        let mut firsts = Vec::new();
        self.find_paths((origin, origin, at), (1 << origin, true), waits, &mut firsts);
        let counted = firsts.into_iter().map(|(first, is_waited)| match is_waited {
            true => first | self.counted_after(origin, at, path | first, waits),
            false => first,
        });
        counted.fold(u64::MAX, |all, one| all & one)
    }

    /// The instances that certainly have a message of `origin` when the destinations of `at` have
    /// acknowledged it. `path` are the instances that it passed, and `at`.
    fn counted_after(
        &self,
        origin: usize,
        at: usize,
        path: Instances,
        waits: &dyn Fn(usize, &str) -> bool,
    ) -> Instances {
        let mut counted = 0;
        for link in self.links_of(origin, at, path).filter(|link| self.waits_for(at, link, waits)) {
            // Any of the instances of a group may have answered.
            let members = link.to.iter().map(|to| self.counted_at(origin, *to, path | (1 << to), waits));
            counted |= members.fold(u64::MAX, |all, one| all & one);
        }
        counted
    }

    /// Finds the paths of a message of `origin` that begin with `path` and lead over `at` to an
    /// instance: the instances of each, and whether all of them waited for the next one.
    fn find_paths(
        &self,
        (origin, at, to): (usize, usize, usize),
        path: (Instances, bool),
        waits: &dyn Fn(usize, &str) -> bool,
        found: &mut Vec<(Instances, bool)>,
    ) {
        if at == to {
            return found.push(path);
        }
        let (passed, is_waited) = path;
        for link in self.links_of(origin, at, passed) {
            let is_waited = is_waited && self.waits_for(at, link, waits);
            for next in &link.to {
                self.find_paths((origin, *next, to), (passed | 1 << next, is_waited), waits, found);
            }
        }
    }

    /// The links over which an instance sends a message of `origin`. A link passes on the messages
    /// of all instances or of none.
    fn links_of(&self, origin: usize, at: usize, path: Instances) -> impl Iterator<Item = &Link> {
        let links = self.links[at].iter();
        let links = links.filter(move |link| at == origin || !link.pass_through.is_empty());
        links.filter(move |link| link.to.iter().all(|to| path & (1 << to) == 0))
    }

    fn waits_for(&self, from: usize, link: &Link, waits: &dyn Fn(usize, &str) -> bool) -> bool {
        let waits_for_each = match self.waiting {
            Waiting::Always | Waiting::Downgrading => true,
            Waiting::Required => self.links[from].len() == 1,
            Waiting::Never => false,
        };
        waits_for_each && waits(from, &link.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four instances, each of which sends everything to all others.
    fn mesh() -> Topology {
        let links = |own: usize| (0..4).filter(|to| *to != own).map(passing).collect();
        let links = (0..4).map(links).collect();
        Topology::new("mesh", Waiting::Downgrading, vec![None; 4], links, &mut Random::new(1))
    }

    /// The new instance had the message from the first one, did not wait for the third one, and so
    /// did not count its copy.
    #[test]
    fn a_message_that_is_sent_again_counts_only_the_copies_that_the_new_instance_waited_for() {
        let waits = |from: usize, name: &str| from != 1 || name != name_of(2);
        assert_eq!(mesh().counted_directly(1, &|_, _| true), 0b1111);
        assert_eq!(mesh().counted_directly(1, &waits), 0b1011);
    }

    /// The third instance can have the message from the second one, for which the first one did not
    /// wait. Then it does not wait for the fourth one when the message comes from the first one.
    #[test]
    fn a_message_that_came_over_another_path_before_counts_no_copy_behind_it() {
        let waits = |from: usize, name: &str| from != 0 || name == name_of(2);
        assert_eq!(mesh().counted(0, &|_, _| true), 0b1111);
        assert_eq!(mesh().counted(0, &waits), 0b0101);
    }
}
