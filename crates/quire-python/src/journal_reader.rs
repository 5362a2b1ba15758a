//! Reads a journal: its segments and its records, and checks it.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict};
use quire_broker::scan::{LogRange, Scan, ScanError, bounds};
use quire_client::Message as Received;
use quire_driver::Clock;
use quire_driver::client::HandedTo;
use quire_expression::message_type::{Arena, MessageType};
use quire_journal::{
    AllTopics, Attributes, Batch, DeletedKeys, JournalError, Position, Reader, Record as Stored, RecordKind,
    SegmentInfo,
};

use crate::errors;
use crate::headers;
use crate::interpreter;
use crate::journal::to_python;
use crate::message::{Message, MessageSource, datetime_from_ns};

/// Bytes of records that an iteration takes from the journal at a time: enough to make leaving the
/// interpreter cheap.
const STEP_SIZE: usize = 256 * 1024;

/// Read access to a journal, also while it is written.
#[pyclass(frozen, module = "quire._quire")]
pub struct JournalReader {
    reader: Reader,
}

/// Path, number, first and last bookmark, first and last timestamp in nanoseconds, records, bytes,
/// state.
pub type SegmentFields =
    (PathBuf, u32, Option<String>, Option<String>, Option<u64>, Option<u64>, u64, u64, &'static str);

impl JournalReader {
    pub fn new(reader: Reader) -> Self {
        JournalReader { reader }
    }

    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    fn scan(
        &self,
        py: Python<'_>,
        after: &str,
        until: Option<&str>,
        topic: Option<&str>,
        filter: Option<&str>,
    ) -> PyResult<Scan> {
        let found = interpreter::outside(py, || {
            self.reader.refresh()?;
            Scan::new(&self.reader, &LogRange { after, until, topic, filter })
        });
        found.map_err(|error| refused(py, &error))
    }
}

#[pymethods]
impl JournalReader {
    /// Opens a directory without a lock, and the directory that its older files were moved to. This
    /// is safe while another process writes it.
    #[new]
    #[pyo3(signature = (directory, archive_directory=None))]
    fn open(py: Python<'_>, directory: PathBuf, archive_directory: Option<PathBuf>) -> PyResult<Self> {
        let reader =
            interpreter::outside(py, || Reader::open_with_archive(directory, archive_directory.as_deref()));
        reader.map(JournalReader::new).map_err(|error| to_python(py, &error))
    }

    /// Positions of the first record that can be read and of the last.
    fn positions(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        interpreter::outside(py, || self.reader.refresh()).map_err(|error| to_python(py, &error))?;
        Ok((self.reader.first().get(), self.reader.persisted().get()))
    }

    fn segments(&self, py: Python<'_>) -> PyResult<Vec<SegmentFields>> {
        let segments = interpreter::outside(py, || self.reader.refresh().map(|()| self.reader.segments()));
        let segments = segments.map_err(|error| to_python(py, &error))?;
        Ok(segments.into_iter().map(fields_of).collect())
    }

    /// The segment, and the offset of the batch with the message in it.
    fn find(&self, py: Python<'_>, bookmark: &str) -> PyResult<Option<(SegmentFields, u64)>> {
        let bookmark = bookmark
            .parse()
            .map_err(|error| errors::new_error(py, "bad_bookmark", &format!("{bookmark:?}: {error}"), 0))?;
        let found = interpreter::outside(py, || {
            self.reader.refresh().and_then(|()| self.reader.find_place(bookmark))
        });
        let found = found.map_err(|error| to_python(py, &error))?;
        Ok(found.map(|(segment, offset)| (fields_of(segment), offset)))
    }

    /// The instances that a message has passed before this one; `None`: the log does not have it.
    fn path_of(&self, py: Python<'_>, bookmark: &str) -> PyResult<Option<Vec<String>>> {
        let bookmark = bookmark
            .parse()
            .map_err(|error| errors::new_error(py, "bad_bookmark", &format!("{bookmark:?}: {error}"), 0))?;
        let find = || {
            let Some(position) = self.reader.find(bookmark)? else { return Ok(None) };
            let mut cursor = self.reader.cursor(Position::new(position.get() - 1)).sparingly();
            let batch = cursor.next(position, &AllTopics)?;
            let found = batch.as_ref().and_then(|batch| batch.records().find(|it| it.position == position));
            Ok(found.map(|record| {
                record.attributes.path().instances().map(|instance| instance.name.to_owned()).collect()
            }))
        };
        interpreter::outside(py, find).map_err(|error| to_python(py, &error))
    }

    /// File, offset and reason of every damage.
    fn verify(&self, py: Python<'_>) -> PyResult<Vec<(PathBuf, u64, String)>> {
        let damages = interpreter::outside(py, || self.reader.refresh().map(|()| self.reader.verify()));
        let damages = damages.map_err(|error| to_python(py, &error))?;
        Ok(damages
            .into_iter()
            .map(|damage| (damage.path, damage.offset, damage.reason.into_owned()))
            .collect())
    }

    /// The position after which a range begins, and the position with which it ends.
    fn bounds(&self, py: Python<'_>, after: &str, until: Option<&str>) -> PyResult<(u64, u64)> {
        let found = interpreter::outside(py, || {
            self.reader.refresh()?;
            bounds(&self.reader, after, until)
        });
        let (after, limit) = found.map_err(|error| refused(py, &error))?;
        Ok((after.get(), limit.get()))
    }

    /// The messages of a range.
    fn read(
        &self,
        py: Python<'_>,
        after: &str,
        until: Option<&str>,
        topic: Option<&str>,
        filter: Option<&str>,
    ) -> PyResult<Messages> {
        let steps = Mutex::new(Steps::new(self.scan(py, after, until, topic, filter)?));
        Ok(Messages { steps, source: MessageSource::of_journal() })
    }

    /// The records of a range, of every kind.
    fn records(
        &self,
        py: Python<'_>,
        after: &str,
        until: Option<&str>,
        topic: Option<&str>,
        filter: Option<&str>,
    ) -> PyResult<Records> {
        let steps = Mutex::new(Steps::new(self.scan(py, after, until, topic, filter)?));
        Ok(Records { steps })
    }
}

/// The steps of a scan. One step is taken ahead of the user.
struct Steps<T> {
    scan: Scan,
    clock: Clock,
    ahead: VecDeque<T>,
    /// `None` = the end. An error is raised once, after the records before it.
    rest: Option<Result<(), JournalError>>,
}

impl<T: Send> Steps<T> {
    fn new(scan: Scan) -> Self {
        Steps { scan, clock: Clock::start(), ahead: VecDeque::new(), rest: Some(Ok(())) }
    }

    fn next(
        &mut self,
        py: Python<'_>,
        step: fn(&mut Scan, &Clock, &mut VecDeque<T>) -> Result<bool, JournalError>,
    ) -> PyResult<Option<T>> {
        loop {
            if let Some(next) = self.ahead.pop_front() {
                return Ok(Some(next));
            }
            match self.rest.take() {
                None => return Ok(None),
                Some(Err(error)) => return Err(to_python(py, &error)),
                Some(Ok(())) => {
                    let Steps { scan, clock, ahead, .. } = self;
                    self.rest = match interpreter::outside(py, || step(scan, clock, ahead)) {
                        Ok(true) => Some(Ok(())),
                        Ok(false) => None,
                        Err(error) => Some(Err(error)),
                    };
                    py.check_signals()?;
                }
            }
        }
    }
}

/// An iterator over messages.
#[pyclass(frozen, module = "quire._quire")]
pub struct Messages {
    steps: Mutex<Steps<Received>>,
    source: Arc<MessageSource>,
}

#[pymethods]
impl Messages {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, Message>>> {
        let next = self.steps.lock_py_attached(py).next(py, |scan, clock, ahead| {
            let (messages, more) = scan.messages(clock.now().wall, STEP_SIZE);
            ahead.extend(messages.into_iter().filter_map(Received::of_body));
            more
        })?;
        let Some(received) = next else { return Ok(None) };
        let message = self.source.hand_out(vec![received], HandedTo::Loop).pop();
        message.map(|message| message.into_object(py)).transpose()
    }
}

/// An iterator over records.
#[pyclass(frozen, module = "quire._quire")]
pub struct Records {
    steps: Mutex<Steps<Record>>,
}

#[pymethods]
impl Records {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        self.steps.lock_py_attached(py).next(py, |scan, clock, ahead| {
            scan.step(clock.now().wall, STEP_SIZE, |record, batch| {
                ahead.push_back(Record::new(record, batch))
            })
        })
    }
}

