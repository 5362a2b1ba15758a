//! Written records are found by position, bookmark, time and topic.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use quire_journal::*;

use crate::support::*;

#[test]
fn bookmarks_times_and_positions_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=1000);
    let reader = journal.reader();
    for sequence in [1, 2, 130, 999, 1000] {
        let bookmark = Bookmark { publisher: PublisherId(7), sequence };
        assert_eq!(reader.find(bookmark).unwrap(), Some(Position(sequence)));
        assert_eq!(reader.position_before(Timestamp(sequence * 1000)).unwrap(), Position(sequence));
        assert_eq!(reader.position_before(Timestamp(sequence * 1000 + 999)).unwrap(), Position(sequence));
        let place = place_of(&reader, Position(sequence)).unwrap();
        let (segment, offset) = reader.find_place(bookmark).unwrap().unwrap();
        assert_eq!((&segment.path, offset), (&place.path, place.offset));
        assert!(reader.segments().contains(&segment));
    }
    assert_eq!(reader.position_before(Timestamp(10)).unwrap(), Position(0));
    assert_eq!(reader.find(Bookmark { publisher: PublisherId(7), sequence: 1001 }).unwrap(), None);
    assert_eq!(reader.find(Bookmark { publisher: PublisherId(8), sequence: 1 }).unwrap(), None);
}

#[test]
fn a_segment_names_its_first_and_last_record_while_it_grows_and_when_it_is_full() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    let reader = journal.reader();
    for last in 1..=400 {
        append(&mut journal, last..=last);
        // Called again and again, as a program that watches the journal does.
        for segment in reader.segments() {
            let (first, last) = segment.positions.unwrap();
            let named = |position: Position| Bookmark { publisher: PublisherId(7), sequence: position.get() };
            assert_eq!(segment.bookmarks, Some((named(first), named(last))));
        }
    }
    assert!(reader.segments().len() > 2);
}

#[test]
fn a_cursor_for_a_rare_topic_gives_all_of_it_and_skips_most_of_the_rest() {
    struct Rare;
    impl TopicFilter for Rare {
        fn wants(&self, topic: &str) -> bool {
            topic == "rare"
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let options = Options { segment_size: 1024 * 1024, ..small() };
    let (mut journal, _) = Journal::open(directory.path(), &options, &mut |_| ()).unwrap();
    for sequence in 1..=20_000 {
        let topic = if sequence % 2500 == 0 { "rare" } else { "common" };
        journal.append(&record(sequence, topic, &[0; 500])).unwrap();
    }
    journal.flush(SOON).unwrap();
    let reader = journal.reader();
    let mut cursor = reader.cursor(Position(0));
    let (mut rare, mut read) = (Vec::new(), 0);
    while let Some(batch) = cursor.next(reader.persisted(), &Rare).unwrap() {
        read += batch.records().count();
        rare.extend(batch.records().filter(|record| record.topic == "rare").map(|record| record.sequence));
    }
    assert_eq!(rare, (1..=8).map(|i| i * 2500).collect::<Vec<_>>());
    assert_eq!(cursor.after(), Position(20_000));
    assert!(read < 5_000, "read {read} records");
}

#[test]
fn a_reader_in_another_place_follows_the_journal_as_it_grows() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=30);
    let reader = Reader::open_read_only(directory.path()).unwrap();
    assert_eq!(sequences(&reader, Position(0)), (1..=30).collect::<Vec<_>>());
    append(&mut journal, 31..=700);
    reader.refresh().unwrap();
    assert_eq!(sequences(&reader, Position(0)), (1..=700).collect::<Vec<_>>());
    assert_eq!(reader.verify(), []);
    assert_eq!(reader.segments().last().unwrap().positions.unwrap().1, Position(700));
}

