//! Random histories: puts, removes and lifetimes that end, with scans that are opened, polled and
//! closed in between. Every result is that of the model at the instant of the scan. Snapshots are
//! scans too; a restored table has the rows of their instant.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_journal::{HeaderValue, HeadersBuffer, Timestamp};
use quire_table::*;

use crate::model::{Asked, Expected, Field, Model, Term, Version, version};
use crate::snapshots::{HEAD, owner, restore};
use crate::{making_table, table_with, walking_table};

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        fields: [Field; 3],
        /// 0: unlimited.
        lifetime: u8,
        padding: usize,
        has_headers: bool,
        keeps_previous: bool,
    },
    Remove {
        key: u8,
    },
    /// Time passes. Rows whose lifetime ended are removed, or stay until the next step of this
    /// kind.
    Wait {
        time: u8,
        expires: bool,
    },
    Open(Asked),
    Poll {
        scan: usize,
        effort: usize,
        /// Rows that are taken before the caller is full.
        room: usize,
    },
    Close {
        scan: usize,
    },
    /// Begins a snapshot, or writes a portion of it.
    Snapshot {
        effort: usize,
    },
    /// Continues with a table that was read from the last complete snapshot, as after a restart.
    Restore,
}

pub fn key_name(key: u8) -> String {
    format!("key-{key}")
}

pub fn field() -> impl Strategy<Value = Field> {
    let single = prop_oneof![
        2 => Just(Field::Missing),
        1 => Just(Field::Null),
        1 => any::<bool>().prop_map(Field::Boolean),
        6 => (-3i32..12).prop_map(Field::Integer),
        2 => prop_oneof![Just(1.5f32), Just(-0.0), Just(2.0), Just(1e10)].prop_map(Field::Float),
        4 => "[a-c]{0,2}".prop_map(Field::Text),
        2 => "[0-9]{1,2}x?".prop_map(Field::Text),
        1 => prop_oneof![Just("true"), Just("False"), Just("10.0")].prop_map(|text| Field::Text(text.into())),
        1 => Just(Field::Object),
    ];
    prop_oneof![9 => single.clone(), 1 => vec(single, 0..3).prop_map(Field::Array)]
}

fn filters() -> impl Strategy<Value = String> {
    let literal = prop_oneof![
        (-3i32..12).prop_map(|number| number.to_string()),
        "[a-c]{1,2}".prop_map(|text| format!("'{text}'")),
        "[0-9]{1,2}x?".prop_map(|text| format!("'{text}'")),
        Just("1.5".to_owned()),
        Just("'true'".to_owned()),
        Just("TRUE".to_owned()),
    ];
    let test = ("[abc]", prop_oneof!["=", "<", ">", "<=", ">=", "!="], literal.clone())
        .prop_map(|(field, operator, literal)| format!("/{field} {operator} {literal}"));
    let between = ("[abc]", literal.clone(), literal.clone())
        .prop_map(|(field, low, high)| format!("/{field} BETWEEN {low} AND {high}"));
    let within = ("[abc]", vec(literal, 1..4))
        .prop_map(|(field, literals)| format!("/{field} IN ({})", literals.join(",")));
    let part = prop_oneof![
        8 => test,
        2 => between,
        2 => within,
        1 => "[abc]".prop_map(|field| format!("/{field} IS NULL")),
        1 => (0u8..12).prop_map(|key| format!("SOW_KEY() = '{}'", key_name(key))),
        1 => Just("LENGTH(CORRELATION_ID()) > 0".to_owned()),
    ];
    prop_oneof![
        4 => part.clone(),
        4 => vec(part.clone(), 2..4).prop_map(|parts| parts.join(" AND ")),
        1 => vec(part.clone(), 2..3).prop_map(|parts| parts.join(" OR ")),
        1 => part.prop_map(|part| format!("NOT ({part})")),
    ]
}

