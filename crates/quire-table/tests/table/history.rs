//! History: the result of a scan of an earlier instant is the state that the model had then, while
//! rows change and over restarts.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_expression::message_type::MessageType;
use quire_journal::{Memory, Position, Timestamp};
use quire_table::*;

use crate::model::{Asked, Expected, Field, Model, Version, version};
use crate::random::{asked, field, key_name};
use crate::snapshots::{HEAD, owner, restore};
use crate::{PutRow, row};

/// In nanoseconds.
const WINDOW: u64 = 20;

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        fields: [Field; 3],
        lifetime: u8,
    },
    Remove {
        key: u8,
    },
    Wait {
        time: u8,
        expires: bool,
    },
    /// Asks for the state of an instant, by its time or by the position of a message.
    Open {
        asked: Asked,
        back: u64,
        by_position: bool,
    },
    Poll {
        scan: usize,
        effort: usize,
    },
    /// Continues with a table that was read from a snapshot.
    Restore,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let room = asked().prop_map(|asked| Asked { copies_size_max: 1 << 20, ..asked });
    let step = prop_oneof![
        10 => (0u8..6, [field(), field(), field()], 0u8..10).prop_map(|(key, fields, lifetime)| Step::Put {
            key,
            fields,
            lifetime: lifetime.saturating_sub(4),
        }),
        3 => (0u8..6).prop_map(|key| Step::Remove { key }),
        4 => (0u8..4, any::<bool>()).prop_map(|(time, expires)| Step::Wait { time, expires }),
        4 => (room, 0u64..25, any::<bool>())
            .prop_map(|(asked, back, by_position)| Step::Open { asked, back, by_position }),
        6 => (0usize..4, 0usize..9).prop_map(|(scan, effort)| Step::Poll { scan, effort }),
        1 => Just(Step::Restore),
    ];
    vec(step, 1..150)
}

fn config(granularity_ns: u64, size_max: usize) -> TableConfig {
    TableConfig {
        name: "orders".into(),
        message_type: MessageType::Json,
        key: None,
        hash_indexes: vec![vec!["/a".into()]],
        ordered_indexes: vec!["/b".into()],
        history: Some(HistoryConfig { window_ns: WINDOW, granularity_ns, size_max }),
        limits: IndexLimits::default(),
    }
}

pub fn table(granularity_ns: u64, size_max: usize) -> Table {
    Table::new(config(granularity_ns, size_max), &Memory::heap()).unwrap()
}

/// The table as a restart reads it.
fn restored(table: &mut Table, empty: Table) -> Table {
    let mut writer = SnapshotWriter::new(table, &owner(), &HEAD, 1 << 20);
    let mut bytes = Vec::new();
    while writer.write(table, 7, &mut bytes) == SnapshotState::More {}
    let mut read = empty;
    let (_, known) = restore(&mut read, &bytes, 50).unwrap();
    if let Some(known) = known {
        read.set_history_begin(known.begin);
    }
    read
}

struct World {
    table: Table,
    granularity: u64,
    now: u64,
    position: u64,
    /// The state after each change.
    states: Vec<(Moment, Model)>,
    scans: BTreeMap<ScanId, (Expected, Vec<Version>)>,
}

impl World {
    fn new(granularity: u64) -> Self {
        let states = vec![(Moment::default(), Model::default())];
        let table = table(granularity, 1 << 20);
        World { table, granularity, now: 100, position: 0, states, scans: BTreeMap::new() }
    }

