//! The journal against a list of records: whatever is done to it, it holds what the list holds, and
//! finds it in every way.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quire_journal::*;

use crate::support::*;

#[derive(Clone, Debug)]
enum Step {
    /// Appends a record: publisher, how its sequence is chosen, topic, bytes, time since the one
    /// before.
    Append {
        publisher: u64,
        sequence: Sequence,
        topic: usize,
        size: usize,
        later_ns: u64,
        /// Bytes of its key, and instances that it passed.
        key: usize,
        passed: usize,
    },
    /// Appends as many records of 500 bytes.
    Crowd(u64),
    Submit,
    Flush,
    /// Ends with or without a clean stop, and begins again.
    Reopen {
        cleanly: bool,
    },
    /// Reads everything after the position, which is a part of the log.
    Read(prop::sample::Index),
    ReadTopic(usize),
    Find(prop::sample::Index),
    FindTime(prop::sample::Index),
}

/// Relative to the highest of the publisher.
#[derive(Clone, Copy, Debug)]
enum Sequence {
    None,
    Above(u64),
    Below(u64),
}

const TOPICS: [&str; 4] = ["orders", "trades", "rare", "ticks/of/a/longer/name"];

fn step() -> impl Strategy<Value = Step> {
    let sequence = prop_oneof![
        1 => Just(Sequence::None),
        6 => (1u64..4).prop_map(Sequence::Above),
        1 => (0u64..3).prop_map(Sequence::Below),
    ];
    let size = prop_oneof![8 => 0usize..600, 1 => 60_000usize..140_000];
    let topic = prop_oneof![10 => 0usize..2, 1 => 2usize..4];
    let attributes =
        (prop_oneof![3 => Just(0usize), 1 => 1usize..300], prop_oneof![3 => Just(0usize), 1 => 1usize..5]);
    let append = (1u64..4, sequence, topic, size, 0u64..3, attributes).prop_map(
        |(publisher, sequence, topic, size, later_ns, (key, passed))| Step::Append {
            publisher,
            sequence,
            topic,
            size,
            later_ns,
            key,
            passed,
        },
    );
    prop_oneof![
        12 => append,
        3 => (1u64..200).prop_map(Step::Crowd),
        2 => Just(Step::Submit),
        3 => Just(Step::Flush),
        2 => any::<bool>().prop_map(|cleanly| Step::Reopen { cleanly }),
        2 => any::<prop::sample::Index>().prop_map(Step::Read),
        1 => (0usize..4).prop_map(Step::ReadTopic),
        2 => any::<prop::sample::Index>().prop_map(Step::Find),
        2 => any::<prop::sample::Index>().prop_map(Step::FindTime),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Known {
    publisher: u64,
    sequence: u64,
    topic: &'static str,
    data: Vec<u8>,
    timestamp: u64,
    key: Vec<u8>,
    path: Vec<String>,
}

/// The journal and the list.
struct Pair {
    disk: MemoryDisk,
    journal: Journal,
    list: Vec<Known>,
    /// It was stopped cleanly at least once.
    is_marked: bool,
    highest: BTreeMap<u64, u64>,
    now_ns: u64,
}

impl Pair {
    fn new() -> Self {
        let disk = MemoryDisk::new(1 << 30);
        let (journal, _) = open_on(&disk).unwrap();
        Pair { disk, journal, list: Vec::new(), is_marked: false, highest: BTreeMap::new(), now_ns: 1 }
    }

    /// What is persistent, as the list has it.
    fn persisted(&self) -> &[Known] {
        &self.list[..self.journal.persisted().get() as usize]
    }

    fn append(
        &mut self,
        publisher: u64,
        sequence: Sequence,
        topic: &'static str,
        size: usize,
        (key, passed): (usize, usize),
    ) {
        let highest = self.highest.get(&publisher).copied().unwrap_or(0);
        let position = self.list.len() as u64 + 1;
        let given = match sequence {
            Sequence::None => 0,
            Sequence::Above(by) => highest + by,
            Sequence::Below(by) => highest.saturating_sub(by),
        };
        let sequence = if given == 0 { position.max(highest + 1) } else { given };
        let data = vec![position as u8; size];
        let key = vec![position as u8; key];
        let path: Vec<String> = (0..passed).map(|number| format!("instance-{number}-{position}")).collect();
        let mut passed = InstancePathBuffer::default();
        path.iter().for_each(|name| passed.push(Instance { name, group: "all" }).unwrap());
        let mut buffer = AttributesBuffer::default();
        let attributes = buffer
            .encode(&NewAttributes { key: &key, path: passed.as_path(), ..NewAttributes::default() })
            .unwrap();
        let record = NewRecord {
            kind: RecordKind::Publish,
            message_type: 1,
            publisher: PublisherId(publisher),
            sequence: given,
            timestamp: Timestamp(self.now_ns),
            topic,
            correlation_id: b"",
            expiration_s: None,
            attributes,
            data: &data,
        };
        let appended = self.journal.append(&record).unwrap();
        if sequence <= highest {
            assert_eq!(appended, Appended::Duplicate { highest });
        } else {
            assert_eq!(appended, Appended::Recorded(Position(position)));
            self.highest.insert(publisher, sequence);
            self.list.push(Known { publisher, sequence, topic, data, timestamp: self.now_ns, key, path });
        }
    }

    fn reopen(&mut self, cleanly: bool) {
        let (closed, _) = open_on(&MemoryDisk::new(1 << 20)).unwrap();
        let journal = std::mem::replace(&mut self.journal, closed);
        if cleanly {
            journal.close().unwrap();
        } else {
            // Records that were not persistent are lost. The disk in memory loses no others.
            let persisted = journal.persisted().get() as usize;
            std::mem::forget(journal);
            self.list.truncate(persisted);
        }
        let (journal, recovery) = open_on(&self.disk).unwrap();
        self.is_marked |= cleanly;
        // Nothing was ever written: a stop without a mark is as good as one.
        let is_new = !self.is_marked && self.list.is_empty();
        assert_eq!((recovery.was_clean, recovery.cut), (cleanly || is_new, None));
        assert_eq!(recovery.indexes_rebuilt, 0);
        assert_eq!(recovery.records, self.list.len() as u64);
        assert_eq!(journal.persisted().get() as usize, self.list.len());
        self.highest.clear();
        for known in &self.list {
            self.highest.insert(known.publisher, known.sequence);
        }
        for publisher in 1..4 {
            assert_eq!(
                journal.highest_sequence(PublisherId(publisher)),
                self.highest.get(&publisher).copied()
            );
        }
        self.journal = journal;
    }

    fn read(&self, after: usize, wants: &dyn TopicFilter) {
        let reader = self.journal.reader();
        let mut cursor = reader.cursor(Position(after as u64));
        let mut expected =
            (after..).zip(&self.persisted()[after..]).filter(|(_, known)| wants.wants(known.topic));
        while let Some(batch) = cursor.next(reader.persisted(), wants).unwrap() {
            for record in batch.records().filter(|record| wants.wants(record.topic)) {
                let (at, known) = expected.next().expect("no more than the list holds");
                assert_eq!(record.position.get() as usize, at + 1);
                assert_eq!((record.publisher.get(), record.sequence), (known.publisher, known.sequence));
                assert_eq!((record.topic, record.data), (known.topic, &known.data[..]));
                assert_eq!(record.timestamp, Timestamp(known.timestamp));
                assert_eq!(record.key().unwrap_or_default(), known.key);
                assert!(record.path().instances().map(|instance| instance.name).eq(&known.path));
            }
        }
        assert_eq!(expected.next(), None, "all that the list holds");
    }

    fn find(&self, at: usize) {
        let Some(known) = self.persisted().get(at) else { return };
        let reader = self.journal.reader();
        let bookmark = |sequence| Bookmark { publisher: PublisherId(known.publisher), sequence };
        assert_eq!(reader.find(bookmark(known.sequence)).unwrap(), Some(Position(at as u64 + 1)));
        let other = known.sequence + 1;
        let expected = self.persisted().iter().position(|other_known| {
            (other_known.publisher, other_known.sequence) == (known.publisher, other)
        });
        assert_eq!(reader.find(bookmark(other)).unwrap(), expected.map(|at| Position(at as u64 + 1)));
    }

    fn find_time(&self, instant: u64) {
        let expected = self.persisted().partition_point(|known| known.timestamp <= instant);
        let found = self.journal.reader().position_before(Timestamp(instant)).unwrap();
        assert_eq!(found, Position(expected as u64));
    }
}

struct One(&'static str);

impl TopicFilter for One {
    fn wants(&self, topic: &str) -> bool {
        topic == self.0
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_journal_holds_and_finds_what_the_list_holds(steps in prop::collection::vec(step(), 1..80)) {
        let mut pair = Pair::new();
        for step in steps {
            match step {
                Step::Append { publisher, sequence, topic, size, later_ns, key, passed } => {
                    pair.now_ns += later_ns;
                    pair.append(publisher, sequence, TOPICS[topic], size, (key, passed));
                }
                Step::Crowd(count) => {
                    for number in 0..count {
                        pair.now_ns += 1;
                        pair.append(number % 3 + 1, Sequence::Above(1), TOPICS[number as usize % 2], 500, (0, 0));
                    }
                }
                Step::Submit => pair.journal.submit(),
                Step::Flush => {
                    pair.journal.submit();
                    pair.journal.flush(SOON).unwrap();
                    prop_assert_eq!(pair.journal.persisted().get() as usize, pair.list.len());
                }
                Step::Reopen { cleanly } => pair.reopen(cleanly),
                Step::Read(at) => pair.read(at.index(pair.persisted().len() + 1), &AllTopics),
                Step::ReadTopic(topic) => pair.read(0, &One(TOPICS[topic])),
                Step::Find(at) => pair.find(at.index(pair.persisted().len().max(1))),
                Step::FindTime(at) => pair.find_time(at.index(pair.now_ns as usize + 2) as u64),
            }
        }
        pair.reopen(true);
        pair.read(0, &AllTopics);
        prop_assert_eq!(pair.journal.reader().verify(), vec![]);
    }
}
