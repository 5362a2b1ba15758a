//! The indexes of a restored table, which are made of all entries at once: the table answers as the
//! one whose entries were inserted.

use proptest::collection::vec;
use proptest::prelude::*;
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::Timestamp;
use quire_table::*;

use crate::indexes::cost;
use crate::model::{Asked, Field, NAMES, Version};
use crate::random::{asked, field};
use crate::snapshots::{restore, written};
use crate::{PutRow, any_memory, row, table_with};

/// Rows are enough for several blocks of an index.
const ROWS_MAX: usize = 700;

#[derive(Clone, Debug)]
struct Put {
    id: u16,
    /// In the data. After enrichment it can be another one than that of the key, or none.
    data_id: Option<u16>,
    is_id_last: bool,
    fields: [Field; 3],
    /// After the fields: some are errors, at which a reader of all fields stops, and a reader of
    /// some fields perhaps not.
    end: &'static str,
}

fn puts() -> impl Strategy<Value = Vec<Put>> {
    let end = prop_oneof![8 => Just("}"), 1 => Just(",\"a\":7}"), 1 => Just(""), 1 => Just(",\"c\"")];
    let fields = [field(), field(), field()];
    let put = (0u16..200, 0u16..10, any::<bool>(), fields, end);
    let put = put.prop_map(|(id, change, is_id_last, fields, end)| {
        let data_id = [Some(id + 1), None].get(usize::from(change)).copied().unwrap_or(Some(id));
        Put { id, data_id, is_id_last, fields, end }
    });
    vec(put, 1..ROWS_MAX)
}

/// A table with a key field and indexes of every kind. Scans list the slots of an index, or walk
/// over them.
fn indexed_table(is_walking: bool) -> Table {
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let limits = if is_walking {
        IndexLimits { listed_max: 0, walked_part: 1, portion_len: 3, ..IndexLimits::default() }
    } else {
        IndexLimits { walked_part: 1, ..IndexLimits::default() }
    };
    let config = TableConfig {
        name: "orders".into(),
        message_type: MessageType::Json,
        key: Some(key_fields()),
        hash_indexes: vec![names(&["/a"]), names(&["/b", "/c"])],
        ordered_indexes: names(&["/a", "/c"]),
        history: None,
        limits,
    };
    Table::new(config, &any_memory()).unwrap()
}

fn key_fields() -> KeyFields {
    KeyFields::new(MessageType::Json, "orders", &["/id".into()]).unwrap()
}

fn key_of(id: u16) -> Key {
    key_fields().key_of(format!("{{\"id\":{id}}}").as_bytes(), &mut Arena::default()).unwrap()
}

fn put(table: &mut Table, put: &Put) {
    let members = NAMES.iter().zip(&put.fields);
    let members = members.filter_map(|(name, field)| Some(format!("\"{name}\":{}", field.json()?)));
    let mut members: Vec<_> = members.collect();
    let place = if put.is_id_last { members.len() } else { 0 };
    let id = put.data_id.map(|id| format!("\"id\":{id}"));
    members.splice(place..place, id);
    table.put(&row(key_of(put.id).as_str(), &format!("{{{}{}", members.join(","), put.end)));
}

/// The rows of a result, in an order that does not depend on slots.
fn result(table: &mut Table, asked: &Asked) -> Vec<Version> {
    let scan = table.open(asked.query(), Timestamp(0));
    let mut rows = Vec::new();
    let polled = table.poll(scan, usize::MAX, &mut |row| {
        rows.push(Version::of(row));
        true
    });
    table.close(scan);
    assert_eq!(polled, Polled::Done { matched: rows.len() as u64 });
    rows.sort_by(|one, other| one.key.cmp(&other.key));
    rows
}

fn all(filter: &str) -> Asked {
    let filter = Some(filter.to_owned());
    Asked { filter, keys: None, order: Vec::new(), skip_n: 0, top_n: None, copies_size_max: 1 << 30 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_restored_table_answers_as_one_whose_entries_were_inserted(
        first in puts(),
        later in puts(),
        questions in vec(asked(), 1..12),
        ids in vec(0u16..200, 1..12),
        is_walking in any::<bool>(),
    ) {
        let mut inserted = indexed_table(is_walking);
        first.iter().for_each(|each| put(&mut inserted, each));
        let mut restored = indexed_table(is_walking);
        restore(&mut restored, &written(&mut inserted), 10_000).unwrap();
        let mut questions: Vec<_> = questions.into_iter().filter_map(|asked| Some(all(&asked.filter?))).collect();
        questions.extend(ids.iter().map(|id| all(&format!("/id = {id}"))));
        // Then as many changes, of the same keys and of others, and removals.
        for changes in [&[][..], &later[..]] {
            for change in changes {
                put(&mut inserted, change);
                put(&mut restored, change);
            }
            for change in changes.iter().step_by(3) {
                let key = key_of(change.id / 2);
                let is_removed = inserted.remove(&key, Moment::default());
                prop_assert_eq!(restored.remove(&key, Moment::default()), is_removed);
            }
            for asked in &questions {
                prop_assert_eq!(result(&mut restored, asked), result(&mut inserted, asked), "{:?}", asked);
            }
        }
    }
}

#[test]
fn a_restored_index_gives_as_few_rows_as_one_that_grew() {
    let [mut grown, mut restored] = [(); 2].map(|()| table_with(&[&["/group"]], &["/number"]));
    for number in (0..20_000).map(|number| number * 7_919 % 20_000) {
        let data = format!(r#"{{"group":"g{}","number":{}}}"#, number / 10, number % 100);
        grown.put(&row(&number.to_string(), &data));
    }
    restore(&mut restored, &written(&mut grown), 100_000).unwrap();
    for (text, count) in [
        ("/group = 'g7'", 10),
        ("/group IN ('g1', 'g2', 'none')", 20),
        ("/number = 7", 200),
        ("/number BETWEEN 3 AND 5", 600),
    ] {
        assert_eq!(cost(&mut restored, text), (count, count as usize), "{text}");
        assert_eq!(cost(&mut grown, text), (count, count as usize), "{text}");
    }
    let sizes = [&grown, &restored].map(|table| table.stats().memory_size as f64);
    assert!((0.9..1.1).contains(&(sizes[1] / sizes[0])), "{sizes:?}");
}
