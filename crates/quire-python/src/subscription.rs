//! A subscription as Python sees it. The program takes its messages here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyList;
use quire_client::{ConnectionState, Failure, Message as Received};
use quire_driver::client::{HandedTo, Queue, Taken};

use crate::client::Handle;
use crate::errors;
use crate::interpreter;
use crate::message::{Message, MessageSource};
use crate::rows::Rows;

/// The messages that an iteration takes from the queue at a time, so that one lock and one exit of
/// the interpreter serve many messages.
const AHEAD_COUNT: usize = 1024;

/// One subscription: its queue, and the source of its messages.
#[pyclass(frozen, module = "quire._quire")]
pub struct Subscription {
    pub handle: Arc<Handle>,
    pub queue: Arc<Queue>,
    pub source: Arc<MessageSource>,
    #[pyo3(get)]
    pub number: u32,
    /// The command whose answer contains the result of the server.
    #[pyo3(get)]
    pub command: u32,
    pub taker: Taker,
    /// Taken from the queue, but not handed out yet.
    pub ahead: Mutex<VecDeque<Received>>,
}

/// The part that takes the messages of a subscription.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Taker {
    /// The program, which iterates.
    Program,
    /// A handler, through the queue that all handlers share.
    Handler,
    /// The program. The messages are the answers to a query.
    Query,
}

/// An iterator over the messages of a subscription.
#[pyclass(frozen, module = "quire._quire")]
pub struct SubscriptionMessages {
    subscription: Py<Subscription>,
    _owner: Py<PyAny>,
    ahead: usize,
}

#[pymethods]
impl SubscriptionMessages {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, Message>>> {
        self.subscription.get().next(py, None, self.ahead)
    }
}

enum Next {
    Messages(Vec<Received>),
    Ended(Option<Failure>),
}

#[pymethods]
impl Subscription {
    /// The next message, or `None` when the user has ended the subscription.
    ///
    /// Raises `TimeoutError` after `timeout` seconds, or the error with which the server ended the
    /// subscription. `ahead`: messages to take from the queue at a time.
    #[pyo3(signature = (timeout=None, ahead=1024))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        ahead: usize,
    ) -> PyResult<Option<Bound<'py, Message>>> {
        let list = self.messages(py, 1, ahead, interpreter::timeout(timeout))?;
        match list {
            Some(messages) => match messages.into_iter().next() {
                Some(message) => message.into_object(py).map(Some),
                None => Err(timed_out()),
            },
            None => Ok(None),
        }
    }

    /// An iterator over the messages. It takes `ahead` messages from the queue at a time. It keeps
    /// `owner` alive. It ends only with the subscription: after an exception, such as that of a
    /// signal handler, it continues.
    fn iterate(slf: Py<Self>, owner: Py<PyAny>, ahead: usize) -> SubscriptionMessages {
        SubscriptionMessages { subscription: slf, _owner: owner, ahead }
    }

    /// Up to `count_max` messages: at least one, none when `timeout` seconds passed first, `None`
    /// when the subscription has ended.
    #[pyo3(signature = (count_max, timeout=None))]
    fn batch<'py>(
        &self,
        py: Python<'py>,
        count_max: usize,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let messages = self.messages(py, count_max, count_max, interpreter::timeout(timeout))?;
        let Some(messages) = messages else { return Ok(None) };
        let objects = messages.into_iter().map(|message| message.into_object(py));
        PyList::new(py, objects.collect::<PyResult<Vec<_>>>()?).map(Some)
    }

    /// Moves messages to `rows`. Returns their number, 0 when `timeout` seconds passed first,
    /// `None` when there are no more.
    #[pyo3(signature = (rows, timeout=None))]
    fn collect(&self, py: Python<'_>, rows: &Rows, timeout: Option<f64>) -> PyResult<Option<usize>> {
        self.handle.check_fork(py)?;
        let mut messages = self.take_ahead(usize::MAX);
        if messages.is_empty() {
            match self.take(py, AHEAD_COUNT, interpreter::timeout(timeout))? {
                Some(taken) => messages = taken,
                None => return Ok(None),
            }
        }
        let count = messages.len();
        if self.queue.handed(count as u64) {
            self.handle.client().announce();
        }
        rows.extend(messages);
        Ok(Some(count))
    }

    /// The program takes no more answers to a query: the server ends it.
    fn close(&self) {
        if !self.handle.is_forked() {
            self.ahead.lock().clear();
            self.handle.client().forget_query(self.number, &self.queue);
        }
    }

    /// The number of records that match a query, when its last record has arrived.
    #[getter]
    fn total(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.handle.check_fork(py)?;
        Ok(self.queue.total(self.number))
    }

    /// Whether the last record of the query has arrived. With a handler: whether the handler has
    /// returned from it.
    fn is_snapshot(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle.check_fork(py)?;
        Ok(match self.taker {
            Taker::Handler => self.queue.is_completed(self.number),
            _ => self.queue.is_caught_up(self.number),
        })
    }

    /// Waits for that up to `timeout` seconds. `None` when the client has ended before.
    #[pyo3(signature = (timeout=None))]
    fn wait_snapshot(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        if self.taker == Taker::Handler {
            return self.wait_completed(py, timeout);
        }
        self.wait_event(py, timeout, |slice| self.queue.wait_caught_up(self.number, slice))
    }

    /// Whether the program has the whole last result of the query, and no connection was lost
    /// since.
    fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle.check_fork(py)?;
        Ok(self.queue.is_current(self.number))
    }

    fn is_completed(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle.check_fork(py)?;
        Ok(self.queue.is_completed(self.number))
    }

    /// Waits up to `timeout` seconds until the program has the whole replay. `None` when the client
    /// has ended before.
    #[pyo3(signature = (timeout=None))]
    fn wait_completed(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<bool>> {
        self.wait_event(py, timeout, |slice| self.queue.wait_completed(self.number, slice))
    }

    /// Messages that the program has and has not processed, and, without a handler, those that it
    /// could take.
    #[getter]
    fn outstanding_count(&self, py: Python<'_>) -> PyResult<usize> {
        self.handle.check_fork(py)?;
        let waiting = if self.taker == Taker::Handler { 0 } else { self.queue.len() };
        let is_over = |message: &Received| message.lease().is_some_and(|lease| lease.is_settled_or_over());
        let ahead = self.ahead.lock().iter().filter(|message| !is_over(message)).count();
        Ok(self.source.outstanding_count() + ahead + waiting)
    }

    /// The most messages of queues that it may have outstanding. 0 when it gets no messages of
    /// queues.
    #[getter]
    fn granted_backlog(&self, py: Python<'_>) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().granted_backlog(self.number))
    }

    /// Deliveries that were lost before the program saw them, since the last call.
    fn take_unseen(&self, py: Python<'_>) -> PyResult<u64> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().take_unseen(self.number))
    }

    /// Whether one of its bookmarks was in the log.
    #[getter]
    fn bookmark_found(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle.check_fork(py)?;
        Ok(!self.handle.client().is_bookmark_missing(self.number))
    }

    #[getter]
    fn most_recent(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.handle.check_fork(py)?;
        Ok(self.source.most_recent().map(|bookmark| bookmark.to_string()))
    }
}

