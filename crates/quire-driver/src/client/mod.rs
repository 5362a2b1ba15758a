//! A client with its thread. Both Python clients use it.
//!
//! A thread drives a [`ClientCore`]. The callers put bytes into the core and take messages from
//! queues. So heartbeats and acknowledgements do not wait for the caller's interpreter. Publishes
//! are batched automatically: while one write is in progress, the next ones collect in the core. A
//! caller that waits takes the place of the thread ([`quire_client::drive`]).
//!
//! For callers: this module never enters Python, every wait has a limit, and a wait that timed out
//! may be repeated.

pub mod admin_socket;
mod commands;
mod io;
mod leases;
mod log_range;
mod progress;
mod queue;
mod receipts;
mod receive_limit;
mod server_load;
mod transport;
mod watchers;
mod wire;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Condvar, Mutex};
use quire_client::drive::Drive;
use quire_client::{
    self as core, ClientConfig, ClientCore, CommandId, ConnectionState, DeleteSpec, Event, Failure,
    FailureCode, NewMessage, PublishError, SubscriptionSpec,
};
use quire_journal::Bookmark;

use crate::store::{BookmarkStore, PublishFile, StoreError};
pub use log_range::{LogRange, Step};
use progress::Instances;
pub use progress::{HandedTo, SharedProgress};
pub use queue::{NO_SUBSCRIPTION, Queue, Taken};
pub use receipts::Followed;
use receipts::Receipts;
use receive_limit::{Full, Room};
pub use transport::{Endpoint, Stream};
use watchers::Watchers;
use wire::Wire;

/// How a [`Client`] is made.
pub struct Options {
    /// Where to connect, in order of preference; at least one.
    pub endpoints: Vec<Endpoint>,
    /// The configuration of the core. Its `address_count` is the number of `endpoints`.
    pub config: ClientConfig,
    /// File of the publish store, bounded by the `publish_store_size_max` of `config`; `None` = in
    /// memory only.
    pub publish_store: Option<PathBuf>,
    /// The store for the positions of bookmark subscriptions.
    pub bookmark_store: BookmarkStore,
    /// The timeout of one attempt to connect.
    pub connect_timeout: Duration,
    /// No caller waits for the first connection. The client logs that there is none.
    pub is_in_background: bool,
    /// Limit of the bytes of messages that wait for the caller. docs/clients.md, "Bounds",
    /// describes the behavior above it.
    pub receive_size_max: usize,
}

