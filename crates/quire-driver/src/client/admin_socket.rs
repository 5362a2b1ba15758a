//! The socket of the administrator: how a process finds the server that runs on a journal directory
//! of this machine.
//!
//! The server listens on a Unix socket without a file. The name of the socket comes from the device
//! and inode of the directory. So a program that knows the directory finds the server, and a killed
//! server leaves no file. Both sides check the identity of the peer, because any program may take
//! the name.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use quire_journal::descriptor::Owned;

/// The name of the socket for a journal directory, without the leading zero byte.
///
/// # Errors
/// The directory cannot be read.
pub fn socket_name(directory: &Path) -> io::Result<String> {
    let about = fs::metadata(directory)?;
    Ok(format!("quire-{}-{}", about.dev(), about.ino()))
}

/// Connects to the server that runs on a journal directory.
///
/// # Errors
/// `ConnectionRefused` when there is none. `PermissionDenied` when the program there belongs to
/// neither root nor the owner of the directory. `Unsupported` on systems other than Linux.
#[cfg(target_os = "linux")]
pub fn connect(directory: &Path) -> io::Result<Owned<UnixStream>> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    let address = SocketAddr::from_abstract_name(socket_name(directory)?)?;
    let stream = Owned::open(|| UnixStream::connect_addr(&address))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
    if peer == 0 || peer == fs::metadata(directory)?.uid() {
        return Ok(stream);
    }
    let reason =
        format!("the program there belongs to user {peer}, not to root or the owner of the directory");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

/// As on Linux.
#[cfg(not(target_os = "linux"))]
pub fn connect(_directory: &Path) -> io::Result<Owned<UnixStream>> {
    let reason = "this system has no Unix sockets without a file";
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}
