//! Engines and connections inside this process.

use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use quire_broker::BrokerConfig;
use quire_driver::client::{Endpoint, Tls, admin_socket};
use quire_driver::descriptor::socket_pair;
use quire_driver::{Engine, EngineKey};
use quire_journal::descriptor::Owned;

use crate::engine::to_python;
use crate::errors;
use crate::fork::Handle;
use crate::interpreter;

/// A share of the engine of a directory, or of a name in memory. The engine stops with the last
/// share.
#[pyclass(frozen, module = "quire._quire")]
pub struct Embedded {
    engine: Handle<Arc<Engine>>,
}

#[pymethods]
impl Embedded {
    /// The running engine on `directory` (an absolute path), or the one in memory with this name.
    /// It is started when it does not run. With `joins_any`, a running engine may have another
    /// configuration.
    #[new]
    fn new(
        py: Python<'_>,
        config: &str,
        directory: Option<PathBuf>,
        name: String,
        joins_any: bool,
    ) -> PyResult<Self> {
        let config = BrokerConfig::from_json(config).map_err(|error| to_python(py, error.into()))?;
        let key = directory.map_or(EngineKey::Memory(name), EngineKey::Directory);
        let open = if joins_any { Engine::joined } else { Engine::shared };
        let engine = interpreter::outside(py, || open(key, config)).map_err(|error| to_python(py, error))?;
        Ok(Embedded { engine: Handle::new(engine) })
    }
}

/// A connection inside of this process, between a client and a server that runs on an event loop.
#[pyclass(frozen, module = "quire._quire")]
pub struct Inside {
    /// Taken by the client, which cannot connect again.
    client: Arc<Mutex<Option<Owned<UnixStream>>>>,
    server: Mutex<Option<Owned<UnixStream>>>,
}

#[pymethods]
impl Inside {
    #[new]
    fn new() -> PyResult<Self> {
        let (client, server) = socket_pair()?;
        Ok(Inside { client: Arc::new(Mutex::new(Some(client))), server: Mutex::new(Some(server)) })
    }

    /// The descriptor of the end of the server. It belongs to the caller. A second call fails.
    fn server_end(&self) -> PyResult<i32> {
        let server = self.server.lock().take().ok_or_else(has_ended)?;
        Ok(server.get()?.try_clone()?.into_raw_fd())
    }
}

fn has_ended() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, "the connection inside of the process has ended")
}

/// `quire.TLS`, member by member.
#[derive(FromPyObject)]
pub struct TlsArgument {
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    key_password: Option<String>,
    server_name: Option<String>,
}

impl From<TlsArgument> for Tls {
    fn from(argument: TlsArgument) -> Self {
        let TlsArgument { ca, certificate, key, key_password, server_name } = argument;
        Tls { ca, certificate, key, key_password, server_name }
    }
}

/// Raises `ConfigError` for files or a name that a client cannot use for TLS.
#[pyfunction]
pub fn check_tls(py: Python<'_>, tls: TlsArgument) -> PyResult<()> {
    let tls = Tls::from(tls);
    interpreter::outside(py, || tls.check())
        .map_err(|error| errors::bad_option(py, &format!("ssl.{}", error.key), &error.reason))
}

/// Where a client connects.
#[derive(FromPyObject)]
pub enum LinkArgument<'py> {
    Tcp((String, u16)),
    Tls((String, u16, TlsArgument)),
    /// The journal directory of a server on this machine.
    Local((PathBuf,)),
    Embedded(PyRef<'py, Embedded>),
    Inside(PyRef<'py, Inside>),
}

impl From<LinkArgument<'_>> for Endpoint {
    fn from(argument: LinkArgument<'_>) -> Self {
        match argument {
            LinkArgument::Tcp((host, port)) => Endpoint::Tcp { host, port, tls: None },
            LinkArgument::Tls((host, port, tls)) => {
                Endpoint::Tcp { host, port, tls: Some(Arc::new(tls.into())) }
            }
            LinkArgument::Local((directory,)) => Endpoint::Local(directory),
            LinkArgument::Embedded(embedded) => {
                let engine = embedded.engine.value().clone();
                Endpoint::Embedded(Arc::new(move || engine.connect().map(Into::into)))
            }
            LinkArgument::Inside(inside) => {
                let client = Arc::clone(&inside.client);
                Endpoint::Embedded(Arc::new(move || {
                    client.lock().take().map(Into::into).ok_or_else(has_ended)
                }))
            }
        }
    }
}

/// The name of the socket on which the server of a journal directory listens for its administrator.
#[pyfunction]
pub fn local_socket_name(directory: PathBuf) -> PyResult<String> {
    Ok(admin_socket::socket_name(&directory)?)
}

/// Whether a server on this machine runs on a journal directory, and belongs to root or the owner
/// of the directory.
#[pyfunction]
pub fn runs_locally(py: Python<'_>, directory: PathBuf) -> bool {
    interpreter::outside(py, || admin_socket::connect(&directory).is_ok())
}
