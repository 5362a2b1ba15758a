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
mod events;
mod io;
mod leases;
mod log_range;
mod progress;
mod publish;
mod queue;
mod receipts;
mod receive_limit;
mod server_load;
mod subscriptions;
mod tls;
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
use quire_client::{ClientConfig, ClientCore, CommandId, ConnectionState, Failure, FailureCode};
use quire_types::Secret;

use crate::store::{BookmarkStore, PublishFile, StoreError};
pub use log_range::{LogRange, Step};
use progress::Instances;
pub use progress::{HandedTo, SharedProgress};
pub use queue::{NO_SUBSCRIPTION, Queue, Taken};
pub use receipts::Followed;
use receipts::Receipts;
use receive_limit::{Full, Room};
pub use subscriptions::{MOST_RECENT, Subscribed};
pub use tls::{Tls, TlsOptionError};
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
    /// Returns the password or the token for each connection; `None`: those of `config`.
    pub secret: Option<SecretSource>,
    /// The timeout of one attempt to connect.
    pub connect_timeout: Duration,
    /// No caller waits for the first connection. The client logs that there is none.
    pub is_in_background: bool,
    /// Limit of the bytes of messages that wait for the caller. docs/clients.md, "Bounds",
    /// describes the behavior above it.
    pub receive_size_max: usize,
}

/// Returns the secret for a connection, or the reason why there is none. The thread of the client
/// calls it, and waits for it.
pub type SecretSource = Box<dyn Fn() -> Result<NewSecret, String> + Send + Sync>;

/// The proof of the user of a client.
#[derive(Debug)]
pub enum NewSecret {
    /// Its password.
    Password(Secret<String>),
    /// Its token.
    Token(Secret<String>),
}

/// A client and its thread. Share it in an `Arc`; dropping the last one closes it without waiting.
pub struct Client {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

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
    secret: Option<SecretSource>,
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
    ended_because: Option<(&'static str, String)>,
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

impl Client {
    /// Starts the thread, which begins to connect. [`Client::wait_connected`] returns the result.
    ///
    /// # Errors
    /// The system has no thread or descriptor left, or the publish store cannot be used.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let size_max = options.config.publish_store_size_max as u64;
        let (name, new_run) = (options.config.name.clone(), options.config.incarnation);
        let asker = server_load::Asker::of(&options.config);
        let mut core = ClientCore::new(options.config, quire_types::time::Instant::from_ns(0));
        if let Some(path) = &options.publish_store {
            let (file, stored) = PublishFile::open(path, &name, size_max, new_run)?;
            core.keep_publishes_in(Box::new(file), &stored);
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
            secret: options.secret,
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

    /// The name of the instance that the client is logged on to.
    pub fn instance(&self) -> Option<String> {
        self.shared.inner.lock().core.instance().map(str::to_owned)
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
}

/// The error of a client that its user has closed.
fn closed() -> Failure {
    Failure::new(FailureCode::Closed, "the client is closed")
}