/// One record as it is in the journal.
#[pyclass(frozen, module = "quire")]
pub struct Record {
    /// The position in the log, from 1.
    #[pyo3(get)]
    position: u64,
    kind: RecordKind,
    message_type: u8,
    publisher: u64,
    /// The sequence number that the publisher gave the record.
    #[pyo3(get)]
    sequence: u64,
    /// The time at which the record was received, in nanoseconds since 1970 (UTC).
    #[pyo3(get)]
    timestamp_ns: u64,
    /// The topic of the record.
    #[pyo3(get)]
    topic: String,
    correlation_id: Vec<u8>,
    /// The lifetime in a queue in seconds; 0 = never expires; `None` = the lifetime of the queue.
    #[pyo3(get)]
    expiration_s: Option<u32>,
    attributes: Vec<u8>,
    data: Vec<u8>,
    /// The file that contains the record.
    #[pyo3(get)]
    segment: PathBuf,
    /// The offset of its batch in the file, in bytes.
    #[pyo3(get)]
    offset: u64,
}

impl Record {
    fn new(record: &Stored<'_>, batch: &Batch) -> Self {
        let place = batch.place();
        Record {
            position: record.position.get(),
            kind: record.kind,
            message_type: record.message_type,
            publisher: record.publisher.get(),
            sequence: record.sequence,
            timestamp_ns: record.timestamp.as_ns(),
            topic: record.topic.to_owned(),
            correlation_id: record.correlation_id.to_vec(),
            expiration_s: record.expiration_s,
            attributes: record.attributes.as_bytes().to_vec(),
            data: record.data.to_vec(),
            segment: place.path,
            offset: place.offset,
        }
    }

