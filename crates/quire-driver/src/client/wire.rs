//! One connection, and the bytes that are still to be written to it.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use quire_client::FailureCode;

use super::transport::{Stream, code_of};

/// Bytes read at a time: enough for hundreds of messages per system call and lock.
const READ_SIZE: usize = 512 * 1024;

/// Why a connection cannot be used any more.
pub(super) struct Lost {
    /// The stable name of the case (docs/reference/errors.md).
    pub code: &'static str,
    pub reason: String,
}

impl From<String> for Lost {
    fn from(reason: String) -> Self {
        Lost { code: FailureCode::Disconnected.name(), reason }
    }
}

impl From<&str> for Lost {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Lost { code: code_of(&error), reason: error.to_string() }
    }
}

/// Belongs to the party that has the connection. It is in `Inner` while no party has it.
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    /// Bytes from the core, and how many of them were written.
    outgoing: Vec<u8>,
    written: usize,
    scratch: Vec<u8>,
    /// The error of waiting for the socket. The next write fails with it.
    failure: Option<String>,
}

impl Wire {
    pub fn new(stream: Box<dyn Stream>) -> Self {
        Wire { stream, outgoing: Vec::new(), written: 0, scratch: vec![0; READ_SIZE], failure: None }
    }

    /// Whether all bytes from the core were written.
    pub fn is_idle(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Where the core puts the next bytes, when it is idle.
    pub fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// The socket cannot be waited for.
    pub fn fail(&mut self, error: &io::Error) {
        self.failure = Some(format!("the socket cannot be waited for: {error}"));
    }

    /// Returns whether it wrote anything. Fails when the connection is lost.
    pub fn write(&mut self) -> Result<bool, Lost> {
        if let Some(reason) = self.failure.take() {
            return Err(reason.into());
        }
        let mut progress = false;
        while self.written < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.written..]) {
                Ok(0) => return Err("the server takes no bytes".into()),
                Ok(size) => {
                    progress = true;
                    self.written += size;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(progress),
                Err(error) => return Err(error.into()),
            }
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(progress)
    }

    /// Reads once, up to `size_max` bytes. Returns the bytes, and whether the socket is empty now.
    /// Fails when the connection is lost.
    pub fn read(&mut self, size_max: usize) -> Result<(&[u8], bool), Lost> {
        let room = size_max.min(self.scratch.len());
        loop {
            return match self.stream.read(&mut self.scratch[..room]) {
                Ok(0) => Err("the server closed the connection".into()),
                // A read that did not fill the buffer has emptied the socket.
                Ok(size) => Ok((&self.scratch[..size], size < room && !self.stream.has_buffered())),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok((&[], true)),
                Err(error) => Err(error.into()),
            };
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