impl Subscription {
    /// Up to `count_max` messages. If it has none, it takes up to `take_max` from the queue.
    fn messages(
        &self,
        py: Python<'_>,
        count_max: usize,
        take_max: usize,
        timeout: Option<Duration>,
    ) -> PyResult<Option<Vec<Message>>> {
        self.handle.check_fork(py)?;
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            self.source.processed_all(py)?;
            let mut ready = self.take_ahead(count_max);
            if ready.is_empty() {
                let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                ready = match self.take(py, take_max, left)? {
                    Some(messages) if messages.is_empty() => return Ok(Some(Vec::new())),
                    Some(messages) if messages.len() > count_max => {
                        self.ahead.lock().extend(messages);
                        continue;
                    }
                    Some(messages) => messages,
                    None => return Ok(None),
                };
            }
            let handed_count = ready.len() as u64;
            // Messages that were released or lost are delivered again.
            ready.retain(|message| self.handle.client().begin(message));
            // None are left when all were processed before a restart, released or lost.
            let handed = self.source.hand_out(ready, HandedTo::Loop);
            if self.queue.handed(handed_count) {
                self.handle.client().announce();
            }
            if !handed.is_empty() {
                return Ok(Some(handed));
            }
        }
    }

    /// The messages of the queue, none when `timeout` passed first; `None` when there will be no
    /// more.
    fn take(
        &self,
        py: Python<'_>,
        count_max: usize,
        timeout: Option<Duration>,
    ) -> PyResult<Option<Vec<Received>>> {
        let next = interpreter::wait(py, timeout, |slice| {
            match self.handle.client().take(&self.queue, self.number, count_max, slice) {
                Taken::Messages(messages) => Some(Next::Messages(messages)),
                Taken::Ended(failure) => Some(Next::Ended(failure)),
                Taken::Nothing => None,
            }
        })?;
        match next {
            Some(Next::Messages(messages)) => {
                self.handle.client().taken(&self.queue);
                Ok(Some(messages))
            }
            // A user who closed the client does not expect an error.
            Some(Next::Ended(Some(failure)))
                if self.handle.client().state() != ConnectionState::Closed(None) =>
            {
                Err(errors::to_python(py, &failure))
            }
            Some(Next::Ended(_)) => Ok(None),
            None => Ok(Some(Vec::new())),
        }
    }

    /// Waits up to `timeout` seconds until `happens`. `None` when the client has ended before.
    fn wait_event(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        happens: impl Fn(Duration) -> bool + Sync,
    ) -> PyResult<Option<bool>> {
        self.handle.check_fork(py)?;
        let ready = |slice| {
            let closed = matches!(self.handle.client().state(), ConnectionState::Closed(_));
            let has_happened = happens(slice);
            (has_happened || closed).then_some(has_happened.then_some(true))
        };
        Ok(interpreter::wait(py, interpreter::timeout(timeout), ready)?.unwrap_or(Some(false)))
    }

    fn take_ahead(&self, count_max: usize) -> Vec<Received> {
        let mut ahead = self.ahead.lock();
        let count = count_max.min(ahead.len());
        ahead.drain(..count).collect()
    }
}

impl Drop for Subscription {
    /// The program has dropped it. The remaining answers of a query are not taken, and the state of
    /// a handler's subscription is forgotten.
    fn drop(&mut self) {
        if self.handle.is_forked() {
            return;
        }
        match self.taker {
            Taker::Program => self.source.subscription_dropped(),
            Taker::Handler => self.queue.forget(self.number),
            Taker::Query => self.handle.client().forget_query(self.number, &self.queue),
        }
    }
}

fn timed_out() -> PyErr {
    pyo3::exceptions::PyTimeoutError::new_err("no message came in time")
}
