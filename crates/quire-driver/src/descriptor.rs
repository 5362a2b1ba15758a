//! Sockets and pollers that a forked child closes ([`quire_journal::descriptor`]).

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use polling::Poller;
use quire_journal::descriptor::Owned;

/// Two sockets that are connected to each other.
///
/// # Errors
/// The system has no descriptor left.
pub fn socket_pair() -> io::Result<(Owned<UnixStream>, Owned<UnixStream>)> {
    Owned::open_pair(UnixStream::pair)
}

/// As [`socket_pair`]: a byte in the first one can be read from the second one. Neither of them
/// waits.
///
/// # Errors
/// The system has no descriptor left.
pub fn wake_up_pair() -> io::Result<(Owned<UnixStream>, Owned<UnixStream>)> {
    let (tx, rx) = socket_pair()?;
    tx.set_nonblocking(true)?;
    rx.set_nonblocking(true)?;
    Ok((tx, rx))
}

/// A poller.
///
/// # Errors
/// The system has no descriptor left.
pub(crate) fn poller() -> io::Result<Owned<Poller>> {
    Owned::open_all(Poller::new, |poller| {
        let number = poller.as_raw_fd();
        watched_by(number).into_iter().chain([number]).collect()
    })
}

/// The descriptors that a poller watches. A new one watches those with which it is woken up, and it
/// does not name them.
#[cfg(target_os = "linux")]
fn watched_by(poller: RawFd) -> Vec<RawFd> {
    // Without `/proc`, a child keeps these. They keep nothing else open.
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{poller}")).unwrap_or_default();
    let number = |line: &str| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok();
    told.lines().filter_map(number).collect()
}

/// As on Linux. The pollers of other systems have no descriptors next to them that a child would
/// keep.
#[cfg(not(target_os = "linux"))]
fn watched_by(_poller: RawFd) -> Vec<RawFd> {
    Vec::new()
}

/// A connection that does not wait when it is read or written. The connection attempt takes up to
/// `timeout`.
///
/// # Errors
/// Why there is no connection.
#[cfg(target_os = "linux")]
pub(crate) fn connect(address: &SocketAddr, timeout: Duration) -> io::Result<Owned<TcpStream>> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt::socket_error};
    use std::time::Instant;

    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // In the table before it connects: a child that is forked during the attempt must not get the
    // connection.
    let stream = Owned::open(|| socket_with(family, SocketType::STREAM, flags, None).map(TcpStream::from))?;
    match rustix::net::connect(&stream, address) {
        Ok(()) => return Ok(stream),
        Err(Errno::INPROGRESS) => (),
        Err(error) => return Err(error.into()),
    }
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "connection timed out"));
        }
        // A time that is too long for the system means no limit.
        match poll(&mut [PollFd::new(&stream, PollFlags::OUT)], Timespec::try_from(left).ok().as_ref()) {
            Ok(0) | Err(Errno::INTR) => (),
            Ok(_) => {
                socket_error(&stream)??;
                return Ok(stream);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// As on Linux. A child that is forked during the attempt may keep the connection.
#[cfg(not(target_os = "linux"))]
pub(crate) fn connect(address: &SocketAddr, timeout: Duration) -> io::Result<Owned<TcpStream>> {
    let stream = Owned::open(|| TcpStream::connect_timeout(address, timeout))?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}
