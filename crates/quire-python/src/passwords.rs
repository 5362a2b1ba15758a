//! Hashes of passwords by argon2id, with the crate `argon2`.
//!
//! A check takes tens of milliseconds of a processor, and clients that log on decide how many there
//! are. So it runs on a thread that gets a processor only while nothing else wants one
//! (`SCHED_IDLE`), and gives it back at once. A low priority alone does not do that: Linux lets the
//! thread finish its share of 3 ms first. Python code cannot run on such a thread: on a busy
//! machine it would hold the lock of the interpreter for as long as it waits for a processor.
//!
//! Where all processors are busy, a check on such a thread would hardly begin. After `PATIENCE` it
//! is begun again on the calling thread.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Algorithm, Argon2, Params, PasswordHasher, PasswordVerifier, Version, password_hash};
use crossbeam_channel::bounded;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;

use crate::interpreter;

/// How long a check of the default cost, or of a lower one, may wait for a processor that nothing
/// else wants. It takes about a tenth of it.
const PATIENCE: Duration = Duration::from_millis(500);
/// KiB, times passes.
const DEFAULT_COST: u32 = (64 << 10) * 3;

/// The calls of `check_password` that run.
static CALLS: Count = Count(AtomicUsize::new(0));
/// The threads in the background that run. One whose caller did not wait for it still has its
/// memory, so there are never more than calls.
static IN_BACKGROUND: Count = Count(AtomicUsize::new(0));

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
    let calls = CALLS.one_more();
    let in_background = IN_BACKGROUND.one_more();
    if in_background.number <= calls.number {
        let (answer, answered) = bounded(1);
        let (its_hash, its_password) = (hash.clone(), password.clone());
        let begun = thread::Builder::new().name("quire-hash".to_owned()).spawn(move || {
            let _counted = in_background;
            give_way();
            let _ = answer.send(Argon2::default().verify_password(&its_password, &its_hash));
        });
        if begun.is_ok()
            && let Ok(result) = answered.recv_timeout(patience)
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

/// How many there are.
struct Count(AtomicUsize);

/// One of them, until it is dropped.
struct Counted {
    count: &'static Count,
    /// How many there were with this one.
    number: usize,
}

impl Count {
    fn one_more(&'static self) -> Counted {
        Counted { count: self, number: self.0.fetch_add(1, Relaxed) + 1 }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.0.fetch_sub(1, Relaxed);
    }
}
