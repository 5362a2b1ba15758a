//! A received message as Python sees it: a range of the receive buffer, whose fields are converted
//! when they are asked for.

#![allow(unsafe_code)] // the buffer protocol: see the SAFETY notes

use std::ffi::{CString, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use pyo3::exceptions::{
    PyBufferError, PyRecursionError, PyResourceWarning, PyUnicodeDecodeError, PyValueError,
};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict};
use quire_client::{Cause, Failure, Lease, Message as Received};
use quire_command::{self as command, MessageKind, OofReason, RecordHash};
use quire_driver::client::{self as driver, HandedTo};
use quire_journal::Bookmark;
use quire_types::Verdict;

use crate::client::Handle;
use crate::errors;
use crate::headers;

/// A received message.
///
/// ```text
/// for message in client.subscribe("shipping", max_backlog=10):
///     with message:  # acknowledges at the end, cancels when an exception leaves the block
///         print(message.topic, message.json())
/// ```
///
/// `memoryview(message)` is the data without a copy. Two messages are equal when their topics,
/// bookmarks, timestamps, correlation ids, headers and data are equal. A pickled message is a copy
/// with all attributes that cannot be settled.
#[pyclass(frozen, module = "quire", name = "Message")]
pub struct Message {
    received: Received,
    source: Arc<MessageSource>,
    /// Its number among the messages that its subscription handed out.
    ordinal: u64,
}

/// The subscription, query or journal that messages come from. All its messages share this.
pub struct MessageSource {
    /// The user's name of the subscription.
    pub sub_id: String,
    origin: Origin,
    /// The subscription ends when the program has dropped it and its messages.
    ends_with: Option<u32>,
}

/// The source of messages.
enum Origin {
    /// A client received them. Has the progress of the subscription.
    Client(Arc<Handle>, Arc<driver::SharedProgress>),
    /// They were read from a journal.
    Journal,
    /// It is a copy of a message, perhaps of another process.
    Copy,
    /// `quire.testing` made it. Has the first verdict about it.
    Test(OnceLock<Verdict>),
}

impl Drop for MessageSource {
    fn drop(&mut self) {
        self.end();
    }
}

impl MessageSource {
    /// The source of messages that are read from a journal.
    pub fn of_journal() -> Arc<Self> {
        Arc::new(MessageSource { sub_id: String::new(), origin: Origin::Journal, ends_with: None })
    }

    /// The source of the messages of a subscription or of a query. `ends_with`: the number of a
    /// subscription that the program has to hold.
    pub fn of_client(
        account: Arc<driver::SharedProgress>,
        handle: Arc<Handle>,
        ends_with: Option<u32>,
    ) -> Arc<Self> {
        Arc::new(MessageSource {
            sub_id: account.sub_id.clone(),
            origin: Origin::Client(handle, account),
            ends_with,
        })
    }

    /// The program does not hold the subscription any more. It ends, unless the program has
    /// messages under a lease of it: then it ends with the last of them.
    pub fn subscription_dropped(&self) {
        let (Origin::Client(handle, _), Some(number)) = (&self.origin, self.ends_with) else { return };
        if !handle.is_forked() && handle.client().retire(number) {
            self.end();
        }
    }

