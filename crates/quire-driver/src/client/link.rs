//! The transports of a client: a TCP connection, a Unix socket of a server on this machine, or its end of a socket pair whose other end is
//! an engine in this process.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quire_client::FailureCode;
use quire_journal::descriptor::Owned;

use super::local;
use crate::descriptor;

/// Where to connect.
#[derive(Clone)]
pub enum Link {
    /// A server elsewhere.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// The server that runs on the journal in a directory of this machine, as its administrator.
    Local(PathBuf),
    /// An engine in this process: gives the client's end of a new connection.
    Embedded(Arc<dyn Fn() -> io::Result<Owned<UnixStream>> + Send + Sync>),
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// The name of the host has no address, or could not be looked up.
    #[error("{}", without_number(.0))]
    Resolve(io::Error),
    /// There is an address, and no connection to it.
    #[error("{}", without_number(.0))]
    Connect(#[from] io::Error),
}

/// The text of an error without the number that the operating system gives it: people search for the text.
fn without_number(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rfind(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

impl ConnectError {
    /// The stable name of the case (docs/reference/errors.md).
    pub fn code(&self) -> &'static str {
        match self {
            ConnectError::Resolve(_) => "no_such_host",
            ConnectError::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                "connection_refused"
            }
            ConnectError::Connect(_) => FailureCode::Disconnected.name(),
        }
    }
}

pub(super) enum Stream {
    Tcp(Owned<TcpStream>),
    Unix(Owned<UnixStream>),
}

impl Stream {
    /// Reads and writes wait from now on, for `limit` at most.
    pub fn block(&self, limit: Duration) -> io::Result<()> {
        let limit = Some(limit);
        match self {
            Stream::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
            Stream::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
        }
    }
}

impl Link {
    /// A connection, ready for non-blocking use.
    pub(super) fn connect(&self, timeout: Duration) -> Result<Stream, ConnectError> {
        match self {
            Link::Tcp { host, port } => {
                let no_address = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
                let mut last = ConnectError::Resolve(no_address);
                let addresses = (host.as_str(), *port).to_socket_addrs().map_err(ConnectError::Resolve)?;
                for address in addresses {
                    match descriptor::connect(&address, timeout) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Stream::Tcp(stream));
                        }
                        Err(error) => last = error.into(),
                    }
                }
                Err(last)
            }
            Link::Local(directory) => {
                let stream = local::connect(directory)?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }
            Link::Embedded(connect) => {
                let stream = connect()?;
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }
        }
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Brackets, as in the URL: without them, the end of an IPv6 address is not clear.
            Link::Tcp { host, port } if host.contains(':') => write!(f, "quire://[{host}]:{port}"),
            Link::Tcp { host, port } => write!(f, "quire://{host}:{port}"),
            Link::Local(directory) => write!(f, "local:{}", directory.display()),
            Link::Embedded(_) => f.write_str("the engine in this process"),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}
