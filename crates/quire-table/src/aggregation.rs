//! Aggregated queries: one row for each group of the rows of a scan.
//!
//! The rows of the scan are added one by one, and only the values of the aggregates are kept. The
//! result is in the order of the query, or else in the order of the values of the groups, so that
//! equal states have equal results. Both parts of the work can be done in portions, because a query
//! can have a million groups.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use quire_expression::filter::{Accumulator, MessageContext, OwnedValue, Projection, ValueKey};
use quire_expression::message_type::{Arena, AssignError, MessageType, Value};
use quire_types::Timestamp;
use smallvec::SmallVec;

use crate::key::key_of_group;
use crate::order::{Order, SortKey, put_value};
use crate::scan::effort_max;

/// Bytes of a group, and of a row of the result, without the bytes that they refer to.
const GROUP_SIZE: usize = size_of::<(SortKey, Group)>() + 16;
const ROW_SIZE: usize = size_of::<((SortKey, SortKey), GroupRow)>() + 16;

/// The groups of an aggregated query, and then the rows of its result.
#[derive(Debug)]
pub struct Aggregation {
    projection: Projection,
    message_type: MessageType,
    order: Option<Order>,
    /// The rows to leave out at the beginning, and the most rows of the result with them.
    skip: u64,
    limit: u64,
    groups: BTreeMap<SortKey, Group>,
    /// The rows that were made, by their places in the order, and then by their groups.
    rows: BTreeMap<(SortKey, SortKey), GroupRow>,
    count: u64,
    held_size: usize,
    held_size_max: usize,
}

/// A group, with the values of its fields as they came first.
#[derive(Debug)]
struct Group {
    values: Box<[OwnedValue]>,
    aggregates: Box<[Accumulator]>,
}

/// A row of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRow {
    /// The key of the group: it depends on the values of the group only.
    pub key: Box<[u8]>,
    /// The message.
    pub data: Box<[u8]>,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AggregationError {
    /// The groups, or the rows of the result, need more memory than the query may use.
    #[error("its groups need more memory")]
    TooLarge,
    /// A row of the result cannot be written.
    #[error("a group has no message: {0}")]
    Unwritable(AssignError),
}

impl Aggregation {
    /// No rows yet. `held_size_max`: the most bytes that the groups and the result may have.
    pub fn new(
        projection: Projection,
        message_type: MessageType,
        order: Option<Order>,
        skip_n: u64,
        top_n: Option<u64>,
        held_size_max: usize,
    ) -> Self {
        let limit = skip_n.saturating_add(top_n.unwrap_or(u64::MAX));
        let (groups, rows) = (BTreeMap::new(), BTreeMap::new());
        Aggregation {
            projection,
            message_type,
            order,
            skip: skip_n,
            limit,
            groups,
            rows,
            count: 0,
            held_size: 0,
            held_size_max,
        }
    }

