//! An engine inside this process, for clients of `file:` and `memory:`.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use quire_core::broker::BrokerConfig;
use quire_driver::client::Link;
use quire_driver::{Engine, EngineKey};

use crate::engine::to_python;

/// A share of the engine of a directory, or of a name in memory. The engine stops with the last share.
#[pyclass(frozen, module = "quire._quire")]
pub struct Embedded {
    engine: Arc<Engine>,
}

#[pymethods]
impl Embedded {
    /// The running engine on `directory` (an absolute path), or the one in memory with this name; started when there is none.
    #[new]
    fn new(py: Python<'_>, config: &str, directory: Option<PathBuf>, name: String) -> PyResult<Self> {
        let config = BrokerConfig::from_json(config).map_err(|error| to_python(py, error.into()))?;
        let key = directory.map_or(EngineKey::Memory(name), EngineKey::Directory);
        let engine = py.detach(|| Engine::shared(key, config)).map_err(|error| to_python(py, error))?;
        Ok(Embedded { engine })
    }
}

/// Where a client connects.
#[derive(FromPyObject)]
pub enum LinkArgument<'py> {
    Tcp((String, u16)),
    Embedded(PyRef<'py, Embedded>),
}

impl From<LinkArgument<'_>> for Link {
    fn from(argument: LinkArgument<'_>) -> Self {
        match argument {
            LinkArgument::Tcp((host, port)) => Link::Tcp { host, port },
            LinkArgument::Embedded(embedded) => {
                let engine = embedded.engine.clone();
                Link::Embedded(Arc::new(move || engine.connect()))
            }
        }
    }
}