    fn attributes(&self) -> Attributes<'_> {
        // They are those of a record that was read.
        Attributes::from_bytes(&self.attributes).unwrap_or_default()
    }
}

#[pymethods]
impl Record {
    /// `"publish"`, `"acknowledge"` (a queue settled messages), `"lease"` (a queue delivered
    /// messages), or `"delete"` (of a last-value topic).
    #[getter]
    fn kind(&self) -> &'static str {
        self.kind.name()
    }

    /// The type of the data, such as `"json"`.
    #[getter]
    fn message_type(&self) -> String {
        let known = MessageType::from_code(self.message_type);
        known.map_or_else(|| self.message_type.to_string(), |known| known.name().to_owned())
    }

    /// Why filters cannot read the data, or `None` when they can. The data is read to its end.
    #[getter]
    fn unreadable(&self, py: Python<'_>) -> Option<String> {
        if self.kind != RecordKind::Publish {
            return None;
        }
        let Some(message_type) = MessageType::from_code(self.message_type) else {
            return Some(format!("of an unknown message type, {}", self.message_type));
        };
        let data = &self.data[..];
        interpreter::outside(py, || {
            message_type.check(data, &mut Arena::default()).err().map(|reason| reason.to_string())
        })
    }

    /// The id of the publisher, as in the bookmark.
    #[getter]
    fn publisher(&self) -> String {
        self.publisher.to_string()
    }

    /// The bookmark of the record: `<publisher>|<sequence>|`.
    #[getter]
    fn bookmark(&self) -> String {
        format!("{}|{}|", self.publisher, self.sequence)
    }

    /// The time at which the record was received (UTC).
    #[getter]
    fn timestamp<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        datetime_from_ns(py, self.timestamp_ns)
    }

    /// The correlation id with which the message was published, or `None`.
    #[getter]
    fn correlation_id(&self) -> Option<String> {
        let id = &self.correlation_id;
        (!id.is_empty()).then(|| String::from_utf8_lossy(id).into_owned())
    }

    /// The headers of the message: names with text or bytes.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        headers::to_python(py, self.attributes().headers())
    }

    /// The key of the message in its last-value topic, or `None`.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.attributes().key().map(|key| PyBytes::new(py, key))
    }

    /// Name and group of each instance that the record passed, oldest first. Empty if published
    /// here.
    #[getter]
    fn path(&self) -> Vec<(&str, &str)> {
        self.attributes().path().instances().map(|instance| (instance.name, instance.group)).collect()
    }

    /// The position in the log of the last instance in `path`; `None` = published here, or not
    /// known.
    #[getter]
    fn source_position(&self) -> Option<u64> {
        self.attributes().source()?.position.map(Position::get)
    }

    /// The keys that a `"delete"` removed; empty for other kinds.
    #[getter]
    fn deleted_keys<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let data: &[u8] = if self.kind == RecordKind::Delete { &self.data } else { &[] };
        // The reader has checked that it is a list.
        let keys = DeletedKeys::from_bytes(data).into_iter().flatten();
        keys.map(|key| PyBytes::new(py, key)).collect()
    }

    /// The data as it was published.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.data)
    }

    fn __repr__(&self) -> String {
        format!(
            "Record(position={}, kind={:?}, topic={:?}, bookmark={:?}, {} bytes)",
            self.position,
            self.kind(),
            self.topic,
            self.bookmark(),
            self.data.len()
        )
    }
}

pub fn fields_of(segment: SegmentInfo) -> SegmentFields {
    let (first, last) = segment.bookmarks.unzip();
    let (first_timestamp, last_timestamp) = segment.timestamps.unzip();
    (
        segment.path,
        segment.number,
        first.map(|bookmark| bookmark.to_string()),
        last.map(|bookmark| bookmark.to_string()),
        first_timestamp.map(|timestamp| timestamp.as_ns()),
        last_timestamp.map(|timestamp| timestamp.as_ns()),
        segment.count,
        segment.size,
        segment.state.name(),
    )
}

fn refused(py: Python<'_>, error: &ScanError) -> PyErr {
    let (code, column) = match error {
        ScanError::Topic(_) => ("bad_topic", 0),
        ScanError::Filter(error) => ("bad_filter", u32::try_from(error.column).unwrap_or(u32::MAX)),
        ScanError::Bookmark(_) => ("bad_bookmark", 0),
        ScanError::NotFound { .. } => ("bookmark_not_found", 0),
        ScanError::Journal(error) => return to_python(py, error),
    };
    errors::new_error(py, code, &error.to_string(), column)
}