    /// Adds a message. A message that cannot be read gives NULL to every aggregate, and is in the
    /// group of NULL.
    ///
    /// # Errors
    /// [`AggregationError::TooLarge`].
    pub fn add(&mut self, message: &MessageContext<'_>, arena: &mut Arena) -> Result<(), AggregationError> {
        arena.reset();
        arena.allow(effort_max(message.data.len()));
        let arena = &*arena;
        let count = self.projection.grouping_count();
        let unread: SmallVec<[Value<'_>; 8]>;
        let values = match self.projection.read(message, arena) {
            Some(values) => values,
            None => {
                unread = SmallVec::from_elem(Value::Null, count + self.projection.kinds().len());
                &unread
            }
        };
        let (grouping, arguments) = values.split_at(count);
        let mut key = SortKey::new();
        grouping.iter().for_each(|value| put_value(*value, arena, &mut key));
        let mut added = 0;
        let group = match self.groups.entry(key) {
            Entry::Occupied(group) => group.into_mut(),
            Entry::Vacant(place) => {
                let group = Group {
                    values: grouping.iter().map(|value| OwnedValue::of(*value)).collect(),
                    aggregates: self.projection.kinds().map(Accumulator::new).collect(),
                };
                let held = group.values.iter().map(OwnedValue::size).sum::<usize>();
                let values = group.values.len() * size_of::<OwnedValue>();
                added += GROUP_SIZE + place.key().len() + held + values;
                added += group.aggregates.len() * size_of::<Accumulator>();
                self.count += 1;
                place.insert(group)
            }
        };
        for ((kind, aggregate), value) in self.projection.kinds().zip(&mut group.aggregates).zip(arguments) {
            added += aggregate.add(kind, *value, arena, |value| value_key(value, arena));
        }
        self.held_size += added;
        if self.held_size > self.held_size_max { Err(AggregationError::TooLarge) } else { Ok(()) }
    }

    /// The number of groups, before `skip_n` and `top_n` count.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All messages were added. Without fields in `grouping`, there is one group, also when no
    /// message was added.
    pub fn end_messages(&mut self) {
        if self.groups.is_empty() && self.projection.grouping_count() == 0 {
            let aggregates = self.projection.kinds().map(Accumulator::new).collect();
            self.groups.insert(SortKey::new(), Group { values: Box::default(), aggregates });
            self.count = 1;
        }
    }

    /// Makes the rows of some groups. Returns whether groups are left.
    ///
    /// # Errors
    /// [`AggregationError`].
    pub fn make_rows(
        &mut self,
        count: usize,
        topic: &str,
        now: Timestamp,
        arena: &mut Arena,
    ) -> Result<bool, AggregationError> {
        let mut data = Vec::new();
        for _ in 0..count {
            let Some((key, group)) = self.groups.pop_first() else { return Ok(false) };
            let kinds = self.projection.kinds();
            let results: Vec<_> =
                group.aggregates.iter().zip(kinds).map(|(each, kind)| each.result(kind)).collect();
            arena.allow(effort_max(0));
            self.projection
                .write(&group.values, &results, topic, now, arena, &mut data)
                .map_err(AggregationError::Unwritable)?;
            let place = match &self.order {
                Some(order) => order.key_of(self.message_type, &data, arena),
                None => SortKey::new(),
            };
            let row = GroupRow { key: (*key_of_group(&key)).into(), data: data.as_slice().into() };
            self.held_size += size_of_row(&place, &key, &row);
            self.rows.insert((place, key), row);
            if self.rows.len() as u64 > self.limit
                && let Some(((place, key), row)) = self.rows.pop_last()
            {
                self.held_size -= size_of_row(&place, &key, &row);
            }
            if self.held_size > self.held_size_max {
                return Err(AggregationError::TooLarge);
            }
        }
        Ok(!self.groups.is_empty())
    }

    /// The next row of the result. Call it when no groups are left.
    pub fn next_row(&mut self) -> Option<GroupRow> {
        while self.skip > 0 {
            self.skip -= 1;
            self.rows.pop_first()?;
        }
        self.rows.pop_first().map(|(_, row)| row)
    }
}

fn size_of_row(place: &SortKey, key: &SortKey, row: &GroupRow) -> usize {
    ROW_SIZE + place.len() + key.len() + row.key.len() + row.data.len()
}

pub(crate) fn value_key(value: Value<'_>, arena: &Arena) -> ValueKey {
    let mut key = SortKey::new();
    put_value(value, arena, &mut key);
    key.as_slice().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quire_expression::filter::FilterOptions;
    use quire_types::Headers;

    const ALL: usize = 1 << 30;

    fn context(message_type: MessageType, data: &[u8]) -> MessageContext<'_> {
        MessageContext {
            message_type,
            data,
            topic: "orders",
            key: None,
            bookmark: None,
            correlation_id: b"",
            headers: Headers::default(),
            timestamp: Timestamp(7),
            now: Timestamp(7),
        }
    }

    /// The rows, made two by two.
    fn result(aggregation: &mut Aggregation) -> Vec<GroupRow> {
        aggregation.end_messages();
        while aggregation.make_rows(2, "orders", Timestamp(7), &mut Arena::default()).unwrap() {}
        std::iter::from_fn(|| aggregation.next_row()).collect()
    }

