//! Settings, commands and answers for the tests of last-value topics.

use quire_broker::{BrokerConfig, RecordedTopic, SowTopicSettings, TableDurability, TransactionLogConfig};
use quire_command::*;

use crate::pair::*;

/// A topic whose keys are made of the field `/id`.
pub fn sow_topic(name: &str) -> SowTopicSettings {
    SowTopicSettings { key: vec!["/id".into()], ..supplied(name) }
}

/// A topic whose keys publishers supply.
pub fn supplied(name: &str) -> SowTopicSettings {
    SowTopicSettings { name: name.into(), message_type: "json".into(), ..SowTopicSettings::default() }
}

/// A topic that is in memory only.
pub fn transient(name: &str) -> SowTopicSettings {
    SowTopicSettings { durability: TableDurability::Transient, ..sow_topic(name) }
}

/// With all topics but `scratch` recorded.
pub fn sow_config(topics: impl IntoIterator<Item = SowTopicSettings>) -> BrokerConfig {
    let mut scratch = RecordedTopic::new("scratch", "json");
    scratch.recorded = false;
    let topics_of_log = vec![scratch, RecordedTopic::new("^", "json")];
    let transaction_log = TransactionLogConfig { topics: topics_of_log, ..TransactionLogConfig::default() };
    BrokerConfig { sow_topics: topics.into_iter().collect(), transaction_log, ..config() }
}

pub fn with_topics(topics: impl IntoIterator<Item = SowTopicSettings>) -> Pair {
    let mut pair = Pair::with(sow_config(topics));
    pair.client(1, "publisher");
    pair.client(2, "reader");
    pair
}

/// A query whose command and whose number are the same.
pub fn query(number: u32, topic: &str) -> Query<'_> {
    let acks = Acks::PROCESSED.and(Acks::COMPLETED);
    Query { command: number, acks, subscription: number, topic, wants_last_values: true, ..Query::default() }
}

/// A subscription that gets records first, and `oof`.
pub fn sow(number: u32, topic: &str) -> Subscribe<'_> {
    Subscribe { options: SubscribeOptions::SOW.and(SubscribeOptions::OOF), ..subscribe(number, topic) }
}

/// A subscription that gets of each change only the fields that differ.
pub fn delta(number: u32, topic: &str) -> Subscribe<'_> {
    Subscribe { options: SubscribeOptions::DELTA, ..subscribe(number, topic) }
}

/// As [`sow`], and of each change only the fields that differ.
pub fn sow_delta(number: u32, topic: &str) -> Subscribe<'_> {
    let sow = sow(number, topic);
    Subscribe { options: sow.options.and(SubscribeOptions::DELTA), ..sow }
}

pub fn delete(command: u32, sequence: u64, topic: &str) -> SowDelete<'_> {
    SowDelete { command, acks: Acks::PROCESSED, sequence, topic, ..SowDelete::default() }
}

impl Pair {
    /// The messages with keys that the client was sent since the last call: the kind in short, and
    /// the data.
    pub fn take_rows(&mut self, client: u64) -> Vec<String> {
        self.take(client).into_iter().filter_map(short).collect()
    }

    /// The data of the records of a query, sorted.
    pub fn records(&mut self, client: u64, query: Query<'_>) -> Vec<String> {
        let mut records = self.ordered(client, query);
        records.sort();
        records
    }

    /// The data of the records of a query.
    pub fn ordered(&mut self, client: u64, query: Query<'_>) -> Vec<String> {
        let number = query.subscription;
        self.take(client);
        self.send(client, &Command::Query(query));
        self.turn();
        let said = self.take(client);
        assert_eq!(said.first(), Some(&ack(AckKind::Processed, number, number)));
        assert_eq!(said.last(), Some(&ack(AckKind::Completed, number, number)), "{said:?}");
        let record = |said: &Said| match said {
            Said::Row(row) => {
                assert_eq!((row.kind, row.subscription, row.bookmark), (MessageKind::Record, number, None));
                row.data.clone()
            }
            other => panic!("{other:?}"),
        };
        said[1..said.len() - 1].iter().map(record).collect()
    }

    /// Deletes, and gives how many records that were.
    pub fn delete(&mut self, client: u64, delete: SowDelete<'_>) -> u32 {
        self.send(client, &Command::SowDelete(delete));
        self.turn();
        let answer = ack(AckKind::Processed, delete.command, 0);
        assert!(self.take(client).contains(&answer));
        self.clients[&client].detail
    }
}

/// A message with a key: `=` a record, `+` a publish, `~` a difference, `-` an `oof` with its
/// reason, `x` a delete; then the data.
pub fn short(said: Said) -> Option<String> {
    let Said::Row(row) = said else { return None };
    Some(match row.kind {
        MessageKind::Record => format!("={}", row.data),
        MessageKind::Publish => format!("+{}", row.data),
        MessageKind::Delta(_) => format!("~{}", row.data),
        MessageKind::Delete => format!("x{}", row.data),
        MessageKind::Oof(reason) => format!("-{reason:?} {}", row.data),
    })
}
