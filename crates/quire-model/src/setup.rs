//! The modeled system: the instances, their links, the faults that may happen, and the rule.

use crate::log::{INSTANCES_MAX, Instances};
use crate::rule::{Numbers, Rule};

/// The links of a setup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Each instance sends to each other one, one hop.
    Mesh,
    /// Each instance sends to the next one, any number of hops.
    Ring,
}

/// How often each event may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A server is killed and starts again.
    pub crashes: u8,
    /// The connection of two instances is cut, and made again at any later time.
    pub cuts: u8,
    /// A server is killed, its disk is lost, and it starts with an empty log.
    pub lost_disks: u8,
    /// The same with an old copy of the log.
    pub backups: u8,
    /// The client loses its connection and logs on to any instance.
    pub moves: u8,
    /// The program of the client is killed, and the next run begins. At most once.
    pub next_runs: u8,
    /// The last instance of the setup is added. At most once.
    pub joins: u8,
    /// An operator lets clients in to an instance that is being filled.
    pub admits: u8,
    /// An instance refuses a publish, which it or another one would accept later.
    pub refusals: u8,
}

/// A system to be checked.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The rule.
    pub rule: Rule,
    /// Two or three.
    pub instance_count: usize,
    /// The links.
    pub links: Links,
    /// Publishers wait for these destinations.
    pub sync: Instances,
    /// This many of them must have a message; `None`: all.
    pub required: Option<usize>,
    /// Faults.
    pub faults: Faults,
    /// Messages that each run publishes, at most.
    pub publishes: [u8; 2],
    /// Records in flight on each link, at most 2. With 0, a record is sent and taken in one event:
    /// where no connection ends, records in flight are like records that wait to be sent.
    pub in_flight: usize,
    /// The sequences of the second run.
    pub numbers: Numbers,
    /// An instance finds at its start that its log is an old copy. Otherwise another instance
    /// reports it.
    pub notices_backups: bool,
    /// The instances begin with empty logs and have never been connected.
    pub begins_unheard: bool,
}

impl Setup {
    /// Two instances that wait for each other, without faults.
    pub fn pair(rule: Rule) -> Self {
        Setup {
            rule,
            instance_count: 2,
            links: Links::Mesh,
            sync: Instances(0b11),
            required: None,
            faults: Faults::default(),
            publishes: [2, 2],
            in_flight: 1,
            numbers: Numbers::Next,
            notices_backups: true,
            begins_unheard: false,
        }
    }

    /// Three instances.
    pub fn three(rule: Rule, links: Links) -> Self {
        Setup { instance_count: 3, links, sync: Instances(0b111), ..Setup::pair(rule) }
    }

    /// Whether the first instance sends to the second one.
    pub fn has_link(&self, from: usize, to: usize) -> bool {
        let is_there = from < self.instance_count && to < self.instance_count && from != to;
        is_there && (self.links == Links::Mesh || (from + 1) % self.instance_count == to)
    }

    /// The links of the setup.
    pub fn each_link(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let all = (0..INSTANCES_MAX).flat_map(|from| (0..INSTANCES_MAX).map(move |to| (from, to)));
        all.filter(|(from, to)| self.has_link(*from, *to))
    }

    /// Each pair of instances with a link.
    pub fn each_pair(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let all = (0..INSTANCES_MAX).flat_map(|one| (one + 1..INSTANCES_MAX).map(move |other| (one, other)));
        all.filter(|(one, other)| self.has_link(*one, *other) || self.has_link(*other, *one))
    }

    /// Whether an instance passes on the records of another one.
    pub fn passes_through(&self) -> bool {
        self.links == Links::Ring
    }

    /// The copies that must have a message which a client publishes to the instance, besides this.
    pub fn counted(&self, instance: usize) -> Instances {
        self.sync.without(instance)
    }

    /// The number of these copies that must have a message.
    pub fn required_of(&self, instance: usize) -> usize {
        let count = self.counted(instance).each().count();
        self.required.map_or(count, |required| required.min(count))
    }

    /// The number of disks that may be lost without the loss of a confirmed message.
    pub fn disks_to_spare(&self) -> usize {
        let members = 0..self.instance_count;
        members.map(|instance| self.required_of(instance)).min().unwrap_or(0)
    }
}