    fn rows_of(
        message_type: MessageType,
        projection: &[&str],
        grouping: &[&str],
        messages: &[&[u8]],
        order: Option<&str>,
    ) -> Vec<Vec<u8>> {
        let options = FilterOptions::default();
        let parsed = Projection::parse(projection, grouping, message_type, &options).unwrap();
        let order = order.map(|text| Order::parse(text, &options).unwrap());
        let mut aggregation = Aggregation::new(parsed, message_type, order, 0, None, ALL);
        let mut arena = Arena::default();
        for data in messages {
            aggregation.add(&context(message_type, data), &mut arena).unwrap();
        }
        result(&mut aggregation).into_iter().map(|row| row.data.into()).collect()
    }

    fn json(projection: &[&str], grouping: &[&str], messages: &[&str]) -> Vec<String> {
        let messages: Vec<_> = messages.iter().map(|text| text.as_bytes()).collect();
        let rows = rows_of(MessageType::Json, projection, grouping, &messages, None);
        rows.into_iter().map(|row| String::from_utf8(row).unwrap()).collect()
    }

    fn mistake(projection: &[&str], grouping: &[&str]) -> String {
        Projection::parse(projection, grouping, MessageType::Json, &FilterOptions::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn groups_have_their_sums_and_counts() {
        let rows = json(
            &["/account", "SUM(/price * /qty) AS /notional", "COUNT(/id) AS /orders"],
            &["/account"],
            &[
                r#"{"account":"b","price":2,"qty":3,"id":1}"#,
                r#"{"account":"a","price":1.5,"qty":2,"id":2}"#,
                r#"{"account":"b","price":1,"qty":1,"id":null}"#,
                r#"{"price":9,"qty":1,"id":3}"#,
                "nonsense",
            ],
        );
        assert_eq!(
            rows,
            [
                r#"{"account":null,"notional":9,"orders":1}"#,
                r#"{"account":"a","notional":3.0,"orders":1}"#,
                r#"{"account":"b","notional":7,"orders":1}"#,
            ]
        );
    }

    #[test]
    fn every_aggregate_leaves_out_null_and_nan() {
        let projection = [
            "AVG(/v) AS /avg",
            "ANY(/v) AS /any",
            "COUNT(/v) AS /count",
            "COUNT_DISTINCT(/v) AS /different",
            "DISTINCT_LIST(/v) AS /list",
            "DISTINCT_LIST(/v, ' ') AS /spaced",
            "MIN(/v) AS /min",
            "MAX(/v) AS /max",
            "SUM(/v) AS /sum",
            "STDDEV_POP(/v) AS /pop",
            "STDDEV_SAMP(/v) AS /samp",
            "VAR_POP(/v) AS /var_pop",
            "VARIANCE(/v) AS /variance",
            "SUM(/v) / COUNT(/v) AS /mean",
        ];
        let rows = json(
            &projection,
            &[],
            &[
                r#"{"v":4}"#,
                r#"{"v":null}"#,
                r#"{"v":"4"}"#,
                "{}",
                r#"{"v":10}"#,
                r#"{"v":""}"#,
                r#"{"v":4.0}"#,
            ],
        );
        assert_eq!(
            rows,
            [concat!(
                r#"{"avg":5.5,"any":4,"count":4,"different":2,"list":"4,10","spaced":"4 10","min":4,"max":10,"#,
                r#""sum":22.0,"pop":2.598076211353316,"samp":3.0,"var_pop":6.75,"variance":9.0,"mean":5.5}"#
            )]
        );
        let nothing = json(&projection, &[], &["{}"]);
        let nulls = r#"{"avg":null,"any":null,"count":0,"different":0,"list":null,"spaced":null,"min":null,"max":null,"#;
        let rest = r#""sum":null,"pop":null,"samp":null,"var_pop":null,"variance":null,"mean":null}"#;
        assert_eq!(nothing, [format!("{nulls}{rest}")]);
        assert_eq!(json(&projection, &[], &[]), nothing, "without a message there is one group");
        assert!(json(&projection, &["/g"], &[]).is_empty());
    }

    #[test]
    fn numbers_come_before_texts_in_min_and_max() {
        let rows = json(
            &["MIN(/v) AS /min", "MAX(/v) AS /max"],
            &[],
            &[r#"{"v":"b"}"#, r#"{"v":-2}"#, r#"{"v":"10"}"#, r#"{"v":"a"}"#],
        );
        assert_eq!(rows, [r#"{"min":-2,"max":"b"}"#]);
    }

    #[test]
    fn sums_of_integers_are_exact_and_sums_of_floats_do_not_drift() {
        let large = format!(r#"{{"v":{}}}"#, i64::MAX);
        let messages = [large.as_str(), large.as_str(), r#"{"v":-9223372036854775807}"#, r#"{"v":1}"#];
        assert_eq!(json(&["SUM(/v) AS /v"], &[], &messages), [r#"{"v":9223372036854775808}"#]);
        let floats = [r#"{"v":1e100}"#, r#"{"v":1.0}"#, r#"{"v":-1e100}"#, r#"{"v":2.5}"#];
        assert_eq!(json(&["SUM(/v) AS /v"], &[], &floats), [r#"{"v":3.5}"#]);
        let tenths = vec![r#"{"v":0.1}"#; 1000];
        assert_eq!(json(&["SUM(/v) AS /v"], &[], &tenths), [r#"{"v":100.0}"#]);
    }

    #[test]
    fn equal_values_of_different_types_are_one_group_and_the_first_is_shown() {
        let rows = json(
            &["/g", "COUNT(1) AS /n"],
            &["/g"],
            &[
                r#"{"g":"1"}"#,
                r#"{"g":1.0}"#,
                r#"{"g":1}"#,
                r#"{"g":"a"}"#,
                r#"{"g":{"x":1}}"#,
                r#"{"g":{"x":1}}"#,
            ],
        );
        assert_eq!(rows, [r#"{"g":"1","n":3}"#, r#"{"g":"a","n":1}"#, r#"{"g":{"x":1},"n":2}"#]);
    }

    #[test]
    fn groups_of_several_fields_do_not_mix() {
        let rows = json(
            &["/a", "/b", "COUNT(1) AS /n"],
            &["/a", "/b"],
            &[r#"{"a":"x","b":"yz"}"#, r#"{"a":"xy","b":"z"}"#, r#"{"a":"x","b":"yz"}"#, r#"{"a":"x"}"#],
        );
        assert_eq!(
            rows,
            [r#"{"a":"x","b":null,"n":1}"#, r#"{"a":"x","b":"yz","n":2}"#, r#"{"a":"xy","b":"z","n":1}"#]
        );
    }

    #[test]
    fn the_order_is_of_the_result_and_limits_count_groups() {
        let options = FilterOptions::default();
        let order = Order::parse("/sum DESC", &options).unwrap();
        let parsed =
            Projection::parse(&["/g", "SUM(/v) AS /sum"], &["/g"], MessageType::Json, &options).unwrap();
        let mut aggregation = Aggregation::new(parsed, MessageType::Json, Some(order), 1, Some(1), ALL);
        let mut arena = Arena::default();
        for (group, value) in [("a", 1), ("b", 5), ("c", 3), ("d", 4), ("a", 1)] {
            let data = format!(r#"{{"g":"{group}","v":{value}}}"#);
            aggregation.add(&context(MessageType::Json, data.as_bytes()), &mut arena).unwrap();
        }
        let rows = result(&mut aggregation);
        assert_eq!(aggregation.count(), 4);
        let data: Vec<_> = rows.iter().map(|row| String::from_utf8_lossy(&row.data)).collect();
        assert_eq!(data, [r#"{"g":"d","sum":4}"#]);
        assert_eq!(rows[0].key.len(), 32);
    }

    #[test]
    fn other_types_are_written_in_their_form() {
        let nvfix: [&[u8]; 2] = [b"g=a\x01v=1\x01", b"g=a\x01v=2\x01"];
        let rows = rows_of(MessageType::Nvfix, &["/g", "SUM(/v) AS /sum"], &["/g"], &nvfix, None);
        assert_eq!(rows, [b"g=a\x01sum=3\x01".to_vec()]);
        let fix: [&[u8]; 1] = [b"1=a\x012=1\x01"];
        assert_eq!(
            rows_of(MessageType::Fix, &["/1", "SUM(/2) AS /2"], &["/1"], &fix, None),
            [fix[0].to_vec()]
        );
        let xml: [&[u8]; 2] = [b"<o><g>a</g><v>1</v></o>", b"<o><g>a</g><v>2</v></o>"];
        let rows = rows_of(MessageType::Xml, &["/o/g", "SUM(/o/v) AS /o/sum"], &["/o/g"], &xml, None);
        assert_eq!(String::from_utf8_lossy(&rows[0]), "<o><g>a</g><sum>3</sum></o>");
        let msgpack: [&[u8]; 2] = [b"\x82\xa1ga\xa1v\x01", b"\x82\xa1ga\xa1v\x02"];
        let rows = rows_of(MessageType::Msgpack, &["SUM(/v) AS /s"], &["/g"], &msgpack, None);
        assert_eq!(rows, [b"\x81\xa1s\x03".to_vec()]);
        let bson: [&[u8]; 1] = [b"\x0c\x00\x00\x00\x10v\x00\x05\x00\x00\x00\x00"];
        assert_eq!(rows_of(MessageType::Bson, &["SUM(/v) AS /v"], &[], &bson, None).len(), 1);
    }

    #[test]
    fn a_mistake_is_named_with_its_entry() {
        for (projection, grouping, expected) in [
            (
                &["/a"][..],
                &[][..],
                "entry 1: column 1: expected an aggregate, or a field of grouping, found /a",
            ),
            (
                &["SUM(/a)"],
                &[],
                "entry 1: column 8: expected an operator, or AS and the field that gets the value, found the end",
            ),
            (
                &["SUM(SUM(/a)) AS /b"],
                &[],
                "entry 1: column 5: expected an expression without another aggregate, found SUM",
            ),
            (&["SUM(/a, /b) AS /b"], &[], "entry 1: column 1: expected 1 argument for SUM, found SUM"),
            (
                &["BOOKMARK() AS /b"],
                &[],
                "entry 1: column 1: expected an aggregate around it, because a group has many messages, found BOOKMARK",
            ),
            (
                &["SUM(/a) AS /b", "COUNT(/a) AS /b"],
                &[],
                "entry 2: column 14: expected a field that is not, contains or belongs to the destination of another entry, found /b",
            ),
            (
                &["COUNT(1) AS /n"],
                &["/a + 1"],
                "entry 1: column 1: expected only a field like /symbol, found an expression",
            ),
            (
                &["DISTINCT_LIST(/a, /b) AS /n"],
                &[],
                "entry 1: column 1: expected 1 argument, and perhaps a delimiter in quotes, for DISTINCT_LIST, found DISTINCT_LIST",
            ),
            (&[], &["/a"], "entry 1: column 1: expected at least one entry, found none"),
        ] {
            assert_eq!(mistake(projection, grouping), expected);
        }
    }

    #[test]
    fn memory_has_a_limit() {
        let options = FilterOptions::default();
        let mut arena = Arena::default();
        for projection in ["COUNT(1) AS /n", "DISTINCT_LIST(/g) AS /n"] {
            let grouping: &[&str] = if projection.starts_with("COUNT") { &["/g"] } else { &[] };
            let parsed = Projection::parse(&[projection], grouping, MessageType::Json, &options).unwrap();
            let mut aggregation = Aggregation::new(parsed, MessageType::Json, None, 0, None, 100_000);
            let failed = (0..10_000).find(|number| {
                let data = format!(r#"{{"g":"group {number}"}}"#);
                aggregation.add(&context(MessageType::Json, data.as_bytes()), &mut arena).is_err()
            });
            assert!((100..5_000).contains(&failed.unwrap()), "{failed:?}");
        }
    }
}
