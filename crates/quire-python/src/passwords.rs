//! Hashes of passwords by argon2id, with the crate `argon2`.
//!
//! A check takes tens of milliseconds of a processor, and clients that log on decide how many there
//! are. So it runs on a thread that gets a processor only while nothing else wants one
//! (`SCHED_IDLE`), and gives it back at once. A low priority alone does not do that: Linux lets the
//! thread finish its share of 3 ms first. Python code cannot run on such a thread: on a busy
//! machine it would hold the lock of the interpreter for as long as it waits for a processor.
//!
//! One processor stays free of such threads. Linux with lazy preemption lets one run until the next
//! tick, up to 4 ms, when a thread becomes ready there that another processor wakes.
//!
//! Where all processors are busy, a check on such a thread would hardly begin. After `PATIENCE` it
//! is begun again on the calling thread. That thread has no low priority: with two busy programs on
//! each processor, a check with nice 10 took 3.8 s, and clients could not log on in time.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use argon2::password_hash::phc::PasswordHash;
use argon2::{Algorithm, Argon2, Params, PasswordHasher, PasswordVerifier, Version, password_hash};
use crossbeam_channel::bounded;
use parking_lot::{Condvar, Mutex};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;

use crate::interpreter;

/// How long a check of the default cost, or of a lower one, may wait for a processor that nothing
/// else wants. It takes about a tenth of it.
const PATIENCE: Duration = Duration::from_millis(500);
/// KiB, times passes.
const DEFAULT_COST: u32 = (64 << 10) * 3;

/// The calls of `check_password` that run.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// The threads in the background that run.
static IN_BACKGROUND: Places = Places { taken: Mutex::new(0), freed: Condvar::new() };

/// Returns whether the password is that of the hash, a PHC string. Raises `ValueError` for other
/// text, and `MemoryError`.
#[pyfunction]
pub fn check_password(py: Python<'_>, hash: &str, password: &[u8]) -> PyResult<bool> {
    let hash = parsed(hash)?;
    let params = Params::try_from(&hash).map_err(of_hash)?;
    let times = params.m_cost().saturating_mul(params.t_cost()).div_ceil(DEFAULT_COST);
    let password = password.to_vec();
    match interpreter::outside(py, || checked(hash, password, PATIENCE * times)) {
        Ok(()) => Ok(true),
        Err(password_hash::Error::PasswordInvalid) => Ok(false),
        Err(error) => Err(of_hash(error)),
    }
}

/// Returns the argon2id hash of a password, with a random salt, as a PHC string. `memory` is in
/// KiB. Raises `ValueError` for a cost that cannot be, and `MemoryError`.
#[pyfunction]
pub fn hash_password(
    py: Python<'_>,
    password: &[u8],
    memory: u32,
    passes: u32,
    lanes: u32,
) -> PyResult<String> {
    let params =
        Params::new(memory, passes, lanes, None).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    interpreter::outside(py, || hasher.hash_password(password)).map(|hash| hash.to_string()).map_err(of_hash)
}

/// Returns what a check of an argon2id hash costs: the memory in KiB, the passes, and the lanes.
/// Raises `ValueError` for text that is not such a hash.
#[pyfunction]
pub fn password_cost(hash: &str) -> PyResult<(u32, u32, u32)> {
    let hash = parsed(hash)?;
    let params = Params::try_from(&hash).map_err(of_hash)?;
    Ok((params.m_cost(), params.t_cost(), params.p_cost()))
}

fn parsed(hash: &str) -> PyResult<PasswordHash> {
    let hash = PasswordHash::new(hash).map_err(|error| PyValueError::new_err(error.to_string()))?;
    if hash.algorithm != Algorithm::Argon2id.ident() || hash.salt.is_none() || hash.hash.is_none() {
        return Err(PyValueError::new_err("not an argon2id hash"));
    }
    Ok(hash)
}

fn of_hash(error: password_hash::Error) -> PyErr {
    match error {
        password_hash::Error::OutOfMemory => PyMemoryError::new_err("no memory for a hash"),
        error => PyValueError::new_err(error.to_string()),
    }
}

fn checked(hash: PasswordHash, password: Vec<u8>, patience: Duration) -> password_hash::Result<()> {
    let deadline = Instant::now() + patience;
    let _call = Call::begin();
    if let Some(place) = IN_BACKGROUND.take(deadline) {
        let (answer, answered) = bounded(1);
        let (its_hash, its_password) = (hash.clone(), password.clone());
        let begun = thread::Builder::new().name("quire-hash".to_owned()).spawn(move || {
            let _taken = place;
            give_way();
            let _ = answer.send(Argon2::default().verify_password(&its_password, &its_hash));
        });
        if begun.is_ok()
            && let Ok(result) = answered.recv_deadline(deadline)
        {
            return result;
        }
    }
    Argon2::default().verify_password(&password, &hash)
}

/// The calling thread gets a processor only while nothing else wants one, as far as the system can
/// do that.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)] // a call of the system
fn give_way() {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is valid during the call, and 0 names the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const priority) };
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

/// A call that runs.
struct Call;

impl Call {
    fn begin() -> Self {
        CALLS.fetch_add(1, Relaxed);
        Call
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Relaxed);
    }
}

/// Places for threads in the background.
struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// A place that is taken, until this is dropped.
struct Place(&'static Places);

impl Places {
    /// Takes a place, or waits for one; `None`: there was none until the deadline.
    fn take(&'static self, deadline: Instant) -> Option<Place> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let mut taken = self.taken.lock();
        // A thread whose caller did not wait for it still has its memory, so there are never more
        // threads than calls.
        while *taken >= CALLS.load(Relaxed).min(processors.saturating_sub(1).max(1)) {
            if self.freed.wait_until(&mut taken, deadline).timed_out() {
                return None;
            }
        }
        *taken += 1;
        Some(Place(self))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.taken.lock() -= 1;
        self.0.freed.notify_one();
    }
}