    fn change(&mut self, change: impl FnOnce(&mut Model)) -> Moment {
        let moment = Moment { position: Position(self.position), timestamp: Timestamp(self.now) };
        let mut model = self.states.last().unwrap().1.clone();
        change(&mut model);
        self.states.push((moment, model));
        moment
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Put { key, fields, lifetime } => {
                self.position += 1;
                let key = key_name(*key);
                let mut new = version(&key, self.position, self.now, fields);
                new.expires = (*lifetime > 0).then(|| Timestamp(self.now + u64::from(*lifetime)));
                // The history needs the previous row although the caller does not.
                self.table.put_with(&new.row(), PutOptions::default()).unwrap();
                self.change(|model| drop(model.rows.insert(key.into(), (new, fields.clone()))));
            }
            Step::Remove { key } => {
                self.position += 1;
                let key = key_name(*key);
                let at = self.change(|model| drop(model.rows.remove(key.as_bytes())));
                self.table.remove(key.as_bytes(), at);
            }
            Step::Wait { time, expires } => {
                self.now += u64::from(*time);
                while *expires && self.table.pop_expired(Timestamp(self.now)) {}
            }
            Step::Open { asked, back, by_position } => self.open(asked, *back, *by_position),
            Step::Poll { scan, effort } => {
                if let Some(scan) = self.scans.keys().nth(*scan).copied() {
                    self.poll(scan, *effort);
                }
            }
            Step::Restore => {
                self.table = restored(&mut self.table, table(self.granularity, 1 << 20));
                self.table.set_exact_after(self.states.last().unwrap().0.timestamp);
                self.scans.clear();
            }
        }
    }

    fn open(&mut self, asked: &Asked, back: u64, by_position: bool) {
        // The message before `back` other changes, or the time `back` nanoseconds ago.
        let named = self.states.iter().rev().nth(back as usize).map(|(moment, _)| *moment);
        let (time, position) = match named.filter(|_| by_position) {
            Some(moment) => (moment.timestamp, Some(moment.position)),
            None => (Timestamp(self.now - back), None),
        };
        let now = Timestamp(self.now);
        let as_of = match self.table.as_of(time, position, now) {
            Ok(as_of) => as_of,
            Err(error) => {
                assert!(time < error.begin && self.now - time.0 >= WINDOW, "{time:?} {error:?}");
                assert!(self.table.as_of(error.begin, None, now).is_ok());
                return;
            }
        };
        let is_in_state = |moment: &Moment| match as_of {
            None => true,
            Some(AsOf { position: Some(position), .. }) => moment.position <= position,
            Some(AsOf { time, .. }) => moment.timestamp <= time,
        };
        let instant = as_of.map_or(now, |as_of| as_of.time);
        assert!(instant <= time || as_of.is_none());
        let (_, model) = self.states.iter().rev().find(|(moment, _)| is_in_state(moment)).unwrap();
        let expected = model.expected(asked, instant);
        let scan = self.table.open(Query { as_of, ..asked.query() }, now);
        self.scans.insert(scan, (expected, Vec::new()));
    }

    fn poll(&mut self, scan: ScanId, effort: usize) -> bool {
        let (expected, result) = self.scans.get_mut(&scan).unwrap();
        let polled = self.table.poll(scan, effort, &mut |row| {
            result.push(Version::of(row));
            result.len() % 3 != 0
        });
        match polled {
            Polled::More => return false,
            Polled::Done { matched } => expected.check(result, matched),
            failed => panic!("{failed:?}"),
        }
        self.table.close(scan);
        self.scans.remove(&scan);
        true
    }
}

