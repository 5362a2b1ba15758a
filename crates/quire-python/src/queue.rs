//! The engine of leases and fairness, with the clock of the caller.

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quire_broker::{ConfigError, QueueSettings, StandaloneError, StandaloneQueue};
use quire_queue::{ConnectionId, Position, SubscriptionId, Time, Verdict};

use crate::errors;
use crate::filter::bad_filter;
use crate::interpreter;

/// One queue; see `quire.Queue`. Times are nanoseconds.
#[pyclass(frozen, module = "quire._quire")]
pub struct Queue {
    queue: Mutex<StandaloneQueue>,
}

/// Position, subscription, data, end of the lease, deliveries, cancels, whether it is a barrier.
type Delivered<'py> = (u64, u64, Bound<'py, PyBytes>, Option<u64>, u32, u32, bool);

/// Position, data, reasons, deliveries, cancels.
type Expired<'py> = (u64, Bound<'py, PyBytes>, Vec<&'static str>, u32, u32);

#[pymethods]
impl Queue {
    /// `settings`: an entry of `[[queue]]` as JSON, as the core reads it.
    #[new]
    fn new(py: Python<'_>, settings: &str) -> PyResult<Self> {
        let refused = |reason: String| errors::new_error(py, "bad_option", &reason, 0);
        let settings: QueueSettings =
            serde_json::from_str(settings).map_err(|error| refused(error.to_string()))?;
        let queue = StandaloneQueue::new(&settings).map_err(|error: ConfigError| {
            let key = error.key.rsplit('.').next().unwrap_or_default();
            refused(format!("{key}: {}", error.reason))
        })?;
        Ok(Queue { queue: Mutex::new(queue) })
    }

    #[pyo3(signature = (data, expiration_s, delay_ns, now))]
    fn enqueue(&self, data: &[u8], expiration_s: Option<u32>, delay_ns: u64, now: u64) -> Option<u64> {
        let data = bytes::Bytes::copy_from_slice(data);
        self.queue.lock().enqueue(data, expiration_s, delay_ns, Time::new(now)).map(Position::get)
    }

    #[pyo3(signature = (connection, max_backlog, filter))]
    fn subscribe(
        &self,
        py: Python<'_>,
        connection: u64,
        max_backlog: Option<u32>,
        filter: Option<&str>,
    ) -> PyResult<u64> {
        let subscribed = self.queue.lock().subscribe(ConnectionId::new(connection), max_backlog, filter);
        subscribed.map(SubscriptionId::get).map_err(|error| match error {
            StandaloneError::Filter(error) => bad_filter(py, &error),
            StandaloneError::Subscribe(error) => {
                errors::new_error(py, "limit_exceeded", &error.to_string(), 0)
            }
        })
    }

    fn unsubscribe(&self, subscription: u64, now: u64) -> bool {
        self.queue.lock().unsubscribe(SubscriptionId::new(subscription), Time::new(now))
    }

    fn disconnect(&self, connection: u64, now: u64) {
        self.queue.lock().disconnect(ConnectionId::new(connection), Time::new(now));
    }

    fn dispatch<'py>(&self, py: Python<'py>, count_max: usize, now: u64) -> Vec<Delivered<'py>> {
        let deliveries = interpreter::outside(py, || self.queue.lock().dispatch(Time::new(now), count_max));
        let to_python = |(delivery, data): &(quire_queue::Delivery, bytes::Bytes)| {
            (
                delivery.position.get(),
                delivery.subscription.get(),
                PyBytes::new(py, data),
                delivery.lease_deadline.map(Time::get),
                delivery.delivery_count,
                delivery.cancel_count,
                delivery.barrier,
            )
        };
        deliveries.iter().map(to_python).collect()
    }

    fn settle(
        &self,
        py: Python<'_>,
        connection: u64,
        verdict: &str,
        positions: Vec<u64>,
        delay_ms: Option<u64>,
        now: u64,
    ) -> PyResult<u64> {
        let verdict = match (verdict_of(py, verdict)?, delay_ms) {
            (Verdict::Cancel, Some(delay_ms)) => Verdict::CancelWithDelay { delay_ms },
            (verdict, _) => verdict,
        };
        let positions: Vec<Position> = positions.into_iter().map(Position::new).collect();
        let connection = ConnectionId::new(connection);
        Ok(interpreter::outside(py, || {
            self.queue.lock().settle(connection, verdict, &positions, Time::new(now))
        }))
    }

    fn settle_matching(
        &self,
        py: Python<'_>,
        connection: u64,
        verdict: &str,
        filter: &str,
        now: u64,
    ) -> PyResult<u64> {
        let verdict = verdict_of(py, verdict)?;
        let connection = ConnectionId::new(connection);
        let settled = interpreter::outside(py, || {
            self.queue.lock().settle_matching(connection, verdict, filter, Time::new(now))
        });
        settled.map_err(|error| bad_filter(py, &error))
    }

    fn extend(&self, connection: u64, position: u64, deadline: u64, now: u64) -> bool {
        let (position, deadline) = (Position::new(position), Time::new(deadline));
        self.queue.lock().extend(ConnectionId::new(connection), position, deadline, Time::new(now))
    }

    /// The messages that expired until `now` and were not reported yet.
    fn tick<'py>(&self, py: Python<'py>, now: u64) -> Vec<Expired<'py>> {
        let expired = interpreter::outside(py, || {
            let mut queue = self.queue.lock();
            queue.advance(Time::new(now));
            queue.take_expired()
        });
        let to_python = |expired: &quire_broker::Expired| {
            let reasons = expired.reasons.names().collect();
            let data = PyBytes::new(py, &expired.data);
            (expired.position.get(), data, reasons, expired.deliveries, expired.cancels)
        };
        expired.iter().map(to_python).collect()
    }

    #[getter]
    fn next_timeout(&self) -> Option<u64> {
        self.queue.lock().next_timeout().map(Time::get)
    }

    /// The figures by name, in the order of docs/queues.md section 10.
    fn stats(&self, now: u64) -> Vec<(&'static str, Option<u64>)> {
        let stats = self.queue.lock().stats(Time::new(now));
        vec![
            ("depth", Some(stats.queue_depth)),
            ("waiting", Some(stats.waiting)),
            ("delayed", Some(stats.delayed)),
            ("backlog", Some(stats.backlog)),
            ("subscriptions", Some(stats.subscriptions)),
            ("age_of_oldest_lease_ns", stats.age_of_oldest_lease_ns),
            ("age_of_oldest_ns", stats.age_of_oldest_message_ns),
            ("expired_leases", Some(stats.expired_leases)),
            ("inactive", Some(stats.inactive_message_count)),
            ("deferred_acks", Some(stats.deferred_ack_count)),
            ("catching_up", Some(stats.catching_up)),
            ("entered", Some(stats.entered)),
            ("delivered", Some(stats.delivered)),
            ("acknowledged", Some(stats.acknowledged)),
            ("cancelled", Some(stats.cancelled)),
            ("expired", Some(stats.expired)),
            ("taken", Some(stats.taken)),
            ("released", Some(stats.released)),
        ]
    }
}

/// The verdict with this name.
pub fn verdict_of(py: Python<'_>, name: &str) -> PyResult<Verdict> {
    match name {
        "acknowledge" => Ok(Verdict::Acknowledge),
        "cancel" => Ok(Verdict::Cancel),
        "expire" => Ok(Verdict::Expire),
        "release" => Ok(Verdict::Release),
        _ => Err(errors::new_error(py, "bad_option", &format!("verdict: {name:?} is none"), 0)),
    }
}
