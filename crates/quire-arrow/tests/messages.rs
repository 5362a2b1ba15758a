//! Rows as messages: each with what it has, in order, numbered without a gap; what is no message is refused before the first.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray};
use arrow_schema::DataType;
use quire_arrow::{Messages, MessagesError};
use quire_client::{NewMessage, Sequence};

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
    let names = ["topic", "data", "correlation_id"];
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