#[test]
fn a_cursor_asks_for_every_topic_once_and_not_once_in_every_segment() {
    struct Asked(RefCell<Vec<String>>);
    impl TopicFilter for Asked {
        fn wants(&self, topic: &str) -> bool {
            self.0.borrow_mut().push(topic.into());
            topic != "topic-3"
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=2000);
    let reader = journal.reader();
    assert!(reader.segments().len() > 10);
    let asked = Asked(RefCell::default());
    let mut cursor = reader.cursor(Position(0));
    while cursor.next(reader.persisted(), &asked).unwrap().is_some() {}
    let mut asked = asked.0.into_inner();
    asked.sort();
    assert_eq!(asked, (0..10).map(|topic| format!("topic-{topic}")).collect::<Vec<_>>());
}

#[test]
fn following_opens_no_segment_twice() {
    let disk = CountingDisk::new();
    let options = Options { segment_size: 64 * 1024, ..Options::default() };
    let (mut journal, _) =
        Journal::driven_by_hand(Arc::new(disk.disk.clone()), Path::new("journal"), &options).unwrap();
    append(&mut journal, 1..=1000);
    // The journal itself reads each segment when it is sealed.
    let before = disk.opened();
    let reader = Reader::open_read_only_on(Arc::new(disk.disk.clone()), Path::new("journal"), None).unwrap();
    let opened = disk.opened() - before;
    let segments = reader.segments().len();
    // The last one is opened again to be read to its end.
    assert!(segments > 8 && opened <= segments + 1, "{opened} opened for {segments}");
    for round in 0..50 {
        append(&mut journal, 1001 + round * 10..=1010 + round * 10);
        let before = disk.opened();
        reader.refresh().unwrap();
        // One of them is the oldest, to see that it is still there.
        assert!(disk.opened() - before <= 3, "{} opened in one round", disk.opened() - before);
    }
    assert_eq!(sequences(&reader, Position(0)), (1..=1500).collect::<Vec<_>>());
}

#[test]
fn a_record_of_a_batch_is_found_where_its_offset_says() {
    let directory = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(directory.path());
    append(&mut journal, 1..=20);
    let mut cursor = journal.reader().cursor(Position(7));
    let mut found = 7;
    while let Some(batch) = cursor.next(Position(15), &AllTopics).unwrap() {
        let records: Vec<_> = batch.records().collect();
        let offsets = batch.offsets();
        assert_eq!(offsets.len(), records.len());
        for (offset, record) in offsets.into_iter().zip(records) {
            found += 1;
            assert_eq!(batch.record_at(offset, Position(found)), Some(record));
        }
    }
    assert_eq!(found, 15);
}

#[test]
fn an_index_says_which_blocks_hold_only_messages_and_those_of_one_topic() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { segment_size: 256 * 1024, ..small() };
    let (mut journal, _) = Journal::open(directory.path(), &options, &mut |_| ()).unwrap();
    let data = [b'x'; 8000];
    for sequence in 1..=100 {
        let topic = if sequence <= 50 { "a" } else { "b" };
        let kind = if sequence == 75 { RecordKind::Lease } else { RecordKind::Publish };
        let new = NewRecord { kind, ..record(sequence, topic, &data) };
        assert!(matches!(journal.append(&new), Ok(Appended::Recorded(_))));
    }
    journal.flush(SOON).unwrap();
    let check = |reader: &Reader| {
        let (mut next, mut block_count, mut mixed, mut with_events) = (11, 0, vec![], vec![]);
        let show = |range: BlockRange, content: BlockContent<'_>| {
            assert_eq!(range.first.get(), next, "no gap");
            next = range.last.get() + 1;
            block_count += 1;
            match content.topic {
                Some("a") => assert!(range.last.get() <= 50),
                Some("b") => assert!(range.first.get() > 50),
                _ => mixed.push(range),
            }
            if !content.has_only_messages {
                with_events.push(range);
            }
        };
        reader.for_each_block_content(Position(10), Position(99), show).unwrap();
        assert_eq!(next, 100);
        assert!(block_count > 5, "{block_count} blocks");
        let holds = |range: &BlockRange, at: u64| range.first.get() <= at && range.last.get() >= at;
        // A block can end between the two topics.
        assert!(
            mixed.len() <= 1 && mixed.iter().all(|range| holds(range, 50) && holds(range, 51)),
            "{mixed:?}"
        );
        assert!(with_events.len() == 1 && holds(&with_events[0], 75), "{with_events:?}");
    };
    check(&journal.reader());
    check(&Reader::open_read_only(directory.path()).unwrap());
    journal.close().unwrap();
    // From the files of the indexes.
    check(&Reader::open_read_only(directory.path()).unwrap());
}
