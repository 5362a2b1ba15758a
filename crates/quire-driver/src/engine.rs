//! The embedded engine: a broker on one thread of this process, reached over socket pairs.
//!
//! A `file:` or `memory:` client uses its end of a socket pair, and the same protocol as a `quire:`
//! client over TCP. So the code above a transport does not depend on its kind. The thread belongs
//! to the engine and never enters the interpreter.
//!
//! Promises:
//!
//! - The engine that [`Engine::open`] returns is running and recovered.
//! - Everything that was acknowledged as persisted is durable.
//! - [`Engine::close`], or the drop of the last handle, notifies the clients, closes the journal
//!   cleanly, and returns only when its lock is free again.
//!
//! One process per directory holds the lock. The clients of one process share the engine
//! ([`Engine::shared`]).

mod reactor;
mod registry;
mod transport;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Sender, bounded, unbounded};
use parking_lot::Mutex;
use polling::Poller;
use quire_broker::{AdminCommand, AdminReply, BrokerConfig, ConfigError};
use quire_journal::descriptor::Owned;
use quire_journal::{Reader, RecoveryProgress};

use crate::descriptor;
use crate::error::EngineError;
use crate::host::Host;
use reactor::Reactor;

pub use registry::{EngineKey, after_fork_in_child};

/// The requests of the handles to the thread.
enum Command {
    Connect(Owned<UnixStream>),
    Admin(AdminCommand, Sender<AdminReply>),
    Stop,
}

/// An engine inside this process. Dropping it stops it.
pub struct Engine {
    commands: Sender<Command>,
    poller: Arc<Owned<Poller>>,
    reader: Reader,
    thread: Mutex<Option<JoinHandle<Result<(), EngineError>>>>,
    /// Why the thread ended without a request.
    failure: Arc<OnceLock<String>>,
    on_stopped: Option<registry::Running>,
}

impl Engine {
    /// Opens the journal and starts the thread; returns when the journal is recovered.
    ///
    /// # Errors
    /// [`EngineError`]: the configuration, the journal (another process holds it, or it is
    /// damaged), or the operating system.
    pub fn open(config: BrokerConfig) -> Result<Arc<Engine>, EngineError> {
        Engine::start(config, &mut |_| (), None).map(Arc::new)
    }

    /// The engine of this process on `key`: the running one, or a new one. The last handle that is
    /// dropped stops it.
    ///
    /// # Errors
    /// As [`Engine::open`], and [`EngineError::ConfigDiffers`] when it runs with another
    /// configuration.
    pub fn shared(key: EngineKey, config: BrokerConfig) -> Result<Arc<Engine>, EngineError> {
        registry::shared(key, config, registry::Join::SameConfig)
    }

    /// As [`Engine::shared`], but a running engine may have any configuration. A new engine gets
    /// `config`.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn joined(key: EngineKey, config: BrokerConfig) -> Result<Arc<Engine>, EngineError> {
        registry::shared(key, config, registry::Join::AnyConfig)
    }

    fn start(
        config: BrokerConfig,
        on_progress: &mut dyn FnMut(RecoveryProgress),
        on_stopped: Option<registry::Running>,
    ) -> Result<Engine, EngineError> {
        if config.replication.accepts || !config.replication.destinations.is_empty() {
            let reason = "an embedded engine has no links to other instances: run a server".to_owned();
            return Err(ConfigError { key: "replication".to_owned(), reason }.into());
        }
        let poller = Arc::new(descriptor::poller().map_err(EngineError::Thread)?);
        let notified = Arc::clone(&poller);
        let wake = Box::new(move || {
            // Fails only when the poller's descriptor is broken. The engine then cannot continue,
            // and its next wait reports the error.
            let _ = notified.notify();
        });
        let (host, _) = Host::open(config, wake, on_progress)?;
        let reader = host.reader();
        let (commands, waiting) = unbounded();
        let failure = Arc::new(OnceLock::new());
        let reactor = Reactor::new(host, Arc::clone(&poller), waiting, Arc::clone(&failure));
        let thread = thread::Builder::new()
            .name("quire-engine".into())
            .spawn(move || reactor.run())
            .map_err(EngineError::Thread)?;
        Ok(Engine { commands, poller, reader, thread: Mutex::new(Some(thread)), failure, on_stopped })
    }

    /// A new connection to the engine: the client's end of it, a blocking stream.
    ///
    /// # Errors
    /// `NotConnected` when the engine was stopped, or has failed. The error of the operating system
    /// when it has no descriptors left.
    pub fn connect(&self) -> io::Result<Owned<UnixStream>> {
        let (client, server) = descriptor::socket_pair()?;
        server.set_nonblocking(true)?;
        self.tell(Command::Connect(server))
            .map_err(|error| io::Error::new(io::ErrorKind::NotConnected, error.to_string()))?;
        Ok(client)
    }

    /// Carries out an administrative command, and waits for the reply. For maintenance, the reply
    /// takes as long as the work on one file.
    ///
    /// # Errors
    /// [`EngineError::Stopped`].
    pub fn admin(&self, command: AdminCommand) -> Result<AdminReply, EngineError> {
        let (answer, reply) = bounded(1);
        self.tell(Command::Admin(command, answer))?;
        reply.recv().map_err(|_| self.why_stopped())
    }

    /// A reader of the running journal.
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// Notifies the clients, closes the journal cleanly and waits until both are done. A second
    /// call has no effect.
    ///
    /// # Errors
    /// What the journal could not write.
    pub fn close(&self) -> Result<(), EngineError> {
        let mut thread = self.thread.lock();
        let Some(running) = thread.take() else { return Ok(()) };
        // When the thread has ended already, joining returns the reason.
        let _ = self.tell(Command::Stop);
        match running.join() {
            Ok(closed) => closed,
            Err(_) => Err(self.why_stopped()),
        }
    }

    fn tell(&self, command: Command) -> Result<(), EngineError> {
        self.commands.send(command).map_err(|_| self.why_stopped())?;
        self.poller.notify().map_err(EngineError::Thread)
    }

    /// Whether the engine has ended because of an internal error.
    ///
    /// # Errors
    /// [`EngineError::Panicked`] when it has.
    fn check(&self) -> Result<(), EngineError> {
        match self.failure.get() {
            Some(reason) => Err(EngineError::Panicked { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn why_stopped(&self) -> EngineError {
        self.check().err().unwrap_or(EngineError::Stopped)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The error cannot be returned from here. A caller that wants it calls `close`.
        let _ = self.close();
        drop(self.on_stopped.take());
    }
}
