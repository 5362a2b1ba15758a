//! The client as Python sees it: converts, leaves the interpreter, calls, converts back.

use std::collections::HashMap;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use quire_arrow::Messages;
use quire_client::{
    BatchError, ClientConfig, CommandId, ConnectionState, DeleteSpec, Failure, Message as Received,
    NewMessage, PublishError, Renewal, SubscriptionSpec,
};
use quire_command::{DefineQueue, Subject};
use quire_driver::client::{
    self as driver, Endpoint, FirstContact, Followed, HandedTo, NO_SUBSCRIPTION, NewSecret, Options, Queue,
    Subscribed, Taken, Waited,
};
use quire_driver::descriptor::wake_up_pair;
use quire_journal::descriptor::Owned;
use quire_journal::{Bookmark, HeadersBuffer};

use crate::arguments::{
    CredentialsArgument, DelayArgument, ItemArgument, MessageArgument, OptionsArgument, QueryArgument,
    SpecArgument, delay_of, sequence_of,
};
use crate::arrow_rows::ArrowRows;
use crate::embedded::LinkArgument;
use crate::errors;
use crate::fork;
use crate::headers;
use crate::interpreter;
use crate::maintenance::{action_of, files_of, link_action};
use crate::message::MessageSource;
use crate::queue::verdict_of;
use crate::receipt::Receipt;
use crate::store::BookmarkStore;
use crate::subscription::{Subscription, Taker};

/// A client of the driver. It detects that the process was forked.
pub type Handle = fork::Handle<driver::Client>;

impl Handle {
    pub fn client(&self) -> &driver::Client {
        self.value()
    }
}

/// A client and its thread, which `quire.Client` uses.
#[pyclass(frozen, module = "quire._quire")]
pub struct Client {
    handle: Arc<Handle>,
    /// The messages of all subscriptions with a handler, in the order in which they arrived.
    handled: Arc<Queue>,
    /// The messages of the last `handled_batch`. Some handlers of them still run.
    in_hand_count: AtomicU64,
    handled_sources: Mutex<HashMap<u32, Arc<MessageSource>>>,
    ready: Arc<Ready>,
}

/// Rows that are taken under one lock. Between two locks, the thread of the client can send.
const ROWS_MAX: usize = 256;

/// The sequences of a batch, its receipt, and why it was not taken whole: the index of a message,
/// and the error.
type Batch = (Vec<u64>, Option<Receipt>, Option<(Option<usize>, PyErr)>);

/// Wakes an event loop through a descriptor after a change.
#[derive(Default)]
struct Ready {
    /// A caller waits, and was not notified yet.
    is_armed: AtomicBool,
    /// A byte in the first socket can be read from the second one, which the loop watches.
    pair: Mutex<Option<(Owned<UnixStream>, Owned<UnixStream>)>>,
}

#[pymethods]
impl Client {
    /// Starts the client, which begins to connect.
    #[new]
    fn new(
        py: Python<'_>,
        links: Vec<LinkArgument<'_>>,
        name: String,
        options: OptionsArgument,
        bookmark_store: Option<PyRef<'_, BookmarkStore>>,
        incarnation: u64,
        observes: bool,
    ) -> PyResult<Self> {
        let CredentialsArgument { user, password, token } = options.credentials;
        let (password, of_password) =
            password.map(|given| given.into_parts("password", NewSecret::Password)).unwrap_or_default();
        let (token, of_token) =
            token.map(|given| given.into_parts("token", NewSecret::Token)).unwrap_or_default();
        let config = ClientConfig {
            name,
            user,
            password,
            token,
            renews_token: of_token.is_some(),
            heartbeat: options.heartbeat,
            ack_interval: Duration::ZERO,
            reconnect: options.reconnect.into_core(&options.server_chooser)?,
            address_count: links.len(),
            publish_store_size_max: options.publish_store.size_max,
            ack_batch_size: options.ack_batch_size,
            ack_timeout: options.ack_timeout,
            incarnation,
            observes,
        };
        let options = Options {
            endpoints: links.into_iter().map(Endpoint::from).collect(),
            config,
            publish_store: options.publish_store.path,
            secret: of_password.or(of_token),
            bookmark_store: bookmark_store.map_or_else(
                || Ok(quire_driver::store::BookmarkStore::in_memory()),
                |store| store.store(py).cloned(),
            )?,
            connect_timeout: options.connect_timeout,
            is_in_background: options.connect == "background",
            receive_size_max: options.receive_size_max,
        };
        let client = driver::Client::start(options).map_err(|error| errors::not_started(py, error))?;
        let handled = client.shared_queue();
        let handle = Handle::new(client);
        Ok(Client {
            handle: Arc::new(handle),
            handled,
            handled_sources: Mutex::default(),
            in_hand_count: AtomicU64::new(0),
            ready: Arc::default(),
        })
    }

