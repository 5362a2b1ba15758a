//! Records below the highest sequence of their publisher: a list of records says what the journal
//! must find and know, before and after restarts, crashes, and work on its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use quire_journal::*;

use crate::support::*;

const PUBLISHERS: u64 = 3;

/// A record that the list has.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    position: Position,
    publisher: u64,
    sequence: u64,
    run: u64,
    is_late: bool,
}

/// The knowledge that the list gives of one publisher.
#[derive(Clone, Debug, Default, PartialEq)]
struct OfPublisher {
    highest: u64,
    run: u64,
    missing: BTreeSet<u64>,
    /// Sequences that its publisher passed over.
    passed: BTreeSet<u64>,
}

impl OfPublisher {
    fn lacks(&self, sequence: u64) -> bool {
        self.missing.contains(&sequence) || self.passed.contains(&sequence)
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A record of a publisher: how far above the highest sequence, its run, and how far before it
    /// the one is that it follows. Without a run and that, it is a plain record.
    Next(u64, u64, Option<(u64, u64)>),
    /// A record with a sequence that the list lacks.
    Late(u64, prop::sample::Index, u64),
    Flush,
    Reopen {
        cleanly: bool,
    },
    Maintain(Action),
    Find(u64, prop::sample::Index),
    ReadAfter(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let publisher = || 1..=PUBLISHERS;
    let named = prop_oneof![
        1 => Just(None),
        4 => (1u64..4, prop_oneof![6 => Just(1), 1 => 1u64..9]).prop_map(Some),
    ];
    let above = prop_oneof![6 => Just(1), 1 => 2u64..12];
    let action = prop_oneof![Just(Action::Archive), Just(Action::Compress), Just(Action::Remove)];
    prop_oneof![
        12 => (publisher(), above, named).prop_map(|(publisher, above, named)| Step::Next(publisher, above, named)),
        6 => (publisher(), any::<prop::sample::Index>(), 1u64..4)
            .prop_map(|(publisher, at, run)| Step::Late(publisher, at, run)),
        3 => Just(Step::Flush),
        2 => any::<bool>().prop_map(|cleanly| Step::Reopen { cleanly }),
        1 => action.prop_map(Step::Maintain),
        3 => (publisher(), any::<prop::sample::Index>()).prop_map(|(publisher, at)| Step::Find(publisher, at)),
        1 => any::<prop::sample::Index>().prop_map(Step::ReadAfter),
    ]
}

/// The journal and the list.
struct Pair {
    disk: MemoryDisk,
    journal: Journal,
    list: Vec<Known>,
    /// The knowledge after each record: a crash removes the last ones.
    knowledge: Vec<BTreeMap<u64, OfPublisher>>,
}

const ARCHIVE: &str = "archive";

fn open(disk: &MemoryDisk) -> (Journal, Recovery) {
    let options = Options { archive_directory: Some(ARCHIVE.into()), ..small() };
    Journal::driven_by_hand(Arc::new(disk.clone()), Path::new(MEMORY), &options).unwrap()
}

impl Pair {
    fn new() -> Self {
        let disk = MemoryDisk::new(1 << 30);
        let journal = open(&disk).0;
        Pair { disk, journal, list: Vec::new(), knowledge: vec![BTreeMap::new()] }
    }

    fn of(&self, publisher: u64) -> OfPublisher {
        self.knowledge.last().unwrap().get(&publisher).cloned().unwrap_or_default()
    }

    fn has(&self, publisher: u64, sequence: u64) -> Option<&Known> {
        self.list.iter().find(|known| (known.publisher, known.sequence) == (publisher, sequence))
    }

    /// Appends a record that the list lacks.
    fn append(&mut self, publisher: u64, sequence: u64, named: Option<(u64, u64)>) {
        let mut of = self.of(publisher);
        let (run, follows) = match named {
            Some((run, back)) => (run, Some(sequence.saturating_sub(back))),
            None => (0, None),
        };
        let mut buffer = AttributesBuffer::default();
        let written = follows.filter(|follows| *follows + 1 != sequence);
        let new = NewAttributes { run, follows: written, ..NewAttributes::default() };
        let data = [sequence as u8; 3000];
        let record = NewRecord {
            publisher: PublisherId(publisher),
            attributes: buffer.encode(&new).unwrap(),
            ..record(sequence, "topic", &data)
        };
        let position = Position(self.list.len() as u64 + 1);
        let is_late = sequence <= of.highest;
        if is_late {
            assert_eq!(self.journal.append(&record).unwrap(), Appended::Duplicate { highest: of.highest });
        }
        assert_eq!(self.journal.append_late(&record).unwrap(), Appended::Recorded(position));
        of.passed.remove(&sequence);
        if is_late {
            if of.missing.remove(&sequence) {
                let unused = (follows.map_or(sequence, |follows| follows + 1)..sequence).rev();
                let unused: Vec<u64> = unused.take_while(|unused| of.missing.contains(unused)).collect();
                of.missing.retain(|sequence| !unused.contains(sequence));
                of.passed.extend(unused);
            }
        } else {
            of.missing.extend(of.highest + 1..=follows.unwrap_or(0));
            of.passed.extend(follows.map_or(sequence, |follows| follows.max(of.highest) + 1)..sequence);
            (of.highest, of.run) = (sequence, run);
        }
        self.list.push(Known { position, publisher, sequence, run, is_late });
        let mut knowledge = self.knowledge.last().unwrap().clone();
        knowledge.insert(publisher, of);
        self.knowledge.push(knowledge);
    }

    fn append_late(&mut self, publisher: u64, at: prop::sample::Index, run: u64) {
        let of = self.of(publisher);
        let lacking: Vec<u64> =
            (1..of.highest).filter(|sequence| self.has(publisher, *sequence).is_none()).collect();
        if lacking.is_empty() {
            return;
        }
        let sequence = lacking[at.index(lacking.len())];
        match self.journal.held(Bookmark { publisher: PublisherId(publisher), sequence }) {
            // The publisher used no such sequence in this run.
            Held::OfRun(known) => assert_eq!((known, of.lacks(sequence)), (of.run, false)),
            Held::Missing => {
                assert!(of.lacks(sequence), "{sequence}");
                self.append(publisher, sequence, Some((run, 1)));
            }
            Held::Unknown { after } => {
                assert_eq!(after, self.journal.appended());
                self.append(publisher, sequence, Some((run, 1)));
            }
            Held::No => panic!("{sequence} is below {}", of.highest),
        }
    }

    /// Compares the knowledge about all publishers.
    fn check(&self) {
        for publisher in 1..=PUBLISHERS {
            let of = self.of(publisher);
            let id = PublisherId(publisher);
            assert_eq!(self.journal.highest_sequence(id), (of.highest > 0).then_some(of.highest));
            assert_eq!(self.journal.current_run(id), of.run);
            let holes = self.journal.holes(id).iter().flat_map(|(first, last)| *first..=*last);
            assert_eq!(holes.collect::<BTreeSet<_>>(), of.missing);
            for sequence in 1..of.highest + 2 {
                let known = self.has(publisher, sequence);
                match self.journal.held(Bookmark { publisher: id, sequence }) {
                    Held::No => assert!(sequence > of.highest),
                    Held::OfRun(run) => assert!(known.is_none_or(|known| known.run == run), "{sequence}"),
                    Held::Missing => assert!(known.is_none() && of.lacks(sequence), "{sequence}"),
                    Held::Unknown { .. } => assert!(sequence <= of.highest),
                }
            }
        }
    }

    fn find(&self, publisher: u64, sequence: u64) {
        let reader = self.journal.reader();
        let (first, last) = (reader.first(), reader.persisted());
        let there = self.list.iter().filter(|known| {
            known.publisher == publisher
                && (first..=last).contains(&known.position)
                && known.sequence >= sequence
        });
        let expected = there.min_by_key(|known| known.sequence);
        let bookmark = Bookmark { publisher: PublisherId(publisher), sequence };
        let found = reader.find_from(bookmark).unwrap();
        assert_eq!(found, expected.map(|known| (known.sequence, known.position)), "{bookmark}");
        let exact = expected.filter(|known| known.sequence == sequence);
        assert_eq!(reader.find(bookmark).unwrap(), exact.map(|known| known.position));
        let place = reader.find_place(bookmark).unwrap();
        assert_eq!(place.is_some(), exact.is_some());
        if let (Some((segment, offset)), Some(known)) = (place, exact) {
            let at = place_of(&reader, known.position).unwrap();
            assert_eq!((segment.path, offset), (at.path, at.offset));
        }
    }

    fn read(&self, after: u64) {
        let reader = self.journal.reader();
        let after = Position(after.max(reader.first().0 - 1));
        let mut cursor = reader.cursor(after);
        let mut expected = self.list.iter().skip(after.0 as usize);
        while let Some(batch) = cursor.next(reader.persisted(), &AllTopics).unwrap() {
            for record in batch.records() {
                let Record { position, publisher, sequence, is_late, .. } = record;
                let known = Known {
                    position,
                    publisher: publisher.0,
                    sequence,
                    run: record.attributes.run(),
                    is_late,
                };
                assert_eq!(Some(&known), expected.next());
                assert_eq!((record.expiration_s, record.correlation_id), (Some(9), &b"c"[..]));
            }
        }
        assert_eq!(expected.len(), self.list.len() - reader.persisted().max(after).0 as usize);
    }

    /// The sums and the messages of all ranges of sequences are those of the list.
    fn check_sums(&self, reader: &Reader) {
        let kept = self.list.iter().filter(|known| known.position >= reader.first());
        let messages: BTreeSet<_> = kept
            .map(|known| {
                let bookmark = Bookmark { publisher: PublisherId(known.publisher), sequence: known.sequence };
                (bookmark, known.run)
            })
            .collect();
        let mut counts: BTreeMap<_, BTreeMap<u64, u32>> = BTreeMap::new();
        for (bookmark, _) in &messages {
            let ranges = counts.entry(bookmark.publisher).or_default();
            *ranges.entry(bookmark.sequence / 1024).or_default() += 1;
        }
        let publishers = (0..=PUBLISHERS).map(PublisherId).collect();
        let sums = reader.range_sums(&publishers).unwrap();
        let of = |sums: &[RangeSum]| sums.iter().map(|sum| (sum.number, sum.count)).collect();
        let found: BTreeMap<_, BTreeMap<u64, u32>> =
            sums.iter().map(|(publisher, sums)| (*publisher, of(sums))).collect();
        assert_eq!(found, counts);
        for (publisher, ranges) in &counts {
            let asked: BTreeSet<_> = ranges.keys().map(|number| (*publisher, *number)).collect();
            let found = reader.messages_in(&asked).unwrap();
            assert!(
                found.iter().eq(messages.iter().filter(|(bookmark, _)| bookmark.publisher == *publisher))
            );
            let own = self.journal.publisher_digests(0).find(|own| own.publisher == *publisher);
            assert_eq!(own.unwrap().highest, self.of(publisher.0).highest);
            if reader.first() == Position(1) {
                // The sum of the parts is the sum in memory.
                let sum = sums[publisher].iter().fold(0, |sum: u64, range| sum.wrapping_add(range.sum));
                assert_eq!((own.unwrap().sum, reader.kept_from(*publisher).unwrap()), (sum, 0));
            }
        }
    }

    fn reopen(&mut self, cleanly: bool) {
        let journal = std::mem::replace(&mut self.journal, open(&MemoryDisk::new(1 << 20)).0);
        let persisted = journal.persisted().0 as usize;
        if cleanly {
            journal.close().unwrap();
        } else {
            std::mem::forget(journal);
            self.list.truncate(persisted);
            self.knowledge.truncate(persisted + 1);
        }
        let (journal, recovery) = open(&self.disk);
        assert_eq!((recovery.indexes_rebuilt, recovery.sequences_lost), (0, false));
        self.journal = journal;
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_journal_with_late_records_finds_and_knows_what_the_list_does(
        steps in prop::collection::vec(step(), 1..250)
    ) {
        let mut pair = Pair::new();
        for step in steps {
            match step {
                Step::Next(publisher, above, named) => {
                    pair.append(publisher, pair.of(publisher).highest + above, named);
                }
                Step::Late(publisher, at, run) => pair.append_late(publisher, at, run),
                Step::Flush => pair.journal.flush(SOON).unwrap(),
                Step::Reopen { cleanly } => pair.reopen(cleanly),
                Step::Maintain(action) => {
                    pair.journal.maintenance().take_next(action, Which::All, None).unwrap();
                }
                Step::Find(publisher, at) => {
                    pair.find(publisher, at.index(pair.of(publisher).highest as usize + 2) as u64);
                }
                Step::ReadAfter(at) => pair.read(at.index(pair.list.len() + 1) as u64),
            }
        }
        pair.check();
        pair.reopen(true);
        for publisher in 1..=PUBLISHERS {
            (0..pair.of(publisher).highest + 2).for_each(|sequence| pair.find(publisher, sequence));
        }
        pair.read(0);
        prop_assert_eq!(pair.journal.reader().verify(), vec![]);
        pair.check_sums(&pair.journal.reader());
        // As another process reads it.
        let elsewhere = Reader::open_read_only_on(
            Arc::new(pair.disk.clone()), Path::new(MEMORY), Some(Path::new(ARCHIVE)),
        ).unwrap();
        pair.check_sums(&elsewhere);
        for known in pair.list.iter().filter(|known| known.position >= elsewhere.first()) {
            let bookmark = Bookmark { publisher: PublisherId(known.publisher), sequence: known.sequence };
            prop_assert_eq!(elsewhere.find(bookmark).unwrap(), Some(known.position));
        }
    }
}

/// A journal of some segments with late records of two publishers, and nothing left to write.
fn with_late_records() -> Pair {
    let mut pair = Pair::new();
    for round in 0..30 {
        for publisher in 1..=2 {
            let highest = pair.of(publisher).highest;
            pair.append(publisher, highest + 4, Some((1 + round / 20, 1)));
            pair.append(publisher, highest + 2, Some((1, 1)));
        }
        pair.journal.flush(SOON).unwrap();
    }
    pair
}

/// The list, the knowledge, and the searches of the journal on the disk after a crash.
fn check_after_crash(pair: &mut Pair, disk: MemoryDisk, least: usize) -> usize {
    let (journal, recovery) = open(&disk);
    let count = journal.persisted().0 as usize;
    assert!((least..=pair.list.len()).contains(&count) && !recovery.sequences_lost);
    let whole = (std::mem::replace(&mut pair.journal, journal), pair.list.clone(), pair.knowledge.clone());
    pair.list.truncate(count);
    pair.knowledge.truncate(count + 1);
    pair.check();
    for at in count.saturating_sub(6)..count {
        let Known { publisher, sequence, .. } = pair.list[at];
        (sequence - 1..=sequence + 1).for_each(|sequence| pair.find(publisher, sequence));
    }
    let crashed;
    (crashed, pair.list, pair.knowledge) = (std::mem::replace(&mut pair.journal, whole.0), whole.1, whole.2);
    std::mem::forget(crashed);
    count
}

#[test]
fn after_a_kill_at_any_byte_of_the_last_writes_the_rest_is_known() {
    let mut pair = with_late_records();
    let snapshot = Snapshot::of(&pair.disk);
    let active = pair.journal.reader().segments().pop().unwrap().path;
    let whole = snapshot.0[&active].clone();
    let end = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let all = pair.list.len();
    let mut counts = BTreeSet::new();
    // The last two flushes have four records of 3,000 bytes each. Most of their bytes are data.
    let heads = (0..8).flat_map(|back| (end - (back + 1) * 3_100).max(4096)..end - (back + 1) * 3_100 + 220);
    for cut in heads.chain(end - 20..=end) {
        let mut torn = snapshot.clone();
        torn.0.get_mut(&active).unwrap()[cut.min(end)..].fill(0);
        counts.insert(check_after_crash(&mut pair, torn.disk(), all - 12));
    }
    assert_eq!(counts.last(), Some(&all));
    assert!(counts.len() > 2, "{counts:?}");
}

#[test]
fn the_knowledge_is_the_same_when_its_file_lags_or_is_lost() {
    let mut pair = Pair::new();
    let clients = Path::new(MEMORY).join("clients.ack");
    let mut files = vec![pair.disk.read(&clients).unwrap()];
    for round in 0..30 {
        for publisher in 1..=PUBLISHERS {
            let highest = pair.of(publisher).highest;
            pair.append(publisher, highest + 4, Some((1 + round / 20, 1)));
            pair.append(publisher, highest + 2, Some((1, 1)));
        }
        pair.journal.flush(SOON).unwrap();
        let file = pair.disk.read(&clients).unwrap();
        if files.last() != Some(&file) {
            files.push(file);
        }
    }
    assert!(files.len() > 5, "{} files", files.len());
    let all = pair.list.len();
    let snapshot = Snapshot::of(&pair.disk);
    for file in files.into_iter().map(Some).chain([None]) {
        let mut older = snapshot.clone();
        match file {
            Some(file) => drop(older.0.insert(clients.clone(), file)),
            None => drop(older.0.remove(&clients)),
        }
        let disk = older.disk();
        check_after_crash(&mut pair, disk.clone(), all);
        // The start has written it again, as it would have been.
        let again = disk.read(&clients).unwrap();
        std::mem::forget(open(&disk));
        assert_eq!(disk.read(&clients).unwrap(), again);
        assert_eq!(again[..], snapshot.0[&clients][..]);
    }
}

#[test]
fn a_damaged_segment_after_the_file_costs_holes_and_no_message() {
    let pair = with_late_records();
    let reader = pair.journal.reader();
    let clients = Path::new(MEMORY).join("clients.ack");
    let mut snapshot = Snapshot::of(&pair.disk);
    let sealed = &reader.segments()[0];
    snapshot.0.get_mut(&sealed.path).unwrap()[5000] ^= 1;
    snapshot.0.remove(&clients);
    let (journal, _) = open(&snapshot.disk());
    for publisher in 1..=2 {
        let id = PublisherId(publisher);
        assert_eq!(journal.highest_sequence(id), Some(pair.of(publisher).highest));
        // The sequences of the damaged segment are looked up.
        assert_eq!(
            journal.held(Bookmark { publisher: id, sequence: 4 }),
            Held::Unknown { after: journal.appended() }
        );
    }
}

#[test]
fn an_index_without_sums_costs_one_look_at_its_segment() {
    let directory = tempfile::tempdir().unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/journal-v5");
    for part in ["journal", "archive"] {
        std::fs::create_dir(directory.path().join(part)).unwrap();
        for entry in std::fs::read_dir(golden.join(part)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, directory.path().join(part).join(path.file_name().unwrap())).unwrap();
        }
    }
    let archive = directory.path().join("archive");
    let options = Options { archive_directory: Some(archive.clone()), ..small() };
    let (journal, _) = Journal::open(directory.path().join("journal"), &options, &mut |_| ()).unwrap();
    let publishers = BTreeSet::from_iter(["loader-1", "loader-2"].map(PublisherId::of_client_name));
    let index = archive.join("quire.0000000000.index");
    let version = || std::fs::read(&index).unwrap()[8];
    assert_eq!(version(), 2);
    let sums = journal.reader().range_sums(&publishers).unwrap();
    assert_eq!(sums.values().flatten().map(|sum| sum.count).sum::<u32>(), 950);
    assert_eq!(version(), 3);
    // The segment is not read any more.
    let segment = index.with_extension("journal");
    let bytes = std::fs::read(&segment).unwrap();
    write_at(&segment, &[1; 100], 4200);
    assert_eq!(journal.reader().range_sums(&publishers).unwrap(), sums);
    std::fs::write(&segment, bytes).unwrap();
    assert_eq!(journal.reader().verify(), []);
    // The highest sequences are known, and the records of this version are not in the sums.
    let digests: Vec<_> = publishers
        .iter()
        .filter_map(|publisher| journal.publisher_digests(0).find(|digest| digest.publisher == *publisher))
        .map(|digest| (digest.publisher, digest.highest, digest.sum))
        .collect();
    let expected = publishers.iter().map(|publisher| {
        (*publisher, if *publisher == PublisherId::of_client_name("loader-1") { 950 } else { 949 }, 0)
    });
    assert_eq!(BTreeSet::from_iter(digests), expected.collect());
}

#[test]
fn records_count_once_when_a_power_cut_has_removed_the_next_segment() {
    let mut pair = Pair::new();
    while pair.journal.reader().segments().len() < 2 {
        let highest = pair.of(1).highest;
        pair.append(1, highest + 2, Some((5, 1)));
        pair.append(1, highest + 1, Some((6, 1)));
        pair.journal.flush(SOON).unwrap();
    }
    // `clients.ack` covers the first segment.
    let (_, last) = pair.journal.reader().segments()[0].positions.unwrap();
    let mut snapshot = Snapshot::of(&pair.disk);
    snapshot.0.retain(|path, _| !path.ends_with("quire.0000000001.journal"));
    pair.list.truncate(last.0 as usize);
    pair.knowledge.truncate(last.0 as usize + 1);
    pair.disk = snapshot.disk();
    std::mem::forget(std::mem::replace(&mut pair.journal, open(&pair.disk).0));
    assert_eq!(pair.journal.persisted(), last);
    for _ in 0..2 {
        pair.check();
        pair.check_sums(&pair.journal.reader());
        for _ in 0..15 {
            let highest = pair.of(1).highest;
            pair.append(1, highest + 2, Some((5, 1)));
            pair.append(1, highest + 1, Some((6, 1)));
        }
        pair.journal.flush(SOON).unwrap();
        pair.reopen(false);
    }
}

#[test]
fn the_sums_in_an_index_file_of_fewer_records_are_not_used() {
    let pair = with_late_records();
    let reader = pair.journal.reader();
    let publishers = (1..=PUBLISHERS).map(PublisherId).collect();
    let sums = reader.range_sums(&publishers).unwrap();
    let path = reader.segments()[0].path.with_extension("index");
    let mut bytes = pair.disk.read(&path).unwrap();
    let end = bytes.len() - 4;
    // The last position, and a byte of the last sum.
    bytes[40] -= 1;
    bytes[end - 9] ^= 1;
    let checksum = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    pair.disk.open(&path).unwrap().write_at(&bytes, 0).unwrap();
    assert_eq!(reader.range_sums(&publishers).unwrap(), sums);
    // The file was written again.
    assert_ne!(pair.disk.read(&path).unwrap(), bytes);
    assert_eq!(reader.verify(), []);
}

fn digests(pair: &Pair) -> BTreeSet<u64> {
    pair.journal.publisher_digests(0).map(|digest| digest.hash()).collect()
}

#[test]
fn two_logs_with_the_same_messages_have_equal_digests_in_any_order() {
    let (mut first, mut second) = (Pair::new(), Pair::new());
    for publisher in 1..=PUBLISHERS {
        (1..=50).for_each(|sequence| first.append(publisher, sequence, Some((1 + sequence / 30, 1))));
        second.append(publisher, 50, Some((2, 1)));
        (1..50).for_each(|sequence| second.append(publisher, sequence, Some((1 + sequence / 30, 1))));
    }
    assert_eq!(digests(&first), digests(&second));
    first.reopen(false);
    assert_ne!(digests(&first), digests(&second));
    second.reopen(true);
    let before = digests(&second);
    second.append(1, 51, Some((2, 1)));
    assert_ne!(digests(&second), before);
}

#[test]
fn a_late_record_is_a_duplicate_only_when_the_log_is_known_to_have_it() {
    let mut pair = Pair::new();
    (1..=5).for_each(|sequence| pair.append(1, sequence, Some((3, 1))));
    let data = [0; 10];
    let late = |sequence| NewRecord { publisher: PublisherId(1), ..record(sequence, "topic", &data) };
    assert_eq!(pair.journal.append_late(&late(4)).unwrap(), Appended::Duplicate { highest: 5 });
    // Above the highest one, and without a sequence, it is a record like any other.
    assert_eq!(pair.journal.append_late(&late(6)).unwrap(), Appended::Recorded(Position(6)));
    assert_eq!(pair.journal.append_late(&late(0)).unwrap(), Appended::Recorded(Position(7)));
    // The runs of these two are not known.
    assert_eq!(pair.journal.append_late(&late(6)).unwrap(), Appended::Recorded(Position(8)));
    let text = "x".repeat(70_000);
    let error = pair.journal.append_late(&NewRecord { topic: &text, ..late(2) }).unwrap_err();
    assert!(matches!(error, JournalError::BadOption { option: "topic", .. }), "{error}");
    pair.journal.flush(SOON).unwrap();
    let mut cursor = pair.journal.reader().cursor(Position(5));
    let batch = cursor.next(Position(8), &AllTopics).unwrap().unwrap();
    assert_eq!(batch.records().map(|record| record.is_late).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn a_late_record_waits_for_room_like_any_other() {
    let disk = MemoryDisk::new(1 << 30);
    let options = Options { unpersisted_size_max: 5000, ..small() };
    let (mut journal, _) = Journal::driven_by_hand(Arc::new(disk), Path::new(MEMORY), &options).unwrap();
    let data = [0; 4000];
    journal.append(&record(9, "topic", &data)).unwrap();
    let refused = journal.append_late(&record(3, "topic", &data)).unwrap_err();
    assert!(matches!(refused, JournalError::Behind { limit_bytes: 5000 }), "{refused}");
    journal.flush(SOON).unwrap();
    assert_eq!(journal.append_late(&record(3, "topic", &data)).unwrap(), Appended::Recorded(Position(2)));
}
