//! Micro-batches over a virtual clock: offsets, limits, waiting, and journals that are added.

mod support;

use std::path::Path;
use std::time::Duration;

use quire_spark::frame::Frame;
use quire_spark::read::Read;
use quire_spark::stream::{Batch, Latest, Limit, Stream};
use quire_types::Timestamp;
use quire_types::time::{Instant, Now};
use serde_json::{Value, json};
use support::{append, schema};

/// A clock that a test moves.
#[derive(Clone, Copy)]
struct Clock(Duration);

impl Clock {
    fn now(self) -> Now {
        Now {
            instant: Instant::from_ns(self.0.as_nanos() as u64),
            wall: Timestamp::from_ns(support::BEGIN_NS + self.0.as_nanos() as u64),
        }
    }

    /// Longer than a stream trusts what it knows of the directory.
    fn pass(&mut self) {
        self.0 += Duration::from_secs(1);
    }
}

fn publish(directory: &Path, publisher: u64, count: u64) {
    append(directory, publisher, &vec![("t", "{}".to_owned(), 0); count as usize]);
}

fn stream(options: Value, clock: Clock) -> Stream {
    let options = serde_json::from_value(options).unwrap();
    let frame = serde_json::to_value(Frame::of_stream(&options).unwrap()).unwrap();
    let read = json!({"frame": frame, "schema": schema(&[("position", "long")])});
    Stream::new(Read::from_json(&read.to_string()).unwrap(), clock.now()).unwrap()
}

fn initial(stream: &mut Stream, clock: Clock) -> Value {
    serde_json::to_value(stream.initial(clock.now().wall).unwrap()).unwrap()
}

fn latest(stream: &mut Stream, start: &Value, limit: Limit, clock: Clock) -> Option<Value> {
    let request = Latest { start: start.clone(), limit: Some(limit) };
    stream.latest(&request, clock.now()).unwrap().map(|offset| serde_json::to_value(offset).unwrap())
}

/// Begin and end in a journal.
fn place(offset: &Value, directory: &Path) -> (u64, u64) {
    let place = &offset["journals"][directory.to_str().unwrap()];
    (place["from"].as_u64().unwrap(), place["to"].as_u64().unwrap())
}

#[test]
fn a_batch_waits_for_its_messages_but_not_longer_than_the_delay() {
    let directory = tempfile::tempdir().unwrap();
    let (at, mut clock) = (directory.path(), Clock(Duration::from_secs(100)));
    publish(at, 1, 10);
    let options = |least: &str, delay: &str| json!({"path": at, "startingOffsets": "earliest", "minMessagesPerTrigger": least, "maxTriggerDelay": delay});
    let mut waiting = stream(options("11", "1h"), clock);
    let start = initial(&mut waiting, clock);
    assert_eq!(latest(&mut waiting, &start, Limit::Rows(1000), clock), None, "ten are not enough");
    publish(at, 2, 1);
    clock.pass();
    let end = latest(&mut waiting, &start, Limit::Rows(1000), clock).unwrap();
    assert_eq!(place(&end, at), (0, 11));
    let mut impatient = stream(options("1000", "15m"), clock);
    clock.0 += Duration::from_secs(899);
    assert_eq!(latest(&mut impatient, &start, Limit::Rows(1000), clock), None);
    clock.0 += Duration::from_secs(1);
    assert!(latest(&mut impatient, &start, Limit::Rows(1000), clock).is_some());
    let mut at_once = stream(options("1000", "1h"), clock);
    at_once.available_now().unwrap();
    assert!(latest(&mut at_once, &start, Limit::Rows(1000), clock).is_some());
}

#[test]
fn a_stream_looks_for_new_files_at_most_every_fifty_milliseconds() {
    let directory = tempfile::tempdir().unwrap();
    let (at, mut clock) = (directory.path(), Clock(Duration::from_secs(100)));
    publish(at, 1, 10);
    let mut stream = stream(json!({"path": at, "startingOffsets": "earliest"}), clock);
    let start = initial(&mut stream, clock);
    let end = latest(&mut stream, &start, Limit::All(true), clock).unwrap();
    publish(at, 2, 5);
    clock.0 += Duration::from_millis(50);
    assert_eq!(latest(&mut stream, &end, Limit::All(true), clock), None);
    clock.0 += Duration::from_millis(1);
    let next = latest(&mut stream, &end, Limit::All(true), clock).unwrap();
    assert_eq!(place(&next, at), (10, 15));
}

#[test]
fn available_now_ends_at_the_head_of_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let (at, mut clock) = (directory.path(), Clock(Duration::ZERO));
    publish(at, 1, 10);
    let mut stream = stream(json!({"path": at, "startingOffsets": "earliest"}), clock);
    let start = initial(&mut stream, clock);
    stream.available_now().unwrap();
    publish(at, 2, 10);
    clock.pass();
    let first = latest(&mut stream, &start, Limit::Rows(7), clock).unwrap();
    assert_eq!(place(&first, at), (0, 7));
    let second = latest(&mut stream, &first, Limit::Rows(7), clock).unwrap();
    assert_eq!(place(&second, at), (7, 10));
    assert_eq!(latest(&mut stream, &second, Limit::Rows(7), clock), None);
}

#[test]
fn several_journals_share_the_limit_and_leave_what_they_do_not_use() {
    let root = tempfile::tempdir().unwrap();
    let directories: Vec<_> = ["a", "b", "c"].iter().map(|name| root.path().join(name)).collect();
    for (directory, count) in directories.iter().zip([10, 50, 2]) {
        publish(directory, 1, count);
    }
    let clock = Clock(Duration::ZERO);
    let paths = serde_json::to_string(&directories).unwrap();
    let mut stream = stream(json!({"paths": paths, "startingOffsets": "earliest"}), clock);
    let start = initial(&mut stream, clock);
    let end = latest(&mut stream, &start, Limit::Rows(30), clock).unwrap();
    let places: Vec<_> = directories.iter().map(|directory| place(&end, directory)).collect();
    assert_eq!(places, [(0, 10), (0, 18), (0, 2)]);
    let end = latest(&mut stream, &end, Limit::Rows(30), clock).unwrap();
    assert_eq!(place(&end, &directories[1]), (18, 48));
}