    /// Takes a message and returns its sequence. `sequence`: 0 = the next one, `None` = without
    /// one. Raises `BlockingIOError` when the store is full: wait with `wait_room`.
    #[pyo3(signature = (
        topic, data, sequence=0, expiration_s=None, correlation_id=None, headers=None, delay=None, sow_key=None, is_delta=false,
        is_update=false
    ))]
    #[allow(clippy::too_many_arguments)] // the parts of a message
    fn publish(
        &self,
        py: Python<'_>,
        topic: &str,
        data: &[u8],
        sequence: Option<u64>,
        expiration_s: Option<u32>,
        correlation_id: Option<&str>,
        headers: Option<&Bound<'_, PyAny>>,
        delay: Option<DelayArgument>,
        sow_key: Option<&str>,
        is_delta: bool,
        is_update: bool,
    ) -> PyResult<Option<u64>> {
        self.handle.check_fork(py)?;
        let sequence = sequence_of(sequence);
        let correlation_id = correlation_id.unwrap_or_default().as_bytes();
        let headers = headers::from_python(py, headers)?;
        let headers = headers.as_headers();
        let delay = delay.map(delay_of);
        let key = sow_key.unwrap_or_default();
        let message = NewMessage {
            topic,
            data,
            sequence,
            expiration_s,
            delay,
            correlation_id,
            headers,
            key,
            is_delta,
            is_update,
        };
        self.handle.client().publish(&message).map_err(|error| errors::refused(py, &error))
    }

    /// Takes all of the messages, or none of them: topic, data, sequence, expiration, correlation
    /// id, headers, delay and key of each, as in `publish`. An item that is only data has the rest
    /// from `common`. Returns their sequences, and a receipt when they are followed. With
    /// `"announced"`, `settled` returns its number. When one cannot be taken: the sequences of the
    /// earlier ones that were taken, its index and the error. Raises `BlockingIOError` when the
    /// store has no room.
    fn publish_many(
        &self,
        py: Python<'_>,
        messages: Vec<ItemArgument>,
        common: Option<MessageArgument>,
        followed: Option<&str>,
    ) -> PyResult<Batch> {
        self.handle.check_fork(py)?;
        let followed = followed.map(|followed| match followed {
            "announced" => Followed::ByAnnouncement,
            _ => Followed::ByAsking,
        });
        let headers_of = |item: &ItemArgument| match item {
            ItemArgument::Data(_) => Ok(HeadersBuffer::default()),
            ItemArgument::Message(message) => message.headers(py),
        };
        let headers = messages.iter().map(headers_of).collect::<PyResult<Vec<_>>>()?;
        let common_headers =
            common.as_ref().map(|common| common.headers(py)).transpose()?.unwrap_or_default();
        let common = common.as_ref().map(|common| common.message(&common_headers));
        let new = messages.iter().zip(&headers).map(|(item, headers)| match (item, &common) {
            (ItemArgument::Message(message), _) => Ok(message.message(headers)),
            (ItemArgument::Data(data), Some(common)) => Ok(NewMessage { data, ..*common }),
            (ItemArgument::Data(_), None) => Err(PyValueError::new_err("messages: an item has no topic")),
        });
        let new: Vec<NewMessage<'_>> = new.collect::<PyResult<_>>()?;
        match interpreter::outside(py, || self.handle.client().publish_many(&new, followed)) {
            Ok((sequences, id)) => {
                let receipt = id.map(|id| Receipt { handle: self.handle.clone(), id });
                Ok((sequences, receipt, None))
            }
            Err(BatchError { error: error @ PublishError::Full { .. }, .. }) => {
                Err(errors::refused(py, &error))
            }
            Err(BatchError { index, taken, error }) => {
                Ok((taken, None, Some((index, errors::refused(py, &error)))))
            }
        }
    }

    /// Whether a parent of this process made it, so that it cannot be used here.
    #[getter]
    fn is_of_parent(&self) -> bool {
        self.handle.is_forked()
    }

    /// Bytes of publishes that were released. Read it before the publish that finds the store full.
    #[getter]
    fn released(&self, py: Python<'_>) -> PyResult<u64> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().released())
    }

    /// Whether, within `timeout` seconds, more than `seen` bytes of publishes were released, or no
    /// publish is taken any more.
    #[pyo3(signature = (seen, timeout=None))]
    fn wait_room(&self, py: Python<'_>, seen: u64, timeout: Option<f64>) -> PyResult<bool> {
        self.handle.check_fork(py)?;
        let client = self.handle.client();
        let found = interpreter::wait(py, interpreter::timeout(timeout), |slice| {
            client.wait_room(seen, slice).then_some(())
        })?;
        Ok(found.is_some())
    }

    /// The numbers of the announced receipts that were settled, none when `timeout` seconds passed
    /// first. `None` when the client has ended and all were returned.
    #[pyo3(signature = (timeout=None))]
    fn settled(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Vec<u64>>> {
        self.handle.check_fork(py)?;
        let settled = interpreter::wait(py, interpreter::timeout(timeout), |slice| {
            match self.handle.client().take_settled(slice) {
                Some(receipts) => (!receipts.is_empty()).then_some(Some(receipts)),
                None => Some(None),
            }
        })?;
        let Some(receipts) = settled.unwrap_or_else(|| Some(Vec::new())) else { return Ok(None) };
        Ok(Some(receipts.iter().map(|receipt| receipt.0).collect()))
    }

    /// Takes the rows of a record batch as messages: topic, data, and correlation id or NULL. The
    /// first row gets the sequence after `after`, and the others the sequences after that. Waits up
    /// to `timeout` seconds in all while the store is full. Returns the number of rows that were
    /// taken, which is smaller than that of the batch when the time was over. When a row is
    /// refused, the rows before it were taken.
    fn publish_rows(&self, py: Python<'_>, rows: ArrowRows, after: u64, timeout: f64) -> PyResult<usize> {
        self.handle.check_fork(py)?;
        let messages =
            Messages::new(&rows.0).map_err(|error| PyValueError::new_err(format!("rows: {error}")))?;
        let count = messages.count();
        if after.checked_add(count as u64).is_none() {
            return Err(PyValueError::new_err("after: the sequences end before the rows do"));
        }
        let client = self.handle.client();
        let (timeout, started) = (interpreter::timeout(Some(timeout)), Instant::now());
        let mut row = 0;
        while row < count {
            let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
            let taken = interpreter::wait(py, left, |slice| {
                let seen = client.released();
                let run = messages.from_row(row, after + 1 + row as u64).take(ROWS_MAX);
                match client.publish_rows(run) {
                    Err(PublishError::Full { .. }) => {
                        client.wait_room(seen, slice);
                        None
                    }
                    result => Some(result),
                }
            })?;
            let Some(taken) = taken else { break };
            row += taken.map_err(|error| errors::refused(py, &error))?.0;
        }
        Ok(row)
    }

    /// Whether it was logged on within `timeout` seconds. `None`: every address was tried once,
    /// none let the client in, and the caller does not want to keep trying.
    #[pyo3(signature = (timeout=None, keeps_trying=true))]
    fn wait_connected(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        keeps_trying: bool,
    ) -> PyResult<Option<bool>> {
        self.handle.check_fork(py)?;
        let timeout = interpreter::timeout(timeout);
        let contact =
            interpreter::wait(py, timeout, |slice| self.handle.client().wait_connected(slice, keeps_trying))?;
        match contact {
            Some(FirstContact::Connected) => Ok(Some(true)),
            Some(FirstContact::Refused) => Ok(None),
            Some(FirstContact::Ended(failure)) => Err(errors::to_python(py, &failure)),
            None => Ok(Some(false)),
        }
    }

    /// The bookmark up to which a bookmark subscription has received its messages, or its last
    /// resume position.
    fn resume_position(&self, py: Python<'_>, number: u32) -> PyResult<Option<String>> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().resume_position(number).map(|bookmark| bookmark.to_string()))
    }

    /// The highest sequence that was published.
    #[getter]
    fn last_sequence(&self, py: Python<'_>) -> PyResult<u64> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().last_sequence())
    }

    /// Whether every publish up to `sequence` was persisted or refused within `timeout` seconds.
    /// Raises the reason when it never will be.
    #[pyo3(signature = (sequence, timeout=None))]
    fn wait_persisted(&self, py: Python<'_>, sequence: u64, timeout: Option<f64>) -> PyResult<bool> {
        self.handle.check_fork(py)?;
        let result = interpreter::wait(py, interpreter::timeout(timeout), |slice| {
            self.handle.client().wait_persisted(sequence, slice)
        })?;
        is_done(py, result)
    }

    /// Starts a flush. Returns the command to wait for.
    fn flush(&self, py: Python<'_>) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().flush())
    }

    /// Whether the command was answered within `timeout` seconds; raises its failure. An answer is
    /// given once.
    #[pyo3(signature = (command, timeout=None))]
    fn wait(&self, py: Python<'_>, command: u32, timeout: Option<f64>) -> PyResult<bool> {
        self.handle.check_fork(py)?;
        let timeout = interpreter::timeout(timeout);
        let answer =
            interpreter::wait(py, timeout, |slice| self.handle.client().wait(CommandId(command), slice))?;
        is_done(py, answer)
    }

    /// As `wait`; `None` when the connection was lost before.
    #[pyo3(signature = (command, timeout=None))]
    fn wait_while_connected(
        &self,
        py: Python<'_>,
        command: u32,
        timeout: Option<f64>,
    ) -> PyResult<Option<bool>> {
        self.handle.check_fork(py)?;
        let waited = interpreter::wait(py, interpreter::timeout(timeout), |slice| {
            self.handle.client().wait_while_connected(CommandId(command), slice)
        })?;
        match waited {
            Some(Waited::Answered(answer)) => is_done(py, Some(answer)).map(Some),
            Some(Waited::Lost) => Ok(None),
            None => Ok(Some(false)),
        }
    }

    /// The caller does not wait for the command, so its answer is not kept.
    fn abandon(&self, command: u32) {
        if !self.handle.is_forked() {
            self.handle.client().abandon(CommandId(command));
        }
    }

    /// A subscription was not accepted. Removes all its data.
    fn forget(&self, number: u32) {
        if !self.handle.is_forked() {
            self.handled_sources.lock().remove(&number);
            self.handled.forget(number);
        }
    }

    /// The number of answers that were not taken yet.
    #[getter]
    fn answer_count(&self, py: Python<'_>) -> PyResult<usize> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().answer_count())
    }

    /// When the client last received anything, and when each subscription did, by its number.
    /// Seconds since 1970.
    fn heard(&self, py: Python<'_>) -> PyResult<(Option<f64>, HashMap<u32, f64>)> {
        self.handle.check_fork(py)?;
        let (server, subscriptions) = self.handle.client().heard();
        let subscriptions = subscriptions.into_iter().map(|(number, at)| (number, seconds(at))).collect();
        Ok((server.map(seconds), subscriptions))
    }

    /// The number of messages that subscriptions missed because earlier ones were not taken in
    /// time, by the numbers of the subscriptions.
    fn missed(&self, py: Python<'_>) -> PyResult<HashMap<u32, u64>> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().missed())
    }

    /// Starts a subscription; wait for its command. With `handled`, `handled_batch` returns its
    /// messages. With `is_kept`, the store keeps its position under `sub_id`. `renewal`: the leases
    /// that the client renews, `"until_begun"`, `"while_handled"` or `"never"`.
    #[allow(clippy::too_many_arguments)] // the ways in which a subscription is served
    fn subscribe(
        &self,
        py: Python<'_>,
        spec: SpecArgument,
        sub_id: String,
        is_kept: bool,
        handled: bool,
        auto_ack: bool,
        renewal: &str,
    ) -> PyResult<Subscription> {
        self.handle.check_fork(py)?;
        let renewal = match renewal {
            "while_handled" => Renewal::WhileHandled,
            "never" => Renewal::Never,
            _ => Renewal::UntilBegun,
        };
        let spec = SubscriptionSpec { renewal, ..spec.into() };
        // Locked until its source is known, so that no message is taken before.
        let mut by_number = self.handled_sources.lock();
        let subscribed = self
            .handle
            .client()
            .subscribe(spec, &sub_id, is_kept, auto_ack, handled.then(|| self.handled.clone()))
            .map_err(|failure| errors::to_python(py, &failure))?;
        let source = MessageSource::of_client(
            subscribed.progress.clone(),
            self.handle.clone(),
            (!handled).then_some(subscribed.number),
        );
        if handled {
            by_number.insert(subscribed.number, source.clone());
        }
        Ok(self.subscription(subscribed, source, if handled { Taker::Handler } else { Taker::Program }))
    }

    /// Starts to settle messages of a queue by bookmark. Returns the command.
    fn settle_bookmarks(
        &self,
        py: Python<'_>,
        queue: &str,
        verdict: &str,
        bookmarks: Vec<String>,
        reason: &str,
    ) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        let verdict = verdict_of(py, verdict)?;
        let parse = |text: &String| {
            text.parse::<Bookmark>().map_err(|error| {
                errors::new_error(py, "bad_bookmark", &format!("bookmark {text:?}: {error}"), 0)
            })
        };
        let bookmarks = bookmarks.iter().map(parse).collect::<PyResult<Vec<_>>>()?;
        number_of(py, self.handle.client().settle_bookmarks(queue, verdict, &bookmarks, reason))
    }

    /// Starts to settle the messages of a queue that match. Returns the command.
    fn settle_matching(
        &self,
        py: Python<'_>,
        queue: &str,
        verdict: &str,
        filter: &str,
        reason: &str,
    ) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        let verdict = verdict_of(py, verdict)?;
        number_of(py, self.handle.client().settle_matching(queue, verdict, filter, reason))
    }

    /// Asks for records, or for the messages of a queue that could be delivered. The subscription
    /// ends after the last of them.
    fn query(&self, py: Python<'_>, spec: QueryArgument) -> PyResult<Subscription> {
        self.handle.check_fork(py)?;
        let subscribed = self.handle.client().query(&spec.into());
        let subscribed = subscribed.map_err(|failure| errors::to_python(py, &failure))?;
        let source = MessageSource::of_client(subscribed.progress.clone(), self.handle.clone(), None);
        Ok(self.subscription(subscribed, source, Taker::Query))
    }

    /// Deletes records. Returns the command; `take_json_replies` of it returns their number. Raises
    /// `BlockingIOError` when the store is full: wait with `wait_room`.
    #[pyo3(signature = (topic, filter, keys, data))]
    fn delete(
        &self,
        py: Python<'_>,
        topic: &str,
        filter: Option<&str>,
        keys: Option<Vec<String>>,
        data: Option<&[u8]>,
    ) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        let delete = DeleteSpec { topic, filter, keys: keys.as_deref(), data };
        let deleted = self.handle.client().delete(&delete);
        deleted.map(|(_, command)| command.0).map_err(|error| errors::refused(py, &error))
    }

    /// Asks for the figures of a queue or of all. Returns the command.
    #[pyo3(signature = (queue))]
    fn queue_stats(&self, py: Python<'_>, queue: Option<&str>) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().queue_stats(queue))
    }

    /// Asks about the server: `"server"`, its `"clients"` after a connection, its `"subscriptions"`
    /// after one of a connection, its `"topics"` after a name, its `"replication"`. Returns the
    /// command.
    fn inspect(
        &self,
        py: Python<'_>,
        subject: &str,
        after_connection: u64,
        after_subscription: u32,
        after_topic: &str,
    ) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        let subject = match subject {
            "clients" => Subject::Clients { after: after_connection },
            "subscriptions" => Subject::Subscriptions { after_connection, after_subscription },
            "topics" => Subject::Topics { after: after_topic },
            "replication" => Subject::Replication,
            _ => Subject::Server,
        };
        number_of(py, self.handle.client().inspect(subject))
    }

    /// Asks the server about the messages of its log: a question of a `LogComparison`. Returns the
    /// command.
    fn inspect_messages(&self, py: Python<'_>, question: &[u8]) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().inspect(Subject::Messages { question }))
    }

    /// Asks the server which entitlement decides about a request. `question` is JSON. Returns the
    /// command.
    fn inspect_access(&self, py: Python<'_>, question: &str) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().inspect(Subject::Access { question: question.as_bytes() }))
    }

    /// Asks the server for a node of its figures, or for samples. `question` is JSON. Returns the
    /// command.
    fn inspect_statistics(&self, py: Python<'_>, question: &str) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().inspect(Subject::Statistics { question: question.as_bytes() }))
    }

    /// Downgrades, upgrades, pauses or resumes the link of the server to a destination. Returns the
    /// command.
    fn replicate(&self, py: Python<'_>, destination: &str, action: &str) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().replicate(destination, link_action(action)?))
    }

    /// Makes the server end a connection, whose client name cannot log on for `block_ms`
    /// milliseconds. Returns the command.
    fn disconnect_client(&self, py: Python<'_>, connection: u64, block_ms: u32) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().disconnect_client(connection, block_ms))
    }

    /// Makes the server read its configuration again. Returns the command.
    fn reload(&self, py: Python<'_>) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().reload())
    }

    /// Makes the server create a queue with these settings, as JSON. Returns the command.
    fn create_queue(&self, py: Python<'_>, settings: &str) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().define_queue(DefineQueue::Create { settings }))
    }

    /// Makes the server change these settings of a queue that was created at run time, as JSON.
    /// Returns the command.
    fn alter_queue(&self, py: Python<'_>, queue: &str, changes: &str) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().define_queue(DefineQueue::Alter { queue, changes }))
    }

    /// Makes the server drop a queue that was created at run time. Returns the command.
    fn drop_queue(&self, py: Python<'_>, queue: &str) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().define_queue(DefineQueue::Drop { queue }))
    }

    /// Makes the server replace the definition of a view with these settings, as JSON. Returns the
    /// command.
    fn define_view(&self, py: Python<'_>, settings: &str) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().define_view(settings))
    }

    /// Asks the server to archive, compress or remove a full journal file, or asks for the selected
    /// files. Returns the command.
    #[pyo3(signature = (action, age, size_max, dry_run, archive_directory=None))]
    fn maintain(
        &self,
        py: Python<'_>,
        action: &str,
        age: Option<Duration>,
        size_max: Option<u64>,
        dry_run: bool,
        archive_directory: Option<&str>,
    ) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        let (action, files) = (action_of(action)?, files_of(age, size_max)?);
        number_of(py, self.handle.client().maintain(action, files, dry_run, archive_directory))
    }

    /// The JSON answers to `queue_stats`, `inspect`, `create_queue`, `drop_queue` or `maintain`,
    /// and the number of records of `delete`. Each answer is returned once.
    fn take_json_replies(&self, py: Python<'_>, command: u32) -> PyResult<Vec<String>> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().take_json_replies(CommandId(command)))
    }

    /// The number of settled messages whose verdicts are not known to be durable.
    #[getter]
    fn unconfirmed_count(&self, py: Python<'_>) -> PyResult<u64> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().unconfirmed_count())
    }

    /// Starts a change of a subscription. Returns the command.
    fn replace(&self, py: Python<'_>, number: u32, spec: SpecArgument) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().replace(number, spec.into()))
    }

    /// Starts the end of a subscription. Returns the command.
    fn unsubscribe(&self, py: Python<'_>, number: u32) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().unsubscribe(number))
    }

    /// Starts pausing or resuming. Returns the command.
    fn set_paused(&self, py: Python<'_>, numbers: Vec<u32>, paused: bool) -> PyResult<u32> {
        self.handle.check_fork(py)?;
        number_of(py, self.handle.client().set_paused(&numbers, paused))
    }

    /// Messages of the subscriptions with a handler. The handlers have returned from those of the
    /// last call. None when `timeout` seconds passed first or `handled_ended` has entries. `None`
    /// when the client has ended and all were taken.
    #[pyo3(signature = (count_max, timeout=None))]
    fn handled_batch<'py>(
        &self,
        py: Python<'py>,
        count_max: usize,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        self.handle.check_fork(py)?;
        let client = self.handle.client();
        if self.handled.handed(self.in_hand_count.swap(0, Ordering::AcqRel)) {
            client.announce();
        }
        let taken = interpreter::wait(py, interpreter::timeout(timeout), |slice| {
            match client.take(&self.handled, NO_SUBSCRIPTION, count_max, slice) {
                Taken::Messages(messages) => Some(Some(messages)),
                Taken::Nothing => self.handled.has_passed().then(|| Some(Vec::new())),
                Taken::Ended(_) => Some(None),
            }
        })?;
        let Some(messages) = taken.unwrap_or_else(|| Some(Vec::new())) else { return Ok(None) };
        client.taken(&self.handled);
        self.in_hand_count.store(messages.len() as u64, Ordering::Release);
        let by_number = self.handled_sources.lock();
        let mut handed = Vec::with_capacity(messages.len());
        for run in runs(messages) {
            if let Some(source) = run.first().and_then(|first| by_number.get(&first.subscription())) {
                handed.extend(source.hand_out(run, HandedTo::Handler));
            }
        }
        PyList::new(py, handed).map(Some)
    }

    /// The subscriptions with a handler that have ended and whose messages were all taken, each
    /// once: number, and the error that ended it.
    fn handled_ended<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u32, Option<Bound<'py, PyAny>>)>> {
        self.handle.check_fork(py)?;
        let passed = self.handled.take_passed();
        if !passed.is_empty() {
            let mut by_number = self.handled_sources.lock();
            passed.iter().for_each(|(number, _)| drop(by_number.remove(number)));
        }
        let error =
            |failure: Failure| errors::to_python(py, &failure).into_value(py).into_bound(py).into_any();
        Ok(passed.into_iter().map(|(number, failure)| (number, failure.map(error))).collect())
    }

    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.handle.check_fork(py)?;
        Ok(name_of(&self.handle.client().state()))
    }

    /// The states of the client after the state with the number `seen`, with their numbers. Waits
    /// up to `timeout` seconds for one.
    #[pyo3(signature = (seen, timeout=None))]
    fn states_after(
        &self,
        py: Python<'_>,
        seen: u64,
        timeout: Option<f64>,
    ) -> PyResult<Vec<(u64, &'static str)>> {
        self.handle.check_fork(py)?;
        let states = interpreter::wait(py, interpreter::timeout(timeout), |slice| {
            let states = self.handle.client().wait_states_after(seen, slice);
            (!states.is_empty()).then_some(states)
        })?;
        let states = states.unwrap_or_default();
        Ok(states.iter().map(|(number, state)| (*number, name_of(state))).collect())
    }

    /// Ends the client for good. Later calls raise `DisconnectedError` with the reason.
    fn fail(&self, py: Python<'_>, reason: String) -> PyResult<()> {
        self.handle.check_fork(py)?;
        self.handle.client().fail(reason);
        Ok(())
    }

    /// The handlers get no more messages than have arrived by now. The next `handled_batch` without
    /// any returns `None`.
    fn end_handled(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.check_fork(py)?;
        self.handled.close();
        Ok(())
    }

    /// Messages that wait for their handlers.
    #[getter]
    fn handled_count(&self, py: Python<'_>) -> PyResult<usize> {
        self.handle.check_fork(py)?;
        Ok(self.handled.len())
    }

    #[getter]
    fn last_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().last_error().map(|error| error.reason))
    }

    /// The stable code of `last_error`.
    #[getter]
    fn last_error_code(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().last_error().map(|error| error.code))
    }

    /// The name of the instance that the client is logged on to.
    #[getter]
    fn instance(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().instance())
    }

    /// The size of the largest message that the server takes, in bytes; `None` before the first
    /// logon.
    #[getter]
    fn message_size_max(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().message_size_max())
    }

    #[getter]
    fn persisted(&self, py: Python<'_>) -> PyResult<u64> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().persisted())
    }

    #[getter]
    fn unpersisted_count(&self, py: Python<'_>) -> PyResult<u64> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().unpersisted_count())
    }

    /// The publishes that the server refused since the last call: sequence (0 = it had none) and
    /// exception.
    fn take_failed_publishes<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u64, Bound<'py, PyAny>)>> {
        self.handle.check_fork(py)?;
        let failed = self.handle.client().take_failed_publishes();
        let to_value =
            |failure: &Failure| errors::to_python(py, failure).into_value(py).into_bound(py).into_any();
        Ok(failed.iter().map(|(sequence, failure)| (*sequence, to_value(failure))).collect())
    }

    /// A descriptor that is readable after a change since [`Client::arm`]. It belongs to the
    /// client.
    fn ready_descriptor(&self, py: Python<'_>) -> PyResult<i32> {
        self.handle.check_fork(py)?;
        let (writer, reader) = wake_up_pair()?;
        let number = reader.as_raw_fd();
        *self.ready.pair.lock() = Some((writer, reader));
        let ready = self.ready.clone();
        self.handle.client().set_on_ready(Some(Arc::new(move || ready.tell())));
        Ok(number)
    }

    /// A descriptor that is readable when the loop should call [`Client::step`]. It belongs to the
    /// client.
    fn loop_descriptor(&self, py: Python<'_>) -> PyResult<i32> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().loop_descriptor()?)
    }

    /// The next change wakes the loop. Check the condition after this call, not before.
    fn arm(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.check_fork(py)?;
        self.ready.is_armed.store(true, Ordering::SeqCst);
        self.handle.client().lend();
        Ok(())
    }

    /// Reads and writes on the calling thread, which checks for changes afterwards. With `is_last`,
    /// no caller waits after that.
    fn step(&self, py: Python<'_>, is_last: bool) -> PyResult<()> {
        self.handle.check_fork(py)?;
        self.ready.is_armed.store(false, Ordering::SeqCst);
        let client = self.handle.client();
        interpreter::outside(py, || client.step());
        if is_last {
            client.take_back();
        }
        Ok(())
    }

    /// Ends the client. Returns the number of publishes that are not known to be persisted.
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<u64> {
        if self.handle.is_forked() {
            return Ok(0);
        }
        let client = self.handle.client();
        client.begin_close();
        let timeout = interpreter::timeout(Some(timeout));
        interpreter::wait(py, timeout, |slice| client.wait_closed(slice).then_some(()))?;
        Ok(interpreter::outside(py, || client.close(Duration::ZERO)))
    }
}

