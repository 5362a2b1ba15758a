//! The links of a world: the configurations of the instances, and the copies that an acknowledgement counts.

use quire_broker::{
    BrokerConfig, Compression, DestinationSettings, Limits, RecordedTopic, ReplicatedTopic,
    ReplicationConfig, SowTopicSettings, SyncType, TransactionLogConfig, TransportConfig,
};

use super::SECOND_NS;
use crate::random::Random;

/// A set of instances, one bit each.
pub(super) type Instances = u64;

/// The topic that keeps last values.
pub(super) const VALUES: &str = "values";

/// How publishers wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
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

pub(super) struct Topology {
    pub kind: &'static str,
    pub waiting: Waiting,
    groups: Vec<Option<String>>,
    links: Vec<Vec<Link>>,
    downgrade_after_ns: u64,
}

/// The name of an instance, which is also its address.
pub(super) fn name_of(number: usize) -> String {
    format!("i{number}")
}

fn link_to(to: usize) -> Link {
    Link { to: vec![to], name: name_of(to), group: None, pass_through: Vec::new() }
}

fn passing(to: usize) -> Link {
    Link { pass_through: vec![".*".into()], ..link_to(to) }
}

impl Topology {
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
        Topology { kind, waiting, groups, links, downgrade_after_ns: (2 + random.below(10)) * SECOND_NS }
    }

    /// Two groups of two. Each instance sends everything to the other one of its group, and to any instance of the other group. Patterns
    /// that leave out some groups are not played: docs/replication.md says why they do not go with several paths.
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
        Topology {
            kind: "regions",
            waiting,
            groups: (0..4).map(|number| Some(group(number).to_owned())).collect(),
            links: (0..4).map(links).collect(),
            downgrade_after_ns: (2 + random.below(10)) * SECOND_NS,
        }
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

    pub fn config(&self, number: usize) -> BrokerConfig {
        let is_downgrading = self.waiting == Waiting::Downgrading;
        let topics = ["^orders", VALUES].map(|name| ReplicatedTopic {
            name: name.into(),
            message_type: "json".into(),
            filter: None,
        });
        let destinations = self.links[number].iter().map(|link| DestinationSettings {
            name: link.name.clone(),
            group: link.group.clone(),
            addresses: link.to.iter().map(|to| name_of(*to)).collect(),
            sync_type: if self.waiting == Waiting::Never { SyncType::Async } else { SyncType::Sync },
            pass_through: link.pass_through.clone(),
            // The deliberate mistakes change the frames of records, which are then not compressed.
            compression: Compression::None,
            downgrade_after_ns: is_downgrading.then_some(self.downgrade_after_ns),
            upgrade_below_ns: is_downgrading.then_some(self.downgrade_after_ns / 2),
            exclude_validation: Vec::new(),
            topics: topics.to_vec(),
        });
        let link_count = self.links[number].len() as u32;
        BrokerConfig {
            name: name_of(number),
            transaction_log: TransactionLogConfig {
                topics: ["^orders", VALUES].map(|name| RecordedTopic::new(name, "json")).to_vec(),
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

    /// The instances that certainly have a message when `by` acknowledges it. `waits` says whether an instance waited for one of its
    /// destinations all the time.
    pub fn counted(&self, by: usize, waits: &dyn Fn(usize, &str) -> bool) -> Instances {
        self.counted_after(by, 0, waits)
    }

    /// As `counted`, without the instances that only get the message from another one than `by`.
    pub fn counted_directly(&self, by: usize, waits: &dyn Fn(usize, &str) -> bool) -> Instances {
        let single = self.links[by].iter().filter(|link| link.to.len() == 1);
        let reached = single.fold(1 << by, |reached, link| reached | 1 << link.to[0]);
        let waited = |from: usize, name: &str| from == by && waits(from, name);
        reached & self.counted(by, &waited)
    }

    /// `path` are the instances that the message passed before `by`. A link passes on all of them or none.
    fn counted_after(&self, by: usize, path: Instances, waits: &dyn Fn(usize, &str) -> bool) -> Instances {
        let has_come = path != 0;
        let mut counted = 1 << by;
        let links = &self.links[by];
        if self.waiting == Waiting::Never || (self.waiting == Waiting::Required && links.len() > 1) {
            return counted;
        }
        for link in links {
            let has_passed = link.to.iter().any(|to| path & (1 << to) != 0);
            if has_passed || (has_come && link.pass_through.is_empty()) || !waits(by, &link.name) {
                continue;
            }
            // Any of the instances of a group may have answered.
            let members = link.to.iter().map(|to| self.counted_after(*to, path | (1 << by), waits));
            counted |= members.fold(u64::MAX, |all, one| all & one);
        }
        counted
    }
}
