//! The transports of a client: a TCP connection, a Unix socket of a server on this machine, or its
//! end of a socket pair whose other end is an engine in this process.

use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_client::FailureCode;
use quire_journal::descriptor::Owned;
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::admin_socket;
use super::tls::{Tls, TlsFailure, TlsOptionError, TlsStream};
use crate::descriptor;

/// Where to connect.
#[derive(Clone)]
pub enum Endpoint {
    /// A server elsewhere.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// How the connection is secured; `None`: it is not.
        tls: Option<Arc<Tls>>,
    },
    /// The server that runs on the journal in a directory of this machine, as its administrator.
    Local(PathBuf),
    /// An engine in this process. The function returns the client's end of a new connection.
    Embedded(Arc<dyn Fn() -> io::Result<Box<dyn Stream>> + Send + Sync>),
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
    /// A file of the client cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsOptionError),
}

/// The text of an error without the number of the operating system: people search for the text.
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
            ConnectError::Connect(error) => code_of(error),
            ConnectError::Tls(_) => TLS_FAILED,
        }
    }
}

/// The code of a connection that is not secured (docs/reference/errors.md).
const TLS_FAILED: &str = "tls_failed";

/// The stable name of the reason why a connection cannot be used.
pub(super) fn code_of(error: &io::Error) -> &'static str {
    match error.get_ref() {
        Some(cause) if cause.is::<TlsFailure>() => TLS_FAILED,
        _ => FailureCode::Disconnected.name(),
    }
}

/// A connection that does not wait when it is read or written.
///
/// Unless [`Stream::has_buffered`], a read that did not fill the buffer has taken everything that
/// the descriptor had.
pub trait Stream: AsFd + Send {
    /// Returns the number of bytes read; 0: the peer has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock`: there are none now. Others: the connection cannot be used any more.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Returns the number of bytes that were written.
    ///
    /// # Errors
    /// `WouldBlock`: none can be taken now. The next write begins with the same bytes. Others: the
    /// connection cannot be used any more.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Whether the next read returns bytes that the stream has already taken from its descriptor. A
    /// stream that decrypts has such bytes. The descriptor does not announce them.
    fn has_buffered(&self) -> bool {
        false
    }
}

impl<T: Read + Write + AsFd + Send> Stream for Owned<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        T::read(self, buffer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        T::write(self, bytes)
    }
}

impl From<Owned<UnixStream>> for Box<dyn Stream> {
    fn from(stream: Owned<UnixStream>) -> Self {
        Box::new(stream)
    }
}

/// Reads and writes block from now on, for `limit` at most.
pub(super) fn block(stream: &dyn Stream, limit: Duration) -> io::Result<()> {
    ioctl_fionbio(stream, false)?;
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(stream, direction, Some(limit))?;
    }
    Ok(())
}

impl Endpoint {
    /// A connection, ready for non-blocking use.
    pub(super) fn connect(&self, timeout: Duration) -> Result<Box<dyn Stream>, ConnectError> {
        match self {
            Endpoint::Tcp { host, port, tls } => {
                let deadline = Instant::now() + timeout;
                let no_address = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
                let mut last = ConnectError::Resolve(no_address);
                let addresses = (host.as_str(), *port).to_socket_addrs().map_err(ConnectError::Resolve)?;
                for address in addresses {
                    match descriptor::connect(&address, timeout) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return match tls {
                                None => Ok(Box::new(stream)),
                                Some(tls) => {
                                    let identifies_itself = tls.certificate.is_some();
                                    let session = tls.session(host)?;
                                    let stream =
                                        TlsStream::connect(stream, session, identifies_itself, deadline)?;
                                    Ok(Box::new(stream))
                                }
                            };
                        }
                        Err(error) => last = error.into(),
                    }
                }
                Err(last)
            }
            Endpoint::Local(directory) => {
                let stream = admin_socket::connect(directory)?;
                stream.set_nonblocking(true)?;
                Ok(stream.into())
            }
            Endpoint::Embedded(connect) => {
                let stream = connect()?;
                ioctl_fionbio(&stream, true).map_err(io::Error::from)?;
                Ok(stream)
            }
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Brackets, as in the URL: without them, the end of an IPv6 address is ambiguous.
            Endpoint::Tcp { host, port, tls } => {
                let scheme = if tls.is_some() { "quires" } else { "quire" };
                match host.contains(':') {
                    true => write!(f, "{scheme}://[{host}]:{port}"),
                    false => write!(f, "{scheme}://{host}:{port}"),
                }
            }
            Endpoint::Local(directory) => write!(f, "local:{}", directory.display()),
            Endpoint::Embedded(_) => f.write_str("the engine in this process"),
        }
    }
}