    /// The program holds neither the subscription nor a message of it. No effect after its end.
    fn end(&self) {
        let (Origin::Client(handle, _), Some(number)) = (&self.origin, self.ends_with) else { return };
        if handle.is_forked() {
            return;
        }
        let Ok(command) = handle.client().unsubscribe(number) else { return };
        handle.client().abandon(command);
        Python::try_attach(|py| {
            // It may be dropped while an exception is raised.
            let raised = PyErr::take(py);
            let text = format!(
                "the subscription {:?} was dropped and is ended: use `with`, or call unsubscribe()",
                self.sub_id
            );
            let text = CString::new(text).unwrap_or_default();
            let warned = PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &text, 1);
            if let Err(error) = warned {
                error.write_unraisable(py, None);
            }
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }

    /// Messages are handed out. Messages that were processed before a restart are left out.
    pub fn hand_out(self: &Arc<Self>, received: Vec<Received>, to: HandedTo) -> Vec<Message> {
        let new = |received, ordinal| Message { received, source: self.clone(), ordinal };
        match &self.origin {
            Origin::Client(_, account) => account.hand_out(received, to, new),
            _ => received.into_iter().map(|received| new(received, 0)).collect(),
        }
    }

    /// The program asks for the next message: all earlier ones are processed.
    pub fn processed_all(&self, py: Python<'_>) -> PyResult<()> {
        let Origin::Client(handle, account) = &self.origin else { return Ok(()) };
        handle.check_fork(py)?;
        handle.client().processed_all(account).map_err(|failure| errors::to_python(py, &failure))
    }

    /// The bookmark after which to resume.
    pub fn most_recent(&self) -> Option<Bookmark> {
        self.account()?.most_recent()
    }

    /// Messages that were handed out and are not processed.
    pub fn outstanding_count(&self) -> usize {
        self.account().map_or(0, driver::SharedProgress::outstanding_count)
    }

    fn account(&self) -> Option<&driver::SharedProgress> {
        match &self.origin {
            Origin::Client(_, account) => Some(account),
            _ => None,
        }
    }
}

impl Message {
    /// The message of the core.
    pub fn received(&self) -> &Received {
        &self.received
    }

    /// Its lease.
    pub fn lease(&self) -> Option<&Arc<Lease>> {
        self.received.lease()
    }

    /// The lease, and the client that settles it.
    fn leased(&self) -> Option<(&Arc<Lease>, &driver::Client)> {
        match &self.source.origin {
            Origin::Client(handle, _) => Some((self.lease()?, handle.client())),
            _ => None,
        }
    }

    /// As [`leased`](Self::leased), for the state of the lease. In a forked child, this state is
    /// not kept up to date.
    fn leased_here(&self, py: Python<'_>) -> PyResult<Option<(&Arc<Lease>, &driver::Client)>> {
        let leased = self.leased();
        if let (Some(_), Origin::Client(handle, _)) = (leased, &self.source.origin) {
            handle.check_fork(py)?;
        }
        Ok(leased)
    }

    fn settle(&self, py: Python<'_>, verdict: Verdict, reason: &str) -> PyResult<()> {
        if let Origin::Test(first) = &self.source.origin {
            // The first verdict counts, as for a client.
            first.get_or_init(|| verdict);
        }
        self.with_account(py, |client, account| {
            client.settled(account, &self.received, self.ordinal, Some(verdict), reason)
        })
    }

    /// Notifies the client that received the message, if there is one.
    fn with_account(
        &self,
        py: Python<'_>,
        tell: impl FnOnce(&driver::Client, &driver::SharedProgress) -> Result<(), Failure>,
    ) -> PyResult<()> {
        let (handle, account) = match &self.source.origin {
            Origin::Client(handle, account) => (handle, account),
            Origin::Journal | Origin::Test(_) => return Ok(()),
            Origin::Copy => {
                let reason = "it is a copy, which cannot be settled: settle the message that was received, or call \
                              client.ack(message.topic, message.bookmark)";
                return Err(errors::bad_option(py, "message", reason));
            }
        };
        // In a child of a fork the store is the parent's.
        handle.check_fork(py)?;
        tell(handle.client(), account).map_err(|failure| errors::to_python(py, &failure))
    }

    fn check_queued(&self, py: Python<'_>, verb: &str) -> PyResult<&Arc<Lease>> {
        self.lease().ok_or_else(|| {
            let reason = format!("it did not come from a queue, there is nothing to {verb}");
            errors::bad_option(py, "message", &reason)
        })
    }

    /// The fields that are the same in equal messages.
    fn identity(&self) -> (&[u8], &[u8], Option<Bookmark>, u64) {
        let received = &self.received;
        (received.topic(), received.source_topic(), received.bookmark(), received.timestamp().0)
    }

    /// A message that no client received.
    fn alone(received: Received, sub_id: String, origin: Origin) -> Self {
        Message { received, source: Arc::new(MessageSource { sub_id, origin, ends_with: None }), ordinal: 0 }
    }

