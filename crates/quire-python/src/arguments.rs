//! The arguments of the calls of a client: objects of Python, member by member, and their
//! conversion for the core.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use quire_client::{
    NewDelay, NewMessage, QuerySpec, Reconnect, RecordsSpec, Renewal, Sequence, ServerChooser,
    SubscriptionSpec,
};
use quire_command::SubscribeOptions;
use quire_driver::client::{NewSecret, SecretSource};
use quire_journal::{HeadersBuffer, Timestamp};
use quire_types::Secret;

use crate::headers;
use crate::interpreter;

/// The options of a subscription: `quire.client._spec.Spec`, member by member.
#[derive(FromPyObject)]
pub struct SpecArgument {
    topic: String,
    filter: Option<String>,
    bookmark: Option<String>,
    options: u32,
    max_backlog: Option<u32>,
    wants_completed: bool,
    rate: Option<String>,
    rate_max_gap: Option<Duration>,
    conflation: Option<Duration>,
    conflation_key: Option<String>,
    select: Option<String>,
    records: Option<RecordsArgument>,
}

impl From<SpecArgument> for SubscriptionSpec {
    fn from(spec: SpecArgument) -> Self {
        SubscriptionSpec {
            topic: spec.topic,
            filter: spec.filter,
            bookmark: spec.bookmark,
            resume_position: None,
            options: SubscribeOptions(spec.options),
            max_backlog: spec.max_backlog,
            completed: spec.wants_completed,
            rate: spec.rate,
            rate_max_gap: spec.rate_max_gap,
            conflation: spec.conflation,
            conflation_key: spec.conflation_key,
            select: spec.select,
            records: spec.records.map(|records| RecordsSpec {
                order_by: records.order_by,
                top_n: records.top_n,
                skip_n: records.skip_n,
                keys: records.keys,
                projection: records.projection,
                grouping: records.grouping,
            }),
            renewal: Renewal::default(),
        }
    }
}

/// The query of a subscription: `quire.client._records.Records`, member by member.
#[derive(FromPyObject)]
struct RecordsArgument {
    order_by: Option<String>,
    top_n: Option<u32>,
    skip_n: Option<u32>,
    keys: Option<Vec<String>>,
    projection: Option<Vec<String>>,
    grouping: Option<Vec<String>>,
}

/// A query: `quire.client._records.QuerySpec`, member by member.
#[derive(FromPyObject)]
pub struct QueryArgument {
    topic: String,
    filter: Option<String>,
    order_by: Option<String>,
    top_n: Option<u32>,
    skip_n: Option<u32>,
    keys: Option<Vec<String>>,
    bookmark: Option<String>,
    select: Option<String>,
    projection: Option<Vec<String>>,
    grouping: Option<Vec<String>>,
}

impl From<QueryArgument> for QuerySpec {
    fn from(spec: QueryArgument) -> Self {
        QuerySpec {
            topic: spec.topic,
            filter: spec.filter,
            order_by: spec.order_by,
            top_n: spec.top_n,
            skip_n: spec.skip_n,
            keys: spec.keys,
            bookmark: spec.bookmark,
            select: spec.select,
            projection: spec.projection,
            grouping: spec.grouping,
        }
    }
}

/// The delay of a message: its end in nanoseconds since 1970 by the clock of the client, and,
/// unless the program named the end, its length in nanoseconds.
pub type DelayArgument = (u64, Option<u64>);

pub fn delay_of((end, ns): DelayArgument) -> NewDelay {
    NewDelay { end: Timestamp(end), ns }
}

/// 0 = the next one, `None` = without one.
pub fn sequence_of(sequence: Option<u64>) -> Sequence {
    match sequence {
        Some(0) => Sequence::Auto,
        Some(sequence) => Sequence::Given(sequence),
        None => Sequence::None,
    }
}

/// One message of `publish_many`: topic, data, sequence, expiration in seconds, correlation id,
/// headers, delay, key, whether it is a delta, whether it only updates a record.
#[derive(FromPyObject)]
pub struct MessageArgument(
    String,
    PyBackedBytes,
    u64,
    Option<u32>,
    Option<String>,
    Option<Py<PyAny>>,
    Option<DelayArgument>,
    Option<String>,
    bool,
    bool,
);

