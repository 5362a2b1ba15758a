//! Journals and calls for the tests of this crate.
#![allow(dead_code, unsafe_code, reason = "not every test module uses everything")]

use std::path::Path;
use std::time::Duration;

use quire_journal::{Attributes, Journal, NewRecord, Options, PublisherId, RecordKind, Timestamp};
use quire_spark::abi::{self, Answer};
use serde_json::{Value, json};

/// Only a hang takes longer, on the slowest machine.
const SOON: Duration = Duration::from_secs(120);

/// 2026-01-02T03:04:05Z.
pub const BEGIN_NS: u64 = 1_767_323_045_000_000_000;

/// Appends messages of a publisher, of which each has the topic, the data and the time in
/// microseconds after [`BEGIN_NS`].
pub fn append(directory: &Path, publisher: u64, messages: &[(&str, String, u64)]) {
    let options = Options { segment_size: 64 * 1024, prepared_segments: 1, ..Options::default() };
    let (mut journal, _) = Journal::open(directory, &options, &mut |_| ()).unwrap();
    for (number, (topic, data, at_us)) in messages.iter().enumerate() {
        let record = NewRecord {
            kind: RecordKind::Publish,
            message_type: 1,
            publisher: PublisherId(publisher),
            sequence: number as u64 + 1,
            timestamp: Timestamp(BEGIN_NS + at_us * 1000),
            topic,
            correlation_id: b"",
            expiration_s: None,
            attributes: Attributes::NONE,
            data: data.as_bytes(),
        };
        journal.append(&record).unwrap();
        if number % 50 == 49 {
            journal.submit();
        }
    }
    journal.flush(SOON).unwrap();
}

/// Trades on three topics, one microsecond apart.
pub fn trades(directory: &Path, count: u64) {
    let message = |number: u64| {
        let topic = if number.is_multiple_of(100) { "rare" } else { ["t/0", "t/1"][(number % 2) as usize] };
        let symbol = ["IBM", "HPQ", "ORCL"][(number % 3) as usize];
        let data = format!(
            r#"{{"n": {number}, "symbol": "{symbol}", "price": {}, "order": {{"qty": {}}}}}"#,
            number as f64 / 8.0,
            number % 7
        );
        (topic, data, number)
    };
    append(directory, 7, &(0..count).map(message).collect::<Vec<_>>());
}

/// A call whose answer is a text.
pub fn call(function: unsafe fn(i64, i64, i64) -> i64, text: &str) -> Result<String, Value> {
    answered(|answer| {
        // SAFETY: the text and the answer are there for the call.
        unsafe { function(text.as_ptr() as i64, text.len() as i64, answer) }
    })
    .map(|(_, text)| text)
}

/// The number and the text of a call, or its failure.
pub fn answered(call: impl FnOnce(i64) -> i64) -> Result<(i64, String), Value> {
    let mut answer = Answer::default();
    let status = call(&raw mut answer as i64);
    let text = match answer.size {
        0 => String::new(),
        size => {
            // SAFETY: the function gave this text.
            let bytes = unsafe { std::slice::from_raw_parts(answer.address as *const u8, size as usize) };
            String::from_utf8(bytes.to_vec()).unwrap()
        }
    };
    // SAFETY: the function gave this text, and it is freed once.
    unsafe { abi::answer_free(answer.address, answer.size) };
    match status {
        abi::FAILED => Err(serde_json::from_str(&text).unwrap()),
        status => Ok((status, text)),
    }
}

/// A frame of a directory.
pub fn frame(directory: &Path, options: &[(&str, &str)]) -> Result<Value, Value> {
    let mut given = json!({"path": directory});
    for (key, value) in options {
        given[*key] = json!(value);
    }
    call(abi::frame, &given.to_string()).map(|frame| serde_json::from_str(&frame).unwrap())
}

/// A schema in the JSON of Spark, of columns with their types.
pub fn schema(columns: &[(&str, &str)]) -> Value {
    let field =
        |(name, kind): &(&str, &str)| json!({"name": name, "type": kind, "nullable": true, "metadata": {}});
    json!({"type": "struct", "fields": columns.iter().map(field).collect::<Vec<_>>()})
}

