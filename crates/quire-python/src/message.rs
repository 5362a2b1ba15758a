//! A received message as Python sees it: a range of the receive buffer, whose fields are converted when they are asked for.

#![allow(unsafe_code)] // the buffer protocol: see the SAFETY notes

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use quire_core::client::{Lease, Message as Received};
use quire_core::queue::Verdict;
use quire_driver::client as driver;
use quire_journal::Bookmark;

use crate::client::Handle;
use crate::errors;

/// One received message.
#[pyclass(frozen, module = "quire", name = "Message")]
pub struct Message {
    received: Received,
    progress: Arc<Progress>,
    /// Which one it is among those that its subscription handed out.
    ordinal: u64,
}

/// What the messages of one subscription have in common, and whom to tell what became of them.
pub struct Progress {
    /// The user's name of the subscription.
    pub sub_id: String,
    /// The client that received them; `None` where there is none.
    handle: Option<Arc<Handle>>,
    /// Keeps account of what was processed; `None` where there is no client.
    account: Option<Arc<driver::Progress>>,
    /// Whether what is processed is acknowledged.
    auto_ack: bool,
    /// `Message.command`.
    command: &'static str,
    /// Leases of messages that were handed out, to be acknowledged when the next message is asked for.
    leases: Mutex<Vec<Arc<Lease>>>,
}

impl Progress {
    /// Of messages that no client received.
    pub fn new(sub_id: String) -> Arc<Self> {
        Arc::new(Progress {
            sub_id,
            handle: None,
            account: None,
            auto_ack: false,
            command: "publish",
            leases: Mutex::default(),
        })
    }

    /// Of the messages of a subscription; `auto_ack`: what is processed is acknowledged.
    pub fn of_client(account: Arc<driver::Progress>, handle: Arc<Handle>, auto_ack: bool) -> Arc<Self> {
        let (sub_id, handle, account) = (account.sub_id.clone(), Some(handle), Some(account));
        Arc::new(Progress { sub_id, handle, account, auto_ack, command: "publish", leases: Mutex::default() })
    }

    /// Of the answers to a query.
    pub fn of_query(account: Arc<driver::Progress>, handle: Arc<Handle>) -> Arc<Self> {
        let (sub_id, handle, account) = (account.sub_id.clone(), Some(handle), Some(account));
        Arc::new(Progress {
            sub_id,
            handle,
            account,
            auto_ack: false,
            command: "sow",
            leases: Mutex::default(),
        })
    }

    /// Messages are handed out to a loop, which says by asking for the next that it has processed them.
    pub fn hand_out_in_turn(self: &Arc<Self>, received: Vec<Received>) -> Vec<Message> {
        if self.auto_ack {
            self.leases.lock().extend(received.iter().filter_map(Received::lease).cloned());
        }
        self.hand_out(received)
    }

    /// Messages are handed out to a handler, which says by returning that it has processed one. Those that were processed in an earlier
    /// life are left out.
    pub fn hand_out(self: &Arc<Self>, received: Vec<Received>) -> Vec<Message> {
        let new = |received, ordinal| Message { received, progress: self.clone(), ordinal };
        match &self.account {
            Some(account) => account.hand_out(received.into_iter(), new),
            None => received.into_iter().map(|received| new(received, 0)).collect(),
        }
    }

    /// The next message is asked for: all that were handed out are processed.
    pub fn processed_all(&self, py: Python<'_>) -> PyResult<()> {
        if self.auto_ack {
            let leases = std::mem::take(&mut *self.leases.lock());
            if let Some(handle) = self.handle.as_ref().filter(|_| !leases.is_empty()) {
                handle.client().settle_all(leases.iter().map(|lease| &**lease), Verdict::Acknowledge);
            }
        }
        let kept = self.account.as_ref().map_or(Ok(()), |account| account.processed_all());
        kept.map_err(|failure| errors::to_python(py, &failure))
    }

    /// The bookmark behind which to resume.
    pub fn most_recent(&self) -> Option<Bookmark> {
        self.account.as_ref()?.most_recent()
    }

    /// Messages that were handed out and are not processed.
    pub fn outstanding_count(&self) -> usize {
        self.account.as_ref().map_or(0, |account| account.outstanding_count())
    }

    fn processed(&self, py: Python<'_>, ordinal: u64) -> PyResult<()> {
        // In a child of a fork the store is the parent's.
        self.handle.as_ref().map_or(Ok(()), |handle| handle.check_fork(py))?;
        let kept = self.account.as_ref().map_or(Ok(()), |account| account.processed(ordinal));
        kept.map_err(|failure| errors::to_python(py, &failure))
    }
}

impl Message {
    /// How it came from a queue.
    pub fn lease(&self) -> Option<&Arc<Lease>> {
        self.received.lease()
    }

    /// The lease, and whom to tell about it.
    fn leased(&self) -> Option<(&Arc<Lease>, &driver::Client)> {
        Some((self.lease()?, self.progress.handle.as_ref()?.client()))
    }

    fn settle(&self, py: Python<'_>, verdict: Verdict) -> PyResult<()> {
        if let Some((lease, client)) = self.leased() {
            client.settle(lease, verdict);
        }
        self.progress.processed(py, self.ordinal)
    }

    fn leased_to(&self, py: Python<'_>, verb: &str) -> PyResult<(&Arc<Lease>, &driver::Client)> {
        self.leased().ok_or_else(|| {
            let reason = format!("it did not come from a queue, there is nothing to {verb}");
            errors::bad_option(py, "message", &reason)
        })
    }

