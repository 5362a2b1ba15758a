//! Pages: the rows that the moves of each change leave are always those of the model.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use quire_expression::filter::FilterOptions;
use quire_journal::Timestamp;
use quire_table::*;

use crate::model::{Asked, Field, Model, Version, version};
use crate::random::{asked, field, key_name};
use crate::{PutRow, row, table, table_with, walking_table};

#[derive(Clone, Debug)]
enum Step {
    Put { key: u8, fields: [Field; 3], lifetime: u8 },
    Remove { key: u8 },
    Wait { time: u8 },
    Open(Asked),
    Poll { page: usize, effort: usize },
    Close { page: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let limits = (0u64..5, 0u64..7);
    let paged = (asked(), limits).prop_map(|(asked, (skip_n, top_n))| Asked {
        skip_n,
        top_n: Some(top_n),
        copies_size_max: 1 << 20,
        ..asked
    });
    let step = prop_oneof![
        10 => (0u8..12, [field(), field(), field()], 0u8..8).prop_map(|(key, fields, lifetime)| Step::Put {
            key,
            fields,
            lifetime: lifetime.saturating_sub(4),
        }),
        3 => (0u8..12).prop_map(|key| Step::Remove { key }),
        1 => (0u8..3).prop_map(|time| Step::Wait { time }),
        2 => paged.prop_map(Step::Open),
        4 => (0usize..4, 0usize..9).prop_map(|(page, effort)| Step::Poll { page, effort }),
        1 => (0usize..4).prop_map(|page| Step::Close { page }),
    ];
    vec(step, 1..150)
}

/// A page, and the rows that its moves leave; `None` while it looks at the rows.
struct Shown {
    asked: Asked,
    rows: Option<BTreeMap<Vec<u8>, Version>>,
}

struct World {
    table: Table,
    model: Model,
    pages: BTreeMap<PageId, Shown>,
    now: u64,
    position: u64,
}

impl World {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Put { key, fields, lifetime } => {
                self.position += 1;
                let key = key_name(*key);
                let mut new = version(&key, self.position, self.now, fields);
                new.expires = (*lifetime > 0).then(|| Timestamp(self.now + u64::from(*lifetime)));
                // A page needs the previous row although the caller does not.
                self.table.put_with(&new.row(), PutOptions::default()).unwrap();
                self.model.rows.insert(key.into(), (new, fields.clone()));
                self.apply_moves();
            }
            Step::Remove { key } => {
                self.table.remove(key_name(*key).as_bytes(), Moment::default());
                self.model.rows.remove(key_name(*key).as_bytes());
                self.apply_moves();
            }
            Step::Wait { time } => {
                self.now += u64::from(*time);
                while self.table.pop_expired(Timestamp(self.now)) {
                    let key = self.table.previous().unwrap().key.to_vec();
                    self.model.rows.remove(&key);
                    self.apply_moves();
                }
            }
            Step::Open(asked) => {
                let Query { filter, keys, order, .. } = asked.query();
                let page = self.table.open_page(PageQuery {
                    filter,
                    keys,
                    order,
                    skip_n: asked.skip_n as usize,
                    top_n: asked.top_n.unwrap() as usize,
                    size_max: asked.copies_size_max,
                });
                self.pages.insert(page, Shown { asked: asked.clone(), rows: None });
            }
            Step::Poll { page, effort } => {
                let Some(page) = self.pages.keys().nth(*page).copied() else { return };
                if self.pages[&page].rows.is_some() {
                    return;
                }
                match self.table.poll_page(page, *effort, Timestamp(0)) {
                    Polled::More => return,
                    Polled::Done { matched } => {
                        let expected = self.model.expected(&self.pages[&page].asked, Timestamp(0));
                        let scan = self.table.open_shown(page, quire_table::Shown::All, 1 << 20);
                        let mut rows = Vec::new();
                        self.table.poll(scan, usize::MAX, &mut |row| {
                            rows.push(Version::of(row));
                            true
                        });
                        self.table.close(scan);
                        // Also their order.
                        expected.check(&rows, matched);
                        let rows = rows.into_iter().map(|version| (version.key.clone(), version));
                        self.pages.get_mut(&page).unwrap().rows = Some(rows.collect());
                    }
                    failed => panic!("{failed:?}"),
                }
            }
            Step::Close { page } => {
                if let Some(page) = self.pages.keys().nth(*page).copied() {
                    self.pages.remove(&page);
                    self.table.close_page(page);
                }
            }
        }
        self.check();
    }

    fn apply_moves(&mut self) {
        let mut last = None;
        for Move { page, kind, row } in self.table.moves() {
            let step = (page, kind as u8);
            assert!(last <= Some(step), "a row enters before another one leaves");
            last = Some(step);
            let shown = self.pages.get_mut(&page).unwrap().rows.as_mut().expect("the page is complete");
            let new = Version::of(&row);
            match kind {
                MoveKind::Removed => assert_eq!(shown.remove(&new.key), Some(new)),
                MoveKind::Left => assert!(shown.remove(&new.key).is_some()),
                MoveKind::Entered => assert!(shown.insert(new.key.clone(), new).is_none()),
                MoveKind::Replaced => assert!(shown.insert(new.key.clone(), new).is_some()),
            }
        }
    }

    fn check(&self) {
        for Shown { asked, rows } in self.pages.values() {
            if let Some(rows) = rows {
                self.model.expected(asked, Timestamp(0)).check_page(rows.values());
            }
        }
        assert_eq!(self.table.stats().pages, self.pages.len());
    }
}

