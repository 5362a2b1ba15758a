//! A receipt as Python sees it: the outcome of publishes that the program follows.

use std::sync::Arc;

use pyo3::prelude::*;
use quire_client::ReceiptId;

use crate::client::Handle;
use crate::errors;
use crate::interpreter;

/// The refused messages by their sequences, and why the result of the others is unknown.
type Outcome<'py> = (Vec<(u64, Bound<'py, PyAny>)>, Option<Bound<'py, PyAny>>);

/// The receipt of one publish, or of several.
#[pyclass(frozen, module = "quire._quire")]
pub struct Receipt {
    pub handle: Arc<Handle>,
    pub id: ReceiptId,
}

#[pymethods]
impl Receipt {
    /// The number that `Client.settled` returns.
    #[getter]
    fn number(&self) -> u64 {
        self.id.0
    }

    /// Whether the result of all messages is known.
    fn is_settled(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle.check_fork(py)?;
        Ok(self.handle.client().is_settled(self.id))
    }

    /// The outcome of the messages: both parts are empty when all are persisted. `False` when that
    /// is not known within `timeout` seconds. Raises the reason for which the server takes no
    /// publishes for now.
    #[pyo3(signature = (timeout=None))]
    fn outcome<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Asked<'py>> {
        self.handle.check_fork(py)?;
        let outcome = interpreter::wait(py, interpreter::timeout(timeout), |slice| {
            self.handle.client().outcome(self.id, slice)
        })?;
        let to_value = |failure| errors::to_python(py, failure).into_value(py).into_bound(py).into_any();
        match outcome {
            None => Ok(Asked::Pending(false)),
            Some(Err(failure)) => Err(errors::to_python(py, &failure)),
            Some(Ok(outcome)) => {
                let refusals = outcome.refusals.iter();
                let refusals = refusals.map(|(sequence, failure)| (*sequence, to_value(failure))).collect();
                Ok(Asked::Settled((refusals, outcome.unknown.as_ref().map(to_value))))
            }
        }
    }
}

/// An outcome, or `False`.
#[derive(IntoPyObject)]
enum Asked<'py> {
    Settled(Outcome<'py>),
    Pending(bool),
}

impl Drop for Receipt {
    /// The program has dropped it: `flush` raises refusals.
    fn drop(&mut self) {
        if !self.handle.is_forked() {
            self.handle.client().forget_receipt(self.id);
        }
    }
}
