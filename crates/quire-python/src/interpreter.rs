//! Leaves the interpreter and enters it again. No other code does this.

#![allow(clippy::disallowed_methods)] // this is the place

use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// The longest time in which a wait does not check for Ctrl-C: short for a person, long for a
/// processor.
const SLICE: Duration = Duration::from_millis(100);

/// Runs short work outside of the interpreter. Other Python threads run meanwhile, and Ctrl-C is
/// handled after it.
pub fn outside<T: Send>(py: Python<'_>, run: impl FnOnce() -> T + Send) -> T {
    py.detach(run)
}

/// Waits outside of the interpreter until `ready` returns a value, `timeout` has passed (returns
/// `None`), or a signal handler raises.
///
/// `ready` waits up to the time in its argument. It is called at least once.
pub fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut ready: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    let started = Instant::now();
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(started.elapsed()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        if let Some(value) = py.detach(|| ready(slice)) {
            return Ok(Some(value));
        }
        py.check_signals()?;
        if timeout.is_some_and(|timeout| started.elapsed() >= timeout) {
            return Ok(None);
        }
    }
}

/// Runs work that reports its progress outside of the interpreter, and passes the reports to
/// `on_progress(done, total)`. An exception of `on_progress`, such as that of Ctrl-C, is raised at
/// the end, because a half-recovered journal cannot be used.
pub fn with_progress<T: Send>(
    py: Python<'_>,
    on_progress: Option<Py<PyAny>>,
    run: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T + Send,
) -> PyResult<T> {
    let mut interrupted = None;
    let value = py.detach(|| {
        run(&mut |done, total| {
            if let Some(on_progress) = &on_progress
                && interrupted.is_none()
            {
                interrupted = Python::attach(|py| on_progress.call1(py, (done, total))).err();
            }
        })
    });
    interrupted.map_or(Ok(value), Err)
}

/// A timeout in seconds from Python. `None`, and a time that is too long for this machine, mean no
/// limit.
pub fn timeout(seconds: Option<f64>) -> Option<Duration> {
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok())
}

/// The text that a function returns, for a thread outside of the interpreter. The error is its own
/// text.
pub fn text_of(function: &Py<PyAny>) -> Result<String, String> {
    let called = Python::try_attach(|py| {
        let value = function.call0(py).map_err(|error| error.to_string())?;
        // The value may be a secret, so its type says what is wrong with it.
        let kind = || format!("it returned `{}`, and not text", value.bind(py).get_type());
        value.extract::<String>(py).map_err(|_| kind())
    });
    called.unwrap_or_else(|| Err("the interpreter has ended".to_owned()))
}