fn run(granularity: u64, steps: &[Step]) {
    let mut world = World::new(granularity);
    steps.iter().for_each(|step| world.step(step));
    while let Some(scan) = world.scans.keys().next().copied() {
        while !world.poll(scan, 3) {}
    }
    assert_eq!(world.table.stats().copies_size, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn the_state_of_every_instant_is_that_of_the_model(steps in steps()) {
        run(0, &steps);
    }

    #[test]
    fn the_state_at_the_end_of_every_period_is_that_of_the_model(steps in steps()) {
        run(5, &steps);
    }
}

fn put(table: &mut Table, key: &str, at: u64) {
    table.put(&Row { position: Position(at), timestamp: Timestamp(at), ..row(key, "{}") });
}

#[test]
fn a_version_within_one_period_is_not_kept() {
    let mut table = table(10, 1 << 20);
    for (at, versions) in [(101, 0), (105, 0), (109, 0), (110, 1), (125, 2), (126, 2)] {
        put(&mut table, "a", at);
        assert_eq!(table.stats().versions, versions, "at {at}");
    }
}

#[test]
fn with_a_granularity_the_state_after_a_message_is_known_while_its_records_are() {
    let mut table = table(10, 1 << 20);
    let exact = |table: &Table, at| {
        let as_of = table.as_of(Timestamp(at), Some(Position(at)), Timestamp(120)).unwrap().unwrap();
        assert_eq!(as_of.time, as_of.position.map_or(Timestamp(at / 10 * 10 - 1), |_| Timestamp(at)));
        as_of.position.is_some()
    };
    for (at, key) in [(91, "a"), (101, "a"), (102, "b"), (103, "a"), (105, "c"), (111, "c"), (112, "d")] {
        put(&mut table, key, at);
    }
    // Only the row of 101 was not kept. It was in the states after 101 and 102.
    let known = [101, 102, 103, 105, 111, 112].map(|at| exact(&table, at));
    assert_eq!(known, [false, false, true, true, true, true]);
    // The end of a lifetime has a time and no position.
    let expires = Some(Timestamp(118));
    table.put(&Row { position: Position(114), timestamp: Timestamp(114), expires, ..row("e", "{}") });
    assert!(table.pop_expired(Timestamp(119)));
    assert_eq!([113, 115, 117, 118].map(|at| exact(&table, at)), [true, false, false, true]);
    put(&mut table, "d", 119);
    put(&mut table, "d", 120);
    table.set_exact_after(Timestamp(119));
    assert_eq!([103, 111, 119, 120].map(|at| exact(&table, at)), [false, false, false, true]);
}

/// Found by the model: the state after the last message of a snapshot had the record.
#[test]
fn a_record_that_expired_before_a_snapshot_is_missing_in_no_state_after_a_message() {
    let mut with_lifetime = table(10, 1 << 20);
    let expires = Some(Timestamp(103));
    with_lifetime.put(&Row { position: Position(1), timestamp: Timestamp(101), expires, ..row("e", "{}") });
    assert!(with_lifetime.pop_expired(Timestamp(104)));
    let mut restored = restored(&mut with_lifetime, table(10, 1 << 20));
    restored.set_exact_after(Timestamp(101));
    let after_message = |table: &Table| table.as_of(Timestamp(101), Some(Position(1)), Timestamp(104));
    let period_before = Ok(Some(AsOf { time: Timestamp(99), position: None }));
    assert_eq!(after_message(&with_lifetime), period_before);
    assert_eq!(after_message(&restored), period_before);
}

#[test]
fn states_after_messages_are_known_for_a_limited_number_of_periods() {
    let history = HistoryConfig { window_ns: 1_000_000, granularity_ns: 10, size_max: 1 << 20 };
    let mut table =
        Table::new(TableConfig { history: Some(history), ..config(10, 0) }, &Memory::heap()).unwrap();
    let periods = 4_098;
    for period in 10..10 + periods {
        [1, 2, 3].into_iter().for_each(|at| put(&mut table, "a", period * 10 + at));
    }
    let exact = |at| {
        let as_of = table.as_of(Timestamp(at), Some(Position(at)), Timestamp(50_000)).unwrap().unwrap();
        as_of.position.is_some()
    };
    // The last message of each period is exact, and the two oldest periods are forgotten.
    assert_eq!([103, 113, 123, 133].map(exact), [false, false, true, true]);
    assert_eq!([121, 122, 41_073].map(exact), [false, false, true]);
}

#[test]
fn versions_older_than_the_window_are_dropped() {
    let mut table = table(0, 1 << 20);
    (1..=200).for_each(|at| put(&mut table, "a", at));
    assert_eq!(table.stats().versions as u64, WINDOW + 1);
    table.remove(b"a", Moment { position: Position(201), timestamp: Timestamp(500) });
    (501..520).for_each(|at| put(&mut table, "b", at));
    assert_eq!(table.stats().versions, 19);
}

#[test]
fn versions_stay_while_a_scan_needs_them() {
    let mut table = table(0, 1 << 20);
    (1..=20).for_each(|at| put(&mut table, "a", at));
    let as_of = table.as_of(Timestamp(5), None, Timestamp(20)).unwrap();
    let scan = table.open(Query { as_of, copies_size_max: 1 << 20, ..Query::default() }, Timestamp(20));
    (21..=200).for_each(|at| put(&mut table, "a", at));
    let mut positions = Vec::new();
    let polled = table.poll(scan, 1_000, &mut |row| {
        positions.push(row.position.0);
        true
    });
    assert_eq!((polled, positions), (Polled::Done { matched: 1 }, vec![5]));
    table.close(scan);
    (201..=220).for_each(|at| put(&mut table, "a", at));
    assert_eq!(table.stats().versions as u64, WINDOW + 1);
}

#[test]
fn beyond_the_limit_of_bytes_the_history_begins_later() {
    let mut table = table(0, 1_000);
    (1..=5).for_each(|at| put(&mut table, "a", at));
    let as_of = |table: &Table, time| table.as_of(Timestamp(time), None, Timestamp(40));
    let early = table.as_of(Timestamp(2), None, Timestamp(5)).unwrap();
    let scan = table.open(Query { as_of: early, copies_size_max: 1 << 20, ..Query::default() }, Timestamp(5));
    (6..=40).for_each(|at| put(&mut table, "a", at));
    let stats = table.stats();
    assert!(stats.history_size <= 1_000 && stats.versions > 5, "{stats:?}");
    let begin = 41 - stats.versions as u64;
    assert_eq!(as_of(&table, begin - 1), Err(BeforeHistory { begin: Timestamp(begin), is_by_size: true }));
    assert!(as_of(&table, begin).is_ok());
    assert_eq!(table.poll(scan, 100, &mut |_| true), Polled::TooMuchHistory);
    table.close(scan);
}

#[test]
fn a_history_has_the_states_of_every_multiple_of_its_granularity() {
    let has = |own, other| KnownHistory { begin: Timestamp(0), granularity_ns: own }.has_all_of(other);
    assert!(has(0, 0) && has(0, 7) && has(10, 10) && has(10, 30));
    assert!(!has(10, 0) && !has(10, 5) && !has(10, 15));
}

#[test]
fn a_snapshot_without_history_says_so() {
    let mut plain = crate::table();
    plain.put(&row("a", "{}"));
    let mut writer = SnapshotWriter::new(&mut plain, &owner(), &HEAD, 1 << 20);
    let mut bytes = Vec::new();
    while writer.write(&mut plain, 7, &mut bytes) == SnapshotState::More {}
    assert_eq!(restore(&mut crate::table(), &bytes, 50), Ok((HEAD, None)));
    let mut table = restored(&mut table(0, 1 << 20), table(0, 1 << 20));
    assert_eq!(table.known_history(), Some(KnownHistory { begin: Timestamp(0), granularity_ns: 0 }));
    table.set_history_begin(Timestamp(9));
    assert!(table.as_of(Timestamp(8), None, Timestamp(20)).is_err());
}