impl Client {
    fn subscription(&self, subscribed: Subscribed, source: Arc<MessageSource>, taker: Taker) -> Subscription {
        Subscription {
            handle: self.handle.clone(),
            queue: subscribed.queue,
            source,
            number: subscribed.number,
            command: subscribed.command.0,
            taker,
            ahead: Mutex::default(),
        }
    }
}

/// Consecutive messages of one subscription, together.
fn runs(messages: Vec<Received>) -> Vec<Vec<Received>> {
    let mut runs: Vec<Vec<Received>> = Vec::new();
    for message in messages {
        match runs.last_mut() {
            Some(run) if run[0].subscription() == message.subscription() => run.push(message),
            _ => runs.push(vec![message]),
        }
    }
    runs
}

fn name_of(state: &ConnectionState) -> &'static str {
    match state {
        ConnectionState::Connecting => "connecting",
        ConnectionState::Connected => "connected",
        ConnectionState::Reconnecting => "reconnecting",
        ConnectionState::Closed(_) => "closed",
    }
}

impl Ready {
    fn tell(&self) {
        if self.is_armed.swap(false, Ordering::SeqCst)
            && let Some((writer, _)) = &mut *self.pair.lock()
        {
            // Full: the loop has a wake-up already. Broken: the loop has ended.
            let _ = writer.write(&[1]);
        }
    }
}

/// Seconds since 1970.
fn seconds(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn number_of(py: Python<'_>, command: Result<CommandId, Failure>) -> PyResult<u32> {
    command.map(|command| command.0).map_err(|failure| errors::to_python(py, &failure))
}

fn is_done(py: Python<'_>, answer: Option<Result<(), Failure>>) -> PyResult<bool> {
    match answer {
        Some(Ok(())) => Ok(true),
        Some(Err(failure)) => Err(errors::to_python(py, &failure)),
        None => Ok(false),
    }
}