/// A client and its thread. Share it in an `Arc`; dropping the last one closes it without waiting.
pub struct Client {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A subscription that the core accepted, and the command whose answer contains the result of the
/// server.
pub struct Subscribed {
    /// The number of the subscription.
    pub number: u32,
    /// Wait for it with [`Client::wait`].
    pub command: CommandId,
    /// Where its messages arrive.
    pub queue: Arc<Queue>,
    /// The progress of the messages of this subscription.
    pub progress: Arc<SharedProgress>,
}

/// The beginning of the log.
const EPOCH: &str = "0";

/// Selects the position that the store has under the name of the subscription; EPOCH when it has
/// none.
pub const MOST_RECENT: &str = "most_recent";

/// Why a client does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The operating system has no thread or no descriptor left.
    #[error("no thread or event queue for the client: {0}")]
    Thread(#[from] std::io::Error),
    /// The publish store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

struct Shared {
    inner: Mutex<Inner>,
    /// Something in `inner` changed.
    changed: Condvar,
    watchers: Watchers,
    room: Arc<Room>,
    bookmark_store: BookmarkStore,
    instances: Instances,
    started: Instant,
    /// The wall's clock at `started`.
    started_at: SystemTime,
    on_ready: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    connect_timeout: Duration,
    is_in_background: bool,
    endpoint_count: usize,
}

/// The end of a wait that needs a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The command was answered.
    Answered(Result<(), Failure>),
    /// The connection was lost before.
    Lost,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastError {
    /// The stable code (docs/reference/errors.md).
    pub code: &'static str,
    /// The address and the error, as text for a person.
    pub reason: String,
}

/// The outcome of the first attempts to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstContact {
    /// The client was logged on.
    Connected,
    /// Every address was tried, and none accepted the client. [`Client::last_error`] has the
    /// reason. The client keeps trying.
    Refused,
    /// The client has ended for good.
    Ended(Failure),
}

struct Inner {
    core: ClientCore,
    /// Decides which thread works on the connection.
    drive: Drive,
    /// The connection, while no thread works on it.
    wire: Option<Wire>,
    /// Answers that were not taken yet.
    answers: HashMap<CommandId, Result<(), Failure>>,
    /// Commands whose answer will not be taken.
    abandoned: HashSet<CommandId>,
    /// Answers of servers about their queues and journal files that were not taken yet.
    json_replies: HashMap<CommandId, Vec<String>>,
    feeds: HashMap<u32, Feed>,
    /// The numbers of those that are full.
    full: Vec<u32>,
    /// Subscriptions that begin, or begin again, with the bookmark of the command when the server
    /// accepts it.
    beginnings: HashMap<CommandId, u32>,
    /// Queues that subscriptions share. A queue stays here when no subscription uses it.
    shared_queues: Vec<Weak<Queue>>,
    /// When the client last received anything.
    received_at: Option<SystemTime>,
    /// Refused publishes that were not taken yet, the latest ones.
    failed_publishes: VecDeque<(u64, Failure)>,
    receipts: Receipts,
    /// The latest states of the client, each with its number.
    states: VecDeque<(u64, ConnectionState)>,
    /// Why the last attempt to connect failed, or the connection was lost.
    last_error: Option<LastError>,
    /// The server's reason for ending the connection.
    ended_because: Option<String>,
    /// Attempts to connect that failed before the first logon.
    failed_attempts: usize,
    /// When the connection was lost; `None` while there is one.
    lost_at: Option<Instant>,
    /// When the client last logged that there is no connection; `None` while there is one.
    warned_at: Option<Instant>,
    /// The address of the last attempt, for the log.
    address: String,
    /// The user no longer waits for unsent output.
    is_hurried: bool,
    /// The thread has ended.
    is_done: bool,
}

/// The destination of the messages of a subscription.
struct Feed {
    queue: Arc<Queue>,
    progress: Arc<SharedProgress>,
    /// When it last received anything.
    received_at: Option<SystemTime>,
    /// Its messages go to a handler, which cannot receive the reason of its end.
    is_handled: bool,
    /// It waits for room.
    full: Option<Full>,
    /// Messages that it missed because there was no room, up to the last time that it had room.
    missed_count: u64,
}

/// States that are kept for [`Client::states_after`]. A caller that rarely looks still sees the
/// current state.
const STATES_MAX: usize = 64;

/// Refused publishes that are kept for [`Client::take_failed_publishes`]; older ones are dropped
/// first.
const FAILED_PUBLISHES_MAX: usize = 1024;

impl Client {
    /// Starts the thread, which begins to connect. [`Client::wait_connected`] returns the result.
    ///
    /// # Errors
    /// The system has no thread or descriptor left, or the publish store cannot be used.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let size_max = options.config.publish_store_size_max as u64;
        let name = options.config.name.clone();
        let asker = server_load::Asker::of(&options.config);
        let mut core = ClientCore::new(options.config, quire_types::time::Instant::from_ns(0));
        if let Some(path) = &options.publish_store {
            let (file, stored) = PublishFile::open(path, &name, size_max)?;
            core.keep_publishes_in(Box::new(file), &stored.frames, stored.last_sequence);
        }
        let shared = Arc::new(Shared {
            inner: Mutex::new(Inner {
                core,
                drive: Drive::default(),
                wire: None,
                answers: HashMap::new(),
                abandoned: HashSet::new(),
                json_replies: HashMap::new(),
                feeds: HashMap::new(),
                full: Vec::new(),
                beginnings: HashMap::new(),
                shared_queues: Vec::new(),
                received_at: None,
                failed_publishes: VecDeque::new(),
                receipts: Receipts::default(),
                states: VecDeque::from([(1, ConnectionState::Connecting)]),
                last_error: None,
                ended_because: None,
                failed_attempts: 0,
                lost_at: None,
                warned_at: None,
                address: String::new(),
                is_hurried: false,
                is_done: false,
            }),
            changed: Condvar::new(),
            watchers: Watchers::new()?,
            room: Arc::new(Room::new(options.receive_size_max)),
            bookmark_store: options.bookmark_store,
            instances: Instances::default(),
            started: Instant::now(),
            started_at: SystemTime::now(),
            on_ready: Mutex::new(None),
            // The system refuses a timeout of zero.
            connect_timeout: options.connect_timeout.max(Duration::from_millis(1)),
            is_in_background: options.is_in_background,
            endpoint_count: options.endpoints.len(),
        });
        let its_shared = shared.clone();
        let run = move || io::run(&its_shared, &options.endpoints, &asker);
        let thread = std::thread::Builder::new().name("quire-client".into()).spawn(run)?;
        Ok(Client { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Takes a message. With [`PublishError::Full`], wait with [`Client::wait_room`] and try again.
    ///
    /// # Errors
    /// See [`ClientCore::publish`].
    pub fn publish(&self, message: &NewMessage<'_>) -> Result<Option<u64>, PublishError> {
        let mut inner = self.shared.inner.lock();
        let result = inner.core.publish(message);
        if result.is_ok() {
            self.shared.send(inner, true);
        }
        result
    }

    /// Deletes records. Returns the sequence of the delete, and its command. When the command is
    /// answered, [`Client::take_json_replies`] returns the number of deleted records. With
    /// [`PublishError::Full`], wait with [`Client::wait_room`] and try again.
    ///
    /// # Errors
    /// See [`ClientCore::delete`].
    pub fn delete(&self, spec: &DeleteSpec<'_>) -> Result<(u64, CommandId), PublishError> {
        let mut inner = self.shared.inner.lock();
        let result = inner.core.delete(spec);
        if result.is_ok() {
            self.shared.wake(inner);
        }
        result
    }

    /// Takes several messages under one lock, as many as there is room for. Returns their number,
    /// and the sequence of the last.
    ///
    /// # Errors
    /// As [`Client::publish`], when the first message was not taken.
    pub fn publish_rows<'a>(
        &self,
        messages: impl Iterator<Item = NewMessage<'a>>,
    ) -> Result<(usize, Option<u64>), PublishError> {
        let mut inner = self.shared.inner.lock();
        let (mut count, mut last) = (0, None);
        for message in messages {
            match inner.core.publish(&message) {
                Ok(sequence) => (count, last) = (count + 1, sequence),
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.shared.wake(inner);
        Ok((count, last))
    }

    /// The name of the instance that the client is logged on to.
    pub fn instance(&self) -> Option<String> {
        self.shared.inner.lock().core.instance().map(str::to_owned)
    }

    /// Waits until more than `seen` bytes were released, so that the publish store may have room
    /// again, or until no publish is taken any more. False when `timeout` passed first. Read `seen`
    /// with [`Client::released`] before the publish that found the store full. A release in between
    /// is then not missed.
    pub fn wait_room(&self, seen: u64, timeout: Duration) -> bool {
        let found = |inner: &mut Inner| {
            let core = &inner.core;
            let is_refused =
                matches!(core.state(), ConnectionState::Closed(_)) || core.storage_failure().is_some();
            (is_refused || core.released() != seen).then_some(())
        };
        self.wait_for(timeout, found).is_some()
    }

    /// The bookmark up to which a bookmark subscription has received its messages, or its last
    /// resume position.
    pub fn resume_position(&self, number: u32) -> Option<Bookmark> {
        self.shared.inner.lock().core.last_received(number)
    }

    /// Asks the server to answer when everything published so far is persisted.
    ///
    /// # Errors
    /// See [`ClientCore::flush`].
    pub fn flush(&self) -> Result<CommandId, Failure> {
        let mut inner = self.shared.inner.lock();
        let command = inner.core.flush()?;
        if !inner.drive.is_reading() {
            // While a flush waits, the limit of received bytes is doubled. A publisher does not
            // check the limit.
            self.shared.wake(inner);
        } else if !inner.core.is_idle() {
            // The acknowledgement of a publish may answer it.
            self.shared.send(inner, false);
        }
        Ok(command)
    }

    /// Enters a subscription with the name `sub_id`. Its messages go to `queue`, or to a separate
    /// queue. With `is_kept`, the store keeps the position of a bookmark subscription under this
    /// name. With the bookmark [`MOST_RECENT`] it then continues where the last subscription of
    /// this name was. With `acknowledges`, a message of a queue is acknowledged when it is
    /// processed.
    ///
    /// # Errors
    /// See [`ClientCore::subscribe`] and [`BookmarkStore::keep`].
    pub fn subscribe(
        &self,
        mut spec: SubscriptionSpec,
        sub_id: &str,
        is_kept: bool,
        acknowledges: bool,
        queue: Option<Arc<Queue>>,
    ) -> Result<Subscribed, Failure> {
        let is_handled = queue.is_some();
        let queue = queue.unwrap_or_else(|| Arc::new(Queue::new(self.shared.room.clone())));
        let resumes = spec.bookmark.as_deref() == Some(MOST_RECENT);
        let mut writer = None;
        if is_kept && spec.bookmark.is_some() {
            let (its_writer, resume_position) = self.shared.bookmark_store.keep(sub_id, resumes)?;
            writer = Some(its_writer);
            spec.resume_position = resume_position;
        }
        if resumes {
            spec.bookmark = Some(EPOCH.to_owned());
        }
        let begins = spec.bookmark.is_some() && !resumes;
        let resume_position = spec.resume_position.clone().unwrap_or_default();
        let account = core::SubscriptionProgress::new(resume_position.ahead, acknowledges);
        let progress =
            SharedProgress::new(sub_id, account, resume_position.last, writer, self.shared.instances.clone());
        let mut inner = self.shared.inner.lock();
        let (number, command) = inner.core.subscribe(spec)?;
        if begins {
            inner.beginnings.insert(command, number);
        }
        let feed = Feed { is_handled, ..Feed::new(&queue, &progress) };
        inner.feeds.insert(number, feed);
        self.shared.wake(inner);
        Ok(Subscribed { number, command, queue, progress })
    }

    /// A queue that several subscriptions may share. It holds their messages in the order in which
    /// they arrived. It ends with the client.
    pub fn shared_queue(&self) -> Arc<Queue> {
        let queue = Arc::new(Queue::new(self.shared.room.clone()));
        let mut inner = self.shared.inner.lock();
        if inner.is_done {
            queue.close();
        }
        inner.shared_queues.retain(|other| other.strong_count() > 0);
        inner.shared_queues.push(Arc::downgrade(&queue));
        drop(inner);
        queue
    }

    /// Changes a subscription.
    ///
    /// # Errors
    /// See [`ClientCore::replace`].
    pub fn replace(&self, number: u32, spec: SubscriptionSpec) -> Result<CommandId, Failure> {
        let begins = spec.bookmark.is_some();
        let mut inner = self.shared.inner.lock();
        let command = inner.core.replace(number, spec)?;
        if begins {
            inner.beginnings.insert(command, number);
        }
        self.shared.wake(inner);
        Ok(command)
    }

    /// Ends a subscription. The messages in its queue can still be taken.
    ///
    /// # Errors
    /// See [`ClientCore::unsubscribe`].
    pub fn unsubscribe(&self, number: u32) -> Result<CommandId, Failure> {
        let mut inner = self.shared.inner.lock();
        let command = inner.core.unsubscribe(number)?;
        // Under the same lock: a full subscription stops the thread from reading, and the thread
        // has to read the answer.
        if let Some(feed) = inner.feeds.remove(&number) {
            feed.queue.end(number, None);
        }
        // Without a connection it is answered already, and the thread may sleep until the next
        // attempt.
        self.shared.dispatch(&mut inner);
        self.shared.wake(inner);
        Ok(command)
    }

    /// The program has dropped a subscription. Returns true when the subscription can end. False:
    /// the program has begun messages of a queue, so the subscription continues, without new
    /// messages.
    pub fn retire(&self, number: u32) -> bool {
        let mut inner = self.shared.inner.lock();
        if !inner.core.has_begun(number) {
            return true;
        }
        // Fails when the client or the subscription has ended.
        if let Ok(command) = inner.core.retire(number) {
            inner.abandoned.insert(command);
            self.shared.dispatch(&mut inner);
        }
        self.shared.wake(inner);
        false
    }

    /// Pauses or resumes bookmark subscriptions.
    ///
    /// # Errors
    /// See [`ClientCore::set_paused`].
    pub fn set_paused(&self, numbers: &[u32], paused: bool) -> Result<CommandId, Failure> {
        self.command(|core| core.set_paused(numbers, paused))
    }

    /// The answer to a command, once; `None` = not yet.
    pub fn answer(&self, command: CommandId) -> Option<Result<(), Failure>> {
        self.shared.inner.lock().answers.remove(&command)
    }

    /// No caller will take the answer to a command, so it is not kept.
    pub fn abandon(&self, command: CommandId) {
        let mut inner = self.shared.inner.lock();
        inner.json_replies.remove(&command);
        if inner.answers.remove(&command).is_none() && !inner.core.abandon(command) {
            inner.abandoned.insert(command);
        }
    }

    /// The JSON answers to a command of [`queue_stats`](Self::queue_stats) or
    /// [`maintain`](Self::maintain). Each answer is returned once.
    pub fn take_json_replies(&self, command: CommandId) -> Vec<String> {
        self.shared.inner.lock().json_replies.remove(&command).unwrap_or_default()
    }

    /// Answers that wait to be taken.
    pub fn answer_count(&self) -> usize {
        self.shared.inner.lock().answers.len()
    }

    /// When the client last received anything, and when each subscription last did.
    pub fn heard(&self) -> (Option<SystemTime>, HashMap<u32, SystemTime>) {
        let inner = self.shared.inner.lock();
        let heard = inner.feeds.iter().filter_map(|(number, feed)| Some((*number, feed.received_at?)));
        (inner.received_at, heard.collect())
    }

    /// Converts an instant of the core to wall-clock time, by the wall clock at the start of the
    /// client.
    pub fn wall_time(&self, at: quire_types::time::Instant) -> SystemTime {
        self.shared.started_at + Duration::from_nanos(at.as_ns())
    }

    /// Waits for the answer to a command; `None` when `timeout` passed first.
    pub fn wait(&self, command: CommandId, timeout: Duration) -> Option<Result<(), Failure>> {
        self.wait_for(timeout, |inner| inner.answers.remove(&command))
    }

    /// As [`wait`](Self::wait), for callers that do not wait for a new connection.
    pub fn wait_while_connected(&self, command: CommandId, timeout: Duration) -> Option<Waited> {
        self.wait_for(timeout, |inner| match inner.answers.remove(&command) {
            Some(answer) => Some(Waited::Answered(answer)),
            None => (*inner.core.state() != ConnectionState::Connected).then_some(Waited::Lost),
        })
    }

    /// Waits until the client is logged on or has ended for good. Unless `keeps_trying`, it also
    /// returns when every address was tried once. `None` when `timeout` passed first.
    pub fn wait_connected(&self, timeout: Duration, keeps_trying: bool) -> Option<FirstContact> {
        self.wait_for(timeout, |inner| match inner.core.state() {
            ConnectionState::Connected => Some(FirstContact::Connected),
            ConnectionState::Closed(failure) => {
                Some(FirstContact::Ended(failure.clone().unwrap_or_else(closed)))
            }
            ConnectionState::Connecting
                if !keeps_trying && inner.failed_attempts >= self.shared.endpoint_count =>
            {
                Some(FirstContact::Refused)
            }
            ConnectionState::Connecting | ConnectionState::Reconnecting => None,
        })
    }

    /// The current state of the client.
    pub fn state(&self) -> ConnectionState {
        self.shared.inner.lock().core.state().clone()
    }

    /// The states of the client after the state with the number `seen` (0 = all), with their
    /// numbers. The latest 64 are kept.
    pub fn states_after(&self, seen: u64) -> Vec<(u64, ConnectionState)> {
        self.shared.inner.lock().states_after(seen)
    }

    /// Waits for a state after the state with the number `seen`. Returns none when `timeout` passed
    /// first.
    pub fn wait_states_after(&self, seen: u64, timeout: Duration) -> Vec<(u64, ConnectionState)> {
        let found = |inner: &mut Inner| Some(inner.states_after(seen)).filter(|states| !states.is_empty());
        self.wait_for(timeout, found).unwrap_or_default()
    }

    /// Why the last attempt to connect failed, or the connection was lost.
    pub fn last_error(&self) -> Option<LastError> {
        self.shared.inner.lock().last_error.clone()
    }

    /// The highest sequence that is persisted.
    pub fn persisted(&self) -> u64 {
        self.shared.inner.lock().core.persisted()
    }

    /// The highest sequence of a publish that was taken.
    pub fn last_sequence(&self) -> u64 {
        self.shared.inner.lock().core.last_sequence()
    }

    /// Waits until the server has persisted or refused every publish up to `sequence`. Fails when
    /// the client has ended before, or when the server's disk takes no more writes. `None` when
    /// `timeout` passed first.
    pub fn wait_persisted(&self, sequence: u64, timeout: Duration) -> Option<Result<(), Failure>> {
        self.wait_for(timeout, |inner| {
            let core = &inner.core;
            match core.state() {
                _ if core.persisted() >= sequence => Some(Ok(())),
                ConnectionState::Closed(failure) => Some(Err(failure.clone().unwrap_or_else(closed))),
                _ => core.storage_failure().cloned().map(Err),
            }
        })
    }

    /// See [`ClientCore::released`].
    pub fn released(&self) -> u64 {
        self.shared.inner.lock().core.released()
    }

    /// See [`ClientCore::message_size_max`].
    pub fn message_size_max(&self) -> Option<u32> {
        self.shared.inner.lock().core.message_size_max()
    }

    /// See [`ClientCore::is_bookmark_missing`].
    pub fn is_bookmark_missing(&self, subscription: u32) -> bool {
        self.shared.inner.lock().core.is_bookmark_missing(subscription)
    }

    /// The most messages of queues that a subscription may have outstanding. 0 when it gets no
    /// messages of queues.
    pub fn granted_backlog(&self, subscription: u32) -> u32 {
        self.shared.inner.lock().core.granted_backlog(subscription)
    }

    /// Publishes that are not known to be persisted.
    pub fn unpersisted_count(&self) -> u64 {
        self.shared.inner.lock().core.unpersisted_count()
    }

    /// The refused publishes since the last call, the latest 1,024 of them.
    pub fn take_failed_publishes(&self) -> Vec<(u64, Failure)> {
        self.shared.inner.lock().failed_publishes.drain(..).collect()
    }

    /// The thread that has read answers, messages or changes of state then calls `on_ready`. It
    /// must not block.
    pub fn set_on_ready(&self, on_ready: Option<Arc<dyn Fn() + Send + Sync>>) {
        *self.shared.on_ready.lock() = on_ready;
    }

    /// A descriptor that an event loop may watch, for [`Client::lend`]. It belongs to the client.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn loop_descriptor(&self) -> std::io::Result<std::os::fd::RawFd> {
        self.shared.watchers.loop_descriptor()
    }

    /// An event loop is about to wait. When it waits often, it gets the connection: call
    /// [`Client::step`] when the descriptor of [`Client::loop_descriptor`] is readable.
    pub fn lend(&self) {
        io::lend(&self.shared);
    }

    /// Reads and writes what is possible now, on the thread of the event loop. `on_ready` is called
    /// on it.
    pub fn step(&self) {
        io::step(&self.shared);
    }

    /// The event loop does not wait any more: the thread of the client reads.
    pub fn take_back(&self) {
        let mut inner = self.shared.inner.lock();
        let orders = inner.drive.loop_leaves_socket(self.shared.now());
        self.shared.obey(inner, orders);
    }

    /// Calls `on_ready`, and wakes all waiting threads. The client's thread did not make the
    /// change.
    pub fn announce(&self) {
        self.shared.announce();
    }

    /// Call this after taking messages from a queue, so that subscriptions that wait for room
    /// continue.
    pub fn taken(&self, queue: &Queue) {
        if queue.is_awaited() {
            self.shared.wake(self.shared.inner.lock());
        }
    }

    /// The number of messages that each subscription missed because earlier ones were not taken in
    /// time. Subscriptions that missed none are left out.
    pub fn missed(&self) -> HashMap<u32, u64> {
        let inner = self.shared.inner.lock();
        let missed = inner.feeds.iter().map(|(number, feed)| (*number, feed.missed()));
        missed.filter(|(_, count)| *count > 0).collect()
    }

    /// No caller takes the answers to a query any more. The answers in its `queue` are dropped.
    pub fn forget_query(&self, number: u32, queue: &Queue) {
        let mut inner = self.shared.inner.lock();
        inner.core.forget_query(number);
        inner.feeds.remove(&number);
        queue.discard(number);
        self.shared.wake(inner);
    }

    /// Ends the client for good. Later calls fail with `reason`.
    pub fn fail(&self, reason: String) {
        let mut inner = self.shared.inner.lock();
        let failure = Failure::new(FailureCode::Closed, reason);
        inner.last_error = Some(LastError { code: failure.code.name(), reason: failure.reason.clone() });
        inner.core.fail(failure);
        self.shared.wake(inner);
    }

    /// Says goodbye and takes no further publish. Publishes that were taken before are still sent,
    /// until [`Client::close`].
    pub fn begin_close(&self) {
        let mut inner = self.shared.inner.lock();
        inner.core.close();
        self.shared.wake(inner);
    }

    /// Whether all output was sent and the thread has ended, after [`Client::begin_close`]; false
    /// when `timeout` passed first.
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        self.wait_for(timeout, |inner| inner.is_done.then_some(())).is_some()
    }

    /// Ends the client, after waiting up to `timeout` for publishes that were not sent yet. Returns
    /// the number of publishes that are not known to be persisted. The file of the publish store is
    /// then unlocked.
    pub fn close(&self, timeout: Duration) -> u64 {
        self.begin_close();
        let is_done = self.wait_closed(timeout);
        let mut inner = self.shared.inner.lock();
        let left = inner.core.unpersisted_count();
        inner.core.release_publish_log();
        // Later acknowledgements have no effect.
        inner.core.end_receipts();
        self.shared.dispatch(&mut inner);
        inner.is_hurried = true;
        self.shared.wake(inner);
        if is_done && let Some(thread) = self.thread.lock().take() {
            // The thread has reported its end. A panic after that has no effect.
            let _ = thread.join();
        }
        left
    }

    fn command(
        &self,
        make: impl FnOnce(&mut ClientCore) -> Result<CommandId, Failure>,
    ) -> Result<CommandId, Failure> {
        let mut inner = self.shared.inner.lock();
        let command = make(&mut inner.core)?;
        // The caller waits for the answer.
        self.shared.send(inner, false);
        Ok(command)
    }

    /// As [`Queue::take`], and the calling thread drives the connection while it waits.
    pub fn take(&self, queue: &Queue, number: u32, count_max: usize, timeout: Duration) -> Taken {
        let deadline = Instant::now() + timeout;
        loop {
            let taken = queue.take(number, count_max, Duration::ZERO);
            if !matches!(taken, Taken::Nothing) || Instant::now() >= deadline {
                return taken;
            }
            if queue.is_over(number) {
                // It may have ended after the check.
                return queue.take(number, count_max, Duration::ZERO);
            }
            let mut has_news = |_: &mut Inner| queue.has_news(number).then_some(());
            let wire = self.shared.take_wire(&mut self.shared.inner.lock());
            let news = wire.and_then(|wire| io::drive(&self.shared, wire, deadline, &mut has_news));
            if news.is_none() {
                let left = deadline.saturating_duration_since(Instant::now());
                return queue.take(number, count_max, left);
            }
        }
    }

    /// Waits until `ready` returns a value; `None` when `timeout` passed first. The calling thread
    /// drives the connection meanwhile, unless another one does.
    fn wait_for<T>(&self, timeout: Duration, mut ready: impl FnMut(&mut Inner) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + timeout;
        let mut inner = self.shared.inner.lock();
        loop {
            if let Some(value) = ready(&mut inner) {
                return Some(value);
            }
            if timeout.is_zero() || Instant::now() >= deadline {
                return None;
            }
            match self.shared.take_wire(&mut inner) {
                Some(wire) => {
                    drop(inner);
                    if let Some(value) = io::drive(&self.shared, wire, deadline, &mut ready) {
                        return Some(value);
                    }
                    inner = self.shared.inner.lock();
                }
                None => drop(self.shared.changed.wait_until(&mut inner, deadline)),
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

impl Feed {
    fn new(queue: &Arc<Queue>, progress: &Arc<SharedProgress>) -> Self {
        Feed {
            queue: queue.clone(),
            progress: progress.clone(),
            received_at: None,
            is_handled: false,
            full: None,
            missed_count: 0,
        }
    }

    /// Messages that it missed because there was no room.
    fn missed(&self) -> u64 {
        self.missed_count + if let Some(Full::Missing(count)) = self.full { count } else { 0 }
    }

    /// It has ended: the server ended it, or it had no room.
    fn end(&self, number: u32, failure: Option<Failure>) {
        if self.is_handled
            && let Some(failure) = &failure
        {
            log::error!(
                target: "quire.client",
                quire_sub_id = &*self.progress.sub_id,
                quire_code = failure.code.name();
                "the subscription {:?} has ended: {failure}",
                self.progress.sub_id
            );
        }
        self.queue.end(number, failure);
    }
}

impl Inner {
    fn note_state(&mut self) {
        if self.states.len() == STATES_MAX {
            self.states.pop_front();
        }
        let number = self.states.back().map_or(1, |(number, _)| number + 1);
        self.states.push_back((number, self.core.state().clone()));
    }

    fn states_after(&self, seen: u64) -> Vec<(u64, ConnectionState)> {
        self.states.iter().filter(|(number, _)| *number > seen).cloned().collect()
    }
}

impl Shared {
    /// Returns the connection to a caller that waits, when no other party has it.
    fn take_wire(&self, inner: &mut Inner) -> Option<Wire> {
        let orders = inner.drive.caller_takes()?;
        let mut wire = inner.wire.take()?;
        if let Err(error) = self.watchers.watch(&wire, &orders) {
            wire.fail(&error);
        }
        Some(wire)
    }

    /// The core's time: nanoseconds since the client began.
    fn now(&self) -> quire_types::time::Instant {
        quire_types::time::Instant::from_ns(
            u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        )
    }

    /// Passes on the events of the core. Called with `inner` locked.
    fn dispatch(&self, inner: &mut Inner) {
        let mut any = false;
        while let Some(event) = inner.core.poll_event() {
            any = true;
            match event {
                Event::Messages { subscription, messages } => inner.deliver(subscription, messages),
                Event::Answered { command, result } => {
                    if let Some(number) = inner.beginnings.remove(&command)
                        && result.is_ok()
                        && let Some(feed) = inner.feeds.get(&number)
                    {
                        feed.progress.begin(inner.core.generation(number));
                    }
                    if !inner.abandoned.remove(&command) {
                        inner.answers.insert(command, result);
                    }
                }
                Event::JsonReply { command, json } => {
                    if !inner.abandoned.contains(&command) {
                        inner.json_replies.entry(command).or_default().push(json);
                    }
                }
                Event::Completed { subscription, total } => {
                    if let Some(feed) = inner.feeds.get_mut(&subscription) {
                        feed.received_at = inner.received_at;
                        feed.queue.complete(subscription, total);
                    }
                }
                Event::Outdated { subscription } => {
                    if let Some(feed) = inner.feeds.get(&subscription) {
                        feed.queue.outdate(subscription);
                    }
                }
                Event::Ended { subscription, failure } => {
                    let is_closed = matches!(inner.core.state(), ConnectionState::Closed(_));
                    match inner.feeds.remove(&subscription) {
                        Some(feed) if is_closed => feed.queue.end(subscription, failure),
                        Some(feed) => feed.end(subscription, failure),
                        None => (),
                    }
                }
                Event::PublishFailed { sequence, failure } => inner.note_failed_publish(sequence, failure),
                Event::Settled { receipt, outcome } => inner.settle(receipt, outcome),
                Event::LoggedOn { publish_count, subscription_count } => {
                    let (client, address) = (inner.core.name(), inner.address.as_str());
                    if let Some(lost_at) = inner.lost_at.take() {
                        log::info!(
                            target: "quire.client",
                            quire_client = client,
                            quire_address = address,
                            quire_seconds = lost_at.elapsed().as_secs_f64();
                            "client {:?}: connected to {} again after {:.1} s; sent again: {publish_count} publishes, \
                             {subscription_count} subscriptions",
                            client,
                            address,
                            lost_at.elapsed().as_secs_f64()
                        );
                    } else if inner.warned_at.is_some() {
                        log::info!(
                            target: "quire.client",
                            quire_client = client,
                            quire_address = address;
                            "client {client:?}: connected to {address}"
                        );
                    }
                    inner.warned_at = None;
                }
                Event::Dropped { subscription } => {
                    if let Some(feed) = inner.feeds.get(&subscription) {
                        feed.queue.drop_over();
                    }
                }
                Event::LeasesLost { queue, cause, count } => {
                    log::warn!(target: "quire.client", "{}", leases::text_of(inner.core.name(), &queue, cause, count));
                }
                Event::SubscriptionNote { topic, text } => {
                    log::warn!(
                        target: "quire.client",
                        quire_client = inner.core.name(),
                        quire_topic = topic.as_str();
                        "client {:?}: {text}: check the name. The subscription waits for messages",
                        inner.core.name()
                    );
                }
                Event::BookmarkMissing { topic, begins_now } => {
                    let begins = match begins_now {
                        true => "begins now: messages that were published after the bookmark are left out",
                        false => {
                            "begins with the oldest message of the log: messages may be delivered again, and those that \
                             were removed from the log are left out"
                        }
                    };
                    log::warn!(
                        target: "quire.client",
                        quire_client = inner.core.name(),
                        quire_topic = topic.as_str();
                        "client {:?}: the bookmark of the subscription to {topic:?} is not in the log, so it {begins}",
                        inner.core.name()
                    );
                }
                Event::ConnectionEnded { reason } => inner.ended_because = Some(reason),
                Event::Overtaken { own, persisted, highest } => log::warn!(
                    target: "quire.client",
                    quire_client = inner.core.name();
                    "the server has sequence {highest} of the client name {:?}, which this client did not publish (its last sequence is \
                     {own}): another program has published under the name, or the publish store of the name was lost. Publishes of this \
                     client above {persisted} may have been dropped as duplicates. Give every running program its own name",
                    inner.core.name()
                ),
                Event::StateChanged => {
                    inner.note_state();
                    if inner.core.storage_failure().is_some() {
                        inner.announce_unsettled();
                    }
                    let mut known = self.instances.lock();
                    let count = known.len();
                    known.extend_from_slice(&inner.core.instances()[count..]);
                }
                Event::Persisted => (),
            }
        }
        if any {
            self.announce();
        }
    }

    fn announce(&self) {
        self.changed.notify_all();
        let on_ready = self.on_ready.lock().clone();
        if let Some(on_ready) = on_ready {
            on_ready();
        }
    }
}

/// The error of a client that its user has closed.
fn closed() -> Failure {
    Failure::new(FailureCode::Closed, "the client is closed")
}