impl MessageArgument {
    pub fn headers(&self, py: Python<'_>) -> PyResult<HeadersBuffer> {
        headers::from_python(py, self.5.as_ref().map(|headers| headers.bind(py)))
    }

    pub fn message<'a>(&'a self, headers: &'a HeadersBuffer) -> NewMessage<'a> {
        let MessageArgument(
            topic,
            data,
            sequence,
            expiration_s,
            correlation_id,
            _,
            delay,
            key,
            is_delta,
            is_update,
        ) = self;
        NewMessage {
            topic,
            data,
            sequence: sequence_of(Some(*sequence)),
            expiration_s: *expiration_s,
            delay: delay.map(delay_of),
            correlation_id: correlation_id.as_deref().unwrap_or_default().as_bytes(),
            headers: headers.as_headers(),
            key: key.as_deref().unwrap_or_default(),
            is_delta: *is_delta,
            is_update: *is_update,
        }
    }
}

/// An item of `publish_many`.
pub enum ItemArgument {
    /// Data with the options of the call.
    Data(PyBackedBytes),
    Message(Box<MessageArgument>),
}

impl<'py> FromPyObject<'_, 'py> for ItemArgument {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyBytes>() {
            Ok(data) => Ok(ItemArgument::Data(data.to_owned().into())),
            Err(_) => Ok(ItemArgument::Message(Box::new(object.extract()?))),
        }
    }
}

/// `quire.client._credentials.Credentials`, member by member. It has a `password` or a `token` at
/// most.
#[derive(FromPyObject)]
pub struct CredentialsArgument {
    pub user: Option<String>,
    pub password: Option<SecretArgument>,
    pub token: Option<SecretArgument>,
}

/// A password or a token, or a function that returns it for each connection.
#[derive(FromPyObject)]
pub enum SecretArgument {
    Text(String),
    Source(Py<PyAny>),
}

impl SecretArgument {
    /// The secret, or where the client gets it. `name`: of the argument.
    pub fn into_parts(
        self,
        name: &'static str,
        new: fn(Secret<String>) -> NewSecret,
    ) -> (Option<Secret<String>>, Option<SecretSource>) {
        match self {
            SecretArgument::Text(text) => (Some(Secret(text)), None),
            SecretArgument::Source(source) => {
                let source = move || {
                    let text = interpreter::text_of(&source);
                    text.map(|text| new(Secret(text)))
                        .map_err(|error| format!("the function for the {name} has failed: {error}"))
                };
                (None, Some(Box::new(source)))
            }
        }
    }
}

/// The options of a client: `quire.client._options.ClientOptions`, member by member.
#[derive(FromPyObject)]
pub struct OptionsArgument {
    pub credentials: CredentialsArgument,
    pub heartbeat: Option<Duration>,
    pub connect: String,
    pub connect_timeout: Duration,
    pub reconnect: ReconnectArgument,
    pub server_chooser: String,
    pub publish_store: PublishStoreArgument,
    pub receive_size_max: usize,
    pub ack_batch_size: u32,
    pub ack_timeout: Duration,
}

/// `quire.Reconnect`, member by member.
#[derive(FromPyObject)]
pub struct ReconnectArgument {
    initial: Duration,
    maximum: Duration,
    factor: f64,
    jitter: f64,
    give_up_after: Option<Duration>,
}

impl ReconnectArgument {
    pub fn into_core(self, server_chooser: &str) -> PyResult<Reconnect> {
        Ok(Reconnect {
            chooser: match server_chooser {
                "first" => ServerChooser::First,
                "random" => ServerChooser::Random,
                "least_loaded" => ServerChooser::LeastLoaded,
                other => return Err(PyValueError::new_err(format!("server_chooser: {other:?}"))),
            },
            initial_delay: self.initial,
            maximum_delay: self.maximum,
            factor: self.factor,
            jitter: self.jitter,
            give_up_after: self.give_up_after,
        })
    }
}

/// `quire.PublishStore`, member by member.
#[derive(FromPyObject)]
pub struct PublishStoreArgument {
    pub path: Option<PathBuf>,
    pub size_max: usize,
}
