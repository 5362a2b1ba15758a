//! Helpers for tests of queues, in addition to [`Pair`].

use quire_broker::{BrokerConfig, QueueSettings};
use quire_command::*;
use quire_types::Verdict;

use crate::pair::*;

/// A queue over the topic with the same name.
pub fn queue(name: &str) -> QueueSettings {
    QueueSettings { name: name.into(), message_type: "json".into(), ..QueueSettings::default() }
}

pub fn queue_config(queues: impl IntoIterator<Item = QueueSettings>) -> BrokerConfig {
    BrokerConfig { queues: queues.into_iter().collect(), ..config() }
}

pub fn with_queues(queues: impl IntoIterator<Item = QueueSettings>) -> Pair {
    Pair::with(queue_config(queues))
}

/// Client 1 publishes messages on `jobs` that hold their sequences.
pub fn publish_all(pair: &mut Pair, sequences: std::ops::RangeInclusive<u64>) {
    sequences.for_each(|sequence| pair.publish(1, sequence, "jobs", &sequence.to_string()));
    pair.turn();
}

/// A subscription with this limit of outstanding messages.
pub fn consume(number: u32, topic: &str, max_backlog: u32) -> Subscribe<'_> {
    Subscribe { max_backlog: Some(max_backlog), ..subscribe(number, topic) }
}

pub fn data(messages: &[FromQueue]) -> Vec<&str> {
    messages.iter().map(|message| message.data.as_str()).collect()
}

/// The bookmarks of messages as a `settle` carries them.
pub fn bookmarks(messages: &[FromQueue]) -> Vec<u8> {
    bookmark_bytes(&messages.iter().map(|message| message.bookmark).collect::<Vec<_>>())
}

fn bookmark_bytes(bookmarks: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bookmarks.iter().for_each(|(publisher, sequence)| put_bookmark(&mut bytes, *publisher, *sequence));
    bytes
}

impl Pair {
    /// The messages of queues that the client got since the last call. Other frames are left out.
    pub fn take_queued(&mut self, client: u64) -> Vec<FromQueue> {
        let queued = |said| match said {
            Said::Queued(message) => Some(message),
            _ => None,
        };
        self.take(client).into_iter().filter_map(queued).collect()
    }

    /// Settles without asking for an answer, and takes a turn.
    pub fn settle(&mut self, client: u64, queue: &str, verdict: Verdict, messages: &[FromQueue]) {
        self.settle_as(client, queue, verdict, messages, 0, Acks::default());
        self.turn();
    }

    pub fn settle_as(
        &mut self,
        client: u64,
        queue: &str,
        verdict: Verdict,
        messages: &[FromQueue],
        command: u32,
        acks: Acks,
    ) {
        let bookmarks: Vec<_> = messages.iter().map(|message| message.bookmark).collect();
        self.settle_bookmarks_as(client, queue, verdict, &bookmarks, command, acks);
    }

    /// As [`Pair::settle`], with a reason and without a turn.
    pub fn settle_because(
        &mut self,
        client: u64,
        queue: &str,
        verdict: Verdict,
        messages: &[FromQueue],
        reason: &str,
    ) {
        let bytes = bookmarks(messages);
        let messages = Selection::Bookmarks(Bookmarks::from_bytes(&bytes).unwrap());
        let (command, acks) = (0, Acks::default());
        self.send(client, &Command::Settle(Settle { verdict, command, acks, queue, messages, reason }));
    }

    /// As [`Pair::settle`], by bookmarks.
    pub fn settle_bookmarks(&mut self, client: u64, queue: &str, verdict: Verdict, bookmarks: &[(u64, u64)]) {
        self.settle_bookmarks_as(client, queue, verdict, bookmarks, 0, Acks::default());
        self.turn();
    }

    pub fn settle_bookmarks_as(
        &mut self,
        client: u64,
        queue: &str,
        verdict: Verdict,
        bookmarks: &[(u64, u64)],
        command: u32,
        acks: Acks,
    ) {
        let bytes = bookmark_bytes(bookmarks);
        let messages = Selection::Bookmarks(Bookmarks::from_bytes(&bytes).unwrap());
        self.send(client, &Command::Settle(Settle { verdict, command, acks, queue, messages, reason: "" }));
    }

    /// The bookmarks of the messages that [`Pair::take_queued`] would give.
    pub fn take_bookmarks(&mut self, client: u64) -> Vec<(u64, u64)> {
        self.take_queued(client).into_iter().map(|message| message.bookmark).collect()
    }

    /// The publisher id of a client.
    pub fn publisher_of(&self, client_name: &str) -> u64 {
        quire_journal::PublisherId::of_client_name(client_name).get()
    }

    /// A figure of a queue, as `stats` gives it.
    pub fn figure(&self, queue: &str, name: &str) -> u64 {
        let stats = serde_json::to_value(&self.broker.queue_stats()[queue]).unwrap();
        stats[name].as_u64().unwrap()
    }

    /// The process dies. The next one has the written data.
    pub fn restart(self, config: BrokerConfig) -> Pair {
        let Pair { broker, disk, now_ns, .. } = self;
        // A drop would write what the journal was handed.
        std::mem::forget(broker);
        let mut pair = Pair::on(disk, config);
        pair.now_ns = now_ns;
        pair
    }
}