fn run(table: Table, steps: &[Step]) {
    let mut world = World { table, model: Model::default(), pages: BTreeMap::new(), now: 1, position: 0 };
    steps.iter().for_each(|step| world.step(step));
    let pages: Vec<_> = world.pages.keys().copied().collect();
    pages.iter().for_each(|page| world.table.close_page(*page));
    assert_eq!(world.table.stats().copies_size, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_page_shows_the_rows_of_the_model_after_every_change(steps in steps()) {
        run(table(), &steps);
    }

    #[test]
    fn indexes_do_not_change_pages(steps in steps()) {
        run(table_with(&[&["/a"], &["/b", "/c"]], &["/a", "/c"]), &steps);
    }

    #[test]
    fn slots_that_are_taken_from_an_index_in_portions_do_not_change_pages(steps in steps()) {
        run(walking_table(&[&["/a"], &["/b", "/c"]], &["/a", "/b", "/c"]), &steps);
    }
}

fn by_price(skip_n: usize, top_n: usize) -> PageQuery {
    let order = Order::parse("/p", &FilterOptions::default()).unwrap();
    PageQuery { order: Some(order), skip_n, top_n, size_max: 1 << 20, ..PageQuery::default() }
}

fn moves(table: &Table) -> Vec<(MoveKind, String)> {
    table.moves().map(|moved| (moved.kind, String::from_utf8(moved.row.key.into()).unwrap())).collect()
}

#[test]
fn a_new_first_row_moves_one_row_over_each_border() {
    let mut table = table();
    for (key, data) in [("a", r#"{"p":1}"#), ("b", r#"{"p":2}"#), ("c", r#"{"p":3}"#), ("d", r#"{"p":4}"#)] {
        table.put(&row(key, data));
    }
    let page = table.open_page(by_price(1, 2));
    assert_eq!(table.poll_page(page, 100, Timestamp(1)), Polled::Done { matched: 4 });
    table.put(&row("e", r#"{"p":0}"#));
    assert_eq!(moves(&table), [(MoveKind::Left, "c".into()), (MoveKind::Entered, "a".into())]);
    table.remove(b"b", Moment::default());
    assert_eq!(moves(&table), [(MoveKind::Removed, "b".into()), (MoveKind::Entered, "c".into())]);
    table.put(&row("c", r#"{"p":3,"n":1}"#));
    assert_eq!(moves(&table), [(MoveKind::Replaced, "c".into())]);
    table.put(&row("d", r#"{"p":4,"n":1}"#));
    assert_eq!(moves(&table), []);
}

#[test]
fn without_an_order_new_rows_come_last() {
    let mut table = table();
    table.put(&row("z", "{}"));
    let page = table.open_page(PageQuery { order: None, ..by_price(1, 2) });
    assert_eq!(table.poll_page(page, 100, Timestamp(1)), Polled::Done { matched: 1 });
    for (key, expected) in [("y", true), ("x", true), ("a", false)] {
        table.put(&row(key, "{}"));
        assert_eq!(!moves(&table).is_empty(), expected, "{key}");
    }
}

#[test]
fn a_page_that_needs_too_much_memory_ends() {
    let mut table = table();
    let page = table.open_page(PageQuery { size_max: 200, ..by_price(0, 1) });
    assert_eq!(table.poll_page(page, 100, Timestamp(1)), Polled::Done { matched: 0 });
    for key in ["a", "b", "c"] {
        table.put(&row(key, "{}"));
        assert_eq!(table.page_failure(page), None);
    }
    table.put(&row("d", "{}"));
    assert_eq!(table.page_failure(page), Some(Polled::TooManyCopies));
    table.put(&row("a", "{}"));
    assert_eq!(moves(&table), []);
    assert_eq!(table.stats().copies_size, 0);
}

#[test]
fn a_row_whose_lifetime_ended_is_not_in_a_new_page() {
    let mut table = table();
    table.put(&Row { expires: Some(Timestamp(5)), ..row("a", "{}") });
    let page = table.open_page(by_price(0, 1));
    assert_eq!(table.poll_page(page, 100, Timestamp(5)), Polled::Done { matched: 0 });
    assert!(table.pop_expired(Timestamp(5)));
    assert_eq!(moves(&table), []);
}
