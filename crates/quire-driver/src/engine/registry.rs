//! The engines of this process, so that clients of one URL share one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

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

/// An engine that runs, starts, or stops. During this time its key is taken.
struct RegisteredEngine {
    engine: Weak<Engine>,
    config: BrokerConfig,
}

/// The engines, and a condition for threads that wait until one has stopped.
struct Registry {
    entries: Mutex<HashMap<EngineKey, RegisteredEngine>>,
    stopped: Condvar,
}

/// The registry of this process, once it is used. A forked child begins another one, because
/// threads that do not exist in the child run the engines of its parent, and may hold the lock of
/// the registry.
static REGISTRY: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

#[allow(unsafe_code)] // a value that is replaced without a lock
fn registry() -> &'static Registry {
    let mut current = REGISTRY.load(Ordering::Acquire);
    if current.is_null() {
        let new = Box::new(Registry { entries: Mutex::new(HashMap::new()), stopped: Condvar::new() });
        let new = Box::into_raw(new);
        match REGISTRY.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => current = new,
            Err(other) => {
                // SAFETY: it comes from `into_raw`, and no other code got it.
                drop(unsafe { Box::from_raw(new) });
                current = other;
            }
        }
    }
    // SAFETY: it comes from `into_raw`, and a registry that was used is never freed.
    unsafe { &*current }
}

/// This process was forked: it has no engines.
pub fn after_fork_in_child() {
    REGISTRY.store(ptr::null_mut(), Ordering::Release);
}

/// A shared engine holds it. It frees the key when the engine has stopped.
pub(super) struct Running(EngineKey);

impl Drop for Running {
    fn drop(&mut self) {
        let registry = registry();
        registry.entries.lock().remove(&self.0);
        registry.stopped.notify_all();
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

/// The running engine on `key`, or a new one. An engine that is just stopping is waited for: its
/// journal is locked until then.
pub(super) fn shared(key: EngineKey, config: BrokerConfig, join: Join) -> Result<Arc<Engine>, EngineError> {
    let registry = registry();
    let mut entries = registry.entries.lock();
    while let Some(entry) = entries.get(&key) {
        if let Some(engine) = entry.engine.upgrade() {
            engine.check()?;
            if join == Join::AnyConfig || entry.config == config {
                return Ok(engine);
            }
            return Err(EngineError::ConfigDiffers { url: key.to_string() });
        }
        registry.stopped.wait(&mut entries);
    }
    // Taken before the lock is released: recovery may be long, and others must be able to share
    // other engines meanwhile.
    entries.insert(key.clone(), RegisteredEngine { engine: Weak::new(), config: config.clone() });
    drop(entries);
    let running = Running(key.clone());
    let engine = Arc::new(Engine::start(config, &mut |_| (), Some(running))?);
    if let Some(entry) = registry.entries.lock().get_mut(&key) {
        entry.engine = Arc::downgrade(&engine);
    }
    registry.stopped.notify_all();
    Ok(engine)
}
