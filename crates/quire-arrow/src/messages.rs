//! Converts Arrow rows to messages, which the data source for Spark publishes.

use arrow_array::cast::AsArray;
use arrow_array::{Array, BinaryArray, MapArray, RecordBatch, StringArray};
use arrow_schema::DataType;
use quire_client::{NewMessage, Sequence};
use quire_journal::{HeaderValue, Headers, HeadersBuffer, HeadersError};

use crate::column::headers_type;

/// The rows of a batch as messages, without a copy of their data.
///
/// The first three columns are topic (text), data (binary) and correlation id (text, NULL for
/// none). Their names do not matter. An optional fourth column has the headers: a map from text to
/// binary, NULL for none. A value that is UTF-8 is published as text.
pub struct Messages {
    topics: StringArray,
    data: BinaryArray,
    correlation_ids: StringArray,
    /// The headers of each row. Empty without a column for them.
    headers: Vec<HeadersBuffer>,
}

/// Why rows cannot be messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessagesError {
    /// A column is missing or of another type.
    #[error("column {column} is {found}, not {expected}")]
    Column {
        /// Its index, from 0.
        column: usize,
        /// Its type.
        found: String,
        /// The required type.
        expected: DataType,
    },
    /// A row has headers that no message can have.
    #[error("the headers of row {row}: {error}")]
    Headers {
        /// Its number, from 0.
        row: usize,
        /// The mistake.
        error: HeadersError,
    },
    /// There is no topic, or no data.
    #[error("column {column} has NULL in it")]
    Null {
        /// Its index, from 0.
        column: usize,
    },
}

impl Messages {
    /// # Errors
    /// When the columns are not those of messages.
    pub fn new(rows: &RecordBatch) -> Result<Self, MessagesError> {
        let column = |column: usize, expected: DataType| match rows.columns().get(column) {
            Some(array) if *array.data_type() == expected => Ok(array),
            array => {
                let found = array.map_or_else(|| "not there".into(), |array| array.data_type().to_string());
                Err(MessagesError::Column { column, found, expected })
            }
        };
        let messages = Messages {
            topics: column(0, DataType::Utf8)?.as_string().clone(),
            data: column(1, DataType::Binary)?.as_binary().clone(),
            correlation_ids: column(2, DataType::Utf8)?.as_string().clone(),
            headers: match rows.columns().get(3) {
                Some(_) => headers_of(column(3, headers_type())?.as_map())?,
                None => Vec::new(),
            },
        };
        for (column, null_count) in [(0, messages.topics.null_count()), (1, messages.data.null_count())] {
            if null_count > 0 {
                return Err(MessagesError::Null { column });
            }
        }
        Ok(messages)
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.data.len()
    }

    /// The messages from the row `first` on. The first one gets the number `sequence`, and the
    /// others the numbers after it.
    pub fn from_row(&self, first: usize, sequence: u64) -> impl Iterator<Item = NewMessage<'_>> {
        (first..self.count()).zip(sequence..).map(|(row, sequence)| NewMessage {
            sequence: Sequence::Given(sequence),
            headers: self.headers.get(row).map_or(Headers::NONE, HeadersBuffer::as_headers),
            correlation_id: match self.correlation_ids.is_valid(row) {
                true => self.correlation_ids.value(row).as_bytes(),
                false => b"",
            },
            ..NewMessage::new(self.topics.value(row), self.data.value(row))
        })
    }
}

/// The headers of every row.
fn headers_of(column: &MapArray) -> Result<Vec<HeadersBuffer>, MessagesError> {
    let (names, values) = (column.keys().as_string::<i32>(), column.values().as_binary::<i32>());
    let mut all = Vec::with_capacity(column.len());
    for (row, range) in column.value_offsets().windows(2).enumerate() {
        let entries = match column.is_valid(row) {
            true => range[0] as usize..range[1] as usize,
            false => 0..0,
        };
        let headers = entries.map(|entry| {
            let bytes = if values.is_valid(entry) { values.value(entry) } else { &[] };
            let value = std::str::from_utf8(bytes).map_or(HeaderValue::Bytes(bytes), HeaderValue::Text);
            (names.value(entry), value)
        });
        all.push(HeadersBuffer::new(headers).map_err(|error| MessagesError::Headers { row, error })?);
    }
    Ok(all)
}