    /// The Python object, which the cycle collector does not track.
    ///
    /// The collector tracks every class of an extension. A batch makes more objects than the
    /// youngest generation has room for, so the collector would visit each message, and most of
    /// them twice. That is a third of the cost of a message of a replay.
    pub fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, Message>> {
        let message = Bound::new(py, self)?;
        // SAFETY: the object is new, whole and owned here. It holds no Python object and cannot be
        // subclassed, so it is never part of a cycle; an object that is not tracked may be
        // untracked again, as its deallocation does.
        unsafe { ffi::PyObject_GC_UnTrack(message.as_ptr().cast()) };
        Ok(message)
    }
}

#[pymethods]
impl Message {
    /// The queue that delivered the message, otherwise the topic to which it was published.
    ///
    /// `client.ack(message.topic, message.bookmark)` acknowledges a message of a queue.
    #[getter]
    fn topic(&self) -> String {
        String::from_utf8_lossy(self.received.topic()).into_owned()
    }

    /// The topic to which the message was published, also when a queue delivered it.
    #[getter]
    fn source_topic(&self) -> String {
        String::from_utf8_lossy(self.received.source_topic()).into_owned()
    }

    /// The data. Each use copies it; `memoryview(message)` does not copy.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.received.data())
    }

    /// Returns the data, decoded from JSON. Raises `ValueError` when it is not JSON, or when Python
    /// cannot decode it: it is nested too deeply, or has an integer of more than 4,300 digits.
    fn json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let loads = LOADS.import(py, "json", "loads")?;
        loads.call1((self.data(py),)).map_err(|error| {
            let place = self.bookmark().map_or_else(String::new, |bookmark| format!(", bookmark {bookmark}"));
            let message = format!("topic {:?}{place}", self.topic());
            if error.is_instance_of::<PyRecursionError>(py) {
                return PyValueError::new_err(format!(
                    "the message is nested too deeply for Python: {message}"
                ));
            }
            let value = error.value(py);
            // A text that is not JSON has a place in `doc`, and bytes that are not UTF-8 have a
            // separate error.
            let is_json = error.is_instance_of::<PyValueError>(py)
                && !value.hasattr("doc").unwrap_or(false)
                && !error.is_instance_of::<PyUnicodeDecodeError>(py);
            let reason = match is_json {
                true => format!("the message has an integer of more digits than Python reads: {message}"),
                false => format!("the message is not JSON: {message}"),
            };
            // The reason is an addition. Without it the error is still raised. A
            // `UnicodeDecodeError` makes its text of its fields.
            let _ = match value.hasattr("doc") {
                Ok(true) => value.setattr("args", (format!("{reason}: {value}"),)),
                _ => value.call_method1("add_note", (reason,)).map(drop),
            };
            error
        })
    }

    /// The bookmark of the message, or `None` when the log does not record its topic.
    #[getter]
    fn bookmark(&self) -> Option<String> {
        self.received.bookmark().map(|bookmark| bookmark.to_string())
    }

    /// The time at which the server received the message (UTC), cut to the microsecond.
    ///
    /// A replay from this time begins after this microsecond, so it can leave out messages that
    /// came together with this one: to continue after the message, use the message itself as the
    /// bookmark.
    #[getter]
    fn timestamp<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        datetime_from_ns(py, self.timestamp_ns())
    }

    /// The time at which the server received the message, in nanoseconds since 1970 (UTC).
    #[getter]
    fn timestamp_ns(&self) -> u64 {
        self.received.timestamp().0
    }

    /// The sequence number that the publisher gave the message.
    #[getter]
    fn sequence(&self) -> Option<u64> {
        self.received.bookmark().map(|bookmark| bookmark.sequence)
    }

    /// The id of the publisher, as in the bookmark.
    #[getter]
    fn publisher(&self) -> Option<String> {
        self.received.bookmark().map(|bookmark| bookmark.publisher.to_string())
    }

    /// The correlation id with which the message was published, or `None`.
    #[getter]
    fn correlation_id(&self) -> Option<String> {
        let id = self.received.correlation_id();
        (!id.is_empty()).then(|| String::from_utf8_lossy(id).into_owned())
    }

    /// The headers of the message: names with text or bytes. Each use makes a new dictionary.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        headers::to_python(py, self.received.headers())
    }

    /// The key of the record in a last-value topic; `None` for messages of other topics and of
    /// queues.
    #[getter]
    fn sow_key(&self) -> Option<String> {
        let key = self.received.key();
        (!key.is_empty()).then(|| String::from_utf8_lossy(key).into_owned())
    }

    /// `"publish"`, `"sow"` for a record of a query, `"oof"` for a record that has left a
    /// subscription, or `"delete"` for a delete of a replay.
    #[getter]
    fn command(&self) -> &'static str {
        match self.received.cause() {
            Cause::Publish | Cause::Delta => "publish",
            Cause::Query => "sow",
            Cause::Left(_) => "oof",
            Cause::Delete => "delete",
        }
    }

    /// For an `"oof"`: `"deleted"`, `"expired"`, or `"match"` when the filter does not match the
    /// record any more.
    ///
    /// The data is then the last message, or the new one with `"match"`. It is empty when the
    /// record was deleted while the client was disconnected. `None` for other messages.
    #[getter]
    fn reason(&self) -> Option<&'static str> {
        match self.received.cause() {
            Cause::Left(OofReason::Deleted) => Some("deleted"),
            Cause::Left(OofReason::Expired) => Some("expired"),
            Cause::Left(OofReason::Match) => Some("match"),
            Cause::Left(OofReason::Entitlement) => Some("entitlement"),
            Cause::Publish | Cause::Delta | Cause::Query | Cause::Delete => None,
        }
    }

    /// Whether the data has only the fields that differ from the previous message of the record,
    /// and the key fields.
    ///
    /// Only a delta subscription receives such messages. A field that was removed is NULL.
    #[getter]
    fn is_delta(&self) -> bool {
        self.received.cause() == Cause::Delta
    }

    /// The name of the subscription that received the message.
    #[getter]
    fn sub_id(&self) -> &str {
        &self.source.sub_id
    }

    /// The same message, which no longer refers to the receive buffer.
    fn _detached<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Message>> {
        let received = self.received.detached();
        Message { received, source: self.source.clone(), ordinal: self.ordinal }.into_object(py)
    }

    #[getter]
    fn _number(&self) -> u32 {
        self.received.subscription()
    }

    /// Marks the message as processed. `most_recent` can then move past it.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        self.with_account(py, |client, account| client.processed(account, &self.received, self.ordinal))
    }

    /// The queue that delivered the message, or `None`.
    #[getter]
    fn queue(&self) -> Option<&str> {
        Some(self.lease()?.queue())
    }

    /// The lease period, or `None` without a lease or with a lease without end.
    #[getter]
    fn lease_period(&self) -> Option<Duration> {
        self.lease()?.period()
    }

    /// The end of the lease (UTC), by the clock of this machine, counted from the arrival.
    #[getter]
    fn lease_deadline<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some((lease, client)) = self.leased_here(py)? else { return Ok(None) };
        let Some(deadline) = lease.deadline() else { return Ok(None) };
        let at = client.wall_time(deadline);
        let ns = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        datetime_from_ns(py, u64::try_from(ns).unwrap_or(u64::MAX)).map(Some)
    }

    /// Whether the lease is over: the time is over, another consumer settled the message, or no
    /// connection.
    ///
    /// Another consumer may have the message. `ack` and `expire` are still sent. They have an
    /// effect if the queue still has the message, and its `leasing` is `"sublease"`. `cancel` is
    /// not sent, because the message is back in its queue.
    #[getter]
    fn lease_lost(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.leased_here(py)?.is_some_and(|(lease, client)| client.is_lost(lease)))
    }

    /// The number of deliveries, including this one. 0 for a barrier, and without a queue.
    #[getter]
    fn delivery_count(&self) -> u32 {
        self.lease().map_or(0, |lease| lease.deliveries())
    }

    /// The number of times that a consumer returned the message with `cancel`.
    #[getter]
    fn cancel_count(&self) -> u32 {
        self.lease().map_or(0, |lease| lease.cancels())
    }

    /// Called before the handler gets the message. False: it was released or lost before, and the
    /// handler must not see it.
    fn _begin(&self, py: Python<'_>) -> PyResult<bool> {
        let Origin::Client(handle, account) = &self.source.origin else { return Ok(true) };
        handle.check_fork(py)?;
        if handle.client().begin(&self.received) {
            return Ok(true);
        }
        // It is delivered again, and the program does not wait for this delivery.
        let dropped = handle.client().settled(account, &self.received, self.ordinal, None, "");
        dropped.map(|()| false).map_err(|failure| errors::to_python(py, &failure))
    }

    /// The handler has returned. Without a verdict, the program has the message.
    fn _end_handling(&self) {
        if let Some(lease) = self.lease() {
            lease.end_handling();
        }
    }

    /// The first verdict of the program on the message.
    #[getter]
    fn _verdict(&self) -> Option<&'static str> {
        let verdict = match &self.source.origin {
            Origin::Test(verdict) => verdict.get().copied(),
            _ => self.lease()?.verdict(),
        };
        match verdict? {
            Verdict::Acknowledge => Some("ack"),
            Verdict::Cancel | Verdict::CancelWithDelay { .. } => Some("cancel"),
            Verdict::Expire => Some("expire"),
            // A client releases messages that its program has not begun. A message has no such
            // verdict.
            Verdict::Release => None,
        }
    }

    /// Acknowledges the message: it leaves its queue. Without a queue, it does the same as
    /// `discard`.
    ///
    /// Acknowledgements are sent together (`ack_batch_size` of the client), also after the end of
    /// the lease. Raises `DisconnectedError` when the client is closed, as `cancel`, `expire` and
    /// `extend` do.
    fn ack(&self, py: Python<'_>) -> PyResult<()> {
        self.settle(py, Verdict::Acknowledge, "")
    }

    /// Returns the message to its queue, which delivers it again after `delay`.
    ///
    /// Without `delay`, the queue uses its `retry_delay`. If the message becomes a dead letter by
    /// this cancel, the letter has `reason`, a text of at most 1,024 bytes in UTF-8.
    #[pyo3(signature = (delay=None, reason=None))]
    fn cancel(
        &self,
        py: Python<'_>,
        delay: Option<&Bound<'_, PyAny>>,
        reason: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.check_queued(py, "cancel")?;
        let verdict = match delay {
            Some(delay) => {
                let delay_ms = u64::try_from(duration(py, delay, "delay")?.as_millis()).unwrap_or(u64::MAX);
                Verdict::CancelWithDelay { delay_ms }
            }
            None => Verdict::Cancel,
        };
        self.settle(py, verdict, &text_of(py, reason)?)
    }

    /// Removes the message from its queue, unprocessed. The dead letter topic of the queue gets it.
    ///
    /// The dead letter has `reason`, a text of at most 1,024 bytes in UTF-8. Without a connection,
    /// the command is sent by the next one, as an acknowledgement is.
    #[pyo3(signature = (reason=None))]
    fn expire(&self, py: Python<'_>, reason: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.check_queued(py, "expire")?;
        self.settle(py, Verdict::Expire, &text_of(py, reason)?)
    }

    /// Renews the lease for `period` from now. Without it: for the lease period of the queue.
    #[pyo3(signature = (period=None))]
    fn extend(&self, py: Python<'_>, period: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let lease = self.check_queued(py, "extend")?;
        let period = period.map(|period| duration(py, period, "period")).transpose()?;
        match &self.source.origin {
            Origin::Client(..) => {
                self.with_account(py, |client, _| client.extend(std::slice::from_ref(lease), period))
            }
            _ => self.with_account(py, |_, _| Ok(())),
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Acknowledges the message, or cancels it when the block raised. The exception is the reason
    /// of the cancel.
    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = kind.py();
        if kind.is_none() {
            return self.settle(py, Verdict::Acknowledge, "");
        }
        let reason = reason_of(py, error);
        let text = reason.as_deref().unwrap_or_default();
        // The caller must get the error of the block, not the error that a copy, or a message of a
        // closed client, cannot be settled.
        match (&self.source.origin, self.leased()) {
            (Origin::Client(handle, _), _) if handle.is_forked() => (),
            (_, Some((lease, client))) => drop(client.settle_because(lease, Verdict::Cancel, text)),
            (_, None) => drop(self.settle(py, Verdict::Cancel, text)),
        }
        reason.map(drop)
    }

    fn __eq__(&self, other: &Self) -> bool {
        let (mine, others) = (&self.received, &other.received);
        self.identity() == other.identity()
            && mine.correlation_id() == others.correlation_id()
            && mine.headers() == others.headers()
            && mine.data() == others.data()
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.identity().hash(&mut hasher);
        hasher.finish()
    }

    /// A pickled message is a copy: the lease stays with the message that was received.
    fn __reduce__<'py>(&'py self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Copied<'py>)> {
        static COPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let body = PyBytes::new(py, &self.received.to_body());
        let copied = (body, self.command(), self.sub_id());
        Ok((COPY.import(py, "quire._message", "copy_of")?.clone(), copied))
    }

    /// Returns the message itself, which never changes.
    fn __copy__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Returns the message itself, which never changes.
    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    fn __len__(&self) -> usize {
        self.received.data().len()
    }

    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self) -> String {
        format!(
            "Message(topic={:?}, bookmark={:?}, {} bytes)",
            self.topic(),
            self.bookmark().unwrap_or_default(),
            self.received.data().len()
        )
    }

    /// A read-only view of the data, without a copy.
    ///
    /// # Safety
    /// `view` is the interpreter's, to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let data = slf.get().received.data();
        // SAFETY: `view` is not null. The bytes are never written, never move while the message
        // lives (it is frozen), and the view holds a reference to the message until it is released.
        // Asking for a writable view is refused by the call itself.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                data.as_ptr().cast_mut().cast(),
                data.len() as ffi::Py_ssize_t,
                1,
                flags,
            )
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// The arguments of `quire._message.copy_of`: the body of a message, its command, and the name of
/// its subscription.
type Copied<'a> = (Bound<'a, PyBytes>, &'static str, &'a str);

