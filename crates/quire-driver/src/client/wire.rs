//! One connection, and the bytes that are still to be written to it.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};

use super::transport::Stream;

/// Bytes read at a time: enough for hundreds of messages per system call and lock.
const READ_SIZE: usize = 512 * 1024;

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
    pub fn write(&mut self) -> Result<bool, String> {
        if let Some(reason) = self.failure.take() {
            return Err(reason);
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
                Err(error) => return Err(error.to_string()),
            }
        }
        self.outgoing.clear();
        self.written = 0;
        Ok(progress)
    }

    /// Reads once, up to `size_max` bytes. Returns the bytes, and whether the socket is empty now.
    /// Fails when the connection is lost.
    pub fn read(&mut self, size_max: usize) -> Result<(&[u8], bool), String> {
        let room = size_max.min(self.scratch.len());
        loop {
            return match self.stream.read(&mut self.scratch[..room]) {
                Ok(0) => Err("the server closed the connection".into()),
                // A read that did not fill the buffer has emptied the socket.
                Ok(size) => Ok((&self.scratch[..size], size < room && !self.stream.has_buffered())),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok((&[], true)),
                Err(error) => Err(error.to_string()),
            };
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