#[test]
fn a_directory_that_is_added_begins_where_the_query_first_saw_it() {
    let root = tempfile::tempdir().unwrap();
    let (old, new) = (root.path().join("old"), root.path().join("new"));
    for directory in [&old, &new] {
        publish(directory, 1, 10);
    }
    let mut clock = Clock(Duration::ZERO);
    let start = initial(&mut stream(json!({"path": old}), clock), clock);
    assert_eq!(place(&start, &old), (10, 10), "a query begins with what comes");
    let mut both = stream(json!({"paths": json!([old, new]).to_string()}), clock);
    assert_eq!(latest(&mut both, &start, Limit::Rows(100), clock), None);
    publish(&new, 2, 3);
    clock.pass();
    let end = latest(&mut both, &start, Limit::Rows(100), clock).unwrap();
    assert_eq!((place(&end, &old), place(&end, &new)), ((10, 10), (10, 13)));
    let mut one = stream(json!({"path": new}), clock);
    let request = Latest { start: end, limit: None };
    let failure = one.latest(&request, clock.now()).unwrap_err();
    assert!(failure.text.contains("which is not read any more"), "{failure}");
}

#[test]
fn a_batch_is_planned_from_its_end_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (at, clock) = (directory.path(), Clock(Duration::ZERO));
    publish(at, 1, 100);
    let mut stream = stream(json!({"path": at, "startingOffsets": "-30"}), clock);
    let start = initial(&mut stream, clock);
    let end = latest(&mut stream, &start, Limit::Rows(20), clock).unwrap();
    // The first start of a query is not in the checkpoint of Spark: another one changes nothing.
    for start in [Some(start), None] {
        let planned = stream.plan(&Batch { start, end: end.clone() }, clock.now().wall).unwrap();
        let mut found = Vec::new();
        for task in &planned.tasks {
            let scan = support::Scanned::open(task).unwrap();
            while let (1.., numbers) = scan.next(5).unwrap() {
                found.extend(support::longs(&numbers).into_iter().flatten());
            }
        }
        assert_eq!(found, (71..=90).collect::<Vec<_>>());
    }
    stream.commit(&end).unwrap();
}

#[test]
fn another_journal_and_another_source_are_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let (at, mut clock) = (directory.path().join("j"), Clock(Duration::ZERO));
    publish(&at, 1, 10);
    let mut stream = stream(json!({"path": at, "startingOffsets": "earliest"}), clock);
    let start = initial(&mut stream, clock);
    let end = latest(&mut stream, &start, Limit::All(true), clock).unwrap();
    std::fs::remove_dir_all(&at).unwrap();
    publish(&at, 9, 20);
    clock.pass();
    let failure = stream.latest(&Latest { start: end, limit: None }, clock.now()).unwrap_err();
    assert!(failure.text.contains("this is not the journal that the read was planned on"), "{failure}");
    for other in
        [json!({"v": 1, "from": "(0", "to": "(1|1|", "at": 1}), json!({"v": 2, "journals": {}}), json!(null)]
    {
        let failure = stream.latest(&Latest { start: other, limit: None }, clock.now()).unwrap_err();
        assert!(failure.text.contains("an offset of another source or version"), "{failure}");
    }
}

#[test]
fn a_batch_from_an_offset_to_itself_reads_nothing_in_any_spelling() {
    let directory = tempfile::tempdir().unwrap();
    let (at, clock) = (directory.path(), Clock(Duration::ZERO));
    publish(at, 1, 10);
    let mut stream = stream(json!({"path": at, "startingOffsets": "earliest"}), clock);
    let start = initial(&mut stream, clock);
    let end = latest(&mut stream, &start, Limit::All(true), clock).unwrap();
    let mut tasks = |start: Option<&Value>, end: &Value| {
        let batch = Batch { start: start.cloned(), end: end.clone() };
        stream.plan(&batch, clock.now().wall).unwrap().tasks.len()
    };
    assert_eq!(tasks(Some(&start), &end), 1);
    assert_eq!(tasks(None, &end), 1, "the end knows where the batch began");
    assert_eq!(tasks(Some(&end), &end), 0);
    // Members in another order.
    let journals = end["journals"].as_object().unwrap().iter().map(|(directory, place)| {
        format!(r#"{directory:?} : {{"at":{}, "to":{},"from":{} }}"#, place["at"], place["to"], place["from"])
    });
    let text = format!(r#"{{ "journals":{{{}}},"v":1}}"#, journals.collect::<Vec<_>>().join(","));
    assert_eq!(tasks(Some(&serde_json::from_str(&text).unwrap()), &end), 0);
}

#[test]
fn the_newest_offset_is_the_end_of_the_log_in_the_form_of_an_offset() {
    let directory = tempfile::tempdir().unwrap();
    let (at, clock) = (directory.path(), Clock(Duration::ZERO));
    publish(at, 1, 10);
    let mut stream = stream(json!({"path": at, "startingOffsets": "earliest"}), clock);
    let newest = serde_json::to_value(stream.newest(clock.now().instant).unwrap()).unwrap();
    assert_eq!(place(&newest, at), (10, 10));
    let keys = |offset: &Value| -> Vec<String> { offset.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(keys(&newest), keys(&initial(&mut stream, clock)));
}