/// A copy of a message from its pickled parts.
#[pyfunction]
pub fn copy_message(py: Python<'_>, body: &[u8], command: &str, sub_id: String) -> PyResult<Message> {
    let mut received = Received::of_body(body.to_vec().into())
        .ok_or_else(|| errors::bad_option(py, "message", "the pickled bytes are not those of a message"))?;
    if command == "sow" {
        received = received.with_cause(Cause::Query);
    }
    Ok(Message::alone(received, sub_id, Origin::Copy))
}

/// A message for the test of a handler.
#[pyfunction]
#[pyo3(signature = (topic, data, *, bookmark, timestamp_ns, correlation_id, headers, sub_id, queue, lease_ms, delivery_count, cancel_count, kind, reason, sow_key, is_delta))]
#[allow(clippy::too_many_arguments)] // the fields of a message
pub fn test_message(
    py: Python<'_>,
    topic: &str,
    data: &[u8],
    bookmark: Option<&str>,
    timestamp_ns: u64,
    correlation_id: &str,
    headers: Option<&Bound<'_, PyAny>>,
    sub_id: String,
    queue: Option<&str>,
    lease_ms: u64,
    delivery_count: u32,
    cancel_count: u32,
    kind: &str,
    reason: Option<&str>,
    sow_key: Option<&str>,
    is_delta: bool,
) -> PyResult<Message> {
    let bookmark = match bookmark.map(str::parse::<Bookmark>) {
        Some(Ok(bookmark)) => Some((bookmark.publisher.get(), bookmark.sequence)),
        Some(Err(_)) => {
            return Err(errors::bad_option(py, "bookmark", "it is not `<publisher>|<sequence>|`"));
        }
        None if queue.is_some() => {
            return Err(errors::bad_option(py, "bookmark", "every message of a queue has one"));
        }
        None => None,
    };
    let queued = queue.map(|queue| command::Queued {
        lease_ms,
        deliveries: delivery_count,
        cancels: cancel_count,
        position: 0,
        queue: Some(queue.as_bytes()),
    });
    let headers = headers::from_python(py, headers)?;
    let kind = kind_of(py, kind, reason, is_delta)?;
    let key = sow_key.unwrap_or_default().as_bytes();
    if key.len() > command::KEY_SIZE_MAX || (key.is_empty() && kind != MessageKind::Publish) {
        return Err(errors::bad_option(py, "sow_key", "a record has a key of 1 to 255 bytes"));
    }
    if kind == MessageKind::Delete && !data.is_empty() {
        return Err(errors::bad_option(py, "data", "a delete has none"));
    }
    let message = command::Message {
        subscription: 0,
        bookmark,
        timestamp_ns,
        queued,
        topic: topic.as_bytes(),
        correlation_id: correlation_id.as_bytes(),
        headers: headers.as_headers(),
        key,
        kind,
        data,
    };
    let received = Received::alone(&message)
        .ok_or_else(|| errors::bad_option(py, "topic", "topic and queue must have at most 65,535 bytes"))?;
    Ok(Message::alone(received, sub_id, Origin::Test(OnceLock::new())))
}

