//! A range of the log of a server as Arrow batches, for the data source for Spark when it cannot
//! access the files.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parking_lot::Mutex;
use pyo3::prelude::*;
use quire_arrow::Collector;
use quire_client::{Failure, Message};
use quire_command::Code;
use quire_driver::client::{LogRange, Step};
use quire_expression::message_type::MessageType;
use quire_journal::{AttributesBuffer, NewAttributes, Position, Record, RecordKind};

use crate::arrow::{ArrowScan, ScanFailure, plan};
use crate::client::Handle;
use crate::errors;
use crate::interpreter;
use crate::subscription::Subscription;

/// The most messages that are taken at a time.
const TAKEN_MAX: usize = 4096;

/// The longest wait between two checks for other events.
const SLICE: Duration = Duration::from_millis(100);

/// The number of messages, the bookmark and time of the last one, and whether the end of the range
/// was reached before the limit.
type Counted = (u64, Option<(String, u64)>, bool);

/// A subscription with an end, to be read once: either as batches or as a count.
#[pyclass(frozen, module = "quire._quire")]
pub struct ArrowRange {
    handle: Arc<Handle>,
    range: Mutex<Option<LogRange>>,
}

#[pymethods]
impl ArrowRange {
    #[new]
    fn new(subscription: PyRef<'_, Subscription>) -> Self {
        let range = LogRange::new(subscription.queue.clone(), subscription.number);
        ArrowRange { handle: subscription.handle.clone(), range: Mutex::new(Some(range)) }
    }

    /// The messages as batches.
    fn scan(&self, py: Python<'_>, spec: &str) -> PyResult<ArrowScan> {
        let collector = Collector::new(plan(py, spec)?);
        let handle = self.handle.clone();
        Ok(ArrowScan::of(Box::new(Received { handle, range: self.take(py)?, collector, is_done: false })))
    }

    /// Counts messages, up to `count_max` of them or until they have `size_max` bytes of data.
    /// Returns their number, the bookmark and time of the last one, and whether the end of the
    /// range was reached first.
    fn count(&self, py: Python<'_>, count_max: u64, size_max: u64) -> PyResult<Counted> {
        let mut range = self.take(py)?;
        let (mut count, mut size, mut last) = (0, 0, None);
        loop {
            let step = interpreter::wait(py, None, |slice| {
                match range.take(self.handle.client(), TAKEN_MAX, slice) {
                    Step::Nothing => None,
                    step => Some(step),
                }
            })?;
            match step {
                Some(Step::Messages(messages)) => {
                    for message in &messages {
                        count += 1;
                        size += message.data().len() as u64;
                        if count >= count_max || size >= size_max {
                            return Ok((count, named(message), false));
                        }
                    }
                    last = messages.last().and_then(named);
                }
                Some(Step::Failed(failure)) => return Err(errors::to_python(py, &failure)),
                Some(Step::Ended | Step::Nothing) | None => {
                    return Ok((count, last, true));
                }
            }
        }
    }
}

impl ArrowRange {
    fn take(&self, py: Python<'_>) -> PyResult<LogRange> {
        self.handle.check_fork(py)?;
        let taken = self.range.lock().take();
        taken.ok_or_else(|| pyo3::exceptions::PyValueError::new_err("the range was read already"))
    }
}

/// Batches of the received messages.
struct Received {
    handle: Arc<Handle>,
    range: LogRange,
    collector: Collector,
    is_done: bool,
}

impl Received {
    fn fill(&mut self) -> Result<(), ScanFailure> {
        while !self.collector.is_full() {
            match self.range.take(self.handle.client(), TAKEN_MAX, SLICE) {
                Step::Messages(messages) => {
                    let mut buffer = AttributesBuffer::default();
                    for message in &messages {
                        self.collector.add(&record_of(message, &mut buffer)?);
                    }
                }
                Step::Nothing => (),
                Step::Ended => {
                    self.is_done = true;
                    break;
                }
                Step::Failed(failure) => return Err(ScanFailure::Client(failure)),
            }
        }
        Ok(())
    }
}

impl crate::arrow::Batches for Received {
    fn schema(&self) -> SchemaRef {
        self.collector.schema()
    }

    /// Waits as long as the client tries to connect. Only closing the client interrupts it.
    fn next(&mut self) -> Option<Result<RecordBatch, ScanFailure>> {
        if self.is_done {
            return None;
        }
        let filled = self.fill();
        self.is_done |= filled.is_err();
        match filled.and_then(|()| self.collector.take().map_err(ScanFailure::Scan)) {
            Ok(batch) => batch.map(Ok),
            Err(failure) => Some(Err(failure)),
        }
    }
}

/// The message as a record. A server sends neither the position in its log nor the type of the
/// message. Only fields of JSON are read.
fn record_of<'a>(message: &'a Message, buffer: &'a mut AttributesBuffer) -> Result<Record<'a>, ScanFailure> {
    let topic = std::str::from_utf8(message.topic());
    let (Ok(topic), Some(bookmark)) = (topic, message.bookmark()) else {
        let reason = "a message of a replay without bookmark, or whose topic is no text".to_owned();
        return Err(ScanFailure::Client(Failure::new(Code::InvalidFrame, reason)));
    };
    let attributes =
        NewAttributes { key: message.key(), headers: message.headers(), ..NewAttributes::default() };
    let attributes = buffer.encode(&attributes).map_err(|error| ScanFailure::Scan(error.into()))?;
    Ok(Record {
        position: Position::ZERO,
        kind: RecordKind::Publish,
        message_type: MessageType::Json.code(),
        publisher: bookmark.publisher,
        sequence: bookmark.sequence,
        timestamp: message.timestamp(),
        topic,
        correlation_id: message.correlation_id(),
        expiration_s: None,
        is_late: false,
        attributes,
        data: message.data(),
    })
}

fn named(message: &Message) -> Option<(String, u64)> {
    message.bookmark().map(|bookmark| (bookmark.to_string(), message.timestamp().as_ns()))
}