/// The tasks of a read.
pub fn tasks(read: &Value) -> Result<Vec<String>, Value> {
    let planned: Value = serde_json::from_str(&call(abi::plan, &read.to_string())?).unwrap();
    Ok(planned["tasks"].as_array().unwrap().iter().map(|task| task.as_str().unwrap().to_owned()).collect())
}

/// A scan of the columns `bigint` and `string`, as values.
pub struct Scanned {
    pub handle: i64,
}

impl Scanned {
    pub fn open(task: &str) -> Result<Self, Value> {
        let open = |answer| {
            // SAFETY: the text and the answer are there for the call.
            unsafe { abi::scan_open(task.as_ptr() as i64, task.len() as i64, answer) }
        };
        answered(open).map(|(handle, _)| Scanned { handle })
    }

    /// The next batch: its rows and its numbers.
    pub fn next(&self, room: usize) -> Result<(usize, Vec<i64>), Value> {
        let mut numbers = vec![0_i64; room];
        let at = numbers.as_mut_ptr() as i64;
        // SAFETY: there is room for the numbers.
        let (rows, _) = answered(|answer| unsafe { abi::scan_next(self.handle, at, room as i64, answer) })?;
        Ok((rows as usize, numbers))
    }

    pub fn metrics(&self) -> [i64; 6] {
        let mut metrics = [0_i64; 6];
        let at = metrics.as_mut_ptr() as i64;
        // SAFETY: there is room for six numbers.
        answered(|answer| unsafe { abi::scan_metrics(self.handle, at, answer) }).unwrap();
        metrics
    }

    pub fn warnings(&self) -> Vec<String> {
        // SAFETY: the answer is there for the call.
        let (_, text) = answered(|answer| unsafe { abi::scan_warnings(self.handle, answer) }).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Scanned {
    fn drop(&mut self) {
        abi::scan_close(self.handle);
    }
}

/// Whether a value is there, by the first of the numbers of its column.
pub fn is_there(numbers: &[i64], row: usize) -> bool {
    // SAFETY: the validity bits of a batch that is open.
    numbers[0] == 0 || unsafe { *((numbers[0] + row as i64 / 8) as *const u8) } >> (row % 8) & 1 == 1
}

/// The values of a column of 64 bits.
pub fn longs(numbers: &[i64]) -> Vec<Option<i64>> {
    // SAFETY: the values of a batch that is open.
    let value = |row: usize| unsafe { *((numbers[3] + 8 * row as i64) as *const i64) };
    (0..numbers[2] as usize).map(|row| is_there(numbers, row).then(|| value(row))).collect()
}

/// The values of a column of text.
pub fn texts(numbers: &[i64]) -> Vec<Option<String>> {
    let value = |row: usize| {
        // SAFETY: the offsets and the bytes of a batch that is open.
        unsafe {
            let offset = |row: usize| *((numbers[3] + 4 * row as i64) as *const i32);
            let (from, to) = (offset(row), offset(row + 1));
            let bytes =
                std::slice::from_raw_parts((numbers[4] + i64::from(from)) as *const u8, (to - from) as usize);
            String::from_utf8(bytes.to_vec()).unwrap()
        }
    };
    (0..numbers[2] as usize).map(|row| is_there(numbers, row).then(|| value(row))).collect()
}

/// The first column, which is a number, of all rows of a read.
pub fn numbers(read: &Value) -> Vec<i64> {
    let width = read["schema"]["fields"].as_array().unwrap().len();
    let mut found = Vec::new();
    for task in tasks(read).unwrap() {
        let scan = Scanned::open(&task).unwrap();
        loop {
            let (rows, numbers) = scan.next(5 * width).unwrap();
            if rows == 0 {
                break;
            }
            found.extend(longs(&numbers[..5]).into_iter().flatten());
        }
    }
    found
}