/// The kind of a message for a test, by the names that Python has for it.
fn kind_of(py: Python<'_>, kind: &str, reason: Option<&str>, is_delta: bool) -> PyResult<MessageKind> {
    if is_delta && kind != "publish" {
        return Err(errors::bad_option(py, "is_delta", "only \"publish\" can be a delta"));
    }
    Ok(match (kind, reason) {
        // No client compares the record of a test message.
        ("publish", None) if is_delta => MessageKind::Delta(RecordHash([0; 16])),
        ("publish", None) => MessageKind::Publish,
        ("sow", None) => MessageKind::Record,
        ("delete", None) => MessageKind::Delete,
        ("oof", Some("deleted")) => MessageKind::Oof(OofReason::Deleted),
        ("oof", Some("expired")) => MessageKind::Oof(OofReason::Expired),
        ("oof", Some("match")) => MessageKind::Oof(OofReason::Match),
        ("oof", Some("entitlement")) => MessageKind::Oof(OofReason::Entitlement),
        ("oof", _) => {
            return Err(errors::bad_option(
                py,
                "reason",
                "of \"oof\" it is \"deleted\", \"expired\" or \"match\"",
            ));
        }
        (_, Some(_)) => return Err(errors::bad_option(py, "reason", "only \"oof\" has one")),
        _ => {
            return Err(errors::bad_option(
                py,
                "command",
                "it is not \"publish\", \"sow\", \"oof\" or \"delete\"",
            ));
        }
    })
}

/// A duration in any form that a program may use, for the argument `key`.
fn duration(py: Python<'_>, value: &Bound<'_, PyAny>, key: &str) -> PyResult<Duration> {
    static SECONDS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let seconds = SECONDS.import(py, "quire._units", "seconds")?.call1((value, key))?;
    Ok(Duration::from_secs_f64(seconds.extract()?))
}

/// The reason of a cancel or an expiry. Empty for `None`.
fn text_of(py: Python<'_>, reason: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
    static CHECKED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    match reason {
        None => Ok(String::new()),
        Some(reason) => CHECKED.import(py, "quire._reasons", "reason_to_core")?.call1((reason,))?.extract(),
    }
}

/// An exception as the reason of a cancel.
fn reason_of(py: Python<'_>, error: &Bound<'_, PyAny>) -> PyResult<String> {
    static REASON_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    REASON_OF.import(py, "quire._reasons", "reason_of")?.call1((error,))?.extract()
}

/// The moment as a `datetime`, in UTC.
pub fn datetime_from_ns(py: Python<'_>, timestamp_ns: u64) -> PyResult<Bound<'_, PyAny>> {
    static FROM_NS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FROM_NS.import(py, "quire._message", "datetime_from_ns")?.call1((timestamp_ns,))
}
