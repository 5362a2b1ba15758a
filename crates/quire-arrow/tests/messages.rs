//! Rows as messages: each with its values, in order, numbered without a gap. Rows that are not
//! messages are refused before the first one is sent.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, MapBuilder, MapFieldNames, StringBuilder};
use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow_schema::DataType;
use quire_arrow::{Messages, MessagesError};
use quire_client::{NewMessage, Sequence};
use quire_journal::HeaderValue;

const COUNT: usize = 5;

fn topics() -> ArrayRef {
    Arc::new(StringArray::from_iter_values((0..COUNT).map(|row| format!("t{}", row % 2))))
}

fn data() -> ArrayRef {
    Arc::new(BinaryArray::from_iter_values((0..COUNT).map(|row| [row as u8, 0xff])))
}

fn correlation_ids() -> ArrayRef {
    Arc::new(StringArray::from_iter((0..COUNT).map(|row| (row % 2 == 1).then(|| format!("c{row}")))))
}

fn rows(columns: Vec<ArrayRef>) -> RecordBatch {
    let names = ["topic", "data", "correlation_id", "headers"];
    RecordBatch::try_from_iter_with_nullable(
        names.into_iter().zip(columns).map(|(name, column)| (name, column, true)),
    )
    .unwrap()
}

fn told(message: &NewMessage<'_>) -> (String, Vec<u8>, String, u64) {
    let Sequence::Given(sequence) = message.sequence else { panic!("{:?}", message.sequence) };
    let correlation_id = String::from_utf8(message.correlation_id.to_vec()).unwrap();
    (message.topic.into(), message.data.into(), correlation_id, sequence)
}

fn expected(row: usize, sequence: u64) -> (String, Vec<u8>, String, u64) {
    let correlation_id = if row % 2 == 1 { format!("c{row}") } else { String::new() };
    (format!("t{}", row % 2), vec![row as u8, 0xff], correlation_id, sequence)
}

#[test]
fn rows_are_messages_in_their_order_from_any_row_on() {
    let rows = rows(vec![topics(), data(), correlation_ids()]);
    let messages = Messages::new(&rows).unwrap();
    assert_eq!(messages.count(), COUNT);
    for first in 0..=COUNT {
        let found: Vec<_> =
            messages.from_row(first, 10 + first as u64).map(|message| told(&message)).collect();
        let wanted: Vec<_> = (first..COUNT).map(|row| expected(row, 10 + row as u64)).collect();
        assert_eq!(found, wanted);
    }
}

#[test]
fn a_slice_has_the_rows_of_the_slice() {
    let slice = rows(vec![topics(), data(), correlation_ids()]).slice(2, 2);
    let messages = Messages::new(&slice).unwrap();
    let found: Vec<_> = messages.from_row(0, 1).map(|message| told(&message)).collect();
    assert_eq!(found, [expected(2, 1), expected(3, 2)]);
}

/// A column with these headers in each row.
fn headers(rows: &[&[(&str, &[u8])]]) -> ArrayRef {
    let names = MapFieldNames { entry: "entries".into(), key: "key".into(), value: "value".into() };
    let mut map = MapBuilder::new(Some(names), StringBuilder::new(), BinaryBuilder::new());
    for row in rows {
        for (name, value) in *row {
            map.keys().append_value(name);
            map.values().append_value(value);
        }
        map.append(!row.is_empty()).unwrap();
    }
    Arc::new(map.finish())
}

#[test]
fn a_fourth_column_has_the_headers_of_each_row() {
    let all: [&[(&str, &[u8])]; COUNT] =
        [&[], &[("trace", b"abc"), ("raw", b"\xff")], &[], &[("a", b"")], &[("n", b"5")]];
    let columns = || vec![topics(), data(), correlation_ids(), headers(&all)];
    for (batch, wanted) in [(rows(columns()), &all[..]), (rows(columns()).slice(1, 3), &all[1..4])] {
        let messages = Messages::new(&batch).unwrap();
        for (message, wanted) in messages.from_row(0, 1).zip(wanted) {
            let mut found: Vec<_> =
                message.headers.iter().map(|(name, value)| (name, value.as_bytes())).collect();
            found.sort_by_key(|(name, _)| wanted.iter().position(|(other, _)| other == name));
            assert_eq!(found, wanted.to_vec());
        }
    }
    let messages = rows(columns());
    let messages = Messages::new(&messages).unwrap();
    let second = messages.from_row(1, 1).next().unwrap().headers;
    assert_eq!(second.get(b"trace"), Some(HeaderValue::Text("abc")));
    assert_eq!(second.get(b"raw"), Some(HeaderValue::Bytes(b"\xff")));
    let twice = headers(&[&[], &[], &[("a", b"1"), ("a", b"2")], &[], &[]]);
    let error = Messages::new(&rows(vec![topics(), data(), correlation_ids(), twice])).err().unwrap();
    assert_eq!(error.to_string(), "the headers of row 2: the name \"a\" occurs twice");
}

#[test]
fn columns_of_another_type_are_refused() {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..COUNT as i64));
    let refused = |columns| Messages::new(&rows(columns)).err();
    let column =
        |column, found: &str, expected| Some(MessagesError::Column { column, found: found.into(), expected });
    assert_eq!(refused(vec![numbers.clone(), data(), correlation_ids()]), column(0, "Int64", DataType::Utf8));
    assert_eq!(refused(vec![topics(), topics(), correlation_ids()]), column(1, "Utf8", DataType::Binary));
    assert_eq!(refused(vec![topics(), data(), numbers]), column(2, "Int64", DataType::Utf8));
    assert_eq!(refused(vec![topics(), data()]), column(2, "not there", DataType::Utf8));
}

#[test]
fn a_row_without_topic_or_data_is_refused() {
    let no_topic: ArrayRef = Arc::new(StringArray::from(vec![Some("t"), None, Some("t"), Some("t"), None]));
    let no_data: ArrayRef = Arc::new(BinaryArray::from(vec![Some(&b"d"[..]), None, None, None, None]));
    let refused = |columns| Messages::new(&rows(columns)).err();
    assert_eq!(refused(vec![no_topic, data(), correlation_ids()]), Some(MessagesError::Null { column: 0 }));
    assert_eq!(refused(vec![topics(), no_data, correlation_ids()]), Some(MessagesError::Null { column: 1 }));
}
