//! Received messages as rows of a data frame, and the fields of one message.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use quire_arrow::{Collector, Inferred, SpecError, infer, top_level_fields};
use quire_client::Message as Received;
use quire_expression::filter::path_of;
use quire_expression::message_type::{Arena, FieldId, FieldPlan, MessageType, Value};
use quire_expression::select::Select;
use quire_journal::{Position, PublisherId, Record, RecordKind};

use crate::arrow::{ArrowScan, Batches, ScanFailure, plan};
use crate::errors;
use crate::interpreter;
use crate::message::Message;

/// Messages that become a data frame.
#[pyclass(frozen, module = "quire._quire")]
pub struct Rows {
    messages: Mutex<Vec<Received>>,
}

#[pymethods]
impl Rows {
    #[new]
    fn new(messages: Vec<PyRef<'_, Message>>) -> Self {
        Rows { messages: Mutex::new(messages.iter().map(|message| message.received().clone()).collect()) }
    }

    /// Appends messages.
    fn append(&self, messages: Vec<PyRef<'_, Message>>) {
        self.extend(messages.iter().map(|message| message.received().clone()));
    }

    /// The topic of the first one.
    #[getter]
    fn topic(&self) -> Option<String> {
        let messages = self.messages.lock();
        messages.first().map(|message| String::from_utf8_lossy(message.topic()).into_owned())
    }

    /// The paths of the fields at the top level of JSON messages.
    fn fields(&self, py: Python<'_>) -> Vec<String> {
        interpreter::outside(py, || top_level_fields(self.messages.lock().iter().map(Received::data)))
    }

    /// The type of the column of each path.
    fn types(&self, py: Python<'_>, paths: Vec<String>, message_type: &str) -> PyResult<Vec<&'static str>> {
        let message_type = type_of(py, message_type)?;
        let inferred = interpreter::outside(py, || {
            infer(&paths, message_type, self.messages.lock().iter().map(Received::data))
        });
        let inferred = inferred.map_err(|error| bad_field(py, &error))?;
        let name = |inferred: &Inferred| match inferred {
            Inferred::Type(kind) => kind.name(),
            Inferred::Nested => "nested",
        };
        Ok(inferred.iter().map(name).collect())
    }

    /// The messages as batches.
    fn scan(&self, py: Python<'_>, spec: &str, message_type: &str) -> PyResult<ArrowScan> {
        let collector = Collector::new(plan(py, spec)?);
        let message_type = type_of(py, message_type)?;
        let messages = self.messages.lock().clone().into();
        Ok(ArrowScan::of(Box::new(Scan { messages, at: 0, message_type, collector })))
    }

    /// The data of each message.
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.messages.lock().iter().map(|message| PyBytes::new(py, message.data())))
    }

    fn __len__(&self) -> usize {
        self.messages.lock().len()
    }
}

impl Rows {
    pub fn extend(&self, messages: impl IntoIterator<Item = Received>) {
        self.messages.lock().extend(messages);
    }
}

/// The batches of some messages.
struct Scan {
    messages: Arc<[Received]>,
    at: usize,
    message_type: MessageType,
    collector: Collector,
}

impl Batches for Scan {
    fn schema(&self) -> SchemaRef {
        self.collector.schema()
    }

    fn next(&mut self) -> Option<Result<RecordBatch, ScanFailure>> {
        while let Some(message) = self.messages.get(self.at)
            && !self.collector.is_full()
        {
            self.at += 1;
            self.collector.add(&record_of(message, self.message_type));
        }
        self.collector.take().map_err(ScanFailure::Scan).transpose()
    }
}

/// The message as a record. Only its fields are read.
fn record_of(message: &Received, message_type: MessageType) -> Record<'_> {
    let bookmark = message.bookmark();
    Record {
        position: Position::ZERO,
        kind: RecordKind::Publish,
        message_type: message_type.code(),
        publisher: bookmark.map_or(PublisherId::default(), |bookmark| bookmark.publisher),
        sequence: bookmark.map_or(0, |bookmark| bookmark.sequence),
        timestamp: message.timestamp(),
        topic: "",
        correlation_id: b"",
        expiration_s: None,
        is_late: false,
        attributes: Default::default(),
        data: message.data(),
    }
}

/// Reads the texts of some fields of messages.
#[pyclass(frozen, module = "quire._quire")]
pub struct Fields {
    paths: Vec<String>,
    plan: FieldPlan,
    fields: Vec<FieldId>,
    arena: Mutex<Arena>,
}

#[pymethods]
impl Fields {
    #[new]
    fn new(py: Python<'_>, paths: Vec<String>) -> PyResult<Self> {
        // Checks the paths.
        infer(&paths, MessageType::Json, std::iter::empty()).map_err(|error| bad_key(py, &error))?;
        let mut plan = FieldPlan::default();
        let fields = paths.iter().map(|path| plan.add(&path_of(path))).collect();
        Ok(Fields { paths, plan, fields, arena: Mutex::default() })
    }

    /// The first field that a select list excludes. A list with a mistake excludes none: the server
    /// reports the mistake.
    fn excluded_by(&self, select: &str) -> Option<&str> {
        let select = Select::parse(select).ok()?;
        self.paths.iter().find(|path| !select.has(&path_of(path))).map(String::as_str)
    }

    /// The text of each field; `None` for a field that is missing, or that is an object.
    fn texts(&self, py: Python<'_>, message: &Message, message_type: &str) -> PyResult<Vec<Option<String>>> {
        let message_type = type_of(py, message_type)?;
        let mut arena = self.arena.lock();
        arena.reset();
        let values = message_type.read(message.received().data(), &self.plan, &arena).unwrap_or_default();
        let text = |field: &FieldId| text_of(*values.get(field.index())?);
        Ok(self.fields.iter().map(text).collect())
    }
}

/// The text of a value in the message.
fn text_of(value: Value<'_>) -> Option<String> {
    match value.scalar() {
        Value::Boolean(value) => Some(value.to_string()),
        Value::Text(text) | Value::Number(_, text @ [_, ..]) => {
            Some(String::from_utf8_lossy(text).into_owned())
        }
        Value::Number(number, _) => {
            let mut bytes = Vec::new();
            number.write_text(&mut bytes).ok()?;
            String::from_utf8(bytes).ok()
        }
        Value::Null | Value::Array(_) | Value::Compound(_) => None,
    }
}

fn type_of(py: Python<'_>, name: &str) -> PyResult<MessageType> {
    let unknown = || errors::bad_option(py, "message_type", &format!("{name:?} is not known"));
    MessageType::from_name(name).ok_or_else(unknown)
}

fn bad_field(py: Python<'_>, error: &SpecError) -> PyErr {
    errors::bad_option(py, "fields", &error.to_string())
}

fn bad_key(py: Python<'_>, error: &SpecError) -> PyErr {
    errors::bad_option(py, "key", &error.to_string())
}