    /// The Python object, out of the sight of the cycle collector.
    ///
    /// Every class of an extension is tracked by it, and a batch makes more objects than its youngest generation holds, so that it would look
    /// at each message, most of them twice: a third of what a message of a replay costs.
    pub fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, Message>> {
        let message = Bound::new(py, self)?;
        // SAFETY: the object is new, whole and owned here. It holds no Python object and cannot be subclassed, so it is never part of a
        // cycle; an object that is not tracked may be untracked again, as its deallocation does.
        unsafe { ffi::PyObject_GC_UnTrack(message.as_ptr().cast()) };
        Ok(message)
    }
}

#[pymethods]
impl Message {
    #[getter]
    fn topic(&self) -> String {
        String::from_utf8_lossy(self.received.topic()).into_owned()
    }

    #[getter]
    fn source_topic(&self) -> String {
        String::from_utf8_lossy(self.received.source_topic()).into_owned()
    }

    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.received.data())
    }

    fn json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        LOADS.import(py, "json", "loads")?.call1((self.data(py),))
    }

    #[getter]
    fn bookmark(&self) -> Option<String> {
        self.received.bookmark().map(|bookmark| bookmark.to_string())
    }

    #[getter]
    fn timestamp<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        datetime_from_ns(py, self.timestamp_ns())
    }

    #[getter]
    fn timestamp_ns(&self) -> u64 {
        self.received.timestamp().0
    }

    #[getter]
    fn sequence(&self) -> Option<u64> {
        self.received.bookmark().map(|bookmark| bookmark.sequence)
    }

    #[getter]
    fn publisher(&self) -> Option<String> {
        self.received.bookmark().map(|bookmark| bookmark.publisher.to_string())
    }

    #[getter]
    fn correlation_id(&self) -> Option<String> {
        let id = self.received.correlation_id();
        (!id.is_empty()).then(|| String::from_utf8_lossy(id).into_owned())
    }

    /// The key of a last-value topic. Messages of the log, and so those of queues, have none, as `SOW_KEY()` says.
    #[getter]
    fn sow_key(&self) -> Option<&'static str> {
        None
    }

    #[getter]
    fn command(&self) -> &'static str {
        self.progress.command
    }

    #[getter]
    fn sub_id(&self) -> &str {
        &self.progress.sub_id
    }

    #[getter]
    fn _number(&self) -> u32 {
        self.received.subscription()
    }

    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        if self.progress.auto_ack {
            return self.settle(py, Verdict::Acknowledge);
        }
        self.progress.processed(py, self.ordinal)
    }

    #[getter]
    fn queue(&self) -> Option<&str> {
        Some(self.lease()?.queue())
    }

    #[getter]
    fn lease_period(&self) -> Option<Duration> {
        self.lease()?.period()
    }

    #[getter]
    fn lease_deadline<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some((lease, client)) = self.leased() else { return Ok(None) };
        let Some(deadline) = lease.deadline() else { return Ok(None) };
        let at = client.wall_time(deadline);
        let ns = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        datetime_from_ns(py, u64::try_from(ns).unwrap_or(u64::MAX)).map(Some)
    }

    #[getter]
    fn lease_lost(&self) -> bool {
        self.leased().is_some_and(|(lease, client)| client.is_lost(lease))
    }

    #[getter]
    fn delivery_count(&self) -> u32 {
        self.lease().map_or(0, |lease| lease.deliveries())
    }

    #[getter]
    fn cancel_count(&self) -> u32 {
        self.lease().map_or(0, |lease| lease.cancels())
    }

    #[getter]
    fn _is_settled(&self) -> bool {
        self.lease().is_some_and(|lease| lease.is_settled())
    }

    fn ack(&self, py: Python<'_>) -> PyResult<()> {
        self.settle(py, Verdict::Acknowledge)
    }

    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.leased_to(py, "cancel")?;
        self.settle(py, Verdict::Cancel)
    }

    fn expire(&self, py: Python<'_>) -> PyResult<()> {
        self.leased_to(py, "expire")?;
        self.settle(py, Verdict::Expire)
    }

    #[pyo3(signature = (period=None))]
    fn extend(&self, py: Python<'_>, period: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        static SECONDS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (lease, client) = self.leased_to(py, "extend")?;
        let period = match period {
            Some(period) => {
                let seconds = SECONDS.import(py, "quire._units", "seconds")?.call1((period, "period"))?;
                Some(Duration::from_secs_f64(seconds.extract()?))
            }
            None => None,
        };
        client.extend(std::slice::from_ref(lease), period);
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// A block that raises gives the message back.
    fn __exit__(
        &self,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if kind.is_none() {
            return self.settle(kind.py(), Verdict::Acknowledge);
        }
        if let Some((lease, client)) = self.leased() {
            client.settle(lease, Verdict::Cancel);
        }
        Ok(())
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
        // SAFETY: `view` is not null. The bytes are never written, never move while the message lives (it is frozen), and the view
        // holds a reference to the message until it is released. Asking for a writable view is refused by the call itself.
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

/// The moment as a `datetime`, in UTC.
pub fn datetime_from_ns(py: Python<'_>, timestamp_ns: u64) -> PyResult<Bound<'_, PyAny>> {
    static FROM_NS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FROM_NS.import(py, "quire._message", "datetime_from_ns")?.call1((timestamp_ns,))
}
