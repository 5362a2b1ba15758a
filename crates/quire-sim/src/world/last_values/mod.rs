//! Last-value topics in the simulation: the topics of a world, the programs that use them, and the
//! checks of what the programs see.
//!
//! The log decides. [`log`] repeats the persisted records of each topic in their order, so that it
//! knows the state of the topic at each position. A check about a position waits until the log is
//! persisted up to there. When the server ends before, the check is dropped, because its records
//! may be gone. The checks are in [`ledger`], [`queries`] and [`streams`], the programs in
//! [`program`] and [`follower`].

mod follower;
mod ledger;
mod log;
mod place;
mod program;
mod queries;
mod records;
mod streams;
mod unlogged;

use quire_broker::{HistorySettings, RecordedTopic, SowTopicSettings, TableDurability, TableExpiration};

use crate::random::Random;
pub(super) use ledger::Ledger;
pub(super) use program::Program;

/// Names of last-value topics that the log records begin with it.
const PREFIX: &str = "last/";
/// Names of the others begin with it.
const UNLOGGED_PREFIX: &str = "unlogged/";
/// The name of the entry with a pattern.
const ENTRY: &str = "entry";
/// The order of results, of a page too: the values of `/v` are different.
const ORDER: &str = "/q DESC, /v";
/// The values of the field `/q` are below it.
const QUANTITIES: u64 = 10;
const SECOND_NS: u64 = 1_000_000_000;
/// Longer than the steps of the clock.
const HISTORY_NS: u64 = 400 * 86_400 * SECOND_NS;

/// One last-value topic of a world.
#[derive(Clone, Debug)]
pub(super) struct Topic {
    pub name: String,
    has_generated_keys: bool,
    durability: TableDurability,
    recovery_point: Option<&'static str>,
    expiration: TableExpiration,
    /// The field `/k` of its messages is below it.
    key_count: u64,
    /// The log records its messages.
    is_logged: bool,
    /// The distance of the instants whose states it keeps; `None`: it keeps no history.
    granularity_ns: Option<u64>,
    /// It belongs to the entry with a pattern.
    is_of_pattern: bool,
}

impl Topic {
    /// Whether queries of earlier states are answered.
    pub fn has_earlier_states(&self) -> bool {
        self.granularity_ns.is_some()
    }

    fn draw(number: usize, random: &mut Random) -> Self {
        let is_persistent = random.percent(60);
        let recovery_point = if random.percent(50) { "epoch" } else { "now" };
        let mut topic = Topic {
            name: format!("{PREFIX}{number}"),
            has_generated_keys: random.percent(50),
            durability: if is_persistent { TableDurability::Persistent } else { TableDurability::Transient },
            recovery_point: (!is_persistent).then_some(recovery_point),
            expiration: match random.below(4) {
                0 => TableExpiration::Enabled,
                1 => TableExpiration::AfterNs((1 + random.below(4)) * SECOND_NS),
                _ => TableExpiration::Disabled,
            },
            key_count: 2 + random.below(40),
            is_logged: true,
            granularity_ns: None,
            is_of_pattern: false,
        };
        if topic.recovery_point == Some("now") && topic.key_count.is_multiple_of(2) {
            topic.is_logged = false;
            topic.name = format!("{UNLOGGED_PREFIX}{number}");
        }
        topic
    }

    /// The topic belongs to the entry with a pattern.
    fn join_entry(&mut self) {
        let prefix = if self.is_logged { PREFIX } else { UNLOGGED_PREFIX };
        self.name = self.name.replace(prefix, &format!("{prefix}{ENTRY}/"));
        self.is_of_pattern = true;
    }

    fn settings(&self) -> SowTopicSettings {
        let pattern = self.is_of_pattern.then(|| format!(".*/{ENTRY}/.*"));
        SowTopicSettings {
            name: if pattern.is_some() { ENTRY.to_owned() } else { self.name.clone() },
            pattern,
            history: self.granularity_ns.map(|granularity_ns| HistorySettings {
                window_ns: HISTORY_NS,
                granularity_ns,
                max_size: 1 << 30,
            }),
            message_type: "json".into(),
            key: if self.has_generated_keys { vec!["/k".into()] } else { Vec::new() },
            durability: self.durability,
            recovery_point: self.recovery_point.map(str::to_owned),
            expiration: self.expiration,
            ..SowTopicSettings::default()
        }
    }

