//! The comparison of the messages of two servers, for a program that asks both.

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quire_broker::summary::{Answer, BadAnswer, Comparison, DifferentRange, Side};

/// See `quire_link::summary::Comparison`.
#[pyclass(frozen, module = "quire._quire")]
pub struct LogComparison(Mutex<Comparison>);

/// Messages that differ: publisher, first and last sequence, and whether the first server lacks
/// them, or the second one. `None`: they are of another run there.
type RangeFields = (u64, u64, u64, Option<bool>);

#[pymethods]
impl LogComparison {
    #[new]
    fn new(differences_max: usize) -> Self {
        LogComparison(Mutex::new(Comparison::new(differences_max)))
    }

    /// The question for both servers. `None`: the comparison is over.
    fn question<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let mut bytes = Vec::new();
        self.0.lock().question()?.encode(&mut bytes);
        Some(PyBytes::new(py, &bytes))
    }

    /// Takes the answer of the first or of the second server.
    fn answer(&self, is_first: bool, answer: &[u8]) -> PyResult<()> {
        let side = if is_first { Side::Here } else { Side::There };
        let answer = Answer::decode(answer).ok_or(BadAnswer);
        let taken = answer.and_then(|answer| self.0.lock().handle_answer(side, answer));
        taken.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The messages that differ, as far as the comparison has come.
    fn ranges(&self) -> Vec<RangeFields> {
        let fields = |range: DifferentRange| {
            let DifferentRange { publisher, first, last, missing } = range;
            (publisher.get(), first, last, missing.map(|side| side == Side::Here))
        };
        self.0.lock().ranges().into_iter().map(fields).collect()
    }

    /// The ids of the publishers of which the two servers do not have the same sums.
    fn publishers(&self) -> Vec<u64> {
        self.0.lock().publishers().map(|publisher| publisher.get()).collect()
    }

    /// Whether everything was compared: false at the limit of differences.
    fn is_complete(&self) -> bool {
        self.0.lock().is_complete()
    }
}
