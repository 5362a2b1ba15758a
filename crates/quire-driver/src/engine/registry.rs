//! The engines of this process, so that clients of one URL share one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::{Condvar, Mutex};
use quire_broker::BrokerConfig;

use super::Engine;
use crate::error::EngineError;

/// The key under which clients share an engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EngineKey {
    /// `file:`: the directory, resolved, so that two ways to write it are one.
    Directory(PathBuf),
    /// `memory:`: one per name; the plain URL has the empty name.
    Memory(String),
}

impl std::fmt::Display for EngineKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EngineKey::Directory(directory) => write!(f, "file:{}", directory.display()),
            EngineKey::Memory(name) => write!(f, "memory:{name}"),
        }
    }
}

/// An engine that runs, starts, or stops. While it does, its key is taken.
struct Entry {
    engine: Weak<Engine>,
    config: BrokerConfig,
}

/// The engines, and a condition for threads that wait until one has stopped.
struct Registry {
    entries: Mutex<HashMap<EngineKey, Entry>>,
    stopped: Condvar,
}

static REGISTRY: LazyLock<Registry> =
    LazyLock::new(|| Registry { entries: Mutex::new(HashMap::new()), stopped: Condvar::new() });

/// Held by a shared engine: gives its key free once the engine has stopped.
pub(super) struct Running(EngineKey);

impl Drop for Running {
    fn drop(&mut self) {
        REGISTRY.entries.lock().remove(&self.0);
        REGISTRY.stopped.notify_all();
    }
}

/// Which running engine a client may join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// One with the configuration of the client.
    SameConfig,
    /// Any: the client brings no configuration.
    AnyConfig,
}

/// The running engine on `key`, or a new one. An engine that is just stopping is waited for: its journal is locked until then.
pub(super) fn shared(key: EngineKey, config: BrokerConfig, join: Join) -> Result<Arc<Engine>, EngineError> {
    let mut entries = REGISTRY.entries.lock();
    while let Some(entry) = entries.get(&key) {
        if let Some(engine) = entry.engine.upgrade() {
            engine.check()?;
            if join == Join::AnyConfig || entry.config == config {
                return Ok(engine);
            }
            return Err(EngineError::ConfigDiffers { url: key.to_string() });
        }
        REGISTRY.stopped.wait(&mut entries);
    }
    // Taken before the lock is released: recovery may be long, and others must be able to share other engines meanwhile.
    entries.insert(key.clone(), Entry { engine: Weak::new(), config: config.clone() });
    drop(entries);
    let running = Running(key.clone());
    let engine = Arc::new(Engine::start(config, &mut |_| (), Some(running))?);
    if let Some(entry) = REGISTRY.entries.lock().get_mut(&key) {
        entry.engine = Arc::downgrade(&engine);
    }
    REGISTRY.stopped.notify_all();
    Ok(engine)
}