pub fn asked() -> impl Strategy<Value = Asked> {
    let term = (0usize..3, any::<bool>(), any::<bool>()).prop_map(|(field, is_descending, is_text)| Term {
        field,
        is_descending,
        is_text,
    });
    (
        proptest::option::weighted(0.7, filters()),
        proptest::option::weighted(0.2, vec((0u8..14).prop_map(key_name), 0..6)),
        prop_oneof![2 => Just(Vec::new()), 3 => vec(term, 1..3)],
        proptest::option::weighted(0.4, (0u64..4, 0u64..8)),
        prop_oneof![1 => 0usize..1_000, 8 => Just(1 << 30)],
    )
        .prop_map(|(filter, keys, order, limits, copies_size_max)| Asked {
            filter,
            keys,
            order,
            skip_n: limits.map_or(0, |(skip, _)| skip),
            top_n: limits.map(|(_, top)| top),
            copies_size_max,
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Rows up to the size from which they are not in pages.
    let padding = prop_oneof![20 => 0usize..40, 1 => Just(5_000), 1 => Just(70_000)];
    let put =
        (0u8..12, [field(), field(), field()], 0u8..8, padding, proptest::bool::weighted(0.2), any::<bool>());
    let step = prop_oneof![
        8 => put.prop_map(|(key, fields, lifetime, padding, has_headers, keeps_previous)| Step::Put {
            key,
            fields,
            lifetime: lifetime.saturating_sub(4),
            padding,
            has_headers,
            keeps_previous,
        }),
        2 => (0u8..12).prop_map(|key| Step::Remove { key }),
        1 => (0u8..3, any::<bool>()).prop_map(|(time, expires)| Step::Wait { time, expires }),
        3 => asked().prop_map(Step::Open),
        5 => (0usize..4, 0usize..9, 1usize..5)
            .prop_map(|(scan, effort, room)| Step::Poll { scan, effort, room }),
        1 => (0usize..4).prop_map(|scan| Step::Close { scan }),
        3 => (0usize..9).prop_map(|effort| Step::Snapshot { effort }),
        1 => Just(Step::Restore),
    ];
    vec(step, 1..150)
}

/// A table, its model, and the scans under way.
struct World {
    table: Table,
    /// Where the keys were after their last puts.
    places: BTreeMap<String, KeyPlace>,
    model: Model,
    scans: BTreeMap<ScanId, (Expected, Vec<Version>, usize)>,
    /// The snapshot that is being written, its bytes, and the rows of its instant.
    snapshot: Option<(SnapshotWriter, Vec<u8>, Model)>,
    complete: Option<(Vec<u8>, Model)>,
    make_table: fn() -> Table,
    now: u64,
    position: u64,
}

impl World {
    fn new(make_table: fn() -> Table) -> Self {
        World {
            table: make_table(),
            places: BTreeMap::new(),
            model: Model::default(),
            scans: BTreeMap::new(),
            snapshot: None,
            complete: None,
            make_table,
            now: 1,
            position: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Put { key, fields, lifetime, padding, has_headers, keeps_previous } => {
                self.position += 1;
                let key = key_name(*key);
                let mut new = version(&key, self.position, self.now, fields);
                new.expires = (*lifetime > 0).then(|| Timestamp(self.now + u64::from(*lifetime)));
                new.data.extend(vec![b' '; *padding]);
                if *has_headers {
                    let headers = HeadersBuffer::new([("trace", HeaderValue::Text("t"))]);
                    new.headers = headers.unwrap();
                    new.correlation_id = b"correlation".to_vec();
                }
                // A place from before other changes may be wrong.
                let place = match self.position % 3 {
                    0 => None,
                    1 => Some(self.table.look_ahead(key.as_bytes(), new.data.len())),
                    _ => self.places.get(&key).copied(),
                };
                // Another thread reads the same as the table.
                let reader = self.table.entry_reader(false).filter(|_| self.position.is_multiple_of(2));
                let entries = reader.map(|mut reader| reader.read_row(key.as_bytes(), &new.data));
                let options = PutOptions {
                    place,
                    entries: entries.as_ref(),
                    keeps_previous: *keeps_previous,
                    ..PutOptions::default()
                };
                let is_new = self.table.put_with(&new.row(), options).unwrap();
                self.places.insert(key.clone(), self.table.look_ahead(key.as_bytes(), 0));
                let (keys, mut places) = ([&*key, "no such key", &key], Vec::new());
                self.table
                    .look_all_ahead(keys.iter().map(|key| (key.as_bytes(), 9)), |place| places.push(place));
                let expected = keys.map(|key| self.table.look_ahead(key.as_bytes(), 9));
                assert_eq!(format!("{places:?}"), format!("{expected:?}"));
                let old = self.model.rows.insert(key.into(), (new, fields.clone()));
                assert_eq!(is_new, old.is_none());
                self.check_previous(old.map(|(old, _)| old).filter(|_| *keeps_previous));
            }
            Step::Remove { key } => {
                let key = key_name(*key);
                let is_removed = self.table.remove(key.as_bytes(), Moment::default());
                let old = self.model.rows.remove(key.as_bytes());
                assert_eq!(is_removed, old.is_some());
                self.check_previous(old.map(|(old, _)| old));
            }
            Step::Wait { time, expires } => {
                self.now += u64::from(*time);
                if *expires {
                    self.expire();
                }
            }
            Step::Open(asked) => {
                let expected = self.model.expected(asked, Timestamp(self.now));
                let scan = self.table.open(asked.query(), Timestamp(self.now));
                self.scans.insert(scan, (expected, Vec::new(), asked.copies_size_max));
            }
            Step::Poll { scan, effort, room } => {
                if let Some(scan) = self.scans.keys().nth(*scan).copied() {
                    self.poll(scan, *effort, *room);
                }
            }
            Step::Close { scan } => {
                if let Some(scan) = self.scans.keys().nth(*scan).copied() {
                    let (expected, result, _) = self.scans.remove(&scan).unwrap();
                    expected.check_part(&result);
                    self.table.close(scan);
                }
            }
            Step::Snapshot { effort } => self.write_snapshot(*effort),
            Step::Restore => self.restore(),
        }
        self.table.build_index(1);
        self.check();
    }

    fn write_snapshot(&mut self, effort: usize) {
        let (mut writer, mut bytes, model) = self.snapshot.take().unwrap_or_else(|| {
            let writer = SnapshotWriter::new(&mut self.table, &owner(), &HEAD, 1 << 30);
            (writer, Vec::new(), self.model.clone())
        });
        match writer.write(&mut self.table, effort, &mut bytes) {
            SnapshotState::More => self.snapshot = Some((writer, bytes, model)),
            SnapshotState::Done { rows } => {
                assert_eq!(rows, model.rows.len() as u64);
                self.complete = Some((bytes, model));
            }
            SnapshotState::TooManyCopies => panic!("there is room for all copies"),
        }
    }

    fn restore(&mut self) {
        let Some((bytes, model)) = self.complete.take() else { return };
        self.table = (self.make_table)();
        self.places.clear();
        restore(&mut self.table, &bytes, 50).unwrap();
        self.model = model;
        self.scans.clear();
        self.snapshot = None;
    }

    /// Puts rows, and looks at all rows with a filter, so that an index is made.
    fn need(&mut self, filter: &str) {
        for key in 0..12 {
            let fields = [Field::Text("a".into()), Field::Integer(i32::from(key)), Field::Text("b".into())];
            self.step(&Step::Put {
                key,
                fields,
                lifetime: 0,
                padding: 40,
                has_headers: false,
                keeps_previous: false,
            });
        }
        let filter = Some(filter.to_owned());
        let asked =
            Asked { filter, keys: None, order: Vec::new(), skip_n: 0, top_n: None, copies_size_max: 1 << 30 };
        let expected = self.model.expected(&asked, Timestamp(self.now));
        let scan = self.table.open(asked.query(), Timestamp(self.now));
        self.scans.insert(scan, (expected, Vec::new(), 1 << 30));
        while !self.poll(scan, 100, 100) {}
    }

    /// Polls one portion. Returns whether the scan has ended.
    fn poll(&mut self, scan: ScanId, effort: usize, room: usize) -> bool {
        let (expected, result, copies_size_max) = self.scans.get_mut(&scan).unwrap();
        let mut taken = 0;
        let polled = self.table.poll(scan, effort, &mut |row| {
            result.push(Version::of(row));
            taken += 1;
            taken < room
        });
        assert!(taken <= room);
        match polled {
            Polled::More => return false,
            Polled::Done { matched } => expected.check(result, matched),
            Polled::TooManyCopies => {
                assert!(*copies_size_max < 1 << 30);
                expected.check_part(result);
            }
            Polled::TooMuchEffort | Polled::TooMuchHistory => panic!("the filters are simple"),
        }
        self.table.close(scan);
        self.scans.remove(&scan);
        true
    }

    fn expire(&mut self) {
        let now = Timestamp(self.now);
        let mut last = Timestamp(0);
        while self.table.pop_expired(now) {
            let row = Version::of(&self.table.previous().unwrap());
            let expires = row.expires.unwrap();
            assert!(last <= expires && expires <= now);
            last = expires;
            assert_eq!(self.model.rows.remove(&row.key).map(|(known, _)| known), Some(row));
        }
        assert_eq!(self.table.previous(), None);
        assert!(self.model.rows.values().all(|(row, _)| row.expires.is_none_or(|expires| expires > now)));
    }

    fn check_previous(&self, old: Option<Version>) {
        assert_eq!(self.table.previous(), old.as_ref().map(Version::row));
    }

    fn check(&self) {
        assert_eq!(self.table.len(), self.model.rows.len());
        for key in (0..12).map(key_name) {
            let expected = self.model.rows.get(key.as_bytes()).map(|(version, _)| version.row());
            assert_eq!(self.table.get(key.as_bytes()), expected);
        }
        let expires = self.model.rows.values().filter_map(|(version, _)| version.expires);
        assert_eq!(self.table.next_expiry(), expires.min());
        let stats = self.table.stats();
        let scans = self.scans.len() + usize::from(self.snapshot.is_some());
        assert_eq!((stats.rows, stats.scans), (self.model.rows.len(), scans));
        let size: usize = self.model.rows.values().map(|(version, _)| version.size()).sum();
        assert_eq!(stats.rows_size, size);
    }

    /// Reads all open scans to their ends.
    fn finish(mut self) {
        while let Some(scan) = self.scans.keys().next().copied() {
            while !self.poll(scan, 3, 2) {}
        }
        while self.snapshot.is_some() {
            self.write_snapshot(5);
        }
        self.restore();
        self.check();
        let stats = self.table.stats();
        assert_eq!((stats.scans, stats.copies_size), (0, 0));
    }
}

fn run(make_table: fn() -> Table, steps: &[Step]) {
    let mut world = World::new(make_table);
    steps.iter().for_each(|step| world.step(step));
    world.finish();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_result_is_the_state_at_the_instant_of_its_scan(steps in steps()) {
        run(|| table_with(&[], &[]), &steps);
    }

    #[test]
    fn indexes_do_not_change_results(steps in steps()) {
        run(|| table_with(&[&["/a"], &["/b", "/c"]], &["/a", "/c"]), &steps);
    }

    #[test]
    fn indexes_that_are_made_while_rows_change_do_not_change_results(steps in steps()) {
        let mut world = World::new(making_table);
        let mut steps = steps.iter();
        for filter in ["/a = 'a'", "/b >= 1", "/c IN ('a', 'b')"] {
            world.need(filter);
            steps.by_ref().take(30).for_each(|step| world.step(step));
        }
        steps.for_each(|step| world.step(step));
        world.finish();
    }

    #[test]
    fn slots_that_are_taken_from_an_index_in_portions_do_not_change_results(steps in steps()) {
        run(|| walking_table(&[&["/a"], &["/b", "/c"]], &["/a", "/b", "/c"]), &steps);
    }
}