    /// When the record of a message that was taken at `received_ns` ends.
    fn end_of(&self, received_ns: u64, expiration_s: Option<u32>) -> Option<u64> {
        let lifetime_ns = match (self.expiration, expiration_s) {
            (TableExpiration::Disabled, _) | (TableExpiration::Enabled, None) | (_, Some(0)) => return None,
            (_, Some(seconds)) => u64::from(seconds) * SECOND_NS,
            (TableExpiration::AfterNs(lifetime_ns), None) => lifetime_ns,
        };
        Some(received_ns + lifetime_ns)
    }

    /// The first change that a server knows which starts with a log from the position `first` on.
    /// The snapshot of a persistent topic has the changes before it.
    fn known_from(&self, first: u64) -> u64 {
        match (self.durability, self.recovery_point) {
            (TableDurability::Persistent, _) => 0,
            (TableDurability::Transient, Some("epoch")) => first,
            (TableDurability::Transient, _) => u64::MAX,
        }
    }
}

/// The last-value topics of a world: mostly one or two. `more` draws what only some of them have.
pub(super) fn draw_topics(random: &mut Random, more: &mut Random) -> Vec<Topic> {
    let count = if random.percent(75) { 1 + random.below(2) as usize } else { 0 };
    let mut topics: Vec<_> = (0..count).map(|number| Topic::draw(number, random)).collect();
    if more.percent(25) {
        topics.truncate(1);
        topics.iter_mut().for_each(Topic::join_entry);
        // Topics of one entry have the same settings.
        if let Some(first) = topics.first() {
            let second = Topic { name: format!("{}-2", first.name), ..first.clone() };
            topics.push(second);
        }
        return topics;
    }
    for topic in &mut topics {
        let keeps_history = topic.durability == TableDurability::Persistent && more.percent(80);
        let granularity_ns = [0, 0, SECOND_NS / 10, SECOND_NS][more.below(4) as usize];
        topic.granularity_ns = keeps_history.then_some(granularity_ns);
    }
    topics
}

/// Their entries of the configuration.
pub(super) fn settings(topics: &[Topic]) -> Vec<SowTopicSettings> {
    let mut all: Vec<_> = topics.iter().map(Topic::settings).collect();
    all.dedup();
    all
}

/// The rules of the transaction log for them.
pub(super) fn rules() -> [RecordedTopic; 2] {
    let unlogged = RecordedTopic::new(&format!("^{UNLOGGED_PREFIX}"), "json");
    [RecordedTopic::new(&format!("^{PREFIX}"), "json"), RecordedTopic { recorded: false, ..unlogged }]
}

/// The records that a command asks for.
#[derive(Clone, Debug)]
pub(super) struct Want {
    condition: Condition,
    /// Values of `/k`, whose keys the command names.
    keys: Option<Vec<u64>>,
}

#[derive(Clone, Copy, Debug)]
enum Condition {
    All,
    Is(u64),
    Above(u64),
    Below(u64),
}

impl Want {
    const ALL: Want = Want { condition: Condition::All, keys: None };

    fn draw(topic: &Topic, random: &mut Random) -> Self {
        let condition = match random.below(5) {
            0 => Condition::Is(random.below(topic.key_count)),
            1 => Condition::Above(random.below(QUANTITIES)),
            2 => Condition::Below(1 + random.below(QUANTITIES)),
            _ => Condition::All,
        };
        let mut keys = |_| (0..1 + random.below(5)).map(|_| random.below(topic.key_count)).collect();
        let names_keys = topic.key_count.is_multiple_of(3);
        Want { condition, keys: names_keys.then_some(()).map(&mut keys) }
    }

    /// The keys of the records, as a command names them; `None`: one of them is not known yet.
    fn names(&self, ledger: &Ledger, topic: usize) -> Option<Option<Vec<String>>> {
        let Some(keys) = &self.keys else { return Some(None) };
        keys.iter().map(|key| ledger.key_name(topic, *key)).collect::<Option<_>>().map(Some)
    }

    fn filter(&self) -> Option<String> {
        match self.condition {
            Condition::All => None,
            Condition::Is(key) => Some(format!("/k = {key}")),
            Condition::Above(quantity) => Some(format!("/q > {quantity}")),
            Condition::Below(quantity) => Some(format!("/q < {quantity}")),
        }
    }

    fn matches(&self, key: u64, quantity: u64) -> bool {
        let has_key = self.keys.as_ref().is_none_or(|keys| keys.contains(&key));
        has_key
            && match self.condition {
                Condition::All => true,
                Condition::Is(wanted) => key == wanted,
                Condition::Above(bound) => quantity > bound,
                Condition::Below(bound) => quantity < bound,
            }
    }
}
